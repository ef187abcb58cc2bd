"""Tree ensembles: lanes walk trees in lockstep, as many steps as the deepest of theirs has; a leaf's child is itself.

A program has some rows and some trees at a time: all its lanes are rows where there are many, and trees of one row
where there are few. Each lane adds up the leaves of its trees in their order, and the lanes of a row are added in an
order that follows from shapes alone.
"""

from __future__ import annotations

from aot import dims as dimension
from aot.backend.base import Emitted
from aot.backend.cuda.code import Code, DimTable, memory_type, offset_at
from aot.backend.cuda.frame import Tiling, finish, power_of_two
from aot.backend.cuda.render import LARGEST_INDEX
from aot.dims import Dim, typical
from aot.errors import CompilerError
from aot.ir import TensorType
from aot.kernel import Kernel, OwnedRoot
from aot.ops.helpers import int_attr
from aot.target import Target

LANES = 128
MOST_TARGETS = 16
"""Targets of a program: others are for programs that walk the same trees again."""

_NEUTRAL = {"min": 'float("inf")', "max": 'float("-inf")'}


def emit_trees(kernel: Kernel, target: Target) -> Emitted:
    """Triton for a `tree_ensemble`."""
    root = kernel.root
    if not isinstance(root, OwnedRoot) or root.op != "tree_ensemble":
        raise CompilerError(f"{kernel.name}: not an ensemble of trees")
    return _Trees(kernel, target, root).emit()


class _Trees:
    def __init__(self, kernel: Kernel, target: Target, root: OwnedRoot) -> None:
        self.kernel, self.attrs = kernel, root.attrs
        self.numbers = [number for number in root.operands if number is not None]
        types = [kernel.inputs[number].type for number in self.numbers]
        self.x, self.nodes, self.trees, self.weights = types[:4]
        self.is_listed = len(self.numbers) > 4
        self.out = kernel.outputs[0].type
        self.inner, self.targets = int_attr(root.attrs, "inner"), int_attr(root.attrs, "targets")
        self.aggregate = str(root.attrs["aggregate"])
        self.held = memory_type(self.out.dtype)
        self.code, self.dims = Code(1), DimTable()
        rows, trees = max(typical(self.x.shape[0]), 1), max(typical(self.trees.shape[0]), 1)
        self.abreast = min(power_of_two(trees), LANES)
        # Of many rows, each has fewer lanes: all of them walk on their own, and nothing is left to be added.
        enough = 4 * LANES * int(target.numbers["multiprocessors"])
        while self.abreast > 1 and rows * self.abreast > enough:
            self.abreast //= 2
        self.rows = LANES // self.abreast
        self.width = min(power_of_two(self.targets), MOST_TARGETS)
        sizes = [dimension.bounds(o.type.elements)[1] for o in (*kernel.inputs, *kernel.outputs)]
        self.index_type = "tl.int64" if any(size > LARGEST_INDEX for size in sizes) else "tl.int32"

    def _pointer(self, place: int) -> str:
        return f"p{self.numbers[place]}"

    def _at(self, place: int, type_: TensorType, indices: list[str], shape: str) -> str:
        return f"{self._pointer(place)} + {offset_at(self.dims, type_, indices, f'tl.zeros({shape}, tl.int32)')}"

    def emit(self) -> Emitted:
        code, dims = self.code, self.dims
        rows: Dim = self.x.shape[0]
        parts = -(-self.targets // self.width)
        count = dims.text(self.trees.shape[0])
        tiling = Tiling(code, dims)
        with tiling.programs(dimension.ceildiv(rows, self.rows) * parts) as program:
            code.line(f"first_row = ({program} // {parts}).to({self.index_type}) * {self.rows}")
            code.line(f"lane = tl.arange(0, {LANES})")
            code.line(f"row = first_row + lane // {self.abreast}")
            code.line(f"row_inside = row < {dims.text(rows)}")
            code.line(f"k = ({program} % {parts} * {self.width} + tl.arange(0, {self.width}))[None, :]")
            neutral = _NEUTRAL.get(self.aggregate, "0.0")
            code.line(f"total = tl.full(({LANES}, {self.width}), {neutral}, {self.held})")
            with code.block(f"for begin in range(0, {count}, {self.abreast})"):
                code.line(f"tree = begin + lane % {self.abreast}")
                code.line(f"walks = row_inside & (tree < {count})")
                lanes = f"({LANES},)"
                code.line(
                    f"at = tl.load({self._at(2, self.trees, ['tree', '0'], lanes)}, mask=walks, other={self.inner})"
                )
                code.line(f"depth = tl.load({self._at(2, self.trees, ['tree', '1'], lanes)}, mask=walks, other=0)")
                with code.block("for step in range(0, tl.max(depth, axis=0))"):
                    self._walk()
                code.line(f"leaf = (at - {self.inner})[:, None]")
                code.line("adds = walks[:, None]")
                if self.is_listed:
                    self._listed()
                else:
                    code.line(f"adds = adds & (k < {self.targets})")
                    where = self._at(3, self.weights, ["leaf", "k"], f"({LANES}, {self.width})")
                    code.line(f"weight = tl.load({where}, mask=adds, other=0)")
                    self._join("adds")
            self._store(count)
        walks = rows * self.trees.shape[0]
        made = finish(
            self.kernel, tiling, warps=LANES // 32, stages=1, flops=walks * 32,
            schedule=f"{self.rows} rows x {self.abreast} trees in lockstep",
        )  # fmt: skip
        # Few rows see few of the nodes.
        seen = dimension.minimum(made.bytes_moved, walks * 128 + self.x.storage_bytes + self.out.storage_bytes)
        return Emitted(made.source, made.dims, made.schedule, flops=made.flops, bytes_moved=seen, grid=made.grid)

    def _walk(self) -> None:
        """A step of every lane."""
        code, wide = self.code, self.x.dtype.bits == 64
        words = 6 if wide else 4
        if wide:
            code.line(f"node = {self._pointer(1)} + at.to(tl.int64) * {words}")
            for number, name in enumerate(("low", "high", "feature", "left", "right")):
                code.line(f"{name} = tl.load(node + {number})")
            code.line("bits = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)")
            code.line("threshold = bits.to(tl.float64, bitcast=True)")
        else:  # a node is one load of 16 bytes
            code.line(f"place = at.to(tl.int64)[:, None] * {words} + tl.arange(0, {words})[None, :]")
            code.line(f"node = tl.reshape(tl.load({self._pointer(1)} + place), ({LANES}, 2, 2))")
            code.line("even, odd = tl.split(node)")
            code.line("threshold, left = tl.split(even)")
            code.line("feature, right = tl.split(odd)")
            code.line("threshold = threshold.to(tl.float32, bitcast=True)")
        column = "(feature & 0x7FFFFFFF)" if self.attrs["missing"] else "feature"
        place = self._at(0, self.x, ["row", column], f"({LANES},)")
        code.line(f"value = tl.load({place}, mask=walks, other=0)")
        code.line(f"is_left = value {'<' if self.attrs['strict'] else '<='} threshold")
        if self.attrs["missing"]:
            code.line("is_left = is_left | ((value != value) & (feature < 0))")
        code.line("at = left + tl.where(is_left, 0, right)")

    def _listed(self) -> None:
        """Leaves whose weights are for some of the targets."""
        code = self.code
        code.line(f"begin_entry = tl.load({self._pointer(4)} + leaf, mask=adds, other=0)")
        code.line(f"end_entry = tl.load({self._pointer(4)} + leaf + 1, mask=adds, other=0)")
        code.line("entries = tl.max(tl.max(end_entry - begin_entry, axis=1), axis=0)")
        with code.block("for number in range(0, entries)"):
            code.line("entry = begin_entry + number")
            code.line("has = entry < end_entry")
            code.line(f"target = tl.load({self._pointer(5)} + entry, mask=has, other=-1)")
            code.line(f"weight = tl.load({self._pointer(3)} + entry, mask=has, other=0)")
            code.line("is_target = has & (target == k)")
            self._join("is_target")

    def _join(self, adds: str) -> None:
        code = self.code
        if self.aggregate in ("min", "max"):
            code.line(f"total = tl.where({adds}, tl.{self.aggregate}imum(total, weight), total)")
        else:
            code.line(f"total += tl.where({adds}, weight, 0)")

    def _store(self, count: str) -> None:
        code, aggregate = self.code, self.aggregate
        if self.abreast > 1:
            function = aggregate if aggregate in ("min", "max") else "sum"
            code.line(f"total = tl.{function}(tl.reshape(total, ({self.rows}, {self.abreast}, {self.width})), axis=1)")
        if aggregate == "average":
            code.line(f"total = total / (tl.maximum({count}, 1) + tl.zeros((1, 1), {self.held}))")
        elif aggregate in ("min", "max"):
            code.line(f"total = tl.where(total == {_NEUTRAL[aggregate]}, 0.0, total)")
        code.line(f"out_row = (first_row + tl.arange(0, {self.rows}))[:, None]")
        code.line(f"inside = (out_row < {self.dims.text(self.x.shape[0])}) & (k < {self.targets})")
        offset = offset_at(self.dims, self.out, ["out_row", "k"], f"tl.zeros(({self.rows}, {self.width}), tl.int32)")
        code.line(f"tl.store(p{len(self.kernel.inputs)} + {offset}, total, mask=inside)")
