"""ATen converters of ops over windows and images: pools, upsampling, sampling at places, columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim
from aot.frontend import data_sizes, shaping
from aot.frontend.aten_views import concat
from aot.frontend.torch_registry import Context, Result, aten_op
from aot.frontend.torch_sizes import scaled
from aot.ir import Array, Value
from aot.ops.helpers import wide_dtype
from aot.ops.resize import smooth_matrix
from aot.ops.window import sliding_extent

_I64 = dtypes.I64


# Windows


def _per_axis(c: Context, name: str, count: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """One number per spatial axis; one given number stands for all, none for the default."""
    given = c.ints(name) if c.has(name) else ()
    if not given:
        return tuple(default)
    return given * count if len(given) == 1 else given


def _batched(c: Context, x: Value, spatial: int) -> Value:
    """[N, C, spatial…], N being 1 where the operand has none."""
    return c.reshape(x, (1, *x.type.shape)) if x.type.rank == spatial + 1 else x


def _like(c: Context, made: Value, x: Value) -> Value:
    """The result without the batch axis that was added."""
    return made if made.type.rank == x.type.rank else c.reshape(made, made.type.shape[1:])


def _spatial(c: Context) -> int:
    """How many spatial axes an op has in its name: avg_pool2d has 2."""
    return int(c.op.partition(".")[0].partition("d_with_indices")[0].rstrip("d")[-1])


@aten_op("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(c: Context) -> Result:
    count = _spatial(c)
    given = c.tensor("self")
    x = _batched(c, given, count)
    window = _per_axis(c, "kernel_size", count)
    strides = _per_axis(c, "stride", count, window)
    pads = _per_axis(c, "padding", count, (0,) * count)
    ceil = c.flag("ceil_mode")
    dtype = x.type.dtype
    if not dtype.is_float:
        x = c.cast(x, dtypes.F64)
    divisor = c.integer("divisor_override") if c.has("divisor_override") else 0
    attrs = {"window": window, "strides": strides, "dilations": (1,) * count}
    if divisor:  # the plain mean over windows that lie inside a wider operand, and its factor
        after: list[Dim] = []
        places: list[Dim] = []
        for extent, reach, stride, pad in zip(x.type.shape[2:], window, strides, pads, strict=True):
            places.append(sliding_extent(extent, reach, stride, pad, pad, ceil))
            after.append(dimension.maximum((places[-1] - 1) * stride + reach - extent - pad, 0))
        wide = shaping.padded(c.builder, x, [0, 0, *pads], [0, 0, *after], "constant", None)
        made = c.op_("avg_pool", wide, pads=(0,) * 2 * count, ceil=False, include_pad=True, **attrs)
        for axis, found in enumerate(places):
            made = c.slice_axis(made, 2 + axis, 0, found)
        made = c.op_("mul", made, c.scalar(math.prod(window) / divisor, made.type.dtype))
    else:
        include = c.flag("count_include_pad") if "count_include_pad" in c.arguments else True
        made = c.op_("avg_pool", x, pads=(*pads, *pads), ceil=ceil, include_pad=include, **attrs)
    if not dtype.is_float:
        # A quotient that is whole must not have become less by rounding.
        made = c.op_("mul", made, c.scalar(1 + 1e-13, dtypes.F64))
        made = c.cast(c.op_("trunc", made), dtype)
    return _like(c, made, given)


@aten_op(
    "max_pool1d", "max_pool2d", "max_pool3d", "max_pool1d_with_indices", "max_pool2d_with_indices",
    "max_pool3d_with_indices",
)  # fmt: skip
def _max_pool(c: Context) -> Result:
    count = _spatial(c)
    given = c.tensor("self")
    x = _batched(c, given, count)
    window = _per_axis(c, "kernel_size", count)
    strides = _per_axis(c, "stride", count, window)
    pads = _per_axis(c, "padding", count, (0,) * count)
    dilations = _per_axis(c, "dilation", count, (1,) * count)
    made = c.op_(
        "max_pool", x, window=window, strides=strides, pads=(*pads, *pads), dilations=dilations,
        ceil=c.flag("ceil_mode"),
    )  # fmt: skip
    if "with_indices" not in c.op:
        return _like(c, made, given)
    if 1 not in c.used:
        return [_like(c, made, given), None]
    places = []
    for axis, extent in enumerate(made.type.shape[2:]):
        start = c.op_("iota", shape=(extent, 1), axis=0, start=-pads[axis], step=strides[axis], dtype=_I64)
        tap = c.op_("iota", shape=(1, window[axis]), axis=1, start=0, step=dilations[axis], dtype=_I64)
        places.append(c.op_("add", start, tap))
    return [_like(c, made, given), _like(c, _winners(c, x, places), given)]


def _winners(c: Context, x: Value, places: Sequence[Value]) -> Value:
    """The flat position, in its plane, of the first largest element of every window.

    `places`: for each spatial axis the positions of its windows, [windows, taps]; those outside are not read.
    """
    count = len(places)
    shape = x.type.shape
    flat: Value | None = None
    inside: Value | None = None
    for axis, place in enumerate(places):
        extent = shape[2 + axis]
        windows, taps = place.type.shape
        wide: list[Dim] = [1] * (2 * count)
        wide[axis], wide[count + axis] = windows, taps
        place = c.reshape(place, wide)
        fits = c.op_("and", c.op_("ge", place, c.scalar(0, _I64)),
                     c.op_("lt", place, data_sizes.number(c.builder, extent)))  # fmt: skip
        inside = fits if inside is None else c.op_("and", inside, fits)
        before = place if flat is None else c.op_("mul", flat, data_sizes.number(c.builder, extent))
        flat = before if flat is None else c.op_("add", before, place)
    assert flat is not None and inside is not None
    sizes = flat.type.shape[:count]
    taps_count = dimension.product(flat.type.shape[count:])
    window_count = dimension.product(sizes)
    flat = c.reshape(flat, (window_count, taps_count))
    inside = c.reshape(inside, (window_count, taps_count))
    plane = dimension.product(shape[2:])
    rows = c.reshape(x, (shape[0] * shape[1], plane))
    safe = c.op_("where", inside, flat, c.scalar(0, _I64))
    values = c.op_("gather", rows, safe, axis=1)
    values = c.op_("where", inside, values, c.scalar(_lowest(x), x.type.dtype))
    best = c.op_("argmax", values, axis=2, keepdims=True)
    wide_flat = c.expand(c.reshape(flat, (1, window_count, taps_count)), values.type.shape)
    chosen = c.op_("gather_elements", wide_flat, best, axis=2)
    return c.reshape(chosen, (*shape[:2], *sizes))


def _lowest(x: Value) -> float | int:
    dtype = x.type.dtype
    if dtype.is_float:
        return -float("inf")
    return -(1 << (dtype.bits - 1)) if dtype.family == "int" else 0


# Adaptive pools


def _output_size(c: Context, count: int) -> tuple[Dim, ...]:
    given = c.sizes("output_size")
    return given * count if len(given) == 1 else given


def _spans(source: int, result: int) -> tuple[Array, Array]:
    """First and last + 1 element of every window of an adaptive pool."""
    place = np.arange(result)
    return place * source // result, -(-((place + 1) * source) // result)


@aten_op(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
)  # fmt: skip
def _adaptive_avg_pool(c: Context) -> Result:
    count = _spatial(c)
    given = c.tensor("self")
    x = _batched(c, given, count)
    sizes = _output_size(c, count)
    extents = x.type.shape[2:]
    if all(size == 1 for size in sizes):
        made = c.op_("reduce_mean", x, axes=tuple(range(2, 2 + count)), keepdims=True)
        return _like(c, made, given)
    known = all(isinstance(n, int) and isinstance(m, int) and m and n % m == 0 and n
                for n, m in zip(extents, sizes, strict=True))  # fmt: skip
    if known:
        window = tuple(int(str(n)) // int(str(m)) for n, m in zip(extents, sizes, strict=True))
        made = c.op_(
            "avg_pool", x, window=window, strides=window, pads=(0,) * 2 * count, dilations=(1,) * count, ceil=False,
            include_pad=False,
        )  # fmt: skip
        return _like(c, made, given)
    dtype = x.type.dtype
    x = c.cast(x, dtypes.F32) if dtype.bits < 32 else x
    for axis, (length, wanted) in enumerate(zip(extents, sizes, strict=True)):
        x = _averaged(c, x, 2 + axis, length, wanted)
    return _like(c, c.cast(x, dtype), given)


def _averaged(c: Context, x: Value, axis: int, extent: Dim, size: Dim) -> Value:
    """One axis averaged to a size."""
    if extent == size:
        return x
    if size == 1:
        return c.op_("reduce_mean", x, axes=(axis,), keepdims=True)
    exact = dimension.exact_div(extent, size)
    if exact is not None and size != 0:
        split = c.reshape(x, (*x.type.shape[:axis], size, exact, *x.type.shape[axis + 1 :]))
        return c.op_("reduce_mean", split, axes=(axis + 1,), keepdims=False)
    if isinstance(extent, int) and isinstance(size, int):
        return shaping.times(c.builder, x, pool_table(extent, size), axis)
    starts, ends = _open_spans(c, extent, size)
    place = c.op_("iota", shape=(1, extent), axis=1, start=0, step=1, dtype=_I64)
    within = c.op_("and", c.op_("ge", place, starts), c.op_("lt", place, ends))
    length = c.cast(c.op_("sub", ends, starts), x.type.dtype)
    return shaping.times(c.builder, x, c.op_("div", c.cast(within, x.type.dtype), length), axis)


def _open_spans(c: Context, source: Dim, result: Dim) -> tuple[Value, Value]:
    """`_spans` of extents of which one is only known when running: [result, 1] each."""
    place = c.op_("iota", shape=(result, 1), axis=0, start=0, step=1, dtype=_I64)
    extent, count = (data_sizes.number(c.builder, dim) for dim in (source, result))
    first = c.op_("mul", place, extent)
    last = c.op_("add", c.op_("add", first, extent), c.op_("sub", count, c.scalar(1, _I64)))
    return c.op_("floordiv", first, count), c.op_("floordiv", last, count)


def pool_table(extent: int, size: int) -> Array:
    """An adaptive mean of `extent` elements to `size` as a matrix."""
    starts, ends = _spans(extent, size)
    place = np.arange(extent)
    within = (place >= starts[:, None]) & (place < ends[:, None])
    return np.asarray(within / (ends - starts)[:, None])


@aten_op("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max_pool(c: Context) -> Result:
    count = _spatial(c)
    given = c.tensor("self")
    x = _batched(c, given, count)
    sizes = _output_size(c, count)
    tables: list[Value] = []
    made = x
    for axis, size in enumerate(sizes):
        extent = x.type.shape[2 + axis]
        if size == 1:
            tables.append(c.op_("iota", shape=(1, extent), axis=1, start=0, step=1, dtype=_I64))
            made = c.op_("reduce_max", made, axes=(2 + axis,), keepdims=True)
            continue
        # Windows shorter than the longest read their last element again: no other maximum, none before it.
        if isinstance(extent, int) and isinstance(size, int):
            starts, ends = _spans(extent, size)
            reach = int((ends - starts).max()) if size else 0
            table = np.minimum(starts[:, None] + np.arange(reach), ends[:, None] - 1).astype(np.int64)
            tables.append(c.builder.const(table))
        else:
            first, last = _open_spans(c, extent, size)
            # The longest window of `extent` to `size`, whatever they are.
            longest = dimension.ceildiv(extent, size) + 1
            step = c.op_("iota", shape=(1, longest), axis=1, start=0, step=1, dtype=_I64)
            end = c.op_("sub", last, c.scalar(1, _I64))
            tables.append(c.op_("min", c.op_("add", first, step), end))
        found = c.op_("gather", made, tables[-1], axis=2 + axis)
        made = c.op_("reduce_max", found, axes=(3 + axis,), keepdims=False)
    places = _like(c, _winners(c, x, tables), given) if 1 in c.used else None
    return [_like(c, made, given), places]


@aten_op("fractional_max_pool2d", "fractional_max_pool3d")
def _fractional_max_pool(c: Context) -> Result:
    """B. Graham, "Fractional max-pooling", 2014: windows whose steps the samples [N, C, axes] move.

    Of two axes, the last has the first sample. Each batch and channel has windows of its own, so that their elements
    are gathered from planes.
    """
    count = _spatial(c)
    given = c.tensor("self")
    x = _batched(c, given, count)
    reach, sizes = _per_axis(c, "kernel_size", count), c.ints("output_size")
    sizes = sizes * count if len(sizes) == 1 else sizes
    extents = [extent for extent in x.type.shape[2:] if isinstance(extent, int)]
    if len(extents) != count:
        c.unsupported("a fractional pool of an open size", "Give the size a value with --dim.")
    batch, channels = x.type.shape[:2]
    samples = c.slice_axis(c.tensor("random_samples"), 0, 0, batch)  # torch reads no more of them
    flat: Value | None = None
    rank = 2 + 2 * count  # batch, channel, windows of each axis, taps of each axis
    for axis, (extent, size, taps) in enumerate(zip(extents, sizes, reach, strict=True)):
        column = 1 - axis if count == 2 else axis
        sample = c.reshape(c.slice_axis(samples, 2, column, 1), (batch, channels, 1))
        starts = _fractional_starts(c, sample, extent, size, taps)
        shape: list[Dim] = [batch, channels, *(1,) * (2 * count)]
        shape[2 + axis] = size
        starts = c.reshape(starts, shape)
        steps: list[Dim] = [1] * rank
        steps[2 + count + axis] = taps
        tap = c.op_("iota", shape=tuple(steps), axis=2 + count + axis, start=0, step=1, dtype=_I64)
        place = c.op_("add", starts, tap)
        flat = place if flat is None else c.op_("add", c.op_("mul", flat, c.scalar(extent, _I64)), place)
    assert flat is not None
    windows, each = dimension.product(sizes), dimension.product(reach)
    flat = c.reshape(flat, (batch, channels, windows * each))
    plane = c.reshape(x, (batch, channels, dimension.product(extents)))
    values = c.reshape(c.op_("gather_elements", plane, flat, axis=2), (batch, channels, windows, each))
    best = c.op_("argmax", values, axis=3, keepdims=True)
    shape = [batch, channels, *sizes]
    made = c.reshape(c.op_("reduce_max", values, axes=(3,), keepdims=False), shape)
    places = c.op_("gather_elements", c.reshape(flat, values.type.shape), best, axis=3)
    return [_like(c, made, given), _like(c, c.reshape(places, shape), given)]


def _fractional_starts(c: Context, sample: Value, extent: int, size: int, taps: int) -> Value:
    """floor((i + u) * a) - floor(u * a), a being the mean step; the last window ends with the axis."""
    place = c.op_("iota", shape=(1, 1, size), axis=2, start=0, step=1, dtype=_I64)
    if size == 1:
        return c.op_("add", c.expand(place, (*sample.type.shape[:2], 1)), c.scalar(extent - taps, _I64))
    dtype = sample.type.dtype
    step = c.scalar((extent - taps) / (size - 1), dtype)
    moved = c.op_("mul", c.op_("add", c.cast(place, dtype), sample), step)
    first = c.op_("mul", sample, step)
    starts = c.op_("sub", *(c.cast(c.op_("floor", part), _I64) for part in (moved, first)))
    return c.op_("where", c.op_("eq", place, c.scalar(size - 1, _I64)), c.scalar(extent - taps, _I64), starts)


# Upsampling


def _factors(c: Context, count: int) -> list[float | None]:
    """The scales that were given; None where sizes decide."""
    if c.has("scale_factors"):
        given = c["scale_factors"]
        return [float(factor) for factor in given]
    names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[count]
    return [float(c[name]) if c.has(name) and isinstance(c[name], int | float) else None for name in names]


def _upsampled_size(c: Context, x: Value, factors: Sequence[float | None]) -> tuple[Dim, ...]:
    if c.has("output_size"):
        return c.sizes("output_size")
    sizes: list[Dim] = []
    for extent, factor in zip(x.type.shape[2:], factors, strict=True):
        assert factor is not None
        sizes.append(scaled(extent, factor))
    return tuple(sizes)


def _image(c: Context) -> Value:
    return c.tensor("self") if "self" in c.arguments else c.tensor("input")


@aten_op(
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
)  # fmt: skip
def _nearest(c: Context) -> Result:
    x = _image(c)
    count, exact = _spatial(c), "exact" in c.op
    factors = _factors(c, count)
    sizes = _upsampled_size(c, x, factors)
    odd: list[tuple[int, Value]] = []
    shape = list(x.type.shape)
    for axis, (size, factor) in enumerate(zip(sizes, factors, strict=True)):
        extent = x.type.shape[2 + axis]
        if isinstance(extent, int) and isinstance(size, int):
            table = _nearest_table(extent, size, factor, exact)
            if size % extent or not np.array_equal(table, np.arange(size) // (size // extent)):
                odd.append((2 + axis, c.builder.const(table)))
                continue
        elif not isinstance(dimension.exact_div(size, extent), int) or exact:
            odd.append((2 + axis, _open_nearest_table(c, extent, size, factor, exact)))
            continue
        shape[2 + axis] = size
    for axis, places in odd:  # torch's places, to the bit
        x = c.op_("gather", x, places, axis=axis)
        shape[axis] = x.type.shape[axis]
    if tuple(shape) == x.type.shape:
        return x
    return c.op_(
        "resize", x, shape=tuple(shape), scales=(), mode="nearest", coordinate="half_pixel" if exact else "asymmetric",
        nearest="round_prefer_ceil" if exact else "floor",
    )  # fmt: skip


def _step(source: int, result: int, factor: float | None) -> np.float32:
    """Elements of the source per element of the result, as torch computes it."""
    if factor is not None and factor > 0:
        return np.float32(1.0 / factor)
    return np.float32(source) / np.float32(result) if result else np.float32(0)


def _nearest_table(source: int, result: int, factor: float | None, exact: bool) -> Array:
    place = np.arange(result, dtype=np.float32) + np.float32(0.5 if exact else 0.0)
    places: Array = np.clip(np.floor(place * _step(source, result, factor)).astype(np.int64), 0, max(source - 1, 0))
    return places


def _open_nearest_table(c: Context, source: Dim, result: Dim, factor: float | None, exact: bool) -> Value:
    """`_nearest_table` of extents of which one is only known when running."""
    place = c.op_("iota", shape=(result,), axis=0, start=0, step=1, dtype=_I64)
    place = c.op_("add", c.cast(place, dtypes.F32), c.scalar(0.5 if exact else 0.0, dtypes.F32))
    extent = data_sizes.number(c.builder, source)
    if factor is not None and factor > 0:
        step = c.scalar(float(np.float32(1.0 / factor)), dtypes.F32)
    else:
        step = c.op_("div", *(c.cast(n, dtypes.F32) for n in (extent, data_sizes.number(c.builder, result))))
    found = c.cast(c.op_("floor", c.op_("mul", place, step)), _I64)
    return c.op_("min", found, c.op_("sub", extent, c.scalar(1, _I64)))


@aten_op("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
def _interpolated(c: Context) -> Result:
    x = _image(c)
    count = _spatial(c)
    factors = _factors(c, count)
    sizes = _upsampled_size(c, x, factors)
    shape = (*x.type.shape[:2], *sizes)
    align = c.flag("align_corners")
    cubic = "bicubic" in c.op
    given = x.type.dtype
    x = c.cast(x, dtypes.F32) if given.is_float and given.bits < 32 else x
    scales: tuple[float, ...] = ()
    if not align and all(factor is not None for factor in factors):
        exact = all(
            isinstance(n, int) and isinstance(m, int) and n * factor == m
            for n, m, factor in zip(x.type.shape[2:], sizes, factors, strict=True) if factor is not None
        )  # fmt: skip
        if not exact:
            scales = (1.0, 1.0, *(float(factor) for factor in factors if factor is not None))
    made = c.op_(
        "resize", x, shape=shape, scales=scales, mode="cubic" if cubic else "linear",
        coordinate="align_corners" if align else "half_pixel", nearest="floor", cubic_a=-0.75, exclude_outside=False,
    )  # fmt: skip
    return c.cast(made, given)


@aten_op("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def _smooth(c: Context) -> Result:
    x = _image(c)
    given = x.type.dtype
    if not given.is_float:
        c.unsupported(f"antialiasing of {given}")
    factors = _factors(c, 2)
    sizes = _upsampled_size(c, x, factors)
    align, mode = c.flag("align_corners"), "cubic" if "bicubic" in c.op else "linear"
    x = c.cast(x, dtypes.F32) if given.bits < 32 else x
    for axis in (3, 2):
        source, result, factor = x.type.shape[axis], sizes[axis - 2], factors[axis - 2]
        if not isinstance(source, int) or not isinstance(result, int):
            c.unsupported("antialiasing of a size that is only known when running", "Give it a value with --dim.")
        step = float(_step(source, result, factor))
        if align:
            step = (source - 1) / (result - 1) if result > 1 else 0.0
        places = (np.arange(result) + 0.5) * step - 0.5
        matrix = smooth_matrix(places, source, 1.0 / max(step, 1.0), mode=mode, cubic_a=-0.5, exclude_outside=True)
        x = shaping.times(c.builder, x, matrix, axis)
    return c.cast(x, given)


# Places


_MODES = ("linear", "nearest", "cubic")
_PADDINGS = ("zeros", "border", "reflection")


@aten_op("grid_sampler_2d", "grid_sampler_3d", "grid_sampler", "cudnn_grid_sampler")
def _grid_sampler(c: Context) -> Result:
    """Of half types in f32: the places between pixels are not rounded."""
    parts = [c.cast(c.tensor(name), wide_dtype(c.dtype)) for name in ("input", "grid")]
    made = c.op_(
        "grid_sample", *parts, mode=_MODES[c.integer("interpolation_mode")],
        padding=_PADDINGS[c.integer("padding_mode")], align=c.flag("align_corners"),
    )  # fmt: skip
    return c.cast(made, c.dtype)


@aten_op("affine_grid_generator")
def _affine_grid(c: Context) -> Result:
    theta = c.tensor("theta")
    batch, _, *extents = c.sizes("size")
    count, dtype, align = len(extents), theta.type.dtype, c.flag("align_corners")
    columns: list[Value] = []
    for axis in reversed(range(count)):
        shape = tuple(extent if other == axis else 1 for other, extent in enumerate(extents))
        place = c.cast(c.op_("iota", shape=shape, axis=axis, start=0, step=1, dtype=_I64), dtype)
        size = c.cast(data_sizes.number(c.builder, extents[axis]), dtype)
        one, two = c.scalar(1.0, dtype), c.scalar(2.0, dtype)
        if align:
            steps = c.op_("max", c.op_("sub", size, one), one)
            place = c.op_("sub", c.op_("div", c.op_("mul", place, two), steps), one)
            if extents[axis] == 1:
                place = c.scalar(0.0, dtype)
        else:
            twice = c.op_("add", c.op_("mul", place, two), one)
            place = c.op_("sub", c.op_("div", twice, size), one)
        columns.append(c.reshape(c.expand(place, extents), (dimension.product(extents), 1)))
    columns.append(c.expand(c.scalar(1.0, dtype), columns[0].type.shape))
    base = concat(c, columns, 1)
    made = c.op_("matmul", c.reshape(base, (1, *base.type.shape)), c.transpose(theta, (0, 2, 1)))
    return c.reshape(made, (batch, *extents, count))


# Columns


@aten_op("im2col")
def _im2col(c: Context) -> Result:
    given = c.tensor("self")
    x = _batched(c, given, 2)
    window, dilations, pads, strides = (
        _per_axis(c, name, 2) for name in ("kernel_size", "dilation", "padding", "stride")
    )
    wide = shaping.padded(c.builder, x, [0, 0, *pads], [0, 0, *pads], "constant", None)
    batch, channels = x.type.shape[:2]
    counts: list[Dim] = []
    for axis in range(2):
        reach = (window[axis] - 1) * dilations[axis] + 1
        counts.append(dimension.floordiv(wide.type.shape[2 + 2 * axis] - reach, strides[axis]) + 1)
        start = c.op_("iota", shape=(1, counts[axis]), axis=1, start=0, step=strides[axis], dtype=_I64)
        tap = c.op_("iota", shape=(window[axis], 1), axis=0, start=0, step=dilations[axis], dtype=_I64)
        wide = c.op_("gather", wide, c.op_("add", tap, start), axis=2 + 2 * axis)
    turned = c.transpose(wide, (0, 1, 2, 4, 3, 5))
    made = c.reshape(turned, (batch, channels * math.prod(window), counts[0] * counts[1]))
    return _like(c, made, c.reshape(given, given.type.shape[1:])) if given.type.rank == 3 else made


@aten_op("col2im")
def _col2im(c: Context) -> Result:
    """The sum of columns back into an image: a transposed convolution whose kernels each have a single one."""
    x = c.tensor("self")
    batched = x.type.rank == 3
    x = x if batched else c.reshape(x, (1, *x.type.shape))
    window, dilations, pads, strides = (
        _per_axis(c, name, 2) for name in ("kernel_size", "dilation", "padding", "stride")
    )
    sizes = c.sizes("output_size")
    taps = math.prod(window)
    batch, rows, _ = x.type.shape
    channels = dimension.floordiv(rows, taps)
    if not isinstance(channels, int):
        c.unsupported("columns of a number of channels that is only known when running")
    counts: list[Dim] = []
    extra: list[int] = []
    for axis in range(2):
        reach = (window[axis] - 1) * dilations[axis] + 1
        count = dimension.floordiv(sizes[axis] + (2 * pads[axis] - reach), strides[axis]) + 1
        rest = sizes[axis] - ((count - 1) * strides[axis] - 2 * pads[axis] + reach)
        if not isinstance(rest, int):
            c.unsupported("an image of columns whose size is only known when running")
        counts.append(count)
        extra.append(rest)
    dtype = x.type.dtype
    work = dtype if dtype.is_float else dtypes.F64
    kernels = np.zeros((channels * taps, 1, *window), work.numpy)
    for tap in range(taps):
        kernels[tap::taps, 0, tap // window[1], tap % window[1]] = 1
    image = c.cast(c.reshape(x, (batch, rows, *counts)), work)
    made = c.op_(
        "conv_transpose", image, c.builder.const(kernels), None, strides=strides, pads=(*pads, *pads),
        dilations=dilations, output_padding=tuple(extra), groups=channels,
    )  # fmt: skip
    made = c.op_("ne", made, c.scalar(0, work)) if dtype.is_bool else c.cast(made, dtype)
    return made if batched else c.reshape(made, made.type.shape[1:])
