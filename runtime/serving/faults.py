"""Faults on purpose, for tests of a deployment: a candidate that computes wrong numbers, crashes, hangs, or refuses.

Only `Deployment(test_faults=...)` puts them in; nothing reads them from the environment or from an artifact.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot.errors import GuardError, RunError

KINDS = ("wrong_numbers", "not_finite", "crash", "killed", "hang", "guard", "device", "memory", "slow")
_DEVICE, _MEMORY = 11, 6  # aot_status


@dataclass(frozen=True)
class Fault:
    """A fault of one kind on some runs: from run `first` (0: the first) on each `every`-th, at most `count` times.

    Runs are counted in each process. `size`: for "wrong_numbers" what is added to every float, for "slow" seconds.
    "crash" is SIGSEGV, "killed" SIGKILL as the kernel sends it when memory is short, "hang" sleeps for an hour.
    """

    kind: str
    first: int = 0
    every: int = 1
    count: int | None = None
    size: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise RunError(f"no fault is called {self.kind!r}", hint=f"There are {', '.join(KINDS)}.")

    def strikes(self, run: int) -> bool:
        """Whether it happens in this run."""
        past = run - self.first
        return past >= 0 and past % self.every == 0 and (self.count is None or past // self.every < self.count)


class Faulty:
    """A model with faults; has what a deployment uses of Model."""

    def __init__(self, model: Any, faults: Sequence[Fault]) -> None:
        self._model, self._faults = model, tuple(faults)
        self._runs = 0
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def run(self, inputs: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """As Model.run, with the faults of this run."""
        with self._lock:
            run = self._runs
            self._runs += 1
        struck = [fault for fault in self._faults if fault.strikes(run)]
        for fault in struck:
            _before(fault)
        results: dict[str, Any] = self._model.run(inputs, **options)
        for fault in struck:
            for array in results.values():
                if fault.kind in ("wrong_numbers", "not_finite") and array.dtype.kind == "f" and array.size:
                    array += np.asarray(fault.size if fault.kind == "wrong_numbers" else np.nan, array.dtype)
        return results


def _before(fault: Fault) -> None:
    match fault.kind:
        case "crash":
            ctypes.string_at(0)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(3600)
        case "slow":
            time.sleep(fault.size)
        case "guard":
            raise GuardError("a fault of a test", where="test")
        case "device" | "memory":
            error = RunError(f"a fault of a test: {fault.kind}", where="test")
            error.status = _DEVICE if fault.kind == "device" else _MEMORY
            raise error
