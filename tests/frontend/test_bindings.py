"""Names and options of input dimensions, and the conditions that make extents equal."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from onnx import helper

from aot.dims import Dim, Symbol, evaluate, floordiv, maximum, minimum, mod, parse_dim
from aot.errors import ModelError, OptionError
from aot.frontend import load, load_with_info
from aot.frontend.bindings import Bindings
from tests.frontend.models import FLOAT, model_of

node = helper.make_node


def relu(shape: Any) -> Any:
    return model_of([node("Relu", ["in.put"], ["y"])], {"in.put": (FLOAT, shape)}, ["y"])


def shape_of(shape: Any, **dims: Any) -> list[str]:
    return [str(extent) for extent in load(relu(shape), dims=dims.get("dims")).inputs[0].type.shape]


def test_names_become_identifiers() -> None:
    assert shape_of(["batch size", "DynamicDimension.0", "2x"]) == ["batch_size", "DynamicDimension_0", "d_2x"]


def test_unnamed_and_computed_dims_get_names_of_their_own() -> None:
    assert shape_of([None, "n/2 + 1", "?"]) == ["in_put_d0", "in_put_d1", "in_put_d2"]


def test_colliding_names_stay_apart() -> None:
    graph, info = load_with_info(relu(["a.b", "a b", "a.b"]))
    assert [str(extent) for extent in graph.inputs[0].type.shape] == ["a_b", "a_b_2", "a_b"]
    assert dict(info.symbols) == {"a_b": "a.b", "a_b_2": "a b"}


def test_options() -> None:
    assert shape_of(["n", 3], dims={"n": 5}) == ["5", "3"]
    assert shape_of(["n.m", 3], dims={"n_m": 5}) == ["5", "3"]
    assert shape_of([4, 3], dims={"in.put.0": "batch"}) == ["batch", "3"]
    assert shape_of([4, 3], dims={"in.put.0": 9}) == ["9", "3"]
    graph = load(relu(["n", 3]), dims={"n": (2, 8)})
    (symbol,) = graph.symbols
    assert (symbol.name, symbol.lo, symbol.hi) == ("n", 2, 8)
    (renamed,) = load(relu([4, 3]), dims={"in.put.0": (1, None)}).symbols
    assert (renamed.name, renamed.hi) == ("in_put_d0", None)


@pytest.mark.parametrize(
    "dims", [{"m": 3}, {"in.put.7": 3}, {"n": -1}, {"n": (5, 2)}, {"n": 1.5}, {"n": ""}, {"n": True}]
)
def test_bad_options(dims: Any) -> None:
    with pytest.raises(OptionError):
        load(relu(["n", 3]), dims=dims)


def test_an_option_that_contradicts_the_model() -> None:
    model = model_of([node("Add", ["x", "z"], ["y"])], {"x": (FLOAT, ["n"]), "z": (FLOAT, [4])}, ["y"])
    assert load(model, dims={"n": 4}).inputs[0].type.shape == (4,)
    with pytest.raises(ModelError, match="Add_0"):
        load(model, dims={"n": 5})


A, B, C = Symbol("a").dim, Symbol("b").dim, Symbol("c").dim


@pytest.mark.parametrize(
    ("left", "right", "note"),
    [
        (A, 7, "a must equal 7"),
        (A + 1, 7, "a must equal 6"),
        (2 * A, B, "b must equal 2*a"),
        (A, B, "must equal"),
        (minimum(A, 512), A, "a must be at most 512"),
        (minimum(A + 2, 512), A + 2, "a must be at most 510"),
        (maximum(A, 4), A, "a must be at least 4"),
        (maximum(floordiv(A - 10, 5), 0), floordiv(A - 10, 5), "a must be at least 10"),
        (maximum(floordiv(floordiv(A - 10, 5) - 2, 2), 0), floordiv(floordiv(A - 10, 5) - 2, 2), "at least 20"),
        (minimum(floordiv(A, 3), 4), floordiv(A, 3), "a must be at most 14"),
        (2 * floordiv(A, 2), A, "a must be a multiple of 2"),
        (4 * floordiv(A, 4), 2 * floordiv(A, 2), "a must be a multiple of 4"),
        (2 * (floordiv(A - 1, 16) + 1), floordiv(A - 1, 8) + 1, "a must be a multiple of 16"),
    ],
)
def test_conditions(left: Dim, right: Dim, note: str) -> None:
    bindings = Bindings()
    for name in ("a", "b", "c"):
        bindings.input_dim("x", 0, name)
    assert bindings.resolve(left, right, "node")
    assert note in bindings.conditions()[0]


@pytest.mark.parametrize(("left", "right"), [(3, 4), (A, A + 1), (A, -2), (A * B, C * C + 1), (A, 0)])
def test_no_condition(left: Dim, right: Dim) -> None:
    assert not Bindings().resolve(left, right, "node")


def test_a_reshape_by_the_batch_of_another_input() -> None:
    """torch names every input's batch on its own; `mask.view(batch, -1)` then divides by the other one."""
    x, mask = (FLOAT, ["s10", "s21"]), (FLOAT, ["s86", "s12"])
    nodes = [
        node("Shape", ["x"], ["size"], end=1),
        node("Concat", ["size", "rest"], ["wanted"], axis=0),
        node("Reshape", ["mask", "wanted"], ["flat"]),
        node("Add", ["x", "flat"], ["y"]),
    ]
    model = model_of(nodes, {"x": x, "mask": mask}, ["y"], constants={"rest": np.array([-1])})
    first, second = load(model).inputs
    assert first.type.shape == second.type.shape and first.type.shape[0] != first.type.shape[1]


def test_lengths_that_an_exporter_counts_with_integer_division() -> None:
    """torch counts what a convolution leaves as (n - window) / stride + 1; shorter inputs have no result."""
    nodes = [
        node("Shape", ["x"], ["n"], start=1),
        node("Sub", ["n", "ten"], ["less"]),
        node("Div", ["less", "five"], ["steps"]),
        node("Concat", ["steps", "rest"], ["wanted"], axis=0),
        node("Expand", ["one", "wanted"], ["y"]),
    ]
    constants = {"ten": np.array([10]), "five": np.array([5]), "rest": np.array([3]), "one": np.ones(1, np.float32)}
    graph, info = load_with_info(model_of(nodes, {"x": (FLOAT, ["b", "n"])}, ["y"], constants=constants))
    assert info.warnings == ("n must be at least 10 (needed by Expand_4)",)
    assert str(graph.outputs[0].type.shape[0]) == "(n//5) - 2"


def test_a_size_made_of_constant_numbers() -> None:
    nodes = [
        node("Pow", ["sixteen", "half"], ["root"]),
        node("Cast", ["root"], ["size"], to=7),
        node("Unsqueeze", ["size", "zero"], ["sizes"]),
        node("Concat", ["rest", "sizes"], ["wanted"], axis=0),
        node("Reshape", ["x", "wanted"], ["y"]),
    ]
    constants = {
        "sixteen": np.array(16, np.float32),
        "half": np.array(0.5, np.float32),
        "zero": np.array([0]),
        "rest": np.array([-1]),
    }
    graph = load(model_of(nodes, {"x": (FLOAT, ["b", 8])}, ["y"], constants=constants))
    assert graph.outputs[0].type.shape[1] == 4


def test_conditions_compose() -> None:
    """a == b, then b == 2 * c, then c == 3: every later import sees all three."""
    bindings = Bindings()
    dims = [bindings.input_dim("x", axis, name) for axis, name in enumerate("abc")]
    assert bindings.resolve(dims[0], dims[1], "first")
    dims = [bindings.input_dim("x", axis, name) for axis, name in enumerate("abc")]
    assert dims[0] == dims[1]
    assert bindings.resolve(dims[1], 2 * dims[2], "second")
    dims = [bindings.input_dim("x", axis, name) for axis, name in enumerate("abc")]
    assert bindings.resolve(dims[2], 3, "third")
    assert [bindings.input_dim("x", axis, name) for axis, name in enumerate("abc")] == [6, 6, 3]


def test_equal_symbols_keep_both_bounds() -> None:
    model = model_of([node("Add", ["x", "z"], ["y"])], {"x": (FLOAT, ["a"]), "z": (FLOAT, ["b"])}, ["y"])
    (symbol,) = load(model, dims={"a": (2, 9), "b": (4, 20)}).symbols
    assert (symbol.lo, symbol.hi) == (4, 9)


@pytest.mark.parametrize("seed", range(30))
def test_a_known_divisor_changes_the_form_but_not_the_value(seed: int) -> None:
    source = random.Random(seed)
    x, y = Symbol("x", lo=32, divisor=32), Symbol("y")
    steps = [(source.choice("+-*/%xy"), source.choice([1, 2, 3, 8, 16, 32, 64])) for _ in range(5)]

    def run(first: Dim, second: Dim) -> Dim:
        total = first
        for sign, number in steps:
            if sign in "xy":
                total = total + (first if sign == "x" else second) * number
            elif sign in "/%":
                total = floordiv(total, number) if sign == "/" else mod(total, number)
            else:
                total = total + number if sign == "+" else total - number if sign == "-" else total * number
        return total

    symbolic = run(x.dim, y.dim)
    assert parse_dim(str(symbolic), {"x": x, "y": y}) == symbolic
    for _ in range(20):
        values = {"x": 32 * source.randint(1, 9), "y": source.randint(1, 9)}
        assert evaluate(symbolic, values) == run(values["x"], values["y"])
