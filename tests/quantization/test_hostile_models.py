"""Models that quantization may stumble over: sizes of one, empty data, broken weights, names, branches, state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import aot
from aot import runtime
from aot.calibrate import calibrate
from aot.errors import AotError, OptionError, UnsupportedError
from aot.options import CompileOptions
from aot.quantization import FLOAT, Method, Quantization
from aot.quantize import quantize
from tests.control.models import model_of
from tests.quantization import models
from tests.quantization.models import Maker

Made = tuple[onnx.ModelProto, list[dict[str, Any]]]
METHODS = {
    "int8": Method(),
    "int8-dynamic": Method(form="int8-dynamic"),
    "fp8": Method(form="fp8"),
    "int8-weights": Method(form="int8-weights"),
    "int4-weights": Method(form="int4-weights"),
    "int4-weights gptq": Method(form="int4-weights", rounding="gptq"),
}


def of_dense(inner: int, outer: int, weight: Any = None, data: Any = None, axes: tuple[Any, ...] = ("N",)) -> Made:
    m = Maker(7)
    x = m.input("x", *axes, inner)
    lead = [4] if axes else []
    weight = m.array(inner, outer) if weight is None else weight
    return m.model(m.dense(x, weight, m.array(outer), "a")), [{"x": m.array(*lead, inner) if data is None else data}]


def two_of_one_name() -> Made:
    m = Maker()
    x = m.input("x", "N", 8)
    y = m.op("MatMul", x, m.const(m.array(8, 6)), name="same", output="first")
    return m.model(m.op("MatMul", y, m.const(m.array(6, 6)), name="same", output="second")), [{"x": m.array(3, 8)}]


def no_name() -> Made:
    model, data = of_dense(8, 6)
    model.graph.node[0].name = ""
    return model, data


def shared_weight() -> Made:
    """One initializer for two products, whose inputs want different balances."""
    m = Maker()
    x, w = m.input("x", "N", 8), m.const(m.array(8, 8), "shared")
    y = m.op("Relu", m.op("MatMul", x, w, name="a"))
    y = m.op("Mul", y, m.const(np.geomspace(0.01, 100, 8).astype(np.float32)))
    return m.model(m.op("MatMul", y, w, name="b")), [{"x": m.array(40, 8)}]


def weight_is_output_too() -> Made:
    m = Maker()
    x, w = m.input("x", "N", 8), m.const(m.array(8, 8), "w")
    y = m.op("MatMul", x, w, name="a")
    return m.model(y, m.op("Identity", w, output="held"), m.op("Add", x, w)), [{"x": m.array(8, 8)}]


def outputs_in_the_middle() -> Made:
    m = Maker()
    x = m.input("x", "N", 8)
    y = m.dense(x, m.array(8, 8), None, "a")
    z = m.op("Relu", y)
    return m.model(y, m.op("Identity", y), z, m.dense(z, m.array(8, 5), None, "b")), [{"x": m.array(3, 8)}]


def infinity_inside() -> Made:
    m = Maker()
    x = m.input("x", "N", 8)
    made = [m.dense(m.op("Log", x), m.array(8, 6), None, "a"), m.dense(x, m.array(8, 6), None, "b")]
    return m.model(*made), [{"x": np.arange(8, dtype=np.float32).reshape(1, 8)}]


def transposed_image() -> Made:
    m = Maker()
    x = m.input("x", 1, 4, 5, 6)
    y = m.op("ConvTranspose", x, m.const(m.array(4, 3, 3, 3)), name="up", strides=[2, 2])
    return m.model(m.conv(m.op("Relu", y), m.array(6, 3, 3, 3), None, "c")), [{"x": m.array(1, 4, 5, 6)}]


NAN = np.full((8, 6), np.nan, np.float32)
MODELS: dict[str, tuple[Callable[[], Made], dict[str, str]]] = {
    "K = 1": (lambda: of_dense(1, 5), {}),
    "N = 1": (lambda: of_dense(7, 1), {}),
    "K = N = 1": (lambda: of_dense(1, 1), {}),
    "a vector": (lambda: of_dense(7, 3, axes=()), {}),
    "weights of zeros": (lambda: of_dense(8, 6, np.zeros((8, 6), np.float32)), {}),
    "a weight of NaN": (lambda: of_dense(8, 6, NAN), {"a": "its weight holds NaN or infinity"}),
    "subnormal weights": (lambda: of_dense(8, 6, np.full((8, 6), 1e-42, np.float32)), {}),
    "huge weights": (lambda: of_dense(8, 6, np.full((8, 6), 1e35, np.float32)), {}),
    "huge inputs": (lambda: of_dense(8, 6, data=np.linspace(-1e25, 1e25, 24, dtype=np.float32).reshape(3, 8)), {}),
    "constant inputs": (
        lambda: of_dense(8, 6, data=np.full((3, 8), 2, np.float32)),
        {"a": "its input was 2 on all of the data"},
    ),
    "infinity inside": (infinity_inside, {"a": "1 of its inputs were infinite or NaN on the data"}),
    "two of one name": (two_of_one_name, {}),
    "no name": (no_name, {}),
    "a shared weight": (shared_weight, {}),
    "a weight that is an output": (weight_is_output_too, {}),
    "outputs in the middle": (outputs_in_the_middle, {}),
    "a transposed convolution": (transposed_image, {}),
}
QUICK = {
    "int8": {"a weight of NaN", "a vector", "infinity inside", "outputs in the middle", "a shared weight"},
    "int4-weights gptq": {"N = 1", "infinity inside", "subnormal weights", "constant inputs"},
    "int8-dynamic": {"K = 1", "a weight that is an output"},
}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(name, how, marks=() if name in QUICK.get(how, ()) else pytest.mark.slow)
        for name in MODELS
        for how in METHODS
    ],
)
def test_models(name: str, how: str, options: CompileOptions) -> None:
    make, reasons = MODELS[name]
    model, data = make()
    method = METHODS[how]
    record = quantize(model, method, data=data, allow_slower=True, accuracy_budget="relative=1e20", options=options)
    record = Quantization.from_bytes(record.to_bytes())
    for entry in record.ledger:
        is_static = method.form in ("int8", "fp8") or "weight" in reasons.get(entry.node, "")
        if entry.node in reasons and is_static:
            assert entry.form == FLOAT and entry.reason == reasons[entry.node]
            assert any(note.startswith(f"{entry.node}: ") and "stays float" in note for note in record.notes)
        else:
            image = method.form.endswith("-weights") and entry.op == "conv"
            assert entry.form == (FLOAT if image else method.form), entry
    with models.build(model, options, record).load(threads=1) as quantized_model:
        found = {key: np.array(array) for key, array in quantized_model.run(dict(data[0])).items()}
    with models.build(model, options).load(threads=1) as plain_model:
        for key, expected in plain_model.run(dict(data[0])).items():
            finite = np.isfinite(expected)  # infinity times a weight that became 0 is NaN
            limit = 0.2 if "int4" in how or "fp8" in how else 0.02
            assert models.relative_error(found[key][finite], expected[finite]) < limit, key
    if "gptq" in how and name == "infinity inside":
        assert any("rounded to nearest" in note for note in record.notes)


def test_names_of_several_products(options: CompileOptions) -> None:
    model, data = two_of_one_name()
    assert list(calibrate(model, data, options).taps) == ["same", "same#2"]


@pytest.mark.parametrize("form", ["int8", "int8-dynamic"])
def test_empty_batches(form: str, options: CompileOptions) -> None:
    """Samples without rows count for nothing; where there are no others, a note says what was done."""
    model, data = of_dense(8, 6)
    empty = {"x": np.zeros((0, 8), np.float32)}
    asked = replace(options, dims=("N=0..8",))  # type: ignore[arg-type]
    both = quantize(model, form, data=[empty, *data], allow_slower=True, options=asked)
    assert both.nodes[0].form == form and both.notes == ()
    with models.build(model, asked, both).load(threads=1) as loaded:
        assert next(iter(loaded.run(dict(empty)).values())).shape == (0, 6)
    only = quantize(model, form, data=[empty], allow_slower=True, options=asked)
    if form == "int8":
        assert only.nodes[0].form == FLOAT and "no data went through it" in only.ledger[0].reason
        assert only.notes == ("a: no data went through it: it stays float",)
    with pytest.raises(OptionError, match="expected at least 1, got 0"):
        quantize(model, form, data=[empty], options=options)


@pytest.mark.parametrize("weights", ["external", "packed", "none"])
def test_where_weights_live(weights: str, tmp_path: Path, options: CompileOptions) -> None:
    """One weight in two quantized forms; and callers have no quantized weights to give."""
    model, data = shared_weight()
    record = quantize(model, "int8", data=data, allow_slower=True, options=options)
    first, second = record.nodes
    channels = second.means.size
    second = replace(second, balance=np.linspace(1, 2, channels, dtype=np.float32))
    record = replace(record, nodes=(replace(first, balance=np.ones(first.means.size, np.float32)), second))
    if weights == "none":
        with pytest.raises(OptionError, match="does not go with quantization"):
            models.build(model, options, record, weights=weights)
        return
    artifact = models.build(model, options, record, weights=weights)
    artifact.save(tmp_path / "shared.aot")
    with runtime.load(tmp_path / "shared.aot") as one, models.build(model, options, record).load() as other:
        for found, expected in zip(one.run(data[0]).values(), other.run(data[0]).values(), strict=True):
            assert np.array_equal(found, expected)


BRANCHES = """flow (float[N,4] x, bool c) => (float[N,4] y)
<float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}, float[4,4] v = {1,-2,3,4,5,-6,7,8,9,1,2,3,4,5,6,7}> {
  a = MatMul(x, w)
  y = If(c)<then_branch = t () => (float[N,4] p) { p = MatMul(a, v) },
            else_branch = e () => (float[N,4] q) { r = MatMul(a, w) q = Relu(r) }>
}"""
DECIDED = BRANCHES.replace("y = If(c)", "s = ReduceMax<keepdims=0>(x) k = Greater(s, z) y = If(k)").replace(
    "<float[4,4] w", "<float z = {0}, float[4,4] w"
).replace(", bool c", "")  # fmt: skip
LOOP = """loops (float[N,4] x, int64 n) => (float[N,4] y)
<float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}, bool true = {1}, float[1] s = {0.05}> {
  y = Loop(n, true, x)<body = b (int64 i, bool c, float[N,4] h) => (bool c2, float[N,4] o) {
    c2 = Identity(c) p = MatMul(h, w) q = Mul(p, s) o = Tanh(q) }>
}"""


def flow_feeds(name: str) -> list[dict[str, Any]]:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    if name == "an input decides":
        return [{"x": x, "c": np.array(flag)} for flag in (True, False)]
    if name == "a loop":
        return [{"x": x, "n": np.array(count, np.int64)} for count in (1, 3)]
    return [{"x": np.abs(x)}, {"x": -np.abs(x)}]


FLOWS = {"an input decides": BRANCHES, "a value decides": DECIDED, "a loop": LOOP}


@pytest.mark.parametrize("name", FLOWS)
def test_branches_and_loops(name: str, options: CompileOptions) -> None:
    """Forms without data work in every block; what needs data is refused, by name of the remedy."""
    model, feeds = model_of(FLOWS[name]), flow_feeds(name)
    record = quantize(model, "int8-dynamic", data=feeds, options=options)
    assert all(node.form == "int8-dynamic" for node in record.nodes) and len(record.nodes) >= 1
    assert any("no error was measured" in note for note in record.notes)
    with (
        models.build(model, options, record).load(threads=1) as found,
        models.build(model, options).load(threads=1) as expected,
    ):
        errors = [
            models.relative_error(found.run(dict(feed))["y"], np.array(expected.run(dict(feed))["y"])) for feed in feeds
        ]
        assert 0 < max(errors) < 0.03
    for attempt in (
        lambda: quantize(model, "int8", data=feeds, options=options),
        lambda: quantize(model, Method(form="int4-weights", rounding="gptq"), data=feeds, options=options),
        lambda: quantize(model, "int8-dynamic", data=feeds, accuracy_budget="relative=0.1", options=options),
        lambda: calibrate(model, feeds, options),
    ):
        with pytest.raises(UnsupportedError) as raised:
            attempt()
        assert "--set" in raised.value.hint


def test_a_fixed_input_decides(options: CompileOptions) -> None:
    asked = replace(options, values={"c": True})  # type: ignore[arg-type]
    data = [{"x": feed["x"]} for feed in flow_feeds("an input decides")]
    record = quantize(model_of(BRANCHES), "int8", data=data, allow_slower=True, options=asked)
    assert [node.form for node in record.nodes] == ["int8", "int8"]
    models.build(model_of(BRANCHES), asked, record)
    with pytest.raises(OptionError, match="another model"):
        models.build(model_of(BRANCHES), options, record)


def test_types_that_are_not_quantized(options: CompileOptions) -> None:
    m = Maker()
    half = m.input("x", "N", 8, dtype=onnx.TensorProto.FLOAT16)
    model = m.model(m.op("MatMul", half, m.const(m.array(8, 6).astype(np.float16)), name="a"))
    with pytest.raises(OptionError, match="no product of float32") as raised:
        quantize(model, "int8-dynamic", options=options)
    assert "f16" in raised.value.hint
    other = Maker()
    for attempt in (
        lambda: quantize(other.model(other.op("Relu", other.input("x", "N", 8))), "int8-dynamic", options=options),
        lambda: calibrate(other.model("relu_0_out"), [{"x": other.array(1, 8)}], options),
    ):
        with pytest.raises(OptionError, match="nothing to quantize"):
            attempt()


def test_variants_dimensions_and_types_of_inputs(options: CompileOptions) -> None:
    """One record for all of them."""
    model, data = models.dense(), models.data_of("x", 6)
    record = quantize(model, "int8", data=data, allow_slower=True, options=options)
    variant = models.build(model, options, record, variants=((("N", 4),),))
    assert len(variant.programs) == 2
    with variant.load(threads=1) as one, models.build(model, options, record).load(threads=1) as other:
        for feed in data:
            for found, expected in zip(one.run(dict(feed)).values(), other.run(dict(feed)).values(), strict=True):
                assert models.relative_error(found, expected) < 1e-2
    for change in ({"dims": ("N=1..16",)}, {"dims": ("N=4",)}, {"io_dtype": "fp16"}):
        models.build(model, options, record, **change)
    half = replace(options, io_dtype="fp16")
    assert quantize(model, "int8", data=data, allow_slower=True, options=half).graph == record.graph


def test_records_of_another_model(options: CompileOptions) -> None:
    """Other names, other weights under the same names, other channels, another input of one product."""
    data = models.data_of("x", 3)
    record = quantize(models.dense(0), "int8", data=data, allow_slower=True, options=options)
    for model, message in (
        (models.dense(1), "other weights"),
        (models.dense(0, (12, 16, 6)), "1 nodes that the model does not have"),
        (models.tokens(), "3 nodes that the model does not have"),
    ):
        with pytest.raises(OptionError, match=message) as raised:
            models.build(model, options, record)
        assert "aotc quantize" in raised.value.hint


def test_calibrations_of_another_model(options: CompileOptions) -> None:
    """Also of one with the same weights, two of which read one tensor here and two there."""

    def twins(apart: bool) -> onnx.ModelProto:
        m = Maker()
        x = m.input("x", "N", 4)
        y = m.op("Relu", x) if apart else x
        return m.model(m.dense(x, m.array(4, 5), None, "a"), m.dense(y, m.array(4, 5), None, "b"), m.op("Relu", x))

    data = [{"x": np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)}]
    together, apart = (calibrate(twins(flag), data, options) for flag in (False, True))
    for model, other in ((twins(False), apart), (twins(True), together), (models.dense(), apart)):
        with pytest.raises(OptionError, match="another model"):
            quantize(model, "int8", calibration=other, options=options)
    with pytest.raises(OptionError, match="different models"):
        together + apart


def test_the_python_interface(tmp_path: Path, options: CompileOptions) -> None:
    """aot.compile with an iterator, a calibration, a record, its path; and what does not go together."""
    given: dict[str, Any] = {"cache_dir": options.cache_dir}
    streamed = aot.compile(
        models.dense(), calibration=iter(models.data_of("x", 40)), accuracy_budget="cosine=0.99", **given
    )
    ledger = streamed.meta["quantization"]
    assert (ledger["samples"], ledger["measured_samples"], ledger["method"]["form"]) == (40, 32, "int8")
    assert ledger["metric"] == "1 - cosine" and ledger["final"] <= 0.01
    calibration = calibrate(models.dense(), models.data_of("x", 5), options)
    unmeasured = aot.compile(models.dense(), quantize="fp8", calibration=calibration, **given).meta["quantization"]
    assert unmeasured["final"] is None and {node["form"] for node in unmeasured["nodes"]} == {"fp8"}
    record = quantize(models.dense(), Method(symmetric=True), calibration=calibration, options=options)
    record.save(tmp_path / "record.quantization")
    digests = {
        aot.compile(models.dense(), quantize=how, **given).digest
        for how in (record, tmp_path / "record.quantization", str(tmp_path / "record.quantization"))
    }
    assert len(digests) == 1
    wrong: list[dict[str, Any]] = [
        {"accuracy_budget": "relative=0.1"}, {"quantize": record, "calibration": calibration},
        {"quantize": record, "accuracy_budget": "relative=0.1"}, {"quantize": "int8"}, {"quantize": "int9"},
        {"quantize": "int8", "calibration": calibration, "accuracy_budget": "relative=0.1"},
        {"quantize": "int8", "calibration": []}, {"quantize": "int8", "calibration": iter([])},
        {"quantize": Method(form="int4-weights", rounding="gptq"), "calibration": calibration},
        {"quantize": "int8", "calibration": models.data_of("tokens", 1)},
        {"quantize": "int8", "calibration": models.data_of("x", 1), "accuracy_budget": "speed=1"},
    ]  # fmt: skip
    for options_ in wrong:
        with pytest.raises(AotError) as raised:
            aot.compile(models.dense(), **options_, **given)
        assert isinstance(raised.value, OptionError), options_
    with pytest.raises(OptionError, match="no sample"):
        quantize(
            models.dense(),
            Method(form="int4-weights", rounding="gptq"),
            data=[],
            calibration=calibration,
            options=options,
        )
