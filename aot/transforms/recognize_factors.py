"""Products as lists of factors, means and constants: the algebra that recognition rules share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aot.ir import Node, Value
from aot.pattern import Match, View
from aot.transforms.shapes import ints, maker_of

CLOSE = 1e-4  # how near a constant in a model must be to the formula's (exporters round to f32 or less)


@dataclass(slots=True)
class Product:
    """number * the product of `values`; `nodes` are the ops it is written with."""

    number: float = 1.0
    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)


def product_of(view: View, value: Value, root: Node | None = None) -> Product:
    """A value as a product: looks through mul, and div by numbers, that nothing else reads."""
    result = Product()
    _collect(view, value, root, result)
    return result


def _collect(view: View, value: Value, root: Node | None, result: Product) -> None:
    number = view.number(value)
    if number is not None:
        result.number *= number
        return
    node = view.producer.get(value)
    if node is None or (node is not root and len(view.users.get(value, ())) != 1):
        result.values.append(value)
        return
    if node.op == "mul" and node.inputs[0] is not node.inputs[1]:
        result.nodes.append(node)
        for operand in node.operands:
            _collect(view, operand, None, result)
        return
    if node.op == "mul":
        result.nodes.append(node)
        result.values.extend(node.operands)
        return
    divisor = view.number(node.inputs[1]) if node.op == "div" else None
    if divisor:
        result.nodes.append(node)
        result.number /= divisor
        _collect(view, node.operands[0], None, result)
        return
    result.values.append(value)


def close(number: float | None, wanted: float) -> bool:
    """Whether a number is the wanted one, as exporters write it."""
    return number is not None and abs(number - wanted) <= CLOSE * max(abs(wanted), 1e-3)


def split_number(view: View, node: Node) -> tuple[Value, float] | None:
    """An `add` as (value, number); None where neither operand is a number."""
    for value, other in (node.operands, node.operands[::-1]):
        number = view.number(other)
        if number is not None and view.const(value) is None:
            return value, number
    return None


def mean_of(view: View, value: Value) -> tuple[Value, tuple[int, ...], list[Node]] | None:
    """If a value is a mean that keeps its axes: of what, over which axes, and the nodes that say so."""
    node = maker_of(view, value, "reduce_mean")
    if node is not None and node.attrs["keepdims"]:
        return node.operands[0], ints(node.attrs["axes"]), [node]
    node = maker_of(view, value, "mul")
    number = view.number(node.inputs[1]) if node is not None else None
    if node is None or number is None:
        return None
    total = maker_of(view, node.operands[0], "reduce_sum")
    if total is None or not total.attrs["keepdims"]:
        return None
    axes = ints(total.attrs["axes"])
    count = 1
    for axis in axes:
        extent = total.operands[0].type.shape[axis]
        if not isinstance(extent, int):
            return None
        count *= extent
    if not close(number * count, 1.0):
        return None
    return total.operands[0], axes, [node, total]


def trailing_axis(value: Value, axes: Sequence[int]) -> int | None:
    """The axis such that `axes` are that one to the last (extents of 1 do not count); else None."""
    rank = value.type.rank
    chosen = {axis % rank for axis in axes}
    first = min(chosen, default=rank)
    rest = all(axis in chosen or value.type.shape[axis] == 1 for axis in range(first, rank))
    return first if rest and chosen else None


def dies(m: Match, *nodes: Node) -> bool:
    """Whether all nodes go once the root is replaced (they are counted to the match)."""
    m.include(*nodes)
    gone = set(m.dying())
    return all(node in gone for node in nodes)
