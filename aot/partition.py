"""Cuts a graph with control into a flow: blocks without control, and steps between them.

A block is as much of a graph as can run without looking at data: nodes are numbered by how many
decisions lie before them, and each number is one block. Values that cross from one block to another, or that
a decision looks at, get a slot. The bodies of branches and loops are cut in the same way.

Nodes that are set apart, since a target has no kernel for them, are blocks of their own: they end the block before
them as a decision does. `set_apart` cuts the blocks of a flow in the same way, once a target is known.

Invariant: every node of the graph is in one block, and a block is called where everything that its nodes
read, the sizes in their types included, has been computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from aot import dims as dimension
from aot.control import CONTROL, cond_parts, data_symbol, loop_parts, symbols_given
from aot.dims import Dim, Symbol
from aot.ir import Const, Graph, Node, TensorType, Value, attr_symbols
from aot.program import FlowOp, FlowStep


@dataclass(frozen=True)
class FlowChart:
    """A graph as blocks. `slots` are the tensors between them, the graph's inputs first.

    `symbols` are all symbols: those of inputs, then `unbacked` that data gives. The graphs of `blocks` name
    theirs in `environment`. `apart`: the blocks of nodes that were set apart.
    """

    slots: tuple[Value, ...]
    steps: tuple[FlowStep, ...]
    results: tuple[int, ...]
    blocks: tuple[Graph, ...]
    symbols: tuple[Symbol, ...]
    unbacked: int
    apart: frozenset[int] = frozenset()


Choice = Callable[[Node], bool]
"""Which nodes are set apart."""


def _none(node: Node) -> bool:
    return False


def partition(graph: Graph, apart: Choice = _none) -> FlowChart:
    """The flow of a CORE graph with control, or with nodes that are set apart."""
    bound = list(
        dict.fromkeys(s for value in graph.inputs for dim in value.type.shape for s in dimension.symbols_of(dim))
    )
    given = [symbol for symbol in dict.fromkeys(_all_symbols(graph)) if symbol not in bound]
    cutter = _Cutter(graph.name, [*bound, *given], apart)
    inputs = {value: cutter.slot(value, None) for value in graph.inputs}
    steps, results = cutter.cut(graph, inputs)
    return FlowChart(
        tuple(cutter.slots), _with_drops(steps, cutter.owner, None, frozenset(results)), tuple(results),
        tuple(cutter.blocks), tuple(cutter.symbols), len(given), frozenset(cutter.separate),
    )  # fmt: skip


def set_apart(chart: FlowChart, blocks: Sequence[Graph], apart: Choice) -> FlowChart:
    """The flow with `blocks` for its own, each cut where it has nodes that are set apart."""
    slots = list(chart.slots)
    made: list[Graph] = []
    separate: set[int] = set()
    pieces: list[tuple[FlowChart, int] | int] = []  # of each block: how it was cut, and the number of its first piece
    for block in blocks:
        if not any(map(apart, block.nodes)):
            pieces.append(len(made))
            made.append(block)
            continue
        cutter = _Cutter(block.name, list(block.environment or ()), apart)
        steps, results = cutter.cut(block, {value: cutter.slot(value, None) for value in block.inputs})
        inner = FlowChart(
            tuple(cutter.slots), tuple(steps), tuple(results), tuple(cutter.blocks), tuple(cutter.symbols), 0
        )
        pieces.append((inner, len(made)))
        separate.update(len(made) + number for number in cutter.separate)
        made.extend(cutter.blocks)

    def rewritten(steps: Sequence[FlowStep]) -> Iterator[FlowStep]:
        for step in steps:
            if step.op != FlowOp.CALL:
                yield replace(step, bodies=tuple(tuple(rewritten(body)) for body in step.bodies))
                continue
            piece = pieces[step.block]
            if isinstance(piece, int):
                yield replace(step, block=piece)
            else:
                yield from _in_pieces(step, *piece, slots)

    rewritten_steps = tuple(rewritten(chart.steps))
    return replace(chart, slots=tuple(slots), steps=rewritten_steps, blocks=tuple(made), apart=frozenset(separate))


def _in_pieces(call: FlowStep, inner: FlowChart, first: int, slots: list[Value]) -> Iterator[FlowStep]:
    """The steps that do what a call did: those of `inner`, whose blocks begin at number `first`. Appends to `slots`."""
    number_of = dict(enumerate(call.inputs))
    moves: list[tuple[int, int]] = []  # results that are no tensor of their own
    for result, slot in zip(inner.results, call.outputs, strict=True):
        if result in number_of:
            moves.append((number_of[result], slot))
        else:
            number_of[result] = slot
    outside = len(slots)
    for number, value in enumerate(inner.slots):
        if number not in number_of:
            number_of[number] = len(slots)
            slots.append(value)
    steps = [
        replace(
            step, block=first + step.block, where=step.where or call.where,
            inputs=tuple(number_of[n] for n in step.inputs), outputs=tuple(number_of[n] for n in step.outputs),
        )
        for step in inner.steps
    ]  # fmt: skip
    if moves:
        sources, targets = zip(*moves, strict=True)
        steps.append(FlowStep(FlowOp.MOVE, sources, targets, where=call.where))
    left = set(call.drops)
    region: list[Graph | None] = [None] * len(slots)
    kept = frozenset(range(outside)) - left
    for step in (held := _with_drops(steps, region, None, kept)):
        left -= set(step.drops)
    yield from held[:-1]
    yield replace(held[-1], drops=(*held[-1].drops, *sorted(left)))


def _all_symbols(graph: Graph) -> Iterator[Symbol]:
    yield from graph.symbols
    for node in graph.nodes:
        for region in node.regions:
            yield from _all_symbols(region)


@dataclass
class _Stage:
    """The nodes of one block, and what follows it: decisions, and nodes that are set apart."""

    nodes: list[Node] = field(default_factory=list)
    decisions: list[Node] = field(default_factory=list)


class _Cutter:
    def __init__(self, name: str, symbols: list[Symbol], apart: Choice) -> None:
        self.name = name
        self.apart = apart
        self.symbols = symbols
        self.number = {symbol: number for number, symbol in enumerate(symbols)}
        self.slots: list[Value] = []
        self.owner: list[Graph | None] = []  # the region in whose steps the slot is made; None: the outermost
        self.blocks: list[Graph] = []
        self.separate: set[int] = set()  # the blocks of nodes that are set apart
        self.region: Graph | None = None
        self.bound: set[Symbol] = set()  # what a step before this one gives its value

    def slot(self, value: Value, owner: Graph | None) -> int:
        """A new slot for a tensor of the value's type."""
        self.slots.append(value)
        self.owner.append(owner)
        return len(self.slots) - 1

    def cut(self, graph: Graph, slot_of: dict[Value, int]) -> tuple[list[FlowStep], list[int]]:
        """The steps of a graph whose inputs lie in slots, and the slots of its outputs."""
        graph = _with_copies(graph)
        stages = _stages(graph, self.apart)
        needed = _values_between(graph, stages, self.apart)
        steps: list[FlowStep] = []
        for stage in stages:
            if stage.nodes:
                steps.append(self._call(graph, stage.nodes, needed, slot_of))
            for separate, nodes in groupby(stage.decisions, self.apart):
                if separate:
                    self.separate.add(len(self.blocks))
                    steps.append(self._call(graph, list(nodes), needed, slot_of))
                    continue
                for node in nodes:
                    steps.extend(self._decision(node, slot_of))
        return steps, [slot_of[value] for value in graph.outputs]

    def _call(
        self, graph: Graph, nodes: Sequence[Node], needed: frozenset[Value], slot_of: dict[Value, int]
    ) -> FlowStep:
        made = {value for node in nodes for value in node.outputs}
        read = dict.fromkeys(value for node in nodes for value in node.operands if value not in made)
        inputs = tuple(value for value in read if value not in graph.consts)
        outputs = tuple(value for node in nodes for value in node.outputs if value in needed)
        consts: Mapping[Value, Const] = {value: graph.consts[value] for value in read if value in graph.consts}
        name = f"{self.name}.{len(self.blocks)}"
        block = Graph(name, inputs, consts, tuple(nodes), outputs)
        block = replace(block, environment=tuple(s for s in self.symbols if s in set(block.symbols)))
        for value in outputs:
            slot_of[value] = self.slot(value, self.region)
        self.blocks.append(block)
        numbers = tuple(slot_of[value] for value in inputs), tuple(slot_of[value] for value in outputs)
        return FlowStep(FlowOp.CALL, *numbers, block=len(self.blocks) - 1, where=_where(nodes[0]))

    def _decision(self, node: Node, slot_of: dict[Value, int]) -> Iterator[FlowStep]:
        where = _where(node)
        if node.op == "claim":
            left, right, exact = node.attrs["left"], node.attrs["right"], node.attrs["exact"]
            yield FlowStep(FlowOp.CHECK, dims=(_dim(left), _dim(right)), exact=bool(exact), where=where)
        elif node.op == "read":
            yield self._read(node, slot_of[node.operands[0]], where)
        elif node.op == "alias":
            slot_of[node.output] = self.slot(node.output, self.region)
            numbers = (slot_of[node.operands[0]],), (slot_of[node.output],)
            yield FlowStep(FlowOp.ALIAS, *numbers, exact=bool(node.attrs["exact"]), where=where)
        elif node.op == "cond":
            yield from self._cond(node, slot_of, where)
        else:
            yield from self._loop(node, slot_of, where)

    def _read(self, node: Node, slot: int, where: str) -> FlowStep:
        dim, element = _dim(node.attrs["dim"]), node.attrs["element"]
        assert isinstance(element, int)
        symbol = data_symbol(dim)
        if symbol is None or symbol in self.bound:
            is_assertion = bool(node.attrs.get("assertion"))
            where = ", ".join(node.locs) if is_assertion else where
            return FlowStep(FlowOp.READ, (slot,), element=element, dims=(dim,), exact=is_assertion, where=where)
        self.bound.add(symbol)
        numbers = (self.number[symbol],)
        clamp = bool(node.attrs["clamp"])
        return FlowStep(FlowOp.READ, (slot,), element=element, symbols=numbers, clamp=clamp, where=where)

    def _match(self, value: Value, slot: int, where: str) -> Iterator[FlowStep]:
        """Gives the symbols among a slot's extents their values, and checks the other extents."""
        numbers = []
        for extent in value.type.shape:
            symbol = data_symbol(extent)
            numbers.append(-1 if symbol is None or symbol in self.bound else self.number[symbol])
            if symbol is not None:
                self.bound.add(symbol)
        if any(not isinstance(extent, int) for extent in value.type.shape):
            yield FlowStep(FlowOp.MATCH, (slot,), symbols=tuple(numbers), where=where)

    def _empty(self, value: Value) -> Value:
        """What a stacked result is before the first iteration: extents that nothing has given yet are 0."""

        def known(extent: Dim) -> bool:
            return all(symbol.origin == "input" or symbol in self.bound for symbol in dimension.symbols_of(extent))

        shape = tuple(extent if known(extent) else 0 for extent in value.type.shape)
        return Value(TensorType(value.type.dtype, shape), value.name)

    def _inside(self, region: Graph, inputs: dict[Value, int]) -> tuple[list[FlowStep], list[int]]:
        outside, self.region = self.region, region
        try:
            return self.cut(region, inputs)
        finally:
            self.region = outside

    def _cond(self, node: Node, slot_of: dict[Value, int], where: str) -> Iterator[FlowStep]:
        condition, *captures = cond_parts(node)
        results = tuple(self.slot(value, self.region) for value in node.outputs)
        bodies = []
        for region, captured in zip(node.regions, captures, strict=True):
            inputs = {inner: slot_of[outer] for inner, outer in zip(region.inputs, captured, strict=True)}
            steps, made = self._inside(region, inputs)
            steps.append(FlowStep(FlowOp.MOVE, tuple(made), results, where=where))
            bodies.append(_with_drops(steps, self.owner, region, frozenset()))
        yield FlowStep(FlowOp.IF, (slot_of[condition],), bodies=tuple(bodies), where=where)
        for value, slot in zip(node.outputs, results, strict=True):
            slot_of[value] = slot
            yield from self._match(value, slot, where)

    def _loop(self, node: Node, slot_of: dict[Value, int], where: str) -> Iterator[FlowStep]:
        trips, condition, initial, captures = loop_parts(node)
        (body,) = node.regions
        count = len(initial)
        conditional = condition is not None
        iteration = self.slot(body.inputs[0], self.region)
        held = [self.slot(value, self.region) for value in body.inputs[1 : 1 + count]]
        if condition is not None:
            held.insert(0, self.slot(body.outputs[0], self.region))
        start = [slot_of[value] for value in ((condition,) if condition is not None else ()) + initial]
        yield FlowStep(FlowOp.MOVE, tuple(start), tuple(held), where=where)
        stacked = [self.slot(self._empty(value), self.region) for value in node.outputs[count:]]
        for slot in stacked:
            yield FlowStep(FlowOp.CLEAR, outputs=(slot,), where=where)
        inputs = {body.inputs[0]: iteration, **dict(zip(body.inputs[1 : 1 + count], held[conditional:], strict=True))}
        inputs |= {inner: slot_of[outer] for inner, outer in zip(body.inputs[1 + count :], captures, strict=True)}
        steps: list[FlowStep] = []
        for value in body.inputs[1 : 1 + count]:
            steps.extend(self._match(value, inputs[value], where))
        inner, made = self._inside(body, inputs)
        steps.extend(inner)
        for slot, value_slot in zip(stacked, made[count + conditional :], strict=True):
            steps.append(FlowStep(FlowOp.APPEND, (value_slot,), (slot,), where=where))
        steps.append(FlowStep(FlowOp.MOVE, tuple(made[: count + conditional]), tuple(held), where=where))
        bodies = (_with_drops(steps, self.owner, body, frozenset()),)
        control = (-1 if trips is None else slot_of[trips], held[0] if conditional else -1)
        yield FlowStep(FlowOp.LOOP, control, (iteration,), bodies=bodies, where=where)
        results = [self.slot(value, self.region) for value in node.outputs]
        yield FlowStep(FlowOp.MOVE, (*held[conditional:], *stacked), tuple(results), where=where)
        for value, slot in zip(node.outputs, results, strict=True):
            slot_of[value] = slot
            yield from self._match(value, slot, where)


def _dim(attr: object) -> Dim:
    assert isinstance(attr, int | dimension.DimExpr)
    return attr


def _where(node: Node) -> str:
    return ", ".join(node.locs[:3]) or node.op


def _with_copies(graph: Graph) -> Graph:
    """The graph, with a node that makes each constant that a decision or the caller takes: it needs a slot."""
    taken = [value for node in graph.nodes if node.op in CONTROL for value in node.operands]
    wanted = dict.fromkeys(value for value in (*taken, *graph.outputs) if value in graph.consts)
    if not wanted:
        return graph
    made = {value: Value(value.type, value.name) for value in wanted}
    copies = [Node("copy", (value,), (made[value],)) for value in wanted]
    nodes = [
        replace(node, inputs=tuple(made.get(v, v) if v is not None else None for v in node.inputs))
        if node.op in CONTROL
        else node
        for node in graph.nodes
    ]
    outputs = tuple(made.get(value, value) for value in graph.outputs)
    return graph.with_(nodes=(*copies, *nodes), outputs=outputs)


def _stages(graph: Graph, apart: Choice) -> list[_Stage]:
    """The nodes by the number of decisions that must come first. Stage 0 holds only decisions on inputs.

    A node that is set apart counts as a decision.
    """
    for_nodes: dict[Value, int] = dict.fromkeys(graph.inputs, 1)  # the first block that may read it
    for_decisions: dict[Value, int] = dict.fromkeys(graph.inputs, 0)
    known_from: dict[Symbol, int] = {}
    stages: list[_Stage] = []

    def at(number: int) -> _Stage:
        while len(stages) <= number:
            stages.append(_Stage())
        return stages[number]

    for node in graph.nodes:
        operands = [value for value in node.operands if value not in graph.consts]
        decides = node.op in CONTROL or apart(node)
        given = set(symbols_given(node)) - set(known_from)
        sizes = [known_from.get(symbol, 0) for symbol in _symbols_of(node) if symbol not in given]
        if decides:
            stage = max([0, *(for_decisions[value] for value in operands), *(size - 1 for size in sizes)])
            at(stage).decisions.append(node)
            for symbol in given:
                known_from[symbol] = stage + 1
            if node.op == "claim":  # nothing that relies on it may come first
                for symbol in _symbols_of(node):
                    known_from[symbol] = max(known_from.get(symbol, 0), stage + 1)
        else:
            stage = max([1, *(for_nodes[value] for value in operands), *sizes])
            at(stage).nodes.append(node)
        for value in node.outputs:
            for_nodes[value] = stage + 1 if decides else stage
            for_decisions[value] = stage
    return stages


def _symbols_of(node: Node) -> Iterable[Symbol]:
    """The symbols that must have values before the node can run, those of nested regions too."""
    found = dict.fromkeys(s for attr in node.attrs.values() for s in attr_symbols(attr))
    for value in node.outputs:
        found |= dict.fromkeys(s for dim in value.type.shape for s in dimension.symbols_of(dim))
    inner: set[Symbol] = set()
    for region in node.regions:
        found |= dict.fromkeys(_all_symbols(region))
        inner.update(_given_inside(region))
    return [symbol for symbol in found if symbol not in inner]


def _given_inside(region: Graph) -> Iterator[Symbol]:
    """The symbols that a region, or what it carries from one iteration to the next, gives a value."""
    for value in region.inputs:
        for extent in value.type.shape:
            symbol = data_symbol(extent)
            if symbol is not None:
                yield symbol
    for node in region.nodes:
        yield from symbols_given(node)
        for inner in node.regions:
            yield from _given_inside(inner)


def _values_between(graph: Graph, stages: Sequence[_Stage], apart: Choice) -> frozenset[Value]:
    """The values that another block, a decision or the caller reads."""
    needed = set(graph.outputs)
    groups: list[Sequence[Node]] = []
    for stage in stages:
        groups.append(stage.nodes)
        for separate, nodes in groupby(stage.decisions, apart):
            if separate:
                groups.append(list(nodes))
            else:
                needed.update(value for node in nodes for value in node.operands)
    block_of = {value: number for number, group in enumerate(groups) for node in group for value in node.outputs}
    for number, group in enumerate(groups):
        needed.update(value for node in group for value in node.operands if block_of.get(value, number) != number)
    return frozenset(needed)


def _with_drops(
    steps: Sequence[FlowStep], owner: Sequence[Graph | None], region: Graph | None, kept: frozenset[int]
) -> tuple[FlowStep, ...]:
    """The steps, each naming the slots of this region that it is the last to use."""
    seen: set[int] = set()
    result: list[FlowStep] = []
    for step in reversed(steps):
        used = dict.fromkeys(number for number in _slots_of(step) if number >= 0)
        last = tuple(n for n in used if n not in seen and n not in kept and owner[n] is region)
        seen.update(used)
        result.append(replace(step, drops=last) if last else step)
    return tuple(reversed(result))


def _slots_of(step: FlowStep) -> Iterator[int]:
    yield from step.inputs
    yield from step.outputs
    for body in step.bodies:
        for inner in body:
            yield from _slots_of(inner)
