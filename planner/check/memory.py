"""The ledgers: what each device and each host needs for the blocks that it has, to the byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from bayplan.planner.check.basis import (
    PlacedBlock,
    Placement,
    Problem,
    apart_from,
    lies_in_host_memory,
    node_of,
)
from bayplan.planner.check.experts import cache_bytes, host_bytes
from bayplan.schemas.plan import PlannedDevice, PlannedHost, aligned_bytes
from bayplan.schemas.types import BytesRange, DeviceId, Residency

_SLACK_FRACTION = 32
"""Activations are bounded by what was traced and one part in so many more."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a device needs by component, each `[lo, hi]` in bytes; the runtime is outside the budget."""

    weights: BytesRange = (0, 0)
    kv: BytesRange = (0, 0)
    activations: BytesRange = (0, 0)
    staging: BytesRange = (0, 0)
    load_transient: BytesRange = (0, 0)

    @property
    def budgeted_bytes(self) -> int:
        """Upper bound of all components."""
        return sum(getattr(self, component)[1] for component in self.__struct_fields__)


def memory_problems(placement: Placement) -> Iterator[Problem]:
    """Yield every figure of the devices and hosts that is not what the blocks on them need."""
    for index, device in enumerate(placement.plan.devices):
        yield from _device_problems(placement, device, f"$.devices[{index}]")
    for index, host in enumerate(placement.plan.hosts):
        yield from _host_problems(placement, host, f"$.hosts[{index}]")
    yield from _tie_problems(placement)


def device_needs(placement: Placement, blocks: Sequence[PlacedBlock], *, keep_all: bool = False) -> Needs:
    """Return what one device needs for `blocks`.

    Args:
        placement: Slots and ties.
        blocks: All that compute there.
        keep_all: Count them as if none of them streamed.
    """
    if not blocks:
        return Needs()
    streamed = [] if keep_all else [entry for entry in blocks if entry.streams]
    if keep_all:
        parameters = sum(entry.form.parameter_bytes for entry in blocks)
    else:
        parameters = sum(entry.own_parameter_bytes for entry in blocks if not entry.streams)
    # Of streamed blocks only the buffers stay; they are counted with their alignment.
    padding = sum(
        entry.form.parameter_bytes + entry.form.buffer_bytes - entry.form.num_bytes
        for entry in blocks
        if keep_all or not entry.streams
    )
    buffers = sum(entry.form.buffer_bytes for entry in blocks)
    weights = parameters + buffers + _replica_bytes(placement, {entry.index for entry in blocks})
    kv = sum(entry.run.kv_bytes for entry in blocks)
    base = placement.plan.problem.base_activation_bytes
    traced, most = (base + max(own) for own in zip(*(one.activation_bytes for one in blocks), strict=True))
    if not keep_all and any(apart_from(entry.block) is not None for entry in placement.blocks):
        most = traced
    staging = placement.plan.problem.scratch_bytes
    if not keep_all:
        staging += cache_bytes(tuple(blocks))
    if streamed:
        slot_bytes = max(entry.form.parameter_bytes for entry in streamed)
        staging += placement.num_slots.get(blocks[0].block.device, 0) * slot_bytes
    return Needs(
        weights=(weights - padding, weights),
        kv=(kv, kv),
        activations=(traced, most + -(-most // _SLACK_FRACTION)),
        staging=(staging, staging),
    )


def waiting_bytes(placement: Placement, node_id: str) -> int:
    """Return the aligned bytes of the weights in the host memory of a node: streamed blocks and experts."""
    return sum(
        (entry.form.parameter_bytes if entry.block.residency == Residency.STREAM_HOST else 0)
        + host_bytes(entry)
        for entry in placement.blocks
        if node_of(entry.block.device) == node_id
    )


def _device_problems(placement: Placement, device: PlannedDevice, path: str) -> Iterator[Problem]:
    blocks = placement.by_device[device.id]
    reserve_bytes = placement.devices[device.id].reserve_bytes
    if device.reserve_bytes != reserve_bytes:
        yield f"{path}.reserve_bytes", f"{device.reserve_bytes}, but the inventory says {reserve_bytes}"
    budget = placement.budgets[device.id]
    if device.budget_bytes != budget:
        yield f"{path}.budget_bytes", f"{device.budget_bytes}, but the inputs give {budget}"
    if blocks and budget == 0:
        yield path, f"has no budget, but {blocks[0].block.id} computes there"
    needs = device_needs(placement, blocks)
    for component in Needs.__struct_fields__:
        said, needed = getattr(device.ledger, component), getattr(needs, component)
        if said != needed:
            yield f"{path}.ledger.{component}", f"{_shown(said)}, but the blocks need {_shown(needed)}"
    if needs.budgeted_bytes > budget:
        yield path, f"the blocks need {needs.budgeted_bytes} bytes, the budget is {budget}"


def _host_problems(placement: Placement, host: PlannedHost, path: str) -> Iterator[Problem]:
    node = placement.nodes[host.id]
    inside = [
        device.id
        for device in placement.devices.values()
        if lies_in_host_memory(device) and node_of(device.id) == host.id
    ]
    unreserved = max(0, node.host_memory_bytes - node.host_reserve_bytes)
    # Who gives a device in host memory more than the reserve leaves has raised the host's budget with it.
    budget = max([unreserved, *(placement.budgets[device_id] for device_id in inside)])
    pinned = unreserved if node.pinned_memory_bytes is None else node.pinned_memory_bytes
    waiting = waiting_bytes(placement, host.id)
    for field, needed in (
        ("budget_bytes", budget),
        ("pinned_budget_bytes", pinned),
        ("waiting_bytes", waiting),
    ):
        said = getattr(host, field)
        if said != needed:
            yield f"{path}.{field}", f"{said}, but the inputs give {needed}"
    if waiting > pinned:
        yield path, f"{waiting} bytes wait, {pinned} may"
    taken = waiting + sum(_needed_bytes(placement, device_id) for device_id in inside)
    if taken > budget:
        yield path, f"{taken} bytes of its devices and of what waits, the budget is {budget}"


def _needed_bytes(placement: Placement, device_id: DeviceId) -> int:
    return device_needs(placement, placement.by_device[device_id]).budgeted_bytes


def _replica_bytes(placement: Placement, positions: set[int]) -> int:
    """Return the bytes of tied storages that the blocks at `positions` use and a block elsewhere counts."""
    return sum(
        aligned_bytes(tie.num_bytes)
        for tie, holders in zip(placement.plan.ties, placement.tie_holders, strict=True)
        if holders and holders[0] not in positions and not positions.isdisjoint(holders)
    )


def _tie_problems(placement: Placement) -> Iterator[Problem]:
    for index, (tie, holders) in enumerate(zip(placement.plan.ties, placement.tie_holders, strict=True)):
        devices = tuple(dict.fromkeys(placement.blocks[position].block.device for position in holders))
        policy = "co-located" if len(devices) == 1 else "replicated"
        if tie.devices != devices:
            yield (
                f"$.ties[{index}].devices",
                f"{_names(tie.devices)}, but its blocks are on {_names(devices)}",
            )
        if tie.policy != policy:
            yield f"$.ties[{index}].policy", f"{tie.policy}, but its blocks are on {_names(devices)}"


def _names(devices: Sequence[DeviceId]) -> str:
    return ", ".join(devices) or "none"


def _shown(bounds: BytesRange) -> str:
    lo, hi = bounds
    return f"{lo} to {hi} bytes" if lo != hi else f"{lo} bytes"
