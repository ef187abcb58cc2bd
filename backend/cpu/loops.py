"""Kernels that are loops: MAP, VIEW, GATHER, REDUCE and ROW.

A unit of work is one index of the outer axes (times a piece of the vector axis); threads take equal
runs of units. Inside a unit, reductions are stages that run before what uses them. Two forms:

lanes along the row: a stage is a loop with blocks along its own axis into a fixed number of partial
    results, folded in a fixed order (softmax and layer norm over the last axis, sums of rows);
lanes along a kept axis: every lane is a row of its own, stages are loops around blocks (pooling and
    means over pixels in channels-last layout, softmax over channels).

Invariant: the order of every reduction follows from shapes alone, never from threads or position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from aot import dims as dimension
from aot.backend.base import Emitted
from aot.backend.cpu.accumulate import Accumulator
from aot.backend.cpu.code import Code, DimTable, register_dtype, vector_type
from aot.backend.cpu.frame import bytes_moved, fill_halos, kernel_body
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.render import Renderer, Scope
from aot.backend.nest import (
    StoreGroup,
    Turn,
    assumed_extent,
    axes_of_reduce,
    find_turn,
    flatten,
    flops_of,
    free_axes,
    lane_cost,
    loads_of,
    outside_reduces,
    reduces_of,
    rows_of,
    store_groups,
    unify_rows,
    work_of,
)
from aot.dims import Dim
from aot.dtypes import I32
from aot.expr import Expr, cast, const, rewrite, walk
from aot.kernel import Kernel, Store

PIECE = 2048
"""Elements of a long vector axis that make one unit of work."""

FOLD_COST = 25.0
"""Folding a block of partial results, and entering its loop, in element accesses."""

SHORT_SUM = 64
"""Additions into one accumulator before it is added to a total: the error of a sum grows with this plus
the number of short sums, instead of with the number of elements."""


def emit_loops(kernel: Kernel, isa: Isa) -> Emitted:
    """C for a kernel without a root."""
    return _Emitter(kernel, isa).emit()


@dataclass(frozen=True)
class _Place:
    """Where code is being written: a scope, and what is needed to make the next one inside it.

    Where lanes run along `vector`, `parent` is the scope of what they share, `text` the first lane's
    index, `count` how many lanes are valid, and `blocks` the values per lane that are known here.
    `row` is the C text of the position in row buffers.
    """

    scope: Scope
    parent: Scope
    axes: frozenset[int]
    bound: frozenset[Expr] = frozenset()
    vector: int | None = None
    text: str = ""
    count: str | None = None
    blocks: Mapping[Expr, str] = field(default_factory=dict)
    row: str = ""


class _Emitter:
    def __init__(self, kernel: Kernel, isa: Isa) -> None:
        self.source = kernel
        self.isa = isa
        self.kernel = flatten(kernel)
        self.dims = DimTable()
        self.code = Code()
        self.notes: list[str] = []
        self.scratch: Dim = 0
        self.group = StoreGroup(())
        self.rows: list[int] = []
        self.buffers: dict[Expr, str] = {}
        self.stored: set[Expr] = set()

    def emit(self) -> Emitted:
        with kernel_body(self.code, self.dims):
            if any(any(map(any, output.type.halo)) for output in self.source.outputs):
                with self.code.block():
                    fill_halos(Renderer(self.source, self.dims, self.isa, self.code))
            for group in store_groups(self.kernel, self.source.outputs[0].type.order):
                self._emit_group(group)
        return Emitted(
            self.code.text(),
            self.dims.dims,
            "; ".join(self.notes),
            self.scratch,
            flops=flops_of(self.kernel),
            bytes_moved=bytes_moved(self.source),
        )

    def _extent(self, number: int) -> str:
        return self.dims.text(self.kernel.axes[number].extent)

    # One group: the loops over units.

    def _emit_group(self, group: StoreGroup) -> None:
        self.rows = rows_of(group)
        unified = unify_rows(replace(self.kernel, stores=(*group.stores, *group.extra)), self.rows)
        here = len(group.stores)
        self.group = StoreGroup(group.axes, list(unified.stores[:here]), list(unified.stores[here:]))
        kept = [a for a in group.axes if a not in self.rows]
        vector = self._choose(kept)
        with self.code.block():
            self.renderer = Renderer(unified, self.dims, self.isa, self.code)
            turn = None if reduces_of(self.group.values) else find_turn(unified, kept, self.isa.lanes)
            if turn is not None:
                self._turned(kept, turn)
                return
            self.buffers = self._plan_buffers(self._width(vector) * self.isa.lanes if vector is not None else 1)
            self._units(kept, vector)
        if vector is not None:
            self.notes.append(f"lanes along {self.kernel.axes[vector].name}")
        else:
            self.notes.append("lanes along the row" if kept else "one row")

    def _choose(self, kept: Sequence[int]) -> int | None:
        """The kept axis that lanes run along, or None: along the row, or along what is reduced.

        Costs are per index of the kept axes, in element accesses.
        """
        group, lanes = self.group, self.isa.lanes
        reduces = reduces_of(group.values)
        outside = loads_of(group.values)
        bodies = [(self._length(axes_of_reduce(node)), loads_of(node.args)) for node in reduces]
        length = self._length(self.rows)

        def all_lanes(number: int) -> float:
            cost = length * lane_cost(self.kernel, outside, group.stores, number, lanes)
            return cost + sum(n * lane_cost(self.kernel, loads, (), number, lanes) for n, loads in bodies)

        best: tuple[float, int | None] = (math.inf, None)
        for number in reversed(kept):
            cost = all_lanes(number)
            if cost < best[0] * 0.999:
                best = (cost, number)
        if not reduces or not kept:
            return best[1]
        cost = 0.0
        for node, (count, loads) in zip(reduces, bodies, strict=True):
            over = axes_of_reduce(node)
            cost += FOLD_COST + count * min((lane_cost(self.kernel, loads, (), a, lanes) for a in over), default=1.0)
        if self.rows:
            cost += length * min(lane_cost(self.kernel, outside, group.stores, a, lanes) for a in self.rows)
        return None if cost <= best[0] else best[1]

    def _length(self, axes: Sequence[int]) -> float:
        """How many indices axes have together; extents that are not known count as a typical one."""
        return math.prod(assumed_extent(self.kernel, a) for a in axes)

    def _units(self, kept: Sequence[int], vector: int | None) -> None:
        """The loop over this thread's units; the indices of the outer axes are kept up by counting."""
        code, lanes, dims = self.code, self.isa.lanes, self.dims
        counted = [(self.kernel.axes[a].extent, f"i{a}") for a in kept if a != vector]
        axes = {a: f"i{a}" for a in kept if a != vector}
        piece = lanes * self._width(vector) if reduces_of(self.group.values) else PIECE
        whole = False
        if vector is not None:
            extent = self.kernel.axes[vector].extent
            whole = isinstance(extent, int) and extent <= piece
            if not whole:
                counted.append((dimension.ceildiv(extent, piece), "piece"))
        with counted_units(code, dims, counted):
            scope = self.renderer.scope(axes)
            if vector is None:
                self._unit([_Place(scope, scope, frozenset(axes))])
            else:
                self._pieces(vector, scope, frozenset(axes), piece, whole)

    def _turned(self, kept: Sequence[int], turn: Turn) -> None:
        """Square tiles between two memory orders: blocks are loaded along one axis and stored along the other."""
        code, dims, lanes = self.code, self.dims, self.isa.lanes
        write, read = turn.write, turn.read
        outer = [a for a in kept if a not in (write, read)]
        counted = [(self.kernel.axes[a].extent, f"i{a}") for a in outer]
        counted += [(dimension.ceildiv(self.kernel.axes[a].extent, lanes), f"tile{a}") for a in (read, write)]
        names = [self.renderer.name("square") for _ in turn.loads]
        step = lanes + 1  # no two rows of a tile begin at the same place of the cache
        for load, name in zip(turn.loads, names, strict=True):
            code.line(f"{_held_name(load)} {name}[{lanes * step}];")

        def tile(rows: str, columns: str, is_whole: bool) -> None:
            with code.block(f"for (i64 i = 0; i < {rows}; i++)"):
                axes = {write: f"(first{write} + i)", read: f"first{read}"}
                inner = self.renderer.scope(axes, read, None if is_whole else columns, parent=scope)
                for load, name in zip(turn.loads, names, strict=True):
                    inner.code.line(f"store_{_held_name(load)}({name} + i * {step}, {inner.value(load)});")
            with code.block(f"for (i64 i = 0; i < {columns}; i++)"):
                held: dict[Expr, str] = {}
                for load, name in zip(turn.loads, names, strict=True):
                    held[load] = self.renderer.name()
                    text = f"gather_{_held_name(load)}({name} + i, {step}, {rows})"
                    code.line(f"const {vector_type(load.dtype)} {held[load]} = {text};")
                axes = {write: f"first{write}", read: f"(first{read} + i)"}
                inner = self.renderer.scope(axes, write, None if is_whole else rows, values=held, parent=scope)
                for store in self.group.stores:
                    inner.store(store)

        with counted_units(code, dims, counted):
            scope = self.renderer.scope({a: f"i{a}" for a in outer})
            for a in (read, write):
                code.line(f"const i64 first{a} = tile{a} * {lanes}, left{a} = {self._extent(a)} - first{a};")
            with code.block(f"if (left{read} >= {lanes} && left{write} >= {lanes})"):
                tile(str(lanes), str(lanes), True)
            with code.block("else"):
                for a in (read, write):
                    code.line(f"const i64 count{a} = left{a} < {lanes} ? left{a} : {lanes};")
                tile(f"count{write}", f"count{read}", False)
        self.notes.append(f"tiles of {self.kernel.axes[read].name} and {self.kernel.axes[write].name}")

    def _pieces(self, vector: int, scope: Scope, axes: frozenset[int], piece: int, whole: bool) -> None:
        """The blocks along the vector axis that belong to a unit."""
        code, lanes = self.code, self.isa.lanes
        extent = self.kernel.axes[vector].extent
        limit = self.dims.text(extent)
        name = f"i{vector}"
        if whole:
            code.line(f"i64 {name} = 0;")
            code.line(f"const i64 end = {limit};")
        else:
            code.line(f"i64 {name} = piece * {piece};")
            code.line(f"const i64 end = {name} + {piece} < {limit} ? {name} + {piece} : {limit};")

        def block(width: int, count: str | None) -> None:
            places = []
            for number in range(width):
                text = f"({name} + {number * lanes})" if number else name
                inner = self.renderer.scope({vector: text}, vector, count, parent=scope)
                places.append(_Place(inner, scope, axes | {vector}, vector=vector, text=text, count=count))
            self._unit(places)

        width = piece // lanes if reduces_of(self.group.values) else 1
        if width > 1:
            with code.block(f"for (; {name} + {piece} <= end; {name} += {piece})"):
                block(width, None)
        left = extent % piece if isinstance(extent, int) and width > 1 else extent
        if not isinstance(left, int) or left >= lanes:
            with code.block(f"for (; {name} + {lanes} <= end; {name} += {lanes})"):
                block(1, None)
        if not isinstance(extent, int) or extent % lanes:
            with code.block(f"if ({name} < end)"):
                code.line(f"const i64 count = end - {name};")
                block(1, "count")

    def _width(self, vector: int | None) -> int:
        """How many blocks of a kept axis are reduced together: long runs of memory, independent sums."""
        if vector is None:
            return 1
        extent = self.kernel.axes[vector].extent
        work = sum(work_of(value) for value in self.group.values)
        width = 8 if work <= 3 else 4 if work <= 24 else 2
        while isinstance(extent, int) and width > 1 and extent < width * self.isa.lanes:
            width //= 2
        return width

    def _unit(self, places: Sequence[_Place]) -> None:
        """The reductions that the stores need, then the stores over the row; for blocks side by side."""
        group = self.group
        self.stored = set()
        places = self._prepare(places, group.values)
        for place in places:
            for store in group.extra:
                place.scope.store(store)
        values = [store.value for store in group.stores]

        def finish(inner: Sequence[_Place], part: int) -> None:
            for place in inner:
                for store in group.stores:
                    place.scope.store(store)

        vector = None
        if places[0].vector is None and self.rows:
            vector = self._cheapest(self.rows, values, group.stores)
        self._loop(places, self.rows, vector, values, 1, finish)

    def _cheapest(self, axes: Sequence[int], values: Sequence[Expr], stores: Sequence[Store] = ()) -> int:
        """The axis along which a pass over these values is cheapest; the innermost of equals."""
        loads = loads_of(values)
        costs = {a: lane_cost(self.kernel, loads, stores, a, self.isa.lanes) for a in axes}
        return min(reversed(axes), key=lambda a: costs[a])

    # Reductions.

    def _prepare(self, places: Sequence[_Place], values: Sequence[Expr]) -> Sequence[_Place]:
        """Computes every reduction in `values` that can be computed here; the places after that."""
        levels: dict[Expr, int] = {}
        stages: dict[tuple[int, tuple[int, ...]], list[Expr]] = {}
        for node in reduces_of(values):
            if free_axes(node) <= places[0].axes and node not in places[0].bound:
                levels[node] = 1 + max((levels[n] for n in walk(node.args[0]) if n in levels), default=-1)
                stages.setdefault((levels[node], axes_of_reduce(node)), []).append(node)
        for (_, over), nodes in sorted(stages.items(), key=lambda item: item[0][0]):
            places = self._stage(places, over, nodes)
        return places

    def _stage(self, places: Sequence[_Place], over: tuple[int, ...], nodes: Sequence[Expr]) -> Sequence[_Place]:
        """One loop over the axes `over` that computes several reductions; the places after it."""
        bodies = [node.args[0] for node in nodes]
        if not over:
            places = self._prepare(places, bodies)
            return [self._known(p, {node: p.scope.value(_of_one(node)) for node in nodes}) for p in places]
        alone = places[0].vector is None
        vector = self._cheapest(over, bodies) if alone else None
        partial = self._partials(nodes, vector)
        accumulators = [
            [Accumulator(self.renderer, node, vector is not None or not alone, partial) for node in nodes]
            for _ in places
        ]
        every = [accumulator for group in accumulators for accumulator in group]
        long = self._is_long(over, partial if vector is not None else 0)
        for accumulator in every:
            accumulator.declare(self.code)
            if long:
                accumulator.declare_totals(self.code)
        summed = [accumulator for accumulator in every if accumulator.totals]

        def flush() -> None:
            for accumulator in summed:
                accumulator.flush(self.code)

        pending: list[Expr] = []
        if over == tuple(self.rows):
            needed = {node for body in bodies for node in outside_reduces(body)}
            pending = [node for node in self.buffers if node not in self.stored and node in needed]

        def body(inner: Sequence[_Place], part: int) -> None:
            inner = self._prepare(inner, bodies)
            for place, group in zip(inner, accumulators, strict=True):
                for accumulator in group:
                    accumulator.add(place.scope, part, place.count if vector is not None else None)
                for node in pending:
                    target = f"{self.buffers[node]} + {place.row}"
                    place.scope.code.line(f"store_{_held_name(node)}({target}, {place.scope.value(node)});")

        self._loop(places, over, vector, bodies, partial, body, flush if summed else None)
        self.stored.update(pending)
        return [
            self._known(
                place, {node: a.result(self.code, vector is not None) for node, a in zip(nodes, group, strict=True)}
            )
            for place, group in zip(places, accumulators, strict=True)
        ]

    def _is_long(self, over: Sequence[int], partial: int) -> bool:
        """Whether a reduction may add more than two short sums into one accumulator (`partial`: of blocks)."""
        count = dimension.product(self.kernel.axes[a].extent for a in over)
        step = max(partial * self.isa.lanes, 1)
        return not isinstance(count, int) or count > 2 * SHORT_SUM * step

    def _known(self, place: _Place, names: Mapping[Expr, str]) -> _Place:
        """The place after what was written, where these expressions have names."""
        bound = place.bound | frozenset(names)
        if place.vector is None:
            scope = self.renderer.scope({}, values=names, parent=place.scope)
            return replace(place, scope=scope, parent=scope, bound=bound)
        blocks = {**place.blocks, **names}
        scope = self.renderer.scope(
            {place.vector: place.text}, place.vector, place.count, values=blocks, parent=place.parent
        )
        return replace(place, scope=scope, blocks=blocks, bound=bound)

    def _partials(self, nodes: Sequence[Expr], vector: int | None) -> int:
        """How many partial results hide the latency of accumulation; fixed by shapes and expressions."""
        if vector is None or any(node.payload[0].startswith("arg") for node in nodes):
            return 1
        extent = self.kernel.axes[vector].extent
        work = sum(work_of(node.args[0]) for node in nodes)
        wanted = 4 if work <= 4 else 2 if work <= 12 else 1
        while isinstance(extent, int) and wanted > 1 and extent < 2 * wanted * self.isa.lanes:
            wanted //= 2
        return wanted

    # Loops.

    def _loop(
        self,
        places: Sequence[_Place],
        over: Sequence[int],
        vector: int | None,
        values: Sequence[Expr],
        partial: int,
        body: Callable[[Sequence[_Place], int], None],
        flush: Callable[[], None] | None = None,
    ) -> None:
        """Loops over axes, with blocks along `vector` innermost.

        `body` gets the places and the number of the partial result; `partial` blocks are taken at a time.
        `flush` is written after every run of at most SHORT_SUM innermost steps.
        """
        single = [a for a in over if a != vector]
        if not single and vector is None:
            body(places, 0)
            return
        if not single:
            assert vector is not None
            self._blocks(places[0], vector, values, partial, body, flush)
            return
        rest = [a for a in over if a != single[0]]
        name, end = self.renderer.name("r"), self._extent(single[0])

        def inside() -> None:
            self._loop(self._enter(places, single[0], name, values), rest, vector, values, partial, body, flush)

        if rest or flush is None:
            with self.code.block(f"for (i64 {name} = 0; {name} < {end}; {name}++)"):
                inside()
            return
        stop = f"{name}_stop"
        with self.code.block(f"for (i64 {name} = 0, {stop}; {name} < {end};)"):
            self.code.line(f"{stop} = {name} + {SHORT_SUM} < {end} ? {name} + {SHORT_SUM} : {end};")
            with self.code.block(f"for (; {name} < {stop}; {name}++)"):
                inside()
            flush()

    def _enter(self, places: Sequence[_Place], number: int, name: str, values: Sequence[Expr]) -> list[_Place]:
        """The places inside a loop over single indices of an axis; what blocks share is computed once."""
        uniform = self.renderer.scope({number: name}, parent=places[0].parent)
        result = []
        for position, place in enumerate(places):
            inside = replace(place, scope=uniform, parent=uniform, axes=place.axes | {number})
            if place.vector is not None:
                row = f"({name} * {len(places)} + {position}) * {self.isa.lanes}"
                held = self._held(values, row) if self.rows == [number] else {}
                blocks = {**place.blocks, **held}
                scope = self.renderer.scope(
                    {place.vector: place.text}, place.vector, place.count, values=blocks, parent=uniform
                )
                inside = replace(inside, scope=scope, blocks=blocks, row=row)
            result.append(inside)
        return result

    def _blocks(
        self,
        place: _Place,
        vector: int,
        values: Sequence[Expr],
        partial: int,
        body: Callable[[Sequence[_Place], int], None],
        flush: Callable[[], None] | None,
    ) -> None:
        """A loop of blocks along an axis; the last, partial block runs the same code."""
        code, lanes = self.code, self.isa.lanes
        extent, end = self.kernel.axes[vector].extent, self._extent(vector)
        name = self.renderer.name("v")
        code.line(f"i64 {name} = 0;")

        def block(text: str, count: str | None, part: int) -> None:
            held = self._held(values, text) if self.rows == [vector] else {}
            scope = self.renderer.scope({vector: text}, vector, count, values=held, parent=place.scope)
            inner = _Place(scope, place.scope, place.axes | {vector}, place.bound, vector, text, count, held, text)
            body([inner], part)

        step = partial * lanes

        def blocks(stop: str) -> None:
            with code.block(f"for (; {name} + {step} <= {stop}; {name} += {step})"):
                for part in range(partial):
                    block(f"({name} + {part * lanes})" if part else name, None, part)

        if flush is not None:
            run = SHORT_SUM * step
            with code.block(f"while ({name} + {step} <= {end})"):
                code.line(f"const i64 stop = {name} + {run} < {end} ? {name} + {run} : {end};")
                blocks("stop")
                flush()
        elif partial > 1:
            blocks(end)
        left = extent % step if isinstance(extent, int) and partial > 1 else extent
        if not isinstance(left, int) or left >= lanes:
            with code.block(f"for (; {name} + {lanes} <= {end}; {name} += {lanes})"):
                block(name, None, 0)
        if not isinstance(extent, int) or extent % lanes:
            with code.block(f"if ({name} < {end})"):
                count = self.renderer.name("count")
                code.line(f"const i64 {count} = {end} - {name};")
                block(name, count, 0)

    # Row buffers: what one stage computes and later ones read again.

    def _plan_buffers(self, step: int) -> dict[Expr, str]:
        """The expressions to keep, with the C names of their rows of scratch (`step` values per index)."""
        if len(self.rows) != 1:
            return {}
        row = self.rows[0]
        values = self.group.values
        stages = [node.args[0] for node in reduces_of(values) if axes_of_reduce(node) == (row,)]
        parts = [outside_reduces(expr) for expr in (*stages, *values)]
        users: dict[Expr, int] = {}
        for part in parts:
            for node in part:
                users[node] = users.get(node, 0) + 1
        result: dict[Expr, str] = {}
        covered: set[Expr] = set()

        def kept_as_constant(inner: Expr) -> Expr | None:
            return const(0, inner.dtype) if inner in result else None

        for part in parts:
            for node in reversed(part):
                if users[node] > 1 and node not in covered and row in free_axes(node):
                    covered.update(walk(node))
                    # What is kept already counts as one load.
                    rest = rewrite(node, kept_as_constant)
                    loads = len(loads_of([rest])) + sum(kept in walk(node) for kept in result)
                    if work_of(rest) >= 8 or loads > 1:
                        result[node] = self._allocate(node, row, step)
        return result

    def _allocate(self, node: Expr, row: int, step: int) -> str:
        held = _held_name(node)
        name = self.renderer.name("row")
        extent = dimension.ceildiv(self.kernel.axes[row].extent, self.isa.lanes) * self.isa.lanes
        start = self.dims.text(self.scratch)
        self.code.line(f"{held} *const {name} = ({held} *)((u8 *)args->scratch + {start});")
        item = 4 if node.dtype.is_bool else register_dtype(node.dtype).itemsize_bytes
        self.scratch = self.scratch + dimension.ceildiv(extent * step * item, 64) * 64
        return name

    def _held(self, values: Sequence[Expr], position: str) -> dict[Expr, str]:
        """Reads what earlier stages kept and these values use; their names."""
        result: dict[Expr, str] = {}
        for node in self.buffers:
            if node in self.stored and any(node in outside_reduces(value) for value in values):
                name = self.renderer.name()
                type_ = vector_type(node.dtype)
                self.code.line(f"const {type_} {name} = load_{_held_name(node)}({self.buffers[node]} + {position});")
                result[node] = name
        return result


@contextmanager
def counted_units(code: Code, dims: DimTable, counted: Sequence[tuple[Dim, str]]) -> Iterator[None]:
    """The loop over this thread's share of the units, which are the indices of `counted` (extent, C name) axes.

    The indices are taken apart once and then kept up by counting: divisions are slow.
    """
    code.line(f"const i64 units = {' * '.join(dims.text(extent) for extent, _ in counted) or '1'};")
    code.line("i64 unit = units * args->thread / args->thread_count;")
    code.line("const i64 units_end = units * (args->thread + 1) / args->thread_count;")
    code.line("i64 rest = unit;")
    for position, (extent, name) in reversed(list(enumerate(counted))):
        text = dims.text(extent)
        if position == 0:
            code.line(f"i64 {name} = rest;")
        elif isinstance(extent, int) and extent > 0:
            code.line(f"i64 {name} = rest % {text}; rest /= {text};")
        else:
            code.line(f"i64 {name} = 0; if ({text} > 0) {{ {name} = rest % {text}; rest /= {text}; }}")
    with code.block("for (; unit < units_end; unit++)"):
        yield
        step = ""
        for position, (extent, name) in reversed(list(enumerate(counted))):
            step += f"if (++{name} == {dims.text(extent)}) {{ {name} = 0; " if position else f"{name}++;"
        if counted:
            code.line(step + " }" * (len(counted) - 1))


def _of_one(node: Expr) -> Expr:
    """What a reduction over no axes is."""
    return const(0, node.dtype) if node.payload[0].startswith("arg") else cast(node.args[0], node.dtype)


def _held_name(node: Expr) -> str:
    """The C type of a kept value: its register type, lane masks as i32."""
    return (I32 if node.dtype.is_bool else register_dtype(node.dtype)).name
