"""Rounds weights so that none is a subnormal number: arithmetic on those is a hundred times slower.

Weight decay leaves such weights in trained models by the hundred thousand. w × 2⁻²⁴ × 2²⁴ rounds w to a
multiple of 2⁻¹²⁵, the step between the smallest normal numbers: that changes no weight above 2⁻¹⁰² at
all and none by more than 2⁻¹²⁶. Two multiplications are a recipe, so that the weights can still be made
of the model's own at load. Off under the option `exact`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aot.dtypes import F32
from aot.ir import Array, Const, Graph, Level, Node, Value, const_of
from aot.ops import OPS, Kind
from aot.passes import Context, transform
from aot.transforms.fold import fold_node

SCALE_BITS = 24
LEAST_SHARE = 1e-4
"""Share of subnormal weights from which on it pays to have a constant of their own."""

_READERS = frozenset((Kind.CONTRACT, Kind.WINDOW, Kind.RECUR))
_CHUNK = 1 << 20


def subnormal_share(array: Array) -> float:
    """The share of elements of an f32 array that are subnormal."""
    bits = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
    count = 0
    for start in range(0, bits.size, _CHUNK):  # without the sign, less one: zero becomes the largest
        part = (bits[start : start + _CHUNK] << np.uint32(1)) - np.uint32(2)
        count += int(np.count_nonzero(part < np.uint32((1 << 24) - 2)))
    return count / max(bits.size, 1)


@transform(takes=Level.CORE, gives=Level.CORE)
def flush_subnormals(graph: Graph, context: Context) -> Graph:
    """Gives products, convolutions and recurrences weights without subnormal numbers."""
    if context.options.exact:
        return graph
    consts = dict(graph.consts)
    renamed: dict[Value, Value | None] = {}

    def rounded(value: Value | None) -> Value | None:
        const = graph.consts.get(value) if value is not None else None
        if value is None or const is None or const.dtype != F32:
            return value
        if value not in renamed:
            renamed[value] = None
            if subnormal_share(const.array()) > LEAST_SHARE:
                renamed[value] = _rounded(value, const, consts)
        return renamed[value] or value

    nodes: list[Node] = []
    for node in graph.nodes:
        if OPS[node.op].kind in _READERS:
            inputs = tuple(map(rounded, node.inputs))
            changed = inputs != node.inputs and context.allow("flush_subnormals", node.where)
            node = replace(node, inputs=inputs) if changed else node
        nodes.append(node)
    if not any(renamed.values()):
        return graph
    used = {value for node in nodes for value in node.operands} | set(graph.outputs)
    return graph.with_(nodes=tuple(nodes), consts={v: c for v, c in consts.items() if v in used})


def _rounded(value: Value, const: Const, consts: dict[Value, Const]) -> Value | None:
    """A constant value of the rounded weights; None where they are too many to be made here."""
    for exponent in (-SCALE_BITS, SCALE_BITS):
        factor = const_of(np.array(2.0**exponent, np.float32))
        operands = (Value(value.type), Value(replace(value.type, shape=())))
        made = fold_node(Node("mul", operands, (Value(value.type),)), (const, factor))
        if made is None:
            return None
        (const,) = made
    result = Value(value.type, value.name)
    consts[result] = const
    return result
