"""What a judge says: a decision, its reasons, and the evidence of every stream of data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

DECISIONS = ("promote", "hold", "roll back")
STATES = ("cleared", "open", "fault", "no data", "unjudged")
"""Of a stream: nothing of smallest effect is possible any more; either is possible; a fault; nothing was seen;
nothing to compare with."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one stream.

    `kind`: "numeric", "latency" or "failures"; `output`, `metric`, `bucket`: "" where they do not apply. `count`: the
    records it rests on. `estimate` and `interval` (which holds at all times at once, with confidence
    1 - `missed_fault`) are of a rate, a difference of rates, or a ratio of times; `limit`: the smallest effect, below
    which the interval must lie. `evidence_ratio`: how much likelier the data are with a fault than without, as an
    e-value; the candidate is rolled back where the weighted mean over all streams reaches 1/`false_alarm`. `share`:
    the weight in that mean. `required`: whether it must be cleared before promotion.
    """

    kind: str
    output: str
    metric: str
    bucket: str
    count: int
    estimate: float | None
    interval: tuple[float, float] | None
    limit: float
    state: str
    evidence_ratio: float = 1.0
    share: float = 0.0
    required: bool = True
    note: str = ""

    @property
    def name(self) -> str:
        """The stream, for people."""
        where = "/".join(part for part in (self.output, self.metric, self.bucket) if part)
        return f"{self.kind} {where}" if where else self.kind

    def to_json(self) -> dict[str, Any]:
        """The fields by name; what is not finite is null."""
        return {
            "kind": self.kind, "output": self.output, "metric": self.metric, "bucket": self.bucket,
            "count": self.count, "estimate": _finite(self.estimate),
            "interval": None if self.interval is None else [_finite(end) for end in self.interval],
            "limit": _finite(self.limit), "state": self.state, "evidence_ratio": _finite(self.evidence_ratio),
            "share": self.share, "required": self.required, "note": self.note,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """`decision`: one of DECISIONS; `reasons`: for people, the weightiest first; `evidence`: of every stream."""

    decision: str
    reasons: tuple[str, ...]
    evidence: tuple[Evidence, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As the file of an audit log and `aotc canary judge --json` have it."""
        return {
            "decision": self.decision,
            "reasons": list(self.reasons),
            "evidence": [each.to_json() for each in self.evidence],
        }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
