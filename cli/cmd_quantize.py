"""`aotc quantize`: what is quantized and how, measured on data, as a record that builds take in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from aot.cli.common import check_file, check_writable, common_options, progress
from aot.cli.ledger_report import report_record
from aot.cli.model_options import model_options
from aot.cli.operators import operators_option
from aot.cli.quantize_options import QuantizeChoice, quantize_options
from aot.file_kinds import A_MODEL
from aot.options import PRECISIONS, CompileOptions
from aot.quantization import FORMS


@click.command("quantize")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--form", type=click.Choice(FORMS), default="int8", show_default=True, help="Of products with weights.")
@click.option("--target", "targets", multiple=True, metavar="TARGET", help="Whose times count. Default: cpu, measured.")
@click.option("--precision", type=click.Choice(PRECISIONS), default="fp32", show_default=True, help="As for build.")
@quantize_options
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Default: MODEL.quantization.")
@model_options
@operators_option
@common_options
def command(
    model: Path,
    form: str,
    targets: tuple[str, ...],
    precision: str,
    choice: QuantizeChoice,
    output: Path | None,
    base: CompileOptions,
    operators: tuple[str, ...],
) -> None:
    """Decide which products of MODEL are quantized, within an accuracy budget that is measured on data.

    Every product is measured alone and together with all that cost less; the costliest stay float until the budget
    holds, and so do those that are no faster. The record goes to `aotc build --quantize FILE`, for any target.
    """
    from aot import custom
    from aot.quantize import quantize

    options = replace(base, targets=targets or ("cpu",), precision=precision)
    check_file(model, A_MODEL)
    path = output or Path(model.with_suffix(".quantization").name)
    check_writable(path)
    with custom.use(operators), progress() as tell:
        record = quantize(
            model, choice.method_of(form), data=choice.data, calibration=choice.calibration(),
            accuracy_budget=choice.accuracy_budget, measured_samples=choice.measured_samples,
            allow_slower=choice.allow_slower, options=options, tell=tell,
        )  # fmt: skip
    record.save(path)
    report_record(record.summary(), str(path))
