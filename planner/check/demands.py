"""What was asked for: pins, formats, no spilling, blocks that must stay, one stretch per device."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from bayplan.planner.check.basis import PlacedBlock, Placement, Problem, apart_from
from bayplan.planner.check.experts import expert_problems
from bayplan.planner.check.memory import device_needs
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Backend, Objective, Reason

_RESIDENT_REASONS = frozenset(
    {
        Reason.TIED,
        Reason.USED_OUTSIDE,
        Reason.REPEATED,
        Reason.NOT_CALLED,
        Reason.CONDITIONAL,
        Reason.UNTRACED,
        Reason.OWN_TENSORS,
        Reason.MUTATED,
    }
)
"""Reasons that come from the model."""


def demand_problems(placement: Placement) -> Iterator[Problem]:
    """Yield every demand of the user or of the model that the placement does not meet."""
    pins = _pins_by_block(placement)
    yield from _chain_problems(placement)
    yield from _block_problems(placement)
    yield from _pin_problems(placement, pins)
    yield from _reason_problems(placement, pins)
    yield from _spill_problems(placement, pins)


def _chain_problems(placement: Placement) -> Iterator[Problem]:
    """Each device's blocks are one stretch, and stretches follow the inventory's order.

    From the last use of a tied storage on, blocks may be back on the first device, if it has the storage.
    """
    position = {device_id: index for index, device_id in enumerate(placement.devices)}
    end = _end_of_stretches(placement)
    latest = -1
    for entry in placement.blocks[:end]:
        here = position[entry.block.device]
        if here < latest:
            yield f"{entry.path}.device", f"{entry.block.device} after a block on a later device"
        latest = max(latest, here)
    for entry in placement.blocks[end:]:
        if entry.streams:
            yield f"{entry.path}.residency", f"streams, but has come back to {entry.block.device}"


def _end_of_stretches(placement: Placement) -> int:
    """Return the position of the first block that has come back; the number of blocks: none has."""
    blocks = placement.blocks
    shared = [holders for holders in placement.tie_holders if len(holders) > 1]
    if not shared:
        return len(blocks)
    start = max(holders[-1] for holders in shared)
    owner = max(holders[0] for holders in shared if holders[-1] == start)
    home = blocks[0].block.device
    has_left = any(entry.block.device != home for entry in blocks[:start])
    is_home = all(entry.block.device == home for entry in (*blocks[: owner + 1], *blocks[start:]))
    return start if has_left and is_home else len(blocks)


def _block_problems(placement: Placement) -> Iterator[Problem]:
    """What a block says of itself is what its form and its run say."""
    formats = placement.plan.problem.formats
    for index, name in enumerate(formats):
        if name not in placement.plan.formats:
            yield f"$.problem.formats[{index}]", f"{name} is not among the plan's formats"
    for index, run in enumerate(placement.plan.problem.runs):
        for position, form in enumerate(run.forms):
            path = f"$.problem.runs[{index}].forms[{position}]"
            if form.format not in formats:
                yield f"{path}.format", f"{form.format} is none that blocks may be in"
            if form.num_bytes > form.parameter_bytes + form.buffer_bytes:
                yield f"{path}.num_bytes", f"{form.num_bytes} is more than its parameters and buffers aligned"
    for entry in placement.blocks:
        for field, said, needed in (
            ("num_bytes", entry.block.num_bytes, entry.form.num_bytes),
            ("kv_bytes", entry.block.kv_bytes, entry.run.kv_bytes),
        ):
            if said != needed:
                yield f"{entry.path}.{field}", f"{said}, but the block needs {needed}"
        if entry.streams and entry.run.resident_reason is not None:
            yield f"{entry.path}.residency", f"streams, but must stay: {entry.run.resident_reason.value}"
        yield from expert_problems(placement, entry)


def _pins_by_block(placement: Placement) -> tuple[tuple[Pin, ...], ...]:
    """Return the pins on each block, in the order in which they were given."""
    found: list[list[Pin]] = [[] for _ in placement.blocks]
    place = {entry.block.id: entry.index for entry in placement.blocks}
    for pin in placement.plan.problem.pins:
        if not set(pin.pattern) & set("*?["):
            matched = [place[pin.pattern]] if pin.pattern in place else []
        else:
            matched = [index for name, index in place.items() if fnmatchcase(name, pin.pattern)]
        for index in matched:
            found[index].append(pin)
    return tuple(tuple(pins) for pins in found)


def _pin_problems(placement: Placement, pins: tuple[tuple[Pin, ...], ...]) -> Iterator[Problem]:
    """Every pin is met; of several on one block, the last one that says something."""
    problem = placement.plan.problem
    matched = {pin for own in pins for pin in own}
    for index, pin in enumerate(problem.pins):
        if pin not in matched:
            yield f"$.problem.pins[{index}].pattern", f"{pin.pattern} matches no block"
    for entry, own in zip(placement.blocks, pins, strict=True):
        devices = [pin.device for pin in own if pin.device is not None]
        residencies = [pin.residency for pin in own if pin.residency is not None]
        # A block with a single form has nothing that another format would change.
        formats = [pin.format for pin in own if pin.format is not None and len(entry.run.forms) > 1]
        for field, said, demands in (
            ("device", entry.block.device, devices),
            ("residency", entry.block.residency, residencies),
            ("format", entry.block.format, formats),
        ):
            if demands and said != demands[-1]:
                yield f"{entry.path}.{field}", f"{said}, but pinned to {demands[-1]}"


def _reason_problems(placement: Placement, pins: tuple[tuple[Pin, ...], ...]) -> Iterator[Problem]:
    something_streams = any(entry.streams or apart_from(entry.block) for entry in placement.blocks)
    for entry, own in zip(placement.blocks, pins, strict=True):
        text = _untrue(entry, is_pinned=bool(own), something_streams=something_streams)
        if text:
            yield f"{entry.path}.reason", f"{entry.block.reason}, but {text}"


def _untrue(entry: PlacedBlock, *, is_pinned: bool, something_streams: bool) -> str:
    """Return what makes the block's reason untrue; empty: nothing."""
    reason = entry.block.reason
    if reason == Reason.PINNED:
        return "" if is_pinned else "no pin is on it"
    if entry.streams:
        return "" if reason == Reason.CAPACITY else "it streams"
    if reason == Reason.CAPACITY:
        return "it is resident"
    if (reason == Reason.EXPERTS_APART) is not (apart_from(entry.block) is not None):
        return "its experts are with it" if reason == Reason.EXPERTS_APART else "its experts are apart"
    if reason == Reason.FITS:
        return "something streams" if something_streams else ""
    if reason in (Reason.KEPT, Reason.TOO_LARGE):
        return "" if something_streams else "nothing streams"
    if reason in _RESIDENT_REASONS and reason != entry.run.resident_reason:
        return "its run says nothing of that"
    return ""


def _spill_problems(placement: Placement, pins: tuple[tuple[Pin, ...], ...]) -> Iterator[Problem]:
    """Nothing streams where that is forbidden, or where one device alone would hold everything."""
    streamed = [entry.block.id for entry in placement.blocks if entry.streams]
    apart = [entry.block.id for entry in placement.blocks if apart_from(entry.block) is not None]
    if not streamed and not apart:
        return
    if placement.plan.problem.no_spill and streamed:
        yield "$.problem.no_spill", f"true, but {streamed[0]} streams"
    plan = placement.plan
    is_pinned = any(pin.residency is not None or pin.device is not None for own in pins for pin in own)
    has_choice = any(len(run.forms) > 1 for run in plan.problem.runs)
    if is_pinned or has_choice or plan.problem.objective in (Objective.LOAD, Objective.THROUGHPUT):
        return  # whether it fits, and what for, is for a search to say
    accelerators = [device for device in placement.devices.values() if device.backend != Backend.CPU]
    for device in accelerators or placement.devices.values():
        needed = device_needs(placement, placement.blocks, keep_all=True).budgeted_bytes
        if needed <= placement.budgets[device.id]:
            yield "$.blocks", f"{(streamed + apart)[0]} does not stay, but {device.id} alone holds everything"
