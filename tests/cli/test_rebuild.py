"""The search for the rewrite that is to blame, on builds that are made up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from aot.cli.rebuild import Culprit, Search
from aot.errors import CompilerError
from aot.ir import Array
from aot.options import CompileOptions
from aot.passes import Rewrites
from aot.pipeline import PIPELINE

TOTAL = 100
Wrong = Callable[[int, tuple[str, ...]], bool]  # of so many rewrites, with these rules and passes disabled


def search(wrong: Wrong, fails: Callable[[int], bool] = lambda count: False) -> Culprit:
    """A search among TOTAL rewrites of rules r0, r1, …, each at node n0, n1, …"""

    def run(options: CompileOptions) -> tuple[dict[str, Any], Rewrites]:
        count = TOTAL if options.bisect is None else options.bisect
        if fails(count):
            raise CompilerError("no kernel for it")
        made = Rewrites(options.bisect, count, f"r{count - 1} at n{count - 1}", "simplify:1")
        return {"y": wrong(count, options.disable)}, made

    def agree(outputs: Mapping[str, Array]) -> bool:
        return not outputs["y"]

    return Search(run, CompileOptions(), agree, lambda stage, detail: None).find()


@pytest.mark.parametrize("first", [1, 2, 37, 64, 99, 100])
def test_one_rewrite(first: int) -> None:
    found = search(lambda count, disabled: count >= first and f"r{first - 1}" not in disabled)
    assert (found.kind, found.number, found.rule, found.where) == ("rewrite", first, f"r{first - 1}", f"n{first - 1}")
    assert found.confirmed and found.pass_name == "simplify:1" and found.rewrites == TOTAL
    assert found.builds <= 5 + math.ceil(math.log2(TOTAL))


def test_no_rewrite() -> None:
    found = search(lambda count, disabled: True)
    assert found.kind == "none" and found.builds == 2 and "without any" in found.text


def test_nothing_is_wrong() -> None:
    found = search(lambda count, disabled: False)
    assert found.kind == "gone" and found.builds == 1


def test_a_rule_that_is_not_alone() -> None:
    """Without the rule that is found first others do the same, until the whole pass is left out."""
    found = search(lambda count, disabled: count >= 37 and "simplify" not in disabled)
    assert found.kind == "rewrite" and found.number == 37 and not found.confirmed
    assert found.passes == ("simplify",) and "others do the same" in found.text and "without simplify" in found.text


def test_what_does_not_build_with_few_rewrites() -> None:
    found = search(lambda count, disabled: count >= 37, lambda count: count < 5)
    assert (found.kind, found.number) == ("rewrite", 37)
    found = search(lambda count, disabled: "fold" not in disabled, lambda count: count < 5)
    assert (found.kind, found.passes) == ("passes", ("fold",)) and "fewest rewrites that build, 8" in found.text


def test_what_does_not_build_between() -> None:
    found = search(lambda count, disabled: count >= 60 and "dedupe" not in disabled, lambda count: 40 < count < 60)
    assert (found.kind, found.passes) == (
        "passes",
        ("dedupe",),
    ) and "50 of 100 rewrites the model does not build" in found.text


def test_builds_are_limited() -> None:
    many = len({item.name for item in PIPELINE if item.takes == item.gives})
    found = search(lambda count, disabled: True, lambda count: 0 < count < TOTAL)
    assert found.builds <= many + 12
    found = search(lambda count, disabled: False, lambda count: count == TOTAL)
    assert found.kind == "unknown" and found.builds == 1
