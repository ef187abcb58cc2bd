"""The demo model's files are what docs/digits/README.md says; the reference is ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime

DIGITS = Path(__file__).parent.parent / "docs" / "digits"


def test_the_expected_logits_are_the_models() -> None:
    session = onnxruntime.InferenceSession(DIGITS / "digits.onnx", providers=["CPUExecutionProvider"])
    with np.load(DIGITS / "test.npz") as test:
        images, labels, expected = test["images"], test["labels"], test["logits"]
    assert images.dtype == np.float32 and images.shape == (540, 1, 8, 8)
    assert images.min() == 0 and images.max() == 1
    (logits,) = session.run(["logits"], {"image": images})
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    assert int((logits.argmax(1) == labels).sum()) == 536


def test_the_model_is_small_and_exercises_the_compiler() -> None:
    assert (DIGITS / "digits.onnx").stat().st_size < 200_000
    model = onnx.load(DIGITS / "digits.onnx")
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]
    operators = {node.op_type for node in model.graph.node}
    assert operators >= {"Conv", "BatchNormalization", "Relu", "Add", "MaxPool", "GlobalAveragePool", "Gemm"}
    assert any(a.name == "group" and a.i > 1 for node in model.graph.node for a in node.attribute)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
