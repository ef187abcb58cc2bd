"""Circuit breakers, with a clock of the test's."""

from __future__ import annotations

import pytest

from aot.errors import RunError
from aot.runtime.serving.breaker import Breaker, BreakerPolicy


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


POLICY = BreakerPolicy(failures=3, window_seconds=10, failure_share=0.5, open_seconds=4, most_open_seconds=10, trials=2)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(POLICY, clock)


def open_it(breaker: Breaker) -> None:
    for runs in (1, 2, 3):
        breaker.failed(runs)
    assert breaker.state == "open"


def test_opens_after_failures_within_the_window(breaker: Breaker, clock: Clock) -> None:
    assert breaker.state == "closed" and breaker.allows()
    assert not breaker.failed(1) and not breaker.failed(2)
    clock.seconds += 11  # both are past
    assert not breaker.failed(3) and not breaker.failed(4)
    assert breaker.state == "closed"
    assert breaker.failed(5)
    assert breaker.state == "open" and not breaker.is_closed and not breaker.allows()


def test_few_failures_among_many_runs_do_not_open_it(breaker: Breaker) -> None:
    for runs in range(0, 1000, 10):
        assert not breaker.failed(runs)
    assert breaker.state == "closed"


def test_trials_close_it(breaker: Breaker, clock: Clock) -> None:
    open_it(breaker)
    clock.seconds += 3.9
    assert not breaker.allows()
    clock.seconds += 0.1
    assert breaker.state == "half-open"
    assert breaker.allows() and breaker.allows() and not breaker.allows()  # two trials
    breaker.succeeded()
    assert breaker.state == "half-open"
    breaker.succeeded()
    assert breaker.state == "closed" and breaker.is_closed and breaker.allows()


def test_a_failed_trial_opens_it_for_twice_as_long(breaker: Breaker, clock: Clock) -> None:
    open_it(breaker)
    for seconds in (4, 8, 10, 10):  # at most most_open_seconds
        clock.seconds += seconds - 0.01
        assert not breaker.allows()
        clock.seconds += 0.01
        assert breaker.allows()
        assert breaker.failed(9)
    assert breaker.times_opened == 5


def test_runs_from_before_it_opened_decide_nothing(breaker: Breaker, clock: Clock) -> None:
    open_it(breaker)
    breaker.succeeded()
    assert not breaker.failed(4)
    assert breaker.state == "open" and breaker.times_opened == 1


def test_trials_that_never_end_do_not_keep_it_shut(breaker: Breaker, clock: Clock) -> None:
    open_it(breaker)
    clock.seconds += 4
    assert breaker.allows() and breaker.allows()
    breaker.abandoned_trial()
    assert breaker.allows() and not breaker.allows()
    clock.seconds += 11
    assert breaker.allows()


def test_a_clock_that_goes_back(breaker: Breaker, clock: Clock) -> None:
    breaker.failed(1)
    clock.seconds -= 50
    breaker.failed(2)
    breaker.failed(3)
    clock.seconds += 1
    for runs in (4, 5, 6):
        breaker.failed(runs)
    assert breaker.state == "open"
    clock.seconds -= 1000
    assert not breaker.allows()
    clock.seconds += 4  # it waits from the new time on, not for a thousand seconds
    assert breaker.allows()


def test_held_open(breaker: Breaker, clock: Clock) -> None:
    breaker.hold_open()
    clock.seconds += 1e6
    assert breaker.state == "open" and not breaker.allows()
    breaker.close()
    assert breaker.state == "closed" and breaker.allows()


@pytest.mark.parametrize(
    "wrong", [{"failures": 0}, {"trials": 0}, {"window_seconds": 0}, {"open_seconds": 0}, {"failure_share": 2}]
)
def test_wrong_policies(wrong: dict[str, float]) -> None:
    with pytest.raises(RunError):
        BreakerPolicy(**wrong)  # type: ignore[arg-type]
