"""Latency of the candidate beside the stable version's: all pairs, each bucket, small buckets together, live requests.

A datum is the log of candidate over stable time, on the same input; of live requests, between a candidate's and the
last unmatched one of the stable version in the same bucket, which is as symmetric where the versions are alike, only
noisier. Cold runs are left out by rule, never by their time.
"""

from __future__ import annotations

import math
from typing import Any

from aot.runtime.serving.numeric_streams import state_of
from aot.runtime.serving.policy import CanaryPolicy
from aot.runtime.serving.records import Pair, Request
from aot.runtime.serving.sequential import MedianSequence, SymmetryTest, median_below
from aot.runtime.serving.verdict import Evidence

_LARGE = math.log(1.5)  # a difference that counts as large
_CELL, _MOST = 0.005, 1.5  # of the histogram of log ratios
_MOST_LOG = 20.0
_SHARES = {"pairs": 0.45, "live": 0.15, "other": 0.05, "buckets": 0.35}


class LatencyStream:
    """One stream of log ratios."""

    def __init__(self, policy: CanaryPolicy) -> None:
        self.tolerated = math.log(policy.tolerated_latency_ratio)
        self.limit = math.log(policy.latency_ratio)
        self.fault = SymmetryTest(_LARGE)
        self.below = 0  # of the limit
        self.median = MedianSequence(_CELL, _MOST)

    def add(self, log_ratio: float) -> None:
        """One datum; finite."""
        self.fault.add(log_ratio - self.tolerated)
        self.median.add(log_ratio)
        if log_ratio < self.limit:
            self.below += 1

    @property
    def count(self) -> int:
        """How many data there were."""
        return self.median.count

    def is_cleared(self, policy: CanaryPolicy) -> bool:
        """Whether a ratio of the smallest effect is ruled out."""
        return median_below(self.below, self.count) * policy.missed_fault >= 1.0

    def evidence(self, where: tuple[str, str], share: float, required: bool, policy: CanaryPolicy) -> Evidence:
        """What is known; `where` is (metric, bucket)."""
        cleared, middle = self.is_cleared(policy), self.median.estimate()
        low, high = self.median.interval(policy.missed_fault)
        high = math.exp(high) if high < math.inf else math.inf
        return Evidence(
            "latency", "", *where, self.count, None if middle is None else math.exp(middle),
            (math.exp(low), min(high, policy.latency_ratio) if cleared else high) if self.count else None,
            policy.latency_ratio, state_of(self.fault.largest, share, policy, cleared, self.count), self.fault.value,
            share, required, "" if self.count else "no times of both versions",
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """What changes with the records."""
        return {"fault": self.fault.state(), "below": self.below, "median": self.median.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from what `state` gave."""
        self.fault.restore(state["fault"])
        self.below = state["below"]
        self.median.restore(state["median"])


class LatencyStreams:
    """All of them; `value` is the weighted mean of their e-values."""

    def __init__(self, policy: CanaryPolicy) -> None:
        self.policy = policy
        self.pairs, self.live, self.other = LatencyStream(policy), LatencyStream(policy), LatencyStream(policy)
        self.buckets: dict[str, LatencyStream] = {}
        self.warm: dict[str, int] = {}  # how many runs of a bucket there were, up to `cold_runs`
        self.waiting: dict[str, float] = {}  # bucket -> the time of a stable request that is not matched yet
        self.unusable = 0
        self.value = 1.0

    def _is_cold(self, place: str, bucket: str) -> bool:
        """Whether this is among the first runs of its bucket. Buckets beyond the most are cold only where marked."""
        name = f"{place}:{bucket}"
        seen = self.warm.get(name, 0)
        if seen >= self.policy.cold_runs or (not seen and len(self.warm) >= 4 * self.policy.most_buckets):
            return False
        self.warm[name] = seen + 1
        return True

    def add_pair(self, pair: Pair) -> None:
        """A pair that both versions ended well."""
        if self._is_cold("pair", pair.bucket) or pair.is_cold:
            return
        ratio = _log_ratio(pair.candidate_seconds, pair.stable_seconds)
        if ratio is None:
            self.unusable += 1
            return
        bucket = pair.bucket
        total = self.pairs.count
        self.pairs.add(ratio)
        if bucket:
            stream = self.buckets.get(bucket)
            if stream is None and len(self.buckets) < self.policy.most_buckets:
                stream = self.buckets[bucket] = LatencyStream(self.policy)
            if stream is None or stream.count < self.policy.least_bucket_share * total:
                self.other.add(ratio)
            if stream is not None:
                stream.add(ratio)
        self._sum()

    def add_request(self, request: Request) -> None:
        """A live request."""
        if request.outcome != "ok":
            return
        if self._is_cold(request.version, request.bucket) or request.is_cold:
            return
        seconds, bucket = request.seconds, request.bucket
        if seconds is None or not 0 < seconds < math.inf:
            return
        if request.version == "stable":
            if bucket in self.waiting or len(self.waiting) < 4 * self.policy.most_buckets:
                self.waiting[bucket] = seconds
            return
        ratio = _log_ratio(seconds, self.waiting.pop(bucket, None))
        if ratio is not None:
            self.live.add(ratio)
            self._sum()

    def _shares(self) -> list[tuple[LatencyStream, str, str, float]]:
        """(stream, metric, bucket, share). Shares of buckets fall as 1/(k (k + 1)), so there may be any number."""
        rows = [
            (self.pairs, "", "", _SHARES["pairs"]),
            (self.live, "live", "", _SHARES["live"]),
            (self.other, "", "other", _SHARES["other"]),
        ]
        for index, (bucket, stream) in enumerate(self.buckets.items(), 1):
            rows.append((stream, "", bucket, _SHARES["buckets"] / (index * (index + 1))))
        return rows

    def _sum(self) -> None:
        left = _SHARES["buckets"]
        value = (
            _SHARES["pairs"] * self.pairs.fault.value
            + _SHARES["live"] * self.live.fault.value
            + _SHARES["other"] * self.other.fault.value
        )
        for index, stream in enumerate(self.buckets.values(), 1):
            share = _SHARES["buckets"] / (index * (index + 1))
            value += share * stream.fault.value
            left -= share
        self.value = value + left

    def _is_required(self, stream: LatencyStream) -> bool:
        """Whether a stream must be cleared before promotion."""
        total = self.pairs.count
        if stream is self.pairs:
            return total > 0 or not self.live.count
        if stream is self.live:
            return not total and self.live.count > 0
        return stream.count > 0 and stream.count >= self.policy.least_bucket_share * total

    def misses_too_many(self) -> bool:
        """Whether more pairs lack usable times than the policy allows."""
        return self.unusable > self.policy.missing_share * (self.pairs.count + self.unusable)

    def is_cleared(self) -> bool:
        """Whether every required stream is cleared, and few times are missing."""
        return not self.misses_too_many() and all(
            stream.is_cleared(self.policy) for stream, *_ in self._shares() if self._is_required(stream)
        )

    def evidence(self, weight: float, required: bool) -> list[Evidence]:
        """A row for each stream that has data, and one for all pairs."""
        rows = [
            stream.evidence((metric, bucket), weight * share, required and self._is_required(stream), self.policy)
            for stream, metric, bucket, share in self._shares()
            if stream.count or stream is self.pairs
        ]
        if self.misses_too_many():
            note = f"{self.unusable} pairs without usable times, beside {self.pairs.count} with"
            rows.append(
                Evidence("latency", "", "times", "", self.pairs.count, None, None, self.policy.latency_ratio, "no data",
                         required=required, note=note)
            )  # fmt: skip
        return rows

    def state(self) -> dict[str, Any]:
        """What changes with the records."""
        return {
            "pairs": self.pairs.state(), "live": self.live.state(), "other": self.other.state(),
            "buckets": [[bucket, stream.state()] for bucket, stream in self.buckets.items()],
            "warm": dict(self.warm), "waiting": dict(self.waiting), "unusable": self.unusable, "value": self.value,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from what `state` gave."""
        self.pairs.restore(state["pairs"])
        self.live.restore(state["live"])
        self.other.restore(state["other"])
        self.buckets = {}
        for bucket, each in state["buckets"]:
            self.buckets[bucket] = LatencyStream(self.policy)
            self.buckets[bucket].restore(each)
        self.warm, self.waiting = dict(state["warm"]), dict(state["waiting"])
        self.unusable, self.value = state["unusable"], state["value"]


def _log_ratio(candidate: float | None, stable: float | None) -> float | None:
    """The log of the ratio of two times; None where one is missing or no time, as a clock that steps makes them."""
    if candidate is None or stable is None or not 0 < candidate < math.inf or not 0 < stable < math.inf:
        return None
    return max(-_MOST_LOG, min(_MOST_LOG, math.log(candidate) - math.log(stable)))
