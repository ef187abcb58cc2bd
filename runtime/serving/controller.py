"""The durable state of a canary: which share of the traffic the candidate gets, why, and what was decided when.

A directory holds a journal (journal.py: records, decisions, snapshots of the judge), `audit.jsonl` with a line for
each decision, and `orders`, where operators leave what they want while a controller runs. One controller a
directory. Everything it says was on disk before it said so, and a restart continues where it was, to the same bits.

Steps: a step ends with `least_pairs` pairs and `least_requests` live requests of the candidate since it began, and no
fault. The last step, all of the traffic, begins only when the judge says promote: until then any fault of the
smallest effect meets a quarter of the traffic at most, with the default steps.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aot.errors import RunError
from aot.runtime.serving.audit import Audit
from aot.runtime.serving.expected import Expected, expected_of, expected_to_json
from aot.runtime.serving.journal import Journal, Recovered, StateError, read_journal
from aot.runtime.serving.judge import Judge
from aot.runtime.serving.orders import Order, finish_order, read_orders
from aot.runtime.serving.policy import CanaryPolicy
from aot.runtime.serving.records import Record, from_json, to_json
from aot.runtime.serving.verdict import Verdict

_SEGMENT_BYTES = 4 << 20  # of entries, after which the state is written whole
_ORDERS_KEPT = 200


@dataclass
class _Progress:
    """Where a rollout is. `step`: index into the policy's steps; `step_pairs`, `step_requests`: the judge's counts
    when it began; `number`: of the last decision; `word`: of the last verdict; `orders`: names of those done."""

    state: str = "running"  # running | paused | promoted | rolled back
    step: int = 0
    step_pairs: int = 0
    step_requests: int = 0
    number: int = 0
    word: str = "hold"
    reasons: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()


class _Rollout:
    """Judge and progress, as the journal's entries make them."""

    def __init__(self, policy: CanaryPolicy, expected: Expected) -> None:
        self.policy, self.expected = policy, expected
        self.judge = Judge(policy, expected)
        self.progress = _Progress()

    def share(self) -> float:
        """The candidate's share of the traffic."""
        if self.progress.state == "promoted":
            return 1.0
        return 0.0 if self.progress.state == "rolled back" else self.policy.steps[self.progress.step]

    def snapshot(self) -> bytes:
        return _encoded(
            {
                "policy": self.policy.to_json(), "expected": expected_to_json(self.expected),
                "judge": self.judge.state(), "progress": asdict(self.progress),
            }
        )  # fmt: skip

    def apply(self, entry: dict[str, Any]) -> None:
        """One entry of the journal."""
        if "records" in entry:
            self.judge.add_many(from_json(record) for record in entry["records"])
        else:
            self.progress = _progress(entry["progress"])

    @classmethod
    def recovered(cls, found: Recovered) -> tuple[_Rollout, list[dict[str, Any]]]:
        """The rollout of a directory, and the decisions since its snapshot. Raises RunError where it is none."""
        try:
            document = json.loads(found.snapshot or b"")
            rollout = cls(CanaryPolicy.from_json(document["policy"]), expected_of({"errors": document["expected"]}))
            rollout.judge.restore(document["judge"])
            rollout.progress = _progress(document["progress"])
            decisions = []
            for entry in map(json.loads, found.entries):
                rollout.apply(entry)
                if "decision" in entry:
                    decisions.append(entry["decision"])
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"the state is whole, but of another version of aotc: {error!r}",
                hint="Read it with the version that wrote it, or begin a new canary in an empty directory.",
            ) from error
        return rollout, decisions


class Canary:
    """One rollout, with its state in `directory`. For several threads; the lock on the directory is the process's."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        policy: CanaryPolicy | None = None,
        expected: Expected | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Begins a rollout, or continues the one of the directory.

        `policy`, `expected`: of a new one; of one that continues they may be left out, and must be the same. `clock`:
        seconds since the epoch, for the audit log only. Raises RunError where another controller holds the
        directory, or its state cannot be read or written, or is of another rollout.
        """
        self.directory = Path(directory)
        self.clock = clock
        self.trouble = ""  # why the state cannot be written, while that is so
        self._mutex = threading.RLock()
        self._journal = Journal(self.directory)
        try:
            self._begin(policy, expected)
        except BaseException:
            self._journal.close()
            raise

    def _begin(self, policy: CanaryPolicy | None, expected: Expected | None) -> None:
        found = self._journal.recovered
        decisions: list[dict[str, Any]] = []
        if found.snapshot is None:
            self._rollout = _Rollout(policy or CanaryPolicy(), expected or {})
        else:
            self._rollout, decisions = _Rollout.recovered(found)
            for name, given, had in (
                ("policy", policy and policy.to_json(), self._rollout.policy.to_json()),
                ("expected errors", expected and expected_to_json(expected), expected_to_json(self._rollout.expected)),
            ):
                if given is not None and given != had:
                    raise RunError(
                        f"this rollout was begun with another {name}", where=str(self.directory),
                        hint="Continue with the same, or begin a new canary in an empty directory.",
                    )  # fmt: skip
        if found.size_bytes is None:
            self._journal.snapshot(self._rollout.snapshot())
        self._audit = Audit(self.directory / "audit.jsonl", decisions)
        if found.snapshot is None:
            self._record("begin", ("a new canary",))
        elif found.notes:
            self._record("recover", found.notes)

    @property
    def policy(self) -> CanaryPolicy:
        """Of the rollout."""
        return self._rollout.policy

    @property
    def judge(self) -> Judge:
        """The judge, with all records so far."""
        return self._rollout.judge

    @property
    def state(self) -> str:
        """running, paused, promoted or rolled back."""
        return self._rollout.progress.state

    @property
    def step(self) -> int:
        """Index into the policy's steps."""
        return self._rollout.progress.step

    @property
    def share(self) -> float:
        """The candidate's share of the live traffic, now: from 0 to 1."""
        return self._rollout.share()

    def add(self, records: Iterable[Record]) -> None:
        """Takes records; they are on disk when this returns. Many at once cost one sync.

        Raises RunError where they cannot be written (a full disk): then none of them count, and the canary holds
        until a write succeeds; and where one of them is no record that a restart could read.
        """
        written = [to_json(record) for record in records]
        taken = [from_json(record) for record in written]
        if not taken:
            return
        with self._mutex:
            self._append({"records": written})
            self._rollout.judge.add_many(taken)
            self._rotate()

    def decide(self) -> Verdict:
        """Judges, and moves a step or rolls back where the verdict says so; on disk when this returns.

        "promote" says that a step began, or that the rollout is promoted. Orders that operators left are followed
        first. With a disk that cannot be written the canary holds, but for a fault, which rolls back all the same.
        """
        with self._mutex:
            try:
                self._follow_orders()
                return self._decide()
            except StateError as error:
                self.trouble = error.message
                if not self.judge.has_alarm or self.state in ("promoted", "rolled back"):
                    return Verdict("hold", (f"the state cannot be written: {error.message}",))
                verdict = self.judge.verdict()
                self._rollout.progress.state = "rolled back"  # a restart finds the same fault in the same records
                self._rollout.progress.reasons = verdict.reasons
                return verdict

    def _decide(self) -> Verdict:
        progress, judge = self._rollout.progress, self._rollout.judge
        if progress.state in ("promoted", "rolled back"):
            word = "promote" if progress.state == "promoted" else "roll back"
            return Verdict(word, progress.reasons)
        verdict = judge.verdict()
        if verdict.decision == "roll back":
            self._record("roll back", verdict.reasons, verdict=verdict, state="rolled back")
            return verdict
        if progress.state == "paused":
            return self._hold(progress.reasons, verdict)
        missing = self._missing()
        if missing:
            return self._hold((*missing, *verdict.reasons) if verdict.decision == "hold" else missing, verdict)
        steps = self.policy.steps
        last = progress.step == len(steps) - 1
        if (last or steps[progress.step + 1] == 1.0) and verdict.decision != "promote":
            return self._hold(verdict.reasons, verdict)
        if last:
            verdict = Verdict("promote", verdict.reasons, verdict.evidence)
            self._record("promote", verdict.reasons, verdict=verdict, state="promoted")
            return verdict
        share = f"step {progress.step + 2} of {len(steps)}: {steps[progress.step + 1]:.4g} of the traffic"
        verdict = Verdict("promote", (share,), verdict.evidence)
        self._record(
            "step", verdict.reasons, verdict=verdict, step=progress.step + 1, step_pairs=judge.pairs,
            step_requests=judge.candidate_requests,
        )  # fmt: skip
        return verdict

    def _missing(self) -> tuple[str, ...]:
        """What this step still lacks. The last step has no shadowing to wait for: all traffic is the candidate's."""
        progress, judge, policy = self._rollout.progress, self._rollout.judge, self.policy
        pairs = judge.pairs - progress.step_pairs
        requests = judge.candidate_requests - progress.step_requests
        lacking = []
        if pairs < policy.least_pairs and policy.steps[progress.step] < 1.0:
            lacking.append(f"{pairs} of {policy.least_pairs} pairs in this step")
        if requests < policy.least_requests:
            lacking.append(f"{requests} of {policy.least_requests} live requests of the candidate in this step")
        return tuple(lacking)

    def _hold(self, reasons: tuple[str, ...], verdict: Verdict) -> Verdict:
        held = Verdict("hold", reasons, verdict.evidence)
        if self._rollout.progress.word != "hold":
            self._record("hold", reasons, verdict=held)
        return held

    def pause(self, who: str, why: str) -> None:
        """Stays at this share until `resume`; records still count, and a fault still rolls back."""
        self._order(Order("pause", who, why))

    def resume(self, who: str, why: str) -> None:
        """Ends a pause."""
        self._order(Order("resume", who, why))

    def force(self, decision: str, who: str, why: str) -> None:
        """An operator's decision, at once and whatever the judge says: "promote" to all traffic, or "roll back"."""
        self._order(Order(decision, who, why))

    def _order(self, order: Order, name: str = "") -> None:
        with self._mutex:
            state = self.state
            if order.what in ("pause", "resume") and state in ("promoted", "rolled back"):
                raise RunError(f"this rollout is {state}: there is nothing to {order.what}", where=str(self.directory),
                               hint="Force a decision, or begin a new canary in an empty directory.")  # fmt: skip
            if order.what == "resume" and state != "paused":
                raise RunError("this rollout is not paused", where=str(self.directory), hint="There is nothing to do.")
            new = {"pause": "paused", "resume": "running", "promote": "promoted", "roll back": "rolled back"}
            self._record(order.what, (f"{order.what} by {order.who}: {order.why}",), order=order,
                         state=new[order.what], orders=self._orders_done(name))  # fmt: skip

    def _orders_done(self, name: str) -> tuple[str, ...] | None:
        return (*self._rollout.progress.orders, name)[-_ORDERS_KEPT:] if name else None

    def _follow_orders(self) -> None:
        for name, order in read_orders(self.directory):
            if name not in self._rollout.progress.orders:
                try:
                    if isinstance(order, RunError):
                        raise order
                    self._order(order, name)
                except StateError:
                    raise
                except RunError as error:
                    self._record("order refused", (f"{name}: {error.message}",), orders=self._orders_done(name))
            finish_order(self.directory, name)

    def _record(
        self,
        what: str,
        reasons: tuple[str, ...],
        *,
        verdict: Verdict | None = None,
        order: Order | None = None,
        **changes: Any,
    ) -> None:
        """Makes a decision: in the journal, in memory, and in the audit log, in this order."""
        old = self._rollout.progress
        new = _Progress(**{**asdict(old), **{name: value for name, value in changes.items() if value is not None}})
        new.number, new.word = old.number + 1, "hold" if verdict is None else verdict.decision
        if new.state != old.state:
            new.reasons = reasons
        before, self._rollout.progress = self._rollout.progress, new
        line = {
            "number": new.number, "time": self.clock(), "what": what, "state": new.state, "step": new.step,
            "share": self._rollout.share(), "pairs": self.judge.pairs, "requests": self.judge.requests,
            "reasons": list(reasons),
        }  # fmt: skip
        if order is not None:
            line.update(who=order.who, why=order.why)
        if verdict is not None:
            line["evidence"] = [each.to_json() for each in verdict.evidence]
        try:
            self._append({"decision": line, "progress": asdict(new)})
        except StateError:
            self._rollout.progress = before
            raise
        self._audit.add(line)

    def _append(self, entry: dict[str, Any]) -> None:
        try:
            self._journal.append([_encoded(entry)])
        except StateError as error:
            self.trouble = error.message
            raise
        self.trouble = ""

    def _rotate(self) -> None:
        """A new snapshot, where the journal grew long. Without room for one, the journal goes on."""
        if self._journal.size_bytes < _SEGMENT_BYTES:
            return
        try:
            self._audit.flush()
            self._journal.snapshot(self._rollout.snapshot())
        except StateError as error:
            self.trouble = error.message

    def audit(self) -> list[dict[str, Any]]:
        """Every decision so far, the oldest first; `audit.jsonl` has the same, a line each."""
        with self._mutex:
            return self._audit.lines()

    def close(self) -> None:
        """Releases the directory; may be called twice."""
        with self._mutex:
            self._journal.close()

    def __enter__(self) -> Canary:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def canary_status(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Where a rollout is, from its directory alone, also while a controller works on it.

    {"state", "step", "steps", "share", "pairs", "requests", "verdict": as Verdict.to_json, "reasons": of the state,
    "decisions": how many, "orders": how many wait}. Raises RunError where there is no canary.
    """
    found = read_journal(directory)
    if found.snapshot is None:
        raise RunError("there is no canary in this directory", where=str(directory))
    rollout, _ = _Rollout.recovered(found)
    progress = rollout.progress
    return {
        "state": progress.state, "step": progress.step, "steps": list(rollout.policy.steps), "share": rollout.share(),
        "pairs": rollout.judge.pairs, "requests": rollout.judge.requests, "reasons": list(progress.reasons),
        "verdict": rollout.judge.verdict().to_json(), "decisions": progress.number,
        "orders": len(read_orders(Path(directory))),
    }  # fmt: skip


def _progress(document: dict[str, Any]) -> _Progress:
    return _Progress(**{**document, "reasons": tuple(document["reasons"]), "orders": tuple(document["orders"])})


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
