"""Products with a weight in 4 or 8 bits, which becomes floats in registers, where it is multiplied.

The weight is read in words of 32 bits, eight or four numbers each, what is summed innermost. A number of a word becomes
an f32 by two instructions: its bits are cut out, where they lie in the word's lower half, into an f32 of 2^23 or more,
whose last bit counts 1; then 2^23, and the zero point as often as the place of the number says, are taken away. What is
left is the number times a power of two, exactly; its inverse goes into the other factor.

Beside f16, numbers become halves two at a time (halves.py). Up to sixteen rows are then tiles of tensor cores, made of
words as they are read (fragments.py). More rows are tiles in the language's own terms.

Beside other floats, few rows are a stream, bound by the bytes of the weight: each program holds some columns whole, in
registers, before its predecessors have ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from aot import dims as dimension
from aot.backend.base import Emitted, PackedOperand
from aot.backend.cuda.contract import FEW_STEPS, Stream, Tile, _Contract
from aot.backend.cuda.fragments import LANES, LEAST_COLUMNS, QUAD, WORD_BITS, Fragments
from aot.backend.cuda.frame import Tiling, power_of_two
from aot.backend.cuda.halves import halves_name, halves_text
from aot.backend.cuda.render import Renderer, Scope, TileDim
from aot.dims import typical
from aot.dtypes import BF16, F16, F32, DType
from aot.errors import CompilerError
from aot.expr import cast, walk
from aot.kernel import Kernel, PackedWeight
from aot.ops.quantized import NIBBLE_ZERO
from aot.program import RecipeOp, RecipeStep
from aot.target import Target

LONGEST_RUN = 32
"""Numbers of a thread that share a scale."""

MOST_STREAM_ROWS = 2
"""Rows of a stream: each is 32 registers of every thread."""

THREAD_WORDS = 32
"""Words of a weight that a thread of a stream holds at a time, for one row."""

MOST_LINES = 32
"""Lines of words of a program of a stream; of longer columns several pieces, one after the other."""

MOST_WARPS = 8
PROCESSOR_WARPS = 16
"""Warps of a multiprocessor that products of few rows on tensor cores have."""

MOST_ROWS = 16
"""Rows that are few beside f16: two columns of tensor cores' tiles."""

MAGIC = 0x4B000000  # the bits of 2^23 as f32


def emit_packed(kernel: Kernel, target: Target, schedule: Tile | Stream | None = None) -> Emitted:
    """Triton for a kernel with a ContractRoot that has a packed weight; with `schedule`, cut as it says.

    Weights whose rows fill no words, or that are no constants, are computed element by element, as their expression
    says.
    """
    return _Packed(kernel, target, schedule, {}).emit()


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a stream is cut: words that a lane loads at once, lines of a column, those at a time, columns."""

    deep: int
    lines: int
    together: int
    columns: int

    def steps(self, numbers: int) -> tuple[int, int, int]:
        """Summed elements from one line, lane, and word beside to the next."""
        return LANES * self.deep * numbers, numbers, LANES * numbers


class _Packed(_Contract):
    def emit(self) -> Emitted:
        weight = self.root.weight
        if weight is None:
            raise CompilerError(f"{self.source.name}: no packed weight")
        self.weight: PackedWeight = weight
        self.numbers = WORD_BITS // weight.bits  # of a word
        if not self._fills_words():
            return super().emit()
        is_cut_so = self.schedule is None or (isinstance(self.schedule, Tile) and self.schedule.sums > 1)
        if self._suits_rows() and is_cut_so:
            return self._packed_rows()
        few = isinstance(self.rows, int) and self.rows <= MOST_STREAM_ROWS
        if isinstance(self.schedule, Stream) or (few and self.schedule is None):
            return self._packed_stream()
        return self._packed_tiles()

    # The weight.

    def _fills_words(self) -> bool:
        """Whether the weight is a constant of this product alone, in whole words, with whole runs of one scale."""
        weight, kernel = self.weight, self.source
        operands = [number for number in (weight.w, weight.scale, weight.zero) if number is not None]
        others = [self.root.a, *(store.value for store in self.kernel.stores)]
        if any(node.op == "load" and node.payload in operands for other in others for node in walk(other)):
            return False
        if not all(kernel.inputs[number].constant for number in operands) or len(set(operands)) < len(operands):
            return False
        if not isinstance(self.summed, int) or not isinstance(self.columns, int) or self.summed == 0:
            return False
        self.blocks = -(-self.summed // weight.block)
        run = weight.block if self.blocks > 1 else self.summed
        self.run = min(run & -run, LONGEST_RUN)  # numbers that surely share a scale, a power of two
        return self.summed % self.numbers == 0 and self.run >= self.numbers and self.root.accumulate == F32

    def ask(
        self, number: int | None, shape: tuple[int, ...], rows: tuple[int, ...], columns: tuple[int, ...] = ()
    ) -> None:
        """Asks for an operand [rows, columns] in a shape: `rows` and `columns` are what a step along each of its axes
        is in them; without `columns`, the first axis is the columns."""
        if number is not None:
            if not columns:
                rows, columns = (0, *rows), (1, *(0,) * len(rows))
            step = RecipeStep(RecipeOp.PACK, shape=shape, coefficients=(rows, columns))
            self.packed[number] = PackedOperand((step,), self.source.inputs[number].type.dtype.number, shape)

    def _offset(self, place: int, turn: str = "") -> str:
        """What is taken away from the f32 that the bits at a place of a half word make; `turn`: of the zero points."""
        factor = 1 << self.weight.bits * place
        plain = 128 if self.weight.bits == 8 else 0
        if self.weight.zero is None:
            zero = plain if self.weight.bits == 8 else NIBBLE_ZERO
            return repr(float((1 << 23) + zero * factor))
        return f"({float((1 << 23) + plain * factor)!r} + zero * {float(factor)!r}){turn}"

    def _place(self, number: int) -> tuple[int, int]:
        """Which half of a word, and which place of it, a number has."""
        return divmod(number, self.numbers // 2)

    def _decoded(self, number: int, offset: str, magic: str = str(MAGIC)) -> str:
        """The text of a number of every word, times the power of two of its place."""
        half, place = self._place(number)
        bits = ((1 << self.weight.bits) - 1) << self.weight.bits * place
        return f"(((words{' >> 16' if half else ''}) & {bits}) | {magic}).to(tl.float32, bitcast=True) - {offset}"

    def _factor(self, number: int) -> float:
        """The inverse of the power of two of a number's place."""
        return 1 / (1 << self.weight.bits * self._place(number)[1])

    def _suits_halves(self) -> bool:
        """Whether numbers are made halves two at a time: beside f16, with scales in f16."""
        scale = self.source.inputs[self.weight.scale].type.dtype
        return self._multiplied() == F16 and (self.blocks == 1 or scale == F16)

    def _suits_rows(self) -> bool:
        """Whether rows are few beside f16, and blocks are whole pieces of four words, as chunks of them are."""
        few = isinstance(self.rows, int) and 0 < self.rows <= MOST_ROWS and self._multiplied() == F16
        block = self.weight.block
        return few and (self.blocks == 1 or (block >= QUAD * self.numbers and block == power_of_two(block)))

    # Few rows.

    def _choose_rows(self) -> Tile:
        """Columns for at least a program for each multiprocessor; warps so that all programs run at once."""
        if isinstance(self.schedule, Tile):
            return self.schedule
        assert isinstance(self.rows, int) and isinstance(self.summed, int)
        processors = self.target.numbers["multiprocessors"]
        is_wide = typical(self.columns) >= 3 * LEAST_COLUMNS * processors
        columns, pieces = (2 * LEAST_COLUMNS, 4) if is_wide else (LEAST_COLUMNS, 8)
        of_piece = QUAD * self.numbers
        if self.rows > 8 and self.summed <= PROCESSOR_WARPS * 4 * of_piece:
            pieces = 4  # a step's values beside the words take twice the registers
        programs = min(-(-typical(self.columns) // columns), int(2 * processors))
        most = min(max(power_of_two(int(PROCESSOR_WARPS * processors / programs) // 2 + 1), 8), PROCESSOR_WARPS)
        warps = min(power_of_two(-(-self.summed // (pieces * of_piece))), most)
        return Tile(8 if self.rows <= 8 else 16, columns, warps * pieces * of_piece, warps, 1, warps)

    def _packed_rows(self) -> Emitted:
        """Tiles of tensor cores whose warps share what is summed; see fragments.py.

        The words of a step are read before those of the step before it are multiplied, and the first before the
        program's predecessors have ended. Where one step is all, their numbers are made before that as well.
        """
        assert isinstance(self.rows, int) and isinstance(self.summed, int) and isinstance(self.columns, int)
        weight, early, code, numbers = self.weight, self.early, self.code, self.numbers
        tile = self._choose_rows()
        cut = Fragments(self, tile)
        cut.ask()
        tiling = Tiling(early, self.dims)
        renderer = Renderer(self.kernel, self.dims, early)
        is_single = cut.turns == 1 and cut.steps == 1
        span = cut.steps * tile.warps
        with tiling.programs(dimension.ceildiv(self.columns, tile.columns * cut.turns)) as program:
            early.line(f"across = {program} * {cut.turns}")
            early.line(f"thread = tl.arange(0, {cut.threads})")
            early.line("warp = thread // 32")
            early.line("group = thread % 32 // 4")
            early.line("within = thread % 4")
            cut.read(renderer, "", "across", "warp", "")
            renderer.code = code
            outer = Scope(renderer, {}, [], "(1, 1)")
            if is_single:
                cut.make_halves(early)
                cut.settle(early)
            with ExitStack() as stack:
                if cut.turns > 1:
                    stack.enter_context(code.block(f"for turn in range(0, {cut.turns})"))
                else:
                    code.line("turn = 0 * across")
                for name in cut.sums:
                    code.line(f"{name} = tl.zeros(({cut.threads},), tl.float32)")
                with code.block(f"for at in range(0, {span}, {tile.warps})"):
                    code.line(f"first = ({renderer.index('at')} + warp) * {cut.of_chunk} + within * {numbers}")
                    # All that a step reads comes first: what is read in between would be waited for each time.
                    given: list[list[tuple[str, str]]] = [[] for _ in cut.all]
                    for row_tile in range(tile.rows // 8):
                        code.line(f"row{row_tile} = (group + {8 * row_tile})[:, None]")
                        places = self._indices(self.row_axes, f"row{row_tile}")
                        for piece in cut.all:
                            given[piece].append(self._beside(renderer, outer, cut, piece, row_tile, places))
                    if not is_single:
                        code.line(f"next_turn = turn + (at + {tile.warps}) // {span}")
                        code.line(f"next_chunk = (at + {tile.warps}) % {span} + warp")
                        cut.read(
                            renderer,
                            "next_",
                            "across + next_turn",
                            "next_chunk",
                            f"next_turn + 0 * thread < {cut.turns}",
                        )
                        cut.make_halves(code)
                    for piece in cut.all:
                        cut.multiply(code, piece, [cut.parts(code, *each, numbers) for each in given[piece]])
                    for name in () if is_single else cut.held:
                        code.line(f"{name} = next_{name}")
                cut.join(code)
                self._fold("acc", tile.warps, f"{tile.rows}, {tile.columns}")
                n_dim, n = self._span(renderer, "n", "(across + turn)", tile.columns, self.column_axes, "[None, :]")
                if self.blocks == 1:
                    mask = "" if n_dim.mask is None else f", mask={n_dim.mask}, other=0"
                    code.line(f"acc = acc * tl.load(p{weight.scale} + n{mask}).to(tl.float32)")
                m_dim, m = self._span(renderer, "m", "(0 * across)", tile.rows, self.row_axes, "[:, None]")
                shape = f"({tile.rows}, {tile.columns})"
                self._store(renderer, outer, {**m, **n}, [m_dim, n_dim], shape, ["acc"])
        tiling.code = code
        text = f"few rows, tiles of {tile}, {weight.bits} bits"
        # In several steps 16 rows beside 4 bits would then ask for more registers than there are.
        blocks = 0 if tile.rows == 16 and weight.bits == 4 and not is_single else 1
        return self._finish(tiling, tile.warps, 1, text, functions=cut.functions, blocks=blocks)

    def _beside(
        self, renderer: Renderer, outer: Scope, cut: Fragments, piece: int, row_tile: int,
        places: Mapping[int, str],
    ) -> tuple[str, str]:  # fmt: skip
        """Writes what a row has beside the numbers of a thread's word; its text, and a name for its parts."""
        code, k, shape = self.code, self.root.k, f"({cut.threads}, {self.numbers})"
        name = f"x{piece}_{row_tile}"
        code.line(f"k = (first + {piece * cut.of_piece})[:, None] + tl.arange(0, {self.numbers})[None, :]")
        # Lanes without a row read nothing: of a warp's loads the cache then serves one of four parts.
        masks = [f"(row{row_tile} < {self.rows})"] if self.rows % 8 else []
        if self.summed != cut.of_chunk * cut.tile.warps * cut.steps:
            masks.append(f"(k < {self.summed})")
        dims = [TileDim(frozenset({k}), " & ".join(masks) or None)]
        a = self._operand(Scope(renderer, {**places, k: "k"}, dims, shape, outer), self.root.a, F16)
        code.line(f"{name} = tl.broadcast_to({a}, {shape})")
        return name, f"{name}_"

    def plain_zero(self) -> float:
        """What a zero point of 0 is as a number of a word."""
        return 128.0 if self.weight.bits == 8 else 0.0

    def _halves(self) -> str:
        """Writes the numbers of `words` as halves, `b0` and so on; the text of the function that it took.

        Where there are zero points or scales of blocks, `zero` and `scale` are f16, in shapes that join the words'.
        """
        bits, zero, scaled = self.weight.bits, self.weight.zero is not None, self.blocks > 1
        names = [f"b{number}" for number in range(self.numbers)]
        given = ["words", *(["zero"] if zero else []), *(["scale"] if scaled else [])]
        self.code.line(f"{', '.join(names)} = {halves_name(bits, zero, scaled)}({', '.join(given)})")
        return halves_text(bits, zero, scaled)

    # Streams.

    def _packed_stream(self) -> Emitted:
        """Neighbouring lanes have neighbouring words, each beside as many as one load brings (`deep`).

        What a thread needs of the left operand are then whole lines, which lie in its registers as the words do.
        """
        assert isinstance(self.rows, int) and isinstance(self.summed, int) and isinstance(self.columns, int)
        code, early, weight = self.code, self.early, self.weight
        stream = self.schedule if isinstance(self.schedule, Stream) else self._choose_packed_stream()
        deep = self._deep()
        lines = -(-self.summed // (LANES * deep * self.numbers))
        together = min(max(stream.summed // (LANES * deep * self.numbers), 1), power_of_two(lines))
        self.cut = _Cut(deep, lines, together, stream.columns)
        self.ask(
            weight.w, (self.columns, lines, LANES, deep, 4),
            (*(size * weight.bits // 8 for size in self.cut.steps(self.numbers)), 1),
        )  # fmt: skip
        tiling = Tiling(early, self.dims)
        renderer = Renderer(self.kernel, self.dims, early)
        single = lines <= together
        with tiling.programs(dimension.ceildiv(self.columns, stream.columns)) as program:
            early.line(f"across = {program}")
            body, self.code = self.code, early
            n_dim, n = self._span(renderer, "n", "across", stream.columns, self.column_axes, "[:, None]")
            self.code = body
            if single:
                self._line_of_words(renderer, "0", n_dim.mask)
            renderer.code = code
            if single:
                self._add_line(renderer, "=")
            else:
                for m in range(self.rows):
                    code.line(f"sum{m} = tl.zeros(({stream.columns}, {together}, {LANES}, {deep}), tl.float32)")
                with code.block(f"for at in range(0, {lines}, {together})"):
                    self._line_of_words(renderer, "at", n_dim.mask)
                    self._add_line(renderer, "+=")
            outer = Scope(renderer, {}, [], "(1, 1)")
            for m in range(self.rows):
                code.line(f"row{m} = tl.sum(tl.sum(tl.sum(sum{m}, axis=3), axis=2), axis=1, keep_dims=True)")
                if self.blocks == 1:
                    mask = "" if n_dim.mask is None else f", mask={n_dim.mask}, other=0"
                    code.line(f"row{m} = row{m} * tl.load(p{weight.scale} + n{mask}).to(tl.float32)")
                one = [n_dim, TileDim(frozenset(), None)]
                self._store(
                    renderer, outer, {**n, **self._row_places(m)}, one, f"({stream.columns}, 1)", [f"row{m}"]
                )  # fmt: skip
        tiling.code = code
        return self._finish(tiling, stream.warps, 3, f"stream of {stream}, {weight.bits} bits")

    def _line_of_words(self, renderer: Renderer, first: str, n_mask: str | None) -> None:
        """Writes `words`, [columns, lines, lanes, deep], of lines from `first` on, and their `scale` and `zero`."""
        weight, code, cut = self.weight, renderer.code, self.cut
        deep = cut.deep
        code.line(f"line = {first} + tl.arange(0, {cut.together})[None, :, None, None]")
        code.line(f"lane = tl.arange(0, {LANES})[None, None, :, None]")
        code.line(f"beside = tl.arange(0, {deep})[None, None, None, :]")
        code.line("column = n[:, :, None, None]")
        masks = [] if n_mask is None else [f"{n_mask}[:, :, None, None]"]
        if cut.lines % cut.together:
            masks.append(f"(line < {cut.lines})")
        mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
        of_line = LANES * deep
        place = renderer.index(f"column * {cut.lines * of_line}")
        code.line(
            f"words = tl.load(p{weight.w}.to(tl.pointer_type(tl.uint32)) + {place} + line * {of_line} "
            f"+ lane * {deep} + beside{mask})"
        )
        if weight.bits == 8:
            code.line("words = words ^ 0x80808080")
        if self.blocks == 1:
            self.ask(weight.zero, (self.columns, 1), (1,))  # type: ignore[arg-type]  # an integer
            only = "" if n_mask is None else f", mask={n_mask}[:, :, None, None], other=0"
            if weight.zero is not None:
                code.line(f"zero = tl.load(p{weight.zero} + column{only}).to(tl.float32)")
            return
        place = self._place_of_scale()
        code.line(f"scale = tl.load(p{weight.scale} + {place}{mask}).to(tl.float32)")
        if weight.zero is not None:
            code.line(f"zero = tl.load(p{weight.zero} + {place}{mask}).to(tl.float32)")

    def _place_of_scale(self) -> str:
        """Asks for scales and zero points as they are read; where that of a word lies."""
        weight, cut = self.weight, self.cut
        assert isinstance(self.columns, int)
        words = weight.block // self.numbers  # that share a scale
        if words > LANES or LANES % words:
            for number in (weight.scale, weight.zero):
                self.ask(number, (self.columns, self.blocks), (1,))
            first = f"(line * {LANES * cut.deep} + beside * {LANES} + lane) * {self.numbers}"
            return f"column * {self.blocks} + tl.minimum({first} // {weight.block}, {self.blocks - 1})"
        shared = LANES // words
        shape, rows = (self.columns, cut.lines, shared, cut.deep), (shared * cut.deep, 1, shared)
        for number in (weight.scale, weight.zero):
            self.ask(number, shape, rows)
        of_line = shared * cut.deep
        return f"column * {cut.lines * of_line} + line * {of_line} + lane // {words} * {cut.deep} + beside"

    def _add_line(self, renderer: Renderer, sign: str) -> None:
        """Adds the products of `words` to the sums of every row, number by number of the words."""
        root, code, cut, numbers = self.root, renderer.code, self.cut, self.numbers
        assert isinstance(self.rows, int) and isinstance(self.summed, int)
        of_line, _, beside = cut.steps(numbers)
        # The same places as those of words, with what is in a thread's registers outermost and innermost.
        code.line(
            f"k = tl.arange(0, {cut.deep})[:, None, None, None] * {beside} + tl.trans(line, 3, 1, 2, 0) * {of_line} "
            f"+ tl.trans(lane, 3, 1, 2, 0) * {numbers} + tl.arange(0, {numbers})[None, None, None, :]"
        )
        mask = None
        if self.summed % (cut.together * of_line):
            mask = "k_inside"
            code.line(f"k_inside = k < {self.summed}")
        inside = TileDim(frozenset({root.k}), mask)
        shape = f"({cut.deep}, {cut.together}, {LANES}, {numbers})"
        for m in range(self.rows):
            scope = Scope(renderer, {root.k: "k", **self._row_places(m)}, [inside], shape)
            a = scope.define(f"tl.broadcast_to({scope.value(cast(root.a, F32))}, {shape})")
            if mask is not None and root.a.op != "load":
                a = scope.define(f"tl.where({mask}, {a}, 0.0)")
            self._split_line(m, a)
        code.line(f"magic = tl.program_id(1) + {MAGIC}")  # a register, which one instruction takes beside a constant
        for place in range(numbers // 2):
            code.line(f"offset{place} = {self._offset(place)}")
        for number in range(numbers):
            _, place = self._place(number)
            code.line(f"number = {self._decoded(number, f'offset{place}', 'magic')}")
            for m in range(self.rows):
                factor = f"x{m}{number} * {self._factor(number)!r}"
                code.line(f"total{m} {'=' if number == 0 else '+='} number * ({factor})")
        scale = " * scale" if self.blocks > 1 else ""
        for m in range(self.rows):
            code.line(f"sum{m} {sign} total{m}{scale}")

    def _split_line(self, m: int, a: str) -> None:
        """Writes what a row's values are multiplied by each number of a word: x, row, number."""
        code, cut, halves = self.code, self.cut, self.numbers.bit_length() - 1
        code.line(f"x{m} = tl.reshape({a}, ({cut.deep}, {cut.together}, {LANES}, {'2, ' * halves}))")
        names = [f"x{m}"]
        for _ in range(halves):
            for name in names:
                code.line(f"{name}_0, {name}_1 = tl.split({name})")
            names = [f"{name}_{bit}" for bit in range(2) for name in names]
        for number, name in enumerate(names):
            code.line(f"x{m}{number} = tl.expand_dims(tl.permute({name}, (1, 2, 0)), 0)")

    def _deep(self) -> int:
        """Words that a lane loads at once: as many as leave no part of a line empty."""
        assert isinstance(self.summed, int)
        return next(deep for deep in (4, 2, 1) if deep == 1 or self.summed % (LANES * deep * self.numbers) == 0)

    def _choose_packed_stream(self) -> Stream:
        """Columns whole, if they are not too long, a line of words for each warp; programs enough for the device."""
        assert isinstance(self.rows, int) and isinstance(self.summed, int)
        of_line = LANES * self._deep() * self.numbers
        lines = min(power_of_two(-(-self.summed // of_line)), MOST_LINES)
        warps = min(lines, MOST_WARPS)
        width = max(THREAD_WORDS * warps // (lines * self._deep()) // power_of_two(self.rows), 1)
        processors = int(self.target.numbers["multiprocessors"])
        while width > 1 and typical(self.columns) / width < processors:
            width //= 2
        return Stream(min(width, power_of_two(max(typical(self.columns), 1))), lines * of_line, warps)

    # Tiles.

    def _words(self, renderer: Renderer, runs: int, first: str, n: str, n_mask: str | None) -> None:
        """Writes `words`, [columns, runs, words of a run], and `scale` and `zero`, [columns, runs].

        `first`: the number of the first run; `n`: the columns' name, of shape [columns, 1].
        """
        weight, code = self.weight, renderer.code
        assert isinstance(self.summed, int)
        of_run = self.run // self.numbers
        total = self.summed // self.run
        code.line(f"run = {first} + tl.arange(0, {runs})[None, :]")
        masks = [] if n_mask is None else [n_mask]
        if total % runs:
            code.line(f"run_inside = run < {total}")
            masks.append("run_inside")
        inside = " & ".join(masks)
        mask = f", mask={inside}, other=0" if inside else ""
        wide = f", mask=({inside})[:, :, None], other=0" if inside else ""
        line = self.summed // self.numbers
        at = renderer.index(f"({n} * {line} + run * {of_run})")
        code.line(
            f"words = tl.load(p{weight.w}.to(tl.pointer_type(tl.uint32)) + {at}[:, :, None] "
            f"+ tl.arange(0, {of_run})[None, None, :]{wide})"
        )
        if weight.bits == 8:
            code.line("words = words ^ 0x80808080")
        place = f"{n} * {self.blocks} + (run * {self.run}) // {weight.block}"
        if self.blocks == 1:
            place, mask = n, "" if n_mask is None else f", mask={n_mask}, other=0"
        else:
            code.line(f"scale = tl.load(p{weight.scale} + {place}{mask}).to(tl.float32)")
        if weight.zero is not None:
            code.line(f"zero = tl.load(p{weight.zero} + {place}{mask}).to(tl.float32)")

    def _packed_tiles(self) -> Emitted:
        root, code = self.root, self.code
        operand = self._multiplied()
        tile = self._fitted(self._choose(operand), operand)
        tile = replace(tile, summed=max(tile.summed, self.run), sums=1)
        assert isinstance(self.summed, int)
        runs = tile.summed // self.run
        assert isinstance(self.columns, int)
        self.ask(self.weight.w, (self.columns, self.summed * self.weight.bits // 8), (1,))
        for number in (self.weight.scale, self.weight.zero):
            self.ask(number, (self.columns, self.blocks), (1,))
        tiling = Tiling(code, self.dims)
        renderer = Renderer(self.kernel, self.dims, code)
        down, across = dimension.ceildiv(self.rows, tile.rows), dimension.ceildiv(self.columns, tile.columns)
        with tiling.programs(down * across) as program:
            code.line(f"tile = {program}")
            self._walk(down, across)
            m_dim, m = self._span(renderer, "m", "down", tile.rows, self.row_axes, "[:, None]")
            n_dim, n = self._span(renderer, "n", "across", tile.columns, self.column_axes, "[None, :]")
            turned = None
            code.line(f"column = ({renderer.index('across')} * {tile.columns} + tl.arange(0, {tile.columns}))[:, None]")
            if n_dim.mask is not None:
                turned = "column_inside"
                code.line(f"column_inside = column < {self.dims.text(self.columns)}")
            outer = Scope(renderer, {}, [], "(1, 1)")
            code.line(f"acc = tl.zeros(({tile.rows}, {tile.columns}), tl.float32)")
            with code.block(f"for at in range(0, {self.summed}, {tile.summed})"):
                self._words(renderer, runs, f"at // {self.run}", "column", turned)
                b, functions = self._floats(tile, operand)
                code.line(f"k = {renderer.index('at')} + tl.arange(0, {tile.summed})")
                mask = None
                if self.summed % tile.summed:
                    mask = f"(k < {self.summed})[None, :]"
                left = Scope(
                    renderer, {**m, root.k: "k[None, :]"}, [m_dim, TileDim(frozenset({root.k}), mask)],
                    f"({tile.rows}, {tile.summed})", outer,
                )  # fmt: skip
                a = self._operand(left, root.a, operand)
                code.line(f"acc = tl.dot({a}, {b}, acc, {self._how(operand, tile.summed)})")
            if self.blocks == 1:
                mask = "" if n_dim.mask is None else f", mask={n_dim.mask}, other=0"
                code.line(f"acc = acc * tl.load(p{self.weight.scale} + n{mask}).to(tl.float32)")
            self._store(renderer, outer, {**m, **n}, [m_dim, n_dim], f"({tile.rows}, {tile.columns})", ["acc"])
        is_heavy = typical(self.summed) > FEW_STEPS * tile.summed
        text = f"tiles of {tile}, {self.weight.bits} bits"
        return self._finish(tiling, tile.warps, tile.stages, text, is_heavy, functions)

    def _multiplied(self) -> DType:
        """The type that both operands are in where they are multiplied: the left one's, if it has 16 bits."""
        inner = self.root.a
        while inner.op == "cast" and inner.dtype not in (F16, BF16) and inner.args[0].dtype.is_float:
            inner = inner.args[0]
        return inner.dtype if inner.dtype in (F16, BF16) else F32

    def _floats(self, tile: Tile, operand: DType) -> tuple[str, str]:
        """Writes the right operand of a step, [summed, columns]: the numbers of words, side by side.

        Its name, and the text of the function that it took.
        """
        code, functions = self.code, ""
        if self._suits_halves():
            if self.blocks > 1:
                code.line("scale = scale.to(tl.float16)[:, :, None]")
            if self.weight.zero is not None:
                code.line(f"zero = (zero + {self.plain_zero()!r}).to(tl.float16)[:, :, None]")
            functions = self._halves()
        else:
            self._numbers_one_by_one(operand)
        names = [f"b{number}" for number in range(self.numbers)]
        while len(names) > 1:  # what is joined last lies side by side
            half = len(names) // 2
            names = [f"tl.join({names[i]}, {names[i + half]})" for i in range(half)]
        code.line(f"b = tl.trans(tl.reshape({names[0]}, ({tile.columns}, {tile.summed})))")
        return "b", functions

    def _numbers_one_by_one(self, operand: DType) -> None:
        """As `_halves`, for any operand, by f32."""
        code = self.code
        kind = {F16: "tl.float16", BF16: "tl.bfloat16"}.get(operand, "tl.float32")
        for place in range(self.numbers // 2):
            code.line(f"offset{place} = {self._offset(place, '[:, :, None]')}")
            if self.blocks > 1:
                code.line(f"scale{place} = (scale * {self._factor(place)!r})[:, :, None]")
        for number in range(self.numbers):
            _, place = self._place(number)
            factor = self._factor(number)
            by = f" * scale{place}" if self.blocks > 1 else f" * {factor!r}" if factor != 1 else ""
            code.line(f"b{number} = (({self._decoded(number, f'offset{place}')}){by}).to({kind})")
