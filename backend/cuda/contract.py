"""Matrix products: tiles for many rows, streams of weights for few, one element at a time for other types.

Tiles are walked in groups of rows so that programs that run together share what they read in the second-level cache.
A product of at most FEW_ROWS rows is bound by the bytes of the other matrix: each program reads a few of its
columns whole, and what is a weight it begins to read before its predecessors have finished.

Products of one left operand with several matrices of one shape share its tiles, and their epilogue has the sums of
all at hand: the gate of a gated layer costs no kernel of its own.

16-bit floats are multiplied as they are and added in f32; f32 is multiplied in f32, not in tf32, unless asked for.
Integers of 8 bits are added in i32, exactly. Tensor cores take signed ones: of an unsigned one 128 is taken away, and
128 times the sum of the other operand is given back in the end. Floats of 8 bits are multiplied as they are where the
device does that, its own sums being rounded to 14 bits, so every PROMOTED of them are added in f32 as of themselves;
elsewhere they are widened to f16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from aot import dims as dimension
from aot.backend.affine import affine_of
from aot.backend.base import Emitted, PackedOperand
from aot.backend.cuda.code import FLOAT8, Code, DimTable, register_dtype, register_type
from aot.backend.cuda.frame import Tiling, finish, power_of_two
from aot.backend.cuda.functions import scaled
from aot.backend.cuda.render import Renderer, Scope, TileDim
from aot.backend.nest import COSTLY, flatten, free_axes
from aot.dims import Dim, Symbol, typical
from aot.dtypes import BF16, F8E4M3, F16, F32, I8, I32, I64, U8, DType
from aot.errors import CompilerError
from aot.expr import Expr, axis, cast, const, walk
from aot.kernel import ContractRoot, Kernel
from aot.program import RecipeOp, RecipeStep
from aot.target import Target

FEW_ROWS = 4
"""Rows up to which each is a sum of its own, without the tensor cores."""

MOST_SUMS = 64
"""Sums of a thread that leave registers for an epilogue with functions such as erf, or with a tile of its own."""

FEW_STEPS = 4
"""Steps of a tile that are over so soon that the next kernel may wait beside it."""

GROUP = 8
"""Tiles of rows that are walked before the next column of tiles."""

STEP_COST = 12
"""What a step of a loop costs beside its elements, in elements summed."""

STREAM_ELEMENTS = 8192
"""Elements of the other matrix that a program of a stream holds at a time."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How a product is cut: rows, columns, summed elements of a step; warps; steps in flight; sums of an element.

    The columns are those of all right operands together. With several sums of an element, each warp multiplies a part
    of a step's elements for the whole tile, and the parts are added after the last step: with few rows a single sum is
    a chain of multiplications that wait for each other.
    """

    rows: int
    columns: int
    summed: int
    warps: int
    stages: int
    sums: int = 1

    def __str__(self) -> str:
        sums = f", {self.sums} sums" if self.sums > 1 else ""
        return f"{self.rows} x {self.columns} x {self.summed}, {self.warps} warps, {self.stages} stages{sums}"


@dataclass(frozen=True, slots=True)
class Stream:
    """How the other matrix of a product with few rows is read: columns and summed elements at a time, warps.

    The columns are those of all right operands together.
    """

    columns: int
    summed: int
    warps: int

    def __str__(self) -> str:
        return f"{self.columns} columns x {self.summed}, {self.warps} warps"


@dataclass(frozen=True, slots=True)
class Described:
    """A product of two plain matrices by descriptors: asked for where the shape alone would not choose it."""


DESCRIBED = Tile(128, 128, 64, 4, 5)
"""The tile of products whose operands the tensor-copy engine brings, one after the other in each program: 8 to 13 %
faster than by pointers where there are many, and slower where there are few (docs/cuda.md)."""

LEAST_DESCRIBED = 2
"""Tiles for each multiprocessor from which on descriptors are used."""

DESCRIBED_BYTES = 16
"""Bytes that lines of described matrices are multiples of."""

PROMOTED = 128
"""Products of 8-bit floats that are added by the tensor cores themselves before f32 takes over."""

OFFSET = 128
"""What is taken away from an unsigned integer of 8 bits to make it a signed one."""

TILES = (
    Tile(128, 256, 64, 8, 3), Tile(128, 128, 64, 4, 3), Tile(128, 128, 64, 8, 3), Tile(128, 64, 64, 4, 4),
    Tile(64, 128, 64, 4, 4), Tile(64, 64, 64, 4, 5), Tile(64, 32, 128, 4, 4), Tile(32, 64, 128, 4, 4),
    Tile(32, 32, 128, 4, 4),
    Tile(16, 128, 128, 4, 3), Tile(16, 64, 128, 4, 4), Tile(16, 32, 256, 4, 4, sums=2),
    Tile(16, 16, 256, 4, 4, sums=2),
)  # fmt: skip
BYTE_TILES = tuple(
    replace(tile, summed=2 * tile.summed)
    for tile in TILES
    if tile.rows * tile.columns < 128 * 128 or (tile.rows * tile.columns, tile.warps) == (128 * 128, 4)
)
"""Of operands in 8 bits. On an H200 128 x 128 with four warps is the fastest at 4,096 rows and more, by pointers, for
every shape and epilogue that was measured: two programs on each multiprocessor, of which one stores while the other
multiplies."""

SINGLE_TILES = (Tile(64, 64, 32, 4, 3), Tile(64, 32, 32, 4, 3), Tile(32, 32, 32, 4, 3), Tile(16, 32, 64, 4, 3))


def emit_contract(
    kernel: Kernel,
    target: Target,
    schedule: Tile | Stream | Described | None = None,
    packed: Mapping[int, PackedOperand] | None = None,
) -> Emitted:
    """Triton for a kernel with a ContractRoot; with `schedule`, cut as it says, where its form is possible.

    `packed`: operands whose types are already those of a packing that is asked for.
    """
    return _Contract(kernel, target, schedule, packed or {}).emit()


class _Contract:
    def __init__(
        self,
        kernel: Kernel,
        target: Target,
        schedule: Tile | Stream | Described | None,
        packed: Mapping[int, PackedOperand],
    ) -> None:
        root = kernel.root
        if not isinstance(root, ContractRoot):
            raise CompilerError(f"{kernel.name}: not a matrix product")
        self.source, self.target, self.schedule = kernel, target, schedule
        self.packed = dict(packed)
        self.kernel = flatten(kernel, merge=False)
        assert isinstance(self.kernel.root, ContractRoot)
        self.root = self.kernel.root
        self.dims, self.code, self.early = DimTable(), Code(1), Code(1)
        # Whatever their number, axes on which only A depends are rows, and those on which only B depends columns.
        of_a, of_b = free_axes(self.root.a), frozenset().union(*map(free_axes, self.root.rights))
        domain = [a for a in kernel.outputs[0].type.order if a < kernel.domain]
        self.row_axes = [a for a in domain if a not in of_b]
        self.column_axes = [a for a in domain if a in of_b and a not in of_a]
        self.batch_axes = [a for a in domain if a in of_b and a in of_a]
        self.rows, self.columns, self.batch = map(self._extent, (self.row_axes, self.column_axes, self.batch_axes))
        self.summed = self.kernel.axes[self.root.k].extent
        self.taps = [a for a in self.root.taps if self.kernel.axes[a].extent != 1]

    def _extent(self, axes: Sequence[int]) -> Dim:
        return dimension.product(self.kernel.axes[a].extent for a in axes)

    def emit(self) -> Emitted:
        operand = _operand_dtype(self.root, self.target)
        if (operand in (F16, BF16, F32, F8E4M3) and self.root.accumulate == F32) or operand == I8:
            few = isinstance(self.rows, int) and self.rows <= FEW_ROWS
            if isinstance(self.schedule, Stream) or (few and self.schedule is None):
                return self._stream()
            return self._tiles(operand)
        return self._elements()

    def _flops(self) -> Dim:
        summed = self.summed * self._extent(self.taps)
        return self.batch * self.rows * self.columns * summed * 2 * len(self.root.rights)

    def _finish(
        self, tiling: Tiling, warps: int, stages: int, schedule: str, is_heavy: bool = False, functions: str = "",
        blocks: int = 0,
    ) -> Emitted:  # fmt: skip
        made = finish(
            self.source, tiling, warps=warps, stages=stages, schedule=schedule, flops=self._flops(), early=self.early,
            is_heavy=is_heavy, functions=functions, features=self.target.features, blocks=blocks,
        )  # fmt: skip
        return replace(made, packed=self.packed)

    # Tiles.

    def _choose(self, operand: DType) -> Tile:
        """The tile whose modelled time is least: for typical sizes, and for one sample where their number is open."""
        if isinstance(self.schedule, Tile):
            return self.schedule
        count = len(self.root.rights)
        samples = set(dimension.symbols_of(self.kernel.axes[0].extent)) if self.kernel.domain > 1 else set()

        def size(dim: Dim, is_typical: bool) -> int:
            def extent(symbol: Symbol) -> int:
                few = symbol in samples and not is_typical
                return max(symbol.lo, 1) if few else dimension.typical_extent(symbol)

            found = dimension.substitute(dim, extent)
            assert isinstance(found, int)
            return found

        open_sizes = (True, False) if samples else (True,)
        cases = [
            (size(self.rows, n), size(self.columns * count, n), size(self.summed, n), size(self.batch, n))
            for n in open_sizes
        ]
        taps = typical(self._extent(self.taps))
        processors = int(self.target.numbers["multiprocessors"])

        item = operand.itemsize_bytes
        shared = self.target.numbers["shared_bytes"]

        def time(tile: Tile, rows: int, columns: int, summed: int, batch: int) -> float:
            """Cycles, by a model fitted to products measured on an H200 (docs/cuda.md)."""
            tile = self._fitted(tile, operand)
            steps = taps * -(-summed // tile.summed)
            count = batch * -(-rows // tile.rows) * -(-columns // tile.columns)
            step_bytes = (tile.rows + tile.columns) * tile.summed * item
            fit = min(int(shared // (step_bytes * tile.stages)), 16 // tile.warps)
            most = max(min(fit, -(-count // processors)), 1)
            flops = 2 * tile.rows * tile.columns * tile.summed
            # Tensor cores work at full rate on 64 rows or more; f32 goes through the plain units.
            rate = 4096.0 if tile.rows >= 64 else 680.0
            if operand == F32 and "tf32" in self.target.features:
                rate = rate / 2
            elif operand in (I8, F8E4M3):
                rate *= 2
            elif operand == F32:  # the fewer sums a thread has, the more it reads for each from shared memory
                rate = 256 * min(tile.rows * tile.columns / (32 * 32 * tile.warps), 1) ** 0.45
            arrival = (500 + step_bytes / 200) / min(tile.stages - 1, 3)

            def wave(together: int) -> float:
                """Of so many programs on each multiprocessor."""
                # A lone program has nobody to work while it waits, or stores.
                step = max(flops / rate * (together if together > 1 else 1.07), step_bytes / 56 * together, arrival)
                return steps * step + 1600 + tile.rows * tile.columns / 16

            whole, rest = divmod(count, processors * most)
            return whole * wave(most) + (wave(-(-rest // processors)) if rest else 0)

        tiles: tuple[Tile, ...] = {F32: SINGLE_TILES, I8: BYTE_TILES, F8E4M3: BYTE_TILES}.get(operand, TILES)
        if operand not in (I8, F8E4M3) and self._has_wide_epilogue():
            # The epilogue's own values live beside the sums: with more of those, registers spill.
            tiles = tuple(tile for tile in tiles if tile.rows * tile.columns <= MOST_SUMS * 32 * tile.warps)
        tiles = tuple(tile for tile in tiles if tile.columns >= 16 * count)
        return min(tiles, key=lambda tile: math.prod(time(tile, *case) for case in cases))

    def _fitted(self, tile: Tile, operand: DType) -> Tile:
        """A tile whose steps are no longer than what is summed; tap by tap, with few places behind the last channel."""
        if not isinstance(self.summed, int):
            return tile
        channels = self.summed
        least = 32 if operand in (I8, F8E4M3) else 16  # of one instruction
        step = longest = max(min(tile.summed, power_of_two(max(channels, 1))), least)
        if self.taps:
            halves = [longest >> n for n in range(4) if longest >> n >= least]
            step = min(halves, key=lambda size: -(-channels // size) * (size + STEP_COST))
        return replace(tile, summed=step, sums=max(min(tile.sums, step // least), 1))

    def _has_wide_epilogue(self) -> bool:
        """Whether the epilogue has functions of many steps, or reads another tile, such as of a residual.

        A quotient by a constant, of which integers are made, is one step.
        """
        rows, columns = set(self.row_axes), set(self.column_axes)
        return any(
            (node.op in COSTLY and scaled(node, "") is None)
            or (node.op == "load" and rows & free_axes(node) and columns & free_axes(node))
            for store in self.kernel.stores
            for node in walk(store.value)
        )

    def _tiles(self, operand: DType) -> Emitted:
        self._pack()
        if self._suits_descriptors(operand):
            return self._described(operand)
        tile, code, root = self._fitted(self._choose(operand), operand), self.code, self.root
        width = tile.columns // len(root.rights)
        part = tile.summed // tile.sums
        lead = f"{tile.sums}, " if tile.sums > 1 else ""
        down_k, across_k = ("[:, :, None]", "[:, None, :]") if lead else ("[:, None]", "[None, :]")
        tiling = Tiling(code, self.dims)
        renderer = Renderer(self.kernel, self.dims, code)
        down, across = dimension.ceildiv(self.rows, tile.rows), dimension.ceildiv(self.columns, width)
        with tiling.programs(self.batch * down * across) as program:
            down_text, across_text = self.dims.text(down), self.dims.text(across)
            self._number(program, f"{down_text} * {across_text}")
            self._walk(down, across)
            batch = self._batch_axes(renderer)
            m_dim, m = self._span(renderer, "m", "down", tile.rows, self.row_axes, "[:, None]")
            n_dim, n = self._span(renderer, "n", "across", width, self.column_axes, "[None, :]")
            outer = Scope(renderer, batch, [], "(1, 1)")
            sums = self._names("acc")
            kind = register_type(root.accumulate)
            for name in sums:
                code.line(f"{name} = tl.zeros(({lead}{tile.rows}, {width}), {kind})")
            offsets = _Offsets(code, root, sums)
            offsets.begin(f"({lead}{tile.rows}, 1)", f"({lead}1, {width})")
            whole = isinstance(self.summed, int) and self.summed % tile.summed == 0
            with self._steps(tile) as (start, taps):
                places = f"tl.arange(0, {part})"
                if lead:
                    places = f"tl.arange(0, {tile.sums})[:, None] * {part} + {places}[None, :]"
                code.line(f"k = {renderer.index(start)} + {places}")
                mask = None if whole else f"(k < {self.dims.text(self.summed)})"
                left = Scope(
                    renderer, {**m, **taps, root.k: f"k{across_k}"},
                    [m_dim, TileDim(frozenset({root.k}), mask and f"{mask}{across_k}")],
                    f"({lead}{tile.rows}, {part})", outer,
                )  # fmt: skip
                right = Scope(
                    renderer, {**n, **taps, root.k: f"k{down_k}"},
                    [TileDim(frozenset({root.k}), mask and f"{mask}{down_k}"), n_dim],
                    f"({lead}{part}, {width})", outer,
                )  # fmt: skip
                a, *rights = (
                    self._operand(scope, expr, operand)
                    for scope, expr in ((left, root.a), *((right, each) for each in root.rights))
                )
                how = self._how(operand, part)
                for name, b in zip(sums, rights, strict=True):
                    code.line(f"{name} = tl.dot({a}, {b}, {name}, {how})")
                offsets.add(a, rights)
            offsets.give_back()
            for name in sums if lead else ():
                self._fold(name, tile.sums, f"{tile.rows}, {width}")
            offsets.give_back_twice(self.dims.text(self.summed * self._extent(self.taps)))
            self._store(renderer, outer, {**m, **n}, [m_dim, n_dim], f"({tile.rows}, {width})", sums)
        is_heavy = typical(self.summed * self._extent(self.taps)) > FEW_STEPS * tile.summed
        # Two share a multiprocessor where each thread has few sums: registers beyond that would leave one alone.
        is_tight = tile.rows * tile.columns == MOST_SUMS * 32 * tile.warps and tile.warps == 8
        blocks = 2 if is_tight and self._has_wide_epilogue() else 0
        return self._finish(tiling, tile.warps, tile.stages, f"tiles of {tile}", is_heavy, blocks=blocks)

    def _fold(self, name: str, sums: int, shape: str) -> None:
        """Adds the warps' sums of each element, two at a time: a sum along the axis takes six times the barriers."""
        while sums > 1:
            sums //= 2
            split = f"tl.split(tl.permute(tl.reshape({name}, (2, {sums}, {shape})), (1, 2, 3, 0)))"
            self.code.line(f"low, high = {split}")
            self.code.line(f"{name} = low + high")
        self.code.line(f"{name} = tl.reshape({name}, ({shape}))")

    def _how(self, operand: DType, summed: int) -> str:
        """The rest of the arguments of tl.dot, for so many summed elements at a time."""
        if operand == I8:
            return "out_dtype=tl.int32"
        if operand == F8E4M3:
            return f"max_num_imprecise_acc={min(summed, PROMOTED)}"
        precision = "ieee" if operand == F32 and "tf32" not in self.target.features else "tf32"
        return f'input_precision="{precision}"'

    @contextmanager
    def _steps(self, tile: Tile) -> Iterator[tuple[str, dict[int, str]]]:
        """The loop over what is summed; gives the first place of a step, and the indices of the taps."""
        code, summed = self.code, self.dims.text(self.summed)
        if not self.taps:
            with code.block(f"for at in range(0, {summed}, {tile.summed})"):
                yield "at", {}
            return
        steps = self.dims.text(dimension.ceildiv(self.summed, tile.summed))
        with code.block(f"for step in range(0, {self.dims.text(self._extent(self.taps))} * {steps})"):
            code.line(f"tap = step // {steps}")
            code.line(f"at = step % {steps} * {tile.summed}")
            yield "at", self._indices(self.taps, "tap")

    def _number(self, program: str, tiles: str) -> None:
        """Writes which tile of which sample of the batch a program makes."""
        if self.batch == 1:  # without a bound that is known, places stay numbers of 32 bits
            self.code.line(f"sample = 0 * {program}")
            self.code.line(f"tile = {program}")
            return
        self.code.line(f"tiles = {tiles}")
        self.code.line(f"sample = {program} // tiles")
        self.code.line(f"tile = {program} % tiles")

    def _walk(self, down: Dim, across: Dim) -> None:
        """Writes which rows and columns of tiles a tile is, in groups of rows."""
        code, down_text, across_text = self.code, self.dims.text(down), self.dims.text(across)
        if down == 1:
            code.line("down = 0 * tile")
            code.line("across = tile")
            return
        code.line(f"first = tile // ({GROUP} * {across_text}) * {GROUP}")
        code.line(f"rows_here = tl.minimum({down_text} - first, {GROUP})")
        code.line(f"inside = tile % ({GROUP} * {across_text})")
        code.line("down = first + inside % rows_here")
        code.line("across = inside // rows_here")

    # Tiles by descriptors.

    def _suits_descriptors(self, operand: DType) -> bool:
        """Whether the tensor-copy engine is to bring tiles: of two plain matrices, where programs have several each."""
        if isinstance(self.schedule, Described):
            return self._are_matrices(operand)
        tiles = -(-typical(self.rows) // DESCRIBED.rows) * -(-typical(self.columns) // DESCRIBED.columns)
        return (
            self.schedule is None
            and operand not in (I8, F8E4M3)  # slower for every shape in 8 bits that was measured
            and "tensor_copies" in self.target.features
            and tiles >= LEAST_DESCRIBED * self.target.numbers["multiprocessors"]
            and typical(self.summed) * operand.itemsize_bytes >= 8 * DESCRIBED.summed
            and not self._has_wide_epilogue()
            and self._are_matrices(operand)
        )

    def _are_matrices(self, operand: DType) -> bool:
        """Whether both operands are read where they lie, row after row, what is summed innermost, in whole lines."""
        root, summed = self.root, self.summed
        if operand == F32 or len(root.rights) > 1 or self.batch != 1 or not isinstance(summed, int):
            return False
        if summed * operand.itemsize_bytes % DESCRIBED_BYTES or not summed:
            return False
        for expr, axes in ((root.a, self.row_axes), (root.b, self.column_axes)):
            load = _uncast(expr, operand)
            is_as_multiplied = load.dtype == operand or (operand == F8E4M3 and load.dtype in FLOAT8)
            if load.op != "load" or not is_as_multiplied or not self.kernel.inputs[load.payload].is_aligned:
                return False
            wanted: dict[int, Dim] = {root.k: 1}
            stride: Dim = summed
            for number in reversed([a for a in axes if self.kernel.axes[a].extent != 1]):
                wanted[number] = stride
                stride = stride * self.kernel.axes[number].extent
            found = affine_of(load.args[0])
            if found.rest or found.constant != 0 or {a: c for a, c in found.coefficients.items() if c != 0} != wanted:
                return False
        return True

    def _described(self, operand: DType) -> Emitted:
        """Each program takes one tile after the other, while the next ones arrive."""
        tile, code, root = DESCRIBED, self.code, self.root
        if operand.itemsize_bytes == 1:
            tile = replace(tile, summed=2 * tile.summed, warps=8 if operand == F8E4M3 else tile.warps)
        tiling = Tiling(code, self.dims)
        renderer = Renderer(self.kernel, self.dims, code)
        down, across = dimension.ceildiv(self.rows, tile.rows), dimension.ceildiv(self.columns, tile.columns)
        processors = int(self.target.numbers["multiprocessors"])
        summed = self.dims.text(self.summed)
        sides = (("left", root.a, self.rows, tile.rows), ("right", root.b, self.columns, tile.columns))
        for name, expr, extent, size in sides:
            load = _uncast(expr, operand)
            held_as = f".to(tl.pointer_type({FLOAT8[load.dtype]}))" if load.dtype in FLOAT8 else ""
            shape, block = f"[{self.dims.text(extent)}, {summed}]", f"[{size}, {tile.summed}]"
            code.line(f"{name} = tl.make_tensor_descriptor(p{load.payload}{held_as}, {shape}, [{summed}, 1], {block})")
        tiling.total = dimension.minimum(down * across, processors)
        with code.block(f"for tile in tl.range(program, {self.dims.text(down * across)}, {processors}, flatten=True)"):
            self._walk(down, across)
            m_dim, m = self._span(renderer, "m", "down", tile.rows, self.row_axes, "[:, None]")
            n_dim, n = self._span(renderer, "n", "across", tile.columns, self.column_axes, "[None, :]")
            code.line(f"acc = tl.zeros(({tile.rows}, {tile.columns}), {register_type(root.accumulate)})")
            how = f", {self._how(operand, tile.summed)}" if operand.itemsize_bytes == 1 else ""
            with code.block(f"for at in tl.range(0, {summed}, {tile.summed})"):
                code.line(f"rows = left.load([tl.cast(down * {tile.rows}, tl.int32), tl.cast(at, tl.int32)])")
                code.line(f"columns = right.load([tl.cast(across * {tile.columns}, tl.int32), tl.cast(at, tl.int32)])")
                code.line(f"acc = tl.dot(rows, columns.T, acc{how})")
            outer = Scope(renderer, {}, [], "(1, 1)")
            self._store(renderer, outer, {**m, **n}, [m_dim, n_dim], f"({tile.rows}, {tile.columns})", ["acc"])
        return self._finish(tiling, tile.warps, tile.stages, f"tiles of {tile}, by descriptors", is_heavy=True)

    def _names(self, name: str) -> list[str]:
        """A name for each right operand."""
        return [name if not number else f"{name}_{number}" for number in range(len(self.root.rights))]

    def _operand(self, scope: Scope, expr: Expr, operand: DType) -> str:
        inner = _uncast(expr, operand)
        held = inner.dtype if operand in (I8, F8E4M3) else operand
        text = scope.product_operand(inner, held)
        if held == U8:
            text = scope.define(f"({text} ^ {OFFSET}).to(tl.int8, bitcast=True)")
        is_read_there = inner.op == "load" and all(d.axes & free_axes(inner.args[0]) for d in scope.dims)
        if is_read_there and (operand != I8 or all(e.dtype == I8 for e in (self.root.a, *self.root.rights))):
            return text
        text = scope.define(f"tl.broadcast_to({text}, {scope.shape})")
        masks = [d.mask for d in scope.dims if d.mask is not None]
        # What is computed, or read at another place, is not 0 behind the end, nor is what an offset was taken from.
        return scope.define(f"tl.where({' & '.join(masks)}, {text}, 0).to({text}.dtype)") if masks else text

    def _batch_axes(self, renderer: Renderer) -> dict[int, str]:
        return self._indices(self.batch_axes, renderer.index("sample"))

    def _indices(self, axes: Sequence[int], flat: str) -> dict[int, str]:
        """The indices of axes from their common position, the last axis innermost; writes them."""
        found: dict[int, str] = {}
        rest, wanted = flat, [a for a in axes if self.kernel.axes[a].extent != 1]
        for position, number in reversed(list(enumerate(wanted))):
            extent = self.dims.text(self.kernel.axes[number].extent)
            if position == 0:
                found[number] = rest
                break
            self.code.line(f"axis{number} = {rest} % {extent}")
            self.code.line(f"rest{number} = {rest} // {extent}")
            found[number], rest = f"axis{number}", f"rest{number}"
        return found

    def _span(
        self, renderer: Renderer, name: str, tile: str, size: int, axes: Sequence[int], turn: str
    ) -> tuple[TileDim, dict[int, str]]:
        """Writes the positions of a tile along axes, and which are inside; also the axes' indices."""
        extent = self._extent(axes)
        self.code.line(f"{name} = ({renderer.index(tile)} * {size} + tl.arange(0, {size})){turn}")
        mask = None
        if not (isinstance(extent, int) and extent > 0 and extent % size == 0):
            mask = f"{name}_inside"
            self.code.line(f"{mask} = {name} < {self.dims.text(extent)}")
        return TileDim(frozenset(axes), mask), self._indices(axes, name)

    def _store(
        self, renderer: Renderer, outer: Scope, places: Mapping[int, str], dims: list[TileDim], shape: str,
        sums: Sequence[str],
    ) -> None:  # fmt: skip
        """The epilogue: every store of the kernel, of the tile's sums for each right operand."""
        scope = Scope(renderer, places, dims, shape, outer, roots=dict(enumerate(sums)))
        for store in self.kernel.stores:
            scope.store(store)

    # Streams.

    def _stream(self) -> Emitted:
        """Few rows: a program reads some columns of the other matrix and sums each against every row."""
        root, code = self.root, self.code
        assert isinstance(self.rows, int)
        self._pack()
        root = self.root
        along_k = self._runs_along_k()
        stream = self.schedule if isinstance(self.schedule, Stream) else self._choose_stream(along_k)
        width, piece = max(stream.columns // len(root.rights), 1), stream.summed
        whole = isinstance(self.summed, int) and self.summed > 0 and self.summed % piece == 0
        single = isinstance(self.summed, int) and self.summed <= piece
        tiling = Tiling(self.early, self.dims)
        renderer = Renderer(self.kernel, self.dims, self.early)
        across = dimension.ceildiv(self.columns, width)
        place, turned = ("[:, None]", "[None, :]") if along_k else ("[None, :]", "[:, None]")
        shape = f"({width}, {piece})" if along_k else f"({piece}, {width})"
        summed_along = 1 if along_k else 0
        constant = all(map(self._is_weight, root.rights))
        kind = register_type(root.accumulate)
        with tiling.programs(self.batch * across) as program:
            early = self.early
            early.line(f"sample = {program} // {self.dims.text(across)}")
            early.line(f"across = {program} % {self.dims.text(across)}")
            body, self.code = self.code, early
            batch = self._batch_axes(renderer)
            n_dim, n = self._span(renderer, "n", "across", width, self.column_axes, place)
            self.code = body
            outer = Scope(renderer, batch, [], "(1, 1)")

            def weights(start: str) -> tuple[Scope, list[str]]:
                span = f"tl.arange(0, {piece})"
                renderer.code.line(f"k = ({renderer.index(span) if start == '0' else f'{start} + {span}'}){turned}")
                mask = None
                if not whole:
                    renderer.code.line(f"k_inside = k < {self.dims.text(self.summed)}")
                    mask = "k_inside"
                k_dim = TileDim(frozenset({root.k}), mask)
                dims = [n_dim, k_dim] if along_k else [k_dim, n_dim]
                right = Scope(renderer, {**n, root.k: "k"}, dims, shape, outer)
                return right, [right.value(cast(each, root.accumulate)) for each in root.rights]

            def sums(right: Scope, weights: Sequence[str], totals: Sequence[Sequence[str]], first: bool) -> None:
                for m, of_row in enumerate(totals):
                    row = Scope(renderer, self._row_places(m), right.dims, shape, right)
                    a = row.value(cast(root.a, root.accumulate))
                    mask = None if self._plain(root) else right.dims[summed_along].mask
                    for total, b in zip(of_row, weights, strict=True):
                        product = f"{b} * {a}" if mask is None else f"tl.where({mask}, {b} * {a}, 0)"
                        renderer.code.line(f"{total} = {product}" if first else f"{total} += {product}")

            totals = [self._names(f"sum{m}") for m in range(self.rows)]
            if constant and single:
                begun = weights("0")
                renderer.code = code
                sums(*begun, totals, True)
            else:
                renderer.code = code
                if single:
                    sums(*weights("0"), totals, True)
                else:
                    for total in (total for of_row in totals for total in of_row):
                        code.line(f"{total} = tl.zeros({shape}, {kind})")
                    with code.block(f"for at in range(0, {self.dims.text(self.summed)}, {piece})"):
                        sums(*weights("at"), totals, False)
            for m, of_row in enumerate(totals):
                names = self._names(f"row{m}")
                for name, total in zip(names, of_row, strict=True):
                    code.line(
                        f"{name} = tl.sum({total} + tl.zeros({shape}, {kind}), axis={summed_along}, keep_dims=True)"
                    )
                one = [n_dim, TileDim(frozenset(), None)] if along_k else [TileDim(frozenset(), None), n_dim]
                size = f"({width}, 1)" if along_k else f"(1, {width})"
                self._store(renderer, outer, {**n, **self._row_places(m)}, one, size, names)
        tiling.code = code
        return self._finish(tiling, stream.warps, 3, f"stream of {stream}{'' if along_k else ', columns together'}")

    def _choose_stream(self, along_k: bool) -> Stream:
        """Enough programs for every multiprocessor, each with as many bytes under way as registers hold."""
        count = len(self.root.rights)
        summed, columns, batch = map(typical, (self.summed, self.columns * count, self.batch))
        processors = int(self.target.numbers["multiprocessors"])
        if along_k:
            piece = min(power_of_two(max(summed, 1)), 2048)
            width = max(STREAM_ELEMENTS // piece, 1)
            while width > 1 and columns * batch // width < 3 * processors:
                width //= 2
        else:
            width = 64
            while width > 16 and columns * batch // width < processors:
                width //= 2
            piece = min(power_of_two(max(summed, 1)), STREAM_ELEMENTS // width)
        width = min(width, power_of_two(max(columns, 1)))
        return Stream(width, piece, min(max(width * piece // 1024, 2), 8))

    def _pack(self) -> None:
        """Asks for weights with what is summed innermost, so that neighbours in memory are summed by neighbours."""
        original = self.source.root
        assert isinstance(original, ContractRoot)
        rights = [self._packing(load, flat) for load, flat in zip(original.rights, self.root.rights, strict=True)]
        packed = [packing for packing in rights if packing is not None]
        if len(packed) < len(rights) or len({number for number, _, _ in packed}) < len(packed):
            return
        self.packed.update((number, operand) for number, operand, _ in packed)
        b, *others = (load for _, _, load in packed)
        self.root = replace(self.root, b=b, others=tuple(others))
        self.kernel = replace(self.kernel, root=self.root)

    def _packing(self, load: Expr, flat: Expr) -> tuple[int, PackedOperand, Expr] | None:
        """The number of a weight, how it is packed, and the load of that; None where it stays as it is.

        `load` is the right operand over logical indices, `flat` over offsets.
        """
        root = self.root
        batch = [a for a in self.batch_axes if a in free_axes(load)]
        wanted = [*(a for a in (*batch, *self.column_axes) if self.kernel.axes[a].extent != 1), root.k]
        shape = tuple(self.kernel.axes[a].extent for a in wanted)
        others = [root.a, *(store.value for store in self.kernel.stores)]
        if any(node.op == "load" and node.payload == load.payload for other in others for node in walk(other)):
            return None
        if load.op != "load" or not self._is_weight(flat) or self._runs_along_k() or load.payload in self.packed:
            return None
        type_ = self.source.inputs[load.payload].type
        if len(load.args) != type_.rank or any(a.op not in ("axis", "const") for a in load.args):
            return None
        if not all(isinstance(extent, int) for extent in shape):
            return None
        coefficients = tuple(
            tuple(int(index.op == "axis" and index.payload == a) for a in wanted) for index in load.args
        )
        sizes = tuple(extent for extent in shape if isinstance(extent, int))
        step = RecipeStep(RecipeOp.PACK, shape=sizes, coefficients=coefficients)
        offset, stride = const(0, I64), 1
        for number, extent in reversed(list(zip(wanted, sizes, strict=True))):
            offset = offset + axis(number) * stride
            stride *= extent
        packed = PackedOperand((step,), type_.dtype.number, sizes)
        return load.payload, packed, Expr("load", (offset,), load.dtype, load.payload)

    def _row_places(self, row: int) -> dict[int, str]:
        """The indices of the row axes at one of few rows."""
        found: dict[int, str] = {}
        for number in reversed(self.row_axes):
            extent = self.kernel.axes[number].extent
            assert isinstance(extent, int)
            found[number] = str(row % extent)
            row //= extent
        return found

    def _plain(self, root: ContractRoot) -> bool:
        """Whether both operands are loads, which give 0 behind the end."""
        return all(each.op == "load" for each in (root.a, *root.rights))

    def _runs_along_k(self) -> bool:
        """Whether neighbours in memory of the other matrix are elements that are summed."""
        loads = [node for right in self.root.rights for node in walk(right) if node.op == "load"]
        offsets = [affine_of(node.args[0]) for node in loads]
        return all(offset.coefficients.get(a) != 1 for offset in offsets for a in self.column_axes)

    def _is_weight(self, expr: Expr) -> bool:
        loads = [node for node in walk(expr) if node.op == "load"]
        return bool(loads) and all(self.kernel.inputs[node.payload].constant for node in loads)

    # Everything else.

    def _elements(self) -> Emitted:
        """Any type: an outer product for each summed element."""
        root, code = self.root, self.code
        size = 16
        tiling = Tiling(code, self.dims)
        renderer = Renderer(self.kernel, self.dims, code)
        down, across = dimension.ceildiv(self.rows, size), dimension.ceildiv(self.columns, size)
        kind = register_type(root.accumulate)
        with tiling.programs(self.batch * down * across) as program:
            self._number(program, f"{self.dims.text(down)} * {self.dims.text(across)}")
            code.line(f"down = tile // {self.dims.text(across)}")
            code.line(f"across = tile % {self.dims.text(across)}")
            batch = self._batch_axes(renderer)
            m_dim, m = self._span(renderer, "m", "down", size, self.row_axes, "[:, None]")
            n_dim, n = self._span(renderer, "n", "across", size, self.column_axes, "[None, :]")
            outer = Scope(renderer, batch, [], "(1, 1)")
            sums = self._names("acc")
            for name in sums:
                code.line(f"{name} = tl.zeros(({size}, {size}), {kind})")
            with code.block(f"for k in range(0, {self.dims.text(self.summed)})"):
                inner = Scope(renderer, {**m, **n, root.k: "k"}, [m_dim, n_dim], f"({size}, {size})", outer)
                a, *rights = (inner.value(cast(expr, root.accumulate)) for expr in (root.a, *root.rights))
                for name, b in zip(sums, rights, strict=True):
                    code.line(f"{name} += ({a} * {b}).to({kind})")
            self._store(renderer, outer, {**m, **n}, [m_dim, n_dim], f"({size}, {size})", sums)
        return self._finish(tiling, 4, 1, f"elements, tiles of {size} x {size}")


def _uncast(expr: Expr, operand: DType) -> Expr:
    """An operand as it lies in memory, where it is only widened for the sum."""
    return expr.args[0] if expr.op == "cast" and expr.dtype == F32 and expr.args[0].dtype == operand else expr


def _operand_dtype(root: ContractRoot, target: Target) -> DType:
    """The type that all operands are in, or are rounded to; else the accumulator's.

    I8 stands for both integers of 8 bits, F8E4M3 for both floats of 8 bits, where the target multiplies these.
    """

    def of(expr: Expr) -> DType:
        while expr.op == "cast" and expr.dtype not in (F16, BF16, *FLOAT8) and expr.args[0].dtype.is_float:
            expr = expr.args[0]
        return expr.dtype

    found = {of(each) for each in (root.a, *root.rights)}
    if found <= {I8, U8} and root.accumulate == I32:
        return I8
    if found <= set(FLOAT8):
        return F8E4M3 if "float8" in target.features else F16
    common = found.pop()
    return common if not found and register_dtype(common) == F32 else root.accumulate


class _Offsets:
    """The sums of operands whose other operand had an offset taken from it: what is to be given back."""

    def __init__(self, code: Code, root: ContractRoot, sums: Sequence[str]) -> None:
        self.code, self.sums = code, sums
        self.of_a = OFFSET if root.a.dtype == U8 else 0
        self.of_rights = [OFFSET if right.dtype == U8 else 0 for right in root.rights]

    def begin(self, rows: str, columns: str) -> None:
        """Before the first step; the shapes of sums along rows and along columns."""
        if any(self.of_rights):
            self.code.line(f"rows_sum = tl.zeros({rows}, tl.int32)")
        for name in self.sums if self.of_a else ():
            self.code.line(f"{name}_columns = tl.zeros({columns}, tl.int32)")

    def add(self, a: str, rights: Sequence[str]) -> None:
        """In each step."""
        if any(self.of_rights):
            self.code.line(f"rows_sum += tl.sum({a}.to(tl.int32), axis=-1, keep_dims=True)")
        for name, b in zip(self.sums, rights, strict=True) if self.of_a else ():
            self.code.line(f"{name}_columns += tl.sum({b}.to(tl.int32), axis=-2, keep_dims=True)")

    def give_back(self) -> None:
        """Behind the last step. With several sums of an element, each has its share."""
        for name, offset in zip(self.sums, self.of_rights, strict=True):
            if self.of_a:
                self.code.line(f"{name} += {self.of_a} * {name}_columns")
            if offset:
                self.code.line(f"{name} += {offset} * rows_sum")

    def give_back_twice(self, count: str) -> None:
        """What was taken from both, for each of so many summed elements."""
        for name, offset in zip(self.sums, self.of_rights, strict=True):
            if self.of_a and offset:
                self.code.line(f"{name} += {self.of_a * offset} * ({count})")
