"""Metrics between outputs of two versions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.errors import RunError
from aot.runtime.serving.compare import LARGEST, METRICS, Comparison, all_finite

OUTPUTS = [("y", "f32"), ("k", "i64")]
A = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)


def test_equal_is_zero() -> None:
    special = np.array([np.nan, np.inf, -np.inf, 1, 0], np.float32)
    for array in (A, special, np.zeros((0, 3)), np.float32(2), np.arange(4), np.array([True, False])):
        for name, metric in METRICS.items():
            assert metric(np.asarray(array), np.asarray(array)) == 0, name


def test_values() -> None:
    b = A + np.array([[0, 0.5], [0, 0]], np.float32)
    assert METRICS["max_abs"](A, b) == 0.5
    assert METRICS["relative"](A, b) == pytest.approx(0.1)
    assert METRICS["cosine"](A, -A) == pytest.approx(2)
    assert METRICS["cosine"](A, 2 * A) == pytest.approx(0, abs=1e-12)
    assert METRICS["top1"](A, b) == 0
    assert METRICS["top1"](A, A[:, ::-1]) == 1
    assert METRICS["relative"](np.zeros(3), np.ones(3)) == LARGEST
    assert METRICS["max_abs"](np.array([250], np.uint8), np.array([1], np.uint8)) == 249


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite_on_one_side(value: float) -> None:
    b = A.copy()
    b[0, 0] = value
    for first, second in ((A, b), (b, A)):
        assert [METRICS[name](first, second) for name in ("max_abs", "relative", "cosine")] == [LARGEST] * 3
    assert METRICS["max_abs"](np.array([np.inf]), np.array([-np.inf])) == LARGEST


def test_defaults_and_choices() -> None:
    def mean(stable: Any, candidate: Any) -> float:
        return float(np.abs(stable - candidate).mean())

    found = Comparison(OUTPUTS, {}).values({"y": A, "k": np.arange(3)}, {"y": A + 1, "k": np.arange(3) + 2})
    assert set(found["y"]) == {"max_abs", "relative", "cosine"} and found["k"] == {"max_abs": 2}
    found = Comparison(OUTPUTS, {"y": ("top1", mean), "k": {"mine": mean}}).values(
        {"y": A, "k": np.arange(3)}, {"y": A + 1, "k": np.arange(3)}
    )
    assert found == {"y": {"top1": 0, "mean": 1}, "k": {"mine": 0}}
    assert set(Comparison(OUTPUTS, {"y": "top1"}).values({"y": A, "k": A}, {"y": A, "k": A})["y"]) == {"top1"}


def test_other_shapes() -> None:
    found = Comparison([("y", "f32")], {"y": ("max_abs", "top1")}).values({"y": A}, {"y": A[:1]})
    assert found == {"y": {"max_abs": LARGEST, "top1": 1}}


def test_a_metric_that_raises_is_named() -> None:
    def broken(stable: Any, candidate: Any) -> float:
        raise KeyError("oh")

    comparison = Comparison(
        OUTPUTS, {"y": {"a": broken, "b": lambda s, c: np.nan, "c": lambda s, c: None, "d": METRICS["max_abs"]}}
    )
    for _ in range(3):
        assert comparison.values({"y": A, "k": A}, {"y": A, "k": A})["y"] == {"d": 0}
    assert comparison.errors == {"y/a": 3, "y/b": 3, "y/c": 3}
    assert comparison.first_errors["y/a"] == "KeyError: 'oh'"


def test_unknown() -> None:
    with pytest.raises(RunError, match="output that the model does not have"):
        Comparison(OUTPUTS, {"z": "top1"})
    with pytest.raises(RunError, match="no metric is called 'l7'"):
        Comparison(OUTPUTS, {"y": ("l7",)})


def test_finite() -> None:
    assert all_finite({"y": A, "k": np.arange(2), "b": np.array([True])})
    assert not all_finite({"y": np.array([1, np.nan], np.float16)})
