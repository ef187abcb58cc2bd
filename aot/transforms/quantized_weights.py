"""Weights of 8 or 4 bits beside float activations: they stay so in products, and become floats at build elsewhere."""

from __future__ import annotations

import math

import numpy as np

from aot.builder import Builder
from aot.dtypes import F32, I8, U8, DType
from aot.ir import Array, Const, Graph, Node, Value
from aot.ops import OPS
from aot.ops.quantized import NIBBLE_ZERO, pack_rows, quantized_range
from aot.passes import Context
from aot.pattern import SILENT, Match, View, op, rule
from aot.transforms.fold import cast_const, fold_node
from aot.transforms.quantized_moves import elements_of, parameters
from aot.transforms.shapes import emit

LEAST_BLOCK = 8
"""Rows that share a scale: with fewer, the scales are as many as the weights are good for."""

_VIEWS = frozenset({"reshape", "transpose", "slice"})


def _chain(view: View, value: Value) -> tuple[Node, list[Node]] | None:
    """The dequantize of a constant that a value is, and the views between, first ones first."""
    moves: list[Node] = []
    node = view.producer.get(value)
    while node is not None and node.op in _VIEWS:
        moves.insert(0, node)
        node = view.producer.get(node.operands[0])
    if node is None or node.op != "dequantize" or view.const(node.operands[0]) is None:
        return None
    return node, moves


def _moved(array: Array, moves: list[Node]) -> Array:
    """What views make of an array."""
    for node in moves:
        definition = OPS[node.op]
        assert definition.reference is not None
        array = definition.reference(definition.check_attrs(node.attrs), array)
    return array


def block_of(*rows: Array) -> int:
    """How many rows, of [K, N] each, share their parameters: the most that divide them evenly; K where all do."""
    changes = [int(place) + 1 for each in rows for place in np.flatnonzero((each[1:] != each[:-1]).any(axis=1))]
    return math.gcd(*changes) if changes else int(rows[0].shape[0])


def _check_packed(m: Match) -> str | None:
    x, weight = m.root.operands
    found = _chain(m.view, weight)
    if found is None:
        return SILENT
    dequantize, moves = found
    scale, zero = (None if each is None else elements_of(m.view, each) for each in parameters(dequantize))
    numbers = elements_of(m.view, dequantize.operands[0])
    dtype = dequantize.operands[0].type.dtype
    if numbers is None or scale is None or (parameters(dequantize)[1] is not None and zero is None):
        return "its scale or zero point is computed"
    if not dtype.is_integer or dtype.bits > 8 or x.type.dtype.bits > 32:
        return f"its weight is of {dtype.name}, its activations of {x.type.dtype.name}"
    if math.prod(weight.type.shape[:-2]) != 1 or 0 in weight.type.shape or x.type.rank < weight.type.rank:
        return "it is a product of many matrices"
    if x in m.view.consts:
        return SILENT
    shape = _moved(np.broadcast_to(np.int8(0), numbers.shape), moves).shape[-2:]
    low = int(quantized_range(dtype)[0])
    integers = _moved(numbers.astype(np.int16), moves).reshape(shape)
    scales = _moved(np.broadcast_to(scale.astype(np.float32), numbers.shape), moves).reshape(shape)
    zeros = None
    if zero is not None and zero.any():
        zeros = _moved(np.broadcast_to(zero.astype(np.int16), numbers.shape), moves).reshape(shape)
    block = block_of(scales) if zeros is None else block_of(scales, zeros)
    if block < min(LEAST_BLOCK, shape[0]) or (dtype.bits == 4 and block % 2 and block != shape[0]):
        return f"only {block} of its rows share a scale"
    shift = -low if dtype.bits == 4 else -128 - low
    m.facts["weight"] = (dtype.bits, block, integers + shift, scales, None if zeros is None else zeros + shift, shift)
    m.include(dequantize, *moves)
    return None


@rule(
    op("matmul"),
    check=_check_packed,
    measure=lambda nodes, view: sum(1.0 for node in nodes if node.op == "matmul"),
    exact=False,
)
def pack_weight(b: Builder, m: Match) -> Value:
    """The product of floats with a weight of 8 or 4 bits reads those bits."""
    b.locs = tuple(dict.fromkeys((*m.root.locs, *b.locs)))  # the product's name first: people look for it
    bits, block, numbers, scales, zeros, shift = m.facts["weight"]
    summed = numbers.shape[0]
    block += bits == 4 and block % 2  # of all rows, and one that is missing
    rows = slice(None, None, block)
    held = None if zeros is None else zeros[rows]
    none = NIBBLE_ZERO if bits == 4 else 0
    if held is None and shift != none:
        held = np.full((-(-summed // block), numbers.shape[1]), shift)
    if held is not None and not (held != none).any():
        held = None
    dtype = U8 if bits == 4 else I8
    weight = pack_rows(numbers) if bits == 4 else numbers.astype(np.int8)
    zero = None if held is None else b.const(held.astype(dtype.numpy))
    x = m.root.operands[0]
    scale = b.const(np.ascontiguousarray(scales[rows]))
    result = emit(b, "matmul_packed", x, b.const(weight), scale, zero, bits=bits, block=block)
    return (
        emit(b, "reshape", result, shape=m.root.output.type.shape)
        if result.type.rank != m.root.output.type.rank
        else result
    )


def settle_weights(graph: Graph, context: Context) -> Graph:
    """Makes floats of the dequantized constants that are left, by a recipe where one can say it."""
    consts = dict(graph.consts)
    nodes: list[Node] = []
    for node in graph.nodes:
        made = _floats(graph, node) if node.op == "dequantize" and node.output not in graph.outputs else None
        if made is None or not context.allow("lower_quantized", node.where):
            nodes.append(node)
        else:
            consts[node.output] = made
    if len(nodes) == len(graph.nodes):
        return graph
    used = {value for node in nodes for value in node.operands} | set(graph.outputs) | {new for _, new in graph.state}
    return graph.with_(nodes=tuple(nodes), consts={value: const for value, const in consts.items() if value in used})


def _floats(graph: Graph, node: Node) -> Const | None:
    """What a dequantize gives for constants: casts, a subtraction and a multiplication, as recipes know them."""
    operands = [None if value is None else graph.consts.get(value) for value in node.inputs]
    numbers, scale, zero = (*operands, None)[:3]
    if numbers is None or scale is None or (zero is None and len(node.operands) > 2):
        return None
    steps: list[tuple[str, Const | None, DType | None]] = [("cast", None, F32)]
    if zero is not None:
        steps.append(("sub", _cast(zero), None))
    steps.append(("mul", _cast(scale), None))
    if scale.dtype is not F32:
        steps.append(("cast", None, scale.dtype))
    result = numbers
    for name, other, dtype in steps:
        builder = Builder()
        inputs = [result] if other is None else [result, other]
        builder.op(name, *map(builder.const, inputs), **({} if dtype is None else {"to": dtype}))
        found = fold_node(builder.nodes[-1], inputs)
        if found is None:
            return None
        result = found[0]
    return result


def _cast(const: Const) -> Const:
    return const if const.dtype is F32 else cast_const(const, F32)
