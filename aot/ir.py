"""The graph: types, values, nodes. Immutable; a pass returns a new Graph.

Shapes are logical; how the bytes lie is the `Layout` of the type. Level CORE holds ops of the op
table. Level FUSED holds `kernel` nodes (their `regions[0]` is a CORE graph, the fused body) and VIEW
nodes, which move no bytes. Level ORDERED is FUSED with a final node order and final layouts.
`aot/verify.py` states and checks what each level allows.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from aot import dims as dimension
from aot.dims import Dim, Symbol
from aot.dtypes import DType, from_numpy

if TYPE_CHECKING:
    from aot.program import RecipeStep

Array = np.ndarray[Any, np.dtype[Any]]


class Level(IntEnum):
    """How far a graph is lowered; each level is a specification that the verifier checks."""

    CORE = 0
    FUSED = 1
    ORDERED = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of a tensor lie in its buffer.

    `order` lists the logical axes from the outermost in memory to the innermost; () is row-major.
    `halo` gives, per logical axis, (before, after): extra elements around the tensor, each `fill`, which
    the producer rewrites every run, so that sliding windows need no bounds checks; () is none.
    `strides` (elements, per logical axis), where given, override what order and halo imply: the
    tensor is a part of a larger buffer (a piece of a concatenation written into place).
    """

    order: tuple[int, ...] = ()
    halo: tuple[tuple[int, int], ...] = ()
    strides: tuple[Dim, ...] = ()
    fill: int = 0

    def __bool__(self) -> bool:
        return bool(self.order or self.halo or self.strides)


ROW_MAJOR = Layout()


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type, logical shape and layout of a value."""

    dtype: DType
    shape: tuple[Dim, ...]
    layout: Layout = ROW_MAJOR

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def order(self) -> tuple[int, ...]:
        """Logical axes, outermost in memory first."""
        return self.layout.order or tuple(range(self.rank))

    @property
    def halo(self) -> tuple[tuple[int, int], ...]:
        return self.layout.halo or ((0, 0),) * self.rank

    @property
    def elements(self) -> Dim:
        """How many elements the tensor has, without halo."""
        return dimension.product(self.shape)

    @property
    def strides(self) -> tuple[Dim, ...]:
        """Elements between neighbours along each logical axis."""
        return _strides(self.shape, self.layout)

    @property
    def origin_elements(self) -> Dim:
        """Elements from the start of the storage to the element at index 0, …, 0."""
        total: Dim = 0
        for (before, _), stride in zip(self.halo, self.strides, strict=True):
            total = total + stride * before
        return total

    @property
    def storage_bytes(self) -> Dim:
        """Bytes of a buffer that holds this tensor alone, halo included."""
        extents = [extent + before + after for extent, (before, after) in zip(self.shape, self.halo, strict=True)]
        return dimension.product(extents) * self.dtype.itemsize_bytes

    @property
    def bytes(self) -> Dim:
        """Bytes of the elements alone."""
        return self.elements * self.dtype.itemsize_bytes

    def with_layout(self, layout: Layout) -> TensorType:
        return replace(self, layout=layout)

    def with_dtype(self, dtype: DType) -> TensorType:
        return replace(self, dtype=dtype)

    def __str__(self) -> str:
        from aot.text import type_text  # the printer owns every text form

        return type_text(self)


@lru_cache(maxsize=1 << 14)
def _strides(shape: tuple[Dim, ...], layout: Layout) -> tuple[Dim, ...]:
    if layout.strides:
        return layout.strides
    result: list[Dim] = [0] * len(shape)
    step: Dim = 1
    for axis in reversed(layout.order or range(len(shape))):
        result[axis] = step
        before, after = layout.halo[axis] if layout.halo else (0, 0)
        step = step * (shape[axis] + before + after)
    return tuple(result)


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """An edge of the graph. Identity is the object; `name` is for people."""

    type: TensorType
    name: str = ""


@dataclass(frozen=True, slots=True)
class Const:
    """A constant by reference: what it holds, and how to get the bytes.

    `digest` is the SHA-256 of dtype, shape and the row-major bytes. `load` maps or computes the
    array; it is never printed or pickled. `source` says where the bytes are, for people: the
    initializer's name in the model. A constant that the compiler made of weights says how in
    `recipe`, over `recipe_sources`; one without a recipe is an initializer of the model if it has a
    `source`, and otherwise stands for itself.
    """

    digest: str
    dtype: DType
    shape: tuple[int, ...]
    source: str
    load: Callable[[], Array] = field(compare=False, repr=False)
    recipe: tuple[RecipeStep, ...] | None = field(default=None, compare=False, repr=False)
    recipe_sources: tuple[Const, ...] = field(default=(), compare=False, repr=False)

    def array(self) -> Array:
        """The values, row-major; treat as read-only."""
        return self.load()

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize_bytes


def const_of(array: Array, source: str = "") -> Const:
    """A Const that holds an array in memory."""
    held = np.ascontiguousarray(array).reshape(array.shape)
    held.setflags(write=False)
    dtype = from_numpy(held.dtype)
    digest = hashlib.sha256(f"{dtype.name}{held.shape}".encode())
    digest.update(held.tobytes() if held.size < 4096 else held.view(np.uint8).reshape(-1).data)
    return Const(digest.hexdigest(), dtype, tuple(held.shape), source, lambda: held)


Attr = Union[int, float, str, bool, DType, Dim, "tuple[Attr, ...]"]
NO_ATTRS: Mapping[str, Attr] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One op applied to values. Pure: same inputs, same outputs.

    `op` names an entry of `aot.ops`. `locs` are the names of the nodes of the user's model that this
    node came from, in order. `regions` are the bodies of control flow and of fused kernels.
    An omitted optional input is None.
    """

    op: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    attrs: Mapping[str, Attr] = field(default_factory=lambda: NO_ATTRS)
    locs: tuple[str, ...] = ()
    regions: tuple[Graph, ...] = ()

    @property
    def output(self) -> Value:
        """The one output of a node that has one."""
        (only,) = self.outputs
        return only

    @property
    def operands(self) -> tuple[Value, ...]:
        """The inputs that are present."""
        return tuple(v for v in self.inputs if v is not None)

    @property
    def where(self) -> str:
        """The node in the user's words, for messages."""
        return f"{self.op} ({', '.join(self.locs)})" if self.locs else self.op


SIGNS = (">=", "==", "!=", ">")


@dataclass(frozen=True, slots=True)
class Relation:
    """A rule on the sizes of the inputs: the graph is right only where `left` `sign` `right` holds; a sign of SIGNS."""

    left: Dim
    sign: str
    right: Dim

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right}"

    def known(self) -> bool | None:
        """Whether the bounds of the symbols say that it holds (True) or never holds (False)."""
        least, most = dimension.bounds(self.left - self.right)
        if self.sign in (">=", ">"):
            needed = 0 if self.sign == ">=" else 1
            return True if least >= needed else False if most < needed else None
        is_apart, is_equal = least > 0 or most < 0, least == most == 0
        if not is_apart and not is_equal:
            return None
        return is_equal if self.sign == "==" else is_apart


@dataclass(frozen=True, eq=False)
class Graph:
    """A function of tensors. `nodes` is in an order in which every value is defined before use.

    `consts` gives the constant behind each constant value. `state` pairs an input with the output
    that replaces it. `input_values` are (input number, integer, whether it is equal): the graph is
    right only where that input, of one element, holds that integer, or another one (a branch that the
    input chooses was resolved). `environment` are the symbols whose values the graph is given when it
    runs, of a block of a flow; None: the extents of the inputs give every symbol its value.
    `relations` are what else the sizes of the inputs must meet.
    `initial` are (input number, what it holds before the first run), of state that the model holds; text forms
    leave it out.
    """

    name: str
    inputs: tuple[Value, ...]
    consts: Mapping[Value, Const]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    state: tuple[tuple[Value, Value], ...] = ()
    level: Level = Level.CORE
    input_values: tuple[tuple[int, int, bool], ...] = ()
    environment: tuple[Symbol, ...] | None = None
    relations: tuple[Relation, ...] = ()
    initial: tuple[tuple[int, Const], ...] = ()

    @cached_property
    def producer(self) -> Mapping[Value, Node]:
        """The node that computes each value (inputs and constants have none)."""
        return {value: node for node in self.nodes for value in node.outputs}

    @cached_property
    def users(self) -> Mapping[Value, tuple[Node, ...]]:
        """The nodes that read each value, once per node, in order; values nobody reads are absent."""
        found: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.operands):
                found.setdefault(value, []).append(node)
        return {value: tuple(nodes) for value, nodes in found.items()}

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """Every symbol in a type or attribute, inputs' first, in order of appearance."""
        found: dict[Symbol, None] = {}
        for value in self.values():
            for dim in (*value.type.shape, *value.type.layout.strides):
                for symbol in dimension.symbols_of(dim):
                    found.setdefault(symbol)
        for node in self.nodes:
            for attr in node.attrs.values():
                for symbol in attr_symbols(attr):
                    found.setdefault(symbol)
        return tuple(found)

    def values(self) -> Iterator[Value]:
        """Every value: inputs, constants, node outputs."""
        yield from self.inputs
        yield from self.consts
        for node in self.nodes:
            yield from node.outputs

    def with_(self, **changes: Any) -> Graph:
        """A copy with some fields replaced."""
        return replace(self, **changes)


def attr_symbols(attr: Attr) -> Iterator[Symbol]:
    """The symbols inside an attribute."""
    if isinstance(attr, dimension.DimExpr):
        yield from dimension.symbols_of(attr)
    elif isinstance(attr, tuple):
        for item in attr:
            yield from attr_symbols(item)


def live(graph: Graph) -> Graph:
    """The graph without nodes and constants that no output needs. A node without results is kept."""
    needed = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not node.outputs or any(value in needed for value in node.outputs):
            kept.append(node)
            needed.update(node.operands)
    if len(kept) == len(graph.nodes) and all(value in needed for value in graph.consts):
        return graph
    consts = {value: const for value, const in graph.consts.items() if value in needed}
    return graph.with_(nodes=tuple(reversed(kept)), consts=consts)


def replaced(
    graph: Graph, nodes: Iterable[Node], mapping: Mapping[Value, Value], consts: Mapping[Value, Const]
) -> Graph:
    """The graph of other nodes and constants, in which values are replaced wherever they are read or are results."""
    outputs = tuple(mapping.get(value, value) for value in graph.outputs)
    state = tuple((kept, mapping.get(new, new)) for kept, new in graph.state)
    return graph.with_(nodes=rewire(nodes, mapping), consts=consts, outputs=outputs, state=state)


def sorted_nodes(nodes: Sequence[Node], edges: Iterable[tuple[int, int]] = ()) -> tuple[Node, ...] | None:
    """The nodes with each value made before it is read, as near to the given order as that allows.

    `edges` are more (earlier, later) positions to keep. None where there is no such order.
    """
    made = {value: number for number, node in enumerate(nodes) for value in node.outputs}
    needs = [{made[value] for value in node.operands if value in made} for node in nodes]
    for earlier, later in edges:
        needs[later].add(earlier)
    followers: list[list[int]] = [[] for _ in needs]
    for number, sources in enumerate(needs):
        for source in sources:
            followers[source].append(number)
    waiting = [len(sources) for sources in needs]
    ready = [number for number, count in enumerate(waiting) if not count]
    found: list[Node] = []
    while ready:
        number = heapq.heappop(ready)
        found.append(nodes[number])
        for follower in followers[number]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, follower)
    return tuple(found) if len(found) == len(needs) else None


def rewire(nodes: Iterable[Node], mapping: Mapping[Value, Value]) -> tuple[Node, ...]:
    """The nodes with their inputs replaced through `mapping` (followed to its end)."""

    def resolve(value: Value | None) -> Value | None:
        while value is not None and value in mapping:
            value = mapping[value]
        return value

    result = []
    for node in nodes:
        inputs = tuple(map(resolve, node.inputs))
        result.append(node if inputs == node.inputs else replace(node, inputs=inputs))
    return tuple(result)


def resolve(value: Value, mapping: Mapping[Value, Value]) -> Value:
    """Where a chain of replacements ends."""
    while value in mapping:
        value = mapping[value]
    return value
