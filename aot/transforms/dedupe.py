"""Computes equal things once, and drops what no output needs.

Two nodes are equal when op, operands and attributes are; constants when their bytes are. Invariant:
the outputs of the model stay distinct values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aot.dtypes import DType
from aot.ir import Attr, Graph, Level, Node, Value, live, resolve
from aot.ops import OPS
from aot.passes import Context, transform


@transform(takes=Level.CORE, gives=Level.CORE)
def dedupe(graph: Graph, context: Context) -> Graph:
    """Joins equal nodes and constants and drops dead ones."""
    mapping: dict[Value, Value] = {}
    named = set(graph.outputs) | {value for _, value in graph.state}
    first_const: dict[tuple[str, str], Value] = {}
    consts = {}
    for value, const in graph.consts.items():
        known = first_const.setdefault((const.digest, const.dtype.name), value)
        if known is value or value in named:
            consts[value] = const
        else:
            mapping[value] = known
    first_node: dict[object, int] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(resolve(v, mapping) if v is not None else None for v in node.inputs)
        if inputs != node.inputs:
            node = replace(node, inputs=inputs)
        key = _key(node)
        place = first_node.get(key)
        if place is not None and _joins(nodes[place], node, named) and context.allow("dedupe", node.where):
            nodes[place] = _join(nodes[place], node, mapping, named)
            continue
        first_node.setdefault(key, len(nodes))
        nodes.append(node)
    if mapping:
        nodes = [
            replace(n, inputs=tuple(resolve(v, mapping) if v is not None else None for v in n.inputs))
            if any(v in mapping for v in n.operands)
            else n
            for n in nodes
        ]
        graph = graph.with_(nodes=tuple(nodes), consts=consts)
    return live(graph)


def _joins(kept: Node, node: Node, named: set[Value]) -> bool:
    """Whether two equal nodes can be one: of two values that are outputs of the model, both must stay."""
    return all(a not in named or b not in named for a, b in zip(kept.outputs, node.outputs, strict=True))


def _join(kept: Node, node: Node, mapping: dict[Value, Value], named: set[Value]) -> Node:
    outputs = []
    for mine, other in zip(kept.outputs, node.outputs, strict=True):
        if other in named:  # the value that people know stays
            mapping[mine] = other
            outputs.append(other)
        else:
            mapping[other] = mine
            outputs.append(mine)
    return replace(kept, outputs=tuple(outputs), locs=tuple(dict.fromkeys((*kept.locs, *node.locs))))


def _key(node: Node) -> object:
    if node.regions:
        return node
    inputs: tuple[object, ...] = tuple(id(v) for v in node.inputs)
    if node.op in OPS and OPS[node.op].commutative:
        inputs = tuple(sorted(inputs, key=str))
    return (node.op, inputs, tuple((name, _attr_key(attr)) for name, attr in sorted(_items(node.attrs))))


def _items(attrs: Mapping[str, Attr]) -> list[tuple[str, Attr]]:
    return list(attrs.items())


def _attr_key(attr: Attr) -> object:
    """An attribute such that equal keys mean the same: 1, 1.0 and True differ, NaN equals itself."""
    if isinstance(attr, tuple):
        return tuple(map(_attr_key, attr))
    if isinstance(attr, DType):
        return ("dtype", attr.name)
    return (type(attr).__name__, repr(attr))
