"""Placements by bytes instead of time, as accelerate's users know them: equal shares, or one after the other.

Resident only; the order of the chain and the budgets hold as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.ledger import shortages
from bayplan.planner.solve.resident import Stretch, resident_answer, stretches
from bayplan.planner.solve.task import Task
from bayplan.planner.solve.timeline import step_ns


def balanced_answer(task: Task, only: frozenset[int]) -> Answer | None:
    """Return the fastest of the placements with the least bytes on the fullest device; None: nothing fits.

    Args:
        task: Blocks that may have several forms are taken in the first that they may have.
        only: Devices that may be used.
    """
    cap = _least_peak_bytes(task, only)
    if cap is None:
        return None
    budgets = tuple(
        min(budget, cap) if device in only else 0 for device, budget in enumerate(task.machine.budgets)
    )
    found = resident_answer(task, budgets=budgets)
    return None if found is None else _working(task, found[0])


def sequential_answer(task: Task, only: frozenset[int]) -> Answer | None:
    """Return the placement that has the most blocks on the first device, then on the second, and so on.

    Args:
        task: As for `balanced_answer`.
        only: Devices that may be used.
    """
    order = sorted(only)
    end = len(task.chain)
    # Per device, where the rest of the chain may begin so that it finds a place on the devices after it.
    placeable = {order[-1]: {end}} if order else {}
    for device, after in zip(reversed(order[:-1]), reversed(order[1:]), strict=True):
        placeable[device] = {
            start
            for start in range(end + 1)
            if start in placeable[after]
            or any(stretch.stop in placeable[after] for stretch in _on(task, after, start))
        }
    choices: list[Choice] = []
    for device in order:
        start = len(choices)
        fitting = [one for one in _on(task, device, start) if one.stop in placeable[device]]
        if fitting:
            forms = (task.constraints.forms(task.chain, index)[0] for index in range(start, fitting[-1].stop))
            choices += [Choice(device=device, form=form) for form in forms]
    if len(choices) < end:
        return None
    return _working(task, Answer(choices=tuple(choices), num_slots=(1,) * len(task.machine.devices)))


def _on(task: Task, device: int, start: int) -> Iterator[Stretch]:
    return stretches(task, device, start, task.machine.budgets[device])


def _least_peak_bytes(task: Task, only: frozenset[int]) -> int | None:
    """Return the least that the fullest device can have, in bytes; None: nothing fits."""
    end = len(task.chain)
    least: dict[int, int] = {0: 0}
    for device in sorted(only):
        reached = dict(least)
        for start, before in least.items():
            if start == end:
                continue
            for stretch in _on(task, device, start):
                peak = max(before, stretch.used_bytes)
                if peak < reached.get(stretch.stop, peak + 1):
                    reached[stretch.stop] = peak
        least = reached
    return least.get(end)


def _working(task: Task, answer: Answer) -> Answer | None:
    """Return `answer` if host memory holds it too and there are ways between its devices."""
    return None if shortages(task, answer) or step_ns(task, answer) is None else answer
