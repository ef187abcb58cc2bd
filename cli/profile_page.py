"""A profile as one HTML page that needs nothing else: the roofline as a picture, the table, totals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aot.cli.html import document, facts_list, table, text
from aot.cli.profile_report import HEADINGS, Profile, Row, Total, cells, percent, rate_text, summary, us

_LEFT, _TOP, _RIGHT, _BOTTOM = 84, 24, 200, 56
_WIDTH, _HEIGHT = 820, 440
_LABELLED = 12  # of the longest kernels, where there is room
_LETTER, _LINE = 5.5, 11.0  # roughly, of their names
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#9c755f", "#76b7b2", "#edc948")
_TEXT_COLUMNS = frozenset({"kernel", "bound by", "nodes", "schedule", "registers, shared", "blocks x threads"})
_LONG_COLUMNS = frozenset({"nodes", "schedule"})


def page(found: Profile) -> str:
    """The document."""
    rows = sorted(found.rows, key=lambda row: -row.seconds)
    body = [
        f"<h1>Profile of {text(found.artifact)}</h1>",
        facts_list(summary(found)),
        "<h2>Roofline</h2>",
        roofline(found),
        _outside(found),
        "<h2>Kernels</h2>",
        table(HEADINGS, [cells(row) for row in rows], _TEXT_COLUMNS, _LONG_COLUMNS),
        "<p>Bytes count every operand once, as if nothing were in a cache; with warm caches a kernel whose operands "
        "fit in one may be faster than the memory. Below a quarter of both ceilings a kernel is bound by latency.</p>",
        "<h2>By kind</h2>",
        _totals(found.kinds),
        "<h2>By node of the model</h2>",
        "<p>Where a kernel computes several nodes, each has an equal part of its time.</p>",
        _totals(found.nodes),
    ]
    return document(f"{found.artifact}, {found.target}", body)


def _outside(found: Profile) -> str:
    missing = [row for row in found.rows if not _is_placed(row)]
    if not missing:
        return ""
    seconds = sum(row.seconds for row in missing)
    what = f"{len(missing)} of the launches ({us(seconds)} us)"
    return f"<p>Not in the picture: {what} without arithmetic, or of unknown size.</p>"


def _totals(totals: Sequence[Total]) -> str:
    rows = [
        (t.name, t.launches, us(t.seconds), f"{t.share:.1%}", f"{t.bytes:,}", f"{t.flops:,}") for t in totals
    ]  # fmt: skip
    return table(("name", "launches", "us", "share", "bytes", "flops"), rows, frozenset({"name"}))


def _is_placed(row: Row) -> bool:
    return bool(row.bytes and row.flops and row.seconds > 0)


def roofline(found: Profile) -> str:
    """Flops per second over flops per byte, both logarithmic; ceilings are lines, kernels are dots by share."""
    placed = [row for row in found.rows if _is_placed(row)]
    points = [((row.flops or 0) / (row.bytes or 1), (row.flops or 0) / row.seconds) for row in placed]
    memory, units = found.ceilings.memory_bytes, {n: r for n, r in found.ceilings.flops.items() if r > 0}
    ridges = [rate / memory for rate in units.values()] if memory else []
    low_x, high_x = _decades([x for x, _ in points] + ridges)
    low_y, high_y = _decades([y for _, y in points] + list(units.values()))

    def x(value: float) -> float:
        return round(_LEFT + _WIDTH * (math.log10(value) - low_x) / (high_x - low_x), 2)

    def y(value: float) -> float:
        return round(_TOP + _HEIGHT * (1 - (math.log10(value) - low_y) / (high_y - low_y)), 2)

    width, height = _LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img" aria-label="roofline">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<clipPath id="inside"><rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}"/></clipPath>',
    ]
    for power in range(low_x, high_x + 1):
        at = x(10.0**power)
        parts.append(f'<line x1="{at}" y1="{_TOP}" x2="{at}" y2="{_TOP + _HEIGHT}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{at}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{_power(power)}</text>')
    for power in range(low_y, high_y + 1):
        at = y(10.0**power)
        parts.append(f'<line x1="{_LEFT}" y1="{at}" x2="{_LEFT + _WIDTH}" y2="{at}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4}" text-anchor="end">{rate_text(10.0**power, "FLOP/s")}</text>')
    used = {row.unit for row in placed}
    top = max((rate for name, rate in units.items() if name in used), default=10.0**high_y)
    if memory:
        ends = (10.0**low_x, min(top / memory, 10.0**high_x))
        line = " ".join(f"{x(end)},{y(max(end * memory, 10.0 ** (low_y - 3)))}" for end in ends)
        title = f"memory {rate_text(memory, 'B/s')}: {found.ceilings.memory_from}"
        parts.append(
            f'<g clip-path="url(#inside)"><polyline points="{line}" fill="none" stroke="#444" stroke-width="1.5">'
            f"<title>{text(title)}</title></polyline></g>"
        )
        # The name lies along the line, in its middle.
        middle = math.sqrt(ends[0] * ends[1])
        if 10.0**low_y <= middle * memory <= 10.0**high_y:
            slope = -math.degrees(math.atan2(_HEIGHT / (high_y - low_y), _WIDTH / (high_x - low_x)))
            px, py = x(middle), y(middle * memory) + 14
            parts.append(
                f'<text x="{px}" y="{py}" text-anchor="middle" transform="rotate({slope:.1f} {px} {py})">'
                f"memory {rate_text(memory, 'B/s')}</text>"
            )
    for name, rate in units.items():
        start = max(rate / memory, 10.0**low_x) if memory else 10.0**low_x
        dash = "" if name in used else ' stroke-dasharray="4 4"'
        title = f"{name} {rate_text(rate, 'FLOP/s')}: {found.ceilings.flops_from}"
        parts.append(
            f'<line x1="{x(min(start, 10.0**high_x))}" y1="{y(rate)}" x2="{_LEFT + _WIDTH}" y2="{y(rate)}" '
            f'stroke="#444" stroke-width="1.5"{dash}><title>{text(title)}</title></line>'
        )
        parts.append(
            f'<text x="{_LEFT + _WIDTH + 6}" y="{y(rate) + 4}">{text(name)} {rate_text(rate, "FLOP/s")}</text>'
        )
    kinds = list(dict.fromkeys(total.name for total in found.kinds))
    colour = {kind: _COLOURS[number % len(_COLOURS)] for number, kind in enumerate(kinds)}
    ordered = sorted(zip(placed, points, strict=True), key=lambda pair: -pair[0].seconds)
    for row, (intensity, rate) in ordered:  # the longest first, so that small dots lie on large ones
        radius = round(3 + 17 * math.sqrt(row.share), 2)
        parts.append(
            f'<circle cx="{x(intensity)}" cy="{y(rate)}" r="{radius}" fill="{colour[row.kind]}" fill-opacity="0.75" '
            f'stroke="white"><title>{text(_hover(row))}</title></circle>'
        )
    taken: list[tuple[float, float, float]] = []  # left, right and middle of the labels so far
    for row, (intensity, rate) in ordered[:_LABELLED]:
        label = _short(row.label)
        at, middle = x(intensity), y(rate)
        side = "end" if at > _LEFT + 0.75 * _WIDTH else "start"
        shift = (6 + 17 * math.sqrt(row.share)) * (-1 if side == "end" else 1)
        left, right = sorted((at + shift, at + shift + math.copysign(_LETTER * len(label), shift)))
        if any(left < end and right > start and abs(middle - m) < _LINE for start, end, m in taken):
            continue  # hovering tells its name
        taken.append((left, right, middle))
        parts.append(
            f'<text x="{round(at + shift, 2)}" y="{middle + 4}" text-anchor="{side}" font-size="10" '
            f'pointer-events="none">{text(label)}</text>'
        )
    shown = [kind for kind in kinds if any(row.kind == kind for row in placed)]
    for number, kind in enumerate(shown):
        at = _TOP + _HEIGHT - 18 * (len(shown) - number) + 10
        parts.append(f'<circle cx="{_LEFT + _WIDTH + 14}" cy="{at}" r="5" fill="{colour[kind]}"/>')
        parts.append(f'<text x="{_LEFT + _WIDTH + 24}" y="{at + 4}">{text(kind)}</text>')
    parts += [
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#444"/>',
        f'<text x="{_LEFT + _WIDTH / 2}" y="{height - 14}" text-anchor="middle">flops for each byte moved</text>',
        "</svg>",
    ]
    return "\n".join(parts)


def _hover(row: Row) -> str:
    lines = [
        f"{row.label} (step {row.number}): {us(row.seconds)} us, {row.share:.1%}",
        ", ".join(row.nodes),
        f"{rate_text(row.flops_per_s, 'FLOP/s')}, {percent(row.unit_share)} of {row.unit}",
        f"{rate_text(row.bytes_per_s, 'B/s')}, {percent(row.memory_share)} of memory",
        f"bound by {row.bound}",
    ]
    return "\n".join(filter(None, lines))


def _short(text: str) -> str:
    return text if len(text) <= 28 else f"{text[:27]}…"


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Powers of ten around all values, at least one decade."""
    known = [value for value in values if value > 0]
    low = math.floor(math.log10(min(known))) if known else 0
    high = math.ceil(math.log10(max(known) * 1.2)) if known else 1
    return low, max(high, low + 1)


def _power(power: int) -> str:
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"
