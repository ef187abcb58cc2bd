"""Layout, fusion, lowering, order and placement: every stage computes what the stage before it computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aot import dtypes as d
from aot.dims import evaluate as evaluate_dim
from aot.errors import CompilerError
from aot.evaluate import evaluate
from aot.expr import walk
from aot.ir import Graph, Level, Value
from aot.lower import lower
from aot.passes import Context, PassManager
from aot.pipeline import TARGET_PASSES
from aot.storage import pointer_offset_bytes, slots
from aot.text import print_graph
from aot.transforms.place import place_buffers
from aot.verify import verify
from aot.views import VIEW_OPS
from tests.kernel_interpreter import run_kernel
from tests.plan.graphs import GRAPHS, SYMBOLS, Maker, N, random_inputs

SIZES = ({"N": 2, "S": 5}, {"N": 1, "S": 1}, {"N": 3, "S": 16})


def stages(graph: Graph) -> dict[str, Graph]:
    context = Context()
    found = {}
    for item in TARGET_PASSES:
        graph = PassManager([item], context).run(graph)
        found[item.name] = graph
    return found


def kernels(graph: Graph) -> list[str]:
    return [str(node.attrs["kind"]) for node in graph.nodes if node.op == "kernel"]


@pytest.fixture(params=sorted(GRAPHS))
def make(request: pytest.FixtureRequest) -> Callable[[], Graph]:
    return GRAPHS[request.param]


def test_every_stage_agrees_with_the_source(make: Callable[[], Graph]) -> None:
    source = make()
    for name, graph in stages(source).items():
        for symbols in SIZES:
            inputs = random_inputs(source, symbols)
            for want, got in zip(evaluate(source, inputs), evaluate(graph, inputs), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=name)


def test_the_same_graph_gives_the_same_text(make: Callable[[], Graph]) -> None:
    first, second = ("\n".join(print_graph(g) for g in stages(make()).values()) for _ in range(2))
    assert first == second


def test_ordered_graphs_hold_kernels_views_and_concatenations(make: Callable[[], Graph]) -> None:
    graph = stages(make())["reuse_in_place"]
    assert graph.level is Level.ORDERED
    assert {node.op for node in graph.nodes} <= {"kernel", "concat", *VIEW_OPS}
    for value in graph.outputs:
        assert not value.type.layout, "outputs are row-major"


def test_kernels_mean_what_their_bodies_mean(make: Callable[[], Graph]) -> None:
    source = make()
    graph = stages(source)["reuse_in_place"]
    inputs = random_inputs(source)
    values: dict[Value, np.ndarray] = {v: inputs[v.name] for v in graph.inputs}
    values.update({v: c.array() for v, c in graph.consts.items()})
    for node in graph.nodes:
        operands = [values[v] for v in node.operands]
        single = Graph("one", node.operands, {}, (node,), node.outputs, level=Level.ORDERED)
        want = evaluate(single, operands, SYMBOLS)
        if node.op == "kernel":
            kernel = lower(node, lambda value: value in graph.consts)
            for got, wanted in zip(run_kernel(kernel, operands, SYMBOLS), want, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5, err_msg=node.where)
        values.update(zip(node.outputs, want, strict=True))


def test_plans_keep_live_values_apart(make: Callable[[], Graph]) -> None:
    """Runs the plan in a byte arena, poisoned before each run, and compares with the source."""
    source = make()
    graph = stages(source)["reuse_in_place"]
    plan = place_buffers(graph, {value: i for i, value in enumerate(graph.consts)}, 2000)
    place = slots(graph)
    for symbols in SIZES:
        inputs = random_inputs(source, symbols)
        memory = _Memory(graph, plan, symbols, inputs)
        for node in graph.nodes:
            if node.op != "kernel":
                continue
            operands = [memory.view(value, place) for value in node.operands]
            kernel = lower(node, lambda value: value in graph.consts)
            results = run_kernel(kernel, [operand.copy() for operand in operands], symbols)
            for value, result in zip(node.outputs, results, strict=True):
                memory.zero_halo(value, place)
                memory.view(value, place)[...] = result
        for value, want in zip(graph.outputs, evaluate(source, inputs), strict=True):
            np.testing.assert_allclose(memory.view(value, place), want, rtol=1e-5, atol=1e-5)


def test_constants_take_no_arena(make: Callable[[], Graph]) -> None:
    graph = stages(make())["reuse_in_place"]
    plan = place_buffers(graph, {}, 2000)  # as if every constant were read in a packed form
    names = {value.name for value in graph.consts}
    assert not [buffer for buffer in plan.buffers if buffer.name in names]


class _Memory:
    """The bytes of every buffer of a plan, at given sizes."""

    def __init__(self, graph: Graph, plan, symbols, inputs) -> None:  # type: ignore[no-untyped-def]
        self.symbols, self.plan = symbols, plan
        ends: dict[int, int] = {}
        for number, buffer in enumerate(plan.buffers):
            size = self.at(buffer.size_bytes)
            if buffer.space.name == "ARENA":
                start = max((ends[b] for b in buffer.below), default=buffer.offset_bytes)
                ends[number] = start + -(-size // 64) * 64
        self.starts = {n: ends[n] - -(-self.at(plan.buffers[n].size_bytes) // 64) * 64 for n in ends}
        self.arena = np.full(max(ends.values(), default=0), 0xCB, np.uint8)
        self.own: dict[int, np.ndarray] = {}
        given = {value: inputs[value.name] for value in graph.inputs}
        given.update({value: const.array() for value, const in graph.consts.items()})
        for root, number in plan.number.items():
            if number not in ends:
                array = given.get(root)
                if array is None:
                    self.own[number] = np.full(self.at(root.type.storage_bytes), 0xCB, np.uint8)
                else:
                    self.own[number] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8).copy()

    def at(self, dim) -> int:  # type: ignore[no-untyped-def]
        return dim if isinstance(dim, int) else evaluate_dim(dim, self.symbols)

    def _array(self, value: Value, place, halo: bool) -> np.ndarray:  # type: ignore[no-untyped-def]
        slot = place[value]
        number = self.plan.number[slot.root]
        memory = self.own[number] if number in self.own else self.arena[self.starts[number] :]
        type_ = value.type
        strides = [self.at(s) * type_.dtype.itemsize_bytes for s in type_.strides]
        shape = [self.at(d) for d in type_.shape]
        start = self.at(pointer_offset_bytes(slot, type_))
        if halo:
            shape = [n + b + a for n, (b, a) in zip(shape, type_.halo, strict=True)]
        else:
            start += self.at(type_.origin_elements) * type_.dtype.itemsize_bytes
        last = start + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + type_.dtype.itemsize_bytes
        assert 0 in shape or (start >= 0 and last <= memory.size), f"{value.name} leaves its buffer"
        return np.ndarray(shape, type_.dtype.numpy, memory, start, strides)

    def view(self, value: Value, place) -> np.ndarray:  # type: ignore[no-untyped-def]
        return self._array(value, place, halo=False)

    def zero_halo(self, value: Value, place) -> None:  # type: ignore[no-untyped-def]
        whole = self._array(value, place, halo=True)
        for axis, (before, after) in enumerate(value.type.halo):
            for edge in (slice(0, before), slice(whole.shape[axis] - after, None) if after else slice(0, 0)):
                whole[(slice(None),) * axis + (edge,)] = 0


def test_convolutions_take_their_epilogues() -> None:
    ordered = stages(GRAPHS["residual"]())["fuse"]
    counts = {kind: kernels(ordered).count(kind) for kind in set(kernels(ordered))}
    assert counts["window"] == 5  # three convolutions with bias, activation and residual inside; two pools
    assert sum(counts.values()) <= 9


def test_residual_addition_and_layer_norm_are_one_kernel() -> None:
    fused = stages(GRAPHS["encoder"]())["fuse"]
    rows = [node for node in fused.nodes if node.op == "kernel" and node.attrs["kind"] == "row"]
    assert any({"add", "layer_norm"} <= {inner.op for inner in node.regions[0].nodes} for node in rows)


def test_refusals_are_recorded_with_reasons() -> None:
    context = Context()
    PassManager(TARGET_PASSES, context).run(GRAPHS["residual"]())
    assert any("loops of their own" in r.reason for r in context.diagnostics.refusals)


def test_a_reshape_at_the_end_moves_nothing() -> None:
    b = Maker("last")
    x = b.input("x", d.F32, (N.dim, 6))
    graph = b.finish([b.reshape(b.matmul(x, b.weight(6, 4)), shape=(N.dim * 4,)), b.reshape(x, shape=(N.dim * 6,))])
    assert kernels(stages(graph)["reuse_in_place"]) == ["contract", "map"], "only what is an input has to be copied"


def test_a_wrong_alias_is_refused() -> None:
    graph = stages(GRAPHS["encoder"]())["finish_layouts"]
    node = next(node for node in graph.nodes if node.op == "reshape")
    from dataclasses import replace

    from aot.ir import Layout

    bad = Value(node.output.type.with_layout(Layout(strides=(1,) * node.output.type.rank)), "bad")
    nodes = tuple(replace(n, outputs=(bad,)) if n is node else n for n in graph.nodes)
    with pytest.raises(CompilerError):
        verify(graph.with_(nodes=nodes))


def test_what_a_second_store_reads_is_not_written_by_the_first() -> None:
    graph = stages(GRAPHS["two_stores"]())["reuse_in_place"]
    for node in graph.nodes:
        if node.op == "kernel" and "in_place" in node.attrs:
            kernel = lower(node, lambda value: value in graph.consts)
            reused = node.attrs["in_place"]
            for store in kernel.stores[1:]:
                reads = [e for e in walk(store.value) if e.op == "load" and e.payload == reused]
                assert not reads, "the first store overwrites what a later store reads"
