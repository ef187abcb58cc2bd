"""Deployment: a stable artifact that keeps answering, whatever its candidate does.

Versions change under one lock, as a whole: a request has the version that it began with, and an old one is unloaded
when its last run has ended.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from random import random
from typing import Any

from aot.errors import AotError, RunError
from aot.runtime import Model
from aot.runtime.serving.breaker import Breaker
from aot.runtime.serving.candidate import Candidate, Tested
from aot.runtime.serving.causes import cause_of
from aot.runtime.serving.chain import Answer, Asked, Chain, Event
from aot.runtime.serving.checks import check_interface, check_numbers, slower_because
from aot.runtime.serving.controller import Canary
from aot.runtime.serving.deployment_policy import DeploymentPolicy
from aot.runtime.serving.faults import Fault
from aot.runtime.serving.links import (
    OnnxRuntime,
    OnnxSession,
    Version,
    check_fallback,
    closed_error,
    make_version,
    seconds_of,
)
from aot.runtime.serving.rollout import Rollout

Source = str | os.PathLike[str] | bytes | bytearray | memoryview | Model
_ALL = 2.0
"""More than any share: every request goes the long way."""
_TOTALS = (
    "refused", "swaps", "promotions", "rollbacks", "candidates_refused", "canary_failures", "records_lost",
    "records_dropped", "not_shadowed", "event_errors", "upkeep_failures",
)  # fmt: skip


class Deployment:
    """Serves `stable`; optionally a candidate beside it, and fallbacks behind it.

    `stable`, `candidate`: the path or the bytes of an artifact, or a loaded Model, which is never closed here.
    `fallback`: what answers where stable does not, in this order: "cpu" (the CPU program of stable's own file, for one
    that runs on a GPU), "cpu:x86-64" (that target's), OnnxRuntime(path of the original model). `canary`: decides the
    candidate's share, promotes, rolls back; without one the policy's share holds until `promote` or `roll_back`.
    `load_options`: of `aot.load`, for stable and candidate, such as trusted_keys. `on_event`: called with every Event,
    from any thread; what it raises is counted and goes no further. `test_faults`: puts faults into the candidate, for
    tests.

    Before an artifact gets traffic, its self-test is run, where it holds one, and its inputs and outputs are compared
    with stable's. A candidate that is refused does not keep stable from serving: the reason is in `candidate_error`, in
    the log "aot.serving" and in an event. Raises what loading `stable` raises, and ArtifactError for its self-test. Any
    number of threads may use a deployment.
    """

    def __init__(
        self,
        stable: Source,
        candidate: Source | None = None,
        *,
        fallback: Sequence[str | OnnxRuntime] = (),
        policy: DeploymentPolicy | None = None,
        canary: Canary | None = None,
        load_options: Mapping[str, Any] | None = None,
        on_event: Callable[[Event], Any] | None = None,
        test_faults: Sequence[Fault] = (),
    ) -> None:
        check_fallback(fallback)
        self.policy = policy or DeploymentPolicy()
        self._fallback, self._options = tuple(fallback), dict(load_options or {})
        self._chain = Chain(self.policy, on_event)
        self._lock = self._chain.lock
        self._stable_counts = self._chain.counts["stable"]
        self._changing = threading.RLock()  # one change of versions at a time
        self._count = 0
        self._rollout: Rollout | None = None
        self._threads: list[threading.Thread] = []  # that `close` waits for
        self._live: list[Rollout] = []  # what must be ended where a deployment is dropped without `close`
        weakref.finalize(self, _end_all, self._live).atexit = False
        self._last_shadow: dict[str, Any] | None = None
        self._upkeep_error = ""
        self._of_parent: Rollout | None = None  # in a forked child
        self._is_closed = False
        self._long_share = _ALL
        self.candidate_error: AotError | None = None
        self._onnx: OnnxSession | None = None
        self._absent: dict[str, str] = {}
        self._stable = self._make_version(stable)
        self._update()
        _all.add(self)
        if candidate is not None:
            try:
                self.start_candidate(candidate, canary=canary, test_faults=test_faults)
            except AotError as error:
                self.candidate_error = error
            except BaseException:
                self.close()
                raise

    # Versions

    def _next(self) -> int:
        with self._lock:
            self._count += 1
            return self._count

    def _breaker(self) -> Breaker:
        return Breaker(self.policy.breaker)

    def _make_version(self, source: Source, number: int | None = None) -> Version:
        number = self._next() if number is None else number
        version = make_version(number, source, self._options, self._fallback, self._breaker, self._onnx_session)
        try:
            check_numbers("the artifact", version.model, source)
        except BaseException:
            version.close()
            raise
        for link, why in version.absent.items():
            self._chain.tell("link_absent", link, "", why)
        self._tell_slower("stable", version.model)
        return version

    def _tell_slower(self, link: str, runs: Any) -> None:
        """Tells where a machine runs another program than the artifact's fastest. `runs`: has its target and meta."""
        if why := slower_because(runs.target, runs.meta):
            self._chain.tell("runs_slower", link, "", f"{runs.target} runs: {why}")

    def _onnx_session(self, declared: OnnxRuntime, model: Model) -> OnnxSession | None:
        """The session of the original model, which all versions share; None where ONNX Runtime is not installed."""
        if self._onnx is None and "onnxruntime" not in self._absent:
            try:
                self._onnx = OnnxSession(declared, model)
            except ImportError as error:
                self._absent["onnxruntime"] = f"onnxruntime is not installed: {error}"
                self._chain.tell("link_absent", "onnxruntime", "", self._absent["onnxruntime"])
        return self._onnx

    def _update(self) -> None:
        """What every request looks at; with the lock, or before there are requests."""
        rollout = self._rollout
        if self._is_closed or self.policy.not_finite != "allow" or (rollout and rollout.candidate.share > 0):
            self._long_share = _ALL
        else:
            self._long_share = 0.0 if rollout is None else rollout.lot.share

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed_error()

    def swap(self, stable: Source) -> None:
        """Replaces stable by another artifact, without a gap: requests in flight end on the old one, which is unloaded
        after the last of them. A candidate stays. Raises as loading does, and ArtifactError for other inputs or
        outputs; the old one keeps serving then."""
        with self._changing:
            self._check_open()
            version = self._make_version(stable)
            try:
                check_interface("the new stable artifact", version.model, self._stable.model)
            except BaseException:
                version.close()
                raise
            self._install(version)
            self._chain.add("swaps")
        self._chain.tell("swapped", "stable", "", f"artifact {version.number} is stable")

    def _install(self, version: Version) -> None:
        with self._lock:
            old, self._stable = self._stable, version
            old.is_retired = True
            is_idle = old.in_flight == 0
        if is_idle:
            old.close()

    def start_candidate(
        self, candidate: Source, *, canary: Canary | None = None, test_faults: Sequence[Fault] = ()
    ) -> None:
        """Puts a candidate beside stable, in place of an earlier one.

        Raises what loading it raises, ArtifactError where its self-test fails or its inputs or outputs differ from
        stable's, LinkError where its process does not come up; stable then serves on, without a candidate.
        """
        # Weak, as its threads must not keep a deployment that nobody holds any more.
        me = weakref.ref(self)

        def on_event(kind: str, message: str) -> None:
            if (deployment := me()) is not None:
                deployment._worker_event(kind, message)

        with self._changing:
            self._check_open()
            self.roll_back("replaced by another candidate")
            number = self._next()
            made: Candidate | None = None
            try:
                twin = self._stable
                is_there = not isinstance(twin.source, Model) and twin.file.is_same()
                made = Candidate(
                    number, candidate, self._options, self.policy, self._breaker(), on_event, test_faults,
                    twin.source if is_there else None,
                )  # fmt: skip
                check_interface("the candidate", made.runner, self._stable.model)
                check_numbers("the candidate", Tested(made.runner), candidate)
                share = self.policy.candidate_share if canary is None else canary.share

                def again(inputs: Mapping[str, Any]) -> float | None:
                    return None if (deployment := me()) is None else deployment._seconds_of_stable(inputs)

                def is_twin() -> bool:
                    is_stable = (deployment := me()) is not None and deployment._stable is twin
                    return is_stable and made is not None and made.runner.has_twin

                rollout = Rollout(made, self._stable.model, canary, self._chain, again, is_twin)
            except BaseException as error:
                if made is not None:
                    made.close()
                if isinstance(error, AotError):
                    self.candidate_error = error
                    self._chain.add("candidates_refused")
                    self._chain.tell("candidate_refused", "candidate", error.code, str(error))
                raise
            self.candidate_error = None
            made.share = share
            with self._lock:
                self._rollout = rollout
                self._live.append(rollout)
                self._update()

            def turn() -> None:
                if (deployment := me()) is not None:
                    deployment._tend(rollout)

            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._threads.append(rollout.start(turn))
        self._chain.tell("candidate_started", "candidate", "", f"artifact {number} is the candidate")
        self._tell_slower("candidate", made.runner)

    def set_share(self, share: float) -> None:
        """The candidate's share of the live traffic, where no canary decides it; raises RunError otherwise."""
        if not 0 <= share <= 1:
            raise RunError(f"a share is from 0 to 1, got {share!r}")
        with self._changing:
            rollout = self._rollout
            if rollout is None or rollout.canary is not None:
                raise RunError("there is no candidate" if rollout is None else "the canary decides the share")
            self._set_share(rollout, share)

    def _set_share(self, rollout: Rollout, share: float) -> None:
        with self._lock:
            rollout.candidate.share = share
            self._update()

    def roll_back(self, why: str = "") -> None:
        """Ends the candidate. When this returns, no answer comes from it any more: what it still computes is thrown
        away, and stable answers. Does nothing without a candidate."""
        with self._changing:
            rollout = self._rollout
            if rollout is None:
                return
            self._end(rollout)
            self._chain.add("rollbacks")
        number = rollout.candidate.number
        self._chain.tell("rolled_back", "candidate", "", f"artifact {number}: {why or 'asked for'}")

    def _end(self, rollout: Rollout) -> None:
        candidate = rollout.candidate
        with self._lock:
            candidate.is_current = False
            candidate.share = 0.0
            self._rollout = None
            self._update()
        while candidate.delivering:  # answers that were taken before this, being copied to their callers
            time.sleep(1e-5)
        rollout.end()
        self._live.remove(rollout)
        self._last_shadow = rollout.shadow.report()

    def promote(self) -> None:
        """Makes the candidate stable: loads it in this process, swaps, and ends its worker process. Raises as loading
        does, and RunError without a candidate; nothing has changed then."""
        with self._changing:
            rollout = self._rollout
            if rollout is None:
                raise RunError("there is no candidate to promote")
            version = self._make_version(rollout.candidate.source, rollout.candidate.number)
            try:
                rollout.candidate.check_source()  # after loading, so that nothing can take its place in between
            except BaseException:
                version.close()
                raise
            self._install(version)
            self._end(rollout)
            self._chain.add("promotions")
        self._chain.tell("promoted", "stable", "", f"artifact {version.number} is stable")

    # Requests

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        key: str | bytes | int | None = None,
        sequence: str | None = None,
        deadline_seconds: float | None = None,
        outputs: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Answers one request: {"name": array} to {"name": array}, as `Model.run`.

        `key`: requests with the same key go to the same version while the share only grows; without one it is a matter
        of chance. `sequence`: names the sequence of runs that a `state` belongs to, such as a conversation; it is the
        key too where none is given. `deadline_seconds`: from now, for all links together. `outputs`, `state`: as in
        `Model.run`. Raises GuardError where the inputs fit no link; where stable is the only link, what it raises;
        RefusedError, with what was tried, where none of several answers; LinkError after `close`.
        """
        # Of what must not go the long way, only requests that are shadowed do, and have a place in the queue.
        share = self._long_share
        if deadline_seconds is not None or state is not None or share == _ALL:
            deadline = None if deadline_seconds is None else _deadline(deadline_seconds)
            return self._answer(
                Asked(inputs, sequence if key is None else key, sequence, deadline, outputs, state)
            ).outputs
        if share and random() < share and (rollout := self._rollout) is not None and rollout.shadow.has_room():
            return self._answer(Asked(inputs, sequence if key is None else key, sequence, None, outputs), True).outputs
        # The short way: what follows costs about a microsecond beside the run.
        lock = self._lock
        with lock:
            version = self._stable
            is_usable = version.breaker.is_closed and not self._is_closed
            version.in_flight += is_usable
        if not is_usable:
            return self._answer(Asked(inputs, sequence if key is None else key, sequence, None, outputs)).outputs
        try:
            results = version.model.run(inputs, outputs=outputs)
        except Exception as failure:
            return self._after(version, failure, Asked(inputs, key, sequence, None, outputs))
        except BaseException:
            self._leave(version)
            raise
        with lock:
            version.in_flight -= 1
            self._stable_counts["ok"] += 1
            is_last = version.is_retired and version.in_flight == 0
        if is_last:
            version.close()
        return results

    def _seconds_of_stable(self, inputs: Mapping[str, Any]) -> float | None:
        """What a run of stable's takes now, apart from all requests; None where it fails."""
        with self._lock:
            if self._is_closed:
                return None
            version = self._stable
            version.in_flight += 1
        try:
            return seconds_of(version.model, inputs)
        finally:
            self._leave(version)

    def _leave(self, version: Version) -> None:
        with self._lock:
            version.in_flight -= 1
            is_last = version.is_retired and version.in_flight == 0
        if is_last:
            version.close()

    def _after(self, version: Version, failure: Exception, asked: Asked) -> dict[str, Any]:
        """The answer after stable failed on the short way."""
        try:
            self._chain.failed("stable", version.breaker, cause_of(failure), str(failure))
            return self._chain.answer(version, asked, [], failure).outputs
        finally:
            self._leave(version)

    def run_detailed(
        self,
        inputs: Mapping[str, Any],
        *,
        key: str | bytes | int | None = None,
        sequence: str | None = None,
        deadline_seconds: float | None = None,
        outputs: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> Answer:
        """As `run`, and says which link answered, and why others did not."""
        deadline = None if deadline_seconds is None else _deadline(deadline_seconds)
        return self._answer(Asked(inputs, sequence if key is None else key, sequence, deadline, outputs, state))

    def _answer(self, asked: Asked, is_drawn: bool | None = None) -> Answer:
        """The long way. `is_drawn`: it is shadowed, if stable answers it; None: that is to be drawn."""
        with self._lock:
            self._check_open()
            version, rollout = self._stable, self._rollout
            version.in_flight += 1
            if rollout is not None:
                rollout.candidate.in_flight += 1
        try:
            if rollout is None or not isinstance(asked.inputs, Mapping):
                return self._chain.answer(version, asked, [])
            if not rollout.takes(asked):
                return rollout.beside(version, asked, is_drawn)
            tried: list[tuple[str, str]] = []
            return rollout.ask(version, asked, tried) or self._chain.answer(version, asked, tried)
        finally:
            self._leave(version)
            if rollout is not None:
                self._leave_candidate(rollout.candidate)

    def _leave_candidate(self, candidate: Candidate) -> None:
        with self._lock:
            candidate.in_flight -= 1
            is_last = candidate.is_retired and candidate.in_flight == 0
        if is_last:
            candidate.close()

    # In the background

    def _tend(self, rollout: Rollout) -> None:
        """What a thread does every few milliseconds while there is a candidate."""
        try:
            rollout.candidate.runner.tend()
        except Exception as error:  # whatever it is: without this thread the canary would decide nothing any more
            self._upkeep_failed(error)
        if self._rollout is not rollout or not rollout.is_due():
            return
        # Not while versions cannot change: a disk that hangs must not keep an operator from rolling back.
        state, share = rollout.decide()
        if self._changing.acquire(blocking=False):
            try:
                if self._rollout is rollout:
                    self._obey(rollout, state, share)
            except Exception as error:
                self._upkeep_failed(error)
            finally:
                self._changing.release()

    def _upkeep_failed(self, error: Exception) -> None:
        self._chain.add("upkeep_failures")
        said = f"{type(error).__name__}: {error}"
        if said != self._upkeep_error:  # it comes again every few milliseconds
            self._upkeep_error = said
            self._chain.tell("upkeep_failed", "candidate", type(error).__name__, str(error))

    def _obey(self, rollout: Rollout, state: str, share: float) -> None:
        """Does what the canary decided."""
        if state == "rolled back":
            self.roll_back("the canary's verdict")
        elif state == "promoted":
            try:
                self.promote()
            except Exception as error:
                code = error.code if isinstance(error, AotError) else type(error).__name__
                self._chain.tell("canary_failed", "candidate", code, f"promotion: {error}")
                self.roll_back("it cannot be loaded in the serving process")
        elif share != rollout.candidate.share:
            self._set_share(rollout, share)

    def _worker_event(self, kind: str, message: str) -> None:
        rollout = self._rollout
        if kind == "worker_stopped" and rollout is not None:
            rollout.candidate.breaker.hold_open()
        self._chain.tell(kind, "candidate", "", message)

    def wait_for_shadow(self, seconds: float) -> bool:
        """Until no shadowed request waits any more; false after so many seconds."""
        rollout = self._rollout
        return rollout is None or rollout.shadow.wait(seconds)

    def statistics(self) -> dict[str, Any]:
        """Everything that was counted, as plain values.

        "links": for each link its breaker and how often it answered ("ok") or did not, by cause. "candidate": its
        share, process, restarts and the seconds of the hop. "shadow": taken, dropped, compared, metrics that raised;
        of the last candidate where there is none.
        """
        with self._lock:
            version, rollout = self._stable, self._rollout
            counts = {name: dict(found) for name, found in self._chain.counts.items()}
            totals = dict(self._chain.totals)
            in_flight = version.in_flight
        breakers = {link.name: link.breaker for link in version.links}
        if rollout is not None:
            breakers["candidate"] = rollout.candidate.breaker
        links: dict[str, Any] = {}
        for name in sorted({*counts, *breakers}):
            links[name] = {"counts": counts.get(name, {})}
            if (breaker := breakers.get(name)) is not None:
                links[name] |= {"breaker": breaker.state, "times_opened": breaker.times_opened}
        return {
            "answered": sum(found.get("ok", 0) for found in counts.values()),
            **{name: totals.get(name, 0) for name in _TOTALS},
            "links": links,
            "absent": {**self._absent, **version.absent},
            "stable": {"number": version.number, "in_flight": in_flight},
            "candidate": None if rollout is None else rollout.report(),
            "candidate_error": None if self.candidate_error is None else str(self.candidate_error),
            "shadow": self._last_shadow if rollout is None else rollout.shadow.report(),
        }

    def close(self) -> None:
        """Takes no further request; ends the worker process; unloads what was loaded here when its last run has ended.
        The canary stays open. May be called twice."""
        with self._changing:
            with self._lock:
                if self._is_closed:
                    return
                self._is_closed = True
                version, rollout = self._stable, self._rollout
                version.is_retired = True
                is_idle = version.in_flight == 0
                self._update()
            if rollout is not None:
                self._end(rollout)
            if is_idle:
                version.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _forget_candidate(self) -> None:
        """In a forked child, with the lock: the candidate is the parent's, whose rollbacks do not get here."""
        self._of_parent, self._rollout = self._rollout, None  # kept, as it is not the child's to unload
        self._live.clear()
        self._threads.clear()
        self._changing = threading.RLock()
        self._update()

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _deadline(seconds: float) -> float:
    """On the clock of time.monotonic; raises RunError for what is no positive number."""
    if not seconds > 0:
        raise RunError(f"deadline_seconds must be a positive number of seconds, got {seconds!r}")
    return time.monotonic() + seconds


_all: weakref.WeakSet[Deployment] = weakref.WeakSet()
_forking: list[Deployment] = []


def _before_fork() -> None:
    """No other thread is in the middle of a change of versions or counters, which the child would find half done."""
    _forking[:] = sorted(_all, key=id)
    for deployment in _forking:
        deployment._lock.acquire()


def _after_fork(is_child: bool) -> None:
    for deployment in _forking:
        if is_child:
            deployment._forget_candidate()
        deployment._lock.release()
    _forking.clear()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(False),
    after_in_child=lambda: _after_fork(True),
)


def _end_all(rollouts: list[Rollout]) -> None:
    for rollout in rollouts:
        rollout.candidate.is_current = False
        rollout.end()
