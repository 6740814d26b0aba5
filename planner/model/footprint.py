"""Memory over time: from the log of a forward to the bytes that are alive at every moment of it.

Owns the arithmetic on logs. What the cache takes is counted apart, so that the cache and the activations of a
plan add up to what is really alive. Knows nothing of torch.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from bayplan.planner.model.activity import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheHold:
    """What the cache held before a forward and holds after it."""

    block_of: Mapping[int, int]
    """Serial number of a storage to the block that filled it."""
    num_bytes: Mapping[int, int]
    """Block to the bytes of its tensors after the forward: those that a plan counts as cache."""


class Moment(NamedTuple):
    """An operation, or the begin or end of a call, and the time until the next one."""

    kind: EventKind
    """OPERATE, ENTER or EXIT."""
    key: int
    """Of the event: which operation, or which block."""
    live_bytes: int
    """The most that is alive in it, beside parameters, buffers and cache."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peaks:
    """What a forward needs at most and at least."""

    by_block: Mapping[int, int]
    """Block to the most bytes alive while it is called, or between its call and those of its neighbours."""
    least_bytes: int
    """The fewest bytes alive from the first call to the end of the last."""


def moments(events: Iterable[Event], cache: CacheHold) -> tuple[Moment, ...]:
    """Return what is alive at every moment of a forward.

    A cache that takes more than is counted for it is alive with the rest: old and new keys side by side while
    they are joined, or the positions that a window has left behind in a storage.

    Args:
        events: Log of one forward; what was alive before it comes first.
        cache: What is not to be counted.
    """
    held: dict[int, int] = defaultdict(int)
    found: list[Moment] = []
    live = peak = 0
    kind, key = EventKind.OPERATE, -1
    for event in events:
        if event.kind not in (EventKind.ALLOCATE, EventKind.FREE):
            found.append(Moment(kind, key, peak))
            kind, key, peak = event.kind, event.key, live
            continue
        change = event.num_bytes if event.kind == EventKind.ALLOCATE else -event.num_bytes
        block = cache.block_of.get(event.key)
        if block is not None:
            counted = cache.num_bytes.get(block, 0)
            before = max(0, held[block] - counted)
            held[block] += change
            change = max(0, held[block] - counted) - before
        live += change
        peak = max(peak, live)
    return (*found, Moment(kind, key, peak))


def peaks(forward: Sequence[Moment], *, uncalled: Iterable[int] = ()) -> Peaks:
    """Return the extremes of a forward, by block.

    What runs between two calls goes with both: a device that has one of the blocks may have to do it.

    Args:
        forward: From `moments`.
        uncalled: Blocks whose tensors are read without a call: their work may be any between two calls.
    """
    by_block: dict[int, int] = defaultdict(int)
    open_calls: list[int] = []
    last: int | None = None
    gap = between = 0
    for moment in forward:
        if moment.kind == EventKind.ENTER:
            if not open_calls:
                for neighbour in (last, moment.key):
                    if neighbour is not None:
                        by_block[neighbour] = max(by_block[neighbour], gap)
            open_calls.append(moment.key)
        elif moment.kind == EventKind.EXIT:
            last = open_calls.pop()
            gap = 0
        for block in open_calls:
            by_block[block] = max(by_block[block], moment.live_bytes)
        if not open_calls:
            gap = max(gap, moment.live_bytes)
            between = max(between, moment.live_bytes)
    if last is not None:
        by_block[last] = max(by_block[last], gap)
    by_block.update(dict.fromkeys(uncalled, between))
    return Peaks(by_block=dict(by_block), least_bytes=_least(forward))


def _least(forward: Sequence[Moment]) -> int:
    calls = [index for index, moment in enumerate(forward) if moment.kind != EventKind.OPERATE]
    called = forward[calls[0] : calls[-1]] if calls else forward
    return min((moment.live_bytes for moment in called), default=0)
