"""Runs that did not end well, of the candidate beside the stable version, as streams of a judge.

On the same input: the worse outcome is at fault; what both have alike, such as a client whose inputs never fit, is no
one's. Live: the candidate's runs, and its side of the pairs, against the live requests of the stable version, which
are many, so that few failures suffice. Failed guards of live requests are the clients' before they are the
candidate's: they are judged apart, once for each key, and only roll back.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from aot.runtime.serving.numeric_streams import state_of
from aot.runtime.serving.policy import CanaryPolicy
from aot.runtime.serving.records import Pair, Request
from aot.runtime.serving.sequential import DifferenceTest, SignTest, TwoSampleTest, difference_interval
from aot.runtime.serving.verdict import Evidence

SEVERITY = {
    "ok": 0, "guard": 1, "refused": 1, "fallback": 1, "not_finite": 2, "timeout": 3, "device": 4, "crash": 5,
}  # fmt: skip
HARD = frozenset(("not_finite", "device", "crash"))
_MOST_KEYS = 1024
_PAIRS, _LIVE = 0.75, 0.25  # of the evidence for promotion


class FailureStream:
    """One class of failures, on pairs and on live requests."""

    SHARES = (0.2, 0.55, 0.25)
    """Of the evidence, of the tests below: most is where live requests tell how rare a failure of stable's is."""

    def __init__(self, policy: CanaryPolicy) -> None:
        self.paired = SignTest()
        self.pairs_to_live = TwoSampleTest()
        self.live = TwoSampleTest()
        self.clear_pairs = DifferenceTest(policy.failure_rate)
        self.clear_live = DifferenceTest(policy.failure_rate)
        self.waiting: bool | None = None  # whether the last stable request failed, until it is matched
        self.value = self.largest = 1.0

    def add_pair(self, sign: int) -> None:
        """Which side was worse: 1 the candidate's, -1 the stable version's."""
        if sign:
            self.paired.add(sign)
        self.pairs_to_live.add_second(sign > 0)
        self.clear_pairs.add(sign)
        self._sum()

    def add_stable(self, failed: bool) -> None:
        """A live request of the stable version."""
        self.pairs_to_live.add_first(failed)
        self.live.add_first(failed)
        self.waiting = failed

    def add_candidate(self, failed: bool) -> None:
        """A live request of the candidate."""
        self.live.add_second(failed)
        if self.waiting is not None:
            self.clear_live.add(int(failed) - int(self.waiting))
            self.waiting = None
        self._sum()

    def _sum(self) -> None:
        a, b, c = self.SHARES
        self.value = a * self.paired.value + b * self.pairs_to_live.value + c * self.live.value
        self.largest = max(self.largest, self.value)

    @property
    def count(self) -> int:
        """How many runs of the candidate were seen."""
        return self.clear_pairs.count + self.live.second_trials

    def is_cleared(self, policy: CanaryPolicy) -> bool:
        """Whether an excess of the smallest effect is ruled out."""
        return (_PAIRS * self.clear_pairs.value + _LIVE * self.clear_live.value) * policy.missed_fault >= 1.0

    def evidence(self, metric: str, share: float, required: bool, policy: CanaryPolicy, note: str) -> Evidence:
        """What is known."""
        cleared = self.is_cleared(policy)
        of = self.clear_pairs if self.clear_pairs.count else self.clear_live
        estimate, interval = None, None
        if of.count:
            estimate = (of.plus - of.minus) / of.count
            low, high = difference_interval(of.plus, of.minus, of.count, policy.missed_fault)
            interval = (low, min(high, policy.failure_rate) if cleared else high)
        return Evidence(
            "failures", "", metric, "", self.count, estimate, interval, policy.failure_rate,
            state_of(self.largest, share, policy, cleared, self.count), self.value, share, required,
            note if self.count else "the candidate ran nothing",
        )  # fmt: skip

    _TESTS = ("paired", "pairs_to_live", "live", "clear_pairs", "clear_live")

    def state(self) -> dict[str, Any]:
        """What changes with the records."""
        tests = {name: getattr(self, name).state() for name in self._TESTS}
        return {**tests, "waiting": self.waiting, "value": self.value, "largest": self.largest}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from what `state` gave."""
        for name in self._TESTS:
            getattr(self, name).restore(state[name])
        self.waiting, self.value, self.largest = state["waiting"], state["value"], state["largest"]


class FailureStreams:
    """All of them; `value` is the weighted mean of their e-values."""

    SHARES = (0.65, 0.25, 0.1)

    def __init__(self, policy: CanaryPolicy) -> None:
        self.policy = policy
        self.any = FailureStream(policy)
        self.hard = FailureStream(policy)
        self.guards = TwoSampleTest()
        self.keys: dict[str, None] = {}  # whose guards failed lately
        self.counts: Counter[str] = Counter()
        self.value = 1.0

    def add_pair(self, pair: Pair) -> None:
        """A pair."""
        stable, candidate = pair.stable, pair.candidate
        worse = SEVERITY[candidate] - SEVERITY[stable]
        if stable != "ok" or candidate != "ok":
            self.counts[f"candidate {candidate}"] += candidate != "ok"
            self.counts[f"stable {stable}"] += stable != "ok"
        self.any.add_pair((worse > 0) - (worse < 0))
        self.hard.add_pair((candidate in HARD) - (stable in HARD))
        self._sum()

    def add_request(self, request: Request) -> None:
        """A live request."""
        outcome = request.outcome
        if outcome == "guard" and request.key:
            if request.key in self.keys:
                return
            self.keys[request.key] = None
            if len(self.keys) > _MOST_KEYS:
                del self.keys[next(iter(self.keys))]
        guard, failed, hard = outcome == "guard", outcome not in ("ok", "guard"), outcome in HARD
        if request.version == "stable":
            self.guards.add_first(guard)
            self.any.add_stable(failed)
            self.hard.add_stable(hard)
            return
        if outcome != "ok":
            self.counts[f"candidate {outcome}"] += 1
        self.guards.add_second(guard)
        self.any.add_candidate(failed)
        self.hard.add_candidate(hard)
        self._sum()

    def _sum(self) -> None:
        a, b, c = self.SHARES
        self.value = a * self.any.value + b * self.hard.value + c * self.guards.value

    def is_cleared(self) -> bool:
        """Whether both classes are cleared."""
        return self.any.is_cleared(self.policy) and self.hard.is_cleared(self.policy)

    def evidence(self, weight: float, required: bool) -> list[Evidence]:
        """A row for each class."""
        a, b, c = (weight * share for share in self.SHARES)
        note = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()) if count)
        rows = [
            self.any.evidence("any", a, required, self.policy, note),
            self.hard.evidence("crash, device, not_finite", b, required, self.policy, ""),
        ]
        guards = self.guards
        if guards.second_trials:
            estimate = guards.second_events / guards.second_trials
            if guards.first_trials:
                estimate -= guards.first_events / guards.first_trials
            rows.append(
                Evidence("failures", "", "guard, live", "", guards.second_trials, estimate, None,
                         self.policy.failure_rate,
                         state_of(guards.largest, c, self.policy, False, guards.second_trials), guards.value, c, False)
            )  # fmt: skip
        return rows

    def state(self) -> dict[str, Any]:
        """What changes with the records."""
        return {
            "any": self.any.state(), "hard": self.hard.state(), "guards": self.guards.state(),
            "keys": list(self.keys), "counts": dict(self.counts), "value": self.value,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from what `state` gave."""
        self.any.restore(state["any"])
        self.hard.restore(state["hard"])
        self.guards.restore(state["guards"])
        self.keys = dict.fromkeys(state["keys"])
        self.counts, self.value = Counter(state["counts"]), state["value"]
