"""Results that steps write into a tensor one after the other, each at its place, as one concat.

A program that fills a tensor in a loop exports as a chain: each link is the tensor before it with one plane put in, by
a `where` under a mask that constants decide, or by a concat of the new plane and the rest of the tensor. Of
planes written twice the last counts. Invariant: planes that no link writes are those of the tensor at its start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from aot.builder import Builder
from aot.dims import Dim
from aot.evaluate import fold_value
from aot.ir import Array, Graph, Node, Value, live
from aot.transforms.roll_find import LEAST_STEPS
from aot.transforms.shapes import as_int, dims_of, emit

_MOST_MASK_BYTES = 1 << 16
_MOST_LEFT = 2  # planes that no link writes: those of the tensor that the chain starts with


@dataclass(frozen=True)
class _Link:
    """A plane of a tensor that is put in: `value` at `index` of `axis`; `before` is the tensor without it."""

    axis: int
    index: int
    value: Value
    before: Value
    reads: int  # how many nodes read `before` for this


def join_places(graph: Graph) -> Graph:
    """Chains of planes put into a tensor become concats of the planes; the very graph where there are none."""
    made: dict[Value, Value] = {}
    inner: set[Value] = set()
    builder = Builder()
    for node in reversed(graph.nodes):
        if node.op not in ("where", "concat") or node.output in inner:
            continue
        links = _chain(graph, node)
        if links is None:
            continue
        inner.update(link.before for link in links)
        axis, shape = links[0].axis, node.output.type.shape
        last = {link.index: link for link in reversed(links)}
        with builder.at(*node.locs):
            planes = []
            for index in range(as_int(shape[axis])):
                start = links[-1].before
                link = last.get(index) or _Link(axis, index, _piece(graph, start, axis, index), start, 0)
                planes.append(_plane(builder, graph, link))
            made[node.output] = emit(builder, "concat", *planes, axis=axis)
    if not made:
        return graph
    return replaced(graph, made, builder)


def _chain(graph: Graph, last: Node) -> list[_Link] | None:
    """The links from the last one back, as far as they go; None where more than _MOST_LEFT planes are not written."""
    links: list[_Link] = []
    node: Node | None = last
    while node is not None:
        link = _link(graph, node)
        if link is None or (links and link.axis != links[0].axis):
            break
        if links and len(graph.users.get(node.output, ())) != links[-1].reads:
            break  # others read it too
        links.append(link)
        node = graph.producer.get(link.before)
    if not links:
        return None
    written, extent = {link.index for link in links}, last.output.type.shape[links[0].axis]
    if not isinstance(extent, int) or len(written) < LEAST_STEPS - 1 or extent - len(written) > _MOST_LEFT:
        return None
    return links


def _piece(graph: Graph, value: Value, axis: int, index: int) -> Value:
    """The operand of a concat that is a plane of it; else the tensor itself."""
    maker = graph.producer.get(value)
    if maker is not None and maker.op == "concat" and as_int(maker.attrs["axis"]) % value.type.rank == axis:
        start: Dim = 0
        for operand in maker.operands:
            if start == index and operand.type.shape[axis] == 1:
                return operand
            start = start + operand.type.shape[axis]
    return value


def _link(graph: Graph, node: Node) -> _Link | None:
    shape = node.output.type.shape
    if node.op == "where":
        condition, value, before = node.operands
        if value.type.rank != len(shape) or before.type.shape != shape:
            return None
        place = _plane_of(graph, condition, shape)
        return None if place is None else _Link(*place, value, before, 1)
    if node.op == "concat" and 2 <= len(node.inputs) <= 3:
        return _joined(graph, node)
    return None


def _joined(graph: Graph, node: Node) -> _Link | None:
    """A concat of a plane and what stood before and behind it."""
    axis = as_int(node.attrs["axis"]) % node.output.type.rank
    shape = node.output.type.shape
    parts: list[tuple[Value, int, int] | None] = []
    start = 0
    for value in node.operands:
        size = value.type.shape[axis]
        if not isinstance(size, int):
            return None
        maker = graph.producer.get(value)
        source = maker.operands[0] if maker is not None and maker.op == "slice" else None
        whole = source is not None and maker is not None and source.type.shape == shape
        if whole and maker is not None and source is not None and len(graph.users.get(value, ())) == 1:
            starts, steps = dims_of(maker.attrs["starts"]), dims_of(maker.attrs["steps"])
            here = starts == tuple(start if a == axis else 0 for a in range(len(shape)))
            parts.append((source, start, size) if here and set(steps) == {1} else None)
        else:
            parts.append(None)
        start += size
    sources = {part[0] for part in parts if part is not None}
    new = [place for place, part in enumerate(parts) if part is None]
    if len(sources) != 1 or len(new) != 1 or node.operands[new[0]].type.shape[axis] != 1:
        return None
    before = [v.type.shape[axis] for v in node.operands[: new[0]]]
    index = sum(size for size in before if isinstance(size, int))
    return _Link(axis, index, node.operands[new[0]], sources.pop(), len(parts) - 1)


def _plane_of(graph: Graph, condition: Value, shape: Sequence[Dim]) -> tuple[int, int] | None:
    """The axis and the one index of it where a condition holds."""
    mask = _known(graph, condition)
    if mask is None or mask.ndim > len(shape):
        return None
    wide = mask.reshape((1,) * (len(shape) - mask.ndim) + mask.shape)
    axes = [axis for axis, extent in enumerate(wide.shape) if extent != 1]
    if len(axes) != 1 or wide.shape[axes[0]] != shape[axes[0]] or int(wide.sum()) != 1:
        return None
    return axes[0], int(np.argmax(wide.reshape(-1)))


def _known(graph: Graph, value: Value, depth: int = 0) -> Array | None:
    """What a value is, where constants alone decide it."""
    if value in graph.consts:
        const = graph.consts[value]
        return const.array() if const.bytes <= _MOST_MASK_BYTES else None
    node = graph.producer.get(value)
    if node is None or depth > 6 or len(node.outputs) != 1 or node.regions:
        return None
    operands = [None if v is None else _known(graph, v, depth + 1) for v in node.inputs]
    if any(a is None and v is not None for a, v in zip(operands, node.inputs, strict=True)):
        return None
    found = fold_value(node, operands)
    return None if found is None else found[0]


def _plane(b: Builder, graph: Graph, link: _Link) -> Value:
    """The plane that a link puts in, read before it is expanded along the axis where it is."""
    value, axis = link.value, link.axis
    shape = value.type.shape
    if shape[axis] == 1:
        return value
    sizes = tuple(1 if a == axis else extent for a, extent in enumerate(shape))
    maker = graph.producer.get(value)
    if maker is not None and maker.op == "expand":
        (source,) = maker.operands
        place = axis - (len(shape) - source.type.rank)
        if place < 0 or source.type.shape[place] == 1:
            return source if source.type.shape == sizes else emit(b, "expand", source, shape=sizes)
    starts = tuple(link.index if a == axis else 0 for a in range(len(shape)))
    return emit(b, "slice", value, starts=starts, sizes=sizes, steps=(1,) * len(shape))


# The graph with other nodes.


def replaced(
    graph: Graph, mapping: Mapping[Value, Value], builder: Builder, results: Mapping[Value, Value] | None = None
) -> Graph:
    """The graph with the values of `mapping` computed by the builder's nodes; outputs stay the values they are.

    `results`: what outputs of the graph are copied from instead.
    """
    sources = {**mapping, **(results or {})}
    named = set(graph.outputs) | {value for _, value in graph.state}
    copies = [Node("copy", (sources[old],), (old,), locs=builder.locs) for old in mapping if old in named]
    nodes = []
    for node in graph.nodes:
        if not any(value in mapping for value in node.outputs):
            taken = sources if node.op == "copy" else mapping
            inputs = tuple(None if v is None else taken.get(v, v) for v in node.inputs)
            nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
    consts = {**graph.consts, **builder.consts}
    return live(graph.with_(nodes=_sorted([*nodes, *builder.nodes, *copies]), consts=consts))


def _sorted(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes in an order in which values are made before they are read, else as they are given."""
    producer = {value: node for node in nodes for value in node.outputs}
    ordered: dict[Node, None] = {}
    for start in nodes:
        stack = [start]
        while stack:
            node = stack[-1]
            missing = [producer[v] for v in node.operands if v in producer and producer[v] not in ordered]
            if node in ordered or not missing:
                stack.pop()
                ordered.setdefault(node)
            else:
                stack.extend(missing)
    return tuple(ordered)
