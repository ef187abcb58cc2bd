"""If on what an input holds, and on sizes: one program for each answer, guarded, and the right one runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import aot
from aot import frontend
from aot.artifacts import Artifact
from aot.program_text import guard_lines
from aot.text import parse_graph, print_graph

ort = pytest.importorskip("onnxruntime")


def branch(name: str, node: str, factor: float) -> onnx.GraphProto:
    scale = helper.make_tensor("factor", TensorProto.FLOAT, [], [factor])
    nodes = [helper.make_node("Constant", [], ["f"], value=scale), helper.make_node(node, ["x", "f"], [f"{name}_y"])]
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)])


def rates(kind: int = TensorProto.INT64) -> onnx.ModelProto:
    """y = x * 2 where the rate is 16000, x + 3 where it is 8000, else x - 1; the rate comes as [1] or a scalar."""
    inner = [
        helper.make_node("Constant", [], ["low"], value=helper.make_tensor("low", kind, [], [8000])),
        helper.make_node("Equal", ["r", "low"], ["is_low"]),
        helper.make_node(
            "If", ["is_low"], ["z"], name="inner", then_branch=branch("b", "Add", 3), else_branch=branch("c", "Sub", 1)
        ),
    ]
    other = helper.make_graph(inner, "other", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)])
    nodes = [
        helper.make_node("Squeeze", ["rate"], ["r"], name="squeeze"),
        helper.make_node("Constant", [], ["high"], value=helper.make_tensor("high", kind, [], [16000])),
        helper.make_node("Equal", ["high", "r"], ["is_high"]),
        helper.make_node("If", ["is_high"], ["y"], name="outer", then_branch=branch("a", "Mul", 2), else_branch=other),
    ]
    graph = helper.make_graph(
        nodes, "rates",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("rate", kind, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32])
def test_the_input_chooses_the_program(kind: int, cache: Path) -> None:
    source = rates(kind)
    artifact = aot.compile(source, cache_dir=cache)
    assert [p.variant for p in artifact.programs if p.target.endswith("v3")] == ["rate=16000", "rate=8000", ""]
    model, session = aot.load(artifact.data), ort.InferenceSession(source.SerializeToString())
    for rate in (16000, 8000, 44100, -1, 0):
        inputs = {"x": np.arange(5, dtype=np.float32), "rate": np.array([rate], helper.tensor_dtype_to_np_dtype(kind))}
        np.testing.assert_array_equal(model.run(inputs)["y"], session.run(None, inputs)[0])


def test_the_guards_are_kept_and_said(cache: Path) -> None:
    artifact = Artifact(aot.compile(rates(), cache_dir=cache, target="cpu:x86-64-v3").data)
    first, second, last = (guard_lines(program) for program in artifact.programs)
    assert "guard rate holds 16000" in first
    assert {"guard rate holds 8000", "guard rate does not hold 16000"} <= set(second)
    assert {"guard rate does not hold 8000", "guard rate does not hold 16000"} <= set(last)


def test_what_a_graph_assumes_is_in_its_text() -> None:
    graphs, _ = frontend.load_variants(rates())
    for _, graph in graphs:
        text = print_graph(graph)
        assert "value 1 " in text
        assert parse_graph(text).input_values == graph.input_values


def test_a_bool_input_chooses(cache: Path) -> None:
    nodes = [
        helper.make_node("If", ["flag"], ["y"], then_branch=branch("a", "Mul", 2), else_branch=branch("b", "Add", 3))
    ]
    graph = helper.make_graph(
        nodes, "flagged",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )  # fmt: skip
    model = aot.load(
        aot.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), cache_dir=cache).data
    )
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(model.run({"x": x, "flag": np.array(True)})["y"], x * 2)
    np.testing.assert_array_equal(model.run({"x": x, "flag": np.array(False)})["y"], x + 3)


def decided_by_size(other: onnx.GraphProto) -> onnx.ModelProto:
    """If(Shape(x)[1] // 4 == 2): twice x, else what `other` says."""
    one = helper.make_tensor("one", TensorProto.INT64, [], [1])
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Constant", [], ["i"], value=one),
        helper.make_node("Gather", ["shape", "i"], ["width"], axis=0),
        helper.make_node("Constant", [], ["four"], value=helper.make_tensor("four", TensorProto.INT64, [], [4])),
        helper.make_node("Div", ["width", "four"], ["quarter"]),
        helper.make_node("Constant", [], ["two"], value=helper.make_tensor("two", TensorProto.INT64, [], [2])),
        helper.make_node("Equal", ["quarter", "two"], ["fits"]),
        helper.make_node("If", ["fits"], ["y"], name="fits", then_branch=branch("a", "Mul", 2), else_branch=other),
    ]
    graph = helper.make_graph(
        nodes, "sized", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "width"])],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_a_size_decides_when_running(cache: Path) -> None:
    model = aot.load(aot.compile(decided_by_size(branch("b", "Add", 3)), cache_dir=cache).data)
    for width, want in ((9, 2), (12, 4), (3, 4), (8, 2)):
        x = np.ones((3, width), np.float32)
        np.testing.assert_array_equal(model.run({"x": x})["y"], x * want)


def test_a_size_that_decides_on_a_rank_becomes_a_guard(cache: Path) -> None:
    """Where only one branch can be compiled it is taken, so sizes from 8 to 11 are accepted and no others."""
    other = helper.make_graph(
        [helper.make_node("ReduceSum", ["x"], ["b"], keepdims=0)], "b", [], [onnx.ValueInfoProto(name="b")]
    )
    artifact = aot.compile(decided_by_size(other), cache_dir=cache)
    assert any("from 8 to 11" in note for note in artifact.report.notes)
    model = aot.load(artifact.data)
    x = np.ones((3, 9), np.float32)
    np.testing.assert_array_equal(model.run({"x": x})["y"], x * 2)
    with pytest.raises(aot.GuardError, match="8 to 11, got 12"):
        model.run({"x": np.ones((3, 12), np.float32)})


def test_a_squeeze_of_all_gives_the_declared_rank(cache: Path) -> None:
    """Squeeze without axes drops an open size only where it is 1; the declared rank says that it is."""
    nodes = [helper.make_node("Squeeze", ["x"], ["s"]), helper.make_node("Neg", ["s"], ["y"])]
    graph = helper.make_graph(
        nodes, "squeezed", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    )  # fmt: skip
    artifact = aot.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)]), cache_dir=cache)
    x = np.ones((1, 1, 3), np.float32)
    assert aot.load(artifact.data).run({"x": x})["y"].shape == (3,)
    with pytest.raises(aot.GuardError, match="expected 1, got 2"):
        aot.load(artifact.data).run({"x": np.ones((2, 1, 3), np.float32)})


def test_branches_of_different_shapes(cache: Path) -> None:
    """What the input holds decides how many elements the result has, for equal shapes of the inputs."""
    doubled = helper.make_graph(
        [helper.make_node("Concat", ["x", "x"], ["d"], axis=0)], "doubled", [],
        [helper.make_tensor_value_info("d", TensorProto.FLOAT, None)],
    )  # fmt: skip
    nodes = [helper.make_node("If", ["flag"], ["y"], then_branch=doubled, else_branch=branch("b", "Add", 3))]
    graph = helper.make_graph(
        nodes, "shaped",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model = aot.load(aot.compile(source, cache_dir=cache).data)
    x = np.arange(4, dtype=np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(model.run({"x": x, "flag": np.array([True])})["y"], np.concatenate([x, x]))
        np.testing.assert_array_equal(model.run({"x": x, "flag": np.array([False])})["y"], x + 3)
