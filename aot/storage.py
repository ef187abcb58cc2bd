"""Which values share bytes: the storage behind every value of a FUSED or ORDERED graph.

Aliasing is stated by the graph itself: a VIEW node's output lies in its input, the operands of a
`concat` lie in its output, and a kernel with the attribute `in_place` = i writes its first output over
its operand i. Everything else has storage of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aot import dims as dimension
from aot.dims import Dim
from aot.errors import CompilerError
from aot.ir import Graph, Node, TensorType, Value
from aot.views import view_of


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a value lies: in the storage of `root`, its element 0 at `element0` from the storage's start."""

    root: Value
    element0: Dim


def slots(graph: Graph) -> Mapping[Value, Slot]:
    """The slot of every value. Raises CompilerError for a view that its operand's layout does not allow."""
    found: dict[Value, Slot] = {}
    parts = concat_parts(graph)

    def own(value: Value) -> Slot:
        if value not in found:
            part = parts.get(value)
            if part is None:
                found[value] = Slot(value, value.type.origin_elements)
            else:
                whole = own(part.whole)
                found[value] = Slot(whole.root, whole.element0 + part.start * part.whole.type.strides[part.axis])
        return found[value]

    for value in (*graph.inputs, *graph.consts):
        own(value)
    for node in graph.nodes:
        if node.op == "kernel":
            for number, value in enumerate(node.outputs):
                reused = node.attrs.get("in_place", -1)
                if number == 0 and isinstance(reused, int) and reused >= 0:
                    found[value] = own(node.operands[reused])
                else:
                    own(value)
        elif node.op == "concat":
            own(node.output)
        else:
            source = own(node.operands[0])
            view = view_of(node, node.operands[0].type)
            if view is None:
                raise CompilerError("a view that would have to move bytes", where=node.where)
            found[node.output] = Slot(source.root, source.element0 + view.offset_elements)
    return found


@dataclass(frozen=True, slots=True)
class Part:
    """A value written into a concatenation: at `start` along `axis` of `whole`."""

    whole: Value
    axis: int
    start: Dim
    is_first: bool
    is_last: bool


def concat_parts(graph: Graph) -> Mapping[Value, Part]:
    """The place of every operand of every bare `concat` node."""
    found: dict[Value, Part] = {}
    for node in graph.nodes:
        if node.op != "concat":
            continue
        axis = concat_axis(node)
        start: Dim = 0
        for number, value in enumerate(node.operands):
            if value in found:
                raise CompilerError("a value is written into two concatenations", where=node.where)
            found[value] = Part(node.output, axis, start, number == 0, number == len(node.operands) - 1)
            start = start + value.type.shape[axis]
    return found


def concat_axis(node: Node) -> int:
    """The axis of a concat node, non-negative."""
    axis = node.attrs["axis"]
    assert isinstance(axis, int)
    return axis % node.output.type.rank


def pointer_offset_bytes(slot: Slot, type_: TensorType) -> Dim:
    """Bytes from the start of the root's storage to where a kernel's pointer for this value points.

    An empty part of a tensor may lie beyond its end; the pointer then stays inside.
    """
    offset = (slot.element0 - type_.origin_elements) * type_.dtype.itemsize_bytes
    size = slot.root.type.storage_bytes
    return offset if dimension.bounds(size - offset)[0] >= 0 else dimension.minimum(offset, size)
