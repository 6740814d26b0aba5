"""The prefetch pipeline, event by event: what a step takes with the plan's slots and order.

An upper bound for the cost model: the schedule that is simulated is one that the executor follows. Integers
only. Per device one ring; transfers over one link are served one at a time in the order in which they could
start.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

STEADY_STEPS = 3
"""Steps in a row that take the same time before the pipeline counts as steady."""

MAX_STEPS = 64
"""Steps simulated at most until it is."""


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
        self.done_ns: list[int] = []

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

    def release(self, number: int, now_ns: int) -> None:
        """Free the slot of visit `number`, whose block has computed."""
        self.slot_free_ns[self._slot(number)] = now_ns

    def _slot(self, number: int) -> int:
        return number % len(self.transfers) % self.num_slots


def steady_step_ns(visits: Sequence[Visit], num_slots: int) -> int:
    """Return the time of one step once the pipeline is steady, in nanoseconds.

    Args:
        visits: One step in execution order.
        num_slots: Slots of each device that streams.

    Returns:
        The time that several steps in a row take; the longest of the last ones if they keep alternating.
    """
    ends = step_ends_ns(visits, num_slots, MAX_STEPS)
    return max(later - earlier for earlier, later in pairwise(ends[-STEADY_STEPS - 1 :]))


def first_step_ns(visits: Sequence[Visit], num_slots: int) -> int:
    """Return the time of the first step, which begins with empty slots, in nanoseconds."""
    return step_ends_ns(visits, num_slots, 1)[0]


def step_ends_ns(visits: Sequence[Visit], num_slots: int, num_steps: int) -> list[int]:
    """Return when each step ends, in nanoseconds from the start; stops early once steady.

    Args:
        visits: One step in execution order.
        num_slots: Slots of each device that streams.
        num_steps: Steps at most.
    """
    rings: dict[str, _Ring] = {}
    for visit in visits:
        if visit.transfer_ns is not None:
            rings.setdefault(visit.device, _Ring([], num_slots))
            rings[visit.device].transfers.append((visit.transfer_ns, visit.link))
    numbers = dict.fromkeys(rings, 0)
    link_free_ns: dict[str, int] = {}
    now = 0
    ends: list[int] = []
    for _ in range(num_steps):
        for visit in visits:
            now += visit.hop_ns
            ring = rings.get(visit.device) if visit.transfer_ns is not None else None
            if ring is None:
                now += visit.compute_ns
                continue
            number = numbers[visit.device]
            _issue_until(rings, link_free_ns, ring, number)
            now = max(now, ring.done_ns[number]) + visit.compute_ns
            ring.release(number, now)
            numbers[visit.device] += 1
        ends.append(now)
        if _is_steady(ends):
            break
    return ends


def _issue_until(rings: dict[str, _Ring], link_free_ns: dict[str, int], wanted: _Ring, number: int) -> None:
    """Start transfers, earliest possible first, until visit `number` of `wanted` has its own."""
    while wanted.issued <= number:
        ready = [
            (ring.next_ready_ns(), name) for name, ring in rings.items() if ring.next_ready_ns() is not None
        ]
        _, name = min((start, name) for start, name in ready if start is not None)
        ring = rings[name]
        link = ring.link()
        link_free_ns[link] = ring.issue(link_free_ns.get(link, 0))


def _is_steady(ends: list[int]) -> bool:
    steps = {later - earlier for earlier, later in pairwise(ends[-STEADY_STEPS - 1 :])}
    return len(ends) > STEADY_STEPS and len(steps) == 1
