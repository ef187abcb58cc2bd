"""MAP ops: special functions, each one body computed in f64 and rounded once.

None is on the way of a usual model, so they favour one formula with few branches over speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from aot.dtypes import F64
from aot.expr import Expr, call, cast, select
from aot.ops.elementwise import binary, unary
from aot.ops.helpers import FLOAT
from aot.ops.opdef import BodyFn


def _wide(body: Callable[[Expr], Expr]) -> BodyFn:
    """The body computed in f64 and rounded once."""
    return lambda attrs, x: cast(body(cast(x, F64)), x.dtype)


def _wide_pair(body: Callable[[Expr, Expr], Expr]) -> BodyFn:
    return lambda attrs, x, y: cast(body(cast(x, F64), cast(y, F64)), x.dtype)


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule; the highest power's coefficient first."""
    result = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        result = result * x + coefficient
    return result


def _is_negative(x: Expr) -> Expr:
    """Whether the sign bit is set; false for NaN."""
    return select(call("eq", x, 0.0), 1.0 / x < 0.0, x < 0.0)


# Gamma functions.

# C. Lanczos, "A precision approximation of the gamma function", 1964; g = 7, nine terms.
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip


def _log_gamma_right(x: Expr) -> Expr:
    """log gamma(x) for x >= 1/2."""
    shifted = x - 1.0
    total = sum((coefficient / (shifted + float(k)) for k, coefficient in enumerate(_LANCZOS) if k), 0.0 * shifted)
    base = shifted + 7.5
    return (shifted + 0.5) * call("log", base) - base + call("log", total + _LANCZOS[0]) + 0.5 * math.log(2 * math.pi)


def _sine_of_turns(x: Expr) -> Expr:
    """sin(pi * x), exactly 0 for integers."""
    whole = call("floor", x)
    sine = call("sin", (x - whole) * math.pi)
    odd = call("ne", call("floor", whole * 0.5) * 2.0, whole)
    return select(call("eq", x, whole), 0.0 * x, select(odd, -sine, sine))


def _lgamma(x: Expr) -> Expr:
    left = math.log(math.pi) - call("log", call("abs", _sine_of_turns(x))) - _log_gamma_right(1.0 - x)
    result = select(x < 0.5, left, _log_gamma_right(x))
    return select(call("isinf", x), call("abs", x), result)


_ASYMPTOTIC_STEPS = 10


def _digamma(x: Expr) -> Expr:
    """Reflection below 0, recurrence up to 10, then the asymptotic series."""
    reflected = x < 0.0
    start = select(reflected, 1.0 - x, x)
    below = sum((1.0 / (start + float(k)) for k in range(1, _ASYMPTOTIC_STEPS)), 1.0 / start)
    top = start + float(_ASYMPTOTIC_STEPS)
    inverse = 1.0 / (top * top)
    series = _polynomial(inverse, (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)) * inverse
    right = call("log", top) - 0.5 / top - series - below
    turns = x - call("round", x)
    cotangent = call("cos", turns * math.pi) / call("sin", turns * math.pi)
    left = right - math.pi * cotangent
    pole = call("eq", turns, 0.0)
    left = select(pole, float("nan"), left)
    result = select(reflected, left, right)
    result = select(call("isinf", x), select(reflected, float("nan"), x), result)
    return select(call("eq", x, 0.0), -1.0 / x, result)


def _zeta(s: Expr, start: Expr) -> Expr:
    """The Hurwitz zeta function: twelve terms, and Euler and Maclaurin's formula for the rest."""
    total = call("pow", start, -s)
    for k in range(1, 12):
        total = total + call("pow", start + float(k), -s)
    top = start + 12.0
    power = call("pow", top, -s)
    total = total + power * top / (s - 1.0) + power * 0.5
    factor = s
    term = power / top
    for k, number in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6), start=1):
        total = total + factor * term * (number / math.factorial(2 * k))
        factor = factor * (s + float(2 * k - 1)) * (s + float(2 * k))
        term = term / (top * top)
    whole = call("eq", start, call("floor", start))
    total = select(start <= 0.0, select(whole, float("inf"), total), total)
    total = select(call("eq", start, float("inf")), 0.0, total)
    total = select(call("eq", s, 1.0), float("inf"), total)
    return select(s < 1.0, float("nan"), total)


# Error functions.


def _continued(x: Expr) -> Expr:
    """sqrt(pi) * exp(x^2) * erfc(x) for x >= 2, by Laplace's continued fraction."""
    fraction = x
    for k in range(40, 0, -1):
        fraction = x + (0.5 * k) / fraction
    return 1.0 / fraction


def _erfc(x: Expr) -> Expr:
    far = call("exp", -(x * x)) * _continued(call("max", x, 2.0)) * (1.0 / math.sqrt(math.pi))
    return select(x > 2.0, far, 1.0 - call("erf", x))


def _erfcx(x: Expr) -> Expr:
    far = _continued(call("max", x, 2.0)) * (1.0 / math.sqrt(math.pi))
    return select(x > 2.0, far, call("exp", x * x) * (1.0 - call("erf", x)))


# M. Giles, "Approximating the erfinv function", 2010: the single precision polynomials, here a first guess.
_GILES_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_GILES_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def _erfinv(x: Expr) -> Expr:
    width = -call("log", (1.0 - x) * (1.0 + x))
    centre = _polynomial(width - 2.5, _GILES_CENTRE)
    tail = _polynomial(call("sqrt", width) - 3.0, _GILES_TAIL)
    guess = select(width < 5.0, centre, tail) * x
    for _ in range(2):  # Newton
        guess = guess - (call("erf", guess) - x) * call("exp", guess * guess) * (math.sqrt(math.pi) / 2.0)
    return select(call("eq", call("abs", x), 1.0), x * float("inf"), guess)


# Modified Bessel functions of the first kind.

_BESSEL_NEAR = 18.0


def _bessel_near(x: Expr, order: int) -> Expr:
    """The power series: all terms have one sign."""
    quarter = x * x * 0.25
    terms = [1.0 / (math.factorial(k) * math.factorial(k + order)) for k in range(52)]
    series = _polynomial(quarter, terms[::-1])
    return series * x * 0.5 if order else series


def _bessel_far(x: Expr, order: int) -> Expr:
    """exp(-x) * I(x) for large x, by the asymptotic series."""
    inverse = 1.0 / (8.0 * x)
    terms = [1.0]
    for k in range(1, 22):
        terms.append(-terms[-1] * (4 * order * order - (2 * k - 1) ** 2) / k)
    return _polynomial(inverse, terms[::-1]) * call("sqrt", inverse * (4.0 / math.pi))


def _bessel(order: int, scaled: bool) -> Callable[[Expr], Expr]:
    def body(x: Expr) -> Expr:
        size = call("abs", x)
        near = _bessel_near(call("min", size, _BESSEL_NEAR), order)
        far = _bessel_far(call("max", size, _BESSEL_NEAR), order)
        if scaled:
            near = near * call("exp", -size)
        else:
            far = far * call("exp", size)
        result = select(size < _BESSEL_NEAR, near, far)
        if not scaled:
            result = select(call("isinf", size), size, result)
        return select(x < 0.0, -result, result) if order else result

    return body


# Two operands.


def _atan2(y: Expr, x: Expr) -> Expr:
    across, along = call("abs", y), call("abs", x)
    small, large = call("min", across, along), call("max", across, along)
    ratio = small / large
    ratio = select(call("isinf", small), 1.0, select(call("eq", large, 0.0), 0.0, ratio))
    angle = call("atan", ratio)
    angle = select(across > along, math.pi / 2 - angle, angle)
    angle = select(_is_negative(x), math.pi - angle, angle)
    angle = select(_is_negative(y), -angle, angle)
    return select(call("isnan", small), small, angle)


def _hypot(x: Expr, y: Expr) -> Expr:
    across, along = call("abs", x), call("abs", y)
    small, large = call("min", across, along), call("max", across, along)
    ratio = small / large
    length = large * call("sqrt", ratio * ratio + 1.0)
    length = select(call("eq", large, 0.0), large, length)
    return select(call("isinf", x), across, select(call("isinf", y), along, length))


def _copysign(x: Expr, y: Expr) -> Expr:
    size = call("abs", x)
    return select(_is_negative(y), -size, size)


for _name, _doc, _body in (
    ("lgamma", "The logarithm of the absolute value of the gamma function.", _lgamma),
    ("digamma", "The derivative of the logarithm of the gamma function.", _digamma),
    ("erfc", "1 - erf(x), exact far out.", _erfc),
    ("erfcx", "exp(x^2) * erfc(x).", _erfcx),
    ("erfinv", "The inverse of erf.", _erfinv),
    ("bessel_i0", "The modified Bessel function of order 0.", _bessel(0, False)),
    ("bessel_i1", "The modified Bessel function of order 1.", _bessel(1, False)),
    ("bessel_i0e", "exp(-|x|) times the modified Bessel function of order 0.", _bessel(0, True)),
    ("bessel_i1e", "exp(-|x|) times the modified Bessel function of order 1.", _bessel(1, True)),
):
    unary(_name, _doc, _wide(_body), families=FLOAT, flops=120)

binary(
    "atan2", "The angle of the point (y, x), the first operand being y.", _wide_pair(_atan2), families=FLOAT, flops=40
)
binary("hypot", "sqrt(x^2 + y^2) without overflow between.", _wide_pair(_hypot), families=FLOAT, flops=12)
binary("copysign", "|x| with the sign of y; a NaN counts as positive.", lambda a, x, y: _copysign(x, y),
       families=FLOAT, flops=4)  # fmt: skip
binary("zeta", "The Hurwitz zeta function of s = x from y on.", _wide_pair(_zeta), families=FLOAT, flops=600)
