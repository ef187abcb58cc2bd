"""The deployment's side of a candidate's worker process: starts it, asks it, kills it when it hangs, restarts it.

Any number of threads may ask at once; each request in flight has a channel, and no request touches another's. Only
`tend` restarts, so that no request ever waits for a process to start.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from aot import errors
from aot.errors import AotError, RunError
from aot.runtime._specs import StateSpec, TensorSpec
from aot.runtime.serving import _wire
from aot.runtime.serving.causes import BUSY, CLOSED, CRASH, TIMEOUT, UNAVAILABLE, LinkError

_END_SECONDS = 1.0  # that a killed process has to end
_DEVICE = 11  # aot_status: the device's error is sticky, so the process is of no use any more


@dataclass(frozen=True)
class WorkerPolicy:
    """Limits of a worker process.

    `channels`: requests that run in it at once, beside the one that is shadowed. `start_seconds`: for starting and
    loading. `hang_seconds`: a run that takes longer is a hang, and the process is killed. `wait_seconds`: how long a
    request waits for an idle channel before stable answers it. `restarts`: at most this many within
    `restart_window_seconds`, the first after `backoff_seconds`, each later one after twice as long, at most
    `most_backoff_seconds`.
    """

    channels: int = 4
    start_seconds: float = 60.0
    hang_seconds: float = 10.0
    wait_seconds: float = 0.05
    restarts: int = 5
    restart_window_seconds: float = 300.0
    backoff_seconds: float = 0.1
    most_backoff_seconds: float = 30.0

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= 100:
            raise RunError(f"channels must be from 1 to 100, got {self.channels!r}")
        if not (self.start_seconds > 0 and self.hang_seconds > 0 and self.wait_seconds >= 0 and self.restarts >= 0):
            raise RunError("the seconds and restarts of a worker process must not be negative")


class Reply(NamedTuple):
    """Results of a run in the worker: new arrays; the model's own seconds, and what getting there and back took;
    `runs`: how many runs of these shapes the process has had with it; `twin_seconds`: of stable's run beside it."""

    outputs: dict[str, Any]
    seconds: float
    hop_seconds: float
    runs: int
    twin_seconds: float | None = None


class SameFile:
    """Whether a path names the file that it named first; of what is no path, that is always so."""

    def __init__(self, source: Any) -> None:
        self._path = os.fspath(source) if isinstance(source, str | os.PathLike) else None
        self._identity = self._find()

    def _find(self) -> tuple[int, ...] | None:
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def is_same(self) -> bool:
        """Whether it is the same file, with the same size and time."""
        return self._find() == self._identity


class _Channel:
    def __init__(self) -> None:
        self.arena = _wire.Arena(_wire.shared_file("aot-serving"))
        try:
            self.socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except BaseException:
            self.arena.close()  # sockets close by themselves
            raise

    def close(self) -> None:
        self.socket.close()
        self.theirs.close()
        self.arena.close()


class _Process:
    """One process and what leads to it."""

    def __init__(self, setup: int, channels: int) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.idle: queue.LifoQueue[_Channel] = queue.LifoQueue()
        self.late: list[tuple[_Channel, float]] = []  # of requests that gave up, until their reply or a hang
        made: list[_Channel] = []
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-P", "-m", "aot.runtime.serving.worker", str(theirs.fileno())]
        started: subprocess.Popen[bytes] | None = None
        try:
            for _ in range(1 + channels):
                made.append(_Channel())
            self.popen = started = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
                env=environment, start_new_session=True,
            )  # fmt: skip
            descriptors = [setup]
            for channel in made:
                descriptors += [channel.theirs.fileno(), channel.arena.descriptor]
            socket.send_fds(self.control, [b"setup"], descriptors)
        except BaseException:
            if started is not None:
                _end_process(started)
            for channel in made:
                channel.close()
            self.control.close()
            raise
        finally:
            theirs.close()
        for channel in made:
            channel.theirs.close()  # so that the end of the process is the end of the channel
        self.shadow = made[0]  # of the shadow thread alone
        for channel in made[1:]:
            self.idle.put(channel)
        self.is_lost = self.is_shadow_busy = False

    def make_idle(self, channel: _Channel) -> None:
        """A channel that waits for its next request."""
        if channel is self.shadow:
            self.is_shadow_busy = False
        else:
            self.idle.put(channel)

    def end(self) -> int:
        """Kills the process and closes what nobody uses; returns the exit status. Channels in use see the end."""
        self.is_lost = True
        status = _end_process(self.popen)
        self.control.close()
        if not self.is_shadow_busy:
            self.shadow.close()
        with contextlib.suppress(queue.Empty):
            while True:
                self.idle.get_nowait().close()
        for channel, _ in self.late:
            channel.close()
        self.late.clear()
        return status


def _end_process(process: subprocess.Popen[bytes]) -> int:
    """Kills it; the exit status. One that a driver or a disk keeps in the kernel is not waited for: requests would wait
    with it. It ends, and is taken from the list of processes, once the kernel lets it go."""
    process.kill()
    try:
        return process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL


_all: weakref.WeakSet[Worker] = weakref.WeakSet()


class Worker:
    """A candidate in a process of its own, with the limits of a WorkerPolicy.

    `artifact`: a path or bytes. `twin`: stable's, which shadowed requests run as well, so that times are compared that
    were taken alike. Raises what loading them raises there, and LinkError where the process ends or does not answer.
    `on_event(kind, message)` is told of losses and restarts.
    """

    def __init__(
        self,
        artifact: Any,
        options: Mapping[str, Any],
        policy: WorkerPolicy,
        on_event: Callable[[str, str], None],
        faults: Any = (),
        clock: Callable[[], float] = time.monotonic,
        twin: Any = None,
    ) -> None:
        self._policy, self._on_event, self._clock = policy, on_event, clock
        self._artifact, self._twin = artifact, twin
        self._file, self._twin_file = SameFile(artifact), SameFile(twin)
        self._options, self._faults = dict(options), tuple(faults)
        self._setup = _wire.shared_file("aot-serving-setup")
        try:
            self._write_setup()
        except Exception as error:
            os.close(self._setup)
            raise RunError(
                f"a load option cannot be sent to a worker process: {error}",
                hint='Give paths and plain values, or use isolation="none".',
            ) from error
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._restarts: deque[float] = deque()
        self._restart_at = 0.0
        self.state = "starting"
        self.restarts = self.losses = 0
        self.last_loss = ""
        self.hops: deque[float] = deque(maxlen=1024)
        self.hop_count = 0
        self._holder: list[_Process] = []
        self._end = weakref.finalize(self, _end_all, self._holder, self._setup, os.getpid())
        _all.add(self)
        try:
            hello = self._start()
        except BaseException:
            self.close()
            raise
        self.inputs = tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in hello["inputs"])
        self.outputs = tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in hello["outputs"])
        self.states = tuple(StateSpec(*pair) for pair in hello["state"])
        self.target, self.meta = str(hello["target"]), dict(hello["meta"])
        self._specs = {spec.name: spec for spec in self.inputs}
        self._results = {spec.name: spec for spec in self.outputs}

    def _write_setup(self) -> None:
        """What the process reads when it starts."""
        setup = {"artifact": _given(self._artifact), "twin": _given(self._twin)}
        with open(os.dup(self._setup), "wb") as file:
            file.seek(0)  # what an earlier, longer text leaves behind this one is not read
            pickle.dump({**setup, "options": self._options, "faults": self._faults}, file)

    @property
    def has_twin(self) -> bool:
        """Whether shadowed requests run stable's artifact there too."""
        return self._twin is not None

    def is_same_file(self) -> bool:
        """Whether the path still names what was loaded first."""
        return self._file.is_same()

    def _check_open(self) -> None:
        if self.state == "closed":
            raise LinkError(CLOSED, "the worker process was closed while it started")

    def _start(self) -> dict[str, Any]:
        with self._lock:
            self._check_open()
            setup = os.dup(self._setup)  # `close` may close it meanwhile, and its number become another file's
        try:
            process = _Process(setup, self._policy.channels)
        finally:
            os.close(setup)
        self._holder.append(process)
        try:
            self._check_open()
        except LinkError:
            self._discard(process)
            raise
        process.control.settimeout(self._policy.start_seconds)
        try:
            hello = _wire.receive(process.control)
            if hello is None:
                raise LinkError(CRASH, "the worker process ended while it loaded the candidate")
            if not hello.get("ok"):
                raise _exception(hello)
            hello["meta"] = _meta(process, hello)
        except (TimeoutError, OSError) as error:
            self._discard(process)
            raise LinkError(
                TIMEOUT, f"the worker process was not ready within {self._policy.start_seconds:g} s"
            ) from error
        except BaseException as error:
            status = self._discard(process)
            if isinstance(error, LinkError):
                raise LinkError(error.cause, f"{error.message} ({_how_it_ended(status)})") from error
            raise
        with self._lock:
            if self.state == "closed":
                is_wanted = False
            else:
                is_wanted, self._process, self.state = True, process, "ready"
        if not is_wanted:
            self._discard(process)
            raise LinkError(CLOSED, "the worker process was closed while it started")
        return hello

    def _discard(self, process: _Process) -> int:
        with contextlib.suppress(ValueError):
            self._holder.remove(process)
        return process.end()

    @property
    def process_id(self) -> int | None:
        """Of the process that runs now."""
        process = self._process
        return process.popen.pid if process is not None else None

    def run(self, inputs: Mapping[str, Any], timeout_seconds: float | None, *, is_shadow: bool = False) -> Reply:
        """Runs once there. Raises GuardError and RunError as the model does, LinkError for all that is the worker's.

        After `timeout_seconds` the request gives up; the process is killed only after `hang_seconds`. `is_shadow`: on
        the channel of shadowed requests, of which there is one at a time.
        """
        begin = time.perf_counter()
        process = self._process
        if process is None:
            raise LinkError(UNAVAILABLE, f"the worker process is {self.state}")
        arrays = _wire.as_arrays(inputs, self._specs)
        channel = self._take(process, timeout_seconds, is_shadow)
        hang = self._policy.hang_seconds
        gives_up = timeout_seconds is not None and timeout_seconds < hang and not is_shadow
        limit = timeout_seconds if gives_up and timeout_seconds is not None else hang
        end = "done"  # what becomes of the channel: done, late (a reply may still come), lost
        try:
            rows, stop = _wire.places(arrays, 0)
            _wire.put(channel.arena.map(stop), rows, arrays)
            channel.socket.settimeout(limit)
            size = channel.arena.size_bytes
            # It stops between two steps a little earlier, so that its answer is not late.
            timeout = None if timeout_seconds is None else timeout_seconds * 0.9
            header = {"size": size, "end": stop, "inputs": rows, "timeout": timeout, "is_paired": is_shadow}
            message = _wire.encoded(header)
            end = "late"
            channel.socket.send(message)
            reply = _wire.receive(channel.socket)
            if reply is None:
                raise ConnectionError
            end = "done"
            outputs = self._outputs(reply, channel)
            hop = time.perf_counter() - begin - reply["seconds"]
            if not is_shadow:  # those run more than the model
                self.hops.append(hop)
                self.hop_count += 1
            return Reply(outputs, reply["seconds"], hop, reply["runs"], reply["twin_seconds"])
        except TimeoutError:
            if gives_up:
                raise LinkError(TIMEOUT, f"the candidate did not answer within {limit:.3g} s") from None
            end = "lost"
            self._lost(process, f"hang: no answer within {hang:g} s")
            raise LinkError(TIMEOUT, f"the candidate hung for {hang:g} s, and its process was killed") from None
        except OSError:
            end = "lost"
            how = self._lost(process, "")
            raise LinkError(CRASH, f"the worker process ended during the run ({how})") from None
        except LinkError as error:  # it answers nonsense
            end = "lost"
            self._lost(process, error.message)
            raise
        except AotError as error:
            if error.status == _DEVICE:
                end = "lost"
                self._lost(process, f"device error: {error.message}")
            raise
        finally:
            self._put_back(process, channel, end, begin)

    def _take(self, process: _Process, timeout_seconds: float | None, is_shadow: bool) -> _Channel:
        """An idle channel; raises LinkError where there is none soon enough."""
        if not is_shadow:
            wait = self._policy.wait_seconds
            try:
                return process.idle.get(timeout=wait if timeout_seconds is None else min(wait, timeout_seconds))
            except queue.Empty:
                raise LinkError(BUSY, f"all {self._policy.channels} channels of the worker are in use") from None
        with self._lock:
            if process.is_lost or process.is_shadow_busy:
                raise LinkError(UNAVAILABLE, "the worker process ended")
            process.is_shadow_busy = True
        return process.shadow

    def _outputs(self, reply: Mapping[str, Any], channel: _Channel) -> dict[str, Any]:
        """Copies of the results; raises the error that the reply holds."""
        if not reply.get("ok"):
            raise _exception(reply)
        try:
            size, seconds, twin, runs = (reply[name] for name in ("size", "seconds", "twin_seconds", "runs"))
            if not (type(size) is int and type(runs) is int and _is_time(seconds) and (twin is None or _is_time(twin))):
                raise ValueError("size, runs, seconds")
            if not 0 <= size <= os.fstat(channel.arena.descriptor).st_size:
                raise ValueError(f"size {size}")
            found = _wire.views(channel.arena.map(size), reply["outputs"])
            if found.keys() != self._results.keys():
                raise ValueError(f"outputs {', '.join(found)}")
        except (KeyError, ValueError, RunError) as error:
            raise LinkError(CRASH, f"the worker process answered nonsense: {error}") from error
        return {name: found[name].copy() for name in self._results}

    def _put_back(self, process: _Process, channel: _Channel, end: str, begin: float) -> None:
        with self._lock:
            is_lost = process.is_lost or end == "lost"
            if not is_lost and end == "late":
                waited = time.perf_counter() - begin
                process.late.append((channel, self._clock() + self._policy.hang_seconds - waited))
            elif not is_lost:
                process.make_idle(channel)
        if is_lost:
            channel.close()

    def _lost(self, process: _Process, why: str) -> str:
        """Ends a process, once, and plans the next one; returns how it ended."""
        with self._lock:
            if process.is_lost:
                return self.last_loss
            is_current = self._process is process
            status = process.end()
            with contextlib.suppress(ValueError):
                self._holder.remove(process)
            if not is_current or self.state == "closed":
                return why or _how_it_ended(status)
            self._process = None
            self.losses += 1
            self.last_loss = why or _how_it_ended(status)
            now = self._clock()
            while self._restarts and not 0 <= now - self._restarts[0] <= self._policy.restart_window_seconds:
                self._restarts.popleft()
            if len(self._restarts) >= self._policy.restarts:
                self.state = "stopped"
            else:
                self.state = "restarting"
                wait = self._policy.backoff_seconds * 2.0 ** len(self._restarts)
                self._restart_at = now + min(wait, self._policy.most_backoff_seconds)
            kind, how = self.state, self.last_loss
        if kind == "stopped":
            limits = f"{self._policy.restarts} restarts within {self._policy.restart_window_seconds:g} s"
            self._on_event("worker_stopped", f"{how}; no further restart after {limits}")
        else:
            self._on_event("worker_lost", how)
        return how

    def tend(self) -> None:
        """What must be done now and then, from one thread: finds a process that ended, ends one that hangs, takes late
        replies, restarts when it is time."""
        process = self._process
        if process is not None and process.popen.poll() is not None:
            self._lost(process, "")
        elif process is not None:
            self._tend_late(process)
        now = self._clock()
        with self._lock:
            if self.state != "restarting":
                return
            if now < self._restart_at - self._policy.most_backoff_seconds:  # the clock went back
                self._restart_at = now
            if now < self._restart_at:
                return
            self._restarts.append(now)
        if not self.is_same_file():
            self._stop("the candidate's file was replaced; deploy it again")
            return
        try:
            if self._twin is not None and not self._twin_file.is_same():
                self._twin = None  # another file is in its place
                self._write_setup()
            self._start()
        except Exception as error:
            with self._lock:
                if self.state == "closed":
                    return
                if len(self._restarts) < self._policy.restarts:
                    wait = self._policy.backoff_seconds * 2.0 ** len(self._restarts)
                    self._restart_at = now + min(wait, self._policy.most_backoff_seconds)
                    return
            self._stop(f"it cannot be restarted: {error}")
            return
        self.restarts += 1
        self._on_event("worker_restarted", f"restart {self.restarts}")

    def _stop(self, why: str) -> None:
        with self._lock:
            self.state, self.last_loss = "stopped", why
        self._on_event("worker_stopped", why)

    def _tend_late(self, process: _Process) -> None:
        with self._lock:
            late, process.late = process.late, []
        waiting = []
        for channel, hangs_at in late:
            channel.socket.settimeout(0)
            try:
                reply = _wire.receive(channel.socket)
            except (BlockingIOError, TimeoutError):
                waiting.append((channel, hangs_at))
                continue
            except LinkError:
                reply = None
            with self._lock:
                if reply is not None and not process.is_lost:
                    process.make_idle(channel)
                    continue
            channel.close()  # it ended, or answers nonsense: the next look, or the next request, finds the first
        with self._lock:
            if process.is_lost:
                for channel, _ in waiting:
                    channel.close()
                return
            process.late += waiting
        if any(self._clock() >= hangs_at for _, hangs_at in waiting):
            self._lost(process, f"hang: no answer within {self._policy.hang_seconds:g} s")

    def report(self) -> dict[str, Any]:
        """For statistics: state, process id, restarts, losses, how the last one was lost, seconds of the hop."""
        hops = list(self.hops)
        return {
            "state": self.state,
            "process_id": self.process_id,
            "restarts": self.restarts,
            "losses": self.losses,
            "last_loss": self.last_loss,
            "hop_count": self.hop_count,
            "hop_median_seconds": statistics.median(hops) if hops else None,
        }

    def close(self) -> None:
        """Ends the process. Requests in flight there get LinkError."""
        with self._lock:
            if self.state == "closed":
                return
            self.state = "closed"
            process, self._process = self._process, None
            if process is not None and not process.is_lost:
                process.end()
        self._end()

    def forget(self) -> None:
        """In a forked child: the process belongs to the parent, which alone may use it and keep it alive."""
        self.state, process, self._process = "of the parent process", self._process, None
        self._end.detach()
        if process is not None:
            process.control.close()


def _end_all(processes: list[_Process], setup: int, owner: int) -> None:
    if os.getpid() == owner:
        for process in list(processes):
            process.end()
        processes.clear()
        os.close(setup)


def _forget_all() -> None:
    for worker in list(_all):
        worker.forget()


os.register_at_fork(after_in_child=_forget_all)


def _given(artifact: Any) -> Any:
    """An artifact as the worker loads it: another process may have another working directory."""
    return artifact if artifact is None or isinstance(artifact, bytes) else os.path.abspath(artifact)


def _is_time(value: Any) -> bool:
    return type(value) is float and value >= 0


def _meta(process: _Process, hello: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of the model, which the worker left in shared memory."""
    try:
        size = hello["meta_bytes"]
        if not 0 <= size <= os.fstat(process.shadow.arena.descriptor).st_size:
            raise ValueError(f"{size} bytes of metadata")
        return dict(json.loads(process.shadow.arena.map(size)[:size]))
    except (KeyError, ValueError, TypeError) as error:
        raise LinkError(CRASH, f"a message of the worker process makes no sense: {error}") from error


def _exception(reply: Mapping[str, Any]) -> AotError:
    """The error that a reply holds."""
    kind = getattr(errors, str(reply.get("kind")), RunError)
    if not (isinstance(kind, type) and issubclass(kind, AotError)):
        kind = RunError
    texts = {key: str(reply.get(key, "")) for key in ("where", "hint")}
    error = kind(str(reply.get("message", "")), **texts)
    status = reply.get("status")
    error.status = status if type(status) is int else 0
    return error


def _how_it_ended(status: int) -> str:
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        more = ": killed, as when memory is short" if name == "SIGKILL" else ""
        return f"{name}{more}"
    return f"exit status {status}"
