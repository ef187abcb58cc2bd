"""State: the inputs that an output may overwrite, and the order of kernels that makes it right.

A caller may give one piece of memory for both sides of a state pair, and then the output is written over the
input; with two pieces, the kernel that writes copies first. So every kernel that reads the input must have run
before one writes the output, but for those that read only the places that they write.
`settle_state` orders the kernels so. Where no order does, a changed buffer or input is computed aside and copied
last. It also offers pairs that nobody asked for: an output that is an input with some elements replaced, such
as a cache that `forward` returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from aot.expr import walk
from aot.ir import ROW_MAJOR, Graph, Level, Node, Value, sorted_nodes
from aot.kernel import AttendRoot, ContractRoot, Kernel, OwnedRoot, ScanRoot, WindowRoot
from aot.lower import lower
from aot.ops import Kind
from aot.passes import Context, transform
from aot.storage import Slot, slots

Pair = tuple[Value, Value]
Edge = tuple[int, int]


@transform(takes=Level.FUSED, gives=Level.FUSED, rules=("state",))
def settle_state(graph: Graph, context: Context) -> Graph:
    """The graph with every safe state pair, in an order in which inputs are read before they are overwritten."""
    declared = graph.state
    taken = {value for pair in declared for value in pair}
    settled: list[Pair] = []
    edges: list[Edge] = []
    result = graph
    for kept, new in (*declared, *_offers(graph, taken)):
        is_declared = (kept, new) in declared
        faults, found = _examine(result, (kept, new))
        if not faults and sorted_nodes(result.nodes, [*edges, *found]) is None:
            faults = "what reads the input needs the output first"
        if not is_declared and (faults or not context.allow("state", new.name)):
            context.refuse("state", f"output {new.name}", faults or "stopped by --bisect")
            continue
        if faults:
            result, new = _copied_last(result, new)
            _, found = _examine(result, (kept, new))
        settled.append((kept, new))
        edges.extend(found)
    if tuple(settled) == declared and not edges:
        return result
    nodes = sorted_nodes(result.nodes, edges)
    assert nodes is not None  # a copy is read by nobody, so its edges close no circle
    if tuple(settled) == declared and nodes == result.nodes:
        return result
    return result.with_(state=tuple(settled), nodes=nodes)


def state_edges(graph: Graph) -> list[Edge]:
    """(reader, writer) for each state pair: positions of nodes of which the first must run before the second."""
    return [edge for pair in graph.state for edge in _examine(graph, pair)[1]]


def scatter_data(node: Node) -> Value | None:
    """What a kernel that replaces elements replaces them in; None for other nodes."""
    if node.op != "kernel" or node.attrs["kind"] != Kind.SCATTER.value:
        return None
    (body,) = node.regions
    data = body.nodes[0].inputs[0]
    return next((out for out, inner in zip(node.operands, body.inputs, strict=True) if inner is data), None)


def written_chain(graph: Graph, place: Mapping[Value, Slot], new: Value) -> list[Value]:
    """The storages, last first, that are one after another the value with more elements replaced.

    The first is that of `new`; the last may be an input. They can all lie in the same bytes.
    """
    chain = [place[new].root]
    while True:
        node = graph.producer.get(chain[-1])
        data = scatter_data(node) if node is not None else None
        if data is None or place[data].root.type.elements != data.type.elements or place[data].root.type.layout:
            return chain
        chain.append(place[data].root)


def _offers(graph: Graph, taken: set[Value]) -> list[Pair]:
    """Outputs that are an input with elements replaced, of inputs and outputs that are in no pair."""
    place = slots(graph)
    found: list[Pair] = []
    for new in graph.outputs:
        base = written_chain(graph, place, new)[-1]
        if base in graph.inputs and base is not new and base.type == new.type and not {base, new} & taken:
            found.append((base, new))
            taken |= {base, new}
    return found


def _examine(graph: Graph, pair: Pair) -> tuple[str, list[Edge]]:
    """Why the output cannot be written over the input in any order, or ""; and the order that it takes."""
    kept, new = pair
    place = slots(graph)
    chain = set(written_chain(graph, place, new)) - {*graph.inputs, *graph.consts}
    writers = [
        number
        for number, node in enumerate(graph.nodes)
        if node.op == "kernel" and any(place[value].root in chain for value in node.outputs)
    ]
    readers = [
        number
        for number, node in enumerate(graph.nodes)
        if node.op == "kernel" and any(place[value].root is kept for value in node.operands)
    ]
    for number in set(readers) & set(writers):
        if not _keeps_places(graph, place, graph.nodes[number], kept, chain):
            return f"{graph.nodes[number].where} reads the input at other places than it writes", []
    both = set(writers)
    return "", [(reader, writer) for reader in readers if reader not in both for writer in writers]


def _keeps_places(graph: Graph, place: Mapping[Value, Slot], node: Node, kept: Value, chain: Iterable[Value]) -> bool:
    """Whether a kernel reads each element of the input only where, and no later than when, it writes its place."""
    kernel = lower(node, lambda value: value in graph.consts)
    targets = [number for number, value in enumerate(node.outputs) if place[value].root in chain]
    sources = [number for number, value in enumerate(node.operands) if place[value].root is kept]
    if len(targets) != 1 or len(sources) != 1:
        return False
    source, target = node.operands[sources[0]], node.outputs[targets[0]]
    if source.type != target.type or place[source].element0 != 0 or place[target].element0 != 0:
        return False
    return reads_where_it_writes(kernel, sources[0], targets[0])


def reads_where_it_writes(kernel: Kernel, operand: int, output: int = 0) -> bool:
    """Whether every element of the operand is read only by the point, or the row, that writes its place in the output.

    The two have one type.
    """
    roots = kernel.root
    if isinstance(roots, WindowRoot) and operand in (roots.x, roots.w):
        return False
    if isinstance(roots, AttendRoot) and operand in (roots.q, roots.k, roots.v):
        return False
    if isinstance(roots, OwnedRoot):  # a scatter changes elements of its data; the rest stays as it is
        return kernel.kind is Kind.SCATTER and operand == roots.operands[0]
    in_root = []
    if isinstance(roots, ContractRoot):
        in_root = [roots.a, *roots.rights]
    elif isinstance(roots, ScanRoot):
        in_root = [roots.value]
    elif isinstance(roots, AttendRoot) and roots.mask is not None:
        in_root = [roots.mask]
    if any(node.op == "load" and node.payload == operand for root in in_root for node in walk(root)):
        return False
    places = [store for store in kernel.stores if store.output == output]
    if len(places) != 1:
        return False
    target, has_written = places[0].indices, False
    for store in kernel.stores:
        for node in walk(store.value):
            if node.op == "load" and node.payload == operand and (has_written or node.args != target):
                return False
            if node.op == "reduce" and any(n.op == "load" and n.payload == operand for n in walk(node)):
                return False
        has_written = has_written or store is places[0]
    return True


def _copied_last(graph: Graph, new: Value) -> tuple[Graph, Value]:
    """The graph whose output is a copy of `new`, made by a kernel of its own."""
    last = Value(new.type, new.name)
    inside, outside = (Value(new.type.with_layout(ROW_MAJOR), new.name) for _ in range(2))
    locs = graph.producer[new].locs if new in graph.producer else ()
    names = {str(node.attrs["name"]) for node in graph.nodes if node.op == "kernel"}
    name = next(text for text in _names("map_state") if text not in names)
    body = Graph(name, (inside,), {}, (Node("copy", (inside,), (outside,), locs=locs),), (outside,))
    attrs = MappingProxyType({"kind": Kind.MAP.value, "name": name})
    node = Node("kernel", (new,), (last,), attrs, locs, (body,))
    outputs = tuple(last if value is new else value for value in graph.outputs)
    state = tuple((kept, last if value is new else value) for kept, value in graph.state)
    return graph.with_(nodes=(*graph.nodes, node), outputs=outputs, state=state), last


def _names(base: str) -> Iterable[str]:
    yield base
    number = 2
    while True:
        yield f"{base}_{number}"
        number += 1
