"""Questions about shapes, axes and constants that several rule groups ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from aot.builder import Builder
from aot.dims import Dim, typical
from aot.dtypes import DType
from aot.ir import Array, Attr, Const, Node, Value
from aot.ops import OPS, Kind
from aot.pattern import MeasureFn, View

MAPS = frozenset(name for name, op in OPS.items() if op.kind is Kind.MAP and op.body is not None)
UNARY = frozenset(name for name in MAPS if len(OPS[name].inputs) == 1) - {"copy"}
REDUCES = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_mean")


def ints(attr: Attr) -> tuple[int, ...]:
    """An attribute that is a tuple of known integers; raises TypeError for others."""
    if not isinstance(attr, tuple):
        raise TypeError(f"{attr!r} is no tuple")
    result = []
    for item in attr:
        if not isinstance(item, int):
            raise TypeError(f"{item!r} is not known")
        result.append(int(item))
    return tuple(result)


def dims_of(attr: Attr) -> tuple[Dim, ...]:
    """An attribute that is a tuple of dimensions."""
    assert isinstance(attr, tuple)
    return tuple(item for item in attr if not isinstance(item, (float, str, tuple, DType)))


def as_int(attr: Attr) -> int:
    """An integer attribute."""
    assert isinstance(attr, int)
    return attr


def axis_of(node: Node) -> int:
    """The `axis` attribute of an op whose first operand (or, without operands, result) has it; counted from 0."""
    value = node.operands[0] if node.operands else node.output
    return as_int(node.attrs["axis"]) % max(value.type.rank, 1)


def as_float(attr: Attr) -> float:
    """A number attribute."""
    assert isinstance(attr, (int, float))
    return float(attr)


def perm_of(node: Node) -> tuple[int, ...]:
    """The permutation of a transpose."""
    return ints(node.attrs["perm"])


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `perm`."""
    result = [0] * len(perm)
    for place, axis in enumerate(perm):
        result[axis] = place
    return tuple(result)


def without_units(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """A shape without its extents of 1."""
    return tuple(extent for extent in shape if extent != 1)


def only_units_move(before: Sequence[Dim], after: Sequence[Dim]) -> bool:
    """Whether a reshape only inserts and removes extents of 1."""
    return without_units(before) == without_units(after)


def unit_map(before: Sequence[Dim], after: Sequence[Dim]) -> list[int]:
    """For each axis of `before`, its axis in `after` (-1: an extent of 1 that goes), units only moving."""
    places = [place for place, extent in enumerate(after) if extent != 1]
    result = []
    taken = 0
    for extent in before:
        if extent == 1:
            result.append(-1)
        else:
            result.append(places[taken])
            taken += 1
    return result


def joined_axes(shape: Sequence[Dim], joined: Sequence[Dim]) -> list[list[int]] | None:
    """The axes of `shape` that each axis of `joined` is made of, where a reshape only joins neighbours."""
    runs: list[list[int]] = []
    place = 0
    for extent in joined:
        run: list[int] = []
        product: Dim = 1
        while product != extent:
            if place == len(shape):
                return None
            product = product * shape[place]
            run.append(place)
            place += 1
        runs.append(run)
    if any(extent != 1 for extent in shape[place:]) or not runs:
        return None
    runs[-1].extend(range(place, len(shape)))
    return runs


def channel_vector(view: View, value: Value, rank: int, axis: int, channels: int) -> Array | None:
    """A constant that varies along `axis` alone when broadcast to `rank`, as [channels] or []; else None."""
    const = view.const(value)
    if const is None or len(const.shape) > rank:
        return None
    for place, extent in enumerate(const.shape, start=rank - len(const.shape)):
        if extent != 1 and (place != axis or extent != channels):
            return None
    if const.bytes == 0:
        return None
    size = int(np.prod(const.shape, dtype=np.int64))
    return const.array().reshape(() if size == 1 else (channels,))


def flat(builder: Builder, value: Value, channels: int) -> Value:
    """A per-channel constant (as `channel_vector` accepts) as a rank-1 value, [1] for a single number."""
    count = 1
    for extent in value.type.shape:
        assert isinstance(extent, int)
        count *= extent
    return reshaped(builder, value, (count,))


def emit(builder: Builder, name: str, *inputs: Value | None, **attrs: Attr) -> Value:
    """Appends a node of an op that has one result, and returns it."""
    (result,) = builder.op(name, *inputs, **attrs)
    return result


def reshaped(builder: Builder, value: Value, shape: Sequence[Dim]) -> Value:
    """The value in another shape; itself where the shape is the same."""
    if value.type.shape == tuple(shape):
        return value
    return emit(builder, "reshape", value, shape=tuple(shape))


def transposed(builder: Builder, value: Value, perm: Sequence[int]) -> Value:
    """The value with its axes permuted; itself for the identity."""
    if list(perm) == list(range(value.type.rank)):
        return value
    return emit(builder, "transpose", value, perm=tuple(perm))


def fits(const: Const, shape: Sequence[Dim]) -> bool:
    """Whether a constant broadcast with a tensor of `shape` leaves that shape as it is."""
    if len(const.shape) > len(shape):
        return False
    return all(
        extent == 1 or extent == target for extent, target in zip(reversed(const.shape), reversed(shape), strict=False)
    )


def value_fits(value: Value, shape: Sequence[Dim]) -> bool:
    """Whether a value broadcast with a tensor of `shape` leaves that shape as it is."""
    own = value.type.shape
    return len(own) <= len(shape) and all(a in (1, b) for a, b in zip(reversed(own), reversed(shape), strict=False))


def maker_of(view: View, value: Value | None, name: str) -> Node | None:
    """The node of op `name` that computes a value, if one does."""
    node = view.producer.get(value) if value is not None else None
    return node if node is not None and node.op == name else None


def _height_of(nodes: Sequence[Node], view: View, through: frozenset[str]) -> Callable[[Value], int]:
    """A function of a value: how many ops of `through` stand above it in a row."""
    own = {value: node for node in nodes for value in node.outputs}
    known: dict[Value, int] = {}

    def height(value: Value) -> int:
        if value not in known:
            node = own.get(value) or view.producer.get(value)
            inside = node is not None and node.op in through
            known[value] = 1 + max(map(height, node.operands)) if node is not None and inside else 0
        return known[value]

    return height


def count_reads(readers: frozenset[str], *through: str) -> MeasureFn:
    """A measure: over all operands of reader ops, how many ops of `through` stand above in a row."""

    def measure(nodes: Sequence[Node], view: View) -> float:
        height = _height_of(nodes, view, frozenset(through))
        return sum(sum(map(height, node.operands)) for node in nodes if node.op in readers)

    return measure


def elements_read(readers: frozenset[str], *through: str) -> MeasureFn:
    """As `count_reads`, each operand weighted by its elements: lower where readers move to the operand's parts."""

    def measure(nodes: Sequence[Node], view: View) -> float:
        height = _height_of(nodes, view, frozenset(through))
        return sum(
            sum(height(v) * typical(v.type.elements) for v in node.operands) for node in nodes if node.op in readers
        )

    return measure


def heights(readers: frozenset[str], through: frozenset[str], each: float = 0.0) -> MeasureFn:
    """A measure: for each reader, the most ops of `through` that stand above it in a row, plus `each`."""

    def measure(nodes: Sequence[Node], view: View) -> float:
        height = _height_of(nodes, view, through)
        return sum(each + max(map(height, node.operands), default=0) for node in nodes if node.op in readers)

    return measure


def chained(name: str) -> MeasureFn:
    """A measure for rules that make one op of two of the same name in a row."""
    return heights(frozenset((name,)), frozenset((name,)), 0.5)
