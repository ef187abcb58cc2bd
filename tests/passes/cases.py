"""One small graph per case: a rule fires there, or declines; the numbers must stay the same.

A case names a rule and builds a graph. `check` runs that rule alone to its fixed point, verifies the
result, and compares both graphs on random inputs by the reference interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.dims import Dim, Symbol
from aot.dtypes import F32, I64, DType
from aot.evaluate import evaluate
from aot.ir import Array, Graph, Value
from aot.options import CompileOptions
from aot.passes import Context
from aot.pattern import Rule, rewrite
from aot.transforms.fold import fold_node
from aot.verify import verify

N = Symbol("N")
EXTENTS = {"N": 3, "S": 5, "H": 2}


def f(b: Builder, name: str, *shape: Dim, dtype: DType = F32) -> Value:
    """A model input, f32 unless said otherwise."""
    return b.input(name, dtype, shape)


def w(b: Builder, *shape: int, seed: int = 0, dtype: Any = np.float32) -> Value:
    """A constant of random values near 1 in size, never 0, never equal."""
    rng = np.random.default_rng([seed, *shape])
    array = rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape)
    return b.const(array.astype(dtype), f"w{seed}")


def pos(b: Builder, *shape: int, seed: int = 0) -> Value:
    """A constant of positive values."""
    rng = np.random.default_rng([seed, *shape])
    return b.const(rng.uniform(0.5, 1.5, shape).astype(np.float32), f"p{seed}")


def n(b: Builder, number: float, dtype: DType = F32) -> Value:
    """A number."""
    return b.scalar(number, dtype)


def full(b: Builder, number: float, *shape: int, dtype: DType = F32) -> Value:
    """A constant of equal elements."""
    return b.const(np.full(shape, number, dtype.numpy))


def f32(numbers: Any) -> Array:
    """An f32 array."""
    return np.asarray(numbers, np.float32)


def ints(b: Builder, *numbers: int, shape: tuple[int, ...] | None = None, dtype: DType = I64) -> Value:
    """A constant of given integers."""
    array = np.asarray(numbers, dtype.numpy)
    return b.const(array.reshape(shape) if shape is not None else array)


Build = Callable[[Builder], "Value | Sequence[Value]"]


@dataclass(frozen=True)
class Case:
    """`rule` fires in the graph of `build` (leaving `ops`, if given) or declines, for the reason `why`."""

    rule: str
    build: Build
    fires: bool = True
    why: str = ""
    ops: str = ""
    exact: bool = False
    id: str = ""


def fires(rule: str, build: Build, ops: str = "") -> Case:
    return Case(rule, build, ops=ops)


def declines(rule: str, build: Build, why: str = "", exact: bool = False) -> Case:
    return Case(rule, build, fires=False, why=why, exact=exact)


@dataclass
class Outcome:
    graph: Graph
    result: Graph
    context: Context
    fired: dict[str, int] = field(default_factory=dict)


def built(build: Build) -> Graph:
    """The graph of a case; every node is named after its op and place."""
    b = Builder()
    outputs = build(b)
    graph = b.finish([outputs] if isinstance(outputs, Value) else list(outputs))
    nodes = tuple(replace(node, locs=(f"{node.op}_{i}",)) for i, node in enumerate(graph.nodes))
    return graph.with_(nodes=nodes)


def inputs_for(graph: Graph, seed: int = 7) -> list[Array]:
    """Random inputs: normal floats, small integers of either sign, bools; symbols by EXTENTS."""
    rng = np.random.default_rng(seed)
    arrays = []
    for value in graph.inputs:
        shape = [extent if isinstance(extent, int) else EXTENTS[str(extent)] for extent in value.type.shape]
        dtype = value.type.dtype
        array: Array
        if dtype.is_float:
            array = rng.standard_normal(shape) * 1.5
        elif dtype.is_bool:
            array = rng.integers(0, 2, shape)
        elif value.name.startswith("index"):
            array = rng.integers(0, 3, shape)
        else:
            array = rng.integers(-4 if dtype.family == "int" else 0, 7, shape)
        arrays.append(np.asarray(array, dtype.numpy))
    return arrays


def assert_same(before: Graph, after: Graph, relative: float = 1e-4, seeds: Sequence[int] = (7, 8)) -> None:
    """Both graphs give the same outputs, to `relative` of each output's largest size; NaNs alike."""
    assert [v.name for v in before.outputs] == [v.name for v in after.outputs]
    assert [v.type for v in before.outputs] == [v.type for v in after.outputs]
    assert [v.name for v in before.inputs] == [v.name for v in after.inputs]
    for seed in seeds:
        feed = inputs_for(before, seed)
        with np.errstate(all="ignore"):
            for x, y in zip(evaluate(before, feed), evaluate(after, feed), strict=True):
                assert x.dtype == y.dtype and x.shape == y.shape
                if x.dtype.kind != "f":
                    np.testing.assert_array_equal(x, y)
                    continue
                finite = np.abs(x[np.isfinite(x)])
                size = float(finite.max()) if finite.size else 1.0
                np.testing.assert_allclose(y, x, rtol=relative, atol=relative * max(size, 1e-6))


def run_rule(rule: Rule, graph: Graph, exact: bool = False) -> Outcome:
    """Runs one rule alone to its fixed point."""
    context = Context(options=CompileOptions(exact=exact))
    result = rewrite(graph, (rule,), context, fold=fold_node, exact=exact)
    verify(result)
    return Outcome(graph, result, context, context.rewrites.by_rule)


def check(case: Case, rules: dict[str, Rule]) -> None:
    """The case holds: the rule fires or declines as said, and the numbers stay."""
    graph = built(case.build)
    verify(graph)
    outcome = run_rule(rules[case.rule], graph, case.exact)
    if not case.fires:
        assert case.rule not in outcome.fired
        assert outcome.result is graph
        if case.why:
            reasons = [r.reason for r in outcome.context.diagnostics.refusals]
            assert any(case.why in reason for reason in reasons), reasons
        return
    assert outcome.fired.get(case.rule, 0) > 0, [str(r) for r in outcome.context.diagnostics.refusals]
    if case.ops:
        assert " ".join(node.op for node in outcome.result.nodes) == case.ops
    before = {loc for node in graph.nodes for loc in node.locs}
    after = {loc for node in outcome.result.nodes for loc in node.locs}
    assert after <= before
    assert_same(graph, outcome.result)


def uncovered(cases: Sequence[Case], rules: Sequence[Rule]) -> list[str]:
    """Rules without a firing and a declining case."""
    have = {(case.rule, case.fires) for case in cases}
    return [
        f"{rule.name} {'fires' if way else 'declines'}"
        for rule in rules
        for way in (True, False)
        if (rule.name, way) not in have
    ]


def named(cases: Sequence[Case]) -> list[Any]:
    """pytest parameters with readable ids."""
    return [
        pytest.param(case, id=f"{case.rule}-{'fires' if case.fires else 'declines'}-{i}")
        for i, case in enumerate(cases)
    ]
