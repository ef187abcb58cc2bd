"""Converters of matrix products: MatMul, Gemm, Einsum."""

from __future__ import annotations

from collections.abc import Sequence

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim
from aot.frontend.onnx_registry import Context, Result, onnx_op
from aot.ir import Value
from aot.ops import same_extent


@onnx_op("MatMul")
def _matmul(c: Context) -> Result:
    return matmul(c, c.input(0), c.input(1))


def matmul(c: Context, a: Value, b: Value) -> Value:
    """numpy's matmul, vectors included."""
    if a.type.rank == 0 or b.type.rank == 0:
        c.fail("operands of a matrix product cannot be scalars")
    left = c.reshape(a, (1, *a.type.shape)) if a.type.rank == 1 else a
    right = c.reshape(b, (*b.type.shape, 1)) if b.type.rank == 1 else b
    product = c.op("matmul", left, right)
    shape = list(product.type.shape)
    if b.type.rank == 1:
        shape.pop()
    if a.type.rank == 1:
        shape.pop(-1 if b.type.rank == 1 else -2)
    return c.reshape(product, shape)


@onnx_op("Gemm")
def _gemm(c: Context) -> Result:
    a, b = c.input(0), c.input(1)
    if a.type.rank != 2 or b.type.rank != 2:
        c.fail(f"operands must have rank 2; they have {a.type.rank} and {b.type.rank}")
    if c.bool_attribute("transA", False):
        a = c.transpose(a, (1, 0))
    if c.bool_attribute("transB", False):
        b = c.transpose(b, (1, 0))
    result = _times(c, c.op("matmul", a, b), c.float_attribute("alpha", 1.0))
    beta = c.float_attribute("beta", 1.0)
    if not c.has(2) or beta == 0.0:
        return result
    return c.op("add", result, _times(c, c.input(2), beta))


def _times(c: Context, x: Value, factor: float) -> Value:
    if factor == 1.0:
        return x
    if x.type.dtype.is_float:
        return c.op("mul", x, c.scalar(factor, x.type.dtype))
    if factor.is_integer():
        return c.op("mul", x, c.scalar(int(factor), x.type.dtype))
    return c.cast(c.op("mul", c.cast(x, dtypes.F64), c.scalar(factor, dtypes.F64)), x.type.dtype)


@onnx_op("Einsum")
def _einsum(c: Context) -> Result:
    """Operands are joined two at a time, each as one batched matmul over (batch, free, summed) labels."""
    equation = c.text_attribute("equation").replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if len(terms) != c.count:
        c.fail(f"equation {equation!r} has {len(terms)} operands; the node has {c.count}")
    operands = [(c.input(index), _labels(c, term, c.rank(index))) for index, term in enumerate(terms)]
    every = [label for _, labels in operands for label in labels]
    if arrow:
        hidden = sorted({label for label in every if label.startswith("...")}, key=_hidden_order)
        wanted = _labels(c, result, len(result.replace("...", "")) + len(hidden)) if "..." in result else list(result)
    else:
        hidden = sorted({label for label in every if label.startswith("...")}, key=_hidden_order)
        wanted = [*hidden, *sorted(label for label in set(every) if every.count(label) == 1 and label not in hidden)]
    if len(set(wanted)) != len(wanted) or not set(wanted) <= set(every):
        c.fail(f"equation {equation!r} repeats a result label, or names one that no operand has")
    value, labels = _diagonals(c, *operands[0])
    for position, (right, right_labels) in enumerate(operands[1:], 1):
        later = {label for _, labels_ in operands[position + 1 :] for label in labels_}
        value, labels = _join(c, value, labels, *_diagonals(c, right, right_labels), {*later, *wanted})
    summed = tuple(axis for axis, label in enumerate(labels) if label not in wanted)
    if summed:
        value = c.op("reduce_sum", value, axes=summed, keepdims=False)
        labels = [label for label in labels if label in wanted]
    return c.transpose(value, [labels.index(label) for label in wanted])


def _hidden_order(label: str) -> int:
    return -int(label[3:])


def _labels(c: Context, term: str, rank: int) -> list[str]:
    """One label per axis; axes under an ellipsis are numbered from the last, "...0"."""
    before, dots, after = term.partition("...")
    if not (before + after).isalpha() and before + after:
        c.fail(f"einsum term {term!r} is not letters and an ellipsis")
    hidden = rank - len(before) - len(after)
    if hidden < 0 or (hidden and not dots):
        c.fail(f"einsum term {term!r} does not fit rank {rank}")
    return [*before, *(f"...{number}" for number in reversed(range(hidden))), *after]


def _diagonals(c: Context, value: Value, labels: list[str]) -> tuple[Value, list[str]]:
    """A label that an operand repeats takes the diagonal."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            extent = same_extent(value.type.shape[first], value.type.shape[second], f"einsum label {label!r}")
            counters = []
            for axis in (first, second):
                shape: list[Dim] = [extent if i == axis else 1 for i in range(value.type.rank)]
                counters.append(c.op("iota", shape=tuple(shape), axis=axis, start=0, step=1, dtype=dtypes.I64))
            kept = c.op("where", c.op("eq", *counters), value, c.scalar(0, value.type.dtype))
            value = c.op("reduce_sum", kept, axes=(second,), keepdims=False)
            labels = labels[:second] + labels[second + 1 :]
    return value, labels


def _join(
    c: Context, left: Value, left_labels: list[str], right: Value, right_labels: list[str], needed: set[str]
) -> tuple[Value, list[str]]:
    """One product of two operands, summed over the labels that nobody needs later."""
    left, left_labels = _sum_alone(c, left, left_labels, needed | set(right_labels))
    right, right_labels = _sum_alone(c, right, right_labels, needed | set(left_labels))
    shared = [label for label in left_labels if label in right_labels]
    batch = [label for label in shared if label in needed]
    summed = [label for label in shared if label not in needed]
    left_free = [label for label in left_labels if label not in shared]
    right_free = [label for label in right_labels if label not in shared]
    extents: dict[str, Dim] = {}
    for value, labels in ((left, left_labels), (right, right_labels)):
        for label, extent in zip(labels, value.type.shape, strict=True):
            known = extents.get(label, 1)
            extents[label] = (
                extent if known == 1 else known if extent == 1 else same_extent(known, extent, f"{label!r}")
            )
    left = _stretch(c, left, left_labels, summed, extents)
    right = _stretch(c, right, right_labels, summed, extents)
    a = c.transpose(left, [left_labels.index(label) for label in (*batch, *left_free, *summed)])
    b = c.transpose(right, [right_labels.index(label) for label in (*batch, *summed, *right_free)])

    def sizes(value: Value, first: int, last: int) -> Dim:
        return dimension.product(value.type.shape[first:last])

    count = len(batch)
    a = c.reshape(
        a, (*a.type.shape[:count], sizes(a, count, count + len(left_free)), sizes(a, count + len(left_free), 99))
    )
    b = c.reshape(b, (*b.type.shape[:count], sizes(b, count, count + len(summed)), sizes(b, count + len(summed), 99)))
    product = c.op("matmul", a, b)
    labels = [*batch, *left_free, *right_free]
    return c.reshape(product, (*product.type.shape[:count], *(extents[label] for label in labels[count:]))), labels


def _sum_alone(c: Context, value: Value, labels: list[str], needed: set[str]) -> tuple[Value, list[str]]:
    axes = tuple(axis for axis, label in enumerate(labels) if label not in needed)
    if not axes:
        return value, labels
    return c.op("reduce_sum", value, axes=axes, keepdims=False), [label for label in labels if label in needed]


def _stretch(c: Context, value: Value, labels: Sequence[str], summed: Sequence[str], extents: dict[str, Dim]) -> Value:
    """Summed labels get their full extent where this operand has 1 (batch labels broadcast in matmul)."""
    shape = [
        extents[label] if label in summed else extent for label, extent in zip(labels, value.type.shape, strict=True)
    ]
    return c.expand(value, shape)
