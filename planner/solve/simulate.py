"""The prefetch pipeline, event by event: what a step takes with the plan's slots and order.

An upper bound for the cost model: the schedule that is simulated is one that the executor follows. Integers
only. Per device one ring; transfers over one link are served one at a time in the order in which they could
start.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from itertools import pairwise

import msgspec

MAX_STEPS = 64
"""Steps simulated at most until one leaves everything as the one before it did."""


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """One block's part of a step."""

    device: str
    compute_ns: int
    hop_ns: int = 0
    """Time before it for activations to arrive from the device before."""
    transfer_ns: int | None = None
    """Time to bring its weights into a slot; None: resident."""
    link: str = ""
    """What the transfer goes over; transfers on one link do not overlap."""


class _Ring:
    """Transfers of one device: block number k of the stream order uses slot k modulo `num_slots`."""

    def __init__(self, transfers: list[tuple[int, str]], num_slots: int) -> None:
        self.transfers = transfers
        self.num_slots = num_slots
        self.slot_free_ns: list[int | None] = [0] * num_slots
        self.issued = 0
        self.visited = 0
        self.done_ns: deque[int] = deque()
        """When each block that has not been visited yet arrives."""

    def next_ready_ns(self) -> int | None:
        """Return when the next transfer's slot is free; None: its last block has not computed yet."""
        return self.slot_free_ns[self._slot(self.issued)]

    def issue(self, link_free_ns: int) -> int:
        """Start the next transfer and return when it is done."""
        slot = self._slot(self.issued)
        ready = self.slot_free_ns[slot]
        assert ready is not None
        done = max(ready, link_free_ns) + self.transfers[self.issued % len(self.transfers)][0]
        self.slot_free_ns[slot] = None
        self.done_ns.append(done)
        self.issued += 1
        return done

    def link(self) -> str:
        """Return the link of the next transfer."""
        return self.transfers[self.issued % len(self.transfers)][1]

    def release(self, now_ns: int) -> None:
        """Free the slot of the block that has just computed."""
        self.slot_free_ns[self._slot(self.visited)] = now_ns
        self.done_ns.popleft()
        self.visited += 1

    def state(self, now_ns: int) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
        """Return arrivals and free slots, seen from now."""
        used = self.slot_free_ns[: len(self.transfers)]
        return (
            tuple(done - now_ns for done in self.done_ns),
            tuple(None if free is None else free - now_ns for free in used),
        )

    def _slot(self, number: int) -> int:
        return number % len(self.transfers) % self.num_slots


def steady_step_ns(visits: Sequence[Visit], num_slots: int) -> int:
    """Return the time of one step once the pipeline is steady, in nanoseconds.

    Args:
        visits: One step in execution order.
        num_slots: Slots of each device that streams.

    Returns:
        The time of every further step; the longest of the last ones if they keep alternating.
    """
    ends = step_ends_ns(visits, num_slots, MAX_STEPS)
    if len(ends) < MAX_STEPS:
        return ends[-1] - ends[-2]
    # A lead that the first steps have built up may last longer than we look, but not for ever.
    loads: Counter[str] = Counter()
    for visit in visits:
        loads[visit.link] += visit.transfer_ns or 0
    return max(*loads.values(), *(later - earlier for earlier, later in pairwise(ends[-5:])))


def first_step_ns(visits: Sequence[Visit], num_slots: int) -> int:
    """Return the time of the first step, which begins with empty slots, in nanoseconds."""
    return step_ends_ns(visits, num_slots, 1)[0]


def step_ends_ns(visits: Sequence[Visit], num_slots: int, num_steps: int) -> list[int]:
    """Return when each step ends, in nanoseconds from the start; stops early once steady.

    Args:
        visits: One step in execution order.
        num_slots: Slots of each device that streams.
        num_steps: Steps at most.

    Returns:
        Ends; where they are fewer than `num_steps`, every further step takes as long as the last one.
    """
    rings: dict[str, _Ring] = {}
    for visit in visits:
        if visit.transfer_ns is not None:
            rings.setdefault(visit.device, _Ring([], num_slots))
            rings[visit.device].transfers.append((visit.transfer_ns, visit.link))
    link_free_ns: dict[str, int] = {}
    state: object = None
    now = 0
    ends: list[int] = []
    for _ in range(num_steps):
        for visit in visits:
            now += visit.hop_ns
            ring = rings.get(visit.device) if visit.transfer_ns is not None else None
            if ring is None:
                now += visit.compute_ns
                continue
            _issue_until(rings, link_free_ns, ring)
            now = max(now, ring.done_ns[0]) + visit.compute_ns
            ring.release(now)
        ends.append(now)
        before, state = state, _state(rings, link_free_ns, now)
        if state == before:
            break
    return ends


def _issue_until(rings: dict[str, _Ring], link_free_ns: dict[str, int], wanted: _Ring) -> None:
    """Start transfers, earliest possible first, until the next visit of `wanted` has its own."""
    while not wanted.done_ns:
        ready = [
            (ring.next_ready_ns(), name) for name, ring in rings.items() if ring.next_ready_ns() is not None
        ]
        _, name = min((start, name) for start, name in ready if start is not None)
        ring = rings[name]
        link = ring.link()
        link_free_ns[link] = ring.issue(link_free_ns.get(link, 0))


def _state(rings: dict[str, _Ring], link_free_ns: dict[str, int], now_ns: int) -> object:
    """Return all that the next step depends on: two steps that end alike are followed by the same steps."""
    return (
        [ring.state(now_ns) for ring in rings.values()],
        {link: free_ns - now_ns for link, free_ns in link_free_ns.items()},
    )
