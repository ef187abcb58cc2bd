"""What a page about a canary tells: its records over time, what the judge knew as they came, and the audit log.

Invariant: the records are judged again in their order, so that the page shows what the judge saw at each moment.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.runtime.serving.expected import Expected
from aot.runtime.serving.judge import Judge
from aot.runtime.serving.policy import CanaryPolicy
from aot.runtime.serving.records import OUTCOMES, Pair, Record, Request
from aot.runtime.serving.verdict import Verdict

MOMENTS = 60
"""At so many moments the judge's knowledge is kept, and into at most so many intervals the records are put."""

_LEAST_RECORDS = 20  # of an interval, on average
_VERSIONS = ("stable", "candidate")


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

    @property
    def verdict(self) -> Verdict:
        """Of all records."""
        return self.moments[-1][1]


def tell(
    name: str, records: Iterable[Record], policy: CanaryPolicy, expected: Expected,
    state: str = "", audit: Sequence[Mapping[str, Any]] = (), verdict: Verdict | None = None,
) -> Story:  # fmt: skip
    """Judges the records once more, and keeps what was known at MOMENTS of them.

    `verdict`: what a controller decided, where it is known; it stands as the last.
    """
    kept = list(records)
    times = [record.time for record in kept if math.isfinite(record.time)]
    times += [float(entry["time"]) for entry in audit if isinstance(entry.get("time"), (int, float))]
    start = min(times, default=0.0)
    judge = Judge(policy, expected)
    moments: list[tuple[float, Verdict]] = []
    step = max(1, math.ceil(len(kept) / MOMENTS))
    latest = start
    for first in range(0, len(kept), step):
        part = kept[first : first + step]
        judge.add_many(part)
        latest = max([latest, *(record.time for record in part if math.isfinite(record.time))])
        moments.append((latest - start, judge.verdict()))
    if verdict is not None or not moments:
        moments.append((max(times, default=start) - start, verdict or judge.verdict()))
    return Story(name, policy, expected, kept, moments, state, audit, start, max(times, default=start) - start)


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
