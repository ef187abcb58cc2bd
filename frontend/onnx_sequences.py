"""Sequences and optionals whose structure is known when building: tuples of tensors, resolved while importing.

No sequence reaches the graph: an element of one is the tensor that was put there. A sequence that a Loop only
appends to is what the Loop would stack. What else depends on data (a position, a length) is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import GraphProto, ValueInfoProto

from aot.dims import Dim
from aot.dtypes import BOOL, I64
from aot.errors import UnsupportedError
from aot.frontend.known_tensors import object_array
from aot.frontend.onnx_registry import Absent, Context, Result, Stack, TensorList, onnx_op
from aot.ir import Value


def _list(c: Context, index: int) -> TensorList:
    operand = c.operand(index)
    if isinstance(operand, Stack):
        c.unsupported("a sequence whose length only the run knows")
    if not isinstance(operand, TensorList):
        c.fail(f"operand {index} must be a sequence")
    return operand


def _position(c: Context, index: int, length: int, most: int) -> int:
    """A known position in a sequence, from 0 on."""
    place = c.int_scalar(index, "the position in the sequence")
    if not -length <= place <= most:
        c.fail(f"position {place} is outside of a sequence of {length}")
    return place + length if place < 0 else place


def _number(c: Context, number: int | bool) -> Value:
    return c.builder.known_value(object_array([number], ()), BOOL if isinstance(number, bool) else I64)


@onnx_op("SequenceEmpty")
def _sequence_empty(c: Context) -> Result:
    return [TensorList(())]


@onnx_op("SequenceConstruct")
def _sequence_construct(c: Context) -> Result:
    return [TensorList(tuple(c.input(index) for index in range(c.count)))]


@onnx_op("SequenceAt")
def _sequence_at(c: Context) -> Result:
    operand = c.operand(0)
    if isinstance(operand, Stack):
        return c.op("gather", operand.tensor, c.input(1), axis=0)
    items = _list(c, 0).items
    return items[_position(c, 1, len(items), len(items) - 1)]


@onnx_op("SequenceInsert")
def _sequence_insert(c: Context) -> Result:
    items = _list(c, 0).items
    place = _position(c, 2, len(items), len(items)) if c.has(2) else len(items)
    return [TensorList((*items[:place], c.input(1), *items[place:]))]


@onnx_op("SequenceErase")
def _sequence_erase(c: Context) -> Result:
    items = _list(c, 0).items
    place = _position(c, 1, len(items), len(items) - 1) if c.has(1) else len(items) - 1
    if not items:
        c.fail("the sequence has nothing to erase")
    return [TensorList((*items[:place], *items[place + 1 :]))]


@onnx_op("SequenceLength")
def _sequence_length(c: Context) -> Result:
    operand = c.operand(0)
    if isinstance(operand, Stack):
        return c.dim_scalar(operand.tensor.type.shape[0], I64)
    return _number(c, len(_list(c, 0).items))


@onnx_op("SplitToSequence")
def _split_to_sequence(c: Context) -> Result:
    x = c.input(0)
    axis = c.axis(c.int_attribute("axis", 0))
    extent = x.type.shape[axis]
    keep = c.bool_attribute("keepdims", True) or c.has(1)
    sizes: Sequence[Dim]
    if c.has(1) and c.rank(1) == 1:
        sizes = c.dims(1, "split")
    else:
        step = c.int_scalar(1, "split") if c.has(1) else 1
        if step < 1:
            c.fail(f"split is {step}; it must be positive")
        if not isinstance(extent, int):
            c.unsupported("a sequence whose length depends on the sizes of inputs", "Give the size with --dim.")
        sizes = [min(step, extent - start) for start in range(0, extent, step)]
    total: Dim = 0
    parts = []
    for size in sizes:
        part = c.slice_axis(x, axis, total, size)
        total = total + size
        rest = tuple(n for a, n in enumerate(part.type.shape) if a != axis)
        parts.append(part if keep else c.reshape(part, rest))
    if isinstance(total, int) and isinstance(extent, int) and total != extent:
        c.fail(f"split {list(sizes)} covers {total} elements of axis {axis}, which has {extent}")
    return [TensorList(tuple(parts))]


@onnx_op("ConcatFromSequence")
def _concat_from_sequence(c: Context) -> Result:
    operand = c.operand(0)
    if isinstance(operand, Stack):
        return _joined(c, operand.tensor)
    items = _list(c, 0).items
    if not items:
        c.fail("an empty sequence cannot be concatenated")
    new = c.bool_attribute("new_axis", False)
    axis = c.axis(c.int_attribute("axis"), items[0].type.rank + new)
    if new:
        items = tuple(c.reshape(x, (*x.type.shape[:axis], 1, *x.type.shape[axis:])) for x in items)
    return c.op("concat", *items, axis=axis) if len(items) > 1 else items[0]


def _joined(c: Context, stack: Value) -> Value:
    """The elements of a stack, one after the other or along a new axis."""
    rank = stack.type.rank
    new = c.bool_attribute("new_axis", False)
    axis = c.axis(c.int_attribute("axis"), rank if new else rank - 1)
    perm = list(range(1, rank))
    perm.insert(axis, 0)
    moved = c.transpose(stack, perm)
    if new:
        return moved
    shape = moved.type.shape
    return c.reshape(moved, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


@onnx_op("Optional")
def _optional(c: Context) -> Result:
    operand = c.operand(0)
    return [Absent() if operand is None else operand]


@onnx_op("OptionalHasElement")
def _optional_has_element(c: Context) -> Result:
    return _number(c, not isinstance(c.operand(0), Absent | None))


@onnx_op("OptionalGetElement")
def _optional_get_element(c: Context) -> Result:
    operand = c.operand(0)
    if operand is None or isinstance(operand, Absent):
        c.fail("the optional has no element")
    return [operand]


def mapped(c: Context) -> list[list[Value]]:
    """What a SequenceMap calls its body with: elements of sequences, and tensors as they are."""
    length = len(_list(c, 0).items)
    calls: list[list[Value]] = [[] for _ in range(length)]
    for index in range(c.count):
        operand = c.operand(index)
        if isinstance(operand, TensorList) and len(operand.items) != length:
            c.fail(f"operand {index} is a sequence of {len(operand.items)}; the first one has {length}")
        for number, call in enumerate(calls):
            call.append(operand.items[number] if isinstance(operand, TensorList) else c.input(index))
    return calls


def without_appending(body: GraphProto, places: Sequence[int]) -> GraphProto:
    """A Loop's body without the carried sequences at `places`: what it appends to each is a scan output, in that order.

    Raises UnsupportedError for a body that does anything else with one of them.
    """
    made = GraphProto()
    made.CopyFrom(body)
    appended: list[str] = []
    for place in places:
        formal, result = body.input[2 + place].name, body.output[1 + place].name
        (producer,) = [node for node in made.node if result in node.output] or [None]
        uses = sum(list(node.input).count(formal) for node in made.node)
        inside = any(_reads(graph, formal) for node in made.node for a in node.attribute for graph in (a.g, *a.graphs))
        plain = producer is not None and producer.op_type == "SequenceInsert" and len(producer.input) == 2
        if producer is None or not plain or producer.input[0] != formal or uses != 1 or inside:
            raise UnsupportedError("a sequence that a loop changes in another way than by appending one tensor")
        made.node.remove(producer)
        appended.append(producer.input[1])
    for place in sorted(places, reverse=True):
        del made.input[2 + place]
        del made.output[1 + place]
    made.output.extend(ValueInfoProto(name=name) for name in appended)
    return made


def _reads(graph: GraphProto, name: str) -> bool:
    """Whether a body reads a tensor from outside."""
    return any(
        name in node.input or any(_reads(inner, name) for a in node.attribute for inner in (a.g, *a.graphs))
        for node in graph.node
    )
