"""One form for each meaning: constants second, one spelling of powers, no operation without effect.

Later rules then need to know one form only. Invariant: a normalized graph is left unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aot.builder import Builder
from aot.dtypes import DType
from aot.ir import Graph, Level, Node, Value
from aot.ops import OPS
from aot.passes import Context, transform
from aot.pattern import SILENT, Constant, Match, View, number, op, rewrite, rule
from aot.transforms.fold import fold_node
from aot.transforms.normalize_views import VIEW_RULES
from aot.transforms.shapes import MAPS, chained, emit

COMMUTATIVE = frozenset(name for name in MAPS if OPS[name].commutative)
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_SEVERAL_OPERANDS = frozenset(name for name in MAPS if len(OPS[name].inputs) > 1 and name != "clip")
_IDEMPOTENT = "relu abs sign floor ceil round trunc"
_UNIFORM = Constant("c", splat=True)


# Where constants stand.


def _is_constant_first(node: Node, view: View) -> bool:
    if node.op not in COMMUTATIVE and node.op not in _MIRRORED:
        return False
    first, second = node.inputs
    return view.const(first) is not None and view.const(second) is None


@rule(
    op(COMMUTATIVE | set(_MIRRORED)),
    check=lambda m: None if _is_constant_first(m.root, m.view) else SILENT,
    measure=lambda nodes, view: sum(1.0 for node in nodes if _is_constant_first(node, view)),
)
def constant_second(b: Builder, m: Match) -> Value:
    """c + x is x + c; c < x is x > c."""
    first, second = m.root.inputs
    return emit(b, _MIRRORED.get(m.root.op, m.root.op), second, first)


def _splat_operand(m: Match) -> int | None:
    """The first operand that can become a single number without changing the result's shape."""
    node = m.root
    for index, value in enumerate(node.inputs):
        const = m.view.const(value)
        if const is None or const.shape == () or m.view.uniform(const) is None:
            continue
        others = [v for i, v in enumerate(node.inputs) if i != index and v is not None]
        if any(v.type.shape == node.output.type.shape for v in others):
            return index
    return None


@rule(
    op(_SEVERAL_OPERANDS),
    check=lambda m: SILENT if _splat_operand(m) is None else None,
    measure=lambda nodes, view: sum(
        1.0 for node in nodes for v in node.operands if (c := view.const(v)) is not None and c.shape
    ),
)
def splat_to_number(b: Builder, m: Match) -> Value:
    """A constant tensor of equal elements, used elementwise, is that number."""
    index = _splat_operand(m)
    const = m.view.const(m.root.inputs[index]) if index is not None else None
    assert const is not None
    element = b.const(const.array().reshape(-1)[0].reshape(()))
    return emit(b, m.root.op, *[element if i == index else v for i, v in enumerate(m.root.inputs)], **m.root.attrs)


# Operations without effect.


@rule(op("copy", "x"))
def drop_copy(b: Builder, m: Match) -> Value:
    """copy(x) is x."""
    return m["x"]


@rule(op("cast", "x"), check=lambda m: None if m["x"].type.dtype is m.root.output.type.dtype else SILENT)
def drop_cast(b: Builder, m: Match) -> Value:
    """A cast to the type that x has is x."""
    return m["x"]


_MANTISSA_BITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53, "f8e4m3": 4, "f8e5m2": 3}
_EXPONENT_BITS = {"f16": 5, "bf16": 8, "f32": 8, "f64": 11, "f8e4m3": 4, "f8e5m2": 5}


def holds(outer: DType, inner: DType) -> bool:
    """Whether every value of `inner` is a value of `outer`."""
    if inner is outer or inner.is_bool:
        return True
    if outer.is_bool:
        return False
    if outer.is_float:
        exponent = _EXPONENT_BITS[outer.name]
        enough = _EXPONENT_BITS.get(inner.name, 0) <= exponent
        return enough and _MANTISSA_BITS.get(inner.name, inner.bits) <= _MANTISSA_BITS[outer.name]
    if inner.is_float:
        return False
    if inner.family == outer.family:
        return outer.bits >= inner.bits
    return inner.family == "uint" and outer.bits > inner.bits


def _check_cast_of_cast(m: Match) -> str | None:
    middle = m.node("inner").output.type.dtype
    return None if holds(middle, m["x"].type.dtype) else f"{middle} does not hold every {m['x'].type.dtype}"


@rule(
    op("cast", op("cast", "x", name="inner", shared=True)),
    check=_check_cast_of_cast,
    measure=chained("cast"),
)
def cast_of_cast(b: Builder, m: Match) -> Value:
    """A cast through a type that loses nothing is one cast."""
    to = m.root.output.type.dtype
    return m["x"] if m["x"].type.dtype is to else emit(b, "cast", m["x"], to=to)


def _neutral(m: Match, neutral: float) -> str | None:
    if m.number("c") != neutral:
        return SILENT
    return None if m["x"].type.shape == m.root.output.type.shape else "the constant widens the result"


@rule(op("mul div pow", "x", _UNIFORM), check=lambda m: _neutral(m, 1))
def times_one(b: Builder, m: Match) -> Value:
    """x * 1, x / 1 and x ** 1 are x."""
    return m["x"]


def _check_zero(m: Match, exactly: bool) -> str | None:
    if m["x"] is not m.root.inputs[0]:
        return SILENT
    keeps_bits = m.root.op == "sub" or not m["x"].type.dtype.is_float
    return _neutral(m, 0) if keeps_bits == exactly else SILENT


@rule(op("add sub", "x", _UNIFORM), check=lambda m: _check_zero(m, True))
def minus_zero(b: Builder, m: Match) -> Value:
    """x - 0 is x; so is x + 0 for integers."""
    return m["x"]


@rule(op("add", "x", _UNIFORM), check=lambda m: _check_zero(m, False), exact=False)
def plus_zero(b: Builder, m: Match) -> Value:
    """x + 0 is x (but for -0 + 0, which is 0)."""
    return m["x"]


@rule(op("max", "x", _UNIFORM), check=lambda m: _neutral(m, -math.inf))
def above_all(b: Builder, m: Match) -> Value:
    """max(x, -inf) is x."""
    return m["x"]


@rule(op("min", "x", _UNIFORM), check=lambda m: _neutral(m, math.inf))
def below_all(b: Builder, m: Match) -> Value:
    """min(x, inf) is x."""
    return m["x"]


def _check_logic(m: Match) -> str | None:
    if not m["x"].type.dtype.is_bool:
        return SILENT
    return _neutral(m, 1 if m.root.op == "and" else 0)


@rule(op("and or xor", "x", _UNIFORM), check=_check_logic)
def neutral_logic(b: Builder, m: Match) -> Value:
    """x and true, x or false, x xor false are x."""
    return m["x"]


@rule(op("min max and or", "x", "x"))
def with_itself(b: Builder, m: Match) -> Value:
    """max(x, x) is x; likewise min, and, or."""
    return m["x"]


def _check_same_twice(m: Match) -> str | None:
    return None if m.node("inner").op == m.root.op else SILENT


@rule(op("neg not", op("neg not", "x", name="inner", shared=True)), check=_check_same_twice)
def twice_is_nothing(b: Builder, m: Match) -> Value:
    """-(-x) and not(not(x)) are x."""
    return m["x"]


@rule(op(_IDEMPOTENT, op(_IDEMPOTENT, name="inner", shared=True)), check=_check_same_twice)
def once_is_enough(b: Builder, m: Match) -> Value:
    """relu(relu(x)) is relu(x); likewise abs and the roundings."""
    return m.node("inner").output


@rule(op("where", _UNIFORM, "x", "y"), measure="cost")
def decided_where(b: Builder, m: Match) -> Value:
    """where with a condition that is the same everywhere is one of its branches, broadcast."""
    chosen = m["x"] if m.number("c") else m["y"]
    if chosen.type.shape == m.root.output.type.shape:
        return chosen
    return emit(b, "expand", chosen, shape=m.root.output.type.shape)


@rule(op("where", "c", "x", "x"), measure="cost")
def where_of_equals(b: Builder, m: Match) -> Value:
    """where(c, x, x) is x, broadcast."""
    if m["x"].type.shape == m.root.output.type.shape:
        return m["x"]
    return emit(b, "expand", m["x"], shape=m.root.output.type.shape)


# One spelling of powers, quotients and bounds.


def _powers(nodes: Sequence[Node], view: View) -> float:
    return sum(1.0 for node in nodes if node.op == "pow")


_EXACT_POWERS = (2.0, 0.5, -1.0)


@rule(op("pow", "x", _UNIFORM), check=lambda m: _check_power(m, _EXACT_POWERS), measure=_powers)
def power_to_op(b: Builder, m: Match) -> Value:
    """x ** 2 is x * x, x ** 0.5 is sqrt(x), x ** -1 is 1 / x."""
    x, exponent = m["x"], m.number("c")
    if exponent == 2:
        return emit(b, "mul", x, x)
    return emit(b, "sqrt" if exponent == 0.5 else "reciprocal", x)


@rule(op("pow", "x", _UNIFORM), check=lambda m: _check_power(m, (3.0, -0.5)), measure=_powers, exact=False)
def power_to_ops(b: Builder, m: Match) -> Value:
    """x ** 3 is (x * x) * x, x ** -0.5 is 1 / sqrt(x)."""
    x = m["x"]
    if m.number("c") == 3:
        return emit(b, "mul", emit(b, "mul", x, x), x)
    return emit(b, "rsqrt", x)


def _check_power(m: Match, exponents: Sequence[float]) -> str | None:
    if m["x"] is not m.root.inputs[0] or m.number("c") not in exponents:
        return SILENT
    if not m["x"].type.dtype.is_float and m.number("c") < 2:
        return "roots and negative powers need a float type"
    return None if m["x"].type.shape == m.root.output.type.shape else "the exponent widens the result"


def _quotients(nodes: Sequence[Node], view: View) -> float:
    return sum(1.0 for node in nodes if node.op == "div")


def _check_quotient(m: Match, exact: bool) -> str | None:
    if not m["x"].type.dtype.is_float or m["x"].type.dtype.bits < 32:
        return SILENT
    divisor = m.view.array(m["c"])
    if divisor.size > 1 << 20:
        return "the divisor is large"
    with np.errstate(all="ignore"):
        inverse = 1 / divisor
        normal = np.isfinite(inverse) & (np.abs(inverse) >= np.finfo(divisor.dtype).tiny) & np.isfinite(divisor)
        powers = np.frexp(divisor)[0]
    if not bool(np.all(normal)):
        return "a divisor's reciprocal is zero, infinite or denormal"
    is_exact = bool(np.all(np.abs(powers) == 0.5))
    return (None if is_exact else SILENT) if exact else (SILENT if is_exact else None)


@rule(op("div", "x", Constant("c")), check=lambda m: _check_quotient(m, True), measure=_quotients)
def divide_by_power_of_two(b: Builder, m: Match) -> Value:
    """x / 2**k is x * 2**-k, with the same bits."""
    return emit(b, "mul", m["x"], b.const(np.asarray(1 / m.view.array(m["c"]), m["c"].type.dtype.numpy)))


@rule(op("div", "x", Constant("c")), check=lambda m: _check_quotient(m, False), measure=_quotients, exact=False)
def divide_by_constant(b: Builder, m: Match) -> Value:
    """x / c is x * (1 / c), to within one rounding."""
    return emit(b, "mul", m["x"], emit(b, "reciprocal", m["c"]))


@rule(op("div", "x", op("sqrt", "y")), measure=_quotients, exact=False)
def divide_by_root(b: Builder, m: Match) -> Value:
    """x / sqrt(y) is x * rsqrt(y)."""
    return emit(b, "mul", m["x"], emit(b, "rsqrt", m["y"]))


@rule(op("reciprocal", op("sqrt", "x")), exact=False)
def reciprocal_of_root(b: Builder, m: Match) -> Value:
    """1 / sqrt(x) is rsqrt(x)."""
    return emit(b, "rsqrt", m["x"])


@rule(op("div", _UNIFORM, "x"), check=lambda m: SILENT if m.number("c") != 1 else None, measure=_quotients)
def one_over(b: Builder, m: Match) -> Value:
    """1 / x is reciprocal(x)."""
    return emit(b, "reciprocal", m["x"])


@rule(
    op("mul", "x", op("reciprocal", "y")),
    check=lambda m: None if m["x"].type.shape == m["y"].type.shape else "one reciprocal serves many elements",
    exact=False,
)
def times_reciprocal(b: Builder, m: Match) -> Value:
    """x * (1 / y) is x / y."""
    return emit(b, "div", m["x"], m["y"])


def _never_negative(view: View, value: Value, depth: int = 4) -> bool:
    """Whether a value is known to be at least 0 (or NaN): squares, their sums, and the like."""
    known = view.number(value)
    if known is not None:
        return known >= 0
    node = view.producer.get(value)
    if node is None or depth == 0:
        return False
    if node.op in ("abs", "relu", "exp", "sqrt", "sigmoid", "hardsigmoid", "softmax"):
        return True
    if node.op == "mul" and node.inputs[0] is node.inputs[1]:
        return True
    if node.op in ("add", "mul", "max", "min", "reduce_sum", "reduce_mean", "reduce_max", "reduce_min"):
        return all(_never_negative(view, v, depth - 1) for v in node.operands)
    if node.op in ("reshape", "transpose", "expand", "slice"):
        return _never_negative(view, node.operands[0], depth - 1)
    return False


def _check_square_of_root(m: Match) -> str | None:
    if m.root.inputs[0] is not m.root.inputs[1]:
        return SILENT
    return None if _never_negative(m.view, m["x"]) else "its radicand may be negative"


@rule(op("mul", op("sqrt", "x", shared=True), op("sqrt", "x", shared=True)), check=_check_square_of_root, exact=False)
def square_of_root(b: Builder, m: Match) -> Value:
    """sqrt(x) * sqrt(x) is x where x cannot be negative."""
    return m["x"]


@rule(
    op("relu", "x"),
    check=lambda m: None if _never_negative(m.view, m["x"]) else SILENT,
)
def relu_of_nonnegative(b: Builder, m: Match) -> Value:
    """relu(x) is x where x cannot be negative."""
    return m["x"]


def _bound(m: Match, index: int) -> float | None:
    """A bound of a clip as a number; None where it is omitted or not constant."""
    value = m.root.inputs[index] if index < len(m.root.inputs) else None
    return m.view.number(value)


def _check_open_clip(m: Match) -> str | None:
    inputs = (*m.root.inputs, None, None)
    lo_open = inputs[1] is None or _bound(m, 1) == -math.inf
    hi_open = inputs[2] is None or _bound(m, 2) == math.inf
    if not hi_open:
        return SILENT
    return None if lo_open or (_bound(m, 1) == 0 and m.root.output.type.dtype.is_float) else SILENT


@rule(op("clip"), check=_check_open_clip, measure=lambda nodes, view: sum(1.0 for n in nodes if n.op == "clip"))
def open_clip(b: Builder, m: Match) -> Value:
    """A clip without bounds is its operand; one from 0 upwards is relu."""
    x = m.root.operands[0]
    return emit(b, "relu", x) if _bound(m, 1) == 0 else x


@rule(
    op("max", "x", number(0.0, "c")),
    check=lambda m: None if m["x"].type.dtype.is_float and not _neutral(m, 0) else SILENT,
    measure=lambda nodes, view: sum(1.0 for n in nodes if n.op == "max"),
)
def max_with_zero(b: Builder, m: Match) -> Value:
    """max(x, 0) is relu(x)."""
    return emit(b, "relu", m["x"])


NORMALIZE_RULES = (
    constant_second,
    splat_to_number,
    drop_copy,
    drop_cast,
    cast_of_cast,
    times_one,
    minus_zero,
    plus_zero,
    above_all,
    below_all,
    neutral_logic,
    with_itself,
    twice_is_nothing,
    once_is_enough,
    decided_where,
    where_of_equals,
    power_to_op,
    power_to_ops,
    divide_by_power_of_two,
    divide_by_constant,
    divide_by_root,
    reciprocal_of_root,
    one_over,
    times_reciprocal,
    square_of_root,
    relu_of_nonnegative,
    open_clip,
    max_with_zero,
    *VIEW_RULES,
)


@transform(takes=Level.CORE, gives=Level.CORE, rules=(entry.name for entry in NORMALIZE_RULES))
def normalize(graph: Graph, context: Context) -> Graph:
    """Gives every meaning one form and removes what has no effect."""
    return rewrite(graph, NORMALIZE_RULES, context, fold=fold_node, exact=context.options.exact)
