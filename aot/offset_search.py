"""Exact search for offsets within a capacity: the second half of `aot.offsets`.

Rewritten from the description of MiniMalloc (M. D. Moffitt, ASPLOS 2023, doi 10.1145/3623278.3624752), with several
static orders searched in turn. Invariant: a search that ends without an answer has proved that there is none.

Why the search may look at so little: take, of all plans within the capacity, one whose offsets have the smallest sum.
Each block in it lies at 0 or on a block of its own time, so the plan can be built from the bottom up, in the order of
(offset, static order), with each block at the smallest offset that is still free to it. And while it is built, no
block is ever put so high that an unplaced one would fit below it, since that one could be lowered.

The static orders were chosen on the minimalloc instances because they fail on different ones; searched in turns, the
time is that of the luckiest, times their number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

# Above every offset: the minimum offset of a block that is placed, or belongs to another component.
ABSENT = 1 << 62
FIRST_SLICE_NODES = 64
# Shares of the nodes that are left: for the bound itself, and for each capacity between it and the best known peak.
BOUND_SHARE = 0.5
STEP_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Found:
    """The best offsets found (None: none below the given peak), and the bound as far as it was raised."""

    offsets: Ints | None
    lower_bound_bytes: int
    method: str
    nodes: int


def search(start: Ints, end: Ints, size: Ints, bound: int, peak: int, node_budget: int) -> Found:
    """Looks for offsets with a peak below `peak`, knowing that none is below `bound`.

    Tries the bound itself first (a hit is a proof), then halves the distance between the largest capacity that gave
    nothing and the best peak. A capacity that is proved impossible raises the bound.
    Every size is at least 1. Deterministic: `node_budget` counts placements tried.
    """
    problem = _Problem(start, end, size)
    unit = math.gcd(*size.tolist())  # every offset is a sum of sizes
    best: Ints | None = None
    method = ""
    nodes = 0
    tried = bound - unit  # the largest capacity so far for which no plan was found
    while bound < peak and nodes < node_budget:
        if tried < bound:
            capacity, share = bound, BOUND_SHARE
        elif tried < peak - unit:
            capacity, share = max(tried + (peak - tried) // 2 // unit * unit, bound), STEP_SHARE
        else:
            capacity, share = peak - unit, 1.0
        left = node_budget - nodes
        answer = _interleaved(problem, capacity, min(max(int(left * share), FIRST_SLICE_NODES), left))
        nodes += answer.nodes
        if answer.offsets is not None:
            best, method = answer.offsets, answer.method
            peak = int((best + size).max())
        else:
            tried = capacity
            if answer.exhausted:
                bound = capacity + unit
    return Found(best, bound, method, nodes)


@dataclass(frozen=True, slots=True)
class _Answer:
    offsets: Ints | None
    exhausted: bool
    method: str
    nodes: int


def _interleaved(problem: _Problem, capacity: int, node_budget: int) -> _Answer:
    """Runs a search per static order in turns of growing length, until one ends or the nodes are spent."""
    searches = [(name, _Search(problem, order, capacity)) for name, order in problem.orders]
    nodes = 0
    slice_nodes = FIRST_SLICE_NODES
    while nodes < node_budget:
        for name, one in searches:
            before = one.nodes
            ended = one.run(min(slice_nodes, node_budget - nodes))
            nodes += one.nodes - before
            if ended:
                offsets = one.offsets() if one.solved else None
                return _Answer(offsets, not one.solved, f"search by {name}", nodes)
            if nodes >= node_budget:
                break
        slice_nodes *= 2
    return _Answer(None, False, "", nodes)


class _Problem:
    """Blocks over compressed time. A section is a maximal set of blocks that live at the same time."""

    def __init__(self, start: Ints, end: Ints, size: Ints) -> None:
        events = np.unique(np.concatenate((start, end)))
        first, last = np.searchsorted(events, start), np.searchsorted(events, end)
        births = np.zeros(len(events), dtype=bool)
        deaths = np.zeros(len(events), dtype=bool)
        births[first] = True
        deaths[last] = True
        # Without a birth at its start or a death at its end, an interval's blocks all live in a neighbouring one too.
        kept = np.concatenate(([0], np.cumsum(births[:-1] & deaths[1:])))
        self.first: Ints = kept[first]
        self.last: Ints = kept[last]
        self.size = size
        self.sections = int(kept[-1])
        live = np.zeros(self.sections + 1, dtype=np.int64)
        np.add.at(live, self.first, size)
        np.subtract.at(live, self.last, size)
        live = np.cumsum(live)
        # The largest section that a block lives in, its steps, its sections, its area, its company.
        total = np.maximum.reduceat(live, np.stack((self.first, self.last), axis=1).ravel())[::2]
        steps = end - start
        width = self.last - self.first
        area = size.astype(np.float64) * width
        conflicts = ((self.first[:, None] < self.last) & (self.last[:, None] > self.first)).sum(1)
        self.orders: list[tuple[str, Ints]] = [
            ("total, steps, area", _descending(total, steps, size.astype(np.float64) * steps)),
            ("area, width, total", _descending(area, width, total)),
            ("total, conflicts", _descending(total, conflicts)),
            ("conflicts, area, total", _descending(conflicts, area, total)),
        ]


def _descending(*keys: NDArray[Any]) -> Ints:
    """The blocks sorted by these keys, the first one first, largest first; ties by number."""
    return np.lexsort((np.arange(len(keys[0])), *(-key for key in reversed(keys))))


@dataclass(slots=True)
class _Frame:
    """A component (sections `low`..`high`) with some blocks unplaced, and the placements not yet tried.

    `minimum` is each unplaced block's smallest free offset, or ABSENT. `unplaced` and `crossing` are, per section, the
    unplaced bytes in it and in both it and the next. When all choices fail, the frame numbered `creator` tries its
    next; frames in between belong to siblings that no choice here can change. `waiting` are siblings to solve after.
    """

    minimum: Ints
    unplaced: Ints
    crossing: Ints
    low: int
    high: int
    count: int
    choices: list[int]  # last one first
    creator: int
    waiting: tuple[_Component, ...]


@dataclass(frozen=True, slots=True)
class _Component:
    minimum: Ints
    unplaced: Ints
    crossing: Ints
    low: int
    high: int
    count: int
    offset: int
    block: int
    creator: int


class _Search:
    """Depth first, one static order, one capacity; `run` goes on where it stopped. Blocks are numbered by the order."""

    def __init__(self, problem: _Problem, order: Ints, capacity: int) -> None:
        self.order = order
        self.size = problem.size[order]
        self.first = problem.first[order]
        self.last = problem.last[order]
        self.capacity = capacity
        self.highest = capacity - self.size  # the largest offset at which each block fits
        self.number = np.arange(len(order))
        self.shared = (self.first[:, None] < self.last) & (self.last[:, None] > self.first)
        np.fill_diagonal(self.shared, False)
        self.lift = self.shared.astype(np.int64)  # times a top: what a placement does to the other blocks
        section = np.arange(problem.sections)[:, None]
        living = (self.first <= section) & (section < self.last)
        self.members = np.nonzero(living)[1]
        self.member_start = np.concatenate(([0], np.cumsum(living.sum(1))))
        self.sizes: list[int] = self.size.tolist()
        self.spans: list[tuple[int, int]] = list(zip(self.first.tolist(), self.last.tolist(), strict=True))
        self.twin = self._twins()
        self.place_at = [0] * len(order)
        self.nodes = 0
        self.solved = False
        self.stack: list[_Frame] = []
        unplaced = living @ self.size
        crossing = (living[:-1] & living[1:]) @ self.size
        minimum = np.zeros(len(order), dtype=np.int64)
        self.failed = bool((unplaced > capacity).any())
        self._push(self._split(minimum, unplaced, crossing, 0, problem.sections, 0, -1, -1))

    def _twins(self) -> list[int]:
        """For each block, the one before it in the order with the same lifetime and size, or -1."""
        latest: dict[tuple[tuple[int, int], int], int] = {}
        twins = []
        for block, key in enumerate(zip(self.spans, self.sizes, strict=True)):
            twins.append(latest.get(key, -1))
            latest[key] = block
        return twins

    def offsets(self) -> Ints:
        """The offsets found, in the problem's numbering."""
        result = np.zeros(len(self.order), dtype=np.int64)
        result[self.order] = self.place_at
        return result

    def run(self, nodes: int) -> bool:
        """Tries up to `nodes` placements. True when the search has ended, with `solved` set or a proof of failure."""
        stop = self.nodes + nodes
        while not self.solved and not self.failed and self.nodes < stop:
            frame = self.stack[-1]
            if not frame.choices:
                if frame.creator < 0:
                    self.failed = True
                else:
                    del self.stack[frame.creator + 1 :]
                continue
            self.nodes += 1
            self._try(frame, frame.choices.pop())
        return self.solved or self.failed

    def _try(self, frame: _Frame, block: int) -> None:
        """Places one block at its smallest offset and goes deeper, unless what is left cannot fit any more."""
        size = self.sizes[block]
        low, high = self.spans[block]
        offset = int(frame.minimum[block])
        self.place_at[block] = offset
        count = frame.count - 1
        if not count:
            self._push((), frame.waiting)
            return
        minimum = np.maximum(frame.minimum, self.lift[block] * (offset + size))
        minimum[block] = ABSENT
        if np.count_nonzero(minimum > self.highest) != len(minimum) - count:
            return  # an unplaced block no longer fits below the capacity
        unplaced = frame.unplaced.copy()
        unplaced[low:high] -= size
        here = unplaced[frame.low : frame.high]
        if self._hopeless(frame, minimum, here, offset, block):
            return
        creator = len(self.stack) - 1
        crossing = frame.crossing
        if high - low > 1:
            crossing = crossing.copy()
            crossing[low : high - 1] -= size
        if not here.all() or not crossing[low : high - 1].all():
            parts = self._split(minimum, unplaced, crossing, frame.low, frame.high, offset, block, creator)
        else:
            parts = (_Component(minimum, unplaced, crossing, frame.low, frame.high, count, offset, block, creator),)
        self._push(parts, frame.waiting)

    def _hopeless(self, frame: _Frame, minimum: Ints, here: Ints, offset: int, block: int) -> bool:
        """Whether what is unplaced (`here`: bytes per section of the frame) cannot be completed after this placement.

        A buried block is one whose smallest free offset came before the placement's, so that it can only be placed
        after another one has lifted it.
        """
        effective = np.maximum(minimum, offset)
        buried = np.flatnonzero((minimum < offset) | ((minimum == offset) & (self.number < block)))
        if len(buried):
            effective[buried] = (effective + self.size).min()
        if self._overfull(frame, effective, here):
            return True
        if not len(buried):
            return False
        # If none of its company can come low enough to lift it, a buried block could be lowered into the hole under it.
        company = self.shared[buried]
        lifting = np.where(company, effective, ABSENT).min(1)
        if (lifting >= minimum[buried] + self.size[buried]).any():
            return True
        effective[buried] = np.where(company, effective + self.size, ABSENT).min(1)
        return bool((effective[buried] > self.highest[buried]).any()) or self._overfull(frame, effective, here)

    def _overfull(self, frame: _Frame, effective: Ints, here: Ints) -> bool:
        """Whether some section's unplaced bytes, put above the lowest place that one of them can get, do not fit."""
        starts = self.member_start[frame.low : frame.high + 1]
        floors = np.minimum.reduceat(effective[self.members[starts[0] : starts[-1]]], starts[:-1] - starts[0])
        return bool(((floors + here > self.capacity) & (here > 0)).any())

    def _split(
        self, minimum: Ints, unplaced: Ints, crossing: Ints, low: int, high: int, offset: int, block: int, creator: int
    ) -> tuple[_Component, ...]:
        """The parts of sections `low`..`high` that no unplaced block joins, smallest first."""
        cuts = [low, *(np.flatnonzero(crossing[low : high - 1] == 0) + low + 1).tolist(), high]
        parts = []
        for part_low, part_high in pairwise(cuts):
            if unplaced[part_low]:
                inside = (self.first >= part_low) & (self.last <= part_high) & (minimum < ABSENT)
                part = np.where(inside, minimum, ABSENT)
                count = int(np.count_nonzero(inside))
                parts.append(_Component(part, unplaced, crossing, part_low, part_high, count, offset, block, creator))
        parts.sort(key=lambda part: part.count)
        return tuple(parts)

    def _push(self, parts: tuple[_Component, ...], waiting: tuple[_Component, ...] = ()) -> None:
        """Makes the next component the top frame; with none left, everything is placed."""
        pending = parts + waiting
        if not pending:
            self.solved = True
            return
        part, rest = pending[0], pending[1:]
        minimum = part.minimum
        hole_top = int((minimum + self.size).min())  # from here up, the smallest unplaced block would fit below
        open_blocks = np.flatnonzero((minimum >= part.offset) & (minimum < hole_top))
        offsets = minimum[open_blocks]
        choices = [
            block
            for block, offset in zip(open_blocks.tolist(), offsets.tolist(), strict=True)
            if (offset > part.offset or block > part.block)
            and (self.twin[block] < 0 or minimum[self.twin[block]] == ABSENT)
        ]
        choices.sort(key=lambda block: (minimum[block], block), reverse=True)
        self.stack.append(
            _Frame(minimum, part.unplaced, part.crossing, part.low, part.high, part.count, choices, part.creator, rest)
        )
