"""The other micro-kernel: a few output columns, summed by vectors along the innermost summed loop.

With one to six columns most lanes of a panel would be idle. Where the innermost loop walks through
A element by element, lanes run along it instead, and are added up at the end, always by the same
tree. W lies as [column][summed loops].

Invariant: the order of the sums depends on the loops alone, not on how many rows a tile has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from aot.backend.cpu.code import Code
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.tile import registers_per_panel
from aot.dims import Dim

MOST_COLUMNS = 6
FOLD_CYCLES = 20


def prefers_dots(isa: Isa, itemsize_bytes: int, columns: Dim, loops: Sequence[tuple[Dim, Dim]], word: int = 0) -> bool:
    """Whether dot products are modelled faster than a panel; `loops` are merged, all extents must be known.

    `word`: elements of a word, where products are of words, see words.py.
    """
    if not isinstance(columns, int) or not 0 < columns <= MOST_COLUMNS:
        return False
    extents = [extent for extent, _ in loops if isinstance(extent, int)]
    if len(extents) != len(loops) or loops[-1][1] != 1 or 0 in extents:
        return False
    *outer, run = extents
    times = prod(outer)
    if word:
        return columns * (times * -(-run // (isa.lanes * word)) + FOLD_CYCLES) < times * -(-run // word)
    each = max(isa.lanes * itemsize_bytes // isa.vector_bytes, 1)
    steps = times * -(-run // isa.lanes) * each
    dots = columns * (steps / 2 + FOLD_CYCLES)
    panel = (
        times * run * registers_per_panel(isa, itemsize_bytes, 8 if columns <= 8 and itemsize_bytes == 4 else 16) / 2
    )
    return dots < panel


def most_rows(isa: Isa, itemsize_bytes: int, columns: int) -> int:
    """Rows of a tile whose accumulators fit the registers."""
    registers = isa.registers // max(isa.lanes * itemsize_bytes // isa.vector_bytes, 1)
    return max(min((registers - 2) // (columns + 1), 8), 1)


@dataclass(frozen=True, slots=True)
class DotTile:
    """As Tile, for W in rows; `columns` of them, `column_stride` elements apart."""

    isa: Isa
    element: str
    columns: int
    loops: tuple[tuple[str, str], ...]
    row_stride: str
    column_stride: str
    params: tuple[str, ...] = ()

    @property
    def typedefs(self) -> list[str]:
        """C lines that a source with these tiles needs before the first of them."""
        return []

    def function(self, name: str, rows: int) -> str:
        """A static function name(a, w, c, c_stride, params…) that computes a tile into memory at c."""
        code = Code()
        params = "".join(f", const i64 {p}" for p in self.params)
        operands = ", ".join(f"const {self.element} *restrict {operand}" for operand in "aw")
        head = f"static __attribute__((noinline)) void {name}({operands}"
        with code.block(f"{head}, {self.element} *restrict c, const i64 c_stride{params})"):
            for i in range(rows):
                code.line(f"v_{self.element} {', '.join(f'c{i}_{j} = {{0}}' for j in range(self.columns))};")
            self._loop(code, rows, "a", 0)
            for i in range(rows):
                for j in range(self.columns):
                    code.line(f"c[{i} * c_stride + {j}] = fold_sum_{self.element}(c{i}_{j});")
        return code.text()

    def _loop(self, code: Code, rows: int, a: str, level: int) -> None:
        extent, stride = self.loops[level]
        if level + 1 < len(self.loops):
            with code.block(f"for (i64 k{level} = 0; k{level} < {extent}; k{level}++)"):
                self._loop(code, rows, f"{a} + k{level} * ({stride})", level + 1)
            return
        lanes, run = self.isa.lanes, int(extent)
        for i in range(rows):
            code.line(f"const {self.element} *const a{i} = {a}{f' + {i} * ({self.row_stride})' if i else ''};")
        whole = run // lanes * lanes
        if whole:
            with code.block(f"for (i64 k = 0; k < {whole}; k += {lanes})"):
                self._step(code, rows, "k", None)
        if whole < run:
            with code.block():
                self._step(code, rows, str(whole), run - whole)
        code.line(f"w += {run};")

    def _step(self, code: Code, rows: int, k: str, count: int | None) -> None:
        def load(place: str) -> str:
            return f"load_{self.element}({place})" if count is None else f"loadn_{self.element}({place}, {count})"

        for j in range(self.columns):
            code.line(f"const v_{self.element} b{j} = {load(f'w + {j} * ({self.column_stride}) + {k}')};")
        for i in range(rows):
            sums = " ".join(f"c{i}_{j} += x * b{j};" for j in range(self.columns))
            code.line(f"{{ const v_{self.element} x = {load(f'a{i} + {k}')}; {sums} }}")
