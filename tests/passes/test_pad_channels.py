"""Images of few channels are padded for GPUs, channels last, and their weights by a recipe; not for CPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.backend.cpu import CpuBackend
from aot.builder import Builder
from aot.dtypes import F16, F32, DType
from aot.ir import Graph
from tests.passes.test_absorb_moves import compiled, kernels


def stem(
    channels: int, size: int = 20, window: int = 3, groups: int = 1, dtype: DType = F16, constant: bool = True
) -> Graph:
    b = Builder()
    shape = (8 * groups, channels // groups, window, window)
    x = b.input("x", dtype, (1, channels, size, size))
    array = np.random.default_rng(0).standard_normal(shape).astype(dtype.numpy)
    weight = b.const(array, "weight") if constant else b.input("weight", dtype, shape)
    attrs: dict[str, Any] = {"dilations": (1, 1), "groups": groups, "pads": (1, 1, 1, 1), "strides": (1, 1)}
    return b.finish([b.op("conv", x, weight, **attrs)[0]])


@pytest.mark.parametrize(("channels", "dtype"), [(3, F16), (3, F32), (2, F16), (5, F16), (7, F32)])
def test_images_are_padded_in_the_kernel_that_turns_them(channels: int, dtype: DType) -> None:
    result = compiled(stem(channels, dtype=dtype))
    assert kernels(result)[0] == ["pad"] and kernels(result)[1][0] == "conv"
    pad = next(node for node in result.nodes if node.op == "kernel")
    assert pad.outputs[0].type.shape[1] == -(-channels // 4) * 4 and pad.outputs[0].type.order[-1] == 1
    (const,) = result.consts.values()
    assert const.recipe is not None and const.recipe_sources[0].source == "weight"


@pytest.mark.parametrize(
    "graph",
    [stem(1), stem(4), stem(16), stem(3, window=1), stem(3, size=5), stem(6, groups=2), stem(3, constant=False)],
)
def test_others_stay_as_they_are(graph: Graph) -> None:
    assert all("pad" not in ops for ops in kernels(compiled(graph)))


def test_a_cpu_reads_few_channels_as_they_are() -> None:
    assert all("pad" not in ops for ops in kernels(compiled(stem(3), CpuBackend())))
