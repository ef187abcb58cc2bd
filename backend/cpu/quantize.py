"""Rounding to quantized numbers as few instructions: the form that the body of `quantize` has, and its C.

The op rounds x / scale, adds a zero point, bounds the sum, and makes NaN the zero point. Bounding first by the bounds
less the zero point gives the same numbers, since rounding keeps order and leaves whole numbers alone; then the
conversion to integers, which rounds to even, needs no rounding before it, and NaN is a mask on its result.
"""

from __future__ import annotations

from dataclasses import dataclass

from aot import expr
from aot.dtypes import F32, I32
from aot.expr import Expr


@dataclass(frozen=True, slots=True)
class Quantized:
    """A value that is rounded: `scaled` in f32; `zero` in i32, None for none; bounds of `scaled` in f32."""

    scaled: Expr
    zero: Expr | None
    low: Expr
    high: Expr


def match(value: Expr) -> Quantized | None:
    """The parts of a conversion to integers of at most 16 bits that is `quantize`; None for another expression."""
    if value.op != "cast" or not value.dtype.is_integer or value.dtype.bits not in (8, 16):
        return None
    (chosen,) = value.args
    if chosen.op != "select" or chosen.dtype != F32:
        return None
    test, nothing, bounded = chosen.args
    if test.op != "isnan" or test.args[0] != bounded or bounded.op != "max" or bounded.args[0].op != "min":
        return None
    (whole, high), low = bounded.args[0].args, bounded.args[1]
    zero = None
    if whole.op == "add":
        whole, zero = whole.args
    if whole.op != "round" or low.op != "const" or high.op != "const":
        return None
    if zero is None:
        return Quantized(whole.args[0], None, low, high) if nothing == expr.const(0.0, F32) else None
    number = zero if zero.op == "const" else zero.args[0] if zero.op == "cast" else None
    if number is None or nothing != zero or (number.dtype != F32 and not number.dtype.is_integer):
        return None
    if number.dtype.is_integer and number.dtype.bits > 16:
        return None
    shifted = zero.payload if zero.op == "const" else 0
    if shifted != round(shifted) or abs(shifted) > 1 << 16:
        return None
    if zero.op == "const":
        bounds = (expr.const(float(bound.payload) - shifted, F32) for bound in (low, high))
        return Quantized(whole.args[0], expr.const(int(shifted), I32), *bounds)
    return Quantized(whole.args[0], expr.cast(number, I32), low - zero, high - zero)
