"""PyTorch's own samples on the compiled target, through .pt2 files. AOT_SUITE=all takes all of them; by default a
fixed part.

The figures of a whole run are in docs/torch_ops.md (benchmarks/torch_suites.py).
"""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from aot.frontend.torch_program import open_program
from benchmarks import torch_suites
from tests.torch import exportdb, moduleinfo, opinfo, suites
from tests.torch.compare_files import Comparer
from tests.torch.suites import Call, Case, Outcome, Runner

ROOT = Path(__file__).resolve().parents[2]
EVERYTHING = os.environ.get("AOT_SUITE") == "all"
KNOWN_FAILURES: dict[str, str] = {}  # "name dtype number": why
KNOWN_REFUSALS = {"nn.LinearCrossEntropyLoss": "it calls an op of torch_nn that PyTorch does not take to Core ATen"}


def chosen(cases: Iterable[Case], every: int) -> list[Case]:
    """The cases whose names hash to one in so many."""
    key = "{0.name} {0.dtype} {0.number}".format
    return [case for case in cases if EVERYTHING or zlib.crc32(key(case).encode()) % every == 0]


def check(outcomes: Iterable[Outcome], least: float) -> None:
    """No case fails that is not known to, and a part of those that PyTorch exports passes."""
    found = [o for o in outcomes if o.verdict != "unsupported" or o.case.name not in KNOWN_REFUSALS]
    counts = Counter(outcome.verdict for outcome in found)
    print(dict(counts))
    failures = {
        f"{outcome.case.name} {outcome.case.dtype} {outcome.case.number}": outcome.reason
        for outcome in found
        if outcome.verdict == "fail"
    }
    assert set(failures) <= set(KNOWN_FAILURES), failures
    assert counts["pass"] >= least * (len(found) - counts["no export"]), counts


@pytest.mark.suite
def test_opinfo(tmp_path: Path) -> None:
    check(Runner(tmp_path).run(chosen(opinfo.cases(limit=12), 100)), 0.85)


@pytest.mark.suite
def test_moduleinfo(tmp_path: Path) -> None:
    check(Runner(tmp_path).run(chosen(moduleinfo.cases(), 60)), 0.9)


@pytest.mark.suite
def test_exportdb(tmp_path: Path) -> None:
    every = 1 if EVERYTHING else 3
    check((exportdb.run(example, tmp_path) for example in list(exportdb.examples())[::every]), 1.0)


def test_the_page_is_current() -> None:
    result = json.loads((ROOT / "benchmarks" / "results" / "torch_suites.json").read_text())
    page = (ROOT / "docs" / "torch_ops.md").read_text()
    assert page == torch_suites.page(result), "python benchmarks/torch_suites.py --resume --write"


# The runner itself


def case(function: Any, *args: Any, number: int = 0, **changes: Any) -> Case:
    call = Call(function, args, {})
    return replace(Case("a", "float32", number, call, call.tensors()), **changes)


@torch.library.custom_op("aotc_tests::unknown", mutates_args=())  # type: ignore[untyped-decorator,unused-ignore]
def unknown(x: torch.Tensor) -> torch.Tensor:
    """An operator that no compiler knows."""
    return x.clone()


@unknown.register_fake  # type: ignore[untyped-decorator,unused-ignore]
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("through", [suites.FILE, suites.MEMORY])
def test_a_batch_says_of_each_case_what_becomes_of_it(through: str, tmp_path: Path) -> None:
    x = torch.arange(6.0).reshape(2, 3)

    def undecided(x: Any) -> Any:
        return x + 1 if x.sum() > 3 else x

    def changing(x: Any) -> Any:
        return x.add_(1).sum()

    cases = [
        case(lambda x: x * 2, x),
        case(undecided, x),
        case(torch.ops.aotc_tests.unknown, x),
        case(changing, x),
        case(lambda x, y: (torch.cat(x), y), [x, x], 3),
        case(torch.nonzero, x),
        case(torch.fft.rfft, x),
        case(torch.rand_like, x),
        case(lambda x: "text", x),
    ]
    outcomes = list(Runner(tmp_path, through=through).run(cases))
    verdicts = [outcome.verdict for outcome in outcomes]
    assert verdicts == [
        "pass", "no export", "unsupported", "pass", "pass", "pass", "pass", "pass", "no export",
    ], [outcome.reason for outcome in outcomes]  # fmt: skip
    assert outcomes[0].overloads == ("mul.Tensor",)
    assert outcomes[2].refused == outcomes[2].overloads == ("aotc_tests::unknown.default",)
    assert outcomes[7].note == "statistics"


def test_a_fault_is_found_in_its_batch(tmp_path: Path) -> None:
    x = torch.arange(6.0)
    cases = [case(lambda x, n=n: x + n, x, number=n) for n in range(7)]
    build = suites.compile_graph

    def faulty(graph: Any, target: str, cache: Path) -> bytes:
        if any(value.name.startswith("output_5.") for value in graph.outputs):
            raise RuntimeError("a defect")
        return build(graph, target, cache)

    with mock.patch.object(suites, "compile_graph", faulty):
        outcomes = list(Runner(tmp_path).run(cases))
    assert [outcome.verdict for outcome in outcomes] == ["pass"] * 5 + ["fail"] + ["pass"]
    assert outcomes[5].reason == "compile: RuntimeError: a defect"


def test_a_file_that_pytorch_does_not_write_is_its_own_fault(tmp_path: Path) -> None:
    call = Call(lambda x: x.item(), (torch.tensor(True),), {})
    made = Case("item", "bool", 0, call, call.tensors())
    (outcome,) = Runner(tmp_path).run([made])
    assert outcome.verdict == "no export" and "does not save" in outcome.reason
    (outcome,) = Runner(tmp_path, through=suites.MEMORY).run([made])
    assert outcome.verdict == "pass"


def test_a_fault_of_reading_is_found() -> None:
    x = torch.arange(6.0)
    cases = [case(lambda x, n=n: x + n, x, number=n) for n in range(5)]

    def faulty(saved: bytes) -> Any:
        program, digest = open_program(saved)
        for node in program.graph.nodes:
            if node.op == "call_function" and node.args[1] == 3:
                node.args = (node.args[0], 7)
        program.graph_module.recompile()
        return program, digest

    assert [outcome.verdict for outcome in Comparer().run(cases)] == ["pass"] * 5
    with mock.patch("tests.torch.compare_files.open_program", faulty):
        outcomes = list(Comparer().run(cases))
    assert [outcome.verdict for outcome in outcomes] == ["pass"] * 3 + ["fail", "pass"]
    assert outcomes[3].reason == "in memory a graph, in the file another"


def judge(function: Any, mine: Any, *args: Any, **changes: Any) -> tuple[str, str, str]:
    made = case(function, *args, **changes)
    return suites.judged(Outcome(made), [np.asarray(mine)], suites.eager(made))


def test_results_are_judged() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    assert judge(torch.neg, np.asarray([-1, -2, -3], np.float32), x)[0] == "pass"
    assert judge(torch.neg, np.asarray([-1, -2, -3.01], np.float32), x)[0] == "fail"
    assert judge(torch.neg, np.asarray([-1, -2, -3], np.float64), x) == ("fail", "type float64, eager has float32", "")
    assert judge(torch.neg, np.asarray([[-1, -2, -3]], np.float32), x)[0] == "fail"
    assert judge(torch.argmax, np.int64(1), x)[0] == "fail"
    assert judge(torch.empty_like, np.asarray([9, 9, 9], np.float32), x, unwritten=True)[0] == "pass"
    assert judge(torch.empty_like, np.asarray([9, 9, 9], np.int32), x, unwritten=True)[0] == "fail"
    assert judge(torch.neg, np.asarray([-1, -2, np.nan], np.float32), x)[0] == "fail"


def test_what_is_nearer_to_float64_than_eager_passes() -> None:
    x = torch.full((512,), 0.1, dtype=torch.float16)

    def step_by_step(x: Any) -> Any:
        total = x[0]
        for element in x[1:]:
            total = total + element
        return total

    half = {"dtype": "float16"}
    eager = float(step_by_step(x))
    truth = float(step_by_step(x.double()))
    assert abs(eager - truth) > 1e-2 * truth
    assert judge(step_by_step, np.float16(truth), x, **half) == ("pass", "", "float64")
    assert judge(step_by_step, np.float16(2 * truth - eager), x, **half)[2] in ("", "float64")
    assert judge(step_by_step, np.float16(truth + 5 * abs(eager - truth)), x, **half)[0] == "fail"


def test_equal_elements_may_be_named_in_another_order() -> None:
    x = torch.tensor([3.0, 1.0, 3.0])
    call = Call(torch.topk, (x, 1), {})
    made = Case("topk", "float32", 0, call, call.tensors(), same=opinfo.same_elements)
    for index, verdict in ((0, "pass"), (2, "pass"), (1, "fail"), (7, "fail")):
        results = [np.asarray([3], np.float32), np.asarray([index], np.int64)]
        assert suites.judged(Outcome(made), results, suites.eager(made))[0] == verdict
