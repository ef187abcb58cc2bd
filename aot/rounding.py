"""How weights become numbers of few bits: scales, rounding to nearest, and rounding that minimizes an error on data."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from aot.errors import CompilerError

Array = np.ndarray[Any, np.dtype[Any]]

_SHRINKS = np.linspace(1.0, 0.7, 13)
"""The parts of the largest magnitude that a scale is tried with."""

_DAMPING = 0.01
"""Of the mean of the Hessian's diagonal, added to it: GPTQ's usual amount."""

_COLUMNS = 128
"""Rows of a weight that GPTQ rounds before it updates the others."""

_CHUNK = 1 << 22
_LEAST = float(np.finfo(np.float32).tiny) * 2
FLOAT8_MOST = 448.0


def scales(weight: Array, axis: int | None, levels: int, shrink: bool = True) -> Array:
    """f32 scales of symmetric numbers -levels to levels: one for each place of `axis`, or one in all.

    With `shrink` the one of a few parts of the largest magnitude that gives the least squared error. A weight of zeros,
    or of numbers so small that a scale of theirs would be subnormal, has scale 1.
    """
    rows = weight.reshape(1, -1) if axis is None else np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1)
    rows = np.asarray(rows, np.float32)
    most = np.abs(rows).max(axis=1, initial=0)
    most = np.where(most > _LEAST * levels, most, np.float32(levels))
    best = most / np.float32(levels)
    if not shrink or levels > 127 or rows.size == 0:
        return np.asarray(best, np.float32)
    found = np.full(len(rows), np.inf)
    step = max(_CHUNK // max(rows.shape[1], 1), 1)
    for start in range(0, len(rows), step):
        part, top = rows[start : start + step], most[start : start + step]
        for factor in _SHRINKS:
            scale = (top * np.float32(factor) / np.float32(levels)).astype(np.float32)
            rounded = np.clip(np.rint(part / scale[:, None]), -levels, levels) * scale[:, None]
            error = np.square(rounded - part, dtype=np.float32).sum(axis=1, dtype=np.float64)
            better = error < found[start : start + step]
            found[start : start + step][better] = error[better]
            best[start : start + step][better] = scale[better]
    return np.asarray(best, np.float32)


def to_int8(weight: Array, scale: Array) -> Array:
    """i8: weight / scale rounded, -127 to 127; `scale` broadcasts."""
    return np.asarray(np.clip(np.rint(weight / scale), -127, 127), np.int8)


def to_float8(weight: Array, scale: Array) -> Array:
    """f8e4m3: weight / scale rounded, bounded by the largest; `scale` broadcasts."""
    return np.asarray(np.clip(weight / scale, -FLOAT8_MOST, FLOAT8_MOST).astype(ml_dtypes.float8_e4m3fn))


def block_scales(weight: Array, block: int, levels: int) -> Array:
    """f32 [blocks, N]: scales of a weight [K, N] for each `block` rows of each column, as `scales` finds them."""
    summed, columns = weight.shape
    blocks = -(-summed // block)
    padded = np.pad(np.asarray(weight, np.float32), ((0, blocks * block - summed), (0, 0)))
    rows = padded.reshape(blocks, block, columns).transpose(0, 2, 1).reshape(blocks * columns, block)
    return scales(rows, 0, levels).reshape(blocks, columns)


def gptq(weight: Array, gram: Array, scale: Array, block: int, low: int, high: int) -> Array:
    """Integers low to high for a weight [K, N] with `scale` [blocks, N], that keep x @ weight for the data seen.

    gram: f64 [K, K], the sum of x xᵀ. The rows are rounded one after the other, and the error of each goes to those
    that are still to come, by the inverse of the gram's Cholesky factor: Frantar, Ashkboos, Hoefler and Alistarh, GPTQ,
    2022; rows that saw the largest inputs come first (their `act-order`).
    Raises CompilerError for a gram of another size.
    """
    summed, columns = weight.shape
    if gram.shape != (summed, summed):
        raise CompilerError(f"a gram of {gram.shape} for a weight of {weight.shape}")
    rest = np.asarray(weight, np.float64).copy()
    diagonal = np.diag(gram).copy()
    dead = diagonal <= 0
    hessian = gram + np.diag(np.where(dead, 1.0, 0.0) + _DAMPING * max(float(diagonal.mean()), 1e-30))
    order = np.argsort(-diagonal, kind="stable")
    hessian, rest = hessian[np.ix_(order, order)], rest[order]
    steps = scale.astype(np.float64)[order // block]
    inverse = np.linalg.cholesky(np.linalg.inv(hessian)).T  # upper: inverse = Uᵀ U
    result = np.zeros((summed, columns), np.int32)
    for start in range(0, summed, _COLUMNS):
        end = min(start + _COLUMNS, summed)
        errors = np.zeros((end - start, columns))
        for row in range(start, end):
            numbers = np.clip(np.rint(rest[row] / steps[row]), low, high)
            result[row] = numbers
            error = (rest[row] - numbers * steps[row]) / inverse[row, row]
            rest[row + 1 : end] -= np.outer(inverse[row, row + 1 : end], error)
            errors[row - start] = error
        rest[end:] -= inverse[start:end, end:].T @ errors
    unordered = np.empty_like(result)
    unordered[order] = result
    return unordered
