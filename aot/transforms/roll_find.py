"""Finds recurrences that a loop of the model's author left behind when it was unrolled.

The idea is that of rerolling loops in compilers of straight-line code (as LLVM's LoopReroll does for a loop body, and
alignment graphs for whole functions): two instances of one step are walked together from their results backwards, in
lockstep. Nodes that agree in op, attributes and types belong to the step; where the walk of the later instance reaches
what the earlier one has made, a value is carried from step to step; operands that are one value are the same in every
step; all others are what a step is given. What such a pair says is then held against each earlier step.

Candidates come from labels: a label says how a value is computed, a few nodes deep, places of slices and contents of
constants aside, so that instances of one node in all steps have one label.

Invariant: every step of a found chain is the template's, node by node and operand by operand; nothing is guessed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from aot.dtypes import DType
from aot.ir import Attr, Graph, Node, Value

LEAST_STEPS = 4
"""Steps from which on a chain is rolled."""

_DEPTH = 3
_MOST_NODES = 250
_MOST_INSTANCES = 4
"""Instances of one label that a step may have, and the chain still be found by it."""

_MOST_STRAYS = 2
"""Instances behind the last step that may be no part of the chain: steps of others that were not rolled."""


@dataclass(frozen=True)
class Operand:
    """What a node of the step reads: a result of another one (`core`), a `state`, a `given` value, or the `same`."""

    kind: str
    number: int = 0
    result: int = 0
    value: Value | None = None


@dataclass(frozen=True)
class Step:
    """One instance of the step: its nodes in order, the states that it reads, and what it is given."""

    nodes: tuple[Node, ...]
    states: tuple[Value, ...]
    given: tuple[Value, ...]


@dataclass(frozen=True)
class Chain:
    """A recurrence: its steps, the first first, all in the form of the last one.

    `operands` are those of each node. `next_states` are (node, result) that the next step reads as its states.
    """

    operands: tuple[tuple[Operand | None, ...], ...]
    next_states: tuple[tuple[int, int], ...]
    steps: tuple[Step, ...]

    @property
    def template(self) -> Step:
        return self.steps[-1]

    @property
    def where(self) -> str:
        """The last step, in the user's words."""
        node, _ = self.next_states[0]
        return self.template.nodes[node].where


def find_chains(graph: Graph, tried: set[Value]) -> Iterator[Chain]:
    """Chains of at least LEAST_STEPS steps, those of the last nodes first; none has a node that made one of `tried`.

    What is added to `tried` meanwhile counts. A chain of which nothing is added may be one that ends too late: shorter
    ones come next.
    """
    rank = {node: number for number, node in enumerate(graph.nodes)}
    groups = [nodes for nodes in _instances(graph) if len(nodes) >= LEAST_STEPS - 1]
    groups.sort(key=lambda nodes: rank[nodes[-1]], reverse=True)
    group_of = {node: nodes for nodes in groups for node in nodes}
    for nodes in groups:
        left = [node for node in nodes if node.outputs[0] not in tried]
        for end in range(len(left), max(len(left) - _MOST_STRAYS, LEAST_STEPS) - 1, -1):
            yield from _chains_of(graph, rank, left[:end], group_of)
            if left[end - 1].outputs[0] in tried:
                break


def _chains_of(
    graph: Graph, rank: Mapping[Node, int], nodes: Sequence[Node], group_of: Mapping[Node, list[Node]]
) -> Iterator[Chain]:
    """Chains whose last step has the last of some instances."""
    for distance in range(1, min(_MOST_INSTANCES, len(nodes) - 1) + 1):
        earlier = _walk(graph, rank, [(nodes[-1 - distance], nodes[-1])])
        if earlier is None:
            continue
        found = list(_chains(graph, rank, earlier))
        yield from found
        late = _late(earlier, group_of, distance)  # only where those were of no use
        again = _walk(graph, rank, [(nodes[-1 - distance], nodes[-1]), *late]) if late else None
        if again is not None:
            others = list(_chains(graph, rank, again))
            yield from others
            found += others
        if found:
            return


# Labels.


def _attr_key(node: Node) -> object:
    items = [(name, attr) for name, attr in node.attrs.items() if not (node.op == "slice" and name == "starts")]
    return tuple(sorted((name, _plain(attr)) for name, attr in items))


def _plain(attr: Attr) -> str:
    if isinstance(attr, tuple):
        return f"({','.join(map(_plain, attr))})"
    return attr.name if isinstance(attr, DType) else f"{type(attr).__name__}:{attr!r}"


def _instances(graph: Graph) -> Iterable[list[Node]]:
    """Nodes by label, in order."""
    numbers: dict[object, int] = {}

    def number(key: object) -> int:
        return numbers.setdefault(key, len(numbers))

    fixed: dict[Value, int] = {}
    for value in graph.inputs:
        fixed[value] = number(("input", id(value)))
    for value, const in graph.consts.items():
        fixed[value] = number(("const", const.dtype.name, const.shape))
    plain = {
        node: number((node.op, _attr_key(node), tuple((o.type.dtype.name, o.type.shape) for o in node.outputs)))
        for node in graph.nodes
        if not node.regions
    }
    labels = dict(plain)
    for _ in range(_DEPTH):
        labels = {
            node: number((label, tuple(_operand_label(graph, fixed, labels, v) for v in node.inputs)))
            for node, label in plain.items()
        }
    groups: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node in labels:
            groups.setdefault(labels[node], []).append(node)
    return groups.values()


def _operand_label(graph: Graph, fixed: Mapping[Value, int], labels: Mapping[Node, int], value: Value | None) -> object:
    if value is None or value in fixed:
        return None if value is None else fixed[value]
    maker = graph.producer[value]
    return labels.get(maker, id(maker)), maker.outputs.index(value)


# The walk of two instances.


def alike(left: Node, right: Node) -> bool:
    """Whether two nodes do the same to their operands."""
    return (
        left.op == right.op
        and not left.regions
        and not right.regions
        and len(left.inputs) == len(right.inputs)
        and all(a.type == b.type for a, b in zip(left.outputs, right.outputs, strict=True))
        and (left.attrs is right.attrs or _same_attrs(left.attrs, right.attrs))
    )


def _same_attrs(left: Mapping[str, Attr], right: Mapping[str, Attr]) -> bool:
    return left.keys() == right.keys() and all(
        type(left[name]) is type(right[name]) and left[name] == right[name] for name in left
    )


def _late(earlier: Mapping[Node, Node], group_of: Mapping[Node, list[Node]], distance: int) -> list[tuple[Node, Node]]:
    """The last instances of nodes that a walk met twice: it began where a state of two steps before is read."""
    met: dict[int, list[list[Node]]] = {}
    for node in earlier:
        if node in group_of:
            met.setdefault(id(group_of[node]), []).append(group_of[node])
    repeated = [groups[0] for groups in met.values() if len(groups) > 1]
    return [(group[-1 - distance], group[-1]) for group in repeated if len(group) > distance]


def _walk(graph: Graph, rank: Mapping[Node, int], starts: Sequence[tuple[Node, Node]]) -> dict[Node, Node] | None:
    """The nodes on which two instances agree, the earlier one's by the later one's; None where they are too large.

    The later nodes are taken from the last back: so a value's own step is met before the step that reads it again.
    """
    earlier: dict[Node, Node] = {}
    later: dict[Node, Node] = {}
    queue = [(-rank[second], count, first, second) for count, (first, second) in enumerate(starts)]
    heapq.heapify(queue)
    count = len(queue)
    while queue:
        _, _, mine, other = heapq.heappop(queue)
        if other in later or other in earlier or mine in later:
            continue  # carried, or met before; if with another partner, the steps will not agree on it
        earlier[other], later[mine] = mine, other
        if len(earlier) > _MOST_NODES:
            return None
        for a, b in zip(mine.inputs, other.inputs, strict=True):
            maker = graph.producer.get(a) if a is not None else None
            other_maker = graph.producer.get(b) if b is not None else None
            if a is b or maker is None or other_maker is None or not alike(maker, other_maker):
                continue
            count += 1
            heapq.heappush(queue, (-rank[other_maker], count, maker, other_maker))
    return earlier


# From a pair to chains.


def _chains(graph: Graph, rank: Mapping[Node, int], earlier: Mapping[Node, Node]) -> Iterator[Chain]:
    """The recurrences of two instances: one for each set of states that depend on each other."""
    nodes = sorted(earlier, key=rank.__getitem__)
    later = {mine: other for other, mine in earlier.items()}
    states: dict[Value, Value] = {}  # what the later instance reads of the earlier one, and the same of its own
    for node in nodes:
        for value in node.operands:
            maker = graph.producer.get(value)
            if maker in later and maker not in earlier:
                assert maker is not None
                states[value] = later[maker].outputs[maker.outputs.index(value)]
    depends = _dependences(graph, nodes, states)
    for group in _groups(states, depends):
        chain = _extend(graph, nodes, {value: states[value] for value in group})
        if chain is not None:
            yield chain


def _dependences(graph: Graph, nodes: Sequence[Node], states: Mapping[Value, Value]) -> dict[Value, set[Value]]:
    """For each state that is read, the states that its next value depends on."""
    on: dict[Value, set[Value]] = {}
    for node in nodes:
        found: set[Value] = set()
        for value in node.operands:
            found |= {value} if value in states else on.get(value, set())
        for result in node.outputs:
            on[result] = found
    return {value: on.get(following, set()) for value, following in states.items()}


def _groups(states: Mapping[Value, Value], depends: Mapping[Value, set[Value]]) -> list[list[Value]]:
    """States that depend on each other and on themselves, those first that others depend on."""
    reach: dict[Value, set[Value]] = {}
    for value in states:
        seen: set[Value] = set()
        pending = list(depends[value])
        while pending:
            item = pending.pop()
            if item not in seen:
                seen.add(item)
                pending.extend(depends[item])
        reach[value] = seen
    groups: list[list[Value]] = []
    done: set[Value] = set()
    for value in states:
        if value in done or value not in reach[value]:
            continue
        group = [other for other in states if other in reach[value] and value in reach[other]]
        done.update(group)
        groups.append(group)
    return sorted(groups, key=lambda group: len(reach[group[0]]))


def _extend(graph: Graph, nodes: Sequence[Node], states: Mapping[Value, Value]) -> Chain | None:
    """The chain whose last step is in `nodes` and carries `states`; None if it has too few steps."""
    order = list(states)
    place = {value: number for number, value in enumerate(order)}
    core = _core(graph, nodes, states)
    number = {node: position for position, node in enumerate(core)}
    given: dict[Value, int] = {}
    operands: list[list[Operand | None]] = []
    for node in core:
        row: list[Operand | None] = []
        for value in node.inputs:
            maker = graph.producer.get(value) if value is not None else None
            if value is None:
                row.append(None)
            elif value in place:
                row.append(Operand("state", place[value]))
            elif maker in number:
                assert maker is not None
                row.append(Operand("core", number[maker], maker.outputs.index(value)))
            else:
                row.append(Operand("given", given.setdefault(value, len(given))))
        operands.append(row)
    ends = []
    for state in order:
        end = graph.producer[states[state]]
        if end not in number:
            return None
        ends.append((number[end], end.outputs.index(states[state])))
    last = Step(tuple(core), tuple(order), tuple(given))
    shape = _Shape(graph, core, operands, ends)
    steps = [last]
    seen = {node for node in core}
    while True:
        before = shape.before(steps[-1])
        if before is None or any(node in seen for node in before.nodes):
            break
        seen.update(before.nodes)
        steps.append(before)
    if len(steps) < LEAST_STEPS:
        return None
    steps.reverse()
    same = {value for position, value in enumerate(last.given) if all(s.given[position] is value for s in steps)}
    position = {value: n for n, value in enumerate(value for value in last.given if value not in same)}

    def final(operand: Operand | None) -> Operand | None:
        if operand is None or operand.kind != "given":
            return operand
        value = last.given[operand.number]
        return Operand("same", value=value) if value in same else Operand("given", position[value])

    kept = [n for n, value in enumerate(last.given) if value not in same]
    made = tuple(Step(s.nodes, s.states, tuple(s.given[n] for n in kept)) for s in steps)
    return Chain(tuple(tuple(map(final, row)) for row in operands), tuple(ends), made)


def _core(graph: Graph, nodes: Sequence[Node], states: Mapping[Value, Value]) -> list[Node]:
    """The nodes between the states and their next values."""
    depends: set[Value] = set(states)
    for node in nodes:
        if any(value in depends for value in node.operands):
            depends.update(node.outputs)
    needed = set(states.values())
    core: list[Node] = []
    for node in reversed(nodes):
        if any(value in needed for value in node.outputs) and any(value in depends for value in node.operands):
            core.append(node)
            needed.update(value for value in node.operands if value not in states)
    return core[::-1]


class _Shape:
    """What every step must be."""

    def __init__(
        self,
        graph: Graph,
        core: Sequence[Node],
        operands: Sequence[Sequence[Operand | None]],
        ends: Sequence[tuple[int, int]],
    ) -> None:
        self.graph, self.core, self.operands, self.ends = graph, core, operands, ends

    def before(self, step: Step) -> Step | None:
        """The step that made what this one reads as its states; None if there is no such step."""
        nodes: dict[int, Node] = {}
        for (number, result), value in zip(self.ends, step.states, strict=True):
            maker = self.graph.producer.get(value)
            if maker is None or nodes.get(number, maker) is not maker or maker.outputs.index(value) != result:
                return None
            nodes[number] = maker
        states: dict[int, Value] = {}
        given: dict[int, Value] = {}
        for number in reversed(range(len(self.core))):
            node = nodes.get(number)
            if node is None or not alike(node, self.core[number]):
                return None
            inputs = zip(self.operands[number], node.inputs, self.core[number].inputs, strict=True)
            for operand, read, wanted in inputs:
                if operand is None or read is None or wanted is None:
                    if operand is not None or read is not None:
                        return None
                    continue
                if read.type != wanted.type:
                    return None
                if operand.kind == "core":
                    maker = self.graph.producer.get(read)
                    known = nodes.setdefault(operand.number, maker) if maker is not None else None
                    if maker is None or known is not maker or maker.outputs.index(read) != operand.result:
                        return None
                    continue
                table = states if operand.kind == "state" else given
                if table.setdefault(operand.number, read) is not read:
                    return None
        count = len(step.given)
        if len(states) != len(self.ends) or len(given) != count:
            return None
        return Step(
            tuple(nodes[n] for n in range(len(self.core))),
            tuple(states[n] for n in range(len(self.ends))),
            tuple(given[n] for n in range(count)),
        )
