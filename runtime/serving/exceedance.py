"""Errors of live inputs against those that a build recorded: how often they exceed its quantiles, and by how much.

A quantile of n samples has an uncertain exceedance rate: if j of the samples lie above a level, the rate with which
later ones do is a draw from Beta(j + 1, n - j), whatever the distribution (the law of uniform order statistics, as in
conformal prediction: Vovk, "Testing randomness online", 2021). The null hypothesis is this mixture, not a rate: the
chance that the next error exceeds the level is (j + 1 + exceedances so far) / (n + 1 + errors so far). Its likelihood
is exact, and a false alarm counts a build's unlucky samples too. No rate ever gives more evidence than the inverse
of its tail probability under that Beta; so capping n (`trusted_samples`) also bounds what other inputs than the
build's can do.

Beyond the largest recorded error there are no samples. There the tail is bounded: an error c times the largest is
c**index times as rare, at least. The index is a lower confidence bound from recorded quantiles, the median and above,
and the largest error: of a power law with index b, the log of their ratio is (log k + G)/b, with k samples above the
quantile and G a Gumbel variable (Rényi, "On the theory of order statistics", 1953; Hill, "A simple general approach to
inference about the tail of a distribution", 1975), and G is under -log log 1000 once in a thousand builds. Tails of
exponential, normal or log-normal form fall faster the farther out they are, so the bound holds for them too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from aot.runtime.serving.expected import ErrorDistribution
from aot.runtime.serving.policy import CanaryPolicy
from aot.runtime.serving.sequential import EProcess

_INNER_SAMPLES = 200  # what a quantile well inside the recorded errors counts as, for inputs unlike the build's
_TAIL_SAMPLES = 20  # fewer do not show where a tail begins
_TAIL_FACTORS = (1.25, 1.6, 2.1, 2.9)
_LEAST_GUMBEL = math.log(math.log(1000.0))
_MOST_INDEX = 6.0
_BOUND_SAMPLES = 1000  # a user's bound is exceeded about as rarely as the largest of so many samples


@dataclass(frozen=True, slots=True)
class Level:
    """Errors above `threshold` have the chance ratio * Beta(above, below) under the null hypothesis."""

    threshold: float
    above: float
    below: float
    ratio: float
    rates: tuple[float, ...]  # the alternatives
    weight: float


def distribution_of_bound(bound: float) -> ErrorDistribution:
    """What a user's own largest error means."""
    return ErrorDistribution(_BOUND_SAMPLES, ((1.0, bound),))


def is_binary(distribution: ErrorDistribution) -> bool:
    """Whether the errors are flips: 0 or 1."""
    return distribution.largest == 1.0 and all(value in (0.0, 1.0) for _, value in distribution.quantiles)


def tail_index(distribution: ErrorDistribution, fallback: float) -> float:
    """How fast the errors' tail falls, at least; `fallback` at most where few samples show it."""
    best = 0.0
    for probability, value in distribution.quantiles:
        above = (1.0 - probability) * distribution.samples
        if not 0.45 <= probability <= 0.97 or value <= 0 or above < 1:
            continue
        larger = max(math.log(distribution.largest / value), 1e-9)
        bound = (math.log(above) - _LEAST_GUMBEL) / larger
        best = max(best, bound, min(fallback, math.log(above) / larger / 2))
    return min(_MOST_INDEX, best) or fallback


def levels_of(distribution: ErrorDistribution, policy: CanaryPolicy) -> tuple[Level, ...]:
    """The levels to bet on, the weightiest beyond the largest recorded error, where rare faults show."""
    rate = policy.exceedance_rate
    trusted = min(distribution.samples, policy.trusted_samples)
    if is_binary(distribution):
        share = 1.0 - max((at for at, value in distribution.quantiles if value == 0.0), default=0.0)
        rates = tuple(min(0.95, share + extra) for extra in (rate / 2, rate, 3 * rate + share, 0.3))
        return (Level(0.0, share * trusted + 1.0, (1.0 - share) * trusted, 1.0, rates, 1.0),)
    largest = distribution.largest
    beyond = (rate / 2, rate * 1.5, 0.2)
    levels = [Level(largest, 1.0, float(trusted), 1.0, beyond, 2.0)]
    if distribution.samples >= _TAIL_SAMPLES and largest > 0:
        index = tail_index(distribution, policy.tail_index)
        levels += [
            Level(largest * factor, 1.0, float(trusted), factor**-index, beyond, 2.0) for factor in _TAIL_FACTORS
        ]
    for low, high, samples in ((0.97, 0.995, trusted), (0.8, 0.97, _INNER_SAMPLES), (0.3, 0.7, _INNER_SAMPLES)):
        inner = [each for each in distribution.quantiles if low <= each[0] < high and each[1] < largest]
        if inner and distribution.samples >= _TAIL_SAMPLES:
            probability, value = inner[-1]
            share, count = 1.0 - probability, min(samples, distribution.samples)
            rates = (share + 0.15 * (1 - share), share + 0.5 * (1 - share))
            levels.append(Level(value, share * count + 1.0, probability * count, 1.0, rates, 1.0))
    return tuple(levels)


def promotion_level(distribution: ErrorDistribution, policy: CanaryPolicy) -> tuple[float, float]:
    """(level, limit): a candidate without fault exceeds the level less often than `limit`, any with a fault more often.

    A fault of the smallest effect is at least `error_factor` times the recorded quantile `error_quantile`, so every
    level up to there will do. The lowest that a good candidate stays under is taken: the largest recorded error; with
    few samples somewhat more, since then even good ones exceed that on more inputs than the limit.
    """
    if is_binary(distribution):
        share = 1.0 - max((at for at, value in distribution.quantiles if value == 0.0), default=0.0)
        return 0.0, share + policy.exceedance_rate
    largest = distribution.largest
    enough = 6.0 / policy.exceedance_rate
    above = largest * min(policy.error_factor, math.sqrt(max(1.0, enough / distribution.samples)))
    fault = policy.error_factor * distribution.quantile(policy.error_quantile) * (1.0 - 1e-9)
    return min(above, fault) if fault > 0 else 0.0, policy.exceedance_rate


class ExceedanceTest(EProcess):
    """H0: the errors come from where the recorded ones came, or from a distribution with smaller ones."""

    def __init__(self, levels: tuple[Level, ...]) -> None:
        self.levels = levels
        bases = list(dict.fromkeys((level.above, level.below) for level in levels))
        super().__init__([level.weight / len(level.rates) for level in levels for _ in level.rates])
        # Levels beyond the largest share its Beta, learned from what exceeds the largest itself, the first of them.
        self._bases = [
            (above, below, next(each.threshold for each in levels if (each.above, each.below) == (above, below)))
            for above, below in bases
        ]
        self._level_base = [bases.index((level.above, level.below)) for level in levels]
        self.exceedances = [0] * len(bases)

    def add(self, error: float) -> None:
        """One error; infinity for one that is no number."""
        seen = self.count
        chances = [
            (above + exceeded) / (above + below + seen)
            for (above, below, _), exceeded in zip(self._bases, self.exceedances, strict=True)
        ]
        factors: list[float] = []
        for level, base in zip(self.levels, self._level_base, strict=True):
            chance = chances[base] * level.ratio
            if error > level.threshold:
                factors += [rate / chance if rate > chance else 1.0 for rate in level.rates]
            else:
                none = 1.0 - chance
                factors += [(1.0 - rate) / none if rate > chance else 1.0 for rate in level.rates]
        self.multiply(factors)
        for index, (_, _, threshold) in enumerate(self._bases):
            if error > threshold:
                self.exceedances[index] += 1

    def state(self) -> dict[str, Any]:
        return {**super().state(), "exceedances": list(self.exceedances)}
