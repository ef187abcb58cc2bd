"""ATen converters of complex numbers: parts, arithmetic, functions, products and what reduces them to real numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from aot.dims import Dim
from aot.dtypes import DType
from aot.frontend.aten_contract import matmul
from aot.frontend.aten_create import gauss
from aot.frontend.aten_types import filled, truth
from aot.frontend.aten_views import concat, swapped, without
from aot.frontend.torch_complex import (
    Complex,
    Parts,
    both_parts,
    complex_op,
    made,
    parts_of,
    widest,
    zeros,
)
from aot.frontend.torch_registry import Context, converter_of
from aot.ir import Value
from aot.ops.helpers import wide_dtype
from aot.ops.opdef import broadcast_shapes

# Parts


@complex_op("view_as_real", "view_as_real_copy")
def _view_as_real(c: Context) -> Any:
    x = c["self"]
    return _side_by_side(c, x)


def _side_by_side(c: Context, x: Complex) -> Value:
    parts = [c.reshape(part, (*part.type.shape, 1)) for part in (x.real, x.imaginary)]
    return concat(c, parts, x.type.rank)


@complex_op("view_as_complex", "view_as_complex_copy")
def _view_as_complex(c: Context) -> Any:
    x = c.tensor("self")
    last = x.type.rank - 1
    real, imaginary = (without(c, c.slice_axis(x, last, number, 1), last) for number in range(2))
    return Complex(real, imaginary)


@complex_op("view.dtype", "view_copy.dtype")
def _view_dtype(c: Context) -> Any:
    """complex64 as float32, with the last axis twice as long, or back."""
    x = c["self"]
    if isinstance(x, Complex):
        if x.type.dtype is not c.dtype or not x.type.rank:
            c.unsupported("the bits of complex numbers as another type")
        both = _side_by_side(c, x)
        return both if _is_complex_result(c) else c.reshape(both, (*x.type.shape[:-1], x.type.shape[-1] * 2))
    if not isinstance(x, Value) or x.type.dtype is not c.dtype:
        c.unsupported("the bits of another type as complex numbers")
    shape = tuple(c.result().shape)
    last = x.type.rank - 1
    pairs = c.reshape(x, (*x.type.shape[:-1], shape[-1], 2))
    real, imaginary = (without(c, c.slice_axis(pairs, last + 1, number, 1), last + 1) for number in range(2))
    return Complex(real, imaginary)


def _is_complex_result(c: Context) -> bool:
    return bool(len(c.result().shape) != c["self"].type.rank)


@complex_op("real")
def _real(c: Context) -> Any:
    return c["self"].real


@complex_op("imag")
def _imag(c: Context) -> Any:
    return c["self"].imaginary


@complex_op("conj", "_conj", "_conj_physical", "conj_physical", "_conj_copy")
def _conj(c: Context) -> Any:
    return _conjugate(c, c["self"])


def _conjugate(c: Context, x: Complex) -> Complex:
    return Complex(x.real, c.op_("neg", x.imaginary))


@complex_op("adjoint", "mH")
def _adjoint(c: Context) -> Any:
    x = _conjugate(c, c["self"])
    return Complex(swapped(c, x.real, -1, -2), swapped(c, x.imaginary, -1, -2))


@complex_op("complex")
def _complex(c: Context) -> Any:
    parts = [c.cast(c.tensor(name), c.dtype) for name in ("real", "imag")]
    return _broadcast(c, parts)


def _broadcast(c: Context, parts: Sequence[Value]) -> Complex:
    shape = _result_shape(c, parts)
    real, imaginary = (c.expand(part, shape) for part in parts)
    return Complex(real, imaginary)


def _result_shape(c: Context, parts: Sequence[Value]) -> tuple[Dim, ...]:
    return broadcast_shapes(*(part.type.shape for part in parts))


@complex_op("polar")
def _polar(c: Context) -> Any:
    size, angle = (c.cast(c.tensor(name), wide_dtype(c.dtype)) for name in ("abs", "angle"))
    return made(c, (c.op_("mul", size, c.op_("cos", angle)), c.op_("mul", size, c.op_("sin", angle))))


@complex_op("ones", "ones_like", "new_ones", "eye")
def _ones(c: Context) -> Any:
    """The real converter's result, and zeros."""
    plain = converter_of(c.op)
    assert plain is not None
    arguments = {name: item.real if isinstance(item, Complex) else item for name, item in c.arguments.items()}
    real = plain(replace(c, arguments=arguments))
    assert isinstance(real, Value)
    return Complex(real, zeros(c, real))


@complex_op("randn", "randn_like")
def _randn(c: Context) -> Any:
    """Parts of half the variance each."""
    x = c.arguments.get("self")
    shape = x.type.shape if isinstance(x, Complex) else c.sizes("size")
    both = gauss(c, (2, *shape), c.dtype, 0.0, math.sqrt(0.5))
    real, imaginary = (without(c, c.slice_axis(both, 0, number, 1), 0) for number in range(2))
    return Complex(real, imaginary)


# Arithmetic


def add(c: Context, name: str, x: Parts, y: Parts) -> Parts:
    """x + y, or with the name "sub" x - y."""
    real = c.op_(name, x[0], y[0])
    if y[1] is None:
        imaginary = x[1] if x[1] is None else c.expand(x[1], real.type.shape)
    elif x[1] is None:
        other = c.op_("neg", y[1]) if name == "sub" else y[1]
        imaginary = c.expand(other, real.type.shape)
    else:
        imaginary = c.op_(name, x[1], y[1])
    return real, imaginary


def multiply(c: Context, x: Parts, y: Parts, product: Callable[[Value, Value], Value] | None = None) -> Parts:
    """x * y, or another product that is linear in both."""
    times = product or (lambda a, b: c.op_("mul", a, b))
    if y[1] is None:
        return times(x[0], y[0]), None if x[1] is None else times(x[1], y[0])
    if x[1] is None:
        return times(x[0], y[0]), times(x[0], y[1])
    real = c.op_("sub", times(x[0], y[0]), times(x[1], y[1]))
    return real, c.op_("add", times(x[0], y[1]), times(x[1], y[0]))


def divide(c: Context, x: Parts, y: Parts) -> Parts:
    """x / y; the divisor is scaled by its larger part, so that its square does not overflow."""
    if y[1] is None:
        return c.op_("div", x[0], y[0]), None if x[1] is None else c.op_("div", x[1], y[0])
    scale = c.op_("max", c.op_("abs", y[0]), c.op_("abs", y[1]))
    across, up = c.op_("div", y[0], scale), c.op_("div", y[1], scale)
    square = c.op_("add", c.op_("mul", across, across), c.op_("mul", up, up))
    below = c.op_("mul", square, scale)
    real, imaginary = multiply(c, x, (across, c.op_("neg", up)))
    assert imaginary is not None
    return c.op_("div", real, below), c.op_("div", imaginary, below)


def _operands(c: Context, *names: str) -> tuple[DType, list[Parts]]:
    items = [c[name] for name in names]
    dtype = wide_dtype(c.dtype)
    return dtype, [parts_of(c, item, dtype) for item in items]


@complex_op("add", "sub", "rsub")
def _add(c: Context) -> Any:
    dtype, (x, y) = _operands(c, "self", "other")
    if c.op.startswith("rsub"):
        x, y = y, x
    alpha = c.arguments.get("alpha", 1)
    if alpha != 1:
        y = multiply(c, y, parts_of(c, alpha, dtype))
    return made(c, add(c, "add" if c.op.startswith("add") else "sub", x, y))


@complex_op("mul")
def _mul(c: Context) -> Any:
    _, (x, y) = _operands(c, "self", "other")
    return made(c, multiply(c, x, y))


@complex_op("div", "true_divide")
def _div(c: Context) -> Any:
    _, (x, y) = _operands(c, "self", "other")
    return made(c, divide(c, x, y))


@complex_op("reciprocal")
def _reciprocal(c: Context) -> Any:
    dtype, (x,) = _operands(c, "self")
    return made(c, divide(c, (c.scalar(1.0, dtype), None), x))


@complex_op("square")
def _square(c: Context) -> Any:
    _, (x,) = _operands(c, "self")
    return made(c, multiply(c, x, x))


@complex_op("addcmul", "addcdiv")
def _addcmul(c: Context) -> Any:
    dtype, (x, left, right) = _operands(c, "self", "tensor1", "tensor2")
    if c["value"] != 1:
        left = multiply(c, left, parts_of(c, c["value"], dtype))
    return made(c, add(c, "add", x, (multiply if c.op.startswith("addcmul") else divide)(c, left, right)))


@complex_op("lerp")
def _lerp(c: Context) -> Any:
    _, (start, end, weight) = _operands(c, "self", "end", "weight")
    return made(c, add(c, "add", start, multiply(c, weight, add(c, "sub", end, start))))


@complex_op("pow")
def _pow(c: Context) -> Any:
    exponent = c["exponent"]
    dtype, (x, y) = _operands(c, "self", "exponent")
    if isinstance(exponent, int | float) and float(exponent).is_integer() and 0 <= abs(exponent) <= 8:
        count = int(abs(exponent))
        power: Parts = (c.expand(c.scalar(1.0, dtype), x[0].type.shape), None)
        for number in range(count):
            power = multiply(c, power, x) if number else x
        return made(c, divide(c, (c.scalar(1.0, dtype), None), power) if exponent < 0 else power)
    if exponent == 0.5:
        return made(c, _sqrt(c, *_both(c, x)))
    full = _both(c, x)
    found = _exp(c, *_both(c, multiply(c, _log(c, *full), y)))
    zero, one = c.scalar(0.0, dtype), c.scalar(1.0, dtype)
    nothing = c.op_("and", c.op_("eq", full[0], zero), c.op_("eq", full[1], zero))
    no_power = c.op_("eq", y[0], zero) if y[1] is None else _is_zero(c, y[0], y[1])
    at_zero = c.op_("where", no_power, one, zero)
    return made(c, (c.op_("where", nothing, at_zero, found[0]), c.op_("where", nothing, zero, found[1])))


def _both(c: Context, x: Parts) -> tuple[Value, Value]:
    return x[0], zeros(c, x[0]) if x[1] is None else x[1]


def _is_zero(c: Context, real: Value, imaginary: Value) -> Value:
    zero = c.scalar(0.0, real.type.dtype)
    return c.op_("and", c.op_("eq", real, zero), c.op_("eq", imaginary, zero))


# Functions

Pair = tuple[Value, Value]


def _exp(c: Context, a: Value, b: Value) -> Pair:
    size = c.op_("exp", a)
    level = c.op_("eq", b, c.scalar(0.0, b.type.dtype))
    return c.op_("mul", size, c.op_("cos", b)), c.op_("where", level, b, c.op_("mul", size, c.op_("sin", b)))


def _log(c: Context, a: Value, b: Value) -> Pair:
    return c.op_("log", c.op_("hypot", a, b)), c.op_("atan2", b, a)


def _sqrt(c: Context, a: Value, b: Value) -> Pair:
    """The half plane of positive real parts; the larger part first, the other from it."""
    dtype = a.type.dtype
    half, zero = c.scalar(0.5, dtype), c.scalar(0.0, dtype)
    size = c.op_("hypot", a, b)
    large = c.op_("sqrt", c.op_("mul", c.op_("add", size, c.op_("abs", a)), half))
    small = c.op_("div", c.op_("mul", c.op_("abs", b), half), large)
    small = c.op_("where", c.op_("eq", large, zero), zero, small)
    right = c.op_("ge", a, zero)
    real = c.op_("where", right, large, small)
    return real, c.op_("copysign", c.op_("where", right, small, large), b)


def _sin(c: Context, a: Value, b: Value) -> Pair:
    return (
        c.op_("mul", c.op_("sin", a), c.op_("cosh", b)),
        c.op_("mul", c.op_("cos", a), c.op_("sinh", b)),
    )


def _cos(c: Context, a: Value, b: Value) -> Pair:
    return (
        c.op_("mul", c.op_("cos", a), c.op_("cosh", b)),
        c.op_("neg", c.op_("mul", c.op_("sin", a), c.op_("sinh", b))),
    )


def _sinh(c: Context, a: Value, b: Value) -> Pair:
    return (
        c.op_("mul", c.op_("sinh", a), c.op_("cos", b)),
        c.op_("mul", c.op_("cosh", a), c.op_("sin", b)),
    )


def _cosh(c: Context, a: Value, b: Value) -> Pair:
    return (
        c.op_("mul", c.op_("cosh", a), c.op_("cos", b)),
        c.op_("mul", c.op_("sinh", a), c.op_("sin", b)),
    )


_FLAT = 20.0  # beyond it tanh is 1 in every type


def _tanh(c: Context, a: Value, b: Value) -> Pair:
    """(sinh 2a + i sin 2b) / (cosh 2a + cos 2b)."""
    dtype = a.type.dtype
    two = c.scalar(2.0, dtype)
    a = c.op_("mul", c.op_("clip", a, c.scalar(-_FLAT, dtype), c.scalar(_FLAT, dtype)), two)
    b = c.op_("mul", b, two)
    below = c.op_("add", c.op_("cosh", a), c.op_("cos", b))
    return c.op_("div", c.op_("sinh", a), below), c.op_("div", c.op_("sin", b), below)


def _tan(c: Context, a: Value, b: Value) -> Pair:
    """-i tanh(i z)."""
    real, imaginary = _tanh(c, c.op_("neg", b), a)
    return imaginary, c.op_("neg", real)


def _sigmoid(c: Context, a: Value, b: Value) -> Pair:
    """(1 + tanh(z / 2)) / 2."""
    half = c.scalar(0.5, a.type.dtype)
    real, imaginary = _tanh(c, c.op_("mul", a, half), c.op_("mul", b, half))
    return c.op_("add", c.op_("mul", real, half), half), c.op_("mul", imaginary, half)


def _sgn(c: Context, a: Value, b: Value) -> Pair:
    size = c.op_("hypot", a, b)
    zero = c.scalar(0.0, a.type.dtype)
    nothing = c.op_("eq", size, zero)
    real, imaginary = (c.op_("where", nothing, zero, c.op_("div", part, size)) for part in (a, b))
    return real, imaginary


def _scaled_log(base: float) -> Callable[[Context, Value, Value], Pair]:
    def body(c: Context, a: Value, b: Value) -> Pair:
        factor = c.scalar(1.0 / math.log(base), a.type.dtype)
        real, imaginary = (c.op_("mul", part, factor) for part in _log(c, a, b))
        return real, imaginary

    return body


def _log1p(c: Context, a: Value, b: Value) -> Pair:
    """log(1 + z), by log1p(2a + a^2 + b^2) / 2 near 0."""
    dtype = a.type.dtype
    one = c.scalar(1.0, dtype)
    right = c.op_("add", a, one)
    far, angle = _log(c, right, b)
    beyond = c.op_("mul", a, c.op_("add", a, c.scalar(2.0, dtype)))
    square = c.op_("add", beyond, c.op_("mul", b, b))
    near = c.op_("mul", c.op_("log1p", square), c.scalar(0.5, dtype))
    return c.op_("where", c.op_("lt", c.op_("hypot", a, b), c.scalar(0.5, dtype)), near, far), angle


def _expm1(c: Context, a: Value, b: Value) -> Pair:
    """exp(a) - 1 times cos b, less 2 sin(b / 2)^2."""
    dtype = a.type.dtype
    sine = c.op_("sin", c.op_("mul", b, c.scalar(0.5, dtype)))
    less = c.op_("mul", c.op_("mul", sine, sine), c.scalar(2.0, dtype))
    real = c.op_("sub", c.op_("mul", c.op_("expm1", a), c.op_("cos", b)), less)
    return real, _exp(c, a, b)[1]


def _rsqrt(c: Context, a: Value, b: Value) -> Pair:
    return _both(c, divide(c, (c.scalar(1.0, a.type.dtype), None), _sqrt(c, a, b)))


_FUNCTIONS: dict[str, Callable[[Context, Value, Value], Pair]] = {
    "exp": _exp, "log": _log, "sqrt": _sqrt, "sin": _sin, "cos": _cos, "sinh": _sinh, "cosh": _cosh, "tanh": _tanh,
    "tan": _tan, "sigmoid": _sigmoid, "sgn": _sgn, "log2": _scaled_log(2.0), "log10": _scaled_log(10.0),
    "log1p": _log1p, "expm1": _expm1, "rsqrt": _rsqrt,
}  # fmt: skip

for _name, _body in _FUNCTIONS.items():

    @complex_op(_name)
    def _function(c: Context, body: Callable[[Context, Value, Value], Pair] = _body) -> Any:
        return made(c, body(c, *both_parts(c, c["self"], wide_dtype(c.dtype))))


@complex_op("silu")
def _silu(c: Context) -> Any:
    x = both_parts(c, c["self"], wide_dtype(c.dtype))
    return made(c, multiply(c, x, _sigmoid(c, *x)))


# Real results


def _size(c: Context, x: Complex) -> Value:
    return c.op_("hypot", *both_parts(c, x, wide_dtype(x.type.dtype)))


@complex_op("abs")
def _abs(c: Context) -> Any:
    return c.cast(_size(c, c["self"]), c.dtype)


@complex_op("angle")
def _angle(c: Context) -> Any:
    x = c["self"]
    return c.cast(c.op_("atan2", c.cast(x.imaginary, widest(x)), c.cast(x.real, widest(x))), c.dtype)


@complex_op("eq", "ne")
def _equal(c: Context) -> Any:
    dtype = widest(c["self"], c["other"])
    x, y = (both_parts(c, c[name], dtype) for name in ("self", "other"))
    name = c.op.partition(".")[0]
    return c.op_("and" if name == "eq" else "or", *(c.op_(name, a, b) for a, b in zip(x, y, strict=True)))


@complex_op("isnan", "isinf", "isfinite")
def _tests(c: Context) -> Any:
    """Of a number, of any part."""
    x, name = c["self"], c.op.partition(".")[0]
    if name != "isfinite":
        return c.op_("or", *(c.op_(name, part) for part in (x.real, x.imaginary)))
    odd = [c.op_(test, part) for test in ("isnan", "isinf") for part in (x.real, x.imaginary)]
    return c.op_("not", c.op_("or", c.op_("or", *odd[:2]), c.op_("or", *odd[2:])))


@complex_op("any", "all", "count_nonzero", "logical_not", "logical_and", "logical_or", "logical_xor", "nonzero")
def _by_truth(c: Context) -> Any:
    """The real op, of what is not zero."""
    arguments = dict(c.arguments)
    for name in ("self", "other"):
        if isinstance(arguments.get(name), Complex):
            x = arguments[name]
            arguments[name] = c.op_("or", truth(c, x.real), truth(c, x.imaginary))
    plain = converter_of(c.op)
    assert plain is not None
    return plain(replace(c, arguments=arguments))


@complex_op("linalg_vector_norm", "norm", "dist")
def _norm(c: Context) -> Any:
    """The real op, of absolute values."""
    arguments: dict[str, Any] = dict(c.arguments)
    x = arguments["self"]
    if c.op.startswith("dist"):
        dtype = widest(x, c["other"])
        x = Complex(*_both(c, add(c, "sub", parts_of(c, x, dtype), parts_of(c, c["other"], dtype))))
        arguments["other"] = 0.0
    arguments["self"] = _size(c, x)
    plain = converter_of(c.op)
    assert plain is not None
    return plain(replace(c, arguments=arguments))


@complex_op("var", "std")
def _spread(c: Context) -> Any:
    """The sum of the variances of the parts."""
    plain = converter_of("var." + (c.op.partition(".")[2] or "default"))
    assert plain is not None
    x = c["self"]
    parts = [
        plain(replace(c, op="var", arguments={**c.arguments, "self": part})) for part in (x.real, x.imaginary)
    ]  # fmt: skip
    real, imaginary = (part for part in parts if isinstance(part, Value))
    total = c.op_("add", real, imaginary)
    return c.op_("sqrt", total) if c.op.startswith("std") else total


@complex_op("isclose")
def _isclose(c: Context) -> Any:
    dtype = widest(c["self"], c["other"])
    x, y = (both_parts(c, c[name], dtype) for name in ("self", "other"))
    same = c.op_("and", *(c.op_("eq", a, b) for a, b in zip(x, y, strict=True)))
    allowed = c.op_("mul", c.op_("hypot", *y), c.scalar(c.number("rtol"), dtype))
    allowed = c.op_("add", allowed, c.scalar(c.number("atol"), dtype))
    distance = c.op_("hypot", *(c.op_("sub", a, b) for a, b in zip(x, y, strict=True)))
    near = c.op_("and", c.op_("not", c.op_("isinf", distance)), c.op_("le", distance, allowed))
    found = c.op_("or", same, near)
    if not c.flag("equal_nan"):
        return found
    odd = [c.op_("or", *(c.op_("isnan", part) for part in parts)) for parts in (x, y)]
    return c.op_("or", found, c.op_("and", *odd))


# Products


_OPERANDS = {
    "mm": ("self", "mat2"), "bmm": ("self", "mat2"), "matmul": ("self", "other"), "mv": ("self", "vec"),
    "dot": ("self", "tensor"), "vdot": ("self", "other"),
}  # fmt: skip


def _product(c: Context, x: Parts, y: Parts) -> Parts:
    return multiply(c, x, y, lambda a, b: matmul(c, a, b))


@complex_op("mm", "bmm", "matmul", "mv", "dot", "vdot")
def _matmul(c: Context) -> Any:
    _, (x, y) = _operands(c, *_OPERANDS[c.op.partition(".")[0]])
    if c.op.startswith("vdot") and x[1] is not None:
        x = x[0], c.op_("neg", x[1])
    return made(c, _product(c, x, y))


@complex_op("linear")
def _linear(c: Context) -> Any:
    dtype, (x, weight) = _operands(c, "input", "weight")
    turned = swapped(c, weight[0], -1, -2), None if weight[1] is None else swapped(c, weight[1], -1, -2)
    found = _product(c, x, turned)
    return made(c, add(c, "add", found, parts_of(c, c["bias"], dtype)) if c.has("bias") else found)


@complex_op("outer", "ger")
def _outer(c: Context) -> Any:
    _, (x, y) = _operands(c, "self", "vec2")
    return made(c, multiply(c, _column(c, x), y))


def _column(c: Context, x: Parts) -> Parts:
    real, imaginary = (None if part is None else c.reshape(part, (*part.type.shape, 1)) for part in x)
    assert real is not None
    return real, imaginary


@complex_op("addmm", "baddbmm", "addmv", "addr")
def _addmm(c: Context) -> Any:
    left, right = {
        "addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "addmv": ("mat", "vec"), "addr": ("vec1", "vec2"),
    }[c.op.partition(".")[0]]  # fmt: skip
    dtype, (added, x, y) = _operands(c, "self", left, right)
    found = multiply(c, _column(c, x), y) if c.op.startswith("addr") else _product(c, x, y)
    alpha, beta = c["alpha"], c["beta"]
    if alpha != 1:
        found = multiply(c, found, parts_of(c, alpha, dtype))
    if beta == 0:
        return made(c, found)
    if beta != 1:
        added = multiply(c, added, parts_of(c, beta, dtype))
    return made(c, add(c, "add", found, added))


@complex_op("convolution", "_convolution")
def _convolution(c: Context) -> Any:
    """Four convolutions of real numbers."""
    dtype, (x, weight) = _operands(c, "input", "weight")
    plain = converter_of(c.op)
    assert plain is not None

    def convolved(a: Value, b: Value) -> Value:
        found = plain(replace(c, arguments={**c.arguments, "input": a, "weight": b, "bias": None}))
        assert isinstance(found, Value)
        return found

    found = multiply(c, x, weight, convolved)
    if not c.has("bias"):
        return made(c, found)
    spatial = weight[0].type.rank - 2
    bias = parts_of(c, c["bias"], dtype)
    lifted = [None if part is None else c.reshape(part, (*part.type.shape, *(1,) * spatial)) for part in bias]
    assert lifted[0] is not None
    return made(c, add(c, "add", found, (lifted[0], lifted[1])))


@complex_op("prod")
def _prod(c: Context) -> Any:
    """By halves: each round multiplies the first half of an axis with the second."""
    dtype, (x,) = _operands(c, "self")
    real, imaginary = _both(c, x)
    if not real.type.rank:
        return made(c, (real, imaginary))
    if c.has("dim"):
        axis = c.axis("dim", real.type.rank)
    else:
        real, imaginary = (c.reshape(part, (part.type.elements,)) for part in (real, imaginary))
        axis = 0
    extent = real.type.shape[axis]
    if not isinstance(extent, int):
        c.unsupported("a product of complex numbers whose count is only known when running")
    if extent == 0:
        shape = tuple(1 if k == axis else size for k, size in enumerate(real.type.shape))
        real, imaginary = filled(c, 1.0, dtype, shape), filled(c, 0.0, dtype, shape)
        extent = 1
    while extent > 1:
        half = extent // 2
        first, second, rest = (
            [c.slice_axis(part, axis, start, size) for part in (real, imaginary)]
            for start, size in ((0, half), (half, half), (2 * half, extent - 2 * half))
        )
        product = _both(c, multiply(c, (first[0], first[1]), (second[0], second[1])))
        if extent % 2:
            real, imaginary = (concat(c, [a, b], axis) for a, b in zip(product, rest, strict=True))
        else:
            real, imaginary = product
        extent = half + extent % 2
    if not c.flag("keepdim"):
        real, imaginary = (without(c, part, axis) for part in (real, imaginary))
    return made(c, (real, imaginary))
