"""Kernels of elementwise recurrences: all steps in one loop, the states in registers or the first-level cache.

A thread owns blocks of lanes of the state and takes them, a few at a time, through all steps; no step waits for
another thread. Invariant: the bits of an element depend on its operands, not on the lane or the thread.
"""

from __future__ import annotations

from aot import dims as dimension
from aot import expr
from aot.backend.base import Emitted
from aot.backend.cpu.code import Code, DimTable, register_type, vector_type
from aot.backend.cpu.frame import bytes_moved, fill_halos, kernel_body, thread_share
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.owned import need, owned_root
from aot.backend.cpu.render import Renderer, Scope
from aot.dims import Dim
from aot.dtypes import I64
from aot.expr import Expr
from aot.ir import TensorType
from aot.kernel import Kernel, Store
from aot.ops.helpers import int_attr
from aot.ops.steps import parse_step, results_of, step_of

GROUP_BLOCKS = 8
"""Blocks of lanes that go through time together: their chains of dependent operations overlap."""

STEP = 0
"""The axis of the expressions that is time; those of the state follow."""


def emit_steps(kernel: Kernel, isa: Isa) -> Emitted:
    """C for a kernel of `recur_map`."""
    return _Steps(kernel, isa).emit()


class _Steps:
    """The state of one emission."""

    def __init__(self, kernel: Kernel, isa: Isa) -> None:
        root = owned_root(kernel)
        self.kernel, self.isa, self.results = kernel, isa, root.results
        self.count = int_attr(root.attrs, "states")
        numbers = [need(kernel, number) for number in root.operands]
        self.initial, self.given = numbers[: self.count], numbers[self.count :]
        self.axis = int_attr(root.attrs, "axis")
        self.steps, self.text = int_attr(root.attrs, "steps"), step_of(root.attrs)
        first = self._type(self.initial[0])
        self.dtype, self.shape = first.dtype, first.shape
        self.dims = DimTable()
        self.vector = self._vector_axis()

    def _type(self, number: int) -> TensorType:
        return self.kernel.inputs[number].type

    def _vector_axis(self) -> int | None:
        """The axis of the state along which lanes lie: where most operands have neighbours beside each other."""

        def score(axis: int) -> tuple[int, int]:
            types = [self._type(number) for number in (*self.initial, *self.given)]
            types += [output.type for output in self.kernel.outputs]
            places = [axis + (type_.rank > len(self.shape) and axis >= self.axis) for type_ in types]
            return sum(t.strides[p] == 1 or t.shape[p] == 1 for t, p in zip(types, places, strict=True)), axis

        wide = [axis for axis, extent in enumerate(self.shape) if extent != 1]
        return max(wide, key=score) if wide else None

    def emit(self) -> Emitted:
        code = Code()
        with kernel_body(code, self.dims):
            renderer = Renderer(self.kernel, self.dims, self.isa, code)
            fill_halos(renderer)
            outer = [axis for axis in range(len(self.shape)) if axis != self.vector]
            extents: list[Dim] = [self.shape[axis] for axis in outer]
            names = [f"i{axis}" for axis in outer]
            if self.vector is not None:
                extents.append(dimension.ceildiv(self.shape[self.vector], self.isa.lanes * GROUP_BLOCKS))
                names.append("group")
            counts = [self.dims.text(extent) for extent in extents]
            thread_share(code, " * ".join(counts) or "1", "unit", "unit_end")
            with code.block("for (; unit < unit_end; unit++)"):
                code.line("i64 rest = unit;")
                for name, count in reversed(list(zip(names, counts, strict=True))):
                    code.line(f"const i64 {name} = rest % {count}; rest /= {count};")
                self._unit(code, renderer)
        note = "one value at a time" if self.vector is None else f"lanes along axis {self.vector} of the states"
        elements = dimension.product(self.shape) * self.steps
        return Emitted(
            code.text(), self.dims.dims, f"elementwise recurrence; {note}; all steps in one loop",
            flops=elements * max(self.text.count(" "), 1), bytes_moved=bytes_moved(self.kernel),
        )  # fmt: skip

    def _unit(self, code: Code, renderer: Renderer) -> None:
        """Whole blocks of the group together, then the lanes that are left."""
        if self.vector is None:
            self._walk(code, renderer, None, None)
            return
        lanes = self.isa.lanes
        extent = self.shape[self.vector]
        code.line(f"const i64 first = group * {lanes * GROUP_BLOCKS};")
        code.line(f"const i64 left = {self.dims.text(extent)} - first;")
        code.line(f"const i64 blocks = left / {lanes} < {GROUP_BLOCKS} ? left / {lanes} : {GROUP_BLOCKS};")
        if not isinstance(extent, int) or extent >= lanes:
            with code.block("if (blocks)"):
                self._walk(code, renderer, "blocks", None)
        if not isinstance(extent, int) or extent % lanes:
            with code.block(f"if (blocks < {GROUP_BLOCKS} && left % {lanes})"):
                code.line(f"const i64 tail = left % {lanes}, last = first + blocks * {lanes};")
                self._walk(code, renderer, None, "tail")

    def _walk(self, code: Code, renderer: Renderer, blocks: str | None, count: str | None) -> None:
        """All steps of so many whole blocks, or of one of `count` lanes, or of one value."""
        single = self.vector is None
        type_ = register_type(self.dtype) if single else vector_type(self.dtype)
        size = GROUP_BLOCKS if blocks else 1
        code.line(f"{type_} {', '.join(f'h{number}[{size}]' for number in range(self.count))};")
        with code.block(f"for (i64 b = 0; b < {blocks or '1'}; b++)"):
            scope = self._scope(code, renderer, blocks, count, step=False)
            for number, operand in enumerate(self.initial):
                scope.code.line(f"h{number}[b] = {scope.value(self._load(operand, step=False))};")
        with (
            code.block(f"for (i64 t = 0; t < {self.steps}; t++)"),
            code.block(f"for (i64 b = 0; b < {blocks or '1'}; b++)"),
        ):
            scope = self._scope(code, renderer, blocks, count, step=True)
            values = [
                scope.define(body, scope.value(body)) if body.op == "root" else scope.value(body)
                for body in self._bodies()
            ]
            for number, value in enumerate(values):
                self._store(scope, number, value, step=True)
            for number, value in enumerate(values[: self.count]):
                scope.code.line(f"h{number}[b] = {value};")
        finals = range(results_of(self.text), results_of(self.text) + self.count)
        if any(self.results[number] is not None for number in finals):
            with code.block(f"for (i64 b = 0; b < {blocks or '1'}; b++)"):
                scope = self._scope(code, renderer, blocks, count, step=False)
                for state, number in enumerate(finals):
                    self._store(scope, number, f"h{state}[b]", step=False)

    def _scope(self, code: Code, renderer: Renderer, blocks: str | None, count: str | None, *, step: bool) -> Scope:
        axes = {axis + 1: f"i{axis}" for axis in range(len(self.shape)) if axis != self.vector}
        if step:
            axes[STEP] = "t"
        roots = {number: f"h{number}[b]" for number in range(self.count)}
        if self.vector is None:
            return renderer.scope(axes, roots=roots, code=code)
        axes[self.vector + 1] = f"(first + b * {self.isa.lanes})" if blocks else "last"
        return renderer.scope(axes, self.vector + 1, count, roots, code=code)

    def _load(self, operand: int, *, step: bool) -> Expr:
        type_ = self._type(operand)
        return expr.load(operand, type_.dtype, self._indices(type_, step=step))

    def _indices(self, type_: TensorType, *, step: bool) -> tuple[Expr, ...]:
        """The indices of an element of the state, or of a tensor that holds all steps' (then `step`)."""
        axes = list(range(1, len(self.shape) + 1))
        if step:
            axes.insert(self.axis, STEP)
        return tuple(expr.const(0, I64) if e == 1 else expr.axis(a) for a, e in zip(axes, type_.shape, strict=True))

    def _bodies(self) -> tuple[Expr, ...]:
        def leaf(letter: str, number: int) -> Expr:
            return expr.root(number, self.dtype) if letter == "h" else self._load(self.given[number], step=True)

        return parse_step(self.text, leaf, self.dtype)

    def _store(self, scope: Scope, number: int, value: str, *, step: bool) -> None:
        result = self.results[number]
        if result is None:
            return
        indices = self._indices(self.kernel.outputs[result].type, step=step)
        scope.store(Store(result, indices, expr.const(0, self.dtype)), value)
