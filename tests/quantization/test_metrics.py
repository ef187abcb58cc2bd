"""Errors of outputs, and budgets as they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aot.errors import OptionError
from aot.metrics import LARGEST_ERROR, Budget, Difference, loss, own_metric, parse_budget

NAN, INF = float("nan"), float("inf")


def error(metric: str, *pairs: Any) -> float:
    """Of outputs y of several runs: (found, expected)."""
    found = Difference()
    for got, expected in pairs:
        found.add({"y": np.asarray(got)}, {"y": np.asarray(expected)})
    return found.error(metric)


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("relative=0.05", Budget("relative", 0.05)),
        ("relative=5%", Budget("relative", 0.05)),
        ("relative=0", Budget("relative", 0.0)),
        ("cosine=0.75", Budget("cosine", 0.25)),
        ("top1=1", Budget("top1", 0.0)),
        ("top1=75%", Budget("top1", 0.25)),
        ("module.of:score=0.005", Budget("module.of:score", 0.005)),
    ],
)
def test_budgets(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget and budget.is_own == (":" in text)


@pytest.mark.parametrize(
    "text",
    ["", "relative", "relative=", "=0.1", "relative=-1", "relative=nan", "relative=inf", "relative=1e300", "speed=1",
     "cosine=2", "top1=1.5", "0.1", "relative=0.1=", "module:f", "relative:0.1"],
)  # fmt: skip
def test_budgets_that_make_no_sense(text: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_budget(text)
    assert "relative=0.05" in raised.value.hint


@pytest.mark.parametrize("metric", ["relative", "cosine", "top1"])
@pytest.mark.parametrize(
    "array",
    [
        np.array([[1.0, 2.0], [3.0, -4.0]], np.float32),
        np.array([[NAN, 2.0], [INF, -INF]], np.float32),
        np.zeros((2, 2), np.float32),
        np.array([[1e38, -1e38]], np.float32),
        np.array([[1, 2]], np.int64),
        np.array([[True, False]]),
        np.array([[1, 2]], ml_dtypes.bfloat16),
        np.array([[1 + 2j, 3]]),
        np.zeros((0, 3), np.float32),
    ],
    ids=repr,
)
def test_equal_outputs_have_no_error(metric: str, array: Any) -> None:
    other = np.array([[1.0, 0.0]], np.float32)
    assert error(metric, (array, array), *([(other, other)] if array.dtype == np.float32 else [])) == 0


def test_errors() -> None:
    one = np.array([[3.0, 4.0]], np.float32)
    assert error("relative", (one * 1.1, one)) == pytest.approx(0.1, rel=1e-5)
    assert error("relative", (one * 1.1, one), (one, one)) == pytest.approx(0.1 / 2**0.5, rel=1e-5)
    assert error("cosine", (one * 1.1, one)) == pytest.approx(0, abs=1e-7)
    assert error("cosine", (-one, one)) == pytest.approx(2)
    assert error("top1", (one[:, ::-1], one), (one, one)) == 0.5
    assert error("relative", (np.array([1.0]), np.array([0.0]))) == LARGEST_ERROR


@pytest.mark.parametrize("metric", ["relative", "cosine", "top1"])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_result_that_is_not_finite_is_the_largest_error(metric: str, bad: float) -> None:
    """Also where it is not the answer: budgets must not hold for outputs that broke."""
    expected = np.array([[1.0, 2.0], [5.0, 4.0]], np.float32)
    found = np.array([[bad, 2.0], [5.0, 4.0]], np.float32)
    assert error(metric, (found, expected)) == (0.5 if metric == "top1" else LARGEST_ERROR)


@pytest.mark.parametrize("metric", ["relative", "cosine", "top1"])
def test_numbers_beyond_f64_are_no_nan(metric: str) -> None:
    large = np.array([[1e300, -1e300]])
    assert 0 <= error(metric, (large, large / 2)) <= LARGEST_ERROR


@pytest.mark.parametrize("metric", ["relative", "cosine", "top1"])
def test_whole_numbers_count_by_the_share_that_differs(metric: str) -> None:
    """Labels of a classifier: an output without floats has an error too, or no budget would bind."""
    assert error(metric, (np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5]))) == 0.25
    assert error(metric, (np.array([True, False]), np.array([False, True]))) == 1
    assert error(metric, (np.array([1, 2]), np.array([1, 2, 3]))) == 1
    both = Difference()
    both.add({"a": np.ones(2, "f4"), "b": np.array([1, 1])}, {"a": np.ones(2, "f4"), "b": np.array([1, 2])})
    assert both.error(metric) == 0.5


@pytest.mark.parametrize("metric", ["relative", "cosine", "top1"])
def test_outputs_of_other_sizes(metric: str) -> None:
    assert error(metric, (np.ones((1, 3), "f4"), np.ones((2, 3), "f4"))) >= 1


def test_top1_needs_answers() -> None:
    with pytest.raises(OptionError, match="no output has several numbers"):
        error("top1", (np.ones((3, 1), "f4"), np.ones((3, 1), "f4")))


METRICS = """
def good(predictions, samples):
    assert set(predictions[0]) == {"y"} and len(predictions) == len(samples)
    return float(predictions[0]["y"].mean())
def raises(predictions, samples):
    return predictions[0]["nothing"]
def nan(predictions, samples):
    return float("nan")
def text(predictions, samples):
    return "much"
def none(predictions, samples):
    return None
number = 3
"""


def test_metrics_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_metrics.py").write_text(METRICS)
    (tmp_path / "users_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    given = [{"y": np.full(3, 2.0)}], [{"x": np.zeros(1)}]
    assert own_metric("users_metrics:good")(*given) == 2.0
    for name, message in (
        ("raises", "the metric failed: KeyError"), ("nan", "gave nan"), ("text", "ValueError"), ("none", "TypeError"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=message) as raised:
            own_metric(f"users_metrics:{name}")(*given)
        assert raised.value.where == f"users_metrics:{name}"
    for name in (
        "users_metrics:number",
        "users_metrics:absent",
        "users_broken:f",
        "no_such_module:f",
        "users_metrics:",
    ):
        with pytest.raises(OptionError):
            own_metric(name)


def test_losses() -> None:
    assert loss(0.9, 1.0) == pytest.approx(0.1) and loss(1.1, 1.0) == 0
    assert loss(-1.1, -1.0) == pytest.approx(0.1) and loss(0.0, 0.0) == 0
