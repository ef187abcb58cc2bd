"""The options of `aotc build` that say what self-test goes into the artifact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from aot.errors import OptionError

DEFAULT_INPUTS = 4


@dataclass(frozen=True, slots=True)
class SelfTestChoice:
    """What the command line says. `inputs`: how many are kept; `error_samples`: None for the default.

    `data`: a path or module:function as for calibration; None: random inputs. `latency`: whether runs are timed.
    """

    inputs: int = DEFAULT_INPUTS
    data: str | None = None
    error_samples: int | None = None
    seed: int = 0
    latency: bool = True


def self_test_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command, which takes them as `self_test`: a SelfTestChoice, or None for no self-test."""

    @wraps(function)
    def gathered(
        *,
        self_test: int | None,
        self_test_data: str | None,
        error_samples: int | None,
        self_test_seed: int,
        no_latency: bool,
        **others: Any,
    ) -> Any:
        is_asked = self_test_data is not None or error_samples is not None or self_test_seed or no_latency
        if self_test is None and is_asked:
            raise OptionError("options say how to make a self-test, and none is to be", hint="Add --self-test.")
        choice = SelfTestChoice(self_test or 0, self_test_data, error_samples, self_test_seed, not no_latency)
        return function(self_test=None if self_test is None else choice, **others)

    result: Callable[..., Any] = gathered
    for option in (
        click.option("--no-latency", is_flag=True, help="Do not time the self-test: equal builds give equal bytes."),
        click.option("--self-test-seed", type=int, default=0, metavar="N", help="Of its random inputs."),
        click.option("--error-samples", type=click.IntRange(1), metavar="N",
                     help="Samples that errors are recorded of. Default: 128; 16 where the target is not here."),
        click.option("--self-test-data", metavar="PATH",
                     help="Its inputs: .npz, a folder, or module:function. Default: random ones."),
        click.option("--self-test", type=click.IntRange(1), is_flag=False, flag_value=DEFAULT_INPUTS, metavar="[N]",
                     help=f"Put N inputs ({DEFAULT_INPUTS}) with their outputs into the file, and record its errors."),
    ):  # fmt: skip
        result = option(result)
    return result
