"""Sizes that data gives, over a builder: what the frontends share.

A size is computed by ordinary ops on tensors of integers and then read (`aot/control.py`); from there on it is an
unbacked symbol in the types.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aot import dims as dimension
from aot import dtypes
from aot.control import add_alias
from aot.dims import Dim
from aot.errors import UnsupportedError
from aot.frontend.known import KnownBuilder
from aot.ir import Array, Value

_I64 = dtypes.I64


def is_unbacked(dim: Dim) -> bool:
    """Whether data gives the size, or a part of it."""
    return any(symbol.origin != "input" for symbol in dimension.symbols_of(dim))


def number(builder: KnownBuilder, dim: Dim) -> Value:
    """A size as a rank-0 i64 tensor."""
    contents: Array = np.empty((), dtype=object)
    contents[()] = dim
    return builder.known_value(contents, _I64)


def read(builder: KnownBuilder, value: Value, what: str) -> Dim:
    """A rank-0 or one-element tensor of integers as a size that is not negative. Raises UnsupportedError."""
    contents = builder.read_sizes(value)
    if contents is None or contents.size != 1:
        raise UnsupportedError(f"{what} depends on data that is only known when running")
    dim: Dim = contents.flat[0]
    return dim


def with_shape(builder: KnownBuilder, x: Value, shape: Sequence[Dim]) -> Value:
    """A reshape; where only the run knows that the elements are as many, it is checked then."""
    if x.type.shape == tuple(shape):
        return x
    if dimension.product(shape) == x.type.elements:
        return builder.op("reshape", x, shape=tuple(shape))[0]
    builder.materialize(x)
    return add_alias(builder, x, shape, exact=True)


def shrunk(builder: KnownBuilder, x: Value, count: Value, what: str) -> Value:
    """The first `count` entries of x along its first axis; what is behind them was never written."""
    size = read(builder, count, what)
    builder.materialize(x)
    return add_alias(builder, x, (size, *x.type.shape[1:]), exact=False)


def places_of(builder: KnownBuilder, flags: Value) -> Value:
    """The places at which a rank-1 bool tensor holds, in order; their number is only known when running."""
    extent = flags.type.shape[0]
    ones = builder.cast(flags, to=_I64)
    after = builder.cumsum(ones, axis=0, exclusive=False, reverse=False)
    # Those that do not hold are sent behind the end, where a scatter writes nothing.
    target = builder.where(flags, builder.sub(after, builder.scalar(1, _I64)), number(builder, extent))
    iota = builder.iota(shape=(extent,), axis=0, start=0, step=1, dtype=_I64)
    zeros = builder.expand(builder.scalar(0, _I64), shape=(extent,))
    found = builder.scatter_elements(zeros, target, iota, axis=0, reduction="none")
    count = builder.reduce_sum(ones, axes=(0,), keepdims=False)
    return shrunk(builder, found, count, "how many elements are chosen")


def flags_of(builder: KnownBuilder, x: Value) -> Value:
    """Which elements of a tensor, flattened, are not zero."""
    flat: Value = builder.reshape(x, shape=(x.type.elements,)) if x.type.rank != 1 else x
    return flat if flat.type.dtype.is_bool else builder.op("ne", flat, builder.scalar(0, flat.type.dtype))[0]


def coordinates(builder: KnownBuilder, places: Value, shape: Sequence[Dim]) -> list[Value]:
    """The index on each axis of a tensor of the shape, for flat places in it."""
    found: list[Value] = []
    for axis, extent in enumerate(shape):
        row = places
        inner = dimension.product(shape[axis + 1 :])
        if inner != 1:
            row = builder.div(row, number(builder, inner))
        if axis:
            row = builder.mod(row, number(builder, extent))
        found.append(row)
    return found


def differs_from_before(builder: KnownBuilder, x: Value) -> Value:
    """Which slices of x along its first axis differ from the one before; the first does. A NaN differs from all."""
    extent = x.type.shape[0]
    iota = builder.iota(shape=(extent,), axis=0, start=0, step=1, dtype=_I64)
    zero = builder.scalar(0, _I64)
    before = builder.gather(x, builder.max(builder.sub(iota, builder.scalar(1, _I64)), zero), axis=0)
    differs = builder.ne(x, before)
    if x.type.rank > 1:
        axes = tuple(range(1, x.type.rank))
        differs = builder.reduce_max(builder.cast(differs, to=dtypes.U8), axes=axes, keepdims=False)
        differs = builder.cast(differs, to=dtypes.BOOL)
    result: Value = builder.or_(differs, builder.eq(iota, zero))
    return result


def groups_of(builder: KnownBuilder, is_first: Value) -> tuple[Value, Value, Value]:
    """Of a row in groups, where `is_first` begins one: where each begins, the group of each element, their lengths."""
    extent = is_first.type.shape[0]
    one = builder.scalar(1, _I64)
    after = builder.cumsum(builder.cast(is_first, to=_I64), axis=0, exclusive=False, reverse=False)
    group = builder.sub(after, one)
    starts = places_of(builder, is_first)
    zeros = builder.expand(builder.scalar(0, _I64), shape=starts.type.shape)
    ones = builder.expand(one, shape=(extent,))
    return starts, group, builder.scatter_elements(zeros, group, ones, axis=0, reduction="add")


def distinct(builder: KnownBuilder, x: Value) -> tuple[Value, Value, Value]:
    """The distinct slices of x along its first axis, in order: where each first is, which of them each slice is,
    and how often each occurs. Slices of half types must be widened first.
    """
    extent = x.type.shape[0]
    if x.type.rank == 1:
        row, order = builder.op("sort", x, axis=0, descending=False)
        is_first = differs_from_before(builder, row)
    else:
        rest = dimension.product(x.type.shape[1:])
        order, is_first = builder.op("order_rows", builder.reshape(x, shape=(extent, rest)))
    starts, group, counts = groups_of(builder, is_first)
    zeros = builder.expand(builder.scalar(0, _I64), shape=(extent,))
    inverse = builder.scatter_elements(zeros, order, group, axis=0, reduction="none")
    return builder.gather(order, starts, axis=0), inverse, counts
