"""The judge: verdicts on good and faulty candidates, and on records that are missing, odd or wrong."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from aot.errors import RunError
from aot.runtime.serving import CanaryPolicy, ErrorDistribution, Judge, Pair, Request, Verdict
from tests.serving.statistics import agrees
from tests.serving.traffic import Rollout, expected, pair


def judged(records: Any, policy: CanaryPolicy | None = None, errors: Any = None) -> Judge:
    judge = Judge(policy, expected() if errors is None else errors)
    judge.add_many(records)
    return judge


def states(verdict: Verdict) -> dict[str, str]:
    return {row.name: row.state for row in verdict.evidence}


# Faults and none.


def test_a_good_candidate_is_promoted() -> None:
    for seed in range(3):
        decision, pairs = Rollout(seed).run(6000)
        assert decision == "promote" and pairs >= 300


@pytest.mark.parametrize(
    ("fault", "within"),
    [({"large": 0.02}, 600), ({"latency": 1.1}, 400), ({"latency": 1.25}, 80), ({"failures": 0.02}, 1500)],
    ids=["numeric", "latency 10 %", "latency 25 %", "failures 2 %"],
)
def test_a_fault_is_found(fault: dict[str, float], within: int) -> None:
    for seed in range(5):
        decision, pairs = Rollout(seed, **fault).run(within)  # type: ignore[arg-type]
        assert decision == "roll back", (seed, pairs)


def test_a_fault_that_begins_late_is_found() -> None:
    judge = Judge(None, (rollout := Rollout(1, latency=1.25, after=1500)).expected)
    for record in rollout.records(1700):
        judge.add(record)
        if judge.has_alarm:
            break
    assert judge.has_alarm and judge.pairs > 1500


@pytest.mark.slow
@pytest.mark.parametrize("fault", [{}, {"large": 0.02}, {"latency": 1.1}, {"failures": 0.005}], ids=str)
def test_rollouts_keep_the_stated_budgets(fault: dict[str, float]) -> None:
    """False rollbacks and promoted faults within 1 % and its exact binomial interval; docs/canary.md has 2,000 each."""
    runs = [Rollout(seed, **fault).run(2500) for seed in range(400)]  # type: ignore[arg-type]
    wrong = "promote" if fault else "roll back"
    assert agrees(sum(decision == wrong for decision, _ in runs), len(runs), 0.01)
    if "large" in fault:
        late = sum(decision != "roll back" or pairs > 600 for decision, pairs in runs)
        assert agrees(late, len(runs), 0.05)


# Missing data is never success.


def test_no_traffic_holds() -> None:
    verdict = Judge(None, expected()).verdict()
    assert verdict.decision == "hold" and "no traffic" in verdict.reasons[0]


def test_only_stable_traffic_holds() -> None:
    verdict = judged(Request(0.0, "", "stable", "ok", 0.01) for _ in range(3000)).verdict()
    assert verdict.decision == "hold" and states(verdict)["failures any"] == "no data"


def test_live_requests_alone_never_clear_errors() -> None:
    versions = ("stable", "candidate")
    judge = judged(Request(0.0, "", versions[index % 2], "ok", 0.01) for index in range(12000))
    assert judge.decision() == "hold"
    assert states(judge.verdict())["numeric y/max_abs"] == "no data"
    policy = CanaryPolicy(require=("latency", "failures"))
    judge = judged((Request(0.0, "", versions[index % 2], "ok", 0.01) for index in range(12000)), policy)
    assert judge.decision() == "promote"


def test_outputs_without_recorded_errors_hold_and_say_so() -> None:
    records = [pair() for _ in range(3000)]
    verdict = judged(records, errors={}).verdict()
    assert verdict.decision == "hold" and "the build recorded no errors" in " ".join(verdict.reasons)
    other = [pair(values={"y": {"max_abs": 0.5}, "z": {"max_abs": 0.0}}) for _ in range(3000)]
    verdict = judged(other).verdict()
    assert verdict.decision == "hold" and verdict.reasons == (
        "numeric z: the build recorded no errors of it and the policy has no bound for it: build it with --self-test "
        "and name the artifact as what is expected, or give a bound",
    )
    assert judged(other, CanaryPolicy(bounds={"z": {"max_abs": 0.1}})).decision() == "promote"
    assert judged(records, CanaryPolicy(bounds={"y": {"max_abs": 0.6}}), {}).decision() == "promote"


def test_a_bound_of_the_user_is_judged() -> None:
    judge = judged((pair() for _ in range(200)), CanaryPolicy(bounds={"y": {"max_abs": 0.1}}), {})
    assert judge.decision() == "roll back"


@pytest.mark.parametrize("values", [{}, {"y": {}}, {"y": {"cosine": 0.1}}])
def test_pairs_without_the_judged_value_hold(values: dict[str, dict[str, float]]) -> None:
    good, bad = pair(), pair(values=values)
    verdict = judged([bad if index % 5 == 0 else good for index in range(4000)]).verdict()
    assert verdict.decision == "hold" and "lack the value" in verdict.reasons[0]


@pytest.mark.parametrize("seconds", [None, 0.0, -1.0, math.nan, math.inf])
def test_times_that_are_none_hold(seconds: float | None) -> None:
    verdict = judged(pair(candidate_seconds=seconds) for _ in range(3000)).verdict()
    assert verdict.decision == "hold"
    assert "latency" in verdict.reasons[0]
    verdict = judged(pair(candidate_seconds=seconds if index % 4 == 0 else 0.01) for index in range(3000)).verdict()
    assert verdict.decision == "hold" and "without usable times" in verdict.reasons[0]


# Odd data.


def test_constant_series_are_judged() -> None:
    judge = judged(pair() for _ in range(2000))
    assert judge.decision() == "promote"
    latency = next(row for row in judge.verdict().evidence if row.kind == "latency")
    assert latency.estimate == 1.0 and latency.interval is not None and latency.interval[1] <= 1.01


def test_errors_of_zero_where_zero_was_recorded() -> None:
    errors = {"y": {"max_abs": ErrorDistribution(500, ((0.5, 0.0), (1.0, 0.0)))}}
    zero, some = pair(values={"y": {"max_abs": 0.0}}), pair(values={"y": {"max_abs": 1e-9}})
    assert judged([zero] * 2000, errors=errors).decision() == "promote"
    assert judged([zero] * 200 + [some] * 30, errors=errors).decision() == "roll back"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_metric_values_that_are_not_finite_are_faults(value: float) -> None:
    good, bad = pair(), pair(values={"y": {"max_abs": value}})
    verdict = judged([bad if index % 10 == 0 else good for index in range(300)]).verdict()
    assert verdict.decision == "roll back" and "NaN or infinite" in verdict.reasons[0]
    json.dumps(verdict.to_json(), allow_nan=False)


def test_clock_steps_change_nothing() -> None:
    def verdict(times: Any) -> Verdict:
        records = [
            Pair(float(time), "", "ok", "ok", 0.01, 0.01, {"y": {"max_abs": 0.5}})
            for time, _ in zip(times, range(500), strict=False)
        ]
        return judged(records).verdict()

    forward = verdict(range(500))
    assert verdict(range(500, 0, -1)) == forward
    assert verdict([1e12, -5.0, math.nan] * 200) == forward


def test_flips_are_judged_by_their_recorded_rate() -> None:
    errors = {"y": {"top1": ErrorDistribution(2000, ((0.5, 0.0), (0.98, 0.0), (0.99, 1.0), (1.0, 1.0)))}}
    source = np.random.default_rng(1)

    def flips(rate: float, count: int) -> list[Pair]:
        return [pair(values={"y": {"top1": float(source.random() < rate)}}) for _ in range(count)]

    assert judged(flips(0.015, 3000), errors=errors).decision() == "promote"
    assert judged(flips(0.1, 1000), errors=errors).decision() == "roll back"


# Latency.


def test_cold_runs_are_not_judged() -> None:
    cold = [pair(candidate_seconds=1.0, is_cold=True) for _ in range(300)]
    first = [pair(bucket=f"b{index}", candidate_seconds=1.0) for index in range(50)]
    judge = judged(cold + first, CanaryPolicy(most_buckets=64))
    assert judge.decision() == "hold"
    assert states(judge.verdict())["latency"] == "no data"


def test_a_slow_bucket_is_found_in_a_fast_mean() -> None:
    source = np.random.default_rng(4)
    judge = Judge(None, expected())
    for _ in range(2000):
        slow = source.random() < 0.03
        ratio = np.exp(0.05 * source.standard_normal()) * (1.5 if slow else 0.95)
        judge.add(pair(bucket="rare" if slow else "usual", candidate_seconds=float(0.01 * ratio)))
        if judge.has_alarm:
            break
    verdict = judge.verdict()
    assert verdict.decision == "roll back" and verdict.reasons[0].startswith("latency rare")


def test_rare_buckets_do_not_block_promotion() -> None:
    records = [pair(bucket=f"rare {index % 3}" if index % 100 == 0 else "usual") for index in range(3000)]
    judge = judged(records)
    assert judge.decision() == "promote"
    rows = {row.name: row for row in judge.verdict().evidence}
    assert not rows["latency rare 1"].required and rows["latency other"].count >= 20


def test_many_small_buckets_must_be_cleared_together() -> None:
    source = np.random.default_rng(6)

    def records(ratio: float, count: int) -> list[Pair]:
        noise = np.exp(0.4 * source.standard_normal(count))
        return [
            pair(bucket=f"size {index % 40}" if index % 4 == 0 else "usual",
                 candidate_seconds=float(0.01 * (ratio * noise[index] if index % 4 == 0 else 1.0)))
            for index in range(count)
        ]  # fmt: skip

    policy = CanaryPolicy(most_buckets=4)
    judge = judged(records(1.06, 1200), policy)
    row = next(row for row in judge.verdict().evidence if row.name == "latency other")
    assert row.required and row.state == "open" and judge.decision() == "hold"
    assert judged(records(0.9, 2000), policy).decision() == "promote"


def test_memory_does_not_grow_with_the_names_of_buckets() -> None:
    judge = judged(pair(bucket=str(index)) for index in range(3000))
    judge.add_many(Request(0.0, str(index), "stable", "ok", 0.1) for index in range(3000))
    assert len(json.dumps(judge.state())) < 200_000


# Failures.


@pytest.mark.parametrize("outcome", ["guard", "timeout", "crash"])
def test_what_both_have_alike_is_not_the_candidates_fault(outcome: str) -> None:
    bad, good = pair(stable=outcome, candidate=outcome), pair()
    judge = judged([bad if index % 3 == 0 else good for index in range(4000)])
    assert judge.decision() == "promote"


def test_a_candidate_that_crashes_where_the_stable_version_refuses_is_at_fault() -> None:
    judge = judged(pair(stable="guard", candidate="crash") for _ in range(40))
    assert judge.decision() == "roll back"


@pytest.mark.parametrize("outcome", ["guard", "device", "crash", "timeout", "not_finite", "fallback", "refused"])
def test_every_outcome_counts(outcome: str) -> None:
    bad, good = pair(candidate=outcome), pair()
    judge = judged([bad if index % 10 == 0 else good for index in range(400)])
    verdict = judge.verdict()
    assert verdict.decision == "roll back" and f"candidate {outcome}" in verdict.reasons[0]


def test_failures_of_live_requests_count_without_pairs() -> None:
    def requests(rate: float, count: int) -> list[Request]:
        source = np.random.default_rng(2)
        return [
            Request(0.0, "", "candidate", "crash" if source.random() < rate else "ok", 0.01)
            if index % 20 == 0
            else Request(0.0, "", "stable", "ok", 0.01)
            for index in range(count)
        ]

    assert judged(requests(0.05, 6000)).decision() == "roll back"
    assert judged(requests(0.0, 6000)).decision() == "hold"


def test_a_bad_client_of_the_candidate_counts_once() -> None:
    records = [
        Request(0.0, "", "candidate", "guard", None, key="bad client")
        if index % 10 == 0
        else Request(0.0, "", "stable", "ok", 0.01, key=str(index))
        for index in range(3000)
    ]
    assert judged(records).decision() == "hold"


def test_a_candidate_that_fails_less_is_no_fault() -> None:
    judge = judged(pair(stable="timeout") if index % 50 == 0 else pair() for index in range(3000))
    assert judge.decision() == "promote"


@pytest.mark.parametrize("record", [pair(candidate="lost"), Request(0.0, "", "third", "ok", 0.1)], ids=["pair", "live"])
def test_unknown_words_are_refused_and_count_nothing(record: Any) -> None:
    judge = Judge(None, expected())
    before = judge.state()
    with pytest.raises(RunError, match="not known"):
        judge.add(record)
    assert judge.state() == before


# The verdict.


def test_an_alarm_stays() -> None:
    judge = judged([pair(candidate="crash")] * 60)
    assert judge.decision() == "roll back"
    judge.add_many([pair()] * 3000)
    assert judge.decision() == "roll back" and "found after" in judge.verdict().reasons[-1]


def test_cleared_streams_show_bounds_below_their_limits() -> None:
    verdict = judged(pair() for _ in range(2000)).verdict()
    for row in verdict.evidence:
        if row.state == "cleared":
            assert row.interval is not None and row.interval[1] <= row.limit
    document = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
    assert document["decision"] == "promote"
    assert {"kind", "output", "metric", "bucket", "count", "estimate", "interval", "limit", "state"} <= set(
        document["evidence"][0]
    )


def test_weights_of_all_streams_fit_the_budget() -> None:
    judge = judged(pair(bucket=f"b{index % 30}") for index in range(900))
    judge.add_many(Request(0.0, "", ("stable", "candidate")[index % 2], "ok", 0.1) for index in range(50))
    assert sum(row.share for row in judge.verdict().evidence) <= 1.0 + 1e-9


def test_state_continues_to_the_same_bits() -> None:
    records = list(Rollout(3, latency=1.05).records(300))
    whole, first = Judge(None, expected()), Judge(None, expected())
    whole.add_many(records)
    first.add_many(records[:700])
    again = Judge(None, expected())
    again.restore(json.loads(json.dumps(first.state())))
    again.add_many(records[700:])
    assert again.state() == whole.state() and again.verdict() == whole.verdict()


@pytest.mark.parametrize("error", [-1.0, -1e-300, -math.inf])
def test_errors_below_zero_are_no_evidence(error: float) -> None:
    judge = Judge(CanaryPolicy(), expected())
    for _ in range(3000):
        judge.add(pair(values={"y": {"max_abs": error}}))
    assert judge.decision() == "hold"
