"""Forms that exporters write, each from a model that once failed; against ONNX Runtime at several sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from aot.errors import UnsupportedError
from aot.evaluate import evaluate
from aot.frontend import load, load_with_info
from tests.frontend.models import (
    FLOAT,
    INT64,
    Array,
    assert_same,
    by_onnxruntime,
    check_against_onnxruntime,
    model_of,
    single,
)

RNG = np.random.default_rng(7)


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def agrees(model: Any, *feeds: dict[str, Array]) -> None:
    """One import serves every feed."""
    graph = load(model)
    for feed in feeds:
        assert_same(evaluate(graph, feed), by_onnxruntime(model, feed), 1e-4, 1e-5)


@pytest.mark.parametrize(("start", "delta"), [(0.0, 1.0), (0.5, 1.0), (2.0, 0.25), (9.0, -1.5)])
def test_a_float_range_up_to_a_size(start: float, delta: float) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["size"], start=1, end=2),
        helper.make_node("Squeeze", ["size"], ["n"]),
        helper.make_node("Cast", ["n"], ["limit"], to=FLOAT),
        helper.make_node("Range", ["start", "limit", "delta"], ["places"]),
        helper.make_node("ReduceSum", ["x"], ["total"]),
        helper.make_node("Add", ["places", "total"], ["y"]),
    ]
    constants = {"start": np.array(start, np.float32), "delta": np.array(delta, np.float32)}
    model = model_of(nodes, {"x": (FLOAT, [2, "n"])}, ["y"], constants=constants)
    agrees(model, *({"x": normal(2, n)} for n in (1, 3, 7, 12)))


def test_an_integer_range_whose_step_is_a_size() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["size"], start=0, end=1),
        helper.make_node("Squeeze", ["size"], ["n"]),
        helper.make_node("Range", ["start", "limit", "n"], ["places"]),
        helper.make_node("Identity", ["places"], ["y"]),
    ]
    constants = {"start": np.array(1), "limit": np.array(11)}
    model = model_of(nodes, {"x": (FLOAT, ["n"])}, ["y"], constants=constants)
    agrees(model, *({"x": normal(n)} for n in (1, 2, 4, 30)))


def test_a_range_whose_step_has_no_sign_is_refused() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("Split", ["size"], ["a", "b"], axis=0),
        helper.make_node("Sub", ["a", "b"], ["c"]),
        helper.make_node("Squeeze", ["c"], ["step"]),
        helper.make_node("Range", ["start", "limit", "step"], ["y"]),
    ]
    constants = {"start": np.array(0), "limit": np.array(11)}
    model = model_of(nodes, {"x": (FLOAT, ["n", "m"])}, ["y"], constants=constants)
    with pytest.raises(UnsupportedError, match="positive for some sizes and negative for others"):
        load(model)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_pads_that_cut_at_some_sizes(mode: str) -> None:
    """F.pad(u, (0, a.shape - u.shape)), as U-Nets have it."""
    nodes = [
        helper.make_node("Shape", ["a"], ["wanted"]),
        helper.make_node("Shape", ["u"], ["have"]),
        helper.make_node("Sub", ["wanted", "have"], ["after"]),
        helper.make_node("Mul", ["after", "zero"], ["before"]),
        helper.make_node("Concat", ["before", "after"], ["pads"], axis=0),
        helper.make_node("Pad", ["u", "pads"], ["padded"], mode=mode),
        helper.make_node("Add", ["padded", "a"], ["y"]),
    ]
    inputs: dict[str, Any] = {"u": (FLOAT, ["p", "q"]), "a": (FLOAT, ["r", "s"])}
    model = model_of(nodes, inputs, ["y"], constants={"zero": np.zeros(2, np.int64)})
    sizes = (((4, 5), (4, 5)), ((4, 5), (6, 3)), ((7, 4), (5, 7)))
    agrees(model, *({"u": normal(*u), "a": normal(*a)} for u, a in sizes))


def test_a_size_that_a_reshape_has_as_its_leading_number() -> None:
    """An export that fixed a size, but not in the input's declaration: it is that size, not a multiple of another."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    model = model_of(nodes, {"x": (FLOAT, ["t", "b", 6])}, ["y"], constants={"shape": np.array([4, -1, 6])})
    graph = load(model)
    assert graph.inputs[0].type.shape[0] == 4
    agrees(model, {"x": normal(4, 3, 6)}, {"x": normal(4, 7, 6)})


def test_a_slice_that_leaves_the_middle_of_a_table() -> None:
    """Relative positions: table[most - n + 1 : most + n]; sizes beyond the table are refused by a guard."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=1, end=2),
        helper.make_node("Sub", ["most", "n"], ["first"]),
        helper.make_node("Add", ["most", "n"], ["last"]),
        helper.make_node("Slice", ["table", "first", "last", "axis"], ["part"]),
        helper.make_node("ReduceSum", ["x"], ["total"]),
        helper.make_node("Add", ["part", "total"], ["y"]),
    ]
    constants = {"table": normal(1, 21, 3), "most": np.array([10]), "axis": np.array([1])}
    model = model_of(nodes, {"x": (FLOAT, [2, "n"])}, ["y"], constants=constants)
    agrees(model, *({"x": normal(2, n)} for n in (1, 4, 10)))
    assert load(model).symbols[0].hi == 10


def test_a_slice_that_counts_back_by_a_size() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=0, end=1),
        helper.make_node("Sub", ["two", "n"], ["first"]),
        helper.make_node("Slice", ["x", "first", "far"], ["y"]),
    ]
    constants = {"two": np.array([2]), "far": np.array([1 << 60])}
    model = model_of(nodes, {"x": (FLOAT, ["n"])}, ["y"], constants=constants)
    agrees(model, *({"x": normal(n)} for n in (3, 4, 10)))


def test_leading_sizes_of_a_reshape_are_one() -> None:
    """An encoder's batch beside a decoder's, exported as two names."""
    nodes = [
        helper.make_node("Shape", ["y"], ["b"], start=0, end=1),
        helper.make_node("Concat", ["b", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["z"]),
    ]
    inputs: dict[str, Any] = {"x": (FLOAT, ["b1", 5, 8]), "y": (FLOAT, ["b2"])}
    model = model_of(nodes, inputs, ["z"], constants={"rest": np.array([-1, 2, 4])})
    agrees(model, {"x": normal(3, 5, 8), "y": normal(3)}, {"x": normal(1, 5, 8), "y": normal(1)})


def test_batch_normalization_in_training_mode() -> None:
    """Weight standardization, as timm's NFNets export it: the batch's own statistics."""
    operands = [normal(3, 4, 5), normal(4), normal(4), normal(4), np.abs(normal(4)) + 0.5]
    names = [f"x{number}" for number in range(5)]
    inputs: dict[str, Any] = {name: (FLOAT, ["n", 4, "l"] if number == 0 else [4]) for number, name in enumerate(names)}
    for outputs in (["y"], ["y", "mean", "variance"]):
        node = helper.make_node("BatchNormalization", names, outputs, training_mode=1, momentum=0.8, epsilon=1e-3)
        model = model_of([node], inputs, outputs)
        got = evaluate(load(model), dict(zip(names, operands, strict=True)))
        axes = (0, 2)
        mean, variance = operands[0].mean(axes), operands[0].var(axes)
        scaled = (operands[0] - mean[:, None]) / np.sqrt(variance[:, None] + 1e-3)
        expected = [scaled * operands[1][:, None] + operands[2][:, None]]
        expected += [operands[3] * 0.8 + mean * 0.2, operands[4] * 0.8 + variance * 0.2]
        for mine, theirs in zip(got, expected, strict=False):
            np.testing.assert_allclose(mine, theirs, 1e-4, 1e-5)


def test_nested_floor_divisions_are_one() -> None:
    """Two strided layers counted one by one, and counted at once."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("Add", ["n", "three"], ["a"]),
        helper.make_node("Div", ["a", "four"], ["b"]),
        helper.make_node("Add", ["b", "one"], ["c"]),
        helper.make_node("Div", ["c", "two"], ["d"]),
        helper.make_node("Add", ["n", "seven"], ["e"]),
        helper.make_node("Div", ["e", "eight"], ["f"]),
        helper.make_node("ConstantOfShape", ["d"], ["g"]),
        helper.make_node("Reshape", ["g", "f"], ["h"]),
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Add", ["h", "total"], ["y"]),
    ]
    numbers = {"one": 1, "two": 2, "three": 3, "four": 4, "seven": 7, "eight": 8}
    constants = {name: np.array([number]) for name, number in numbers.items()}
    model = model_of(nodes, {"x": (FLOAT, ["n"])}, ["y"], constants=constants)
    agrees(model, *({"x": normal(n)} for n in (1, 4, 9, 64)))
    assert not load_with_info(model)[1].warnings


@pytest.mark.parametrize("bounds", [("zero", ""), ("", "nine"), ("zero", "nine")])
def test_a_size_that_is_clipped_on_one_side_stays_known(bounds: tuple[str, str]) -> None:
    """The padding of TensorFlow's SAME, as timm exports it: max((ceil(n / s) - 1) * s + k - n, 0)."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("Cast", ["n"], ["real"], to=FLOAT),
        helper.make_node("Sub", ["real", "five"], ["less"]),
        helper.make_node("Clip", ["less", *bounds], ["kept"]),
        helper.make_node("Cast", ["kept"], ["pad"], to=INT64),
        helper.make_node("Abs", ["pad"], ["size"]),
        helper.make_node("Concat", ["none", "size"], ["pads"], axis=0),
        helper.make_node("Pad", ["x", "pads"], ["y"]),
    ]
    numbers = {"zero": 0.0, "nine": 9.0}
    constants = {name: np.array(number, np.float32) for name, number in numbers.items()}
    constants |= {"none": np.array([0]), "five": np.array([5.0], np.float32)}
    model = model_of(nodes, {"x": (FLOAT, [7])}, ["y"], constants=constants)
    assert all(isinstance(extent, int) for extent in load(model).outputs[0].type.shape)
    agrees(model, {"x": normal(7)})


def test_a_batch_that_a_reshape_has_as_one() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["size"], start=2, end=3),
        helper.make_node("Concat", ["one", "four", "size"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    constants = {"one": np.array([1]), "four": np.array([4])}
    model = model_of(nodes, {"x": (FLOAT, ["b", 4, "n"])}, ["y"], constants=constants)
    assert load(model).inputs[0].type.shape[0] == 1
    agrees(model, {"x": normal(1, 4, 5)})


@pytest.mark.parametrize(("opset", "count"), [(18, 2), (20, 2), (21, 4)])
def test_group_normalization_of_every_operator_set(opset: int, count: int) -> None:
    """Until operator set 21 it is deprecated, and has one scale and bias per group."""
    operands = [normal(3, 4, 2, 5), normal(count), normal(count)]
    check_against_onnxruntime(*single("GroupNormalization", operands, opset=opset, num_groups=2))


def test_fold_to_an_image_of_any_size() -> None:
    """F.fold back to the size of another image."""
    nodes = [
        helper.make_node("Shape", ["like"], ["image"], start=2, end=4),
        helper.make_node("Col2Im", ["x", "image", "block"], ["y"], pads=[1, 0, 1, 1], strides=[2, 1], dilations=[1, 2]),
    ]
    inputs: dict[str, Any] = {"x": (FLOAT, ["b", 18, "l"]), "like": (FLOAT, [1, 1, "h", "w"])}
    model = model_of(nodes, inputs, ["y"], opset=18, constants={"block": np.array([3, 2])})
    for h, w in ((6, 5), (4, 4), (9, 3)):
        places = ((h + 2 - 3) // 2 + 1) * (w + 1 - 2)
        agrees(model, {"x": normal(2, 18, places), "like": normal(1, 1, h, w)})
