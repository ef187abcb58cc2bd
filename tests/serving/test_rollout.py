"""Shadowing, state of sequences, records, and what a canary decides."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aot import runtime
from aot.errors import GuardError, RunError
from aot.runtime.serving import Deployment, DeploymentPolicy, Pair, Request, Verdict, WorkerPolicy, links
from aot.runtime.serving.compare import max_abs
from aot.runtime.serving.faults import Fault
from aot.runtime.serving.rollout import Rollout
from tests.runtime import handmade
from tests.serving import models
from tests.serving.conftest import Deployments
from tests.serving.test_worker import until

X = handmade.batch_of(6)
Y = handmade.expected(X)
WORSE = models.dense(every_value="v + 100")
SHADOWED = {"shadow_share": 1.0, "isolation": "none", "cold_runs": 1, "decide_seconds": 0.01, "shadow_load": 1.0}


class Script:
    """Stands for a canary: keeps what it is told, and decides what the test says."""

    def __init__(self, share: float = 0.0) -> None:
        self.judge = SimpleNamespace(expected={})
        self.records: list[Any] = []
        self.state = self.current_state = "running"
        self.current_share = share
        self.failure: Exception | None = None

    @property
    def share(self) -> float:
        return self.current_share

    def add(self, records: Any) -> None:
        if self.failure is not None:
            raise self.failure
        self.records += records

    def decide(self) -> Verdict:
        if self.failure is not None:
            raise self.failure
        self.state = self.current_state
        return Verdict("hold", ("the test says so",))

    def pairs(self) -> list[Pair]:
        return [record for record in self.records if isinstance(record, Pair)]

    def requests(self) -> list[Request]:
        return [record for record in self.records if isinstance(record, Request)]


@pytest.fixture
def canary() -> Script:
    return Script()


def rollout_of(deployment: Deployment) -> Rollout:
    assert deployment._rollout is not None
    return deployment._rollout


def settle(deployment: Any, canary: Script, pairs: int) -> None:
    assert deployment.wait_for_shadow(30)
    until(lambda: len(canary.pairs()) >= pairs)


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_pairs(deploy: Deployments, canary: Script, isolation: str) -> None:
    policy = DeploymentPolicy(**{**SHADOWED, "isolation": isolation})  # type: ignore[arg-type]
    deployment = deploy(models.dense(), WORSE, canary=canary, policy=policy)
    for n in (6, 6, 7, 1):
        x = handmade.batch_of(n)
        y = deployment.run({"x": x}, key=f"k{n}")["y"]
        np.testing.assert_array_equal(y, handmade.expected(x))
        x[...] = np.nan  # the caller's again
        y[...] = np.nan
    settle(deployment, canary, 4)
    first, second, third, fourth = canary.pairs()
    assert [pair.bucket for pair in canary.pairs()] == ["batch=8", "batch=8", "batch=8", "batch=1"]
    assert [pair.key for pair in canary.pairs()] == ["k6", "k6", "k7", "k1"]
    assert first.is_cold and not second.is_cold and third.is_cold and fourth.is_cold
    for pair in canary.pairs():
        assert pair.stable == pair.candidate == "ok"
        assert pair.stable_seconds is not None and pair.candidate_seconds is not None and pair.candidate_seconds > 0
        assert set(pair.values["y"]) == {"max_abs", "relative", "cosine"}
    assert first.values["y"]["max_abs"] >= 100
    found = deployment.statistics()["shadow"]
    assert (found["taken"], found["compared"], found["dropped"]) == (4, 4, 0)
    assert not canary.requests()


@pytest.mark.parametrize("isolation", ["process", "none"])
@pytest.mark.parametrize("stable", ["bytes", "path", "model"])
def test_times_of_pairs_are_taken_alike(
    deploy: Deployments, canary: Script, isolation: str, stable: str, tmp_path: Path
) -> None:
    """Stable runs again behind or before the candidate, in its process if it can."""
    data = models.dense()
    path = tmp_path / "stable.aot"
    path.write_bytes(data)
    source: Any = {"bytes": data, "path": path, "model": runtime.load(data)}[stable]
    policy = DeploymentPolicy(**{**SHADOWED, "isolation": isolation})  # type: ignore[arg-type]
    deployment = deploy(source, WORSE, canary=canary, policy=policy, test_faults=[Fault("slow", size=0.05)])
    for _ in range(6):
        deployment.run({"x": X})
    settle(deployment, canary, 6)
    for pair in canary.pairs():
        assert pair.stable_seconds is not None and pair.candidate_seconds is not None
        assert pair.candidate_seconds >= 0.05
    runner = rollout_of(deployment).candidate.runner
    assert runner.has_twin == (isolation == "process" and stable != "model")
    deployment.swap(models.dense())
    deployment.run({"x": X})
    settle(deployment, canary, 7)
    assert canary.pairs()[-1].stable_seconds is not None  # of the new one, in this process


def test_a_twin_whose_file_is_replaced_is_not_loaded(deploy: Deployments, canary: Script, tmp_path: Path) -> None:
    path = tmp_path / "stable.aot"
    path.write_bytes(models.dense())
    worker = WorkerPolicy(backoff_seconds=0.0, restarts=3)
    policy = DeploymentPolicy(**{**SHADOWED, "isolation": "process"}, worker=worker)  # type: ignore[arg-type]
    deployment = deploy(path, WORSE, canary=canary, policy=policy)
    runner = rollout_of(deployment).candidate.runner
    assert runner.has_twin
    other = tmp_path / "other.aot"
    other.write_bytes(b"no artifact")
    other.replace(path)
    os.kill(runner.process_id, signal.SIGKILL)  # type: ignore[union-attr, arg-type]
    until(lambda: runner.restarts == 1)  # type: ignore[union-attr]
    assert not runner.has_twin
    deployment.run({"x": X})
    settle(deployment, canary, 1)
    assert canary.pairs()[-1].stable_seconds is not None
    deployment.start_candidate(WORSE)
    assert not rollout_of(deployment).candidate.runner.has_twin


def test_pairs_that_end_badly(deploy: Deployments, canary: Script) -> None:
    policy = DeploymentPolicy(
        **{**SHADOWED, "isolation": "process"}, not_finite="fall back",  # type: ignore[arg-type]
        worker=WorkerPolicy(hang_seconds=0.3, backoff_seconds=0.0, restarts=10),
    )  # fmt: skip
    for kind, outcome in (("crash", "crash"), ("hang", "timeout"), ("guard", "guard"), ("device", "device"),
                          ("memory", "device"), ("not_finite", "not_finite")):  # fmt: skip
        canary.records.clear()
        deployment = deploy(models.dense(), WORSE, canary=canary, policy=policy, test_faults=[Fault(kind)])
        np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
        settle(deployment, canary, 1)
        (pair,) = canary.pairs()
        assert (pair.stable, pair.candidate) == ("ok", outcome)
        assert pair.candidate_seconds is None and not pair.values
        deployment.close()


def test_a_request_that_stable_refuses(deploy: Deployments, canary: Script) -> None:
    deployment = deploy(models.dense(), WORSE, canary=canary, policy=DeploymentPolicy(**SHADOWED))  # type: ignore[arg-type]
    with pytest.raises(GuardError, match="dimension 1"):
        deployment.run({"x": X[:, :4].copy()})
    settle(deployment, canary, 1)
    (pair,) = canary.pairs()
    assert (pair.stable, pair.candidate, pair.stable_seconds) == ("guard", "guard", None)


def test_the_queue_is_bounded(deploy: Deployments, canary: Script) -> None:
    for bounds in ({"shadow_requests": 3}, {"shadow_bytes": 3 * (X.nbytes + Y.nbytes)}, {"shadow_requests": 0}):
        canary.records.clear()
        policy = DeploymentPolicy(**{**SHADOWED, **bounds})  # type: ignore[arg-type]
        deployment = deploy(models.dense(), WORSE, canary=canary, policy=policy, test_faults=[Fault("slow", size=0.1)])
        for _ in range(20):
            np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
        assert deployment.wait_for_shadow(30)
        found = deployment.statistics()["shadow"]
        assert found["taken"] + found["dropped"] == 20 and found["dropped"] >= 10
        assert found["taken"] == 0 if bounds == {"shadow_requests": 0} else found["taken"] >= 3
        deployment.close()


def test_the_thread_rests_in_proportion_to_its_work(deploy: Deployments, canary: Script) -> None:
    """With a load of nearly nothing the second pair waits; a rollback does not."""
    policy = DeploymentPolicy(**{**SHADOWED, "shadow_load": 1e-9})  # type: ignore[arg-type]
    deployment = deploy(models.dense(), WORSE, canary=canary, policy=policy)
    for _ in range(5):
        deployment.run({"x": X})
    until(lambda: canary.pairs())
    assert not deployment.wait_for_shadow(0.2)
    deployment.roll_back()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "aot-serving-shadow"])
    assert len(canary.pairs()) == 1


def test_a_share_of_requests_is_shadowed(deploy: Deployments) -> None:
    policy = DeploymentPolicy(shadow_share=0.2, isolation="none", shadow_requests=10_000, shadow_load=1.0)
    deployment = deploy(models.dense(), WORSE, policy=policy)
    for _ in range(1000):
        deployment.run({"x": X})
    assert deployment.wait_for_shadow(30)
    assert 140 <= deployment.statistics()["shadow"]["compared"] <= 260


def test_metrics_of_the_user(deploy: Deployments, canary: Script) -> None:
    def broken(stable: Any, candidate: Any) -> float:
        raise IndexError("a mistake")

    def mean(stable: Any, candidate: Any) -> float:
        return float(np.abs(stable - candidate).mean())

    policy = DeploymentPolicy(**SHADOWED, metrics={"y": ("top1", broken, mean)})  # type: ignore[arg-type]
    deployment = deploy(models.dense(), WORSE, canary=canary, policy=policy)
    for _ in range(5):
        np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
    settle(deployment, canary, 5)
    assert set(canary.pairs()[0].values["y"]) == {"top1", "mean"}
    found = deployment.statistics()["shadow"]
    assert found["metric_errors"] == {"y/broken": 5}
    assert found["first_metric_errors"] == {"y/broken": "IndexError: a mistake"}


def test_metrics_that_nobody_knows_refuse_the_candidate(deploy: Deployments) -> None:
    deployment = deploy(models.dense(), WORSE, policy=DeploymentPolicy(metrics={"z": "top1"}))
    assert "does not have" in str(deployment.candidate_error)
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)


def test_expected_errors_choose_metrics(deploy: Deployments) -> None:
    from aot.runtime.serving import ErrorDistribution

    canary = Script()
    distribution = ErrorDistribution(100, ((0.5, 0.1), (1.0, 0.2)))
    canary.judge.expected = {"y": {"top1": distribution, "mine": distribution}, "other": {"top1": distribution}}
    deployment = deploy(models.dense(), WORSE, canary=canary, policy=DeploymentPolicy(**SHADOWED))  # type: ignore[arg-type]
    deployment.run({"x": X})
    settle(deployment, canary, 1)
    assert set(canary.pairs()[0].values["y"]) == {"max_abs", "relative", "cosine", "top1"}


@pytest.mark.parametrize("chosen", ["max_abs", ("max_abs",), {"max_abs": max_abs}])
def test_expected_errors_add_to_the_metrics_of_the_user(deploy: Deployments, chosen: Any) -> None:
    from aot.runtime.serving import ErrorDistribution

    canary = Script()
    distribution = ErrorDistribution(100, ((0.5, 0.1), (1.0, 0.2)))
    canary.judge.expected = {"y": {"top1": distribution}}
    policy = DeploymentPolicy(**SHADOWED, metrics={"y": chosen})  # type: ignore[arg-type]
    deployment = deploy(models.dense(), WORSE, canary=canary, policy=policy)
    deployment.run({"x": X})
    settle(deployment, canary, 1)
    assert set(canary.pairs()[0].values["y"]) == {"max_abs", "top1"}


# State


def test_a_sequence_has_its_own_state_at_the_candidate(deploy: Deployments, canary: Script) -> None:
    """Stable adds 1 each time, the candidate 2: after n runs they are n apart."""
    deployment = deploy(models.counter(), models.counter(2.0), canary=canary, policy=DeploymentPolicy(**SHADOWED))  # type: ignore[arg-type]
    x = np.ones(3, np.float32)
    states = {name: {"sum": np.zeros(3, np.float32)} for name in ("a", "b")}
    for _ in range(4):
        for name, state in states.items():
            deployment.run({"x": x}, state=state, sequence=name)
    assert all((state["sum"] == 4).all() for state in states.values())
    settle(deployment, canary, 8)
    assert [pair.values["total"]["max_abs"] for pair in canary.pairs()] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert "next" not in canary.pairs()[0].values  # state itself is not compared
    assert canary.pairs()[0].key == "a"
    deployment.run({"x": x}, state=states["a"])  # of no sequence: who knows which state it needs
    assert deployment.statistics()["shadow"]["without_sequence"] == 1


def test_a_sequence_begins_anew_after_a_failure(
    deploy: Deployments, canary: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "SHORT_SECONDS", 0.0)  # one run a pair
    faults = [Fault("guard", first=2, count=1)]
    policy = DeploymentPolicy(**SHADOWED)  # type: ignore[arg-type]
    deployment = deploy(models.counter(), models.counter(2.0), canary=canary, policy=policy, test_faults=faults)
    state = {"sum": np.zeros(3, np.float32)}
    for _ in range(5):
        deployment.run({"x": np.ones(3, np.float32)}, state=state, sequence="a")
        assert deployment.wait_for_shadow(30)
    settle(deployment, canary, 5)
    found = [pair.values.get("total", {}).get("max_abs") for pair in canary.pairs()]
    assert found == [1, 2, None, 1, 2]


def test_live_state(deploy: Deployments) -> None:
    policy = DeploymentPolicy(candidate_share=1.0, shadow_share=0.0)
    deployment = deploy(models.counter(), models.counter(2.0), policy=policy)
    state = {"sum": np.zeros(3, np.float32)}
    x = np.ones(3, np.float32)
    for number in range(1, 4):
        answer = deployment.run_detailed({"x": x}, state=state, sequence="a")
        assert answer.link == "candidate" and answer.outputs.keys() == {"total"}
        np.testing.assert_array_equal(state["sum"], [2 * number] * 3)
    assert deployment.run_detailed({"x": x}, state=state).link == "stable"  # of no sequence
    np.testing.assert_array_equal(state["sum"], [7] * 3)


# The canary


def test_requests_are_recorded_with_a_control_group(deploy: Deployments) -> None:
    canary = Script(share=0.1)
    policy = DeploymentPolicy(**{**SHADOWED, "shadow_share": 0.0})  # type: ignore[arg-type]
    deployment = deploy(models.dense(), WORSE, canary=canary, policy=policy, test_faults=[Fault("guard", every=2)])
    answered = {f"user-{number}": deployment.run_detailed({"x": X}, key=f"user-{number}") for number in range(400)}
    until(lambda: not rollout_of(deployment).records)
    until(lambda: len(canary.requests()) >= 150)  # four of stable's for each of the candidate's
    by_version: dict[str, list[Request]] = {"stable": [], "candidate": []}
    for request in canary.requests():
        by_version[request.version].append(request)
    candidate, stable = by_version["candidate"], by_version["stable"]
    assert 20 <= len(candidate) <= 70 and 120 <= len(stable) <= 210
    assert {request.outcome for request in candidate} == {"ok", "guard"} and {r.outcome for r in stable} == {"ok"}
    for request in candidate:
        assert (request.outcome == "ok") == (answered[request.key].link == "candidate")
        assert request.bucket == "batch=8"
    assert sum(request.is_cold for request in stable) == 1
    assert not any(request.seconds for request in canary.requests())  # they are not alike but for the version


def test_the_canary_moves_the_share_and_promotes(deploy: Deployments, canary: Script) -> None:
    deployment = deploy(models.dense(), WORSE, canary=canary, policy=DeploymentPolicy(**SHADOWED))  # type: ignore[arg-type]
    assert deployment.run_detailed({"x": X}).link == "stable"
    canary.current_share = 1.0
    until(lambda: deployment.run_detailed({"x": X}).link == "candidate")
    with pytest.raises(RunError, match="the canary decides"):
        deployment.set_share(0.5)
    canary.current_state = "promoted"
    until(lambda: deployment.statistics()["promotions"] == 1)
    answer = deployment.run_detailed({"x": X})
    assert answer.link == "stable" and answer.number == 2


def test_the_canary_rolls_back(deploy: Deployments) -> None:
    canary = Script(share=1.0)
    deployment = deploy(models.dense(), WORSE, canary=canary, policy=DeploymentPolicy(**SHADOWED))  # type: ignore[arg-type]
    assert deployment.run_detailed({"x": X}).link == "candidate"
    canary.current_state = "rolled back"
    until(lambda: deployment.statistics()["rollbacks"] == 1)
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
    until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("aot-serving")])


def test_a_full_disk(deploy: Deployments) -> None:
    canary = Script(share=1.0)
    deployment = deploy(models.dense(), WORSE, canary=canary, policy=DeploymentPolicy(**SHADOWED))  # type: ignore[arg-type]
    assert deployment.run_detailed({"x": X}).link == "candidate"
    canary.failure = OSError(errno.ENOSPC, "No space left on device")
    until(lambda: deployment.run_detailed({"x": X}).link == "stable")
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
    found = deployment.statistics()
    assert found["canary_failures"] >= 1 and "No space left" in found["candidate"]["canary_error"]
    assert deploy.kinds() == ["candidate_started", "canary_failed"]
    canary.failure = None
    until(lambda: deployment.run_detailed({"x": X}).link == "candidate")
    assert deployment.statistics()["candidate"]["canary_error"] == ""


def test_records_that_nobody_takes_are_bounded(deploy: Deployments, canary: Script) -> None:
    policy = DeploymentPolicy(**{**SHADOWED, "decide_seconds": 1e6}, most_records=10)  # type: ignore[arg-type]
    deployment = deploy(models.dense(), WORSE, canary=canary, policy=policy)
    until(lambda: rollout_of(deployment)._decide_at)
    for _ in range(30):
        deployment.run({"x": X})
    assert deployment.wait_for_shadow(30)
    assert deployment.statistics()["records_dropped"] + len(rollout_of(deployment).records) == 30
    assert deployment.statistics()["records_dropped"] >= 20


def test_a_candidate_that_cannot_be_promoted(deploy: Deployments, tmp_path: Path) -> None:
    path = tmp_path / "candidate.aot"
    path.write_bytes(WORSE)
    canary = Script(share=1.0)
    policy = DeploymentPolicy(**{**SHADOWED, "isolation": "process"})  # type: ignore[arg-type]
    deployment = deploy(models.dense(), path, canary=canary, policy=policy)
    path.unlink()
    canary.current_state = "promoted"
    until(lambda: deployment.statistics()["rollbacks"] == 1)
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
    assert "canary_failed" in deploy.kinds()


def test_a_canary_that_hangs_does_not_keep_from_rolling_back(deploy: Deployments, canary: Script) -> None:
    is_deciding, goes_on = threading.Event(), threading.Event()

    def hang() -> Verdict:
        is_deciding.set()
        goes_on.wait(30)
        return Verdict("hold", ("the test says so",))

    canary.decide = hang  # type: ignore[method-assign]
    deployment = deploy(models.dense(), WORSE, policy=DeploymentPolicy(**SHADOWED), canary=canary)  # type: ignore[arg-type]
    try:
        assert is_deciding.wait(30)
        operator = threading.Thread(target=deployment.roll_back, daemon=True)
        operator.start()
        operator.join(20)
        assert not operator.is_alive() and deployment.statistics()["candidate"] is None
    finally:
        goes_on.set()


def test_a_promotion_that_fails_in_any_way_rolls_back(
    deploy: Deployments, canary: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = deploy(models.dense(), WORSE, policy=DeploymentPolicy(**SHADOWED), canary=canary)  # type: ignore[arg-type]

    def fail(*_: Any) -> Any:
        raise ValueError("no such value")

    monkeypatch.setattr(deployment, "_make_version", fail)
    canary.current_state = "promoted"
    until(lambda: "rolled_back" in deploy.kinds())
    assert deployment.statistics()["candidate"] is None


def test_a_comparison_that_raises_does_not_end_the_thread(deploy: Deployments, canary: Script) -> None:
    deployment = deploy(models.dense(), models.dense(), policy=DeploymentPolicy(**SHADOWED), canary=canary)  # type: ignore[arg-type]
    comparison = rollout_of(deployment).shadow.comparison
    values = comparison.values

    def fail(*_: Any) -> Any:
        raise KeyError("y")

    comparison.values = fail  # type: ignore[method-assign, assignment]
    deployment.run({"x": X})
    assert deployment.wait_for_shadow(30) and deployment.statistics()["shadow"]["failed"] == {"KeyError": 1}
    comparison.values = values  # type: ignore[method-assign]
    deployment.run({"x": X})
    assert deployment.wait_for_shadow(30)
    until(lambda: len(canary.pairs()) == 1)


def test_an_array_that_cannot_be_copied_loses_no_answer(deploy: Deployments, canary: Script) -> None:
    class Once:
        """An array whose owner gives it once."""

        def __init__(self) -> None:
            self.given = 0

        def __array__(self, *_: Any, **__: Any) -> Any:
            self.given += 1
            if self.given > 1:
                raise BufferError("it is in use")
            return X

    deployment = deploy(models.dense(), models.dense(), policy=DeploymentPolicy(**SHADOWED), canary=canary)  # type: ignore[arg-type]
    np.testing.assert_array_equal(deployment.run({"x": Once()})["y"], Y)
    assert deployment.statistics()["not_shadowed"] == 1


def test_inputs_that_cannot_get_to_the_candidate_say_nothing_about_it(deploy: Deployments, canary: Script) -> None:
    class Once:
        """Stands for an array in a GPU's memory: the model takes it, and numpy does not."""

        def __init__(self) -> None:
            self.given = 0

        def __array__(self, *_: Any, **__: Any) -> Any:
            self.given += 1
            if self.given == 1:
                raise TypeError("copy it to the host first")
            return X

    canary.current_share = 1.0
    policy = DeploymentPolicy(**{**SHADOWED, "isolation": "process", "shadow_share": 0.0})  # type: ignore[arg-type]
    deployment = deploy(models.dense(), models.dense(), policy=policy, canary=canary)
    answer = deployment.run_detailed({"x": Once()})
    assert answer.link == "stable" and answer.tried == (("candidate", "elsewhere"),)
    deployment.run({"x": X})
    until(lambda: canary.requests())
    assert [request.outcome for request in canary.requests() if request.version == "candidate"] == ["ok"]
