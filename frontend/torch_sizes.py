"""Sizes of a torch.export program: sympy expressions over its symbols, as dims."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from aot import dims as dimension
from aot.control import add_claim
from aot.dims import Dim, DimExpr
from aot.errors import UnsupportedError
from aot.frontend.bindings import Bindings
from aot.frontend.known import KnownBuilder
from aot.ir import Value

_ROUNDED = frozenset({"TruncToInt", "FloorToInt", "CeilToInt", "floor", "ceiling"})
# What is positive where a condition holds; of an equality, where it does not.
_DIFFERENCES: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "GreaterThan": lambda left, right: left - right + 1,
    "LessThan": lambda left, right: right - left + 1,
    "StrictGreaterThan": lambda left, right: left - right,
    "StrictLessThan": lambda left, right: right - left,
    "Equality": lambda left, right: dimension.maximum(left - right, right - left),
    "Unequality": lambda left, right: dimension.maximum(left - right, right - left),
}
LEAST_NUMBER = -(1 << 62)  # of a number that data gives and that is no size
_LARGEST_DENOMINATOR, _SHOWN_EXTENTS = 1000, 1 << 14
_LEAST = 2  # torch assumes this of open sizes; nothing depends on it but tracing


class SizeReader:
    """What each of torch's symbols stands for.

    Those of inputs are bound before anything else (see `bind`); the bounds are torch's, except that its own
    assumption that open sizes are at least 2 is not one of the user's.
    """

    def __init__(self, bindings: Bindings, ranges: Mapping[Any, Any]) -> None:
        self.bindings = bindings
        self.ranges = {str(symbol): found for symbol, found in ranges.items()}
        self.symbols: dict[str, Dim] = {}
        self.rounded: dict[Any, Dim] = {}  # by torch's expression, whole numbers of floats, which are read
        self.example: dict[str, int] = {}  # what symbols were when the program was exported, where that is known

    def bind(self, shapes: Sequence[tuple[str, Sequence[Any]]]) -> None:
        """Gives the symbols in the shapes of the inputs, by name, their dims.

        A symbol is what an extent is, of several that for which there is an option; one that is alone nowhere is
        solved from the first extent that is linear in it. Raises UnsupportedError for other symbols.
        """
        alone: dict[str, list[tuple[str, int]]] = {}
        others: list[tuple[str, int, Any]] = []
        for name, shape in shapes:
            for axis, extent in enumerate(shape):
                if isinstance(extent, int):
                    continue
                if extent.node.expr.is_Symbol:
                    alone.setdefault(str(extent.node.expr), []).append((name, axis))
                else:
                    others.append((name, axis, extent.node.expr))
        for name, axis, expression in others:
            if self.bindings.has_option((name, axis)):
                self._solve(name, axis, expression)
        for text, places in alone.items():
            if text in self.symbols:
                continue
            name, axis = next(filter(self.bindings.has_option, places), places[0])
            self.symbols[text] = self.bindings.input_dim(name, axis, text, self._range(text))
        for name, axis, expression in others:
            self._solve(name, axis, expression)
        for text, size in _hints(shapes).items():
            symbol = dimension.plain_symbol(self.symbols.get(text, 0))
            if symbol is not None:
                self.example[symbol.name] = size

    def _solve(self, name: str, axis: int, expression: Any) -> None:
        """Gives the symbols of an input's extent that have none yet a dim. Raises UnsupportedError: see `bind`."""
        for symbol in sorted(expression.free_symbols, key=str):
            text = str(symbol)
            if text in self.symbols:
                continue
            scale, offset = expression.coeff(symbol), expression.subs(symbol, 0)
            known = scale.is_Integer and scale > 0 and offset.is_Integer
            if not known or expression != scale * symbol + offset:
                raise UnsupportedError(f"the extent {expression} of input {name!r}, which gives {text} no value")
            self.symbols[text] = self.bindings.solved_dim(name, axis, text, self._range(text), int(scale), int(offset))

    def input_dim(self, name: str, axis: int, extent: Any) -> Dim:
        """The extent of an input's axis, after options and conditions; symbols are bound."""
        if isinstance(extent, int):
            return self.bindings.input_dim(name, axis, extent, (extent, extent))
        return self.dim(extent)

    def read_input(self, builder: KnownBuilder, source: Value, number: Any) -> Dim:
        """A number that is an input: its symbol stands for it, in torch's range; of a size too, it must be that."""
        text = str(number.node.expr)
        lo, hi = self._range(text) if text in self.ranges else (LEAST_NUMBER, None)
        contents = builder.read_sizes(source, lo, wish=source.name)
        assert contents is not None  # it is one integer
        found: Dim = contents.flat[0]
        if hi is not None:
            add_claim(builder, hi, found, exact=False)
        if self.symbols.setdefault(text, found) is not found:
            add_claim(builder, found, self.symbols[text], exact=True)
        return found

    def _range(self, text: str) -> tuple[int, int | None]:
        found = self.ranges.get(text)
        if found is None:
            return 1, None
        lo, hi = _bound(found.lower), _bound(found.upper)
        return (1 if lo is None or lo <= _LEAST else lo), hi

    def dim(self, size: Any) -> Dim:
        """A size, symbolic or not."""
        if isinstance(size, int | DimExpr):
            return size
        return self.of(size.node.expr)

    def given(self, size: Any) -> Dim | None:
        """A size that the inputs give; None for one that data gives, or of a form that is not followed."""
        if not isinstance(size, int) and any(str(s) not in self.symbols for s in size.node.expr.free_symbols):
            return None
        try:
            return self.dim(size)
        except UnsupportedError:
            return None

    def element(self, value: Any) -> Any:
        """A size, a number or a condition: plain where torch knows it, else a Dim, or torch's own object."""
        if isinstance(value, bool | int | float):
            return value
        if type(value).__name__ == "SymInt":
            return self.of(value.node.expr)
        expression = value.node.expr
        if expression.is_number and type(value).__name__ == "SymFloat":
            return float(expression)
        return value

    def read(self, builder: KnownBuilder, source: Value, value: Any) -> Any:
        """A number that data gives: of integers it is a size from here on, and its symbol stands for it."""
        if type(value).__name__ != "SymInt":  # a float or a condition stays a tensor
            return source if source.type.rank == 0 else builder.op("reshape", source, shape=())[0]
        text = str(value.node.expr)
        contents = builder.read_sizes(source, self._least(text), wish=text)
        if contents is None:
            raise UnsupportedError("a number that is read from data")
        self.symbols[text] = contents.flat[0]
        return contents.flat[0]

    def read_whole(self, builder: KnownBuilder, source: Value, value: Any, name: str) -> Dim:
        """A whole number that torch computes from sizes in floating point: read as one that data gives."""
        expression = value.node.expr
        lo = _bound(value.node.shape_env.bound_sympy(expression).lower)
        contents = builder.read_sizes(source, LEAST_NUMBER if lo is None else lo, wish=name)
        assert contents is not None  # it is one integer
        self.rounded[expression] = contents.flat[0]
        return self.rounded[expression]

    def _least(self, text: str) -> int:
        """The least value that a number from data may have; torch gives those that are used as sizes a bound."""
        found = self.ranges.get(text)
        lo = None if found is None else _bound(found.lower)
        return LEAST_NUMBER if lo is None else lo

    def learn(self, shape: Any, extents: tuple[Dim, ...]) -> None:
        """Takes torch's new symbols in a result's shape, whose sizes data gives, to be the result's extents."""
        for theirs, ours in zip(shape, extents, strict=False):
            if not isinstance(theirs, int) and theirs.node.expr.is_Symbol:
                self.symbols.setdefault(str(theirs.node.expr), ours)

    def of(self, expression: Any) -> Dim:
        """A sympy expression over sizes."""
        if expression.is_Integer:
            return int(expression)
        if expression in self.rounded:
            return self.rounded[expression]
        if expression.is_Symbol:
            text = str(expression)
            if text not in self.symbols:
                # A size that a tensor of a size from data has: torch knows its name before its value is read.
                self.symbols[text] = self.bindings.unbacked(text, 0)
            return self.symbols[text]
        kind = type(expression).__name__
        if kind in _ROUNDED:
            return self._rounded(kind, expression.args[0])
        if kind == "Piecewise":
            return self._pieces(expression.args)
        parts = [self.of(argument) for argument in expression.args] if kind not in ("Pow", "PowByNatural") else []
        if kind == "Add":
            return dimension.total(parts)
        if kind == "Mul":
            return dimension.product(parts)
        if kind in ("Pow", "PowByNatural"):
            base, exponent = expression.args
            if not exponent.is_Integer or int(exponent) < 0:
                raise UnsupportedError(f"the size {expression}")
            return dimension.product([self.of(base)] * int(exponent))
        if kind in ("FloorDiv", "CleanDiv"):
            return dimension.floordiv(parts[0], parts[1])
        if kind == "CeilDiv":
            return dimension.ceildiv(parts[0], parts[1])
        if kind in ("Mod", "PythonMod"):
            return dimension.mod(parts[0], parts[1])
        if kind == "ModularIndexing":
            return dimension.mod(dimension.floordiv(parts[0], parts[1]), parts[2])
        if kind == "Max":
            return dimension.maximum(*parts)
        if kind == "Min":
            return dimension.minimum(*parts)
        if kind == "Abs":
            return dimension.maximum(parts[0], -1 * parts[0])
        if kind in ("Identity", "ToFloat"):
            return parts[0]
        raise UnsupportedError(f"the size {expression}")

    def _pieces(self, pieces: Sequence[Any]) -> Dim:
        """The value of the first piece whose condition holds; the last one's always does."""
        total: Dim = 0
        rest: Dim = 1  # whether no condition before held
        for value, condition in pieces:
            holds = self._truth(condition)
            total = total + self.of(value) * holds * rest
            rest = rest * (1 - holds)
        return total

    def _truth(self, condition: Any) -> Dim:
        """A condition on sizes as 1 or 0."""
        kind = type(condition).__name__
        if kind in ("BooleanTrue", "BooleanFalse"):
            return int(kind == "BooleanTrue")
        if kind == "And":
            return dimension.product([self._truth(part) for part in condition.args])
        if kind == "Or":
            return dimension.maximum(*(self._truth(part) for part in condition.args))
        if kind == "Not":
            return 1 - self._truth(condition.args[0])
        if kind not in _DIFFERENCES:
            raise UnsupportedError(f"the size {condition}")
        left, right = (self.of(argument) for argument in condition.args)
        is_positive = dimension.minimum(dimension.maximum(_DIFFERENCES[kind](left, right), 0), 1)
        return 1 - is_positive if kind == "Equality" else is_positive

    def _rounded(self, kind: str, inside: Any) -> Dim:
        """A quotient or multiple rounded up or down; a whole number as it is."""
        if type(inside).__name__ == "Mul" and inside.args[0].is_Float and kind in ("TruncToInt", "FloorToInt", "floor"):
            return scaled(dimension.product(map(self.of, inside.args[1:])), float(inside.args[0]))
        if type(inside).__name__ not in ("IntTrueDiv", "FloatTrueDiv"):
            return self.of(inside)
        numerator, denominator = (self.of(argument) for argument in inside.args)
        up = kind in ("CeilToInt", "ceiling")
        return dimension.ceildiv(numerator, denominator) if up else dimension.floordiv(numerator, denominator)


def _hints(shapes: Iterable[tuple[str, Sequence[Any]]]) -> dict[str, int]:
    """The sizes that torch's symbols had in the example, of those that are an extent of an input."""
    found: dict[str, int] = {}
    for _, shape in shapes:
        for extent in shape:
            hint = None if isinstance(extent, int) else extent.node.hint
            if isinstance(hint, int) and extent.node.expr.is_Symbol:
                found[str(extent.node.expr)] = hint
    return found


def scaled(extent: Dim, factor: float) -> Dim:
    """floor(extent * factor) of a factor that is not negative, as torch computes it in double precision.

    An open extent is multiplied by the fraction that the factor stands for. Whether the product in double precision is
    rounded past a whole number depends on the number's leading bits alone, so small extents show it.
    """
    if isinstance(extent, int):
        return math.floor(extent * factor)
    fraction = Fraction(factor).limit_denominator(_LARGEST_DENOMINATOR)
    over, under = fraction.numerator, fraction.denominator
    if fraction != factor and any(math.floor(n * factor) != n * over // under for n in range(_SHOWN_EXTENTS)):
        raise UnsupportedError(f"a size of {extent} times {factor}", hint="Give the size a value with --dim.")
    return dimension.floordiv(extent * over, under)


def _bound(number: Any) -> int | None:
    """A bound as a number; None for an infinite one, or one that no size reaches."""
    return int(number) if getattr(number, "is_Integer", False) and abs(int(number)) < 1 << 40 else None
