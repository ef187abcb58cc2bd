"""Malformed, hostile and unsupported models: one clear error each, and never another kind of exception."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aot.errors import AotError, ModelError, OptionError, UnsupportedError
from aot.evaluate import evaluate
from aot.frontend import check, load, load_with_info
from aot.text import consts_of, parse_graph, print_graph
from tests.frontend.models import FLOAT, INT64, model_of

node = helper.make_node


def small() -> onnx.ModelProto:
    """A valid model with constants, shapes, a convolution."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("Shape", ["r"], ["shape"]),
        node("Reshape", ["r", "target"], ["flat"]),
        node("MatMul", ["flat", "m"], ["y"]),
    ]
    constants = {
        "w": np.ones((2, 1, 3, 3), np.float32), "b": np.zeros(2, np.float32), "target": np.array([0, -1]),
        "m": np.ones((32, 3), np.float32),
    }  # fmt: skip
    return model_of(nodes, {"x": (FLOAT, ["n", 1, 4, 4])}, ["y", "shape"], constants=constants)


def test_the_small_model_is_fine() -> None:
    model = small()
    assert check(model) == []
    assert evaluate(load(model.SerializeToString()), {"x": np.ones((2, 1, 4, 4), np.float32)})[0].shape == (2, 3)


def changed(change: Callable[[onnx.ModelProto], Any]) -> onnx.ModelProto:
    model = small()
    change(model)
    return model


def drop_output(model: onnx.ModelProto) -> None:
    del model.graph.output[:]


def cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "y"


def set_raw(model: onnx.ModelProto, size: int) -> None:
    model.graph.initializer[0].raw_data = b"\0" * size


def set_dims(model: onnx.ModelProto, *dims: int) -> None:
    del model.graph.initializer[0].dims[:]
    model.graph.initializer[0].dims.extend(dims)


def add_attribute(model: onnx.ModelProto, index: int, **attrs: Any) -> None:
    for name, value in attrs.items():
        model.graph.node[index].attribute.append(helper.make_attribute(name, value))


MALFORMED: dict[str, tuple[Callable[[onnx.ModelProto], Any], str]] = {
    "cycle": (cycle, "cycle"),
    "undefined tensor": (lambda m: m.graph.node[1].input.__setitem__(0, "nowhere"), "'nowhere'"),
    "undefined output": (lambda m: m.graph.output.append(onnx.ValueInfoProto(name="nothing")), "'nothing'"),
    "output twice": (lambda m: m.graph.output.append(m.graph.output[0]), "twice"),
    "no outputs": (drop_output, "no outputs"),
    "made twice": (lambda m: m.graph.node[1].output.__setitem__(0, "c"), "also made by"),
    "remade input": (lambda m: m.graph.node[0].output.__setitem__(0, "x"), "also an input"),
    "input twice": (lambda m: m.graph.input.append(m.graph.input[0]), "twice"),
    "initializer twice": (lambda m: m.graph.initializer.append(m.graph.initializer[0]), "twice"),
    "too few operands": (lambda m: m.graph.node[0].input.__delitem__(slice(1, None)), "operands"),
    "too many operands": (lambda m: m.graph.node[1].input.extend(["x", "x"]), "operands"),
    "too many results": (lambda m: m.graph.node[1].output.extend(["more"]), "results"),
    "unknown attribute": (lambda m: add_attribute(m, 1, slope=1.0), "no attribute 'slope'"),
    "attribute of the wrong type": (lambda m: add_attribute(m, 0, group="two"), "must be of type int"),
    "attribute twice": (lambda m: add_attribute(m, 0, pads=[0, 0, 0, 0]), "twice"),
    "zero groups": (lambda m: add_attribute(m, 0, group=0), "conv"),
    "bad strides": (lambda m: add_attribute(m, 0, strides=[0, 1]), "conv.*positive"),
    "huge dilation": (lambda m: add_attribute(m, 0, dilations=[2**40, 2**40]), "conv"),
    "short pads": (lambda m: m.graph.node[0].attribute[0].ints.__delitem__(slice(1, None)), "conv"),
    "short tensor": (lambda m: set_raw(m, 10), "needs 72 bytes, found 10"),
    "long tensor": (lambda m: set_raw(m, 1000), "needs 72 bytes"),
    "negative extent": (lambda m: set_dims(m, -2, 1, 3, 3), "negative"),
    "absurd extent": (lambda m: set_dims(m, 2**62, 2**62), "bytes"),
    "weight of another rank": (lambda m: set_dims(m, 18), "conv"),
    "element type of nothing": (lambda m: setattr(m.graph.initializer[0], "data_type", 999), "999"),
    "undefined element type": (lambda m: setattr(m.graph.initializer[0], "data_type", 0), "missing"),
    "shape that does not fit": (lambda m: m.graph.initializer[2].CopyFrom(
        numpy_helper.from_array(np.array([0, 7]), "target")), "Reshape_3"),
    "shape with two holes": (lambda m: m.graph.initializer[2].CopyFrom(
        numpy_helper.from_array(np.array([-1, -1]), "target")), "two -1"),
    "shape of floats": (lambda m: m.graph.initializer[2].CopyFrom(
        numpy_helper.from_array(np.array([0.5, 2]), "target")), "Reshape_3"),
    "no operator set": (lambda m: m.opset_import.__delitem__(slice(None)), "no operator set"),
    "two versions": (lambda m: m.opset_import.append(helper.make_opsetid("", 11)), "two versions"),
    "domain without version": (lambda m: setattr(m.graph.node[1], "domain", "my.domain"), "my.domain"),
    "an input without a type": (lambda m: m.graph.input[0].ClearField("type"), "type is missing"),
    "a matrix product that cannot be": (lambda m: m.graph.initializer[3].CopyFrom(
        numpy_helper.from_array(np.ones((31, 3), np.float32), "m")), "MatMul_4"),
    "operands of two types": (lambda m: m.graph.initializer[3].CopyFrom(
        numpy_helper.from_array(np.ones((32, 3)), "m")), "MatMul_4"),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name: str) -> None:
    change, words = MALFORMED[name]
    with pytest.raises(ModelError, match=rf"(?s).*{words}"):
        load(changed(change))


@pytest.mark.parametrize(
    "data", [b"", b"\x08", b"not a model", b"\x00" * 100, b"PK\x03\x04" + b"x" * 50, os.urandom(4096)]
)
def test_not_a_model(data: bytes, tmp_path: Path) -> None:
    with pytest.raises((ModelError, OptionError)):  # a zip archive may be a program, which takes PyTorch to tell
        load(data)
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"model\.onnx"):
        load(path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read"):
        load(tmp_path / "absent.onnx")
    with pytest.raises(ModelError, match="this is a folder"):
        load(tmp_path)
    with pytest.raises(ModelError, match="path, bytes"):
        load(3)


def test_every_truncation_is_an_error_or_a_model() -> None:
    data = small().SerializeToString()
    for size in range(0, len(data), 7):
        try:
            load(data[:size])
        except AotError:
            continue


def test_flipped_bytes_never_escape() -> None:
    """Any single or multiple damage gives an AotError or still a valid graph."""
    source = random.Random(3)
    data = small().SerializeToString()
    refused = 0
    for _ in range(600):
        damaged = bytearray(data)
        for _ in range(source.choice([1, 1, 2, 8])):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        try:
            load(bytes(damaged))
        except AotError as error:
            refused += 1
            assert str(error)
    assert refused > 100


def test_unsupported_lists_everything() -> None:
    nodes = [
        node("StringNormalizer", ["x"], ["a"], name="first"),
        *(node("StringSplit", ["x"], [f"v{i}", f"i{i}"], name=f"top{i}") for i in range(7)),
        node("Relu", ["v0"], ["r"]),
        node("Frobnicate", ["r"], ["q"], domain="my.ops", name="custom"),
        node("ImageDecoder", ["x"], ["d"]),
        node("Dropout", ["x", "", "train"], ["z"], name="drop"),
    ]
    constants = {"train": np.array(True)}
    model = model_of(nodes, {"x": (FLOAT, [3, 3])}, ["a", "q", "d", "z"], constants=constants,
                     opsets=[helper.make_opsetid("my.ops", 1)], opset=20)  # fmt: skip
    found = {(entry.domain, entry.op_type): entry for entry in check(model)}
    assert {domain for domain, _ in found} == {"", "my.ops"}
    assert {op_type for _, op_type in found} == {
        "StringNormalizer", "StringSplit", "Frobnicate", "ImageDecoder", "Dropout"
    }  # fmt: skip
    assert found["", "StringSplit"].count == 7
    assert found["", "StringSplit"].nodes == ("top0", "top1", "top2", "top3", "top4")
    assert "training" in found["", "Dropout"].reason
    with pytest.raises(UnsupportedError) as caught:
        load(model)
    for words in (
        "11 nodes",
        "StringSplit-20 x7",
        "top4 and 2 more",
        "my.ops:Frobnicate-1 x1 (custom)",
        "ImageDecoder_10",
        "drop",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize(("opset", "fine"), [(1, True), (7, True), (onnx.defs.onnx_opset_version(), True), (99, False)])
def test_operator_set_range(opset: int, fine: bool) -> None:
    model = model_of([node("Relu", ["x"], ["y"])], {"x": (FLOAT, [2])}, ["y"], opset=opset)
    if fine:
        load(model)
    else:
        with pytest.raises(UnsupportedError, match=f"operator set {opset}"):
            load(model)


def test_unsupported_types() -> None:
    model = model_of([node("Identity", ["x"], ["y"])], {"x": (TensorProto.STRING, [2])}, ["y"])
    with pytest.raises(UnsupportedError, match="string"):
        load(model)
    sequence = helper.make_tensor_sequence_value_info("x", FLOAT, [2])
    graph = helper.make_graph([node("Identity", ["x"], ["y"])], "g", [sequence], [onnx.ValueInfoProto(name="y")])
    with pytest.raises(UnsupportedError, match="sequence"):
        load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def test_what_stands_in_branches_and_after_unsupported_nodes_is_listed_too() -> None:
    def branch(op: str) -> Any:
        return helper.make_graph(
            [node(op, ["x"], [f"{op}_y"])], op, [], [helper.make_empty_tensor_value_info(f"{op}_y")]
        )

    nodes = [
        node("IsNaN", ["s"], ["flag"]),
        node("If", ["flag"], ["a"], name="choice", then_branch=branch("Exp"), else_branch=branch("StringNormalizer")),
        node("Softplus", ["a"], ["b"]),
        node("MeanVarianceNormalization", ["b"], ["c"]),
        node("Relu", ["any"], ["d"]),
    ]
    model = model_of(nodes, {"x": (FLOAT, [3]), "s": (FLOAT, [])}, ["c", "d"])
    unranked = onnx.ValueInfoProto(name="any")
    unranked.type.tensor_type.elem_type = FLOAT
    model.graph.input.append(unranked)
    assert {entry.op_type for entry in check(model)} == {"StringNormalizer", "inputs of unknown rank"}
    model.opset_import[0].version = 99
    assert [entry.op_type for entry in check(model)] == ["the model"]


# Functions


def function_model(body: list[Any], calls: list[Any], inputs: list[str] | None = None) -> onnx.ModelProto:
    function = helper.make_function(
        "my",
        "Scaled",
        inputs or ["a"],
        ["b"],
        body,
        [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)],
        ["factor"],
    )
    return model_of(calls, {"x": (FLOAT, ["n"])}, ["y"], functions=[function], opsets=[helper.make_opsetid("my", 1)])


def test_a_function_is_inlined_with_its_attributes() -> None:
    constant = node("Constant", [], ["f"])
    reference = onnx.AttributeProto(name="value_float", ref_attr_name="factor", type=onnx.AttributeProto.FLOAT)
    constant.attribute.append(reference)
    body = [constant, node("Mul", ["a", "f"], ["b"], name="times")]
    calls = [node("Scaled", ["x"], ["h"], domain="my", factor=2.0, name="one"),
             node("Scaled", ["h"], ["y"], domain="my", factor=4.0, name="two")]  # fmt: skip
    graph = load(function_model(body, calls))
    np.testing.assert_array_equal(evaluate(graph, {"x": np.ones(3, np.float32)})[0], np.full(3, 8, np.float32))
    assert [n.locs for n in graph.nodes] == [("one",), ("two",)]


def test_a_function_that_calls_itself() -> None:
    calls = [node("Scaled", ["x"], ["y"], domain="my")]
    with pytest.raises(ModelError, match="calls itself"):
        load(function_model([node("Scaled", ["a"], ["b"], domain="my")], calls))


def test_locs_and_names() -> None:
    graph, info = load_with_info(small())
    assert graph.nodes[0].locs == ("conv",)
    assert graph.nodes[1].locs == ("Relu_1",)
    assert [value.name for value in graph.outputs] == ["y", "shape"]
    assert info.node_count == 5
    assert info.ops["Conv"] == 1
    assert len(info.digest) == 64
    assert info.opset == 17


def test_names_of_any_characters_survive_the_text_form() -> None:
    odd = 'a "b"\\ \n% {c}:0 \u00fc'
    model = model_of([node("Relu", [odd], [odd + "y"], name=odd)], {odd: (FLOAT, [odd, 2])}, [odd + "y"])
    model.graph.name = odd
    graph, info = load_with_info(model)
    assert (graph.inputs[0].name, graph.outputs[0].name, graph.nodes[0].locs) == (odd, odd + "y", (odd,))
    assert list(info.symbols.values()) == [f"{odd}.0"]  # it reads as an expression, so it gets a name of its own
    text = print_graph(graph)
    assert print_graph(parse_graph(text, consts_of(graph).get)) == text


def test_initializers_that_are_also_inputs_are_constants() -> None:
    model = small()
    model.graph.input.append(helper.make_tensor_value_info("w", FLOAT, [2, 1, 3, 3]))
    assert [value.name for value in load(model).inputs] == ["x"]


def test_an_output_that_is_an_input_or_a_constant() -> None:
    nodes = [node("Identity", ["x"], ["y"]), node("Identity", ["w"], ["z"]), node("Identity", ["x"], ["again"])]
    model = model_of(nodes, {"x": (FLOAT, [2])}, ["y", "z", "again", "x"], constants={"w": np.ones(2, np.float32)})
    graph = load(model)
    assert [value.name for value in graph.outputs] == ["y", "z", "again", "x"]
    assert len({*graph.outputs}) == 4
    assert [n.op for n in graph.nodes] == ["copy"] * 4


# External data


def external(location: str, tmp_path: Path, size: int = 16, **entries: str) -> Path:
    model = model_of([node("Add", ["x", "w"], ["y"])], {"x": (FLOAT, [4])}, ["y"])
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    model.graph.initializer.append(tensor)
    (tmp_path / "weights.bin").write_bytes(np.arange(size // 4, dtype=np.float32).tobytes())
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data(tmp_path: Path) -> None:
    path = external("weights.bin", tmp_path, 32, offset="16", length="16")
    graph, info = load_with_info(path)
    np.testing.assert_array_equal(
        evaluate(graph, {"x": np.zeros(4, np.float32)})[0], np.array([4, 5, 6, 7], np.float32)
    )
    (tmp_path / "weights.bin").write_bytes(b"\1" * 32)
    assert load_with_info(path)[1].digest != info.digest
    with pytest.raises(ModelError, match="by its path"):
        load(path.read_bytes())


@pytest.mark.parametrize(
    "location",
    ["../weights.bin", "/etc/passwd", "", "a/../../weights.bin", "..\\weights.bin", "C:\\weights.bin", "absent.bin",
     "a\0b", "link.bin", "linked/weights.bin", ".", "hard.bin", "pipe",
     pytest.param("n" * 5000, id="long name"), pytest.param("a/" * 3000 + "weights.bin", id="long path")],
)  # fmt: skip
def test_external_paths_stay_in_the_folder(location: str, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "weights.bin").write_bytes(b"\0" * 16)
    (inner / "link.bin").symlink_to(tmp_path / "weights.bin")
    (inner / "linked").symlink_to(tmp_path)
    (inner / "hard.bin").hardlink_to(tmp_path / "weights.bin")
    os.mkfifo(inner / "pipe")
    with pytest.raises(ModelError):
        load(external(location, inner))


@pytest.mark.parametrize(
    "entries",
    [{"offset": "-4"}, {"offset": "4"}, {"length": "12"}, {"length": "99999999999999999999"}, {"offset": "0x10"},
     {"offset": str(2**60)}, {"length": "1e3"}],
)  # fmt: skip
def test_external_ranges_stay_in_the_file(entries: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'w'"):
        load(external("weights.bin", tmp_path, 16, **entries))


@pytest.mark.parametrize("key", ["location", "offset", "length"])
def test_external_entries_are_given_once(key: str, tmp_path: Path) -> None:
    """What one reader checks and another uses must be the same entry."""
    path = external("weights.bin", tmp_path, 32, offset="16", length="16")
    model = onnx.load(path, load_external_data=False)
    entry = model.graph.initializer[0].external_data.add()
    entry.key, entry.value = key, {"location": "weights.bin", "offset": "16", "length": "16"}[key]
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="twice"):
        load(path)


def test_external_data_of_attributes_and_bodies_counts(tmp_path: Path) -> None:
    """The digest of a model covers every file that it reads."""
    path = external("weights.bin", tmp_path, 16)
    tensor = onnx.load(path, load_external_data=False).graph.initializer[0]
    constant = node("Constant", [], ["k"], value=tensor)
    body = helper.make_graph(
        [constant, node("Add", ["x", "k"], ["z"])], "b", [], [helper.make_tensor_value_info("z", FLOAT, None)]
    )
    held = helper.make_graph(
        [node("Add", ["x", "w"], ["z"])], "b", [], [helper.make_tensor_value_info("z", FLOAT, None)], [tensor]
    )
    branch = {"then_branch": body, "else_branch": body}
    for nodes in (
        [constant, node("Add", ["x", "k"], ["y"])],
        [node("If", ["c"], ["y"], **branch)],
        [node("If", ["c"], ["y"], then_branch=held, else_branch=held)],
    ):
        model = model_of(nodes, {"x": (FLOAT, [4]), "c": (TensorProto.BOOL, [])}, ["y"])
        path.write_bytes(model.SerializeToString())
        (tmp_path / "weights.bin").write_bytes(b"\0" * 16)
        before = load_with_info(path)[1].digest
        (tmp_path / "weights.bin").write_bytes(b"\1" * 16)
        assert load_with_info(path)[1].digest != before


def test_tensor_encodings() -> None:
    """Typed fields and raw bytes give the same constants, for every element type."""
    whole = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    for dtype in ("float32", "float64", "float16", "bool", *whole):
        array = np.array([[0, 1, 2], [3, 100, 7]]).astype(dtype)
        number = helper.np_dtype_to_tensor_dtype(array.dtype)
        raw = numpy_helper.from_array(array, "w")
        typed = helper.make_tensor("w", number, array.shape, array.reshape(-1).tolist())
        digests: set[str] = set()
        for tensor in (raw, typed):
            model = model_of([node("Identity", ["w"], ["y"])], {}, ["y"])
            model.graph.initializer.append(tensor)
            graph = load(model)
            np.testing.assert_array_equal(evaluate(graph, {})[0], array)
            digests.update(const.digest for const in graph.consts.values())
        assert len(digests) == 1


def test_negative_numbers_in_typed_fields() -> None:
    model = model_of([node("Identity", ["w"], ["y"])], {"unused": (INT64, [1])}, ["y"])
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.INT8, [3], [-1, -128, 127]))
    result = evaluate(load(model), {"unused": np.zeros(1, np.int64)})[0]
    np.testing.assert_array_equal(result, np.array([-1, -128, 127], np.int8))
