"""The text form: print and parse are inverse at every level, and bad text is a clear error."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim, Symbol
from aot.dtypes import F32
from aot.errors import ModelError
from aot.ir import Attr, Const, Graph, Layout, Level, Node, TensorType, Value, const_of
from aot.program import (
    Argument,
    Buffer,
    Constant,
    Guard,
    GuardKind,
    KernelCode,
    Port,
    Program,
    RecipeOp,
    RecipeStep,
    Source,
    Space,
    Step,
)
from aot.program_text import program_text
from aot.text import consts_of, graph_digest, lines_near, parse_graph, print_graph, type_text

N = Symbol("N", 1, 64)


def matmul_graph() -> Graph:
    """x @ w, then relu, with a 64-digit digest and the user's names."""
    x = Value(TensorType(F32, (N.dim, 64)), "x")
    weight = Value(TensorType(F32, (64, 256)), "w")
    hidden = Value(TensorType(F32, (N.dim, 256)))
    y = Value(TensorType(F32, (N.dim, 256)), "y")
    const = const_of(np.arange(64 * 256, dtype=np.float32).reshape(64, 256), "fc1.weight")
    nodes = (Node("matmul", (x, weight), (hidden,), locs=("fc1",)), Node("relu", (hidden,), (y,)))
    return Graph("mlp", (x,), {weight: const}, nodes, (y,))


def test_text_is_as_documented() -> None:
    graph = matmul_graph()
    digest = next(iter(graph.consts.values())).digest
    assert print_graph(graph) == (
        "aot ir 1\n"
        "graph mlp level=core {\n"
        "  where N in 1..64\n"
        "  %0 x: f32[N,64] = input\n"
        f"  %1 w: f32[64,256] = const sha256:{digest} fc1.weight\n"
        "  %2: f32[N,256] = matmul(%0, %1) ; fc1\n"
        "  %3 y: f32[N,256] = relu(%2)\n"
        "  output %3\n"
        "}\n"
    )


def test_layout_text() -> None:
    layout = Layout((0, 2, 3, 1), ((0, 0), (0, 0), (1, 1), (1, 1)))
    type_ = TensorType(F32, (N.dim, 64, 8, 8), layout)
    assert type_text(type_) == "f32[N,64,8,8]{order=0,2,3,1 halo=0:0,0:0,1:1,1:1}" == str(type_)


def test_resolver_gives_the_bytes_and_their_absence_is_told() -> None:
    graph = matmul_graph()
    text = print_graph(graph)
    (const,) = parse_graph(text, consts_of(graph).get).consts.values()
    assert const.array()[1, 0] == 256
    (missing,) = parse_graph(text).consts.values()
    assert (missing.dtype, missing.shape, missing.source) == (F32, (64, 256), "fc1.weight")
    with pytest.raises(ModelError, match=r"fc1\.weight.*not in the text"):
        missing.array()


def test_resolver_of_another_type_is_refused() -> None:
    text = print_graph(matmul_graph())
    other = const_of(np.zeros(3, dtype=np.float32))
    with pytest.raises(ModelError, match=r"is f32\[3\], the line says f32\[64,256\]"):
        parse_graph(text, lambda digest: other)


def test_equal_graphs_print_equal() -> None:
    graph = matmul_graph()
    assert graph_digest(graph) == graph_digest(matmul_graph())
    zero = Value(TensorType(F32, ()))
    one = Value(TensorType(F32, ()))
    total = Value(TensorType(F32, ()))
    consts = {zero: const_of(np.zeros((), np.float32)), one: const_of(np.ones((), np.float32))}
    node = Node("add", (one, zero), (total,), MappingProxyType({"b": 1, "a": 2}))
    first = Graph("g", (), consts, (node,), (total,))
    swapped = replace(node, attrs=MappingProxyType({"a": 2, "b": 1}))
    second = Graph("g", (), dict(reversed(consts.items())), (swapped,), (total,))
    assert print_graph(first) == print_graph(second)
    changed = replace(second, nodes=(replace(swapped, attrs=MappingProxyType({"a": 2, "b": 2})),))
    assert graph_digest(first) != graph_digest(changed)


@pytest.mark.parametrize(
    "array",
    [
        np.float32(0.1),
        np.float32("-inf"),
        np.float64(1e300),
        np.float32(-0.0),
        np.float32("nan"),
        np.bool_(True),
        np.array([1, -2, 3], np.int64),
        np.array([True, False]),
        np.zeros((0, 3), np.float32),
        np.array([2**64 - 1], np.uint64),
        np.array([[1, 2], [3, 4]], np.int8),
        np.float16(0.333),
    ],
)
def test_small_constants_print_their_values(array: Any) -> None:
    const = const_of(np.asarray(array), "k")
    value = Value(TensorType(const.dtype, const.shape))
    text = print_graph(Graph("g", (), {value: const}, (), (value,)))
    assert "sha256" not in text
    (parsed,) = parse_graph(text).consts.values()
    assert parsed.digest == const.digest
    np.testing.assert_array_equal(parsed.array(), const.array())
    assert (
        np.signbit(parsed.array()).tobytes() == np.signbit(const.array()).tobytes() if array.dtype.kind == "f" else True
    )


@pytest.mark.parametrize(
    "array",
    [
        np.arange(9),
        np.zeros(2, np.float32),
        np.array(0x7FC00001, np.uint32).view(np.float32),  # a NaN with a payload
    ],
)
def test_other_constants_print_their_digest(array: Any) -> None:
    const = const_of(np.asarray(array))
    value = Value(TensorType(const.dtype, const.shape))
    text = print_graph(Graph("g", (), {value: const}, (), (value,)))
    assert const.digest in text
    assert print_graph(parse_graph(text)) == text


# Random graphs.

ODD_NAMES = ["", "x", "a:b", 'q"uote', "two words", "new\nline", "%0", "Größe", "\ud800", "_"]
ODD_SYMBOLS = ["N", "batch size", "f32", "min", "true", "s0", "s1", "past + 1", "sequence::x", ""]
NAMES = st.one_of(st.sampled_from(ODD_NAMES), st.text(max_size=6))
# A symbol named like a number or an expression would print like one: such names never get as far as a Dim.
SYMBOL_NAMES = st.one_of(st.sampled_from(ODD_SYMBOLS), st.text("abN _\"'é:", max_size=4))


@st.composite
def symbol_lists(draw: st.DrawFn) -> list[Symbol]:
    symbols = []
    for name in draw(st.lists(SYMBOL_NAMES, unique=True, max_size=3)):
        lo = draw(st.integers(0, 9))
        hi = draw(st.one_of(st.none(), st.integers(lo, lo + 100)))
        origin = draw(st.sampled_from(["input", "unbacked", "a node"]))
        symbols.append(Symbol(name, lo, hi, draw(st.sampled_from([1, 2, 8])), origin))
    return symbols


def dim_strategy(symbols: list[Symbol]) -> st.SearchStrategy[Dim]:
    if not symbols:
        return st.integers(0, 5)
    leaves: st.SearchStrategy[Dim] = st.one_of(st.integers(0, 9), st.sampled_from([s.dim for s in symbols]))

    def grow(inner: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
        pair = st.tuples(inner, inner)
        return st.one_of(
            pair.map(lambda p: p[0] + p[1]),
            pair.map(lambda p: p[0] - p[1]),
            pair.map(lambda p: p[0] * p[1]),
            st.tuples(inner, st.integers(1, 4)).map(lambda p: dimension.floordiv(p[0], p[1])),
            st.tuples(inner, st.integers(1, 4)).map(lambda p: dimension.mod(p[0], p[1])),
            pair.map(lambda p: dimension.maximum(*p)),
            pair.map(lambda p: dimension.minimum(*p)),
        )

    return st.recursive(leaves, grow, max_leaves=5)


@st.composite
def types(draw: st.DrawFn, dims: st.SearchStrategy[Dim]) -> TensorType:
    shape = tuple(draw(st.lists(dims, max_size=4)))
    order = draw(st.one_of(st.just(()), st.permutations(range(len(shape))).map(tuple)))
    pad = st.tuples(st.integers(0, 3), st.integers(0, 3))
    halo = draw(st.one_of(st.just(()), st.tuples(*[pad] * len(shape))))
    strides = draw(st.one_of(st.just(()), st.tuples(*[dims] * len(shape))))
    fill = draw(st.integers(-128, 255)) if any(map(any, halo)) else 0
    return TensorType(draw(st.sampled_from(dtypes.ALL)), shape, Layout(order, halo, strides, fill))


def attr_strategy(dims: st.SearchStrategy[Dim]) -> st.SearchStrategy[Attr]:
    leaves: st.SearchStrategy[Attr] = st.one_of(
        st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5), st.booleans(), st.sampled_from(dtypes.ALL), dims
    )
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)


@st.composite
def graphs(draw: st.DrawFn, symbols: list[Symbol] | None = None, depth: int = 0) -> Graph:
    symbols = draw(symbol_lists()) if symbols is None else symbols
    dims = dim_strategy(symbols)
    inputs = tuple(Value(draw(types(dims)), draw(NAMES)) for _ in range(draw(st.integers(0, 3))))
    consts: dict[Value, Const] = {}
    for _ in range(draw(st.integers(0, 2))):
        array = draw(st.sampled_from([np.float32(0.5), np.arange(4), np.ones((2, 3), np.float32), np.bool_(False)]))
        const = const_of(np.asarray(array), draw(NAMES))
        consts[Value(TensorType(const.dtype, const.shape), draw(NAMES))] = const
    known = [*inputs, *consts]
    nodes = []
    for _ in range(draw(st.integers(0, 4))):
        operands = tuple(draw(st.lists(st.sampled_from([None, *known]), max_size=3)))
        results = tuple(Value(draw(types(dims)), draw(NAMES)) for _ in range(draw(st.integers(1, 2))))
        words = st.from_regex(r"[a-z_]{1,5}", fullmatch=True)
        attrs = draw(st.dictionaries(words, attr_strategy(dims), max_size=3))
        regions = tuple(draw(st.lists(graphs(symbols, depth + 1), max_size=1))) if depth < 2 else ()
        locs = tuple(draw(st.lists(NAMES, max_size=2)))
        op = draw(st.sampled_from(["kernel", "add", "where", "input", "const", "output_like"]))
        nodes.append(Node(op, operands, results, MappingProxyType(attrs), locs, regions))
        known.extend(results)
    outputs = tuple(draw(st.lists(st.sampled_from(known), max_size=2))) if known else ()
    state = ((inputs[0], outputs[0]),) if inputs and outputs else ()
    level = draw(st.sampled_from(Level))
    return Graph(draw(NAMES), inputs, consts, tuple(nodes), outputs, state, level)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, tuple):
        return isinstance(right, tuple) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return type(right) is float and (left == right or (math.isnan(left) and math.isnan(right)))
    return type(left) is type(right) and left == right


def assert_same(left: Graph, right: Graph) -> None:
    assert (left.name, left.level) == (right.name, right.level)
    pairs = [*zip(left.inputs, right.inputs, strict=True), *zip(left.outputs, right.outputs, strict=True)]
    for one, other in zip(left.nodes, right.nodes, strict=True):
        assert (one.op, one.locs, len(one.inputs)) == (other.op, other.locs, len(other.inputs))
        assert dict.fromkeys(one.attrs) == dict.fromkeys(sorted(other.attrs))
        assert all(same(attr, other.attrs[name]) for name, attr in one.attrs.items())
        pairs.extend(zip(one.outputs, other.outputs, strict=True))
        for region, copy in zip(one.regions, other.regions, strict=True):
            assert_same(region, copy)
    for value, twin in pairs:
        assert (value.type, value.name) == (twin.type, twin.name)
    digests = [sorted((c.digest, c.source) for c in graph.consts.values()) for graph in (left, right)]
    assert digests[0] == digests[1]


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_round_trip(graph: Graph) -> None:
    text = print_graph(graph)
    parsed = parse_graph(text, consts_of(graph).get)
    assert print_graph(parsed) == text
    assert_same(graph, parsed)
    assert graph_digest(parsed) == graph_digest(graph)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_damaged_text_is_a_model_error(data: st.DataObject) -> None:
    """Whatever happens to the text, the parser either reads it or raises ModelError."""
    text = print_graph(matmul_graph().with_(level=Level.FUSED))
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(start + 8, len(text))))
    piece = data.draw(
        st.one_of(st.text(max_size=4), st.sampled_from(["{", "]", "%9", "f32", "\n", "[[", '"', "0/0", "N//0"]))
    )
    try:
        parse_graph(text[:start] + piece + text[end:])
    except ModelError as error:
        assert "line" in error.where


BAD = {
    "": "expected the header",
    "aot ir 2\ngraph g level=core {\n}": "expected the header",
    "aot ir 1\n": "expected 'graph'",
    "aot ir 1\ngraph g level=low {\n}": "unknown level 'low'",
    "aot ir 1\ngraph g level=core {\n  output\n": "does not end",
    "aot ir 1\ngraph g level=core {\n}\nmore": "unexpected text after",
    "aot ir 1\ngraph g level=core {\n  %0: f99[2] = input\n}": "unknown element type 'f99'",
    "aot ir 1\ngraph g level=core {\n  %0: f32[M] = input\n}": "unknown symbol 'M'",
    "aot ir 1\ngraph g level=core {\n  where N in 1..\n  %0: f32[N//0] = input\n}": "zero",
    "aot ir 1\ngraph g level=core {\n  %0: f32[2] = neg(%1)\n}": "%1 is used before",
    "aot ir 1\ngraph g level=core {\n  %0: f32[2] = input\n  %0: f32[2] = input\n}": "%0 is defined twice",
    "aot ir 1\ngraph g level=core {\n  %0: f32[2] = neg(_) {a=1, a=2}\n}": "given twice",
    "aot ir 1\ngraph g level=core {\n  %0: f32[2] = neg(_) {a=}\n}": "expected an attribute value",
    "aot ir 1\ngraph g level=core {\n  %0: i64[2] = const = [1]\n}": "has 2 elements, the line gives 1",
    "aot ir 1\ngraph g level=core {\n  %0: i64[1] = const = [x]\n}": "invalid literal",
    "aot ir 1\ngraph g level=core {\n  %0: u8[] = const = 300\n}": "300",
    "aot ir 1\ngraph g level=core {\n  %0: f32[3] = const sha256:12\n}": "64 hexadecimal digits",
    "aot ir 1\ngraph g level=core {\n  where N in 1..\n  where N in 1..\n}": "declared twice",
    "aot ir 1\ngraph g level=core {\n  where f32 in 1..\n}": "reserved",
    "aot ir 1\ngraph g level=core {\n  where N in 1.. colour 3\n}": "not 'colour'",
    "aot ir 1\ngraph g level=core {\n  %0: f32[2]{colour=1} = input\n}": "a layout has",
    'aot ir 1\ngraph g level=core {\n  %0 "x: f32[2] = input\n}': "Unterminated",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_text(text: str) -> None:
    with pytest.raises(ModelError) as caught:
        parse_graph(text)
    assert BAD[text] in str(caught.value)
    assert caught.value.where.startswith("line ")


def test_deep_dims_in_attributes() -> None:
    deep: Dim = N.dim
    for i in range(3, 12):
        deep = dimension.floordiv(deep + i, 2)
    x, y = Value(TensorType(F32, (N.dim,)), "x"), Value(TensorType(F32, (deep,)))
    graph = Graph("g", (x,), {}, (Node("expand", (x,), (y,), MappingProxyType({"shape": (deep, 1), "a": deep})),), (y,))
    text = print_graph(graph)
    assert print_graph(parse_graph(text)) == text


def test_deep_nesting_is_refused() -> None:
    opening = "".join("%0: f32[1] = k()\ngraph g level=core {\n" for _ in range(500))
    with pytest.raises(ModelError, match="64 deep"):
        parse_graph("aot ir 1\ngraph g level=core {\n" + opening)


def test_lines_near() -> None:
    graph = matmul_graph()
    assert any("matmul" in line for line in lines_near(graph, graph.nodes[0], around=0))
    assert lines_near(graph, None, "fc1.weight", around=0)[0].lstrip().startswith("%1")
    assert lines_near(graph, None, "matmul (fc1, and more)", around=0)[0].endswith("matmul(%0, %1) ; fc1")
    assert lines_near(graph, None, "nowhere")[0].startswith("graph mlp")


def small_program() -> Program:
    """One kernel: y = relu(x @ w), N rows."""
    row: Dim = N.dim * 256
    x, y = TensorType(F32, (N.dim, 64)), TensorType(F32, (N.dim, 16))
    weight = const_of(np.zeros((64, 16), np.float32), "fc1.weight")
    return Program(
        target="cpu:x86-64-v3",
        variant="",
        symbols=(N,),
        inputs=(Port("x", x),),
        outputs=(Port("y", y),),
        state=(),
        guards=(
            Guard(GuardKind.BIND, 0, 0, 0, 1, 64),
            Guard(GuardKind.EQUAL, 0, 1, expected=64),
            Guard(GuardKind.AT_LEAST, 0, 0, expected=N.dim * 2, other=N.dim + 1),
        ),
        sources=(Source("fc1.weight", weight),),
        constants=(Constant("fc1.weight", F32.number, (1, 64, 16), (RecipeStep(RecipeOp.SOURCE, (0,)),)),),
        buffers=(
            Buffer(Space.INPUT, 0, row),
            Buffer(Space.CONST, 0, 4096),
            Buffer(Space.ARENA, 0, row, name="hidden"),
            Buffer(Space.OUTPUT, 0, N.dim * 64),
        ),
        kernels=(KernelCode("k0", "contract", "matmul", ("fc1", "act"), "tile 6x4", "void KERNEL() {}"),),
        steps=(Step(0, (Argument(0), Argument(1), Argument(2, N.dim * 4)), (N.dim,), 128, locs=("fc1",)),),
        code=b"",
        peak_bytes=row,
        lower_bound_bytes=row,
        planner="greedy, proved",
    )


def test_program_text() -> None:
    text = program_text(small_program())
    for line in (
        'program "cpu:x86-64-v3" variant="" {',
        "  where N in 1..64",
        "  input 0 x: f32[N,64]",
        "  guard 2*N >= N + 1",
        "  output 0 y: f32[N,16]",
        "  guard x axis 0 is N in 1..64",
        "  guard x axis 1 == 64",
        "  const 0 fc1.weight: f32[1,64,16] = source ; fc1.weight",
        "  buf 0 x: input 0 256*N bytes",
        "  buf 2 hidden: arena 256*N bytes at 0 steps 0..0",
        '  kernel 0 @k0 kind=contract matmul schedule="tile 6x4" ; fc1, act',
        "  launch 0 @k0(b0, b1, b2+4*N) dims=[N] scratch=128 ; fc1",
        "  peak 256*N bytes, lower bound 256*N bytes, planner greedy, proved",
    ):
        assert line in text.split("\n"), line
