"""Expressions as Triton.

A `Scope` is a place in the code where loop axes have values. Its values are blocks that broadcast against each
other: an axis of a tile's first dimension is a column, one of its second a row, and an axis of a serial loop a
single number. `value()` writes what an expression needs and returns its name; equal subexpressions are written once.

Indices are 32-bit where every operand is known to be smaller than 2^31 elements, else 64-bit. What is read from
tensors keeps its own type until it is an index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aot import dims as dimension
from aot.backend.affine import Affine, affine_of
from aot.backend.cuda.code import FLOAT8, Code, DimTable, literal, memory_type, register_dtype
from aot.backend.cuda.functions import bounded_byte, bounded_float8, call, convert, encoded, scaled
from aot.backend.nest import free_axes
from aot.dtypes import BF16, F8E4M3, F16, I8, I64, U8, DType
from aot.errors import CompilerError
from aot.expr import Expr, walk
from aot.kernel import Kernel, Store
from aot.ops.quantized import FLOAT8_MOST

BYTES = (I8, U8)
"""Integers that tensor cores multiply."""

LARGEST_INDEX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class TileDim:
    """One dimension of a tile: the axes that it counts, and which of its places are inside (None: all)."""

    axes: frozenset[int]
    mask: str | None


class Renderer:
    """Renders one kernel whose operands are flat (see aot.backend.nest.flatten)."""

    def __init__(self, kernel: Kernel, dims: DimTable, code: Code) -> None:
        self.kernel = kernel
        self.dims = dims
        self.code = code
        self._names = 0
        sizes = [dimension.bounds(o.type.elements)[1] for o in (*kernel.inputs, *kernel.outputs)]
        sizes += [dimension.bounds(axis.extent)[1] for axis in kernel.axes]
        self.is_narrow = all(o.type.dtype in (F16, BF16) for o in kernel.outputs)
        self.bits = max(map(_rounded_bits, kernel.stores), default=32)
        self.bare = frozenset(_bare(kernel.stores)) if self.bits == 8 else frozenset()
        self.is_wide = any(size > LARGEST_INDEX for size in sizes)
        self.index_type = "tl.int64" if self.is_wide else "tl.int32"

    def name(self, prefix: str = "t") -> str:
        """A fresh identifier."""
        self._names += 1
        return f"{prefix}{self._names}"

    def index(self, text: str) -> str:
        """A 32-bit number of a launch as an index."""
        return f"({text} + tl.full((), 0, tl.int64))" if self.is_wide else text


class Scope:
    """See the module. `axes`: the texts of the axes that get a value here; `dims`: the dimensions of the tile."""

    def __init__(
        self,
        renderer: Renderer,
        axes: Mapping[int, str],
        dims: Sequence[TileDim],
        shape: str,
        parent: Scope | None = None,
        roots: Mapping[int, str] | None = None,
    ) -> None:
        self.renderer = renderer
        self.axes = dict(axes)
        self.dims = tuple(dims)
        self.shape = shape  # of a whole block, as text
        self.parent = parent
        self.one = "(1,)" if len(self.dims) < 2 and shape.count(",") < 2 and shape.endswith(",)") else "(1, 1)"
        self.roots = dict(roots or {})
        self._done: dict[Expr, str] = {}
        self._indices: dict[Expr, str] = {}

    def inner(self, axes: Mapping[int, str], dims: Sequence[TileDim] | None = None, shape: str | None = None) -> Scope:
        """A scope inside this one: more axes have values, or the tile has another dimension."""
        return Scope(self.renderer, axes, self.dims if dims is None else dims, shape or self.shape, self)

    def bind(self, expr: Expr, name: str) -> None:
        """Says that `name` holds an expression's value from here on."""
        self._done[expr] = name

    def _find(self, expr: Expr, indices: bool) -> str | None:
        scope: Scope | None = self
        while scope is not None:
            found = (scope._indices if indices else scope._done).get(expr)
            if found is not None:
                return found
            scope = scope.parent
        return None

    def _place_of(self, number: int) -> str | None:
        scope: Scope | None = self
        while scope is not None:
            if number in scope.axes:
                return scope.axes[number]
            scope = scope.parent
        return None

    def has_axis(self, number: int) -> bool:
        """Whether this scope or one around it defines an axis."""
        return self._place_of(number) is not None

    def axis_text(self, number: int) -> str:
        """The text of an axis that this scope or one around it defines."""
        found = self._place_of(number)
        if found is None:
            raise CompilerError(f"{self.renderer.kernel.name}: axis {number} has no value here")
        return found

    def is_known(self, expr: Expr) -> bool:
        """Whether a value was computed here or around."""
        return self._find(expr, False) is not None

    def _root(self, number: int) -> str:
        scope: Scope | None = self
        while scope is not None:
            if number in scope.roots:
                return scope.roots[number]
            scope = scope.parent
        raise CompilerError(f"{self.renderer.kernel.name}: its root has no value here")

    # Values.

    def value(self, expr: Expr) -> str:
        """The name (or literal) of an expression in its register type."""
        found = self._find(expr, False)
        if found is None:
            found = self._compute(expr)
            self._done[expr] = found
        return found

    def define(self, text: str, prefix: str = "t") -> str:
        """Writes `name = text` and returns the name."""
        name = self.renderer.name(prefix)
        self.renderer.code.line(f"{name} = {text}")
        return name

    def _compute(self, expr: Expr) -> str:
        if expr.op == "const":
            text = literal(expr.payload, register_dtype(expr.dtype))
            return text.replace("tl.full((),", f"tl.full({self.one},")
        if expr.op in ("axis", "dim"):
            return self.define(f"({self.index(expr)} + tl.zeros({self.one}, tl.int64))")
        if expr.op == "root":
            return self._root(expr.payload)
        if expr.op == "load":
            return self._load(expr)
        if expr.op in ("reduce", "arg"):
            raise CompilerError(f"{self.renderer.kernel.name}: {expr.op} has no value here")
        if expr.dtype == I64 and expr.op != "cast" and self._is_plain_index(expr):
            return self.define(f"({self.index(expr)} + tl.zeros({self.one}, tl.int64))")
        if expr.op in ("lt", "le", "gt", "ge", "eq", "ne") and all(map(self._is_plain_index, expr.args)):
            sign = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}[expr.op]
            left, right = self.index(expr.args[0]), self.index(expr.args[1])
            if not self._in_tile(expr):
                left = f"({left} + tl.zeros({self.one}, tl.int32))"
            return self.define(f"({left} {sign} {right})")
        quantized = bounded_byte(expr)
        if quantized is not None and not self.is_known(expr.args[0]):
            inner, zero = quantized
            return self.define(f"quantized_{'s8' if expr.dtype == I8 else 'u8'}({self._rounded(inner)}, {zero})")
        # What is computed of places alone decides what is read: no bit of it is spared.
        is_of_data = any(node.op in ("load", "root") for node in walk(expr))
        is_narrow, bits = self.renderer.is_narrow and is_of_data, self.renderer.bits if is_of_data else 32
        bits = max(bits, 16) if expr in self.renderer.bare else bits
        operands = [self._quantized(expr) or self.value(expr.args[0]), *map(self.value, expr.args[1:])]
        return self.define(call(expr, operands, is_narrow, min(bits, 16) if is_narrow else bits))

    def _quantized(self, expr: Expr) -> str | None:
        """The quotient that is rounded, or bounded, to make a quantized number of it; None of another expression."""
        is_bounded = expr.op == "min" and expr.args[1].op == "const" and expr.args[1].payload in FLOAT8_MOST.values()
        if self.renderer.is_narrow or not (expr.op == "round" or is_bounded) or self.is_known(expr.args[0]):
            return None
        inner = expr.args[0]
        text = scaled(inner, self.value(inner.args[0])) if inner.op == "div" else None
        return None if text is None else self.define(text)

    def _rounded(self, expr: Expr) -> str:
        """What is rounded to a quantized number, a block of the scope's rank."""
        text = scaled(expr, self.value(expr.args[0])) if expr.op == "div" and not self.is_known(expr) else None
        return self.define(f"({text or self.value(expr)} + tl.zeros({self.one}, tl.float32))")

    def _in_tile(self, expr: Expr) -> bool:
        """Whether an expression differs among the places of a tile: else it is a single number."""
        axes = free_axes(expr)
        return any(dim.axes & axes for dim in self.dims)

    # Indices.

    def _is_plain_index(self, expr: Expr) -> bool:
        """Whether an i64 expression is made of axes and extents alone, so that it fits the index type."""
        return expr.dtype == I64 and all(
            node.op in ("axis", "dim", "const", "add", "sub", "mul", "floordiv", "mod", "min", "max", "neg")
            for node in walk(expr)
        )

    def index(self, expr: Expr) -> str:
        """An i64 expression in the index type: a name, a literal, or a short text."""
        if expr.op == "const":
            return str(expr.payload)
        if expr.op == "dim":
            return self.renderer.dims.text(expr.payload)
        if expr.op == "axis":
            return self.axis_text(expr.payload)
        found = self._find(expr, True)
        if found is None:
            found = self.define(self._index_text(expr), "i")
            self._indices[expr] = found
        return found

    def _index_text(self, expr: Expr) -> str:
        if not self._is_plain_index(expr):
            return f"({self.value(expr)}).to({self.renderer.index_type})"
        if expr.op in ("add", "sub", "mul"):
            return self._sum_text(affine_of(expr), expr)
        operands = [self.index(a) for a in expr.args]
        if expr.op in ("floordiv", "mod"):
            if is_never_negative(expr.args[0]) and is_never_negative(expr.args[1]):
                return f"({operands[0]} {'//' if expr.op == 'floordiv' else '%'} {operands[1]})"
            return f"{expr.op}({', '.join(operands)})"
        if expr.op in ("min", "max"):
            return f"tl.{expr.op}imum({', '.join(operands)})"
        return f"(-{operands[0]})"

    def _sum_text(self, total: Affine, expr: Expr | None = None) -> str:
        dims = self.renderer.dims
        parts: list[str] = []
        for number, coefficient in sorted(total.coefficients.items()):
            text = self.axis_text(number)
            parts.append(text if coefficient == 1 else f"{text} * {dims.text(coefficient)}")
        for term, coefficient in total.rest:
            if term == expr:  # a product of two axes
                text = f"{self.index(term.args[0])} * {self.index(term.args[1])}"
            else:
                text = self.index(term)
            parts.append(text if coefficient == 1 else f"{text} * {dims.text(coefficient)}")
        if total.constant != 0 or not parts:
            parts.append(dims.text(total.constant))
        return f"({' + '.join(parts)})" if len(parts) > 1 else parts[0]

    def offset_text(self, offset: Expr) -> str:
        """The flat offset of an access, in elements."""
        return self._sum_text(affine_of(offset))

    # Memory.

    def mask_of(self, axes: frozenset[int]) -> str | None:
        """Which places of the tile are inside, as far as an access along these axes must know."""
        masks = [dim.mask for dim in self.dims if dim.mask is not None and dim.axes & axes]
        return " & ".join(dict.fromkeys(masks)) or None

    def product_operand(self, expr: Expr, dtype: DType) -> str:
        """A value as an operand of tl.dot: in its memory's type where that has 16 or 8 bits, which loads as it is."""
        if expr.op == "load" and expr.dtype == dtype and (register_dtype(dtype) != dtype or dtype in BYTES):
            if len(expr.args) == 1:
                return self.define(self._load_text(expr, [], FLOAT8.get(dtype)))
            if expr.args[1].op != "const" and (_is_zero(expr.args[2]) or _is_filled(expr)):
                return self.define(self._load_text(expr, [expr.args[1]], FLOAT8.get(dtype)))
        if dtype in FLOAT8:
            return self.define(f"{encoded(dtype, self.value(expr))}.to({FLOAT8[dtype]}, bitcast=True)")
        if expr.op == "const":
            return self.define(f"tl.full({self.one}, {self.value(expr)}, {memory_type(dtype)})")
        return self.define(f"({self.value(expr)}).to({memory_type(dtype)})")

    def _load(self, expr: Expr) -> str:
        operand = self.renderer.kernel.inputs[expr.payload]
        rest = expr.args[1:]
        guard = rest[0] if rest else None
        if guard is not None and guard.op == "const":
            if not guard.payload:
                return self.value(rest[1])
            guard = None
        place = self._load_text(expr, [] if guard is None else [guard])
        dtype = operand.type.dtype
        if dtype.is_bool:
            place = f"({place} != 0)"
        elif dtype in FLOAT8:
            place = f"decode_{dtype.name}({place})"
        elif register_dtype(dtype) != dtype:
            place = f"{place}.to(tl.float32)"
        if guard is not None and not _is_zero(rest[1]) and not _is_filled(expr):
            return self.define(f"tl.where({self.value(guard)}, {place}, {self.value(rest[1])})")
        return self.define(place)

    def _load_text(self, expr: Expr, guards: Sequence[Expr], held_as: str | None = None) -> str:
        """The load of an element that is read only where the guards hold; elsewhere the fill of integers, else 0.

        `held_as`: the Triton type of what the bytes are.
        """
        offset = expr.args[0]
        pointer = f"p{expr.payload}" if held_as is None else f"p{expr.payload}.to(tl.pointer_type({held_as}))"
        address = f"{pointer} + {self.offset_text(offset)}"
        if not self._in_tile(offset):  # a block of one: single truth values do not join blocks in the interpreter
            address += f" + tl.zeros({self.one}, tl.int32)"
        masks = [] if (mask := self.mask_of(free_axes(expr))) is None else [mask]
        for guard in guards:
            inside = self.value(guard)
            masks.append(f"({inside})" if masks else inside)
            if not free_axes(guard) <= free_axes(offset):  # an address is a block where its mask is one
                address += f" + 0 * ({inside}).to(tl.int32)"
        other = expr.args[2].payload if guards and _is_filled(expr) else 0 if held_as is None else 0.0
        return f"tl.load({address}, mask={' & '.join(masks)}, other={other})" if masks else f"tl.load({address})"

    def store(self, store: Store) -> None:
        """Writes one store of the kernel (flat: one index)."""
        kernel = self.renderer.kernel
        operand = kernel.outputs[store.output]
        is_rounded_here = store.value.op == "cast" and store.value.dtype in FLOAT8
        rounded = store.value.args[0] if is_rounded_here else store.value
        saturated = bounded_float8(rounded) if is_rounded_here and operand.type.dtype == F8E4M3 else None
        if saturated is not None and not self.is_known(rounded):
            value = self._rounded(saturated)
        else:
            value, saturated = self.value(rounded), None
        offset = store.indices[0]
        axes = free_axes(offset)
        address = f"p{len(kernel.inputs) + store.output} + {self.offset_text(offset)}"
        if not all(dim.axes & axes for dim in self.dims):
            address += f" + tl.zeros({self.shape}, tl.int32)"
        dtype = operand.type.dtype
        held = convert(store.value.dtype, dtype, value) if store.value.dtype != dtype else value
        if dtype in FLOAT8:
            held = encoded(dtype, value) if saturated is None else f"saturated_{dtype.name}({value})"
        elif store.value.op == "const" and not held.startswith("tl.full"):
            held = f"tl.full((), {held}, {memory_type(dtype)})"
        elif memory_type(dtype) != "tl.uint8" or dtype.is_bool:
            held = f"({held}).to({memory_type(dtype)})"
        # Every mask, also of dimensions that the address does not use: places behind the end must not write.
        mask = " & ".join(dict.fromkeys(dim.mask for dim in self.dims if dim.mask is not None))
        self.renderer.code.line(f"tl.store({address}, {held}{f', mask={mask}' if mask else ''})")


def _is_zero(expr: Expr) -> bool:
    return expr.op == "const" and not expr.payload


def _bare(stores: Sequence[Store]) -> Iterator[Expr]:
    """Values of erf that are used otherwise than as 1 + erf, so that small ones count by their own size."""
    for store in stores:
        if store.value.op == "erf":
            yield store.value
        for node in walk(store.value):
            is_one_more = node.op == "add" and any(arg.op == "const" and arg.payload == 1 for arg in node.args)
            yield from (arg for arg in node.args if arg.op == "erf" and not is_one_more)


def _rounded_bits(store: Store) -> int:
    """To how many bits a store's value is rounded: 8 to integers by an op that quantizes, 16 to short floats, or 32."""
    if store.value.dtype in BYTES:
        return 8 if any(node.op == "round" for node in walk(store.value)) else 32
    return 16 if store.value.dtype in (F16, BF16, *FLOAT8) else 32


def _is_filled(expr: Expr) -> bool:
    """Whether a guarded load gives its fill by itself."""
    return expr.dtype in BYTES and expr.args[2].op == "const"


def is_never_negative(expr: Expr) -> bool:
    """Whether an index is known to be 0 or more."""
    if expr.op == "axis":
        return True
    if expr.op == "const":
        return bool(expr.payload >= 0)
    if expr.op == "dim":
        return dimension.bounds(expr.payload)[0] >= 0
    if expr.op in ("add", "mul", "floordiv", "mod", "min"):
        return all(map(is_never_negative, expr.args))
    if expr.op == "max":
        return any(map(is_never_negative, expr.args))
    return False
