"""Whether anything fits, in exact integers and without regard to time: the leanest placement there is.

A device needs the least for a stretch of blocks when it streams all that it can through one slot, and keeps
experts apart in the smallest caches. What a stretch needs only falls when blocks are taken off it, so it is
enough to know how far each device reaches. Host memory that several share is not looked at here; the caller
holds the answer against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

import msgspec

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.chain import peak_bytes
from bayplan.planner.solve.experts import ExpertsResidency, SplitExperts, in_flight_bytes, slot_bytes
from bayplan.planner.solve.split import dense_bytes, split_residencies
from bayplan.planner.solve.task import Task
from bayplan.schemas.types import Residency

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Needs = NDArray[np.int64]
    """Bytes by room for what is on its way, and level of activations."""

_IMPOSSIBLE = 2**60
"""More bytes than any budget; small enough that a few sums of it stay within 64 bits."""


class _Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks from `start` on: those before any place up to `reach` fit the device."""

    device: int
    start: int
    reach: int
    before: _Stretch | None
    """Where the blocks before `start` are; they may reach farther than that."""


def leanest_answer(task: Task, *, may_wait: bool = True) -> Answer | None:
    """Return a placement that fits every device; None: none exists.

    Args:
        task: Budgets of devices hold; host memory that devices and waiting weights share is not looked at.
        may_wait: Whether weights may wait in host memory; if not, what streams comes from disks.
    """
    answer = _leanest(task, may_wait=may_wait, copies=True)
    if answer is not None or not task.may_split_copied:
        return answer
    # With experts apart anywhere, those that stay with their block are not copied either.
    without = _leanest(task, may_wait=may_wait, copies=False)
    return without if without is not None and without.splits_experts else None


def _leanest(task: Task, *, may_wait: bool, copies: bool) -> Answer | None:
    end = len(task.chain)
    owners = {tie.positions[0] for tie in task.chain.ties}
    found: list[_Stretch] = []
    for device in range(len(task.machine.devices)):
        room = Room(task, device, may_wait=may_wait, copies=copies)
        own: list[_Stretch] = []
        for start, before in _starts(task, found, owners, device):
            reach = room.reach(start)
            if reach > start:
                own.append(_Stretch(device=device, start=start, reach=reach, before=before))
            if reach == end and task.way_back_ns(device) is not None:
                return _answer(task, own[-1], may_wait=may_wait, copies=copies)
        found += own
    return None


def _starts(
    task: Task, found: list[_Stretch], owners: set[int], device: int
) -> Iterator[tuple[int, _Stretch | None]]:
    """Yield where a device's blocks may begin so that nothing is lost, each with what comes before.

    The later the better, but a storage that others are tied to may be better off beside them.
    """
    seen: set[int] = {0}
    yield 0, None
    for before in found:
        if task.machine.hop_ns(before.device, device, 0) is None:
            continue
        inside = {owner for owner in owners if before.start < owner < before.reach}
        # Who reaches the end has no way back: a device that has one takes the last block.
        latest = {min(before.reach, len(task.chain) - 1)} - {before.start}
        for start in sorted(inside | latest, reverse=True):
            if start not in seen:
                seen.add(start)
                yield start, before


class Room:
    """What blocks need on one device, in each of the ways that make sense."""

    def __init__(self, task: Task, device: int, *, may_wait: bool, copies: bool = True) -> None:
        """Look up what every block needs on `device`; see `leanest_answer`."""
        import numpy as np

        self._task = task
        self._device = device
        self._may_wait = may_wait
        self._copies = copies
        chain = task.chain
        self._ways = [tuple(self.ways(index)) for index in range(len(chain))]
        every = [way for own in self._ways for way in own]
        slots = sorted({0, *(way.slot_bytes for way in every)})
        flights = sorted({0, *(way.flight_bytes for way in every)})
        self._rooms = list(product(slots, flights))
        self._levels = sorted({way.level for way in every})
        activations = [chain.scratch_bytes + chain.activation_bytes(level) for level in self._levels]
        self._empty: Needs = np.array(
            [[slot + flight + own for own in activations] for slot, flight in self._rooms], dtype=np.int64
        )
        known: dict[tuple[Way, ...], Needs] = {}
        for own in self._ways:
            if own not in known:
                least = [[_least(own, room, level)[0] for level in self._levels] for room in self._rooms]
                known[own] = np.array(least, dtype=np.int64)
        self._needs = [known[own] for own in self._ways]

    def reach(self, start: int) -> int:
        """Return behind which block the budget ends if the device's blocks begin at `start`."""
        return max((stop for stop, _ in self._totals(start)), default=start)

    def choices(self, start: int, stop: int) -> list[Choice]:
        """Return the leanest way to have these blocks, which fit."""
        import numpy as np

        total = next(total for place, total in self._totals(start) if place == stop)
        row, column = np.unravel_index(int(np.argmin(total)), total.shape)
        room, level = self._rooms[int(row)], self._levels[int(column)]
        return [_least(self._ways[index], room, level)[1] for index in range(start, stop)]

    def _totals(self, start: int) -> Iterator[tuple[int, Needs]]:
        """Yield behind each block what all of them need, as long as that is within the budget."""
        import numpy as np

        task = self._task
        budget = task.machine.budgets[self._device]
        total = self._empty
        if not total.size:
            return
        for index in range(start, len(task.chain)):
            always = task.chain.costs[index].kv_bytes + task.chain.replica_bytes(start, index)
            total = np.minimum(total + self._needs[index] + always, _IMPOSSIBLE)
            if int(total.min()) > budget:
                return
            yield index + 1, total

    def ways(self, index: int) -> Iterator[Way]:
        """Yield how the block at `index` can be had on the device."""
        task, device = self._task, self._device
        cost = task.chain.costs[index]
        tiers = (Residency.RESIDENT, Residency.STREAM_DISK, *((Residency.STREAM_HOST,) * self._may_wait))
        for number, form in enumerate(cost.forms):
            level = peak_bytes(cost, form, copies=self._copies)
            for residency in tiers:
                choice = Choice(device=device, residency=residency, form=number)
                if task.may(index, choice):
                    streams = choice.streams
                    yield Way(
                        choice=choice,
                        num_bytes=form.buffer_bytes + (0 if streams else form.parameter_bytes),
                        slot_bytes=form.parameter_bytes if streams else 0,
                        level=level,
                    )
            if task.may(index, Choice(device=device, form=number)):
                yield from self._apart(index, number)

    def _apart(self, index: int, number: int) -> Iterator[Way]:
        """Yield how the block at `index` can be had with its experts apart, in caches as small as can be."""
        task, device, cost = self._task, self._device, self._task.chain.costs[index]
        experts, form = cost.experts, cost.forms[number]
        for residency in split_residencies(task, index, device):
            if experts is None or (residency is not ExpertsResidency.CACHE_DISK and not self._may_wait):
                continue
            num_bytes = form.buffer_bytes + dense_bytes(form, experts)
            slots = flight = 0
            if residency is not ExpertsResidency.COMPUTE_HOST:
                slots = experts.per_token
                num_bytes += slots * slot_bytes(form.unit_bytes)
                flight = in_flight_bytes(form.unit_bytes, experts.per_token)
            split = SplitExperts(residency=residency, slots=slots)
            yield Way(
                choice=Choice(device=device, form=number, experts=split),
                num_bytes=num_bytes,
                flight_bytes=flight,
                level=peak_bytes(cost, form, copies=False),
            )


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way to have a block."""

    choice: Choice
    num_bytes: int
    """Without cache, slot and what is on its way."""
    slot_bytes: int = 0
    flight_bytes: int = 0
    """Of experts, on their way."""
    level: int
    """Activations that it takes."""


def _least(ways: tuple[Way, ...], room: tuple[int, int], level: int) -> tuple[int, Choice]:
    """Return the fewest bytes of a block with this room for slots and experts, activations up to `level`."""
    best = _IMPOSSIBLE, Choice(device=0)
    for way in ways:
        has_room = way.slot_bytes <= room[0] and way.flight_bytes <= room[1] and way.level <= level
        if has_room and way.num_bytes < best[0]:
            best = way.num_bytes, way.choice
    return best


def _answer(task: Task, last: _Stretch, *, may_wait: bool, copies: bool) -> Answer:
    choices: list[Choice] = []
    stop, stretch = len(task.chain), last
    while True:
        room = Room(task, stretch.device, may_wait=may_wait, copies=copies)
        choices[:0] = room.choices(stretch.start, stop)
        if stretch.before is None:
            break
        stop, stretch = stretch.start, stretch.before
    return Answer(choices=tuple(choices), num_slots=(1,) * len(task.machine.devices))
