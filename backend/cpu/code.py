"""Text of C under construction: an indented writer, C literals, and the integer arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from aot.backend.lines import Integers, Lines
from aot.dtypes import BF16, F8E4M3, F8E5M2, F16, F32, F64, I64, DType
from aot.errors import TargetError


class Code(Lines):
    """C under construction."""

    @contextmanager
    def block(self, header: str = "") -> Iterator[None]:
        """`header {` … `}` around what is written inside."""
        self.line(f"{header} {{" if header else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")


class DimTable(Integers):
    """The integer arguments, as constant locals of type i64."""

    def literal(self, value: int) -> str:
        return literal(value, I64)

    def declarations(self) -> list[str]:
        """The lines that load the arguments; call when the body is complete."""
        return [f"const i64 {name} = args->dims[{i}]; /* {dim} */" for i, (dim, name) in enumerate(self._names.items())]


def literal(value: int | float | bool, dtype: DType) -> str:
    """A C constant expression of the register type of `dtype`."""
    if dtype.is_bool:
        return "1" if value else "0"
    if dtype.is_integer:
        number = int(value)
        if dtype.name == "u64":
            return f"{number}ULL"
        if dtype.name == "u32":
            return f"{number}U"
        if dtype == I64:
            return (
                "(-9223372036854775807LL - 1)"
                if number == -(1 << 63)
                else f"{number}LL"
                if abs(number) >= 1 << 31
                else str(number)
            )
        return "(-2147483647 - 1)" if number == -(1 << 31) else str(number)
    wide = dtype == F64
    suffix = "" if wide else "f"
    number_ = float(value)
    if not wide:
        with np.errstate(all="ignore"):
            number_ = float(np.asarray(number_).astype(dtype.numpy))
    if math.isnan(number_):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(number_):
        return f"{'-' if number_ < 0 else ''}__builtin_inf{suffix}()"
    return f"{number_.hex()}{suffix}"


NARROW_FLOATS: Mapping[DType, str] = {F16: "u16", BF16: "u16", F8E4M3: "u8", F8E5M2: "u8"}
"""Floats that are computed in f32, and what holds them in memory."""

PLAIN = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64")


def memory_type(dtype: DType) -> str:
    """The C type of an element in memory."""
    if dtype.is_bool:
        return "u8"
    if dtype in NARROW_FLOATS:
        return NARROW_FLOATS[dtype]
    if dtype.name in PLAIN:
        return dtype.name
    raise TargetError(
        f"the CPU backend has no code for elements of type {dtype.name}", hint="Cast to f32 in the model."
    )


def register_dtype(dtype: DType) -> DType:
    """The dtype in which values are computed: narrower floats in f32, rounded when stored or cast."""
    memory_type(dtype)
    return F32 if dtype in NARROW_FLOATS else dtype


def register_type(dtype: DType) -> str:
    """The C type of a value outside vectors; a truth value is an i32, 0 or 1."""
    return "i32" if dtype.is_bool else register_dtype(dtype).name


def vector_type(dtype: DType) -> str:
    """The C type of a block of values; truth values are i32 lanes, 0 or -1."""
    return f"v_{register_type(dtype)}"
