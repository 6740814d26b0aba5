from __future__ import annotations

from bayplan.planner.solve.deadline import Deadline


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_without_a_limit_no_clock_is_read() -> None:
    def unread() -> float:
        raise AssertionError("the clock was read")

    deadline = Deadline(clock_s=unread)
    assert deadline.left_s() is None
    assert not deadline.must_end()
    assert not deadline.has_ended_search


def test_a_limit_counts_from_its_making() -> None:
    clock = Clock()
    deadline = Deadline(2.5, clock_s=clock)
    assert (deadline.left_s(), deadline.must_end()) == (2.5, False)
    clock.now_s = 102.0
    assert (deadline.left_s(), deadline.must_end(), deadline.has_ended_search) == (0.5, False, False)
    clock.now_s = 103.0
    assert deadline.left_s() == 0.0
    assert not deadline.has_ended_search  # nobody asked to go on
    assert deadline.must_end()
    assert deadline.has_ended_search
