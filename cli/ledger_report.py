"""The error ledger as text: of a record, and of an artifact that was built from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from aot.cli.common import bytes_text, note, print_facts, print_json, print_table, wants

Document = Mapping[str, Any]
"""What aot.quantization.Quantization.summary gives."""

HEADINGS = (
    "node",
    "op",
    "form",
    "error alone",
    "hard weight",
    "hard input",
    "running total",
    "weight dB",
    "input dB",
    "beyond",
    "us",
    "float us",
    "why",
)


def report_record(document: Document, where: str) -> None:
    """Prints the facts and the ledger, worst first."""
    if wants("json"):
        print_json({"record": where, **document, "ledger": worst_first(document)})
        return
    print_facts(facts(document, where))
    rows = [cells(entry) for entry in worst_first(document)]
    if rows:
        shown, used = without_empty(HEADINGS, rows)
        print_table(shown, used)
    for text in document.get("notes", ()):
        note(text)


def facts(document: Document, where: str) -> list[tuple[str, str]]:
    """What was asked, what came of it."""
    method, ledger = document["method"], document["ledger"]
    quantized = [node for node in document["nodes"] if node["form"] != "float"]
    found = [("record", where)]
    found.append(("form", f"{method['form']}: {len(quantized)} of {len(document['nodes'])} products"))
    if document["samples"]:
        found.append(("calibrated", f"on {document['samples']} samples, digest {document['data'][:16]}"))
    if document.get("final") is not None:
        held = f"{document['final']:.3g}, at most {document['budget']:.3g} allowed"
        found.append((document["metric"], f"{held}, on {document['measured_samples']} samples"))
    else:
        found.append(("measured", "nothing: there was no data"))
    kept = [entry for entry in ledger if entry["form"] == "float"]
    if kept:
        reasons: dict[str, int] = {}
        for entry in kept:
            reason = entry["reason"].partition(":")[0] or "not asked for"
            reasons[reason] = reasons.get(reason, 0) + 1
        found.append(("in float", ", ".join(f"{count} by {reason}" for reason, count in sorted(reasons.items()))))
    points = document.get("points", ())
    chosen = next((point for point in points if point["chosen"]), None)
    if chosen and chosen["run_us"]:
        before = max(point["run_us"] for point in points)
        found.append(("kernels", f"{before:.0f} -> {chosen['run_us']:.0f} us, {document.get('timed', '')}"))
    if chosen:
        before_bytes = max(point["weight_bytes"] for point in points)
        found.append(("weights", f"{bytes_text(before_bytes)} -> {bytes_text(chosen['weight_bytes'])}"))
    return found


STANDS_OUT = 4.0
"""How many times as hard as the median layer a layer is that stands first, whatever it costs as it is."""


HARMS = 0.1
"""The relative error of results from which an input's range harms them."""


def worst_first(document: Document) -> list[Document]:
    """The lines of the ledger: layers that are hard by nature, then by the error alone; not measured ones last.

    What balance, or a scale for each output, mends costs little as it is; it is where accuracy would be lost, and the
    first to look at. An input whose range harms the layer's results comes first, since balance needs the right data; a
    weight next, which a scale for each output mends; then an input whose few large numbers are all that matters.
    """
    ledger = document["ledger"]

    def standing(name: str, least: float = 0.0) -> list[float]:
        known = sorted(entry[name] for entry in ledger if entry[name] is not None)
        limit = max(STANDS_OUT * known[(len(known) - 1) // 2] if known else 0.0, least)
        return [-entry[name] if (entry[name] or 0.0) > limit else 0.0 for entry in ledger]

    alone = [-(entry["alone"] if entry["alone"] is not None else -1.0) for entry in ledger]
    parts = (standing("input_loss", HARMS), standing("weight_hardness"), standing("input_hardness"), alone)
    keys = list(zip(*parts, strict=True))
    return [ledger[n] for n in sorted(range(len(ledger)), key=keys.__getitem__)]


def cells(entry: Document) -> list[str]:
    """A line as texts, under HEADINGS."""

    def number(name: str, text: str) -> str:
        return "" if entry[name] is None else text.format(entry[name])

    times = [f"{entry[name]:.1f}" if entry[name] else "" for name in ("quantized_us", "float_us")]
    return [
        entry["node"], entry["op"], entry["form"],
        number("alone", "{:.2e}"), number("weight_hardness", "{:.3f}"),
        number("input_hardness", "{:.3f}"), number("running", "{:.2e}"),
        number("weight_snr_db", "{:.1f}"), number("input_snr_db", "{:.1f}"), number("saturated", "{:.2%}"), *times,
        entry["reason"],
    ]  # fmt: skip


def without_empty(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """The columns that say something."""
    used = [n for n, column in enumerate(zip(*rows, strict=True)) if any(column)]
    return [headings[n] for n in used], [[row[n] for n in used] for row in rows]


def said_of_products(products: Sequence[Document]) -> None:
    """Prints the forms of products of an artifact that came quantized: no one measured it here."""
    counts: dict[str, int] = {}
    for product in products:
        counts[product["form"]] = counts.get(product["form"], 0) + 1
    click.echo("products: " + ", ".join(f"{count} {form}" for form, count in sorted(counts.items())))
    print_table(("node", "op", "form"), [(p["node"], p["op"], p["form"]) for p in products])
