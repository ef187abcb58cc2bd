"""Normalization of ops that move or broadcast elements: chains become one op, no-ops go."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from aot.builder import Builder
from aot.dims import Dim
from aot.ir import Node, Value
from aot.ops import OpError, broadcast_shapes
from aot.pattern import SILENT, Match, View, op, rule
from aot.transforms.shapes import (
    MAPS,
    REDUCES,
    axis_of,
    chained,
    count_reads,
    dims_of,
    emit,
    heights,
    ints,
    perm_of,
    reshaped,
    transposed,
)

# Transposes and reshapes.


@rule(op("transpose", "x"), check=lambda m: SILENT if perm_of(m.root) != tuple(range(m["x"].type.rank)) else None)
def identity_transpose(b: Builder, m: Match) -> Value:
    """A transpose that keeps every axis in place is its operand."""
    return m["x"]


@rule(op("transpose", op("transpose", "x", name="inner", shared=True)), measure=chained("transpose"))
def transpose_of_transpose(b: Builder, m: Match) -> Value:
    """Two transposes are one, or none."""
    first = perm_of(m.node("inner"))
    return transposed(b, m["x"], [first[axis] for axis in perm_of(m.root)])


def _check_moves_units(m: Match) -> str | None:
    shape = m["x"].type.shape
    moved = [axis for axis in perm_of(m.root) if shape[axis] != 1]
    return None if moved == sorted(moved) else SILENT


@rule(op("transpose", "x"), check=_check_moves_units, measure="cost")
def transpose_of_units(b: Builder, m: Match) -> Value:
    """A transpose that only moves axes of extent 1 is a reshape."""
    return reshaped(b, m["x"], m.root.output.type.shape)


@rule(op("reshape", "x"), check=lambda m: SILENT if m["x"].type.shape != m.root.output.type.shape else None)
def identity_reshape(b: Builder, m: Match) -> Value:
    """A reshape to the shape that x has is x."""
    return m["x"]


@rule(op("reshape", op("reshape", "x", shared=True)), measure=chained("reshape"))
def reshape_of_reshape(b: Builder, m: Match) -> Value:
    """Two reshapes are one, or none."""
    return reshaped(b, m["x"], m.root.output.type.shape)


# Broadcasting.


@rule(op("expand", "x"), check=lambda m: SILENT if m["x"].type.shape != m.root.output.type.shape else None)
def identity_expand(b: Builder, m: Match) -> Value:
    """An expand to the shape that x has is x."""
    return m["x"]


def _expand_reads(nodes: Sequence[Node], view: View) -> float:
    return sum(1.0 for n in nodes if n.op == "expand") + sum(
        1.0 for n in nodes for v in n.operands if (maker := view.producer.get(v)) is not None and maker.op == "expand"
    )


@rule(op("expand", op("expand", "x", shared=True)), measure=chained("expand"))
def expand_of_expand(b: Builder, m: Match) -> Value:
    """Two expands are one."""
    return emit(b, "expand", m["x"], shape=m.root.output.type.shape)


def _bare_operands(m: Match) -> list[Value | None]:
    """The operands without the expands that broadcasting does by itself."""
    operands = list(m.root.inputs)
    for index, value in enumerate(operands):
        maker = m.view.producer.get(value) if value is not None else None
        if maker is None or maker.op != "expand":
            continue
        trial = [maker.operands[0] if v is value else v for v in operands]
        try:
            shape = broadcast_shapes(*(v.type.shape for v in trial if v is not None))
        except OpError:
            continue
        if shape == m.root.output.type.shape:
            m.include(maker)
            operands[index] = maker.operands[0]
    return operands


def _check_expanded(m: Match) -> str | None:
    m.facts["operands"] = _bare_operands(m)
    return SILENT if m.facts["operands"] == list(m.root.inputs) else None


@rule(op(MAPS - {"clip"}), check=_check_expanded, measure=_expand_reads)
def expand_of_operand(b: Builder, m: Match) -> Value:
    """Elementwise ops broadcast by themselves: an expand before one goes where the result keeps its shape."""
    return emit(b, m.root.op, *m.facts["operands"], **m.root.attrs)


def _check_alone(m: Match) -> str | None:
    """Finds the one expanded operand of an elementwise op whose other operands are single numbers."""
    wide = [v for v in m.root.inputs if v is not None and v.type.rank > 0]
    maker = m.view.producer.get(wide[0]) if len(set(wide)) == 1 else None
    if maker is None or maker.op != "expand":
        return SILENT
    m.facts["source"] = maker.operands[0]
    m.include(maker)
    return None


@rule(op(MAPS), check=_check_alone, measure=count_reads(MAPS, "expand"))
def expand_below_map(b: Builder, m: Match) -> Value:
    """An elementwise op on an expanded tensor works on the small tensor; the result is expanded."""
    small: Value = m.facts["source"]
    operands = [small if v is not None and v.type.rank > 0 else v for v in m.root.inputs]
    result = emit(b, m.root.op, *operands, **m.root.attrs)
    return emit(b, "expand", result, shape=m.root.output.type.shape)


def _check_reduced_expand(m: Match) -> str | None:
    inner = m.node("inner")
    before, after = inner.operands[0].type.shape, inner.output.type.shape
    shift = len(after) - len(before)
    if not m.root.attrs["keepdims"]:
        return SILENT
    for axis in _axes(m.root):
        if axis < shift or before[axis - shift] != after[axis]:
            return "it reduces over an expanded axis"
    return None


@rule(
    op(REDUCES, op("expand", "x", name="inner", shared=True)),
    check=_check_reduced_expand,
    measure=count_reads(frozenset(REDUCES), "expand"),
)
def expand_below_reduce(b: Builder, m: Match) -> Value:
    """A reduction over axes that an expand left alone works on the small tensor."""
    shift = m.node("inner").output.type.rank - m["x"].type.rank
    axes = tuple(axis - shift for axis in _axes(m.root))
    total = emit(b, m.root.op, m["x"], axes=axes, keepdims=True)
    return emit(b, "expand", total, shape=m.root.output.type.shape)


# Slices and concatenations.


def _slice_of(node: Node) -> tuple[tuple[Dim, ...], tuple[Dim, ...], tuple[int, ...]]:
    return dims_of(node.attrs["starts"]), dims_of(node.attrs["sizes"]), ints(node.attrs["steps"])


_MOVES = frozenset(("slice", "concat"))
_SLICES = heights(frozenset(("slice",)), _MOVES, 0.5)


def _check_full_slice(m: Match) -> str | None:
    starts, sizes, steps = _slice_of(m.root)
    shape = m["x"].type.shape
    whole = all(
        size == extent and start == 0 and (step == 1 or extent == 1)
        for start, size, step, extent in zip(starts, sizes, steps, shape, strict=True)
    )
    return None if whole else SILENT


@rule(op("slice", "x"), check=_check_full_slice)
def full_slice(b: Builder, m: Match) -> Value:
    """A slice of everything is its operand."""
    return m["x"]


@rule(op("slice", op("slice", "x", name="inner", shared=True)), measure=_SLICES)
def slice_of_slice(b: Builder, m: Match) -> Value:
    """Two slices are one."""
    starts, _, steps = _slice_of(m.node("inner"))
    outer_starts, sizes, outer_steps = _slice_of(m.root)
    return emit(
        b,
        "slice",
        m["x"],
        starts=tuple(s + step * o for s, step, o in zip(starts, steps, outer_starts, strict=True)),
        sizes=sizes,
        steps=tuple(s * o for s, o in zip(steps, outer_steps, strict=True)),
    )


def _check_slice_of_concat(m: Match) -> str | None:
    axis = axis_of(m.node("concat"))
    starts, sizes, steps = _slice_of(m.root)
    start, size, step = starts[axis], sizes[axis], steps[axis]
    if not isinstance(start, int) or not isinstance(size, int) or size < 1:
        return "what it takes along the joined axis is not known"
    first, last = sorted((start, start + (size - 1) * step))
    offset: Dim = 0
    for piece in m.node("concat").operands:
        extent = piece.type.shape[axis]
        if not isinstance(offset, int):
            return "it lies behind a piece whose extent is not known"
        if isinstance(extent, int) and offset <= first and last < offset + extent:
            m.facts["piece"], m.facts["start"] = piece, start - offset
            return None
        offset = offset + extent
    return "it spans several pieces"


@rule(op("slice", op("concat", name="concat", shared=True)), check=_check_slice_of_concat, measure=_SLICES)
def slice_of_concat(b: Builder, m: Match) -> Value:
    """A slice inside one piece of a concat is a slice of that piece."""
    axis = axis_of(m.node("concat"))
    starts, sizes, steps = _slice_of(m.root)
    moved = tuple(m.facts["start"] if place == axis else start for place, start in enumerate(starts))
    return emit(b, "slice", m.facts["piece"], starts=moved, sizes=sizes, steps=steps)


@rule(op("concat"), check=lambda m: SILENT if len(_pieces(m.root)) != 1 else None)
def concat_of_one(b: Builder, m: Match) -> Value:
    """A concat of one tensor (beside empty ones) is that tensor."""
    return _pieces(m.root)[0]


def _pieces(node: Node) -> list[Value]:
    """The operands of a concat that are not empty; one of them at least."""
    axis = axis_of(node)
    return [v for v in node.operands if v.type.shape[axis] != 0] or [node.operands[0]]


@rule(
    op("concat"),
    check=lambda m: SILENT if len(_pieces(m.root)) in (1, len(m.root.operands)) else None,
    measure=lambda nodes, view: sum(len(n.operands) for n in nodes if n.op == "concat"),
)
def concat_of_nothing(b: Builder, m: Match) -> Value:
    """Empty tensors in a concat go."""
    return emit(b, "concat", *_pieces(m.root), axis=m.root.attrs["axis"])


def _check_nested_concat(m: Match) -> str | None:
    for value in m.root.operands:
        maker = m.view.producer.get(value)
        if maker is not None and maker.op == "concat" and axis_of(maker) == axis_of(m.root):
            if m.view.sole_user(value) is m.root:
                m.include(maker)
                m.facts[id(value).__str__()] = maker
    return None if m.facts else SILENT


@rule(op("concat"), check=_check_nested_concat)
def concat_of_concat(b: Builder, m: Match) -> Value:
    """A concat whose piece is a concat along the same axis is one concat."""
    pieces: list[Value] = []
    for value in m.root.operands:
        maker = m.facts.get(str(id(value)))
        pieces.extend(maker.operands if maker is not None else (value,))
    return emit(b, "concat", *pieces, axis=m.root.attrs["axis"])


def _check_adjacent(m: Match) -> str | None:
    axis = axis_of(m.root)
    makers = [m.view.producer.get(v) for v in m.root.operands]
    runs: list[list[tuple[Value, Dim, Dim]]] = []
    joined = False
    for value, maker in zip(m.root.operands, makers, strict=True):
        if maker is None or maker.op != "slice":
            runs.append([(value, -1, 0)])
            continue
        starts, sizes, steps = _slice_of(maker)
        entry = (value, starts[axis], sizes[axis])
        before = m.view.producer.get(runs[-1][-1][0]) if runs else None
        follows = (
            before is not None
            and before.op == "slice"
            and before.operands[0] is maker.operands[0]
            and steps[axis] == 1
            and ints(before.attrs["steps"]) == steps
            and runs[-1][-1][1] + runs[-1][-1][2] == starts[axis]
            and all(
                place == axis or (a == c and d == e)
                for place, (a, c, d, e) in enumerate(
                    zip(starts, _slice_of(before)[0], sizes, _slice_of(before)[1], strict=True)
                )
            )
        )
        if follows:
            runs[-1].append(entry)
            joined = True
        else:
            runs.append([entry])
    m.facts["runs"] = runs
    return None if joined else SILENT


@rule(
    op("concat"),
    check=_check_adjacent,
    measure=lambda nodes, view: sum(len(n.operands) for n in nodes if n.op == "concat"),
)
def concat_of_slices(b: Builder, m: Match) -> Value:
    """Slices of one tensor that follow each other are one slice."""
    axis = axis_of(m.root)
    pieces: list[Value] = []
    for run in m.facts["runs"]:
        if len(run) == 1:
            pieces.append(run[0][0])
            continue
        maker = m.view.producer[run[0][0]]
        starts, sizes, steps = _slice_of(maker)
        whole: Dim = 0
        for _, _, size in run:
            whole = whole + size
        wider = tuple(whole if place == axis else size for place, size in enumerate(sizes))
        pieces.append(emit(b, "slice", maker.operands[0], starts=starts, sizes=wider, steps=steps))
    return pieces[0] if len(pieces) == 1 else emit(b, "concat", *pieces, axis=axis)


# Paddings, tiles, reductions.


def _check_no_padding(m: Match) -> str | None:
    amounts = (*dims_of(m.root.attrs["before"]), *dims_of(m.root.attrs["after"]))
    return None if all(amount == 0 for amount in amounts) else SILENT


@rule(op("pad"), check=_check_no_padding)
def pad_of_nothing(b: Builder, m: Match) -> Value:
    """A pad by nothing is its operand."""
    return m.root.operands[0]


def _check_nested_pad(m: Match) -> str | None:
    inner, outer = m.node("inner"), m.root
    if inner.attrs["mode"] != "constant" or outer.attrs["mode"] != "constant":
        return SILENT
    fills = [m.view.number(n.inputs[1]) if len(n.inputs) > 1 and n.inputs[1] is not None else 0 for n in (inner, outer)]
    return None if fills[0] is not None and fills[0] == fills[1] else "they fill with different values"


@rule(op("pad"), check=lambda m: _pad_pair(m))
def pad_of_pad(b: Builder, m: Match) -> Value:
    """Two pads with the same fill are one."""
    inner, outer = m.node("inner"), m.root
    before = tuple(x + y for x, y in zip(dims_of(inner.attrs["before"]), dims_of(outer.attrs["before"]), strict=True))
    after = tuple(x + y for x, y in zip(dims_of(inner.attrs["after"]), dims_of(outer.attrs["after"]), strict=True))
    return emit(b, "pad", *inner.inputs, before=before, after=after, mode="constant")


def _pad_pair(m: Match) -> str | None:
    maker = m.view.producer.get(m.root.operands[0])
    if maker is None or maker.op != "pad":
        return SILENT
    if m.view.sole_user(maker.output) is not m.root:
        return "the inner pad is read by others too"
    m.nodes["inner"] = maker
    m.include(maker)
    return _check_nested_pad(m)


@rule(op("tile", "x"), check=lambda m: None if all(r == 1 for r in ints(m.root.attrs["repeats"])) else SILENT)
def tile_of_one(b: Builder, m: Match) -> Value:
    """A tile that repeats nothing is its operand."""
    return m["x"]


def _check_tile_of_units(m: Match) -> str | None:
    extents = m.root.operands[0].type.shape
    repeats = ints(m.root.attrs["repeats"])
    return None if all(r == 1 or extent == 1 for r, extent in zip(repeats, extents, strict=True)) else SILENT


@rule(
    op("tile", "x"), check=_check_tile_of_units, measure=lambda nodes, view: sum(1.0 for n in nodes if n.op == "tile")
)
def tile_of_units(b: Builder, m: Match) -> Value:
    """A tile that repeats only axes of extent 1 moves no bytes: it is an expand."""
    return emit(b, "expand", m["x"], shape=m.root.output.type.shape)


def _check_copies(m: Match) -> str | None:
    first, axis = m.root.operands[0], axis_of(m.root)
    if len(m.root.operands) < 2 or any(value is not first for value in m.root.operands):
        return SILENT
    reader = m.view.sole_user(m.root.output)
    return None if first.type.shape[axis] == 1 or (reader is not None and reader.op == "reshape") else SILENT


@rule(op("concat"), check=_check_copies, measure=lambda nodes, view: sum(1.0 for n in nodes if n.op == "concat"))
def concat_of_copies(b: Builder, m: Match) -> Value:
    """One tensor many times along an axis is an expand of it."""
    first, axis = m.root.operands[0], axis_of(m.root)
    if first.type.shape[axis] == 1:
        return emit(b, "expand", first, shape=m.root.output.type.shape)
    before, after = first.type.shape[:axis], first.type.shape[axis:]
    apart = reshaped(b, first, (*before, 1, *after))
    wide = emit(b, "expand", apart, shape=(*before, len(m.root.operands), *after))
    return reshaped(b, wide, m.root.output.type.shape)


def _axes(node: Node) -> tuple[int, ...]:
    return ints(node.attrs["axes"])


@rule(
    op(REDUCES, "x"),
    check=lambda m: SILENT if m.root.attrs["keepdims"] else None,
    measure=lambda nodes, view: sum(1.0 for n in nodes if n.op in REDUCES and not n.attrs["keepdims"]),
)
def reduce_keeps_axes(b: Builder, m: Match) -> Value:
    """A reduction keeps its axes as extents of 1; a reshape drops them."""
    kept = emit(b, m.root.op, m["x"], axes=m.root.attrs["axes"], keepdims=True)
    return reshaped(b, kept, m.root.output.type.shape)


def _check_unit_axes(m: Match) -> str | None:
    axes = _axes(m.root)
    if not m.root.attrs["keepdims"]:
        return SILENT
    m.facts["axes"] = tuple(axis for axis in axes if m["x"].type.shape[axis] != 1)
    return SILENT if len(m.facts["axes"]) == len(axes) and axes else None


@rule(
    op(REDUCES, "x"),
    check=_check_unit_axes,
    measure=lambda nodes, view: sum(1.0 + len(_axes(n)) for n in nodes if n.op in REDUCES),
)
def reduce_of_units(b: Builder, m: Match) -> Value:
    """A reduction over an extent of 1 does nothing."""
    if not m.facts["axes"]:
        return m["x"]
    return emit(b, m.root.op, m["x"], axes=m.facts["axes"], keepdims=True)


# Gathers at known places.


def _check_known_gather(m: Match) -> str | None:
    indices = m.view.const(m["i"])
    axis = axis_of(m.root)
    extent = m["x"].type.shape[axis]
    if indices is None:
        return SILENT
    if len(indices.shape) > 1 or indices.bytes > 1 << 16 or 0 in indices.shape:
        return SILENT
    numbers = [int(i) for i in indices.array().reshape(-1)]
    if isinstance(extent, int):
        numbers = [i + extent if i < 0 else i for i in numbers]
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    if min(numbers) < 0 or not isinstance(extent, int) or max(numbers) >= extent:
        return "its indices are not known to lie inside"
    if step == 0 or any(b - a != step for a, b in pairwise(numbers)):
        return "its indices have no even step"
    m.facts["slice"] = (numbers[0], len(numbers), step)
    return None


@rule(op("gather", "x", "i"), check=_check_known_gather, measure="cost")
def gather_at_known_places(b: Builder, m: Match) -> Value:
    """A gather at constant, evenly spaced indices is a slice."""
    start, size, step = m.facts["slice"]
    axis = axis_of(m.root)
    shape = m["x"].type.shape
    places = range(len(shape))
    taken = emit(
        b,
        "slice",
        m["x"],
        starts=tuple(start if place == axis else 0 for place in places),
        sizes=tuple(size if place == axis else shape[place] for place in places),
        steps=tuple(step if place == axis else 1 for place in places),
    )
    return reshaped(b, taken, m.root.output.type.shape)


VIEW_RULES = (
    identity_transpose,
    transpose_of_transpose,
    transpose_of_units,
    identity_reshape,
    reshape_of_reshape,
    identity_expand,
    expand_of_expand,
    expand_of_operand,
    expand_below_map,
    expand_below_reduce,
    full_slice,
    slice_of_slice,
    slice_of_concat,
    concat_of_one,
    concat_of_copies,
    concat_of_nothing,
    concat_of_concat,
    concat_of_slices,
    pad_of_nothing,
    pad_of_pad,
    tile_of_one,
    tile_of_units,
    reduce_keeps_axes,
    reduce_of_units,
    gather_at_known_places,
)
