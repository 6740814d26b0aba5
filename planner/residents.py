"""Which blocks of a stage stay and which stream: the fewest streamed bytes that a budget allows.

A bounded subset-sum over the distinct block sizes, exact up to a deterministic work limit. Knows sizes
only, neither devices nor order; `bayplan.planner.spacing` chooses the positions.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

MAX_SUMS = 4096
"""Distinct sums kept at most. Real models have a handful of block sizes and stay far below."""

THINNED_SUMS = 256
"""Sums kept where there were more: the largest of as many equal ranges, so that every range stays within
reach."""


class StreamChoice(msgspec.Struct, frozen=True, kw_only=True):
    """How many blocks of each size stream, and through how large a slot."""

    streamed: tuple[tuple[int, int], ...]
    """`(size, count)`, ascending, counts positive; empty: nothing streams."""
    slot_bytes: int
    num_slots: int
    streamed_bytes: int
    least_streamed_bytes: int
    """No choice for this budget streams less; equal to `streamed_bytes` where the search was exhaustive."""
    least_late_bytes: int
    """Least that has to arrive while the blocks run, the rest being there before: of any choice and any number
    of slots."""


NOTHING_STREAMS = StreamChoice(
    streamed=(),
    slot_bytes=0,
    num_slots=0,
    streamed_bytes=0,
    least_streamed_bytes=0,
    least_late_bytes=0,
)


class _Fill(msgspec.Struct, frozen=True, kw_only=True):
    """How full a room can be packed."""

    total: int
    counts: tuple[int, ...]
    """Of each size added so far, in the order of adding."""


class _Sums:
    """Sums that blocks up to some size can have together, with one way to reach each."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._sums: dict[int, tuple[int, ...]] = {0: ()}
        self.is_exhaustive = True

    def add(self, size: int, count: int) -> None:
        """Let up to `count` blocks of `size` take part."""
        grown: dict[int, tuple[int, ...]] = {}
        for total, counts in self._sums.items():
            for taken in range(count + 1):
                reached = total + taken * size
                if reached > self._capacity_bytes:
                    break
                grown.setdefault(reached, (*counts, taken))
        if len(grown) > MAX_SUMS:
            self.is_exhaustive = False
            width = self._capacity_bytes // THINNED_SUMS + 1
            largest: dict[int, int] = {}
            for total in grown:
                largest[total // width] = max(total, largest.get(total // width, 0))
            grown = {total: grown[total] for total in (0, *sorted(largest.values()))}
        self._sums = grown

    def fullest(self, room_bytes: int) -> _Fill:
        """Return the largest sum that `room_bytes` holds."""
        total = max(total for total in self._sums if total <= room_bytes)
        return _Fill(total=total, counts=self._sums[total])


def least_streamed(
    sizes: Mapping[int, int], forced: Mapping[int, int], capacity_bytes: int, num_slots: int
) -> StreamChoice | None:
    """Return the choice that streams the fewest bytes, or None if none fits.

    Args:
        sizes: Size in bytes -> number of blocks that may stream or stay.
        forced: Size in bytes -> number of blocks that must stream, not among `sizes`.
        capacity_bytes: For resident ones among `sizes` and the slots together.
        num_slots: Slots used if more blocks than that stream.
    """
    free_bytes = sum(size * count for size, count in sizes.items())
    if not forced and free_bytes <= capacity_bytes:
        return NOTHING_STREAMS
    forced_bytes = sum(size * count for size, count in forced.items())
    largest_forced = max(forced, default=0)
    sums = _Sums(capacity_bytes)
    ordered: list[int] = []
    kept_bytes = free_bytes
    best: tuple[int, int, _Fill, int] | None = None
    least_bytes = least_late_bytes = free_bytes + forced_bytes
    for slot_bytes in sorted({*sizes, *forced}):
        if slot_bytes in sizes:
            sums.add(slot_bytes, sizes[slot_bytes])
            ordered.append(slot_bytes)
            kept_bytes -= slot_bytes * sizes[slot_bytes]
        room_bytes = capacity_bytes - kept_bytes - num_slots * slot_bytes
        if slot_bytes < largest_forced or room_bytes < 0:
            continue
        fill = sums.fullest(room_bytes)
        unplaced_bytes = free_bytes + forced_bytes - kept_bytes
        streamed_bytes = unplaced_bytes - fill.total
        held_bytes = fill.total if sums.is_exhaustive else min(room_bytes, unplaced_bytes - forced_bytes)
        least_bytes = min(least_bytes, unplaced_bytes - held_bytes)
        least_late_bytes = min(least_late_bytes, unplaced_bytes - held_bytes - num_slots * slot_bytes)
        if best is None or streamed_bytes < best[0]:
            best = streamed_bytes, slot_bytes, fill, len(ordered)
    if best is None:
        return None
    streamed_bytes, slot_bytes, fill, num_eligible = best
    streamed = dict(forced)
    for size, resident in zip(ordered[:num_eligible], fill.counts, strict=True):
        streamed[size] = streamed.get(size, 0) + sizes[size] - resident
    if forced:
        # More slots may come closer to this than the given number does.
        least_late_bytes = free_bytes + forced_bytes - capacity_bytes
    return StreamChoice(
        streamed=tuple((size, count) for size, count in sorted(streamed.items()) if count),
        slot_bytes=slot_bytes,
        num_slots=min(num_slots, sum(streamed.values())),
        streamed_bytes=streamed_bytes,
        least_streamed_bytes=least_bytes,
        least_late_bytes=max(0, least_late_bytes),
    )
