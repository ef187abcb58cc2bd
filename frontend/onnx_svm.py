"""Converters of support vector machines, with ONNX Runtime's meaning where ONNX leaves it open."""

from __future__ import annotations

import numpy as np

from aot import dtypes
from aot.frontend.ml_scores import class_labels, transformed, two_scores
from aot.frontend.onnx_ml import as_f32, float_array, ml_op, rows_of
from aot.frontend.onnx_registry import Context, Result
from aot.ir import Array, Value

_CERTAIN = 1e-7  # probabilities of pairs keep this far from 0 and 1, as in LIBSVM


@ml_op("SVMRegressor")
def _svm_regressor(c: Context) -> Result:
    x, width = rows_of(c, as_f32(c))
    rho, coefficients = float_array(c, "rho"), float_array(c, "coefficients")
    if not rho.size:
        c.fail("rho is missing")
    supports = c.int_attribute("n_supports", 0)
    if supports:
        vectors = float_array(c, "support_vectors")
        if vectors.size != supports * width or coefficients.size != supports:
            c.fail(
                f"{supports} supports of {width} features have {vectors.size} numbers and"
                f" {coefficients.size} coefficients"
            )
        near = _kernel(c, x, vectors.reshape(supports, width))
    else:
        if coefficients.size != width:
            c.fail(f"{coefficients.size} coefficients for {width} features")
        near = x
    scores = c.op("matmul", near, c.builder.const(coefficients.reshape(-1, 1)))
    scores = c.op("add", scores, c.scalar(float(rho[0]), dtypes.F32))
    if c.bool_attribute("one_class", False):
        one = c.scalar(1.0, dtypes.F32)
        return c.op("where", c.op("gt", scores, c.scalar(0.0, dtypes.F32)), one, c.scalar(-1.0, dtypes.F32))
    return transformed(c, scores, c.text_attribute("post_transform", "NONE"), alone=True)


def _kernel(c: Context, x: Value, vectors: Array) -> Value:
    """[rows, supports]: the kernel of every row with every support vector."""
    kind = c.text_attribute("kernel_type", "LINEAR")
    gamma, coef0, degree = (*c.floats_attribute("kernel_params", ()), 0.0, 0.0, 3.0)[:3]
    dot = c.op("matmul", x, c.builder.const(np.ascontiguousarray(vectors.T)))

    def number(value: float) -> Value:
        return c.scalar(value, dtypes.F32)

    if kind == "LINEAR":
        return dot
    if kind == "RBF":  # |x - v|² as a sum of squares: the difference of large products would lose digits
        wide = c.reshape(x, (x.type.shape[0], 1, x.type.shape[1]))
        apart = c.op("sub", wide, c.builder.const(vectors[None]))
        square = c.op("reduce_sum", c.op("mul", apart, apart), axes=(2,), keepdims=False)
        return c.op("exp", c.op("mul", square, number(-gamma)))
    moved = c.op("add", c.op("mul", dot, number(gamma)), number(coef0))
    if kind == "POLY":
        return c.op("pow", moved, number(degree))
    if kind == "SIGMOID":
        return c.op("tanh", moved)
    c.fail(f"kernel_type is LINEAR, POLY, RBF or SIGMOID; it is {kind!r}")


@ml_op("SVMClassifier")
def _svm_classifier(c: Context) -> Result:
    x, width = rows_of(c, as_f32(c))
    labels = class_labels(c, "classlabels_ints", "classlabels_strings")
    rho, coefficients = float_array(c, "rho"), float_array(c, "coefficients")
    counts = c.ints_attribute("vectors_per_class", ())
    proba, probb = float_array(c, "prob_a"), float_array(c, "prob_b")
    post = c.text_attribute("post_transform", "NONE")
    if not rho.size:
        c.fail("rho is missing")
    if not counts:
        return _linear_machine(c, x, width, labels, coefficients, rho, post)
    classes = len(counts)
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    total = sum(counts)
    vectors = float_array(c, "support_vectors")
    if classes < 2 or min(counts) < 0 or len(labels) != classes or rho.size != len(pairs):
        c.fail(f"{classes} classes have {len(labels)} labels and {rho.size} rho; {len(pairs)} rho are needed")
    if vectors.size != total * width or coefficients.size != total * (classes - 1):
        c.fail(
            f"{total} supports of {width} features and {classes} classes have {vectors.size} numbers and"
            f" {coefficients.size} coefficients"
        )
    if proba.size not in (0, len(pairs)) or probb.size != proba.size:
        c.fail(f"prob_a and prob_b have {proba.size} and {probb.size} numbers; {len(pairs)} are needed")
    near = _kernel(c, x, vectors.reshape(total, width))
    weights = np.zeros((total, len(pairs)), np.float32)
    dual = coefficients.reshape(classes - 1, total)
    starts = np.concatenate([[0], np.cumsum(counts)])
    for number, (i, j) in enumerate(pairs):
        first, second = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        weights[first, number] = dual[j - 1, first]
        weights[second, number] = dual[i, second]
    scores = c.op("add", c.op("matmul", near, c.builder.const(weights)), c.builder.const(rho))
    # One vote for the winner of each pair; of classes with as many votes the first is taken.
    won = c.cast(c.op("gt", scores, c.scalar(0.0, dtypes.F32)), dtypes.F32)
    wins, lost = np.zeros((len(pairs), classes), np.float32), np.zeros(classes, np.float32)
    for number, (i, j) in enumerate(pairs):
        wins[number, i] += 1.0
        wins[number, j] -= 1.0
        lost[j] += 1.0
    votes = c.op("add", c.op("matmul", won, c.builder.const(wins)), c.builder.const(lost))
    best = c.op("argmax", votes, axis=1, keepdims=False)
    label = _label(c, labels, best)
    if not proba.size and classes == 2:
        return label, two_scores(c, scores, post, positive=post != "NONE", count=2)
    if not proba.size:
        return label, transformed(c, scores, post)
    slope, shift = c.builder.const(-proba), c.builder.const(-probb)
    likely = c.op("sigmoid", c.op("add", c.op("mul", scores, slope), shift))
    bounds = (c.scalar(_CERTAIN, dtypes.F32), c.scalar(1.0 - _CERTAIN, dtypes.F32))
    shares = c.op("couple_pairs", c.op("clip", likely, *bounds), classes=classes)
    return label, transformed(c, shares, post)


def _linear_machine(
    c: Context, x: Value, width: int, labels: tuple[int, ...], coefficients: Array, rho: Array, post: str
) -> Result:
    """A classifier without support vectors: one row of coefficients per class."""
    if coefficients.size != len(labels) * width:
        c.fail(f"{coefficients.size} coefficients for {len(labels)} classes of {width} features")
    weights = np.ascontiguousarray(coefficients.reshape(len(labels), width).T)
    scores = c.op("matmul", x, c.builder.const(weights))
    scores = c.op("add", scores, c.scalar(float(rho[0]), dtypes.F32))
    label = _label(c, labels, c.op("argmax", scores, axis=1, keepdims=False))
    if len(labels) == 2:  # the second class also where any score is above a limit
        limit, test = (0.5, "ge") if bool((coefficients >= 0).all()) else (0.0, "gt")
        top = c.op("reduce_max", scores, axes=(1,), keepdims=False)
        above = c.op(test, top, c.scalar(limit, dtypes.F32))
        label = c.op("where", above, c.scalar(labels[1], dtypes.I64), label)
    return label, transformed(c, scores, post)


def _label(c: Context, labels: tuple[int, ...], best: Value) -> Value:
    return c.op("gather", c.builder.const(np.array(labels, np.int64)), best, axis=0)
