"""How far a model's outputs are from those of its float form: the errors that budgets and ledgers speak of.

An error is 0 for equal outputs, and grows with the difference. Outputs that are not finite in the float form are left
out of relative errors and cosines: no form of the model can be held to them. Of outputs of whole numbers or truth
values, an error is the share that differs, whatever the metric.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aot.errors import OptionError

Array = np.ndarray[Any, np.dtype[Any]]
Outputs = Mapping[str, Array]

METRICS: Mapping[str, str] = {
    "relative": "relative error",
    "cosine": "1 - cosine",
    "top1": "share of other top-1 answers",
}
"""Errors that need no labels, and what they are called."""

DEFAULT_BUDGET = "relative=0.05"
MEASURED_SAMPLES = 32
"""Samples that errors are measured on, unless the user says otherwise."""
LARGEST_ERROR = 1e30
"""What an error is that has no bound, such as that of NaN: records are JSON, which has no infinity."""

_SHAPE = "Write relative=0.05, cosine=0.995, top1=0.99, or module:function=0.005 for a metric of your own."


@dataclass(frozen=True, slots=True)
class Budget:
    """The most error that is allowed. metric: of METRICS, or "module:function"; most: in its terms.

    For a metric of the user's, `most` is the part of its value on the float model that may be lost.
    """

    metric: str
    most: float

    @property
    def name(self) -> str:
        """What the error is called."""
        return METRICS.get(self.metric, f"loss of {self.metric}")

    @property
    def is_own(self) -> bool:
        """Whether the metric is a function of the user's."""
        return self.metric not in METRICS


def parse_budget(text: str) -> Budget:
    """Reads relative=E, cosine=C and top1=A (the least allowed), and module:function=LOSS; raises OptionError."""
    metric, _, number = text.rpartition("=")
    try:
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not metric or not 0 <= value < LARGEST_ERROR or (metric not in METRICS and ":" not in metric):
        raise OptionError(f"cannot read the budget {text!r}", hint=_SHAPE)
    if metric in ("cosine", "top1"):
        if value > 1:
            raise OptionError(f"a {metric} of {value:g} cannot be reached: 1 is the most", hint=_SHAPE)
        value = 1 - value
    return Budget(metric, value)


@dataclass(slots=True)
class _Sums:
    """Of one output."""

    difference: float = 0.0
    reference: float = 0.0
    angles: float = 0.0
    vectors: int = 0
    flips: int = 0
    answers: int = 0
    whole: bool = False


@dataclass(slots=True)
class Difference:
    """Collects outputs of many runs beside those of the float model. Its memory does not grow."""

    outputs: dict[str, _Sums] = field(default_factory=dict)

    def add(self, found: Outputs, expected: Outputs) -> None:
        """The outputs of one run, by name."""
        for name, reference in expected.items():
            result = np.asarray(found[name])
            if reference.dtype.kind == "c":
                result, reference = (np.stack([array.real, array.imag], axis=-2) for array in (result, reference))
            if reference.dtype.kind != "f" and reference.dtype.name != "bfloat16":
                self._add_whole(name, result, reference)
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                self._add_float(name, np.asarray(result, np.float64), np.asarray(reference, np.float64))

    def _add_whole(self, name: str, found: Array, expected: Array) -> None:
        sums = self.outputs.setdefault(name, _Sums(whole=True))
        sums.flips += int(np.sum(found != expected)) if found.shape == expected.shape else expected.size
        sums.answers += expected.size

    def _add_float(self, name: str, found: Array, expected: Array) -> None:
        sums = self.outputs.setdefault(name, _Sums())
        classes = expected.shape[-1] if expected.ndim else 1
        answers = expected.size // classes if classes > 1 else 0
        sums.answers += answers
        if found.shape != expected.shape:  # as many as the data decides: nothing is comparable
            sums.difference, sums.reference = math.inf, 1.0
            sums.flips += answers
            return
        kept = np.isfinite(expected)
        plain = np.where(kept, expected, 0.0)
        other = np.where(kept, found, 0.0)
        broken = ~np.isfinite(other)
        if broken.any():
            sums.difference = math.inf
            other = np.nan_to_num(other)
        sums.difference += float(np.square(other - plain).sum())
        sums.reference += float(np.square(plain).sum())
        lengths = float(np.linalg.norm(plain) * np.linalg.norm(other))
        if not np.array_equal(plain, other):  # of equal ones rounding might make a little more than nothing
            sums.angles += max(1 - float(np.vdot(plain, other)) / lengths, 0.0) if lengths > 0 else 1.0
        sums.vectors += 1
        if answers:
            other_answers = np.argmax(other, axis=-1) != np.argmax(plain, axis=-1)
            sums.flips += int(np.sum(other_answers | broken.any(axis=-1)))

    def error(self, metric: str) -> float:
        """The largest of all outputs, at most LARGEST_ERROR: "relative", "cosine" or "top1".

        Raises OptionError for "top1" where no output has answers.
        """
        if metric == "top1" and self.outputs and not any(sums.answers for sums in self.outputs.values()):
            raise OptionError(
                "no output has several numbers along its last axis, of which one is the answer",
                where="accuracy budget top1",
                hint="Use relative=E or cosine=C, or a metric of your own.",
            )
        errors = [self._error(sums, metric) for sums in self.outputs.values()]
        return max((error if error < LARGEST_ERROR else LARGEST_ERROR for error in errors), default=0.0)

    @staticmethod
    def _error(sums: _Sums, metric: str) -> float:
        if sums.whole:
            return sums.flips / max(sums.answers, 1)
        if metric == "relative":
            if sums.reference > 0:
                return math.sqrt(sums.difference / sums.reference)
            return 0.0 if sums.difference == 0 else math.inf
        if metric == "cosine":
            return math.inf if sums.difference == math.inf else sums.angles / max(sums.vectors, 1)
        return sums.flips / max(sums.answers, 1)


Metric = Callable[[Sequence[Outputs], Sequence[Outputs]], float]
"""A metric of the user's: (predictions of each sample, the samples) -> a number of which more is better."""


def own_metric(text: str) -> Metric:
    """The function named by module:function; raises OptionError where there is none."""
    module, _, name = text.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # the module's own code may fail as it likes
        raise OptionError(
            f"cannot load the metric {text!r}: {error}",
            hint="Name a function that Python can import: module:function. PYTHONPATH says where modules are.",
        ) from error
    if not callable(found):
        raise OptionError(f"{text} is no function")

    def checked(predictions: Sequence[Outputs], samples: Sequence[Outputs]) -> float:
        try:
            value = float(found(predictions, samples))
        except Exception as error:
            raise OptionError(f"the metric failed: {type(error).__name__}: {error}", where=text) from error
        if not math.isfinite(value):
            raise OptionError(f"the metric gave {value}", where=text, hint="It must be a finite number.")
        return value

    return checked


def loss(value: float, reference: float) -> float:
    """The part of a metric's value on the float model that is lost; a gain is 0."""
    return max(reference - value, 0.0) / max(abs(reference), 1e-12)


def first_few(data: Iterable[Outputs], most: int) -> list[Outputs]:
    """Up to `most` samples."""
    found: list[Outputs] = []
    for sample in data:
        found.append(sample)
        if len(found) == most:
            break
    return found
