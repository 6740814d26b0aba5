"""The best placement of devices that only hand on to each other, and a bound of every one: stage by stage.

A step is at least the sum of its devices' windows and of the ways between them, and mostly no more: what the
slots hold when a window opens was brought in while others computed. `stage_windows` knows the least window of
every stretch, `stage_program` the least sum. Windows are worked out only where the sum may depend on them:
the search begins with bounds and makes those on the best way exact, until all on it are.

What devices share, a disk, a switch, host memory, is not looked at, nor whether there is time to fill slots:
where that counts, the placement does not work or takes longer, and the sum is a bound only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.deadline import Deadline
from bayplan.planner.solve.experts import SplitExperts
from bayplan.planner.solve.modes import Counts
from bayplan.planner.solve.polish import Polisher
from bayplan.planner.solve.segments import number_kinds
from bayplan.planner.solve.spacing import arrangements
from bayplan.planner.solve.stage_program import Arrived, Doubt, StageProgram
from bayplan.planner.solve.stage_tables import Entry, StageTable, stage_tables
from bayplan.planner.solve.stage_windows import OutOfWork, WindowSearch
from bayplan.planner.solve.task import Task

MAX_STATES = 200_000
"""Work at most, in the states of windows. A count, not a time, so that the answer is the same everywhere."""

MAX_ROUNDS = 100
"""Programs at most."""

FIRST_DOUBTS = 8
"""Windows made exact after the first of them besides those on the best way; after each, twice as many."""


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    lower_bound_ns: int
    """Of every placement; of those under the limit if there is one."""
    answer: Answer | None
    """The best one whose windows are known; None: none was found."""


class StageSearch:
    """One search."""

    def __init__(
        self,
        task: Task,
        tables: Mapping[int, StageTable],
        deadline: Deadline | None = None,
        *,
        limit_ns: int | None = None,
    ) -> None:
        """Prepare it.

        Args:
            task: The problem.
            tables: Of each device that may be used.
            deadline: When to end.
            limit_ns: Placements with slower steps are of no interest; None: none are too slow.
        """
        self._task = task
        self._deadline = deadline or Deadline()
        self._tables = tables
        self._program = StageProgram(task, self._tables)
        self._windows = WindowSearch(MAX_STATES, self._deadline)
        self._is_guess = limit_ns is None
        # What is sought takes less. Without a limit a guess, doubled until there is something.
        self._below_ns = 1 + (self._least_computing_ns() * 2 if limit_ns is None else limit_ns)
        self._num_doubts = FIRST_DOUBTS
        self._best: Arrived | None = None
        """The best way of those of which every window was found."""

    @property
    def kinds(self) -> tuple[int, ...]:
        """Kind of each block: those of a kind are alike on every device."""
        return number_kinds(list(zip(*(table.kinds for table in self._tables.values()), strict=True)))

    @property
    def num_states(self) -> int:
        """How many states of windows were looked at so far: the work done."""
        return self._windows.num_states

    def best(self) -> Staged | None:
        """Return a bound of the sum of windows and ways, and the best placement; None: nothing fits."""
        lower_ns = 0
        for _ in range(MAX_ROUNDS):
            if self._deadline.must_end():
                break
            found = self._program.solve(self._below_ns)
            if found.best is not None:
                lower_ns = found.best.time_ns
                try:
                    if self._settled(found.best):
                        break
                    self._look_into(found.doubts)
                except OutOfWork:
                    break
            elif not self._is_guess:
                lower_ns = self._below_ns
                break
            elif found.is_cut:
                self._below_ns *= 2
            else:
                return None
        answer = None if self._best is None else self._answer(self._best)
        return Staged(lower_bound_ns=lower_ns, answer=answer)

    def _least_computing_ns(self) -> int:
        """Return what all blocks compute, each on the device that is fastest at it, experts beside them.

        For a guess only: the host may compute experts faster.
        """
        return sum(
            min(
                (time for table in self._tables.values() if (time := table.least_ns(index)) is not None),
                default=0,
            )
            for index in range(len(self._task.chain))
        )

    def _settled(self, best: Arrived) -> bool:
        """Work the windows of the best way out; return whether they were."""
        entries = [self._entry(stage) for stage in best.stages()]
        were_settled = all(entry.is_settled for entry in entries)
        for entry in entries:
            if not entry.is_settled and entry.least_ns is not None:
                entry.settle(self._windows, self._below_ns - (best.time_ns - entry.least_ns))
        total_ns = self._program.total_ns(best)
        if total_ns is not None and total_ns < self._below_ns:
            self._best, self._below_ns, self._is_guess = best, total_ns + 1, False
        return were_settled

    def _look_into(self, doubts: Sequence[Doubt]) -> None:
        """Work windows out that could belong to a better way, if it is known what is better."""
        if self._is_guess:
            return
        left, self._num_doubts = self._num_doubts, 2 * self._num_doubts
        for doubt in doubts:
            entry, below_ns = doubt.entry, self._below_ns - doubt.others_ns
            if left and not entry.is_settled and entry.least_ns is not None and entry.least_ns < below_ns:
                entry.settle(self._windows, below_ns)
                left -= 1

    def _entry(self, stage: Arrived) -> Entry:
        return self._tables[stage.device].entry(stage.start, stage.stop)

    def _answer(self, best: Arrived) -> Answer:
        choices: list[Choice] = []
        num_slots = [1] * len(self._task.machine.devices)
        for stage in best.stages():
            window = self._entry(stage).window
            assert window is not None, "every window of the best way was found"
            num_slots[stage.device] = max(1, window.num_slots)
            for index, way in enumerate(window.ways, stage.start):
                (form,) = self._task.constraints.forms(self._task.chain, index)
                choice = Choice(device=stage.device, form=form)
                if isinstance(way, SplitExperts):
                    choices.append(msgspec.structs.replace(choice, experts=way))
                else:
                    choices.append(msgspec.structs.replace(choice, residency=way))
        return Answer(choices=tuple(choices), num_slots=tuple(num_slots))


def best_stages(
    task: Task,
    only: frozenset[int],
    polisher: Polisher,
    deadline: Deadline | None = None,
    *,
    limit_ns: int | None = None,
) -> Staged | None:
    """Return the bound by stages, and the best placement with the counts that attain it; None: nothing fits.

    Of equally fast ones, one in which what streams is spaced evenly is the easiest to review. Where blocks
    have several forms, or experts that are not alike, nothing is known.

    Args:
        task: The problem.
        only: Devices that may be used.
        polisher: Says which placement is better, and whether it works at all.
        deadline: When to end.
        limit_ns: Placements with slower steps are of no interest; None: none are too slow.
    """
    tables = stage_tables(task, only)
    if tables is None:
        return Staged(lower_bound_ns=0, answer=None)
    search = StageSearch(task, tables, deadline, limit_ns=limit_ns)
    staged = search.best()
    if staged is None or staged.answer is None:
        return staged
    counts = _counts(task, staged.answer, search.kinds)
    best = polisher.best([*arrangements(task, counts, search.kinds), staged.answer])
    return msgspec.structs.replace(staged, answer=best)


def _counts(task: Task, answer: Answer, kinds: Sequence[int]) -> Counts:
    """Return how many blocks of each kind each device has in each way."""
    modes: list[tuple[tuple[int, Choice, int], ...]] = []
    cuts: list[int] = []
    for device in range(len(task.machine.devices)):
        blocks = answer.blocks_on(device)
        own = Counter((kinds[index], answer.choices[index]) for index in blocks)
        modes.append(tuple((kind, choice, number) for (kind, choice), number in own.items()))
        cuts.append(blocks[-1] + 1 if blocks else max(cuts, default=0))
    return Counts(cuts=tuple(cuts), modes=tuple(modes), num_slots=answer.num_slots, bound=0.0)
