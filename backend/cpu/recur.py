"""Recurrent kernels: all steps of an LSTM, GRU or RNN direction in one function, with resident weights.

A thread owns rows of the batch and takes them in blocks through the whole loop over time, so that no
step waits for another thread. In a step, a group of hidden units at a time, tiles sum the previous h
times the panels of all gates of these units, and the units' new states follow at once from the sums,
still in the first-level cache. h has two places that alternate, since the sums of later groups need
the old one.

Weights are packed into panels of 16 columns. The panels of the gates of the same 16 units lie side by
side ([units / 16][gates][H][16]); where the last gate needs a state that the others change, panels
are sorted by gate, and all sums of the first gates come before those of the last.

Invariant: the bits of a row depend on its operands, not on the rows beside it or on the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot import expr
from aot.backend.base import Emitted, PackedOperand
from aot.backend.cpu.code import Code, DimTable, register_dtype
from aot.backend.cpu.frame import bytes_moved, fill_halos, kernel_body, thread_share
from aot.backend.cpu.functions import splat
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.render import Renderer, Scope
from aot.backend.cpu.tile import PANEL, Tile, most_panels, registers_per_panel, split
from aot.dtypes import I64, DType
from aot.errors import CompilerError
from aot.expr import Expr
from aot.ir import TensorType
from aot.kernel import Kernel, OwnedRoot, Store
from aot.ops.helpers import int_attr, wide_dtype
from aot.ops.recur import OPERANDS, extra_parts, form_of, is_two_stage, next_state, reset_state
from aot.program import RecipeOp, RecipeStep

BLOCK_ROWS = 24
"""Rows that go through time together: every panel is read once per step for all of them."""

TILE_ROWS = 6
_Body = Callable[["str | None"], None]
_RowBody = Callable[[Code, Renderer, "str | None"], None]

STEP, ROW, UNIT, SUMMED, COLUMN = range(5)
"""The axes of the expressions: time, batch, hidden unit; and row and column of the weights."""


def emit_recurrence(kernel: Kernel, isa: Isa) -> Emitted:
    """C for a kernel of a `recur_…` op; f32 and f64, and 16-bit floats through f32."""
    root = kernel.root
    if not isinstance(root, OwnedRoot) or root.op not in OPERANDS:
        raise CompilerError(f"{kernel.name}: not a recurrence")
    return _Recurrence(kernel, isa, root).emit()


class _Recurrence:
    """The state of one emission."""

    def __init__(self, kernel: Kernel, isa: Isa, root: OwnedRoot) -> None:
        self.kernel, self.isa, self.op, self.attrs = kernel, isa, root.op, root.attrs
        names = OPERANDS[root.op]
        self.operand = {n: number for n, number in zip(names, root.operands, strict=False) if number is not None}
        self.results = root.results
        self.form = form_of(root.op, root.attrs)
        gates, weight = self._type("gates"), self._type("weight")
        self.steps, self.batch = gates.shape[:2]
        hidden = weight.shape[2]
        if not isinstance(hidden, int):
            raise CompilerError(f"{kernel.name}: a recurrence of {hidden} units")
        self.hidden = hidden
        self.dtype: DType = register_dtype(wide_dtype(gates.dtype))
        self.type = self.dtype.name
        self.dims = DimTable()
        self.two_stage = is_two_stage(root.op, root.attrs)
        self.gates = self.form.gates
        self.blocks = -(-hidden // PANEL)
        self.each = registers_per_panel(isa, self.dtype.itemsize_bytes)
        self.group = self.blocks if self.two_stage else min(max(self._widest(1) // self.gates, 1), self.blocks)
        self.state_stride = self.blocks * PANEL
        if self.state_stride * self.dtype.itemsize_bytes % 2048 == 0:
            self.state_stride += PANEL  # rows a multiple of 2 KiB apart would share cache sets
        self.sum_stride = self.group * self.gates * PANEL
        self.block_rows = min(BLOCK_ROWS, self.batch) if isinstance(self.batch, int) else BLOCK_ROWS
        self.tile_rows = min(
            max(r for r in range(1, TILE_ROWS + 1) if self._widest(r) >= self._least()), self.block_rows
        )
        self.packed = self._pack()
        self.tile = Tile(
            isa, self.type, self.dtype.itemsize_bytes, ((str(hidden), "1"),),
            str(self.state_stride), str(hidden * PANEL),
        )  # fmt: skip
        self.forms: set[tuple[int, int]] = set()

    def _type(self, name: str) -> TensorType:
        return self.kernel.inputs[self.operand[name]].type

    def _widest(self, rows: int) -> int:
        """Panels of a tile of so many rows."""
        return most_panels(self.isa, self.each, rows)

    def _least(self) -> int:
        """Panels that a tile should have at least: those of one unit block, if they fit at all."""
        return min(self.gates, self._widest(1))

    # Weights.

    def _pack(self) -> PackedOperand | None:
        """The weights as panels, all directions of them, so that the kernels of a layer share them."""
        operand = self.kernel.inputs[self.operand["weight"]]
        count = operand.type.shape[0]
        if not operand.constant or not isinstance(count, int):
            return None
        steps: list[RecipeStep] = []
        if operand.type.dtype != self.dtype:
            steps.append(RecipeStep(RecipeOp.CAST, dtype=self.dtype.number))
        if self.two_stage:
            shape = (count, self.gates, self.blocks, self.hidden, PANEL)
            column = (0, self.hidden, PANEL, 0, 1)
        else:
            shape = (count, self.blocks, self.gates, self.hidden, PANEL)
            column = (0, PANEL, self.hidden, 0, 1)
        steps.append(RecipeStep(RecipeOp.PACK, shape=shape, coefficients=((1, 0, 0, 0, 0), column, (0, 0, 0, 1, 0))))
        return PackedOperand(tuple(steps), self.dtype.number, shape)

    def _panels(self) -> int:
        return self.blocks * self.gates

    def _weights(self, code: Code, renderer: Renderer) -> None:
        """Declares `weights`, and packs them into scratch where they are not constant."""
        number, size = self.operand["weight"], self._panels() * self.hidden * PANEL
        index = int_attr(self.attrs, "index")
        if self.packed is not None:
            code.line(f"const {self.type} *const weights = (const {self.type} *)p{number} + {index * size};")
            return
        with code.block(f"for (i64 panel = 0; panel < {self._panels()}; panel++)"):
            if self.two_stage:
                code.line(f"const i64 gate = panel / {self.blocks}, unit = panel % {self.blocks} * {PANEL};")
            else:
                code.line(f"const i64 gate = panel % {self.gates}, unit = panel / {self.gates} * {PANEL};")
            with code.block(f"for (i64 l = 0; l < {PANEL}; l++)"):
                code.line(f"{self.type} *const target = packing + panel * {self.hidden * PANEL} + l;")
                with code.block(f"for (i64 k = 0; k < {self.hidden}; k++)"):
                    code.line(f"target[k * {PANEL}] = 0;")
                    with code.block(f"if (unit + l < {self.hidden})"):
                        axes = {SUMMED: "k", COLUMN: f"(gate * {self.hidden} + unit + l)"}
                        scope = renderer.scope(axes, code=code)
                        where = (expr.const(index, I64), expr.axis(COLUMN), expr.axis(SUMMED))
                        value = scope.value(self._load("weight", where))
                        code.line(f"target[k * {PANEL}] = {value};")
        code.line(f"const {self.type} *const weights = packing;")

    # Expressions.

    def _load(self, name: str, indices: Sequence[Expr]) -> Expr:
        type_ = self._type(name)
        value = expr.load(self.operand[name], type_.dtype, indices)
        return expr.cast(value, I64 if name == "lengths" else self.dtype)

    def _inputs(self) -> list[Expr]:
        """The input's share of every gate of the unit."""
        where = expr.axis(STEP), expr.axis(ROW)
        return [self._load("gates", (*where, expr.axis(UNIT) + gate * self.hidden)) for gate in range(self.form.inputs)]

    def _extra(self) -> list[Expr]:
        if self.form.extra not in self.operand:
            return []
        count = extra_parts(self.op, self._type(self.form.extra), self.hidden)
        return [self._load(self.form.extra, (expr.axis(UNIT) + part * self.hidden,)) for part in range(count)]

    def _roots(self) -> tuple[list[Expr], list[Expr]]:
        """What the code gives names to: the sums of every gate, and the states."""
        numbers = [expr.root(number, self.dtype) for number in range(self.gates + self.form.states)]
        return numbers[: self.gates], numbers[self.gates :]

    # Text.

    def emit(self) -> Emitted:
        body, scratch = Code(), self._scratch()
        with kernel_body(body, self.dims):
            renderer = Renderer(self.kernel, self.dims, self.isa, body)
            fill_halos(renderer)
            self._rows(body, renderer, scratch)
        code = Code()
        for line in self.tile.typedefs:
            code.line(line)
        for rows, panels in sorted(self.forms):
            code.line(self.tile.function(f"sum_{rows}x{panels}", rows, panels))
        total = sum(size for _, size in scratch)
        return Emitted(
            code.text() + body.text(),
            self.dims.dims,
            f"{self.op}: {self.hidden} units in groups of {self.group * PANEL}, {self._panels()} panels of weights "
            f"{'packed' if self.packed is not None else 'packed each run'}; rows of the batch in blocks of "
            f"{self.block_rows}, tiles of {self.tile_rows}; all steps in one loop",
            total * self.dtype.itemsize_bytes,
            packed={} if self.packed is None else {self.operand["weight"]: self.packed},
            flops=self.steps * self.batch * (2 * self.gates * self.hidden * self.hidden),
            bytes_moved=bytes_moved(self.kernel),
        )

    def _scratch(self) -> list[tuple[str, int]]:
        """The parts of a thread's scratch, in elements, each a multiple of a panel."""
        state = self.block_rows * self.state_stride
        parts = [("old", state), ("new", state), ("sums", self.tile_rows * self.sum_stride)]
        if self.form.states == 2:
            parts.append(("cells", state))
        if self.two_stage:
            parts.append(("changed", self.tile_rows * self.state_stride))
        if self.packed is None:
            parts.append(("packing", self._panels() * self.hidden * PANEL))
        return parts

    def _rows(self, code: Code, renderer: Renderer, scratch: list[tuple[str, int]]) -> None:
        """The rows of a thread, block by block."""
        name = self.type
        thread_share(code, self.dims.text(self.batch), "row", "row_end")
        code.line("if (row >= row_end) return;")
        code.line(f"const i64 steps = {self.dims.text(self.steps)};")
        place = f"({name} *)args->scratch"
        for part, size in scratch:
            code.line(f"{name} *{'' if part in ('old', 'new') else 'const '}{part} = {place};")
            place = f"{part} + {size}"
        self._weights(code, renderer)
        with code.block("for (i64 tall; row < row_end; row += tall)"):
            code.line(f"tall = row_end - row < {self.block_rows} ? row_end - row : {self.block_rows};")
            last = self._lengths(code, renderer)
            with code.block("for (i64 i = 0; i < tall; i++)"):
                code.line("const i64 b = row + i;")
                self._start(code, renderer)
                if "lengths" in self.operand:  # the final states of a row without steps are zero
                    zeros = " = ".join(
                        f"{p}[i * {self.state_stride} + j]" for p in ("old", "cells")[: self.form.states]
                    )
                    code.line(f"for (i64 j = 0; length[i] == 0 && j < {self.hidden}; j++) {zeros} = 0;")
            with code.block(f"for (i64 t = 0; t < {last}; t++)"):
                self._step(code, renderer)
                code.line(f"{name} *const other = old; old = new; new = other;")
            if "lengths" in self.operand and self.results[0] is not None:
                with code.block("for (i64 t = longest; t < steps; t++)"), code.block("for (i64 i = 0; i < tall; i++)"):
                    code.line("const i64 b = row + i, s = t;")
                    self._zero(code, renderer, "0", str(self.hidden))
            with code.block("for (i64 i = 0; i < tall; i++)"):
                code.line("const i64 b = row + i;")
                self._finish(code, renderer)

    def _lengths(self, code: Code, renderer: Renderer) -> str:
        """The steps of each row in `length`, and of the block; returns the text of the latter."""
        if "lengths" not in self.operand:
            return "steps"
        code.line(f"i64 length[{self.block_rows}], longest = 0;")
        with code.block("for (i64 i = 0; i < tall; i++)"):
            scope = renderer.scope({ROW: "(row + i)"}, code=code)
            code.line(f"const i64 given = {scope.value(self._load('lengths', (expr.axis(ROW),)))};")
            code.line("length[i] = given < 0 ? 0 : given > steps ? steps : given;")
            code.line("if (length[i] > longest) longest = length[i];")
        return "longest"

    def _units(self, code: Code, first: str, end: str, body: _Body) -> None:
        """body(count) for blocks of lanes `j` of the units from `first` (a multiple of 16) to `end` (at most H)."""
        lanes = self.isa.lanes
        code.line(f"i64 j = {first};")
        with code.block(f"for (; j + {lanes} <= {end}; j += {lanes})"):
            body(None)
        if self.hidden % lanes:
            with code.block(f"if (j < {end})"):
                code.line(f"const i64 count = {end} - j;")
                body("count")

    def _scope(self, code: Code, renderer: Renderer, count: str | None, step: bool, names: Sequence[str] = ()) -> Scope:
        """The scope of a block of units `j` of row `b` (at step `s`), with C names of the sums and states."""
        axes = {ROW: "b", UNIT: "j", **({STEP: "s"} if step else {})}
        return renderer.scope(axes, UNIT, count, dict(enumerate(names)), code=code)

    def _start(self, code: Code, renderer: Renderer) -> None:
        """The initial states of row `b`, row i of the block."""
        for state, place in zip(("h", "c"), ("old", "cells")[: self.form.states], strict=False):

            def body(count: str | None, state: str = state, place: str = place) -> None:
                scope = self._scope(code, renderer, count, False)
                zero = splat(self.dtype, "0")
                where = (expr.const(0, I64), expr.axis(ROW), expr.axis(UNIT))
                value = scope.value(self._load(state, where)) if state in self.operand else zero
                scope.code.line(f"store_{self.type}({place} + i * {self.state_stride} + j, {value});")

            with code.block():
                self._units(code, "0", str(self.hidden), body)

    def _finish(self, code: Code, renderer: Renderer) -> None:
        """The final states of row `b`."""
        for number, place in enumerate(("old", "cells")[: self.form.states], 1):
            result = self.results[number]
            if result is None:
                continue

            def body(count: str | None, result: int = result, place: str = place) -> None:
                scope = self._scope(code, renderer, count, False)
                where = (expr.const(0, I64), expr.axis(ROW), expr.axis(UNIT))
                text = f"load_{self.type}({place} + i * {self.state_stride} + j)"
                scope.store(Store(result, where, expr.const(0, self.dtype)), text)

            with code.block():
                self._units(code, "0", str(self.hidden), body)

    def _store(self, scope: Scope, text: str) -> None:
        """y at step `s`."""
        if self.results[0] is not None:
            where = (expr.axis(STEP), expr.const(0, I64), expr.axis(ROW), expr.axis(UNIT))
            scope.store(Store(self.results[0], where, expr.const(0, self.dtype)), text)

    def _zero(self, code: Code, renderer: Renderer, first: str, end: str) -> None:
        def body(count: str | None) -> None:
            self._store(self._scope(code, renderer, count, True), splat(self.dtype, "0"))

        self._units(code, first, end, body)

    # A step.

    def _step(self, code: Code, renderer: Renderer) -> None:
        tail, groups = self.blocks % self.group, -(-self.blocks // self.group)
        with code.block(f"for (i64 turn = 0; turn < {groups}; turn++)"):
            # Every other step goes backwards: what the last one read last is still in the second-level cache.
            code.line(f"const i64 u = (t & 1 ? {groups - 1} - turn : turn) * {self.group};")
            if tail:
                code.line(f"const i64 wide = {self.blocks} - u < {self.group} ? {tail} : {self.group};")
            wide = "wide" if tail else str(self.group)
            code.line(f"const i64 unit_end = (u + {wide}) * {PANEL} < {self.hidden} ? (u + {wide}) * {PANEL} : "
                      f"{self.hidden};")  # fmt: skip
            code.line(f"const i64 parts = (tall + {self.tile_rows - 1}) / {self.tile_rows};")
            with code.block("for (i64 part = 0, first = 0, r; part < parts; part++, first += r)"):
                code.line("r = tall / parts + (part < tall % parts);")
                start = f"weights + u * {self.gates * self.hidden * PANEL}"
                if self.two_stage:
                    before = (self.gates - 1) * self.blocks
                    self._sums(code, f"old + first * {self.state_stride}", "weights", 0, {"": before})
                    self._each_row(code, renderer, self._reset)
                    start = f"weights + {before * self.hidden * PANEL}"
                    self._sums(code, "changed", start, before, {"": self.blocks})
                elif tail:
                    widths = {f"if (wide == {self.group})": self.group * self.gates, "else": tail * self.gates}
                    self._sums(code, f"old + first * {self.state_stride}", start, 0, widths)
                else:
                    self._sums(code, f"old + first * {self.state_stride}", start, 0, {"": self.group * self.gates})
                self._each_row(code, renderer, self._update)

    def _sums(self, code: Code, a: str, w: str, first: int, widths: dict[str, int]) -> None:
        """sums[row][first…] of so many panels for the `r` rows at `a`; `widths` by the condition that holds."""
        with code.block("switch (r)"):
            for rows in range(1, self.tile_rows + 1):
                with code.block(f"case {rows}:"):
                    for condition, panels in widths.items():
                        with code.block(condition):
                            done = 0
                            for part in split(panels, self._widest(rows)):
                                self.forms.add((rows, part))
                                code.line(
                                    f"sum_{rows}x{part}({a}, {w} + {done * self.hidden * PANEL}, "
                                    f"sums + {(first + done) * PANEL}, {self.sum_stride});"
                                )
                                done += part
                    code.line("break;")

    def _each_row(self, code: Code, renderer: Renderer, body: _RowBody) -> None:
        """body for each row of a tile: i of the block, l of the tile; b of the batch, at step s."""
        with code.block("for (i64 l = 0; l < r; l++)"):
            code.line("const i64 i = first + l, b = row + i;")
            if "lengths" in self.operand:
                with code.block("if (t >= length[i])"):
                    if body == self._update:
                        copy = f"new[i * {self.state_stride} + j] = old[i * {self.state_stride} + j];"
                        code.line(f"for (i64 j = u * {PANEL}; j < unit_end; j++) {copy}")
                        code.line("const i64 s = t;")
                        self._zero(code, renderer, f"u * {PANEL}", "unit_end")
                    else:
                        copy = f"changed[l * {self.state_stride} + j] = 0;"
                        code.line(f"for (i64 j = 0; j < {self.hidden}; j++) {copy}")
                    code.line("continue;")
            end = "length[i]" if "lengths" in self.operand else "steps"
            code.line(f"const i64 s = {f'{end} - 1 - t' if self.attrs['reverse'] else 't'};")
            code.line(f"const {self.type} *const sum = sums + l * {self.sum_stride};")
            self._units(code, f"u * {PANEL}", "unit_end", lambda count: body(code, renderer, count))

    def _names(self, code: Code, gates: int) -> list[str]:
        """Loads the sums of the first gates and the states of a block of units."""
        names = []
        for gate in range(self.gates):
            if self.two_stage:
                place = f"sum + {gate * self.blocks * PANEL} + j"
            else:
                place = f"sum + (j / {PANEL} - u) * {self.gates * PANEL} + {gate * PANEL} + j % {PANEL}"
            names.append(f"r{gate}")
            if gate < gates:
                code.line(f"const v_{self.type} r{gate} = load_{self.type}({place});")
        for state, place in zip(("h", "c"), ("old", "cells")[: self.form.states], strict=False):
            code.line(f"const v_{self.type} {state} = load_{self.type}({place} + i * {self.state_stride} + j);")
            names.append(state)
        return names

    def _reset(self, code: Code, renderer: Renderer, count: str | None) -> None:
        scope = self._scope(code, renderer, count, True, self._names(code, self.gates - 1))
        sums, states = self._roots()
        value = scope.value(reset_state(self.op, self.attrs, self._inputs(), sums, states, self._extra()))
        scope.code.line(f"store_{self.type}(changed + l * {self.state_stride} + j, {value});")

    def _update(self, code: Code, renderer: Renderer, count: str | None) -> None:
        scope = self._scope(code, renderer, count, True, self._names(code, self.gates))
        sums, states = self._roots()
        found = next_state(self.op, self.attrs, self._inputs(), sums, states, self._extra())
        values = [scope.value(value) for value in found]
        for value, place in zip(values, ("new", "cells"), strict=False):
            scope.code.line(f"store_{self.type}({place} + i * {self.state_stride} + j, {value});")
        self._store(scope, values[0])
