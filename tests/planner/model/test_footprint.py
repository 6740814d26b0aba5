from __future__ import annotations

from bayplan.planner.model.activity import Event, EventKind
from bayplan.planner.model.footprint import CacheHold, Moment, moments, peaks

ENTER, EXIT, ALLOCATE, FREE, OPERATE = EventKind
NO_CACHE = CacheHold(block_of={}, num_bytes={})


def events(*lines: tuple[EventKind, int, int]) -> list[Event]:
    return [Event(*line) for line in lines]


def live(log: list[Event], cache: CacheHold = NO_CACHE) -> list[int]:
    return [moment.live_bytes for moment in moments(log, cache)]


def test_a_moment_lasts_until_the_next_operation() -> None:
    log = events(
        (ALLOCATE, 1, 100),
        (OPERATE, 7, 0),
        (ALLOCATE, 2, 30),
        (FREE, 1, 100),
        (OPERATE, 8, 0),
        (ALLOCATE, 3, 5),
    )
    assert moments(log, NO_CACHE) == (
        Moment(OPERATE, -1, 100),
        Moment(OPERATE, 7, 130),
        Moment(OPERATE, 8, 35),
    )


def test_what_the_cache_keeps_is_not_alive() -> None:
    log = events((OPERATE, 0, 0), (ALLOCATE, 1, 5), (ALLOCATE, 2, 64))
    assert live(log, CacheHold(block_of={2: 0}, num_bytes={0: 64})) == [0, 5]


def test_old_keys_beside_the_new_are_alive() -> None:
    log = events(
        (ALLOCATE, 1, 60),  # old keys
        (OPERATE, 0, 0),
        (ALLOCATE, 2, 4),  # keys of the new token
        (OPERATE, 1, 0),
        (ALLOCATE, 3, 64),  # old and new
        (OPERATE, 2, 0),
        (FREE, 1, 60),
        (OPERATE, 3, 0),
    )
    assert live(log, CacheHold(block_of={1: 0, 3: 0}, num_bytes={0: 64})) == [0, 4, 64, 64, 4]


def test_one_layers_old_keys_do_not_hide_behind_what_another_has_not_yet_made() -> None:
    log = events((ALLOCATE, 1, 60), (OPERATE, 0, 0), (ALLOCATE, 2, 64))
    hold = CacheHold(block_of={1: 0, 2: 0, 9: 1}, num_bytes={0: 64, 1: 64})
    assert live(log, hold) == [0, 60]


def test_positions_behind_a_window_are_alive() -> None:
    """The cache is a view of a storage that is larger than it."""
    log = events((OPERATE, 0, 0), (ALLOCATE, 1, 100))
    assert live(log, CacheHold(block_of={1: 0}, num_bytes={0: 30})) == [0, 70]


def test_a_cache_written_in_place_needs_nothing() -> None:
    log = events((ALLOCATE, 1, 60), (OPERATE, 0, 0), (ALLOCATE, 2, 4))
    assert live(log, CacheHold(block_of={1: 0}, num_bytes={0: 60})) == [0, 4]


FORWARD = (
    Moment(OPERATE, -1, 20),
    Moment(OPERATE, 0, 90),  # before the first call: with the first block
    Moment(ENTER, 3, 30),
    Moment(OPERATE, 1, 50),
    Moment(EXIT, 3, 40),
    Moment(OPERATE, 2, 70),  # between two calls: with both blocks
    Moment(ENTER, 5, 40),
    Moment(OPERATE, 1, 60),
    Moment(EXIT, 5, 25),
    Moment(OPERATE, 3, 65),  # after the last call
)


def test_what_runs_between_two_calls_goes_with_both() -> None:
    assert peaks(FORWARD).by_block == {3: 90, 5: 70}
    assert peaks(FORWARD[2:-1]).by_block == {3: 70, 5: 70}
    assert peaks((*FORWARD[:5], *FORWARD[6:])).by_block == {3: 90, 5: 65}


def test_the_least_is_that_from_the_first_call_to_the_end_of_the_last() -> None:
    assert peaks(FORWARD).least_bytes == 30
    assert peaks(FORWARD[:2]).least_bytes == 20
    assert peaks(()).least_bytes == 0


def test_a_block_that_is_read_without_a_call_may_have_to_do_all_that_is_between_calls() -> None:
    assert peaks(FORWARD, uncalled=[4]).by_block == {3: 90, 4: 90, 5: 70}


def test_the_larger_of_two_calls_counts() -> None:
    again = (Moment(ENTER, 3, 10), Moment(OPERATE, 1, 200), Moment(EXIT, 3, 10))
    assert peaks((*FORWARD, *again)).by_block == {3: 200, 5: 70}


def test_a_call_inside_a_call_goes_with_both_blocks() -> None:
    nested = (
        Moment(ENTER, 0, 10),
        Moment(ENTER, 1, 10),
        Moment(OPERATE, 0, 80),
        Moment(EXIT, 1, 20),
        Moment(OPERATE, 0, 90),
        Moment(EXIT, 0, 20),
    )
    assert peaks(nested).by_block == {0: 90, 1: 80}


def test_a_forward_that_fails_has_peaks() -> None:
    assert peaks(FORWARD[:4]).by_block == {3: 90}
