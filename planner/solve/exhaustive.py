"""Every placement of a small problem, as far as it may still be better than the best one known.

Closes what inequalities leave open: on few blocks the pipeline's start, end and wrap weigh much. A search in
depth, block by block; a branch ends where what is placed does not fit, or takes too long with the rest
at its fastest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.chain import peak_bytes
from bayplan.planner.solve.modes import SLOT_COUNTS
from bayplan.planner.solve.polish import Polisher
from bayplan.planner.solve.task import Task

MAX_BLOCKS = 10
"""More are left to the program and the descent."""

MAX_STEPS = 20_000
"""Branches and placements looked at; where that is not enough nothing is proven."""


class _OutOfWork(Exception):
    """The limit was reached."""


class Exhaustive:
    """One search."""

    def __init__(
        self,
        task: Task,
        polisher: Polisher,
        devices: frozenset[int],
        *,
        can_stream: bool,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self._task = task
        self._polisher = polisher
        self._can_stream = can_stream
        self._max_steps = max_steps
        self._left = max_steps
        self._must_gain = True
        self._options = [self._block_options(index, devices) for index in range(len(task.chain))]
        self._rest_ns = self._least_rest()
        self._best: tuple[tuple[int, ...], Answer] | None = None

    def best(self, known: Answer) -> tuple[Answer, bool]:
        """Return the best placement that was looked at, `known` or a better one, and whether none is faster.

        First only faster ones are looked for, of which there are few; then which of the fastest is best.
        """
        rank = self._polisher.rank(known)
        assert rank is not None, "the search begins with a placement that works"
        self._best = rank, known
        for must_gain in (True, False):
            self._must_gain, self._left = must_gain, self._max_steps
            try:
                self._extend([], 0)
            except _OutOfWork:
                return self._best[1], not must_gain
        return self._best[1], True

    def _block_options(self, index: int, devices: frozenset[int]) -> list[tuple[Choice, int]]:
        """Return what the block may have, with its time, the fastest first."""
        task, constraints = self._task, self._task.constraints
        found: list[tuple[Choice, int]] = []
        for device in sorted(devices):
            for residency in task.residencies(index, device):
                for form in constraints.forms(task.chain, index):
                    choice = Choice(device=device, residency=residency, form=form)
                    if (self._can_stream or not choice.streams) and task.may(index, choice):
                        found.append((choice, task.compute_ns(index, form, device)))
        return found

    def _least_rest(self) -> list[int]:
        rest = [0]
        for options in reversed(self._options):
            rest.append(rest[-1] + min((time_ns for _, time_ns in options), default=0))
        return rest[::-1]

    def _extend(self, chosen: list[Choice], time_ns: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise _OutOfWork
        index = len(chosen)
        assert self._best is not None
        limit_ns = self._best[0][0] - self._must_gain
        if time_ns + self._rest_ns[index] > limit_ns or not may_fit(self._task, chosen):
            return
        if any(load_ns > limit_ns for load_ns in self._loads(chosen)):
            return
        if index == len(self._task.chain):
            self._try(tuple(chosen))
            return
        for choice, own_ns in self._options[index]:
            before = chosen[-1].device if chosen else choice.device
            hop_ns = self._task.hop_ns(index, index + 1, before, choice.device)
            if choice.device >= before and hop_ns is not None:
                self._extend([*chosen, choice], time_ns + own_ns + hop_ns)

    def _loads(self, chosen: Sequence[Choice]) -> Iterable[int]:
        """Return how long each courier, disk and switch is busy in a step with what these blocks stream."""
        loads: Counter[object] = Counter()
        for index, choice in enumerate(chosen):
            feed = self._task.machine.feed(choice.device, choice.residency) if choice.streams else None
            if feed is not None:
                form = self._task.chain.costs[index].forms[choice.form]
                for user in (choice.device, *feed.resources):
                    loads[user] += feed.transfer_ns(form.parameter_bytes)
        return loads.values()

    def _try(self, choices: tuple[Choice, ...]) -> None:
        """Look at a whole placement with every number of slots."""
        for answer in with_every_slots(choices, len(self._task.machine.devices)):
            self._left -= 1
            rank = self._polisher.rank(answer)
            assert self._best is not None
            if rank is not None and rank < self._best[0]:
                self._best = rank, answer


def with_every_slots(choices: tuple[Choice, ...], num_devices: int) -> Iterator[Answer]:
    """Yield a whole placement with every number of slots on the devices that stream."""
    streaming = sorted({choice.device for choice in choices if choice.streams})
    for numbers in product(SLOT_COUNTS, repeat=len(streaming)):
        num_slots = [1] * num_devices
        for device, number in zip(streaming, numbers, strict=True):
            num_slots[device] = number
        yield Answer(choices=choices, num_slots=tuple(num_slots))


def may_fit(task: Task, chosen: Sequence[Choice]) -> bool:
    """Whether what the first blocks of a placement take in any case fits: weights that stay, cache, one slot.

    Args:
        task: The problem.
        chosen: Of the first blocks.
    """
    used: dict[int, int] = {}
    slot: dict[int, int] = {}
    activations: dict[int, int] = {}
    for index, choice in enumerate(chosen):
        cost = task.chain.costs[index]
        form = cost.forms[choice.form]
        own = form.buffer_bytes + cost.kv_bytes + (0 if choice.streams else form.parameter_bytes)
        used[choice.device] = used.get(choice.device, task.chain.scratch_bytes) + own
        if choice.streams:
            slot[choice.device] = max(slot.get(choice.device, 0), form.parameter_bytes)
        activations[choice.device] = max(activations.get(choice.device, 0), peak_bytes(cost, form))
    return all(
        num_bytes + slot.get(device, 0) + task.chain.activation_bytes(activations[device])
        <= task.machine.budgets[device]
        for device, num_bytes in used.items()
    )
