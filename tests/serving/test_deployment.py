"""Deployment: the chain of links, hot swap, candidates that are refused, rolled back, promoted."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot import runtime
from aot.artifacts import Artifact
from aot.errors import ArtifactError, GuardError, RunError
from aot.runtime.serving import (
    BreakerPolicy,
    Deployment,
    DeploymentPolicy,
    LinkError,
    OnnxRuntime,
    RefusedError,
    WorkerPolicy,
)
from aot.runtime.serving.checks import slower_because
from aot.runtime.serving.faults import Fault
from tests.runtime import handmade
from tests.serving import models
from tests.serving.conftest import Deployments
from tests.serving.test_worker import POISON, is_alive, until

X = handmade.batch_of(6)
Y = handmade.expected(X)
ALL = DeploymentPolicy(candidate_share=1.0, shadow_share=0.0)
NEVER_OPENS = BreakerPolicy(failures=100_000)
WORSE = models.dense(every_value="v + 100")


class Failing:
    """Stands for a model whose runs fail."""

    def __init__(self, model: Any, status: int) -> None:
        self.model, self.status, self.runs = model, status, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def run(self, inputs: Any, **options: Any) -> Any:
        self.runs += 1
        error = RunError("it failed")
        error.status = self.status
        if options.get("state"):
            next(iter(options["state"].values()))[...] = np.nan  # in the middle of a run
        raise error


def break_stable(deployment: Deployment, status: int = 11) -> Failing:
    """Has stable fail from now on, with a status of the C API."""
    link = deployment._stable.links[0]
    failing = Failing(link.runs, status)
    link.runs = failing
    deployment._stable.model = failing  # type: ignore[assignment]
    return failing


def counts(deployment: Deployment, link: str) -> dict[str, int]:
    found: dict[str, int] = deployment.statistics()["links"][link]["counts"]
    return found


# Stable alone


def test_answers_as_the_model_does(deploy: Deployments) -> None:
    data = models.dense()
    for stable in (data, runtime.load(data, threads=1)):
        deployment = deploy(stable)
        np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
        y = np.empty_like(Y)
        assert deployment.run({"x": X}, outputs={"y": y})["y"] is y
        np.testing.assert_array_equal(y, Y)
        answer = deployment.run_detailed({"x": X}, key="a", deadline_seconds=60)
        assert answer.link == "stable" and answer.number == 1 and answer.tried == () and answer.seconds > 0
        assert counts(deployment, "stable") == {"ok": 3}


def test_errors_are_those_of_the_model(deploy: Deployments) -> None:
    deployment = deploy(models.dense())
    for _ in range(50):  # and a guard never opens a breaker
        with pytest.raises(GuardError, match="dimension 1: expected 5, got 4"):
            deployment.run({"x": X[:, :4].copy()})
    with pytest.raises(RunError, match="positive"):
        deployment.run({"x": X}, deadline_seconds=0)
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
    found = deployment.statistics()
    assert found["links"]["stable"] == {"counts": {"ok": 1, "guard": 50}, "breaker": "closed", "times_opened": 0}
    assert found["refused"] == 50 and found["answered"] == 1


def test_a_lone_stable_is_always_tried(deploy: Deployments) -> None:
    deployment = deploy(models.dense())
    failing = break_stable(deployment)
    for _ in range(20):
        with pytest.raises(RunError, match="it failed"):
            deployment.run({"x": X})
    assert failing.runs == 20 and counts(deployment, "stable") == {"device": 20}


def test_a_stable_that_does_not_load(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        Deployment(tmp_path / "missing.aot")
    with pytest.raises(ArtifactError):
        Deployment(models.dense()[:-100])


def test_closed(deploy: Deployments) -> None:
    model = runtime.load(models.dense())
    deployment = deploy(model)
    deployment.close()
    with pytest.raises(LinkError, match="closed"):
        deployment.run({"x": X})
    with pytest.raises(LinkError, match="closed"):
        deployment.swap(models.dense())
    np.testing.assert_array_equal(model.run({"x": X})["y"], Y)  # it was the caller's


# Fallbacks


@pytest.mark.parametrize(("status", "cause"), [(11, "device"), (6, "memory"), (7, "timeout"), (0, "error")])
def test_falls_back_and_counts(deploy: Deployments, status: int, cause: str) -> None:
    deployment = deploy(models.dense(), fallback=["cpu:x86-64"], policy=DeploymentPolicy(breaker=NEVER_OPENS))
    break_stable(deployment, status)
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
    answer = deployment.run_detailed({"x": X})
    assert answer.link == "cpu:x86-64" and answer.tried == (("stable", cause),)
    assert counts(deployment, "stable") == {cause: 2} and counts(deployment, "cpu:x86-64") == {"ok": 2}
    assert [(event.kind, event.link, event.cause) for event in deploy.events] == [("fallback", "stable", cause)] * 2  # type: ignore[attr-defined]


def test_a_breaker_leaves_stable_out(deploy: Deployments) -> None:
    policy = DeploymentPolicy(breaker=BreakerPolicy(failures=3, open_seconds=3600, most_open_seconds=3600))
    deployment = deploy(models.dense(), fallback=["cpu:x86-64"], policy=policy)
    failing = break_stable(deployment)
    for _ in range(10):
        np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
    assert failing.runs == 3
    assert counts(deployment, "stable") == {"device": 3, "open": 7}
    assert deployment.statistics()["links"]["stable"]["breaker"] == "open"
    assert deploy.kinds() == ["breaker_opened"]


def test_no_link_answers(deploy: Deployments) -> None:
    deployment = deploy(models.dense(), fallback=["cpu:x86-64"])
    with pytest.raises(GuardError, match="dimension 1"):  # the request's fault, whoever is asked
        deployment.run({"x": X[:, :4].copy()})
    break_stable(deployment)
    deployment._stable.links[1].runs = Failing(None, 6)
    with pytest.raises(RefusedError, match="stable: device, cpu:x86-64: memory") as caught:
        deployment.run({"x": X})
    assert caught.value.tried == (("stable", "device"), ("cpu:x86-64", "memory"))
    assert "it failed" in caught.value.hint
    assert deployment.statistics()["refused"] == 2


def test_not_finite(deploy: Deployments) -> None:
    bad = models.dense()
    x = np.full((2, 5), np.inf, np.float32)  # inf - inf
    allowing = deploy(bad)
    assert not np.isfinite(allowing.run({"x": x})["y"]).all()
    strict = deploy(bad, policy=DeploymentPolicy(not_finite="fall back"), fallback=["cpu:x86-64"])
    np.testing.assert_array_equal(strict.run({"x": X})["y"], Y)
    with pytest.raises(RefusedError, match="stable: not_finite, cpu:x86-64: not_finite"):
        strict.run({"x": x})
    assert counts(strict, "stable") == {"ok": 1, "not_finite": 1}


def test_a_deadline_goes_to_all_links_together(deploy: Deployments) -> None:
    policy = DeploymentPolicy(stable_deadline_share=0.25)
    deployment = deploy(models.dense(), fallback=["cpu:x86-64"], policy=policy)
    given: list[float] = []
    link = deployment._stable.links[0]
    model = link.runs

    class Slow:
        def run(self, inputs: Any, **options: Any) -> Any:
            given.append(options["timeout_seconds"])
            time.sleep(0.02)
            return Failing(model, 7).run(inputs, **options)

    link.runs = Slow()
    assert deployment.run_detailed({"x": X}, deadline_seconds=60).link == "cpu:x86-64"
    assert 14 < given[0] <= 15
    with pytest.raises(RefusedError, match="stable: timeout, cpu:x86-64: timeout"):
        deployment.run({"x": X}, deadline_seconds=0.01)
    assert counts(deployment, "cpu:x86-64") == {"ok": 1, "timeout": 1}
    assert deployment.statistics()["links"]["cpu:x86-64"]["breaker"] == "closed"


def test_state_is_put_back_before_the_next_link(deploy: Deployments) -> None:
    deployment = deploy(models.counter(), fallback=["cpu:x86-64"])
    state = {"sum": np.zeros(3, np.float32)}
    x = np.ones(3, np.float32)
    assert deployment.run({"x": x}, state=state).keys() == {"total"}
    break_stable(deployment)
    (total,) = deployment.run({"x": x}, state=state).values()
    np.testing.assert_array_equal(total, [2, 2, 2])
    np.testing.assert_array_equal(state["sum"], [2, 2, 2])


def test_absent_links_are_named(deploy: Deployments, tmp_path: Path) -> None:
    deployment = deploy(models.dense(), fallback=["cpu"])
    assert deployment.statistics()["absent"] == {"cpu": "stable runs on the CPU itself"}
    assert deploy.kinds() == ["link_absent"]
    deployment = deploy(runtime.load(models.dense()), fallback=["cpu:x86-64"])
    assert "loaded model" in deployment.statistics()["absent"]["cpu:x86-64"]


@pytest.mark.parametrize("wrong", [["gpu"], ["cpu", "cpu"], [3], [OnnxRuntime("a"), OnnxRuntime("b")]])
def test_wrong_fallbacks(wrong: Any) -> None:
    with pytest.raises(RunError):
        Deployment(models.dense(), fallback=wrong)


def test_onnx_runtime(deploy: Deployments, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    import onnx
    from onnx import TensorProto, helper

    weights, bias = handmade.weights()
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["z"]), helper.make_node("Relu", ["z"], ["y"])],
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 19])],
        [onnx.numpy_helper.from_array(weights, "w"), onnx.numpy_helper.from_array(bias, "b")],
    )
    path = tmp_path / "dense.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    deployment = deploy(models.dense(), fallback=["cpu:x86-64", OnnxRuntime(path, threads=1)])
    break_stable(deployment)
    deployment._stable.links[1].runs = Failing(None, 11)
    y = np.empty_like(Y)
    answer = deployment.run_detailed({"x": X}, outputs={"y": y})
    assert answer.link == "onnxruntime" and answer.outputs["y"] is y
    np.testing.assert_allclose(y, Y, rtol=1e-6)
    with pytest.raises(GuardError):  # it refuses too, and says so in the same words
        deployment._stable.links[2].runs.run({"x": X[:, :4].copy()})
    deployment.swap(models.dense())
    assert [link.name for link in deployment._stable.links] == ["stable", "cpu:x86-64", "onnxruntime"]
    with pytest.raises(RunError, match="its inputs and outputs are"):
        Deployment(models.renamed("z"), fallback=[OnnxRuntime(path)])


def test_onnx_runtime_is_not_installed(deploy: Deployments, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    deployment = deploy(models.dense(), fallback=[OnnxRuntime("dense.onnx")])
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
    assert "not installed" in deployment.statistics()["absent"]["onnxruntime"]
    assert deploy.kinds() == ["link_absent"]


# Swaps


def test_swap_unloads_the_old_one_after_its_last_run(deploy: Deployments) -> None:
    deployment = deploy(models.dense())
    old = deployment._stable
    began, may_end = threading.Event(), threading.Event()
    model = old.model

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

        def run(self, inputs: Any, **options: Any) -> Any:
            began.set()
            may_end.wait(30)
            return model.run(inputs, **options)

    old.model = Slow()  # type: ignore[assignment]
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(deployment.run({"x": X})["y"]))
    thread.start()
    began.wait(30)
    deployment.swap(WORSE)
    assert not old.is_closed  # its run is not over
    np.testing.assert_array_equal(deployment.run({"x": X})["y"].max(), Y.max() + 100)
    may_end.set()
    thread.join()
    np.testing.assert_array_equal(found[0], Y)
    assert old.is_closed and old.in_flight == 0
    with pytest.raises(RunError, match="closed"):
        model.run({"x": X})
    found_now = deployment.statistics()
    assert found_now["swaps"] == 1 and found_now["stable"] == {"number": 2, "in_flight": 0}


def test_a_swap_that_is_refused_changes_nothing(deploy: Deployments) -> None:
    deployment = deploy(models.dense())
    for other, message in ((models.renamed("z"), "its inputs are not"), (models.counter(), "its inputs are not")):
        with pytest.raises(ArtifactError, match=message):
            deployment.swap(other)
    with pytest.raises(ArtifactError):
        deployment.swap(models.dense()[:-1])
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
    assert deployment.statistics()["stable"]["number"] == 1


# Candidates


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_candidate_answers_and_is_rolled_back(deploy: Deployments, isolation: str) -> None:
    policy = DeploymentPolicy(candidate_share=1.0, shadow_share=0.0, isolation=isolation)
    deployment = deploy(models.dense(), WORSE, policy=policy)
    y = np.empty_like(Y)
    answer = deployment.run_detailed({"x": X}, outputs={"y": y})
    assert answer.link == "candidate" and answer.number == 2 and answer.outputs["y"] is y
    assert y.max() == Y.max() + 100 and (answer.hop_seconds > 0) == (isolation == "process")
    np.testing.assert_array_equal(deployment.run({"x": X}, outputs={"y": y})["y"].max(), Y.max() + 100)
    deployment.roll_back("test")
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
    assert deployment.run_detailed({"x": X}).link == "stable"
    assert deployment.statistics()["candidate"] is None and deployment.statistics()["rollbacks"] == 1
    deployment.roll_back()
    assert deploy.kinds() == ["candidate_started", "rolled_back"]


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_an_answer_in_flight_is_thrown_away_after_a_rollback(deploy: Deployments, isolation: str) -> None:
    policy = DeploymentPolicy(candidate_share=1.0, shadow_share=0.0, isolation=isolation)
    deployment = deploy(models.dense(), WORSE, policy=policy, test_faults=[Fault("slow", size=0.3)])
    answers: list[Any] = []
    y = np.empty_like(Y)
    thread = threading.Thread(target=lambda: answers.append(deployment.run_detailed({"x": X}, outputs={"y": y})))
    thread.start()
    until(lambda: deployment._rollout is not None and deployment._rollout.candidate.in_flight)
    deployment.roll_back()
    thread.join()
    (answer,) = answers
    assert answer.link == "stable"
    assert answer.tried[0][1] == ("discarded" if isolation == "none" else "crash")
    np.testing.assert_array_equal(y, Y)


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_promote(deploy: Deployments, isolation: str, tmp_path: Path) -> None:
    path = tmp_path / "worse.aot"
    path.write_bytes(WORSE)
    policy = DeploymentPolicy(shadow_share=0.0, isolation=isolation)
    deployment = deploy(models.dense(), path, policy=policy)
    assert deployment.run_detailed({"x": X}).link == "stable"
    old, process_id = deployment._stable, deployment.statistics()["candidate"].get("process_id")
    deployment.promote()
    answer = deployment.run_detailed({"x": X})
    assert answer.link == "stable" and answer.number == 2 and answer.outputs["y"].max() == Y.max() + 100
    assert old.is_closed and (process_id is None or not is_alive(process_id))
    with pytest.raises(RunError, match="no candidate"):
        deployment.promote()
    assert deploy.kinds() == ["candidate_started", "promoted"]


def test_promote_refuses_a_file_that_was_replaced(deploy: Deployments, tmp_path: Path) -> None:
    path = tmp_path / "candidate.aot"
    path.write_bytes(models.dense())
    deployment = deploy(models.dense(), path, policy=DeploymentPolicy(shadow_share=0.0))
    (tmp_path / "other").write_bytes(WORSE)
    os.replace(tmp_path / "other", path)
    with pytest.raises(RunError, match="replaced"):
        deployment.promote()
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)


def test_shares_are_sticky(deploy: Deployments) -> None:
    deployment = deploy(models.dense(), WORSE, policy=DeploymentPolicy(shadow_share=0.0, isolation="none"))

    def at_candidate() -> set[str]:
        keys = [f"user-{number}" for number in range(1000)]
        return {key for key in keys if deployment.run_detailed({"x": X}, key=key).link == "candidate"}

    assert at_candidate() == set()
    before: set[str] = set()
    for share in (0.01, 0.1, 0.5, 1.0):
        deployment.set_share(share)
        now = at_candidate()
        assert now == at_candidate() and now >= before
        assert abs(len(now) / 1000 - share) <= 4 * (share * (1 - share) / 1000) ** 0.5
        before = now
    other = deploy(models.dense(), WORSE, policy=DeploymentPolicy(candidate_share=0.1, isolation="none", salt="b"))
    deployment.set_share(0.1)
    assert {key for key in before if other.run_detailed({"x": X}, key=key).link == "candidate"} != at_candidate()
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(RunError):
            deployment.set_share(wrong)


def test_candidate_faults_do_not_reach_the_caller(deploy: Deployments) -> None:
    kinds = ("crash", "guard", "device", "memory", "hang")
    policy = DeploymentPolicy(
        candidate_share=1.0, shadow_share=0.0, breaker=NEVER_OPENS,
        worker=WorkerPolicy(hang_seconds=0.3, backoff_seconds=0.0, restarts=100),
    )  # fmt: skip
    for kind in kinds:
        deployment = deploy(models.dense(), WORSE, policy=policy, test_faults=[Fault(kind)])
        for number in range(2):
            answer = deployment.run_detailed({"x": X})
            np.testing.assert_array_equal(answer.outputs["y"], Y)
            assert answer.link == "stable" and number >= 0
        cause = {"hang": "timeout"}.get(kind, kind)
        assert counts(deployment, "candidate")[cause] >= 1
        deployment.close()


def test_a_crash_in_a_kernel_of_the_candidate(deploy: Deployments) -> None:
    policy = DeploymentPolicy(candidate_share=1.0, shadow_share=0.0, worker=WorkerPolicy(backoff_seconds=0.0))
    deployment = deploy(models.dense(), models.dense(models.CRASH), policy=policy)
    assert deployment.run_detailed({"x": X}).link == "candidate"
    answer = deployment.run_detailed({"x": POISON})
    np.testing.assert_array_equal(answer.outputs["y"], handmade.expected(POISON))
    assert answer.tried == (("candidate", "crash"),)
    until(lambda: deployment.statistics()["candidate"]["restarts"] == 1)
    assert deployment.run_detailed({"x": X}).link == "candidate"


def test_too_many_crashes_hold_the_breaker_open(deploy: Deployments) -> None:
    policy = DeploymentPolicy(
        candidate_share=1.0, shadow_share=0.0, worker=WorkerPolicy(restarts=1, backoff_seconds=0.0), breaker=NEVER_OPENS
    )
    deployment = deploy(models.dense(), models.dense(), policy=policy, test_faults=[Fault("crash")])

    def is_stopped() -> bool:
        np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
        return bool(deployment.statistics()["candidate"]["state"] == "stopped")

    until(is_stopped)
    until(lambda: deployment.statistics()["links"]["candidate"]["breaker"] == "open")
    assert deployment.run_detailed({"x": X}).tried == (("candidate", "open"),)
    assert "worker_stopped" in deploy.kinds()


def test_deadline_of_a_candidate(deploy: Deployments) -> None:
    deployment = deploy(models.dense(), WORSE, policy=ALL, test_faults=[Fault("slow", size=0.5)])
    answer = deployment.run_detailed({"x": X}, deadline_seconds=0.2)
    assert answer.link == "stable" and answer.tried == (("candidate", "timeout"),)
    assert deployment.statistics()["candidate"]["losses"] == 0


def test_not_finite_of_a_candidate(deploy: Deployments) -> None:
    policy = DeploymentPolicy(candidate_share=1.0, shadow_share=0.0, not_finite="fall back")
    deployment = deploy(models.dense(), models.dense(), policy=policy, test_faults=[Fault("not_finite", first=1)])
    assert deployment.run_detailed({"x": X}).link == "candidate"
    answer = deployment.run_detailed({"x": X})
    assert answer.link == "stable" and answer.tried == (("candidate", "not_finite"),)


def test_outputs_that_do_not_fit(deploy: Deployments) -> None:
    deployment = deploy(models.dense(), models.dense(), policy=ALL)
    with pytest.raises(GuardError, match="dimension 0: expected 6, got 4"):
        deployment.run({"x": X}, outputs={"y": np.empty((4, 19), np.float32)})


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        (models.dense()[:-100], "."),
        (b"no artifact at all", "."),
        (models.renamed("z"), "its inputs are not as stable has it: expected x, found z"),
        (models.renamed("x", "z"), "its outputs are not as stable has it: expected y, found z"),
        (models.counter(), "its inputs are not"),
    ],
)
def test_a_candidate_that_is_refused(deploy: Deployments, candidate: bytes, message: str) -> None:
    deployment = deploy(models.dense(), candidate, policy=ALL)
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
    found = deployment.statistics()
    assert isinstance(deployment.candidate_error, ArtifactError) and found["candidate_error"]
    assert found["candidate"] is None and found["candidates_refused"] == 1
    assert deploy.kinds() == ["candidate_refused"]
    with pytest.raises(ArtifactError, match=message):
        deployment.start_candidate(candidate)
    deployment.start_candidate(models.dense())
    assert deployment.candidate_error is None and deployment.run_detailed({"x": X}).link == "candidate"


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_self_tests_run_before_traffic(deploy: Deployments, tmp_path: Path, isolation: str) -> None:
    good = models.with_self_test(models.dense())
    bad = tmp_path / "bad.aot"
    bad.write_bytes(models.with_self_test(models.dense(every_value="v * 1.1f")))
    policy = DeploymentPolicy(candidate_share=1.0, shadow_share=0.0, isolation=isolation)
    deployment = deploy(good, bad, policy=policy)
    assert "its self-test fails on this machine: input 0: max_abs of output 'y' is" in str(deployment.candidate_error)
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
    deployment.start_candidate(good)
    assert deployment.run_detailed({"x": X}).link == "candidate"
    with pytest.raises(ArtifactError, match="self-test"):
        deployment.start_candidate(good, test_faults=[Fault("wrong_numbers")])
    with pytest.raises(ArtifactError, match="the run failed"):
        deployment.start_candidate(good, test_faults=[Fault("guard" if isolation == "none" else "crash")])
    with pytest.raises(ArtifactError, match="self-test"):
        deployment.swap(bad)
    with pytest.raises(ArtifactError, match="self-test"):
        Deployment(bad)
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
    assert deployment.statistics()["stable"]["number"] == 1


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_an_unsigned_candidate_is_refused(deploy: Deployments, isolation: str) -> None:
    pytest.importorskip("cryptography")
    from aot.artifacts import signatures

    private, public = signatures.generate_key()
    data = models.dense()
    signed = signatures.sign(data, private)
    policy = DeploymentPolicy(candidate_share=1.0, shadow_share=0.0, isolation=isolation)
    deployment = deploy(signed, data, policy=policy, load_options={"threads": 1, "trusted_keys": [public]})
    assert "sign" in str(deployment.candidate_error)
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
    with pytest.raises(ArtifactError, match="sign"):
        deployment.start_candidate(signatures.sign(data, signatures.generate_key()[0]))
    deployment.start_candidate(signed)
    assert deployment.run_detailed({"x": X}).link == "candidate"


def test_other_dtypes_and_extents_are_refused() -> None:
    from aot.runtime import TensorSpec
    from aot.runtime.serving.checks import check_interface

    class Described:
        state = ()

        def __init__(self, *shape: int | str, dtype: str = "f32") -> None:
            self.inputs = (TensorSpec("x", dtype, shape),)
            self.outputs = (TensorSpec("y", "f32", ("batch",)),)

    stable = Described("batch", 5)
    check_interface("it", Described("batch", 5), stable)
    with pytest.raises(ArtifactError, match=r"input 'x' is not as stable has it: expected f32\[batch, 5\], found f16"):
        check_interface("it", Described("batch", 5, dtype="f16"), stable)
    for shape in (("batch", 6), (3, 5), ("batch",), ("batch", "n")):
        with pytest.raises(ArtifactError):
            check_interface("it", Described(*shape), stable)
    renamed = Described("n", 5)
    with pytest.raises(ArtifactError):  # the output's extent is no longer the input's
        check_interface("it", renamed, stable)
    renamed.outputs = (TensorSpec("y", "f32", ("n",)),)
    check_interface("it", renamed, stable)


def test_a_loaded_candidate_cannot_be_isolated(deploy: Deployments) -> None:
    model = runtime.load(WORSE)
    deployment = deploy(models.dense(), model, policy=ALL)
    assert "worker process" in str(deployment.candidate_error)
    deployment = deploy(models.dense(), model, policy=DeploymentPolicy(candidate_share=1.0, isolation="none"))
    assert deployment.run_detailed({"x": X}).link == "candidate"
    deployment.close()
    model.run({"x": X})


def test_events_that_raise(deploy: Deployments) -> None:
    def broken(event: Any) -> None:
        raise ValueError(event.kind)

    deployment = deploy(models.dense(), WORSE, policy=ALL, on_event=broken)
    deployment.roll_back()
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)
    assert deployment.statistics()["event_errors"] == 2


def test_a_dropped_deployment_ends_everything() -> None:
    deployment = Deployment(models.dense(), WORSE, policy=ALL)
    process_id = deployment.statistics()["candidate"]["process_id"]
    gone = weakref.ref(deployment)
    del deployment
    gc.collect()
    until(lambda: gone() is None and not is_alive(process_id))
    until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("aot-serving")])


@pytest.mark.parametrize(
    "wrong",
    [
        {"isolation": "thread"}, {"candidate_share": 1.5}, {"shadow_share": -1}, {"not_finite": "maybe"},
        {"stable_deadline_share": 0}, {"shadow_requests": -1}, {"decide_seconds": 0},
    ],
)  # fmt: skip
def test_wrong_policies(wrong: dict[str, Any]) -> None:
    with pytest.raises(RunError):
        DeploymentPolicy(**wrong)


def test_imports_nothing_else() -> None:
    """numpy and the standard library only."""
    code = "import sys; import aot.runtime.serving; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    for name in ("onnx", "onnxruntime", "torch", "click", "aot.driver", "aot.artifacts", "aot.frontend", "aot.ir"):
        assert name not in loaded


def test_slower_programs_are_told(deploy: Deployments) -> None:
    assert slower_because("cpu:x86-64", {"targets": ["cpu:x86-64"]}) == slower_because("cpu:x86-64", {}) == ""
    assert slower_because("cuda:sm_80", {"targets": ["cuda:sm_90a", "cuda:sm_80"]}) == ""
    why = slower_because("cpu:x86-64", {"targets": ["cuda:sm_10", "cpu:x86-64", 7]})
    assert why.startswith("cuda:sm_10: ") and "cpu" not in why
    program = handmade.program()
    both = Artifact.build((program,), meta={"targets": ["cuda:sm_10", program.target]}).data
    deploy(both, both)
    told = [(event.link, event.message) for event in deploy.events if event.kind == "runs_slower"]  # type: ignore[attr-defined]
    assert [link for link, _ in told] == ["stable", "candidate"] and all("sm_10" in text for _, text in told)


# What goes on at the same time, and what goes wrong in the background


def test_a_failing_run_keeps_its_fallbacks_while_it_closes(deploy: Deployments) -> None:
    deployment = deploy(models.dense(), fallback=["cpu:x86-64"], policy=DeploymentPolicy(breaker=NEVER_OPENS))
    failing = break_stable(deployment)
    run = failing.run

    def run_then_close(inputs: Any, **options: Any) -> Any:
        try:
            return run(inputs, **options)
        finally:
            deployment.close()

    failing.run = run_then_close  # type: ignore[method-assign]
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)


def test_the_breaker_of_a_lone_stable_closes_again(deploy: Deployments) -> None:
    breaker = BreakerPolicy(failures=2, open_seconds=0.01, trials=2)
    deployment = deploy(models.dense(), policy=DeploymentPolicy(breaker=breaker))
    link = deployment._stable.links[0]
    model = link.runs
    break_stable(deployment)
    for _ in range(2):
        with pytest.raises(RunError):
            deployment.run({"x": X})
    link.runs = deployment._stable.model = model  # type: ignore[assignment]
    assert deployment.statistics()["links"]["stable"]["breaker"] != "closed"
    time.sleep(0.02)
    for _ in range(3):
        deployment.run({"x": X})
    assert deployment.statistics()["links"]["stable"]["breaker"] == "closed"


def test_promote_refuses_another_file_of_a_candidate_in_this_process(deploy: Deployments, tmp_path: Path) -> None:
    path = tmp_path / "net.aot"
    path.write_bytes(WORSE)
    policy = DeploymentPolicy(isolation="none", shadow_share=0.0)
    deployment = deploy(models.dense(), path, policy=policy)
    os.replace(_written(tmp_path / "other.aot", models.dense(every_value="v + 200")), path)
    with pytest.raises(RunError, match="was replaced"):
        deployment.promote()
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)


def test_promote_refuses_a_file_that_is_replaced_while_it_loads(
    deploy: Deployments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _written(tmp_path / "net.aot", WORSE)
    deployment = deploy(models.dense(), path, policy=DeploymentPolicy(shadow_share=0.0))
    make = deployment._make_version

    def replace_and_make(*arguments: Any) -> Any:
        os.replace(_written(tmp_path / "other.aot", models.dense(every_value="v + 200")), path)
        return make(*arguments)

    monkeypatch.setattr(deployment, "_make_version", replace_and_make)
    with pytest.raises(RunError, match="was replaced"):
        deployment.promote()
    np.testing.assert_array_equal(deployment.run({"x": X})["y"], Y)


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_an_event_may_roll_back_while_another_thread_does(deploy: Deployments) -> None:
    deployment = deploy(models.dense(), models.dense(), policy=DeploymentPolicy(isolation="none"))
    rollout = deployment._rollout
    assert rollout is not None
    is_tending = threading.Event()

    def tend() -> None:
        is_tending.set()
        until(lambda: not rollout.candidate.is_current)
        deployment.roll_back("as an event of the worker process would have it")

    rollout.candidate.runner.tend = tend  # type: ignore[method-assign]
    assert is_tending.wait(30)
    other = threading.Thread(target=deployment.roll_back, daemon=True)
    other.start()
    other.join(20)
    assert not other.is_alive()


def test_upkeep_that_raises_does_not_end(deploy: Deployments) -> None:
    deployment = deploy(models.dense(), models.dense(), policy=DeploymentPolicy(isolation="none"))
    rollout = deployment._rollout
    assert rollout is not None
    calls = []

    def tend() -> None:
        calls.append(1)
        raise OSError("too many open files")

    rollout.candidate.runner.tend = tend  # type: ignore[method-assign]
    until(lambda: len(calls) > 3)
    assert deploy.kinds().count("upkeep_failed") == 1 and deployment.statistics()["upkeep_failures"] >= 3


def test_inputs_that_are_no_mapping_are_the_clients_fault(deploy: Deployments) -> None:
    for share in (0.0, 1.0):
        policy = DeploymentPolicy(candidate_share=share, shadow_share=1.0 - share, isolation="none")
        deployment = deploy(models.dense(), models.dense(), policy=policy)
        for wrong in (None, [X]):
            with pytest.raises(GuardError, match="inputs by name"):
                deployment.run(wrong)  # type: ignore[arg-type]


def test_a_key_that_is_no_unicode(deploy: Deployments) -> None:
    deployment = deploy(models.dense(), models.dense(), policy=DeploymentPolicy(candidate_share=0.5, isolation="none"))
    np.testing.assert_array_equal(deployment.run({"x": X}, key="caf\udce9")["y"], Y)


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_a_forked_child_serves_without_the_candidate(deploy: Deployments, isolation: str) -> None:
    policy = DeploymentPolicy(candidate_share=1.0, shadow_share=0.0, isolation=isolation)
    deployment = deploy(models.dense(), WORSE, policy=policy)
    assert deployment.run_detailed({"x": X}).link == "candidate"
    stop = threading.Event()

    def hold() -> None:
        while not stop.is_set():
            with deployment._lock:
                time.sleep(0.001)

    other = threading.Thread(target=hold)  # at the time of the fork it has the lock, which no one in the child gives up
    other.start()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)
            answer = deployment.run_detailed({"x": X})
            deployment.close()
            code = 0 if answer.link == "stable" and np.array_equal(answer.outputs["y"], Y) else 2
        finally:
            os._exit(code)
    stop.set()
    other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert deployment.run_detailed({"x": X}).link == "candidate"
