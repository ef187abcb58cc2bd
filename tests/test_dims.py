"""Dimensions: normal forms, bounds, text, and agreement with plain integers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot import dims as d
from aot.dims import Dim, Symbol

N, H, B = Symbol("N"), Symbol("H", 1, 64, 4), Symbol("B", 1, 2)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> Dim:
    if depth == 0 or draw(st.booleans()):
        leaf: Dim = draw(st.sampled_from([N.dim, H.dim, B.dim, *range(-3, 9)]))
        return leaf
    left, right = draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1))
    positive = draw(st.integers(1, 7))
    found: Dim = draw(
        st.sampled_from([
            left + right, left - right, left * right, d.floordiv(left, positive), d.mod(left, positive),
            d.minimum(left, right), d.maximum(left, right),
        ])
    )  # fmt: skip
    return found


@given(expressions(), st.integers(1, 50), st.integers(1, 16), st.integers(1, 2))
def test_bounds_hold_and_text_reads_back(dim: Dim, n: int, h: int, b: int) -> None:
    values = {"N": n, "H": 4 * h, "B": b}
    value = d.evaluate(dim, values)
    low, high = d.bounds(dim)
    assert low <= value <= high
    assert d.parse_dim(str(dim), {"N": N, "H": H, "B": B}) == dim == dim + 0
    divisor = d.divisor_of(dim)
    assert value % divisor == 0 if divisor else value == 0


@given(expressions(2), expressions(2), st.integers(1, 50), st.integers(1, 16), st.integers(1, 2))
def test_arithmetic_agrees_with_integers(left: Dim, right: Dim, n: int, h: int, b: int) -> None:
    values = {"N": n, "H": 4 * h, "B": b}
    a, b = d.evaluate(left, values), d.evaluate(right, values)
    assert d.evaluate(left + right, values) == a + b
    assert d.evaluate(left - right, values) == a - b
    assert d.evaluate(left * right, values) == a * b
    exact = d.exact_div(left, right)
    if exact is not None:
        assert d.evaluate(exact, values) * b == a


def test_equal_expressions_print_equal() -> None:
    n, h = N.dim, H.dim
    assert (n + 1) * h == h + h * n
    assert (n - 1) // 2 + 1 == (n + 1) // 2
    assert (n * h * 384) // (n * h) == 384
    assert (2 * n + 3) % 2 == 1
    assert d.maximum(n, 1) == n
    assert d.minimum(n, n + 3) == n
    assert h % 4 == 0
    assert n + (-n) % 4 == n + (4 - n % 4) % 4 == 4 * ((n + 3) // 4)
    assert n % 3 + 3 * (n // 3) == n
    assert (-n) // 4 == -((n + 3) // 4)
    assert (7 * n + n % 8) % 8 == 0
    assert (5 * n) % 4 == n % 4
    assert d.bounds(n) == (1, math.inf)


def test_bounds_know_what_calls_are_at_least_and_at_most() -> None:
    n, m = N.dim, Symbol("M").dim
    assert d.bounds(n - n // 2) == (1, math.inf)
    assert d.bounds((n + 1) // 2 - n // 2) == (0, 1)
    assert d.bounds(n - d.minimum(n, m)) == d.bounds(d.maximum(n, m) - m) == (0, math.inf)
    assert d.bounds(n - n % m) == (0, math.inf)
    assert d.minimum(n, d.minimum(n, m) + n // 2, n + n // 3) == d.minimum(n, n // 2 + d.minimum(n, m))


@pytest.mark.parametrize("text", ["N +", "Q", "(N", "N $ 2", "min(N"])
def test_unreadable_text_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="dimension"):
        d.parse_dim(text, {"N": N})


def test_division_by_zero_is_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        d.floordiv(N.dim, 0)
