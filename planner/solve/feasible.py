"""Whether any placement satisfies the constraints: asked often, so answered without looking for the fastest.

Owns that the answer is that of `place`: what is called feasible here is found there, and the other way round.
"""

from __future__ import annotations

from bayplan.planner.solve.fitting import leanest_answer
from bayplan.planner.solve.ledger import shortages
from bayplan.planner.solve.placement import RELATIVE_GAP, ROUNDINGS, place
from bayplan.planner.solve.program import PlacementProgram
from bayplan.planner.solve.spacing import arrangements
from bayplan.planner.solve.task import Task


def is_feasible(task: Task) -> bool:
    """Return whether `place` finds a placement of `task`."""
    verdict = quick_verdict(task)
    if verdict is not None:
        return verdict
    # Host memory is too small for the leanest one of the devices, but perhaps not for another.
    for number, rounding in enumerate(ROUNDINGS):
        program = PlacementProgram(task, can_stream=not task.constraints.no_spill, rounding=rounding)
        found = program.minimise([], relative_gap=RELATIVE_GAP)
        if not found.values:
            if not number:
                return False  # the first is a relaxation
            break
        answers = arrangements(task, program.counts(found), program.kinds)
        if any(not shortages(task, answer) for answer in answers):
            return True
    return place(task) is not None


def quick_verdict(task: Task) -> bool | None:
    """Return whether there is a placement; None: that takes a search, since host memory is scarce."""
    without_waiting = leanest_answer(task, may_wait=False)
    if without_waiting is not None and not shortages(task, without_waiting):
        return True
    leanest = leanest_answer(task)
    if leanest is None:
        return False
    return None if shortages(task, leanest) else True
