"""What a serving process learns from the library: reasons of refusals, counts of a model's runs, what to do next."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot.runtime
from aot.errors import GuardError, RunError
from aot.runtime import Model, load
from aot.runtime import _library as native
from tests.runtime import handmade

HEADER = (Path(aot.runtime.__file__).parent / "include" / "aot" / "runtime.h").read_text()


def numbers(prefix: str) -> dict[str, int]:
    """The constants of an enum of the header, by their names in lower case."""
    found = re.findall(rf"\b{prefix}_([A-Z_]+) = (\d+)", HEADER)
    return {name.lower().replace("_", " "): int(number) for name, number in found}


REASONS, ADVICE, ERRORS = numbers("AOT_REASON"), numbers("AOT_ADVICE"), numbers("AOT_ERROR")


def tensor(array: np.ndarray[Any, Any]) -> native.Tensor:
    """An f32 array as an aot_tensor."""
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    found = native.Tensor(array.ctypes.data, 1, 0, array.ndim, 2, 32, 1, shape, None, 0)
    found.kept = array, shape
    return found


def spoiled(name: str) -> native.Tensor | None:
    """An input of the dense model with one thing wrong."""
    x = tensor(handmade.batch_of(2))
    if name == "missing":
        return None
    if name == "place":
        x.device_type = 7
    elif name == "dtype":
        x.dtype_bits = 64
    elif name == "rank":
        x.rank = 1
    elif name == "extent":
        return tensor(np.zeros((2, 6), np.float32))
    elif name == "range":
        return tensor(np.zeros((5000, 5), np.float32))
    elif name == "layout":
        x.strides = x.steps = (ctypes.c_int64 * 2)(6, 1)
    elif name == "alignment":
        x.byte_offset = 1
    return x


class Session:
    """A session of the C API, and a run through it: the status and the reason."""

    def __init__(self, model: Model) -> None:
        self.model, self.lib = model, native.library()
        self.handle = model._new_session()

    def run(self, x: native.Tensor | None, y: native.Tensor | None = None, **options: Any) -> tuple[int, int]:
        error, given = native.new_error(), native.info(native.RunOptions)
        for name, value in options.items():
            setattr(given, name, value)
        inputs = (ctypes.c_void_p * 1)(ctypes.addressof(x) if x is not None else None)
        outputs = (ctypes.c_void_p * 1)(ctypes.addressof(y) if y is not None else None)
        arguments = (inputs, 1, outputs, 1, ctypes.byref(given), ctypes.byref(error))
        status = self.lib.aot_session_run(self.handle, *arguments)
        return status, int(error.reason)

    def check(self, x: native.Tensor | None) -> tuple[int, int]:
        error = native.new_error()
        inputs = (ctypes.c_void_p * 1)(ctypes.addressof(x) if x is not None else None)
        status = self.lib.aot_model_check(self.model._live, inputs, 1, ctypes.byref(error))
        return status, int(error.reason)

    def close(self) -> None:
        self.lib.aot_session_destroy(self.handle)


@pytest.fixture
def session(dense_bytes: bytes) -> Any:
    made = Session(load(dense_bytes, threads=1))
    yield made
    made.close()


@pytest.fixture(scope="module")
def dense_bytes() -> bytes:
    return handmade.artifact().data


GUARDS = ("missing", "place", "dtype", "rank", "extent", "range", "layout", "alignment")


@pytest.mark.parametrize("name", GUARDS)
def test_every_guard_has_its_reason(session: Session, name: str) -> None:
    expected = ERRORS["guard"], REASONS[name]
    assert session.check(spoiled(name)) == expected  # without a session, and not counted
    assert session.run(spoiled(name)) == expected
    assert session.model.statistics == (0, 0.0, {"guard": 1}, {name: 1})


def test_runs_that_are_stopped_say_by_what(session: Session) -> None:
    x = tensor(handmade.batch_of(2))
    flag = ctypes.c_int32(1)
    assert session.run(x, deadline_ns=1) == (ERRORS["cancelled"], REASONS["deadline"])
    assert session.run(x, cancel=ctypes.addressof(flag)) == (ERRORS["cancelled"], REASONS["cancel flag"])
    assert session.model.statistics.reasons == {"deadline": 1, "cancel flag": 1}


def test_outputs_over_inputs(session: Session) -> None:
    memory = np.zeros(2 * 19, np.float32)
    x = tensor(memory[:10].reshape(2, 5))
    assert session.run(x, tensor(memory.reshape(2, 19))) == (ERRORS["guard"], REASONS["overlap"])


def test_counts_survive_their_sessions(session: Session) -> None:
    model = session.model
    other = Session(model)
    for _ in range(3):
        assert session.run(tensor(handmade.batch_of(2)))[0] == 0
        assert other.run(tensor(handmade.batch_of(4)))[0] == 0
    assert other.run(spoiled("rank"))[0] == ERRORS["guard"]
    before = model.statistics
    other.close()
    assert model.statistics[0::2] == before[0::2] == (6, {"guard": 1})
    assert 0 < model.statistics.run_seconds == pytest.approx(before.run_seconds, rel=0.5)


def test_counting_from_many_threads(dense_bytes: bytes) -> None:
    model = load(dense_bytes, threads=1)
    seen: list[int] = []

    def work() -> None:
        for _ in range(200):
            model(handmade.batch_of(2))
            seen.append(model.statistics.runs)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.statistics.runs == 800 and max(seen) <= 800


def test_exceptions_have_the_reason(dense_bytes: bytes) -> None:
    with load(dense_bytes, threads=1) as model:
        with pytest.raises(GuardError) as guard:
            model(np.zeros((2, 6), np.float32))
        with pytest.raises(RunError) as late:
            model.run({"x": handmade.batch_of(2)}, timeout_seconds=0)
    assert (guard.value.reason, late.value.reason) == ("extent", "deadline")
    with pytest.raises(RunError) as closed:
        model(handmade.batch_of(2))
    assert closed.value.reason == ""


def test_names_and_advice_are_those_of_the_header() -> None:
    lib = native.library()
    assert {lib.aot_reason_name(number).decode(): number for number in REASONS.values()} == REASONS
    assert {lib.aot_status_name(number).decode(): number for number in ERRORS.values()} == ERRORS
    assert lib.aot_reason_name(-1) == lib.aot_reason_name(15) == lib.aot_reason_name(1000) == b"unknown"
    advice: Callable[..., int] = lib.aot_status_advice
    assert advice(0, 0) == ADVICE["none"]
    for name, expected in {
        "argument": "give up", "cancelled": "give up", "memory": "retry", "guard": "other", "signature": "other",
        "damaged": "other", "device": "other", "internal": "other",
    }.items():  # fmt: skip
        assert advice(ERRORS[name], 0) == ADVICE[expected], name
    assert advice(ERRORS["device"], REASONS["device lost"]) == ADVICE["restart"]


def test_a_shorter_struct_is_filled_as_far_as_it_goes(session: Session) -> None:
    session.run(tensor(handmade.batch_of(2)))
    found = native.StatisticsInfo(struct_size=24)
    session.lib.aot_model_statistics(session.model._live, ctypes.byref(found))
    assert found.struct_size == 24 and found.sessions == 1 and found.run_ns > 0 and found.by_status[0] == 0
    session.lib.aot_model_statistics(session.model._live, None)
