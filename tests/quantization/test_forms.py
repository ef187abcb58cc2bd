"""Every form of quantized products: the compiled program and the interpreter on the graph with quantize ops agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from aot.calibrate import Calibration, calibrate
from aot.options import CompileOptions
from aot.quantization import FLOAT, STATIC, Method, Quantization
from aot.quantize import quantize
from tests.quantization import models

MODELS: Mapping[str, Callable[[], Any]] = {"image": models.images, "tokens": models.tokens}

METHODS = {
    "int8": Method(),
    "int8 plain": Method(balance=False, equalize=False, bias_correction=False, observer="minmax"),
    "int8 symmetric": Method(symmetric=True, observer="percentile", percentile=99.9),
    "int8 entropy, per tensor": Method(per_channel=False, observer="entropy"),
    "int8-dynamic": Method(form="int8-dynamic"),
    "fp8": Method(form="fp8"),
    "fp8-dynamic": Method(form="fp8-dynamic"),
    "int8-weights": Method(form="int8-weights"),
    "int8-weights in blocks": Method(form="int8-weights", block=4),
    "int8-weights gptq": Method(form="int8-weights", rounding="gptq"),
    "int4-weights": Method(form="int4-weights"),
    "int4-weights 64": Method(form="int4-weights", block=64),
    "int4-weights 128": Method(form="int4-weights", block=128),
    "int4-weights gptq": Method(form="int4-weights", rounding="gptq"),
}
FEW = ("int8", "int8 symmetric", "int8-dynamic", "fp8", "int4-weights gptq")
QUICK = {("image", "int8"), ("image", "int8-dynamic"), ("tokens", "int8 symmetric"), ("tokens", "int4-weights gptq"),
         ("tokens", "fp8")}  # fmt: skip

_ERRORS = {"int8": 0.05, "fp8": 0.12, "int8-dynamic": 0.05, "fp8-dynamic": 0.12, "int8-weights": 0.02,
           "int4-weights": 0.4}  # fmt: skip
"""What the forms cost on these models, at most: much more is a mistake."""


@pytest.fixture(scope="module")
def calibrations(options: CompileOptions) -> dict[str, Calibration]:
    return {name: calibrate(make(), models.data_of(name, 12), options) for name, make in MODELS.items()}


def recorded(name: str, method: Method, options: CompileOptions, calibrations: dict[str, Calibration]) -> Quantization:
    """The record of all that can be quantized."""
    data = models.data_of(name, 4) if method.rounding == "gptq" else None
    if data is None:
        return quantize(MODELS[name](), method, calibration=calibrations[name], options=options)
    return quantize(
        MODELS[name](), method, data=data, calibration=calibrations[name], options=options, allow_slower=True,
        accuracy_budget="relative=10", measured_samples=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(name, how, marks=() if (name, how) in QUICK else pytest.mark.slow)
        for name in MODELS
        for how in METHODS
    ],
)
def test_compiled_and_interpreted(
    name: str, how: str, options: CompileOptions, calibrations: dict[str, Calibration]
) -> None:
    """A number that lies between two steps may go to either, which differs by a step; and few do."""
    method = METHODS[how]
    record = recorded(name, method, options, calibrations)
    chosen = [node for node in record.nodes if node.form != FLOAT]
    whole = name == "tokens" or not method.form.endswith("-weights")
    assert len(chosen) == len(record.nodes) if whole else [node.node for node in chosen] == ["head"]
    graph = models.core_graph(MODELS[name](), options)
    fake = models.fake(graph, record)
    data = models.data_of(name, 3, seed=5)
    plain = models.compiled(graph, data, options)
    for feed, found, unquantized in zip(data, models.compiled(fake, data, options), plain, strict=True):
        for output, expected in models.interpreted(fake, feed).items():
            cost = models.relative_error(expected, unquantized[output])
            assert cost < _ERRORS[method.form], output
            assert cost > 1e-5 or (name == "image" and method.form.endswith("-weights"))
            apart = models.relative_error(found[output], expected)
            assert apart < (1e-4 if method.form.endswith("-weights") else 0.25 * cost), output


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("kind", ["dense", "conv", "depth"])
def test_integers_between_products(kind: str, symmetric: bool, options: CompileOptions) -> None:
    """What goes from one product to the next in 8 bits is that of the interpreter, in all but one of a thousand."""
    m = models.Maker(3)
    if kind == "dense":
        x = m.input("x", "N", 24)
        y = m.dense(m.op("Relu", m.dense(x, m.array(24, 32), m.array(32), "first")), m.array(32, 3), None, "second")
        feed = {"x": m.array(300, 24)}
    else:
        x = m.input("x", "N", 8, 20, 21)
        groups = {"group": 8} if kind == "depth" else {}
        weight = m.array(8, 1 if groups else 8, 3, 3)
        y = m.op("Relu", m.conv(x, weight, m.array(8), "first", pads=[1, 1, 1, 1], **groups))
        y = m.conv(y, m.array(4, 8, 1, 1), None, "second")
        feed = {"x": m.array(4, 8, 20, 21)}
    model = m.model(y)
    method = Method(symmetric=symmetric, balance=False, observer="minmax")
    calibration = calibrate(model, [feed], options)
    record = quantize(model, method, calibration=calibration, options=options)
    fake = models.fake(models.core_graph(model, options), record)
    between = [node.outputs[0] for node in fake.nodes if node.op == "quantize"]
    assert len(between) == 2 and all(value.type.dtype.name == "u8" for value in between)
    shown = fake.with_(outputs=tuple(between))
    found = models.compiled(shown, [feed], options)[0]
    for name, expected in models.interpreted(shown, feed).items():
        apart = np.abs(found[name].astype(np.int64) - expected.astype(np.int64))
        assert np.mean(apart > 0) <= 1e-3 and apart.max() <= 1


@pytest.mark.parametrize("how", [pytest.param(how, marks=() if how == "int8" else pytest.mark.slow) for how in FEW])
def test_artifacts_agree_with_the_graph(
    how: str, options: CompileOptions, calibrations: dict[str, Calibration]
) -> None:
    """The whole way: the record through bytes, a build, the runtime; and twice the same bytes."""
    method = METHODS[how]
    record = recorded("tokens", method, options, calibrations)
    assert method.form in STATIC or not any(node.scale for node in record.nodes)
    again = Quantization.from_bytes(record.to_bytes())
    artifact = models.build(models.tokens(), options, again)
    assert artifact.digest == models.build(models.tokens(), options, record).digest
    forms = {product["form"] for product in artifact.meta.get("products", ())}
    assert method.form.removesuffix("-dynamic") in forms or how == "fp8", "most CPUs have no products of 8-bit floats"
    fake = models.fake(models.core_graph(models.tokens(), options), record)
    feed = models.data_of("tokens", 1, seed=8)[0]
    with artifact.load(threads=1) as model:
        found = model.run(feed)["answer"]
    expected = models.interpreted(fake, feed)["answer"]
    assert models.relative_error(found, expected) < (1e-4 if method.form.endswith("-weights") else 0.02)
