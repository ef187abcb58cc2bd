"""Quantize and dequantize with the parameters of a tensor, of an axis or of blocks: what both frontends share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim
from aot.dtypes import DType
from aot.errors import ModelError, UnsupportedError
from aot.frontend.known import KnownBuilder
from aot.ir import Array, Value
from aot.ops import same_extent
from aot.ops.opdef import normalize_axis
from aot.ops.quantized import FLOAT8, WORDS, quantized_range

UNDEFINED = "Quantize the model again: every scale must be a finite number other than 0."


def contents(builder: KnownBuilder, value: Value | None) -> Array | None:
    """The elements of a constant; None for other values."""
    const = None if value is None else builder.consts.get(value)
    return None if const is None else const.array()


def check_scale(builder: KnownBuilder, scale: Value, divides: bool) -> None:
    """Raises ModelError for a constant scale that gives no numbers: NaN, infinite, or 0 where it divides."""
    held = contents(builder, scale)
    if held is None:
        return
    wide = np.asarray(held, np.float64).reshape(-1)
    wrong = ~np.isfinite(wide) | ((wide == 0.0) & divides)
    if wrong.any():
        place = int(np.argmax(wrong))
        which = f" number {place} of {wide.size}" if wide.size > 1 else ""
        raise ModelError(f"its scale{which} is {wide[place]:g}", hint=UNDEFINED)


def check_not_quantized(x: Value) -> None:
    """Raises ModelError for what is quantized already."""
    if not x.type.dtype.is_float and x.type.dtype is not dtypes.I32:
        hint = "Dequantize it first, or leave the second quantization out."
        raise ModelError(f"it quantizes a tensor of {x.type.dtype.name}, which is quantized already", hint=hint)


def of_one_type(zero: Value | None, dtype: DType, what: str) -> None:
    """Raises ModelError for a zero point of another type than the numbers it belongs to."""
    if zero is not None and zero.type.dtype is not dtype:
        raise ModelError(
            f"the zero point is {zero.type.dtype.name}, {what} {dtype.name}: both must have one type",
            hint="Convert the zero point, or quantize the model again.",
        )


class Parameters:
    """A scale and a zero point as they broadcast over a tensor of `shape`, the axis that has blocks cut in two.

    axis: where the parameters are a vector or blocks. block: elements along the axis that share a scale; 0: the
    parameters are of the whole tensor or, a vector, of the axis. Raises ModelError where they do not fit.
    """

    def __init__(
        self, builder: KnownBuilder, shape: Sequence[Dim], scale: Value, zero: Value | None, axis: int, block: int
    ) -> None:
        self.builder = builder
        self.whole = tuple(shape)
        self.cut: tuple[Dim, ...] = self.whole
        if zero is not None and zero.type.shape != scale.type.shape:
            if zero.type.elements != 1 or scale.type.elements != 1:
                found = f"{list(zero.type.shape)} and {list(scale.type.shape)}"
                raise ModelError(f"the zero point and the scale have shapes {found}; they must have one")
        if block:
            scale, zero = self._blocks(scale, zero, axis, block)
        elif scale.type.elements == 1 and scale.type.rank <= 1:
            scale, zero = self._as(scale, ()), None if zero is None else self._as(zero, ())
        elif scale.type.rank == 1:
            place = self._axis(axis)
            same_extent(shape[place], scale.type.shape[0], f"the extent of axis {place} and the number of scales")
            vector = (scale.type.shape[0], *(1,) * (len(self.whole) - 1 - place))
            scale, zero = self._as(scale, vector), None if zero is None else self._as(zero, vector)
        elif scale.type.rank != len(self.whole):
            raise ModelError(
                f"the scale has shape {list(scale.type.shape)}: one number, one for each element of an axis, or blocks "
                "(with block_size) are possible"
            )
        self.scale, self.zero = scale, zero

    def _axis(self, axis: int) -> int:
        rank = len(self.whole)
        if not -rank <= axis < rank:
            raise ModelError(f"axis {axis} is out of range for a tensor of rank {rank}")
        return normalize_axis(axis, rank)

    def _as(self, value: Value, shape: tuple[Dim, ...]) -> Value:
        return value if value.type.shape == shape else self.builder.op("reshape", value, shape=shape)[0]

    def _blocks(self, scale: Value, zero: Value | None, axis: int, block: int) -> tuple[Value, Value | None]:
        place, rank = self._axis(axis), len(self.whole)
        if block < 0 or scale.type.rank != rank:
            raise ModelError(
                f"blocks of {block} along axis {place} need a scale of rank {rank}; it has {scale.type.rank}"
            )
        extent, blocks = self.whole[place], scale.type.shape[place]
        for other in range(rank):
            if other != place:
                same_extent(self.whole[other], scale.type.shape[other], f"axis {other} of the tensor and of its scales")
        if dimension.ceildiv(extent, block) != blocks:
            raise ModelError(
                f"blocks of {block} do not divide axis {place}, which has {extent} elements and {blocks} scales",
                hint=f"{extent} elements need {dimension.ceildiv(extent, block)} scales.",
            )
        if dimension.mod(extent, block) == 0:
            self.cut = (*self.whole[:place], blocks, block, *self.whole[place + 1 :])
            thin = (*self.whole[:place], blocks, 1, *self.whole[place + 1 :])
            return self._as(scale, thin), None if zero is None else self._as(zero, thin)
        if not isinstance(extent, int):
            raise ModelError(f"blocks of {block} do not divide axis {place}, whose extent is {extent}")
        places = self.builder.const(np.arange(extent, dtype=np.int64) // block)
        found = [
            None if value is None else self.builder.op("gather", value, places, axis=place)[0]
            for value in (scale, zero)
        ]
        assert found[0] is not None
        return found[0], found[1]

    def bound(self, number: float) -> Value:
        """What a quantized number stands for, over the tensor or what it broadcasts from."""
        if self.cut != self.whole:
            raise UnsupportedError("bounds of blocks that are narrower than those of their type")
        known = self.builder.scalar(number, self.scale.type.dtype)
        if self.zero is not None:
            known = self.builder.op("sub", known, self.builder.op("cast", self.zero, to=known.type.dtype)[0])[0]
        return self.builder.op("mul", known, self.scale)[0]

    def quantize(self, x: Value, to: DType) -> Value:
        """x, a float tensor of the shape, in numbers of a type."""
        numbers = self.builder.op("quantize", self._as(x, self.cut), self.scale, self.zero, to=to)[0]
        return self._as(numbers, self.whole)

    def dequantize(self, x: Value) -> Value:
        """What quantized numbers stand for, in the type of the scale."""
        numbers = self.builder.op("dequantize", self._as(x, self.cut), self.scale, self.zero)[0]
        return self._as(numbers, self.whole)


def quantized(
    builder: KnownBuilder, x: Value, scale: Value, zero: Value | None, to: DType, axis: int = 1, block: int = 0
) -> Value:
    """x in numbers of type `to`. Raises ModelError for parameters that do not fit, or mean nothing."""
    check_not_quantized(x)
    if to not in (*WORDS, *FLOAT8) or to is dtypes.I32:
        raise ModelError(f"{to.name} is no type that tensors are quantized to")
    of_one_type(zero, to, "the result")
    check_scale(builder, scale, True)
    if x.type.dtype is dtypes.I32:
        x = builder.op("cast", x, to=dtypes.F32)[0]
    if to in FLOAT8:
        zero = no_zero(builder, zero)
    return Parameters(builder, x.type.shape, scale, zero, axis, block).quantize(x, to)


def dequantized(
    builder: KnownBuilder, x: Value, scale: Value, zero: Value | None, axis: int = 1, block: int = 0
) -> Value:
    """What quantized numbers stand for. Raises ModelError for parameters that do not fit, or mean nothing."""
    if x.type.dtype not in (*WORDS, *FLOAT8):
        raise ModelError(f"it dequantizes a tensor of {x.type.dtype.name}, which is no type of quantized numbers")
    of_one_type(zero, x.type.dtype, "the numbers are")
    check_scale(builder, scale, False)
    if x.type.dtype in FLOAT8 or x.type.dtype is dtypes.I32:
        zero = no_zero(builder, zero)
    return Parameters(builder, x.type.shape, scale, zero, axis, block).dequantize(x)


def no_zero(builder: KnownBuilder, zero: Value | None) -> Value | None:
    """None for a zero point that is 0; 8-bit floats have no other."""
    held = contents(builder, zero)
    if zero is not None and zero.type.dtype in FLOAT8:
        if held is not None and np.any(held.astype(np.float32)):
            raise ModelError(f"a zero point of {zero.type.dtype.name} must be 0")
        return None
    return None if held is not None and not held.any() else zero


def quantized_at_run(builder: KnownBuilder, x: Value) -> tuple[Value, Value, Value]:
    """u8 numbers, the f32 scale and the u8 zero point of a tensor, by its least and its greatest element.

    As DynamicQuantizeLinear: the range holds 0; a tensor of zeros has the scale 1.
    """
    axes = tuple(range(x.type.rank))

    def op(name: str, *inputs: Value, **attrs: Any) -> Value:
        return builder.op(name, *inputs, **attrs)[0]

    nothing = builder.scalar(0.0, dtypes.F32)
    high = op("max", op("reduce_max", x, axes=axes, keepdims=False), nothing)
    low = op("min", op("reduce_min", x, axes=axes, keepdims=False), nothing)
    least, most = quantized_range(dtypes.U8)
    reach = op("div", op("sub", high, low), builder.scalar(most - least, dtypes.F32))
    scale = op("where", op("eq", reach, nothing), builder.scalar(1.0, dtypes.F32), reach)
    point = op("round", op("sub", nothing, op("div", low, scale)))
    bounded = op("min", op("max", point, nothing), builder.scalar(most, dtypes.F32))
    zero = op("cast", bounded, to=dtypes.U8)
    return op("quantize", x, scale, zero, to=dtypes.U8), scale, zero
