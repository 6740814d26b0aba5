"""Putting an inventory of one machine together, alike for a probed and a declared one.

Owns the reserves, the device ids and which links there are. Reads no machine and no option.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import msgspec

from bayplan.planner.hardware.catalogue import AcceleratorEntry, CpuEntry, DiskEntry, LinkEntry
from bayplan.planner.hardware.catalogue_links import LINKS
from bayplan.schemas.hardware import INVENTORY_FORMAT_VERSION, Device, Disk, Inventory, Link, Node
from bayplan.schemas.types import Backend, NumBytes

NODE_ID = "node0"
"""The only node of a probed or declared machine."""

ACCELERATOR_RESERVE_BYTES = 2**30
"""Device context (0.4 to 1 GiB under CUDA) and what the allocator loses by rounding."""

HOST_RESERVE_MIN_BYTES = 2**30
"""Kept for the operating system at least; a tenth of host memory where that is more."""


class Compute(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator of the machine."""

    entry: AcceleratorEntry
    """Its rates and links."""
    kind: str
    capacity_bytes: NumBytes
    shares_host_memory: bool


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """Host memory and, unless it computes nothing, the CPU."""

    memory_bytes: NumBytes
    cpu: CpuEntry | None
    features: tuple[str, ...]
    """Instruction sets, sorted; of the machine itself, not of the catalogue, where it was probed."""


def assemble(
    *, source: Literal["probed", "declared"], host: Host, disk: Disk, accelerators: Sequence[Compute]
) -> Inventory:
    """Return the inventory of one machine: accelerators in the order given, then the CPU.

    Args:
        source: `probed` or `declared`.
        host: Memory, and the CPU with rates for all of its usable cores.
        disk: What the checkpoint is read from.
        accelerators: In chain order.
    """
    reserve_bytes = min(host.memory_bytes, max(HOST_RESERVE_MIN_BYTES, host.memory_bytes // 10))
    devices = [_accelerator(index, found, host.memory_bytes) for index, found in enumerate(accelerators)]
    links = [
        _link(NODE_ID, device.id, LINKS[found.entry.host_link])
        for device, found in zip(devices, accelerators, strict=True)
    ]
    # Devices without a link of their own exchange bytes over host memory, so only faster ways are listed.
    for (one, found), (other, peer) in combinations(zip(devices, accelerators, strict=True), 2):
        if found.entry.peer_link is not None and found.kind == peer.kind:
            links.append(_link(one.id, other.id, LINKS[found.entry.peer_link]))
    if host.cpu is not None:
        devices.append(_cpu(host.cpu, host, reserve_bytes))
    node = Node(id=NODE_ID, host_memory_bytes=host.memory_bytes, host_reserve_bytes=reserve_bytes, disk=disk)
    return Inventory(
        format_version=INVENTORY_FORMAT_VERSION,
        source=source,
        nodes=(node,),
        devices=tuple(devices),
        links=tuple(links),
    )


def catalogue_disk(entry: DiskEntry) -> Disk:
    """Return the disk that an entry describes."""
    return Disk(read_bytes_per_second=entry.read_bytes_per_second, latency_ns=entry.latency_ns)


def _accelerator(index: int, found: Compute, host_memory_bytes: int) -> Device:
    capacity_bytes = found.capacity_bytes
    if found.shares_host_memory:
        capacity_bytes = min(capacity_bytes, host_memory_bytes)
    return Device(
        id=f"{NODE_ID}/gpu{index}",
        kind=found.kind,
        backend=found.entry.backend,
        capacity_bytes=capacity_bytes,
        reserve_bytes=min(capacity_bytes, ACCELERATOR_RESERVE_BYTES),
        memory_bytes_per_second=found.entry.bandwidth.value,
        flops_per_second=found.entry.flops.value,
        block_overhead_ns=found.entry.block_overhead.value,
        shares_host_memory=found.shares_host_memory,
    )


def _cpu(entry: CpuEntry, host: Host, reserve_bytes: int) -> Device:
    return Device(
        id=f"{NODE_ID}/cpu",
        kind=entry.name,
        backend=Backend.CPU,
        capacity_bytes=host.memory_bytes,
        reserve_bytes=reserve_bytes,
        memory_bytes_per_second=entry.bandwidth.value,
        flops_per_second=entry.flops.value,
        block_overhead_ns=entry.block_overhead.value,
        shares_host_memory=True,
        features=host.features,
    )


def _link(source: str, target: str, entry: LinkEntry) -> Link:
    return Link(
        source=source,
        target=target,
        bytes_per_second=entry.bytes_per_second,
        latency_ns=entry.latency_ns,
    )
