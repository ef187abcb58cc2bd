"""Dimensions: an int, or a normalized integer expression over symbols.

A `Dim` is a Python int or a `DimExpr`: a polynomial with integer coefficients over atoms, where an
atom is a `Symbol` or a call of floordiv, mod, min or max. Expressions are normalized when they are
made, so that equal ones are equal objects by value and print equal. Division rounds down, as
Python's does; divisors are positive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

Dim: TypeAlias = "int | DimExpr"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named extent that is known only when the program runs.

    `lo..hi` are inclusive bounds (`hi` None: no bound), `divisor` divides every value it can take.
    `origin` is "input" for a dimension of a model input, "unbacked" for a size that a node computes.
    """

    name: str
    lo: int = 1
    hi: int | None = None
    divisor: int = 1
    origin: str = "input"

    @property
    def dim(self) -> DimExpr:
        """The expression that is just this symbol."""
        return DimExpr((((self,), 1),), 0)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Call:
    """floordiv(a, b), mod(a, b), min(...) or max(...): an atom of a polynomial."""

    function: str
    args: tuple[Dim, ...]

    def __str__(self) -> str:
        return _call_text(self)


@lru_cache(maxsize=1 << 16)
def _call_text(call: Call) -> str:
    """Text of a call; asked for all the time, since monomials are kept in the order of their text."""
    if call.function in ("floordiv", "mod"):
        sign = "//" if call.function == "floordiv" else "%"
        return f"{_factor_text(call.args[0])}{sign}{_factor_text(call.args[1])}"
    return f"{call.function}({', '.join(map(str, call.args))})"


Atom = Symbol | Call
Monomial = tuple[Atom, ...]


class DimExpr:
    """A polynomial: sum of coefficient × product of atoms, plus a constant. Immutable."""

    __slots__ = ("_hash", "_text", "constant", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...], constant: int) -> None:
        self.terms = terms
        self.constant = constant
        self._hash = hash((terms, constant))
        self._text: str | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DimExpr) and self.constant == other.constant and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        if self._text is None:
            self._text = _polynomial_text(self)
        return self._text

    __repr__ = __str__

    def __add__(self, other: Dim) -> Dim:
        return _sum([(self, 1), (other, 1)])

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        return _sum([(self, 1), (other, -1)])

    def __rsub__(self, other: Dim) -> Dim:
        return _sum([(other, 1), (self, -1)])

    def __neg__(self) -> Dim:
        return _sum([(self, -1)])

    def __mul__(self, other: Dim) -> Dim:
        return _product(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return mod(other, self)


def terms_of(dim: Dim) -> tuple[tuple[tuple[Monomial, int], ...], int]:
    """The (terms, constant) of a dimension."""
    return ((), dim) if isinstance(dim, int) else (dim.terms, dim.constant)


def _make(terms: Mapping[Monomial, int], constant: int) -> Dim:
    if any(_is_quotient(atom) for monomial in terms for atom in monomial):
        terms = _without_quotients(_in_quotients(terms.items()))
    for monomial in terms:
        if terms[monomial] and len(monomial) == 1 and isinstance(monomial[0], Call) and monomial[0].function == "mod":
            shorter = _without_remainder(terms, constant, monomial[0])
            if shorter is not None:
                return shorter
    kept = [(monomial, coefficient) for monomial, coefficient in terms.items() if coefficient]
    if not kept:
        return constant
    kept.sort(key=lambda term: _monomial_key(term[0]))
    return DimExpr(tuple(kept), constant)


def _without_remainder(terms: Mapping[Monomial, int], constant: int, remainder: Call) -> Dim | None:
    """The sum with a % d as a - d * (a // d), where that has fewer terms: n + (-n) % 4 is 4 * ((n + 3) // 4)."""
    dividend, divisor = remainder.args
    coefficient = terms[(remainder,)]
    rest = DimExpr(tuple((m, c) for m, c in terms.items() if c and m != (remainder,)), constant)
    for same in (dividend, -1 * dividend) if divisor == 2 else (dividend,):  # n % 2 is (-n) % 2
        whole = divisor * floordiv(same, divisor)
        found = _sum([(rest, 1), (same, coefficient), (whole, -coefficient)])
        if _weight(found) < _weight(DimExpr(tuple(terms.items()), constant)):
            return found
    return None


def _weight(dim: Dim) -> tuple[int, int]:
    """What the shorter of two forms of one sum has less of: calls, then terms."""
    terms = [monomial for monomial, coefficient in terms_of(dim)[0] if coefficient]
    return sum(isinstance(atom, Call) for monomial in terms for atom in monomial), len(terms)


def _is_quotient(atom: Atom) -> bool:
    """Whether an atom is `s // d` for a symbol s of known divisor d: a whole number of steps of d."""
    if not isinstance(atom, Call) or atom.function != "floordiv" or not isinstance(atom.args[0], DimExpr):
        return False
    terms, constant = atom.args[0].terms, atom.args[0].constant
    if constant or len(terms) != 1 or terms[0][1] != 1 or len(terms[0][0]) != 1:
        return False
    symbol = terms[0][0][0]
    return isinstance(symbol, Symbol) and symbol.divisor > 1 and symbol.divisor == atom.args[1]


def _in_quotients(terms: Iterable[tuple[Monomial, int]]) -> dict[Monomial, int]:
    """The terms with each symbol s of known divisor d written as d × (s // d)."""
    result: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        atoms: list[Atom] = []
        for atom in monomial:
            if isinstance(atom, Symbol) and atom.divisor > 1:
                coefficient *= atom.divisor
                atom = Call("floordiv", (atom.dim, atom.divisor))
            atoms.append(atom)
        key = tuple(sorted(atoms, key=str))
        result[key] = result.get(key, 0) + coefficient
    return result


def _without_quotients(terms: dict[Monomial, int]) -> dict[Monomial, int]:
    """The inverse of `_in_quotients`, for each quotient that every one of its terms allows."""
    # Sorted, so that the result does not depend on how the expression came about.
    for quotient in sorted({atom for monomial in terms for atom in monomial if _is_quotient(atom)}, key=str):
        assert isinstance(quotient, Call)
        whole, divisor = quotient.args
        assert isinstance(whole, DimExpr) and isinstance(divisor, int)
        symbol = whole.terms[0][0][0]
        if any(coefficient % divisor ** monomial.count(quotient) for monomial, coefficient in terms.items()):
            continue
        terms = {
            tuple(sorted((symbol if atom == quotient else atom for atom in monomial), key=str)): coefficient
            // divisor ** monomial.count(quotient)
            for monomial, coefficient in terms.items()
        }
    return terms


def _monomial_key(monomial: Monomial) -> tuple[int, tuple[str, ...]]:
    return (-len(monomial), tuple(map(str, monomial)))


def _sum(parts: Iterable[tuple[Dim, int]]) -> Dim:
    terms: dict[Monomial, int] = {}
    constant = 0
    for dim, factor in parts:
        dim_terms, dim_constant = terms_of(dim)
        constant += factor * dim_constant
        for monomial, coefficient in dim_terms:
            terms[monomial] = terms.get(monomial, 0) + factor * coefficient
    return _make(terms, constant)


def _product(left: Dim, right: Dim) -> Dim:
    left_terms, left_constant = terms_of(left)
    right_terms, right_constant = terms_of(right)
    terms: dict[Monomial, int] = {}
    for left_monomial, left_coefficient in (*left_terms, ((), left_constant)):
        for right_monomial, right_coefficient in (*right_terms, ((), right_constant)):
            monomial = tuple(sorted(left_monomial + right_monomial, key=str))
            terms[monomial] = terms.get(monomial, 0) + left_coefficient * right_coefficient
    return _make({m: c for m, c in terms.items() if m}, terms.get((), 0))


def exact_div(dividend: Dim, divisor: Dim) -> Dim | None:
    """dividend / divisor as a polynomial, or None where it does not divide without a remainder.

    Multivariate long division by the leading term, in the print order of monomials; symbols of known
    divisors count as multiples of their quotients.
    """
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor if divisor and dividend % divisor == 0 else None
    rest, by = _polynomial(dividend), _polynomial(divisor)
    if not by:
        return None
    lead_monomial = min(by, key=_monomial_key)
    lead_coefficient = by[lead_monomial]
    quotient: dict[Monomial, int] = {}
    for _ in range(64):
        if not rest:
            return _make({m: c for m, c in quotient.items() if m}, quotient.get((), 0))
        monomial = min(rest, key=_monomial_key)
        remaining = list(monomial)
        for atom in lead_monomial:
            if atom not in remaining:
                return None
            remaining.remove(atom)
        if rest[monomial] % lead_coefficient:
            return None
        factor, coefficient = tuple(remaining), rest[monomial] // lead_coefficient
        quotient[factor] = quotient.get(factor, 0) + coefficient
        for by_monomial, by_coefficient in by.items():
            key = tuple(sorted(factor + by_monomial, key=str))
            rest[key] = rest.get(key, 0) - coefficient * by_coefficient
            if not rest[key]:
                del rest[key]
    return None


def _polynomial(dim: Dim) -> dict[Monomial, int]:
    """The non-zero coefficients, the constant under (), symbols of known divisors in quotients."""
    terms, constant = terms_of(dim)
    result = _in_quotients(terms)
    if constant:
        result[()] = constant
    return {monomial: coefficient for monomial, coefficient in result.items() if coefficient}


def floordiv(dividend: Dim, divisor: Dim) -> Dim:
    """Floor of dividend / divisor. A zero divisor raises ZeroDivisionError."""
    if isinstance(divisor, int):
        if divisor == 0:
            raise ZeroDivisionError("division of a dimension by zero")
        if isinstance(dividend, int):
            return dividend // divisor
        if divisor == 1:
            return dividend
        if divisor < 0:
            return floordiv(-dividend, -divisor)
    exact = exact_div(dividend, divisor)
    if exact is not None:
        return exact
    dividend, divisor, _ = cancelled(dividend, divisor)
    if isinstance(divisor, int) and isinstance(dividend, DimExpr):
        terms = _in_quotients(dividend.terms)
        whole = {m: c // divisor for m, c in terms.items() if c % divisor == 0}
        rest = _make({m: c for m, c in terms.items() if c % divisor}, dividend.constant % divisor)
        whole_dim = _make(whole, dividend.constant // divisor)
        if isinstance(rest, int):
            return whole_dim + rest // divisor
        lo, hi = bounds(rest)
        if lo // divisor == hi // divisor:
            return whole_dim + int(lo // divisor)
        constant = terms_of(rest)[1]
        inner = _single_call(rest - constant, "floordiv")
        if inner is not None and isinstance(inner.args[1], int):  # (x // m + c) // n is (x + c * m) // (m * n)
            step = inner.args[1]
            return whole_dim + floordiv(inner.args[0] + constant * step, step * divisor)
        if isinstance(rest, DimExpr) and rest.terms[0][1] < 0:  # rounded down is minus what is rounded up
            return whole_dim - floordiv(divisor - 1 - rest, divisor)
        return whole_dim + _atom(Call("floordiv", (rest, divisor)))
    return _atom(Call("floordiv", (dividend, divisor)))


def cancelled(dividend: Dim, divisor: Dim) -> tuple[Dim, Dim, Dim]:
    """Dividend and divisor without the factors that two products have in common, and their product."""
    if isinstance(dividend, int) or isinstance(divisor, int) or dividend.constant or divisor.constant:
        return dividend, divisor, 1
    if len(dividend.terms) != 1 or len(divisor.terms) != 1:
        return dividend, divisor, 1
    common: Dim = math.gcd(dividend.terms[0][1], divisor.terms[0][1])
    rest = list(divisor.terms[0][0])
    for atom in dividend.terms[0][0]:
        if atom in rest:
            rest.remove(atom)
            common = common * _make({(atom,): 1}, 0)
    left, right = exact_div(dividend, common), exact_div(divisor, common)
    assert left is not None and right is not None
    return left, right, common


def mod(dividend: Dim, divisor: Dim) -> Dim:
    """dividend − divisor × floor(dividend / divisor)."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend % divisor
    if exact_div(dividend, divisor) is not None:
        return 0
    dividend, divisor, common = cancelled(dividend, divisor)
    if common != 1:
        return common * mod(dividend, divisor)
    if isinstance(divisor, int) and isinstance(dividend, DimExpr):
        terms = _in_quotients(_without_inner_remainders(dividend, divisor).items())
        # Of the coefficients that leave the same remainder, the one nearest to 0.
        near = {m: (c + (divisor - 1) // 2) % divisor - (divisor - 1) // 2 for m, c in terms.items()}
        rest = _make(near, dividend.constant % divisor)
        if rest != dividend:
            return mod(rest, divisor)
        lo, hi = bounds(rest)
        if lo >= 0 and hi < divisor:
            return rest
        return _make({(Call("mod", (rest, divisor)),): 1}, 0)
    return _make({(Call("mod", (dividend, divisor)),): 1}, 0)


def _without_inner_remainders(dividend: DimExpr, divisor: int) -> dict[Monomial, int]:
    """The terms of a dividend in which x % m, for m a multiple of the divisor, is x."""
    terms: dict[Monomial, int] = {}
    for monomial, coefficient in dividend.terms:
        inner = monomial[0] if len(monomial) == 1 else None
        parts: tuple[tuple[Monomial, int], ...] = ((monomial, 1),)
        if isinstance(inner, Call) and inner.function == "mod" and exact_div(inner.args[1], divisor) is not None:
            found, constant = terms_of(inner.args[0])
            parts = found if constant % divisor == 0 else parts
        for part, factor in parts:
            terms[part] = terms.get(part, 0) + coefficient * factor
    return terms


def ceildiv(dividend: Dim, divisor: Dim) -> Dim:
    """Ceiling of dividend / divisor."""
    return floordiv(dividend + divisor - 1, divisor)


def minimum(*dims: Dim) -> Dim:
    """The smallest of the dimensions, decided now where the bounds allow."""
    return _extreme("min", dims)


def maximum(*dims: Dim) -> Dim:
    """The largest of the dimensions, decided now where the bounds allow."""
    return _extreme("max", dims)


def _extreme(function: str, dims: tuple[Dim, ...]) -> Dim:
    flat: list[Dim] = []
    for dim in dims:
        inner = _single_call(dim, function)
        flat.extend(inner.args if inner is not None else (dim,))
    flat.sort(key=str)  # so that the result does not depend on the order of the arguments
    kept: list[Dim] = []
    for dim in flat:
        if not any(_beats(function, other, dim) for other in kept):
            kept = [other for other in kept if not _beats(function, dim, other)]
            kept.append(dim)
    if len(kept) == 1:
        return kept[0]
    return _atom(Call(function, tuple(kept)))


def _beats(function: str, dim: Dim, other: Dim) -> bool:
    """Whether `dim` is at least (max) or at most (min) `other`, whatever the symbols are."""
    return bounds(dim - other if function == "max" else other - dim)[0] >= 0


def _atom(call: Call) -> DimExpr:
    return DimExpr((((call,), 1),), 0)


def _single_call(dim: Dim, function: str) -> Call | None:
    if isinstance(dim, DimExpr) and not dim.constant and len(dim.terms) == 1:
        (monomial, coefficient) = dim.terms[0]
        if (
            coefficient == 1
            and len(monomial) == 1
            and isinstance(monomial[0], Call)
            and monomial[0].function == function
        ):
            return monomial[0]
    return None


def total(dims: Iterable[Dim]) -> Dim:
    """The sum of dimensions; 0 for none."""
    return _sum([(dim, 1) for dim in dims])


def product(dims: Iterable[Dim]) -> Dim:
    """The product of dimensions; 1 for none."""
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


def bounds(dim: Dim) -> tuple[float, float]:
    """An interval that holds every value the dimension can take; ends may be infinite."""
    return (dim, dim) if isinstance(dim, int) else _bounds(dim)


@lru_cache(maxsize=1 << 16)
def _bounds(dim: DimExpr) -> tuple[float, float]:
    lo, hi = _interval(dim)
    if any(isinstance(monomial[0], Call) for monomial, _ in dim.terms) and len(dim.terms) > 1:
        lo, hi = max(lo, _relaxed(dim, _MOST_RELAXED)), min(hi, -_relaxed(-dim, _MOST_RELAXED))
    return lo, hi


_MOST_RELAXED = 3
"""Calls that one bound replaces by what they are at least or at most."""


def _relaxed(dim: Dim, depth: int) -> float:
    """A lower bound of a sum, from bounds of its calls by their own arguments: n - n // 2 is at least n - n / 2."""
    if isinstance(dim, int):
        return dim
    lowest = _interval(dim)[0]
    for monomial, coefficient in dim.terms if depth and len(dim.terms) > 1 else ():
        call = monomial[0]
        if len(monomial) > 1 or not isinstance(call, Call):
            continue
        rest = dim - _atom(call) * coefficient
        if set(symbols_of(rest)).isdisjoint(symbols_of(_atom(call))):
            continue
        if call.function == ("max" if coefficient > 0 else "min"):
            lowest = max(lowest, *(_relaxed(rest + argument * coefficient, depth - 1) for argument in call.args))
        dividend, divisor = call.args[0], call.args[-1]
        if call.function == "floordiv" and isinstance(divisor, int):
            least = dividend - (divisor - 1) if coefficient > 0 else dividend
            found = _relaxed(rest * divisor + least * coefficient, depth - 1)
            lowest = max(lowest, found if math.isinf(found) else -(-found // divisor))
        if call.function == "mod" and coefficient < 0 and bounds(dividend)[0] >= 0:
            lowest = max(lowest, _relaxed(rest + dividend * coefficient, depth - 1))
    return lowest


def _interval(dim: DimExpr) -> tuple[float, float]:
    """Bounds by those of each term alone."""
    lo: float = dim.constant
    hi: float = dim.constant
    for monomial, coefficient in dim.terms:
        term: tuple[float, float] = (1, 1)
        for atom in monomial:
            term = _interval_product(term, _atom_bounds(atom))
        term = _interval_product(term, (coefficient, coefficient))
        lo, hi = lo + term[0], hi + term[1]
    return lo, hi


def _atom_bounds(atom: Atom) -> tuple[float, float]:
    if isinstance(atom, Symbol):
        return atom.lo, math.inf if atom.hi is None else atom.hi
    args = [bounds(arg) for arg in atom.args]
    if atom.function == "min":
        return min(a[0] for a in args), min(a[1] for a in args)
    if atom.function == "max":
        return max(a[0] for a in args), max(a[1] for a in args)
    (lo, hi), (divisor_lo, divisor_hi) = args
    if atom.function == "mod":
        return 0, min(divisor_hi - 1, hi) if lo >= 0 else divisor_hi - 1
    divisor_lo = max(divisor_lo, 1)
    corners = [_floor_quotient(n, d) for n in (lo, hi) for d in (divisor_lo, divisor_hi)]
    return min(corners), max(corners)


def _floor_quotient(dividend: float, divisor: float) -> float:
    if math.isinf(divisor):
        return 0 if dividend >= 0 else -1
    if math.isinf(dividend):
        return dividend
    return dividend // divisor


def _interval_product(left: tuple[float, float], right: tuple[float, float]) -> tuple[float, float]:
    corners = [0 if 0 in (a, b) else a * b for a in left for b in right]
    return min(corners), max(corners)


def divisor_of(dim: Dim) -> int:
    """A known common divisor of every value the dimension can take (0 for the constant 0)."""
    dim_terms, constant = terms_of(dim)
    result = abs(constant)
    for monomial, coefficient in dim_terms:
        factor = abs(coefficient)
        for atom in monomial:
            factor *= atom.divisor if isinstance(atom, Symbol) else 1
        result = math.gcd(result, factor)
    return result


def exact_quotients(*dims: Dim) -> dict[Symbol, Symbol]:
    """The symbols of inputs that are divided by numbers in dimensions, as the multiples that leave no remainder."""
    found: dict[Symbol, Symbol] = {}
    for call in calls_of(*dims):
        symbol, divisor = plain_symbol(call.args[0]), call.args[1]
        if call.function == "floordiv" and symbol is not None and symbol.origin == "input" and isinstance(divisor, int):
            step = math.lcm(found.get(symbol, symbol).divisor, divisor)
            found[symbol] = replace(symbol, divisor=step, lo=-(-max(symbol.lo, 1) // step) * step)
    return {symbol: exact for symbol, exact in found.items() if exact.hi is None or exact.hi >= exact.lo}


def calls_of(*dims: Dim) -> Iterator[Call]:
    """The calls inside dimensions, outer ones first."""
    for dim in dims:
        for monomial, _ in terms_of(dim)[0]:
            for atom in monomial:
                if isinstance(atom, Call):
                    yield atom
                    yield from calls_of(*atom.args)


def linear_symbol(dim: Dim) -> tuple[Symbol, int, int] | None:
    """(s, a, b) of a dimension `a * s + b` with a > 0; None for other forms."""
    terms, constant = terms_of(dim)
    if len(terms) != 1 or len(terms[0][0]) != 1 or terms[0][1] < 1:
        return None
    atom = terms[0][0][0]
    return (atom, terms[0][1], constant) if isinstance(atom, Symbol) else None


def plain_symbol(dim: Dim) -> Symbol | None:
    """The symbol that a dimension is, where it is just that."""
    found = linear_symbol(dim)
    return found[0] if found is not None and found[1:] == (1, 0) else None


def symbols_of(dim: Dim) -> tuple[Symbol, ...]:
    """The symbols of an expression, in order of first appearance."""
    found: dict[Symbol, None] = {}

    def visit(part: Dim) -> None:
        for monomial, _ in terms_of(part)[0]:
            for atom in monomial:
                if isinstance(atom, Symbol):
                    found.setdefault(atom)
                else:
                    for arg in atom.args:
                        visit(arg)

    visit(dim)
    return tuple(found)


def substitute(dim: Dim, put: Callable[[Symbol], Dim]) -> Dim:
    """The dimension with every symbol replaced, normalized again."""
    if isinstance(dim, int):
        return dim
    result: Dim = dim.constant
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for atom in monomial:
            term = term * (put(atom) if isinstance(atom, Symbol) else _substitute_call(atom, put))
        result = result + term
    return result


_FUNCTIONS: dict[str, Callable[..., Dim]] = {"floordiv": floordiv, "mod": mod, "min": minimum, "max": maximum}


def _substitute_call(call: Call, replace: Callable[[Symbol], Dim]) -> Dim:
    return _FUNCTIONS[call.function](*(substitute(arg, replace) for arg in call.args))


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The dimension's value, given each symbol's by name. Raises KeyError for a missing one."""
    result = substitute(dim, lambda symbol: values[symbol.name])
    assert isinstance(result, int)
    return result


TYPICAL_EXTENT = 128
"""What an open symbol is taken to be where a number is needed to compare costs or choose an order."""


def typical_extent(symbol: Symbol) -> int:
    """A plausible value of a symbol: TYPICAL_EXTENT, or the nearest that its bounds and divisor allow."""
    value = max(symbol.lo, TYPICAL_EXTENT)
    if symbol.hi is not None:
        value = min(value, symbol.hi)
    multiple = value - value % symbol.divisor
    return multiple if multiple >= symbol.lo else multiple + symbol.divisor


@lru_cache(maxsize=1 << 16)
def typical(dim: Dim) -> int:
    """The dimension at typical extents, for cost models and tie-breaks only."""
    result = substitute(dim, typical_extent)
    assert isinstance(result, int)
    return result


# Text. `parse_dim` reads what `str` prints.


def _factor_text(dim: Dim) -> str:
    terms, constant = terms_of(dim)
    plain = not terms or (not constant and len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1)
    simple = plain and not (
        terms and isinstance(terms[0][0][0], Call) and terms[0][0][0].function in ("floordiv", "mod")
    )
    return str(dim) if simple and not (isinstance(dim, int) and dim < 0) else f"({dim})"


def _atom_text(atom: Atom) -> str:
    text = str(atom)
    return f"({text})" if isinstance(atom, Call) and atom.function in ("floordiv", "mod") else text


def _polynomial_text(expr: DimExpr) -> str:
    parts: list[str] = []
    for monomial, coefficient in expr.terms:
        body = "*".join(map(_atom_text, monomial))
        size = abs(coefficient)
        text = body if size == 1 else f"{size}*{body}"
        sign = "-" if coefficient < 0 else "+"
        parts.append(f"{sign} {text}" if parts else (f"-{text}" if coefficient < 0 else text))
    if expr.constant:
        parts.append(f"{'-' if expr.constant < 0 else '+'} {abs(expr.constant)}")
    return " ".join(parts)


def parse_dim(text: str, symbols: Mapping[str, Symbol]) -> Dim:
    """Reads a printed dimension. Raises ValueError, naming the place, for anything else."""
    tokens = _tokenize(text)
    position = 0

    def peek() -> str:
        return tokens[position] if position < len(tokens) else ""

    def take() -> str:
        nonlocal position
        token = peek()
        position += 1
        return token

    def expect(token: str) -> None:
        if take() != token:
            raise ValueError(f"expected {token!r} in dimension {text!r}")

    def primary() -> Dim:
        token = take()
        if token == "-":
            return -primary()
        if token == "(":
            inner = additive()
            expect(")")
            return inner
        if token.isdigit():
            return int(token)
        if token in ("min", "max") and peek() == "(":
            take()
            args = [additive()]
            while peek() == ",":
                take()
                args.append(additive())
            expect(")")
            return _extreme(token, tuple(args))
        if token in symbols:
            return symbols[token].dim
        raise ValueError(f"unknown symbol {token!r} in dimension {text!r}")

    def multiplicative() -> Dim:
        value = primary()
        while peek() in ("*", "//", "%"):
            sign = take()
            right = primary()
            value = value * right if sign == "*" else floordiv(value, right) if sign == "//" else mod(value, right)
        return value

    def additive() -> Dim:
        value = multiplicative()
        while peek() in ("+", "-"):
            value = value + multiplicative() if take() == "+" else value - multiplicative()
        return value

    result = additive()
    if peek():
        raise ValueError(f"unexpected {peek()!r} in dimension {text!r}")
    return result


def _tokenize(text: str) -> list[str]:
    import re

    tokens = re.findall(r"\d+|[A-Za-z_][\w.]*|//|[-+*%(),]", text)
    if "".join(tokens) != re.sub(r"\s+", "", text):
        raise ValueError(f"cannot read dimension {text!r}")
    return tokens
