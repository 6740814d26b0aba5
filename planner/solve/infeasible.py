"""Why no placement exists: contradictions that no budget mends, and else what is too small.

Owns the facts of the error. What would be enough is `bayplan.planner.solve.enough`'s to find.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from bayplan.planner.solve.chain import Chain, peak_bytes
from bayplan.planner.solve.constraints import Constraints
from bayplan.planner.solve.feasible import is_feasible
from bayplan.planner.solve.fitting import leanest_answer
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.objectives import Problem
from bayplan.planner.solve.returning import views
from bayplan.planner.solve.task import Task
from bayplan.schemas.errors import BayplanError, Infeasible, first_and_more
from bayplan.schemas.hardware import Device
from bayplan.schemas.problem import BlockForm
from bayplan.schemas.sizes import format_size
from bayplan.schemas.types import DeviceId, NumBytes, Residency

UNLIMITED_BYTES = 2**59
"""More than any device has, and small enough that a few such sums stay exact."""

_MAX_NAMES = 3
"""Devices that are named one by one."""


class NoPlacement(Infeasible):
    """Something is too small: other budgets, or a smaller model or workload, would do.

    Attributes:
        problem: What has no placement.
        block: The one that is too large for every device; empty where it is not one alone.
    """

    def __init__(
        self, problem: Problem, what: str, *, where: str, got: str, needed: str = "", block: str = ""
    ) -> None:
        """Keep the problem beside the facts of `BayplanError`."""
        super().__init__(what, where=where, got=got, needed=needed)
        self.problem = problem
        self.block = block


def infeasible(problem: Problem) -> BayplanError:
    """Return the error that says why no placement of `problem` was found.

    Returns:
        A `NoPlacement` where something is too small, another `Infeasible` where something contradicts itself
        whatever the budgets; what is no `Infeasible` says that a time limit ended the search too early.
    """
    machine = problem.machine
    if not machine.devices:
        return Infeasible(
            "no device may compute",
            where="inventory",
            needed="at least one device with a budget above zero",
            hint="a declared host computes only with --cpu; see --max-memory for budgets",
        )
    contradiction = _pinned_apart(problem)
    if contradiction is None and not any(leanest_answer(own) for own in views(_roomy(problem))):
        contradiction = _no_way(problem)
    if contradiction is not None:
        return contradiction
    if problem.time_limit_s is not None and is_feasible(problem.task()):
        return BayplanError(
            "the search was ended before it found a placement, though there is one",
            where="--time-limit",
            got=f"{problem.time_limit_s:g} s",
            hint="give it more time, or leave the limit out",
        )
    return _too_small(problem)


def budgets_of(machine: Machine) -> dict[DeviceId, NumBytes]:
    """Return the budget of every device of the inventory, 0 where it is left out."""
    used = {device.id: budget for device, budget in zip(machine.devices, machine.budgets, strict=True)}
    return {device.id: used.get(device.id, 0) for device in machine.inventory.devices}


def _budgets_text(machine: Machine) -> str:
    ids = (device.id for device in machine.devices)
    return _sizes_text(dict(zip(ids, machine.budgets, strict=True)))


def _sizes_text(sizes: Mapping[DeviceId, NumBytes]) -> str:
    """Return sizes with the devices that have them, those of one size together."""
    by_size: dict[str, list[DeviceId]] = {}
    for device, size in sizes.items():
        by_size.setdefault(format_size(size), []).append(device)
    return ", ".join(f"{size} on {_names(devices)}" for size, devices in by_size.items())


def _names(devices: Iterable[DeviceId]) -> str:
    return first_and_more(tuple(devices), _MAX_NAMES)


def _roomy(problem: Problem) -> Task:
    """Return the task with as much memory on the devices that may compute as could be asked for."""
    budgets = {
        device: UNLIMITED_BYTES if budget else 0 for device, budget in budgets_of(problem.machine).items()
    }
    machine = Machine(problem.machine.inventory, budgets)
    return msgspec.structs.replace(problem, machine=machine).task()


def _pinned_apart(problem: Problem) -> Infeasible | None:
    """Return the error for pins that no order of devices meets, also where the last blocks come back."""
    found = [_out_of_order(own) for own in views(problem.task())]
    return found[0] if all(found) else None


def _out_of_order(task: Task) -> Infeasible | None:
    order = [device.id for device in task.machine.devices]
    latest, before = -1, ""
    for index, pinned in enumerate(task.constraints.device):
        if pinned is None:
            continue
        name = task.chain.ids[index]
        if pinned not in order:
            return Infeasible(
                f"pinned to a device that may hold nothing: {pinned}",
                where=name,
                needed=f"one of {', '.join(order)}",
                hint="see --max-memory for budgets",
            )
        if order.index(pinned) < latest:
            return Infeasible(
                "pinned against the order in which devices follow each other",
                where=name,
                got=f"{pinned}, after {before} on {order[latest]}",
                needed=f"devices in the order {', '.join(order)}",
                hint="blocks run in one stretch on each device; the order is that of the inventory",
            )
        latest, before = order.index(pinned), name
    return None


def _no_way(problem: Problem) -> Infeasible:
    """Return the error for weights or activations that find no way, whatever the budgets."""
    machine, constraints, chain = problem.machine, problem.constraints, problem.chain
    for index, residency in enumerate(constraints.residency):
        if not constraints.must_stream(index) or residency is None:
            continue
        if not any(form.parameter_bytes for form in chain.costs[index].forms):
            return Infeasible(
                "pinned to stream, but there are no weights to bring in",
                where=chain.ids[index],
                got=residency.value,
                needed=Residency.RESIDENT.value,
            )
        pinned = constraints.device[index]
        able = [place for place, one in enumerate(machine.devices) if pinned in (None, one.id)]
        if all(machine.feed(device, residency) is None for device in able):
            return Infeasible(
                "nothing brings its weights in before each visit",
                where=chain.ids[index],
                got=f"pinned to {residency.value}",
                needed=_feed_needed(residency, [machine.devices[device] for device in able]),
            )
    return Infeasible(
        "activations find no way from device to device",
        where=_names(device.id for device in machine.devices),
        got=_pins_text(chain, constraints),
        needed="links between devices that follow each other, direct or over host memory",
        hint="see the links of the inventory file",
    )


def _feed_needed(residency: Residency, devices: list[Device]) -> str:
    names = ", ".join(device.id for device in devices)
    if residency is Residency.STREAM_HOST:
        return f"a link from host memory to {names}, which must not lie in it"
    return f"a disk, and a way from it to {names}"


def _pins_text(chain: Chain, constraints: Constraints) -> str:
    pinned = [(name, device) for name, device in zip(chain.ids, constraints.device, strict=True) if device]
    if not pinned:
        return ""
    shown = [f"{name} pinned on {device}" for name, device in (pinned[0], pinned[-1])]
    return ", ".join(dict.fromkeys(shown))


def _too_small(problem: Problem) -> NoPlacement:
    """Return the error that says what is too small; if a single block is too large, which one."""
    task = problem.task()
    chain, machine = task.chain, task.machine
    needs = [(_needed_alone(task, index), index) for index in range(len(chain))]
    too_large = [
        (needed, -index)
        for (needed, _), index in needs
        if all(machine.budgets[device] < needed for device in _allowed(task, index))
    ]
    if not too_large:
        return NoPlacement(
            problem,
            "no placement fits the budgets",
            where=_names(device.id for device in machine.devices),
            got=_budgets_text(machine),
        )
    needed, index = max(too_large)[0], -max(too_large)[1]
    name, form = chain.ids[index], needs[index][0][1]
    besides = needed - form.parameter_bytes
    able = _allowed(task, index)
    weights = f"{format_size(form.parameter_bytes)} of weights in {form.format}"
    text = f"{format_size(needed)} for {name} alone: {weights}, {format_size(besides)} besides"
    if all(machine.budgets[device] <= besides for device in able):
        return NoPlacement(
            problem,
            "no device holds the activations and the cache of one block",
            where=_names(machine.devices[device].id for device in able),
            got=_budgets_text(machine),
            needed=text,
        )
    slots = {machine.devices[device].id: max(0, machine.budgets[device] - besides) for device in able}
    return NoPlacement(
        problem,
        "a block fits no device, not even streamed, since a slot holds it as a whole",
        where=name,
        got=f"slots of at most {_sizes_text(slots)}",
        needed=text,
        block=name,
    )


def _allowed(task: Task, index: int) -> list[int]:
    """Return the devices on which the block at `index` may be."""
    pinned = task.constraints.device[index]
    return [place for place, device in enumerate(task.machine.devices) if pinned in (None, device.id)]


def _needed_alone(task: Task, index: int) -> tuple[int, BlockForm]:
    """Return the bytes that a device needs for one block alone, and in which form.

    Its weights are there while it computes, wherever they are between two visits.
    """
    chain, cost = task.chain, task.chain.costs[index]
    found = [
        (
            form.parameter_bytes + form.buffer_bytes + chain.activation_bytes(peak_bytes(cost, form)),
            number,
        )
        for number, form in enumerate(cost.forms)
        if number in task.constraints.forms(chain, index)
    ]
    num_bytes, number = min(found)
    return num_bytes + cost.kv_bytes + chain.scratch_bytes, cost.forms[number]
