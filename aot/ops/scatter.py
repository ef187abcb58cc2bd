"""SCATTER ops: a tensor with some elements replaced, or combined with others, at computed places.

Where several updates meet at one place they apply in the order of their indices. Negative indices count
from the end; an index outside of the tensor changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aot import dims as dimension
from aot.ir import Array, Attr, TensorType
from aot.ops.helpers import INDEX, dims_attr, int_attr, integers, need_family, need_rank, need_same_dtype, normal
from aot.ops.indexing import fixed
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, OpError, Sample, normalize_axis, register, same_extent

REDUCTIONS = ("none", "add", "mul", "max", "min")
_COMBINE: Mapping[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


def _checked(attrs: Attrs, data: TensorType, indices: TensorType, updates: TensorType) -> None:
    need_same_dtype(data, updates)
    need_family("the indices", indices, INDEX)
    need_rank("the data", data, 1)
    need_rank("the indices", indices, 1)
    if attrs["reduction"] not in REDUCTIONS:
        raise OpError(f"a reduction is one of {', '.join(REDUCTIONS)}; it is {attrs['reduction']!r}")
    if data.dtype.is_bool and attrs["reduction"] != "none":
        raise OpError(f"truth values are not combined by {attrs['reduction']!r}")


def _infer_elements(attrs: Attrs, data: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
    _checked(attrs, data, indices, updates)
    need_rank("the indices", indices, data.rank, data.rank)
    need_rank("the updates", updates, data.rank, data.rank)
    axis = normalize_axis(int_attr(attrs, "axis"), data.rank)
    starts = dims_attr(attrs, "starts")
    if starts and (len(starts) != data.rank or starts[axis] != 0):
        raise OpError(f"starts are one number for each axis, 0 for axis {axis}; they are {starts}")
    for number, (extent, count, given) in enumerate(zip(data.shape, indices.shape, updates.shape, strict=True)):
        same_extent(count, given, f"axis {number} of the indices and the updates")
        end = starts[number] + count if starts else count
        if number != axis and dimension.minimum(extent, end) != end:
            same_extent(end, extent, f"axis {number} of the indices and the data")
    return TensorType(data.dtype, data.shape)


def _infer_nd(attrs: Attrs, data: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
    _checked(attrs, data, indices, updates)
    depth = indices.shape[-1]
    if not isinstance(depth, int) or not 1 <= depth <= data.rank:
        raise OpError(f"the last axis of the indices counts 1 to {data.rank} axes of the data; its extent is {depth}")
    expected = (*indices.shape[:-1], *data.shape[depth:])
    need_rank("the updates", updates, len(expected), len(expected))
    for number, (given, want) in enumerate(zip(updates.shape, expected, strict=True)):
        same_extent(given, want, f"axis {number} of the updates")
    return TensorType(data.dtype, data.shape)


def _reference_elements(attrs: Attrs, data: Array, indices: Array, updates: Array) -> Array:
    axis = normalize_axis(int_attr(attrs, "axis"), data.ndim)
    combine = _COMBINE[str(attrs["reduction"])]
    result, extent = data.copy(), data.shape[axis]
    starts = fixed(dims_attr(attrs, "starts")) or (0,) * data.ndim
    for place in np.ndindex(*indices.shape):
        at = int(indices[place])
        at += extent if at < 0 else 0
        if 0 <= at < extent:
            target = tuple(at if number == axis else i + starts[number] for number, i in enumerate(place))
            with np.errstate(all="ignore"):
                result[target] = combine(result[target], updates[place])
    return result


def _reference_nd(attrs: Attrs, data: Array, indices: Array, updates: Array) -> Array:
    combine = _COMBINE[str(attrs["reduction"])]
    result = data.copy()
    for place in np.ndindex(*indices.shape[:-1]):
        target = tuple(int(i) + (n if i < 0 else 0) for i, n in zip(indices[place], data.shape, strict=False))
        if all(0 <= i < n for i, n in zip(target, data.shape, strict=False)):
            with np.errstate(all="ignore"):
                result[target] = combine(result[target], updates[place])
    return result


def _samples_elements(rng: Any) -> list[Sample]:
    found = []
    for reduction in REDUCTIONS:
        for axis, data, shape in (
            (0, (5, 4), (7, 4)),
            (1, (3, 6), (2, 9)),
            (-1, (2, 3, 5), (2, 3, 5)),
            (0, (9,), (30,)),
        ):
            extent = data[axis]
            indices = integers(rng, *shape, lo=-extent, hi=extent)
            operands = (normal(rng, *data, scale=1.0), indices, normal(rng, *shape, scale=1.0))
            found.append(Sample(operands, {"axis": axis, "reduction": reduction}, 1e-5, 1e-5))
        operands = (integers(rng, 4, 20), integers(rng, 8, 20, lo=-5, hi=5, dtype=np.int32), integers(rng, 8, 20))
        found.append(Sample(operands, {"axis": 0, "reduction": reduction}))
        rows = np.broadcast_to(integers(rng, 6, 1, lo=0, hi=4), (6, 37))
        found.append(Sample((normal(rng, 4, 37), rows, normal(rng, 6, 37)), {"reduction": reduction}, 1e-4, 1e-4))
    box: dict[str, Attr] = {"axis": 1, "starts": (1, 0, 2)}
    found.append(Sample((normal(rng, 3, 4, 37), integers(rng, 2, 3, 35, lo=-4, hi=4), normal(rng, 2, 3, 35)), box))
    column = np.broadcast_to(integers(rng, 1, 2, 1, lo=0, hi=4), (1, 2, 35))
    found.append(Sample((normal(rng, 3, 4, 37), column, normal(rng, 1, 2, 35)), {**box, "starts": (2, 0, 1)}))
    flags = integers(rng, 5, lo=0, hi=2).astype(np.bool_)
    found.append(Sample((flags, np.array([1, -1]), np.array([True, False]))))
    half = normal(rng, 3, 18, dtype=np.float16)
    found.append(Sample((half, integers(rng, 2, 18, lo=0, hi=3), half[:2]), {"reduction": "max"}))
    found.append(Sample((normal(rng, 4), np.zeros((0,), np.int64), normal(rng, 0))))
    return found


def _samples_nd(rng: Any) -> list[Sample]:
    found = []
    for reduction in REDUCTIONS:
        for data, shape in (
            ((5, 20), (7, 1)),
            ((3, 4, 5), (2, 3, 2)),
            ((4, 3), (6, 2)),
            ((8,), (5, 1)),
            ((3, 35), (1,)),
        ):
            bounds = data[: shape[-1]]
            indices = np.stack([integers(rng, *shape[:-1], lo=-n, hi=n) for n in bounds], axis=-1)
            updates = normal(rng, *shape[:-1], *data[len(bounds) :], scale=1.0)
            found.append(
                Sample((normal(rng, *data, scale=1.0), indices, updates), {"reduction": reduction}, 1e-5, 1e-5)
            )
    outside = np.array([[0, 9], [1, 1], [-7, 0]], np.int64)
    found.append(Sample((integers(rng, 2, 3), outside, integers(rng, 3))))
    return found


_ATTRS = {"reduction": AttrSpec("str", "none", "none, add, mul, max or min")}
register(
    OpDef(
        name="scatter_elements", doc="out[…, indices[…, i, …], …] takes updates[…, i, …]; elsewhere it is data.",
        inputs=("data", "indices", "updates"), kind=Kind.SCATTER, infer=_infer_elements, samples=_samples_elements,
        attrs={
            "axis": AttrSpec("int", 0),
            "starts": AttrSpec("dims", (), "Where the box of the updates begins, on the other axes; empty: at 0."),
            **_ATTRS,
        },
        reference=_reference_elements,
    )
)  # fmt: skip
register(
    OpDef(
        name="scatter_nd", doc="Slices of the result at index tuples, the last axis of the indices, take the updates.",
        inputs=("data", "indices", "updates"), kind=Kind.SCATTER, infer=_infer_nd, samples=_samples_nd,
        attrs=_ATTRS, reference=_reference_nd,
    )
)  # fmt: skip
