"""Tests that hold at all times: error rates under optional stopping, power, and state."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aot.runtime.serving.exceedance import ExceedanceTest, levels_of, promotion_level, tail_index
from aot.runtime.serving.expected import ErrorDistribution
from aot.runtime.serving.policy import CanaryPolicy
from aot.runtime.serving.sequential import (
    DifferenceTest,
    EProcess,
    MedianSequence,
    RateTest,
    SignTest,
    SymmetryTest,
    TwoSampleTest,
    difference_interval,
    median_below,
    rate_interval,
)
from tests.serving.statistics import agrees

ALPHA = 0.1
RUNS = 300


def distribution(sample: np.ndarray) -> ErrorDistribution:
    points = (0.5, 0.9, 0.99)
    inner = tuple((at, float(np.quantile(sample, at, method="higher"))) for at in points)
    return ErrorDistribution(len(sample), (*inner, (1.0, float(sample.max()))))


def crossings(one_run: Callable[[random.Random], EProcess], runs: int = RUNS) -> int:
    """How many of the runs ever reached 1/ALPHA."""
    return sum(one_run(random.Random(seed)).largest >= 1 / ALPHA for seed in range(runs))


# Error rates, at the edge of each null hypothesis, looking after every record.


def test_sign_test_keeps_its_error_rate() -> None:
    def one_run(source: random.Random) -> EProcess:
        test = SignTest()
        for _ in range(400):
            test.add(source.choice((-1, 1)))
        return test

    assert agrees(crossings(one_run), RUNS, ALPHA)


@pytest.mark.parametrize("law", ["normal", "cauchy", "tied", "bursts", "changing scale"])
def test_symmetry_test_keeps_its_error_rate(law: str) -> None:
    def one_run(source: random.Random) -> EProcess:
        test = SymmetryTest(1.5)
        for index in range(300):
            value = source.gauss(0, 1)
            if law == "cauchy":
                value /= source.gauss(0, 1) or 1.0
            elif law == "tied":
                value = float(round(value))
            elif law == "bursts" and source.random() < 0.02:
                value *= 1000
            elif law == "changing scale":
                value *= 1.0 + 10.0 * (index % 50 > 40)
            test.add(value)
        return test

    assert agrees(crossings(one_run), RUNS, ALPHA)


def test_rate_test_keeps_its_error_rate() -> None:
    crossed = 0
    for seed in range(RUNS):
        source, test = random.Random(seed), RateTest(0.02)
        for _ in range(600):
            test.add(source.random() < 0.02)
            if test.value >= 1 / ALPHA:
                crossed += 1
                break
    assert agrees(crossed, RUNS, ALPHA)


@pytest.mark.parametrize("both", [0.0, 0.1])
def test_difference_test_keeps_its_error_rate(both: float) -> None:
    crossed = 0
    for seed in range(RUNS):
        source, test = random.Random(seed), DifferenceTest(0.01)
        for _ in range(500):
            draw = source.random()
            test.add(1 if draw < 0.01 + both else -1 if draw < 0.01 + 2 * both else 0)
            if test.value >= 1 / ALPHA:
                crossed += 1
                break
    assert agrees(crossed, RUNS, ALPHA)


@pytest.mark.parametrize("rate", [0.3, 0.5])
def test_median_below_keeps_its_error_rate(rate: float) -> None:
    crossed = 0
    for seed in range(RUNS):
        source, below = random.Random(seed), 0
        for count in range(1, 300):
            below += source.random() < rate
            if median_below(below, count) >= 1 / ALPHA:
                crossed += 1
                break
    assert agrees(crossed, RUNS, ALPHA)


@pytest.mark.parametrize("rate", [0.001, 0.05, 0.4])
@pytest.mark.parametrize("others", [1, 10])
def test_two_sample_test_keeps_its_error_rate(rate: float, others: int) -> None:
    def one_run(source: random.Random) -> EProcess:
        test = TwoSampleTest()
        for _ in range(200):
            for _ in range(source.randint(0, 2 * others)):
                test.add_first(source.random() < rate)
            test.add_second(source.random() < rate)
        return test

    assert agrees(crossings(one_run), RUNS, ALPHA)


@pytest.mark.parametrize("law", ["lognormal", "pareto", "tied", "flips"])
@pytest.mark.parametrize("samples", [30, 300])
def test_exceedance_test_counts_the_builds_unlucky_samples(law: str, samples: int) -> None:
    policy = CanaryPolicy()
    source = np.random.default_rng(5)
    draw: dict[str, Callable[[int], np.ndarray]] = {
        "lognormal": lambda count: np.exp(0.5 * source.standard_normal(count)),
        "pareto": lambda count: source.pareto(3, count) + 1,
        "tied": lambda count: np.floor(source.exponential(2.0, count)),
        "flips": lambda count: (source.random(count) < 0.03).astype(float),
    }
    crossed = 0
    for _ in range(RUNS):
        sample = draw[law](samples)
        if law == "flips":
            none = float(np.mean(sample == 0))
            recorded = ErrorDistribution(samples, ((none, 0.0), (1.0, 1.0)) if 0 < none < 1 else ((1.0, sample.max()),))
        else:
            recorded = distribution(sample)
        test = ExceedanceTest(levels_of(recorded, policy))
        for value in draw[law](400):
            test.add(float(value))
        crossed += test.largest >= 1 / ALPHA
    assert agrees(crossed, RUNS, ALPHA)


# Intervals.


def test_rate_intervals_cover_at_all_times() -> None:
    missed = 0
    for seed in range(RUNS):
        source, events = random.Random(seed), 0
        for count in range(1, 121):
            events += source.random() < 0.1
            if count % 3 == 0 or count < 10:
                low, high = rate_interval(events, count, ALPHA)
                if not low <= 0.1 <= high:
                    missed += 1
                    break
    assert agrees(missed, RUNS, ALPHA)


def test_difference_intervals_cover_at_all_times() -> None:
    missed = 0
    for seed in range(120):
        source, plus, minus = random.Random(seed), 0, 0
        for count in range(1, 200):
            draw = source.random()
            plus, minus = plus + (draw < 0.1), minus + (draw > 0.95)
            if count % 8 == 0:
                low, high = difference_interval(plus, minus, count, ALPHA)
                if not low <= 0.05 <= high:
                    missed += 1
                    break
    assert agrees(missed, 120, ALPHA)


def test_median_sequences_cover_at_all_times() -> None:
    missed = 0
    for seed in range(150):
        source, sequence = random.Random(seed), MedianSequence(0.01, 2.0)
        for count in range(1, 200):
            sequence.add(source.gauss(0.1, 0.3))
            if count % 8 == 0:
                low, high = sequence.interval(ALPHA)
                if not low <= 0.1 <= high:
                    missed += 1
                    break
    assert agrees(missed, 150, ALPHA)


def test_intervals_without_data_say_nothing_and_shrink_with_it() -> None:
    assert rate_interval(0, 0, 0.01) == (0.0, 1.0)
    assert difference_interval(0, 0, 0, 0.01) == (-1.0, 1.0)
    empty = MedianSequence(0.01, 1.0)
    assert empty.estimate() is None and empty.interval(0.01) == (-math.inf, math.inf)
    widths = [high - low for low, high in (rate_interval(count // 10, count, 0.01) for count in (10, 100, 1000, 10000))]
    assert widths == sorted(widths, reverse=True) and widths[-1] < 0.04
    assert rate_interval(5, 5, 0.01)[1] == 1.0
    low, high = difference_interval(0, 0, 5000, 0.01)
    assert -0.002 < low < 0 < high < 0.002


def test_medians_beyond_the_cells_are_not_lost() -> None:
    sequence = MedianSequence(0.01, 0.5)
    for _ in range(100):
        sequence.add(40.0)
    low, high = sequence.interval(0.01)
    assert low >= 0.48 and high == math.inf


# Power.


def test_a_fault_after_thousands_of_good_records_is_found_nearly_as_soon() -> None:
    def delay(quiet: int) -> int:
        source, test = random.Random(1), SymmetryTest(1.5)
        for _ in range(quiet):
            test.add(source.gauss(-0.1, 1))
        before = test.count
        while test.value < 1000:
            test.add(source.gauss(1.5, 1))
        return test.count - before

    assert delay(5000) <= delay(0) + 40


def test_many_stable_requests_make_a_failure_weigh_more_than_a_pair_does() -> None:
    test, pairs = TwoSampleTest(), SignTest()
    for _ in range(6):
        for _ in range(2000):
            test.add_first(False)
        test.add_second(True)
        pairs.add(1)
    assert test.value > 1e6 > pairs.value


def test_rate_test_clears_in_the_time_that_no_event_needs() -> None:
    test = RateTest(0.02)
    while test.value < 100:
        test.add(False)
    assert 228 <= test.count <= 285  # 0.98**228 is 1 %


# Levels.


def test_levels_follow_the_samples_count() -> None:
    policy = CanaryPolicy()
    sample = np.exp(0.2 * np.random.default_rng(1).standard_normal(100))
    few, many = distribution(sample[:10]), ErrorDistribution(100_000, distribution(sample).quantiles)
    assert len(levels_of(few, policy)) == 1  # the largest only: ten samples show no tail
    assert levels_of(many, policy)[0].below == policy.trusted_samples
    assert promotion_level(few, policy)[0] > few.largest  # ten samples: good errors exceed the largest too often
    assert promotion_level(many, policy) == (many.largest, 0.02)


def test_a_recorded_error_of_zero_means_equal_bits() -> None:
    recorded = ErrorDistribution(500, ((0.5, 0.0), (1.0, 0.0)))
    level, _ = promotion_level(recorded, CanaryPolicy())
    test = ExceedanceTest(levels_of(recorded, CanaryPolicy()))
    assert level == 0.0
    for _ in range(20):
        test.add(1e-12)
    assert test.value > 1e4


def test_tail_index_bounds_power_laws_and_trusts_few_samples_little() -> None:
    source = np.random.default_rng(3)
    above = sum(tail_index(distribution(source.pareto(3, 400) + 1), 2.0) > 3.0 for _ in range(300))
    assert agrees(above, 300, 0.01)
    assert tail_index(ErrorDistribution(5, ((1.0, 1.0),)), 2.0) == 2.0


def test_not_finite_errors_exceed_all_levels() -> None:
    recorded = distribution(np.linspace(0.1, 1.0, 500))
    test = ExceedanceTest(levels_of(recorded, CanaryPolicy()))
    for _ in range(10):
        test.add(math.inf)
    assert test.value > 1e4 and math.isfinite(test.value)


# State.


def test_wealth_stays_finite_and_state_continues_to_the_same_bits() -> None:
    recorded = distribution(np.linspace(0.1, 1.0, 500))
    policy = CanaryPolicy()
    source = random.Random(7)
    makers: list[tuple[Callable[[], Any], Callable[[Any], object]]] = [
        (SignTest, lambda test: test.add(source.choice((-1, 1, 1, 1)))),
        (lambda: SymmetryTest(1.0), lambda test: test.add(source.gauss(3, 1))),
        (lambda: RateTest(0.02), lambda test: test.add(False)),
        (lambda: DifferenceTest(0.9), lambda test: test.add(0)),
        (lambda: ExceedanceTest(levels_of(recorded, policy)), lambda test: test.add(source.random() * 9)),
        (TwoSampleTest, lambda test: (test.add_first(source.random() < 0.01), test.add_second(source.random() < 0.3))),
    ]
    for make, feed in makers:
        test = make()
        for _ in range(1500):
            feed(test)
        assert math.isfinite(test.value) and test.value > 1e10
        again = make()
        again.restore(json.loads(json.dumps(test.state())))
        state = source.getstate()
        feed(test)
        source.setstate(state)
        feed(again)
        assert again.state() == test.state()
