"""The micro-kernel of every matmul-like loop: which tile shapes there are, and a tile as C.

A tile is `rows` by `panels` of 16 columns, held in registers over the whole inner loop. It reads A in
place, one element at a time (any strides), and W from panels of 16 columns that lie one after the
other in the order of the loop. Panels are as wide on every instruction set, so that targets share
packed weights.

Invariant: every form adds the products of an output element in the same order, by fused
multiply-add into one accumulator that starts at zero. So the bits of a result depend neither on the
form that made it nor on how the work was divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aot import dims as dimension
from aot.backend.cpu.code import Code, memory_type
from aot.backend.cpu.functions import get
from aot.backend.cpu.isa import Isa
from aot.dims import Dim
from aot.dtypes import DType

PANEL = 16
"""Columns of a panel of packed weights."""

MOST_ROWS = 14
PREFETCH_BYTES = 256
PREFETCH_ROWS = 5
"""Up to so many rows the weights' bandwidth decides, and prefetching them PREFETCH_BYTES ahead pays."""

COLD_PREFETCH_BYTES = 512
COLD_PANEL_BYTES = 16 << 10
"""For more rows, panels at least this large are prefetched farther ahead: weights come from main memory."""

UNROLLED = 8
"""Iterations of the innermost loop up to which it is written out: leaving a short loop costs as much as it does."""

FEW_ROWS = 4
"""Up to so many rows are one tile that is as wide as the registers allow."""


def registers_per_panel(isa: Isa, itemsize_bytes: int, used: int = PANEL) -> int:
    """Vector registers that hold the used columns of one row of a panel."""
    return max(used * itemsize_bytes // isa.vector_bytes, 1)


def most_panels(isa: Isa, each: int, rows: int) -> int:
    """Panels of `each` registers that fit beside each other for so many rows; 0 if not even one does."""
    best = 0
    for panels in range(1, 9 if rows == 1 else 7):
        held = rows * panels * each
        if held + panels * each + 1 <= isa.registers or (rows <= 3 and held + rows <= isa.registers):
            best = panels
    if rows == 1:
        return min(best, max(8 // each, 1))
    return best


@dataclass(frozen=True, slots=True)
class RowClass:
    """The tiles for row counts of at most `upto` (None: all that remain). `is_direct`: those of weights.py."""

    upto: int | None
    rows: int
    panels: int
    is_direct: bool = False

    def row_sizes(self, low: int) -> list[int]:
        """Row counts of the tiles that this class needs for `low` rows and up."""
        high = self.upto if self.upto is not None else max(low, 1) + 4 * self.rows
        found = set()
        for count in range(max(low, 1), high + 1):
            blocks = -(-count // self.rows)
            found |= {count // blocks, -(-count // blocks)}
        return sorted(found)


def split(total: int, most: int) -> list[int]:
    """`total` in as few parts of at most `most` as possible, as even as possible, larger ones first."""
    parts = -(-total // most)
    return [total // parts + (part < total % parts) for part in range(parts)] if parts else []


def _cycles(each: int, rows: int, panels: int) -> float:
    """Cycles of one step of the inner loop: fused multiply-adds, loads, or latency; the loop; weights from L2."""
    return max(rows * panels * each / 2, (rows + panels * each) / 2, 4.0) + 0.5 + 0.2 * panels * each


def _large_form(isa: Isa, each: int, rows: int | None, panels: int | None, most_rows: int) -> tuple[int, int]:
    """(rows, panels) of the form with the least modelled time for a matrix of that size."""
    best: tuple[float, int, int] | None = None
    for tile_rows in range(min(FEW_ROWS, most_rows), most_rows + 1):
        widest = most_panels(isa, each, tile_rows)
        if not widest:
            continue
        for tile_panels in {widest, min(widest, 2)} if panels is None else {widest}:
            # Nothing to compute takes the form of the smallest matrix.
            columns = split(max(panels, 1), tile_panels) if panels is not None else [tile_panels]
            heights = split(max(rows, 1), tile_rows) if rows is not None else [tile_rows]
            time = sum(_cycles(each, h, w) for h in heights for w in columns)
            score = time / (sum(heights) * sum(columns))
            if best is None or score < best[0] - 1e-9:
                best = (score, tile_rows, tile_panels)
    if best is None:  # 64-bit elements on narrow registers
        few = max(r for r in range(1, FEW_ROWS + 1) if most_panels(isa, each, r))
        return few, most_panels(isa, each, few)
    return best[1], best[2]


def row_classes(isa: Isa, each: int, rows: Dim, panels: int | None, most_rows: int) -> tuple[RowClass, ...]:
    """The classes of row counts that a kernel tells apart; one where the count is known.

    `panels` None: the number of columns is not known at build time, tiles are then two panels wide.
    """
    if isinstance(rows, int):
        if 0 < rows <= FEW_ROWS and most_panels(isa, each, rows):
            widest = most_panels(isa, each, rows)
            return (RowClass(None, rows, widest if panels is not None else min(widest, 2)),)
        tile_rows, tile_panels = _large_form(isa, each, rows, panels, most_rows)
        return (RowClass(None, tile_rows, tile_panels if panels is not None else min(tile_panels, 2)),)
    low, high = dimension.bounds(rows)
    classes: list[RowClass] = []
    few = max(r for r in range(1, FEW_ROWS + 1) if most_panels(isa, each, r))
    limits = (1, few)
    for number, upto in enumerate(limits):
        if low <= upto and (number == 0 or upto > limits[number - 1]):
            classes.append(RowClass(upto, upto, most_panels(isa, each, upto)))
    if high > few:
        tile_rows, tile_panels = _large_form(isa, each, None, panels, min(most_rows, 8))
        classes.append(RowClass(None, tile_rows, tile_panels))
    classes[-1] = RowClass(None, classes[-1].rows, classes[-1].panels)
    if panels is None:
        classes = [RowClass(c.upto, c.rows, min(c.panels, 2)) for c in classes]
    return tuple(classes)


@dataclass(frozen=True, slots=True)
class Tile:
    """Where tiles find their operands. Texts are C integers, of elements; they may name `params`.

    `loops`: (extent, stride of A) of the summed loops, outermost first; W advances by `step` for each
    innermost iteration. `row_stride`: of A between rows. `panel_stride`: of W between panels.
    `used`: columns of a panel that are computed, 16, or 8 where a single panel has no more. `a_dtype`:
    what A holds, where that is not `element`; it is converted as it is read. `w_dtype`: the same of W, a narrow float.
    """

    isa: Isa
    element: str
    itemsize_bytes: int
    loops: tuple[tuple[str, str], ...]
    row_stride: str
    panel_stride: str
    step: str = str(PANEL)
    params: tuple[str, ...] = ()
    used: int = PANEL
    a_dtype: DType | None = None
    w_dtype: DType | None = None

    @property
    def w_element(self) -> str:
        """The C type of W in memory."""
        return self.element if self.w_dtype is None else memory_type(self.w_dtype)

    @property
    def a_element(self) -> str:
        """The C type of A in memory."""
        return self.element if self.a_dtype is None else memory_type(self.a_dtype)

    @property
    def typedefs(self) -> list[str]:
        """C lines that a source with these tiles needs before the first of them."""
        size = self.lanes * self.itemsize_bytes
        return [
            f"typedef {self.element} tile_v __attribute__((vector_size({size})));",
            f"typedef {self.element} tile_u"
            f" __attribute__((vector_size({size}), aligned({self.itemsize_bytes}), may_alias));",
        ]

    @property
    def lanes(self) -> int:
        """Elements of one register."""
        return min(self.isa.vector_bytes // self.itemsize_bytes, self.used)

    def body(self, code: Code, rows: int, panels: int, a: str = "a", w: str = "w") -> list[list[str]]:
        """Writes the inner loop; returns the names of the accumulators, per row, per register.

        `a` and `w` are pointer expressions.
        """
        each = self.used // self.lanes
        names = [[f"c{i}_{j}" for j in range(panels * each)] for i in range(rows)]
        for row in names:
            code.line(f"tile_v {', '.join(f'{name} = {{0}}' for name in row)};")
        fixed = self.panel_stride.isdigit()
        starts = [f"w{j}" for j in range(1 if fixed else panels)]
        for j, start in enumerate(starts):
            code.line(f"const {self.w_element} *{start} = {w}{f' + {j} * ({self.panel_stride})' if j else ''};")
        fixed_rows = self.row_stride.isdigit()
        self._loop(code, names, a, 0, fixed, fixed_rows, panels)
        return names

    def _prefetch_bytes(self, rows: int) -> int:
        """How far ahead W is prefetched; 0: not at all."""
        if rows <= PREFETCH_ROWS:
            return PREFETCH_BYTES
        small = self.panel_stride.isdigit() and int(self.panel_stride) * self.itemsize_bytes < COLD_PANEL_BYTES
        return 0 if small or self.step != str(PANEL) else COLD_PREFETCH_BYTES

    def _loop(
        self, code: Code, names: list[list[str]], a: str, level: int, fixed: bool, fixed_rows: bool, panels: int
    ) -> None:
        rows = len(names)
        if not self.loops:
            raise ValueError("a tile needs at least one loop")
        extent, stride = self.loops[level]
        if level + 1 < len(self.loops):
            with code.block(f"for (i64 k{level} = 0; k{level} < {extent}; k{level}++)"):
                self._loop(code, names, f"{a} + k{level} * ({stride})", level + 1, fixed, fixed_rows, panels)
            return
        starts = ["a0"] if fixed_rows else [f"a{i}" for i in range(rows)]
        for i, start in enumerate(starts):
            code.line(f"const {self.a_element} *{start} = {a}{f' + {i} * ({self.row_stride})' if i else ''};")
        each = self.used // self.lanes
        if extent.isdigit() and int(extent) <= UNROLLED:
            code.line(f"#pragma GCC unroll {extent}")
        with code.block(f"for (i64 k{level} = 0; k{level} < {extent}; k{level}++)"):
            blocks = []
            for j in range(panels):
                base = f"w0 + {j * int(self.panel_stride)}" if fixed else f"w{j}"
                ahead = self._prefetch_bytes(rows)
                for line in range(max(self.used * self.itemsize_bytes // 64, 1) if ahead else 0):
                    code.line(f"__builtin_prefetch((const char *)({base}) + {ahead + 64 * line}, 0, 3);")
                for h in range(each):
                    block = f"b{j}_{h}"
                    blocks.append(block)
                    place = f"{base} + {h * self.lanes}"
                    value = f"*(const tile_u *)({place})" if self.w_dtype is None else f"load_{self.w_dtype}({place})"
                    code.line(f"const tile_v {block} = {value};")
            for i in range(rows):
                pointer, offset = ("a0", str(i * int(self.row_stride))) if fixed_rows else (f"a{i}", "0")
                place = f"{pointer}[{offset}]" if self.a_dtype is None else get(self.a_dtype, pointer, offset)
                sums = " ".join(f"{name} += x * {block};" for name, block in zip(names[i], blocks, strict=True))
                code.line(f"{{ const {self.element} x = {place}; {sums} }}")
            moves = [f"{start} += {stride};" for start in starts]
            moves += [f"w{j} += {self.step};" for j in range(1 if fixed else panels)]
            code.line(" ".join(moves))

    def function(self, name: str, rows: int, panels: int) -> str:
        """A static function name(a, w, c, c_stride, params…) that computes a tile into memory at c."""
        code = Code()
        params = "".join(f", const i64 {p}" for p in self.params)
        operands = f"const {self.a_element} *restrict a, const {self.w_element} *restrict w"
        head = f"static __attribute__((noinline)) void {name}({operands}"
        with code.block(f"{head}, {self.element} *restrict c, const i64 c_stride{params})"):
            names = self.body(code, rows, panels)
            each = self.used // self.lanes
            for i, row in enumerate(names):
                for j, accumulator in enumerate(row):
                    column = j // each * PANEL + j % each * self.lanes
                    code.line(f"*(tile_u *)(c + {i} * c_stride + {column}) = {accumulator};")
        return code.text()


def merge_loops(loops: Sequence[tuple[Dim, Dim]]) -> tuple[tuple[Dim, Dim], ...]:
    """(extent, stride) loops, outermost first, with neighbours that walk evenly through memory made one."""
    merged: list[tuple[Dim, Dim]] = []
    for extent, stride in loops:
        if extent == 1 and loops != [(extent, stride)]:
            continue
        if merged and merged[-1][1] == extent * stride:
            merged[-1] = (merged[-1][0] * extent, stride)
        else:
            merged.append((extent, stride))
    return tuple(merged) or ((1, 1),)


TRANSPOSE = """\
typedef f32 tile_8 __attribute__((vector_size(32)));
typedef f32 tile_8u __attribute__((vector_size(32), aligned(4), may_alias));
#ifdef __clang__
#define TILE_MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef i32 tile_8i __attribute__((vector_size(32)));
#define TILE_MIX(a, b, ...) __builtin_shuffle(a, b, (tile_8i){__VA_ARGS__})
#endif
/* target[k * 16 + j] = source[j * stride + k] for j < columns, 0 for the other columns of the panel. */
static __attribute__((noinline)) void tile_transpose(const f32 *restrict source, const i64 stride, const i64 columns,
                                                     f32 *restrict target, const i64 depth) {
  for (i64 j = 0; j < 16; j += 8) {
    i64 k = 0;
    if (j + 8 <= columns)
      for (; k + 8 <= depth; k += 8) {
        const f32 *const s = source + j * stride + k;
        const tile_8 r0 = *(const tile_8u *)s, r1 = *(const tile_8u *)(s + stride);
        const tile_8 r2 = *(const tile_8u *)(s + 2 * stride), r3 = *(const tile_8u *)(s + 3 * stride);
        const tile_8 r4 = *(const tile_8u *)(s + 4 * stride), r5 = *(const tile_8u *)(s + 5 * stride);
        const tile_8 r6 = *(const tile_8u *)(s + 6 * stride), r7 = *(const tile_8u *)(s + 7 * stride);
        const tile_8 a0 = TILE_MIX(r0, r1, 0, 8, 1, 9, 4, 12, 5, 13), a1 = TILE_MIX(r0, r1, 2, 10, 3, 11, 6, 14, 7, 15);
        const tile_8 a2 = TILE_MIX(r2, r3, 0, 8, 1, 9, 4, 12, 5, 13), a3 = TILE_MIX(r2, r3, 2, 10, 3, 11, 6, 14, 7, 15);
        const tile_8 a4 = TILE_MIX(r4, r5, 0, 8, 1, 9, 4, 12, 5, 13), a5 = TILE_MIX(r4, r5, 2, 10, 3, 11, 6, 14, 7, 15);
        const tile_8 a6 = TILE_MIX(r6, r7, 0, 8, 1, 9, 4, 12, 5, 13), a7 = TILE_MIX(r6, r7, 2, 10, 3, 11, 6, 14, 7, 15);
        const tile_8 b0 = TILE_MIX(a0, a2, 0, 1, 8, 9, 4, 5, 12, 13), b1 = TILE_MIX(a0, a2, 2, 3, 10, 11, 6, 7, 14, 15);
        const tile_8 b2 = TILE_MIX(a1, a3, 0, 1, 8, 9, 4, 5, 12, 13), b3 = TILE_MIX(a1, a3, 2, 3, 10, 11, 6, 7, 14, 15);
        const tile_8 b4 = TILE_MIX(a4, a6, 0, 1, 8, 9, 4, 5, 12, 13), b5 = TILE_MIX(a4, a6, 2, 3, 10, 11, 6, 7, 14, 15);
        const tile_8 b6 = TILE_MIX(a5, a7, 0, 1, 8, 9, 4, 5, 12, 13), b7 = TILE_MIX(a5, a7, 2, 3, 10, 11, 6, 7, 14, 15);
        f32 *const t = target + k * 16 + j;
        *(tile_8u *)t = TILE_MIX(b0, b4, 0, 1, 2, 3, 8, 9, 10, 11);
        *(tile_8u *)(t + 16) = TILE_MIX(b1, b5, 0, 1, 2, 3, 8, 9, 10, 11);
        *(tile_8u *)(t + 32) = TILE_MIX(b2, b6, 0, 1, 2, 3, 8, 9, 10, 11);
        *(tile_8u *)(t + 48) = TILE_MIX(b3, b7, 0, 1, 2, 3, 8, 9, 10, 11);
        *(tile_8u *)(t + 64) = TILE_MIX(b0, b4, 4, 5, 6, 7, 12, 13, 14, 15);
        *(tile_8u *)(t + 80) = TILE_MIX(b1, b5, 4, 5, 6, 7, 12, 13, 14, 15);
        *(tile_8u *)(t + 96) = TILE_MIX(b2, b6, 4, 5, 6, 7, 12, 13, 14, 15);
        *(tile_8u *)(t + 112) = TILE_MIX(b3, b7, 4, 5, 6, 7, 12, 13, 14, 15);
      }
    for (; k < depth; k++)
      for (i64 l = 0; l < 8; l++) target[k * 16 + j + l] = j + l < columns ? source[(j + l) * stride + k] : 0;
  }
}
"""
"""C of the packing of a transposed matrix; 4-byte elements of any type may be passed as f32."""
