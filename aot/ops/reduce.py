"""REDUCE ops: one value per row of the reduced axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aot import dims as dimension
from aot.dims import Dim
from aot.dtypes import I64
from aot.ir import Array, TensorType, Value
from aot.ops.helpers import NUMERIC, axes_attr, int_attr, integers, need_family, normal, wide_dtype
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, OpError, Sample, normalize_axis, register

if TYPE_CHECKING:
    from aot.builder import Builder

_AXES = {"axes": AttrSpec("ints"), "keepdims": AttrSpec("bool", True)}


def reduced_shape(shape: Sequence[Dim], axes: Sequence[int], keepdims: bool) -> tuple[Dim, ...]:
    """The shape after reducing `axes`."""
    if keepdims:
        return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


def _infer(attrs: Attrs, x: TensorType) -> TensorType:
    need_family("a reduction's operand", x, NUMERIC)
    return TensorType(x.dtype, reduced_shape(x.shape, axes_attr(attrs, x.rank), bool(attrs["keepdims"])))


def _wide_array(x: Array) -> Array:
    """Float arrays in float64, the others as they are."""
    return x if x.dtype.kind in "iub" else x.astype(np.float64)


def lowest(dtype: Any) -> Any:
    """The identity of max in a numpy dtype."""
    return -np.inf if np.dtype(dtype).kind not in "iu" else np.iinfo(dtype).min


def highest(dtype: Any) -> Any:
    """The identity of min in a numpy dtype."""
    return np.inf if np.dtype(dtype).kind not in "iu" else np.iinfo(dtype).max


def _reference(function: str) -> Any:
    def run(attrs: Attrs, x: Array) -> Array:
        axes, keep = axes_attr(attrs, x.ndim), bool(attrs["keepdims"])
        with np.errstate(all="ignore"):
            if function in ("sum", "prod"):
                wide_type = x.dtype if x.dtype.kind in "iu" else np.float64
                total = (np.sum if function == "sum" else np.prod)(x, axis=axes, keepdims=keep, dtype=wide_type)
                return np.asarray(total).astype(x.dtype)
            if function == "max":
                return np.asarray(np.max(x, axis=axes, keepdims=keep, initial=lowest(x.dtype)), dtype=x.dtype)
            return np.asarray(np.min(x, axis=axes, keepdims=keep, initial=highest(x.dtype)), dtype=x.dtype)

    return run


def _samples(rng: Any) -> list[Sample]:
    found = []
    for axes in ((0,), (-1,), (0, 2), (0, 1, 2), ()):
        for keepdims in (True, False):
            found.append(Sample((normal(rng, 3, 4, 5, scale=1.0),), {"axes": axes, "keepdims": keepdims}, 1e-5, 1e-5))
    special = np.array([[1, np.nan, 2], [np.inf, 0, 1], [-np.inf, -0.0, 0.0]], dtype=np.float32)
    found.append(Sample((special,), {"axes": (1,)}))
    found.append(Sample((normal(rng, 2, 37),), {"axes": (1,)}, 1e-5, 1e-5))
    found.append(Sample((normal(rng, 1, 1),), {"axes": (0,)}))
    found.append(Sample((normal(rng),), {"axes": (), "keepdims": False}))
    found.append(Sample((normal(rng, 3, 0),), {"axes": (1,), "keepdims": False}))
    found.append(Sample((integers(rng, 3, 6),), {"axes": (0,)}))
    found.append(Sample((integers(rng, 3, 6, dtype=np.int32),), {"axes": (1,), "keepdims": False}))
    found.append(Sample((normal(rng, 6, 2, dtype=np.float64),), {"axes": (0,)}))
    return found


for _name, _doc, _onnx in (
    ("sum", "The sum over axes; of floats in at least f32.", "ReduceSum"),
    ("max", "The largest over axes; NaN if any is NaN, the lowest value for no elements.", "ReduceMax"),
    ("min", "The smallest over axes; NaN if any is NaN, the highest value for no elements.", "ReduceMin"),
    ("prod", "The product over axes.", "ReduceProd"),
):
    register(
        OpDef(
            name=f"reduce_{_name}", doc=_doc, inputs=("x",), kind=Kind.REDUCE, infer=_infer, samples=_samples,
            attrs=_AXES, reduce=_name, reference=_reference(_name),
        )
    )  # fmt: skip


def inverse_count(builder: Builder, count: Dim, like: Value) -> Value:
    """1 / count as a rank-0 tensor of `like`'s dtype; computed when the program runs if count is symbolic."""
    dtype = like.type.dtype
    if isinstance(count, int):
        return builder.scalar(1.0 / count if count else float("nan"), dtype)
    known = builder.cast(builder.dim_tensor(dims=(count,)), to=dtype)
    result: Value = builder.reciprocal(builder.reshape(known, shape=()))
    return result


def mean(builder: Builder, x: Value, axes: tuple[int, ...], keepdims: bool = True) -> Value:
    """The mean of a float tensor over axes, as a sum times 1/n."""
    count = dimension.product(x.type.shape[axis] for axis in axes)
    total = builder.reduce_sum(x, axes=axes, keepdims=keepdims)
    result: Value = builder.mul(total, inverse_count(builder, count, x))
    return result


def _mean_decompose(builder: Builder, attrs: Attrs, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
    (x,) = inputs
    assert x is not None
    axes, keep = axes_attr(attrs, x.type.rank), bool(attrs["keepdims"])
    if x.type.dtype.is_integer:
        count = dimension.product(x.type.shape[axis] for axis in axes)
        total = builder.reduce_sum(x, axes=axes, keepdims=keep)
        if isinstance(count, int):
            return (builder.div(total, builder.scalar(count, x.type.dtype)),)
        number = builder.reshape(builder.dim_tensor(dims=(count,)), shape=())
        return (builder.div(total, builder.cast(number, to=x.type.dtype)),)
    return (narrow(builder, mean(builder, wide(builder, x), axes, keep), x),)


def wide(builder: Builder, x: Value) -> Value:
    """The tensor in the dtype in which rows of it are computed."""
    dtype = wide_dtype(x.type.dtype)
    if dtype == x.type.dtype:
        return x
    result: Value = builder.cast(x, to=dtype)
    return result


def narrow(builder: Builder, value: Value, like: Value) -> Value:
    """The tensor back in the dtype of `like`."""
    if value.type.dtype == like.type.dtype:
        return value
    result: Value = builder.cast(value, to=like.type.dtype)
    return result


def _mean_reference(attrs: Attrs, x: Array) -> Array:
    axes, keep = axes_attr(attrs, x.ndim), bool(attrs["keepdims"])
    count = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    total = np.asarray(np.sum(_wide_array(x), axis=axes, keepdims=keep))
    with np.errstate(all="ignore"):
        if x.dtype.kind in "iu":
            return np.asarray(np.sign(total) * (np.abs(total) // max(count, 1)), dtype=x.dtype)
        return np.asarray(total / count).astype(x.dtype)


register(
    OpDef(
        name="reduce_mean", doc="The mean over axes; integers truncate towards 0.", inputs=("x",), kind=Kind.REDUCE,
        infer=_infer, samples=_samples, attrs=_AXES, reference=_mean_reference, decompose=_mean_decompose,
    )
)  # fmt: skip


def _arg_infer(attrs: Attrs, x: TensorType) -> TensorType:
    need_family("the operand of argmax and argmin", x, NUMERIC)
    axis = normalize_axis(int_attr(attrs, "axis"), x.rank)
    if x.rank and x.shape[axis] == 0:
        raise OpError("argmax and argmin need at least one element along their axis")
    return TensorType(I64, reduced_shape(x.shape, (axis,), bool(attrs["keepdims"])))


def _arg_reference(function: Any) -> Any:
    def run(attrs: Attrs, x: Array) -> Array:
        if not x.ndim:
            return np.zeros((), np.int64)
        axis = normalize_axis(int_attr(attrs, "axis"), x.ndim)
        keep = bool(attrs["keepdims"])
        if not attrs["last"]:
            return np.asarray(function(x, axis=axis, keepdims=keep), dtype=np.int64)
        flipped = function(np.flip(x, axis), axis=axis, keepdims=keep)
        return np.asarray(x.shape[axis] - 1 - flipped, dtype=np.int64)

    return run


def _arg_samples(rng: Any) -> list[Sample]:
    ties = np.array([[1, 3, 3, 2], [0.0, -0.0, 0.0, -0.0], [5, 5, 5, 5]], dtype=np.float32)
    found = []
    for last in (False, True):
        for keepdims in (True, False):
            attrs = {"axis": -1, "keepdims": keepdims, "last": last}
            found.append(Sample((ties,), attrs))
            found.append(Sample((normal(rng, 2, 3, 19),), attrs))
        found.append(Sample((integers(rng, 5, 4, hi=0),), {"axis": 0, "last": last}))
        found.append(Sample((normal(rng, 3, 1),), {"axis": 1, "last": last}))
        found.append(Sample((np.array([-np.inf, np.inf, -np.inf, np.inf], np.float32),), {"axis": 0, "last": last}))
        found.append(Sample((integers(rng, 3, 33, lo=0, hi=2, dtype=np.int32),), {"axis": 1, "last": last}))
    return found


for _name in ("argmax", "argmin"):
    register(
        OpDef(
            name=_name, doc=f"Where the {_name[3:]}imum along an axis is: the first place, or the last.",
            inputs=("x",), kind=Kind.REDUCE, infer=_arg_infer, samples=_arg_samples, reduce=_name,
            attrs={"axis": AttrSpec("int"), "keepdims": AttrSpec("bool", True), "last": AttrSpec("bool", False)},
            reference=_arg_reference(np.argmax if _name == "argmax" else np.argmin),
        )
    )  # fmt: skip
