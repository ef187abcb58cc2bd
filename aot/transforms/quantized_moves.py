"""Rules by which values stay in 8 bits: quantize and dequantize trade places with ops that only move numbers.

A dequantize sinks below moves of data and the largest of a window, a quantize rises above them, and what meets
cancels where that is exact. Every rule gives the same bits; only for NaN, of which no quantized number is one, a
quantize above a pool says something else than below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from aot.builder import Builder
from aot.dims import Dim, product, typical
from aot.dtypes import I8, U8, DType
from aot.ir import Array, Graph, Node, Value, live, replaced
from aot.ops.quantized import FLOAT8
from aot.passes import Context
from aot.pattern import SILENT, AnyValue, Constant, Match, RewriteBuilder, Rule, View, op, rule
from aot.transforms.fold import fold_node
from aot.transforms.shapes import axis_of, dims_of, emit, ints, perm_of, reshaped

MOVES = frozenset({"reshape", "transpose", "slice", "expand", "gather", "tile", "pad", "max_pool", "resize"})
"""What moves elements of its first operand, or takes the largest of them."""

BYTES = (I8, U8)
_SHIFT = 128
_JOINS = MOVES | {"concat"}


def _floats_moved(nodes: Sequence[Node], view: View) -> float:
    """How many floats the moves among some nodes move; those of 8 bits are quantized numbers."""
    moved = (node.output.type for node in nodes if node.op in _JOINS)
    return sum(typical(type_.elements) for type_ in moved if type_.dtype.is_float and type_.dtype not in FLOAT8)


def parameters(node: Node) -> tuple[Value, Value | None]:
    """The scale and the zero point of a quantize or dequantize."""
    _, scale, zero = (*node.inputs, None)[:3]
    assert scale is not None
    return scale, zero


def is_single(value: Value | None) -> bool:
    """Whether a parameter is one number for the whole tensor; so is one that is absent."""
    return value is None or product(value.type.shape) == 1


def elements_of(view: View, value: Value | None) -> Array | None:
    """The elements of a constant parameter; None for what is no constant."""
    const = view.const(value)
    return None if const is None else const.array()


def is_zero(view: View, zero: Value | None) -> bool:
    """Whether a zero point is absent or known to be 0."""
    held = elements_of(view, zero)
    return zero is None or (held is not None and not np.any(held.astype(np.float32)))


def has_plain_scale(view: View, scale: Value) -> bool:
    """Whether a scale is known to be positive and so large that quantized numbers survive it exactly."""
    held = elements_of(view, scale)
    return held is not None and bool(np.all(np.isfinite(held) & (held > 2.0**-80) & (held < 2.0**80)))


# Quantize after dequantize.


def _same_zero(m: Match, first: Value | None, second: Value | None) -> bool:
    return m.view.same(first, second) or (is_zero(m.view, first) and is_zero(m.view, second))


def _check_round_trip(m: Match) -> str | None:
    inner, outer = m.node("inner"), m.root
    if inner.operands[0].type.dtype is not outer.output.type.dtype:
        return SILENT
    (scale, zero), (other, other_zero) = parameters(inner), parameters(outer)
    if not m.view.same(scale, other) or not _same_zero(m, zero, other_zero):
        return "its scale or zero point is another"
    if not outer.output.type.dtype.is_integer or outer.output.type.dtype.bits > 16:
        return "its numbers do not survive their scale exactly"
    return None if has_plain_scale(m.view, scale) else "its scale is not known to keep every number"


_ROUND_TRIP = op(
    "quantize", op("dequantize", name="inner", shared=True), Constant("scale"), AnyValue("zero", optional=True)
)


@rule(_ROUND_TRIP, check=_check_round_trip)
def quantize_of_dequantize(b: Builder, m: Match) -> Value:
    """Numbers dequantized and quantized alike are what they were."""
    return m.node("inner").operands[0]


# Dequantize below moves.


def _moved_parameter(b: Builder, node: Node, value: Value) -> Value | None:
    """A parameter of a move's operand as one of its result; None where the move tears it."""
    if is_single(value):
        return reshaped(b, value, ())
    before, after = node.operands[0].type, node.output.type
    shape = (*(1,) * (before.rank - value.type.rank), *value.type.shape)
    if node.op == "transpose":
        return emit(b, "transpose", reshaped(b, value, shape), perm=perm_of(node))
    wide = [axis for axis, extent in enumerate(shape) if extent != 1]
    if len(wide) != 1:
        return None
    (axis,) = wide
    vector = reshaped(b, value, (shape[axis],))
    place: int | None = axis
    if node.op == "reshape":
        place = _place_after(before.shape, after.shape, axis)
    elif node.op == "slice":
        starts, sizes, steps = (dims_of(node.attrs[name])[axis] for name in ("starts", "sizes", "steps"))
        vector = emit(b, "slice", vector, starts=(starts,), sizes=(sizes,), steps=(ints((steps,))[0],))
    elif node.op == "gather":
        taken, more = axis_of(node), node.operands[1].type.rank - 1
        if axis == taken:
            vector = emit(b, "gather", vector, node.operands[1], axis=0)
            return reshaped(b, vector, (*vector.type.shape, *(1,) * (before.rank - 1 - axis)))
        place = axis if axis < taken else axis + more
    elif node.op == "max_pool":
        place = axis if axis < 2 else None
    else:
        place = None
    if place is None:
        return None
    return reshaped(b, vector, (vector.type.shape[0], *(1,) * (after.rank - 1 - place)))


def _place_after(before: Sequence[Dim], after: Sequence[Dim], axis: int) -> int | None:
    """Where an axis is after a reshape that leaves it whole."""
    leading = product(before[:axis])
    for place, extent in enumerate(after):
        if extent == before[axis] and product(after[:place]) == leading:
            return place
    return None


def _check_move(m: Match) -> str | None:
    node, inner = m.root, m.node("inner")
    scale, zero = parameters(inner)
    if node.op == "max_pool" and not has_plain_scale(m.view, scale):
        return "its scale is not known to be positive"
    if node.op == "resize" and node.attrs["mode"] != "nearest":
        return SILENT
    if node.op == "pad" and node.attrs["mode"] == "constant":
        fill = node.inputs[1] if len(node.inputs) > 1 else None
        if (fill is not None and m.view.number(fill) != 0) or not is_single(scale) or not is_single(zero):
            return "what it pads with is no zero"
    trial = RewriteBuilder(m.view, (), fold_node)
    torn = any(_moved_parameter(trial, node, each) is None for each in (scale, zero) if each is not None)
    if torn:
        return "it tears the blocks that share a scale"
    more = _floats_moved(trial.nodes, m.view) >= _floats_moved([node], m.view)
    return "its scales would be moved instead, and are as many" if more else None


@rule(op(MOVES), check=lambda m: _check_move(m) if _bind(m) else SILENT, measure=_floats_moved)
def dequantize_below_move(b: Builder, m: Match) -> Value:
    """What moves dequantized numbers moves the quantized ones."""
    node, inner = m.root, m.node("inner")
    scale, zero = parameters(inner)
    numbers = inner.operands[0]
    if node.op == "gather":  # of rows that only the run knows
        numbers, zero = in_bytes(b, m.view, numbers, zero)
    operands = [numbers, *node.inputs[1:]]
    if node.op == "pad" and node.attrs["mode"] == "constant":
        fill = b.scalar(0, numbers.type.dtype) if zero is None else reshaped(b, zero, ())
        operands = [numbers, fill]
    moved = emit(b, node.op, *operands, **node.attrs)
    new = [None if each is None else _moved_parameter(b, node, each) for each in (scale, zero)]
    return emit(b, "dequantize", moved, *new)


def in_bytes(b: Builder, view: View, numbers: Value, zero: Value | None) -> tuple[Value, Value | None]:
    """Constant numbers of 4 bits, and their zero point, in 8 bits: kernels have no elements of 4 bits."""
    held = elements_of(view, numbers)
    if numbers.type.dtype.bits >= 8 or held is None:
        return numbers, zero
    wide = (I8 if numbers.type.dtype.family == "int" else U8).numpy
    least = elements_of(view, zero)
    return b.const(held.astype(wide)), zero if least is None else b.const(least.astype(wide))


def _bind(m: Match) -> bool:
    """Binds the dequantize that a move reads; False where it reads something else."""
    inner = m.view.producer.get(m.root.operands[0])
    if inner is None or inner.op != "dequantize":
        return False
    m.nodes["inner"] = inner
    m.include(inner)
    return True


def _check_pieces(m: Match) -> str | None:
    makers = [m.view.producer.get(value) for value in m.root.operands]
    found = [maker for maker in makers if maker is not None and maker.op == "dequantize"]
    if len(found) != len(makers):
        return SILENT
    (scale, zero), dtype = parameters(found[0]), found[0].operands[0].type.dtype
    for maker in found:
        other, more = parameters(maker)
        if maker.operands[0].type.dtype is not dtype or not is_single(other) or not is_single(more):
            return "its pieces are quantized in several ways"
        if not m.view.same(scale, other) or not _same_zero(m, zero, more):
            return "its pieces have several scales"
    m.include(*found)
    m.facts["makers"] = found
    return None


@rule(op("concat"), check=_check_pieces, measure=_floats_moved)
def dequantize_below_concat(b: Builder, m: Match) -> Value:
    """Dequantized pieces of one scale are joined in quantized form."""
    makers = m.facts["makers"]
    joined = emit(b, "concat", *(maker.operands[0] for maker in makers), axis=m.root.attrs["axis"])
    new = (None if each is None else reshaped(b, each, ()) for each in parameters(makers[0]))
    return emit(b, "dequantize", joined, *new)


# Quantize above moves.


def _check_rise(m: Match) -> str | None:
    inner = m.view.producer.get(m.root.operands[0])
    if inner is None or inner.op not in MOVES | {"concat"}:
        return SILENT
    scale, zero = parameters(m.root)
    if m.view.sole_user(inner.output) is not m.root:
        return "others read what it moves as floats"
    if not is_single(scale) or not is_single(zero):
        return "it has several scales"
    if inner.op == "max_pool" and not has_plain_scale(m.view, scale):
        return "its scale is not known to be positive"
    if inner.op == "resize" and inner.attrs["mode"] != "nearest":
        return SILENT
    if inner.op == "pad" and len(inner.inputs) > 1 and m.view.number(inner.inputs[1]) != 0:
        return "what it pads with is no zero"
    if inner.op in ("expand", "tile", "gather") and product(inner.operands[0].type.shape) != 1:
        return SILENT  # the floats may be fewer than the numbers, or many more
    m.nodes["inner"] = inner
    m.include(inner)
    return None


@rule(op("quantize"), check=_check_rise, measure=_floats_moved)
def quantize_above_move(b: Builder, m: Match) -> Value:
    """Numbers that are quantized behind a move are quantized before it."""
    node, inner = m.root, m.node("inner")
    scale, zero = (None if each is None else reshaped(b, each, ()) for each in parameters(node))
    moved = list(inner.operands if inner.op == "concat" else inner.operands[:1])
    numbers: list[Value | None] = [emit(b, "quantize", value, scale, zero, **node.attrs) for value in moved]
    if inner.op == "pad" and inner.attrs["mode"] == "constant":
        numbers.append(b.scalar(0, node.output.type.dtype) if zero is None else zero)
    return emit(b, inner.op, *numbers, **inner.attrs)


# From one type of bytes to the other.


def other_type(b: Builder, value: Value) -> Value:
    """Numbers of i8 as u8, 128 more, or of u8 as i8, 128 less; other types as they are."""
    if value.type.dtype is I8:
        return emit(b, "xor", emit(b, "cast", value, to=U8), b.scalar(_SHIFT, U8))
    return emit(b, "cast", emit(b, "xor", value, b.scalar(_SHIFT, U8)), to=I8)


def shifted_zero(b: Builder, zero: Value | None, dtype: DType) -> Value:
    """The zero point that numbers have in the other type, once they were of `dtype`."""
    if zero is None:
        return b.scalar(_SHIFT, U8) if dtype is I8 else b.scalar(-_SHIFT, I8)
    return other_type(b, zero)


def conversion_of(view: View, node: Node | None) -> Node | None:
    """The inner node of a conversion between i8 and u8, as `other_type` makes it, where `node` is its end."""
    if node is None or node.op not in ("xor", "cast"):
        return None
    inner = view.producer.get(node.operands[0])
    if inner is None or len(inner.outputs) != 1:
        return None
    if node.op == "xor" and inner.op == "cast" and inner.operands[0].type.dtype is I8:
        return inner if node.output.type.dtype is U8 and view.number(node.operands[1]) == _SHIFT else None
    if node.op == "cast" and inner.op == "xor" and inner.output.type.dtype is U8 and node.output.type.dtype is I8:
        return inner if view.number(inner.operands[1]) == _SHIFT else None
    return None


def _others_moved(nodes: Sequence[Node], view: View) -> float:
    """How many moves among some nodes read something else than a conversion."""
    own = {value: node for node in nodes for value in node.outputs}
    found = 0
    for node in nodes:
        if node.op in _JOINS:
            makers = [own.get(value) or view.producer.get(value) for value in _moved(node)]
            found += any(maker is None or maker.op not in ("xor", "cast") for maker in makers)
    return found


def _moved(node: Node) -> tuple[Value, ...]:
    """What a move moves."""
    return node.operands if node.op == "concat" else node.operands[:1]


def _check_conversion(m: Match) -> str | None:
    inner = conversion_of(m.view, m.root)
    source = None if inner is None else m.view.producer.get(inner.operands[0])
    if inner is None or source is None or source.op not in _JOINS or not _others_moved([source], m.view):
        return SILENT
    if m.view.sole_user(source.output) is not inner:
        return "others read what it moves"
    if source.op == "pad" and source.attrs["mode"] == "constant" and len(source.inputs) < 2:
        return "it pads with zeros"
    m.include(inner, source)
    m.nodes["source"] = source
    return None


@rule(op("xor cast"), check=_check_conversion, measure=_others_moved)
def conversion_above_move(b: Builder, m: Match) -> Value:
    """Numbers of i8 or u8 are moved in the type that their readers take."""
    source = m.node("source")
    converted = {value: other_type(b, value) for value in dict.fromkeys(_moved(source))}
    moved = [converted[value] for value in _moved(source)]
    rest = source.inputs[len(moved) :]
    if source.op == "pad" and rest and rest[0] is not None:
        rest = (other_type(b, rest[0]), *rest[1:])
    return emit(b, source.op, *moved, *rest, **source.attrs)


def settle_types(graph: Graph, context: Context) -> Graph:
    """Makes quantize give the type that products take, where a conversion stands between them.

    Other readers dequantize the new numbers, or read them converted back.
    """
    view = View(graph)
    made: dict[Node, Builder] = {}
    mapping: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op != "quantize" or node.output.type.dtype not in BYTES:
            continue
        ends = [end for inner in view.users.get(node.output, ()) for end in _ends(view, inner)]
        if not ends or not context.allow("lower_quantized", node.where):
            continue
        dtype = node.output.type.dtype
        scale, zero = parameters(node)
        builder = made[node] = RewriteBuilder(view, node.locs, fold_node)
        other = shifted_zero(builder, zero, dtype)
        to = other.type.dtype
        numbers = emit(builder, "quantize", node.operands[0], scale, _fitted(builder, other), to=to)
        mapping.update({end.output: numbers for end in ends})
        rest = [user for user in view.users.get(node.output, ()) if not _ends(view, user)]
        if rest or node.output in view.outputs:
            back = other_type(builder, numbers)
            last = builder.nodes.pop()
            assert last.output is back
            builder.nodes.append(replace(last, outputs=(node.output,)))
            for user in rest:
                if user.op == "dequantize" and user.operands[0] is node.output:
                    made[user] = RewriteBuilder(view, user.locs, fold_node)
                    step, own = parameters(user)
                    own = shifted_zero(made[user], own, dtype)
                    emit(made[user], "dequantize", numbers, step, _fitted(made[user], own))
                    last = made[user].nodes.pop()
                    made[user].nodes.append(replace(last, outputs=user.outputs))
    if not made:
        return graph
    nodes = [new for node in graph.nodes for new in (made[node].nodes if node in made else [node])]
    consts = {**graph.consts, **{value: const for each in made.values() for value, const in each.consts.items()}}
    return live(replaced(graph, nodes, mapping, consts))


def _ends(view: View, inner: Node) -> list[Node]:
    """The ends of conversions that begin with a node."""
    if inner.op not in ("xor", "cast"):
        return []
    return [end for end in view.users.get(inner.output, ()) if conversion_of(view, end) is inner]


def _fitted(builder: Builder, zero: Value) -> Value:
    """A zero point that broadcasts to its scale."""
    return reshaped(builder, zero, ()) if is_single(zero) else zero


MOVE_RULES: tuple[Rule, ...] = (
    quantize_of_dequantize,
    dequantize_below_move,
    dequantize_below_concat,
    quantize_above_move,
)
