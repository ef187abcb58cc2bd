"""The loops around tiles: a stack of row blocks times panels of weights, cut among threads.

Matmuls and dense convolutions are the same problem here: output rows (matrix rows, or pixels of one
image row) are A read through strides, output columns are panels of W, and a few outer axes move both.
The work is a line of tiles in the order (matrix, chunk of row blocks, panel group, row block); every
thread takes an equal piece of it. Nothing is ever split along the summed loops.

Invariant: which thread computes a tile, and in which order, decides nothing about its bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aot import dims as dimension
from aot.backend.base import Emitted, PackedOperand
from aot.backend.cpu.code import Code, DimTable, memory_type, register_dtype
from aot.backend.cpu.dots import DotTile
from aot.backend.cpu.dots import most_rows as dot_rows
from aot.backend.cpu.frame import (
    INLINE_COST,
    Epilogue,
    accumulator_text,
    bytes_moved,
    epilogue_cost,
    fill_halos,
    kernel_body,
    thread_share,
)
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.render import Renderer, Scope, to_store
from aot.backend.cpu.rows import RowAxis
from aot.backend.cpu.tile import (
    MOST_ROWS,
    PANEL,
    RowClass,
    Tile,
    merge_loops,
    registers_per_panel,
    row_classes,
    split,
)
from aot.backend.cpu.weights import DIRECT_ROWS, WeightPanels, direct_panels
from aot.backend.cpu.words import ROW_BYTES, WordDotTile, WordTile, panel_elements, registers_of_tiles
from aot.dims import Dim
from aot.dtypes import DType
from aot.expr import Expr
from aot.kernel import Kernel

WEIGHTS_DISTANCE = 1.5
"""How much longer a byte of weights takes than one of activations: it comes from main memory, or might."""

MOST_FORMS = 8
"""Tile forms up to which the epilogue is written behind each of them."""

CACHE_BYTES = 512 << 10
"""What one operand may take of the second-level cache while the other streams past."""


@dataclass(frozen=True, slots=True)
class MatrixAxis:
    """An axis along which W changes. `axis` None: groups of a convolution, a part of the column axis."""

    axis: int | None
    extent: Dim
    a_stride: Dim
    w_stride: Dim


@dataclass(frozen=True, slots=True)
class Panels:
    """A problem: acc[matrix…, row…, column] = sum over `loops` of A * W.

    `a`: operand number of A, read in place from element `a_origin` on; or None, then `a_value` is its
    element as an Expr over the row axes and the axis `k`, and rows are computed into scratch first.
    `packed`: W is a constant operand of that number in the form given. Otherwise `fill(problem, site)`
    writes the code that packs the panels of one group into scratch.
    `dots`: W is packed for dot products (see dots.py), not in panels.
    `weight`: W is made of these panels: by `fill`, or for a few rows where it is multiplied; see weights.py.
    `w_dtype`: the type of W in panels, if that is not `accumulate`: products are of words then, and A is narrow too;
    see words.py.
    `columns`: of one matrix. `unique_bytes_per_row`: of A, for the order of loops.
    """

    kernel: Kernel
    isa: Isa
    accumulate: DType
    rows: tuple[RowAxis, ...]
    matrices: tuple[MatrixAxis, ...]
    column: int
    columns: Dim
    loops: tuple[tuple[Dim, Dim], ...]
    a: int | None
    a_origin: Dim
    w: int
    packed: PackedOperand | None
    fill: Callable[[Panels, PackSite], None] | None = None
    a_value: Expr | None = None
    b: Expr | None = None
    k: int = -1
    helpers: tuple[str, ...] = ()
    unique_bytes_per_row: Dim = 0
    dots: bool = False
    w_dtype: DType | None = None
    weight: WeightPanels | None = None
    label: str = "matmul"

    @property
    def summed(self) -> Dim:
        """Products per output element."""
        return dimension.product(extent for extent, _ in self.loops)

    @property
    def panels(self) -> Dim:
        """Panels of one matrix."""
        return dimension.ceildiv(self.columns, PANEL)


@dataclass(frozen=True, slots=True)
class PackSite:
    """Where `fill` writes: panels first … first + count - 1 of the current matrix go to `target`, panel after panel."""

    code: Code
    renderer: Renderer
    scope: Scope
    element: str
    target: str
    first: str
    count: str
    matrix: tuple[str, ...]
    dims: DimTable


class _Emitter:
    """The state of one emission."""

    def __init__(self, problem: Panels) -> None:
        self.problem = problem
        self.dims = DimTable()
        self.element = memory_type(problem.accumulate)
        self.w_dtype = problem.w_dtype or problem.accumulate
        self.words = problem.w_dtype is not None
        self.scratch_dtype = problem.accumulate
        if self.words and problem.a_value is not None:
            self.scratch_dtype = problem.a_value.dtype
        a_dtype = self.scratch_dtype if problem.a is None else problem.kernel.inputs[problem.a].type.dtype
        self.a_dtype = None if memory_type(a_dtype) == self.element else a_dtype
        self.a_element, self.w_element = memory_type(a_dtype), memory_type(self.w_dtype)
        self.itemsize = self.w_dtype.itemsize_bytes  # of W and, nearly always, of A
        self.panels = problem.panels if isinstance(problem.panels, int) else None
        rows = problem.rows[-1].extent if problem.rows else 1
        row_stride = problem.rows[-1].stride if problem.rows else 0
        if problem.a is None:
            row_stride = self._scratch_stride()
        aliased = not isinstance(row_stride, int) or row_stride * self.itemsize % 2048 == 0
        # A panel with at most 8 columns in use needs half the work where a register holds 8.
        narrow = isinstance(problem.columns, int) and problem.columns <= PANEL // 2 and self.itemsize == 4
        self.used = PANEL // 2 if narrow else PANEL
        each = registers_per_panel(problem.isa, self.itemsize, self.used)
        if self.words:
            each = registers_of_tiles(problem.isa)
        if problem.dots and isinstance(problem.columns, int):
            tallest = dot_rows(problem.isa, self.itemsize, problem.columns)
            self.classes: tuple[RowClass, ...] = (RowClass(None, tallest, 1),)
        else:
            self.classes = row_classes(problem.isa, each, rows, self.panels, 8 if aliased else MOST_ROWS)
        if problem.weight is not None:
            self.classes = tuple(self._direct(c, rows) for c in self.classes)
        self.row_sizes: dict[RowClass, list[int]] = {}
        low = int(max(dimension.bounds(rows)[0], 1))
        for row_class in self.classes:
            fixed = sorted(set(split(rows, row_class.rows))) if isinstance(rows, int) else None
            self.row_sizes[row_class] = row_class.row_sizes(low) if fixed is None else fixed
            low = max((row_class.upto or low) + 1, low)
        self.loops = merge_loops([(problem.summed, 1)]) if problem.a is None else merge_loops(problem.loops)
        self.summed = self.dims.text(problem.summed)
        self.panel_elements = problem.summed * PANEL
        if self.words:
            self.panel_elements = panel_elements(tuple(extent for extent, _ in self.loops), self.w_dtype)
        self.tile: Tile | DotTile | WordTile | WordDotTile = self._tile(row_stride)
        # Where sums of words start depends on the panels, which then are summed for each group of them.
        self.starts = isinstance(self.tile, WordTile) and self.tile.is_flipped

    def _scratch_stride(self) -> Dim:
        """Elements between rows of A in scratch; no multiple of 2 KiB, or rows fight for one cache set."""
        summed = self.problem.summed
        if isinstance(summed, int):
            return summed + (PANEL if summed * self.itemsize % 2048 == 0 else 0)
        return summed

    def _tile(self, row_stride: Dim) -> Tile | DotTile | WordTile | WordDotTile:
        params: list[str] = []

        def text(value: Dim) -> str:
            if isinstance(value, int):
                return str(value)
            name = self.dims.text(value)
            params.extend(word for word in re.findall(r"\bn\d+\b", name) if word not in params)
            return name

        loops = tuple((text(extent), text(stride)) for extent, stride in self.loops)
        if self.problem.dots and isinstance(self.problem.columns, int):
            columns, summed = self.problem.columns, text(self.problem.summed)
            rows_text = text(row_stride)
            if self.words:
                types = (self.a_dtype or self.problem.accumulate, self.w_dtype)
                return WordDotTile(self.problem.isa, *types, columns, loops, rows_text, summed, tuple(params))
            return DotTile(self.problem.isa, self.element, columns, loops, rows_text, summed, tuple(params))
        panel_stride = text(self.panel_elements)
        if self.words:
            rows_text, a_dtype = text(row_stride), self.a_dtype or self.problem.accumulate
            return WordTile(self.problem.isa, a_dtype, self.w_dtype, loops, rows_text, panel_stride, tuple(params))
        return Tile(
            self.problem.isa,
            self.element,
            self.itemsize,
            loops,
            text(row_stride),
            panel_stride,
            params=tuple(params),
            used=self.used,
            a_dtype=self.a_dtype,
        )

    def _direct(self, row_class: RowClass, rows: Dim) -> RowClass:
        """The class of a weight whose panels are made floats where they are multiplied, if it is for few rows."""
        few = rows if isinstance(rows, int) else row_class.upto
        if few is None or few > DIRECT_ROWS:
            return row_class
        tallest = max(few, 1)
        return RowClass(row_class.upto, tallest, direct_panels(self.problem.isa, tallest), is_direct=True)

    def groups(self, row_class: RowClass) -> list[int]:
        """Panels of each group of panels."""
        return split(self.panels, row_class.panels) if self.panels is not None else [row_class.panels]

    def forms(self) -> list[tuple[int, int, bool]]:
        """The (rows, panels, is direct) of every tile that can occur."""
        found = {(r, p, c.is_direct) for c in self.classes for r in self.row_sizes[c] if r for p in self.groups(c)}
        return sorted(found)

    def emit(self) -> Emitted:
        problem = self.problem
        forms = self.forms()
        inline = (
            epilogue_cost(problem.kernel) <= INLINE_COST
            and len(forms) <= MOST_FORMS
            and not isinstance(self.tile, (DotTile, WordDotTile))
            and self.tile.lanes == problem.isa.lanes
            and problem.weight is None
        )
        code = Code()
        for line in (*self.tile.typedefs, *problem.helpers):
            code.line(line)
        if not inline:
            for rows, panels, is_direct in forms:
                name = f"tile_{rows}x{panels}"
                tile = self.tile
                if is_direct and problem.weight is not None:
                    code.line(self._direct_function(problem.weight, rows, panels))
                    continue
                if isinstance(tile, (DotTile, WordDotTile)):
                    text = tile.function(name, rows)
                else:
                    text = tile.function(name, rows, panels)
                code.line(text)
        with kernel_body(code, self.dims):
            renderer = Renderer(problem.kernel, self.dims, problem.isa, code)
            fill_halos(renderer)
            if forms:
                self._loops(code, renderer, forms, inline)
        return Emitted(
            code.text(),
            self.dims.dims,
            self._schedule(),
            self._scratch_bytes(),
            self._packed(),
            self._flops(),
            bytes_moved(problem.kernel),
        )

    def _packed(self) -> Mapping[int, PackedOperand]:
        problem = self.problem
        if problem.weight is not None:
            return problem.weight.packed(problem.kernel)
        return {problem.w: problem.packed} if problem.packed is not None else {}

    def _direct_function(self, weight: WeightPanels, rows: int, panels: int) -> str:
        assert isinstance(self.tile, Tile)
        ((_, stride),) = self.tile.loops
        strides = (self.tile.row_stride, stride)
        a_dtype = self.a_dtype or self.problem.accumulate
        name = f"direct_{rows}x{panels}"
        return weight.function(name, self.problem.isa, rows, panels, a_dtype, strides, list(self.tile.params))

    def _flops(self) -> Dim:
        problem = self.problem
        outputs = dimension.product(
            [*(r.extent for r in problem.rows), *(m.extent for m in problem.matrices), problem.columns]
        )
        return 2 * outputs * problem.summed

    def _schedule(self) -> str:
        problem = self.problem
        parts = []
        for c in self.classes:
            where = "" if len(self.classes) == 1 else f"rows <= {c.upto}: " if c.upto is not None else "else "
            columns = f"{problem.columns} dot products" if problem.dots else str(c.panels * PANEL)
            parts.append(f"{where}{c.rows}x{columns}")
        source = "packed weights" if self.problem.packed is not None else "panels packed per group"
        if problem.weight is not None:
            source = f"weights of {problem.weight.weight.bits} bits, by blocks of {problem.weight.weight.block} rows"
        return (
            f"{self.problem.label}: tiles {', '.join(parts)}; "
            f"sums {' x '.join(str(e) for e, _ in self.loops)}; {source}; "
            f"order matrix, chunk of {self.chunk_blocks()} row blocks, panel group, row block"
        )

    # Scratch: packed panels of one group, then the rows of one chunk.

    def _w_scratch_elements(self) -> Dim:
        if self.problem.packed is not None:
            return 0
        return self.panel_elements * max((c.panels for c in self.classes if not c.is_direct), default=0)

    def _a_scratch_elements(self) -> Dim:
        if self.problem.a is not None:
            return 0
        return self._scratch_stride() * (self.chunk_blocks() or 1) * max(c.rows for c in self.classes)

    def _scratch_bytes(self) -> Dim:
        total = self._w_scratch_elements() + self._a_scratch_elements()
        return total * self.itemsize + (64 if total != 0 else 0)  # W is a multiple of 64 bytes

    def chunk_blocks(self) -> int:
        """Row blocks of a chunk; 0 for all of them. Within a chunk every weight is read once, in panel order."""
        problem = self.problem
        tallest = max(c.rows for c in self.classes)
        per_row = (
            problem.summed * self.itemsize
            if problem.a is None
            else problem.unique_bytes_per_row or problem.summed * self.itemsize
        )
        per_block = max(int(per_row) if isinstance(per_row, int) else 4096, 1) * tallest
        if problem.a is None:
            return max(min(CACHE_BYTES // 2 // per_block, 8), 1)
        if problem.packed is None:
            return 0  # panels are packed once per group, for all rows
        weights = problem.summed * problem.columns * self.itemsize
        outer = dimension.product([r.extent for r in problem.rows])
        if isinstance(outer, int) and outer * (per_block // tallest) <= 2 * CACHE_BYTES:
            return 0
        if isinstance(weights, int) and weights <= CACHE_BYTES // 2:
            return 1
        chunk = max(CACHE_BYTES // per_block, 1)
        if not isinstance(outer, int) or not isinstance(weights, int):
            return 4 * chunk
        # All rows at once read A once per panel group; chunks read the weights, which are farther away, once each.
        rows_bytes = outer * (per_block // tallest)
        groups = len(self.groups(self.classes[-1]))
        whole = groups * rows_bytes + WEIGHTS_DISTANCE * weights
        parts = rows_bytes + WEIGHTS_DISTANCE * weights * -(-outer // (chunk * tallest))
        return 0 if whole <= parts else chunk

    # The loops.

    def _pick(self, name: str, values: Sequence[str], rows: str) -> str:
        """C text that chooses a value by the class of a row count."""
        text = values[-1]
        for row_class, value in reversed(list(zip(self.classes, values, strict=True))[:-1]):
            text = f"{rows} <= {row_class.upto} ? {value} : {text}"
        return f"const i64 {name} = {text};"

    def _loops(self, code: Code, renderer: Renderer, forms: list[tuple[int, int, bool]], inline: bool) -> None:
        problem, dims = self.problem, self.dims
        rows = dims.text(problem.rows[-1].extent) if problem.rows else "1"
        code.line(f"const i64 rows = {rows};")
        code.line(f"const i64 columns = {dims.text(problem.columns)};")
        code.line(self._pick("tallest", [str(c.rows) for c in self.classes], "rows"))
        code.line("const i64 row_blocks = (rows + tallest - 1) / tallest;")
        code.line("if (row_blocks <= 0 || columns <= 0) return;")
        code.line("const i64 block_rows = rows / row_blocks, tall_blocks = rows % row_blocks;")
        if self.panels is not None:
            splits = [self.groups(c) for c in self.classes]
            code.line(self._pick("groups", [str(len(s)) for s in splits], "rows"))
            code.line(self._pick("group_panels", [str(min(s, default=1)) for s in splits], "rows"))
            code.line(self._pick("wide_groups", [str(sum(p > min(s) for p in s)) for s in splits], "rows"))
        else:
            code.line(self._pick("group_panels", [str(c.panels) for c in self.classes], "rows"))
            code.line("const i64 wide_groups = 0;")
            code.line(f"const i64 groups = (columns + {PANEL} * group_panels - 1) / ({PANEL} * group_panels);")
        outer = [dims.text(r.extent) for r in problem.rows[:-1]]
        code.line(f"const i64 blocks = {' * '.join([*outer, 'row_blocks'])};")
        chunk = self.chunk_blocks()
        code.line(f"const i64 chunk = {chunk or 'blocks'};")
        matrices = " * ".join(dims.text(m.extent) for m in problem.matrices) or "1"
        code.line("const i64 tiles = blocks * groups;")
        thread_share(code, f"tiles * {matrices}")
        code.line("if (u >= u_end || tiles <= 0) return;")
        code.line("i64 matrix = u / tiles, place = u % tiles, first = place / (chunk * groups) * chunk;")
        code.line("place -= first * groups;")
        code.line("i64 size = chunk < blocks - first ? chunk : blocks - first;")
        code.line("i64 group = place / size, block = first + place % size;")
        if problem.packed is None:
            code.line(f"{self.w_element} *const w_scratch = ({self.w_element} *)args->scratch;")
            code.line("i64 packed_matrix = -1, packed_group = -1;")
        if problem.a is None:
            start = dims.text(self._w_scratch_elements())
            code.line(f"{self.a_element} *const a_scratch = ({self.a_element} *)args->scratch + {start};")
            code.line("i64 filled_matrix = -1, filled_chunk = -1;")
        if self.starts:
            most = max(c.panels for c in self.classes) * PANEL
            code.line(f"i32 starts[{most}] __attribute__((aligned(128)));")
            code.line("i64 summed_matrix = -1, summed_group = -1;")
        with code.block("for (; u < u_end; u++)"):
            self._tile_step(code, renderer, forms, inline)
            with code.block("if (++block == first + size)"):
                with code.block("if (++group == groups)"):
                    code.line("group = 0; first += size;")
                    code.line("if (first >= blocks) { first = 0; matrix++; }")
                    code.line("size = chunk < blocks - first ? chunk : blocks - first;")
                code.line("block = first;")

    def _decode(self, code: Code, flat: str, extents: Sequence[Dim], prefix: str) -> list[str]:
        """Declares the indices of a flat index over `extents` and returns their texts."""
        texts: list[str] = []
        rest = flat
        for number in reversed(range(len(extents))):
            if number == 0:
                texts.append(rest)
                break
            extent = self.dims.text(extents[number])
            code.line(f"const i64 {prefix}{number} = {rest} % {extent}, {prefix}{number}_rest = {rest} / {extent};")
            texts.append(f"{prefix}{number}")
            rest = f"{prefix}{number}_rest"
        return list(reversed(texts))

    def _axes(self, code: Code, block: str, matrix: Sequence[str], suffix: str = "") -> tuple[dict[int, str], str]:
        """Declares row0 and tall of a block; returns the outer axes and A's offset of row 0 of the row axis."""
        problem, dims = self.problem, self.dims
        axes: dict[int, str] = {axis: "0" for axis in range(problem.kernel.domain) if axis != problem.column}
        offset = [dims.text(problem.a_origin)] if problem.a_origin != 0 else []
        for axis, text in zip(problem.matrices, matrix, strict=True):
            if axis.axis is not None:
                axes[axis.axis] = text
            if axis.a_stride != 0:
                offset.append(f"{text} * {dims.text(axis.a_stride)}")
        code.line(f"const i64 in_row{suffix} = {block} % row_blocks, outer{suffix} = {block} / row_blocks;")
        code.line(f"const i64 tall{suffix} = block_rows + (in_row{suffix} < tall_blocks);")
        code.line(
            f"const i64 row0{suffix} = in_row{suffix} * block_rows"
            f" + (in_row{suffix} < tall_blocks ? in_row{suffix} : tall_blocks);"
        )
        outer = problem.rows[:-1]
        for row, text in zip(
            outer, self._decode(code, f"outer{suffix}", [r.extent for r in outer], f"o{suffix}"), strict=True
        ):
            axes[row.axis] = text
            offset.append(f"{text} * {dims.text(row.stride)}")
        if problem.rows:
            offset.append(f"row0{suffix} * {dims.text(problem.rows[-1].stride)}")
        return axes, " + ".join(offset) or "0"

    def _tile_step(self, code: Code, renderer: Renderer, forms: list[tuple[int, int, bool]], inline: bool) -> None:
        problem, dims = self.problem, self.dims
        matrix = self._decode(code, "matrix", [m.extent for m in problem.matrices], "m") if problem.matrices else []
        code.line("const i64 panel0 = group * group_panels + (group < wide_groups ? group : wide_groups);")
        code.line("const i64 wide = group_panels + (group < wide_groups);")
        axes, a_offset = self._axes(code, "block", matrix)
        if problem.a is None:
            self._fill_rows(code, renderer, matrix)
            slot = f"(block - first) * tallest * {dims.text(self._scratch_stride())}"
            code.line(f"const {self.a_element} *const a = a_scratch + {slot};")
        else:
            code.line(f"const {self.a_element} *const a = p{problem.a} + {a_offset};")
        panel_elements = f"panel0 * ({dims.text(self.panel_elements)})"
        if problem.packed is not None:
            moved = [
                f"{t} * {dims.text(m.w_stride)}"
                for m, t in zip(problem.matrices, matrix, strict=True)
                if m.w_stride != 0
            ]
            code.line(
                f"const {self.w_element} *const w = (const {self.w_element} *)p{problem.w}"
                f" + {' + '.join([panel_elements, *moved])};"
            )
        else:
            if not all(c.is_direct for c in self.classes):
                self._fill_panels(code, renderer, matrix)
            code.line(f"const {self.w_element} *const w = w_scratch;")
        if isinstance(self.tile, WordTile) and self.starts:
            with code.block("if (summed_matrix != matrix || summed_group != group)"):
                code.line("summed_matrix = matrix; summed_group = group;")
                self.tile.sums(code, "w", "wide", f"({dims.text(self.panel_elements)}) / {ROW_BYTES}", "starts")
        base = [f"{t} * columns" for m, t in zip(problem.matrices, matrix, strict=True) if m.axis is None]
        code.line(f"const i64 column0 = panel0 * {PANEL};")
        column_base = " + ".join(base)
        row_axis = problem.rows[-1].axis if problem.rows else None
        outer_axes = {axis: text for axis, text in axes.items() if axis != row_axis}
        scope = renderer.scope(outer_axes, code=code)
        epilogue = Epilogue(renderer, problem.column)
        if not inline:
            most = max(r * p for r, p, _ in forms) * PANEL
            code.line(f"{self.element} sums[{most}] __attribute__((aligned(128)));")
        if problem.weight is not None:
            direct = max((c.upto or c.rows for c in self.classes if c.is_direct), default=0)
            code.line(f"const i64 is_direct = rows <= {direct};")
        with code.block(f"switch (tall * 16 + wide{' + 4096 * is_direct' if problem.weight is not None else ''})"):
            for rows, panels, is_direct in forms:
                with code.block(f"case {rows * 16 + panels + 4096 * is_direct}:"):
                    if is_direct and problem.weight is not None:
                        given = ["a", *problem.weight.arguments("panel0"), "sums", str(panels * PANEL)]
                        code.line(f"direct_{rows}x{panels}({', '.join([*given, *self.tile.params])});")
                    elif inline and not isinstance(self.tile, (DotTile, WordDotTile)):
                        names = self.tile.body(code, rows, panels)
                        self._inline_stores(code, epilogue, scope, names, panels, column_base, row_axis)
                    else:
                        params = "".join(f", {p}" for p in (*(("starts",) if self.starts else ()), *self.tile.params))
                        code.line(f"tile_{rows}x{panels}(a, w, sums, {panels * PANEL}{params});")
                    code.line("break;")
        if not inline:
            self._stores(code, epilogue, scope, column_base, row_axis)

    def _stores(self, code: Code, epilogue: Epilogue, scope: Scope, column_base: str, row_axis: int | None) -> None:
        """The epilogue of a tile that lies in `sums`."""
        lanes = self.problem.isa.lanes
        with code.block(f"for (i64 j = 0; j < wide * {PANEL}; j += {lanes})"):

            def rows(count: str | None) -> None:
                column = f"(column0 + j{f' + {column_base}' if column_base else ''})"
                values = epilogue.columns(code, scope, column, count)
                with code.block("for (i64 i = 0; i < tall; i++)"):
                    axes = {row_axis: "(row0 + i)"} if row_axis is not None else {}
                    # Whole panels are zero behind the last column; a part of one leaves what memory held.
                    partial = count if self.problem.dots or self.used < PANEL else None
                    sums = accumulator_text(self.problem.accumulate, f"sums + i * (wide * {PANEL}) + j", partial)
                    code.line(f"const {_vector(self.problem.accumulate)} sum = {sums};")
                    epilogue.store(code, scope, axes, column, count, "sum", values)

            self._with_count(code, "column0 + j", rows)

    def _inline_stores(
        self,
        code: Code,
        epilogue: Epilogue,
        scope: Scope,
        names: list[list[str]],
        panels: int,
        column_base: str,
        row_axis: int | None,
    ) -> None:
        lanes = self.problem.isa.lanes
        for j in range(len(names[0])):
            column = f"(column0 + {j * lanes}{f' + {column_base}' if column_base else ''})"

            def rows(count: str | None, j: int = j, column: str = column) -> None:
                values = epilogue.columns(code, scope, column, count)
                for i, row in enumerate(names):
                    axes = {row_axis: f"(row0 + {i})"} if row_axis is not None else {}
                    epilogue.store(code, scope, axes, column, count, row[j], values)

            if isinstance(self.problem.columns, int) and j < (panels - 1) * PANEL // lanes:
                with code.block():
                    rows(None)
            else:
                self._with_count(code, f"column0 + {j * lanes}", rows)

    def _with_count(self, code: Code, column: str, write: Callable[[str | None], None]) -> None:
        """Writes what stores a block twice where needed: for all lanes, and for the last few columns."""
        lanes = self.problem.isa.lanes
        if isinstance(self.problem.columns, int) and self.problem.columns % PANEL == 0:
            with code.block():
                write(None)
            return
        if not (isinstance(self.problem.columns, int) and self.problem.columns < lanes):
            with code.block(f"if ({column} + {lanes} <= columns)"):
                write(None)
        with code.block(f"if ({column} < columns && {column} + {lanes} > columns)"):
            code.line(f"const i64 count = columns - ({column});")
            write("count")

    def _fill_panels(self, code: Code, renderer: Renderer, matrix: Sequence[str]) -> None:
        problem = self.problem
        assert problem.fill is not None
        direct = [c.upto for c in self.classes if c.is_direct]
        many = f"rows > {direct[-1]} && " if direct else ""
        with code.block(f"if ({many}(packed_matrix != matrix || packed_group != group))"):
            code.line("packed_matrix = matrix; packed_group = group;")
            axes = {m.axis: text for m, text in zip(problem.matrices, matrix, strict=True) if m.axis is not None}
            scope = renderer.scope(axes, code=code)
            problem.fill(
                problem,
                PackSite(
                    code, renderer, scope, self.w_element, "w_scratch", "panel0", "wide", tuple(matrix), self.dims
                ),
            )

    def _fill_rows(self, code: Code, renderer: Renderer, matrix: Sequence[str]) -> None:
        """Computes the rows of A of the current chunk into scratch."""
        problem, dims = self.problem, self.dims
        assert problem.a_value is not None
        lanes = problem.isa.lanes
        stride = dims.text(self._scratch_stride())
        with code.block("if (filled_matrix != matrix || filled_chunk != first)"):
            code.line("filled_matrix = matrix; filled_chunk = first;")
            with code.block("for (i64 b = first; b < first + size; b++)"):
                axes, _ = self._axes(code, "b", matrix, "_f")
                row_axis = problem.rows[-1].axis if problem.rows else None
                outer = {axis: text for axis, text in axes.items() if axis != row_axis}
                outer_scope = renderer.scope(outer, code=code)
                with code.block("for (i64 i = 0; i < tall_f; i++)"):
                    row_axes = {row_axis: "(row0_f + i)"} if row_axis is not None else {}
                    row_scope = renderer.scope(row_axes, parent=outer_scope, code=code)
                    code.line(f"{self.a_element} *const target = a_scratch + ((b - first) * tallest + i) * {stride};")
                    code.line(f"const i64 k_end = {self.summed};")

                    def block(count: str | None) -> None:
                        assert problem.a_value is not None
                        scope = renderer.scope({problem.k: "k"}, problem.k, count, parent=row_scope, code=code)
                        value = scope.value(to_store(problem.a_value, self.scratch_dtype))
                        name = self.scratch_dtype.name
                        ending = f", {value})" if count is None else f", {value}, {count})"
                        code.line(f"{'store' if count is None else 'storen'}_{name}(target + k{ending};")

                    with code.block(f"for (i64 k = 0; k < k_end; k += {lanes})"):
                        with code.block(f"if (k + {lanes} <= k_end)"):
                            block(None)
                        with code.block("else"):
                            code.line("const i64 count = k_end - k;")
                            block("count")


def _vector(dtype: DType) -> str:
    return f"v_{register_dtype(dtype).name}"


def emit_panels(problem: Panels) -> Emitted:
    """C for a problem; see Panels."""
    return _Emitter(problem).emit()
