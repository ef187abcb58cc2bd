"""Final layouts, in-place writes, and the offsets of buffers.

`finish_layouts` gives every part of a concatenation the strides of the whole and every view its final
type. `reuse_in_place` lets a kernel write over an operand that dies there. Both state what they decided
in the graph, so `aot/storage.py` and the checkers read it from there. `place_buffers` then gives every
storage its bytes: the caller's tensors, constants, or offsets in the arena.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from aot import dims as dimension
from aot.errors import CompilerError
from aot.ir import Graph, Layout, Level, Node, TensorType, Value
from aot.kernel import Kernel
from aot.lower import lower
from aot.offsets import Block, check, check_symbolic, place, place_symbolic
from aot.passes import Context, transform
from aot.program import Buffer, Space
from aot.storage import Slot, concat_parts, slots
from aot.transforms.state import reads_where_it_writes, scatter_data, written_chain
from aot.views import view_of

ALIGNMENT_BYTES = 64


@transform(takes=Level.FUSED, gives=Level.ORDERED)
def finish_layouts(graph: Graph, context: Context) -> Graph:
    """The graph with the final layout in every type; node order is final."""
    parts = concat_parts(graph)
    producer = graph.producer
    types: dict[Value, TensorType] = {}

    def final(value: Value) -> TensorType:
        if value in types:
            return types[value]
        part = parts.get(value)
        type_ = value.type
        if part is not None:
            whole = final(part.whole)
            halo = list(whole.halo)
            before, after = halo[part.axis]
            # Inside the whole, a neighbour lies where the halo would be: only the ends have one.
            halo[part.axis] = (before if part.is_first else 0, after if part.is_last else 0)
            has_halo = any(b or a for b, a in halo)
            order = whole.layout.order
            fill = whole.layout.fill if has_halo else 0
            layout = Layout(order=order, halo=tuple(halo) if has_halo else (), strides=whole.strides, fill=fill)
            type_ = type_.with_layout(layout)
        else:
            node = producer.get(value)
            if node is not None and node.op not in ("kernel", "concat"):
                view = view_of(node, final(node.operands[0]))
                if view is None:
                    raise CompilerError("a view that would have to move bytes", where=node.where)
                type_ = view.type
        types[value] = type_
        return type_

    renamed: dict[Value, Value] = {}
    for value in graph.values():
        type_ = final(value)
        if type_ != value.type:
            renamed[value] = Value(type_, value.name)
    return _renamed(graph, renamed).with_(level=Level.ORDERED)


def _renamed(graph: Graph, renamed: Mapping[Value, Value]) -> Graph:
    if not renamed:
        return graph
    nodes = tuple(
        replace(
            node,
            inputs=tuple(renamed.get(v, v) if v is not None else None for v in node.inputs),
            outputs=tuple(renamed.get(v, v) for v in node.outputs),
        )
        for node in graph.nodes
    )
    outputs = tuple(renamed.get(v, v) for v in graph.outputs)
    return graph.with_(nodes=nodes, outputs=outputs)


@transform(takes=Level.ORDERED, gives=Level.ORDERED, rules=("in_place",))
def reuse_in_place(graph: Graph, context: Context) -> Graph:
    """Marks kernels whose first output may take the bytes of an operand that nobody reads later."""
    place_of = dict(slots(graph))
    last_use = last_uses(graph, place_of)
    outputs = {place_of[value].root for value in graph.outputs}
    # Values that only have elements replaced until they are an output can lie there from the first on. They are no
    # other value's bytes: those would be written before the caller's input is read.
    becoming = {root for value in graph.outputs for root in written_chain(graph, place_of, value)} - {*graph.inputs}
    fixed = set(graph.inputs) | set(graph.consts)
    merged: dict[Value, Value] = {}  # root -> the root it was merged into
    nodes: list[Node] = []

    def root_of(value: Value) -> Value:
        root = place_of[value].root
        while root in merged:
            root = merged[root]
        return root

    last_of_root: dict[Value, int] = dict(last_use)
    for position, node in enumerate(graph.nodes):
        data = scatter_data(node)
        is_becoming = bool(node.outputs) and node.outputs[0] in becoming
        if (
            node.op != "kernel"
            or place_of[node.outputs[0]].root is not node.outputs[0]
            or (is_becoming and (data is None or place_of[data].root not in becoming))
        ):
            nodes.append(node)
            continue
        out = node.outputs[0]
        chosen = -1
        kernel: Kernel | None = None
        for number, operand in enumerate(node.operands):
            root = root_of(operand)
            if root in fixed or root in outputs or last_of_root.get(root, -1) != position or root is out:
                continue
            whole = operand.type == out.type and operand.type.storage_bytes == root.type.storage_bytes
            if not whole or sum(root_of(v) is root for v in node.operands) > 1:
                continue
            kernel = kernel or lower(node, lambda value: value in graph.consts)
            if reads_where_it_writes(kernel, number) and context.allow("in_place"):
                chosen = number
                break
        if chosen >= 0:
            root = root_of(node.operands[chosen])
            merged[out] = root
            last_of_root[root] = max(last_of_root.get(out, position), position)
            if out in outputs:
                outputs.add(root)
            node = replace(node, attrs=MappingProxyType({**node.attrs, "in_place": chosen}))
        nodes.append(node)
    return graph.with_(nodes=tuple(nodes)) if merged else graph


def last_uses(graph: Graph, place_of: Mapping[Value, Slot]) -> dict[Value, int]:
    """For each storage, the last position at which a kernel reads or writes it."""
    found: dict[Value, int] = {}
    for position, node in enumerate(graph.nodes):
        if node.op == "kernel":
            for value in (*node.operands, *node.outputs):
                found[place_of[value].root] = position
    return found


@dataclass(frozen=True)
class Plan:
    """Where everything lies. `buffers` is in table order; `number` finds the buffer of a storage root."""

    buffers: tuple[Buffer, ...]
    number: Mapping[Value, int]
    slots: Mapping[Value, Slot]
    peak_bytes: int
    lower_bound_bytes: int
    method: str


def place_buffers(graph: Graph, constants: Mapping[Value, int], node_budget: int) -> Plan:
    """The plan of an ORDERED graph. `constants` numbers the constant values; budgets are in search nodes."""
    place_of = slots(graph)
    kernels = [node for node in graph.nodes if node.op == "kernel"]
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for position, node in enumerate(kernels):
        for value in (*node.operands, *node.outputs):
            root = place_of[value].root
            first.setdefault(root, position)
            last[root] = position
    fixed: dict[Value, tuple[Space, int]] = {value: (Space.INPUT, i) for i, value in enumerate(graph.inputs)}
    fixed.update({value: (Space.CONST, number) for value, number in constants.items()})
    for number, value in enumerate(graph.outputs):
        root = place_of[value].root
        if root in fixed:
            raise CompilerError(f"output {value.name!r} has no storage of its own")
        fixed[root] = (Space.OUTPUT, number)
    # A constant that is not in `constants` is read only in packed forms, which are not placed here.
    arena = [root for root in first if root not in fixed and root not in graph.consts]
    sizes = {root: dimension.ceildiv(root.type.storage_bytes, ALIGNMENT_BYTES) * ALIGNMENT_BYTES for root in arena}
    buffers: list[Buffer] = []
    number_of: dict[Value, int] = {}
    for root, (space, index) in fixed.items():
        if root in first:
            number_of[root] = len(buffers)
            buffers.append(Buffer(space, index, root.type.storage_bytes, 0, (), first[root], last[root], root.name))
    blocks = [Block(first[root], last[root] + 1, sizes[root], root.name) for root in arena]
    base = len(buffers)
    if all(isinstance(size, int) for size in sizes.values()):
        placement = place(blocks, node_budget=node_budget)
        check(blocks, placement.offsets)
        order, offsets = tuple(range(len(arena))), placement.offsets
        below: tuple[tuple[int, ...], ...] = ((),) * len(arena)
        peak, bound, method, proved = (
            placement.peak_bytes,
            placement.lower_bound_bytes,
            placement.method,
            placement.proved,
        )
    else:
        stacked = place_symbolic(blocks, node_budget=node_budget)
        check_symbolic(blocks, stacked.order, stacked.below)
        order, offsets, below = stacked.order, (0,) * len(arena), stacked.below
        peak, bound, method, proved = stacked.peak_bytes, stacked.lower_bound_bytes, stacked.method, stacked.proved
    position_of = {block: base + position for position, block in enumerate(order)}
    for block in order:
        root = arena[block]
        number_of[root] = len(buffers)
        under = tuple(position_of[number] for number in below[block])
        buffers.append(Buffer(Space.ARENA, 0, sizes[root], offsets[block], under, first[root], last[root], root.name))
    method = f"{method}, proved minimal" if proved else method
    return Plan(tuple(buffers), number_of, place_of, peak, bound, method)
