"""The options that say how to quantize: of `aotc quantize` and of `aotc build --quantize`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.metrics import DEFAULT_BUDGET, MEASURED_SAMPLES
from aot.observations import OBSERVERS
from aot.quantization import ROUNDINGS, Method

if TYPE_CHECKING:
    from aot.calibrate import Calibration


@dataclass(frozen=True, slots=True)
class QuantizeChoice:
    """What the command line says. data: a path or module:function; calibration: a file of `aotc calibrate`."""

    data: str | None
    calibration_file: Path | None
    accuracy_budget: str | None
    measured_samples: int
    allow_slower: bool
    method: dict[str, Any]

    def method_of(self, form: str) -> Method:
        """Raises OptionError for options that do not go with the form."""
        return Method(form=form, **self.method)

    def calibration(self) -> Calibration | None:
        """Raises OptionError for a file that is none."""
        from aot.calibrate import Calibration

        return None if self.calibration_file is None else Calibration.open(self.calibration_file)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is said of how to quantize."""
        return (
            self.data is None
            and self.calibration_file is None
            and self.accuracy_budget is None
            and not self.allow_slower
            and self.method_of("int8") == Method()
        )


def data_option(required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds --data."""
    return click.option(
        "--data",
        required=required,
        metavar="PATH",
        help="Inputs as the model is used with: .npz, a folder, or module:function.",
    )


def quantize_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command, which takes them as `choice`."""

    @wraps(function)
    def gathered(
        *,
        data: str | None,
        calibration: Path | None,
        accuracy_budget: str | None,
        measure: int,
        keep_float: tuple[str, ...],
        per_tensor: bool,
        no_balance: bool,
        no_equalize: bool,
        no_correction: bool,
        allow_slower: bool,
        **others: Any,
    ) -> Any:
        method = {name: others.pop(name) for name in ("observer", "percentile", "symmetric", "block", "rounding")}
        method |= {
            "per_channel": not per_tensor, "balance": not no_balance, "equalize": not no_equalize,
            "bias_correction": not no_correction, "float_nodes": keep_float,
        }  # fmt: skip
        return function(
            choice=QuantizeChoice(data, calibration, accuracy_budget, measure, allow_slower, method), **others
        )

    path = click.Path(path_type=Path)
    result: Callable[..., Any] = gathered
    for option in (
        click.option("--no-correction", is_flag=True, help="Do not take the mean error of weights back."),
        click.option("--no-equalize", is_flag=True, help="Do not move balance into the layer before."),
        click.option("--no-balance", is_flag=True, help="Do not scale channels of activations against weights."),
        click.option("--per-tensor", is_flag=True, help="One scale for a whole weight, not one for each output."),
        click.option("--symmetric", is_flag=True, help="Symmetric ranges of activations."),
        click.option("--rounding", type=click.Choice(ROUNDINGS), default="nearest", show_default=True,
                     help="Of weights of int8-weights and int4-weights."),
        click.option("--block", type=int, default=0, metavar="N", help="Rows of a weight that share a scale."),
        click.option("--percentile", type=float, default=99.99, show_default=True, help="Of that observer."),
        click.option("--observer", type=click.Choice(OBSERVERS), default="mse", show_default=True,
                     help="How ranges follow from what was seen."),
        click.option("--keep-float", multiple=True, metavar="NODE", help="Part of the names of nodes that stay float."),
        click.option("--allow-slower", is_flag=True, help="Quantize also what is no faster, for its size."),
        click.option("--measure", type=click.IntRange(1), default=MEASURED_SAMPLES, show_default=True, metavar="N",
                     help="Samples that errors are measured on."),
        click.option("--accuracy-budget", metavar="METRIC=N",
                     help="relative=0.05, cosine=0.995, top1=0.99, or module:function=LOSS. "
                     f"Default: {DEFAULT_BUDGET}."),
        click.option("--calibration", type=path, metavar="FILE", help="What `aotc calibrate` wrote."),
        data_option(required=False),
    ):  # fmt: skip
        result = option(result)
    return result
