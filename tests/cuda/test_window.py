"""Convolutions for CUDA, under Triton's interpreter, against numpy: ranks, strides, dilations, groups, layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot import dims
from aot.backend.cuda import CudaBackend
from aot.dims import Symbol
from aot.dtypes import BF16, F16, DType
from aot.kernel import Kernel
from tests.backend.kernels import conv_kernel
from tests.backend.test_window import DENSE, P1, reference
from tests.cuda import interpreter

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")


def check(kernel: Kernel, symbols: dict[str, int] | None = None) -> None:
    random = np.random.default_rng(0)
    arrays = []
    for operand in kernel.inputs:
        shape = [dims.evaluate(e, symbols or {}) for e in operand.type.shape]
        arrays.append(random.standard_normal(shape).astype(operand.type.dtype.numpy))
    (result,) = interpreter.run(kernel, BACKEND.emit(kernel, TARGET), arrays, symbols)
    wide = [a.astype(np.float64) for a in arrays]
    expected = reference(kernel, wide[0], wide[1])
    scale = reference(kernel, np.abs(wide[0]), np.abs(wide[1]))
    if len(wide) > 2:
        expected += wide[2].reshape(1, -1, *(1,) * (expected.ndim - 2))
    if len(wide) > 3:
        expected = np.maximum(expected + wide[3], 0)
    epsilon = 2.0 ** {"f16": -11, "bf16": -8, "f32": -23, "f64": -52}[kernel.inputs[0].type.dtype.name]
    error = np.abs(result.astype(np.float64) - expected)
    steps = float(np.prod(wide[1].shape[1:]))
    assert (error <= (scale + 1) * epsilon * (2 + steps**0.5)).all(), f"worst {error.max()}"


@pytest.mark.parametrize("case", [*DENSE[:8], DENSE[9]])
def test_dense(case: dict[str, Any]) -> None:
    check(conv_kernel(**case, epilogue="residual"))


def test_channels_first_and_weights_that_are_computed() -> None:
    check(conv_kernel(**DENSE[1], channels_last=False))
    check(conv_kernel(2, 5, (6, 7), 20, (3, 2), pads=P1, constant=False, epilogue="residual"))


@pytest.mark.parametrize("channels", [(8, 12, 4), (6, 6, 2), (19, 19, 19), (4, 8, 4)])
def test_groups(channels: tuple[int, int, int]) -> None:
    c, o, groups = channels
    image = (7, 9) if c == 19 else (2, 4)  # a program of 4 elements; of one, where images are as small as they can be
    check(conv_kernel(2, c, image, o, (3, 3), pads=P1, groups=groups, epilogue="residual"))
    check(conv_kernel(1, c, (5, 8), o, (5, 5), pads=((2, 2), (2, 2)), strides=(2, 2), groups=groups))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_half_precision(dtype: DType) -> None:
    check(conv_kernel(1, 5, (6, 7), 20, (3, 3), pads=P1, dtype=dtype, epilogue="residual"))
    check(conv_kernel(1, 6, (3, 4), 12, (3, 3), pads=P1, dtype=dtype, groups=6))


@pytest.mark.parametrize("groups", [1, 12])
def test_dynamic_sizes(groups: int) -> None:
    n, h, w = (Symbol(name).dim for name in "nhw")
    kernel = conv_kernel(n, 12, (h, w), 12, (3, 3), pads=P1, strides=(2, 1), groups=groups, epilogue="residual")
    for sizes in ((1, 1, 1), (2, 5, 4)):
        check(kernel, dict(zip("nhw", sizes, strict=True)))
