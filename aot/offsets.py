"""Gives buffers their offsets in an arena, so that buffers that live at the same time never share bytes.

Invariant: whatever `place` or `place_symbolic` returns passes `check` or `check_symbolic`, which share no code with
them. Budgets count search nodes, never seconds, so the same blocks get the same offsets on any machine.

Sizes are taken as they are: rounding them to the arena's alignment is the caller's business, and then every offset is
aligned, because an offset is always a sum of sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aot.dims import Dim, evaluate, symbols_of, typical_extent
from aot.errors import CompilerError
from aot.offset_search import search

# About 2 s of search in the worst case on one core; greedy plans that meet the bound, as most do, use none of it.
DEFAULT_NODE_BUDGET = 50_000
# A node's cost grows with the square of the blocks; beyond this many, the budget is cut by as much.
FULL_BUDGET_BLOCKS = 400
# A search keeps one row of conflicts per block; beyond this many blocks the greedy plan stands.
SEARCH_BLOCKS = 1_000
# Greedy orders are tried while (orders tried) x (blocks) stays below this; two are always tried.
GREEDY_BLOCKS = 30_000
# Sizes must sum below this, so that no offset leaves int64.
LARGEST_SUM_BYTES = 1 << 61
ALIGNMENT_BYTES = 64

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Block:
    """A buffer that lives in the half-open interval `start`..`end` of steps. `name` is for messages."""

    start: int
    end: int
    size_bytes: Dim
    name: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """Offsets in the order of the blocks, and what is known about them.

    `peak_bytes` is the largest end, `lower_bound_bytes` a size below which no plan exists (the most bytes alive at
    once, or more where a search excluded it). `proved`: the two are equal. `nodes` is what the search spent.
    """

    offsets: tuple[int, ...]
    peak_bytes: int
    lower_bound_bytes: int
    method: str
    proved: bool
    nodes: int


@dataclass(frozen=True, slots=True)
class SymbolicPlacement:
    """Which blocks each block sits on, good for every value of the symbols.

    `order` lists the block numbers so that every block comes after those it sits on: the order of the buffer table.
    `below[b]` are the block numbers that block b sits on (not positions in the table); an offset is the largest end of
    them, or 0. The byte counts and `proved` are those at the representative point, `sizes_bytes`.
    """

    order: tuple[int, ...]
    below: tuple[tuple[int, ...], ...]
    sizes_bytes: tuple[int, ...]
    peak_bytes: int
    lower_bound_bytes: int
    method: str
    proved: bool
    nodes: int


def lower_bound_bytes(blocks: Sequence[Block]) -> int:
    """The largest number of bytes alive at one time: no placement has a smaller peak."""
    start, end, size = _columns(blocks)
    return int(_live_bytes(start, end, size)[0].max(initial=0))


def place(blocks: Sequence[Block], *, node_budget: int = DEFAULT_NODE_BUDGET) -> Placement:
    """Places blocks of known sizes with a small peak.

    Greedy plans first, until one meets the lower bound; then, within `node_budget` nodes, the exact search. Zero-sized
    blocks get offset 0. Raises CompilerError for an empty lifetime, a negative or a symbolic size.
    """
    start, end, size = _columns(blocks)
    bound = int(_live_bytes(start, end, size)[0].max(initial=0))
    if bound == 0:
        return Placement((0,) * len(blocks), 0, 0, "empty", True, 0)
    offsets, method = _greedy_portfolio(start, end, size, bound)
    peak = int((offsets + size).max())
    nodes = 0
    solid = np.flatnonzero(size)
    affordable = node_budget * FULL_BUDGET_BLOCKS**2 // max(len(solid), FULL_BUDGET_BLOCKS) ** 2
    if peak > bound and affordable > 0 and len(solid) <= SEARCH_BLOCKS:
        found = search(start[solid], end[solid], size[solid], bound, peak, affordable)
        nodes, bound = found.nodes, found.lower_bound_bytes
        if found.offsets is not None:
            offsets = np.zeros_like(size)
            offsets[solid] = found.offsets
            peak, method = int((offsets + size).max()), found.method
    return Placement(tuple(offsets.tolist()), peak, bound, method, peak == bound, nodes)


def check(blocks: Sequence[Block], offsets: Sequence[int]) -> None:
    """Raises CompilerError, naming the two blocks, where blocks that live at the same time share bytes."""
    if len(offsets) != len(blocks):
        raise CompilerError(f"expected an offset for each of {len(blocks)} blocks, found {len(offsets)}")
    for i, (block, offset) in enumerate(zip(blocks, offsets, strict=True)):
        if not isinstance(block.size_bytes, int):
            raise CompilerError(f"{_label(blocks, i)} has no known size", hint="use check_symbolic")
        if offset < 0:
            raise CompilerError(f"expected offsets of at least 0, found {offset} for {_label(blocks, i)}")
        for j in range(i):
            other, other_offset = blocks[j], offsets[j]
            assert isinstance(other.size_bytes, int)
            same_time = block.start < other.end and other.start < block.end
            same_bytes = offset < other_offset + other.size_bytes and other_offset < offset + block.size_bytes
            if same_time and same_bytes and block.size_bytes and other.size_bytes:
                raise CompilerError(
                    f"{_label(blocks, j)} at offset {other_offset} and {_label(blocks, i)} at offset {offset} "
                    "live at the same time and share bytes",
                    hint="this is a defect of the planner; please report it with the model",
                )


def place_symbolic(
    blocks: Sequence[Block],
    *,
    values: Mapping[str, int] | None = None,
    node_budget: int = DEFAULT_NODE_BUDGET,
) -> SymbolicPlacement:
    """Orders blocks of symbolic sizes so that no value of the symbols lets two live blocks share bytes.

    The blocks are placed at a representative point (`values` by symbol name; a missing one is `typical_extent` of the
    symbol) and each then sits on the conflicting blocks that were under it there. At that point the plan is as good as
    `place` makes it; elsewhere it is safe. Ends are rounded up to 64 bytes, as the runtime does. Raises as `place`.
    """
    known = dict(values or {})
    for block in blocks:
        for symbol in symbols_of(block.size_bytes):
            known.setdefault(symbol.name, typical_extent(symbol))
    # An empty block still needs its place in the order, since it may not be empty at another point.
    sizes = tuple(max(_round_up(evaluate(block.size_bytes, known)), ALIGNMENT_BYTES) for block in blocks)
    static = [Block(b.start, b.end, size, b.name) for b, size in zip(blocks, sizes, strict=True)]
    placement = place(static, node_budget=node_budget)

    order = sorted(range(len(blocks)), key=lambda b: (placement.offsets[b], b))
    start = np.array([blocks[b].start for b in order], dtype=np.int64)
    end = np.array([blocks[b].end for b in order], dtype=np.int64)
    below: list[tuple[int, ...]] = [()] * len(blocks)
    under: list[int] = []  # by position: a bit set of the positions that are transitively below
    for position, number in enumerate(order):
        conflicts = (start[:position] < end[position]) & (end[:position] > start[position])
        covered = 0
        direct: list[int] = []
        # From the top down, so that a block which is under another one of the list is left out.
        for other in np.flatnonzero(conflicts)[::-1].tolist():
            if not covered >> other & 1:
                direct.append(order[other])
                covered |= under[other] | 1 << other
        under.append(covered)
        below[number] = tuple(reversed(direct))
    offsets = _stack(order, below, sizes)
    peak = max((offset + size for offset, size in zip(offsets, sizes, strict=True)), default=0)
    bound = placement.lower_bound_bytes
    return SymbolicPlacement(
        tuple(order), tuple(below), sizes, peak, bound, placement.method, peak == bound, placement.nodes
    )


def check_symbolic(blocks: Sequence[Block], order: Sequence[int], below: Sequence[Sequence[int]]) -> None:
    """Raises CompilerError unless, of every two blocks that live at the same time, one is transitively below the other.

    Also where `order` is no permutation of the blocks, or a block comes before one that it sits on.
    """
    if sorted(order) != list(range(len(blocks))) or len(below) != len(blocks):
        raise CompilerError(f"expected an order and supports of {len(blocks)} blocks, found {list(order)}")
    under: dict[int, set[int]] = {}
    for number in order:
        under[number] = set()
        for support in below[number]:
            if support not in under or support == number:
                raise CompilerError(
                    f"{_label(blocks, number)} sits on block {support}, which does not come before it in the table"
                )
            under[number] |= {support} | under[support]
    for i in range(len(blocks)):
        for j in range(i):
            same_time = blocks[i].start < blocks[j].end and blocks[j].start < blocks[i].end
            if same_time and j not in under[i] and i not in under[j]:
                raise CompilerError(
                    f"{_label(blocks, j)} and {_label(blocks, i)} live at the same time, neither below the other",
                    hint="this is a defect of the planner; please report it with the model",
                )


def offsets_at(blocks: Sequence[Block], placement: SymbolicPlacement, values: Mapping[str, int]) -> tuple[int, ...]:
    """The offsets, by block number, that the runtime computes for these values of the symbols."""
    return _stack(placement.order, placement.below, [_round_up(evaluate(b.size_bytes, values)) for b in blocks])


def _stack(order: Sequence[int], below: Sequence[Sequence[int]], sizes: Sequence[int]) -> tuple[int, ...]:
    offsets = [0] * len(sizes)
    for number in order:
        offsets[number] = max((offsets[b] + sizes[b] for b in below[number]), default=0)
    return tuple(offsets)


def _round_up(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _label(blocks: Sequence[Block], number: int) -> str:
    block = blocks[number]
    name = f" {block.name!r}" if block.name else ""
    return f"block {number}{name} (steps {block.start}..{block.end}, {block.size_bytes} bytes)"


def _columns(blocks: Sequence[Block]) -> tuple[Ints, Ints, Ints]:
    """Start, end and size of valid blocks as arrays."""
    sizes: list[int] = []
    for number, block in enumerate(blocks):
        if block.end <= block.start:
            raise CompilerError(f"expected a lifetime of at least one step, found {_label(blocks, number)}")
        if not isinstance(block.size_bytes, int):
            raise CompilerError(f"expected a known size, found {_label(blocks, number)}", hint="use place_symbolic")
        if block.size_bytes < 0:
            raise CompilerError(f"expected a size of at least 0, found {_label(blocks, number)}")
        sizes.append(block.size_bytes)
    if sum(sizes) >= LARGEST_SUM_BYTES:
        raise CompilerError(f"the blocks sum to {sum(sizes)} bytes, more than the planner counts")
    start = np.array([block.start for block in blocks], dtype=np.int64)
    end = np.array([block.end for block in blocks], dtype=np.int64)
    return start, end, np.array(sizes, dtype=np.int64)


def _live_bytes(start: Ints, end: Ints, size: Ints) -> tuple[Ints, Ints, Ints]:
    """Bytes alive between each two neighbouring events, and each block's first and last + 1 such interval."""
    events = np.unique(np.concatenate((start, end)))
    first, last = np.searchsorted(events, start), np.searchsorted(events, end)
    change = np.zeros(len(events) + 1, dtype=np.int64)
    np.add.at(change, first, size)
    np.subtract.at(change, last, size)
    return np.cumsum(change), first, last


def _greedy_portfolio(start: Ints, end: Ints, size: Ints, bound: int) -> tuple[Ints, str]:
    """The best of several greedy plans; stops at the first that meets the bound."""
    best: tuple[int, Ints, str] | None = None
    placed = 0
    for name, key in _orders(start, end, size):
        order = np.lexsort((np.arange(len(size)), start, -size, key))
        for fit in ("best-fit", "first-fit"):
            if best is not None and placed >= max(GREEDY_BLOCKS, 2 * len(size)):
                return best[1], best[2]
            limit = best[0] if best is not None else LARGEST_SUM_BYTES
            offsets = _greedy(start, end, size, order, fit == "best-fit", limit)
            placed += len(size)
            if offsets is None:
                continue
            peak = int((offsets + size).max())
            if best is None or peak < best[0]:
                best = (peak, offsets, f"greedy by {name}, {fit}")
            if peak == bound:
                return best[1], best[2]
    assert best is not None
    return best[1], best[2]


def _orders(start: Ints, end: Ints, size: Ints) -> Iterator[tuple[str, Ints]]:
    """Names and sort keys (smallest first) of the greedy orders; ties go to larger, then to earlier blocks."""
    live, first, last = _live_bytes(start, end, size)
    yield "size", -size
    # reduceat over [first, last) pairs; the odd entries are the gaps between blocks and are not wanted.
    breadth = np.maximum.reduceat(live, np.stack((first, last), axis=1).ravel())[::2]
    yield "breadth", -breadth
    yield "area", _rank(-(size.astype(np.float64) * (end - start)))
    yield "start", start
    ends_before = np.searchsorted(np.sort(end), start, side="right")
    starts_after = len(size) - np.searchsorted(np.sort(start), end, side="left")
    yield "conflicts", ends_before + starts_after
    yield "lifetime", start - end


def _rank(key: NDArray[np.float64]) -> Ints:
    return np.unique(key, return_inverse=True)[1].astype(np.int64)


def _greedy(start: Ints, end: Ints, size: Ints, order: Ints, best_fit: bool, limit: int) -> Ints | None:
    """Puts each block, in order, into the smallest (best-fit) or lowest (first-fit) gap among those placed before.

    None as soon as the peak reaches `limit`. The placed blocks are kept sorted by offset in four parallel arrays.
    """
    count = len(size)
    offsets = np.zeros(count, dtype=np.int64)
    table = np.zeros((4, count), dtype=np.int64)
    low, high, begins, finishes = table
    used = 0
    starts, ends, sizes = start.tolist(), end.tolist(), size.tolist()
    for number in order.tolist():
        need = sizes[number]
        if not need:
            continue
        now = np.flatnonzero((begins[:used] < ends[number]) & (finishes[:used] > starts[number]))
        offset = 0
        if len(now):
            floors = low[now]
            tops = np.maximum.accumulate(high[now])
            gaps = floors.copy()
            gaps[1:] -= tops[:-1]
            fitting = np.flatnonzero(gaps >= need)
            if len(fitting):
                gap = int(fitting[gaps[fitting].argmin()] if best_fit else fitting[0])
                offset = int(tops[gap - 1]) if gap else 0
            else:
                offset = int(tops[-1])
        if offset + need >= limit:
            return None
        offsets[number] = offset
        position = int(low[:used].searchsorted(offset, side="right"))
        table[:, position + 1 : used + 1] = table[:, position:used]
        table[:, position] = (offset, offset + need, starts[number], ends[number])
        used += 1
    return offsets
