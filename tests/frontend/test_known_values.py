"""Shape arithmetic: it is followed as known contents, and never becomes nodes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from aot.dims import symbols_of
from aot.errors import UnsupportedError
from aot.evaluate import evaluate
from aot.frontend import load, load_with_info
from tests.frontend.models import FLOAT, INT64, Array, Shape, assert_same, by_onnxruntime, model_of

node = helper.make_node


def constant(name: str, array: Any) -> NodeProto:
    return node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(array)))


def ops_of(graph: Any) -> list[str]:
    return [n.op for n in graph.nodes]


def agree(model: Any, *feeds: Mapping[str, Array]) -> Any:
    """Imports once; compares for every feed."""
    graph = load(model)
    for feed in feeds:
        assert_same(evaluate(graph, feed), by_onnxruntime(model, feed))
    return graph


def floats(*shape: int) -> Array:
    return np.random.default_rng(1).normal(0, 1, shape).astype(np.float32)


def test_reshape_from_gathered_sizes() -> None:
    nodes = [
        node("Shape", ["x"], ["shape"]),
        constant("zero", 0), constant("one", 1), constant("axes", [0]), constant("heads", [4]), constant("rest", [-1]),
        node("Gather", ["shape", "zero"], ["b"]), node("Gather", ["shape", "one"], ["s"]),
        node("Unsqueeze", ["b", "axes"], ["b1"]), node("Unsqueeze", ["s", "axes"], ["s1"]),
        node("Concat", ["b1", "s1", "heads", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]  # fmt: skip
    model = model_of(nodes, {"x": (FLOAT, ["b", "s", 24])}, ["y"])
    graph = agree(model, {"x": floats(2, 3, 24)}, {"x": floats(1, 7, 24)})
    assert ops_of(graph) == ["reshape"]
    assert [str(extent) for extent in graph.outputs[0].type.shape] == ["b", "s", "4", "6"]


def test_expand_to_a_shape_with_minus_ones_replaced() -> None:
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("ConstantOfShape", ["two"], ["ones"], value=numpy_helper.from_array(np.array([1]))),
        constant("two", [2]), constant("minus", -1),
        node("Mul", ["ones", "minus"], ["minus_ones"]),
        node("Equal", ["shape", "minus_ones"], ["is_minus"]),
        node("Where", ["is_minus", "ones", "shape"], ["target"]),
        constant("row", np.arange(1, dtype=np.float32)[None]),
        node("Expand", ["row", "target"], ["wide"]), node("Add", ["x", "wide"], ["y"]),
    ]  # fmt: skip
    model = model_of(nodes, {"x": (FLOAT, ["b", "s"])}, ["y"])
    graph = agree(model, {"x": floats(2, 3)}, {"x": floats(5, 1)})
    assert set(ops_of(graph)) <= {"expand", "add"}


def test_resize_to_sizes_computed_in_floats() -> None:
    nodes = [
        node("Shape", ["x"], ["shape"]),
        constant("two", [2]), constant("four", [4]), constant("zero", [0]),
        constant("factor", np.array([2.0, 1.5], np.float32)),
        node("Slice", ["shape", "two", "four", "zero"], ["hw"]),
        node("Slice", ["shape", "zero", "two", "zero"], ["nc"]),
        node("Cast", ["hw"], ["hw_f"], to=TensorProto.FLOAT), node("Mul", ["hw_f", "factor"], ["big"]),
        node("Floor", ["big"], ["floored"]), node("Cast", ["floored"], ["sizes_hw"], to=TensorProto.INT64),
        node("Concat", ["nc", "sizes_hw"], ["sizes"], axis=0),
        node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest", coordinate_transformation_mode="asymmetric",
             nearest_mode="floor"),
    ]  # fmt: skip
    model = model_of(nodes, {"x": (FLOAT, [1, 2, "h", "w"])}, ["y"], opset=13)
    graph = agree(model, {"x": floats(1, 2, 4, 4)}, {"x": floats(1, 2, 3, 6)}, {"x": floats(1, 2, 5, 5)})
    assert ops_of(graph) == ["resize"]
    assert [str(extent) for extent in graph.outputs[0].type.shape[2:]] == ["2*h", "((3*w)//2)"]


def test_resize_by_a_quotient_of_sizes() -> None:
    nodes = [
        node("Shape", ["x"], ["x_shape"]), node("Shape", ["like"], ["like_shape"]),
        node("Cast", ["x_shape"], ["x_f"], to=TensorProto.FLOAT),
        node("Cast", ["like_shape"], ["like_f"], to=TensorProto.FLOAT),
        node("Div", ["like_f", "x_f"], ["scales"]),
        node("Resize", ["x", "", "scales"], ["y"], mode="nearest", coordinate_transformation_mode="asymmetric",
             nearest_mode="floor"),
    ]  # fmt: skip
    inputs: dict[str, tuple[int, Shape]] = {"x": (FLOAT, [1, 1, "h", "w"]), "like": (FLOAT, [1, 1, "H", "W"])}
    graph = load(model_of(nodes, inputs, ["y"], opset=13))
    assert ops_of(graph) == ["resize"]
    assert [str(extent) for extent in graph.outputs[0].type.shape[2:]] == ["H", "W"]


def test_sizes_used_as_data() -> None:
    nodes = [
        node("Shape", ["x"], ["shape"]), constant("one", 1), constant("half", np.float32(2)),
        node("Gather", ["shape", "one"], ["s"]), node("Cast", ["s"], ["s_f"], to=TensorProto.FLOAT),
        node("Div", ["s_f", "half"], ["s_half"]), node("Mul", ["x", "s_half"], ["y"]),
        node("Size", ["x"], ["size"]), node("Shape", ["x"], ["again"]),
    ]  # fmt: skip
    model = model_of(nodes, {"x": (FLOAT, ["b", "s"])}, ["y", "shape", "size", "again"])
    graph = agree(model, {"x": floats(2, 3)}, {"x": floats(4, 4)})
    assert "dim_tensor" in ops_of(graph)


def test_floats_of_fixed_sizes_stay_known_after_a_use_as_data() -> None:
    nodes = [
        node("Shape", ["x"], ["shape"]), node("Cast", ["shape"], ["shape_f"], to=TensorProto.FLOAT),
        constant("three", np.float32(1.5)),
        node("Mul", ["x", "shape_f"], ["z"]), node("Mul", ["shape_f", "three"], ["big"]),
        node("Cast", ["big"], ["sizes"], to=TensorProto.INT64),
        node("Resize", ["z", "", "", "sizes"], ["y"], mode="nearest", coordinate_transformation_mode="asymmetric",
             nearest_mode="floor"),
    ]  # fmt: skip
    graph = agree(model_of(nodes, {"x": (FLOAT, [4, 2])}, ["y"], opset=13), {"x": floats(4, 2)})
    assert ops_of(graph) == ["mul", "resize"]


def test_range_and_positions() -> None:
    nodes = [
        node("Shape", ["ids"], ["shape"]), constant("zero", 0), constant("one", 1),
        node("Gather", ["shape", "one"], ["s"]), node("Range", ["zero", "s", "one"], ["positions"]),
        node("Gather", ["table", "positions"], ["y"]),
    ]  # fmt: skip
    model = model_of(nodes, {"ids": (INT64, ["b", "s"])}, ["y"], constants={"table": floats(20, 3)})
    graph = agree(model, {"ids": np.zeros((2, 5), np.int64)}, {"ids": np.zeros((1, 20), np.int64)})
    assert ops_of(graph) == ["iota", "gather"]


def test_slice_of_a_table_bounds_the_length() -> None:
    nodes = [
        node("Shape", ["x"], ["shape"], start=1, end=2), constant("zero", [0]), constant("axis", [0]),
        node("Slice", ["table", "zero", "shape", "axis"], ["part"]), node("Add", ["x", "part"], ["y"]),
    ]  # fmt: skip
    model = model_of(nodes, {"x": (FLOAT, ["b", "s length", 3])}, ["y"], constants={"table": floats(20, 3)})
    graph, info = load_with_info(model)
    (length,) = [symbol for symbol in graph.symbols if symbol.name == "s_length"]
    assert length.hi == 20
    assert info.symbols["s_length"] == "s length"
    assert "s length must be at most 20" in info.warnings[0]
    agree(model, {"x": floats(2, 20, 3)}, {"x": floats(2, 1, 3)})


def test_half_and_double_needs_even_sizes() -> None:
    nodes = [
        node("MaxPool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", ["half", "", "scales"], ["back"], mode="nearest", coordinate_transformation_mode="asymmetric",
             nearest_mode="floor"),
        node("Add", ["x", "back"], ["y"]),
    ]  # fmt: skip
    scales = {"scales": np.array([1, 1, 2, 2], np.float32)}
    model = model_of(nodes, {"x": (FLOAT, ["n", 3, "h", "w"])}, ["y"], opset=13, constants=scales)
    graph, info = load_with_info(model)
    assert {symbol.name: symbol.divisor for symbol in graph.symbols} == {"n": 1, "h": 2, "w": 2}
    assert graph.outputs[0].type.shape == graph.inputs[0].type.shape
    assert info.warnings == ("h and w must be a multiple of 2 (needed by Add_2)",)
    agree(model, {"x": floats(1, 3, 4, 6)})


def test_reshape_to_rows_needs_a_multiple() -> None:
    model = model_of([node("Reshape", ["x", "target"], ["y"])], {"x": (FLOAT, ["n", 6])}, ["y"],
                     constants={"target": np.array([-1, 12])})  # fmt: skip
    graph, info = load_with_info(model)
    assert [(symbol.name, symbol.divisor) for symbol in graph.symbols] == [("n", 2)]
    assert info.warnings


def test_two_names_for_one_size() -> None:
    model = model_of([node("Add", ["x", "z"], ["y"])], {"x": (FLOAT, ["a", 3]), "z": (FLOAT, ["b", 3])}, ["y"])
    graph, info = load_with_info(model)
    assert len(graph.symbols) == 1
    assert "must equal" in info.warnings[0]
    assert graph.inputs[0].type.shape == graph.inputs[1].type.shape


def test_a_size_fixed_by_the_weights() -> None:
    model = model_of(
        [node("MatMul", ["x", "w"], ["y"])], {"x": (FLOAT, ["n", "k"])}, ["y"], constants={"w": floats(5, 2)}
    )
    graph, _ = load_with_info(model)
    assert graph.inputs[0].type.shape[1] == 5


def test_if_with_a_known_condition() -> None:
    def branch(op: str) -> Any:
        return helper.make_graph(
            [node(op, ["x"], [f"{op}_y"])], op, [], [helper.make_empty_tensor_value_info(f"{op}_y")]
        )

    nodes = [
        node("Shape", ["x"], ["shape"]), constant("one", 1), constant("four", 4),
        node("Gather", ["shape", "one"], ["k"]),
        node("Equal", ["k", "four"], ["is_four"]),
        node("If", ["is_four"], ["y"], then_branch=branch("Exp"), else_branch=branch("Neg")),
    ]  # fmt: skip
    graph = agree(model_of(nodes, {"x": (FLOAT, ["n", 4])}, ["y"]), {"x": floats(2, 4)})
    assert ops_of(graph) == ["exp"]


def test_a_rank_from_data_is_refused() -> None:
    nodes = [node("Reshape", ["x", "target"], ["y"])]
    model = model_of(nodes, {"x": (FLOAT, [6]), "target": (INT64, ["rank"])}, ["y"])
    with pytest.raises(UnsupportedError, match=r"Reshape_0.*only known when running"):
        load(model)


BINARY = ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Where", "Concat", "Floor")


@pytest.mark.parametrize("seed", range(40))
def test_random_arithmetic_on_sizes(seed: int) -> None:
    """Any chain of integer ops over sizes gives what ONNX Runtime computes, folded or not."""
    source = random.Random(seed)
    nodes = [node("Shape", ["x"], ["v0"])]
    vectors = ["v0"]
    for step in range(source.randrange(2, 8)):
        name = f"v{step + 1}"
        other = f"c{step}"
        kind = source.choice(BINARY)
        numbers = [source.choice([1, 2, 3, 4, 7]) for _ in range(3)]
        left = source.choice(vectors)
        nodes.append(constant(other, numbers))
        right = source.choice([other, other, source.choice(vectors)]) if kind not in ("Div", "Mod") else other
        if kind == "Where":
            nodes.append(node("Greater", [left, right], [f"g{step}"]))
            nodes.append(node("Where", [f"g{step}", left, right], [name]))
        elif kind == "Concat":
            nodes += [node("Concat", [left, right], [f"j{step}"], axis=0), constant(f"p{step}", [4, 0, -2])]
            nodes.append(node("Gather", [f"j{step}", f"p{step}"], [name]))
        elif kind == "Floor":
            nodes += [
                node("Cast", [left], [f"f{step}"], to=TensorProto.DOUBLE),
                constant(f"d{step}", np.array(source.choice([0.5, 0.25, 1.5, 3.0]))),
                node(source.choice(["Mul", "Div"]), [f"f{step}", f"d{step}"], [f"q{step}"]),
                node(source.choice(["Floor", "Ceil"]), [f"q{step}"], [f"w{step}"]),
                node("Cast", [f"w{step}"], [name], to=TensorProto.INT64),
            ]
        else:
            nodes.append(node(kind, [left, right], [name]))
        vectors.append(name)
    nodes.append(node("ReduceSum", [vectors[-1]], ["total"], keepdims=0))
    model = model_of(nodes, {"x": (FLOAT, ["a", "b", 3])}, [vectors[-1], "total"], opset=13)
    agree(model, *({"x": np.zeros((a, b, 3), np.float32)} for a, b in ((1, 1), (2, 5), (7, 4), (12, 9))))


def test_bound_symbols_disappear() -> None:
    model = model_of([node("Relu", ["x"], ["y"])], {"x": (FLOAT, ["n", 3])}, ["y"])
    graph = load(model, dims={"n": 4})
    assert graph.inputs[0].type.shape == (4, 3)
    assert not symbols_of(graph.outputs[0].type.shape[0])
