"""This machine against the plan's devices: is there one for each, large enough, and free now?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayplan.executor.backend import CpuBackend, DeviceBackend
from bayplan.executor.errors import MemoryBudgetError
from bayplan.executor.host_memory import host_available_bytes, host_capacity_bytes
from bayplan.schemas.errors import PlanRefused, RefusalKind, UsageError
from bayplan.schemas.sizes import format_size
from bayplan.schemas.types import Backend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bayplan.schemas.plan import Plan
    from bayplan.schemas.types import DeviceId


def match_devices(plan: Plan, on: Mapping[str, str]) -> dict[DeviceId, DeviceBackend]:
    """Return a backend for every device of `plan` that has blocks.

    A device of backend `cpu` is this host, whatever its kind: results do not depend on it, only times.

    Args:
        plan: Uses no feature that this version does not run.
        on: Device id, or `cpu` for the one CPU, to torch device.

    Raises:
        UsageError: `on` names a device that the plan does not use.
        PlanRefused: UNSUPPORTED: `on` puts a device elsewhere than its backend runs.
        PlanRefused: FOREIGN: this machine has no such device, or one that is too small.
    """
    used = {block.device for block in plan.blocks}
    hosts = [device.id for device in plan.devices if device.backend == Backend.CPU]
    alias = hosts[0] if len(hosts) == 1 else "cpu"
    wanted = {alias if name == "cpu" else name: target for name, target in on.items()}
    for device_id, target in wanted.items():
        if device_id not in used:
            needed = f"one of {', '.join(sorted(used))}"
            raise UsageError("unknown device", where="--on", got=device_id, needed=needed)
        if target != "cpu":
            raise PlanRefused(
                RefusalKind.UNSUPPORTED,
                "this version runs on the CPU only",
                where=device_id,
                got=target,
                needed="cpu",
            )
    backends: dict[DeviceId, DeviceBackend] = {}
    for device in plan.devices:
        if device.id not in used:
            continue
        if device.backend != Backend.CPU:
            raise PlanRefused(
                RefusalKind.FOREIGN,
                "this machine has no such device",
                where=device.id,
                got=str(device.backend),
                needed="cpu",
            )
        # What `runtime` counts is in use already.
        needed_bytes, capacity_bytes = device.ledger.budgeted_bytes, host_capacity_bytes()
        if needed_bytes > capacity_bytes:
            raise PlanRefused(
                RefusalKind.FOREIGN,
                "made for a machine with more memory",
                where=device.id,
                got=format_size(capacity_bytes),
                needed=format_size(needed_bytes),
                hint="plan again for this machine",
            )
        backends[device.id] = CpuBackend(device.id)
    return backends


def check_free_memory(plan: Plan) -> None:
    """Check that what the plan needs can be had now.

    Raises:
        MemoryBudgetError: It cannot, though the machine is large enough.
    """
    available_bytes = host_available_bytes()
    for device in plan.devices:
        needed_bytes = device.ledger.budgeted_bytes
        if device.backend == Backend.CPU and needed_bytes > available_bytes:
            raise MemoryBudgetError(device.id, needed_bytes=needed_bytes, available_bytes=available_bytes)
