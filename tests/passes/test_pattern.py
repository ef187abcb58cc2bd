"""The rewrite engine: matching, reasons, measures, bisection, and what it does to a graph."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.dtypes import F32
from aot.errors import CompilerError
from aot.evaluate import evaluate
from aot.ir import Graph, Value
from aot.options import CompileOptions
from aot.passes import Context
from aot.pattern import (
    AnyValue,
    Constant,
    Declined,
    Match,
    Matching,
    Rule,
    View,
    maybe,
    number,
    op,
    rewrite,
    rule,
)
from aot.transforms.simplify import SIMPLIFY_RULES, simplify
from aot.verify import verify
from tests.passes.cases import assert_same, built, f, f32, n, w


def matches(pattern: Any, graph: Graph) -> list[dict[str, Value | None]]:
    """Every way in which the pattern holds at the graph's last node."""
    matching = Matching(View(graph))
    return [dict(matching.values) for _ in pattern.match_node(graph.nodes[-1], matching)]


def test_commutative_operands_match_in_both_orders() -> None:
    graph = built(lambda b: b.add(b.neg(f(b, "x", 3)), b.exp(f(b, "y", 3))))
    assert len(matches(op("add", op("exp", "a"), op("neg", "b")), graph)) == 1
    assert len(matches(op("add", "a", "b"), graph)) == 2
    assert len(matches(op("sub", "a", "b"), graph)) == 0


def test_noncommutative_operands_match_in_order_only() -> None:
    graph = built(lambda b: b.sub(b.neg(f(b, "x", 3)), b.exp(f(b, "y", 3))))
    assert len(matches(op("sub", op("exp", "a"), op("neg", "b")), graph)) == 0
    assert len(matches(op("sub", op("neg", "a"), op("exp", "b")), graph)) == 1


def test_one_name_is_one_value() -> None:
    same = built(lambda b: (lambda x: b.mul(x, b.sigmoid(x)))(f(b, "x", 3)))
    other = built(lambda b: b.mul(f(b, "x", 3), b.sigmoid(f(b, "y", 3))))
    pattern = op("mul", "x", op("sigmoid", "x"))
    assert len(matches(pattern, same)) == 1 and not matches(pattern, other)


def test_one_name_is_one_constant_however_often_it_is_written() -> None:
    graph = built(lambda b: b.add(b.mul(f(b, "x", 3), w(b, 3)), w(b, 3)))
    assert len(matches(op("add", op("mul", "x", Constant("c")), Constant("c")), graph)) == 1


def test_numbers_and_alternatives_and_omitted_operands() -> None:
    graph = built(lambda b: b.clip(b.mul(f(b, "x", 3), n(b, 0.5)), None, n(b, 6.0)))
    pattern = op("clip", maybe("mul", AnyValue("x"), number(0.5)), AnyValue("lo", optional=True), number(6.0, "hi"))
    found = matches(pattern, graph)
    assert [values["lo"] for values in found] == [None, None] and found[0]["x"] is not found[1]["x"]
    assert not matches(op("clip", "x", "lo", "hi"), graph)
    assert not matches(op("clip", "x"), graph)


def test_attributes_must_agree() -> None:
    graph = built(lambda b: b.softmax(f(b, "x", 3, 4), axis=1))
    assert matches(op("softmax", "x", axis=1), graph) and not matches(op("softmax", "x", axis=0), graph)


@rule(op("relu", op("neg", "x", name="inner")))
def take_operand(b: Builder, m: Match) -> Value:
    """relu(-x) is x: nonsense, but easy to see."""
    return m["x"]


def test_a_shared_inner_value_is_declined_with_its_reader_named() -> None:
    graph = built(lambda b: (lambda t: (b.relu(t), b.exp(t)))(b.neg(b.abs(f(b, "x", 3)))))
    context = Context()
    assert rewrite(graph, (take_operand,), context) is graph
    (refusal,) = context.diagnostics.why("take_operand", "relu_2")
    assert "neg_1" in refusal.reason and "exp_3" in refusal.reason


def test_an_inner_value_that_is_an_output_is_declined() -> None:
    graph = built(lambda b: (lambda t: (b.relu(t), t))(b.neg(b.abs(f(b, "x", 3)))))
    context = Context()
    assert rewrite(graph, (take_operand,), context) is graph
    assert "output of the model" in context.diagnostics.refusals[0].reason


def test_an_output_cannot_become_an_input() -> None:
    graph = built(lambda b: b.relu(f(b, "x", 3)))

    @rule(op("relu", "x"))
    def drop(b: Builder, m: Match) -> Value:
        return m["x"]

    context = Context()
    assert rewrite(graph, (drop,), context) is graph
    assert "an input, a constant or another output" in context.diagnostics.refusals[0].reason


def test_a_dying_chain_at_an_output_ends_in_a_copy() -> None:
    graph = built(lambda b: b.relu(b.neg(f(b, "x", 3))))
    result = rewrite(graph, (take_operand,), Context())
    assert [node.op for node in result.nodes] == ["copy"]
    assert result.outputs == graph.outputs


def test_a_rule_that_does_not_lower_its_measure_is_an_error_naming_it() -> None:
    @rule(op("relu", "x"))
    def grow(b: Builder, m: Match) -> Any:
        return b.relu(b.abs(m["x"]))

    with pytest.raises(CompilerError, match=r"rule grow does not lower its measure \(1 before, 2 after\)"):
        rewrite(built(lambda b: b.relu(f(b, "x", 3))), (grow,), Context())


def test_a_rule_that_never_ends_is_an_error() -> None:
    flip = iter(range(10**9))

    @rule(op("relu", "x"), measure=lambda nodes, view: float(-next(flip)))
    def spin(b: Builder, m: Match) -> Any:
        return b.relu(m["x"])

    with pytest.raises(CompilerError, match="does not end; the last rules were spin"):
        rewrite(built(lambda b: b.relu(f(b, "x", 3))), (spin,), Context())


def test_a_rule_that_changes_the_type_is_an_error_naming_it() -> None:
    @rule(op("relu", op("neg", "x")))
    def wrong(b: Builder, m: Match) -> Any:
        return b.reduce_sum(m["x"], axes=(0,))

    with pytest.raises(CompilerError, match="rule wrong gives"):
        rewrite(built(lambda b: b.relu(b.neg(f(b, "x", 3)))), (wrong,), Context())


def test_an_ill_typed_replacement_is_an_error_naming_it() -> None:
    @rule(op("relu", op("neg", "x")))
    def wrong(b: Builder, m: Match) -> Any:
        return b.add(m["x"], b.const(np.zeros((7, 5), np.float32)))

    with pytest.raises(CompilerError, match="rule wrong built an ill-typed node"):
        rewrite(built(lambda b: b.relu(b.neg(f(b, "x", 3)))), (wrong,), Context())


def test_a_replacement_may_decline() -> None:
    @rule(op("relu", op("neg", "x")))
    def shy(b: Builder, m: Match) -> Value:
        raise Declined("not today")

    graph = built(lambda b: b.relu(b.neg(f(b, "x", 3))))
    context = Context()
    assert rewrite(graph, (shy,), context) is graph
    assert context.diagnostics.refusals[0].reason == "not today"


def test_names_of_gone_nodes_are_carried_and_those_of_kept_nodes_are_not() -> None:
    @rule(op("mul", op("neg", "x", shared=True), op("exp", "y")))
    def join(b: Builder, m: Match) -> Any:
        return b.add(m["x"], m["y"])

    graph = built(lambda b: (lambda t: (b.mul(t, b.exp(f(b, "y", 3))), b.abs(t)))(b.neg(f(b, "x", 3))))
    result = rewrite(graph, (join,), Context())
    joined = next(node for node in result.nodes if node.op == "add")
    assert joined.locs == ("exp_1", "mul_2")
    both = built(lambda b: b.mul(b.neg(f(b, "x", 3)), b.exp(f(b, "y", 3))))
    assert rewrite(both, (join,), Context()).nodes[0].locs == ("neg_0", "exp_1", "mul_2")


def chain(length: int) -> Graph:
    def build(b: Builder) -> Any:
        x = f(b, "x", 3)
        for _ in range(length):
            x = b.neg(x)
        return b.abs(x)

    return built(build)


@pytest.mark.parametrize("limit", range(5))
def test_bisection_stops_after_so_many_rewrites(limit: int) -> None:
    graph = chain(8)
    context = Context(options=CompileOptions(bisect=limit))
    result = simplify(graph, context)
    assert len(result.nodes) == 9 - 2 * limit
    assert context.rewrites.fired == limit
    assert_same(graph, result)


def test_a_disabled_rule_does_not_fire() -> None:
    graph = chain(2)
    assert simplify(graph, Context(options=CompileOptions(disable=("twice_is_nothing",)))) is graph


def test_reasons_of_nodes_that_went_later_are_not_told() -> None:
    def build(b: Builder) -> Any:
        t = b.neg(f(b, "x", 3))
        return b.relu(t), b.sub(b.exp(t), b.exp(t))

    graph = built(build)

    @rule(op("sub", op("exp", "x"), op("exp", "x")))
    def nothing(b: Builder, m: Match) -> Any:
        return b.expand(b.scalar(0.0, F32), shape=(3,))

    context = Context()
    result = rewrite(graph, (take_operand, nothing), context)
    assert [node.op for node in result.nodes] == ["copy", "expand"]
    assert context.diagnostics.refusals == ()


def test_nodes_stay_in_an_order_in_which_values_come_first() -> None:
    def build(b: Builder) -> Any:
        x, y = f(b, "x", 3), f(b, "y", 3)
        early = b.relu(b.neg(x))
        return b.add(early, b.exp(y)), early

    result = rewrite(built(build), (take_operand,), Context())
    verify(result)


def test_state_outputs_are_kept() -> None:
    b = Builder()
    cache = b.input("cache", F32, (3,))
    new = b.copy(b.relu(b.add(cache, b.input("x", F32, (3,)))))
    graph = b.finish([b.neg(new)], state=[(cache, new)])
    result = simplify(graph, Context())
    assert result.state == graph.state
    assert new in {value for node in result.nodes for value in node.outputs}


def random_graph(size: int, seed: int) -> Graph:
    """A graph of `size` nodes of every cheap kind, with shared values and several outputs."""
    choose = random.Random(seed)
    b = Builder()
    values: list[Value] = [f(b, "x", 4, 6), f(b, "y", 4, 6), f(b, "z", 4, 6)]

    def pick(shape: tuple[int, ...] = (4, 6)) -> Value:
        fitting = [v for v in values[-12:] if v.type.shape == shape] or [values[0]]
        return choose.choice(fitting)

    def constant(*shape: int) -> Value:
        return w(b, *shape, seed=choose.randrange(100))

    def turned() -> Value:
        return values[-1] if values[-1].type.shape == (6, 4) else b.transpose(pick(), perm=(1, 0))

    steps: list[Callable[[], Any]] = [
        lambda: b.add(pick(), pick()),
        lambda: b.mul(pick(), constant(6)),
        lambda: b.add(pick(), constant(4, 1)),
        lambda: b.mul(pick(), n(b, choose.choice([0.5, 1.0, 2.0, -1.0]))),
        lambda: b.sub(pick(), n(b, choose.choice([0.0, 1.0]))),
        lambda: b.tanh(pick()),
        lambda: b.relu(pick()),
        lambda: b.neg(pick()),
        lambda: b.copy(pick()),
        turned,
        lambda: b.transpose(b.tanh(turned()), perm=(1, 0)),
        lambda: b.reshape(b.sigmoid(b.reshape(pick(), shape=(24,))), shape=(4, 6)),
        lambda: b.reshape(b.add(b.reshape(pick(), shape=(4, 1, 6)), constant(6)), shape=(4, 6)),
        lambda: b.matmul(pick(), b.const(f32(np.eye(6) * 0.5), "eye")),
        lambda: b.sub(pick(), b.reduce_mean(pick(), axes=(1,))),
        lambda: b.sub(pick(), b.reshape(b.reduce_max(pick(), axes=(1,), keepdims=False), shape=(4, 1))),
        lambda: b.softmax(pick(), axis=1),
        lambda: b.concat(
            b.slice_(pick(), starts=(0, 0), sizes=(4, 2), steps=(1, 1)),
            b.slice_(pick(), starts=(0, 1), sizes=(4, 4), steps=(1, 1)),
            axis=1,
        ),
        lambda: b.slice_(b.concat(pick(), pick(), axis=1), starts=(0, 3), sizes=(4, 6), steps=(1, 1)),
        lambda: b.slice_(b.pad(pick(), before=(0, 1), after=(0, 1)), starts=(0, 0), sizes=(4, 6), steps=(1, 1)),
        lambda: b.add(pick(), b.expand(b.slice_(pick(), starts=(1, 0), sizes=(1, 6), steps=(1, 1)), shape=(4, 6))),
        lambda: b.gather(pick(), b.const(np.array([3, 2, 1, 0])), axis=0),
        lambda: b.div(pick(), constant(6)),
    ]
    while len(b.nodes) < size:
        values.append(choose.choice(steps)())
    outputs: Sequence[Value] = list(dict.fromkeys([pick(), values[-1], values[len(values) // 2]]))
    made = {value for node in b.nodes for value in node.outputs}
    return b.finish([v for v in outputs if v in made])


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("exact", [False, True])
def test_random_graphs_keep_their_meaning(seed: int, exact: bool) -> None:
    graph = random_graph(30, seed)
    context = Context(options=CompileOptions(exact=exact))
    result = simplify(graph, context)
    verify(result)
    assert simplify(result, context) is result
    feed = [np.random.default_rng(seed).standard_normal((4, 6)).astype(np.float32) for _ in graph.inputs]
    for before, after in zip(evaluate(graph, feed), evaluate(result, feed), strict=True):
        np.testing.assert_allclose(
            after, before, rtol=1e-6 if exact else 1e-3, atol=1e-6 if exact else 1e-3 * np.abs(before).max()
        )


def test_every_prefix_of_rewrites_keeps_the_meaning() -> None:
    graph = random_graph(40, 1)
    feed = [np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32) for _ in graph.inputs]
    expected = evaluate(graph, feed)
    total = Context()
    simplify(graph, total)
    assert total.rewrites.fired > 10
    for limit in range(total.rewrites.fired):
        result = simplify(graph, Context(options=CompileOptions(bisect=limit)))
        verify(result)
        for before, after in zip(expected, evaluate(result, feed), strict=True):
            np.testing.assert_allclose(after, before, rtol=1e-3, atol=1e-3 * np.abs(before).max())


def test_a_large_graph_fires_a_bounded_number_of_rewrites() -> None:
    graph = random_graph(5000, 3)
    context = Context()
    result = simplify(graph, context)
    verify(result)
    assert len(result.nodes) < len(graph.nodes)
    assert context.rewrites.fired < 2 * len(graph.nodes)


def test_rules_have_names_and_sentences() -> None:
    names = [entry.name for entry in SIMPLIFY_RULES]
    assert len(set(names)) == len(names)
    assert all(isinstance(entry, Rule) and entry.doc.endswith(".") for entry in SIMPLIFY_RULES)
