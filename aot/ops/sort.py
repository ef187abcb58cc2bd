"""SORT ops: rows in order, with the places that the elements came from.

The order is total and the same everywhere: NaN is above every number, -0 equals 0, and equal elements
keep the order of their places, ascending and descending alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aot import dims as dimension
from aot.dims import Dim
from aot.dtypes import I64
from aot.ir import Array, TensorType
from aot.ops.helpers import ANY, int_attr, integers, need_family, need_rank, normal
from aot.ops.opdef import Attrs, AttrSpec, DimMismatch, Kind, OpDef, OpError, Sample, normalize_axis, register


def _infer_sort(attrs: Attrs, x: TensorType) -> tuple[TensorType, ...]:
    need_family("what is sorted", x, ANY)
    need_rank("what is sorted", x, 1)
    normalize_axis(int_attr(attrs, "axis"), x.rank)
    return TensorType(x.dtype, x.shape), TensorType(I64, x.shape)


def _infer_top(attrs: Attrs, x: TensorType) -> tuple[TensorType, ...]:
    _infer_sort(attrs, x)
    axis = normalize_axis(int_attr(attrs, "axis"), x.rank)
    k: Any = attrs["k"]
    extent: Dim = x.shape[axis]
    if dimension.bounds(k)[0] < 0:
        raise OpError(f"k is {k}; it must not be negative")
    least = dimension.minimum(extent, k)
    if least != k:
        if isinstance(extent, int) and isinstance(k, int):
            raise OpError(f"the {k} largest of {extent} elements")
        raise DimMismatch(f"the {k} largest of {extent} elements", least, k)
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return TensorType(x.dtype, shape), TensorType(I64, shape)


def order_of(x: Array, axis: int, descending: bool) -> Array:
    """Places of the elements in order, along an axis; see the module for what order means."""
    wide = x.astype(np.float64) if x.dtype.kind not in "iub" else x
    _, ranks = np.unique(wide, return_inverse=True)  # all NaNs are one, and last
    ranks = ranks.reshape(x.shape).astype(np.int64)
    return np.argsort(-ranks if descending else ranks, axis=axis, kind="stable").astype(np.int64)


def _reference_sort(attrs: Attrs, x: Array) -> tuple[Array, Array]:
    axis = normalize_axis(int_attr(attrs, "axis"), x.ndim)
    places = order_of(x, axis, bool(attrs["descending"]))
    return np.take_along_axis(x, places, axis), places


def _reference_top(attrs: Attrs, x: Array) -> tuple[Array, Array]:
    axis = normalize_axis(int_attr(attrs, "axis"), x.ndim)
    places = np.take(order_of(x, axis, bool(attrs["largest"])), range(int_attr(attrs, "k")), axis)
    return np.take_along_axis(x, places, axis), places


_HOSTILE = np.array([np.nan, -0.0, 0.0, np.inf, -np.inf, 1.0, -np.nan, 1.0, -2.0, 0.0, 1e-45, -1e-45], np.float32)


def _operands(rng: Any) -> list[tuple[Array, int]]:
    return [
        (normal(rng, 3, 17), -1),
        (normal(rng, 3, 5, 2), 1),
        (integers(rng, 9, 4, lo=-2, hi=3), 0),
        (_HOSTILE, 0),
        (normal(rng, 2, 700), 1),
        (normal(rng, 1300, dtype=np.float64), 0),
        (integers(rng, 40, lo=0, hi=255, dtype=np.uint8), 0),
        (integers(rng, 2, 33, lo=-(2**62), hi=2**62), 1),
        (normal(rng, 2, 20, dtype=np.float16), 1),
        (integers(rng, 5, lo=0, hi=2).astype(np.bool_), 0),
        (normal(rng, 3, 1), 1),
        (normal(rng, 0, 4), 1),
    ]


def _samples_sort(rng: Any) -> list[Sample]:
    return [
        Sample((x,), {"axis": axis, "descending": descending})
        for x, axis in _operands(rng)
        for descending in (False, True)
    ]


def _samples_top(rng: Any) -> list[Sample]:
    found = []
    for x, axis in _operands(rng):
        extent = x.shape[axis]
        for k, largest in ((min(3, extent), True), (extent, True), (min(5, extent), False), (0, True)):
            found.append(Sample((x,), {"axis": axis, "k": k, "largest": largest}))
    found.append(Sample((normal(rng, 2, 3000),), {"axis": 1, "k": 7}))
    found.append(Sample((integers(rng, 5000, lo=0, hi=50),), {"axis": 0, "k": 600, "largest": False}))
    return found


register(
    OpDef(
        name="sort", doc="The elements along an axis in order, and where they were; stable, NaN above all numbers.",
        inputs=("x",), kind=Kind.SORT, infer=_infer_sort, samples=_samples_sort,
        attrs={"axis": AttrSpec("int", -1), "descending": AttrSpec("bool", False)}, reference=_reference_sort,
    )
)  # fmt: skip
register(
    OpDef(
        name="top_k", doc="The k largest (or smallest) elements along an axis, in order, and where they were.",
        inputs=("x",), kind=Kind.SORT, infer=_infer_top, samples=_samples_top,
        attrs={"axis": AttrSpec("int", -1), "k": AttrSpec("dim"), "largest": AttrSpec("bool", True)},
        reference=_reference_top,
    )
)  # fmt: skip
