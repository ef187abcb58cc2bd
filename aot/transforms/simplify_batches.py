"""Undoes the joining of batch axes: exporters write products of heads as [batch * heads, rows, columns].

Heads that were split from a row of features are not neighbours of the batch in memory, so joining the
two moves every byte; products, softmax and attention take several batch axes as they are. Nothing here
changes an arithmetic result.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.builder import Builder
from aot.dims import Dim, exact_div
from aot.ir import Node, Value
from aot.pattern import SILENT, Match, op, rule
from aot.transforms.shapes import (
    as_int,
    count_reads,
    emit,
    heights,
    joined_axes,
    maker_of,
    only_units_move,
    perm_of,
    reshaped,
    transposed,
    value_fits,
    without_units,
)

_RESHAPE = frozenset(("reshape",))
_BATCHED = frozenset(("matmul", "attention", "softmax", "log_softmax", "layer_norm", "rms_norm"))
_READS = count_reads(_BATCHED, "reshape")


def _split_again(m: Match) -> str | None:
    first, turn = m.node("first"), m.node("turn")
    source = m["x"].type.shape
    runs = joined_axes(source, first.output.type.shape)
    if runs is None or only_units_move(source, first.output.type.shape):
        return SILENT
    order = [axis for place in perm_of(turn) for axis in runs[place]]
    if not only_units_move([source[axis] for axis in order], m.root.output.type.shape):
        return "the axes that were joined are not split as they were"
    m.facts["order"] = order
    return None


@rule(
    op("reshape", op("transpose", op("reshape", "x", name="first"), name="turn")),
    check=_split_again,
    measure=heights(_RESHAPE, frozenset(("transpose", "reshape")), 0.5),
)
def transpose_between_reshapes(b: Builder, m: Match) -> Value:
    """A transpose with axes joined before it and split after it is a transpose of them all."""
    return reshaped(b, transposed(b, m["x"], m.facts["order"]), m.root.output.type.shape)


def common_parts(
    left: Sequence[Dim], right: Sequence[Dim]
) -> tuple[list[Dim], list[list[int]], list[list[int]]] | None:
    """Extents that both shapes are joins of, and the parts of each axis of the two; None where there are none."""
    parts: list[Dim] = []
    owners: tuple[list[list[int]], list[list[int]]] = ([[] for _ in left], [[] for _ in right])
    places = [0, 0]
    rest: list[Dim] = [1, 1]
    while True:
        for side, shape in enumerate((left, right)):
            while rest[side] == 1 and places[side] < len(shape):
                rest[side] = shape[places[side]]
                places[side] += 1
        if rest == [1, 1]:
            return parts, *owners
        small = rest[0] if exact_div(rest[1], rest[0]) is not None else rest[1]
        others = [exact_div(extent, small) for extent in rest]
        if small == 1 or others[0] is None or others[1] is None:
            return None
        for side in (0, 1):
            owners[side][places[side] - 1].append(len(parts))
        parts.append(small)
        rest = [extent for extent in others if extent is not None]


def _check_two_turns(m: Match) -> str | None:
    first, between, last = m.node("first"), m.node("between"), m.root
    if any(extent == 0 for extent in between.output.type.shape):
        return SILENT
    found = common_parts(first.output.type.shape, between.output.type.shape)
    if found is None:
        return "the reshape between them has no parts in common with what it reshapes"
    m.facts["parts"], m.facts["before"], m.facts["after"] = found
    m.facts["order"] = [part for axis in perm_of(last) for part in m.facts["after"][axis]]
    return None


@rule(
    op("transpose", op("reshape", op("transpose", "x", name="first"), name="between")),
    check=_check_two_turns,
    measure=lambda nodes, view: sum(1.0 for node in nodes if node.op == "transpose"),
)
def transposes_around_reshape(b: Builder, m: Match) -> Value:
    """Two transposes with a reshape between them are one, of the parts that the reshape joins and splits."""
    parts, before, perm = m.facts["parts"], m.facts["before"], perm_of(m.node("first"))
    source = [part for axis in range(len(perm)) for part in before[perm.index(axis)]]
    apart = reshaped(b, m["x"], [parts[part] for part in source])
    turned = transposed(b, apart, [source.index(part) for part in m.facts["order"]])
    return reshaped(b, turned, m.root.output.type.shape)


def _unjoined(m: Match, value: Value, kept: int) -> Value | None:
    """What a value is a reshape of, if the reshape joins batch axes and keeps the last `kept` axes."""
    maker = maker_of(m.view, value, "reshape")
    if maker is None:
        return None
    source = maker.operands[0]
    before, after = source.type.shape, value.type.shape
    if len(before) <= len(after) or before[len(before) - kept :] != after[len(after) - kept :]:
        return None
    if without_units(before) == without_units(after):
        return None
    m.include(maker)
    return source if joined_axes(before[:-kept], after[:-kept]) is not None else None


def _matrix(m: Match, value: Value) -> tuple[Value, bool] | None:
    """An operand of a matmul before its batch axes were joined, and whether its last two axes are swapped after."""
    turn = maker_of(m.view, value, "transpose")
    rank = value.type.rank
    turned = turn is not None and perm_of(turn) == (*range(rank - 2), rank - 1, rank - 2)
    if turn is not None and turned:
        m.include(turn)
        value = turn.operands[0]
    source = _unjoined(m, value, 2)
    return None if source is None else (source, turned)


def _check_matmul(m: Match) -> str | None:
    first, second = (_matrix(m, value) for value in m.root.operands)
    if first is None or second is None:
        return SILENT
    if first[0].type.shape[:-2] != second[0].type.shape[:-2]:
        return "its operands join different axes"
    m.facts["operands"] = (first, second)
    return None


@rule(op("matmul"), check=_check_matmul, measure=count_reads(_BATCHED, "reshape", "transpose"))
def matmul_of_joined_batches(b: Builder, m: Match) -> Value:
    """A product of operands whose batch axes were joined alike is a product with those axes."""
    operands = []
    for value, turned in m.facts["operands"]:
        last = value.type.rank - 1
        operands.append(transposed(b, value, [*range(last - 1), last, last - 1]) if turned else value)
    return reshaped(b, emit(b, "matmul", *operands), m.root.output.type.shape)


def _check_rows(m: Match) -> str | None:
    node = m.root
    rank = node.output.type.rank
    if rank == 0:
        return SILENT
    axis = as_int(node.attrs["axis"]) % rank
    single = node.op in ("softmax", "log_softmax")
    if single and axis != rank - 1:
        return SILENT
    m.facts["kept"] = rank - axis
    m.facts["source"] = _unjoined(m, node.operands[0], rank - axis)
    return SILENT if m.facts["source"] is None else None


@rule(op("softmax log_softmax layer_norm rms_norm"), check=_check_rows, measure=_READS)
def rows_of_joined_batches(b: Builder, m: Match) -> Value:
    """A softmax or norm of rows whose batch axes were joined is one with those axes."""
    source: Value = m.facts["source"]
    attrs = {**m.root.attrs, "axis": source.type.rank - m.facts["kept"]}
    result = emit(b, m.root.op, source, *m.root.inputs[1:], **attrs)
    return reshaped(b, result, m.root.output.type.shape)


def _heads_of(m: Match, node: Node) -> list[Value] | None:
    """q, k and v with batch and heads, where they were joined to a batch of single heads."""
    found = []
    for value in node.operands[:3]:
        maker = maker_of(m.view, value, "reshape")
        source = maker.operands[0] if maker is not None else None
        if maker is None or source is None or source.type.rank != 4 or value.type.shape[1] != 1:
            return None
        batch, heads, *rest = source.type.shape
        if heads == 1 or value.type.shape != (batch * heads, 1, *rest):
            return None
        m.include(maker)
        found.append(source)
    return found if len({value.type.shape[:2] for value in found}) == 1 else None


def _check_attention(m: Match) -> str | None:
    found = _heads_of(m, m.root)
    if found is None:
        return SILENT
    mask = m.root.operands[3] if len(m.root.operands) > 3 else None
    if mask is not None and not value_fits(mask, (1, 1, *m.root.output.type.shape[2:3], found[1].type.shape[2])):
        return "its mask differs by batch"
    m.facts["heads"], m.facts["mask"] = found, mask
    return None


@rule(op("attention"), check=_check_attention, measure=_READS)
def attention_of_joined_heads(b: Builder, m: Match) -> Value:
    """Attention with the heads joined to the batch is attention with heads."""
    mask = m.facts["mask"]
    operands = (*m.facts["heads"], *(() if mask is None else (mask,)))
    return reshaped(b, emit(b, "attention", *operands, **m.root.attrs), m.root.output.type.shape)


def _unrepeated(m: Match, value: Value) -> Value | None:
    """What a value [b, groups * times, t, d] repeats: [b, groups, 1, t, d]."""
    joined = maker_of(m.view, value, "reshape")
    repeated = maker_of(m.view, joined.operands[0], "expand") if joined is not None else None
    if joined is None or repeated is None or repeated.output.type.rank != 5:
        return None
    batch, groups, times, *rest = repeated.output.type.shape
    source = repeated.operands[0]
    if source.type.shape != (batch, groups, 1, *rest) or value.type.shape != (batch, groups * times, *rest):
        return None
    m.include(joined, repeated)
    return source


def _check_repeated(m: Match) -> str | None:
    found = [_unrepeated(m, value) for value in m.root.operands[1:3]]
    k, v = found
    if k is None or v is None:
        return SILENT
    m.facts["found"] = found
    return None if k.type.shape[1] == v.type.shape[1] else "k and v are repeated differently"


@rule(op("attention"), check=_check_repeated, measure=count_reads(_BATCHED, "reshape", "expand"))
def attention_of_repeated_heads(b: Builder, m: Match) -> Value:
    """Attention whose keys and values are repeated for groups of heads takes them once."""
    operands = [reshaped(b, v, (*v.type.shape[:2], *v.type.shape[3:])) for v in m.facts["found"]]
    return emit(b, "attention", m.root.operands[0], *operands, *m.root.operands[3:], **m.root.attrs)


BATCH_RULES = (
    transposes_around_reshape,
    transpose_between_reshapes,
    matmul_of_joined_batches,
    rows_of_joined_batches,
    attention_of_joined_heads,
    attention_of_repeated_heads,
)
