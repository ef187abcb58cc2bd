"""Decision trees as the node arrays of the op `tree_ensemble`.

Every node of a model becomes one or more nodes that ask x <= threshold (or, in a model that only asks so,
x < threshold): a strict test steps the threshold to its neighbour, a reversed one swaps the children, an
equality is two tests, membership one equality per member. Sub-trees may be shared by several parents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aot.errors import ModelError
from aot.ir import Array
from aot.ops.trees import words_of

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_STRICT = frozenset({"BRANCH_LT", "BRANCH_GTE"})


@dataclass(frozen=True, slots=True)
class Split:
    """An inner node of a model. `yes` and `no` are numbers of nodes, or -1 - leaf."""

    mode: str
    feature: int
    value: float
    yes: int
    no: int
    missing_is_yes: bool = False
    members: tuple[float, ...] = ()


@dataclass(frozen=True)
class TreeArrays:
    """Operands and attributes of `tree_ensemble`."""

    nodes: Array
    trees: Array
    inner: int
    strict: bool
    missing: bool


@dataclass
class _Canonical:
    """Tests x <= threshold in the making: threshold, feature, NaN goes left, left, right."""

    dtype: Any
    strict: bool
    tests: list[tuple[float, int, bool, int, int]] = field(default_factory=list)

    def test(self, value: float, feature: int, nan_left: bool, left: int, right: int) -> int:
        self.tests.append((value, feature, nan_left, left, right))
        return len(self.tests) - 1

    def below(self, value: float) -> float:
        """The threshold t for which x <= t means x < value; NaN, which nothing is at most, for -inf."""
        if value == -np.inf:
            return float("nan")
        return float(np.nextafter(self.dtype(value), self.dtype(-np.inf)))

    def equal(self, value: float, feature: int, nan_yes: bool, yes: int, no: int) -> int:
        """x == value, as x <= value and not x < value."""
        if value != value:
            return self.test(value, feature, nan_yes, yes if nan_yes else no, no)
        inner = self.test(self.below(value), feature, False, no, yes)
        if nan_yes:
            inner = self.test(float("inf"), feature, False, inner, yes)
            return self.test(value, feature, True, inner, no)
        return self.test(value, feature, False, inner, no)

    def add(self, split: Split, yes: int, no: int) -> int:
        """The first test of a model's node, whose children are canonical already."""
        mode, feature, value, missing = split.mode, split.feature, split.value, split.missing_is_yes
        if mode == "BRANCH_LEQ":
            return self.test(value, feature, missing, yes, no)
        if mode == "BRANCH_LT":
            return self.test(value if self.strict else self.below(value), feature, missing, yes, no)
        if mode in ("BRANCH_GT", "BRANCH_GTE"):
            if value != value:  # nothing compares with NaN
                return self.test(value, feature, missing, yes if missing else no, no)
            threshold = value if mode == "BRANCH_GT" or self.strict else self.below(value)
            return self.test(threshold, feature, not missing, no, yes)
        if mode == "BRANCH_EQ":
            return self.equal(value, feature, missing, yes, no)
        if mode == "BRANCH_NEQ":
            # x != NaN and NaN != x hold.
            return yes if value != value else self.equal(value, feature, False, no, yes)
        if mode == "BRANCH_MEMBER":
            for number, member in enumerate(split.members):
                no = self.equal(member, feature, missing and number == 0, yes, no)
            return no
        raise ModelError(f"unknown node mode {mode!r}", hint=f"Modes are {', '.join(MODES)}.")


def arrays_of(splits: Sequence[Split], roots: Sequence[int], leaves: int, features: int, dtype: Any) -> TreeArrays:
    """The arrays of the trees at `roots` (numbers of splits, or -1 - leaf). Raises ModelError for cycles and ranges."""
    modes = {split.mode for split in splits}
    strict = bool(modes) and modes <= _STRICT
    canonical = _Canonical(dtype, strict)
    order = _children_first(splits, roots)
    place: dict[int, int] = {-1 - leaf: -1 - leaf for leaf in range(leaves)}
    for number in order:
        split = splits[number]
        if not 0 <= split.feature < features:
            raise ModelError(f"a tree asks for feature {split.feature}; there are {features}")
        for child in (split.yes, split.no):
            if child not in place:
                raise ModelError("a tree's child is not in the tree")
        place[number] = canonical.add(split, place[split.yes], place[split.no])
    tests = canonical.tests
    # Parents first, in the order of a walk: what is read together lies together.
    inner = len(tests)
    rank = {number: inner - 1 - number for number in range(inner)}

    def final(reference: int) -> int:
        return rank[reference] if reference >= 0 else inner + (-1 - reference)

    depth = [0] * inner
    for number, (_, _, _, left, right) in enumerate(tests):
        depth[number] = 1 + max(depth[child] if child >= 0 else 0 for child in (left, right))
    head = words_of(np.dtype(dtype).itemsize * 8) // 2 - 1
    nodes = np.zeros((inner + leaves, words_of(np.dtype(dtype).itemsize * 8)), np.int32)
    if inner:
        rows = [rank[number] for number in range(inner)]
        thresholds = np.array([test[0] for test in tests], dtype)
        nodes[rows, :head] = thresholds.view(np.int32).reshape(inner, head)
        word = np.array([test[1] | (0x80000000 if test[2] else 0) for test in tests], np.uint32)
        nodes[rows, head] = word.view(np.int32)
        lefts = np.array([final(test[3]) for test in tests], np.int64)
        rights = np.array([final(test[4]) for test in tests], np.int64)
        nodes[rows, head + 1], nodes[rows, head + 2] = lefts, rights - lefts
    nodes[inner:, :head] = np.full(1, np.nan, dtype).view(np.int32)
    nodes[inner:, head + 1] = np.arange(inner, inner + leaves)
    trees = np.array(
        [(final(place[root]), depth[place[root]] if place[root] >= 0 else 0) for root in roots], np.int32
    ).reshape(-1, 2)
    return TreeArrays(nodes, trees, inner, strict, any(test[2] for test in tests))


def _children_first(splits: Sequence[Split], roots: Sequence[int]) -> list[int]:
    """The splits reached from the roots, children before parents, each once."""
    state = bytearray(len(splits))  # 1: on the path, 2: done
    order: list[int] = []
    for root in roots:
        stack = [(root, False)]
        while stack:
            number, leaving = stack.pop()
            if number < 0:
                continue
            if number >= len(splits):
                raise ModelError("a tree's child is not in the tree")
            if leaving:
                state[number] = 2
                order.append(number)
                continue
            if state[number] == 1:
                raise ModelError("a tree's node is its own descendant")
            if state[number] == 2:
                continue
            state[number] = 1
            stack.append((number, True))
            # The left child is placed next to its parent: it is visited last, so its number is the nearest.
            stack.append((splits[number].yes, False))
            stack.append((splits[number].no, False))
    return order


def leaf_lists(
    leaves: int, owners: Array, targets: Array, weights: Array, count: int
) -> tuple[Array, Array | None, Array | None]:
    """Weights of leaves: one row per leaf where every leaf has every target once, else (weights, starts, targets)."""
    order = np.argsort(owners, kind="stable")
    owners, targets, weights = owners[order], targets[order], weights[order]
    counts = np.bincount(owners, minlength=leaves)
    if len(owners) == leaves * count and (counts == count).all():
        rows = targets.reshape(leaves, count)
        if (np.sort(rows, axis=1) == np.arange(count)).all():
            dense = np.take_along_axis(weights.reshape(leaves, count), np.argsort(rows, axis=1), axis=1)
            return np.ascontiguousarray(dense), None, None
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return weights, starts, targets.astype(np.int32)


def numbered(keys: Sequence[tuple[int, int]]) -> Mapping[tuple[int, int], int]:
    """The place of each (tree, node); a pair that is there twice is a fault."""
    found = {key: place for place, key in enumerate(keys)}
    if len(found) != len(keys):
        raise ModelError("two nodes of one tree have the same number")
    return found
