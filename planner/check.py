"""An independent second look at a finished plan, in integer arithmetic.

Recomputes from the plan's own `problem` section what the decisions need, and says where the plan claims
something else. Shares no code with the search: it would repeat the search's mistakes.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from bayplan.schemas.plan import Block, BlockRun, Plan, PlannedDevice, Schedule
from bayplan.schemas.types import OWN_SUFFIX, Residency

Problems = Iterator[tuple[str, str]]


def check(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return `(path, text)` for everything in `plan` that its own inputs contradict."""
    costs = [run for run in plan.problem.runs for _ in range(run.count)]
    if len(costs) != len(plan.blocks):
        return (("$.problem.runs", f"{len(costs)} blocks, but the plan places {len(plan.blocks)}"),)
    problems: list[tuple[str, str]] = []
    problems.extend(_chain_problems(plan))
    for index, device in enumerate(plan.devices):
        problems.extend(_memory_problems(plan, costs, device, f"$.devices[{index}]"))
    problems.extend(_schedule_problems(plan, costs))
    problems.extend(_pin_problems(plan))
    problems.extend(_summary_problems(plan, costs))
    return tuple(problems)


def _chain_problems(plan: Plan) -> Problems:
    """Each device's blocks are one stretch, and stretches follow the inventory's order."""
    position = {device.id: index for index, device in enumerate(plan.inventory.devices)}
    latest = -1
    for index, block in enumerate(plan.blocks):
        here = position.get(block.device, -1)
        if here < latest:
            yield f"$.blocks[{index}].device", f"{block.device} after a block on a later device"
        latest = max(latest, here)


def _memory_problems(plan: Plan, costs: list[BlockRun], device: PlannedDevice, path: str) -> Problems:
    mine = [
        (block, cost) for block, cost in zip(plan.blocks, costs, strict=True) if block.device == device.id
    ]
    if not mine:
        return
    resident = sum(cost.parameter_bytes for block, cost in mine if block.residency == Residency.RESIDENT)
    buffers = sum(cost.buffer_bytes for _, cost in mine)
    weights = resident + buffers + _replicas(plan, {block.id for block, _ in mine})
    kv = sum(cost.kv_bytes for _, cost in mine)
    slots = sum(entry.num_slots * entry.slot_bytes for entry in plan.schedule if entry.device == device.id)
    activations = plan.problem.base_activation_bytes + max(
        max(cost.prefill_activation_bytes, cost.decode_activation_bytes) for _, cost in mine
    )
    ledger = device.ledger
    for component, needed in (
        ("weights", weights),
        ("kv", kv),
        ("staging", slots + plan.problem.scratch_bytes),
        ("activations", activations),
    ):
        upper = getattr(ledger, component)[1]
        exact = component in ("weights", "kv")
        if upper < needed or (exact and upper != needed):
            yield f"{path}.ledger.{component}", f"{upper} bytes, but the blocks need {needed}"
    for block, cost in mine:
        if block.kv_bytes != cost.kv_bytes:
            yield f"{path}", f"cache of {block.id}: {block.kv_bytes} bytes, but its run says {cost.kv_bytes}"


def _replicas(plan: Plan, block_ids: set[str]) -> int:
    """Bytes of tied storages used on a device whose first holder is elsewhere, aligned to 64."""
    total = 0
    for tie in plan.ties:
        holders = [block.id for block in plan.blocks if any(_holds(block.id, fqn) for fqn in tie.fqns)]
        if holders and holders[0] not in block_ids and block_ids.intersection(holders):
            total += -(-tie.num_bytes // 64) * 64
    return total


def _holds(block_id: str, fqn: str) -> bool:
    if block_id.endswith(OWN_SUFFIX):
        return fqn.rpartition(".")[0] == block_id.removesuffix(OWN_SUFFIX)
    return fqn.startswith(block_id + ".")


def _schedule_problems(plan: Plan, costs: list[BlockRun]) -> Problems:
    size = {block.id: cost.parameter_bytes for block, cost in zip(plan.blocks, costs, strict=True)}
    for index, entry in enumerate(plan.schedule):
        path = f"$.schedule[{index}]"
        order = [block.id for block in plan.blocks if _streams_on(block, entry)]
        if list(entry.stream_order) != order:
            yield f"{path}.stream_order", "not the streamed blocks in the order in which they run"
        largest = max((size[name] for name in order), default=0)
        if entry.slot_bytes < largest:
            yield f"{path}.slot_bytes", f"{entry.slot_bytes}, but a streamed block has {largest}"
    for index, (block, cost) in enumerate(zip(plan.blocks, costs, strict=True)):
        if block.residency != Residency.RESIDENT and cost.resident_reason is not None:
            yield f"$.blocks[{index}].residency", f"streams, but must stay: {cost.resident_reason.value}"


def _streams_on(block: Block, entry: Schedule) -> bool:
    return block.device == entry.device and block.residency != Residency.RESIDENT


def _pin_problems(plan: Plan) -> Problems:
    """Every demand of the user is met; of several on one block, the last one that says something."""
    streamed = [block.id for block in plan.blocks if block.residency != Residency.RESIDENT]
    if plan.problem.no_spill and streamed:
        yield "$.problem.no_spill", f"true, but {streamed[0]} streams"
    for index, block in enumerate(plan.blocks):
        for field in ("device", "residency"):
            demands = [
                getattr(pin, field)
                for pin in plan.problem.pins
                if getattr(pin, field) is not None and fnmatchcase(block.id, pin.pattern)
            ]
            if demands and getattr(block, field) != demands[-1]:
                yield f"$.blocks[{index}].{field}", f"{getattr(block, field)}, but pinned to {demands[-1]}"


def _summary_problems(plan: Plan, costs: list[BlockRun]) -> Problems:
    streamed = sum(
        cost.parameter_bytes
        for block, cost in zip(plan.blocks, costs, strict=True)
        if block.residency != Residency.RESIDENT
    )
    summary = plan.summary
    if summary.streamed_bytes_per_step != streamed:
        yield (
            "$.summary.streamed_bytes_per_step",
            f"{summary.streamed_bytes_per_step}, but the streamed blocks have {streamed}",
        )
    step_ns, bound_ns = summary.predicted_step_ns, summary.lower_bound_ns
    if bound_ns > step_ns:
        yield "$.summary.lower_bound_ns", f"{bound_ns} is above the prediction {step_ns}"
    elif summary.gap_ppm != (-(-(step_ns - bound_ns) * 1_000_000 // step_ns) if step_ns else 0):
        yield "$.summary.gap_ppm", f"{summary.gap_ppm}, but {bound_ns} and {step_ns} give another gap"
