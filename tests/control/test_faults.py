"""What goes wrong when running, in the words of the model; deadlines; outputs that the caller gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from aot.errors import GuardError, ModelError, RunError
from aot.evaluate import evaluate
from aot.frontend import load
from tests.control.models import Checker, arrays, model_of

FAULTS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "negative size": (
        "int64[1] s) => (float[m] y) { y = ConstantOfShape (s) }",
        {"s": [2]}, {"s": [-2]}, "at least 0, it is -2"),
    "k larger than the extent": (
        "float[n] x, int64[1] k) => (float[m] y, int64[m] i) { y, i = TopK (x, k) }",
        {"x": [1, 2], "k": [2]}, {"x": [1, 2], "k": [3]}, "2.*3"),
    "reshape that does not fit": (
        "float[n] x, int64[2] s) => (float[a,b] y) { y = Reshape (x, s) }",
        {"x": [1, 2, 3, 4], "s": [2, 2]}, {"x": [1, 2, 3, 4], "s": [2, 3]},
        r"4 elements, the shape \[2, 3\].* needs 6"),
    "reshape with a rest that does not fit": (
        "float[n] x, int64[2] s) => (float[a,b] y) { y = Reshape (x, s) }",
        {"x": [1, 2, 3, 4], "s": [2, -1]}, {"x": [1, 2, 3, 4], "s": [3, -1]}, r"4 elements, the shape \[3, 1\]"),
    "reshape with a size below -1": (
        "float[n] x, int64[1] s) => (float[a] y) { y = Reshape (x, s) }",
        {"x": [1, 2], "s": [2]}, {"x": [1, 2], "s": [-7]}, "-7"),
    "stacked results of different shapes": (
        """float[n] x, int64 M) => (float[t,m] y) <bool yes = {1}> {
            last, y = Loop (M, yes, x) <body = b (int64 i, bool ci, float[] a) => (bool co, float[] a1, float[] r) {
                co = Identity (ci) a1 = Concat <axis = 0> (a, x) r = Identity (a1)
            }>
        }""",
        {"x": [1], "M": 1}, {"x": [1], "M": 3}, "was 2 in an earlier iteration, it is 3"),
    "results of one branch that do not fit together": (
        """float[n] x, int64 m) => (float[n] z) <int64 zero = {0}, int64 one = {1}> {
            r = Range (zero, m, one)
            f = Cast <to = 1> (r)
            z = Add (x, f)
        }""",
        {"x": [1, 2], "m": 2}, {"x": [1, 2], "m": 3}, "a size that is computed here must be n = 2, it is 3"),
    "split that does not fit": (
        "float[n] x, int64[2] s) => (float[a] p, float[b] q) { p, q = Split (x, s) }",
        {"x": [1, 2, 3], "s": [1, 2]}, {"x": [1, 2, 3], "s": [2, 2]}, "element 1 of 's' must be"),
    "huge size": (
        "int64[2] s) => (float[m,n] y) { y = ConstantOfShape (s) }",
        {"s": [2, 2]}, {"s": [1 << 40, 1 << 40]}, "impossible size"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_name_the_node(check: Checker, name: str) -> None:
    text, fits, does_not, words = FAULTS[name]
    model = model_of("g (" + text, 13)
    for node in model.graph.node:
        if node.op_type not in ("Add", "Cast"):  # that the sum does not fit is found where the range has its size
            node.name = "the_fault"
    good, bad = arrays(fits, model), arrays(does_not, model)
    with check.build(model).load(threads=2) as loaded:
        for _ in range(2):  # a refused run leaves the session as it was
            loaded.run(good)
            with pytest.raises((GuardError, RunError), match=words) as caught:
                loaded.run(bad)
            assert "the_fault" in str(caught.value)
    if name == "huge size":
        return
    graph = load(model)
    evaluate(graph, good)
    with pytest.raises((ModelError, ValueError)):
        evaluate(graph, bad)


ENDLESS = """g (float x) => (float y) <bool yes = {1}> {
    y = Loop (, yes, x) <body = b (int64 i, bool ci, float a) => (bool co, float a1)
            { co = Identity (ci) a1 = Neg (a) }>
}"""


def test_a_deadline_ends_a_loop_without_an_end(check: Checker) -> None:
    artifact = check.build(model_of(ENDLESS))
    for threads in (1, 2):
        with artifact.load(threads=threads) as loaded, pytest.raises(RunError):
            loaded.run({"x": np.float32(1).reshape(())}, timeout_seconds=0.05)


def test_an_endless_loop_over_nothing(check: Checker) -> None:
    """A body without work is ended by the deadline too."""
    model = model_of("""g (bool c) => (bool y) {
        y = Loop (, c, c) <body = b (int64 i, bool ci, bool a) => (bool co, bool a1)
                { co = Identity (ci) a1 = Identity (a) }>
    }""")
    with check.build(model).load() as loaded:
        assert not loaded.run({"c": np.array(False)})["y"]
        with pytest.raises(RunError):
            loaded.run({"c": np.array(True)}, timeout_seconds=0.05)
        assert not loaded.run({"c": np.array(False)})["y"]


def test_outputs_of_the_caller(check: Checker) -> None:
    model = model_of("""g (float[n] x) => (float[m] y, float s) <float zero = {0}> {
        keep = Greater (x, zero)
        y = Compress <axis = 0> (x, keep)
        s = ReduceSum <keepdims = 0> (y)
    }""")
    x = np.array([1, -1, 2, 3], np.float32)
    with check.build(model).load() as loaded:
        fits, total = np.full(3, 9, np.float32), np.zeros((), np.float32)
        got = loaded.run({"x": x}, outputs={"y": fits, "s": total})
        assert got["y"] is fits or np.shares_memory(got["y"], fits)
        np.testing.assert_array_equal(fits, [1, 2, 3])
        assert total == 6
        for wrong in (np.zeros(4, np.float32), np.zeros(2, np.float32), np.zeros((3, 1), np.float32), np.zeros(3)):
            with pytest.raises(GuardError, match="output 'y'"):
                loaded.run({"x": x}, outputs={"y": wrong})
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], [1, 2, 3])
        none = loaded.run({"x": -x[:1]}, outputs={"y": np.zeros(0, np.float32)})
        assert none["y"].shape == (0,) and none["s"] == 0


def test_results_outlive_the_next_run_and_the_model(check: Checker) -> None:
    model = model_of("g (float[n] x) => (int64[1,m] y) { y = NonZero (x) }")
    loaded = check.build(model).load()
    first = loaded.run({"x": np.array([0, 1, 1], np.float32)})["y"]
    second = loaded.run({"x": np.array([1, 0, 0], np.float32)})["y"]
    loaded.close()
    np.testing.assert_array_equal(first, [[1, 2]])
    np.testing.assert_array_equal(second, [[0]])


def test_names_of_sizes_follow_what_outputs_declare() -> None:
    model = model_of("""g (float[n] x, int64[2] s) => (int64[1,found] y, float[rows,columns] z, float[n,other] w) {
        y = NonZero (x) z = Reshape (x, s) w = Reshape (x, s)
    }""")
    shapes = [str(value.type) for value in load(model).outputs]
    assert shapes[:2] == ["i64[1,found]", "f32[rows,columns]"]
    assert "other" in shapes[2] and not shapes[2].startswith("f32[n,")
