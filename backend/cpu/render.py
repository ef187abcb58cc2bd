"""Expressions as C.

A `Scope` is a place in the code where some loop axes have values. `value()` writes what an
expression needs and returns the name of the result; equal subexpressions are written once, and what
does not depend on a scope's own axes goes to the scope around it. A scope with a `vector` axis
computes one block of `isa.lanes` neighbours along it.

Invariant: a lane's result depends on its indices alone, never on the lane or on `count`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from aot.backend.affine import Affine, flat_offset, lane_limits, step_bounds
from aot.backend.cpu.code import (
    NARROW_FLOATS,
    Code,
    DimTable,
    literal,
    memory_type,
    register_dtype,
    register_type,
    vector_type,
)
from aot.backend.cpu.functions import convert, get, lane, put, scalar_call, splat, vector_call
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.quantize import Quantized, match
from aot.dims import Dim
from aot.dtypes import F32, I32, I64, DType
from aot.errors import CompilerError
from aot.expr import Expr, cast
from aot.kernel import Kernel, Store

__all__ = ["Code", "DimTable", "Renderer", "Scope"]


class Renderer:
    """Renders one kernel. Declares `p0`, `p1`, … (inputs, then outputs) where `code` stands now.

    An input that an output might overwrite in place (same number of elements of the same size) is
    not declared `restrict`.
    """

    def __init__(self, kernel: Kernel, dims: DimTable, isa: Isa, code: Code) -> None:
        self.kernel = kernel
        self.dims = dims
        self.isa = isa
        self.code = code
        self._names = 0
        self._offsets: dict[tuple[int, tuple[Expr, ...]], Affine] = {}
        operands = (*kernel.inputs, *kernel.outputs)
        for number, operand in enumerate(operands):
            type_ = memory_type(operand.type.dtype)
            if number >= len(kernel.inputs):
                code.line(f"{type_} *const p{number} = ({type_} *)args->buffers[{number}];")
                continue
            shared = any(
                o.type.elements == operand.type.elements
                and o.type.dtype.itemsize_bytes == operand.type.dtype.itemsize_bytes
                for o in kernel.outputs
            )
            qualifier = "const" if shared else "restrict const"
            code.line(f"const {type_} *{qualifier} p{number} = (const {type_} *)args->buffers[{number}];")

    def name(self, prefix: str = "t") -> str:
        """A fresh C identifier."""
        self._names += 1
        return f"{prefix}{self._names}"

    def offset(self, operand: int, indices: tuple[Expr, ...]) -> Affine:
        """The flat element offset of an access to operand `operand` (inputs, then outputs)."""
        key = (operand, indices)
        if key not in self._offsets:
            all_operands = (*self.kernel.inputs, *self.kernel.outputs)
            self._offsets[key] = flat_offset(all_operands[operand].type, indices)
        return self._offsets[key]

    def load_offset(self, load: Expr) -> Affine:
        """The flat element offset of a `load` node."""
        rank = self.kernel.inputs[load.payload].type.rank
        return self.offset(load.payload, load.args[:rank])

    def scope(
        self,
        axes: Mapping[int, str],
        vector: int | None = None,
        count: str | int | None = None,
        roots: Mapping[int, str] | None = None,
        values: Mapping[Expr, str] | None = None,
        parent: Scope | None = None,
        code: Code | None = None,
    ) -> Scope:
        """A scope at the place where `code` (else the renderer's) stands now.

        `axes`: the axes that get a value here, beyond the parent's, as C texts of i64. `vector`: the
        axis (one of them) that runs over lanes; its text is the first lane's index. `count`: how many
        lanes are valid, None for all. `roots` and `values`: C names of contraction results and of
        expressions computed already; blocks in a vector scope, else single values.
        """
        writer = code or self.code
        if vector is None:
            return Scope(self, writer.fragment(), dict(axes), None, None, roots or {}, values or {}, parent)
        uniform = {number: text for number, text in axes.items() if number != vector}
        outer = Scope(self, writer.fragment(), uniform, None, None, {}, {}, parent)
        limit = None if count is None or count == self.isa.lanes else str(count)
        return Scope(self, writer.fragment(), {vector: axes[vector]}, vector, limit, roots or {}, values or {}, outer)


class Scope:
    """See Renderer.scope. Write loop code after creating a scope; its lines stay before it."""

    def __init__(
        self,
        renderer: Renderer,
        code: Code,
        axes: dict[int, str],
        vector: int | None,
        count: str | None,
        roots: Mapping[int, str],
        values: Mapping[Expr, str],
        parent: Scope | None,
        is_branch: bool = False,
    ) -> None:
        self.renderer = renderer
        self.code = code
        self.is_branch = is_branch
        self.axes = axes
        self.vector = vector
        self.count = count
        self.roots = dict(roots)
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self._bound: dict[Expr, str] = dict(values)
        self._done: dict[Expr, str] = {}
        self._levels: dict[Expr, int] = {}
        self._ranges: dict[Expr, tuple[str, str]] = {}

    # What depends on what.

    def level(self, expr: Expr) -> int:
        """The depth of the outermost scope in which the expression can be computed."""
        found = self._levels.get(expr)
        if found is None:
            found = self._level(expr)
            self._levels[expr] = found
        return found

    def _level(self, expr: Expr) -> int:
        scope: Scope | None = self
        while scope is not None:
            if expr in scope._bound:
                return scope.depth
            if expr.op == "axis" and expr.payload in scope.axes:
                return scope.depth
            if expr.op == "root" and expr.payload in scope.roots:
                return scope.depth
            scope = scope.parent
        if expr.op in ("axis", "root", "reduce", "arg"):
            raise CompilerError(f"{self.renderer.kernel.name}: {expr.op} {expr.payload} has no value here")
        return max((self.level(a) for a in expr.args), default=0)

    def axis_text(self, number: int) -> str:
        """The C text of an axis that this scope or one around it defines."""
        scope: Scope | None = self
        while scope is not None:
            if number in scope.axes:
                return scope.axes[number]
            scope = scope.parent
        raise CompilerError(f"{self.renderer.kernel.name}: axis {number} has no value here")

    # Values.

    def bind(self, expr: Expr, name: str) -> None:
        """Says that `name` holds an expression's value from here on."""
        self._bound[expr] = name
        self._levels.clear()

    def value(self, expr: Expr) -> str:
        """The C name (or constant) of an expression: a block in a vector scope, else a single value."""
        found = self._bound.get(expr) or self._done.get(expr)
        if found is None:
            found = self._in_branch(expr) if self.is_branch else self._hoisted(expr)
            self._done[expr] = found
        return found

    def _hoisted(self, expr: Expr) -> str:
        if self.parent is None or self.level(expr) >= self.depth:
            return self._compute(expr)
        found = self.parent.value(expr)
        if self.vector is None or self.parent.vector is not None:
            return found
        text = splat(expr.dtype, found)
        return text if expr.op in ("const", "dim") else self.define(expr, text)

    def _in_branch(self, expr: Expr) -> str:
        """Inside an `if`: what is known outside is used; what is not is computed here, not hoisted."""
        scope = self.parent
        while scope is not None:
            if expr.op in ("axis", "root") or expr in scope._bound or expr in scope._done:
                assert self.parent is not None
                return self.parent.value(expr)
            scope = scope.parent
        return self._compute(expr)

    def define(self, expr: Expr, text: str) -> str:
        """Writes a constant local of the expression's type and returns its name."""
        name = self.renderer.name()
        self.code.line(f"const {self.type_of(expr.dtype)} {name} = {text};")
        return name

    def type_of(self, dtype: DType) -> str:
        return register_type(dtype) if self.vector is None else vector_type(dtype)

    def _compute(self, expr: Expr) -> str:
        if expr.op == "const":
            text = literal(expr.payload, expr.dtype)
            return text if self.vector is None else splat(expr.dtype, text)
        if expr.op == "dim":
            text = self.renderer.dims.text(expr.payload)
            return text if self.vector is None else splat(expr.dtype, text)
        if expr.op == "axis":
            if self.vector is None:
                return self.axis_text(expr.payload)
            return self.define(expr, f"iota_i64({self.axes[expr.payload]})")
        if expr.op == "root":
            return self.roots[expr.payload]
        if expr.op == "load":
            return self._load(expr)
        if expr.op in ("reduce", "arg"):
            raise CompilerError(f"{self.renderer.kernel.name}: {expr.op} has no value here")
        if self.vector is not None and expr.op in ("and", "ge", "gt", "le", "lt") and self._is_index_test(expr):
            limits = self._limits(expr)
            if limits is not None:
                return self.define(expr, f"range_bool({limits[0]}, {limits[1]})")
        if self.vector is not None and (quantized := match(expr)) is not None:
            return self._quantized(expr, quantized)
        operands = [self.value(a) for a in expr.args]
        if self.vector is None:
            return self.define(expr, scalar_call(expr, operands))
        return self.define(expr, vector_call(expr, operands))

    def _quantized(self, expr: Expr, parts: Quantized) -> str:
        """A block rounded to integers of 8 or 16 bits; see quantize.py."""
        low, high, scaled = self.value(parts.low), self.value(parts.high), self.value(parts.scaled)
        whole = f"whole_f32(min_ordered_f32({high}, max_ordered_f32({low}, {scaled})))"
        if parts.zero is not None:
            whole = f"{whole} + {self.value(parts.zero)}"
        return self.define(expr, convert(whole, I32, expr.dtype))

    def _is_index_test(self, expr: Expr) -> bool:
        """Whether a condition on lanes is made of comparisons of index arithmetic, without loads along the lanes."""
        if expr.op == "and":
            return all(self.level(a) < self.depth or self._is_index_test(a) for a in expr.args)
        return expr.op in ("ge", "gt", "le", "lt") and expr.args[0].dtype == I64

    # Memory.

    def _scalar(self) -> Scope:
        """The scope of single values at this place: itself, or the one around a vector scope."""
        if self.vector is None:
            return self
        assert self.parent is not None
        return self.parent

    def offset_text(self, offset: Affine) -> str:
        """C text of a flat offset, in elements (of the first lane)."""
        return self._with_lane(offset, self._scalar())

    def _with_lane(self, offset: Affine, terms: Scope) -> str:
        dims = self.renderer.dims
        parts: list[str] = []
        for number, coefficient in sorted(offset.coefficients.items()):
            text = self.axis_text(number)
            parts.append(text if coefficient == 1 else f"{text} * {dims.text(coefficient)}")
        for term, coefficient in offset.rest:
            text = terms.value(term)
            parts.append(text if coefficient == 1 else f"{text} * {dims.text(coefficient)}")
        if offset.constant != 0 or not parts:
            parts.append(dims.text(offset.constant))
        return f"({' + '.join(parts)})" if len(parts) > 1 else parts[0]

    def lane_stride(self, offset: Affine) -> Dim | None:
        """Elements between lanes, or None where it is not constant."""
        assert self.vector is not None
        if any(self.level(term) >= self.depth for term, _ in offset.rest):
            return None
        return offset.coefficients.get(self.vector, 0)

    def _known_stride(self, offset: Affine) -> Dim:
        stride = self.lane_stride(offset)
        assert stride is not None
        return stride

    def _load(self, expr: Expr) -> str:
        renderer = self.renderer
        rank = renderer.kernel.inputs[expr.payload].type.rank
        offset = renderer.load_offset(expr)
        guard = expr.args[rank] if len(expr.args) > rank else None
        if guard is not None and guard.op == "const":
            if not guard.payload:
                return self.value(expr.args[rank + 1])
            guard = None
        if self.vector is not None:
            stride = self.lane_stride(offset)
            if stride is None:
                if guard is None and step_bounds(offset.expr(), self.vector)[1] <= 1:
                    return self._run(expr, offset)
                return self._lanes(expr)
            if guard is not None and self.level(guard) >= self.depth:
                limits = self._limits(guard)
                return self._lanes(expr) if limits is None else self._between(expr, *limits, offset, stride)
            if guard is None:
                return self.define(expr, self._block(expr, self.offset_text(offset), stride))
        if guard is not None:
            return self._guarded(expr, guard, expr.args[rank + 1], offset)
        return self.define(expr, get(expr.dtype, f"p{expr.payload}", self.offset_text(offset)))

    def _block(self, expr: Expr, place: str, stride: Dim) -> str:
        name = expr.dtype.name
        pointer = f"p{expr.payload}"
        if stride == 1:
            return (
                f"load_{name}({pointer} + {place})"
                if self.count is None
                else f"loadn_{name}({pointer} + {place}, {self.count})"
            )
        if stride == 0:
            return splat(expr.dtype, get(expr.dtype, pointer, place))
        count = self.count or str(self.renderer.isa.lanes)
        return f"gather_{name}({pointer} + {place}, {self.renderer.dims.text(stride)}, {count})"

    def _limits(self, guard: Expr) -> tuple[str, str] | None:
        """The first lane and the end of the lanes where a condition holds, as C names; None if it has no such form."""
        assert self.vector is not None
        if guard in self._ranges:
            return self._ranges[guard]
        found = lane_limits(guard, self.vector)
        if found is None:
            return None
        sums, uniform = found
        scalar = self._scalar()
        conditions = [scalar.value(condition) for condition in uniform]
        texts = [(limit.coefficients[self.vector], self.offset_text(limit)) for limit in sums]
        low, high = self.renderer.name("lo"), self.renderer.name("hi")
        whole = self.count or str(self.renderer.isa.lanes)
        self.code.line(f"i64 {low} = 0, {high} = {' && '.join(conditions)} ? {whole} : 0;" if conditions else
                       f"i64 {low} = 0, {high} = {whole};")  # fmt: skip
        for step, text in texts:
            assert isinstance(step, int)
            edge = text if abs(step) == 1 else f"floordiv_i64({text}, {abs(step)})"
            if step > 0:
                self.code.line(f"if (-({edge}) > {low}) {low} = -({edge});")
            else:
                self.code.line(f"if ({edge} + 1 < {high}) {high} = {edge} + 1;")
        self.code.line(f"if ({high} < 0) {high} = 0;")
        self.code.line(f"if ({low} > {high}) {low} = {high};")
        self._ranges[guard] = low, high
        return low, high

    def _between(self, expr: Expr, low: str, high: str, offset: Affine, stride: Dim) -> str:
        """A load of the lanes between two limits; the others have the fill value."""
        rank = self.renderer.kernel.inputs[expr.payload].type.rank
        fill = self.value(expr.args[rank + 1])
        name, dtype = self.renderer.name(), expr.dtype
        held = "bool" if dtype.is_bool else register_type(dtype)
        lanes = self.renderer.isa.lanes
        self.code.line(f"{self.type_of(dtype)} {name} = {fill};")
        with self.code.block(f"if ({low} < {high})"):
            branch = Scope(self.renderer, self.code, {}, None, None, {}, {}, self._scalar(), is_branch=True)
            pointer, place = f"p{expr.payload}", self._with_lane(offset, branch)
            chosen = f"select_{held}(range_bool({low}, {high}), {{}}, {fill})"
            if stride == 1:
                part = chosen.format(f"loadr_{dtype.name}({pointer} + {place}, {low}, {high})")
                self.code.line(f"if ({high} - {low} == {lanes}) {name} = load_{dtype.name}({pointer} + {place});")
                self.code.line(f"else {name} = {part};")
            elif stride == 0:
                self.code.line(f"{name} = {chosen.format(splat(dtype, get(dtype, pointer, place)))};")
            else:
                step = self.renderer.dims.text(stride)
                text = get(dtype, pointer, f"({place} + l * {step})")
                self.code.line(
                    f"for (i64 l = {low}; l < {high}; l++) {name}[l] = {f'-({text})' if dtype.is_bool else text};"
                )
        return name

    def _guarded(self, expr: Expr, guard: Expr, fill: Expr, offset: Affine) -> str:
        """A load under a condition that all lanes share; nothing is read where it fails."""
        scalar = self._scalar()
        condition = scalar.value(guard)
        name = self.renderer.name()
        self.code.line(f"{self.type_of(expr.dtype)} {name} = {self.value(fill)};")
        with self.code.block(f"if ({condition})"):
            branch = Scope(self.renderer, self.code, {}, None, None, {}, {}, scalar, is_branch=True)
            place = branch.offset_text(offset) if self.vector is None else self._with_lane(offset, branch)
            if self.vector is None:
                text = get(expr.dtype, f"p{expr.payload}", place)
            else:
                text = self._block(expr, place, self._known_stride(offset))
            self.code.line(f"{name} = {text};")
        return name

    def _lanes(self, expr: Expr) -> str:
        """A value that is computed lane by lane with single values."""
        name = self.renderer.name()
        type_ = self.type_of(expr.dtype)
        self.code.line(f"{type_} {name} = {splat(expr.dtype, literal(0, register_dtype(expr.dtype)))};")
        with self._each_lane() as one:
            text = one.value(expr)
            one.code.line(f"{name}[l] = {f'-({text})' if expr.dtype.is_bool else text};")
        return name

    def _run(self, expr: Expr, offset: Affine) -> str:
        """A load whose places go up by at most one per lane: where they go up by all, they are neighbours."""
        assert self.vector is not None
        name, last = self.renderer.name(), f"({self.count or self.renderer.isa.lanes} - 1)"
        self.code.line(f"{self.type_of(expr.dtype)} {name};")
        with self.code.block():
            ends = []
            for lane_text in ("0", last):
                axes = {self.vector: f"({self.axes[self.vector]} + {lane_text})"}
                scope = Scope(self.renderer, self.code, axes, None, None, {}, {}, self.parent)
                text = scope.offset_text(offset)
                ends.append(self.renderer.name("end"))
                self.code.line(f"const i64 {ends[-1]} = {text};")
            block = self._block(expr, ends[0], 1)
            self.code.line(f"if ({ends[1]} - {ends[0]} == {last}) {name} = {block};")
            with self.code.block("else"):
                self.code.line(f"{name} = {self._lanes(expr)};")
        return name

    @contextmanager
    def _each_lane(self) -> Iterator[Scope]:
        """A loop over the valid lanes `l`, and in it a scope of single values."""
        assert self.vector is not None and self.parent is not None
        with self.code.block(f"for (i64 l = 0; l < {self.count or self.renderer.isa.lanes}; l++)"):
            axes = {self.vector: f"({self.axes[self.vector]} + l)"}
            roots = {number: f"{name}[l]" for number, name in self.roots.items()}
            values = {expr: lane(expr.dtype, name, "l") for expr, name in self._bound.items()}
            yield Scope(self.renderer, self.code.fragment(), axes, None, None, roots, values, self.parent)

    def store(self, store: Store, value: str | None = None) -> None:
        """Writes a store of the kernel; `value` names the value if the caller has computed it."""
        renderer = self.renderer
        dtype = renderer.kernel.outputs[store.output].type.dtype
        operand = len(renderer.kernel.inputs) + store.output
        offset = renderer.offset(operand, store.indices)
        text = value if value is not None else self.value(to_store(cast(store.value, dtype), dtype))
        if self.vector is None:
            self.code.line(put(dtype, f"p{operand}", self.offset_text(offset), text))
            return
        stride = self.lane_stride(offset)
        if stride is None:
            with self._each_lane() as one:
                one.code.line(put(dtype, f"p{operand}", one.offset_text(offset), lane(dtype, text, "l")))
            return
        place = self.offset_text(offset)
        if stride == 0:
            self.code.line(put(dtype, f"p{operand}", place, lane(dtype, text, "0")))
        elif stride == 1 and self.count is None:
            self.code.line(f"store_{dtype.name}(p{operand} + {place}, {text});")
        elif stride == 1:
            self.code.line(f"storen_{dtype.name}(p{operand} + {place}, {text}, {self.count});")
        else:
            count = self.count or str(renderer.isa.lanes)
            self.code.line(
                f"scatter_{dtype.name}(p{operand} + {place}, {renderer.dims.text(stride)}, {text}, {count});"
            )


def to_store(value: Expr, dtype: DType) -> Expr:
    """What to compute before a value goes to memory that holds `dtype`: a store rounds to a narrow float by itself."""
    is_rounding = dtype in NARROW_FLOATS and value.op == "cast" and value.dtype == dtype and value.args[0].dtype == F32
    return value.args[0] if is_rounding else value
