"""ROW ops: chains of MAP and REDUCE over rows that one kernel keeps on chip; and batch norm.

Each is lowered through its decomposition. Rows of f16 and bf16 are computed in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.dims import Dim, exact_div
from aot.ir import Array, TensorType, Value
from aot.ops.helpers import FLOAT, float_attr, int_attr, need_family, need_rank, need_same_dtype, normal
from aot.ops.opdef import (
    Attrs,
    AttrSpec,
    Kind,
    OpDef,
    OpError,
    Sample,
    broadcast_shapes,
    normalize_axis,
    register,
    same_extent,
)
from aot.ops.reduce import mean, narrow, wide

if TYPE_CHECKING:
    from aot.builder import Builder

_EPSILON = AttrSpec("float", 1e-5, "added to the variance")


def _given(value: Value | None) -> Value:
    assert value is not None
    return value


def _optional(inputs: Sequence[Value | None], index: int) -> Value | None:
    return inputs[index] if index < len(inputs) else None


# Softmax.


def _softmax_infer(attrs: Attrs, x: TensorType) -> TensorType:
    need_family("softmax's operand", x, FLOAT)
    normalize_axis(int_attr(attrs, "axis"), x.rank)
    return TensorType(x.dtype, x.shape)


def _softmax_decompose(builder: Builder, attrs: Attrs, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
    x = _given(inputs[0])
    axes = (normalize_axis(int_attr(attrs, "axis"), x.type.rank),) if x.type.rank else ()
    row = wide(builder, x)
    powers = builder.exp(builder.sub(row, builder.reduce_max(row, axes=axes)))
    inverse = builder.reciprocal(builder.reduce_sum(powers, axes=axes))
    return (narrow(builder, builder.mul(powers, inverse), x),)


def _log_softmax_decompose(builder: Builder, attrs: Attrs, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
    x = _given(inputs[0])
    axes = (normalize_axis(int_attr(attrs, "axis"), x.type.rank),) if x.type.rank else ()
    row = wide(builder, x)
    shifted = builder.sub(row, builder.reduce_max(row, axes=axes))
    total = builder.log(builder.reduce_sum(builder.exp(shifted), axes=axes))
    return (narrow(builder, builder.sub(shifted, total), x),)


def softmax_array(x: Array, axis: int) -> Array:
    """Softmax of a float64 array along an axis."""
    if not x.size:
        return x
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return np.asarray(powers / np.sum(powers, axis=axis, keepdims=True))


def _softmax_reference(attrs: Attrs, x: Array) -> Array:
    with np.errstate(all="ignore"):
        if not x.ndim:
            return np.asarray(x - x + 1).astype(x.dtype)
        return softmax_array(x.astype(np.float64), int_attr(attrs, "axis")).astype(x.dtype)


def _log_softmax_reference(attrs: Attrs, x: Array) -> Array:
    if not x.size:
        return x
    axis = int_attr(attrs, "axis") if x.ndim else None
    with np.errstate(all="ignore"):
        values = x.astype(np.float64)
        shifted = values - np.max(values, axis=axis, keepdims=True)
        return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))).astype(x.dtype)


def _softmax_samples(rng: Any) -> list[Sample]:
    special = np.array([[0, -np.inf, 1], [np.nan, 1, 2], [np.inf, 0, 0], [-0.0, 0, 0], [100, -100, 99]], np.float32)
    return [
        Sample((normal(rng, 2, 3, 17),), {"axis": -1}),
        Sample((normal(rng, 3, 5, 4),), {"axis": 1}),
        Sample((normal(rng, 9, 2),), {"axis": 0}),
        Sample((normal(rng, 4, 1),), {"axis": 1}),
        Sample((special,), {"axis": 1}),
        Sample((normal(rng),), {"axis": -1}),
        Sample((normal(rng, 0, 5),), {"axis": 1}),
        Sample((normal(rng, 2, 130, scale=10),), {"axis": 1}),
        Sample((normal(rng, 5, 6, dtype=np.float64),), {"axis": 1}),
    ]


register(
    OpDef(
        name="softmax", doc="exp(x) over its sum along an axis.", inputs=("x",), kind=Kind.ROW, infer=_softmax_infer,
        samples=_softmax_samples, attrs={"axis": AttrSpec("int", -1)}, reference=_softmax_reference,
        decompose=_softmax_decompose, cost_flops=16,
    )
)  # fmt: skip
register(
    OpDef(
        name="log_softmax", doc="The logarithm of softmax along an axis.", inputs=("x",), kind=Kind.ROW,
        infer=_softmax_infer, samples=_softmax_samples, attrs={"axis": AttrSpec("int", -1)},
        reference=_log_softmax_reference, decompose=_log_softmax_decompose, cost_flops=16,
    )
)  # fmt: skip


# Norms over the trailing axes.


def _trailing_infer(
    attrs: Attrs, x: TensorType, scale: TensorType | None = None, bias: TensorType | None = None
) -> TensorType:
    need_family("a norm's operand", x, FLOAT)
    need_rank("a norm's operand", x, 1)
    axis = normalize_axis(int_attr(attrs, "axis"), x.rank)
    for what, part in (("scale", scale), ("bias", bias)):
        if part is None:
            continue
        need_same_dtype(x, part)
        if part.rank > x.rank or broadcast_shapes(x.shape, part.shape) != x.shape:
            shape = ", ".join(map(str, x.shape[axis:]))
            raise OpError(f"{what} must broadcast to [{shape}]; its shape is [{', '.join(map(str, part.shape))}]")
    return TensorType(x.dtype, x.shape)


def _trailing_axes(attrs: Attrs, rank: int) -> tuple[int, ...]:
    return tuple(range(normalize_axis(int_attr(attrs, "axis"), rank), rank))


def _scaled(builder: Builder, row: Value, x: Value, scale: Value | None, bias: Value | None) -> Value:
    if scale is not None:
        row = builder.mul(row, wide(builder, scale))
    if bias is not None:
        row = builder.add(row, wide(builder, bias))
    return narrow(builder, row, x)


def _normalized(builder: Builder, row: Value, axes: tuple[int, ...], epsilon: float, centred: bool) -> Value:
    """(row - mean) / sqrt(variance + epsilon), or row / sqrt(mean square + epsilon)."""
    distance = builder.sub(row, mean(builder, row, axes)) if centred else row
    variance = mean(builder, builder.mul(distance, distance), axes)
    factor = builder.rsqrt(builder.add(variance, builder.scalar(epsilon, row.type.dtype)))
    result: Value = builder.mul(distance, factor)
    return result


def _layer_norm_decompose(builder: Builder, attrs: Attrs, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
    x = _given(inputs[0])
    axes = _trailing_axes(attrs, x.type.rank)
    row = _normalized(builder, wide(builder, x), axes, float_attr(attrs, "epsilon"), centred=True)
    return (_scaled(builder, row, x, _optional(inputs, 1), _optional(inputs, 2)),)


def _rms_norm_decompose(builder: Builder, attrs: Attrs, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
    x = _given(inputs[0])
    axes = _trailing_axes(attrs, x.type.rank)
    row = _normalized(builder, wide(builder, x), axes, float_attr(attrs, "epsilon"), centred=False)
    return (_scaled(builder, row, x, _optional(inputs, 1), None),)


def _normalized_array(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    values = x.astype(np.float64)
    with np.errstate(all="ignore"):
        if not x.size:
            return values
        return np.asarray(
            (values - values.mean(axis=axes, keepdims=True)) / np.sqrt(values.var(axis=axes, keepdims=True) + epsilon)
        )


def _layer_norm_reference(attrs: Attrs, x: Array, scale: Array | None = None, bias: Array | None = None) -> Array:
    result = _normalized_array(x, _trailing_axes(attrs, x.ndim), float_attr(attrs, "epsilon"))
    with np.errstate(all="ignore"):
        result = result if scale is None else result * scale.astype(np.float64)
        return (result if bias is None else result + bias.astype(np.float64)).astype(x.dtype)


def _rms_norm_reference(attrs: Attrs, x: Array, scale: Array | None = None) -> Array:
    values = x.astype(np.float64)
    axes = _trailing_axes(attrs, x.ndim)
    with np.errstate(all="ignore"):
        if x.size:
            values = values / np.sqrt(np.square(values).mean(axis=axes, keepdims=True) + float_attr(attrs, "epsilon"))
        return (values if scale is None else values * scale.astype(np.float64)).astype(x.dtype)


def _layer_norm_samples(rng: Any) -> list[Sample]:
    special = np.array([[1, np.nan, 0], [np.inf, 0, 1], [3, 3, 3]], np.float32)
    return [
        Sample((normal(rng, 2, 3, 17), normal(rng, 17), normal(rng, 17)), {"axis": -1}, 1e-4, 1e-5),
        Sample((normal(rng, 2, 3, 5), normal(rng, 3, 5), normal(rng, 3, 5)), {"axis": 1, "epsilon": 1e-3}, 1e-4, 1e-5),
        Sample((normal(rng, 4, 33), None, normal(rng, 33)), {"axis": 1}, 1e-4, 1e-5),
        Sample((normal(rng, 4, 8) + np.float32(100), normal(rng, 8)), {"axis": 1}, 1e-3, 1e-3),
        Sample((normal(rng, 6),), {"axis": 0}, 1e-4, 1e-5),
        Sample((special,), {"axis": 1}, 1e-4, 1e-5),
        Sample((normal(rng, 3, 4, dtype=np.float64), normal(rng, 4, dtype=np.float64)), {"axis": 1}),
    ]


def _rms_norm_samples(rng: Any) -> list[Sample]:
    return [
        Sample((normal(rng, 2, 3, 17), normal(rng, 17)), {"axis": -1}, 1e-4, 1e-5),
        Sample((normal(rng, 2, 3, 5), normal(rng, 3, 5)), {"axis": 1, "epsilon": 1e-3}, 1e-4, 1e-5),
        Sample((normal(rng, 2, 9),), {"axis": 1}, 1e-4, 1e-5),
        Sample((np.zeros((2, 4), np.float32),), {"axis": 1}),
    ]


register(
    OpDef(
        name="layer_norm", doc="Rows over axes axis… to mean 0 and variance 1, then * scale + bias.",
        inputs=("x", "scale?", "bias?"), kind=Kind.ROW, infer=_trailing_infer, samples=_layer_norm_samples,
        attrs={"axis": AttrSpec("int", -1), "epsilon": _EPSILON}, reference=_layer_norm_reference,
        decompose=_layer_norm_decompose, cost_flops=10,
    )
)  # fmt: skip
register(
    OpDef(
        name="rms_norm", doc="Rows over axes axis… divided by their root mean square, then * scale.",
        inputs=("x", "scale?"), kind=Kind.ROW, infer=_trailing_infer, samples=_rms_norm_samples,
        attrs={"axis": AttrSpec("int", -1), "epsilon": _EPSILON}, reference=_rms_norm_reference,
        decompose=_rms_norm_decompose, cost_flops=6,
    )
)  # fmt: skip


# Norms of images [N, C, …] with per-channel parameters [C].


def _channel_infer(attrs: Attrs, x: TensorType, *parameters: TensorType) -> TensorType:
    need_family("a norm's operand", x, FLOAT)
    need_rank("a norm's operand", x, 2)
    need_same_dtype(x, *parameters)
    for part in parameters:
        need_rank("a per-channel parameter", part, 1, 1)
        same_extent(part.shape[0], x.shape[1], "a per-channel parameter's length and the channels")
    return TensorType(x.dtype, x.shape)


def _group_infer(attrs: Attrs, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
    result = _channel_infer(attrs, x, scale, bias)
    groups = int_attr(attrs, "groups")
    if groups < 1 or exact_div(x.shape[1], groups) is None:
        raise OpError(f"{x.shape[1]} channels do not divide into {groups} groups")
    return result


def _per_channel(builder: Builder, part: Value, x: Value) -> Value:
    """[C] as [C, 1, …], to broadcast against [N, C, …]."""
    shape: tuple[Dim, ...] = (part.type.shape[0], *(1,) * (x.type.rank - 2))
    result: Value = builder.reshape(part, shape=shape)
    return result


def _group_decompose(builder: Builder, attrs: Attrs, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
    x, scale, bias = map(_given, inputs)
    groups = int_attr(attrs, "groups")
    batch, channels, *spatial = x.type.shape
    per_group = exact_div(channels, groups)
    assert per_group is not None
    row = builder.reshape(wide(builder, x), shape=(batch, groups, per_group, *spatial))
    axes = tuple(range(2, row.type.rank))
    row = _normalized(builder, row, axes, float_attr(attrs, "epsilon"), centred=True)
    row = builder.reshape(row, shape=x.type.shape)
    return (_scaled(builder, row, x, _per_channel(builder, scale, x), _per_channel(builder, bias, x)),)


def _instance_decompose(builder: Builder, attrs: Attrs, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
    x, scale, bias = map(_given, inputs)
    axes = tuple(range(2, x.type.rank))
    row = _normalized(builder, wide(builder, x), axes, float_attr(attrs, "epsilon"), centred=True)
    return (_scaled(builder, row, x, _per_channel(builder, scale, x), _per_channel(builder, bias, x)),)


def _channel_array(part: Array, x: Array) -> Array:
    return part.astype(np.float64).reshape(1, -1, *(1,) * (x.ndim - 2))


def _instance_reference(attrs: Attrs, x: Array, scale: Array, bias: Array) -> Array:
    rows = _normalized_array(x, tuple(range(2, x.ndim)), float_attr(attrs, "epsilon"))
    return (rows * _channel_array(scale, x) + _channel_array(bias, x)).astype(x.dtype)


def _group_reference(attrs: Attrs, x: Array, scale: Array, bias: Array) -> Array:
    if not x.size:
        return x
    rows = x.reshape(x.shape[0], int_attr(attrs, "groups"), -1)
    rows = _normalized_array(rows, (2,), float_attr(attrs, "epsilon")).reshape(x.shape)
    return (rows * _channel_array(scale, x) + _channel_array(bias, x)).astype(x.dtype)


def _instance_samples(rng: Any) -> list[Sample]:
    return [
        Sample((normal(rng, 2, 3, 4, 5), normal(rng, 3), normal(rng, 3)), {}, 1e-4, 1e-5),
        Sample((normal(rng, 1, 5, 9), normal(rng, 5), normal(rng, 5)), {"epsilon": 1e-3}, 1e-4, 1e-5),
    ]


def _group_samples(rng: Any) -> list[Sample]:
    return [
        Sample((normal(rng, 2, 6, 4, 5), normal(rng, 6), normal(rng, 6)), {"groups": 2}, 1e-4, 1e-5),
        Sample((normal(rng, 2, 6, 7), normal(rng, 6), normal(rng, 6)), {"groups": 6}, 1e-4, 1e-5),
        Sample((normal(rng, 3, 4), normal(rng, 4), normal(rng, 4)), {"groups": 1}, 1e-4, 1e-5),
    ]


register(
    OpDef(
        name="instance_norm", doc="Each channel of each image to mean 0 and variance 1, then * scale + bias.",
        inputs=("x", "scale", "bias"), kind=Kind.ROW, infer=_channel_infer, samples=_instance_samples,
        attrs={"epsilon": _EPSILON}, reference=_instance_reference, decompose=_instance_decompose, cost_flops=10,
    )
)  # fmt: skip
register(
    OpDef(
        name="group_norm", doc="Groups of channels of each image to mean 0 and variance 1, then * scale + bias.",
        inputs=("x", "scale", "bias"), kind=Kind.ROW, infer=_group_infer, samples=_group_samples,
        attrs={"groups": AttrSpec("int"), "epsilon": _EPSILON}, reference=_group_reference,
        decompose=_group_decompose, cost_flops=10,
    )
)  # fmt: skip


def _batch_norm_decompose(builder: Builder, attrs: Attrs, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
    x = _given(inputs[0])
    scale, bias, centre, variance = (wide(builder, _given(part)) for part in inputs[1:])
    epsilon = builder.scalar(float_attr(attrs, "epsilon"), variance.type.dtype)
    factor = builder.div(scale, builder.sqrt(builder.add(variance, epsilon)))
    offset = builder.sub(bias, builder.mul(centre, factor))
    row = builder.mul(wide(builder, x), _per_channel(builder, factor, x))
    return (narrow(builder, builder.add(row, _per_channel(builder, offset, x)), x),)


def _batch_norm_reference(attrs: Attrs, x: Array, scale: Array, bias: Array, centre: Array, variance: Array) -> Array:
    with np.errstate(all="ignore"):
        deviation = np.sqrt(_channel_array(variance, x) + float_attr(attrs, "epsilon"))
        rows = (x.astype(np.float64) - _channel_array(centre, x)) / deviation
        return (rows * _channel_array(scale, x) + _channel_array(bias, x)).astype(x.dtype)


def _batch_norm_samples(rng: Any) -> list[Sample]:
    def parameters(channels: int) -> tuple[Array, ...]:
        spread = np.abs(normal(rng, channels)) + np.float32(0.1)
        return normal(rng, channels), normal(rng, channels), normal(rng, channels), spread

    return [
        Sample((normal(rng, 2, 3, 4, 5), *parameters(3)), {}, 1e-4, 1e-5),
        Sample((normal(rng, 4, 7), *parameters(7)), {"epsilon": 1e-3}, 1e-4, 1e-5),
        Sample((normal(rng, 1, 1, 9), *parameters(1)), {}, 1e-4, 1e-5),
    ]


register(
    OpDef(
        name="batch_norm", doc="(x - mean) / sqrt(var + epsilon) * scale + bias, per channel (axis 1).",
        inputs=("x", "scale", "bias", "mean", "var"), kind=Kind.MAP, infer=_channel_infer,
        samples=_batch_norm_samples, attrs={"epsilon": _EPSILON}, reference=_batch_norm_reference,
        decompose=_batch_norm_decompose, cost_flops=2,
    )
)  # fmt: skip
