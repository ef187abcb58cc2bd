"""dedupe joins what is equal; decompose leaves no op that the backend has no kernel for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.dtypes import F32, I8, I64, U8, DType
from aot.evaluate import evaluate
from aot.ir import Graph, Layout, Node, Value, const_of
from aot.ops import OPS, Kind
from aot.options import CompileOptions
from aot.passes import Context
from aot.target import Target
from aot.transforms.decompose import ALWAYS, decompose, decomposed_ops
from aot.transforms.dedupe import dedupe
from aot.verify import verify
from tests.passes.cases import N, assert_same, built, f, f32, n, w
from tests.passes.test_simplify import deconv, norm

M = N.dim


def deduped(build: Any) -> Graph:
    graph = built(build)
    result = dedupe(graph, Context())
    verify(result)
    assert_same(graph, result)
    assert dedupe(result, Context()) is result
    return result


def ops(graph: Graph) -> str:
    return " ".join(node.op for node in graph.nodes)


def test_equal_nodes_are_one_and_carry_both_names() -> None:
    result = deduped(lambda b: (lambda x: b.add(b.tanh(x), b.tanh(x)))(f(b, "x", M)))
    assert ops(result) == "tanh add"
    assert result.nodes[0].locs == ("tanh_0", "tanh_1")


def test_chains_of_equal_nodes_are_one() -> None:
    result = deduped(lambda b: (lambda x: b.add(b.exp(b.neg(x)), b.exp(b.neg(x))))(f(b, "x", M)))
    assert ops(result) == "neg exp add"


def test_commuted_operands_are_equal_and_others_are_not() -> None:
    def both(b: Builder, name: str) -> Any:
        x, y = f(b, "x", M), f(b, "y", M)
        return b.relu(b.op(name, x, y)[0]), b.neg(b.op(name, y, x)[0])

    assert ops(deduped(lambda b: both(b, "mul"))) == "mul relu neg"
    assert ops(deduped(lambda b: both(b, "sub"))).count("sub") == 2


def test_attributes_must_be_equal_in_type_too() -> None:
    def build(b: Builder) -> Any:
        x = f(b, "x", 3, 3)
        return b.add(b.reduce_sum(x, axes=(0,)), b.reduce_sum(x, axes=(1,)))

    assert ops(deduped(build)) == "reduce_sum reduce_sum add"


def test_equal_constants_are_one() -> None:
    result = deduped(lambda b: b.add(b.mul(f(b, "x", M, 3), w(b, 3)), w(b, 3)))
    assert len(result.consts) == 1


def test_constants_of_other_types_and_shapes_stay() -> None:
    result = deduped(
        lambda b: (
            b.mul(f(b, "x", M, 1), b.const(f32([0, 0]))),
            b.mul(f(b, "y", M, 1), b.const(f32([[0, 0]]))),
        )
    )
    assert len(result.consts) == 2


def test_two_outputs_stay_two_values() -> None:
    graph = built(lambda b: (lambda x: (b.tanh(x), b.tanh(x), b.neg(b.tanh(x))))(f(b, "x", M)))
    result = dedupe(graph, Context())
    assert result.outputs == graph.outputs and ops(result) == "tanh tanh neg"


def test_an_output_is_the_value_that_stays() -> None:
    def build(b: Builder) -> Any:
        x = f(b, "x", M)
        return b.neg(b.tanh(x)), b.tanh(x)

    graph = built(build)
    result = dedupe(graph, Context())
    verify(result)
    assert result.outputs == graph.outputs and ops(result) == "tanh neg"


def test_dead_nodes_and_constants_go() -> None:
    def build(b: Builder) -> Any:
        x = f(b, "x", M)
        b.exp(b.mul(x, n(b, 3.0)))
        return b.neg(x)

    result = deduped(build)
    assert ops(result) == "neg" and not result.consts


def test_bisection_counts_joins() -> None:
    graph = built(lambda b: (lambda x: b.add(b.tanh(x), b.tanh(x)))(f(b, "x", M)))
    assert ops(dedupe(graph, Context(options=CompileOptions(bisect=0)))) == "tanh tanh add"


@dataclass(frozen=True)
class FakeBackend:
    kinds: frozenset[Kind]
    decomposes: frozenset[str] = frozenset()
    has_halos: bool = True
    joins_products: bool = False
    splits_keys: bool = False
    splits_sums: bool = False
    channel_group: int = 1
    reads_anywhere: bool = False
    precisions: frozenset[str] = frozenset({"fp32"})
    precision_features: Mapping[str, str] = field(default_factory=dict)
    eight_bit_operands: tuple[DType, DType] = (U8, I8)

    def layouts(self, node: Node, target: Target) -> Sequence[Mapping[Value, Layout]]:
        return ()

    def kernel_us(self, body: Graph, target: Target) -> float:
        return 0.0


ALL_KINDS = frozenset(Kind)


def decomposed(build: Any, backend: FakeBackend | None = None) -> Graph:
    graph = built(build)
    result = decompose(graph, Context(backend=backend))
    verify(result)
    assert_same(graph, result)
    assert {loc for node in result.nodes for loc in node.locs} <= {loc for node in graph.nodes for loc in node.locs}
    return result


def test_batch_norm_of_inputs() -> None:
    def build(b: Builder) -> Any:
        x = f(b, "x", M, 3, 4)
        return b.batch_norm(x, f(b, "s", 3), f(b, "t", 3), f(b, "m", 3), b.exp(f(b, "v", 3)), epsilon=1e-3)

    assert "batch_norm" not in ops(decomposed(build))


def test_batch_norm_of_constants() -> None:
    assert "batch_norm" not in ops(decomposed(lambda b: norm(b, f(b, "x", M, 4, 5), 4)))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_mean_over_known_and_unknown_extents(axes: tuple[int, ...]) -> None:
    result = decomposed(lambda b: b.reduce_mean(f(b, "x", M, 4), axes=axes))
    assert "reduce_sum" in ops(result) and "reduce_mean" not in ops(result)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("pads", [(0, 0), (1, 0), (1, 2)])
def test_transposed_convolutions_become_ordinary_ones(stride: int, pads: tuple[int, int]) -> None:
    result = decomposed(lambda b: deconv(b, f(b, "x", M, 4, 5), w(b, 4, 3, 3), strides=(stride,), pads=pads))
    assert ops(result).split().count("conv") == 1 and "conv_transpose" not in ops(result)
    assert "pad" not in ops(result).split()[: ops(result).split().index("conv")]  # the weights are folded


def test_rows_stay_and_attention_goes_without_a_kernel_for_it() -> None:
    def build(b: Builder) -> Any:
        q = f(b, "q", 2, 2, M, 4)
        return b.softmax(b.attention(q, q, q, scale=0.5), axis=-1)

    every = decomposed(build, FakeBackend(ALL_KINDS))
    assert ops(every) == "attention softmax"
    without = decomposed(build, FakeBackend(ALL_KINDS - {Kind.ATTEND, Kind.ROW}))
    assert ops(without).count("softmax") == 2 and "attention" not in ops(without)


def test_ops_that_the_backend_names_are_decomposed() -> None:
    result = decomposed(lambda b: b.softmax(f(b, "x", M, 4), axis=1), FakeBackend(ALL_KINDS, frozenset(("softmax",))))
    assert "softmax" not in ops(result)


def test_without_a_backend_only_what_nobody_has() -> None:
    assert decomposed_ops(None) == ALWAYS
    graph = built(lambda b: b.softmax(f(b, "x", M, 4), axis=1))
    assert decompose(graph, Context()) is graph


def test_bisection_does_not_keep_what_cannot_run() -> None:
    graph = built(lambda b: b.reduce_mean(f(b, "x", M, 4), axes=(1,)))
    assert "reduce_mean" not in ops(decompose(graph, Context(options=CompileOptions(bisect=0))))


def test_what_is_always_decomposed_can_be() -> None:
    assert all(OPS[name].decompose is not None for name in ALWAYS)


def test_an_output_keeps_its_name() -> None:
    b = Builder()
    x = b.input("x", F32, (2, 4))
    graph = b.finish([b.reduce_mean(x, axes=(1,))])
    result = decompose(graph, Context())
    assert result.outputs == graph.outputs
    feed = [np.arange(8, dtype=np.float32).reshape(2, 4)]
    np.testing.assert_allclose(evaluate(result, feed)[0], [[1.5], [5.5]])


def test_digest_collisions_across_types_do_not_join() -> None:
    one, other = const_of(np.zeros(2, np.int64)), const_of(np.zeros(2, np.float64))
    assert one.digest != other.digest and one.dtype is I64
