from __future__ import annotations

from bayplan.planner.model.activity import Event, EventKind
from bayplan.planner.model.footprint import call_peaks, outside_peak

ENTER, EXIT, ALLOCATE, FREE = EventKind


def events(*lines: tuple[EventKind, int, int]) -> list[Event]:
    return [Event(*line) for line in lines]


def test_peak_of_a_call_leaves_out_what_was_alive_before() -> None:
    log = events(
        (ALLOCATE, 1, 100),
        (ENTER, 0, 0),
        (ALLOCATE, 2, 30),
        (ALLOCATE, 3, 20),
        (FREE, 2, 30),
        (ALLOCATE, 4, 10),
        (EXIT, 0, 0),
    )
    assert call_peaks(log, kept=(), previous=()) == {0: 50}


def test_freeing_the_input_makes_room() -> None:
    log = events(
        (ALLOCATE, 1, 100), (ENTER, 0, 0), (ALLOCATE, 2, 30), (FREE, 1, 100), (ALLOCATE, 3, 90), (EXIT, 0, 0)
    )
    assert call_peaks(log, kept=(), previous=()) == {0: 30}


def test_the_larger_of_two_calls_counts() -> None:
    log = events((ENTER, 0, 0), (ALLOCATE, 1, 5), (EXIT, 0, 0), (ENTER, 0, 0), (ALLOCATE, 2, 7), (EXIT, 0, 0))
    assert call_peaks(log, kept=(), previous=()) == {0: 7}


def test_what_the_cache_keeps_is_not_activation() -> None:
    log = events((ENTER, 0, 0), (ALLOCATE, 1, 5), (ALLOCATE, 2, 64), (EXIT, 0, 0))
    assert call_peaks(log, kept={2}, previous=()) == {0: 5}


def test_old_cache_beside_the_new_is_activation() -> None:
    log = events(
        (ALLOCATE, 1, 60),  # old keys
        (ENTER, 0, 0),
        (ALLOCATE, 2, 4),  # keys of the new token
        (ALLOCATE, 3, 64),  # old and new
        (FREE, 1, 60),
        (EXIT, 0, 0),
    )
    assert call_peaks(log, kept={3}, previous={1}) == {0: 64}


def test_a_cache_written_in_place_needs_nothing() -> None:
    log = events((ALLOCATE, 1, 60), (ENTER, 0, 0), (ALLOCATE, 2, 4), (EXIT, 0, 0))
    assert call_peaks(log, kept={1}, previous={1}) == {0: 4}


def test_outside_peak_is_taken_between_calls_and_without_the_cache() -> None:
    log = events(
        (ALLOCATE, 1, 10),
        (ENTER, 0, 0),
        (ALLOCATE, 2, 500),
        (ALLOCATE, 3, 7),
        (ALLOCATE, 4, 1000),
        (FREE, 2, 500),
        (EXIT, 0, 0),
        (FREE, 1, 10),
    )
    assert outside_peak(log, cached={4}) == 17
