"""Records of two versions, with faults: small, and seeded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from aot.runtime.serving import CanaryPolicy, ErrorDistribution, Judge, Pair, Record, Request


def recorded(sample: np.ndarray) -> ErrorDistribution:
    """What a build records of a sample of errors."""
    inner = tuple((at, float(np.quantile(sample, at, method="higher"))) for at in (0.5, 0.9, 0.99))
    return ErrorDistribution(len(sample), (*inner, (1.0, float(sample.max()))))


def pair(**changes: Any) -> Pair:
    """A good pair, with changes."""
    fields: dict[str, Any] = {
        "time": 0.0, "bucket": "", "stable": "ok", "candidate": "ok", "stable_seconds": 0.01,
        "candidate_seconds": 0.01, "values": {"y": {"max_abs": 0.5}}, **changes,
    }  # fmt: skip
    if (fields["stable"], fields["candidate"]) != ("ok", "ok") and "values" not in changes:
        fields["values"] = {}
    return Pair(**fields)


def expected() -> dict[str, dict[str, ErrorDistribution]]:
    """Errors of one output, evenly from 0 to 1."""
    return {"y": {"max_abs": recorded(np.linspace(0.001, 1.0, 1000))}}


class Rollout:
    """Records of a rollout. `latency`: the candidate's times are so many times longer; `failures`: so many more of its
    runs fail; `large`: on that share of the inputs, errors are 3 times the recorded 99 % quantile; `after`: pairs
    before the fault begins."""

    def __init__(
        self, seed: int, *, latency: float = 1.0, failures: float = 0.0, large: float = 0.0, after: int = 0
    ) -> None:
        self.source = np.random.default_rng(seed)
        self.latency, self.failures, self.large, self.after = latency, failures, large, after
        sample = np.exp(0.3 * self.source.standard_normal(1000))
        self.expected = {"y": {"max_abs": recorded(sample)}}

    def records(self, count: int, stable_requests: int = 4) -> Iterator[Record]:
        """`count` pairs, each with live requests."""
        source = self.source
        for index in range(count):
            faulty = index >= self.after
            for _ in range(stable_requests):
                outcome = "timeout" if source.random() < 0.001 else "ok"
                yield Request(0.0, "", "stable", outcome, 0.01)
            common = 0.01 * np.exp(0.3 * source.standard_normal())
            error = float(np.exp(0.3 * source.standard_normal()))
            if faulty and source.random() < self.large:
                error = 3 * self.expected["y"]["max_abs"].quantile(0.99)
            bad = source.random() < 0.001 + (self.failures if faulty else 0.0)
            slow = self.latency if faulty else 1.0
            yield pair(
                bucket=f"batch={2 ** int(source.integers(0, 3))}",
                candidate="timeout" if bad else "ok",
                stable_seconds=float(common * np.exp(0.05 * source.standard_t(3))),
                candidate_seconds=float(slow * common * np.exp(0.05 * source.standard_t(3))),
                **({} if bad else {"values": {"y": {"max_abs": error}}}),
            )

    def run(self, pairs: int, policy: CanaryPolicy | None = None) -> tuple[str, int]:
        """(the first decision other than hold, after how many pairs); hold where none was made."""
        judge = Judge(policy, self.expected)
        for record in self.records(pairs):
            judge.add(record)
            if isinstance(record, Pair):
                decision = judge.decision()
                if decision != "hold":
                    return decision, judge.pairs
        return "hold", judge.pairs
