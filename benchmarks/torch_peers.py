"""One thread against PyTorch: `python benchmarks/torch_peers.py [--only NAME …] [--keep packages|all] [--write]`.

Ten models of torch_definitions.py, in float32. The peers are eager torch, for convolutions in the channels-last form
too, and AOTInductor's CPU package (`torch._inductor.aoti_compile_and_package`), built with one thread and for this
processor, twice: as it is, and with `freezing`, which folds constants and packs weights for oneDNN. The ratio is to the
fastest of them. A package is
called through its loader with a flat list, which costs least; eager runs in inference mode. Every output is compared
with eager before anything is timed, on inputs that no build saw. All take turns; the table gives medians.

Packages take minutes to build and are kept in --folder; --keep uses those that are there. With --write,
the table goes to benchmarks/results/ with versions and date.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aot
from benchmarks.timing import geomean, interleave, milliseconds, prefer_realtime, processor, today
from benchmarks.torch_agreement import allowed_error, of_allowed
from benchmarks.torch_definitions import Definition, Inputs, peers

HERE = Path(__file__).parent
MODES = ("plain", "freezing")


@dataclass(frozen=True)
class Row:
    """One model: medians in milliseconds, and our worst difference to eager. None: there is no such peer."""

    model: str
    note: str
    aotc_ms: float
    eager_ms: float
    channels_last_ms: float | None  # eager, in that form
    plain_ms: float | None
    freezing_ms: float | None
    worst: float  # |difference| of our outputs / what is allowed
    kernels: int
    realtime: bool

    @property
    def best_ms(self) -> float:
        peers = self.eager_ms, self.channels_last_ms, self.plain_ms, self.freezing_ms
        return min(x for x in peers if x is not None)

    @property
    def ratio(self) -> float:
        return self.aotc_ms / self.best_ms


@dataclass(frozen=True)
class Options:
    """Where builds lie, which of an earlier run are used ("none", "packages", "all"), and how ours are built."""

    folder: Path
    keep: str
    target: str
    cache: Path | None
    seconds: float


def package(model: Definition, program: Any, mode: str, options: Options) -> Path | str:
    """AOTInductor's package, built where it is not there to keep; or why it cannot be built."""
    path = options.folder / f"{model.name}.{mode}.pt2"
    failed = path.with_suffix(".failed")
    if options.keep != "none" and path.exists():
        return path
    if options.keep != "none" and failed.exists():
        return failed.read_text()
    try:
        settings = {"freezing": mode == "freezing"}
        torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)
    except Exception as error:  # a defect of the peer: told in the table
        failed.write_text(f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
        return failed.read_text()
    return path


def artifact(model: Definition, program: Any, options: Options) -> tuple[Path, int]:
    """Our artifact and the number of its kernels."""
    path = options.folder / f"{model.name}.aot"
    count = path.with_suffix(".kernels")
    if not (options.keep == "all" and path.exists()):
        built = aot.compile(program, target=options.target, cache_dir=options.cache)
        built.save(path)
        count.write_text(str(built.report.figures["kernels_out"]))
    return path, int(count.read_text())


def runner(loaded: aot.Model, inputs: Inputs) -> Callable[[], Any]:
    """A call of ours, with its state updated in place."""
    state = loaded.new_state()
    names = [each.name for each in loaded.inputs if each.name not in state]
    values = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}

    def call() -> Any:
        return list(loaded.run(values, state=state).values()) if state else list(loaded.run(values).values())

    return call


def arrays(outputs: Any) -> list[Any]:
    """Outputs of any of the four, as numpy arrays."""
    return [leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(outputs)]


def measure(model: Definition, modes: Sequence[str], options: Options) -> Row | None:
    """One row; None where an output differs, which is printed."""
    module = model.make()
    built_on, inputs = model.inputs(model.batch, 0), model.inputs(model.batch, 1)
    program = torch.export.export(module, built_on, strict=False)
    allowed = allowed_error(program)
    path, kernels = artifact(model, program, options)
    ours = runner(aot.load(path, threads=1), inputs)
    runs: dict[str, Callable[[], Any]] = {"aotc": ours, "eager": partial(module, *inputs)}
    if model.channels_last:
        form = torch.channels_last
        images = [each.to(memory_format=form) for each in inputs]
        runs["channels last"] = partial(copy.deepcopy(module).to(memory_format=form), *images)
    for mode in modes:
        found = package(model, program, mode, options)
        if isinstance(found, str):
            print(f"{model.name}: no {mode} package: {found}", flush=True)
            continue
        loader = torch._inductor.aoti_load_package(str(found)).loader
        runs[mode] = partial(loader.run, list(inputs))
    want = arrays(runs["eager"]())
    differences = {name: of_allowed(arrays(run()), want, allowed) for name, run in runs.items() if name != "eager"}
    for name, value in differences.items():
        if value > 1:
            print(f"{model.name}: {name} differs from eager: {value:.2f} of what is allowed", flush=True)
            if name == "aotc":
                return None
            del runs[name]
    realtime = prefer_realtime()
    taken = {name: 1e3 * s for name, s in zip(runs, interleave(list(runs.values()), options.seconds), strict=True)}
    prefer_realtime(False)
    peers = {f"{name.replace(' ', '_')}_ms": taken.get(name) for name in ("channels last", *MODES)}
    worst = differences["aotc"]
    row = Row(
        model.name, model.note, taken["aotc"], taken["eager"], worst=worst, kernels=kernels, realtime=realtime, **peers
    )
    print(_line(row), flush=True)
    return row


def _line(row: Row) -> str:
    peers = row.eager_ms, row.channels_last_ms, row.plain_ms, row.freezing_ms
    cells = " | ".join(milliseconds(each) if each is not None else "" for each in peers)
    name = f"{row.model} ({row.note})" if row.note else row.model
    return f"| {name} | {milliseconds(row.aotc_ms)} | {cells} | {row.ratio:.2f} | {row.worst:.3f} | {row.kernels} |"


def table(rows: Sequence[Row]) -> str:
    """The rows and their geometric mean."""
    heads = ("model", "aotc ms", "eager ms", "channels last ms", "AOTInductor ms", "with freezing ms", "ratio",
             "of tolerance", "kernels")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(_line(row) for row in rows)]
    lines.append(f"| **geomean** | | | | | | **{geomean([row.ratio for row in rows]):.2f}** | | |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=6.0, help="for each model, all peers together")
    parser.add_argument("--folder", type=Path, default=Path("build/torch_peers"))
    parser.add_argument("--keep", choices=("none", "packages", "all"), default="none",
                        help="what to use of an earlier run: AOTInductor's packages, or our artifacts too")  # fmt: skip
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--cache", type=Path, help="compiled kernels of earlier builds")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=MODES, help="of AOTInductor's packages")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    options = Options(arguments.folder, arguments.keep, arguments.target, arguments.cache, arguments.seconds)
    torch.set_num_threads(1)  # before packages are built: they are built for as many
    rows: list[Row] = []
    failed = False
    with torch.inference_mode():
        for model in peers():
            if arguments.only and not any(part in model.name for part in arguments.only):
                continue
            row = measure(model, arguments.modes, options)
            failed |= row is None
            rows += [row] if row else []
    print(table(rows))
    if arguments.write:
        facts = {"date": today(), "cpu": processor(), "aotc": aot.__version__, "torch": torch.__version__,
                 "threads": 1, "realtime_scheduling": all(row.realtime for row in rows)}  # fmt: skip
        folder = HERE / "results"
        rest = {"rows": [asdict(row) for row in rows]}
        (folder / "torch_peers.json").write_text(json.dumps({**facts, **rest}, indent=1) + "\n")
        header = "# One thread against PyTorch\n\n" + "\n".join(f"- {k}: {v}" for k, v in facts.items())
        (folder / "torch_peers.md").write_text(
            f"{header}\n\nRe-run: `python benchmarks/torch_peers.py --write`\n\n{table(rows)}\n"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
