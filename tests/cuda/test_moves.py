"""Kernels that make moves themselves, under Triton's interpreter: random graphs, kernel by kernel."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot import dims
from aot.backend.cuda import CudaBackend
from aot.builder import Builder
from aot.dtypes import F16, F32, DType
from aot.evaluate import evaluate
from aot.ir import Graph
from aot.lower import lower
from tests.cuda.test_precision import ordered, run
from tests.passes.random_graphs import RandomGraph, assert_alike

BACKEND = CudaBackend()
MOST_LINES = 1500
"""Of Python that the interpreter runs for a graph, about."""


def lines(graph: Graph) -> int:
    """How much there is to run: programs times lines of text."""
    target, total = BACKEND.target("sm_90a"), 0
    for node in graph.nodes:
        if node.op == "kernel":
            emitted = BACKEND.emit(lower(node, lambda value: value in graph.consts), target)
            total += dims.evaluate(emitted.grid[0], {}) * emitted.source.count("\n")
    return total


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_graphs(first: int) -> None:
    for seed in range(first, first + 10):
        made = RandomGraph(seed)
        planned, context = ordered(made.graph, "fp32")
        if lines(planned) > MOST_LINES:
            continue
        found, _ = run(planned, context, made.arrays)
        assert_alike(found, evaluate(made.graph, made.arrays), seed)


@pytest.mark.parametrize("dtype", [F16, F32])
@pytest.mark.parametrize("rows", [2, 20])
def test_a_product_with_one_number(dtype: DType, rows: int) -> None:
    """A weight of one element stands in the kernel's text."""
    b = Builder()
    x = b.input("x", dtype, (rows, 1))
    made = b.matmul(b.exp(x), b.const(np.asarray([[1.25]], dtype.numpy), "w"))
    graph = b.finish([b.add(made, x)])
    array = np.random.default_rng(0).standard_normal((rows, 1)).astype(dtype.numpy)
    planned, context = ordered(graph, "fp32")
    found, _ = run(planned, context, [array])
    assert_alike(found, evaluate(graph, [array]), rows)
