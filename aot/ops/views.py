"""VIEW ops: the same elements under another index; whether bytes move depends on the layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot import dims as dimension
from aot.dims import Dim
from aot.expr import Expr, dim
from aot.ir import Array, TensorType
from aot.ops.helpers import booleans, dims_attr, integers, ints_attr, normal
from aot.ops.indexing import ZERO, fixed, given, reshaped, simple_access
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, OpError, Sample, Source, broadcast_shapes, register


def _text(shape: Sequence[Dim]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def check_extents(shape: Sequence[Dim], what: str) -> None:
    """Raises OpError for an extent that is certainly negative."""
    for extent in shape:
        if dimension.bounds(extent)[1] < 0:
            raise OpError(f"{what} {_text(shape)} has a negative extent")


# Reshape.


def _reshape_infer(attrs: Attrs, x: TensorType) -> TensorType:
    shape = dims_attr(attrs, "shape")
    check_extents(shape, "the shape")
    before, after = x.elements, dimension.product(shape)
    lo, hi = dimension.bounds(before - after)
    if lo > 0 or hi < 0:
        raise OpError(f"{_text(x.shape)} has {before} elements; {_text(shape)} has {after}")
    return TensorType(x.dtype, shape)


def _reshape_access(attrs: Attrs, sources: Sequence[Source | None], out: TensorType, indices: Sequence[Expr]) -> Expr:
    source = given(sources[0])
    return source.at(reshaped(source.type.shape, out.shape, indices))


def _reshape_samples(rng: Any) -> list[Sample]:
    shapes = (
        ((2, 3, 4), (6, 4)), ((6, 4), (2, 3, 4)), ((2, 3, 4), (4, 6)), ((2, 3, 4), (2, 1, 3, 1, 4)),
        ((1, 5, 1), (5,)), ((5,), (1, 5, 1)), ((1, 1), ()), ((), (1, 1, 1)), ((3, 0, 2), (0, 7)),
        ((2, 12, 5), (2, 3, 4, 5)), ((4, 6, 10), (8, 3, 2, 5)), ((2, 3, 4), (2, 3, 4)), ((7, 1, 3), (1, 21)),
    )  # fmt: skip
    found = [Sample((normal(rng, *before),), {"shape": after}) for before, after in shapes]
    return [*found, Sample((integers(rng, 6),), {"shape": (3, 2)}), Sample((booleans(rng, 6),), {"shape": (2, 3)})]


for _name, _kind, _doc in (
    ("reshape", Kind.VIEW, "The same elements in row-major order under another shape."),
    ("reshape_copy", Kind.GATHER, "A reshape whose result is memory of its own: kernels read through it."),
):
    register(
        OpDef(
            name=_name, doc=_doc, inputs=("x",), kind=_kind,
            infer=_reshape_infer, samples=_reshape_samples, attrs={"shape": AttrSpec("dims")}, access=_reshape_access,
            reference=lambda attrs, x: np.reshape(x, fixed(dims_attr(attrs, "shape"))), cost_flops=0,
        )
    )  # fmt: skip


# Transpose.


def _perm(attrs: Attrs, rank: int) -> tuple[int, ...]:
    perm = ints_attr(attrs, "perm")
    if sorted(perm) != list(range(rank)):
        raise OpError(f"perm {perm} is no permutation of the axes of rank {rank}")
    return perm


def _transpose_infer(attrs: Attrs, x: TensorType) -> TensorType:
    return TensorType(x.dtype, tuple(x.shape[axis] for axis in _perm(attrs, x.rank)))


def _transpose_rule(attrs: Attrs, x: TensorType, indices: Sequence[Expr]) -> list[Expr]:
    perm = _perm(attrs, x.rank)
    return [indices[perm.index(axis)] for axis in range(x.rank)]


def _transpose_samples(rng: Any) -> list[Sample]:
    cases = (((3, 5), (1, 0)), ((2, 3, 4), (2, 0, 1)), ((2, 3, 4, 5), (0, 2, 3, 1)), ((2, 3, 4, 5), (0, 3, 1, 2)),
             ((17, 33), (1, 0)), ((), ()), ((4,), (0,)), ((1, 3, 1), (2, 1, 0)), ((0, 2), (1, 0)))  # fmt: skip
    found = [Sample((normal(rng, *shape),), {"perm": perm}) for shape, perm in cases]
    return [*found, Sample((integers(rng, 2, 3),), {"perm": (1, 0)}), Sample((booleans(rng, 2, 3),), {"perm": (1, 0)})]


for _name, _kind, _doc in (
    ("transpose", Kind.VIEW, "Axis a of the result is axis perm[a] of the operand."),
    ("transpose_copy", Kind.GATHER, "A transpose whose result is memory of its own: kernels read through it."),
):
    register(
        OpDef(
            name=_name, doc=_doc, inputs=("x",), kind=_kind,
            infer=_transpose_infer, samples=_transpose_samples, attrs={"perm": AttrSpec("ints")},
            access=simple_access(_transpose_rule),
            reference=lambda attrs, x: np.ascontiguousarray(np.transpose(x, ints_attr(attrs, "perm"))).reshape(
                [x.shape[axis] for axis in ints_attr(attrs, "perm")]
            ),
            cost_flops=0,
        )
    )  # fmt: skip


# Slice.


def _slice_attrs(attrs: Attrs, rank: int) -> tuple[tuple[Dim, ...], tuple[Dim, ...], tuple[int, ...]]:
    starts, sizes, steps = dims_attr(attrs, "starts"), dims_attr(attrs, "sizes"), ints_attr(attrs, "steps")
    if not len(starts) == len(sizes) == len(steps) == rank:
        raise OpError(f"slice needs a start, a size and a step for each of {rank} axes")
    return starts, sizes, steps


def _slice_infer(attrs: Attrs, x: TensorType) -> TensorType:
    starts, sizes, steps = _slice_attrs(attrs, x.rank)
    check_extents(sizes, "the slice's size")
    for axis, (start, size, step, extent) in enumerate(zip(starts, sizes, steps, x.shape, strict=True)):
        if step == 0:
            raise OpError(f"slice's step on axis {axis} is 0")
        if size == 0:
            continue
        for end in (start, start + (size - 1) * step):
            below, above = dimension.bounds(end), dimension.bounds(end - extent)
            if dimension.bounds(size)[0] > 0 and (below[1] < 0 or above[0] >= 0):
                raise OpError(f"slice reads index {end} of axis {axis}, whose extent is {extent}")
    return TensorType(x.dtype, sizes)


def _slice_rule(attrs: Attrs, x: TensorType, indices: Sequence[Expr]) -> list[Expr]:
    starts, _, steps = _slice_attrs(attrs, x.rank)
    return [index * dim(step) + dim(start) for index, start, step in zip(indices, starts, steps, strict=True)]


def _slice_reference(attrs: Attrs, x: Array) -> Array:
    starts, sizes, steps = _slice_attrs(attrs, x.ndim)
    for axis, (start, size, step) in enumerate(zip(fixed(starts), fixed(sizes), steps, strict=True)):
        x = np.take(x, start + np.arange(size) * step, axis=axis)
    return x


def _slice_samples(rng: Any) -> list[Sample]:
    cases = (
        ((7, 9), (1, 2), (3, 4), (1, 1)), ((7, 9), (6, 0), (7, 5), (-1, 2)), ((7, 9), (5, 8), (2, 3), (-3, -4)),
        ((4,), (2,), (0,), (1,)), ((), (), (), ()), ((3, 1, 2), (0, 0, 1), (3, 1, 1), (1, 1, 1)),
        ((5,), (4,), (1,), (7,)),
    )  # fmt: skip
    found = [
        Sample((normal(rng, *shape),), {"starts": starts, "sizes": sizes, "steps": steps})
        for shape, starts, sizes, steps in cases
    ]
    return [*found, Sample((integers(rng, 6),), {"starts": (1,), "sizes": (3,), "steps": (2,)})]


register(
    OpDef(
        name="slice", doc="out[i] = x[start + i * step] on every axis; steps may be negative.", inputs=("x",),
        kind=Kind.VIEW, infer=_slice_infer, samples=_slice_samples, access=simple_access(_slice_rule),
        attrs={"starts": AttrSpec("dims"), "sizes": AttrSpec("dims"), "steps": AttrSpec("ints")},
        reference=_slice_reference, cost_flops=0,
    )
)  # fmt: skip


# Expand.


def _expand_infer(attrs: Attrs, x: TensorType) -> TensorType:
    shape = dims_attr(attrs, "shape")
    if x.rank > len(shape) or broadcast_shapes(x.shape, shape) != shape:
        raise OpError(f"{_text(x.shape)} does not broadcast to {_text(shape)}")
    return TensorType(x.dtype, shape)


def _expand_rule(attrs: Attrs, x: TensorType, indices: Sequence[Expr]) -> list[Expr]:
    trailing = indices[len(indices) - x.rank :]
    return [ZERO if extent == 1 else index for index, extent in zip(trailing, x.shape, strict=True)]


def _expand_samples(rng: Any) -> list[Sample]:
    cases = (((3, 1), (3, 4)), ((4,), (2, 3, 4)), ((), (2, 3)), ((1, 5, 1), (2, 5, 3)), ((2, 3), (2, 3)), ((1,), (0,)))
    found = [Sample((normal(rng, *before),), {"shape": after}) for before, after in cases]
    return [*found, Sample((booleans(rng, 3, 1),), {"shape": (3, 2)}), Sample((integers(rng),), {"shape": (5,)})]


register(
    OpDef(
        name="expand", doc="numpy's broadcast to a shape.", inputs=("x",), kind=Kind.VIEW, infer=_expand_infer,
        samples=_expand_samples, attrs={"shape": AttrSpec("dims")}, access=simple_access(_expand_rule),
        reference=lambda attrs, x: np.array(np.broadcast_to(x, fixed(dims_attr(attrs, "shape")))), cost_flops=0,
    )
)  # fmt: skip
