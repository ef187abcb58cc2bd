"""Converters of elementwise ONNX ops that are not 1:1: variadic ones, attributes, casts, old versions."""

from __future__ import annotations

from functools import reduce

from aot import dtypes
from aot.frontend.onnx_registry import Context, Result, onnx_op
from aot.ir import Value


@onnx_op("Identity")
def _identity(c: Context) -> Result:
    return c.input(0)


@onnx_op("Max", "Min", "Sum", "Mean")
def _variadic(c: Context) -> Result:
    name = {"Max": "max", "Min": "min", "Sum": "add", "Mean": "add"}[c.op_type]
    total = reduce(lambda a, b: c.op(name, a, b), [c.input(i) for i in range(c.count)])
    if c.op_type != "Mean" or c.count == 1:
        return total
    return c.op("div", total, c.scalar(float(c.count), total.type.dtype))


@onnx_op("Pow")
def _pow(c: Context) -> Result:
    base, exponent = c.input(0), c.input(1)
    if base.type.dtype is exponent.type.dtype:
        return c.op("pow", base, exponent)
    if base.type.dtype.is_float:
        return c.op("pow", base, c.cast(exponent, base.type.dtype))
    if not exponent.type.dtype.is_float:
        wide = max((base.type.dtype, exponent.type.dtype), key=lambda dtype: dtype.bits)
        return c.cast(c.op("pow", c.cast(base, wide), c.cast(exponent, wide)), base.type.dtype)
    # A cast drops what is behind the point: a power that is whole but for rounding is that number.
    power = c.op("pow", c.cast(base, dtypes.F64), c.cast(exponent, dtypes.F64))
    whole = c.op("round", power)
    apart = c.op("abs", c.op("sub", power, whole))
    near = c.op("le", apart, c.op("mul", c.op("abs", power), c.scalar(1e-12, dtypes.F64)))
    return c.cast(c.op("where", near, whole, power), base.type.dtype)


@onnx_op("Mod")
def _mod(c: Context) -> Result:
    if c.bool_attribute("fmod", False):
        return c.op("fmod", c.input(0), c.input(1))
    return c.op("mod", c.input(0), c.input(1))


@onnx_op("BitShift")
def _bit_shift(c: Context) -> Result:
    direction = c.text_attribute("direction")
    if direction not in ("LEFT", "RIGHT"):
        c.fail(f"direction is LEFT or RIGHT; it is {direction!r}")
    return c.op("shl" if direction == "LEFT" else "shr", c.input(0), c.input(1))


@onnx_op("Clip")
def _clip(c: Context) -> Result:
    x = c.input(0)
    dtype = x.type.dtype
    lo: Value | None = None
    hi: Value | None = None
    if c.opset < 11:
        lo = c.scalar(c.float_attribute("min"), dtype) if c.has_attribute("min") else None
        hi = c.scalar(c.float_attribute("max"), dtype) if c.has_attribute("max") else None
    else:
        lo, hi = (c.reshape(bound, ()) if bound is not None else None for bound in (c.optional(1), c.optional(2)))
    if lo is None and hi is None:
        return x
    if c.known(0) is not None:  # sizes stay known
        x = c.op("max", x, lo) if lo is not None else x
        return c.op("min", x, hi) if hi is not None else x
    return c.op("clip", x, lo, hi)


@onnx_op("Cast")
def _cast(c: Context) -> Result:
    return _converted(c, c.input(0), c.dtype_attribute("to"))


@onnx_op("CastLike")
def _cast_like(c: Context) -> Result:
    return _converted(c, c.input(0), c.dtype(1))


def _converted(c: Context, x: Value, to: dtypes.DType) -> Value:
    """A cast; float8 saturates unless the node says otherwise, which only floats outside its range can tell."""
    if to in (dtypes.F8E4M3, dtypes.F8E5M2) and x.type.dtype not in (dtypes.F8E4M3, dtypes.F8E5M2):
        if not c.bool_attribute("saturate", True):
            c.unsupported("casts to float8 that do not saturate")
        if c.has_attribute("round_mode") and c.text_attribute("round_mode") != "up":
            c.unsupported("round_mode other than 'up'")
        limit = 448.0 if to is dtypes.F8E4M3 else 57344.0
        if x.type.dtype.is_float:
            # Infinity saturates to the largest finite number; NaN stays.
            x = c.op("clip", x, c.scalar(-limit, x.type.dtype), c.scalar(limit, x.type.dtype))
    return c.cast(x, to)


@onnx_op("BitCast")
def _bit_cast(c: Context) -> Result:
    x, to = c.input(0), c.dtype_attribute("to")
    if to is x.type.dtype:
        return x
    if x.type.dtype.is_bool:  # a bool has the byte 0 or 1
        return c.cast(c.cast(x, dtypes.U8), to) if to.bits == 8 else c.op("bitcast", x, to=to)
    return c.op("bitcast", x, to=to)


@onnx_op("IsInf")
def _isinf(c: Context) -> Result:
    return c.op(
        "isinf",
        c.input(0),
        detect_negative=c.bool_attribute("detect_negative", True),
        detect_positive=c.bool_attribute("detect_positive", True),
    )


@onnx_op("LeakyRelu")
def _leaky_relu(c: Context) -> Result:
    return c.op("leaky_relu", c.input(0), alpha=c.float_attribute("alpha", 0.01))


@onnx_op("Elu")
def _elu(c: Context) -> Result:
    return c.op("elu", c.input(0), alpha=c.float_attribute("alpha", 1.0))


@onnx_op("Celu")
def _celu(c: Context) -> Result:
    return c.op("celu", c.input(0), alpha=c.float_attribute("alpha", 1.0))


@onnx_op("Selu")
def _selu(c: Context) -> Result:
    alpha = c.float_attribute("alpha", 1.6732631921768188)
    return c.op("selu", c.input(0), alpha=alpha, gamma=c.float_attribute("gamma", 1.0507010221481323))


@onnx_op("HardSigmoid")
def _hardsigmoid(c: Context) -> Result:
    alpha, beta = c.float_attribute("alpha", 0.2), c.float_attribute("beta", 0.5)
    return c.op("hardsigmoid", c.input(0), alpha=alpha, beta=beta)


@onnx_op("ThresholdedRelu")
def _thresholded_relu(c: Context) -> Result:
    return c.op("thresholded_relu", c.input(0), alpha=c.float_attribute("alpha", 1.0))


@onnx_op("Shrink")
def _shrink(c: Context) -> Result:
    x = c.input(0)
    bias, lambd = c.float_attribute("bias", 0.0), c.float_attribute("lambd", 0.5)
    if x.type.dtype.is_float:
        return c.op("shrink", x, bias=bias, lambd=lambd)
    wide = c.op("shrink", c.cast(x, dtypes.F64), bias=bias, lambd=lambd)
    return c.cast(wide, x.type.dtype)


@onnx_op("Gelu")
def _gelu(c: Context) -> Result:
    approximate = c.text_attribute("approximate", "none")
    if approximate not in ("none", "tanh"):
        c.fail(f"approximate is 'none' or 'tanh'; it is {approximate!r}")
    return c.op("gelu", c.input(0), approximate=approximate)


@onnx_op("Swish")
def _swish(c: Context) -> Result:
    x, alpha = c.input(0), c.float_attribute("alpha", 1.0)
    if alpha == 1.0:
        return c.op("silu", x)
    return c.op("mul", x, c.op("sigmoid", c.op("mul", x, c.scalar(alpha, x.type.dtype))))


@onnx_op("Dropout")
def _dropout(c: Context) -> Result:
    x = c.input(0)
    if c.has(2) and bool(c.number(2, "training_mode")) and (not c.has(1) or c.number(1, "ratio") != 0.0):
        c.unsupported("dropout in training mode")
    if not c.wants(1):
        return x
    mask_dtype = dtypes.BOOL if c.opset >= 10 else x.type.dtype
    return x, c.expand(c.scalar(True, mask_dtype), x.type.shape)
