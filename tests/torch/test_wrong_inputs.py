"""What a caller from Python is told who leaves state out, gives numbers, or tensors without data in this memory."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aot
from aot.errors import GuardError, ModelError

torch: Any = pytest.importorskip("torch")


def compiled(module: Any, inputs: tuple[Any, ...], cache: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, inputs)
    return aot.compile(program, "cpu:x86-64-v3", cache_dir=cache).load(threads=1)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


class Counter(torch.nn.Module):
    """A buffer that changes, and an input that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Any, cache: Any) -> Any:
        self.calls.add_(1)
        cache.add_(x)
        return cache * self.calls


def test_state_that_is_left_out(cache: Path) -> None:
    model = compiled(Counter(), (torch.ones(2), torch.zeros(2)), cache)
    x, kept = np.ones(2, np.float32), np.zeros(2, np.float32)
    calls: tuple[Callable[[], Any], ...] = (lambda: model.run({"x": x}), lambda: model(x))
    for call in calls:
        with pytest.raises(GuardError) as caught:
            call()
        hint = caught.value.hint
        assert "'calls': state" in hint and "model.new_state()" in hint and "state=state" in hint
        assert "'cache': state that you make" in hint
    with pytest.raises(GuardError) as caught:
        model.run({"x": x, "cache": kept})
    assert "new_state" in caught.value.hint and "that you make" not in caught.value.hint
    with pytest.raises(GuardError) as caught:
        model.run({"x": x}, state=model.new_state())
    assert "missing input 'cache'" in caught.value.message and "new_state" not in caught.value.hint
    state = {**model.new_state(), "cache": kept}
    for number in (1, 2):
        np.testing.assert_array_equal(model.run({"x": x}, state=state)["output_0"], x * number * number)


class Scaled(torch.nn.Module):
    def forward(self, x: Any, count: Any, rate: Any, flag: Any, times: int) -> Any:
        return torch.where(flag, x * count + rate, x) * times


@pytest.fixture(scope="module")
def scaled(cache: Path) -> Any:
    return compiled(
        Scaled(), (torch.ones(2), torch.tensor(3, dtype=torch.int32), torch.tensor(0.5), torch.tensor(True), 2), cache
    )


def test_numbers_of_python_for_single_elements(scaled: Any) -> None:
    x = np.array([1, 2], np.float32)
    for rate in (0.5, 1, np.float32(0.5)):
        found = scaled.run({"x": x, "count": 7, "rate": rate, "flag": True})["output_0"]
        np.testing.assert_array_equal(found, (x * 7 + rate) * 2)
        np.testing.assert_array_equal(scaled(x, 7, rate, True), found)


@pytest.mark.parametrize(
    ("name", "wrong", "expected"),
    [
        ("count", 1.5, r"expected i32 \[\], got the number 1\.5"),
        ("count", True, "got the number True"),
        ("count", 1 << 31, "got the number 2147483648"),
        ("count", -(1 << 31) - 1, "got the number -2147483649"),
        ("flag", 1, r"expected bool \[\], got the number 1"),
        ("rate", True, r"expected f32 \[\], got the number True"),
        ("rate", 10**400, "got the number 1000"),
        ("rate", 1e40, r"expected f32 \[\], got the number 1e\+40"),
        ("rate", -(10**40), "got the number -1000"),
        ("x", 1.0, r"expected f32 \[2\], got the number 1\.0"),
        ("count", "3", "expected a numpy array"),
        ("count", np.int64(3), "expected element type i32, got i64"),
        ("count", None, "expected a numpy array"),
    ],
)
def test_numbers_that_do_not_fit(name: str, wrong: Any, expected: str, scaled: Any) -> None:
    inputs = {"x": np.ones(2, np.float32), "count": 3, "rate": 0.5, "flag": True, name: wrong}
    with pytest.raises(GuardError, match=expected) as caught:
        scaled.run(inputs)
    assert name in caught.value.where and caught.value.hint


@pytest.mark.parametrize("number", [math.inf, -math.inf, 3.4e38, 1e-50])
def test_numbers_at_the_ends_of_a_type(number: float, scaled: Any) -> None:
    x = np.ones(2, np.float32)
    found = scaled.run({"x": x, "count": 3, "rate": number, "flag": True})["output_0"]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, (x * 3 + np.float32(number)) * 2)


def test_half_types(cache: Path) -> None:
    """An array of the wrong one, or of its bits, is refused with how to convert it."""

    class Doubled(torch.nn.Module):
        def forward(self, h: Any, b: Any) -> Any:
            return h * 2, b * 2

    model = compiled(Doubled(), (torch.ones(2).half(), torch.ones(2).bfloat16()), cache)
    half, bfloat = np.ones(2, np.float16), np.ones(2, ml_dtypes.bfloat16)
    assert model.run({"h": half, "b": bfloat})["output_1"].dtype == bfloat.dtype
    for given, words in (
        ({"h": bfloat, "b": bfloat}, ("expected element type f16, got bf16", "array.astype('float16').")),
        ({"h": half, "b": half}, ("expected element type bf16, got f16", "array.astype(ml_dtypes.bfloat16).")),
        ({"h": half, "b": bfloat.view("u2")}, ("bf16, got u16", "or array.view(ml_dtypes.bfloat16) of its bits")),
        ({"h": half, "b": np.ones(2)}, ("bf16, got f64", "array.astype(ml_dtypes.bfloat16).")),
    ):
        with pytest.raises(GuardError) as caught:
            model.run(given)
        assert all(word in str(caught.value) for word in words), caught.value


def test_an_argument_that_export_fixed(scaled: Any) -> None:
    given = {"x": np.ones(2, np.float32), "count": 3, "rate": 0.5, "flag": True, "times": 2}
    with pytest.raises(GuardError, match="unknown input 'times'") as caught:
        scaled.run(given)
    assert "fixed when the program was exported" in caught.value.hint
    with pytest.raises(GuardError, match="got 5") as caught:
        scaled(*given.values())
    assert "fixed when the program was exported" in caught.value.hint


@pytest.mark.filterwarnings("ignore")
def test_tensors_without_data_here(scaled: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(2)
    for tensor, words in (
        (torch.ones(2, device="meta"), "got one on 'meta', which has no data"),
        (fake, "fake and has no data"),
        (torch.sparse_coo_tensor(size=(2,)), "layout sparse_coo"),
        (torch.nested.nested_tensor([torch.ones(2)]), "nested"),
    ):
        with pytest.raises(GuardError, match=words) as caught:
            scaled(tensor, 3, 0.5, True)
        assert caught.value.hint

    class Elsewhere:
        """What a tensor on an accelerator without addresses looks like."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch.ones(2), name)

        @property
        def device(self) -> Any:
            return torch.device("mps")

    Elsewhere.__module__ = "torch"
    with pytest.raises(GuardError, match="got one on 'mps'") as caught:
        scaled(Elsewhere(), 3, 0.5, True)
    assert "tensor.cpu()" in caught.value.hint


def test_weights_without_data(cache: Path, tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(2, device="meta"))

        def forward(self, x: Any) -> Any:
            return x + self.weight

    program = torch.export.export(Net(), (torch.ones(2, device="meta"),))
    torch.export.save(program, tmp_path / "meta.pt2")
    for source in (program, tmp_path / "meta.pt2"):
        with pytest.raises(ModelError, match="a tensor on the meta device has no data") as caught:
            aot.compile(source, "cpu:x86-64-v3", cache_dir=cache)
        assert "'weight'" in caught.value.where and "before it is exported" in caught.value.hint
