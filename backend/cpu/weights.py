"""Weights in 8 or 4 bits that floats are multiplied by: read as they are for a few rows, else made floats by panels.

Constant weights lie in panels of words, [K / rows][16][4 bytes], as those of words.py: the 32 bits of a word are
four or eight rows of one column. A number becomes a float without a conversion: its bits are put in the mantissa of
a power of two, as the last ones that count, and that power is subtracted together with the zero point, which is
exact. Scales and zero points lie in panels too, [blocks][16] floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot import expr
from aot.backend.base import PackedOperand
from aot.backend.cpu.code import Code, memory_type
from aot.backend.cpu.functions import get
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.tile import PANEL
from aot.backend.cpu.words import ROW_BYTES, WORD_BYTES
from aot.dtypes import F32, DType
from aot.kernel import ContractRoot, Kernel, PackedWeight
from aot.ops.quantized import NIBBLE_ZERO
from aot.program import RecipeOp, RecipeStep

if TYPE_CHECKING:
    from aot.backend.cpu.panels import PackSite, Panels

DIRECT_ROWS = 4
"""Up to so many rows of activations, weights are made floats in registers, once for all of the rows."""

CHUNK_WORDS = 8
"""Words of each panel that one pass over the rows of a word reads: they stay in the first-level cache meanwhile."""

PREFETCH_BYTES = 2048
MANTISSA_BITS = 23

Strides = tuple[str, str]
"""C texts of elements of A between rows, and along the sum."""


@dataclass(frozen=True, slots=True)
class WeightPanels:
    """A weight [summed, columns] of `bits`, of which `block` rows share a scale; operand numbers as in PackedWeight."""

    weight: PackedWeight
    summed: int
    columns: int

    @property
    def word_rows(self) -> int:
        """Rows in a word."""
        return WORD_BYTES * 8 // self.weight.bits

    @property
    def blocks(self) -> int:
        return -(-self.summed // self.weight.block)

    @property
    def panels(self) -> int:
        return -(-self.columns // PANEL)

    @property
    def panel_bytes(self) -> int:
        """Bytes of the words of a panel."""
        return -(-self.summed // self.word_rows) * ROW_BYTES

    @property
    def zero(self) -> float:
        """The zero point of all weights that have none of their own."""
        return 0 if self.weight.bits == 8 else NIBBLE_ZERO

    def packed(self, kernel: Kernel) -> Mapping[int, PackedOperand]:
        """What the operands are packed as."""
        weight = self.weight
        source = kernel.inputs[weight.w].type.dtype
        shape = (self.panels, self.panel_bytes // ROW_BYTES, PANEL, WORD_BYTES)
        words = RecipeStep(RecipeOp.PACK, shape=shape, coefficients=((0, WORD_BYTES, 0, 1), (PANEL, 0, 1, 0)))
        found = {weight.w: PackedOperand((words,), source.number, shape)}
        for number in (weight.scale, weight.zero):
            if number is not None:
                rows = (self.panels, self.blocks, PANEL)
                pack = RecipeStep(RecipeOp.PACK, shape=rows, coefficients=((0, 1, 0), (PANEL, 0, 1)))
                cast = RecipeStep(RecipeOp.CAST, dtype=F32.number)
                found[number] = PackedOperand((cast, pack), F32.number, rows)
        return found

    def arguments(self, panel0: str) -> list[str]:
        """C texts of the pointers to the words, scales and zero points from a panel on."""
        weight = self.weight
        operands = [number for number in (weight.scale, weight.zero) if number is not None]
        rows = [f"(const f32 *)p{number} + {panel0} * {self.blocks * PANEL}" for number in operands]
        return [f"(const u8 *)p{weight.w} + {panel0} * {self.panel_bytes}", *rows]

    @property
    def parameters(self) -> list[str]:
        """C declarations of the same."""
        zeros = ["const f32 *restrict zeros"] if self.weight.zero is not None else []
        return ["const u8 *restrict words", "const f32 *restrict scales", *zeros]

    def _float(self, row: int, word: str) -> str:
        """C text of a row of a word, as a float with `power(row)` added to it."""
        place, shift = self._place(row)
        flip = (127 + MANTISSA_BITS - place) << MANTISSA_BITS
        if self.weight.bits == 8:
            flip ^= 0x80 << place  # of a signed number, 128 more
        shifted = f"({word} >> {shift})" if shift else word
        return f"(v_f32)(({shifted} & 0x{((1 << self.weight.bits) - 1) << place:x}u) ^ 0x{flip:x}u)"

    def _power(self, row: int) -> float:
        """What has to be subtracted from `_float`, without the zero point."""
        return float(1 << (MANTISSA_BITS - self._place(row)[0])) + (128 if self.weight.bits == 8 else 0)

    def _place(self, row: int) -> tuple[int, int]:
        """Where the bits of a row of a word are once it is shifted, and by how much it is: inside of a mantissa."""
        bits = row * self.weight.bits
        shift = MANTISSA_BITS // self.weight.bits * self.weight.bits if bits + self.weight.bits > MANTISSA_BITS else 0
        return bits - shift, shift

    def _zero(self, row: int, place: str) -> str:
        """C text of the block that is subtracted from a row of a word; `place` is in a row of zero points."""
        power = self._power(row)
        if self.weight.zero is None:
            return f"splat_f32({power + self.zero:.1f}f)"
        return f"load_f32({place}) + splat_f32({power:.1f}f)"

    def function(
        self, name: str, isa: Isa, rows: int, panels: int, a_dtype: DType, strides: Strides, params: list[str]
    ) -> str:
        """A static function name(a, words, scales[, zeros], c, c_stride, params…) that computes a tile to memory at c.

        `strides`: of A, between rows and along the sum.
        """
        code, lanes = Code(), isa.lanes
        blocks = [(j, h) for j in range(panels) for h in range(0, PANEL, lanes)]
        a = f"const {memory_type(a_dtype)} *restrict a"
        head = ", ".join(
            [a, *self.parameters, "f32 *restrict c, const i64 c_stride", *(f"const i64 {p}" for p in params)]
        )
        with code.block(f"static __attribute__((noinline)) void {name}({head})"):
            sums = [[f"c{i}_{j}_{h}" for j, h in blocks] for i in range(rows)]
            for row in sums:
                code.line(f"v_f32 {', '.join(f'{each} = {{0}}' for each in row)};")
            full, rest = divmod(self.summed, self.weight.block)
            for count, size in ((full, self.weight.block), (1 if rest else 0, rest)):
                if count:
                    with code.block(f"for (i64 b = 0; b < {count}; b++)"):
                        self._block(code, rows, blocks, size, a_dtype, strides)
                        code.line(f"scales += {PANEL};{f' zeros += {PANEL};' if self.weight.zero is not None else ''}")
            for i, row in enumerate(sums):
                for (j, h), each in zip(blocks, row, strict=True):
                    code.line(f"store_f32(c + {i} * c_stride + {j * PANEL + h}, {each});")
        return code.text()

    def _block(
        self, code: Code, rows: int, blocks: list[tuple[int, int]], size: int, a_dtype: DType, strides: Strides
    ) -> None:
        """The rows of weights that share scales: their sum, which then is scaled."""
        for i in range(rows):
            code.line(f"v_f32 {', '.join(f'd{i}_{j}_{h} = {{0}}' for j, h in blocks)};")
        chunk = min(CHUNK_WORDS, -(-size // self.word_rows)) * self.word_rows
        full, rest = divmod(size, chunk)
        for count, height in ((full, chunk), (1 if rest else 0, rest)):
            if count:
                with code.block(f"for (i64 q = 0; q < {count}; q++)"):
                    self._chunk(code, rows, blocks, height, a_dtype, strides)
                    code.line(f"words += {-(-height // self.word_rows) * ROW_BYTES}; a += {height} * {strides[1]};")
        for j, h in blocks:
            code.line(f"const v_f32 s{j}_{h} = load_f32(scales + {j * self.blocks * PANEL + h});")
            for i in range(rows):
                code.line(f"c{i}_{j}_{h} += d{i}_{j}_{h} * s{j}_{h};")

    def _chunk(
        self,
        code: Code,
        rows: int,
        blocks: list[tuple[int, int]],
        height: int,
        a_dtype: DType,
        strides: tuple[str, str],
    ) -> None:
        row_stride, stride = strides
        for j in sorted({j for j, _ in blocks}):
            for line in range(-(-height // self.word_rows)):
                ahead = j * self.panel_bytes + line * ROW_BYTES + PREFETCH_BYTES
                code.line(f"__builtin_prefetch(words + {ahead}, 0, 3);")
        for row in range(min(self.word_rows, height)):
            with code.block():
                for j, h in blocks:
                    code.line(f"const v_f32 z{j}_{h} = {self._zero(row, f'zeros + {j * self.blocks * PANEL + h}')};")
                words = -(-(height - row) // self.word_rows)
                code.line(f"#pragma GCC unroll {CHUNK_WORDS}")
                with code.block(f"for (i64 g = 0; g < {words}; g++)"):
                    place = f"(g * {self.word_rows} + {row}) * {stride}"
                    for i in range(rows):
                        at = f"{i} * {row_stride} + {place}" if i else place
                        code.line(f"const f32 x{i} = {get(a_dtype, 'a', f'({at})')};")
                    for j, h in blocks:
                        place = f"words + {j * self.panel_bytes + h * WORD_BYTES} + g * {ROW_BYTES}"
                        word = f"load_u32((const u32 *)({place}))"
                        code.line(f"{{ const v_u32 v = {word};")
                        code.line(f"const v_f32 t = {self._float(row, 'v')} - z{j}_{h};")
                        code.line(" ".join(f"d{i}_{j}_{h} += x{i} * t;" for i in range(rows)) + " }")

    def fill(self, problem: Panels, site: PackSite) -> None:
        """Makes panels of floats of the words."""
        code, lanes = site.code, problem.isa.lanes
        names = ["words", "scales", *(["zeros"] if self.weight.zero is not None else [])]
        with code.block(f"for (i64 p = 0; p < {site.count}; p++)"):
            for name, place in zip(names, self.arguments(f"({site.first} + p)"), strict=True):
                code.line(f"const {'u8' if name == 'words' else 'f32'} *{name} = {place};")
            code.line(f"f32 *target = {site.target} + p * {self.summed * PANEL};")
            full, rest = divmod(self.summed, self.weight.block)
            for count, size in ((full, self.weight.block), (1 if rest else 0, rest)):
                if not count:
                    continue
                with code.block(f"for (i64 b = 0; b < {count}; b++)"):
                    for h in range(0, PANEL, lanes):
                        code.line(f"const v_f32 s{h} = load_f32(scales + {h});")
                    whole, some = divmod(size, self.word_rows)
                    for words, height in ((whole, self.word_rows), (1 if some else 0, some)):
                        if words:
                            with code.block(f"for (i64 g = 0; g < {words}; g++, words += {ROW_BYTES})"):
                                self._fill_word(code, height, lanes)
                    code.line(f"scales += {PANEL};{f' zeros += {PANEL};' if self.weight.zero is not None else ''}")

    def _fill_word(self, code: Code, height: int, lanes: int) -> None:
        for h in range(0, PANEL, lanes):
            code.line(f"const v_u32 v{h} = load_u32((const u32 *)(words + {h * WORD_BYTES}));")
            for row in range(height):
                number = f"({self._float(row, f'v{h}')} - ({self._zero(row, f'zeros + {h}')}))"
                code.line(f"store_f32(target + {row * PANEL + h}, {number} * s{h});")
        code.line(f"target += {height * PANEL};")


def weight_panels(kernel: Kernel, root: ContractRoot) -> WeightPanels | None:
    """The weight of a product, if it is constant and its blocks are whole words; else `b` says what it is."""
    weight = root.weight
    summed, columns = kernel.axes[root.k].extent, kernel.axes[root.n].extent
    if weight is None or root.accumulate != F32 or not isinstance(summed, int) or not isinstance(columns, int):
        return None
    operands = {weight.w, weight.scale} | ({weight.zero} - {None})
    values = [root.a, *(store.value for store in kernel.stores)]
    if any(node.op == "load" and node.payload in operands for value in values for node in expr.walk(value)):
        return None
    found = WeightPanels(weight, summed, columns)
    whole = found.blocks <= 1 or weight.block % found.word_rows == 0
    is_constant = all(kernel.inputs[number].constant for number in operands if number is not None)
    return found if whole and is_constant and summed and columns else None


def direct_panels(isa: Isa, rows: int) -> int:
    """Panels of a tile of so many rows: a sum of a block, and one of all blocks, in registers; and a few more."""
    each = PANEL // isa.lanes
    return max(min((isa.registers - 6) // ((2 * rows + 1) * each), 4), 1)
