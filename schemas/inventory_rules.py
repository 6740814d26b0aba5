"""What must hold between the fields of an inventory, beyond the type of each.

Answers with every problem and its path. Knows nothing of catalogues: any rate is believed, however absurd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from bayplan.schemas.hardware import Device, Inventory, Node
from bayplan.schemas.types import Backend

Problems = Iterator[tuple[str, str]]


def lies_in_host_memory(device: Device) -> bool:
    """Whether the bytes of `device` are its host's."""
    return device.backend is Backend.CPU or device.shares_host_memory


def inventory_problems(inventory: Inventory, path: str = "$") -> Problems:
    """Yield `(path, text)` for every contradiction inside `inventory`, which lies at `path`."""
    nodes = {node.id: node for node in inventory.nodes}
    yield from _repeated((node.id for node in inventory.nodes), f"{path}.nodes", "node")
    yield from _repeated((device.id for device in inventory.devices), f"{path}.devices", "device")
    for name, members in (("nodes", inventory.nodes), ("devices", inventory.devices)):
        if not members:
            yield f"{path}.{name}", "there is none"
    for index, node in enumerate(inventory.nodes):
        yield from _node_problems(node, f"{path}.nodes[{index}]")
    linked = {frozenset((link.source, link.target)) for link in inventory.links}
    for index, device in enumerate(inventory.devices):
        where, own = f"{path}.devices[{index}]", nodes.get(device.id.partition("/")[0])
        if own is None:
            yield f"{where}.id", f"node of {device.id!r} is not in the inventory"
            continue
        yield from _device_problems(device, own, where)
        if not lies_in_host_memory(device) and frozenset((device.id, own.id)) not in linked:
            yield where, f"no link between {device.id!r} and {own.id!r}, so no weight reaches it"
    yield from _link_problems(inventory, path)


def _node_problems(node: Node, path: str) -> Problems:
    for field in ("host_reserve_bytes", "pinned_memory_bytes"):
        num_bytes = getattr(node, field)
        if num_bytes is not None and num_bytes > node.host_memory_bytes:
            yield f"{path}.{field}", f"{num_bytes} is more than the host's {node.host_memory_bytes}"


def _device_problems(device: Device, node: Node, path: str) -> Problems:
    if device.reserve_bytes > device.capacity_bytes:
        text = f"{device.reserve_bytes} is more than the capacity of {device.capacity_bytes}"
        yield f"{path}.reserve_bytes", text
    if lies_in_host_memory(device) and device.capacity_bytes > node.host_memory_bytes:
        text = f"{device.capacity_bytes} is more than the host's {node.host_memory_bytes}, which it shares"
        yield f"{path}.capacity_bytes", text
    yield from _repeated((rates.kind for rates in device.format_rates), f"{path}.format_rates", "kind")


def _link_problems(inventory: Inventory, path: str) -> Problems:
    places = {node.id for node in inventory.nodes} | {device.id for device in inventory.devices}
    seen: set[frozenset[str]] = set()
    for index, link in enumerate(inventory.links):
        where, ends = f"{path}.links[{index}]", frozenset((link.source, link.target))
        for end, place in (("source", link.source), ("target", link.target)):
            if place not in places:
                yield f"{where}.{end}", f"{place!r} is not in the inventory"
        if len(ends) == 1:
            yield where, f"both ends are {link.source!r}"
        elif ends in seen:
            yield where, f"a second link between {link.source!r} and {link.target!r}"
        seen.add(ends)


def _repeated(names: Iterable[str], path: str, noun: str) -> Problems:
    for name, count in Counter(names).items():
        if count > 1:
            yield path, f"{noun} {name!r} stands there {count} times"
