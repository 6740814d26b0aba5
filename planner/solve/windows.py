"""Rows of the placement's program about one device's part of a step: what keeps its window open.

A window lasts from the begin of a device's first block to the end of its last. In a steady step it holds all
computing, and every transfer for which no slot was free before it. All rows are lower bounds: the pipeline
can only take longer.
"""

from __future__ import annotations

from bayplan.planner.solve.draft import Draft
from bayplan.planner.solve.modes import MILLISECOND, SLOT_COUNTS, Mode, Stage, Term


def add_window(draft: Draft, stage: Stage) -> None:
    """Say how long the window of a device is at least.

    A slot is free again when its block has computed, so at most as many blocks as there are slots are
    there when the window opens.
    """
    program, window = draft.program, (stage.window, 1.0)
    computing = [(mode.variable, -mode.compute_ns / MILLISECOND) for mode in stage.modes]
    fetching = [(own.variable, -1.0) for own in stage.fetching]
    program.at_least([window, *computing, *fetching], 0.0)
    streamed = stage.streamed
    if not streamed:
        return
    stage.early = [(mode, program.number(float(max(SLOT_COUNTS)))) for mode in streamed]
    for mode, variable in stage.early:
        program.at_most([(variable, 1.0), (mode.variable, -1.0)], 0.0)
    slots = [(switch, -float(num_slots)) for (num_slots, _), switch in stage.slots.items()]
    program.at_most([*((variable, 1.0) for _, variable in stage.early), *slots], 0.0)
    program.at_least([window, *late_terms(stage.early)], 0.0)
    _add_order(draft, stage.early)
    _add_ends(draft, stage, stage.early, slots)
    _add_single_slot(draft, stage, late_terms(stage.early))


def late_terms(pairs: list[tuple[Mode, int]]) -> list[Term]:
    """Return the negative terms of the transfers within the window: all but those that are early."""
    late: list[Term] = []
    for mode, early in pairs:
        transfer = mode.transfer_ns / MILLISECOND
        late += [(mode.variable, -transfer), (early, transfer)]
    return late


def _add_order(draft: Draft, pairs: list[tuple[Mode, int]]) -> None:
    """Blocks are brought in in their order: before any of one group, all of the groups before it."""
    program = draft.program
    for group in range(1, len(draft.groups)):
        before = [(mode, variable) for mode, variable in pairs if draft.group[mode.kind] < group]
        own = [variable for mode, variable in pairs if draft.group[mode.kind] == group]
        if not before or not own:
            continue
        has_early = program.switch()
        program.at_most([*((v, 1.0) for v in own), (has_early, -float(max(SLOT_COUNTS)))], 0.0)
        most = float(sum(draft.count[kind] for kind in {mode.kind for mode, _ in before}))
        left = [term for mode, v in before for term in ((mode.variable, 1.0), (v, -1.0))]
        program.at_most([*left, (has_early, most)], most)


def _add_ends(draft: Draft, stage: Stage, pairs: list[tuple[Mode, int]], slots: list[Term]) -> None:
    """With more blocks than slots, transfers keep neither the window's first part busy nor its last.

    The next transfer waits until the first streamed block has computed, and with it all before it; the
    last one of any group is followed by the computing of its block and of all groups behind it.
    """
    program = draft.program
    computing = stage.longest_ms(draft.count)
    streams, least = _streaming_groups(draft, stage)
    lead = program.number()
    for group, switch in streams.items():
        # If this is the first group that streams, all before it and one of its blocks compute first.
        before = _computing(draft, stage, range(group))
        others = [(other, computing) for own, other in streams.items() if own < group]
        first = (switch, -least[group] - computing)
        program.at_least([(lead, 1.0), *before, *others, first], -computing)
    for group, switch in streams.items():
        own = [(mode, variable) for mode, variable in pairs if draft.group[mode.kind] <= group]
        most = float(sum(draft.count[kind] for kind in {mode.kind for mode, _ in own}))
        is_late = program.switch()
        program.at_most([*((mode.variable, 1.0) for mode, _ in own), *slots, (is_late, -most)], 0.0)
        behind = _computing(draft, stage, range(group + 1, len(draft.groups)))
        parts = [*late_terms(own), (lead, -1.0), *behind, (switch, -least[group])]
        program.at_least([(stage.window, 1.0), *parts, (is_late, -2 * computing)], -2 * computing)


def _streaming_groups(draft: Draft, stage: Stage) -> tuple[dict[int, int], dict[int, float]]:
    """Return per group that can stream a switch that says whether it does, and its least time to compute."""
    program = draft.program
    streams: dict[int, int] = {}
    least: dict[int, float] = {}
    for group in sorted({draft.group[mode.kind] for mode in stage.streamed}):
        own = [mode for mode in stage.streamed if draft.group[mode.kind] == group]
        least[group] = min(mode.compute_ns for mode in own) / MILLISECOND
        streams[group] = program.switch()
        most = float(sum(draft.count[kind] for kind in {mode.kind for mode in own}))
        number = [(mode.variable, 1.0) for mode in own]
        program.at_most([*number, (streams[group], -most)], 0.0)
        program.at_least([*number, (streams[group], -1.0)], 0.0)
    return streams, least


def _computing(draft: Draft, stage: Stage, groups: range) -> list[Term]:
    """Return the negative terms of what the blocks of `groups` compute and fetch."""
    computing = [
        (mode.variable, -mode.compute_ns / MILLISECOND)
        for mode in stage.modes
        if draft.group[mode.kind] in groups
    ]
    fetching = [(own.variable, -1.0) for own in stage.fetching if draft.group[own.kind] in groups]
    return computing + fetching


def _add_single_slot(draft: Draft, stage: Stage, late: list[Term]) -> None:
    """Through one slot nothing is brought in while a streamed block computes."""
    program, window, time = draft.program, (stage.window, 1.0), (draft.time, 1.0)
    streamed = stage.streamed
    singles = [switch for (num_slots, _), switch in stage.slots.items() if num_slots == 1]
    computing = [(mode.variable, -mode.compute_ns / MILLISECOND) for mode in streamed]
    moving = [(mode.variable, -mode.transfer_ns / MILLISECOND) for mode in streamed]
    most_computing = sum(draft.count[m.kind] * m.compute_ns for m in streamed) / MILLISECOND
    most_moving = sum(draft.count[m.kind] * m.transfer_ns for m in streamed) / MILLISECOND
    most = most_computing + most_moving
    one = [(switch, -most) for switch in singles]
    program.at_least([window, *late, *computing, *one], -most)
    one = [(switch, -most_computing) for switch in singles]
    program.at_least([time, *moving, *computing, *one], -most_computing)
    fetches = [(mode.fetch, -1.0) for mode in stage.modes if mode.fetch is not None]
    program.at_least([time, *moving, *fetches], 0.0)
    # Whatever the slots, a block's own transfer and computing follow each other.
    for (_, size), switch in stage.slots.items():
        least = min(
            mode.transfer_ns + mode.compute_ns for mode in streamed if mode.form.parameter_bytes == size
        )
        program.at_least([time, (switch, -least / MILLISECOND)], 0.0)
