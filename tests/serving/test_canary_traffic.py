"""The simulator: what it draws has the properties that it states, and follows from the seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aot.cli.canary_traffic import FAULTS, Block, ErrorModel, Fault, Rollout, Traffic
from aot.errors import OptionError
from aot.runtime.serving.records import Record, from_json, to_json

TRAFFIC = Traffic()
MANY = 20_000


def block_of(fault: Fault, traffic: Traffic = TRAFFIC, count: int = MANY, seed: int = 5) -> Block:
    return Rollout(traffic, fault, seed).block(count)


def ratio(block: Block) -> np.ndarray:
    """Candidate over stable, of pairs that both ended well."""
    found = block.candidate_seconds / block.stable_seconds
    return found[np.isfinite(found)]


def test_the_same_seed_gives_the_same_traffic() -> None:
    first, second = (Rollout(TRAFFIC, Fault("crash", 0.1), (3, 4)) for _ in range(2))
    a, b = first.block(300), second.block(300)
    assert first.expected == second.expected
    assert list(a.pairs(TRAFFIC)) == list(b.pairs(TRAFFIC))
    assert list(first.requests(a, 0.3)) == list(second.requests(b, 0.3))
    assert list(Rollout(TRAFFIC, Fault(), (3, 5)).block(300).pairs(TRAFFIC)) != list(a.pairs(TRAFFIC))


def test_blocks_follow_each_other_in_time_at_the_stated_rate() -> None:
    rollout = Rollout(TRAFFIC, Fault(), 1, start=1000.0)
    times = np.concatenate([rollout.block(5000).times for _ in range(2)])
    assert np.all(np.diff(times) > 0)
    assert times[0] > 1000
    assert (times[-1] - 1000) / 10_000 == pytest.approx(1 / TRAFFIC.pairs_per_second, rel=0.05)


def test_versions_without_fault_are_alike() -> None:
    block = block_of(Fault())
    assert np.median(ratio(block)) == pytest.approx(1, abs=0.005)
    assert block.stable_failed.mean() == pytest.approx(TRAFFIC.failures, abs=6e-4)
    assert block.candidate_failed.mean() == pytest.approx(TRAFFIC.failures, abs=6e-4)


def test_load_and_input_are_common_to_both_versions() -> None:
    block = block_of(Fault(), replace(TRAFFIC, buckets=TRAFFIC.buckets[:1], stalls=0.0, failures=0.0))
    logs = np.log(np.stack([block.stable_seconds, block.candidate_seconds]))
    wanted = TRAFFIC.load_spread**2 + TRAFFIC.input_spread**2
    assert np.cov(logs)[0, 1] == pytest.approx(wanted, rel=0.1)
    assert np.std(logs[0] - logs[1]) == pytest.approx(TRAFFIC.own_spread * np.sqrt(2), rel=0.05)


def test_buckets_have_their_shares_and_medians() -> None:
    block = block_of(Fault())
    for number, bucket in enumerate(TRAFFIC.buckets):
        mine = block.buckets == number
        assert mine.mean() == pytest.approx(bucket.weight, abs=0.02)
        assert np.nanmedian(block.stable_seconds[mine]) == pytest.approx(bucket.median_seconds, rel=0.1)


def test_stalls_are_heavy_tailed() -> None:
    calm = block_of(Fault(), replace(TRAFFIC, stalls=0.0))
    stalling = block_of(Fault(), replace(TRAFFIC, stalls=0.05))
    assert ratio(stalling).max() > 2 * ratio(calm).max()
    assert np.median(ratio(stalling)) == pytest.approx(np.median(ratio(calm)), abs=0.01)


def test_the_recorded_errors_are_a_finite_sample_of_the_same_distribution() -> None:
    model = ErrorModel("y", "max_abs", 1e-3, 0.5)
    traffic = replace(TRAFFIC, errors=(model,), recorded=500)
    above = []
    for seed in range(200):
        recorded = Rollout(traffic, Fault(), seed).expected["y"]["max_abs"]
        assert recorded.samples == 500
        values = model.draw(np.random.default_rng((seed, 1)), 2000)
        above.append((values > recorded.quantile(0.99)).mean())
    assert np.mean(above) == pytest.approx(0.01, abs=0.002)
    assert np.std(above) > 0.002  # no two builds record the same


def test_flips_are_zero_or_one() -> None:
    block = block_of(Fault())
    values = block.values["logits", "top1"]
    assert set(np.unique(values)) == {0.0, 1.0}
    assert values.mean() == pytest.approx(0.004, abs=0.002)


def test_a_numeric_fault_touches_its_share_by_its_factor() -> None:
    clean, touched = block_of(Fault()), block_of(Fault("numeric", 4.0, 0.02))
    key = ("logits", "max_abs")
    factors = touched.values[key] / clean.values[key]  # the same draws before the fault
    assert np.isclose(factors, 4.0).mean() == pytest.approx(0.02, abs=0.004)
    assert np.all(np.isclose(factors, 4.0) | np.isclose(factors, 1.0))


def test_an_outlier_fault_is_that_many_times_the_recorded_error() -> None:
    rollout = Rollout(TRAFFIC, Fault("outlier", 3.0, 0.02), 5)
    values = rollout.block(MANY).values["logits", "max_abs"]
    wanted = 3 * rollout.expected["logits"]["max_abs"].quantile(0.99)
    assert np.isclose(values, wanted).mean() == pytest.approx(0.02, abs=0.004)


def test_latency_faults() -> None:
    assert np.median(ratio(block_of(Fault("latency", 1.5)))) == pytest.approx(1.5, rel=0.01)
    block = block_of(Fault("latency", 2.0, bucket="batch=8"))
    found = block.candidate_seconds / block.stable_seconds
    for number, wanted in enumerate((1.0, 2.0, 1.0)):
        assert np.nanmedian(found[block.buckets == number]) == pytest.approx(wanted, rel=0.02)


def test_leaks_grow_with_time() -> None:
    block = block_of(Fault("leak-latency", 2.0), count=7200)  # an hour
    found = block.candidate_seconds / block.stable_seconds
    assert np.nanmedian(found[:500]) == pytest.approx(1.03, abs=0.03)
    assert np.nanmedian(found[-500:]) == pytest.approx(1.97, abs=0.06)
    failing = block_of(Fault("leak-errors", 0.5), count=7200).candidate_failed
    assert failing[:700].mean() < 0.06 < 0.4 < failing[-700:].mean()


@pytest.mark.parametrize("kind", ["crash", "guard"])
def test_failures_of_the_candidate_alone(kind: str) -> None:
    block = block_of(Fault(kind, 0.1))
    assert block.candidate_failed.mean() == pytest.approx(0.1, abs=0.01)
    assert block.stable_failed.mean() < 0.002
    outcomes = {pair.candidate for pair in block.pairs(TRAFFIC)}
    assert kind in outcomes


def test_a_bad_client_fails_on_both_versions() -> None:
    block = block_of(Fault("bad-client", 0.2))
    assert block.stable_failed.mean() == pytest.approx(0.2, abs=0.01)
    assert (block.stable_failed != block.candidate_failed).mean() < 0.003


def test_no_traffic_is_nothing() -> None:
    rollout = Rollout(TRAFFIC, Fault("no-traffic"), 1)
    block = rollout.block(100)
    assert len(block) == 0
    assert not list(block.pairs(TRAFFIC)) and not list(rollout.requests(block, 1.0))


def test_records_are_whole() -> None:
    """What failed has neither a time nor values, and every record survives its JSON."""
    rollout = Rollout(TRAFFIC, Fault("crash", 0.3), 2)
    block = rollout.block(200)
    pairs = list(block.pairs(TRAFFIC))
    records: list[Record] = list(pairs)
    requests = list(rollout.requests(block, 0.25))
    assert [pair.time for pair in pairs] == sorted(pair.time for pair in pairs)
    for pair in pairs:
        assert (pair.candidate_seconds is None) == (pair.candidate != "ok")
        assert bool(pair.values) == (pair.stable == pair.candidate == "ok")
    share = sum(request.version == "candidate" for request in requests) / len(requests)
    assert share == pytest.approx(0.25, abs=0.05)
    assert block.times[0] <= requests[0].time <= requests[-1].time <= block.times[-1]
    for record in records + list(requests):
        assert from_json(to_json(record)) == record


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (lambda: Fault("gremlins"), "no fault is called"),
        (lambda: Fault("latency"), "a factor above 0"),
        (lambda: Fault("crash", 1.5), "a fraction above 0"),
        (lambda: Fault("numeric", 3.0, 0.0), "share of inputs"),
        (lambda: Rollout(TRAFFIC, Fault("latency", 2.0, bucket="batch=7"), 0), "no bucket is called"),
    ],
)
def test_faults_that_make_no_sense_are_refused(fault: object, word: str) -> None:
    assert callable(fault)
    with pytest.raises(OptionError, match=word):
        fault()


def test_every_fault_says_what_its_size_means() -> None:
    assert all(FAULTS.values())
    assert str(Fault("outlier", 3.0, 0.02)) == "outlier 3 on 0.02 of inputs"
