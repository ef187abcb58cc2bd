"""One thread against ONNX Runtime on real models: `python benchmarks/zoo.py [--zoo FOLDER] [--only NAME …]`.

Every output is compared before anything is timed. The two run interleaved, in short rounds, and the table
gives medians and their ratio (below 1: aotc is faster). With --write, the table goes to
benchmarks/results/ with versions and date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import forests
import models as written

import aot
from aot.runtime import _library
from benchmarks.timing import (
    difference,
    geomean,
    interleave,
    milliseconds,
    prefer_realtime,
    processor,
    today,
    zoo_parser,
)
from tests.zoo.catalogue import Inputs, buildable, make_inputs

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """One case of one model: medians in milliseconds, and how far the outputs are apart."""

    model: str
    case: str
    aotc_ms: float
    onnxruntime_ms: float
    worst: float  # |difference| / (1e-4 + 1e-3 |expected|), at most 1 for agreement

    @property
    def ratio(self) -> float:
        return self.aotc_ms / self.onnxruntime_ms


def cases(zoo: Path, made: Path) -> list[tuple[str, Path, list[tuple[str, Inputs]]]]:
    """(model, file, [(label, inputs)]) of every model that is here."""
    found = [
        (m.name, zoo / m.file, [(label, make_inputs(spec)) for label, spec in m.cases])
        for m in buildable()
        if (zoo / m.file).exists()
    ]
    for name in written.MODELS:
        shapes = [("×".join(map(str, next(iter(c.values())).shape)), c) for c in written.inputs(name)]
        found.append((name, written.write(name, made), shapes))
    for name in forests.FORESTS:
        rows = [(f"b{len(c['x'])}", c) for c in forests.inputs(name)]
        found.append((name, forests.write(name, made), rows))
    return found


def strip_initializer_inputs(path: Path) -> bytes:
    """The model with initializers removed from its inputs, so that ONNX Runtime can fold them too."""
    import onnx

    model = onnx.load(str(path))
    held = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in held]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return bytes(model.SerializeToString())


def measure(
    name: str, path: Path, inputs: list[tuple[str, Inputs]], seconds: float, folder: Path, rebuild: bool
) -> list[Row]:
    import onnxruntime as ort

    artifact = folder / f"{name}.aot"
    if rebuild or not artifact.exists():
        aot.compile(path, target="cpu").save(artifact)
    model = aot.load(artifact, threads=1)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(strip_initializer_inputs(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    rows = []
    for label, case in inputs:
        got, want = model.run(case), session.run(names, case)
        worst = max(difference(got[n], w) for n, w in zip(names, want, strict=True))
        if worst > 1:
            print(f"{name} {label}: outputs differ ({worst:.2f} of the tolerance); not timed", flush=True)
            continue

        def ours(case: Inputs = case) -> Any:
            return model.run(case)

        def theirs(case: Inputs = case) -> Any:
            return session.run(names, case)

        aotc, peer = interleave([ours, theirs], seconds)
        rows.append(Row(name, label, aotc * 1e3, peer * 1e3, worst))
        print(
            f"{name:22} {label:16} {aotc * 1e3:9.3f} {peer * 1e3:9.3f} {rows[-1].ratio:6.2f}  {worst:.3f}", flush=True
        )
    return rows


def table(rows: Sequence[Row]) -> str:
    lines = ["| model | case | aotc ms | ONNX Runtime ms | ratio |", "|---|---|---|---|---|"]
    lines += [
        f"| {r.model} | {r.case} | {milliseconds(r.aotc_ms)} | {milliseconds(r.onnxruntime_ms)} | {r.ratio:.2f} |"
        for r in rows
    ]
    by_model = {r.model: geomean([x.ratio for x in rows if x.model == r.model]) for r in rows}
    lines.append(f"| **geomean over models** | | | | **{geomean(list(by_model.values())):.2f}** |")
    return "\n".join(lines)


def main() -> int:
    parser = zoo_parser(__doc__)
    parser.add_argument("--keep", action="store_true", help="use artifacts of an earlier run")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    import onnxruntime

    realtime = prefer_realtime()
    rows: list[Row] = []
    failed = False
    for name, path, inputs in cases(arguments.zoo, arguments.folder):
        if arguments.only and name not in arguments.only:
            continue
        try:
            rows += measure(name, path, inputs, arguments.seconds, arguments.folder, not arguments.keep)
        except aot.AotError as error:
            print(f"{name}: {error}", flush=True)
            failed = True
    print(table(rows))
    if arguments.write:
        facts = {"date": today(), "cpu": processor(), "aotc": aot.__version__, "onnxruntime": onnxruntime.__version__,
                 "threads": 1, "realtime_scheduling": realtime,
                 "calls": "aot_call" if _library.caller_type() else "ctypes"}  # fmt: skip
        folder = HERE / "results"
        folder.mkdir(exist_ok=True)
        (folder / "zoo.json").write_text(json.dumps({**facts, "rows": [asdict(r) for r in rows]}, indent=1) + "\n")
        header = "# One thread against ONNX Runtime\n\n" + "\n".join(f"- {k}: {v}" for k, v in facts.items())
        (folder / "zoo.md").write_text(f"{header}\n\nRe-run: `python benchmarks/zoo.py --write`\n\n{table(rows)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
