"""What one device of a plan does in a step, and what keeps its part from being better.

What would gain, as solving again has shown, comes before what is merely busy.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.experts import ExpertsResidency
from bayplan.planner.solve.timeline import visits
from bayplan.planner.solve_again import Again
from bayplan.schemas.explanation import Binding, DeviceExplanation
from bayplan.schemas.plan import Ledger, PlannedDevice
from bayplan.schemas.types import DeviceId, Residency

WITHOUT_PINS = "pins"
"""Name of the question what the plan would be without the user's pins."""


class Answered:
    """A plan's problem solved again, and what was found out about it.

    Attributes:
        again: The problem.
        answer: What the plan decided.
        gains: By how much each change makes the objective better, in nanoseconds: by device or node with more
            memory, or `WITHOUT_PINS`.
        task: The problem's.
        visits: One step of `answer`.
    """

    def __init__(self, again: Again, answer: Answer, gains: Mapping[str, int]) -> None:
        self.again = again
        self.answer = answer
        self.gains = gains
        self.task = again.problem.task()
        self.visits = visits(self.task, answer) or []

    def gains_by(self, name: str) -> bool:
        """Whether a change makes the objective better, beyond the search's own gap."""
        return self.again.is_more(self.gains.get(name, 0))


def explain_device(planned: PlannedDevice, answered: Answered) -> DeviceExplanation:
    """Return what `planned` does, and what binds it."""
    component, component_bytes = _largest_component(planned.ledger)
    own = next(
        (index for index, one in enumerate(answered.task.machine.devices) if one.id == planned.id), None
    )
    compute_ns, transfer_ns = (0, 0) if own is None else _busy_ns(answered, own)
    blocks = () if own is None else answered.answer.blocks_on(own)
    choices = [answered.answer.choices[index] for index in blocks]
    facts = DeviceExplanation(
        id=planned.id,
        num_blocks=len(blocks),
        num_streamed=sum(_tier(choice) is not None for choice in choices),
        budget_bytes=planned.budget_bytes,
        needed_bytes=planned.ledger.budgeted_bytes,
        component=component,
        component_bytes=component_bytes,
        compute_ns=compute_ns,
        transfer_ns=transfer_ns,
        binding=Binding.NOTHING,
        shared_with=() if own is None else _sharers(answered, own),
        gain_ns=answered.gains.get(planned.id),
    )
    return facts if own is None else msgspec.structs.replace(facts, binding=_binding(facts, answered, own))


def _binding(facts: DeviceExplanation, answered: Answered, device: int) -> Binding:
    constraints = answered.again.problem.constraints
    blocks = answered.answer.blocks_on(device)
    is_pinned = any(
        own[index] is not None
        for own in (constraints.device, constraints.residency, constraints.form)
        for index in blocks
    )
    if answered.gains_by(facts.id):
        return Binding.MEMORY
    if not blocks:
        return Binding.NOTHING
    if is_pinned and answered.gains_by(WITHOUT_PINS):
        return Binding.PIN
    if facts.num_streamed and answered.gains_by(facts.id.partition("/")[0]):
        return Binding.HOST_MEMORY
    if facts.transfer_ns > facts.compute_ns:
        return _slowest_part(answered, device)
    return Binding.COMPUTE


def _tier(choice: Choice) -> Residency | None:
    """Return where weights of a block come from in every step; None: they do not."""
    if choice.streams:
        return choice.residency
    caches = choice.experts is not None and choice.experts.residency is not ExpertsResidency.COMPUTE_HOST
    return choice.experts.residency.tier if caches and choice.experts is not None else None


def _slowest_part(answered: Answered, device: int) -> Binding:
    """Return whether the disk or the link is the slowest part of the way that most of the weights take."""
    task, machine = answered.task, answered.task.machine
    node = machine.inventory.nodes[machine.nodes[device]]
    by_disk = by_link = 0
    for index in answered.answer.blocks_on(device):
        tier = _tier(answered.answer.choices[index])
        way = None if tier is None else machine.feed(device, tier)
        if way is None:
            continue
        num_bytes = task.form(index, answered.answer).parameter_bytes
        is_slow = node.disk is not None and way.bytes_per_second == node.disk.read_bytes_per_second
        if tier is Residency.STREAM_DISK and is_slow:
            by_disk += num_bytes
        else:
            by_link += num_bytes
    return Binding.DISK if by_disk >= by_link else Binding.LINK


def _sharers(answered: Answered, device: int) -> tuple[DeviceId, ...]:
    """Return the other devices whose weights come over a disk or a link that this one's come over."""
    used: dict[int, set[str]] = {}
    for visit in answered.visits:
        for transfer in (visit.transfer, visit.fetch):
            if transfer is not None:
                used.setdefault(visit.device, set()).update(transfer.resources)
    own = used.get(device, set())
    return tuple(
        answered.task.machine.devices[other].id
        for other, resources in sorted(used.items())
        if other != device and own & resources
    )


def _busy_ns(answered: Answered, device: int) -> tuple[int, int]:
    """Return how long a device computes in a step, and how long its weights are on their way."""
    compute_ns = transfer_ns = 0
    for visit in answered.visits:
        if visit.device == device:
            compute_ns += visit.compute_ns + visit.fetched_compute_ns
            transfer_ns += sum(one.duration_ns for one in (visit.transfer, visit.fetch) if one is not None)
    return compute_ns, transfer_ns


def _largest_component(ledger: Ledger) -> tuple[str, int]:
    sizes: list[tuple[int, str]] = [
        (ledger.weights[1], "weights"),
        (ledger.kv[1], "kv"),
        (ledger.activations[1], "activations"),
        (ledger.staging[1], "staging"),
        (ledger.load_transient[1], "load_transient"),
    ]
    size = max(size for size, _ in sizes)
    name = next(name for own, name in sizes if own == size)
    return (name, size) if size else ("", 0)
