"""Index arithmetic that access rules share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold
from typing import Any

import numpy as np

from aot import dims as dimension
from aot.dims import Dim, exact_div
from aot.dtypes import BOOL, I64, DType
from aot.errors import CompilerError
from aot.expr import Expr, call, cast, const, dim, select
from aot.ir import Array, TensorType
from aot.ops.opdef import AccessFn, Attrs, Source

TRUE = const(True, BOOL)
ZERO = const(0, I64)


def given(source: Source | None) -> Source:
    """The source of an operand that is not optional."""
    if source is None:
        raise CompilerError("an access rule lacks an operand that its op requires")
    return source


def zero(dtype: DType) -> Expr:
    """The element 0 (False for bool)."""
    return const(False if dtype.is_bool else 0, dtype)


def both(left: Expr, right: Expr) -> Expr:
    """Logical and, decided now where a side is constant."""
    if left.op == "const":
        return right if left.payload else left
    if right.op == "const":
        return left if right.payload else right
    return call("and", left, right)


def all_of(conditions: Sequence[Expr]) -> Expr:
    """Logical and of any number of conditions; true for none."""
    return fold(both, conditions, TRUE)


def clamp(index: Expr, extent: Dim) -> Expr:
    """The nearest index inside 0 … extent-1."""
    return call("max", call("min", index, dim(extent - 1)), ZERO)


def from_end(index: Expr, extent: Dim) -> Expr:
    """A negative index counted from the end, as numpy does; the result is clamped into range."""
    index = cast(index, I64)
    if index.op == "const" and isinstance(extent, int):
        number = int(index.payload)
        return const(min(max(number + extent if number < 0 else number, 0), extent - 1), I64)
    if index.op == "mod" and index.args[1] == dim(extent):
        return index  # inside already: it has the sign of the extent
    return clamp(select(call("lt", index, 0), index + dim(extent), index), extent)


def from_end_array(index: Array, extent: int) -> Array:
    """`from_end` in numpy."""
    wide = index.astype(np.int64)
    return np.clip(np.where(wide < 0, wide + extent, wide), 0, extent - 1)


def linear(indices: Sequence[Expr], extents: Sequence[Dim]) -> Expr:
    """The row-major position of an index."""
    total: Expr = ZERO
    step: Dim = 1
    for index, extent in zip(reversed(indices), reversed(extents), strict=True):
        total = index * dim(step) + total
        step = step * extent
    return total


def split(position: Expr, extents: Sequence[Dim]) -> list[Expr]:
    """The index at a row-major position."""
    found: list[Expr] = []
    for axis in range(len(extents) - 1, -1, -1):
        if axis == 0:
            found.append(position)
        else:
            found.append(call("mod", position, dim(extents[axis])))
            position = call("floordiv", position, dim(extents[axis]))
    return found[::-1]


def reshape_groups(source: Sequence[Dim], result: Sequence[Dim]) -> list[tuple[list[int], list[int]]]:
    """Pairs of runs of axes, without unit axes, whose element counts are equal; as short as can be proved."""
    ins = [axis for axis, extent in enumerate(source) if extent != 1]
    outs = [axis for axis, extent in enumerate(result) if extent != 1]
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(ins) and j < len(outs):
        left, right = [ins[i]], [outs[j]]
        count_left, count_right = source[ins[i]], result[outs[j]]
        i, j = i + 1, j + 1
        while count_left != count_right:
            grow_right = _grows_right(count_left, count_right)
            if (grow_right and j < len(outs)) or i >= len(ins):
                if j >= len(outs):
                    break
                right.append(outs[j])
                count_right = count_right * result[outs[j]]
                j += 1
            else:
                left.append(ins[i])
                count_left = count_left * source[ins[i]]
                i += 1
        groups.append((left, right))
    if i < len(ins) or j < len(outs):  # counts that are equal in a way that cannot be proved
        rest = groups.pop() if groups else ([], [])
        groups.append((rest[0] + ins[i:], rest[1] + outs[j:]))
    return groups


def _grows_right(left: Dim, right: Dim) -> bool:
    """Whether the right-hand run is the one to make longer."""
    if isinstance(left, int) and isinstance(right, int):
        return left > right
    if exact_div(left, right) is not None:
        return True
    if exact_div(right, left) is not None:
        return False
    return dimension.bounds(left - right)[0] > 0


def reshaped(source: Sequence[Dim], result: Sequence[Dim], indices: Sequence[Expr]) -> list[Expr]:
    """The index into a tensor of shape `source` of the element at `indices` of its reshape to `result`."""
    found: list[Expr] = [ZERO] * len(source)
    for left, right in reshape_groups(source, result):
        extents = [source[axis] for axis in left]
        if extents == [result[axis] for axis in right]:
            parts = [indices[axis] for axis in right]
        else:
            parts = split(linear([indices[axis] for axis in right], [result[axis] for axis in right]), extents)
        for axis, part in zip(left, parts, strict=True):
            found[axis] = part
    return found


def simple_access(rule: Callable[[Attrs, TensorType, Sequence[Expr]], Sequence[Expr]]) -> AccessFn:
    """An access rule that reads operand 0 at an index computed from (attrs, operand type, result index)."""

    def access(attrs: Attrs, sources: Sequence[Source | None], out: TensorType, indices: Sequence[Expr]) -> Expr:
        source = given(sources[0])
        return source.at(rule(attrs, source.type, indices))

    return access


def fixed(shape: Sequence[Any]) -> tuple[int, ...]:
    """Dims as ints: the reference runs when every symbol has its value."""
    for extent in shape:
        if not isinstance(extent, int):
            raise CompilerError(f"the reference needs known sizes; {extent} is symbolic")
    return tuple(shape)
