"""Inputs that become constants (--set) and initializers that become inputs (--override), from the model to the runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import aot
from aot.cli.main import cli
from aot.errors import CompilerError, GuardError, OptionError, UnsupportedError
from aot.options import CompileOptions, parse_set_option

ort = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(7)
WEIGHT = RNG.standard_normal((4, 3)).astype(np.float32)
BIAS = np.array([1, 2, 3], np.float32)
X = RNG.standard_normal((5, 4)).astype(np.float32)
TARGET: dict[str, Any] = {"target": "cpu:x86-64-v3"}


def top_k(**changes: Any) -> onnx.ModelProto:
    """y = the k largest of x @ W + b; W is an initializer and an input, b an initializer, k an input."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "W"], ["product"]),
            helper.make_node("Add", ["product", "b"], ["sum"]),
            helper.make_node("TopK", ["sum", "k"], ["y", "places"]),
        ],
        "top",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4]),
            helper.make_tensor_value_info("W", TensorProto.FLOAT, [4, 3]),
            helper.make_tensor_value_info("k", TensorProto.INT64, changes.get("k_shape", [1])),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(WEIGHT, "W"), numpy_helper.from_array(BIAS, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expected(x: Any, weight: Any, bias: Any, k: int) -> Any:
    return -np.sort(-(x @ weight + bias), axis=1)[:, :k]


def test_an_input_set_when_building(cache: Path) -> None:
    for values in ({"k": 2}, {"k": [2]}, {"k": np.array([2])}, (("k", 2),)):
        artifact = aot.compile(top_k(), cache_dir=cache, values=values, **TARGET)
        model = aot.load(artifact.data)
        assert [port.name for port in artifact.programs[0].inputs] == ["x"]
        np.testing.assert_allclose(model.run({"x": X})["y"], expected(X, WEIGHT, BIAS, 2), rtol=1e-5, atol=1e-5)
    with pytest.raises(GuardError, match="'k'"):
        model.run({"x": X, "k": np.array([2])})


def test_an_input_that_must_be_known_when_building(cache: Path) -> None:
    """The message names the option that helps, and it does."""
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["x", "axes"], ["y"])],
        "sum",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4]),
            helper.make_tensor_value_info("axes", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedError, match="axes is the input 'axes'; give its value when building: --set axes="):
        aot.compile(model, cache_dir=cache, **TARGET)
    for axis in (0, 1, -1):
        artifact = aot.compile(model, cache_dir=cache, values={"axes": [axis]}, **TARGET)
        found = aot.load(artifact.data).run({"x": X})["y"]
        np.testing.assert_allclose(found, X.sum(axis, keepdims=True), rtol=1e-5, atol=1e-5)


def test_the_model_given_is_not_changed(cache: Path) -> None:
    model = top_k()
    before = model.SerializeToString()
    aot.compile(model, cache_dir=cache, values={"k": 1}, overridable=["W"], **TARGET)
    assert model.SerializeToString() == before


@pytest.mark.parametrize("name", ["W", "all", "b"])
def test_an_initializer_given_at_each_run(name: str, cache: Path) -> None:
    artifact = aot.compile(top_k(), cache_dir=cache, values={"k": 3}, overridable=[name], **TARGET)
    given = "b" if name == "b" else "W"
    assert [port.name for port in artifact.programs[0].inputs] == ["x", given]
    model = aot.load(artifact.data)
    weight, bias = RNG.standard_normal((4, 3)).astype(np.float32), np.array([5, -1, 0.5], np.float32)
    found = model.run({"x": X, given: bias if given == "b" else weight})["y"]
    want = expected(X, WEIGHT, bias, 3) if given == "b" else expected(X, weight, BIAS, 3)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    with pytest.raises(GuardError, match=f"missing input '{given}'"):
        model.run({"x": X})


def test_both_are_part_of_the_options(cache: Path) -> None:
    one = CompileOptions(values={"b": [1, 2], "a": True}, overridable=["W", "W"])  # type: ignore[arg-type]
    assert one.values == (("a", True), ("b", (1, 2))) and one.overridable == ("W",)
    assert one.digest() != CompileOptions().digest() != CompileOptions(values=(("a", 1),)).digest()
    first = aot.compile(top_k(), cache_dir=cache, values={"k": 2}, **TARGET)
    assert first.data == aot.compile(top_k(), cache_dir=cache, values=(("k", 2),), **TARGET).data
    assert first.meta["options"]["values"] == [["k", 2]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"values": {"K": 2}}, "the model has no input 'K' to set\n  hint: Did you mean 'k'?"),
        ({"values": {"b": [1, 2, 3]}}, "the model has no input 'b' to set"),
        ({"values": {"k": 2.5}}, "input 'k': 2.5 is not of the input's element type i64"),
        ({"values": {"k": 1 << 63}}, "input 'k': 9223372036854775808 is not of the input's element type i64"),
        ({"values": {"W": [[1e300] * 3] * 4}}, "is not of the input's element type f32"),
        ({"values": {"k": [1, 2]}}, "the value has shape [2], the input [1]"),
        ({"values": {"k": [[1], [2, 3]]}}, "not a number or a regular list"),
        ({"values": {"x": [[1, 2, 3]]}}, "the value has shape [1, 3], the input [N, 4]"),
        ({"values": {"x": float("nan")}}, "nan is not a finite number"),
        ({"values": {"x": "1"}}, "'1' is not a finite number"),
        ({"values": (("k", 1), ("k", 2))}, "--set gives an input twice"),
        ({"values": {"k": 1}, "overridable": ["w"]}, "no initializer 'w' to override\n  hint: Did you mean 'W'?"),
        ({"values": {"k": 1}, "overridable": ["x"]}, "no initializer 'x' to override"),
        ({"values": {"W": WEIGHT}, "overridable": ["W"]}, "'W' is to be given at each run, and to have a value"),
    ],
)
def test_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        aot.compile(top_k(), **TARGET, **options)
    assert message in str(caught.value)


def test_an_open_size_of_a_set_input_becomes_known(cache: Path) -> None:
    """The default of an initializer that is an input, replaced when building; and an input of open size."""
    artifact = aot.compile(top_k(k_shape=["count"]), cache_dir=cache, values={"k": [1], "W": 2 * WEIGHT}, **TARGET)
    found = aot.load(artifact.data).run({"x": X})["y"]
    np.testing.assert_allclose(found, expected(X, 2 * WEIGHT, BIAS, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("k=3", ("k", 3)),
        ("a=b=[1, 2.5]", ("a=b", (1, 2.5))),
        ("k=true", ("k", True)),
        ("k=[[1],[2]]", ("k", ((1,), (2,)))),
    ],
)
def test_set_option(text: str, found: tuple[str, Any]) -> None:
    assert parse_set_option(text) == found


@pytest.mark.parametrize("text", ["k", "=3", "k=", "k=x", 'k="3"', "k=null", "k={}", "k=[null]", "k=NaN", "k=1e999"])
def test_set_option_errors(text: str) -> None:
    with pytest.raises(OptionError):
        parse_set_option(text)


def test_command_line(tmp_path: Path, cache: Path) -> None:
    """build, verify against the same model with the same edges, bench and run."""
    model, artifact = tmp_path / "m.onnx", tmp_path / "m.aot"
    onnx.save(top_k(), model)

    def invoke(*arguments: object, code: int = 0) -> Any:
        result = CliRunner().invoke(cli, [*map(str, arguments), "--json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    edges = ("--set", "k=2", "--override", "b")
    assert invoke("build", model, "--check", *edges)["supported"]
    invoke("build", model, "-o", artifact, *edges, "--cache", cache, "--target", "cpu:x86-64-v3")
    assert invoke("verify", artifact, "--against", model)["passed"]  # b is what the model has
    assert invoke("verify", artifact, "--against", model, "--random", "--input", "b=[3, 1, 2]")["passed"]
    assert invoke("bench", artifact, "--against", model, "--seconds", 0.01)["cases"][0]["ratio"] > 0
    found = invoke("run", artifact, "--input", f"x={X[:1].tolist()}", "--input", "b=[9, 0, 0]")["outputs"][0]["values"]
    np.testing.assert_allclose(found, expected(X[:1], WEIGHT, np.array([9, 0, 0]), 2), rtol=1e-5, atol=1e-5)
    assert "'b': f32[3]" in invoke("run", artifact, "--input", f"x={X[:1].tolist()}", code=2)["error"]["message"]


def test_without_decompositions_the_op_that_lacks_an_emitter_is_named() -> None:
    weight, recurrence = np.zeros((1, 8, 3), np.float32), np.zeros((1, 8, 2), np.float32)
    graph = helper.make_graph(
        [helper.make_node("LSTM", ["x", "w", "r"], ["y"], "memory", hidden_size=2)],
        "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 1, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(recurrence, "r")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(CompilerError, match=r"memory.*no emitter for lstm \(kind recur\)\n  hint: .*decompose"):
        aot.compile(model, disable=("decompose",), **TARGET)


def test_maps_of_probabilities_are_compared_as_their_matrix(tmp_path: Path, cache: Path) -> None:
    """ZipMap makes dictionaries in ONNX Runtime, and nothing in an artifact."""
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    )
    classes: dict[str, Any] = {
        "domain": "ai.onnx.ml",
        "coefficients": [1.0, 2, 3, -1, 0.5, 0.25],
        "intercepts": [0.0, 0.1, 0.2],
    }
    graph = helper.make_graph(
        [
            helper.make_node("LinearClassifier", ["x"], ["label", "p"], classlabels_ints=[0, 1, 2], **classes),
            helper.make_node("ZipMap", ["p"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
        ],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, ["N"]),
            onnx.ValueInfoProto(name="probabilities", type=maps),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    aot.compile(tmp_path / "m.onnx", cache_dir=cache, **TARGET).save(tmp_path / "m.aot")
    result = CliRunner().invoke(
        cli, ["verify", str(tmp_path / "m.aot"), "--against", str(tmp_path / "m.onnx"), "--dim", "N=5", "--json"]
    )
    assert result.exit_code == 0, result.output
    assert [row["elements"] for row in json.loads(result.stdout)["cases"][0]["outputs"]] == [5, 15]
