"""Every recognition rule where it fires and where it declines, and the forms exporters write."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.dtypes import BOOL, F32, I64
from aot.evaluate import evaluate
from aot.ir import Value
from aot.passes import Context, PassManager
from aot.transforms.dedupe import dedupe
from aot.transforms.fold import fold
from aot.transforms.normalize import normalize
from aot.transforms.recognize import RECOGNIZE_RULES, recognize
from aot.transforms.simplify import simplify
from tests.passes.cases import (
    Case,
    N,
    assert_same,
    built,
    check,
    declines,
    f,
    fires,
    n,
    named,
    pos,
    uncovered,
    w,
)

RULES = {rule.name: rule for rule in RECOGNIZE_RULES}
M = N.dim
SIX = 1 / 6


def x_of(b: Builder) -> Value:
    return f(b, "x", M, 6)


def erf_gelu(b: Builder, x: Value, root: float = math.sqrt(2)) -> Value:
    """As torch exports it."""
    gate = b.add(b.erf(b.div(x, n(b, root))), n(b, 1.0))
    result: Value = b.mul(b.mul(x, gate), n(b, 0.5))
    return result


def gelu_with_leak(b: Builder, x: Value) -> tuple[Value, Value]:
    """A gelu whose erf is read by others too."""
    inner = b.erf(b.div(x, n(b, math.sqrt(2))))
    return b.mul(b.mul(x, b.add(inner, n(b, 1.0))), n(b, 0.5)), b.neg(inner)


def tanh_gelu(b: Builder, x: Value, factor: float = 0.044715) -> Value:
    """As flax and keras export it."""
    cube = b.mul(x, b.mul(x, b.mul(n(b, factor), x)))
    gate = b.tanh(b.mul(n(b, math.sqrt(2 / math.pi)), b.add(x, cube)))
    result: Value = b.mul(x, b.mul(n(b, 0.5), b.add(n(b, 1.0), gate)))
    return result


def factored_gelu(b: Builder, x: Value) -> Value:
    inner = b.add(b.mul(b.mul(x, x), n(b, 0.044715)), n(b, 1.0))
    gate = b.tanh(b.mul(b.mul(x, n(b, 0.7978845834732056)), inner))
    result: Value = b.mul(b.mul(n(b, 0.5), x), b.add(gate, n(b, 1.0)))
    return result


def hard(b: Builder, x: Value, offset: float = 3.0, hi: float = 6.0) -> Value:
    result: Value = b.clip(b.add(x, n(b, offset)), n(b, 0.0), n(b, hi))
    return result


ACTIVATIONS: list[Case] = [
    fires("gelu", lambda b: erf_gelu(b, x_of(b)), "gelu"),
    fires("gelu", lambda b: erf_gelu(b, x_of(b), 1.4142135381698608), "gelu"),
    fires(
        "gelu",
        lambda b: (lambda x: b.mul(b.mul(n(b, 0.5), x), b.add(n(b, 1.0), b.erf(b.mul(x, n(b, 0.70710677))))))(x_of(b)),
        "gelu",
    ),
    fires(
        "gelu",
        lambda b: (lambda x: b.mul(x, b.mul(b.add(b.erf(b.mul(x, n(b, 0.70710677))), n(b, 1.0)), n(b, 0.5))))(x_of(b)),
        "gelu",
    ),
    fires("gelu", lambda b: tanh_gelu(b, x_of(b)), "gelu"),
    fires("gelu", lambda b: factored_gelu(b, x_of(b)), "gelu"),
    fires("gelu", lambda b: tanh_gelu(b, b.mul(x_of(b), f(b, "y", M, 6))), "mul gelu"),
    declines("gelu", lambda b: erf_gelu(b, x_of(b), 1.5), "not x / sqrt(2)"),
    declines("gelu", lambda b: tanh_gelu(b, x_of(b), 0.05), "not gelu's"),
    declines("gelu", lambda b: erf_gelu(b, x_of(b)), "rounding", exact=True),
    declines(
        "gelu",
        lambda b: gelu_with_leak(b, x_of(b)),
        "read by others",
    ),
    fires("silu", lambda b: (lambda x: b.mul(b.sigmoid(x), x))(x_of(b)), "silu"),
    declines("silu", lambda b: b.mul(b.sigmoid(x_of(b)), f(b, "y", M, 6))),
    declines("silu", lambda b: (lambda x: (lambda s: (b.mul(x, s), s))(b.sigmoid(x)))(x_of(b)), "output of the model"),
    fires("mish", lambda b: (lambda x: b.mul(x, b.tanh(b.softplus(x))))(x_of(b)), "mish"),
    declines("mish", lambda b: (lambda x: b.mul(x, b.tanh(b.softplus(b.neg(x)))))(x_of(b))),
    fires("softplus", lambda b: b.log(b.add(b.exp(x_of(b)), n(b, 1.0))), "softplus"),
    declines("softplus", lambda b: b.log(b.add(b.exp(x_of(b)), n(b, 2.0)))),
    fires("softplus_log1p", lambda b: b.log1p(b.exp(x_of(b))), "softplus"),
    declines("softplus_log1p", lambda b: (lambda e: (b.log1p(e), b.neg(e)))(b.exp(x_of(b))), "also read by neg"),
    fires("sigmoid", lambda b: b.reciprocal(b.add(n(b, 1.0), b.exp(b.neg(x_of(b))))), "sigmoid"),
    declines("sigmoid", lambda b: b.reciprocal(b.add(n(b, 1.0), b.exp(x_of(b))))),
    fires("min_of_relu", lambda b: b.min(b.relu(x_of(b)), n(b, 6.0)), "clip"),
    declines("min_of_relu", lambda b: b.min(b.relu(x_of(b)), n(b, -6.0)), "negative"),
    fires("hardswish", lambda b: (lambda x: b.mul(b.mul(x, hard(b, x)), n(b, SIX)))(x_of(b)), "hardswish"),
    fires("hardswish", lambda b: (lambda x: b.div(b.mul(hard(b, x), x), n(b, 6.0)))(x_of(b)), "hardswish"),
    fires("hardswish", lambda b: (lambda x: b.mul(x, b.mul(hard(b, x), n(b, 0.16666667))))(x_of(b)), "hardswish"),
    fires(
        "hardswish", lambda b: (lambda x: b.mul(b.hardsigmoid(x, alpha=0.1666667, beta=0.5), x))(x_of(b)), "hardswish"
    ),
    declines(
        "hardswish",
        lambda b: (lambda x: b.mul(x, b.hardsigmoid(x, alpha=0.2, beta=0.5)))(x_of(b)),
        "another hard sigmoid",
    ),
    declines("hardswish", lambda b: (lambda x: b.mul(b.mul(x, hard(b, x, 2.0)), n(b, SIX)))(x_of(b))),
    fires("hardsigmoid_six", lambda b: b.div(hard(b, x_of(b)), n(b, 6.0)), "hardsigmoid"),
    declines("hardsigmoid_six", lambda b: b.div(hard(b, x_of(b)), n(b, 5.0))),
    fires(
        "hardsigmoid_one",
        lambda b: b.clip(b.add(b.mul(x_of(b), n(b, 0.2)), n(b, 0.5)), n(b, 0.0), n(b, 1.0)),
        "hardsigmoid",
    ),
    fires("hardsigmoid_one", lambda b: hard(b, x_of(b), 0.5, 1.0), "hardsigmoid"),
    declines("hardsigmoid_one", lambda b: hard(b, x_of(b), 0.5, 2.0)),
    declines(
        "hardsigmoid_one",
        lambda b: (lambda t: (b.clip(t, n(b, 0.0), n(b, 1.0)), b.neg(t)))(b.add(x_of(b), n(b, 0.5))),
        "read by others",
    ),
]


def softmax_of(b: Builder, x: Value, axis: int = 1, shift: bool = True, times: bool = False) -> Value:
    if shift:
        x = b.sub(x, b.reduce_max(x, axes=(axis,)))
    powers = b.exp(x)
    total = b.reduce_sum(powers, axes=(axis,))
    result: Value = b.mul(powers, b.reciprocal(total)) if times else b.div(powers, total)
    return result


def mean_of_x(b: Builder, x: Value, axes: tuple[int, ...], spelled: bool = False) -> Value:
    if not spelled:
        mean: Value = b.reduce_mean(x, axes=axes)
        return mean
    size = math.prod(int(str(x.type.shape[axis])) for axis in axes)
    total: Value = b.mul(b.reduce_sum(x, axes=axes), n(b, 1 / size))
    return total


def layer_norm_of(
    b: Builder,
    x: Value,
    axes: tuple[int, ...] = (-1,),
    *,
    spelled: bool = False,
    divide: bool = False,
    again: bool = False,
) -> Value:
    axes = tuple(axis % x.type.rank for axis in axes)
    mean = mean_of_x(b, x, axes, spelled)
    deviation = b.sub(x, mean)
    other = b.sub(x, mean) if again else deviation
    variance = mean_of_x(b, b.mul(other, other), axes, spelled)
    inside = b.add(variance, n(b, 1e-5))
    result: Value = b.div(deviation, b.sqrt(inside)) if divide else b.mul(deviation, b.rsqrt(inside))
    return result


def squares_norm_of(b: Builder, x: Value, clamp: bool = True) -> Value:
    """As jax writes it: E[x²] - E[x]², at least 0."""
    mean = mean_of_x(b, x, (1,), True)
    variance = b.sub(mean_of_x(b, b.mul(x, x), (1,), True), b.mul(mean, mean))
    scale = b.mul(b.rsqrt(b.add(b.relu(variance) if clamp else variance, n(b, 1e-5))), w(b, 6))
    result: Value = b.add(b.mul(b.sub(x, mean), scale), w(b, 6, seed=3))
    return result


def rms_norm_of(b: Builder, x: Value, axes: tuple[int, ...] = (-1,)) -> Value:
    axes = tuple(axis % x.type.rank for axis in axes)
    result: Value = b.mul(x, b.rsqrt(b.add(b.reduce_mean(b.mul(x, x), axes=axes), n(b, 1e-6))))
    return result


def cube(b: Builder) -> Value:
    return f(b, "x", M, 5, 6)


NORMS: list[Case] = [
    fires("softmax", lambda b: softmax_of(b, x_of(b)), "softmax"),
    fires("softmax", lambda b: softmax_of(b, x_of(b), shift=False), "softmax"),
    fires("softmax", lambda b: softmax_of(b, x_of(b), times=True), "softmax"),
    fires("softmax", lambda b: softmax_of(b, cube(b), axis=0), "softmax"),
    declines("softmax", lambda b: (lambda e: b.div(e, b.reduce_sum(e, axes=(1, 2))))(b.exp(cube(b))), "several axes"),
    declines(
        "softmax", lambda b: (lambda e: (b.div(e, b.reduce_sum(e, axes=(1,))), e))(b.exp(x_of(b))), "read by others"
    ),
    declines("softmax", lambda b: b.div(b.exp(f(b, "y", M, 6)), b.reduce_sum(b.exp(x_of(b)), axes=(1,)))),
    fires("log_softmax", lambda b: b.log(b.softmax(x_of(b), axis=1)), "log_softmax"),
    declines("log_softmax", lambda b: (lambda s: (b.log(s), s))(b.softmax(x_of(b), axis=1)), "output of the model"),
    fires("layer_norm", lambda b: layer_norm_of(b, cube(b)), "layer_norm"),
    fires("layer_norm", lambda b: layer_norm_of(b, cube(b), spelled=True), "layer_norm"),
    fires("layer_norm", lambda b: layer_norm_of(b, cube(b), divide=True), "layer_norm"),
    fires("layer_norm", lambda b: layer_norm_of(b, cube(b), (1, 2)), "layer_norm"),
    fires("layer_norm", lambda b: layer_norm_of(b, cube(b), again=True), "layer_norm"),
    fires("layer_norm", lambda b: layer_norm_of(b, f(b, "x", M, 6, 1), (1,)), "layer_norm"),
    fires("layer_norm", lambda b: squares_norm_of(b, x_of(b)), "layer_norm add"),
    fires("layer_norm", lambda b: squares_norm_of(b, x_of(b), clamp=False), "layer_norm add"),
    declines("layer_norm", lambda b: layer_norm_of(b, cube(b), (1,)), "not over the last"),
    declines("layer_norm", lambda b: b.mul(f(b, "y", M, 6), b.rsqrt(b.add(b.exp(f(b, "z", M, 1)), n(b, 1e-5))))),
    declines(
        "layer_norm",
        lambda b: (
            lambda x: b.mul(
                b.sub(x, b.reduce_mean(x, axes=(1,))), b.rsqrt(b.add(b.reduce_mean(b.abs(x), axes=(1,)), n(b, 1e-5)))
            )
        )(x_of(b)),
        "no mean of squared",
    ),
    declines(
        "layer_norm",
        lambda b: layer_norm_of(b, f(b, "x", M, 5, 6), (0, 2)),
        "not over the last",
    ),
    fires("rms_norm", lambda b: rms_norm_of(b, cube(b)), "rms_norm"),
    fires(
        "rms_norm",
        lambda b: (lambda x: b.div(x, b.sqrt(b.add(b.reduce_mean(b.mul(x, x), axes=(1,)), n(b, 1e-6)))))(x_of(b)),
        "rms_norm",
    ),
    declines("rms_norm", lambda b: rms_norm_of(b, cube(b), (1,)), "not over the last"),
    declines(
        "rms_norm",
        lambda b: b.mul(
            f(b, "y", M, 6), b.rsqrt(b.add(b.reduce_mean((lambda x: b.mul(x, x))(x_of(b)), axes=(1,)), n(b, 1e-6)))
        ),
    ),
    fires("scale_of_norm", lambda b: b.mul(b.layer_norm(cube(b), axis=2, epsilon=1e-5), w(b, 6)), "layer_norm"),
    fires("scale_of_norm", lambda b: b.mul(w(b, 1, 1, 6), b.rms_norm(cube(b), axis=2, epsilon=1e-5)), "rms_norm"),
    declines(
        "scale_of_norm",
        lambda b: b.mul(b.layer_norm(cube(b), axis=2, epsilon=1e-5), w(b, 5, 1)),
        "normalized axes only",
    ),
    fires(
        "scale_of_norm",
        lambda b: b.mul(b.rms_norm(cube(b), axis=2, epsilon=1e-5), f(b, "s", 1, 1, 6)),
        "reshape rms_norm",
    ),
    fires(
        "bias_of_norm",
        lambda b: b.add(b.layer_norm(cube(b), axis=2, epsilon=1e-5), f(b, "s", 1, 1, 6)),
        "reshape layer_norm",
    ),
    declines("scale_of_norm", lambda b: b.mul(b.layer_norm(cube(b), w(b, 6), axis=2, epsilon=1e-5), w(b, 6))),
    fires(
        "bias_of_norm",
        lambda b: b.add(b.layer_norm(cube(b), w(b, 6), axis=2, epsilon=1e-5), w(b, 6, seed=1)),
        "layer_norm",
    ),
    fires("bias_of_norm", lambda b: b.add(b.layer_norm(cube(b), axis=1, epsilon=1e-5), w(b, 5, 6)), "layer_norm"),
    declines(
        "bias_of_norm",
        lambda b: b.add(b.layer_norm(cube(b), w(b, 6), axis=2, epsilon=1e-5), f(b, "r", M, 5, 6)),
        "normalized axes only",
    ),
]


def heads(b: Builder, name: str, keys: Any = M) -> Value:
    return f(b, name, 2, 3, keys, 4)


def attend(
    b: Builder,
    *,
    scale: float = 0.5,
    on: str = "scores",
    mask: str = "",
    fill: float = -math.inf,
    turned: bool = True,
    rank: int = 4,
    axis: int = -1,
    leak: bool = False,
    guard: float | None = None,
) -> Any:
    """softmax(q kᵀ scale + mask) v in one of the ways it is exported."""
    shape: tuple[Any, ...] = (2, 3, M, 4) if rank == 4 else (2, M, 4)
    q, v = f(b, "q", *shape), f(b, "v", *shape)
    if turned:
        k = b.transpose(f(b, "k", *shape), perm=(*range(rank - 2), rank - 1, rank - 2))
    else:
        k = f(b, "k", *shape[:-2], shape[-1], shape[-2])
    if on == "both":
        q, k = b.mul(q, n(b, math.sqrt(scale))), b.mul(k, n(b, math.sqrt(scale)))
    if on == "q":
        q = b.mul(q, n(b, scale))
    scores = product = b.matmul(q, k)
    if on == "scores":
        scores = b.mul(scores, n(b, scale))
    if on == "quotient":
        scores = b.div(scores, n(b, 1 / scale))
    if mask == "add":
        scores = b.add(scores, f(b, "mask", M, M))
    if mask == "add first":
        scores = b.add(f(b, "mask", 2, *((1,) * (rank - 3)), 1, M), scores)
    if mask == "add twice":
        scores = b.add(b.add(scores, f(b, "bias", 3, M, M)), f(b, "mask", 2, 1, 1, M))
    if mask == "add, where":
        scores = b.where(f(b, "keep", 2, 1, 1, M, dtype=BOOL), b.add(f(b, "bias", M, M), scores), n(b, fill))
    if mask in ("where", "where not"):
        keep = f(b, "keep", 2, *((1,) * (rank - 3)), 1, M, dtype=BOOL)
        hidden = n(b, fill)
        scores = b.where(keep, scores, hidden) if mask == "where" else b.where(keep, hidden, scores)
    weights = b.softmax(scores, axis=axis)
    if guard is not None:  # as torch exports scaled_dot_product_attention
        weights = b.where(b.isnan(weights), n(b, guard), weights)
    result = b.matmul(weights, v)
    return (result, b.neg(product)) if leak else result


ATTENTION: list[Case] = [
    fires("attention", lambda b: attend(b), ""),
    fires("attention", lambda b: attend(b, on="quotient")),
    fires("attention", lambda b: attend(b, on="both")),
    fires("attention", lambda b: attend(b, on="q")),
    fires("attention", lambda b: attend(b, on="none")),
    fires("attention", lambda b: attend(b, mask="add")),
    fires("attention", lambda b: attend(b, mask="add first")),
    fires("attention", lambda b: attend(b, mask="where")),
    fires("attention", lambda b: attend(b, mask="where not")),
    fires("attention", lambda b: attend(b, mask="where", fill=-1e9)),
    fires("attention", lambda b: attend(b, mask="where not", fill=-3.4e38)),
    fires("attention", lambda b: attend(b, turned=False)),
    fires("attention", lambda b: attend(b, mask="add", on="both", guard=0.0)),
    fires("attention", lambda b: attend(b, mask="where", guard=0.0)),
    fires("attention", lambda b: attend(b, mask="add twice")),
    fires("attention", lambda b: windowed(b)),
    fires("attention", lambda b: attend(b, mask="add, where", guard=0.0)),
    fires("attention", lambda b: attend(b, mask="add, where", fill=-1e9)),
    declines("attention", lambda b: attend(b, mask="add, where", fill=-10.0), "may still count"),
    declines("attention", lambda b: attend(b, mask="add", guard=1.0), ""),
    fires("attention", lambda b: attend(b, rank=3)),
    fires("attention", lambda b: attend(b, rank=3, mask="add first")),
    fires("attention", lambda b: attend(b, rank=3, mask="add")),
    declines("attention", lambda b: attend(b, axis=2), "not over the last axis"),
    declines("attention", lambda b: attend(b, mask="where", fill=-100.0), "may still count"),
    declines("attention", lambda b: attend(b, leak=True), "read by others"),
    declines(
        "attention", lambda b: b.matmul(b.softmax(f(b, "s", 2, 3, M, M)), f(b, "v", 2, 3, M, 4)), "not over a product"
    ),
    declines(
        "attention",
        lambda b: b.matmul(b.softmax(b.matmul(heads(b, "q"), f(b, "k", 2, 1, 4, M))), heads(b, "v")),
        "different batches or heads",
    ),
    declines("attention", lambda b: attend(b), "rounding", exact=True),
]


@pytest.mark.parametrize("case", named([*ACTIVATIONS, *NORMS, *ATTENTION]))
def test_rule(case: Case) -> None:
    check(case, RULES)


def test_every_rule_has_both_cases() -> None:
    assert uncovered([*ACTIVATIONS, *NORMS, *ATTENTION], RECOGNIZE_RULES) == []


def through_passes(build: Any) -> tuple[str, list[Any]]:
    """The ops left by the passes in the compiler's order, and the nodes; the numbers are compared."""
    graph = built(build)
    passes = [normalize, fold, dedupe, recognize, simplify, dedupe, recognize, simplify, fold, dedupe]
    result = PassManager(passes, Context()).run(graph)
    assert_same(graph, result)
    return " ".join(node.op for node in result.nodes), list(result.nodes)


def test_names_of_all_replaced_nodes_are_kept() -> None:
    _, nodes = through_passes(lambda b: erf_gelu(b, x_of(b)))
    assert nodes[0].op == "gelu"
    assert nodes[0].locs == ("div_0", "erf_1", "add_2", "mul_3", "mul_4")


def test_torch_layer_norm() -> None:
    def build(b: Builder) -> Any:
        x = cube(b)
        deviation = b.sub(x, b.reduce_mean(x, axes=(2,)))
        variance = b.reduce_mean(b.pow(deviation, n(b, 2.0)), axes=(2,))
        return b.add(b.mul(b.div(deviation, b.sqrt(b.add(variance, n(b, 1e-5)))), w(b, 6)), w(b, 6, seed=1))

    assert through_passes(build)[0] == "layer_norm"


def test_jax_statistics_that_drop_and_restore_their_axis() -> None:
    def build(b: Builder) -> Any:
        x = x_of(b)
        mean = b.mul(b.reduce_sum(x, axes=(1,), keepdims=False), n(b, SIX))
        squares = b.mul(b.reduce_sum(b.mul(x, x), axes=(1,), keepdims=False), n(b, SIX))
        variance = b.max(n(b, 0.0), b.sub(squares, b.mul(mean, mean)))
        wide = b.expand(b.reshape(variance, shape=(M, 1)), shape=(M, 1))
        scale = b.mul(b.reciprocal(b.sqrt(b.add(wide, n(b, 1e-6)))), w(b, 1, 6))
        centred = b.sub(x, b.expand(b.reshape(mean, shape=(M, 1)), shape=(M, 1)))
        return b.add(b.mul(centred, scale), w(b, 1, 6, seed=4))

    assert through_passes(build)[0] == "layer_norm"


def test_tf_softmax() -> None:
    def build(b: Builder) -> Any:
        x = x_of(b)
        top = b.max(n(b, -math.inf), b.reduce_max(x, axes=(1,), keepdims=False))
        powers = b.exp(b.sub(x, b.expand(b.reshape(top, shape=(M, 1)), shape=(M, 1))))
        total = b.reduce_sum(powers, axes=(1,), keepdims=False)
        return b.div(powers, b.expand(b.reshape(total, shape=(M, 1)), shape=(M, 1)))

    assert through_passes(build)[0] == "softmax"


@pytest.mark.parametrize("mask", ["bert", "torch"])
def test_transformer_block(mask: str) -> None:
    width, head = 8, 4

    def build(b: Builder) -> Any:
        x = f(b, "x", 2, M, width)
        seen = f(b, "seen", 2, M, dtype=I64)

        def project(seed: int) -> Value:
            flat = b.add(w(b, width, seed=seed), b.matmul(x, w(b, width, width, seed=seed + 1)))
            split: Value = b.reshape(flat, shape=(2, M, width // head, head))
            return split

        q = b.transpose(project(1), perm=(0, 2, 1, 3))
        k = b.transpose(project(3), perm=(0, 2, 3, 1))
        v = b.transpose(project(5), perm=(0, 2, 1, 3))
        scores = b.div(b.matmul(q, k), n(b, math.sqrt(head)))
        wide = b.reshape(seen, shape=(2, 1, 1, M))
        if mask == "bert":
            amount = b.mul(b.sub(n(b, 1.0), b.cast(wide, to=F32)), n(b, -3.4028234663852886e38))
            scores = b.add(scores, b.clip(amount, n(b, -1e4)))
        else:
            scores = b.where(b.eq(wide, n(b, 0, I64)), n(b, -1e9), scores)
        context = b.transpose(b.matmul(b.softmax(scores, axis=-1), v), perm=(0, 2, 1, 3))
        result: Value = b.matmul(b.reshape(context, shape=(2, M, width)), w(b, width, width, seed=9))
        return result

    ops, nodes = through_passes(build)
    assert "attention" in ops and "softmax" not in ops
    attention = next(node for node in nodes if node.op == "attention")
    scale = attention.attrs["scale"]
    assert isinstance(scale, float) and scale == pytest.approx(1 / math.sqrt(head))
    assert ops.count("matmul") == 4 and ops.count("transpose") == 4


def test_attention_with_every_score_masked_stays_nan() -> None:
    graph = built(lambda b: attend(b, mask="where"))
    result = recognize(graph, Context())
    feed = {value.name: np.ones((2, 3, 3, 4), np.float32) for value in graph.inputs}
    feed["keep"] = np.zeros((2, 1, 1, 3), bool)
    for output in (evaluate(graph, feed)[0], evaluate(result, feed)[0]):
        assert bool(np.isnan(output).all())


def windowed(b: Builder) -> Value:
    """As swin transformers add the mask of shifted windows."""
    shape = (4 * M, 2, 3, 5)
    q, k, v = (b.reshape(f(b, name, M, 4, 2, 3, 5), shape=shape) for name in "qkv")
    scores = b.add(b.matmul(q, b.transpose(k, perm=(0, 1, 3, 2))), f(b, "bias", 2, 3, 3))
    masked = b.add(b.reshape(scores, shape=(M, 4, 2, 3, 3)), f(b, "mask", 4, 1, 3, 3))
    scores = b.reshape(masked, shape=(4 * M, 2, 3, 3))
    result: Value = b.matmul(b.softmax(scores, axis=-1), v)
    return result


def test_attention_with_a_mask_by_window() -> None:
    ops, _ = through_passes(windowed)
    assert "attention" in ops and "softmax" not in ops


def test_attention_whose_nan_is_replaced_gives_zero() -> None:
    graph = built(lambda b: attend(b, mask="where", guard=0.0))
    result = recognize(graph, Context())
    assert [node.op for node in result.nodes].count("attention") == 1
    feed = {value.name: np.ones((2, 3, 3, 4), np.float32) for value in graph.inputs}
    feed["keep"] = np.array([[[[True, False, True]]], [[[False] * 3]]])
    before, after = evaluate(graph, feed)[0], evaluate(result, feed)[0]
    np.testing.assert_array_equal(before[1], 0.0)
    np.testing.assert_allclose(after, before, rtol=1e-6)


def test_positive_constant_is_no_norm() -> None:
    ops, _ = through_passes(lambda b: b.mul(x_of(b), b.rsqrt(b.add(pos(b, 6), n(b, 1e-5)))))
    assert "norm" not in ops
