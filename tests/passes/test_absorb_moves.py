"""Moves that a kernel makes itself: no copy before a reshape, turned axes, lines of a product's left operand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.backend.cpu import CpuBackend
from aot.backend.cuda import CudaBackend
from aot.builder import Builder
from aot.dtypes import F16, I64
from aot.evaluate import evaluate
from aot.ir import Graph
from aot.options import CompileOptions
from aot.passes import Context, PassManager
from aot.pipeline import CORE_PASSES, TARGET_PASSES
from tests.passes.random_graphs import RandomGraph, assert_alike


def compiled(graph: Graph, backend: Any = None) -> Graph:
    """The graph in kernels for a target, checked against what it was."""
    backend = backend or CudaBackend()
    target = backend.target("sm_90a" if backend.name == "cuda" else "x86-64-v4")
    context = Context(options=CompileOptions(), target=target, backend=backend)
    result = PassManager((*CORE_PASSES, *TARGET_PASSES), context).run(graph)
    random = np.random.default_rng(0)
    inputs = [
        random.standard_normal([int(str(e)) for e in v.type.shape]).astype(v.type.dtype.numpy) for v in graph.inputs
    ]
    for got, want in zip(evaluate(result, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(np.asarray(got, "f8"), np.asarray(want, "f8"), rtol=2e-2, atol=2e-2)
    return result


def kernels(graph: Graph) -> list[list[str]]:
    """The ops of every kernel, in order."""
    return [[node.op for node in k.regions[0].nodes] for k in graph.nodes if k.op == "kernel"]


def windows(b: Builder, x: Any) -> Any:
    """Windows of 2 x 3 of images, as rows of their own."""
    n, h, w, c = x.type.shape
    split = b.transpose(b.reshape(x, shape=(n, h // 2, 2, w // 3, 3, c)), perm=(0, 1, 3, 2, 4, 5))
    return b.reshape(split, shape=(n * (h // 2) * (w // 3), 6, c))


def images(b: Builder, x: Any, n: int, h: int, w: int) -> Any:
    """The inverse of `windows`."""
    c = x.type.shape[-1]
    split = b.transpose(b.reshape(x, shape=(n, h // 2, w // 3, 2, 3, c)), perm=(0, 1, 3, 2, 4, 5))
    return b.reshape(split, shape=(n, h, w, c))


def turn(b: Builder, x: Any, by: int, axis: int) -> Any:
    extent = x.type.shape[axis]
    return b.gather(x, b.const(((np.arange(extent) + by) % extent).astype("i8"), "table"), axis=axis)


def weight(b: Builder, *shape: int) -> Any:
    return b.const(np.random.default_rng(1).standard_normal(shape).astype("f2"), "w")


def test_a_product_reads_windows_where_they_are() -> None:
    b = Builder()
    x = b.input("x", F16, (2, 4, 6, 32))
    graph = b.finish([b.matmul(windows(b, b.exp(x)), weight(b, 32, 16))])
    assert kernels(compiled(graph)) == [["exp"], ["reshape_copy", "matmul"]]
    assert any("copy" in ops for ops in kernels(compiled(graph, CpuBackend())))


def test_a_product_reads_turned_images() -> None:
    b = Builder()
    x = b.input("x", F16, (2, 4, 6, 32))
    graph = b.finish([b.matmul(windows(b, turn(b, turn(b, b.exp(x), 1, 1), -2, 2)), weight(b, 32, 16))])
    first, second = kernels(compiled(graph))
    assert first == ["exp"] and second[-1] == "matmul" and second.count("gather") == 2 and "iota" in second


def test_a_norm_reads_what_windows_become() -> None:
    b = Builder()
    x, y = b.input("x", F16, (16, 6, 32)), b.input("y", F16, (2, 8, 6, 32))
    total = b.add(y, turn(b, images(b, b.exp(x), 2, 8, 6), 3, 1))
    graph = b.finish([b.op("layer_norm", total, weight(b, 32), weight(b, 32), axis=3, epsilon=1e-5)[0], total])
    assert len(kernels(compiled(graph))) <= 2


def test_lines_that_are_taken_apart_stay_copies() -> None:
    b = Builder()
    x = b.input("x", F16, (2, 4, 6, 32))
    turned = b.reshape(b.transpose(b.exp(x), perm=(0, 3, 1, 2)), shape=(2, 32, 24))  # channels are no longer innermost
    graph = b.finish([b.matmul(turned, weight(b, 24, 16))])
    assert all("matmul" not in ops or "reshape_copy" not in ops for ops in kernels(compiled(graph)))


def test_a_residual_around_turned_products_is_their_epilogue() -> None:
    b = Builder()
    image = b.input("x", F16, (2, 16, 5, 6))
    x = b.op("conv", image, weight(b, 16, 16, 1, 1), dilations=(1, 1), groups=1, pads=(0, 0, 0, 0), strides=(1, 1))[0]
    for _ in range(2):
        pooled = b.op("max_pool", x, window=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))[0]
        rows = b.transpose(pooled, perm=(0, 2, 3, 1))
        x = b.add(b.transpose(b.matmul(rows, weight(b, 16, 16)), perm=(0, 3, 1, 2)), x)
    graph = b.finish([b.op("max_pool", x, window=(2, 2), strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))[0]])
    assert [ops for ops in kernels(compiled(graph)) if "matmul" in ops] == 2 * [["matmul", "add"]]


def test_what_a_product_reads_keeps_its_axes() -> None:
    b = Builder()
    x = b.input("x", F16, (256, 512))
    rows = b.add(b.matmul(x, weight(b, 512, 512)), weight(b, 512))  # cut into parts, whose operands are only widened
    graph = b.finish([b.op("layer_norm", rows, weight(b, 512), weight(b, 512), axis=1, epsilon=1e-5)[0]])
    first, _ = kernels(compiled_without_check(graph))
    assert first[-1] == "matmul" and first.count("cast") == 2


def test_a_part_of_a_concatenation_keeps_its_axes() -> None:
    b = Builder()
    x = b.input("x", F16, (6, 8, 20))
    pooled = b.op("max_pool", x, window=(1,), strides=(1,), pads=(0, 0), dilations=(1,))[0]
    turned = b.transpose(pooled, perm=(2, 0, 1))
    whole = b.add(b.concat(turned, turned, axis=2), b.scalar(2.0, F16))  # added to each part, as they are alike
    rows = b.reshape(whole, shape=(10, 12, 16))
    graph = b.finish([b.matmul(turned, weight(b, 8, 16)), b.max(whole, weight(b, 6, 1)), rows])
    compiled(graph)


def test_a_table_that_turns_nothing_stays() -> None:
    b = Builder()
    x = b.input("x", F16, (5, 32))
    tables = [[3, 4, 0, 2, 1], [3, 4, 5, 6, 7], [-2, -1, -5, -4, -8]]  # what lies outside is the first or the last
    turned = [b.gather(x, b.const(np.array(table), f"table{n}"), axis=0) for n, table in enumerate(tables)]
    compiled(b.finish(turned))
    graph = b.finish([*turned, b.gather(x, b.input("i", I64, (2,)), axis=0)])
    assert "iota" not in {op for ops in kernels(compiled_without_check(graph)) for op in ops}


@pytest.mark.parametrize("first", range(0, 200, 40))
def test_random_graphs(first: int) -> None:
    for seed in range(first, first + 40):
        made = RandomGraph(seed)
        result = compiled_without_check(made.graph)
        assert_alike(evaluate(result, made.arrays), evaluate(made.graph, made.arrays), seed)


def test_bisection_counts_every_rewrite() -> None:
    b = Builder()
    x = b.input("x", F16, (2, 4, 6, 32))
    graph = b.finish([b.matmul(windows(b, turn(b, b.exp(x), 1, 1)), weight(b, 32, 16))])
    context = Context(options=CompileOptions(), target=CudaBackend().target("sm_90a"), backend=CudaBackend())
    PassManager((*CORE_PASSES, *TARGET_PASSES), context).run(graph)
    assert context.rewrites.by_rule["absorb_moves"] == 3  # the copy, the table, the views between them


def compiled_without_check(graph: Graph) -> Graph:
    backend = CudaBackend()
    context = Context(options=CompileOptions(), target=backend.target("sm_90a"), backend=backend)
    return PassManager((*CORE_PASSES, *TARGET_PASSES), context).run(graph)
