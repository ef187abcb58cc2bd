"""Numbers in 8 bits and fewer: conversion to and from them, and products of them.

A quantized number q stands for (q - zero_point) * scale. `quantize` and `dequantize` say so at level CORE; nothing
folds a dequantized weight. The pass `lower_quantized` turns products of dequantized tensors into the products of this
file, whose operands stay in 8 bits, and leaves the scales to the elementwise ops behind them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aot import dtypes
from aot.dims import Dim, ceildiv
from aot.dtypes import F32, I8, I32, U8, DType
from aot.expr import Expr, call, cast, const, select
from aot.ir import Array, TensorType
from aot.ops.contract import matmul_array
from aot.ops.helpers import FLOAT, dtype_attr, int_attr, integers, need_family, need_rank, normal, widen
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, OpError, Sample, broadcast_shapes, register, same_extent
from aot.ops.window import conv_array, conv_type, window_attrs

WORDS = (dtypes.I8, dtypes.U8, dtypes.I16, dtypes.U16, dtypes.I32, dtypes.I4, dtypes.U4)
"""The integers that numbers are quantized to."""

FLOAT8 = (dtypes.F8E4M3, dtypes.F8E5M2)
"""The 8-bit floats that numbers are quantized to: no zero point."""

FLOAT8_MOST = {dtypes.F8E4M3: 448.0, dtypes.F8E5M2: 57344.0}

NIBBLE_ZERO = 8
"""The zero point of a 4-bit weight that has none of its own."""


def quantized_range(dtype: DType) -> tuple[float, float]:
    """The least and the greatest number of a type that numbers are quantized to."""
    if dtype in FLOAT8_MOST:
        return -FLOAT8_MOST[dtype], FLOAT8_MOST[dtype]
    low = 0 if dtype.family == "uint" else -(1 << (dtype.bits - 1))
    return low, low + (1 << dtype.bits) - 1


def _check_parameters(what: str, x: TensorType, dtype: DType, scale: TensorType, zero: TensorType | None) -> None:
    if dtype not in (*WORDS, *FLOAT8):
        raise OpError(f"{what}: {dtype} is no type of quantized numbers")
    need_family(f"the scale of {what}", scale, FLOAT)
    if broadcast_shapes(x.shape, scale.shape) != x.shape:
        raise OpError(f"the scale of {what}, {scale}, does not broadcast to {x}")
    if zero is not None:
        if zero.dtype != dtype:
            raise OpError(f"the zero point of {what} must be {dtype}; it is {zero.dtype}")
        if broadcast_shapes(scale.shape, zero.shape) != scale.shape:
            raise OpError(f"the zero point of {what}, {zero}, does not broadcast to its scale, {scale}")


def _quantize_infer(attrs: Attrs, x: TensorType, scale: TensorType, zero: TensorType | None = None) -> TensorType:
    to = dtype_attr(attrs, "to")
    need_family("what quantize takes", x, FLOAT)
    _check_parameters("quantize", x, to, scale, zero)
    return TensorType(to, x.shape)


def _quantize_body(attrs: Attrs, x: Expr, scale: Expr, zero: Expr | None = None) -> Expr:
    to = dtype_attr(attrs, "to")
    low, high = quantized_range(to)
    is_one = scale.op == "const" and scale.payload == 1
    scaled = widen(x) if is_one else widen(x) / widen(scale)
    if to in FLOAT8_MOST:
        return cast(call("max", call("min", scaled, high), low), to)
    whole = call("round", scaled)
    if zero is not None:
        whole = whole + cast(zero, whole.dtype)
    bounded = call("max", call("min", whole, high), low)
    # A conversion of NaN is undefined; it becomes what stands for zero, on every machine.
    nothing = const(0, bounded.dtype) if zero is None else cast(zero, bounded.dtype)
    return cast(select(call("isnan", bounded), nothing, bounded), to)


def _dequantize_infer(attrs: Attrs, x: TensorType, scale: TensorType, zero: TensorType | None = None) -> TensorType:
    _check_parameters("dequantize", x, x.dtype, scale, zero)
    return TensorType(scale.dtype, x.shape)


def _dequantize_body(attrs: Attrs, x: Expr, scale: Expr, zero: Expr | None = None) -> Expr:
    factor = widen(scale)
    number = cast(x if zero is None else cast(x, I32) - cast(zero, I32), factor.dtype)
    return cast(number * factor, scale.dtype)


def _scale(value: float = 0.05) -> Array:
    return np.asarray(value, np.float32)


def _quantize_samples(rng: Any) -> list[Sample]:
    row = np.abs(normal(rng, 5)) * 0.1 + np.float32(0.01)
    halves = np.array([-0.5, 0.5, 1.5, 2.5, -2.5, 200, -200], np.float32)
    return [
        Sample((normal(rng, 3, 5), _scale(), np.asarray(7, np.uint8)), {"to": U8}),
        Sample((normal(rng, 3, 5), row, np.zeros(5, np.int8)), {"to": I8}),
        Sample((normal(rng, 2, 33), _scale(0.01), None), {"to": I8}),
        Sample((halves, _scale(1.0), np.asarray(0, np.int8)), {"to": I8}),
        Sample((normal(rng, 3, 5), _scale(0.001), np.asarray(-5, np.int16)), {"to": dtypes.I16}),
        Sample((normal(rng, 0, 4), _scale(), None), {"to": U8}),
    ]


def _dequantize_samples(rng: Any) -> list[Sample]:
    row = np.abs(normal(rng, 5)) + np.float32(0.01)
    return [
        Sample((integers(rng, 3, 5, lo=0, hi=256, dtype=np.uint8), _scale(), np.asarray(200, np.uint8))),
        Sample((integers(rng, 3, 5, lo=-128, hi=128, dtype=np.int8), row, integers(rng, 5, dtype=np.int8))),
        Sample((integers(rng, 70, lo=-128, hi=128, dtype=np.int8), _scale(), None)),
        Sample((integers(rng, 4, 1, dtype=np.int32), _scale(), None)),
    ]


register(
    OpDef(
        name="quantize", doc="round(x / scale) + zero_point, halves to even, bounded by the range of the type.",
        inputs=("x", "scale", "zero_point?"), kind=Kind.MAP, infer=_quantize_infer, samples=_quantize_samples,
        attrs={"to": AttrSpec("dtype")}, body=_quantize_body, cost_flops=6,
    )
)  # fmt: skip

register(
    OpDef(
        name="dequantize", doc="(x - zero_point) * scale, in the scale's type.",
        inputs=("x", "scale", "zero_point?"), kind=Kind.MAP, infer=_dequantize_infer, samples=_dequantize_samples,
        body=_dequantize_body, cost_flops=3,
    )
)  # fmt: skip


# Products of numbers in 8 bits.


def _product_dtype(what: str, *types: TensorType) -> DType:
    """i32 for integers of 8 bits, f32 for floats of 8 bits; raises OpError for others, and for both."""
    found = {type_.dtype for type_ in types}
    if found <= {I8, U8}:
        return I32
    if found <= set(FLOAT8):
        return F32
    names = ", ".join(type_.dtype.name for type_ in types)
    raise OpError(f"{what} takes operands of i8 and u8, or of f8e4m3 and f8e5m2; they are {names}")


def _matmul_infer(attrs: Attrs, a: TensorType, b: TensorType) -> TensorType:
    need_rank("the left operand", a, 2)
    need_rank("the right operand", b, 2)
    same_extent(a.shape[-1], b.shape[-2], "the inner extents")
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return TensorType(_product_dtype("matmul_8bit", a, b), (*batch, a.shape[-2], b.shape[-1]))


def _wide(array: Array) -> Array:
    """The array in the type that its products are summed in."""
    return array.astype(np.int32 if array.dtype.kind in "iu" else np.float32)


def _matmul_samples(rng: Any) -> list[Sample]:
    def words(*shape: int, dtype: Any = np.int8) -> Array:
        low = int(np.iinfo(dtype).min)
        return integers(rng, *shape, lo=low, hi=low + 256, dtype=dtype)

    return [
        Sample((words(5, 7, dtype=np.uint8), words(7, 3))),
        Sample((words(1, 64, dtype=np.uint8), words(64, 33))),
        Sample((words(3, 17, 19), words(19, 16))),
        Sample((words(2, 3, 6, 10), words(3, 10, 5))),
        Sample((words(4, 13, dtype=np.uint8), words(13, 6, dtype=np.uint8))),
        Sample((words(3, 0), words(0, 2))),
        Sample((np.full((2, 70), 255, np.uint8), np.full((70, 17), -128, np.int8))),
    ]


register(
    OpDef(
        name="matmul_8bit", doc="The matrix product of operands in 8 bits, summed in i32 or, of floats, in f32.",
        inputs=("a", "b"), kind=Kind.CONTRACT, infer=_matmul_infer, samples=_matmul_samples,
        reference=lambda attrs, a, b: matmul_array(_wide(a), _wide(b)), cost_flops=2,
    )
)  # fmt: skip


def _conv_infer(attrs: Attrs, x: TensorType, w: TensorType) -> TensorType:
    dtype = _product_dtype("conv_8bit", x, w)
    low, high = quantized_range(x.dtype)
    if not low <= int_attr(attrs, "fill") <= high:
        raise OpError(f"conv_8bit is to read {attrs['fill']} outside of its image, which {x.dtype} does not hold")
    return conv_type(attrs, x, w, dtype)


def _conv_reference(attrs: Attrs, x: Array, w: Array) -> Array:
    return conv_array(attrs, _wide(x), _wide(w), fill=int_attr(attrs, "fill"))


def _conv_samples(rng: Any) -> list[Sample]:
    def case(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], signed: bool = False) -> Sample:
        image = integers(
            rng, *x, lo=-128 if signed else 0, hi=128 if signed else 256, dtype=np.int8 if signed else np.uint8
        )
        return Sample((image, integers(rng, *w, lo=-128, hi=128, dtype=np.int8)), attrs)

    return [
        case((2, 3, 7, 9), (4, 3, 3, 3), window_attrs((1, 1), (1, 1, 1, 1), (1, 1), fill=128)),
        case((1, 5, 11, 8), (7, 5, 3, 2), window_attrs((2, 1), (0, 1, 2, 0), (1, 2), fill=3)),
        case((2, 16, 6, 6), (33, 16, 1, 1), window_attrs((1, 1), (0, 0, 0, 0), (1, 1))),
        case((1, 16, 9, 9), (16, 16, 3, 3), window_attrs((1, 1), (1, 1, 1, 1), (1, 1), fill=-7), True),
        case((1, 8, 9, 9), (8, 1, 3, 3), window_attrs((1, 1), (1, 1, 1, 1), (1, 1), groups=8, fill=9)),
        case((1, 17, 9, 10), (17, 1, 5, 5), window_attrs((2, 2), (2, 2, 2, 2), (1, 1), groups=17)),
        case((2, 6, 5, 6), (9, 2, 3, 3), window_attrs((1, 2), (1, 1, 1, 1), (1, 1), groups=3, fill=255)),
        case((2, 3, 20), (5, 3, 4), window_attrs((3,), (2, 1), (2,), fill=100)),
        case((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), window_attrs((1, 2, 1), (0, 1, 0, 1, 1, 0), (1, 1, 1), fill=1)),
        case((0, 3, 4, 4), (2, 3, 3, 3), window_attrs((1, 1), (1, 1, 1, 1), (1, 1))),
    ]


register(
    OpDef(
        name="conv_8bit",
        doc="Cross-correlation of [N, C, …] with [O, C / groups, …], both in 8 bits; reads `fill` outside of x.",
        inputs=("x", "w"), kind=Kind.WINDOW, infer=_conv_infer, samples=_conv_samples, reference=_conv_reference,
        attrs={
            "strides": AttrSpec("ints"), "pads": AttrSpec("ints", doc="begins, then ends"),
            "dilations": AttrSpec("ints"), "groups": AttrSpec("int", 1),
            "fill": AttrSpec("int", 0, doc="the zero point of x"),
        },
        cost_flops=2,
    )
)  # fmt: skip


# Products with weights in 8 or 4 bits that are made floats where they are multiplied.


def _rows(extent: Dim, bits: int) -> Dim:
    """Rows of stored weights: two numbers of 4 bits are one byte, the even row's in its low half."""
    return extent if bits == 8 else ceildiv(extent, 2)


def _weights_infer(
    attrs: Attrs, x: TensorType, w: TensorType, scale: TensorType, zero: TensorType | None = None
) -> TensorType:
    bits, block = int_attr(attrs, "bits"), int_attr(attrs, "block")
    if bits not in (4, 8) or block < 1 or (bits == 4 and block % 2):
        raise OpError(f"weights of {bits} bits in blocks of {block}: 4 bits in even blocks, or 8 bits, are possible")
    need_family("the left operand", x, FLOAT)
    need_family("the scale", scale, FLOAT)
    need_rank("the left operand", x, 2)
    for what, type_ in (("the weight", w), ("the scale", scale), *((("the zero point", zero),) if zero else ())):
        need_rank(what, type_, 2, 2)
    if w.dtype != (U8 if bits == 4 else I8) or (zero is not None and zero.dtype != w.dtype):
        raise OpError(f"weights of {bits} bits are held as {U8 if bits == 4 else I8}, and so are zero points")
    summed = x.shape[-1]
    same_extent(w.shape[0], _rows(summed, bits), "the rows of the weight and the last extent of the left operand")
    for type_ in (scale, *((zero,) if zero else ())):
        same_extent(type_.shape[0], ceildiv(summed, block), "the rows of scales and the blocks")
        same_extent(type_.shape[1], w.shape[1], "the columns of scales and of the weight")
    return TensorType(x.dtype, (*x.shape[:-1], w.shape[1]))


def unpack_rows(w: Array, bits: int, summed: int) -> Array:
    """[summed, N] numbers, as i32, of stored weights."""
    if bits == 8:
        return w.astype(np.int32)
    both = np.stack([w & 15, w >> 4], axis=1).reshape(-1, w.shape[1])
    return both[:summed].astype(np.int32)


def pack_rows(numbers: Array) -> Array:
    """[K, N] numbers 0 to 15 as bytes [ceil(K / 2), N]; a row that is missing is zeros."""
    padded = np.pad(numbers.astype(np.uint8), ((0, numbers.shape[0] % 2), (0, 0)))
    return np.asarray(padded[0::2] | padded[1::2] << 4, np.uint8)


def unpacked_weight(bits: int, block: int, summed: int, w: Array, scale: Array, zero: Array | None) -> Array:
    """The weight as floats, [summed, N]: (number - zero point) * scale in f32."""
    numbers = unpack_rows(w, bits, summed)
    places = np.arange(summed) // block
    zeros = zero.astype(np.int32)[places] if zero is not None else NIBBLE_ZERO if bits == 4 else 0
    return np.asarray((numbers - zeros).astype(np.float32) * scale.astype(np.float32)[places])


def _weights_reference(attrs: Attrs, x: Array, w: Array, scale: Array, zero: Array | None = None) -> Array:
    weight = unpacked_weight(int_attr(attrs, "bits"), int_attr(attrs, "block"), x.shape[-1], w, scale, zero)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    return matmul_array(x.astype(wide), weight.astype(wide)).astype(x.dtype)


def _weights_samples(rng: Any) -> list[Sample]:
    def case(rows: tuple[int, ...], summed: int, columns: int, bits: int, block: int, zero: bool = False) -> Sample:
        stored = -(-summed // 2) if bits == 4 else summed
        dtype = np.uint8 if bits == 4 else np.int8
        low, high = (0, 256) if bits == 4 else (-128, 128)
        w = integers(rng, stored, columns, lo=low, hi=high, dtype=dtype)
        blocks = -(-summed // block)
        scale = np.abs(normal(rng, blocks, columns)) * 0.1
        zeros = integers(rng, blocks, columns, lo=0, hi=16, dtype=dtype) if zero else None
        operands = (normal(rng, *rows, summed), w, scale, zeros)
        return Sample(operands, {"bits": bits, "block": block}, 1e-4, 1e-3)

    return [
        case((3,), 64, 33, 4, 32),
        case((1,), 96, 16, 4, 32, True),
        case((2, 5), 70, 20, 8, 70),
        case((4,), 50, 9, 8, 16, True),
        case((17,), 45, 40, 4, 32),
    ]


register(
    OpDef(
        name="matmul_packed",
        doc="The product of floats with a weight in 8 or 4 bits, of which `block` rows share a scale in each column.",
        inputs=("x", "w", "scale", "zero_point?"), kind=Kind.CONTRACT, infer=_weights_infer, samples=_weights_samples,
        attrs={
            "bits": AttrSpec("int", doc="8: w is i8 [K, N]; 4: w is u8 [K / 2, N], even rows in the low halves"),
            "block": AttrSpec("int", doc="rows that share a scale"),
        },
        reference=_weights_reference, cost_flops=2,
    )
)  # fmt: skip
