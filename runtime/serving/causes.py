"""Why a link of the chain did not answer: one word for each, for counters and records."""

from __future__ import annotations

from aot.errors import GuardError, RunError

GUARD, DEVICE, CRASH, TIMEOUT, NOT_FINITE = "guard", "device", "crash", "timeout", "not_finite"
MEMORY, ERROR = "memory", "error"
OPEN, BUSY, UNAVAILABLE, DISCARDED, CLOSED = "open", "busy", "unavailable", "discarded", "closed"
ELSEWHERE = "elsewhere"  # the inputs are in memory, such as a GPU's, from where they do not go to a worker process

OUTCOMES = {
    GUARD: "guard", DEVICE: "device", MEMORY: "device", ERROR: "device", CRASH: "crash", TIMEOUT: "timeout",
    NOT_FINITE: "not_finite", OPEN: "fallback", BUSY: "fallback", UNAVAILABLE: "fallback", DISCARDED: "fallback",
    CLOSED: "fallback", ELSEWHERE: "fallback",
}  # fmt: skip
"""Causes as outcomes of records."""

OF_LINK = frozenset((DEVICE, CRASH, TIMEOUT, NOT_FINITE, MEMORY, ERROR))
"""Causes that a breaker counts: the link's fault, not the request's, and not that of the chain."""

_STATUS = {5: GUARD, 6: MEMORY, 7: TIMEOUT, 11: DEVICE}  # of aot_status


class LinkError(RunError):
    """A link of the chain could not answer; `cause` is the word for it."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class RefusedError(RunError):
    """No link of the chain gave an answer. `tried` holds (link, cause) in order."""

    code = "refused"

    def __init__(self, message: str, tried: tuple[tuple[str, str], ...], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.tried = tried


def cause_of(error: Exception) -> str:
    """The word for what a link raised."""
    if isinstance(error, LinkError):
        return error.cause
    if isinstance(error, GuardError):
        return GUARD
    if isinstance(error, MemoryError):
        return MEMORY
    return _STATUS.get(getattr(error, "status", 0), ERROR)
