"""The answer when nothing satisfies the constraints: what is missing, and the least that would do.

Certificates on every axis come with the full solver; here, per device, the smallest budget with which the
chain fits it.
"""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.planner.chain import Chain
from bayplan.planner.constraints import Constraints
from bayplan.planner.cost import feed
from bayplan.planner.margins import activation_bounds
from bayplan.schemas.errors import Infeasible
from bayplan.schemas.hardware import Device, Inventory
from bayplan.schemas.sizes import format_size
from bayplan.schemas.types import DeviceId, Residency


def infeasible(
    chain: Chain, inventory: Inventory, budgets: Mapping[DeviceId, int], constraints: Constraints
) -> Infeasible:
    """Return the error that says why no placement exists, with the least budget of each device alone."""
    usable = [device for device in inventory.devices if budgets[device.id] > 0]
    if not usable:
        return Infeasible(
            "no device may compute",
            where="inventory",
            needed="at least one device with a budget above zero",
            hint="a declared host computes only with --cpu; see --max-memory for budgets",
        )
    size, largest = max(
        (cost.parameter_bytes, name) for cost, name in zip(chain.costs, chain.ids, strict=True)
    )
    lines = []
    for device in usable:
        can_stream = not constraints.no_spill and any(
            feed(inventory, device, tier) for tier in (Residency.STREAM_HOST, Residency.STREAM_DISK)
        )
        needed = least_budget_bytes(chain, constraints, can_stream=can_stream)
        how = "with streaming" if can_stream else "without streaming"
        lines.append(
            f"{device.id} alone would need {format_size(needed)} {how}, has {format_size(budgets[device.id])}"
        )
    return Infeasible(
        "no placement fits the budgets",
        where=", ".join(device.id for device in usable),
        got="; ".join(lines),
        needed=f"room for the largest block, {largest} of {format_size(size)}, beside what must stay",
        hint=_hint(chain, usable, no_spill=constraints.no_spill),
    )


def least_budget_bytes(chain: Chain, constraints: Constraints, *, can_stream: bool) -> int:
    """Return the smallest budget with which one device holds and runs the whole chain, in bytes.

    Args:
        chain: The blocks.
        constraints: Which of them must stay.
        can_stream: Whether anything can bring weights to the device; then one slot is enough.
    """
    always = (
        sum(cost.buffer_bytes + cost.kv_bytes for cost in chain.costs)
        + activation_bounds(
            chain.base_activation_bytes
            + max(max(cost.prefill_activation_bytes, cost.decode_activation_bytes) for cost in chain.costs)
        )[1]
        + chain.scratch_bytes
    )
    sizes = [cost.parameter_bytes for cost in chain.costs]
    if not can_stream:
        return always + sum(sizes)
    fixed = sum(size for size, stays in zip(sizes, constraints.must_stay, strict=True) if stays)
    free = [size for size, stays in zip(sizes, constraints.must_stay, strict=True) if not stays]
    with_slot = [slot + sum(size for size in free if size > slot) for slot in set(free)]
    return always + fixed + min(with_slot, default=0)


def _hint(chain: Chain, usable: list[Device], *, no_spill: bool) -> str:
    kv = sum(cost.kv_bytes for cost in chain.costs)
    ways = [f"raise the budget of {usable[0].id}"]
    if no_spill:
        ways.append("allow streaming (drop --no-spill)")
    if kv:
        ways.append(f"lower --context or --batch (the cache takes {format_size(kv)})")
    return ", or ".join(ways)
