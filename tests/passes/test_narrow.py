"""What --precision narrows and what it leaves alone, rule by rule; the numbers by the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.dims import Symbol
from aot.dtypes import BF16, F16, F32, F64, I64, DType
from aot.evaluate import evaluate
from aot.ir import Graph, Level, Node, Value
from aot.options import CompileOptions
from aot.passes import Context, PassManager
from aot.pipeline import CORE_PASSES, TARGET_PASSES
from aot.program import RecipeOp, Source
from aot.recipe import run as run_recipe
from aot.recipe import source
from aot.transforms.narrow import SMALL_ELEMENTS
from tests.passes.cases import f, w

BIG = 20  # squared, it is above SMALL_ELEMENTS


def narrowed(
    build: Callable[[Builder], Any], precision: str = "fp16", state: Iterable[tuple[int, int]] = (),
    **options: Any,
) -> tuple[Graph, Context]:  # fmt: skip
    """The graph after all passes; every step verifies. The reference agrees within a few roundings."""
    b = Builder()
    made = build(b)
    outputs = (made,) if isinstance(made, Value) else tuple(made)
    graph = b.finish(outputs, [(b.inputs[i], outputs[o]) for i, o in state])
    context = Context(options=CompileOptions(precision=precision, **options))
    result = PassManager((*CORE_PASSES, *TARGET_PASSES), context).run(graph)
    assert result.level is Level.ORDERED
    if not graph.symbols:
        arrays = [_random(value, number) for number, value in enumerate(graph.inputs)]
        for got, wanted in zip(evaluate(result, arrays), evaluate(graph, arrays), strict=True):
            assert got.dtype == wanted.dtype
            bound = {"fp32": 1e-5, "tf32": 1e-5, "fp16": 2e-2, "bf16": 1e-1}[precision] * max(
                float(np.abs(wanted).max()), 1.0
            )
            assert np.abs(got.astype(np.float64) - wanted).max() <= bound
    return result, context


def _random(value: Value, seed: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(seed)
    shape = tuple(extent for extent in value.type.shape if isinstance(extent, int))
    if value.type.dtype.is_float:
        return random.standard_normal(shape).astype(value.type.dtype.numpy)
    return random.integers(0, 2, shape).astype(value.type.dtype.numpy)


def kernel(graph: Graph, op: str, last: bool = False) -> Node:
    """The first (or last) kernel with an op in it."""
    found = [n for n in graph.nodes if n.op == "kernel" and any(part.op == op for part in n.regions[0].nodes)]
    return found[-1 if last else 0]


def made(graph: Graph, op: str, last: bool = False) -> list[DType]:
    """The element types of what the kernel with an op makes."""
    return [value.type.dtype for value in kernel(graph, op, last).outputs]


def held(graph: Graph) -> dict[str, DType]:
    """The element types of the constants by name."""
    return {const.source: const.dtype for const in graph.consts.values()}


def is_rounded(node: Node, half: DType = F16) -> bool:
    """Whether all factors of the kernel's product pass through 16 bits."""
    (body,) = node.regions
    product = next(part for part in body.nodes if part.op in ("matmul", "conv", "attention"))
    for value in product.operands[: 3 if product.op == "attention" else 2]:
        source_node = body.producer.get(value)
        if source_node is None or source_node.op != "cast" or source_node.operands[0].type.dtype != half:
            return False
    return True


def product(b: Builder, x: Value | None = None, seed: int = 1, size: int = BIG) -> Any:
    """An activation of size x size."""
    return b.matmul(f(b, f"x{seed}", size, size) if x is None else x, w(b, size, size, seed=seed))


@pytest.mark.parametrize(("precision", "half"), [("fp16", F16), ("bf16", BF16)])
def test_activations_and_weights(precision: str, half: DType) -> None:
    def build(b: Builder) -> Any:
        bias = b.const(np.linspace(0.1, 1, BIG, dtype=np.float32), "bias")
        return product(b, b.relu(b.add(product(b), bias)), 2)

    graph, _ = narrowed(build, precision)
    assert made(graph, "relu") == [half]
    assert held(graph) == {"w1": half, "w2": half, "bias": F32}
    assert [value.type.dtype for value in (*graph.inputs, *graph.outputs)] == [F32, F32]
    assert all(is_rounded(node, half) for node in graph.nodes)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_nothing_changes_in_other_precisions(precision: str) -> None:
    graph, _ = narrowed(lambda b: product(b, product(b), 2), precision)
    assert {value.type.dtype for value in graph.values()} == {F32}


def test_it_can_be_disabled_and_bisected() -> None:
    def build(b: Builder) -> Any:
        return product(b, product(b), 2)

    graph, _ = narrowed(build, disable=("narrow",))
    assert {value.type.dtype for value in graph.values()} == {F32}
    _, context = narrowed(build)
    assert context.rewrites.by_rule["narrow"] == 5  # two products, two weights, what lies between them
    graph, _ = narrowed(build, bisect=context.rewrites.fired - 1)
    assert F16 in {value.type.dtype for value in graph.values()}


def test_views_and_concatenations_follow_what_they_view() -> None:
    def build(b: Builder) -> Any:
        h = b.tanh(product(b))
        left = b.slice(h, starts=(0, 0), sizes=(BIG, 10), steps=(1, 1))
        whole = b.concat(b.neg(left), b.exp(left), axis=1)
        return product(b, b.transpose(b.reshape(whole, shape=(BIG, BIG)), perm=(1, 0)), 2)

    graph, _ = narrowed(build)
    assert all(v.type.dtype == F16 for n in graph.nodes if n.op != "kernel" for v in (*n.operands, *n.outputs))
    assert any(node.op == "concat" for node in graph.nodes)


def test_a_view_of_an_output_keeps_its_type() -> None:
    def build(b: Builder) -> Sequence[Value]:
        h = b.tanh(product(b))
        return b.reshape(h, shape=(BIG * BIG,)), product(b, h, 2)

    graph, _ = narrowed(build)
    assert made(graph, "tanh") == [F32]
    assert is_rounded(graph.nodes[-1])  # rounded in the kernel instead


def test_sums_and_statistics_stay() -> None:
    def build(b: Builder) -> Sequence[Value]:
        h = b.tanh(product(b, size=300))
        total = b.reduce_sum(h, axes=(1,), keepdims=True)
        return (product(b, b.mul(b.sub(h, total), b.tanh(total)), 2, 300),)

    graph, _ = narrowed(build)
    assert made(graph, "tanh") == [F16]
    sums = {v.type.dtype for n in graph.nodes for v in n.outputs if v.type.shape == (300, 1)}
    assert sums <= {F32}


def test_running_sums_and_small_values_stay() -> None:
    graph, _ = narrowed(lambda b: product(b, b.cumsum(b.tanh(product(b)), axis=1, exclusive=False, reverse=False), 2))
    assert made(graph, "cumsum") == [F32] and made(graph, "tanh") == [F16]
    size = int(SMALL_ELEMENTS**0.5) - 1
    graph, _ = narrowed(lambda b: product(b, b.tanh(product(b, size=size)), 2, size))
    assert made(graph, "tanh") == [F32] and held(graph) == {"w1": F16, "w2": F16}


def test_what_descends_from_integers_stays() -> None:
    """Positions times frequencies, by multiplication and by a product of one column and one row."""

    def build(b: Builder) -> Any:
        positions = b.cast(b.input("positions", I64, (BIG, 1)), to=F32)
        rates = b.const(np.geomspace(1, 1e-4, BIG, dtype=np.float32).reshape(1, BIG), "rates")
        angles = b.add(b.matmul(positions, rates), b.mul(positions, rates))
        return b.mul(product(b), b.sin(b.transpose(angles, perm=(1, 0))))

    graph, _ = narrowed(build)
    assert held(graph)["rates"] == F32
    kernels = [node for node in graph.nodes if node.op == "kernel"]
    exact = [v.type.dtype for node in kernels for v in node.outputs if graph.inputs[1] not in node.operands]
    assert F16 not in exact


def test_a_product_of_integers_alone_is_exact_and_its_result_is_no_activation() -> None:
    def build(b: Builder) -> Any:
        flags = b.cast(b.input("flags", I64, (BIG, BIG)), to=F32)
        counts = b.matmul(flags, b.const(np.tri(BIG, dtype=np.float32), "triangle"))
        return product(b, b.sin(counts), 2)

    graph, context = narrowed(build)
    first = kernel(graph, "matmul")
    assert not is_rounded(first) and held(graph)["triangle"] == F32
    assert {value.type.dtype for value in (*first.outputs, *kernel(graph, "sin").outputs)} == {F32}
    assert context.diagnostics.why("narrow", "matmul")


def test_masks_stay_and_values_beyond_f16_too() -> None:
    def build(b: Builder) -> Any:
        mask = b.cast(b.input("mask", I64, (BIG, BIG)), to=F32)
        bias = b.mul(b.sub(b.scalar(1.0, F32), mask), b.scalar(-3e38, F32))
        scores = b.add(product(b), bias)
        return b.matmul(b.softmax(scores, axis=1), product(b, None, 3))

    graph, _ = narrowed(build)
    assert made(graph, "softmax") == [F16]
    assert all(value.type.dtype == F32 for value in kernel(graph, "add").outputs)
    graph, _ = narrowed(build, "bf16")  # has the range of f32
    assert made(graph, "softmax") == [BF16]


def test_lookups_in_tables_of_weights() -> None:
    def build(b: Builder) -> Any:
        ids = b.input("ids", I64, (BIG,))
        rows = b.gather(w(b, 30, BIG, seed=5), ids, axis=0)
        whole = b.gather(b.const(np.arange(600, dtype=np.float32).reshape(30, BIG), "whole"), ids, axis=0)
        return product(b, b.add(b.exp(rows), b.sin(whole)), 2)

    graph, _ = narrowed(build)
    assert held(graph) == {"w5": F16, "whole": F32, "w2": F16}


def test_a_weight_with_another_use_stays() -> None:
    def build(b: Builder) -> Any:
        x, weight = f(b, "x", BIG, BIG), w(b, BIG, BIG, seed=7)
        return b.add(b.matmul(b.tanh(b.matmul(x, weight)), w(b, BIG, BIG)), b.exp(weight))

    graph, _ = narrowed(build, disable=("fold",))
    assert held(graph)["w7"] == F32 and held(graph)["w0"] == F16
    assert is_rounded(kernel(graph, "tanh"))


def test_weights_that_do_not_fit_stay_with_a_note() -> None:
    def build(b: Builder) -> Any:
        h = b.matmul(f(b, "x", BIG, BIG), b.const(np.full((BIG, BIG), 7e4, np.float32) + 0.5, "large"))
        return b.matmul(b.tanh(h), b.const(np.full((BIG, BIG), 1.3e-7, np.float32), "tiny"))

    graph, context = narrowed(build)
    assert held(graph) == {"large": F32, "tiny": F32}
    large, tiny = context.diagnostics.notes
    assert "large stays f32" in large and "7e+04" in large and "beyond f16" in large
    assert "tiny stays f32" in tiny and "below the range of f16" in tiny
    assert not any(is_rounded(node) for node in graph.nodes)
    graph, context = narrowed(build, "bf16")
    assert held(graph) == {"large": BF16, "tiny": BF16} and not context.diagnostics.notes


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_weights_that_are_no_numbers_stay(bad: float) -> None:
    weights = np.linspace(-1, 1, BIG * BIG, dtype=np.float32).reshape(BIG, BIG)
    weights[3, 4] = bad
    b = Builder()
    graph = b.finish((b.matmul(f(b, "x", BIG, BIG), b.const(weights, "odd")),))
    context = Context(options=CompileOptions(precision="fp16"))
    result = PassManager((*CORE_PASSES, *TARGET_PASSES), context).run(graph)
    assert held(result) == {"odd": F32} and not is_rounded(result.nodes[-1])
    assert "odd stays f32" in context.diagnostics.notes[0]


def test_weights_keep_how_they_are_made() -> None:
    """A fold's recipe goes on with a cast, so that the weight can be given at load."""
    graph, _ = narrowed(
        lambda b: product(b, b.tanh(b.matmul(f(b, "x", BIG, BIG), b.transpose(w(b, BIG, BIG, seed=3), perm=(1, 0)))))
    )
    const = next(const for const in graph.consts.values() if const.source == "w3")
    assert const.dtype == F16 and const.recipe is not None and const.recipe[-1].op is RecipeOp.CAST
    (origin,) = const.recipe_sources
    assert origin.dtype == F32
    again = run_recipe(const.recipe, [Source("w3", origin)])
    np.testing.assert_array_equal(again, const.array())
    assert source(0) == const.recipe[0]


def test_ops_that_own_their_loops_read_and_write_f32() -> None:
    graph, _ = narrowed(lambda b: product(b, b.sort(b.tanh(product(b)), axis=1)[0], 2))
    assert made(graph, "tanh") == [F32] and F16 not in made(graph, "sort")
    assert is_rounded(graph.nodes[-1])


def test_caches_keep_the_types_of_the_model() -> None:
    def build(b: Builder) -> Sequence[Value]:
        cache, place = f(b, "cache", 1, 2, 24, 16), b.input("place", I64, (1, 2, 16, 16))
        key = b.reshape(b.matmul(f(b, "x", 32, 16), w(b, 16, 16)), shape=(1, 2, 16, 16))
        new = b.scatter_elements(cache, place, key, axis=2)
        return b.attention(key, new, new, scale=0.25), new

    graph, _ = narrowed(build, state=[(0, 1)])
    assert len(graph.state) == 1 and graph.inputs[0].type.dtype == graph.outputs[1].type.dtype == F32
    assert is_rounded(kernel(graph, "attention"))


def test_caches_in_half_that_are_no_state_move_as_they_are() -> None:
    """--io-dtype makes a cache f16: it is neither widened as a whole nor computed with when a row is replaced."""

    def build(b: Builder) -> Sequence[Value]:
        caches, place = f(b, "caches", 2, 1, 2, 24, 16), b.input("place", I64, (1, 2, 16, 16))
        cache = b.reshape(
            b.slice(caches, starts=(1, 0, 0, 0, 0), sizes=(1, 1, 2, 24, 16), steps=(1,) * 5), shape=(1, 2, 24, 16)
        )
        key = b.reshape(b.matmul(f(b, "x", 32, 16), w(b, 16, 16)), shape=(1, 2, 16, 16))
        new = b.scatter_elements(cache, place, key, axis=2)
        return (b.attention(key, new, new, scale=0.25),)

    b = Builder()
    graph = b.finish(build(b))
    context = Context(options=CompileOptions(precision="fp16", io_dtype="fp16"))
    result = PassManager((*CORE_PASSES, *TARGET_PASSES), context).run(graph)
    assert made(result, "scatter_elements") == [F16]
    assert not any(value.type.dtype == F32 for value in result.values() if value.type.elements == 2 * 24 * 16)
    arrays = [_random(value, number) for number, value in enumerate(graph.inputs)]
    halves = [array.astype(v.type.dtype.numpy) for array, v in zip(arrays, result.inputs, strict=True)]
    wide = [array.astype(v.type.dtype.numpy) for array, v in zip(halves, graph.inputs, strict=True)]
    np.testing.assert_allclose(evaluate(result, halves)[0], evaluate(graph, wide)[0], atol=2e-2)


def test_double_precision_stays() -> None:
    def build(b: Builder) -> Any:
        h = b.matmul(f(b, "x", BIG, BIG, dtype=F64), w(b, BIG, BIG, dtype=np.float64))
        return b.matmul(h, w(b, BIG, BIG, seed=2, dtype=np.float64))

    graph, _ = narrowed(build)
    assert {value.type.dtype for value in graph.values()} == {F64}


def test_convolutions_and_groups() -> None:
    """Grouped convolutions have no tensor cores: their weights are narrow, their input is not rounded."""

    def conv(b: Builder, x: Value, seed: int, *shape: int, groups: int = 1) -> Any:
        weights = w(b, *shape, seed=seed)
        return b.conv(x, weights, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), groups=groups)

    def build(b: Builder) -> Any:
        x = f(b, "x", 1, 8, 6, 6)
        return b.relu(conv(b, b.relu(conv(b, x, 1, 8, 1, 3, 3, groups=8)), 2, 16, 8, 3, 3))

    graph, _ = narrowed(build)
    assert held(graph) == {"w1": F16, "w2": F16}
    assert not is_rounded(kernel(graph, "conv")) and is_rounded(kernel(graph, "conv", last=True))
    assert made(graph, "conv") == [F16]


def test_open_sizes() -> None:
    batch = Symbol("N").dim

    def build(b: Builder) -> Any:
        return b.matmul(b.tanh(b.matmul(f(b, "x", batch, BIG), w(b, BIG, BIG))), w(b, BIG, BIG, seed=2))

    graph, _ = narrowed(build)
    assert held(graph) == {"w0": F16, "w2": F16} and is_rounded(graph.nodes[-1])
