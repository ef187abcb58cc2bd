"""Sorting, scattering and random ONNX ops: over versions and attributes, against ONNX Runtime where it can tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from aot.evaluate import evaluate
from aot.frontend import load
from tests.frontend.models import FLOAT, check_against_onnxruntime, model_of, single

RNG = np.random.default_rng(3)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def check(op_type: str, operands: Any, opset: int, **more: Any) -> None:
    check_against_onnxruntime(*single(op_type, operands, opset=opset, **more))


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_top_k(axis: int, largest: int) -> None:
    x, k = RNG.integers(0, 6, (5, 6, 7)).astype(np.float32), np.array([4])
    check("TopK", [x, k], 17, results=2, constant=[1], axis=axis, largest=largest)
    check("TopK", [x.astype(np.int64), k], 11, results=2, constant=[1], axis=axis, largest=largest)


def test_old_top_k() -> None:
    x = normal(3, 9)
    check("TopK", [x, np.array([3])], 10, results=2, constant=[1])
    check("TopK", [x], 9, results=2, k=5, axis=0 + 1)


def test_top_k_of_a_symbolic_size() -> None:
    node = helper.make_node("TopK", ["x", "k"], ["v", "i"])
    model = model_of([node], {"x": (FLOAT, ["N", 3])}, ["v", "i"], constants={"k": np.array([2])})
    model.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
    check_against_onnxruntime(model, {"x": normal(5, 3)})


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scatter_elements(axis: int, reduction: str) -> None:
    data, extent = normal(4, 5, 3), (4, 5, 3)[axis]
    places = np.stack([RNG.permutation(extent)[:2] for _ in range(60 // extent)])
    shape = [4, 5, 3]
    shape[axis] = 2
    others = [n for a, n in enumerate((4, 5, 3)) if a != axis % 3]
    indices = np.moveaxis(places.reshape(*others, 2), -1, axis) - extent * RNG.integers(0, 2)
    check("ScatterElements", [data, indices, normal(*shape)], 18, axis=axis, reduction=reduction)


def test_duplicate_indices_add_up() -> None:
    indices = RNG.integers(-4, 4, (30, 5))
    check("ScatterElements", [normal(4, 5), indices, normal(30, 5)], 18, axis=0, reduction="add")
    pairs = RNG.integers(0, 3, (40, 2))
    check("ScatterND", [normal(3, 3, 6), pairs, normal(40, 6)], 18, reduction="add")


def test_scatters_of_old_versions() -> None:
    data, indices = normal(3, 3), np.array([[1, 0, 2], [0, 2, 1]])
    check("Scatter", [data, indices, normal(2, 3)], 9, axis=0)
    check("ScatterElements", [data, indices, normal(2, 3)], 11)
    check("ScatterND", [normal(6), np.array([[4], [1]]), normal(2)], 11)
    check("ScatterND", [normal(4, 4, 4), np.array([[0], [2]]), normal(2, 4, 4)], 13)


def test_max_unpool_and_compress() -> None:
    x = normal(1, 2, 2, 2)
    places = np.array([[[[5, 7], [13, 15]], [[21, 23], [29, 31]]]])
    check("MaxUnpool", [x, places], 11, kernel_shape=[2, 2], strides=[2, 2])
    condition = np.array([True, False, True])
    check("Compress", [normal(3, 4), condition], 11, constant=[1], axis=0)
    check("Compress", [normal(3, 4), condition], 11, constant=[1])


def test_col2im() -> None:
    x = normal(2, 3 * 4, 9)
    check("Col2Im", [x, np.array([4, 4]), np.array([2, 2])], 18, constant=[1, 2])
    # 5 x 5 padded to 5 x 7; windows of 4 x 3 and 1 x 3 cover: (5 - 4) + 1 = 2 down, (7 - 3) / 2 + 1 = 3 across.
    x = normal(1, 2 * 6, 6)
    check("Col2Im", [x, np.array([5, 5]), np.array([2, 3])], 18, constant=[1, 2], pads=[0, 1, 0, 1], strides=[1, 2],
          dilations=[3, 1])  # fmt: skip


def random(op_type: str, inputs: list[Any], **attrs: Any) -> Any:
    names = [f"x{number}" for number in range(len(inputs))]
    node = helper.make_node(op_type, names, ["y"], name="the_node", **attrs)
    kinds = {n: (helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in zip(names, inputs, strict=True)}
    graph = load(model_of([node], kinds, ["y"], opset=22))
    return evaluate(graph, inputs)[0]


def test_random_numbers_have_their_distribution() -> None:
    uniform = random("RandomUniform", [], shape=[200, 100], low=-1.0, high=3.0, seed=1.0)
    assert uniform.min() >= -1 and uniform.max() < 3 and abs(uniform.mean() - 1) < 0.03
    assert abs(np.var(uniform) - 16 / 12) < 0.03
    bell = random("RandomNormal", [], shape=[200, 100], mean=2.0, scale=0.5, seed=1.0)
    assert abs(bell.mean() - 2) < 0.02 and abs(bell.std() - 0.5) < 0.01
    assert abs(np.corrcoef(bell[:-1].ravel(), bell[1:].ravel())[0, 1]) < 0.03
    again = random("RandomNormal", [], shape=[200, 100], mean=2.0, scale=0.5, seed=1.0)
    other = random("RandomNormal", [], shape=[200, 100], mean=2.0, scale=0.5, seed=2.0)
    assert (again == bell).all() and (other != bell).mean() > 0.99
    chance = np.full((100, 100), 0.3, np.float32)
    assert abs(random("Bernoulli", [chance], seed=1.0).mean() - 0.3) < 0.02
    assert random("RandomUniformLike", [chance.astype(np.float64)]).dtype == np.float64
    logits = np.log(np.array([[0.1, 0.2, 0.7]], np.float32))
    draws = random("Multinomial", [logits], sample_size=5000, seed=1.0)
    np.testing.assert_allclose(np.bincount(draws[0], minlength=3) / 5000, [0.1, 0.2, 0.7], atol=0.03)
