"""Streaming: which blocks, in which order, through which slots, and whether there is a way."""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.planner.check.basis import Placement, Problem, apart_from
from bayplan.planner.check.calls import host_cpu
from bayplan.planner.check.experts import tier_of
from bayplan.planner.check.ways import Ways
from bayplan.schemas.plan import Schedule

_MAX_SLOTS = 3
"""Slots that a device has at most."""


def schedule_problems(placement: Placement) -> Iterator[Problem]:
    """Yield every contradiction between the schedule and the blocks that stream."""
    streams = [
        device_id
        for device_id, blocks in placement.by_device.items()
        if any(entry.streams for entry in blocks)
    ]
    scheduled = [entry.device for entry in placement.plan.schedule]
    if scheduled != streams:
        yield (
            "$.schedule",
            f"for {', '.join(scheduled) or 'none'}, but to {', '.join(streams) or 'none'} streams",
        )
    for index, entry in enumerate(placement.plan.schedule):
        if entry.device in streams:
            yield from _entry_problems(placement, entry, f"$.schedule[{index}]")
    yield from _way_problems(placement)


def _way_problems(placement: Placement) -> Iterator[Problem]:
    """Activations reach every device, and weights and experts the device that needs them."""
    ways = Ways(placement.plan.inventory)
    before = ""
    for block in placement.blocks:
        here = block.block.device
        if before and ways.handover_ns(before, here, 1, 0) is None:
            yield f"{block.path}.device", f"{here}, but there is no way from {before}"
        before = here
        experts = apart_from(block.block)
        if experts is not None:
            tier = tier_of(experts)
            way = host_cpu(placement, ways, here) if tier is None else ways.feed(here, tier)
            if way is None:
                yield f"{block.path}.experts.residency", f"{experts.residency}, but there is no way to {here}"
        if block.streams and ways.feed(block.block.device, block.block.residency) is None:
            yield (
                f"{block.path}.residency",
                f"{block.block.residency}, but there is no way to {block.block.device}",
            )


def _entry_problems(placement: Placement, entry: Schedule, path: str) -> Iterator[Problem]:
    streamed = [block for block in placement.by_device[entry.device] if block.streams]
    most = min(_MAX_SLOTS, len(streamed))
    if not 1 <= entry.num_slots <= most:
        yield f"{path}.num_slots", f"{entry.num_slots}, but {len(streamed)} blocks use 1 to {most}"
    largest = max(block.form.parameter_bytes for block in streamed)
    if entry.slot_bytes != largest:
        yield f"{path}.slot_bytes", f"{entry.slot_bytes}, but the largest block has {largest}"
    if list(entry.stream_order) != [block.block.id for block in streamed]:
        yield f"{path}.stream_order", "not the streamed blocks in the order in which they run"
