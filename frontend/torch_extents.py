"""Extents that PyTorch says are equal and whose forms differ here.

PyTorch finds the sizes of every result, under guards and assertions of its own: after an assertion that k <= n, what
`x[:, :k]` gives has k columns for it, and min(n, k) here; a view of a + b elements in 2 rows has a guard that a + b is
even. Where no condition on symbols says the same and no more (see `Bindings.has_weakest`), the equality becomes a rule
that the artifact checks in every run, and a tensor is cut to the extent that it is to have.

Invariant: what is cut is as large as what it is cut to in every run that the rules let through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aot import dims as dimension
from aot.dims import Dim
from aot.frontend import data_sizes, shaping
from aot.frontend.known import KnownBuilder
from aot.ir import Value
from aot.ops.opdef import DimMismatch


def in_shape(builder: KnownBuilder, x: Value, shape: Sequence[Dim]) -> Value:
    """x in a shape of the same rank whose extents are equal to its own by rules that are checked."""
    for axis, extent in enumerate(shape):
        if extent == x.type.shape[axis]:
            continue
        if data_sizes.is_unbacked(extent) or data_sizes.is_unbacked(x.type.shape[axis]):
            # Checked where it stands: a rule on what data gives may stand behind it.
            x = data_sizes.with_shape(builder, x, (*x.type.shape[:axis], extent, *x.type.shape[axis + 1 :]))
        else:
            x = shaping.sliced(builder, x, axis, 0, extent)
    return x


def regrouped(builder: KnownBuilder, x: Value, shape: Sequence[Dim]) -> Value:
    """The row-major elements of x in a shape that has as many by rules that are checked; no size is from data."""
    own = x.type.shape
    shorter = min(len(own), len(shape))
    before = next((axis for axis in range(shorter) if own[axis] != shape[axis]), shorter)
    room = shorter - before
    after = next((axis for axis in range(room) if own[-1 - axis] != shape[-1 - axis]), room)
    outer, inner = own[:before], own[len(own) - after :]
    counts = [dimension.product(each[before : len(each) - after]) for each in (own, shape)]
    (flat,) = builder.op("reshape", x, shape=(*outer, counts[0], *inner))
    return builder.op("reshape", shaping.sliced(builder, flat, before, 0, counts[1]), shape=tuple(shape))[0]


def alike(error: DimMismatch, shapes: Sequence[Sequence[Dim]], result: Sequence[Dim]) -> Iterator[tuple[Dim, ...]]:
    """The shapes of operands in which the two sizes of a mismatch are one: that of the result, or else the shorter."""
    pair = (error.left, error.right)
    target = next((size for size in pair if size in result), min(pair, key=lambda size: len(str(size))))
    for shape in shapes:
        yield tuple(target if extent in pair else extent for extent in shape)
