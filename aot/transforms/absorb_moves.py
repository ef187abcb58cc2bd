"""Elements that only move are read where they are: for backends whose kernels compute where they read.

A reshape of another memory order needs no copy before it, since a kernel divides its index; and a gather by a table
that turns an axis, as `roll` does, computes the table. Whoever reads the result can then make such a move itself
(fuse); one that nobody takes is a kernel of its own, as the copy would have been. An elementwise op behind a transposed
product has the product's axes, so that it is its epilogue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from aot.builder import Builder
from aot.dtypes import I64
from aot.ir import ROW_MAJOR, Const, Graph, Level, Node, TensorType, Value, live, replaced
from aot.ops import OPS, Kind
from aot.ops.contract import MATMULS
from aot.ops.helpers import int_attr, ints_attr
from aot.passes import Context, transform


@transform(takes=Level.CORE, gives=Level.CORE)
def absorb_moves(graph: Graph, context: Context) -> Graph:
    """Drops copies before reshapes, and computes the tables of gathers that turn an axis."""
    if not context.reads_anywhere:
        return graph
    for step in (_without_copies, _without_tables, _with_views_between, _with_axes_of_products):
        graph = step(graph, context)
    return graph


def _without_copies(graph: Graph, context: Context) -> Graph:
    nodes: list[Node] = []
    for node in graph.nodes:
        copy = graph.producer.get(node.operands[0]) if node.op == "reshape" else None
        if copy is not None and _only_for_reshapes(graph, copy) and context.allow("absorb_moves", node.where):
            locs = tuple(dict.fromkeys((*copy.locs, *node.locs)))
            node = replace(node, op="reshape_copy", inputs=copy.inputs, locs=locs)
        nodes.append(node)
    return live(graph.with_(nodes=tuple(nodes)))


def _only_for_reshapes(graph: Graph, copy: Node) -> bool:
    """Whether a node copies elements into row-major order for nothing but reshapes, which keep that order."""
    return (
        copy.op == "copy"
        and copy.output.type.layout == ROW_MAJOR
        and copy.output.type.dtype == copy.operands[0].type.dtype
        and copy.output not in graph.outputs
        and all(user.op == "reshape" and user.output.type.layout == ROW_MAJOR for user in graph.users[copy.output])
    )


def _without_tables(graph: Graph, context: Context) -> Graph:
    nodes: list[Node] = []
    consts = dict(graph.consts)
    made: dict[Value, Value] = {}
    for node in graph.nodes:
        table = graph.consts.get(node.operands[1]) if node.op == "gather" else None
        turn = _turn(node, table) if table is not None else None
        if turn is None or not context.allow("absorb_moves", node.where):
            nodes.append(node)
            continue
        extent, first = turn
        builder = Builder(locs=node.locs)
        places = builder.iota(shape=(extent,), axis=0, start=first, step=1, dtype=I64)
        turned = builder.mod(places, builder.scalar(extent, I64))
        out = Value(node.output.type, node.output.name)
        nodes += [*builder.nodes, replace(node, inputs=(node.inputs[0], turned), outputs=(out,))]
        consts.update(builder.consts)
        made[node.output] = out
    return replaced(graph, nodes, made, consts) if made else graph


def _with_views_between(graph: Graph, context: Context) -> Graph:
    """Lets the views between a gather and a reshape be read through as well: one kernel may then make all."""
    moved: set[Node] = set()
    for node in graph.nodes:
        views: list[Node] = []
        above = graph.producer.get(node.operands[0]) if node.op == "reshape_copy" else None
        while above is not None and above.op in ("reshape", "transpose") and len(graph.users[above.output]) == 1:
            views.append(above)
            above = graph.producer.get(above.operands[0])
        is_between = above is not None and above.op == "gather" and len(graph.users[above.output]) == 1
        if views and is_between and context.allow("absorb_moves", node.where):
            moved.update(views)
    made: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node in moved:
            made[node.output] = Value(node.output.type.with_layout(ROW_MAJOR), node.output.name)
            node = replace(node, op=f"{node.op}_copy", outputs=(made[node.output],))
        nodes.append(node)
    return replaced(graph, nodes, made, graph.consts) if made else graph


def _with_axes_of_products(graph: Graph, context: Context) -> Graph:
    """Lets elementwise ops that read a transposed product have its axes, where memory stays as it is.

    An operand that is no such view, such as the convolution that a residual goes around, is read through one.
    """
    nodes: list[Node] = []
    made: dict[Value, Value] = {}
    source_of: dict[Value, tuple[Value, tuple[int, ...]]] = {}  # what a transpose turns, and how
    products: set[Value] = set()  # and what is computed of them element by element
    for old in graph.nodes:
        node = replace(old, inputs=tuple(made.get(v, v) if v is not None else None for v in old.inputs))
        perm = _perm_of_products(node, source_of, graph)
        if perm is None or not context.allow("absorb_moves", node.where):
            is_epilogue = OPS[node.op].kind is Kind.MAP and any(value in products for value in node.operands)
            if node.op in MATMULS or is_epilogue:
                products.update(node.outputs)
            if node.op == "transpose" and node.operands[0].type.layout == ROW_MAJOR and node.operands[0] in products:
                source_of[node.output] = node.operands[0], ints_attr(node.attrs, "perm")
            nodes.append(node)
            continue
        inputs: list[Value | None] = []
        for value in node.operands:
            source, turned = source_of.get(value, (value, ()))
            if value.type.elements != 1 and turned != perm:
                back = tuple(perm.index(axis) for axis in range(len(perm)))
                shape = tuple(value.type.shape[axis] for axis in back)
                source = Value(TensorType(value.type.dtype, shape), value.name)
                nodes.append(Node("transpose", (value,), (source,), {"perm": back}, node.locs))
            inputs.append(source)
        type_ = node.output.type
        shape = tuple(type_.shape[perm.index(axis)] for axis in range(len(perm)))
        result = Value(TensorType(type_.dtype, shape), node.output.name)
        made[old.output] = Value(type_, node.output.name)
        products.add(result)
        source_of[made[old.output]] = result, perm
        nodes.append(replace(node, inputs=tuple(inputs), outputs=(result,)))
        nodes.append(Node("transpose", (result,), (made[old.output],), {"perm": perm}, node.locs))
    return live(replaced(graph, nodes, made, graph.consts)) if made else graph


def _perm_of_products(
    node: Node, source_of: Mapping[Value, tuple[Value, tuple[int, ...]]], graph: Graph
) -> tuple[int, ...] | None:
    """How the operands of an elementwise op are turned, all in one memory order; None where none of them is."""
    if OPS[node.op].kind is not Kind.MAP or node.op == "copy" or len(node.outputs) != 1:
        return None
    found = {source_of[value][1] for value in node.operands if value in source_of}
    if len(found) != 1 or node.output in graph.outputs or any(node.output == new for _, new in graph.state):
        return None
    if any(user.op == "concat" for user in graph.users.get(node.output, ())):
        return None  # a part of a concatenation is what a kernel writes there, and no view
    (perm,) = found
    type_ = node.output.type
    wide = [value.type for value in node.operands if value.type.elements != 1 or value.type.rank]
    if any(operand.shape != type_.shape or operand.layout != type_.layout for operand in wide):
        return None
    turned = TensorType(type_.dtype, tuple(type_.shape[perm.index(axis)] for axis in range(len(perm))))
    return perm if tuple(turned.strides[axis] for axis in perm) == type_.strides else None


def _turn(node: Node, table: Const) -> tuple[int, int] | None:
    """The extent of the gathered axis and the place that comes first, where the table turns the axis."""
    source = node.operands[0].type
    extent = source.shape[int_attr(node.attrs, "axis") % source.rank]
    if table.dtype != I64 or table.shape != (extent,) or not isinstance(extent, int) or extent < 2:
        return None
    places = table.array()
    if places.min() < -extent or places.max() >= extent:
        return None  # a gather reads the first or the last element there
    first = int(places[0]) % extent
    return (extent, first) if np.array_equal(places % extent, (np.arange(extent) + first) % extent) else None
