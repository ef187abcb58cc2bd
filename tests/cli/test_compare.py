"""The comparison with a reference: tolerance, exactness, NaN, infinities, shapes, types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.cli.reference import compare

NAN, INF = float("nan"), float("inf")


def floats(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


@pytest.mark.parametrize(
    ("found", "expected", "wrong"),
    [
        (floats(1, 2), floats(1, 2), 0),
        (floats(1.0005), floats(1), 0),
        (floats(1.002), floats(1), 1),
        (floats(0.00005), floats(0), 0),
        (floats(0.0002), floats(0), 1),
        (floats(NAN, 1), floats(NAN, 1), 0),
        (floats(NAN, 1), floats(0, 1), 1),
        (floats(0, 1), floats(NAN, 1), 1),
        (floats(INF, -INF), floats(INF, -INF), 0),
        (floats(INF), floats(-INF), 1),
        (floats(1e30), floats(INF), 1),
        (floats(INF), floats(1e30), 1),
        (np.array([1, 2]), np.array([1, 2]), 0),
        (np.array([1, 2]), np.array([1, 3]), 1),
        (np.array([2**53 + 1]), np.array([2**53]), 1),
        (np.array([True, False]), np.array([True, True]), 1),
        (np.array([255], np.uint8), np.array([254], np.uint8), 1),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), 0),
        (np.float32(1), np.float32(1), 0),
    ],
)
def test_compare(found: Any, expected: Any, wrong: int) -> None:
    result = compare("y", found, expected, 1e-3, 1e-4)
    assert (result.wrong, result.passed, result.reason) == (wrong, wrong == 0, "")
    assert (
        np.allclose(found, expected, rtol=1e-3, atol=1e-4, equal_nan=True) == (wrong == 0) or found.dtype.kind in "iu"
    )


def test_figures() -> None:
    result = compare("y", floats(1.5, 100, 0.0002), floats(1, 101, 0), 1e-3, 1e-4)
    assert result.max_error == 1.0
    assert result.relative_error == 0.5
    assert result.worst == pytest.approx(0.5 / 1.1e-3)
    assert (result.wrong, result.elements) == (3, 3)


def test_what_cannot_be_compared() -> None:
    assert "no such output" in compare("y", None, floats(1), 1, 1).reason
    assert compare("y", floats(1, 2), floats(1), 1, 1).reason == "float32[2], expected float32[1]"
    assert not compare("y", floats(1), np.ones(1), 1, 1).passed
