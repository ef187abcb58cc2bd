"""Sizes and places that only the data of a run gives: how converters compute and read them.

A size is computed by ordinary ops, on tensors of integers, until it is one that a tensor can have; then it is
read (`aot/control.py`), and from there on it is an unbacked symbol in the types. So what the compiler reasons
about never has the cases that ONNX allows: -1, 0 for "as before", positions from the end, limits past it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aot import dims as dimension
from aot import dtypes
from aot.control import add_claim
from aot.dims import Dim
from aot.frontend import data_sizes
from aot.frontend.known_scalars import is_symbolic
from aot.frontend.onnx_registry import Context, Result, onnx_op
from aot.ir import Value

_I64 = dtypes.I64
_MOST = np.iinfo(np.int64).max


is_unbacked = data_sizes.is_unbacked


def number(c: Context, dim: Dim) -> Value:
    """A size as a rank-0 tensor."""
    return c.dim_scalar(dim, _I64)


def read(c: Context, value: Value, what: str) -> Dim:
    """A rank-0 or one-element tensor of integers as a size that is not negative."""
    contents = c.builder.read_sizes(value)
    if contents is None or contents.size != 1:
        c.unsupported(f"{what} depends on data that is only known when running")
    dim: Dim = contents.flat[0]
    return dim


def elements(c: Context, index: int, what: str) -> list[Dim | Value]:
    """The entries of a rank-1 operand: a size where it is known, else a rank-0 i64 tensor."""
    value = c.input(index)
    count = value.type.elements
    if value.type.rank > 1 or not isinstance(count, int):
        c.unsupported(f"{what} has a length that is only known when running")
    if value.type.dtype.is_float:
        c.fail(f"{what} must hold integers")
    found: list[Dim | Value] = []
    for part in c.builder.parts(value):
        contents = c.builder.known(part)
        if contents is not None:
            found.extend(contents.flat)
            continue
        wide = c.cast(c.reshape(part, (part.type.elements,)), _I64)
        for place in range(int(str(part.type.elements))):
            found.append(c.reshape(c.slice_axis(wide, 0, place, 1), ()))
    return found


def tensor(c: Context, element: Dim | Value) -> Value:
    """An entry as a rank-0 i64 tensor."""
    return element if isinstance(element, Value) else number(c, element)


def reshaped(c: Context, x: Value, entries: Sequence[Dim | Value], allow_zero: bool) -> Value:
    """ONNX Reshape to entries of which some are only known when running: each may then be -1 or 0 as well."""
    zero, one, free = (c.scalar(n, _I64) for n in (0, 1, -1))
    wanted: list[Value] = []
    for axis, entry in enumerate(entries):
        value = tensor(c, entry)
        if not allow_zero and axis < x.type.rank and (isinstance(entry, Value) or entry == 0):
            value = c.op("where", c.op("eq", value, zero), number(c, x.type.shape[axis]), value)
        wanted.append(value)
    rest = one
    for value in wanted:
        rest = c.op("mul", rest, c.op("where", c.op("eq", value, free), one, value))
    missing = c.op("div", number(c, x.type.elements), c.op("max", rest, one))
    shape: list[Dim] = []
    for axis, (entry, value) in enumerate(zip(entries, wanted, strict=True)):
        if isinstance(entry, Value) or entry == -1:
            shape.append(read(c, c.op("where", c.op("eq", value, free), missing, value), "the shape"))
        elif entry == 0 and not allow_zero:
            shape.append(x.type.shape[axis] if axis < x.type.rank else 0)
        else:
            shape.append(entry)
    return with_shape(c, x, shape)


def with_shape(c: Context, x: Value, shape: Sequence[Dim]) -> Value:
    """A reshape; where only the run knows that the elements are as many, it is checked then."""
    return data_sizes.with_shape(c.builder, x, shape)


def sliced(c: Context, x: Value, axis: int, start: Dim | Value, end: Dim | Value, step: int) -> Value:
    """numpy's x[start:end:step] along an axis, for positions that only the run knows."""
    zero = c.scalar(0, _I64)
    extent = number(c, x.type.shape[axis])
    last = c.op("sub", extent, c.scalar(1, _I64))
    low, high = (zero, extent) if step > 0 else (c.scalar(-1, _I64), last)

    def place(position: Dim | Value, low: Value, high: Value) -> Value:
        value = tensor(c, position)
        value = c.op("where", c.op("lt", value, zero), c.op("add", value, extent), value)
        return c.op("min", c.op("max", value, low), high)

    first, behind = place(start, zero if step > 0 else low, high), place(end, low, high)
    room = c.op("sub", behind, first) if step > 0 else c.op("sub", first, behind)
    size = read(c, steps_within(c, c.op("max", room, zero), c.scalar(abs(step), _I64)), "the length of a slice")
    from_ = read(c, c.op("max", first, zero), "the start of a slice")
    return c.slice_axis(x, axis, from_, size, step)


def stride_of(c: Context, step: Value) -> Value:
    """The size of a step, at least 1."""
    return c.op("max", c.op("abs", c.op("max", step, c.scalar(-_MOST, _I64))), c.scalar(1, _I64))


def steps_within(c: Context, room: Value, stride: Value) -> Value:
    """room / stride, rounded up; nothing overflows, however long the stride."""
    rest = c.cast(c.op("gt", c.op("mod", room, stride), c.scalar(0, _I64)), _I64)
    return c.op("add", c.op("div", room, stride), rest)


def sliced_by_data(c: Context, x: Value, places: Sequence[Value | None]) -> Value:
    """ONNX Slice whose axes or steps are only known when running: starts, ends, axes and steps as tensors."""
    rank, zero, one = x.type.rank, c.scalar(0, _I64), c.scalar(1, _I64)
    given = [None if value is None else c.cast(c.reshape(value, (value.type.elements,)), _I64) for value in places]
    starts, ends, axes, steps = given
    assert starts is not None and ends is not None
    count = starts.type.shape
    if axes is None:
        axes = c.op("iota", shape=count, axis=0, start=0, step=1, dtype=_I64)
    axes = c.op("where", c.op("lt", axes, zero), c.op("add", axes, c.scalar(rank, _I64)), axes)
    steps = c.expand(one, count) if steps is None else steps
    # Axes that are not named run from 0 to the end by 1.
    limits = c.op("add", c.dims_value(x.type.shape), zero)
    every = [
        c.op("scatter_elements", base, axes, update, axis=0, reduction="none")
        for base, update in ((c.expand(zero, (rank,)), starts), (limits, ends), (c.expand(one, (rank,)), steps))
    ]
    for axis in range(rank):
        start, end, step = (c.reshape(c.slice_axis(vector, 0, axis, 1), ()) for vector in every)
        extent = number(c, x.type.shape[axis])
        last, back = c.op("sub", extent, one), c.op("lt", step, zero)
        low, high = c.op("where", back, c.scalar(-1, _I64), zero), c.op("where", back, last, extent)

        def place(position: Value, low: Value = low, high: Value = high, extent: Value = extent) -> Value:
            value = c.op("where", c.op("lt", position, zero), c.op("add", position, extent), position)
            return c.op("min", c.op("max", value, low), high)

        first, behind = place(start), place(end)
        room = c.op("sub", behind, first)
        room = c.op("max", c.op("where", back, c.op("neg", room), room), zero)
        size = read(c, steps_within(c, room, stride_of(c, step)), "the length of a slice")
        iota = c.op("iota", shape=(size,), axis=0, start=0, step=1, dtype=_I64)
        x = c.op("gather", x, c.op("add", c.op("mul", iota, step), first), axis=axis)
    return x


def with_axes(c: Context, x: Value, axes: Value, *, remove: bool) -> Value:
    """Squeeze (remove) or Unsqueeze along axes that are only known when running: their number is known."""
    count = axes.type.elements
    if not isinstance(count, int) or (remove and count > x.type.rank):
        c.unsupported("the number of axes depends on data")
    wide = x.type.rank if remove else x.type.rank + count
    zero, one = c.scalar(0, _I64), c.scalar(1, _I64)
    places = c.cast(c.reshape(axes, (count,)), _I64)
    places = c.op("where", c.op("lt", places, zero), c.op("add", places, c.scalar(wide, _I64)), places)
    marks = c.op("scatter_elements", c.expand(zero, (wide,)), places, c.expand(one, (count,)), axis=0, reduction="none")
    kept = c.op("sub", one, marks)
    rank = c.op("sub", c.op("cumsum", kept, axis=0, exclusive=False, reverse=False), one)
    extents = c.op("add", c.dims_value(x.type.shape), zero)
    if remove:
        target = c.op("where", c.op("eq", kept, one), rank, c.scalar(wide, _I64))
        ones = c.expand(one, (wide - count,))
        sizes = c.op("scatter_elements", ones, target, extents, axis=0, reduction="none")
    elif x.type.rank == 0:
        return c.reshape(x, (1,) * wide)
    else:
        sizes = c.op("where", c.op("eq", marks, one), one, c.op("gather", extents, c.op("max", rank, zero), axis=0))
    found = c.builder.read_sizes(sizes)
    if found is None:
        c.unsupported("the number of axes is too large")
    return with_shape(c, x, tuple(found.flat))


def expanded(c: Context, x: Value, axis: int, size: Dim) -> Value:
    """x with an axis broadcast against a size that data gives, where either may be 1."""
    have, one = x.type.shape[axis], c.scalar(1, _I64)
    add_claim(c.builder, (size - 1) * (size - have) * (have - 1), 0, exact=True)
    own, asked = number(c, have), number(c, size)
    wide = read(c, c.op("where", c.op("eq", own, one), asked, own), "the size to expand to")
    places = c.op("iota", shape=(wide,), axis=0, start=0, step=1, dtype=_I64)
    return c.op("gather", x, c.op("min", places, number(c, have - 1)), axis=axis)


def counted(c: Context, start: Value, limit: Value, delta: Value) -> Value:
    """ONNX Range whose operands are only known when running."""
    dtype = start.type.dtype
    start, limit, delta = (c.reshape(value, ()) for value in (start, limit, delta))
    if dtype.is_float:
        steps = c.op("ceil", c.op("div", c.op("sub", limit, start), delta))
        count = c.cast(c.op("max", steps, c.scalar(0.0, dtype)), _I64)
    else:
        wide = [c.cast(value, _I64) for value in (start, limit, delta)]
        zero = c.scalar(0, _I64)
        back = c.op("lt", wide[2], zero)
        low, high = c.op("where", back, wide[1], wide[0]), c.op("where", back, wide[0], wide[1])
        room = c.op("sub", high, low)
        # Of two numbers in order, a difference below 0 did not fit 64 bits.
        room = c.op("where", c.op("lt", room, zero), c.scalar(_MOST, _I64), room)
        room = c.op("where", c.op("lt", low, high), room, zero)
        count = steps_within(c, room, stride_of(c, wide[2]))
    length = read(c, count, "the length of a range")
    places = c.op("iota", shape=(length,), axis=0, start=0, step=1, dtype=dtype)
    return c.op("add", c.op("mul", places, delta), start)


def at_most(c: Context, size: Dim, limit: Dim) -> Dim:
    """A size that must not be above a limit; checked when running where it is not known to hold."""
    if not is_unbacked(size) or dimension.bounds(limit - size)[0] >= 0:
        return size
    add_claim(c.builder, limit, size, exact=False)
    return dimension.minimum(size, limit)


def shrunk(c: Context, x: Value, count: Value, what: str) -> Value:
    """The first `count` entries of x along its first axis; what is behind them was never written."""
    return data_sizes.shrunk(c.builder, x, count, what)


def places_of(c: Context, flags: Value) -> Value:
    """The places at which a rank-1 bool tensor holds, in order; their number is only known when running."""
    return data_sizes.places_of(c.builder, flags)


def flags_of(c: Context, x: Value) -> Value:
    """Which elements of a tensor, flattened, are not zero."""
    return data_sizes.flags_of(c.builder, x)


@onnx_op("NonZero")
def _non_zero(c: Context) -> Result:
    x = c.input(0)
    shape: tuple[Dim, ...] = x.type.shape or (1,)
    places = places_of(c, flags_of(c, x))
    count = places.type.shape[0]
    rows = [c.reshape(row, (1, count)) for row in data_sizes.coordinates(c.builder, places, shape)]
    if x.type.rank == 0:  # a scalar has one place, with no coordinates
        return c.slice_axis(rows[0], 0, 0, 0)
    return rows[0] if len(rows) == 1 else c.op("concat", *rows, axis=0)


@onnx_op("Compress")
def _compress(c: Context) -> Result:
    x = c.input(0)
    axis = 0
    if c.has_attribute("axis"):
        axis = c.axis(c.int_attribute("axis"))
    else:
        x = c.reshape(x, (x.type.elements,))
    condition = c.known(1)
    if condition is not None and not any(is_symbolic(flag) for flag in condition.flat):
        kept = [place for place, flag in enumerate(condition.reshape(-1)) if flag]
        return c.op("gather", x, c.builder.const(np.array(kept, np.int64)), axis=axis)
    return c.op("gather", x, places_of(c, flags_of(c, c.input(1))), axis=axis)


@onnx_op("Unique")
def _unique(c: Context) -> Result:
    x = c.input(0)
    by_axis = c.has_attribute("axis")
    axis = c.axis(c.int_attribute("axis")) if by_axis else 0
    if not by_axis:
        x = c.reshape(x, (x.type.elements,))
    front = c.transpose(x, (axis, *(other for other in range(x.type.rank) if other != axis)))
    first, inverse, counts = data_sizes.distinct(c.builder, c.wide(front) if by_axis else front)
    if not c.bool_attribute("sorted", True):  # in order of first appearance
        _, by_place = c.builder.op("sort", first, axis=0, descending=False)
        first, counts = c.op("gather", first, by_place, axis=0), c.op("gather", counts, by_place, axis=0)
        _, rank = c.builder.op("sort", by_place, axis=0, descending=False)
        inverse = c.op("gather", rank, inverse, axis=0)
    return [c.op("gather", x, first, axis=axis), first, inverse, counts]


@onnx_op("NonMaxSuppression")
def _non_max_suppression(c: Context) -> Result:
    boxes, scores = c.input(0), c.input(1)
    if boxes.type.rank != 3 or scores.type.rank != 3:
        c.fail(f"boxes and scores must have rank 3; they have {boxes.type.rank} and {scores.type.rank}")
    images, classes, count = scores.type.shape
    room: Dim = count
    most = c.optional(2)
    contents = c.known(2)
    if most is None:
        most, contents = c.scalar(0, _I64), np.zeros((), object)
    if contents is not None and contents.size == 1:
        room = dimension.minimum(count, dimension.maximum(contents.flat[0], 0))
    overlap = c.optional(3)
    if overlap is None:
        overlap = c.scalar(0.0, dtypes.F32)
    chosen, counts = c.builder.op(
        "suppress",
        boxes,
        scores,
        most,
        overlap,
        c.optional(4),
        room=room,
        center=c.bool_attribute("center_point_box", False),
    )
    units = images * classes
    iota = c.op("iota", shape=(1, room), axis=1, start=0, step=1, dtype=_I64)
    flags = c.op("lt", iota, c.reshape(counts, (units, 1)))
    places = places_of(c, c.reshape(flags, (units * room,)))
    unit = c.op("div", places, number(c, dimension.maximum(room, 1)))
    class_count = number(c, dimension.maximum(classes, 1))
    box = c.op("gather", c.reshape(chosen, (units * room,)), places, axis=0)
    columns = (c.op("div", unit, class_count), c.op("mod", unit, class_count), box)
    return c.op("concat", *(c.reshape(column, (places.type.shape[0], 1)) for column in columns), axis=1)
