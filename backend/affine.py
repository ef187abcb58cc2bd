"""Index arithmetic as sums: constant + Σ coefficient * axis + Σ coefficient * (anything else).

Whether a load is contiguous, strided or computed along an axis, and whether two axes can be one, is
read off these sums. Coefficients are `Dim`s, so symbolic strides stay exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aot.dims import Dim
from aot.dtypes import I64
from aot.expr import Expr, axis, dim
from aot.ir import TensorType


@dataclass(frozen=True, slots=True)
class Affine:
    """constant + Σ coefficients[a] * axis(a) + Σ coefficient * expression, in i64."""

    constant: Dim
    coefficients: Mapping[int, Dim]
    rest: tuple[tuple[Expr, Dim], ...] = ()

    def expr(self) -> Expr:
        """The sum as an expression, terms in a fixed order."""
        total = dim(self.constant)
        for number, coefficient in sorted(self.coefficients.items()):
            total = total + axis(number) * dim(coefficient)
        for term, coefficient in self.rest:
            total = total + term * dim(coefficient)
        return total


def affine_of(expr: Expr) -> Affine:
    """Splits an i64 index expression."""
    constant: Dim = 0
    coefficients: dict[int, Dim] = {}
    rest: dict[Expr, Dim] = {}

    def visit(node: Expr, factor: Dim) -> None:
        nonlocal constant
        known = constant_of(node)
        if known is not None:
            constant = constant + factor * known
        elif node.op == "axis":
            coefficients[node.payload] = coefficients.get(node.payload, 0) + factor
        elif node.op in ("add", "sub"):
            visit(node.args[0], factor)
            visit(node.args[1], factor if node.op == "add" else -factor)
        elif node.op == "neg":
            visit(node.args[0], -factor)
        elif node.op == "mul" and constant_of(node.args[1]) is not None:
            visit(node.args[0], factor * (constant_of(node.args[1]) or 0))
        elif node.op == "mul" and constant_of(node.args[0]) is not None:
            visit(node.args[1], factor * (constant_of(node.args[0]) or 0))
        else:
            rest[node] = rest.get(node, 0) + factor

    visit(expr, 1)
    return Affine(
        constant,
        {number: coefficient for number, coefficient in coefficients.items() if coefficient != 0},
        tuple((term, coefficient) for term, coefficient in rest.items() if coefficient != 0),
    )


def constant_of(expr: Expr) -> Dim | None:
    """The Dim that an i64 expression without axes and loads is, or None."""
    if expr.dtype != I64:
        return None
    if expr.op in ("const", "dim"):
        value: Dim = expr.payload
        return value
    if expr.op == "neg":
        inner = constant_of(expr.args[0])
        return None if inner is None else -inner
    if expr.op in ("add", "sub", "mul"):
        left, right = constant_of(expr.args[0]), constant_of(expr.args[1])
        if left is None or right is None:
            return None
        return left + right if expr.op == "add" else left - right if expr.op == "sub" else left * right
    return None


def flat_offset(type_: TensorType, indices: Sequence[Expr]) -> Affine:
    """Elements from the start of the storage to the element at logical indices."""
    total = dim(type_.origin_elements)
    for index, stride in zip(indices, type_.strides, strict=True):
        total = total + index * dim(stride)
    return affine_of(total)


def axes_in(exprs: Iterable[Expr]) -> frozenset[int]:
    """The axes that expressions mention, those of their own reductions included."""
    found: set[int] = set()
    seen: set[Expr] = set()
    stack = list(exprs)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "axis":
            found.add(node.payload)
        stack.extend(node.args)
    return frozenset(found)


_AS_SUM = {"ge": (1, 0), "gt": (1, -1), "le": (-1, 0), "lt": (-1, -1)}


def lane_limits(guard: Expr, number: int) -> tuple[list[Affine], list[Expr]] | None:
    """A condition as limits along an axis: it holds where every sum is >= 0 and every expression is true.

    The sums have a known integer coefficient on the axis; the expressions do not depend on it. None
    where the condition is not of that form.
    """
    sums: list[Affine] = []
    uniform: list[Expr] = []
    stack = [guard]
    while stack:
        node = stack.pop()
        if number not in axes_in([node]):
            uniform.append(node)
        elif node.op == "and":
            stack.extend(node.args)
        elif node.op in _AS_SUM and node.args[0].dtype == I64:
            sign, shift = _AS_SUM[node.op]
            difference = affine_of((node.args[0] - node.args[1]) * sign + shift)
            if not isinstance(difference.coefficients.get(number), int):
                return None
            if number in axes_in(term for term, _ in difference.rest):
                return None
            sums.append(difference)
        else:
            return None
    return sums, uniform


def step_bounds(expr: Expr, number: int) -> tuple[float, float]:
    """Bounds of what one more on an axis adds to an i64 expression; infinite where nothing is known."""
    unknown = (-math.inf, math.inf)
    if number not in axes_in([expr]):
        return 0, 0
    if expr.op == "axis":
        return 1, 1
    known = [constant_of(a) for a in expr.args]
    steps = [step_bounds(a, number) for a in expr.args]
    if expr.op == "neg":
        return -steps[0][1], -steps[0][0]
    if expr.op == "add":
        return steps[0][0] + steps[1][0], steps[0][1] + steps[1][1]
    if expr.op == "sub":
        return steps[0][0] - steps[1][1], steps[0][1] - steps[1][0]
    if expr.op == "abs":
        most = max(abs(steps[0][0]), abs(steps[0][1]))
        return -most, most
    if expr.op in ("min", "max"):
        return min(steps[0][0], steps[1][0]), max(steps[0][1], steps[1][1])
    if expr.op == "mul":
        for factor, (lo, hi) in ((known[0], steps[1]), (known[1], steps[0])):
            if isinstance(factor, int):
                ends = (lo * factor, hi * factor) if factor else (0.0, 0.0)
                return min(ends), max(ends)
        return unknown
    divisor = known[1] if len(known) > 1 else None
    if expr.op == "floordiv" and isinstance(divisor, int) and divisor > 0 and math.isfinite(steps[0][0] + steps[0][1]):
        return steps[0][0] // divisor, -(-steps[0][1] // divisor)
    if expr.op == "mod" and constant_of(expr.args[1]) is not None and steps[0][0] >= 0:
        return -math.inf, steps[0][1]  # up by what the operand goes up, or back by the divisor
    return unknown
