"""The products of a model with its weights: what can be quantized, under names that people know.

A name is that of the node in the user's model. Where passes made several products of one node, the later ones are
numbered. So the names do not depend on options that leave the products alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aot.dtypes import F32
from aot.ir import Array, Const, Graph, Node, Value
from aot.ops.helpers import int_attr
from aot.views import VIEW_OPS


@dataclass(frozen=True, slots=True)
class Product:
    """A conv or matmul with a constant weight.

    x: its left operand, f32. channel_axis: that of x that is summed. weight: f32; output_axis: that of the weight which
    has a scale for each output.
    """

    name: str
    node: Node
    x: Value
    weight: Const
    channel_axis: int
    output_axis: int

    @property
    def channels(self) -> int:
        """The extent of x that is summed; of all groups of a convolution."""
        extent = self.x.type.shape[self.channel_axis]
        assert isinstance(extent, int)
        return extent

    @property
    def groups(self) -> int:
        return int_attr(self.node.attrs, "groups") if self.node.op == "conv" else 1

    def per_channel(self, array: Array) -> Array:
        """An array [channels] so that it broadcasts over x."""
        shape = [1] * self.x.type.rank
        shape[self.channel_axis] = self.channels
        return array.reshape(shape)

    def per_output(self, array: Array) -> Array:
        """An array [outputs] so that it broadcasts over the weight."""
        shape = [1] * len(self.weight.shape)
        shape[self.output_axis] = -1
        return array.reshape(shape)

    def by_channel(self, array: Array) -> Array:
        """An array [channels] as what each element of the weight is multiplied with, broadcast over the weight."""
        if self.node.op == "matmul":
            return array.reshape(-1, 1)
        outputs, inputs, *window = self.weight.shape
        each = array.reshape(self.groups, 1, inputs)
        return np.broadcast_to(each, (self.groups, outputs // self.groups, inputs)).reshape(
            outputs, inputs, *(1,) * len(window)
        )


def products(graph: Graph) -> tuple[Product, ...]:
    """Those of a graph of level CORE, in its order."""
    found: list[Product] = []
    seen: dict[str, int] = {}
    for node in graph.nodes:
        if node.op not in ("conv", "matmul"):
            continue
        x, w = node.operands[:2]
        const = graph.consts.get(w)
        if const is None or x in graph.consts or const.dtype != F32 or x.type.dtype != F32:
            continue
        axis = 1 if node.op == "conv" else x.type.rank - 1
        if (
            not isinstance(x.type.shape[axis], int)
            or 0 in const.shape
            or (node.op == "matmul" and len(const.shape) != 2)
        ):
            continue
        plain = node.locs[0] if node.locs else node.output.name or node.op
        seen[plain] = seen.get(plain, 0) + 1
        name = plain if seen[plain] == 1 else f"{plain}#{seen[plain]}"
        found.append(Product(name, node, x, const, axis, 0 if node.op == "conv" else 1))
    return tuple(found)


def products_digest(found: Sequence[Product]) -> str:
    """SHA-256, in hex, of products: names, shapes, weights and which read one tensor.

    A record of one model does not fit another.
    """
    summary = hashlib.sha256()
    first: dict[Value, str] = {}
    for product in found:
        reads = first.setdefault(product.x, product.name)
        weight = f"{product.weight.shape} {product.weight.digest}"
        summary.update(f"{product.name} {product.node.op} {reads} {weight}\n".encode())
    return summary.hexdigest()


def source_of(graph: Graph, value: Value) -> Value:
    """The value whose elements a value has, all of them, through views that only shape and turn."""
    while (node := graph.producer.get(value)) is not None and node.op in VIEW_OPS:
        source = node.operands[0]
        if source in graph.consts or source.type.elements != value.type.elements or node.op in ("expand", "slice"):
            break
        value = source
    return value


def weight_array(product: Product) -> Array:
    """f32: the weight."""
    return np.asarray(product.weight.array(), np.float32)
