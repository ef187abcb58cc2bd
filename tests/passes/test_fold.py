"""Folding: values, growth limits, outputs, and how folded weights say what they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.dtypes import BF16, F16, F32, F64, I64, DType
from aot.evaluate import evaluate
from aot.ir import Const, Graph, const_of
from aot.options import CompileOptions
from aot.passes import Context
from aot.program import RecipeOp, Source
from aot.recipe import run
from aot.transforms.fold import cast_const, fold
from aot.transforms.simplify import simplify
from aot.verify import verify
from tests.passes.cases import N, assert_same, built, f, f32, full, ints, n, w
from tests.passes.test_simplify import conv, image, kernel, norm

M = N.dim


def folded(build: Any) -> Graph:
    graph = built(build)
    result = fold(graph, Context())
    verify(result)
    assert_same(graph, result)
    return result


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def only_const(graph: Graph) -> Const:
    (const,) = graph.consts.values()
    return const


def remade(const: Const) -> np.ndarray[Any, Any]:
    """The constant made again from its sources by its recipe."""
    assert const.recipe is not None
    return run(const.recipe, [Source(source.source, source) for source in const.recipe_sources])


def half(b: Builder, dtype: DType, *shape: int, seed: int = 0) -> Any:
    """A weight in 16 bits, of numbers above 0."""
    array = np.abs(np.random.default_rng(seed).standard_normal(shape)) + 0.1
    return b.const(array.astype(dtype.numpy), f"half{seed}")


def test_constant_arithmetic_goes() -> None:
    result = folded(lambda b: b.add(f(b, "x", M, 3), b.mul(b.neg(w(b, 3)), n(b, 2.0))))
    assert ops(result) == ["add"] and len(result.consts) == 1


def test_nothing_to_fold_gives_the_same_graph() -> None:
    graph = built(lambda b: b.add(f(b, "x", M, 3), w(b, 3)))
    assert fold(graph, Context()) is graph


def test_a_constant_output_is_copied_into_its_buffer() -> None:
    graph = built(lambda b: (b.mul(w(b, 3), n(b, 2.0)), b.neg(f(b, "x", 3))))
    result = fold(graph, Context())
    verify(result)
    assert ops(result) == ["copy", "neg"] and result.outputs == graph.outputs
    assert fold(result, Context()) is result


def test_a_constant_output_that_is_read_inside_too() -> None:
    def build(b: Builder) -> Any:
        total = b.mul(w(b, 3), n(b, 2.0))
        return total, b.add(f(b, "x", 3), b.exp(b.neg(total)))

    assert ops(folded(build)) == ["copy", "add"]


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda b: b.add(f(b, "x", 200, 200), b.expand(w(b, 1, 200), shape=(200, 200))), ["expand", "add"]),
        (lambda b: b.add(f(b, "x", 20, 20), b.expand(w(b, 1, 20), shape=(20, 20))), ["add"]),
        (lambda b: b.add(f(b, "x", 400, 100), b.tile(w(b, 1, 100), repeats=(400, 1))), ["tile", "add"]),
        (
            lambda b: b.add(
                f(b, "x", 100, 100, dtype=I64), b.iota(shape=(100, 100), axis=0, start=0, step=1, dtype=I64)
            ),
            ["iota", "add"],
        ),
        (lambda b: b.add(f(b, "x", 100, dtype=I64), b.iota(shape=(100,), axis=0, start=0, step=1, dtype=I64)), ["add"]),
        (lambda b: b.add(f(b, "x", 200, 200), b.mul(w(b, 200, 1), w(b, 200))), ["mul", "add"]),
        (
            lambda b: b.add(
                f(b, "x", 3), b.reduce_sum(b.expand(w(b, 1, 3), shape=(9999, 3)), axes=(0,), keepdims=False)
            ),
            ["expand", "reduce_sum", "add"],
        ),
    ],
)
def test_folding_does_not_make_small_graphs_big(build: Any, left: list[str]) -> None:
    assert ops(folded(build)) == left


def test_sizes_that_are_not_known_stay() -> None:
    result = folded(lambda b: (b.dim_tensor(dims=(M, 4)), b.expand(n(b, 1.0), shape=(M,)), f(b, "x", M)))
    assert ops(result) == ["dim_tensor", "expand"]


def test_bisection_counts_folds() -> None:
    graph = built(lambda b: b.add(f(b, "x", 3), b.neg(b.neg(w(b, 3)))))
    assert ops(fold(graph, Context(options=CompileOptions(bisect=1)))) == ["neg", "add"]


@pytest.mark.parametrize(
    "build",
    [
        lambda b: b.add(w(b, 2, 3), w(b, 3, seed=1)),
        lambda b: b.div(b.sub(w(b, 2, 3), n(b, 0.5)), b.neg(w(b, 3, seed=1))),
        lambda b: b.sqrt(b.mul(w(b, 2, 3), w(b, 2, 3))),
        lambda b: b.reciprocal(w(b, 2, 3)),
        lambda b: b.cast(w(b, 2, 3), to=F64),
        lambda b: b.cast(b.cast(w(b, 2, 3), to=F16), to=F32),
        lambda b: b.reshape(b.transpose(w(b, 2, 3, 4), perm=(2, 0, 1)), shape=(8, 3)),
        lambda b: b.slice_(w(b, 4, 6), starts=(0, 0), sizes=(4, 3), steps=(1, 2)),
        lambda b: b.expand(w(b, 1, 3), shape=(2, 4, 3)),
        lambda b: b.pad(w(b, 2, 3), before=(0, 0), after=(1, 2)),
        lambda b: b.mul(w(b, 2, 3), b.reshape(n(b, 0.3), shape=(1, 1))),
        lambda b: (lambda a: b.mul(b.add(a, w(b, 3, seed=1)), a))(w(b, 3)),
        lambda b: b.div(half(b, F16, 2, 3), b.sqrt(b.add(half(b, F16, 3, seed=1), b.cast(n(b, 1e-3), to=F16)))),
        lambda b: b.reciprocal(b.mul(half(b, BF16, 2, 3), half(b, BF16, 3, seed=1))),
    ],
)
def test_recipes_remake_the_bits(build: Any) -> None:
    graph = fold(built(lambda b: (b.copy(build(b)), b.neg(f(b, "x", 2)))), Context())
    const = only_const(graph)
    assert const.source and all(source.source for source in const.recipe_sources)
    again = remade(const)
    assert again.dtype == const.array().dtype and again.shape == const.shape
    assert again.tobytes() == const.array().tobytes()


def test_a_weight_used_twice_is_one_source() -> None:
    graph = fold(built(lambda b: (b.copy((lambda a: b.mul(b.neg(a), a))(w(b, 3))), f(b, "x", 2))), Context())
    const = only_const(graph)
    assert len(const.recipe_sources) == 1
    assert [step.op for step in const.recipe or ()] == [RecipeOp.SOURCE, RecipeOp.NEG, RecipeOp.SOURCE, RecipeOp.MUL]


@pytest.mark.parametrize(
    "build",
    [
        lambda b: b.exp(w(b, 3)),
        lambda b: b.slice_(w(b, 4), starts=(1,), sizes=(2,), steps=(1,)),
        lambda b: b.pad(w(b, 4), before=(1,), after=(0,)),
        lambda b: b.pad(w(b, 4), n(b, 1.0), before=(0,), after=(1,)),
        lambda b: b.mul(w(b, 3), full(b, 2.0, 3)),
        lambda b: b.cast(w(b, 3), to=I64),
    ],
)
def test_what_no_recipe_can_say_stands_for_itself(build: Any) -> None:
    graph = fold(built(lambda b: (b.copy(build(b)), f(b, "x", 2))), Context())
    const = only_const(graph)
    assert const.recipe is None and const.source == ""


def test_numbers_without_a_weight_have_no_recipe() -> None:
    graph = fold(built(lambda b: (b.copy(b.mul(n(b, 2.0), n(b, 3.0))), f(b, "x", 2))), Context())
    assert only_const(graph).recipe is None


def test_weights_of_a_folded_batch_norm_can_be_remade() -> None:
    graph = simplify(built(lambda b: norm(b, conv(b, image(b), kernel(b), w(b, 6)), 6)), Context())
    assert ops(graph) == ["conv"] and len(graph.consts) == 2
    for const in graph.consts.values():
        assert remade(const).tobytes() == const.array().tobytes()
        assert len(const.recipe_sources) >= 3


def test_an_operand_may_be_omitted() -> None:
    result = folded(lambda b: b.add(f(b, "x", 3), b.clip(w(b, 3), None, n(b, 0.5))))
    assert ops(result) == ["add"]


def test_bits_of_special_values_survive() -> None:
    special = f32([np.nan, -np.inf, np.inf, -0.0, 1e-45])
    b = Builder()
    x = b.input("x", F32, (5,))
    y = b.where(b.const(np.ones(5, bool)), b.const(special), x)
    graph = b.finish([b.add(b.mul(y, b.scalar(0.0, F32)), b.abs(b.const(special)))])
    result = fold(graph, Context())
    feed = [np.zeros(5, np.float32)]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate(graph, feed)[0], evaluate(result, feed)[0])


def test_integer_constants() -> None:
    result = folded(lambda b: b.gather(f(b, "x", 6, 2), b.add(ints(b, 0, 1), ints(b, 2, 3)), axis=0))
    assert ops(result) == ["gather"]


@pytest.mark.parametrize("source", ["", "w"])
def test_a_constant_in_another_type(source: str) -> None:
    """Also one that a recipe could only make of a number, with no weight in it."""
    const = const_of(np.full((1, 1), 0.3, np.float32), source)
    made = cast_const(const, F16)
    assert made.array() == np.float16(0.3) and made.dtype == F16
    assert (made.recipe is not None) == bool(source)
