"""The answer when nothing satisfies the constraints: what is missing, and the least that would do.

Certificates on every axis come with the full solver; here, per device, the smallest budget with which the
chain fits it.
"""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import Constraints
from bayplan.planner.solve.cost import feed, node_of
from bayplan.planner.solve.margins import activation_bounds
from bayplan.planner.solve.placement import Solver
from bayplan.schemas.errors import Infeasible
from bayplan.schemas.hardware import Device, Inventory
from bayplan.schemas.sizes import format_size, parse_size
from bayplan.schemas.types import MAX_INTEGER, DeviceId, Objective, Residency


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
    roomy = {device.id: MAX_INTEGER if device in usable else 0 for device in inventory.devices}
    if Solver(chain, inventory, roomy, constraints, Objective.PREFILL).solve() is None:
        return _contradiction(chain, inventory, usable, constraints)
    needed = [_alone(chain, inventory, constraints, device) for device in usable]
    return Infeasible(
        "no placement fits the budgets",
        where=", ".join(device.id for device in usable),
        got=", ".join(f"{format_size(budgets[device.id])} on {device.id}" for device in usable),
        needed=" or ".join(text for text in needed if text),
        hint=_hint(chain, usable, no_spill=constraints.no_spill),
    )


def _alone(chain: Chain, inventory: Inventory, constraints: Constraints, device: Device) -> str:
    """Return what `device` would need to hold the whole chain; empty where pins forbid that."""
    can_stream = not constraints.no_spill and any(
        feed(inventory, device, tier)
        and (tier is not Residency.STREAM_HOST or _host_holds(chain, inventory, constraints, device))
        for tier in constraints.tiers
    )
    if not set(constraints.device) <= {None, device.id} or (any(constraints.must_stream) and not can_stream):
        return ""
    needed = least_budget_bytes(chain, constraints, can_stream=can_stream)
    if not can_stream:
        return f"{_enough(needed)} on {device.id}, without streaming"
    free = [index for index in range(len(chain)) if constraints.may_stream(chain, index)]
    largest = max(free, key=lambda index: chain.costs[index].parameter_bytes, default=None)
    if largest is None:
        return f"{_enough(needed)} on {device.id}"
    size = format_size(chain.costs[largest].parameter_bytes)
    return (
        f"{_enough(needed)} on {device.id}, with streaming"
        f" (the largest block that may stream is {chain.ids[largest]}, {size})"
    )


def _enough(num_bytes: int) -> str:
    """Return `num_bytes` for reading, rounded up: whoever types it has enough."""
    text = format_size(num_bytes)
    if parse_size(text, where="") >= num_bytes:
        return text
    unit_bytes = parse_size(f"1 {text.rpartition(' ')[2]}", where="")
    return format_size(num_bytes + -(-unit_bytes // 100))


def _host_holds(chain: Chain, inventory: Inventory, constraints: Constraints, device: Device) -> bool:
    """Whether all that could stream finds room in the memory of the device's host."""
    node = node_of(inventory, device.id)
    streamable = sum(
        cost.parameter_bytes for index, cost in enumerate(chain.costs) if constraints.may_stream(chain, index)
    )
    return streamable <= node.host_memory_bytes - node.host_reserve_bytes


def _contradiction(
    chain: Chain, inventory: Inventory, usable: list[Device], constraints: Constraints
) -> Infeasible:
    """Return the error for demands that no budget would meet."""
    order = [device.id for device in usable]
    latest = -1
    for index, pinned in enumerate(constraints.device):
        if pinned is None:
            continue
        if pinned not in order:
            return Infeasible(
                f"pinned to a device that may hold nothing: {pinned}",
                where=chain.ids[index],
                needed=f"one of {', '.join(order)}",
                hint="see --max-memory for budgets",
            )
        if order.index(pinned) < latest:
            return Infeasible(
                "pinned against the order in which devices follow each other",
                where=chain.ids[index],
                got=f"{pinned} after {order[latest]}",
                needed=f"devices in the order {', '.join(order)}",
            )
        latest = order.index(pinned)
    if any(constraints.must_stream):
        index = constraints.must_stream.index(True)
        return Infeasible(
            "nothing can bring its weights in before each visit",
            where=chain.ids[index],
            got=f"pinned to {' or '.join(constraints.tiers)}",
            needed="a tier with a way to a device, and host memory enough where it is stream-host",
        )
    return Infeasible(
        "activations find no way from device to device",
        where=", ".join(order),
        needed="links between devices that follow each other, direct or over host memory",
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
    demands = list(zip(sizes, constraints.must_stay, constraints.must_stream, strict=True))
    must_stream = [size for size, _, streams in demands if streams]
    fixed = sum(size for size, stays, streams in demands if stays and not streams)
    free = [size for size, stays, streams in demands if not stays and not streams]
    # Through one slot; 0 where nothing needs to stream, since then nothing has to be larger than the slot.
    slots = {0, *free, *must_stream}
    return (
        always
        + fixed
        + min(
            slot + sum(size for size in free if size > slot)
            for slot in slots
            if slot >= max(must_stream, default=0)
        )
    )


def _hint(chain: Chain, usable: list[Device], *, no_spill: bool) -> str:
    kv = sum(cost.kv_bytes for cost in chain.costs)
    decode = max(cost.decode_activation_bytes for cost in chain.costs)
    prefill = max(cost.prefill_activation_bytes for cost in chain.costs)
    ways = [f"raise the budget of {usable[0].id}"]
    if no_spill:
        ways.append("allow streaming (drop --no-spill)")
    if kv:
        ways.append(f"lower --context or --batch (the cache takes {format_size(kv)})")
        if prefill > max(kv, decode):
            ways.append(f"lower --prefill-chunk (the activations take {format_size(prefill)})")
    return ", or ".join(ways)
