from __future__ import annotations

from collections.abc import Sequence

import pytest

from bayplan.planner.model.activity import EventKind, TraceTooLongError
from bayplan.planner.model.alignment import aligned_moments
from bayplan.planner.model.footprint import Moment

TOO_LONG = "a forward takes too many operations to be traced"


def forward(*kinds: int) -> tuple[Moment, ...]:
    """A call of block 0 with these operations, each of which has its place alive."""
    inside = [Moment(EventKind.OPERATE, kind, place) for place, kind in enumerate(kinds)]
    return (Moment(EventKind.ENTER, 0, 0), *inside, Moment(EventKind.EXIT, 0, 0))


def places(forwards: Sequence[Sequence[Moment]]) -> list[tuple[int, ...]]:
    """The places of the operations that are taken for the same."""
    same = list(aligned_moments(forwards))
    assert same[0] == tuple(one[0] for one in forwards)
    assert same[-1] == tuple(one[-1] for one in forwards)
    return [tuple(moment.live_bytes for moment in row) for row in same[1:-1]]


def test_turns_are_counted_from_the_first_and_from_the_last() -> None:
    forwards = [forward(8, *[1, 2] * num_turns, 9) for num_turns in (2, 3, 4)]
    assert places(forwards) == [(0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 5, 7), (4, 6, 8), (5, 7, 9)]


def test_what_follows_a_loop_may_begin_like_a_turn() -> None:
    forwards = [forward(*[1, 2] * num_turns, 1, 3) for num_turns in (2, 3, 4)]
    assert places(forwards) == [(0, 0, 0), (1, 1, 1), (2, 4, 6), (3, 5, 7), (4, 6, 8), (5, 7, 9)]


def test_several_loops() -> None:
    forwards = [forward(*[1, 1, 2] * num_turns, 9, *[3, 2] * num_turns) for num_turns in (2, 3)]
    assert places(forwards) == [
        *((place, place) for place in range(3)),
        *((place, place + 3) for place in range(3, 9)),
        *((place, place + 5) for place in range(9, 11)),
    ]


def test_equal_forwards() -> None:
    assert places([forward(1, 2, 2)] * 3) == [(0, 0, 0), (1, 1, 1), (2, 2, 2)]


def test_forwards_that_call_other_blocks() -> None:
    with pytest.raises(TraceTooLongError) as caught:
        list(aligned_moments([forward(1), (*forward(1), *forward(1))]))
    assert str(caught.value) == f"{TOO_LONG}, and short ones differ in the blocks they call"


@pytest.mark.parametrize("long", [(1, 2, 3, 3, 4), (1, 2), (1, 5, 3), (1, 2, 3, 7)])
def test_forwards_that_differ_in_more_than_turns(long: tuple[int, ...]) -> None:
    with pytest.raises(TraceTooLongError) as caught:
        list(aligned_moments([forward(1, 2, 3), forward(*long)]))
    assert str(caught.value) == f"{TOO_LONG}, and short ones differ in more than the turns of loops"
