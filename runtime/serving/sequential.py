"""Tests and intervals that hold at all times at once, so that one may look after every record and stop at will.

Each test is a test martingale, an e-process: a wealth that starts at 1 and that no strategy of betting against the
null hypothesis can expect to raise while the hypothesis is true; by Ville's inequality it ever reaches 1/alpha with
probability alpha at most. Sources:

- Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B, 2024: the bets.
- Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and safe anytime-valid inference", 2023: the frame;
  the mean of e-processes is one, and so one budget covers many streams.
- Shin, Ramdas and Rinaldo, "E-detectors: a nonparametric framework for sequential change detection", 2024: bets that
  start later, here as a mixture over the starts, which keeps the wealth a martingale.
- Robbins, "Statistical methods related to the law of the iterated logarithm", 1970: mixtures for rates.

Invariants: no clock is read; a record costs time that does not depend on how many there were; wealth stays finite.
Each object's state is what `state` gives: numbers and lists, from which `restore` continues to the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import mul
from typing import Any

_MOST_LOG = 276.0
_MOST = 1e120  # wealth is capped: less than the true one, so the test stays valid, and products stay finite
_LATER = 0.3  # of the wealth is not bet with the first record


class EProcess:
    """A mixture of bets, each of which starts at every record with a part of the wealth that is still unbet.

    Most starts with the first record. The rest is spread so thinly (as 1/(t log² t)) that a fault which begins after
    thousands of records is found nearly as soon as one from the start: what was lost before it began is bounded.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        total = sum(weights)
        self.weights = tuple(weight / total for weight in weights)
        self.parts = [0.0] * len(self.weights)
        self.unbet = 1.0
        self.count = 0
        self.value = 1.0
        self.largest = 1.0

    def multiply(self, factors: Sequence[float]) -> None:
        """Settles one round: a factor for each bet, at least 0, whose mean under the null hypothesis is 1 at most."""
        self.count = count = self.count + 1
        unbet = _LATER * 8.0 / (8.0 + math.log(count))
        start = self.unbet - unbet
        self.unbet = unbet
        self.parts = parts = [(part + start) * factor for part, factor in zip(self.parts, factors, strict=True)]
        value = unbet + sum(map(mul, self.weights, parts))
        if value > _MOST:
            self.parts = [min(part, _MOST) for part in parts]
            value = _MOST
        self.value = value
        if value > self.largest:
            self.largest = value

    def state(self) -> dict[str, Any]:
        """What changes with the records."""
        return {"parts": self.parts, "unbet": self.unbet, "count": self.count, "value": self.value,
                "largest": self.largest}  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from what `state` gave."""
        self.__dict__.update({name: list(value) if isinstance(value, list) else value for name, value in state.items()})


class SignTest(EProcess):
    """H0: of the events +1 and -1, the former have probability 1/2 at most, given the past.

    McNemar's test for paired failures ("Note on the sampling error of the difference between correlated proportions",
    1947) in sequential form: what both versions have alike is no event.
    """

    BETS = (0.3, 0.6, 0.9, 0.99)

    def __init__(self) -> None:
        super().__init__((1.0, 1.0, 1.0, 1.0))
        self.plus = self.minus = 0

    def add(self, sign: int) -> None:
        """One event: +1 or -1."""
        if sign > 0:
            self.plus += 1
            self.multiply([1.0 + bet for bet in self.BETS])
        else:
            self.minus += 1
            self.multiply([1.0 - bet for bet in self.BETS])

    def state(self) -> dict[str, Any]:
        return {**super().state(), "plus": self.plus, "minus": self.minus}


class SymmetryTest(EProcess):
    """H0: each difference, given the past, is symmetric about 0 or about something smaller.

    Bets on odd, bounded functions of the difference, whose mean is then 0 at most (de la Peña, "A general class of
    exponential inequalities for martingales and ratios", 1999; Ramdas et al., "Admissible anytime-valid sequential
    inference must rely on nonnegative martingales", 2020): its sign, which asks for no more than the median; its
    magnitude beside a running median of magnitudes, bounded, which finds small shifts of light tails sooner; and
    the sign of large differences only, which finds faults of a few records. No moment need exist.
    """

    BETS = (0.15, 0.35, 0.65, 0.95, 0.3, 0.65, 0.97, 0.5, 0.9)
    WEIGHTS = (2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0, 1.0, 1.0)

    def __init__(self, large: float) -> None:
        """`large`: what counts as a large difference."""
        super().__init__(self.WEIGHTS)
        self.large = large
        self.scale = 0.0

    def add(self, difference: float) -> None:
        """One difference; must be finite."""
        size = abs(difference)
        sign = 1.0 if difference > 0 else -1.0 if difference < 0 else 0.0
        scale = self.scale if self.count else size
        reach = size + 1.5 * scale
        moderate = 1.4 * difference / reach if reach > 0 else 0.0
        moderate = max(-1.0, min(1.0, moderate))
        tail = sign if size > self.large else 0.0
        payoffs = (sign, sign, sign, sign, moderate, moderate, moderate, tail, tail)
        self.multiply([1.0 + bet * payoff for bet, payoff in zip(self.BETS, payoffs, strict=True)])
        rate = max(0.02, 1.0 / (self.count + 1.0))
        self.scale = scale * math.exp(rate if size > scale else -rate) if scale > 0 else size

    def state(self) -> dict[str, Any]:
        return {**super().state(), "scale": self.scale}


class RateTest:
    """H0: each event has at least the probability `limit`, given the past. The value is evidence of a smaller rate.

    Likelihood ratios of smaller rates against `limit` (Wald, "Sequential tests of statistical hypotheses", 1945),
    mixed: 0, and fractions of the limit. It depends on counts only, so it is computed when it is asked for.
    """

    FRACTIONS = ((0.0, 3.0), (0.1, 2.0), (0.3, 2.0), (0.55, 2.0))  # (of the limit, weight)

    def __init__(self, limit: float) -> None:
        self._terms = [
            (
                weight / sum(each for _, each in self.FRACTIONS),
                math.log(fraction) if fraction else -math.inf,
                math.log1p(-fraction * limit) - math.log1p(-limit),
            )
            for fraction, weight in self.FRACTIONS
        ]
        self.count = self.events = 0

    def add(self, is_event: bool) -> None:
        """One trial."""
        self.count += 1
        if is_event:
            self.events += 1

    @property
    def value(self) -> float:
        """The e-value."""
        events, none = self.events, self.count - self.events
        return sum(
            weight * math.exp(min(_MOST_LOG, (events * event if events else 0.0) + none * other))
            for weight, event, other in self._terms
        )

    def state(self) -> dict[str, Any]:
        """What changes with the records."""
        return {"count": self.count, "events": self.events}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from what `state` gave."""
        self.count, self.events = state["count"], state["events"]


class DifferenceTest:
    """H0: differences in {-1, 0, 1} have at least the mean `limit`, given the past. The value is evidence of less.

    Bets 1 + b (limit - difference), for b on a grid (Waudby-Smith and Ramdas 2024, section 4.4). It depends on counts
    only, so it is computed when it is asked for.
    """

    BETS = (0.05, 0.1, 0.2, 0.35, 0.55, 0.8, 0.97)

    def __init__(self, limit: float) -> None:
        self._terms = [
            (math.log1p(bet * (limit - 1.0)), math.log1p(bet * limit), math.log1p(bet * (limit + 1.0)))
            for bet in self.BETS
        ]
        self.count = self.plus = self.minus = 0

    def add(self, difference: int) -> None:
        """One difference: -1, 0 or 1."""
        self.count += 1
        if difference > 0:
            self.plus += 1
        elif difference < 0:
            self.minus += 1

    @property
    def value(self) -> float:
        """The e-value."""
        plus, minus = self.plus, self.minus
        zero = self.count - plus - minus
        return sum(
            math.exp(min(_MOST_LOG, plus * loss + zero * same + minus * gain)) for loss, same, gain in self._terms
        ) / len(self._terms)

    def state(self) -> dict[str, Any]:
        """What changes with the records."""
        return {"count": self.count, "plus": self.plus, "minus": self.minus}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from what `state` gave."""
        self.count, self.plus, self.minus = state["count"], state["plus"], state["minus"]


def median_below(below: int, count: int) -> float:
    """Evidence that a median lies below a limit, if `below` of `count` data do: 1/alpha with probability alpha at most.

    Where the median is at the limit or above, each datum is below it with probability 1/2 at most; the likelihood mixed
    over Jeffreys' prior beside that of 1/2, and nothing while the lesser part is below.
    """
    if 2 * below <= count:
        return 0.0
    return math.exp(min(_MOST_LOG, _log_mixture(below, count) + count * math.log(2.0)))


class TwoSampleTest(EProcess):
    """H0: independent trials of a second kind have at most the event rate of those of a first kind.

    Blocks of one trial of the second kind and the trials of the first since the last block, each with the likelihood
    ratio of (rate, rate + excess) against their pooled rate, which has mean 1 at most under every common rate (Turner,
    Ly and Grünwald, "Generic E-variables for exact sequential k-sample tests that allow for optional stopping",
    2024); rates as the past suggests, excesses on a grid. Many trials of the first kind make one event of the second
    weigh more than in pairs, where it weighs log 2 at most.
    """

    EXCESSES = (0.005, 0.02, 0.08, 0.4)

    def __init__(self) -> None:
        super().__init__((1.0, 2.0, 2.0, 1.0))
        self.first_trials = self.first_events = 0
        self.second_trials = self.second_events = 0
        self.open_trials = self.open_events = 0
        self.rate, self.rated = 0.001, 0  # of the first kind, estimated from so many trials
        self._factors: dict[tuple[int, int, bool], list[float]] = {}

    def add_first(self, is_event: bool) -> None:
        """One trial of the first kind."""
        self.open_trials += 1
        self.open_events += is_event

    def add_second(self, is_event: bool) -> None:
        """One trial of the second kind. Without any of the first since the last one, it says nothing."""
        trials, events = self.open_trials, self.open_events
        self.second_trials += 1
        self.second_events += is_event
        if not trials:
            return
        outcome = (trials, events, is_event)
        factors = self._factors.get(outcome)
        if factors is None:
            factors = self._factors[outcome] = self._block(*outcome)
        self.multiply(factors)
        self.first_trials += trials
        self.first_events += events
        self.open_trials = self.open_events = 0
        if events or self.first_trials > 1.1 * self.rated:
            self.rate = (self.first_events + 0.05) / (self.first_trials + 50.0)
            self.rated = self.first_trials
            self._factors = {}

    def _block(self, trials: int, events: int, is_event: bool) -> list[float]:
        """The factors of a block; they hold until the rate is estimated again."""
        rate, factors = self.rate, []
        for excess in self.EXCESSES:
            second = rate + excess * (1.0 - rate)
            pooled = (second + trials * rate) / (trials + 1.0)
            factor = second / pooled if is_event else (1.0 - second) / (1.0 - pooled)
            if events:
                factor *= (rate / pooled) ** events
            factors.append(factor * ((1.0 - rate) / (1.0 - pooled)) ** (trials - events))
        return factors

    def state(self) -> dict[str, Any]:
        names = ("first_trials", "first_events", "second_trials", "second_events", "open_trials", "open_events")
        return {**super().state(), **{name: getattr(self, name) for name in (*names, "rate", "rated")}}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._factors = {}


_lgamma = math.lgamma


def _log_mixture(events: int, count: int) -> float:
    """The log of the mean of p**events (1 - p)**(count - events) over Jeffreys' prior, Beta(1/2, 1/2)."""
    return _lgamma(events + 0.5) + _lgamma(count - events + 0.5) - _lgamma(count + 1.0) - math.log(math.pi)


def rate_interval(events: int, count: int, alpha: float) -> tuple[float, float]:
    """The rates that are not excluded by `events` among `count` trials: a confidence sequence of level 1 - alpha.

    A rate is excluded once the likelihood, mixed over Jeffreys' prior, is 1/alpha times its own (Robbins 1970).
    """
    if count == 0:
        return 0.0, 1.0
    height = _log_mixture(events, count) + math.log(alpha)

    def is_possible(rate: float) -> bool:
        likelihood = 0.0
        if events:
            likelihood += events * math.log(rate) if rate > 0 else -math.inf
        if count > events:
            likelihood += (count - events) * math.log1p(-rate) if rate < 1 else -math.inf
        return likelihood > height

    middle = events / count
    return _edge(is_possible, middle, 0.0), _edge(is_possible, middle, 1.0)


def difference_interval(plus: int, minus: int, count: int, alpha: float) -> tuple[float, float]:
    """Means that are not excluded by differences of which `plus` are 1, `minus` are -1 and the others 0.

    A confidence sequence of level 1 - alpha: the hedged capital of Waudby-Smith and Ramdas 2024 (section 4.4) with
    bets on a grid, the same at all times, so that it depends on the counts only.
    """
    if count == 0:
        return -1.0, 1.0
    zero = count - plus - minus
    bets = (0.003, 0.01, 0.03, *DifferenceTest.BETS)
    height = math.log(2 * len(bets) / alpha)

    def is_possible(mean: float) -> bool:
        terms = []
        for bet in bets:
            for sign in (bet, -bet):
                stake = sign / (1 + abs(mean))  # no difference is farther away, so no bet ruins
                terms.append(
                    plus * math.log1p(stake * (1 - mean))
                    + minus * math.log1p(stake * (-1 - mean))
                    + zero * math.log1p(-stake * mean)
                )
        top = max(terms)
        return top + math.log(sum(math.exp(term - top) for term in terms)) < height

    middle = (plus - minus) / count
    return _edge(is_possible, middle, -1.0), _edge(is_possible, middle, 1.0)


def _edge(is_possible: Callable[[float], bool], inside: float, outside: float) -> float:
    """Where possible values end, between a possible one and a bound, to 1e-7 of the way, on the outer side."""
    if is_possible(outside):
        return outside
    for _ in range(40):
        middle = (inside + outside) / 2
        if is_possible(middle):
            inside = middle
        else:
            outside = middle
    return outside


class MedianSequence:
    """A confidence sequence for a median, in constant memory: counts in cells `width` wide.

    A value is excluded once the number of data below it (or above) is too far from one half, by the two-sided mixture
    that `rate_interval` uses (Howard and Ramdas, "Sequential estimation of quantiles with applications to
    A/B testing and best-arm identification", 2022, section 3). Ends are rounded outward to cell edges.
    """

    def __init__(self, width: float, most: float) -> None:
        """Cells from -`most` to `most`; what lies beyond is in the outermost."""
        self.width, self.cells = width, round(most / width)
        self.counts = [0] * (2 * self.cells + 1)
        self.count = 0

    def add(self, value: float) -> None:
        """One value; must be finite."""
        cell = math.floor(value / self.width + 0.5)
        cells = self.cells
        self.counts[cells + (cells if cell > cells else -cells if cell < -cells else cell)] += 1
        self.count += 1

    def estimate(self) -> float | None:
        """The middle of the median's cell; None without data."""
        below = 0
        for cell, here in enumerate(self.counts):
            below += here
            if 2 * below >= self.count > 0:
                return (cell - self.cells) * self.width
        return None

    def interval(self, alpha: float) -> tuple[float, float]:
        """The medians that are possible: a confidence sequence of level 1 - alpha; unbounded where none is known."""
        count = self.count
        height = -count * math.log(2.0) - math.log(alpha)  # the likelihood of 1/2, 1/alpha times
        low, high, below = -math.inf, math.inf, 0
        for cell, here in enumerate(self.counts):
            after = below + here
            # The edge under this cell: at most `below` data lie under it, if it is excluded as too low.
            if 2 * after < count and _log_mixture(after, count) >= height:
                low = (cell - self.cells + 0.5) * self.width
            if 2 * below > count and high == math.inf and _log_mixture(below, count) >= height:
                high = (cell - self.cells - 0.5) * self.width
            below = after
        return low, high

    def state(self) -> dict[str, Any]:
        """What changes with the records; only cells that have data."""
        return {"count": self.count, "cells": {str(cell): here for cell, here in enumerate(self.counts) if here}}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from what `state` gave."""
        self.count = state["count"]
        self.counts = [0] * len(self.counts)
        for cell, here in state["cells"].items():
            self.counts[int(cell)] = here
