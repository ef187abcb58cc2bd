"""Serving a model to others: deployments with fallbacks and candidates; records of a canary, its judge and its state.

Needs numpy and the standard library only.
"""

from __future__ import annotations

from aot.runtime.serving._process import WorkerPolicy
from aot.runtime.serving.breaker import BreakerPolicy
from aot.runtime.serving.causes import LinkError, RefusedError
from aot.runtime.serving.chain import Answer, Event
from aot.runtime.serving.controller import Canary
from aot.runtime.serving.deployment import Deployment
from aot.runtime.serving.deployment_policy import DeploymentPolicy
from aot.runtime.serving.expected import ErrorDistribution, Expected, expected_of, expected_to_json
from aot.runtime.serving.judge import Judge
from aot.runtime.serving.links import OnnxRuntime
from aot.runtime.serving.policy import CanaryPolicy
from aot.runtime.serving.records import OUTCOMES, Pair, Record, Request, from_json, read_records, to_json
from aot.runtime.serving.selftest import Check, Latency, SelfTest, self_test
from aot.runtime.serving.verdict import Evidence, Verdict

__all__ = [
    "OUTCOMES",
    "Answer",
    "BreakerPolicy",
    "Canary",
    "CanaryPolicy",
    "Check",
    "Deployment",
    "DeploymentPolicy",
    "ErrorDistribution",
    "Event",
    "Evidence",
    "Expected",
    "Judge",
    "Latency",
    "LinkError",
    "OnnxRuntime",
    "Pair",
    "Record",
    "RefusedError",
    "Request",
    "SelfTest",
    "Verdict",
    "WorkerPolicy",
    "expected_of",
    "expected_to_json",
    "from_json",
    "read_records",
    "self_test",
    "to_json",
]
