"""Transposed convolution: the gradient of a convolution as an op, lowered to one ordinary convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.dims import Dim, exact_div
from aot.ir import Array, TensorType, Value
from aot.ops.helpers import FLOAT, int_attr, ints_attr, need_family, need_rank, need_same_dtype, normal
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, OpError, Sample, register, same_extent
from aot.ops.window import Geometry, accumulator, check_bias, geometry, window_attrs

if TYPE_CHECKING:
    from aot.builder import Builder


def _geometry(attrs: Attrs, w: Sequence[Dim]) -> tuple[Geometry, tuple[int, ...]]:
    window = [extent for extent in w[2:] if isinstance(extent, int)]
    if len(window) != len(w) - 2:
        raise OpError("conv_transpose's window must have a fixed shape")
    g = geometry(attrs, window)
    extra = ints_attr(attrs, "output_padding")
    if len(extra) != len(window) or min(extra, default=0) < 0:
        raise OpError(f"output_padding {extra} must be {len(window)} numbers, none negative")
    return g, extra


def _infer(attrs: Attrs, x: TensorType, w: TensorType, bias: TensorType | None = None) -> TensorType:
    need_family("conv_transpose's operands", x, FLOAT)
    dtype = need_same_dtype(x, w)
    need_rank("conv_transpose's input", x, 3)
    need_rank("conv_transpose's weight", w, x.rank, x.rank)
    same_extent(x.shape[1], w.shape[0], "conv_transpose's input channels and weight.shape[0]")
    g, extra = _geometry(attrs, w.shape)
    groups = int_attr(attrs, "groups")
    if groups < 1 or exact_div(w.shape[0], groups) is None:
        raise OpError(f"{w.shape[0]} input channels do not divide into {groups} groups")
    check_bias(x, bias, w.shape[1] * groups)
    spatial: list[Dim] = []
    for axis, extent in enumerate(x.shape[2:]):
        size = (extent - 1) * g.strides[axis] + (g.reach[axis] + extra[axis] - g.begins[axis] - g.ends[axis])
        if isinstance(size, int) and size < 0:
            raise OpError(f"pads {g.begins[axis]} and {g.ends[axis]} leave nothing of spatial axis {axis}")
        spatial.append(size)
    return TensorType(dtype, (x.shape[0], w.shape[1] * groups, *spatial))


def _reference(attrs: Attrs, x: Array, w: Array, bias: Array | None = None) -> Array:
    """Every input element adds its multiple of the weights where they lie: a scatter."""
    g, extra = _geometry(attrs, w.shape)
    groups = int_attr(attrs, "groups")
    batch, channels, *extents = x.shape
    inputs, outputs = channels // groups, w.shape[1]
    dtype = accumulator(x, batch * w.size * math.prod(extents))
    full = [(n - 1) * s + r + p for n, s, r, p in zip(extents, g.strides, g.reach, extra, strict=True)]
    total = np.zeros((batch, groups, outputs, *full), dtype)
    columns = x.astype(dtype).reshape(batch, groups, inputs, math.prod(extents))
    weights = w.astype(dtype).reshape(groups, inputs, outputs, *g.window)
    with np.errstate(all="ignore"):
        for tap in np.ndindex(*g.window):
            factors = weights[(slice(None), slice(None), slice(None), *tap)].transpose(0, 2, 1)
            part = np.matmul(factors[None], columns).reshape(batch, groups, outputs, *extents)
            places = [
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, s, n in zip(tap, g.dilations, g.strides, extents, strict=True)
            ]
            total[(slice(None), slice(None), slice(None), *places)] += part
        kept = [slice(b, n - e) for b, e, n in zip(g.begins, g.ends, full, strict=True)]
        result = total[(slice(None), slice(None), slice(None), *kept)]
        result = result.reshape(batch, groups * outputs, *result.shape[3:])
        if bias is not None:
            result = result + bias.astype(dtype).reshape(1, -1, *(1,) * len(extents))
        return result.astype(x.dtype)


def _all_of(builder: Builder, x: Value, axis: int, start: Dim, size: Dim, step: int = 1) -> Value:
    """A slice of one axis."""
    rank = x.type.rank
    if start == 0 and step == 1 and size == x.type.shape[axis]:
        return x
    starts: list[Dim] = [0] * rank
    sizes = list(x.type.shape)
    steps = [1] * rank
    starts[axis], sizes[axis], steps[axis] = start, size, step
    result: Value = builder.slice(x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))
    return result


def _pad_end(builder: Builder, x: Value, axis: int, count: int) -> Value:
    if not count:
        return x
    rank = x.type.rank
    after = tuple(count if position == axis else 0 for position in range(rank))
    result: Value = builder.pad(x, before=(0,) * rank, after=after)
    return result


def _rearranged(builder: Builder, w: Value, g: Geometry, groups: int) -> Value:
    """Weights [C, O/g, k…] as [O * prod(strides), C/g, taps…] of the equal ordinary convolution.

    Output position q * stride + r reads input q - u through weight u * stride + r, so each
    residue r becomes an output channel of its own with ceil(k / stride) taps, reversed.
    """
    spatial = len(g.window)
    for axis, (window, dilation, reach) in enumerate(zip(g.window, g.dilations, g.reach, strict=True)):
        if dilation > 1:  # write the gaps out as zeros
            shape = w.type.shape
            at = axis + 2
            w = builder.reshape(w, shape=(*shape[:at], window, 1, *shape[at + 1 :]))
            w = _pad_end(builder, w, at + 1, dilation - 1)
            w = builder.reshape(w, shape=(*shape[:at], window * dilation, *shape[at + 1 :]))
            w = _all_of(builder, w, at, 0, reach)
    taps = [-(-reach // stride) for reach, stride in zip(g.reach, g.strides, strict=True)]
    for axis in range(spatial):
        w = _pad_end(builder, w, axis + 2, taps[axis] * g.strides[axis] - g.reach[axis])
    channels, outputs = w.type.shape[:2]
    inputs = exact_div(channels, groups)
    assert inputs is not None
    split = [extent for pair in zip(taps, g.strides, strict=True) for extent in pair]
    w = builder.reshape(w, shape=(groups, inputs, outputs, *split))
    residues = [4 + 2 * axis for axis in range(spatial)]
    positions = [3 + 2 * axis for axis in range(spatial)]
    # Residues outside of channels: channels-last, the residues of the last axis then lie in place already.
    w = builder.transpose(w, perm=(0, *residues, 2, 1, *positions))
    for axis in range(spatial):
        at = w.type.rank - spatial + axis
        if taps[axis] > 1:
            w = _all_of(builder, w, at, taps[axis] - 1, taps[axis], -1)
    result: Value = builder.reshape(w, shape=(groups * outputs * math.prod(g.strides), inputs, *taps))
    return result


def _decompose(builder: Builder, attrs: Attrs, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
    x, w, *rest = inputs
    bias = rest[0] if rest else None
    assert x is not None and w is not None
    g, extra = _geometry(attrs, w.type.shape)
    groups = int_attr(attrs, "groups")
    spatial = len(g.window)
    each = w.type.shape[1]
    outputs = each * groups
    residues = math.prod(g.strides)
    begins, ends, crops, sizes = [], [], [], []
    for axis, extent in enumerate(x.type.shape[2:]):
        stride = g.strides[axis]
        taps = -(-g.reach[axis] // stride)
        # Windows q = skipped … of the whole result; its first `begins` elements are cropped.
        skipped = min(g.begins[axis] // stride, taps - 1)
        begins.append(taps - 1 - skipped)
        # floordiv of a negative number is meant: trailing windows may be left out, not input.
        ends.append(max(-(-(g.reach[axis] + extra[axis] - g.ends[axis]) // stride) - 1, 0))
        crops.append(g.begins[axis] - skipped * stride)
        sizes.append((extent - 1) * stride + (g.reach[axis] + extra[axis] - g.begins[axis] - g.ends[axis]))
    if bias is not None and residues > 1:
        bias = builder.expand(builder.reshape(bias, shape=(groups, 1, each)), shape=(groups, residues, each))
        bias = builder.reshape(bias, shape=(outputs * residues,))
    y = builder.conv(
        x, _rearranged(builder, w, g, groups), *((bias,) if bias is not None else ()),
        strides=(1,) * spatial, pads=(*begins, *ends), dilations=(1,) * spatial, groups=groups,
    )  # fmt: skip
    if residues > 1:
        batch, _, *windows = y.type.shape
        y = builder.reshape(y, shape=(batch, groups, *g.strides, each, *windows))
        order = [axis for position in range(spatial) for axis in (3 + spatial + position, 2 + position)]
        y = builder.transpose(y, perm=(0, 1, 2 + spatial, *order))
        merged = tuple(window * stride for window, stride in zip(windows, g.strides, strict=True))
        y = builder.reshape(y, shape=(batch, outputs, *merged))
    for axis in range(spatial):
        y = _all_of(builder, y, axis + 2, crops[axis], sizes[axis])
    return (y,)


def _samples(rng: Any) -> list[Sample]:
    def case(
        x: Sequence[int], w: Sequence[int], bias: int, attrs: dict[str, Any], extra: Sequence[int] = (0, 0)
    ) -> Sample:
        operands = (normal(rng, *x), normal(rng, *w), *((normal(rng, bias),) if bias else ()))
        return Sample(operands, {**attrs, "output_padding": tuple(extra)}, 1e-4, 1e-4)

    return [
        case((2, 3, 4, 5), (3, 4, 2, 2), 4, window_attrs((2, 2), (0, 0, 0, 0), (1, 1))),
        case((1, 5, 4, 3), (5, 2, 3, 3), 2, window_attrs((2, 2), (1, 1, 1, 1), (1, 1)), (1, 1)),
        case((1, 4, 5, 5), (4, 3, 4, 4), 0, window_attrs((2, 2), (1, 1, 1, 1), (1, 1))),
        case((1, 2, 6, 4), (2, 3, 3, 3), 3, window_attrs((1, 1), (1, 0, 1, 2), (1, 1))),
        case((2, 4, 3, 4), (4, 3, 3, 2), 6, window_attrs((3, 2), (0, 1, 1, 0), (1, 1), groups=2), (2, 0)),
        case((1, 3, 4, 4), (3, 1, 3, 3), 3, window_attrs((2, 2), (1, 1, 0, 0), (1, 1), groups=3)),
        case((1, 2, 4, 4), (2, 2, 3, 2), 0, window_attrs((2, 1), (2, 0, 1, 1), (2, 3)), (1, 0)),
        case((1, 2, 7), (2, 3, 5), 3, window_attrs((4,), (3, 1), (1,)), (2,)),
        case((1, 2, 3), (2, 1, 2), 1, window_attrs((5,), (1, 3), (1,)), (3,)),
        case((1, 2, 2, 3, 2), (2, 2, 3, 2, 2), 0, window_attrs((2, 1, 2), (1, 0, 0, 0, 1, 0), (1, 1, 1)), (0, 0, 0)),
        case((1, 1, 1, 1), (1, 1, 1, 1), 0, window_attrs((1, 1), (0, 0, 0, 0), (1, 1))),
        case((1, 1, 5, 5), (1, 1, 3, 3), 0, window_attrs((1, 1), (4, 3, 3, 4), (1, 1))),
    ]


register(
    OpDef(
        name="conv_transpose", doc="Transposed convolution of [N, C, …] with [C, O / groups, …], plus a bias.",
        inputs=("x", "w", "bias?"), kind=Kind.WINDOW, infer=_infer, samples=_samples,
        attrs={
            "strides": AttrSpec("ints"),
            "pads": AttrSpec("ints", doc="begins, then ends; they crop the result"),
            "dilations": AttrSpec("ints"),
            "output_padding": AttrSpec("ints", doc="extra extent at the ends"),
            "groups": AttrSpec("int", 1),
        },
        reference=_reference, decompose=_decompose, cost_flops=2,
    )
)  # fmt: skip
