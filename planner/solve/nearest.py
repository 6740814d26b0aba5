"""Every placement of a small problem, as far as it may move less than the best one known.

Closes what the program and the descent leave open on few blocks. A search in depth, block by block, the place
that a block had first; a branch ends where it has moved too much, does not fit, or is too slow already.
"""

from __future__ import annotations

from itertools import product

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.exhaustive import MAX_STEPS, may_fit, with_every_slots
from bayplan.planner.solve.moves import Keeper
from bayplan.planner.solve.polish import Rank
from bayplan.planner.solve.task import Task


class Nearest:
    """One search."""

    def __init__(self, task: Task, keeper: Keeper) -> None:
        """Prepare it.

        Args:
            task: The problem.
            keeper: Ranks placements; knows what is to be kept, and the limits.
        """
        self._task = task
        self._keeper = keeper
        self._left = MAX_STEPS
        self._options = [self._block_options(index, then) for index, then in enumerate(keeper.before.choices)]
        self._rest_ns = [0]
        for index in reversed(range(len(task.chain))):
            times = (task.compute_ns(index, own.form, own.device) for own, _ in self._options[index])
            self._rest_ns.insert(0, self._rest_ns[0] + min(times, default=0))
        self._best: tuple[Rank, Answer] | None = None

    def fewest(self, known: Answer) -> Answer:
        """Return the placement within the limits that moves least, `known` or a better one.

        Where there are too many to look at, it is the best of those that were looked at.
        """
        rank = self._keeper.rank(known)
        assert rank is not None, "the search begins with a placement that works"
        self._best = rank, known
        self._extend([], 0, 0, 0)
        return self._best[1]

    def _block_options(self, index: int, then: Choice | None) -> list[tuple[Choice, int]]:
        """Return what the block may have with the bytes that it then moves, the fewest first."""
        task, constraints = self._task, self._task.constraints
        found: list[tuple[Choice, int]] = []
        for device, residency, form in product(
            sorted(self._keeper.limits.devices),
            constraints.residencies(task.chain, index),
            constraints.forms(task.chain, index),
        ):
            choice = Choice(device=device, residency=residency, form=form)
            if (self._keeper.limits.can_stream or not choice.streams) and task.may(index, choice):
                num_bytes = task.chain.costs[index].forms[form].num_bytes
                found.append((choice, 0 if choice == then else num_bytes))
        return sorted(found, key=lambda option: (option[0] != then, option[1]))

    def _extend(self, chosen: list[Choice], time_ns: int, num_bytes: int, num_blocks: int) -> None:
        assert self._best is not None
        self._left -= 1
        index = len(chosen)
        is_worse = not any(self._best[0][:3]) and (num_bytes, num_blocks) >= self._best[0][3:5]
        if self._left < 0 or is_worse or not may_fit(self._task, chosen):
            return
        # With several batches in flight a step is shorter than one batch's own way.
        least_ns = time_ns + self._rest_ns[index] if self._keeper.limits.num_batches == 1 else 0
        if least_ns > self._keeper.limits.time_ns:
            return
        if index == len(self._task.chain):
            self._try(tuple(chosen))
            return
        for choice, own_bytes in self._options[index]:
            last = chosen[-1].device if chosen else choice.device
            hop_ns = self._task.hop_ns(index, index + 1, last, choice.device)
            if choice.device < last or hop_ns is None:
                continue
            own_ns = hop_ns + self._task.compute_ns(index, choice.form, choice.device)
            has_moved = choice != self._keeper.before.choices[index]
            self._extend([*chosen, choice], time_ns + own_ns, num_bytes + own_bytes, num_blocks + has_moved)

    def _try(self, choices: tuple[Choice, ...]) -> None:
        """Look at a whole placement with every number of slots."""
        assert self._best is not None
        for answer in with_every_slots(choices, len(self._task.machine.devices)):
            self._left -= 1
            rank = self._keeper.rank(answer)
            if rank is not None and rank < self._best[0]:
                self._best = rank, answer
