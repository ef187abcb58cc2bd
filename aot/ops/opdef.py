"""OpDef: everything that the compiler knows of an op, in one entry; and the registry of them.

From one entry follow shape inference, constant folding, the reference interpreter, generated code
inside any fused loop, ONNX import, the text form, and the op's rows in the generic tests.
Backends implement kinds, not ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from aot.dims import Dim
from aot.errors import CompilerError, ModelError
from aot.expr import Expr
from aot.ir import NO_ATTRS, Array, Attr, TensorType, Value
from aot.kernel import Kind as Kind

if TYPE_CHECKING:
    from aot.builder import Builder

Attrs = Mapping[str, Attr]


class OpError(ModelError):
    """An op cannot take these inputs; the text is the reason."""


class DimMismatch(OpError):
    """Two extents must be equal and are not known to be. `left` and `right` are the dims."""

    def __init__(self, message: str, left: Dim, right: Dim) -> None:
        super().__init__(message)
        self.left = left
        self.right = right


class Source(Protocol):
    """An operand as an `access` rule sees it: a type, and its element at an index."""

    @property
    def type(self) -> TensorType: ...

    def at(self, indices: Sequence[Expr]) -> Expr:
        """The element at in-range logical indices (i64 Exprs)."""
        ...

    def at_if(self, guard: Expr, indices: Sequence[Expr], fill: Expr) -> Expr:
        """The element where `guard` holds; `fill` elsewhere, without reading."""
        ...


@dataclass(frozen=True, slots=True)
class AttrSpec:
    """One attribute. `type` is int, float, str, bool, dtype, ints, floats, dim or dims."""

    type: str
    default: Attr | None = None  # None: must be given
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One generated test of an op: numpy operands, attributes, and the tolerance to hold."""

    operands: tuple[Array | None, ...]
    attrs: Attrs = field(default_factory=lambda: NO_ATTRS)
    relative: float = 1e-5
    absolute: float = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSource:
    """An op's kernel as source text for one backend. docs/custom_operators.md is its contract.

    text: the source, or a function (attrs, *operand types) -> source. function: the one to call.
    scratch_bytes: memory of each thread, or a function (attrs, *operand types) -> Dim.
    row_major: operands and results are dense and row-major; else their strides say where elements lie.
    programs, warps: of a launch on a GPU: how many programs, or a function (attrs, *operand types) -> Dim, and the
        warps of each.
    """

    text: str | Callable[..., str]
    function: str
    scratch_bytes: Dim | Callable[..., Dim] = 0
    row_major: bool = True
    programs: Dim | Callable[..., Dim] = 1
    warps: int = 4


InferFn = Callable[..., "TensorType | tuple[TensorType, ...]"]  # (attrs, *input types)
BodyFn = Callable[..., Expr]  # (attrs, *operand Exprs) -> Expr; MAP
AccessFn = Callable[[Attrs, Sequence["Source | None"], TensorType, Sequence[Expr]], Expr]
ReferenceFn = Callable[..., Any]  # (attrs, *arrays) -> array or tuple of arrays
DecomposeFn = Callable[["Builder", Attrs, Sequence["Value | None"]], "tuple[Value, ...]"]
SamplesFn = Callable[[Any], Sequence[Sample]]  # (numpy Generator) -> samples


@dataclass(frozen=True, slots=True, kw_only=True)
class OpDef:
    """One op.

    inputs: names; "x?" is optional, "*xs" takes all that remain.
    infer: (attrs, *types) -> result type(s), row-major; raises OpError with the reason.
    body: MAP: the scalar meaning, (attrs, *operand Exprs) -> Expr. Operands broadcast; those whose
        dtypes must agree are cast by the frontend, not here.
    access: VIEW and GATHER: the result's element at an index, in terms of the operands' elements.
    reduce: REDUCE: "sum", "max", "min", "prod", "argmax" or "argmin" over attrs["axes"].
    reference: numpy meaning; derived from `body` where there is one.
    decompose: into simpler ops. ROW ops are lowered through it, inside one kernel.
    cost_flops: scalar operations per output element (MAP) or per inner step; for the cost model.
    onnx: names of ONNX ops that import 1:1 (same operands in the same order, no attributes to map).
    sources: OPAQUE: the kernel's text by backend, where the backend has no emitter of its own for the op.
    """

    name: str
    doc: str
    inputs: tuple[str, ...]
    kind: Kind
    infer: InferFn
    samples: SamplesFn
    attrs: Mapping[str, AttrSpec] = field(default_factory=dict)
    body: BodyFn | None = None
    access: AccessFn | None = None
    reduce: str = ""
    reference: ReferenceFn | None = None
    decompose: DecomposeFn | None = None
    cost_flops: int = 1
    onnx: tuple[str, ...] = ()
    aten: tuple[str, ...] = ()
    commutative: bool = False
    sources: Mapping[str, KernelSource] = field(default_factory=dict)

    @property
    def row_major(self) -> bool:
        """Whether its kernel reads and writes dense row-major tensors only."""
        return any(source.row_major for source in self.sources.values())

    def check_attrs(self, attrs: Attrs) -> Attrs:
        """The attributes with defaults filled in; raises OpError for unknown or missing ones."""
        for name in attrs:
            if name not in self.attrs:
                raise OpError(f"{self.name} has no attribute {name!r}; it has {sorted(self.attrs)}")
        filled: dict[str, Attr] = {}
        for name, spec in self.attrs.items():
            if name in attrs:
                filled[name] = attrs[name]
            elif spec.default is not None:
                filled[name] = spec.default
            else:
                raise OpError(f"{self.name} needs the attribute {name!r}")
        return MappingProxyType(filled)


CustomOps = Callable[[str], "OpDef | None"]
custom_ops: ContextVar[CustomOps | None] = ContextVar("custom_ops", default=None)
"""Finds the ops of users by name; None: those of installed packages. `aot.custom` sets it for a build."""


class OpTable(dict[str, OpDef]):
    """Ops by name. Holds and iterates over the built-in ones; looks others up where custom operators are.

    Names of custom operators have a dot in them, those of built-in ops have none.
    """

    def __missing__(self, name: str) -> OpDef:
        found = self._custom(name)
        if found is None:
            raise KeyError(name)
        return found

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or self._custom(name) is not None

    def get(self, name: str, default: OpDef | None = None) -> OpDef | None:  # type: ignore[override]
        return self[name] if name in self else default

    @staticmethod
    def _custom(name: object) -> OpDef | None:
        if not isinstance(name, str) or "." not in name:
            return None
        find = custom_ops.get()
        if find is None:
            from aot.custom import Operators  # it imports this module

            find = Operators().definition
        return find(name)


OPS = OpTable()


def register(op: OpDef) -> OpDef:
    """Adds an op to the table; a second op of the same name is an error."""
    if op.name in OPS:
        raise CompilerError(f"op {op.name!r} is defined twice")
    OPS[op.name] = op
    return op


def infer(name: str, attrs: Attrs, types: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
    """Result types of an op. Raises OpError with the reason, CompilerError for an unknown op."""
    if name not in OPS:
        raise CompilerError(f"unknown op {name!r}")
    op = OPS[name]
    required = sum(not n.endswith("?") and not n.startswith("*") for n in op.inputs)
    variadic = any(n.startswith("*") for n in op.inputs)
    if len(types) < required or (not variadic and len(types) > len(op.inputs)):
        raise OpError(f"{name} takes {', '.join(op.inputs)}; got {len(types)} operands")
    for given, declared in zip(types, op.inputs, strict=False):
        if given is None and not declared.endswith("?"):
            raise OpError(f"{name} needs its operand {declared!r}")
    result = op.infer(op.check_attrs(attrs), *types)
    return result if isinstance(result, tuple) else (result,)


def same_extent(left: Dim, right: Dim, what: str) -> Dim:
    """The common extent; raises DimMismatch, naming `what`, where they are not known to be equal."""
    if left == right:
        return left
    raise DimMismatch(f"{what}: {left} and {right} differ", left, right)


def broadcast_shapes(*shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """numpy's broadcasting over symbolic shapes."""
    rank = max(map(len, shapes), default=0)
    result: list[Dim] = []
    for position in range(rank):
        extent: Dim = 1
        for shape in shapes:
            index = position - (rank - len(shape))
            if index < 0 or shape[index] == 1:
                continue
            extent = shape[index] if extent == 1 else same_extent(extent, shape[index], f"broadcast on axis {position}")
        result.append(extent)
    return tuple(result)


def normalize_axis(axis: int, rank: int) -> int:
    """A non-negative axis; raises OpError when out of range. Rank 0 counts as one axis, as in numpy."""
    if not -max(rank, 1) <= axis < max(rank, 1):
        raise OpError(f"axis {axis} is out of range for rank {rank}")
    return axis % rank if rank else 0
