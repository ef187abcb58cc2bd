"""--dim: fixing and bounding symbols everywhere in a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.dims import Symbol, maximum
from aot.dtypes import F32, I64
from aot.errors import ModelError, OptionError
from aot.evaluate import evaluate
from aot.ir import Graph, attr_symbols
from aot.options import CompileOptions, parse_dim_option
from aot.passes import Context
from aot.transforms.bind_shapes import bind_shapes
from aot.verify import verify

BATCH = Symbol("batch")
LENGTH = Symbol("length", 4, 512, 4)


def model() -> Graph:
    """Symbols in shapes, in attributes, and in expressions of both."""
    b = Builder()
    x = b.input("x", F32, (BATCH.dim, LENGTH.dim, 6))
    half = b.slice_(
        x, starts=(0, LENGTH.dim // 2, 0), sizes=(BATCH.dim, LENGTH.dim - LENGTH.dim // 2, 6), steps=(1, 1, 1)
    )
    flat = b.reshape(half, shape=(BATCH.dim * (LENGTH.dim // 2), 6))
    padded = b.pad(flat, before=(0, 0), after=(maximum(BATCH.dim - 1, 0), 0))
    sizes = b.dim_tensor(dims=(BATCH.dim, LENGTH.dim * 3))
    return b.finish([b.relu(padded), b.add(sizes, b.scalar(1, I64))])


def bound(*texts: str, graph: Graph | None = None) -> Graph:
    options = CompileOptions(dims=tuple(map(parse_dim_option, texts)))
    result = bind_shapes(graph or model(), Context(options=options))
    verify(result)
    return result


def same(result: Graph, batch: int, length: int) -> None:
    feed = [np.random.default_rng(0).standard_normal((batch, length, 6)).astype(np.float32)]
    for before, after in zip(evaluate(model(), feed), evaluate(result, feed), strict=True):
        np.testing.assert_array_equal(before, after)


def test_without_options_the_graph_is_the_same() -> None:
    graph = model()
    assert bind_shapes(graph, Context()) is graph


def test_fixed_dimensions_leave_no_trace() -> None:
    result = bound("batch=3", "length=8")
    assert result.symbols == ()
    assert result.inputs[0].type.shape == (3, 8, 6)
    assert not any(True for node in result.nodes for attr in node.attrs.values() for _ in attr_symbols(attr))
    same(result, 3, 8)


def test_one_dimension_fixed_and_one_open() -> None:
    result = bound("length=8")
    assert [symbol.name for symbol in result.symbols] == ["batch"]
    same(result, 2, 8)


def test_bounds_tighten_and_never_widen() -> None:
    symbols = {s.name: s for s in bound("length=1..100", "batch=2..").symbols}
    assert (symbols["length"].lo, symbols["length"].hi, symbols["length"].divisor) == (4, 100, 4)
    assert (symbols["batch"].lo, symbols["batch"].hi) == (2, None)
    same(bound("length=8..64", "batch=2.."), 2, 16)


def test_bounds_round_to_the_divisor() -> None:
    (symbol,) = (s for s in bound("length=5..23").symbols if s.name == "length")
    assert (symbol.lo, symbol.hi) == (8, 20)


def test_a_range_with_one_multiple_fixes_the_dimension() -> None:
    assert [s.name for s in bound("length=5..11").symbols] == ["batch"]


def test_expressions_are_decided_by_bounds() -> None:
    result = bound("batch=1")
    pad = next(node for node in result.nodes if node.op == "pad")
    assert pad.attrs["after"] == (0, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nobody=3", "no dimension 'nobody'"),
        ("length=600", "leaves no extent"),
        ("length=6", "leaves no extent"),
        ("length=5..7", "is a multiple of 4"),
        ("length=1..3", "leaves no extent"),
    ],
)
def test_impossible_bounds_are_told(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        bound(text)
    assert message in str(caught.value)


def test_the_error_lists_the_dimensions_there_are() -> None:
    with pytest.raises(OptionError) as caught:
        bound("bach=3")
    assert "batch, length" in caught.value.hint


def test_a_shape_that_an_op_cannot_take_names_the_node() -> None:
    graph = conv_model()
    with pytest.raises(ModelError) as caught:
        bound("batch=2", graph=graph)
    assert "conv (window)" in caught.value.where and "--dim" in caught.value.message


def conv_model() -> Graph:
    b = Builder(locs=("window",))
    x = b.input("x", F32, (1, 1, BATCH.dim))
    weight: Any = b.const(np.ones((1, 1, 5), np.float32), "w")
    return b.finish([b.conv(x, weight, strides=(1,), pads=(0, 0), dilations=(1,), groups=1)])


def test_state_and_outputs_follow() -> None:
    b = Builder()
    cache = b.input("cache", F32, (BATCH.dim,))
    new = b.add(cache, b.input("x", F32, (BATCH.dim,)))
    result = bound("batch=4", graph=b.finish([new], state=[(cache, new)]))
    ((before, after),) = result.state
    assert before is result.inputs[0] and after is result.outputs[0] and after.type.shape == (4,)
