"""A candidate: where it runs, which share of requests it gets, and what was seen of it."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aot.errors import RunError
from aot.runtime import Model, load
from aot.runtime.serving._process import Reply, SameFile, Worker
from aot.runtime.serving.breaker import Breaker
from aot.runtime.serving.deployment_policy import DeploymentPolicy
from aot.runtime.serving.faults import Fault, Faulty


class InProcess:
    """A candidate in this process, behind what a deployment uses of Worker: no hop, and no protection."""

    state = "ready"
    has_twin = False

    def __init__(self, artifact: Any, options: Mapping[str, Any], faults: Sequence[Fault]) -> None:
        self.model: Model = artifact if isinstance(artifact, Model) else load(artifact, **options)
        self._is_owned = not isinstance(artifact, Model)
        self._runs: Any = Faulty(self.model, faults) if faults else self.model
        self.inputs, self.outputs, self.states = self.model.inputs, self.model.outputs, self.model.state
        self.meta, self.target = self.model.meta, self.model.target
        self._file = SameFile(artifact)
        self._seen: dict[Any, int] = {}

    def run(self, inputs: Mapping[str, Any], timeout_seconds: float | None, *, is_shadow: bool = False) -> Reply:
        """Runs once, as Worker.run."""
        begin = time.perf_counter()
        results = self._runs.run(inputs, timeout_seconds=timeout_seconds)
        seconds = time.perf_counter() - begin
        shapes = tuple(getattr(value, "shape", None) for value in inputs.values())
        runs = self._seen[shapes] = self._seen.get(shapes, 0) + 1
        return Reply(results, seconds, 0.0, runs)

    def is_same_file(self) -> bool:
        """Whether a path still names what was loaded."""
        return self._file.is_same()

    def tend(self) -> None:
        """Nothing to do."""

    def report(self) -> dict[str, Any]:
        """For statistics."""
        return {"state": self.state}

    def close(self) -> None:
        """Unloads it; no run may be in flight."""
        if self._is_owned:
            self.model.close()


def hash_share(salt: str, key: str | bytes | int) -> float:
    """A number from 0 to below 1 that a key always gets: it goes to the candidate while this is below the share.

    BLAKE2b, so that keys that look alike, such as counted ones, fall evenly.
    """
    data = key if isinstance(key, bytes) else str(key).encode(errors="surrogatepass")
    digest = hashlib.blake2b(data, digest_size=8, key=salt.encode()[:64]).digest()
    return int.from_bytes(digest, "little") / 2.0**64


CONTROLS = 4
"""Requests of stable's that the canary sees for each of the candidate's: the more succeed there, the fewer failures of
the candidate are an accident no longer."""


class Candidate:
    """One candidate of a deployment. `in_flight`, `delivering` and `is_current` belong to the deployment's lock.

    `share`: of the live traffic, now. `is_current`: its answers may be given; false once it is rolled back.
    """

    def __init__(
        self,
        number: int,
        source: Any,
        options: Mapping[str, Any],
        policy: DeploymentPolicy,
        breaker: Breaker,
        on_event: Callable[[str, str], None],
        faults: Sequence[Fault],
        stable: Any = None,
    ) -> None:
        """Loads it, in a process of its own unless the policy says otherwise, and `stable` there too, where that is a
        path or bytes. Raises what loading raises."""
        self.number, self.source, self.breaker, self._policy = number, source, breaker, policy
        self.runner: Worker | InProcess
        if policy.isolation == "none":
            self.runner = InProcess(source, options, faults)
        elif isinstance(source, Model):
            raise RunError(
                "a loaded model cannot run in a worker process",
                where="candidate",
                hint='Give its path or its bytes, or use isolation="none".',
            )
        else:
            data = bytes(source) if isinstance(source, bytearray | memoryview) else source
            twin = bytes(stable) if isinstance(stable, bytearray | memoryview) else stable
            self.runner = Worker(data, options, policy.worker, on_event, faults, twin=twin)
        self.replaced_by = {pair.input: pair.output for pair in self.runner.states}
        self.share = 0.0
        self.in_flight = self.delivering = 0
        self.is_current = True
        self.is_retired = False

    def takes(self, key: str | bytes | int | None) -> bool:
        """Whether a request goes to the candidate: by its key, or by lot where it has none."""
        share = self.share
        if share <= 0:
            return False
        return (random.random() if key is None else hash_share(self._policy.salt, key)) < share

    def is_control(self, key: str | bytes | int | None) -> bool:
        """Whether a request of stable's is recorded: for each that the candidate runs, live or as a shadow, some."""
        share = self.share
        lot = random.random() if key is None else hash_share(self._policy.salt, key)
        return share <= lot < share + CONTROLS * max(share, self._policy.shadow_share)

    def check_source(self) -> None:
        """Raises RunError where the file is another one than that which was loaded."""
        if not self.runner.is_same_file():
            raise RunError(
                "the candidate's file was replaced after it was loaded",
                where=os.fspath(self.source),
                hint="Deploy the new file as a candidate.",
            )

    def close(self) -> None:
        """Ends its process, or unloads it; in this process no run may be in flight."""
        self.runner.close()


class Tested:
    """A candidate as a self-test wants a model."""

    def __init__(self, runner: Worker | InProcess) -> None:
        self._runner = runner
        self.meta, self.target = runner.meta, runner.target

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs of a run."""
        return self._runner.run(inputs, None).outputs


class Lot:
    """Which requests are shadowed: by lot, or for sequences by their name, so that one is followed whole."""

    def __init__(self, share: float, salt: str) -> None:
        self.share, self._salt = share, f"shadow {salt}"

    def draws(self, sequence: str | None) -> bool:
        """Whether this request is shadowed."""
        if self.share <= 0:
            return False
        return (random.random() if sequence is None else hash_share(self._salt, sequence)) < self.share


class Turn:
    """Calls a function again and again in a thread of its own, until `stop`."""

    def __init__(self, name: str, period_seconds: float, function: Callable[[], None]) -> None:
        self._period, self._function = period_seconds, function
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._turn, name=name, daemon=True)
        self.thread.start()

    def _turn(self) -> None:
        while not self._stop.wait(self._period):
            self._function()

    def stop(self) -> None:
        """No further call. The one in progress is not waited for: it may want what the caller holds."""
        self._stop.set()
