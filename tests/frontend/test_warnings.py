"""What an import tells its user: one line for each thing that matters, counted, and only where it matters."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from aot.dims import Symbol, floordiv, maximum, minimum
from aot.frontend import load_variants, load_with_info
from aot.frontend.bindings import Bindings, DimOption
from tests.frontend.models import model_of

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
A, B = Symbol("a").dim, Symbol("b").dim


def bound(dims: dict[str, DimOption] | None = None) -> Bindings:
    bindings = Bindings(dims)
    for axis, name in enumerate(("a", "b")):
        bindings.input_dim("x", axis, name)
    return bindings


def test_several_conditions_on_one_size_are_one_line() -> None:
    bindings, a = bound(), Symbol("a", 1, 512).dim
    assert bindings.resolve(minimum(A, 512), A, "slice") and bindings.resolve(4 * floordiv(a, 4), a, "half")
    assert bindings.conditions() == ["a must be a multiple of 4 and be at most 512 (needed by slice and 1 more)"]
    assert bindings.resolve(A, 12, "add")
    assert bindings.conditions() == ["a must equal 12 (needed by slice and 2 more)"]


def test_equal_conditions_share_a_line() -> None:
    bindings = bound()
    for dim in (A, B):
        assert bindings.resolve(maximum(dim, 3), dim, "pool")
    assert bindings.conditions() == ["a and b must be at least 3 (needed by pool)"]


def test_what_the_options_say_is_not_said_again() -> None:
    bindings = bound({"a": (1, 100)})
    a = Symbol("a", 1, 100).dim
    assert bindings.resolve(maximum(a, 9), a, "pool")
    assert bindings.conditions() == ["a must be at least 9 (needed by pool)"]
    assert bindings.resolve(a, B, "add")
    assert "a must equal b (needed by pool and 1 more)" in bindings.conditions()


def test_nothing_to_say() -> None:
    _, info = load_with_info(model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, ["n", 3])}, ["y"]))
    assert info.warnings == ()


def test_notes_of_several_nodes_are_counted() -> None:
    def encode(number: int) -> object:
        return helper.make_node(
            "OneHotEncoder", ["x"], [f"y{number}"], f"hot{number}", domain="ai.onnx.ml", cats_int64s=[0, 1], zeros=0
        )

    model = model_of(
        [encode(number) for number in range(5)],  # type: ignore[misc]
        {"x": (INT64, [3])},
        [f"y{number}" for number in range(5)],
        opsets=[helper.make_opsetid("ai.onnx.ml", 3)],
    )
    (warning,) = load_with_info(model)[1].warnings
    assert warning.startswith("OneHotEncoder gives zeros") and warning.endswith("(hot0 and 4 more)")


@pytest.mark.parametrize("shared", [True, False])
def test_what_holds_for_some_input_values_says_for_which(shared: bool) -> None:
    def branch(size: int) -> object:
        table = helper.make_node("Constant", [], ["t"], value=helper.make_tensor("t", FLOAT, [size], np.ones(size)))
        info = helper.make_tensor_value_info("z", FLOAT, None)
        return helper.make_graph([table, helper.make_node("Add", ["x", "t"], ["z"])], "b", [], [info])

    nodes = [
        helper.make_node("Equal", ["rate", "sixteen"], ["test"]),
        helper.make_node("If", ["test"], ["y"], "pick", then_branch=branch(8), else_branch=branch(8 if shared else 4)),
    ]
    inputs = {"x": (FLOAT, ["n"]), "rate": (INT64, [])}
    model = model_of(nodes, inputs, ["y"], constants={"sixteen": np.array(16, np.int64)})
    eight, four = "n must equal 8 (needed by pick)", "where rate is not 16: n must equal 4 (needed by pick)"
    assert load_variants(model)[1].warnings == ((eight,) if shared else (f"where rate is 16: {eight}", four))
