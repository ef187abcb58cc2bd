"""The table of ATen converters, and what a converter sees of its node.

A converter is one function per ATen op, for one or several overloads; it reads arguments by their names in the
op's schema through `Context`, appends ops to the builder and returns the results. Ops whose OpDef names them in
`aten` need none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from aot import dtypes
from aot.dims import Dim, DimExpr
from aot.dtypes import DType
from aot.errors import ModelError, UnsupportedError
from aot.frontend.known import KnownBuilder
from aot.frontend.shaping import Constructions
from aot.ir import Array, Value
from aot.ops.opdef import normalize_axis, same_extent

Result = Value | Sequence[Any]
Converter = Callable[["Context"], Result]

CONVERTERS: dict[str, Converter] = {}
HIGHER_ORDER: dict[str, Callable[..., Any]] = {}  # ops whose operands are graphs: (importer, node, arguments)
# Checks of the tracer, without a meaning in a compiled program; sizes are checked as guards.
DROPPED = frozenset(
    {
        "_assert_tensor_metadata.default", "_linalg_check_errors.default", "_print.default",
        "sym_constrain_range.default", "sym_constrain_range_for_size.default",
    }
)  # fmt: skip

_DTYPES: Mapping[str, DType] = {
    "bool": dtypes.BOOL, "uint8": dtypes.U8, "int8": dtypes.I8, "int16": dtypes.I16, "int32": dtypes.I32,
    "int64": dtypes.I64, "uint16": dtypes.U16, "uint32": dtypes.U32, "uint64": dtypes.U64, "float16": dtypes.F16,
    "bfloat16": dtypes.BF16, "float32": dtypes.F32, "float64": dtypes.F64,
    "float8_e4m3fn": dtypes.F8E4M3, "float8_e5m2": dtypes.F8E5M2,
}  # fmt: skip


def aten_op(*names: str) -> Callable[[Converter], Converter]:
    """Registers a converter: "add.Tensor" is one overload of aten::add, "add" every overload without its own."""

    def add(converter: Converter) -> Converter:
        for name in names:
            assert name not in CONVERTERS, name
            CONVERTERS[name] = converter
        return converter

    return add


def converter_of(name: str) -> Converter | None:
    """The converter of "add.Tensor": its own, or that of all overloads."""
    return CONVERTERS.get(name) or CONVERTERS.get(name.partition(".")[0])


def same_size(left: Dim, right: Dim) -> None:
    """Raises DimMismatch where two sizes are not known to be equal."""
    same_extent(left, right, "sizes that must be equal")


def dtype_of(torch_dtype: Any, where: str = "") -> DType:
    """The element type of a torch.dtype. Raises UnsupportedError for one that artifacts do not have."""
    name = str(torch_dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise UnsupportedError(f"tensors of {name}", where=where)
    return _DTYPES[name]


@dataclass
class Context(Constructions):
    """One node being converted.

    `op` is the overload, such as "add.Tensor". `arguments` are the node's, by schema name, defaults filled in:
    Values, sizes (ints and Dims), plain Python numbers, strings, None, torch.dtype objects, and lists of these.
    `results` are torch's own (fake) results: their dtype and rank are what the converter has to give. `used` holds
    the numbers of those that are read; the others may be None. `agree` takes two sizes that torch says are equal to
    be so (see aot.frontend.torch_extents).
    """

    op: str
    where: str
    builder: KnownBuilder
    arguments: Mapping[str, Any]
    results: Any
    notes: list[str] = field(default_factory=list)
    used: frozenset[int] = frozenset()
    agree: Callable[[Dim, Dim], None] = same_size

    # Faults

    def fail(self, reason: str, hint: str = "") -> NoReturn:
        """The node contradicts the meaning of its op."""
        raise ModelError(reason, where=self.where, hint=hint)

    def unsupported(self, reason: str, hint: str = "") -> NoReturn:
        """The node is well formed, but this version cannot compile it."""
        raise UnsupportedError(reason, where=self.where, hint=hint)

    # Arguments

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def has(self, name: str) -> bool:
        """Whether the argument is given and not None."""
        return self.arguments.get(name) is not None

    def tensor(self, name: str) -> Value:
        """A tensor argument; a number becomes a rank-0 constant of the result's type."""
        value = self.arguments[name]
        return value if isinstance(value, Value) else self.number_value(value, self.dtype)

    def optional(self, name: str) -> Value | None:
        value = self.arguments.get(name)
        return value if isinstance(value, Value) else None

    def tensors(self, name: str) -> list[Value]:
        """A list of tensors."""
        return [value for value in self.arguments[name] if isinstance(value, Value)]

    def integer(self, name: str) -> int:
        """An integer that must be known when building."""
        value = self.arguments[name]
        if isinstance(value, DimExpr):
            self.unsupported(f"{name} depends on the sizes of inputs")
        return int(value)

    def ints(self, name: str) -> tuple[int, ...]:
        values = self.arguments[name]
        values = values if isinstance(values, list | tuple) else [values]
        if any(isinstance(value, DimExpr) for value in values):
            self.unsupported(f"{name} depends on the sizes of inputs")
        return tuple(int(value) for value in values)

    def size(self, name: str) -> Dim:
        """A size, which may be symbolic."""
        value = self.arguments[name]
        return value if isinstance(value, DimExpr) else int(value)

    def sizes(self, name: str) -> tuple[Dim, ...]:
        return tuple(value if isinstance(value, DimExpr) else int(value) for value in self.arguments[name])

    def number(self, name: str, default: float | None = None) -> float:
        """A number that must be known when building."""
        value = self.arguments.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, Value | DimExpr) or value is None:
            self.unsupported(f"{name} is only known when running")
        return float(value)

    def flag(self, name: str) -> bool:
        return bool(self.arguments.get(name))

    def text(self, name: str, default: str = "") -> str:
        value = self.arguments.get(name)
        return default if value is None else str(value)

    def axis(self, name: str, rank: int) -> int:
        """A non-negative axis."""
        return normalize_axis(self.integer(name), rank)

    def axes(self, name: str, rank: int) -> tuple[int, ...]:
        """Non-negative axes, sorted; all of them where the argument is None or empty."""
        given = self.arguments.get(name)
        if given is None or (isinstance(given, list | tuple) and not given):
            return tuple(range(rank))
        found = tuple(sorted({normalize_axis(axis, rank) for axis in self.ints(name)})) if rank else ()
        return found

    # Types

    def result(self, number: int = 0) -> Any:
        """Torch's fake tensor for a result."""
        return self.results[number] if isinstance(self.results, list | tuple) else self.results

    @property
    def dtype(self) -> DType:
        """The element type of the first result."""
        return dtype_of(self.result().dtype, self.where)

    # Small constructions

    def op_(self, name: str, *inputs: Value | None, **attrs: Any) -> Value:
        """Appends an op of one result."""
        (made,) = self.builder.op(name, *inputs, **attrs)
        return made

    def number_value(self, number: Any, dtype: DType) -> Value:
        """A Python number, a size, or a number that is known when running, as a rank-0 tensor.

        Whole numbers wrap around as torch's do.
        """
        if isinstance(number, Value):
            return self.cast(number, dtype)
        if isinstance(number, DimExpr):
            contents: Array = np.empty((), dtype=object)
            contents[()] = number
            return self.builder.known_value(contents, dtype)
        if dtype.is_bool:
            number = bool(number)
        elif not dtype.is_float:
            low = -(1 << (dtype.bits - 1)) if dtype.family == "int" else 0
            number = (int(number) - low) % (1 << dtype.bits) + low
        return self.builder.scalar(number, dtype)
