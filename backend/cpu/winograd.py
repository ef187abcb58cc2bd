"""3x3 convolutions with fewer multiplications: Winograd's F(2x2, 3x3) (Lavin and Gray, 2015).

Four outputs of one channel come from a patch of 4x4 inputs: the patch is transformed by additions,
multiplied in 16 small matmuls with weights that were transformed at build time in f64, and transformed
back. Under a dilation the rows (columns) of a patch lie that far apart. A thread takes (block of
patches, group of output panels) pieces; the transformed patches of its block stay in the second-level
cache. It is more accurate than the direct sum of nine products, but it reassociates, so it is not for
exact builds.

Invariant: what a patch gives does not depend on the block or the thread that it falls to.
"""

from __future__ import annotations

from aot import dims as dimension
from aot import expr
from aot.backend.base import Emitted, PackedOperand
from aot.backend.cpu.code import Code, DimTable
from aot.backend.cpu.frame import Epilogue, bytes_moved, fill_halos, kernel_body, thread_share
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.render import Renderer, Scope
from aot.backend.cpu.tile import PANEL, Tile, most_panels, registers_per_panel, split
from aot.dims import Dim
from aot.dtypes import BF16, F16, F32
from aot.errors import CompilerError
from aot.kernel import Kernel, WindowRoot
from aot.program import RecipeOp, RecipeStep

LEAST_CHANNELS = 24
LEAST_OUTPUTS = 36
"""Output pixels of an image below which a block has too few patches to pay for the transforms."""

MOST_APART = 4
"""Dilation up to which an image of unknown size is taken to fill its patches."""

MOST_WASTE = 1.6
"""Outputs that are computed, stored or not, per output."""

PATCH_BYTES = 768 << 10
"""What the transformed patches of a block may take."""

MOST_PATCHES = 128


def prefers_winograd(kernel: Kernel, isa: Isa) -> bool:
    """Whether F(2x2, 3x3) applies and is faster than the direct loops."""
    root = kernel.root
    if not isinstance(root, WindowRoot) or root.accumulate != F32 or kernel.domain != 4:
        return False
    x, w = kernel.inputs[root.x], kernel.inputs[root.w]
    outputs, channels, *window = w.type.shape
    if window != [3, 3] or root.groups != 1 or root.strides != (1, 1):
        return False
    loads = [node.payload for store in kernel.stores for node in expr.walk(store.value) if node.op == "load"]
    if not w.constant or root.w in loads or x.type.dtype != F32 or x.type.strides[1] != 1:
        return False
    if w.type.dtype not in (F32, F16, BF16):
        return False
    if not isinstance(outputs, int) or not isinstance(channels, int) or min(outputs, channels) < LEAST_CHANNELS:
        return False
    height, width = kernel.axes[2].extent, kernel.axes[3].extent
    if not isinstance(height, int) or not isinstance(width, int):
        return max(root.dilations) <= MOST_APART
    computed = 4 * _patches(height, root.dilations[0]) * _patches(width, root.dilations[1])
    return height * width >= LEAST_OUTPUTS and isinstance(computed, int) and computed <= MOST_WASTE * height * width


def _patches(extent: Dim, apart: int) -> Dim:
    """Patches along an axis: pairs of outputs that lie `apart`, for every phase."""
    return dimension.ceildiv(extent, 2 * apart) * apart


def emit_winograd(kernel: Kernel, isa: Isa) -> Emitted:
    """C for a 3x3 convolution that `prefers_winograd`."""
    root = kernel.root
    if not isinstance(root, WindowRoot):
        raise CompilerError(f"{kernel.name}: not a convolution")
    return _Winograd(kernel, isa, root).emit()


class _Winograd:
    """The state of one emission."""

    def __init__(self, kernel: Kernel, isa: Isa, root: WindowRoot) -> None:
        self.kernel, self.isa, self.root = kernel, isa, root
        self.outputs, self.channels = (int(e) for e in kernel.inputs[root.w].type.shape[:2] if isinstance(e, int))
        self.x = kernel.inputs[root.x].type
        self.dims = DimTable()
        self.batch, _, self.height, self.width = (axis.extent for axis in kernel.axes[:4])
        self.panels = -(-self.outputs // PANEL)
        padded = -(-self.channels // PANEL) * PANEL
        self.row_stride = padded + (PANEL if padded * 4 % 2048 == 0 else 0)
        self.tile_rows = 8 if isa.registers > 16 else 6
        self.groups = split(self.panels, most_panels(isa, registers_per_panel(isa, 4), self.tile_rows))
        high, wide = _patches(self.height, root.dilations[0]), _patches(self.width, root.dilations[1])
        patches = self.batch * high * wide
        self.patches: Dim = patches
        fitting = PATCH_BYTES // (16 * self.row_stride * 4) // self.tile_rows * self.tile_rows
        self.block = min(max(fitting, 2 * self.tile_rows), MOST_PATCHES)
        if isinstance(patches, int):
            self.block = min(self.block, max(patches, 1))

    def _row_sizes(self) -> list[int]:
        if not isinstance(self.patches, int):
            return list(range(1, self.tile_rows + 1))
        blocks = set(split(self.patches, self.block))
        return sorted({rows for block in blocks for rows in split(block, self.tile_rows)})

    def _packed(self) -> PackedOperand:
        shape = (16, self.panels, self.channels, PANEL)
        pack = RecipeStep(RecipeOp.PACK, shape=shape, coefficients=((1, 0, 0, 0), (0, 0, 1, 0), (0, PANEL, 0, 1)))
        is_wide = self.kernel.inputs[self.root.w].type.dtype == F32
        cast = () if is_wide else (RecipeStep(RecipeOp.CAST, dtype=F32.number),)
        return PackedOperand((*cast, RecipeStep(RecipeOp.WINOGRAD), pack), F32.number, shape)

    def emit(self) -> Emitted:
        kernel, dims = self.kernel, self.dims
        tile = Tile(self.isa, "f32", 4, ((str(self.channels), "1"),), str(self.row_stride), str(self.channels * PANEL))
        code = Code()
        for line in tile.typedefs:
            code.line(line)
        for rows in self._row_sizes():
            for panels in sorted(set(self.groups)):
                code.line(tile.function(f"tile_{rows}x{panels}", rows, panels))
        with kernel_body(code, dims):
            renderer = Renderer(kernel, dims, self.isa, code)
            fill_halos(renderer)
            self._loops(code, renderer)
        scratch = 16 * self.block * (self.row_stride + max(self.groups) * PANEL) * 4 + 64
        pixels = self.batch * self.height * self.width
        return Emitted(
            code.text(),
            dims.dims,
            f"convolution by F(2x2, 3x3): blocks of {self.block} patches, tiles {self.tile_rows}x"
            f"{max(self.groups) * PANEL}; order patch block, panel group, 16 matmuls",
            scratch,
            {self.root.w: self._packed()},
            2 * pixels * self.outputs * self.channels * 9,
            bytes_moved(kernel),
        )

    def _loops(self, code: Code, renderer: Renderer) -> None:
        dims, block = self.dims, self.block
        code.line(f"const i64 height = {dims.text(self.height)}, width = {dims.text(self.width)};")
        counts = [
            f"({name} + {2 * d - 1}) / {2 * d} * {d}"
            for name, d in zip(("height", "width"), self.root.dilations, strict=True)
        ]
        code.line(f"const i64 high = {counts[0]}, wide = {counts[1]};")
        code.line(f"const i64 patches = {dims.text(self.batch)} * high * wide;")
        code.line(f"const i64 blocks = (patches + {block - 1}) / {block};")
        thread_share(code, f"blocks * {len(self.groups)}")
        code.line("if (u >= u_end) return;")
        code.line("const i64 block_size = patches / blocks, large_blocks = patches % blocks;")
        code.line("f32 *const inputs = (f32 *)args->scratch;")
        code.line(f"f32 *const products = inputs + {16 * block * self.row_stride};")
        code.line("i64 transformed = -1;")
        with code.block("for (; u < u_end; u++)"):
            code.line(f"const i64 block = u / {len(self.groups)}, group = u % {len(self.groups)};")
            code.line("const i64 count = block_size + (block < large_blocks);")
            code.line("const i64 first = block * block_size + (block < large_blocks ? block : large_blocks);")
            with code.block("if (transformed != block)"):
                code.line("transformed = block;")
                self._transform_inputs(code)
            wide, narrow = self.groups[0], self.groups[-1]
            many = sum(panels == wide for panels in self.groups)
            extra = f"(group < {many} ? group : {many}) * {wide - narrow}"
            code.line(f"const i64 panel0 = group * {narrow} + {extra};")
            code.line(f"const i64 panels = group < {many} ? {wide} : {narrow}, columns = panels * {PANEL};")
            self._multiply(code)
            self._transform_outputs(code, renderer)

    def _patch(self, code: Code) -> None:
        """Declares the batch index n, the first output row i and the first column j of patch number `first + t`."""
        code.line("const i64 n = (first + t) / wide / high, pi = (first + t) / wide % high, pj = (first + t) % wide;")
        starts = [
            f"2 * {name}" if d == 1 else f"{name} / {d} * {2 * d} + {name} % {d}"
            for name, d in zip(("pi", "pj"), self.root.dilations, strict=True)
        ]
        code.line(f"const i64 i = {starts[0]}, j = {starts[1]};")

    def _transform_inputs(self, code: Code) -> None:
        """inputs[16][block][channels] = Bᵀ d B."""
        dims, lanes, x = self.dims, self.isa.lanes, self.x
        strides = [dims.text(stride) for stride in x.strides]
        (top, _), (left, _) = self.root.pads
        origin = x.origin_elements - top * x.strides[2] - left * x.strides[3]
        with code.block("for (i64 t = 0; t < count; t++)"):
            self._patch(code)
            code.line(f"const f32 *const corner = p{self.root.x} + {dims.text(origin)} + n * {strides[0]};")
            # Rows and columns behind the last serve only outputs that are not stored: any element will do.
            down, across = self.root.dilations
            for r in range(4):
                row, column = f"(i + {r * down})", f"(j + {r * across})"
                if r == 3 or (r == 2 and down > 1):
                    row = f"({row} < height + {2 * down} ? {row} : height + {2 * down - 1})"
                if r == 3 or (r == 2 and across > 1):
                    column = f"({column} < width + {2 * across} ? {column} : width + {2 * across - 1})"
                code.line(f"const f32 *const r{r} = corner + {row} * {strides[2]};")
                code.line(f"const i64 q{r} = {column} * {strides[3]};")

            def channels(count: str | None) -> None:
                for r in range(4):
                    for s in range(4):
                        place = f"r{r} + q{s} + c"
                        value = f"load_f32({place})" if count is None else f"loadn_f32({place}, {count})"
                        code.line(f"const v_f32 d{r}{s} = {value};")
                for s in range(4):
                    code.line(f"const v_f32 e0{s} = d0{s} - d2{s}, e1{s} = d1{s} + d2{s};")
                    code.line(f"const v_f32 e2{s} = d2{s} - d1{s}, e3{s} = d1{s} - d3{s};")
                for r in range(4):
                    sums = (f"e{r}0 - e{r}2", f"e{r}1 + e{r}2", f"e{r}2 - e{r}1", f"e{r}1 - e{r}3")
                    for s, text in enumerate(sums):
                        target = f"inputs + ({(4 * r + s) * self.block} + t) * {self.row_stride} + c"
                        code.line(f"store_f32({target}, {text});")

            whole = self.channels // lanes * lanes
            with code.block(f"for (i64 c = 0; c < {whole}; c += {lanes})"):
                channels(None)
            if whole < self.channels:
                with code.block():
                    code.line(f"const i64 c = {whole};")
                    channels(str(self.channels - whole))

    def _multiply(self, code: Code) -> None:
        """products[16][block][columns] = inputs times the panels of this group."""
        panel = self.channels * PANEL
        code.line(f"const i64 parts = (count + {self.tile_rows - 1}) / {self.tile_rows};")
        with code.block("for (i64 xi = 0; xi < 16; xi++)"):
            code.line(f"const f32 *const w = (const f32 *)p{self.root.w} + (xi * {self.panels} + panel0) * {panel};")
            with code.block("for (i64 part = 0, t = 0; part < parts; part++)"):
                code.line("const i64 rows = count / parts + (part < count % parts);")
                code.line(f"const f32 *const a = inputs + (xi * {self.block} + t) * {self.row_stride};")
                code.line(f"f32 *const c = products + (xi * {self.block} + t) * columns;")
                with code.block("switch (rows * 16 + panels)"):
                    for rows in self._row_sizes():
                        for panels in sorted(set(self.groups)):
                            code.line(f"case {rows * 16 + panels}: tile_{rows}x{panels}(a, w, c, columns); break;")
                code.line("t += rows;")

    def _transform_outputs(self, code: Code, renderer: Renderer) -> None:
        """Aᵀ m A, then the stores."""
        lanes = self.isa.lanes
        epilogue = Epilogue(renderer, 1)
        with code.block("for (i64 t = 0; t < count; t++)"):
            self._patch(code)
            scope = renderer.scope({0: "n"}, code=code)
            with code.block(f"for (i64 v = 0; v < columns; v += {lanes})"):
                code.line(f"const i64 o = panel0 * {PANEL} + v;")
                if self.outputs % PANEL:
                    code.line(f"if (o >= {self.outputs}) break;")
                for r in range(4):
                    for s in range(4):
                        place = f"products + ({(4 * r + s) * self.block} + t) * columns + v"
                        code.line(f"const v_f32 m{r}{s} = load_f32({place});")
                for s in range(4):
                    code.line(f"const v_f32 y0{s} = m0{s} + m1{s} + m2{s}, y1{s} = m1{s} - m2{s} - m3{s};")
                code.line("const v_f32 z[4] = {")
                for r in range(2):
                    code.line(f"  y{r}0 + y{r}1 + y{r}2, y{r}1 - y{r}2 - y{r}3{', ' if r == 0 else ' };'}")
                whole = self.outputs % lanes == 0
                if not (whole or self.outputs < lanes):
                    with code.block(f"if (o + {lanes} <= {self.outputs})"):
                        self._store(code, epilogue, scope, None)
                if whole:
                    self._store(code, epilogue, scope, None)
                else:
                    with code.block(f"if (o + {lanes} > {self.outputs})"):
                        self._store(code, epilogue, scope, str(self.outputs % lanes))

    def _store(self, code: Code, epilogue: Epilogue, scope: Scope, count: str | None) -> None:
        """The four pixels of a patch for one block of channels."""
        values = epilogue.columns(code, scope, "o", count)
        with code.block("for (i64 e = 0; e < 4; e++)"):
            down, across = self.root.dilations
            code.line(f"const i64 y = i + e / 2 * {down}, x = j + e % 2 * {across};")
            code.line("if (y >= height || x >= width) continue;")
            code.line("const v_f32 sum = z[e];")
            epilogue.store(code, scope, {2: "y", 3: "x"}, "o", count, "sum", values)
