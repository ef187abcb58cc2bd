"""Orders the nodes of a FUSED graph so that fewer bytes are live at once.

Beam search over topological orders: a state is a set of nodes already run, with the bytes live now and the peak so far.
The given order is kept unless the search finds a smaller peak. Sizes of symbolic tensors are taken at a
typical value, so the choice is good there and merely legal elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aot.dims import typical
from aot.ir import Graph, Level, Value
from aot.passes import Context, transform
from aot.storage import slots
from aot.transforms.state import state_edges

_BEAM = 16
_MAX_UNITS = 1500
"""Above this many nodes the beam would take seconds; the given order stays."""


@transform(takes=Level.FUSED, gives=Level.FUSED)
def order(graph: Graph, context: Context) -> Graph:
    """The graph with its nodes in the order of smallest peak that a beam search finds."""
    units = _Units(graph)
    given = list(range(len(graph.nodes)))
    if len(given) > _MAX_UNITS or len(given) < 3:
        return graph
    best_peak, best = units.peak(given), given
    found = units.search(_BEAM)
    if found is not None and units.peak(found) < best_peak:
        best = found
    if best is given or not context.allow("order"):
        return graph
    return graph.with_(nodes=tuple(graph.nodes[number] for number in best))


@dataclass(frozen=True, slots=True)
class _State:
    """A partial order: what ran, in which sequence, live bytes and peak."""

    done: frozenset[int]
    sequence: tuple[int, ...]
    live_bytes: int
    peak_bytes: int


class _Units:
    """Nodes as numbers: what each defines and reads, in storages."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        place = slots(graph)
        outputs = {place[value].root for value in graph.outputs}
        fixed = {place[value].root for value in (*graph.inputs, *graph.consts)} | outputs
        self.size: dict[Value, int] = {}
        self.writes: list[set[Value]] = []
        self.reads: list[set[Value]] = []
        made: dict[Value, int] = {}
        for number, node in enumerate(graph.nodes):
            for value in node.outputs:
                made[value] = number
        self.needs: list[set[int]] = []
        for node in graph.nodes:
            roots = {place[value].root for value in node.outputs} if node.op == "kernel" else set()
            self.writes.append(roots - fixed)
            self.reads.append({place[value].root for value in node.operands} - fixed)
            self.needs.append({made[value] for value in node.operands if value in made})
            for root in roots - fixed:
                self.size[root] = typical(root.type.storage_bytes)
        for reader, writer in state_edges(graph):
            self.needs[writer].add(reader)
        self.touching: dict[Value, set[int]] = {}
        for number in range(len(graph.nodes)):
            for root in self.writes[number] | self.reads[number]:
                self.touching.setdefault(root, set()).add(number)
        self.readers: list[list[int]] = [[] for _ in graph.nodes]
        for number, needs in enumerate(self.needs):
            for need in needs:
                self.readers[need].append(number)

    def step(self, state: _State, number: int) -> _State:
        done = state.done | {number}
        born = sum(self.size[r] for r in self.writes[number] if not (self.touching[r] & state.done))
        live = state.live_bytes + born
        peak = max(state.peak_bytes, live)
        live -= sum(self.size[r] for r in self.writes[number] | self.reads[number] if self.touching[r] <= done)
        return _State(done, (*state.sequence, number), live, peak)

    def peak(self, sequence: Sequence[int]) -> int:
        state = _State(frozenset(), (), 0, 0)
        for number in sequence:
            state = self.step(state, number)
        return state.peak_bytes

    def search(self, beam: int) -> list[int] | None:
        states = [_State(frozenset(), (), 0, 0)]
        for _ in range(len(self.graph.nodes)):
            following: dict[frozenset[int], _State] = {}
            for state in states:
                for number in self._ready(state):
                    candidate = self.step(state, number)
                    known = following.get(candidate.done)
                    if known is None or _rank(candidate) < _rank(known):
                        following[candidate.done] = candidate
            states = sorted(following.values(), key=_rank)[:beam]
            if not states:
                return None
        return list(states[0].sequence)

    def _ready(self, state: _State) -> list[int]:
        """Runnable nodes. One that only views, or that frees more than it makes, is run at once, alone."""
        ready = [n for n in range(len(self.needs)) if n not in state.done and self.needs[n] <= state.done]
        for number in ready:
            if not self.writes[number]:
                return [number]
        return ready[:24]


def _rank(state: _State) -> tuple[int, int, tuple[int, ...]]:
    return (state.peak_bytes, state.live_bytes, state.sequence)
