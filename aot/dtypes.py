"""The table of element types: one row each, and what follows from it.

`number` is the id in artifacts and in the C API and never changes. `dlpack` is DLPack's (code,
bits). numpy has no bfloat16, float8 or 4-bit types, so those rows name their ml_dtypes type.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from aot.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: `bits` wide, of `family` bool, int, uint, float or complex."""

    name: str
    number: int
    bits: int
    family: str
    dlpack: tuple[int, int]
    numpy_name: str
    c_name: str

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    @property
    def is_float(self) -> bool:
        return self.family == "float"

    @property
    def is_integer(self) -> bool:
        return self.family in ("int", "uint")

    @property
    def is_bool(self) -> bool:
        return self.family == "bool"

    @property
    def itemsize_bytes(self) -> int:
        """Bytes of one element; a 4-bit element counts as one byte until it is packed."""
        return max(self.bits // 8, 1)

    @property
    def numpy(self) -> np.dtype[Any]:
        return _numpy_dtype(self.numpy_name)


@cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found


BOOL = DType("bool", 1, 8, "bool", (6, 8), "bool", "uint8_t")
I8 = DType("i8", 2, 8, "int", (0, 8), "int8", "int8_t")
I16 = DType("i16", 3, 16, "int", (0, 16), "int16", "int16_t")
I32 = DType("i32", 4, 32, "int", (0, 32), "int32", "int32_t")
I64 = DType("i64", 5, 64, "int", (0, 64), "int64", "int64_t")
U8 = DType("u8", 6, 8, "uint", (1, 8), "uint8", "uint8_t")
U16 = DType("u16", 7, 16, "uint", (1, 16), "uint16", "uint16_t")
U32 = DType("u32", 8, 32, "uint", (1, 32), "uint32", "uint32_t")
U64 = DType("u64", 9, 64, "uint", (1, 64), "uint64", "uint64_t")
F16 = DType("f16", 10, 16, "float", (2, 16), "float16", "_Float16")
BF16 = DType("bf16", 11, 16, "float", (4, 16), "bfloat16", "uint16_t")
F32 = DType("f32", 12, 32, "float", (2, 32), "float32", "float")
F64 = DType("f64", 13, 64, "float", (2, 64), "float64", "double")
F8E4M3 = DType("f8e4m3", 14, 8, "float", (10, 8), "float8_e4m3fn", "uint8_t")
F8E5M2 = DType("f8e5m2", 15, 8, "float", (12, 8), "float8_e5m2", "uint8_t")
I4 = DType("i4", 16, 4, "int", (0, 4), "int4", "uint8_t")
U4 = DType("u4", 17, 4, "uint", (1, 4), "uint4", "uint8_t")

ALL = (BOOL, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64, F8E4M3, F8E5M2, I4, U4)
BY_NAME = {dtype.name: dtype for dtype in ALL}
BY_NUMBER = {dtype.number: dtype for dtype in ALL}
_BY_NUMPY_NAME = {dtype.numpy_name: dtype for dtype in ALL}


def from_numpy(dtype: Any) -> DType:
    """The DType of a numpy (or ml_dtypes) dtype; raises UnsupportedError for strings and objects."""
    name = np.dtype(dtype).name
    if name not in _BY_NUMPY_NAME:
        raise UnsupportedError(
            f"no element type for numpy dtype {name!r}", hint="Convert the array to a numeric dtype."
        )
    return _BY_NUMPY_NAME[name]
