"""The error ledger: what is measured is what is built, the worst layers stand first, and the budget holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.calibrate import calibrate, plain
from aot.cli.ledger_report import worst_first
from aot.errors import OptionError
from aot.ledger import SWITCHES, measured
from aot.metrics import LARGEST_ERROR, Difference, parse_budget
from aot.options import CompileOptions
from aot.product_times import NO_TIMES, Times
from aot.quantization import FLOAT, Method, Quantization
from aot.quantize import quantize
from aot.quantizer import planned
from aot.transforms.products import products
from tests.quantization import models

RAW: dict[str, Any] = {"balance": False, "equalize": False, "bias_correction": False}
QUICK_SEEDS = 1
SEEDS = [pytest.param(seed, marks=() if seed < QUICK_SEEDS else pytest.mark.slow) for seed in range(20)]


def ledger_of(model: Any, data: Any, options: CompileOptions, budget: str = "relative=1000", **method: Any) -> Any:
    return quantize(model, Method(**method), data=data, accuracy_budget=budget, allow_slower=True, options=options)


def worst(record: Quantization) -> str:
    return str(worst_first(record.summary())[0]["node"])


def planted(seed: int, kind: str) -> tuple[Any, str, Any]:
    """(a perceptron with one bad layer, its name, data).

    An outlier channel of its input, or a large row of its weight. The layer before takes it back, so that the function
    is that of a good model: a large row alone makes outputs large, and their relative error no larger.
    """
    random = np.random.default_rng(seed)
    widths = (12, 16, 16, 16, 6)
    weights = [random.normal(size=pair).astype(np.float32) / pair[0] ** 0.5 for pair in pairwise(widths)]
    biases = [random.normal(size=width).astype(np.float32) * 0.1 for width in widths[1:]]
    bad = int(random.integers(1, len(weights)))
    channel = int(random.integers(widths[bad]))
    factor = np.float32(100 if kind == "outlier channel" else 1 / 100)
    weights[bad][channel] /= factor
    weights[bad - 1][:, channel] *= factor
    biases[bad - 1][channel] *= factor
    m = models.Maker()
    x = m.input("x", "N", 12)
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = m.dense(x, weight, bias, f"dense{number}")
        x = m.op("Relu", x) if number + 1 < len(weights) else x
    data = [{"x": random.normal(size=(32, 12)).astype(np.float32)} for _ in range(2)]
    return m.model(x), f"dense{bad}", data


@pytest.mark.parametrize("kind", ["outlier channel", "large row"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_planted_layer_is_first(seed: int, kind: str, options: CompileOptions) -> None:
    """Without balance its error is the largest; balance makes it one of many, and the ledger still says which layer is
    hard."""
    model, bad, data = planted(seed, kind)
    raw = ledger_of(model, data, options, **RAW, observer="minmax")
    errors = {entry.node: entry.alone for entry in raw.ledger}
    others = [error for node, error in errors.items() if node != bad]
    assert worst(raw) == bad and errors[bad] > 2 * max(others), errors
    mended = ledger_of(model, data, options)
    assert worst(mended) == bad
    balanced = {entry.node: entry.alone for entry in mended.ledger}
    assert balanced[bad] < 0.4 * errors[bad], (balanced, errors)


def test_worst_first_keeps_products_that_were_not_measured_last(options: CompileOptions) -> None:
    record = ledger_of(models.dense(), models.data_of("x"), options, float_nodes=("dense1",))
    lines = worst_first(record.summary())
    assert [line["node"] for line in lines][-1] == "dense1" and lines[-1]["alone"] is None
    assert lines[-1]["reason"] == "asked for: dense1" and lines[-1]["form"] == FLOAT


@pytest.mark.parametrize("form", ["int8", pytest.param("int8-dynamic", marks=pytest.mark.slow), "int4-weights"])
def test_switches(form: str, options: CompileOptions) -> None:
    """All off is the float program to the bit; all on is the quantized build, and each alone is a build of it alone."""
    model, data = models.dense(), models.data_of("x", 8)
    graph = models.core_graph(model, options)
    method = Method(form=form)
    record = planned(products(graph), method, calibrate(model, data, options))
    from aot.dtypes import BOOL
    from aot.ir import TensorType, Value
    from aot.passes import Context
    from aot.transforms.quantize import quantized

    switch = Value(TensorType(BOOL, (3,)), SWITCHES)
    both = quantized(graph, record, Context(options=plain(options)), switch)
    choices: list[Sequence[bool]] = [(False,) * 3, (True,) * 3, (False, True, False)]
    feeds = [{**data[0], SWITCHES: np.array(choice)} for choice in choices]
    found = models.compiled(both, feeds, options)
    for choice, outputs in zip(choices, found, strict=True):
        forms = {node.node: node.form if on else FLOAT for node, on in zip(record.nodes, choice, strict=True)}
        alone = models.fake(graph, record.with_forms(forms))
        (expected,) = models.compiled(alone, data[:1], options)
        for name, array in expected.items():
            if not any(choice):
                assert np.array_equal(outputs[name], array)
            assert models.relative_error(outputs[name], array) < 1e-5, choice


def built_error(model: Any, record: Quantization, data: Any, metric: str, options: CompileOptions) -> float:
    """Of the artifact, beside that in float."""
    found = Difference()
    with (
        models.build(model, options, record).load(threads=1) as quantized,
        models.build(model, options).load(threads=1) as plain_model,
    ):
        for feed in data:
            expected = {name: np.array(array) for name, array in plain_model.run(dict(feed)).items()}
            found.add(quantized.run(dict(feed)), expected)
    return found.error(metric)


@pytest.mark.parametrize(
    ("budget", "method"),
    [
        ("relative=0.02", {}),
        ("relative=0", {}),
        pytest.param("cosine=0.9999", {"form": "int4-weights"}, marks=pytest.mark.slow),
        ("top1=0.97", {"form": "int4-weights"}),
        ("relative=0.03", {"per_channel": False}),
    ],
)
def test_the_budget_holds_for_what_is_built(budget: str, method: Any, options: CompileOptions) -> None:
    model, data = models.images(), models.data_of("image", 4)
    if method.get("form") == "int4-weights":
        model, data = models.dense(2, (12, 40, 40, 9)), models.data_of("x", 6)
    record = ledger_of(model, data, options, budget, **method)
    asked = parse_budget(budget)
    assert record.final is not None and record.final <= asked.most
    assert record.budget == asked.most and record.metric == asked.name
    (chosen,) = [point for point in record.points if point.chosen]
    assert chosen.error == record.final and chosen.quantized == sum(node.form != FLOAT for node in record.nodes)
    for node, entry in zip(record.nodes, record.ledger, strict=True):
        assert node.node == entry.node and node.form == entry.form
        assert bool(entry.reason) == (entry.form == FLOAT)
        if entry.form == FLOAT:
            assert entry.reason.startswith("the budget: ")
    assert built_error(model, record, data, asked.metric, options) <= asked.most * 1.02 + 1e-6
    if asked.most == 0:
        assert all(node.form == FLOAT for node in record.nodes)


METRICS = """
import numpy as np
def mean(predictions, samples):
    assert len(predictions) == len(samples) and all("x" in sample for sample in samples)
    return float(np.mean([np.mean(next(iter(p.values())) ** 2) for p in predictions]))
def fails(predictions, samples):
    raise RuntimeError("no labels")
def nan(predictions, samples):
    return float("nan")
number = 3
"""


def test_a_metric_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: CompileOptions) -> None:
    (tmp_path / "ledger_metrics.py").write_text(METRICS)
    monkeypatch.syspath_prepend(tmp_path)
    model, data = models.dense(), models.data_of("x")
    record = ledger_of(model, data, options, "ledger_metrics:mean=0.5")
    assert record.metric == "loss of ledger_metrics:mean" and record.final is not None and record.final <= 0.5
    assert all(node.form == "int8" for node in record.nodes)
    strict = ledger_of(model, data, options, "ledger_metrics:mean=0", form="int4-weights")
    assert strict.final == 0
    reasons = [entry.reason for entry in strict.ledger if entry.reason]
    assert all("relative error" in reason for reason in reasons), "products alone are measured so"
    for name, message in (
        ("fails", "no labels"),
        ("nan", "gave nan"),
        ("number", "no function"),
        ("no", "cannot load"),
    ):
        with pytest.raises(OptionError, match=message):
            ledger_of(model, data, options, f"ledger_metrics:{name}=0.1")


def test_labels_bind_a_budget(options: CompileOptions) -> None:
    """A model whose outputs are whole numbers alone."""
    m = models.Maker(4)
    x = m.input("x", "N", 12)
    y = m.dense(m.op("Relu", m.dense(x, m.array(12, 40), None, "a")), m.array(40, 50), None, "b")
    model, data = m.model(m.op("ArgMax", y, axis=1)), [{"x": m.array(200, 12)}]
    loose = ledger_of(model, data, options, "relative=1", form="int4-weights")
    assert loose.final is not None and loose.final > 0.02
    tight = ledger_of(model, data, options, "relative=0.001", form="int4-weights")
    assert tight.final is not None and tight.final <= 0.001


def test_top1_without_classes(options: CompileOptions) -> None:
    with pytest.raises(OptionError, match="no output has several numbers"):
        ledger_of(models.dense(0, (12, 8, 1)), models.data_of("x"), options, "top1=0.9")


def test_outputs_that_break_cost_the_most_and_can_be_told(options: CompileOptions) -> None:
    """1 / (a product that is zero in 4 bits): infinite errors are numbers in the record."""
    m = models.Maker(5)
    x = m.input("x", "N", 2)
    weight = np.array([[1e-3], [1.0]], np.float32)
    y = m.op("Reciprocal", m.dense(x, weight, None, "a"))
    data = [{"x": np.array([[1, 0], [2, 0]], np.float32)}]
    record = ledger_of(m.model(y), data, options, "relative=0.5", form="int4-weights", bias_correction=False)
    assert record.ledger[0].alone == LARGEST_ERROR and record.ledger[0].form == FLOAT
    assert Quantization.from_bytes(record.to_bytes()).summary() == record.summary()
    json.dumps(record.summary(), allow_nan=False)


def test_slower_products_stay_float(options: CompileOptions) -> None:
    """Times are data: one product gains, one does not, one gains too little."""
    model, data = models.dense(), models.data_of("x", 6)
    graph = models.core_graph(model, options)
    found = products(graph)
    record = planned(found, Method(), calibrate(model, data, options))
    plain_us = {"dense0": 10.0, "dense1": 10.0, "dense2": 10.0}
    times = Times(plain_us, {"dense0": 4.0, "dense1": 12.0, "dense2": 9.9}, 40.0, "told")
    result = measured(graph, found, record, data, parse_budget("relative=1"), plain(options), times, lambda *_: None)
    assert [node.form for node in result.nodes] == ["int8", FLOAT, FLOAT]
    assert result.ledger[1].reason == "no faster: 12 us, 10 us in float" and result.timed == "told"
    (chosen,) = [point for point in result.points if point.chosen]
    assert chosen.run_us == 34.0 and chosen.quantized == 1
    untimed = measured(
        graph, found, record, data, parse_budget("relative=1"), plain(options), NO_TIMES, lambda *_: None
    )
    assert all(node.form == "int8" for node in untimed.nodes) and untimed.timed == ""


def test_the_same_inputs_give_the_same_record_and_artifact(options: CompileOptions) -> None:
    model, data = models.dense(), models.data_of("x", 5)
    made = [ledger_of(model, data, options, "relative=0.1") for _ in range(2)]
    assert made[0].to_bytes() == made[1].to_bytes()
    one, other = (models.build(model, options, record) for record in made)
    assert one.digest == other.digest
    assert one.meta["quantization"] == json.loads(json.dumps(made[0].summary()))
