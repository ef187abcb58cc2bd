"""Exact binomial intervals, for rates that were counted in simulation."""

from __future__ import annotations

import math


def at_most(count: int, trials: int, rate: float) -> float:
    """P(X <= count) of a binomial variable X."""
    if rate <= 0:
        return 1.0
    if rate >= 1:
        return float(count >= trials)
    log_rate, log_rest = math.log(rate), math.log1p(-rate)
    top = math.lgamma(trials + 1)
    return min(
        math.fsum(
            math.exp(top - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * log_rate + (trials - k) * log_rest)
            for k in range(count + 1)
        ),
        1.0,
    )


def clopper_pearson(count: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a rate of which `count` of `trials` were seen (Clopper and Pearson 1934)."""
    if not 0 <= count <= trials or trials < 1:
        raise ValueError(f"{count} of {trials} is no count")
    tail = (1 - confidence) / 2

    def solve(above: int, wanted: float) -> float:
        """The rate at which P(X <= above) equals `wanted`; it falls as the rate grows."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if at_most(above, trials, middle) > wanted else (low, middle)
        return (low + high) / 2

    lower = 0.0 if count == 0 else solve(count - 1, 1 - tail)
    upper = 1.0 if count == trials else solve(count, tail)
    return lower, upper
