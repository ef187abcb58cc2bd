"""Recurrences written out step by step: rolled where every step is alike, and the same numbers always."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.dims import Symbol
from aot.dtypes import BOOL, F32
from aot.evaluate import evaluate
from aot.ir import Graph, Value
from aot.options import CompileOptions
from aot.passes import Context
from aot.transforms.roll import roll
from aot.verify import verify

B, T, H = 3, 6, 8


def part(b: Builder, x: Value, step: int, axis: int = 1) -> Value:
    """x[:, step], as exporters write it."""
    shape = x.type.shape
    starts = tuple(step if a == axis else 0 for a in range(len(shape)))
    sizes = tuple(1 if a == axis else e for a, e in enumerate(shape))
    row = b.slice(x, starts=starts, sizes=sizes, steps=(1,) * len(shape))
    result: Value = b.reshape(row, shape=tuple(e for a, e in enumerate(shape) if a != axis))
    return result


def stack(b: Builder, values: Sequence[Value], axis: int = 1) -> Value:
    rows = [b.reshape(v, shape=(*v.type.shape[:axis], 1, *v.type.shape[axis:])) for v in values]
    result: Value = b.concat(*rows, axis=axis)
    return result


def weight(b: Builder, *shape: int, seed: int = 0) -> Value:
    rng = np.random.default_rng([seed, *shape])
    return b.const(rng.normal(0, 0.4, shape).astype(np.float32), f"w{seed}")


def zeros(b: Builder, *shape: int) -> Value:
    return b.const(np.zeros(shape, np.float32))


def check(graph: Graph, symbols: dict[str, int] | None = None) -> tuple[Graph, Context]:
    """The graph after the pass, once its numbers agreed with those of the steps."""
    context = Context()
    result = roll(graph, context)
    verify(result)
    rng = np.random.default_rng(5)
    arrays = []
    for value in graph.inputs:
        shape = [e if isinstance(e, int) else (symbols or {})[str(e)] for e in value.type.shape]
        is_truth = value.type.dtype == BOOL
        arrays.append(
            rng.integers(0, 2, shape).astype(bool) if is_truth else rng.normal(0, 0.7, shape).astype(np.float32)
        )
    for mine, theirs in zip(evaluate(result, arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    return result, context


def ops(graph: Graph, name: str) -> list[Any]:
    return [node for node in graph.nodes if node.op == name]


def steps_of(graph: Graph) -> list[int]:
    """How many steps each recurrence of a graph has."""
    found: list[Any] = []
    for node in graph.nodes:
        if node.op == "recur_map":
            found.append(node.attrs["steps"])
        elif node.op == "recur_cell":
            found.append(node.operands[0].type.shape[0])
    return found


def linear(order: Callable[[int], int] = lambda t: t, count: int = T, extent: int = T) -> Graph:
    """h = a[t] h + b[t], all h stacked."""
    b = Builder()
    x, y = b.input("a", F32, (B, extent, H)), b.input("b", F32, (B, extent, H))
    h, rows = zeros(b, B, H), []
    for step in range(count):
        t = order(step)
        h = b.add(b.mul(part(b, x, t), h), part(b, y, t))
        rows.append(h)
    return b.finish([stack(b, rows)])


def test_linear_recurrence_is_one_op_without_copies() -> None:
    result, _ = check(linear())
    assert steps_of(result) == [T]
    assert not ops(result, "concat")
    (node,) = ops(result, "recur_map")
    assert node.attrs["step"] == "x0 h0 mul x1 add"
    assert node.attrs["axis"] == 1


@pytest.mark.parametrize(
    ("order", "count", "extent"),
    [(lambda t: T - 1 - t, T, T), (lambda t: 2 * t + 1, T, 2 * T), (lambda t: t + 2, T, T + 3)],
    ids=["reversed", "every other one", "from the third on"],
)
def test_steps_in_another_order(order: Callable[[int], int], count: int, extent: int) -> None:
    result, _ = check(linear(order, count, extent))
    assert steps_of(result) == [T]


def test_places_without_order_are_copied_together() -> None:
    result, _ = check(linear(lambda t: (0, 3, 1, 5, 2, 4)[t]))
    assert steps_of(result) == [T]
    assert ops(result, "concat")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_steps_stay(count: int) -> None:
    graph = linear(count=count)
    assert roll(graph, Context()) is graph


def test_switched_off() -> None:
    graph = linear()
    assert roll(graph, Context(CompileOptions(disable=("roll",)))) is graph


def rnn(b: Builder, x: Value, count: int, special: int = -1) -> list[Value]:
    u, w, bias = weight(b, H, H), weight(b, 4, H, seed=1), weight(b, H, seed=2)
    h, rows = zeros(b, B, H), []
    for t in range(count):
        total = b.add(b.matmul(part(b, x, t), w), b.add(b.matmul(h, u), bias))
        h = b.relu(total) if t == special else b.tanh(total)
        rows.append(h)
    return rows


@pytest.mark.parametrize(("special", "steps"), [(-1, [12]), (0, [11]), (11, [11]), (5, [6, 5]), (1, [10]), (2, [9])])
def test_a_step_that_differs(special: int, steps: list[int]) -> None:
    """What lies before it and behind it is rolled where it is long enough."""
    b = Builder()
    x = b.input("x", F32, (B, 12, 4))
    result, _ = check(b.finish([stack(b, rnn(b, x, 12, special))]))
    assert sorted(steps_of(result), reverse=True) == steps


def test_products_with_what_steps_are_given_are_one() -> None:
    b = Builder()
    x = b.input("x", F32, (B, T, 4))
    rows = rnn(b, x, T)
    result, _ = check(b.finish([stack(b, rows), rows[-1]]))
    assert steps_of(result) == [T]
    assert len(ops(result, "matmul")) == 1


def lstm(b: Builder, x: Value, c_of_all: bool = False) -> list[Value]:
    w, u, bias = weight(b, 4, 4 * H, seed=3), weight(b, 4 * H, H, seed=4), weight(b, 4 * H, seed=5)
    h, c, rows = zeros(b, B, H), weight(b, B, H, seed=6), []
    for t in range(T):
        gates = b.add(b.add(b.matmul(part(b, x, t), w), bias), b.matmul(h, b.transpose(u, perm=(1, 0))))
        i, f, g, o = (b.slice(gates, starts=(0, n * H), sizes=(B, H), steps=(1, 1)) for n in range(4))
        c = b.add(b.mul(b.sigmoid(f), c), b.mul(b.sigmoid(i), b.tanh(g)))
        h = b.mul(b.sigmoid(o), b.tanh(c))
        rows.append(c if c_of_all else h)
    return rows if c_of_all else [*rows, c]


def test_lstm_with_its_last_cell_state() -> None:
    b = Builder()
    rows = lstm(b, b.input("x", F32, (B, T, 4)))
    result, _ = check(b.finish([stack(b, rows[:-1]), rows[-1]]))
    (cell,) = ops(result, "recur_cell")
    assert cell.attrs["sums"] == 4 and cell.attrs["states"] == 2


def test_cell_states_of_all_steps_are_refused() -> None:
    b = Builder()
    result, context = check(b.finish([stack(b, lstm(b, b.input("x", F32, (B, T, 4)), c_of_all=True))]))
    assert not steps_of(result)
    assert context.diagnostics.why("roll", "")


def test_gru_that_resets_before_the_product() -> None:
    b = Builder()
    x = b.input("x", F32, (B, T, 2 * H))
    u, v, w = weight(b, H, H), weight(b, H, H, seed=1), weight(b, 2 * H, H, seed=2)
    h, rows = b.input("h", F32, (B, H)), []
    for t in range(T):
        given = b.matmul(part(b, x, t), w)
        reset = b.sigmoid(b.add(given, b.matmul(h, u)))
        h = b.add(b.mul(h, reset), b.tanh(b.add(given, b.matmul(b.mul(reset, h), v))))
        rows.append(h)
    result, _ = check(b.finish([stack(b, rows, axis=0)]))
    assert ops(result, "recur_cell")[0].attrs["reset"]


def test_two_layers_and_two_directions() -> None:
    """Layers step by step: the first becomes one node, then what the second is given can be computed at once."""
    b = Builder()
    x = b.input("x", F32, (B, T, H))
    weights = [weight(b, H, H, seed=n) for n in range(6)]
    first, second, back = zeros(b, B, H), zeros(b, B, H), zeros(b, B, H)
    rows, others = [], []
    for t in range(T):
        first = b.tanh(b.add(b.matmul(part(b, x, t), weights[0]), b.matmul(first, weights[1])))
        second = b.tanh(b.add(b.matmul(first, weights[2]), b.matmul(second, weights[3])))
        back = b.tanh(b.add(b.matmul(part(b, x, T - 1 - t), weights[4]), b.matmul(back, weights[5])))
        rows.append(second)
        others.append(back)
    result, _ = check(b.finish([b.concat(stack(b, rows), stack(b, others[::-1]), axis=2)]))
    assert steps_of(result) == [T, T, T]
    assert len(ops(result, "matmul")) == 3


def test_interleaved_recurrences_that_need_each_other() -> None:
    b = Builder()
    x = b.input("x", F32, (B, T, H))
    p, q, rows = zeros(b, B, H), b.input("q", F32, (B, H)), []
    for t in range(T):
        given = part(b, x, t)
        p, q = b.add(b.mul(q, given), p), b.tanh(b.sub(p, given))
        rows += [p, q]
    result, _ = check(b.finish([stack(b, rows[::2]), stack(b, rows[1::2]), q]))
    (node,) = ops(result, "recur_map")
    assert node.attrs["states"] >= 2


def test_what_is_made_of_results_is_made_at_once() -> None:
    """A state-space model: y = h C[t], with h = a[t] h + b[t]."""
    b = Builder()
    x, c = b.input("x", F32, (B, H, T, 5)), b.input("c", F32, (B, T, 5))
    y = b.input("y", F32, (1, H, T, 5))
    h, rows = zeros(b, B, H, 5), []
    for t in range(T):
        h = b.add(b.mul(part(b, x, t, 2), h), part(b, y, t, 2))
        out = b.matmul(h, b.reshape(part(b, c, t), shape=(B, 5, 1)))
        rows.append(b.reshape(out, shape=(B, H)))
    result, _ = check(b.finish([stack(b, rows, axis=2), h]))
    assert steps_of(result) == [T]
    assert len(ops(result, "matmul")) == 1


def test_results_put_into_a_tensor_by_masks_and_by_concats() -> None:
    for by_mask in (True, False):
        b = Builder()
        x = b.input("x", F32, (B, T, H))
        h, out = zeros(b, B, H), b.input("out", F32, (B, T, H))
        for t in range(T):
            before = h
            h = b.add(b.mul(h, part(b, x, t)), part(b, x, t))
            row = b.reshape(b.div(before, b.exp(part(b, x, t))), shape=(B, 1, H))
            if by_mask:
                mask = b.const((np.arange(T) == t).reshape(1, T, 1))
                out = b.where(mask, b.expand(row, shape=(B, T, H)), out)
                continue
            pieces = [(0, t), (t + 1, T - t - 1)]
            sides = [b.slice(out, starts=(0, s, 0), sizes=(B, n, H), steps=(1, 1, 1)) if n else None for s, n in pieces]
            out = b.concat(*(v for v in (sides[0], row, sides[1]) if v is not None), axis=1)
        result, _ = check(b.finish([out]))
        assert steps_of(result) == [T - 1]  # nobody needs the last state
        assert not ops(result, "where")
        assert len(ops(result, "concat")) <= 2


def test_a_result_on_the_way_that_others_read() -> None:
    for readers in (T, 1):
        b = Builder()
        x = b.input("x", F32, (B, T, H))
        h, rows, more = zeros(b, B, H), [], []
        for t in range(T):
            change = b.mul(part(b, x, t), h)
            h = b.add(change, part(b, x, t))
            rows.append(h)
            more.append(change)
        result, _ = check(b.finish([stack(b, rows), stack(b, more) if readers == T else b.exp(more[2])]))
        assert steps_of(result) in ([T], [T - 1])  # the change may be what is carried


def test_masks_and_symbolic_batch() -> None:
    """Rows that have ended keep their state."""
    rows_dim = Symbol("N").dim
    b = Builder()
    x, alive = b.input("x", F32, (rows_dim, T, H)), b.input("alive", BOOL, (rows_dim, T, 1))
    u, h, rows = weight(b, H, H), b.input("h", F32, (rows_dim, H)), []
    for t in range(T):
        new = b.tanh(b.add(part(b, x, t), b.matmul(h, u)))
        h = b.where(part(b, alive, t), new, h)
        rows.append(h)
    result, _ = check(b.finish([stack(b, rows)]), {"N": 4})
    assert steps_of(result) == [T]


@pytest.mark.parametrize("kind", ["feedback", "iteration", "weights", "reduction", "half", "extents"])
def test_other_chains_stay(kind: str) -> None:
    """Steps that look at earlier results, have nothing of their own, or mix the elements of a state."""
    b = Builder()
    x = b.input("x", F32, (B, T, H))
    h, rows = b.input("h", F32, (B, H)), []
    for t in range(T):
        given = part(b, x, t)
        if kind == "feedback":
            given = b.mul(given, b.reduce_sum(h, axes=(1,), keepdims=True))
            h = b.add(b.mul(h, given), given)
        elif kind == "iteration":
            h = b.mul(h, b.sub(b.const(np.asarray(2, np.float32)), h))
        elif kind == "weights":
            h = b.tanh(b.add(b.matmul(h, weight(b, H, H, seed=t)), given))
        elif kind == "reduction":
            h = b.div(b.add(h, given), b.exp(b.reduce_max(h, axes=(1,), keepdims=True)))
        elif kind == "half":
            first = b.slice(b.add(h, given), starts=(0, 0), sizes=(B, H // 2), steps=(1, 1))
            h = b.concat(first, first, axis=1)
        else:
            h = b.transpose(b.reshape(b.add(h, given), shape=(H, B)), perm=(1, 0))
        rows.append(h)
    result, context = check(b.finish([stack(b, rows)]))
    assert not steps_of(result)
    assert context.diagnostics.why("roll", "")


def _random_graph(rng: np.random.Generator) -> Graph:
    """A regular recurrence, sometimes with a step that is not: states, operands, readers and order by chance."""
    b = Builder()
    steps, states = int(rng.integers(4, 9)), int(rng.integers(1, 4))
    cell = states < 3 and rng.random() < 0.4
    time = int(rng.integers(0, 3))
    shape = [B, H]
    shape.insert(time, 2 * steps)
    given = [b.input(f"x{n}", F32, shape) for n in range(int(rng.integers(1, 3)))]
    state = [b.input(f"h{n}", F32, (B, H)) if rng.random() < 0.5 else zeros(b, B, H) for n in range(states)]
    stays = [weight(b, H, seed=n) for n in range(2)]
    weights = weight(b, H, H, seed=7)
    begin, stride = [(0, 1), (1, 2), (steps - 1, -1), (steps, 1)][int(rng.integers(0, 4))]
    plan = [(int(rng.integers(0, 6)), rng.random(2)) for _ in range(int(rng.integers(2, 7)))]
    strange = int(rng.integers(0, steps)) if rng.random() < 0.3 else -1
    collected: list[list[Value]] = [[] for _ in range(states + 1)]
    for step in range(steps):
        pool = [*state, *(part(b, x, begin + stride * step, time) for x in given), *stays]
        if cell:
            pool.append(b.matmul(state[0], weights))
        made: list[Value] = list(state)
        for kind, (left, right) in plan:
            choices = [*pool, *made]
            x, y = choices[int(left * len(choices))], choices[int(right * len(choices))]
            if kind < 3:
                made.append((b.add, b.mul, b.sub)[kind](x, y))
            else:
                made.append((b.tanh, b.sigmoid, b.abs)[kind - 3](b.add(x, y)))
        if step == strange:
            made[-1] = b.neg(made[-1])
        new = []
        for number in range(states):
            value = b.tanh(b.add(made[-1 - number % len(plan)], pool[states]))
            new.append(value if value.type.shape == (B, H) else b.expand(value, shape=(B, H)))
        state = new
        for rows, value in zip(collected, [*state, made[-1]], strict=True):
            rows.append(value)
    outputs = list(state)
    for rows in collected:
        if rng.random() < 0.6 and len({value.type.shape for value in rows}) == 1:
            outputs.append(stack(b, rows if rng.random() < 0.7 else rows[::-1], axis=0))
    return b.finish([b.copy(value) for value in outputs])


@pytest.mark.parametrize("seed", range(60))
def test_random_recurrences(seed: int) -> None:
    check(_random_graph(np.random.default_rng(seed)))


def test_most_random_recurrences_are_rolled() -> None:
    rolled = [bool(steps_of(roll(_random_graph(np.random.default_rng(seed)), Context()))) for seed in range(60)]
    assert sum(rolled) > 20
