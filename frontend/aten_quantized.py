"""ATen converters of quantized programs: PT2E's quantize and dequantize, fake quantization, and products in 8 bits.

torch multiplies by the inverse of a scale and adds a zero point before or after it rounds, by operator; here numbers
are divided by the scale, rounded, and moved. The results differ where a number lies between two steps to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aot import dtypes
from aot.dtypes import DType
from aot.frontend.quantizing import Parameters, check_not_quantized, check_scale, contents, no_zero
from aot.frontend.torch_registry import Context, Result, aten_op, dtype_of
from aot.ir import Value
from aot.ops.quantized import FLOAT8, quantized_range
from aot.quantized_sums import matrix_sums

PT2E = "quantized_decomposed::"
_TYPES = (dtypes.U8, dtypes.I8, dtypes.U16, dtypes.I16, dtypes.I32)
"""What the range of a fake quantization is looked for in."""


def _f32(c: Context, value: Any) -> Value:
    """A scale, a number or a tensor, as f32."""
    return c.cast(value, dtypes.F32) if isinstance(value, Value) else c.number_value(value, dtypes.F32)


def _zero(c: Context, value: Any, to: DType) -> Value | None:
    """A zero point, a number or a tensor of some integers, in the type of the numbers; None for 0."""
    if value is None or value == 0:
        return None
    held = contents(c.builder, value) if isinstance(value, Value) else np.asarray(value)
    if held is not None:
        low, high = quantized_range(to)
        if np.any(held != np.rint(held)) or np.any(held < low) or np.any(held > high):
            c.unsupported(f"zero points that are no numbers of {to.name}")
        return None if not np.any(held) else c.builder.const(held.astype(to.numpy))
    if value.type.dtype.is_float:
        c.unsupported("zero points that are floats, and computed")
    return c.cast(value, to)


def _bound(c: Context, name: str) -> float:
    """quant_min or quant_max, which may be a constant tensor."""
    value = c[name]
    if not isinstance(value, Value):
        return c.number(name)
    held = contents(c.builder, value)
    if held is None or held.size != 1:
        c.unsupported(f"{name} is only known when running")
    return float(held.reshape(()))


def _parameters(c: Context, x: Value, scale: Any, zero: Any, to: DType, axis: int = 0, block: int = 0) -> Parameters:
    scale = _f32(c, scale)
    check_scale(c.builder, scale, True)
    point = _zero(c, zero, to)
    if to in FLOAT8:
        point = no_zero(c.builder, point)
    if point is not None and point.type.shape != scale.type.shape:
        point = c.expand(point, scale.type.shape)
    return Parameters(c.builder, x.type.shape, scale, point, axis, block)


def _quantized(c: Context, x: Value, parameters: Parameters, low: float, high: float, to: DType) -> Value:
    """x in numbers of a type, from low to high: narrower bounds than the type's are bounds of x."""
    check_not_quantized(x)
    x = c.cast(x, dtypes.F32)
    least, most = quantized_range(to)
    if low > most or high < least or low > high:
        c.fail(f"quant_min {low:g} and quant_max {high:g} do not fit {to.name}, from {least:g} to {most:g}")
    for name, bound, own in (("max", low, least), ("min", high, most)):
        if (bound > own) if name == "max" else (bound < own):
            x = c.op_(name, x, parameters.bound(bound))
    return parameters.quantize(x, to)


def _axis(c: Context, x: Value) -> int:
    axis = c.integer("axis")
    if not -x.type.rank <= axis < x.type.rank:
        c.fail(f"axis {axis} is out of range for a tensor of rank {x.type.rank}")
    return axis


@aten_op(f"{PT2E}quantize_per_tensor")
def _quantize_per_tensor(c: Context) -> Result:
    x, to = c.tensor("input"), dtype_of(c["dtype"], c.where)
    parameters = _parameters(c, x, c["scale"], c["zero_point"], to)
    return _quantized(c, x, parameters, _bound(c, "quant_min"), _bound(c, "quant_max"), to)


@aten_op(f"{PT2E}quantize_per_channel")
def _quantize_per_channel(c: Context) -> Result:
    x, to = c.tensor("input"), dtype_of(c["dtype"], c.where)
    parameters = _parameters(c, x, c["scales"], c["zero_points"], to, _axis(c, x))
    return _quantized(c, x, parameters, _bound(c, "quant_min"), _bound(c, "quant_max"), to)


@aten_op(f"{PT2E}quantize_per_token")
def _quantize_per_token(c: Context) -> Result:
    x, to = c.tensor("input"), dtype_of(c["dtype"], c.where)
    parameters = _parameters(c, x, _rows(c, "scales", x), _rows(c, "zero_points", x), to)
    return _quantized(c, x, parameters, _bound(c, "quant_min"), _bound(c, "quant_max"), to)


@aten_op(f"{PT2E}quantize_per_channel_group")
def _quantize_per_channel_group(c: Context) -> Result:
    x, to = c.tensor("input"), dtype_of(c["dtype"], c.where)
    parameters = _parameters(c, x, c["scales"], c["zero_points"], to, -1, c.integer("group_size"))
    return _quantized(c, x, parameters, _bound(c, "quant_min"), _bound(c, "quant_max"), to)


def _rows(c: Context, name: str, x: Value) -> Value:
    """Parameters of tokens, [..., 1]."""
    value = c.tensor(name)
    return c.reshape(value, (*x.type.shape[:-1], 1))


def _numbers(c: Context) -> tuple[Value, DType]:
    """The operand of a dequantize, in the type that it says."""
    x, stated = c.tensor("input"), dtype_of(c["dtype"], c.where)
    if x.type.dtype is not stated:
        c.fail(f"it dequantizes {stated.name}; its operand is {x.type.dtype.name}")
    return x, stated


@aten_op(f"{PT2E}dequantize_per_tensor")
def _dequantize_per_tensor(c: Context) -> Result:
    x, own = _numbers(c)
    return c.cast(_parameters(c, x, c["scale"], c["zero_point"], own).dequantize(x), c.dtype)


@aten_op(f"{PT2E}dequantize_per_channel")
def _dequantize_per_channel(c: Context) -> Result:
    x, own = _numbers(c)
    parameters = _parameters(c, x, c["scales"], c.arguments.get("zero_points"), own, _axis(c, x))
    return c.cast(parameters.dequantize(x), c.dtype)


@aten_op(f"{PT2E}dequantize_per_token")
def _dequantize_per_token(c: Context) -> Result:
    x, own = _numbers(c)
    return c.cast(_parameters(c, x, _rows(c, "scales", x), _rows(c, "zero_points", x), own).dequantize(x), c.dtype)


@aten_op(f"{PT2E}dequantize_per_channel_group")
def _dequantize_per_channel_group(c: Context) -> Result:
    x, own = _numbers(c)
    block = c.integer("group_size")
    parameters = _parameters(c, x, c["scales"], c.arguments.get("zero_points"), own, -1, block)
    return c.cast(parameters.dequantize(x), c.dtype)


@aten_op(f"{PT2E}convert_element_type")
def _convert(c: Context) -> Result:
    return c.cast(c.tensor("input"), c.dtype)


# Parameters that are found when the program runs.


def _extremes(c: Context, x: Value, axes: tuple[int, ...]) -> tuple[Value, Value]:
    """The least and the greatest element over axes, 0 among them."""
    nothing = c.scalar(0.0, dtypes.F32)
    low = c.op_("min", c.op_("reduce_min", x, axes=axes, keepdims=True), nothing)
    return low, c.op_("max", c.op_("reduce_max", x, axes=axes, keepdims=True), nothing)


def _as_results(c: Context, scale: Value, zero: Value) -> Result:
    """The scale and the zero point in the types and shapes that torch says."""
    found = []
    for number, value in enumerate((scale, zero)):
        fake = c.result(number)
        shape = tuple(
            int(size) if isinstance(size, int) else own for size, own in zip(fake.shape, value.type.shape, strict=False)
        )
        if len(fake.shape) != value.type.rank:
            shape = tuple(map(int, fake.shape))
        found.append(c.cast(c.reshape(value, shape), dtype_of(fake.dtype, c.where)))
    return found


@aten_op(f"{PT2E}choose_qparams")
def _choose(c: Context) -> Result:
    x = c.cast(c.tensor("input"), dtypes.F32)
    least, most = c.number("quant_min"), c.number("quant_max")
    low, high = _extremes(c, x, tuple(range(x.type.rank)))
    scale = c.op_("div", c.op_("sub", high, low), c.scalar(most - least, dtypes.F32))
    scale = c.op_("max", scale, c.scalar(c.number("eps"), dtypes.F32))
    zero = c.op_("sub", c.scalar(least, dtypes.F32), c.op_("round", c.op_("div", low, scale)))
    return _as_results(c, scale, c.op_("clip", zero, c.scalar(least, dtypes.F32), c.scalar(most, dtypes.F32)))


@aten_op(f"{PT2E}choose_qparams_symmetric")
def _choose_symmetric(c: Context) -> Result:
    x = c.cast(c.tensor("input"), dtypes.F32)
    least, most = c.number("quant_min"), c.number("quant_max")
    low, high = _extremes(c, x, tuple(range(x.type.rank)))
    reach = c.op_("max", c.op_("neg", low), high)
    scale = c.op_("div", reach, c.scalar((most - least) / 2, dtypes.F32))
    scale = c.op_("max", scale, c.scalar(c.number("eps"), dtypes.F32))
    to = dtype_of(c["dtype"], c.where)
    middle = (128.0 if (least, most) == (0, 255) else float((least + most) // 2)) if to is dtypes.U8 else 0.0
    return _as_results(c, scale, c.expand(c.scalar(middle, dtypes.F32), scale.type.shape))


@aten_op(f"{PT2E}choose_qparams_per_token")
def _choose_per_token(c: Context) -> Result:
    x = c.cast(c.tensor("input"), dtypes.F32)
    axes = (x.type.rank - 1,)
    most = c.op_("reduce_max", c.op_("abs", x), axes=axes, keepdims=True)
    scale = c.op_("div", c.op_("max", most, c.scalar(1e-5, dtypes.F32)), c.scalar(127.0, dtypes.F32))
    return _as_results(c, scale, c.expand(c.scalar(0.0, dtypes.F32), scale.type.shape))


@aten_op(f"{PT2E}choose_qparams_per_token_asymmetric", f"{PT2E}_choose_qparams_per_token_asymmetric_impl")
def _choose_per_token_asymmetric(c: Context) -> Result:
    x = c.cast(c.tensor("input"), dtypes.F32)
    least, most = quantized_range(dtypes.I8)
    low, high = _extremes(c, x, (x.type.rank - 1,))
    scale = c.op_("div", c.op_("sub", high, low), c.scalar(most - least, dtypes.F32))
    scale = c.op_("max", scale, c.scalar(float(np.finfo(np.float32).eps), dtypes.F32))
    below, above = c.op_("div", low, scale), c.op_("div", high, scale)
    bounds = c.scalar(least, dtypes.F32), c.scalar(most, dtypes.F32)
    from_low, from_high = c.op_("add", bounds[0], below), c.op_("add", bounds[1], above)
    is_low = c.op_("gt", c.op_("add", from_low, from_high), c.scalar(0.0, dtypes.F32))
    zero = c.op_("where", is_low, c.op_("sub", bounds[0], below), c.op_("sub", bounds[1], above))
    return _as_results(c, scale, c.op_("round", c.op_("clip", zero, *bounds)))


# Fake quantization: quantized and dequantized in one.


def _fake(c: Context, x: Value, scale: Any, zero: Any, axis: int = 0) -> tuple[Value, Parameters]:
    low, high = c.number("quant_min"), c.number("quant_max")
    fitting = [each for each in _TYPES if quantized_range(each)[0] <= low and high <= quantized_range(each)[1]]
    if not fitting:
        c.unsupported(f"a quantization to numbers from {low:g} to {high:g}")
    parameters = _parameters(c, x, scale, zero, fitting[0], axis)
    numbers = _quantized(c, x, parameters, low, high, fitting[0])
    return c.cast(parameters.dequantize(numbers), x.type.dtype), parameters


def _inside(c: Context, x: Value, parameters: Parameters) -> Value:
    """Whether each number was not bounded."""
    scaled = c.op_("round", c.op_("div", c.cast(x, dtypes.F32), parameters.scale))
    if parameters.zero is not None:
        scaled = c.op_("add", scaled, c.cast(parameters.zero, dtypes.F32))
    low, high = (c.scalar(c.number(name), dtypes.F32) for name in ("quant_min", "quant_max"))
    return c.op_("and", c.op_("ge", scaled, low), c.op_("le", scaled, high))


@aten_op(
    "fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine", f"{PT2E}fake_quant_per_channel",
    "fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
)  # fmt: skip
def _fake_quantize(c: Context) -> Result:
    x = c.tensor("input" if c.op.startswith(PT2E) else "self")
    by_channel = "per_channel" in c.op
    scale = c["scales"] if c.op.startswith(PT2E) else c["scale"]
    zero = c["zero_points"] if c.op.startswith(PT2E) else c["zero_point"]
    made, parameters = _fake(c, x, scale, zero, _axis(c, x) if by_channel else 0)
    if c.has("fake_quant_enabled"):
        enabled = c.cast(c.reshape(c.tensor("fake_quant_enabled"), ()), dtypes.BOOL)
        made = c.op_("where", enabled, made, x)
    if "cachemask" not in c.op:
        return made
    return (made, _inside(c, x, parameters) if 1 in c.used else None)


# Products.


@aten_op("_int_mm")
def _int_mm(c: Context) -> Result:
    return matrix_sums(c.builder, c.tensor("self"), c.tensor("mat2"), None, None)


@aten_op("_weight_int8pack_mm")
def _weight_int8(c: Context) -> Result:
    x, weight, scale = c.tensor("self"), c.tensor("mat2"), c.tensor("scales")
    made = _parameters(c, weight, scale, None, dtypes.I8, 0).dequantize(weight)
    # Its kernels multiply and add in f32 and round the sums alone, whatever the type of x.
    product = c.op_("matmul", c.cast(x, dtypes.F32), c.cast(c.transpose(made, (1, 0)), dtypes.F32))
    return c.cast(product, x.type.dtype)
