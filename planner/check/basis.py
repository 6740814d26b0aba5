"""A plan's blocks beside what each costs, for the checks to walk over.

Knows no arithmetic. Says what keeps the parts of a plan from belonging together, without which no sum over
them means anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import msgspec

from bayplan.schemas.hardware import Device, Node
from bayplan.schemas.plan import Block, Experts, Plan
from bayplan.schemas.problem import BlockForm, BlockRun
from bayplan.schemas.types import OWN_SUFFIX, Backend, DeviceId, Fqn, Residency

Problem = tuple[str, str]
"""JSON path and text."""


class PlacedBlock(msgspec.Struct, frozen=True, kw_only=True):
    """One block, the run that it is of, and the form that it is in."""

    index: int
    block: Block
    run: BlockRun
    form: BlockForm

    @property
    def path(self) -> str:
        """Where it stands in the plan."""
        return f"$.blocks[{self.index}]"

    @property
    def streams(self) -> bool:
        """Whether its weights are brought in before each visit."""
        return self.block.residency != Residency.RESIDENT

    @property
    def own_parameter_bytes(self) -> int:
        """Its parameters, aligned, without experts that are apart from it."""
        experts = apart_from(self.block)
        apart_bytes = 0 if experts is None else experts.count * self.form.unit_bytes
        return max(0, self.form.parameter_bytes - apart_bytes)

    @property
    def activation_bytes(self) -> tuple[int, int]:
        """What it needs at least and at most while it runs, besides what is alive in all of a forward.

        At least is without the copies of experts, which only `generate()` makes, and only where all are with
        their blocks.
        """
        prefill, decode = self.run.prefill_activation_bytes, self.run.decode_activation_bytes
        without, copying = max(prefill, decode), max(prefill, decode + self.form.copied_bytes)
        return without + self.form.workspace_bytes, copying + self.form.workspace_bytes


class Placement:
    """A plan whose parts belong together.

    Attributes:
        plan: All of it.
        blocks: In execution order.
        devices: Of the inventory, by id, in chain order.
        nodes: Of the inventory, by id.
    """

    def __init__(self, plan: Plan, blocks: tuple[PlacedBlock, ...]) -> None:
        self.plan = plan
        self.blocks = blocks
        self.devices: dict[DeviceId, Device] = {device.id: device for device in plan.inventory.devices}
        self.nodes: dict[str, Node] = {node.id: node for node in plan.inventory.nodes}

    @cached_property
    def by_device(self) -> dict[DeviceId, tuple[PlacedBlock, ...]]:
        """Blocks that compute on each device of the inventory, in execution order."""
        found: dict[DeviceId, list[PlacedBlock]] = {device_id: [] for device_id in self.devices}
        for entry in self.blocks:
            found[entry.block.device].append(entry)
        return {device_id: tuple(entries) for device_id, entries in found.items()}

    @cached_property
    def num_slots(self) -> dict[DeviceId, int]:
        """Slots of each device that streams."""
        return {entry.device: entry.num_slots for entry in self.plan.schedule}

    @cached_property
    def budgets(self) -> dict[DeviceId, int]:
        """Budget of each device in bytes, from the inventory and what the user said."""
        given = self.plan.problem.max_memory_bytes
        return {
            device.id: given.get(device.id, max(0, device.capacity_bytes - device.reserve_bytes))
            for device in self.devices.values()
        }

    @cached_property
    def tie_holders(self) -> tuple[tuple[int, ...], ...]:
        """Per tied storage, the positions of the blocks that use it, ascending."""
        place = {entry.block.id: entry.index for entry in self.blocks}
        holders = []
        for tie in self.plan.ties:
            owners = {_owner(place, fqn) for fqn in tie.fqns}
            holders.append(tuple(sorted(index for index in owners if index is not None)))
        return tuple(holders)


def apart_from(block: Block) -> Experts | None:
    """Return the experts of `block` where they live apart from it; None: it has none, or has them with it."""
    experts = block.experts
    return None if experts is None or experts.residency in ("with-block", "resident") else experts


def node_of(device_id: DeviceId) -> str:
    """Return the id of the node that a device is part of."""
    return device_id.split("/", 1)[0]


def lies_in_host_memory(device: Device) -> bool:
    """Whether what the device holds is in its host's memory."""
    return device.shares_host_memory or device.backend == Backend.CPU


def read_placement(plan: Plan) -> tuple[Placement | None, tuple[Problem, ...]]:
    """Return the placement of `plan`; None and what is wrong where its parts do not belong together."""
    problems = [*_place_problems(plan), *_run_problems(plan)]
    if problems:
        return None, tuple(problems)
    blocks: list[PlacedBlock] = []
    runs = (run for run in plan.problem.runs for _ in range(run.count))
    for index, (block, run) in enumerate(zip(plan.blocks, runs, strict=True)):
        form = next((form for form in run.forms if form.format == block.format), None)
        if form is None:
            names = ", ".join(form.format for form in run.forms)
            problems.append((f"$.blocks[{index}].format", f"{block.format}, but its forms are {names}"))
        else:
            blocks.append(PlacedBlock(index=index, block=block, run=run, form=form))
    if problems:
        return None, tuple(problems)
    return Placement(plan, tuple(blocks)), ()


def _place_problems(plan: Plan) -> Iterator[Problem]:
    """Yield where devices, hosts, blocks and edges name what is not there."""
    devices = [device.id for device in plan.inventory.devices]
    nodes = [node.id for node in plan.inventory.nodes]
    if [device.id for device in plan.devices] != devices:
        yield "$.devices", "not those of the inventory in its order"
    if [host.id for host in plan.hosts] != nodes:
        yield "$.hosts", "not the nodes of the inventory in its order"
    for index, device_id in enumerate(devices):
        if node_of(device_id) not in nodes:
            yield f"$.inventory.devices[{index}].id", f"node of {device_id} is not in the inventory"
    for device_id in plan.problem.max_memory_bytes:
        if device_id not in devices:
            yield "$.problem.max_memory_bytes", f"{device_id} is not in the inventory"
    for index, block in enumerate(plan.blocks):
        if block.device not in devices:
            yield f"$.blocks[{index}].device", f"{block.device} is not in the inventory"
    ids = {block.id for block in plan.blocks}
    for index, edge in enumerate(plan.problem.edges):
        for end, block_id in (("source", edge.source), ("target", edge.target)):
            if block_id not in ids:
                yield f"$.problem.edges[{index}].{end}", f"{block_id} is not among the blocks"


def _run_problems(plan: Plan) -> Iterator[Problem]:
    """Yield where the runs do not fold the blocks."""
    num_blocks = sum(run.count for run in plan.problem.runs)
    if num_blocks != len(plan.blocks):
        yield "$.problem.runs", f"{num_blocks} blocks, but the plan places {len(plan.blocks)}"
        return
    start = 0
    for index, run in enumerate(plan.problem.runs):
        if run.count == 0:
            yield f"$.problem.runs[{index}].count", "0"
        elif run.first != plan.blocks[start].id:
            yield f"$.problem.runs[{index}].first", f"{run.first}, but the block is {plan.blocks[start].id}"
        start += run.count


def _owner(place: dict[Fqn, int], fqn: Fqn) -> int | None:
    """Return the position of the block that holds the tensor `fqn`; None: it is known by another name.

    Tensors of a split module are its `:own` block's; all others belong to the innermost block around them.
    """
    module = fqn.rpartition(".")[0]
    own = place.get(module + OWN_SUFFIX)
    if own is not None:
        return own
    parts = module.split(".")
    paths = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((place[path] for path in paths if path in place), None)
