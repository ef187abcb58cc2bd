"""A kernel's loops before they are written: flat memory, merged axes, costs of running along an axis.

`flatten` gives an equal kernel whose operands are one-dimensional storage and whose loads and stores
address it by flat offsets; axes that every access walks as one are one axis, so that inner loops are
long. Axis numbers keep their meaning; an axis that is gone has extent 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from aot.backend.affine import Affine, affine_of, flat_offset, lane_limits, step_bounds
from aot.dims import Dim, Symbol, product, terms_of
from aot.dtypes import I64
from aot.expr import Expr, axis, const, walk
from aot.ir import TensorType
from aot.kernel import AttendRoot, Axis, ContractRoot, Kernel, KernelOperand, ScanRoot, Store

COSTLY = frozenset(
    "exp log log1p expm1 sin cos tan asin acos atan sinh cosh asinh acosh atanh tanh erf sigmoid pow div sqrt rsqrt "
    "floordiv mod fmod".split()
)
ASSUMED_EXTENT = 256
"""Of an axis whose extent is not known at build time."""
ASSUMED_BATCH = 2
"""The same for a first axis that is just a symbol: a number of samples."""


def axes_of_reduce(node: Expr) -> tuple[int, ...]:
    """The loop axes of a `reduce` node; after `collapse` there can be several."""
    over = node.payload[1]
    return over if isinstance(over, tuple) else (over,)


def free_axes(expr: Expr, known: dict[Expr, frozenset[int]] | None = None) -> frozenset[int]:
    """The axes on which a value depends; those that a reduction inside runs over do not count."""
    table: dict[Expr, frozenset[int]] = {} if known is None else known
    for node in walk(expr):
        if node not in table:
            found = frozenset({node.payload}) if node.op == "axis" else frozenset()
            for a in node.args:
                found |= table[a]
            table[node] = found - frozenset(axes_of_reduce(node)) if node.op == "reduce" else found
    return table[expr]


def transform(expr: Expr, change: Callable[[Expr, tuple[Expr, ...]], Expr], done: dict[Expr, Expr]) -> Expr:
    """Rebuilds an expression bottom-up: `change(node, new operands)` gives each new node."""
    for node in walk(expr):
        if node not in done:
            done[node] = change(node, tuple(done[a] for a in node.args))
    return done[expr]


def same(node: Expr, args: tuple[Expr, ...]) -> Expr:
    """The node with other operands."""
    if all(a is b for a, b in zip(args, node.args, strict=True)):
        return node
    return Expr(node.op, args, node.dtype, node.payload)


def flatten(kernel: Kernel, merge: bool = True) -> Kernel:
    """See the module's docstring. Reductions of one function nested directly are one of several axes.

    Without `merge` every axis stays what it is: those of a product or of attention have roles.
    """
    kernel = _drop_single(_flat(kernel))
    while merge:
        pair = _mergeable(kernel)
        if pair is None:
            break
        kernel = _merge(kernel, *pair)
    return kernel


def _rebuild(kernel: Kernel, change: Callable[[Expr, tuple[Expr, ...]], Expr]) -> Kernel:
    done: dict[Expr, Expr] = {}
    stores = tuple(
        replace(
            store,
            indices=tuple(transform(i, change, done) for i in store.indices),
            value=transform(store.value, change, done),
        )
        for store in kernel.stores
    )
    root = kernel.root
    if isinstance(root, ScanRoot):
        root = replace(root, value=transform(root.value, change, done))
    elif isinstance(root, ContractRoot):
        a, b, *others = (transform(each, change, done) for each in (root.a, *root.rights))
        root = replace(root, a=a, b=b, others=tuple(others))
    elif isinstance(root, AttendRoot) and root.mask is not None:
        root = replace(root, mask=transform(root.mask, change, done))
    return replace(kernel, stores=stores, root=root)


def _flat(kernel: Kernel) -> Kernel:
    ranks = [operand.type.rank for operand in kernel.inputs]

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        if node.op == "load":
            rank = ranks[node.payload]
            offset = flat_offset(kernel.inputs[node.payload].type, args[:rank]).expr()
            return Expr("load", (offset, *args[rank:]), node.dtype, node.payload)
        if node.op == "reduce":
            inner, over = args[0], axes_of_reduce(node)
            if inner.op == "reduce" and inner.payload[0] == node.payload[0] and inner.dtype == node.dtype:
                if not node.payload[0].startswith("arg"):
                    return Expr("reduce", inner.args, node.dtype, (node.payload[0], over + axes_of_reduce(inner)))
            return Expr("reduce", args, node.dtype, (node.payload[0], over))
        return same(node, args)

    flat = _rebuild(kernel, change)
    stores = tuple(
        replace(store, indices=(flat_offset(kernel.outputs[store.output].type, store.indices).expr(),))
        for store in flat.stores
    )
    return replace(
        flat,
        stores=stores,
        inputs=tuple(map(_line, kernel.inputs)),
        outputs=tuple(map(_line, kernel.outputs)),
    )


def _line(operand: KernelOperand) -> KernelOperand:
    """The operand's storage as a row of elements."""
    elements = operand.type.elements
    if operand.type.halo != ((0, 0),) * operand.type.rank:
        elements = elements + operand.type.origin_elements + 1  # another size than any dense tensor beside it
    return KernelOperand(TensorType(operand.type.dtype, (elements,)), operand.constant)


def _drop_single(kernel: Kernel) -> Kernel:
    single = {number for number, a in enumerate(kernel.axes) if a.extent == 1}

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        if node.op == "axis" and node.payload in single:
            return const(0, I64)
        if node.op == "load":
            return Expr("load", (affine_of(args[0]).expr(), *args[1:]), node.dtype, node.payload)
        if node.op == "reduce":
            over = tuple(a for a in axes_of_reduce(node) if a not in single)
            return Expr("reduce", args, node.dtype, (node.payload[0], over))
        return same(node, args)

    return _rebuild(kernel, change)


def _accesses(kernel: Kernel) -> tuple[list[Affine], set[int], list[tuple[int, ...]]]:
    """Every offset, the axes that are used otherwise than in offsets, and the axes of every reduction."""
    offsets: list[Affine] = []
    opaque: set[int] = set()
    reduced: list[tuple[int, ...]] = []
    seen: set[Expr] = set()

    def plain(expr: Expr) -> None:
        """Visits an expression whose axis nodes count as other uses."""
        if expr in seen:
            return
        seen.add(expr)
        if expr.op == "axis":
            opaque.add(expr.payload)
        elif expr.op == "load":
            offset(expr.args[0])
            for a in expr.args[1:]:
                plain(a)
        else:
            if expr.op == "reduce":
                reduced.append(axes_of_reduce(expr))
                if expr.payload[0].startswith("arg"):
                    opaque.update(axes_of_reduce(expr))
            for a in expr.args:
                plain(a)

    def offset(expr: Expr) -> None:
        found = affine_of(expr)
        offsets.append(found)
        for term, _ in found.rest:
            plain(term)

    for store in kernel.stores:
        offset(store.indices[0])
        plain(store.value)
    if isinstance(kernel.root, ScanRoot):
        plain(kernel.root.value)
        opaque.add(kernel.root.axis)
    return offsets, opaque, reduced


def _mergeable(kernel: Kernel) -> tuple[int, int] | None:
    """Axes (outer, inner) that every access walks as one axis of both."""
    offsets, opaque, reduced = _accesses(kernel)
    together: dict[int, frozenset[int]] = {}
    domain = frozenset(range(kernel.domain))
    for number in domain:
        together[number] = domain
    for number in range(kernel.domain, len(kernel.axes)):
        sets = [frozenset(over) for over in reduced if number in over]
        together[number] = frozenset.intersection(*sets) if sets else frozenset()
    narrow = [frozenset(store.axes) for store in kernel.stores if store.axes]
    live = [number for number, a in enumerate(kernel.axes) if a.extent != 1 and number not in opaque]
    for outer in live:
        for inner in live:
            if outer == inner or inner not in together[outer] or outer not in together[inner]:
                continue
            if any((outer in axes) != (inner in axes) for axes in narrow):
                continue
            extent = kernel.axes[inner].extent
            if all(
                o.coefficients.get(outer, 0) == extent * o.coefficients.get(inner, 0)
                for o in offsets
                if outer in o.coefficients or inner in o.coefficients
            ):
                return outer, inner
    return None


def _merge(kernel: Kernel, outer: int, inner: int) -> Kernel:
    """`inner` runs over both; `outer` is gone."""
    axes = list(kernel.axes)
    axes[inner] = Axis(axes[outer].extent * axes[inner].extent, axes[inner].name)
    axes[outer] = Axis(1, axes[outer].name)
    return _drop_single(replace(kernel, axes=tuple(axes)))


def unify_rows(kernel: Kernel, rows: Sequence[int]) -> Kernel:
    """Lets reductions over equal extents run over the same axes: those of the row, where they fit.

    Then what several stages of a row compute is the same expression in all of them.
    """
    chosen: dict[tuple[Dim, ...], tuple[int, ...]] = {}
    if rows:
        chosen[tuple(kernel.axes[a].extent for a in rows)] = tuple(rows)
    done: dict[Expr, Expr] = {}

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        if node.op != "reduce" or not axes_of_reduce(node):
            return same(node, args)
        over = axes_of_reduce(node)
        target = chosen.setdefault(tuple(kernel.axes[a].extent for a in over), over)
        used = {n.payload for n in walk(args[0]) if n.op == "axis"}
        used |= {a for n in walk(args[0]) if n.op == "reduce" for a in axes_of_reduce(n) if a in target}
        inner_free = free_axes(args[0])
        if target == over or any(a in inner_free for a in target):
            return same(node, args)
        renaming = dict(zip(over, target, strict=True))
        body = transform(args[0], lambda n, a: _rename(n, a, renaming), {})
        return Expr("reduce", (body,), node.dtype, (node.payload[0], target))

    def _rename(node: Expr, args: tuple[Expr, ...], renaming: Mapping[int, int]) -> Expr:
        if node.op == "axis":
            return axis(renaming.get(node.payload, node.payload))
        if node.op == "load":
            return Expr("load", (affine_of(args[0]).expr(), *args[1:]), node.dtype, node.payload)
        return same(node, args)

    stores = tuple(replace(store, value=transform(store.value, change, done)) for store in kernel.stores)
    return replace(kernel, stores=stores)


def outside_reduces(expr: Expr) -> list[Expr]:
    """The nodes of an expression without what is inside its reductions, operands first."""
    order: dict[Expr, None] = {}

    def visit(node: Expr) -> None:
        if node not in order:
            if node.op != "reduce":
                for a in node.args:
                    visit(a)
            order[node] = None

    visit(expr)
    return list(order)


def reduces_of(values: Iterable[Expr]) -> list[Expr]:
    """Every distinct reduction in expressions, inner ones first."""
    found: dict[Expr, None] = {}
    for value in values:
        for node in walk(value):
            if node.op == "reduce":
                found.setdefault(node)
    return list(found)


def loads_of(exprs: Iterable[Expr]) -> list[Expr]:
    """Every distinct load in expressions, without those inside reductions of them."""
    found: dict[Expr, None] = {}
    for expr in exprs:
        for node in outside_reduces(expr):
            if node.op == "load":
                found.setdefault(node)
    return list(found)


@dataclass
class StoreGroup:
    """Stores over the same axes, the outermost in memory first. `extra` have only the kept ones."""

    axes: tuple[int, ...]
    stores: list[Store] = field(default_factory=list)
    extra: list[Store] = field(default_factory=list)

    @property
    def values(self) -> list[Expr]:
        return [store.value for store in (*self.stores, *self.extra)]


def rows_of(group: StoreGroup) -> list[int]:
    """The axes on which no reduction depends; none without reductions."""
    reduces = reduces_of(group.values)
    depends = frozenset(a for node in reduces for a in free_axes(node))
    return [a for a in group.axes if a not in depends] if reduces else []


def store_groups(kernel: Kernel, memory_order: Sequence[int]) -> list[StoreGroup]:
    """The stores of a flat kernel by their axes, fewer axes first; what is stored once per row goes with the row.

    `memory_order`: the axes of the primary output, the outermost in memory first.
    """
    order = [a for a in memory_order if a < kernel.domain]
    order += [a for a in range(kernel.domain) if a not in order]
    groups: dict[tuple[int, ...], StoreGroup] = {}
    for store in kernel.stores:
        wanted = frozenset(store.axes) if store.axes else frozenset(order)
        if not store.axes and reduces_of([store.value]):  # one number per row is there even for an empty row
            wanted = frozenset().union(*map(free_axes, (store.value, *store.indices)))
        axes = tuple(a for a in order if a in wanted and kernel.axes[a].extent != 1)
        groups.setdefault(axes, StoreGroup(axes)).stores.append(store)
    largest = max(groups.values(), key=lambda group: len(group.axes))
    for stores in (largest.stores, kernel.stores):
        rows = rows_of(StoreGroup(largest.axes, list(stores)))
        kept = tuple(a for a in largest.axes if a not in rows)
        if kept != largest.axes and kept in groups:
            largest.extra = groups.pop(kept).stores
            break
    return sorted(groups.values(), key=lambda group: len(group.axes))


def assumed_extent(kernel: Kernel, number: int) -> int:
    """The extent of an axis, or a plausible one where it is known only when the program runs."""
    extent = kernel.axes[number].extent
    if isinstance(extent, int):
        return extent
    monomials = [monomial for monomial, _ in terms_of(extent)[0]]
    is_symbol = len(monomials) == 1 and len(monomials[0]) == 1 and isinstance(monomials[0][0], Symbol)
    return ASSUMED_BATCH if number == 0 and kernel.domain > 1 and is_symbol else ASSUMED_EXTENT


def lane_cost(kernel: Kernel, loads: Iterable[Expr], stores: Iterable[Store], number: int, lanes: int) -> float:
    """Modelled cost per element of one pass over accesses with the lanes of a block along an axis."""
    length = assumed_extent(kernel, number)
    used = length / (-(-length // lanes) * lanes) if length else 1.0
    cost = 0.2
    for load in loads:
        guard = load.args[1] if len(load.args) > 1 else None
        cost += _access_cost(affine_of(load.args[0]), number)
        if guard is not None and number in free_axes(guard):
            cost += 2 if lane_limits(guard, number) is not None else 3 * lanes
    for store in stores:
        cost += _access_cost(affine_of(store.indices[0]), number) * 1.2
    return cost / (lanes * used)


def _access_cost(offset: Affine, number: int) -> float:
    """In loads of a block: 1 where the lanes are neighbours in memory."""
    if _in_rest(offset, number):
        return 3.0 if step_bounds(offset.expr(), number)[1] <= 1 else 40.0
    stride = offset.coefficients.get(number, 0)
    if stride == 0:
        return 0.2
    return 1.0 if stride == 1 else 16.0


@dataclass(frozen=True, slots=True)
class Turn:
    """A change of memory order: `loads` are neighbours along axis `read`, every store along axis `write`."""

    write: int
    read: int
    loads: tuple[Expr, ...]


def find_turn(kernel: Kernel, kept: Sequence[int], lanes: int) -> Turn | None:
    """The axes of a kernel without reductions that moves elements from one order to another, or None."""
    stored = [affine_of(store.indices[0]) for store in kernel.stores]
    writes = [a for a in kept if all(o.coefficients.get(a, 0) == 1 and not _in_rest(o, a) for o in stored)]
    if not writes or assumed_extent(kernel, writes[0]) < lanes // 2:
        return None
    write = writes[0]
    found: dict[int, list[Expr]] = {}
    for load in loads_of(store.value for store in kernel.stores):
        offset = affine_of(load.args[0])
        if len(load.args) > 1 or _in_rest(offset, write) or offset.coefficients.get(write, 0) in (0, 1):
            continue
        for read in kept:
            if read != write and offset.coefficients.get(read, 0) == 1 and not _in_rest(offset, read):
                found.setdefault(read, []).append(load)
    found = {read: loads for read, loads in found.items() if assumed_extent(kernel, read) >= lanes // 2}
    if not found:
        return None
    read = max(found, key=lambda a: len(found[a]))
    return Turn(write, read, tuple(found[read]))


def _in_rest(offset: Affine, number: int) -> bool:
    """Whether an offset depends on an axis otherwise than by a multiple of it."""
    return any(number in free_axes(term) for term, _ in offset.rest)


def weight_of(node: Expr) -> int:
    """What one operation counts; a costly one as what it is made of, an access or an index nothing."""
    if node.op in ("load", "axis", "const", "dim", "root") or node.dtype == I64:
        return 0
    return 12 if node.op in COSTLY else 1


def work_of(expr: Expr) -> int:
    """Scalar operations of an expression, costly ones counted as what they are made of."""
    return sum(map(weight_of, walk(expr)))


def flops_of(kernel: Kernel) -> Dim:
    """Scalar operations of a kernel without a root: each once for every point of the axes that it depends on."""
    known: dict[Expr, frozenset[int]] = {}
    weights: dict[frozenset[int], int] = {}
    for node in dict.fromkeys(node for store in kernel.stores for node in walk(store.value)):
        if weight := weight_of(node):
            over = axes_of_reduce(node) if node.op == "reduce" else ()
            axes = free_axes(node, known).union(*(free_axes(a, known) for a in node.args if over))
            weights[axes] = weights.get(axes, 0) + weight
    total: Dim = 0
    for axes, weight in sorted(weights.items(), key=lambda item: sorted(item[0])):
        total = total + product(kernel.axes[axis].extent for axis in sorted(axes)) * weight
    return total
