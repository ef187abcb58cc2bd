"""Tree ensembles of every version against ONNX Runtime: modes, missing values, aggregates, scores of classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aot.errors import ModelError, UnsupportedError
from aot.frontend import load
from tests.frontend.models import FLOAT, Array, check_against_onnxruntime

ML = "ai.onnx.ml"
NUMERIC = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
FEATURES = 3


def forest(
    rng: np.random.Generator, trees: int, depth: int, modes: Sequence[str], missing: bool
) -> tuple[dict[str, list[Any]], list[tuple[int, int]]]:
    """Attributes of random trees, and (tree, node) of every leaf. Thresholds are multiples of 1/2."""
    nodes: dict[str, list[Any]] = {
        name: [] for name in ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    }
    nodes["missing_value_tracks_true"] = []
    leaves = []

    def grow(tree: int, left: int, counter: list[int]) -> int:
        number = counter[0]
        counter[0] += 1
        place = len(nodes["treeids"])
        leaf = left == 0 or (left < depth and rng.random() < 0.2)
        for name, value in (
            ("treeids", tree), ("nodeids", number), ("featureids", int(rng.integers(FEATURES))),
            ("modes", "LEAF" if leaf else str(rng.choice(modes))), ("values", float(rng.integers(-3, 4)) / 2),
            ("truenodeids", 0), ("falsenodeids", 0), ("missing_value_tracks_true", int(missing and rng.integers(2))),
        ):  # fmt: skip
            nodes[name].append(value)
        if leaf:
            leaves.append((tree, number))
        else:
            nodes["truenodeids"][place] = grow(tree, left - 1, counter)
            nodes["falsenodeids"][place] = grow(tree, left - 1, counter)
        return number

    for tree in range(trees):
        grow(tree, depth, [0])
    return {f"nodes_{name}": values for name, values in nodes.items()}, leaves


def rows(rng: np.random.Generator, count: int, with_nan: bool, dtype: Any = np.float32) -> Array:
    """Features that often equal a threshold."""
    x = rng.integers(-4, 5, (count, FEATURES)).astype(dtype) / 2
    if with_nan:
        x[rng.random(x.shape) < 0.15] = np.nan
    return x


def model(op_type: str, x: Array, outputs: Sequence[str], version: int, **attrs: Any) -> onnx.ModelProto:
    node = helper.make_node(op_type, ["x"], list(outputs), name="the_node", domain=ML, **attrs)
    graph = helper.make_graph(
        [node], "trees",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), [None, FEATURES])],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def weights_of(
    rng: np.random.Generator, leaves: Sequence[tuple[int, int]], targets: Sequence[int], prefix: str, dense: bool
) -> dict[str, list[Any]]:
    entries = [
        (tree, node, target, float(rng.normal()))
        for tree, node in leaves
        for target in (targets if dense else rng.choice(targets, 1))
    ]
    return {
        f"{prefix}_treeids": [e[0] for e in entries], f"{prefix}_nodeids": [e[1] for e in entries],
        f"{prefix}_ids": [int(e[2]) for e in entries], f"{prefix}_weights": [e[3] for e in entries],
    }  # fmt: skip


@pytest.mark.parametrize("missing", [False, True], ids=["plain", "missing"])
@pytest.mark.parametrize("modes", [*((mode,) for mode in NUMERIC), NUMERIC], ids=lambda m: "+".join(m)[:12])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_regressor(modes: tuple[str, ...], missing: bool, aggregate: str) -> None:
    rng = np.random.default_rng(len(modes) + missing)
    for targets in (1, 3):
        nodes, leaves = forest(rng, int(rng.integers(1, 12)), 4, modes, missing)
        attrs = nodes | weights_of(rng, leaves, range(targets), "target", dense=True)
        x = rows(rng, 37, missing)
        made = model("TreeEnsembleRegressor", x, ["y"], 1, n_targets=targets, aggregate_function=aggregate,
                     base_values=[0.25] * targets, **attrs)  # fmt: skip
        check_against_onnxruntime(made, {"x": x})


@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
@pytest.mark.parametrize("targets", [1, 2, 4])
def test_regressor_transforms(post: str, targets: int) -> None:
    rng = np.random.default_rng(5)
    nodes, leaves = forest(rng, 3, 3, ("BRANCH_LEQ",), False)
    attrs = nodes | weights_of(rng, leaves, range(targets), "target", dense=True)
    if post == "PROBIT":
        attrs["target_weights"] = [abs(weight) % 0.3 + 0.01 for weight in attrs["target_weights"]]
    x = rows(rng, 9, False)
    made = model("TreeEnsembleRegressor", x, ["y"], 1, n_targets=targets, post_transform=post, **attrs)
    check_against_onnxruntime(made, {"x": x}, 1e-3, 1e-4)


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_regressor_of_other_types(dtype: Any, version: int) -> None:
    rng = np.random.default_rng(2)
    nodes, leaves = forest(rng, 5, 4, ("BRANCH_LEQ", "BRANCH_LT"), False)
    attrs = nodes | weights_of(rng, leaves, [0], "target", dense=True)
    if dtype is np.float64 and version == 3:
        for name in ("nodes_values", "target_weights"):
            attrs[f"{name}_as_tensor"] = numpy_helper.from_array(np.array(attrs.pop(name), np.float64))
    x = rows(rng, 11, False).astype(dtype)
    check_against_onnxruntime(model("TreeEnsembleRegressor", x, ["y"], version, n_targets=1, **attrs), {"x": x})


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_classifier_of_other_types(dtype: Any) -> None:
    rng = np.random.default_rng(4)
    nodes, leaves = forest(rng, 5, 4, ("BRANCH_LEQ", "BRANCH_LT"), False)
    attrs = nodes | weights_of(rng, leaves, range(3), "class", dense=True)
    x = rows(rng, 11, False).astype(dtype)
    made = model("TreeEnsembleClassifier", x, ["label", "scores"], 1, classlabels_int64s=[0, 1, 2], **attrs)
    check_against_onnxruntime(made, {"x": x})


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"])
@pytest.mark.parametrize("base", [0, 1, 2], ids=lambda n: f"base{n}")
@pytest.mark.parametrize("ids", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("positive", [False, True], ids=["signed", "positive"])
def test_classifier_of_two(ids: tuple[int, ...], base: int, positive: bool, post: str) -> None:
    rng = np.random.default_rng(7)
    nodes, leaves = forest(rng, 3, 3, ("BRANCH_LEQ",), False)
    attrs = nodes | weights_of(rng, leaves, ids, "class", dense=True)
    if positive:
        attrs["class_weights"] = [abs(weight) / 4 for weight in attrs["class_weights"]]
    if base:
        attrs["base_values"] = [0.125, -0.25][:base]
    if post == "PROBIT":
        if ids == (0,) and base < 2:
            pytest.skip("ONNX Runtime writes one of the two scores only")
        attrs["class_weights"] = [abs(weight) % 0.3 + 0.01 for weight in attrs["class_weights"]]
    x = rows(rng, 23, False)
    labels = [0, 1] if len(ids) > 1 else [10, 20]  # ONNX Runtime gives 0 and 1 in the first case, whatever the labels
    made = model("TreeEnsembleClassifier", x, ["label", "scores"], 1, classlabels_int64s=labels,
                 post_transform=post, **attrs)  # fmt: skip
    check_against_onnxruntime(made, {"x": x}, 1e-3, 1e-4)


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
@pytest.mark.parametrize("base", [False, True], ids=["plain", "base"])
def test_classifier_of_many(dense: bool, base: bool, post: str) -> None:
    rng = np.random.default_rng(11)
    nodes, leaves = forest(rng, 12, 3, ("BRANCH_LT", "BRANCH_GTE"), True)
    attrs = nodes | weights_of(rng, leaves, range(4), "class", dense)
    if base:
        attrs["base_values"] = [0.1, 0.2, -0.3, 0.4]
    x = rows(rng, 40, True)
    made = model("TreeEnsembleClassifier", x, ["label", "scores"], 3, classlabels_int64s=[3, 1, 7, 5],
                 post_transform=post, **attrs)  # fmt: skip
    check_against_onnxruntime(made, {"x": x}, 1e-3, 1e-4)


@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ensemble_version_5(aggregate: int, dtype: Any) -> None:
    """x0 <= 0.5, then membership; leaves of two targets."""
    modes = np.array([0, 6, 1, 4, 6], np.uint8)
    splits = np.array([0.5, 9.0, 1.0, -0.5, 9.0], dtype)
    members = np.array([1.0, -1.0, np.nan, 2.0, 0.0, -2.0, np.nan], dtype)
    attrs = {
        "tree_roots": [0, 2], "n_targets": 2, "aggregate_function": aggregate,
        "nodes_modes": numpy_helper.from_array(modes), "nodes_splits": numpy_helper.from_array(splits),
        "nodes_featureids": [0, 1, 2, 0, 1], "nodes_truenodeids": [1, 0, 3, 2, 4], "nodes_trueleafs": [0, 1, 0, 1, 1],
        "nodes_falsenodeids": [1, 1, 4, 3, 5], "nodes_falseleafs": [1, 1, 0, 1, 1],
        "leaf_targetids": [0, 1, 0, 1, 0, 1], "membership_values": numpy_helper.from_array(members),
        "leaf_weights": numpy_helper.from_array(np.array([1.5, -2.0, 0.5, 4.0, 2.5, -1.25], dtype)),
    }  # fmt: skip
    x = np.round(rows(np.random.default_rng(3), 50, False, dtype) * 2)
    made = model("TreeEnsemble", x, ["y"], 5, **attrs)
    check_against_onnxruntime(made, {"x": x})


def test_what_is_wrong_is_said() -> None:
    rng = np.random.default_rng(1)
    nodes, leaves = forest(rng, 1, 2, ("BRANCH_LEQ",), False)
    attrs = nodes | weights_of(rng, leaves, [0], "target", dense=True)
    x = rows(rng, 2, False)
    for change, text in (
        ({"nodes_featureids": [99] * len(nodes["nodes_nodeids"])}, "feature 99"),
        ({"nodes_truenodeids": [0] * len(nodes["nodes_nodeids"])}, "own descendant"),
        ({"target_ids": [5] * len(leaves)}, "target 5"),
        ({"nodes_modes": ["BRANCH_ODD"] * len(nodes["nodes_nodeids"])}, "no leaf|unknown node mode|descendant"),
        ({"nodes_values": [1.0]}, "modes and 1 values"),
    ):
        with pytest.raises(ModelError, match=text):
            load(model("TreeEnsembleRegressor", x, ["y"], 1, **(attrs | change)))


def test_labels_that_are_strings() -> None:
    rng = np.random.default_rng(1)
    nodes, leaves = forest(rng, 2, 2, ("BRANCH_LEQ",), False)
    attrs = nodes | weights_of(rng, leaves, [0, 1, 2], "class", dense=True)
    x = rows(rng, 2, False)
    made = model("TreeEnsembleClassifier", x, ["label", "scores"], 1, classlabels_strings=["a", "b", "c"], **attrs)
    with pytest.raises(UnsupportedError, match="labels that are strings"):
        load(made)


def test_a_model_needs_no_default_operator_set() -> None:
    rng = np.random.default_rng(1)
    nodes, leaves = forest(rng, 2, 2, ("BRANCH_LEQ",), False)
    made = model("TreeEnsembleRegressor", rows(rng, 2, False), ["y"], 1,
                 **(nodes | weights_of(rng, leaves, [0], "target", dense=True)))  # fmt: skip
    del made.opset_import[0]
    assert load(made).outputs[0].type.shape[1] == 1
    assert FLOAT == TensorProto.FLOAT
