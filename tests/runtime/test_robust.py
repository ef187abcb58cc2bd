"""What goes wrong around a run: cancelled or late between steps, processes that end or fork, two libraries."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot import dtypes
from aot.artifacts import Artifact
from aot.errors import ArtifactError, RunError
from aot.ir import TensorType
from aot.program import Argument, Buffer, KernelCode, Port, Program, Space, Step
from aot.runtime import _library as native
from aot.runtime import load
from tests.runtime import handmade

STEPS = 8
SOURCE = (
    handmade.PRELUDE
    + """
/* Counts itself; in step `dims[1]` writes 1 to where the caller's cancel flag is. */
void count(const struct args *a) {
    int *done = a->buffers[0];
    if (a->thread == 0) {
        done[1 + a->dims[0]] = 1;
        if (a->dims[0] == a->dims[1]) __atomic_store_n(done, 1, __ATOMIC_SEQ_CST);
    }
}
/* Waits until the clock has passed what the first input says. */
void wait(const struct args *a) {
    const i64 *until = a->buffers[1];
    int *done = a->buffers[0];
    if (a->thread == 0) {
        i64 now[2];
        do {
            long result;
            __asm__ volatile("syscall" : "=a"(result) : "a"(228L), "D"(1L), "S"(now) : "rcx", "r11", "memory");
        } while (now[0] * 1000000000LL + now[1] < *until);
        done[1] = 1;
    }
}
"""
)


def counting(cancel_at: int, *, barriers: bool = True) -> Program:
    """`done` i32 [1 + STEPS]: step i sets element 1 + i, and step `cancel_at` also element 0."""
    done = Port("done", TensorType(dtypes.I32, (1 + STEPS,)))
    steps = tuple(Step(0, (Argument(0),), (i, cancel_at), barrier=barriers) for i in range(STEPS))
    return Program(
        target="cpu:x86-64",
        variant="",
        symbols=(),
        inputs=(),
        outputs=(done,),
        state=(),
        guards=(),
        sources=(),
        constants=(),
        buffers=(Buffer(Space.OUTPUT, 0, 4 * (1 + STEPS)),),
        kernels=(
            KernelCode("count", "MAP", "count", (), "", SOURCE),
            KernelCode("wait", "MAP", "wait", (), "", SOURCE),
        ),
        steps=steps,
        code=handmade.compiled(SOURCE),
    )


def waiting() -> Program:
    """Step 0 waits for the time in the input `until`, nanoseconds of CLOCK_MONOTONIC; the others count."""
    program = counting(-1)
    first = Step(1, (Argument(0), Argument(1)), (0, -1))
    buffers = (*program.buffers, Buffer(Space.INPUT, 0, 8))
    inputs = (Port("until", TensorType(dtypes.I64, ())),)
    return replace(program, inputs=inputs, buffers=buffers, steps=(first, *program.steps[1:]))


class Session:
    """A session of the C API, for what the Python package does not offer."""

    def __init__(self, artifact: Artifact, threads: int) -> None:
        self.lib = native.library()
        self.model = load(artifact.data, threads=threads)
        self.handle = self.model._take()

    def run(self, done: Any, cancel: Any = None, deadline_ns: int = 0, until: Any = None) -> tuple[int, str]:
        """Status and message of a run that writes to `done`."""
        error = native.new_error()
        options = native.info(native.RunOptions)
        options.cancel = done.ctypes.data if cancel is None else cancel
        options.deadline_ns = deadline_ns
        shape = (ctypes.c_int64 * 1)(1 + STEPS)
        output = native.Tensor(done.ctypes.data, 1, 0, 1, 0, 32, 1, shape, None, 0)
        outputs = (ctypes.c_void_p * 1)(ctypes.addressof(output))
        inputs, count = None, 0
        if until is not None:
            tensor = native.Tensor(until.ctypes.data, 1, 0, 0, 0, 64, 1, None, None, 0)
            inputs, count = (ctypes.c_void_p * 1)(ctypes.addressof(tensor)), 1
        status = self.lib.aot_session_run(
            self.handle, inputs, count, outputs, 1, ctypes.byref(options), ctypes.byref(error)
        )
        return int(status), error.message.decode() if status else ""


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("cancel_at", [0, 3, STEPS - 2])
def test_cancelled_between_steps(threads: int, cancel_at: int) -> None:
    """The flag is set while a step runs: that step ends, the next one does not start, and the session goes on."""
    session = Session(handmade.artifact(counting(cancel_at)), threads)
    done = np.zeros(1 + STEPS, np.int32)
    status, message = session.run(done)
    assert status == 7 and "cancel flag" in message
    assert done[1:].tolist() == [1] * (cancel_at + 1) + [0] * (STEPS - 1 - cancel_at)
    never = ctypes.c_int32(0)
    done[:] = 0
    assert session.run(done, cancel=ctypes.addressof(never)) == (0, "")
    assert done.tolist() == [1] * (1 + STEPS)


def test_one_thread_looks_after_every_step() -> None:
    """Without barriers nothing makes the threads of a run meet, but one thread needs none to stop."""
    session = Session(handmade.artifact(counting(2, barriers=False)), 1)
    done = np.zeros(1 + STEPS, np.int32)
    assert session.run(done)[0] == 7
    assert done[1:].tolist() == [1, 1, 1] + [0] * (STEPS - 3)


@pytest.mark.parametrize("threads", [1, 3])
def test_late_between_steps(threads: int) -> None:
    """The first step runs past the deadline; the others do not start."""
    session = Session(handmade.artifact(waiting()), threads)
    done = np.zeros(1 + STEPS, np.int32)
    import time

    # Far enough that the run starts in time on a busy machine.
    deadline = time.monotonic_ns() + 300_000_000
    status, message = session.run(done, deadline_ns=deadline, until=np.asarray(deadline + 1))
    assert status == 7 and "deadline" in message
    assert done[1:].tolist() == [1] + [0] * (STEPS - 1)
    assert session.run(done, until=np.asarray(0))[0] == 0 and done[1:].all()


EXIT = """
import sys, threading, time
import numpy as np
from aot.runtime import load

path, how = sys.argv[1:]
model = load(path, threads=3)
def work():
    x = np.ones((50, 5), np.float32)
    while True:
        model(x)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
for _ in range(3):
    model(np.ones((7, 5), np.float32))
if how == "closed":
    load(path, threads=2).close()
elif how == "raise":
    sys.exit("bye")
elif how == "fork":
    import multiprocessing
    process = multiprocessing.get_context("fork").Process(target=lambda: model(np.ones((3, 5), np.float32)))
    process.start()
    process.join(60)
    assert process.exitcode == 0, process.exitcode
print("end", flush=True)
"""


@pytest.mark.parametrize("how", ["return", "closed", "raise", "fork"])
def test_interpreter_ends_while_threads_run(how: str, tmp_path: Path, dense_bytes: bytes) -> None:
    """Daemon threads in the middle of runs, a pool that spins, models that nobody closed."""
    path = tmp_path / "model.aot"
    path.write_bytes(dense_bytes)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EXIT, path, how], capture_output=True, text=True, timeout=120
    )
    if how == "raise":
        assert done.returncode == 1 and done.stderr == "bye\n"
    else:
        assert done.returncode == 0 and done.stdout == "end\n", done.stderr


@pytest.fixture
def second_library(tmp_path: Path) -> Iterator[ctypes.CDLL]:
    """Another copy of the library in this process, as another package may bring."""
    path = tmp_path / "libanother.so"
    shutil.copy(native.library_path(), path)
    lib = ctypes.CDLL(str(path))
    for name, (result, arguments) in native._FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    yield lib


def test_two_libraries_in_one_process(
    second_library: ctypes.CDLL, dense_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(dense_bytes, threads=2)
    with monkeypatch.context() as patch:
        patch.setattr(native, "library", lambda: second_library)
        second = load(dense_bytes, threads=3)
    assert first._lib is not second._lib
    failures: list[BaseException] = []

    def work(model: Any) -> None:
        try:
            for n in range(1, 40):
                np.testing.assert_array_equal(model(handmade.batch_of(n)), handmade.expected(handmade.batch_of(n)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(model,)) for model in (first, second, first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_mapped_file_that_changes(tmp_path: Path, dense_bytes: bytes) -> None:
    """A mapped file that was cut or written to is refused before a run looks at it; a replaced one is harmless."""
    path = tmp_path / "model.aot"
    x = handmade.batch_of(3)
    path.write_bytes(dense_bytes)
    model = load(path, threads=1, map_weights=True)
    other = tmp_path / "other"
    other.write_bytes(b"new")
    other.rename(path)
    np.testing.assert_array_equal(model(x), handmade.expected(x))
    path.write_bytes(dense_bytes)
    model, copied = load(path, threads=1, map_weights=True), load(path, threads=1)
    os.truncate(path, 10)
    with pytest.raises(ArtifactError, match="truncated") as caught:
        model(x)
    assert caught.value.where == str(path) and "rename" in caught.value.hint
    np.testing.assert_array_equal(copied(x), handmade.expected(x))


def test_threads_that_cannot_start_are_an_error(dense_bytes: bytes, tmp_path: Path) -> None:
    """With so little address space that no thread's stack fits, a model still runs on one thread."""
    path = tmp_path / "model.aot"
    path.write_bytes(dense_bytes)
    script = f"""
import resource
import numpy as np
from aot.errors import RunError
from aot.runtime import load
one = load({str(path)!r}, threads=1)
x = np.ones((2, 5), np.float32)
expected = one(x)
many = load({str(path)!r}, threads=1000)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
try:
    many(x)
    raise SystemExit("a thousand threads in 64 MB")
except RunError as error:
    assert "fewer threads" in error.hint, error
assert (one(x) == expected).all()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_run_after_a_failed_one(dense_bytes: bytes) -> None:
    model = load(dense_bytes, threads=2)
    x = handmade.batch_of(9)
    for _ in range(3):
        with pytest.raises(RunError, match="deadline"):
            model.run({"x": x}, timeout_seconds=1e-9)
        np.testing.assert_array_equal(model(x), handmade.expected(x))
