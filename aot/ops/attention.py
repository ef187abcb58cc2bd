"""ATTEND: scaled dot-product attention with grouped heads, a mask and a causal bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.dims import Dim, exact_div
from aot.dtypes import BOOL, I64
from aot.ir import Array, TensorType, Value
from aot.ops.helpers import FLOAT, booleans, float_attr, need_family, need_rank, need_same_dtype, normal
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, OpError, Sample, broadcast_shapes, register, same_extent
from aot.ops.reduce import narrow, wide
from aot.ops.rows import softmax_array

if TYPE_CHECKING:
    from aot.builder import Builder


def _infer(attrs: Attrs, q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None = None) -> TensorType:
    need_family("attention's operands", q, FLOAT)
    dtype = need_same_dtype(q, k, v)
    for what, part in (("q", q), ("k", k), ("v", v)):
        need_rank(f"attention's {what}", part, 4, 4)
    batch, heads, queries, depth = q.shape
    for what, part in (("k", k), ("v", v)):
        same_extent(part.shape[0], batch, f"the batch of q and {what}")
    same_extent(k.shape[1], v.shape[1], "the heads of k and v")
    same_extent(k.shape[2], v.shape[2], "the positions of k and v")
    same_extent(k.shape[3], depth, "the depths of q and k")
    if exact_div(heads, k.shape[1]) is None:
        raise OpError(f"{heads} heads of q are no multiple of {k.shape[1]} heads of k and v")
    if mask is not None:
        if mask.dtype != BOOL:
            need_same_dtype(q, mask)
        scores = (batch, heads, queries, k.shape[2])
        if mask.rank > 4 or broadcast_shapes(mask.shape, scores) != scores:
            raise OpError(f"the mask's shape {mask.shape} does not broadcast to the scores' {scores}")
    return TensorType(dtype, (batch, heads, queries, v.shape[3]))


def _reference(attrs: Attrs, q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    repeat = q.shape[1] // k.shape[1]
    wide_k, wide_v = (np.repeat(part.astype(np.float64), repeat, axis=1) for part in (k, v))
    scores = np.matmul(q.astype(np.float64), wide_k.swapaxes(-1, -2)) * float_attr(attrs, "scale")
    with np.errstate(all="ignore"):
        if mask is not None:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask.astype(np.float64)
        if attrs["causal"]:
            queries, keys = scores.shape[-2:]
            seen = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + (keys - queries)
            scores = np.where(seen, scores, -np.inf)
        weights = softmax_array(scores, -1)
        if attrs["zero_empty"]:
            weights = np.where((scores == -np.inf).all(axis=-1, keepdims=True), 0.0, weights)
        return np.asarray(np.matmul(weights, wide_v)).astype(q.dtype)


def _by_group(builder: Builder, mask: Value, heads: Dim, groups: Dim) -> Value:
    """A mask of rank <= 4 with its head axis split into (groups, heads per group)."""
    shape: tuple[Dim, ...] = (*(1,) * (4 - mask.type.rank), *mask.type.shape)
    per_group = exact_div(heads, groups)
    assert per_group is not None
    split: tuple[Dim, ...] = (1, 1) if shape[1] == 1 else (groups, per_group)
    result: Value = builder.reshape(mask, shape=(shape[0], *split, *shape[2:]))
    return result


def _decompose(builder: Builder, attrs: Attrs, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
    q, k, v, *rest = inputs
    mask = rest[0] if rest else None
    assert q is not None and k is not None and v is not None
    batch, heads, queries, depth = q.type.shape
    groups, keys = k.type.shape[1:3]
    wide_q, wide_k, wide_v = (wide(builder, part) for part in (q, k, v))
    dtype = wide_q.type.dtype
    grouped = groups != heads
    if grouped:  # the queries of one group share its keys and values: one more batch axis
        per_group = exact_div(heads, groups)
        assert per_group is not None
        wide_q = builder.reshape(wide_q, shape=(batch, groups, per_group, queries, depth))
        wide_k = builder.reshape(wide_k, shape=(batch, groups, 1, keys, depth))
        wide_v = builder.reshape(wide_v, shape=(batch, groups, 1, keys, v.type.shape[3]))
        mask = None if mask is None else _by_group(builder, mask, heads, groups)
    rank = wide_q.type.rank
    turned = builder.transpose(wide_k, perm=(*range(rank - 2), rank - 1, rank - 2))
    scores = builder.matmul(wide_q, turned)
    scores = builder.mul(scores, builder.scalar(float_attr(attrs, "scale"), dtype))
    never = builder.scalar(float("-inf"), dtype)
    if mask is not None:
        if mask.type.dtype == BOOL:
            scores = builder.where(mask, scores, never)
        else:
            scores = builder.add(scores, wide(builder, mask))
    if attrs["causal"]:
        row = builder.iota(shape=(queries, 1), axis=0, start=0, step=1, dtype=I64)
        column = builder.iota(shape=(1, keys), axis=1, start=0, step=1, dtype=I64)
        shift = builder.reshape(builder.dim_tensor(dims=(keys - queries,)), shape=())
        scores = builder.where(builder.le(column, builder.add(row, shift)), scores, never)
    weights = builder.softmax(scores, axis=rank - 1)
    if attrs["zero_empty"]:
        top = builder.reduce_max(scores, axes=(rank - 1,), keepdims=True)
        weights = builder.where(builder.eq(top, never), builder.scalar(0.0, dtype), weights)
    result = builder.matmul(weights, wide_v)
    if grouped:
        result = builder.reshape(result, shape=(batch, heads, queries, v.type.shape[3]))
    return (narrow(builder, result, q),)


def _samples(rng: Any) -> list[Sample]:
    def qkv(batch: int, heads: int, groups: int, queries: int, keys: int, depth: int, value: int) -> tuple[Array, ...]:
        return (
            normal(rng, batch, heads, queries, depth, scale=1.0),
            normal(rng, batch, groups, keys, depth, scale=1.0),
            normal(rng, batch, groups, keys, value, scale=1.0),
        )

    seen = booleans(rng, 2, 1, 1, 9)
    seen[..., 0] = True
    some = seen.copy()
    some[1] = False
    return [
        Sample((*qkv(2, 2, 2, 4, 9, 8, 8), some), {"scale": 0.35, "zero_empty": True}, 1e-4, 1e-5),
        Sample(qkv(1, 2, 1, 9, 3, 8, 8), {"scale": 1.0, "causal": True, "zero_empty": True}, 1e-4, 1e-5),
        Sample(qkv(2, 3, 3, 7, 9, 16, 16), {"scale": 0.25}, 1e-4, 1e-5),
        Sample(qkv(1, 4, 2, 5, 6, 8, 12), {"scale": 0.35}, 1e-4, 1e-5),
        Sample(qkv(1, 4, 1, 5, 5, 8, 8), {"scale": 0.35, "causal": True}, 1e-4, 1e-5),
        Sample(qkv(1, 2, 2, 3, 8, 8, 8), {"scale": 1.0, "causal": True}, 1e-4, 1e-5),
        Sample((*qkv(2, 2, 2, 4, 9, 8, 8), seen), {"scale": 0.35}, 1e-4, 1e-5),
        Sample((*qkv(2, 4, 2, 4, 9, 8, 8), normal(rng, 2, 4, 4, 9)), {"scale": 0.35}, 1e-4, 1e-5),
        Sample((*qkv(2, 4, 2, 4, 9, 8, 8), normal(rng, 4, 9)), {"scale": 0.35, "causal": True}, 1e-4, 1e-5),
        Sample(qkv(1, 1, 1, 1, 1, 1, 1), {"scale": 1.0}, 1e-4, 1e-5),
        Sample(qkv(1, 2, 2, 33, 65, 32, 32), {"scale": 0.18}, 1e-4, 1e-5),
    ]


register(
    OpDef(
        name="attention",
        doc="softmax(scale * q k^T + mask) v per head; heads of k and v are shared by equal groups of q's.",
        inputs=("q", "k", "v", "mask?"), kind=Kind.ATTEND, infer=_infer, samples=_samples,
        attrs={
            "scale": AttrSpec("float"),
            "causal": AttrSpec("bool", False, "query s sees keys t <= s + (T - S)"),
            "zero_empty": AttrSpec("bool", False, "a query whose every score is -inf gives 0, not NaN"),
        },
        reference=_reference, decompose=_decompose, cost_flops=2,
    )
)  # fmt: skip
