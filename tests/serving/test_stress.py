"""Thousands of requests while candidates go wrong and artifacts are swapped; benchmarks/serving.py runs more."""

from __future__ import annotations

import numpy as np
import pytest

from aot.runtime.serving import DeploymentPolicy, WorkerPolicy
from tests.runtime import handmade
from tests.serving import models
from tests.serving.stress import FAULTS, NOT_FATAL, Served, Stress


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_no_request_is_lost(isolation: str) -> None:
    inputs = [{"x": handmade.batch_of(n)} for n in (1, 5, 32)]
    served = [Served("dense", [models.dense(), models.dense(every_value="v * 2")], inputs)]
    policy = DeploymentPolicy(
        isolation=isolation, candidate_share=0.3, shadow_share=0.05,
        worker=WorkerPolicy(hang_seconds=0.3, backoff_seconds=0.01, restarts=1000),
    )  # fmt: skip
    faults = FAULTS if isolation == "process" else NOT_FATAL
    outcome = Stress(served, 3000, 8, 5, policy, faults).run()
    assert outcome.requests >= 3000 and outcome.swaps == 5
    assert outcome.lost == 0, outcome.errors[:3]
    assert outcome.changed_later == outcome.wrong_of_stable == 0
    assert outcome.wrong_of_candidates > 0  # the faults took place
    assert outcome.wrong_after_rollback == outcome.from_candidate_after_rollback == 0
    assert outcome.links["stable"] and outcome.links["candidate"]
    assert np.isfinite(outcome.percentile(99)["dense"])
