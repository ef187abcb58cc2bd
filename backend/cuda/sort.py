"""SORT kernels: an element's place among the results is the number of elements that come before it in its row.

Elements become integers whose order is the order wanted, and equal ones are told apart by their places, so no two
elements have the same rank: programs need nothing of each other, and every run gives the same result. The work grows
with the square of a row's length, shared among all multiprocessors. The first k of a long row are selected by one
program instead: it finds the k-th smallest integer, two bits after the other, by counting, then those up to it in the
order of their places, and at last their ranks among themselves.
"""

from __future__ import annotations

from aot import dims as dimension
from aot.backend.base import Emitted
from aot.backend.cuda.code import Code, DimTable, memory_type, offset_at, register_dtype, split_places
from aot.backend.cuda.frame import Tiling, finish, power_of_two
from aot.backend.cuda.render import LARGEST_INDEX
from aot.dims import Dim, typical
from aot.errors import CompilerError
from aot.kernel import Kernel, OwnedRoot
from aot.ops.helpers import int_attr
from aot.target import Target

LONG = 512
"""Elements from which on the elements of a program are all of one row."""

COMPARED = 8
"""Elements of the row that all of a program's are compared with at a time."""

SELECTED = 8192
"""Elements of a row from which on its first few are selected by one program."""

MOST_SELECTED = 256
PIECE = 2048
"""Elements of a row that are looked at together in a selection."""


def emit_sort(kernel: Kernel, target: Target) -> Emitted:
    """Triton for a `sort` or `top_k`."""
    root = kernel.root
    if not isinstance(root, OwnedRoot) or root.operands[0] is None:
        raise CompilerError(f"{kernel.name}: not a sort")
    return _Sort(kernel, target, root, root.operands[0]).emit()


class _Sort:
    def __init__(self, kernel: Kernel, target: Target, root: OwnedRoot, source: int) -> None:
        self.kernel, self.target, self.source, self.results = kernel, target, source, root.results
        self.x = kernel.inputs[source].type
        self.axis = int_attr(root.attrs, "axis") % self.x.rank
        self.extent = self.x.shape[self.axis]
        self.wanted: Dim = self.extent
        if root.op == "top_k":
            k = root.attrs["k"]
            if not isinstance(k, int | dimension.DimExpr):
                raise CompilerError(f"{kernel.name}: k is {k!r}")
            self.wanted = k
        self.is_descending = bool(root.attrs["largest" if root.op == "top_k" else "descending"])
        self.outer = [n for n in range(self.x.rank) if n != self.axis]
        self.rows = dimension.product(self.x.shape[n] for n in self.outer)
        self.wide = register_dtype(self.x.dtype).bits == 64
        self.code, self.dims = Code(1), DimTable()
        sizes = [dimension.bounds(o.type.elements)[1] for o in (*kernel.inputs, *kernel.outputs)]
        self.index_type = "tl.int64" if any(size > LARGEST_INDEX for size in sizes) else "tl.int32"

    def emit(self) -> Emitted:
        k = self.wanted
        if isinstance(k, int) and 0 < k <= MOST_SELECTED and typical(self.extent) >= SELECTED:
            return self._select(k)
        return self._rank()

    # Text.

    def _outer_places(self, row: str) -> None:
        """The indices of a row, and of the place `i` of it."""
        names = split_places(self.code, self.dims, row, [self.x.shape[n] for n in self.outer], "o")
        self.row_places = dict(zip(self.outer, names, strict=True))

    def _places(self, along: str) -> list[str]:
        return [along if n == self.axis else self.row_places[n] for n in range(self.x.rank)]

    def _load(self, along: str, mask: str, shape: str) -> str:
        offset = offset_at(self.dims, self.x, self._places(along), f"tl.zeros({shape}, tl.int32)")
        return f"tl.load(p{self.source} + {offset}, mask={mask}, other=0)"

    def _key(self, name: str, value: str, one: str = "(1, 1)") -> None:
        """Writes the signed integer that stands for an element: NaN is above all, and zeros are equal."""
        code, held = self.code, register_dtype(self.x.dtype)
        integer, top = ("tl.int64", (1 << 63) - 1) if self.wide else ("tl.int32", (1 << 31) - 1)
        largest = f"tl.full({one}, {top}, {integer})" if self.wide else str(top)
        if held.is_float:
            real = memory_type(held)
            number = f"{name}_number"
            code.line(f"{number} = {value}.to({real})")
            code.line(f"{name} = tl.where({number} == 0, 0.0, {number}).to({integer}, bitcast=True)")
            code.line(f"{name} = tl.where({name} < 0, {name} ^ {largest}, {name})")
            code.line(f"{name} = tl.where({number} != {number}, {largest}, {name})")
        elif held.family == "uint" and held.bits in (32, 64):
            code.line(f"{name} = {value}.to({integer}, bitcast=True) ^ (-{largest} - 1)")
        else:
            code.line(f"{name} = {value}.to({integer})")
        if self.is_descending:
            code.line(f"{name} = ~{name}")

    def _store(self, rank: str, value: str, place: str, mask: str, shape: str) -> None:
        """Values and places at their ranks."""
        for result, held in ((0, value), (1, place)):
            number = self.results[result]
            if number is None:
                continue
            type_ = self.kernel.outputs[number].type
            offset = offset_at(self.dims, type_, self._places(rank), f"tl.zeros({shape}, tl.int32)")
            target = f"p{len(self.kernel.inputs) + number} + {offset}"
            self.code.line(f"tl.store({target}, {held}.to({memory_type(type_.dtype)}), mask={mask})")

    # By ranks.

    def _rank(self) -> Emitted:
        code, dims = self.code, self.dims
        n = dims.text(self.extent)
        least = dimension.bounds(self.extent)[0]
        is_uniform = typical(self.extent) >= LONG
        total = self.rows * self.extent
        block = 512 if is_uniform else 128
        processors = int(self.target.numbers["multiprocessors"])
        while block > (128 if is_uniform else 32) and typical(total) < 2 * block * processors:
            block //= 2
        tiling = Tiling(code, dims)
        blocks = dimension.ceildiv(self.extent, block)
        programs = self.rows * blocks if is_uniform else dimension.ceildiv(total, block)
        with tiling.programs(programs) as program:
            lanes = f"tl.arange(0, {block})[:, None]"
            code.line(f"program_ = {program}.to({self.index_type})")
            if is_uniform:
                blocks_text = dims.text(blocks)
                code.line(f"row = program_ // {blocks_text}")
                code.line(f"i = program_ % {blocks_text} * {block} + {lanes}")
                code.line(f"inside = i < {n}")
            else:
                code.line(f"element = program_ * {block} + {lanes}")
                code.line(f"row = element // {n if least > 0 else f'tl.maximum({n}, 1)'}")
                code.line(f"i = element - row * {n}")
                code.line(f"inside = element < {dims.text(total)}")
            self._outer_places("row")
            shape = f"({block}, 1)"
            code.line(f"value = {self._load('i', 'inside', shape)}")
            self._key("own", "value")
            code.line(f"before = tl.zeros(({block}, {COMPARED}), tl.int32)")
            with code.block(f"for begin in range(0, {n}, {COMPARED})"):
                code.line(f"j = begin + tl.arange(0, {COMPARED})[None, :]")
                code.line(f"there = j < {n}")
                mask, wide = (
                    ("there", f"(1, {COMPARED})") if is_uniform else ("there & inside", f"({block}, {COMPARED})")
                )
                code.line(f"other = {self._load('j', mask, wide)}")
                self._key("key", "other")
                code.line("is_before = ((key < own) | ((key == own) & (j < i))) & there")
                code.line("before += is_before.to(tl.int32)")
            code.line("rank = tl.sum(before, axis=1)[:, None]")
            kept = "inside" if self.wanted == self.extent else f"inside & (rank < {dims.text(self.wanted)})"
            code.line(f"kept = {kept}")
            self._store("rank", "value", "i", "kept", shape)
        return finish(
            self.kernel, tiling, warps=max(block // 64, 1), stages=1,
            schedule=f"ranks of {block} elements a program", flops=total * self.extent * 4, is_heavy=True,
        )  # fmt: skip

    # By selection.

    def _select(self, k: int) -> Emitted:
        """One program a row: the digits of the k-th smallest key, then the k elements up to it."""
        code, dims = self.code, self.dims
        n, width = dims.text(self.extent), power_of_two(k)
        bits = 64 if self.wide else 32
        integer, unsigned = f"tl.int{bits}", f"tl.uint{bits}"
        tiling = Tiling(code, dims)
        with tiling.programs(self.rows) as program:
            code.line(f"row = {program}.to({self.index_type})")
            self._outer_places("row")
            shape = f"({PIECE},)"

            def piece() -> None:
                code.line(f"j = (begin + tl.arange(0, {PIECE})).to({self.index_type})")
                code.line("there = j < n")
                code.line(f"value = {self._load('j', 'there', shape)}")
                self._key("key", "value", "(1,)")
                # From here on as unsigned numbers of the same order.
                code.line(f"key = key.to({unsigned}, bitcast=True) ^ (tl.full((1,), 1, {unsigned}) << {bits - 1})")

            # Loops whose lengths are no constants: the compiler would write out all pieces and digits.
            code.line(f"n = {n} + tl.num_programs(1) - 1")
            code.line(f"prefix = tl.full((), 0, {unsigned})")
            code.line(f"left = tl.full((), {k}, tl.int32)")
            with code.block(f"for level in range(0, {bits // 2} + tl.num_programs(1) - 1)"):
                code.line(f"shift = (tl.full((), {bits - 2}, tl.int32) - 2 * level).to({unsigned})")
                for digit in range(3):
                    code.line(f"count{digit} = tl.zeros({shape}, tl.int32)")
                with code.block(f"for begin in range(0, n, {PIECE})"):
                    piece()
                    code.line("rest = key >> shift")
                    code.line("digit = tl.where(there & ((rest >> 2) == prefix), (rest & 3).to(tl.int32), 3)")
                    for digit in range(3):
                        code.line(f"count{digit} += (digit == {digit}).to(tl.int32)")
                for digit in range(3):
                    code.line(f"sum{digit} = tl.sum(count{digit}, axis=0)")
                code.line("found = tl.full((), 0, tl.int32)")
                for digit in range(3):  # the k-th has a larger digit than those that are not enough
                    code.line(f"is_past = (found == {digit}) & (left > sum{digit})")
                    code.line(f"left = tl.where(is_past, left - sum{digit}, left)")
                    code.line(f"found = tl.where(is_past, {digit + 1}, found)")
                code.line(f"prefix = (prefix << 2) | found.to({unsigned})")
            # `left` of those that equal the k-th are taken, the first ones.
            code.line(f"slot = tl.arange(0, {width})")
            code.line(f"chosen = tl.zeros(({width},), {self.index_type})")
            code.line(f"keys = tl.zeros(({width},), {unsigned})")
            code.line("taken = tl.full((), 0, tl.int32)")
            largest = (1 << 63) - 1 if self.index_type == "tl.int64" else (1 << 31) - 1
            code.line(f"end = tl.full((), {largest}, {self.index_type})")
            with code.block(f"for begin in range(0, n, {PIECE})"):
                piece()
                code.line(f"at = tl.full((), -1, {self.index_type})")
                code.line("going = 1")
                with code.block("while going != 0"):
                    # The next one of this piece; of equals only as many as there is room for.
                    code.line("fits = there & (j > at) & ((key < prefix) | ((key == prefix) & (left > 0)))")
                    code.line("at = tl.min(tl.where(fits, j, end), axis=0)")
                    code.line("going = (at < end).to(tl.int32)")
                    with code.block("if going != 0"):
                        code.line(f"its = tl.where(j == at, key, 0).to({integer}, bitcast=True)")
                        code.line(f"its_key = tl.sum(its, axis=0).to({unsigned}, bitcast=True)")
                        code.line("left -= (its_key == prefix).to(tl.int32)")
                        code.line("chosen = tl.where(slot == taken, at, chosen)")
                        code.line("keys = tl.where(slot == taken, its_key, keys)")
                        code.line("taken += 1")
            code.line(
                "lower = (keys[None, :] < keys[:, None]) | "
                "((keys[None, :] == keys[:, None]) & (slot[None, :] < slot[:, None]))"
            )
            code.line(f"lower = lower & (slot[None, :] < {k})")
            code.line("rank = tl.sum(lower.to(tl.int32), axis=1)")
            code.line(f"kept = slot < {k}")
            code.line(f"value = {self._load('chosen', 'kept', f'({width},)')}")
            self._store("rank", "value", "chosen", "kept", f"({width},)")
        return finish(
            self.kernel, tiling, warps=8, stages=1, schedule=f"the first {k} of a row selected by {bits // 2} digits",
            flops=self.x.elements * 8 * (bits // 2 + 1),
        )  # fmt: skip
