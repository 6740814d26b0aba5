"""Rows of the placement's program about what lies between devices, and what they share."""

from __future__ import annotations

import math

from bayplan.planner.solve.draft import Draft
from bayplan.planner.solve.expert_curves import PPM, Chord, chords
from bayplan.planner.solve.experts import needed_ppm
from bayplan.planner.solve.modes import MILLISECOND, Fetching, Mode, Stage, Term
from bayplan.planner.solve.ring_rows import fetch_terms
from bayplan.planner.solve.segments import Segment
from bayplan.planner.solve.split import fetch_ns_per_expert
from bayplan.planner.solve.windows import late_terms
from bayplan.schemas.types import Objective


def add_step(draft: Draft, stages: list[Stage], num_batches: int) -> list[Term]:
    """Say how long a step is at least: all windows and the ways between them. Return the latter's terms.

    With several batches in flight, a batch ends whenever the slowest window or way has served one more,
    or when each batch has gone its way, whichever takes longer.
    """
    program, hops = draft.program, _hops(draft, stages)
    parts = [*((stage.window, 1.0) for stage in stages), *hops]
    program.at_least([(draft.time, float(num_batches)), *((v, -f) for v, f in parts)], 0.0)
    if num_batches > 1:
        for variable, factor in parts:
            program.at_least([(draft.time, 1.0), (variable, -factor)], 0.0)
    return hops


def add_resources(draft: Draft, stages: list[Stage], hops: list[Term]) -> None:
    """A disk or a switch that several devices share serves one transfer after the other."""
    users: dict[str, dict[int, list[Mode]]] = {}
    for stage in stages:
        for mode in stage.modes:
            split = mode.choice.experts
            tier = mode.choice.residency if split is None else split.residency.tier
            way = draft.task.machine.feed(stage.device, tier) if mode.choice.streams or mode.fetch else None
            for resource in way.resources if way is not None else ():
                users.setdefault(resource, {}).setdefault(stage.device, []).append(mode)
    for own in users.values():
        _add_load(draft, own)
        if len(own) > 1:
            _add_turns(draft, [stages[device] for device in own], own, stages, hops)


def _add_load(draft: Draft, users: dict[int, list[Mode]]) -> None:
    """All transfers over one resource are done within a step."""
    terms: list[Term] = []
    for mode in (mode for modes in users.values() for mode in modes):
        if mode.fetch is not None:
            terms.append((mode.fetch, -1.0))
        else:
            terms.append((mode.variable, -mode.transfer_ns / MILLISECOND))
    draft.program.at_least([(draft.time, 1.0), *terms], 0.0)


def _add_turns(
    draft: Draft,
    sharing: list[Stage],
    users: dict[int, list[Mode]],
    stages: list[Stage],
    hops: list[Term],
) -> None:
    """Within each window the shared resource has time for what arrives in it, whomever it is for.

    What a device has when its window opens was brought in during the windows of others, on the way between
    devices, or at the end of its own window before. With one slot, that end begins when its last streamed
    block has computed.
    """
    program = draft.program
    elsewhere: dict[int, list[Term]] = {stage.device: [] for stage in stages}
    between: list[Term] = []
    for stage in sharing:
        own = [(mode, early) for mode, early in stage.early if mode in users[stage.device]]
        if not own:
            continue
        brought: list[Term] = []
        for other in stages:
            part = program.number()
            elsewhere[other.device].append((part, -1.0))
            brought.append((part, 1.0))
            if other is stage:
                _add_own_turn(draft, stage, part)
        way = program.number()
        between.append((way, -1.0))
        early = [(variable, -mode.transfer_ns / MILLISECOND) for mode, variable in own]
        program.at_least([*brought, (way, 1.0), *early], 0.0)
    for stage in stages:
        using = users.get(stage.device, [])
        late = late_terms([(mode, early) for mode, early in stage.early if mode in using])
        program.at_least([(stage.window, 1.0), *late, *fetch_terms(using), *elsewhere[stage.device]], 0.0)
    program.at_least([*hops, *between], 0.0)


def _add_own_turn(draft: Draft, stage: Stage, part: int) -> None:
    """What is brought in for the next step within the device's own window takes the courier's time there.

    With one slot it does not overlap what streams in this step either.
    """
    fetches = fetch_terms(stage.modes)
    draft.program.at_least([(stage.window, 1.0), *late_terms(stage.early), *fetches, (part, -1.0)], 0.0)
    computing = [(mode.variable, -mode.compute_ns / MILLISECOND) for mode in stage.streamed]
    most = (
        sum(draft.count[mode.kind] * (mode.compute_ns + mode.transfer_ns) for mode in stage.streamed)
        / MILLISECOND
        + max(mode.transfer_ns for mode in stage.streamed) / MILLISECOND
    )
    one = [(switch, -most) for (num_slots, _), switch in stage.slots.items() if num_slots == 1]
    parts = [*late_terms(stage.early), *fetches, *computing, *one, (part, -1.0)]
    draft.program.at_least([(stage.window, 1.0), *parts], -most)


def add_fetching(draft: Draft, stage: Stage, mode: Mode, experts_ns: int) -> None:
    """Say how long experts that caches lack are on their way, and those there compute meanwhile."""
    program = draft.program
    assert mode.fetch is not None
    bounds = _fetch_bounds(draft, stage, mode)
    for terms in bounds:
        program.at_least([(mode.fetch, 1.0), *((variable, -factor) for variable, factor in terms)], 0.0)
    each = max(factor for terms in bounds for variable, factor in terms if variable == mode.variable)
    longer = program.number()
    program.at_least([(longer, 1.0), (mode.fetch, -1.0)], 0.0)
    program.at_least([(longer, 1.0), (mode.variable, -experts_ns / MILLISECOND)], 0.0)
    longest = draft.count[mode.kind] * max(each, experts_ns / MILLISECOND)
    stage.fetching.append(Fetching(kind=mode.kind, variable=longer, longest_ms=longest))


def _fetch_bounds(draft: Draft, stage: Stage, mode: Mode) -> list[list[Term]]:
    """Return lower bounds of the milliseconds of a mode's fetches, in its blocks and their slots together.

    The share of misses is convex in the slots of a block, so that blocks with equal shares have the fewest
    misses, and lines under the curve bound them.
    """
    task, index = draft.task, draft.first[mode.kind]
    experts, split = task.chain.costs[index].experts, mode.choice.experts
    assert experts is not None
    assert split is not None
    assert mode.slots is not None
    needed = needed_ppm(task.chain, index, task.phase) / PPM
    each = fetch_ns_per_expert(task, mode.form, stage.device, split.residency) / MILLISECOND
    if task.phase is Objective.PREFILL:
        return [[(mode.variable, needed * each), (mode.slots, -each)]]
    curve = chords(experts.count, experts.per_token) if task.chain.decode_tokens == 1 else (Chord(PPM, PPM),)
    way = task.machine.feed(stage.device, split.residency.tier)
    assert way is not None
    latency = way.latency_ns / MILLISECOND
    return [
        [
            (mode.variable, latency + needed * each * line.alpha_ppm / PPM),
            (mode.slots, -needed * each * line.beta_ppm / PPM / experts.count),
        ]
        for line in curve
    ]


def _hops(draft: Draft, stages: list[Stage]) -> list[Term]:
    """Return the least times of the ways between devices that follow each other."""
    program, machine = draft.program, draft.task.machine
    used = [stage.is_used for stage in stages]
    hops: list[Term] = []
    for target in range(1, len(used)):
        for source in range(target):
            between = [(used[device], -1.0) for device in range(source + 1, target)]
            follow = [(used[source], 1.0), (used[target], 1.0), *between]
            empty_ns = machine.hop_ns(source, target, 0)
            if empty_ns is None:
                program.at_most(follow, 1.0)
            elif empty_ns:
                hop = program.number(1.0)
                program.at_most([*follow, (hop, -1.0)], 1.0)
                hops.append((hop, empty_ns / MILLISECOND))
    for source, cut in enumerate(draft.cuts):
        costs = [_least_way_ms(draft, segment, source) for segment in draft.segments]
        if any(costs):
            way = program.number()
            leaving = [(switch, -cost) for switch, cost in zip(cut.inside, costs, strict=True)]
            program.at_least([(way, 1.0), *leaving, (used[source], -max(costs))], -max(costs))
            hops.append((way, 1.0))
    return [*hops, *_way_back(draft)]


def _way_back(draft: Draft) -> list[Term]:
    """Return the time of the way from the last device to the first, which closes a step of a turned chain."""
    task, program = draft.task, draft.program
    if task.turn is None:
        return []
    # Who is last ends with the chain, and the one before does not.
    ends = [[(cut.at_end, 1.0)] for cut in draft.cuts]
    befores: list[list[Term]] = [[], *ends]
    back, terms, constant = program.number(), list[Term](), 0.0
    for device, before in enumerate(befores):
        is_last = [*(ends[device] if device < len(ends) else []), *((v, -f) for v, f in before)]
        own = 1.0 if device == len(ends) else 0.0
        back_ns = task.way_back_ns(device)
        if back_ns is None:
            program.at_most(is_last, -own)
        else:
            cost = back_ns / MILLISECOND
            terms += [(variable, -cost * factor) for variable, factor in is_last]
            constant += cost * own
    program.at_least([(back, 1.0), *terms], constant)
    return [(back, 1.0)]


def _least_way_ms(draft: Draft, segment: Segment, source: int) -> float:
    """Return what moving the activations of a cut in `segment` takes at least, latency of one aside."""
    task, machine = draft.task, draft.task.machine
    least = math.inf
    for start in range(max(1, segment.start), segment.stop):
        for target in range(source + 1, len(machine.devices)):
            empty = machine.hop_ns(source, target, 0)
            whole = task.hop_ns(start, start + 1, source, target)
            if whole is not None and empty is not None:
                least = min(least, (whole - empty) / MILLISECOND)
    # A cut before the first block moves nothing.
    return 0.0 if segment.start == 0 or least == math.inf else least
