"""Layouts: a copy that a reshape needs is made in the order that the reshape's readers want."""

from __future__ import annotations

from typing import Any

import numpy as np

from aot.builder import Builder
from aot.dims import Dim
from aot.evaluate import evaluate
from aot.ir import Graph
from aot.passes import Context
from aot.transforms.layout import assign_layouts
from tests.passes.cases import N, built, f, inputs_for, w


def folded_patches(perm: tuple[int, ...], shape: tuple[Dim, ...]) -> Graph:
    """Patches put together to an image that a convolution of window 1 reads, as mobilevit does."""

    def build(b: Builder) -> Any:
        image = b.reshape(b.transpose(f(b, "x", *shape), perm=perm), shape=(N.dim, 6, 8, 10))
        attrs: dict[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
        return b.op("conv", image, w(b, 7, 6, 1, 1), **attrs)[0]

    return built(build)


def test_one_copy_joins_axes_and_brings_channels_last() -> None:
    graph = folded_patches((0, 5, 3, 1, 4, 2), (N.dim, 2, 2, 4, 5, 6))
    result = assign_layouts(graph, Context())
    copies = [node for node in result.nodes if node.op == "copy" and node.output is not result.outputs[0]]
    assert [node.output.type.order for node in copies] == [(0, 2, 3, 4, 5, 1)]
    (conv,) = (node for node in result.nodes if node.op == "conv")
    assert conv.operands[0].type.strides[1] == 1
    for before, after in zip(evaluate(graph, inputs_for(graph)), evaluate(result, inputs_for(graph)), strict=True):
        np.testing.assert_array_equal(before, after)


def test_no_copy_where_the_reshape_is_a_view() -> None:
    graph = folded_patches((0, 3, 1, 2), (N.dim, 8, 10, 6))
    result = assign_layouts(graph, Context())
    assert [node.op for node in result.nodes if node.output is not result.outputs[0]].count("copy") == 0
