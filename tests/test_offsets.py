"""The placement of buffers: literal cases, properties against brute force, the minimalloc instances, symbolic sizes."""

from __future__ import annotations

import csv
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.dims import Symbol, ceildiv, evaluate, maximum, typical_extent
from aot.errors import CompilerError
from aot.offset_search import search
from aot.offsets import (
    Block,
    Placement,
    check,
    check_symbolic,
    lower_bound_bytes,
    offsets_at,
    place,
    place_symbolic,
)

INSTANCES = sorted((Path(__file__).parent.parent / "benchmarks" / "minimalloc").glob("*.csv"))
SEARCHED_QUICKLY = ("B", "C")
# Known bounds (benchmarks/minimalloc/README.md) and what the greedy plans reach, which must not get worse.
BOUNDS = dict.fromkeys("ABEFGHIK", 1_048_576) | {"C": 1_039_360, "D": 986_112, "J": 989_184}
GREEDY_RATIOS = dict(A=1.30, B=1.35, C=1.37, D=1.32, E=1.38, F=1.13, G=1.18, H=1.27, I=1.39, J=1.33, K=1.30)


def read_instance(path: Path) -> list[Block]:
    with path.open(newline="") as file:
        return [Block(int(row["lower"]), int(row["upper"]), int(row["size"])) for row in csv.DictReader(file)]


def blocks_of(*rows: tuple[int, int, int]) -> list[Block]:
    return [Block(*row) for row in rows]


def smallest_peak(blocks: list[Block]) -> int:
    """The best peak of all: every order, each block on top of those before it. Independent of the planner.

    That covers every choice of which of two blocks is below the other, hence every placement.
    """
    sizes = [evaluate(block.size_bytes, {}) for block in blocks]
    conflicts = [[a.start < b.end and b.start < a.end for b in blocks] for a in blocks]
    best = sum(sizes)
    for order in itertools.permutations(range(len(blocks))):
        ends: dict[int, int] = {}
        for b in order:
            ends[b] = sizes[b] + max((end for other, end in ends.items() if conflicts[b][other]), default=0)
            if ends[b] >= best:
                break
        else:
            best = max(ends.values())
    return best


def checked(blocks: list[Block], placement: Placement) -> Placement:
    check(blocks, placement.offsets)
    ends = [offset + evaluate(block.size_bytes, {}) for offset, block in zip(placement.offsets, blocks, strict=True)]
    assert placement.peak_bytes == max(ends, default=0)
    assert lower_bound_bytes(blocks) <= placement.lower_bound_bytes <= placement.peak_bytes
    assert placement.proved == (placement.peak_bytes == placement.lower_bound_bytes)
    return placement


class TestPlace:
    def test_nothing(self) -> None:
        assert place([]) == Placement((), 0, 0, "empty", True, 0)
        assert lower_bound_bytes([]) == 0

    def test_one_block_lies_at_zero(self) -> None:
        placement = place(blocks_of((3, 4, 192)))
        assert (placement.offsets, placement.peak_bytes, placement.proved) == ((0,), 192, True)

    def test_lifetimes_are_half_open(self) -> None:
        placement = place(blocks_of((0, 2, 64), (2, 4, 64)))
        assert placement.offsets == (0, 0)

    def test_blocks_alive_together_stack(self) -> None:
        placement = place(blocks_of((0, 2, 64), (1, 4, 128)))
        assert (placement.peak_bytes, placement.proved) == (192, True)

    def test_empty_blocks_cost_nothing(self) -> None:
        blocks = blocks_of((0, 4, 64), (0, 4, 0), (1, 2, 0))
        placement = checked(blocks, place(blocks))
        assert placement.peak_bytes == 64
        assert place(blocks_of((0, 4, 0))).offsets == (0,)

    def test_negative_times_and_large_sizes(self) -> None:
        blocks = blocks_of((-5, 0, 1 << 40), (-1, 3, 1 << 41), (0, 9, 1 << 40))
        assert checked(blocks, place(blocks)).peak_bytes == 3 << 40

    def test_the_search_mends_a_greedy_plan(self) -> None:
        blocks = blocks_of((0, 2, 3), (1, 3, 2), (2, 5, 4), (3, 4, 3), (4, 7, 2), (5, 8, 4), (6, 9, 3), (0, 1, 6))
        greedy = checked(blocks, place(blocks, node_budget=0))
        searched = checked(blocks, place(blocks))
        assert searched.peak_bytes <= greedy.peak_bytes
        assert searched.proved

    def test_a_plan_above_the_bound_is_proved_by_exhaustion(self) -> None:
        # At most 6 bytes live at once, yet nothing fits into 6; found at random, checked by trying every stacking.
        blocks = blocks_of((0, 4, 2), (2, 5, 2), (3, 7, 1), (2, 3, 2), (4, 5, 3), (6, 7, 4), (0, 1, 4), (1, 2, 3))
        assert lower_bound_bytes(blocks) == 6
        assert smallest_peak(blocks) == 7
        placement = checked(blocks, place(blocks))
        assert (placement.peak_bytes, placement.lower_bound_bytes, placement.proved) == (7, 7, True)
        assert not place(blocks, node_budget=0).proved

    @pytest.mark.parametrize(
        ("block", "words"),
        [
            (Block(2, 2, 8, "x"), "at least one step"),
            (Block(3, 2, 8, "x"), "at least one step"),
            (Block(0, 1, -1, "x"), "at least 0"),
            (Block(0, 1, 1 << 62, "x"), "more than the planner counts"),
            (Block(0, 1, Symbol("n").dim, "x"), "known size"),
        ],
    )
    def test_senseless_blocks_are_named(self, block: Block, words: str) -> None:
        for function in (place, lower_bound_bytes):
            with pytest.raises(CompilerError, match=words):
                function([Block(0, 1, 8), block])

    def test_same_input_same_plan(self) -> None:
        blocks = read_instance(INSTANCES[0])
        assert place(blocks, node_budget=500) == place(blocks, node_budget=500)

    def test_a_budget_is_kept(self) -> None:
        for budget in (0, 1, 63, 1000):
            assert place(read_instance(INSTANCES[0]), node_budget=budget).nodes <= budget

    def test_deep_searches_do_not_recurse(self) -> None:
        # A staircase of pairs that greedy cannot pack tightly, longer than Python's recursion limit.
        blocks = [Block(i, i + 2 + i % 3, 64 * (1 + i * 7 % 5)) for i in range(990)]
        checked(blocks, place(blocks, node_budget=2000))

    def test_many_blocks_stay_greedy(self) -> None:
        blocks = [Block(i, i + 3 + i % 7, 64 * (1 + i * 13 % 11)) for i in range(3000)]
        assert checked(blocks, place(blocks)).nodes == 0


class TestCheck:
    def test_names_both_blocks(self) -> None:
        blocks = [Block(0, 2, 64, "hidden"), Block(5, 6, 64, "far"), Block(1, 3, 64, "logits")]
        with pytest.raises(CompilerError, match=r"block 0 'hidden'.*offset 0 and block 2 'logits'.*offset 63"):
            check(blocks, [0, 0, 63])
        check(blocks, [0, 0, 64])
        check(blocks, [64, 0, 0])

    def test_offsets_must_be_there_and_positive(self) -> None:
        with pytest.raises(CompilerError, match="each of 1 blocks, found 2"):
            check(blocks_of((0, 1, 8)), [0, 8])
        with pytest.raises(CompilerError, match="at least 0, found -8"):
            check(blocks_of((0, 1, 8)), [-8])
        with pytest.raises(CompilerError, match="no known size"):
            check([Block(0, 1, Symbol("n").dim)], [0])


small_blocks = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(0, 5)).map(lambda t: Block(t[0], t[0] + t[1], t[2])),
    min_size=1,
    max_size=6,
)
blocks_strategy = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(0, 9)).map(
        lambda t: Block(t[0], t[0] + t[1], t[2] * 64)
    ),
    max_size=40,
)


@st.composite
def planted(draw: st.DrawFn) -> tuple[list[Block], int]:
    """Blocks cut from a full rectangle of steps x bytes, and its height: a plan without a gap exists."""
    height = draw(st.integers(4, 24))
    pieces = [(0, draw(st.integers(4, 24)), height)]
    for _ in range(draw(st.integers(3, 24))):
        start, end, size = pieces.pop(draw(st.integers(0, len(pieces) - 1)))
        if draw(st.booleans()) and end - start > 1:
            cut = draw(st.integers(start + 1, end - 1))
            pieces += [(start, cut, size), (cut, end, size)]
        elif size > 1:
            cut = draw(st.integers(1, size - 1))
            pieces += [(start, end, cut), (start, end, size - cut)]
        else:
            pieces.append((start, end, size))
    return [Block(*piece) for piece in draw(st.permutations(pieces))], height


class TestProperties:
    @settings(deadline=None, max_examples=100)
    @given(small_blocks)
    def test_tiny_problems_are_solved(self, blocks: list[Block]) -> None:
        placement = checked(blocks, place(blocks))
        assert placement.proved
        assert placement.peak_bytes == smallest_peak(blocks)

    @settings(deadline=None, max_examples=100)
    @given(small_blocks)
    def test_the_search_alone_is_exact(self, blocks: list[Block]) -> None:
        # From a bound of one byte and a peak of the sum, it has to prove every capacity below the best impossible.
        blocks = [Block(block.start, block.end, evaluate(block.size_bytes, {}) + 1) for block in blocks]
        columns = [np.array(c) for c in zip(*((b.start, b.end, b.size_bytes) for b in blocks), strict=True)]
        total = int(columns[2].sum())
        unit = math.gcd(*columns[2].tolist())
        found = search(columns[0], columns[1], columns[2], unit, total, 100_000)
        best = smallest_peak(blocks)
        assert found.lower_bound_bytes == best
        if best < total:
            assert found.offsets is not None
            check(blocks, found.offsets.tolist())
            assert int((found.offsets + columns[2]).max()) == best
        else:
            assert found.offsets is None

    @settings(deadline=None, max_examples=100)
    @given(planted())
    def test_nothing_that_exists_is_proved_impossible(self, problem: tuple[list[Block], int]) -> None:
        blocks, height = problem
        placement = checked(blocks, place(blocks, node_budget=3000))
        assert placement.lower_bound_bytes == lower_bound_bytes(blocks) == height
        columns = [np.array(c) for c in zip(*((b.start, b.end, b.size_bytes) for b in blocks), strict=True)]
        found = search(columns[0], columns[1], columns[2], height, height * 2, 3000)
        assert found.lower_bound_bytes == height
        if found.offsets is not None:
            check(blocks, found.offsets.tolist())

    @settings(deadline=None, max_examples=150)
    @given(blocks_strategy, st.sampled_from([0, 50, 2000]))
    def test_plans_are_valid(self, blocks: list[Block], node_budget: int) -> None:
        checked(blocks, place(blocks, node_budget=node_budget))

    @settings(deadline=None, max_examples=60)
    @given(blocks_strategy, st.integers(1, 9), st.integers(1, 1000))
    def test_units_do_not_matter(self, blocks: list[Block], stretch: int, scale: int) -> None:
        stretched = [Block(b.start * stretch - 3, b.end * stretch - 3, b.size_bytes * scale) for b in blocks]
        assert place(stretched).peak_bytes == place(blocks).peak_bytes * scale


class TestMinimalloc:
    def test_the_instances_are_there(self) -> None:
        assert len(INSTANCES) == 11

    @pytest.mark.parametrize("path", INSTANCES, ids=lambda path: path.name[0])
    def test_greedy(self, path: Path) -> None:
        blocks = read_instance(path)
        placement = checked(blocks, place(blocks, node_budget=0))
        assert placement.lower_bound_bytes == BOUNDS[path.name[0]]
        assert placement.peak_bytes <= GREEDY_RATIOS[path.name[0]] * placement.lower_bound_bytes

    @pytest.mark.parametrize("path", [p for p in INSTANCES if p.name[0] in SEARCHED_QUICKLY], ids=lambda p: p.name[0])
    def test_search_reaches_the_bound(self, path: Path) -> None:
        blocks = read_instance(path)
        placement = checked(blocks, place(blocks))
        assert placement.proved
        assert placement.peak_bytes == BOUNDS[path.name[0]]

    @pytest.mark.slow
    @pytest.mark.parametrize("path", INSTANCES, ids=lambda path: path.name[0])
    def test_search(self, path: Path) -> None:
        blocks = read_instance(path)
        placement = checked(blocks, place(blocks))
        assert placement.peak_bytes <= 1.07 * BOUNDS[path.name[0]]


BATCH = Symbol("batch", lo=1)
LENGTH = Symbol("length", lo=1, hi=512)
SIZES = st.sampled_from(
    [
        64,
        1000,
        0,
        BATCH.dim * 4,
        BATCH.dim * LENGTH.dim * 4,
        LENGTH.dim * LENGTH.dim,
        ceildiv(LENGTH.dim, 2) * 256,
        maximum(BATCH.dim * 64, LENGTH.dim * 8),
        (LENGTH.dim - 1) * 128,
    ]
)
symbolic_blocks = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 8), SIZES).map(lambda t: Block(t[0], t[0] + t[1], t[2])),
    max_size=25,
)


class TestSymbolic:
    @settings(deadline=None, max_examples=150)
    @given(symbolic_blocks, st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 512)), min_size=1, max_size=4))
    def test_no_value_lets_live_blocks_share_bytes(self, blocks: list[Block], points: list[tuple[int, int]]) -> None:
        placement = place_symbolic(blocks, node_budget=500)
        check_symbolic(blocks, placement.order, placement.below)
        for batch, length in points:
            values = {"batch": batch, "length": length}
            offsets = offsets_at(blocks, placement, values)
            assert all(offset % 64 == 0 for offset in offsets)
            known = [Block(b.start, b.end, evaluate(b.size_bytes, values)) for b in blocks]
            check(known, offsets)

    @settings(deadline=None, max_examples=60)
    @given(symbolic_blocks)
    def test_the_representative_plan_is_as_good_as_a_static_one(self, blocks: list[Block]) -> None:
        placement = place_symbolic(blocks)
        static = [Block(b.start, b.end, s) for b, s in zip(blocks, placement.sizes_bytes, strict=True)]
        assert placement.peak_bytes <= place(static).peak_bytes
        assert placement.peak_bytes >= placement.lower_bound_bytes == place(static).lower_bound_bytes

    def test_supports_come_first_and_are_not_redundant(self) -> None:
        n = BATCH.dim
        blocks = [Block(0, 4, n * 64, "a"), Block(0, 4, n * 32, "b"), Block(0, 4, n * 16, "c")]
        placement = place_symbolic(blocks)
        assert placement.order == (0, 1, 2)
        assert placement.below == ((), (0,), (1,))
        assert placement.peak_bytes == 128 * (64 + 32 + 16)

    def test_values_choose_the_point(self) -> None:
        blocks = [Block(0, 2, BATCH.dim * 4), Block(1, 3, 256)]
        assert place_symbolic(blocks).sizes_bytes == (512, 256)
        assert place_symbolic(blocks, values={"batch": 1}).sizes_bytes == (64, 256)

    def test_blocks_that_are_empty_at_the_point_are_still_ordered(self) -> None:
        blocks = [Block(0, 2, (LENGTH.dim - 128) * 4), Block(0, 2, LENGTH.dim * 4)]
        placement = place_symbolic(blocks)
        check_symbolic(blocks, placement.order, placement.below)

    def test_nothing(self) -> None:
        placement = place_symbolic([])
        assert (placement.order, placement.below, placement.peak_bytes, placement.proved) == ((), (), 0, True)

    def test_typical_extents(self) -> None:
        assert typical_extent(Symbol("n")) == 128
        assert typical_extent(Symbol("n", lo=300)) == 300
        assert typical_extent(Symbol("n", hi=16)) == 16
        assert typical_extent(Symbol("n", lo=0, hi=0)) == 0
        assert typical_extent(Symbol("n", lo=7, divisor=7)) == 126
        assert typical_extent(Symbol("n", lo=130, divisor=4)) == 132

    def test_the_checker_names_an_unordered_pair(self) -> None:
        blocks = [Block(0, 2, 64, "a"), Block(1, 3, 64, "b"), Block(2, 4, 64, "c")]
        check_symbolic(blocks, (0, 1, 2), ((), (0,), (1,)))
        with pytest.raises(CompilerError, match=r"block 1 'b'.* and block 2 'c'.*neither below"):
            check_symbolic(blocks, (0, 1, 2), ((), (0,), (0,)))

    @pytest.mark.parametrize(
        ("order", "below", "words"),
        [
            ((0, 0), ((), ()), "expected an order"),
            ((0,), ((),), "expected an order"),
            ((0, 1), ((1,), ()), "sits on block 1, which does not come before"),
            ((0, 1), ((), (1,)), "sits on block 1"),
            ((0, 1), ((), (7,)), "sits on block 7"),
        ],
    )
    def test_the_checker_rejects_malformed_tables(
        self, order: tuple[int, ...], below: tuple[tuple[int, ...], ...], words: str
    ) -> None:
        with pytest.raises(CompilerError, match=words):
            check_symbolic(blocks_of((0, 1, 64), (0, 1, 64)), order, below)
