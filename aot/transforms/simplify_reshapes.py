"""Moves reshapes past elementwise ops, reductions and transposes, so that they meet and cancel.

Elementwise ops rise above reshapes, towards the op that made their operand and can take them along;
axes of extent 1 leave before a transpose or a pad. Nothing here changes an arithmetic result.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.builder import Builder
from aot.dims import Dim
from aot.ir import Value
from aot.pattern import SILENT, Match, op, rule
from aot.transforms.shapes import (
    MAPS,
    REDUCES,
    count_reads,
    dims_of,
    emit,
    heights,
    ints,
    maker_of,
    only_units_move,
    perm_of,
    reshaped,
    transposed,
    unit_map,
    value_fits,
)

_RESHAPE = frozenset(("reshape",))
_RESHAPE_READS = count_reads(MAPS | set(REDUCES), "reshape")


def _through_units(value: Value, out: Sequence[Dim], source: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape of a broadcast operand once the result has the shape `source` instead of `out`."""
    places = unit_map(out, source)
    shape: list[Dim] = [1] * len(source)
    for axis, extent in enumerate(value.type.shape, start=len(out) - value.type.rank):
        if places[axis] >= 0:
            shape[places[axis]] = extent
    return tuple(shape)


def _check_reshaped_operands(m: Match) -> str | None:
    """Plans the operands of an elementwise op in the shape that the reshapes start from."""
    node = m.root
    out = node.output.type.shape
    makers = [maker_of(m.view, value, "reshape") for value in node.inputs]
    mains = [maker for maker in makers if maker is not None and maker.output.type.shape == out]
    if not mains:
        return SILENT
    source = mains[0].operands[0].type.shape
    units = only_units_move(source, out)
    if not units and any(m.view.sole_user(maker.output) is not node for maker in mains):
        return "the reshape joins or splits axes for others too"
    plan: list[tuple[Value | None, tuple[Dim, ...] | None]] = []
    for value, maker in zip(node.inputs, makers, strict=True):
        if value is None:
            plan.append((value, None))
        elif maker is not None and value.type.shape == out and maker.operands[0].type.shape == source:
            plan.append((maker.operands[0], None))
        elif value.type.rank == 0:
            plan.append((value, None))
        elif m.view.const(value) is not None and all(extent == 1 for extent in value.type.shape):
            plan.append((value, ()))
        elif units and value_fits(value, out) and maker is not None:
            plan.append((maker.operands[0], _through_units(value, out, source)))
        elif units and value_fits(value, out) and m.view.const(value) is not None:
            plan.append((value, _through_units(value, out, source)))
        else:
            return "another operand is neither reshaped alike nor a constant that can be"
        if maker is not None:
            m.include(maker)
    m.facts["plan"] = plan
    return None


@rule(op(MAPS), check=_check_reshaped_operands, measure=_RESHAPE_READS)
def reshape_below_map(b: Builder, m: Match) -> Value:
    """An elementwise op on reshaped operands is a reshape of the op."""
    operands = [
        value if value is None or shape is None else reshaped(b, value, shape) for value, shape in m.facts["plan"]
    ]
    return reshaped(b, emit(b, m.root.op, *operands, **m.root.attrs), m.root.output.type.shape)


def _check_below_reduce(m: Match) -> str | None:
    inner = m.node("inner")
    if not m.root.attrs["keepdims"]:
        return SILENT
    if any(inner.output.type.shape[axis] == 1 for axis in ints(m.root.attrs["axes"])):
        return SILENT  # reduce_of_units goes first
    units = only_units_move(inner.operands[0].type.shape, inner.output.type.shape)
    return None if units else "the reshape joins or splits axes"


@rule(
    op(REDUCES, op("reshape", "x", name="inner", shared=True)),
    check=_check_below_reduce,
    measure=_RESHAPE_READS,
)
def reshape_below_reduce(b: Builder, m: Match) -> Value:
    """A reduction of a tensor that was given axes of extent 1 is a reshape of the reduction."""
    places = unit_map(m.node("inner").output.type.shape, m["x"].type.shape)
    axes = tuple(sorted(places[axis] for axis in ints(m.root.attrs["axes"])))
    total = emit(b, m.root.op, m["x"], axes=axes, keepdims=True)
    return reshaped(b, total, m.root.output.type.shape)


def _check_above(m: Match) -> str | None:
    inner = m.node("inner")
    before, after = inner.output.type.shape, m.root.output.type.shape
    if not only_units_move(before, after):
        return SILENT
    if inner.op == "pad":
        amounts = zip(dims_of(inner.attrs["before"]), dims_of(inner.attrs["after"]), strict=True)
        for (front, back), extent, grown in zip(amounts, inner.operands[0].type.shape, before, strict=True):
            if (front != 0 or back != 0) and 1 in (extent, grown):
                return "it pads an axis of extent 1"
    return None


@rule(
    op("reshape", op("transpose", "x", name="inner")),
    check=_check_above,
    measure=heights(_RESHAPE, frozenset(("transpose",))),
)
def reshape_above_transpose(b: Builder, m: Match) -> Value:
    """Axes of extent 1 come and go before a transpose rather than after it."""
    perm = perm_of(m.node("inner"))
    turned, out = m.node("inner").output.type.shape, m.root.output.type.shape
    kept = [axis for axis, extent in enumerate(turned) if extent != 1]
    slots = [axis for axis, extent in enumerate(out) if extent != 1]
    slot_of = {perm[axis]: slot for axis, slot in zip(kept, slots, strict=True)}
    shape: list[Dim] = [1] * len(out)
    moved = list(range(len(out)))
    for slot, axis in zip(slots, sorted(slot_of), strict=True):
        shape[slot] = m["x"].type.shape[axis]
        moved[slot_of[axis]] = slot
    return transposed(b, reshaped(b, m["x"], shape), moved)


@rule(op("reshape", op("pad", name="inner")), check=_check_above, measure=heights(_RESHAPE, frozenset(("pad",))))
def reshape_above_pad(b: Builder, m: Match) -> Value:
    """Axes of extent 1 come and go before a pad rather than after it."""
    inner = m.node("inner")
    x = inner.operands[0]
    places = unit_map(inner.output.type.shape, m.root.output.type.shape)
    shape: list[Dim] = [1] * m.root.output.type.rank
    before: list[Dim] = [0] * len(shape)
    after: list[Dim] = [0] * len(shape)
    amounts = zip(x.type.shape, dims_of(inner.attrs["before"]), dims_of(inner.attrs["after"]), places, strict=True)
    for extent, front, back, place in amounts:
        if place >= 0:
            shape[place], before[place], after[place] = extent, front, back
    attrs = {**inner.attrs, "before": tuple(before), "after": tuple(after)}
    return emit(b, "pad", reshaped(b, x, shape), *inner.inputs[1:], **attrs)


RESHAPE_RULES = (reshape_below_map, reshape_below_reduce, reshape_above_transpose, reshape_above_pad)
