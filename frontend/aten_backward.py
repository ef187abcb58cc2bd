"""ATen converters of the core ops that give gradients: of convolutions, pools, norms and embeddings.

A program that was exported with its gradients calls them; half types are computed in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim
from aot.dtypes import DType
from aot.frontend import shaping
from aot.frontend.aten_pool import pool_table
from aot.frontend.aten_reduce import count_of, reduced
from aot.frontend.aten_types import filled, typed
from aot.frontend.torch_registry import Context, Result, aten_op, dtype_of
from aot.ir import Value
from aot.ops.helpers import wide_dtype

_I64 = dtypes.I64


def _wanted(c: Context, values: Sequence[Value | None]) -> list[Value | None]:
    """The gradients that the mask asks for, with the element types that torch gives them."""
    found: list[Value | None] = []
    for number, value in enumerate(values):
        fake = c.result(number)
        asked = bool(c["output_mask"][number]) and fake is not None and value is not None
        found.append(c.cast(value, dtype_of(fake.dtype, c.where)) if asked and value is not None else None)
    return found


# Convolutions


def _per_axis(c: Context, name: str, count: int) -> tuple[int, ...]:
    given = c.ints(name)
    return given * count if len(given) == 1 else given


def _turned(c: Context, x: Value, groups: int) -> Value:
    """[N, G * C, …] as [C, G * N, …]: the batch is what a gradient of weights sums over."""
    batch, channels, *space = x.type.shape
    each = dimension.floordiv(channels, groups)
    split = c.reshape(x, (batch, groups, each, *space))
    rank = split.type.rank
    return c.reshape(c.transpose(split, (2, 1, 0, *range(3, rank))), (each, groups * batch, *space))


def _weight_gradient(c: Context, x: Value, grad: Value, window: Sequence[Dim], groups: int) -> Value:
    """Sums over n and y of x[n, i, y * stride + k * dilation - pad] * grad[n, o, y], as [G * O, I, k…]."""
    count = len(window)
    strides, dilations, pads = (_per_axis(c, name, count) for name in ("stride", "dilation", "padding"))
    batch, outputs, *space = grad.type.shape
    each = dimension.floordiv(outputs, groups)
    filters = c.reshape(grad, (batch, groups, each, *space))
    filters = c.transpose(filters, (1, 2, 0, *range(3, 3 + count)))
    filters = c.reshape(filters, (outputs, batch, *space))
    found = c.op_(
        "conv", _turned(c, x, groups), filters, strides=dilations, dilations=strides, pads=(*pads, *pads),
        groups=groups,
    )  # fmt: skip
    for axis, extent in enumerate(window):  # what a stride left over
        found = c.slice_axis(found, 2 + axis, 0, extent)
    return c.transpose(found, (1, 0, *range(2, 2 + count)))


@aten_op("convolution_backward")
def _convolution_backward(c: Context) -> Result:
    dtype = wide_dtype(c.tensor("grad_output").type.dtype)
    grad, x, weight = (c.cast(c.tensor(name), dtype) for name in ("grad_output", "input", "weight"))
    count, groups, mask = weight.type.rank - 2, c.integer("groups"), c["output_mask"]
    strides, dilations, pads = (_per_axis(c, name, count) for name in ("stride", "dilation", "padding"))
    attrs: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": (*pads, *pads), "groups": groups}
    window = weight.type.shape[2:]
    into: Value | None = None
    if mask[0] and c.flag("transposed"):
        into = c.op_("conv", grad, weight, **attrs)
    elif mask[0]:
        extra: list[int] = []
        for axis in range(count):
            reach = (int(str(window[axis])) - 1) * dilations[axis] + 1
            made = (grad.type.shape[2 + axis] - 1) * strides[axis] + reach - 2 * pads[axis]
            left = x.type.shape[2 + axis] - made
            if not isinstance(left, int):
                c.unsupported("the gradient of a convolution with strides, of an open size")
            extra.append(left)
        into = c.op_("conv_transpose", grad, weight, output_padding=tuple(extra), **attrs)
    of_weight: Value | None = None
    if mask[1]:
        first, second = (grad, x) if c.flag("transposed") else (x, grad)
        of_weight = _weight_gradient(c, first, second, window, groups)
    of_bias = reduced(c, "sum", grad, (0, *range(2, 2 + count)), False) if mask[2] else None
    return _wanted(c, [into, of_weight, of_bias])


# Pools


@aten_op("max_pool2d_with_indices_backward")
def _max_pool_backward(c: Context) -> Result:
    """Each gradient to the element that won."""
    x, grad, places = c.tensor("self"), c.tensor("grad_output"), c.tensor("indices")
    lead, plane = x.type.shape[:-2], dimension.product(x.type.shape[-2:])
    count = dimension.product(grad.type.shape[-2:])
    dtype = wide_dtype(c.dtype)
    made = c.op_(
        "scatter_elements", filled(c, 0, dtype, (*lead, plane)), c.reshape(places, (*lead, count)),
        c.reshape(c.cast(grad, dtype), (*lead, count)), axis=len(lead), reduction="add",
    )  # fmt: skip
    return c.reshape(c.cast(made, c.dtype), x.type.shape)


@aten_op("avg_pool2d_backward")
def _avg_pool_backward(c: Context) -> Result:
    """Each gradient in equal parts to all elements of its window: one axis after the other."""
    x, given = c.tensor("self"), c.tensor("grad_output")
    dtype = wide_dtype(c.dtype)
    grad = c.cast(given, dtype)
    window = _per_axis(c, "kernel_size", 2)
    strides = _per_axis(c, "stride", 2) if c["stride"] else window
    pads = _per_axis(c, "padding", 2)
    include, divisor = c.flag("count_include_pad"), c.integer("divisor_override") if c.has("divisor_override") else 0
    for number in range(2):
        axis = x.type.rank - 2 + number
        extent, made = x.type.shape[axis], grad.type.shape[axis]
        if not isinstance(extent, int) or not isinstance(made, int):
            c.unsupported("the gradient of a pool of an open size", "Give the size a value with --dim.")
        place, tap = np.arange(extent)[:, None], np.arange(made)[None, :] * strides[number] - pads[number]
        within = ((place >= tap) & (place < tap + window[number])).astype(np.float64)
        ends = np.minimum(tap + window[number], extent + pads[number])
        counts = ends - tap if include else np.minimum(ends, extent) - np.maximum(tap, 0)
        grad = shaping.times(c.builder, grad, within if divisor else within / np.maximum(counts, 1), axis)
    if divisor:
        grad = c.op_("mul", grad, c.scalar(1.0 / divisor, dtype))
    return c.cast(grad, c.dtype)


@aten_op("_adaptive_avg_pool2d_backward")
def _adaptive_avg_pool_backward(c: Context) -> Result:
    x, grad = c.tensor("self"), c.cast(c.tensor("grad_output"), wide_dtype(c.dtype))
    for axis in (x.type.rank - 2, x.type.rank - 1):
        extent, size = x.type.shape[axis], grad.type.shape[axis]
        if not isinstance(extent, int) or not isinstance(size, int):
            c.unsupported("the gradient of an adaptive pool of an open size", "Give the size a value with --dim.")
        grad = shaping.times(c.builder, grad, pool_table(extent, size).T, axis)
    return c.cast(grad, c.dtype)


# Embeddings


@aten_op("embedding_dense_backward")
def _embedding_backward(c: Context) -> Result:
    """The gradients of each word added up; those of the padding word do not count."""
    grad, places = c.tensor("grad_output"), c.cast(c.tensor("indices"), _I64)
    count, words, width = places.type.elements, c.size("num_weights"), grad.type.shape[-1]
    dtype = wide_dtype(c.dtype)
    rows, flat = c.reshape(c.cast(grad, dtype), (count, width)), c.reshape(places, (count,))
    padding = c.op_("eq", flat, typed(c, c["padding_idx"], _I64))
    rows = c.op_("where", c.reshape(padding, (count, 1)), c.scalar(0.0, dtype), rows)
    if c.flag("scale_grad_by_freq"):
        ones = filled(c, 1.0, dtype, (count,))
        often = c.op_("scatter_elements", filled(c, 0, dtype, (words,)), flat, ones, axis=0, reduction="add")
        rows = c.op_("div", rows, c.reshape(c.op_("gather", often, flat, axis=0), (count, 1)))
    wide = c.expand(c.reshape(flat, (count, 1)), (count, width))
    made = c.op_("scatter_elements", filled(c, 0, dtype, (words, width)), wide, rows, axis=0, reduction="add")
    return c.cast(made, c.dtype)


# Norms


def _norm_gradient(c: Context, grad: Value, unit: Value, inverse: Value, axes: tuple[int, ...]) -> Value:
    """inverse * (grad - mean(grad) - unit * mean(grad * unit)), the means over the axes that were normalized."""
    count = typed(c, count_of(c, grad, axes), grad.type.dtype)

    def mean(value: Value) -> Value:
        return c.op_("div", reduced(c, "sum", value, axes, True), count)

    slope = c.op_("mul", unit, mean(c.op_("mul", grad, unit)))
    return c.op_("mul", inverse, c.op_("sub", c.op_("sub", grad, mean(grad)), slope))


def _all(c: Context, names: Sequence[str], dtype: DType) -> list[Value]:
    return [c.cast(c.tensor(name), dtype) for name in names]


@aten_op("native_layer_norm_backward")
def _layer_norm_backward(c: Context) -> Result:
    x = c.tensor("input")
    dtype = wide_dtype(x.type.dtype)
    grad, row, mean, inverse = _all(c, ("grad_out", "input", "mean", "rstd"), dtype)
    first = x.type.rank - len(c["normalized_shape"])
    axes, lead = tuple(range(first, x.type.rank)), tuple(range(first))
    unit = c.op_("mul", c.op_("sub", row, mean), inverse)
    weight = c.optional("weight")
    inner = grad if weight is None else c.op_("mul", grad, c.cast(weight, dtype))
    return _wanted(
        c,
        [
            _norm_gradient(c, inner, unit, inverse, axes),
            reduced(c, "sum", c.op_("mul", grad, unit), lead, False),
            reduced(c, "sum", grad, lead, False),
        ],
    )


@aten_op("native_group_norm_backward")
def _group_norm_backward(c: Context) -> Result:
    x, groups = c.tensor("input"), c.integer("group")
    dtype = wide_dtype(x.type.dtype)
    grad, row, mean, inverse = _all(c, ("grad_out", "input", "mean", "rstd"), dtype)
    batch, channels = x.type.shape[:2]
    each = dimension.floordiv(channels, groups)
    grid = (batch, groups, each, dimension.product(x.type.shape[2:]))
    grad, row = c.reshape(grad, grid), c.reshape(row, grid)
    mean, inverse = (c.reshape(part, (batch, groups, 1, 1)) for part in (mean, inverse))
    unit = c.op_("mul", c.op_("sub", row, mean), inverse)
    weight = c.optional("weight")
    inner = grad if weight is None else c.op_("mul", grad, c.reshape(c.cast(weight, dtype), (groups, each, 1)))
    sums = [reduced(c, "sum", part, (0, 3), False) for part in (c.op_("mul", grad, unit), grad)]
    found = c.reshape(_norm_gradient(c, inner, unit, inverse, (2, 3)), x.type.shape)
    return _wanted(c, [found, *(c.reshape(part, (channels,)) for part in sums)])
