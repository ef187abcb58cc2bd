"""Sums of products of integers in 8 bits less their zero points, in i32: what both quantized imports and passes build.

The sum over k of (a - za) * (b - zb) is that of a * b, less za times the sums of b, less zb times the sums of a, plus
k * za * zb. The first is a product that keeps 8 bits; the sums of a constant are constants; the rest is elementwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from aot.builder import Builder
from aot.dims import Dim, floordiv, product
from aot.dtypes import I32, DType
from aot.ir import Array, Attr, Value
from aot.ops.helpers import int_attr, ints_attr

Known = Callable[[Value], Array | None]
"""The elements of a value that is a constant; None for others."""


def in_type(b: Builder, value: Value, dtype: DType) -> Value:
    """The value converted to a type; itself where it has it."""
    return value if value.type.dtype is dtype else b.op("cast", value, to=dtype)[0]


def in_shape(b: Builder, value: Value, shape: tuple[Dim, ...]) -> Value:
    """The value in another shape; itself where it has it."""
    return value if value.type.shape == shape else b.op("reshape", value, shape=shape)[0]


def matrix_sums(b: Builder, left: Value, right: Value, left_zero: Value | None, right_zero: Value | None) -> Value:
    """i32 [..., M, N] of left [..., M, K] and right [..., K, N], i8 or u8 each (or floats of 8 bits: f32, no zeros).

    Zero points are of one element, or [..., M, 1] and [..., 1, N]; None is 0.
    """
    (sums,) = b.op("matmul_8bit", left, right)
    if right_zero is not None:
        rows = _total(b, left, (left.type.rank - 1,))
        sums = _less(b, sums, rows, in_type(b, right_zero, I32))
    if left_zero is not None:
        columns = _total(b, right, (right.type.rank - 2,))
        if right_zero is not None:
            columns = _less(b, columns, in_type(b, right_zero, I32), count(b, left.type.shape[-1]))
        sums = _less(b, sums, columns, in_type(b, left_zero, I32))
    return sums


def image_sums(
    b: Builder,
    x: Value,
    w: Value,
    x_zero: Value | None,
    w_zero: Value | None,
    attrs: Mapping[str, Attr],
    known: Known,
    fill: int | None = None,
) -> Value:
    """i32 [N, O, ...] of a convolution of x [N, C, ...] with w [O, C / groups, ...]; `attrs` are those of conv_8bit.

    x_zero is of one element, w_zero of one or [O, 1, ...]. What is outside of the image is x's
    zero point (`fill`, if it is given), so that the correction of a channel is the same at every place.
    """
    own = dict(attrs)
    held = np.zeros((), np.int32) if x_zero is None else known(x_zero)
    pads = ints_attr(own, "pads")
    if fill is None and held is not None:
        fill = int(held.reshape(()))
    if fill is not None:
        own["fill"] = fill
    elif any(pads) and x_zero is not None:
        spatial = len(pads) // 2
        around = {"before": (0, 0, *pads[:spatial]), "after": (0, 0, *pads[spatial:])}
        (x,) = b.op("pad", x, in_shape(b, x_zero, ()), mode="constant", **around)
        own["pads"] = (0,) * len(pads)
    (sums,) = b.op("conv_8bit", x, w, **own)
    shape = w.type.shape
    if w_zero is not None:
        sums = _less(b, sums, _windows(b, x, w, own), in_type(b, w_zero, I32))
    if x_zero is not None:
        total = _total(b, w, tuple(range(1, len(shape))))
        channels = in_shape(b, total, (shape[0], *(1,) * (len(shape) - 2)))
        if w_zero is not None:
            channels = _less(b, channels, in_type(b, w_zero, I32), count(b, product(shape[1:])))
        sums = _less(b, sums, channels, in_shape(b, in_type(b, x_zero, I32), ()))
    return sums


def _windows(b: Builder, x: Value, w: Value, attrs: Mapping[str, Attr]) -> Value:
    """i32 [N, O or 1, ...]: the sums of x's elements under each window, for each group's channels."""
    groups, outputs = int_attr(attrs, "groups"), w.type.shape[0]
    ones = np.ones((groups, *(extent for extent in w.type.shape[1:] if isinstance(extent, int))), w.type.dtype.numpy)
    (sums,) = b.op("conv_8bit", x, b.const(ones), **attrs)
    if groups in (1, outputs):
        return sums
    batch, _, *places = sums.type.shape
    apart = in_shape(b, sums, (batch, groups, 1, *places))
    (each,) = b.op("expand", apart, shape=(batch, groups, floordiv(outputs, groups), *places))
    return in_shape(b, each, (batch, outputs, *places))


def count(b: Builder, extent: Dim) -> Value:
    """An extent as a rank-0 i32."""
    if isinstance(extent, int):
        return b.scalar(extent, I32)
    return in_shape(b, in_type(b, b.op("dim_tensor", dims=(extent,))[0], I32), ())


def _total(b: Builder, value: Value, axes: tuple[int, ...]) -> Value:
    """Sums over axes, which stay as extents of 1, in i32."""
    return b.op("reduce_sum", in_type(b, value, I32), axes=axes, keepdims=True)[0]


def _less(b: Builder, sums: Value, factor: Value, other: Value) -> Value:
    """sums - factor * other."""
    return b.op("sub", sums, b.op("mul", factor, other)[0])[0]
