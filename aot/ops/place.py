"""GATHER ops that rearrange by position alone: pad, concat, tile, trilu; and tensors made from sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot import dims as dimension
from aot.dims import Dim
from aot.dtypes import F32, I32, I64
from aot.expr import Expr, call, cast, const, dim, select
from aot.ir import Array, TensorType
from aot.ops.helpers import (
    NUMERIC,
    booleans,
    dims_attr,
    dtype_attr,
    int_attr,
    integers,
    ints_attr,
    need_family,
    need_rank,
    need_same_dtype,
    normal,
)
from aot.ops.indexing import ZERO, all_of, clamp, fixed, given, simple_access, zero
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, OpError, Sample, Source, normalize_axis, register, same_extent
from aot.ops.views import check_extents

# pad

_MODES = ("constant", "reflect", "edge", "wrap")


def _pads(attrs: Attrs, rank: int) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    before, after = dims_attr(attrs, "before"), dims_attr(attrs, "after")
    if len(before) != rank or len(after) != rank:
        raise OpError(f"pad needs {rank} extents before and {rank} after; it has {len(before)} and {len(after)}")
    check_extents((*before, *after), "the padding")
    return before, after


def _pad_infer(attrs: Attrs, x: TensorType, value: TensorType | None = None) -> TensorType:
    before, after = _pads(attrs, x.rank)
    if attrs["mode"] not in _MODES:
        raise OpError(f"pad's mode is one of {', '.join(_MODES)}; it is {attrs['mode']!r}")
    if value is not None:
        need_same_dtype(x, value)
        need_rank("pad's value", value, 0, 0)
    if attrs["mode"] != "constant":
        for axis, (extent, left, right) in enumerate(zip(x.shape, before, after, strict=True)):
            if extent == 0 and (left != 0 or right != 0):
                raise OpError(f"axis {axis} is empty; mode {attrs['mode']!r} has nothing to repeat")
    return TensorType(x.dtype, tuple(b + n + a for b, n, a in zip(before, x.shape, after, strict=True)))


def _mirrored(index: Expr, extent: Dim, before: Dim, after: Dim) -> Expr:
    """An index reflected at 0 and extent-1, as often as it takes."""
    last = dim(extent - 1)
    inside = all(dimension.bounds(extent - 1 - pad)[0] >= 0 for pad in (before, after))
    if inside:  # at most one reflection at each end
        left = call("abs", index) if before != 0 else index
        return last - call("abs", last - left) if after != 0 else left
    period = dim(dimension.maximum(2 * (extent - 1), 1))
    phase = call("mod", index, period)
    return call("min", phase, period - phase)


def _pad_access(attrs: Attrs, sources: Sequence[Source | None], out: TensorType, indices: Sequence[Expr]) -> Expr:
    x = given(sources[0])
    value = sources[1] if len(sources) > 1 else None
    before, after = _pads(attrs, x.type.rank)
    places: list[Expr] = []
    guards: list[Expr] = []
    for index, left, right, extent in zip(indices, before, after, x.type.shape, strict=True):
        place = index - dim(left)
        if left == 0 and right == 0:
            pass
        elif attrs["mode"] == "constant":
            if left != 0:
                guards.append(index >= dim(left))
            if right != 0:
                guards.append(index < dim(left + extent))
        elif attrs["mode"] == "edge":
            place = clamp(place, extent)
        elif attrs["mode"] == "wrap":
            place = call("mod", place, dim(extent))
        else:
            place = _mirrored(place, extent, left, right)
        places.append(place)
    if not guards:
        return x.at(places)
    return x.at_if(all_of(guards), places, zero(x.type.dtype) if value is None else value.at(()))


def _pad_reference(attrs: Attrs, x: Array, value: Array | None = None) -> Array:
    before, after = _pads(attrs, x.ndim)
    widths = list(zip(fixed(before), fixed(after), strict=True))
    mode = str(attrs["mode"])
    if not x.ndim:
        return x.copy()
    if mode == "constant":
        return np.pad(x, widths, constant_values=x.dtype.type(0) if value is None else value[()])
    return np.pad(x, widths, mode=mode)  # type: ignore[call-overload, no-any-return]


def _pad_samples(rng: Any) -> list[Sample]:
    found = []
    for mode in _MODES:
        found.append(Sample((normal(rng, 3, 5),), {"before": (1, 2), "after": (0, 3), "mode": mode}))
        found.append(Sample((normal(rng, 2, 1, 4),), {"before": (0, 0, 3), "after": (0, 0, 3), "mode": mode}))
        found.append(Sample((integers(rng, 3),), {"before": (7,), "after": (8,), "mode": mode}))
        found.append(Sample((normal(rng, 1),), {"before": (2,), "after": (1,), "mode": mode}))
    value = np.array(-1.5, np.float32)
    found.append(Sample((normal(rng, 3, 5), value), {"before": (1, 0), "after": (1, 0)}))
    found.append(Sample((normal(rng, 0, 2), value), {"before": (1, 0), "after": (1, 1)}))
    found.append(Sample((booleans(rng, 3), np.array(True)), {"before": (1,), "after": (1,)}))
    found.append(Sample((normal(rng), value), {"before": (), "after": ()}))
    return found


register(
    OpDef(
        name="pad", doc="Elements added before and after, constant (0 if no value is given) or repeating x.",
        inputs=("x", "value?"), kind=Kind.GATHER, infer=_pad_infer, samples=_pad_samples, access=_pad_access,
        attrs={
            "before": AttrSpec("dims"), "after": AttrSpec("dims"),
            "mode": AttrSpec("str", "constant", "constant, reflect, edge or wrap"),
        },
        reference=_pad_reference,
    )
)  # fmt: skip


# concat


def _concat_infer(attrs: Attrs, *parts: TensorType) -> TensorType:
    if not parts:
        raise OpError("concat needs at least one operand")
    first = parts[0]
    need_rank("concat's operand", first, 1)
    axis = normalize_axis(int_attr(attrs, "axis"), first.rank)
    shape = list(first.shape)
    for part in parts[1:]:
        need_rank("concat's operand", part, first.rank, first.rank)
        for position, extent in enumerate(part.shape):
            if position == axis:
                shape[axis] = shape[axis] + extent
            else:
                shape[position] = same_extent(shape[position], extent, f"concat on axis {position}")
    return TensorType(need_same_dtype(*parts), tuple(shape))


def _concat_access(attrs: Attrs, sources: Sequence[Source | None], out: TensorType, indices: Sequence[Expr]) -> Expr:
    axis = normalize_axis(int_attr(attrs, "axis"), out.rank)
    index = indices[axis]
    parts = [given(source) for source in sources]
    if len(parts) == 1:
        return parts[0].at(indices)
    starts: list[Dim] = [0]
    for part in parts:
        starts.append(starts[-1] + part.type.shape[axis])
    result = zero(out.dtype)
    for number in range(len(parts) - 1, -1, -1):
        conditions = []
        if number > 0:
            conditions.append(index >= dim(starts[number]))
        if number < len(parts) - 1:
            conditions.append(index < dim(starts[number + 1]))
        place = [*indices[:axis], index - dim(starts[number]), *indices[axis + 1 :]]
        result = parts[number].at_if(all_of(conditions), place, result)
    return result


def _concat_samples(rng: Any) -> list[Sample]:
    return [
        Sample((normal(rng, 2, 3), normal(rng, 2, 4)), {"axis": 1}),
        Sample((normal(rng, 2, 3), normal(rng, 1, 3), normal(rng, 4, 3)), {"axis": 0}),
        Sample((normal(rng, 2, 3, 2), normal(rng, 2, 0, 2), normal(rng, 2, 1, 2)), {"axis": -2}),
        Sample((integers(rng, 3), integers(rng, 1)), {"axis": 0}),
        Sample((booleans(rng, 3), booleans(rng, 2)), {"axis": 0}),
        Sample((normal(rng, 4),), {"axis": 0}),
    ]


register(
    OpDef(
        name="concat", doc="The operands one after the other along an axis.", inputs=("*xs",), kind=Kind.GATHER,
        infer=_concat_infer, samples=_concat_samples, attrs={"axis": AttrSpec("int")}, access=_concat_access,
        reference=lambda attrs, *parts: np.concatenate(parts, axis=int_attr(attrs, "axis")),
    )
)  # fmt: skip


# tile


def _repeats(attrs: Attrs, rank: int) -> tuple[int, ...]:
    repeats = ints_attr(attrs, "repeats")
    if len(repeats) != rank or min(repeats, default=0) < 0:
        raise OpError(f"repeats {repeats} must be {rank} numbers, none negative")
    return repeats


def _tile_infer(attrs: Attrs, x: TensorType) -> TensorType:
    return TensorType(x.dtype, tuple(n * r for n, r in zip(x.shape, _repeats(attrs, x.rank), strict=True)))


def _tile_rule(attrs: Attrs, x: TensorType, indices: Sequence[Expr]) -> list[Expr]:
    return [
        ZERO if extent == 1 else index if repeat == 1 else call("mod", index, dim(extent))
        for index, extent, repeat in zip(indices, x.shape, _repeats(attrs, x.rank), strict=True)
    ]


def _tile_samples(rng: Any) -> list[Sample]:
    cases = (((2, 3), (2, 3)), ((2, 3), (1, 2)), ((1, 4), (5, 1)), ((), ()), ((3,), (0,)), ((2, 1, 2), (2, 2, 1)))
    found = [Sample((normal(rng, *shape),), {"repeats": repeats}) for shape, repeats in cases]
    return [*found, Sample((integers(rng, 3),), {"repeats": (4,)})]


register(
    OpDef(
        name="tile", doc="x repeated along each axis.", inputs=("x",), kind=Kind.GATHER, infer=_tile_infer,
        samples=_tile_samples, attrs={"repeats": AttrSpec("ints")}, access=simple_access(_tile_rule),
        reference=lambda attrs, x: np.array(np.tile(x, ints_attr(attrs, "repeats"))),
    )
)  # fmt: skip


# trilu


def _trilu_infer(attrs: Attrs, x: TensorType) -> TensorType:
    need_rank("trilu's operand", x, 2)
    return TensorType(x.dtype, x.shape)


def _trilu_access(attrs: Attrs, sources: Sequence[Source | None], out: TensorType, indices: Sequence[Expr]) -> Expr:
    x = given(sources[0])
    diagonal = indices[-2] + int_attr(attrs, "k")
    kept = indices[-1] >= diagonal if attrs["upper"] else indices[-1] <= diagonal
    return x.at_if(kept, indices, zero(x.type.dtype))


def _trilu_reference(attrs: Attrs, x: Array) -> Array:
    return (np.triu if attrs["upper"] else np.tril)(x, int_attr(attrs, "k"))


def _trilu_samples(rng: Any) -> list[Sample]:
    found = [
        Sample((normal(rng, *shape),), {"k": k, "upper": upper})
        for shape in ((4, 5), (2, 5, 3))
        for k in (0, -2, 1, 9)
        for upper in (False, True)
    ]
    return [*found, Sample((booleans(rng, 3, 3),), {}), Sample((integers(rng, 1, 4),), {"upper": False})]


register(
    OpDef(
        name="trilu", doc="The upper or lower triangle of the last two axes, from diagonal k on; 0 elsewhere.",
        inputs=("x",), kind=Kind.GATHER, infer=_trilu_infer, samples=_trilu_samples,
        attrs={"k": AttrSpec("int", 0), "upper": AttrSpec("bool", True)}, access=_trilu_access,
        reference=_trilu_reference,
    )
)  # fmt: skip


# Tensors made from sizes.


def _iota_infer(attrs: Attrs) -> TensorType:
    shape = dims_attr(attrs, "shape")
    check_extents(shape, "the shape")
    normalize_axis(int_attr(attrs, "axis"), len(shape))
    result = TensorType(dtype_attr(attrs, "dtype"), shape)
    need_rank("iota's shape", result, 1)
    need_family("iota's dtype", result, NUMERIC)
    return result


def _iota_access(attrs: Attrs, sources: Sequence[Source | None], out: TensorType, indices: Sequence[Expr]) -> Expr:
    index = indices[normalize_axis(int_attr(attrs, "axis"), out.rank)]
    return cast(index * int_attr(attrs, "step") + int_attr(attrs, "start"), out.dtype)


def _iota_reference(attrs: Attrs) -> Array:
    shape = fixed(dims_attr(attrs, "shape"))
    axis = normalize_axis(int_attr(attrs, "axis"), len(shape))
    run = np.arange(shape[axis]) * int_attr(attrs, "step") + int_attr(attrs, "start")
    return np.array(np.broadcast_to(run.reshape(-1, *(1,) * (len(shape) - 1 - axis)), shape)).astype(
        dtype_attr(attrs, "dtype").numpy
    )


def _iota_samples(rng: Any) -> list[Sample]:
    return [
        Sample((), {"shape": (7,), "axis": 0, "start": 0, "step": 1, "dtype": I64}),
        Sample((), {"shape": (3, 4), "axis": 1, "start": 5, "step": -2, "dtype": F32}),
        Sample((), {"shape": (3, 4, 2), "axis": 0, "start": -1, "step": 3, "dtype": I32}),
        Sample((), {"shape": (0,), "axis": 0, "start": 0, "step": 1, "dtype": I64}),
    ]


register(
    OpDef(
        name="iota", doc="start + step * i along an axis, the same on all others.", inputs=(), kind=Kind.GATHER,
        infer=_iota_infer, samples=_iota_samples, access=_iota_access, reference=_iota_reference,
        attrs={
            "shape": AttrSpec("dims"), "axis": AttrSpec("int", 0), "start": AttrSpec("int", 0),
            "step": AttrSpec("int", 1), "dtype": AttrSpec("dtype", I64),
        },
    )
)  # fmt: skip


def _dim_tensor_access(
    attrs: Attrs, sources: Sequence[Source | None], out: TensorType, indices: Sequence[Expr]
) -> Expr:
    sizes = dims_attr(attrs, "dims")
    result = dim(sizes[-1]) if sizes else ZERO
    for place in range(len(sizes) - 2, -1, -1):
        result = select(call("eq", indices[0], const(place, I64)), dim(sizes[place]), result)
    return result


register(
    OpDef(
        name="dim_tensor", doc="Known sizes as an i64 tensor.", inputs=(), kind=Kind.GATHER,
        infer=lambda attrs: TensorType(I64, (len(dims_attr(attrs, "dims")),)),
        samples=lambda rng: [Sample((), {"dims": (3, 5, -7)}), Sample((), {"dims": (9,)}), Sample((), {"dims": ()})],
        attrs={"dims": AttrSpec("dims")}, access=_dim_tensor_access,
        reference=lambda attrs: np.array(fixed(dims_attr(attrs, "dims")), dtype=np.int64),
    )
)  # fmt: skip
