"""Dimensions as stack code and back. The runtime runs the same code (runtime/src/dims.cpp)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aot import dims
from aot.artifacts.layout import DimOp
from aot.dims import Atom, Dim, Symbol
from aot.errors import ArtifactError, CompilerError, ModelError

Code = tuple[tuple[int, int, int], ...]  # (op, symbol, value)
_CALLS = {"floordiv": DimOp.FLOORDIV, "mod": DimOp.MOD, "min": DimOp.MIN, "max": DimOp.MAX}
MAX_DEPTH = 64


def encode(dim: Dim, numbers: Mapping[Symbol, int]) -> Code:
    """Stack code that leaves the dimension's value, given each symbol's number.

    Raises ModelError for one that the code cannot hold: numbers beyond 64 bits, a deeper stack than the runtime's.
    """
    code: list[tuple[int, int, int]] = []

    def atom(part: Atom) -> None:
        if isinstance(part, Symbol):
            if part not in numbers:
                raise CompilerError(f"symbol {part.name} of dimension {dim} is not a symbol of the program")
            code.append((DimOp.SYMBOL, numbers[part], 0))
            return
        expression(part.args[0])
        for argument in part.args[1:]:
            expression(argument)
            code.append((_CALLS[part.function], 0, 0))

    def expression(part: Dim) -> None:
        terms, constant = dims.terms_of(part)
        for number, (monomial, coefficient) in enumerate(terms):
            for position, factor in enumerate(monomial):
                atom(factor)
                if position:
                    code.append((DimOp.MUL, 0, 0))
            if coefficient != 1:
                code.extend(((DimOp.CONSTANT, 0, coefficient), (DimOp.MUL, 0, 0)))
            if number:
                code.append((DimOp.ADD, 0, 0))
        if constant or not terms:
            code.append((DimOp.CONSTANT, 0, constant))
            if terms:
                code.append((DimOp.ADD, 0, 0))

    expression(dim)
    _check(dim, code)
    return tuple(code)


def _check(dim: Dim, code: Sequence[tuple[int, int, int]]) -> None:
    depth = 0
    for op, _, value in code:
        if not -(1 << 63) <= value < 1 << 63:
            raise ModelError(f"the size {_short(dim)} has the number {value}, which does not fit 64 bits")
        depth += 1 if op in (DimOp.CONSTANT, DimOp.SYMBOL) else -1
        if depth > MAX_DEPTH:
            raise ModelError(f"the size {_short(dim)} is nested too deeply")


def _short(dim: Dim) -> str:
    text = str(dim)
    return text if len(text) <= 100 else f"{text[:97]}..."


def decode(code: Sequence[tuple[int, int, int]], symbols: Sequence[Symbol], where: str) -> Dim:
    """The dimension that stack code computes. Raises ArtifactError for malformed code."""
    stack: list[Dim] = []
    try:
        for op, symbol, value in code:
            if op == DimOp.CONSTANT:
                stack.append(value)
            elif op == DimOp.SYMBOL:
                stack.append(symbols[symbol].dim)
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(_apply(DimOp(op), left, right))
            if len(stack) > MAX_DEPTH:
                raise ValueError(f"the stack is deeper than {MAX_DEPTH}")
        if len(stack) != 1:
            raise ValueError(f"the code leaves {len(stack)} values")
    except (IndexError, ValueError, ZeroDivisionError) as error:
        raise ArtifactError(f"damaged: dimension code: {error}", where=where) from error
    return stack[0]


def _apply(op: DimOp, left: Dim, right: Dim) -> Dim:
    if op == DimOp.ADD:
        return left + right
    if op == DimOp.MUL:
        return left * right
    if op == DimOp.FLOORDIV:
        return dims.floordiv(left, right)
    if op == DimOp.MOD:
        return dims.mod(left, right)
    return dims.minimum(left, right) if op == DimOp.MIN else dims.maximum(left, right)
