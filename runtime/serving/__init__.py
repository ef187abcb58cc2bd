"""Serving a model: the records, the judge and the durable state of a canary. numpy and the standard library only."""

from __future__ import annotations

from aot.runtime.serving.controller import Canary, canary_status
from aot.runtime.serving.expected import ErrorDistribution, Expected, expected_of, expected_to_json
from aot.runtime.serving.judge import Judge
from aot.runtime.serving.orders import Order, leave_order
from aot.runtime.serving.policy import CanaryPolicy
from aot.runtime.serving.records import OUTCOMES, Pair, Record, Request, from_json, read_records, to_json
from aot.runtime.serving.verdict import Evidence, Verdict

__all__ = [
    "OUTCOMES",
    "Canary",
    "CanaryPolicy",
    "ErrorDistribution",
    "Evidence",
    "Expected",
    "Judge",
    "Order",
    "Pair",
    "Record",
    "Request",
    "Verdict",
    "canary_status",
    "expected_of",
    "expected_to_json",
    "from_json",
    "leave_order",
    "read_records",
    "to_json",
]
