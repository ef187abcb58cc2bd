"""The micro-kernels of products of narrow numbers: words of 32 bits along the innermost summed loop.

A word of A is broadcast and multiplied by a panel row of W: 16 columns of as many neighbours, `[words][16][elements]`,
the same bytes for every instruction set. The last word of a run is assembled from single elements: nothing is read
beyond a tensor.

Four 8-bit integers. With VNNI one instruction adds the four products to a 32-bit sum. It takes one unsigned and one
signed factor; where both operands have one signedness, A's sign bits are flipped as it is read, which moves it by 128,
and the sums start at 128 times the sums of the columns of W, negated for signed ones. Elsewhere both are widened to 16
bits, of which no sum saturates.

Two bf16, where the CPU has vdpbf16ps: it adds both products to an f32, the second neighbour's first, each time rounded
to nearest as by a fused multiply-add, and takes subnormal factors, products and sums for zeros.

Invariant: sums of integers are exact modulo 2**32, in whatever order they are made; those of floats are made in the
order of the loops, whatever the tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from aot import dims as dimension
from aot.backend.cpu.code import Code
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.tile import COLD_PANEL_BYTES, COLD_PREFETCH_BYTES, PANEL, PREFETCH_BYTES, PREFETCH_ROWS, UNROLLED
from aot.dims import Dim
from aot.dtypes import BF16, F32, I8, I32, U8, DType

WORD_BYTES = 4
ROW_BYTES = WORD_BYTES * PANEL
"""Bytes of a panel for one word of A."""


def are_bytes(accumulate: DType, *operands: DType) -> bool:
    """Whether a product is one of 8-bit integers."""
    return accumulate == I32 and all(operand in (I8, U8) for operand in operands)


def are_words(isa: Isa, accumulate: DType, *operands: DType) -> bool:
    """Whether a product is one of words: of 8-bit integers, or of bf16 where the CPU multiplies pairs of them.

    Not of bf16 for exact arithmetic, whose sums keep subnormals.
    """
    has_pairs = isa.has_bf16 and not isa.is_exact
    are_pairs = has_pairs and accumulate == F32 and all(operand == BF16 for operand in operands)
    return are_pairs or are_bytes(accumulate, *operands)


def elements_of(dtype: DType) -> int:
    """Elements of a word."""
    return WORD_BYTES // dtype.itemsize_bytes


def unit_of(dtype: DType) -> str:
    """The C type of an element in memory, of whatever sign."""
    return "u16" if dtype == BF16 else "u8"


def words_of(extent: Dim, dtype: DType) -> Dim:
    """Words that hold a run of so many elements."""
    return dimension.ceildiv(extent, elements_of(dtype))


def panel_elements(extents: tuple[Dim, ...], dtype: DType) -> Dim:
    """Elements of a panel of weights for summed loops of these extents, the innermost last; of 8 bits, its bytes."""
    *outer, run = extents
    return dimension.product(outer) * words_of(run, dtype) * elements_of(dtype) * PANEL


def registers_per_panel(isa: Isa) -> int:
    """Accumulators of one row of a panel: without VNNI each column has two, of which the last step makes one."""
    return PANEL // isa.lanes * (1 if isa.has_vnni else 2)


def registers_of_tiles(isa: Isa) -> int:
    """Registers to reckon with for each row of a panel: of 16, one more, through which products pass."""
    return registers_per_panel(isa) + (0 if isa.is_wide else 1)


@dataclass(frozen=True, slots=True)
class WordTile:
    """As tile.Tile, for operands `a_dtype` and `w_dtype` of 8 bits, or both bf16."""

    isa: Isa
    a_dtype: DType
    w_dtype: DType
    loops: tuple[tuple[str, str], ...]
    row_stride: str
    panel_stride: str
    params: tuple[str, ...] = ()

    @property
    def typedefs(self) -> list[str]:
        """C lines that a source with these tiles needs before the first of them."""
        return []

    @property
    def lanes(self) -> int:
        """Columns of one block of sums."""
        return self.isa.lanes

    @property
    def is_flipped(self) -> bool:
        """Whether the sums start at what `sums` computes, since A is moved by 128 as it is read."""
        return self.isa.has_vnni and self.a_dtype == self.w_dtype != BF16

    @property
    def _sum(self) -> str:
        """The C type of a sum."""
        return "f32" if self.w_dtype == BF16 else "i32"

    @property
    def _unit(self) -> str:
        return unit_of(self.w_dtype)

    @property
    def _elements(self) -> int:
        return elements_of(self.w_dtype)

    @property
    def _row_elements(self) -> int:
        """Elements of a panel for one word of A."""
        return self._elements * PANEL

    def sums(self, code: Code, w: str, count: str, words: str, target: str) -> None:
        """Writes code that puts where the sums of `count` panels start to `target`, 16 each."""
        unsigned = self.w_dtype == U8
        with code.block(f"for (i64 p = 0; p < {count}; p++)"):
            code.line(f"const u8 *const panel = (const u8 *){w} + p * ({self.panel_stride});")
            code.line("v_i32 sum = {0};")
            factors = "b, splat_i32(0x01010101)" if unsigned else "splat_i32(0x01010101), b"
            with code.block(f"for (i64 k = 0; k < {words}; k++)"):
                code.line(f"const v_i32 b = load_i32((const i32 *)(panel + k * {ROW_BYTES}));")
                code.line(f"sum = word_dot(sum, {factors});")
            code.line(f"store_i32({target} + p * {PANEL}, sum * {128 if unsigned else -128});")

    def body(
        self, code: Code, rows: int, panels: int, a: str = "a", w: str = "w", start: str = "starts"
    ) -> list[list[str]]:
        """Writes the inner loop; returns the names of the blocks of sums, per row. All arguments are pointers."""
        each = registers_per_panel(self.isa)
        names = [[f"c{i}_{j}" for j in range(panels * each)] for i in range(rows)]
        for row in names:
            first = [f"load_i32({start} + {j * PANEL})" if self.is_flipped else "{0}" for j in range(panels * each)]
            code.line(
                f"v_{self._sum} {', '.join(f'{name} = {value}' for name, value in zip(row, first, strict=True))};"
            )
        fixed = self.panel_stride.isdigit()
        for j in range(1 if fixed else panels):
            place = f"(const {self._unit} *){w}{f' + {j} * ({self.panel_stride})' if j else ''}"
            code.line(f"const {self._unit} *w{j} = {place};")
        self._loop(code, names, f"(const {self._unit} *){a}", 0, fixed, panels)
        if self.isa.has_vnni:
            return names
        blocks = [[f"s{i}_{j}" for j in range(len(row) // 2)] for i, row in enumerate(names)]
        for row, joined in zip(names, blocks, strict=True):
            for j, name in enumerate(joined):
                code.line(f"const v_i32 {name} = word_join({row[2 * j]}, {row[2 * j + 1]});")
        return blocks

    def _loop(self, code: Code, names: list[list[str]], a: str, level: int, fixed: bool, panels: int) -> None:
        rows = len(names)
        extent, stride = self.loops[level]
        if level + 1 < len(self.loops):
            with code.block(f"for (i64 k{level} = 0; k{level} < {extent}; k{level}++)"):
                self._loop(code, names, f"({a} + k{level} * ({stride}))", level + 1, fixed, panels)
            return
        fixed_rows = self.row_stride.isdigit()
        starts = ["a0"] if fixed_rows else [f"a{i}" for i in range(rows)]
        for i, start in enumerate(starts):
            code.line(f"const {self._unit} *{start} = {a}{f' + {i} * ({self.row_stride})' if i else ''};")
        word = self._elements
        whole = str(int(extent) // word) if extent.isdigit() else f"({extent}) / {word}"
        rest = str(int(extent) % word) if extent.isdigit() else f"({extent}) % {word}"
        if whole != "0":
            if whole.isdigit() and int(whole) <= UNROLLED:
                code.line(f"#pragma GCC unroll {whole}")
            with code.block(f"for (i64 k{level} = 0; k{level} < {whole}; k{level}++)"):
                self._step(code, names, starts, fixed, panels, str(word))
                steps = "; ".join(f"{start} += {word} * ({stride})" for start in starts)
                code.line(f"{steps}; {self._next(fixed, panels)}")
        if rest != "0":
            with code.block("" if rest.isdigit() else f"if ({rest})"):
                self._step(code, names, starts, fixed, panels, rest)
                code.line(self._next(fixed, panels))

    def _next(self, fixed: bool, panels: int) -> str:
        return " ".join(f"w{j} += {self._row_elements};" for j in range(1 if fixed else panels))

    def _word(self, place: str, count: str) -> str:
        """C text of the word of A at an address, of which `count` elements are read."""
        stride, unit = self.loops[-1][1], self._unit
        if stride != "1":
            return f"word_strided_{unit}({place}, {stride}, {count})"
        return f"word_whole_{unit}({place})" if count == str(self._elements) else f"word_rest_{unit}({place}, {count})"

    def _step(
        self, code: Code, names: list[list[str]], starts: list[str], fixed: bool, panels: int, count: str
    ) -> None:
        """One word of every row times one row of every panel."""
        rows, each = len(names), registers_per_panel(self.isa)
        fixed_rows = len(starts) == 1 and rows > 1
        places = [f"a0 + {i} * {self.row_stride}" if fixed_rows and i else starts[0 if fixed_rows else i]
                  for i in range(rows)]  # fmt: skip
        bases = [f"w0 + {j} * {self.panel_stride}" if fixed else f"w{j}" for j in range(panels)]
        ahead = self._prefetch_bytes(rows)
        if ahead:
            for base in bases:
                code.line(f"__builtin_prefetch((const char *)({base}) + {ahead}, 0, 3);")
        if self.isa.has_vnni:
            dot = "pair_dot" if self.w_dtype == BF16 else "word_dot"
            for j, base in enumerate(bases):
                code.line(f"const v_i32 b{j} = load_i32((const i32 *)({base}));")
            for i, place in enumerate(places):
                flipped = " ^ splat_i32((i32)0x80808080)" if self.is_flipped else ""
                factors = "b{}, x" if self.w_dtype == U8 else "x, b{}"
                sums = " ".join(f"{name} = {dot}({name}, {factors.format(j)});" for j, name in enumerate(names[i]))
                word = self._word(place, count)
                # By an instruction: gcc would read the words of all rows and steps first, and have no registers left.
                is_whole = word.startswith("word_whole")
                block = f"word_splat_{self._unit}({place})" if is_whole else f"splat_i32((i32){word})"
                code.line(f"{{ const v_i32 x = {block}{flipped}; {sums} }}")
            return
        half_bytes = self.isa.vector_bytes // 2
        for i, place in enumerate(places):
            word, type_ = self._word(place, count), self.a_dtype.name
            is_whole = word.startswith("word_whole")
            text = f"word_read_{type_}({place})" if is_whole else f"word_wide_{type_}({word})"
            code.line(f"const word_h x{i} = {text};")
        for j, base in enumerate(bases):
            for q in range(each):
                sums = " ".join(f"{row[j * each + q]} += word_pairs(x{i}, b);" for i, row in enumerate(names))
                load = f"word_load_{self.w_dtype.name}({base} + {q * half_bytes})"
                code.line(f"{{ const word_h b = {load}; {sums} }}")

    def _prefetch_bytes(self, rows: int) -> int:
        """How far ahead W is prefetched; 0: not at all. See tile.py."""
        if rows <= PREFETCH_ROWS:
            return PREFETCH_BYTES
        itemsize = self.w_dtype.itemsize_bytes
        small = self.panel_stride.isdigit() and int(self.panel_stride) * itemsize < COLD_PANEL_BYTES
        return 0 if small else COLD_PREFETCH_BYTES

    def function(self, name: str, rows: int, panels: int) -> str:
        """A static function name(a, w, c, c_stride, params…) that computes a tile into memory at c.

        With flipped operands, `c` holds where the sums of each column start in its first row.
        """
        code = Code()
        params = "".join(f", const i64 {p}" for p in self.params)
        head = f"static __attribute__((noinline)) void {name}(const void *restrict a, const void *restrict w"
        starts = ", const i32 *restrict starts" if self.is_flipped else ""
        with code.block(f"{head}, {self._sum} *restrict c, const i64 c_stride{starts}{params})"):
            for i, row in enumerate(self.body(code, rows, panels)):
                for j, block in enumerate(row):
                    code.line(f"store_{self._sum}(c + {i} * c_stride + {j * self.lanes}, {block});")
        return code.text()


@dataclass(frozen=True, slots=True)
class WordDotTile:
    """As dots.DotTile, for operands of WordTile: lanes run along the innermost loop, a word each."""

    isa: Isa
    a_dtype: DType
    w_dtype: DType
    columns: int
    loops: tuple[tuple[str, str], ...]
    row_stride: str
    column_stride: str
    params: tuple[str, ...] = ()

    @property
    def typedefs(self) -> list[str]:
        """C lines that a source with these tiles needs before the first of them."""
        return []

    @property
    def is_flipped(self) -> bool:
        """As WordTile.is_flipped; the sums of the columns are made beside the products here."""
        return self.isa.has_vnni and self.a_dtype == self.w_dtype != BF16

    def function(self, name: str, rows: int) -> str:
        """A static function name(a, w, c, c_stride, params…) that computes a tile into memory at c."""
        code = Code()
        params = "".join(f", const i64 {p}" for p in self.params)
        unit, sum_ = unit_of(self.w_dtype), "f32" if self.w_dtype == BF16 else "i32"
        head = f"static __attribute__((noinline)) void {name}(const {unit} *restrict a, const void *restrict w_start"
        with code.block(f"{head}, {sum_} *restrict c, const i64 c_stride{params})"):
            code.line(f"const {unit} *w = (const {unit} *)w_start;")
            for i in range(rows):
                code.line(f"v_{sum_} {', '.join(f'c{i}_{j} = {{0}}' for j in range(self.columns))};")
            if self.is_flipped:
                code.line(f"v_i32 {', '.join(f's{j} = {{0}}' for j in range(self.columns))};")
            self._loop(code, rows, "a", 0)
            more = " + " if self.w_dtype == U8 else " - "
            for i in range(rows):
                for j in range(self.columns):
                    less = f"{more}128 * fold_sum_i32(s{j})" if self.is_flipped else ""
                    code.line(f"c[{i} * c_stride + {j}] = fold_sum_{sum_}(c{i}_{j}){less};")
        return code.text()

    def _loop(self, code: Code, rows: int, a: str, level: int) -> None:
        extent, stride = self.loops[level]
        if level + 1 < len(self.loops):
            with code.block(f"for (i64 k{level} = 0; k{level} < {extent}; k{level}++)"):
                self._loop(code, rows, f"{a} + k{level} * ({stride})", level + 1)
            return
        bytes_ = self.isa.vector_bytes // (1 if self.isa.has_vnni else 2)
        step, run = bytes_ // self.w_dtype.itemsize_bytes, int(extent)
        for i in range(rows):
            code.line(f"const {unit_of(self.w_dtype)} *const a{i} = {a}{f' + {i} * ({self.row_stride})' if i else ''};")
        whole = run // step * step
        if whole:
            with code.block(f"for (i64 k = 0; k < {whole}; k += {step})"):
                self._step(code, rows, "k", "")
        if whole < run:
            with code.block():
                self._step(code, rows, str(whole), f", {run - whole}")
        code.line(f"w += {run};")

    def _step(self, code: Code, rows: int, k: str, count: str) -> None:
        def load(dtype: DType, place: str) -> str:
            kind = "part" if count else "all"
            return f"word_{kind}_{dtype.name}({place}{count})"

        type_ = "v_i32" if self.isa.has_vnni else "word_h"
        for j in range(self.columns):
            code.line(f"const {type_} b{j} = {load(self.w_dtype, f'w + {j} * ({self.column_stride}) + {k}')};")
            if self.is_flipped:
                factors = f"b{j}, splat_i32(0x01010101)" if self.w_dtype == U8 else f"splat_i32(0x01010101), b{j}"
                code.line(f"s{j} = word_dot(s{j}, {factors});")
        flipped = " ^ splat_i32((i32)0x80808080)" if self.is_flipped else ""
        for i in range(rows):
            if self.isa.has_vnni:
                order = "b{}, x" if self.w_dtype == U8 else "x, b{}"
                dot = "pair_dot" if self.w_dtype == BF16 else "word_dot"
                sums = " ".join(f"c{i}_{j} = {dot}(c{i}_{j}, {order.format(j)});" for j in range(self.columns))
            else:
                sums = " ".join(f"c{i}_{j} += word_pairs(x, b{j});" for j in range(self.columns))
            code.line(f"{{ const {type_} x = {load(self.a_dtype, f'a{i} + {k}')}{flipped}; {sums} }}")


def word_functions(isa: Isa) -> str:
    """The functions of the prelude that tiles of words are made of."""
    out = [
        "static u32 word_rest_u8(const u8 *p, i64 n) { u32 r = p[0]; if (n > 1) r |= (u32)p[1] << 8;\n"
        "  if (n > 2) r |= (u32)p[2] << 16;\n  return r; }\n",
        "static u32 word_rest_u16(const u16 *p, i64 n) { return p[0]; }\n",
    ]
    for unit, bits in (("u8", 8), ("u16", 16)):
        out.append(
            f"static u32 word_whole_{unit}(const {unit} *p) {{ return *(const word_u *)p; }}\n"
            f"static u32 word_strided_{unit}(const {unit} *p, i64 stride, i64 n) {{ u32 r = 0;\n"
            f"  for (i64 i = 0; i < n; i++) r |= (u32)p[i * stride] << ({bits} * i);\n  return r; }}\n"
        )
    constraint = "v" if isa.is_wide else "x"
    out.append(
        "static v_i32 word_madd(v_i32 sum, v_i32 a, v_i32 b) {\n"
        + (
            '  __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); return sum; }\n'
            if isa.has_vnni
            else f'  v_i32 r; __asm__("vpmaddwd %2, %1, %0" : "={constraint}"(r) :'
            f' "{constraint}"(a), "{constraint}"(b)); return sum + r; }}\n'
        )
    )
    if isa.has_vnni:
        for unit in ("u8", "u16"):
            out.append(
                f"static v_i32 word_splat_{unit}(const {unit} *p) {{ v_i32 r;\n"
                '  __asm__("vpbroadcastd %1, %0" : "=v"(r) : "m"(*(const word_u *)p)); return r; }\n'
            )
    if isa.has_bf16:
        out.append(
            "static v_f32 pair_dot(v_f32 sum, v_i32 a, v_i32 b) {\n"
            '  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); return sum; }\n'
            "static v_i32 word_all_bf16(const u16 *p) { return load_i32((const i32 *)p); }\n"
            "static v_i32 word_part_bf16(const u16 *p, i64 n) { v_i32 r;\n"
            '  __asm__("vmovdqu16 %1, %0%{%2%}%{z%}" : "=v"(r) : "m"(*(const m_i32 *)p),'
            ' "Yk"((u32)((1ull << n) - 1)));\n  return r; }\n'
        )
    if isa.has_vnni:
        for name in ("i8", "u8"):
            out.append(
                f"static v_i32 word_all_{name}(const u8 *p) {{ return load_i32((const i32 *)p); }}\n"
                f"static v_i32 word_part_{name}(const u8 *p, i64 n) {{ v_i32 r;\n"
                '  __asm__("vmovdqu8 %1, %0%{%2%}%{z%}" : "=v"(r) : "m"(*(const m_i32 *)p),'
                ' "Yk"((u64)((1ull << n) - 1)));\n  return r; }\n'
            )
        out.append(
            "static v_i32 word_dot(v_i32 sum, v_i32 unsigned_, v_i32 signed_) {\n"
            '  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_), "v"(signed_)); return sum; }\n'
        )
        return "".join(out)
    for name, sign in (("i8", "s"), ("u8", "z")):
        out.append(
            f"static word_h word_widen_{name}(word_{name} v) {{ word_h r;\n"
            f'  __asm__("vpmov{sign}xbw %1, %0" : "={constraint}"(r) : "{constraint}"(v)); return r; }}\n'
            f"static word_h word_wide_{name}(u32 word) {{\n"
            f"  return word_widen_{name}((word_{name})(word - (word_s){{}})); }}\n"
            f"static word_h word_read_{name}(const u8 *p) {{ word_s s;\n"
            f'  __asm__("vpbroadcastd %1, %0" : "={constraint}"(s) : "m"(*(const word_u *)p));\n'
            f"  return word_widen_{name}((word_{name})s); }}\n"
            f"static word_h word_load_{name}(const u8 *p) {{ word_h r;\n"
            f'  __asm__("vpmov{sign}xbw %1, %0" : "={constraint}"(r) : "m"(*(const word_m{name} *)p)); return r; }}\n'
        )
        out.append(
            f"static word_h word_all_{name}(const u8 *p) {{ return word_load_{name}(p); }}\n"
            f"static word_h word_part_{name}(const u8 *p, i64 n) {{ word_{name} v = {{0}};\n"
            f"  for (i64 i = 0; i < n; i++) v[i] = ({name})p[i];\n  return word_widen_{name}(v); }}\n"
        )
    even, odd = (", ".join(map(str, range(first, 2 * isa.lanes, 2))) for first in (0, 1))
    out.append(
        "static v_i32 word_pairs(word_h a, word_h b) { v_i32 r;\n"
        f'  __asm__("vpmaddwd %2, %1, %0" : "={constraint}"(r) : "{constraint}"(a), "{constraint}"(b)); return r; }}\n'
        "static v_i32 word_join(v_i32 a, v_i32 b) {\n#ifdef __clang__\n"
        f"  return __builtin_shufflevector(a, b, {even}) + __builtin_shufflevector(a, b, {odd});\n#else\n"
        f"  return __builtin_shuffle(a, b, (v_i32){{{even}}})\n"
        f"    + __builtin_shuffle(a, b, (v_i32){{{odd}}});\n#endif\n}}\n"
    )
    return "".join(out)


def word_types(isa: Isa) -> list[str]:
    """Typedefs of `word_functions`: 16-bit elements of a register, and the bytes that they are made of."""
    size = isa.vector_bytes // 2
    return [
        "typedef u32 word_u __attribute__((aligned(1), may_alias));",
        f"typedef i16 word_h __attribute__((vector_size({isa.vector_bytes})));",
        f"typedef u32 word_s __attribute__((vector_size({size})));",
        *(f"typedef {name} word_{name} __attribute__((vector_size({size})));" for name in ("i8", "u8")),
        *(
            f"typedef {name} word_m{name} __attribute__((vector_size({size}), aligned(1), may_alias));"
            for name in ("i8", "u8")
        ),
    ]
