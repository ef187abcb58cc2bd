"""What a build recorded of a candidate's errors: for each output and metric, quantiles and their sample count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aot.errors import RunError

_MOST_SAMPLES = 1 << 53
_HINT = 'Errors are recorded as {output: {metric: {"samples": count, "quantiles": [[probability, value], ...]}}}.'


@dataclass(frozen=True, slots=True)
class ErrorDistribution:
    """Quantiles of an error over `samples` inputs.

    `quantiles`: (probability, value) ascending in both; the last has probability 1.0 and is the largest error seen.
    Raises RunError for anything else.
    """

    samples: int
    quantiles: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise RunError(f"an error distribution has at least one sample; found {self.samples}", hint=_HINT)
        if not self.quantiles or self.quantiles[-1][0] != 1.0:
            raise RunError("the last quantile of an error distribution has probability 1.0, the largest seen",
                           hint=_HINT)  # fmt: skip
        for probability, value in self.quantiles:
            if not 0 <= probability <= 1 or not math.isfinite(value) or value < 0:
                raise RunError(
                    f"a quantile has a probability from 0 to 1 and a finite value, at least 0; found "
                    f"({probability:g}, {value:g})",
                    hint=_HINT,
                )
        for before, after in zip(self.quantiles, self.quantiles[1:], strict=False):
            if before[0] >= after[0] or before[1] > after[1]:
                raise RunError(f"quantiles ascend; found {before} before {after}", hint=_HINT)

    @property
    def largest(self) -> float:
        """The largest error seen."""
        return self.quantiles[-1][1]

    def quantile(self, probability: float) -> float:
        """The value of the first recorded quantile at or above that probability."""
        return next(value for at, value in self.quantiles if at >= probability or at == 1.0)


Expected = Mapping[str, Mapping[str, ErrorDistribution]]
"""output -> metric -> what the build recorded."""


def expected_of(meta: Mapping[str, Any]) -> dict[str, dict[str, ErrorDistribution]]:
    """What a build recorded under meta["errors"]; empty where it recorded nothing.

    Raises RunError that names the output and metric whose entry is not of the documented form.
    """
    errors = meta.get("errors")
    if errors is None:
        return {}
    if not isinstance(errors, Mapping):
        raise RunError("recorded errors are an object of outputs", where="errors", hint=_HINT)
    found: dict[str, dict[str, ErrorDistribution]] = {}
    for output, metrics in errors.items():
        if not isinstance(metrics, Mapping):
            raise RunError("the recorded errors of an output are an object of metrics", where=f"errors.{output}",
                           hint=_HINT)  # fmt: skip
        found[str(output)] = {
            str(metric): _distribution(entry, f"errors.{output}.{metric}") for metric, entry in metrics.items()
        }
    return found


def expected_to_json(expected: Expected) -> dict[str, Any]:
    """The object that `expected_of({"errors": object})` reads."""
    return {
        output: {
            metric: {"samples": each.samples, "quantiles": [list(pair) for pair in each.quantiles]}
            for metric, each in metrics.items()
        }
        for output, metrics in expected.items()
    }


def _distribution(entry: Any, where: str) -> ErrorDistribution:
    try:
        samples = entry["samples"]
        quantiles = tuple((float(probability), float(value)) for probability, value in entry["quantiles"])
        if isinstance(samples, bool) or not isinstance(samples, int):
            raise TypeError("samples is not a whole number")
        if not 1 <= samples <= _MOST_SAMPLES:
            raise ValueError(f"samples is not from 1 to {_MOST_SAMPLES}")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RunError(f"a recorded error cannot be read: {error!r}", where=where, hint=_HINT) from error
    try:
        return ErrorDistribution(samples, quantiles)
    except RunError as error:
        raise RunError(error.message, where=where, hint=error.hint) from error
