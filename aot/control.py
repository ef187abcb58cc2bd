"""Control: the nodes that decide what runs and how large things are, when the program runs.

They stand in the graph that a frontend makes (level CORE), and nowhere after `aot/partition.py`, which
cuts that graph into a flow of blocks without them. What they mean:

  cond(condition, *captures) {captures=(n, m)}
      Two regions; the first, of the first n captures, where the one bool holds, else the second, of the others.
  loop(trips?, condition?, *carried, *captures) {carried=n}
      One region (iteration, *carried, *captures) -> (condition?, *carried, *stacked). It runs while fewer than
      `trips` iterations are done and the condition holds; results are the carried values, then the stacked
      ones: what each iteration gave, along a new first axis. The region gives a condition if the loop has one.
      Without iterations, the other extents of a stacked result are what its type says; 0 where that has no value
      before the loop.
  alias(x) {shape, exact}
      The row-major elements of x in another shape: all of them (exact), or as many as the shape has.
  read(x) {element, dim, clamp}
      No result. Element `element` of integers x is the size `dim`. Where `dim` is an unbacked symbol, this
      gives it its value, the nearest that its bounds allow under `clamp`; else the two must be equal.
  claim() {left, right, exact}
      No result. left >= right, or with `exact` left == right; the run is refused where it does not hold.

A result whose type has an unbacked symbol as an extent gives that symbol its value. The body of a loop sees,
in the types of its carried inputs, symbols that have a value of their own in every iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim, Symbol
from aot.errors import ModelError
from aot.ir import Array, Attr, Graph, Node, TensorType, Value

Attrs = Mapping[str, Attr]
CONTROL = frozenset({"cond", "loop", "alias", "read", "claim"})
ATTRIBUTES: Mapping[str, frozenset[str]] = {
    "cond": frozenset({"captures"}),
    "loop": frozenset({"carried"}),
    "alias": frozenset({"shape", "exact"}),
    "read": frozenset({"element", "dim", "clamp"}),
    "claim": frozenset({"left", "right", "exact"}),
}
OPTIONAL: Mapping[str, frozenset[str]] = {"read": frozenset({"assertion"})}


class Collector(Protocol):
    """Where nodes are added: a Builder."""

    nodes: list[Node]
    locs: tuple[str, ...]


def has_control(graph: Graph) -> bool:
    """Whether the graph decides anything when it runs."""
    return any(node.op in CONTROL for node in graph.nodes)


def has_effect(node: Node) -> bool:
    """Whether the node is needed though nothing reads a result of it."""
    return node.op in ("read", "claim")


def _add(builder: Collector, node: Node) -> Node:
    builder.nodes.append(node)
    return node


def add_cond(
    builder: Collector,
    condition: Value,
    regions: tuple[Graph, Graph],
    captures: tuple[Sequence[Value], Sequence[Value]],
    types: Sequence[TensorType],
) -> tuple[Value, ...]:
    """Appends a cond; returns its results, of these types."""
    outputs = tuple(map(Value, types))
    attrs = MappingProxyType({"captures": (len(captures[0]), len(captures[1]))})
    inputs = (condition, *captures[0], *captures[1])
    return _add(builder, Node("cond", inputs, outputs, attrs, builder.locs, regions)).outputs


def add_loop(
    builder: Collector,
    trips: Value | None,
    condition: Value | None,
    carried: Sequence[Value],
    captures: Sequence[Value],
    body: Graph,
    types: Sequence[TensorType],
) -> tuple[Value, ...]:
    """Appends a loop; returns its results, of these types."""
    outputs = tuple(map(Value, types))
    attrs = MappingProxyType({"carried": len(carried)})
    inputs = (trips, condition, *carried, *captures)
    return _add(builder, Node("loop", inputs, outputs, attrs, builder.locs, (body,))).outputs


def add_alias(builder: Collector, value: Value, shape: Sequence[Dim], *, exact: bool) -> Value:
    """Appends an alias; returns the value in its new shape."""
    output = Value(TensorType(value.type.dtype, tuple(shape)))
    attrs: Attrs = MappingProxyType({"shape": tuple(shape), "exact": exact})
    return _add(builder, Node("alias", (value,), (output,), attrs, builder.locs)).output


def add_read(
    builder: Collector, value: Value, element: int, dim: Dim, *, clamp: bool = False, is_assertion: bool = False
) -> None:
    """Appends a read: `dim` is what an element of the value holds. `is_assertion`: the user's, who is told so."""
    held: dict[str, Attr] = {"element": element, "dim": dim, "clamp": clamp}
    if is_assertion:
        held["assertion"] = True
    attrs: Attrs = MappingProxyType(held)
    _add(builder, Node("read", (value,), (), attrs, builder.locs))


def add_claim(builder: Collector, left: Dim, right: Dim, *, exact: bool) -> None:
    """Appends a claim: left >= right, or left == right."""
    attrs: Attrs = MappingProxyType({"left": left, "right": right, "exact": exact})
    _add(builder, Node("claim", (), (), attrs, builder.locs))


def data_symbol(dim: Dim) -> Symbol | None:
    """The symbol that the dimension is, where it is one and data gives it its value."""
    symbol = dimension.plain_symbol(dim)
    return symbol if symbol is not None and symbol.origin != "input" else None


def symbols_given(node: Node) -> Iterable[Symbol]:
    """The symbols that may get their value from this node."""
    if node.op == "read":
        dims: Iterable[Dim] = (_dim(node, "dim"),)
    elif node.op in ("cond", "loop"):
        dims = (extent for value in node.outputs for extent in value.type.shape)
    else:
        return
    for dim in dims:
        symbol = data_symbol(dim)
        if symbol is not None:
            yield symbol


def _dim(node: Node, name: str) -> Dim:
    attr = node.attrs[name]
    assert isinstance(attr, int | dimension.DimExpr)
    return attr


def loop_parts(node: Node) -> tuple[Value | None, Value | None, tuple[Value, ...], tuple[Value, ...]]:
    """(trips, condition, carried, captures) of a loop."""
    count = node.attrs["carried"]
    assert isinstance(count, int)
    rest = tuple(value for value in node.inputs[2:] if value is not None)
    return node.inputs[0], node.inputs[1], rest[:count], rest[count:]


def cond_parts(node: Node) -> tuple[Value, tuple[Value, ...], tuple[Value, ...]]:
    """(condition, captures of the first region, of the second) of a cond."""
    counts = node.attrs["captures"]
    assert isinstance(counts, tuple) and isinstance(counts[0], int)
    condition, rest = node.operands[0], node.operands[1:]
    return condition, rest[: counts[0]], rest[counts[0] :]


# The rules


def fault(node: Node) -> str:
    """What is wrong with a node of control, or nothing. Regions are verified by the caller."""
    if set(node.attrs) - OPTIONAL.get(node.op, frozenset()) != ATTRIBUTES[node.op]:
        return f"{node.op} has the attributes {sorted(ATTRIBUTES[node.op])}, not {sorted(node.attrs)}"
    return {
        "cond": _cond_fault,
        "loop": _loop_fault,
        "alias": _alias_fault,
        "read": _read_fault,
        "claim": _claim_fault,
    }[node.op](node)


def _types_fault(what: str, outer: Sequence[Value], inner: Sequence[Value]) -> str:
    if len(outer) != len(inner):
        return f"{len(outer)} {what}, the region has {len(inner)}"
    for number, (outside, inside) in enumerate(zip(outer, inner, strict=True)):
        if outside.type.dtype != inside.type.dtype or outside.type.rank != inside.type.rank:
            return f"{what} {number} is {outside.type} outside and {inside.type} in the region"
    return ""


def _is_one(value: Value, dtype: dtypes.DType) -> bool:
    return value.type.dtype == dtype and value.type.elements == 1


def _cond_fault(node: Node) -> str:
    counts = node.attrs["captures"]
    whole = isinstance(counts, tuple) and len(counts) == 2 and all(isinstance(n, int) and n >= 0 for n in counts)
    if not whole or None in node.inputs or len(node.inputs) != 1 + sum(counts) or len(node.regions) != 2:  # type: ignore[arg-type]
        return "a cond has a condition, two regions and their captures"
    condition, *captures = cond_parts(node)
    if not _is_one(condition, dtypes.BOOL):
        return f"the condition is {condition.type}, not one bool"
    for region, captured in zip(node.regions, captures, strict=True):
        found = _types_fault("captures", captured, region.inputs) or _types_fault(
            "results", node.outputs, region.outputs
        )
        if found:
            return found
    return ""


def _loop_fault(node: Node) -> str:
    count = node.attrs["carried"]
    if not isinstance(count, int) or not 0 <= count <= len(node.inputs) - 2 or None in node.inputs[2:]:
        return "a loop has trips, a condition and what it carries"
    if len(node.regions) != 1:
        return f"a loop has one region, not {len(node.regions)}"
    trips, condition, carried, captures = loop_parts(node)
    if trips is not None and not _is_one(trips, dtypes.I64):
        return f"trips is {trips.type}, not one i64"
    if condition is not None and not _is_one(condition, dtypes.BOOL):
        return f"the condition is {condition.type}, not one bool"
    (body,) = node.regions
    results = body.outputs
    if condition is not None:
        if not results or not _is_one(results[0], dtypes.BOOL):
            return "the first result of the region is the condition, one bool"
        results = results[1:]
    if not body.inputs or not _is_one(body.inputs[0], dtypes.I64):
        return "the first input of the region is the iteration, one i64"
    stacked = node.outputs[count:]
    if len(results) != count + len(stacked):
        return f"{count} carried and {len(stacked)} stacked results, the region has {len(results)}"
    for outside, inside in zip(stacked, results[count:], strict=True):
        if outside.type.dtype != inside.type.dtype or outside.type.rank != inside.type.rank + 1:
            return f"the stacked {inside.type} are {outside.type}"
    return (
        _types_fault("inputs", (*carried, *captures), body.inputs[1:])
        or _types_fault("carried results", carried, results[:count])
        or _types_fault("results", node.outputs[:count], results[:count])
    )


def _alias_fault(node: Node) -> str:
    if len(node.operands) != 1 or len(node.outputs) != 1 or node.regions:
        return "an alias has one operand and one result"
    value, output = node.operands[0], node.output
    if output.type.dtype != value.type.dtype or output.type.shape != node.attrs["shape"]:
        return f"the alias of {value.type} in shape {node.attrs['shape']} is {output.type}"
    return ""


def _read_fault(node: Node) -> str:
    if len(node.operands) != 1 or node.outputs or node.regions:
        return "a read has one operand and no result"
    dtype, element = node.operands[0].type.dtype, node.attrs["element"]
    if dtype.is_float or dtype.bits < 8 or not isinstance(element, int) or element < 0:
        return f"element {element} of {node.operands[0].type} is no size"
    return ""


def _claim_fault(node: Node) -> str:
    return "a claim has neither operands nor results" if node.inputs or node.outputs or node.regions else ""


# The meaning


def evaluate_control(
    node: Node,
    operands: Sequence[Array | None],
    known: dict[str, int],
    evaluate: Callable[[Graph, Sequence[Array], Mapping[str, int]], list[Array]],
) -> list[Array]:
    """The results of a node of control; gives symbols their values in `known`.

    `evaluate` runs a region. Raises ModelError where a claim or a read does not hold.
    """
    if node.op == "read":
        _evaluate_read(node, operands, known)
        return []
    if node.op == "claim":
        left, right = (dimension.evaluate(_dim(node, side), known) for side in ("left", "right"))
        if left != right if node.attrs["exact"] else left < right:
            raise ModelError(f"{node.attrs['left']} is {left}, {node.attrs['right']} is {right}", where=node.where)
        return []
    if node.op == "alias":
        (x,) = (array for array in operands if array is not None)
        shape = [dimension.evaluate(extent, known) for extent in node.output.type.shape]
        count = int(np.prod(shape, dtype=np.int64))
        if count != x.size if node.attrs["exact"] else count > x.size:
            raise ModelError(f"{x.size} elements do not have the shape {shape}", where=node.where)
        return [np.ascontiguousarray(x).reshape(-1)[:count].reshape(shape)]
    arrays = [array for array in operands if array is not None]
    if node.op == "cond":
        _, first, _ = cond_parts(node)
        holds = bool(arrays[0].reshape(-1)[0])
        captured = arrays[1 : 1 + len(first)] if holds else arrays[1 + len(first) :]
        results = evaluate(node.regions[0 if holds else 1], captured, known)
    else:
        results = _evaluate_loop(node, operands, known, evaluate)
    for value, array in zip(node.outputs, results, strict=True):
        for extent, size in zip(value.type.shape, array.shape, strict=True):
            symbol = data_symbol(extent)
            if symbol is not None:
                known[symbol.name] = size
    return results


def _evaluate_read(node: Node, operands: Sequence[Array | None], known: dict[str, int]) -> None:
    (x,) = (array for array in operands if array is not None)
    element, dim = node.attrs["element"], _dim(node, "dim")
    assert isinstance(element, int)
    found = int(np.asarray(x).reshape(-1)[element])
    symbol = data_symbol(dim)
    if symbol is None:
        if dimension.evaluate(dim, known) != found and node.attrs.get("assertion"):
            raise ModelError("this assertion of the model does not hold", where=", ".join(node.locs))
        if dimension.evaluate(dim, known) != found:
            raise ModelError(
                f"the size {dim} must be {dimension.evaluate(dim, known)}, it is {found}", where=node.where
            )
        return
    taken = max(found, symbol.lo) if symbol.hi is None else min(max(found, symbol.lo), symbol.hi)
    if taken != found and not node.attrs["clamp"]:
        raise ModelError(f"the size {dim} is {found}, which it cannot be", where=node.where)
    known[symbol.name] = taken


def _extent_before(extent: Dim, known: Mapping[str, int]) -> int:
    if any(symbol.name not in known for symbol in dimension.symbols_of(extent)):
        return 0
    return max(dimension.evaluate(extent, known), 0)


def _evaluate_loop(
    node: Node,
    operands: Sequence[Array | None],
    known: dict[str, int],
    evaluate: Callable[[Graph, Sequence[Array], Mapping[str, int]], list[Array]],
) -> list[Array]:
    (body,) = node.regions
    trips, condition, rest = operands[0], operands[1], [array for array in operands[2:] if array is not None]
    _, _, initial, _ = loop_parts(node)
    carried, captured = list(rest[: len(initial)]), rest[len(initial) :]
    holds = condition is None or bool(condition.reshape(-1)[0])
    limit = None if trips is None else int(trips.reshape(-1)[0])
    stacked: list[list[Array]] = [[] for _ in node.outputs[len(initial) :]]
    iteration = 0
    while holds and (limit is None or iteration < limit):
        inner = dict(known)
        for value, array in zip(body.inputs[1:], carried, strict=False):
            for extent, size in zip(value.type.shape, array.shape, strict=True):
                symbol = data_symbol(extent)
                if symbol is not None:
                    inner[symbol.name] = size
        number = np.array(iteration, np.int64).reshape((1,) * body.inputs[0].type.rank)
        results = evaluate(body, [number, *carried, *captured], inner)
        if condition is not None:
            holds = bool(results.pop(0).reshape(-1)[0])
        carried = results[: len(initial)]
        for rows, array in zip(stacked, results[len(initial) :], strict=True):
            rows.append(array)
        iteration += 1
    made = []
    for value, rows in zip(node.outputs[len(initial) :], stacked, strict=True):
        empty = [_extent_before(extent, known) for extent in value.type.shape[1:]]
        made.append(np.stack(rows) if rows else np.zeros((0, *empty), value.type.dtype.numpy))
    return [*carried, *made]
