"""A plan in the words of transformers: the `device_map` that comes nearest to it.

Owns the translation only. It loses what such a map cannot say: formats, order, slots, and whether host memory
computes or only feeds an accelerator.
"""

from __future__ import annotations

from bayplan.schemas.errors import BayplanError
from bayplan.schemas.plan import Block, Plan
from bayplan.schemas.types import OWN_SUFFIX, Backend, Residency


class DeviceMapError(BayplanError):
    """The plan says something that no device map can say."""


def device_map(plan: Plan) -> dict[str, int | str]:
    """Return module names with `cpu`, `disk` or the number of an accelerator.

    A split module that holds tensors of its own is listed too, before its children: the longest name that
    matches a tensor counts.

    Raises:
        DeviceMapError: The plan is for several nodes.
    """
    nodes = sorted({device.id.partition("/")[0] for device in plan.devices})
    if len(nodes) > 1:
        raise DeviceMapError(
            "no device map can express the plan",
            got=f"devices on {len(nodes)} nodes ({', '.join(nodes)})",
            needed="one node",
            hint="use --as json",
        )
    accelerators = [
        device.id
        for device in plan.inventory.devices
        if device.backend != Backend.CPU and device.id.partition("/")[0] in nodes
    ]
    return {
        block.id.removesuffix(OWN_SUFFIX): _place(block, accelerators)
        for block in sorted(plan.blocks, key=lambda block: not block.id.endswith(OWN_SUFFIX))
    }


def _place(block: Block, accelerators: list[str]) -> int | str:
    match block.residency:
        case Residency.STREAM_DISK:
            return "disk"
        case Residency.STREAM_HOST:
            return "cpu"
        case Residency.RESIDENT:
            return accelerators.index(block.device) if block.device in accelerators else "cpu"
