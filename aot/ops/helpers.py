"""Small constructors that keep the op entries short: dtype rules, shape helpers, sample arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aot.dims import Dim
from aot.dtypes import BF16, F16, F32, DType
from aot.errors import UnsupportedError
from aot.expr import Expr, cast
from aot.ir import Array, Attr, TensorType
from aot.ops.opdef import Attrs, OpError, normalize_axis

FLOAT = ("float",)
INTEGER = ("int", "uint")
NUMERIC = ("float", "int", "uint")
LOGICAL = ("bool", "int", "uint")
ANY = ("bool", "float", "int", "uint")
INDEX = ("int",)


def need_family(what: str, type_: TensorType, families: Sequence[str]) -> None:
    """Raises OpError unless the element type is of one of the families."""
    if type_.dtype.family not in families:
        raise OpError(f"{what} must be of family {' or '.join(families)}; it is {type_.dtype}")


def need_same_dtype(*types: TensorType) -> DType:
    """The common element type; raises OpError where they differ."""
    found = list(dict.fromkeys(type_.dtype.name for type_ in types))
    if len(found) > 1:
        raise OpError(f"operands must have one element type; they have {', '.join(found)}: convert with a cast")
    return types[0].dtype


def need_rank(what: str, type_: TensorType, least: int, most: int | None = None) -> None:
    """Raises OpError unless least <= rank <= most."""
    if type_.rank < least or (most is not None and type_.rank > most):
        expected = f"rank {least}" if most == least else f"rank {least} or more" if most is None else f"{least}..{most}"
        raise OpError(f"{what} must have {expected}; it has rank {type_.rank}")


def int_attr(attrs: Attrs, name: str) -> int:
    """An attribute of type int."""
    value = attrs[name]
    if not isinstance(value, int):
        raise OpError(f"attribute {name!r} must be an integer; it is {value!r}")
    return value


def ints_attr(attrs: Attrs, name: str) -> tuple[int, ...]:
    """An attribute of type ints."""
    return tuple(_plain_int(item, name) for item in sequence_attr(attrs, name))


def _plain_int(item: Attr, name: str) -> int:
    if not isinstance(item, int):
        raise OpError(f"attribute {name!r} must hold integers; it holds {item!r}")
    return item


def float_attr(attrs: Attrs, name: str) -> float:
    """An attribute of type float."""
    value = attrs[name]
    if not isinstance(value, (int, float)):
        raise OpError(f"attribute {name!r} must be a number; it is {value!r}")
    return float(value)


def sequence_attr(attrs: Attrs, name: str) -> tuple[Any, ...]:
    """An attribute of type ints, floats or dims."""
    value = attrs[name]
    if not isinstance(value, tuple):
        raise OpError(f"attribute {name!r} must be a tuple; it is {value!r}")
    return value


def tile_extent(what: str, extent: Dim, most: int) -> int:
    """The power of two that holds an extent, of a kernel that has all of it in registers; `most` is the largest.

    Raises UnsupportedError for a larger one, or one that is not known.
    """
    if not isinstance(extent, int) or extent > most:
        raise UnsupportedError(f"a GPU has no kernel for {what} of {extent}, only up to {most}")
    return 1 << max(extent - 1, 0).bit_length()


def with_constants(source: str, values: Mapping[str, int]) -> str:
    """A source whose words in capitals are numbers."""
    return re.sub(r"\b[A-Z][A-Z_]*\b", lambda word: str(values.get(word[0], word[0])), source)


def dims_attr(attrs: Attrs, name: str) -> tuple[Dim, ...]:
    """An attribute of type dims."""
    return sequence_attr(attrs, name)


def dtype_attr(attrs: Attrs, name: str) -> DType:
    """An attribute of type dtype."""
    value = attrs[name]
    if not isinstance(value, DType):
        raise OpError(f"attribute {name!r} must be an element type; it is {value!r}")
    return value


def axes_attr(attrs: Attrs, rank: int, name: str = "axes") -> tuple[int, ...]:
    """Sorted non-negative axes; raises OpError for one out of range or given twice."""
    axes = sorted(normalize_axis(axis, rank) for axis in ints_attr(attrs, name))
    if len(set(axes)) != len(axes):
        raise OpError(f"{name} {ints_attr(attrs, name)} name an axis twice")
    return tuple(axes)


def wide_dtype(dtype: DType) -> DType:
    """The dtype in which a chain of float arithmetic on `dtype` is done."""
    return F32 if dtype in (F16, BF16) or (dtype.is_float and dtype.bits < 16) else dtype


def widen(value: Expr) -> Expr:
    """The Expr in the dtype that arithmetic on it uses."""
    return cast(value, wide_dtype(value.dtype))


# Sample arrays.

SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 0.5, 2.5, -1.5, 1e-30, 80.0, -100.0], dtype=np.float32
)


def normal(rng: Any, *shape: int, dtype: Any = np.float32, scale: float = 2.0) -> Array:
    """Normally distributed floats."""
    return np.asarray(rng.normal(0.0, scale, shape)).astype(dtype)


def integers(rng: Any, *shape: int, lo: int = -9, hi: int = 10, dtype: Any = np.int64) -> Array:
    """Uniform integers lo <= i < hi."""
    return np.asarray(rng.integers(lo, hi, shape)).astype(dtype)


def booleans(rng: Any, *shape: int) -> Array:
    """Fair coins."""
    return np.asarray(rng.integers(0, 2, shape)).astype(np.bool_)
