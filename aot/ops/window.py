"""WINDOW ops: convolution and pooling over any number of spatial axes, [N, C, spatial…]."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot import dims as dimension
from aot.dims import Dim
from aot.dtypes import DType
from aot.ir import Array, TensorType
from aot.ops.contract import WIDE_REFERENCE_LIMIT
from aot.ops.helpers import (
    FLOAT,
    NUMERIC,
    int_attr,
    integers,
    ints_attr,
    need_family,
    need_rank,
    need_same_dtype,
    normal,
)
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, OpError, Sample, register, same_extent
from aot.ops.reduce import lowest

CONVS = frozenset({"conv", "conv_8bit"})
"""Convolutions, of whatever element types."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a window slides: one entry per spatial axis."""

    window: tuple[int, ...]
    strides: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def reach(self) -> tuple[int, ...]:
        """The extent that one window covers, dilation included."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.window, self.dilations, strict=True))


def geometry(attrs: Attrs, window: Sequence[int]) -> Geometry:
    """Reads and checks strides, pads and dilations; raises OpError."""
    spatial = len(window)
    strides, pads, dilations = (ints_attr(attrs, name) for name in ("strides", "pads", "dilations"))
    if len(strides) != spatial or len(dilations) != spatial or len(pads) != 2 * spatial:
        raise OpError(
            f"{spatial} spatial axes need {spatial} strides, {spatial} dilations and {2 * spatial} pads; "
            f"there are {len(strides)}, {len(dilations)} and {len(pads)}"
        )
    if min((*strides, *dilations, *window), default=1) < 1:
        raise OpError(f"window {tuple(window)}, strides {strides} and dilations {dilations} must be positive")
    if min(pads, default=0) < 0:
        raise OpError(f"pads {pads} must not be negative")
    return Geometry(tuple(window), strides, pads[:spatial], pads[spatial:], dilations)


def sliding_extent(extent: Dim, reach: int, stride: int, begin: int, end: int, ceil: bool = False) -> Dim:
    """How many windows fit. With `ceil`, one more may hang over the end, if it starts before it."""
    room = extent + (begin + end - reach)
    if isinstance(room, int) and room < 0 and not (ceil and room > -stride):
        raise OpError(f"a window of reach {reach} does not fit extent {extent} padded by {begin} and {end}")
    if not ceil:
        return dimension.floordiv(room, stride) + 1
    return dimension.minimum(dimension.ceildiv(room, stride) + 1, dimension.ceildiv(extent + begin, stride))


def _static(shape: Sequence[Dim], what: str) -> tuple[int, ...]:
    found = []
    for extent in shape:
        if not isinstance(extent, int):
            raise OpError(f"{what} must have a fixed shape; an extent is {extent}")
        found.append(extent)
    return tuple(found)


# Convolution.


def conv_type(attrs: Attrs, x: TensorType, w: TensorType, dtype: DType) -> TensorType:
    """The type of a convolution's result, whose elements are of a type; raises OpError where shapes do not fit."""
    need_rank("conv's input", x, 3)
    need_rank("conv's weight", w, x.rank, x.rank)
    g = geometry(attrs, _static(w.shape[2:], "conv's window"))
    groups = int_attr(attrs, "groups")
    if groups < 1 or dimension.mod(w.shape[0], groups) != 0:
        raise OpError(f"{w.shape[0]} output channels do not divide into {groups} groups")
    same_extent(x.shape[1], w.shape[1] * groups, "conv's input channels and weight.shape[1] * groups")
    spatial = tuple(
        sliding_extent(extent, reach, stride, begin, end)
        for extent, reach, stride, begin, end in zip(x.shape[2:], g.reach, g.strides, g.begins, g.ends, strict=True)
    )
    return TensorType(dtype, (x.shape[0], w.shape[0], *spatial))


def _conv_infer(attrs: Attrs, x: TensorType, w: TensorType, bias: TensorType | None = None) -> TensorType:
    need_family("conv's operands", x, NUMERIC)
    result = conv_type(attrs, x, w, need_same_dtype(x, w))
    check_bias(x, bias, w.shape[0])
    return result


def check_bias(x: TensorType, bias: TensorType | None, channels: Dim) -> None:
    """Raises OpError unless the bias is [channels] of x's dtype, or absent."""
    if bias is not None:
        need_same_dtype(x, bias)
        need_rank("the bias", bias, 1, 1)
        same_extent(bias.shape[0], channels, "the bias's length and the output channels")


def _taps(window: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, window))


def accumulator(x: Array, work: int) -> Any:
    """The dtype in which a reference of `work` multiply-adds accumulates."""
    if x.dtype.kind in "iu":
        return x.dtype
    return np.float64 if work <= WIDE_REFERENCE_LIMIT or x.dtype == np.float64 else np.float32


def _padded(x: Array, g: Geometry, fill: Any) -> Array:
    pads = [(0, 0), (0, 0), *zip(g.begins, g.ends, strict=True)]
    return np.pad(x, pads, constant_values=fill) if any(map(any, pads)) else x


def _tap(x: Array, tap: Sequence[int], g: Geometry, out: Sequence[int]) -> Array:
    """The element under one window position, for every window."""
    places = [
        slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, s, n in zip(tap, g.dilations, g.strides, out, strict=True)
    ]
    return x[(slice(None), slice(None), *places)]


def conv_array(attrs: Attrs, x: Array, w: Array, bias: Array | None = None, fill: int = 0) -> Array:
    """The convolution by numpy, in the type of x; it reads `fill` outside of x."""
    g = geometry(attrs, w.shape[2:])
    groups = int_attr(attrs, "groups")
    batch, channels = x.shape[:2]
    outputs, inputs = w.shape[0] // groups, channels // groups
    sides = zip(x.shape[2:], g.begins, g.ends, g.reach, g.strides, strict=True)
    out = [(n + begin + end - reach) // stride + 1 for n, begin, end, reach, stride in sides]
    dtype = accumulator(x, batch * w.size * math.prod(out))
    padded = _padded(x, g, fill).astype(dtype)
    weights = np.moveaxis(w.astype(dtype).reshape(groups, outputs, inputs, *w.shape[2:]), (0, 1, 2), (-3, -2, -1))
    total = np.zeros((batch, groups, outputs, math.prod(out)), dtype)
    with np.errstate(all="ignore"):
        for tap in _taps(g.window):
            columns = _tap(padded, tap, g, out).reshape(batch, groups, inputs, math.prod(out))
            factors = weights[tap]
            total += factors[None] * columns if inputs == 1 else np.matmul(factors[None], columns)
        result = total.reshape(batch, groups * outputs, *out)
        if bias is not None:
            result = result + bias.astype(dtype).reshape(1, -1, *(1,) * len(out))
        return result.astype(x.dtype)


def window_attrs(strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int], **more: Any) -> dict[str, Any]:
    """Attributes of a sliding window, for samples."""
    return {"strides": tuple(strides), "pads": tuple(pads), "dilations": tuple(dilations), **more}


def _conv_samples(rng: Any) -> list[Sample]:
    def case(x: Sequence[int], w: Sequence[int], bias: bool, attrs: dict[str, Any]) -> Sample:
        operands = (normal(rng, *x), normal(rng, *w), *((normal(rng, w[0]),) if bias else ()))
        return Sample(operands, attrs, 1e-4, 1e-4)

    return [
        case((2, 3, 7, 9), (4, 3, 3, 3), True, window_attrs((1, 1), (1, 1, 1, 1), (1, 1))),
        case((1, 5, 11, 8), (7, 5, 3, 2), False, window_attrs((2, 1), (0, 1, 2, 0), (1, 2))),
        case((2, 16, 6, 6), (33, 16, 1, 1), True, window_attrs((1, 1), (0, 0, 0, 0), (1, 1))),
        case((1, 8, 9, 9), (8, 1, 3, 3), True, window_attrs((1, 1), (1, 1, 1, 1), (1, 1), groups=8)),
        case((1, 17, 9, 10), (17, 1, 5, 5), False, window_attrs((2, 2), (2, 2, 2, 2), (1, 1), groups=17)),
        case((1, 4, 5, 5), (8, 1, 3, 3), True, window_attrs((1, 1), (1, 1, 1, 1), (1, 1), groups=4)),
        case((2, 6, 5, 6), (9, 2, 3, 3), True, window_attrs((1, 2), (1, 1, 1, 1), (1, 1), groups=3)),
        case((2, 3, 20), (5, 3, 4), True, window_attrs((3,), (2, 1), (2,))),
        case((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), False, window_attrs((1, 2, 1), (0, 1, 0, 1, 1, 0), (1, 1, 1))),
        case((1, 1, 1, 1), (1, 1, 1, 1), True, window_attrs((1, 1), (0, 0, 0, 0), (1, 1))),
        case((1, 3, 8, 8), (2, 3, 8, 8), True, window_attrs((1, 1), (0, 0, 0, 0), (1, 1))),
        case((0, 3, 4, 4), (2, 3, 3, 3), True, window_attrs((1, 1), (1, 1, 1, 1), (1, 1))),
    ]


_WINDOW = {
    "strides": AttrSpec("ints"),
    "pads": AttrSpec("ints", doc="begins, then ends"),
    "dilations": AttrSpec("ints"),
}

register(
    OpDef(
        name="conv", doc="Cross-correlation of [N, C, …] with [O, C / groups, …], plus a bias per output channel.",
        inputs=("x", "w", "bias?"), kind=Kind.WINDOW, infer=_conv_infer, samples=_conv_samples,
        attrs={**_WINDOW, "groups": AttrSpec("int", 1)}, reference=conv_array, cost_flops=2,
    )
)  # fmt: skip


# Pooling.

_POOL = {"window": AttrSpec("ints"), **_WINDOW, "ceil": AttrSpec("bool", False, "let a last window hang over the end")}


def pool_geometry(attrs: Attrs, rank: int) -> Geometry:
    """The geometry of a pooling op; raises OpError."""
    window = ints_attr(attrs, "window")
    if len(window) != rank - 2:
        raise OpError(f"the window {window} must have one extent per spatial axis, {rank - 2}")
    g = geometry(attrs, window)
    for begin, end, reach in zip(g.begins, g.ends, g.reach, strict=True):
        if max(begin, end) >= reach:
            raise OpError(f"pads {begin} and {end} must be smaller than the window's reach {reach}")
    return g


def _pool_infer(families: Sequence[str]) -> Any:
    def infer(attrs: Attrs, x: TensorType) -> TensorType:
        need_family("a pool's operand", x, families)
        need_rank("a pool's operand", x, 3)
        g = pool_geometry(attrs, x.rank)
        ceil = bool(attrs["ceil"])
        spatial = tuple(
            sliding_extent(extent, reach, stride, begin, end, ceil)
            for extent, reach, stride, begin, end in zip(x.shape[2:], g.reach, g.strides, g.begins, g.ends, strict=True)
        )
        return TensorType(x.dtype, (*x.shape[:2], *spatial))

    return infer


def _pool_taps(attrs: Attrs, x: Array, fill: Any) -> tuple[list[int], Iterator[Array]]:
    """Output extents, and the element under each window position (fill outside the input)."""
    g = pool_geometry(attrs, x.ndim)
    ceil = bool(attrs["ceil"])
    out: list[int] = []
    for n, reach, s, b, e in zip(x.shape[2:], g.reach, g.strides, g.begins, g.ends, strict=True):
        extent = sliding_extent(n, reach, s, b, e, ceil)
        assert isinstance(extent, int)
        out.append(extent)
    # A window may hang over the end: pad by what the last one covers.
    ends = [
        max((o - 1) * s + reach - n - b, 0)
        for o, s, reach, n, b in zip(out, g.strides, g.reach, x.shape[2:], g.begins, strict=True)
    ]
    wider = Geometry(g.window, g.strides, g.begins, tuple(ends), g.dilations)
    padded = _padded(x, wider, fill)
    return out, (_tap(padded, tap, wider, out) for tap in _taps(g.window))


def _max_pool_reference(attrs: Attrs, x: Array) -> Array:
    out, taps = _pool_taps(attrs, x, lowest(x.dtype))
    result = np.full((*x.shape[:2], *out), lowest(x.dtype), x.dtype)
    for tap in taps:
        result = np.maximum(result, tap)
    return result


def _avg_pool_reference(attrs: Attrs, x: Array) -> Array:
    g = pool_geometry(attrs, x.ndim)
    out, taps = _pool_taps(attrs, x.astype(np.float64), 0.0)
    total = np.zeros((*x.shape[:2], *out))
    with np.errstate(all="ignore"):
        for tap in taps:
            total += tap
        for axis, n in enumerate(x.shape[2:]):
            starts = np.arange(out[axis]) * g.strides[axis] - g.begins[axis]
            places = starts[:, None] + np.arange(g.window[axis]) * g.dilations[axis]
            lo, hi = (-g.begins[axis], n + g.ends[axis]) if attrs["include_pad"] else (0, n)
            count = np.sum((places >= lo) & (places < hi), axis=1)
            total /= count.reshape(-1, *(1,) * (len(out) - 1 - axis))
        return total.astype(x.dtype)


def _pool_cases(rng: Any) -> list[tuple[Array, dict[str, Any]]]:
    return [
        (normal(rng, 2, 3, 7, 9), window_attrs((2, 2), (1, 1, 1, 1), (1, 1), window=(3, 3))),
        (normal(rng, 1, 4, 8, 8), window_attrs((2, 2), (0, 0, 0, 0), (1, 1), window=(2, 2))),
        (normal(rng, 1, 5, 7, 8), window_attrs((2, 3), (0, 1, 1, 0), (1, 1), window=(2, 3), ceil=True)),
        (normal(rng, 1, 2, 10, 10), window_attrs((1, 1), (1, 0, 0, 1), (2, 3), window=(3, 2))),
        (normal(rng, 2, 3, 11), window_attrs((3,), (1, 1), (1,), window=(4,), ceil=True)),
        (normal(rng, 1, 2, 4, 5, 6), window_attrs((2, 1, 2), (0, 0, 1, 1, 0, 0), (1, 1, 1), window=(2, 2, 3))),
        (normal(rng, 1, 1, 1, 1), window_attrs((1, 1), (0, 0, 0, 0), (1, 1), window=(1, 1))),
        (normal(rng, 1, 33, 5, 5), window_attrs((1, 1), (2, 2, 2, 2), (1, 1), window=(5, 5))),
    ]


def _max_pool_samples(rng: Any) -> list[Sample]:
    special = np.array([[[1, np.nan, 2, -np.inf, -np.inf, 0.0, -0.0, np.inf]]], np.float32)
    attrs = window_attrs((2,), (0, 0), (1,), window=(2,))
    found = [Sample((x,), case) for x, case in _pool_cases(rng)]
    return [*found, Sample((special,), attrs), Sample((integers(rng, 1, 2, 9, dtype=np.int8),), attrs)]


def _avg_pool_samples(rng: Any) -> list[Sample]:
    return [
        Sample((x,), {**case, "include_pad": include}, 1e-5, 1e-5)
        for x, case in _pool_cases(rng)
        for include in (False, True)
    ]


register(
    OpDef(
        name="max_pool", doc="The largest element under each window; padding never wins.", inputs=("x",),
        kind=Kind.WINDOW, infer=_pool_infer(NUMERIC), samples=_max_pool_samples, attrs=_POOL,
        reference=_max_pool_reference,
    )
)  # fmt: skip
register(
    OpDef(
        name="avg_pool",
        doc="The mean under each window, over the elements inside the input, or inside the padded input.",
        inputs=("x",), kind=Kind.WINDOW, infer=_pool_infer(FLOAT), samples=_avg_pool_samples,
        attrs={**_POOL, "include_pad": AttrSpec("bool", False)}, reference=_avg_pool_reference,
    )
)  # fmt: skip
