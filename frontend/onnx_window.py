"""Converters of convolutions and pooling."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim
from aot.frontend.onnx_registry import Context, Result, onnx_op
from aot.frontend.shaping import padded
from aot.ir import Attr, Value

LARGEST_INDEXED_WINDOW = 64
"""Elements of a window up to which the places of its maxima are found: each is a read of its own."""


@dataclass
class Window:
    """The attributes that convolutions and pools share; one entry per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: list[Dim]
    ends: list[Dim]

    @property
    def reach(self) -> tuple[int, ...]:
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def pads(self) -> tuple[Dim, ...]:
        return (*self.begins, *self.ends)


def _kernel_of_weight(c: Context, weight: Value) -> tuple[int, ...]:
    kernel = tuple(extent for extent in weight.type.shape[2:] if isinstance(extent, int))
    if len(kernel) != weight.type.rank - 2:
        c.unsupported("a convolution whose window size is only known when running")
    if c.has_attribute("kernel_shape") and c.ints_attribute("kernel_shape") != kernel:
        c.fail(f"kernel_shape {list(c.ints_attribute('kernel_shape'))} is not the weight's {list(kernel)}")
    return kernel


def _window(c: Context, kernel: tuple[int, ...], transposed: bool = False) -> Window:
    """Reads strides, dilations and pads. auto_pad of a forward window is resolved."""
    spatial = len(kernel)
    extents = c.shape()[2:]
    if len(extents) != spatial or not spatial:
        c.fail(f"the operand has {len(extents)} spatial axes; the window has {spatial}")
    strides = c.ints_attribute("strides", (1,) * spatial)
    dilations = c.ints_attribute("dilations", (1,) * spatial)
    pads = c.ints_attribute("pads", (0,) * 2 * spatial)
    if len(strides) != spatial or len(dilations) != spatial or len(pads) != 2 * spatial:
        c.fail(f"strides, dilations and pads must have {spatial}, {spatial} and {2 * spatial} entries")
    if min((*strides, *dilations, *kernel)) < 1:
        c.fail("window, strides and dilations must be positive")
    window = Window(kernel, strides, dilations, list(pads[:spatial]), list(pads[spatial:]))
    auto_pad = c.text_attribute("auto_pad", "NOTSET")
    if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", ""):
        c.fail(f"auto_pad {auto_pad!r} is not NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    if auto_pad == "VALID":
        window.begins, window.ends = [0] * spatial, [0] * spatial
    elif auto_pad.startswith("SAME") and not transposed:
        for axis, (extent, stride, reach) in enumerate(zip(extents, strides, window.reach, strict=True)):
            count = dimension.ceildiv(extent, stride)
            total = dimension.maximum((count - 1) * stride + reach - extent, 0)
            small = dimension.floordiv(total, 2)
            window.begins[axis] = small if auto_pad == "SAME_UPPER" else total - small
            window.ends[axis] = total - window.begins[axis]
    return window


def _plain_pads(c: Context, x: Value, window: Window, fill: Value | None) -> tuple[Value, tuple[int, ...]]:
    """The operand and non-negative plain pads: negative ones cut, symbolic ones become a pad op."""
    begins, ends = list(window.begins), list(window.ends)
    for axis in range(len(begins)):
        symbolic = not isinstance(begins[axis], int) or not isinstance(ends[axis], int)
        amounts = [begins[axis], ends[axis]]
        explicit = amounts if symbolic else [min(int(str(a)), 0) for a in amounts]
        if any(amount != 0 for amount in explicit):
            before: list[Dim] = [0] * x.type.rank
            after: list[Dim] = [0] * x.type.rank
            before[axis + 2], after[axis + 2] = explicit
            x = padded(c.builder, x, before, after, "constant", fill)
            begins[axis], ends[axis] = begins[axis] - explicit[0], ends[axis] - explicit[1]
    pads = tuple(amount for amount in (*begins, *ends) if isinstance(amount, int))
    return x, pads


@onnx_op("Conv")
def _conv(c: Context) -> Result:
    x, attrs = convolution(c, c.input(0), c.input(1), None)
    return c.op("conv", x, c.input(1), c.optional(2), **attrs)


def convolution(c: Context, x: Value, weight: Value, fill: Value | None) -> tuple[Value, dict[str, Attr]]:
    """The operand and the attributes of a conv op of a node like Conv; `fill` is outside of the operand, None: 0."""
    if weight.type.rank != c.rank():
        c.fail(f"the operand has rank {c.rank()}, the weight {weight.type.rank}")
    window = _window(c, _kernel_of_weight(c, weight))
    x, pads = _plain_pads(c, x, window, fill)
    spatial = len(window.kernel)
    for axis, reach in enumerate(window.reach):
        room = x.type.shape[2 + axis] + (pads[axis] + pads[spatial + axis] - reach)
        if not isinstance(room, int):
            c.builder.room.setdefault(room, c.where)
    attrs = {"strides": window.strides, "pads": pads, "dilations": window.dilations}
    return x, {**attrs, "groups": c.int_attribute("group", 1)}


@onnx_op("ConvTranspose")
def _conv_transpose(c: Context) -> Result:
    x, weight = c.input(0), c.input(1)
    if weight.type.rank != x.type.rank:
        c.fail(f"the operand has rank {x.type.rank}, the weight {weight.type.rank}")
    window = _window(c, _kernel_of_weight(c, weight), transposed=True)
    spatial = len(window.kernel)
    extra = list(c.ints_attribute("output_padding", (0,) * spatial))
    if len(extra) != spatial or min(extra, default=0) < 0:
        c.fail(f"output_padding must be {spatial} numbers, none negative")
    auto_pad = c.text_attribute("auto_pad", "NOTSET")
    wanted: Sequence[Dim] | None = None
    if c.has_attribute("output_shape"):
        given = c.ints_attribute("output_shape")
        if len(given) not in (spatial, spatial + 2):
            c.fail(f"output_shape must have {spatial} entries")
        wanted = given[-spatial:]
    elif auto_pad.startswith("SAME"):
        wanted = [extent * stride for extent, stride in zip(x.type.shape[2:], window.strides, strict=True)]
    if wanted is not None:
        for axis in range(spatial):
            extent, stride = x.type.shape[2 + axis], window.strides[axis]
            full = (extent - 1) * stride + extra[axis] + window.reach[axis]
            total = full - wanted[axis]
            if not isinstance(total, int):
                c.unsupported("output_shape with symbolic spatial sizes")
            if total < 0:  # more is wanted than the windows reach: zeros at the end
                extra[axis] -= total
                total = 0
            small = total // 2
            # The odd element is cut at the end for SAME_UPPER and at the start otherwise.
            window.begins[axis] = small if auto_pad == "SAME_UPPER" else total - small
            window.ends[axis] = total - window.begins[axis]
    pads = tuple(pad for pad in window.pads if isinstance(pad, int))
    if min(pads, default=0) < 0:
        c.unsupported("ConvTranspose with negative pads")
    return c.op(
        "conv_transpose",
        x,
        weight,
        c.optional(2),
        strides=window.strides,
        pads=pads,
        dilations=window.dilations,
        output_padding=tuple(extra),
        groups=c.int_attribute("group", 1),
    )


def _pool_window(c: Context) -> Window:
    if c.rank() < 3:
        c.fail(f"the operand must have rank 3 or more; it has rank {c.rank()}")
    return _window(c, c.ints_attribute("kernel_shape"))


@onnx_op("MaxPool")
def _max_pool(c: Context) -> Result:
    window = _pool_window(c)
    x = c.input(0)
    lowest: float | int = -float("inf")
    if not x.type.dtype.is_float:
        lowest = -(1 << (x.type.dtype.bits - 1)) if x.type.dtype.family == "int" else 0
    x, pads = _plain_pads(c, x, window, c.scalar(lowest, x.type.dtype))
    result = c.op(
        "max_pool",
        x,
        window=window.kernel,
        strides=window.strides,
        pads=pads,
        dilations=window.dilations,
        ceil=c.bool_attribute("ceil_mode", False),
    )
    return (result, _winners(c, result, lowest)) if c.wants(1) else result


def _winners(c: Context, result: Value, lowest: float | int) -> Value:
    """The flat position of every maximum of a MaxPool in its operand: the first of equal ones in a window."""
    window = _pool_window(c)
    x = c.input(0)
    rank, spatial = x.type.rank, x.type.rank - 2
    taps = list(itertools.product(*map(range, window.kernel)))
    if len(taps) > LARGEST_INDEXED_WINDOW:
        c.unsupported(f"the Indices result for windows of more than {LARGEST_INDEXED_WINDOW} elements")
    extents = result.type.shape[2:]
    after: list[Dim] = [0, 0]
    for axis in range(spatial):
        last = (extents[axis] - 1) * window.strides[axis] + window.reach[axis]
        after.append(dimension.maximum(last - window.begins[axis] - x.type.shape[2 + axis], 0))
    around = padded(c.builder, x, [0, 0, *window.begins], after, "constant", c.scalar(lowest, x.type.dtype))
    steps: list[Dim] = [1] * rank
    order = range(rank - 1, 1, -1)
    if c.int_attribute("storage_order", 0):
        order = range(2, rank)
    step: Dim = 1
    for axis in order:
        steps[axis] = step
        step = step * x.type.shape[axis]
    steps[1], steps[0] = step, step * x.type.shape[1]

    def along(axis: int, start: Dim, stride: int) -> Value:
        shape = tuple(extent if a == axis else 1 for a, extent in enumerate(result.type.shape))
        counted = c.op("iota", shape=shape, axis=axis, start=0, step=stride, dtype=dtypes.I64)
        moved = c.op("add", counted, c.dim_scalar(start, dtypes.I64))
        return c.op("mul", moved, c.dim_scalar(steps[axis], dtypes.I64))

    best: Value | None = None
    place: Value | None = None
    for tap in taps:
        offsets = [t * d for t, d in zip(tap, window.dilations, strict=True)]
        value = c.op("slice", around, starts=(0, 0, *offsets), sizes=result.type.shape, steps=(1, 1, *window.strides))
        here = c.op("add", along(0, 0, 1), along(1, 0, 1))
        for axis in range(spatial):
            here = c.op("add", here, along(2 + axis, offsets[axis] - window.begins[axis], window.strides[axis]))
        if best is None or place is None:
            best, place = value, c.expand(here, result.type.shape)
            continue
        better = c.op("gt", value, best)
        best, place = c.op("where", better, value, best), c.op("where", better, here, place)
    assert place is not None
    return place


@onnx_op("AveragePool")
def _average_pool(c: Context) -> Result:
    window = _pool_window(c)
    include = c.bool_attribute("count_include_pad", False)
    if not include and any(not isinstance(pad, int) for pad in window.pads):
        c.unsupported("auto_pad of AveragePool with symbolic spatial sizes, strides above 1 and padding not counted")
    return _average(c, c.input(0), window, include, c.bool_attribute("ceil_mode", False))


def _average(c: Context, x: Value, window: Window, include: bool, ceil: bool) -> Value:
    x, pads = _plain_pads(c, x, window, None)
    return c.op(
        "avg_pool",
        x,
        window=window.kernel,
        strides=window.strides,
        pads=pads,
        dilations=window.dilations,
        ceil=ceil,
        include_pad=include,
    )


@onnx_op("LpPool")
def _lp_pool(c: Context) -> Result:
    window = _pool_window(c)
    x = c.input(0)
    power = c.int_attribute("p", 2)
    if c.bool_attribute("ceil_mode", False):
        for axis, (extent, stride, reach) in enumerate(zip(c.shape()[2:], window.strides, window.reach, strict=True)):
            room = extent + window.begins[axis] + window.ends[axis] - reach
            last = dimension.minimum(
                dimension.ceildiv(room, stride), dimension.ceildiv(extent + window.begins[axis], stride) - 1
            )
            window.ends[axis] = window.ends[axis] + dimension.maximum(last * stride - room, 0)
    spatial = x.type.rank - 2
    before: list[Dim] = [0, 0, *window.begins]
    after: list[Dim] = [0, 0, *window.ends]
    powered = padded(c.builder, _powered(c, x, power), before, after, "constant", None)
    bare = Window(window.kernel, window.strides, window.dilations, [0] * spatial, [0] * spatial)
    mean = _average(c, powered, bare, True, False)
    count = dimension.product(window.kernel)
    assert isinstance(count, int)
    return _rooted(c, c.op("mul", mean, c.scalar(float(count), x.type.dtype)), power)


def _powered(c: Context, x: Value, power: int) -> Value:
    if power < 1:
        c.fail(f"p must be positive; it is {power}")
    if power == 2:
        return c.op("mul", x, x)
    size = c.op("abs", x)
    return size if power == 1 else c.op("pow", size, c.scalar(float(power), x.type.dtype))


def _rooted(c: Context, x: Value, power: int) -> Value:
    if power == 1:
        return x
    return c.op("sqrt", x) if power == 2 else c.op("pow", x, c.scalar(1.0 / power, x.type.dtype))


@onnx_op("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(c: Context) -> Result:
    x = c.input(0)
    if x.type.rank < 3:
        c.fail(f"the operand must have rank 3 or more; it has rank {x.type.rank}")
    axes = tuple(range(2, x.type.rank))
    if c.op_type == "GlobalMaxPool":
        return c.op("reduce_max", x, axes=axes, keepdims=True)
    if c.op_type == "GlobalAveragePool":
        return c.op("reduce_mean", x, axes=axes, keepdims=True)
    power = c.int_attribute("p", 2)
    return _rooted(c, c.op("reduce_sum", _powered(c, x, power), axes=axes, keepdims=True), power)


@onnx_op("LRN")
def _lrn(c: Context) -> Result:
    x = c.input(0)
    size = c.int_attribute("size")
    if x.type.rank < 3 or size < 1:
        c.fail(f"the operand must have rank 3 or more and size be positive; they are {x.type.rank} and {size}")
    alpha, beta = c.float_attribute("alpha", 0.0001), c.float_attribute("beta", 0.75)
    bias = c.float_attribute("bias", 1.0)
    batch, channels = x.type.shape[:2]
    rest = dimension.product(x.type.shape[2:])
    squares = c.reshape(c.op("mul", x, x), (batch, 1, channels, rest))
    # The mean over `size` channels, zeros outside counted, is the sum / size that the formula has.
    window = Window((size, 1), (1, 1), (1, 1), [(size - 1) // 2, 0], [size // 2, 0])
    mean = c.reshape(_average(c, squares, window, True, False), x.type.shape)
    dtype = x.type.dtype
    base = c.op("add", c.op("mul", mean, c.scalar(alpha, dtype)), c.scalar(bias, dtype))
    return c.op("div", x, c.op("pow", base, c.scalar(beta, dtype)))
