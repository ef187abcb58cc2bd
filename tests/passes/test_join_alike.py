"""What neighbouring parts of a tensor go through alike is done once, and where that must not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.dims import Dim
from aot.dtypes import F32, I64
from aot.evaluate import evaluate
from aot.ir import Graph, Value
from aot.passes import Context, PassManager
from aot.pipeline import CORE_PASSES, TARGET_PASSES
from aot.target import Target
from aot.transforms.join_alike import join_alike
from aot.verify import verify
from tests.passes.cases import N, built, f, inputs_for
from tests.passes.test_join import Joiner, S, context, kernels, ops, weight

HEADS, SIZE = (4, 2), 6
"""Heads of the two parts, and elements of one."""


def alike(build: Callable[[Builder], Any], given: Context | None = None) -> tuple[Graph, Graph, Context]:
    """The graph, and after the pass alone: it verifies, and computes the same bits."""
    graph, given = built(build), given or context()
    result = join_alike(graph, given)
    verify(result, has_halos=False)
    arrays = inputs_for(graph)
    for got, wanted in zip(evaluate(result, arrays), evaluate(graph, arrays), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)
    return graph, result, given


def launches(build: Callable[[Builder], Any], joins: bool = True) -> int:
    """Kernels after all passes."""
    given = Context(backend=Joiner(joins_products=joins))
    return len(kernels(PassManager((*CORE_PASSES, *TARGET_PASSES), given).run(built(build))))


def count(graph: Graph, op: str) -> int:
    return ops(graph).split().count(op)


def part(b: Builder, x: Value, axis: int, start: int, size: int) -> Any:
    """A slice along one axis."""
    sizes: list[Dim] = list(x.type.shape)
    sizes[axis] = size
    starts = tuple(start if each == axis else 0 for each in range(len(sizes)))
    return b.slice(x, starts=starts, sizes=tuple(sizes), steps=(1,) * len(sizes))


def turned(b: Builder, x: Value, cos: Value, sin: Value) -> Any:
    """Rotary positions, as a model writes them."""
    half = SIZE // 2
    low, high = part(b, x, 3, 0, half), part(b, x, 3, half, half)
    return b.add(b.mul(x, cos), b.mul(b.concat(b.neg(high), low, axis=3), sin))


def halves(b: Builder, x: Value, cos: Value, sin: Value) -> Any:
    """Rotary positions, half by half."""
    half = SIZE // 2
    low, high = part(b, x, 3, 0, half), part(b, x, 3, half, half)
    cos, sin = part(b, cos, 3, 0, half), part(b, sin, 3, 0, half)
    return b.concat(
        b.sub(b.mul(low, cos), b.mul(high, sin)), b.add(b.mul(high, cos), b.mul(low, sin)), axis=3
    )  # fmt: skip


def layer(lead: tuple[Dim, Dim], turn: Callable[..., Any] = turned, shared: bool = True) -> Callable[[Builder], Any]:
    """Attention with rotary positions of queries and keys, by three products."""

    def build(b: Builder) -> Any:
        x = b.softmax(f(b, "x", *lead, 8), axis=2)
        tables = [f(b, name, 1, 1, lead[1], SIZE) for name in ("cos", "sin", "cos2", "sin2")]

        def split(name: str, heads: int) -> Any:
            made = b.matmul(x, weight(b, name, 8, heads * SIZE))
            return b.transpose(b.reshape(made, shape=(*lead, heads, SIZE)), perm=(0, 2, 1, 3))

        q = turn(b, split("q", HEADS[0]), *tables[:2])
        k = turn(b, split("k", HEADS[1]), *(tables[:2] if shared else tables[2:]))
        return b.attention(q, k, split("v", HEADS[1]), scale=0.5)

    return build


@pytest.mark.parametrize("turn", [turned, halves])
@pytest.mark.parametrize("lead", [(2, 5), (1, 1), (1, 5), (3, 1), (N.dim, S.dim), (N.dim, 1)])
def test_rotary_positions_of_queries_and_keys(lead: tuple[Dim, Dim], turn: Callable[..., Any]) -> None:
    build = layer(lead, turn)
    joined, apart = launches(build), launches(build, False)
    assert (apart, joined) == (9, 5)  # two products less, and a turn, which is two kernels
    graph = built(build)
    given = Context(backend=Joiner())
    result = PassManager((*CORE_PASSES, *TARGET_PASSES), given).run(graph)
    arrays = inputs_for(graph)
    np.testing.assert_allclose(evaluate(result, arrays)[0], evaluate(graph, arrays)[0], rtol=1e-4, atol=1e-5)


def test_other_tables_for_keys() -> None:
    assert launches(layer((2, 5), shared=False)) == 7
    assert launches(layer((2, 5), shared=False), False) == 9


def test_steps_of_decoding_whose_keys_are_split() -> None:
    """Queries and keys are turned by arithmetic alone; attention to the cache is done in parts, a kernel of its own."""

    def build(b: Builder) -> Any:
        x, table = b.softmax(f(b, "x", 1, 1, 8), axis=2), f(b, "table", 1, 1, 1, 16)
        place = b.expand(b.input("place", I64, (1, 1, 1, 1)), shape=(1, 2, 1, 16))
        q, k, v = (
            b.reshape(b.matmul(x, weight(b, name, 8, heads * 16)), shape=(1, heads, 1, 16))
            for name, heads in (("q", 4), ("k", 2), ("v", 2))
        )
        kept = [f(b, name, 1, 2, 4096, 16) for name in ("keys", "values")]
        kept = [b.scatter_elements(c, place, n, axis=2) for c, n in zip(kept, (b.mul(k, table), v), strict=True)]
        return b.attention(b.mul(q, table), *kept, scale=0.25), *kept

    counts = []
    for joins in (False, True):
        backend = Joiner(joins_products=joins, splits_keys=True)
        given = Context(target=Target("gpu", "large", numbers={"multiprocessors": 132}), backend=backend)
        counts.append(PassManager((*CORE_PASSES, *TARGET_PASSES), given).run(built(build)))
    assert all("attend_parts" in [str(node.attrs["kind"]) for node in kernels(graph)] for graph in counts)
    apart, joined = (len(kernels(graph)) for graph in counts)
    assert apart - joined == 3  # two products, and one turn


# The pass alone.


def reads(b: Builder, value: Value) -> Any:
    """A reader that takes any strides and computes nothing with its operand."""
    shape = value.type.shape
    return b.matmul(value, weight(b, "reader", shape[-1], 3))  # type: ignore[arg-type]


def test_views_and_arithmetic() -> None:
    def build(b: Builder) -> Any:
        x, bias = f(b, "x", 3, 10), f(b, "bias", 3, 1)
        return [reads(b, b.tanh(b.add(part(b, x, 1, start, size), bias))) for start, size in ((0, 4), (4, 4))]

    _, result, _ = alike(build)
    assert ops(result) == "slice add tanh slice slice matmul matmul"


def test_longest_run_first() -> None:
    def build(b: Builder) -> Any:
        x = f(b, "x", 9, 4)
        parts = [part(b, x, 0, start, 3) for start in (0, 3, 6)]
        return [reads(b, b.exp(each)) for each in parts]

    _, result, _ = alike(build)
    assert ops(result) == "exp slice slice slice matmul matmul matmul"


def test_some_of_a_run() -> None:
    def build(b: Builder) -> Any:
        x = f(b, "x", 9, 4)
        parts = [part(b, x, 0, start, 3) for start in (0, 3, 6)]
        return [reads(b, op(each)) for op, each in zip((b.tanh, b.exp, b.exp), parts, strict=True)]

    _, result, _ = alike(build)
    assert count(result, "exp") == 1 and count(result, "tanh") == 1


def test_equal_constants_and_casts() -> None:
    def build(b: Builder) -> Any:
        x = f(b, "x", 4, 8)
        made = []
        for start in (0, 4):
            scale = b.const(np.full((8,), 2.0, np.float32))
            whole = b.cast(b.mul(part(b, x, 0, start // 2, 2), scale), to=I64)
            made.append(reads(b, b.cast(whole, to=F32)))
        return made

    _, result, _ = alike(build)
    assert count(result, "mul") == 1 and count(result, "cast") == 2


def one_after_the_other(b: Builder, x: Value) -> list[Any]:
    """The second part is computed with the first: not alike."""
    first = b.exp(part(b, x, 1, 0, 4))
    return [reads(b, first), reads(b, b.exp(b.mul(part(b, x, 1, 4, 4), first)))]


def each(*apply: Callable[[Builder, Value], Any]) -> Callable[[Builder, Value], list[Any]]:
    """Something done with the first four and with the other columns, or rows of a square."""

    def build(b: Builder, x: Value) -> list[Any]:
        functions = apply if len(apply) == 2 else apply * 2
        return [function(b, part(b, x, 1, start, 4)) for function, start in zip(functions, (0, 4), strict=True)]

    return build


STAYS: dict[str, tuple[Callable[[Builder, Value], Any], str]] = {
    "other ops": (each(lambda b, v: reads(b, b.exp(v)), lambda b, v: reads(b, b.tanh(v))), ""),
    "other operands": (
        each(
            lambda b, v: reads(b, b.mul(v, weight(b, "u", 4))),
            lambda b, v: reads(b, b.mul(v, weight(b, "w", 4))),
        ),
        "",
    ),
    "an operand along the axis": (each(lambda b, v: reads(b, b.mul(v, b.const(np.arange(4, dtype=np.float32))))), ""),
    "only views": (each(lambda b, v: reads(b, b.transpose(v, perm=(1, 0)))), ""),
    "overlapping": (
        lambda b, x: [reads(b, b.exp(part(b, x, 1, start, 4))) for start in (0, 3)],
        "",
    ),
    "a gap": (lambda b, x: [reads(b, b.exp(part(b, x, 1, start, 3))) for start in (0, 4)], ""),
    "a sum over the axis": (each(lambda b, v: b.reduce_sum(v, axes=(1,), keepdims=True)), ""),
    "read by a sum": (each(lambda b, v: b.reduce_sum(b.exp(v), axes=(0,), keepdims=False)), "computed with it"),
    "results": (each(lambda b, v: b.exp(v)), ""),
    "one after the other": (one_after_the_other, ""),
    "met by one kernel": (
        lambda b, x: b.mul(b.exp(part(b, x, 1, 0, 4)), b.exp(part(b, x, 1, 4, 4))),
        "computed with it",
    ),
    "axes that a view merges": (
        each(lambda b, v: b.softmax(b.reshape(b.exp(v), shape=(32,)), axis=0)), "would have to move",
    ),
    "a copy that would be computed along": (
        each(lambda b, v: b.softmax(b.reshape(b.exp(v), shape=(2, 16)), axis=0)), "would have to move",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name: str) -> None:
    build, why = STAYS[name]
    graph, result, given = alike(lambda b: build(b, f(b, "x", 8, 8)))
    assert result is graph
    assert any(why in str(refusal) for refusal in given.diagnostics.refusals) == bool(why)


def test_concatenations_read_by_others() -> None:
    """Nothing is computed with a concatenation, so arithmetic behind it costs no kernel more."""

    def build(b: Builder) -> Any:
        x = f(b, "x", 8, 8)
        made = []
        for start in (0, 4):
            half = part(b, x, 1, start, 4)
            made.append(b.concat(b.exp(half), b.tanh(half), axis=0))
        return b.mul(made[0], made[1]), b.concat(made[0], f(b, "y", 16, 3), axis=1)

    _, result, _ = alike(build)
    assert count(result, "exp") == 1 and count(result, "tanh") == 1


def test_a_view_of_parts_that_someone_else_reads_stays() -> None:
    def build(b: Builder) -> Any:
        x = f(b, "x", 8, 8)
        halves = [b.reshape(part(b, x, 1, start, 4), shape=(8, 2, 2)) for start in (0, 4)]
        return [*(reads(b, b.exp(half)) for half in halves), b.tanh(halves[1])]

    _, result, _ = alike(build)
    assert count(result, "exp") == 1 and count(result, "tanh") == 1


def test_disabled_bisected_and_for_others() -> None:
    graph = built(lambda b: [reads(b, b.exp(part(b, x, 1, start, 4))) for x in [f(b, "x", 8, 8)] for start in (0, 4)])
    assert join_alike(graph, context(bisect=0)) is graph
    assert join_alike(graph, context(disable=("join_alike",))) is graph
    assert join_alike(graph, Context(backend=Joiner(joins_products=False))) is graph
    assert count(join_alike(graph, context()), "exp") == 1
