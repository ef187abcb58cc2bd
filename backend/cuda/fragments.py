"""Products of few rows on tensor cores, beside a weight in 4 or 8 bits: what each thread holds, and the text of it.

Columns by sixteen are the rows of tensor cores' left operand, rows by eight the columns of their right one. Of a piece
of a column, four words, each of four neighbouring lanes has one, and of each row the values that its numbers are
multiplied by; it does not matter which of a word's numbers goes where, as long as both agree. So what a lane reads at
once, of the weight as of the other factor, is what it multiplies: nothing is exchanged between lanes.

The language has no such steps, so they are assembly (PTX's m16n8k16); its interpreter has the same by sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aot.backend.cuda.code import Code
from aot.backend.cuda.contract import Tile
from aot.backend.cuda.halves import halves_name, halves_text
from aot.backend.cuda.render import Renderer

if TYPE_CHECKING:
    from aot.backend.cuda.packed import _Packed

LANES = 32
"""Threads of a warp."""

QUAD = 4
"""Lanes of a warp that have the words of a piece of a column, one each."""

LEAST_COLUMNS = 16
"""Columns of the smallest tile of a product of few rows."""

WORD_BITS = 32


class Fragments:
    """A product of few rows as tensor cores have it: how it is cut, the names of what a thread holds, and their text.

    A chunk of a column is what a warp multiplies in a step; its `pieces` are of four words. All names are of tensors
    with one element for each thread.
    """

    def __init__(self, packed: _Packed, tile: Tile) -> None:
        assert isinstance(packed.summed, int) and isinstance(packed.columns, int)
        self.packed, self.tile = packed, tile
        self.threads = LANES * tile.warps
        self.of_piece = QUAD * packed.numbers
        self.pieces = tile.summed // (tile.warps * self.of_piece)
        self.of_chunk = self.pieces * self.of_piece
        self.chunks = -(-packed.summed // self.of_chunk)
        self.sixteens = tile.columns // LEAST_COLUMNS
        tiles = -(-packed.columns // tile.columns)
        self.turns = -(-tiles // int(2 * packed.target.numbers["multiprocessors"]))
        """Tiles of columns of a program."""
        self.groups = -(-tiles // self.turns) * self.turns * self.sixteens  # of sixteen columns
        self.loads = self.pieces // QUAD  # of four words each, that a lane reads of a chunk of a column
        self.of_line = LANES * QUAD * self.loads  # words of eight columns' chunk
        weight = packed.weight
        self.is_scaled = packed.blocks > 1
        self.scales = max(self.of_chunk // weight.block, 1) if self.is_scaled else 1
        self.blocks = -(-packed.summed // (self.scales * weight.block)) if self.is_scaled else 1
        self.eights = [(sixteen, half) for sixteen in range(self.sixteens) for half in range(2)]
        self.sums = [
            f"sum{row_tile}_{sixteen}_{number}"
            for row_tile in range(tile.rows // 8) for sixteen in range(self.sixteens) for number in range(4)
        ]  # fmt: skip
        self.all = range(self.pieces)
        self.steps = -(-self.chunks // tile.warps)
        self.pairs = [(n, n + 4) for n in range(4)] if packed.numbers == 8 else [(0, 1), (2, 3)]
        """Numbers of a word that are made together: the lower and the upper half of a register."""
        self.made = (0, 2) if packed.rows == 1 else (0, 1, 2, 3)
        """Which of a thread's four sums of a tile are of rows that there are."""
        self.held: list[str] = []
        """What is read of a chunk before it is multiplied."""
        self.functions = multiply_text() + halves_text(weight.bits, weight.zero is not None, False)

    def ask(self) -> None:
        """Asks for the words and their scales and zero points as they are read."""
        weight, step = self.packed.weight, QUAD * WORD_BITS // 8  # bytes of a piece
        self.packed.ask(
            weight.w, (self.groups, self.chunks, 2, self.loads, 8, QUAD, QUAD, WORD_BITS // 8),
            (0, self.pieces * step, 0, QUAD * step, 0, WORD_BITS // 8, step, 1),
            (LEAST_COLUMNS, 0, 8, 0, 1, 0, 0, 0),
        )  # fmt: skip
        for number in (weight.scale if self.is_scaled else None, weight.zero):
            shape = (self.groups, self.blocks, 2, 8, self.scales)
            self.packed.ask(number, shape, (0, self.scales, 0, 0, 1), (LEAST_COLUMNS, 0, 8, 1, 0))
        if not self.is_scaled:
            assert isinstance(self.packed.columns, int)
            self.packed.ask(weight.scale, (self.packed.columns, 1), (1,))

    def read(self, renderer: Renderer, prefix: str, tile: str, chunk: str, inside: str) -> None:
        """Writes the loads of a chunk of a tile of columns; `inside`: where there is one. Names with `prefix`."""
        code, weight, held = renderer.code, self.packed.weight, []
        masks = [inside] if inside else []
        if self.chunks % self.tile.warps:
            masks.append(f"{chunk} < {self.chunks}")
        mask = ""
        if masks:
            joined = " & ".join(f"({each})" for each in masks)
            code.line(f"chunk_inside = ({joined})[:, None]")
            mask = ", mask=chunk_inside, other=0"
        code.line(f"chunk = {renderer.index(chunk)}")
        per_block = weight.block // self.of_chunk if self.is_scaled and weight.block > self.of_chunk else 1
        block = f"chunk // {per_block}" if per_block > 1 else "chunk" if self.is_scaled else "0 * chunk"
        code.line(f"block = {block}")
        code.line(f"first_group = {renderer.index(f'({tile})')} * {self.sixteens}")
        for sixteen, half in self.eights:
            group = f"(first_group + {sixteen})"
            code.line(
                f"place = ({group} * {self.chunks} + chunk) * {2 * self.of_line} + "
                f"{half * self.of_line} + thread % 32 * {QUAD}"
            )
            for number in range(self.loads):
                name = f"words{sixteen}_{half}_{number}"
                held.append(name)
                code.line(
                    f"{prefix}{name} = tl.load(p{weight.w}.to(tl.pointer_type(tl.uint32)) + "
                    f"(place + {number * LANES * QUAD})[:, None] + tl.arange(0, {QUAD})[None, :]{mask})"
                )
            for kind, operand in (("scale", weight.scale if self.is_scaled else None), ("zero", weight.zero)):
                if operand is not None:
                    name = f"{kind}{sixteen}_{half}"
                    held.append(name)
                    code.line(
                        f"{prefix}{name} = tl.load(p{operand} + "
                        f"(({group} * {self.blocks} + block) * {2 * 8 * self.scales} + {half * 8 * self.scales} + "
                        f"group * {self.scales})[:, None] + tl.arange(0, {self.scales})[None, :]{mask})"
                    )
        self.held = held

    def parts(self, code: Code, text: str, name: str, count: int) -> list[str]:
        """Writes the columns of a tensor [threads, count], a power of two, by names; gives these."""
        halves = count.bit_length() - 1
        code.line(f"{name} = tl.reshape({text}, ({self.threads}, {'2, ' * halves}))")
        names = [name]
        for _ in range(halves):
            for each in names:
                code.line(f"{each}0, {each}1 = tl.split({each})")
            names = [f"{each}{bit}" for bit in range(2) for each in names]
        # What is split first is the last axis: a column's bits, lowest first.
        return names

    def make_halves(self, code: Code) -> None:
        """Writes the numbers of a chunk's words, and their scales, one by one."""
        packed, weight = self.packed, self.packed.weight
        self.scale: dict[tuple[int, int], list[str]] = {}
        for sixteen, half in self.eights:
            at = f"{sixteen}_{half}"
            turned = " ^ 0x80808080" if weight.bits == 8 else ""
            words = [
                name
                for number in range(self.loads)
                for name in self.parts(code, f"words{at}_{number}{turned}", f"word{at}_{number}_", QUAD)
            ]
            zeros: list[str] = []
            if self.is_scaled:
                text = f"scale{at}.to(tl.float32)"
                self.scale[sixteen, half] = self.parts(code, text, f"scale{at}_", self.scales)
            if weight.zero is not None:
                text = f"zero{at}.to(tl.float16) + {packed.plain_zero()!r}"
                zeros = self.parts(code, text, f"zero{at}_", self.scales)
            for piece, word in enumerate(words):
                names = ", ".join(self._numbers(sixteen, half, piece))
                passed = ", ".join([word, *zeros[self._block(piece) :][:1]])
                code.line(f"{names} = {halves_name(weight.bits, bool(zeros), False)}({passed})")

    def settle(self, code: Code) -> None:
        """Writes the wait for predecessors so that it needs the numbers that were made before it.

        The assembler would move their making behind a wait that needs nothing, where all that is left to do is waited
        for by the program's successors.
        """
        names = [
            name
            for sixteen, half in self.eights
            for piece in self.all
            for pair in self.pairs
            for name in (self._numbers(sixteen, half, piece)[number] for number in pair)
        ]
        with code.block("if PROGRAMMATIC"):
            code.line(f"{settle_name(len(names))}({', '.join(names)})")
        self.functions += settle_text(len(names))

    def _numbers(self, sixteen: int, half: int, piece: int) -> list[str]:
        return [f"b{sixteen}_{half}_{piece}_{number}" for number in range(self.packed.numbers)]

    def _block(self, piece: int) -> int:
        """Which of a chunk's scales a piece has."""
        return piece * self.of_piece // self.packed.weight.block if self.is_scaled else 0

    def multiply(self, code: Code, piece: int, given: Sequence[Sequence[str]]) -> None:
        """Writes the products of a piece; `given`: of each tile of rows the values beside a word's numbers."""
        block = self._block(piece)
        is_first = piece == 0 or self._block(piece - 1) != block
        is_last = piece + 1 == self.pieces or self._block(piece + 1) != block
        for sixteen in range(self.sixteens):
            halves = [self._numbers(sixteen, half, piece) for half in range(2)]
            for row_tile, x in enumerate(given):
                sums = [f"sum{row_tile}_{sixteen}_{number}" for number in range(4)]
                totals = [f"total{row_tile}_{sixteen}_{number}" for number in range(4)] if self.is_scaled else sums
                if self.is_scaled and is_first:
                    for total in totals:
                        code.line(f"{total} = tl.zeros(({self.threads},), tl.float32)")
                for first in range(0, len(self.pairs), 2):
                    left = [each[n] for pair in self.pairs[first : first + 2] for each in halves for n in pair]
                    right = [x[n] for pair in self.pairs[first : first + 2] for n in pair]
                    code.line(f"{', '.join(totals)} = multiply({', '.join([*left, *right, *totals])})")
                if self.is_scaled and is_last:
                    for number in self.made:
                        scale = self.scale[sixteen, number // 2][block]
                        code.line(f"{sums[number]} += {totals[number]} * {scale}")

    def join(self, code: Code) -> None:
        """Writes `acc`, [warps, rows, columns], of the sums of all threads.

        Of each tile a lane has columns `group` and 8 further, of rows twice `within` and the next.
        """
        tiles = []
        for row_tile in range(self.tile.rows // 8):
            of_row = []
            for sixteen in range(self.sixteens):
                name = f"sum{row_tile}_{sixteen}_"
                of_row.append(f"tl.join(tl.join({name}0, {name}2), tl.join({name}1, {name}3))")
            tiles.append(of_row[0] if len(of_row) == 1 else f"tl.join({of_row[0]}, {of_row[1]})")
        text = tiles[0] if len(tiles) == 1 else f"tl.join({tiles[0]}, {tiles[1]})"
        warps, row_tiles = self.tile.warps, len(tiles)
        code.line(f"acc = tl.reshape({text}, ({warps}, 8, 4, 2, 2, {self.sixteens}, {row_tiles}))")
        code.line("acc = tl.permute(acc, (0, 6, 2, 4, 5, 3, 1))")
        code.line(f"acc = tl.reshape(acc, ({warps}, {self.tile.rows}, {self.tile.columns}))")


def multiply_text() -> str:
    """The text of `multiply`: a step of tensor cores, for one element of each thread of whole warps.

    Of lane 4 g + t (PTX's m16n8k16): a, halves, are the left operand's row g, twice, and row g + 8, twice, at summed
    places 2t and 2t + 1; then the same, 8 places further. b, halves: column g of the right operand at the same four
    places. c and what is made, f32: rows g, twice, and g + 8, twice, of columns 2t and 2t + 1.
    """
    a, b, c = ([f"{name}{number}" for number in range(count)] for name, count in (("a", 8), ("b", 4), ("c", 4)))
    lines = [".reg .b32 u<4>, v<2>;"]
    lines += [f"mov.b32 u{number}, {{${4 + 2 * number}, ${5 + 2 * number}}};" for number in range(4)]
    lines += [f"mov.b32 v{number}, {{${12 + 2 * number}, ${13 + 2 * number}}};" for number in range(2)]
    lines.append(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0, $1, $2, $3}, {u0, u1, u2, u3}, {v0, v1}, "
        "{$16, $17, $18, $19};"
    )
    constraints = ",".join(["=f"] * 4 + ["h"] * 12 + ["f"] * 4)
    assembly = "{ " + " ".join(lines) + " }"
    one_by_one = []
    for half in range(2):  # of the left operand's rows
        terms = [
            f"tl.reshape(a{2 * half + 4 * (place // 2) + place % 2}.to(tl.float32), (warps, 8, 1, 4)) * "
            f"tl.reshape(b{place}.to(tl.float32), (warps, 1, 8, 4))"
            for place in range(4)
        ]
        made = f"tl.sum({' + '.join(terms)}, axis=3)"
        one_by_one.append(f"        e{half}, f{half} = tl.split(tl.reshape({made}, (warps, 8, 4, 2)))\n")
    sums = ", ".join(
        f"tl.reshape({name}{half}, (warps * 32,)) + c{2 * half + number}"
        for half in range(2)
        for number, name in enumerate("ef")
    )
    return (
        f"@triton.jit\ndef multiply({', '.join([*a, *b, *c])}):\n"
        "    if INTERPRETED:\n"
        "        warps: tl.constexpr = a0.shape[0] // 32\n"
        f"{''.join(one_by_one)}        made = ({sums})\n"
        "    else:\n"
        f"        made = tl.inline_asm_elementwise(\n            {assembly!r},\n            {constraints!r},\n"
        f"            [{', '.join([*a, *b, *c])}],\n"
        "            dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1)\n"
        "    return made\n\n\n"
    )


def settle_name(count: int) -> str:
    """The name of a function of so many halves, whose pairs are those of registers."""
    return f"settle_{count}"


def settle_text(count: int) -> str:
    """The text of that function: the wait for a kernel's predecessors, behind the making of all the halves.

    The wait's condition is read from them and always holds: no half of a number, which has few bits, has all its bits,
    nor have several of them together.
    """
    names = [f"a{number}" for number in range(count)]
    registers = count // 2
    lines = [f".reg .b32 u<{registers}>, all; .reg .pred p; mov.b32 all, 0;"]
    lines += [f"mov.b32 u{number}, {{${1 + 2 * number}, ${2 + 2 * number}}};" for number in range(registers)]
    lines += [f"lop3.b32 all, all, u{number}, u{number + 1}, 0xfe;" for number in range(0, registers, 2)]
    lines.append("setp.ne.u32 p, all, 0xffffffff; @p griddepcontrol.wait; mov.b32 $0, 0;")
    assembly, constraints = "{ " + " ".join(lines) + " }", ",".join(["=r"] + ["h"] * count)
    return (
        f"@triton.jit\ndef {settle_name(count)}({', '.join(names)}):\n"
        f"    tl.inline_asm_elementwise(\n        {assembly!r},\n        {constraints!r},\n"
        f"        [{', '.join(names)}], dtype=tl.int32, is_pure=False, pack=1)\n\n\n"
    )
