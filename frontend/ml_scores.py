"""What the classifiers and regressors of ai.onnx.ml do with raw scores, as ONNX Runtime does it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aot.frontend.onnx_registry import Context
from aot.ir import Value

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def class_labels(c: Context, ints: str, strings: str) -> tuple[int, ...]:
    """The labels, which must be integers: tensors of strings have no place in an artifact."""
    if c.has_attribute(strings) and c.texts_attribute(strings, ()):
        c.unsupported("labels that are strings", "Keep the probabilities, or number the classes before the export.")
    labels = c.ints_attribute(ints, ())
    if not labels:
        c.fail(f"{ints} is missing")
    return labels


def transformed(c: Context, scores: Value, post: str, alone: bool = False) -> Value:
    """post_transform over rows of scores [rows, n]. A score that is `alone` is only changed by PROBIT."""
    if post not in TRANSFORMS:
        c.fail(f"post_transform is one of {', '.join(TRANSFORMS)}; it is {post!r}")
    if post == "PROBIT":
        return probit(c, scores)
    if post == "NONE" or alone:
        return scores
    if post == "LOGISTIC":
        return c.op("sigmoid", scores)
    if post == "SOFTMAX":
        return c.op("softmax", scores, axis=1)
    return softmax_zero(c, scores)


def two_scores(c: Context, score: Value, post: str, positive: bool, count: int) -> Value:
    """The two scores of a classifier that has one per row, [rows, 1] to [rows, 2]; of one class: its score."""
    if count == 1:
        return transformed(c, score, post, alone=True)
    if post == "PROBIT":
        c.unsupported("two classes with one score under PROBIT")
    if post == "LOGISTIC":
        return c.op("sigmoid", scaled_pair(c, score, (-1.0, 1.0)))
    return scaled_pair(c, score, (-1.0, 1.0), (1.0, 0.0) if positive else ())


def scaled_pair(c: Context, score: Value, scales: Sequence[float], offsets: Sequence[float] = ()) -> Value:
    """[rows, 1] or [rows, n] times n scales, plus n offsets: one elementwise kernel makes both columns."""
    numpy = score.type.dtype.numpy
    if any(scale != 1.0 for scale in scales) or (len(scales) > 1 and score.type.shape[1] == 1):
        score = c.op("mul", score, c.builder.const(np.array(scales, numpy)))
    return c.op("add", score, c.builder.const(np.array(offsets, numpy))) if any(offsets) else score


def softmax_zero(c: Context, scores: Value) -> Value:
    """Softmax in which scores within 1e-7 of 0 stay almost 0 and do not count."""
    dtype = scores.type.dtype
    top = c.op("reduce_max", scores, axes=(1,), keepdims=True)
    counts = c.op("gt", c.op("abs", scores), c.scalar(float(np.float32(1e-7)), dtype))
    power = c.op("exp", c.op("sub", scores, top))
    tiny = c.op("mul", scores, c.op("exp", c.op("neg", top)))
    total = c.op("reduce_sum", c.op("where", counts, power, c.scalar(0.0, dtype)), axes=(1,), keepdims=True)
    return c.op("div", c.op("where", counts, power, tiny), total)


def probit(c: Context, scores: Value) -> Value:
    """sqrt(2) × erfinv(2x - 1) by Winitzki's formula, which ONNX Runtime uses."""
    dtype = scores.type.dtype

    def number(value: float) -> Value:
        return c.scalar(value, dtype)

    x = c.op("sub", c.op("mul", scores, number(2.0)), number(1.0))
    sign = c.op("where", c.op("lt", x, number(0.0)), number(-1.0), number(1.0))
    log = c.op("log", c.op("mul", c.op("sub", number(1.0), x), c.op("add", number(1.0), x)))
    v = c.op("add", number(2.0 / (math.pi * 0.147)), c.op("mul", log, number(0.5)))
    root = c.op("sqrt", c.op("sub", c.op("mul", v, v), c.op("mul", log, number(1.0 / 0.147))))
    inverse = c.op("mul", sign, c.op("sqrt", c.op("sub", root, v)))
    return c.op("mul", inverse, number(1.41421356))
