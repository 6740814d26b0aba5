"""Which blocks of a stage stay and which stream: the fewest streamed bytes that a budget allows.

A bounded subset-sum over the distinct block sizes, exact up to a deterministic work limit. Knows sizes
only, neither devices nor order; `bayplan.planner.spacing` chooses the positions.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

MAX_SUMS = 50_000
"""Distinct sums kept at most. Real models have a handful of block sizes and stay far below."""


class StreamChoice(msgspec.Struct, frozen=True, kw_only=True):
    """How many blocks of each size stream, and through how large a slot."""

    streamed: tuple[tuple[int, int], ...]
    """`(size, count)`, ascending, counts positive; empty: nothing streams."""
    slot_bytes: int
    num_slots: int
    streamed_bytes: int
    least_streamed_bytes: int
    """No choice for this budget streams less; equal to `streamed_bytes` where the search was exhaustive."""


NOTHING_STREAMS = StreamChoice(
    streamed=(), slot_bytes=0, num_slots=0, streamed_bytes=0, least_streamed_bytes=0
)


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
    total = sum(size * count for size, count in sizes.items())
    if not forced and total <= capacity_bytes:
        return NOTHING_STREAMS
    best: StreamChoice | None = None
    least = total + sum(size * count for size, count in forced.items())
    for slot_bytes in sorted(set(sizes) | set(forced)):
        if forced and slot_bytes < max(forced):
            continue
        choice = _with_slot(sizes, forced, capacity_bytes, num_slots, slot_bytes)
        if choice is None:
            continue
        least = min(least, choice.least_streamed_bytes)
        if best is None or choice.streamed_bytes < best.streamed_bytes:
            best = choice
    return None if best is None else msgspec.structs.replace(best, least_streamed_bytes=least)


def _with_slot(
    sizes: Mapping[int, int],
    forced: Mapping[int, int],
    capacity_bytes: int,
    num_slots: int,
    slot_bytes: int,
) -> StreamChoice | None:
    """Return the best choice whose slots hold blocks up to `slot_bytes`."""
    kept_bytes = sum(size * count for size, count in sizes.items() if size > slot_bytes)
    eligible = {size: count for size, count in sorted(sizes.items()) if size <= slot_bytes}
    room = capacity_bytes - kept_bytes - num_slots * slot_bytes
    if room < 0:
        return None
    resident, exhaustive = _fullest(eligible, room)
    streamed = {size: count - resident.get(size, 0) for size, count in eligible.items()}
    for size, count in forced.items():
        streamed[size] = streamed.get(size, 0) + count
    eligible_bytes = sum(size * count for size, count in eligible.items())
    forced_bytes = sum(size * count for size, count in forced.items())
    streamed_bytes = sum(size * count for size, count in streamed.items())
    return StreamChoice(
        streamed=tuple((size, count) for size, count in sorted(streamed.items()) if count),
        slot_bytes=slot_bytes,
        num_slots=min(num_slots, sum(streamed.values())),
        streamed_bytes=streamed_bytes,
        least_streamed_bytes=streamed_bytes if exhaustive else forced_bytes + max(0, eligible_bytes - room),
    )


def _fullest(sizes: Mapping[int, int], room: int) -> tuple[dict[int, int], bool]:
    """Return how many of each size fill `room` best, and whether every combination was looked at."""
    exhaustive = True
    sums: dict[int, tuple[int, ...]] = {0: ()}
    ordered = sorted(sizes, reverse=True)
    for size in ordered:
        grown: dict[int, tuple[int, ...]] = {}
        for total, counts in sums.items():
            for count in range(sizes[size] + 1):
                reached = total + count * size
                if reached > room:
                    break
                grown.setdefault(reached, (*counts, count))
        if len(grown) > MAX_SUMS:
            exhaustive = False
            grown = {total: grown[total] for total in sorted(grown, reverse=True)[:MAX_SUMS]}
        sums = grown
    return dict(zip(ordered, sums[max(sums)], strict=True)), exhaustive
