"""Attention kernels against numpy: odd sizes, grouped heads, masks, causal, long keys, threads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from aot import dims, expr
from aot.backend.cpu.attend import emit_attend
from aot.backend.cpu.isa import Isa
from aot.dims import Dim, Symbol
from aot.dtypes import BF16, F32, F64, I64, DType
from aot.ir import Layout, TensorType
from aot.kernel import AttendRoot, Axis, Kernel, KernelOperand, Store
from aot.ops.opdef import Kind
from tests.backend.harness import ISAS, run, run_threads

HEADS_INSIDE = Layout(order=(0, 2, 1, 3))  # [B, S, H, D] in memory


def attend_kernel(
    b: Dim,
    h: int,
    s: Dim,
    t: Dim,
    d: int,
    *,
    width: int = 0,
    key_heads: int = 0,
    mask: str = "",
    causal: bool = False,
    dtype: DType = F32,
    layout: Layout = HEADS_INSIDE,
) -> Kernel:
    width, key_heads = width or d, key_heads or h
    axes = tuple(Axis(e, name) for e, name in ((b, "b"), (h, "h"), (s, "s"), (width, "d"), (t, "t")))

    def index(axis: int) -> expr.Expr:
        return expr.const(0, I64) if axes[axis].extent == 1 else expr.axis(axis)

    inputs = [
        KernelOperand(TensorType(dtype, (b, h, s, d), layout)),
        KernelOperand(TensorType(dtype, (b, key_heads, t, d), layout)),
        KernelOperand(TensorType(dtype, (b, key_heads, t, width), layout)),
    ]
    accumulate = F32 if dtype == BF16 else dtype
    value = None
    if mask == "keys":  # [B, 1, 1, T] of 0 and 1, as BERT makes it
        inputs.append(KernelOperand(TensorType(accumulate, (b, 1, 1, t))))
        zero = expr.const(0, I64)
        value = (1.0 - expr.load(3, accumulate, [index(0), zero, zero, index(4)])) * -10000.0
    elif mask == "full":
        inputs.append(KernelOperand(TensorType(accumulate, (b, h, s, t))))
        value = expr.load(3, accumulate, [index(0), index(1), index(2), index(4)])
    root = AttendRoot(0, 1, 2, 4, 1 / math.sqrt(d), value, causal, accumulate)
    out = KernelOperand(TensorType(dtype, (b, h, s, width), layout))
    store = Store(0, tuple(index(i) for i in range(4)), expr.root(0, dtype))
    return Kernel("test", Kind.ATTEND, axes, 4, tuple(inputs), (out,), (store,), root, ())


def check(kernel: Kernel, isa: Isa, symbols: dict[str, int] | None = None, threads: bool = True) -> None:
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
    emitted = emit_attend(kernel, isa)
    (result,) = (run_threads if threads else run)(kernel, emitted, isa, arrays, symbols)
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
    tolerance = {"f32": 1e-5, "f64": 1e-13, "bf16": 2e-2}[kernel.inputs[0].type.dtype.name]
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1, 1), (2, 3, 5, 7, 9), (1, 2, 13, 13, 64), (2, 4, 37, 37, 32), (1, 1, 25, 70, 20)]
)
def test_sizes(isa: Isa, sizes: tuple[int, int, int, int, int]) -> None:
    check(attend_kernel(*sizes), isa)
    check(attend_kernel(*sizes, layout=Layout(), mask="full"), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_masks_and_heads(isa: Isa) -> None:
    check(attend_kernel(2, 4, 19, 19, 32, mask="keys"), isa)
    check(attend_kernel(2, 4, 19, 33, 16, key_heads=2, mask="full", causal=True), isa)
    check(attend_kernel(1, 6, 30, 30, 48, key_heads=1, causal=True, width=80), isa)
    check(attend_kernel(1, 2, 40, 40, 24, causal=True, width=10), isa)
    check(attend_kernel(1, 2, 9, 4, 16, causal=True), isa)  # the first rows see nothing: NaN


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [F64, BF16])
def test_other_types(isa: Isa, dtype: DType) -> None:
    check(attend_kernel(2, 2, 15, 21, 32, dtype=dtype), isa)
    check(attend_kernel(1, 2, 15, 21, 9, dtype=dtype, causal=True, mask="keys"), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_many_keys(isa: Isa) -> None:
    check(attend_kernel(1, 1, 3, 2500, 16, mask="full"), isa)
    check(attend_kernel(1, 2, 14, 2049, 16, causal=True), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("causal", [False, True])
def test_dynamic_sizes(isa: Isa, causal: bool) -> None:
    b, s, t = (Symbol(name).dim for name in "bst")
    kernel = attend_kernel(b, 2, s, t, 32, mask="keys", causal=causal)
    for sizes in ((1, 1, 1), (2, 5, 9), (1, 12, 64), (3, 31, 100), (1, 2, 2100)):
        check(kernel, isa, dict(zip("bst", sizes, strict=True)), threads=sizes[0] == 3)
