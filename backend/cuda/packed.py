"""Products with a weight in 4 or 8 bits, which becomes floats in registers, where it is multiplied.

The weight is read in words of 32 bits, eight or four numbers each, what is summed innermost. A number of a word becomes
an f32 by two instructions: its bits are cut out, where they lie in the word's lower half, into an f32 of 2^23 or more,
whose last bit counts 1; then 2^23, and the zero point as often as the place of the number says, are taken away. What is
left is the number times a power of two, exactly; its inverse goes into the other factor.

Few rows are a stream, bound by the bytes of the weight: each program holds some columns whole, in registers, before its
predecessors have ended. More rows are tiles on tensor cores, for which the weight becomes 16 bits wide.
"""

from __future__ import annotations

from dataclasses import replace

from aot import dims as dimension
from aot.backend.base import Emitted, PackedOperand
from aot.backend.cuda.contract import FEW_ROWS, FEW_STEPS, Stream, Tile, _Contract
from aot.backend.cuda.frame import Tiling, power_of_two
from aot.backend.cuda.render import Renderer, Scope, TileDim
from aot.dims import typical
from aot.dtypes import BF16, F16, F32, DType
from aot.errors import CompilerError
from aot.expr import cast, walk
from aot.kernel import Kernel, PackedWeight
from aot.ops.quantized import NIBBLE_ZERO
from aot.program import RecipeOp, RecipeStep
from aot.target import Target

WORD_BITS = 32
LONGEST_RUN = 32
"""Numbers of a thread that share a scale."""

MOST_PIECE = 32768
"""Summed elements of a program of a stream; of longer ones several pieces, one after the other."""

PROGRAM_BYTES = 16384
"""Of a weight that a program of a stream holds at a time: 32 words of each of 128 threads."""

MOST_WARPS = 8
MAGIC = 0x4B000000  # the bits of 2^23 as f32


def emit_packed(kernel: Kernel, target: Target, schedule: Tile | Stream | None = None) -> Emitted:
    """Triton for a kernel with a ContractRoot that has a packed weight; with `schedule`, cut as it says.

    Weights whose rows fill no words, or that are no constants, are computed element by element, as their expression
    says.
    """
    return _Packed(kernel, target, schedule, {}).emit()


class _Packed(_Contract):
    def emit(self) -> Emitted:
        weight = self.root.weight
        if weight is None:
            raise CompilerError(f"{self.source.name}: no packed weight")
        self.weight: PackedWeight = weight
        self.numbers = WORD_BITS // weight.bits  # of a word
        if not self._fills_words():
            return super().emit()
        self._lay_out()
        few = isinstance(self.rows, int) and self.rows <= FEW_ROWS
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

    def _lay_out(self) -> None:
        """Asks for the weight, its scales and zero points with what is summed innermost."""
        for number in (self.weight.w, self.weight.scale, self.weight.zero):
            if number is None:
                continue
            type_ = self.source.inputs[number].type
            rows, columns = type_.shape
            assert isinstance(rows, int) and isinstance(columns, int)
            step = RecipeStep(RecipeOp.PACK, shape=(columns, rows), coefficients=((0, 1), (1, 0)))
            self.packed[number] = PackedOperand((step,), type_.dtype.number, (columns, rows))

    def _words(self, renderer: Renderer, runs: int, first: str, n: str, n_mask: str | None) -> None:
        """Writes `words`, [columns, runs, words of a run], and `scale` and `offset`, [columns, runs, 1].

        `first`: the number of the first run; `n`: the columns' name, of shape [columns, 1].
        """
        weight, code = self.weight, renderer.code
        assert isinstance(self.summed, int)
        of_run = self.run // self.numbers
        total = self.summed // self.run
        code.line(f"run = {first} + tl.arange(0, {runs})[None, :]")
        masks = [] if n_mask is None else [n_mask]
        self.run_mask = None
        if total % runs:
            self.run_mask = "run_inside"
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

    def _offset(self, place: int) -> str:
        """What is taken away from the f32 that the bits at a place of a half word make."""
        factor = 1 << self.weight.bits * place
        plain = 128 if self.weight.bits == 8 else 0
        if self.weight.zero is None:
            zero = plain if self.weight.bits == 8 else NIBBLE_ZERO
            return repr(float((1 << 23) + zero * factor))
        return f"({float((1 << 23) + plain * factor)!r} + zero * {float(factor)!r})[:, :, None]"

    def _place(self, number: int) -> tuple[int, int]:
        """Which half of a word, and which place of it, a number has."""
        return divmod(number, self.numbers // 2)

    def _decoded(self, number: int, offset: str) -> str:
        """The text of a number of every word, times the power of two of its place."""
        half, place = self._place(number)
        bits = ((1 << self.weight.bits) - 1) << self.weight.bits * place
        return f"(((words{' >> 16' if half else ''}) & {bits}) | {MAGIC}).to(tl.float32, bitcast=True) - {offset}"

    def _factor(self, number: int) -> float:
        """The inverse of the power of two of a number's place."""
        return 1 / (1 << self.weight.bits * self._place(number)[1])

    # Streams.

    def _packed_stream(self) -> Emitted:
        assert isinstance(self.rows, int) and isinstance(self.summed, int)
        root, code, early = self.root, self.code, self.early
        stream = self.schedule if isinstance(self.schedule, Stream) else self._choose_packed_stream()
        width, runs = stream.columns, max(stream.summed // self.run, 1)
        of_run = self.run // self.numbers
        total = self.summed // self.run
        single = total <= runs
        tiling = Tiling(early, self.dims)
        renderer = Renderer(self.kernel, self.dims, early)
        across = dimension.ceildiv(self.columns, width)
        rows = range(self.rows)
        shape = f"({width}, {runs}, {of_run})"
        with tiling.programs(across) as program:
            early.line(f"across = {program}")
            body, self.code = self.code, early
            n_dim, n = self._span(renderer, "n", "across", width, self.column_axes, "[:, None]")
            self.code = body
            if single:
                self._words(renderer, runs, "0", "n", n_dim.mask)
            renderer.code = code
            for m in rows:
                code.line(f"sum{m} = tl.zeros(({width}, {runs}), tl.float32)")
            if single:
                self._add_runs(renderer, shape)
            else:
                with code.block(f"for at in range(0, {total}, {runs})"):
                    self._words(renderer, runs, "at", "n", n_dim.mask)
                    self._add_runs(renderer, shape)
            outer = Scope(renderer, {}, [], "(1, 1)")
            for m in rows:
                code.line(f"row{m} = tl.sum(sum{m}, axis=1, keep_dims=True)")
                if self.blocks == 1:
                    mask = "" if n_dim.mask is None else f", mask={n_dim.mask}, other=0"
                    code.line(f"row{m} = row{m} * tl.load(p{self.weight.scale} + n{mask}).to(tl.float32)")
                one = [n_dim, TileDim(frozenset(), None)]
                self._store(renderer, outer, {**n, **self._row_places(m)}, one, f"({width}, 1)", [f"row{m}"])
        tiling.code = code
        return self._finish(tiling, stream.warps, 3, f"stream of {stream}, {self.weight.bits} bits")

    def _add_runs(self, renderer: Renderer, shape: str) -> None:
        """Adds the products of `words` to the sums of every row, number by number of the words."""
        root, code = self.root, renderer.code
        of_run = self.run // self.numbers
        assert isinstance(self.rows, int)
        code.line(f"start = (run * {self.run})[:, :, None] + tl.arange(0, {of_run})[None, None, :] * {self.numbers}")
        mask = None if self.run_mask is None else f"{self.run_mask}[:, :, None]"
        inside = TileDim(frozenset({root.k}), mask)
        for place in range(self.numbers // 2):
            code.line(f"offset{place} = {self._offset(place)}")
        for number in range(self.numbers):
            _, place = self._place(number)
            code.line(f"number = {self._decoded(number, f'offset{place}')}")
            code.line(f"k = start + {number}")
            for m in range(self.rows):
                scope = Scope(renderer, {root.k: "k", **self._row_places(m)}, [inside], shape)
                a = scope.value(cast(root.a, F32))
                if mask is not None and root.a.op != "load":
                    a = scope.define(f"tl.where({mask}, {a}, 0.0)")
                factor = self._factor(number)
                scaled = a if factor == 1 else f"({a} * {factor!r})"
                code.line(f"total{m} {'=' if number == 0 else '+='} number * {scaled}")
        scale = " * scale" if self.blocks > 1 else ""
        for m in range(self.rows):
            code.line(f"sum{m} += tl.sum(total{m}, axis=2){scale}")

    def _choose_packed_stream(self) -> Stream:
        """Columns whole, if they are not too long; enough programs for every multiprocessor."""
        assert isinstance(self.rows, int) and isinstance(self.summed, int)
        piece = min(power_of_two(self.summed), MOST_PIECE)
        column_bytes = piece * self.weight.bits // 8
        width = max(PROGRAM_BYTES // column_bytes // power_of_two(max(self.rows // 2, 1)), 1)
        processors = int(self.target.numbers["multiprocessors"])
        while width > 1 and typical(self.columns) / width < 0.9 * processors:
            width //= 2
        width = min(width, power_of_two(max(typical(self.columns), 1)))
        return Stream(width, piece, max(min(width * column_bytes // 4096, MOST_WARPS), 4))

    # Tiles.

    def _packed_tiles(self) -> Emitted:
        root, code = self.root, self.code
        operand = self._multiplied()
        tile = self._fitted(self._choose(operand), operand)
        tile = replace(tile, summed=max(tile.summed, self.run), sums=1)
        assert isinstance(self.summed, int)
        runs = tile.summed // self.run
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
                b = self._floats(tile, operand)
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
        return self._finish(tiling, tile.warps, tile.stages, f"tiles of {tile}, {self.weight.bits} bits", is_heavy)

    def _multiplied(self) -> DType:
        """The type that both operands are in where they are multiplied: the left one's, if it has 16 bits."""
        inner = self.root.a
        while inner.op == "cast" and inner.dtype not in (F16, BF16) and inner.args[0].dtype.is_float:
            inner = inner.args[0]
        return inner.dtype if inner.dtype in (F16, BF16) else F32

    def _floats(self, tile: Tile, operand: DType) -> str:
        """Writes the right operand of a step, [summed, columns]: the numbers of words, side by side; its name."""
        code = self.code
        kind = {F16: "tl.float16", BF16: "tl.bfloat16"}.get(operand, "tl.float32")
        for place in range(self.numbers // 2):
            code.line(f"offset{place} = {self._offset(place)}")
            factor = self._factor(place)
            if self.blocks > 1:
                code.line(f"scale{place} = (scale * {factor!r})[:, :, None]")
        names = []
        for number in range(self.numbers):
            _, place = self._place(number)
            factor = self._factor(number)
            by = f" * scale{place}" if self.blocks > 1 else f" * {factor!r}" if factor != 1 else ""
            code.line(f"b{number} = (({self._decoded(number, f'offset{place}')}){by}).to({kind})")
            names.append(f"b{number}")
        while len(names) > 1:  # what is joined last lies side by side
            half = len(names) // 2
            names = [f"tl.join({names[i]}, {names[i + half]})" for i in range(half)]
        code.line(f"b = tl.trans(tl.reshape({names[0]}, ({tile.columns}, {tile.summed})))")
        return "b"
