"""Products of one left operand as one: which are joined, what goes along, and that nothing is moved for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.dims import Symbol
from aot.dtypes import BF16, F16, F32, F64, I8, U8, DType
from aot.evaluate import evaluate
from aot.ir import Array, Const, Graph, Node, Value
from aot.kernel import ContractRoot
from aot.lower import lower
from aot.ops import Kind
from aot.options import CompileOptions
from aot.passes import Context, PassManager
from aot.pipeline import CORE_PASSES, TARGET_PASSES
from aot.program import RecipeOp, Source
from aot.recipe import run as run_recipe
from aot.text import print_graph
from aot.transforms.fold import fold
from aot.transforms.join import join
from aot.verify import verify
from tests.kernel_interpreter import run_kernel
from tests.passes.cases import N, built, f, inputs_for

WIDTH = 8
S = Symbol("S")


@dataclass(frozen=True)
class Joiner:
    """A backend that has every kernel, and wants products joined."""

    kinds: frozenset[Kind] = frozenset(Kind)
    decomposes: frozenset[str] = frozenset()
    has_halos: bool = False
    joins_products: bool = True
    splits_keys: bool = False
    splits_sums: bool = False
    channel_group: int = 1
    reads_anywhere: bool = False
    precisions: frozenset[str] = frozenset({"fp32", "fp16", "bf16"})
    precision_features: Mapping[str, str] = field(default_factory=dict)
    eight_bit_operands: tuple[DType, DType] = (U8, I8)


def weight(b: Builder, name: str, *shape: int, dtype: DType = F32) -> Value:
    """A weight of the model."""
    return b.const(np.random.default_rng([len(name), *map(ord, name)]).standard_normal(shape).astype(dtype.numpy), name)


def context(**options: Any) -> Context:
    return Context(options=CompileOptions(**options), backend=Joiner())


def joined(build: Callable[[Builder], Any], given: Context | None = None) -> tuple[Graph, Context]:
    """The graph after the pass alone; it verifies, and computes the same."""
    graph, given = built(build), given or context()
    result = join(graph, given)
    verify(result, has_halos=False)
    arrays = inputs_for(graph)
    for got, wanted in zip(evaluate(result, arrays), evaluate(graph, arrays), strict=True):
        assert got.dtype == wanted.dtype
        bound = {"float32": 1e-5, "float64": 1e-12}.get(got.dtype.name, 0.05)
        np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=bound, atol=bound)
    return result, given


def ops(graph: Graph) -> str:
    return " ".join(node.op for node in graph.nodes)


def product(b: Builder, x: Value, name: str, columns: int = WIDTH, bias: bool = False) -> Value:
    """A linear layer."""
    depth = x.type.shape[-1]
    assert isinstance(depth, int)
    made = b.matmul(x, weight(b, name, depth, columns, dtype=x.type.dtype))
    return b.add(made, weight(b, f"{name}.bias", columns, dtype=x.type.dtype)) if bias else made  # type: ignore[no-any-return]


def heads(b: Builder, x: Value, size: int = 4) -> Value:
    batch, length, width = x.type.shape
    assert isinstance(width, int)
    return b.transpose(b.reshape(x, shape=(batch, length, width // size, size)), perm=(0, 2, 1, 3))  # type: ignore[no-any-return]


def attention(b: Builder, x: Value, bias: str = "qkv", key_width: int = WIDTH) -> Value:
    """Queries, keys and values of one input; `bias` says which of them have one."""
    q = product(b, x, "q", bias="q" in bias)
    k, v = (product(b, x, name, key_width, bias=name in bias) for name in "kv")
    return b.attention(heads(b, q), heads(b, k), heads(b, v), scale=0.5)  # type: ignore[no-any-return]


def made_by(const: Const) -> Array:
    """What the recipe of a constant makes of the model's weights."""
    assert const.recipe is not None
    assert all(source.source and source.recipe is None for source in const.recipe_sources)
    return run_recipe(const.recipe, [Source(source.source, source) for source in const.recipe_sources])


# Which products are joined.


@pytest.mark.parametrize("key_width", [WIDTH, 4])
def test_queries_keys_and_values(key_width: int) -> None:
    graph, _ = joined(lambda b: attention(b, f(b, "x", 2, 5, 6), "", key_width))
    assert ops(graph).split().count("matmul") == 1
    matmul = graph.nodes[0]
    assert matmul.op == "matmul" and matmul.locs == ("matmul_0", "matmul_1", "matmul_2")
    assert matmul.output.type.shape == (2, 5, WIDTH + 2 * key_width)
    cuts = [node for node in graph.nodes if node.op == "slice"]
    assert [node.attrs["starts"] for node in cuts] == [(0, 0, 0), (0, 0, WIDTH), (0, 0, WIDTH + key_width)]
    (const,) = graph.consts.values()
    assert [source.source for source in const.recipe_sources] == ["q", "k", "v"]
    np.testing.assert_array_equal(made_by(const), const.array())


def test_text() -> None:
    def build(b: Builder) -> Any:
        x = f(b, "x", 2, 4)
        return [b.reduce_sum(product(b, x, name, 3, name == "b"), axes=(1,), keepdims=False) for name in "ab"]

    graph, _ = joined(build)
    lines = [line.strip() for line in print_graph(graph).splitlines() if " = " in line]
    assert [line for line in lines if "const" not in line and "input" not in line] == [
        "%3: f32[2,6] = matmul(%0, %1) ; matmul_0, matmul_2, add_3",
        "%4: f32[2,6] = add(%3, %2) ; matmul_0, matmul_2, add_3",
        "%5: f32[2,3] = slice(%4) {sizes=[2, 3], starts=[0, 0], steps=[1, 1]} ; matmul_0",
        "%6: f32[2,3] = slice(%4) {sizes=[2, 3], starts=[0, 3], steps=[1, 1]} ; add_3",
        "%7: f32[2] = reduce_sum(%5) {axes=[1], keepdims=false} ; reduce_sum_1",
        "%8: f32[2] = reduce_sum(%6) {axes=[1], keepdims=false} ; reduce_sum_4",
    ]


def test_only_where_the_backend_wants_it() -> None:
    graph = built(lambda b: attention(b, f(b, "x", 2, 5, 6)))
    for given in (Context(), Context(backend=Joiner(joins_products=False))):
        assert join(graph, given) is graph


@pytest.mark.parametrize("lead", [(1,), (3,), (N.dim,), (2, 3), (N.dim, S.dim), (1, 2, 3)])
def test_any_rows(lead: tuple[Any, ...]) -> None:
    def build(b: Builder) -> Any:
        x = f(b, "x", *lead, 6)
        return [b.softmax(product(b, x, name), axis=len(lead)) for name in "abc"]

    graph, _ = joined(build)
    assert ops(graph).split().count("matmul") == 1


def test_left_operands_apart() -> None:
    def build(b: Builder) -> Any:
        x, y = f(b, "x", 3, 6), f(b, "y", 3, 6)
        return [b.softmax(product(b, left, name), axis=1) for left, name in ((x, "a"), (y, "b"), (x, "c"), (y, "d"))]

    graph, _ = joined(build)
    assert ops(graph).split().count("matmul") == 2
    assert [[s.source for s in const.recipe_sources] for const in graph.consts.values()] == [["a", "c"], ["b", "d"]]


def test_products_that_are_no_weights_stay() -> None:
    def build(b: Builder) -> Any:
        x, y = f(b, "x", 2, 3, 6), f(b, "y", 2, 6, 4)
        batched = [b.matmul(x, weight(b, name, 2, 6, 4)) for name in "ab"]
        return [b.softmax(v, axis=1) for v in (b.matmul(x, y), b.matmul(x, y), *batched, product(b, x, "a"))]

    graph = built(build)
    assert join(graph, context()) is graph


def test_arithmetic_of_its_own_keeps_a_product_apart() -> None:
    """The gate of attention stays; a gated layer stays whole, as one kernel makes it."""

    def build(b: Builder) -> Any:
        x = f(b, "x", 2, 5, 6)
        gated = b.mul(b.silu(product(b, x, "gate", 7)), product(b, x, "up", 7))
        return attention(b, x), b.sigmoid(product(b, x, "side")), gated

    graph, given = joined(build)
    assert ops(graph).split().count("matmul") == 4
    reasons = [str(refusal) for refusal in given.diagnostics.refusals]
    assert len(reasons) == 3 and all("is computed with it" in reason for reason in reasons)
    assert given.diagnostics.why("join", "matmul_17")


def test_two_weights_of_one_type_are_joined() -> None:
    def build(b: Builder) -> Any:
        x, y = f(b, "x", 3, 6, dtype=F16), f(b, "y", 3, 6, dtype=F64)
        return [b.softmax(product(b, left, name), axis=1) for left in (x, y) for name in "ab"]

    graph, _ = joined(build)
    assert ops(graph).split().count("matmul") == 2
    assert {const.dtype for const in graph.consts.values()} == {F16, F64}


# What stands behind them.


@pytest.mark.parametrize("bias", ["", "q", "qv", "kv", "qkv"])
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_biases_go_along(bias: str, dtype: DType) -> None:
    graph, _ = joined(lambda b: attention(b, f(b, "x", 2, 5, 6, dtype=dtype), bias))
    assert ops(graph).split().count("matmul") == 1
    assert ops(graph).split().count("add") == (bias != "")
    if bias:
        vector = next(const for const in graph.consts.values() if len(const.shape) == 1)
        assert vector.shape == (3 * WIDTH,) and vector.dtype == dtype
        np.testing.assert_array_equal(made_by(vector).astype(np.float64), vector.array().astype(np.float64))
        for place, name in enumerate("qkv"):
            own = vector.array()[place * WIDTH : (place + 1) * WIDTH].astype(np.float64)
            if name not in bias:  # the zero that changes no zero
                assert (own == 0).all() and np.signbit(own).all()


def test_scales_go_along_in_any_order() -> None:
    def build(b: Builder) -> Any:
        x = f(b, "x", 2, 5, 6)
        q = b.add(b.mul(product(b, x, "q"), b.scalar(0.125, F32)), weight(b, "shift", 1, WIDTH))
        k = b.mul(b.add(product(b, x, "k"), weight(b, "before", WIDTH)), weight(b, "scale", 1, 1, WIDTH))
        return b.attention(*(heads(b, v) for v in (q, k, product(b, x, "v", bias=True))), scale=1.0)

    graph, _ = joined(build)
    assert ops(graph).startswith("matmul add mul add slice slice slice ")
    assert all(made_by(const).shape == const.shape for const in graph.consts.values())


def test_one_number_for_all_stays_a_number() -> None:
    def build(b: Builder) -> Any:
        x, scale = f(b, "x", 3, 6), b.scalar(0.125, F32)
        return [b.softmax(b.mul(product(b, x, name), scale), axis=1) for name in "ab"]

    graph, _ = joined(build)
    assert ops(graph) == "matmul mul slice slice softmax softmax"
    assert sorted(len(const.shape) for const in graph.consts.values()) == [0, 2]


def test_columns_of_one() -> None:
    def build(b: Builder) -> Any:
        x = f(b, "x", 3, 6)
        widths = {"a": 1, "b": 5, "c": 1}
        return [b.softmax(product(b, x, name, columns, True), axis=0) for name, columns in widths.items()]

    graph, _ = joined(build)
    assert ops(graph).startswith("matmul add slice slice slice")


# What cannot be.


def merged(b: Builder, x: Value) -> Any:
    return b.softmax(b.reshape(x, shape=(3 * WIDTH,)), axis=0)


REFUSED: dict[str, tuple[Callable[[Builder, Value], Any], str]] = {
    "result": (lambda b, x: x, "a result of the model"),
    "result in another shape": (lambda b, x: b.reshape(x, shape=(3, 2, WIDTH // 2)), "would have to move"),
    "axes that a view merges": (merged, "would have to move"),
    "a part of a concatenation": (lambda b, x: b.concat(x, x, axis=0), "written into concat"),
    "a window": (
        lambda b, x: b.op(
            "conv", b.reshape(x, shape=(1, 3, 2, WIDTH // 2)), weight(b, "w", 4, 3, 1, 1), strides=(1, 1),
            pads=(0, 0, 0, 0), dilations=(1, 1), groups=1,
        )[0],
        "wants it dense",
    ),
    "arithmetic": (lambda b, x: b.tanh(x), "computed with it"),
    "arithmetic with a constant that it reads twice": (lambda b, x: b.mul(x, x), "computed with it"),
    "a constant of rows": (lambda b, x: b.add(x, weight(b, "rows", 3, 1)), "computed with it"),
    "a larger constant": (lambda b, x: b.softmax(b.add(x, weight(b, "more", 2, 3, WIDTH)), axis=1), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    read, why = REFUSED[name]

    def build(b: Builder) -> Any:
        x = f(b, "x", 3, 6)
        return [read(b, product(b, x, "a")), b.softmax(product(b, x, "b"), axis=1)]

    graph, given = built(build), context()
    result = join(graph, given)
    if why:
        assert result is graph
        assert [why in str(refusal) for refusal in given.diagnostics.refusals] == [True]
    else:
        joined(build)


def test_state_is_a_result() -> None:
    b = Builder()
    x, kept = f(b, "x", 3, 6), f(b, "kept", 3, WIDTH)
    new = product(b, x, "a")
    graph = b.finish((b.softmax(product(b, x, "b"), axis=1), new, b.softmax(kept, axis=1)), [(kept, new)])
    assert join(graph, context()) is graph


def test_weights_beside_constants_that_no_recipe_makes() -> None:
    def build(b: Builder) -> Any:
        x = f(b, "x", 3, 6)
        return [b.softmax(product(b, x, name), axis=1) for name in "ab"]

    graph, given = built(build), context()
    nameless = {v: Const(c.digest, c.dtype, c.shape, "", c.load) for v, c in graph.consts.items()}
    mixed = graph.with_(consts={v: c if c.source == "a" else nameless[v] for v, c in graph.consts.items()})
    assert join(mixed, given) is mixed
    assert "not the model's" in str(given.diagnostics.refusals[0])
    (const,) = join(graph.with_(consts=nameless), context()).consts.values()
    assert const.recipe is None and const.source == ""


def test_values_that_are_repeated_for_every_head_are_copied_in_any_case() -> None:
    def build(b: Builder) -> Any:
        x = f(b, "x", 2, 5, 6)
        q, k, v = heads(b, product(b, x, "q")), heads(b, product(b, x, "k", 4)), heads(b, product(b, x, "v", 4))
        k, v = (b.reshape(b.expand(each, shape=(2, 2, 5, 4)), shape=(4, 5, 4)) for each in (k, v))
        scores = b.softmax(b.matmul(b.reshape(q, shape=(4, 5, 4)), b.transpose(k, perm=(0, 2, 1))), axis=2)
        return b.matmul(scores, v)

    graph, _ = joined(build)
    assert ops(graph).split().count("matmul") == 3
    counts = []
    for backend in (Joiner(joins_products=False), Joiner()):
        manager = PassManager((*CORE_PASSES, *TARGET_PASSES), Context(backend=backend))
        counts.append(len(kernels(manager.run(built(build)))))
    assert counts[1] < counts[0]


def test_disabled_and_bisected() -> None:
    graph = built(lambda b: attention(b, f(b, "x", 2, 5, 6)))
    assert join(graph, context(bisect=0)) is graph
    manager = PassManager(TARGET_PASSES, context(disable=("join",)))
    assert ops(manager.run(graph, until="join")).split().count("matmul") == 3


# All passes.


def planned(build: Callable[[Builder], Any], **options: Any) -> tuple[Graph, Graph]:
    """The graph as it is built, and after all passes for a backend that joins."""
    graph = built(build)
    return graph, PassManager((*CORE_PASSES, *TARGET_PASSES), context(**options)).run(graph)


def kernels(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "kernel"]


def interpreted(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """The outputs by the reference interpreter."""
    return [np.asarray(array) for array in evaluate(graph, arrays)]


@pytest.mark.parametrize("lead", [(2, 5), (1, 1), (N.dim, S.dim)])
def test_attention_reads_the_joined_result_where_it_lies(lead: tuple[Any, ...]) -> None:
    def build(b: Builder) -> Any:
        x = b.layer_norm(f(b, "x", *lead, 8), weight(b, "scale", 8), weight(b, "shift", 8), axis=2, epsilon=1e-5)
        return attention(b, x, key_width=4)

    graph, ordered = planned(build)
    assert [str(node.attrs["kind"]) for node in kernels(ordered)] == ["row", "contract", "attend"]
    attend = kernels(ordered)[-1]
    width = WIDTH + 2 * 4
    for operand, size in zip(attend.operands, (WIDTH, 4, 4), strict=True):
        heads_, length = size // 4, operand.type.shape[2]
        assert operand.type.shape[1] == heads_
        if length != 1:
            assert operand.type.strides[2] == width
        assert operand.type.strides[3] == 1
    arrays = inputs_for(graph)
    np.testing.assert_allclose(interpreted(ordered, arrays)[0], evaluate(graph, arrays)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_joined_weights_are_narrowed_as_others(precision: str) -> None:
    _, ordered = planned(lambda b: attention(b, f(b, "x", 4, 17, 64), key_width=4), precision=precision)
    half = {"fp16": F16, "bf16": BF16}[precision]
    (const,) = (const for const in ordered.consts.values() if len(const.shape) == 2)
    assert const.dtype == half and const.recipe is not None
    assert {step.op for step in const.recipe} == {RecipeOp.SOURCE, RecipeOp.CONCAT, RecipeOp.CAST}
    assert all(operand.type.dtype == half for operand in kernels(ordered)[-1].operands)


def gated(b: Builder, x: Value, bias: bool = False, activation: str = "silu") -> Value:
    """down(activation(gate x) * up x)."""
    (gate,) = b.op(activation, product(b, x, "gate", 12, bias))
    return b.matmul(b.mul(gate, product(b, x, "up", 12, bias)), weight(b, "down", 12, 8))  # type: ignore[no-any-return]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["silu", "relu", "sigmoid"])
def test_a_gated_layer_is_two_kernels(bias: bool, activation: str) -> None:
    graph, ordered = planned(lambda b: gated(b, f(b, "x", 3, 8), bias, activation))
    first, _ = kernels(ordered)
    kernel = lower(first, lambda value: value in ordered.consts)
    assert isinstance(kernel.root, ContractRoot) and len(kernel.root.others) == 1
    (x,) = inputs_for(graph)
    operands = [ordered.consts[value].array() if value in ordered.consts else x for value in first.operands]
    (hidden,) = run_kernel(kernel, operands, {})
    down = next(const.array() for const in graph.consts.values() if const.source == "down")
    np.testing.assert_allclose(hidden @ down, evaluate(graph, [x])[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(interpreted(ordered, [x])[0], evaluate(graph, [x])[0], rtol=1e-5, atol=1e-5)


GATES: dict[str, Callable[[Builder, Value], Any]] = {
    "other widths": lambda b, x: b.add(product(b, x, "a", 12), product(b, x, "b", 1)),
    "another left operand": lambda b, x: b.add(product(b, x, "a"), product(b, b.exp(x), "b")),
    "one in the other": lambda b, x: b.matmul(b.silu(product(b, x, "a")), weight(b, "b", 8, 8)),
    "activations": lambda b, x: b.add(b.matmul(x, b.softmax(x, axis=0)), b.matmul(x, b.softmax(b.exp(x), axis=0))),
}


@pytest.mark.parametrize("name", GATES)
def test_products_that_one_kernel_cannot_make(name: str) -> None:
    graph, ordered = planned(lambda b: GATES[name](b, f(b, "x", 8, 8)))
    for node in kernels(ordered):
        kernel = lower(node, lambda value: value in ordered.consts)
        assert not isinstance(kernel.root, ContractRoot) or not kernel.root.others
    arrays = inputs_for(graph)
    np.testing.assert_allclose(interpreted(ordered, arrays)[0], evaluate(graph, arrays)[0], rtol=1e-4, atol=1e-4)


def test_three_products_that_meet_are_two_kernels() -> None:
    def build(b: Builder) -> Any:
        x = f(b, "x", 3, 8)
        a, c, d = (product(b, x, name) for name in "acd")
        return b.mul(b.silu(a), b.add(c, b.tanh(d)))

    graph, ordered = planned(build)
    roots = [lower(node, lambda value: value in ordered.consts).root for node in kernels(ordered)]
    assert sorted(len(root.rights) for root in roots if isinstance(root, ContractRoot)) == [1, 2]
    arrays = inputs_for(graph)
    np.testing.assert_allclose(interpreted(ordered, arrays)[0], evaluate(graph, arrays)[0], rtol=1e-5, atol=1e-5)


def test_a_value_between_that_others_read_is_stored() -> None:
    def build(b: Builder) -> Any:
        x = f(b, "x", 3, 8)
        gate = b.silu(product(b, x, "a"))
        return b.mul(gate, product(b, x, "b")), b.reduce_sum(gate, axes=(0,), keepdims=False)

    graph, ordered = planned(build)
    assert [str(node.attrs["kind"]) for node in kernels(ordered)] == ["contract", "reduce"]
    arrays = inputs_for(graph)
    for got, wanted in zip(interpreted(ordered, arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_a_gated_layer_is_three_kernels_for_others() -> None:
    graph = built(lambda b: gated(b, f(b, "x", 3, 8)))
    given = Context(backend=Joiner(joins_products=False))
    assert len(kernels(PassManager((*CORE_PASSES, *TARGET_PASSES), given).run(graph))) == 3


def test_folded_concatenations_of_weights_say_how_they_are_made() -> None:
    b = Builder()
    whole = b.concat(weight(b, "a", 6, 3), b.transpose(weight(b, "c", 4, 6), perm=(1, 0)), axis=-1)
    graph = fold(b.finish((b.softmax(b.matmul(f(b, "x", 2, 6), whole), axis=1),)), Context())
    (const,) = graph.consts.values()
    np.testing.assert_array_equal(made_by(const), const.array())
    assert const.shape == (6, 7)
