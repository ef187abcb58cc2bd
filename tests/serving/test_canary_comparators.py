"""Kayenta's and Flagger's rules against values computed by hand, and their tuning against its promise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from aot.cli.canary_binomial import at_most, clopper_pearson
from aot.cli.canary_comparators import Flagger, Kayenta, Series, mann_whitney, normal_quantile, runs_of, series
from aot.cli.canary_traffic import Block, Fault, Rollout, Traffic


def test_u_of_the_tortoises_and_hares() -> None:
    """T H H H H H T T T T T H: the textbook race of six each, in which the hares' U is 11 and the tortoises' 25."""
    order = "THHHHHTTTTTH"
    places = {kind: np.array([n for n, each in enumerate(order) if each == kind], float) for kind in "TH"}
    found = mann_whitney(places["T"], places["H"])
    assert found.u == 11
    assert mann_whitney(places["H"], places["T"]).u == 25
    # Mean 18, variance 6 * 6 * 13 / 12 = 39, continuity 1/2.
    assert found.z == pytest.approx(-(7 - 0.5) / math.sqrt(39))


def test_ties_count_half_and_shrink_the_spread() -> None:
    first, second = np.array([1.0, 2.0, 2.0]), np.array([2.0, 3.0])
    found = mann_whitney(first, second)
    # 2 > 1, 2 = 2 twice, 3 > all: 1 + 1 + 3.
    assert found.u == 5
    assert found.effect == pytest.approx(5 / 6)
    # Variance 3 * 2 / 12 * (6 - (27 - 3) / (5 * 4)) = 2.4; 5 - 3 - 1/2 = 1.5.
    assert found.z == pytest.approx(1.5 / math.sqrt(2.4))
    assert found.shift == 1  # differences 1 0 0 2 1 1: their median


def test_all_equal_says_nothing() -> None:
    found = mann_whitney(np.ones(5), np.ones(7))
    assert (found.z, found.shift, found.effect) == (0, 0, 0.5)


def test_u_counts_all_pairs() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.integers(0, 6, 9).astype(float), generator.integers(0, 6, 7).astype(float)
    pairs = [(b > a) + (b == a) / 2 for a, b in itertools.product(first, second)]
    assert mann_whitney(first, second).u == sum(pairs)
    assert mann_whitney(first, second).u + mann_whitney(second, first).u == 63


def test_agrees_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(1)
    first, second = generator.normal(size=40).round(1), generator.normal(0.3, size=30).round(1)
    known = stats.mannwhitneyu(second, first, method="asymptotic", use_continuity=True)
    found = mann_whitney(first, second)
    assert found.u == known.statistic
    assert 2 * stats.norm.sf(abs(found.z)) == pytest.approx(known.pvalue)


def test_a_metric_is_high_where_the_interval_lies_above_the_tolerance() -> None:
    """The lower end of the interval, found by moving the candidate until the test stops speaking."""
    generator = np.random.default_rng(2)
    stable, candidate = generator.normal(10, 1, 40), generator.normal(11, 1, 40)
    rule = Kayenta()
    quantile = normal_quantile(0.5 + rule.confidence / 2)
    low, high = -5.0, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mann_whitney(stable, candidate, middle).z > quantile else (low, middle)
    shift = mann_whitney(stable, candidate).shift
    assert (low > rule.tolerance * abs(shift)) == (rule.strength(stable, candidate) > quantile)
    assert (
        rule.strength(stable, candidate) == -rule.strength(candidate, stable)
        or rule.strength(candidate, stable) == -math.inf
    )


def test_a_better_candidate_and_equal_data_pass() -> None:
    rule = Kayenta()
    points = np.arange(20.0) + 1
    assert rule.strength(points, points[::-1]) == -math.inf
    assert rule.strength(points, points - 0.5) == -math.inf
    assert rule.strength(points, np.full(20, np.nan)) == -math.inf


def made(rates: list[float], highs: list[float]) -> Series:
    names = ("failure rate", "mean latency", "99th percentile of latency")
    stable = dict.fromkeys(names, np.zeros(len(rates)))
    return Series(stable, dict(zip(names, map(np.array, (rates, highs, highs)), strict=True)),
                  np.arange(1.0, len(rates) + 1))  # fmt: skip


def test_flagger_counts_failed_checks_of_either_metric() -> None:
    rule = Flagger(least_success=0.99, most_seconds=0.5, threshold=3)
    assert rule.decided(made([0, 0.02, 0, 0, 0.02, 0, 0], [0.1, 0.1, 0.6, 0.1, 0.1, 0.1, 0.1])) == 5
    assert rule.decided(made([0, 0.02, 0.02, 0, 0], [0.1] * 5)) is None
    assert rule.decided(made([0.01] * 9, [0.5] * 9)) is None  # on the thresholds is inside


def test_without_values_flagger_fails_checks_and_kayenta_the_score() -> None:
    empty = made([math.nan] * 10, [math.nan] * 10)
    assert Flagger().decided(empty) == 5
    assert Kayenta().decided(Kayenta().strengths(empty)) == 5


def test_the_series_are_what_a_metrics_server_shows() -> None:
    seconds = np.array([0.1, 0.2, 0.3, 0.4])
    zero = np.zeros(4, np.int64)
    block = Block(np.array([0.0, 59.0, 61.0, 62.0]), zero, zero, np.array([0, 0, 0, 2]), seconds,
                  np.array([0.2, 0.4, 0.6, math.nan]))  # fmt: skip
    found = series(*runs_of([(block, None)]), block.times, 0.0, 3)
    assert found.pairs.tolist() == [2, 4, 4]
    assert found.candidate["failure rate"][:2].tolist() == [0, 0.5]
    assert found.candidate["mean latency"][:2] == pytest.approx([0.3, 0.6])
    assert found.stable["99th percentile of latency"][:2] == pytest.approx([0.2, 0.4])
    assert np.isnan([points[2] for points in found.candidate.values()]).all()


def test_live_requests_belong_to_the_version_that_ran() -> None:
    rollout = Rollout(Traffic(), Fault("crash", 0.5), 4)
    both, mine = rollout.live(rollout.block(500), 0.3)
    stable, candidate = runs_of([(both, mine)])
    assert len(stable.times) == (~mine).sum() and len(candidate.times) == mine.sum()
    assert candidate.failed.mean() == pytest.approx(0.5, abs=0.06) and stable.failed.mean() < 0.01


def test_tuning_spends_the_false_alarms_and_no_more() -> None:
    traffic = Traffic()
    blocks = [Rollout(traffic, Fault(), (9, n)).block(2600) for n in range(100)]
    found = [series(*runs_of([(block, None)]), block.times, 0.0, 20) for block in blocks]
    kayenta, flagger = Kayenta(look_every=5), Flagger(threshold=3)
    strengths = [kayenta.strengths(each) for each in found]
    strict = kayenta.tuned(strengths, 0.05)
    assert 1 <= sum(strict.decided(each) is not None for each in strengths) <= 5
    tight = flagger.tuned(found, 0.05)
    assert 1 <= sum(tight.decided(each) is not None for each in found) <= 5


def test_exact_binomial_intervals() -> None:
    """Against tables of Clopper and Pearson."""
    assert clopper_pearson(0, 10) == pytest.approx((0, 0.30850), abs=1e-5)
    assert clopper_pearson(2, 10) == pytest.approx((0.02521, 0.55610), abs=1e-5)
    assert clopper_pearson(10, 10) == pytest.approx((0.69150, 1), abs=1e-5)
    low, high = clopper_pearson(20, 2000)
    assert at_most(20, 2000, high) == pytest.approx(0.025) == 1 - at_most(19, 2000, low)
    with pytest.raises(ValueError, match="no count"):
        clopper_pearson(3, 2)
