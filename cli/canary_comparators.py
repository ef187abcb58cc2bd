"""The published rules that the canary's judge is compared with, and their tuning to an equal false-alarm rate.

Kayenta's judge (Netflix; Spinnaker's documentation "How canary judgment works", and NetflixACAJudge in the public
sources of Kayenta): for every metric a Mann-Whitney U test between the points of both series, one a minute. A metric
is High where the lower end of the confidence interval of the shift lies above a tolerance (0.25) times the
Hodges-Lehmann estimate, and the ratio of means is at least `allowed_increase`. The score is the percentage of metrics
that pass; below `marginal` the canary fails. Looks come at the analysis interval, over all points so far (its
"growing" lookback).

Flagger's rule (documentation "Metrics analysis", "How it works"): every interval, the candidate's success rate and its
99th percentile of the duration are held against fixed thresholds; a check fails where either is outside, or where
there is no value; `threshold` failed checks roll back.

Both have one free strength: the confidence of Kayenta's interval, and the levels of Flagger's thresholds.
`tuned` finds them on faultless rollouts, so that the rules roll back as many of those as they may.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from aot.cli.canary_traffic import Block, Floats

INTERVAL_SECONDS = 60.0
"""Of a point of a series, and of Flagger's checks."""

_RATE, _MEAN, _HIGH = "failure rate", "mean latency", "99th percentile of latency"
METRICS = (_RATE, _MEAN, _HIGH)


@dataclass(frozen=True)
class Series:
    """The points of one rollout, one an interval: arrays of shape (intervals,), NaN where nothing came."""

    stable: dict[str, Floats]
    candidate: dict[str, Floats]
    pairs: Floats  # shadow pairs until the end of each interval

    def __len__(self) -> int:
        return len(self.pairs)


@dataclass
class Runs:
    """Runs of one version, in any order: arrays of shape (count,). Seconds are NaN where a run failed."""

    times: Floats
    failed: NDArray[np.bool_]
    seconds: Floats


def runs_of(blocks: Sequence[tuple[Block, NDArray[np.bool_] | None]]) -> tuple[Runs, Runs]:
    """Those of the stable version and of the candidate, in pairs (None) and live requests (True: the candidate's)."""
    everything = [(block, slice(None), slice(None)) if mine is None else (block, ~mine, mine) for block, mine in blocks]
    stable = Runs(
        np.concatenate([block.times[part] for block, part, _ in everything]),
        np.concatenate([block.stable_failed[part] for block, part, _ in everything]),
        np.concatenate([block.stable_seconds[part] for block, part, _ in everything]),
    )
    candidate = Runs(
        np.concatenate([block.times[part] for block, _, part in everything]),
        np.concatenate([block.candidate_failed[part] for block, _, part in everything]),
        np.concatenate([block.candidate_seconds[part] for block, _, part in everything]),
    )
    return stable, candidate


def series(stable: Runs, candidate: Runs, pairs: Floats, start: float, intervals: int) -> Series:
    """What a metrics server would hold after `intervals` intervals since `start`; `pairs`: times of shadow pairs."""
    at = ((pairs - start) // INTERVAL_SECONDS).astype(np.int64)
    counts = np.bincount(at[at < intervals], minlength=intervals).astype(np.float64)
    return Series(_points(stable, start, intervals), _points(candidate, start, intervals), np.cumsum(counts))


def _points(runs: Runs, start: float, intervals: int) -> dict[str, Floats]:
    at = ((runs.times - start) // INTERVAL_SECONDS).astype(np.int64)
    total = np.bincount(at[at < intervals], minlength=intervals)
    good = ~runs.failed & (at < intervals)
    at, seconds = at[good], runs.seconds[good]
    done = np.bincount(at, minlength=intervals)
    order = np.lexsort((seconds, at))
    places = (np.cumsum(done) - done + np.ceil(0.99 * done).astype(np.int64) - 1).clip(0, max(len(order) - 1, 0))
    high = seconds[order][places] if len(order) else np.full(intervals, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = 1 - done / total
        mean = np.bincount(at, seconds, minlength=intervals) / done
    return {_RATE: rate, _MEAN: mean, _HIGH: np.where(done > 0, high, np.nan)}


@dataclass(frozen=True)
class MannWhitney:
    """A comparison of two samples: U of the second, P(second > first) + P(equal) / 2, and the shift between them.

    `z` is the statistic with the correction for ties and for continuity (Mann and Whitney 1947; Hollander and Wolfe,
    "Nonparametric Statistical Methods", section 4.1), `shift` Hodges and Lehmann's estimate: the median of all
    differences.
    """

    u: float
    effect: float
    z: float
    shift: float


def mann_whitney(first: Floats, second: Floats, moved: float = 0.0) -> MannWhitney:
    """Compares `second` - `moved` with `first`; neither is empty. z > 0 where the second is larger."""
    m, n = len(first), len(second)
    differences = second[:, None] - first[None, :]
    above, equal = np.count_nonzero(differences > moved), np.count_nonzero(differences == moved)
    u = above + equal / 2
    _, ties = np.unique(np.concatenate((first, second - moved)), return_counts=True)
    total = m + n
    spread = m * n / 12 * (total + 1 - float((ties**3 - ties).sum()) / (total * max(total - 1, 1)))
    from_middle = u - m * n / 2
    corrected = from_middle - math.copysign(min(0.5, abs(from_middle)), from_middle)
    z = corrected / math.sqrt(spread) if spread > 0 else 0.0
    return MannWhitney(u, u / (m * n), z, float(np.median(differences)))


def normal_quantile(probability: float) -> float:
    """Of the standard normal distribution."""
    return NormalDist().inv_cdf(probability)


@dataclass(frozen=True)
class Kayenta:
    """Kayenta's rule. `confidence` is of the two-sided interval (0.98 as published, tuned for the comparison)."""

    confidence: float = 0.98
    tolerance: float = 0.25
    allowed_increase: float = 1.0
    marginal: float = 75.0
    look_every: int = 5  # intervals

    def strength(self, stable: Floats, candidate: Floats) -> float:
        """How strongly a metric speaks: High where this is above the interval's quantile; -inf where it passes.

        The lower end of the interval is the shift at which the test's z equals the quantile. So it lies above the
        tolerance exactly where z there is larger than the quantile.
        """
        stable, candidate = stable[np.isfinite(stable)], candidate[np.isfinite(candidate)]
        if not len(stable) or not len(candidate) or np.array_equal(np.sort(stable), np.sort(candidate)):
            return -math.inf
        shift = float(np.median(candidate[:, None] - stable[None, :]))
        mean = float(stable.mean())
        if mean > 0 and float(candidate.mean()) < self.allowed_increase * mean:
            return -math.inf
        return mann_whitney(stable, candidate, self.tolerance * abs(shift)).z

    def strengths(self, found: Series) -> Floats:
        """At each look, the strength at which the score falls below `marginal`; shape (looks,)."""
        needed = next(k for k in range(1, len(METRICS) + 1) if 100 * (len(METRICS) - k) / len(METRICS) < self.marginal)
        looks = []
        for end in range(self.look_every, len(found) + 1, self.look_every):
            if not np.isfinite(found.candidate[_RATE][:end]).any():
                looks.append(math.inf)  # no metric has data: the score is 0
                continue
            each = sorted(self.strength(found.stable[name][:end], found.candidate[name][:end]) for name in METRICS)
            looks.append(each[-needed])
        return np.array(looks)

    def decided(self, strengths: Floats) -> int | None:
        """The interval after which it rolls back; None if it never does."""
        over = np.flatnonzero(strengths > normal_quantile(0.5 + self.confidence / 2))
        return int(over[0] + 1) * self.look_every if len(over) else None

    def tuned(self, faultless: Sequence[Floats], false_alarm: float) -> Kayenta:
        """With the confidence that rolls back at most `false_alarm` of faultless rollouts, given their strengths."""
        largest = np.sort([float(each.max(initial=-math.inf)) for each in faultless])
        wanted = largest[len(largest) - 1 - math.floor(false_alarm * len(largest))]
        # Just above it, since many rollouts may have this very value: few points have few ranks.
        quantile = min(max(float(wanted), 0.0) + 1e-6, 8.0)
        return replace(self, confidence=2 * NormalDist().cdf(quantile) - 1)


@dataclass(frozen=True)
class Flagger:
    """Flagger's rule. The thresholds are absolute; 0.99 and 0.5 s are those of its examples."""

    least_success: float = 0.99
    most_seconds: float = 0.5
    threshold: int = 5  # failed checks

    def decided(self, found: Series) -> int | None:
        """The interval after which it rolls back; None if it never does."""
        rate, high = found.candidate[_RATE], found.candidate[_HIGH]
        with np.errstate(invalid="ignore"):
            passed = (1 - rate >= self.least_success) & (high <= self.most_seconds)
        failed = np.cumsum(~passed)
        over = np.flatnonzero(failed >= self.threshold)
        return int(over[0]) + 1 if len(over) else None

    def tuned(self, faultless: Sequence[Series], false_alarm: float) -> Flagger:
        """With the tightest thresholds, of one level, that roll back at most `false_alarm` of faultless rollouts."""
        rates = np.concatenate([each.candidate[_RATE] for each in faultless])
        highs = np.concatenate([each.candidate[_HIGH] for each in faultless])
        rates, highs = np.sort(rates[np.isfinite(rates)]), np.sort(highs[np.isfinite(highs)])
        low, high = 0.0, 0.5  # the level: the share of intervals that a threshold fails
        best = self._of_level(rates, highs, low)
        for _ in range(20):
            level = (low + high) / 2
            rule = self._of_level(rates, highs, level)
            wrong = sum(rule.decided(each) is not None for each in faultless)
            if wrong <= false_alarm * len(faultless):
                low, best = level, rule
            else:
                high = level
        return best

    def _of_level(self, rates: Floats, highs: Floats, level: float) -> Flagger:
        place = min(math.ceil((1 - level) * len(rates)), len(rates)) - 1
        return replace(
            self,
            least_success=1 - float(rates[place]),
            most_seconds=float(highs[min(math.ceil((1 - level) * len(highs)), len(highs)) - 1]),
        )
