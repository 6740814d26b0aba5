from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.planner.solve.segments import MAX_PERIOD, Segment, number_kinds, segments


def shapes(kinds: list[int]) -> list[tuple[int, int, int]]:
    return [(own.start, own.period, own.repeats) for own in segments(kinds)]


def test_kinds_are_numbered_as_they_appear() -> None:
    assert number_kinds(["b", "a", "b", ("c", 1), "a"]) == (0, 1, 0, 2, 1)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([], []),
        ([0], [(0, 1, 1)]),
        ([0] * 80, [(0, 1, 80)]),
        ([0, *[1] * 30, 2], [(0, 1, 1), (1, 1, 30), (31, 1, 1)]),
        ([0, 1] * 20, [(0, 2, 20)]),
        ([9, *[0, 0, 0, 1] * 12, 8], [(0, 1, 1), (1, 4, 12), (49, 1, 1)]),
    ],
)
def test_stretches_that_repeat(kinds: list[int], expected: list[tuple[int, int, int]]) -> None:
    assert shapes(kinds) == expected


def test_a_pattern_longer_than_the_limit_is_not_looked_for() -> None:
    pattern = list(range(MAX_PERIOD))
    assert shapes(pattern * 3) == [(0, MAX_PERIOD, 3)]
    longer = list(range(MAX_PERIOD + 1))
    assert all(own.period <= MAX_PERIOD for own in segments(longer * 3))


def test_where_a_segment_ends() -> None:
    assert Segment(start=3, period=4, repeats=5).stop == 23


@given(st.lists(st.integers(0, 2), max_size=40))
@settings(max_examples=200, deadline=None)
def test_segments_say_the_whole_chain_once(kinds: list[int]) -> None:
    found = segments(kinds)
    said: list[int] = []
    for own in found:
        assert own.start == len(said)
        said += kinds[own.start : own.start + own.period] * own.repeats
    assert said == kinds
    assert all(one.stop == other.start for one, other in pairwise(found))
