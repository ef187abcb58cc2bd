"""Errors of every output and metric, as streams of a judge. One stream for each that was recorded or has a bound.

Invariant: an output that was seen and has nothing to be compared with, or whose values are missing, is never cleared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from aot.runtime.serving.exceedance import ExceedanceTest, distribution_of_bound, levels_of, promotion_level
from aot.runtime.serving.expected import ErrorDistribution, Expected
from aot.runtime.serving.policy import CanaryPolicy
from aot.runtime.serving.sequential import RateTest, rate_interval
from aot.runtime.serving.verdict import Evidence

_MOST_NAMES = 100  # outputs without anything recorded that are listed
_REMEDY = ": build it with --self-test and name the artifact as what is expected, or give a bound"


class NumericStream:
    """One metric of one output."""

    def __init__(self, output: str, metric: str, distribution: ErrorDistribution, policy: CanaryPolicy) -> None:
        self.output, self.metric = output, metric
        self.level, self.limit = promotion_level(distribution, policy)
        self.fault = ExceedanceTest(levels_of(distribution, policy))
        self.clear = RateTest(self.limit)
        self.missing = self.not_finite = 0

    def add(self, error: float) -> None:
        """One error; NaN counts as larger than all."""
        if not error < math.inf:
            error = math.inf
            self.not_finite += 1
        self.fault.add(error)
        self.clear.add(error > self.level)

    def is_cleared(self, policy: CanaryPolicy) -> bool:
        """Whether a fault of the smallest effect is ruled out, and few values are missing."""
        return self.clear.value * policy.missed_fault >= 1.0 and not self.misses_too_many(policy)

    def misses_too_many(self, policy: CanaryPolicy) -> bool:
        """Whether more values are missing than the policy allows."""
        return self.missing > policy.missing_share * (self.clear.count + self.missing)

    def evidence(self, share: float, required: bool, policy: CanaryPolicy) -> Evidence:
        """What is known."""
        count, events = self.clear.count, self.clear.events
        notes = [f"of errors above {self.level:.4g}"]
        if self.not_finite:
            notes.append(f"{self.not_finite} values were NaN or infinite")
        if self.missing:
            notes.append(f"{self.missing} pairs lack the value")
        cleared = self.is_cleared(policy)
        low, high = rate_interval(events, count, policy.missed_fault)
        return Evidence(
            "numeric", self.output, self.metric, "", count, events / count if count else None,
            (low, min(high, self.limit) if cleared else high) if count else None, self.limit,
            state_of(self.fault.largest, share, policy, cleared, count), self.fault.value, share, required,
            "; ".join(notes) if count else "no pair had a value",
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """What changes with the records."""
        return {"fault": self.fault.state(), "clear": self.clear.state(), "missing": self.missing,
                "not_finite": self.not_finite}  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from what `state` gave."""
        self.fault.restore(state["fault"])
        self.clear.restore(state["clear"])
        self.missing, self.not_finite = state["missing"], state["not_finite"]


def state_of(largest: float, share: float, policy: CanaryPolicy, cleared: bool, count: int) -> str:
    """A stream's state; "fault" where its part of the budget alone would do."""
    if share * largest * policy.false_alarm >= 1.0:
        return "fault"
    return "no data" if not count else "cleared" if cleared else "open"


class NumericStreams:
    """All outputs and metrics; `value` is the mean of their e-values."""

    def __init__(self, policy: CanaryPolicy, expected: Expected) -> None:
        self.policy = policy
        known: dict[tuple[str, str], ErrorDistribution] = {
            (output, metric): each
            for output, metrics in expected.items()
            for metric, each in metrics.items()
            if not policy.metrics or metric in policy.metrics
        }
        for output, bounds in policy.bounds.items():
            known.update({(output, metric): distribution_of_bound(bound) for metric, bound in bounds.items()})
        self.streams = [NumericStream(*name, each, policy) for name, each in sorted(known.items())]
        self._outputs = {output for output, _ in known}
        self.unjudged: list[str] = []
        self.value = 1.0

    def add(self, values: Mapping[str, Mapping[str, float]]) -> None:
        """The errors of one pair that both versions ended well."""
        total = 0.0
        for stream in self.streams:
            metrics = values.get(stream.output)
            error = None if metrics is None else metrics.get(stream.metric)
            if error is None or error < 0:  # no error is less than none: the metric or the record is wrong
                stream.missing += 1
            else:
                stream.add(error)
            total += stream.fault.value
        if self.streams:
            self.value = total / len(self.streams)
        for output in values:
            if output not in self._outputs and len(self.unjudged) < _MOST_NAMES and output not in self.unjudged:
                self.unjudged.append(output)

    def is_cleared(self) -> bool:
        """Whether there is something to judge, and all of it is cleared."""
        return bool(self.streams) and not self.unjudged and all(each.is_cleared(self.policy) for each in self.streams)

    def evidence(self, weight: float, required: bool) -> list[Evidence]:
        """A row for each stream, and for what cannot be judged."""
        share = weight / max(1, len(self.streams))
        rows = [stream.evidence(share, required, self.policy) for stream in self.streams]
        missing = f"the build recorded no errors of it and the policy has no bound for it{_REMEDY}"
        unjudged = list(self.unjudged)
        if not rows and not unjudged:
            unjudged, missing = [""], f"the build recorded no errors and the policy has no bounds{_REMEDY}"
        limit = self.policy.exceedance_rate
        for output in unjudged:
            rows.append(
                Evidence("numeric", output, "", "", 0, None, None, limit, "unjudged", required=required, note=missing)
            )
        return rows

    def state(self) -> dict[str, Any]:
        """What changes with the records."""
        return {"streams": [stream.state() for stream in self.streams], "unjudged": list(self.unjudged),
                "value": self.value}  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from what `state` gave."""
        for stream, each in zip(self.streams, state["streams"], strict=True):
            stream.restore(each)
        self.unjudged, self.value = list(state["unjudged"]), state["value"]
