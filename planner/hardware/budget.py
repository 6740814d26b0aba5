"""How much of each device a plan may use, and the short names that people give devices.

Owns `--max-memory` and the aliases of device ids on one node. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bayplan.schemas.errors import UsageError
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.sizes import format_size, parse_size
from bayplan.schemas.types import DeviceId


def device_aliases(inventory: Inventory) -> dict[str, DeviceId]:
    """Return every accepted name of every device, with the id it stands for.

    A device's own id always counts. On a single node its last part does too (`cpu`, `gpu0`), and torch's name
    (`cuda:0`: the first of that backend in chain order).
    """
    aliases: dict[str, DeviceId] = {device.id: device.id for device in inventory.devices}
    if len(inventory.nodes) > 1:
        return aliases
    seen: dict[str, int] = {}
    for device in inventory.devices:
        aliases[device.id.partition("/")[2]] = device.id
        index = seen.get(device.backend, 0)
        seen[device.backend] = index + 1
        aliases[f"{device.backend}:{index}"] = device.id
    return aliases


def resolve_device(name: str, inventory: Inventory, *, where: str) -> DeviceId:
    """Return the id of the device that `name` stands for.

    Args:
        name: An id, or an alias as in `device_aliases`.
        inventory: Where it is looked up.
        where: Option that holds it, for the message.

    Raises:
        UsageError: No device has this name; the message lists those there are.
    """
    aliases = device_aliases(inventory)
    if name not in aliases:
        only_aliases = len(inventory.nodes) == 1
        raise UsageError(
            "unknown device",
            where=where,
            got=repr(name),
            needed=f"one of {', '.join(device.id for device in inventory.devices)}",
            hint="" if only_aliases else "on several nodes a device is named with its node",
        )
    return aliases[name]


def parse_max_memory(options: Sequence[str], inventory: Inventory) -> dict[DeviceId, int]:
    """Return the user's budgets in bytes by device id, in chain order.

    Args:
        options: `DEVICE=SIZE` each, such as `cpu=300MiB` or `node0/gpu0=20GiB`; 0 leaves a device unused.
        inventory: The devices there are.

    Raises:
        UsageError: An option is not of the form `DEVICE=SIZE`.
        UsageError: A device is unknown.
        UsageError: A device is given twice, under whatever names.
        UsageError: A budget is more than the device holds.
        SizeError: A size is malformed.
    """
    where = "--max-memory"
    capacities = {device.id: device.capacity_bytes for device in inventory.devices}
    given: dict[DeviceId, tuple[str, int]] = {}
    for option in options:
        name, equals, size = option.partition("=")
        if not (name and equals and size):
            raise UsageError(
                "not a budget", where=where, got=repr(option), needed="DEVICE=SIZE, such as cpu=300MiB"
            )
        device_id = resolve_device(name, inventory, where=where)
        if device_id in given:
            raise UsageError(
                f"{device_id} is given twice",
                where=where,
                got=f"{given[device_id][0]!r} and {option!r}",
                needed="one budget per device",
            )
        budget_bytes = parse_size(size, where=where)
        if budget_bytes > capacities[device_id]:
            raise UsageError(
                f"more than {device_id} holds",
                where=where,
                got=f"{option!r}, which is {budget_bytes} bytes ({format_size(budget_bytes)})",
                needed=f"at most {capacities[device_id]} bytes ({format_size(capacities[device_id])})",
            )
        given[device_id] = (option, budget_bytes)
    return {device_id: given[device_id][1] for device_id in capacities if device_id in given}


def device_budgets(inventory: Inventory, max_memory: Mapping[DeviceId, int]) -> dict[DeviceId, int]:
    """Return the bytes that a plan may use by device id, in chain order.

    The user's figure where there is one, else capacity minus reserve. Devices that share host memory each get
    a budget of their own; that together they must stay under the host's is for the solver to keep.

    Args:
        inventory: The devices there are.
        max_memory: As returned by `parse_max_memory`.
    """
    return {
        device.id: max_memory.get(device.id, max(0, device.capacity_bytes - device.reserve_bytes))
        for device in inventory.devices
    }
