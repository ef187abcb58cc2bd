"""MAP ops: one scalar body each, applied with broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aot.dtypes import BOOL, F32, F64, I8, I32, I64, U8
from aot.expr import Expr, call, cast, select
from aot.ir import TensorType
from aot.ops.helpers import (
    ANY,
    FLOAT,
    INTEGER,
    LOGICAL,
    NUMERIC,
    SPECIAL,
    booleans,
    dtype_attr,
    float_attr,
    integers,
    need_family,
    need_same_dtype,
    normal,
    widen,
)
from aot.ops.opdef import Attrs, AttrSpec, BodyFn, Kind, OpDef, OpError, Sample, SamplesFn, broadcast_shapes, register


def _unary_samples(families: Sequence[str], attrs: Attrs) -> SamplesFn:
    def samples(rng: Any) -> list[Sample]:
        found: list[Sample] = []
        if "float" in families:
            for array in (normal(rng, 2, 3, 5), SPECIAL, normal(rng), normal(rng, 1, 1), normal(rng, 0, 4)):
                found.append(Sample((array,), attrs))
            found.append(Sample((normal(rng, 7, dtype=np.float64),), attrs))
        if "int" in families:
            found.append(Sample((integers(rng, 3, 7),), attrs))
            found.append(Sample((integers(rng, 5, dtype=np.int32),), attrs))
        if "bool" in families:
            found.append(Sample((booleans(rng, 11),), attrs))
        return found

    return samples


def unary(
    name: str,
    doc: str,
    body: BodyFn,
    *,
    families: Sequence[str] = FLOAT,
    onnx: tuple[str, ...] = (),
    flops: int = 1,
    attrs: Mapping[str, AttrSpec] | None = None,
    sample_attrs: Sequence[Attrs] = ({},),
    boolean: bool = False,
) -> None:
    """Registers a MAP op of one operand; the result has the operand's dtype, or bool."""

    def infer(attrs: Attrs, x: TensorType) -> TensorType:
        need_family(f"the operand of {name}", x, families)
        return TensorType(BOOL if boolean else x.dtype, x.shape)

    def samples(rng: Any) -> list[Sample]:
        return [sample for given in sample_attrs for sample in _unary_samples(families, given)(rng)]

    register(
        OpDef(
            name=name, doc=doc, inputs=("x",), kind=Kind.MAP, infer=infer, samples=samples, attrs=attrs or {},
            body=body, cost_flops=flops, onnx=onnx,
        )
    )  # fmt: skip


def _function(name: str) -> BodyFn:
    return lambda attrs, x: call(name, x)


def _wide(body: Callable[[Attrs, Expr], Expr]) -> BodyFn:
    """The body computed in f32 for narrower floats and rounded once."""
    return lambda attrs, x: cast(body(attrs, widen(x)), x.dtype)


for _name, _doc, _families, _onnx, _flops in (
    ("neg", "The negated element.", NUMERIC, "Neg", 1),
    ("abs", "The absolute value.", NUMERIC, "Abs", 1),
    ("sign", "-1, 0 or 1; NaN stays NaN.", NUMERIC, "Sign", 2),
    ("sqrt", "The square root.", FLOAT, "Sqrt", 4),
    ("rsqrt", "1 / sqrt(x).", FLOAT, "", 6),
    ("exp", "e to the x.", FLOAT, "Exp", 12),
    ("log", "The natural logarithm.", FLOAT, "Log", 14),
    ("log1p", "log(1 + x), exact near 0.", FLOAT, "", 16),
    ("expm1", "exp(x) - 1, exact near 0.", FLOAT, "", 16),
    ("sin", "The sine.", FLOAT, "Sin", 16),
    ("cos", "The cosine.", FLOAT, "Cos", 16),
    ("tan", "The tangent.", FLOAT, "Tan", 24),
    ("asin", "The arc sine.", FLOAT, "Asin", 20),
    ("acos", "The arc cosine.", FLOAT, "Acos", 20),
    ("atan", "The arc tangent.", FLOAT, "Atan", 20),
    ("sinh", "The hyperbolic sine.", FLOAT, "Sinh", 20),
    ("cosh", "The hyperbolic cosine.", FLOAT, "Cosh", 20),
    ("asinh", "The inverse hyperbolic sine.", FLOAT, "Asinh", 20),
    ("acosh", "The inverse hyperbolic cosine.", FLOAT, "Acosh", 20),
    ("atanh", "The inverse hyperbolic tangent.", FLOAT, "Atanh", 20),
    ("tanh", "The hyperbolic tangent.", FLOAT, "Tanh", 16),
    ("erf", "The Gauss error function.", FLOAT, "Erf", 16),
    ("sigmoid", "1 / (1 + exp(-x)).", FLOAT, "Sigmoid", 14),
    ("floor", "Rounds down.", FLOAT, "Floor", 1),
    ("ceil", "Rounds up.", FLOAT, "Ceil", 1),
    ("round", "Rounds to the nearest integer, halves to even.", FLOAT, "Round", 1),
    ("trunc", "Rounds towards zero.", FLOAT, "", 1),
):
    unary(_name, _doc, _function(_name), families=_families, onnx=(_onnx,) if _onnx else (), flops=_flops)

unary("reciprocal", "1 / x.", lambda a, x: 1.0 / x, onnx=("Reciprocal",), flops=4)
unary("relu", "max(x, 0); NaN stays NaN.", lambda a, x: call("max", x, 0), families=NUMERIC, onnx=("Relu",))
unary("not", "Logical for bool, bitwise for integers.", _function("not"), families=LOGICAL, onnx=("Not", "BitwiseNot"))
unary("isnan", "Whether the element is not a number.", _function("isnan"), onnx=("IsNaN",), boolean=True)
unary("copy", "The element itself; changes how the tensor lies in memory.", lambda a, x: x, families=ANY, flops=0)


def _softplus(x: Expr) -> Expr:
    return call("max", x, 0.0) + call("log1p", call("exp", -call("abs", x)))


unary("softplus", "log(1 + exp(x)).", _wide(lambda a, x: _softplus(x)), onnx=("Softplus",), flops=30)
unary("softsign", "x / (1 + |x|).", _wide(lambda a, x: x / (call("abs", x) + 1.0)), onnx=("Softsign",), flops=6)
unary("silu", "x * sigmoid(x).", _wide(lambda a, x: x * call("sigmoid", x)), flops=15)
unary("mish", "x * tanh(softplus(x)).", _wide(lambda a, x: x * call("tanh", _softplus(x))), onnx=("Mish",), flops=48)
unary(
    "hardswish", "x * clip(x / 6 + 1/2, 0, 1).",
    _wide(lambda a, x: x * call("max", call("min", x * (1.0 / 6.0) + 0.5, 1.0), 0.0)), onnx=("HardSwish",), flops=5,
)  # fmt: skip


def _isinf(attrs: Attrs, x: Expr) -> Expr:
    negative, positive = bool(attrs["detect_negative"]), bool(attrs["detect_positive"])
    infinite = call("isinf", x)
    if negative and positive:
        return infinite
    if not negative and not positive:
        return call("and", infinite, call("not", infinite))
    return call("and", infinite, x < 0.0 if negative else x > 0.0)


unary(
    "isinf", "Whether the element is infinite, of the wanted signs.", _isinf, boolean=True,
    attrs={"detect_negative": AttrSpec("bool", True), "detect_positive": AttrSpec("bool", True)},
    sample_attrs=({}, {"detect_negative": False}, {"detect_positive": False},
                  {"detect_negative": False, "detect_positive": False}),
)  # fmt: skip

unary(
    "leaky_relu", "x, or alpha * x where x < 0.",
    lambda a, x: select(x < 0.0, x * float_attr(a, "alpha"), x),
    attrs={"alpha": AttrSpec("float", 0.01)}, sample_attrs=({}, {"alpha": -0.5}), flops=2,
)  # fmt: skip
unary(
    "elu", "x, or alpha * (exp(x) - 1) where x < 0.",
    _wide(lambda a, x: select(x < 0.0, call("expm1", x) * float_attr(a, "alpha"), x)),
    attrs={"alpha": AttrSpec("float", 1.0)}, sample_attrs=({}, {"alpha": 0.3}), flops=18,
)  # fmt: skip
unary(
    "selu", "gamma * x, or gamma * alpha * (exp(x) - 1) where x <= 0.",
    _wide(lambda a, x: select(x > 0.0, x, call("expm1", x) * float_attr(a, "alpha")) * float_attr(a, "gamma")),
    attrs={"alpha": AttrSpec("float", 1.6732632423543772), "gamma": AttrSpec("float", 1.0507009873554805)},
    sample_attrs=({}, {"alpha": 2.0, "gamma": 3.0}), flops=19,
)  # fmt: skip
unary(
    "celu", "x, or alpha * (exp(x / alpha) - 1) where x < 0.",
    _wide(lambda a, x: select(x < 0.0, call("expm1", x / float_attr(a, "alpha")) * float_attr(a, "alpha"), x)),
    attrs={"alpha": AttrSpec("float", 1.0)}, sample_attrs=({}, {"alpha": 2.0}), flops=22,
)  # fmt: skip
unary(
    "hardsigmoid", "clip(alpha * x + beta, 0, 1).",
    _wide(lambda a, x: call("max", call("min", x * float_attr(a, "alpha") + float_attr(a, "beta"), 1.0), 0.0)),
    attrs={"alpha": AttrSpec("float", 0.2), "beta": AttrSpec("float", 0.5)},
    sample_attrs=({}, {"alpha": 1.0 / 6.0, "beta": 0.25}), flops=4,
)  # fmt: skip
unary(
    "thresholded_relu", "x where x > alpha, else 0.",
    lambda a, x: select(x > float_attr(a, "alpha"), x, 0.0),
    attrs={"alpha": AttrSpec("float", 1.0)}, sample_attrs=({}, {"alpha": -0.5}), flops=2,
)  # fmt: skip


def _shrink(attrs: Attrs, x: Expr) -> Expr:
    bias, lambd = float_attr(attrs, "bias"), float_attr(attrs, "lambd")
    return select(x < -lambd, x + bias, select(x > lambd, x - bias, 0.0))


unary(
    "shrink", "x + bias below -lambd, x - bias above lambd, else 0.", _shrink,
    attrs={"bias": AttrSpec("float", 0.0), "lambd": AttrSpec("float", 0.5)},
    sample_attrs=({}, {"bias": 1.5, "lambd": 1.0}), flops=4,
)  # fmt: skip


def _gelu(attrs: Attrs, x: Expr) -> Expr:
    if attrs["approximate"] == "tanh":
        inner = (x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)
        return x * 0.5 * (call("tanh", inner) + 1.0)
    if attrs["approximate"] != "none":
        raise OpError(f"gelu's approximate is 'none' or 'tanh'; it is {attrs['approximate']!r}")
    return x * 0.5 * (call("erf", x * math.sqrt(0.5)) + 1.0)


unary(
    "gelu", "x * P(X <= x) for a standard normal X, exactly (erf) or by the tanh formula.", _wide(_gelu),
    attrs={"approximate": AttrSpec("str", "none", "none or tanh")},
    sample_attrs=({}, {"approximate": "tanh"}), flops=22,
)  # fmt: skip


def _cast_infer(attrs: Attrs, x: TensorType) -> TensorType:
    return TensorType(dtype_attr(attrs, "to"), x.shape)


def _cast_samples(rng: Any) -> list[Sample]:
    decimals = np.array([0.0, -0.0, 0.9, -0.9, 1.5, -7.25, 100.0], dtype=np.float32)
    return [
        Sample((decimals,), {"to": I32}),
        Sample((decimals,), {"to": I64}),
        Sample((decimals,), {"to": F64}),
        Sample((np.append(decimals, np.float32(np.nan)),), {"to": BOOL}),
        Sample((np.abs(decimals),), {"to": U8}),
        Sample((booleans(rng, 3, 3),), {"to": F32}),
        Sample((booleans(rng),), {"to": I64}),
        Sample((integers(rng, 2, 5),), {"to": F32}),
        Sample((integers(rng, 9, lo=-300, hi=300),), {"to": I8}),
        Sample((normal(rng, 4, dtype=np.float64),), {"to": F32}),
    ]


register(
    OpDef(
        name="cast", doc="Conversion as numpy's astype: to integers truncates, to bool is != 0.", inputs=("x",),
        kind=Kind.MAP, infer=_cast_infer, samples=_cast_samples, attrs={"to": AttrSpec("dtype")},
        body=lambda attrs, x: cast(x, dtype_attr(attrs, "to")),
    )
)  # fmt: skip


# Two operands.


def _binary_samples(families: Sequence[str], positive: bool, small: bool) -> SamplesFn:
    def samples(rng: Any) -> list[Sample]:
        found: list[Sample] = []
        if "float" in families:
            for left, right in (
                (normal(rng, 2, 3, 5), normal(rng, 2, 3, 5)),
                (normal(rng, 4, 1, 3), normal(rng, 5, 1)),
                (normal(rng), normal(rng, 7)),
                (normal(rng), normal(rng)),
                (normal(rng, 3, dtype=np.float64), normal(rng, 1, dtype=np.float64)),
            ):
                found.append(Sample((left, right)))
            special = SPECIAL[np.abs(SPECIAL) < 50] if small else SPECIAL
            found.append(Sample((special[:, None], special[None, :])))
        if "int" in families:
            lo = 0 if positive else -9
            found.append(Sample((integers(rng, 3, 7), integers(rng, 7, lo=lo, hi=6))))
            found.append(Sample((integers(rng, 5, dtype=np.int32), integers(rng, lo=lo, hi=6, dtype=np.int32))))
        if "bool" in families:
            found.append(Sample((booleans(rng, 3, 1), booleans(rng, 4))))
        return found

    return samples


def binary(
    name: str,
    doc: str,
    body: BodyFn,
    *,
    families: Sequence[str] = NUMERIC,
    onnx: tuple[str, ...] = (),
    flops: int = 1,
    boolean: bool = False,
    commutative: bool = False,
    positive: bool = False,
    small: bool = False,
    inputs: tuple[str, str] = ("x", "y"),
) -> None:
    """Registers a MAP op of two operands of one dtype that broadcast.

    `positive`: integer samples have a right operand >= 0. `small`: no huge special values (x / y
    overflows what a quotient can hold exactly).
    """

    def infer(attrs: Attrs, x: TensorType, y: TensorType) -> TensorType:
        need_family(f"the operands of {name}", x, families)
        dtype = need_same_dtype(x, y)
        return TensorType(BOOL if boolean else dtype, broadcast_shapes(x.shape, y.shape))

    register(
        OpDef(
            name=name, doc=doc, inputs=inputs, kind=Kind.MAP, infer=infer,
            samples=_binary_samples(families, positive, small), body=body, cost_flops=flops, onnx=onnx,
            commutative=commutative,
        )
    )  # fmt: skip


def _function2(name: str) -> BodyFn:
    return lambda attrs, x, y: call(name, x, y)


binary("add", "x + y.", _function2("add"), onnx=("Add",), commutative=True)
binary("sub", "x - y.", _function2("sub"), onnx=("Sub",))
binary("mul", "x * y.", _function2("mul"), onnx=("Mul",), commutative=True)
binary("div", "x / y; integers truncate towards 0, and x / 0 is 0.", _function2("div"), onnx=("Div",), flops=4)
binary("floordiv", "floor(x / y); of integers by 0: x.", _function2("floordiv"), flops=8, small=True)
binary("mod", "The remainder with the divisor's sign; of integers by 0: 0.", _function2("mod"), flops=8, small=True)
binary("fmod", "The remainder with the dividend's sign; of integers by 0: 0.", _function2("fmod"), flops=8, small=True)
binary("pow", "x to the y.", _function2("pow"), flops=30, positive=True, small=True)
binary("min", "The smaller; NaN if either is NaN.", _function2("min"), commutative=True)
binary("max", "The larger; NaN if either is NaN.", _function2("max"), commutative=True)
for _name, _symbol, _onnx_names, _among in (
    ("eq", "==", ("Equal",), ANY),
    ("ne", "!=", (), ANY),
    ("lt", "<", ("Less",), NUMERIC),
    ("le", "<=", ("LessOrEqual",), NUMERIC),
    ("gt", ">", ("Greater",), NUMERIC),
    ("ge", ">=", ("GreaterOrEqual",), NUMERIC),
):
    binary(
        _name, f"Whether x {_symbol} y.", _function2(_name), families=_among, boolean=True, onnx=_onnx_names,
        commutative=_name in ("eq", "ne"),
    )  # fmt: skip
for _name, _onnx in (("and", "And"), ("or", "Or"), ("xor", "Xor")):
    binary(
        _name, f"{_onnx}: logical for bool, bitwise for integers.", _function2(_name), families=LOGICAL,
        onnx=(_onnx, f"Bitwise{_onnx}"), commutative=True,
    )  # fmt: skip
binary("shl", "x * 2^y, for 0 <= y < bits.", _function2("shl"), families=INTEGER, positive=True)
binary("shr", "floor(x / 2^y), for 0 <= y < bits.", _function2("shr"), families=INTEGER, positive=True)
binary(
    "prelu", "x, or slope * x where x < 0.", lambda a, x, slope: select(call("lt", x, 0), x * slope, x), flops=2,
    onnx=("PRelu",), inputs=("x", "slope"),
)  # fmt: skip


# Three operands.


def _where_infer(attrs: Attrs, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
    need_family("the condition of where", condition, ("bool",))
    return TensorType(need_same_dtype(x, y), broadcast_shapes(condition.shape, x.shape, y.shape))


def _where_samples(rng: Any) -> list[Sample]:
    return [
        Sample((booleans(rng, 3, 1), normal(rng, 4), normal(rng, 2, 3, 1))),
        Sample((booleans(rng), normal(rng, 5), normal(rng))),
        Sample((np.arange(SPECIAL.size) % 2 == 0, SPECIAL, SPECIAL[::-1].copy())),
        Sample((booleans(rng, 6), integers(rng, 6), integers(rng, 1))),
        Sample((booleans(rng, 6), booleans(rng, 6), booleans(rng, 6))),
    ]


register(
    OpDef(
        name="where", doc="x where the condition holds, else y.", inputs=("condition", "x", "y"), kind=Kind.MAP,
        infer=_where_infer, samples=_where_samples, body=lambda attrs, condition, x, y: select(condition, x, y),
        onnx=("Where",),
    )
)  # fmt: skip


def _clip_infer(attrs: Attrs, x: TensorType, lo: TensorType | None = None, hi: TensorType | None = None) -> TensorType:
    need_family("the operands of clip", x, NUMERIC)
    for what, bound in (("lo", lo), ("hi", hi)):
        if bound is not None:
            need_same_dtype(x, bound)
            if bound.rank:
                raise OpError(f"clip's {what} must be a rank-0 tensor; it has rank {bound.rank}")
    return TensorType(x.dtype, x.shape)


def _clip_body(attrs: Attrs, x: Expr, lo: Expr | None = None, hi: Expr | None = None) -> Expr:
    result = x if lo is None else call("max", x, lo)
    return result if hi is None else call("min", result, hi)


def _clip_samples(rng: Any) -> list[Sample]:
    low, high = np.array(-1.0, np.float32), np.array(1.5, np.float32)
    return [
        Sample((normal(rng, 3, 5), low, high)),
        Sample((SPECIAL, low, high)),
        Sample((SPECIAL, high, low)),
        Sample((normal(rng, 9), None, high)),
        Sample((normal(rng, 9), low)),
        Sample((normal(rng, 4),)),
        Sample((integers(rng, 8), np.array(-3), np.array(4))),
    ]


register(
    OpDef(
        name="clip", doc="min(max(x, lo), hi); an omitted bound does not bind.", inputs=("x", "lo?", "hi?"),
        kind=Kind.MAP, infer=_clip_infer, samples=_clip_samples, body=_clip_body, cost_flops=2,
    )
)  # fmt: skip
