"""Moves elementwise ops from a joined tensor to its pieces, whose producers take them along.

A concat that only an elementwise op reads costs a pass over memory; its pieces are written straight into
the result of the op instead. Rotations (the two ends of an axis exchanged) become one gather. Nothing
here changes an arithmetic result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aot.builder import Builder
from aot.dims import Dim
from aot.ir import Node, Value
from aot.pattern import SILENT, Match, View, op, rule
from aot.transforms.shapes import MAPS, as_int, dims_of, elements_read, emit, ints, maker_of

_MOST_PIECES = 64
_FEW_PIECES = 4
_DEPTH = 4


def _spread(value: Value, rank: int, axis: int) -> bool:
    """Whether a broadcast operand varies along an axis of the result."""
    place = axis - (rank - value.type.rank)
    return place >= 0 and value.type.shape[place] != 1


def _plan(m: Match) -> str | None:
    node = m.root
    rank, shape = node.output.type.rank, node.output.type.shape
    makers = [maker_of(m.view, value, "concat") for value in node.inputs]
    mains = [n for n in makers if n is not None and n.output.type.shape == shape]
    if not mains:
        return SILENT
    for main in mains:
        axis = as_int(main.attrs["axis"]) % rank
        pieces = main.operands
        others = [v for v in node.inputs if v is not None and v is not main.output]
        if m.view.sole_user(main.output) is not node:
            reason = "the joined tensor is read by others too"
        elif not all(isinstance(piece.type.shape[axis], int) for piece in pieces):
            reason = "the extents of its pieces are not known"
        elif len(pieces) > _MOST_PIECES:
            reason = "it has too many pieces"
        elif len(pieces) > _FEW_PIECES and any(_spread(v, rank, axis) and m.view.const(v) is None for v in others):
            reason = "another operand would be cut in many pieces"
        elif any(_spread(v, rank, axis) and v.type.shape[axis - rank] != shape[axis] for v in others):
            reason = "another operand has another extent"
        else:
            m.include(main)
            m.facts["main"], m.facts["axis"] = main, axis
            return None
    return reason


def _piece(b: Builder, m: Match, value: Value, rank: int, axis: int, start: int, size: int, depth: int) -> Value:
    """The part of a broadcast operand along an axis of the result; cut before the ops that only this match reads."""
    if not _spread(value, rank, axis):
        return value
    view: View = m.view
    maker = view.producer.get(value)
    cuts = maker is not None and maker.op in MAPS and maker.output.type.rank == rank
    if depth and maker is not None and cuts and view.sole_user(value) is not None:
        operands = [v if v is None else _piece(b, m, v, rank, axis, start, size, depth - 1) for v in maker.inputs]
        return emit(b, maker.op, *operands, **maker.attrs)
    place = axis - (rank - value.type.rank)
    sizes: list[Dim] = list(value.type.shape)
    sizes[place] = size
    starts: list[Dim] = [0] * value.type.rank
    starts[place] = start
    return emit(b, "slice", value, starts=tuple(starts), sizes=tuple(sizes), steps=(1,) * value.type.rank)


@rule(op(MAPS), check=_plan, measure=elements_read(MAPS, "concat"))
def map_before_concat(b: Builder, m: Match) -> Value:
    """An elementwise op on a joined tensor is done on its pieces."""
    main: Node = m.facts["main"]
    axis: int = m.facts["axis"]
    rank = m.root.output.type.rank
    results: list[Value] = []
    start = 0
    for piece in main.operands:
        size = piece.type.shape[axis]
        assert isinstance(size, int)
        operands: list[Value | None] = []
        for value in m.root.inputs:
            if value is None or value is main.output:
                operands.append(None if value is None else piece)
            else:
                operands.append(_piece(b, m, value, rank, axis, start, size, _DEPTH))
        results.append(emit(b, m.root.op, *operands, **m.root.attrs))
        start += size
    return emit(b, "concat", *results, axis=axis)


# Rotations.


def _range_of(node: Node, axis: int) -> tuple[Dim, Dim] | None:
    """Start and size of a slice along an axis that takes all of the others."""
    starts, sizes, steps = dims_of(node.attrs["starts"]), dims_of(node.attrs["sizes"]), ints(node.attrs["steps"])
    whole = zip(starts, sizes, node.operands[0].type.shape, strict=True)
    if any(s != 1 for s in steps):
        return None
    if any(place != axis and (start != 0 or size != full) for place, (start, size, full) in enumerate(whole)):
        return None
    return starts[axis], sizes[axis]


def _check_rotation(m: Match) -> str | None:
    node = m.root
    axis = as_int(node.attrs["axis"]) % node.output.type.rank
    makers: Sequence[Node | None] = [maker_of(m.view, value, "slice") for value in node.operands]
    if len(makers) != 2 or makers[0] is None or makers[1] is None:
        return SILENT
    first, second = makers[0], makers[1]
    x = first.operands[0]
    if second.operands[0] is not x:
        return SILENT
    head, tail = _range_of(first, axis), _range_of(second, axis)
    extent = x.type.shape[axis]
    if head is None or tail is None or tail[0] != 0 or head[0] != tail[1] or head[0] + head[1] != extent:
        return SILENT
    if axis == x.type.rank - 1:
        return "it rotates the last axis: two copies are as good"
    if not isinstance(extent, int) or not isinstance(head[0], int) or extent < 3:
        return "how far it rotates is not known"
    m.include(first, second)
    m.facts["x"], m.facts["axis"], m.facts["shift"] = x, axis, head[0]
    return None


@rule(op("concat"), check=_check_rotation, measure=lambda nodes, view: sum(1.0 for n in nodes if n.op == "concat"))
def concat_to_rotation(b: Builder, m: Match) -> Value:
    """The two ends of an axis exchanged are one gather."""
    x, axis = m.facts["x"], m.facts["axis"]
    extent = x.type.shape[axis]
    places = b.const(np.roll(np.arange(extent, dtype=np.int64), -m.facts["shift"]))
    return emit(b, "gather", x, places, axis=axis)


CONCAT_RULES = (map_before_concat, concat_to_rotation)
