"""Text of Triton kernels under construction: an indented writer, literals, types, the integer arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from aot import dims as dimension
from aot.dims import Dim
from aot.dtypes import BF16, F16, F32, F64, DType
from aot.errors import TargetError

INDENT = "    "


class Code:
    """Lines at a depth. `fragment()` leaves a place that can be written to later."""

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self._items: list[str | Code] = []

    def line(self, text: str) -> None:
        self._items.append(INDENT * self.depth + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """`header:` and what is written inside, one level deeper."""
        self.line(f"{header}:")
        self.depth += 1
        yield
        self.depth -= 1

    def fragment(self) -> Code:
        """A writer whose lines come here, before everything that is written to this one later."""
        inner = Code(self.depth)
        self._items.append(inner)
        return inner

    def text(self) -> str:
        return "".join(item.text() if isinstance(item, Code) else item + "\n" for item in self._items)


class DimTable:
    """The integer arguments of a kernel. `dims` are what the caller passes, in this order."""

    def __init__(self) -> None:
        self._names: dict[Dim, str] = {}

    @property
    def dims(self) -> tuple[Dim, ...]:
        return tuple(self._names)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names.values())

    def text(self, dim: Dim) -> str:
        """An integer literal, or the name of an argument (times what divides every coefficient)."""
        if isinstance(dim, int):
            return str(dim)
        terms, constant = dimension.terms_of(dim)
        common = math.gcd(constant, *(coefficient for _, coefficient in terms))
        if common > 1:
            inner = dimension.exact_div(dim, common)
            if inner is not None:
                return f"({self.text(inner)} * {common})"
        return self._names.setdefault(dim, f"n{len(self._names)}")


_NAMES = {
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32",
    "u64": "uint64", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
}  # fmt: skip
_POINTERS = {
    "bool": "*u8", "f16": "*fp16", "bf16": "*bf16", "f32": "*fp32", "f64": "*fp64",
    **{f"{sign}{bits}": f"*{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64)},
}  # fmt: skip


def memory_type(dtype: DType) -> str:
    """The Triton type of an element in memory; truth values are bytes."""
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
    """The dtype in which values are computed: 16-bit floats in f32, rounded when stored or cast."""
    return F32 if dtype in (F16, BF16) else dtype


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
