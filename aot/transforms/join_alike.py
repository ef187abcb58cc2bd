"""What is done alike with neighbouring parts of a tensor is done once: rotary positions of queries and keys.

Starts where slices cut a tensor along one axis, as those of a joined product do, and follows the ops that every part
goes through with the same other operands: views, elementwise ops, concatenations along other axes. They are done with
the parts as one piece; the results are slices again, which readers address by strides.

Invariant: every element comes of the same ops as before, no bytes are moved for it, and no kernel is added: a result
that a reader would have been computed with, or that somebody needs dense, stops it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from aot import dims as dimension
from aot.builder import Builder
from aot.dims import Dim
from aot.ir import Graph, Layout, Level, Node, TensorType, Value, live, sorted_nodes
from aot.lower import OWNED_KINDS
from aot.ops import OPS, Kind
from aot.ops.contract import MATMULS
from aot.ops.helpers import dims_attr, int_attr, ints_attr
from aot.ops.window import CONVS
from aot.passes import Context, transform
from aot.transforms.join import why_not_read
from aot.views import VIEW_OPS, is_view, view_of

MOST_PARTS = 8
"""Slices of one tensor that are looked at together."""

_FROM_MEMORY = frozenset({*MATMULS, "attention"})
"""Ops whose kernels read operands from memory: nothing is computed on the way."""


@dataclass(frozen=True)
class _Row:
    """The same value of every part, and all of them as one, joined along an axis."""

    values: tuple[Value, ...]
    joined: Value
    axis: int

    @property
    def sizes(self) -> tuple[Dim, ...]:
        """The extents of the parts along the axis."""
        return tuple(value.type.shape[self.axis] for value in self.values)

    @property
    def total(self) -> Dim:
        return dimension.total(self.sizes)


@transform(takes=Level.CORE, gives=Level.CORE)
def join_alike(graph: Graph, context: Context) -> Graph:
    """Does once what neighbouring parts of a tensor go through alike, where the backend joins products."""
    if not context.joins_products:
        return graph
    for parts in list(_neighbours(graph)):
        if all(part.output in graph.producer for part in parts):
            graph = _Alike(graph, context, parts).run()
    return graph


def _neighbours(graph: Graph) -> Iterator[tuple[Node, ...]]:
    """Slices of one tensor along one axis, each of which begins where the one before ends: longer runs first."""
    for source, readers in graph.users.items():
        cuts = [(node, axis) for node in readers if (axis := _axis_of(node, source.type)) is not None]
        for axis in dict.fromkeys(axis for _, axis in cuts):
            ends = {_start(node, axis): node for node, other in cuts if other == axis}
            for start in sorted(ends):
                run = [ends[start]]
                while len(run) < MOST_PARTS and (following := ends.get(_end(run[-1], axis))) is not None:
                    run.append(following)
                for count in range(len(run), 1, -1):
                    yield tuple(run[:count])


def _axis_of(node: Node, source: TensorType) -> int | None:
    """The only axis along which a slice cuts, at fixed places and with steps of 1."""
    if node.op != "slice":
        return None
    starts, sizes = dims_attr(node.attrs, "starts"), dims_attr(node.attrs, "sizes")
    cut = [axis for axis, size in enumerate(sizes) if size != source.shape[axis]]
    is_plain = all(step == 1 for step in ints_attr(node.attrs, "steps"))
    if len(cut) != 1 or not is_plain or not isinstance(starts[cut[0]], int) or not isinstance(sizes[cut[0]], int):
        return None
    return cut[0] if sizes[cut[0]] else None


def _start(node: Node, axis: int) -> int:
    start = dims_attr(node.attrs, "starts")[axis]
    assert isinstance(start, int)
    return start


def _end(node: Node, axis: int) -> int:
    size = dims_attr(node.attrs, "sizes")[axis]
    assert isinstance(size, int)
    return _start(node, axis) + size


class _Alike:
    """One attempt with some parts."""

    def __init__(self, graph: Graph, context: Context, parts: Sequence[Node]) -> None:
        self.graph, self.context, self.parts = graph, context, tuple(parts)
        self.kept = {*graph.outputs, *(value for pair in graph.state for value in pair)}
        self.rows: dict[Value, _Row] = {}  # by the value of the first part
        self.computed: list[_Row] = []  # of these, the ones that are not views
        self.matched: set[Node] = set()
        self.new: dict[Node, list[Node]] = {}  # what comes before a node of the first part

    def run(self) -> Graph:
        self._begin()
        readers = deque(self.graph.users.get(self.parts[0].output, ()))
        while readers:  # a node comes again with each of its operands that is found
            node = readers.popleft()
            if node not in self.matched and self._follow(node):
                readers.extend(self.graph.users.get(node.output, ()))
        where = self.parts[0].where
        if not self.computed:
            return self.graph
        reason = next(filter(None, map(self._why_not, self.computed)), None)
        if reason is not None:
            self.context.refuse("join_alike", where, reason)
            return self.graph
        if not self.context.allow("join_alike", where):
            return self.graph
        gone = {self.graph.producer[value] for row in self.computed for value in row.values}
        nodes = [
            each for node in self.graph.nodes for each in (*self.new.get(node, ()), *(() if node in gone else (node,)))
        ]
        ordered = sorted_nodes(nodes)
        assert ordered is not None
        return live(self.graph.with_(nodes=ordered))

    def _begin(self) -> None:
        (source,) = self.parts[0].operands
        axis = _axis_of(self.parts[0], source.type)
        assert axis is not None
        starts = tuple(_start(self.parts[0], axis) if a == axis else 0 for a in range(source.type.rank))
        values = tuple(part.output for part in self.parts)
        sizes = list(source.type.shape)
        sizes[axis] = dimension.total(value.type.shape[axis] for value in values)
        if sizes[axis] == source.type.shape[axis]:
            joined = source
        else:
            joined = self._made(self.parts, "slice", source, starts=starts, sizes=tuple(sizes), steps=(1,) * len(sizes))
        self.rows[values[0]] = _Row(values, joined, axis)

    def _made(self, nodes: Sequence[Node], op: str, *operands: Value, **attrs: Any) -> Value:
        """A new node, in the place of some nodes of all parts."""
        builder = Builder(locs=tuple(dict.fromkeys(loc for node in nodes for loc in node.locs)))
        (value,) = builder.op(op, *operands, **attrs)
        self.new.setdefault(nodes[0], []).extend(builder.nodes)
        return value

    # Following the parts.

    def _follow(self, node: Node) -> bool:
        """Does a node of the first part for all parts, where each of the others has one like it; whether it did."""
        row = next(self.rows[value] for value in node.operands if value in self.rows)
        join = _JOINS.get(node.op) or (_elementwise if OPS[node.op].kind is Kind.MAP else None)
        if join is None or len(node.outputs) != 1 or None in node.inputs:
            return False
        alike = [node]
        for number, value in enumerate(row.values[1:], 1):
            for other in self.graph.users.get(value, ()):
                if other not in self.matched and other not in alike and self._is_like(node, other, number):
                    alike.append(other)
                    break
            else:
                return False
        if any(each.output in self.kept for each in alike):
            return False
        rows = [self.rows.get(value) for value in node.operands]
        found = join(alike, rows)
        if found is None:
            return False
        axis, attrs = found
        operands = [value if row is None else row.joined for value, row in zip(node.operands, rows, strict=True)]
        joined = self._made(alike, node.op, *operands, **attrs)
        made = _Row(tuple(each.output for each in alike), joined, axis)
        self.rows[node.output] = made
        self.matched.update(alike)
        if node.op not in VIEW_OPS:
            self.computed.append(made)
            start: Dim = 0
            for each, size in zip(alike, made.sizes, strict=True):
                self.new[node].append(_slice(joined, axis, start, each))
                start = start + size
        return True

    def _is_like(self, node: Node, other: Node, number: int) -> bool:
        """Whether a node does with part `number` what `node` does with the first; attributes are looked at later."""
        if other.op != node.op or len(other.inputs) != len(node.inputs) or None in other.inputs:
            return False
        for value, theirs in zip(node.operands, other.operands, strict=True):
            row = self.rows.get(value)
            if theirs is not (value if row is None else row.values[number]) and not self._are_equal(value, theirs):
                return False
        return _JOINS.get(node.op) is not None or node.attrs == other.attrs

    def _are_equal(self, left: Value, right: Value) -> bool:
        consts = self.graph.consts
        return left in consts and right in consts and consts[left].digest == consts[right].digest

    # Whether results may be parts.

    def _why_not(self, row: _Row) -> str | None:
        """Why no part of what is made at once may lie in it, by strides; None where each may."""
        for value in row.values:
            if self.graph.producer[value].op != "concat":  # else nothing is computed with it in any case
                for reader in self.graph.users.get(value, ()):
                    if is_view(reader):
                        if view_of(reader, value.type) is None:
                            return f"{reader.where} would have to move its bytes"
                    elif reader not in self.matched and self._is_computed_with(reader):
                        return f"{reader.where} is computed with it"
            type_ = value.type.with_layout(Layout(strides=row.joined.type.strides))
            reason = why_not_read(self.graph, value, type_, value.type, self.kept)
            if reason is not None:
                return reason
        return None

    def _is_computed_with(self, reader: Node) -> bool:
        """Whether a reader could be in one kernel with what it reads."""
        definition = OPS[reader.op]
        wants_dense = definition.row_major or reader.op in CONVS
        return not wants_dense and reader.op not in _FROM_MEMORY and definition.kind not in OWNED_KINDS


def _slice(joined: Value, axis: int, start: Dim, part: Node) -> Node:
    """The node that makes the result of a part."""
    shape = part.output.type.shape
    starts = tuple(start if a == axis else 0 for a in range(len(shape)))
    attrs = MappingProxyType({"starts": starts, "sizes": shape, "steps": (1,) * len(shape)})
    return Node("slice", (joined,), (part.output,), attrs, part.locs)


# How ops are done with all parts: the axis of the result and the attributes, or None.

_Joined = tuple[int, dict[str, Any]] | None
_Join = Callable[[Sequence[Node], Sequence[_Row | None]], _Joined]


def _elementwise(alike: Sequence[Node], rows: Sequence[_Row | None]) -> _Joined:
    node = alike[0]
    rank = node.output.type.rank
    places = {row.axis + rank - row.joined.type.rank for row in rows if row is not None}
    if len(places) != 1 or len({row.sizes for row in rows if row is not None}) != 1:
        return None
    (axis,) = places
    sizes = next(row.sizes for row in rows if row is not None)
    if any(each.output.type.shape[axis] != size for each, size in zip(alike, sizes, strict=True)):
        return None
    for value, row in zip(node.operands, rows, strict=True):
        place = axis - (rank - value.type.rank)
        if row is None and place >= 0 and value.type.shape[place] != 1:
            return None
    return axis, dict(node.attrs)


def _reshape(alike: Sequence[Node], rows: Sequence[_Row | None]) -> _Joined:
    """The parts stay whole runs of elements, as many before and after."""
    (row,) = rows
    assert row is not None
    outer = dimension.product(row.values[0].type.shape[: row.axis])
    shapes = [each.output.type.shape for each in alike]
    for axis in range(len(shapes[0])):
        rests = {(len(shape), *shape[:axis], *shape[axis + 1 :]) for shape in shapes}
        if len(rests) == 1 and dimension.product(shapes[0][:axis]) == outer:
            total = dimension.total(shape[axis] for shape in shapes)
            shape = (*shapes[0][:axis], total, *shapes[0][axis + 1 :])
            if dimension.product(shape) == row.joined.type.elements:
                return axis, {"shape": shape}
    return None


def _transpose(alike: Sequence[Node], rows: Sequence[_Row | None]) -> _Joined:
    (row,) = rows
    assert row is not None
    perm = ints_attr(alike[0].attrs, "perm")
    same = all(ints_attr(each.attrs, "perm") == perm for each in alike)
    return (perm.index(row.axis), {"perm": perm}) if same else None


def _cut(alike: Sequence[Node], rows: Sequence[_Row | None]) -> _Joined:
    """A slice along other axes than that of the parts."""
    (row,) = rows
    assert row is not None
    found: set[tuple[Any, ...]] = set()
    for each, size in zip(alike, row.sizes, strict=True):
        starts, sizes, steps = (
            list(dims_attr(each.attrs, "starts")), list(dims_attr(each.attrs, "sizes")),
            ints_attr(each.attrs, "steps"),
        )  # fmt: skip
        if starts[row.axis] != 0 or sizes[row.axis] != size or steps[row.axis] != 1:
            return None
        sizes[row.axis] = row.total
        found.add((tuple(starts), tuple(sizes), steps))
    if len(found) != 1:
        return None
    starts_, sizes_, steps_ = found.pop()
    return row.axis, {"starts": starts_, "sizes": sizes_, "steps": steps_}


def _concat(alike: Sequence[Node], rows: Sequence[_Row | None]) -> _Joined:
    axis = int_attr(alike[0].attrs, "axis") % alike[0].output.type.rank
    present = [row for row in rows if row is not None]
    same = len(present) == len(rows) and len({(row.axis, row.sizes) for row in present}) == 1
    if not same or present[0].axis == axis or any(each.attrs != alike[0].attrs for each in alike):
        return None
    return present[0].axis, {"axis": axis}


_JOINS: dict[str, _Join] = {"reshape": _reshape, "transpose": _transpose, "slice": _cut, "concat": _concat}
