"""Access rules of VIEW and GATHER ops against their references, evaluated for every output index at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from aot import dims as dimension
from aot import expr as expression
from aot.dims import Symbol
from aot.evaluate import evaluate_op
from aot.expr import Expr, axis, load
from aot.ir import Array, TensorType
from aot.ops import OPS, OpDef, Sample, infer
from aot.ops.indexing import reshape_groups
from aot.ops.opdef import Attrs
from tests.ops.samples import cases, types_of, variants


@dataclass(frozen=True)
class ArraySource:
    """Operand `number` as an access rule sees it."""

    number: int
    type: TensorType

    def at(self, indices: Sequence[Expr]) -> Expr:
        assert len(indices) == self.type.rank
        return load(self.number, self.type.dtype, indices)

    def at_if(self, guard: Expr, indices: Sequence[Expr], fill: Expr) -> Expr:
        assert len(indices) == self.type.rank and fill.dtype == self.type.dtype
        return Expr("load", (*indices, guard, fill), self.type.dtype, self.number)


def evaluate_access(
    op: OpDef,
    attrs: Attrs,
    operands: Sequence[Array | None],
    types: Sequence[TensorType | None],
    out: TensorType,
    symbols: Mapping[str, int],
) -> Array:
    """The result of an access rule; asserts that nothing is read out of range."""
    shape = tuple(dimension.evaluate(extent, symbols) for extent in out.shape)
    sources = [None if type_ is None else ArraySource(number, type_) for number, type_ in enumerate(types)]
    assert op.access is not None
    rule = op.access(attrs, sources, out, [axis(position) for position in range(len(shape))])
    assert rule.dtype == out.dtype
    places = np.indices(shape, dtype=np.int64)
    return np.array(np.broadcast_to(evaluate_expr(rule, operands, list(places), symbols), shape))


def evaluate_expr(
    rule: Expr, operands: Sequence[Array | None], axes: Sequence[Array], symbols: Mapping[str, int]
) -> Array:
    """An index expression's value where `axes` are the indices; loads check their range."""
    values: dict[Expr, Any] = {}
    for node in expression.walk(rule):
        args = [values[a] for a in node.args]
        if node.op == "axis":
            values[node] = axes[node.payload]
        elif node.op == "dim":
            values[node] = np.asarray(dimension.evaluate(node.payload, symbols), dtype=np.int64)
        elif node.op == "const":
            values[node] = np.asarray(node.payload, dtype=node.dtype.numpy)
        elif node.op == "cast":
            values[node] = expression.convert(args[0], node.dtype)
        elif node.op == "load":
            array = operands[node.payload]
            assert array is not None
            values[node] = _load(array, args)
        else:
            values[node] = expression.NUMPY[node.op](*args)
        assert np.asarray(values[node]).dtype == node.dtype.numpy, expression.text(node)
    return np.asarray(values[rule])


def _load(array: Array, args: list[Any]) -> Any:
    indices, rest = args[: array.ndim], args[array.ndim :]
    if not rest:
        for index, extent in zip(indices, array.shape, strict=True):
            assert np.all((np.asarray(index) >= 0) & (np.asarray(index) < extent)), "read out of range"
        return array[tuple(indices)]
    guard, fill = rest
    for index, extent in zip(indices, array.shape, strict=True):
        inside = (np.asarray(index) >= 0) & (np.asarray(index) < extent)
        assert np.all(inside | ~np.asarray(guard)), "read out of range under its guard"
    if not array.size:
        assert not np.any(guard)
        return fill
    clipped = [np.clip(index, 0, extent - 1) for index, extent in zip(indices, array.shape, strict=True)]
    return np.where(guard, array[tuple(clipped)], fill)


@pytest.mark.parametrize(("name", "sample"), cases(lambda op: op.access))
def test_access_agrees_with_reference(name: str, sample: Sample) -> None:
    op = OPS[name]
    attrs = op.check_attrs(sample.attrs)
    types = types_of(sample)
    (out,) = infer(name, attrs, types)
    (expected,) = evaluate_op(op, attrs, sample.operands)
    got = evaluate_access(op, attrs, sample.operands, types, out, {})
    assert got.shape == expected.shape and got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=sample.relative, atol=sample.absolute)


@pytest.mark.parametrize(("name", "sample"), cases(lambda op: op.access))
def test_access_with_symbols_agrees_with_reference(name: str, sample: Sample) -> None:
    """The rule then has no numbers to lean on."""
    op = OPS[name]
    (expected,) = evaluate_op(op, op.check_attrs(sample.attrs), sample.operands)
    for variant in variants(name, sample):
        (out,) = variant.results
        got = evaluate_access(op, variant.attrs, sample.operands, variant.types, out, variant.symbols)
        assert got.shape == expected.shape and got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=sample.relative, atol=sample.absolute)


@pytest.mark.parametrize(
    ("source", "result", "groups"),
    [
        ((2, 3, 4), (6, 4), [([0, 1], [0]), ([2], [1])]),
        ((6, 4), (2, 3, 4), [([0], [0, 1]), ([1], [2])]),
        ((1, 5, 1), (5,), [([1], [0])]),
        ((2, 3, 4), (4, 6), [([0, 1, 2], [0, 1])]),
        ((), (1, 1), []),
    ],
)
def test_reshape_groups(
    source: tuple[int, ...], result: tuple[int, ...], groups: list[tuple[list[int], list[int]]]
) -> None:
    assert reshape_groups(source, result) == groups


def test_reshape_groups_of_symbols() -> None:
    n, m = Symbol("n").dim, Symbol("m").dim
    assert reshape_groups((n, m, 8), (n * m, 2, 4)) == [([0, 1], [0]), ([2], [1, 2])]
    assert reshape_groups((n, 12, m, 64), (n, m * 12, 8, 8)) == [([0], [0]), ([1, 2], [1]), ([3], [2, 3])]
    assert reshape_groups((n * 8, m), (n, 8, m)) == [([0], [0, 1]), ([1], [2])]
    # Equal only when the program runs: one group, nothing lost.
    assert reshape_groups((n, 4), (m, 2)) == [([0, 1], [0, 1])]
