"""Converters of quantized operators of ONNX: to quantize and dequantize, or to sums of integers."""

from __future__ import annotations

from dataclasses import replace

from aot import dtypes
from aot.dims import Dim
from aot.dtypes import DType
from aot.frontend.onnx_model import dtype_of
from aot.frontend.onnx_registry import CONVERTERS, Context, Result, onnx_op
from aot.frontend.onnx_window import convolution
from aot.frontend.quantizing import (
    check_not_quantized,
    contents,
    dequantized,
    of_one_type,
    quantized,
    quantized_at_run,
)
from aot.ir import Value
from aot.ops.quantized import FLOAT8
from aot.quantized_sums import image_sums, matrix_sums

BYTES = (dtypes.I8, dtypes.U8)


def quantize(c: Context, x: Value, scale: Value, zero: Value | None, to: DType, axis: int = 1, block: int = 0) -> Value:
    """x in numbers of type `to`."""
    return quantized(c.builder, x, scale, zero, to, axis, block)


def dequantize(c: Context, x: Value, scale: Value, zero: Value | None, axis: int = 1, block: int = 0) -> Value:
    """What quantized numbers stand for."""
    return dequantized(c.builder, x, scale, zero, axis, block)


def output_dtype(c: Context, zero: Value | None) -> DType:
    """The type that a node quantizes to."""
    stated = c.int_attribute("output_dtype", 0)
    if not stated:
        return dtypes.U8 if zero is None else zero.type.dtype
    to = dtype_of(stated, c.where)
    of_one_type(zero, to, "output_dtype is")
    return to


@onnx_op("QuantizeLinear")
def _quantize_linear(c: Context) -> Result:
    x, scale, zero = c.input(0), c.input(1), c.optional(2)
    check_not_quantized(x)
    to = output_dtype(c, zero)
    if to in FLOAT8 and not c.bool_attribute("saturate", True):
        c.unsupported("a quantization to 8-bit floats that does not saturate")
    precision = c.int_attribute("precision", 0)
    wide = dtype_of(precision, c.where) if precision else scale.type.dtype
    if not wide.is_float:
        c.fail(f"precision must be a float type; it is {wide.name}")
    axis, block = c.int_attribute("axis", 1), c.int_attribute("block_size", 0)
    return quantize(c, x, scale, zero, to, axis, block)


@onnx_op("DequantizeLinear")
def _dequantize_linear(c: Context) -> Result:
    axis, block = c.int_attribute("axis", 1), c.int_attribute("block_size", 0)
    made = dequantize(c, c.input(0), c.input(1), c.optional(2), axis, block)
    stated = c.int_attribute("output_dtype", 0)
    return c.cast(made, dtype_of(stated, c.where)) if stated else made


@onnx_op("DynamicQuantizeLinear")
def _dynamic_quantize_linear(c: Context) -> Result:
    x = c.input(0)
    if x.type.dtype is not dtypes.F32:
        c.fail(f"it quantizes a tensor of {x.type.dtype.name}; f32 is possible")
    return quantized_at_run(c.builder, x)


# Products.


def _side(value: Value | None, rank: int, left: bool) -> tuple[Dim, ...] | None:
    """The shape that a parameter of a matrix's rows or columns broadcasts in; None where it has it."""
    if value is None or value.type.rank != 1 or value.type.elements == 1:
        return () if value is not None and value.type.elements == 1 else None
    return (value.type.shape[0], 1) if left and rank > 1 else None


def side(c: Context, value: Value | None, rank: int, left: bool) -> Value | None:
    """A parameter of the rows of a left operand, or of the columns of a right one, or of all."""
    shape = _side(value, rank, left)
    return value if value is None or shape is None else c.reshape(value, shape)


def _dequantized_side(c: Context, first: int, left: bool) -> Value:
    """Operand `first`, with its scale and zero point behind it, of a product of matrices."""
    x, scale, zero = c.input(first), c.input(first + 1), c.optional(first + 2)
    return dequantized_matrix(c, x, scale, zero, left)


def dequantized_matrix(c: Context, x: Value, scale: Value, zero: Value | None, left: bool) -> Value:
    """What the numbers of a matrix stand for: its scale is of all, of rows (left) or of columns."""
    of_one_type(zero, x.type.dtype, "the numbers are")
    scale, zero = side(c, scale, x.type.rank, left) or scale, side(c, zero, x.type.rank, left)
    if zero is not None and zero.type.shape != scale.type.shape:
        scale = c.expand(scale, zero.type.shape) if scale.type.rank == 0 else scale
        zero = c.expand(zero, scale.type.shape)
    return c.op("dequantize", x, scale, zero)


@onnx_op("QLinearMatMul")
def _qlinear_matmul(c: Context) -> Result:
    a, b = _dequantized_side(c, 0, True), _dequantized_side(c, 3, False)
    product = CONVERTERS["", "MatMul"](replace(c, inputs=[a, b]))
    assert isinstance(product, Value)
    scale, zero = c.input(6), c.input(7)
    scale, zero = side(c, scale, product.type.rank, True) or scale, side(c, zero, product.type.rank, True) or zero
    return c.op("quantize", c.cast(product, scale.type.dtype), scale, zero, to=zero.type.dtype)


@onnx_op("MatMulInteger")
def _matmul_integer(c: Context) -> Result:
    return integer_product(c, c.input(0), c.input(1), c.optional(2), c.optional(3))


def integer_product(c: Context, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    """i32: the product of matrices of numbers in 8 bits, less their zero points; vectors as numpy has them."""
    for value, zero in ((a, a_zero), (b, b_zero)):
        if value.type.dtype not in BYTES:
            c.fail(f"an operand is {value.type.dtype.name}; i8 and u8 are possible")
        of_one_type(zero, value.type.dtype, "its operand is")
        if value.type.rank == 0:
            c.fail("operands of a matrix product cannot be scalars")
    left = c.reshape(a, (1, *a.type.shape)) if a.type.rank == 1 else a
    right = c.reshape(b, (*b.type.shape, 1)) if b.type.rank == 1 else b
    zeros = [
        None if _is_zero(c, zero) else side(c, zero, value.type.rank, is_left)
        for zero, value, is_left in ((a_zero, left, True), (b_zero, right, False))
    ]
    sums = matrix_sums(c.builder, left, right, *zeros)
    shape = list(sums.type.shape)
    if b.type.rank == 1:
        shape.pop()
    if a.type.rank == 1:
        shape.pop(-1 if b.type.rank == 1 else -2)
    return c.reshape(sums, shape)


def _is_zero(c: Context, zero: Value | None) -> bool:
    held = contents(c.builder, zero)
    return zero is None or (held is not None and not held.any())


# Convolutions.


@onnx_op("QLinearConv")
def _qlinear_conv(c: Context) -> Result:
    x, w = c.input(0), c.input(3)
    x_scale, w_scale = c.input(1), c.input(4)
    image = dequantize(c, x, x_scale, c.input(2))
    weight = dequantize(c, w, w_scale, c.input(5), axis=0)
    bias: Value | None = None
    if c.has(8):
        unit = c.op("mul", number(c, x_scale), c.reshape(w_scale, (w_scale.type.elements,)))
        bias = dequantize(c, c.input(8), c.expand(unit, c.shape(8)), None, axis=0)
    result = CONVERTERS["", "Conv"](replace(c, inputs=[image, weight, bias]))
    assert isinstance(result, Value)
    return quantize(c, result, c.input(6), c.input(7), c.input(7).type.dtype)


def number(c: Context, value: Value) -> Value:
    """A parameter of one element as a number."""
    if value.type.elements != 1:
        c.fail(f"a scale or zero point of the whole tensor has {value.type.elements} elements")
    return c.reshape(value, ())


@onnx_op("ConvInteger")
def _conv_integer(c: Context) -> Result:
    x, w, x_zero, w_zero = c.input(0), c.input(1), c.optional(2), c.optional(3)
    for value, zero in ((x, x_zero), (w, w_zero)):
        if value.type.dtype not in BYTES:
            c.fail(f"an operand is {value.type.dtype.name}; i8 and u8 are possible")
        of_one_type(zero, value.type.dtype, "its operand is")
    x_zero = None if _is_zero(c, x_zero) or x_zero is None else number(c, x_zero)
    x, attrs = convolution(c, x, w, x_zero)
    w_zero = None if _is_zero(c, w_zero) or w_zero is None else _channels(c, w_zero, w)
    return image_sums(c.builder, x, w, x_zero, w_zero, attrs, lambda value: contents(c.builder, value))


def _channels(c: Context, zero: Value, w: Value) -> Value:
    """A weight's zero point over the channels of the result."""
    shape = () if zero.type.elements == 1 else (zero.type.elements, *(1,) * (w.type.rank - 2))
    return c.reshape(zero, shape)
