"""Charts over time as inline SVG: lines, bands and limits, each named by its own text. Needs no script.

Invariant: whatever is drawn lies in the frame (values beyond the scale are clipped), and names do not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from zlib import crc32

from aot.cli.html import text

STABLE, CANDIDATE, LIMIT, RECORDED = "#4e79a7", "#e8762c", "#b3261e", "#59754d"
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 84, 250, 30, 40
_LINE_HEIGHT = 13.0  # of names


@dataclass(frozen=True)
class Line:
    """Values over time (seconds since the start); None leaves a gap. `dots` marks every value."""

    name: str
    times: Sequence[float]
    values: Sequence[float | None]
    colour: str
    dash: str = ""
    width: float = 1.6
    dots: bool = False
    steps: bool = False  # a value holds until the next


@dataclass(frozen=True)
class Band:
    """What lies between two lines; None leaves a gap."""

    name: str
    times: Sequence[float]
    low: Sequence[float | None]
    high: Sequence[float | None]
    colour: str


@dataclass(frozen=True)
class Level:
    """A value that holds all the time: a limit, a recorded quantile."""

    name: str
    value: float
    colour: str = LIMIT
    dash: str = "6 4"


@dataclass(frozen=True)
class Mark:
    """A moment, and what happened."""

    name: str
    time: float
    colour: str = "#444"


@dataclass
class Chart:
    """One chart. `unit` is "s" for durations, "%" for shares, "" for numbers; `log` scales by powers of ten."""

    title: str
    lines: Sequence[Line] = ()
    bands: Sequence[Band] = ()
    levels: Sequence[Level] = ()
    marks: Sequence[Mark] = ()
    unit: str = ""
    log: bool = False
    height: int = 170
    end: float | None = None  # seconds; the last moment of all otherwise
    least_range: tuple[float, float] | None = None
    focus: tuple[float, float] | None = None  # the scale goes no further than this, either side
    _times: tuple[float, float] = field(default=(0.0, 1.0), init=False)
    _values: tuple[float, float] = field(default=(0.0, 1.0), init=False)

    def svg(self) -> str:
        """The element."""
        self._scale()
        width, height = _LEFT + _WIDTH + _RIGHT, _TOP + self.height + _BOTTOM
        clip = f"clip{crc32(self.title.encode()):08x}"
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="11" role="img" '
            f'aria-label="{text(self.title)}">',
            f'<text x="{_LEFT}" y="{_TOP - 11}" font-size="13" font-weight="600">{text(self.title)}</text>',
            f'<clipPath id="{clip}"><rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{self.height}"/></clipPath>',
            *self._grid(),
            f'<g clip-path="url(#{clip})">',
            *(self._band(band) for band in self.bands),
            *(self._level(level) for level in self.levels),
            *(part for line in self.lines for part in self._line(line)),
            *(self._mark(mark) for mark in self.marks),
            "</g>",
            f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{self.height}" fill="none" stroke="#888"/>',
            *self._mark_names(),
            *self._names(),
            "</svg>",
        ]
        return "\n".join(parts)

    def _scale(self) -> None:
        times = [time for line in self.lines for time in line.times]
        times += [time for band in self.bands for time in band.times]
        times += [mark.time for mark in self.marks]
        last = self.end if self.end is not None else max(times, default=1.0)
        self._times = (0.0, max(last, 1e-9))
        values = [value for line in self.lines for value in line.values]
        values += [value for band in self.bands for value in (*band.low, *band.high)]
        values += [level.value for level in self.levels]
        known = [value for value in values if value is not None and math.isfinite(value)]
        if self.log:
            known = [value for value in known if value > 0]
            bottom, top = (math.log10(min(known)), math.log10(max(known))) if known else (-3.0, 0.0)
            room = max(top - bottom, 0.3)
            self._values = (bottom - 0.06 * room, bottom + 1.06 * room)
            return
        if self.least_range is not None:
            known += self.least_range
        low, high = min(known, default=0.0), max(known, default=1.0)
        if self.focus is not None:
            low, high = max(low, self.focus[0]), min(high, self.focus[1])
        room = (high - low) or abs(high) or 1.0
        bottom = 0.0 if self.focus is None and 0 <= low < 0.6 * high else low - 0.06 * room
        self._values = (bottom, high + 0.06 * room)

    def _x(self, time: float) -> float:
        low, high = self._times
        return round(_LEFT + _WIDTH * (time - low) / (high - low), 1)

    def _y(self, value: float) -> float:
        low, high = self._values
        scaled = (math.log10(value) if value > 0 else low - 1) if self.log else value
        share = (scaled - low) / (high - low)
        return round(_TOP + self.height * (1 - min(max(share, -1.0), 2.0)), 1)

    def _grid(self) -> Iterator[str]:
        low, high = self._values
        if self.log:
            ticks = round_powers(low, high)
        else:
            ticks = round_values(low, high, 5)
        for value in ticks:
            y = self._y(value)
            yield f'<line x1="{_LEFT}" y1="{y}" x2="{_LEFT + _WIDTH}" y2="{y}" stroke="#e4e4e4"/>'
            yield f'<text x="{_LEFT - 7}" y="{y + 4}" text-anchor="end">{text(number(value, self.unit))}</text>'
        for time in round_times(self._times[1]):
            x = self._x(time)
            yield f'<line x1="{x}" y1="{_TOP}" x2="{x}" y2="{_TOP + self.height}" stroke="#f0f0f0"/>'
            yield f'<text x="{x}" y="{_TOP + self.height + 16}" text-anchor="middle">{duration(time)}</text>'

    def _points(self, times: Sequence[float], values: Sequence[float | None]) -> Iterator[list[tuple[float, float]]]:
        """Runs of neighbours that are all known."""
        run: list[tuple[float, float]] = []
        for time, value in zip(times, values, strict=True):
            if value is None or math.isnan(value):
                if run:
                    yield run
                run = []
            else:
                run.append((self._x(time), self._y(value)))
        if run:
            yield run

    def _line(self, line: Line) -> Iterator[str]:
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        for run in self._points(line.times, line.values):
            points = run
            if line.steps:
                points = [run[0]] + [each for a, b in pairwise(run) for each in ((b[0], a[1]), b)]
            path = " ".join(f"{x},{y}" for x, y in points)
            yield (
                f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="{line.width}"{dash}>'
                f"<title>{text(line.name)}</title></polyline>"
            )
            if line.dots or len(run) == 1:
                yield from (f'<circle cx="{x}" cy="{y}" r="2.2" fill="{line.colour}"/>' for x, y in run)

    def _band(self, band: Band) -> str:
        low_end, high_end = self._values
        room = high_end - low_end
        bottom, top = (
            (low_end - room, high_end + room) if not self.log else (10.0 ** (low_end - 1), 10.0 ** (high_end + 1))
        )
        parts = []
        known = [
            None if a is None or b is None or math.isnan(a) or math.isnan(b) else (max(a, bottom), min(b, top))
            for a, b in zip(band.low, band.high, strict=True)
        ]
        uppers = list(self._points(band.times, [each and each[1] for each in known]))
        lowers = list(self._points(band.times, [each and each[0] for each in known]))
        for upper, lower in zip(uppers, lowers, strict=True):
            path = " ".join(f"{x},{y}" for x, y in (*upper, *reversed(lower)))
            parts.append(f'<polygon points="{path}" fill="{band.colour}" fill-opacity="0.2" stroke="none"/>')
        return "".join(parts)

    def _level(self, level: Level) -> str:
        y = self._y(level.value)
        return (
            f'<line x1="{_LEFT}" y1="{y}" x2="{_LEFT + _WIDTH}" y2="{y}" stroke="{level.colour}" '
            f'stroke-dasharray="{level.dash}"><title>{text(level.name)}</title></line>'
        )

    def _mark(self, mark: Mark) -> str:
        x = self._x(mark.time)
        return (
            f'<line x1="{x}" y1="{_TOP}" x2="{x}" y2="{_TOP + self.height}" stroke="{mark.colour}" '
            f'stroke-dasharray="2 3"><title>{text(mark.name)}</title></line>'
        )

    def _mark_names(self) -> Iterator[str]:
        """Below the axis, those that have room."""
        free = float(_LEFT)
        for mark in sorted(self.marks, key=lambda mark: mark.time):
            half = 3.0 * len(mark.name)
            x = min(max(self._x(mark.time), _LEFT + half), _LEFT + _WIDTH - half)
            if x - half < free:
                continue  # hovering tells it
            free = x + half + 8
            yield (
                f'<text x="{x:.1f}" y="{_TOP + self.height + 31}" text-anchor="middle" font-size="10" '
                f'fill="{mark.colour}">{text(mark.name)}</text>'
            )

    def _names(self) -> Iterator[str]:
        """Beside the frame, each as near to its last value as the others let it be."""
        ends = [(line.name, line.values, line.colour) for line in self.lines]
        ends += [(band.name, band.high, band.colour) for band in self.bands]
        wanted: list[tuple[float, str, str]] = []
        for name, values, colour in ends:
            last = next((value for value in reversed(values) if value is not None and not math.isnan(value)), None)
            if name and last is not None:
                wanted.append((self._y(last), name, colour))
        wanted += [(self._y(level.value), level.name, level.colour) for level in self.levels if level.name]
        bottom = _TOP + self.height + 6.0
        placed: list[list[float]] = []
        wanted = sorted((min(max(y, _TOP), bottom), name, colour) for y, name, colour in wanted)
        for y, _, _ in wanted:
            placed.append([max(y, placed[-1][0] + _LINE_HEIGHT) if placed else y])
        limit = bottom
        for each in reversed(placed):  # push up what fell below the frame
            each[0] = min(each[0], limit)
            limit = each[0] - _LINE_HEIGHT
        for (y, name, colour), (at,) in zip(wanted, placed, strict=True):
            end = _LEFT + _WIDTH
            yield f'<path d="M{end + 1},{y:.1f} L{end + 12},{at:.1f}" stroke="{colour}" fill="none"/>'
            yield f'<text x="{end + 15}" y="{at + 4:.1f}" fill="{colour}">{text(name)}</text>'


def round_values(low: float, high: float, wanted: int) -> list[float]:
    """About `wanted` multiples of 1, 2 or 5 times a power of ten, between two values."""
    room = max(high - low, 1e-300)
    raw = room / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def round_powers(low: float, high: float) -> list[float]:
    """Powers of ten between 10**low and 10**high, about six at most; with 2 and 5 times them where they are few."""
    factors = (1, 2, 5) if high - low < 2 else (1,)
    step = max(1, math.ceil((high - low) / 6))
    powers = range(step * math.floor(low / step), math.ceil(high) + 1, step)
    return [factor * 10.0**power for power in powers for factor in factors if low <= math.log10(factor) + power <= high]


_TIME_STEPS = (
    1e-3, 5e-3, 1e-2, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800, 2592000
)  # fmt: skip


def round_times(last: float) -> list[float]:
    """Round moments between 0 and `last`, in seconds, at most nine."""
    step = next((each for each in _TIME_STEPS if last / each <= 8), last / 10)
    return [index * step for index in range(int(last / step + 1e-9) + 1)]


def duration(seconds: float) -> str:
    """Seconds for people, as labels of an axis."""
    if seconds == 0:
        return "0"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def number(value: float, unit: str = "") -> str:
    """A value for people: seconds as ms or us, shares in percent, others to four digits."""
    if unit == "%":
        return f"{100 * value:.4g} %"
    if unit == "s":
        size = abs(value)
        if size == 0:
            return "0"
        return f"{value:.4g} s" if size >= 1 else f"{value * 1e3:.4g} ms" if size >= 1e-3 else f"{value * 1e6:.4g} us"
    return f"{value:.4g}{unit}"
