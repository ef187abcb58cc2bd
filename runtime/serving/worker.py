"""The process in which a candidate runs: `python -m aot.runtime.serving.worker DESCRIPTOR`, started by a deployment.

One thread for each channel takes requests and answers them. The main thread waits for the control socket: once it is
closed, because the deployment closed it or its process ended in any way, this process ends at once, also in the middle
of a run that hangs.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import sys
import threading
import time
from typing import Any

from aot.errors import AotError, RunError
from aot.runtime import load
from aot.runtime.serving import _wire
from aot.runtime.serving.faults import Faulty
from aot.runtime.serving.links import seconds_of, taken_alike


def main(control_descriptor: int) -> None:
    """Loads the artifact, says what it is, answers until the control socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the deployment's process, which closes this one
    control = socket.socket(fileno=control_descriptor)
    _, descriptors, _, _ = socket.recv_fds(control, 16, 250)
    setup = _read_setup(descriptors[0])
    try:
        start = time.perf_counter()
        model: Any = load(setup["artifact"], **setup["options"])
        seconds = time.perf_counter() - start
        twin = None if setup["twin"] is None else load(setup["twin"], **setup["options"])
        if setup["faults"]:
            model = Faulty(model, setup["faults"])
        specs = {"inputs": model.inputs, "outputs": model.outputs, "state": model.state}
        ports = {name: [list(spec) for spec in found] for name, found in specs.items()}
        meta = json.dumps(model.meta).encode()
        hello = {"ok": True, "target": model.target, "load_seconds": seconds, "meta_bytes": len(meta), **ports}
    except Exception as error:
        _wire.send(control, _error(error))
        return
    served = Served(model, twin)
    arenas = [_wire.Arena(memory) for memory in descriptors[2::2]]
    arenas[0].map(len(meta))[: len(meta)] = meta  # it may be too long for a header
    for channel, arena in zip(descriptors[1::2], arenas, strict=True):
        arguments = (socket.socket(fileno=channel), arena)
        threading.Thread(target=served.answer, args=arguments, daemon=True).start()
    _wire.send(control, hello)
    try:
        while control.recv(1):
            pass
    except OSError:
        pass
    os._exit(0)


def _read_setup(descriptor: int) -> dict[str, Any]:
    """What the deployment put into a file in memory: it is trusted, unlike what comes from here."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        setup: dict[str, Any] = pickle.load(file)
    return setup


def _error(error: Exception) -> dict[str, Any]:
    if not isinstance(error, AotError):
        error = RunError(f"{type(error).__name__}: {error}", where="worker process")
    texts = {"message": error.message[:4000], "where": error.where[:1000], "hint": error.hint[:1000]}
    return {"ok": False, "kind": type(error).__name__, "status": error.status, **texts}


class Served:
    """The model, stable's twin, and which shapes the first has run; used by all channels."""

    def __init__(self, model: Any, twin: Any) -> None:
        self._model, self._twin = model, twin
        self._runs: dict[Any, int] = {}

    def answer(self, channel: socket.socket, arena: _wire.Arena) -> None:
        """Answers requests of one channel until it closes."""
        while (request := _wire.receive(channel)) is not None:
            try:
                reply = self._run(request, arena)
            except Exception as error:
                reply = _error(error)
            try:
                _wire.send(channel, reply)
            except OSError:
                return

    def _run(self, request: dict[str, Any], arena: _wire.Arena) -> dict[str, Any]:
        memory = arena.map(request["size"])
        inputs = _wire.views(memory, request["inputs"])
        shapes = tuple(array.shape for array in inputs.values())
        runs = self._runs[shapes] = self._runs.get(shapes, 0) + 1
        timeout = request["timeout"]

        def run() -> tuple[dict[str, Any], float]:
            start = time.perf_counter()
            found = self._model.run(inputs) if timeout is None else self._model.run(inputs, timeout_seconds=timeout)
            return found, time.perf_counter() - start

        twin, model, twin_seconds = self._twin, self._model, None
        if twin is not None and request["is_paired"]:
            results, seconds, twin_seconds = taken_alike(
                run, lambda: seconds_of(model, inputs), lambda: seconds_of(twin, inputs)
            )
        else:
            results, seconds = run()
        rows, end = _wire.places(results, request["end"])
        _wire.put(arena.map(end), rows, results)
        return {
            "ok": True, "outputs": rows, "size": arena.size_bytes, "seconds": seconds, "twin_seconds": twin_seconds,
            "runs": runs,
        }  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]))
