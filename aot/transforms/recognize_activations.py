"""Finds activations as exporters spell them out: gelu, silu, hard swish, mish, sigmoid and others."""

from __future__ import annotations

import math

from aot.builder import Builder
from aot.ir import Node, Value
from aot.pattern import SILENT, Constant, Match, number, op, rule
from aot.transforms.recognize_factors import close, dies, product_of, split_number
from aot.transforms.shapes import as_float, emit, maker_of

_OTHERS = "a part of it is read by others too"


def _one_plus(m: Match, value: Value) -> tuple[Node, Node] | None:
    """For 1 + erf(y) or 1 + tanh(y): the add and the inner node."""
    total = maker_of(m.view, value, "add")
    parts = split_number(m.view, total) if total is not None else None
    if total is None or parts is None or not close(parts[1], 1.0):
        return None
    inner = m.view.producer.get(parts[0])
    return (total, inner) if inner is not None and inner.op in ("erf", "tanh") else None


def _is_cubic(m: Match, value: Value, x: Value) -> list[Node] | None:
    """The nodes of sqrt(2/pi) * (x + 0.044715 x³), however it is multiplied out; else None."""
    outer = product_of(m.view, value)
    nodes = list(outer.nodes)
    if not close(outer.number, math.sqrt(2 / math.pi)):
        return None
    rest = [v for v in outer.values if v is not x]
    factored = len(outer.values) - len(rest)
    if len(rest) != 1 or factored > 1:
        return None
    total = maker_of(m.view, rest[0], "add")
    if total is None:
        return None
    nodes.append(total)
    if factored:  # x * (1 + 0.044715 x²)
        parts = split_number(m.view, total)
        if parts is None or not close(parts[1], 1.0):
            return None
        term = product_of(m.view, parts[0])
    elif x in total.operands:  # x + 0.044715 x³
        term = product_of(m.view, next((v for v in total.operands if v is not x), x))
    else:
        return None
    nodes.extend(term.nodes)
    powers = 0
    for part in term.values:
        square = maker_of(m.view, part, "mul")
        if part is x:
            powers += 1
        elif square is not None and square.operands == (x, x):
            powers += 2
        else:
            return None
    return nodes if powers == (2 if factored else 3) and close(term.number, 0.044715) else None


def _check_gelu(m: Match) -> str | None:
    product = product_of(m.view, m.root.output, m.root)
    if len(product.values) != 2 or not close(product.number, 0.5):
        return SILENT
    for x, other in (product.values, product.values[::-1]):
        found = _one_plus(m, other)
        if found is None:
            continue
        total, inner = found
        if inner.op == "erf":
            argument = product_of(m.view, inner.operands[0])
            if argument.values != [x] or not close(argument.number, math.sqrt(0.5)):
                return "the argument of its erf is not x / sqrt(2)"
            nodes, approximate = argument.nodes, "none"
        else:
            cubic = _is_cubic(m, inner.operands[0], x)
            if cubic is None:
                return "the argument of its tanh is not gelu's"
            nodes, approximate = cubic, "tanh"
        if not dies(m, *product.nodes, total, inner, *nodes):
            return _OTHERS
        m.facts["x"], m.facts["approximate"] = x, approximate
        return None
    return SILENT


@rule(op("mul"), check=_check_gelu, exact=False)
def gelu(b: Builder, m: Match) -> Value:
    """x/2 * (1 + erf(x/sqrt 2)) is gelu; so is its form with tanh."""
    return emit(b, "gelu", m.facts["x"], approximate=m.facts["approximate"])


@rule(op("mul", "x", op("sigmoid", "x")), exact=False)
def silu(b: Builder, m: Match) -> Value:
    """x * sigmoid(x) is silu(x)."""
    return emit(b, "silu", m["x"])


@rule(op("mul", "x", op("tanh", op("softplus", "x"))), exact=False)
def mish(b: Builder, m: Match) -> Value:
    """x * tanh(softplus(x)) is mish(x)."""
    return emit(b, "mish", m["x"])


@rule(op("log", op("add", op("exp", "x"), number(1.0))), exact=False)
def softplus(b: Builder, m: Match) -> Value:
    """log(exp(x) + 1) is softplus(x)."""
    return emit(b, "softplus", m["x"])


@rule(op("log1p", op("exp", "x")), exact=False)
def softplus_log1p(b: Builder, m: Match) -> Value:
    """log1p(exp(x)) is softplus(x)."""
    return emit(b, "softplus", m["x"])


@rule(op("reciprocal", op("add", op("exp", op("neg", "x")), number(1.0))), exact=False)
def sigmoid(b: Builder, m: Match) -> Value:
    """1 / (1 + exp(-x)) is sigmoid(x)."""
    return emit(b, "sigmoid", m["x"])


@rule(op("min", op("relu", "x"), Constant("hi", splat=True)), check=lambda m: _check_min_of_relu(m))
def min_of_relu(b: Builder, m: Match) -> Value:
    """min(relu(x), c) is clip(x, 0, c) for c >= 0."""
    dtype = m["x"].type.dtype
    return emit(b, "clip", m["x"], b.scalar(0.0, dtype), b.scalar(m.number("hi"), dtype))


def _check_min_of_relu(m: Match) -> str | None:
    if m["x"].type.shape != m.root.output.type.shape or not m["x"].type.dtype.is_float:
        return SILENT
    return None if m.number("hi") >= 0 else "its bound is negative"


def _clipped(m: Match, value: Value, hi: float) -> tuple[Value, float, list[Node]] | None:
    """For clip(y + c, 0, hi): y, c and the nodes."""
    node = maker_of(m.view, value, "clip")
    if node is None or len(node.operands) != 3:
        return None
    x, low, high = node.operands
    if m.view.number(low) != 0 or not close(m.view.number(high), hi):
        return None
    total = maker_of(m.view, x, "add")
    parts = split_number(m.view, total) if total is not None else None
    return None if total is None or parts is None else (parts[0], parts[1], [node, total])


def _check_hardsigmoid_six(m: Match) -> str | None:
    product = product_of(m.view, m.root.output, m.root)
    if len(product.values) != 1 or not close(product.number, 1 / 6):
        return SILENT
    found = _clipped(m, product.values[0], 6.0)
    if found is None or not close(found[1], 3.0):
        return SILENT
    if not dies(m, *product.nodes, *found[2]):
        return _OTHERS
    m.facts["x"], m.facts["alpha"], m.facts["beta"] = found[0], 1 / 6, 0.5
    return None


def _check_hardsigmoid_one(m: Match) -> str | None:
    found = _clipped(m, m.root.output, 1.0)
    if found is None:
        return SILENT
    product = product_of(m.view, found[0])
    if len(product.values) != 1:
        product.number, product.values, product.nodes = 1.0, [found[0]], []
    if not dies(m, *found[2], *product.nodes):
        return _OTHERS
    m.facts["x"], m.facts["alpha"], m.facts["beta"] = product.values[0], product.number, found[1]
    return None


def _hardsigmoid(b: Builder, m: Match) -> Value:
    return emit(b, "hardsigmoid", m.facts["x"], alpha=m.facts["alpha"], beta=m.facts["beta"])


@rule(op("mul div"), check=_check_hardsigmoid_six, exact=False)
def hardsigmoid_six(b: Builder, m: Match) -> Value:
    """clip(x + 3, 0, 6) / 6 is a hard sigmoid."""
    return _hardsigmoid(b, m)


@rule(op("clip"), check=_check_hardsigmoid_one, exact=False)
def hardsigmoid_one(b: Builder, m: Match) -> Value:
    """clip(a x + b, 0, 1) is a hard sigmoid."""
    return _hardsigmoid(b, m)


def _check_hardswish(m: Match) -> str | None:
    product = product_of(m.view, m.root.output, m.root)
    if len(product.values) != 2:
        return SILENT
    for x, other in (product.values, product.values[::-1]):
        gate = maker_of(m.view, other, "hardsigmoid")
        clipped = _clipped(m, other, 6.0)
        if gate is not None and gate.operands[0] is x:
            if not close(as_float(gate.attrs["alpha"]), 1 / 6) or not close(as_float(gate.attrs["beta"]), 0.5):
                return "its gate is another hard sigmoid"
            if not close(product.number, 1.0):
                return SILENT
            nodes = [gate]
        elif clipped is not None and clipped[0] is x and close(clipped[1], 3.0) and close(product.number, 1 / 6):
            nodes = clipped[2]
        else:
            continue
        if not dies(m, *product.nodes, *nodes):
            return _OTHERS
        m.facts["x"] = x
        return None
    return SILENT


@rule(op("mul div"), check=_check_hardswish, exact=False)
def hardswish(b: Builder, m: Match) -> Value:
    """x * clip(x + 3, 0, 6) / 6 is hardswish(x)."""
    return emit(b, "hardswish", m.facts["x"])


ACTIVATION_RULES = (
    gelu,
    silu,
    mish,
    softplus,
    softplus_log1p,
    sigmoid,
    min_of_relu,
    hardswish,
    hardsigmoid_six,
    hardsigmoid_one,
)
