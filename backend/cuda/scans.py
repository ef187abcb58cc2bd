"""SCAN_AXIS kernels: a running sum or product along one axis.

A program owns a few rows and walks them in pieces, backwards where the scan is reversed. A piece is scanned as a
block, and what came before it is joined to it: the order of operations follows from shapes alone.
"""

from __future__ import annotations

import math

from aot import dims as dimension
from aot.backend.affine import affine_of
from aot.backend.base import Emitted
from aot.backend.cuda.code import Code, DimTable, register_dtype, register_type
from aot.backend.cuda.frame import Tiling, finish, power_of_two
from aot.backend.cuda.render import Renderer, Scope, TileDim
from aot.backend.nest import assumed_extent, flatten, loads_of, work_of
from aot.errors import CompilerError
from aot.expr import cast
from aot.kernel import Kernel, ScanRoot
from aot.target import Target

LONGEST_WHOLE = 2048
"""Elements of a row that are scanned at once."""

PIECE = 1024
ELEMENTS = 1024
"""Of a program, where there are enough rows."""

ACROSS = 64
"""Steps of a piece whose neighbours in memory belong to different rows; half of it where elements have 8 bytes."""


def emit_scan(kernel: Kernel, target: Target) -> Emitted:
    """Triton for a kernel with a ScanRoot."""
    if not isinstance(kernel.root, ScanRoot):
        raise CompilerError(f"{kernel.name}: not a scan")
    return _Scan(kernel, target).emit()


class _Scan:
    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.source = kernel
        self.kernel = flatten(kernel)
        root = self.kernel.root
        if not isinstance(root, ScanRoot):
            raise CompilerError(f"{kernel.name}: not a scan")
        self.root = root
        self.dims, self.code = DimTable(), Code(1)
        self.renderer = Renderer(self.kernel, self.dims, self.code)
        self.extent = self.kernel.axes[root.axis].extent
        order = kernel.outputs[0].type.order
        self.rows = [a for a in order if a != root.axis and self.kernel.axes[a].extent != 1]
        self.type = register_type(root.accumulate)
        self.multiprocessors = int(target.numbers["multiprocessors"])
        self._choose()

    def _choose(self) -> None:
        """How many rows a program owns, and how long the pieces are."""
        count = math.prod(assumed_extent(self.kernel, a) for a in self.rows)
        extent = self.extent
        fits = isinstance(extent, int) and extent <= LONGEST_WHOLE
        self.piece = power_of_two(max(extent, 1)) if fits and isinstance(extent, int) else PIECE
        if self._runs_across():
            self.units = min(32, power_of_two(count))
            wide = register_dtype(self.root.accumulate).itemsize_bytes > 4
            self.piece = min(self.piece, ACROSS // 2 if wide else ACROSS)
        else:
            enough = power_of_two(max(count // (2 * self.multiprocessors), 1))
            self.units = max(min(ELEMENTS // self.piece, enough), 1)
        self.is_whole = isinstance(extent, int) and extent <= self.piece
        self.shape = f"({self.units}, {self.piece})"

    def _runs_across(self) -> bool:
        """Whether neighbours in memory belong to different rows."""
        offsets = [store.indices[0] for store in self.kernel.stores]
        offsets += [load.args[0] for load in loads_of([self.root.value, *(s.value for s in self.kernel.stores)])]
        along = across = 0
        for offset in map(affine_of, offsets):
            along += offset.coefficients.get(self.root.axis) == 1
            across += any(offset.coefficients.get(a) == 1 for a in self.rows)
        return across > along

    def emit(self) -> Emitted:
        code, root, kernel = self.code, self.root, self.kernel
        total = dimension.product(kernel.axes[a].extent for a in self.rows)
        tiling = Tiling(code, self.dims)
        with tiling.programs(dimension.ceildiv(total, self.units)) as program:
            code.line(f"row = ({self.renderer.index(program)} * {self.units} + tl.arange(0, {self.units}))[:, None]")
            mask = None
            if not (isinstance(total, int) and total % self.units == 0):
                mask = "row_inside"
                code.line(f"row_inside = row < {self.dims.text(total)}")
            self.outer = Scope(
                self.renderer, self._places(), [TileDim(frozenset(self.rows), mask)], f"({self.units}, 1)"
            )
            if self.is_whole:
                self._piece("0")
            else:
                self._pieces()
        work = work_of(root.value) + 1 + sum(work_of(store.value) for store in kernel.stores)
        sense = "back" if root.reverse else "forth"
        steps = "" if self.is_whole else ", in pieces"
        return finish(
            self.source, tiling, warps=max(min(self.units * self.piece // 256, 8), 1), stages=1,
            schedule=f"scan {sense}, {self.units} x {self.piece} of a row{steps}",
            flops=dimension.product(axis.extent for axis in self.source.axes) * work,
        )  # fmt: skip

    def _places(self) -> dict[int, str]:
        """The indices of the rows' axes; writes them."""
        found: dict[int, str] = {}
        rest = "row"
        for position, axis in reversed(list(enumerate(self.rows))):
            if position == 0:
                found[axis] = rest
                break
            extent = self.dims.text(self.kernel.axes[axis].extent)
            self.code.line(f"i{axis} = {rest} % {extent}")
            self.code.line(f"left{axis} = {rest} // {extent}")
            found[axis], rest = f"i{axis}", f"left{axis}"
        return found

    def _pieces(self) -> None:
        code, extent = self.code, self.dims.text(self.extent)
        code.line(f"carry = tl.full(({self.units}, 1), {self._identity}, {self.type})")
        with code.block(f"for step in range(0, {extent}, {self.piece})"):
            self._piece("step")

    def _piece(self, start: str) -> None:
        """Scans a piece of the rows and stores what comes of it."""
        code, root = self.code, self.root
        span = f"tl.arange(0, {self.piece})[None, :]"
        code.line(f"place = {self.renderer.index(span if start == '0' else f'({start} + {span})')}")
        mask = None
        if not (isinstance(self.extent, int) and self.extent and self.extent % self.piece == 0):
            mask = "inside"
            code.line(f"inside = place < {self.dims.text(self.extent)}")
        at = "place"
        if root.reverse:
            code.line(f"at = {self.dims.text(self.extent)} - 1 - place")
            at = "at"
        dims = [*self.outer.dims, TileDim(frozenset({root.axis}), mask)]
        # Not `inner`: the result has a value here only.
        scope = Scope(
            self.renderer,
            {root.axis: at},
            dims,
            self.shape,
            self.outer,
            {0: "before" if root.exclusive else "result"},
        )
        scanned = cast(root.value, root.accumulate)
        value = scope.value(scanned)
        if mask is not None:
            value = f"tl.where({mask}, {value}, tl.full({self.shape}, {self._identity}, {self.type}))"
        elif scanned.op == "const":
            value = f"({value}) + tl.zeros({self.shape}, {self.type})"
        else:
            value = f"tl.broadcast_to({value}, {self.shape})"
        code.line(f"value = ({value}).to({self.type})")
        if root.exclusive:
            none = f"tl.full({self.shape}, {self._identity}, {self.type})"
            code.line(f"before, result = tl.associative_scan(({none}, value), 1, exclusive_{root.function})")
        else:
            code.line(f"result = tl.cum{root.function}(value, axis=1).to({self.type})")
        if not self.is_whole:
            sign = "+" if root.function == "sum" else "*"
            for name in ("before", "result") if root.exclusive else ("result",):
                code.line(f"{name} = (carry {sign} {name}).to({self.type})")
            # The last of a row: what is left of it beside numbers that change nothing.
            last = f"tl.where(({span}) == {self.piece - 1}, result, tl.full((), {self._identity}, {self.type}))"
            fold = "tl.sum({}, axis=1" if root.function == "sum" else "tl.reduce({}, 1, multiply"
            code.line(f"carry = {fold.format(last)}, keep_dims=True).to({self.type})")
        for store in self.kernel.stores:
            scope.store(store)

    @property
    def _identity(self) -> str:
        return "0" if self.root.function == "sum" else "1"
