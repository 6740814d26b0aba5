"""The prefetch pipeline played once more, in integer nanoseconds, from one arrival to the next.

One courier per device brings the blocks that stream there, in order, each into its slot: block number k of a
step's order uses slot k modulo their number. A courier goes on to a block once its slot has been given back.
What couriers share works for one of them at a time: for the one whose block runs first, at once, and later on
with what it has left. The model itself runs one call after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

MAX_STEPS = 64
"""Steps that are played at most to find out what a steady one takes."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Bringing weights to a device."""

    duration_ns: int
    shared: tuple[str, ...]
    """What can serve no other load meanwhile."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One block's part of a step."""

    device: int
    """Place in chain order."""
    handover_ns: int
    """Until the activations have come from the device before."""
    compute_ns: int
    load: Load | None
    """None: resident."""
    fetch: Load | None = None
    """Experts that turn out to be missing when `compute_ns` is over. They go before everything else."""
    fetch_compute_ns: int = 0
    """Of the other experts' products meanwhile."""


class _Courier:
    """Brings in what streams to one device; loads are numbered through all steps."""

    def __init__(self, num_slots: int) -> None:
        self.loads: list[Load] = []
        self.places: list[int] = []
        """Of their calls in a step."""
        self.num_slots = num_slots
        self.num_arrived = 0
        self.num_used = 0
        self.left_ns: int | None = None
        """Of load number `num_arrived`; None: its slot is not taken yet."""

    @property
    def load(self) -> Load:
        """The load that is under way or comes next."""
        return self.loads[self.num_arrived % len(self.loads)]

    @property
    def turn(self) -> tuple[int, int]:
        """When its block runs: number of the step, place in it."""
        step, number = divmod(self.num_arrived, len(self.loads))
        return step, self.places[number]

    def is_under_way(self) -> bool:
        """Return whether there is something to bring, the slot for which is taken here if it can be."""
        if self.left_ns is None and self._slot(self.num_arrived) not in map(
            self._slot, range(self.num_used, self.num_arrived)
        ):
            self.left_ns = self.load.duration_ns
        return self.left_ns is not None

    def bring(self, duration_ns: int) -> None:
        """Spend time on the load that is under way."""
        assert self.left_ns is not None, "only what is under way is brought"
        self.left_ns -= duration_ns
        if self.left_ns == 0:
            self.left_ns = None
            self.num_arrived += 1

    def _slot(self, number: int) -> int:
        return number % len(self.loads) % self.num_slots


class Pipeline:
    """One step, to be played again and again from empty slots.

    Args:
        calls: In execution order.
        num_slots: Per device that streams.
    """

    def __init__(self, calls: Sequence[Call], num_slots: Mapping[int, int]) -> None:
        self._calls = calls
        self._couriers: dict[int, _Courier] = {}
        for place, call in enumerate(calls):
            if call.load is not None:
                courier = self._couriers.setdefault(call.device, _Courier(num_slots[call.device]))
                courier.loads.append(call.load)
                courier.places.append(place)
        self._now_ns = 0
        self._due_ns = 0
        """Until when the model is busy; couriers have worked until `_now_ns`."""

    def play_step(self) -> int:
        """Play one step and return when it ends, in nanoseconds from the start."""
        for call in self._calls:
            self._due_ns += call.handover_ns
            if call.load is not None:
                self._use(self._couriers[call.device], call.compute_ns)
            else:
                self._due_ns += call.compute_ns
            if call.fetch is not None:
                self._work()
                end_ns = self._due_ns + max(call.fetch.duration_ns, call.fetch_compute_ns)
                self._due_ns += call.fetch.duration_ns
                self._work(call.device, call.fetch.shared)
                self._due_ns = end_ns
        self._work()
        return self._now_ns

    def state(self, num_steps: int) -> tuple[tuple[int, int | None], ...]:
        """Return all that later steps depend on: how far couriers are ahead after so many steps."""
        return tuple(
            (courier.num_arrived - num_steps * len(courier.loads), courier.left_ns)
            for courier in self._couriers.values()
        )

    def _use(self, courier: _Courier, compute_ns: int) -> None:
        """Wait for the next block of a courier, let it compute, and give its slot back."""
        self._work()
        while courier.num_arrived == courier.num_used:
            self._to_next_arrival(None, ())
        self._due_ns = self._now_ns + compute_ns
        self._work()
        courier.num_used += 1

    def _work(self, without: int | None = None, taken: tuple[str, ...] = ()) -> None:
        """Let couriers work until the model is no longer busy.

        Args:
            without: Device whose courier cannot.
            taken: What they cannot use.
        """
        while self._now_ns < self._due_ns:
            self._to_next_arrival(without, taken, self._due_ns - self._now_ns)

    def _to_next_arrival(
        self, without: int | None, taken: tuple[str, ...], at_most_ns: int | None = None
    ) -> None:
        """Let couriers work until something arrives, or for `at_most_ns`."""
        in_use = set(taken)
        at_work: list[_Courier] = []
        under_way = [
            courier
            for device, courier in self._couriers.items()
            if device != without and courier.is_under_way()
        ]
        for courier in sorted(under_way, key=lambda one: one.turn):
            if in_use.isdisjoint(courier.load.shared):
                in_use.update(courier.load.shared)
                at_work.append(courier)
        ends = [courier.left_ns for courier in at_work if courier.left_ns is not None]
        duration_ns = min(ends if at_most_ns is None else [*ends, at_most_ns])
        for courier in at_work:
            courier.bring(duration_ns)
        self._now_ns += duration_ns
        self._due_ns = max(self._due_ns, self._now_ns)


def end_ns(calls: Sequence[Call], num_slots: Mapping[int, int], num_steps: int) -> int:
    """Return when the last of `num_steps` steps ends, in nanoseconds, the first with empty slots."""
    ends, _ = _ends(calls, num_slots, num_steps)
    if len(ends) < num_steps:
        return ends[-1] + (num_steps - len(ends)) * (ends[-1] - ends[-2])
    return ends[-1]


def steady_step_ns(calls: Sequence[Call], num_slots: Mapping[int, int]) -> int:
    """Return what every further step takes after many, in nanoseconds.

    Where steps still differ after `MAX_STEPS`, the longest of the last four, or what the busiest courier or
    shared thing needs for a step if that is more.
    """
    ends, is_steady = _ends(calls, num_slots, MAX_STEPS)
    if is_steady:
        return ends[-1] - ends[-2]
    busy_ns: Counter[int | str] = Counter()
    for call in calls:
        for load in (call.load, call.fetch):
            if load is not None:
                busy_ns[call.device] += load.duration_ns
                for name in load.shared:
                    busy_ns[name] += load.duration_ns
    last = [later - earlier for earlier, later in pairwise(ends[-5:])]
    return max(*busy_ns.values(), *last)


def _ends(calls: Sequence[Call], num_slots: Mapping[int, int], at_most: int) -> tuple[list[int], bool]:
    """Return when each step ends, and whether the last one left everything as the one before it did.

    Stops after such a step; whether the very last of `at_most` was one is not asked.
    """
    pipeline = Pipeline(calls, num_slots)
    ends: list[int] = []
    before: tuple[tuple[int, int | None], ...] | None = None
    while len(ends) < at_most:
        ends.append(pipeline.play_step())
        now = pipeline.state(len(ends))
        if now == before:
            return ends, len(ends) < at_most
        before = now
    return ends, False
