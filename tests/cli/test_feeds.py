"""Where inputs come from: files, numbers, random ones, and mixtures of these for a model of several inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.cli.feeds import FeedChoice, feeds, literal
from aot.dims import Symbol
from aot.dtypes import BOOL, F32, I64
from aot.errors import OptionError
from aot.ir import TensorType
from aot.program import Port, Program
from tests.cli.conftest import program

N, T = Symbol("N", 1, 64), Symbol("T")
PORTS = (
    Port("ids", TensorType(I64, (N.dim, T.dim))),
    Port("mask", TensorType(F32, (N.dim, T.dim))),
    Port("rate", TensorType(I64, ())),
    Port("a=b", TensorType(BOOL, (1,))),
)
TWO: Program = replace(program(), symbols=(N, T), inputs=PORTS)


def choose(*files: Path, named: tuple[str, ...] = (), **options: Any) -> FeedChoice:
    values: dict[str, Any] = {"random": False, "seed": None, "dims": (), **options}
    return FeedChoice(files, named, **values)


def test_numbers_become_the_type_of_the_input() -> None:
    named = ("ids=[[1, 2, 3]]", "mask=[[1, 0.5, 0]]", "rate=16000", "a=b=[true]")
    ((what, feed),) = feeds(TWO, choose(named=named))
    assert what == "given inputs"
    assert [(array.dtype.name, array.shape) for array in feed.values()] == [
        ("int64", (1, 3)), ("float32", (1, 3)), ("int64", ()), ("bool", (1,)),
    ]  # fmt: skip
    assert feed["rate"] == 16000 and feed["mask"][0, 1] == 0.5


def test_random_fills_what_is_not_given_in_its_sizes(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.ones((2, 7), np.int64))
    named = (f"ids={tmp_path / 'ids.npy'}", "rate=8000")
    ((what, feed),) = feeds(TWO, choose(named=named, random=True, seed=3))
    assert what == "given inputs, the others random, seed 3, N=2, T=7"
    assert feed["mask"].shape == (2, 7) and feed["rate"] == 8000 and set(feed) == {"ids", "mask", "rate", "a=b"}
    ((_, alone),) = feeds(TWO, choose(seed=3, random=True))
    ((_, again),) = feeds(TWO, choose(seed=3))
    assert alone["mask"].shape == (1, 64)
    for name in alone:
        np.testing.assert_array_equal(alone[name], again[name])


def test_a_file_and_named_inputs_together(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", ids=np.zeros((1, 2), np.int64), mask=np.zeros((1, 2), np.float32))
    np.savez(tmp_path / "b.npz", ids=np.ones((1, 3), np.int64), mask=np.ones((1, 3), np.float32))
    found = feeds(TWO, choose(tmp_path / "a.npz", tmp_path / "b.npz", named=("rate=1", "a=b=[false]")))
    assert [what for what, _ in found] == ["a.npz", "b.npz"]
    assert all(set(feed) == {"ids", "mask", "rate", "a=b"} for _, feed in found)
    np.save(tmp_path / "mask.npy", np.ones((1, 2), np.float32))
    ((_, feed),) = feeds(TWO, choose(tmp_path / "mask.npy", named=("ids=[[1, 2]]", "rate=1", "a=b=[false]")))
    assert feed["mask"].sum() == 2


@pytest.mark.parametrize(
    ("named", "options", "message"),
    [
        (("ids=[[1]]",), {}, "inputs are missing: 'mask': f32[N,T], 'rate': i64[], 'a=b': bool[1]"),
        (("ids=[[1]]",), {}, "or add --random to make them up"),
        (("ids=[[1]]",), {"seed": 1}, "Add --random"),
        (("idz=[[1]]",), {}, "no input 'idz'\n  hint: Did you mean 'ids'?"),
        (("rate=16000.5",), {}, "input 'rate' takes i64[]; 16000.5 is not of that type"),
        (("a=b=[2]",), {}, "input 'a=b' takes bool[1]"),
        (("rate=1e400",), {}, "input 'rate' takes i64[]"),
        (("rate=16k",), {}, "16k: no such file"),
        (("rate",), {}, "cannot read --input 'rate'"),
    ],
)
def test_errors(named: tuple[str, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        feeds(TWO, choose(named=named, **options))
    assert message in str(caught.value)


def test_a_bare_array_needs_a_name_where_several_inputs_are_open(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(3))
    with pytest.raises(OptionError, match="4 inputs are not given\n  hint: Say whose it is: --input NAME="):
        feeds(TWO, choose(tmp_path / "x.npy"))


def test_names_of_the_other_side_may_be_given() -> None:
    ((_, feed),) = feeds(TWO, choose(named=("extra=[1, 2]",), random=True), ("extra",))
    assert feed["extra"].tolist() == [1, 2] and "ids" in feed


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", 3), ("-2.5", -2.5), ("true", True), ("[]", []), ("[[1], [2]]", [[1], [2]]), ("1e3", 1000.0)],
)
def test_literals(text: str, expected: Any) -> None:
    found = literal(text)
    assert found is not None and found.tolist() == expected


@pytest.mark.parametrize("text", ["", "x.npy", "./5", "[1, [2]]", '"a"', "null", "{}", "[null]", '["a"]', "[1", "1 2"])
def test_not_literals(text: str) -> None:
    assert literal(text) is None
