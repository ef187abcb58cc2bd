"""`aotc verify`: an artifact's outputs against those of ONNX Runtime, PyTorch or the reference interpreter."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from aot.cli.common import DIFFERS, common_options, note, print_json, print_table, progress, wants
from aot.cli.fake_quant import SHARE, compare_steps, fake_quant_graph, rows_of
from aot.cli.feeds import FeedChoice, feed_options, feeds, generic
from aot.cli.loading import load_model, load_options, open_artifact
from aot.cli.operators import open_reference, reference_options
from aot.cli.reference import Comparison, another_file, check_same_inputs, compare_outputs
from aot.errors import ModelError


class Tolerance(click.FloatRange):
    """A finite number from 0: nothing lies within NaN, and everything within infinity."""

    def __init__(self) -> None:
        super().__init__(0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not number < float("inf"):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


@click.command("verify")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--against", required=True, type=click.Path(path_type=Path), metavar="MODEL", help="The source model.")
@feed_options
@click.option("--rtol", type=Tolerance(), help="Of float outputs. Default: by precision, 0.001 for fp32.")
@click.option("--atol", type=Tolerance(), help="Of float outputs. Default: by precision, 0.0001 for fp32.")
@click.option("--fake-quant", is_flag=True, help="Compare numbers of 8 bits with those of the quantized graph.")
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="For --fake-quant. Default: ARTIFACT.quantization.",
)
@reference_options
@load_options(None)
@common_options
def command(
    artifact: Path,
    against: Path,
    choice: FeedChoice,
    rtol: float | None,
    atol: float | None,
    runs_it: str | None,
    fake_quant: bool,
    record: Path | None,
    trust_pickle: bool,
    operators: tuple[str, ...],
    threads: int | None,
    target: str | None,
    weights: Path | None,
) -> None:
    """Compare ARTIFACT with the model it was built from, run by ONNX Runtime, or by PyTorch (a .pt2 file).

    A model with custom operators that ONNX Runtime does not know is run by aotc's reference interpreter.
    FILES: .npz files with arrays by input name, or .npy files for a model of one input; without any the
    inputs are random. Floats agree where |difference| <= atol + rtol * |expected|; integers and booleans must be equal.
    In fp16, bf16 and tf32 the default of atol is a share of the output's largest element. Exit code 3 if any differs.
    """
    opened = open_artifact(artifact)
    program = generic(opened.programs)
    if fake_quant:
        model = load_model(artifact, threads, target, weights)
        beside = record or artifact.with_suffix(".quantization")
        passed = verify_steps(opened, program, model, against, beside, choice, operators)
        click.get_current_context().exit(0 if passed else DIFFERS)
    reference = open_reference(against, threads or 1, opened, operators, runs_it=runs_it, trust_pickle=trust_pickle)
    cases = feeds(program, choice, reference.inputs, reference.defaults)
    for _, feed in cases:
        check_same_inputs(reference, opened, program, feed)
    model = load_model(artifact, threads, target, weights)
    wanted = {port.name for port in program.inputs}
    precision = opened.meta.get("precisions", {}).get(model.target, "fp32")
    results: list[tuple[str, list[Comparison]]] = []
    with progress() as tell:
        for what, feed in cases:
            tell("verify", what)
            # The artifact first: its errors say more.
            found = model.run({name: array for name, array in feed.items() if name in wanted})
            try:
                expected = reference.run(feed)
            except ModelError as error:
                hint = " ".join(filter(None, (error.hint, another_file(against, opened))))
                raise ModelError(error.message, where=error.where or str(against), hint=hint) from error
            results.append((what, compare_outputs(found, expected, precision, rtol, atol)))
    passed = all(comparison.passed for _, comparisons in results for comparison in comparisons)
    report(results, passed, reference.name, precision)
    if not passed and (text := another_file(against, opened)):
        note(f"the artifact may be of another model. {text}")
    click.get_current_context().exit(0 if passed else DIFFERS)


def verify_steps(
    opened: Any, program: Any, model: Any, against: Path, record: Path, choice: FeedChoice, operators: tuple[str, ...]
) -> bool:
    """Compares the numbers of 8 bits with those of the quantized graph, prints them, and says whether they agree."""
    from aot import custom

    with custom.use(operators), progress() as tell:
        tell("verify", "the quantized graph")
        graph = fake_quant_graph(against, opened, record)
        results = []
        for what, feed in feeds(program, choice):
            tell("verify", what)
            results.append((what, *compare_steps(model, graph, feed)))
    passed = all(each.passed for _, found, _ in results for each in found)
    if wants("json"):
        cases = [
            {"case": what, "tensors": [asdict(each) | {"passed": each.passed} for each in found], "not_computed": left}
            for what, found, left in results
        ]
        print_json({"passed": passed, "reference": "the quantized graph in floats", "share": SHARE, "cases": cases})
        return passed
    for what, found, left in results:
        headings = ("tensor", "elements", "equal", "within a step", "most steps", "")
        print_table(headings, rows_of(found), title=what)
        if left:
            note(f"{left} tensors of 8 bits of the graph are no tensors of the artifact: fused, moved or joined")
        if not found:
            note("the artifact computes no tensor in 8 bits")
    verdict = click.style("agree", fg="green") if passed else click.style("differ", fg="red", bold=True)
    click.echo(f"{verdict} with the quantized graph ({SHARE:.1%} of the numbers of each tensor within one step)")
    return passed


def report(results: list[tuple[str, list[Comparison]]], passed: bool, reference: str, precision: str) -> None:
    """Prints one row per output and case, and the verdict."""
    items = [item for _, comparisons in results for item in comparisons]
    rtol, atol = (max((getattr(item, name) for item in items), default=0.0) for name in ("rtol", "atol"))
    if wants("json"):
        cases = [
            {"case": what, "outputs": [asdict(item) | {"passed": item.passed} for item in comparisons]}
            for what, comparisons in results
        ]
        document = {"passed": passed, "reference": reference, "precision": precision, "rtol": rtol, "atol": atol}
        print_json(document | {"cases": cases})
        return
    for what, comparisons in results:
        headings = ("output", "shape", "max error", "relative", "of tolerance", "wrong", "")
        print_table(headings, [_row(item) for item in comparisons], title=what)
    verdict = click.style("agree", fg="green") if passed else click.style("differ", fg="red", bold=True)
    said = "" if precision == "fp32" else f"{precision}: "
    click.echo(f"{verdict} with {reference} ({said}rtol {rtol:g}, atol {'up to ' if said else ''}{atol:.3g})")


def _row(item: Comparison) -> tuple[Any, ...]:
    shape = "x".join(map(str, item.shape)) or "scalar"
    if item.reason:
        return (item.name, shape, "", "", "", "", f"FAILED: {item.reason}")
    verdict = "ok" if item.passed else "FAILED"
    wrong = f"{item.wrong} of {item.elements}"
    return (
        item.name,
        shape,
        f"{item.max_error:.3g}",
        f"{item.relative_error:.3g}",
        f"{item.worst:.2g}",
        wrong,
        verdict,
    )
