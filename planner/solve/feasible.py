"""Whether any placement satisfies the constraints: asked often, so answered without looking for the fastest.

Owns that the answer is that of `place`: what is called feasible here is found there, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable

from bayplan.planner.solve.fitting import leanest_answer
from bayplan.planner.solve.ledger import shortages
from bayplan.planner.solve.placement import RELATIVE_GAP, ROUNDINGS, place
from bayplan.planner.solve.program import PlacementProgram
from bayplan.planner.solve.returning import views
from bayplan.planner.solve.spacing import arrangements
from bayplan.planner.solve.task import Task


def is_feasible(task: Task) -> bool:
    """Return whether `place` finds a placement of `task`."""
    verdict = quick_verdict(task)
    if verdict is not None:
        return verdict
    # Host memory is too small for the leanest one of the devices, but perhaps not for another.
    verdict = _either(_by_program, task)
    return place(task) is not None if verdict is None else verdict


def _by_program(task: Task) -> bool | None:
    """Return whether there is a placement of a chain, turned or not; None: the program does not tell."""
    for number, rounding in enumerate(ROUNDINGS):
        program = PlacementProgram(task, can_stream=not task.constraints.no_spill, rounding=rounding)
        found = program.minimise([], relative_gap=RELATIVE_GAP)
        if not found.values:
            return None if number else False  # the first is a relaxation
        answers = arrangements(task, program.counts(found), program.kinds)
        if any(not shortages(task, answer) for answer in answers):
            return True
    return None


def quick_verdict(task: Task) -> bool | None:
    """Return whether there is a placement; None: that takes a search, since host memory is scarce."""
    return _either(_quick_verdict, task)


def _either(verdict: Callable[[Task], bool | None], task: Task) -> bool | None:
    """Return whether there is a placement of the chain as it is, or else of the turned one; None: unknown."""
    found: bool | None = False
    for own in views(task):
        known = verdict(own)
        if known:
            return True
        found = None if known is None else found
    return found


def _quick_verdict(task: Task) -> bool | None:
    """Return the verdict on a chain, turned or not."""
    without_waiting = leanest_answer(task, may_wait=False)
    if without_waiting is not None and not shortages(task, without_waiting):
        return True
    leanest = leanest_answer(task)
    if leanest is None:
        return False
    return None if shortages(task, leanest) else True
