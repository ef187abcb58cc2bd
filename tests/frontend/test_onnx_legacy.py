"""Operator sets 1 to 6: their forms of broadcasting, casts, pads, and hints that do not matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from aot.errors import ModelError, UnsupportedError
from aot.evaluate import evaluate
from aot.frontend import load
from tests.frontend.models import FLOAT, Array, assert_same, by_onnxruntime, model_of, single

RNG = np.random.default_rng(9)


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def run(model: onnx.ModelProto, feed: dict[str, Array]) -> Array:
    (result,) = evaluate(load(model), feed)
    return result


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("version", [1, 6])
def test_broadcast_along_an_axis(op_type: str, version: int) -> None:
    x, function = normal(2, 3, 4, 5), {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[op_type]
    for shape, axis, wide in (
        ((3, 4), 1, (3, 4, 1)), ((2,), 0, (2, 1, 1, 1)), ((5,), 3, (5,)), ((4, 5), None, (4, 5)), ((1,), None, (1,)),
        ((4,), -2, (4, 1)), ((2, 3, 4, 5), 0, (2, 3, 4, 5)),
    ):  # fmt: skip
        y = normal(*shape)
        attrs: dict[str, Any] = {"broadcast": 1} | ({} if axis is None else {"axis": axis})
        if version == 1:
            attrs["consumed_inputs"] = [0, 0]
        model, feed = single(op_type, [x, y], opset=version, **attrs)
        np.testing.assert_allclose(run(model, feed), function(x, y.reshape(wide)), 1e-6)


def test_an_axis_without_room_is_refused() -> None:
    model, _ = single("Add", [normal(2, 3), normal(3, 2)], opset=6, broadcast=1, axis=1)
    with pytest.raises(ModelError, match="axis 1 leaves no room for 2 axes in a tensor of rank 2"):
        load(model)


def test_batch_normalization_and_dropout() -> None:
    x, scale, bias, mean, variance = normal(2, 3, 4), normal(3), normal(3), normal(3), np.abs(normal(3)) + 0.5
    expected = (x - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5) * scale[:, None] + bias[:, None]
    for version in (1, 6):
        more: dict[str, Any] = {"consumed_inputs": [0, 0, 0, 1, 1]} if version == 1 else {}
        model, feed = single("BatchNormalization", [x, scale, bias, mean, variance], opset=version, is_test=1, **more)
        np.testing.assert_allclose(run(model, feed), expected, 1e-4, 1e-5)
    model, feed = single("Dropout", [x], opset=6, is_test=1, ratio=0.5)
    np.testing.assert_array_equal(run(model, feed), x)


def test_statistics_of_every_place() -> None:
    operands = [normal(2, 3, 4), normal(3, 4), normal(3, 4), normal(3, 4), np.abs(normal(3, 4)) + 0.5]
    model, feed = single("BatchNormalization", operands, opset=7, spatial=0)
    assert_same([run(model, feed)], by_onnxruntime(model, feed), 1e-4, 1e-5)


def test_attributes_that_became_operands_or_changed_their_type() -> None:
    x = normal(2, 6)
    model, feed = single("Reshape", [x], opset=1, shape=[3, -1])
    np.testing.assert_array_equal(run(model, feed), x.reshape(3, 4))
    model, feed = single("Cast", [x], opset=1, to="INT32")
    np.testing.assert_array_equal(run(model, feed), x.astype(np.int32))
    model, feed = single("Pad", [x], opset=1, paddings=[0, 1, 2, 0], value=2.0)
    np.testing.assert_array_equal(run(model, feed), np.pad(x, ((0, 2), (1, 0)), constant_values=2.0))
    model, feed = single("Concat", [x, x], opset=1)
    np.testing.assert_array_equal(run(model, feed), np.concatenate([x, x], axis=1))
    model, feed = single("Tile", [x, np.array(2.0, np.float32), np.array(1.0, np.float32)], opset=1, constant=[1, 2])
    np.testing.assert_array_equal(run(model, feed), np.tile(x, (1, 2)))
    model, feed = single("Clip", [x], opset=1, min=-0.5, max=0.5, consumed_inputs=[0])
    np.testing.assert_array_equal(run(model, feed), np.clip(x, -0.5, 0.5))
    model, feed = single("Gemm", [normal(2, 3), normal(3, 4), normal(4)], opset=6, broadcast=1)
    np.testing.assert_allclose(run(model, feed), feed["x0"] @ feed["x1"] + feed["x2"], 1e-5, 1e-5)
    image, slope = normal(2, 3, 4, 5), normal(3)
    model, feed = single("PRelu", [image, slope], opset=6)
    np.testing.assert_allclose(run(model, feed), np.where(image < 0, image * slope[:, None, None], image), 1e-6)


def test_what_they_got_wrong_is_refused() -> None:
    with pytest.raises(ModelError, match="a cast to 'FLOAT31', which is no element type"):
        load(single("Cast", [normal(2)], opset=1, to="FLOAT31")[0])
    with pytest.raises(UnsupportedError, match=r"a power of 2\.5"):
        load(single("GlobalLpPool", [normal(1, 2, 3)], opset=1, p=2.5)[0])


def test_a_model_before_there_were_operator_sets() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, [3])}, ["y"], opset=1)
    del model.opset_import[:]
    model.ir_version = 2
    np.testing.assert_array_equal(run(model, {"x": np.array([-1.0, 0.0, 2.0], np.float32)}), [0.0, 0.0, 2.0])
    model.ir_version = 8
    with pytest.raises(ModelError, match="imports no operator set"):
        load(model)
