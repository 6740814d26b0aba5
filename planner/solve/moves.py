"""What a placement moves against an earlier one, and the descent to a placement that moves less.

Blocks are matched by their position in the chain. Knows no plans: where an earlier placement comes from is
`bayplan.planner.previous`'.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.deadline import Deadline
from bayplan.planner.solve.ledger import shortages
from bayplan.planner.solve.polish import Polisher, Rank
from bayplan.planner.solve.predict import load_ns
from bayplan.planner.solve.task import Task
from bayplan.planner.solve.timeline import paced_step_ns


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier placement of the same blocks."""

    choices: tuple[Choice | None, ...]
    """Per block; None: what it was then is not there any more, so it moves in any case."""
    num_slots: tuple[int, ...]
    """Per device of the machine; used where something streams."""

    def answer(self) -> Answer | None:
        """Return the placement as an answer; None: part of it is not there any more."""
        choices = [choice for choice in self.choices if choice is not None]
        if len(choices) < len(self.choices):
            return None
        return Answer(choices=tuple(choices), num_slots=self.num_slots)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a placement may take at most to count as one of the best."""

    time_ns: int
    """Of a step."""
    quantized_bytes: int | None = None
    """Of weights that are rounded; None: they do not count."""
    load_ns: int | None = None
    """None: it does not count."""
    devices: frozenset[int]
    """Those that may be used."""
    can_stream: bool
    num_batches: int = 1
    """In flight."""


def moved_blocks(answer: Answer, before: Before) -> tuple[int, ...]:
    """Return the positions of the blocks whose device, residency or form is another than before."""
    pairs = zip(answer.choices, before.choices, strict=True)
    return tuple(index for index, (now, then) in enumerate(pairs) if now != then)


def moved_bytes(task: Task, answer: Answer, before: Before) -> int:
    """Return the bytes of the blocks that `answer` moves, in the forms that it gives them."""
    return sum(task.form(index, answer).num_bytes for index in moved_blocks(answer, before))


def meets_demands(task: Task, answer: Answer, limits: Limits) -> bool:
    """Whether the user's demands, the order of devices and what `limits` say of them allow `answer`."""
    devices = [choice.device for choice in answer.choices]
    return (
        devices == sorted(devices)
        and limits.devices.issuperset(devices)
        and all(task.may(index, choice) for index, choice in enumerate(answer.choices))
        and (limits.can_stream or not any(choice.streams for choice in answer.choices))
    )


class Keeper(Polisher):
    """Changes a placement as long as it then moves fewer bytes, within limits."""

    def __init__(
        self,
        task: Task,
        before: Before,
        limits: Limits,
        max_simulations: int,
        deadline: Deadline | None = None,
    ) -> None:
        """Prepare a descent.

        Args:
            task: The problem.
            before: What is to be kept of.
            limits: What a placement may take; one beyond them is worse than any within.
            max_simulations: Placements looked at, at most.
            deadline: When to end; None: no limit.
        """
        super().__init__(task, max_simulations, deadline=deadline)
        self.before = before
        self.limits = limits

    def rank(self, answer: Answer) -> Rank | None:
        """Return what makes one placement better than another, smaller is better; None: it does not work.

        What it takes beyond the limits, three figures; then moved bytes, moved blocks and changed slots; then
        as ever.
        """
        if answer not in self._known:
            self._left -= 1
            self._known[answer] = self._new_rank(answer)
        return self._known[answer]

    def is_within(self, answer: Answer) -> bool:
        """Whether `answer` works and is within the limits."""
        rank = self.rank(answer)
        return rank is not None and not any(rank[:3])

    def moved_bytes(self, answer: Answer) -> int:
        """Return what `answer`, which works, moves."""
        return moved_bytes(self._task, answer, self.before)

    def kept_most(self, answer: Answer) -> Answer:
        """Return a placement as good as `answer`, which works, or better: no single change improves it."""
        return self.improved(answer, good_enough_ns=-1)

    def _new_rank(self, answer: Answer) -> Rank | None:
        task, limits = self._task, self.limits
        if not meets_demands(task, answer, limits) or shortages(task, answer):
            return None
        time_ns = paced_step_ns(task, answer, limits.num_batches)
        if time_ns is None:
            return None
        secondary = self._secondary(answer)
        loading_ns = 0 if limits.load_ns is None else load_ns(task, answer)
        return (
            max(0, time_ns - limits.time_ns),
            0 if limits.quantized_bytes is None else max(0, secondary[0] - limits.quantized_bytes),
            0 if limits.load_ns is None else max(0, loading_ns - limits.load_ns),
            moved_bytes(task, answer, self.before),
            len(moved_blocks(answer, self.before)),
            self._changed_slots(answer),
            time_ns,
            *secondary,
        )

    def _changed_slots(self, answer: Answer) -> int:
        return sum(
            now != then
            for device, (now, then) in enumerate(zip(answer.num_slots, self.before.num_slots, strict=True))
            if answer.streamed_on(device)
        )

    def _changed(self, answer: Answer, index: int, reach: int) -> Iterator[Answer]:
        """Yield placements that differ by one change; first those with blocks back where they were."""
        if index >= 0:
            yield from self._restored(answer, index)
        yield from super()._changed(answer, index, reach)

    def _restored(self, answer: Answer, index: int) -> Iterator[Answer]:
        """Yield placements with the block at `index` back where it was, with those moved behind it or not."""
        moved = [now != then for now, then in zip(answer.choices, self.before.choices, strict=True)]
        if not moved[index]:
            return
        stop = index
        while stop < len(moved) and moved[stop]:
            stop += 1
        for end in sorted({stop, index + 1}, reverse=True):
            back = self.before.choices[index:end]
            choices = [choice for choice in back if choice is not None]
            if len(choices) == len(back):
                mixed = (*answer.choices[:index], *choices, *answer.choices[end:])
                yield msgspec.structs.replace(answer, choices=mixed)
