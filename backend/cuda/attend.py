"""Attention: softmax(Q Kᵀ scale + mask) V in one pass over the keys, with the scores of a tile in registers.

A program takes rows of queries of one key head: those of every query head that shares it, so that keys and values are
read once for a group. The softmax is online ("Online normalizer calculation for softmax", Milakov and Gimelshein,
2018; tiled as in "FlashAttention-2", Dao, 2023): a running maximum and sum per row, and the result rescaled when the
maximum grows. Scores, maxima and sums are f32; the products of 16-bit operands use the tensor cores.
"""

from __future__ import annotations

from aot import dims as dimension
from aot.backend.affine import flat_offset
from aot.backend.base import Emitted
from aot.backend.cuda.code import Code, DimTable, memory_type, register_dtype
from aot.backend.cuda.frame import Tiling, finish, power_of_two
from aot.backend.cuda.render import Renderer, Scope, TileDim
from aot.backend.nest import flatten
from aot.dims import Dim, typical
from aot.dtypes import F32
from aot.errors import CompilerError, UnsupportedError
from aot.expr import axis
from aot.ir import TensorType
from aot.kernel import AttendRoot, Kernel
from aot.target import Target

KEYS = 64
"""Keys of a step."""

LOG2_E = 1.4426950408889634


def emit_attend(kernel: Kernel, target: Target) -> Emitted:
    """Triton for a kernel with an AttendRoot; sums in f32, operands f16, bf16 or f32."""
    return _Attend(kernel, target).emit()


class _Attend:
    def __init__(self, kernel: Kernel, target: Target) -> None:
        root = kernel.root
        if not isinstance(root, AttendRoot):
            raise CompilerError(f"{kernel.name}: not attention")
        if root.accumulate != F32:
            raise UnsupportedError(f"attention with sums in {root.accumulate} has no kernel on a GPU")
        self.source, self.target = kernel, target
        self.kernel = flatten(kernel, merge=False)
        assert isinstance(self.kernel.root, AttendRoot)
        self.root = self.kernel.root
        self.q, self.k, self.v = (kernel.inputs[number].type for number in (root.q, root.k, root.v))
        self.operand = root.operand or self.q.dtype
        self.precision = ""
        if register_dtype(self.operand) == self.operand:
            self.precision = f', input_precision="{"tf32" if "tf32" in target.features else "ieee"}"'
        self.dims, self.code = DimTable(), Code(1)
        self.batch, self.heads, self.queries, depth = self.q.shape
        self.groups, self.keys = self.k.shape[1], self.k.shape[2]
        width = self.v.shape[3]
        per_group = dimension.exact_div(self.heads, self.groups)
        if per_group is None or not isinstance(depth, int) or not isinstance(width, int):
            raise UnsupportedError("attention whose head sizes are known only when it runs has no kernel on a GPU")
        self.per_group: Dim = per_group
        self.depth, self.width = depth, width

    def emit(self) -> Emitted:
        code, dims, root = self.code, self.dims, self.root
        # Rows: the queries of all heads of a group, head by head.
        rows = self.per_group * self.queries
        size = self._tile_rows(rows)
        depth, width = max(power_of_two(self.depth), 16), max(power_of_two(self.width), 16)
        keys = KEYS if depth <= 128 else 32
        warps = 8 if size >= 128 else 4
        if size == 16 and typical(self.keys) >= 8 * KEYS and depth <= 128:
            keys, warps = (4 if depth <= 64 else 2) * KEYS, 8  # a step of decoding waits for the bytes of its cache
        tiling = Tiling(code, dims)
        renderer = Renderer(self.kernel, dims, code)
        blocks = dimension.ceildiv(rows, size)
        with tiling.programs(self.batch * self.groups * blocks) as program:
            code.line(f"block = {program} % {dims.text(blocks)}")
            code.line(f"pair = {renderer.index(program)} // {dims.text(blocks)}")
            code.line(f"group = pair % {dims.text(self.groups)}")
            code.line(f"sample = pair // {dims.text(self.groups)}")
            code.line(f"row = ({renderer.index('block')} * {size} + tl.arange(0, {size}))[:, None]")
            row_mask = None
            if not (isinstance(rows, int) and rows > 0 and rows % size == 0):
                row_mask = "row_inside"
                code.line(f"row_inside = row < {dims.text(rows)}")
            code.line(f"query = row % {dims.text(self.queries)}")
            code.line(f"head = group * {dims.text(self.per_group)} + row // {dims.text(self.queries)}")
            # Reads behind the last row stay inside: their results are not stored.
            q_dim = TileDim(frozenset({1, 2}), row_mask)
            base = Scope(renderer, {0: "sample"}, [], "(1, 1)")
            code.line(f"d = tl.arange(0, {depth})")
            q = self._read(
                renderer, self.q, root.q, "sample", "head", "query", "d[None, :]", row_mask, depth, self.depth
            )
            code.line(f"q = {q}")
            code.line(f'largest = tl.full(({size}, 1), float("-inf"), tl.float32)')
            code.line(f"total = tl.zeros(({size}, 1), tl.float32)")
            code.line(f"acc = tl.zeros(({size}, {width}), tl.float32)")
            code.line(f"w = tl.arange(0, {width})")
            end = dims.text(self.keys)
            if root.causal:
                code.line(
                    f"last = tl.max(query + tl.zeros(({size}, 1), tl.int32)) + {dims.text(self.keys - self.queries)}"
                )
                code.line(f"end = tl.minimum({end}, last + 1)")
                end = "end"
            with code.block(f"for at in range(0, {end}, {keys})"):
                code.line(f"t = {renderer.index('at')} + tl.arange(0, {keys})")
                whole = isinstance(self.keys, int) and self.keys > 0 and self.keys % keys == 0
                inside = None if whole else f"(t < {dims.text(self.keys)})"
                k_mask = inside and f"{inside}[None, :]"
                k = self._read(
                    renderer,
                    self.k,
                    root.k,
                    "sample",
                    "group",
                    "t[None, :]",
                    "d[:, None]",
                    k_mask,
                    depth,
                    self.depth,
                )
                code.line(f"k = {k}")
                code.line(f"scores = tl.dot(q, k{self.precision}) * {root.scale!r}")
                if root.mask is not None:
                    t_dim = TileDim(frozenset({root.t}), k_mask)
                    places = {1: "head", 2: "query", root.t: "t[None, :]"}
                    scope = Scope(renderer, places, [q_dim, t_dim], f"({size}, {keys})", base)
                    code.line(f"scores += {scope.value(root.mask)}")
                tests = [] if k_mask is None else [k_mask]
                if root.causal:
                    tests.append(f"(t[None, :] <= query + {dims.text(self.keys - self.queries)})")
                if tests:
                    code.line(f'scores = tl.where({" & ".join(tests)}, scores, float("-inf"))')
                code.line("new = maximum(largest, tl.max(scores, axis=1, keep_dims=True))")
                # A row that has seen nothing yet has no maximum to subtract.
                code.line('base = tl.where(new == float("-inf"), 0.0, new)')
                code.line("weights = tl.exp(scores - base)")
                code.line("rescale = tl.exp(largest - base)")
                code.line("total = total * rescale + tl.sum(weights, axis=1, keep_dims=True)")
                v_mask = inside and f"{inside}[:, None]"
                v = self._read(
                    renderer, self.v, root.v, "sample", "group", "t[:, None]", "w[None, :]", v_mask, width, self.width
                )
                code.line(f"v = {v}")
                code.line(f"acc = tl.dot(weights.to({memory_type(self.operand)}), v, acc * rescale{self.precision})")
                code.line("largest = new")
            if root.zero_empty:
                code.line("total = tl.where(total == 0, 1.0, total)")
            if dimension.bounds(self.keys)[0] <= 0:  # of no keys at all the result is an empty sum
                code.line(f"total = tl.where({dims.text(self.keys)} == 0, 1.0, total)")
            code.line("acc = acc / total")
            w_mask = None if width == self.width else f"(w < {self.width})[None, :]"
            scope = Scope(
                renderer, {1: "head", 2: "query", 3: "w[None, :]"}, [q_dim, TileDim(frozenset({3}), w_mask)],
                f"({size}, {width})", base, roots={0: "acc"},
            )  # fmt: skip
            for store in self.kernel.stores:
                scope.store(store)
        flops = self.batch * self.heads * self.queries * self.keys * (self.depth + self.width) * 2
        schedule = f"{size} rows x {keys} keys, heads of {self.depth}, {warps} warps"
        return finish(self.source, tiling, warps=warps, stages=2, schedule=schedule, flops=flops, is_heavy=True)

    def _tile_rows(self, rows: Dim) -> int:
        """Rows of a program: many share the keys that they read, few leave no multiprocessor idle."""
        size = 128 if self.depth <= 64 else 64
        if register_dtype(self.operand) == self.operand:
            size = 32  # in f32 the scores of more do not fit into registers
        heads = typical(self.batch) * typical(self.groups)
        while size > 16 and (typical(rows) <= size // 2 or heads * -(-typical(rows) // size) < self._processors()):
            size //= 2
        return size

    def _processors(self) -> int:
        return int(self.target.numbers["multiprocessors"])

    def _read(
        self, renderer: Renderer, type_: TensorType, operand: int, sample: str, head: str, place: str, element: str,
        mask: str | None, padded: int, size: int,
    ) -> str:  # fmt: skip
        """A tile of an operand at indices given as texts, as it is multiplied; what lies outside reads as 0."""
        scope = Scope(renderer, {0: sample, 1: head, 2: place, 3: element}, [], "(1, 1)")
        offset = flat_offset(type_, [axis(number) for number in range(4)]).expr()
        masks = [] if mask is None else [mask]
        if padded != size:
            masks.append(f"({element} < {size})")
        address = f"p{operand} + {scope.offset_text(offset)}"
        text = f"tl.load({address}, mask={' & '.join(masks)}, other=0.0)" if masks else f"tl.load({address})"
        return text if type_.dtype == self.operand else f"{text}.to({memory_type(self.operand)})"
