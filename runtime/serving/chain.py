"""The chain of links behind one answer: stable, then the fallbacks. Every use is counted by link and cause.

The first link that answers well is the answer. A link whose breaker is open is left out, but never the last one:
leaving that out would help nobody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from aot.errors import GuardError
from aot.runtime.serving import causes
from aot.runtime.serving.breaker import Breaker
from aot.runtime.serving.causes import RefusedError, cause_of
from aot.runtime.serving.compare import all_finite
from aot.runtime.serving.deployment_policy import DeploymentPolicy
from aot.runtime.serving.links import Version

_log = logging.getLogger("aot.serving")
_NOT_LOGGED = frozenset(("fallback", "refused", "swapped", "promoted", "candidate_started"))  # counted, or asked for


class Answer(NamedTuple):
    """Results and where they came from. `link`: "candidate", "stable", or a fallback. `number`: of the artifact, as
    `Deployment.statistics` has it. `tried`: (link, cause) of those that did not answer. `seconds`: of the model's run
    alone; `hop_seconds`: to the worker process and back, beside it."""

    outputs: dict[str, Any]
    link: str
    number: int
    tried: tuple[tuple[str, str], ...]
    seconds: float
    hop_seconds: float = 0.0


class Event(NamedTuple):
    """Something that an operator may want to know. `kind`: "fallback" (a link did not answer a request), "refused",
    "breaker_opened", "candidate_started", "candidate_refused", "promoted", "rolled_back", "swapped", "worker_lost",
    "worker_restarted", "worker_stopped", "canary_failed", "upkeep_failed" (what looks after the candidate raised),
    "link_absent", "runs_slower" (the artifact's fastest code needs another machine)."""

    kind: str
    link: str
    cause: str
    message: str


class Asked(NamedTuple):
    """One request, as its caller gave it; `deadline` in seconds of time.monotonic."""

    inputs: Mapping[str, Any]
    key: str | bytes | int | None = None
    sequence: str | None = None
    deadline: float | None = None
    outputs: Mapping[str, Any] | None = None
    state: Mapping[str, Any] | None = None

    @property
    def key_text(self) -> str:
        """The key as records have it."""
        if self.key is None:
            return ""
        return self.key.decode(errors="replace") if isinstance(self.key, bytes) else str(self.key)


class Chain:
    """Counters, events, and the way from link to link. `lock` guards the counters, and the deployment's versions."""

    def __init__(self, policy: DeploymentPolicy, on_event: Callable[[Event], Any] | None) -> None:
        self.policy, self._on_event = policy, on_event
        self.lock = threading.Lock()
        self.counts: dict[str, Counter[str]] = {"stable": Counter()}
        self.totals: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Counts something of the deployment as a whole."""
        with self.lock:
            self.totals[name] += count

    def is_good(self, results: Mapping[str, Any]) -> bool:
        """Whether the policy takes such results for an answer."""
        return self.policy.not_finite == "allow" or all_finite(results)

    def answer(
        self, version: Version, asked: Asked, tried: list[tuple[str, str]], failure: Exception | None = None
    ) -> Answer:
        """The answer of stable or of a fallback; of a fallback only where stable has failed already, with `failure`.

        `tried` grows by the links that did not answer. Raises as `Deployment.run`.
        """
        links, state = version.links, asked.state
        if failure is not None:
            tried.append(("stable", cause_of(failure)))
        saved = None
        if state and len(links) > 1 and failure is None:
            # A link that fails in the middle of a run may have changed them.
            saved = {name: array.copy() for name, array in state.items() if hasattr(array, "copy")}
        first_error = failure
        for link in links if failure is None else links[1:]:
            if not link.breaker.allows() and link is not links[-1]:  # asked of the last one as well: it counts trials
                tried.append((link.name, causes.OPEN))
                self.failed(link.name, link.breaker, causes.OPEN, "")
                continue
            timeout = None
            if asked.deadline is not None:
                timeout = asked.deadline - time.monotonic()
                if timeout <= 0:
                    tried.append((link.name, causes.TIMEOUT))
                    self.failed(link.name, link.breaker, causes.TIMEOUT, "no time was left", is_fault=False)
                    break
                if link is links[0] and len(links) > 1:
                    timeout *= self.policy.stable_deadline_share
            cause, message, results = "", "", {}
            begin = time.perf_counter()
            try:
                results = link.runs.run(asked.inputs, outputs=asked.outputs, state=state, timeout_seconds=timeout)
                seconds = time.perf_counter() - begin
                if not self.is_good(results):
                    cause, message = causes.NOT_FINITE, "a result is NaN or infinite"
            except Exception as error:
                cause, message = cause_of(error), str(error)
                first_error = first_error or error
            if not cause:
                self.succeeded(link.name, link.breaker)
                return Answer(results, link.name, version.number, tuple(tried), seconds)
            tried.append((link.name, cause))
            self.failed(link.name, link.breaker, cause, message)
            for name, array in (saved or {}).items():
                assert state is not None
                state[name][...] = array
        self._refuse(len(links), tried, first_error)

    def _refuse(self, links: int, tried: list[tuple[str, str]], first_error: Exception | None) -> NoReturn:
        self.add("refused")
        what = ", ".join(f"{link}: {cause}" for link, cause in tried)
        self.tell("refused", "", tried[-1][1] if tried else "", what)
        own = {cause for link, cause in tried if link != "candidate"}
        if first_error is not None and (links == 1 or (isinstance(first_error, GuardError) and own == {causes.GUARD})):
            raise first_error
        raise RefusedError(
            f"no link of the deployment answered ({what})",
            tuple(tried),
            hint=f"The first error: {first_error}" if first_error is not None else "Give the request more time.",
        ) from first_error

    def succeeded(self, name: str, breaker: Breaker) -> None:
        """Counts an answer of a link."""
        if not breaker.is_closed:
            breaker.succeeded()
        with self.lock:
            self.counts.setdefault(name, Counter())["ok"] += 1

    def failed(self, name: str, breaker: Breaker, cause: str, message: str, *, is_fault: bool = True) -> None:
        """Counts that a link did not answer, has its breaker judge that, and tells.

        `is_fault`: it was the link's own, not the chain's.
        """
        with self.lock:
            counts = self.counts.setdefault(name, Counter())
            counts[cause] += 1
            runs = counts["ok"] + sum(counts[other] for other in causes.OF_LINK)
        if cause in causes.OF_LINK and is_fault:
            if breaker.failed(runs):
                self.tell("breaker_opened", name, cause, message)
        elif cause != causes.OPEN and not breaker.is_closed:
            breaker.abandoned_trial()
        self.tell("fallback", name, cause, message)

    def tell(self, kind: str, link: str, cause: str, message: str) -> None:
        """Gives an event to the caller, and to the log "aot.serving" unless it was asked for or is counted."""
        if kind not in _NOT_LOGGED:
            _log.warning("%s %s %s: %s", kind, link, cause, message)
        if self._on_event is not None:
            try:
                self._on_event(Event(kind, link, cause, message))
            except Exception:
                self.add("event_errors")
