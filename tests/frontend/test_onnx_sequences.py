"""Sequences and optionals that are resolved while importing, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from aot.errors import AotError, ModelError, UnsupportedError
from aot.evaluate import evaluate
from aot.frontend import load, load_with_info
from tests.frontend.models import BOOL, FLOAT, INT64, Array, check_against_onnxruntime, model_of

RNG = np.random.default_rng(5)


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def node(op_type: str, inputs: list[str], outputs: list[str], **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, outputs, **attrs)


def test_split_edit_and_join() -> None:
    nodes = [
        node("SplitToSequence", ["x", "two"], ["s0"], axis=1),
        node("SequenceErase", ["s0", "one"], ["s1"]),
        node("Mul", ["x", "x"], ["square"]),
        node("Slice", ["square", "one_d", "three_d", "one_d"], ["part"]),
        node("SequenceInsert", ["s1", "part", "zero"], ["s2"]),
        node("SequenceInsert", ["s2", "part"], ["s3"]),
        node("ConcatFromSequence", ["s3"], ["joined"], axis=1),
        node("SequenceAt", ["s3", "last"], ["end"]),
        node("SequenceLength", ["s3"], ["length"]),
        node("Identity", ["length"], ["count"]),
    ]
    scalars = {"zero": 0, "one": 1, "two": 2, "last": -1}
    constants = {name: np.array(number) for name, number in scalars.items()}
    constants |= {"one_d": np.array([1]), "three_d": np.array([3])}
    model = model_of(nodes, {"x": (FLOAT, ["b", 7])}, ["joined", "end", "count"], constants=constants)
    check_against_onnxruntime(model, {"x": normal(3, 7)})


@pytest.mark.parametrize("keepdims", [0, 1])
def test_split_by_one_and_stack(keepdims: int) -> None:
    nodes = [
        node("SplitToSequence", ["x"], ["s"], axis=0, keepdims=keepdims),
        node("SequenceAt", ["s", "at"], ["third"]),
        node("ConcatFromSequence", ["s"], ["y"], axis=-1, new_axis=1),
    ]
    model = model_of(nodes, {"x": (FLOAT, [4, "n"])}, ["y", "third"], constants={"at": np.array(2)})
    check_against_onnxruntime(model, {"x": normal(4, 5)})


def test_split_by_sizes_of_inputs() -> None:
    nodes = [
        node("Shape", ["a"], ["n"]),
        node("Shape", ["x"], ["total"]),
        node("Sub", ["total", "n"], ["rest"]),
        node("Concat", ["n", "rest"], ["sizes"], axis=0),
        node("SplitToSequence", ["x", "sizes"], ["s"]),
        node("SequenceAt", ["s", "zero"], ["first"]),
        node("Add", ["first", "a"], ["y"]),
    ]
    model = model_of(nodes, {"x": (FLOAT, ["m"]), "a": (FLOAT, ["n"])}, ["y"], constants={"zero": np.array(0)})
    check_against_onnxruntime(model, {"x": normal(7), "a": normal(3)})


def test_construct_through_functions_and_branches() -> None:
    """A sequence goes through a function, a known branch and an Identity."""
    inner = helper.make_function(
        "local", "Reverse", ["s"], ["t"],
        [
            node("Constant", [], ["zero"], value_int=0),
            node("Constant", [], ["one"], value_int=1),
            node("SequenceAt", ["s", "zero"], ["a"]),
            node("SequenceAt", ["s", "one"], ["b"]),
            node("SequenceConstruct", ["b", "a"], ["t"]),
        ],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    branch = helper.make_graph(
        [node("Identity", ["r"], ["kept"])], "then", [], [helper.make_value_info("kept", sequence)]
    )
    other = helper.make_graph(
        [node("Identity", ["s"], ["plain"])], "else", [], [helper.make_value_info("plain", sequence)]
    )
    nodes = [
        node("SequenceConstruct", ["x", "w"], ["s"]),
        helper.make_node("Reverse", ["s"], ["r"], domain="local"),
        node("If", ["yes"], ["c"], then_branch=branch, else_branch=other),
        node("SequenceMap", ["c", "x"], ["m"], body=helper.make_graph(
            [node("Sub", ["e", "f"], ["d"])], "body",
            [helper.make_tensor_value_info(name, FLOAT, None) for name in ("e", "f")],
            [helper.make_tensor_value_info("d", FLOAT, None)],
        )),
        node("ConcatFromSequence", ["m"], ["y"], axis=0),
    ]  # fmt: skip
    model = model_of(
        nodes, {"x": (FLOAT, [2, 3]), "w": (FLOAT, [2, 3])}, ["y"], constants={"yes": np.array(True)},
        functions=[inner], opsets=[helper.make_opsetid("local", 1)],
    )  # fmt: skip
    check_against_onnxruntime(model, {"x": normal(2, 3), "w": normal(2, 3)})


def test_optionals() -> None:
    tensor = helper.make_tensor_type_proto(FLOAT, [2])
    nodes = [
        node("Optional", ["x"], ["some"]),
        node("Optional", [], ["none"], type=tensor),
        node("OptionalHasElement", ["some"], ["has"]),
        node("OptionalHasElement", ["none"], ["lacks"]),
        node("OptionalGetElement", ["some"], ["got"]),
        node("Neg", ["got"], ["y"]),
        node("Where", ["has", "got", "y"], ["z"]),
        node("Where", ["lacks", "got", "y"], ["w"]),
    ]
    check_against_onnxruntime(model_of(nodes, {"x": (FLOAT, [2])}, ["y", "z", "w"], opset=18), {"x": normal(2)})


def appending(*body: onnx.NodeProto, result: str = "longer") -> list[onnx.NodeProto]:
    """for i in range(n): body, as TorchScript writes it; `kept` and `longer` are carried on."""
    graph = helper.make_graph(
        list(body), "body",
        [helper.make_tensor_value_info("i", INT64, []), helper.make_tensor_value_info("go", BOOL, []),
         helper.make_tensor_value_info("state", FLOAT, None), onnx.ValueInfoProto(name="list")],
        [onnx.ValueInfoProto(name=name) for name in ("go", "kept", result)],
    )  # fmt: skip
    return [
        node("Shape", ["x"], ["size"], start=1, end=2),
        node("Squeeze", ["size"], ["n"]),
        node("SequenceEmpty", [], ["empty"]),
        node("Loop", ["n", "true", "first", "empty"], ["last", "found"], body=graph),
    ]


STEP = [
    node("Gather", ["x", "i"], ["row"], axis=1),
    node("Add", ["state", "row"], ["kept"]),
    node("SequenceInsert", ["list", "kept"], ["longer"]),
]


def test_a_loop_that_appends() -> None:
    nodes = [
        *appending(*STEP),
        node("ConcatFromSequence", ["found"], ["stacked"], axis=1, new_axis=1),
        node("ConcatFromSequence", ["found"], ["joined"], axis=-1),
        node("SequenceAt", ["found", "two"], ["third"]),
        node("SequenceLength", ["found"], ["length"]),
    ]
    constants = {"true": np.array(True), "first": np.zeros((2, 3), np.float32), "two": np.array(-2)}
    outputs = ["stacked", "joined", "third", "length", "last"]
    model = model_of(nodes, {"x": (FLOAT, [2, "n", 3])}, outputs, constants=constants)
    for n in (4, 7):
        check_against_onnxruntime(model, {"x": normal(2, n, 3)})


def test_a_loop_that_does_more_than_append_is_refused() -> None:
    constants = {"true": np.array(True), "first": np.zeros((2, 3), np.float32), "zero": np.array(0)}
    inputs: dict[str, Any] = {"x": (FLOAT, [2, "n", 3])}
    front = [*STEP[:2], node("SequenceInsert", ["list", "kept", "zero"], ["longer"])]
    reads = [*STEP, node("SequenceLength", ["list"], ["unused"])]
    for body in (front, reads):
        nodes = [*appending(*body), node("ConcatFromSequence", ["found"], ["y"], axis=0)]
        with pytest.raises(UnsupportedError, match="in another way than by appending one tensor"):
            load(model_of(nodes, inputs, ["y"], constants=constants))
    with pytest.raises(UnsupportedError, match=r"outputs of sequence type.*only known when running"):
        load(model_of(appending(*STEP), inputs, ["found"], constants=constants))
    begun = appending(*STEP)
    begun[2] = node("SequenceConstruct", ["first"], ["empty"])
    with pytest.raises(UnsupportedError, match="a sequence that is not empty before the loop"):
        load(model_of([*begun, node("SequenceLength", ["found"], ["y"])], inputs, ["y"], constants=constants))


def test_what_data_decides_is_refused_with_the_reason() -> None:
    split = node("SplitToSequence", ["x"], ["s"])
    cases: list[tuple[list[onnx.NodeProto], type[AotError], str]] = [
        ([split, node("SequenceAt", ["s", "i"], ["y"])], UnsupportedError, "the position in the sequence is"),
        ([split, node("Relu", ["s"], ["y"])], UnsupportedError, "a sequence or an optional, where the op takes"),
        ([split, node("Softmax", ["s"], ["y"])], UnsupportedError, "a sequence as operand 0, where the op takes a"),
        ([node("SequenceAt", ["x", "i"], ["y"])], ModelError, "operand 0 must be a sequence"),
        ([split, node("SequenceErase", ["s", "far"], ["t"]), node("SequenceLength", ["t"], ["y"])], ModelError,
         "position 9 is outside of a sequence of 4"),
        ([node("SequenceEmpty", [], ["s"]), node("ConcatFromSequence", ["s"], ["y"], axis=0)], ModelError,
         "an empty sequence cannot be concatenated"),
        ([node("SplitToSequence", ["z"], ["s"]), node("SequenceLength", ["s"], ["y"])], UnsupportedError,
         "a sequence whose length depends on the sizes of inputs"),
    ]  # fmt: skip
    inputs: dict[str, Any] = {"x": (FLOAT, [4]), "i": (INT64, []), "z": (FLOAT, ["n"])}
    for nodes, error, reason in cases:
        with pytest.raises(error, match=reason):
            load(model_of(nodes, inputs, ["y"], constants={"far": np.array(9)}))


def test_outputs_of_sequence_type_are_given_as_their_tensors() -> None:
    """As for sklearn's MultiOutputClassifier, whose probabilities are a sequence."""
    model = model_of([node("SplitToSequence", ["x", "two"], ["s"])], {"x": (FLOAT, [5, "n"])}, ["s"],
                     constants={"two": np.array(2)})  # fmt: skip
    graph, info = load_with_info(model)
    assert [value.name for value in graph.outputs] == ["s_0", "s_1", "s_2"]
    assert any("the sequence 's' is given as its tensors, s_0, s_1, s_2" in text for text in info.warnings)
    x = normal(5, 3)
    for mine, theirs in zip(evaluate(graph, {"x": x}), (x[:2], x[2:4], x[4:]), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_outputs_of_sequence_type_without_names_are_refused() -> None:
    split = node("SplitToSequence", ["x"], ["s"])
    for nodes, outputs, reason in (
        ([split, node("Relu", ["x"], ["s_1"])], ["s", "s_1"], "'s_1' is an output already"),
        ([node("SequenceEmpty", [], ["s"])], ["s"], "it is empty"),
    ):
        with pytest.raises(UnsupportedError, match=f"outputs of sequence type.*{reason}"):
            load(model_of(nodes, {"x": (FLOAT, [4])}, outputs))
