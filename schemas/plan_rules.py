"""What must hold between the fields of a plan, beyond the type of each.

Answers with every problem and its path. Knows nothing of costs or of how a plan was found:
`bayplan.planner.check` re-checks the arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from bayplan.schemas.checkpoint_index import CheckpointError, check_shard_name
from bayplan.schemas.errors import BayplanError
from bayplan.schemas.inventory_rules import inventory_problems
from bayplan.schemas.plan import ALIGNMENT_BYTES, Block, Ledger, Plan
from bayplan.schemas.types import Backend, Residency

Problems = Iterator[tuple[str, str]]


def plan_problems(plan: Plan) -> Problems:
    """Yield `(path, text)` for every contradiction inside `plan`."""
    yield from _checkpoint_problems(plan)
    yield from inventory_problems(plan.inventory, "$.inventory")
    yield from _device_problems(plan)
    yield from _block_problems(plan)
    yield from _schedule_problems(plan)
    yield from _format_problems(plan)
    yield from _tie_problems(plan)
    yield from _summary_problems(plan)


def _checkpoint_problems(plan: Plan) -> Problems:
    shards = plan.model.checkpoint.shards if plan.model.checkpoint is not None else ()
    path = "$.model.checkpoint.shards"
    yield from _duplicates((shard.file for shard in shards), path, "shard")
    if plan.model.checkpoint is not None and not shards:
        yield path, "a checkpoint has at least one shard"
    for index, shard in enumerate(shards):
        try:
            check_shard_name(shard.file, where="")
        except CheckpointError as error:
            yield f"{path}[{index}].file", str(BayplanError(error.what, got=error.got))


def _device_problems(plan: Plan) -> Problems:
    known = {device.id: device for device in plan.inventory.devices}
    yield from _duplicates((device.id for device in plan.devices), "$.devices", "device")
    for index, device in enumerate(plan.devices):
        path = f"$.devices[{index}]"
        declared = known.get(device.id)
        if declared is None:
            yield f"{path}.id", f"{device.id!r} is not in the inventory"
            continue
        for field in ("kind", "backend", "capacity_bytes"):
            planned, there = (msgspec.to_builtins(getattr(source, field)) for source in (device, declared))
            if planned != there:
                yield f"{path}.{field}", f"{planned!r} but the inventory says {there!r}"
        for component in Ledger.__struct_fields__:
            lo, hi = getattr(device.ledger, component)
            if lo > hi:
                yield f"{path}.ledger.{component}", f"lower bound {lo} is above upper bound {hi}"
        needed_bytes = device.ledger.budgeted_bytes
        if needed_bytes > device.budget_bytes:
            yield f"{path}.ledger", f"needs {needed_bytes} bytes, budget is {device.budget_bytes}"


def _block_problems(plan: Plan) -> Problems:
    devices = {device.id: device for device in plan.devices}
    yield from _duplicates((block.id for block in plan.blocks), "$.blocks", "block")
    if plan.complete and not plan.blocks:
        yield "$.blocks", "a complete plan has at least one block"
    for index, block in enumerate(plan.blocks):
        path = f"$.blocks[{index}]"
        if block.device not in devices:
            yield f"{path}.device", f"{block.device!r} is not among the plan's devices"
        elif block.residency == Residency.STREAM_HOST and devices[block.device].backend == Backend.CPU:
            yield f"{path}.residency", "a block that computes on the CPU cannot stream from host memory"
        if block.format not in plan.formats:
            yield f"{path}.format", f"{block.format!r} is not among the plan's formats"
        if block.experts is not None and block.experts.per_token > block.experts.count:
            yield f"{path}.experts.per_token", f"more than the {block.experts.count} experts there are"
        if block.experts is not None and block.experts.format not in plan.formats:
            yield f"{path}.experts.format", f"{block.experts.format!r} is not among the plan's formats"


def _schedule_problems(plan: Plan) -> Problems:
    yield from _duplicates((entry.device for entry in plan.schedule), "$.schedule", "device")
    blocks = {block.id: block for block in plan.blocks}
    devices = {device.id for device in plan.devices}
    scheduled: set[str] = set()
    for index, entry in enumerate(plan.schedule):
        path = f"$.schedule[{index}]"
        if entry.device not in devices:
            yield f"{path}.device", f"{entry.device!r} is not among the plan's devices"
        yield from _duplicates(iter(entry.stream_order), f"{path}.stream_order", "block")
        if entry.num_slots < 1:
            yield f"{path}.num_slots", "a device that streams needs at least one slot"
        if entry.slot_bytes % ALIGNMENT_BYTES:
            yield f"{path}.slot_bytes", f"{entry.slot_bytes} is not a multiple of {ALIGNMENT_BYTES}"
        scheduled.update(entry.stream_order)
        for position, block_id in enumerate(entry.stream_order):
            yield from _streamed_problems(
                blocks.get(block_id), block_id, entry.device, f"{path}.stream_order[{position}]"
            )
        staging = sum(device.ledger.staging[1] for device in plan.devices if device.id == entry.device)
        if entry.num_slots * entry.slot_bytes > staging:
            yield path, f"slots take {entry.num_slots * entry.slot_bytes} bytes, the ledger has {staging}"
    for index, block in enumerate(plan.blocks):
        if block.residency != Residency.RESIDENT and block.id not in scheduled:
            yield f"$.blocks[{index}].residency", "streams, but is in no device's stream order"


def _streamed_problems(block: Block | None, block_id: str, device: str, path: str) -> Problems:
    if block is None:
        yield path, f"{block_id!r} is not among the blocks"
    elif block.residency == Residency.RESIDENT:
        yield path, f"{block_id!r} is resident"
    elif block.device != device:
        yield path, f"{block_id!r} computes on {block.device!r}"


def _format_problems(plan: Plan) -> Problems:
    for index, rule in enumerate(plan.format_rules):
        if rule.format not in plan.formats:
            yield f"$.format_rules[{index}].format", f"{rule.format!r} is not among the plan's formats"
        if rule.within is not None and rule.within not in plan.formats:
            yield f"$.format_rules[{index}].within", f"{rule.within!r} is not among the plan's formats"
    for index, tensor_rule in enumerate(plan.rules):
        if not tensor_rule.sources:
            yield f"$.rules[{index}].sources", "a tensor is made of at least one"
        wanted = tensor_rule.target.count("*") + tensor_rule.target.count("#")
        for position, source in enumerate(tensor_rule.sources):
            if source.count("*") + source.count("#") > wanted:
                yield (
                    f"$.rules[{index}].sources[{position}]",
                    f"more wildcards than the {wanted} of {tensor_rule.target!r}",
                )


def _tie_problems(plan: Plan) -> Problems:
    devices = {device.id for device in plan.devices}
    for index, tie in enumerate(plan.ties):
        if len(tie.fqns) < 2:
            yield f"$.ties[{index}].fqns", "a tied group has at least two names"
        for position, device in enumerate(tie.devices):
            if device not in devices:
                yield f"$.ties[{index}].devices[{position}]", f"{device!r} is not among the plan's devices"
        if tie.policy == "co-located" and len(tie.devices) != 1:
            yield f"$.ties[{index}].devices", "co-located weights lie on exactly one device"


def _summary_problems(plan: Plan) -> Problems:
    streamed = sum(block.residency != Residency.RESIDENT for block in plan.blocks)
    for field, actual in (
        ("streamed_blocks", streamed),
        ("resident_blocks", len(plan.blocks) - streamed),
    ):
        if getattr(plan.summary, field) != actual:
            yield f"$.summary.{field}", f"{getattr(plan.summary, field)}, but the blocks say {actual}"
    if plan.applyable and plan.model.checkpoint is None:
        yield "$.applyable", "true, but the plan is bound to no checkpoint"
    if plan.applyable and (plan.errored or not plan.complete):
        yield "$.applyable", "true for a plan that is incomplete or errored"


def _duplicates(names: Iterator[str], path: str, noun: str) -> Problems:
    for name, count in Counter(names).items():
        if count > 1:
            yield path, f"{noun} {name!r} stands there {count} times"
