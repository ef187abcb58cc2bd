"""Recipes: how a packed constant is made from source weights, executed with numpy.

A recipe is a program of `RecipeStep`s for a stack machine. `runtime/src/recipe.cpp` is its twin: both
use only basic IEEE operations in a fixed order, so that a constant made at build time and one made
at load time hold the same bits (tests/runtime/test_recipes.py). Arithmetic wants operands of one
dtype, follows numpy's broadcasting, and computes f16 and bf16 in f32, rounding each result.
"""

from __future__ import annotations

from collections.abc import Sequence

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
