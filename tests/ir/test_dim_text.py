"""Dimensions: what is printed reads back as the same expression, however it came about."""

from __future__ import annotations

import random

import pytest

from aot import dims as dimension
from aot.dims import Dim, Symbol, parse_dim

SYMBOLS = (Symbol("N", 0, 5, 8), Symbol("M", 1, None, 2), Symbol("K", 3))


def random_dim(chance: random.Random, depth: int) -> Dim:
    if depth == 0 or chance.random() < 0.2:
        return chance.randint(0, 9) if chance.random() < 0.5 else chance.choice(SYMBOLS).dim
    left, right, number = random_dim(chance, depth - 1), random_dim(chance, depth - 1), chance.randint(1, 4)
    return chance.choice(
        [
            left + right,
            left - right,
            left * right,
            dimension.floordiv(left, number),
            dimension.mod(left, number),
            dimension.maximum(left, right),
            dimension.minimum(left, right),
        ]
    )


@pytest.mark.parametrize("seed", range(8))
def test_round_trip(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(400):
        dim = random_dim(chance, 3)
        assert parse_dim(str(dim), {symbol.name: symbol for symbol in SYMBOLS}) == dim


def test_equal_extremes_keep_one() -> None:
    """N is a multiple of 8 in 0..5, so 0: each of the two is at least the other by its bounds."""
    zero = SYMBOLS[0].dim
    assert dimension.maximum(zero % 3, 0) == dimension.maximum(0, zero % 3)


def test_products_of_quotients_have_one_form() -> None:
    n, m = SYMBOLS[0].dim, SYMBOLS[1].dim
    first = 4 * n - (m // 2) * n
    again = 32 * (n // 8) - 4 * m * (n // 8)
    assert first == again and str(first) == str(again)
