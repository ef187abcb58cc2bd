"""A comparison as one HTML page that needs nothing else: the error along the network as a picture, and the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from aot.cli.blame import Compared, Row
from aot.cli.compare_report import HEADINGS, cells, fault_facts, remarks
from aot.cli.html import document, facts_list, table, text
from aot.cli.rebuild import Culprit

_LEFT, _TOP, _RIGHT, _BOTTOM = 64, 20, 170, 50
_WIDTH, _HEIGHT = 980, 360
_LOWEST = -9  # the power of ten below which a relative error is drawn as that
_TEXTS = frozenset({"tensor", "shape", "node", ""})
_LINES: tuple[tuple[str, str, str], ...] = (
    ("against", "#4e79a7", "error against the other implementation"),
    ("expected", "#9c755f", "what rounding explains of it"),
    ("own", "#e15759", "error that the nodes add"),
    ("bound", "#59a14f", "what rounding explains of that"),
)


def page(compared: Compared, culprit: Culprit | None, artifact: str) -> str:
    """The document."""
    verdict = "agrees" if compared.passed else "differs"
    body = [f"<h1>{text(artifact)} {verdict} with {text(compared.reference)}</h1>"]
    if compared.fault.kind:
        body += ["<h2>The first to blame</h2>", facts_list(fault_facts(compared.fault))]
        histograms = compared.fault.histograms()
        if histograms:
            lines = [*histograms["differences"], f"values from {histograms['low']:.4g} to {histograms['high']:.4g}"]
            lines += [f"expected |{histograms['expected']}|", f"found    |{histograms['found']}|"]
            body.append(f"<pre>{text(chr(10).join(lines))}</pre>")
    if culprit is not None:
        body.append(f"<p>Bisection, {culprit.builds} builds: {text(culprit.text)}.</p>")
    body += [
        "<h2>Error along the network</h2>",
        picture(compared.rows),
        "<p>Relative to the largest value of each tensor.</p>",
        "<h2>Tensors</h2>",
        table(HEADINGS, [cells(row) for row in compared.rows], _TEXTS, frozenset({"node"})),
        *(f"<p>{text(line)}</p>" for line in remarks(compared)),
    ]
    return document(f"{artifact}: comparison", body)


def picture(rows: Sequence[Row]) -> str:
    """Relative errors, logarithmic, over the order of the run."""
    figures: dict[str, Callable[[Row], float | None]] = {
        "against": lambda row: None if row.against is None else row.against.max_error,
        "expected": lambda row: row.drift_bound,
        "own": lambda row: None if row.own.counts else row.own.error,
        "bound": lambda row: None if row.own.counts else row.own.bound,
    }

    def power(row: Row, value: float | None) -> float | None:
        most = row.against.most if row.against is not None else 1.0
        if value is None or not most:
            return None
        if not math.isfinite(value):
            return 2.0
        return min(max(math.log10(value / most), _LOWEST), 2.0) if value > 0 else _LOWEST

    drawn = {name: [power(row, figure(row)) for row in rows] for name, figure in figures.items()}
    known = [value for values in drawn.values() for value in values if value is not None]
    low, high = math.floor(min(known, default=_LOWEST)), max(math.ceil(max(known, default=0)), _LOWEST + 1)
    high = max(high, low + 1)

    def x(number: int) -> float:
        return round(_LEFT + _WIDTH * (number + 0.5) / max(len(rows), 1), 1)

    def y(value: float) -> float:
        return round(_TOP + _HEIGHT * (high - value) / (high - low), 1)

    width, height = _LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img" aria-label="error along the network">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for line in range(low, high + 1):
        parts.append(f'<line x1="{_LEFT}" y1="{y(line)}" x2="{_LEFT + _WIDTH}" y2="{y(line)}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(line) + 4}" text-anchor="end">1e{line:+03d}</text>')
    for number, (name, colour, label) in enumerate(_LINES):
        dash = ' stroke-dasharray="5 4"' if name in ("expected", "bound") else ""
        points = [(x(place), y(value)) for place, value in enumerate(drawn[name]) if value is not None]
        if len(points) > 1:
            line_text = " ".join(f"{px},{py}" for px, py in points)
            parts.append(f'<polyline points="{line_text}" fill="none" stroke="{colour}" stroke-width="1.3"{dash}/>')
        at = _TOP + 14 + 18 * number
        parts.append(
            f'<line x1="{_LEFT + _WIDTH + 8}" y1="{at - 4}" x2="{_LEFT + _WIDTH + 28}" y2="{at - 4}" stroke="{colour}" '
            f'stroke-width="2"{dash}><title>{text(label)}</title></line>'
        )
        parts.append(f'<text x="{_LEFT + _WIDTH + 34}" y="{at}"><title>{text(label)}</title>{text(name)}</text>')
    for place, row in enumerate(rows):
        for name in ("against", "own"):
            value = drawn[name][place]
            if value is None:
                continue
            is_wrong = row.is_beyond if name == "own" else row.has_drifted
            radius, colour = (5, "#d62728") if is_wrong else (2.5, {n: c for n, c, _ in _LINES}[name])
            hover = text(f"{row.name} (step {row.order}): {row.nodes[-1] if row.nodes else ''}")
            dot = f'<circle cx="{x(place)}" cy="{y(value)}" r="{radius}" fill="{colour}">'
            parts.append(f"{dot}<title>{hover}</title></circle>")
    parts += [
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#444"/>',
        f'<text x="{_LEFT + _WIDTH / 2}" y="{height - 14}" text-anchor="middle">tensors in the order of the run</text>',
        "</svg>",
    ]
    return "\n".join(parts)
