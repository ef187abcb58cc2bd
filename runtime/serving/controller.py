"""The durable state of a canary."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from aot.runtime.serving.expected import Expected
from aot.runtime.serving.judge import Judge
from aot.runtime.serving.policy import CanaryPolicy
from aot.runtime.serving.records import Record
from aot.runtime.serving.verdict import Verdict


class Canary:
    """One rollout, with its state in `directory`."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        policy: CanaryPolicy | None = None,
        expected: Expected | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory = Path(directory)
        self.judge = Judge(policy, expected)
        self.clock = clock
        self.state = "running"  # running | paused | promoted | rolled back
        self.step = 0

    @property
    def share(self) -> float:
        """The candidate's share of the live traffic, now."""
        return {"promoted": 1.0, "rolled back": 0.0}.get(self.state, self.judge.policy.steps[self.step])

    def add(self, records: Iterable[Record]) -> None:
        """Takes records; they are on disk when this returns."""
        self.judge.add_many(records)

    def decide(self) -> Verdict:
        """Judges, and moves a step or rolls back where the verdict says so; on disk when this returns."""
        return self.judge.verdict()

    def pause(self, who: str, why: str) -> None:
        """Stays at the share until `resume`; a fault still rolls back."""
        self.state = "paused"

    def resume(self, who: str, why: str) -> None:
        """Ends a pause."""
        self.state = "running"

    def force(self, decision: str, who: str, why: str) -> None:
        """An operator's decision: "promote" (to 100 %, at once) or "roll back"."""
        self.state = "promoted" if decision == "promote" else "rolled back"

    def audit(self) -> list[dict[str, Any]]:
        """Every decision so far, the oldest first."""
        return []

    def close(self) -> None:
        """Releases the directory."""

    def __enter__(self) -> Canary:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
