"""Attention for CUDA, under Triton's interpreter, against numpy: odd sizes, grouped heads, masks, causal bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot import dims
from aot.backend.cuda import CudaBackend
from aot.dims import Symbol
from aot.dtypes import BF16, F16, F32, DType
from aot.ir import Layout
from aot.kernel import AttendRoot, Kernel
from tests.backend.kernels import attend_kernel
from tests.cuda import interpreter

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")


def check(kernel: Kernel, symbols: dict[str, int] | None = None) -> None:
    random = np.random.default_rng(0)
    arrays: list[Any] = []
    root = kernel.root
    assert isinstance(root, AttendRoot)
    for number, operand in enumerate(kernel.inputs):
        shape = [dims.evaluate(e, symbols or {}) for e in operand.type.shape]
        values = random.standard_normal(shape)
        if number == 3 and root.mask is not None and root.mask.op != "load":
            values = (values > -0.5).astype(np.float64)
        arrays.append(values.astype(operand.type.dtype.numpy))
    kernel = replace(kernel, root=replace(root, accumulate=F32))
    (result,) = interpreter.run(kernel, BACKEND.emit(kernel, TARGET), arrays, symbols)
    q, k, v, *rest = (a.astype(np.float64) for a in arrays)
    k, v = (np.repeat(a, q.shape[1] // a.shape[1], axis=1) for a in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * root.scale
    if rest:
        scores = scores + (rest[0] if root.mask is not None and root.mask.op == "load" else (1 - rest[0]) * -10000.0)
    if root.causal:
        s, t = scores.shape[-2:]
        scores = np.where(np.arange(t) <= np.arange(s)[:, None] + t - s, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        expected = weights @ v / weights.sum(-1, keepdims=True)
    if root.zero_empty:
        expected = np.where(scores.max(-1, keepdims=True) == -np.inf, 0.0, expected)
    tolerance = {"f32": 1e-5, "bf16": 2e-2, "f16": 3e-3}[kernel.inputs[0].type.dtype.name]
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1, 1), (2, 3, 5, 7, 9), (1, 2, 13, 13, 64), (2, 4, 37, 37, 32), (1, 1, 25, 70, 20)]
)
def test_sizes(sizes: tuple[int, int, int, int, int]) -> None:
    check(attend_kernel(*sizes))
    check(attend_kernel(*sizes, layout=Layout(), mask="full"))


def test_masks_and_heads() -> None:
    check(attend_kernel(2, 4, 19, 19, 32, mask="keys"))
    check(attend_kernel(2, 4, 19, 33, 16, key_heads=2, mask="full", causal=True))
    check(attend_kernel(1, 6, 30, 30, 48, key_heads=1, causal=True, width=80))
    check(attend_kernel(1, 2, 40, 40, 24, causal=True, width=10))
    check(attend_kernel(1, 2, 9, 4, 16, causal=True))  # the first rows see nothing: NaN
    check(attend_kernel(1, 2, 9, 4, 16, causal=True, zero_empty=True))  # or 0
    check(attend_kernel(1, 8, 1, 150, 64, key_heads=2, mask="full"))  # a step of decoding
    check(attend_kernel(1, 1, 70, 70, 256))


def test_nothing_to_see() -> None:
    kernel = attend_kernel(2, 2, 3, 0, 16)
    (result,) = interpreter.run(
        kernel, BACKEND.emit(kernel, TARGET), [np.ones((2, 2, s, 16), np.float32) for s in (3, 0, 0)]
    )
    assert (result == 0).all()


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_half_precision(dtype: DType) -> None:
    check(attend_kernel(2, 2, 15, 21, 32, dtype=dtype))
    check(attend_kernel(1, 4, 40, 40, 64, key_heads=2, causal=True, dtype=dtype))


def test_dynamic_sizes() -> None:
    b, s, t = (Symbol(name).dim for name in "bst")
    kernel = attend_kernel(b, 4, s, t, 32, key_heads=2, causal=True, mask="full")
    for queries, keys in ((1, 9), (5, 70), (40, 40)):
        check(kernel, {"b": 2, "s": queries, "t": keys})
