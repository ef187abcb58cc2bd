"""8-bit floats on the CPU: every code, and rounding of every kind of f32, as ml_dtypes has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.backend.cpu.isa import Isa
from aot.dtypes import F8E4M3, F8E5M2, F32, DType
from tests.backend.harness import ISAS, run_threads
from tests.backend.test_loops import BACKEND, graph_of, kernel_of

Array = np.ndarray[Any, np.dtype[Any]]


def cast(isa: Isa, numbers: Array, dtype: DType) -> Array:
    kernel = kernel_of(graph_of(lambda b, x: b.cast(x, to=dtype), numbers))
    (found,) = run_threads(kernel, BACKEND.emit(kernel, isa.target), isa, [numbers])
    return found


@pytest.mark.parametrize("dtype", (F8E4M3, F8E5M2), ids=str)
@pytest.mark.parametrize("isa", ISAS)
def test_every_code_is_widened(dtype: DType, isa: Isa) -> None:
    codes = np.arange(256, dtype=np.uint8).view(dtype.numpy)
    found = cast(isa, codes, F32)
    np.testing.assert_array_equal(found, codes.astype(np.float32))


@pytest.mark.parametrize("dtype", (F8E4M3, F8E5M2), ids=str)
@pytest.mark.parametrize("isa", ISAS)
def test_every_kind_of_number_is_rounded(dtype: DType, isa: Isa) -> None:
    codes = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32)
    finite = np.unique(codes[np.isfinite(codes)])
    ties = (finite[1:] + finite[:-1]) / 2
    near = np.concatenate([np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))])
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 20_001, dtype=np.uint32).view(np.float32)
    edges = np.array([0.0, -0.0, 464, 465, 480, 61440, 61439, 65536, np.inf, -np.inf, np.nan, 1e-45], np.float32)
    numbers = np.concatenate([finite, ties, near, bits, edges]).astype(np.float32)
    found = cast(isa, numbers, dtype)
    with np.errstate(all="ignore"):
        expected = numbers.astype(dtype.numpy)
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))
    kept = ~np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(found.view(np.uint8)[kept], expected.view(np.uint8)[kept])
