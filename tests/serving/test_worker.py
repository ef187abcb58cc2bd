"""A candidate in a process of its own: what it does there, and that whatever happens there stays there."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.errors import ArtifactError, GuardError, RunError
from aot.runtime.serving import LinkError, WorkerPolicy, _wire
from aot.runtime.serving._process import Worker, _Process
from aot.runtime.serving.faults import Fault
from aot.runtime.serving.shadow import copies
from tests.runtime import handmade
from tests.serving import models

QUICK = WorkerPolicy(channels=2, hang_seconds=0.5, backoff_seconds=0.0, wait_seconds=0.05)
X = handmade.batch_of(6)
POISON = np.full((1, 5), models.POISON_VALUE, np.float32)


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Waits for something that happens soon; fails only after a time that no machine needs."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def tended(worker: Worker) -> Worker:
    worker.tend()
    return worker


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


class Started:
    """Makes workers and closes them."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.events: list[tuple[str, str]] = []

    def __call__(self, artifact: Any = None, policy: WorkerPolicy = QUICK, **more: Any) -> Worker:
        artifact = models.dense() if artifact is None else artifact
        worker = Worker(artifact, {"threads": 1}, policy, lambda kind, text: self.events.append((kind, text)), **more)
        self.workers.append(worker)
        return worker


@pytest.fixture
def start() -> Iterator[Started]:
    started = Started()
    yield started
    for worker in started.workers:
        worker.close()


def test_runs_and_describes(start: Started, tmp_path: Path) -> None:
    path = tmp_path / "dense.aot"
    path.write_bytes(models.dense())
    worker = start(path)
    assert [spec.name for spec in (*worker.inputs, *worker.outputs)] == ["x", "y"]
    for n in (1, 6, 4096, 3):
        x = handmade.batch_of(n)
        reply = worker.run({"x": x}, None)
        np.testing.assert_array_equal(reply.outputs["y"], handmade.expected(x))
        assert reply.seconds > 0 and reply.hop_seconds > 0 and reply.runs == 1
    assert worker.run({"x": X}, 5.0).runs == 2
    assert worker.report()["hop_count"] == 5
    assert worker.process_id != os.getpid()


def test_inputs_of_other_kinds(start: Started) -> None:
    worker = start()
    wanted = handmade.expected(X)
    for x in (np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2], memoryview(X.data)):
        np.testing.assert_array_equal(worker.run({"x": x}, None).outputs["y"], wanted)
    with pytest.raises(GuardError, match="expected element type f32, got f64"):
        worker.run({"x": X.astype(np.float64)}, None)
    with pytest.raises(GuardError, match="missing input 'x'"):
        worker.run({}, None)
    with pytest.raises(GuardError, match="no element type"):
        worker.run({"x": np.array(["a"])}, None)
    with pytest.raises(GuardError, match="dimension 1: expected 5, got 4"):
        worker.run({"x": X[:, :4].copy()}, None)
    assert worker.state == "ready" and worker.losses == 0


def test_from_many_threads(start: Started) -> None:
    worker = start(policy=WorkerPolicy(channels=3, wait_seconds=30.0, hang_seconds=60.0))
    wrong: list[Any] = []

    def ask(seed: int) -> None:
        for n in range(1, 40):
            x = handmade.batch_of(n) + np.float32(seed)
            if not np.array_equal(worker.run({"x": x}, None).outputs["y"], handmade.expected(x)):
                wrong.append((seed, n))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and worker.losses == 0


def test_a_crash_in_a_kernel(start: Started) -> None:
    worker = start(models.dense(models.CRASH))
    first = worker.process_id
    with pytest.raises(LinkError, match="SIGSEGV") as caught:
        worker.run({"x": POISON}, None)
    assert caught.value.cause == "crash"
    with pytest.raises(LinkError, match="restarting"):
        worker.run({"x": X}, None)
    worker.tend()
    np.testing.assert_array_equal(worker.run({"x": X}, None).outputs["y"], handmade.expected(X))
    assert worker.process_id != first and first is not None and not is_alive(first)
    assert [kind for kind, _ in start.events] == ["worker_lost", "worker_restarted"]


def test_a_hang_in_a_kernel(start: Started) -> None:
    worker = start(models.dense(models.HANG))
    first = worker.process_id
    with pytest.raises(LinkError, match="hung for") as caught:
        worker.run({"x": POISON}, None)
    assert caught.value.cause == "timeout" and first is not None and not is_alive(first)
    worker.tend()
    assert worker.run({"x": X}, None).runs == 1


def test_a_request_that_gives_up_does_not_end_the_process(start: Started) -> None:
    worker = start(faults=[Fault("slow", count=1, size=0.2)])
    with pytest.raises(LinkError, match="did not answer within") as caught:
        worker.run({"x": X}, 0.02)
    assert caught.value.cause == "timeout"

    def has_both_channels() -> bool:
        worker.tend()
        assert worker._process is not None
        return worker._process.idle.qsize() == 2

    until(has_both_channels)
    assert worker.run({"x": X}, None).runs == 2 and worker.losses == 0


def test_a_request_that_gave_up_on_a_hang(start: Started) -> None:
    worker = start(faults=[Fault("hang")])
    with pytest.raises(LinkError, match="did not answer"):
        worker.run({"x": X}, 0.02)
    assert worker.state == "ready"
    until(lambda: tended(worker).losses)
    assert start.events[0] == ("worker_lost", "hang: no answer within 0.5 s")


def test_all_channels_in_use(start: Started) -> None:
    worker = start(faults=[Fault("slow", size=0.3)], policy=WorkerPolicy(channels=1, wait_seconds=0.0))
    thread = threading.Thread(target=lambda: worker.run({"x": X}, None))
    thread.start()
    until(lambda: worker._process is not None and worker._process.idle.empty())
    with pytest.raises(LinkError) as caught:
        worker.run({"x": X}, None)
    assert caught.value.cause == "busy"
    thread.join()
    assert worker.losses == 0


@pytest.mark.parametrize("kind", ["killed", "device"])
def test_other_ends(start: Started, kind: str) -> None:
    worker = start(faults=[Fault(kind)])
    with pytest.raises(RunError):
        worker.run({"x": X}, None)
    assert worker.losses == 1 and ("SIGKILL" in worker.last_loss or "device error" in worker.last_loss)


def test_killed_while_idle(start: Started) -> None:
    worker = start()
    assert worker.process_id is not None
    os.kill(worker.process_id, signal.SIGKILL)
    until(lambda: tended(worker).restarts)
    assert worker.run({"x": X}, None).runs == 1


def test_restarts_within_limits(start: Started) -> None:
    seconds = [0.0]
    policy = WorkerPolicy(restarts=2, restart_window_seconds=100, backoff_seconds=1, most_backoff_seconds=50)
    worker = start(faults=[Fault("crash")], policy=policy, clock=lambda: seconds[0])

    def crash() -> None:
        with pytest.raises(LinkError):
            worker.run({"x": X}, None)

    crash()
    for wait in (1, 2):  # the second after twice as long
        seconds[0] += wait - 0.1
        worker.tend()
        assert worker.state == "restarting"
        seconds[0] += 0.1
        worker.tend()
        assert worker.state == "ready"
        crash()
    assert worker.state == "stopped" and start.events[-1][0] == "worker_stopped"
    seconds[0] += 1e6
    worker.tend()
    assert worker.state == "stopped"


def test_old_restarts_do_not_count(start: Started) -> None:
    seconds = [0.0]
    policy = WorkerPolicy(restarts=1, restart_window_seconds=100, backoff_seconds=1)
    worker = start(faults=[Fault("crash")], policy=policy, clock=lambda: seconds[0])
    for _ in range(3):
        with pytest.raises(LinkError):
            worker.run({"x": X}, None)
        assert worker.state == "restarting"
        seconds[0] += 1
        worker.tend()
        assert worker.state == "ready"
        seconds[0] += 200
    seconds[0] -= 1e6  # the clock goes back
    with pytest.raises(LinkError):
        worker.run({"x": X}, None)
    seconds[0] += 1
    worker.tend()
    assert worker.state == "ready"


def test_a_file_that_was_replaced_is_not_started(start: Started, tmp_path: Path) -> None:
    path = tmp_path / "dense.aot"
    path.write_bytes(models.dense(models.CRASH))
    worker = start(path)
    other = tmp_path / "other.aot"
    other.write_bytes(models.dense())
    os.replace(other, path)
    with pytest.raises(LinkError):
        worker.run({"x": POISON}, None)
    worker.tend()
    assert worker.state == "stopped" and "replaced" in worker.last_loss


def test_what_does_not_load(tmp_path: Path, start: Started) -> None:
    before = open_files()
    data = bytearray(models.dense())
    data[len(data) // 2] ^= 1
    with pytest.raises(ArtifactError):
        start(bytes(data))
    with pytest.raises(ArtifactError):
        start(tmp_path / "missing.aot")
    with pytest.raises(RunError, match="cannot be sent"):
        Worker(models.dense(), {"context": threading.Lock()}, QUICK, lambda kind, text: None)
    assert open_files() == before


def test_nothing_is_left_after_close(start: Started) -> None:
    start().close()  # what is made once in a process
    before, memory = open_files(), set(os.listdir("/dev/shm"))
    for fault in ("crash", "hang", "guard"):
        worker = start(faults=[Fault(fault)])
        for is_shadow in (False, True):
            with pytest.raises(RunError if fault != "guard" else GuardError):
                worker.run({"x": X}, None, is_shadow=is_shadow)
            worker.tend()
        process_id = worker.process_id
        worker.close()
        worker.close()
        assert process_id is None or not is_alive(process_id)
        with pytest.raises(LinkError, match="closed"):
            worker.run({"x": X}, None)
    start.workers.clear()
    del worker
    assert open_files() == before
    assert set(os.listdir("/dev/shm")) == memory


def test_a_dropped_worker_ends(start: Started) -> None:
    worker = Worker(models.dense(), {}, QUICK, lambda kind, text: None)
    process_id = worker.process_id
    del worker
    gc.collect()
    assert process_id is not None and not is_alive(process_id)


PARENT = """
import os, signal, sys, threading, time
import numpy as np
from aot.runtime.serving._process import Worker, _Process, WorkerPolicy
from aot.runtime.serving.faults import Fault
from aot.runtime.serving.shadow import copies
worker = Worker(sys.argv[1], {}, WorkerPolicy(), print, [Fault("hang")])
threading.Thread(target=lambda: worker.run({"x": np.zeros((1, 5), np.float32)}, None), daemon=True).start()
time.sleep(0.2)
print(worker.process_id, flush=True)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_it_ends_with_its_parent(tmp_path: Path, end: str) -> None:
    """Also in the middle of a run that hangs."""
    path = tmp_path / "dense.aot"
    path.write_bytes(models.dense())
    done = subprocess.run([sys.executable, "-c", PARENT, path, end], capture_output=True, text=True, timeout=60)
    process_id = int(done.stdout.split()[0])
    until(lambda: not is_alive(process_id))


def test_a_forked_child_leaves_it_alone(start: Started) -> None:
    worker = start()
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            try:
                worker.run({"x": X}, None)
            except LinkError:
                worker.close()
                code = 0
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert worker.run({"x": X}, None).runs == 1


def test_answers_that_make_no_sense(start: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"ok": True, "size": 65536, "seconds": 0.1, "runs": 1, "outputs": [["y", "f32", [6, 19], 128]]}
    bad: list[Any] = [
        {**good, "size": 1 << 40},
        {**good, "size": "65536"},
        {**good, "seconds": -1.0},
        {**good, "outputs": [["y", "f32", [6, 19], 65500]]},
        {**good, "outputs": [["y", "f32", [-6, 19], 128]]},
        {**good, "outputs": [["y", "f99", [6, 19], 128]]},
        {**good, "outputs": [["z", "f32", [6, 19], 128]]},
        {**good, "outputs": 7},
        {**good, "outputs": [["y"]]},
        {"ok": True},
        {},
    ]
    worker = start(policy=WorkerPolicy(restarts=0, hang_seconds=0.5))
    assert worker._process is not None
    channel = worker._process.shadow
    channel.arena.map(1)
    for reply in bad:
        with pytest.raises(RunError):
            worker._outputs(reply, channel)
    monkeypatch.setattr(_wire, "encoded", lambda message: b"[not json")
    with pytest.raises(LinkError, match="hung"):
        worker.run({"x": X}, None)


def test_headers() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for data in (b"{", b"[1]", b"\xff\xfe"):
            theirs.send(data)
            with pytest.raises(LinkError, match="makes no sense"):
                _wire.receive(ours)
        _wire.send(theirs, {"a": 1})
        assert _wire.receive(ours) == {"a": 1}
        with pytest.raises(RunError, match="bytes"):
            _wire.send(theirs, {"a": "b" * _wire.MOST_HEADER_BYTES})
        theirs.close()
        assert _wire.receive(ours) is None


def test_shared_memory_cannot_shrink() -> None:
    descriptor = _wire.shared_file("test")
    arena = _wire.Arena(descriptor)
    first = arena.map(100)
    view = np.frombuffer(first, np.uint8)
    assert len(arena.map(1 << 20)) == 1 << 20
    assert view.size == 1 << 16 and not view.any()  # an earlier mapping stays
    with pytest.raises(OSError):
        os.ftruncate(descriptor, 10)
    arena.close()
    arena.close()


def test_no_memfd(monkeypatch: pytest.MonkeyPatch, start: Started) -> None:
    def forbidden(*_: Any) -> int:
        raise PermissionError("memfd_create")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    np.testing.assert_array_equal(start().run({"x": X}, None).outputs["y"], handmade.expected(X))


@pytest.mark.parametrize("wrong", [{"channels": 0}, {"hang_seconds": 0}, {"restarts": -1}, {"wait_seconds": -1}])
def test_wrong_policies(wrong: dict[str, Any]) -> None:
    with pytest.raises(RunError):
        WorkerPolicy(**wrong)


@pytest.mark.parametrize("name", [b"z", 1, "n" * 200_000, object(), ("a", "b")])
def test_an_input_that_a_client_made_up_is_the_clients_fault(start: Started, name: Any) -> None:
    worker = start()
    before = worker.process_id
    for _ in range(QUICK.channels + 1):  # and takes no channel
        with pytest.raises(GuardError, match="unknown input"):
            worker.run({"x": X, name: X}, None)
    assert worker._process is not None and not worker._process.late
    np.testing.assert_array_equal(worker.run({"x": X}, None).outputs["y"], handmade.expected(X))
    assert tended(worker).process_id == before


def test_arrays_of_other_packages(start: Started) -> None:
    torch = pytest.importorskip("torch")

    class Exporter:
        def __dlpack__(self, **options: Any) -> Any:
            return X.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return X.__dlpack_device__()

    worker = start()
    for x in (Exporter(), torch.tensor(X, requires_grad=True)):
        np.testing.assert_array_equal(worker.run({"x": x}, None).outputs["y"], handmade.expected(X))
        copied, _ = copies({"x": x})
        np.testing.assert_array_equal(copied["x"], X)


def test_a_header_that_is_nested_without_end(start: Started) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.send(b"[" * 100_000)
        with pytest.raises(LinkError, match="no sense"):
            _wire.receive(ours)


@pytest.mark.parametrize("failing", ["memfd_create", "socketpair", "send_fds"])
def test_a_start_without_descriptors_leaves_none_behind(
    start: Started, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    worker = start()
    before = open_files()
    of: Any = os if failing == "memfd_create" else socket
    real, calls = getattr(of, failing), []

    def fail(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) > (0 if failing == "send_fds" else 2):
            raise OSError(24, "Too many open files")
        return real(*arguments, **options)

    if failing == "memfd_create":
        monkeypatch.setattr("tempfile.TemporaryFile", fail)
    monkeypatch.setattr(of, failing, fail)
    for _ in range(3):
        with pytest.raises(OSError, match="Too many"):
            _Process(worker._setup, QUICK.channels)
    assert open_files() == before


def test_a_killed_process_that_does_not_end_is_not_waited_for(start: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in a driver's or a disk's call, which no signal interrupts."""
    worker = start()
    assert worker._process is not None
    popen = worker._process.popen
    monkeypatch.setattr(popen, "kill", lambda: None)
    ended = threading.Thread(target=worker.close, daemon=True)
    ended.start()
    ended.join(20)
    try:
        assert not ended.is_alive()
    finally:
        monkeypatch.undo()
        popen.kill()
        popen.wait()


@pytest.mark.parametrize("when", ["before", "after"])
def test_closed_while_it_restarts(start: Started, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    before = open_files()
    worker = start()
    made: list[_Process] = []

    def make(*arguments: Any) -> _Process:
        if when == "before":
            worker.close()
        made.append(_Process(*arguments))
        if when == "after":
            worker.close()
        return made[0]

    monkeypatch.setattr("aot.runtime.serving._process._Process", make)
    with pytest.raises(LinkError, match="was closed while"):
        worker._start()
    assert made[0].popen.returncode is not None and open_files() == before
