"""What a step of a placement takes: its visits for the simulator, and the simulator's answer."""

from __future__ import annotations

import msgspec

from bayplan.planner.solve.answer import Answer
from bayplan.planner.solve.simulate import Transfer, Visit, steady_step_ns
from bayplan.planner.solve.split import split_visit
from bayplan.planner.solve.task import Task
from bayplan.schemas.types import Objective


def visits(task: Task, answer: Answer, phase: Objective | None = None) -> list[Visit] | None:
    """Return one step of `answer` in execution order; None: something finds no way to where it is needed.

    Args:
        task: The problem; where its chain is turned, the step is that of the chain as it is.
        answer: Any placement, also one that does not fit or visits a device twice.
        phase: Which step; None: the objective's.
    """
    if task.turn is not None:
        return visits(task.turn.whole, task.turn.straight(answer), phase)
    own = phase or task.phase
    found: list[Visit] = []
    end = len(answer.choices)
    for index, choice in enumerate(answer.choices):
        hop_ns: int | None = 0
        before = answer.choices[index - 1].device if index else choice.device
        if before != choice.device:
            stop = next(
                (later for later in range(index, end) if answer.choices[later].device != choice.device), end
            )
            hop_ns = task.hop_ns(index, stop, before, choice.device, own)
        if hop_ns is None:
            return None
        transfer, fetch, fetched_ns = None, None, 0
        compute_ns = task.visit_ns(index, choice, own)
        if choice.experts is not None:
            split = split_visit(task, index, choice.form, choice.device, choice.experts, own)
            compute_ns, fetched_ns, fetch = split.dense_ns, split.experts_ns, split.fetch
        if choice.streams:
            way = task.machine.feed(choice.device, choice.residency)
            if way is None:
                return None
            num_bytes = task.chain.costs[index].forms[choice.form].parameter_bytes
            transfer = Transfer(duration_ns=way.transfer_ns(num_bytes), resources=way.resources)
        found.append(
            Visit(
                device=choice.device,
                compute_ns=compute_ns,
                hop_ns=hop_ns,
                transfer=transfer,
                fetch=fetch,
                fetched_compute_ns=fetched_ns,
            )
        )
    return found


def slots_of(answer: Answer) -> dict[int, int]:
    """Return the slots of each device as the simulator takes them."""
    return dict(enumerate(answer.num_slots))


def step_ns(task: Task, answer: Answer, phase: Objective | None = None) -> int | None:
    """Return the time of one steady step in nanoseconds; None: something finds no way."""
    step = visits(task, answer, phase)
    return None if step is None else steady_step_ns(step, slots_of(answer))


def paced_step_ns(task: Task, answer: Answer, num_batches: int) -> int | None:
    """Return the time between two batches' steps with several in flight, in nanoseconds; None: no way.

    Every device serves one batch after the other. The slowest device or way sets the pace, unless there are
    too few batches to keep it busy. Devices whose transfers share a disk or a switch take turns.
    """
    step = visits(task, answer)
    if step is None:
        return None
    alone = steady_step_ns(step, slots_of(answer))
    if num_batches == 1:
        return alone
    users: dict[str, set[int]] = {}
    for visit in step:
        for transfer in (visit.transfer, visit.fetch):
            for resource in transfer.resources if transfer is not None else ():
                users.setdefault(resource, set()).add(visit.device)
    if any(len(devices) > 1 for devices in users.values()):
        return alone
    own = {visit.device for visit in step}
    stages = [
        [msgspec.structs.replace(visit, hop_ns=0) for visit in step if visit.device == device]
        for device in sorted(own)
    ]
    paces = [steady_step_ns(stage, slots_of(answer)) for stage in stages]
    hops = [visit.hop_ns for visit in step]
    return max(*paces, *hops, -(-alone // num_batches))
