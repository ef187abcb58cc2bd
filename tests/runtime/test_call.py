"""The two ways through a call, by the extension module and by ctypes alone: same results, same errors, same threads."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper

from aot.errors import GuardError, RunError
from aot.runtime import Model, _library, load
from tests.runtime import handmade

has_extension = pytest.mark.skipif(_library.caller_type() is None, reason="the extension module is not built")


@pytest.fixture(params=["extension", "ctypes"])
def model(request: pytest.FixtureRequest, dense_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model that has run once, so that the way is chosen."""
    if request.param == "ctypes":
        monkeypatch.setattr(_library, "caller_type", lambda: None)
    elif _library.caller_type() is None:
        pytest.skip("the extension module is not built")
    made = load(dense_bytes, threads=1)
    made(handmade.batch_of(1))
    assert (made._caller is None) == (request.param == "ctypes")
    return made


def test_the_first_run_chooses(dense_bytes: bytes) -> None:
    model = load(dense_bytes, threads=1)
    assert model._caller is None
    model(handmade.batch_of(1))
    assert (model._caller is None) == (_library.caller_type() is None)


def test_values_of_many_shapes(model: Model) -> None:
    for n in (1, 3, 4096, 2, 1, *range(5, 40)):
        x = handmade.batch_of(n)
        want = handmade.expected(x)
        np.testing.assert_array_equal(model.run({"x": x})["y"], want)
        np.testing.assert_array_equal(model.run(OrderedDict(x=x))["y"], want)
        np.testing.assert_array_equal(model(x), want)


def test_results_are_new_arrays(model: Model) -> None:
    x = handmade.batch_of(3)
    first = model.run({"x": x})
    second = model.run({"x": -x})
    assert list(first) == ["y"] and first["y"].base is None and first["y"].flags.writeable
    np.testing.assert_array_equal(first["y"], handmade.expected(x))
    np.testing.assert_array_equal(second["y"], handmade.expected(-x))
    assert not np.shares_memory(first["y"], second["y"])


class Sub(np.ndarray[Any, Any]):
    """A subclass, as of memory-mapped arrays."""


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x.view(Sub),
        lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),  # read-only
    ],
)
def test_other_arrays(model: Model, other: Callable[[Any], Any]) -> None:
    x = handmade.batch_of(4)
    np.testing.assert_array_equal(model.run({"x": other(x)})["y"], handmade.expected(x))
    np.testing.assert_array_equal(model(other(x)), handmade.expected(x))


def test_an_array_that_changes_between_calls(model: Model) -> None:
    x = handmade.batch_of(4)
    model(x)
    x *= -2
    np.testing.assert_array_equal(model(x), handmade.expected(x))
    x = np.resize(x, (2, 5))
    np.testing.assert_array_equal(model(x), handmade.expected(x))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": np.zeros((2, 6), np.float32)}, "dimension 1: expected 5, got 6"),
        ({"x": np.zeros((2, 5))}, "expected element type f32, got f64"),
        ({"x": np.zeros((2, 5), ">f4")}, r"no element type.* big-endian order[^$]*array\.astype\('<f4'\)"),
        ({"x": np.zeros((2, 5), ">f8")}, r"array\.astype\('<f8'\)"),
        ({"x": np.zeros((2, 5), np.complex64)}, r"no element type for numpy dtype complex64[^$]*array\.real"),
        ({"x": np.zeros((2, 5), object)}, "dtype object[^$]*Python objects"),
        ({"x": np.full((2, 5), "a")}, "which is text[^$]*numbers"),
        ({"x": np.full((2, 5), b"a")}, "which is text[^$]*numbers"),
        ({"x": np.zeros((2, 5), [("a", "f4")])}, r"no element type[^$]*array\['a'\]"),
        ({"x": np.zeros((2, 5), [("a", "f4")]).view(np.recarray)}, r"no element type[^$]*array\['a'\]"),
        ({"x": np.zeros((2, 5), "m8[s]")}, r"no element type[^$]*astype\('int64'\)"),
        ({"x": np.zeros((2, 5), np.longdouble)}, "no element type[^$]*to the input's type"),
        ({"x": np.zeros((2, 5), np.float16)}, r"expected element type f32, got f16[^$]*array\.astype\('float32'\)"),
        ({"x": np.ma.masked_array(np.zeros((2, 5), np.float32), np.eye(2, 5, dtype=bool))}, "masked[^$]*filled"),
        ({"x": np.zeros(5, np.float32)}, r"expected 2 dimensions \[batch, 5\], got 1"),
        ({"x": np.zeros((2, 10), np.float32)[:, ::2]}, "stride"),
        ({"x": np.zeros((5, 2), np.float32).T}, "stride"),
        ({"x": np.zeros((0, 5), np.float32)}, "expected 1 to 4096, got 0"),
        ({"x": np.zeros((4097, 5), np.float32)}, "expected 1 to 4096, got 4097"),
        ({"x": np.frombuffer(bytes(41), np.uint8)[1:].view(np.float32).reshape(2, 5)}, "aligned"),
        ({"x": [[1.0] * 5]}, "expected a numpy array"),
        ({"x": None}, "expected a numpy array"),
        ({"x": np.float32(1)}, "dimensions"),
        ({"y": np.zeros((2, 5), np.float32)}, "missing input 'x'; unknown input 'y'"),
        ({}, "missing input 'x'"),
        ({"x": np.zeros((1, 5), np.float32), 3: None}, "unknown input 3"),
        (np.zeros((2, 5), np.float32), "expected inputs by name"),
        (None, "expected inputs by name"),
        ((np.zeros((2, 5), np.float32),), "expected inputs by name"),
    ],
)
def test_errors(model: Model, inputs: Any, message: str) -> None:
    with pytest.raises(GuardError, match=message):
        model.run(inputs)
    x = handmade.batch_of(2)
    np.testing.assert_array_equal(model(x), handmade.expected(x))


def test_wrong_count(model: Model) -> None:
    with pytest.raises(GuardError, match="expected 1 inputs"):
        model()
    with pytest.raises(GuardError, match="expected 1 inputs"):
        model(handmade.batch_of(1), handmade.batch_of(1))


def test_closed(model: Model) -> None:
    model.close()
    with pytest.raises(RunError, match="closed"):
        model.run({"x": handmade.batch_of(1)})
    with pytest.raises(RunError, match="closed"):
        model(handmade.batch_of(1))


def test_threads(model: Model) -> None:
    wrong: list[int] = []

    def many(seed: int) -> None:
        for n in range(1, 150):
            x = handmade.batch_of(1 + n * seed % 37) * np.float32(seed)
            if not np.array_equal(model.run({"x": x})["y"], handmade.expected(x)):
                wrong.append(n)

    threads = [threading.Thread(target=many, args=(seed,)) for seed in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_references_are_given_back(model: Model) -> None:
    x, bad = handmade.batch_of(2), np.zeros((2, 6), np.float32)
    inputs = {"x": x}

    def counts() -> list[int]:
        return [sys.getrefcount(thing) for thing in (x, bad, inputs, np.empty, model._dtypes[0])]

    model.run(inputs)
    before = counts()
    for _ in range(50):
        result = model.run(inputs)["y"]
        model(x)
        with pytest.raises(GuardError):
            model.run({"x": bad})
    after = counts()
    assert all(abs(b - a) <= 2 for a, b in zip(before, after, strict=True)), (before, after)
    assert sys.getrefcount(result) == 2
    x.resize((4, 5), refcheck=False)  # no export of its buffer is left


@has_extension
def test_the_module_refuses_misuse(dense_bytes: bytes) -> None:
    kind = _library.caller_type()
    names = tuple(map(str, range(kind.most_ports + 1)))
    with pytest.raises(ValueError, match="at most"):
        kind(1, 1, 1, np.ndarray, np.empty, names, (), ())
    with pytest.raises(TypeError):
        kind(1, 1, 1, np.ndarray, np.empty, [], (), ())
    model = load(dense_bytes, threads=1)
    model(handmade.batch_of(1))
    with pytest.raises(TypeError):
        model._caller.run(0)
    assert model._caller.run(0, {}) is None


def chosen() -> bytes:
    """The places where x is above 0, and those elements: sizes that only the run knows."""
    import aot
    from tests.frontend.models import FLOAT, model_of

    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["flags"]),
        helper.make_node("NonZero", ["flags"], ["places"]),
        helper.make_node("Compress", ["x", "flags"], ["kept"], axis=0),
    ]
    constants = {"zero": np.zeros((), np.float32)}
    model = model_of(nodes, {"x": (FLOAT, ["n"])}, ["places", "kept"], constants=constants)
    return aot.compile(model, "cpu:x86-64-v3").data


@pytest.mark.parametrize("way", ["extension", "ctypes"])
def test_outputs_whose_shapes_are_known_after_the_run(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "ctypes":
        monkeypatch.setattr(_library, "caller_type", lambda: None)
    elif _library.caller_type() is None:
        pytest.skip("the extension module is not built")
    model = load(chosen(), threads=1)
    rng = np.random.default_rng(0)
    for n in (3, 1, 3, 8, 200, 2):
        x = rng.standard_normal(n).astype(np.float32)
        found = model.run({"x": x})
        np.testing.assert_array_equal(found["places"], np.nonzero(x > 0))
        np.testing.assert_array_equal(found["kept"], x[x > 0])
        assert all(array.flags.owndata and array.flags.writeable for array in found.values())
    x = np.array([1, -1, 2], np.float32)
    given = np.zeros(2, np.float32)
    assert model.run({"x": x}, outputs={"kept": given})["kept"] is given
    np.testing.assert_array_equal(given, x[x > 0])
    for wrong in (np.zeros(3, np.float32), np.zeros(2), np.zeros(4, np.float32)[::2]):
        with pytest.raises(GuardError, match="'kept'"):
            model.run({"x": x}, outputs={"kept": wrong})
