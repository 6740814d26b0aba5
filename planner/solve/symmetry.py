"""Rows of the placement's program that keep one of many equal placements: like devices can change places."""

from __future__ import annotations

from bayplan.planner.solve.draft import Draft
from bayplan.planner.solve.machine import STREAM_TIERS, Machine, without_id


def add_symmetry(draft: Draft) -> None:
    """Of two devices that are alike and neighbours, with blocks of one kind alone, the first has no fewer."""
    cuts, machine = draft.cuts, draft.task.machine
    pinned = set(draft.task.constraints.device)
    for device in range(1, len(cuts)):
        names = {machine.devices[device - 1].id, machine.devices[device].id}
        if pinned & names or not are_alike(machine, device - 1, device):
            continue
        for number, segment in enumerate(draft.segments):
            if segment.period > 1 or segment.repeats < 2:
                continue
            # All three cuts about the two devices lie within the segment, and so do all of their blocks.
            near = cuts[device - 2 : device + 1] if device > 1 else cuts[: device + 1]
            if device == 1 and segment.start:
                continue
            inside = [(cut.inside[number], float(len(draft.kinds))) for cut in near]
            before = [] if device == 1 else [(v, f) for v, f in cuts[device - 2].terms]
            middle, after = cuts[device - 1].terms, cuts[device].terms
            # 2 middle - before - after >= -N (3 - inside)
            draft.program.at_least(
                [
                    *((variable, 2 * factor) for variable, factor in middle),
                    *((variable, -factor) for variable, factor in before),
                    *((variable, -factor) for variable, factor in after),
                    *((variable, -factor) for variable, factor in inside),
                ],
                -float(len(draft.kinds)) * len(near),
            )


def are_alike(machine: Machine, one: int, other: int) -> bool:
    """Return whether two devices may change places in any placement: rates, budgets and ways are equal."""
    devices = machine.devices
    if without_id(devices[one]) != without_id(devices[other]) or machine.nodes[one] != machine.nodes[other]:
        return False
    if machine.budgets[one] != machine.budgets[other]:
        return False
    if any(machine.feed(one, tier) != machine.feed(other, tier) for tier in STREAM_TIERS):
        return False
    rest = [device for device in range(len(devices)) if device not in (one, other)]
    sizes = (0, 2**20)
    return machine.hop_ns(one, other, 2**20) == machine.hop_ns(other, one, 2**20) and all(
        machine.hop_ns(one, device, size) == machine.hop_ns(other, device, size)
        and machine.hop_ns(device, one, size) == machine.hop_ns(device, other, size)
        for device in rest
        for size in sizes
    )
