"""Every simplification rule in a graph where it fires and in one where it declines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.dtypes import BOOL, F32, I32, I64
from aot.evaluate import evaluate
from aot.ir import Value
from aot.options import CompileOptions
from aot.passes import Context
from aot.transforms.shapes import joined_axes
from aot.transforms.simplify import SIMPLIFY_RULES, simplify
from aot.transforms.simplify_batches import BATCH_RULES
from aot.transforms.simplify_concats import CONCAT_RULES
from aot.transforms.simplify_indices import INDEX_RULES
from aot.transforms.simplify_linear import LINEAR_RULES
from aot.transforms.simplify_reshapes import RESHAPE_RULES
from aot.transforms.simplify_transposes import TRANSPOSE_RULES
from tests.passes.cases import (
    Case,
    N,
    assert_same,
    built,
    check,
    declines,
    f,
    fires,
    full,
    ints,
    n,
    named,
    pos,
    uncovered,
    w,
)

RULES = {rule.name: rule for rule in SIMPLIFY_RULES}
OWN_RULES = (*LINEAR_RULES, *INDEX_RULES, *BATCH_RULES, *CONCAT_RULES, *RESHAPE_RULES, *TRANSPOSE_RULES)
M = N.dim
NORM = {"epsilon": 1e-3}


def conv(b: Builder, x: Value, weight: Value, bias: Value | None = None, **attrs: Any) -> Value:
    spatial = x.type.rank - 2
    given = {
        "strides": (1,) * spatial,
        "pads": (0,) * 2 * spatial,
        "dilations": (1,) * spatial,
        "groups": 1,
        **attrs,
    }
    return b.op("conv", x, weight, *([bias] if bias is not None else []), **given)[0]


def deconv(b: Builder, x: Value, weight: Value, bias: Value | None = None, **attrs: Any) -> Value:
    given = {
        "strides": (2,),
        "pads": (0, 0),
        "dilations": (1,),
        "output_padding": (0,),
        "groups": 1,
        **attrs,
    }
    return b.op("conv_transpose", x, weight, *([bias] if bias is not None else []), **given)[0]


def pool(b: Builder, name: str, x: Value, **attrs: Any) -> Value:
    given = {"window": (3,), "strides": (2,), "pads": (0, 0), "dilations": (1,), **attrs}
    return b.op(name, x, **given)[0]


def norm(b: Builder, x: Value, channels: int) -> Value:
    statistics = [w(b, channels, seed=11), w(b, channels, seed=12), w(b, channels, seed=13), pos(b, channels)]
    result: Value = b.batch_norm(x, *statistics, **NORM)
    return result


def image(b: Builder, name: str = "x", channels: int = 4) -> Value:
    return f(b, name, M, channels, 7, 5)


def kernel(b: Builder, outputs: int = 6, inputs: int = 4) -> Value:
    return w(b, outputs, inputs, 3, 2)


LINEAR: list[Case] = [
    fires("conv_batch_norm", lambda b: norm(b, conv(b, image(b), kernel(b)), 6), "conv"),
    fires("conv_batch_norm", lambda b: norm(b, conv(b, image(b), kernel(b), w(b, 6), pads=(1, 0, 1, 1)), 6), "conv"),
    fires("conv_batch_norm", lambda b: norm(b, conv(b, image(b), kernel(b, 6, 2), groups=2), 6), "conv"),
    fires(
        "conv_batch_norm",
        lambda b: norm(b, deconv(b, f(b, "x", M, 4, 5), w(b, 4, 3, 3), groups=2), 6),
        "conv_transpose",
    ),
    declines("conv_batch_norm", lambda b: norm(b, conv(b, image(b), kernel(b)), 6), "rounding", exact=True),
    declines(
        "conv_batch_norm", lambda b: norm(b, conv(b, image(b), f(b, "w", 6, 4, 3, 2)), 6), "weights are not constant"
    ),
    declines(
        "conv_batch_norm",
        lambda b: (lambda c: (norm(b, c, 6), b.relu(c)))(conv(b, image(b), kernel(b))),
        "also read by relu",
    ),
    declines(
        "conv_batch_norm", lambda b: (lambda c: (norm(b, c, 6), c))(conv(b, image(b), kernel(b))), "output of the model"
    ),
    fires("batch_norm_to_scale", lambda b: norm(b, b.relu(image(b)), 4), "relu mul add"),
    fires("batch_norm_to_scale", lambda b: norm(b, f(b, "x", M, 4), 4), "mul add"),
    declines("batch_norm_to_scale", lambda b: norm(b, conv(b, image(b), kernel(b)), 6), "may take it"),
    declines("batch_norm_to_scale", lambda b: norm(b, image(b), 4), "rounding", exact=True),
    fires("scale_into_weights", lambda b: b.mul(conv(b, image(b), kernel(b), w(b, 6)), w(b, 6, 1, 1)), "conv"),
    fires("scale_into_weights", lambda b: b.mul(conv(b, image(b), kernel(b)), n(b, 3.0)), "conv"),
    fires("scale_into_weights", lambda b: b.mul(w(b, 5), b.matmul(f(b, "x", M, 3), w(b, 3, 5))), "matmul"),
    fires("scale_into_weights", lambda b: b.mul(b.matmul(f(b, "x", 2, M, 3), w(b, 2, 3, 5)), w(b, 1, 5)), "matmul"),
    fires(
        "scale_into_weights",
        lambda b: b.mul(deconv(b, f(b, "x", M, 4, 5), w(b, 4, 3, 3)), w(b, 3, 1)),
        "conv_transpose",
    ),
    declines(
        "scale_into_weights", lambda b: b.mul(b.matmul(f(b, "x", 3, 3), w(b, 3, 5)), w(b, 3, 1)), "output channel only"
    ),
    declines(
        "scale_into_weights", lambda b: b.mul(b.matmul(f(b, "x", M, 3), f(b, "y", 3, 5)), w(b, 5)), "not constant"
    ),
    declines(
        "scale_into_weights", lambda b: b.mul(b.matmul(f(b, "x", M, 3), w(b, 3, 1)), w(b, 5)), "output channel only"
    ),
    fires("neg_into_weights", lambda b: b.neg(conv(b, image(b), kernel(b), w(b, 6))), "conv"),
    fires("neg_into_weights", lambda b: b.neg(b.matmul(f(b, "x", M, 3), w(b, 3, 5))), "matmul"),
    declines("neg_into_weights", lambda b: b.neg(b.matmul(f(b, "x", M, 3), f(b, "y", 3, 5))), "not constant"),
    fires(
        "scale_through_bias",
        lambda b: b.mul(b.add(b.matmul(f(b, "x", M, 3), w(b, 3, 5)), w(b, 5)), n(b, 0.7)),
        "matmul add",
    ),
    declines(
        "scale_through_bias",
        lambda b: b.mul(b.add(b.matmul(f(b, "x", 3, 3), w(b, 3, 5)), w(b, 3, 1)), n(b, 0.7)),
        "output channel only",
    ),
    fires("add_into_bias", lambda b: b.add(conv(b, image(b), kernel(b)), w(b, 1, 6, 1, 1)), "conv"),
    fires("add_into_bias", lambda b: b.sub(conv(b, image(b), kernel(b), w(b, 6)), n(b, 2.0)), "conv"),
    fires("add_into_bias", lambda b: b.sub(conv(b, image(b), kernel(b)), w(b, 6, 1, 1)), "conv"),
    declines("add_into_bias", lambda b: b.sub(n(b, 2.0), conv(b, image(b), kernel(b)))),
    declines("add_into_bias", lambda b: b.add(conv(b, image(b), kernel(b)), w(b, 4)), "output channel only"),
    fires("scale_into_rows", lambda b: b.matmul(b.mul(f(b, "x", M, 3), w(b, 3)), w(b, 3, 5)), "matmul"),
    fires("scale_into_rows", lambda b: b.matmul(b.mul(f(b, "x", M, 2, 3), n(b, 3.0)), w(b, 3, 5)), "matmul"),
    declines("scale_into_rows", lambda b: b.matmul(b.mul(f(b, "x", 4, 3), w(b, 4, 1)), w(b, 3, 5)), "summed axis only"),
    declines("scale_into_rows", lambda b: b.matmul(b.mul(f(b, "x", M, 1), w(b, 3)), w(b, 3, 5)), "widens"),
    fires(
        "scale_before_conv",
        lambda b: conv(b, b.mul(image(b), w(b, 4, 1, 1)), kernel(b), w(b, 6), pads=(1, 1, 1, 1)),
        "conv",
    ),
    fires("scale_before_conv", lambda b: conv(b, b.mul(image(b), n(b, 0.3)), kernel(b)), "conv"),
    declines("scale_before_conv", lambda b: conv(b, b.mul(image(b), n(b, 0.3)), kernel(b, 6, 2), groups=2), "groups"),
    declines("scale_before_conv", lambda b: conv(b, b.mul(image(b), w(b, 5)), kernel(b)), "input channel only"),
    fires("shift_before_conv", lambda b: conv(b, b.add(image(b), w(b, 4, 1, 1)), kernel(b), w(b, 6)), "conv"),
    fires("shift_before_conv", lambda b: conv(b, b.add(image(b), n(b, 0.3)), kernel(b)), "conv"),
    declines(
        "shift_before_conv",
        lambda b: conv(b, b.add(image(b), n(b, 0.3)), kernel(b), pads=(1, 0, 0, 0)),
        "zeros would be shifted",
    ),
    fires("add_constants", lambda b: b.add(b.add(f(b, "x", M, 3), w(b, 3)), n(b, 2.0)), "add"),
    fires("add_constants", lambda b: b.sub(b.add(f(b, "x", M, 3), w(b, 3)), w(b, 3, seed=1)), "add"),
    fires("add_constants", lambda b: b.add(b.sub(f(b, "x", M, 3), w(b, 3)), w(b, 3, seed=1)), "sub"),
    declines("add_constants", lambda b: b.add(b.add(f(b, "x", 3, 3), w(b, 3)), w(b, 3, 1)), "larger than both"),
    declines("add_constants", lambda b: b.add(b.sub(n(b, 1.0), f(b, "x", M, 3)), w(b, 3))),
    declines("add_constants", lambda b: b.add(b.add(f(b, "x", M, 3), w(b, 3)), n(b, 2.0)), "rounding", exact=True),
    fires("add_integers", lambda b: b.sub(b.add(f(b, "x", M, dtype=I32), n(b, 7, I32)), n(b, 9, I32)), "add"),
    declines("add_integers", lambda b: b.add(b.sub(n(b, 7, I32), f(b, "x", M, dtype=I32)), n(b, 9, I32))),
    fires("multiply_constants", lambda b: b.mul(b.mul(f(b, "x", M, 3), w(b, 3)), n(b, 2.0)), "mul"),
    declines("multiply_constants", lambda b: b.mul(b.mul(f(b, "x", M, 1), w(b, 3)), n(b, 2.0)), "widens"),
    fires("multiply_integers", lambda b: b.mul(b.mul(f(b, "x", M, dtype=I64), n(b, 3, I64)), n(b, 5, I64)), "mul"),
    declines("multiply_integers", lambda b: b.mul(b.add(f(b, "x", M, dtype=I64), n(b, 3, I64)), n(b, 5, I64))),
    fires("scale_by_both", lambda b: b.mul(f(b, "x", M, 3), b.mul(f(b, "s", M, 1), w(b, 3))), "mul mul"),
    declines("scale_by_both", lambda b: b.mul(f(b, "x", M, 3), b.mul(f(b, "s", M, 3), w(b, 3)))),
    fires(
        "pad_into_conv",
        lambda b: conv(b, b.pad(image(b), before=(0, 0, 1, 0), after=(0, 0, 2, 3)), kernel(b), pads=(0, 1, 0, 0)),
        "conv",
    ),
    fires(
        "pad_into_conv",
        lambda b: (lambda p: (conv(b, p, kernel(b)), b.relu(p)))(
            b.pad(image(b), n(b, 0.0), before=(0, 0, 1, 0), after=(0, 0, 2, 3))
        ),
        "pad conv relu",
    ),
    declines(
        "pad_into_conv",
        lambda b: conv(b, b.pad(image(b), n(b, 1.0), before=(0, 0, 1, 0), after=(0, 0, 2, 3)), kernel(b)),
        "pads with 1.0",
    ),
    declines(
        "pad_into_conv",
        lambda b: conv(b, b.pad(image(b), before=(0, 0, 1, 0), after=(0, 0, 2, 3), mode="reflect"), kernel(b)),
        "pads by reflect",
    ),
    declines(
        "pad_into_conv",
        lambda b: conv(b, b.pad(image(b, channels=3), before=(0, 1, 0, 0), after=(0, 0, 0, 0)), kernel(b)),
        "channels",
    ),
    declines(
        "pad_into_conv",
        lambda b: conv(b, b.pad(image(b), f(b, "fill"), before=(0, 0, 1, 0), after=(0, 0, 2, 3)), kernel(b)),
        "something unknown",
    ),
    fires(
        "pad_into_pool",
        lambda b: pool(b, "max_pool", b.pad(f(b, "x", M, 2, 8), n(b, -math.inf), before=(0, 0, 1), after=(0, 0, 1))),
        "max_pool",
    ),
    fires(
        "pad_into_pool",
        lambda b: pool(b, "avg_pool", b.pad(f(b, "x", M, 2, 8), before=(0, 0, 1), after=(0, 0, 1))),
        "avg_pool",
    ),
    fires(
        "pad_into_pool",
        lambda b: pool(
            b, "avg_pool", b.pad(f(b, "x", M, 2, 8), before=(0, 0, 1), after=(0, 0, 1)), pads=(1, 0), include_pad=True
        ),
        "avg_pool",
    ),
    declines(
        "pad_into_pool",
        lambda b: pool(b, "max_pool", b.pad(f(b, "x", M, 2, 8), before=(0, 0, 1), after=(0, 0, 1))),
        "pads with 0",
    ),
    declines(
        "pad_into_pool",
        lambda b: pool(b, "avg_pool", b.pad(f(b, "x", M, 2, 8), before=(0, 0, 1), after=(0, 0, 1)), pads=(1, 0)),
        "does not count",
    ),
    declines(
        "pad_into_pool",
        lambda b: pool(b, "avg_pool", b.pad(f(b, "x", M, 2, 8), before=(0, 0, 1), after=(0, 0, 1)), ceil=True),
        "rounds up",
    ),
]


def one_hot_product(b: Builder, first: int = 0, labels_dtype: Any = I32, rows: int = 5, last: int = 1) -> Value:
    labels = f(b, "labels", M, 4, last, dtype=labels_dtype)
    table = ints(b, *range(first, first + 5), shape=(1, 1, 5), dtype=labels_dtype)
    result: Value = b.matmul(b.cast(b.eq(labels, table), to=F32), w(b, rows, 3))
    return result


INDICES: list[Case] = [
    fires(
        "cumsum_of_ones",
        lambda b: (b.cumsum(b.expand(n(b, 1, I64), shape=(M,)), axis=0), b.relu(f(b, "x", M))),
        "iota relu",
    ),
    fires(
        "cumsum_of_ones",
        lambda b: (b.cumsum(b.expand(n(b, 3, I64), shape=(2, M)), axis=1, exclusive=True), b.relu(f(b, "x", M))),
        "iota relu",
    ),
    declines(
        "cumsum_of_ones",
        lambda b: (b.cumsum(b.expand(n(b, 1, I64), shape=(M,)), axis=0, reverse=True), b.relu(f(b, "x", M))),
        "backwards",
    ),
    declines("cumsum_of_ones", lambda b: b.cumsum(f(b, "x", M, dtype=I64), axis=0), "does not sum one number"),
    declines("cumsum_of_ones", lambda b: b.cumsum(f(b, "x", M), axis=0), "floats round"),
    fires("iota_arithmetic", lambda b: (b.sub(count(b), n(b, 1, I64)), f(b, "x", M)), "iota"),
    fires("iota_arithmetic", lambda b: (b.mul(b.add(count(b, 2), n(b, 3, I64)), n(b, -4, I64)), f(b, "x", M)), "iota"),
    declines("iota_arithmetic", lambda b: (b.mul(count(b), n(b, 1 << 62, I64)), f(b, "x", M)), "overflow"),
    fires("iota_backwards", lambda b: (b.sub(n(b, 1, I64), count(b)), f(b, "x", M)), "iota"),
    declines("iota_backwards", lambda b: (b.sub(ints(b, 1, shape=(1, 1)), count(b)), f(b, "x", M))),
    fires("iota_in_shape", lambda b: (b.reshape(count(b), shape=(1, M, 1)), f(b, "x", M)), "iota"),
    fires("iota_in_shape", lambda b: (b.expand(count(b), shape=(4, M)), f(b, "x", M)), "iota"),
    declines("iota_in_shape", lambda b: b.reshape(count(b, extent=6), shape=(2, 3)), "more than to move"),
    fires("gather_everything", lambda b: b.relu(b.gather(f(b, "x", 4, M), count(b), axis=1)), "relu"),
    declines("gather_everything", lambda b: b.gather(f(b, "x", M, 4), count(b), axis=1), "count to the end"),
    declines("gather_everything", lambda b: b.gather(f(b, "x", M, 4), count(b, 1), axis=0), "count from 0 by 1"),
    fires(
        "view_of_number",
        lambda b: (b.slice_(full(b, 2.0, 1, 512), starts=(0, 0), sizes=(1, M), steps=(1, 1)), f(b, "x", M)),
        "expand",
    ),
    declines(
        "view_of_number", lambda b: (b.slice_(w(b, 1, 512), starts=(0, 0), sizes=(1, M), steps=(1, 1)), f(b, "x", M))
    ),
    fires(
        "gather_before_expand",
        lambda b: b.gather(f(b, "x", 5, 4), b.expand(f(b, "index", 1, M, dtype=I64), shape=(2, M)), axis=0),
        "gather expand",
    ),
    fires(
        "gather_before_expand",
        lambda b: b.gather(f(b, "x", 4, 5), b.expand(f(b, "index", M, dtype=I64), shape=(2, M)), axis=1),
        "reshape gather expand",
    ),
    declines(
        "gather_before_expand",
        lambda b: b.gather(b.expand(f(b, "x", 1, 4), shape=(5, 4)), f(b, "index", M, dtype=I64), axis=0),
    ),
    fires(
        "gather_at_count", lambda b: (b.gather(w(b, 9, 4), places(b, range(8)), axis=0), f(b, "x", M)), "slice reshape"
    ),
    fires(
        "gather_at_count",
        lambda b: (b.gather(w(b, 4, 9), places(b, range(1, 9)), axis=1), f(b, "x", M)),
        "slice reshape",
    ),
    declines(
        "gather_at_count", lambda b: (b.gather(w(b, 9, 4), places(b, range(2, 10)), axis=0), f(b, "x", M)), "lie inside"
    ),
    declines(
        "gather_at_count",
        lambda b: (b.gather(w(b, 9, 4), places(b, [0, 1, 2, 4, 5, 6, 7, 8]), axis=0), f(b, "x", M)),
        "no count",
    ),
    fires("one_hot_product", one_hot_product),
    fires("one_hot_product", lambda b: one_hot_product(b, first=-2, labels_dtype=I64)),
    fires("one_hot_product", lambda b: one_hot_product(b, first=3)),
    declines(
        "one_hot_product",
        lambda b: b.matmul(b.cast(b.eq(f(b, "l", M, 1, dtype=I32), ints(b, 0, 2, 1, dtype=I32)), to=F32), w(b, 3, 2)),
        "0, 1, 2",
    ),
    declines("one_hot_product", lambda b: one_hot_product(b, last=5), "no axis to spread"),
]


def count(b: Builder, start: int = 0, extent: Any = M) -> Value:
    result: Value = b.iota(shape=(extent,), axis=0, start=start, step=1, dtype=I64)
    return result


def places(b: Builder, numbers: Any) -> Value:
    result: Value = b.slice_(ints(b, *numbers, shape=(1, 8)), starts=(0, 0), sizes=(1, M), steps=(1, 1))
    return result


MOVES: list[Case] = [
    fires("reshape_below_map", lambda b: b.tanh(b.reshape(f(b, "x", M, 4), shape=(M, 2, 2))), "tanh reshape"),
    fires(
        "reshape_below_map",
        lambda b: b.add(b.reshape(f(b, "x", M, 4), shape=(M, 2, 2)), b.reshape(f(b, "y", M, 4), shape=(M, 2, 2))),
        "add reshape",
    ),
    fires("reshape_below_map", lambda b: b.add(b.reshape(f(b, "x", M, 4), shape=(M, 1, 4)), w(b, 4)), "add reshape"),
    fires(
        "reshape_below_map",
        lambda b: b.sub(b.reshape(f(b, "x", M, 4), shape=(M, 4, 1)), b.reshape(f(b, "y", M, 1, 1, 1), shape=(M, 1, 1))),
        "reshape sub reshape",
    ),
    fires(
        "reshape_below_map",
        lambda b: b.clip(b.reshape(f(b, "x", M, 4), shape=(M * 4,)), n(b, -1.0), n(b, 1.0)),
        "clip reshape",
    ),
    fires(
        "reshape_below_map",
        lambda b: b.mul(b.reshape(f(b, "x", M, 4), shape=(M, 2, 2)), full(b, 2.0, 1, 1)),
        "mul reshape",
    ),
    fires(
        "reshape_below_map",
        lambda b: b.where(
            b.reshape(f(b, "c", M, 4, dtype=BOOL), shape=(M * 4,)),
            n(b, 0.0),
            b.reshape(f(b, "x", M, 4), shape=(M * 4,)),
        ),
        "where reshape",
    ),
    fires("reshape_below_map", lambda b: b.neg(b.reshape(f(b, "x", 1), shape=())), "neg reshape"),
    declines(
        "reshape_below_map",
        lambda b: b.add(b.reshape(f(b, "x", M, 4), shape=(M, 2, 2)), f(b, "y", M, 2, 2)),
        "neither reshaped alike",
    ),
    declines(
        "reshape_below_map",
        lambda b: b.add(b.reshape(f(b, "x", M, 4), shape=(M, 2, 2)), w(b, 2, 1)),
        "neither reshaped alike",
    ),
    declines(
        "reshape_below_map",
        lambda b: (lambda r: (b.tanh(r), b.matmul(r, f(b, "y", 2, 2))))(b.reshape(f(b, "x", M, 4), shape=(M, 2, 2))),
        "for others too",
    ),
    fires(
        "reshape_below_reduce",
        lambda b: b.reduce_sum(b.reshape(f(b, "x", M, 4), shape=(M, 1, 4, 1)), axes=(0, 2)),
        "reduce_sum reshape",
    ),
    declines(
        "reshape_below_reduce",
        lambda b: b.reduce_sum(b.reshape(f(b, "x", M, 4), shape=(M, 2, 2)), axes=(1,)),
        "joins or splits",
    ),
    fires(
        "reshape_above_transpose",
        lambda b: b.reshape(b.transpose(f(b, "x", M, 3, 4), perm=(0, 2, 1)), shape=(M, 1, 4, 3)),
        "reshape transpose",
    ),
    fires(
        "reshape_above_transpose",
        lambda b: b.reshape(b.transpose(f(b, "x", M, 5, 1, 4), perm=(0, 2, 3, 1)), shape=(M, 4, 5)),
        "reshape transpose",
    ),
    fires(
        "reshape_above_transpose",
        lambda b: b.reshape(b.transpose(f(b, "x", 1, 3, 4), perm=(2, 0, 1)), shape=(1, 4, 1, 3, 1)),
        "reshape transpose",
    ),
    declines(
        "reshape_above_transpose", lambda b: b.reshape(b.transpose(f(b, "x", M, 3, 4), perm=(0, 2, 1)), shape=(M, 12))
    ),
    fires(
        "reshape_above_pad",
        lambda b: b.reshape(b.pad(f(b, "x", M, 1, 5), n(b, 2.0), before=(0, 0, 1), after=(0, 0, 2)), shape=(M, 8, 1)),
        "reshape pad",
    ),
    declines(
        "reshape_above_pad",
        lambda b: b.reshape(b.pad(f(b, "x", M, 1, 5), before=(0, 1, 1), after=(0, 0, 2)), shape=(M, 2, 8, 1)),
        "pads an axis of extent 1",
    ),
    fires("transpose_below_map", lambda b: b.tanh(b.transpose(f(b, "x", M, 4), perm=(1, 0))), "tanh transpose"),
    fires(
        "transpose_below_map",
        lambda b: b.sub(
            b.transpose(f(b, "x", M, 4, 5), perm=(2, 0, 1)), b.transpose(f(b, "y", M, 4, 5), perm=(2, 0, 1))
        ),
        "sub transpose",
    ),
    fires(
        "transpose_below_map",
        lambda b: b.sub(w(b, 5, 1, 4), b.transpose(f(b, "x", M, 4, 5), perm=(2, 0, 1))),
        "sub transpose",
    ),
    fires(
        "transpose_below_map",
        lambda b: b.sub(b.transpose(f(b, "x", M, 4, 5), perm=(0, 2, 1)), f(b, "y", M, 1, 1)),
        "sub transpose",
    ),
    fires(
        "transpose_below_map",
        lambda b: b.add(b.transpose(f(b, "x", M, 4, 5), perm=(2, 1, 0)), f(b, "y", 4, 1)),
        "reshape add transpose",
    ),
    declines(
        "transpose_below_map",
        lambda b: b.add(b.transpose(f(b, "x", M, 4), perm=(1, 0)), f(b, "y", 4, M)),
        "neither transposed alike",
    ),
    declines(
        "transpose_below_map",
        lambda b: (lambda t: (b.tanh(t), b.matmul(t, f(b, "y", M, 2))))(b.transpose(f(b, "x", M, 4), perm=(1, 0))),
        "read by others",
    ),
    fires(
        "transpose_below_reduce", lambda b: b.reduce_max(b.transpose(f(b, "x", M, 4, 5), perm=(2, 0, 1)), axes=(0,)), ""
    ),
    fires(
        "transpose_below_reduce",
        lambda b: (lambda t: (b.reduce_max(t, axes=(1, 2)), t))(b.transpose(f(b, "x", M, 4, 5), perm=(0, 2, 1))),
    ),
    declines(
        "transpose_below_reduce",
        lambda b: (lambda t: (b.reduce_max(t, axes=(1,)), t))(b.transpose(f(b, "x", M, 4, 5), perm=(2, 1, 0))),
        "read by others",
    ),
    fires(
        "transpose_below_slice",
        lambda b: b.slice_(
            b.transpose(f(b, "x", M, 4, 5), perm=(2, 0, 1)), starts=(4, 0, 1), sizes=(2, M, 2), steps=(-2, 1, 1)
        ),
        "slice transpose",
    ),
    declines(
        "transpose_below_slice",
        lambda b: (lambda t: (b.slice_(t, starts=(0, 0), sizes=(2, M), steps=(1, 1)), b.relu(t)))(
            b.transpose(f(b, "x", M, 4), perm=(1, 0))
        ),
        "also read by relu",
    ),
    fires(
        "transpose_below_concat",
        lambda b: b.concat(
            b.transpose(f(b, "x", M, 4), perm=(1, 0)), b.transpose(f(b, "y", M, 5), perm=(1, 0)), axis=0
        ),
        "concat transpose",
    ),
    declines(
        "transpose_below_concat",
        lambda b: b.concat(b.transpose(f(b, "x", M, 4), perm=(1, 0)), f(b, "y", 5, M), axis=0),
        "not all transposed alike",
    ),
]


@pytest.mark.parametrize("case", named([*LINEAR, *INDICES, *MOVES]))
def test_rule(case: Case) -> None:
    check(case, RULES)


def heads(b: Builder, name: str, rows: Any = 5, depth: int = 4, count: int = 3) -> Value:
    return f(b, name, M, count, rows, depth)


def joined(b: Builder, value: Value) -> Value:
    batch, count, *rest = value.type.shape
    result: Value = b.reshape(value, shape=(batch * count, *rest))
    return result


def single(b: Builder, value: Value) -> Value:
    batch, count, *rest = value.type.shape
    result: Value = b.reshape(value, shape=(batch * count, 1, *rest))
    return result


def joined_attention(b: Builder, *mask: Value) -> Value:
    q, k, v = (single(b, heads(b, name)) for name in "qkv")
    result: Value = b.attention(q, k, v, *mask, scale=0.5, causal=False)
    return result


def repeated_attention(b: Builder, groups: tuple[int, int]) -> Value:
    def repeated(name: str, count: int) -> Value:
        wide = b.expand(f(b, name, M, count, 1, 5, 4), shape=(M, count, 4 // count, 5, 4))
        result: Value = b.reshape(wide, shape=(M, 4, 5, 4))
        return result

    k, v = (repeated(name, count) for name, count in zip("kv", groups, strict=True))
    result: Value = b.attention(heads(b, "q", count=4), k, v, scale=0.5, causal=False)
    return result


def patches(b: Builder) -> Value:
    """An image cut into patches with two transposes, as mobilevit does."""
    x = b.reshape(f(b, "x", M, 3, 4, 6), shape=(M * 6, 2, 3, 2))
    x = b.reshape(b.transpose(x, perm=(0, 2, 1, 3)), shape=(M, 3, 6, 4))
    result: Value = b.transpose(x, perm=(0, 3, 2, 1))
    return result


def turned_twice(b: Builder, middle: tuple[Any, ...]) -> Value:
    x = b.transpose(f(b, "x", M, 6, 4), perm=(0, 2, 1))
    result: Value = b.transpose(b.reshape(x, shape=middle), perm=(1, 0, 2))
    return result


BATCHES: list[Case] = [
    fires("transposes_around_reshape", patches, "reshape reshape transpose reshape"),
    fires("transposes_around_reshape", lambda b: turned_twice(b, (M, 8, 3)), "reshape transpose reshape"),
    fires("transposes_around_reshape", lambda b: turned_twice(b, (1, M, 24)), "transpose reshape"),
    declines("transposes_around_reshape", lambda b: turned_twice(b, (3 * M, 8, 1)), "no parts in common"),
    declines(
        "transposes_around_reshape",
        lambda b: (lambda t: (b.transpose(b.reshape(t, shape=(M, 8, 3)), perm=(1, 0, 2)), b.neg(t)))(
            b.transpose(f(b, "x", M, 6, 4), perm=(0, 2, 1))
        ),
        "also read by neg",
    ),
    fires(
        "transpose_between_reshapes",
        lambda b: b.reshape(b.transpose(joined(b, heads(b, "x")), perm=(0, 2, 1)), shape=(M, 3, 4, 5)),
        "transpose",
    ),
    fires(
        "transpose_between_reshapes",
        lambda b: b.reshape(b.transpose(joined(b, heads(b, "x")), perm=(2, 0, 1)), shape=(4, M, 3, 1, 5)),
        "transpose reshape",
    ),
    declines(
        "transpose_between_reshapes",
        lambda b: b.reshape(b.transpose(joined(b, heads(b, "x")), perm=(0, 2, 1)), shape=(3, M, 4, 5)),
        "not split as they were",
    ),
    declines(
        "transpose_between_reshapes",
        lambda b: b.reshape(
            b.transpose(b.reshape(heads(b, "x"), shape=(M, 3, 5, 2, 2)), perm=(0, 2, 1, 3, 4)), shape=(M, 15, 4)
        ),
    ),
    fires(
        "matmul_of_joined_batches",
        lambda b: b.matmul(joined(b, heads(b, "q")), joined(b, heads(b, "k", 4, 6))),
        "matmul reshape",
    ),
    fires(
        "matmul_of_joined_batches",
        lambda b: b.matmul(joined(b, heads(b, "q")), b.transpose(joined(b, heads(b, "k", 6)), perm=(0, 2, 1))),
        "transpose matmul reshape",
    ),
    declines(
        "matmul_of_joined_batches",
        lambda b: b.matmul(joined(b, heads(b, "q")), f(b, "k", 3 * M, 4, 6)),
    ),
    declines(
        "matmul_of_joined_batches",
        lambda b: b.matmul(joined(b, heads(b, "q")), b.reshape(f(b, "k", 3, M, 4, 6), shape=(3 * M, 4, 6))),
        "join different axes",
    ),
    fires("rows_of_joined_batches", lambda b: b.softmax(joined(b, heads(b, "x")), axis=-1), "softmax reshape"),
    fires(
        "rows_of_joined_batches",
        lambda b: b.layer_norm(joined(b, heads(b, "x")), w(b, 5, 4), axis=1, epsilon=1e-5),
        "layer_norm reshape",
    ),
    declines("rows_of_joined_batches", lambda b: b.softmax(joined(b, heads(b, "x")), axis=1)),
    declines("rows_of_joined_batches", lambda b: b.softmax(b.reshape(heads(b, "x"), shape=(M, 3, 20)), axis=-1)),
    fires("attention_of_joined_heads", lambda b: joined_attention(b), "attention reshape"),
    fires("attention_of_joined_heads", lambda b: joined_attention(b, f(b, "m", 5, 5)), "attention reshape"),
    fires("attention_of_repeated_heads", lambda b: repeated_attention(b, (2, 2)), "reshape reshape attention"),
    declines("attention_of_repeated_heads", lambda b: repeated_attention(b, (2, 1)), "repeated differently"),
    declines("attention_of_repeated_heads", lambda b: joined_attention(b)),
    declines("attention_of_joined_heads", lambda b: joined_attention(b, f(b, "m", 3 * M, 1, 1, 5)), "differs by batch"),
    declines(
        "attention_of_joined_heads",
        lambda b: b.attention(
            single(b, heads(b, "q")), single(b, heads(b, "k")), f(b, "v", 3 * M, 1, 5, 4), scale=1.0, causal=True
        ),
    ),
]


@pytest.mark.parametrize("case", named(BATCHES))
def test_batches(case: Case) -> None:
    check(case, RULES)


def pair(b: Builder, axis: int = 1, extents: tuple[Any, Any] = (3, 5)) -> Value:
    shapes = [(M, 6, 4) if axis != 1 else (M, extent, 4) for extent in extents]
    if axis == 2:
        shapes = [(M, 6, extent) for extent in extents]
    result: Value = b.concat(*(f(b, f"x{i}", *shape) for i, shape in enumerate(shapes)), axis=axis)
    return result


def rotated(b: Builder, x: Value, axis: int, shift: int, gap: int = 0) -> Value:
    extent = x.type.shape[axis]

    def part(start: int, size: Any) -> Value:
        starts = [0] * x.type.rank
        sizes = list(x.type.shape)
        starts[axis], sizes[axis] = start, size
        result: Value = b.slice(x, starts=tuple(starts), sizes=tuple(sizes), steps=(1,) * x.type.rank)
        return result

    result: Value = b.concat(part(shift + gap, extent - shift - gap), part(0, shift), axis=axis)
    return result


def rotary(b: Builder) -> Value:
    """As exported: x cos + concat(-second half, first half) sin."""
    x = f(b, "x", M, 3, 8)
    halves = [b.slice(x, starts=(0, 0, at), sizes=(M, 3, 4), steps=(1, 1, 1)) for at in (4, 0)]
    turned = b.concat(b.neg(halves[0]), halves[1], axis=2)
    angles = [f(b, name, 3, 8) for name in ("cos", "sin")]
    result: Value = b.add(b.mul(x, angles[0]), b.mul(turned, angles[1]))
    return result


CONCATS: list[Case] = [
    fires("map_before_concat", lambda b: b.relu(pair(b)), "relu relu concat"),
    fires("map_before_concat", lambda b: b.mul(pair(b), w(b, 8, 1)), "mul mul concat"),
    fires("map_before_concat", lambda b: b.clip(pair(b), n(b, -1.0), n(b, 1.0)), "clip clip concat"),
    fires("map_before_concat", lambda b: b.add(pair(b), f(b, "y", M, 8, 4)), "slice add slice add concat"),
    fires("map_before_concat", lambda b: b.add(pair(b), f(b, "y", 4)), "add add concat"),
    fires("map_before_concat", lambda b: b.mul(f(b, "y", M, 1, 1), pair(b)), "mul mul concat"),
    fires("map_before_concat", rotary, ""),
    fires(
        "map_before_concat",
        lambda b: b.relu(
            b.concat(*(b.concat(f(b, f"{name}0", 2, 3), f(b, f"{name}1", 2, 4), axis=1) for name in "xy"), axis=0)
        ),
        "relu relu concat relu relu concat concat",
    ),
    declines("map_before_concat", lambda b: (lambda c: (b.relu(c), b.neg(c)))(pair(b)), "read by others too"),
    declines("map_before_concat", lambda b: b.relu(pair(b, extents=(3, M))), "not known"),
    declines(
        "map_before_concat",
        lambda b: b.add(b.concat(*(f(b, f"x{i}", 2, 4) for i in range(6)), axis=0), f(b, "y", 12, 4)),
        "cut in many pieces",
    ),
    declines(
        "map_before_concat",
        lambda b: b.relu(b.concat(*(f(b, f"x{i}", 1, 2) for i in range(65)), axis=0)),
        "too many pieces",
    ),
    fires("concat_to_rotation", lambda b: rotated(b, f(b, "x", M, 7, 4), 1, 3), "gather"),
    fires("concat_to_rotation", lambda b: rotated(b, f(b, "x", 5, 4), 0, 4), "gather"),
    declines("concat_to_rotation", lambda b: rotated(b, f(b, "x", M, 7, 4), 2, 3), "last axis"),
    declines("concat_to_rotation", lambda b: rotated(b, f(b, "x", M, 7, 4), 1, 3, gap=1)),
    declines("concat_to_rotation", lambda b: rotated(b, f(b, "x", M, 2, 4), 1, 1), "not known"),
]


@pytest.mark.parametrize("case", named(CONCATS))
def test_concats(case: Case) -> None:
    check(case, RULES)


def test_rotary_embedding_needs_no_joined_tensor_before_its_result() -> None:
    assert ops_after(rotary).count("concat") == 1


def test_joined_axes() -> None:
    batch = M
    assert joined_axes((batch, 3, 5), (batch * 3, 5)) == [[0, 1], [2]]
    assert joined_axes((2, 1, 3), (6,)) == [[0, 1, 2]]
    assert joined_axes((2, 3, 1), (2, 3)) == [[0], [1, 2]]
    assert joined_axes((6, 4), (2, 12)) is None
    assert joined_axes((2, 3), (3, 2)) is None
    assert joined_axes((1, 4), (1, 4)) == [[], [0, 1]]


def test_every_rule_has_both_cases() -> None:
    assert uncovered([*LINEAR, *INDICES, *BATCHES, *CONCATS, *MOVES], OWN_RULES) == []


def ops_after(build: Any, **options: Any) -> str:
    graph = built(build)
    result = simplify(graph, Context(options=CompileOptions(**options)))
    assert_same(graph, result)
    assert simplify(result, Context(options=CompileOptions(**options))) is result
    return " ".join(node.op for node in result.nodes)


def test_conv_block_becomes_one_conv() -> None:
    def block(b: Builder) -> Any:
        x = b.pad(image(b), before=(0, 0, 1, 1), after=(0, 0, 1, 1))
        return b.relu(b.mul(norm(b, conv(b, x, kernel(b)), 6), w(b, 6, 1, 1)))

    assert ops_after(block) == "conv relu"
    assert ops_after(block, exact=True) == "conv batch_norm mul relu"


def test_normalization_in_channels_last_layout_meets_its_transposes() -> None:
    def block(b: Builder) -> Any:
        last = b.transpose(conv(b, image(b), kernel(b)), perm=(0, 2, 3, 1))
        last = b.relu(b.add(b.mul(last, w(b, 6)), w(b, 6, seed=2)))
        return conv(b, b.transpose(last, perm=(0, 3, 1, 2)), w(b, 2, 6, 1, 1))

    assert ops_after(block) == "conv relu conv"


def test_global_pool_over_transposed_axes_needs_no_transpose() -> None:
    def block(b: Builder) -> Any:
        last = b.transpose(image(b), perm=(0, 2, 3, 1))
        return b.matmul(b.reduce_max(last, axes=(1, 2), keepdims=False), w(b, 4, 3))

    assert ops_after(block) == "reduce_max reshape matmul"


def test_positions_of_bert_need_no_gather() -> None:
    def block(b: Builder) -> Any:
        words = f(b, "x", 2, M, 6)
        ids = b.slice_(ints(b, *range(8), shape=(1, 8)), starts=(0, 0), sizes=(1, M), steps=(1, 1))
        kinds = b.expand(b.slice_(full(b, 0, 1, 8, dtype=I64), starts=(0, 0), sizes=(1, M), steps=(1, 1)), shape=(2, M))
        return b.add(b.add(words, b.gather(w(b, 2, 6), kinds, axis=0)), b.gather(w(b, 8, 6), ids, axis=0))

    assert "gather" not in ops_after(block)


def test_labels_outside_the_one_hot_range_give_zeros() -> None:
    graph = built(lambda b: one_hot_product(b, first=-1))
    result = simplify(graph, Context())
    labels = np.array([-(2**31), 2**31 - 1, -3, -2, -1, 0, 3, 4, 5, 6, 9, -9], np.int32).reshape(3, 4, 1)
    before, after = evaluate(graph, [labels])[0], evaluate(result, [labels])[0]
    assert any(node.op == "gather" for node in result.nodes)
    np.testing.assert_array_equal(before, after)
