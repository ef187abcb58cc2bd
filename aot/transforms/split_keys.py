"""Attention of few queries over many keys, split: parts of the keys on their own, then their weighted mean.

A step of decoding has one program per key head in flight, which walks the whole cache while most of a GPU waits. Each
part of the keys gives its own result and the logarithm of its sum of exponentials; of these, the whole softmax is a
weighted mean ("Flash-Decoding for long-context inference", Dao, Haziza, Massa and Sizov, 2023).
"""

from __future__ import annotations

from aot.builder import Builder
from aot.dims import exact_div, typical
from aot.dtypes import DType
from aot.ir import Graph, Level, Node, Value, replaced
from aot.passes import Context, transform

MOST_ROWS = 64
"""Queries of all heads that share keys: more of them keep a GPU at work without being split."""

LEAST_KEYS = 64
"""Keys of a part. Fewer are read faster than the parts are joined."""

PROGRAMS_PER_MULTIPROCESSOR = 4
"""What is wanted in flight: enough that the bytes of the cache come as fast as they can."""


@transform(takes=Level.CORE, gives=Level.CORE)
def split_keys(graph: Graph, context: Context) -> Graph:
    """Splits attention whose programs are too few for the target, where the backend has a kernel for parts."""
    if not context.splits_keys:
        return graph
    nodes: list[Node] = []
    consts = dict(graph.consts)
    made: dict[Value, Value] = {}
    for node in graph.nodes:
        chunk = _chunk(node, int(context.target.numbers["multiprocessors"])) if node.op == "attention" else None
        if chunk is None or not context.allow("split_keys", node.where):
            nodes.append(node)
            continue
        builder = Builder(locs=node.locs)
        made[node.output] = _split(builder, node, chunk)
        nodes.extend(builder.nodes)
        consts.update(builder.consts)
    if not made:
        return graph
    return replaced(graph, nodes, made, consts)


def _chunk(node: Node, multiprocessors: int) -> int | None:
    """Keys of a part; None where attention stays whole."""
    q, k = (value.type for value in node.operands[:2])
    batch, heads, queries, _ = q.shape
    groups, keys = k.shape[1:3]
    per_group = exact_div(heads, groups)
    if per_group is None or typical(per_group * queries) > MOST_ROWS or q.dtype.bits > 32:
        return None
    programs = typical(batch) * typical(groups)
    wanted = -(-PROGRAMS_PER_MULTIPROCESSOR * multiprocessors // max(programs, 1))
    parts = min(wanted, typical(keys) // LEAST_KEYS)
    if parts < 2:
        return None
    chunk = -(-typical(keys) // parts)
    return -(-chunk // LEAST_KEYS) * LEAST_KEYS


def _split(builder: Builder, node: Node, chunk: int) -> Value:
    attrs = {name: attr for name, attr in node.attrs.items() if name != "zero_empty"}
    held, sums = builder.op("attention_parts", *node.inputs, **attrs, chunk=chunk)
    dtype: DType = held.type.dtype
    # All of one shape, so that one kernel makes the three reductions.
    lead = held.type.shape[:4]
    scores = builder.expand(builder.reshape(sums, shape=(*lead, 1)), shape=held.type.shape)
    top = builder.reduce_max(scores, axes=(3,), keepdims=True)
    if node.attrs["zero_empty"]:
        never = builder.eq(top, builder.scalar(float("-inf"), dtype))
        top = builder.where(never, builder.scalar(0.0, dtype), top)
    weights = builder.exp(builder.sub(scores, top))
    total = builder.reduce_sum(weights, axes=(3,), keepdims=True)
    if node.attrs["zero_empty"]:
        total = builder.where(never, builder.scalar(1.0, dtype), total)
    mean = builder.div(builder.reduce_sum(builder.mul(held, weights), axes=(3,), keepdims=True), total)
    mean = mean if dtype is node.output.type.dtype else builder.cast(mean, to=node.output.type.dtype)
    result: Value = builder.reshape(mean, shape=node.output.type.shape)
    return result
