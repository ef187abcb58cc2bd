"""The results of benchmarks/quantization.py as tables in Markdown, and whether they hold what is asked of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

OURS, PLAIN, THEIRS = "aotc int8", "aotc float", "onnxruntime float"
FILES = {
    "pairs": "quantization.json",
    "unlabelled": "quantization_unlabelled.json",
    "varied": "quantization_methods.json",
}
"""The results of each part, by its name."""

Row = Mapping[str, Any]
Found = Mapping[str, Row]


def write_tables(folder: Path) -> None:
    """Writes quantization.md from the files of results that are there."""
    parts: dict[str, Any] = {}
    for name in FILES.values():
        if (folder / name).exists():
            parts = {**json.loads((folder / name).read_text()), **parts}
    lines = ["# Quantization to 8 bits on real models and labelled data", ""]
    lines += [f"- {key}: {value}" for key, value in parts.items() if key not in FILES]
    lines += ["", "Re-run: `python benchmarks/quantization.py --zoo DIR --write` (`--unlabelled`, `--vary`)", ""]
    if "pairs" in parts:
        rows = list(parts["pairs"].values())
        lines += ["## Accuracy", "", _ACCURACY, "", *_accuracy(rows), ""]
        lines += ["### ONNX Runtime's settings", "", _SETTINGS, "", *_settings(rows), ""]
        lines += ["## Speed on the pairs", "", _SPEED, "", *_speed(rows, "pair"), ""]
    if "unlabelled" in parts:
        rows = list(parts["unlabelled"].values())
        lines += ["## The zoo's other models", "", _OTHERS, "", *_speed(rows, "model"), ""]
    if "varied" in parts:
        lines += ["## Other methods and budgets", "", _METHODS, "", *_methods(parts["varied"]), ""]
    (folder / "quantization.md").write_text("\n".join(lines).rstrip() + "\n")


_ACCURACY = (
    "Score of the float model (in brackets: of the zoo's notes), and what int8 changes of it, "
    "with 95 % intervals of the difference (paired bootstrap "
    "over the items). `margin`: the most that may be lost. ONNX Runtime's best static setting is the one that loses "
    "least here, chosen with the answers known; `q` is how many products of how many are quantized. `holds`: ours "
    "loses no more than the margin, and no more than ONNX Runtime's best; `in noise`: more, but the interval holds 0."
)
_SETTINGS = "Change of the score; `fails`: the quantizer or the session raises an error."
_SPEED = (
    "Milliseconds, one thread, medians of runs taken in turns. `best`: ONNX Runtime's most accurate static setting, "
    "`fastest`: its fastest of all, however inaccurate. Ratios above 1: our int8 is faster."
)
_OTHERS = (
    "No labels: `error` is the largest relative error of an output against the float model on the zoo's inputs, which "
    "also calibrated. " + _SPEED
)
_METHODS = (
    "Change of the score. Methods: everything is quantized, no budget. Budgets: the default method. In brackets, how "
    "many products are quantized, where it is not all."
)


def statics(found: Found) -> dict[str, Row]:
    """ONNX Runtime's static settings that ran."""
    return {name: row for name, row in found.items() if name.startswith("static") and "failed" not in row}


def best_static(found: Found) -> str | None:
    """The static setting with the highest score, or the least error; of equals the fastest."""
    ran = statics(found)
    return max(ran, key=lambda n: (ran[n].get("score", -ran[n].get("relative", 0.0)), -ran[n]["ms"]), default=None)


def fastest(found: Found) -> str | None:
    """The fastest of ONNX Runtime's int8 forms."""
    ran = statics(found) | {n: r for n, r in found.items() if n == "dynamic" and "failed" not in r}
    return min(ran, key=lambda name: ran[name]["ms"], default=None)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]


def loss(row: Row) -> float:
    """What is lost of the score; a gain is none."""
    return max(-float(row["gain"]), 0.0)


def verdict(row: Row) -> str:
    """Whether ours loses no more than the margin and than ONNX Runtime's best static setting.

    "yes"; "in noise": more than theirs, but the interval of the difference holds 0; or what does not hold.
    """
    ours, best = row["found"][OURS], best_static(row["found"])
    if loss(ours) > row["margin"]:
        return "NO: margin" if ours["high"] < 0 else "margin, in noise"
    if best is None or loss(ours) <= loss(row["found"][best]):
        return "yes"
    return "NO: behind" if row["found"][best]["ours ahead"][1] < 0 else "in noise"


def _change(row: Row) -> str:
    return f"{row['gain']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"


def _accuracy(rows: Sequence[Row]) -> list[str]:
    body = []
    for row in rows:
        found, margin = row["found"], row["margin"]
        ours, best = found[OURS], best_static(found)
        theirs = found[best] if best else None
        agreement = "; ".join(f"{name} {value:.4f}" for name, value in ours["agreement"].items())
        other = "; ".join(f"{value:.4f}" for value in theirs["agreement"].values()) if theirs else ""
        told = f"{_change(theirs)} ({str(best).removeprefix('static ')})" if theirs else "fails"
        body.append((
            row["pair"], f"{row['metric']}, {row['items']}", noted(row), f"{margin:.4f}",
            _change(ours), f"{ours['quantized']}/{ours['products']}", told, agreement, other, verdict(row),
        ))  # fmt: skip
    head = ("pair", "metric, items", "float", "margin", "aotc int8", "q", "onnxruntime best static",
            "agreement, aotc", "same, onnxruntime", "holds")  # fmt: skip
    return _table(head, body)


def noted(row: Row) -> str:
    """The float model's score, and in brackets that of the zoo's notes, on data like this."""
    score = f"{row['found'][THEIRS]['score']:.4f}"
    return score if row.get("expected") is None else f"{score} ({row['expected']:.4f})"


def _settings(rows: Sequence[Row]) -> list[str]:
    names = [name for name in rows[0]["found"] if name.startswith("static") or name == "dynamic"]

    def cell(row: Row, name: str) -> str:
        entry = row["found"].get(name, {"failed": ""})
        return "fails" if "failed" in entry else f"{entry['gain']:+.4f}"

    body = [(row["pair"], *(cell(row, name) for name in (OURS, *names))) for row in rows]
    return _table(("pair", OURS, *names), body)


def _speed(rows: Sequence[Row], key: str) -> list[str]:
    body: list[Sequence[str]] = []
    gains: list[float] = []
    peers: list[float] = []
    bests: list[float] = []
    for row in rows:
        found = row["found"]
        if OURS not in found or "ms" not in found[OURS]:
            continue
        ours, plain, theirs = (found[name]["ms"] for name in (OURS, PLAIN, THEIRS))
        best, fast = best_static(found), fastest(found)
        gains.append(plain / ours)
        cells = [row[key], *(_ms(v) for v in (plain, ours, theirs))]
        for name, held in ((best, bests), (fast, peers)):
            taken = found[name]["ms"] if name else None
            cells.append(f"{_ms(taken)} ({str(name).removeprefix('static ')})" if taken else "fails")
            if taken:
                held.append(taken / ours)
            cells.append(f"{taken / ours:.2f}" if taken else "")
        cells.insert(3, f"{plain / ours:.2f}")
        if "relative" in found[OURS]:
            told = f"{found[best]['relative']:.4f}" if best else ""
            cells += [f"{found[OURS]['relative']:.4f}", told]
        cells.append(f"{found[OURS]['quantized']}/{found[OURS]['products']}")
        body.append(cells)
    head = [key, "aotc float", "aotc int8", "by float", "onnxruntime float", "best", "by best", "fastest", "by fastest"]
    if any("relative" in row["found"].get(OURS, {}) for row in rows):
        head += ["error", "error of best"]
    means = ["**geomean**", "", "", f"**{geomean(gains):.2f}**", "", "", f"**{geomean(bests):.2f}**", "",
             f"**{geomean(peers):.2f}**"]  # fmt: skip
    head.append("q")
    return _table(head, [*body, means + [""] * (len(head) - len(means))])


def _methods(varied: Mapping[str, Sequence[Row]]) -> list[str]:
    names = [entry["method"] for entry in next(iter(varied.values()))]

    def cell(entry: Row) -> str:
        share = "" if entry["quantized"] == entry["products"] else f" ({entry['quantized']}/{entry['products']})"
        first = next(iter(entry["agreement"].values()))
        return f"{entry['gain']:+.4f}; {first:.4f}{share}"

    body = []
    for pair, entries in varied.items():
        by_name = {entry["method"]: cell(entry) for entry in entries}
        label = next(iter(entries[0]["agreement"]))
        body.append((f"{pair} ({label})", *(by_name.get(name, "") for name in names)))
    return _table(("pair (agreement)", *names), body)


def _ms(value: float) -> str:
    return f"{value:.3f}" if value >= 0.1 else f"{value:.4f}"


def geomean(values: Sequence[float]) -> float:
    """The geometric mean; NaN of nothing."""
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else math.nan
