"""ATen converters of elementwise arithmetic, comparisons, logic, bounds and casts."""

from __future__ import annotations

import math
from typing import Any

from aot import dtypes
from aot.dtypes import DType
from aot.frontend.aten_types import common_dtype, computing, convert, extreme, filled, pair, truth, typed
from aot.frontend.torch_registry import Context, Result, aten_op
from aot.ir import Value
from aot.ops.helpers import wide_dtype
from aot.ops.opdef import broadcast_shapes

# Arithmetic


def _with_number(c: Context, *names: str) -> DType:
    """The type to compute in: half types only where both operands are tensors; factors are not rounded to them."""
    return c.dtype if all(isinstance(c[name], Value) for name in names) else wide_dtype(c.dtype)


@aten_op("add", "sub", "rsub")
def _add(c: Context) -> Result:
    alpha = c["alpha"] if c.has("alpha") else 1
    if c.dtype.is_bool:
        left, right = pair(c, dtypes.BOOL)
        return c.op_("or", left, right) if alpha else left
    # Torch rounds numbers beside half types to these here, but not factors.
    dtype = c.dtype if alpha == 1 else wide_dtype(c.dtype)
    left, right = (c.cast(part, dtype) for part in pair(c, c.dtype))
    if c.op.startswith("rsub"):
        left, right = right, left
    if alpha != 1:
        # The one that is scaled is the second of the difference, whichever that is.
        right = c.op_("mul", right, c.cast(typed(c, alpha, c.dtype), dtype))
    return c.cast(c.op_("add" if c.op.startswith("add") else "sub", left, right), c.dtype)


@aten_op("mul")
def _mul(c: Context) -> Result:
    if c.dtype.is_bool:
        return c.op_("and", *pair(c, dtypes.BOOL))
    return c.cast(c.op_("mul", *pair(c, _with_number(c, "self", "other"))), c.dtype)


@aten_op("div", "floor_divide", "true_divide")
def _div(c: Context) -> Result:
    mode = "floor" if c.op.startswith("floor_divide") else c.text("rounding_mode")
    if not c.dtype.is_float:
        return c.op_("div" if mode == "trunc" else "floordiv", *pair(c, c.dtype))
    if mode == "floor":
        return c.cast(c.op_("floordiv", *pair(c, wide_dtype(c.dtype))), c.dtype)
    # Torch rounds the quotient of half types before it cuts it.
    quotient = c.cast(c.op_("div", *pair(c, _with_number(c, "self", "other"))), c.dtype)
    return c.op_("trunc", quotient) if mode == "trunc" else quotient


@aten_op("remainder", "fmod")
def _remainder(c: Context) -> Result:
    name = "mod" if c.op.startswith("remainder") else "fmod"
    return computing(c, c.dtype, lambda x, y: c.op_(name, x, y), c["self"], c["other"])


@aten_op("pow", "float_power")
def _pow(c: Context) -> Result:
    base, exponent = c["self"], c["exponent"]
    if c.dtype.is_bool:  # 0 to the 0 is 1
        left, right = pair(c, dtypes.BOOL, "self", "exponent")
        return c.op_("or", left, c.op_("not", right))
    root = {0.5: "sqrt", -0.5: "rsqrt"}.get(exponent) if isinstance(exponent, float) else None
    if root is not None and c.dtype.is_float:  # of -0 and -inf, too
        return c.op_(root, typed(c, base, c.dtype))
    return computing(c, c.dtype, lambda x, y: c.op_("pow", x, y), base, exponent)


@aten_op("addcmul", "addcdiv")
def _addcmul(c: Context) -> Result:
    def compute(x: Value, left: Value, right: Value) -> Value:
        if c["value"] != 1:
            left = c.op_("mul", left, typed(c, c["value"], left.type.dtype))
        return c.op_("add", x, c.op_("mul" if c.op.startswith("addcmul") else "div", left, right))

    return computing(c, c.dtype, compute, c["self"], c["tensor1"], c["tensor2"])


@aten_op("lerp")
def _lerp(c: Context) -> Result:
    def compute(start: Value, end: Value, weight: Value) -> Value:
        distance = c.op_("sub", end, start)
        one = c.scalar(1.0, weight.type.dtype)
        near = c.op_("add", start, c.op_("mul", weight, distance))
        far = c.op_("sub", end, c.op_("mul", distance, c.op_("sub", one, weight)))
        small = c.op_("lt", c.op_("abs", weight), c.scalar(0.5, weight.type.dtype))
        return c.op_("where", small, near, far)

    wide = wide_dtype(c.dtype)  # a weight is not rounded
    return c.cast(compute(*(typed(c, c[name], wide) for name in ("self", "end", "weight"))), c.dtype)


for _name, _op in (("atan2", "atan2"), ("hypot", "hypot"), ("copysign", "copysign"), ("special_zeta", "zeta")):

    @aten_op(_name)
    def _two(c: Context, op: str = _op) -> Result:
        return c.op_(op, *pair(c, c.dtype))


def _expanded(c: Context, left: Value, right: Value) -> tuple[Value, Value]:
    shape = broadcast_shapes(left.type.shape, right.type.shape)
    return c.expand(left, shape), c.expand(right, shape)


@aten_op("igamma", "igammac", "special_gammainc", "special_gammaincc")
def _incomplete_gamma(c: Context) -> Result:
    upper = c.op.partition(".")[0] in ("igammac", "special_gammaincc")

    def compute(a: Value, x: Value) -> Value:
        return c.op_("gamma_incomplete", *_expanded(c, a, x), upper=upper)

    return computing(c, c.dtype, compute, c["self"], c["other"])


@aten_op("gcd", "lcm")
def _gcd(c: Context) -> Result:
    x, y = _expanded(c, *pair(c, c.dtype))
    divisor = c.op_("gcd", x, y)
    if c.op.startswith("gcd"):
        return divisor
    product = c.op_("abs", c.op_("mul", c.op_("div", x, divisor), y))  # of 0 and 0, 0 / 0 is 0
    return product


@aten_op("nextafter")
def _nextafter(c: Context) -> Result:
    """The bits of floats of one sign are in the order of the floats."""
    x, towards = pair(c, c.dtype)
    whole = {16: dtypes.I16, 32: dtypes.I32, 64: dtypes.I64}[c.dtype.bits]
    zero, one = c.scalar(0, whole), c.scalar(1, whole)
    bits = c.op_("bitcast", x, to=whole)
    up = c.op_("lt", x, towards)
    away = c.op_("eq", up, c.op_("ge", bits, zero))
    moved = c.op_("where", away, c.op_("add", bits, one), c.op_("sub", bits, one))
    least = c.op_("where", up, one, c.scalar(-(1 << (whole.bits - 1)) + 1, whole))
    is_zero = c.op_("eq", x, c.scalar(0.0, c.dtype))
    stepped = c.op_("bitcast", c.op_("where", is_zero, least, moved), to=c.dtype)
    result = c.op_("where", c.op_("eq", x, towards), towards, stepped)
    odd = c.op_("or", c.op_("isnan", x), c.op_("isnan", towards))
    return c.op_("where", odd, c.scalar(math.nan, c.dtype), result)


@aten_op("logaddexp", "logaddexp2")
def _logaddexp(c: Context) -> Result:
    scale = math.log(2.0) if c.op.startswith("logaddexp2") else 1.0

    def compute(x: Value, y: Value) -> Value:
        dtype = x.type.dtype
        top, distance = c.op_("max", x, y), c.op_("sub", x, y)
        power = c.op_("exp", c.op_("mul", c.op_("neg", c.op_("abs", distance)), c.scalar(scale, dtype)))
        total = c.op_("add", top, c.op_("mul", c.op_("log1p", power), c.scalar(1.0 / scale, dtype)))
        same_infinity = c.op_("and", c.op_("isinf", x), c.op_("eq", x, y))
        return c.op_("where", same_infinity, x, total)

    return computing(c, c.dtype, compute, c["self"], c["other"])


@aten_op("ldexp")
def _ldexp(c: Context) -> Result:
    def compute(x: Value, places: Value) -> Value:
        return c.op_("mul", x, c.op_("pow", c.scalar(2.0, x.type.dtype), places))

    return computing(c, c.dtype, compute, c["self"], c["other"])


@aten_op("xlogy", "special_xlog1py")
def _xlogy(c: Context) -> Result:
    def compute(x: Value, y: Value) -> Value:
        zero = c.scalar(0.0, x.type.dtype)
        product = c.op_("mul", x, c.op_("log" if c.op.startswith("xlogy") else "log1p", y))
        found = c.op_("where", c.op_("eq", x, zero), zero, product)
        return c.op_("where", c.op_("isnan", y), y, found)

    return computing(c, c.dtype, compute, c["self"], c["other"])


# Comparisons and logic


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):

    @aten_op(_name)
    def _compare(c: Context, op: str = _name) -> Result:
        dtype = common_dtype(c, "self", "other")
        if dtype.is_bool and op not in ("eq", "ne"):
            dtype = dtypes.U8
        return c.op_(op, *pair(c, dtype))


@aten_op("logical_and", "logical_or", "logical_xor")
def _logical(c: Context) -> Result:
    name = c.op.partition(".")[0].removeprefix("logical_")
    left, right = pair(c, common_dtype(c, "self", "other"))  # 256 is false beside u8
    return c.op_(name, truth(c, left), truth(c, right))


@aten_op("logical_not")
def _logical_not(c: Context) -> Result:
    return c.op_("not", truth(c, c.tensor("self")))


@aten_op("bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__")
def _bitwise(c: Context) -> Result:
    name = c.op.partition(".")[0].removeprefix("bitwise_").strip("_")
    return c.op_(name, *pair(c, c.dtype))


@aten_op("bitwise_not")
def _bitwise_not(c: Context) -> Result:
    return c.op_("not", c.tensor("self"))


@aten_op("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")
def _shift(c: Context) -> Result:
    left = "left" in c.op or "lshift" in c.op
    if not c.dtype.is_float:
        return c.op_("shl" if left else "shr", *pair(c, c.dtype))

    def compute(x: Value, places: Value) -> Value:
        factor = c.op_("pow", c.scalar(2.0, x.type.dtype), places)
        return c.op_("mul" if left else "div", x, factor)

    return computing(c, c.dtype, compute, c["self"], c["other"])


@aten_op("isclose")
def _isclose(c: Context) -> Result:
    dtype = common_dtype(c, "self", "other")
    left, right = pair(c, dtype)
    same = c.op_("eq", left, right)
    if not dtype.is_float:
        dtype = dtypes.F64
        left, right = c.cast(left, dtype), c.cast(right, dtype)
    size = c.op_("mul", c.op_("abs", right), c.scalar(c.number("rtol"), dtype))
    allowed = c.op_("add", size, c.scalar(c.number("atol"), dtype))
    distance = c.op_("abs", c.op_("sub", left, right))
    near = c.op_("and", c.op_("not", c.op_("isinf", distance)), c.op_("le", distance, allowed))
    found = c.op_("or", same, near)
    if c.flag("equal_nan"):
        found = c.op_("or", found, c.op_("and", c.op_("isnan", left), c.op_("isnan", right)))
    return found


# Bounds and choices


@aten_op("maximum", "minimum")
def _maximum(c: Context) -> Result:
    return extreme(c, "max" if c.op.startswith("max") else "min", *pair(c, c.dtype))


@aten_op("fmax", "fmin")
def _fmax(c: Context) -> Result:
    left, right = pair(c, c.dtype)
    found = extreme(c, "max" if c.op.startswith("fmax") else "min", left, right)
    if not c.dtype.is_float:
        return found
    found = c.op_("where", c.op_("isnan", right), left, found)
    return c.op_("where", c.op_("isnan", left), right, found)


@aten_op("clamp", "clamp_min", "clamp_max", "clip", "hardtanh")
def _clamp(c: Context) -> Result:
    """min(max(x, lo), hi); the bounds may be tensors."""
    names = ("min_val", "max_val") if c.op.startswith("hardtanh") else ("min", "max")
    lo, hi = (c.arguments.get(name) for name in names)
    x = c.cast(c.tensor("self"), c.dtype)
    if all(bound is None or not isinstance(bound, Value) for bound in (lo, hi)) and not c.dtype.is_bool:
        if any(isinstance(bound, float) and bound != bound for bound in (lo, hi)):
            return filled(c, math.nan, c.dtype, x.type.shape)
        bounds = [None if bound is None else _bound(c, bound) for bound in (lo, hi)]
        known = c.builder.known(x) is not None
        if not known:
            return c.op_("clip", x, *bounds) if any(bound is not None for bound in bounds) else x
    for name, bound in (("max", lo), ("min", hi)):
        if bound is not None:
            x = extreme(c, name, x, typed(c, bound, c.dtype))
    return x


def _bound(c: Context, bound: Any) -> Value:
    """A number as a bound of the result's type.

    Below 0 it wraps around in unsigned types, as torch's does; what torch refuses does not bind.
    """
    dtype = c.dtype
    if dtype.is_integer and isinstance(bound, int | float):
        low = -(1 << (dtype.bits - 1)) if dtype.family == "int" else 0
        wraps = low == 0 and -(1 << dtype.bits) < bound < 0
        bound = int(bound) % (1 << dtype.bits) if wraps else min(max(bound, low), low + (1 << dtype.bits) - 1)
    return typed(c, bound, dtype)


@aten_op("where")
def _where(c: Context) -> Result:
    if not isinstance(c.arguments.get("self"), Value) and "self" not in c.arguments:
        c.unsupported("where of one operand")
    left, right = pair(c, c.dtype)
    return c.op_("where", truth(c, c.tensor("condition")), left, right)


@aten_op("nan_to_num")
def _nan_to_num(c: Context) -> Result:
    x = c.tensor("self")
    if not c.dtype.is_float:
        return x
    largest = _largest(c.dtype)
    found = c.op_("where", c.op_("isnan", x), typed(c, c.number("nan", 0.0), c.dtype), x)
    top, bottom = c.number("posinf", largest), c.number("neginf", -largest)
    for number, infinity in ((top, math.inf), (bottom, -math.inf)):
        found = c.op_("where", c.op_("eq", x, c.scalar(infinity, c.dtype)), typed(c, number, c.dtype), found)
    return found


def _largest(dtype: DType) -> float:
    """The largest finite number of a float type."""
    return {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38}.get(
        dtype.name, 1.7976931348623157e308
    )


# Casts and copies


@aten_op("_to_copy", "to", "type_as", "prims::convert_element_type", "prims::_convert_element_type")
def _cast(c: Context) -> Result:
    x = c.tensor("a") if "a" in c.arguments else c.tensor("self")
    return convert(c, x, c.dtype)


@aten_op(
    "clone", "alias", "alias_copy", "detach", "detach_", "lift_fresh_copy", "lift_fresh", "lift", "contiguous",
    "positive", "resolve_conj", "resolve_neg", "conj", "_conj", "_conj_physical", "conj_physical", "real",
    "_neg_view", "view_of", "prims::view_of", "prims::clone", "expand_copy.out", "_fw_primal",
)  # fmt: skip
def _same(c: Context) -> Result:
    x = c.tensor("a") if "a" in c.arguments else c.tensor("self")
    return c.op_("neg", x) if c.op.startswith("_neg_view") else x


@aten_op("copy", "copy_")
def _copy(c: Context) -> Result:
    x = c.tensor("self")
    return c.expand(convert(c, c.tensor("src"), x.type.dtype), x.type.shape)


@aten_op("fill", "fill_")
def _fill(c: Context) -> Result:
    x = c.tensor("self")
    return filled(c, c["value"], x.type.dtype, x.type.shape)


@aten_op("result_type", "prims::device_put")
def _unchanged(c: Context) -> Result:
    return c.tensor("a")
