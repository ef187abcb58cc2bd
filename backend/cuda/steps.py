"""Kernels of elementwise recurrences: a thread takes its elements of the state through all steps, in registers.

No step waits for another thread. What a few steps are given is read before the first of them, so that its latency is
paid once. Invariant: the bits of an element depend on its operands alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot import dims as dimension
from aot.backend.base import Emitted
from aot.backend.cuda.code import Code, DimTable, memory_type, offset_at, register_type, split_places
from aot.backend.cuda.frame import Tiling, finish
from aot.backend.cuda.render import LARGEST_INDEX, Renderer, Scope, TileDim
from aot.dims import typical
from aot.errors import CompilerError
from aot.expr import Expr, root
from aot.ir import TensorType
from aot.kernel import Kernel, OwnedRoot
from aot.ops.helpers import int_attr
from aot.ops.steps import parse_step, results_of, step_of
from aot.target import Target

MOST_ELEMENTS = 256
"""Of a program; fewer where that leaves multiprocessors without work."""

AHEAD = 8
"""Steps whose operands are read together; fewer where a step has many."""

MOST_READS = 32
"""Numbers of a thread that are read together."""


def emit_steps(kernel: Kernel, target: Target) -> Emitted:
    """Triton for a `recur_map`."""
    found = kernel.root
    if not isinstance(found, OwnedRoot) or found.op != "recur_map":
        raise CompilerError(f"{kernel.name}: not an elementwise recurrence")
    return _Steps(kernel, target, found).emit()


class _Steps:
    def __init__(self, kernel: Kernel, target: Target, found: OwnedRoot) -> None:
        self.kernel, self.target, self.results = kernel, target, found.results
        self.count = int_attr(found.attrs, "states")
        numbers = [number for number in found.operands if number is not None]
        self.initial, self.given = numbers[: self.count], numbers[self.count :]
        self.axis, self.steps = int_attr(found.attrs, "axis"), int_attr(found.attrs, "steps")
        self.text = step_of(found.attrs)
        first = kernel.inputs[self.initial[0]].type
        self.dtype, self.shape = first.dtype, first.shape
        self.dims, self.code = DimTable(), Code(1)
        self.renderer = Renderer(kernel, self.dims, self.code)
        sizes = [dimension.bounds(o.type.elements)[1] for o in (*kernel.inputs, *kernel.outputs)]
        self.index_type = "tl.int64" if any(size > LARGEST_INDEX for size in sizes) else "tl.int32"

    def emit(self) -> Emitted:
        code, dims = self.code, self.dims
        total = dimension.product(self.shape)
        block = 32
        processors = int(self.target.numbers["multiprocessors"])
        while block < MOST_ELEMENTS and typical(total) >= 4 * block * processors:
            block *= 2
        tiling = Tiling(code, dims)
        together = min(AHEAD, self.steps, max(MOST_READS // max(len(self.given), 1), 1))
        with tiling.programs(dimension.ceildiv(total, block)) as program:
            code.line(f"element = {program}.to({self.index_type}) * {block} + tl.arange(0, {block})")
            code.line(f"inside = element < {dims.text(total)}")
            self.zeros = f"tl.zeros(({block},), tl.int32)"
            self.tile = f"({block},)"
            # Neighbours in memory are neighbours in a program, whatever the axes' order.
            order = self._order()
            places = dict(
                zip(order, split_places(code, dims, "element", [self.shape[a] for a in order], "i"), strict=True)
            )
            self.places = [places[axis] for axis in range(len(self.shape))]
            for number, operand in enumerate(self.initial):
                code.line(f"h{number} = {self._read(operand, None)}")
            whole = self.steps - self.steps % together
            if whole > together:
                with code.block(f"for start in range(0, {whole}, {together})"):
                    self._some([f"(start + {number})" for number in range(together)])
            else:
                self._some([str(number) for number in range(whole)])
            if whole < self.steps:
                self._some([str(number) for number in range(whole, self.steps)])
            for state in range(self.count):
                self._store(results_of(self.text) + state, f"h{state}", None)
        return finish(
            self.kernel, tiling, warps=max(block // 32, 1), stages=1,
            schedule=f"elementwise recurrence, {block} elements a program; {together} steps read at a time",
            flops=total * self.steps * max(self.text.count(" "), 1),
        )  # fmt: skip

    def _order(self) -> Sequence[int]:
        """The axes of the state from outermost in memory, as most of the operands with all steps have them."""
        widest = max(
            (self.kernel.inputs[number].type for number in (*self.given, *self.initial)),
            key=lambda type_: sum(extent != 1 for extent in type_.shape),
        )
        return [a - (a > self.axis) if widest.rank > len(self.shape) else a for a in widest.order
                if widest.rank == len(self.shape) or a != self.axis]  # fmt: skip

    def _offset(self, type_: TensorType, step: str | None) -> str:
        places = list(self.places)
        if step is not None:
            places.insert(self.axis, step)
        return offset_at(self.dims, type_, places, self.zeros)

    def _read(self, operand: int, step: str | None) -> str:
        type_ = self.kernel.inputs[operand].type
        address = f"p{operand} + {self._offset(type_, step)}"
        return f"tl.load({address}, mask=inside, other=0).to({register_type(self.dtype)})"

    def _store(self, result: int, value: str, step: str | None) -> None:
        number = self.results[result]
        if number is None:
            return
        type_ = self.kernel.outputs[number].type
        address = f"p{len(self.kernel.inputs) + number} + {self._offset(type_, step)}"
        held = f"({value} + tl.zeros({self.tile}, {register_type(self.dtype)}))"  # a step may give a constant
        self.code.line(f"tl.store({address}, {held}.to({memory_type(type_.dtype)}), mask=inside)")

    def _some(self, steps: Sequence[str]) -> None:
        """Some steps one after the other; what they are given is read first."""
        for place, step in enumerate(steps):
            for number, operand in enumerate(self.given):
                self.code.line(f"x{number}_{place} = {self._read(operand, step)}")
        for place, step in enumerate(steps):
            names: dict[int, str] = {}

            def leaf(letter: str, number: int, place: int = place, names: dict[int, str] = names) -> Expr:
                key = number if letter == "h" else self.count + number
                names[key] = f"h{number}" if letter == "h" else f"x{number}_{place}"
                return root(key, self.dtype)

            bodies = parse_step(self.text, leaf, self.dtype)
            scope = Scope(self.renderer, {}, [TileDim(frozenset(), None)], self.tile, roots=names)
            values = [scope.value(body) for body in bodies]
            for number, value in enumerate(values):
                self.code.line(f"next{number} = {value}")
            for number in range(len(values)):
                self._store(number, f"next{number}", step)
            for number in range(self.count):
                self.code.line(f"h{number} = next{number}")
