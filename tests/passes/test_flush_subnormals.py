"""Subnormal weights: found, rounded by less than anyone can see, still made of the model's own, and kept if exact."""

from __future__ import annotations

import numpy as np
import pytest

from aot import recipe
from aot.builder import Builder
from aot.dtypes import F32
from aot.ir import Array, Const, Graph
from aot.options import CompileOptions
from aot.passes import Context, PassManager
from aot.program import Source
from aot.transforms.flush_subnormals import flush_subnormals, subnormal_share

TINY = float(np.finfo(np.float32).tiny)


def graph_of(weight: Array) -> Graph:
    builder = Builder()
    x = builder.input("x", F32, (2, weight.shape[0]))
    w = builder.const(weight, "w")
    return builder.finish((builder.matmul(x, w), builder.add(w, w)))


def weights_of(graph: Graph) -> Const:
    """The constant that the matmul reads."""
    (product,) = (node for node in graph.nodes if node.op == "matmul")
    return graph.consts[product.operands[1]]


def flushed(graph: Graph, **options: object) -> Graph:
    context = Context(options=CompileOptions(**options))  # type: ignore[arg-type]
    return PassManager((flush_subnormals,), context).run(graph)


def test_share_of_subnormals() -> None:
    smallest = np.float32(1e-45)
    values = [0.0, -0.0, smallest, -smallest, TINY, -TINY, TINY / 2, np.inf, np.nan, 1.0, -1e-40, 3e38]
    assert subnormal_share(np.array(values, np.float32)) == pytest.approx(4 / 12)
    assert subnormal_share(np.zeros((0, 3), np.float32)) == 0.0


def test_weights_change_by_less_than_the_smallest_normal_number() -> None:
    random = np.random.default_rng(0)
    weight = (random.normal(size=(64, 48)) * 10.0 ** random.integers(-45, 30, (64, 48))).astype(np.float32)
    weight[0, :4] = np.inf, -np.inf, 0.0, -0.0
    graph = flushed(graph_of(weight))
    const = weights_of(graph)
    found = const.array()
    assert subnormal_share(weight) > 0.05 and subnormal_share(found) == 0.0
    finite = np.isfinite(weight)
    np.testing.assert_array_equal(found[~finite], weight[~finite])
    error = np.abs(found[finite].astype(np.float64) - weight[finite].astype(np.float64))
    assert error.max() <= TINY
    assert (error[np.abs(weight[finite]) >= 2.0**-102] == 0).all()
    assert const.recipe is not None and [source.source for source in const.recipe_sources] == ["w"]
    made = recipe.run(const.recipe, [Source("w", source) for source in const.recipe_sources])
    np.testing.assert_array_equal(made, found)
    (total,) = (node for node in graph.nodes if node.op == "add")
    assert graph.consts[total.operands[0]].array() is not found, "other readers keep the weights as they are"


def test_what_has_none_or_must_be_exact_stays() -> None:
    plain = graph_of(np.ones((4, 4), np.float32))
    assert flushed(plain) is plain
    some = graph_of(np.full((4, 4), 1e-40, np.float32))
    assert flushed(some) is not some
    assert flushed(some, exact=True) is some
