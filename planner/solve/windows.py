"""Rows of the placement's program about one device's part of a step: what keeps its window open.

A window lasts from the begin of a device's first block to the end of its last. In a steady step it holds all
computing, and every transfer for which no slot was free before it. All rows are lower bounds: the pipeline
can only take longer.
"""

from __future__ import annotations

from bayplan.planner.solve.draft import Draft
from bayplan.planner.solve.modes import MILLISECOND, SLOT_COUNTS, Mode, Stage, StreamingGroup, Term
from bayplan.planner.solve.ring_rows import add_slot_rows, computing_terms, fetch_terms


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
    blocks = [variable for _, variable in stage.early]
    if len({mode.kind for mode in streamed}) < len(streamed):
        # A block may be there in part; where blocks of a kind differ in how they come, whole slots are told.
        blocks = [program.integer(max(SLOT_COUNTS)) for _ in stage.early]
        for (_, variable), number in zip(stage.early, blocks, strict=True):
            program.at_most([(variable, 1.0), (number, -1.0)], 0.0)
    program.at_most([*((number, 1.0) for number in blocks), *slots], 0.0)
    program.at_least([window, *late_terms(stage.early), *fetch_terms(stage.modes)], 0.0)
    _add_order(draft, stage.early)
    streams = _streaming_groups(draft, stage)
    _add_ends(draft, stage, streams, slots)
    add_slot_rows(draft, stage, streams, late_terms(stage.early))


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


def _add_ends(draft: Draft, stage: Stage, streams: list[StreamingGroup], slots: list[Term]) -> None:
    """With more blocks than slots, transfers keep neither the window's first part busy nor its last.

    The next transfer waits until the first streamed block has computed, and with it all before it; the
    last one of any group is followed by the computing of its block and of all groups behind it.
    """
    program, pairs = draft.program, stage.early
    computing = stage.longest_ms(draft.count)
    lead = program.number()
    for number, own in enumerate(streams):
        # If this is the first group that streams, all before it and one of its blocks compute first.
        before = computing_terms(draft, stage, range(own.group))
        others = [(other.switch, computing) for other in streams[:number]]
        first = (own.switch, -own.compute_ms - computing)
        program.at_least([(lead, 1.0), *before, *others, first], -computing)
    for own in streams:
        known = [(mode, variable) for mode, variable in pairs if draft.group[mode.kind] <= own.group]
        most = float(sum(draft.count[kind] for kind in {mode.kind for mode, _ in known}))
        is_late = program.switch()
        program.at_most([*((mode.variable, 1.0) for mode, _ in known), *slots, (is_late, -most)], 0.0)
        behind = computing_terms(draft, stage, range(own.group + 1, len(draft.groups)))
        parts = [*late_terms(known), (lead, -1.0), *behind, (own.switch, -own.compute_ms)]
        program.at_least([(stage.window, 1.0), *parts, (is_late, -2 * computing)], -2 * computing)


def _streaming_groups(draft: Draft, stage: Stage) -> list[StreamingGroup]:
    """Return the groups that can stream, in their order."""
    program = draft.program
    found: list[StreamingGroup] = []
    for group in sorted({draft.group[mode.kind] for mode in stage.streamed}):
        own = [mode for mode in stage.streamed if draft.group[mode.kind] == group]
        switch = program.switch()
        most = float(sum(draft.count[kind] for kind in {mode.kind for mode in own}))
        number = [(mode.variable, 1.0) for mode in own]
        program.at_most([*number, (switch, -most)], 0.0)
        program.at_least([*number, (switch, -1.0)], 0.0)
        found.append(
            StreamingGroup(
                group=group,
                switch=switch,
                compute_ms=min(mode.compute_ns for mode in own) / MILLISECOND,
                transfer_ms=min(mode.transfer_ns for mode in own) / MILLISECOND,
                longest_ms=max(mode.transfer_ns for mode in own) / MILLISECOND,
            )
        )
    return found
