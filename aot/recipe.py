"""Recipes: how a packed constant is made from source weights, executed with numpy.

A recipe is a program of `RecipeStep`s for a stack machine. `runtime/src/recipe.cpp` is its twin: both
use only basic IEEE operations in a fixed order, so that a constant made at build time and one made
at load time hold the same bits (tests/runtime/test_recipes.py). Arithmetic wants operands of one
dtype, follows numpy's broadcasting, and computes f16 and bf16 in f32, rounding each result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from aot import dtypes
from aot.dtypes import DType
from aot.errors import CompilerError
from aot.ir import Array
from aot.program import RecipeOp, RecipeStep, Source

_BINARY = {RecipeOp.ADD: np.add, RecipeOp.SUB: np.subtract, RecipeOp.MUL: np.multiply, RecipeOp.DIV: np.divide}


def run(recipe: Sequence[RecipeStep], sources: Sequence[Source]) -> Array:
    """The array that `recipe` makes of the program's `sources`, row-major.

    Raises CompilerError where the recipe is malformed: it is made by the compiler, never by a user.
    """
    stack: list[Array] = []
    for number, step in enumerate(recipe):
        try:
            _execute(step, stack, sources)
        except (IndexError, ValueError, TypeError) as error:
            raise CompilerError(f"recipe step {number} ({step.op.name}): {error}") from error
    if len(stack) != 1:
        raise CompilerError(f"a recipe must leave one tensor, this one leaves {len(stack)}")
    return np.ascontiguousarray(stack[0]).reshape(stack[0].shape)


def _execute(step: RecipeStep, stack: list[Array], sources: Sequence[Source]) -> None:
    if step.op == RecipeOp.SOURCE:
        stack.append(sources[step.operands[0]].const.array())
    elif step.op == RecipeOp.SCALAR:
        stack.append(np.asarray(step.scalar, np.float64).astype(_dtype(step).numpy))
    elif step.op in _BINARY:
        right, left = stack.pop(), stack.pop()
        if left.dtype != right.dtype:
            raise ValueError(f"operands are {left.dtype} and {right.dtype}")
        if step.op == RecipeOp.DIV and not dtypes.from_numpy(left.dtype).is_float:
            raise ValueError(f"division of {left.dtype}")
        with np.errstate(all="ignore"):
            stack.append(np.asarray(_BINARY[step.op](left, right)))
    elif step.op == RecipeOp.NEG:
        stack.append(np.asarray(np.negative(stack.pop())))
    elif step.op == RecipeOp.SQRT:
        with np.errstate(all="ignore"):
            stack.append(np.asarray(np.sqrt(stack.pop())))
    elif step.op == RecipeOp.CAST:
        with np.errstate(all="ignore"):
            stack.append(stack.pop().astype(_dtype(step).numpy))
    elif step.op == RecipeOp.RESHAPE:
        stack.append(np.ascontiguousarray(stack.pop()).reshape(step.shape))
    elif step.op == RecipeOp.PACK:
        stack.append(_pack(stack.pop(), step.shape, step.coefficients))
    elif step.op == RecipeOp.CONCAT:
        axis, count = step.operands
        if not 1 <= count <= len(stack):
            raise ValueError(f"{count} tensors of {len(stack)} to join")
        parts = stack[-count:]
        del stack[-count:]
        if not 0 <= axis < parts[0].ndim or any(part.dtype != parts[0].dtype for part in parts):
            raise ValueError(f"axis {axis} of {', '.join(f'{part.dtype}{list(part.shape)}' for part in parts)}")
        stack.append(np.concatenate(parts, axis))
    else:
        stack.append(_winograd(stack.pop()))


def _dtype(step: RecipeStep) -> DType:
    return dtypes.BY_NUMBER[step.dtype]


def _pack(source: Array, shape: tuple[int, ...], coefficients: tuple[tuple[int, ...], ...]) -> Array:
    """The strided copy of RecipeOp.PACK: reads a zero-padded source through one strided view."""
    if len(coefficients) != source.ndim or any(len(row) != len(shape) for row in coefficients):
        raise ValueError(f"coefficients do not fit rank {source.ndim} to rank {len(shape)}")
    if 0 in shape:
        return np.zeros(shape, source.dtype)
    if source.dtype.itemsize == 1 and source.dtype != np.uint8:  # numpy's views do not take ml_dtypes' float8_e5m2
        return _pack(source.view(np.uint8), shape, coefficients).view(source.dtype)
    widths = []
    for extent, row in zip(source.shape, coefficients, strict=True):
        reach = [factor * (size - 1) for factor, size in zip(row, shape, strict=True)]
        before = -sum(min(value, 0) for value in reach)
        widths.append((before, max(sum(max(value, 0) for value in reach) + 1 - extent, 0)))
    if any(after or before for before, after in widths):
        padded = np.zeros([n + a + b for n, (a, b) in zip(source.shape, widths, strict=True)], source.dtype)
        padded[tuple(slice(a, a + n) for n, (a, _) in zip(source.shape, widths, strict=True))] = source
        source = padded
    origin = source[tuple(slice(before, None) for before, _ in widths)]
    strides = [
        sum(row[axis] * stride for row, stride in zip(coefficients, source.strides, strict=True))
        for axis in range(len(shape))
    ]
    return np.lib.stride_tricks.as_strided(origin, shape, strides).copy()


def _winograd(weight: Array) -> Array:
    """[O, C, 3, 3] -> [16, C, O]: G g Gᵀ of F(2x2, 3x3) (Lavin and Gray, 2015), in f64, rounded once."""
    if weight.ndim != 4 or weight.shape[2:] != (3, 3):
        raise ValueError(f"Winograd weights must be [O, C, 3, 3], not {list(weight.shape)}")

    def transform(g: list[Array]) -> list[Array]:
        return [g[0], ((g[0] + g[1]) + g[2]) * 0.5, ((g[0] - g[1]) + g[2]) * 0.5, g[2]]

    wide = weight.astype(np.float64)
    rows = transform([wide[:, :, k, :] for k in range(3)])
    tiles = [tile for row in rows for tile in transform([row[:, :, k] for k in range(3)])]
    return np.stack([tile.T for tile in tiles]).astype(weight.dtype)


def source(index: int) -> RecipeStep:
    """Push source tensor `index`."""
    return RecipeStep(RecipeOp.SOURCE, operands=(index,))


def scalar(value: float, dtype: DType) -> RecipeStep:
    """Push one number."""
    return RecipeStep(RecipeOp.SCALAR, scalar=float(value), dtype=dtype.number)


def cast(dtype: DType) -> RecipeStep:
    """Convert the top of the stack."""
    return RecipeStep(RecipeOp.CAST, dtype=dtype.number)


def reshape(*shape: int) -> RecipeStep:
    """Give the top of the stack another shape of as many elements."""
    return RecipeStep(RecipeOp.RESHAPE, shape=shape)


def transpose(shape: Sequence[int], order: Sequence[int]) -> RecipeStep:
    """Permute the axes of a tensor of `shape`, as numpy.transpose does with `order`."""
    coefficients = tuple(tuple(int(axis == moved) for moved in order) for axis in range(len(shape)))
    return RecipeStep(RecipeOp.PACK, shape=tuple(shape[axis] for axis in order), coefficients=coefficients)


def concat(axis: int, count: int) -> RecipeStep:
    """Join the uppermost `count` tensors of the stack along an axis."""
    return RecipeStep(RecipeOp.CONCAT, operands=(axis, count))


def pack_matrix(k: int, n: int, panel: int = 16) -> RecipeStep:
    """A matrix [k, n] as column panels [ceil(n / panel), k, panel], zeros behind the last column."""
    return RecipeStep(RecipeOp.PACK, shape=(-(-n // panel), k, panel), coefficients=((0, 1, 0), (panel, 0, 1)))


def pack_convolution(o: int, c: int, kh: int, kw: int, groups: int = 1, panel: int = 16) -> tuple[RecipeStep, ...]:
    """Weights [o, c, kh, kw] (c: channels of a group) as [groups, ceil(o / groups / panel), kh, kw, c, panel]."""
    per_group = o // groups
    coefficients = (
        (1, 0, 0, 0, 0, 0),
        (0, panel, 0, 0, 0, 1),
        (0, 0, 0, 0, 1, 0),
        (0, 0, 1, 0, 0, 0),
        (0, 0, 0, 1, 0, 0),
    )
    shape = (groups, -(-per_group // panel), kh, kw, c, panel)
    return (reshape(groups, per_group, c, kh, kw), RecipeStep(RecipeOp.PACK, shape=shape, coefficients=coefficients))


def winograd() -> RecipeStep:
    """[O, C, 3, 3] -> [16, C, O] for F(2x2, 3x3)."""
    return RecipeStep(RecipeOp.WINOGRAD)


# Simplification: the layers of a compiler each move a weight's elements, and often back again.


@dataclass(frozen=True)
class _Tree:
    """A step with the trees of its operands, and the shape of its result."""

    step: RecipeStep
    parts: tuple[_Tree, ...]
    shape: tuple[int, ...]

    def steps(self) -> tuple[RecipeStep, ...]:
        return (*(step for part in self.parts for step in part.steps()), self.step)


def simplified(recipe: Sequence[RecipeStep], shapes: Sequence[tuple[int, ...]]) -> tuple[RecipeStep, ...]:
    """A recipe with the same result, bit for bit, in which copies of copies are one copy, or none.

    `shapes` are those of the sources.
    """
    stack: list[_Tree] = []
    for step in recipe:
        if step.op == RecipeOp.SOURCE:
            stack.append(_Tree(step, (), tuple(shapes[step.operands[0]])))
        elif step.op == RecipeOp.SCALAR:
            stack.append(_Tree(step, (), ()))
        elif step.op in _BINARY or step.op == RecipeOp.CONCAT:
            count = step.operands[1] if step.op == RecipeOp.CONCAT else 2
            parts = tuple(stack[-count:])
            del stack[-count:]
            stack.append(_joined(step, parts))
        elif step.op in (RecipeOp.PACK, RecipeOp.RESHAPE):
            stack.append(_moved(step, stack.pop()))
        elif step.op == RecipeOp.WINOGRAD:
            part = stack.pop()
            stack.append(_Tree(step, (part,), (16, part.shape[1], part.shape[0])))
        else:
            part = stack.pop()
            stack.append(_Tree(step, (part,), part.shape))
    (tree,) = stack
    return tree.steps()


def _joined(step: RecipeStep, parts: tuple[_Tree, ...]) -> _Tree:
    shapes = [part.shape for part in parts]
    if step.op != RecipeOp.CONCAT:
        return _Tree(step, parts, np.broadcast_shapes(*shapes))
    axis = step.operands[0]
    total = sum(shape[axis] for shape in shapes)
    return _Tree(step, parts, (*shapes[0][:axis], total, *shapes[0][axis + 1 :]))


def _moved(step: RecipeStep, part: _Tree) -> _Tree:
    """A copy or a reshape of a tree, done as early as can be."""
    if step.op == RecipeOp.RESHAPE:
        if part.shape == step.shape:
            return part
        if part.step.op == RecipeOp.RESHAPE:
            return _moved(step, part.parts[0])
        return _Tree(step, (part,), step.shape)
    order = _permutation(step.coefficients, step.shape, part.shape)
    if order == tuple(range(len(part.shape))):
        return part
    inner = part.step
    if inner.op == RecipeOp.CAST:  # zeros stay zeros
        moved = _moved(step, part.parts[0])
        return _Tree(inner, (moved,), moved.shape)
    if inner.op == RecipeOp.CONCAT and order is not None:
        moves = [transpose(each.shape, order) for each in part.parts]
        axis = order.index(inner.operands[0])
        moved_parts = tuple(_moved(move, each) for move, each in zip(moves, part.parts, strict=True))
        return _joined(concat(axis, len(moved_parts)), moved_parts)
    below = None
    if inner.op == RecipeOp.PACK:
        source = part.parts[0].shape
        if _permutation(inner.coefficients, inner.shape, source) or _stays_inside(step, part.shape):
            below = inner.coefficients
    elif inner.op == RecipeOp.RESHAPE and _stays_inside(step, part.shape):
        below = _split(part.parts[0].shape, part.shape)
    if below is None:
        return _Tree(step, (part,), step.shape)
    columns = range(len(step.shape))
    rows = tuple(
        tuple(sum(f * step.coefficients[middle][column] for middle, f in enumerate(row)) for column in columns)
        for row in below
    )
    return _moved(replace(step, coefficients=rows), part.parts[0])


def _permutation(
    rows: tuple[tuple[int, ...], ...], shape: tuple[int, ...], source: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The order that a copy gives the axes of its source, as numpy.transpose takes it; None where it does more."""
    if len(shape) != len(source) or any(sum(map(abs, row)) != 1 or max(row) != 1 for row in rows):
        return None
    places = [row.index(1) for row in rows]
    if len(set(places)) != len(places) or any(shape[place] != n for place, n in zip(places, source, strict=True)):
        return None
    return tuple(places.index(axis) for axis in range(len(shape)))


def _stays_inside(step: RecipeStep, source: tuple[int, ...]) -> bool:
    """Whether a copy reads no element outside of its source."""
    if 0 in step.shape:
        return False
    for row, extent in zip(step.coefficients, source, strict=True):
        reach = [factor * (size - 1) for factor, size in zip(row, step.shape, strict=True)]
        if sum(min(r, 0) for r in reach) < 0 or sum(max(r, 0) for r in reach) >= extent:
            return False
    return True


def _split(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """Coefficients [axis before][axis after] of a reshape that only splits axes; None for others."""
    rows: list[tuple[int, ...]] = []
    place = 0
    for extent in before:
        start, size = place, 1
        while place < len(after) and (size < extent or (size == extent and after[place] == 1)):
            size *= after[place]
            place += 1
        if size != extent:
            return None
        row = [0] * len(after)
        for axis in range(start, place):
            row[axis] = prod(after[axis + 1 : place])
        rows.append(tuple(row))
    return tuple(rows) if place == len(after) else None
