"""Products of few rows, their sums cut into parts: each part as a product of its own, then the parts added up.

A product of few rows is bound by the bytes of its weight. Cut into columns alone it has too few programs for a GPU, or
programs so narrow that reading the left operand over and over takes as long as the weight. Parts of the sum are more
programs, of wider tiles. What adds them up is elementwise, so it becomes a part of the kernel that reads the result,
such as a norm behind a residual ("split-K", without programs that wait for each other and without atomics).

Invariant: parts are added in their order, in the type of the sums, and rounded once: the same bits in every run.
"""

from __future__ import annotations

from functools import reduce

from aot.builder import Builder
from aot.dims import bounds, product
from aot.dtypes import BF16, F16, F32
from aot.ir import Const, Graph, Level, Node, Value, live, replaced
from aot.ops import OPS, Kind
from aot.passes import Context, transform
from aot.transforms.fold import fold_node

LEAST_ROWS = 5
"""A product of fewer is a stream of its weight, whose programs read few columns each."""

MOST_ROWS = 256
"""With more of them a product has tiles enough, or is bound by its arithmetic."""

SIDE = 64
"""Rows and columns of a tile that reads both operands seldom enough."""

LEAST_SUMMED = 256
"""Summed elements of a part: fewer are over before their bytes have begun to come evenly."""

MOST_PARTS = 8
"""Each costs its bytes, twice."""

ENOUGH = 0.7
"""Tiles for each multiprocessor. More parts cost what follows more than the product gains: on an H200, products of 24
tiles (BERT) and of 32 (Llama) are fastest in 4 parts (docs/cuda.md)."""


@transform(takes=Level.CORE, gives=Level.CORE)
def split_sums(graph: Graph, context: Context) -> Graph:
    """Splits products of few rows whose tiles are too few for the target, where the backend asks for it."""
    if not context.splits_sums:
        return graph
    multiprocessors = int(context.target.numbers["multiprocessors"])
    nodes: list[Node] = []
    consts = dict(graph.consts)
    made: dict[Value, Value] = {}
    for node in graph.nodes:
        parts = _parts(graph, node, multiprocessors) if node.op == "matmul" else 1
        if parts == 1 or not context.allow("split_sums", node.where):
            nodes.append(node)
            continue
        builder = Builder(locs=node.locs)
        weight = builder.const(_cut(graph.consts[node.operands[1]], parts))
        made[node.output] = _split(builder, node, weight)
        nodes.extend(builder.nodes)
        consts.update(builder.consts)
    if not made:
        return graph
    return live(replaced(graph, nodes, made, consts))


def _parts(graph: Graph, node: Node, multiprocessors: int) -> int:
    """How many parts a product's sums are cut into; 1 where it stays whole."""
    left, right = node.operands
    summed, columns = right.type.shape[-2:]
    is_weight = right in graph.consts and left not in graph.consts and right.type.rank == 2
    if not is_weight or not isinstance(summed, int) or not isinstance(columns, int) or columns == 0:
        return 1
    if sum(reader.op == "matmul" for reader in graph.users[left]) > 1:  # the gate of a gated layer is one kernel
        return 1
    least, most = bounds(product(left.type.shape[:-1]))
    if least < LEAST_ROWS or most > MOST_ROWS or left.type.dtype not in (F16, BF16, F32):
        return 1
    if not _is_added(graph, node.output):
        return 1
    tiles, parts = -(-int(most) // SIDE) * -(-columns // SIDE), 1
    while tiles * parts < ENOUGH * multiprocessors and parts < MOST_PARTS and summed % (2 * parts * LEAST_SUMMED) == 0:
        parts *= 2
    return parts


def _is_added(graph: Graph, value: Value) -> bool:
    """Whether every reader is elementwise, so that it can add up the parts on its way."""
    readers = graph.users.get(value, ())
    is_kept = value in graph.outputs or any(value is new for _, new in graph.state)
    return bool(readers) and not is_kept and all(OPS[reader.op].kind is Kind.MAP for reader in readers)


def _cut(const: Const, parts: int) -> Const:
    """A weight [K, N] as [parts, K / parts, N]."""
    k, n = const.shape
    builder = Builder()
    builder.reshape(builder.const(const), shape=(parts, k // parts, n))
    made = fold_node(builder.nodes[0], [const])
    assert made is not None
    return made[0]


def _split(builder: Builder, node: Node, weight: Value) -> Value:
    """The nodes of a product with a weight of parts; their sum, of the product's type."""
    left, dtype, shape = node.operands[0], node.output.type.dtype, node.output.type.shape
    parts, summed, columns = weight.type.shape
    rows = product(shape[:-1])
    cut = builder.transpose(builder.reshape(left, shape=(rows, parts, summed)), perm=(1, 0, 2))
    factors = [value if dtype is F32 else builder.cast(value, to=F32) for value in (cut, weight)]
    sums = builder.matmul(*factors)
    assert isinstance(parts, int)
    each = [
        builder.slice(sums, starts=(number, 0, 0), sizes=(1, rows, columns), steps=(1, 1, 1)) for number in range(parts)
    ]
    total = reduce(builder.add, (builder.reshape(part, shape=shape) for part in each))
    result: Value = total if dtype is F32 else builder.cast(total, to=dtype)
    return result
