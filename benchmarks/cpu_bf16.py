"""bf16 against fp32 on one thread of a CPU that has it: `python benchmarks/cpu_bf16.py [--zoo FOLDER] [--only NAME …]`.

Both programs are for the same level and run interleaved. The table gives medians, how many times faster bf16 is, how
far its outputs are from the model's, and its file's size over that of fp32. With --write it goes to benchmarks/results/
with versions and date.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import aot
from aot.cli.reference import compare_outputs
from benchmarks.timing import geomean, interleave, milliseconds, processor, today, zoo_parser
from tests.zoo.catalogue import ZooModel, buildable, make_inputs

HERE = Path(__file__).parent
TARGET = "cpu:x86-64-v4+vnni+bf16"


@dataclass(frozen=True)
class Row:
    """One case of one model; `share`: of the tolerance of `aotc verify`, at most 1 where it agrees."""

    model: str
    case: str
    fp32_ms: float
    bf16_ms: float
    share: float
    size: float

    @property
    def speedup(self) -> float:
        return self.fp32_ms / self.bf16_ms


def expected(path: Path, feed: Mapping[str, Any]) -> Mapping[str, Any]:
    """The model's outputs by ONNX Runtime, in float32."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, dict(feed)), strict=True))


def measure(model: ZooModel, path: Path, folder: Path, seconds: float) -> list[Row]:
    files = {}
    for precision in ("fp32", "bf16"):
        files[precision] = folder / f"{model.name}.{precision}.aot"
        aot.compile(path, target=TARGET, precision=precision).save(files[precision])
    fp32, bf16 = (aot.load(files[precision], threads=1) for precision in ("fp32", "bf16"))
    size = files["bf16"].stat().st_size / files["fp32"].stat().st_size
    rows = []
    for label, specification in model.cases:
        feed = make_inputs(specification)
        made, plain = bf16.run(feed), fp32.run(feed)
        if all(np.array_equal(made[name], plain[name], equal_nan=True) for name in plain):
            continue  # nothing was narrowed
        compared = compare_outputs(made, expected(path, feed), "bf16")
        wide, narrow = interleave([lambda feed=feed: fp32.run(feed), lambda feed=feed: bf16.run(feed)], seconds)
        share = max((one.worst for one in compared), default=0.0)
        rows.append(Row(model.name, label, wide * 1e3, narrow * 1e3, share, size))
        print(f"{model.name:24} {label:18} {rows[-1].speedup:5.2f} {share:8.3f} {size:5.2f}", flush=True)
    return rows


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| model | case | fp32 ms | bf16 ms | times faster | of tolerance | file |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.model} | {r.case} | {milliseconds(r.fp32_ms)} | {milliseconds(r.bf16_ms)} | {r.speedup:.2f} | "
        f"{r.share:.2g} | {r.size:.2f} |"
        for r in rows
    ]
    by_model = {r.model: geomean([x.speedup for x in rows if x.model == r.model]) for r in rows}
    sizes = {r.model: r.size for r in rows}
    lines.append(
        f"| **geomean over models** | | | | **{geomean(list(by_model.values())):.2f}** | | "
        f"**{geomean(list(sizes.values())):.2f}** |"
    )
    return "\n".join(lines)


def main() -> int:
    parser = zoo_parser(__doc__)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for model in buildable():
        path = arguments.zoo / model.file
        if path.exists() and (not arguments.only or model.name in arguments.only):
            rows += measure(model, path, arguments.folder, arguments.seconds)
    print(table(rows))
    if arguments.write:
        facts = {"date": today(), "cpu": processor(), "aotc": aot.__version__, "target": TARGET, "threads": 1,
                 "load_average": round(os.getloadavg()[0], 1)}  # fmt: skip
        folder = HERE / "results"
        (folder / "cpu_bf16.json").write_text(json.dumps({**facts, "rows": [asdict(r) for r in rows]}, indent=1) + "\n")
        header = "# bf16 against fp32 on a CPU\n\n" + "\n".join(f"- {k}: {v}" for k, v in facts.items())
        says = (
            "Of tolerance: the largest difference from ONNX Runtime's float32, in tolerances of `aotc verify`. File: "
            "its size over that of fp32. Models that have nothing to narrow are left out.\n\n"
            "Re-run: `python benchmarks/cpu_bf16.py --write`"
        )
        (folder / "cpu_bf16.md").write_text(f"{header}\n\n{says}\n\n{table(rows)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
