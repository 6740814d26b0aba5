"""Solving variations of one problem: what each would make of the objective.

Owns what a value is and when two differ. Differences within the search's own gap count for nothing where they
say that more freedom is worse.
"""

from __future__ import annotations

import msgspec

from bayplan.planner.solve.answer import Answer
from bayplan.planner.solve.ledger import shortages
from bayplan.planner.solve.objectives import Placed, Problem, place_for
from bayplan.planner.solve.placement import RELATIVE_GAP
from bayplan.planner.solve.predict import load_ns
from bayplan.planner.solve.timeline import paced_step_ns
from bayplan.schemas.types import Objective


class Again:
    """One problem and what its best placement is worth; variations are held against it.

    Attributes:
        problem: What is varied.
        value_ns: What the objective makes small, in nanoseconds.
    """

    def __init__(self, problem: Problem, value_ns: int) -> None:
        self.problem = msgspec.structs.replace(problem, time_limit_s=None)
        self.value_ns = value_ns

    def change_ns(self, other: Problem) -> int | None:
        """Return by how much `other` is slower, in nanoseconds; None: it has no placement."""
        placed = place_for(other)
        return None if placed is None else value_ns(other, placed) - self.value_ns

    def gain_ns(self, other: Problem) -> int:
        """Return by how much `other`, which allows more, is faster, in nanoseconds."""
        change_ns = self.change_ns(other)
        assert change_ns is not None, "what allows more has a placement too"
        return 0 if change_ns > 0 and not self.is_more(change_ns) else -change_ns

    def is_more(self, difference_ns: int) -> bool:
        """Whether a difference is more than two searches of one problem might have."""
        return difference_ns > RELATIVE_GAP * self.value_ns


def value_ns(problem: Problem, placed: Placed) -> int:
    """Return what the objective makes small, in nanoseconds."""
    if problem.objective is Objective.LOAD:
        return load_ns(placed.task, placed.solution.answer)
    return placed.solution.step_ns


def value_of(problem: Problem, answer: Answer, num_batches: int) -> int | None:
    """Return what the objective makes small for any placement, in nanoseconds; None: it is none that works.

    Args:
        problem: The problem.
        answer: Any placement.
        num_batches: In flight.
    """
    task = problem.task(num_batches)
    step_ns = None if shortages(task, answer) else paced_step_ns(task, answer, num_batches)
    if step_ns is None or problem.objective is not Objective.LOAD:
        return step_ns
    return load_ns(task, answer)
