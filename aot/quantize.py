"""From a model and data to a record of what is quantized: calibration, ranges, rounding, measurement, budget."""

from __future__ import annotations

from typing import Any

from aot import driver
from aot.calibrate import Calibration, Tell, calibrate_graph, plain
from aot.errors import OptionError
from aot.ledger import measured
from aot.metrics import DEFAULT_BUDGET, first_few, own_metric, parse_budget
from aot.options import CompileOptions
from aot.quantization import Method, Quantization
from aot.quantizer import planned, rounded_with_data
from aot.samples import Data, open_samples
from aot.transforms.products import products

MEASURED_SAMPLES = 32


def quantize(
    model: Any,
    method: Method | str = "int8",
    *,
    data: Data | None = None,
    calibration: Calibration | None = None,
    accuracy_budget: str | None = None,
    measured_samples: int = MEASURED_SAMPLES,
    options: CompileOptions | None = None,
    tell: Tell | None = None,
) -> Quantization:
    """What is quantized, and how, as a record that builds take in (CompileOptions.quantization).

    `model` as aot.compile takes it. `method`: a Method, or one of its forms. `data`: samples, as aot.samples.open_samples takes them, to calibrate with where
    there is no `calibration`, and to measure errors on, up to `measured_samples` of them. `accuracy_budget`: as
    aot.metrics.parse_budget reads it; the default is DEFAULT_BUDGET. `options`: of the build, which say what the model
    is (dims, values). Without data nothing is measured: all that can be quantized is.
    Raises OptionError where a method needs data and there is none, and for data that does not fit.
    """
    tell = tell or (lambda stage, detail: None)
    method = Method(form=method) if isinstance(method, str) else method
    budget = parse_budget(accuracy_budget or DEFAULT_BUDGET)
    if budget.is_own:
        own_metric(budget.metric)  # before anything takes long
    if data is None and method.needs_data and (calibration is None or method.rounding == "gptq"):
        raise OptionError(
            f"{method.form} with {method.rounding} rounding takes its numbers from data, and there is none",
            hint="Give inputs as the model is used with (--data PATH), or choose a form that needs none: int8-dynamic.",
        )
    if data is None and accuracy_budget is not None:
        raise OptionError("an accuracy budget is held on data, and there is none", hint="Give inputs: --data PATH.")
    options = plain(options or CompileOptions())
    tell("read", "model")
    graph = driver.core_graph(model, options)
    found = products(graph)
    if not found:
        raise OptionError("the model has no product with a constant weight: there is nothing to quantize")
    samples = open_samples(() if data is None else data, graph.inputs)
    if calibration is None and data is not None:
        calibration = calibrate_graph(graph, found, samples(), options, tell)
    record = planned(graph, found, method, calibration)
    if method.rounding == "gptq":
        record = rounded_with_data(graph, found, record, samples, options, tell)
    if data is None:
        return record
    few = first_few(samples(), measured_samples)
    if not few:
        raise OptionError("there is no sample to measure with", hint="Give inputs as the model is used with.")
    return measured(graph, found, record, few, budget, options, tell)
