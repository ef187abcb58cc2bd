"""GATHER ops that read at places given by a tensor of indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.dims import Dim
from aot.dtypes import I64
from aot.expr import Expr, call, cast, const, dim, select
from aot.ir import Array, TensorType
from aot.ops.helpers import INTEGER, booleans, int_attr, integers, need_family, need_rank, normal
from aot.ops.indexing import fixed, from_end, from_end_array, given
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, OpError, Sample, Source, normalize_axis, register, same_extent


def _indexed(x: TensorType, indices: TensorType) -> None:
    need_family("the indices", indices, INTEGER)
    need_rank("the tensor that is read", x, 1)


# gather


def _gather_infer(attrs: Attrs, x: TensorType, indices: TensorType) -> TensorType:
    _indexed(x, indices)
    axis = normalize_axis(int_attr(attrs, "axis"), x.rank)
    return TensorType(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def _gather_access(attrs: Attrs, sources: Sequence[Source | None], out: TensorType, indices: Sequence[Expr]) -> Expr:
    x, places = given(sources[0]), given(sources[1])
    axis = normalize_axis(int_attr(attrs, "axis"), x.type.rank)
    rank = places.type.rank
    place = from_end(places.at(indices[axis : axis + rank]), x.type.shape[axis])
    return x.at([*indices[:axis], place, *indices[axis + rank :]])


def _gather_reference(attrs: Attrs, x: Array, indices: Array) -> Array:
    axis = normalize_axis(int_attr(attrs, "axis"), x.ndim)
    return np.take(x, from_end_array(indices, x.shape[axis]), axis=axis)


def _gather_samples(rng: Any) -> list[Sample]:
    return [
        Sample((normal(rng, 11, 5), integers(rng, 2, 3, lo=-11, hi=11)), {"axis": 0}),
        Sample((normal(rng, 3, 7, 2), integers(rng, 4, lo=-7, hi=7)), {"axis": 1}),
        Sample((normal(rng, 3, 7), np.array(-1)), {"axis": -1}),
        Sample((normal(rng, 3, 7), integers(rng, 2, 2, lo=-30, hi=30, dtype=np.int32)), {"axis": 1}),
        Sample((integers(rng, 9), integers(rng, 1, lo=0, hi=9)), {"axis": 0}),
        Sample((booleans(rng, 4, 1), np.array([0, -1, 0])), {"axis": 1}),
        Sample((normal(rng, 4), np.zeros((0, 2), np.int64)), {"axis": 0}),
        Sample((normal(rng, 50, 64), integers(rng, 1, 9, lo=0, hi=50)), {"axis": 0}),
    ]


register(
    OpDef(
        name="gather", doc="Slices of x at the indices along an axis; negative from the end, clamped into range.",
        inputs=("x", "indices"), kind=Kind.GATHER, infer=_gather_infer, samples=_gather_samples,
        attrs={"axis": AttrSpec("int", 0)}, access=_gather_access, reference=_gather_reference,
    )
)  # fmt: skip


# gather_elements


def _elements_infer(attrs: Attrs, x: TensorType, indices: TensorType) -> TensorType:
    _indexed(x, indices)
    need_rank("the indices", indices, x.rank, x.rank)
    axis = normalize_axis(int_attr(attrs, "axis"), x.rank)
    for position, (extent, count) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if position != axis and isinstance(extent, int) and isinstance(count, int) and count > extent:
            raise OpError(f"the indices have extent {count} on axis {position}; the tensor only {extent}")
    return TensorType(x.dtype, indices.shape)


def _elements_access(attrs: Attrs, sources: Sequence[Source | None], out: TensorType, indices: Sequence[Expr]) -> Expr:
    x, places = given(sources[0]), given(sources[1])
    axis = normalize_axis(int_attr(attrs, "axis"), x.type.rank)
    place = from_end(places.at(indices), x.type.shape[axis])
    return x.at([place if position == axis else index for position, index in enumerate(indices)])


def _elements_reference(attrs: Attrs, x: Array, indices: Array) -> Array:
    axis = normalize_axis(int_attr(attrs, "axis"), x.ndim)
    kept = tuple(slice(None) if position == axis else slice(count) for position, count in enumerate(indices.shape))
    return np.take_along_axis(x[kept], from_end_array(indices, x.shape[axis]), axis=axis)


def _elements_samples(rng: Any) -> list[Sample]:
    return [
        Sample((normal(rng, 5, 4), integers(rng, 3, 4, lo=-5, hi=5)), {"axis": 0}),
        Sample((normal(rng, 5, 4, 3), integers(rng, 2, 7, 3, lo=-4, hi=4)), {"axis": 1}),
        Sample((normal(rng, 6), integers(rng, 9, lo=-20, hi=20, dtype=np.int32)), {"axis": -1}),
        Sample((integers(rng, 2, 2), integers(rng, 2, 2, lo=0, hi=2)), {"axis": 1}),
    ]


register(
    OpDef(
        name="gather_elements", doc="One element of x per index: out[…, i, …] = x[…, indices[…, i, …], …].",
        inputs=("x", "indices"), kind=Kind.GATHER, infer=_elements_infer, samples=_elements_samples,
        attrs={"axis": AttrSpec("int", 0)}, access=_elements_access, reference=_elements_reference,
    )
)  # fmt: skip


# gather_nd


def _nd_depth(attrs: Attrs, x: TensorType, indices: TensorType) -> tuple[int, int]:
    batch = int_attr(attrs, "batch_dims")
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise OpError(f"gather_nd needs a fixed last extent of its indices; it is {depth}")
    if batch < 0 or batch >= indices.rank or batch + depth > x.rank:
        raise OpError(f"{batch} batch axes and {depth} indices do not fit a tensor of rank {x.rank}")
    return batch, depth


def _nd_infer(attrs: Attrs, x: TensorType, indices: TensorType) -> TensorType:
    _indexed(x, indices)
    need_rank("the indices", indices, 1)
    batch, depth = _nd_depth(attrs, x, indices)
    for axis in range(batch):
        same_extent(x.shape[axis], indices.shape[axis], f"gather_nd's batch axis {axis}")
    return TensorType(x.dtype, (*indices.shape[:-1], *x.shape[batch + depth :]))


def _nd_access(attrs: Attrs, sources: Sequence[Source | None], out: TensorType, indices: Sequence[Expr]) -> Expr:
    x, places = given(sources[0]), given(sources[1])
    batch, depth = _nd_depth(attrs, x.type, places.type)
    outer = indices[: places.type.rank - 1]
    found = [
        from_end(places.at([*outer, const(position, I64)]), x.type.shape[batch + position]) for position in range(depth)
    ]
    return x.at([*indices[:batch], *found, *indices[len(outer) :]])


def _nd_reference(attrs: Attrs, x: Array, indices: Array) -> Array:
    batch, depth = int_attr(attrs, "batch_dims"), indices.shape[-1]
    outer = indices.shape[:-1]
    result = np.empty((*outer, *x.shape[batch + depth :]), x.dtype)
    for place in np.ndindex(*outer):
        found = tuple(
            min(max(i + n if i < 0 else i, 0), n - 1)
            for i, n in zip(map(int, indices[place]), x.shape[batch : batch + depth], strict=True)
        )
        result[place] = x[place[:batch] + found]
    return result


def _nd_samples(rng: Any) -> list[Sample]:
    return [
        Sample((normal(rng, 4, 5, 6), integers(rng, 3, 2, lo=-4, hi=4))),
        Sample((normal(rng, 4, 5), integers(rng, 2, 3, 2, lo=-4, hi=4))),
        Sample((normal(rng, 2, 5, 6), integers(rng, 2, 3, 1, lo=-5, hi=5)), {"batch_dims": 1}),
        Sample((normal(rng, 2, 3, 6), integers(rng, 2, 3, 1, lo=-40, hi=40)), {"batch_dims": 2}),
        Sample((integers(rng, 7), integers(rng, 4, 1, lo=0, hi=7, dtype=np.int32))),
    ]


register(
    OpDef(
        name="gather_nd", doc="Slices of x at index tuples, the last axis of the indices; leading axes may be batch.",
        inputs=("x", "indices"), kind=Kind.GATHER, infer=_nd_infer, samples=_nd_samples,
        attrs={"batch_dims": AttrSpec("int", 0)}, access=_nd_access, reference=_nd_reference,
    )
)  # fmt: skip


# one_hot


def _one_hot_shape(attrs: Attrs, indices: TensorType) -> tuple[int, tuple[Dim, ...]]:
    axis = normalize_axis(int_attr(attrs, "axis"), indices.rank + 1)
    depth: Any = attrs["depth"]
    return axis, (*indices.shape[:axis], depth, *indices.shape[axis:])


def _one_hot_infer(attrs: Attrs, indices: TensorType, values: TensorType) -> TensorType:
    need_family("the indices", indices, INTEGER)
    if values.shape != (2,):
        raise OpError(f"one_hot's values are [off, on]; their shape is {values.shape}")
    return TensorType(values.dtype, _one_hot_shape(attrs, indices)[1])


def _one_hot_access(attrs: Attrs, sources: Sequence[Source | None], out: TensorType, indices: Sequence[Expr]) -> Expr:
    places, values = given(sources[0]), given(sources[1])
    axis, shape = _one_hot_shape(attrs, places.type)
    place = cast(places.at([*indices[:axis], *indices[axis + 1 :]]), I64)
    place = select(call("lt", place, 0), place + dim(shape[axis]), place)
    return values.at([cast(call("eq", place, indices[axis]), I64)])


def _one_hot_reference(attrs: Attrs, indices: Array, values: Array) -> Array:
    (depth,) = fixed((attrs["depth"],))
    axis = normalize_axis(int_attr(attrs, "axis"), indices.ndim + 1)
    wide = indices.astype(np.int64)
    hot = np.where(wide < 0, wide + depth, wide)[..., None] == np.arange(depth)
    return np.asarray(values[np.moveaxis(hot, -1, axis).astype(np.int64)])


def _one_hot_samples(rng: Any) -> list[Sample]:
    return [
        Sample((integers(rng, 2, 3, lo=-5, hi=5), normal(rng, 2)), {"depth": 5, "axis": -1}),
        Sample((integers(rng, 2, 3, lo=-9, hi=9), normal(rng, 2)), {"depth": 4, "axis": 0}),
        Sample((integers(rng, 4, lo=0, hi=3, dtype=np.int32), np.array([0, 1])), {"depth": 3, "axis": 1}),
        Sample((np.array(2), np.array([False, True])), {"depth": 4, "axis": -1}),
    ]


register(
    OpDef(
        name="one_hot", doc="values[1] where the place on the new axis is the index, else values[0].",
        inputs=("indices", "values"), kind=Kind.GATHER, infer=_one_hot_infer, samples=_one_hot_samples,
        attrs={"depth": AttrSpec("dim"), "axis": AttrSpec("int", -1)}, access=_one_hot_access,
        reference=_one_hot_reference,
    )
)  # fmt: skip
