"""Images of few channels get channels of zeros, where the backend reads whole groups of channels at once.

An image of 3 channels in half precision is read two bytes at a time; with a fourth, a place is a word of 8 bytes that
goes to shared memory by itself. The padded image lies channels last: its kernel is the change of memory order that the
image needs in any case. Weights get rows of zeros, by a recipe.
"""

from __future__ import annotations

from dataclasses import replace

from aot.builder import Builder
from aot.dims import product, typical
from aot.dtypes import BF16, F16, F32
from aot.ir import Const, Graph, Level, Node, Value, replaced
from aot.ops.helpers import int_attr
from aot.passes import Context, transform
from aot.transforms.fold import fold_node

MOST_CHANNELS = 16
"""Channels from which on a tap fills a step of a product by itself."""

LEAST_PLACES = 256
"""Of a result: a small one is over before the padded image is made."""


@transform(takes=Level.CORE, gives=Level.CORE)
def pad_channels(graph: Graph, context: Context) -> Graph:
    """Pads the images and the weights of convolutions to whole groups of channels."""
    nodes: list[Node] = []
    consts = dict(graph.consts)
    padded: dict[Value, Value] = {}
    for node in graph.nodes:
        more = _missing(node, context.channel_group) if node.op == "conv" else 0
        weight = _padded_weight(graph, node, more) if more else None
        if weight is None or not context.allow("pad_channels", node.where):
            nodes.append(node)
            continue
        image = node.operands[0]
        if image not in padded:
            builder = Builder(locs=node.locs)
            padded[image] = builder.pad(image, **_attrs(image, more))
            nodes.extend(builder.nodes)
        value, const = weight
        consts[value] = const
        nodes.append(replace(node, inputs=(padded[image], value, *node.inputs[2:])))
    return replaced(graph, nodes, {}, consts) if padded else graph


def _missing(node: Node, group: int) -> int:
    """How many channels a convolution's image lacks; 0 where it stays as it is."""
    image, weight = node.operands[:2]
    channels, *window = weight.type.shape[1:]
    places = typical(product((node.output.type.shape[0], *node.output.type.shape[2:])))
    if int_attr(node.attrs, "groups") != 1 or image.type.dtype not in (F16, BF16, F32) or not isinstance(channels, int):
        return 0
    if not 1 < channels < MOST_CHANNELS or places < LEAST_PLACES or all(extent == 1 for extent in window):
        return 0
    return -channels % group


def _padded_weight(graph: Graph, node: Node, more: int) -> tuple[Value, Const] | None:
    """The weight with channels of zeros; None where it is no constant."""
    old = node.operands[1]
    if old not in graph.consts:
        return None
    builder = Builder()
    value = builder.pad(old, **_attrs(old, more))
    made = fold_node(builder.nodes[-1], [graph.consts[old]])
    return None if made is None else (value, made[0])


def _attrs(value: Value, more: int) -> dict[str, object]:
    """Of a pad that adds channels behind the others."""
    none = (0,) * value.type.rank
    return {"before": none, "after": (0, more, *none[2:]), "mode": "constant"}
