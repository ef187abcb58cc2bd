"""OPAQUE op `tree_ensemble`: the summed leaves of decision trees, over node arrays as constants.

A row of `nodes` is one node in 32-bit words: the threshold's bits (one word for f32, two for f64), the
feature (its sign bit set: NaN goes left), the left child, and the right child minus the left one; f64 has
one word of padding. Inner nodes come first; the `inner`-th is leaf 0. A leaf's child is itself and its
threshold NaN, so that a walk may take more steps than its tree is deep. A row of `trees` is a root and
the most steps from it to a leaf.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aot.dtypes import F32, F64, I32
from aot.ir import Array, TensorType
from aot.ops.helpers import int_attr, need_rank, normal
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, OpError, Sample, register, same_extent

AGGREGATES = ("sum", "average", "min", "max")


def words_of(bits: int) -> int:
    """32-bit words of a node whose threshold has this many bits."""
    return 4 if bits == 32 else 6


def _infer(
    attrs: Attrs,
    x: TensorType,
    nodes: TensorType,
    trees: TensorType,
    weights: TensorType,
    starts: TensorType | None = None,
    targets: TensorType | None = None,
) -> TensorType:
    need_rank("the features", x, 2, 2)
    if x.dtype not in (F32, F64):
        raise OpError(f"the features must be f32 or f64; they are {x.dtype}")
    need_rank("the nodes", nodes, 2, 2)
    same_extent(nodes.shape[1], words_of(x.dtype.bits), "the words of a node")
    need_rank("the trees", trees, 2, 2)
    same_extent(trees.shape[1], 2, "root and depth of a tree")
    if weights.dtype not in (F32, F64):
        raise OpError(f"the weights must be f32 or f64; they are {weights.dtype}")
    for what, part in (("the nodes", nodes), ("the trees", trees), ("the starts", starts), ("the targets", targets)):
        if part is not None and part.dtype != I32:
            raise OpError(f"{what} must be i32; they are {part.dtype}")
    count = int_attr(attrs, "targets")
    if (starts is None) != (targets is None):
        raise OpError("starts and targets are given together")
    if starts is None:
        need_rank("the weights of every leaf", weights, 2, 2)
        same_extent(weights.shape[1], count, "the weights of a leaf and the targets")
    else:
        need_rank("the weights", weights, 1, 1)
        assert targets is not None
        same_extent(targets.shape[0], weights.shape[0], "the targets and the weights")
    if attrs["aggregate"] not in AGGREGATES:
        raise OpError(f"an aggregate is one of {', '.join(AGGREGATES)}; it is {attrs['aggregate']!r}")
    return TensorType(weights.dtype, (x.shape[0], count))


def leaves_of(attrs: Attrs, x: Array, nodes: Array, root: int) -> Array:
    """The number of the leaf that each row reaches from a root."""
    head = words_of(x.dtype.itemsize * 8) // 2 - 1
    thresholds = np.ascontiguousarray(nodes[:, :head]).view(x.dtype)[:, 0]
    inner = int_attr(attrs, "inner")
    at = np.full(len(x), root, np.int64)
    rows = np.arange(len(x))
    while (at < inner).any():
        feature = nodes[at, head]
        value = x[rows, feature & 0x7FFFFFFF]
        left = (value < thresholds[at] if attrs["strict"] else value <= thresholds[at]) | (
            np.isnan(value) & (feature < 0)
        )
        at = nodes[at, head + 1] + np.where(left, 0, nodes[at, head + 2])
    return at - inner


def _reference(
    attrs: Attrs,
    x: Array,
    nodes: Array,
    trees: Array,
    weights: Array,
    starts: Array | None = None,
    targets: Array | None = None,
) -> Array:
    count, aggregate = int_attr(attrs, "targets"), str(attrs["aggregate"])
    wide = np.zeros((len(x), count))
    seen = np.zeros((len(x), count), bool)
    for root, _ in trees:
        for row, leaf in enumerate(leaves_of(attrs, x, nodes, int(root))):
            if starts is None or targets is None:
                entries = list(enumerate(weights[leaf]))
            else:
                span = slice(starts[leaf], starts[leaf + 1])
                entries = list(zip(targets[span], weights[span], strict=True))
            for target, weight in entries:
                old = wide[row, target]
                if not seen[row, target] or aggregate in ("sum", "average"):
                    wide[row, target] = old + weight
                else:
                    wide[row, target] = min(old, weight) if aggregate == "min" else max(old, weight)
                seen[row, target] = True
    if aggregate == "average":
        wide /= max(len(trees), 1)
    return wide.astype(weights.dtype)


def _forest(
    rng: Any, count: int, depth: int, features: int, missing: bool, dtype: Any
) -> tuple[Array, Array, int, int]:
    """Random trees: nodes, trees, how many inner nodes, how many leaves."""
    head = words_of(np.dtype(dtype).itemsize * 8) // 2 - 1
    inner: list[list[Any]] = []
    leaves = 0
    trees = []

    def grow(left: int) -> tuple[str, int]:
        nonlocal leaves
        if left == 0 or (left < depth and rng.random() < 0.25):
            leaves += 1
            return "leaf", leaves - 1
        place = len(inner)
        inner.append([rng.normal(), int(rng.integers(features)), missing and bool(rng.integers(2)), None, None])
        inner[place][3] = grow(left - 1)
        inner[place][4] = grow(left - 1)
        return "node", place

    for _ in range(count):
        kind, place = grow(int(rng.integers(0, depth + 1)))
        trees.append((kind, place))
    n = len(inner)
    nodes = np.zeros((n + leaves, words_of(np.dtype(dtype).itemsize * 8)), np.int32)
    where = {"node": 0, "leaf": n}
    for place, (threshold, feature, nan_left, left, right) in enumerate(inner):
        a, b = (where[kind] + number for kind, number in (left, right))
        nodes[place, :head] = np.array([threshold], dtype).view(np.int32)
        word = np.array([feature | (0x80000000 if nan_left else 0)], np.uint32).view(np.int32)[0]
        nodes[place, head : head + 3] = word, a, b - a
    for leaf in range(leaves):
        nodes[n + leaf, :head] = np.array([np.nan], dtype).view(np.int32)
        nodes[n + leaf, head : head + 3] = 0, n + leaf, 0
    return nodes, np.array([(where[k] + p, depth) for k, p in trees], np.int32), n, leaves


def _samples(rng: Any) -> list[Sample]:
    found = []
    for rows, count, depth, targets, aggregate, dtype in (
        (1, 1, 1, 1, "sum", np.float32), (1, 13, 5, 1, "sum", np.float32), (21, 9, 4, 1, "average", np.float32),
        (70, 3, 6, 3, "sum", np.float32), (9, 5, 3, 2, "min", np.float32), (9, 5, 3, 1, "max", np.float32),
        (19, 6, 4, 1, "sum", np.float64), (0, 2, 2, 1, "sum", np.float32), (5, 2, 0, 1, "sum", np.float32),
    ):  # fmt: skip
        missing = count % 3 != 0
        nodes, trees, inner, leaves = _forest(rng, count, depth, 4, missing, dtype)
        x = normal(rng, rows, 4, dtype=dtype)
        x[rng.random(x.shape) < 0.1] = np.nan
        weights = normal(rng, leaves, targets)
        attrs: dict[str, Any] = {"targets": targets, "inner": inner, "aggregate": aggregate}
        attrs |= {"strict": bool(rows % 2), "missing": missing}
        found.append(Sample((x, nodes, trees, weights), attrs, 1e-4, 1e-4))
        counts = rng.integers(0, 3, leaves)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        places = np.asarray(rng.integers(0, targets, starts[-1]), np.int32)
        listed = (x, nodes, trees, normal(rng, int(starts[-1])), starts, places)
        found.append(Sample(listed, attrs, 1e-4, 1e-4))
    return found


register(
    OpDef(
        name="tree_ensemble", doc="For every row of x, the weights of the leaves it reaches in all trees, aggregated.",
        inputs=("x", "nodes", "trees", "weights", "starts?", "targets?"), kind=Kind.OPAQUE, infer=_infer,
        samples=_samples, reference=_reference, cost_flops=100,
        attrs={
            "targets": AttrSpec("int", 1), "inner": AttrSpec("int", doc="inner nodes: the number of the first leaf"),
            "aggregate": AttrSpec("str", "sum", "sum, average, min or max; 0 where no leaf has a weight"),
            "strict": AttrSpec("bool", False, "left is x < threshold, else x <= threshold"),
            "missing": AttrSpec("bool", True, "NaN may go left; else no feature has its sign bit set"),
        },
    )
)  # fmt: skip
