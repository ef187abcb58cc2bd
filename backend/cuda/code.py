"""Text of Triton kernels under construction: an indented writer, literals, types, the integer arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from aot.backend.lines import Integers, Lines
from aot.dims import Dim
from aot.dtypes import BF16, F8E4M3, F8E5M2, F16, F32, F64, DType
from aot.errors import TargetError
from aot.ir import TensorType


class Code(Lines):
    """Triton under construction."""

    indent = "    "

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """`header:` and what is written inside, one level deeper."""
        self.line(f"{header}:")
        self.depth += 1
        yield
        self.depth -= 1


DimTable = Integers

FLOAT8 = {F8E4M3: "tl.float8e4nv", F8E5M2: "tl.float8e5"}
"""The 8-bit floats as Triton calls them, where a device multiplies them. In memory they are bytes: no architecture
below 8.9 has the types."""

_NAMES = {
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32",
    "u64": "uint64", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "f8e4m3": "uint8",
    "f8e5m2": "uint8",
}  # fmt: skip
_POINTERS = {
    "bool": "*u8", "f8e4m3": "*u8", "f8e5m2": "*u8", "f16": "*fp16", "bf16": "*bf16", "f32": "*fp32", "f64": "*fp64",
    **{f"{sign}{bits}": f"*{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64)},
}  # fmt: skip


def split_places(code: Code, dims: DimTable, flat: str, extents: Sequence[Dim], prefix: str) -> list[str]:
    """Indices of axes from a flat position, the last fastest; writes their lines. `prefix` names them, by number."""
    names: list[str] = []
    rest = flat
    for axis in reversed(range(len(extents))):
        if axis == 0:
            names.insert(0, rest)
            break
        extent = dims.text(extents[axis])
        code.line(f"{prefix}{axis} = {rest} % {extent}")
        code.line(f"{prefix}{axis}_left = {rest} // {extent}")
        names.insert(0, f"{prefix}{axis}")
        rest = f"{prefix}{axis}_left"
    return names


def offset_at(dims: DimTable, type_: TensorType, places: Sequence[str], zeros: str) -> str:
    """Elements from a tensor's pointer to the indices given as texts; `zeros` has the shape of the result."""
    terms = [dims.text(type_.origin_elements)] if type_.origin_elements != 0 else []
    for place, stride, extent in zip(places, type_.strides, type_.shape, strict=True):
        if place != "0" and stride != 0 and extent != 1:  # the stride of a single place means nothing
            terms.append(f"({place})" if stride == 1 else f"({place}) * {dims.text(stride)}")
    return " + ".join([*terms, zeros])


def has_type(dtype: DType) -> bool:
    """Whether kernels read and write elements of a type."""
    return dtype.is_bool or dtype.name in _NAMES


def memory_type(dtype: DType) -> str:
    """The Triton type of an element in memory; truth values and floats of 8 bits are bytes."""
    if dtype.is_bool:
        return "tl.uint8"
    if dtype.name in _NAMES:
        return f"tl.{_NAMES[dtype.name]}"
    raise TargetError(
        f"the CUDA backend has no code for elements of type {dtype.name}", hint="Cast to f16 or f32 in the model."
    )


def pointer_type(dtype: DType) -> str:
    """The type of a pointer argument, as Triton's signatures spell it."""
    memory_type(dtype)
    return _POINTERS[dtype.name]


def register_dtype(dtype: DType) -> DType:
    """The dtype in which values are computed: floats of 16 and 8 bits in f32, rounded when stored or cast."""
    return F32 if dtype in (F16, BF16, *FLOAT8) else dtype


def register_type(dtype: DType) -> str:
    """The Triton type of a value in registers."""
    return "tl.int1" if dtype.is_bool else memory_type(register_dtype(dtype))


def literal(value: int | float | bool, dtype: DType) -> str:
    """A constant of the register type of `dtype`."""
    if dtype.is_bool:
        return f"tl.full((), {1 if value else 0}, tl.int1)"
    if dtype.is_integer:
        return str(int(value)) if dtype.name == "i32" else f"tl.full((), {int(value)}, {memory_type(dtype)})"
    number = float(value)
    if dtype != F64:
        with np.errstate(all="ignore"):
            number = float(np.asarray(number).astype(dtype.numpy))
    text = repr(number) if math.isfinite(number) else f'float("{number}")'
    return f"tl.full((), {text}, tl.float64)" if dtype == F64 else text
