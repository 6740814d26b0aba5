"""How much memory would be enough: the smallest change of the machine with which a placement exists.

One thing is changed at a time. Every figure is one with which the question was asked again, and so is the one
just below it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import msgspec

from bayplan.planner.solve.chain import peak_bytes
from bayplan.planner.solve.feasible import is_feasible, quick_verdict
from bayplan.planner.solve.infeasible import budgets_of
from bayplan.planner.solve.machine import Machine, lies_in_host_memory, with_node, without_id
from bayplan.planner.solve.objectives import Problem
from bayplan.schemas.certificate import Axis, Relaxation
from bayplan.schemas.hardware import Disk, Inventory, Node
from bayplan.schemas.types import DeviceId, NumBytes

COARSE_BYTES = 2**20
"""Step where host memory is scarce: each question is a search then. Elsewhere it is a byte."""

_ANY_DISK = Disk(read_bytes_per_second=10**9, latency_ns=0)
"""Whether something fits does not depend on how fast it is read."""


def machine_relaxations(problem: Problem, fixed: Collection[DeviceId]) -> Iterator[Relaxation]:
    """Yield what would be enough for `problem`, which has no placement, on every axis of its machine.

    Args:
        problem: What was asked.
        fixed: Devices whose budget the user gave: more memory in their host does not raise it.
    """
    inventory = problem.machine.inventory
    alike: dict[object, Relaxation] = {}
    for device in inventory.devices:
        found = _device_memory(problem, device.id, alike)
        yield found
    for node in inventory.nodes:
        yield _host_memory(problem, node, fixed)
        if node.pinned_memory_bytes is not None and not problem.constraints.no_spill:
            yield _pinned_memory(problem, node, node.pinned_memory_bytes)
        if node.disk is None and not problem.constraints.no_spill:
            yield _disk(problem, node)
    if problem.constraints.no_spill:
        yield _streaming(problem)


class _Search:
    """The least amount of something with which a problem has a placement."""

    def __init__(self, changed: Callable[[int], Problem]) -> None:
        self._changed = changed

    def is_enough(self, amount: int) -> bool:
        return is_feasible(self._changed(amount).task())

    def least(self, given: int, most: int) -> tuple[int, int] | None:
        """Return an amount that is enough, and one that is not, a step below; None: not even `most` is.

        Args:
            given: Not enough.
            most: More would change nothing.
        """
        if most <= given or not self.is_enough(most):
            return None
        enough, too_little = most, given
        while enough - too_little > 1:
            middle = (enough + too_little) // 2
            verdict = quick_verdict(self._changed(middle).task())
            if verdict is None:
                if enough - too_little <= COARSE_BYTES:
                    break
                verdict = self.is_enough(middle)
            if verdict:
                enough = middle
            else:
                too_little = middle
        return enough, too_little


def _relaxation(
    axis: Axis,
    subject: str,
    given: NumBytes,
    found: tuple[int, int] | None,
    *,
    tried: int,
    limit: int | None = None,
) -> Relaxation:
    """Return what a search has found, or that not even the last amount tried is enough."""
    if found is None:
        return Relaxation(axis=axis, subject=subject, given=given, too_little=tried, limit=limit)
    enough, too_little = found
    return Relaxation(
        axis=axis,
        subject=subject,
        given=given,
        enough=enough,
        too_little=too_little,
        step=enough - too_little,
        limit=limit,
    )


def _device_memory(problem: Problem, device_id: DeviceId, alike: dict[object, Relaxation]) -> Relaxation:
    """Return the least budget of one device; what is enough for its like is tried first."""
    inventory, budgets = problem.machine.inventory, budgets_of(problem.machine)
    device = next(device for device in inventory.devices if device.id == device_id)
    given, most = budgets[device_id], _whole_bytes(problem)

    def changed(budget: int) -> Problem:
        return with_machine(problem, inventory, {**budgets, device_id: budget})

    search = _Search(changed)
    node = device_id.partition("/")[0]
    key = node, without_id(device), given
    known = alike.get(key)
    found: tuple[int, int] | None = None
    if known is not None and isinstance(known.enough, int) and isinstance(known.too_little, int):
        is_same = search.is_enough(known.enough) and not search.is_enough(known.too_little)
        found = (known.enough, known.too_little) if is_same else None
    found = found or search.least(given, most)
    relaxation = _relaxation(
        Axis.DEVICE_MEMORY, device_id, given, found, tried=max(given, most), limit=device.capacity_bytes
    )
    alike.setdefault(key, relaxation)
    return relaxation


def _host_memory(problem: Problem, node: Node, fixed: Collection[DeviceId]) -> Relaxation:
    """Return the least memory of one node; devices that lie in it grow with it."""
    inventory, budgets = problem.machine.inventory, budgets_of(problem.machine)
    given = node.host_memory_bytes
    inside = {
        device.id
        for device in inventory.devices
        if lies_in_host_memory(device) and device.id.partition("/")[0] == node.id
    }

    def changed(amount: int) -> Problem:
        more = amount - given
        larger = msgspec.structs.replace(node, host_memory_bytes=amount)
        grown = {
            device: budget + (more if device in inside and device not in fixed else 0)
            for device, budget in budgets.items()
        }
        return with_machine(problem, with_node(inventory, larger), grown)

    most = given + _whole_bytes(problem)
    found = _Search(changed).least(given, most)
    return _relaxation(Axis.HOST_MEMORY, node.id, given, found, tried=most)


def _pinned_memory(problem: Problem, node: Node, given: NumBytes) -> Relaxation:
    inventory, budgets = problem.machine.inventory, budgets_of(problem.machine)

    def changed(amount: int) -> Problem:
        larger = msgspec.structs.replace(node, pinned_memory_bytes=amount)
        return with_machine(problem, with_node(inventory, larger), budgets)

    most = given + _whole_bytes(problem)
    found = _Search(changed).least(given, most)
    return _relaxation(Axis.PINNED_MEMORY, node.id, given, found, tried=most)


def _disk(problem: Problem, node: Node) -> Relaxation:
    inventory = with_node(problem.machine.inventory, msgspec.structs.replace(node, disk=_ANY_DISK))
    changed = with_machine(problem, inventory, budgets_of(problem.machine))
    enough = "a disk" if is_feasible(changed.task()) else None
    return Relaxation(axis=Axis.DISK, subject=node.id, enough=enough)


def _streaming(problem: Problem) -> Relaxation:
    constraints = msgspec.structs.replace(problem.constraints, no_spill=False)
    changed = msgspec.structs.replace(problem, constraints=constraints)
    enough = "allowed" if is_feasible(changed.task()) else None
    return Relaxation(axis=Axis.STREAMING, given="forbidden", enough=enough)


def with_machine(problem: Problem, inventory: Inventory, budgets: dict[DeviceId, NumBytes]) -> Problem:
    """Return `problem` on another machine, or with other budgets on the same."""
    return msgspec.structs.replace(problem, machine=Machine(inventory, budgets))


def _whole_bytes(problem: Problem) -> int:
    """Return what one device needs at most that has every block, and a slot."""
    chain = problem.chain
    largest = max(form.parameter_bytes for cost in chain.costs for form in cost.forms)
    activations = max(peak_bytes(cost, form) for cost in chain.costs for form in cost.forms)
    return (
        sum(
            max(form.parameter_bytes + form.buffer_bytes for form in cost.forms) + cost.kv_bytes
            for cost in chain.costs
        )
        + sum(len(tie.positions) * tie.num_bytes for tie in chain.ties)
        + largest
        + chain.scratch_bytes
        + chain.activation_bytes(activations)
    )
