"""ATTEND: scaled dot-product attention with grouped heads, a mask and a causal bound, whole or in parts of the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.dims import Dim, ceildiv, exact_div, product
from aot.dtypes import BOOL, F32, I64
from aot.ir import Array, TensorType, Value
from aot.ops.helpers import FLOAT, booleans, float_attr, int_attr, need_family, need_rank, need_same_dtype, normal
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


def _scores(attrs: Attrs, q: Array, k: Array, mask: Array | None) -> Array:
    """The scores of [batch, heads, queries, keys], in f64."""
    wide_k = np.repeat(k.astype(np.float64), q.shape[1] // k.shape[1], axis=1)
    scores: Array = np.matmul(q.astype(np.float64), wide_k.swapaxes(-1, -2)) * float_attr(attrs, "scale")
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask.astype(np.float64)
    if attrs["causal"]:
        queries, keys = scores.shape[-2:]
        seen = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + (keys - queries)
        scores = np.where(seen, scores, -np.inf)
    return scores


def _reference(attrs: Attrs, q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    wide_v = np.repeat(v.astype(np.float64), q.shape[1] // k.shape[1], axis=1)
    with np.errstate(all="ignore"):
        scores = _scores(attrs, q, k, mask)
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
    assert q is not None and k is not None and v is not None
    scores, wide_v = _decomposed_scores(builder, attrs, q, k, v, rest[0] if rest else None)
    rank, dtype = scores.type.rank, scores.type.dtype
    weights = builder.softmax(scores, axis=rank - 1)
    if attrs["zero_empty"]:
        top = builder.reduce_max(scores, axes=(rank - 1,), keepdims=True)
        empty = builder.eq(top, builder.scalar(float("-inf"), dtype))
        weights = builder.where(empty, builder.scalar(0.0, dtype), weights)
    result = builder.matmul(weights, wide_v)
    if rank > 4:
        result = builder.reshape(result, shape=(*q.type.shape[:3], v.type.shape[3]))
    return (narrow(builder, result, q),)


def _decomposed_scores(
    builder: Builder, attrs: Attrs, q: Value, k: Value, v: Value, mask: Value | None
) -> tuple[Value, Value]:
    """Scores and values in the wide type; heads that share keys are [batch, groups, per group]."""
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
    return scores, wide_v


def _parts_of(attrs: Attrs, keys: Dim) -> Dim:
    return ceildiv(keys, int_attr(attrs, "chunk"))


def _infer_parts(
    attrs: Attrs, q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None = None
) -> tuple[TensorType, TensorType]:
    whole = _infer(attrs, q, k, v, mask)
    if int_attr(attrs, "chunk") < 1:
        raise OpError(f"a part of {attrs['chunk']} keys")
    dtype = F32 if whole.dtype.bits < 32 else whole.dtype
    lead = (*whole.shape[:3], _parts_of(attrs, k.shape[2]))
    return TensorType(dtype, (*lead, whole.shape[3])), TensorType(dtype, lead)


def _reference_parts(attrs: Attrs, q: Array, k: Array, v: Array, mask: Array | None = None) -> tuple[Array, Array]:
    wide_v = np.repeat(v.astype(np.float64), q.shape[1] // k.shape[1], axis=1)
    chunk, keys = int_attr(attrs, "chunk"), k.shape[2]
    dtype = np.float32 if q.dtype.itemsize < 4 else q.dtype
    with np.errstate(all="ignore"):
        scores = _scores(attrs, q, k, mask)
        parts, sums = [], []
        for start in range(0, keys, chunk):
            part = scores[..., start : start + chunk]
            top = part.max(axis=-1, keepdims=True)
            weights = np.exp(part - np.where(top == -np.inf, 0.0, top))
            total = weights.sum(axis=-1, keepdims=True)
            held = np.matmul(weights, wide_v[:, :, start : start + chunk])
            parts.append(np.where(total == 0.0, 0.0, held / total))
            sums.append((np.log(total) + np.where(top == -np.inf, 0.0, top))[..., 0])
        lead = scores.shape[:3]
        made = np.stack(parts, axis=3) if parts else np.zeros((*lead, 0, v.shape[3]))
        return made.astype(dtype), (np.stack(sums, axis=3) if sums else np.zeros((*lead, 0))).astype(dtype)


def _decompose_parts(builder: Builder, attrs: Attrs, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
    q, k, v, *rest = inputs
    assert q is not None and k is not None and v is not None
    scores, wide_v = _decomposed_scores(builder, attrs, q, k, v, rest[0] if rest else None)
    batch, heads, queries, _ = q.type.shape
    keys, width = v.type.shape[2:]
    parts, dtype = _parts_of(attrs, keys), scores.type.dtype
    never, zero, one = (builder.scalar(number, dtype) for number in (float("-inf"), 0.0, 1.0))
    scores = builder.reshape(scores, shape=(batch, heads, queries, 1, keys))
    part = builder.iota(shape=(parts, 1), axis=0, start=0, step=1, dtype=I64)
    key = builder.iota(shape=(1, keys), axis=1, start=0, step=1, dtype=I64)
    own = builder.eq(builder.floordiv(key, builder.scalar(int_attr(attrs, "chunk"), I64)), part)
    scores = builder.where(own, scores, never)
    top = builder.reduce_max(scores, axes=(4,), keepdims=True)
    top = builder.where(builder.eq(top, never), zero, top)
    weights = builder.exp(builder.sub(scores, top))
    total = builder.reduce_sum(weights, axes=(4,), keepdims=True)
    sums = builder.reshape(builder.add(builder.log(total), top), shape=(batch, heads, queries, parts))
    weights = builder.div(weights, builder.where(builder.eq(total, zero), one, total))
    lead = wide_v.type.shape[:2]
    per_group = exact_div(heads, lead[1])
    assert per_group is not None
    rows = product((per_group, queries, parts))
    flat = builder.matmul(
        builder.reshape(weights, shape=(*lead, rows, keys)), builder.reshape(wide_v, shape=(*lead, keys, width))
    )
    return builder.reshape(flat, shape=(batch, heads, queries, parts, width)), sums


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


def _samples_of_parts(rng: Any) -> list[Sample]:
    return [
        Sample(
            sample.operands,
            {name: attr for name, attr in sample.attrs.items() if name != "zero_empty"} | {"chunk": chunk},
            1e-4,
            1e-5,
        )
        for sample, chunk in zip(_samples(rng), (4, 3, 2, 6, 1, 8, 5, 4, 3, 1, 16), strict=True)
    ]


_ATTRS = {
    "scale": AttrSpec("float"),
    "causal": AttrSpec("bool", False, "query s sees keys t <= s + (T - S)"),
}

register(
    OpDef(
        name="attention",
        doc="softmax(scale * q k^T + mask) v per head; heads of k and v are shared by equal groups of q's.",
        inputs=("q", "k", "v", "mask?"), kind=Kind.ATTEND, infer=_infer, samples=_samples,
        attrs={**_ATTRS, "zero_empty": AttrSpec("bool", False, "a query whose every score is -inf gives 0, not NaN")},
        reference=_reference, decompose=_decompose, cost_flops=2,
    )
)  # fmt: skip

register(
    OpDef(
        name="attention_parts",
        doc="attention over each `chunk` of the keys alone, [B, H, S, parts, D], and log(sum(exp(scores))) of each.",
        inputs=("q", "k", "v", "mask?"), kind=Kind.ATTEND_PARTS, infer=_infer_parts, samples=_samples_of_parts,
        attrs={**_ATTRS, "chunk": AttrSpec("int", doc="keys of a part; one without a score has zeros and -inf")},
        reference=_reference_parts, decompose=_decompose_parts, cost_flops=2,
    )
)  # fmt: skip
