"""ATen converters of ops that view, cut, join, pad and repeat tensors."""

from __future__ import annotations

from collections.abc import Sequence

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim, DimExpr
from aot.frontend import data_sizes, shaping
from aot.frontend.torch_extents import regrouped
from aot.frontend.torch_registry import Context, Result, aten_op
from aot.ir import Node, Value
from aot.ops import same_extent
from aot.ops.helpers import dims_attr, int_attr, ints_attr
from aot.ops.opdef import normalize_axis

_I64 = dtypes.I64


# Shapes


def reshaped(c: Context, x: Value, wanted: Sequence[Dim]) -> Value:
    """torch's view: one extent may be -1; that the elements are as many is torch's own guard."""
    shape = list(wanted)
    if -1 in shape:
        axis = shape.index(-1)
        total, rest = x.type.elements, dimension.product((*shape[:axis], *shape[axis + 1 :]))
        shape[axis] = 0 if rest == 0 else dimension.floordiv(total, rest)
    if any(map(data_sizes.is_unbacked, (x.type.elements, *shape))):
        return data_sizes.with_shape(c.builder, x, shape)
    if x.type.elements == dimension.product(shape):
        return c.reshape(x, shape)
    c.agree(x.type.elements, dimension.product(shape))
    return regrouped(c.builder, x, shape)


@aten_op("view", "view_copy", "reshape", "_unsafe_view", "_reshape_copy", "_reshape_alias")
def _view(c: Context) -> Result:
    return reshaped(c, c.tensor("self"), c.sizes("size" if "size" in c.arguments else "shape"))


@aten_op("resize", "resize_")
def _resize(c: Context) -> Result:
    """The first elements in their order; what is beyond them, which torch leaves as it is, is 0."""
    x, shape = c.tensor("self"), c.sizes("size")
    flat = c.reshape(x, (x.type.elements,))
    missing = dimension.product(shape) - x.type.elements
    return c.reshape(shaping.padded(c.builder, flat, [0], [missing], "constant", None), shape)


@aten_op("view.dtype", "view_copy.dtype")
def _view_dtype(c: Context) -> Result:
    x, to = c.tensor("self"), c.dtype
    if x.type.dtype is to:
        return x
    if x.type.dtype.bits != to.bits or x.type.dtype.is_bool != to.is_bool:
        c.unsupported(f"the bits of {x.type.dtype} as {to}")
    return c.op_("bitcast", x, to=to)


@aten_op("view_as", "reshape_as")
def _view_as(c: Context) -> Result:
    return reshaped(c, c.tensor("self"), c.tensor("other").type.shape)


@aten_op("flatten.using_ints")
def _flatten(c: Context) -> Result:
    x = c.tensor("self")
    if x.type.rank == 0:
        return c.reshape(x, (1,))
    first, last = c.axis("start_dim", x.type.rank), c.axis("end_dim", x.type.rank)
    shape = x.type.shape
    return c.reshape(x, (*shape[:first], dimension.product(shape[first : last + 1]), *shape[last + 1 :]))


@aten_op("unflatten.int")
def _unflatten(c: Context) -> Result:
    x = c.tensor("self")
    axis = c.axis("dim", x.type.rank)
    return reshaped(c, x, (*x.type.shape[:axis], *c.sizes("sizes"), *x.type.shape[axis + 1 :]))


@aten_op("squeeze", "squeeze_copy")
def _squeeze(c: Context) -> Result:
    x = c.tensor("self")
    if "dim" not in c.arguments:
        axes: tuple[int, ...] = tuple(range(x.type.rank))
    else:
        given = c.ints("dim")
        axes = tuple(normalize_axis(axis, x.type.rank) for axis in given)
    kept = [extent for axis, extent in enumerate(x.type.shape) if axis not in axes or extent != 1]
    return c.reshape(x, kept)


@aten_op("unsqueeze", "unsqueeze_copy")
def _unsqueeze(c: Context) -> Result:
    x = c.tensor("self")
    axis = c.axis("dim", x.type.rank + 1)
    return c.reshape(x, (*x.type.shape[:axis], 1, *x.type.shape[axis:]))


@aten_op("expand", "expand_copy", "broadcast_to")
def _expand(c: Context) -> Result:
    x = c.tensor("self")
    wanted = c.sizes("size")
    own: tuple[Dim, ...] = (*(1,) * (len(wanted) - x.type.rank), *x.type.shape)
    shape: list[Dim] = []
    for have, want in zip(own, wanted, strict=True):
        if have == 1 and want != -1:
            shape.append(want)
        else:
            shape.append(have if want in (-1, 1) else same_extent(have, want, "expand"))
    return c.expand(x, shape)


@aten_op("expand_as")
def _expand_as(c: Context) -> Result:
    return c.expand(c.tensor("self"), c.tensor("other").type.shape)


# Orders of axes


@aten_op("permute", "permute_copy")
def _permute(c: Context) -> Result:
    x = c.tensor("self")
    return c.transpose(x, [normalize_axis(axis, x.type.rank) for axis in c.ints("dims")])


def swapped(c: Context, x: Value, first: int, second: int) -> Value:
    """Two axes exchanged; they may be negative."""
    rank = x.type.rank
    if rank < 2:
        return x
    perm = list(range(rank))
    perm[first % rank], perm[second % rank] = perm[second % rank], perm[first % rank]
    return c.transpose(x, perm)


@aten_op("transpose.int", "transpose_copy.int", "swapaxes", "swapdims")
def _transpose(c: Context) -> Result:
    names = ("dim0", "dim1") if "dim0" in c.arguments else ("axis0", "axis1")
    return swapped(c, c.tensor("self"), c.integer(names[0]), c.integer(names[1]))


@aten_op("t", "t_copy", "numpy_T", "mT", "adjoint")
def _t(c: Context) -> Result:
    return swapped(c, c.tensor("self"), -1, -2)


def moved(c: Context, x: Value, source: Sequence[int], target: Sequence[int]) -> Value:
    """numpy's moveaxis."""
    rank = x.type.rank
    sources = [axis % max(rank, 1) for axis in source]
    order = [axis for axis in range(rank) if axis not in sources]
    for place, axis in sorted((place % max(rank, 1), axis) for place, axis in zip(target, sources, strict=True)):
        order.insert(place, axis)
    return c.transpose(x, order[:rank])


@aten_op("movedim", "moveaxis")
def _movedim(c: Context) -> Result:
    return moved(c, c.tensor("self"), c.ints("source"), c.ints("destination"))


# Parts


@aten_op("slice.Tensor", "slice_copy.Tensor")
def _slice(c: Context) -> Result:
    x = c.tensor("self")
    axis = c.axis("dim", x.type.rank)
    start, size, step = _span(c, x.type.shape[axis])
    return c.slice_axis(x, axis, start, size, step)


def _span(c: Context, extent: Dim) -> tuple[Dim, Dim, int]:
    """start, size and step of a slice's arguments."""
    step = c.integer("step") if c.has("step") else 1
    start = c.size("start") if c.has("start") else 0
    end = c.size("end") if c.has("end") else extent
    first, size = shaping.slice_range(c.builder, start, end, step, extent)
    return first, size, step


@aten_op("narrow", "narrow_copy")
def _narrow(c: Context) -> Result:
    x = c.tensor("self")
    axis = c.axis("dim", x.type.rank)
    return c.slice_axis(x, axis, _place(c, c.size("start"), x.type.shape[axis]), c.size("length"))


def _place(c: Context, position: Dim, extent: Dim) -> Dim:
    """A position that may count from the end."""
    lo, hi = dimension.bounds(position)
    if lo < 0 <= hi and shaping.is_of_data(position):
        return shaping.from_start(position, extent)
    return position + extent if hi < 0 else position


def without(c: Context, x: Value, axis: int) -> Value:
    """An axis of extent 1 removed."""
    return c.reshape(x, (*x.type.shape[:axis], *x.type.shape[axis + 1 :]))


@aten_op("select.int", "select_copy.int")
def _select(c: Context) -> Result:
    x = c.tensor("self")
    axis = c.axis("dim", x.type.rank)
    place = _place(c, c.size("index"), x.type.shape[axis])
    return without(c, c.slice_axis(x, axis, place, 1), axis)


def _cut(c: Context, x: Value, axis: int, sizes: Sequence[Dim]) -> list[Value]:
    start: Dim = 0
    parts: list[Value] = []
    for size in sizes:
        parts.append(c.slice_axis(x, axis, start, size))
        start = start + size
    return parts


@aten_op("split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes", "split.sizes")
def _split_with_sizes(c: Context) -> Result:
    x = c.tensor("self")
    return _cut(c, x, c.axis("dim", x.type.rank), c.sizes("split_sizes" if c.has("split_sizes") else "split_size"))


@aten_op("split.Tensor", "split_copy", "unsafe_split", "chunk", "unsafe_chunk")
def _split(c: Context) -> Result:
    x = c.tensor("self")
    axis = c.axis("dim", x.type.rank)
    extent = x.type.shape[axis]
    size = c.size("split_size") if c.has("split_size") else dimension.ceildiv(extent, c.integer("chunks"))
    count = len(c.results)
    return _cut(c, x, axis, (*(size,) * (count - 1), extent - size * (count - 1)))


@aten_op("unbind.int", "unbind_copy.int")
def _unbind(c: Context) -> Result:
    x = c.tensor("self")
    axis = c.axis("dim", x.type.rank)
    return [without(c, part, axis) for part in _cut(c, x, axis, (1,) * len(c.results))]


def concat(c: Context, parts: Sequence[Value], axis: int) -> Value:
    return parts[0] if len(parts) == 1 else c.op_("concat", *parts, axis=axis)


@aten_op("cat", "concat", "concatenate")
def _cat(c: Context) -> Result:
    parts = [c.cast(part, c.dtype) for part in c.tensors("tensors")]
    rank = max(part.type.rank for part in parts)
    # An empty vector joins anything: a rule that torch keeps for old programs.
    kept = [part for part in parts if part.type.rank == rank and (rank == 1 or part.type.shape != (0,))]
    return concat(c, kept or parts[:1], c.axis("dim", rank))


@aten_op("stack")
def _stack(c: Context) -> Result:
    parts = [c.cast(part, c.dtype) for part in c.tensors("tensors")]
    axis = c.axis("dim", parts[0].type.rank + 1)
    shape = parts[0].type.shape
    return concat(c, [c.reshape(part, (*shape[:axis], 1, *shape[axis:])) for part in parts], axis)


@aten_op("diagonal", "diagonal_copy")
def _diagonal(c: Context) -> Result:
    x = c.tensor("self")
    flat, start, size, columns = _diagonal_of(c, x)
    if isinstance(columns, int):
        return c.slice_axis(flat, flat.type.rank - 1, start, size, columns + 1)
    places = c.op_("iota", shape=(size,), axis=0, start=0, step=1, dtype=_I64)
    step, first = (data_sizes.number(c.builder, dim) for dim in (columns + 1, start))
    return c.op_("gather", flat, c.op_("add", c.op_("mul", places, step), first), axis=flat.type.rank - 1)


def _diagonal_of(c: Context, x: Value) -> tuple[Value, Dim, Dim, Dim]:
    """x with both axes of the diagonal as one, last; the diagonal's first place in it, its length, the columns."""
    rank = x.type.rank
    first, second = c.axis("dim1", rank), c.axis("dim2", rank)
    offset = c.integer("offset")
    turned = moved(c, x, (first, second), (-2, -1))
    rows, columns = turned.type.shape[-2:]
    size = dimension.minimum(rows, columns - offset) if offset >= 0 else dimension.minimum(rows + offset, columns)
    size = dimension.maximum(size, 0)
    start = 0 if size == 0 else offset if offset >= 0 else columns * -offset
    return c.reshape(turned, (*turned.type.shape[:-2], rows * columns)), start, size, columns


@aten_op("unfold", "unfold_copy")
def _unfold(c: Context) -> Result:
    x = c.tensor("self")
    size, step = c.integer("size"), c.integer("step")
    if x.type.rank == 0:
        return c.reshape(x, (1,)) if size else c.slice_axis(c.reshape(x, (1,)), 0, 0, 0)
    axis = c.axis("dimension", x.type.rank)
    count = dimension.floordiv(x.type.shape[axis] - size, step) + 1
    start = c.op_("iota", shape=(count, 1), axis=0, start=0, step=step, dtype=_I64)
    offset = c.op_("iota", shape=(1, size), axis=1, start=0, step=1, dtype=_I64)
    found = c.op_("gather", x, c.op_("add", start, offset), axis=axis)
    return moved(c, found, (axis + 1,), (-1,))


@aten_op("as_strided", "as_strided_copy")
def _as_strided(c: Context) -> Result:
    """Row-major operands only, which is how the values of a functional graph are read."""
    x = c.tensor("self")
    sizes, strides = c.sizes("size"), c.sizes("stride")
    offset = c.size("storage_offset") if c.has("storage_offset") else 0
    flat = c.reshape(x, (x.type.elements,))
    dense: Dim = 1
    is_dense = offset == 0
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        is_dense = is_dense and (stride == dense or size == 1)
        dense = dense * size
    if is_dense:
        return c.reshape(c.slice_axis(flat, 0, 0, dense), sizes)
    return c.op_("gather", flat, places_at(c, sizes, strides, offset), axis=0)


def places_at(c: Context, sizes: Sequence[Dim], strides: Sequence[Dim], offset: Dim) -> Value:
    """offset + sum of index * stride, as an i64 tensor of the sizes."""
    total = data_sizes.number(c.builder, offset)
    for axis, stride in enumerate(strides):
        shape = tuple(extent if other == axis else 1 for other, extent in enumerate(sizes))
        whole = stride if isinstance(stride, int) else 1
        part = c.op_("iota", shape=shape, axis=axis, start=0, step=whole, dtype=_I64)
        if isinstance(stride, DimExpr):
            part = c.op_("mul", part, data_sizes.number(c.builder, stride))
        total = c.op_("add", total, part)
    return c.expand(total, sizes)


# Parts replaced


def replaced(c: Context, x: Value, axis: int, start: Dim, part: Value, step: int = 1) -> Value:
    """x with a run along one axis replaced."""
    size, extent = part.type.shape[axis], x.type.shape[axis]
    if size == 0:
        return x
    if size == extent and step == 1:
        return part
    # What the caller holds, such as a cache, may be changed in place by a scatter; anything else is joined anew.
    if step != 1 or is_held(c, x):
        inside = _written_inside(c, x, axis, start, part) if step == 1 else None
        if inside is not None:
            return inside
        places = c.op_("iota", shape=(size,), axis=0, start=0, step=step, dtype=_I64)
        places = c.op_("add", places, data_sizes.number(c.builder, start))
        return written(c, x, axis, places, part)
    pieces = [c.slice_axis(x, axis, 0, start)] if start != 0 else []
    pieces.append(part)
    end = start + size
    if end != extent:
        pieces.append(c.slice_axis(x, axis, end, extent - end))
    return concat(c, pieces, axis)


def is_held(c: Context, x: Value) -> bool:
    """Whether x is what the caller holds, such as a cache, or a slice of it, perhaps with elements replaced."""
    through = ("scatter_elements", "scatter_nd", "slice", "reshape")
    while (node := made_by(c, x)) is not None and node.op in through:
        x = node.operands[0]
    return x in c.builder.inputs


def made_by(c: Context, x: Value) -> Node | None:
    """The node of the graph so far that makes a value."""
    return next((node for node in reversed(c.builder.nodes) if x in node.outputs), None)


def _written_inside(c: Context, x: Value, axis: int, start: Dim, part: Value) -> Value | None:
    """x with a slice replaced by that slice of x with elements replaced: only those elements are.

    So a layer of a cache of all layers is updated without a copy of the layer.
    """
    last, node = part, made_by(c, part)
    # Whether the scatters work without the axis, whose extent is 1.
    unit = node is not None and node.op == "reshape" and _without(part.type.shape, axis) == node.operands[0].type.shape
    if unit and node is not None:
        last = node.operands[0]
    steps: list[Node] = []
    inner, node = last, made_by(c, last)
    while node is not None and node.op in ("scatter_elements", "scatter_nd"):
        steps.append(node)
        inner = node.operands[0]
        node = made_by(c, inner)
    if unit and node is not None and node.op == "reshape" and node.operands[0].type.shape == part.type.shape:
        inner, node = node.operands[0], made_by(c, node.operands[0])
    starts = tuple(start if number == axis else 0 for number in range(x.type.rank))
    if not steps or node is None or node.op != "slice" or not _is_same(c, node.operands[0], x):
        return None
    if inner.type != part.type or node.attrs["starts"] != starts or set(ints_attr(node.attrs, "steps")) != {1}:
        return None
    made: Value | None = x
    for step in reversed(steps):
        made = _moved_scatter(c, step, made, axis, start, unit) if made is not None else None
    if made is not None:
        # What reads the updated slice finds it there.
        again = c.slice_axis(made, axis, start, part.type.shape[axis])
        c.builder.equal[last] = c.reshape(again, last.type.shape)
    return made


def _moved_scatter(c: Context, step: Node, x: Value, axis: int, start: Dim, unit: bool) -> Value | None:
    """A scatter into a slice of a tensor, as one into the tensor; `unit`: the slice has lost its axis."""
    _, indices, updates = step.operands
    reduction = step.attrs["reduction"]
    if step.op == "scatter_nd":
        depth = indices.type.shape[-1]
        assert isinstance(depth, int)
        if not unit or axis > depth:
            return None
        shape = indices.type.shape[:-1]
        layer = c.expand(data_sizes.number(c.builder, start), (*shape, 1))
        before, after = (c.slice_axis(indices, len(shape), at, n) for at, n in ((0, axis), (axis, depth - axis)))
        columns = [part for part in (before, layer, after) if part.type.shape[-1] != 0]
        return c.op_("scatter_nd", x, concat(c, columns, len(shape)), updates, reduction=reduction)
    along, inside = int_attr(step.attrs, "axis"), dims_attr(step.attrs, "starts")
    if unit:
        indices, updates = (c.reshape(v, _with_unit(v.type.shape, axis)) for v in (indices, updates))
        along, inside = along + (along >= axis), (*inside[:axis], 0, *inside[axis:]) if inside else ()
    if along == axis:
        return None
    begin = list(inside or (0,) * x.type.rank)
    begin[axis] = begin[axis] + start
    return c.op_("scatter_elements", x, indices, updates, axis=along, starts=tuple(begin), reduction=reduction)


def _is_same(c: Context, x: Value, y: Value) -> bool:
    """Whether two values are the same slices of one value."""
    while x is not y:
        first, second = made_by(c, x), made_by(c, y)
        if first is None or second is None or (first.op, first.attrs) != (second.op, second.attrs):
            return False
        if first.op not in ("slice", "reshape"):
            return False
        x, y = first.operands[0], second.operands[0]
    return True


def _without(shape: Sequence[Dim], axis: int) -> tuple[Dim, ...] | None:
    """A shape without an axis of extent 1."""
    return (*shape[:axis], *shape[axis + 1 :]) if shape[axis] == 1 else None


def _with_unit(shape: Sequence[Dim], axis: int) -> tuple[Dim, ...]:
    return (*shape[:axis], 1, *shape[axis:])


def written(c: Context, x: Value, axis: int, places: Value, part: Value, reduction: str = "none") -> Value:
    """x with its slices at `places` of an axis replaced by (or combined with) those of `part`."""
    shape = [1] * part.type.rank
    wide = c.reshape(places, (*shape[:axis], places.type.elements, *shape[axis + 1 :]))
    return c.op_("scatter_elements", x, c.expand(wide, part.type.shape), part, axis=axis, reduction=reduction)


@aten_op("slice_scatter")
def _slice_scatter(c: Context) -> Result:
    x = c.tensor("self")
    axis = c.axis("dim", x.type.rank)
    start, size, step = _span(c, x.type.shape[axis])
    part = c.cast(c.tensor("src"), c.dtype)
    part = c.expand(part, (*x.type.shape[:axis], size, *x.type.shape[axis + 1 :]))
    return replaced(c, x, axis, start, part, step)


@aten_op("select_scatter")
def _select_scatter(c: Context) -> Result:
    x = c.tensor("self")
    axis = c.axis("dim", x.type.rank)
    place = _place(c, c.size("index"), x.type.shape[axis])
    part = c.reshape(c.cast(c.tensor("src"), c.dtype), (*x.type.shape[:axis], 1, *x.type.shape[axis + 1 :]))
    return replaced(c, x, axis, place, part)


@aten_op("diagonal_scatter")
def _diagonal_scatter(c: Context) -> Result:
    x = c.tensor("self")
    rank = x.type.rank
    flat, start, size, columns = _diagonal_of(c, x)
    places = places_at(c, (size,), (columns + 1,), start)
    part = c.cast(c.tensor("src"), c.dtype)
    made = written(c, flat, flat.type.rank - 1, places, part)
    turned = moved(c, x, (c.axis("dim1", rank), c.axis("dim2", rank)), (-2, -1))
    return moved(c, c.reshape(made, turned.type.shape), (-2, -1), (c.axis("dim1", rank), c.axis("dim2", rank)))


@aten_op("as_strided_scatter")
def _as_strided_scatter(c: Context) -> Result:
    x = c.tensor("self")
    offset = c.size("storage_offset") if c.has("storage_offset") else 0
    places = places_at(c, c.sizes("size"), c.sizes("stride"), offset)
    count = places.type.elements
    flat = c.reshape(x, (x.type.elements,))
    part = c.reshape(c.cast(c.tensor("src"), c.dtype), (count,))
    return c.reshape(written(c, flat, 0, c.reshape(places, (count,)), part), x.type.shape)


# Repeats and turns


@aten_op("flip")
def _flip(c: Context) -> Result:
    x = c.tensor("self")
    axes = {normalize_axis(axis, x.type.rank) for axis in c.ints("dims")} if x.type.rank else set()
    return flipped(c, x, axes)


def flipped(c: Context, x: Value, axes: set[int]) -> Value:
    """The axes backwards."""
    turned = [axis in axes and extent != 0 for axis, extent in enumerate(x.type.shape)]
    if not any(turned):
        return x
    starts = tuple(extent - 1 if back else 0 for back, extent in zip(turned, x.type.shape, strict=True))
    return c.op_("slice", x, starts=starts, sizes=x.type.shape, steps=tuple(-1 if back else 1 for back in turned))


@aten_op("fliplr", "flipud")
def _flip_one(c: Context) -> Result:
    return flipped(c, c.tensor("self"), {1 if c.op.startswith("fliplr") else 0})


@aten_op("roll")
def _roll(c: Context) -> Result:
    x = c.tensor("self")
    shifts, dims = c.sizes("shifts"), c.ints("dims")
    if x.type.elements == 0:
        return x
    if not dims:
        flat = _rolled(c, c.reshape(x, (x.type.elements,)), 0, shifts[0])
        return c.reshape(flat, x.type.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        if x.type.rank:
            x = _rolled(c, x, normalize_axis(dim, x.type.rank), shift)
    return x


def _rolled(c: Context, x: Value, axis: int, shift: Dim) -> Value:
    extent = x.type.shape[axis]
    if isinstance(shift, int) and isinstance(extent, DimExpr) and 0 < -shift <= dimension.bounds(extent)[0]:
        first: Dim = -shift
    elif isinstance(shift, int) and isinstance(extent, DimExpr) and 0 < shift <= dimension.bounds(extent)[0]:
        first = extent - shift
    elif isinstance(shift, int) and shift < 0:
        first = dimension.mod(-shift, extent)
    else:
        first = extent - dimension.mod(shift, extent)
    if first in (0, extent):
        return x
    return concat(c, [c.slice_axis(x, axis, first, extent - first), c.slice_axis(x, axis, 0, first)], axis)


def repeated(c: Context, x: Value, repeats: Sequence[Dim]) -> Value:
    """x repeated along every axis; more repeats than axes add leading axes."""
    lead = len(repeats) - x.type.rank
    x = c.reshape(x, (*(1,) * lead, *x.type.shape))
    if all(count == 1 for count in repeats):
        return x
    if all(isinstance(count, int) and count > 0 for count in repeats) and x.type.elements != 0:
        expanding = all(extent == 1 or count == 1 for extent, count in zip(x.type.shape, repeats, strict=True))
        if not expanding:
            return c.op_("tile", x, repeats=tuple(repeats))
    split: list[Dim] = []
    wide: list[Dim] = []
    for extent, count in zip(x.type.shape, repeats, strict=True):
        split += [1, extent]
        wide += [count, extent]
    shape = [extent * count for extent, count in zip(x.type.shape, repeats, strict=True)]
    if all(extent == 1 or count == 1 for extent, count in zip(x.type.shape, repeats, strict=True)):
        return c.expand(x, shape)
    return c.reshape(c.expand(c.reshape(x, split), wide), shape)


@aten_op("repeat")
def _repeat(c: Context) -> Result:
    return repeated(c, c.tensor("self"), c.sizes("repeats"))


@aten_op("tile")
def _tile(c: Context) -> Result:
    x, counts = c.tensor("self"), c.sizes("dims")
    return repeated(c, x, (*(1,) * (x.type.rank - len(counts)), *counts))


@aten_op("repeat_interleave.self_int")
def _repeat_interleave(c: Context) -> Result:
    x, count = c.tensor("self"), c.size("repeats")
    if not c.has("dim"):
        x = c.reshape(x, (x.type.elements,))
    axis = c.axis("dim", x.type.rank) if c.has("dim") else 0
    shape = x.type.shape
    split = c.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    wide = c.expand(split, (*shape[: axis + 1], count, *shape[axis + 1 :]))
    return c.reshape(wide, (*shape[:axis], shape[axis] * count, *shape[axis + 1 :]))


# Blocks of pixels


@aten_op("pixel_shuffle")
def _pixel_shuffle(c: Context) -> Result:
    x, block = c.tensor("self"), c.integer("upscale_factor")
    *batch, channels, height, width = x.type.shape
    depth = dimension.exact_div(channels, block * block)
    if depth is None:
        c.fail(f"{channels} channels do not divide into blocks of {block} x {block}")
    rank = len(batch)
    split = c.reshape(x, (*batch, depth, block, block, height, width))
    turned = c.transpose(split, [*range(rank), *(rank + axis for axis in (0, 3, 1, 4, 2))])
    return c.reshape(turned, (*batch, depth, height * block, width * block))


@aten_op("pixel_unshuffle")
def _pixel_unshuffle(c: Context) -> Result:
    x, block = c.tensor("self"), c.integer("downscale_factor")
    *batch, channels, height, width = x.type.shape
    rows, columns = (dimension.floordiv(extent, block) for extent in (height, width))
    rank = len(batch)
    split = reshaped(c, x, (*batch, channels, rows, block, columns, block))
    turned = c.transpose(split, [*range(rank), *(rank + axis for axis in (0, 2, 4, 1, 3))])
    return c.reshape(turned, (*batch, channels * block * block, rows, columns))


@aten_op("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(c: Context) -> Result:
    x, groups = c.tensor("self"), c.integer("groups")
    batch, channels, *rest = x.type.shape
    each = dimension.floordiv(channels, groups)
    split = reshaped(c, x, (batch, groups, each, *rest))
    return c.reshape(swapped(c, split, 1, 2), x.type.shape)


# Pads


def _amounts(c: Context, name: str, x: Value) -> tuple[list[Dim], list[Dim]]:
    """torch's pads, last axis first, as amounts before and after every axis."""
    before: list[Dim] = [0] * x.type.rank
    after: list[Dim] = [0] * x.type.rank
    given = c.sizes(name)
    for number in range(len(given) // 2):
        axis = x.type.rank - 1 - number
        before[axis], after[axis] = given[2 * number : 2 * number + 2]
    return before, after


@aten_op("constant_pad_nd")
def _constant_pad(c: Context) -> Result:
    x = c.tensor("self")
    value = c["value"]
    fill = value if isinstance(value, Value) else c.number_value(value, x.type.dtype)
    return shaping.padded(c.builder, x, *_amounts(c, "pad", x), "constant", c.cast(fill, x.type.dtype))


def _padded_first(c: Context, mode: str) -> Value:
    """A pad whose negative amounts cut what was padded: the elements that it repeats are those of the operand."""
    x = c.tensor("self")
    before, after = _amounts(c, "padding", x)
    grown = [[dimension.maximum(amount, 0) for amount in amounts] for amounts in (before, after)]
    made = shaping.padded(c.builder, x, grown[0], grown[1], mode, None)
    for axis, extent in enumerate(x.type.shape):
        cut = dimension.maximum(-before[axis], 0)
        made = c.slice_axis(made, axis, cut, extent + before[axis] + after[axis])
    return made


@aten_op("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def _reflection_pad(c: Context) -> Result:
    return _padded_first(c, "reflect")


@aten_op("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _replication_pad(c: Context) -> Result:
    return _padded_first(c, "edge")


@aten_op("_pad_circular")
def _circular_pad(c: Context) -> Result:
    x = c.tensor("self")
    return shaping.padded(c.builder, x, *_amounts(c, "pad", x), "wrap", None)
