"""Which block has which choice, where transfers and visits differ much: as a list schedule has them.

Even spacing is best where visits are alike. Where some take as long as several transfers, each has to lie
where it hides them: so the courier is followed block by block, and what is there is visited before what is
not. Only counts are given; the simulator says what the placement takes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.modes import Counts
from bayplan.planner.solve.split import split_visit
from bayplan.planner.solve.task import Task


class _Visit(msgspec.Struct, frozen=True, kw_only=True):
    """A choice that is to be given to one of the blocks of a kind."""

    choice: Choice
    duration_ns: int
    transfer_ns: int
    """Of its weights, before it."""
    fetch_ns: int
    """Of experts, within it."""


class _Courier:
    """When what a device needs next is there, roughly: fetches delay it, others' transfers do not."""

    def __init__(self, num_slots: int, num_early: int) -> None:
        self._consumed: deque[int] = deque([0] * num_slots, maxlen=num_slots)
        self._left_early = num_early
        self._free_ns = 0
        self.now_ns = 0

    def arrivals_ns(self, visits: Iterable[_Visit]) -> list[int]:
        """Return when the next ones are there, as many as there are slots, counted from now."""
        free_ns, found = self._free_ns, list[int]()
        for number, (visit, consumed_ns) in enumerate(zip(visits, self._consumed, strict=False)):
            if number >= self._left_early:
                free_ns = max(free_ns, consumed_ns) + visit.transfer_ns
            found.append(free_ns - self.now_ns)
        return found

    def go_to(self, visit: _Visit) -> None:
        """Let a visit begin as soon as it can, and end."""
        if visit.choice.streams:
            (wait_ns,) = self.arrivals_ns([visit])
            self._free_ns = max(self._free_ns, self.now_ns + wait_ns)
            self.now_ns += max(0, wait_ns) + visit.duration_ns
            self._left_early = max(0, self._left_early - 1)
            self._consumed.append(self.now_ns)
        else:
            self.now_ns += visit.duration_ns
            self._free_ns += visit.fetch_ns


def interleaved(
    task: Task, counts: Counts, kinds: Sequence[int], choices: Sequence[Choice], *, starts_full: bool
) -> Answer:
    """Return the placement in which every visit comes when it hides the most.

    Args:
        task: The problem.
        counts: How many blocks of each kind each device has in each mode.
        kinds: Kind of each block.
        choices: A placement with these counts, for the order of what streams.
        starts_full: Whether the slots are full when a device's window opens.
    """
    chosen: list[Choice] = []
    for device, stop in enumerate(counts.cuts):
        start, num_slots = len(chosen), counts.num_slots[device]
        streamed: dict[int, deque[_Visit]] = {}
        others: dict[int, list[_Visit]] = {}
        for index in range(start, stop):
            visit = _visit(task, index, choices[index])
            if visit.choice.streams:
                streamed.setdefault(kinds[index], deque()).append(visit)
            else:
                others.setdefault(kinds[index], []).append(visit)
        courier = _Courier(num_slots, num_slots if starts_full else 0)
        for kind in kinds[start:stop]:
            visit = _next(courier, streamed.get(kind, deque()), others.get(kind, []))
            courier.go_to(visit)
            chosen.append(visit.choice)
    return Answer(choices=tuple(chosen), num_slots=counts.num_slots)


def _next(courier: _Courier, streamed: deque[_Visit], others: list[_Visit]) -> _Visit:
    """Take what the next block of a kind is to be."""
    arrivals_ns = courier.arrivals_ns(streamed)
    if streamed and (not others or arrivals_ns[0] <= 0):
        return streamed.popleft()
    # The longest that does not leave the courier without a free slot; of a kind that does not stream, any.
    busy_ns = arrivals_ns[-1] if streamed else math.inf
    fitting = [visit for visit in others if visit.duration_ns <= busy_ns]
    if fitting:
        found = max(fitting, key=lambda visit: visit.duration_ns)
    else:
        found = min(others, key=lambda visit: visit.duration_ns)
        slower = sum(visit.transfer_ns >= found.duration_ns for visit in streamed)
        if slower >= len(others):  # better ones to hide behind it are to come
            return streamed.popleft()
    others.remove(found)
    return found


def _visit(task: Task, index: int, choice: Choice) -> _Visit:
    duration_ns, transfer_ns, fetch_ns = task.visit_ns(index, choice), 0, 0
    if choice.experts is not None:
        split = split_visit(task, index, choice.form, choice.device, choice.experts, task.phase)
        fetch_ns = 0 if split.fetch is None else split.fetch.duration_ns
        duration_ns = split.dense_ns + max(fetch_ns, split.experts_ns)
    if choice.streams:
        found = task.transfer_ns(index, choice.form, choice.device, choice.residency)
        assert found is not None, "what streams has a way"
        transfer_ns = found
    return _Visit(choice=choice, duration_ns=duration_ns, transfer_ns=transfer_ns, fetch_ns=fetch_ns)
