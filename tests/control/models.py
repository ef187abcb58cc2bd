"""Models with control flow in ONNX's text form, and all that is compared for one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import aot
from aot.control import CONTROL
from aot.dims import Symbol, symbols_of
from aot.evaluate import evaluate
from aot.frontend import load_variants
from aot.ir import Graph, Node, Value
from aot.partition import FlowChart, partition
from aot.program import FlowOp, FlowStep
from aot.text import consts_of, parse_graph, print_graph
from aot.verify import verify

Array = np.ndarray[Any, np.dtype[Any]]
Feed = Mapping[str, Any]
TARGET = "cpu:x86-64-v3"

onnxruntime.set_default_logger_severity(4)


def model_of(text: str, opset: int = 17, functions: str = "", ir: int = 8) -> onnx.ModelProto:
    """A model of ONNX's text form: `name (inputs) => (outputs) <initializers> { nodes }`."""
    local = ', "local" : 1' if functions else ""
    head = f'<ir_version: {ir}, opset_import: ["" : {opset}{local}]>'
    return onnx.parser.parse_model(f"{head}\n{text}\n{functions}")


def arrays(feed: Feed, model: onnx.ModelProto) -> dict[str, Array]:
    """The feed in the types that the model declares."""
    types = {info.name: info.type.tensor_type.elem_type for info in model.graph.input}
    return {
        name: np.array(value, onnx.helper.tensor_dtype_to_np_dtype(types[name]), order="C")
        for name, value in feed.items()
    }


def by_onnxruntime(model: onnx.ModelProto, feeds: Sequence[Mapping[str, Array]]) -> list[list[Array]]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [[np.asarray(result) for result in session.run(None, dict(feed))] for feed in feeds]


def assert_same(got: Sequence[Array], want: Sequence[Array], what: str) -> None:
    """Equal types and shapes; integers equal, floats close.

    What a loop without iterations stacked has no sizes that ONNX defines: ONNX Runtime takes unknown ones to be 0.
    """
    for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        where = f"{what}, output {number}"
        assert mine.dtype == theirs.dtype, where
        if theirs.shape[:1] == (0,) == mine.shape[:1] and len(mine.shape) >= len(theirs.shape) > 0:
            continue
        assert mine.shape == theirs.shape, where
        if theirs.dtype.kind in "biu":
            np.testing.assert_array_equal(mine, theirs, where)
        else:
            np.testing.assert_allclose(
                mine.astype(np.float64), theirs.astype(np.float64), rtol=1e-4, atol=1e-5, err_msg=where
            )


@dataclass(frozen=True)
class Checker:
    """Builds models and compares; `cache` is a folder for kernels."""

    cache: Path

    def build(self, model: onnx.ModelProto, **options: Any) -> aot.Artifact:
        return aot.compile(model.SerializeToString(), target=TARGET, cache_dir=str(self.cache), **options)

    def __call__(self, model: onnx.ModelProto, *feeds: Feed, want: Sequence[Sequence[Array]] | None = None) -> Graph:
        """Interpreter and artifact against ONNX Runtime (or `want`), at 1 to 3 threads; gives the graph."""
        given = [arrays(feed, model) for feed in feeds]
        expected = by_onnxruntime(model, given) if want is None else want
        graphs = [graph for _, graph in load_variants(model)[0]]
        for graph in graphs:
            verify(graph)
            text = print_graph(graph)
            consts = consts_of(graph)
            assert print_graph(parse_graph(text, consts.get)) == text
            check_partition(graph)
        for number, (feed, results) in enumerate(zip(given, expected, strict=True)):
            graph = next(graph for graph in graphs if fits(graph, feed))
            assert_same(evaluate(graph, feed), results, f"interpreter, feed {number}")
        artifact = self.build(model)
        names = [info.name for info in model.graph.output]
        first: list[list[bytes]] = []
        for threads in (1, 2, 3):
            with artifact.load(threads=threads) as loaded:
                # Twice: the second time, memory and plans of the first are used again.
                for number, feed in [*enumerate(given), *enumerate(given)]:
                    before = {name: array.copy() for name, array in feed.items()}
                    got = loaded.run(feed)
                    assert all(np.array_equal(feed[name], array, equal_nan=array.dtype.kind == "f")
                               for name, array in before.items())  # fmt: skip
                    results = [got[name] for name in names]
                    assert_same(results, expected[number], f"{threads} threads, feed {number}")
                    bits = [np.ascontiguousarray(result).tobytes() for result in results]
                    if len(first) <= number:
                        first.append(bits)
                    assert bits == first[number], f"{threads} threads, feed {number}: other bits"
        return graphs[0]


def fits(graph: Graph, feed: Mapping[str, Array]) -> bool:
    """Whether the inputs hold what the graph was made for."""
    held = [(feed[graph.inputs[number].name], value, equal) for number, value, equal in graph.input_values]
    return all((int(array.reshape(-1)[0]) == value) == equal for array, value, equal in held)


# What a partition must be.


def all_nodes(graph: Graph) -> list[Node]:
    return [inner for node in graph.nodes for inner in (node, *(n for r in node.regions for n in all_nodes(r)))]


def check_partition(graph: Graph) -> FlowChart | None:
    """Every node is in one block; steps only read slots and sizes that have been given."""
    plain = [node for node in all_nodes(graph) if node.op not in CONTROL]
    if len(plain) == len(all_nodes(graph)):
        return None
    chart = partition(graph)
    for block in chart.blocks:
        verify(block)
        assert not any(node.op in CONTROL for node in block.nodes)
        assert block.nodes and block.outputs
        assert block.environment is not None
        assert set(block.symbols) <= set(block.environment) <= set(chart.symbols)
    placed = [node.outputs for block in chart.blocks for node in block.nodes if node.op != "copy"]
    wanted = [node.outputs for node in plain if node.op != "copy"]
    assert sorted(map(id_of, placed)) == sorted(map(id_of, wanted))
    given = {s for value in graph.inputs for dim in value.type.shape for s in symbols_of(dim)}
    live = set(range(len(graph.inputs)))
    check_steps(chart, chart.steps, live, given)
    assert set(chart.results) <= live
    calls = sorted(step.block for step in flat(chart.steps) if step.op is FlowOp.CALL)
    assert calls == list(range(len(chart.blocks)))
    return chart


def id_of(values: tuple[Value, ...]) -> tuple[int, ...]:
    return tuple(map(id, values))


def flat(steps: Sequence[FlowStep]) -> list[FlowStep]:
    return [inner for step in steps for inner in (step, *(s for body in step.bodies for s in flat(body)))]


def check_steps(chart: FlowChart, steps: Sequence[FlowStep], live: set[int], given: set[Symbol]) -> None:
    """Runs the steps in thought: `live` are the slots that hold something, `given` the symbols with values."""

    def need(dims: Sequence[Any]) -> None:
        missing = {s for dim in dims for s in symbols_of(dim)} - given
        assert not missing, f"{missing} are read before they are given"

    for step in steps:
        reads = [slot for slot in step.inputs if slot >= 0]
        assert set(reads) <= live, f"{step} reads what has no value"
        match step.op:
            case FlowOp.CALL:
                assert set(chart.blocks[step.block].symbols) <= given
                live |= set(step.outputs)
            case FlowOp.READ:
                need(step.dims)
                given |= {chart.symbols[number] for number in step.symbols}
            case FlowOp.CHECK:
                need(step.dims)
            case FlowOp.MATCH:
                given |= {chart.symbols[number] for number in step.symbols if number >= 0}
                need(chart.slots[step.inputs[0]].type.shape)
            case FlowOp.IF:
                sides = []
                for body in step.bodies:
                    inner, known = set(live), set(given)
                    check_steps(chart, body, inner, known)
                    sides.append((inner, known))
                live &= sides[0][0] & sides[1][0]
                live |= sides[0][0] & sides[1][0]
                given |= sides[0][1] & sides[1][1]
            case FlowOp.LOOP:
                inner, known = live | set(step.outputs), set(given)
                check_steps(chart, step.bodies[0], inner, known)
                assert live <= inner, "an iteration drops what the next one reads"
            case FlowOp.APPEND:
                assert set(step.outputs) <= live
            case FlowOp.ALIAS:
                need(chart.slots[step.outputs[0]].type.shape)
                live |= set(step.outputs)
            case _:
                live |= set(step.outputs)
        live -= set(step.drops)
