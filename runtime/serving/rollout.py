"""One rollout: a candidate beside stable, what of the traffic it gets or sees, and what the canary is told.

Nothing here waits for the canary: records go into a bounded queue, and a thread hands them over and asks for the
verdict. Records of live requests have no times: a candidate with a small share of them finds other caches than stable,
in another process, which is not its fault. Latency is what pairs are for.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aot.errors import GuardError
from aot.runtime.serving import causes
from aot.runtime.serving.candidate import Candidate, InProcess, Lot, Turn
from aot.runtime.serving.causes import cause_of
from aot.runtime.serving.chain import Answer, Asked, Chain
from aot.runtime.serving.compare import DEFAULT, METRICS, Comparison, by_name
from aot.runtime.serving.controller import Canary
from aot.runtime.serving.links import Version, bucket_of, deliver
from aot.runtime.serving.records import Record, Request
from aot.runtime.serving.shadow import Shadow, Shadowed, copies

TEND_SECONDS = 0.02
MOST_BUCKETS = 10_000


class Rollout:
    """A candidate with its shadow, its records and its canary. The deployment obeys what `decide` says."""

    def __init__(
        self,
        candidate: Candidate,
        stable: Any,
        canary: Canary | None,
        chain: Chain,
        again: Callable[[Mapping[str, Any]], float | None],
        has_twin: Callable[[], bool],
    ) -> None:
        self.candidate, self.canary, self._chain = candidate, canary, chain
        policy = self._policy = chain.policy
        self.records: deque[Record] = deque()
        self.lot = Lot(policy.shadow_share, policy.salt)
        comparison = _comparison(stable, canary, policy.metrics)
        self.shadow = Shadow(candidate, comparison, policy, self.record, again, has_twin)
        self.canary_error = ""
        self._decide_at = 0.0
        self._turn: Turn | None = None

    def start(self, turn: Callable[[], None]) -> threading.Thread:
        """Begins to call a function now and then, which calls `tend`; the thread that does."""
        self._turn = Turn("aot-serving-turn", TEND_SECONDS, turn)
        return self._turn.thread

    # Requests

    def takes(self, asked: Asked) -> bool:
        """Whether a request goes to the candidate. One with state needs a name: its sequence must not change sides."""
        return not (asked.state and asked.key is None) and self.candidate.takes(asked.key)

    def ask(self, version: Version, asked: Asked, tried: list[tuple[str, str]]) -> Answer | None:
        """The candidate's answer; None, and its cause in `tried`, where it has none or is rolled back meanwhile."""
        candidate, lock = self.candidate, self._chain.lock
        bucket, message, reply, results = bucket_of(version.buckets, asked.inputs), "", None, {}
        is_delivering = False
        if not candidate.breaker.allows():
            cause = causes.OPEN
        else:
            try:
                timeout = None
                if asked.deadline is not None:
                    left = asked.deadline - time.monotonic()
                    timeout = max(left * self._policy.candidate_deadline_share, 1e-4)
                reply = candidate.runner.run({**asked.inputs, **(asked.state or {})}, timeout)
                cause = "" if self._chain.is_good(reply.outputs) else causes.NOT_FINITE
                with lock:
                    is_delivering = not cause and candidate.is_current
                    candidate.delivering += is_delivering
                if is_delivering:
                    results = deliver(reply.outputs, asked.outputs, asked.state, candidate.replaced_by)
                else:
                    cause = cause or causes.DISCARDED
            except Exception as error:
                cause, message = cause_of(error), str(error)
            finally:
                if is_delivering:
                    with lock:
                        candidate.delivering -= 1
        is_cold = reply is not None and reply.runs <= self._policy.cold_runs
        outcome = causes.OUTCOMES[cause] if cause else "ok"
        if cause != causes.ELSEWHERE:  # the candidate was not asked, so that says nothing about it
            self.record(Request(time.time(), bucket, "candidate", outcome, None, is_cold, asked.key_text))
        if cause or reply is None:
            tried.append(("candidate", cause))
            self._chain.failed("candidate", candidate.breaker, cause, message)
            return None
        self._chain.succeeded("candidate", candidate.breaker)
        return Answer(results, "candidate", candidate.number, (), reply.seconds, reply.hop_seconds)

    def beside(self, version: Version, asked: Asked, is_drawn: bool | None) -> Answer:
        """Stable's answer to a request that does not go to the candidate; shadowed or recorded where it is drawn.

        Only requests with a state are shadowed by their sequence. `is_drawn`: None where that is to be found out here.
        """
        if is_drawn is None:
            is_drawn = self.lot.draws(asked.sequence if asked.state else None)
        if is_drawn:
            return self._shadowed(version, asked)
        if self.canary is not None and self.candidate.is_control(asked.key):
            return self._recorded(version, asked)
        return self._chain.answer(version, asked, [])

    def _recorded(self, version: Version, asked: Asked) -> Answer:
        """A request of stable's that the canary compares with the candidate's."""
        bucket = bucket_of(version.buckets, asked.inputs)
        is_cold = self._is_cold(version, bucket)
        outcome = "refused"
        try:
            answer = self._chain.answer(version, asked, [])
            outcome = _of_stable(answer)
            return answer
        except GuardError:
            outcome = "guard"
            raise
        finally:
            self.record(Request(time.time(), bucket, "stable", outcome, None, is_cold, asked.key_text))

    def _shadowed(self, version: Version, asked: Asked) -> Answer:
        """A request that goes through the candidate as well, after its answer."""
        shadow, state, sequence = self.shadow, asked.state, asked.sequence
        begin, fresh, results, is_followed = time.time(), None, {}, True
        if state and sequence is None:
            shadow.without_sequence += 1
            is_followed = False
        elif state and sequence is not None and sequence not in shadow.followed:
            fresh, _ = copies(state)
        outcome = "refused"
        try:
            answer = self._chain.answer(version, asked, [])
            outcome = _of_stable(answer)
            results = answer.outputs if outcome == "ok" else {}
            return answer
        except GuardError:
            outcome = "guard"
            raise
        finally:
            if is_followed and shadow.has_room():
                bucket = bucket_of(version.buckets, asked.inputs)
                is_cold = self._is_cold(version, bucket)
                name = sequence if state else None
                try:
                    (given, size), (found, more) = copies(asked.inputs), copies(results)
                    size += more
                    key = asked.key_text
                    shadow.add(Shadowed(begin, bucket, key, given, found, outcome, is_cold, name, fresh, size))
                except Exception:  # of other packages, such as for arrays of a GPU; the request has its answer
                    self._chain.add("not_shadowed")
            elif state and sequence is not None:
                shadow.forget(sequence)

    def _is_cold(self, version: Version, bucket: str) -> bool:
        seen = version.seen[bucket] = version.seen.get(bucket, 0) + 1
        if len(version.seen) > MOST_BUCKETS:
            version.seen.clear()
        return seen <= self._policy.cold_runs

    # In the background

    def record(self, record: Record) -> None:
        """Keeps a record for the canary; drops it, and counts that, where too many wait."""
        if self.canary is not None:
            if len(self.records) < self._policy.most_records:
                self.records.append(record)
            else:
                self._chain.add("records_dropped")

    def decide(self) -> tuple[str, float]:
        """Hands the records to the canary and has it decide: its state and the candidate's share. ("", 0.0) where it
        fails: nothing is known of the candidate then, so that it gets no traffic."""
        canary = self.canary
        assert canary is not None
        records = [self.records.popleft() for _ in range(len(self.records))]
        try:
            if records:
                canary.add(records)
            canary.decide()
            state, share = canary.state, canary.share
        except Exception as error:
            self._chain.add("canary_failures")
            self._chain.add("records_lost", len(records))
            if not self.canary_error:
                self._chain.tell("canary_failed", "candidate", type(error).__name__, str(error))
            self.canary_error = f"{type(error).__name__}: {error}"
            return "", 0.0
        self.canary_error = ""
        return state, share

    def is_due(self) -> bool:
        """Whether it is time to ask the canary again."""
        now = time.monotonic()
        if self.canary is None or now < self._decide_at:
            return False
        self._decide_at = now + self._policy.decide_seconds
        return True

    def end(self) -> None:
        """Ends the worker process at once; a candidate in this process goes when its last run has ended."""
        candidate = self.candidate
        if self._turn is not None:  # first: whatever happens below, nothing may wait for that thread for good
            self._turn.stop()
        self.shadow.stop()
        if isinstance(candidate.runner, InProcess):
            is_over = self.shadow.join(self._policy.worker.hang_seconds)
            with self._chain.lock:
                candidate.is_retired = is_over
                is_idle = is_over and candidate.in_flight == 0
            if is_idle:
                candidate.close()
        else:
            candidate.close()

    def report(self) -> dict[str, Any]:
        """For statistics."""
        candidate = self.candidate
        texts = {"number": candidate.number, "share": candidate.share, "canary_error": self.canary_error}
        return {**texts, **candidate.runner.report()}


def _of_stable(answer: Answer) -> str:
    """Outcome of stable, in an answer of the chain."""
    return "ok" if answer.link == "stable" else causes.OUTCOMES[dict(answer.tried)["stable"]]


def _comparison(stable: Any, canary: Canary | None, metrics: Any) -> Comparison:
    """The metrics of the policy, and those that the canary has expectations of: without them it would hold for good.
    State is not compared."""
    states = {pair.output for pair in stable.state}
    outputs: Sequence[tuple[str, str]] = [(spec.name, spec.dtype) for spec in stable.outputs if spec.name not in states]
    chosen = dict(metrics)
    for name, expected in (canary.judge.expected if canary is not None else {}).items():
        known = [metric for metric in expected if metric in METRICS]
        if not any(name == output for output, _ in outputs):
            continue
        if name in chosen:
            chosen[name] = by_name(name, known) | by_name(name, chosen[name])
        elif more := [metric for metric in known if metric not in DEFAULT]:
            chosen[name] = (*DEFAULT, *more)
    return Comparison(outputs, chosen)
