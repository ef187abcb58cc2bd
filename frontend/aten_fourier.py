"""ATen converters of _fft_r2c, _fft_c2c and _fft_c2r, to which torch.fft and torch.stft come down."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from aot.frontend import fourier
from aot.frontend.torch_complex import Parts, both_parts, complex_op, made, parts_of
from aot.frontend.torch_registry import Context
from aot.ir import Value
from aot.ops.opdef import normalize_axis

_ROOT, _ALL = 1, 2  # torch's fft_norm_mode: 1 / sqrt(n), 1 / n


def _length(c: Context, x: Value, axis: int) -> int:
    extent = x.type.shape[axis]
    if not isinstance(extent, int):
        c.unsupported(
            "a Fourier transform whose length is only known when running",
            hint="Export with this size fixed, or give it a value with --dim.",
        )
    return extent


def _scale(c: Context, count: int) -> float:
    """The factor of the normalization, of a transform of so many elements in all."""
    mode = c.integer("normalization")
    return 1.0 if mode == 0 or count == 0 else 1.0 / math.sqrt(count) if mode == _ROOT else 1.0 / count


def _axes(c: Context, rank: int) -> list[int]:
    return [normalize_axis(axis, rank) for axis in c.ints("dim")]


def _along(c: Context, x: Parts, axis: int, run: Callable[[Parts], Sequence[Value]]) -> list[Value]:
    """What `run` makes of the last axis, made of another one."""
    rank = x[0].type.rank
    perm = (*(other for other in range(rank) if other != axis), axis)
    back = tuple(perm.index(other) for other in range(rank))
    real, imaginary = (None if part is None else c.transpose(part, perm) for part in x)
    assert real is not None
    return [c.transpose(part, back) for part in run((real, imaginary))]


def _complex(c: Context, x: Parts, axes: Sequence[int], inverse: bool, scale: float) -> Parts:
    """Transforms along axes in turn; the first is scaled."""
    for number, axis in enumerate(axes):
        length = _length(c, x[0], axis)
        factor = scale if number == 0 else 1.0

        def run(parts: Parts, length: int = length, factor: float = factor) -> Sequence[Value]:
            return fourier.transform(c.builder, parts, length, inverse=inverse, scale=factor)

        real, imaginary = _along(c, x, axis, run)
        x = real, imaginary
    return x


@complex_op("_fft_c2c")
def _fft_c2c(c: Context) -> Any:
    x = parts_of(c, c["self"], c.dtype)
    axes = _axes(c, x[0].type.rank)
    scale = _scale(c, math.prod(_length(c, x[0], axis) for axis in axes))
    return made(c, _complex(c, x, axes, not c.flag("forward"), scale))


@complex_op("_fft_r2c")
def _fft_r2c(c: Context) -> Any:
    """The last axis first, of which only the first half may be wanted."""
    x = parts_of(c, c.tensor("self"), c.dtype)
    *others, last = _axes(c, x[0].type.rank)
    length = _length(c, x[0], last)
    scale = _scale(c, math.prod(_length(c, x[0], axis) for axis in (*others, last)))
    bins = length // 2 + 1 if c.flag("onesided") else length
    real, imaginary = _along(
        c, x, last, lambda parts: fourier.transform(c.builder, parts, length, inverse=False, scale=scale, bins=bins)
    )
    return made(c, _complex(c, (real, imaginary), others, False, 1.0))


@complex_op("_fft_c2r")
def _fft_c2r(c: Context) -> Any:
    """The last axis at the end: its result is real."""
    x: Parts = both_parts(c, c["self"], c.dtype)
    *others, last = _axes(c, x[0].type.rank)
    length = c.integer("last_dim_size")
    scale = _scale(c, length * math.prod(_length(c, x[0], axis) for axis in others))
    if _length(c, x[0], last) != length // 2 + 1:
        c.fail(f"{length} real numbers have {length // 2 + 1} bins, not {x[0].type.shape[last]}")
    x = _complex(c, x, others, True, 1.0)
    return _along(c, x, last, lambda parts: [fourier.real_inverse(c.builder, parts, length, scale)])[0]
