"""How far a candidate's outputs are from stable's: numbers of which 0 is equal and larger is worse.

Computed in float64, off the way of requests. NaN beside NaN, and infinity beside the same infinity, is equal; where
only one of both has it, or shapes differ, the error is LARGEST.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aot.errors import RunError

LARGEST = 1e30
"""What an error without bound is recorded as; JSON has no infinity."""

Array = np.ndarray[Any, np.dtype[Any]]
Metric = Callable[[Array, Array], float]


def _difference(stable: Array, candidate: Array) -> tuple[Array, Array, bool]:
    """Stable's values and the differences in float64, where both are numbers; and whether something is beyond that."""
    a, b = stable.astype(np.float64), candidate.astype(np.float64)
    is_same = (a == b) | (np.isnan(a) & np.isnan(b))
    is_plain = np.isfinite(a) & np.isfinite(b)
    values = np.where(np.isfinite(a), a, 0.0)
    with np.errstate(invalid="ignore"):
        difference = np.where(is_same | ~is_plain, 0.0, b - a)
    return values, difference, bool((~is_same & ~is_plain).any())


def max_abs(stable: Array, candidate: Array) -> float:
    """The largest |difference|."""
    _, difference, is_beyond = _difference(stable, candidate)
    if is_beyond:
        return LARGEST
    return float(np.abs(difference).max()) if difference.size else 0.0


def relative(stable: Array, candidate: Array) -> float:
    """The length of the difference over that of stable's values (Euclidean), as the compiler's error ledger has it."""
    values, difference, is_beyond = _difference(stable, candidate)
    if is_beyond:
        return LARGEST
    lost, whole = float(np.linalg.norm(difference)), float(np.linalg.norm(values))
    if lost == 0:
        return 0.0
    return lost / whole if whole > 0 else LARGEST


def cosine(stable: Array, candidate: Array) -> float:
    """1 - cosine similarity of all values as one vector: 0 to 2."""
    values, difference, is_beyond = _difference(stable, candidate)
    if is_beyond:
        return LARGEST
    if not difference.any():
        return 0.0
    other = values + difference
    lengths = float(np.linalg.norm(values)) * float(np.linalg.norm(other))
    return max(1.0 - float(np.vdot(values, other)) / lengths, 0.0) if lengths > 0 else 1.0


def top1(stable: Array, candidate: Array) -> float:
    """1 if the largest along the last axis is another one, in any row; else 0. The first of equal ones counts."""
    if stable.ndim == 0 or stable.shape[-1] < 2 or stable.size == 0:
        return 0.0
    a, b = (np.nan_to_num(array.astype(np.float64), nan=-np.inf) for array in (stable, candidate))
    return float((a.argmax(axis=-1) != b.argmax(axis=-1)).any())


METRICS: Mapping[str, Metric] = {"max_abs": max_abs, "relative": relative, "cosine": cosine, "top1": top1}
DEFAULT = ("max_abs", "relative", "cosine")
WHOLE_DEFAULT = ("max_abs",)  # of outputs of whole numbers and booleans


class Comparison:
    """The metrics of every output, by name; counts those that raise.

    `chosen`: for some outputs, names of METRICS and functions (stable, candidate) -> float, which go by their
    `__name__`, or a mapping of names to functions. Other outputs have DEFAULT. Raises RunError for a metric or an
    output that is not known.
    """

    def __init__(self, outputs: Sequence[tuple[str, str]], chosen: Mapping[str, Any]) -> None:
        names = [name for name, _ in outputs]
        for name in chosen:
            if name not in names:
                raise RunError(
                    "metrics are given for an output that the model does not have",
                    where=name,
                    hint=f"Its outputs are {', '.join(map(repr, names))}.",
                )
        self._metrics: dict[str, dict[str, Metric]] = {}
        for name, dtype in outputs:
            default = DEFAULT if dtype[0] in "fb" and dtype != "bool" else WHOLE_DEFAULT
            self._metrics[name] = by_name(name, chosen.get(name, default))
        self.errors: dict[str, int] = {}
        """How often a metric raised, by "output/metric"."""
        self.first_errors: dict[str, str] = {}

    def values(self, stable: Mapping[str, Any], candidate: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """{output: {metric: error}}; a metric that raises, or gives no number of at least 0, is left out, and counted.

        For outputs of different shapes (as many as the data decides) no function is asked.
        """
        found: dict[str, dict[str, float]] = {}
        for name, metrics in self._metrics.items():
            a, b = stable[name], candidate[name]
            row = found[name] = {}
            for metric, function in metrics.items():
                if a.shape != b.shape:
                    row[metric] = 1.0 if metric == "top1" else LARGEST
                    continue
                try:
                    value = float(function(a, b))
                    if not value >= 0:
                        raise ValueError(f"a metric gives a number of at least 0, got {value}")
                except Exception as error:
                    key = f"{name}/{metric}"
                    self.errors[key] = self.errors.get(key, 0) + 1
                    self.first_errors.setdefault(key, f"{type(error).__name__}: {error}")
                    continue
                row[metric] = LARGEST if math.isinf(value) else value
        return found


def by_name(output: str, chosen: Any) -> dict[str, Metric]:
    """The metrics chosen for an output, in any form that Comparison takes. Raises RunError for unknown ones."""
    if isinstance(chosen, Mapping):
        return dict(chosen)
    made: dict[str, Metric] = {}
    for metric in (chosen,) if isinstance(chosen, str) or callable(chosen) else chosen:
        if callable(metric):
            made[getattr(metric, "__name__", type(metric).__name__)] = metric
        elif metric in METRICS:
            made[metric] = METRICS[metric]
        else:
            raise RunError(
                f"no metric is called {metric!r}",
                where=output,
                hint=f"Use {', '.join(METRICS)}, or a function of (stable, candidate).",
            )
    return made


def all_finite(outputs: Mapping[str, Any]) -> bool:
    """Whether no float array among them, in CPU memory, has a NaN or an infinity."""
    for array in outputs.values():
        if isinstance(array, np.ndarray) and array.dtype.kind in "fV" and not np.isfinite(array).all():
            return False
    return True
