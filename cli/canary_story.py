"""What a page about a canary tells: its records over time, what the judge knew as they came, and the audit log.

Invariant: the records are judged again in their order, so that the page shows what the judge knew at each moment.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.runtime.serving.expected import Expected
from aot.runtime.serving.judge import Judge
from aot.runtime.serving.policy import CanaryPolicy
from aot.runtime.serving.records import OUTCOMES, Pair, Record, Request
from aot.runtime.serving.verdict import DECISIONS, Evidence, Verdict

MOMENTS = 60
"""At so many moments the judge's knowledge is kept, and into at most so many intervals the records are put."""

_LEAST_RECORDS = 20  # of an interval, on average
_VERSIONS = ("stable", "candidate")
_EVIDENCE = frozenset(each.name for each in fields(Evidence))


@dataclass
class Story:
    """One canary. `moments`: (seconds since the start, verdict) in order; the last is the verdict of all records."""

    name: str
    policy: CanaryPolicy
    expected: Expected
    records: Sequence[Record]
    moments: list[tuple[float, Verdict]]
    state: str = ""  # of a controller: running, paused, promoted, rolled back; "" where there is none
    audit: Sequence[Mapping[str, Any]] = ()
    start: float = 0.0  # seconds since the epoch
    end: float = 0.0  # seconds since the start
    seen_before: bool = False  # there were records before these

    @property
    def verdict(self) -> Verdict:
        """Of all records."""
        return self.moments[-1][1]


def tell(
    name: str, records: Iterable[Record], policy: CanaryPolicy, expected: Expected, *,
    judge: Judge | None = None, state: str = "", audit: Sequence[Mapping[str, Any]] = (),
) -> Story:  # fmt: skip
    """Judges the records once more, and keeps what was known at MOMENTS of them, and at the audit log's decisions.

    `judge`: what judged the records before these, which are no longer there; the audit log tells of that time.
    """
    kept = list(records)
    times = [record.time for record in kept if math.isfinite(record.time)]
    began = min(times, default=math.inf)
    times += [time for entry in audit if (time := time_of(entry)) is not None]
    start = min(times, default=0.0)
    seen_before = judge is not None and judge.pairs + judge.requests > 0
    moments = [each for entry in audit if (each := _moment(entry, start, began - start)) is not None]
    judge = judge or Judge(policy, expected)
    step = max(1, math.ceil(len(kept) / MOMENTS))
    latest = began if math.isfinite(began) else start
    for first in range(0, len(kept), step):
        part = kept[first : first + step]
        judge.add_many(part)
        latest = max([latest, *(record.time for record in part if math.isfinite(record.time))])
        moments.append((latest - start, judge.verdict()))
    if not kept:
        moments.append((max(times, default=start) - start, judge.verdict()))
    end = max(times, default=start) - start
    return Story(name, policy, expected, kept, moments, state, audit, start, end, seen_before)


def time_of(entry: Mapping[str, Any]) -> float | None:
    """When a line of the audit log was written; None where it does not say."""
    time = entry.get("time")
    return float(time) if isinstance(time, (int, float)) and math.isfinite(time) else None


def _moment(entry: Mapping[str, Any], start: float, before: float) -> tuple[float, Verdict] | None:
    """What was known at a decision before the first record that is still there."""
    time, rows = time_of(entry), entry.get("evidence")
    if time is None or not rows or time - start >= before:
        return None
    evidence = []
    for row in rows:
        given = {name: value for name, value in row.items() if name in _EVIDENCE}
        for name in ("limit", "evidence_ratio"):
            given[name] = math.inf if given.get(name) is None else given[name]
        interval = given.get("interval")
        if interval is not None:
            low, high = interval
            given["interval"] = (-math.inf if low is None else low, math.inf if high is None else high)
        evidence.append(Evidence(**given))
    decision = str(entry.get("what"))
    return time - start, Verdict(decision if decision in DECISIONS else "hold", (), tuple(evidence))


@dataclass
class Interval:
    """The records of an interval, per version: durations by bucket, outcomes; and the values of pairs."""

    middle: float  # seconds since the start
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # (version, bucket)
    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: {version: Counter() for version in _VERSIONS})
    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # (output, metric)
    pairs: int = 0
    live: Counter[str] = field(default_factory=Counter)  # requests by version

    def failure_rate(self, version: str) -> float | None:
        """The share of runs that did not end well; None where nothing ran."""
        outcomes = self.outcomes[version]
        total = outcomes.total()
        return 1 - outcomes["ok"] / total if total else None


def intervals(story: Story) -> list[Interval]:
    """The records by time, in equal intervals."""
    count = max(1, min(MOMENTS, len(story.records) // _LEAST_RECORDS))
    width = (story.end or 1.0) / count
    found = [Interval((number + 0.5) * width) for number in range(count)]
    for record in story.records:
        if not math.isfinite(record.time):
            continue
        interval = found[min(max(int((record.time - story.start) / width), 0), count - 1)]
        _put(interval, record)
    return found


def _put(interval: Interval, record: Record) -> None:
    if isinstance(record, Request):
        runs = [(record.version, record.outcome, record.seconds)]
        interval.live[record.version] += 1
    else:
        runs = [
            ("stable", record.stable, record.stable_seconds),
            ("candidate", record.candidate, record.candidate_seconds),
        ]
        interval.pairs += 1
        for output, metrics in record.values.items():
            for metric, value in metrics.items():
                interval.values.setdefault((output, metric), []).append(value)
    for version, outcome, seconds in runs:
        interval.outcomes[version][outcome] += 1
        if seconds is not None and math.isfinite(seconds) and not record.is_cold:
            interval.seconds.setdefault((version, record.bucket), []).append(seconds)


def over_time(
    found: Sequence[Interval], pick: Callable[[Interval], Sequence[float]], probability: float
) -> list[float | None]:
    """A quantile of what `pick` takes of each interval; None where that is nothing."""
    return [quantile(pick(interval), probability) for interval in found]


def quantile(values: Sequence[float], probability: float) -> float | None:
    """An observed value: the smallest that is not below the quantile. None of nothing; NaN counts as the largest."""
    if not len(values):
        return None
    ordered: NDArray[np.float64] = np.sort(np.asarray(values, np.float64))
    value = float(ordered[max(math.ceil(probability * len(ordered)) - 1, 0)])
    return value if math.isfinite(value) else None


def outcome_rows(story: Story) -> list[tuple[str, int, int, int, int]]:
    """(outcome, stable and candidate in pairs, stable and candidate live), of those that were seen."""
    pairs = {version: Counter[str]() for version in _VERSIONS}
    live = {version: Counter[str]() for version in _VERSIONS}
    for record in story.records:
        if isinstance(record, Pair):
            pairs["stable"][record.stable] += 1
            pairs["candidate"][record.candidate] += 1
        else:
            live[record.version][record.outcome] += 1
    rows = [
        (name, pairs["stable"][name], pairs["candidate"][name], live["stable"][name], live["candidate"][name])
        for name in OUTCOMES
    ]
    return [row for row in rows if any(row[1:])]
