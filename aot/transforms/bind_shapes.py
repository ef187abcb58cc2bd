"""Applies what the user says of dimensions: `--dim NAME=N` fixes one, `--dim NAME=LO..HI` bounds it.

Every type and attribute is rewritten, and expressions are normalized again, so that a fixed
dimension leaves no trace. Invariant: the graph accepts exactly the shapes it accepted before that
lie inside the bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType

from aot.control import CONTROL
from aot.dims import Dim, DimExpr, Symbol, substitute
from aot.errors import ModelError, OptionError
from aot.ir import Attr, Graph, Layout, Level, Node, Relation, TensorType, Value, attr_symbols
from aot.ops import OpError, infer
from aot.options import DimRange
from aot.passes import Context, transform


@transform(takes=Level.CORE, gives=Level.CORE)
def bind_shapes(graph: Graph, context: Context) -> Graph:
    """Fixes and bounds the dimensions that the options name."""
    return bind(graph, context.options.dims)


def bind(graph: Graph, ranges: Sequence[DimRange]) -> Graph:
    """The graph with its symbols bound. Raises OptionError for a name that is no dimension of it."""
    if not ranges:
        return graph
    symbols = {symbol.name: symbol for symbol in graph.symbols}
    bound: dict[Symbol, Dim] = {}
    for entry in ranges:
        if entry.name not in symbols:
            known = ", ".join(sorted(name for name, s in symbols.items() if s.origin == "input")) or "none"
            raise OptionError(f"the model has no dimension {entry.name!r}", hint=f"Its symbolic dimensions: {known}.")
        bound[symbols[entry.name]] = _bound(symbols[entry.name], entry)
    if all(isinstance(dim, DimExpr) and dim == symbol.dim for symbol, dim in bound.items()):
        return graph
    return substitute_symbols(graph, lambda symbol: bound.get(symbol, symbol.dim))


def _bound(symbol: Symbol, entry: DimRange) -> Dim:
    lo = max(symbol.lo, entry.lo)
    his = [hi for hi in (symbol.hi, entry.hi) if hi is not None]
    hi = min(his) if his else None
    step = symbol.divisor
    lo = -(-lo // step) * step  # only multiples of the divisor can occur
    hi = None if hi is None else hi // step * step
    if hi is not None and lo > hi:
        allowed = f"{symbol.lo}..{'' if symbol.hi is None else symbol.hi}"
        multiple = f" and is a multiple of {step}" if step > 1 else ""
        raise OptionError(
            f"--dim {entry} leaves no extent for {symbol.name!r}", hint=f"It lies in {allowed}{multiple}."
        )
    return lo if lo == hi else replace(symbol, lo=lo, hi=hi).dim


def substitute_symbols(graph: Graph, change: Callable[[Symbol], Dim]) -> Graph:
    """The graph with symbols replaced in every type and attribute; result types are inferred anew.

    Raises ModelError where an op cannot take the new shapes.
    """
    values: dict[Value, Value] = {}

    def moved(value: Value) -> Value:
        if value not in values:
            type_ = _type(value.type, change)
            values[value] = value if type_ == value.type else Value(type_, value.name)
        return values[value]

    inputs = tuple(moved(value) for value in graph.inputs)
    consts = {moved(value): const for value, const in graph.consts.items()}
    nodes = tuple(_node(node, values, moved, change) for node in graph.nodes)
    outputs = tuple(moved(value) for value in graph.outputs)
    state = tuple((moved(a), moved(b)) for a, b in graph.state)
    relations = tuple(
        Relation(substitute(each.left, change), each.sign, substitute(each.right, change)) for each in graph.relations
    )
    for before, after in zip(graph.relations, relations, strict=True):
        if after.known() is False:
            raise OptionError(
                f"with the sizes that --dim asks for, the model's own rule {before} never holds",
                hint="Ask for sizes that meet it, or leave the dimensions open.",
            )
    return graph.with_(inputs=inputs, consts=consts, nodes=nodes, outputs=outputs, state=state, relations=relations)


def _node(
    node: Node, values: dict[Value, Value], moved: Callable[[Value], Value], change: Callable[[Symbol], Dim]
) -> Node:
    inputs = tuple(moved(v) if v is not None else None for v in node.inputs)
    attrs = node.attrs
    if any(True for attr in attrs.values() for _ in attr_symbols(attr)):
        attrs = MappingProxyType({name: _attr(attr, change) for name, attr in attrs.items()})
    regions = tuple(substitute_symbols(region, change) for region in node.regions)
    if not node.regions and node.op not in CONTROL:
        try:
            types = infer(node.op, attrs, [None if v is None else v.type for v in inputs])
        except OpError as error:
            raise ModelError(
                f"it cannot take the shapes that --dim asks for: {error.message}",
                where=node.where,
                hint="Choose other extents, or leave the dimension open.",
            ) from error
        for value, type_ in zip(node.outputs, types, strict=True):
            layout = _layout(value.type.layout, change)
            typed = type_.with_layout(layout)
            values[value] = value if typed == value.type else Value(typed, value.name)
    outputs = tuple(moved(v) for v in node.outputs)
    return replace(node, inputs=inputs, outputs=outputs, attrs=attrs, regions=regions)


def _type(type_: TensorType, change: Callable[[Symbol], Dim]) -> TensorType:
    shape = tuple(substitute(extent, change) for extent in type_.shape)
    return TensorType(type_.dtype, shape, _layout(type_.layout, change))


def _layout(layout: Layout, change: Callable[[Symbol], Dim]) -> Layout:
    if not layout.strides:
        return layout
    return replace(layout, strides=tuple(substitute(stride, change) for stride in layout.strides))


def _attr(attr: Attr, change: Callable[[Symbol], Dim]) -> Attr:
    if isinstance(attr, DimExpr):
        return substitute(attr, change)
    if isinstance(attr, tuple):
        return tuple(_attr(item, change) for item in attr)
    return attr
