"""Sizes that are too small for a convolution: a condition on the input, not a result of nothing."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aot.errors import ModelError
from aot.frontend import load, load_with_info


def convolution(kernel: int, *, pads: tuple[int, int] = (0, 0), dilation: int = 1, before: int = 0) -> onnx.ModelProto:
    """Conv of a window over x [1, 1, n]; `before` zeros are put in front by a node of their own."""
    weights = [
        numpy_helper.from_array(np.ones((1, 1, kernel), np.float32), "w"),
        numpy_helper.from_array(np.array([0, 0, before, 0, 0, 0]), "amounts"),
    ]
    nodes = [
        helper.make_node("Pad", ["x", "amounts"], ["padded"]),
        helper.make_node("Conv", ["padded", "w"], ["y"], name="conv", strides=[4], pads=pads, dilations=[dilation]),
    ]
    graph = helper.make_graph(
        nodes,
        "windows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, "n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, None])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("model", "least"),
    [
        (convolution(16), 16),
        (convolution(16, pads=(3, 2)), 11),
        (convolution(4, dilation=5), 16),
        (convolution(16, before=7), 9),
        (convolution(3, pads=(1, 1)), 1),
    ],
)
def test_the_least_size_is_found(model: onnx.ModelProto, least: int) -> None:
    graph, info = load_with_info(model)
    assert [symbol.lo for symbol in graph.symbols] == [least]
    told = (f"n must be at least {least} (needed by conv)",) if least > 1 else ()
    assert info.warnings == told


def test_bounds_of_the_options_are_kept() -> None:
    assert [(s.lo, s.hi) for s in load(convolution(16), dims={"n": (4, 100)}).symbols] == [(16, 100)]
    assert [(s.lo, s.hi) for s in load(convolution(16), dims={"n": (20, 100)}).symbols] == [(20, 100)]
    with pytest.raises(ModelError, match="does not fit"):
        load(convolution(16), dims={"n": 15})
    with pytest.raises(ModelError, match="larger than every size"):
        load(convolution(16), dims={"n": (1, 15)})
