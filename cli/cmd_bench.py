"""`aotc bench`: time per run, interleaved with ONNX Runtime or PyTorch, as medians and their ratio."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from aot.cli.common import common_options, note, print_json, print_table, progress, seconds_text, wants
from aot.cli.feeds import FeedChoice, feed_options, feeds, generic
from aot.cli.loading import load_model, load_options, open_artifact
from aot.cli.reference import Reference, another_file, check_model, check_same_inputs, compare_outputs, edges_of
from aot.errors import OptionError
from aot.file_kinds import PROGRAM

if TYPE_CHECKING:
    from aot.artifacts import Artifact
    from aot.cli.torch_reference import TorchReference

MIN_ROUNDS = 5
WARM_UP_RUNS = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per run of one side: median, and the 10th and 90th percentiles."""

    median_s: float
    p10_s: float
    p90_s: float
    runs: int


@click.command("bench")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option(
    "--against", type=click.Path(path_type=Path), metavar="MODEL", help="Also time ONNX Runtime, or PyTorch, on it."
)
@click.option("--trust-pickle", is_flag=True, help="Let PyTorch read a .pt2 file itself, which can run code.")
@feed_options
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=3.0, show_default=True, help="Per case.")
@click.option("--profile", is_flag=True, help="Also show the time of each step.")
@load_options(1)
@common_options
def command(
    artifact: Path,
    against: Path | None,
    trust_pickle: bool,
    choice: FeedChoice,
    threads: int,
    seconds: float,
    target: str | None,
    weights: Path | None,
    profile: bool,
) -> None:
    """Time ARTIFACT, one run of each side in turn, so that both meet the same machine.

    ONNX Runtime runs ONNX models; PyTorch runs a .pt2 file as it was exported, op by op. Outputs are compared first.
    FILES: .npz files with arrays by input name, or .npy files for a model of one input; without any the
    inputs are random. The ratio is the artifact's median over the other's: below 1 is faster.
    """
    opened = open_artifact(artifact)
    program = generic(opened.programs)
    reference = None if against is None else open_reference(against, threads, opened, trust_pickle=trust_pickle)
    model = load_model(artifact, threads, target, weights)
    also, defaults = (reference.inputs, reference.defaults) if reference is not None else ((), {})
    cases = feeds(program, choice, also, {**model.new_state(), **(defaults or {})})
    if reference is not None:
        for _, feed in cases:
            check_same_inputs(reference, opened, program, feed)
        if text := another_file(reference.path, opened):
            note(f"the artifact may be of another model. {text}")
    wanted = {port.name for port in program.inputs}
    precision = opened.meta.get("precisions", {}).get(model.target, "fp32")
    documents = []
    for what, feed in cases:
        own = {name: array for name, array in feed.items() if name in wanted}
        document: dict[str, Any] = {"case": what}
        if reference is not None:
            compared = compare_outputs(model.run(own), reference.run(feed), precision)
            wrong = [comparison.name for comparison in compared if not comparison.passed]
            document["agree"] = not wrong
            if wrong:
                note(f"{what}: {', '.join(wrong)} differ from {reference.name}'s: `aotc verify` says how much")
        # State of the model's own is updated in place, as a server would have it.
        state = {pair.input: own[pair.input].copy() for pair in model.state if pair.has_initial}
        given = {name: array for name, array in own.items() if name not in state}
        sides = [Side(partial(model.run, given, state=state), partial(_restore, state, own))]
        if reference is not None:
            sides.append(Side(*reference.timed(feed)))
        with progress() as tell:
            tell("bench", what)
            samples = interleave(sides, seconds)
        document["artifact"] = asdict(timing(samples[0]))
        if reference is not None:
            document["reference"] = asdict(timing(samples[1]))
            document["ratio"] = document["artifact"]["median_s"] / document["reference"]["median_s"]
        if profile:
            document["steps"] = steps(model, own)
        documents.append(document)
    report(documents, reference.name if reference is not None else "", threads)


def open_reference(path: Path, threads: int, artifact: Artifact, *, trust_pickle: bool) -> Reference | TorchReference:
    """The model in ONNX Runtime, or a torch.export program in PyTorch."""
    kind = check_model(path)
    if kind is not None and kind.name == PROGRAM:
        from aot.cli.torch_reference import TorchReference

        return TorchReference(path, generic(artifact.programs), threads, trust_pickle=trust_pickle)
    if trust_pickle:
        raise OptionError("--trust-pickle is for .pt2 files", where=str(path))
    return Reference(path, threads, edges_of(artifact))


def _restore(state: Mapping[str, Any], initial: Mapping[str, Any]) -> None:
    for name, array in state.items():
        array[...] = initial[name]


class Side(NamedTuple):
    """What is timed, and what puts back its state after a run."""

    run: Callable[[], Any]
    restore: Callable[[], None] = lambda: None


def interleave(sides: Sequence[Side], seconds: float) -> list[list[float]]:
    """Seconds of each run of each side, the sides taking turns, first place alternating."""
    for side in sides:
        for _ in range(WARM_UP_RUNS):
            side.run()
            side.restore()
    samples: list[list[float]] = [[] for _ in sides]
    order = list(range(len(sides)))
    stop = time.perf_counter() + seconds
    while len(samples[0]) < MIN_ROUNDS or time.perf_counter() < stop:
        for index in order:
            start = time.perf_counter()
            sides[index].run()
            samples[index].append(time.perf_counter() - start)
            sides[index].restore()
        order.reverse()
    return samples


def timing(samples: Sequence[float]) -> Timing:
    """The figures of one side."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    return Timing(median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)], len(ordered))


def steps(model: Any, feed: dict[str, Any]) -> list[dict[str, Any]]:
    """Seconds of each step of the plan, longest first."""
    rows = [{"step": label, "nodes": list(locs), "seconds": spent} for label, locs, spent in model.profile(feed)]
    return sorted(rows, key=lambda row: -float(row["seconds"]))


def report(documents: list[dict[str, Any]], reference: str, threads: int) -> None:
    """Prints a row per case, then the steps where asked for."""
    if wants("json"):
        print_json({"threads": threads, "reference": reference or None, "cases": documents})
        return
    headings = ["case", "aotc", "p10..p90"] + ([reference, "p10..p90", "ratio"] if reference else []) + ["runs"]
    rows = []
    for document in documents:
        row = [document["case"]]
        for side in ("artifact", "reference"):
            if side in document:
                times = document[side]
                row += [
                    seconds_text(times["median_s"]),
                    f"{seconds_text(times['p10_s'])}..{seconds_text(times['p90_s'])}",
                ]
        if reference:
            row.append(f"{document['ratio']:.2f}x")
        rows.append([*row, document["artifact"]["runs"]])
    print_table(headings, rows)
    for document in documents:
        if "steps" in document:
            total = sum(step["seconds"] for step in document["steps"]) or 1.0
            step_rows = [
                (
                    step["step"],
                    seconds_text(step["seconds"]),
                    f"{step['seconds'] / total:.1%}",
                    ", ".join(step["nodes"][:4]),
                )
                for step in document["steps"]
            ]
            print_table(("step", "time", "share", "nodes"), step_rows, title=document["case"])
    note(f"{threads} thread{'s' if threads > 1 else ''}, medians")
