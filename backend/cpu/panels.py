"""The loops around tiles: a stack of row blocks times panels of weights, cut among threads.

Matmuls and dense convolutions are the same problem here: output rows (matrix rows, or pixels of one
image row) are A read through strides, output columns are panels of W, and a few outer axes move both.
The work is a line of tiles in the order (matrix, chunk of row blocks, panel group, row block); every
thread takes an equal piece of it. Nothing is ever split along the summed loops.

Invariant: which thread computes a tile, and in which order, decides nothing about its bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from aot import dims as dimension
from aot import expr
from aot.backend.base import Emitted, PackedOperand
from aot.backend.cpu.affine import affine_of, axes_in
from aot.backend.cpu.code import Code, DimTable, memory_type, register_dtype
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.render import Renderer, Scope
from aot.backend.cpu.tile import MOST_ROWS, PANEL, RowClass, Tile, merge_loops, row_classes, split
from aot.dims import Dim
from aot.dtypes import DType
from aot.errors import CompilerError
from aot.expr import Expr
from aot.ir import TensorType
from aot.kernel import Kernel, Store

CACHE_BYTES = 512 << 10
"""What one operand may take of the second-level cache while the other streams past."""

INLINE_COST = 8
"""Scalar operations of an epilogue up to which it is written behind every tile form."""

HEAVY = frozenset(
    "exp log log1p expm1 sin cos tan asin acos atan sinh cosh asinh acosh atanh tanh erf sigmoid pow".split()
) | {"fmod", "mod", "floordiv"}


@dataclass(frozen=True, slots=True)
class RowAxis:
    """An axis of output rows: the kernel's axis number, its extent, elements of A from one to the next."""

    axis: int
    extent: Dim
    stride: Dim


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


def merge_rows(
    kernel: Kernel, rows: Sequence[RowAxis], extra: Sequence[Expr]
) -> tuple[Kernel, tuple[RowAxis, ...], list[Expr]]:
    """Makes neighbouring row axes one where A and every access of the epilogue walk evenly through both.

    The outer axis of a merged pair becomes 0 in all expressions (`extra` ones too), the inner one runs
    over both; offsets are sums of index * stride, so they stay the same.
    """
    rows = [row for row in rows if row.extent != 1]
    extra = list(extra)
    number = len(rows) - 2
    while number >= 0:
        outer, inner = rows[number], rows[number + 1]
        if outer.stride == inner.extent * inner.stride and _walks_evenly(kernel, extra, outer.axis, inner):
            kernel, extra = _substitute(kernel, extra, outer.axis)
            rows[number : number + 2] = [RowAxis(inner.axis, outer.extent * inner.extent, inner.stride)]
        number -= 1
    return kernel, tuple(rows), extra


def _walks_evenly(kernel: Kernel, extra: Sequence[Expr], outer: int, inner: RowAxis) -> bool:
    def even(type_strides: Sequence[Dim], indices: Sequence[Expr]) -> bool:
        total = expr.dim(0)
        for index, stride in zip(indices, type_strides, strict=True):
            total = total + index * expr.dim(stride)
        sum_ = affine_of(total)
        if any(axes_in([term]) & {outer, inner.axis} for term, _ in sum_.rest):
            return False
        return sum_.coefficients.get(outer, 0) == inner.extent * sum_.coefficients.get(inner.axis, 0)

    values = [store.value for store in kernel.stores] + list(extra)
    loads = {node for value in values for node in expr.walk(value) if node.op == "load"}
    for store in kernel.stores:
        if store.axes or not even(kernel.outputs[store.output].type.strides, store.indices):
            return False
    for load in loads:
        type_ = kernel.inputs[load.payload].type
        if not even(type_.strides, load.args[: type_.rank]):
            return False
        if axes_in(load.args[type_.rank :]) & {outer, inner.axis}:
            return False
    bare = [
        expr.rewrite(value, lambda node: expr.const(0, node.dtype) if node.op == "load" else None) for value in values
    ]
    return not axes_in(bare) & {outer, inner.axis}


def _substitute(kernel: Kernel, extra: Sequence[Expr], axis: int) -> tuple[Kernel, list[Expr]]:
    def leaf(node: Expr) -> Expr | None:
        return expr.const(0, node.dtype) if node.op == "axis" and node.payload == axis else None

    stores = tuple(
        Store(s.output, tuple(expr.rewrite(i, leaf) for i in s.indices), expr.rewrite(s.value, leaf), s.axes)
        for s in kernel.stores
    )
    return replace(kernel, stores=stores), [expr.rewrite(value, leaf) for value in extra]


def epilogue_cost(kernel: Kernel) -> int:
    """Vector operations per block of outputs, roughly; a function by polynomial counts as many."""
    nodes = {node for store in kernel.stores for node in expr.walk(store.value)}
    return sum(20 if node.op in HEAVY else 1 for node in nodes if node.op in expr.FUNCTIONS or node.op == "load")


def accumulator_text(dtype: DType, place: str) -> str:
    """C text of the block of accumulators that lies at an address."""
    return f"load_{register_dtype(dtype).name}({place})"


class Epilogue:
    """Renders the stores of a kernel for blocks of one column axis."""

    def __init__(self, renderer: Renderer, column: int) -> None:
        self.renderer = renderer
        self.column = column
        nodes: dict[Expr, None] = {}
        for store in renderer.kernel.stores:
            if any(node.op == "reduce" for node in expr.walk(store.value)):
                raise CompilerError(f"{renderer.kernel.name}: a reduction behind a contraction is not one kernel")
            for node in expr.walk(store.value):
                if node.op == "load" and axes_in([node]) == {column}:
                    nodes.setdefault(node)
        self.column_loads = tuple(nodes)

    def columns(self, code: Code, parent: Scope, column: str, count: str | None) -> Mapping[Expr, str]:
        """Loads what depends on the column alone (a bias), once for all rows of a tile."""
        if not self.column_loads:
            return {}
        scope = self.renderer.scope({self.column: column}, self.column, count, parent=parent, code=code)
        return {node: scope.value(node) for node in self.column_loads}

    def store(
        self,
        code: Code,
        parent: Scope,
        axes: Mapping[int, str],
        column: str,
        count: str | None,
        accumulator: str,
        values: Mapping[Expr, str],
    ) -> None:
        """Stores one block: `accumulator` is the C text of its sums."""
        scope = self.renderer.scope(
            {**axes, self.column: column}, self.column, count, {0: accumulator}, values, parent=parent, code=code
        )
        for store in self.renderer.kernel.stores:
            scope.store(store)


@contextmanager
def kernel_body(code: Code, dims: DimTable) -> Iterator[None]:
    """`void KERNEL(…) { … }` with the integer arguments that the body turned out to use."""
    with code.block("void KERNEL(const aot_kernel_args *args)"):
        declarations = code.fragment()
        yield
        for line in dims.declarations():
            declarations.line(line)


def thread_share(code: Code, total: str, first: str = "u", end: str = "u_end") -> None:
    """Declares this thread's piece of `total` tasks."""
    code.line(f"const i64 {first}_total = {total};")
    code.line(f"i64 {first} = {first}_total * args->thread / args->thread_count;")
    code.line(f"const i64 {end} = {first}_total * (args->thread + 1) / args->thread_count;")


class _Emitter:
    """The state of one emission."""

    def __init__(self, problem: Panels) -> None:
        self.problem = problem
        self.dims = DimTable()
        self.element = memory_type(problem.accumulate)
        self.itemsize = problem.accumulate.itemsize_bytes
        self.panels = problem.panels if isinstance(problem.panels, int) else None
        rows = problem.rows[-1].extent if problem.rows else 1
        row_stride = problem.rows[-1].stride if problem.rows else 0
        if problem.a is None:
            row_stride = self._scratch_stride()
        aliased = not isinstance(row_stride, int) or row_stride * self.itemsize % 2048 == 0
        self.classes = row_classes(problem.isa, self.itemsize, rows, self.panels, 8 if aliased else MOST_ROWS)
        self.row_sizes: dict[RowClass, list[int]] = {}
        low = int(max(dimension.bounds(rows)[0], 1))
        for row_class in self.classes:
            fixed = sorted(set(split(rows, row_class.rows))) if isinstance(rows, int) else None
            self.row_sizes[row_class] = row_class.row_sizes(low) if fixed is None else fixed
            low = max((row_class.upto or low) + 1, low)
        self.loops = merge_loops([(problem.summed, 1)]) if problem.a is None else merge_loops(problem.loops)
        self.summed = self.dims.text(problem.summed)
        self.tile = self._tile(row_stride)

    def _scratch_stride(self) -> Dim:
        """Elements between rows of A in scratch; no multiple of 2 KiB, or rows fight for one cache set."""
        summed = self.problem.summed
        if isinstance(summed, int):
            return summed + (PANEL if summed * self.itemsize % 2048 == 0 else 0)
        return summed

    def _tile(self, row_stride: Dim) -> Tile:
        params: list[str] = []

        def text(value: Dim) -> str:
            if isinstance(value, int):
                return str(value)
            name = self.dims.text(value)
            params.extend(word for word in re.findall(r"\bn\d+\b", name) if word not in params)
            return name

        loops = tuple((text(extent), text(stride)) for extent, stride in self.loops)
        panel_stride = text(self.problem.summed * PANEL)
        return Tile(
            self.problem.isa, self.element, self.itemsize, loops, text(row_stride), panel_stride, params=tuple(params)
        )

    def groups(self, row_class: RowClass) -> list[int]:
        """Panels of each group of panels."""
        return split(self.panels, row_class.panels) if self.panels is not None else [row_class.panels]

    def forms(self) -> list[tuple[int, int]]:
        """The (rows, panels) of every tile that can occur."""
        found = {(r, p) for c in self.classes for r in self.row_sizes[c] if r for p in self.groups(c)}
        return sorted(found)

    def emit(self) -> Emitted:
        problem = self.problem
        forms = self.forms()
        inline = (
            epilogue_cost(problem.kernel) <= INLINE_COST
            and len(forms) <= 8
            and self.itemsize * problem.isa.lanes == problem.isa.vector_bytes
        )
        code = Code()
        for line in (*self.tile.typedefs, *problem.helpers):
            code.line(line)
        if not inline:
            for rows, panels in forms:
                for line in self.tile.function(f"tile_{rows}x{panels}", rows, panels).splitlines():
                    code.line(line)
        with kernel_body(code, self.dims):
            renderer = Renderer(problem.kernel, self.dims, problem.isa, code)
            zero_halos(renderer)
            if forms:
                self._loops(code, renderer, forms, inline)
        return Emitted(
            code.text(),
            self.dims.dims,
            self._schedule(),
            self._scratch_bytes(),
            {problem.w: problem.packed} if problem.packed is not None else {},
            self._flops(),
            bytes_moved(problem.kernel),
        )

    def _flops(self) -> Dim:
        problem = self.problem
        outputs = dimension.product(
            [*(r.extent for r in problem.rows), *(m.extent for m in problem.matrices), problem.columns]
        )
        return 2 * outputs * problem.summed

    def _schedule(self) -> str:
        parts = []
        for c in self.classes:
            where = "" if len(self.classes) == 1 else f"rows <= {c.upto}: " if c.upto is not None else "else "
            parts.append(f"{where}{c.rows}x{c.panels * PANEL}")
        source = "packed weights" if self.problem.packed is not None else "panels packed per group"
        return (
            f"{self.problem.label}: tiles {', '.join(parts)}; "
            f"sums {' x '.join(str(e) for e, _ in self.loops)}; {source}; "
            f"order matrix, chunk of {self.chunk_blocks()} row blocks, panel group, row block"
        )

    # Scratch: packed panels of one group, then the rows of one chunk.

    def _w_scratch_elements(self) -> Dim:
        if self.problem.packed is not None:
            return 0
        return self.problem.summed * PANEL * max(c.panels for c in self.classes)

    def _a_scratch_elements(self) -> Dim:
        if self.problem.a is not None:
            return 0
        return self._scratch_stride() * (self.chunk_blocks() or 1) * max(c.rows for c in self.classes)

    def _scratch_bytes(self) -> Dim:
        total = self._w_scratch_elements() + self._a_scratch_elements()
        return total * self.itemsize + (64 if total != 0 else 0)

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
        return max(CACHE_BYTES // per_block, 1)

    # The loops.

    def _pick(self, name: str, values: Sequence[str], rows: str) -> str:
        """C text that chooses a value by the class of a row count."""
        text = values[-1]
        for row_class, value in reversed(list(zip(self.classes, values, strict=True))[:-1]):
            text = f"{rows} <= {row_class.upto} ? {value} : {text}"
        return f"const i64 {name} = {text};"

    def _loops(self, code: Code, renderer: Renderer, forms: list[tuple[int, int]], inline: bool) -> None:
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
            code.line(
                f"const i64 wide_groups = 0, groups = (columns + {PANEL} * group_panels - 1) / ({PANEL} * group_panels);"
            )
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
            code.line(f"{self.element} *const w_scratch = ({self.element} *)args->scratch;")
            code.line("i64 packed_matrix = -1, packed_group = -1;")
        if problem.a is None:
            start = dims.text(self._w_scratch_elements())
            code.line(f"{self.element} *const a_scratch = ({self.element} *)args->scratch + {start};")
            code.line("i64 filled_matrix = -1, filled_chunk = -1;")
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

    def _tile_step(self, code: Code, renderer: Renderer, forms: list[tuple[int, int]], inline: bool) -> None:
        problem, dims = self.problem, self.dims
        matrix = self._decode(code, "matrix", [m.extent for m in problem.matrices], "m") if problem.matrices else []
        code.line("const i64 panel0 = group * group_panels + (group < wide_groups ? group : wide_groups);")
        code.line("const i64 wide = group_panels + (group < wide_groups);")
        axes, a_offset = self._axes(code, "block", matrix)
        if problem.a is None:
            self._fill_rows(code, renderer, matrix)
            slot = f"(block - first) * tallest * {dims.text(self._scratch_stride())}"
            code.line(f"const {self.element} *const a = a_scratch + {slot};")
        else:
            code.line(f"const {self.element} *const a = p{problem.a} + {a_offset};")
        panel_elements = f"panel0 * ({dims.text(problem.summed * PANEL)})"
        if problem.packed is not None:
            moved = [
                f"{t} * {dims.text(m.w_stride)}"
                for m, t in zip(problem.matrices, matrix, strict=True)
                if m.w_stride != 0
            ]
            code.line(
                f"const {self.element} *const w = (const {self.element} *)p{problem.w}"
                f" + {' + '.join([panel_elements, *moved])};"
            )
        else:
            self._fill_panels(code, renderer, matrix)
            code.line(f"const {self.element} *const w = w_scratch;")
        base = [f"{t} * columns" for m, t in zip(problem.matrices, matrix, strict=True) if m.axis is None]
        code.line(f"const i64 column0 = panel0 * {PANEL};")
        column_base = " + ".join(base)
        row_axis = problem.rows[-1].axis if problem.rows else None
        outer_axes = {axis: text for axis, text in axes.items() if axis != row_axis}
        scope = renderer.scope(outer_axes, code=code)
        epilogue = Epilogue(renderer, problem.column)
        if not inline:
            most = max(r * p for r, p in forms) * PANEL
            code.line(f"{self.element} sums[{most}] __attribute__((aligned(128)));")
        with code.block("switch (tall * 16 + wide)"):
            for rows, panels in forms:
                with code.block(f"case {rows * 16 + panels}:"):
                    if inline:
                        names = self.tile.body(code, rows, panels)
                        self._inline_stores(code, epilogue, scope, names, panels, column_base, row_axis)
                    else:
                        params = "".join(f", {p}" for p in self.tile.params)
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
                    sums = accumulator_text(self.problem.accumulate, f"sums + i * (wide * {PANEL}) + j")
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
        for j in range(panels * PANEL // lanes):
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
        with code.block("if (packed_matrix != matrix || packed_group != group)"):
            code.line("packed_matrix = matrix; packed_group = group;")
            axes = {m.axis: text for m, text in zip(problem.matrices, matrix, strict=True) if m.axis is not None}
            scope = renderer.scope(axes, code=code)
            problem.fill(
                problem,
                PackSite(code, renderer, scope, self.element, "w_scratch", "panel0", "wide", tuple(matrix), self.dims),
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
                    code.line(f"{self.element} *const target = a_scratch + ((b - first) * tallest + i) * {stride};")
                    code.line(f"const i64 k_end = {self.summed};")

                    def block(count: str | None) -> None:
                        assert problem.a_value is not None
                        scope = renderer.scope({problem.k: "k"}, problem.k, count, parent=row_scope, code=code)
                        value = scope.value(problem.a_value)
                        name = register_dtype(problem.accumulate).name
                        ending = f", {value})" if count is None else f", {value}, {count})"
                        code.line(f"{'store' if count is None else 'storen'}_{name}(target + k{ending};")

                    with code.block(f"for (i64 k = 0; k < k_end; k += {lanes})"):
                        with code.block(f"if (k + {lanes} <= k_end)"):
                            block(None)
                        with code.block("else"):
                            code.line("const i64 count = k_end - k;")
                            block("count")


def zero_halos(renderer: Renderer) -> None:
    """Writes code that zeroes the halo of every haloed output, shared among the threads.

    A plane of the halo is a range of one axis, with the full storage of the axes inside it in memory
    and the inner range of those outside it; where the axes inside are whole, it is one run of memory.
    """
    kernel, dims, code = renderer.kernel, renderer.dims, renderer.code
    for number, output in enumerate(kernel.outputs):
        type_ = output.type
        if not any(before or after for before, after in type_.halo):
            continue
        pointer = f"p{len(kernel.inputs) + number}"
        order = type_.order
        for place, axis in enumerate(order):
            before, after = type_.halo[axis]
            for start, length in (((-before), before), (type_.shape[axis], after)):
                if not length:
                    continue
                loops: list[tuple[int, Dim, Dim]] = []
                for position, other in enumerate(order):
                    low, high = type_.halo[other]
                    if position < place:
                        loops.append((other, 0, type_.shape[other]))
                    elif position == place:
                        loops.append((other, start, length))
                    else:
                        loops.append((other, -low, type_.shape[other] + low + high))
                _zero_box(code, dims, type_, pointer, loops)


def _zero_box(
    code: Code, dims: DimTable, type_: TensorType, pointer: str, loops: Sequence[tuple[int, Dim, Dim]]
) -> None:
    """Zeroes a box of (axis, start, extent) ranges, outermost in memory first; threads share the outer axes."""
    origin = type_.origin_elements
    for axis, start, _ in loops:
        origin = origin + start * type_.strides[axis]
    parts = merge_loops([(extent, type_.strides[axis]) for axis, _, extent in loops])
    *outer, (extent, stride) = parts
    with code.block():
        counts = [dims.text(e) for e, _ in outer]
        thread_share(code, " * ".join(counts) or "1", "h", "h_end")
        with code.block("for (; h < h_end; h++)"):
            rest = "h"
            terms = [dims.text(origin)]
            for number in reversed(range(len(outer))):
                index = rest if number == 0 else f"{rest} % {counts[number]}"
                terms.append(f"({index}) * {dims.text(outer[number][1])}")
                rest = f"({rest}) / {counts[number]}"
            element = memory_type(type_.dtype)
            code.line(f"{element} *const edge = {pointer} + {' + '.join(terms)};")
            step = dims.text(stride)
            code.line(
                f"for (i64 e = 0; e < {dims.text(extent)}; e++) edge[e{'' if step == '1' else f' * {step}'}] = 0;"
            )


def _vector(dtype: DType) -> str:
    return f"v_{register_dtype(dtype).name}"


def bytes_moved(kernel: Kernel) -> Dim:
    """Every operand once."""
    total: Dim = 0
    for operand in (*kernel.inputs, *kernel.outputs):
        total = total + operand.type.bytes
    return total


def emit_panels(problem: Panels) -> Emitted:
    """C for a problem; see Panels."""
    return _Emitter(problem).emit()
