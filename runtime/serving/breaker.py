"""Circuit breakers: a link of the chain that keeps failing is left out for a while, then tried again.

States as in Nygard, "Release It!": closed (used), open (left out), half-open (a few trials decide). A success costs
nothing while the breaker is closed: only failures are kept, each with the number of runs there had been.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from aot.errors import RunError


@dataclass(frozen=True)
class BreakerPolicy:
    """When a breaker opens and closes.

    It opens after `failures` within `window_seconds`, if they are also at least `failure_share` of the runs in between;
    it stays open for `open_seconds`, twice as long after each trial that fails, at most `most_open_seconds`; then
    `trials` successful runs close it.
    """

    failures: int = 5
    window_seconds: float = 30.0
    failure_share: float = 0.1
    open_seconds: float = 1.0
    most_open_seconds: float = 60.0
    trials: int = 3

    def __post_init__(self) -> None:
        if self.failures < 1 or self.trials < 1:
            raise RunError(f"a breaker needs at least 1 failure and 1 trial, got {self.failures} and {self.trials}")
        if not 0 < self.window_seconds or not 0 < self.open_seconds <= self.most_open_seconds:
            raise RunError("the seconds of a breaker must be positive, and open_seconds at most most_open_seconds")
        if not 0 <= self.failure_share <= 1:
            raise RunError(f"failure_share must be from 0 to 1, got {self.failure_share!r}")


class Breaker:
    """One link's breaker; safe to use from any thread. `clock` gives seconds and should not go back (if it does, what
    was timed starts anew)."""

    def __init__(self, policy: BreakerPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._clock = policy, clock
        self._lock = threading.Lock()
        self._failures: deque[tuple[float, int]] = deque(maxlen=policy.failures)  # (seconds, runs so far)
        self._opened_at: float | None = None
        self._open_seconds = policy.open_seconds
        self._trials_begun = self._trials_passed = 0
        self._trial_at = 0.0
        self._is_held_open = False
        self.times_opened = 0
        self.is_closed = True
        """Read without the lock on the way of every request."""

    @property
    def state(self) -> str:
        """ "closed", "open" or "half-open"."""
        with self._lock:
            if self._opened_at is None:
                return "open" if self._is_held_open else "closed"
            return "open" if self._is_held_open or self._remaining() > 0 else "half-open"

    def _remaining(self) -> float:
        """Seconds until trials begin."""
        assert self._opened_at is not None
        now = self._clock()
        if now < self._opened_at:  # the clock went back: wait again, but not for longer than once
            self._opened_at = now
        return self._opened_at + self._open_seconds - now

    def allows(self) -> bool:
        """Whether the link may be used now. In the half-open state this begins one of the trials."""
        if self.is_closed:
            return True
        with self._lock:
            if self._is_held_open:
                return False
            if self._opened_at is None:
                return True
            if self._remaining() > 0:
                return False
            now = self._clock()
            if self._trials_begun >= self._policy.trials:
                # Trials whose end was never told (such as a thread that died) must not keep it shut for ever.
                if 0 <= now - self._trial_at <= self._policy.most_open_seconds:
                    return False
                self._trials_begun = self._trials_passed = 0
            self._trials_begun += 1
            self._trial_at = now
            return True

    def succeeded(self) -> None:
        """A run went well; need not be called while the breaker `is_closed`."""
        with self._lock:
            if self._opened_at is None or self._is_held_open or self._trials_begun == 0:
                return
            self._trials_passed += 1
            if self._trials_passed >= self._policy.trials:
                self._opened_at = None
                self._open_seconds = self._policy.open_seconds
                self._failures.clear()
                self.is_closed = True

    def failed(self, runs: int) -> bool:
        """A run failed; `runs`: how many the link has had so far. Returns whether this opened the breaker."""
        with self._lock:
            now = self._clock()
            if self._is_held_open:
                return False
            if self._opened_at is not None:
                if self._trials_begun == 0:
                    return False  # a run that began before it opened
                self._open_seconds = min(self._open_seconds * 2, self._policy.most_open_seconds)
                self._open(now)
                return True
            self._failures.append((now, runs))
            first, runs_then = self._failures[0]
            if len(self._failures) < self._policy.failures or not 0 <= now - first <= self._policy.window_seconds:
                if now < first:
                    self._failures.clear()
                return False
            if len(self._failures) < self._policy.failure_share * (runs - runs_then + 1):
                return False
            self._open(now)
            return True

    def _open(self, now: float) -> None:
        self._opened_at = now
        self._trials_begun = self._trials_passed = 0
        self.times_opened += 1
        self.is_closed = False

    def abandoned_trial(self) -> None:
        """A run that `allows` let through did not take place, or says nothing about the link."""
        with self._lock:
            if self._opened_at is not None and self._trials_begun > self._trials_passed:
                self._trials_begun -= 1

    def hold_open(self) -> None:
        """Opens it for good, until `close`."""
        with self._lock:
            self._is_held_open = True
            self.is_closed = False
            self.times_opened += 1

    def close(self) -> None:
        """Closes it whatever happened."""
        with self._lock:
            self._is_held_open, self._opened_at = False, None
            self._open_seconds = self._policy.open_seconds
            self._failures.clear()
            self.is_closed = True
