"""What a deployment may do, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aot.errors import RunError
from aot.runtime.serving._process import WorkerPolicy
from aot.runtime.serving.breaker import BreakerPolicy

ISOLATION = ("process", "none")
NOT_FINITE = ("allow", "fall back")


@dataclass(frozen=True)
class DeploymentPolicy:
    """How requests are answered. Shares are from 0 to 1.

    `isolation`: "process" runs a candidate in a worker process, "none" in this one. `candidate_share`: of the live
    traffic, where no canary decides it. `shadow_share`: of the requests that stable answers, so many go through the
    candidate as well, off the request's way, and are compared. `not_finite`: "fall back" takes an answer with a NaN or
    an infinity in a float output (in CPU memory) for none. `candidate_deadline_share`, `stable_deadline_share`: the
    part of what is left of a request's deadline that the candidate, and stable, may use before the next link is tried.

    `breaker`, `worker`: see BreakerPolicy and WorkerPolicy. `shadow_requests`, `shadow_bytes`: how much may wait to be
    shadowed; what comes beyond is dropped and counted. `shadow_load`: the part of one CPU's time that the thread which
    shadows may take in this process (not the candidate in its own), since requests share the interpreter with it.
    `metrics`: for some outputs, names ("max_abs", "relative",
    "cosine", "top1"), functions (stable, candidate) -> float, or a mapping of names to functions. `cold_runs`: the
    first runs of a process with a shape that records mark as cold. `decide_seconds`: how often the canary is asked.
    `most_records`: that may wait for the canary. `salt`: changes which keys go to the candidate first.
    """

    isolation: str = "process"
    candidate_share: float = 0.0
    shadow_share: float = 0.05
    not_finite: str = "allow"
    candidate_deadline_share: float = 0.5
    stable_deadline_share: float = 1.0
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)
    worker: WorkerPolicy = field(default_factory=WorkerPolicy)
    shadow_requests: int = 64
    shadow_bytes: int = 256 << 20
    shadow_load: float = 0.02
    metrics: Mapping[str, Any] = field(default_factory=dict)
    cold_runs: int = 3
    decide_seconds: float = 1.0
    most_records: int = 10_000
    salt: str = ""

    def __post_init__(self) -> None:
        for name in ("candidate_share", "shadow_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise RunError(f"{name} is a share from 0 to 1, got {getattr(self, name)!r}")
        for name in ("candidate_deadline_share", "stable_deadline_share", "shadow_load"):
            if not 0 < getattr(self, name) <= 1:
                raise RunError(f"{name} is a share above 0, at most 1, got {getattr(self, name)!r}")
        for name, words in (("isolation", ISOLATION), ("not_finite", NOT_FINITE)):
            if getattr(self, name) not in words:
                raise RunError(f"{name} is {' or '.join(map(repr, words))}, got {getattr(self, name)!r}")
        for name in ("shadow_requests", "shadow_bytes", "cold_runs", "most_records"):
            if getattr(self, name) < 0:
                raise RunError(f"{name} must be at least 0, got {getattr(self, name)!r}")
        if not self.decide_seconds > 0:
            raise RunError(f"decide_seconds must be positive, got {self.decide_seconds!r}")
