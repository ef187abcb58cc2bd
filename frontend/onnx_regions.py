"""Converters of ops that read images at computed places: regions of interest, deformable convolutions."""

from __future__ import annotations

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim
from aot.frontend.onnx_registry import Context, Result, onnx_op


@onnx_op("RoiAlign")
def _roi_align(c: Context) -> Result:
    x, rois, batch = c.input(0), c.input(1), c.input(2)
    mode = c.text_attribute("mode", "avg")
    if mode not in ("avg", "max"):
        c.fail(f"mode {mode!r} is not avg or max")
    default = "half_pixel" if c.opset >= 16 else "output_half_pixel"
    coordinate = c.text_attribute("coordinate_transformation_mode", default) if c.opset >= 16 else default
    if coordinate not in ("half_pixel", "output_half_pixel"):
        c.fail(f"coordinate_transformation_mode {coordinate!r} is not half_pixel or output_half_pixel")
    samples = c.int_attribute("sampling_ratio", 0)
    if samples < 0:
        c.fail(f"sampling_ratio {samples} is negative")
    made = c.op(
        "roi_align", c.wide(x), c.wide(rois), c.cast(batch, dtypes.I64),
        height=c.int_attribute("output_height", 1), width=c.int_attribute("output_width", 1), samples=samples,
        scale=c.float_attribute("spatial_scale", 1.0), half_pixel=coordinate == "half_pixel", mode=mode,
    )  # fmt: skip
    return c.cast(made, x.type.dtype)


@onnx_op("MaxRoiPool")
def _max_roi_pool(c: Context) -> Result:
    x = c.input(0)
    pooled = c.ints_attribute("pooled_shape")
    if len(pooled) != 2:
        c.fail(f"pooled_shape has {len(pooled)} entries; it needs 2")
    made = c.op(
        "max_roi_pool", c.wide(x), c.wide(c.input(1)),
        height=pooled[0], width=pooled[1], scale=c.float_attribute("spatial_scale", 1.0),
    )  # fmt: skip
    return c.cast(made, x.type.dtype)


@onnx_op("DeformConv")
def _deform_conv(c: Context) -> Result:
    x, weight, offset = c.input(0), c.input(1), c.input(2)
    if x.type.rank < 3 or weight.type.rank != x.type.rank:
        c.fail(f"the operand and weights must have one rank, 3 or more; they have {x.type.rank} and {weight.type.rank}")
    spatial = x.type.rank - 2
    shape = weight.type.shape
    window = [extent for extent in c.ints_attribute("kernel_shape", shape[2:]) if isinstance(extent, int)]
    if tuple(window) != shape[2:]:
        c.fail(f"kernel_shape {window} is not that of the weights, {list(shape[2:])}")
    strides = c.ints_attribute("strides", (1,) * spatial)
    dilations = c.ints_attribute("dilations", (1,) * spatial)
    pads = c.ints_attribute("pads", (0,) * (2 * spatial))
    if not len(strides) == len(dilations) == spatial or len(pads) != 2 * spatial:
        c.fail(f"{spatial} spatial axes need as many strides and dilations, and twice as many pads")
    for axis in range(spatial):
        reach = dilations[axis] * (window[axis] - 1) + 1
        room = x.type.shape[2 + axis] + (pads[axis] + pads[spatial + axis] - reach)
        places = dimension.floordiv(room, strides[axis]) + 1
        have = offset.type.shape[2 + axis]
        if isinstance(places, int) and isinstance(have, int) and places != have:
            c.fail(f"the offsets have {have} places on spatial axis {axis}; the convolution has {places}")
    groups = c.int_attribute("group", 1)
    mask = c.wide(c.input(4)) if c.has(4) else None
    operands = [c.wide(x), c.wide(offset), *([mask] if mask is not None else [])]
    columns = c.op(
        "deform_columns", *operands, window=tuple(window), strides=strides, dilations=dilations,
        begins=pads[:spatial], groups=c.int_attribute("offset_group", 1),
    )  # fmt: skip
    outputs = dimension.exact_div(shape[0], groups)
    inputs = dimension.exact_div(x.type.shape[1], groups)
    if outputs is None or inputs is None or inputs != shape[1]:
        c.fail(f"{x.type.shape[1]} channels and weights of {list(shape)} do not fit {groups} groups")
    taps = columns.type.shape[2]
    rest = columns.type.shape[3:]
    places_count = dimension.product(rest)
    rows: tuple[Dim, ...] = (x.type.shape[0], groups, inputs * taps, places_count)
    left = c.reshape(c.wide(weight), (groups, outputs, inputs * taps))
    result = c.reshape(c.op("matmul", left, c.reshape(columns, rows)), (x.type.shape[0], shape[0], *rest))
    if c.has(3):
        result = c.op("add", result, c.reshape(c.wide(c.input(3)), (shape[0], *(1,) * spatial)))
    return c.cast(result, x.type.dtype)
