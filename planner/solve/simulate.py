"""The prefetch pipeline, event by event: what a step takes with the plan's slots and order.

An upper bound for the cost model: the schedule that is simulated is one that the executor follows. Integers
only. Per device one ring of slots and one courier, which brings one block after the other, each as soon as
its slot is free. What couriers share, a disk or a switch, serves one at a time: of those that have something
to bring, the one whose block runs next, at once; what was on its way before waits and goes on afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

MAX_STEPS = 64
"""Steps simulated at most until one leaves everything as the one before it did."""


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Bringing one block's weights into a slot."""

    duration_ns: int
    resources: tuple[str, ...] = ()
    """What it occupies besides the device's own courier."""


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """One block's part of a step."""

    device: int
    compute_ns: int
    hop_ns: int = 0
    """Time before it for activations to arrive from the device before."""
    transfer: Transfer | None = None
    """None: resident."""
    fetch: Transfer | None = None
    """Routed experts that are missing: known when `compute_ns` is over, brought in while those that are there
    compute."""
    fetched_compute_ns: int = 0
    """Computing that the fetch overlaps."""


class _Ring:
    """Transfers of one device: block number k of the stream order uses slot k modulo `num_slots`."""

    def __init__(self, num_slots: int) -> None:
        self.transfers: list[Transfer] = []
        self.places: list[int] = []
        """Of their visits in the step."""
        self._num_slots = num_slots
        self._free = [True] * num_slots
        self._next = 0
        """The transfer that is under way, or the next one."""
        self._round = 0
        self._visited = 0
        self._left_ns: int | None = None
        """Of the transfer that is under way; None: there is none."""
        self.num_there = 0
        """Blocks that have arrived and not been visited yet."""

    def add(self, place: int, transfer: Transfer) -> None:
        """Add a block at the end of the order."""
        self.places.append(place)
        self.transfers.append(transfer)

    @property
    def urgency(self) -> tuple[int, int]:
        """When the block of the next transfer runs: step and place in it."""
        return self._round, self.places[self._next]

    @property
    def resources(self) -> tuple[str, ...]:
        """What the next transfer takes besides the courier."""
        return self.transfers[self._next].resources

    def begin(self) -> bool:
        """Take the next block's slot if it is free, and return whether there is something to bring."""
        if self._left_ns is None:
            slot = self._next % self._num_slots
            if not self._free[slot]:
                return False
            self._free[slot] = False
            self._left_ns = self.transfers[self._next].duration_ns
        return True

    def left_ns(self) -> int:
        """Return how long what is under way still takes."""
        assert self._left_ns is not None
        return self._left_ns

    def go_on(self, duration_ns: int) -> None:
        """Spend time on what is under way."""
        assert self._left_ns is not None
        self._left_ns -= duration_ns
        if not self._left_ns:
            self._left_ns = None
            self.num_there += 1
            self._next += 1
            if self._next == len(self.transfers):
                self._next, self._round = 0, self._round + 1

    def release(self) -> None:
        """Free the slot of the block that has just computed."""
        self._free[self._visited % self._num_slots] = True
        self.num_there -= 1
        self._visited = (self._visited + 1) % len(self.transfers)

    def state(self, step: int) -> object:
        """Return all that the next steps depend on."""
        return tuple(self._free), self._next, self._round - step, self._left_ns, self.num_there


class _Links:
    """All couriers and what they share, at one time."""

    def __init__(self, script: list[tuple[int, Visit]], num_slots: Mapping[int, int]) -> None:
        self._rings: dict[int, _Ring] = {}
        for place, (_, visit) in enumerate(script):
            if visit.transfer is not None:
                ring = self._rings.setdefault(visit.device, _Ring(num_slots.get(visit.device, 1)))
                ring.add(place, visit.transfer)
        self.now_ns = 0

    def visited(self, visit: Visit) -> None:
        """Let a visit begin and end."""
        ring = self._rings.get(visit.device)
        if visit.transfer is not None and ring is not None:
            while not ring.num_there:
                self._go_on(None)
        self.wait(visit.compute_ns)
        if visit.transfer is not None and ring is not None:
            ring.release()
        if visit.fetch is not None:
            # Routed experts go first; those that are there compute meanwhile.
            end_ns = self.now_ns + max(visit.fetch.duration_ns, visit.fetched_compute_ns)
            done_ns = self.now_ns + visit.fetch.duration_ns
            while self.now_ns < done_ns:
                self._go_on(done_ns, visit.device, visit.fetch.resources)
            self.wait(end_ns - self.now_ns)

    def wait(self, duration_ns: int) -> None:
        """Let time pass."""
        end_ns = self.now_ns + duration_ns
        while self.now_ns < end_ns:
            self._go_on(end_ns)

    def state(self, step: int) -> object:
        """Return all that the next step depends on: steps that end alike are followed by the same steps."""
        return [ring.state(step) for ring in self._rings.values()]

    def _go_on(self, end_ns: int | None, device: int | None = None, resources: tuple[str, ...] = ()) -> None:
        """Go on to the next arrival, or to `end_ns` if that is earlier.

        Args:
            end_ns: None: there is an arrival in any case.
            device: Whose courier is taken; None: none is.
            resources: What else is taken.
        """
        taken = set(resources)
        running: list[_Ring] = []
        able = [ring for own, ring in self._rings.items() if own != device and ring.begin()]
        for ring in sorted(able, key=lambda one: one.urgency):
            if taken.isdisjoint(ring.resources):
                taken.update(ring.resources)
                running.append(ring)
        times = [ring.left_ns() for ring in running]
        if end_ns is not None:
            times.append(end_ns - self.now_ns)
        duration_ns = min(times)
        for ring in running:
            ring.go_on(duration_ns)
        self.now_ns += duration_ns


def steady_step_ns(visits: Sequence[Visit], num_slots: Mapping[int, int]) -> int:
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
    return max(*_loads(visits), *(later - earlier for earlier, later in pairwise(ends[-5:])))


def first_step_ns(visits: Sequence[Visit], num_slots: Mapping[int, int]) -> int:
    """Return the time of the first step, which begins with empty slots, in nanoseconds."""
    return step_ends_ns(visits, num_slots, 1)[0]


def step_ends_ns(visits: Sequence[Visit], num_slots: Mapping[int, int], num_steps: int) -> list[int]:
    """Return when each step ends, in nanoseconds from the start; stops early once steady.

    Args:
        visits: One step in execution order.
        num_slots: Slots of each device that streams.
        num_steps: Steps at most.

    Returns:
        Ends; where they are fewer than `num_steps`, every further step takes as long as the last one.
    """
    script, tail_ns = _script(visits)
    links = _Links(script, num_slots)
    state: object = None
    ends: list[int] = []
    for step in range(num_steps):
        for lead_ns, visit in script:
            links.wait(lead_ns)
            links.visited(visit)
        links.wait(tail_ns)
        ends.append(links.now_ns)
        before, state = state, links.state(step)
        if state == before:
            break
    return ends


def _script(visits: Sequence[Visit]) -> tuple[list[tuple[int, Visit]], int]:
    """Return visits that bring something in, each with the time since the one before, and the rest's time.

    Resident visits only take time, so they are summed up beforehand.
    """
    script: list[tuple[int, Visit]] = []
    lead_ns = 0
    for visit in visits:
        lead_ns += visit.hop_ns
        if visit.transfer is None and visit.fetch is None:
            lead_ns += visit.compute_ns
        else:
            script.append((lead_ns, visit))
            lead_ns = 0
    return script, lead_ns


def _loads(visits: Sequence[Visit]) -> list[int]:
    """Return how long each courier and each resource is busy in a step."""
    loads: Counter[object] = Counter()
    for visit in visits:
        for transfer in (visit.transfer, visit.fetch):
            if transfer is not None:
                for user in (visit.device, *transfer.resources):
                    loads[user] += transfer.duration_ns
    return list(loads.values())
