"""The machine as the solver asks about it: ways for activations, ways for weights, and host memory.

Made once from an inventory and the budgets; answers in constant time what the inventory would have to be
searched for. Devices are known by their place in the chain's order; those without a budget are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan.planner.solve.cost import duration_ns
from bayplan.schemas.hardware import Device, Inventory, Link, Node
from bayplan.schemas.types import Backend, DeviceId, Nanoseconds, NumBytes, Residency

STREAM_TIERS = (Residency.STREAM_HOST, Residency.STREAM_DISK)
"""Residencies of a block that streams."""


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """The way by which weights reach a device from one tier."""

    bytes_per_second: int
    latency_ns: Nanoseconds
    resources: tuple[str, ...]
    """What other devices' transfers use too: a disk, a PCIe switch. One transfer occupies all of them."""

    def transfer_ns(self, num_bytes: int) -> int:
        """Return the time to bring `num_bytes` in, in nanoseconds."""
        return self.latency_ns + duration_ns(num_bytes, self.bytes_per_second)


class Machine:
    """Devices that may compute, in chain order, and what lies between them.

    Attributes:
        inventory: What it was made of.
        devices: Those with a budget above zero, in chain order.
        budgets: In bytes, per device.
        accelerators: Index of every device that is no CPU.
        nodes: Index into the inventory's nodes, per device.
        host_budgets: Host memory that a placement may take, in bytes, per node of the inventory.
        pinned_budgets: Of it, what may wait there for devices, in bytes, per node.
    """

    def __init__(self, inventory: Inventory, budgets: Mapping[DeviceId, NumBytes]) -> None:
        self.inventory = inventory
        self.devices = tuple(device for device in inventory.devices if budgets[device.id] > 0)
        self.budgets = tuple(budgets[device.id] for device in self.devices)
        self.accelerators = frozenset(
            index for index, device in enumerate(self.devices) if device.backend is not Backend.CPU
        )
        node_ids = [node.id for node in inventory.nodes]
        self.nodes = tuple(node_ids.index(device.id.partition("/")[0]) for device in self.devices)
        self.host_budgets = tuple(_host_budget(node, inventory, budgets) for node in inventory.nodes)
        self.pinned_budgets = tuple(
            max(0, node.host_memory_bytes - node.host_reserve_bytes)
            if node.pinned_memory_bytes is None
            else node.pinned_memory_bytes
            for node in inventory.nodes
        )
        links = {frozenset((link.source, link.target)): link for link in reversed(inventory.links)}
        self._links: dict[frozenset[str], Link] = links
        every = range(len(self.devices))
        self._ways = {(i, j): self._way(self.devices[i], self.devices[j]) for i in every for j in every}
        self._feeds = {(i, tier): self._feed(i, tier) for i in every for tier in STREAM_TIERS}

    def lies_in_host_memory(self, index: int) -> bool:
        """Whether the bytes of the device at `index` are its host's."""
        return lies_in_host_memory(self.devices[index])

    def feed(self, index: int, tier: Residency) -> Feed | None:
        """Return the way for weights from `tier` to the device at `index`; None: there is none."""
        return self._feeds[index, tier]

    def hop_ns(self, source: int, target: int, num_bytes: int) -> int | None:
        """Return the time for activations from one device to another, in nanoseconds; None: there is no way.

        A direct link is taken if there is one, else the way over host memory, of both nodes if they differ.
        """
        way = self._ways[source, target]
        if way is None:
            return None
        return sum(link.latency_ns + duration_ns(num_bytes, link.bytes_per_second) for link in way)

    def _link(self, one: str, other: str) -> Link | None:
        return self._links.get(frozenset((one, other)))

    def _way(self, source: Device, target: Device) -> tuple[Link, ...] | None:
        """Return the links from device to device; a CPU lies in its host memory."""
        if source.id == target.id:
            return ()
        direct = self._link(source.id, target.id)
        if direct is not None:
            return (direct,)
        source_node, target_node = source.id.partition("/")[0], target.id.partition("/")[0]
        steps = [] if source.backend is Backend.CPU else [(source.id, source_node)]
        if source_node != target_node:
            steps.append((source_node, target_node))
        if target.backend is not Backend.CPU:
            steps.append((target_node, target.id))
        links = [self._link(*step) for step in steps]
        found = tuple(link for link in links if link is not None)
        return found if len(found) == len(steps) else None

    def _feed(self, index: int, tier: Residency) -> Feed | None:
        device, node = self.devices[index], self.inventory.nodes[self.nodes[index]]
        is_cpu = device.backend is Backend.CPU
        host_link = None if is_cpu else self._link(device.id, node.id)
        if not is_cpu and host_link is None:
            return None
        group = () if host_link is None or not host_link.group else (f"{node.id}/{host_link.group}",)
        if tier is Residency.STREAM_HOST:
            if host_link is None or device.shares_host_memory:
                return None  # its weights are where they would be brought from
            return Feed(
                bytes_per_second=host_link.bytes_per_second,
                latency_ns=host_link.latency_ns,
                resources=group,
            )
        if node.disk is None:
            return None
        rates = [node.disk.read_bytes_per_second]
        latency_ns = node.disk.latency_ns
        if host_link is not None and not device.shares_host_memory:
            rates.append(host_link.bytes_per_second)
            latency_ns += host_link.latency_ns
        return Feed(bytes_per_second=min(rates), latency_ns=latency_ns, resources=(f"{node.id}/disk", *group))


def lies_in_host_memory(device: Device) -> bool:
    """Whether the device's bytes are its host's."""
    return device.backend is Backend.CPU or device.shares_host_memory


def without_id(device: Device) -> Device:
    """Return what devices that are alike have in common."""
    return msgspec.structs.replace(device, id="any/any")


def with_node(inventory: Inventory, node: Node) -> Inventory:
    """Return `inventory` with `node` in place of the one that has its name."""
    nodes = tuple(node if node.id == other.id else other for other in inventory.nodes)
    return msgspec.structs.replace(inventory, nodes=nodes)


def _host_budget(node: Node, inventory: Inventory, budgets: Mapping[DeviceId, NumBytes]) -> int:
    """Return the host memory that a placement may take on `node`, in bytes.

    A user who gives a device in host memory a larger budget than the reserve leaves has raised it.
    """
    own = [
        budgets[device.id]
        for device in inventory.devices
        if lies_in_host_memory(device) and device.id.partition("/")[0] == node.id
    ]
    return max(0, node.host_memory_bytes - node.host_reserve_bytes, *own)
