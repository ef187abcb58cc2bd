"""ATen converters of functions of one element: mathematics, rounding, tests and activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from aot import dtypes
from aot.dims import DimExpr
from aot.frontend.aten_types import computing, filled, typed
from aot.frontend.torch_registry import Context, Result, aten_op
from aot.ir import Value

# Functions that the op table has; whole numbers become floats first.
_FUNCTIONS: Mapping[str, str] = {
    "acos": "acos", "acosh": "acosh", "asin": "asin", "asinh": "asinh", "atan": "atan", "atanh": "atanh",
    "cos": "cos", "cosh": "cosh", "digamma": "digamma", "erf": "erf", "erfc": "erfc", "erfinv": "erfinv", "exp": "exp",
    "expm1": "expm1", "i0": "bessel_i0", "lgamma": "lgamma", "log": "log", "log1p": "log1p", "mish": "mish",
    "reciprocal": "reciprocal", "rsqrt": "rsqrt", "sigmoid": "sigmoid", "silu": "silu", "sin": "sin", "sinh": "sinh",
    "special_erfcx": "erfcx", "special_i0": "bessel_i0", "special_i0e": "bessel_i0e", "special_i1": "bessel_i1",
    "special_i1e": "bessel_i1e", "special_erfc": "erfc", "special_erfinv": "erfinv", "special_digamma": "digamma",
    "special_modified_bessel_i0": "bessel_i0", "special_modified_bessel_i1": "bessel_i1", "special_gammaln": "lgamma",
    "sqrt": "sqrt", "tan": "tan", "tanh": "tanh", "hardswish": "hardswish",
}  # fmt: skip

for _name, _op in _FUNCTIONS.items():

    @aten_op(_name)
    def _function(c: Context, op: str = _op) -> Result:
        return c.op_(op, c.cast(c.tensor("self"), c.dtype))


# Functions that are one of the above, scaled; in f64, so that whole powers come out whole.
_SCALED: Mapping[str, tuple[str, float, float]] = {
    "exp2": ("exp", math.log(2.0), 1.0),
    "log2": ("log", 1.0, 1.0 / math.log(2.0)),
    "log10": ("log", 1.0, 1.0 / math.log(10.0)),
}

for _name, _parts in _SCALED.items():

    @aten_op(_name, f"special_{_name}")
    def _scaled(c: Context, parts: tuple[str, float, float] = _parts) -> Result:
        function, before, after = parts
        x = c.cast(c.cast(c.tensor("self"), c.dtype), dtypes.F64)
        x = c.op_("mul", x, c.scalar(before, dtypes.F64)) if before != 1.0 else x
        x = c.op_(function, x)
        return c.cast(c.op_("mul", x, c.scalar(after, dtypes.F64)) if after != 1.0 else x, c.dtype)


# Functions of whole numbers and of floats, by families that they leave alone.
_KEEPS: Mapping[str, str] = {
    "abs": "b",
    "sign": "b",
    "sgn": "b",
    "floor": "bi",
    "ceil": "bi",
    "trunc": "bi",
    "fix": "bi",
}

for _name, _families in _KEEPS.items():

    @aten_op(_name)
    def _keeps(c: Context, name: str = _name, families: str = _families) -> Result:
        x = c.tensor("self")
        if x.type.dtype.is_bool or ("i" in families and x.type.dtype.is_integer):
            return x
        if name in ("sign", "sgn") and x.type.dtype.is_float:  # the sign of NaN is 0
            zero = c.scalar(0.0, x.type.dtype)
            sides = [c.cast(c.op_(side, x, zero), x.type.dtype) for side in ("gt", "lt")]
            return c.op_("sub", *sides)
        return c.op_({"sgn": "sign", "fix": "trunc"}.get(name, name), x)


@aten_op("neg")
def _neg(c: Context) -> Result:
    return c.op_("neg", c.tensor("self"))


@aten_op("square")
def _square(c: Context) -> Result:
    x = c.cast(c.tensor("self"), c.dtype)
    return c.op_("and" if c.dtype.is_bool else "mul", x, x)


@aten_op("frac")
def _frac(c: Context) -> Result:
    x = c.tensor("self")
    return c.op_("sub", x, c.op_("trunc", x))


@aten_op("round")
def _round(c: Context) -> Result:
    decimals = c.integer("decimals") if c.has("decimals") else 0
    if not c.dtype.is_float:
        return c.tensor("self")

    def compute(x: Value) -> Value:
        if not decimals:
            return c.op_("round", x)
        ten = c.scalar(10.0 ** abs(decimals), x.type.dtype)
        before, after = ("mul", "div") if decimals > 0 else ("div", "mul")
        return c.op_(after, c.op_("round", c.op_(before, x, ten)), ten)

    return computing(c, c.dtype, compute, c["self"])


@aten_op("sinc")
def _sinc(c: Context) -> Result:
    def compute(x: Value) -> Value:
        turned = c.op_("mul", x, c.scalar(math.pi, x.type.dtype))
        zero, one = c.scalar(0.0, x.type.dtype), c.scalar(1.0, x.type.dtype)
        return c.op_("where", c.op_("eq", x, zero), one, c.op_("div", c.op_("sin", turned), turned))

    return computing(c, c.dtype, compute, c["self"])


@aten_op("logit", "special_logit")
def _logit(c: Context) -> Result:
    def compute(x: Value) -> Value:
        one = c.scalar(1.0, x.type.dtype)
        if c.has("eps"):
            bounds = [c.scalar(bound, x.type.dtype) for bound in (c.number("eps"), 1.0 - c.number("eps"))]
            x = c.op_("clip", x, *bounds)
        return c.op_("log", c.op_("div", x, c.op_("sub", one, x)))

    return computing(c, c.dtype, compute, c["self"])


@aten_op("polygamma", "special_polygamma")
def _polygamma(c: Context) -> Result:
    """(-1)^(n+1) n! zeta(n + 1, x); below 1/2 by reflection, with the derivatives of the cotangent."""
    order = c.integer("n")
    if order == 0:
        return c.op_("digamma", c.cast(c.tensor("self"), c.dtype))
    x = c.cast(c.cast(c.tensor("self"), c.dtype), dtypes.F64)

    def number(value: float) -> Value:
        return c.scalar(value, dtypes.F64)

    left = c.op_("lt", x, number(0.5))
    start = c.op_("where", left, c.op_("sub", number(1.0), x), x)
    factor = math.factorial(order) * (-1.0 if order % 2 == 0 else 1.0)
    right = c.op_("zeta", c.expand(number(order + 1.0), start.type.shape), start)
    right = c.op_("mul", number(factor), right)
    turns = c.op_("sub", x, c.op_("round", x))
    angle = c.op_("mul", turns, number(math.pi))
    cotangent = c.op_("div", c.op_("cos", angle), c.op_("sin", angle))
    curve = number(0.0)
    for coefficient in _cotangent_derivative(order):
        curve = c.op_("add", c.op_("mul", curve, cotangent), number(coefficient * -(math.pi ** (order + 1))))
    reflected = c.op_("add" if order % 2 == 0 else "sub", curve, right)
    pole = c.op_("and", left, c.op_("eq", turns, number(0.0)))
    reflected = c.op_("where", pole, number(math.copysign(math.inf, factor)), reflected)
    return c.cast(c.op_("where", left, reflected, right), c.dtype)


def _cotangent_derivative(order: int) -> list[float]:
    """The derivative of the cotangent as a polynomial of it, the highest power first: c' = -(1 + c^2)."""
    lowest_first = [0.0, 1.0]
    for _ in range(order):
        slope = [power * factor for power, factor in enumerate(lowest_first)][1:]
        lowest_first = [0.0] * (len(slope) + 2)
        for power, factor in enumerate(slope):
            lowest_first[power] -= factor
            lowest_first[power + 2] -= factor
    return lowest_first[::-1]


@aten_op("special_ndtr")
def _ndtr(c: Context) -> Result:
    x = c.cast(c.cast(c.tensor("self"), c.dtype), dtypes.F64)
    half = c.op_("erfc", c.op_("mul", x, c.scalar(-math.sqrt(0.5), dtypes.F64)))
    return c.cast(c.op_("mul", half, c.scalar(0.5, dtypes.F64)), c.dtype)


@aten_op("special_ndtri")
def _ndtri(c: Context) -> Result:
    x = c.cast(c.cast(c.tensor("self"), c.dtype), dtypes.F64)
    centred = c.op_("sub", c.op_("mul", x, c.scalar(2.0, dtypes.F64)), c.scalar(1.0, dtypes.F64))
    return c.cast(c.op_("mul", c.op_("erfinv", centred), c.scalar(math.sqrt(2.0), dtypes.F64)), c.dtype)


@aten_op("special_log_ndtr")
def _log_ndtr(c: Context) -> Result:
    """log(erfcx(-x / sqrt 2) / 2) - x^2 / 2 left of -1, where the probability itself would vanish."""
    x = c.cast(c.cast(c.tensor("self"), c.dtype), dtypes.F64)

    def number(value: float) -> Value:
        return c.scalar(value, dtypes.F64)

    turned = c.op_("mul", x, number(-math.sqrt(0.5)))
    half = number(0.5)
    scaled = c.op_("mul", c.op_("erfcx", c.op_("max", turned, number(0.0))), half)
    far = c.op_("sub", c.op_("log", scaled), c.op_("mul", c.op_("mul", x, x), half))
    upper = c.op_("mul", c.op_("erfc", c.op_("neg", turned)), half)
    near = c.op_("log1p", c.op_("neg", upper))
    return c.cast(c.op_("where", c.op_("lt", x, number(-1.0)), far, near), c.dtype)


@aten_op("special_entr")
def _entr(c: Context) -> Result:
    def compute(x: Value) -> Value:
        zero = c.scalar(0.0, x.type.dtype)
        inner = c.op_("neg", c.op_("mul", x, c.op_("log", x)))
        outer = c.op_("where", c.op_("eq", x, zero), zero, c.scalar(-math.inf, x.type.dtype))
        found = c.op_("where", c.op_("gt", x, zero), inner, outer)
        return c.op_("where", c.op_("isnan", x), x, found)

    return computing(c, c.dtype, compute, c["self"])


@aten_op("angle")
def _angle(c: Context) -> Result:
    """Of real numbers: pi left of 0."""
    x = c.cast(c.tensor("self"), c.dtype)
    zero = c.scalar(0.0, c.dtype)
    found = c.op_("where", c.op_("lt", x, zero), c.scalar(math.pi, c.dtype), zero)
    return c.op_("where", c.op_("isnan", x), x, found)


@aten_op("frexp")
def _frexp(c: Context) -> Result:
    """Mantissa and exponent by the bits of an f64; what is subnormal there is scaled first."""
    x = c.cast(c.tensor("self"), dtypes.F64)
    tiny = c.op_("lt", c.op_("abs", x), c.scalar(2.0**-1022, dtypes.F64))
    scaled = c.op_("where", tiny, c.op_("mul", x, c.scalar(2.0**64, dtypes.F64)), x)
    bits = c.op_("bitcast", scaled, to=dtypes.I64)
    field = c.op_("and", c.op_("shr", bits, c.scalar(52, dtypes.I64)), c.scalar(2047, dtypes.I64))
    exponent = c.op_("sub", field, c.op_("where", tiny, c.scalar(1086, dtypes.I64), c.scalar(1022, dtypes.I64)))
    kept = c.op_("or", c.op_("and", bits, c.scalar(-(2047 << 52) - 1, dtypes.I64)), c.scalar(1022 << 52, dtypes.I64))
    mantissa = c.op_("bitcast", kept, to=dtypes.F64)
    zero = c.scalar(0.0, dtypes.F64)
    plain = c.op_("or", c.op_("eq", x, zero), c.op_("or", c.op_("isnan", x), c.op_("isinf", x)))
    mantissa = c.op_("where", plain, x, mantissa)
    exponent = c.op_("where", plain, c.scalar(0, dtypes.I64), exponent)
    return c.cast(mantissa, c.dtype), c.cast(exponent, dtypes.I32)


# Tests


@aten_op("isnan", "isinf", "isposinf", "isneginf", "isfinite")
def _tests(c: Context) -> Result:
    x, name = c.tensor("self"), c.op.partition(".")[0]
    if not x.type.dtype.is_float:
        return filled(c, name == "isfinite", dtypes.BOOL, x.type.shape)
    if name == "isnan":
        return c.op_("isnan", x)
    if name == "isfinite":
        return c.op_("not", c.op_("or", c.op_("isnan", x), c.op_("isinf", x)))
    return c.op_("isinf", x, detect_negative=name != "isposinf", detect_positive=name != "isneginf")


@aten_op("signbit")
def _signbit(c: Context) -> Result:
    x = c.tensor("self")
    if x.type.dtype.is_bool:
        return filled(c, False, dtypes.BOOL, x.type.shape)
    if not x.type.dtype.is_float:
        return c.op_("lt", x, c.scalar(0, x.type.dtype))
    one, zero = c.scalar(1.0, x.type.dtype), c.scalar(0.0, x.type.dtype)
    return c.op_("lt", c.op_("copysign", one, x), zero)


# Activations


@aten_op("relu", "relu6")
def _relu(c: Context) -> Result:
    x = c.tensor("self")
    if c.op.startswith("relu6"):
        return c.op_("clip", x, typed(c, 0, c.dtype), typed(c, 6, c.dtype))
    return x if x.type.dtype.is_bool else c.op_("relu", x)


@aten_op("gelu")
def _gelu(c: Context) -> Result:
    return c.op_("gelu", c.tensor("self"), approximate=c.text("approximate", "none"))


@aten_op("leaky_relu")
def _leaky_relu(c: Context) -> Result:
    x, slope = c.tensor("self"), c["negative_slope"]
    if not isinstance(slope, Value | DimExpr):
        return c.op_("leaky_relu", x, alpha=c.number("negative_slope"))
    below = c.op_("mul", x, c.number_value(slope, x.type.dtype))
    return c.op_("where", c.op_("gt", x, c.scalar(0.0, x.type.dtype)), x, below)


@aten_op("hardsigmoid")
def _hardsigmoid(c: Context) -> Result:
    return c.op_("hardsigmoid", c.tensor("self"), alpha=1.0 / 6.0, beta=0.5)


@aten_op("elu", "celu", "selu")
def _elu(c: Context) -> Result:
    """x * scale, or (exp(x * input_scale) - 1) * alpha * scale where x < 0."""
    x, name = c.tensor("self"), c.op.partition(".")[0]
    alpha = c.number("alpha", 1.0)
    if name != "elu":
        return c.op_("celu", x, alpha=alpha) if name == "celu" else c.op_("selu", x)
    scale, inner = c.number("scale", 1.0), c.number("input_scale", 1.0)
    if scale == 1.0 and inner == 1.0:
        return c.op_("elu", x, alpha=alpha)
    if scale == 1.0 and math.isclose(inner * alpha, 1.0, rel_tol=1e-12):
        return c.op_("celu", x, alpha=alpha)
    if inner == 1.0:
        return c.op_("selu", x, alpha=alpha, gamma=scale)

    def compute(row: Value) -> Value:
        dtype = row.type.dtype
        power = c.op_("expm1", c.op_("mul", row, c.scalar(inner, dtype)))
        left, right = c.op_("mul", power, c.scalar(alpha * scale, dtype)), c.op_("mul", row, c.scalar(scale, dtype))
        return c.op_("where", c.op_("lt", row, c.scalar(0.0, dtype)), left, right)

    return computing(c, c.dtype, compute, x)


@aten_op("softplus")
def _softplus(c: Context) -> Result:
    beta, threshold = c.number("beta", 1.0), c.number("threshold", 20.0)

    def compute(x: Value) -> Value:
        scaled = c.op_("mul", x, c.scalar(beta, x.type.dtype)) if beta != 1.0 else x
        soft = c.op_("softplus", scaled)
        soft = c.op_("div", soft, c.scalar(beta, x.type.dtype)) if beta != 1.0 else soft
        # Above 20 the two differ by less than rounding does.
        if threshold >= 20.0 and x.type.dtype is dtypes.F32:
            return soft
        return c.op_("where", c.op_("gt", scaled, c.scalar(threshold, x.type.dtype)), x, soft)

    return computing(c, c.dtype, compute, c["self"])


@aten_op("threshold")
def _threshold(c: Context) -> Result:
    x = c.tensor("self")
    limit, value = c["threshold"], typed(c, c["value"], c.dtype)
    if c.dtype.is_float and c["value"] == 0:
        return _not_above(c, x, limit, c.scalar(0.0, c.dtype))
    return _not_above(c, x, limit, value)


def _not_above(c: Context, x: Value, limit: object, value: Value) -> Value:
    """The value where x <= limit, else x."""
    return c.op_("where", c.op_("le", x, typed(c, limit, c.dtype)), value, x)


@aten_op("prelu", "_prelu_kernel")
def _prelu(c: Context) -> Result:
    x, slope = c.tensor("self"), c.tensor("weight")
    if c.op.startswith("prelu") and slope.type.rank == 1 and x.type.rank > 1:
        slope = c.reshape(slope, (slope.type.shape[0], *(1,) * (x.type.rank - 2)))
    elif slope.type.rank == 1 and x.type.rank == 0:
        slope = c.reshape(slope, ())
    return c.op_("prelu", x, slope)


@aten_op("hardshrink", "softshrink")
def _shrink(c: Context) -> Result:
    x, limit = c.tensor("self"), c.number("lambd", 0.5)
    found = c.op_("shrink", x, lambd=limit, bias=limit if c.op.startswith("softshrink") else 0.0)
    return c.op_("where", c.op_("isnan", x), x, found)


@aten_op("log_sigmoid_forward", "log_sigmoid")
def _log_sigmoid(c: Context) -> Result:
    x = c.tensor("self")
    found = c.op_("neg", c.op_("softplus", c.op_("neg", x)))
    if c.op.startswith("log_sigmoid_forward"):
        return found, c.op_("exp", c.op_("neg", c.op_("abs", x)))
    return found


@aten_op("glu")
def _glu(c: Context) -> Result:
    x = c.tensor("self")
    axis = c.axis("dim", x.type.rank)
    extent = x.type.shape[axis]
    half = extent // 2 if isinstance(extent, int) else None
    if half is None:
        c.unsupported("glu along an axis of unknown length")
    first, second = c.slice_axis(x, axis, 0, half), c.slice_axis(x, axis, half, half)
    return c.op_("mul", first, c.op_("sigmoid", second))


_FOLDED: Mapping[str, Callable[[Context, Value], Value]] = {
    "deg2rad": lambda c, x: c.op_("mul", x, c.scalar(math.pi / 180.0, x.type.dtype)),
    "rad2deg": lambda c, x: c.op_("mul", x, c.scalar(180.0 / math.pi, x.type.dtype)),
    "softsign": lambda c, x: c.op_("softsign", x),
}

for _name, _compose in _FOLDED.items():

    @aten_op(_name)
    def _folded(c: Context, compose: Callable[[Context, Value], Value] = _compose) -> Result:
        return computing(c, c.dtype, lambda x: compose(c, x), c["self"])
