"""The chain seen as few kinds of blocks in few repeating stretches: what keeps the exact program small.

Models repeat one block, or a pattern of several, many times over. A cut between two devices is then a
stretch, a number of repetitions and a place within the pattern, instead of one choice per block.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import msgspec

MAX_PERIOD = 32
"""Longest pattern that is looked for; 8 is the longest of the published models."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """`repeats` times the same `period` blocks."""

    start: int
    period: int
    repeats: int

    @property
    def stop(self) -> int:
        """Position behind its last block."""
        return self.start + self.period * self.repeats


def number_kinds(keys: Sequence[Hashable]) -> tuple[int, ...]:
    """Return a number per block, equal for equal keys, counted from 0 in the order of appearance."""
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)


def segments(kinds: Sequence[int]) -> tuple[Segment, ...]:
    """Return the stretches that tell every position in the chain with the fewest switches.

    Args:
        kinds: Kind of each block.

    Returns:
        Segments in order, without gaps.
    """
    end = len(kinds)
    # Per start: what it costs to describe the chain from there on, and the first segment of that description.
    best: list[tuple[int, Segment | None]] = [(0, None)] * (end + 1)
    for start in range(end - 1, -1, -1):
        found: tuple[int, Segment | None] | None = None
        for segment in _candidates(kinds, start):
            cost = _switches(segment) + best[segment.stop][0]
            if found is None or cost < found[0]:
                found = cost, segment
        assert found is not None
        best[start] = found
    chosen: list[Segment] = []
    position = 0
    while position < end:
        first = best[position][1]
        assert first is not None
        chosen.append(first)
        position = first.stop
    return tuple(chosen)


def _candidates(kinds: Sequence[int], start: int) -> list[Segment]:
    """Return the patterns that begin at `start`, each once and as often as it repeats."""
    end = len(kinds)
    found: list[Segment] = []
    for period in range(1, min(MAX_PERIOD, end - start) + 1):
        repeats = 1
        stop = start + period
        while stop + period <= end and kinds[stop : stop + period] == kinds[start : start + period]:
            repeats += 1
            stop += period
        found.append(Segment(start=start, period=period, repeats=1))
        if repeats > 1:
            found.append(Segment(start=start, period=period, repeats=repeats))
    return found


def _switches(segment: Segment) -> int:
    """Return twice the number of variables that a cut within the segment takes."""
    return 3 + (2 * segment.period if segment.period > 1 else 0) + (2 if segment.repeats > 1 else 0)
