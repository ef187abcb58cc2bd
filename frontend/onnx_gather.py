"""Converters of ops that read at computed places: gathers, one-hot, resize."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim, DimExpr
from aot.frontend.known_scalars import Element, Ratio, is_symbolic
from aot.frontend.onnx_interpolation import Window, interpolated
from aot.frontend.onnx_registry import Context, Result, onnx_op
from aot.ir import Value
from aot.ops import same_extent
from aot.ops.opdef import Attrs


@onnx_op("Gather")
def _gather(c: Context) -> Result:
    axis = c.axis(c.int_attribute("axis", 0))
    if c.rank() == 0:
        c.fail("a scalar has nothing to gather from")
    return c.op("gather", c.input(0), c.input(1), axis=axis)


@onnx_op("GatherElements")
def _gather_elements(c: Context) -> Result:
    return c.op("gather_elements", c.input(0), c.input(1), axis=c.axis(c.int_attribute("axis", 0)))


@onnx_op("GatherND")
def _gather_nd(c: Context) -> Result:
    return c.op("gather_nd", c.input(0), c.input(1), batch_dims=c.int_attribute("batch_dims", 0))


@onnx_op("OneHot")
def _one_hot(c: Context) -> Result:
    indices = c.input(0)
    value = c.input(1)
    if c.known(1) is None:
        value = c.cast(value, dtypes.I64)
    depth = c.builder.read_sizes(value)
    if depth is None:
        depth = c.need_known(1, "the depth")
    if depth.size != 1:
        c.fail(f"the depth must be one number; it has {depth.size}")
    count = depth.flat[0]
    if isinstance(count, Ratio) or (isinstance(count, float) and not count.is_integer()):
        c.fail("the depth must be a whole number")
    count = int(count) if isinstance(count, float) else count
    if indices.type.dtype.is_float:
        indices = c.cast(indices, dtypes.I64)
    axis = c.axis(c.int_attribute("axis", -1), indices.type.rank + 1)
    return c.op("one_hot", indices, c.input(2), depth=count, axis=axis)


@onnx_op("ReverseSequence")
def _reverse_sequence(c: Context) -> Result:
    x, lengths = c.input(0), c.input(1)
    time, batch = c.int_attribute("time_axis", 0), c.int_attribute("batch_axis", 1)
    if x.type.rank < 2 or sorted((time, batch)) != [0, 1]:
        c.fail("time_axis and batch_axis must be 0 and 1, in either order")
    trailing = (1,) * (x.type.rank - 2)
    same_extent(lengths.type.shape[0], x.type.shape[batch], "the lengths and the batch")
    row = c.cast(lengths, dtypes.I64)
    column: tuple[Dim, ...] = (lengths.type.shape[0], 1) if batch == 0 else (1, lengths.type.shape[0])
    row = c.reshape(row, (*column, *trailing))
    counter_shape: tuple[Dim, ...] = (x.type.shape[time], 1) if time == 0 else (1, x.type.shape[time])
    counter = c.op("iota", shape=(*counter_shape, *trailing), axis=time, start=0, step=1, dtype=dtypes.I64)
    mirrored = c.op("sub", c.op("sub", row, counter), c.scalar(1, dtypes.I64))
    place = c.op("where", c.op("lt", counter, row), mirrored, counter)
    return c.op("gather_elements", x, c.expand(place, x.type.shape), axis=time)


@onnx_op("GridSample")
def _grid_sample(c: Context) -> Result:
    mode = c.text_attribute("mode", "linear" if c.opset >= 20 else "bilinear")
    modes = {"bilinear": "linear", "bicubic": "cubic"}
    return c.op(
        "grid_sample", c.input(0), c.input(1), mode=modes.get(mode, mode),
        padding=c.text_attribute("padding_mode", "zeros"), align=c.bool_attribute("align_corners", False),
    )  # fmt: skip


@onnx_op("Upsample")
def _upsample(c: Context) -> Result:
    mode = c.text_attribute("mode", "nearest")
    scales: Sequence[Element]
    scales = c.floats_attribute("scales") if c.opset < 9 else tuple(c.need_known(1, "scales").flat)
    return _resized(c, scales, None, range(c.rank()), mode, "asymmetric", "floor")


@onnx_op("Resize")
def _resize(c: Context) -> Result:
    mode = c.text_attribute("mode", "nearest")
    if c.opset < 11:
        return _resized(c, tuple(c.need_known(1, "scales").flat), None, range(c.rank()), mode, "asymmetric", "floor")
    coordinate = c.text_attribute("coordinate_transformation_mode", "half_pixel")
    nearest = c.text_attribute("nearest_mode", "round_prefer_floor")
    axes = [c.axis(axis) for axis in c.ints_attribute("axes", tuple(range(c.rank())))]
    scales: Sequence[Element] | None = None
    sizes: Sequence[Dim] | None = None
    if c.has(3) and c.shape(3) != (0,):
        sizes = c.dims(3, "sizes")
    elif c.has(2) and c.shape(2) != (0,):
        scales = tuple(c.need_known(2, "scales").flat)
    else:
        c.fail("either scales or sizes must be given")
    return _resized(c, scales, sizes, axes, mode, coordinate, nearest)


def _resized(
    c: Context,
    scales: Sequence[Element] | None,
    sizes: Sequence[Dim] | None,
    axes: Sequence[int],
    mode: str,
    coordinate: str,
    nearest: str,
) -> Value:
    x = c.input(0)
    if mode not in ("nearest", "linear", "bilinear", "cubic"):
        c.fail(f"mode {mode!r} is not nearest, linear or cubic")
    roi = _region(c, axes) if coordinate == "tf_crop_and_resize" else None
    shape = list(x.type.shape)
    factors = [1.0] * x.type.rank
    plain = True
    if sizes is not None:
        if len(sizes) != len(axes):
            c.fail(f"sizes has {len(sizes)} entries for {len(axes)} axes")
        sizes, scales = _kept_ratio(c, sizes, axes)
    if scales is not None:
        if len(scales) != len(axes):
            c.fail(f"scales has {len(scales)} entries for {len(axes)} axes")
        for axis, scale in zip(axes, scales, strict=True):
            if not isinstance(scale, DimExpr | Ratio):
                if not (math.isfinite(float(scale)) and float(scale) > 0):
                    c.fail(f"scale {scale} is not positive")
                factors[axis] = float(scale)
            else:
                plain = False
            if sizes is None:
                part = roi[axes.index(axis)] if roi is not None else None
                if part is not None and isinstance(scale, float):
                    scale = scale * (part[1] - part[0])
                shape[axis] = _scaled(c, x.type.shape[axis], scale)
    if sizes is not None:
        for axis, size in zip(axes, sizes, strict=True):
            shape[axis] = size
    latest = c.op_type == "Resize"
    attrs: Attrs = {
        "scales": tuple(factors) if scales is not None and plain else (),
        "mode": {"bilinear": "linear"}.get(mode, mode),
        "coordinate": coordinate,
        "nearest": nearest,
        "cubic_a": c.float_attribute("cubic_coeff_a", -0.75) if latest else -0.75,
        "exclude_outside": c.bool_attribute("exclude_outside", False) if latest else False,
    }
    antialias = latest and mode != "nearest" and c.bool_attribute("antialias", False)
    if roi is not None or antialias:
        return interpolated(c, attrs, axes, shape, roi, antialias)
    changed = [axis for axis, (have, want) in enumerate(zip(x.type.shape, shape, strict=True)) if have != want]
    if mode == "cubic" and len(changed) > 2:  # its weights are products, and four to the power of the axes are many
        factors = factors if attrs["scales"] else []
        for axis in changed[:-2]:
            between = tuple(shape[axis] if number == axis else extent for number, extent in enumerate(x.type.shape))
            alone = tuple(factor if number == axis else 1.0 for number, factor in enumerate(factors))
            x = c.op("resize", x, shape=between, **{**attrs, "scales": alone})
            factors[axis : axis + 1] = [1.0] if factors else []
        attrs = {**attrs, "scales": tuple(factors)}
    return c.op("resize", x, shape=tuple(shape), **attrs)


def _region(c: Context, axes: Sequence[int]) -> list[Window]:
    """The roi of tf_crop_and_resize: start and end of each axis."""
    contents = c.need_known(1, "roi").reshape(-1)
    if contents.size != 2 * len(axes):
        c.fail(f"roi has {contents.size} numbers for {len(axes)} axes; {2 * len(axes)} are needed")
    if any(is_symbolic(number) for number in contents):
        c.unsupported("a roi that depends on the sizes of inputs")
    return [(float(contents[number]), float(contents[len(axes) + number])) for number in range(len(axes))]


def _scaled(c: Context, extent: Dim, scale: Element) -> Dim:
    """floor(extent * scale)."""
    if isinstance(scale, Ratio):
        numerator, denominator = scale.numerator, scale.denominator
        return dimension.floordiv(extent * numerator, denominator)
    if isinstance(scale, float):
        if isinstance(extent, int):
            return math.floor(extent * scale)
        fraction = Fraction(scale).limit_denominator(1 << 16)
        if float(fraction) != scale and abs(float(fraction) - scale) > 1e-7 * scale:
            c.unsupported(f"scale {scale} of a symbolic extent is not a simple ratio")
        return dimension.floordiv(extent * fraction.numerator, fraction.denominator)
    return extent * scale


def _kept_ratio(
    c: Context, sizes: Sequence[Dim], axes: Sequence[int]
) -> tuple[Sequence[Dim], Sequence[Element] | None]:
    """Sizes under keep_aspect_ratio_policy: the smallest (or largest) factor is used for every axis."""
    policy = c.text_attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return sizes, None
    if policy not in ("not_larger", "not_smaller"):
        c.fail(f"keep_aspect_ratio_policy {policy!r} is not stretch, not_larger or not_smaller")
    extents = [c.shape()[axis] for axis in axes]
    ratios = []
    for extent, size in zip(extents, sizes, strict=True):
        if not isinstance(extent, int) or not isinstance(size, int) or not extent:
            c.unsupported("keep_aspect_ratio_policy with symbolic sizes")
        ratios.append(Fraction(size, extent))
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    kept = [math.floor(ratio * int(str(extent)) + Fraction(1, 2)) for extent in extents]
    return kept, [float(ratio)] * len(kept)
