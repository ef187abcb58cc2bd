"""Converters of ops that sort, or write at computed places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim
from aot.frontend.onnx_registry import Context, Result, onnx_op
from aot.frontend.onnx_sizes import at_most
from aot.frontend.shaping import padded
from aot.ir import Value
from aot.ops.scatter import REDUCTIONS


@onnx_op("TopK")
def _top_k(c: Context) -> Result:
    x = c.input(0)
    axis = c.axis(c.int_attribute("axis", -1))
    k: Dim = c.int_attribute("k") if c.opset < 10 else c.dims(1, "k")[0]
    largest = c.bool_attribute("largest", True) if c.opset >= 11 else True
    return c.builder.op("top_k", x, axis=axis, k=at_most(c, k, x.type.shape[axis]), largest=largest)


def _reduction(c: Context, since: int) -> str:
    reduction = c.text_attribute("reduction", "none") if c.opset >= since else "none"
    if reduction not in REDUCTIONS:
        c.fail(f"reduction is one of {', '.join(REDUCTIONS)}; it is {reduction!r}")
    return reduction


@onnx_op("ScatterElements", "Scatter")
def _scatter_elements(c: Context) -> Result:
    axis = c.axis(c.int_attribute("axis", 0))
    return c.op("scatter_elements", c.input(0), c.input(1), c.input(2), axis=axis, reduction=_reduction(c, 16))


@onnx_op("ScatterND")
def _scatter_nd(c: Context) -> Result:
    return c.op("scatter_nd", c.input(0), c.input(1), c.input(2), reduction=_reduction(c, 16))


@onnx_op("TensorScatter")
def _tensor_scatter(c: Context) -> Result:
    cache, update = c.input(0), c.input(1)
    rank = cache.type.rank
    axis = c.axis(c.int_attribute("axis", -2))
    if axis == 0:
        c.fail("the axis must not be the batch")
    steps: tuple[Dim, ...] = tuple(update.type.shape[axis] if a == axis else 1 for a in range(rank))
    place = c.op("iota", shape=steps, axis=axis, start=0, step=1, dtype=dtypes.I64)
    if c.has(2):
        first = c.reshape(c.input(2), (update.type.shape[0], *(1,) * (rank - 1)))
        place = c.op("add", place, c.cast(first, dtypes.I64))
    if c.text_attribute("mode", "linear") == "circular":
        place = c.op("mod", place, c.dim_scalar(cache.type.shape[axis], dtypes.I64))
    return c.op("scatter_elements", cache, c.expand(place, update.type.shape), update, axis=axis)


@onnx_op("MaxUnpool")
def _max_unpool(c: Context) -> Result:
    x, places = c.input(0), c.input(1)
    spatial = x.type.rank - 2
    kernel = c.ints_attribute("kernel_shape")
    strides = c.ints_attribute("strides", (1,) * spatial)
    pads = c.ints_attribute("pads", (0,) * (2 * spatial))
    if not len(kernel) == len(strides) == spatial or len(pads) != 2 * spatial:
        c.fail(f"{spatial} spatial axes need as many kernel extents and strides, and twice as many pads")
    natural = tuple(
        (x.type.shape[2 + a] - 1) * strides[a] + kernel[a] - pads[a] - pads[spatial + a] for a in range(spatial)
    )
    shape: tuple[Dim, ...] = (*x.type.shape[:2], *natural)
    zeros = c.expand(c.scalar(0, x.type.dtype), (dimension.product(shape),))
    flat = (x.type.elements,)
    filled = c.op("scatter_elements", zeros, c.reshape(places, flat), c.reshape(x, flat), axis=0)
    result = c.reshape(filled, shape)
    if c.has(2):  # a larger result has zeros behind: the places are those in the natural one
        given = c.dims(2, "output_shape")
        wanted = given if len(given) == x.type.rank else (*x.type.shape[:2], *given)
        after = [want - have for want, have in zip(wanted, shape, strict=True)]
        result = padded(c.builder, result, [0] * x.type.rank, after, "constant", c.scalar(0, x.type.dtype))
    return result


@onnx_op("Col2Im")
def _col2im(c: Context) -> Result:
    x = c.input(0)
    image, block = c.dims(1, "image_shape"), c.ints(2, "block_shape")
    rank = len(block)
    if x.type.rank != 3 or len(image) != rank:
        c.fail(f"the operand must have rank 3 and the image {rank} axes; they have {x.type.rank} and {len(image)}")
    strides = c.ints_attribute("strides", (1,) * rank)
    dilations = c.ints_attribute("dilations", (1,) * rank)
    pads = c.ints_attribute("pads", (0,) * (2 * rank))
    padded = [size + pads[a] + pads[rank + a] for a, size in enumerate(image)]
    counts = [dimension.floordiv(padded[a] - dilations[a] * (block[a] - 1) - 1, strides[a]) + 1 for a in range(rank)]
    taps_count = int(np.prod(block))
    places = _block_places(c, block, counts, padded, strides, dilations)
    batch = x.type.shape[0]
    channels = dimension.exact_div(x.type.shape[1], taps_count)
    if channels is None:
        c.fail(f"{x.type.shape[1]} rows are no multiple of the {taps_count} taps of a block")
    columns: tuple[Dim, ...] = (batch, channels, taps_count * dimension.product(counts))
    updates = c.reshape(x, columns)
    zeros = c.expand(c.scalar(0, x.type.dtype), (batch, channels, dimension.product(padded)))
    indices = c.expand(places, columns)
    result = c.op("scatter_elements", zeros, indices, updates, axis=2, reduction="add")
    result = c.reshape(result, (batch, channels, *padded))
    for a, size in enumerate(image):
        result = c.slice_axis(result, 2 + a, pads[a], size)
    return result


def _block_places(
    c: Context,
    block: Sequence[int],
    counts: Sequence[Dim],
    padded: Sequence[Dim],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Value:
    """[1, 1, taps and windows]: where each tap of each window lies in the padded image, row-major."""
    rank = len(block)
    fixed = [(count, size) for count, size in zip(counts, padded, strict=True) if isinstance(count, int)]
    if len(fixed) == rank:
        taps = np.indices(block).reshape(rank, -1, 1)
        windows = np.indices(tuple(count for count, _ in fixed)).reshape(rank, 1, -1)
        where = [windows[a] * strides[a] + taps[a] * dilations[a] for a in range(rank)]
        known = np.ravel_multi_index([np.asarray(w) for w in where], tuple(int(str(size)) for _, size in fixed))
        return c.builder.const(known.reshape(1, 1, -1).astype(np.int64))
    shape: tuple[Dim, ...] = (*block, *counts)
    total: Value | None = None
    for a in range(rank):
        ends = [(a, dilations[a]), (rank + a, strides[a])]
        along = [
            c.op("iota", shape=tuple(shape[axis] if n == axis else 1 for n in range(2 * rank)), axis=axis, step=step)
            for axis, step in ends
        ]
        place = c.op("add", *along)
        size = c.dim_scalar(padded[a], dtypes.I64)
        total = place if total is None else c.op("add", c.op("mul", total, size), place)
    assert total is not None
    return c.reshape(total, (1, 1, dimension.product(shape)))
