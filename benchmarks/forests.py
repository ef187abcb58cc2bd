"""Writes random tree ensembles as ONNX files, the way converters of scikit-learn and the boosting libraries write them.

Trees are grown breadth first on normally distributed features: an inner node takes a random feature and a
threshold of the same distribution, so that rows spread over the leaves. Same name, same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper


@dataclass(frozen=True)
class Forest:
    """One ensemble. `classes` 0: a regressor. `full`: every leaf at `depth`; else one subtree in five ends early."""

    trees: int
    depth: int
    features: int
    classes: int
    full: bool
    average: bool  # as random forests; otherwise the sum, as boosting
    rows: tuple[int, ...] = (1, 100, 10000)


FORESTS = {
    "forest_regressor_100x8": Forest(100, 8, 20, 0, False, True),
    "forest_classifier_100x8": Forest(100, 8, 20, 3, False, True),
    "forest_classifier_500x12": Forest(500, 12, 30, 10, False, True, (1, 100, 2000)),
    "boosted_regressor_500x6": Forest(500, 6, 30, 0, True, False),
    "boosted_binary_300x6": Forest(300, 6, 40, 2, True, False),
    "small_classifier_10x4": Forest(10, 4, 4, 2, False, True, (1, 8, 1000)),
}


def build(name: str) -> onnx.ModelProto:
    """The model `name`: input x [batch, features]; output y, or label and scores."""
    forest = FORESTS[name]
    random = np.random.default_rng(11)
    columns: dict[str, list[int] | list[float] | list[str]] = {
        key: [] for key in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    }
    leaves: dict[str, list[int] | list[float]] = {key: [] for key in ("treeids", "nodeids", "ids", "weights")}
    targets = max(1, forest.classes if forest.classes != 2 else 1)

    def node(tree: int, number: int, mode: str, feature: int, value: float, true: int, false: int) -> None:
        row = (tree, number, feature, value, mode, true, false)
        for column, entry in zip(columns.values(), row, strict=True):
            column.append(entry)  # type: ignore[arg-type]

    for tree in range(forest.trees):
        pending, next_number = [(0, 0)], 1
        for number, depth in pending:
            ends = depth == forest.depth or (not forest.full and depth > 1 and random.random() < 0.2)
            if not ends:
                node(tree, number, "BRANCH_LEQ", int(random.integers(forest.features)), float(random.normal() * 0.7),
                     next_number, next_number + 1)  # fmt: skip
                pending += [(next_number, depth + 1), (next_number + 1, depth + 1)]
                next_number += 2
                continue
            node(tree, number, "LEAF", 0, 0.0, 0, 0)
            scores = random.dirichlet(np.ones(targets)) if targets > 1 else random.normal(size=1)
            for target, score in enumerate(scores):
                entry = (tree, number, target, float(score) / (forest.trees if forest.average else 1))
                for column, part in zip(leaves.values(), entry, strict=True):
                    column.append(part)  # type: ignore[arg-type]
    attributes: dict[str, object] = {f"nodes_{key}": values for key, values in columns.items()}
    prefix = "class" if forest.classes else "target"
    attributes |= {f"{prefix}_{key}": values for key, values in leaves.items()}
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", forest.features])]
    if forest.classes:
        attributes |= {"classlabels_int64s": list(range(forest.classes))}
        attributes["post_transform"] = "LOGISTIC" if forest.classes == 2 else "NONE"
        made = helper.make_node("TreeEnsembleClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", **attributes)
        outputs = [
            helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", forest.classes]),
        ]
    else:
        attributes |= {"n_targets": 1}
        made = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **attributes)
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])]
    graph = helper.make_graph([made], name, inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name="aotc-benchmarks")


def inputs(name: str) -> list[dict[str, np.ndarray]]:
    """Input cases of a model of this file, by batch."""
    random = np.random.default_rng(7)
    forest = FORESTS[name]
    return [{"x": random.standard_normal((rows, forest.features)).astype(np.float32)} for rows in forest.rows]


def write(name: str, folder: Path) -> Path:
    """Writes one model into a folder, unless it is there, and returns its path."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(build(name), str(path))
    return path
