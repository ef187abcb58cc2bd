"""The judge of a canary."""

from __future__ import annotations

from collections.abc import Iterable

from aot.runtime.serving.expected import Expected
from aot.runtime.serving.policy import CanaryPolicy
from aot.runtime.serving.records import Pair, Record
from aot.runtime.serving.verdict import Verdict


class Judge:
    """Takes records, one by one, and gives a verdict at any time."""

    def __init__(self, policy: CanaryPolicy | None = None, expected: Expected | None = None) -> None:
        self.policy = policy or CanaryPolicy()
        self.expected: Expected = expected or {}
        self.pairs = 0
        self.requests = 0

    def add(self, record: Record) -> None:
        """One more record."""
        if isinstance(record, Pair):
            self.pairs += 1
        else:
            self.requests += 1

    def add_many(self, records: Iterable[Record]) -> None:
        """More records, in their order."""
        for record in records:
            self.add(record)

    @property
    def has_alarm(self) -> bool:
        """Whether the candidate is to be rolled back: cheap, to be asked after each record."""
        return False

    def verdict(self) -> Verdict:
        """The decision, its reasons and the evidence."""
        return Verdict("hold", ("nothing was seen",))
