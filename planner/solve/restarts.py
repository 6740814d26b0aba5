"""Where a search begins again whose answer is not shown to be the best: programs that look at fewer ways.

A program knows the pipeline by inequalities, so that its optimum may be a mixture of ways that does not work
as well as it looks. The optimum of a program without some of them often does.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from bayplan.planner.solve.answer import Answer
from bayplan.planner.solve.deadline import Deadline
from bayplan.planner.solve.experts import ExpertsResidency
from bayplan.planner.solve.modes import MILLISECOND, SLOT_COUNTS, Narrowing
from bayplan.planner.solve.polish import Polisher
from bayplan.planner.solve.program import PlacementProgram
from bayplan.planner.solve.spacing import arrangements
from bayplan.planner.solve.task import Task

MAX_VARIABLES = 800
"""Larger programs are not solved again: they take long, and leave smaller gaps."""

TIE_GAP = 1e-2
"""Share by which it may be from its optimum where only a tie is broken."""

MAX_NODES = 300
"""Branches explored at most, of each program."""

MAX_SIMULATIONS = 500
"""Placements simulated at most, from each."""

RELATIVE_GAP = 1e-3
"""Share by which a program's answer may be from its optimum."""


def narrowings(task: Task) -> Iterator[Narrowing]:
    """Yield parts of all ways: one number of slots for all devices, and one way to have experts apart."""
    caches = ExpertsResidency.CACHE_HOST, ExpertsResidency.CACHE_DISK
    apart = task.splits_experts and any(cost.experts is not None for cost in task.chain.costs)
    experts = ((ExpertsResidency.COMPUTE_HOST,), (), caches) if apart else ((),)
    for own, number in product(experts, SLOT_COUNTS):
        yield Narrowing(slot_counts=(number,), experts=own)


def restarted(
    task: Task,
    answer: Answer,
    polisher: Polisher,
    *,
    only: frozenset[int],
    num_batches: int,
    good_enough_ns: int,
    deadline: Deadline,
) -> Answer:
    """Return the best placement that searches which begin elsewhere find, or `answer`.

    Args:
        task: The problem.
        answer: The best placement so far.
        polisher: Of the task.
        only: Devices that may be used.
        num_batches: In flight.
        good_enough_ns: Time at which nothing can be gained any more.
        deadline: When to end.
    """
    for narrowing in narrowings(task):
        best_ns = polisher.step_ns(answer)
        if best_ns <= good_enough_ns or deadline.must_end():
            break
        program = PlacementProgram(
            task, can_stream=True, only=only, num_batches=num_batches, narrowing=narrowing
        )
        if program.num_variables > MAX_VARIABLES:
            break
        time = [(program.time, 1.0)]
        program.limit(time, best_ns / MILLISECOND)
        found = program.minimise(time, relative_gap=RELATIVE_GAP, max_nodes=MAX_NODES, deadline=deadline)
        if not found.values:
            continue
        # Of those that are as fast, the one that leaves the courier the most time.
        program.limit(time, found.objective * (1 + RELATIVE_GAP))
        fewest = program.minimise(
            program.moved(),
            relative_gap=TIE_GAP,
            max_nodes=MAX_NODES,
            deadline=deadline,
            start=found.values,
        )
        found = fewest if fewest.values else found
        polisher.allow(MAX_SIMULATIONS)
        begin = polisher.best(arrangements(task, program.counts(found), program.kinds))
        if begin is not None:
            found_better = polisher.improved(begin, good_enough_ns=good_enough_ns)
            answer = polisher.best((answer, found_better)) or answer
    return answer
