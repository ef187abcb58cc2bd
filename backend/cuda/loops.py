"""Kernels that are loops: MAP, VIEW, GATHER, REDUCE and ROW, one tile of elements a program.

Without reductions a tile is a run of the output's elements in memory order, or a square of two axes where elements
are read in another order than they are written. With reductions a tile has one dimension of kept indices and one of
a row: a row that fits is read once and stays in registers; a longer one is walked in pieces, once for each stage
of reductions that need one another. Reductions over other axes than the row's (pooling windows) are serial loops.

Invariant: the order of every reduction follows from shapes alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from aot import dims as dimension
from aot.backend.affine import affine_of
from aot.backend.base import Emitted
from aot.backend.cuda.code import Code, DimTable, register_dtype, register_type
from aot.backend.cuda.frame import Tiling, finish, power_of_two
from aot.backend.cuda.render import Renderer, Scope, TileDim
from aot.backend.nest import (
    StoreGroup,
    assumed_extent,
    axes_of_reduce,
    find_turn,
    flatten,
    flops_of,
    free_axes,
    loads_of,
    reduces_of,
    rows_of,
    store_groups,
    unify_rows,
)
from aot.dims import Dim
from aot.dtypes import I64, DType
from aot.errors import CompilerError
from aot.expr import Expr, cast, const, walk
from aot.kernel import Kernel
from aot.target import Target

ELEMENTS = 1024
"""Elements of a tile without reductions, where there are enough of them for every multiprocessor."""

LONGEST_ROW = 16384
"""Elements of a row that stay in registers."""

PIECE = 2048
UNROLLED = 16
"""Steps of a serial loop that are written one after the other."""

TURN = 64


def emit_loops(kernel: Kernel, target: Target) -> Emitted:
    """Triton for a kernel without a root."""
    return _Emitter(kernel, target).emit()


@dataclass(frozen=True)
class _Row:
    """The dimension of a tile along a row: its axes, how many elements, in how large pieces."""

    axes: tuple[int, ...]
    extent: Dim
    piece: int

    @property
    def is_whole(self) -> bool:
        return isinstance(self.extent, int) and self.extent <= self.piece


class _Emitter:
    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.source = kernel
        self.target = target
        self.kernel = flatten(kernel)
        self.dims = DimTable()
        self.code = Code(1)
        self.notes: list[str] = []
        self.warps = 1
        self._ids = 0

    def emit(self) -> Emitted:
        groups = store_groups(self.kernel, self.source.outputs[0].type.order)
        tiling = Tiling(self.code, self.dims, len(groups))
        for group in groups:
            rows = rows_of(group)
            unified = unify_rows(replace(self.kernel, stores=(*group.stores, *group.extra)), rows)
            here = len(group.stores)
            group = StoreGroup(group.axes, list(unified.stores[:here]), list(unified.stores[here:]))
            renderer = Renderer(unified, self.dims, self.code)
            if reduces_of(group.values):
                self._reduced(tiling, renderer, group, rows)
            else:
                self._elements(tiling, renderer, group)
        return finish(
            self.source, tiling, warps=self.warps, stages=1, schedule="; ".join(self.notes),
            flops=flops_of(self.kernel), features=self.target.features,
        )  # fmt: skip

    def _extent(self, axes: Sequence[int]) -> Dim:
        return dimension.product(self.kernel.axes[a].extent for a in axes)

    def _count(self, axes: Sequence[int]) -> int:
        """How many indices axes have together; extents that are not known count as a typical one."""
        return math.prod(assumed_extent(self.kernel, a) for a in axes)

    def _indices(self, axes: Sequence[int], flat: str) -> dict[int, str]:
        """The indices of axes from a flat position, the last axis innermost; writes them."""
        found: dict[int, str] = {}
        rest = flat
        for position, number in reversed(list(enumerate(axes))):
            extent = self.dims.text(self.kernel.axes[number].extent)
            if position == 0:
                found[number] = rest
                break
            name = f"a{number}_{self.code_id()}"
            left = f"r{number}_{self.code_id()}"
            self.code.line(f"{name} = {rest} % {extent}")
            self.code.line(f"{left} = {rest} // {extent}")
            found[number], rest = name, left
        return found

    def code_id(self) -> int:
        """A fresh number for names."""
        self._ids += 1
        return self._ids

    # Without reductions.

    def _elements(self, tiling: Tiling, renderer: Renderer, group: StoreGroup) -> None:
        turn = find_turn(self.kernel, group.axes, TURN)
        if turn is not None:
            self._turned(tiling, renderer, group, turn.write, turn.read)
            return
        axes = group.axes
        total = self._extent(axes)
        count = self._count(axes)
        block = ELEMENTS
        while block > 128 and count // block < 2 * int(self.target.numbers["multiprocessors"]):
            block //= 2
        self.warps = max(self.warps, block // 256, 1)
        self.notes.append(f"{block} elements")
        with tiling.programs(dimension.ceildiv(total, block)) as program:
            flat = f"i_{self.code_id()}"
            self.code.line(f"{flat} = {renderer.index(program)} * {block} + tl.arange(0, {block})")
            mask = None
            if not (isinstance(total, int) and total % block == 0):
                mask = f"m_{self.code_id()}"
                self.code.line(f"{mask} = {flat} < {self.dims.text(total)}")
            places = self._indices(axes, flat)
            scope = Scope(renderer, places, [TileDim(frozenset(axes), mask)], f"({block},)")
            self._serial(scope, group.values)
            for store in group.stores:
                scope.store(store)

    def _turned(self, tiling: Tiling, renderer: Renderer, group: StoreGroup, write: int, read: int) -> None:
        """A square: elements are read along one axis and written along another."""
        outer = [a for a in group.axes if a not in (write, read)]
        self.notes.append(f"tiles of {TURN} x {TURN}")
        self.warps = max(self.warps, 4)
        counts = [self._extent(outer)]
        counts += [dimension.ceildiv(self.kernel.axes[a].extent, TURN) for a in (read, write)]
        with tiling.programs(dimension.product(counts)) as program:
            along, across, rest = (f"{name}_{self.code_id()}" for name in ("w", "r", "u"))
            columns, rows = self.dims.text(counts[2]), self.dims.text(counts[1])
            index = renderer.index(program)
            span = f"tl.arange(0, {TURN})"
            self.code.line(f"{along} = ({index} % {columns} * {TURN} + {span})[None, :]")
            self.code.line(f"{across} = ({index} // {columns} % {rows} * {TURN} + {span})[:, None]")
            self.code.line(f"{rest} = {index} // ({columns} * {rows})")
            dims = []
            for axis, name in ((read, across), (write, along)):
                extent, mask = self.kernel.axes[axis].extent, None
                if not (isinstance(extent, int) and extent % TURN == 0):
                    mask = f"m_{self.code_id()}"
                    self.code.line(f"{mask} = {name} < {self.dims.text(extent)}")
                dims.append(TileDim(frozenset({axis}), mask))
            places = {**self._indices(outer, rest), write: along, read: across}
            scope = Scope(renderer, places, dims, f"({TURN}, {TURN})")
            self._serial(scope, group.values)
            for store in group.stores:
                scope.store(store)

    # With reductions.

    def _reduced(self, tiling: Tiling, renderer: Renderer, group: StoreGroup, rows: Sequence[int]) -> None:
        kept = [a for a in group.axes if a not in rows]
        row = self._row(group, kept, rows)
        if row is None:  # every reduction is a serial loop: a window
            self._elements(tiling, renderer, StoreGroup(group.axes, [*group.stores, *group.extra]))
            return
        if row.axes != tuple(rows):  # no reduction runs over the row: every element of it reduces for itself
            kept = list(group.axes)
        across = self._runs_across(group, kept, row)
        units = 32 if self._count(kept) >= 32 * 16 else 16
        if across:
            row = replace(row, piece=min(row.piece, 64 if not row.is_whole else max(row.piece, 1)))
            if row.piece * units > LONGEST_ROW:
                row = replace(row, piece=64)
            warps = min(max(units * row.piece // 512, 1), 8)
        else:
            units, warps = self._spread(kept, row)
        self.warps = max(self.warps, warps)
        self.notes.append(f"{units} x {row.piece} of a row" + ("" if row.is_whole else ", in pieces"))
        with tiling.programs(dimension.ceildiv(self._extent(kept), units)) as program:
            _RowEmitter(self, renderer, group, kept, row, units).emit(program)

    def _spread(self, kept: Sequence[int], row: _Row) -> tuple[int, int]:
        """Rows of a program whose neighbours in memory are elements of the row, and its warps."""
        count = self._count(kept)
        if row.is_whole and row.piece < 256:
            units = min(512 // row.piece, power_of_two(max(count // 512, 1)))
            return units, max(units * row.piece // 512, 1)
        # Measured on an H200: two rows of about a thousand elements where there are many, one in more threads of few.
        if row.is_whole and row.piece <= 1024 and count >= 16 * int(self.target.numbers["multiprocessors"]):
            return 2, max(2 * row.piece // 512, 1)
        return 1, min(max(row.piece // 256, 1), 8)

    def _row(self, group: StoreGroup, kept: Sequence[int], rows: Sequence[int]) -> _Row | None:
        """The axes that a tile runs along beside the kept ones, or None."""
        overs: dict[tuple[int, ...], int] = {}
        for node in reduces_of(group.values):
            if free_axes(node) <= frozenset(kept) and axes_of_reduce(node):
                overs[axes_of_reduce(node)] = self._count(axes_of_reduce(node))
        chosen = tuple(rows)
        if chosen not in overs:
            chosen = max(overs, key=lambda over: overs[over], default=())
            if not rows and overs and overs[chosen] < 32 and self._count(kept) >= 4096:
                return None
        if not chosen:
            chosen = tuple(rows)
        if not chosen:
            return None
        extent = self._extent(chosen)
        whole = isinstance(extent, int) and extent <= LONGEST_ROW
        return _Row(chosen, extent, power_of_two(max(extent, 1)) if whole and isinstance(extent, int) else PIECE)

    def _runs_across(self, group: StoreGroup, kept: Sequence[int], row: _Row) -> bool:
        """Whether neighbours in memory are kept indices rather than elements of the row."""
        along = across = 0
        for node in reduces_of(group.values):
            for load in loads_of(node.args):
                offset = affine_of(load.args[0])
                if any(offset.coefficients.get(a) == 1 for a in row.axes):
                    along += self._count(row.axes)
                elif kept and any(offset.coefficients.get(a) == 1 for a in kept):
                    across += self._count(row.axes)
        return across > along

    def _serial(self, scope: Scope, values: Sequence[Expr]) -> None:
        """Computes the reductions in some values that can be computed here, by serial loops."""
        for node in reduces_of(values):
            if not scope.is_known(node) and all(map(scope.has_axis, free_axes(node))):
                serial_reduction(scope, node)


class _RowEmitter:
    """One program: `units` kept indices times a row."""

    def __init__(
        self, emitter: _Emitter, renderer: Renderer, group: StoreGroup, kept: Sequence[int], row: _Row, units: int
    ) -> None:
        self.emitter, self.renderer, self.group = emitter, renderer, group
        self.kept, self.row, self.units = kept, row, units
        self.code, self.dims = emitter.code, emitter.dims
        self.shape = f"({units}, {row.piece})"

    def emit(self, program: str) -> None:
        emitter, code = self.emitter, self.code
        total = emitter._extent(self.kept)
        flat = f"u_{emitter.code_id()}"
        code.line(f"{flat} = ({self.renderer.index(program)} * {self.units} + tl.arange(0, {self.units}))[:, None]")
        mask = None
        if not (isinstance(total, int) and total % self.units == 0):
            mask = f"m_{emitter.code_id()}"
            code.line(f"{mask} = {flat} < {self.dims.text(total)}")
        self.unit_dim = TileDim(frozenset(self.kept), mask)
        places = emitter._indices(self.kept, flat)
        scope = Scope(self.renderer, places, [self.unit_dim], f"({self.units}, 1)")
        if self.row.is_whole:
            inner = self._enter(scope, "0")
            self._stages(scope, lambda nodes: self._whole(scope, inner, nodes))
            for store in self.group.extra:
                scope.store(store)
            emitter._serial(inner, self.group.values)
            for store in self.group.stores:
                (inner if self._in_row(store.indices[0]) else scope).store(store)
            return
        self._stages(scope, lambda nodes: self._pieces(scope, nodes))
        for store in (*self.group.extra, *(s for s in self.group.stores if not self._in_row(s.indices[0]))):
            scope.store(store)
        stores = [store for store in self.group.stores if self._in_row(store.indices[0])]
        if stores:
            with self._loop() as start:
                inner = self._enter(scope, start)
                emitter._serial(inner, [store.value for store in stores])
                for store in stores:
                    inner.store(store)

    def _in_row(self, expr: Expr) -> bool:
        return bool(free_axes(expr) & frozenset(self.row.axes))

    @contextmanager
    def _loop(self) -> Iterator[str]:
        """A loop over the pieces of the row; gives the name of the first place of one."""
        name = f"at_{self.emitter.code_id()}"
        with self.code.block(f"for {name} in range(0, {self.dims.text(self.row.extent)}, {self.row.piece})"):
            yield name

    def _enter(self, scope: Scope, start: str) -> Scope:
        """The scope of a piece of the row."""
        emitter, code, row = self.emitter, self.code, self.row
        flat = f"c_{emitter.code_id()}"
        span = f"tl.arange(0, {row.piece})[None, :]"
        code.line(f"{flat} = {self.renderer.index(span if start == '0' else f'({start} + {span})')}")
        mask = None
        if not (isinstance(row.extent, int) and row.extent and row.extent % row.piece == 0):
            mask = f"m_{emitter.code_id()}"
            code.line(f"{mask} = {flat} < {self.dims.text(row.extent)}")
        places = emitter._indices(row.axes, flat)
        return scope.inner(places, dims=[self.unit_dim, TileDim(frozenset(row.axes), mask)], shape=self.shape)

    def _stages(self, scope: Scope, write: Callable[[Sequence[Expr]], None]) -> None:
        """Groups the reductions over the row by what needs what, and writes one group after the other."""
        levels: dict[Expr, int] = {}
        stages: dict[int, list[Expr]] = {}
        nodes = [n for n in reduces_of(self.group.values) if free_axes(n) <= frozenset(self.kept)]
        for node in nodes:
            inside = [levels[n] for n in walk(node.args[0]) if n in levels]
            levels[node] = 1 + max(inside, default=-1)
            stages.setdefault(levels[node], []).append(node)
        for level in sorted(stages):
            along = [node for node in stages[level] if axes_of_reduce(node) == self.row.axes]
            for node in stages[level]:
                if node not in along:
                    if axes_of_reduce(node):
                        serial_reduction(scope, node)
                    else:
                        scope.bind(node, scope.value(_of_one(node)))
            if along:
                write(along)

    def _whole(self, scope: Scope, inner: Scope, nodes: Sequence[Expr]) -> None:
        for node in nodes:
            self.emitter._serial(inner, [node.args[0]])
            reduction = Reduction(node)
            value = self._masked(inner, reduction)
            scope.bind(node, self._folded(scope, reduction, value, self._positions(inner, reduction)))

    def _pieces(self, scope: Scope, nodes: Sequence[Expr]) -> None:
        reductions = [Reduction(node) for node in nodes]
        totals = [f"acc_{self.emitter.code_id()}" for _ in nodes]
        for reduction, total in zip(reductions, totals, strict=True):
            self.code.line(f"{total} = tl.full({self.shape}, {reduction.identity_number}, {reduction.type})")
            if reduction.is_arg:
                self.code.line(f"{total}_at = tl.full({self.shape}, -1, {self.renderer.index_type})")
        with self._loop() as start:
            inner = self._enter(scope, start)
            self.emitter._serial(inner, [node.args[0] for node in nodes])
            for reduction, total in zip(reductions, totals, strict=True):
                value = self._masked(inner, reduction)
                if reduction.is_arg:
                    at = self._positions(inner, reduction)
                    better = reduction.better(value, total)
                    valid = inner.dims[1].mask
                    self.code.line(f"{total}_new = ({better} | ({total}_at < 0)){f' & {valid}' if valid else ''}")
                    self.code.line(f"{total} = tl.where({total}_new, {value}, {total})")
                    self.code.line(f"{total}_at = tl.where({total}_new, {at}, {total}_at)")
                else:
                    self.code.line(f"{total} = {reduction.joined(total, value)}")
        for node, reduction, total in zip(nodes, reductions, totals, strict=True):
            scope.bind(node, self._folded(scope, reduction, total, f"{total}_at"))

    def _masked(self, inner: Scope, reduction: Reduction) -> str:
        """The block of values of a piece, the identity behind the end of the row."""
        value = inner.value(cast(reduction.node.args[0], reduction.dtype))
        mask = inner.dims[1].mask
        shaped = (
            f"({value}) + tl.zeros({self.shape}, {reduction.type})"
            if not reduction.of_truth
            else (f"tl.broadcast_to({value}, {self.shape}).to(tl.int32)")
        )
        if mask is None:
            return inner.define(shaped)
        return inner.define(f"tl.where({mask}, {shaped}, {reduction.identity})")

    def _positions(self, inner: Scope, reduction: Reduction) -> str:
        if not reduction.is_arg:
            return ""
        (number,) = axes_of_reduce(reduction.node)
        return f"({inner.axis_text(number)} + tl.zeros({self.shape}, {self.renderer.index_type}))"

    def _folded(self, scope: Scope, reduction: Reduction, value: str, positions: str) -> str:
        """A block's rows as one number each."""
        if not reduction.is_arg:
            return scope.define(reduction.folded(value))
        best = scope.define(reduction.folded(value))
        equal = f"(({value} == {best}) | (({value} != {value}) & ({best} != {best})))"
        if self.row.is_whole and (mask := _mask_text(self.row, self.dims)):
            equal = f"{equal} & {mask.format(positions=positions)}"
        else:
            equal = f"{equal} & ({positions} >= 0)"
        if reduction.is_last:
            at = scope.define(f"tl.max(tl.where({equal}, {positions}, -1), axis=1, keep_dims=True)")
        else:
            at = scope.define(f"tl.min(tl.where({equal}, {positions}, 2147483647), axis=1, keep_dims=True)")
        return scope.define(f"{at}.to(tl.int64)")


def _mask_text(row: _Row, dims: DimTable) -> str:
    return f"({{positions}} < {dims.text(row.extent)})"


class Reduction:
    """How a `reduce` node joins values. NaN wins in max, min, argmax and argmin, as in numpy."""

    def __init__(self, node: Expr) -> None:
        function: str = node.payload[0]
        self.node = node
        self.is_arg = function.startswith("arg")
        self.is_last = function.endswith("_last")
        self.function = function.removeprefix("arg").removesuffix("_last")
        self.dtype: DType = node.args[0].dtype if self.is_arg else node.dtype
        self.of_truth = self.dtype.is_bool
        if self.function not in ("sum", "prod", "max", "min"):
            raise CompilerError(f"no code for the reduction {function}")

    @property
    def type(self) -> str:
        """The Triton type of the running result; truth values are counted as numbers."""
        return "tl.int32" if self.of_truth else register_type(self.dtype)

    @property
    def identity_number(self) -> str:
        """The number that changes nothing, for tl.full."""
        dtype, function = register_dtype(self.dtype), self.function
        if self.of_truth:
            return "1" if function in ("prod", "min") else "0"
        if function in ("sum", "prod"):
            return "0" if function == "sum" else "1"
        if dtype.is_float:
            return f'float("{"-" if function == "max" else ""}inf")'
        limits = np.iinfo(dtype.numpy)
        return str(int(limits.min if function == "max" else limits.max))

    @property
    def identity(self) -> str:
        """The same as a value of the reduction's type."""
        return f"tl.full((), {self.identity_number}, {self.type})"

    def joined(self, left: str, right: str) -> str:
        """Two running results as one."""
        if self.of_truth:
            return f"({left} {'|' if self.function in ('sum', 'max') else '&'} {right})"
        if self.function in ("sum", "prod"):
            return f"({left} {'+' if self.function == 'sum' else '*'} {right})"
        if register_dtype(self.dtype).is_float:
            return f"{self.function}imum({left}, {right})"
        return f"tl.{self.function}imum({left}, {right})"

    def better(self, value: str, best: str) -> str:
        """Whether a value takes the place of the best one before it."""
        sign = ">" if self.function == "max" else "<"
        tests = [f"({value} {sign} {best})"]
        if register_dtype(self.dtype).is_float:
            tests.append(f"(({value} != {value}) & ({best} == {best}))")
        if self.is_last:
            tests.append(f"({value} == {best})")
            if register_dtype(self.dtype).is_float:
                tests.append(f"(({value} != {value}) & ({best} != {best}))")
        return f"({' | '.join(tests)})"

    def folded(self, value: str) -> str:
        """A block of running results [units, piece] as [units, 1]."""
        if self.of_truth:
            function = "max" if self.function in ("sum", "max") else "min"
            return f"(tl.{function}({value}, axis=1, keep_dims=True) != 0)"
        if self.function == "sum":
            return f"tl.sum({value}, axis=1, keep_dims=True)"
        if self.function == "prod":
            return f"tl.reduce({value}, 1, multiply, keep_dims=True)"
        text = f"tl.{self.function}({value}, axis=1, keep_dims=True)"
        if register_dtype(self.dtype).is_float:
            any_nan = f"tl.max(({value} != {value}).to(tl.int32), axis=1, keep_dims=True)"
            return f'tl.where({any_nan} != 0, float("nan"), {text})'
        return text


def serial_reduction(scope: Scope, node: Expr) -> None:
    """Writes a reduction as loops over single indices, and binds its result in the scope."""
    renderer = scope.renderer
    code, reduction = renderer.code, Reduction(node)
    over = axes_of_reduce(node)
    if not over:
        scope.bind(node, scope.value(_of_one(node)))
        return
    total = renderer.name("acc")
    code.line(f"{total} = tl.full({scope.shape}, {reduction.identity_number}, {reduction.type})")
    if reduction.is_arg:
        code.line(f"{total}_at = tl.full({scope.shape}, -1, tl.int64)")

    def loops(inside: Scope, left: Sequence[int]) -> None:
        if not left:
            for inner in reduces_of([node.args[0]]):
                if not inside.is_known(inner):
                    serial_reduction(inside, inner)
            value = inside.value(cast(node.args[0], reduction.dtype))
            if reduction.of_truth:
                value = f"({value}).to(tl.int32)"
            if reduction.is_arg:
                better = f"({reduction.better(value, total)} | ({total}_at < 0))"
                at = inside.value(Expr("axis", (), I64, over[0]))
                code.line(f"{total}_new = {better}")
                code.line(f"{total} = tl.where({total}_new, {value}, {total})")
                code.line(f"{total}_at = tl.where({total}_new, {at}, {total}_at)")
            else:
                code.line(f"{total} = {reduction.joined(total, value)}")
            return
        extent = renderer.kernel.axes[left[0]].extent
        name = renderer.name("s")
        unrolled = isinstance(extent, int) and extent <= UNROLLED
        with code.block(f"for {name} in {'tl.static_range' if unrolled else 'range'}(0, {renderer.dims.text(extent)})"):
            loops(inside.inner({left[0]: name}), left[1:])

    loops(scope, over)
    if reduction.is_arg:
        scope.bind(node, f"{total}_at")
    elif reduction.of_truth:
        scope.bind(node, scope.define(f"({total} != 0)"))
    else:
        scope.bind(node, total)


def _of_one(node: Expr) -> Expr:
    """What a reduction over no axes is."""
    return const(0, node.dtype) if node.payload[0].startswith("arg") else cast(node.args[0], node.dtype)
