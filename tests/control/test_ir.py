"""Nodes of control in the IR: their rules, one broken at a time; their text; and flows of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from aot import dtypes
from aot.builder import Builder
from aot.control import add_alias, add_claim, add_cond, add_loop, add_read, has_control, has_effect
from aot.dims import Symbol
from aot.errors import ModelError
from aot.evaluate import evaluate
from aot.ir import Graph, Node, TensorType, Value
from aot.program import FlowOp
from aot.text import consts_of, parse_graph, print_graph
from aot.verify import VerifyError, verify
from tests.control.models import check_partition, flat

N = Symbol("n")
M = Symbol("m", 0, origin="unbacked")
K = Symbol("k", 0, origin="unbacked")


def sample() -> Graph:
    """A graph with every node of control."""
    b = Builder("all")
    x = b.input("x", dtypes.F32, (N.dim, 4))
    trips = b.input("trips", dtypes.I64, ())
    go = b.input("go", dtypes.BOOL, ())
    sizes = b.input("sizes", dtypes.I64, (2,))
    add_read(b, sizes, 0, M.dim)
    add_claim(b, N.dim * 4, M.dim, exact=False)
    part = add_alias(b, x, (M.dim,), exact=False)
    then, other = Builder("then"), Builder("other")
    then_part = then.input("p", dtypes.F32, (M.dim,))
    other_part = other.input("p", dtypes.F32, (M.dim,))
    regions = (then.finish([then.op("neg", then_part)[0]]), other.finish([other.op("exp", other_part)[0]]))
    (chosen,) = add_cond(b, go, regions, ([part], [part]), [TensorType(dtypes.F32, (M.dim,))])
    body = Builder("body")
    iteration = body.input("i", dtypes.I64, ())
    carried = body.input("a", dtypes.F32, (K.dim,))
    captured = body.input("x", dtypes.F32, (N.dim, 4))
    going_on = body.op("lt", iteration, body.scalar(3, dtypes.I64))[0]
    flat_x = body.op("reshape", captured, shape=(N.dim * 4,))[0]
    grown = body.op("concat", carried, flat_x, axis=0)[0]
    total = body.op("reduce_sum", grown, axes=(0,), keepdims=False)[0]
    region = body.finish([going_on, grown, total])
    end, rows = Symbol("end", 0, origin="unbacked"), Symbol("rows", 0, origin="unbacked")
    types = [TensorType(dtypes.F32, (end.dim,)), TensorType(dtypes.F32, (rows.dim,))]
    result, totals = add_loop(b, trips, go, [chosen], [x], region, types)
    return b.finish([b.op("relu", result)[0], totals])


FEED = {
    "x": np.arange(8, dtype=np.float32).reshape(2, 4), "trips": np.array(2), "go": np.array(True),
    "sizes": np.array([3, 0]),
}  # fmt: skip


def test_every_node_of_control_runs_and_prints() -> None:
    graph = sample()
    verify(graph)
    assert has_control(graph)
    assert [node.op for node in graph.nodes if has_effect(node)] == ["read", "claim"]
    text = print_graph(graph)
    assert print_graph(parse_graph(text, consts_of(graph).get)) == text
    chart = check_partition(graph)
    assert chart is not None
    assert {step.op for step in flat(chart.steps)} == set(FlowOp)
    grown, totals = evaluate(graph, FEED)
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(grown, np.maximum(np.concatenate([-x[:3], x, x]), 0))
    np.testing.assert_array_equal(totals, [25, 53])


def changed(op: str, **parts: Any) -> Callable[[Graph], Graph]:
    """Replaces parts of the one node of this op."""

    def change(graph: Graph) -> Graph:
        def of(node: Node) -> Node:
            values = {name: part(node) if callable(part) else part for name, part in parts.items()}
            return replace(node, **values)

        return graph.with_(nodes=tuple(of(node) if node.op == op else node for node in graph.nodes))

    return change


def attrs(**new: Any) -> Callable[[Node], Any]:
    return lambda node: MappingProxyType({**node.attrs, **new})


def other_region(number: int, **parts: Any) -> Callable[[Node], Any]:
    def make(node: Node) -> tuple[Graph, ...]:
        region = node.regions[number]
        new = region.with_(**{name: part(region) if callable(part) else part for name, part in parts.items()})
        return (*node.regions[:number], new, *node.regions[number + 1 :])

    return make


def retyped(number: int, type_: TensorType) -> Callable[[Node], Any]:
    return lambda node: tuple(Value(type_) if n == number else v for n, v in enumerate(node.outputs))


ONE_BOOL = TensorType(dtypes.BOOL, ())
BROKEN: dict[str, Callable[[Graph], Graph]] = {
    "missing attribute": changed("cond", attrs=MappingProxyType({})),
    "unknown attribute": changed("claim", attrs=attrs(extra=1)),
    "captures of a cond are no pair": changed("cond", attrs=attrs(captures=(1,))),
    "captures of a cond are negative": changed("cond", attrs=attrs(captures=(-1, 3))),
    "captures of a cond are too many": changed("cond", attrs=attrs(captures=(2, 2))),
    "one region of a cond": changed("cond", regions=lambda node: node.regions[:1]),
    "a cond of no condition": changed("cond", inputs=lambda node: (None, *node.inputs[1:])),
    "a condition that is no bool": changed("cond", inputs=lambda node: (node.inputs[1], *node.inputs[1:])),
    "captures of the wrong rank": changed("cond", regions=other_region(
        0, inputs=lambda region: (Value(TensorType(dtypes.F32, (2, 2))),))),
    "captures of the wrong type": changed("cond", regions=other_region(
        1, inputs=lambda region: (Value(TensorType(dtypes.I64, (M.dim,))),))),
    "results of a branch are too few": changed("cond", regions=other_region(0, outputs=())),
    "results of a cond of another type": changed("cond", outputs=retyped(0, TensorType(dtypes.I64, (M.dim,)))),
    "results of a cond of another rank": changed("cond", outputs=retyped(0, TensorType(dtypes.F32, (M.dim, 1)))),
    "more is carried than there is": changed("loop", attrs=attrs(carried=9)),
    "carried is negative": changed("loop", attrs=attrs(carried=-1)),
    "carried is no number": changed("loop", attrs=attrs(carried=(1,))),
    "what is carried is missing": changed("loop", inputs=lambda node: (*node.inputs[:2], None, *node.inputs[3:])),
    "two regions of a loop": changed("loop", regions=lambda node: node.regions * 2),
    "trips of another type": changed("loop", inputs=lambda node: (node.inputs[1], *node.inputs[1:])),
    "a loop's condition of another type": changed(
        "loop", inputs=lambda node: (node.inputs[0], node.inputs[0], *node.inputs[2:])),
    "a region without a condition": changed("loop", regions=other_region(0, outputs=lambda region: region.outputs[1:])),
    "a region without an iteration": changed("loop", regions=other_region(0, inputs=lambda region: region.inputs[1:])),
    "a condition that the loop does not have": changed(
        "loop", inputs=lambda node: (node.inputs[0], None, *node.inputs[2:])),
    "stacked results are too many": changed("loop", outputs=lambda node: (*node.outputs, Value(ONE_BOOL))),
    "stacked results of the wrong rank": changed("loop", outputs=retyped(1, TensorType(dtypes.F32, (4, 4)))),
    "stacked results of the wrong type": changed("loop", outputs=retyped(1, TensorType(dtypes.F64, (4,)))),
    "carried results of the wrong type": changed("loop", outputs=retyped(0, TensorType(dtypes.F64, (4,)))),
    "captures of a loop are missing": changed("loop", inputs=lambda node: node.inputs[:3]),
    "an alias of two": changed("alias", inputs=lambda node: node.inputs * 2),
    "an alias of another type": changed("alias", outputs=retyped(0, TensorType(dtypes.F64, (M.dim,)))),
    "an alias of another shape": changed("alias", attrs=attrs(shape=(N.dim,))),
    "a read of floats": changed("read", inputs=lambda node: (Value(TensorType(dtypes.F32, (2,))),)),
    "a read before the start": changed("read", attrs=attrs(element=-1)),
    "a read with a result": changed("read", outputs=(Value(ONE_BOOL),)),
    "a read of nothing": changed("read", inputs=()),
    "a claim of something": changed("claim", inputs=lambda node: (Value(ONE_BOOL),)),
    "a claim with a result": changed("claim", outputs=(Value(ONE_BOOL),)),
    "what is captured is of no one": lambda graph: changed("cond", inputs=lambda node: (
        node.inputs[0], Value(node.operands[1].type), node.operands[2]))(graph),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rules_are_found(name: str) -> None:
    with pytest.raises(VerifyError):
        verify(BROKEN[name](sample()))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sizes": np.array([9, 0])}, "n"),  # more than there is: the claim
        ({"sizes": np.array([-1, 0])}, "m"),
    ],
)
def test_the_interpreter_refuses(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        evaluate(sample(), FEED | change)


def test_a_size_that_is_known_twice() -> None:
    """A second read of a size must give the same number."""
    b = Builder("twice")
    sizes = b.input("sizes", dtypes.I64, (2,))
    add_read(b, sizes, 0, M.dim)
    add_read(b, sizes, 1, M.dim * 2)
    graph = b.finish([b.op("iota", shape=(M.dim,), axis=0, start=0, step=1, dtype=dtypes.I64)[0]])
    verify(graph)
    check_partition(graph)
    assert evaluate(graph, {"sizes": np.array([2, 4])})[0].tolist() == [0, 1]
    with pytest.raises(ModelError, match="must be 4, it is 5"):
        evaluate(graph, {"sizes": np.array([2, 5])})


def test_a_clamped_read() -> None:
    b = Builder("clamped")
    sizes = b.input("sizes", dtypes.I32, (1,))
    size = Symbol("size", 1, 3, origin="unbacked")
    add_read(b, sizes, 0, size.dim, clamp=True)
    graph = b.finish([b.op("iota", shape=(size.dim,), axis=0, start=0, step=1, dtype=dtypes.I64)[0]])
    found = [len(evaluate(graph, {"sizes": np.array([n], np.int32)})[0]) for n in (-5, 1, 2, 3, 99)]
    assert found == [1, 1, 2, 3, 3]
