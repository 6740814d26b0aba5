"""Ways of bytes through an inventory, and what they take in nanoseconds."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from bayplan.planner.check.basis import node_of
from bayplan.schemas.hardware import Inventory, Link
from bayplan.schemas.types import Backend, DeviceId, Residency


def spent_ns(amount: int, per_second: int) -> int:
    """Return the time that `amount` takes at `per_second`, in nanoseconds, rounded up."""
    whole, rest = divmod(amount * 10**9, per_second)
    return whole + bool(rest)


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """A way for weights into a device."""

    bytes_per_second: int
    latency_ns: int
    shared: tuple[str, ...]
    """What only one transfer of all devices can use at a time."""

    def ns(self, num_bytes: int) -> int:
        """Return the time to bring `num_bytes` in, in nanoseconds."""
        return self.latency_ns + spent_ns(num_bytes, self.bytes_per_second)


class Ways:
    """What an inventory connects; of several links between two places, the first counts."""

    def __init__(self, inventory: Inventory) -> None:
        self._devices = {device.id: device for device in inventory.devices}
        self._nodes = {node.id: node for node in inventory.nodes}
        self._links: dict[tuple[str, str], Link] = {}
        for link in inventory.links:
            for ends in ((link.source, link.target), (link.target, link.source)):
                self._links.setdefault(ends, link)

    def handover_ns(self, source: DeviceId, target: DeviceId, num_values: int, num_bytes: int) -> int | None:
        """Return the time for activations from device to device, in nanoseconds; None: there is no way.

        Args:
            source: Whence.
            target: Whither.
            num_values: Copies; each pays every latency of the way.
            num_bytes: Of all values together.
        """
        way = self._way(source, target)
        if way is None:
            return None
        return sum(num_values * link.latency_ns + spent_ns(num_bytes, link.bytes_per_second) for link in way)

    def feed(self, device_id: DeviceId, residency: Residency) -> Feed | None:
        """Return the way for weights that stream by `residency` to a device; None: there is none."""
        device, node_id = self._devices[device_id], node_of(device_id)
        link = self._links.get((device_id, node_id))
        is_cpu = device.backend == Backend.CPU
        in_place = is_cpu or device.shares_host_memory
        if not is_cpu and link is None:
            return None
        shared = () if is_cpu or link is None or not link.group else (f"links {link.group} of {node_id}",)
        if residency == Residency.STREAM_HOST:
            if in_place or link is None:
                return None  # what waits there is where it is needed already
            return Feed(bytes_per_second=link.bytes_per_second, latency_ns=link.latency_ns, shared=shared)
        disk = self._nodes[node_id].disk
        if disk is None:
            return None
        shared = (f"disk of {node_id}", *shared)
        if in_place or link is None:
            return Feed(
                bytes_per_second=disk.read_bytes_per_second, latency_ns=disk.latency_ns, shared=shared
            )
        return Feed(
            bytes_per_second=min(disk.read_bytes_per_second, link.bytes_per_second),
            latency_ns=disk.latency_ns + link.latency_ns,
            shared=shared,
        )

    def _way(self, source: DeviceId, target: DeviceId) -> list[Link] | None:
        """Return the direct link, else those over the hosts; a CPU is at its host already."""
        if source == target:
            return []
        direct = self._links.get((source, target))
        if direct is not None:
            return [direct]
        stops = [source, node_of(source), node_of(target), target]
        if self._devices[source].backend == Backend.CPU:
            del stops[0]
        if self._devices[target].backend == Backend.CPU:
            del stops[-1]
        way: list[Link] = []
        for here, there in pairwise(stops):
            link = self._links.get((here, there))
            if here != there and link is None:
                return None
            if here != there and link is not None:
                way.append(link)
        return way
