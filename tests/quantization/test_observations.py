"""Observations: they add up in any order, and ranges that follow from them are what they are called."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.evaluate import evaluate_op
from aot.observations import OBSERVERS, Observation
from aot.ops import OPS

SETTINGS = settings(max_examples=25, deadline=None)


def observe(array: Any, axis: int = -1) -> Observation:
    return Observation.of_run(*evaluate_op(OPS["observe"], {"axis": axis}, [np.asarray(array, np.float32)]))


def same(one: Observation, other: Observation) -> bool:
    left, right = one.to_arrays(), other.to_arrays()
    return all(left[name].dtype == right[name].dtype and np.array_equal(left[name], right[name]) for name in left)


floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
tame = st.floats(-1000, 1000, width=32)


@st.composite
def rows(draw: Any, elements: Any = floats, most: int = 12) -> Any:
    count = draw(st.integers(0, most))
    return np.array(draw(st.lists(elements, min_size=3 * count, max_size=3 * count)), np.float32).reshape(count, 3)


@SETTINGS
@given(st.lists(rows(), min_size=3, max_size=3))
def test_they_add_up_in_any_order(parts: Any) -> None:
    seen = [observe(part) for part in parts]
    whole = observe(np.concatenate(parts))
    sums = [seen[a] + seen[b] + seen[c] for a, b, c in permutations(range(3))]
    sums.append(seen[0] + (seen[1] + seen[2]))
    assert all(same(sums[0], other) for other in sums[1:])
    assert np.array_equal(sums[0].counts, whole.counts) and sums[0].rows == whole.rows
    assert np.array_equal(sums[0].low, whole.low) and np.array_equal(sums[0].high, whole.high)


@SETTINGS
@given(rows(), st.sampled_from(OBSERVERS), st.floats(51, 100), st.sampled_from([15, 254, 255]))
def test_ranges_hold_zero_and_stay_within_what_was_seen(
    array: Any, observer: str, percentile: float, levels: int
) -> None:
    seen = observe(array)
    low, high = seen.range(observer, percentile, levels)
    finite = array[np.isfinite(array)]
    least, greatest = min(finite.min(initial=0), 0), max(finite.max(initial=0), 0)
    assert least <= low <= 0 <= high <= greatest
    if observer == "minmax":
        assert (low, high) == (least, greatest)


@SETTINGS
@given(rows(tame))
def test_moments(array: Any) -> None:
    seen = observe(array)
    if len(array):
        np.testing.assert_allclose(seen.means, array.astype("f8").mean(axis=0), rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(seen.squares, np.square(array.astype("f8")).mean(axis=0), rtol=1e-9, atol=1e-11)
    back = Observation.from_arrays(seen.to_arrays())
    assert same(seen, back)


def test_numbers_that_are_not_finite_are_counted_and_left_out() -> None:
    seen = observe([[1, np.nan], [-np.inf, 4], [3, np.inf]])
    assert (seen.not_finite, seen.least, seen.greatest, seen.elements) == (3, 1, 4, 6)
    nothing = observe([[np.nan, np.inf]])
    assert all(nothing.range(observer) == (0, 0) for observer in OBSERVERS) and nothing.not_finite == 2


@pytest.mark.parametrize("value", [1e6, 1e12, 3e19, 1e38])
def test_sums_of_huge_numbers_do_not_overflow(value: float) -> None:
    """Shards of huge activations: squares stop at their bound, and never become negative or small."""
    total = observe([[value, -value, 1.0]])
    for _ in range(20):
        total = total + observe([[value, -value, 1.0]])
    assert (total.squares[:2] >= min(value**2 * 0.99, 1e17)).all() and total.squares[2] == 1
    assert total.means[0] > 0 > total.means[1] and total.means[2] == 1
    assert total.means[0] <= value * 1.01


def test_the_percentile_leaves_outliers_out() -> None:
    random = np.random.default_rng(0)
    array = np.concatenate([random.standard_normal(100_000), [1000.0, -500.0]]).reshape(-1, 1)
    low, high = observe(array).range("percentile", 99.9)
    for found, quantile in ((low, 0.001), (high, 0.999)):
        assert found == pytest.approx(np.quantile(array, quantile), rel=1 / 16)
    assert observe(array).range("percentile", 100.0) == (-500, 1000)


@pytest.mark.parametrize("tail", [20.0, 200.0])
def test_least_error_is_near_the_best_clip(tail: float) -> None:
    """Against a search over the numbers themselves."""
    random = np.random.default_rng(1)
    array = np.concatenate([random.standard_normal(20_000), [tail]]).astype(np.float32).reshape(-1, 1)

    def error(low: float, high: float) -> float:
        step = (high - low) / 255
        rounded = np.clip(np.rint((array - low) / step), 0, 255) * step + low
        return float(np.square(rounded - array).mean())

    seen = observe(array)
    low, high = seen.range("mse")
    best = min(error(float(array.min()), clip) for clip in np.geomspace(2, tail, 60))
    assert error(low, high) <= 1.1 * best
    assert seen.error(low, high) == pytest.approx(error(low, high), rel=0.15)
    assert seen.range("entropy")[1] < tail / 2


@SETTINGS
@given(rows(tame), st.booleans())
def test_rounding_is_off_by_half_a_step(array: Any, symmetric: bool) -> None:
    """quantize and dequantize with the range of minmax: within half a step, and zero stays zero."""
    from aot.dtypes import U8
    from aot.quantization import Method
    from aot.quantizer import parameters

    low, high = observe(array).range("minmax")
    if symmetric:
        low, high = -max(-low, high), max(-low, high)
    scale, zero = parameters(low, high, Method(symmetric=symmetric))
    given = np.concatenate([array.reshape(-1), np.zeros(1, np.float32)])
    scales = np.asarray(scale, np.float32), np.asarray(zero, np.uint8)
    (numbers,) = evaluate_op(OPS["quantize"], {"to": U8}, [given, *scales])
    (back,) = evaluate_op(OPS["dequantize"], {}, [numbers, *scales])
    # The zero point is rounded, so that one end may lie half a step beyond the last number.
    assert (np.abs(back - given) <= scale * 1.01 + 1e-30).all() and back[-1] == 0
    inside = (given > low + scale) & (given < high - scale)
    assert (np.abs(back - given)[inside] <= scale * 0.501).all()


def test_saturation_of_what_was_seen() -> None:
    seen = observe(np.linspace(-1, 3, 4001).reshape(-1, 1))
    assert seen.saturated(-1, 3) == 0
    assert seen.saturated(0, 3) == pytest.approx(0.25, abs=0.02)
    assert seen.saturated(-1, 1) == pytest.approx(0.5, abs=0.03)


def test_channels_of_one_value() -> None:
    assert observe([[1, 2, 3], [1, 5, 3]]).constant_channels() == 2
    assert observe([[1, 1], [1, 1]]).is_constant and not observe([[1, 2]]).is_constant


@pytest.mark.parametrize(
    "change",
    [
        {"counts": np.array([-1])},
        {"low": np.zeros(4, np.float32)},
        {"rows": np.array("x")},
        {"bins": np.array([70000])},
        {"bins": np.array([1.5])},
        {"whole": np.array(["a", "b", "c"])},
        {"bins": None},
    ],
)
def test_arrays_of_something_else_are_refused(change: Any) -> None:
    arrays = observe(np.ones((2, 3))).to_arrays() | change
    with pytest.raises((KeyError, ValueError, IndexError, TypeError)):
        Observation.from_arrays({name: array for name, array in arrays.items() if array is not None})


def test_channels_that_differ_do_not_add_up() -> None:
    from aot.errors import CompilerError

    with pytest.raises(CompilerError, match="2 and of 3 channels"):
        observe(np.ones((1, 2))) + observe(np.ones((1, 3)))
