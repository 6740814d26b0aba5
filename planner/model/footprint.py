"""Memory over time: from the log of a forward to the bytes that blocks need.

Owns the arithmetic on logs. What the cache keeps is counted apart, so that the cache and the activations of a
plan add up to what is really alive. Knows nothing of torch.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from bayplan.planner.model.activity import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def call_peaks(
    events: Sequence[Event], *, kept: Collection[int], previous: Collection[int]
) -> dict[int, int]:
    """Return for each block called the most bytes that a call of it needs beyond what was alive before.

    Args:
        events: Log of one forward.
        kept: Serial numbers of the storages that the cache holds after the forward.
        previous: Those that it held before.

    Returns: Block to bytes. The cache as it is after the call is not in them; old and new cache side by side
        are, as far as together they take more than the new one.
    """
    peaks: dict[int, int] = defaultdict(int)
    open_calls: list[tuple[int, int]] = []
    for index, event in enumerate(events):
        if event.kind == EventKind.ENTER:
            open_calls.append((event.key, index))
        elif event.kind == EventKind.EXIT:
            block, start = open_calls.pop()
            peaks[block] = max(peaks[block], _call_peak(events[start:index], kept, previous))
    return dict(peaks)


def _call_peak(events: Sequence[Event], kept: Collection[int], previous: Collection[int]) -> int:
    new_total = sum(
        event.num_bytes for event in events if event.kind == EventKind.ALLOCATE and event.key in kept
    )
    held = sum(event.num_bytes for event in events if event.kind == EventKind.FREE and event.key in previous)
    working = peak = 0
    for event in events:
        if event.kind not in (EventKind.ALLOCATE, EventKind.FREE):
            continue
        change = event.num_bytes if event.kind == EventKind.ALLOCATE else -event.num_bytes
        if event.key in kept or event.key in previous:
            held += change
        else:
            working += change
        peak = max(peak, working + max(0, held - new_total))
    return peak


def outside_peak(events: Sequence[Event], *, cached: Collection[int]) -> int:
    """Return the most bytes that are alive while no block is being called, the cache left out.

    A block's `call_peaks` on top of this bounds what is alive while it runs.

    Args:
        events: Log of one forward, its inputs adopted first.
        cached: Serial numbers of the storages that the cache holds before or after the forward.
    """
    depth = live = peak = 0
    for event in events:
        if event.kind == EventKind.ENTER:
            depth += 1
        elif event.kind == EventKind.EXIT:
            depth -= 1
        elif event.key not in cached:
            live += event.num_bytes if event.kind == EventKind.ALLOCATE else -event.num_bytes
        if depth == 0:
            peak = max(peak, live)
    return peak
