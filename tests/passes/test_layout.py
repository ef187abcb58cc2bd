"""Layouts: a copy that a reshape needs is made in the order that the reshape's readers want."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.dims import Dim
from aot.dtypes import F16, F32, DType
from aot.evaluate import evaluate
from aot.ir import Graph
from aot.passes import Context
from aot.transforms.layout import assign_layouts
from tests.passes.cases import N, built, f, inputs_for, w
from tests.passes.test_absorb_moves import compiled_without_check


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


def image_network(precise: DType, merged: bool) -> Graph:
    """Convolutions of all kinds, a pool, a residual, a concatenation, a mean and a product, as image models have."""
    b = Builder("image")
    random = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return b.const(random.standard_normal(shape).astype(precise.numpy), f"w{len(b.consts)}")

    def conv(x: Any, outputs: int, window: int, stride: int = 1, groups: int = 1) -> Any:
        attrs: dict[str, Any] = {
            "strides": (stride,) * 2,
            "pads": (window // 2,) * 4,
            "dilations": (1, 1),
            "groups": groups,
        }
        shape = (outputs, x.type.shape[1] // groups, window, window)
        return b.relu(b.op("conv", x, weights(*shape), weights(outputs), **attrs)[0])

    x = conv(b.input("image", precise, (2, 3, 40, 36)), 16, 3, stride=2)
    x = b.op("max_pool", x, window=(3, 3), strides=(2, 2), pads=(1,) * 4, dilations=(1, 1))[0]
    inner = conv(conv(x, 16, 3), 16, 3, groups=16)
    x = b.add(conv(inner, 16, 1), x)
    x = b.concat(x, conv(x, 24, 1), conv(inner, 8, 5), axis=1)
    if merged:  # the channels as numbers of rows, as models that end in a transformer have them
        rows = b.transpose(b.reshape(conv(x, 32, 1), shape=(2, 32, 90)), perm=(0, 2, 1))
        return b.finish([b.matmul(rows, weights(32, 10))])
    mean = b.reshape(b.reduce_mean(x, axes=(2, 3), keepdims=True), shape=(2, 48))
    return b.finish([b.matmul(mean, weights(48, 10))])


@pytest.mark.parametrize("precise", [F16, F32])
@pytest.mark.parametrize("merged", [False, True])
def test_an_image_network_enters_by_one_pad_and_leaves_without_a_copy(precise: DType, merged: bool) -> None:
    result = compiled_without_check(image_network(precise, merged))
    ops = [{node.op for node in kernel.regions[0].nodes} for kernel in result.nodes if kernel.op == "kernel"]
    assert ops[0] == {"pad"}
    moves = {"pad", "copy", "transpose_copy", "reshape_copy", "gather"}
    assert not any(found & moves for found in ops[1:]), ops
    for value in result.values():
        if value.type.rank == 4 and value not in (*result.inputs, *result.consts) and value.type.shape[1] != 1:
            assert value.type.strides[1] == 1 or value.type.shape[2:] == (1, 1), value.type
