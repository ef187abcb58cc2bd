"""Data for calibration: what is read as how many samples, what is refused and how."""

from __future__ import annotations

import gc
import pickle
import struct
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.dims import Symbol
from aot.dtypes import F32, I64
from aot.errors import OptionError
from aot.ir import TensorType, Value
from aot.samples import open_samples

N = Symbol("N", 1, 64).dim
X = Value(TensorType(F32, (N, 3)), "x")
FIXED = Value(TensorType(F32, (1, 3)), "x")
IDS = Value(TensorType(I64, (N,)), "ids")


def floats(*shape: int) -> Any:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def shapes(data: Any, *inputs: Value, **more: Any) -> list[dict[str, tuple[int, ...]]]:
    return [{name: array.shape for name, array in sample.items()} for sample in open_samples(data, inputs, **more)()]


def test_files_of_one_run_and_of_many(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x=floats(5, 3))
    np.savez(tmp_path / "many.npz", x=floats(4, 5, 3))
    assert shapes(tmp_path / "one.npz", X) == [{"x": (5, 3)}]
    assert shapes(str(tmp_path / "many.npz"), X) == [{"x": (5, 3)}] * 4
    assert shapes(tmp_path, X) == [{"x": (5, 3)}] * 5, "many.npz, then one.npz"


def test_a_fixed_batch_of_one_splits_the_leading_axis(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=floats(6, 3))
    found = list(open_samples(tmp_path / "a.npz", [FIXED])())
    assert [sample["x"].shape for sample in found] == [(1, 3)] * 6
    assert np.array_equal(np.concatenate([sample["x"] for sample in found]), floats(6, 3))


def test_a_folder_with_a_file_for_each_input(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", floats(4, 3))
    np.save(tmp_path / "ids.npy", np.arange(4))
    assert shapes(tmp_path, X, IDS) == [{"x": (1, 3), "ids": (1,)}] * 4
    (tmp_path / "ids.npy").unlink()
    with pytest.raises(OptionError, match=r"no ids\.npy"):
        shapes(tmp_path, X, IDS)
    assert shapes(tmp_path, X, IDS, defaults={"ids": np.zeros(1, np.int64)})[0]["ids"] == (1,)


def test_npy_files_of_one_input(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", floats(2, 3))
    np.save(tmp_path / "b.npy", floats(5, 2, 3))
    assert shapes(tmp_path, X) == [{"x": (2, 3)}] * 6
    assert shapes(tmp_path / "a.npy", X) == [{"x": (2, 3)}]
    with pytest.raises(OptionError, match="one array, and the model has 2 inputs"):
        shapes(tmp_path / "a.npy", X, IDS)


def test_an_empty_array_is_no_sample(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", floats(0, 3))
    np.savez(tmp_path / "none.npz", x=floats(0, 5, 3))
    assert shapes(tmp_path / "none.npz", X) == []
    (tmp_path / "none.npz").unlink()
    assert shapes(tmp_path, X) == []


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": floats(2, 3)}, "no input 'y'"),
        ({"xs": floats(2, 3)}, "no input 'xs'"),
        ({}, "input 'x' is missing"),
        ({"x": floats(2, 3).astype("f8")}, "expected float32 elements, got float64"),
        ({"x": floats(3)}, r"has 2 axes; the array has 1"),
        ({"x": floats(1, 1, 2, 3)}, r"has 2 axes; the array has 4"),
        ({"x": np.array([[1, np.nan, 2]], np.float32)}, "NaN or infinity, in 1 of 3"),
        ({"x": np.array([[1, np.inf, np.nan]], np.float32)}, "NaN or infinity, in 2 of 3"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, arrays: Any, message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(OptionError, match=message) as error:
        shapes(tmp_path / "a.npz", X)
    assert error.value.where and (error.value.hint or "axes" in error.value.message)
    with pytest.raises(OptionError, match=message.replace("the array has 1", "the array has 1")):
        shapes([arrays], X)


def test_a_close_name_is_suggested(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{"images": floats(1, 3)})
    with pytest.raises(OptionError) as error:
        shapes(tmp_path / "a.npz", Value(X.type, "image"))
    assert "Did you mean 'image'?" in error.value.hint


def test_different_numbers_of_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=floats(4, 2, 3), ids=np.zeros((3, 2), np.int64))
    with pytest.raises(OptionError, match="x: 4, ids: 3"):
        shapes(tmp_path / "a.npz", X, IDS)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "int, which gives no samples"),
        ({"x": floats(1, 3)}, "one mapping of names to arrays"),
        ([floats(1, 3)], "not ndarray"),
        (floats(2, 1, 3), "not ndarray"),
        (["abc"], "not str"),
        (lambda: None, "NoneType, which gives no samples"),
        ("missing.npz", "no such file or folder"),
        ("folder/that/is/not", "no such file or folder"),
        ("no_module_of_that_name:f", "cannot load the data"),
        ("json:no_such_function", "cannot load the data"),
        ("json:__name__", "is no function"),
    ],
)
def test_what_is_no_data(data: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        shapes(data, X)


@pytest.mark.parametrize(("kind", "place", "number"), [("encrypted", 8, 1), ("compression", 10, 99)])
def test_archives_that_numpy_cannot_open(tmp_path: Path, kind: str, place: int, number: int) -> None:
    """What zipfile refuses as not implemented, or for want of a password, is an error of the data as any other."""
    path = tmp_path / "x.npz"
    np.savez(path, x=floats(5, 3))
    damaged = bytearray(path.read_bytes())
    struct.pack_into("<H", damaged, damaged.rindex(b"PK\x01\x02") + place, number)
    struct.pack_into("<H", damaged, place - 2, number)
    path.write_bytes(damaged)
    with pytest.raises(OptionError, match=kind) as error:
        shapes(path, X)
    assert error.value.where == str(path)


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "other.npy"])
@pytest.mark.parametrize("kind", ["pickle", "objects", "empty", "text", "truncated"])
def test_damaged_files(tmp_path: Path, name: str, kind: str) -> None:
    """Also where the file would be mapped; nothing in a pickle runs."""

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    path = tmp_path / "data" / name
    path.parent.mkdir()
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Evil()))
    elif kind == "objects":
        with path.open("wb") as file:
            objects = np.array([Evil(), None], object)
            np.save(file, objects) if path.suffix == ".npy" else np.savez(file, x=objects)
    elif kind == "truncated":
        with path.open("wb") as file:
            np.save(file, floats(5, 3)) if path.suffix == ".npy" else np.savez(file, x=floats(5, 3))
        path.write_bytes(path.read_bytes()[:-7])
    else:
        path.write_bytes(b"hello" if kind == "text" else b"")
    for data in (path, path.parent):
        with pytest.raises(OptionError) as error:
            shapes(data, X)
        assert name in error.value.where
    assert not (tmp_path / "ran").exists()


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"no \.npz or \.npy"):
        shapes(tmp_path, X)


MODULE = """
import numpy as np
def good():
    return [{"x": np.ones((1, 3), np.float32)}] * 2
def generator():
    yield from good()
def wrong():
    return [{"x": np.ones((1, 3))}]
def fails():
    yield {"x": np.ones((1, 3), np.float32)}
    raise KeyError("lost")
def nothing():
    return None
"""


def test_functions_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of modules in packages; what they give is checked like the rest, and their failures are theirs."""
    (tmp_path / "data_package").mkdir()
    (tmp_path / "data_package" / "__init__.py").touch()
    (tmp_path / "data_package" / "some.py").write_text(MODULE)
    (tmp_path / "data_package" / "broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("good", "generator"):
        assert shapes(f"data_package.some:{name}", X) == [{"x": (1, 3)}] * 2
    for name, message in (
        ("some:wrong", "got float64"), ("some:fails", "KeyError: 'lost'"), ("some:nothing", "gave NoneType"),
        ("broken:f", "cannot load the data"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=message):
            shapes(f"data_package.{name}", X)
    for module in [name for name in sys.modules if name.startswith("data_package")]:
        del sys.modules[module]


class Array(np.ndarray[Any, Any]):
    """An array that can be watched."""


def test_an_iterator_is_not_held() -> None:
    """Memory does not depend on how many samples there are; the first few are there for measurement."""
    alive: list[Any] = []

    def stream() -> Iterator[dict[str, Any]]:
        for _ in range(50):
            array = floats(1, 3).view(Array)
            alive.append(weakref.ref(array))
            yield {"x": array}

    samples = open_samples(stream(), [X], held=4)
    count = most = 0
    for _ in samples():
        gc.collect(0)
        most = max(most, sum(each() is not None for each in alive))
        count += 1
    assert count == 50 and most <= 4 + 3
    again = iter(samples())
    assert all(next(again)["x"].shape == (1, 3) for _ in range(4))
    with pytest.raises(OptionError, match="gone through before"):
        next(again)


def test_an_iterator_can_be_held_whole() -> None:
    samples = open_samples(iter([{"x": floats(1, 3)}] * 5), [X], held=None)
    assert [len(list(samples())) for _ in range(3)] == [5, 5, 5]
    first = open_samples(iter([{"x": floats(1, 3)}] * 5), [X], held=2)
    next(iter(first()))  # whoever stops early loses nothing
    assert len(list(first())) == 5


def test_state_may_be_left_out() -> None:
    defaults = {"ids": np.arange(2)}
    (sample,) = open_samples([{"x": floats(2, 3)}], [X, IDS], defaults=defaults)()
    assert np.array_equal(sample["ids"], [0, 1])
    (sample,) = open_samples([{"x": floats(2, 3), "ids": np.array([5, 6])}], [X, IDS], defaults=defaults)()
    assert np.array_equal(sample["ids"], [5, 6])
