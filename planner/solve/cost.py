"""Nanoseconds of one block on one device, and of bytes over one link: the cost model, no search.

`time = overhead + max(bytes / bandwidth, operations / rate)`: the affine overhead per block matters as much
as bandwidth on fast devices. Integers, rounded up, so that equal inputs give equal plans.
"""

from __future__ import annotations

from bayplan.schemas.hardware import Device, Inventory, Link, Node
from bayplan.schemas.plan import BlockRun
from bayplan.schemas.types import Backend, Objective, Residency

NANOSECONDS = 10**9


def duration_ns(amount: int, per_second: int) -> int:
    """Return the time for `amount` of something at `per_second`, in nanoseconds, rounded up."""
    return -(-amount * NANOSECONDS // per_second)


def compute_ns(cost: BlockRun, device: Device, phase: Objective) -> int:
    """Return the time of one call of a block whose weights are on `device`, in nanoseconds.

    Args:
        cost: The block.
        device: Where it computes.
        phase: One token (`decode`) or a whole prefill chunk.
    """
    if phase is Objective.DECODE:
        read_bytes, flops = cost.decode_read_bytes, cost.decode_flops
    else:
        read_bytes, flops = cost.prefill_read_bytes, cost.prefill_flops
    return device.block_overhead_ns + max(
        duration_ns(read_bytes, device.memory_bytes_per_second), duration_ns(flops, device.flops_per_second)
    )


def output_bytes(cost: BlockRun, phase: Objective) -> int:
    """Return the bytes that a block hands on, in `phase`."""
    return cost.decode_output_bytes if phase is Objective.DECODE else cost.prefill_output_bytes


def node_of(inventory: Inventory, device_id: str) -> Node:
    """Return the node that `device_id` belongs to."""
    node_id = device_id.partition("/")[0]
    return next(node for node in inventory.nodes if node.id == node_id)


def find_link(inventory: Inventory, one: str, other: str) -> Link | None:
    """Return the link between two places, in either direction, or None."""
    for link in inventory.links:
        if {link.source, link.target} == {one, other}:
            return link
    return None


def hop_ns(inventory: Inventory, source: Device, target: Device, num_bytes: int) -> int | None:
    """Return the time for activations to go from `source` to `target`, in nanoseconds; None: there is no way.

    A direct link is taken if there is one, else the way over host memory, and over the hosts of two nodes.
    """
    if source.id == target.id:
        return 0
    direct = find_link(inventory, source.id, target.id)
    if direct is not None:
        return direct.latency_ns + duration_ns(num_bytes, direct.bytes_per_second)
    total = 0
    for step in _way(source, target):
        link = find_link(inventory, *step)
        if link is None:
            return None
        total += link.latency_ns + duration_ns(num_bytes, link.bytes_per_second)
    return total


def _way(source: Device, target: Device) -> list[tuple[str, str]]:
    """Return the steps from device to device over host memory; a CPU lies in its host memory."""
    source_node, target_node = source.id.partition("/")[0], target.id.partition("/")[0]
    steps = [] if source.backend == "cpu" else [(source.id, source_node)]
    if source_node != target_node:
        steps.append((source_node, target_node))
    if target.backend != "cpu":
        steps.append((target_node, target.id))
    return steps


def feed(inventory: Inventory, device: Device, tier: Residency) -> tuple[int, str] | None:
    """Return rate and name of the link that brings weights to `device` from `tier`, or None if there is none.

    The rate is in bytes per second; the name is empty for a link of the device's own.
    """
    node = node_of(inventory, device.id)
    host_link = find_link(inventory, device.id, node.id)
    if tier is Residency.STREAM_HOST:
        if device.backend == Backend.CPU or host_link is None:
            return None
        return host_link.bytes_per_second, host_link.group
    if node.disk is None:
        return None
    if device.backend == Backend.CPU:
        return node.disk.read_bytes_per_second, f"{node.id}/disk"
    if host_link is None:
        return None
    return min(node.disk.read_bytes_per_second, host_link.bytes_per_second), f"{node.id}/disk"
