"""Of the placements near the best one, the one that moves the fewest bytes from an earlier placement.

Near is within `STABILITY_PPM` of what the objective makes small. The earlier placement is kept as it is
where it is near; else the program is solved once more with moved bytes as its objective, a descent finds the
positions, and few blocks are searched exhaustively.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from itertools import groupby

import msgspec

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.deadline import Deadline
from bayplan.planner.solve.exhaustive import MAX_BLOCKS
from bayplan.planner.solve.integer_program import Found
from bayplan.planner.solve.modes import MILLISECOND, Counts, Rounding, Term
from bayplan.planner.solve.moves import Before, Keeper, Limits, moved_bytes
from bayplan.planner.solve.nearest import Nearest
from bayplan.planner.solve.objectives import Placed, Problem
from bayplan.planner.solve.placement import MAX_SIMULATIONS, RELATIVE_GAP, ROUNDINGS
from bayplan.planner.solve.polish import Rank
from bayplan.planner.solve.predict import load_ns
from bayplan.planner.solve.program import PlacementProgram
from bayplan.planner.solve.returning import views
from bayplan.planner.solve.spacing import Spacing, even_places
from bayplan.planner.solve.task import Task, Turn, turned_order
from bayplan.planner.solve.timeline import paced_step_ns
from bayplan.schemas.types import BoundClass, Objective, SolverStatus

STABILITY_PPM = 20_000
"""How far from the best a placement may be, in millionths of it, to move less."""

MAX_NODES = 500
"""Branches of the second program at most."""

MAX_TIGHTENINGS = 2
"""Times that the program is solved again for a shorter step, where its answer is slower than it says."""

MAX_STRETCHES = 24
"""Stretches of blocks that were alike before, at most, for the program to tell them apart: each costs a
switch per device."""

BLOCK_UNITS = 1e-6
"""What a block counts besides its bytes, in the program's units, so that none moves for nothing."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A placement that is near the best and moves little."""

    placed: Placed
    moved_bytes: int


def keep(problem: Problem, best: Placed, before: Before, deadline: Deadline | None = None) -> Kept:
    """Return the placement near `best` that moves the fewest bytes.

    Args:
        problem: The problem.
        best: Its best placement; the bound of the answer is its.
        before: The earlier placement of the same blocks.
        deadline: When to end; None: by the problem's own limit, counted from now.
    """
    limits = limits_of(problem, best)
    former = before.answer()
    end = deadline or Deadline(problem.time_limit_s)
    searches = [_Search(task, best.solution.answer, before, limits, end) for task in views(best.task)]
    if former is not None and any(search.is_within(former) for search in searches):
        return _kept(best, former, before, limits)
    answer = min((found for search in searches for found in search.found()), key=lambda one: one[0])[1]
    return _kept(best, answer, before, limits, is_timed_out=end.has_ended_search)


def limits_of(problem: Problem, best: Placed) -> Limits:
    """Return what is near `best`.

    What fits is not streamed to move less, and `auto` rounds no more than a little more.
    """
    task, solution = best.task, best.solution
    answer = solution.answer
    is_resident = solution.bound_class is BoundClass.CONTIGUOUS_RESIDENT
    everything = frozenset(range(len(task.machine.devices)))
    fast = task.machine.accelerators
    has_room = is_resident and all(choice.device in fast for choice in answer.choices)
    quantized_bytes = sum(task.form(index, answer).quantized_bytes for index in range(len(task.chain)))
    return Limits(
        time_ns=_near(solution.step_ns),
        quantized_bytes=_near(quantized_bytes) if problem.is_auto and is_resident else None,
        load_ns=_near(load_ns(task, answer)) if problem.objective is Objective.LOAD else None,
        devices=fast if has_room else everything,
        can_stream=not is_resident,
        num_batches=best.batches_in_flight,
    )


def _turned(before: Before, turn: Turn) -> Before:
    choices = turned_order(before.choices, len(before.choices) - turn.num_blocks)
    return msgspec.structs.replace(before, choices=choices)


def _near(amount: int) -> int:
    return amount + amount * STABILITY_PPM // 1_000_000


def _kept(
    best: Placed, answer: Answer, before: Before, limits: Limits, *, is_timed_out: bool = False
) -> Kept:
    time_ns = paced_step_ns(best.task, answer, limits.num_batches)
    assert time_ns is not None, "what is kept works"
    solution = msgspec.structs.replace(best.solution, answer=answer, step_ns=time_ns)
    if is_timed_out:
        solution = msgspec.structs.replace(solution, status=SolverStatus.TIME_LIMIT)
    return Kept(
        placed=msgspec.structs.replace(best, solution=solution),
        moved_bytes=moved_bytes(best.task, answer, before),
    )


class _Search:
    """The search for a placement near the best one, where the earlier one is none.

    Of a chain, turned or not. Placements come in and go out as those of the chain as it is.
    """

    def __init__(self, task: Task, best: Answer, before: Before, limits: Limits, deadline: Deadline) -> None:
        self._task = task
        self._best = best if task.turn is None else task.turn.turned(best)
        self._before = before if task.turn is None else _turned(before, task.turn)
        self._limits = limits
        self._deadline = deadline
        self._keeper = Keeper(task, self._before, limits, MAX_SIMULATIONS, deadline)

    def is_within(self, answer: Answer) -> bool:
        """Whether `answer` is among the placements that are searched, and within the limits."""
        turn = self._task.turn
        return self._keeper.is_within(answer if turn is None else turn.turned(answer))

    def found(self) -> Iterator[tuple[Rank, Answer]]:
        """Yield the placement that moves the fewest bytes of those found, if any is, with its rank."""
        nearest = self._nearest()
        if nearest is not None:
            rank = self._keeper.rank(nearest)
            assert rank is not None, "the best placement works"
            yield rank, nearest if self._task.turn is None else self._task.turn.straight(nearest)

    def _nearest(self) -> Answer | None:
        keeper = self._keeper
        # The best placement of all may not be one of these.
        known = [] if keeper.rank(self._best) is None else [self._best]
        found = list(known)
        limit_ns = self._limits.time_ns
        for _ in range(1 + MAX_TIGHTENINGS):
            begin = self._by_program(limit_ns)
            if begin is None:
                break
            close = keeper.kept_most(begin)
            found.append(close)
            if keeper.is_within(close):
                break
            time_ns = paced_step_ns(self._task, close, self._limits.num_batches)
            assert time_ns is not None, "the descent ends at a placement that works"
            limit_ns = limit_ns * self._limits.time_ns // max(time_ns, self._limits.time_ns + 1)
        if known and (len(found) == 1 or not keeper.is_within(found[-1])):
            found.append(keeper.kept_most(self._best))
        nearest = keeper.best(found)
        if nearest is not None and len(self._task.chain) <= MAX_BLOCKS and keeper.moved_bytes(nearest):
            nearest = Nearest(self._task, keeper).fewest(nearest)
        return nearest

    def _by_program(self, limit_ns: int) -> Answer | None:
        """Return where the descent begins, the answer of the program within `limit_ns`; None: it has none."""
        for rounding in ROUNDINGS:
            program, found = self._solved(rounding, limit_ns)
            if not found.values:
                return None
            counts = program.counts(found)
            answers = (_arranged(counts, program.kinds, self._before, spacing) for spacing in Spacing)
            begin = self._keeper.best(slotted for answer in answers for slotted in self._slotted(answer))
            if begin is not None:
                return begin
        return None

    def _solved(self, rounding: Rounding | None, limit_ns: int) -> tuple[PlacementProgram, Found]:
        limits = self._limits
        program = PlacementProgram(
            self._task,
            can_stream=limits.can_stream,
            only=limits.devices,
            num_batches=limits.num_batches,
            rounding=rounding,
            marks=marks_of(self._before),
        )
        program.limit([(program.time, 1.0)], limit_ns / MILLISECOND)
        if limits.quantized_bytes is not None:
            program.limit(program.quantized(), program.units(limits.quantized_bytes))
        if limits.load_ns is not None:
            program.limit([(program.add_load_time(), 1.0)], limits.load_ns / MILLISECOND)
        found = program.minimise(
            moved(program, self._before),
            relative_gap=RELATIVE_GAP,
            max_nodes=MAX_NODES,
            deadline=self._deadline,
        )
        return program, found

    def _slotted(self, answer: Answer) -> Iterator[Answer]:
        """Yield `answer` with its own slots and with those of before."""
        yield answer
        slots = tuple(
            then if answer.streamed_on(device) else own
            for device, (own, then) in enumerate(zip(answer.num_slots, self._before.num_slots, strict=True))
        )
        if slots != answer.num_slots:
            yield msgspec.structs.replace(answer, num_slots=slots)


def marks_of(before: Before) -> list[Hashable]:
    """Return per block what it was before, as exactly as keeps the program small; at least its device."""
    whole: list[Hashable] = list(before.choices)
    placed: list[Hashable] = [None if then is None else (then.device, then.form) for then in before.choices]
    for marks in (whole, placed):
        if len(list(groupby(marks))) <= MAX_STRETCHES:
            return marks
    return [None if then is None else then.device for then in before.choices]


def moved(program: PlacementProgram, before: Before) -> list[Term]:
    """Return the terms of what a solution moves, in units of bytes, a relaxation.

    Of the blocks of a kind as many can stay as there are with the same choice before and after.
    """
    former: dict[int, Counter[Choice]] = {}
    for kind, then in zip(program.kinds, before.choices, strict=True):
        if then is not None:
            former.setdefault(kind, Counter())[then] += 1
    terms: list[Term] = []
    for mode in program.modes():
        weight = program.units(mode.form.num_bytes) + BLOCK_UNITS
        terms.append((mode.variable, weight))
        count = former.get(mode.kind, Counter())[mode.choice]
        if count:
            stays = program.number(float(count))
            program.limit([(stays, 1.0), (mode.variable, -1.0)], 0.0)
            terms.append((stays, -weight))
    return terms


def _arranged(counts: Counts, kinds: tuple[int, ...], before: Before, spacing: Spacing) -> Answer:
    """Return a placement with these counts in which blocks are as they were where the counts allow it.

    Args:
        counts: How many blocks of each kind each device has in each mode.
        kinds: Kind of each block.
        before: How they were.
        spacing: Where those lie that are not as they were.
    """
    choices: dict[int, Choice] = {}
    start = 0
    for modes, stop in zip(counts.modes, counts.cuts, strict=True):
        own: dict[int, Counter[Choice]] = {}
        for kind, choice, number in modes:
            own.setdefault(kind, Counter())[choice] += number
        for kind, wanted in own.items():
            positions = [index for index in range(start, stop) if kinds[index] == kind]
            choices |= _filled(positions, wanted, before, spacing)
        start = stop
    return Answer(choices=tuple(choices[index] for index in range(len(kinds))), num_slots=counts.num_slots)


def _filled(
    positions: list[int], wanted: Counter[Choice], before: Before, spacing: Spacing
) -> dict[int, Choice]:
    """Return which block of a kind has which choice; those that cannot stay as they were are spread."""
    chosen: dict[int, Choice] = {}
    left = Counter(wanted)
    for choice in wanted:
        same = [index for index in positions if before.choices[index] == choice]
        leaving = max(0, len(same) - wanted[choice])
        gone = {same[place] for place in even_places(len(same), leaving, spacing)} if leaving else set()
        stay = [index for index in same if index not in gone]
        chosen |= dict.fromkeys(stay, choice)
        left[choice] -= len(stay)
    for choice in sorted(+left, key=lambda one: (not one.streams, list(wanted).index(one))):
        free = [index for index in positions if index not in chosen]
        places = even_places(len(free), left[choice], spacing)
        chosen |= {free[place]: choice for place in places}
    return chosen
