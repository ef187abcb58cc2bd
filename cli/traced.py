"""The artifact's side of a comparison: what its steps made of an input, by the names of the model, and its graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.cli.local_errors import Judgement, Precision, Steps, judge, run_node
from aot.errors import AotError, OptionError
from aot.evaluate import bind_symbols
from aot.ir import Array, Const, Graph, Node, Value
from aot.text import consts_of, parse_graph

if TYPE_CHECKING:
    from aot.artifacts import Artifact
    from aot.driver import Lowered
    from aot.program import Program

KernelSteps = tuple[Graph, Sequence["Made"]]
"""One run of a block: its graph, and its steps."""


@dataclass(frozen=True, slots=True)
class Made:
    """A step of a run: its place among those of all blocks, its kernel, the model's nodes, and what it wrote."""

    number: int
    label: str
    nodes: tuple[str, ...]
    arrays: tuple[Array, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor of the program under a name of the model. `order`: of the step that wrote it, in the run."""

    array: Array
    order: int
    label: str
    nodes: tuple[str, ...]
    steps: Steps | None = None


@dataclass(slots=True)
class Traced:
    """A run: its steps in order, which program it was, and the results.

    `graphs`: of the program's blocks, as kernels; empty where the artifact has no debug information. `tensors`: by the
    model's names; more are added as kernels are judged, since views of what a kernel wrote have names too.
    """

    program: int
    steps: list[Made]
    outputs: dict[str, Array]
    graphs: Sequence[Graph] = ()
    tensors: dict[str, Named] = field(default_factory=dict)
    unnamed: int = 0


def traced_run(model: Any, feed: Mapping[str, Array]) -> Traced:
    """Runs an artifact with a trace. Raises as `Model.run`."""
    steps: list[Made] = []
    programs: list[int] = []

    def keep(step: Any) -> None:
        arrays = tuple(np.array(tensor.array, order="C") for tensor in step.tensors)
        programs.append(step.program)
        steps.append(Made(step.number, step.label, step.nodes, arrays, tuple(tensor.name for tensor in step.tensors)))

    outputs = model.trace({spec.name: feed[spec.name] for spec in model.inputs}, keep)
    outputs = {name: np.asarray(array) for name, array in outputs.items()}
    return Traced(programs[0] if programs else -1, steps, outputs)


def interpreted_run(program: int, graphs: Sequence[Graph], feed: Mapping[str, Array]) -> Traced:
    """What the program's kernels mean, in the reference interpreter: for a device that is not here.

    Raises OptionError for a program with control flow.
    """
    if len(graphs) != 1:
        raise OptionError(
            "a program with control flow cannot be interpreted kernel by kernel"
            if graphs
            else "there is nothing to interpret: the artifact was built with --strip-debug",
            hint="Run it where its code runs: without --interpret.",
        )
    (graph,) = graphs
    values: dict[Value, Array] = {value: feed[value.name] for value in graph.inputs}
    known = bind_symbols(graph.inputs, [values[value] for value in graph.inputs])
    values |= {value: const.array() for value, const in graph.consts.items()}
    steps: list[Made] = []
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            results = run_node(node, [None if value is None else values[value] for value in node.inputs], known)
            values.update(zip(node.outputs, results, strict=True))
            if node.op == "kernel":
                label, names = str(node.attrs["name"]), tuple(value.name for value in node.outputs)
                steps.append(Made(len(steps), label, node.locs, tuple(results), names))
    outputs = {value.name: values[value] for value in graph.outputs}
    return Traced(program, steps, outputs, graphs)


def program_graphs(artifact: Artifact, number: int, lowered: Lowered | None) -> tuple[Sequence[Graph], bool]:
    """The graphs of a program's blocks, as the artifact's debug section has them; and whether they are those of
    `lowered`, what this aotc makes of the model, whose constants they get. Without text they are `lowered`'s own."""
    program = artifact.programs[number]
    label = f"{program.target}{' ' + program.variant if program.variant else ''}"
    blocks = len(program.parts)
    names = [label] if program.flow is None else [f"{label} block {block}" for block in range(blocks)]
    texts = artifact.debug
    if not all(name in texts for name in names):
        is_same = lowered is not None and _labels(lowered) == [
            [part.kernels[step.kernel].label for step in part.steps] for part in program.parts
        ]
        return (lowered.ordered if is_same and lowered is not None else ()), is_same
    consts: dict[str, Const] = {}
    if lowered is not None:
        for graph in (*lowered.sources, *lowered.cores, *lowered.ordered):
            consts |= consts_of(graph)
    same = lowered is not None and [lowered.texts.get(name) for name in names] == [texts[name] for name in names]
    return [parse_graph(texts[name], consts.get) for name in names], same


def _labels(lowered: Lowered) -> list[list[str]]:
    return [[str(node.attrs["name"]) for node in graph.nodes if node.op == "kernel"] for graph in lowered.ordered]


def known_names(program: Program, graphs: Sequence[Graph]) -> set[str]:
    """Names that tensors of a run may have: what steps write, views of it, and what few bits stand for."""
    names = {result.name for part in program.parts for step in part.steps for result in step.results}
    for graph in graphs:
        for node in graph.nodes:
            names.update(value.name for value in node.outputs)
            for body in node.regions:
                makers = [body.producer.get(value) for value in body.outputs]
                names.update(maker.operands[0].name for maker in makers if maker is not None and maker.op == "quantize")
    return names - {""}


def name_tensors(traced: Traced) -> None:
    """Fills in `traced.tensors`: what steps wrote, by name, and what lies in few bits under the name of what it stands
    for. The first of a name counts: later ones are copies in another layout."""
    made: dict[str, Named] = {}
    for order, step in enumerate(traced.steps):
        for name, array in zip(step.names, step.arrays, strict=True):
            if name:
                made.setdefault(name, Named(array, order, step.label, step.nodes))
    for order, graph, node, step in _kernel_steps(traced):
        for value, array in zip(node.outputs, step.arrays, strict=True):
            stands_for = _stands_for(graph, node, value, array)
            if stands_for is not None:
                name, numbers, steps = stands_for
                made.setdefault(name, Named(numbers, order, step.label, step.nodes, steps))
    traced.tensors = made
    traced.unnamed = sum(not name for step in traced.steps for name in step.names)


def name_outputs(traced: Traced) -> None:
    """Puts the results of the run among `traced.tensors`, as what the step of their name, or the last one, wrote."""
    last = Made(0, "", (), (), ())
    if traced.steps:
        last = traced.steps[-1]
    for name, array in traced.outputs.items():
        known = traced.tensors.get(name)
        if known is not None:
            traced.tensors[name] = Named(array, known.order, known.label, known.nodes)
        else:
            traced.tensors[name] = Named(array, max(len(traced.steps) - 1, 0), last.label, last.nodes)


def _kernel_steps(traced: Traced) -> list[tuple[int, Graph, Node, Made]]:
    """Each step with its kernel node, the graph of that, and its place in the run."""
    kernels = [(graph, node) for graph in traced.graphs for node in graph.nodes if node.op == "kernel"]
    found = []
    for order, step in enumerate(traced.steps):
        if step.number < len(kernels) and len(kernels[step.number][1].outputs) == len(step.arrays):
            found.append((order, *kernels[step.number], step))
    return found


def _stands_for(graph: Graph, kernel: Node, value: Value, array: Array) -> tuple[str, Array, Steps] | None:
    """Of a result in few bits: the name of the float tensor that it stands for, its numbers, and the steps."""
    (body,) = kernel.regions
    inside = body.outputs[kernel.outputs.index(value)]
    maker = body.producer.get(inside)
    outer = dict(zip(body.inputs, kernel.operands, strict=True))
    if maker is None or maker.op != "quantize":
        return None
    name = maker.operands[0].name or outer.get(maker.operands[0], maker.operands[0]).name
    consts = [
        body.consts.get(operand) or graph.consts.get(outer.get(operand, operand)) for operand in maker.operands[1:]
    ]
    try:
        numbers = [const.array() for const in consts if const is not None]
    except AotError:  # known by its digest only
        return None
    if len(numbers) != len(consts):
        return None
    if not name or any(number.size != 1 for number in numbers) or array.dtype.kind not in "iu":
        return None
    scale, zero = float(numbers[0].reshape(())), float(numbers[1].reshape(())) if len(numbers) > 1 else 0.0
    limits = np.iinfo(array.dtype)
    steps = Steps(scale, (limits.min - zero) * scale, (limits.max - zero) * scale)
    return name, ((array.astype(np.float64) - zero) * scale).astype(np.float32), steps


@dataclass(frozen=True, slots=True)
class KernelJudgement:
    """A kernel against what it means: its place in the run, and the judgement of one of its results."""

    order: int
    label: str
    nodes: tuple[str, ...]
    judgement: Judgement
    array: Array


def judge_kernels(
    traced: Traced, program: Program, feed: Mapping[str, Array], precision: Precision
) -> tuple[list[KernelJudgement], int]:
    """Every kernel's results against its meaning on the tensors that it read, and how many could not be judged.

    Names of views are added to `traced.tensors`. A kernel that read what something had written over differs as well.
    """
    made: list[KernelJudgement] = []
    left_out = 0
    firsts = [0]
    for part in program.parts:
        firsts.append(firsts[-1] + len(part.steps))
    order = 0
    while order < len(traced.steps):
        block = max(n for n, first in enumerate(firsts[:-1]) if first <= traced.steps[order].number)
        end = order + 1
        while end < len(traced.steps) and firsts[block] < traced.steps[end].number < firsts[block + 1]:
            end += 1
        if block < len(traced.graphs):
            judged, missing = _judge_block(traced, traced.graphs[block], order, end, feed, precision)
            made += judged
            left_out += missing
        else:
            left_out += end - order
        order = end
    return made, left_out


def _judge_block(
    traced: Traced, graph: Graph, start: int, end: int, feed: Mapping[str, Array], precision: Precision
) -> tuple[list[KernelJudgement], int]:
    kernels = [node for node in graph.nodes if node.op == "kernel"]
    steps = traced.steps[start:end]
    if len(kernels) != len(steps) or any(
        len(node.outputs) != len(step.arrays) for node, step in zip(kernels, steps, strict=True)
    ):
        return [], len(steps)
    found: dict[Value, Array] = {}
    place: dict[Value, int] = {}
    for number, (node, step) in enumerate(zip(kernels, steps, strict=True)):
        found.update(zip(node.outputs, step.arrays, strict=True))
        place.update(dict.fromkeys(node.outputs, start + number))

    def computed(value: Value, array: Array) -> None:
        if value.name and value.name not in traced.tensors:
            source = graph.producer[value]
            while source.op != "kernel" and source.operands[0] in graph.producer:
                source = graph.producer[source.operands[0]]
            order = place.get(source.outputs[0], start)
            step = traced.steps[order]
            traced.tensors[value.name] = Named(array, order, step.label, step.nodes)

    arrays = [feed.get(value.name, _known(traced, value, start)) for value in graph.inputs]
    judged, left_out = judge(graph, arrays, found, precision, computed=computed)
    return [
        KernelJudgement(
            place[each.value], traced.steps[place[each.value]].label, traced.steps[place[each.value]].nodes, each,
            found[each.value],
        )
        for each in judged
    ], left_out  # fmt: skip


def _known(traced: Traced, value: Value, before: int) -> Array | None:
    """The last tensor of an input's name that a step before this block wrote."""
    for step in reversed(traced.steps[:before]):
        if value.name in step.names and value.name:
            return step.arrays[step.names.index(value.name)]
    return None
