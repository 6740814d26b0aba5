"""Which moments of forwards of different lengths are the same: those that differ in the turns of loops alone.

Owns the matching of logs. Knows nothing of what is alive in them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from bayplan.planner.model.activity import EventKind, TraceTooLongError
from bayplan.planner.model.footprint import Moment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    # What a moment does: its kind and its key.
    Deed = tuple[EventKind, int]

TOO_LONG = "a forward takes too many operations to be traced"
"""Begin of the messages of why short forwards do not tell about a long one."""


def aligned_moments(forwards: Sequence[Sequence[Moment]]) -> Iterator[tuple[Moment, ...]]:
    """Yield the moments of the first forward, each with those of the others that do the same.

    The first turn of a loop is the first in all, the others are counted from the last. What is alive grows
    evenly from turn to turn, so the first and the last have the peak of all.

    Args:
        forwards: Of growing length, each with as many more turns of every loop than the one before.

    Raises:
        TraceTooLongError: They call other blocks.
        TraceTooLongError: They differ in more than the turns of loops.
    """
    split = [_between_calls(forward) for forward in forwards]
    if len({tuple(part[0][:2] for part in parts) for parts in split}) > 1:
        raise TraceTooLongError(f"{TOO_LONG}, and short ones differ in the blocks they call")
    for parts in zip(*split, strict=True):
        for places in _aligned_places([[moment[:2] for moment in part] for part in parts]):
            yield tuple(part[place] for part, place in zip(parts, places, strict=True))


def _between_calls(forward: Sequence[Moment]) -> list[Sequence[Moment]]:
    starts = [index for index, moment in enumerate(forward) if moment.kind != EventKind.OPERATE]
    bounds = [0, *(start for start in starts if start), len(forward)]
    return [forward[start:end] for start, end in pairwise(bounds)]


def _aligned_places(deeds: Sequence[Sequence[Deed]]) -> list[tuple[int, ...]]:
    """Return the places of the same deeds, for every deed of the first sequence."""
    rows: list[tuple[int, ...]] = []
    places = (0,) * len(deeds)
    while True:
        num_alike = _num_alike(deeds, places)
        rows += [tuple(place + number for place in places) for number in range(num_alike)]
        places = tuple(place + num_alike for place in places)
        if all(place == len(one) for place, one in zip(places, deeds, strict=True)):
            return rows
        # The first sequence has left a loop in which the others have turns to go. From here on it is one turn
        # behind the next sequence, two behind the one after, and so are all its turns but the first.
        turn = _turn_length(deeds, places)
        behind = _num_periodic(deeds[0], places[0], turn)
        del rows[len(rows) - behind :]
        places = tuple(place - behind + number * turn for number, place in enumerate(places))


def _num_alike(deeds: Sequence[Sequence[Deed]], places: Sequence[int]) -> int:
    """Return how many deeds from `places` on are the same in all."""
    count = 0
    for same in zip(*(one[place:] for one, place in zip(deeds, places, strict=True)), strict=False):
        if any(deed != same[0] for deed in same):
            break
        count += 1
    return count


def _num_periodic(deeds: Sequence[Deed], place: int, turn: int) -> int:
    """Return how many deeds before `place` are those of a turn earlier."""
    count = 0
    while place - count - turn > 0 and deeds[place - count - 1] == deeds[place - count - 1 - turn]:
        count += 1
    return count


def _turn_length(deeds: Sequence[Sequence[Deed]], places: Sequence[int]) -> int:
    """Return the length of the turns that the sequences after the first have more of at `places`.

    Raises:
        TraceTooLongError: No number of turns brings them together again.
    """
    second, place = deeds[1], places[1]
    best, turn = 0, 0
    for length in range(1, min(place, len(second) - place) + 1):
        if second[place : place + length] != second[place - length : place]:
            continue
        moved = [start + number * length for number, start in enumerate(places)]
        num_alike = _num_alike(deeds, moved)
        is_end = all(start == len(one) for start, one in zip(moved, deeds, strict=True))
        if num_alike + is_end > best:
            best, turn = num_alike + is_end, length
    if not turn:
        raise TraceTooLongError(f"{TOO_LONG}, and short ones differ in more than the turns of loops")
    return turn
