"""Balance, equalization, bias correction and rounding with data: each lessens the error that it is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from aot import rounding
from aot.calibrate import calibrate
from aot.dtypes import F32
from aot.errors import CompilerError
from aot.ir import Array, Graph
from aot.options import CompileOptions
from aot.quantization import Method
from aot.quantize import quantize
from aot.transforms.products import products
from tests.quantization import models
from tests.quantization.models import Maker

OFF = {"balance": False, "equalize": False, "bias_correction": False}


def errors(model: Any, data: Sequence[Any], options: CompileOptions, *methods: dict[str, Any]) -> list[float]:
    """The relative error of each method on the data, of the graph with quantize ops."""
    graph = models.core_graph(model, options)
    calibration = calibrate(model, data, options)
    plain = [models.interpreted(graph, feed) for feed in data]
    found = []
    for method in methods:
        fake = models.fake(graph, quantize(model, Method(**method), calibration=calibration, options=options))
        made = [models.interpreted(fake, feed) for feed in data]
        name = next(iter(plain[0]))
        found.append(models.relative_error(np.concatenate([m[name].ravel() for m in made]),
                                           np.concatenate([p[name].ravel() for p in plain])))  # fmt: skip
    return found


def factors(graph: Graph) -> int:
    """How many tensors are multiplied channel by channel."""
    return sum(
        node.op == "mul"
        and any(value in graph.consts and graph.consts[value].array().size > 1 for value in node.operands)
        for node in graph.nodes
    )


def outliers(kind: str) -> tuple[Any, list[dict[str, Array]]]:
    """Two convolutions, or two matmuls, of which the second reads one channel a hundred times the others."""
    m = Maker(11)
    spread = np.ones(8, np.float32)
    spread[3] = 100
    if kind == "matmul":
        x = m.input("x", "N", 8)
        first, second = m.array(8, 8) * spread, m.array(8, 6) / spread[:, None]
        return m.model(m.dense(m.op("Relu", m.dense(x, first, None, "a")), second, None, "b")), [{"x": m.array(64, 8)}]
    x = m.input("x", "N", 8, 7, 6)
    shape = spread.reshape(-1, 1, 1, 1)
    groups = {"depth": 8, "groups": 2}.get(kind, 1)
    second = m.array(8, 8 // groups, 3, 3)
    each = np.broadcast_to((1 / spread).reshape(groups, 1, 8 // groups, 1, 1), (groups, 8 // groups, 8 // groups, 1, 1))
    second = second * each.reshape(8, 8 // groups, 1, 1)
    y = m.op("Relu", m.conv(x, m.array(8, 8, 1, 1) * shape, m.array(8) * spread, "a"))
    return m.model(m.conv(y, second, m.array(8), "b", group=groups)), [{"x": m.array(6, 8, 7, 6)}]


@pytest.mark.parametrize("kind", ["matmul", "conv", "groups", "depth"])
def test_balance_and_equalization(kind: str, options: CompileOptions) -> None:
    """An outlier channel takes the others' steps; balance gives them back, and equalization does it for nothing."""
    model, data = outliers(kind)  # of few channels too: what is ordinary must not lean towards the outlier
    off, balanced, equalized = errors(
        model, data, options, *(
            {**OFF, "observer": "minmax", "balance": balance, "equalize": equalize}
            for balance, equalize in ((False, False), (True, False), (True, True))
        )
    )  # fmt: skip
    assert balanced < 0.35 * off and equalized < 0.35 * off
    graph = models.core_graph(model, options)
    calibration = calibrate(model, data, options)
    muls = []
    for equalize in (False, True):
        record = quantize(model, Method(equalize=equalize), calibration=calibration, options=options)
        assert record.nodes[1].balance.size == 8
        muls.append(factors(models.fake(graph, record)))
    assert factors(graph) == 0 and muls[0] == 1
    assert muls[1] == (kind == "matmul"), "a convolution before takes the factor in"


@pytest.mark.parametrize("views", ["tokens", "flat", "split"])
def test_balance_of_a_viewed_tensor(views: str, options: CompileOptions) -> None:
    """The numbers of an image, turned and joined, as rows of a matmul: channels are found again before the views."""
    m = Maker(14)
    x = m.input("x", 2, 4, 3, 2)
    spread = np.array([1, 100, 1, 1], np.float32)
    y = m.op("Relu", m.conv(x, m.array(4, 4, 1, 1) * spread.reshape(-1, 1, 1, 1), None, "a"))
    if views == "tokens":
        y = m.op("Transpose", m.op("Reshape", y, m.const(np.array([2, 4, 6], np.int64))), perm=[0, 2, 1])
        weight = m.array(4, 5) / spread[:, None]
    elif views == "flat":
        y = m.op("Reshape", y, m.const(np.array([2, 24], np.int64)))
        weight = m.array(24, 5) / np.repeat(spread, 6)[:, None]
    else:
        y = m.op("Reshape", m.op("Transpose", y, perm=[0, 2, 3, 1]), m.const(np.array([2, 3, 2, 2, 2], np.int64)))
        weight = m.array(2, 5)
        weight[1] /= 100
    model, data = m.model(m.dense(y, weight, None, "b")), [{"x": m.array(2, 4, 3, 2)} for _ in range(4)]
    off, on = errors(model, data, options, {**OFF, "observer": "minmax"}, {"observer": "minmax"})
    assert on < (0.3 if views != "split" else 1.01) * off
    graph = models.core_graph(model, options)
    record = quantize(model, Method(), calibration=calibrate(model, data, options), options=options)
    fake = models.fake(graph, record)
    (found,), (expected,) = (
        models.compiled(fake, data[:1], options)[0].values(),
        models.interpreted(fake, data[0]).values(),
    )
    assert models.relative_error(found, expected) < 0.01


def test_equalization_of_one_scale_for_a_weight_does_no_harm(options: CompileOptions) -> None:
    """Where the layer before has one scale for its whole weight, its rows are left alone: else they would lose bits."""
    model, data = outliers("conv")
    alone, both = errors(
        model, data, options, {"per_channel": False, "equalize": False}, {"per_channel": False, "equalize": True}
    )
    assert both <= 1.01 * alone


def test_equalization_keeps_the_float_layer(options: CompileOptions) -> None:
    """The layer before stays float, with divided outputs; what is not homogeneous, or read twice, is left alone."""
    model, data = outliers("conv")
    graph = models.core_graph(model, options)
    record = quantize(model, Method(float_nodes=("a",)), calibration=calibrate(model, data, options), options=options)
    fake = models.fake(graph, record)
    (expected,) = models.interpreted(graph, data[0]).values()
    (found,) = models.interpreted(fake, data[0]).values()
    assert models.relative_error(found, expected) < 0.01
    assert sum(node.op == "conv" for node in fake.nodes) == 2 and factors(fake) == 0
    for between in ("Sigmoid", "output"):
        m = Maker(12)
        x = m.input("x", "N", 4, 5, 5)
        spread = np.array([1, 1, 300, 1], np.float32)
        y = m.conv(x, m.array(4, 4, 1, 1) * spread.reshape(-1, 1, 1, 1), None, "a")
        z = m.op("Relu" if between == "output" else "Elu", y)
        last = m.conv(z, m.array(4, 4, 3, 3) / spread.reshape(1, -1, 1, 1), None, "b")
        made = m.model(last, z) if between == "output" else m.model(last)
        feed = [{"x": m.array(8, 4, 5, 5)}]
        record = quantize(made, Method(), calibration=calibrate(made, feed, options), options=options)
        fake = models.fake(models.core_graph(made, options), record)
        assert record.nodes[1].balance.size and factors(fake) == 1
        plain = models.interpreted(models.core_graph(made, options), feed[0])
        for name, found in models.interpreted(fake, feed[0]).items():
            assert models.relative_error(found, plain[name]) < 0.03


@pytest.mark.parametrize("kind", ["matmul", "conv", "conv without bias", "depth"])
@pytest.mark.parametrize("form", ["int8", "int8-dynamic", "int4-weights"])
def test_bias_correction(kind: str, form: str, options: CompileOptions) -> None:
    """Inputs with a large mean make the rounding of a weight a bias: it is taken back."""
    if form == "int4-weights" and kind != "matmul":
        pytest.skip("convolutions keep float weights there")
    m = Maker(13)
    random = np.random.default_rng(0)
    if kind == "matmul":
        x = m.input("x", "N", 12)
        y = m.dense(x, m.array(12, 9), m.array(9), "a")
        data = [{"x": (random.standard_normal((200, 12)) * 0.1 + 5).astype(np.float32)}]
    else:
        x = m.input("x", "N", 8, 6, 6)
        depth = {"group": 8} if kind == "depth" else {}
        bias = None if kind == "conv without bias" else m.array(8)
        y = m.conv(x, m.array(8, 1 if depth else 8, 3, 3), bias, "a", **depth)
        data = [{"x": (random.standard_normal((20, 8, 6, 6)) * 0.1 + 5).astype(np.float32)}]
    model = m.model(y)
    graph = models.core_graph(model, options)
    calibration = calibrate(model, data, options)
    (expected,) = models.interpreted(graph, data[0]).values()
    bias_of = []
    for correction in (False, True):
        method = Method(form=form, bias_correction=correction, balance=False, per_channel=form != "int8")
        record = quantize(model, method, calibration=calibration, options=options)
        (found,) = models.interpreted(models.fake(graph, record), data[0]).values()
        axes = 0 if kind == "matmul" else (0, 2, 3)
        bias_of.append(float(np.abs((found.astype("f8") - expected).mean(axis=axes)).mean()))
    assert bias_of[1] < 0.35 * bias_of[0], bias_of


@pytest.mark.parametrize("block", [8, 32])
@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_with_data_keeps_products(bits: int, block: int) -> None:
    """Of inputs whose channels go together: less error than rounding to nearest, and the same at least elsewhere."""
    random = np.random.default_rng(0)
    mixing = random.normal(size=(6, 40))
    x = (random.normal(size=(300, 6)) @ mixing + 0.1 * random.normal(size=(300, 40))).astype(np.float32)
    weight = random.normal(size=(40, 17)).astype(np.float32)
    low, high = (-8, 7) if bits == 4 else (-127, 127)
    scale = rounding.block_scales(weight, block, high)
    spread = np.repeat(scale, block, axis=0)[:40]
    nearest = np.clip(np.rint(weight / spread), low, high)
    gram = x.T.astype(np.float64) @ x
    found = rounding.gptq(weight, gram, scale, block, low, high)
    assert found.min() >= low and found.max() <= high and found.shape == weight.shape
    cost = [float(np.square(x @ (numbers * spread - weight)).sum()) for numbers in (nearest, found)]
    assert cost[1] < 0.7 * cost[0]
    identity = rounding.gptq(weight, np.eye(40), scale, block, low, high)
    assert np.array_equal(identity, nearest), "channels apart: rounding to nearest is best"
    assert np.array_equal(rounding.gptq(weight, np.zeros((40, 40)), scale, block, low, high), nearest)
    with pytest.raises(CompilerError):
        rounding.gptq(weight, np.eye(3), scale, block, low, high)


def test_scales_of_weights() -> None:
    random = np.random.default_rng(0)
    weight = random.normal(size=(30, 7)).astype(np.float32)
    weight[:, 2] = 0
    weight[:, 3] = 1e-42
    for axis, count in ((1, 7), (0, 30), (None, 1)):
        found = rounding.scales(weight, axis, 127)
        assert found.shape == (count,) and found.dtype == np.float32 and np.isfinite(found).all() and (found > 0).all()
        plain = rounding.scales(weight, axis, 127, shrink=False)
        assert (found <= plain * (1 + 1e-6)).all() and (found >= plain * 0.69).all()
    assert rounding.scales(weight, 1, 127)[2] == 1 and rounding.scales(weight, 1, 127)[3] == 1
    whole = np.round(random.uniform(-127, 127, (50, 4))).astype(np.float32) * 0.5
    whole[0] = 63.5
    assert np.array_equal(rounding.scales(whole, 1, 127), np.full(4, 0.5, np.float32)), "nothing to round"
    assert rounding.scales(np.zeros((0, 3), np.float32), 1, 127).shape == (3,)
    assert rounding.to_float8(np.array([1e9, -1e9, 1.0]), np.ones(1, np.float32)).astype("f4").tolist() == [
        448,
        -448,
        1,
    ]
    assert rounding.to_int8(np.array([1e9, -1e9, 1.5, 2.5]), np.ones(1, np.float32)).tolist() == [127, -127, 2, 2]


def test_products_have_the_names_of_nodes(options: CompileOptions) -> None:
    found = products(models.core_graph(models.images(), options))
    assert [product.name for product in found] == ["stem", "depth", "point", "groups", "line", "head"]
    assert [product.groups for product in found] == [1, 8, 1, 2, 1, 1]
    assert all(product.weight.dtype is F32 for product in found)
