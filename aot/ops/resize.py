"""Resize: nearest, linear and cubic interpolation over any axes, with the coordinate rules of ONNX.

Coordinates and weights are computed in f32, as ONNX Runtime does, so that ties fall the same way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.dims import Dim
from aot.dtypes import BOOL, F32, I64
from aot.expr import Expr, call, cast, const, dim, select
from aot.ir import Array, Attr, TensorType
from aot.ops.helpers import NUMERIC, dims_attr, float_attr, integers, need_family, normal, sequence_attr, wide_dtype
from aot.ops.indexing import ZERO, all_of, clamp, fixed, given
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, OpError, Sample, Source, register
from aot.ops.views import check_extents

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")


def _infer(attrs: Attrs, x: TensorType) -> TensorType:
    need_family("resize's operand", x, NUMERIC)
    shape, scales = dims_attr(attrs, "shape"), sequence_attr(attrs, "scales")
    if len(shape) != x.rank or (scales and len(scales) != x.rank):
        raise OpError(f"resize needs one output extent (and one scale, if any) for each of {x.rank} axes")
    if any(scale <= 0 for scale in scales):
        raise OpError(f"resize's scales {scales} must be positive")
    check_extents(shape, "the shape")
    for name, known in (("mode", MODES), ("coordinate", COORDINATES), ("nearest", NEAREST)):
        if attrs[name] not in known:
            raise OpError(f"resize's {name} is one of {', '.join(known)}; it is {attrs[name]!r}")
    return TensorType(x.dtype, shape)


def _resized(attrs: Attrs, source: Sequence[Dim], result: Sequence[Dim]) -> list[int]:
    """The axes whose coordinates change."""
    scales = sequence_attr(attrs, "scales")
    if not scales:
        return [axis for axis, (n, m) in enumerate(zip(source, result, strict=True)) if n != m]
    return [
        axis
        for axis, (n, m, scale) in enumerate(zip(source, result, scales, strict=True))
        if scale != 1.0 or (isinstance(n, int) and isinstance(m, int) and n != m)
    ]


def _f32(number: float) -> Expr:
    return const(float(np.float32(number)), F32)


def _extent(extent: Dim) -> Expr:
    """An extent as an f32."""
    return _f32(float(extent)) if isinstance(extent, int) else cast(dim(extent), F32)


def _ratio(above: Expr, below: Expr) -> Expr:
    """above / below in f32, computed now where both are constant."""
    if above.op == "const" and below.op == "const" and below.payload:
        return _f32(float(np.float32(above.payload) / np.float32(below.payload)))
    return above / below


def _coordinate(attrs: Attrs, axis: int, index: Expr, source: Dim, result: Dim) -> Expr:
    """Where an output index lies in the input, as an f32."""
    rule = attrs["coordinate"]
    scales = sequence_attr(attrs, "scales")
    scale = _f32(scales[axis]) if scales else _ratio(_extent(result), _extent(source))
    place = cast(index, F32)
    if rule == "align_corners":
        if result == 1:
            return _f32(0.0)
        steps = _extent(result - 1)
        moved = place * _extent(source - 1) / steps
        return moved if isinstance(result, int) else select(steps > 0.0, moved, 0.0)
    if rule == "asymmetric":
        return place / scale
    centred = (place + 0.5) / scale
    if rule == "tf_half_pixel_for_nn":  # the one rule that would shift an axis that keeps its size
        return centred if scale.op == "const" else select(call("eq", scale, 1.0), place, centred)
    if rule == "half_pixel":
        return centred - 0.5
    if rule == "pytorch_half_pixel":
        if isinstance(result, int):
            return centred - 0.5 if result > 1 else _f32(0.0)
        return select(_extent(result) > 1.0, centred - 0.5, 0.0)
    ideal = scale * _extent(source)  # half_pixel_symmetric: the output's size before it was rounded down
    shift = _extent(source) * 0.5 * (1.0 - _ratio(_extent(result), ideal))
    return shift + centred - 0.5


def _nearest(attrs: Attrs, place: Expr, downsampled: Expr) -> Expr:
    rule = attrs["nearest"]
    if rule == "round_prefer_floor":
        return call("ceil", place - 0.5)
    if rule == "round_prefer_ceil":
        return call("floor", place + 0.5)
    if rule == "simple":
        return select(downsampled, call("ceil", place), call("floor", place))
    return call(str(rule), place)


def _is_downsampled(attrs: Attrs, axis: int, source: Dim, result: Dim) -> Expr:
    scales = sequence_attr(attrs, "scales")
    if scales:
        return const(scales[axis] < 1.0, BOOL)
    if isinstance(source, int) and isinstance(result, int):
        return const(result < source, BOOL)
    return call("lt", dim(result), dim(source))


def _linear_taps(place: Expr, extent: Dim) -> list[tuple[Expr, Expr]]:
    """The two (index, weight) pairs around a coordinate."""
    inside = call("max", call("min", place, _extent(extent - 1)), 0.0)
    floor = call("floor", inside)
    weight = inside - floor
    low = cast(floor, I64)
    return [(low, 1.0 - weight), (clamp(low + 1, extent), weight)]


def _cubic_taps(attrs: Attrs, place: Expr, extent: Dim) -> list[tuple[Expr, Expr]]:
    """The four (index, weight) pairs around a coordinate, by Keys' kernel with coefficient cubic_a."""
    a = float(np.float32(float_attr(attrs, "cubic_a")))
    floor = call("floor", place)
    s = place - floor
    low = cast(floor, I64)
    t = 1.0 - s

    def near(x: Expr) -> Expr:
        return (x * (a + 2.0) - (a + 3.0)) * x * x + 1.0

    def far(x: Expr) -> Expr:
        return ((x * a - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a

    weights = [far(s + 1.0), near(s), near(t), far(t + 1.0)]
    places = [low + offset for offset in (-1, 0, 1, 2)]
    if attrs["exclude_outside"]:
        inside = [all_of([call("ge", p, 0), call("lt", p, dim(extent))]) for p in places]
        weights = [select(ok, weight, 0.0) for ok, weight in zip(inside, weights, strict=True)]
        total = weights[0] + weights[1] + weights[2] + weights[3]
        weights = [weight / total for weight in weights]
    return [(clamp(p, extent), weight) for p, weight in zip(places, weights, strict=True)]


def _access(attrs: Attrs, sources: Sequence[Source | None], out: TensorType, indices: Sequence[Expr]) -> Expr:
    x = given(sources[0])
    axes = _resized(attrs, x.type.shape, out.shape)
    places: list[Expr] = list(indices)
    taps: list[list[tuple[Expr, Expr]]] = []
    for axis in axes:
        source, result = x.type.shape[axis], out.shape[axis]
        place = _coordinate(attrs, axis, indices[axis], source, result)
        if attrs["mode"] == "nearest":
            found = _nearest(attrs, place, _is_downsampled(attrs, axis, source, result))
            places[axis] = clamp(cast(found, I64), source) if source != 1 else ZERO
        elif attrs["mode"] == "linear":
            taps.append(_linear_taps(place, source))
        else:
            taps.append(_cubic_taps(attrs, place, source))
    if not taps:
        return x.at(places)
    accumulate = wide_dtype(out.dtype) if out.dtype.is_float else F32
    total: Expr | None = None
    for corner in itertools.product(*taps):
        weight: Expr | None = None
        for axis, (place, factor) in zip(axes, corner, strict=True):
            places[axis] = place
            weight = factor if weight is None else weight * factor
        assert weight is not None
        term = cast(x.at(places), accumulate) * cast(weight, accumulate)
        total = term if total is None else total + term
    assert total is not None
    return cast(total, out.dtype)


# The reference goes axis by axis with plain numpy and shares nothing with the rule above.


def resize_places(attrs: Attrs, axis: int, source: int, result: int) -> Array:
    """Where the output's indices along an axis lie in the input, as f32."""
    one = np.float32(1)
    half = np.float32(0.5)
    scales = sequence_attr(attrs, "scales")
    scale = np.float32(scales[axis]) if scales else np.float32(result) / np.float32(source)
    index = np.arange(result, dtype=np.float32)
    rule = attrs["coordinate"]
    if rule == "align_corners":
        if result == 1:
            return np.zeros(1, np.float32)
        return index * np.float32(source - 1) / np.float32(result - 1)
    if rule == "asymmetric":
        return index / scale
    if rule == "tf_half_pixel_for_nn":
        return (index + half) / scale
    if rule == "pytorch_half_pixel" and result <= 1:
        return np.zeros(result, np.float32)
    if rule == "half_pixel_symmetric":
        adjustment = np.float32(result) / (scale * np.float32(source))
        return np.float32(source) * half * (one - adjustment) + (index + half) / scale - half
    return (index + half) / scale - half


def _shrinks(attrs: Attrs, axis: int, source: int, result: int) -> bool:
    scales = sequence_attr(attrs, "scales")
    return bool(scales[axis] < 1.0) if scales else result < source


def resize_nearest(attrs: Attrs, places: Array, source: int, shrinks: bool) -> Array:
    """The input's index for each place, in range."""
    rule = attrs["nearest"]
    if rule == "round_prefer_floor":
        chosen = np.ceil(places - np.float32(0.5))
    elif rule == "round_prefer_ceil":
        chosen = np.floor(places + np.float32(0.5))
    elif rule == "ceil" or (rule == "simple" and shrinks):
        chosen = np.ceil(places)
    else:
        chosen = np.floor(places)
    return np.clip(chosen.astype(np.int64), 0, source - 1)


def resize_matrix(attrs: Attrs, places: Array, source: int) -> Array:
    """[result, source] interpolation weights."""
    matrix = np.zeros((len(places), source), np.float64)
    for row, place in enumerate(places):
        if attrs["mode"] == "linear":
            inside = min(max(float(place), 0.0), source - 1.0)
            low = int(np.floor(inside))
            matrix[row, low] += 1.0 - (inside - low)
            matrix[row, min(low + 1, source - 1)] += inside - low
            continue
        low = int(np.floor(place))
        a = float_attr(attrs, "cubic_a")
        for tap in range(low - 1, low + 3):
            x = abs(float(place) - tap)
            if attrs["exclude_outside"] and not 0 <= tap < source:
                continue
            weight = (a + 2) * x**3 - (a + 3) * x**2 + 1 if x <= 1 else a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
            matrix[row, min(max(tap, 0), source - 1)] += weight
        if attrs["exclude_outside"]:
            matrix[row] /= matrix[row].sum()
    return matrix


def smooth_matrix(
    places: Array, source: int, scale: float, *, mode: str, cubic_a: float, exclude_outside: bool
) -> Array:
    """[result, source] weights of a kernel that is stretched by 1 / scale, so that it averages what it leaves out."""
    linear, a = mode == "linear", cubic_a
    reach = (1.0 if linear else 2.0) / scale
    matrix = np.zeros((len(places), source))
    for row, place in enumerate(places.astype(np.float64)):
        taps = np.arange(math.floor(place - reach), math.ceil(place + reach) + 1)
        distance = np.abs(taps - place) * scale
        if linear:
            weights = np.maximum(1.0 - distance, 0.0)
        else:
            near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
            far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
            weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
        if exclude_outside:
            weights = np.where((taps < 0) | (taps >= source), 0.0, weights)
        np.add.at(matrix[row], np.clip(taps, 0, source - 1), weights / weights.sum())
    return matrix


def _reference(attrs: Attrs, x: Array) -> Array:
    shape = fixed(dims_attr(attrs, "shape"))
    result = x
    for axis in _resized(attrs, x.shape, shape):
        source = x.shape[axis]
        places = resize_places(attrs, axis, source, shape[axis])
        if attrs["mode"] == "nearest":
            chosen = resize_nearest(attrs, places, source, _shrinks(attrs, axis, source, shape[axis]))
            result = np.take(result, chosen, axis=axis)
        else:
            columns = np.moveaxis(result.astype(np.float64), axis, -1)
            result = np.moveaxis(columns @ resize_matrix(attrs, places, source).T, -1, axis)
    return np.ascontiguousarray(result).astype(x.dtype)


def _samples(rng: Any) -> list[Sample]:
    found = []
    for coordinate in COORDINATES:
        for mode in MODES:
            attrs: dict[str, Attr] = {"mode": mode, "coordinate": coordinate}
            found.append(Sample((normal(rng, 1, 2, 4, 5),), {"shape": (1, 2, 7, 11), **attrs}, 1e-4, 1e-4))
            found.append(Sample((normal(rng, 1, 2, 7, 6),), {"shape": (1, 2, 3, 1), **attrs}, 1e-4, 1e-4))
            scaled: dict[str, Attr] = {"shape": (1, 2, 6, 9), "scales": (1.0, 1.0, 1.6, 2.3), **attrs}
            found.append(Sample((normal(rng, 1, 2, 4, 4),), scaled, 1e-4, 1e-4))
    for nearest in NEAREST:
        for coordinate in ("half_pixel", "asymmetric"):
            attrs = {"mode": "nearest", "coordinate": coordinate, "nearest": nearest}
            found.append(Sample((normal(rng, 2, 3, 4),), {"shape": (2, 6, 8), "scales": (1.0, 2.0, 2.0), **attrs}))
            found.append(Sample((normal(rng, 6, 8),), {"shape": (3, 4), **attrs}))
    found.append(Sample((normal(rng, 1, 1, 5, 5),), {"shape": (1, 1, 8, 3), "mode": "cubic", "exclude_outside": True,
                                                     "cubic_a": -0.5}, 1e-4, 1e-4))  # fmt: skip
    found.append(Sample((normal(rng, 1, 2, 3, 4, 5),), {"shape": (1, 2, 6, 7, 8), "mode": "linear"}, 1e-4, 1e-4))
    found.append(Sample((normal(rng, 1, 1, 1, 4),), {"shape": (1, 1, 3, 4), "mode": "linear"}, 1e-4, 1e-4))
    found.append(Sample((normal(rng, 1, 2, 3, 3),), {"shape": (1, 2, 3, 3), "mode": "linear"}))
    found.append(Sample((integers(rng, 4, 4),), {"shape": (8, 2), "mode": "nearest"}))
    return found


register(
    OpDef(
        name="resize", doc="x interpolated to another shape.", inputs=("x",), kind=Kind.GATHER, infer=_infer,
        samples=_samples, access=_access, reference=_reference, cost_flops=16,
        attrs={
            "shape": AttrSpec("dims", doc="the result's"),
            "scales": AttrSpec("floats", (), "per axis, for the coordinates; () means output / input extent"),
            "mode": AttrSpec("str", "nearest", "nearest, linear or cubic"),
            "coordinate": AttrSpec("str", "half_pixel", "ONNX's coordinate_transformation_mode"),
            "nearest": AttrSpec("str", "round_prefer_floor", "ONNX's nearest_mode, or simple (opset 10)"),
            "cubic_a": AttrSpec("float", -0.75),
            "exclude_outside": AttrSpec("bool", False),
        },
    )
)  # fmt: skip
