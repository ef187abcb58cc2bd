"""The graph that calibration runs: the model's own nodes, and what is observed of the products' left operands.

Not one of the passes of a build.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aot import dims as dimension
from aot.builder import Builder
from aot.ir import Graph, Value, live
from aot.transforms.products import Product

RESULTS = ("counts", "low", "high", "sums", "squares")
"""What there is of each observed tensor, in this order: the results of the op observe."""


def taps(products: Sequence[Product]) -> dict[str, tuple[Product, ...]]:
    """Products by the tensor that they read, under the name of the first of them."""
    groups: dict[tuple[Value, int], list[Product]] = {}
    for product in products:
        groups.setdefault((product.x, product.channel_axis), []).append(product)
    return {group[0].name: tuple(group) for group in groups.values()}


def observed(graph: Graph, names: Sequence[str], groups: Sequence[tuple[Product, ...]]) -> Graph:
    """A graph of level CORE whose outputs are, for each group of products, the RESULTS of what they read.

    The outputs of the model are left out where no product needs them: their memory is not wanted.
    """
    builder = Builder(graph.name)
    outputs: list[Value] = []
    for name, (first, *_) in zip(names, groups, strict=True):
        with builder.at(*first.node.locs):
            results = builder.op("observe", first.x, axis=first.channel_axis)
        for value, what in zip(results, RESULTS, strict=True):
            outputs.append(Value(value.type, f"{name} {what}"))
        builder.nodes[-1] = replace(builder.nodes[-1], outputs=tuple(outputs[-len(RESULTS) :]))
    return live(graph.with_(nodes=(*graph.nodes, *builder.nodes), outputs=tuple(outputs), state=()))


def grams(graph: Graph, names: Sequence[str], chosen: Sequence[Product]) -> Graph:
    """A graph whose outputs are, for each matmul, the sum of x xᵀ over its rows, f32 [channels, channels]."""
    builder = Builder(graph.name)
    outputs: list[Value] = []
    for name, product in zip(names, chosen, strict=True):
        with builder.at(*product.node.locs):
            count = dimension.product(product.x.type.shape[:-1])
            rows = builder.reshape(product.x, shape=(count, product.channels))
            made = builder.matmul(builder.transpose(rows, perm=(1, 0)), rows)
        outputs.append(Value(made.type, f"{name} gram"))
        builder.nodes[-1] = replace(builder.nodes[-1], outputs=(outputs[-1],))
    consts = {**graph.consts, **builder.consts}
    return live(graph.with_(nodes=(*graph.nodes, *builder.nodes), consts=consts, outputs=tuple(outputs), state=()))
