"""Counting, gathering and one-hot products: what exporters write for positions and embeddings."""

from __future__ import annotations

import numpy as np

from aot.builder import Builder
from aot.ir import Array, Value
from aot.pattern import SILENT, Constant, Match, op, rule
from aot.transforms.shapes import (
    as_int,
    axis_of,
    count_reads,
    dims_of,
    emit,
    ints,
    maker_of,
    only_units_move,
    reshaped,
    unit_map,
    without_units,
)

# iota.


def _check_counting(m: Match) -> str | None:
    if m.root.attrs["reverse"]:
        return "it counts backwards"
    if not m["x"].type.dtype.is_integer:
        return "sums of floats round"
    value = m["x"]
    maker = maker_of(m.view, value, "expand")
    if maker is not None:
        value = maker.operands[0]
    number = m.view.number(value)
    if number is None:
        return "it does not sum one number over and over"
    if maker is not None:
        m.include(maker)
    m.facts["step"] = int(number)
    return None


@rule(op("cumsum", "x"), check=_check_counting, measure="cost")
def cumsum_of_ones(b: Builder, m: Match) -> Value:
    """Running sums of one number are a count."""
    step = m.facts["step"]
    return emit(
        b,
        "iota",
        shape=m.root.output.type.shape,
        axis=axis_of(m.root),
        start=0 if m.root.attrs["exclusive"] else step,
        step=step,
        dtype=m["x"].type.dtype,
    )


def _check_iota_arithmetic(m: Match) -> str | None:
    node = m.node("iota")
    dtype = node.output.type.dtype
    if not dtype.is_integer or m.root.output.type.shape != node.output.type.shape:
        return SILENT
    number = int(m.number("c"))
    start, step = as_int(node.attrs["start"]), as_int(node.attrs["step"])
    if m.root.op == "mul":
        m.facts["iota"] = (start * number, step * number)
    elif m.root.op == "add":
        m.facts["iota"] = (start + number, step)
    elif m.root.inputs[0] is m["c"]:
        m.facts["iota"] = (number - start, -step)
    else:
        m.facts["iota"] = (start - number, step)
    limit = 1 << (dtype.bits - 2)
    return None if all(abs(part) < limit for part in m.facts["iota"]) else "it may overflow"


def _counted_anew(b: Builder, m: Match) -> Value:
    start, step = m.facts["iota"]
    return emit(b, "iota", **{**m.node("iota").attrs, "start": start, "step": step})


@rule(
    op("add sub mul", op("iota", name="iota", shared=True), Constant("c", splat=True)),
    check=_check_iota_arithmetic,
    measure=lambda nodes, view: sum(1.0 for n in nodes if n.op != "iota"),
)
def iota_arithmetic(b: Builder, m: Match) -> Value:
    """A count plus, minus or times a number is a count."""
    return _counted_anew(b, m)


@rule(
    op("sub", Constant("c", splat=True), op("iota", name="iota", shared=True)),
    check=_check_iota_arithmetic,
    measure=lambda nodes, view: sum(1.0 for n in nodes if n.op != "iota"),
)
def iota_backwards(b: Builder, m: Match) -> Value:
    """A number minus a count is a count."""
    return _counted_anew(b, m)


def _check_iota_shape(m: Match) -> str | None:
    node = m.node("iota")
    before, after = node.output.type.shape, m.root.output.type.shape
    axis = axis_of(node)
    if m.root.op == "expand":
        m.facts["axis"] = axis + len(after) - len(before)
        return None if after[m.facts["axis"]] == before[axis] else "it repeats the count"
    if before[axis] == 1 or not only_units_move(before, after):
        return "it does more than to move axes of extent 1"
    m.facts["axis"] = unit_map(before, after)[axis]
    return None


@rule(
    op("reshape expand", op("iota", name="iota", shared=True)),
    check=_check_iota_shape,
    measure=lambda nodes, view: sum(1.0 for n in nodes if n.op != "iota"),
)
def iota_in_shape(b: Builder, m: Match) -> Value:
    """A count that is given axes is a count in that shape."""
    attrs = {**m.node("iota").attrs, "shape": m.root.output.type.shape, "axis": m.facts["axis"]}
    return emit(b, "iota", **attrs)


def _check_gather_all(m: Match) -> str | None:
    node = m.node("iota")
    axis = axis_of(m.root)
    if node.output.type.rank != 1 or (node.attrs["start"], node.attrs["step"]) != (0, 1):
        return "it does not count from 0 by 1"
    if node.output.type.shape[0] != m["x"].type.shape[axis]:
        return "it is not known to count to the end"
    return None


@rule(op("gather", "x", op("iota", name="iota", shared=True)), check=_check_gather_all)
def gather_everything(b: Builder, m: Match) -> Value:
    """A gather at 0, 1, 2, … to the end is its operand."""
    return m["x"]


# Views of constants whose result depends on a symbol cannot be folded, but known contents can be used.

_VIEWS = frozenset(("slice", "transpose", "reshape", "tile", "gather"))


def _check_uniform(m: Match) -> str | None:
    return SILENT if m.view.number(m.root.operands[0]) is None else None


@rule(op(_VIEWS), check=_check_uniform, measure=lambda nodes, view: sum(1.0 for n in nodes if n.op in _VIEWS))
def view_of_number(b: Builder, m: Match) -> Value:
    """A part of a constant of equal elements is that number, broadcast."""
    const = m.view.consts[m.root.operands[0]]
    element = b.const(const.array().reshape(-1)[0].reshape(()))
    return emit(b, "expand", element, shape=m.root.output.type.shape)


@rule(op("gather", "x", op("expand", "i", name="inner")), measure=count_reads(frozenset(("gather",)), "expand"))
def gather_before_expand(b: Builder, m: Match) -> Value:
    """A gather at repeated indices is a gather, repeated."""
    axis = axis_of(m.root)
    rank = m.node("inner").output.type.rank
    places = reshaped(b, m["i"], (*(1,) * (rank - m["i"].type.rank), *m["i"].type.shape))
    return emit(b, "expand", emit(b, "gather", m["x"], places, axis=axis), shape=m.root.output.type.shape)


def _check_counted_places(m: Match) -> str | None:
    table, inner = m.view.consts[m["count"]], m.node("inner")
    axis = axis_of(m.root)
    extent = m["x"].type.shape[axis]
    first = _counting_constant(table.array())
    if first is None:
        return "the indices are no count"
    if first < 0 or not isinstance(extent, int) or first + table.shape[-1] > extent:
        return "the indices are not known to lie inside"
    if any(d != 1 for d in inner.output.type.shape[:-1]):
        return "the indices are a count only along one of several axes"
    m.facts["first"] = first
    return None


@rule(
    op("gather", "x", op("slice", Constant("count"), name="inner", shared=True)),
    check=_check_counted_places,
    measure=lambda nodes, view: sum(1.0 for n in nodes if n.op == "gather"),
)
def gather_at_count(b: Builder, m: Match) -> Value:
    """A gather at a part of 0, 1, 2, … is a slice."""
    inner, axis = m.node("inner"), axis_of(m.root)
    start, size = dims_of(inner.attrs["starts"])[-1], dims_of(inner.attrs["sizes"])[-1]
    shape = m["x"].type.shape
    places = range(len(shape))
    taken = emit(
        b,
        "slice",
        m["x"],
        starts=tuple(m.facts["first"] + start if place == axis else 0 for place in places),
        sizes=tuple(size if place == axis else shape[place] for place in places),
        steps=tuple(ints(inner.attrs["steps"])[-1] if place == axis else 1 for place in places),
    )
    return reshaped(b, taken, m.root.output.type.shape)


# A product with one-hot rows picks rows.


def _counting_constant(array: Array) -> int | None:
    """The first number of a constant that counts up by 1 along its last axis, else None."""
    row = array.reshape(-1)
    if row.size < 2 or row.dtype.kind not in "iu" or array.shape[-1] != row.size:
        return None
    first = int(row[0])
    return first if bool(np.array_equal(row, np.arange(first, first + row.size, dtype=row.dtype))) else None


def _check_one_hot(m: Match) -> str | None:
    table, weight, labels = m.view.consts[m["count"]], m["w"], m["labels"]
    if weight.type.rank != 2:
        return "the weight is no matrix"
    if not m.root.output.type.dtype.is_float:
        return SILENT
    first = _counting_constant(table.array())
    rows = weight.type.shape[0]
    if first is None or rows != table.shape[-1]:
        return "the labels are not compared with 0, 1, 2, …"
    if labels.type.rank < 1 or labels.type.shape[-1] != 1:
        return "the labels have no axis to spread over"
    if without_units(m.root.output.type.shape[:-1]) != without_units(labels.type.shape[:-1]):
        return "the comparison widens the labels"
    if labels.type.dtype.family != "int" or labels.type.dtype.bits < 32:
        return f"labels of type {labels.type.dtype} cannot index"
    assert isinstance(rows, int)
    m.facts["first"], m.facts["rows"] = first, rows
    return None


@rule(
    op("matmul", op("cast", op("eq", "labels", Constant("count"))), Constant("w")),
    check=_check_one_hot,
    measure="cost",
)
def one_hot_product(b: Builder, m: Match) -> Value:
    """A product of one-hot rows with a matrix is a gather of its rows; labels outside give zeros.

    Both kinds of outside label land on a row of zeros behind the last: too large by clamping, too
    small as -1, which counts from the end.
    """
    first, rows = m.facts["first"], m.facts["rows"]
    labels = m["labels"]
    dtype = labels.type.dtype
    inside = emit(b, "clip", labels, b.scalar(first - 1, dtype), b.scalar(first + rows, dtype))
    if first != 0:
        inside = emit(b, "sub", inside, b.scalar(first, dtype))
    extended = emit(b, "pad", m["w"], before=(0, 0), after=(1, 0), mode="constant")
    places = reshaped(b, inside, m.root.output.type.shape[:-1])
    return emit(b, "gather", extended, places, axis=0)


INDEX_RULES = (
    cumsum_of_ones,
    iota_arithmetic,
    iota_backwards,
    iota_in_shape,
    gather_everything,
    view_of_number,
    gather_before_expand,
    gather_at_count,
    one_hot_product,
)
