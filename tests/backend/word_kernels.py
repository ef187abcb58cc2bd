"""Kernels of 8-bit products, written by hand: what tests and benchmarks run."""

from __future__ import annotations

import numpy as np

from aot import expr
from aot.dims import Dim, evaluate, floordiv
from aot.dtypes import F32, I8, I32, I64, U8, DType
from aot.expr import Expr
from aot.ir import ROW_MAJOR, Layout, TensorType
from aot.kernel import Axis, ContractRoot, Kernel, KernelOperand, Kind, Store, WindowRoot
from aot.ops import OPS


def quantized(number: Expr, zero: int) -> Expr:
    """`quantize` to u8 with a scale of 1."""
    body = OPS["quantize"].body
    assert body is not None
    return body({"to": U8}, number, expr.const(1.0, F32), expr.const(zero, U8))


def matmul_8bit_kernel(
    batch: tuple[Dim, ...],
    m: Dim,
    k: Dim,
    n: Dim,
    *,
    a: DType = U8,
    b: DType = I8,
    constant: bool = True,
    transposed: bool = False,
    a_layout: Layout = ROW_MAJOR,
    b_layout: Layout = ROW_MAJOR,
    b_batch: tuple[Dim, ...] = (),
    prologue: bool = False,
    epilogue: bool = False,
) -> Kernel:
    """The product as i32; with `epilogue`, scaled by column, rounded and bounded to u8."""
    rank = len(batch)
    axes = [Axis(e, f"i{i}") for i, e in enumerate((*batch, m, n, k))]
    am, an, ak = rank, rank + 1, rank + 2

    def index(axis: int) -> Expr:
        return expr.const(0, I64) if axes[axis].extent == 1 else expr.axis(axis)

    lead = [index(i) for i in range(rank)]
    b_lead = [expr.const(0, I64) if e == 1 else lead[rank - len(b_batch) + i] for i, e in enumerate(b_batch)]
    inputs = [
        KernelOperand(TensorType(a, (*batch, m, k), a_layout)),
        KernelOperand(TensorType(b, (*b_batch, n, k) if transposed else (*b_batch, k, n), b_layout), constant),
    ]
    left = expr.load(0, a, [*lead, index(am), index(ak)])
    right = expr.load(1, b, [*b_lead, *([index(an), index(ak)] if transposed else [index(ak), index(an)])])
    if prologue:
        left = expr.call("max", left, expr.const(3, a))
    value = expr.root(0, I32)
    if epilogue:
        inputs += [KernelOperand(TensorType(dtype, (n,)), True) for dtype in (I32, F32)]
        number = expr.cast(value - expr.load(2, I32, [index(an)]), F32) * expr.load(3, F32, [index(an)])
        value = quantized(number, 7)
    out = KernelOperand(TensorType(value.dtype, (*batch, m, n)))
    store = Store(0, (*lead, index(am), index(an)), value)
    root = ContractRoot(tuple(range(rank)), am, an, ak, left, right, I32)
    return Kernel("test", Kind.CONTRACT, tuple(axes), rank + 2, tuple(inputs), (out,), (store,), root, ())


def conv_8bit_kernel(
    n: Dim,
    c: int,
    spatial: tuple[Dim, ...],
    o: int,
    window: tuple[int, ...],
    *,
    strides: tuple[int, ...] = (),
    dilations: tuple[int, ...] = (),
    pads: tuple[tuple[int, int], ...] = (),
    groups: int = 1,
    fill: int = 0,
    x: DType = U8,
    w: DType = I8,
    constant: bool = True,
    channels_last: bool = True,
    halo: int = 0,
    out_halo: int = 0,
    epilogue: bool = False,
) -> Kernel:
    """The convolution as i32, or scaled by channel, rounded and bounded to u8. `halo`: beyond the pads."""
    rank = len(spatial)
    strides = strides or (1,) * rank
    dilations = dilations or (1,) * rank
    pads = pads or ((0, 0),) * rank
    out = tuple(
        floordiv(e + lo + hi - (k - 1) * d - 1, s) + 1
        for e, (lo, hi), k, d, s in zip(spatial, pads, window, dilations, strides, strict=True)
    )
    last = (0, *range(2, rank + 2), 1)
    around = tuple((lo + halo, hi + halo) for lo, hi in pads)
    held = fill if any(map(any, around)) else 0
    layout = Layout(order=last if channels_last else (), halo=((0, 0), (0, 0), *around), fill=held)
    axes = tuple(Axis(e, f"i{i}") for i, e in enumerate((n, o, *out)))
    indices = tuple(expr.const(0, I64) if a.extent == 1 else expr.axis(i) for i, a in enumerate(axes))
    inputs = [
        KernelOperand(TensorType(x, (n, c, *spatial), layout)),
        KernelOperand(TensorType(w, (o, c // groups, *window)), constant),
    ]
    value = expr.root(0, I32)
    if epilogue:
        inputs += [KernelOperand(TensorType(dtype, (o,)), True) for dtype in (I32, F32)]
        number = expr.cast(value - expr.load(2, I32, [indices[1]]), F32) * expr.load(3, F32, [indices[1]])
        value = quantized(number, 7)
    out_layout = Layout(order=last)
    if out_halo:
        out_layout = Layout(order=last, halo=((0, 0), (0, 0), *((out_halo, out_halo),) * rank), fill=9)
    outputs = (KernelOperand(TensorType(value.dtype, (n, o, *out), out_layout)),)
    root = WindowRoot(0, 1, strides, dilations, pads, groups, I32, fill=fill)
    store = Store(0, indices, value)
    return Kernel("test", Kind.WINDOW, axes, rank + 2, tuple(inputs), outputs, (store,), root, ())


def numbers(random: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    low = 0 if dtype == U8 else -128
    return random.integers(low, low + 256, shape).astype(dtype.numpy)


def operands(kernel: Kernel, symbols: dict[str, int] | None = None) -> list[np.ndarray]:
    """Random numbers for both operands of a product of 8 bits."""
    random = np.random.default_rng(0)
    shapes = [tuple(evaluate(extent, symbols or {}) for extent in operand.type.shape) for operand in kernel.inputs[:2]]
    return [numbers(random, shape, o.type.dtype) for shape, o in zip(shapes, kernel.inputs[:2], strict=True)]
