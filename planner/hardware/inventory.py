"""Putting an inventory of one machine together, alike for a probed and a declared one.

Owns the reserves, the device ids and which links there are. Reads no machine and no option.
"""

from __future__ import annotations

from collections import Counter
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
        _link(NODE_ID, device.id, LINKS[found.entry.host_link], group=group)
        for device, found, group in zip(devices, accelerators, _switches(accelerators), strict=True)
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


def repeated_node(inventory: Inventory, count: int, network: LinkEntry) -> Inventory:
    """Return the inventory of `count` machines like the one of `inventory`, each joined to each by a network.

    The chain goes through all devices of a machine before it goes to the next.

    Args:
        inventory: Of one machine.
        count: At least 1.
        network: Between the host memories of any two.
    """
    names = [f"node{number}" for number in range(count)]

    def moved(place: str, name: str) -> str:
        return name + place.removeprefix(NODE_ID)

    between = [_link(one, other, network) for one, other in combinations(names, 2)]
    return msgspec.structs.replace(
        inventory,
        nodes=tuple(msgspec.structs.replace(node, id=name) for name in names for node in inventory.nodes),
        devices=tuple(
            msgspec.structs.replace(device, id=moved(device.id, name))
            for name in names
            for device in inventory.devices
        ),
        links=(
            *(
                msgspec.structs.replace(
                    link, source=moved(link.source, name), target=moved(link.target, name)
                )
                for name in names
                for link in inventory.links
            ),
            *between,
        ),
    )


def _switches(accelerators: Sequence[Compute]) -> list[str]:
    """Return for each accelerator the switch behind which it shares a way to host memory; empty: none."""
    groups, seen = [], Counter[str]()
    totals = Counter(found.kind for found in accelerators)
    for found in accelerators:
        sharers, kind = found.entry.host_link_sharers, found.kind
        if sharers is None or totals[kind] == 1:
            groups.append("")
        else:
            groups.append(f"{kind}-switch{seen[kind] // sharers.value}")
        seen[kind] += 1
    return groups


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
        block_overhead_ns=0,
        operation_overhead_ns=found.entry.operation_overhead.value,
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
        block_overhead_ns=0,
        operation_overhead_ns=entry.operation_overhead.value,
        shares_host_memory=True,
        features=host.features,
    )


def _link(source: str, target: str, entry: LinkEntry, *, group: str = "") -> Link:
    return Link(
        source=source,
        target=target,
        bytes_per_second=entry.bytes_per_second,
        latency_ns=entry.latency_ns,
        group=group,
    )
