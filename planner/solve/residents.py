"""Which blocks of a stage stay and which stream: the fewest streamed bytes that a budget allows.

A bounded subset-sum over the distinct block sizes, exact up to a deterministic work limit. Knows sizes
only, neither devices nor order; `bayplan.planner.solve.spacing` chooses the positions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

MAX_SUMS = 4096
"""Distinct sums kept at most. Real models have a handful of block sizes and stay far below."""

THINNED_SUMS = 256
"""Sums kept where there were more: the largest of as many equal ranges, so that every range stays within
reach."""


class StreamChoice(msgspec.Struct, frozen=True, kw_only=True):
    """How many blocks of each size stream, and through how large a slot.

    The fields that begin with `least` hold for every choice with the same budget and number of slots: for
    this one and for those that stream more through a larger slot.
    """

    streamed: tuple[tuple[int, int], ...]
    """`(size, count)`, ascending, counts positive; empty: nothing streams."""
    slot_bytes: int
    num_slots: int
    streamed_bytes: int
    least_streamed_bytes: int
    """Equal to `streamed_bytes` where the search was exhaustive."""
    least_streamed_blocks: int
    least_late_bytes: int
    """Bytes that arrive while the stage runs, since the slots hold no more than the others before it."""


NOTHING_STREAMS = StreamChoice(
    streamed=(),
    slot_bytes=0,
    num_slots=0,
    streamed_bytes=0,
    least_streamed_bytes=0,
    least_streamed_blocks=0,
    least_late_bytes=0,
)


class _Taken(NamedTuple):
    """How many of one size stay, after those of the sizes before it."""

    before: _Taken | None
    num_taken: int

    def counts(self) -> tuple[int, ...]:
        """Return the counts in the order of adding."""
        counts: list[int] = []
        taken: _Taken | None = self
        while taken is not None:
            counts.append(taken.num_taken)
            taken = taken.before
        return tuple(reversed(counts))


class _Sums:
    """Sums that blocks up to some size can have together, with one way to reach each."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._sums: dict[int, _Taken | None] = {0: None}
        self._ordered = [0]
        self.is_exhaustive = True

    def fullest(self, room_bytes: int, size: int, count: int) -> tuple[int, tuple[int, ...]]:
        """Return the largest sum within `room_bytes` and how many of each size make it.

        Args:
            room_bytes: Upper limit.
            size: Of blocks that have not been added yet.
            count: How many of these may take part.
        """
        best, best_taken = -1, 0
        for taken in range(min(count, room_bytes // size if size else 0) + 1):
            below = self._ordered[bisect_right(self._ordered, room_bytes - taken * size) - 1]
            if below + taken * size > best:
                best, best_taken = below + taken * size, taken
        return best, _Taken(self._sums[best - best_taken * size], best_taken).counts()

    def add(self, size: int, count: int) -> None:
        """Let up to `count` blocks of `size` take part."""
        grown: dict[int, _Taken | None] = {}
        for total, before in self._sums.items():
            for taken in range(count + 1):
                reached = total + taken * size
                if reached > self._capacity_bytes:
                    break
                if reached not in grown:
                    grown[reached] = _Taken(before, taken)
        if len(grown) > MAX_SUMS:
            self.is_exhaustive = False
            width = self._capacity_bytes // THINNED_SUMS + 1
            largest: dict[int, int] = {}
            for total in grown:
                largest[total // width] = max(total, largest.get(total // width, 0))
            grown = {total: grown[total] for total in (0, *largest.values())}
        self._sums = grown
        self._ordered = sorted(grown)


def least_streamed(
    sizes: Mapping[int, int], forced: Mapping[int, int], capacity_bytes: int, num_slots: int
) -> StreamChoice | None:
    """Return the choice that streams the fewest bytes, or None if none fits.

    Args:
        sizes: Size in bytes, above zero -> number of blocks that may stream or stay.
        forced: Size in bytes -> number of blocks that must stream, not among `sizes`.
        capacity_bytes: For resident ones among `sizes` and the slots together.
        num_slots: Slots used if more blocks than that stream.
    """
    free_bytes = sum(size * count for size, count in sizes.items())
    forced_bytes = sum(size * count for size, count in forced.items())
    if not forced and free_bytes <= capacity_bytes:
        return NOTHING_STREAMS
    sums = _Sums(capacity_bytes)
    eligible_bytes = 0
    found: list[StreamChoice] = []
    for slot_bytes in sorted({*sizes, *forced}):
        count = sizes.get(slot_bytes, 0)
        eligible_bytes += slot_bytes * count
        room = capacity_bytes - (free_bytes - eligible_bytes) - num_slots * slot_bytes
        if room >= 0 and slot_bytes >= max(forced, default=0):
            # The slot is this large because a block of this size streams.
            can_stay = count if slot_bytes in forced else count - 1
            held_bytes, counts = sums.fullest(room, slot_bytes, can_stay)
            streamed = dict(forced)
            for size, resident in zip(sorted({*sizes, *forced}), counts, strict=False):
                streamed[size] = streamed.get(size, 0) + sizes.get(size, 0) - resident
            streamed_bytes = forced_bytes + eligible_bytes - held_bytes
            most_bytes = min(room, eligible_bytes - slot_bytes * (count - can_stay))
            least_bytes = streamed_bytes if sums.is_exhaustive else forced_bytes + eligible_bytes - most_bytes
            found.append(
                StreamChoice(
                    streamed=tuple((size, count) for size, count in sorted(streamed.items()) if count),
                    slot_bytes=slot_bytes,
                    num_slots=min(num_slots, sum(streamed.values())),
                    streamed_bytes=streamed_bytes,
                    least_streamed_bytes=least_bytes,
                    least_streamed_blocks=-(-least_bytes // slot_bytes) if slot_bytes else 0,
                    least_late_bytes=max(0, least_bytes - _early_bytes(sizes, forced, num_slots, slot_bytes)),
                )
            )
        sums.add(slot_bytes, count)
    if not found:
        return None
    return msgspec.structs.replace(
        min(found, key=lambda choice: choice.streamed_bytes),
        least_streamed_bytes=min(choice.least_streamed_bytes for choice in found),
        least_streamed_blocks=min(choice.least_streamed_blocks for choice in found),
        least_late_bytes=min(choice.least_late_bytes for choice in found),
    )


def _early_bytes(sizes: Mapping[int, int], forced: Mapping[int, int], num_slots: int, slot_bytes: int) -> int:
    """Return the most that the slots can hold before a stage begins: the largest of its blocks that fit."""
    early_bytes = 0
    for size in sorted({*sizes, *forced}, reverse=True):
        if size <= slot_bytes:
            count = min(num_slots, sizes.get(size, 0) + forced.get(size, 0))
            early_bytes += size * count
            num_slots -= count
    return early_bytes
