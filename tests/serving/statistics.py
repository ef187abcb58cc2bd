"""What tests of random behaviour share."""

from __future__ import annotations

import math


def tail(events: int, count: int, rate: float) -> float:
    """P(at least `events` of `count`) at a rate: small where the rate is too small to explain them."""
    return sum(math.comb(count, k) * rate**k * (1 - rate) ** (count - k) for k in range(events, count + 1))


def agrees(events: int, count: int, rate: float) -> bool:
    """Whether the exact binomial test, at one in a thousand, allows a rate of at most `rate`."""
    return tail(events, count, rate) > 1e-3
