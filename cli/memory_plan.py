"""The memory plan of a program at given extents, as numbers, as text bars and as an SVG picture.

x is the step, y the byte offset in the arena; every arena buffer is a rectangle over its lifetime. Two
rectangles that overlap would be a defect of the plan; the compiler's checker has excluded it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from aot import dims as dimension
from aot.cli.common import bytes_text
from aot.program import Program, Space

ALIGNMENT_BYTES = 64
BAR_COLUMNS = 72


@dataclass(frozen=True, slots=True)
class Placed:
    """An arena buffer at concrete extents. `locs`: the user's nodes whose step writes it first."""

    number: int
    name: str
    offset_bytes: int
    size_bytes: int
    first_step: int
    last_step: int
    locs: tuple[str, ...]

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + self.size_bytes

    @property
    def title(self) -> str:
        """What a person wants to know of it, for a hover text."""
        nodes = ", ".join(self.locs) or "no node"
        place = f"bytes {self.offset_bytes}..{self.end_bytes} ({bytes_text(self.size_bytes)})"
        name = self.name or f"buffer {self.number}"
        return f"{name}\nmade by {nodes}\n{place}\nsteps {self.first_step}..{self.last_step}"


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where everything in the arena lies. `live_bytes`: what is alive at each step; its largest is the lower bound."""

    buffers: tuple[Placed, ...]
    peak_bytes: int
    lower_bound_bytes: int
    live_bytes: tuple[int, ...]
    values: Mapping[str, int]
    planner: str


def memory_plan(program: Program, values: Mapping[str, int]) -> MemoryPlan:
    """Evaluates the plan: a buffer lies at its offset, or above all those it stands on (see Buffer)."""
    placed: dict[int, Placed] = {}
    for number, buffer in enumerate(program.buffers):
        if buffer.space != Space.ARENA:
            continue
        size = dimension.evaluate(buffer.size_bytes, values)
        offset = buffer.offset_bytes
        if buffer.below:
            offset = max(_aligned(placed[below].end_bytes) for below in buffer.below)
        locs = program.steps[buffer.first_step].locs if buffer.first_step < len(program.steps) else ()
        placed[number] = Placed(number, buffer.name, offset, size, buffer.first_step, buffer.last_step, locs)
    steps = max([len(program.steps), *(item.last_step + 1 for item in placed.values())])
    live = tuple(
        sum(_aligned(item.size_bytes) for item in placed.values() if item.first_step <= step <= item.last_step)
        for step in range(steps)
    )
    return MemoryPlan(
        tuple(sorted(placed.values(), key=lambda item: (item.offset_bytes, item.first_step))),
        max((_aligned(item.end_bytes) for item in placed.values()), default=0),
        max(live, default=0),
        live,
        dict(values),
        program.planner,
    )


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def summary(plan: MemoryPlan) -> str:
    """One line: extents, peak, bound, method."""
    extents = ", ".join(f"{name}={value}" for name, value in plan.values.items())
    at = f" at {extents}" if extents else ""
    bound = bytes_text(plan.lower_bound_bytes)
    method = f" ({plan.planner})" if plan.planner else ""
    return f"arena {bytes_text(plan.peak_bytes)}{at}, lower bound {bound}{method}, {len(plan.buffers)} buffers"


def text_bars(plan: MemoryPlan) -> list[str]:
    """A line per buffer, by offset: where it lies, and a bar over the steps it lives for; then the live bytes."""
    steps = len(plan.live_bytes)
    columns = min(BAR_COLUMNS, max(steps, 1))
    lines = [f"{'offset':>12} {'bytes':>12}  steps 0..{max(steps - 1, 0)}"]
    for item in plan.buffers:
        first = item.first_step * columns // max(steps, 1)
        last = max(item.last_step * columns // max(steps, 1), first)
        bar = "·" * first + "█" * (last - first + 1) + "·" * (columns - last - 1)
        nodes = item.name or ", ".join(item.locs[:2]) or f"buffer {item.number}"
        lines.append(f"{item.offset_bytes:>12} {item.size_bytes:>12}  {bar}  {nodes}")
    lines.append(f"{'':>12} {'live':>12}  {_sparkline(plan.live_bytes, columns, plan.peak_bytes)}")
    return lines


def _sparkline(live: Sequence[int], columns: int, top: int) -> str:
    """The largest live bytes of each column in eighths of the peak."""
    marks = " ▁▂▃▄▅▆▇█"
    text = ""
    for column in range(columns):
        start = column * len(live) // columns
        end = max((column + 1) * len(live) // columns, start + 1)
        most = max(live[start:end], default=0)
        text += marks[math.ceil(8 * most / top) if top else 0]
    return text


# The picture.

_LEFT, _TOP, _RIGHT, _BOTTOM = 96, 56, 24, 56
_WIDTH, _HEIGHT = 1100, 560
_LETTER = 6.0  # width of a letter of a label, roughly
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#e15759")


def svg(plan: MemoryPlan, title: str) -> str:
    """The plan as an SVG document; hovering over a rectangle tells its buffer and the user's node."""
    steps = max(len(plan.live_bytes), 1)
    top = max(plan.peak_bytes, plan.lower_bound_bytes, 1)

    def x(step: float) -> float:
        return round(_LEFT + step * _WIDTH / steps, 2)

    def y(offset: float) -> float:
        return round(_TOP + _HEIGHT * (1 - offset / top), 2)

    width, height = _LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14" font-weight="bold">{_xml(title)}</text>',
        f'<text x="{_LEFT}" y="40">{_xml(summary(plan))}</text>',
    ]
    for tick in _ticks(top, 6):
        parts.append(f'<line x1="{_LEFT}" y1="{y(tick)}" x2="{_LEFT + _WIDTH}" y2="{y(tick)}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 4}" text-anchor="end">{bytes_text(tick)}</text>')
    for tick in _ticks(steps - 1, 12):
        parts.append(f'<text x="{x(tick + 0.5)}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{tick}</text>')
    for item in plan.buffers:
        left, right = x(item.first_step), x(item.last_step + 1)
        upper, lower = y(item.end_bytes), y(item.offset_bytes)
        colour = _COLOURS[item.number % len(_COLOURS)]
        parts.append(
            f'<rect x="{left}" y="{upper}" width="{round(right - left, 2)}" height="{round(lower - upper, 2)}" '
            f'fill="{colour}" fill-opacity="0.8" stroke="white" stroke-width="0.5">'
            f"<title>{_xml(item.title)}</title></rect>"
        )
        letters = int((right - left - 8) / _LETTER)
        if letters >= 4 and lower - upper >= 14:  # a label where it fits; the hover text has the whole name
            name = item.name if len(item.name) <= letters else f"{item.name[: letters - 1]}…"
            parts.append(
                f'<text x="{left + 4}" y="{round((upper + lower) / 2 + 4, 2)}" font-size="10" fill="white" '
                f'pointer-events="none">{_xml(name)}</text>'
            )
    line = " ".join(f"{x(step)},{y(bytes_)} {x(step + 1)},{y(bytes_)}" for step, bytes_ in enumerate(plan.live_bytes))
    if line:
        parts.append(f'<polyline points="{line}" fill="none" stroke="black"><title>live bytes</title></polyline>')
    for name, value, dash in (("peak", plan.peak_bytes, "6 3"), ("lower bound", plan.lower_bound_bytes, "2 3")):
        parts.append(
            f'<line x1="{_LEFT}" y1="{y(value)}" x2="{_LEFT + _WIDTH}" y2="{y(value)}" stroke="#c00" '
            f'stroke-dasharray="{dash}"><title>{name} {bytes_text(value)}</title></line>'
        )
    middle = _TOP + _HEIGHT / 2
    turned = f'text-anchor="middle" transform="rotate(-90 18 {middle})"'
    parts += [
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#444"/>',
        f'<text x="{_LEFT + _WIDTH / 2}" y="{height - 14}" text-anchor="middle">step of the plan</text>',
        f'<text x="18" y="{middle}" {turned}>offset in the arena</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _ticks(top: int, count: int) -> list[int]:
    """Round numbers from 0 to at most `top`, about `count` of them."""
    if top <= 0:
        return [0]
    rough = max(top / count, 1)
    power = 10 ** math.floor(math.log10(rough))
    step = next(int(power * factor) for factor in (1, 2, 5, 10) if power * factor >= rough)
    return list(range(0, top + 1, step))


def _xml(text: str) -> str:
    """Text that XML can hold: escaped, and without control characters."""
    return escape("".join(c if c.isprintable() or c == "\n" else "?" for c in text))
