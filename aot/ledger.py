"""The error ledger: what each quantized product costs in accuracy and saves in time, and which are kept in float.

One program holds both forms of every product and a switch for each, so that any choice can be measured without another
build, with the kernels that the artifact will have. Every product is measured alone, then with all that cost less;
then the most are kept that the budget allows. Products that are no faster quantized stay float from the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aot.calibrate import Tell, run, running
from aot.dtypes import BOOL
from aot.ir import Array, Graph, TensorType, Value
from aot.metrics import METRICS, Budget, Difference, Outputs, loss, own_metric
from aot.options import CompileOptions
from aot.passes import Context
from aot.product_times import Times
from aot.quantization import FLOAT, Entry, Point, Quantization
from aot.samples import Sample
from aot.transforms.products import Product
from aot.transforms.quantize import quantized

SWITCHES = "quantized products"
"""The name of the input of the measured program that says which products are quantized."""

_TRIES = 8
"""Products beyond the first that broke the budget that are tried all the same."""


@dataclass(frozen=True, slots=True)
class _Bench:
    """The program with switches, and what it is measured with."""

    model: Any
    samples: Sequence[Sample]
    names: Sequence[str]
    budget: Budget
    tell: Tell

    def outputs(self, chosen: Sequence[bool], number: int) -> dict[str, Array]:
        """A run of one sample, with these products quantized."""
        switches = {SWITCHES: np.asarray(chosen, np.bool_)}
        found = run(self.model, {**self.samples[number], **switches}, number)
        return {name: np.array(array) for name, array in found.items()}

    def errors(self, choices: Sequence[Sequence[bool]], what: str, metric: str = "relative") -> list[float]:
        """The error of each choice, over all samples; one sample's reference is held at a time."""
        collected = [Difference() for _ in choices]
        nothing = [False] * len(self.names)
        for number in range(len(self.samples)):
            self.tell("measure", f"{what}, sample {number + 1} of {len(self.samples)}")
            expected = self.outputs(nothing, number)
            for difference, choice in zip(collected, choices, strict=True):
                difference.add(self.outputs(choice, number), expected)
        return [difference.error(metric) for difference in collected]

    def final(self, choice: Sequence[bool], what: str) -> float:
        """The error that the budget is about."""
        if not self.budget.is_own:
            return self.errors([choice], what, self.budget.metric)[0]
        metric = own_metric(self.budget.metric)
        nothing = [False] * len(self.names)
        values = []
        for each in (nothing, list(choice)):
            self.tell("measure", what)
            predictions: list[Outputs] = [self.outputs(each, number) for number in range(len(self.samples))]
            values.append(metric(predictions, self.samples))
        return loss(values[1], values[0])


def measured(
    graph: Graph,
    products: Sequence[Product],
    record: Quantization,
    samples: Sequence[Sample],
    budget: Budget,
    options: CompileOptions,
    times: Times,
    tell: Tell,
) -> Quantization:
    """The record with its ledger filled, and with the products in float that the budget, or time, does not allow.

    Raises OptionError for samples that do not fit the model.
    """
    names = [node.node for node in record.nodes]
    entries = {entry.node: entry for entry in record.ledger}
    able = [node.form != FLOAT for node in record.nodes]
    slower = set()
    for name, fits in zip(names, able, strict=True):
        plain_us, quantized_us = (round(each.get(name, 0.0), 2) for each in (times.plain, times.quantized))
        entry = replace(entries[name], float_us=plain_us, quantized_us=quantized_us)
        if fits and not times.is_faster(name):
            slower.add(name)
            entry = replace(entry, reason=f"no faster: {entry.quantized_us:.0f} us, {entry.float_us:.0f} us in float")
        entries[name] = entry
    with _opened(graph, record, samples, budget, options, tell) as bench:
        alone = _alone(bench, able)
        order = sorted((n for n, fits in enumerate(able) if fits), key=lambda n: (alone[n], n))
        totals = _running(bench, order)
        candidates = [n for n in order if names[n] not in slower]
        entries = {n: replace(entries[n], alone=alone.get(i), running=totals.get(i)) for i, n in enumerate(names)}
        chosen, points = _search(bench, candidates, names, times, entries)
    kept = {names[n] for n in chosen}
    for n in order:
        reason = entries[names[n]].reason
        if not reason and names[n] not in kept:
            reason = f"the budget: {METRICS['relative']} {alone[n]:.2g} alone"
        form = entries[names[n]].form if names[n] in kept else FLOAT
        entries[names[n]] = replace(entries[names[n]], reason=reason, form=form)
    forms = {name: node.form if name in kept else FLOAT for name, node in record.by_node.items()}
    final = next(point for point in points if point.chosen)
    return replace(
        record.with_forms(forms), metric=budget.name, budget=budget.most, final=final.error,
        measured_samples=len(samples), timed=times.said, ledger=tuple(entries[name] for name in names), points=points,
    )  # fmt: skip


def _alone(bench: _Bench, able: Sequence[bool]) -> dict[int, float]:
    """The error of each product alone, by its number."""
    chosen = [n for n, fits in enumerate(able) if fits]
    choices = [[m == n for m in range(len(able))] for n in chosen]
    return dict(zip(chosen, bench.errors(choices, f"{len(chosen)} products alone"), strict=True))


def _running(bench: _Bench, order: Sequence[int]) -> dict[int, float]:
    """The error with each product and all that stand before it."""
    place = {n: number for number, n in enumerate(order)}
    last = len(order)
    choices = [[place.get(m, last) <= number for m in range(len(bench.names))] for number in range(len(order))]
    return dict(zip(order, bench.errors(choices, "running total"), strict=True))


def _search(
    bench: _Bench, candidates: Sequence[int], names: Sequence[str], times: Times, entries: Mapping[str, Entry]
) -> tuple[set[int], tuple[Point, ...]]:
    """The products that stay quantized, and what was tried.

    Sorted by error for each microsecond saved, the longest beginning within the budget is found by halving, as if
    errors only grew; then a few of the others are tried one by one.
    """
    size, most = len(names), bench.budget.most
    tried: dict[frozenset[int], float] = {frozenset(): 0.0}

    def fits(members: Iterable[int]) -> bool:
        key = frozenset(members)
        if key not in tried:
            tried[key] = bench.final([n in key for n in range(size)], f"{len(key)} of {size} quantized")
        return tried[key] <= most

    def price(n: int) -> tuple[float, int]:
        entry = entries[names[n]]
        saved = max(entry.float_us - entry.quantized_us, 0.01) if entry.float_us else 1.0
        return (entry.alone or 0.0) ** 2 / saved, n

    order = sorted(candidates, key=price)
    low, high = (len(order), len(order)) if fits(order) else (0, len(order))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(order[:middle]) else (low, middle)
    chosen = set(order[:low])
    for n in order[low + 1 : low + 1 + _TRIES]:
        if fits(chosen | {n}):
            chosen.add(n)
    points = [_point(key, error, names, times, entries, key == frozenset(chosen)) for key, error in tried.items()]
    return chosen, tuple(sorted(points, key=lambda point: (point.quantized, point.error)))


def _point(
    members: frozenset[int],
    error: float,
    names: Sequence[str],
    times: Times,
    entries: Mapping[str, Entry],
    chosen: bool,
) -> Point:
    inside = [entries[names[n]] for n in members]
    saved = sum(entry.float_us - entry.quantized_us for entry in inside)
    kept = 0.125 if inside and inside[0].form == "int4-weights" else 0.25
    spared = sum((1 - kept) * entry.weight_bytes for entry in inside)
    return Point(
        quantized=len(members), error=error, run_us=round(max(times.run_us - saved, 0.0), 1) if times.run_us else 0.0,
        weight_bytes=int(sum(entry.weight_bytes for entry in entries.values()) - spared), chosen=chosen,
    )  # fmt: skip


@contextmanager
def _opened(
    graph: Graph, record: Quantization, samples: Sequence[Sample], budget: Budget, options: CompileOptions, tell: Tell
) -> Iterator[_Bench]:
    names = [node.node for node in record.nodes]
    switch = Value(TensorType(BOOL, (len(names),)), SWITCHES)
    tell("build", "both forms of every product")
    both = quantized(graph.with_(state=()), record, Context(options=options), switch)  # each sample has its state
    with running(both, options) as model:
        yield _Bench(model, samples, names, budget, tell)
