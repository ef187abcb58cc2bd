"""The table of ONNX converters, and what a converter sees of its node.

A converter is one function per ONNX op; it reads operands and attributes through `Context`, appends
ops to the builder and returns the results. Ops whose OpDef names them in `onnx` need none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto

from aot import dtypes
from aot.dims import Dim, DimExpr
from aot.dtypes import DType
from aot.errors import ModelError, UnsupportedError
from aot.frontend.known import KnownBuilder
from aot.frontend.known_scalars import is_symbolic
from aot.frontend.onnx_model import attribute_value, dtype_of, tensor_const
from aot.frontend.shaping import Constructions
from aot.ir import Array, Const, Value
from aot.ops.opdef import normalize_axis


@dataclass(frozen=True)
class TensorList:
    """A sequence whose length is known when building."""

    items: tuple[Value, ...]


@dataclass(frozen=True)
class Stack:
    """A sequence of tensors of one shape whose length only the run knows: they lie along axis 0 of one tensor."""

    tensor: Value


@dataclass(frozen=True)
class Absent:
    """An optional without an element."""


Operand = Value | TensorList | Stack | Absent
Result = Value | Sequence[Operand | None]
Converter = Callable[["Context"], Result]

CONVERTERS: dict[tuple[str, str], Converter] = {}


class UseFunctionBody(Exception):
    """A converter declines this form of its op; the op's ONNX function body is imported instead."""


def onnx_op(*names: str, domain: str = "") -> Callable[[Converter], Converter]:
    """Registers a converter for ONNX ops."""

    def add(converter: Converter) -> Converter:
        for name in names:
            assert (domain, name) not in CONVERTERS, name
            CONVERTERS[domain, name] = converter
        return converter

    return add


@dataclass
class Context(Constructions):
    """One node being converted. `builder` takes the new ops; `opset` is the version of the node's domain."""

    node: NodeProto
    where: str
    builder: KnownBuilder
    opset: int
    inputs: Sequence[Operand | None]
    attributes: Mapping[str, AttributeProto]
    folder: Path | None
    notes: list[tuple[str, str]] = field(default_factory=list)

    @property
    def op_type(self) -> str:
        return str(self.node.op_type)

    @property
    def count(self) -> int:
        """How many operands are given, trailing omitted ones not counted."""
        return len(self.inputs)

    @property
    def outputs(self) -> int:
        """How many results are declared."""
        return len(self.node.output)

    def wants(self, index: int) -> bool:
        """Whether a result is named, so that something may read it."""
        return index < len(self.node.output) and bool(self.node.output[index])

    # Faults

    def fail(self, reason: str, hint: str = "") -> NoReturn:
        """The node contradicts the ONNX specification."""
        raise ModelError(reason, where=self.where, hint=hint)

    def unsupported(self, reason: str, hint: str = "") -> NoReturn:
        """The node is well formed, but this version cannot compile it."""
        raise UnsupportedError(reason, where=self.where, hint=hint)

    def note(self, text: str) -> None:
        """Something that the user should know of what was imported; becomes a warning."""
        self.notes.append((text, self.where))

    # Operands

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def operand(self, index: int) -> Operand | None:
        """An operand of any kind; None for one that is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def optional(self, index: int) -> Value | None:
        operand = self.operand(index)
        if isinstance(operand, TensorList | Stack | Absent):
            kind = "an optional" if isinstance(operand, Absent) else "a sequence"
            self.unsupported(f"{kind} as operand {index}, where the op takes a tensor")
        return operand

    @property
    def tensors(self) -> list[Value | None]:
        """All operands, which must be tensors or omitted."""
        return [self.optional(index) for index in range(len(self.inputs))]

    def input(self, index: int) -> Value:
        value = self.optional(index)
        if value is None:
            self.fail(f"operand {index} is missing")
        return value

    def rank(self, index: int = 0) -> int:
        return self.input(index).type.rank

    def shape(self, index: int = 0) -> tuple[Dim, ...]:
        return self.input(index).type.shape

    def dtype(self, index: int = 0) -> DType:
        return self.input(index).type.dtype

    def known(self, index: int) -> Array | None:
        """The contents of an operand as an object array, where they are known when building."""
        value = self.optional(index)
        return None if value is None else self.builder.known(value)

    def need_known(self, index: int, what: str) -> Array:
        """The contents of an operand that must be known when building."""
        contents = self.known(index)
        if contents is None:
            value = self.input(index)
            if value in self.builder.inputs:
                name = value.name
                self.unsupported(f"{what} is the input {name!r}; give its value when building: --set {name}=VALUE")
            hint = "Make it a constant, or a function of input shapes; onnx-simplifier or the exporter can do this."
            self.unsupported(f"{what} depends on data that is only known when running", hint)
        return contents

    def dims(self, index: int, what: str) -> tuple[Dim, ...]:
        """A rank-1 (or scalar) integer operand as dims; what data gives is read when the program runs."""
        value = self.input(index)
        contents = self.builder.read_sizes(value) if value.type.rank <= 1 else None
        return self._integers(self.need_known(index, what) if contents is None else contents, what)

    def _integers(self, contents: Array, what: str) -> tuple[Dim, ...]:
        if contents.ndim > 1:
            self.fail(f"{what} must have rank 1; it has rank {contents.ndim}")
        for element in contents.flat:
            if isinstance(element, bool) or not isinstance(element, int | DimExpr):
                self.fail(f"{what} must hold integers")
        return tuple(contents.flat)

    def ints(self, index: int, what: str) -> tuple[int, ...]:
        """A rank-1 (or scalar) integer operand as plain numbers."""
        dims = self._integers(self.need_known(index, what), what)
        numbers = tuple(dim for dim in dims if isinstance(dim, int))
        if len(numbers) != len(dims):
            self.unsupported(f"{what} depends on the sizes of inputs")
        return numbers

    def int_scalar(self, index: int, what: str) -> int:
        numbers = self.ints(index, what)
        if len(numbers) != 1:
            self.fail(f"{what} must be one number; it has {len(numbers)}")
        return numbers[0]

    def number(self, index: int, what: str) -> float:
        """A one-element operand that must be a plain number."""
        contents = self.need_known(index, what)
        if contents.size != 1:
            self.fail(f"{what} must be one number; it has {contents.size}")
        element = contents.flat[0]
        if is_symbolic(element):
            self.unsupported(f"{what} depends on the sizes of inputs")
        return float(element)

    def axis(self, axis: int, rank: int | None = None) -> int:
        """A non-negative axis of the first operand (or of a rank)."""
        return normalize_axis(axis, self.rank() if rank is None else rank)

    def axes(self, axes: Sequence[int], rank: int | None = None) -> tuple[int, ...]:
        """Non-negative axes, sorted; a repeated one is a fault."""
        found = tuple(sorted(self.axis(axis, rank) for axis in axes))
        if len(set(found)) != len(found):
            self.fail(f"axes {tuple(axes)} name one axis twice")
        return found

    # Attributes

    def _attribute(self, name: str, kinds: tuple[type, ...], default: Any, what: str) -> Any:
        if name not in self.attributes:
            if default is ...:
                self.fail(f"attribute {name!r} is missing")
            return default
        value = attribute_value(self.attributes[name], self.where)
        if not isinstance(value, kinds):
            self.fail(f"attribute {name!r} must be {what}")
        return value

    def has_attribute(self, name: str) -> bool:
        return name in self.attributes

    def int_attribute(self, name: str, default: int | Any = ...) -> int:
        return int(self._attribute(name, (int,), default, "an int"))

    def bool_attribute(self, name: str, default: bool) -> bool:
        return bool(self.int_attribute(name, int(default)))

    def float_attribute(self, name: str, default: float | Any = ...) -> float:
        """An f32 attribute as the shortest decimal that means the same f32, in double."""
        return shortest(self._attribute(name, (float,), default, "a float"))

    def text_attribute(self, name: str, default: str | Any = ...) -> str:
        return str(self._attribute(name, (str,), default, "a string"))

    def ints_attribute(self, name: str, default: Sequence[int] | Any = ...) -> tuple[int, ...]:
        value = self._attribute(name, (tuple,), default, "a list of ints")
        if any(not isinstance(item, int) for item in value):
            self.fail(f"attribute {name!r} must be a list of ints")
        return tuple(value)

    def floats_attribute(self, name: str, default: Sequence[float] | Any = ...) -> tuple[float, ...]:
        value = self._attribute(name, (tuple,), default, "a list of floats")
        if any(not isinstance(item, float) for item in value):
            self.fail(f"attribute {name!r} must be a list of floats")
        return tuple(map(shortest, value))

    def texts_attribute(self, name: str, default: Sequence[str] | Any = ...) -> tuple[str, ...]:
        value = self._attribute(name, (tuple,), default, "a list of strings")
        if any(not isinstance(item, str) for item in value):
            self.fail(f"attribute {name!r} must be a list of strings")
        return tuple(value)

    def tensor_attribute(self, name: str) -> Const | None:
        """A tensor attribute, or None."""
        value = self._attribute(name, (TensorProto,), None, "a tensor")
        return None if value is None else tensor_const(value, self.folder, f"{self.where} {name}")

    def dtype_attribute(self, name: str, default: DType | None = None) -> DType:
        """An attribute that numbers an ONNX element type."""
        if default is not None and name not in self.attributes:
            return default
        return dtype_of(self.int_attribute(name), self.where)

    # Small constructions

    def op(self, name: str, *inputs: Value | None, **attrs: Any) -> Value:
        """Appends an op of one result."""
        (result,) = self.builder.op(name, *inputs, **attrs)
        return result

    def dims_value(self, dims: Sequence[Dim], dtype: DType = dtypes.I64) -> Value:
        return self.builder.dims_value(dims, dtype)

    def dim_scalar(self, dim: Dim, dtype: DType) -> Value:
        """A size as a rank-0 tensor."""
        contents = np.empty((), dtype=object)
        contents[()] = float(dim) if dtype.is_float and isinstance(dim, int) else dim
        return self.builder.known_value(contents, dtype)

    def wide(self, value: Value) -> Value:
        """f16, bf16 and f8 values in f32; others as they are."""
        narrow = value.type.dtype.is_float and value.type.dtype.bits < 32
        return self.cast(value, dtypes.F32) if narrow else value


def shortest(number: float) -> float:
    """0.1f as 0.1: the double whose shortest f32 text is the same, so that dumps read as they were written."""
    return float(str(np.float32(number)))
