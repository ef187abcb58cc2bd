"""Slices and pads over symbolic sizes, as numpy, ONNX and torch mean them: what the frontends share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aot import dims as dimension
from aot.dims import Dim, Symbol
from aot.dtypes import DType
from aot.errors import ModelError
from aot.frontend.known import KnownBuilder
from aot.ir import Array, Value
from aot.ops import same_extent

# Exporters write "to the end" as a large number; no axis is this long.
_FAR = 1_000_000_000


def slice_range(builder: KnownBuilder, start: Dim, end: Dim, step: int, extent: Dim) -> tuple[Dim, Dim]:
    """First position and length of numpy's x[start:end:step] over an extent; negative numbers count from the end."""
    lowest, highest = (0, extent) if step > 0 else (-1, extent - 1)

    def place(position: Dim) -> Dim:
        if isinstance(position, int):
            if position >= _FAR:
                return highest
            if position <= -_FAR:
                return lowest
        lo, hi = dimension.bounds(position)
        backwards = hi < 0 or (lo < 0 and dimension.typical(position) < 0 <= dimension.typical(position + extent))
        if lo < 0 <= hi and is_of_data(position):
            return dimension.minimum(dimension.maximum(from_start(position, extent), lowest), highest)
        if lo < 0 <= hi:  # it may count from either end: one is assumed, and becomes a condition on the sizes
            if not backwards:
                same_extent(dimension.maximum(position, 0), position, "a slice position that counts from the start")
            else:
                back = -position
                same_extent(dimension.maximum(back, 1), back, "a slice position that counts back from the end")
        if backwards:
            position = position + extent
        if not builder.is_never_negative(position - lowest):
            position = dimension.maximum(position, lowest)
        return position if builder.is_never_negative(highest - position) else dimension.minimum(position, highest)

    first, last = place(start), place(end)
    room = last - first if step > 0 else first - last
    size = dimension.ceildiv(room, abs(step))
    if not builder.is_never_negative(room):
        size = dimension.maximum(size, 0)
    if size == 0:
        first = 0
    return first, size


def is_of_data(size: Dim) -> bool:
    """Whether a size is known only when the model runs: no condition on the inputs' sizes can be made of it."""
    return any(symbol.origin != "input" for symbol in dimension.symbols_of(size))


def from_start(position: Dim, extent: Dim) -> Dim:
    """A position counted from the start, where a negative one counts from the end, whatever its sign will be."""
    is_negative = dimension.minimum(dimension.maximum(-1 * position, 0), 1)
    return position + extent * is_negative


def sliced(builder: KnownBuilder, value: Value, axis: int, start: Dim, size: Dim, step: int = 1) -> Value:
    """x[start : …] of `size` elements along one axis."""
    if start == 0 and size == value.type.shape[axis] and step == 1:
        return value
    starts: list[Dim] = [0] * value.type.rank
    sizes = list(value.type.shape)
    steps = [1] * value.type.rank
    starts[axis], sizes[axis], steps[axis] = start, size, step
    return builder.op("slice", value, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))[0]


def padded(
    builder: KnownBuilder, x: Value, before: Sequence[Dim], after: Sequence[Dim], mode: str, value: Value | None
) -> Value:
    """Pads; a negative amount cuts, and one that is negative for some sizes only pads first and then cuts.

    mode: constant (`value`, 0 where it is None), reflect, edge or wrap.
    """
    before, after = list(before), list(after)
    wanted = [a + n + b for a, n, b in zip(before, x.type.shape, after, strict=True)]
    crop: list[Dim] = [0] * x.type.rank  # after padding
    for axis in range(x.type.rank):
        cuts = [-amount if dimension.bounds(amount)[0] < 0 else 0 for amount in (before[axis], after[axis])]
        if any(dimension.bounds(cut)[0] < 0 for cut in cuts):
            crop[axis] = dimension.maximum(-before[axis], 0)
            before[axis], after[axis] = dimension.maximum(before[axis], 0), dimension.maximum(after[axis], 0)
        elif any(cut != 0 for cut in cuts):
            size = x.type.shape[axis] - cuts[0] - cuts[1]
            if isinstance(size, int) and size < 0:
                raise ModelError(f"pads cut {-size} more elements than axis {axis} has")
            x = sliced(builder, x, axis, cuts[0], size)
            before[axis] = 0 if cuts[0] != 0 else before[axis]
            after[axis] = 0 if cuts[1] != 0 else after[axis]
    x = _grown(builder, x, before, after, mode, value)
    for axis, start in enumerate(crop):
        x = sliced(builder, x, axis, start, wanted[axis])
    return x


def _grown(
    builder: KnownBuilder, x: Value, before: Sequence[Dim], after: Sequence[Dim], mode: str, value: Value | None
) -> Value:
    """Pads by amounts that are not negative."""
    if all(amount == 0 for amount in (*before, *after)):
        return x
    if mode == "constant":
        value = value if value is not None else builder.scalar(0, x.type.dtype)
        return builder.op("pad", x, value, before=tuple(before), after=tuple(after), mode=mode)[0]
    return builder.op("pad", x, before=tuple(before), after=tuple(after), mode=mode)[0]


def missing_extent(x: Value, shape: Sequence[Dim]) -> Dim:
    """The extent that -1 stands for in a reshape; `shape` has 1 in its place."""
    rest, total = dimension.product(shape), x.type.elements
    if rest == 0:
        if total == 0:
            return 0
        raise ModelError("-1 beside an extent of 0 has no meaning")
    exact = dimension.exact_div(total, rest)
    if exact is not None:
        return exact
    if isinstance(total, int) and isinstance(rest, int):
        raise ModelError(f"{total} elements do not divide into rows of {rest}")
    multiples = dimension.exact_quotients(total, rest)
    for symbol, multiple in multiples.items():  # what is divided by a number may be meant to be a multiple of it

        def put(found: Symbol) -> Dim:
            return multiples.get(found, found).dim

        if dimension.exact_div(dimension.substitute(total, put), dimension.substitute(rest, put)) is not None:
            step = multiple.divisor
            same_extent(symbol.dim, dimension.floordiv(symbol.dim, step) * step, "an extent and whole steps of it")
    total, rest, _ = dimension.cancelled(total, rest)
    # Several sizes could make it divide; what leads the result in place of a leading size is that size.
    several = len({*dimension.symbols_of(total), *dimension.symbols_of(rest)}) > 1
    if several and x.type.rank and shape and not all(isinstance(extent, int) for extent in (x.type.shape[0], shape[0])):
        same_extent(x.type.shape[0], shape[0], "the leading extents of a reshape")
    return dimension.floordiv(total, rest)


def times(builder: KnownBuilder, x: Value, matrix: Array | Value, axis: int) -> Value:
    """A [result, source] matrix times x along an axis; a value has the element type of x."""
    rank = x.type.rank
    if axis == rank - 1:
        flat = x if rank > 1 else builder.op("reshape", x, shape=(1, *x.type.shape))[0]
        if isinstance(matrix, Value):
            turned = builder.op("transpose", matrix, perm=(1, 0))[0]
        else:
            turned = builder.const(np.ascontiguousarray(matrix.T.astype(x.type.dtype.numpy)))
        made = builder.op("matmul", flat, turned)[0]
        return made if rank > 1 else builder.op("reshape", made, shape=turned.type.shape[1:])[0]
    if axis == rank - 2:
        left = matrix if isinstance(matrix, Value) else builder.const(matrix.astype(x.type.dtype.numpy))
        return builder.op("matmul", left, x)[0]
    perm = (*(a for a in range(rank) if a != axis), axis)
    moved = times(builder, builder.op("transpose", x, perm=perm)[0], matrix, rank - 1)
    return builder.op("transpose", moved, perm=tuple(perm.index(a) for a in range(rank)))[0]


class Constructions:
    """Small constructions over a builder, for the contexts of both frontends."""

    builder: KnownBuilder

    def scalar(self, number: float | int | bool, dtype: DType) -> Value:
        return self.builder.scalar(number, dtype)

    def cast(self, value: Value, dtype: DType) -> Value:
        return value if value.type.dtype is dtype else self.builder.op("cast", value, to=dtype)[0]

    def reshape(self, value: Value, shape: Sequence[Dim]) -> Value:
        same = value.type.shape == tuple(shape)
        return value if same else self.builder.op("reshape", value, shape=tuple(shape))[0]

    def transpose(self, value: Value, perm: Sequence[int]) -> Value:
        same = tuple(perm) == tuple(range(len(perm)))
        return value if same else self.builder.op("transpose", value, perm=tuple(perm))[0]

    def expand(self, value: Value, shape: Sequence[Dim]) -> Value:
        same = value.type.shape == tuple(shape)
        return value if same else self.builder.op("expand", value, shape=tuple(shape))[0]

    def slice_axis(self, value: Value, axis: int, start: Dim, size: Dim, step: int = 1) -> Value:
        """x[start : …] of `size` elements along one axis."""
        return sliced(self.builder, value, axis, start, size, step)
