"""The scalar ops over elements that may depend on the sizes of inputs.

An element is a Python int, bool or float, a `Dim`, or a `Ratio` of dims (a float that was divided). A
float element that depends on a symbol stands for the exact number. Where a result cannot be told for
every size, UnknownContents is raised: nothing is guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from aot import dims as dimension
from aot.dims import Dim, DimExpr
from aot.dtypes import DType


class UnknownContents(Exception):
    """The contents of a result cannot be told before running."""


class MayBeNegative(UnknownContents):
    """They could be told if a dimension were known not to be negative."""

    def __init__(self, dim: Dim) -> None:
        super().__init__(str(dim))
        self.dim = dim


@dataclass(frozen=True, slots=True)
class Ratio:
    """numerator / denominator, not a whole number for every size; the denominator is positive."""

    numerator: Dim
    denominator: Dim


Element = int | float | bool | DimExpr | Ratio


def is_symbolic(element: Element) -> bool:
    """Whether an element depends on a symbol."""
    return isinstance(element, DimExpr | Ratio)


# The meaning of scalar operations: (operand dtype, result dtype, *elements) -> element.


def _ratio(element: Element) -> tuple[Dim, Dim]:
    """An element as numerator and denominator, exactly."""
    if isinstance(element, Ratio):
        return element.numerator, element.denominator
    if isinstance(element, float):
        if not math.isfinite(element):
            raise UnknownContents
        fraction = Fraction(element)
        if fraction.denominator > 1 << 30:
            raise UnknownContents
        return fraction.numerator, fraction.denominator
    return element, 1


def as_fraction(element: Element) -> tuple[Dim, Dim] | None:
    """An element as numerator and positive denominator; None for what is no simple ratio."""
    try:
        return _ratio(element)
    except UnknownContents:
        return None


def _number(element: Element) -> float:
    """An element that does not depend on a symbol, as a float."""
    if isinstance(element, DimExpr | Ratio):
        raise UnknownContents
    return float(element)


def _quotient(numerator: Dim, denominator: Dim) -> Element:
    exact = dimension.exact_div(numerator, denominator)
    if exact is not None:
        return exact
    lo, hi = dimension.bounds(denominator)
    if hi < 0:
        numerator, denominator = -numerator, -denominator
    elif lo <= 0:
        raise UnknownContents
    if isinstance(denominator, int):
        common = math.gcd(
            denominator, *(c for _, c in dimension.terms_of(numerator)[0]), dimension.terms_of(numerator)[1]
        )
        reduced = dimension.exact_div(numerator, common)
        if reduced is not None:
            return Ratio(reduced, denominator // common)
    return Ratio(numerator, denominator)


def _rounded(dtype: DType, number: float) -> float:
    """A float as the dtype holds it."""
    with np.errstate(over="ignore"):
        return float(np.asarray(number, dtype=np.float64).astype(dtype.numpy))


def _whole(dtype: DType, number: Dim) -> Dim:
    """An integer that the dtype can hold; arithmetic that would wrap is not followed."""
    if isinstance(number, int):
        lo = -(1 << (dtype.bits - 1)) if dtype.family == "int" else 0
        if not lo <= number < 1 << (dtype.bits - (dtype.family == "int")):
            raise UnknownContents
    elif dtype.bits < 32:
        raise UnknownContents
    return number


def _arithmetic(
    on_dims: Callable[[Dim, Dim], Dim],
    on_floats: Callable[[Any, Any], Any],
    on_ratios: Callable[[tuple[Dim, Dim], tuple[Dim, Dim]], tuple[Dim, Dim]] | None,
) -> Callable[..., Element]:
    def apply(_: DType, dtype: DType, left: Element, right: Element) -> Element:
        if not dtype.is_float:
            if isinstance(left, float | Ratio) or isinstance(right, float | Ratio):
                raise UnknownContents
            return _whole(dtype, on_dims(left, right))
        if not is_symbolic(left) and not is_symbolic(right):
            with np.errstate(all="ignore"):
                return float(on_floats(dtype.numpy.type(left), dtype.numpy.type(right)))
        if on_ratios is None:
            raise UnknownContents
        return _quotient(*on_ratios(_ratio(left), _ratio(right)))

    return apply


def _truncated_div(left: Dim, right: Dim) -> Dim:
    if isinstance(left, int) and isinstance(right, int):
        if right == 0:
            raise UnknownContents
        size = abs(left) // abs(right)
        return size if (left < 0) == (right < 0) else -size
    exact = dimension.exact_div(left, right)
    if exact is not None:
        return exact
    if dimension.bounds(right)[0] <= 0:
        raise UnknownContents
    if dimension.bounds(left)[0] < 0:
        raise MayBeNegative(left)
    return dimension.floordiv(left, right)


def _floor_mod(left: Dim, right: Dim) -> Dim:
    if (isinstance(right, int) and right != 0 and isinstance(left, int)) or dimension.bounds(right)[0] > 0:
        return dimension.mod(left, right)
    raise UnknownContents


def _truncated_mod(left: Dim, right: Dim) -> Dim:
    return left - _truncated_div(left, right) * right


def _power(left: Dim, right: Dim) -> Dim:
    if not isinstance(right, int) or not 0 <= right <= 64:
        raise UnknownContents
    if isinstance(left, int):
        return int(left**right)
    return dimension.product([left] * right)


def _extreme(name: str) -> Callable[..., Element]:
    def apply(_: DType, dtype: DType, left: Element, right: Element) -> Element:
        if isinstance(left, bool) or isinstance(right, bool):
            raise UnknownContents
        if isinstance(left, float) or isinstance(right, float):
            pair = _number(left), _number(right)
            return float(np.minimum(*pair) if name == "min" else np.maximum(*pair))
        if isinstance(left, Ratio) or isinstance(right, Ratio):
            raise UnknownContents
        return dimension.minimum(left, right) if name == "min" else dimension.maximum(left, right)

    return apply


def _compare(holds: Callable[[float, float], bool | None]) -> Callable[..., Element]:
    """`holds` judges the interval of left - right."""

    def apply(_: DType, __: DType, left: Element, right: Element) -> Element:
        if isinstance(left, float) or isinstance(right, float):
            if not is_symbolic(left) and not is_symbolic(right):
                difference = _number(left) - _number(right)
                verdict = holds(difference, difference) if math.isfinite(difference) else None
                if verdict is None:
                    raise UnknownContents
                return verdict
        (a, b), (c, d) = _ratio(left), _ratio(right)
        verdict = holds(*dimension.bounds(a * d - c * b))
        if verdict is None:
            raise UnknownContents
        return verdict

    return apply


def _decide(when_true: bool, when_false: bool) -> bool | None:
    return True if when_true else False if when_false else None


def _logic(function: Callable[[Any, Any], Any]) -> Callable[..., Element]:
    def apply(_: DType, dtype: DType, left: Element, right: Element) -> Element:
        if not isinstance(left, int) or not isinstance(right, int):
            raise UnknownContents
        made = function(left, right)
        return bool(made) if dtype.is_bool else int(made)

    return apply


def _not(_: DType, dtype: DType, element: Element) -> Element:
    if not dtype.is_bool:
        raise UnknownContents
    return not element


def _negative(_: DType, dtype: DType, element: Element) -> Element:
    if isinstance(element, Ratio):
        return Ratio(-element.numerator, element.denominator)
    return -element


def _absolute(_: DType, dtype: DType, element: Element) -> Element:
    if isinstance(element, Ratio):
        raise UnknownContents
    if isinstance(element, DimExpr):
        if dimension.bounds(element)[0] < 0:
            raise UnknownContents
        return element
    return abs(element)


def _to_whole(on_ratio: Callable[[Dim, Dim], Dim], on_float: Callable[[float], float]) -> Callable[..., Element]:
    def apply(_: DType, dtype: DType, element: Element) -> Element:
        if isinstance(element, Ratio):
            return on_ratio(element.numerator, element.denominator)
        return float(on_float(element)) if isinstance(element, float) else element

    return apply


def _truncated_ratio(numerator: Dim, denominator: Dim) -> Dim:
    if dimension.bounds(numerator)[0] < 0:
        raise UnknownContents
    return dimension.floordiv(numerator, denominator)


def _undecided(numerator: Dim, denominator: Dim) -> Dim:
    raise UnknownContents


def _root(_: DType, dtype: DType, element: Element) -> Element:
    if is_symbolic(element):
        raise UnknownContents
    with np.errstate(all="ignore"):
        return float(np.sqrt(dtype.numpy.type(element)))


def _cast(source: DType, dtype: DType, element: Element) -> Element:
    if dtype.is_bool:
        if is_symbolic(element):
            if isinstance(element, DimExpr) and dimension.bounds(element)[0] > 0:
                return True
            raise UnknownContents
        return bool(element)
    if dtype.is_float:
        return element if isinstance(element, DimExpr | Ratio) else _rounded(dtype, float(element))
    if isinstance(element, Ratio):
        return _whole(dtype, _truncated_ratio(element.numerator, element.denominator))
    if isinstance(element, float):
        if not math.isfinite(element):
            raise UnknownContents
        return _whole(dtype, int(element))
    return _whole(dtype, int(element) if isinstance(element, bool) else element)


def _where(_: DType, __: DType, condition: Element, left: Element, right: Element) -> Element:
    return left if condition else right


def _clip(_: DType, dtype: DType, element: Element, lo: Element, hi: Element) -> Element:
    low = _extreme("max")(dtype, dtype, element, lo)
    return _extreme("min")(dtype, dtype, low, hi)


_add = _arithmetic(lambda a, b: a + b, lambda a, b: a + b, lambda a, b: (a[0] * b[1] + b[0] * a[1], a[1] * b[1]))
_mul = _arithmetic(lambda a, b: a * b, lambda a, b: a * b, lambda a, b: (a[0] * b[0], a[1] * b[1]))

ELEMENTWISE: dict[str, Callable[..., Element]] = {
    "add": _add,
    "sub": _arithmetic(lambda a, b: a - b, lambda a, b: a - b, lambda a, b: (a[0] * b[1] - b[0] * a[1], a[1] * b[1])),
    "mul": _mul,
    "div": _arithmetic(_truncated_div, lambda a, b: a / b, lambda a, b: (a[0] * b[1], a[1] * b[0])),
    "mod": _arithmetic(_floor_mod, np.mod, None),
    "fmod": _arithmetic(_truncated_mod, np.fmod, None),
    "pow": _arithmetic(_power, lambda a, b: a**b, None),
    "min": _extreme("min"),
    "max": _extreme("max"),
    "eq": _compare(lambda lo, hi: _decide(lo == hi == 0, lo > 0 or hi < 0)),
    "ne": _compare(lambda lo, hi: _decide(lo > 0 or hi < 0, lo == hi == 0)),
    "lt": _compare(lambda lo, hi: _decide(hi < 0, lo >= 0)),
    "le": _compare(lambda lo, hi: _decide(hi <= 0, lo > 0)),
    "gt": _compare(lambda lo, hi: _decide(lo > 0, hi <= 0)),
    "ge": _compare(lambda lo, hi: _decide(lo >= 0, hi < 0)),
    "and": _logic(lambda a, b: a & b),
    "or": _logic(lambda a, b: a | b),
    "xor": _logic(lambda a, b: a ^ b),
    "not": _not,
    "neg": _negative,
    "abs": _absolute,
    "floor": _to_whole(dimension.floordiv, math.floor),
    "ceil": _to_whole(dimension.ceildiv, math.ceil),
    "trunc": _to_whole(_truncated_ratio, math.trunc),
    "round": _to_whole(_undecided, lambda number: float(np.rint(number))),
    "sqrt": _root,
    "cast": _cast,
    "where": _where,
    "clip": _clip,
}
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
REDUCTIONS: dict[str, tuple[Callable[..., Element], int | None]] = {
    "reduce_sum": (_add, 0),
    "reduce_prod": (_mul, 1),
    "reduce_max": (_extreme("max"), None),
    "reduce_min": (_extreme("min"), None),
}
