"""The error ledger as one HTML page that needs nothing else: error along the network, what was tried, the table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aot.cli.html import document as whole_page
from aot.cli.html import facts_list, table, text
from aot.cli.ledger_report import HEADINGS, Document, cells, facts, without_empty, worst_first
from aot.metrics import LARGEST_ERROR

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 900, 300, 80, 20, 50
_QUANTIZED, _FLOAT, _TOTAL = "#4e79a7", "#c8c8c8", "#e15759"
_TEXT_COLUMNS = frozenset({"node", "op", "form", "why"})


def page(document: Document, name: str) -> str:
    """The document: a summary of a record, as Quantization.summary gives it."""
    rows = [cells(entry) for entry in worst_first(document)]
    headings, used = without_empty(HEADINGS, rows) if rows else ([], [])
    body = [
        f"<h1>Accuracy of {text(name)}</h1>",
        facts_list(facts(document, name)),
        "<h2>Error along the network</h2>",
        f"<p>{text(document.get('metric') or 'error')} of the outputs with one product quantized alone, in the order "
        "of the network; grey ones are in float. The line: the running total, the least error first.</p>",
        along(document),
        "<h2>What was tried</h2>",
        "<p>Each dot is a choice of products: its error against the time of all kernels. The ring is what was chosen, "
        "the dashed line the budget.</p>",
        tried(document),
        "<h2>Ledger, worst first</h2>",
        table(headings, used, _TEXT_COLUMNS) if used else "<p>No product.</p>",
    ]
    return whole_page(f"Accuracy of {name}", body)


def page_of_products(products: Sequence[Document], name: str) -> str:
    """Of an artifact without a ledger: the forms of its products, where the model came quantized."""
    said = "The model came quantized: nothing was measured here." if products else "Nothing is quantized."
    rows = [(item["node"], item["op"], item["form"]) for item in products]
    body = [f"<h1>Accuracy of {text(name)}</h1>", f"<p>{said}</p>"]
    return whole_page(
        f"Accuracy of {name}", body + ([table(("node", "op", "form"), rows, _TEXT_COLUMNS)] if rows else [])
    )


def _svg(parts: Sequence[str], label: str) -> str:
    width, height = _LEFT + _WIDTH + 20, _TOP + _HEIGHT + _BOTTOM
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="11" role="img" aria-label="{text(label)}">'
    )
    frame = f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#444"/>'
    return "\n".join([head, *parts, frame, "</svg>"])


class _Scale:
    """Powers of ten of errors, as heights."""

    def __init__(self, values: Sequence[float]) -> None:
        known = [value for value in values if 0 < value < LARGEST_ERROR]
        self.low = math.floor(math.log10(min(known))) if known else -3
        self.high = max(math.ceil(math.log10(max(known))) if known else 0, self.low + 1)

    def at(self, value: float) -> float:
        bounded = min(max(math.log10(max(value, 1e-300)), self.low), self.high)
        return round(_TOP + _HEIGHT * (1 - (bounded - self.low) / (self.high - self.low)), 1)

    def lines(self) -> list[str]:
        found = []
        for power in range(self.low, self.high + 1):
            y = self.at(10.0**power)
            found.append(f'<line x1="{_LEFT}" y1="{y}" x2="{_LEFT + _WIDTH}" y2="{y}" stroke="#e4e4e4"/>')
            found.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{10.0**power:g}</text>')
        return found


def along(document: Document) -> str:
    """Bars of the products' errors in the network's order, and the running total."""
    ledger = [entry for entry in document["ledger"] if entry["alone"] is not None]
    if not ledger:
        return "<p>Nothing was measured.</p>"
    scale = _Scale([entry[key] for entry in ledger for key in ("alone", "running")])
    step = _WIDTH / len(ledger)
    parts = scale.lines()
    for number, entry in enumerate(ledger):
        top = scale.at(entry["alone"])
        colour = _FLOAT if entry["form"] == "float" else _QUANTIZED
        errors = f"alone {entry['alone']:.3g}, running {entry['running']:.3g}"
        hover = f"{entry['node']}\n{errors}\n{entry['reason'] or entry['form']}"
        parts.append(
            f'<rect x="{_LEFT + number * step + step * 0.1:.1f}" y="{top}" width="{max(step * 0.8, 1):.1f}" '
            f'height="{max(_TOP + _HEIGHT - top, 0.5):.1f}" fill="{colour}"><title>{text(hover)}</title></rect>'
        )
    ordered = sorted(ledger, key=lambda entry: entry["running"])
    line = " ".join(
        f"{_LEFT + (number + 0.5) * step:.1f},{scale.at(entry['running'])}" for number, entry in enumerate(ordered)
    )
    parts.append(f'<polyline points="{line}" fill="none" stroke="{_TOTAL}" stroke-width="1.5"/>')
    parts += _budget(document, scale)
    middle = _LEFT + _WIDTH / 2
    parts.append(f'<text x="{middle}" y="{_TOP + _HEIGHT + 20}" text-anchor="middle">products, first to last</text>')
    return _svg(parts, "error of each product")


def tried(document: Document) -> str:
    """Dots of error over time, of every choice that was measured."""
    points = [point for point in document.get("points", ()) if point["quantized"]]
    if not points:
        return "<p>Nothing was measured.</p>"
    scale = _Scale([point["error"] for point in points])
    key = "run_us" if any(point["run_us"] for point in points) else "weight_bytes"
    name = "us of all kernels" if key == "run_us" else "bytes of weights"
    values = [point[key] for point in document["points"]]
    low, high = min(values), max(values)
    room = max(high - low, 1e-9)
    parts = scale.lines()
    for point in points:
        x, y = _LEFT + 20 + (_WIDTH - 40) * (point[key] - low) / room, scale.at(point["error"])
        costs = f"{point['run_us']:.0f} us, {point['weight_bytes']:,} bytes"
        hover = f"{point['quantized']} quantized, error {point['error']:.3g}, {costs}"
        ring = f'<circle cx="{x:.1f}" cy="{y}" r="10" fill="none" stroke="{_TOTAL}" stroke-width="2"/>'
        parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="{_QUANTIZED}"><title>{text(hover)}</title></circle>')
        parts += [ring] if point["chosen"] else []
    parts += _budget(document, scale)
    for x, value in ((_LEFT + 20, low), (_LEFT + _WIDTH - 20, high)):
        parts.append(f'<text x="{x}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{value:,.0f}</text>')
    middle = _LEFT + _WIDTH / 2
    parts.append(f'<text x="{middle}" y="{_TOP + _HEIGHT + 36}" text-anchor="middle">{name}</text>')
    return _svg(parts, "choices that were tried")


def _budget(document: Document, scale: _Scale) -> list[str]:
    if not document.get("budget"):
        return []
    y = scale.at(document["budget"])
    return [
        f'<line x1="{_LEFT}" y1="{y}" x2="{_LEFT + _WIDTH}" y2="{y}" stroke="#444" stroke-dasharray="5 4">'
        f"<title>budget {document['budget']:g}</title></line>"
    ]
