"""Depthwise convolution kernels: one input channel per output channel, blocks of channels in vectors.

A tile is several pixels of an output row; the taps of a kernel row are loaded once for all of them
and neighbouring pixels share their input in registers. Work is cut into (image row, channel block)
pieces. Products are added in the order of the taps, whatever the tile.
"""

from __future__ import annotations

from collections.abc import Mapping

from aot import dims as dimension
from aot.backend.base import Emitted, PackedOperand
from aot.backend.cpu.code import Code, DimTable, memory_type, register_dtype
from aot.backend.cpu.frame import Epilogue, bytes_moved, fill_halos, kernel_body, thread_share
from aot.backend.cpu.functions import get
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.render import Renderer, Scope
from aot.backend.cpu.tile import PANEL, split
from aot.backend.cpu.words import are_bytes
from aot.dims import Dim
from aot.dtypes import I8, I16
from aot.errors import CompilerError
from aot.expr import Expr
from aot.kernel import Kernel, WindowRoot
from aot.program import RecipeOp, RecipeStep

UNROLLED_TAPS = 16
"""Taps of one kernel row up to which they are written out, so that pixels share inputs in registers."""


def _pack(kernel: Kernel, root: WindowRoot, shape: tuple[int, ...]) -> PackedOperand:
    """Weights [O, 1, k…] as [k…, O padded to 16]; in 8 bits, two taps of a kernel row become a pair of 16 bits."""
    outputs, _, *window = shape
    padded = -(-outputs // PANEL) * PANEL
    if are_bytes(root.accumulate, kernel.inputs[root.w].type.dtype):
        *leading, taps = window
        pairs = (*leading, -(-taps // 2), padded, 2)
        places = [[int(p == d) for p in range(len(pairs))] for d in range(len(pairs) - 1)]
        places[-2][-1], places[-2][-3] = 1, 2
        coefficients = (places[-1], [0] * len(pairs), *places[:-1])
        pack = RecipeStep(RecipeOp.PACK, shape=pairs, coefficients=tuple(map(tuple, coefficients)))
        return PackedOperand((RecipeStep(RecipeOp.CAST, dtype=I16.number), pack), I16.number, pairs)
    packed = (*window, padded)
    width = len(packed)

    def unit(position: int) -> tuple[int, ...]:
        return tuple(int(p == position) for p in range(width))

    rows = (unit(width - 1), (0,) * width, *(unit(d) for d in range(width - 1)))
    steps = [RecipeStep(RecipeOp.PACK, shape=packed, coefficients=rows)]
    if kernel.inputs[root.w].type.dtype != root.accumulate:
        steps.insert(0, RecipeStep(RecipeOp.CAST, dtype=root.accumulate.number))
    return PackedOperand(tuple(steps), root.accumulate.number, packed)


def emit_depthwise(kernel: Kernel, isa: Isa) -> Emitted:
    """C for a kernel with a WindowRoot whose groups have one input channel; its weights are constant."""
    root = kernel.root
    if not isinstance(root, WindowRoot):
        raise CompilerError(f"{kernel.name}: not a convolution")
    return _Depthwise(kernel, isa, root).emit()


class _Depthwise:
    """The state of one emission."""

    def __init__(self, kernel: Kernel, isa: Isa, root: WindowRoot) -> None:
        self.kernel, self.isa, self.root = kernel, isa, root
        shape = tuple(int(e) for e in kernel.inputs[root.w].type.shape if isinstance(e, int))
        self.shape = shape
        self.outputs = shape[0]
        self.window = shape[2:]
        self.multiplier = self.outputs // root.groups
        self.x = kernel.inputs[root.x].type
        self.dims = DimTable()
        self.dtype = register_dtype(root.accumulate).name
        self.element = memory_type(self.x.dtype)
        self.summed = memory_type(root.accumulate)
        self.words = are_bytes(root.accumulate, self.x.dtype, kernel.inputs[root.w].type.dtype)
        if not self.words and register_dtype(self.x.dtype) != register_dtype(root.accumulate):
            raise CompilerError(f"{kernel.name}: a convolution of {self.x.dtype} with sums in {root.accumulate}")
        registers = isa.registers // max(isa.lanes * root.accumulate.itemsize_bytes // isa.vector_bytes, 1)
        self.pixels = max(min(registers // 2 - 4 if isa.registers > 16 else registers // 4, 8), 2)
        width = kernel.axes[kernel.domain - 1].extent
        self.forms = [self.pixels, 1]
        if isinstance(width, int):
            self.forms = sorted(set(split(width, self.pixels)), reverse=True)

    def emit(self) -> Emitted:
        kernel, dims = self.kernel, self.dims
        code = Code()
        with kernel_body(code, dims):
            renderer = Renderer(kernel, dims, self.isa, code)
            fill_halos(renderer)
            self._loops(code, renderer)
        summed = dimension.product(self.window)
        outputs = dimension.product([kernel.axes[a].extent for a in range(kernel.domain)])
        tiles = ", ".join(map(str, self.forms))
        schedule = (
            f"depthwise convolution: blocks of {self.isa.lanes} channels, tiles of {tiles} pixels; "
            f"order image row, channel block, pixels"
        )
        return Emitted(
            code.text(),
            dims.dims,
            schedule,
            packed={self.root.w: _pack(kernel, self.root, self.shape)},
            flops=2 * outputs * summed,
            bytes_moved=bytes_moved(kernel),
        )

    def _loops(self, code: Code, renderer: Renderer) -> None:
        kernel, dims, root, lanes = self.kernel, self.dims, self.root, self.isa.lanes
        outer = [0, *range(2, kernel.domain - 1)]
        last = kernel.domain - 1
        extents = [kernel.axes[a].extent for a in outer]
        width = dims.text(kernel.axes[last].extent)
        blocks = -(-self.outputs // lanes)
        strides = self.x.strides
        code.line(f"const i64 width = {width};")
        thread_share(code, " * ".join([*(dims.text(e) for e in extents), str(blocks)]))
        with code.block("for (; u < u_end; u++)"):
            code.line(f"const i64 c = u % {blocks} * {lanes}, row = u / {blocks};")
            axes: dict[int, str] = {}
            rest = "row"
            for axis, extent in reversed(list(zip(outer, extents, strict=True))):
                code.line(f"const i64 i{axis} = {rest}{f' % {dims.text(extent)}' if axis != 0 else ''};")
                axes[axis] = f"i{axis}"
                rest = f"({rest}) / {dims.text(extent)}"
            origin: Dim = self.x.origin_elements
            for number, (before, _) in enumerate(root.pads):
                origin = origin - before * strides[2 + number]
            terms = [dims.text(origin), f"i0 * {dims.text(strides[0])}"]
            terms += [f"i{axis} * {dims.text(root.strides[axis - 2] * strides[axis])}" for axis in outer[1:]]
            if self.multiplier == 1:
                terms.append(f"c * {dims.text(strides[1])}")
            code.line(f"const {self.element} *const x = p{root.x} + {' + '.join(terms)};")
            code.line(f"const {self.summed} *const w = (const {self.summed} *)p{root.w} + c;")
            scope = renderer.scope(axes, code=code)
            epilogue = Epilogue(renderer, 1)
            if self.outputs >= lanes:
                with code.block(f"if (c + {lanes} <= {self.outputs})"):
                    self._row(code, epilogue, scope, None)
            if self.outputs % lanes:
                with code.block(f"if (c + {lanes} > {self.outputs})"):
                    self._row(code, epilogue, scope, str(self.outputs % lanes))

    def _row(self, code: Code, epilogue: Epilogue, scope: Scope, count: str | None) -> None:
        """One image row of one channel block."""
        values = epilogue.columns(code, scope, "c", count)
        width = self.kernel.axes[self.kernel.domain - 1].extent
        code.line("i64 q = 0;")
        if isinstance(width, int):
            sizes = split(width, self.pixels)
            for size in self.forms:
                with code.block(f"for (const i64 q_end = q + {size * sizes.count(size)}; q < q_end; q += {size})"):
                    self._pixels(code, epilogue, scope, size, count, values)
            return
        for size in self.forms:
            with code.block(f"for (; q + {size} <= width; q += {size})"):
                self._pixels(code, epilogue, scope, size, count, values)

    def _input(self, code: Code, name: str, place: str, count: str | None) -> None:
        """Declares the block of input channels that lies at an address."""
        stride, type_ = self.x.strides[1], self.x.dtype.name
        valid = count or str(self.isa.lanes)
        if self.multiplier > 1:
            code.line(f"v_{self.dtype} {name} = {{}};")
            channel = f"(c + l) / {self.multiplier} * {self.dims.text(stride)}"
            code.line(f"for (i64 l = 0; l < {valid}; l++) {name}[l] = {get(self.x.dtype, f'({place})', channel)};")
            return
        if stride != 1:
            block = f"gather_{type_}({place}, {self.dims.text(stride)}, {valid})"
        else:
            block = f"load_{type_}({place})" if count is None else f"loadn_{type_}({place}, {count})"
        if self.words:
            block = f"widen_{type_}_i32({block})"
        code.line(f"const v_{self.dtype} {name} = {block};")

    def _pixels(
        self, code: Code, epilogue: Epilogue, scope: Scope, size: int, count: str | None, values: Mapping[Expr, str]
    ) -> None:
        """A tile of `size` pixels from pixel q on: all taps, then the stores."""
        dims, root, last = self.dims, self.root, self.kernel.domain - 1
        strides = [dims.text(s) for s in self.x.strides]
        panel = -(-self.outputs // PANEL) * PANEL
        code.line(f"v_{self.dtype} {', '.join(f's{i} = {{}}' for i in range(size))};")
        code.line(f"const {self.element} *const x_row = x + q * {dims.text(root.strides[-1] * self.x.strides[last])};")
        code.line(f"const {self.summed} *w_row = w;")
        *leading, taps = self.window
        for number, extent in enumerate(leading):
            code.line(f"for (i64 t{number} = 0; t{number} < {extent}; t{number}++)")
        with code.block():
            moves = [f"t{n} * {dims.text(root.dilations[n] * self.x.strides[2 + n])}" for n in range(len(leading))]
            code.line(f"const {self.element} *const xr = {' + '.join(['x_row', *moves])};")
            step, dilation = root.strides[-1], root.dilations[-1]
            if self.words:
                self._pairs(code, size, taps, strides[last], count)
            elif taps <= UNROLLED_TAPS:
                seen: set[int] = set()
                for tap in range(taps):
                    code.line(f"const v_{self.dtype} w{tap} = load_{self.dtype}(w_row + {tap * panel});")
                    for i in range(size):
                        position = i * step + tap * dilation
                        if position not in seen:
                            seen.add(position)
                            self._input(code, f"x{position}", f"xr + {position} * {strides[last]}", count)
                        code.line(f"s{i} += x{position} * w{tap};")
                code.line(f"w_row += {taps * panel};")
            else:
                with code.block(f"for (i64 t = 0; t < {taps}; t++, w_row += {panel})"):
                    code.line(f"const v_{self.dtype} wt = load_{self.dtype}(w_row);")
                    for i in range(size):
                        self._input(code, f"x{i}", f"xr + ({i * step} + t * {dilation}) * {strides[last]}", count)
                        code.line(f"s{i} += x{i} * wt;")
        for i in range(size):
            epilogue.store(code, scope, {last: f"(q + {i})"}, "c", count, f"s{i}", values)

    def _pairs(self, code: Code, size: int, taps: int, pixel: str, count: str | None) -> None:
        """The taps of a kernel row for 8-bit elements: two at a time, as pairs of 16 bits in each lane."""
        step, dilation = self.root.strides[-1], self.root.dilations[-1]
        panel = -(-self.outputs // PANEL) * PANEL
        low = " & 0xffff" if self.x.dtype == I8 else ""  # a sign would reach into the other half

        def pair(name: str, first: str, second: str) -> None:
            code.line(f"const v_i32 {name} = ({first}{low}) | ({second} << 16);")

        if taps > UNROLLED_TAPS:
            with code.block(f"for (i64 t = 0; t < {taps // 2}; t++, w_row += {panel})"):
                code.line("const v_i32 wt = load_i32(w_row);")
                for i in range(size):
                    self._input(code, f"l{i}", f"xr + ({i * step} + 2 * t * {dilation}) * {pixel}", count)
                    self._input(code, f"h{i}", f"xr + ({i * step} + (2 * t + 1) * {dilation}) * {pixel}", count)
                    pair(f"y{i}", f"l{i}", f"h{i}")
                    code.line(f"s{i} = word_madd(s{i}, y{i}, wt);")
            if taps % 2:
                code.line("const v_i32 wt = load_i32(w_row);")
                for i in range(size):
                    self._input(code, f"l{i}", f"xr + {i * step + (taps - 1) * dilation} * {pixel}", count)
                    code.line(f"s{i} = word_madd(s{i}, l{i}, wt);")
                code.line(f"w_row += {panel};")
            return
        seen: set[int] = set()
        paired: set[int] = set()

        def single(position: int) -> str:
            if position not in seen:
                seen.add(position)
                self._input(code, f"x{position}", f"xr + {position} * {pixel}", count)
            return f"x{position}"

        for tap in range(0, taps, 2):
            code.line(f"const v_i32 w{tap} = load_i32(w_row + {tap // 2 * panel});")
            for i in range(size):
                position = i * step + tap * dilation
                if position not in paired and tap + 1 < taps:
                    first, second = single(position), single(position + dilation)
                    pair(f"y{position}", first, second)
                    paired.add(position)
                # The weight of what stands in the other half is 0 where the row has no other tap.
                block = f"y{position}" if position in paired else single(position)
                code.line(f"s{i} = word_madd(s{i}, {block}, w{tap});")
        code.line(f"w_row += {-(-taps // 2) * panel};")
