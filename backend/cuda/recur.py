"""Recurrent kernels: all steps of an LSTM, GRU or RNN direction, or of a cell, in one kernel.

A program owns rows of the batch and takes them through the whole loop over time, so no step waits for another
program. The state is in registers; weights are too, as many of their rows as fit, and the others are read again in
each step, a piece ahead of its use, from the nearest cache that holds them. What the input gives a step is read a step
ahead.

One row a program is multiplied by plain arithmetic: every thread has columns of the weights, and sums along them. The
gates of a unit lie side by side in memory, so that a thread gets all sums of its units. Rows of 16-bit floats, and
many rows where f32 may be rounded to tf32, go through the tensor cores, sixteen a program. A recurrence of a single
step needs nobody's result, so its units are shared among programs.

Invariant: the bits of a row depend on its operands, not on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aot import dims as dimension
from aot.backend.base import Emitted, PackedOperand
from aot.backend.cuda.code import Code, DimTable, memory_type, offset_at, register_dtype, register_type
from aot.backend.cuda.frame import Tiling, finish, power_of_two
from aot.backend.cuda.render import LARGEST_INDEX, Renderer, Scope, TileDim
from aot.dims import typical
from aot.dtypes import F32
from aot.errors import CompilerError
from aot.expr import Expr, cast, root
from aot.ir import TensorType
from aot.kernel import Kernel, OwnedRoot
from aot.ops.helpers import int_attr
from aot.ops.recur import OPERANDS, extra_parts, form_of, is_two_stage, next_state, reset_state
from aot.program import RecipeOp, RecipeStep
from aot.target import Target

WARPS = 8
RESIDENT_BYTES = 1 << 17
"""Of weights that a program keeps in registers: half of those of a multiprocessor."""

PIECE_BYTES = 1 << 16
"""Of weights that are read at a time in each step, and once more ahead; a quarter of it, and none ahead, where
registers are full of others: then the nearest cache holds them."""

WIDEST_TILE = 1024
"""Columns of weights, with those of all gates, whose sums for a tile of rows leave registers for the rest."""

TILE_ROWS = 16
"""Rows of the batch that go through the tensor cores together."""

LEAST_UNITS = 16
SHARE_UNITS = 16
"""Units of a program where there is one step."""

STREAM_STAGES = 3


def emit_recurrence(kernel: Kernel, target: Target) -> Emitted:
    """Triton for a `recur_lstm`, `recur_gru`, `recur_rnn` or `recur_cell`."""
    found = kernel.root
    if not isinstance(found, OwnedRoot) or found.op not in OPERANDS:
        raise CompilerError(f"{kernel.name}: not a recurrence")
    shape = kernel.inputs[found.operands[0] or 0].type
    is_half = shape.dtype.is_float and shape.dtype.bits == 16
    is_many = typical(shape.shape[1]) > int(target.numbers["multiprocessors"])
    weight = kernel.inputs[found.operands[1] or 0].type
    units = max(power_of_two(max(typical(weight.shape[2]), 1)), LEAST_UNITS)
    columns = units * max(form_of(found.op, found.attrs).gates, 2)
    fits = columns * (1 if is_half else 2) <= WIDEST_TILE
    if fits and (is_half or (shape.dtype == F32 and is_many and "tf32" in target.features)):
        return _Tiles(kernel, target, found).emit()
    return _Rows(kernel, target, found).emit()


@dataclass(frozen=True)
class _Matrix:
    """Columns of weights that are summed together: those of gates side by side, by unit."""

    gates: tuple[int, ...]
    columns: int


class _Recurrence:
    """What both forms share: operands, addresses, the arithmetic of a step."""

    tile = ""  # of a state, as text

    def __init__(self, kernel: Kernel, target: Target, found: OwnedRoot) -> None:
        self.kernel, self.target, self.op, self.attrs = kernel, target, found.op, found.attrs
        names = OPERANDS[found.op]
        self.operand = {n: number for n, number in zip(names, found.operands, strict=False) if number is not None}
        self.results = found.results
        self.form = form_of(found.op, found.attrs)
        gates, weight = self._type("gates"), self._type("weight")
        self.steps, self.batch = gates.shape[:2]
        hidden = weight.shape[2]
        if not isinstance(hidden, int):
            raise CompilerError(f"{kernel.name}: a recurrence of {hidden} units")
        self.hidden, self.padded = hidden, max(power_of_two(hidden), LEAST_UNITS)
        self.gates = self.abreast = self.form.gates
        self.dtype = register_dtype(gates.dtype)
        self.type = register_type(self.dtype)
        self.two_stage = is_two_stage(found.op, found.attrs)
        self.states = ("h", "c")[: self.form.states]
        self.dims, self.code, self.early = DimTable(), Code(1), Code(1)
        self.renderer = Renderer(kernel, self.dims, self.code)
        sizes = [dimension.bounds(o.type.elements)[1] for o in (*kernel.inputs, *kernel.outputs)]
        self.index_type = "tl.int64" if any(size > LARGEST_INDEX for size in sizes) else "tl.int32"
        self.is_constant = kernel.inputs[self.operand["weight"]].constant and isinstance(weight.shape[0], int)
        self.extra: list[str] = []

    def _type(self, name: str) -> TensorType:
        return self.kernel.inputs[self.operand[name]].type

    # Weights.

    def _pack(self, interleaved: bool) -> dict[int, PackedOperand]:
        """All directions of the weights, by what is summed: [k][gate][unit], or [k][unit][gate]."""
        if not self.is_constant:
            return {}
        operand = self._type("weight")
        count, units = operand.shape[0], self._line()
        assert isinstance(count, int)
        sizes = (units, self.abreast) if interleaved else (self.gates, units)
        column = (1, self.hidden) if interleaved else (self.hidden, 1)
        shape = (count, self.hidden, *sizes)
        rows = ((1, 0, 0, 0), (0, 0, *column), (0, 1, 0, 0))
        step = RecipeStep(RecipeOp.PACK, shape=shape, coefficients=rows)
        return {self.operand["weight"]: PackedOperand((step,), operand.dtype.number, shape)}

    def _line(self) -> int:
        """Units of a packed row of weights: whole vectors of 16 bytes."""
        return -(-self.hidden // 8) * 8

    def _weight(self, k: str, gate: str, unit: str, column: str | None = None) -> str:
        """The address of weights; `column`: that of a row whose gates lie side by side."""
        index, number = int_attr(self.attrs, "index"), self.operand["weight"]
        if not self.is_constant:
            type_ = self._type("weight")
            return (
                f"p{number} + {offset_at(self.dims, type_, [str(index), f'({gate}) * {self.hidden} + {unit}', k], '0')}"
            )
        line = self._line() * self.abreast
        inside = column if column is not None else f"({gate}) * {self._line()} + {unit}"
        return f"p{number} + {index * self.hidden * line} + ({k}) * {line} + ({inside})"

    # Operands and results.

    def _address(self, name: str, places: Sequence[str], zeros: str) -> str:
        return f"p{self.operand[name]} + {offset_at(self.dims, self._type(name), places, zeros)}"

    def _read(self, address: str, mask: str | None) -> str:
        inside = f", mask={mask}, other=0" if mask else ""
        return f"tl.load({address}{inside}).to({self.type})"

    def _load_extra(self, unit: str, mask: str | None, zeros: str) -> None:
        """What is the same in every step, as e0, e1, …"""
        if self.form.extra not in self.operand:
            return
        for part in range(extra_parts(self.op, self._type(self.form.extra), self.hidden)):
            address = self._address(self.form.extra, [f"{unit} + {part * self.hidden}"], zeros)
            self.code.line(f"e{part} = {self._read(address, mask)}")
            self.extra.append(f"e{part}")

    def _inputs(self, prefix: str, step: str, row: str, unit: str, mask: str | None, zeros: str) -> None:
        """What the input gives each unit in a step, as PREFIX0, PREFIX1, …"""
        for number in range(self.form.inputs):
            address = self._address("gates", [step, row, f"{unit} + {number * self.hidden}"], zeros)
            self.code.line(f"{prefix}{number} = {self._read(address, mask)}")

    def _store(self, result: int, places: Sequence[str], value: str, mask: str | None, zeros: str) -> None:
        number = self.results[result]
        if number is None:
            return
        type_ = self.kernel.outputs[number].type
        address = f"p{len(self.kernel.inputs) + number} + {offset_at(self.dims, type_, places, zeros)}"
        inside = f", mask={mask}" if mask else ""
        self.code.line(f"tl.store({address}, {value}.to({memory_type(type_.dtype)}){inside})")

    # A step.

    def _leaves(self) -> tuple[list[Expr], list[Expr], list[Expr], list[Expr], dict[int, str]]:
        """Expressions of inputs, sums, states and extras, and the names that they stand for."""
        names: dict[int, str] = {}
        found: list[list[Expr]] = []
        groups = (
            [f"x{n}" for n in range(self.form.inputs)], [f"r{n}" for n in range(self.gates)],
            list(self.states), self.extra,
        )  # fmt: skip
        for group in groups:
            leaves = []
            for name in group:
                names[len(names)] = name
                leaves.append(root(len(names) - 1, self.dtype))
            found.append(leaves)
        x, r, states, extra = found
        return x, r, states, extra, names

    def _reset(self) -> str:
        """What the weights of the last gate multiply, given the sums of the others."""
        x, r, states, extra, names = self._leaves()
        value = reset_state(self.op, self.attrs, x, r, states, extra)
        return self._scope(names).value(cast(value, self.dtype))

    def _next(self) -> list[str]:
        """The states after a step."""
        x, r, states, extra, names = self._leaves()
        scope = self._scope(names)
        return [scope.value(value) for value in next_state(self.op, self.attrs, x, r, states, extra)]

    def _replace(self, found: Sequence[str]) -> None:
        """The states by those after the step, of which one may be another's value before it."""
        for number, value in enumerate(found):
            self.code.line(f"next{number} = {value}")
        for number, name in enumerate(self.states):
            self.code.line(f"{name} = next{number}")

    def _scope(self, names: dict[int, str]) -> Scope:
        return Scope(self.renderer, {}, [TileDim(frozenset(), None)], self.tile, roots=names)

    def _finish(
        self, tiling: Tiling, warps: int, stages: int, schedule: str, packed: dict[int, PackedOperand]
    ) -> Emitted:
        # Many programs fill the device for long: see frame.finish.
        is_heavy = typical(tiling.total) > int(self.target.numbers["multiprocessors"]) // 4
        made = finish(
            self.kernel, tiling, warps=warps, stages=stages, schedule=schedule, early=self.early, is_heavy=is_heavy,
            flops=self.steps * self.batch * (2 * self.gates * self.hidden * self.hidden),
        )  # fmt: skip
        return Emitted(
            made.source, made.dims, made.schedule, packed=packed, flops=made.flops, bytes_moved=made.bytes_moved,
            grid=made.grid,
        )  # fmt: skip


class _Rows(_Recurrence):
    """One row of the batch in a program, without the tensor cores."""

    def __init__(self, kernel: Kernel, target: Target, found: OwnedRoot) -> None:
        super().__init__(kernel, target, found)
        # Of one step nobody waits for another's result; what resets needs all units first.
        self.is_shared = self.steps == 1 and not self.two_stage and self.padded > SHARE_UNITS
        self.units = SHARE_UNITS if self.is_shared else self.padded
        self.tile = f"({self.units},)"
        self.zeros = f"tl.zeros(({self.units},), tl.int32)"
        # Three gates lie beside zeros where there is room for them: one sum takes fewer barriers than three.
        item = self.dtype.itemsize_bytes
        beside = power_of_two(self.gates)
        has_room = self.is_constant and not self.is_shared and self.padded**2 * beside * item <= RESIDENT_BYTES // 2
        self.interleaved = self.gates > 1 and not self.two_stage and (beside == self.gates or has_room)
        if self.interleaved:
            self.abreast = beside
            self.stages = [[_Matrix(tuple(range(beside)), self.units * beside)]]
        else:
            each = [_Matrix((gate,), self.units) for gate in range(self.gates)]
            self.stages = [each[:-1], each[-1:]] if self.two_stage else [each]
        columns = self.abreast * self.units
        self.resident = self._resident(columns * item)
        total = min(self.resident, self.padded) * columns * item
        self.warps = 4 if self.resident >= self.padded and total <= RESIDENT_BYTES // 2 else WARPS
        widest = max(sum(matrix.columns for matrix in stage) for stage in self.stages)
        # Where a thread has columns to itself, it adds up a piece on the spot.
        narrowest = min(matrix.columns for stage in self.stages for matrix in stage)
        self.adds_at_once = narrowest >= 4 * 32 * self.warps
        # Sums that are not made at once take as many registers as a piece.
        wanted = PIECE_BYTES // 4 if self.resident else PIECE_BYTES if self.adds_at_once else PIECE_BYTES * 3 // 4
        piece = max(wanted // (widest * item), 1)
        # A gather must not reach behind the padded state.
        self.piece = min(1 << (piece.bit_length() - 1), self.resident or self.padded)
        self.chunks = max(-(-(self.hidden - self.resident) // self.piece), 0)

    def _resident(self, row_bytes: int) -> int:
        """Rows of the weights that stay in registers: all of them, a power of two, or none."""
        if self.is_shared:
            return 0
        # What a double is multiplied by, and its sums, need registers of their own.
        held = RESIDENT_BYTES // 4 if self.dtype.bits == 64 else RESIDENT_BYTES
        if not self.is_constant:  # in the model's order, which suits no thread
            held //= 2
        if self.padded * row_bytes <= held:
            return self.padded
        fit = held // row_bytes
        # The few that a quarter of the registers holds are not worth the gathering.
        return 1 << (fit.bit_length() - 1) if fit * 4 >= self.hidden else 0

    def emit(self) -> Emitted:
        code, dims, hidden = self.code, self.dims, self.hidden
        tiling = Tiling(code, dims)
        blocks = -(-hidden // self.units)
        setup = self.early if self.is_constant else code
        if setup is self.early and self.is_shared:
            setup.line("program = tl.program_id(0)")
        with tiling.programs(self.batch * blocks) as program:
            code.line(f"row = ({program} // {blocks}).to({self.index_type})" if blocks > 1
                      else f"row = {program}.to({self.index_type})")  # fmt: skip
            start = f"program % {blocks} * {self.units} + " if blocks > 1 else ""
            setup.line(f"u = {start}tl.arange(0, {self.units})")
            if blocks * self.units != hidden:
                setup.line(f"inside = u < {hidden}")
                self.inside: str | None = "inside"
            else:
                self.inside = None
            self._begin_weights(setup)
            self._states()
            self._loop()
        kept = min(self.resident, hidden)
        where = f"{kept} of {hidden} rows of weights in registers"
        if self.chunks:
            where += f", others in pieces of {self.piece}"
        shared = f"; {self.units} units a program" if self.is_shared else ""
        schedule = f"{self.op}: one row a program{shared}; {where}; all steps in one loop"
        return self._finish(tiling, self.warps, 1, schedule, self._pack(self.interleaved))

    # Weights.

    def _matrices(self) -> list[tuple[str, _Matrix]]:
        flat = [matrix for stage in self.stages for matrix in stage]
        return [(str(number), matrix) for number, matrix in enumerate(flat)]

    def _begin_weights(self, setup: Code) -> None:
        """Resident rows, and the first piece of the others."""
        for name, matrix in self._matrices():
            if matrix.columns != self.units:
                start = f"program % {-(-self.hidden // self.units)} * {matrix.columns} + " if self.is_shared else ""
                setup.line(f"column{name} = {start}tl.arange(0, {matrix.columns})")
            if self.resident:
                setup.line(f"w{name} = {self._rows(matrix, name, '0', self.resident)}")
            if self.chunks and not self.resident:
                setup.line(f"q{name} = {self._rows(matrix, name, '0', self.piece)}")

    def _rows(self, matrix: _Matrix, name: str, first: str, count: int) -> str:
        """The load of so many rows of a matrix from the first on."""
        k = f"({first} + tl.arange(0, {count}))[:, None]"
        limit = self.hidden * len(matrix.gates)
        if len(matrix.gates) > 1:
            count_gates = len(matrix.gates)
            column = f"column{name}[None, :]"
            gate, unit = f"({column} % {count_gates})", f"({column} // {count_gates})"
        else:
            column = "u[None, :]"
            gate, unit = str(matrix.gates[0]), column
        address = self._weight(k, gate, unit, column if len(matrix.gates) > 1 else None)
        whole = first.isdigit() and int(first) + count <= self.hidden
        whole = whole or ((self.hidden - self.resident) % count == 0 and not (self.is_shared and first == "following"))
        masks = [] if whole else [f"({k} < {self.hidden})"]
        if self.inside is not None:
            masks.append(f"({column} < {limit})")
        return self._read(f"{address} + tl.zeros(({count}, {matrix.columns}), tl.int32)", " & ".join(masks) or None)

    def _sums(self, stage: int, state: str) -> None:
        """r0, r1, … of a stage: the weighted sums of a state, which is there whole."""
        code = self.code
        first = sum(len(each) for each in self.stages[:stage])
        names = [(str(first + number), matrix) for number, matrix in enumerate(self.stages[stage])]
        if self.resident:
            if self.resident == self.padded:
                code.line(f"k_state = {state}[:, None]")
            else:
                code.line(f"k_state = {self._part(state, '0', self.resident)}[:, None]")
            for name, _ in names:
                code.line(f"s{name} = tl.sum(w{name} * k_state, axis=0)")
        if self.chunks:
            for name, matrix in names:
                if self.adds_at_once and not self.resident:
                    code.line(f"s{name} = tl.zeros(({matrix.columns},), {self.type})")
                if not self.adds_at_once:
                    code.line(f"a{name} = tl.zeros(({self.piece}, {matrix.columns}), {self.type})")
            end = self.resident + self.chunks * self.piece
            with code.block(f"for at in range({self.resident}, {end}, {self.piece})"):
                goes_on = self.chunks > 1 or not self.is_shared
                if not self.resident and goes_on:  # after the last piece the first one of the next step
                    around = "" if self.is_shared else f" % {end}"
                    code.line(f"following = (at + {self.piece}){around}")
                for name, matrix in names:
                    if self.resident:
                        code.line(f"v{name} = {self._rows(matrix, name, 'at', self.piece)}")
                        continue
                    code.line(f"v{name} = q{name}")
                    if goes_on:
                        code.line(f"q{name} = {self._rows(matrix, name, 'following', self.piece)}")
                code.line(f"k_part = {self._part(state, 'at', self.piece)}[:, None]")
                for name, _ in names:
                    if self.adds_at_once:
                        code.line(f"s{name} += tl.sum(v{name} * k_part, axis=0)")
                    else:
                        code.line(f"a{name} += v{name} * k_part")
            if not self.adds_at_once:
                for name, _ in names:
                    code.line(f"s{name} {'+=' if self.resident else '='} tl.sum(a{name}, axis=0)")
        for name, matrix in names:
            self._split(f"s{name}", matrix.gates)

    def _part(self, state: str, first: str, count: int) -> str:
        """So many units of a state from the first on."""
        if not self.is_shared:
            return f"tl.gather({state}, {first} + tl.arange(0, {count}), 0)"
        if "h" not in self.operand:
            return f"tl.zeros(({count},), {self.type})"
        unit = f"({first} + tl.arange(0, {count}))"
        mask = f"{unit} < {'limit' if self._may_be_empty() else self.hidden}"
        return self._read(self._address("h", ["0", "row", unit], f"tl.zeros(({count},), tl.int32)"), mask)

    def _split(self, name: str, gates: Sequence[int]) -> None:
        """r0, r1, … from sums whose gates lie side by side."""
        code, count = self.code, len(gates)
        if count == 1:
            code.line(f"r{gates[0]} = {name}")
            return
        held = {name: list(gates)}
        while count > 1:
            count //= 2
            following: dict[str, list[int]] = {}
            for each, numbers in held.items():
                shape = f"({self.units}, {count}, 2)" if count > 1 else f"({self.units}, 2)"
                left, right = f"{each}l", f"{each}r"
                code.line(f"{left}, {right} = tl.split(tl.reshape({each}, {shape}))")
                following[left], following[right] = numbers[0::2], numbers[1::2]
            held = following
        for each, numbers in held.items():
            code.line(f"r{numbers[0]} = {each}")

    # Time.

    def _may_be_empty(self) -> bool:
        return "lengths" in self.operand or dimension.bounds(self.steps)[0] < 1

    def _states(self) -> None:
        code, dims = self.code, self.dims
        code.line(f"steps = {dims.text(self.steps)}")
        if "lengths" in self.operand:
            code.line(f"last = tl.load({self._address('lengths', ['row'], '0')}).to(tl.int64)")
            code.line("last = tl.minimum(tl.maximum(last, 0), steps)")
        else:
            code.line("last = steps")
        self.first_mask = self.inside
        if self._may_be_empty():
            code.line(f"limit = tl.where(last > 0, {self.hidden}, 0)")
            code.line("there = u < limit")
            self.first_mask = "there"
        for name in self.states:
            if name in self.operand:
                code.line(f"{name} = {self._read(self._address(name, ['0', 'row', 'u'], self.zeros), self.first_mask)}")
            else:
                code.line(f"{name} = tl.zeros({self.tile}, {self.type})")
        self._load_extra("u", self.inside, self.zeros)

    def _place(self, step: str) -> str:
        return f"(last - 1 - ({step}))" if self.attrs["reverse"] else f"({step})"

    def _loop(self) -> None:
        code = self.code
        self._inputs("y", self._place("0"), "row", "u", self.first_mask, self.zeros)
        with code.block("for t in range(0, last)"):
            code.line(f"s = {self._place('t')}")
            for number in range(self.form.inputs):
                code.line(f"x{number} = y{number}")
            if self.steps != 1:
                code.line("ahead = tl.minimum(t + 1, last - 1)")
                self._inputs("y", self._place("ahead"), "row", "u", self.inside, self.zeros)
            self._sums(0, "h")
            if self.two_stage:
                code.line(f"changed = {self._reset()}")
                self._sums(1, "changed")
            self._replace(self._next())
            self._store(0, ["s", "0", "row", "u"], "h", self.inside, self.zeros)
        if "lengths" in self.operand and self.results[0] is not None:
            with code.block("for t in range(last, steps)"):
                code.line(f"nothing = tl.zeros({self.tile}, {self.type})")
                self._store(0, ["t", "0", "row", "u"], "nothing", self.inside, self.zeros)
        for number, name in enumerate(self.states, 1):
            self._store(number, ["0", "row", "u"], name, self.inside, self.zeros)


class _Tiles(_Recurrence):
    """Sixteen rows of the batch in a program, multiplied by the tensor cores."""

    def __init__(self, kernel: Kernel, target: Target, found: OwnedRoot) -> None:
        super().__init__(kernel, target, found)
        self.tile = f"({TILE_ROWS}, {self.padded})"
        self.zeros = f"tl.zeros({self.tile}, tl.int32)"
        self.operand_type = memory_type(self._type("weight").dtype)
        item = self._type("weight").dtype.itemsize_bytes
        weights = self.padded * self.padded * self.gates * item
        # They come to registers by way of shared memory, all at once, with some padding.
        self.is_resident = weights <= min(RESIDENT_BYTES, target.numbers["shared_bytes"] * 8 // 9)
        is_small = not self.is_resident or weights <= RESIDENT_BYTES // 2
        self.warps = 4 if self.padded * self.gates <= 256 and is_small else WARPS
        piece = max(PIECE_BYTES // 2 // (self.padded * self.gates * item), 16)
        self.piece = min(1 << (piece.bit_length() - 1), self.padded)
        self.precision = ', input_precision="tf32"' if item == 4 else ""

    def emit(self) -> Emitted:
        code, dims, hidden = self.code, self.dims, self.hidden
        tiling = Tiling(code, dims)
        setup = self.early if self.is_constant else code
        with tiling.programs(dimension.ceildiv(self.batch, TILE_ROWS)) as program:
            setup.line(f"u = tl.arange(0, {self.padded})[None, :]")
            if self.is_resident:
                for gate in range(self.gates):
                    setup.line(f"w{gate} = {self._rows(gate, '0', self.padded)}")
            code.line(f"row = ({program}.to({self.index_type}) * {TILE_ROWS} + tl.arange(0, {TILE_ROWS}))[:, None]")
            code.line(f"row_inside = row < {dims.text(self.batch)}")
            code.line(f"inside = row_inside & (u < {hidden})")
            self._states()
            self._loop()
        where = "in registers" if self.is_resident else f"in pieces of {self.piece} rows"
        return self._finish(
            tiling, self.warps, 1 if self.is_resident else STREAM_STAGES,
            f"{self.op}: {TILE_ROWS} rows a program; weights {where}; all steps in one loop", self._pack(False),
        )  # fmt: skip

    def _rows(self, gate: int, first: str, count: int) -> str:
        k = f"({first} + tl.arange(0, {count}))[:, None]"
        address = self._weight(k, str(gate), "u")
        masks = [] if self.hidden % count == 0 else [f"({k} < {self.hidden})"]
        if self.hidden != self.padded:
            masks.append(f"(u < {self.hidden})")
        inside = f", mask={' & '.join(masks)}, other=0" if masks else ""
        return f"tl.load({address} + tl.zeros(({count}, {self.padded}), tl.int32){inside})"

    def _sums(self, gates: Sequence[int], state: str) -> None:
        code = self.code
        if self.is_resident:
            code.line(f"k_state = {state}.to({self.operand_type})")
            for gate in gates:
                zero = f"tl.zeros({self.tile}, tl.float32)"
                code.line(f"r{gate} = tl.dot(k_state, w{gate}, {zero}{self.precision})")
            return
        for gate in gates:
            code.line(f"r{gate} = tl.zeros({self.tile}, tl.float32)")
        with code.block(f"for at in range(0, {self.hidden}, {self.piece})"):
            place = f"at + tl.arange(0, {self.piece})[None, :] + tl.zeros(({TILE_ROWS}, {self.piece}), tl.int32)"
            code.line(f"k_part = tl.gather({state}, {place}, 1).to({self.operand_type})")
            for gate in gates:
                code.line(f"r{gate} = tl.dot(k_part, {self._rows(gate, 'at', self.piece)}, r{gate}{self.precision})")

    def _states(self) -> None:
        code, dims = self.code, self.dims
        code.line(f"steps = {dims.text(self.steps)}")
        if "lengths" in self.operand:
            zeros = f"tl.zeros(({TILE_ROWS}, 1), tl.int32)"
            code.line(f"last = tl.load({self._address('lengths', ['row'], zeros)}, mask=row_inside, other=0)")
            code.line("last = tl.minimum(tl.maximum(last.to(tl.int64), 0), steps)")
            code.line("longest = tl.max(tl.max(last, axis=0), axis=0)")
        else:
            code.line(f"last = tl.zeros(({TILE_ROWS}, 1), tl.int32) + steps")
            code.line("longest = steps")
        code.line("there = inside & (last > 0)")
        for name in self.states:
            if name in self.operand:
                code.line(f"{name} = {self._read(self._address(name, ['0', 'row', 'u'], self.zeros), 'there')}")
            else:
                code.line(f"{name} = tl.zeros({self.tile}, {self.type})")
        self._load_extra("u", f"(u < {self.hidden})", f"tl.zeros((1, {self.padded}), tl.int32)")

    def _place(self, step: str) -> str:
        return f"tl.maximum(last - 1 - ({step}), 0)" if self.attrs["reverse"] else f"({step})"

    def _loop(self) -> None:
        code, lengths = self.code, "lengths" in self.operand
        self._inputs("y", self._place("0"), "row", "u", "there", self.zeros)
        with code.block("for t in range(0, longest)"):
            code.line(f"s = {self._place('t')}")
            for number in range(self.form.inputs):
                code.line(f"x{number} = y{number}")
            code.line("ahead = tl.minimum(t + 1, longest - 1)")
            self._inputs("y", self._place("ahead"), "row", "u", "inside", self.zeros)
            self._sums(range(self.gates - self.two_stage), "h")
            if self.two_stage:
                code.line(f"changed = {self._reset()}")
                self._sums([self.gates - 1], "changed")
            found = self._next()
            if lengths:
                code.line("active = t < last")
                found = [f"tl.where(active, {value}, {name})" for name, value in zip(self.states, found, strict=True)]
            self._replace(found)
            mask = "inside & active" if lengths else "inside"
            self._store(0, ["s", "0", "row", "u"], "h", mask, self.zeros)
        if lengths and self.results[0] is not None:
            with code.block("for t in range(0, steps)"):
                code.line(f"nothing = tl.zeros({self.tile}, {self.type})")
                self._store(0, ["t", "0", "row", "u"], "nothing", "inside & (t >= last)", self.zeros)
        for number, name in enumerate(self.states, 1):
            self._store(number, ["0", "row", "u"], name, "inside", self.zeros)
