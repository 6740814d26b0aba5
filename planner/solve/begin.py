"""Where a search begins that found nothing in the time or work it was given: any placement that works.

The leanest placement there is says whether anything works; shares by budget are mostly much faster. Both are
then filled: what streams stays where there is room.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

import msgspec

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.fitting import leanest_answer
from bayplan.planner.solve.ledger import shortages
from bayplan.planner.solve.machine import STREAM_TIERS
from bayplan.planner.solve.spacing import Spacing, even_places
from bayplan.planner.solve.task import Task
from bayplan.schemas.types import Residency


def lean_answers(task: Task, devices: frozenset[int], *, can_stream: bool) -> Iterator[Answer]:
    """Yield placements that take little memory, each also filled; not all of them fit.

    Args:
        task: The problem.
        devices: Those that may be used.
        can_stream: Whether blocks may stream, and experts live apart.
    """
    own = task
    if not can_stream:
        constraints = msgspec.structs.replace(task.constraints, no_spill=True)
        own = Task(task.chain, task.machine, constraints, task.phase, turn=task.turn)
    for may_wait in (False, True):
        answer = leanest_answer(own, may_wait=may_wait)
        if answer is not None and devices.issuperset(choice.device for choice in answer.choices):
            yield answer
            yield filled(own, answer)
    for tier in STREAM_TIERS:
        shared = shares(own, devices, tier)
        if shared is not None:
            yield shared
            yield filled(own, shared)


def filled(task: Task, answer: Answer) -> Answer:
    """Return `answer` with as many of its streamed blocks resident as fit, evenly over each device."""
    for device in range(len(task.machine.devices)):
        streamed = answer.streamed_on(device)
        for place in _evenly(len(streamed)):
            index = streamed[place]
            choice = msgspec.structs.replace(answer.choices[index], residency=Residency.RESIDENT)
            choices = (*answer.choices[:index], choice, *answer.choices[index + 1 :])
            fuller = msgspec.structs.replace(answer, choices=choices)
            if task.may(index, choice) and not shortages(task, fuller):
                answer = fuller
    return answer


def shares(task: Task, devices: frozenset[int], tier: Residency) -> Answer | None:
    """Return the chain in shares as large as the budgets; None: that is not allowed.

    On accelerators where there are any, each block in its smallest form, from `tier` if that may be.

    Args:
        task: The problem.
        devices: Those that may be used.
        tier: Whence blocks stream.
    """
    machine, costs = task.machine, task.chain.costs
    used = sorted(devices & machine.accelerators or devices)
    forms = [_smallest_form(task, index) for index in range(len(costs))]
    sizes = [
        cost.forms[form].parameter_bytes + cost.kv_bytes for cost, form in zip(costs, forms, strict=True)
    ]
    ends = list(accumulate(machine.budgets[device] for device in used))
    choices: list[Choice] = []
    for index, stop in enumerate(accumulate(sizes)):
        # The middle of a block says in whose share it is.
        middle = (2 * stop - sizes[index]) * ends[-1]
        place = bisect_left([2 * end * sum(sizes) for end in ends], middle)
        choice = _streamed(task, index, Choice(device=used[place], residency=tier, form=forms[index]))
        if choice is None:
            return None
        choices.append(choice)
    return Answer(choices=tuple(choices), num_slots=(1,) * len(machine.devices))


def _smallest_form(task: Task, index: int) -> int:
    forms = task.chain.costs[index].forms
    return min(task.constraints.forms(task.chain, index), key=lambda form: forms[form].parameter_bytes)


def _streamed(task: Task, index: int, wanted: Choice) -> Choice | None:
    """Return the block as it is wanted, or with its weights elsewhere; None: it may not be there."""
    for residency in (wanted.residency, *STREAM_TIERS, Residency.RESIDENT):
        choice = msgspec.structs.replace(wanted, residency=residency)
        if task.may(index, choice):
            return choice
    return None


def _evenly(count: int) -> list[int]:
    """Return the numbers below `count`, so that the first few of them are spread evenly, however few."""
    order: list[int] = []
    step = 1
    while len(order) < count:
        order += [
            place for place in even_places(count, min(step, count), Spacing.MIDDLE) if place not in order
        ]
        step *= 2
    return order
