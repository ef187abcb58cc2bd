"""The core ops over tensors of known contents: numpy object arrays of elements (see known_scalars)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from aot.dtypes import DType
from aot.errors import AotError
from aot.frontend.known_scalars import COMPARISONS, ELEMENTWISE, REDUCTIONS, Element, UnknownContents, is_symbolic
from aot.ir import Array, Attr, TensorType
from aot.ops import OPS
from aot.ops.opdef import Attrs


def static_shape(type_: TensorType) -> tuple[int, ...]:
    """The extents that are plain numbers."""
    return tuple(extent for extent in type_.shape if isinstance(extent, int))


def object_array(items: Sequence[Element], shape: Sequence[int]) -> Array:
    """An object array of a shape, from its elements in row-major order."""
    array = np.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        array[index] = item
    return array.reshape(tuple(shape))


def objects_of(array: Array) -> Array:
    if array.dtype.kind not in "biuf":
        array = array.astype(np.float64)
    return object_array(array.reshape(-1).tolist(), array.shape)


def contents_of(
    name: str, attrs: Attrs, operands: Sequence[Array], types: Sequence[TensorType], result: TensorType
) -> Array | None:
    if name == "dim_tensor":
        return object_array(_plain_tuple(attrs["dims"]), (len(_plain_tuple(attrs["dims"])),))
    shape = static_shape(result)
    dtype = result.dtype
    if name in ELEMENTWISE:
        function = ELEMENTWISE[name]
        source = types[-1].dtype if name in COMPARISONS or name == "cast" else dtype
        broadcast = np.broadcast_arrays(*operands) if operands else []
        items = [function(source, dtype, *row) for row in zip(*(part.flat for part in broadcast), strict=True)]
        return object_array(items, shape)
    if name in ("reshape", "copy"):
        return operands[0].reshape(shape)
    if name == "transpose":
        return operands[0].transpose(_plain_tuple(attrs["perm"]))
    if name == "expand":
        return np.broadcast_to(operands[0], shape)
    if name == "concat":
        return np.concatenate(list(operands), axis=_plain_int(attrs["axis"]))
    if name == "tile":
        return np.tile(operands[0], _plain_tuple(attrs["repeats"]))
    if name == "slice":
        return _slice(operands[0], attrs)
    if name == "gather":
        return _gather(operands[0], operands[1], _plain_int(attrs["axis"]), shape)
    if name in REDUCTIONS:
        return _reduced(name, attrs, operands[0], dtype, shape)
    return _by_reference(name, attrs, operands, types, shape)


def _by_reference(
    name: str, attrs: Attrs, operands: Sequence[Array], types: Sequence[TensorType], shape: tuple[int, ...]
) -> Array | None:
    """Any other op over numbers: its numpy meaning."""
    reference = OPS[name].reference
    if reference is None or any(is_symbolic(element) for operand in operands for element in operand.flat):
        return None
    arrays = [np.array(o.tolist(), dtype=t.dtype.numpy).reshape(o.shape) for o, t in zip(operands, types, strict=True)]
    try:
        made = np.asarray(reference(attrs, *arrays))
    except (AotError, ValueError, IndexError, TypeError):
        return None
    return objects_of(made.reshape(shape))


def _plain_int(attr: Attr) -> int:
    if not isinstance(attr, int):
        raise UnknownContents
    return attr


def _plain_tuple(attr: Attr) -> tuple[Any, ...]:
    if not isinstance(attr, tuple):
        raise UnknownContents
    return attr


def _slice(operand: Array, attrs: Attrs) -> Array:
    index: list[Any] = []
    columns = (_plain_tuple(attrs[key]) for key in ("starts", "sizes", "steps"))
    for axis, (start, size, step) in enumerate(zip(*columns, strict=True)):
        if not isinstance(start, int) or not isinstance(size, int):
            raise UnknownContents
        positions = [start + i * step for i in range(size)]
        if positions and not 0 <= min(positions) <= max(positions) < operand.shape[axis]:
            raise UnknownContents
        index.append(positions)
    return operand[np.ix_(*index)] if index else operand


def _gather(operand: Array, indices: Array, axis: int, shape: tuple[int, ...]) -> Array:
    if any(not isinstance(i, int) for i in indices.flat):
        raise UnknownContents
    extent = operand.shape[axis]
    numbers = np.array(indices.tolist(), dtype=np.int64).reshape(indices.shape)
    if extent == 0 or ((numbers < -extent) | (numbers >= extent)).any():
        raise UnknownContents
    taken = np.empty(shape, dtype=object)
    taken[...] = np.take(operand, numbers, axis=axis)
    return taken


def _reduced(name: str, attrs: Attrs, operand: Array, dtype: DType, shape: tuple[int, ...]) -> Array:
    function, empty = REDUCTIONS[name]
    axes = sorted(axis % max(operand.ndim, 1) for axis in _plain_tuple(attrs["axes"]))
    kept = [axis for axis in range(operand.ndim) if axis not in axes]
    count = math.prod(operand.shape[axis] for axis in axes)
    rows = (
        operand.transpose(kept + axes).reshape(-1, count) if operand.size else np.empty((math.prod(shape), 0), object)
    )
    items: list[Element] = []
    for row in rows:
        if len(row):
            items.append(reduce(lambda a, b: function(dtype, dtype, a, b), row))
        elif empty is None:
            raise UnknownContents
        else:
            items.append(empty)
    return object_array(items, shape)
