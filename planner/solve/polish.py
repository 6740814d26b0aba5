"""Small changes to a placement as long as the simulator says that they gain: a descent in exact integers.

The program of `program.py` leaves open which of equal blocks stream and knows the pipeline only by
inequalities. Ends at a placement that no single change improves, or after a number of simulations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.deadline import Deadline
from bayplan.planner.solve.ledger import shortages
from bayplan.planner.solve.modes import SLOT_COUNTS
from bayplan.planner.solve.split import split_residencies
from bayplan.planner.solve.task import Task
from bayplan.planner.solve.timeline import step_ns

Rank = tuple[int, ...]


class Polisher:
    """Improves placements of one task within a number of simulations."""

    def __init__(
        self,
        task: Task,
        max_simulations: int,
        time_ns: Callable[[Task, Answer], int | None] = step_ns,
        deadline: Deadline | None = None,
        *,
        rounds_least: bool = False,
    ) -> None:
        """Prepare it.

        Args:
            task: The problem.
            max_simulations: Placements simulated at most.
            time_ns: Of a placement; None: something finds no way.
            deadline: When to end.
            rounds_least: Whether rounding fewer weights comes before time.
        """
        self._task = task
        self._rounds_least = rounds_least
        self._left = max_simulations
        self._time_ns = time_ns
        self._deadline = deadline or Deadline()
        self._known: dict[Answer, Rank | None] = {}

    def rank(self, answer: Answer) -> Rank | None:
        """Return what makes one placement better than another, smaller is better; None: it does not work.

        Time, then rounded weights, or the other way round; then bytes that are brought in, then slots.
        """
        if answer in self._known:
            return self._known[answer]
        self._left -= 1
        time_ns = None if shortages(self._task, answer) else self._time_ns(self._task, answer)
        rank: Rank | None = None
        if time_ns is not None:
            rounded, *rest = self._secondary(answer)
            rank = (rounded, time_ns, *rest) if self._rounds_least else (time_ns, rounded, *rest)
        self._known[answer] = rank
        return rank

    def step_ns(self, answer: Answer) -> int:
        """Return the time of a placement that works, in nanoseconds."""
        rank = self.rank(answer)
        assert rank is not None, "it works"
        return rank[self._rounds_least]

    def allow(self, max_simulations: int) -> None:
        """Let so many placements be simulated at most from here on."""
        self._left = max_simulations

    def best(self, answers: Iterable[Answer]) -> Answer | None:
        """Return the best of `answers` that works; None: none does."""
        ranked = [(rank, number, one) for number, one in enumerate(answers) if (rank := self.rank(one))]
        return min(ranked)[2] if ranked else None

    def improved(self, answer: Answer, *, good_enough_ns: int) -> Answer:
        """Return a placement at least as good as `answer`, which works.

        Args:
            answer: Where to begin.
            good_enough_ns: Time at which nothing can be gained any more.
        """
        # First with the next block of the same size, then with any on the device: there are many of those.
        for reach in (1, len(answer.choices)):
            is_better = True
            while is_better:
                is_better = False
                for index in range(-1, len(answer.choices)):
                    found = self._better(answer, self._changed(answer, index, reach), good_enough_ns)
                    if found is not None:
                        answer, is_better = found, True
        return answer

    def _better(self, answer: Answer, changed: Iterable[Answer], good_enough_ns: int) -> Answer | None:
        """Return the first of `changed` that is better than `answer`; None: none, or the search is to end."""
        best_rank = self.rank(answer)
        assert best_rank is not None, "only a placement that works can be improved"
        for other in changed:
            if (
                self._left <= 0
                or best_rank[self._rounds_least] <= good_enough_ns
                or self._deadline.must_end()
            ):
                return None
            rank = self.rank(other)
            if rank is not None and rank < best_rank:
                return other
        return None

    def _changed(self, answer: Answer, index: int, reach: int) -> Iterator[Answer]:
        """Yield placements that differ by one change about the block at `index`; -1: in the slots."""
        if index < 0:
            yield from self._slots_changed(answer)
            return
        yield from self._moved(answer, index, reach)
        yield from self._toggled(answer, index)
        if index:
            yield from self._cut_moved(answer, index)

    def _secondary(self, answer: Answer) -> tuple[int, int, int]:
        quantized = streamed = 0
        for index, choice in enumerate(answer.choices):
            form = self._task.chain.costs[index].forms[choice.form]
            quantized += form.quantized_bytes
            streamed += form.parameter_bytes if choice.streams else 0
        return quantized, streamed, sum(answer.num_slots)

    def _moved(self, answer: Answer, index: int, reach: int) -> Iterator[Answer]:
        """Yield placements in which a block changes places with one of its size that stays, nearest first."""
        choices, choice = answer.choices, answer.choices[index]
        if not choice.streams and choice.experts is None:
            return
        size = self._task.form(index, answer).parameter_bytes
        for step in (-1, 1):
            other, left = index + step, reach
            while left and 0 <= other < len(choices) and choices[other].device == choice.device:
                if self._task.form(other, answer).parameter_bytes == size:
                    left -= 1
                    theirs = choices[other]
                    if theirs != choice and self._task.may(other, choice) and self._task.may(index, theirs):
                        yield _with(answer, {index: theirs, other: choice})
                other += step

    def _slots_changed(self, answer: Answer) -> Iterator[Answer]:
        for device, own in enumerate(answer.num_slots):
            if answer.streamed_on(device):
                for number in SLOT_COUNTS:
                    if number != own:
                        slots = (*answer.num_slots[:device], number, *answer.num_slots[device + 1 :])
                        yield msgspec.structs.replace(answer, num_slots=slots)

    def _toggled(self, answer: Answer, index: int) -> Iterator[Answer]:
        """Yield placements in which one block stays, or streams, or from elsewhere, or has another form."""
        choice, constraints = answer.choices[index], self._task.constraints
        forms = constraints.forms(self._task.chain, index)
        if len(forms) == 1 and not answer.streamed_on(choice.device):
            return
        for residency in constraints.residencies(self._task.chain, index):
            for form in forms:
                other = Choice(device=choice.device, residency=residency, form=form)
                if other != choice and self._task.may(index, other):
                    yield _with(answer, {index: other})

    def _cut_moved(self, answer: Answer, index: int) -> Iterator[Answer]:
        """Yield placements in which a block beside a cut before `index` changes to the other side of it."""
        before, after = answer.choices[index - 1], answer.choices[index]
        if before.device == after.device:
            return
        for place, device in ((index, before.device), (index - 1, after.device)):
            moved = msgspec.structs.replace(answer.choices[place], device=device)
            can_split = moved.experts is None or moved.experts.residency in split_residencies(
                self._task, place, device
            )
            if can_split and self._task.may(place, moved):
                yield _with(answer, {place: moved})
            for residency in self._task.constraints.residencies(self._task.chain, place):
                own = Choice(device=device, residency=residency, form=moved.form)
                if own != moved and self._task.may(place, own):
                    yield _with(answer, {place: own})


def _with(answer: Answer, changed: dict[int, Choice]) -> Answer:
    choices = list(answer.choices)
    for index, choice in changed.items():
        choices[index] = choice
    return msgspec.structs.replace(answer, choices=tuple(choices))
