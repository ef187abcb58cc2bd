"""Attention kernels: softmax(Q Kᵀ scale + mask) V without the score matrix in memory.

A thread takes blocks of query rows of one head. K is packed into panels once per key head; V is read
in place where its rows are made of whole panels, from narrow floats too. Queries and keys in bf16 are multiplied as
pairs where the CPU does, see words.py; exponentials are not rounded. The scores of a block lie in scratch, become
exponentials there, unnormalised, and are divided by their sum as the result is stored. Up to
ONE_PASS keys there is one pass over them; beyond, blocks of KEY_BLOCK keys with the recurrence of
"Online normalizer calculation for softmax" (Milakov and Gimelshein, 2018) bound the scratch.

Invariant: the bits of a row depend on its query, keys and mask, not on the thread that had it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from aot import dims as dimension
from aot.backend.base import Emitted
from aot.backend.cpu.code import NARROW_FLOATS, Code, DimTable, literal, memory_type, register_dtype
from aot.backend.cpu.frame import Epilogue, bytes_moved, fill_halos, kernel_body, thread_share
from aot.backend.cpu.functions import get
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.render import Renderer, Scope
from aot.backend.cpu.tile import PANEL, TRANSPOSE, Tile, most_panels, registers_per_panel, split
from aot.backend.cpu.words import WordTile, are_words
from aot.dims import Dim
from aot.errors import CompilerError
from aot.ir import TensorType
from aot.kernel import AttendRoot, Kernel

ONE_PASS = 2048
KEY_BLOCK = 1024
BLOCK_ROWS = 12
"""Query rows of a block: two tiles share every panel of K and V while it is in the first-level cache."""

TILE_ROWS = 6
MOST_PANELS = 4


def emit_attend(kernel: Kernel, isa: Isa) -> Emitted:
    """C for a kernel with an AttendRoot; sums in f32 or f64, operands of any float type."""
    root = kernel.root
    if not isinstance(root, AttendRoot):
        raise CompilerError(f"{kernel.name}: not attention")
    if root.accumulate.name not in ("f32", "f64"):
        raise CompilerError(f"{kernel.name}: attention with sums in {root.accumulate}")
    return _Attend(kernel, isa, root).emit()


def _round_up(value: Dim, multiple: int) -> Dim:
    return dimension.ceildiv(value, multiple) * multiple


class _Attend:
    """The state of one emission."""

    def __init__(self, kernel: Kernel, isa: Isa, root: AttendRoot) -> None:
        self.kernel, self.isa, self.root = kernel, isa, root
        self.q, self.k, self.v = (kernel.inputs[number].type for number in (root.q, root.k, root.v))
        self.dims = DimTable()
        self.type = register_dtype(root.accumulate).name
        self.itemsize = root.accumulate.itemsize_bytes
        self.lanes = isa.lanes
        self.rows, self.keys = self.q.shape[2], self.k.shape[2]
        self.depth, self.width = self.q.shape[3], self.v.shape[3]
        self.panels = dimension.ceildiv(self.width, PANEL)
        each = registers_per_panel(isa, self.itemsize)
        self.tile_rows = max(r for r in range(1, TILE_ROWS + 1) if most_panels(isa, each, r))
        self.most_panels = min(most_panels(isa, each, self.tile_rows), MOST_PANELS)
        narrow_v = self.v.dtype in NARROW_FLOATS and self.type == "f32"
        self.direct_v = (
            (self._is_plain(self.v) or narrow_v)
            and self.v.strides[3] == 1
            and isinstance(self.width, int)
            and self.width % PANEL == 0
        )
        self.v_dtype = None if self._is_plain(self.v) else self.v.dtype
        self.words = self._has_words()
        self.plain_q = self._is_plain(self.q) or self.words
        self.score_stride: Dim = dimension.minimum(_round_up(self.keys, PANEL), ONE_PASS) + PANEL
        self.out_stride: Dim = self.panels * PANEL

    def _is_plain(self, type_: TensorType) -> bool:
        """Whether elements are in memory as they are computed with."""
        return memory_type(type_.dtype) == self.type

    def _has_words(self) -> bool:
        """Whether queries and keys are read as words, which K is moved as: pairs of neighbours, of whole rows."""
        q, k = self.q, self.k
        return (
            are_words(self.isa, self.root.accumulate, q.dtype, k.dtype)
            and all(isinstance(even, int) and even % 2 == 0 for even in (self.depth, k.strides[2]))
            and (q.strides[3], k.strides[3]) == (1, 1)
        )

    # Sizes.

    def _row_sizes(self) -> list[int]:
        """Rows of the tiles that can occur."""
        if not isinstance(self.rows, int):
            return list(range(1, self.tile_rows + 1))
        return sorted({tile for block in set(split(self.rows, BLOCK_ROWS)) for tile in split(block, self.tile_rows)})

    def _scratch(self) -> list[tuple[str, Dim]]:
        """The parts of a thread's scratch, in elements; each a multiple of a panel."""
        return [
            ("key_panels", _round_up(self.keys, PANEL) * self._panel_depth()),
            ("value_panels", 0 if self.direct_v else self.keys * self.panels * PANEL),
            ("query_rows", 0 if self.plain_q else _round_up(self.depth * BLOCK_ROWS, PANEL)),
            ("scores", self.score_stride * BLOCK_ROWS),
            ("result", self.out_stride * BLOCK_ROWS),
            ("part", self.out_stride * BLOCK_ROWS),
        ]

    def _panel_depth(self) -> Dim:
        """Rows of a panel of keys, each 16 numbers, or words, of 32 bits or more."""
        return self.depth // 2 if self.words and isinstance(self.depth, int) else self.depth

    def _tiles(self) -> tuple[Tile | WordTile, Tile]:
        """The tile of Q Kᵀ and that of P V."""
        params: list[str] = []

        def text(value: Dim) -> str:
            name = str(value) if isinstance(value, int) else self.dims.text(value)
            params.extend(word for word in re.findall(r"\bn\d+\b", name) if word not in params)
            return name

        depth = text(self.depth)
        if self.plain_q:
            q_rows, q_step = text(self.q.strides[2]), text(self.q.strides[3])
        else:
            q_rows, q_step = depth, "1"
        base = Tile(self.isa, self.type, self.itemsize, ((depth, q_step),), q_rows, text(self.depth * PANEL))
        v_panel, v_step = (
            (str(PANEL), text(self.v.strides[2])) if self.direct_v else (text(self.keys * PANEL), str(PANEL))
        )
        value = replace(
            base, loops=(("t_count", "1"),), row_stride=text(self.score_stride), panel_stride=v_panel, step=v_step,
            w_dtype=self.v_dtype if self.direct_v else None,
        )  # fmt: skip
        common = tuple(params)
        score: Tile | WordTile = replace(base, params=common)
        if self.words:
            score = WordTile(
                self.isa, self.q.dtype, self.k.dtype, ((depth, "1"),), q_rows, text(self.depth * PANEL), common
            )
        return score, replace(value, params=(*common, "t_count"))

    # Text.

    def emit(self) -> Emitted:
        kernel, dims = self.kernel, self.dims
        scores, values = self._tiles()
        body = Code()
        with kernel_body(body, dims):
            renderer = Renderer(kernel, dims, self.isa, body)
            fill_halos(renderer)
            self._loops(body, renderer, scores, values)
        code = Code()
        for line in (*values.typedefs, TRANSPOSE if self._transposes() else ""):
            code.line(line)
        for rows in self._row_sizes():
            for panels in sorted({1, self.most_panels}):
                code.line(scores.function(f"score_{rows}x{panels}", rows, panels))
            for panels in self._value_groups():
                code.line(values.function(f"value_{rows}x{panels}", rows, panels))
        heads = self.q.shape[0] * self.q.shape[1]
        scratch = sum((size for _, size in self._scratch()), 0 * self.keys)
        wide = self.most_panels * PANEL
        return Emitted(
            code.text() + body.text(),
            dims.dims,
            f"attention: blocks of {BLOCK_ROWS} queries, tiles {self.tile_rows}x{wide}; keys packed per head, values "
            f"{'in place' if self.direct_v else 'packed'}; over {ONE_PASS} keys in blocks of {KEY_BLOCK}; "
            "order batch, head, query block",
            scratch * self.itemsize + 64,
            flops=2 * heads * self.rows * self.keys * (self.depth + self.width),
            bytes_moved=bytes_moved(kernel),
        )

    def _transposes(self) -> bool:
        return self.words or (self._is_plain(self.k) and self.k.strides[3] == 1 and self.type == "f32")

    def _value_groups(self) -> list[int]:
        if isinstance(self.panels, int):
            return sorted(set(split(self.panels, self.most_panels)))
        return [1]

    def _loops(self, code: Code, renderer: Renderer, scores: Tile | WordTile, values: Tile) -> None:
        dims, root = self.dims, self.root
        batch, heads = dims.text(self.q.shape[0]), dims.text(self.q.shape[1])
        key_heads = dims.text(self.k.shape[1])
        code.line(f"const i64 rows = {dims.text(self.rows)}, keys = {dims.text(self.keys)};")
        code.line(f"const i64 heads = {heads}, key_heads = {key_heads};")
        code.line(f"const i64 blocks = (rows + {BLOCK_ROWS - 1}) / {BLOCK_ROWS};")
        thread_share(code, f"blocks * heads * {batch}")
        code.line("if (u >= u_end) return;")
        code.line("const i64 block_rows = rows / blocks, tall_blocks = rows % blocks, shared = heads / key_heads;")
        place = f"({self.type} *)args->scratch"
        for name, size in self._scratch():
            code.line(f"{self.type} *const {name} = {place};")
            place = f"{name} + {dims.text(size)}"
        code.line(
            f"const i64 score_stride = {dims.text(self.score_stride)}, out_stride = {dims.text(self.out_stride)};"
        )
        code.line("i64 packed = -1;")
        with code.block("for (; u < u_end; u++)"):
            code.line("const i64 b = u / blocks / heads, h = u / blocks % heads, block = u % blocks;")
            code.line("const i64 tall = block_rows + (block < tall_blocks);")
            code.line("const i64 s0 = block * block_rows + (block < tall_blocks ? block : tall_blocks);")
            code.line("const i64 g = h / shared;")
            with code.block("if (packed != b * key_heads + g)"):
                code.line("packed = b * key_heads + g;")
                self._pack_keys(code)
                if not self.direct_v:
                    self._pack_values(code)
            self._queries(code)
            # A causal block needs no key behind the last that its last row sees.
            if root.causal:
                code.line("const i64 seen = s0 + tall + keys - rows;")
                code.line("const i64 t_end = seen < 0 ? 0 : seen < keys ? seen : keys;")
            else:
                code.line("const i64 t_end = keys;")
            code.line(f"const i64 t_step = keys <= {ONE_PASS} ? keys : {KEY_BLOCK};")
            code.line(f"{self.type} top[{BLOCK_ROWS}], sums[{BLOCK_ROWS}];")
            low = literal(float("-inf"), root.accumulate)
            code.line(f"for (i64 i = 0; i < tall; i++) {{ top[i] = {low}; sums[i] = 0; }}")
            code.line("for (i64 i = 0; i < tall * out_stride; i++) result[i] = 0;")
            scope = renderer.scope({0: "b", 1: "h"}, code=code)
            with code.block("for (i64 t0 = 0; t0 < t_end; t0 += t_step)"):
                code.line("const i64 t_count = t_end - t0 < t_step ? t_end - t0 : t_step;")
                self._score_tiles(code, scores)
                self._exponentials(code, renderer, scope)
                self._value_tiles(code, values)
            self._store(code, renderer, scope)

    def _element(self, type_: TensorType, operand: int, place: str) -> str:
        """C text of one element in the type of the sums."""
        text = get(type_.dtype, f"p{operand}", place)
        return text if self._is_plain(type_) else f"({self.type}){text}"

    def _at(self, type_: TensorType, indices: Mapping[int, str]) -> str:
        """C text of an element offset."""
        parts = [] if type_.origin_elements == 0 else [self.dims.text(type_.origin_elements)]
        for axis, index in indices.items():
            stride = self.dims.text(type_.strides[axis])
            if index != "0" and stride != "0":
                parts.append(index if stride == "1" else f"{index} * {stride}")
        return " + ".join(parts) or "0"

    def _pack_keys(self, code: Code) -> None:
        """key_panels[panel][d][16]: columns are positions. Words are moved as if they were f32."""
        depth = self.dims.text(self._panel_depth())
        with code.block(f"for (i64 t = 0; t < keys; t += {PANEL})"):
            code.line(f"const i64 left = keys - t < {PANEL} ? keys - t : {PANEL};")
            start = self._at(self.k, {0: "b", 1: "g", 2: "t"})
            stride = self.dims.text(self.k.strides[2])
            if self._transposes():
                source = f"p{self.root.k} + {start}"
                if self.words:
                    source, stride = f"(const f32 *)({source})", f"{stride} / 2"
                code.line(f"tile_transpose({source}, {stride}, left, key_panels + t * {depth}, {depth});")
                return
            with code.block(f"for (i64 d = 0; d < {depth}; d++)"):
                inner = self._at(self.k, {0: "b", 1: "g", 2: "(t + l)", 3: "d"})
                value = self._element(self.k, self.root.k, inner)
                code.line(f"{self.type} *const target = key_panels + t * {depth} + d * {PANEL};")
                code.line(f"for (i64 l = 0; l < {PANEL}; l++) target[l] = l < left ? {value} : 0;")

    def _pack_values(self, code: Code) -> None:
        """value_panels[panel][t][16]: columns are elements of V's rows."""
        width = self.dims.text(self.width)
        with code.block(f"for (i64 d = 0; d < {width}; d += {PANEL})"), code.block("for (i64 t = 0; t < keys; t++)"):
            inner = self._at(self.v, {0: "b", 1: "g", 2: "t", 3: "(d + l)"})
            value = self._element(self.v, self.root.v, inner)
            code.line(f"{self.type} *const target = value_panels + (d * keys) + t * {PANEL};")
            code.line(f"for (i64 l = 0; l < {PANEL}; l++) target[l] = d + l < {width} ? {value} : 0;")

    def _queries(self, code: Code) -> None:
        if self.plain_q:
            start = self._at(self.q, {0: "b", 1: "h", 2: "s0"})
            code.line(f"const {memory_type(self.q.dtype)} *const query = p{self.root.q} + {start};")
            return
        depth = self.dims.text(self.depth)
        inner = self._at(self.q, {0: "b", 1: "h", 2: "(s0 + i)", 3: "d"})
        value = self._element(self.q, self.root.q, inner)
        code.line(
            f"for (i64 i = 0; i < tall; i++) for (i64 d = 0; d < {depth}; d++) query_rows[i * {depth} + d] = {value};"
        )
        code.line(f"const {self.type} *const query = query_rows;")

    def _row_tiles(self, code: Code, call: Callable[[int], str]) -> None:
        """Calls a tile function for the rows of the block: as few tiles as possible, as even as possible."""
        code.line(f"const i64 parts = (tall + {self.tile_rows - 1}) / {self.tile_rows};")
        with code.block("for (i64 part_index = 0, i = 0; part_index < parts; part_index++)"):
            code.line("const i64 r = tall / parts + (part_index < tall % parts);")
            with code.block("switch (r)"):
                for rows in self._row_sizes():
                    code.line(f"case {rows}: {call(rows)} break;")
            code.line("i += r;")

    def _score_tiles(self, code: Code, tile: Tile | WordTile) -> None:
        depth = self.dims.text(self._panel_depth())
        row = tile.row_stride
        arguments = "".join(f", {p}" for p in tile.params)
        code.line(f"const i64 first = t0 / {PANEL}, end = (t0 + t_count + {PANEL - 1}) / {PANEL};")
        with code.block("for (i64 j = first; j < end;)"):
            code.line(f"const i64 wide = end - j >= {self.most_panels} ? {self.most_panels} : 1;")

            def call(rows: int) -> str:
                operands = f"(query + i * {row}, key_panels + j * {depth} * {PANEL}, "
                operands += f"scores + i * score_stride + (j - first) * {PANEL}, score_stride{arguments});"
                if self.most_panels == 1:
                    return f"score_{rows}x1{operands}"
                return f"if (wide == 1) score_{rows}x1{operands} else score_{rows}x{self.most_panels}{operands}"

            self._row_tiles(code, call)
            code.line("j += wide;")

    def _exponentials(self, code: Code, renderer: Renderer, scope: Scope) -> None:
        """Scores to exponentials of their distance to the row's largest; the recurrence for what went before."""
        root, t, lanes, name = self.root, self.root.t, self.lanes, self.type
        low = literal(float("-inf"), root.accumulate)
        scale = literal(root.scale, root.accumulate)
        with code.block("for (i64 i = 0; i < tall; i++)"):
            code.line("const i64 s = s0 + i;")
            code.line(f"{name} *const row = scores + i * score_stride;")
            if root.causal:
                code.line("const i64 own = s + keys - rows + 1 - t0;")
                code.line("const i64 visible = own < 0 ? 0 : own < t_count ? own : t_count;")
            else:
                code.line("const i64 visible = t_count;")
            row_scope = renderer.scope({2: "s"}, parent=scope, code=code)
            code.line(f"v_{name} most = splat_{name}({low});")

            def scores(count: str | None) -> None:
                code.line(f"v_{name} x = load_{name}(row + j) * {scale};")
                if root.mask is not None:
                    inner = renderer.scope({t: "(t0 + j)"}, t, count, parent=row_scope, code=code)
                    code.line(f"x += {inner.value(root.mask)};")
                if count is not None:
                    code.line(f"x = select_{name}(iota_i32(0) < (i32){count}, x, splat_{name}({low}));")
                code.line(f"store_{name}(row + j, x);")
                code.line(f"most = max_{name}(most, x);")

            code.line("i64 j = 0;")
            with code.block(f"for (; j + {lanes} <= visible; j += {lanes})"):
                scores(None)
            with code.block("if (j < visible)"):
                code.line("const i64 count = visible - j;")
                scores("count")
                code.line(f"j += {lanes};")
            code.line(f"for (; j < t_count; j += {lanes}) store_{name}(row + j, splat_{name}({low}));")
            code.line(f"{name} highest = fold_max_{name}(most);")
            code.line("highest = highest > top[i] || highest != highest ? highest : top[i];")
            # Where all is -inf so far, distances to 0 give exponentials of 0, not NaN.
            code.line(f"const {name} base = highest == {low} ? 0 : highest;")
            code.line(f"v_{name} total = {{0}};")
            with code.block(f"for (j = 0; j < t_count; j += {lanes})"):
                # What would be subnormal is zero: slow to make, and nothing beside the largest, whose exponential is 1.
                tiny = literal(-87.0 if name == "f32" else -708.0, root.accumulate)
                code.line(f"const v_{name} x = load_{name}(row + j) - base, y = max_{name}(x, splat_{name}({tiny}));")
                small = "(x < y)" if name == "f32" else "__builtin_convertvector(x < y, v_i32)"
                code.line(f"const v_{name} e = select_{name}({small}, splat_{name}(0), exp_{name}(y));")
                code.line(f"store_{name}(row + j, e);")
                code.line("total += e;")
            with code.block("if (t0 > 0)"):
                code.line(f"const {name} kept = exp_{name}(splat_{name}(top[i] - base))[0];")
                code.line("sums[i] *= kept;")
                code.line("for (i64 d = 0; d < out_stride; d++) result[i * out_stride + d] *= kept;")
            code.line(f"sums[i] += fold_sum_{name}(total);")
            code.line("top[i] = highest;")

    def _value_tiles(self, code: Code, tile: Tile) -> None:
        """result += P V."""
        arguments = "".join(f", {p}" for p in tile.params)
        if self.direct_v:
            start = f"p{self.root.v} + {self._at(self.v, {0: 'b', 1: 'g', 2: 't0'})}"
        else:
            start = f"value_panels + t0 * {PANEL}"
        code.line(f"const {tile.w_element} *const value = {start};")
        code.line(f"{self.type} *const target = t0 > 0 ? part : result;")
        if isinstance(self.panels, int):
            first = 0
            groups: Sequence[tuple[str, int]] = []
            for wide in split(self.panels, self.most_panels):
                groups = [*groups, (str(first), wide)]
                first += wide
        else:
            groups = [("j", 1)]
            code.line(f"for (i64 j = 0; j < {self.dims.text(self.panels)}; j++)")
        for j, wide in groups:
            with code.block():

                def call(rows: int, j: str = j, wide: int = wide) -> str:
                    return (
                        f"value_{rows}x{wide}(scores + i * score_stride, value + {j} * ({tile.panel_stride}), "
                        f"target + i * out_stride + {j} * {PANEL}, out_stride{arguments});"
                    )

                self._row_tiles(code, call)
        code.line("if (t0 > 0) for (i64 e = 0; e < tall * out_stride; e++) result[e] += part[e];")

    def _store(self, code: Code, renderer: Renderer, scope: Scope) -> None:
        epilogue = Epilogue(renderer, 3)
        width, lanes, name = self.dims.text(self.width), self.lanes, self.type
        with code.block("for (i64 i = 0; i < tall; i++)"):
            code.line("const i64 s = s0 + i;")
            norm = "sums[i] == 0 ? 0 : 1 / sums[i]" if self.root.zero_empty else "keys > 0 ? 1 / sums[i] : 0"
            code.line(f"const {name} norm = {norm};")
            with code.block(f"for (i64 d = 0; d < {width}; d += {lanes})"):
                code.line(f"const v_{name} out = load_{name}(result + i * out_stride + d) * norm;")

                def write(count: str | None) -> None:
                    epilogue.store(code, scope, {2: "s"}, "d", count, "out", {})

                if isinstance(self.width, int) and self.width % lanes == 0:
                    write(None)
                    return
                with code.block(f"if (d + {lanes} <= {width})"):
                    write(None)
                with code.block("else"):
                    code.line(f"const i64 count = {width} - d;")
                    write("count")
