"""Axes of output rows, and merging neighbours into longer ones.

Invariant: a merged kernel computes and stores the same elements; only how they are counted changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aot import expr
from aot.backend.affine import affine_of, axes_in
from aot.dims import Dim
from aot.expr import Expr
from aot.kernel import Kernel, Store


@dataclass(frozen=True, slots=True)
class RowAxis:
    """An axis of output rows: the kernel's axis number, its extent, elements of A from one to the next."""

    axis: int
    extent: Dim
    stride: Dim


def merge_rows(
    kernel: Kernel, rows: Sequence[RowAxis], extra: Sequence[Expr]
) -> tuple[Kernel, tuple[RowAxis, ...], list[Expr]]:
    """Makes neighbouring row axes one where A and every access of the epilogue walk evenly through both.

    The outer axis of a merged pair becomes 0 in all expressions (`extra` ones too), the inner one runs
    over both; offsets are sums of index * stride, so they stay the same.
    """
    rows = [row for row in rows if row.extent != 1]
    extra = list(extra)
    number = len(rows) - 2
    while number >= 0:
        outer, inner = rows[number], rows[number + 1]
        if outer.stride == inner.extent * inner.stride and _walks_evenly(kernel, extra, outer.axis, inner):
            kernel, extra = _substitute(kernel, extra, outer.axis)
            rows[number : number + 2] = [RowAxis(inner.axis, outer.extent * inner.extent, inner.stride)]
        number -= 1
    return kernel, tuple(rows), extra


def _walks_evenly(kernel: Kernel, extra: Sequence[Expr], outer: int, inner: RowAxis) -> bool:
    def even(type_strides: Sequence[Dim], indices: Sequence[Expr]) -> bool:
        total = expr.dim(0)
        for index, stride in zip(indices, type_strides, strict=True):
            total = total + index * expr.dim(stride)
        sum_ = affine_of(total)
        if any(axes_in([term]) & {outer, inner.axis} for term, _ in sum_.rest):
            return False
        return sum_.coefficients.get(outer, 0) == inner.extent * sum_.coefficients.get(inner.axis, 0)

    values = [store.value for store in kernel.stores] + list(extra)
    loads = {node for value in values for node in expr.walk(value) if node.op == "load"}
    for store in kernel.stores:
        if store.axes or not even(kernel.outputs[store.output].type.strides, store.indices):
            return False
    for load in loads:
        type_ = kernel.inputs[load.payload].type
        if not even(type_.strides, load.args[: type_.rank]):
            return False
        if axes_in(load.args[type_.rank :]) & {outer, inner.axis}:
            return False
    bare = [
        expr.rewrite(value, lambda node: expr.const(0, node.dtype) if node.op == "load" else None) for value in values
    ]
    return not axes_in(bare) & {outer, inner.axis}


def _substitute(kernel: Kernel, extra: Sequence[Expr], axis: int) -> tuple[Kernel, list[Expr]]:
    def leaf(node: Expr) -> Expr | None:
        return expr.const(0, node.dtype) if node.op == "axis" and node.payload == axis else None

    stores = tuple(
        Store(s.output, tuple(expr.rewrite(i, leaf) for i in s.indices), expr.rewrite(s.value, leaf), s.axes)
        for s in kernel.stores
    )
    return replace(kernel, stores=stores), [expr.rewrite(value, leaf) for value in extra]
