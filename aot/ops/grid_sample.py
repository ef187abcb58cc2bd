"""GATHER op `grid_sample`: an image read at places that another tensor gives."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.dims import Dim
from aot.dtypes import F32, F64, I64
from aot.expr import Expr, call, cast, const, dim, select
from aot.ir import Array, TensorType
from aot.ops.helpers import FLOAT, float_attr, need_family, need_rank, normal, wide_dtype
from aot.ops.indexing import ZERO, all_of, clamp, given
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, OpError, Sample, Source, register, same_extent

MODES = ("nearest", "linear", "cubic")
PADDINGS = ("zeros", "border", "reflection")
_TAPS = {"linear": (0, 1), "cubic": (-1, 0, 1, 2)}


def _infer(attrs: Attrs, x: TensorType, grid: TensorType) -> TensorType:
    need_family("the image", x, FLOAT)
    need_family("the grid", grid, FLOAT)
    need_rank("the image", x, 3)
    need_rank("the grid", grid, x.rank, x.rank)
    same_extent(grid.shape[-1], x.rank - 2, "the coordinates of a place and the spatial axes")
    same_extent(grid.shape[0], x.shape[0], "the batch of the image and the grid")
    if attrs["mode"] not in MODES or attrs["padding"] not in PADDINGS:
        raise OpError(f"mode is one of {MODES} and padding of {PADDINGS}")
    return TensorType(x.dtype, (*x.shape[:2], *grid.shape[1:-1]))


def _extent(extent: Dim, dtype: Any) -> Expr:
    return const(float(extent), dtype) if isinstance(extent, int) else cast(dim(extent), dtype)


def _coordinate(attrs: Attrs, place: Expr, extent: Dim) -> Expr:
    """-1 … 1 as a position along an axis: its ends are the centres of the outer pixels, or their edges."""
    if attrs["align"]:
        return (place + 1.0) * 0.5 * _extent(extent - 1, place.dtype)
    return ((place + 1.0) * _extent(extent, place.dtype) - 1.0) * 0.5


def _mirrored(attrs: Attrs, index: Expr, extent: Dim) -> Expr:
    """An index reflected into range, at pixel centres or at edges."""
    last = 2 * extent - 2 if attrs["align"] else 2 * extent - 1
    period = last if attrs["align"] else 2 * extent
    place = call("mod", index, dim(period))
    return clamp(select(call("lt", place, dim(extent)), place, dim(last) - place), extent)


def _cubic(a: float, t: Expr) -> list[Expr]:
    """Weights of four neighbours by Keys' kernel; t is how far the position is past the second."""

    def far(x: Expr) -> Expr:
        return ((x * a - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a

    def near(x: Expr) -> Expr:
        return (x * (a + 2.0) - (a + 3.0)) * x * x + 1.0

    return [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]


def _access(attrs: Attrs, sources: Sequence[Source | None], out: TensorType, indices: Sequence[Expr]) -> Expr:
    x, grid = given(sources[0]), given(sources[1])
    spatial = x.type.rank - 2
    wide = F64 if grid.type.dtype == F64 else F32
    accumulate = wide_dtype(out.dtype)
    taps: list[list[tuple[Expr, Expr | None]]] = []
    for axis in range(spatial):
        # The last spatial axis comes first in the grid.
        where = grid.at([indices[0], *indices[2:], const(spatial - 1 - axis, I64)])
        place = _coordinate(attrs, cast(where, wide), x.type.shape[2 + axis])
        if attrs["mode"] == "nearest":
            taps.append([(cast(call("round", place), I64), None)])
            continue
        floor = call("floor", place)
        part, low = place - floor, cast(floor, I64)
        weights = [1.0 - part, part] if attrs["mode"] == "linear" else _cubic(float_attr(attrs, "cubic_a"), part)
        taps.append([(low + step, weight) for step, weight in zip(_TAPS[str(attrs["mode"])], weights, strict=True)])
    total: Expr | None = None
    for corner in itertools.product(*taps):
        inside, places, weight = [], [], None
        for axis, (index, factor) in enumerate(corner):
            extent = x.type.shape[2 + axis]
            if attrs["padding"] == "reflection":
                index = _mirrored(attrs, index, extent) if extent != 1 else ZERO
            elif attrs["padding"] == "zeros":
                inside += [call("ge", index, 0), call("lt", index, dim(extent))]
            places.append(clamp(index, extent))
            weight = factor if weight is None else weight if factor is None else weight * factor
        value = x.at([*indices[:2], *places])
        if inside:
            value = select(all_of(inside), value, const(0.0, out.dtype))
        if weight is None:
            return value
        term = cast(value, accumulate) * cast(weight, accumulate)
        total = term if total is None else total + term
    assert total is not None
    return cast(total, out.dtype)


def _reference(attrs: Attrs, x: Array, grid: Array) -> Array:
    spatial, shape = x.ndim - 2, x.shape[2:]
    align, mode, padding = bool(attrs["align"]), str(attrs["mode"]), str(attrs["padding"])
    steps = (0,) if mode == "nearest" else _TAPS[mode]
    result = np.zeros((*x.shape[:2], *grid.shape[1:-1]))

    def pixel(batch: int, at: Sequence[int]) -> Array:
        final = []
        for index, n in zip(at, shape, strict=True):
            if padding == "zeros" and not 0 <= index < n:
                return np.zeros(x.shape[1])
            if padding == "border":
                index = min(max(index, 0), n - 1)
            elif padding == "reflection":
                line = [*range(n), *range(n - 2, 0, -1)] if align else [*range(n), *reversed(range(n))]
                index = line[index % len(line)]
            final.append(index)
        where: tuple[Any, ...] = (batch, slice(None), *final)
        return np.asarray(x[where]).astype(np.float64)

    a = float_attr(attrs, "cubic_a")

    def weight(distance: float) -> float:
        d = abs(distance)
        if mode == "linear":
            return max(0.0, 1.0 - d)
        if d <= 1:
            return ((a + 2) * d - (a + 3)) * d * d + 1
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a if d < 2 else 0.0

    for batch, *where in np.ndindex(grid.shape[0], *grid.shape[1:-1]):
        wide = grid[(batch, *where)][::-1].astype(np.float32 if grid.dtype != np.float64 else np.float64)
        ends = np.array(shape, wide.dtype)
        places = (wide + 1) * wide.dtype.type(0.5) * (ends - 1) if align else ((wide + 1) * ends - 1) / 2
        base = [int(v) for v in (np.rint(places) if mode == "nearest" else np.floor(places))]
        for offsets in itertools.product(steps, repeat=spatial):
            at = [b + o for b, o in zip(base, offsets, strict=True)]
            factor = 1.0
            if mode != "nearest":
                for place, index in zip(places, at, strict=True):
                    factor *= weight(float(place) - index)
            result[(batch, slice(None), *where)] += factor * pixel(batch, at)
    return result.astype(x.dtype)


def _samples(rng: Any) -> list[Sample]:
    found = []
    for mode in MODES:
        for padding in PADDINGS:
            for align in (False, True):
                attrs = {"mode": mode, "padding": padding, "align": align}
                image, grid = normal(rng, 2, 3, 5, 4), normal(rng, 2, 3, 7, 2, scale=1.0)
                found.append(Sample((image, grid), attrs, 1e-4, 1e-4))
    found.append(Sample((normal(rng, 1, 2, 3, 4, 5), normal(rng, 1, 2, 2, 3, 3, scale=0.7)), {}, 1e-4, 1e-4))
    found.append(Sample((normal(rng, 1, 1, 1, 6), normal(rng, 1, 2, 2, 2)), {"padding": "reflection"}, 1e-4, 1e-4))
    return found


register(
    OpDef(
        name="grid_sample", doc="x at the places that the grid gives per output point, as coordinates -1 to 1.",
        inputs=("x", "grid"), kind=Kind.GATHER, infer=_infer, samples=_samples, access=_access, reference=_reference,
        attrs={
            "mode": AttrSpec("str", "linear", "nearest, linear or cubic"),
            "padding": AttrSpec("str", "zeros", "zeros, border or reflection"),
            "align": AttrSpec("bool", False, "-1 and 1 are the centres of the outer pixels, not their edges"),
            "cubic_a": AttrSpec("float", -0.75),
        },
        cost_flops=40,
    )
)  # fmt: skip
