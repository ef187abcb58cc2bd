"""The running maximum or minimum along the last axis, and its place: an associative scan of pairs.

A program owns a few rows and walks them in pieces. The later of equal elements counts, and NaN is above all others.
"""

from __future__ import annotations

import numpy as np

from aot import dims as dimension
from aot.backend.base import Emitted
from aot.backend.cuda.code import Code, DimTable, memory_type, offset_at, split_places
from aot.backend.cuda.frame import Tiling, finish, power_of_two
from aot.backend.cuda.render import LARGEST_INDEX
from aot.dims import typical
from aot.dtypes import DType
from aot.errors import CompilerError
from aot.ir import TensorType
from aot.kernel import Kernel, OwnedRoot
from aot.target import Target

RUNNING = frozenset({"running_max", "running_min"})
PIECE = 1024
ELEMENTS = 1024
"""Of a program, where there are enough rows."""


def emit_running(kernel: Kernel, target: Target) -> Emitted:
    """Triton for a `running_max` or `running_min`."""
    root = kernel.root
    if not isinstance(root, OwnedRoot) or root.op not in RUNNING:
        raise CompilerError(f"{kernel.name}: not a running extreme")
    return _Running(kernel, root, target).emit()


class _Running:
    def __init__(self, kernel: Kernel, root: OwnedRoot, target: Target) -> None:
        self.kernel, self.root = kernel, root
        (number,) = (n for n in root.operands if n is not None)
        self.source = f"p{number}"
        self.x = kernel.inputs[number].type
        self.extent = self.x.shape[-1]
        self.dims, self.code = DimTable(), Code(1)
        sizes = [dimension.bounds(o.type.elements)[1] for o in (*kernel.inputs, *kernel.outputs)]
        self.index_type = "tl.int64" if any(size > LARGEST_INDEX for size in sizes) else "tl.int32"
        extent = self.extent
        self.piece = min(power_of_two(max(extent, 1)), PIECE) if isinstance(extent, int) else PIECE
        count = typical(dimension.product(self.x.shape[:-1]))
        enough = power_of_two(max(count // (2 * int(target.numbers["multiprocessors"])), 1))
        self.units = max(min(ELEMENTS // self.piece, enough), 1)

    def emit(self) -> Emitted:
        code, dims, piece, units = self.code, self.dims, self.piece, self.units
        total = dimension.product(self.x.shape[:-1])
        function, kind = self.root.op.removeprefix("running_"), memory_type(self.x.dtype)
        tiling = Tiling(code, dims)
        with tiling.programs(dimension.ceildiv(total, units)) as program:
            start = f"({program} + tl.full((), 0, {self.index_type}))"
            code.line(f"row = ({start} * {units} + tl.arange(0, {units}))[:, None]")
            code.line(f"row_inside = row < {dims.text(total)}")
            places = split_places(code, dims, "row", self.x.shape[:-1], "i")
            # Every element takes the place of this one.
            code.line(f"best = tl.full(({units}, 1), {_worst(self.x.dtype, function)}, {kind})")
            code.line(f"best_at = tl.full(({units}, 1), 0, {self.index_type})")
            with code.block(f"for step in range(0, {dims.text(self.extent)}, {piece})"):
                code.line(f"at = step + tl.full((), 0, {self.index_type}) + tl.arange(0, {piece})[None, :]")
                code.line(f"inside = row_inside & (at < {dims.text(self.extent)})")
                code.line(f"x = tl.load({self.source} + {self._offset(self.x, [*places, 'at'])}, mask=inside, other=0)")
                code.line(f"index = at + tl.zeros(({units}, {piece}), {self.index_type})")
                code.line(f"y, found = tl.associative_scan((x, index), 1, later_{function})")
                code.line(f"best = tl.broadcast_to(best, ({units}, {piece}))")
                code.line(f"best_at = tl.broadcast_to(best_at, ({units}, {piece}))")
                code.line(f"y, found = later_{function}(best, best_at, y, found)")
                for result, held in zip(self.root.results, ("y", "found.to(tl.int64)"), strict=True):
                    if result is not None:
                        out = self.kernel.outputs[result].type
                        pointer = f"p{len(self.kernel.inputs) + result}"
                        code.line(f"tl.store({pointer} + {self._offset(out, [*places, 'at'])}, {held}, mask=inside)")
                # The place of the last is exact; the number, with the sign of a zero, is read again.
                code.line(f"last = tl.arange(0, {piece})[None, :] == {piece - 1}")
                code.line(f"best_at = tl.sum(tl.where(last, found, 0), axis=1, keep_dims=True).to({self.index_type})")
                code.line(f"more = row_inside & (best_at < {dims.text(self.extent)})")
                code.line(
                    f"best = tl.load({self.source} + {self._offset(self.x, [*places, 'best_at'])}, mask=more, other=0)"
                )
        return finish(
            self.kernel, tiling, warps=max(min(units * piece // 256, 8), 1), stages=1,
            schedule=f"scan of pairs, {units} x {piece} of a row", flops=self.x.elements * 4,
        )  # fmt: skip

    def _offset(self, type_: TensorType, places: list[str]) -> str:
        return offset_at(self.dims, type_, places, f"tl.zeros(({self.units}, 1), tl.int32)")


def _worst(dtype: DType, function: str) -> str:
    """What every element is above, or equal to."""
    if dtype.is_float:
        return f'float("{"-" if function == "max" else ""}inf")'
    if dtype.is_bool:
        return "0" if function == "max" else "1"
    limits = np.iinfo(dtype.numpy)
    return str(int(limits.min if function == "max" else limits.max))
