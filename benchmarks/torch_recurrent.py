"""Recurrences rolled up again, one thread: `python benchmarks/torch_recurrent.py [--kinds …] [--steps …] [--write]`.

nn.LSTM, GRU and RNN in float32. PyTorch takes them to core ops step by step; from that program aotc makes one
recurrence again (rolled), or, with the pass switched off, compiles the steps as they are written (unrolled). Beside
them the layer as a program that keeps it whole, and eager PyTorch. Every output is compared with eager before anything
is timed, on inputs that no build saw. All take turns; the table gives medians.

With --write, the table goes to benchmarks/results/ with versions and date. Exit code 1 where an output differs, or
where rolled is slower than unrolled by more than --slack.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aot
from benchmarks.timing import geomean, interleave, milliseconds, prefer_realtime, processor, today

HERE = Path(__file__).parent
KINDS = ("LSTM", "GRU", "RNN")
SHORTEST_TURN_S = 5e-3
FORMS = ("rolled", "unrolled", "whole")


@dataclass(frozen=True)
class Row:
    """One layer at one size: medians in milliseconds, kernels of each form; `unrolled_ms` None where it is left out."""

    kind: str
    steps: int
    batch: int
    width: int
    rolled_ms: float
    unrolled_ms: float | None
    whole_ms: float
    eager_ms: float
    kernels: dict[str, int]
    realtime: bool

    @property
    def of_unrolled(self) -> float | None:
        return self.rolled_ms / self.unrolled_ms if self.unrolled_ms is not None else None


class Layer(torch.nn.Module):
    """A recurrent layer with as many inputs as units; its outputs and last states."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.layer = getattr(torch.nn, kind)(width, width, batch_first=True)

    def forward(self, x: Any) -> Any:
        outputs, last = self.layer(x)
        return (outputs, *last) if isinstance(last, tuple) else (outputs, last)


def measure(kind: str, steps: int, batch: int, width: int, forms: Sequence[str], options: Any) -> Row | None:
    """One row; None where an output differs, which is printed."""
    torch.manual_seed(0)
    module = Layer(kind, width).eval()
    built_on, x = torch.randn(batch, steps, width), torch.randn(batch, steps, width)
    whole = torch.export.export(module, (built_on,), strict=False)
    steps_of = whole.run_decompositions()
    wanted = [tensor.numpy() for tensor in module(x)]
    runs: dict[str, Callable[[], Any]] = {"eager": lambda: module(x)}
    kernels: dict[str, int] = {}
    for form in forms:
        built = aot.compile(
            whole if form == "whole" else steps_of,
            target=options.target,
            cache_dir=options.cache,
            disable=("roll",) if form == "unrolled" else (),
        )
        kernels[form] = built.report.figures["kernels_out"]
        model, given = built.load(threads=1), x.numpy()
        runs[form] = lambda model=model, given=given: model(given)  # type: ignore[misc]
        for mine, theirs in zip(model(given), wanted, strict=True):
            if not np.allclose(mine, theirs, rtol=1e-3, atol=1e-4):
                print(f"{kind} {steps} {batch} {width}: {form} differs from eager", flush=True)
                return None
    realtime = prefer_realtime()
    calls = [calls_of(run) for run in runs.values()]
    medians = interleave([repeated(run, n) for run, n in zip(runs.values(), calls, strict=True)], options.seconds)
    taken = {name: 1e3 * s / n for name, s, n in zip(runs, medians, calls, strict=True)}
    prefer_realtime(False)
    row = Row(kind, steps, batch, width, taken["rolled"], taken.get("unrolled"), taken["whole"], taken["eager"],
              kernels, realtime)  # fmt: skip
    print(_line(row), flush=True)
    return row


def calls_of(run: Callable[[], Any]) -> int:
    """How many calls make a turn of SHORTEST_TURN_S: in a short turn, caches would be those of the one before."""
    start = time.perf_counter()
    run()
    return max(1, round(SHORTEST_TURN_S / (time.perf_counter() - start)))


def repeated(run: Callable[[], Any], count: int) -> Callable[[], Any]:
    """Many calls as one."""

    def turn() -> None:
        for _ in range(count):
            run()

    return turn


def _line(row: Row) -> str:
    times = (row.rolled_ms, row.unrolled_ms, row.whole_ms, row.eager_ms)
    cells = [milliseconds(each) if each is not None else "" for each in times]
    ratios = [row.of_unrolled, row.rolled_ms / row.whole_ms, row.rolled_ms / row.eager_ms]
    shown = [f"{each:.2f}" if each is not None else "" for each in ratios]
    counts = [str(row.kernels.get(form, "")) for form in FORMS[:2]]
    sizes = map(str, (row.steps, row.batch, row.width))
    return f"| {row.kind} | {' | '.join([*sizes, *cells, *shown, *counts])} |"


def table(rows: Sequence[Row]) -> str:
    """The rows and the geometric means of their ratios."""
    heads = ("layer", "steps", "batch", "units", "rolled ms", "unrolled ms", "whole ms", "eager ms", "to unrolled",
             "to whole", "to eager", "kernels", "unrolled kernels")  # fmt: skip
    means = (
        [row.of_unrolled for row in rows if row.of_unrolled is not None],
        [row.rolled_ms / row.whole_ms for row in rows],
        [row.rolled_ms / row.eager_ms for row in rows],
    )
    shown = " | ".join(f"**{geomean(each):.2f}**" for each in means)
    return "\n".join(
        [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *map(_line, rows),
         f"| **geomean** | | | | | | | | {shown} | | |"]
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--steps", nargs="*", type=int, default=(16, 64, 256))
    parser.add_argument("--batches", nargs="*", type=int, default=(1, 8))
    parser.add_argument("--widths", nargs="*", type=int, default=(64, 512), help="units, and inputs of a step")
    parser.add_argument("--longest-unrolled", type=int, default=256, help="more steps are not built unrolled")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each row, all forms together")
    parser.add_argument("--slack", type=float, default=0.05, help="of rolled over unrolled, as a share")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--cache", type=Path, help="compiled kernels of earlier builds")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    failed = False
    with torch.no_grad():
        sizes = itertools.product(arguments.kinds, arguments.steps, arguments.batches, arguments.widths)
        for kind, steps, batch, width in sizes:
            forms = [form for form in FORMS if form != "unrolled" or steps <= arguments.longest_unrolled]
            row = measure(kind, steps, batch, width, forms, arguments)
            failed |= row is None
            rows += [row] if row else []
    print(table(rows))
    slow = [row for row in rows if row.of_unrolled is not None and row.of_unrolled > 1 + arguments.slack]
    if slow:
        print("slower than unrolled: " + ", ".join(f"{r.kind} {r.steps}x{r.batch}x{r.width}" for r in slow))
    if arguments.write:
        facts = {"date": today(), "cpu": processor(), "aotc": aot.__version__, "torch": torch.__version__,
                 "threads": 1, "realtime_scheduling": all(row.realtime for row in rows)}  # fmt: skip
        folder = HERE / "results"
        rest = {"rows": [asdict(row) for row in rows]}
        (folder / "torch_recurrent.json").write_text(json.dumps({**facts, **rest}, indent=1) + "\n")
        header = "# Recurrences rolled up again\n\n" + "\n".join(f"- {k}: {v}" for k, v in facts.items())
        (folder / "torch_recurrent.md").write_text(
            f"{header}\n\nRe-run: `python benchmarks/torch_recurrent.py --write`\n\n{table(rows)}\n"
        )
    return 1 if failed or slow else 0


if __name__ == "__main__":
    sys.exit(main())
