"""Models with ops that exporters write, compiled and run, against ONNX Runtime or the interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import aot
from aot.evaluate import evaluate
from aot.frontend import load
from tests.frontend import test_onnx_interpolation as interpolation
from tests.frontend import test_onnx_ngrams as ngrams
from tests.frontend import test_onnx_svm as svm
from tests.frontend.models import Array, by_onnxruntime, single
from tests.frontend.test_onnx_ml import ml

RNG = np.random.default_rng(12)
Case = tuple[onnx.ModelProto, dict[str, Array]]


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return RNG.normal(size=shape).astype(dtype)


def compiled(model: onnx.ModelProto, feed: dict[str, Array], cache: Path) -> list[Array]:
    """The results of the artifact; equal at one and at three threads."""
    data = aot.compile(model.SerializeToString(), ("cpu:x86-64-v3",), cache_dir=cache).data
    results = []
    for threads in (1, 3):
        with aot.load(data, threads=threads) as loaded:
            results.append(loaded.run(feed))
    for name, value in results[0].items():
        assert value.tobytes() == results[1][name].tobytes()
    return [results[0][info.name] for info in model.graph.output]


def _cases() -> dict[str, Case]:
    boxes = np.array([[1, 1, 7, 9], [2, 3, 15, 18], [-3, -2, 4, 30]], np.float32)
    roi = [normal(2, 3, 10, 11), boxes, np.array([0, 1, 0])]
    rois = np.concatenate([np.zeros((3, 1), np.float32), np.abs(boxes)], axis=1)
    deform = [normal(2, 4, 6, 6), normal(3, 4, 3, 3), normal(2, 18, 6, 6), normal(3), normal(2, 9, 6, 6)]
    tokens = RNG.integers(0, 5, (3, 8))
    return {
        "roi_align": single("RoiAlign", roi, opset=16, output_height=3, output_width=2, spatial_scale=0.5),
        "max_roi_pool": single("MaxRoiPool", [normal(1, 3, 9, 9), rois], opset=17, pooled_shape=[2, 2]),
        "deform_conv": single("DeformConv", deform, opset=19, pads=[1, 1, 1, 1]),
        "det": single("Det", [normal(3, 5, 5)], opset=11),
        "antialias": interpolation.resize((1, 2, 20, 24), sizes=[1, 2, 7, 30], mode="cubic", antialias=1),
        "crop": interpolation.resize(
            (1, 1, 7, 6), sizes=[1, 1, 3, 4], roi=[0, 0, 0.4, -0.2, 1, 1, 1.4, 1.7], mode="linear",
            **interpolation.CROP,
        ),
        "ngrams": single("TfIdfVectorizer", [tokens], opset=9, **ngrams.attrs(max_skip_count=1)),
        "svm": ml("SVMClassifier", normal(9, 4), results=2, **svm.machine(3, probabilities=True)),
        "pow_int_float": single(
            "Pow", [np.arange(1, 40), np.array([2.0, 3.0, 0.5] * 13, np.float32)], opset=15
        ),
    }  # fmt: skip


CASES = _cases()


@pytest.mark.parametrize("name", CASES)
def test_against_onnxruntime(name: str, tmp_path: Path) -> None:
    model, feed = CASES[name]
    for mine, theirs in zip(compiled(model, feed, tmp_path), by_onnxruntime(model, feed), strict=True):
        if theirs.dtype.kind == "f":
            np.testing.assert_allclose(mine, theirs, 1e-3, 1e-4)
        else:
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_both_directions_in_half_precision(kind: str, tmp_path: Path) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    weights = {"W": (2, gates * 6, 4), "R": (2, gates * 6, 6), "B": (2, 2 * gates * 6)}
    node = helper.make_node(kind, ["x", *weights], ["y", "h"], hidden_size=6, direction="bidirectional")
    graph = helper.make_graph(
        [node], "half", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, ["t", "b", 4])],
        [onnx.ValueInfoProto(name=name) for name in ("y", "h")],
        [numpy_helper.from_array(normal(*shape, dtype=np.float16) / 2, name) for name, shape in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    feed = {"x": normal(5, 3, 4, dtype=np.float16)}
    for mine, theirs in zip(compiled(model, feed, tmp_path), evaluate(load(model), feed), strict=True):
        np.testing.assert_allclose(mine.astype(np.float32), theirs.astype(np.float32), 2e-2, 2e-3)
