"""Converters of normalizations and of Attention."""

from __future__ import annotations

import math

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim
from aot.frontend.onnx_registry import Context, Result, UseFunctionBody, onnx_op
from aot.ir import Value
from aot.ops import same_extent


@onnx_op("BatchNormalization")
def _batch_norm(c: Context) -> Result:
    x = c.input(0)
    if x.type.rank < 2:
        c.fail(f"the operand must have rank 2 or more; it has rank {x.type.rank}")
    epsilon = c.float_attribute("epsilon", 1e-5)
    parts = [c.input(index) for index in range(5)]
    common = max((part.type.dtype for part in parts), key=lambda dtype: dtype.bits)
    wide = [c.cast(part, common) for part in parts]
    if c.opset < 9 and not c.bool_attribute("spatial", True):
        return [c.cast(_per_place(c, wide, epsilon), x.type.dtype), *[None] * (c.outputs - 1)]
    more: list[Value | None] = [None] * (c.outputs - 1)
    if c.bool_attribute("training_mode", False):
        more = _take_statistics(c, wide)
    result = c.op("batch_norm", *wide, epsilon=epsilon)
    return [c.cast(result, x.type.dtype), *more]


def _take_statistics(c: Context, parts: list[Value]) -> list[Value | None]:
    """Training mode: the batch's own mean and variance take the place of those given; the running ones are results."""
    x, _, _, mean, variance = parts
    axes = tuple(axis for axis in range(x.type.rank) if axis != 1)
    own_mean = c.op("reduce_mean", x, axes=axes, keepdims=True)
    apart = c.op("sub", x, own_mean)
    channels = (x.type.shape[1],)
    parts[3] = c.reshape(own_mean, channels)
    parts[4] = c.op("reduce_mean", c.op("mul", apart, apart), axes=axes, keepdims=False)
    momentum = c.float_attribute("momentum", 0.9)
    kept, new = (c.scalar(factor, x.type.dtype) for factor in (momentum, 1.0 - momentum))
    running = [
        c.op("add", c.op("mul", old, kept), c.op("mul", own, new))
        for old, own in ((mean, parts[3]), (variance, parts[4]))
    ]
    results: list[Value | None] = [c.cast(value, c.dtype(3)) for value in running]
    return results[: c.outputs - 1]


def _per_place(c: Context, parts: list[Value], epsilon: float) -> Value:
    """Before opset 9, spatial=0: statistics of every place of every channel."""
    x, scale, bias, mean, variance = parts
    root = c.op("sqrt", c.op("add", variance, c.scalar(epsilon, x.type.dtype)))
    return c.op("add", c.op("mul", c.op("div", c.op("sub", x, mean), root), scale), bias)


@onnx_op("InstanceNormalization")
def _instance_norm(c: Context) -> Result:
    return c.op("instance_norm", c.input(0), c.input(1), c.input(2), epsilon=c.float_attribute("epsilon", 1e-5))


@onnx_op("GroupNormalization")
def _group_norm(c: Context) -> Result:
    x = c.input(0)
    groups = c.int_attribute("num_groups")
    channels = c.shape()[1] if c.rank() > 1 else 0
    per_group = dimension.exact_div(channels, groups) if groups > 0 else None
    if per_group is None:
        c.fail(f"{channels} channels do not divide into {groups} groups")

    def per_channel(value: Value) -> Value:
        if c.opset >= 21:
            return value
        # Before opset 21 there is one scale and bias per group.
        wide = c.expand(c.reshape(value, (groups, 1)), (groups, per_group))
        return c.reshape(wide, (channels,))

    epsilon = c.float_attribute("epsilon", 1e-5)
    return c.op("group_norm", x, per_channel(c.input(1)), per_channel(c.input(2)), groups=groups, epsilon=epsilon)


@onnx_op("LayerNormalization")
def _layer_norm(c: Context) -> Result:
    x, scale, bias = c.input(0), c.input(1), c.optional(2)
    axis = c.axis(c.int_attribute("axis", -1))
    epsilon = c.float_attribute("epsilon", 1e-5)
    common = x.type.dtype
    for part in (scale, bias):
        if part is not None and part.type.dtype.bits > common.bits:
            common = part.type.dtype
    cast_bias = None if bias is None else c.cast(bias, common)
    result = c.op("layer_norm", c.cast(x, common), c.cast(scale, common), cast_bias, axis=axis, epsilon=epsilon)
    result = c.cast(result, x.type.dtype)
    if not c.wants(1) and not c.wants(2):
        return [result, *[None] * (c.outputs - 1)]
    row = c.wide(x)
    axes = tuple(range(axis, x.type.rank))
    mean = c.op("reduce_mean", row, axes=axes, keepdims=True)
    distance = c.op("sub", row, mean)
    variance = c.op("reduce_mean", c.op("mul", distance, distance), axes=axes, keepdims=True)
    inverse = c.op("rsqrt", c.op("add", variance, c.scalar(epsilon, row.type.dtype)))
    return result, mean, inverse


@onnx_op("RMSNormalization")
def _rms_norm(c: Context) -> Result:
    x, scale = c.input(0), c.input(1)
    axis = c.axis(c.int_attribute("axis", -1))
    common = x.type.dtype if x.type.dtype.bits >= scale.type.dtype.bits else scale.type.dtype
    epsilon = c.float_attribute("epsilon", 1e-5)
    result = c.op("rms_norm", c.cast(x, common), c.cast(scale, common), axis=axis, epsilon=epsilon)
    return c.cast(result, scale.type.dtype)


@onnx_op("LpNormalization")
def _lp_normalization(c: Context) -> Result:
    x = c.input(0)
    axis = c.axis(c.int_attribute("axis", -1))
    power = c.int_attribute("p", 2)
    if power not in (1, 2):
        c.fail(f"p is 1 or 2; it is {power}")
    size = c.op("abs", x) if power == 1 else c.op("mul", x, x)
    norm = c.op("reduce_sum", size, axes=(axis,), keepdims=True)
    if power == 2:
        norm = c.op("sqrt", norm)
    zero, one = c.scalar(0, x.type.dtype), c.scalar(1, x.type.dtype)
    # A row of zeros stays zero.
    return c.op("div", x, c.op("where", c.op("eq", norm, zero), one, norm))


@onnx_op("MeanVarianceNormalization")
def _mean_variance(c: Context) -> Result:
    x = c.input(0)
    axes = c.axes(c.ints_attribute("axes", (0, 2, 3)))
    row = c.wide(x)
    mean = c.op("reduce_mean", row, axes=axes, keepdims=True)
    distance = c.op("sub", row, mean)
    variance = c.op("reduce_mean", c.op("mul", distance, distance), axes=axes, keepdims=True)
    deviation = c.op("add", c.op("sqrt", variance), c.scalar(1e-9, row.type.dtype))
    return c.cast(c.op("div", distance, deviation), x.type.dtype)


@onnx_op("Attention")
def _attention(c: Context) -> Result:
    """The forms that are one `attention` op; the rest goes through ONNX's own function body."""
    special = (
        c.has(4) or c.has(5) or c.has(6) or c.wants(1) or c.wants(2) or c.wants(3)
        or c.float_attribute("softcap", 0.0) != 0.0
        or c.int_attribute("left_window_size", -1) != -1 or c.int_attribute("right_window_size", -1) != -1
    )  # fmt: skip
    q, k, v = c.input(0), c.input(1), c.input(2)
    if special or not q.type.dtype.is_float or len({q.type.dtype, k.type.dtype, v.type.dtype}) != 1:
        raise UseFunctionBody("this form of Attention")
    flat = q.type.rank == 3
    if flat:
        q = _heads(c, q, c.int_attribute("q_num_heads"))
        k, v = (_heads(c, part, c.int_attribute("kv_num_heads")) for part in (k, v))
    causal = c.bool_attribute("is_causal", False)
    if causal and q.type.shape[2] != k.type.shape[2]:
        raise UseFunctionBody("causal Attention over keys of another length")
    depth = q.type.shape[3]
    if not isinstance(depth, int):
        raise UseFunctionBody("Attention with a symbolic head size")
    mask = c.optional(3)
    if mask is not None:
        if mask.type.rank > 4 or mask.type.shape[-1] != k.type.shape[2]:
            raise UseFunctionBody("Attention with a short mask")
        if not mask.type.dtype.is_bool:
            mask = c.cast(mask, q.type.dtype)
    scale = c.float_attribute("scale", 1.0 / math.sqrt(depth))
    result = c.op("attention", q, k, v, mask, scale=scale, causal=causal)
    if mask is not None:
        # A query that may see no key gives zeros, where softmax alone would give NaN.
        result = c.op("where", _sees_a_key(c, mask, q.type.shape[2], causal), result, c.scalar(0, result.type.dtype))
    if flat:
        batch, heads, length, size = result.type.shape
        result = c.reshape(c.transpose(result, (0, 2, 1, 3)), (batch, length, heads * size))
    return result


def _sees_a_key(c: Context, mask: Value, queries: Dim, causal: bool) -> Value:
    """[…, S, 1], true where the mask leaves a query at least one key."""
    seen = mask
    if not mask.type.dtype.is_bool:
        seen = c.op("gt", mask, c.scalar(-math.inf, mask.type.dtype))
    keys = mask.type.shape[-1]
    if causal:
        row = c.op("iota", shape=(queries, 1), axis=0, start=0, step=1, dtype=dtypes.I64)
        column = c.op("iota", shape=(1, keys), axis=1, start=0, step=1, dtype=dtypes.I64)
        seen = c.op("and", seen, c.op("le", column, row))
    last = (seen.type.rank - 1,)
    return c.cast(c.op("reduce_max", c.cast(seen, dtypes.U8), axes=last, keepdims=True), dtypes.BOOL)


def _heads(c: Context, x: Value, heads: int) -> Value:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    batch, length, width = x.type.shape
    size: Dim | None = dimension.exact_div(width, heads) if heads > 0 else None
    if size is None:
        c.fail(f"a width of {width} does not divide into {heads} heads")
    same_extent(size * heads, width, "heads and width")
    return c.transpose(c.reshape(x, (batch, length, heads, size)), (0, 2, 1, 3))
