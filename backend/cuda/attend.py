"""Attention: softmax(Q Kᵀ scale + mask) V in one pass over the keys, with the scores of a tile in registers.

A program takes rows of queries of one key head: those of every query head that shares it, so that keys and values are
read once for a group. The softmax is online ("Online normalizer calculation for softmax", Milakov and Gimelshein,
2018; tiled as in "FlashAttention-2", Dao, 2023): a running maximum and sum per row, and the result rescaled when the
maximum grows. Scores, maxima and sums are f32; the products of 16-bit operands use the tensor cores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from aot import dims as dimension
from aot.backend.affine import flat_offset
from aot.backend.base import Emitted
from aot.backend.cuda.code import Code, DimTable, memory_type, offset_at, register_dtype
from aot.backend.cuda.frame import Tiling, finish, power_of_two
from aot.backend.cuda.render import Renderer, Scope, TileDim
from aot.backend.nest import flatten
from aot.dims import Dim, typical
from aot.dtypes import F32, F64
from aot.errors import CompilerError, UnsupportedError
from aot.expr import axis
from aot.ir import Layout, Node, TensorType
from aot.kernel import AttendRoot, Kernel, OwnedRoot
from aot.ops.helpers import float_attr, int_attr
from aot.target import Target

KEYS = 64
"""Keys of a step."""

LOG2_E = 1.4426950408889634


def lacks_attention(node: Node) -> str:
    """Why there is no kernel for a node of attention, or nothing."""
    if node.output.type.dtype == F64:
        return "a GPU has no kernel for attention in f64"
    queries, keys, values = (value.type.shape for value in node.operands[:3])
    has_sizes = isinstance(queries[-1], int) and isinstance(values[-1], int)
    if not has_sizes or dimension.exact_div(queries[1], keys[1]) is None:
        return "a GPU has no kernel for attention whose head sizes are known only when it runs"
    return ""


def emit_attend(kernel: Kernel, target: Target) -> Emitted:
    """Triton for a kernel with an AttendRoot; sums in f32, operands f16, bf16 or f32."""
    root = kernel.root
    if not isinstance(root, AttendRoot):
        raise CompilerError(f"{kernel.name}: not attention")
    return _Whole(kernel, root, target).emit()


def emit_attend_parts(kernel: Kernel, target: Target) -> Emitted:
    """Triton for an `attention_parts`; sums in f32, operands f16, bf16 or f32."""
    root = kernel.root
    if not isinstance(root, OwnedRoot) or root.op != "attention_parts":
        raise CompilerError(f"{kernel.name}: not attention in parts")
    return _Parts(kernel, root, target).emit()


class _Attend(ABC):
    """The walk over the keys; what a mask adds, and what is stored, are the forms' own."""

    def __init__(self, kernel: Kernel, target: Target, operands: Sequence[int], scale: float, causal: bool) -> None:
        self.source, self.target, self.operands, self.scale, self.causal = kernel, target, operands, scale, causal
        self.kernel = kernel
        self.q, self.k, self.v = (kernel.inputs[number].type for number in operands)
        self.operand = self.q.dtype
        self.dims, self.code = DimTable(), Code(1)
        self.batch, self.heads, self.queries, depth = self.q.shape
        self.groups, self.keys = self.k.shape[1], self.k.shape[2]
        width = self.v.shape[3]
        per_group = dimension.exact_div(self.heads, self.groups)
        if per_group is None or not isinstance(depth, int) or not isinstance(width, int):
            raise UnsupportedError("attention whose head sizes are known only when it runs has no kernel on a GPU")
        self.per_group: Dim = per_group
        self.depth, self.width = depth, width
        self.chunk = 0  # keys of a part; 0: one walk takes all

    # What the forms say.

    @abstractmethod
    def _add_mask(self, base: Scope, size: int, keys: int, k_mask: str | None) -> None:
        """Adds the mask to the scores of a step."""

    @abstractmethod
    def _finish(self, base: Scope, size: int, width: int) -> None:
        """Stores what the walk found: `acc`, `total`, `largest`."""

    # The walk.

    @property
    def precision(self) -> str:
        """The argument of tl.dot for operands that are multiplied in 32 bits."""
        if register_dtype(self.operand) != self.operand:
            return ""
        return f', input_precision="{"tf32" if "tf32" in self.target.features else "ieee"}"'

    def emit(self) -> Emitted:
        code, dims = self.code, self.dims
        # Rows: the queries of all heads of a group, head by head.
        rows = self.per_group * self.queries
        size = self._tile_rows(rows)
        depth, width = max(power_of_two(self.depth), 16), max(power_of_two(self.width), 16)
        keys, warps = self._step(size, depth)
        tiling = Tiling(code, dims)
        renderer = Renderer(self.kernel, dims, code)
        blocks = dimension.ceildiv(rows, size)
        parts = dimension.ceildiv(self.keys, self.chunk) if self.chunk else 1
        with tiling.programs(self.batch * self.groups * blocks * parts) as program:
            if self.chunk:
                code.line(f"part = {program} % {dims.text(parts)}")
                code.line(f"first = {renderer.index('part')} * {self.chunk}")
                program = f"({program} // {dims.text(parts)})"
            code.line(f"block = {program} % {dims.text(blocks)}")
            code.line(f"pair = {renderer.index(program)} // {dims.text(blocks)}")
            code.line(f"group = pair % {dims.text(self.groups)}")
            code.line(f"sample = pair // {dims.text(self.groups)}")
            code.line(f"row = ({renderer.index('block')} * {size} + tl.arange(0, {size}))[:, None]")
            self.row_mask = None
            if not (isinstance(rows, int) and rows > 0 and rows % size == 0):
                self.row_mask = "row_inside"
                code.line(f"row_inside = row < {dims.text(rows)}")
            code.line(f"query = row % {dims.text(self.queries)}")
            code.line(f"head = group * {dims.text(self.per_group)} + row // {dims.text(self.queries)}")
            # Reads behind the last row stay inside: their results are not stored.
            self.q_dim = TileDim(frozenset({1, 2}), self.row_mask)
            base = Scope(renderer, {0: "sample"}, [], "(1, 1)")
            q, k, v = self.operands
            code.line(f"d = tl.arange(0, {depth})")
            places = ("sample", "head", "query", "d[None, :]")
            code.line(f"q = {self._read(renderer, self.q, q, places, self.row_mask, depth, self.depth)}")
            code.line(f'largest = tl.full(({size}, 1), float("-inf"), tl.float32)')
            code.line(f"total = tl.zeros(({size}, 1), tl.float32)")
            code.line(f"acc = tl.zeros(({size}, {width}), tl.float32)")
            code.line(f"w = tl.arange(0, {width})")
            with code.block(f"for at in range({', '.join(self._range(size))}, {keys})"):
                code.line(f"t = {renderer.index('at')} + tl.arange(0, {keys})")
                step = self.chunk or keys
                whole = isinstance(self.keys, int) and self.keys > 0 and self.keys % step == step % keys == 0
                inside = None if whole else f"(t < {'end' if self.chunk else dims.text(self.keys)})"
                k_mask = inside and f"{inside}[None, :]"
                places = ("sample", "group", "t[None, :]", "d[:, None]")
                code.line(f"k = {self._read(renderer, self.k, k, places, k_mask, depth, self.depth)}")
                code.line(f"scores = tl.dot(q, k{self.precision}) * {self.scale!r}")
                self._add_mask(base, size, keys, k_mask)
                tests = [] if k_mask is None else [k_mask]
                if self.causal:
                    tests.append(f"(t[None, :] <= query + {dims.text(self.keys - self.queries)})")
                if tests:
                    code.line(f'scores = tl.where({" & ".join(tests)}, scores, float("-inf"))')
                code.line("new = maximum(largest, tl.max(scores, axis=1, keep_dims=True))")
                # A row that has seen nothing yet has no maximum to subtract.
                code.line('base = tl.where(new == float("-inf"), 0.0, new)')
                code.line("weights = tl.exp(scores - base)")
                code.line("rescale = tl.exp(largest - base)")
                code.line("total = total * rescale + tl.sum(weights, axis=1, keep_dims=True)")
                places = ("sample", "group", "t[:, None]", "w[None, :]")
                v_mask = inside and f"{inside}[:, None]"
                code.line(f"v = {self._read(renderer, self.v, v, places, v_mask, width, self.width)}")
                code.line(f"acc = tl.dot(weights.to({memory_type(self.operand)}), v, acc * rescale{self.precision})")
                code.line("largest = new")
            self._finish(base, size, width)
        flops = self.batch * self.heads * self.queries * self.keys * (self.depth + self.width) * 2
        parted = f" in parts of {self.chunk}" if self.chunk else ""
        schedule = f"{size} rows x {keys} keys{parted}, heads of {self.depth}, {warps} warps"
        stages = 3 if self.chunk > 2 * KEYS else 2
        return finish(self.source, tiling, warps=warps, stages=stages, schedule=schedule, flops=flops, is_heavy=True)

    def _step(self, size: int, depth: int) -> tuple[int, int]:
        """Keys of a step, and warps."""
        if size == 16 and depth <= 128:  # a step of decoding waits for the bytes of its cache
            if self.chunk > KEYS:
                return KEYS, 2  # many small programs, each with more steps on the way
            if not self.chunk and typical(self.keys) >= 8 * KEYS:
                return (4 if depth <= 64 else 2) * KEYS, 8
        return KEYS if depth <= 128 else 32, 8 if size >= 128 else 4

    def _range(self, size: int) -> tuple[str, str]:
        """The first key of a walk, and the first behind it; `end` is the latter where it is no extent."""
        code, dims = self.code, self.dims
        first, end = "0", dims.text(self.keys)
        if self.chunk:
            code.line(f"end = tl.minimum(first + {self.chunk}, {end})")
            first, end = "first", "end"
        if self.causal:
            code.line(f"last = tl.max(query + tl.zeros(({size}, 1), tl.int32)) + {dims.text(self.keys - self.queries)}")
            code.line(f"end = tl.minimum({end}, last + 1)")
            end = "end"
        return first, end

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
        self, renderer: Renderer, type_: TensorType, operand: int, places: tuple[str, str, str, str],
        mask: str | None, padded: int, size: int,
    ) -> str:  # fmt: skip
        """A tile of an operand at indices given as texts, as it is multiplied; what lies outside reads as 0."""
        scope = Scope(renderer, dict(enumerate(places)), [], "(1, 1)")
        # A single place is never left, whatever its stride, which in a view would hide what addresses are multiples of.
        strides = [16 if extent == 1 else stride for extent, stride in zip(type_.shape, type_.strides, strict=True)]
        type_ = type_.with_layout(Layout(strides=(*strides[:3], type_.strides[3])))
        offset = flat_offset(type_, [axis(number) for number in range(4)]).expr()
        masks = [] if mask is None else [mask]
        if padded != size:
            masks.append(f"({places[3]} < {size})")
        address = f"p{operand} + {scope.offset_text(offset)}"
        text = f"tl.load({address}, mask={' & '.join(masks)}, other=0.0)" if masks else f"tl.load({address})"
        return text if type_.dtype == self.operand else f"{text}.to({memory_type(self.operand)})"


class _Whole(_Attend):
    """All keys in one walk: the mask and what is done with the result are expressions of the kernel."""

    def __init__(self, kernel: Kernel, root: AttendRoot, target: Target) -> None:
        super().__init__(kernel, target, (root.q, root.k, root.v), root.scale, root.causal)
        if root.accumulate != F32:
            raise UnsupportedError(f"attention with sums in {root.accumulate} has no kernel on a GPU")
        self.kernel = flatten(kernel, merge=False)
        assert isinstance(self.kernel.root, AttendRoot)
        self.root = self.kernel.root
        self.operand = root.operand or self.q.dtype

    def _add_mask(self, base: Scope, size: int, keys: int, k_mask: str | None) -> None:
        if self.root.mask is None:
            return
        t_dim = TileDim(frozenset({self.root.t}), k_mask)
        places = {1: "head", 2: "query", self.root.t: "t[None, :]"}
        scope = Scope(base.renderer, places, [self.q_dim, t_dim], f"({size}, {keys})", base)
        self.code.line(f"scores += {scope.value(self.root.mask)}")

    def _finish(self, base: Scope, size: int, width: int) -> None:
        code = self.code
        if self.root.zero_empty:
            code.line("total = tl.where(total == 0, 1.0, total)")
        if dimension.bounds(self.keys)[0] <= 0:  # of no keys at all the result is an empty sum
            code.line(f"total = tl.where({self.dims.text(self.keys)} == 0, 1.0, total)")
        code.line("acc = acc / total")
        w_mask = None if width == self.width else f"(w < {self.width})[None, :]"
        scope = Scope(
            base.renderer, {1: "head", 2: "query", 3: "w[None, :]"}, [self.q_dim, TileDim(frozenset({3}), w_mask)],
            f"({size}, {width})", base, roots={0: "acc"},
        )  # fmt: skip
        for store in self.kernel.stores:
            scope.store(store)


class _Parts(_Attend):
    """A walk for each part of the keys: its own result, and the logarithm of its sum of exponentials."""

    def __init__(self, kernel: Kernel, root: OwnedRoot, target: Target) -> None:
        q, k, v = root.operands[:3]
        assert q is not None and k is not None and v is not None
        super().__init__(kernel, target, (q, k, v), float_attr(root.attrs, "scale"), bool(root.attrs["causal"]))
        self.root = root
        self.chunk = int_attr(root.attrs, "chunk")
        self.mask = root.operands[3] if len(root.operands) > 3 else None

    def _add_mask(self, base: Scope, size: int, keys: int, k_mask: str | None) -> None:
        if self.mask is None:
            return
        type_ = self.source.inputs[self.mask].type
        places = ("sample", "head", "query", "t[None, :]")[4 - type_.rank :]
        places = tuple("0" if extent == 1 else place for extent, place in zip(type_.shape, places, strict=True))
        offset = offset_at(self.dims, type_, places, f"tl.zeros((1, {keys}), tl.int32)")
        masks = [mask for mask in (self.row_mask, k_mask) if mask is not None]
        inside = f", mask={' & '.join(masks)}, other=0" if masks else ""
        read = f"tl.load(p{self.mask} + {offset}{inside})"
        if type_.dtype.is_bool:
            self.code.line(f'scores = tl.where({read} != 0, scores, float("-inf"))')
        else:
            self.code.line(f"scores += {read}.to(tl.float32)")

    def _finish(self, base: Scope, size: int, width: int) -> None:
        code = self.code
        places = ["sample", "head", "query", "part"]
        held, sums = self.root.results
        first = len(self.source.inputs)
        if held is not None:
            masks = [] if self.row_mask is None else [self.row_mask]
            if width != self.width:
                masks.append(f"(w < {self.width})[None, :]")
            type_ = self.source.outputs[held].type
            offset = offset_at(self.dims, type_, [*places, "w[None, :]"], f"tl.zeros(({size}, {width}), tl.int32)")
            inside = f", mask={' & '.join(masks)}" if masks else ""
            code.line(f"tl.store(p{first + held} + {offset}, acc / tl.where(total == 0, 1.0, total){inside})")
        if sums is not None:
            type_ = self.source.outputs[sums].type
            offset = offset_at(self.dims, type_, places, f"tl.zeros(({size}, 1), tl.int32)")
            inside = "" if self.row_mask is None else f", mask={self.row_mask}"
            code.line('found = tl.where(total == 0, float("-inf"), tl.log(total) + largest)')
            code.line(f"tl.store(p{first + sums} + {offset}, found{inside})")
