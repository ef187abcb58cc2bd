"""What a canary promises and demands: error budgets, smallest effects, steps, minimum samples, and rules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from aot.errors import RunError

KINDS = ("numeric", "latency", "failures")
"""What is judged: errors of outputs, time of runs, runs that did not end well."""


@dataclass(frozen=True)
class CanaryPolicy:
    """The contract of a rollout. Probabilities hold over a whole rollout, however often one looks.

    `false_alarm`: the chance that a candidate without fault is rolled back, over all outputs, metrics, buckets and
    steps together. `missed_fault`: the chance that a candidate with a fault of a smallest effect, or more, is
    promoted.

    Smallest effects. `latency_ratio`: the candidate's median time over the stable version's, on the same input.
    `failure_rate`: so much larger a share of runs fails. `exceedance_rate` and `error_factor`: on that share of the
    inputs, an error is at least that many times the recorded error, which is the recorded quantile `error_quantile`
    (0.99: what a hundredth of the build's samples exceeded; never a plain draw of the recorded errors).

    `tolerated_latency_ratio`: up to this, a slower candidate is not rolled back. `trusted_samples`: what the build
    recorded counts as this many samples at most, because live inputs are others than the build's: a rate with which
    the largest recorded error is exceeded of several times 1/`trusted_samples` is tolerated. `tail_index`: where the
    recorded quantiles do not tell how fast the errors' tail falls, that an error c times the largest recorded one
    is c**tail_index times as rare. `bounds`: output -> metric -> a largest error of the user's own, in place of what
    was recorded. `metrics`: judge only these; empty for all that were recorded or have bounds.

    `steps`: the candidate's share of the traffic, step by step; the last is 1. A step ends after `least_pairs` pairs
    and `least_requests` live requests of the candidate; the last but one only when nothing of smallest effect is
    possible any more. `require`: of KINDS, what must have been seen and cleared for that. `missing_share`: more pairs
    than this without a judged value hold the candidate.

    Cold runs: those marked as cold, and the first `cold_runs` of each bucket, are not judged for latency.
    `least_bucket_share`: a bucket with a smaller share of the pairs does not block promotion by itself: it is judged
    with the others of its size, as bucket "other", and alone only for rolling back. `most_buckets`: buckets beyond
    so many are judged in "other" only.
    """

    false_alarm: float = 0.01
    missed_fault: float = 0.01
    latency_ratio: float = 1.10
    failure_rate: float = 0.005
    exceedance_rate: float = 0.02
    error_factor: float = 3.0
    error_quantile: float = 0.99
    tolerated_latency_ratio: float = 1.05
    trusted_samples: int = 1000
    tail_index: float = 2.0
    bounds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    steps: tuple[float, ...] = (0.01, 0.05, 0.25, 1.0)
    least_pairs: int = 200
    least_requests: int = 200
    require: tuple[str, ...] = KINDS
    missing_share: float = 0.05
    cold_runs: int = 1
    least_bucket_share: float = 0.05
    most_buckets: int = 64

    def __post_init__(self) -> None:
        for name in ("false_alarm", "missed_fault", "failure_rate", "exceedance_rate", "error_quantile"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise _wrong(name, "between 0 and 1", value)
        if self.false_alarm < 1e-100:  # the evidence is capped near there: nothing would be rolled back any more
            raise _wrong("false_alarm", "at least 1e-100", self.false_alarm)
        for name in ("missing_share", "least_bucket_share"):
            if not 0 <= getattr(self, name) < 1:
                raise _wrong(name, "from 0 to below 1", getattr(self, name))
        for name in ("error_factor", "tolerated_latency_ratio"):
            if not 1 <= getattr(self, name) < math.inf:
                raise _wrong(name, "at least 1", getattr(self, name))
        if not self.tolerated_latency_ratio < self.latency_ratio < math.inf:
            raise _wrong("latency_ratio", "above tolerated_latency_ratio", self.latency_ratio)
        if not 0 < self.tail_index < math.inf:
            raise _wrong("tail_index", "above 0", self.tail_index)
        for name, least in (("least_pairs", 0), ("least_requests", 0), ("cold_runs", 0), ("most_buckets", 1),
                            ("trusted_samples", 1)):  # fmt: skip
            if getattr(self, name) < least:
                raise _wrong(name, f"at least {least}", getattr(self, name))
        ascending = all(a < b for a, b in zip(self.steps, self.steps[1:], strict=False))
        if not self.steps or not ascending or self.steps[0] <= 0 or self.steps[-1] != 1:
            raise _wrong("steps", "ascending shares above 0, the last of them 1", self.steps)
        if not self.require or not set(self.require) <= set(KINDS):
            raise _wrong("require", "some of " + ", ".join(KINDS), self.require)
        for output, metrics in self.bounds.items():
            for metric, bound in metrics.items():
                if not 0 <= bound < math.inf:
                    raise _wrong(f"bounds.{output}.{metric}", "a finite error, at least 0", bound)

    def to_json(self) -> dict[str, Any]:
        """All fields, by their names."""
        document = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in document.items()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CanaryPolicy:
        """The policy of such an object; missing fields have their defaults.

        Raises RunError that names a field which is unknown, or has a value of another type or range.
        """
        if not isinstance(document, Mapping):
            raise RunError("a canary policy is an object of fields", hint=_HINT)
        known = {each.name: each for each in fields(cls)}
        given: dict[str, Any] = {}
        for name, value in document.items():
            if name not in known:
                raise RunError(f"a canary policy has no field {name!r}", where=str(name), hint=_HINT)
            given[name] = _typed(name, value, str(known[name].type))
        return cls(**given)


_HINT = "docs/canary_judge.md lists the fields of a policy."


def _wrong(name: str, wanted: str, found: Any) -> RunError:
    return RunError(f"{name} of a canary policy is {wanted}; found {found!r}", where=name, hint=_HINT)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # JSON has whole numbers of any size
        return math.inf if value > 0 else -math.inf


def _typed(name: str, value: Any, kind: str) -> Any:
    """A value of JSON as the field's type has it."""
    if kind == "int":
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(name, "a whole number", value)
        return value
    if kind == "float":
        if not _is_number(value):
            raise _wrong(name, "a number", value)
        return _float(value)
    if kind.startswith("tuple"):
        of_text = "str" in kind
        if not isinstance(value, (list, tuple)) or not all(
            isinstance(each, str) if of_text else _is_number(each) for each in value
        ):
            raise _wrong(name, "a list of " + ("words" if of_text else "numbers"), value)
        return tuple(each if of_text else _float(each) for each in value)
    if not isinstance(value, Mapping) or not all(
        isinstance(metrics, Mapping) and all(_is_number(bound) for bound in metrics.values())
        for metrics in value.values()
    ):
        raise _wrong(name, "an object of outputs, each an object of metrics with numbers", value)
    return {
        str(output): {str(metric): _float(bound) for metric, bound in metrics.items()}
        for output, metrics in value.items()
    }
