"""Many simulated rollouts of one scenario: what the judge decides of each and when, and what the comparators do.

Invariant: a result follows from the scenario and its seed; how the rollouts are spread over processes does not matter.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.cli.canary_binomial import clopper_pearson
from aot.cli.canary_comparators import INTERVAL_SECONDS, Flagger, Kayenta, Series, runs_of, series
from aot.cli.canary_traffic import HARMLESS, Block, Fault, Floats, Rollout, Traffic
from aot.runtime.serving.judge import Judge
from aot.runtime.serving.policy import CanaryPolicy
from aot.runtime.serving.records import Record

_CHUNK = 50  # pairs drawn at a time, and between two looks at the whole verdict
_SERIES_CHUNK = 400
_TIME = attrgetter("time")


@dataclass(frozen=True)
class Scenario:
    """What is simulated. A rollout that is undecided after `most_pairs` shadow pairs counts as held."""

    fault: Fault = field(default_factory=Fault)
    traffic: Traffic = field(default_factory=Traffic)
    policy: CanaryPolicy = field(default_factory=CanaryPolicy)
    most_pairs: int = 7200
    live: bool = True  # with live requests beside the pairs

    @property
    def intervals(self) -> int:
        """Of the comparators, until about `most_pairs`."""
        return max(1, round(self.most_pairs / self.traffic.pairs_per_second / INTERVAL_SECONDS))


@dataclass(frozen=True)
class Trial:
    """One rollout: what was decided, and after how much."""

    decision: str
    pairs: int
    requests: int
    seconds: float
    reason: str = ""


def judge_once(scenario: Scenario, seed: tuple[int, ...]) -> Trial:
    """One rollout through the judge, at the shares of the policy's steps, until it is decided."""
    policy, traffic = scenario.policy, scenario.traffic
    rollout = Rollout(traffic, scenario.fault, seed)
    judge = Judge(policy, rollout.expected)
    steps = Steps(policy, scenario.live)
    now = 0.0
    while judge.pairs < scenario.most_pairs:
        block = rollout.block(_CHUNK)
        if not len(block):
            break
        live: Iterable[Record] = rollout.requests(block, steps.share) if scenario.live else ()
        records: Iterable[Record] = block.pairs(traffic)
        before = judge.candidate_requests
        for record in heapq.merge(records, live, key=_TIME):
            judge.add(record)
            if judge.has_alarm:
                return Trial("roll back", judge.pairs, judge.requests, record.time, _reason(judge))
        now = float(block.times[-1])
        steps.saw(len(block), judge.candidate_requests - before)
        if steps.is_over and judge.decision() == "promote":
            return Trial("promote", judge.pairs, judge.requests, now)
    return Trial(judge.decision(), judge.pairs, judge.requests, now)


def _reason(judge: Judge) -> str:
    reasons = judge.verdict().reasons
    return reasons[0] if reasons else ""


class Steps:
    """The shares that a controller goes through, by the minimum samples of the policy; without a disk.

    Without `live` requests only pairs count.
    """

    def __init__(self, policy: CanaryPolicy, live: bool) -> None:
        self.policy = policy
        self.least_requests = policy.least_requests if live else 0
        self.step = self.pairs = self.requests = 0

    @property
    def share(self) -> float:
        """Of the live traffic, now."""
        return self.policy.steps[min(self.step, len(self.policy.steps) - 2)] if len(self.policy.steps) > 1 else 1.0

    @property
    def is_over(self) -> bool:
        """Whether only the promotion is left."""
        return self.step >= len(self.policy.steps) - 1

    def saw(self, pairs: int, requests: int) -> None:
        """Counts pairs and the candidate's live requests; goes on where a step has enough of both."""
        self.pairs += pairs
        self.requests += requests
        if not self.is_over and self.pairs >= self.policy.least_pairs and self.requests >= self.least_requests:
            self.step += 1
            self.pairs = self.requests = 0


def series_once(scenario: Scenario, seed: tuple[int, ...]) -> Series:
    """The same kind of rollout as a metrics server would show it, to its end, at the same shares."""
    rollout = Rollout(scenario.traffic, scenario.fault, seed)
    steps = Steps(scenario.policy, scenario.live)
    end = scenario.intervals * INTERVAL_SECONDS
    found: list[tuple[Block, NDArray[np.bool_] | None]] = []
    times: list[Floats] = []
    while True:
        block = rollout.block(_SERIES_CHUNK)
        found.append((block, None))
        times.append(block.times)
        if scenario.live:
            both, mine = rollout.live(block, steps.share)
            found.append((both, mine))
            steps.saw(len(block), int(mine.sum()))
        if not len(block) or block.times[-1] >= end:
            return series(*runs_of(found), np.concatenate(times), 0.0, scenario.intervals)


@dataclass(frozen=True)
class Delays:
    """Of a rule in a scenario: how many rollouts it rolled back, and after how many pairs and seconds.

    `pairs` and `seconds` are over all rollouts, infinite for those that were not rolled back.
    """

    rule: str
    rollouts: int
    rolled_back: int
    promoted: int
    held: int
    pairs: Sequence[float]
    seconds: Sequence[float]
    requests: Sequence[float] = ()

    def quantile(self, probability: float, of: str = "pairs") -> float:
        """An observed delay, infinite where so many were not rolled back."""
        values = sorted(getattr(self, of))
        return float(values[max(math.ceil(probability * len(values)) - 1, 0)]) if values else math.inf

    def to_json(self, within: int | None = None) -> dict[str, Any]:
        """The figures; delays that are infinite are null."""
        document: dict[str, Any] = {
            "rule": self.rule,
            "rollouts": self.rollouts,
            **{
                name: {"count": count, "rate": count / self.rollouts,
                       "interval_95": list(clopper_pearson(count, self.rollouts))}
                for name, count in (("rolled_back", self.rolled_back), ("promoted", self.promoted), ("held", self.held))
            },
        }  # fmt: skip
        for unit in ("pairs", "seconds", *(["requests"] if self.requests else [])):
            found = {name: self.quantile(p, unit) for name, p in (("median", 0.5), ("p95", 0.95))}
            document[f"delay_{unit}"] = {name: value if math.isfinite(value) else None for name, value in found.items()}
        if within is not None:
            count = sum(each <= within for each in self.pairs)
            document["within"] = {"pairs": within, "rate": count / self.rollouts,
                                  "interval_95": list(clopper_pearson(count, self.rollouts))}  # fmt: skip
        return document


def simulate(
    scenario: Scenario, rollouts: int, seed: int = 0, jobs: int = 1, tell: Callable[[int], None] | None = None
) -> tuple[Delays, list[Trial]]:
    """The judge over `rollouts` rollouts; `tell` hears how many are done."""
    trials: list[Trial] = []
    for part in _spread(_judge_part, scenario, rollouts, seed, jobs):
        trials += part
        if tell is not None:
            tell(len(trials))
    back = [trial.decision == "roll back" for trial in trials]
    return (
        Delays(
            "judge",
            rollouts,
            sum(back),
            sum(trial.decision == "promote" for trial in trials),
            sum(trial.decision == "hold" for trial in trials),
            [trial.pairs if wrong else math.inf for trial, wrong in zip(trials, back, strict=True)],
            [trial.seconds if wrong else math.inf for trial, wrong in zip(trials, back, strict=True)],
            [trial.requests + trial.pairs if wrong else math.inf for trial, wrong in zip(trials, back, strict=True)],
        ),
        trials,
    )


@dataclass(frozen=True)
class Comparators:
    """Both rules, tuned."""

    kayenta: Kayenta
    flagger: Flagger
    false_alarm: float
    rollouts: int

    def to_json(self) -> dict[str, Any]:
        """What was tuned, and for how many false alarms."""
        return {
            "false_alarm": self.false_alarm, "faultless_rollouts": self.rollouts,
            "kayenta": {"confidence": self.kayenta.confidence, "tolerance": self.kayenta.tolerance,
                        "marginal": self.kayenta.marginal, "look_every_intervals": self.kayenta.look_every},
            "flagger": {"least_success": self.flagger.least_success, "most_seconds": self.flagger.most_seconds,
                        "failed_checks": self.flagger.threshold},
            "interval_seconds": INTERVAL_SECONDS,
        }  # fmt: skip


def tune(
    scenario: Scenario, rollouts: int, false_alarms: Sequence[float], seed: int = 0, jobs: int = 1
) -> list[Comparators]:
    """The comparators, so strict that they roll back such shares of faultless rollouts of the scenario's traffic."""
    faultless = replace(scenario, fault=Fault())
    parts = list(_spread(_series_part, faultless, rollouts, seed, jobs))
    found = [each for part in parts for each, _ in part]
    strengths = [each for part in parts for _, each in part]
    return [
        Comparators(Kayenta().tuned(strengths, rate), Flagger().tuned(found, rate), rate, rollouts)
        for rate in false_alarms
    ]


def compare(
    scenario: Scenario, rules: Sequence[Comparators], rollouts: int, seed: int = 0, jobs: int = 1
) -> list[list[Delays]]:
    """What Kayenta's and Flagger's rules do with such rollouts: for each of `rules`, both."""
    parts = list(_spread(_series_part, scenario, rollouts, seed, jobs))
    found = [each for part in parts for each, _ in part]
    strengths = [each for part in parts for _, each in part]
    return [
        [
            _delays("Kayenta", found, [each.kayenta.decided(strength) for strength in strengths]),
            _delays("Flagger", found, [each.flagger.decided(series) for series in found]),
        ]
        for each in rules
    ]


def _delays(rule: str, found: Sequence[Series], decided: Sequence[int | None]) -> Delays:
    pairs: Floats = np.array(
        [math.inf if end is None else each.pairs[end - 1] for each, end in zip(found, decided, strict=True)]
    )
    seconds = [math.inf if end is None else end * INTERVAL_SECONDS for end in decided]
    back = sum(end is not None for end in decided)
    return Delays(rule, len(found), back, len(found) - back, 0, pairs.tolist(), seconds)


def is_false(fault: Fault) -> bool:
    """Whether a rollback under this fault is a false alarm."""
    return fault.kind in HARMLESS


_PART = 50  # rollouts that a process does at a time


def _spread(work: Callable[..., Any], scenario: Scenario, rollouts: int, seed: int, jobs: int) -> Any:
    parts = [(scenario, seed, first, min(first + _PART, rollouts)) for first in range(0, rollouts, _PART)]
    if jobs <= 1:
        yield from map(work, *zip(*parts, strict=True))
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(work, *zip(*parts, strict=True))


def _judge_part(scenario: Scenario, seed: int, first: int, end: int) -> list[Trial]:
    return [judge_once(scenario, (seed, number)) for number in range(first, end)]


def _series_part(scenario: Scenario, seed: int, first: int, end: int) -> list[tuple[Series, Floats]]:
    """The series, and how strongly Kayenta's rule speaks at each look."""
    found = [series_once(scenario, (seed, number)) for number in range(first, end)]
    return [(each, Kayenta().strengths(each)) for each in found]
