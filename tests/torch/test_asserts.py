"""Assertions of a program: on sizes of inputs they are guards, on data they end the run, in the user's terms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.errors import GuardError
from aot.runtime import Model

pytest.importorskip("torch")
import torch

from tests.torch.programs import exported


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def built(function: Any, inputs: tuple[Any, ...], cache: Path, **options: Any) -> Model:
    return aot.compile(exported(function, inputs, **options), "cpu:x86-64-v3", cache_dir=str(cache)).load(threads=1)


def test_sizes_of_inputs_are_guards(cache: Path) -> None:
    def even(x: Any) -> Any:
        torch._check(x.shape[0] % 2 == 0)
        return x.reshape(-1, 2).sum(1)

    model = built(even, (torch.ones(6),), cache, open_axes=[[0]])
    np.testing.assert_array_equal(model(np.ones(8, "f4")), 2)
    with pytest.raises(GuardError, match="expected a multiple of 2, got 7"):
        model(np.ones(7, "f4"))

    def long(x: Any) -> Any:
        torch._check(x.shape[0] > 2)
        return x * 2

    with pytest.raises(GuardError, match="expected at least 3, got 2"):
        built(long, (torch.ones(5),), cache, open_axes=[[0]])(np.ones(2, "f4"))


def test_bounds_of_a_number_from_data(cache: Path) -> None:
    def ones(x: Any) -> Any:
        count = x[0].item()
        torch._check(count >= 2)
        torch._check(count <= 5)
        return torch.ones(count) * 2

    model = built(ones, (torch.tensor([3]),), cache)
    np.testing.assert_array_equal(model(np.array([4])), [2, 2, 2, 2])
    with pytest.raises(GuardError, match=r"\.py:\d+.*must be at most 5, it is 7"):
        model(np.array([7]))
    with pytest.raises(GuardError, match=r"\.py:\d+.*must be at least 2, it is -1"):
        model(np.array([-1]))


def test_relations_of_numbers_from_data(cache: Path) -> None:
    def first(x: Any) -> Any:
        count, other = x[0].item(), x[1].item()
        torch._check(count * 2 == other)
        torch._check(count < x.shape[0])
        return x.float() + count

    model = built(first, (torch.tensor([2, 4, 1]),), cache)
    np.testing.assert_array_equal(model(np.array([1, 2, 0])), [2, 3, 1])
    with pytest.raises(GuardError, match=r"2\*u0 \(2\) must be equal to u1 \(3\)"):
        model(np.array([1, 3, 0]))
    with pytest.raises(GuardError, match="u0 must be at most 2, it is 3"):
        model(np.array([3, 6, 0]))


def test_conditions_on_data(cache: Path) -> None:
    """With the message that the user wrote, and the state as it was."""

    class Logarithm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.count += 1
            torch._assert_async((x > 0).all(), "all numbers are positive")
            return x.log() + self.count

    program = torch.export.export(Logarithm(), (torch.ones(3),), strict=False)
    model = aot.compile(program, "cpu:x86-64-v3", cache_dir=str(cache)).load(threads=1)
    state = model.new_state()
    (found,) = model.run({"x": np.ones(3, "f4")}, state=state).values()
    np.testing.assert_array_equal(found, 1)
    pattern = r"all numbers are positive \(_assert_async\w* \(test_asserts\.py:\d+\)\).*assertion of the model does not"
    with pytest.raises(GuardError, match=pattern):
        model.run({"x": np.array([1, -1, 2], "f4")}, state=state)
    np.testing.assert_array_equal(state["count"], 1)

    def bounded(x: Any) -> Any:
        total = x.sum().item()
        torch._check(total > 0.5)
        return x + total

    checked = built(bounded, (torch.ones(3),), cache)
    np.testing.assert_array_equal(checked(np.ones(3, "f4")), 4)
    with pytest.raises(GuardError, match="does not hold"):
        checked(-np.ones(3, "f4"))


def test_metadata_asserts_cost_nothing(cache: Path) -> None:
    def typed(x: Any) -> Any:
        torch.ops.aten._assert_tensor_metadata(x, dtype=torch.float32)
        return x + 1

    artifact = aot.compile(exported(typed, (torch.ones(3),)), "cpu:x86-64-v3", cache_dir=str(cache))
    assert artifact.programs[0].flow is None
