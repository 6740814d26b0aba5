"""Which positions stream, once it is known how many of each size do: as evenly as the order allows.

Streamed blocks in one clump leave the link idle while resident blocks compute and the device idle while the
clump loads (1.2 to 1.7 times slower with two slots); evenly spaced ones reach the larger of the two times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PHASES = (1, 0, 2)
"""Where in its share of the chain a streamed block lies, in halves: the middle, the start, the end."""


def evenly_spaced(
    sizes: Sequence[int],
    eligible: Sequence[bool],
    forced: Sequence[bool],
    wanted: Mapping[int, int],
    phase: int,
) -> tuple[int, ...]:
    """Return the positions that stream, ascending.

    Args:
        sizes: Size of each block of a stage, in bytes.
        eligible: Whether it may stream.
        forced: Whether it must.
        wanted: Size in bytes -> number of blocks to stream, forced ones included.
        phase: One of `PHASES`.
    """
    chosen = {position for position, must in enumerate(forced) if must}
    for size, count in wanted.items():
        fixed = sum(1 for position in chosen if sizes[position] == size)
        places = [
            position
            for position, own in enumerate(sizes)
            if own == size and eligible[position] and position not in chosen
        ]
        chosen.update(places[index] for index in _even(len(places), count - fixed, phase))
    return tuple(sorted(chosen))


def _even(num_places: int, count: int, phase: int) -> list[int]:
    """Return `count` indices below `num_places`, the k-th in the k-th of `count` equal shares."""
    last = num_places - 1
    return [min(last, ((2 * k + phase) * num_places - (phase == 2)) // (2 * count)) for k in range(count)]
