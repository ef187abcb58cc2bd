"""ATen converters of ops that read and write at computed places: index, gather, scatter, masks, embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim
from aot.dtypes import DType
from aot.frontend import data_sizes
from aot.frontend.aten_types import typed
from aot.frontend.aten_views import concat, is_held, moved, written
from aot.frontend.torch_registry import Context, Result, aten_op
from aot.ir import Value
from aot.ops.opdef import broadcast_shapes, normalize_axis

_I64 = dtypes.I64


# index and index_put


@dataclass
class Places:
    """What `index` reads: index tensors of one shape, the axes that they index, and where their shape goes."""

    values: list[Value]
    axes: list[int]
    shape: tuple[Dim, ...]

    @property
    def position(self) -> int:
        """The first axis of the result that comes from the index tensors: in place where the axes are neighbours."""
        near = self.axes == list(range(self.axes[0], self.axes[0] + len(self.axes)))
        return self.axes[0] if near else 0


def _places(c: Context, given: Sequence[Value | None]) -> Places:
    """Masks become the places where they hold; the index tensors broadcast."""
    values: list[Value] = []
    axes: list[int] = []
    axis = 0
    for item in given:
        if item is None:
            axis += 1
        elif item.type.dtype.is_bool or item.type.dtype is dtypes.U8:
            if item.type.rank == 0:
                c.unsupported("an index that is one truth value")
            found = data_sizes.places_of(c.builder, data_sizes.flags_of(c.builder, item))
            for part in data_sizes.coordinates(c.builder, found, item.type.shape):
                values.append(part)
                axes.append(axis)
                axis += 1
        else:
            values.append(c.cast(item, _I64))
            axes.append(axis)
            axis += 1
    shape = broadcast_shapes(*(value.type.shape for value in values))
    return Places(values, axes, shape)


def _front(c: Context, x: Value, places: Places) -> Value:
    """x with the indexed axes first."""
    rest = [axis for axis in range(x.type.rank) if axis not in places.axes]
    return c.transpose(x, [*places.axes, *rest])


def _all_before(c: Context, x: Value, places: Places) -> Places:
    """The same places, by all axes up to the last that is indexed; those added are the last axes of the indices."""
    depth = max(places.axes) + 1
    added = [axis for axis in range(depth) if axis not in places.axes]
    shape = (*places.shape, *(x.type.shape[axis] for axis in added))
    values: list[Value] = []
    for axis in range(depth):
        if axis in places.axes:
            given = c.expand(places.values[places.axes.index(axis)], places.shape)
            values.append(c.reshape(given, (*places.shape, *(1,) * len(added))))
        else:
            at = len(places.shape) + added.index(axis)
            own = tuple(extent if number == at else 1 for number, extent in enumerate(shape))
            values.append(c.op_("iota", shape=own, axis=at, start=0, step=1, dtype=_I64))
    return Places(values, list(range(depth)), shape)


def _tuples(c: Context, places: Places) -> Value:
    """The index tensors side by side on a new last axis."""
    parts = [c.reshape(c.expand(value, places.shape), (*places.shape, 1)) for value in places.values]
    return concat(c, parts, len(places.shape))


@aten_op("index.Tensor", "_unsafe_index.Tensor")
def _index(c: Context) -> Result:
    x = c.tensor("self")
    places = _places(c, c["indices"])
    if not places.values:
        return x
    if len(places.values) == 1:
        return c.op_("gather", x, places.values[0], axis=places.axes[0])
    found = c.op_("gather_nd", _front(c, x, places), _tuples(c, places), batch_dims=0)
    count = len(places.shape)
    return moved(c, found, range(count), range(places.position, places.position + count))


@aten_op("_unsafe_masked_index")
def _masked_index(c: Context) -> Result:
    x, mask = c.tensor("self"), c.tensor("mask")
    if x.type.elements == 0:
        return c.expand(c.number_value(c["fill"], c.dtype), mask.type.shape)
    found = _index(c)
    assert isinstance(found, Value)
    return c.op_("where", mask, found, c.number_value(c["fill"], c.dtype))


@aten_op("index_put", "_unsafe_index_put", "_index_put_impl")
def _index_put(c: Context) -> Result:
    x = c.tensor("self")
    values = c.cast(c.tensor("values"), x.type.dtype)
    given: list[Value | None] = list(c["indices"])
    made = _masked_put(c, x, given, values)
    if made is not None:
        return made
    add = c.flag("accumulate")
    places = _places(c, given)
    if not places.values:
        return c.expand(values, x.type.shape)
    rest = [extent for axis, extent in enumerate(x.type.shape) if axis not in places.axes]
    at = places.position
    values = c.expand(values, (*rest[:at], *places.shape, *rest[at:]))
    if len(places.values) == 1:
        flat = dimension.product(places.shape)
        part = c.reshape(values, (*rest[:at], flat, *rest[at:]))
        return _accumulated(
            c, x, part, add, lambda data, update, how: written(c, data, at, places.values[0], update, how)
        )
    count = len(places.shape)
    values = moved(c, values, range(at, at + count), range(count))
    if is_held(c, x) and places.axes != list(range(len(places.axes))):
        # With every axis up to the last one indexed, nothing moves, and what the caller holds is changed in place.
        tuples = _tuples(c, _all_before(c, x, places))
        return _accumulated(
            c, x, values, add, lambda data, update, how: c.op_("scatter_nd", data, tuples, update, reduction=how)
        )
    front = _front(c, x, places)
    tuples = _tuples(c, places)
    if count == 0:
        tuples = c.reshape(tuples, (1, len(places.values)))
        values = c.reshape(values, (1, *values.type.shape))
    made = _accumulated(
        c, front, values, add, lambda data, update, how: c.op_("scatter_nd", data, tuples, update, reduction=how)
    )
    return moved(c, made, range(len(places.axes)), places.axes)


def _masked_put(c: Context, x: Value, given: Sequence[Value | None], values: Value) -> Value | None:
    """index_put where one mask chooses and one value is written: no sizes from data are needed."""
    masks = [(axis, item) for axis, item in enumerate(given) if item is not None]
    if len(masks) != 1 or not masks[0][1].type.dtype.is_bool or c.flag("accumulate") or masks[0][1].type.rank == 0:
        return None
    axis, mask = masks[0]
    if values.type.elements != 1:
        return None
    trailing = x.type.rank - axis - mask.type.rank
    wide = c.reshape(mask, (*mask.type.shape, *(1,) * trailing))
    return c.op_("where", wide, c.reshape(values, ()), x)


def _accumulated(c: Context, data: Value, updates: Value, add: bool, write: object) -> Value:
    """A scatter that replaces or adds; truth values add as "or"."""
    assert callable(write)
    if not add:
        made = write(data, updates, "none")
    elif data.type.dtype.is_bool:
        sums = write(c.cast(data, dtypes.I32), c.cast(updates, dtypes.I32), "add")
        made = c.op_("ne", sums, c.scalar(0, dtypes.I32))
    else:
        made = write(data, updates, "add")
    assert isinstance(made, Value)
    return made


# One axis


def _at_least_vector(c: Context, x: Value) -> Value:
    return x if x.type.rank else c.reshape(x, (1,))


@aten_op("index_select", "index_select_backward")
def _index_select(c: Context) -> Result:
    x = c.tensor("self")
    indices = c.reshape(c.tensor("index"), (c.tensor("index").type.elements,))
    if x.type.rank == 0:
        return c.reshape(c.op_("gather", _at_least_vector(c, x), indices, axis=0), ())
    return c.op_("gather", x, indices, axis=c.axis("dim", x.type.rank))


@aten_op("gather")
def _gather(c: Context) -> Result:
    x, indices = c.tensor("self"), c.tensor("index")
    axis = c.axis("dim", x.type.rank)
    if indices.type.rank == 0 or x.type.rank == 0:
        made = c.op_("gather_elements", _at_least_vector(c, x), _at_least_vector(c, indices), axis=0)
        return c.reshape(made, indices.type.shape)
    if x.type.rank and indices.type.elements == 0:
        return c.expand(c.number_value(0, x.type.dtype), indices.type.shape)
    # Only a corner of the other axes may be read.
    for other, (have, want) in enumerate(zip(x.type.shape, indices.type.shape, strict=True)):
        if other != axis and have != want:
            x = c.slice_axis(x, other, 0, want)
    return c.op_("gather_elements", x, indices, axis=axis)


@dataclass
class Scatter:
    """The operands of a torch scatter, of rank 1 or more, with updates of the shape of the indices."""

    data: Value
    axis: int
    indices: Value
    updates: Value


def _scatter_parts(c: Context, source: str) -> Scatter:
    x, indices = c.tensor("self"), _at_least_vector(c, c.tensor("index"))
    axis = c.axis("dim", x.type.rank)
    data = _at_least_vector(c, x)
    given = c[source]
    updates = typed(c, given, data.type.dtype)
    if isinstance(given, Value) and source == "src":
        updates = _at_least_vector(c, updates)
        for other, want in enumerate(indices.type.shape):
            updates = c.slice_axis(updates, other, 0, want)
    return Scatter(data, axis, indices, c.expand(updates, indices.type.shape))


def _scattered(c: Context, parts: Scatter, data: Value, updates: Value, reduction: str) -> Value:
    return c.op_("scatter_elements", data, parts.indices, updates, axis=parts.axis, reduction=reduction)


@aten_op("scatter")
def _scatter(c: Context) -> Result:
    parts = _scatter_parts(c, "src" if "src" in c.arguments else "value")
    if parts.indices.type.elements == 0:
        return c.tensor("self")
    how = {"": "none", "add": "add", "multiply": "mul"}[c.text("reduce")]
    data, updates, is_truth = parts.data, parts.updates, how != "none" and parts.data.type.dtype.is_bool
    if is_truth:  # they add as "or", and multiply as "and"
        data, updates = c.cast(data, dtypes.I32), c.cast(updates, dtypes.I32)
    made = _scattered(c, parts, data, updates, how)
    made = c.op_("ne", made, c.scalar(0, dtypes.I32)) if is_truth else made
    return c.reshape(made, c.tensor("self").type.shape)


@aten_op("scatter_add")
def _scatter_add(c: Context) -> Result:
    parts = _scatter_parts(c, "src")
    if parts.indices.type.elements == 0:
        return c.tensor("self")
    made = _accumulated(
        c, parts.data, parts.updates, True, lambda data, updates, how: _scattered(c, parts, data, updates, how)
    )
    return c.reshape(made, c.tensor("self").type.shape)


@aten_op("scatter_reduce.two", "index_reduce")
def _scatter_reduce(c: Context) -> Result:
    if c.op.startswith("index_reduce"):
        parts = _index_parts(c, "source")
    else:
        parts = _scatter_parts(c, "src")
    x = c.tensor("self")
    if parts.indices.type.elements == 0:
        return x
    made = _combined(c, parts, c.text("reduce"), bool(c["include_self"]))
    return c.reshape(c.cast(made, x.type.dtype), x.type.shape)


def _combined(c: Context, parts: Scatter, reduction: str, include: bool) -> Value:
    data, updates = parts.data, parts.updates
    dtype = data.type.dtype
    if dtype.is_bool:
        data, updates = c.cast(data, dtypes.I32), c.cast(updates, dtypes.I32)
    elif dtype.is_float and dtype.bits < 32 and reduction in ("sum", "mean", "prod"):
        data, updates = c.cast(data, dtypes.F32), c.cast(updates, dtypes.F32)
    how = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}[reduction]
    if not include:  # what is written to starts from a number that changes nothing
        start = c.expand(_neutral(c, how, data.type.dtype), updates.type.shape)
        data = _scattered(c, parts, data, start, "none")
    made = _scattered(c, parts, data, updates, how)
    if reduction == "mean":
        count = _counts(c, parts, data, include)
        if made.type.dtype.is_float:
            made = c.op_("div", made, c.cast(count, made.type.dtype))
        else:
            count = c.cast(count, made.type.dtype)
            # torch rounds means of integers down.
            rest = c.op_("mod", made, count)
            made = c.op_("div", c.op_("sub", made, rest), count)
    return c.op_("ne", made, c.scalar(0, made.type.dtype)) if dtype.is_bool else made


def _counts(c: Context, parts: Scatter, data: Value, include: bool) -> Value:
    one = c.scalar(1, _I64)
    base = c.expand(c.scalar(1 if include else 0, _I64), data.type.shape)
    count = _scattered(c, parts, base, c.expand(one, parts.updates.type.shape), "add")
    return c.op_("max", count, one)


def _neutral(c: Context, reduction: str, dtype: DType) -> Value:
    if reduction in ("add", "mul"):
        return c.scalar(0 if reduction == "add" else 1, dtype)
    if dtype.is_float:
        return c.scalar(float("-inf") if reduction == "max" else float("inf"), dtype)
    signed = dtype.family == "int"
    low, high = (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1) if signed else (0, (1 << dtype.bits) - 1)
    return c.scalar(low if reduction == "max" else high, dtype)


def _index_parts(c: Context, source: str) -> Scatter:
    """A scatter of whole slices: one index for each slice of the source."""
    x = c.tensor("self")
    axis = c.axis("dim", x.type.rank)
    data = _at_least_vector(c, x)
    index = c.tensor("index")
    count = index.type.elements
    given = c[source]
    updates = typed(c, given, data.type.dtype)
    shape: tuple[Dim, ...] = (*data.type.shape[:axis], count, *data.type.shape[axis + 1 :])
    if updates.type.elements == dimension.product(shape):
        updates = c.reshape(updates, shape)
    updates = c.expand(updates, shape)
    column = c.reshape(index, (*(1,) * axis, count, *(1,) * (data.type.rank - axis - 1)))
    return Scatter(data, axis, c.expand(column, shape), updates)


@aten_op("index_add")
def _index_add(c: Context) -> Result:
    parts = _index_parts(c, "source")
    x = c.tensor("self")
    if parts.indices.type.elements == 0:
        return x
    updates = parts.updates
    if c["alpha"] != 1:
        times = "and" if updates.type.dtype.is_bool else "mul"
        updates = c.op_(times, updates, c.number_value(c["alpha"], updates.type.dtype))
    made = _accumulated(c, parts.data, updates, True, lambda data, new, how: _scattered(c, parts, data, new, how))
    return c.reshape(made, x.type.shape)


@aten_op("index_copy", "index_fill")
def _index_copy(c: Context) -> Result:
    parts = _index_parts(c, "source" if c.op.startswith("index_copy") else "value")
    x = c.tensor("self")
    if parts.indices.type.elements == 0:
        return x
    return c.reshape(_scattered(c, parts, parts.data, parts.updates, "none"), x.type.shape)


# Masks


@aten_op("masked_fill")
def _masked_fill(c: Context) -> Result:
    x = c.tensor("self")
    value = c["value"]
    fill = c.cast(value, c.dtype) if isinstance(value, Value) else c.number_value(value, c.dtype)
    return c.op_("where", c.tensor("mask"), fill, c.cast(x, c.dtype))


@aten_op("masked_scatter")
def _masked_scatter(c: Context) -> Result:
    x, source = c.tensor("self"), c.cast(c.tensor("source"), c.dtype)
    shape = broadcast_shapes(x.type.shape, c.tensor("mask").type.shape)
    mask = c.expand(c.tensor("mask"), shape)
    total = dimension.product(shape)
    flags = c.reshape(mask, (total,))
    if source.type.elements == 0 or total == 0:
        return x
    after = c.op_("cumsum", c.cast(flags, _I64), axis=0, exclusive=False, reverse=False)
    place = c.op_("max", c.op_("sub", after, c.scalar(1, _I64)), c.scalar(0, _I64))
    found = c.op_("gather", c.reshape(source, (source.type.elements,)), place, axis=0)
    return c.op_("where", mask, c.reshape(found, shape), c.expand(x, shape))


@aten_op("masked_select")
def _masked_select(c: Context) -> Result:
    x, mask = c.tensor("self"), c.tensor("mask")
    shape = broadcast_shapes(x.type.shape, mask.type.shape)
    flags = c.reshape(c.expand(mask, shape), (dimension.product(shape),))
    flat = c.reshape(c.expand(x, shape), (dimension.product(shape),))
    return c.op_("gather", flat, data_sizes.places_of(c.builder, flags), axis=0)


@aten_op("nonzero", "nonzero_numpy", "argwhere")
def _nonzero(c: Context) -> Result:
    x = c.tensor("self")
    found = data_sizes.places_of(c.builder, data_sizes.flags_of(c.builder, x))
    count = found.type.shape[0]
    if x.type.rank == 0:
        return c.slice_axis(c.reshape(found, (count, 1)), 1, 0, 0)
    columns = data_sizes.coordinates(c.builder, found, x.type.shape)
    if c.op.startswith("nonzero_numpy"):
        return columns
    return concat(c, [c.reshape(column, (count, 1)) for column in columns], 1)


# Flat places


@aten_op("take")
def _take(c: Context) -> Result:
    x = c.tensor("self")
    return c.op_("gather", c.reshape(x, (x.type.elements,)), c.tensor("index"), axis=0)


@aten_op("put")
def _put(c: Context) -> Result:
    x, index = c.tensor("self"), c.tensor("index")
    count = index.type.elements
    if count == 0:
        return x
    flat = c.reshape(x, (x.type.elements,))
    part = c.reshape(c.cast(c.tensor("source"), x.type.dtype), (count,))
    places = c.reshape(index, (count,))
    made = _accumulated(
        c,
        flat,
        part,
        c.flag("accumulate"),
        lambda data, new, how: c.op_("scatter_elements", data, places, new, axis=0, reduction=how),
    )
    return c.reshape(made, x.type.shape)


# Tables


@aten_op("embedding")
def _embedding(c: Context) -> Result:
    return c.op_("gather", c.tensor("weight"), c.tensor("indices"), axis=0)


@aten_op("embedding_renorm")
def _embedding_renorm(c: Context) -> Result:
    """The table in which rows that are looked up, and are longer than allowed, are shortened to that length."""
    weight, indices = c.tensor("self"), c.tensor("indices")
    power, most = c.number("norm_type"), c.number("max_norm")
    rows, count = weight.type.shape[0], indices.type.elements
    dtype = weight.type.dtype
    wide = dtypes.F32 if dtype.bits < 32 else dtype
    size = c.op_("abs", c.cast(weight, wide))
    if math.isinf(power):
        norm = c.op_("reduce_max", size, axes=(1,), keepdims=True)
    else:
        raised = c.op_("pow", size, c.scalar(power, wide))
        total = c.op_("reduce_sum", raised, axes=(1,), keepdims=True)
        norm = c.op_("pow", total, c.scalar(1.0 / power, wide))
    zeros, ones = c.expand(c.scalar(0, _I64), (rows,)), c.expand(c.scalar(1, _I64), (count,))
    places = c.reshape(indices, (count,))
    marks = c.op_("scatter_elements", zeros, places, ones, axis=0, reduction="none")
    read = c.reshape(c.op_("ne", marks, c.scalar(0, _I64)), (rows, 1))
    chosen = c.op_("and", read, c.op_("gt", norm, c.scalar(most, wide)))
    factor = c.op_("div", c.scalar(most, wide), c.op_("add", norm, c.scalar(1e-7, wide)))
    scaled = c.cast(c.op_("mul", c.cast(weight, wide), factor), dtype)
    return c.op_("where", chosen, scaled, weight)


@aten_op("one_hot")
def _one_hot(c: Context) -> Result:
    depth = c.size("num_classes")
    if isinstance(depth, int) and depth < 0:
        c.unsupported("one_hot without a number of classes")
    values = concat(c, [c.reshape(c.scalar(flag, _I64), (1,)) for flag in (0, 1)], 0)
    return c.op_("one_hot", c.tensor("self"), values, depth=depth, axis=-1)


@aten_op("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(c: Context) -> Result:
    """Rows of a table summed, averaged or their maximum, by bags that begin at offsets."""
    if any(number > 0 for number in c.used):
        c.unsupported("results of embedding bags beside the first")
    weight, indices, offsets = c.tensor("weight"), c.tensor("indices"), c.tensor("offsets")
    mode, padding = c.integer("mode"), c.integer("padding_idx")
    bags = offsets.type.shape[0] - (1 if c.flag("include_last_offset") else 0)
    count, width = indices.type.shape[0], weight.type.shape[1]
    zero, one = c.scalar(0, _I64), c.scalar(1, _I64)
    position = c.op_("iota", shape=(count, 1), axis=0, start=0, step=1, dtype=_I64)
    starts = c.reshape(c.cast(c.slice_axis(offsets, 0, 0, bags), _I64), (1, bags))
    begun = c.op_("reduce_sum", c.cast(c.op_("ge", position, starts), _I64), axes=(1,), keepdims=False)
    bag = c.op_("sub", begun, one)
    kept: Value | None = None
    if padding >= 0:
        kept = c.op_("ne", c.cast(indices, _I64), c.scalar(padding, _I64))
    dtype = weight.type.dtype
    wide = dtypes.F32 if dtype.bits < 32 else dtype
    rows = c.cast(c.op_("gather", weight, indices, axis=0), wide)
    scale = c.optional("per_sample_weights")
    if scale is not None:
        rows = c.op_("mul", rows, c.reshape(c.cast(scale, wide), (count, 1)))
    ones = c.expand(one, (count,)) if kept is None else c.cast(kept, _I64)
    sizes = c.op_("scatter_elements", c.expand(zero, (bags,)), bag, ones, axis=0, reduction="add")
    lowest = c.scalar(float("-inf") if mode == 2 else 0.0, wide)
    if kept is not None:
        rows = c.op_("where", c.reshape(kept, (count, 1)), rows, lowest)
    start = c.expand(lowest, (bags, width))
    how = "max" if mode == 2 else "add"
    table = c.op_("scatter_nd", start, c.reshape(bag, (count, 1)), rows, reduction=how)
    size = c.reshape(sizes, (bags, 1))
    if mode == 1:
        table = c.op_("div", table, c.cast(c.op_("max", size, one), wide))
    if mode == 2:
        table = c.op_("where", c.op_("eq", size, zero), c.scalar(0.0, wide), table)
    return [c.cast(table, dtype), *[None] * (len(c.results) - 1)]


# Sorted tables


@aten_op("searchsorted", "bucketize")
def _searchsorted(c: Context) -> Result:
    by_value = c.op.startswith("bucketize")
    table = c.tensor("boundaries" if by_value else "sorted_sequence")
    right = c.flag("right") or c.text("side") == "right"
    given = c["self"]
    scalar = not isinstance(given, Value)
    x = (
        given
        if isinstance(given, Value)
        else c.number_value(
            given, table.type.dtype if isinstance(given, int) or table.type.dtype.is_float else dtypes.F32
        )
    )
    sorter = None if by_value else c.optional("sorter")
    if sorter is not None:
        table = c.op_("gather_elements", table, sorter, axis=table.type.rank - 1)
    wide = table.type.dtype
    if x.type.dtype != wide:
        wide = (
            x.type.dtype
            if x.type.dtype.is_float and not wide.is_float
            else (
                wide
                if wide.is_float and not x.type.dtype.is_float
                else (x.type.dtype if x.type.dtype.bits > wide.bits else wide)
            )
        )
    table, x = c.cast(table, wide), c.cast(x, wide)
    column = c.reshape(x, (*x.type.shape, 1))
    if table.type.rank > 1 and not scalar:
        table = c.reshape(table, (*table.type.shape[:-1], 1, table.type.shape[-1]))
    elif table.type.rank > 1:
        c.fail("one number is searched for in one sequence")
    below = c.op_("le" if right else "lt", table, column)
    if wide.is_float:  # NaN is behind all numbers
        below = c.op_("or", below, c.op_("and", c.op_("isnan", column), c.op_("not", c.op_("isnan", table))))
        if right:
            below = c.op_("or", below, c.op_("isnan", column))
    made = c.op_("reduce_sum", c.cast(below, _I64), axes=(below.type.rank - 1,), keepdims=False)
    return c.cast(made, c.dtype)


@aten_op("unravel_index")
def _unravel_index(c: Context) -> Result:
    return data_sizes.coordinates(c.builder, c.cast(c.tensor("indices"), _I64), c.sizes("shape"))


@aten_op("take_along_dim")
def _take_along(c: Context) -> Result:
    x, indices = c.tensor("self"), c.tensor("indices")
    if not c.has("dim"):
        return c.op_("gather", c.reshape(x, (x.type.elements,)), c.reshape(indices, (indices.type.elements,)), axis=0)
    axis = normalize_axis(c.integer("dim"), x.type.rank)
    shape = broadcast_shapes(
        (*x.type.shape[:axis], 1, *x.type.shape[axis + 1 :]),
        (*indices.type.shape[:axis], 1, *indices.type.shape[axis + 1 :]),
    )

    def wide(value: Value) -> Value:
        return c.expand(value, (*shape[:axis], value.type.shape[axis], *shape[axis + 1 :]))

    return c.op_("gather_elements", wide(x), wide(indices), axis=axis)


@aten_op("trace")
def _trace(c: Context) -> Result:
    x = c.tensor("self")
    rows, columns = x.type.shape
    row = c.op_("iota", shape=(rows, 1), axis=0, start=0, step=1, dtype=_I64)
    column = c.op_("iota", shape=(1, columns), axis=1, start=0, step=1, dtype=_I64)
    kept = c.op_("where", c.op_("eq", row, column), c.cast(x, c.dtype), c.number_value(0, c.dtype))
    return c.op_("reduce_sum", kept, axes=(0, 1), keepdims=False)


@aten_op("repeat_interleave.Tensor")
def _interleaved_places(c: Context) -> Result:
    """Each place as often as its count says: result i is how many runs of places have ended by i."""
    counts = c.cast(c.tensor("repeats"), _I64)
    given = c.dtype
    if counts.type.shape[0] == 0:
        return c.expand(c.scalar(0, given), (0,))
    ends = c.op_("cumsum", counts, axis=0, exclusive=False, reverse=False)
    total = c.size("output_size") if c.has("output_size") else None
    if total is None:
        whole = c.op_("reduce_sum", counts, axes=(0,), keepdims=False)
        total = data_sizes.read(c.builder, whole, "the sum of the repeats")
    place = c.op_("iota", shape=(total, 1), axis=0, start=0, step=1, dtype=_I64)
    ended = c.op_("le", c.reshape(ends, (1, counts.type.shape[0])), place)
    return c.cast(c.op_("reduce_sum", c.cast(ended, _I64), axes=(1,), keepdims=False), given)
