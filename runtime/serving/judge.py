"""The judge of a canary: sequential tests on every stream of data, and one verdict.

Rolling back: every stream has an e-process against "the candidate is no worse" (sequential.py, exceedance.py). Their
mean, with fixed weights, is one too; where it reaches 1/`false_alarm`, the candidate is rolled back, and that stays.
So the budget covers all outputs, metrics, buckets and steps together, however often one looks (Ville's inequality).

Promoting: every required stream has an e-process against "there is a fault of the smallest effect". The candidate is
cleared where every one of them is at 1/`missed_fault`: a fault must fool its own stream, so no budget is split
(intersection-union: Berger, "Multiparameter hypothesis testing and acceptance sampling", 1982).

What is compared: errors with what the build recorded; times of both versions on the same input, or, without
shadowing, of a candidate's request and the last unmatched one of the stable version in the same bucket; runs that did
not end well, on the same input (what both have alike is no one's fault) and against the live requests of the stable
version. What is missing is never good: it holds. No time stamp is used, so clock steps do not matter.

Buckets: each has a latency stream of its own. One with at least `least_bucket_share` of the pairs must be cleared
itself; smaller ones are judged together as "other", which must be cleared where they add up to that share; and all
pairs together must be. Any of these streams can roll back, also the smallest bucket's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from aot.errors import RunError
from aot.runtime.serving.expected import Expected
from aot.runtime.serving.failure_streams import SEVERITY, FailureStreams
from aot.runtime.serving.latency_streams import LatencyStreams
from aot.runtime.serving.numeric_streams import NumericStreams
from aot.runtime.serving.policy import CanaryPolicy
from aot.runtime.serving.records import OUTCOMES, VERSIONS, Pair, Record
from aot.runtime.serving.verdict import Evidence, Verdict

WEIGHTS = {"numeric": 0.4, "latency": 0.3, "failures": 0.3}
"""How the budget of false alarms is shared between the kinds of streams."""


class Judge:
    """Takes records, one by one, and gives a verdict at any time. Not for several threads at once."""

    def __init__(self, policy: CanaryPolicy | None = None, expected: Expected | None = None) -> None:
        """`expected`: what the build recorded of the candidate's errors (`expected_of`)."""
        self.policy = policy or CanaryPolicy()
        self.expected: Expected = expected or {}
        self.pairs = 0
        self.requests = 0
        self.candidate_requests = 0
        self.alarm: dict[str, Any] | None = None  # of the first record with which the budget was reached
        self._numeric = NumericStreams(self.policy, self.expected)
        self._latency = LatencyStreams(self.policy)
        self._failures = FailureStreams(self.policy)
        self._groups: dict[str, NumericStreams | LatencyStreams | FailureStreams] = {
            "numeric": self._numeric,
            "latency": self._latency,
            "failures": self._failures,
        }
        self._threshold = 1.0 / self.policy.false_alarm

    def add(self, record: Record) -> None:
        """One more record. Raises RunError, and counts nothing, where an outcome or version is none of the known."""
        if isinstance(record, Pair):
            known = record.stable in SEVERITY and record.candidate in SEVERITY
        else:
            known = record.outcome in SEVERITY and record.version in VERSIONS
        if not known:
            raise RunError(
                f"a record has an outcome or version that is not known: {record}",
                hint=f"Outcomes are {', '.join(OUTCOMES)}; versions are {', '.join(VERSIONS)}.",
            )
        if isinstance(record, Pair):
            self.pairs += 1
            if record.stable == "ok" and record.candidate == "ok":
                self._numeric.add(record.values)
                self._latency.add_pair(record)
            self._failures.add_pair(record)
        else:
            self.requests += 1
            self.candidate_requests += record.version == "candidate"
            self._latency.add_request(record)
            self._failures.add_request(record)
        if self.alarm is None and self.evidence_ratio() >= self._threshold:
            self._raise_alarm()

    def add_many(self, records: Iterable[Record]) -> None:
        """More records, in their order."""
        for record in records:
            self.add(record)

    def evidence_ratio(self) -> float:
        """The mean of all streams' e-values: at 1/`false_alarm` the candidate is rolled back."""
        return (
            WEIGHTS["numeric"] * self._numeric.value
            + WEIGHTS["latency"] * self._latency.value
            + WEIGHTS["failures"] * self._failures.value
        )

    @property
    def has_alarm(self) -> bool:
        """Whether the candidate is to be rolled back: cheap, to be asked after each record."""
        return self.alarm is not None

    def decision(self) -> str:
        """The verdict's decision alone: cheap, to be asked after each record."""
        if self.alarm is not None:
            return "roll back"
        return "promote" if self._is_cleared() else "hold"

    def _is_cleared(self) -> bool:
        return all(self._groups[kind].is_cleared() for kind in self.policy.require)

    def _raise_alarm(self) -> None:
        rows = sorted(self._evidence(), key=lambda row: -row.share * row.evidence_ratio)
        top = [row for row in rows if row.share * row.evidence_ratio >= 0.1 * self._threshold][:5] or rows[:1]
        self.alarm = {
            "pairs": self.pairs,
            "requests": self.requests,
            "reasons": [_fault(row) for row in top],
        }

    def _evidence(self) -> list[Evidence]:
        rows: list[Evidence] = []
        for kind, group in self._groups.items():
            rows += group.evidence(WEIGHTS[kind], kind in self.policy.require)
        return rows

    def verdict(self) -> Verdict:
        """The decision, its reasons and the evidence of every stream."""
        rows = tuple(self._evidence())
        decision = self.decision()
        if self.alarm is not None:
            found = f"found after {self.alarm['pairs']} pairs and {self.alarm['requests']} live requests"
            return Verdict(decision, (*self.alarm["reasons"], found), rows)
        if decision == "promote":
            reason = (
                f"every stream is below its smallest effect, with {self.pairs} pairs and {self.requests} live requests"
            )
            return Verdict(decision, (reason,), rows)
        if not self.pairs and not self.requests:
            return Verdict(decision, ("no traffic: nothing was seen",), rows)
        open_rows = [row for row in rows if row.required and row.state != "cleared"]
        return Verdict(decision, tuple(_why_open(row) for row in open_rows[:20]), rows)

    def state(self) -> dict[str, Any]:
        """All that changes with the records, as JSON can hold it."""
        return {
            "pairs": self.pairs, "requests": self.requests, "candidate_requests": self.candidate_requests,
            "alarm": self.alarm, "numeric": self._numeric.state(), "latency": self._latency.state(),
            "failures": self._failures.state(),
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from what `state` gave, of a judge with the same policy and expected errors, to the same bits."""
        self.pairs, self.requests = state["pairs"], state["requests"]
        self.candidate_requests, self.alarm = state["candidate_requests"], state["alarm"]
        self._numeric.restore(state["numeric"])
        self._latency.restore(state["latency"])
        self._failures.restore(state["failures"])


def _amount(value: float | None) -> str:
    return "unknown" if value is None or not math.isfinite(value) else f"{value:.4g}"


def _range(row: Evidence) -> str:
    if row.interval is None:
        return "no bound yet"
    return f"between {_amount(row.interval[0])} and {_amount(row.interval[1])}"


_MEASURE = {"numeric": "rate of large errors", "latency": "ratio of times", "failures": "excess rate of failures"}


def _fault(row: Evidence) -> str:
    return (
        f"{row.name}: {_MEASURE[row.kind]} {_amount(row.estimate)} ({_range(row)}) in {row.count} records; "
        f"{row.evidence_ratio:.3g} times likelier with a fault than without{'; ' + row.note if row.note else ''}"
    )


def _why_open(row: Evidence) -> str:
    if row.state in ("no data", "unjudged"):
        return f"{row.name}: {row.note or 'no data'}"
    text = (
        f"{row.name}: {_MEASURE[row.kind]} {_range(row)} after {row.count} records; must be below {_amount(row.limit)}"
    )
    return f"{text}; {row.note}" if row.note else text
