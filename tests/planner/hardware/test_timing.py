import itertools

import pytest

from bayplan.planner.hardware.timing import Stopwatch, rate_of, round_rate
from bayplan.schemas.types import MAX_INTEGER


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0, 0), (7, 7), (999, 999), (1234, 1230), (1235, 1240), (99_960, 100_000), (2_345_678, 2_350_000)],
)
def test_rates_have_three_significant_digits(value: int, rounded: int) -> None:
    assert round_rate(value) == rounded


@pytest.mark.parametrize(
    ("amount", "taken_ns", "rate"),
    [(1000, 1, 10**12), (3, 2, 1_500_000_000), (1, 10**12, 1), (0, 5, 1), (10**12, 1, MAX_INTEGER)],
)
def test_rates_are_what_a_file_may_say(amount: int, taken_ns: int, rate: int) -> None:
    assert rate_of(amount, taken_ns) == rate


def test_the_first_run_is_not_timed_and_the_end_is_waited_for() -> None:
    log: list[str] = []
    times = itertools.count(0, 10)

    def clock() -> int:
        log.append("clock")
        return next(times)

    stopwatch = Stopwatch(clock, lambda: log.append("wait"))
    assert stopwatch.usual_ns(lambda: log.append("run"), 1) == 10
    assert log == ["run", "wait", "clock", "run", "wait", "clock"]


def test_what_a_busy_machine_does_to_most_runs_does_not_count() -> None:
    times = (9_000_000, 2000, 9_000_000, 1, 2000, 9_000_000, 8_000_000)
    readings = iter([reading for taken_ns in times for reading in (0, taken_ns)])
    assert Stopwatch(lambda: next(readings)).usual_ns(lambda: None, 7) == 2000


def test_a_clock_that_stands_still_gives_a_time() -> None:
    assert Stopwatch(lambda: 0).usual_ns(lambda: None, 3) == 1
