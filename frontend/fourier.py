"""Discrete Fourier transforms as products with tables, for both frontends: one product, or stages where it is long.

A tensor of complex numbers is a pair of real tensors; an imaginary part of None is zero. Transforms run along the
last axis. A length n = a * b is taken as b columns of transforms of a, a turn of each element, and a rows of
transforms of b (J. Cooley, J. Tukey, "An algorithm for the machine calculation of complex Fourier series", 1965):
n * (a + b) products in place of n * n. A length with a large prime factor becomes a convolution, of which the
transforms have a power of two as their length (L. Bluestein, 1970). Tables are computed in f64 and rounded once.
"""

from __future__ import annotations

import functools

import numpy as np

from aot import dtypes
from aot.dims import Dim
from aot.frontend.known import KnownBuilder
from aot.frontend.shaping import padded, sliced
from aot.ir import Array, Value
from aot.ops.helpers import wide_dtype

Parts = tuple[Value, Value | None]

LARGEST_DIRECT = 128
"""Samples of a transform that is one product."""
LARGEST_PRIME = 509
"""A larger prime factor makes the transform a convolution."""
_STAGE = 96  # products of an element that take as long as its turn and the transposition of a stage


def table(length: int, bins: int, inverse: bool, scale: float = 1.0) -> tuple[Array, Array]:
    """scale * cos and sin, f64 [length, bins], of the angles -2 pi k n / length; of their negatives for an inverse."""
    turns = np.outer(np.arange(length), np.arange(bins)) % length
    return _turned(turns, length, inverse, scale)


def _turned(turns: Array, length: int, inverse: bool, scale: float = 1.0) -> tuple[Array, Array]:
    """cos and sin of whole numbers of turns / length; exact at multiples of an eighth."""
    angles = turns * ((2.0 if inverse else -2.0) * np.pi / length)
    cos, sin = np.cos(angles), np.sin(angles)
    quarters, rest = np.divmod(turns * 4, length)
    whole = rest == 0
    sign = 1.0 if inverse else -1.0
    cos[whole] = np.array([1.0, 0.0, -1.0, 0.0])[quarters[whole] % 4]
    sin[whole] = np.array([0.0, sign, 0.0, -sign])[quarters[whole] % 4]
    return cos * scale, sin * scale


def transform(
    builder: KnownBuilder, x: Parts, length: int, *, inverse: bool, scale: float = 1.0, bins: int | None = None
) -> tuple[Value, Value]:
    """The transform along the last axis, which has `length` elements; the first `bins` results, or all.

    `scale` multiplies the results. f16 and bf16 are computed in f32.
    """
    dtype = x[0].type.dtype
    made = _Transform(builder, inverse).run(_cast(builder, x, wide_dtype(dtype)), length, scale, bins or length)
    real, imaginary = (_cast_one(builder, part, dtype) for part in made)
    return real, imaginary


def real_inverse(builder: KnownBuilder, x: Parts, length: int, scale: float = 1.0) -> Value:
    """The inverse transform of `length` real samples, from the first length // 2 + 1 bins along the last axis.

    The imaginary parts of bin 0 and of bin length / 2 do not count.
    """
    dtype = x[0].type.dtype
    real, imaginary = _cast(builder, x, wide_dtype(dtype))
    bins = length // 2 + 1
    if length <= LARGEST_DIRECT or imaginary is None:
        cos, sin = (part.T for part in table(length, bins, True, scale))
        twice = np.full((bins, 1), 2.0)
        twice[0] = 1.0
        if length % 2 == 0:
            twice[-1] = 1.0
        made = _times(builder, real, cos * twice)
        if imaginary is not None:
            made = _op(builder, "sub", made, _times(builder, imaginary, sin * twice))
        return _cast_one(builder, made, dtype)
    # The other bins are the conjugates of these.
    rank, count = real.type.rank, length - bins
    whole: list[Value] = []
    for part in (real, imaginary):
        starts = [0] * (rank - 1) + [count]
        sizes = (*part.type.shape[:-1], count)
        steps = (*(1,) * (rank - 1), -1)
        mirrored = _op(builder, "slice", part, starts=tuple(starts), sizes=sizes, steps=steps)
        if part is imaginary:
            mirrored = _op(builder, "neg", mirrored)
        whole.append(_op(builder, "concat", part, mirrored, axis=rank - 1))
    made = _Transform(builder, True, real_only=True).run((whole[0], whole[1]), length, scale, length)[0]
    return _cast_one(builder, made, dtype)


def _op(builder: KnownBuilder, name: str, *inputs: Value, **attrs: object) -> Value:
    return builder.op(name, *inputs, **attrs)[0]  # type: ignore[arg-type]


def _cast_one(builder: KnownBuilder, value: Value, dtype: dtypes.DType) -> Value:
    return value if value.type.dtype is dtype else _op(builder, "cast", value, to=dtype)


def _cast(builder: KnownBuilder, x: Parts, dtype: dtypes.DType) -> Parts:
    real, imaginary = x
    return _cast_one(builder, real, dtype), None if imaginary is None else _cast_one(builder, imaginary, dtype)


def _times(builder: KnownBuilder, x: Value, matrix: Array) -> Value:
    """x times a [samples, results] matrix, along the last axis."""
    weights = builder.const(np.ascontiguousarray(matrix).astype(x.type.dtype.numpy))
    if x.type.rank > 1:
        return _op(builder, "matmul", x, weights)
    row = _op(builder, "matmul", _op(builder, "reshape", x, shape=(1, *x.type.shape)), weights)
    return _op(builder, "reshape", row, shape=row.type.shape[1:])


def multiplied(builder: KnownBuilder, x: Parts, cos: Value, sin: Value) -> tuple[Value, Value]:
    """The elements of x times cos + i sin."""
    real, imaginary = x
    if imaginary is None:
        return _op(builder, "mul", real, cos), _op(builder, "mul", real, sin)
    return (
        _op(builder, "sub", _op(builder, "mul", real, cos), _op(builder, "mul", imaginary, sin)),
        _op(builder, "add", _op(builder, "mul", real, sin), _op(builder, "mul", imaginary, cos)),
    )


def _largest_prime(number: int) -> int:
    """The largest prime factor."""
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0 and number > divisor:
            number //= divisor
        divisor += 1
    return number


@functools.cache
def _plan(length: int) -> tuple[int, int]:
    """The first factor of a transform's stages (all of it: no stages), and about how many products an element takes."""
    best = length, length
    for first in range(2, LARGEST_PRIME + 1):
        if length > LARGEST_DIRECT and length % first == 0 and first < length:
            cost = first + _STAGE + _plan(length // first)[1]
            best = min(best, (first, cost), key=lambda plan: plan[1])
    return best


class _Transform:
    """Transforms of one direction. `real_only`: imaginary parts of results are not needed, and not right."""

    def __init__(self, builder: KnownBuilder, inverse: bool, real_only: bool = False) -> None:
        self.builder = builder
        self.inverse = inverse
        self.real_only = real_only

    def run(self, x: Parts, length: int, scale: float, bins: int) -> tuple[Value, Value]:
        """Results 0 … bins - 1 along the last axis."""
        if length > LARGEST_DIRECT and _largest_prime(length) > LARGEST_PRIME:
            return self._as_convolution(x, length, scale, bins)
        first, _ = _plan(length)
        return (self._direct if first == length else self._in_stages)(x, length, scale, bins)

    def _direct(self, x: Parts, length: int, scale: float, bins: int) -> tuple[Value, Value]:
        """One product of each part with cosines and sines, side by side."""
        cos, sin = table(length, bins, self.inverse, scale)
        real, imaginary = x
        if self.real_only:
            made = _times(self.builder, real, cos)
            if imaginary is not None:
                made = _op(self.builder, "sub", made, _times(self.builder, imaginary, sin))
            return made, made
        both = _times(self.builder, real, np.concatenate([cos, sin], axis=1))
        if imaginary is not None:
            turned = _times(self.builder, imaginary, np.concatenate([-sin, cos], axis=1))
            both = _op(self.builder, "add", both, turned)
        axis = both.type.rank - 1
        return sliced(self.builder, both, axis, 0, bins), sliced(self.builder, both, axis, bins, bins)

    def _in_stages(self, x: Parts, length: int, scale: float, bins: int) -> tuple[Value, Value]:
        """Element a_ * b + b_ of the samples, element a_ + a * b_ of the results."""
        first, _ = _plan(length)
        rest = length // first
        lead = x[0].type.shape[:-1]
        real, imaginary = x
        grid = self._shaped(real, (*lead, first, rest)), self._optional(imaginary, (*lead, first, rest))
        columns = self._columns(grid, first)
        cos, sin = _turned(np.outer(np.arange(first), np.arange(rest)), length, self.inverse)
        kind = real.type.dtype.numpy
        turned = multiplied(
            self.builder, columns, self.builder.const(cos.astype(kind)), self.builder.const(sin.astype(kind))
        )
        needed = min((bins + first - 1) // first, rest)
        rows = self.run(turned, rest, scale, needed)
        rank = len(lead)
        perm = (*range(rank), rank + 1, rank)
        made = []
        for part in rows[:1] if self.real_only else rows:
            flat = self._shaped(_op(self.builder, "transpose", part, perm=perm), (*lead, first * needed))
            made.append(sliced(self.builder, flat, rank, 0, bins))
        return made[0], made[-1]

    def _shaped(self, value: Value, shape: tuple[Dim, ...]) -> Value:
        return _op(self.builder, "reshape", value, shape=shape)

    def _optional(self, value: Value | None, shape: tuple[Dim, ...]) -> Value | None:
        return None if value is None else self._shaped(value, shape)

    def _columns(self, x: Parts, length: int) -> tuple[Value, Value]:
        """Transforms along the last axis but one, of up to LARGEST_PRIME elements."""
        cos, sin = table(length, length, self.inverse)
        real, imaginary = x
        kind = real.type.dtype.numpy
        both = _op(self.builder, "matmul", self.builder.const(np.concatenate([cos, sin]).astype(kind)), real)
        if imaginary is not None:
            weights = self.builder.const(np.concatenate([-sin, cos]).astype(kind))
            both = _op(self.builder, "add", both, _op(self.builder, "matmul", weights, imaginary))
        axis = both.type.rank - 2
        return sliced(self.builder, both, axis, 0, length), sliced(self.builder, both, axis, length, length)

    def _as_convolution(self, x: Parts, length: int, scale: float, bins: int) -> tuple[Value, Value]:
        """k n = (k^2 + n^2 - (k - n)^2) / 2: turns, a convolution with turns, and turns."""
        size = 1 << (2 * length - 2).bit_length()
        kind = x[0].type.dtype.numpy
        halves = np.arange(length, dtype=np.int64) ** 2 % (2 * length)  # in half steps of 2 pi / length
        cos, sin = _turned(halves, 2 * length, self.inverse)

        def const(array: Array) -> Value:
            return self.builder.const(array.astype(kind))

        chirped = multiplied(self.builder, x, const(cos), const(sin))
        rank = x[0].type.rank
        before, after = [0] * rank, [0] * (rank - 1) + [size - length]
        wide = [padded(self.builder, part, before, after, "constant", None) for part in chirped]
        ring = np.zeros(size, np.complex128)
        ring[:length] = cos - 1j * sin
        ring[size - length + 1 :] = ring[1:length][::-1]
        spectrum = np.fft.fft(ring)
        inner, back = _Transform(self.builder, False), _Transform(self.builder, True)
        found = inner.run((wide[0], wide[1]), size, 1.0, size)
        found = multiplied(self.builder, found, const(spectrum.real), const(spectrum.imag))
        found = back.run(found, size, scale / size, bins)
        return multiplied(self.builder, found, const(cos[:bins]), const(sin[:bins]))
