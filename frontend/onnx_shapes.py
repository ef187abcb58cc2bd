"""Converters of ops that move, view or make tensors: shapes, slices, padding, constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aot import dims as dimension
from aot import dtypes
from aot.control import add_claim
from aot.dims import Dim
from aot.dtypes import DType
from aot.frontend import onnx_sizes
from aot.frontend.known import LARGEST_KNOWN
from aot.frontend.known_scalars import Element, as_fraction
from aot.frontend.known_tensors import object_array
from aot.frontend.onnx_registry import Context, Result, onnx_op
from aot.frontend.shaping import missing_extent, padded, slice_range
from aot.ir import Value, const_of
from aot.ops import same_extent

_LONGEST_TABLE = 1 << 24  # elements of a float range, which becomes a constant


@onnx_op("Constant")
def _constant(c: Context) -> Result:
    given = [name for name in c.attributes if name.startswith(("value", "sparse_value"))]
    if len(given) != 1:
        c.fail(f"a Constant has exactly one value; it has {len(given)}")
    (name,) = given
    if name == "value":
        const = c.tensor_attribute("value")
        assert const is not None
        return c.builder.const(const, c.node.output[0])
    if name == "value_float":
        return c.builder.const(np.asarray(c.float_attribute(name), np.float32))
    if name == "value_floats":
        return c.builder.const(np.asarray(c.floats_attribute(name), np.float32))
    if name == "value_int":
        return c.builder.const(np.asarray(c.int_attribute(name), np.int64))
    if name == "value_ints":
        return c.builder.const(np.asarray(c.ints_attribute(name), np.int64))
    c.unsupported(f"constants given as {name}")


@onnx_op("Shape")
def _shape(c: Context) -> Result:
    rank = c.rank()
    start, end = c.int_attribute("start", 0), c.int_attribute("end", rank)
    start, end = (min(max(place + rank if place < 0 else place, 0), rank) for place in (start, end))
    return c.dims_value(c.shape()[start : max(start, end)])


@onnx_op("Size")
def _size(c: Context) -> Result:
    return c.dim_scalar(dimension.product(c.shape()), dtypes.I64)


@onnx_op("Reshape")
def _reshape(c: Context) -> Result:
    x = c.input(0)
    allow_zero = c.bool_attribute("allowzero", False)
    if c.known(1) is None:
        return onnx_sizes.reshaped(c, x, onnx_sizes.elements(c, 1, "the shape"), allow_zero)
    wanted = c.dims(1, "the shape")
    shape: list[Dim] = []
    free: int | None = None
    for axis, extent in enumerate(wanted):
        if extent == 0 and not allow_zero:
            if axis >= x.type.rank:
                c.fail(f"0 on axis {axis} copies an extent of an operand that has rank {x.type.rank}")
            extent = x.type.shape[axis]
        elif extent == -1:
            if free is not None:
                c.fail("the shape has two -1")
            free, extent = axis, 1
        elif isinstance(extent, int) and extent < 0:
            c.fail(f"the shape {list(wanted)} has a negative extent")
        shape.append(extent)
    if free is not None:
        shape[free] = missing_extent(x, shape)
    if any(map(onnx_sizes.is_unbacked, (x.type.elements, *shape))):
        return onnx_sizes.with_shape(c, x, shape)
    same_extent(x.type.elements, dimension.product(shape), f"elements of [{_text(x.type.shape)}] and [{_text(shape)}]")
    return c.reshape(x, shape)


def _text(shape: Sequence[Dim]) -> str:
    return ", ".join(map(str, shape))


@onnx_op("Flatten")
def _flatten(c: Context) -> Result:
    x = c.input(0)
    axis = c.int_attribute("axis", 1)
    if not -x.type.rank <= axis <= x.type.rank:
        c.fail(f"axis {axis} is out of range for rank {x.type.rank}")
    axis = axis + x.type.rank if axis < 0 else axis
    return c.reshape(x, (dimension.product(x.type.shape[:axis]), dimension.product(x.type.shape[axis:])))


def _axes(c: Context, rank: int) -> tuple[int, ...] | None:
    """Axes as an operand (since opset 13) or an attribute."""
    if c.opset >= 13:
        return c.axes(c.ints(1, "axes"), rank) if c.has(1) else None
    return c.axes(c.ints_attribute("axes"), rank) if c.has_attribute("axes") else None


@onnx_op("Squeeze")
def _squeeze(c: Context) -> Result:
    x = c.input(0)
    if c.opset >= 13 and c.has(1) and c.known(1) is None:
        return onnx_sizes.with_axes(c, x, c.input(1), remove=True)
    axes = _axes(c, x.type.rank)
    if axes is None:
        axes = tuple(axis for axis, extent in enumerate(x.type.shape) if extent == 1)
    for axis in axes:
        extent = x.type.shape[axis]
        if isinstance(extent, int) and extent != 1:
            c.fail(f"axis {axis} has extent {extent}, not 1")
        if extent != 1:
            same_extent(extent, 1, f"the squeezed axis {axis}")
    return c.reshape(x, tuple(extent for axis, extent in enumerate(x.type.shape) if axis not in axes))


@onnx_op("Unsqueeze")
def _unsqueeze(c: Context) -> Result:
    x = c.input(0)
    if c.opset >= 13 and c.known(1) is None:
        return onnx_sizes.with_axes(c, x, c.input(1), remove=False)
    count = len(c.ints(1, "axes") if c.opset >= 13 else c.ints_attribute("axes"))
    axes = _axes(c, x.type.rank + count) or ()
    shape = list(x.type.shape)
    for axis in axes:
        shape.insert(axis, 1)
    return c.reshape(x, shape)


@onnx_op("Transpose")
def _transpose(c: Context) -> Result:
    rank = c.rank()
    perm = c.ints_attribute("perm", tuple(reversed(range(rank))))
    if sorted(axis % max(rank, 1) for axis in perm) != list(range(rank)):
        c.fail(f"perm {list(perm)} is no permutation of {rank} axes")
    return c.transpose(c.input(0), [axis % rank for axis in perm])


@onnx_op("Expand")
def _expand(c: Context) -> Result:
    x = c.input(0)
    wanted = c.dims(1, "the shape")
    rank = max(len(wanted), x.type.rank)
    own: tuple[Dim, ...] = (*(1,) * (rank - x.type.rank), *x.type.shape)
    asked: tuple[Dim, ...] = (*(1,) * (rank - len(wanted)), *wanted)
    if any(isinstance(extent, int) and extent < 0 for extent in asked):
        c.fail(f"the shape {list(wanted)} has a negative extent")
    shape: list[Dim] = []
    x = c.reshape(x, own)
    for axis, (have, want) in enumerate(zip(own, asked, strict=True)):
        if onnx_sizes.is_unbacked(want) and have not in (1, want):
            if dimension.bounds(have)[0] > 1:
                # It broadcasts where the size is 1 or this one; the extent is known in both cases.
                add_claim(c.builder, (want - 1) * (want - have), 0, exact=True)
                want = have
            else:  # either may be 1
                x = onnx_sizes.expanded(c, x, axis, want)
                have = want = x.type.shape[axis]
        if have != want and have != 1 and want != 1:
            same_extent(have, want, f"expand on axis {axis}")
        shape.append(have if want == 1 else want)
    return c.expand(x, shape)


@onnx_op("Tile")
def _tile(c: Context) -> Result:
    x = c.input(0)
    repeats = c.dims(1, "repeats")
    if len(repeats) != x.type.rank:
        c.fail(f"repeats has {len(repeats)} entries for rank {x.type.rank}")
    if all(isinstance(count, int) for count in repeats):
        return x if all(count == 1 for count in repeats) else c.op("tile", x, repeats=repeats)
    # A symbolic count: a new axis, expanded and merged.
    split: list[Dim] = []
    wide: list[Dim] = []
    for extent, count in zip(x.type.shape, repeats, strict=True):
        split += [1, extent]
        wide += [count, extent]
    shape = [extent * count for extent, count in zip(x.type.shape, repeats, strict=True)]
    return c.reshape(c.expand(c.reshape(x, split), wide), shape)


@onnx_op("Concat")
def _concat(c: Context) -> Result:
    axis = c.axis(c.int_attribute("axis"))
    parts = [c.input(index) for index in range(c.count)]
    ranks = {part.type.rank for part in parts}
    if len(ranks) != 1:
        c.fail(f"the operands have different ranks: {sorted(ranks)}")
    return parts[0] if len(parts) == 1 else c.op("concat", *parts, axis=axis)


@onnx_op("Slice")
def _slice(c: Context) -> Result:
    x = c.input(0)
    starts: Sequence[Dim]
    ends: Sequence[Dim]
    if c.opset < 10:
        starts, ends = c.ints_attribute("starts"), c.ints_attribute("ends")
        axes = c.ints_attribute("axes", tuple(range(len(starts))))
        steps: tuple[int, ...] = (1,) * len(starts)
    else:
        if any(c.has(index) and c.known(index) is None for index in (3, 4)):
            return onnx_sizes.sliced_by_data(c, x, [c.input(1), c.input(2), c.optional(3), c.optional(4)])
        if c.known(1) is None or c.known(2) is None:
            return _slice_by_data(c)
        starts, ends = c.dims(1, "starts"), c.dims(2, "ends")
        axes = c.ints(3, "axes") if c.has(3) else tuple(range(len(starts)))
        steps = c.ints(4, "steps") if c.has(4) else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        c.fail(f"starts, ends, axes and steps have lengths {len(starts)}, {len(ends)}, {len(axes)} and {len(steps)}")
    c.axes(axes)
    all_starts: list[Dim] = [0] * x.type.rank
    all_sizes = list(x.type.shape)
    all_steps = [1] * x.type.rank
    for start, end, given_axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = c.axis(given_axis)
        if step == 0:
            c.fail("a step is 0")
        all_starts[axis], all_sizes[axis] = slice_range(c.builder, start, end, step, x.type.shape[axis])
        all_steps[axis] = step
    if all_sizes == list(x.type.shape) and all(step == 1 for step in all_steps):
        return x
    return c.op("slice", x, starts=tuple(all_starts), sizes=tuple(all_sizes), steps=tuple(all_steps))


def _slice_by_data(c: Context) -> Value:
    """A Slice of which some starts or ends are only known when running."""
    x = c.input(0)
    starts, ends = onnx_sizes.elements(c, 1, "starts"), onnx_sizes.elements(c, 2, "ends")
    axes = c.ints(3, "axes") if c.has(3) else tuple(range(len(starts)))
    steps = c.ints(4, "steps") if c.has(4) else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        c.fail(f"starts, ends, axes and steps have lengths {len(starts)}, {len(ends)}, {len(axes)} and {len(steps)}")
    c.axes(axes)
    if 0 in steps:
        c.fail("a step is 0")
    for start, end, given_axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = c.axis(given_axis)
        if isinstance(start, Value) or isinstance(end, Value):
            x = onnx_sizes.sliced(c, x, axis, start, end, step)
        else:
            x = c.slice_axis(x, axis, *slice_range(c.builder, start, end, step, x.type.shape[axis]), step)
    return x


@onnx_op("Split")
def _split(c: Context) -> Result:
    x = c.input(0)
    axis = c.axis(c.int_attribute("axis", 0))
    extent = x.type.shape[axis]
    sizes: tuple[Dim, ...]
    if c.opset >= 13 and c.has(1):
        sizes = c.dims(1, "split")
    elif c.opset < 13 and c.has_attribute("split"):
        sizes = c.ints_attribute("split")
    else:
        count = c.int_attribute("num_outputs", c.outputs)
        if count != c.outputs:
            c.fail(f"num_outputs is {count}; the node has {c.outputs} results")
        if c.opset < 18 and isinstance(extent, int) and extent % count:
            c.fail(f"extent {extent} does not split into {count} equal parts")
        part = dimension.ceildiv(extent, count)
        sizes = (*(part,) * (count - 1), extent - part * (count - 1))
    if len(sizes) != c.outputs:
        c.fail(f"the split has {len(sizes)} parts; the node has {c.outputs} results")
    if any(isinstance(size, int) and size < 0 for size in sizes):
        c.fail(f"the split {[str(size) for size in sizes]} has a negative part")
    same_extent(_total(sizes), extent, "the parts of the split and the extent")
    results: list[Value] = []
    start: Dim = 0
    for size in sizes:
        results.append(c.slice_axis(x, axis, start, size))
        start = start + size
    return results


def _total(dims: Sequence[Dim]) -> Dim:
    total: Dim = 0
    for dim in dims:
        total = total + dim
    return total


@onnx_op("Pad")
def _pad(c: Context) -> Result:
    x = c.input(0)
    rank = x.type.rank
    mode = c.text_attribute("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        c.fail(f"mode {mode!r} is not constant, reflect, edge or wrap")
    value: Value | None
    if c.opset < 11:
        pads: tuple[Dim, ...] = c.ints_attribute("pads")
        fill = c.float_attribute("value", 0.0)
        value = c.scalar(fill, x.type.dtype)
        axes: tuple[int, ...] = tuple(range(rank))
    else:
        pads = c.dims(1, "pads")
        value = c.reshape(c.input(2), ()) if c.has(2) else None
        axes = tuple(c.axis(axis) for axis in c.ints(3, "axes")) if c.has(3) else tuple(range(rank))
    if len(pads) != 2 * len(axes):
        c.fail(f"pads has {len(pads)} entries for {len(axes)} axes")
    before: list[Dim] = [0] * rank
    after: list[Dim] = [0] * rank
    for position, axis in enumerate(axes):
        before[axis], after[axis] = pads[position], pads[len(axes) + position]
    return padded(c.builder, x, before, after, mode, value)


@onnx_op("Range")
def _range(c: Context) -> Result:
    dtype = c.dtype()
    if any(c.known(index) is None for index in range(3)):
        return onnx_sizes.counted(c, c.input(0), c.input(1), c.input(2))
    parts = [c.need_known(index, what) for index, what in enumerate(("start", "limit", "delta"))]
    if any(part.size != 1 for part in parts):
        c.fail("start, limit and delta must be scalars")
    start, limit, delta = (part.flat[0] for part in parts)
    if delta == 0:
        c.fail("delta is 0")
    if all(isinstance(item, int | float) for item in (start, limit, delta)):
        steps = (limit - start) / delta
        if not np.isfinite(steps):
            c.fail(f"a range from {start} to {limit} by {delta} has no length")
        count = max(int(np.ceil(steps)), 0)
        if dtype.is_float:
            if count > _LONGEST_TABLE:
                c.unsupported(f"a range of {count} floats")
            return c.builder.const((np.arange(count) * delta + start).astype(dtype.numpy))
        if count <= LARGEST_KNOWN:
            contents = [start + number * delta for number in range(count)]
            return c.builder.known_value(object_array(contents, (count,)), dtype)
    fractions = [as_fraction(item) for item in (start, limit, delta)]
    if any(fraction is None for fraction in fractions):
        c.unsupported("a range whose start, limit or step is no simple ratio of sizes")
    (first, first_below), (last, last_below), (step, step_below) = (fraction for fraction in fractions if fraction)
    least, most = dimension.bounds(step)
    if least <= 0 <= most:
        c.unsupported("a range whose step may be positive for some sizes and negative for others")
    room, size = last * first_below - first * last_below, step
    if least < 0:
        room, size = -room, -step
    length = dimension.maximum(dimension.ceildiv(room * step_below, size * (first_below * last_below)), 0)
    if isinstance(start, int) and isinstance(delta, int):
        return c.op("iota", shape=(length,), axis=0, start=start, step=delta, dtype=dtype)
    whole = delta if isinstance(delta, int) else 1
    result = c.op("iota", shape=(length,), axis=0, start=0, step=whole, dtype=dtype)
    if not isinstance(delta, int):
        result = c.op("mul", result, _scalar_of(c, delta, dtype))
    return result if start == 0 else c.op("add", result, _scalar_of(c, start, dtype))


def _scalar_of(c: Context, element: Element, dtype: DType) -> Value:
    """A number that may depend on sizes, as a rank-0 tensor."""
    return c.builder.known_value(object_array([element], ()), dtype)


@onnx_op("ConstantOfShape")
def _constant_of_shape(c: Context) -> Result:
    shape = c.dims(0, "the shape")
    if any(isinstance(extent, int) and extent < 0 for extent in shape):
        c.fail(f"the shape {list(shape)} has a negative extent")
    const = c.tensor_attribute("value")
    if const is None:
        const = const_of(np.zeros((1,), np.float32))
    if const.bytes != const.dtype.itemsize_bytes:
        c.fail("the value must have one element")
    scalar = c.builder.const(const_of(const.array().reshape(())))
    return c.expand(scalar, shape)


@onnx_op("EyeLike")
def _eye_like(c: Context) -> Result:
    if c.rank() != 2:
        c.fail(f"the operand must have rank 2; it has rank {c.rank()}")
    rows, columns = c.shape()
    dtype = c.dtype_attribute("dtype", c.dtype())
    offset = c.int_attribute("k", 0)
    row = c.op("iota", shape=(rows, 1), axis=0, start=offset, step=1, dtype=dtypes.I64)
    column = c.op("iota", shape=(1, columns), axis=1, start=0, step=1, dtype=dtypes.I64)
    return c.cast(c.op("eq", row, column), dtype)


@onnx_op("Trilu")
def _trilu(c: Context) -> Result:
    if c.rank() < 2:
        c.fail(f"the operand must have rank 2 or more; it has rank {c.rank()}")
    if c.has(1) and c.known(1) is None:  # the diagonal is only known when running
        rows, columns = c.shape()[-2:]
        row = c.op("iota", shape=(rows, 1), axis=0, start=0, step=1, dtype=dtypes.I64)
        column = c.op("iota", shape=(1, columns), axis=1, start=0, step=1, dtype=dtypes.I64)
        offset_of = c.op("sub", c.op("sub", column, row), c.reshape(c.cast(c.input(1), dtypes.I64), ()))
        zero = c.scalar(0, dtypes.I64)
        kept = c.op("ge" if c.bool_attribute("upper", True) else "le", offset_of, zero)
        return c.op("where", kept, c.input(0), c.scalar(0, c.dtype()))
    offset = c.int_scalar(1, "k") if c.has(1) else 0
    return c.op("trilu", c.input(0), k=offset, upper=c.bool_attribute("upper", True))


@onnx_op("DepthToSpace")
def _depth_to_space(c: Context) -> Result:
    x = c.input(0)
    block = c.int_attribute("blocksize")
    if x.type.rank != 4 or block < 1:
        c.fail(f"the operand must have rank 4 and the block be positive; they are {x.type.rank} and {block}")
    batch, channels, height, width = x.type.shape
    depth = dimension.exact_div(channels, block * block)
    if depth is None:
        c.fail(f"{channels} channels do not divide into blocks of {block} x {block}")
    mode = c.text_attribute("mode", "DCR")
    split: tuple[Dim, ...]
    if mode == "DCR":
        split, perm = (batch, block, block, depth, height, width), (0, 3, 4, 1, 5, 2)
    elif mode == "CRD":
        split, perm = (batch, depth, block, block, height, width), (0, 1, 4, 2, 5, 3)
    else:
        c.fail(f"mode {mode!r} is not DCR or CRD")
    moved = c.transpose(c.reshape(x, split), perm)
    return c.reshape(moved, (batch, depth, height * block, width * block))


@onnx_op("SpaceToDepth")
def _space_to_depth(c: Context) -> Result:
    x = c.input(0)
    block = c.int_attribute("blocksize")
    if x.type.rank != 4 or block < 1:
        c.fail(f"the operand must have rank 4 and the block be positive; they are {x.type.rank} and {block}")
    mode = c.text_attribute("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        c.fail(f"mode {mode!r} is not DCR or CRD")
    batch, channels, height, width = x.type.shape
    rows, columns = (dimension.exact_div(extent, block) for extent in (height, width))
    if rows is None or columns is None:
        if isinstance(height, int) and isinstance(width, int):
            c.fail(f"{height} x {width} does not divide into blocks of {block}")
        rows, columns = dimension.floordiv(height, block), dimension.floordiv(width, block)
        same_extent(rows * block, height, "the height and whole blocks")
        same_extent(columns * block, width, "the width and whole blocks")
    perm = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    moved = c.transpose(c.reshape(x, (batch, channels, rows, block, columns, block)), perm)
    return c.reshape(moved, (batch, channels * block * block, rows, columns))
