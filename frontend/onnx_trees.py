"""Converters of tree ensembles. Scores come from one `tree_ensemble`; what follows is elementwise.

Details that the specification leaves open are as ONNX Runtime has them, above all how a classifier of two
classes with weights for one of them makes two scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot import dtypes
from aot.frontend.ml_scores import class_labels, scaled_pair, transformed, two_scores
from aot.frontend.onnx_registry import Context, Result, onnx_op
from aot.frontend.tree_arrays import MODES, Split, TreeArrays, arrays_of, leaf_lists, numbered
from aot.ir import Array, Value

_POST = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def _features(c: Context) -> Value:
    """The rows as a matrix of f32 or f64; one row may come without its batch axis."""
    x = c.input(0)
    if x.type.dtype not in (dtypes.F32, dtypes.F64):
        x = c.cast(x, dtypes.F32)
    if x.type.rank == 1:
        x = c.reshape(x, (1, x.type.shape[0]))
    if x.type.rank != 2:
        c.fail(f"the features must be a matrix; they have rank {x.type.rank}")
    if not isinstance(x.type.shape[1], int):
        c.unsupported("a number of features that is only known when running", "Give it a value with --dim.")
    return x


def _numbers(c: Context, name: str, wide: bool) -> Array:
    """A list of floats, or the tensor that may stand in its place."""
    tensor = c.tensor_attribute(f"{name}_as_tensor") if c.has_attribute(f"{name}_as_tensor") else None
    if tensor is not None:
        return np.asarray(tensor.array()).reshape(-1).astype(np.float64 if wide else np.float32)
    given = c.attributes[name].floats if c.has_attribute(name) else ()
    return np.array(given, np.float64 if wide else np.float32)


def _ints(c: Context, name: str, count: int | None = None, default: int = 0) -> tuple[int, ...]:
    found = c.ints_attribute(name, ())
    if not found and count is not None:
        return (default,) * count
    if count is not None and len(found) != count:
        c.fail(f"{name} has {len(found)} entries; {count} are needed")
    return found


def _trees(c: Context, x: Value, prefix: str) -> tuple[TreeArrays, Array, Array, Array]:
    """The trees of a versions 1 and 3 ensemble, and for every weight its leaf, its target and itself."""
    wide = x.type.dtype is dtypes.F64
    node_ids = _ints(c, "nodes_nodeids")
    count = len(node_ids)
    tree_ids = _ints(c, "nodes_treeids", count)
    modes = c.texts_attribute("nodes_modes", ())
    values = _numbers(c, "nodes_values", wide)
    if len(modes) != count or len(values) != count:
        c.fail(f"{count} nodes have {len(modes)} modes and {len(values)} values")
    features = _ints(c, "nodes_featureids", count)
    yes, no = _ints(c, "nodes_truenodeids", count), _ints(c, "nodes_falsenodeids", count)
    missing = _ints(c, "nodes_missing_value_tracks_true", count)
    places = numbered(list(zip(tree_ids, node_ids, strict=True)))
    leaf_of: dict[int, int] = {}
    split_of: dict[int, int] = {}
    for place, mode in enumerate(modes):
        into = leaf_of if mode == "LEAF" else split_of
        into[place] = len(into)

    def reference(tree: int, node: int) -> int:
        place = places.get((tree, node))
        if place is None:
            c.fail(f"tree {tree} has no node {node}")
        return -1 - leaf_of[place] if place in leaf_of else split_of[place]

    splits = [
        Split(
            modes[place], features[place], float(values[place]), reference(tree_ids[place], yes[place]),
            reference(tree_ids[place], no[place]), bool(missing[place]),
        )
        for place in split_of
    ]  # fmt: skip
    # The first node of a tree is its root.
    first: dict[int, int] = {}
    for place, tree in enumerate(tree_ids):
        first.setdefault(tree, place)
    roots = [-1 - leaf_of[place] if place in leaf_of else split_of[place] for place in first.values()]
    width = x.type.shape[1]
    assert isinstance(width, int)
    arrays = arrays_of(splits, roots, len(leaf_of), width, x.type.dtype.numpy.type)
    weights = _numbers(c, f"{prefix}_weights", wide)
    targets = np.array(_ints(c, f"{prefix}_ids", len(weights)), np.int64)
    owners = []
    for tree, node in zip(
        _ints(c, f"{prefix}_treeids", len(weights)), _ints(c, f"{prefix}_nodeids", len(weights)), strict=True
    ):
        place = places.get((tree, node), -1)
        if place not in leaf_of:
            c.fail(f"a weight is of node {node} of tree {tree}, which is no leaf")
        owners.append(leaf_of[place])
    return arrays, np.array(owners, np.int64), targets, weights


def _scores(
    c: Context, x: Value, arrays: TreeArrays, owners: Array, targets: Array, weights: Array, count: int, aggregate: str
) -> Value:
    """[rows, count]: the aggregated weights."""
    if len(targets) and not (targets.min() >= 0 and targets.max() < count):
        c.fail(f"weights are for target {targets.max()}; there are {count}")
    leaves = len(arrays.nodes) - arrays.inner
    lists = leaf_lists(leaves, owners, targets, weights, count)
    operands = [x, *(c.builder.const(array) for array in (arrays.nodes, arrays.trees))]
    operands += [c.builder.const(array) for array in lists if array is not None]
    attrs: dict[str, Any] = {"inner": arrays.inner, "strict": arrays.strict, "missing": arrays.missing}
    attrs["aggregate"] = aggregate.lower()
    return c.op("tree_ensemble", *operands, targets=count, **attrs)


def _plus(c: Context, scores: Value, base: Array) -> Value:
    return c.op("add", scores, c.builder.const(base.astype(scores.type.dtype.numpy))) if base.any() else scores


@onnx_op("TreeEnsembleRegressor", domain="ai.onnx.ml")
def _regressor(c: Context) -> Result:
    x = _features(c)
    count = c.int_attribute("n_targets", 1)
    aggregate = c.text_attribute("aggregate_function", "SUM")
    if aggregate not in _AGGREGATES:
        c.fail(f"aggregate_function is one of {', '.join(_AGGREGATES)}; it is {aggregate!r}")
    scores = _scores(c, x, *_trees(c, x, "target"), count, aggregate)
    base = _numbers(c, "base_values", x.type.dtype is dtypes.F64)
    if len(base):
        if len(base) not in (1, count):
            c.fail(f"{count} targets have {len(base)} base values")
        scores = _plus(c, scores, base)
    scores = transformed(c, scores, c.text_attribute("post_transform", "NONE"), alone=count == 1)
    return c.cast(scores, dtypes.F32)


@onnx_op("TreeEnsembleClassifier", domain="ai.onnx.ml")
def _classifier(c: Context) -> Result:
    x = _features(c)
    labels = class_labels(c, "classlabels_int64s", "classlabels_strings")
    count = len(labels)
    post = c.text_attribute("post_transform", "NONE")
    arrays, owners, ids, weights = _trees(c, x, "class")
    base = _numbers(c, "base_values", x.type.dtype is dtypes.F64)
    if len(base) not in (0, count) and not (count == 2 and len(base) == 1):
        c.fail(f"{count} classes have {len(base)} base values")
    used = sorted(set(ids.tolist()))
    if not used or used[0] < 0 or used[-1] >= count:
        c.fail(f"weights are for classes {used}; there are {count}")
    columns = count
    if count == 2 and len(used) == 1:  # one sum per row; which class it is for decides what is made of it
        ids, columns = np.zeros_like(ids), 1
    scores = _scores(c, x, arrays, owners, ids, weights, columns, "SUM")
    if count > 2:
        scores = _plus(c, scores, base)
        ranked = scores
        if not len(base) and len(used) < count:
            never = np.array([0.0 if number in used else -np.inf for number in range(count)])
            ranked = c.op("add", scores, c.builder.const(never.astype(scores.type.dtype.numpy)))
        best = c.op("argmax", ranked, axis=1, keepdims=False)
        label = c.op("gather", c.builder.const(np.array(labels, np.int64)), best, axis=0)
        return label, c.cast(transformed(c, scores, post), dtypes.F32)
    return _one_of_two(c, scores, labels, base, used, bool((weights >= 0).all()), post)


def _one_of_two(
    c: Context, scores: Value, labels: Sequence[int], base: Array, used: Sequence[int], positive: bool, post: str
) -> Result:
    """Label and scores of a classifier of one or two classes; `used` are those that leaves have weights for.

    With weights for class 0 alone, its score is the one of class 1, and two scores are made of it.
    """
    count, rows = len(labels), scores.type.shape[0]
    binary = count == 2 and len(used) == 1
    deciding = c.slice_axis(scores, 1, 1, 1) if 1 in used and not binary else scores
    if 0 not in used:  # the other score is 0, and the second base value takes the place of the sum
        deciding = scaled_pair(c, scores, (0.0,), (float(base[1]),)) if len(base) == 2 else scores
        pair = scaled_pair(c, deciding, (0.0, 1.0))
    elif 1 not in used:
        deciding = scaled_pair(c, scores, (1.0,), (float(base[0]),)) if len(base) else scores
        pair = scaled_pair(c, deciding, (1.0, 0.0))
    elif len(base) == 2:  # as ONNX Runtime: the sum of the first class and the base of the second, both ways
        deciding = scaled_pair(c, c.slice_axis(scores, 1, 0, 1), (1.0,), (float(base[1]),))
        pair = scaled_pair(c, deciding, (-1.0, 1.0))
    else:
        pair = scaled_pair(c, scores, (1.0, 1.0), (float(base[0]), 0.0)) if len(base) else scores
    limit = 0.5 if binary and positive else 0.0
    is_second = c.reshape(c.op("gt", deciding, c.scalar(limit, scores.type.dtype)), (rows,))
    first, second = (labels[0], labels[1]) if count == 2 else (0, 1)
    label = c.op("where", is_second, c.scalar(second, dtypes.I64), c.scalar(first, dtypes.I64))
    if count == 2 and (1 in used or len(base) == 2):
        return label, c.cast(transformed(c, pair, post), dtypes.F32)
    return label, c.cast(two_scores(c, deciding, post, positive, count), dtypes.F32)


@onnx_op("TreeEnsemble", domain="ai.onnx.ml")
def _ensemble(c: Context) -> Result:
    x = _features(c)
    count = c.int_attribute("n_targets", 1)
    aggregate, post = c.int_attribute("aggregate_function", 1), c.int_attribute("post_transform", 0)
    if not (0 <= aggregate < len(_AGGREGATES) and 0 <= post < len(_POST)):
        c.fail(f"aggregate_function {aggregate} or post_transform {post} is unknown")
    splits_tensor, modes_tensor, weights_tensor = (
        c.tensor_attribute(name) for name in ("nodes_splits", "nodes_modes", "leaf_weights")
    )
    if splits_tensor is None or modes_tensor is None or weights_tensor is None:
        c.fail("nodes_splits, nodes_modes and leaf_weights must be given")
    values, modes, weights = (
        np.asarray(tensor.array()).reshape(-1) for tensor in (splits_tensor, modes_tensor, weights_tensor)
    )
    n = len(values)
    features = _ints(c, "nodes_featureids", n)
    yes, no = _ints(c, "nodes_truenodeids", n), _ints(c, "nodes_falsenodeids", n)
    yes_leaf, no_leaf = _ints(c, "nodes_trueleafs", n), _ints(c, "nodes_falseleafs", n)
    missing = _ints(c, "nodes_missing_value_tracks_true", n)
    if len(modes) != n or any(int(mode) >= len(MODES) for mode in modes):
        c.fail(f"{n} nodes have {len(modes)} modes, or a mode is unknown")
    members = _memberships(c, [MODES[int(mode)] for mode in modes])

    def reference(number: int, is_leaf: int) -> int:
        if not 0 <= number < (len(weights) if is_leaf else n):
            c.fail(f"a child is number {number}; there are {len(weights)} leaves and {n} nodes")
        return -1 - number if is_leaf else number

    def split(place: int) -> Split:
        return Split(
            MODES[int(modes[place])], features[place], float(values[place]), reference(yes[place], yes_leaf[place]),
            reference(no[place], no_leaf[place]), bool(missing[place]), members[place],
        )  # fmt: skip

    splits = [split(place) for place in range(n)]
    # A tree that is one leaf is a node whose children are both that leaf.
    roots = _ints(c, "tree_roots")
    if any(not 0 <= root < n for root in roots):
        c.fail("tree_roots names a node that is not there")
    width = x.type.shape[1]
    assert isinstance(width, int)
    arrays = arrays_of(splits, roots, len(weights), width, x.type.dtype.numpy.type)
    targets = np.array(_ints(c, "leaf_targetids", len(weights)), np.int64)
    weights = weights.astype(x.type.dtype.numpy)
    owners = np.arange(len(weights))
    scores = _scores(c, x, arrays, owners, targets, weights, count, _AGGREGATES[aggregate])
    return c.cast(transformed(c, scores, _POST[post], alone=count == 1), c.dtype())


def _memberships(c: Context, modes: Sequence[str]) -> list[tuple[float, ...]]:
    """For every node its members; the lists of the attribute end with NaN."""
    wanted = modes.count("BRANCH_MEMBER")
    found: list[tuple[float, ...]] = []
    if wanted:
        tensor = c.tensor_attribute("membership_values")
        if tensor is None:
            c.fail("membership_values is missing")
        current: list[float] = []
        for value in np.asarray(tensor.array()).reshape(-1).tolist():
            if value != value:
                found.append(tuple(current))
                current = []
            else:
                current.append(float(value))
        if current:
            found.append(tuple(current))
        if len(found) != wanted:
            c.fail(f"membership_values holds {len(found)} lists; {wanted} nodes need one")
    remaining = iter(found)
    return [next(remaining) if mode == "BRANCH_MEMBER" else () for mode in modes]
