"""The support table: how a model is examined, and that the pages in the repository are about the catalogue as it is."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.zoo.catalogue import ZooModel, catalogue

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
support = pytest.importorskip("support", reason="it imports the compiler and onnxruntime")


def row_of(folder: Path, nodes: list[onnx.NodeProto], weight: float = 2.0) -> Any:
    """A model of these nodes from x[3] to y, examined with one case."""
    info = helper.make_tensor_value_info
    constants = [
        numpy_helper.from_array(np.array(weight, np.float32), "w"),
        numpy_helper.from_array(np.array(0, np.int8), "zero"),
    ]
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, ["n"])], [info("y", TensorProto.FLOAT, None)], constants
    )
    opsets = [
        helper.make_opsetid("", 17),
        helper.make_opsetid("com.unused", 1),
        helper.make_opsetid("com.microsoft", 1),
    ]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "m.onnx")
    case = ("three", {"x": {"dtype": "float32", "shape": [3], "gen": "normal"}})
    model = ZooModel("m", "m.onnx", "pkg", "1.0", "m.onnx", "", (case,), task="a | b")
    return support.examine(model, folder / "m.onnx", "cpu:x86-64-v3", None, folder / "m.aot")


def test_a_model_that_agrees(tmp_path: Path) -> None:
    row = row_of(tmp_path, [helper.make_node("Mul", ["x", "w"], ["m"]), helper.make_node("Exp", ["m"], ["y"])])
    assert row.agrees and (row.nodes, row.ops, row.opsets, row.cases) == (2, {"Mul": 1, "Exp": 1}, "ai.onnx 17", 1)
    assert 0 <= row.worst < 0.1 and row.artifact_bytes > 1000 and row.build_cpu_s > 0
    page = support.page([row], {"date": "today"})
    assert (
        "| m | a \\| b | pkg 1.0 | 2 | 2 | ai.onnx 17 | 1 |" in page and "2, with the number of models: Exp 1" in page
    )
    assert "| build, and agree with ONNX Runtime | 1, on all of their 1 recorded cases;" in support.summary([row])


def test_a_quantized_model(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "w", "zero"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "w", "zero"], ["y"], "dequantize"),
    ]
    row = row_of(tmp_path, nodes)
    assert row.agrees and not row.refusal


def test_a_quantized_model_that_is_not_built(tmp_path: Path) -> None:
    nodes = [helper.make_node("QOrderedGelu", ["x", "w", "w"], ["y"], "quantized", domain="com.microsoft")]
    row = row_of(tmp_path, nodes)
    assert row.quantized and "QOrderedGelu x1" in row.refusal
    assert "not yet: quantized (" in support.page([row], {}) and "| not yet: quantized | m |" in support.summary([row])


def test_a_difference_is_not_hidden(tmp_path: Path) -> None:
    row = row_of(tmp_path, [helper.make_node("Mul", ["x", "w"], ["y"])])
    row.wrong = "case 'three', output 'y': 3 of 3 elements"
    assert not row.agrees and "DIFFERS: case 'three'" in support.page([row], {})
    assert "| differ | m |" in support.summary([row])


def test_markers() -> None:
    text = f"a\n{support.BEGIN}\nold\n{support.END}\nb\n"
    assert support.put_between(text, "new") == f"a\n{support.BEGIN}\nnew\n{support.END}\nb\n"
    with pytest.raises(ValueError, match="lacks the markers"):
        support.put_between("a", "new")


def test_the_pages_are_about_the_catalogue() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    listed = re.findall(r"^\| (\w+) \| [^|]*(?:\\\|[^|]*)*\| \S+ [\d.]+ \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(model.name for model in catalogue())
    assert "DIFFERS" not in page
    readme = (ROOT / "README.md").read_text()
    part = readme.partition(support.BEGIN)[2].partition(support.END)[0]
    assert f"| {len(catalogue())} ONNX models of public Python packages" in part and "differ" not in part
    built = page.partition("## Built")[2].partition("## Not built")[0]
    assert f"agree with ONNX Runtime | {built.count(chr(10) + '| ') - 1}, on all" in part
