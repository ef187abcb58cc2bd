"""Sorts, scatters, random numbers and trees as artifacts: both targets, any number of threads, in place or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import aot
import aot.runtime
from tests.frontend.models import FLOAT, INT64, by_onnxruntime, model_of
from tests.frontend.test_onnx_trees import forest, model, weights_of

TARGETS = ["cpu:x86-64-v3", "cpu:x86-64-v4"]


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, list(inputs), list(outputs), **attrs)


def runs(made: onnx.ModelProto, feeds: Sequence[dict[str, Any]], target: str, path: Path) -> list[dict[str, Any]]:
    """The outputs for every feed; the same bits with 1, 2 and 3 threads."""
    if not aot.runtime.target_supported(target):
        pytest.skip(f"this CPU does not run {target}")
    aot.compile(made, target=target).save(path)
    results = []
    for threads in (1, 2, 3):
        loaded = aot.load(path, threads=threads)
        results.append([loaded.run(feed) for feed in feeds])
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            for name in mine:
                assert mine[name].tobytes() == theirs[name].tobytes(), name
    return results[0]


@pytest.mark.parametrize("target", TARGETS)
def test_sorts_and_scatters_agree(target: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    nodes = [
        node("TopK", ["x", "k"], ["best", "where"], axis=1),
        node("Exp", ["x"], ["e"]),
        node("ScatterElements", ["e", "i", "u"], ["added"], axis=0, reduction="add"),  # e dies: in place
        node("Relu", ["added"], ["a"]),
        node("ScatterND", ["x", "pairs", "u2"], ["put"]),  # x is an input: copied
        node("Expand", ["column", "like"], ["wide"]),
        node("ScatterElements", ["x", "wide", "u"], ["rows"], axis=0, reduction="max"),
        node("TopK", ["t", "k"], ["low", "lowest"], axis=0, largest=0),
        node("Transpose", ["x"], ["t"], perm=[1, 0]),
    ]
    inputs: dict[str, Any] = {
        "x": (FLOAT, ["N", 40]), "i": (INT64, ["E", 40]), "u": (FLOAT, ["E", 40]), "column": (INT64, ["E", 1]),
        "pairs": (INT64, ["P", 2]), "u2": (FLOAT, ["P"]), "like": (INT64, [2]),
    }  # fmt: skip
    del inputs["like"]
    nodes.insert(0, node("Shape", ["i"], ["like"]))
    outputs = ["best", "where", "a", "put", "rows", "low", "lowest"]
    made = model_of(nodes, inputs, outputs, opset=18, constants={"k": np.array([3])})
    feeds: list[dict[str, Any]] = []
    for n, e, p in ((9, 30, 4), (3, 1, 1), (50, 200, 9)):
        places = np.stack([np.arange(p) % n, np.arange(p)], axis=1)
        feeds.append(
            {
                "x": rng.normal(size=(n, 40)).astype(np.float32), "i": rng.integers(-n, n, (e, 40)),
                "u": rng.normal(size=(e, 40)).astype(np.float32), "column": rng.integers(0, n, (e, 1)),
                "pairs": places, "u2": rng.normal(size=p).astype(np.float32),
            }
        )  # fmt: skip
    for got, feed in zip(runs(made, feeds, target, tmp_path / "m.aot"), feeds, strict=True):
        for name, want in zip(outputs, by_onnxruntime(made, feed), strict=True):
            np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("missing", [False, True])
def test_trees_agree(target: str, missing: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    nodes, leaves = forest(rng, 37, 6, ("BRANCH_LEQ", "BRANCH_GT"), missing)
    attrs = nodes | weights_of(rng, leaves, range(3), "class", dense=True)
    feeds = []
    for count in (1, 7, 8, 300):
        x = rng.integers(-4, 5, (count, 3)).astype(np.float32) / 2
        if missing:
            x[rng.random(x.shape) < 0.1] = np.nan
        feeds.append({"x": x})
    made = model("TreeEnsembleClassifier", feeds[0]["x"], ["label", "scores"], 1, classlabels_int64s=[0, 1, 2], **attrs)
    for got, feed in zip(runs(made, feeds, target, tmp_path / "m.aot"), feeds, strict=True):
        label, scores = by_onnxruntime(made, feed)
        np.testing.assert_array_equal(got["label"], label)
        np.testing.assert_allclose(got["scores"], scores, rtol=1e-4, atol=1e-5)
    # A row's scores do not depend on the rows beside it.
    loaded = aot.load(tmp_path / "m.aot", threads=1)
    many = loaded.run(feeds[-1])["scores"]
    alone = np.concatenate([loaded.run({"x": row[None]})["scores"] for row in feeds[-1]["x"][:20]])
    np.testing.assert_array_equal(many[:20], alone)


@pytest.mark.parametrize("target", TARGETS)
def test_random_numbers_are_the_same_everywhere(target: str, tmp_path: Path) -> None:
    nodes = [
        node("RandomUniformLike", ["x"], ["u"], seed=3.0),
        node("RandomNormal", [], ["n"], shape=[7, 33]),
        node("Bernoulli", ["p"], ["b"], seed=1.0),
        node("Add", ["n", "n"], ["two"]),
    ]
    inputs: dict[str, Any] = {"x": (FLOAT, ["N", 50]), "p": (TensorProto.FLOAT, [64])}
    made = model_of(nodes, inputs, ["u", "two", "b"], opset=15)
    feed: dict[str, Any] = {"x": np.zeros((21, 50), np.float32), "p": np.full(64, 0.5, np.float32)}
    from aot.evaluate import evaluate
    from aot.frontend import load

    (got,) = runs(made, [feed], target, tmp_path / "m.aot")
    for name, want in zip(["u", "two", "b"], evaluate(load(made), feed), strict=True):
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5, err_msg=name)
