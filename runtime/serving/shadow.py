"""Shadowing: a sample of the requests goes through the candidate as well, behind the answer, and is compared.

On the request's way there is a copy of its arrays and an append. One thread runs the candidate and compares; it works
for a bounded part of the time. What waits is bounded; what does not fit is dropped and counted.

A stateful model is followed by sequence: the first request of a sequence that is seen brings stable's state along, and
from then on the candidate has its own, as it would in service. After a dropped or failed request the next one brings
stable's state again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot.errors import AotError
from aot.runtime.serving._process import Reply
from aot.runtime.serving._wire import host_array
from aot.runtime.serving.candidate import Candidate
from aot.runtime.serving.causes import NOT_FINITE, OUTCOMES, cause_of
from aot.runtime.serving.compare import Comparison, all_finite
from aot.runtime.serving.deployment_policy import DeploymentPolicy
from aot.runtime.serving.links import taken_alike
from aot.runtime.serving.records import Pair

MOST_SEQUENCES = 4096


@dataclass(slots=True)
class Shadowed:
    """One request as it waits: copies of its inputs, state and stable's results. `state`: None where the candidate has
    its own for this sequence."""

    time: float
    bucket: str
    key: str
    inputs: dict[str, Any]
    results: dict[str, Any]
    outcome: str
    is_cold: bool
    sequence: str | None
    state: dict[str, Any] | None
    size_bytes: int


class Shadow:
    """The queue and the thread of one candidate. `record` takes the pairs.

    Times of a pair are of two runs that were alike but for the version, in one process and thread (`taken_alike`). The
    time of the answer that stable gave is not alike: requests run beside each other, and shadows where caches and cores
    are cold. `again(inputs)` runs stable here and gives the seconds, where the candidate's process has no twin of it
    that did (`has_twin()`).
    """

    def __init__(
        self,
        candidate: Candidate,
        comparison: Comparison,
        policy: DeploymentPolicy,
        record: Callable[[Pair], None],
        again: Callable[[Mapping[str, Any]], float | None],
        has_twin: Callable[[], bool],
    ) -> None:
        self._candidate, self.comparison, self._policy, self._record = candidate, comparison, policy, record
        self._again, self._has_twin = again, has_twin
        self._queue: queue.SimpleQueue[Shadowed | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = self._bytes = 0
        self._states: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.followed: set[str] = set()
        self._stopped = threading.Event()
        self.taken = self.dropped = self.compared = self.without_sequence = self.resynchronized = 0
        self.failed: dict[str, int] = {}
        self._thread = threading.Thread(target=self._follow, name="aot-serving-shadow", daemon=True)
        self._thread.start()

    def has_room(self) -> bool:
        """Whether one more may wait; counts it as dropped where not. Asked before anything is copied."""
        if self._waiting < self._policy.shadow_requests and self._bytes < self._policy.shadow_bytes:
            return True
        with self._lock:
            self.dropped += 1
        return False

    def add(self, item: Shadowed) -> None:
        """Takes a request; all its arrays must be copies."""
        with self._lock:
            self._waiting += 1
            self._bytes += item.size_bytes
            self.taken += 1
        if item.sequence is not None:
            self.followed.add(item.sequence)
        self._queue.put(item)

    def forget(self, sequence: str) -> None:
        """The next request of a sequence brings stable's state along."""
        self.followed.discard(sequence)

    def _follow(self) -> None:
        while (item := self._queue.get()) is not None:
            start, start_of_work = time.perf_counter(), time.thread_time()
            try:
                if not self._stopped.is_set() and self._candidate.is_current:
                    self._pair(item)
            except Exception as error:  # whatever it is, the next ones are compared
                cause = type(error).__name__
                self.failed[cause] = self.failed.get(cause, 0) + 1
            finally:
                with self._lock:
                    self._waiting -= 1
                    self._bytes -= item.size_bytes
            item = None
            # While this thread works, requests wait for the interpreter's lock: so it rests in proportion.
            work, took = time.thread_time() - start_of_work, time.perf_counter() - start
            if (rest := work / self._policy.shadow_load - took) > 0:
                self._stopped.wait(rest)

    def _pair(self, item: Shadowed) -> None:
        own = self._own_state(item)
        if own is None:
            self.resynchronized += 1
            return
        seconds, stable_seconds, runs, values, outputs = None, None, 1, {}, {}
        given = {**item.inputs, **own}
        is_here = item.outcome == "ok" and not self._has_twin()
        try:
            if is_here:
                reply, seconds, stable_seconds = taken_alike(
                    lambda: self._run(given), lambda: self._seconds(given), lambda: self._again(given)
                )
            else:
                reply, seconds = self._run(given)
                stable_seconds = reply.twin_seconds
            outcome, runs, outputs = "ok", reply.runs, reply.outputs
            if self._policy.not_finite != "allow" and not all_finite(outputs):
                outcome = OUTCOMES[NOT_FINITE]
        except Exception as error:
            cause = cause_of(error)
            self.failed[cause] = self.failed.get(cause, 0) + 1
            outcome = OUTCOMES[cause]
        if item.sequence is not None:
            self._keep_state(item.sequence, outputs)
        if outcome == "fallback":
            return  # between two processes there is no candidate to compare; what ended the last one was a pair
        if outcome == "ok" and item.outcome == "ok":
            values = self.comparison.values(item.results, outputs)
            self.compared += 1
        is_cold = item.is_cold or runs <= self._policy.cold_runs
        stable_seconds = stable_seconds if item.outcome == "ok" else None
        seconds = seconds if outcome == "ok" else None
        self._record(
            Pair(item.time, item.bucket, item.outcome, outcome, stable_seconds, seconds, values, is_cold, item.key)
        )

    def _run(self, given: Mapping[str, Any]) -> tuple[Reply, float]:
        reply = self._candidate.runner.run(given, None, is_shadow=True)
        return reply, reply.seconds

    def _seconds(self, given: Mapping[str, Any]) -> float | None:
        try:
            return self._run(given)[1]
        except AotError:
            return None

    def _own_state(self, item: Shadowed) -> dict[str, Any] | None:
        """The candidate's state of a sequence; {} of a model without, None where it was lost meanwhile."""
        if item.sequence is None:
            return {}
        if item.state is not None:
            return item.state
        return self._states.get(item.sequence)

    def _keep_state(self, sequence: str, outputs: Mapping[str, Any]) -> None:
        if not outputs:
            self._states.pop(sequence, None)
            self.forget(sequence)
            return
        self._states[sequence] = {given: outputs[found] for given, found in self._candidate.replaced_by.items()}
        self._states.move_to_end(sequence)
        if len(self._states) > MOST_SEQUENCES:
            oldest, _ = self._states.popitem(last=False)
            self.forget(oldest)

    def wait(self, seconds: float) -> bool:
        """Until nothing waits any more; false after so many seconds."""
        end = time.monotonic() + seconds
        while self._waiting:
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        return True

    def report(self) -> dict[str, Any]:
        """For statistics."""
        return {
            "taken": self.taken,
            "dropped": self.dropped,
            "compared": self.compared,
            "failed": dict(self.failed),
            "waiting": self._waiting,
            "without_sequence": self.without_sequence,
            "resynchronized": self.resynchronized,
            "metric_errors": dict(self.comparison.errors),
            "first_metric_errors": dict(self.comparison.first_errors),
        }

    def stop(self) -> None:
        """No further run of the candidate begins; the thread ends, which this does not wait for."""
        self._stopped.set()
        self._queue.put(None)

    def join(self, seconds: float) -> bool:
        """Waits for the thread to end after `stop`; returns whether it has."""
        if threading.current_thread() is self._thread:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()


def copies(arrays: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Copies of arrays in CPU memory, and their bytes; numbers of Python stay. Raises where one has no such form."""
    made = {
        name: value if type(value) in (int, float, bool) else np.array(host_array(value))
        for name, value in arrays.items()
    }
    return made, sum(getattr(value, "nbytes", 8) for value in made.values())
