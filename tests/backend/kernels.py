"""Kernels with roots, written by hand: the matmuls, convolutions and attentions that tests and benchmarks run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from aot import expr
from aot.dims import Dim, floordiv
from aot.dtypes import BF16, F16, F32, I64, DType
from aot.expr import Expr
from aot.ir import ROW_MAJOR, Layout, TensorType
from aot.kernel import AttendRoot, Axis, ContractRoot, Kernel, KernelOperand, Store, WindowRoot
from aot.ops.opdef import Kind

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
    zero_empty: bool = False,
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
    root = AttendRoot(0, 1, 2, 4, 1 / math.sqrt(d), value, causal, accumulate, zero_empty)
    out = KernelOperand(TensorType(dtype, (b, h, s, width), layout))
    store = Store(0, tuple(index(i) for i in range(4)), expr.root(0, dtype))
    return Kernel("test", Kind.ATTEND, axes, 4, tuple(inputs), (out,), (store,), root, ())


def matmul_kernel(
    batch: tuple[Dim, ...],
    m: Dim,
    k: Dim,
    n: Dim,
    *,
    dtype: DType = F32,
    constant: bool = True,
    a_layout: Layout = ROW_MAJOR,
    b_layout: Layout = ROW_MAJOR,
    out_layout: Layout = ROW_MAJOR,
    b_batch: tuple[Dim, ...] = (),
    transposed: bool = False,
    epilogue: str = "",
    prologue: str = "",
) -> Kernel:
    rank = len(batch)
    axes = [Axis(e, f"i{i}") for i, e in enumerate((*batch, m, n, k))]
    am, an, ak = rank, rank + 1, rank + 2

    def index(axis: int) -> Expr:
        return expr.const(0, I64) if axes[axis].extent == 1 else expr.axis(axis)

    lead = [index(i) for i in range(rank)]
    a_type = TensorType(dtype, (*batch, m, k), a_layout)
    b_type = TensorType(dtype, (*b_batch, n, k) if transposed else (*b_batch, k, n), b_layout)
    b_lead = [expr.const(0, I64) if e == 1 else lead[rank - len(b_batch) + i] for i, e in enumerate(b_batch)]
    a = expr.load(0, dtype, [*lead, index(am), index(ak)])
    b = expr.load(1, dtype, [*b_lead, *([index(an), index(ak)] if transposed else [index(ak), index(an)])])
    if prologue == "scale":
        a = expr.call("exp", a * 0.5)
    inputs = [KernelOperand(a_type), KernelOperand(b_type, constant)]
    value = expr.root(0, dtype)
    if epilogue:
        inputs.append(KernelOperand(TensorType(dtype, (n,)), True))
        value = value + expr.load(2, dtype, [index(an)])
    if epilogue == "residual":
        inputs.append(KernelOperand(TensorType(dtype, (*batch, m, n))))
        value = expr.call("max", value + expr.load(3, dtype, [*lead, index(am), index(an)]), 0.0)
    if epilogue == "tanh":
        value = expr.call("tanh", value)
    out = KernelOperand(TensorType(dtype, (*batch, m, n), out_layout))
    store = Store(0, (*lead, index(am), index(an)), value)
    accumulate = F32 if dtype in (F16, BF16) else dtype
    root = ContractRoot(tuple(range(rank)), am, an, ak, a, b, accumulate)
    return Kernel("test", Kind.CONTRACT, tuple(axes), rank + 2, tuple(inputs), (out,), (store,), root, ())


def conv_kernel(
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
    dtype: DType = F32,
    constant: bool = True,
    channels_last: bool = True,
    out_halo: int = 0,
    out_channels: int = 0,
    epilogue: str = "",
) -> Kernel:
    """`out_channels`: the output is written into a buffer of so many channels."""
    rank = len(spatial)
    strides = strides or (1,) * rank
    dilations = dilations or (1,) * rank
    pads = pads or ((0, 0),) * rank
    out = tuple(
        floordiv(e + lo + hi - (k - 1) * d - 1, s) + 1
        for e, (lo, hi), k, d, s in zip(spatial, pads, window, dilations, strides, strict=True)
    )
    last = (0, *range(2, rank + 2), 1)
    layout = Layout(order=last if channels_last else (), halo=((0, 0), (0, 0), *pads))
    x = TensorType(dtype, (n, c, *spatial), layout)
    w = TensorType(dtype, (o, c // groups, *window))
    out_layout = Layout(order=last, halo=((0, 0), (0, 0), *((out_halo, out_halo),) * rank) if out_halo else ())
    out_type = TensorType(dtype, (n, o, *out), out_layout)
    if out_channels:
        wide = TensorType(dtype, (n, out_channels, *out), Layout(order=last))
        out_type = out_type.with_layout(Layout(order=last, strides=wide.strides))
    axes = tuple(Axis(e, f"i{i}") for i, e in enumerate((n, o, *out)))

    def index(axis: int) -> Expr:
        return expr.const(0, I64) if axes[axis].extent == 1 else expr.axis(axis)

    indices = tuple(index(i) for i in range(rank + 2))
    inputs = [KernelOperand(x), KernelOperand(w, constant)]
    value = expr.root(0, dtype)
    if epilogue:
        inputs.append(KernelOperand(TensorType(dtype, (o,)), True))
        value = value + expr.load(2, dtype, [indices[1]])
    if epilogue == "residual":
        inputs.append(KernelOperand(TensorType(dtype, (n, o, *out), Layout(order=last))))
        value = expr.call("max", value + expr.load(3, dtype, indices), 0.0)
    root = WindowRoot(0, 1, strides, dilations, pads, groups, F32 if dtype in (F16, BF16) else dtype)
    return Kernel(
        "test",
        Kind.WINDOW,
        axes,
        rank + 2,
        tuple(inputs),
        (KernelOperand(out_type),),
        (Store(0, indices, value),),
        root,
        (),
    )


def transposed_b(kernel: Kernel) -> bool:
    """Whether a product reads its right operand [N, K]."""
    root = kernel.root
    assert isinstance(root, ContractRoot)
    index = root.b.args[-1]
    if index.op == "axis":
        return bool(index.payload == root.k)
    return bool(root.b.args[-2].op == "axis" and root.b.args[-2].payload == root.n)


def f32_result(kernel: Kernel) -> Kernel:
    """A kernel that stores its sums as they are, without an epilogue."""
    (out,) = kernel.outputs
    (store,) = kernel.stores
    held = KernelOperand(out.type.with_dtype(F32))
    return replace(kernel, outputs=(held,), stores=(replace(store, value=expr.root(0, F32)),))


OTHER_LAYOUTS: tuple[dict[str, Any], ...] = (
    {"b_layout": Layout(order=(1, 0)), "constant": False}, {"b_layout": Layout(strides=(120, 3)), "constant": False},
    {"a_layout": Layout(strides=(23, 1))},
)  # fmt: skip
"""Operands of a product of 11 x 21 x 37 that do not lie row by row."""


def conv_attrs(root: WindowRoot) -> dict[str, Any]:
    """The attributes of the convolution that a root is, but for what is outside of the image."""
    before, after = zip(*root.pads, strict=True)
    return {
        "strides": root.strides, "dilations": root.dilations, "pads": (*before, *after), "groups": root.groups,
    }  # fmt: skip
