"""GATHER op `deform_columns`: what each tap of a deformable convolution reads, for every place of its result.

The convolution is this gather and a matrix product with the weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.dims import Dim, exact_div
from aot.dtypes import I64
from aot.expr import Expr, call, cast, const, dim, select
from aot.ir import Array, TensorType
from aot.ops.helpers import FLOAT, int_attr, ints_attr, need_family, need_rank, need_same_dtype, normal, wide_dtype
from aot.ops.indexing import ZERO, all_of, clamp, given
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, OpError, Sample, Source, register, same_extent


def _taps(attrs: Attrs, spatial: int) -> list[tuple[int, ...]]:
    """The taps of the window, in order, as offsets from its first one before dilation."""
    lists = [ints_attr(attrs, name) for name in ("window", "strides", "dilations", "begins")]
    if any(len(entries) != spatial for entries in lists) or any(min(entries) < 1 for entries in lists[:3]):
        raise OpError(f"window, strides, dilations and begins must be {spatial} numbers, the first three positive")
    return list(np.ndindex(*lists[0]))


def _infer(attrs: Attrs, x: TensorType, offset: TensorType, mask: TensorType | None = None) -> TensorType:
    need_family("deform_columns' operands", x, FLOAT)
    dtype = need_same_dtype(x, offset, *(() if mask is None else (mask,)))
    need_rank("the image", x, 3)
    need_rank("the offsets", offset, x.rank, x.rank)
    spatial, groups = x.rank - 2, int_attr(attrs, "groups")
    taps = len(_taps(attrs, spatial))
    if groups < 1 or exact_div(x.shape[1], groups) is None:
        raise OpError(f"{x.shape[1]} channels do not divide into {groups} groups of offsets")
    same_extent(offset.shape[0], x.shape[0], "the batch of the image and the offsets")
    same_extent(offset.shape[1], groups * taps * spatial, "the channels of the offsets and the taps' coordinates")
    if mask is not None:
        need_rank("the mask", mask, x.rank, x.rank)
        same_extent(mask.shape[0], x.shape[0], "the batch of the image and the mask")
        same_extent(mask.shape[1], groups * taps, "the channels of the mask and the taps")
        for axis in range(2, x.rank):
            same_extent(mask.shape[axis], offset.shape[axis], "the places of the mask and the offsets")
    return TensorType(dtype, (x.shape[0], x.shape[1], taps, *offset.shape[2:]))


def _access(attrs: Attrs, sources: Sequence[Source | None], out: TensorType, indices: Sequence[Expr]) -> Expr:
    x, offset, mask = given(sources[0]), given(sources[1]), sources[2] if len(sources) > 2 else None
    spatial, groups = x.type.rank - 2, int_attr(attrs, "groups")
    window, strides = ints_attr(attrs, "window"), ints_attr(attrs, "strides")
    dilations, begins = ints_attr(attrs, "dilations"), ints_attr(attrs, "begins")
    taps = len(_taps(attrs, spatial))
    batch, channel, tap, *places = indices
    per_group: Dim = exact_div(x.type.shape[1], groups) or 1
    group = call("floordiv", channel, dim(per_group)) if groups > 1 else ZERO
    number = group * taps + tap
    wide = wide_dtype(out.dtype)
    corners: list[list[tuple[Expr, Expr]]] = []
    rest = tap
    steps: list[Expr] = []
    for extent in reversed(window):
        steps.append(call("mod", rest, const(extent, I64)) if extent > 1 else ZERO)
        rest = call("floordiv", rest, const(extent, I64)) if extent > 1 else rest
    for axis in range(spatial):
        start = places[axis] * strides[axis] + steps[spatial - 1 - axis] * dilations[axis] - begins[axis]
        moved = offset.at([batch, number * spatial + const(axis, I64), *places])
        place = cast(start, wide) + cast(moved, wide)
        floor = call("floor", place)
        part, low = place - floor, cast(floor, I64)
        corners.append([(low, 1.0 - part), (low + 1, part)])
    total: Expr | None = None
    for corner in itertools.product(*corners):
        inside, found, weight = [], [], None
        for axis, (index, factor) in enumerate(corner):
            extent_of = x.type.shape[2 + axis]
            inside += [call("ge", index, 0), call("lt", index, dim(extent_of))]
            found.append(clamp(index, extent_of))
            weight = factor if weight is None else weight * factor
        assert weight is not None
        value = select(all_of(inside), x.at([batch, channel, *found]), const(0.0, out.dtype))
        term = cast(value, wide) * weight
        total = term if total is None else total + term
    assert total is not None
    if mask is not None:
        total = total * cast(mask.at([batch, number, *places]), wide)
    return cast(total, out.dtype)


def _reference(attrs: Attrs, x: Array, offset: Array, mask: Array | None = None) -> Array:
    spatial, groups = x.ndim - 2, int_attr(attrs, "groups")
    strides, dilations = ints_attr(attrs, "strides"), ints_attr(attrs, "dilations")
    begins = ints_attr(attrs, "begins")
    taps = _taps(attrs, spatial)
    result = np.zeros((*x.shape[:2], len(taps), *offset.shape[2:]))
    per_group = x.shape[1] // groups
    for batch, group, tap, *places in np.ndindex(x.shape[0], groups, len(taps), *offset.shape[2:]):
        number = group * len(taps) + tap
        where = [
            places[a] * strides[a] + taps[tap][a] * dilations[a] - begins[a]
            + float(offset[(batch, number * spatial + a, *places)])
            for a in range(spatial)
        ]  # fmt: skip
        channels = slice(group * per_group, (group + 1) * per_group)
        for corner in itertools.product((0, 1), repeat=spatial):
            at = [int(np.floor(w)) + step for w, step in zip(where, corner, strict=True)]
            if all(0 <= i < n for i, n in zip(at, x.shape[2:], strict=True)):
                weight = np.prod([1 - abs(w - i) for w, i in zip(where, at, strict=True)])
                result[(batch, channels, tap, *places)] += weight * x[(batch, channels, *at)]
        if mask is not None:
            result[(batch, channels, tap, *places)] *= mask[(batch, number, *places)]
    return result.astype(x.dtype)


def _samples(rng: Any) -> list[Sample]:
    found = []
    for window, strides, dilations, begins, groups, masked in (
        ((3, 3), (1, 1), (1, 1), (1, 1), 1, True), ((2, 3), (2, 1), (1, 2), (0, 1), 2, False),
        ((1, 1), (1, 1), (1, 1), (0, 0), 2, True),
    ):  # fmt: skip
        taps = window[0] * window[1]
        attrs: dict[str, Any] = {
            "window": window,
            "strides": strides,
            "dilations": dilations,
            "begins": begins,
            "groups": groups,
        }
        operands = [normal(rng, 2, 4, 6, 7), normal(rng, 2, groups * taps * 2, 4, 5)]
        if masked:
            operands.append(normal(rng, 2, groups * taps, 4, 5))
        found.append(Sample(tuple(operands), attrs, 1e-4, 1e-4))
    line: dict[str, Any] = {"window": (3,), "strides": (1,), "dilations": (2,), "begins": (1,)}
    found.append(Sample((normal(rng, 1, 2, 9), normal(rng, 1, 3, 7)), line, 1e-4, 1e-4))
    return found


register(
    OpDef(
        name="deform_columns",
        doc="x at each tap of a window that offsets move, [batch, channel, tap, place]; 0 outside, times the mask.",
        inputs=("x", "offset", "mask?"), kind=Kind.GATHER, infer=_infer, samples=_samples, access=_access,
        reference=_reference, cost_flops=30,
        attrs={
            "window": AttrSpec("ints"), "strides": AttrSpec("ints"), "dilations": AttrSpec("ints"),
            "begins": AttrSpec("ints", doc="padding before each axis"),
            "groups": AttrSpec("int", 1, "groups of channels with offsets of their own"),
        },
    )
)  # fmt: skip
