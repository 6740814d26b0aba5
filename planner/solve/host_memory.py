"""Host memory of each node: what a placement takes of it besides the budgets, and how much there is.

Devices that compute in host memory and weights that wait there for other devices draw on the same bytes, so
each may stay within its own budget and all together be too much.
"""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.planner.solve.cost import node_of
from bayplan.planner.solve.stages import Stage
from bayplan.schemas.hardware import Device, Inventory
from bayplan.schemas.types import Backend, DeviceId, Residency


def lies_in_host_memory(device: Device) -> bool:
    """Whether the device's bytes are its host's."""
    return device.backend is Backend.CPU or device.shares_host_memory


def host_limits(inventory: Inventory, budgets: Mapping[DeviceId, int]) -> dict[str, int]:
    """Return the host memory that a placement may take, in bytes by node id.

    A user who gives a device in host memory a larger budget than the reserve leaves has raised it.
    """
    limits = {node.id: node.host_memory_bytes - node.host_reserve_bytes for node in inventory.nodes}
    for device in inventory.devices:
        if lies_in_host_memory(device):
            node = node_of(inventory, device.id)
            limits[node.id] = max(limits[node.id], budgets[device.id])
    return limits


def host_bytes(stage: Stage, tier: Residency, streamed_bytes: int) -> int:
    """Return the host memory that `stage` takes on its node, in bytes.

    Args:
        stage: The stage.
        tier: Where its streamed blocks wait.
        streamed_bytes: Of these.
    """
    if lies_in_host_memory(stage.device):
        return stage.used_bytes
    return streamed_bytes if tier is Residency.STREAM_HOST else 0
