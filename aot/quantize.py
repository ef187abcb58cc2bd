"""From a model and data to a record of what is quantized: calibration, ranges, rounding, measurement, budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aot import driver
from aot.calibrate import Calibration, Tell, calibrate_graph, first_state, in_branches, no_product, no_sample, plain
from aot.errors import OptionError, UnsupportedError
from aot.ir import Graph
from aot.ledger import measured
from aot.metrics import DEFAULT_BUDGET, MEASURED_SAMPLES, first_few, own_metric, parse_budget
from aot.options import CompileOptions
from aot.product_times import NO_TIMES, measured_times, modelled_times
from aot.quantization import Method, Quantization
from aot.quantizer import planned, rounded_with_data
from aot.samples import Data, open_samples
from aot.transforms.products import products


def quantize(
    model: Any,
    method: Method | str = "int8",
    *,
    data: Data | None = None,
    calibration: Calibration | None = None,
    accuracy_budget: str | None = None,
    measured_samples: int = MEASURED_SAMPLES,
    allow_slower: bool = False,
    options: CompileOptions | None = None,
    tell: Tell | None = None,
) -> Quantization:
    """What is quantized, and how, as a record that builds take in (CompileOptions.quantization).

    `model` as aot.compile takes it. `method`: a Method, or one of its forms. `data`: as aot.samples.open_samples takes
    it, to calibrate with where there is no `calibration`, and to measure errors on, with up to `measured_samples` of
    it. `accuracy_budget`: as aot.metrics.parse_budget reads it; the default is DEFAULT_BUDGET. `options`: of the build,
    which say what the model is (dims, values), and whose times count: of this machine's CPU, measured, or of a GPU,
    modelled, where only GPUs are asked for. `allow_slower`: quantize also what is no faster, for its size. Without data
    nothing is measured: all that can be quantized is.
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
    asked = options or CompileOptions()
    options = plain(asked)
    tell("read", "model")
    cores = driver.core_graphs(model, options)
    graphs = cores.graphs
    if not cores.is_whole:
        if accuracy_budget is not None:
            raise UnsupportedError(
                "no accuracy budget can be held for a model with branches or loops that are decided in a run",
                hint="Fix the input that decides (--set NAME=VALUE), or leave the budget out.",
            )
        return _unmeasured(graphs, method, data is not None)
    (graph,) = graphs
    found = products(graph)
    if not found:
        raise no_product(graphs)
    held = None if method.rounding == "gptq" else measured_samples
    samples = open_samples(() if data is None else data, graph.inputs, held, first_state(graph))
    if calibration is None and data is not None:
        calibration = calibrate_graph(graph, found, samples(), options, tell)
    record = planned(found, method, calibration)
    if method.rounding == "gptq":
        record = rounded_with_data(graph, found, record, samples, options, tell)
    if data is None:
        return record
    few = first_few(samples(), measured_samples)
    if not few:
        raise no_sample()
    targets = driver.resolve_targets(asked)
    if allow_slower:
        times = NO_TIMES
    elif all(backend.name == "cuda" for backend, _ in targets):
        times = modelled_times(found, record, targets[0][1], asked.precision)
    else:
        times = measured_times(graph, found, record, few[0], options, tell)
    return measured(graph, found, record, few, budget, options, times, tell)


def _unmeasured(graphs: Sequence[Graph], method: Method, has_data: bool) -> Quantization:
    """The record of a model with branches or loops, of which nothing inside can be observed: forms without data."""
    if method.needs_data:
        raise in_branches(graphs)
    found = {product.name: product for graph in graphs for product in products(graph)}
    if not found:
        raise no_product(graphs)
    record = planned(tuple(found.values()), method, None)
    said = ("the model has branches or loops that are decided in a run: no error was measured",) if has_data else ()
    return replace(record, notes=(*record.notes, *said))
