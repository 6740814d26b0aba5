"""Rows of the placement's program about one device's part of a step: what keeps its window open.

A window lasts from the begin of a device's first block to the end of its last. In a steady step it holds all
computing, and every transfer for which no slot was free before it. All rows are lower bounds: the pipeline
can only take longer.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from bayplan.planner.solve.draft import Draft
from bayplan.planner.solve.modes import MILLISECOND, SLOT_COUNTS, Mode, Stage, Term

MAX_WRAPPED_GROUPS = 6
"""Of more groups that stream, rows for every pair would cost the solver more than they tell."""


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
    program.at_least([window, *late_terms(stage.early), *fetch_terms(stage.modes)], 0.0)
    _add_order(draft, stage.early)
    streams = _streaming_groups(draft, stage)
    _add_ends(draft, stage, streams, slots)
    _add_single_slot(draft, stage, late_terms(stage.early))
    _add_single_slot_wrap(draft, stage, streams)
    _add_long_visits(draft, stage)


def late_terms(pairs: list[tuple[Mode, int]]) -> list[Term]:
    """Return the negative terms of the transfers within the window: all but those that are early."""
    late: list[Term] = []
    for mode, early in pairs:
        transfer = mode.transfer_ns / MILLISECOND
        late += [(mode.variable, -transfer), (early, transfer)]
    return late


def fetch_terms(modes: Iterable[Mode]) -> list[Term]:
    """Return the negative terms of the fetches of experts: they take the way of the transfers."""
    return [(mode.fetch, -1.0) for mode in modes if mode.fetch is not None]


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


class _Streaming(msgspec.Struct, frozen=True, kw_only=True):
    """One group of kinds of which blocks can stream."""

    group: int
    switch: int
    """Variable: whether any does."""
    compute_ms: float
    """Least of one block."""
    transfer_ms: float
    """Likewise."""


def _add_ends(draft: Draft, stage: Stage, streams: list[_Streaming], slots: list[Term]) -> None:
    """With more blocks than slots, transfers keep neither the window's first part busy nor its last.

    The next transfer waits until the first streamed block has computed, and with it all before it; the
    last one of any group is followed by the computing of its block and of all groups behind it.
    """
    program, pairs = draft.program, stage.early
    computing = stage.longest_ms(draft.count)
    lead = program.number()
    for number, own in enumerate(streams):
        # If this is the first group that streams, all before it and one of its blocks compute first.
        before = _computing(draft, stage, range(own.group))
        others = [(other.switch, computing) for other in streams[:number]]
        first = (own.switch, -own.compute_ms - computing)
        program.at_least([(lead, 1.0), *before, *others, first], -computing)
    for own in streams:
        known = [(mode, variable) for mode, variable in pairs if draft.group[mode.kind] <= own.group]
        most = float(sum(draft.count[kind] for kind in {mode.kind for mode, _ in known}))
        is_late = program.switch()
        program.at_most([*((mode.variable, 1.0) for mode, _ in known), *slots, (is_late, -most)], 0.0)
        behind = _computing(draft, stage, range(own.group + 1, len(draft.groups)))
        parts = [*late_terms(known), (lead, -1.0), *behind, (own.switch, -own.compute_ms)]
        program.at_least([(stage.window, 1.0), *parts, (is_late, -2 * computing)], -2 * computing)


def _streaming_groups(draft: Draft, stage: Stage) -> list[_Streaming]:
    """Return the groups that can stream, in their order."""
    program = draft.program
    found: list[_Streaming] = []
    for group in sorted({draft.group[mode.kind] for mode in stage.streamed}):
        own = [mode for mode in stage.streamed if draft.group[mode.kind] == group]
        switch = program.switch()
        most = float(sum(draft.count[kind] for kind in {mode.kind for mode in own}))
        number = [(mode.variable, 1.0) for mode in own]
        program.at_most([*number, (switch, -most)], 0.0)
        program.at_least([*number, (switch, -1.0)], 0.0)
        found.append(
            _Streaming(
                group=group,
                switch=switch,
                compute_ms=min(mode.compute_ns for mode in own) / MILLISECOND,
                transfer_ms=min(mode.transfer_ns for mode in own) / MILLISECOND,
            )
        )
    return found


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
    fetches = fetch_terms(stage.modes)
    program.at_least([window, *late, *fetches, *computing, *one], -most)
    one = [(switch, -most_computing) for switch in singles]
    program.at_least([time, *moving, *fetches, *computing, *one], -most_computing)
    program.at_least([time, *moving, *fetches], 0.0)
    # Whatever the slots, a block's own transfer and computing follow each other.
    for (_, size), switch in stage.slots.items():
        least = min(
            mode.transfer_ns + mode.compute_ns for mode in streamed if mode.form.parameter_bytes == size
        )
        program.at_least([time, (switch, -least / MILLISECOND)], 0.0)


def _add_single_slot_wrap(draft: Draft, stage: Stage, streams: list[_Streaming]) -> None:
    """Through one slot the first streamed block comes in when the last one has computed, and not before.

    What computes or is fetched between the two, from the first to the last, does not hide its transfer.
    """
    if len(streams) > MAX_WRAPPED_GROUPS:
        return
    program = draft.program
    computing = stage.longest_ms(draft.count)
    singles = [switch for (num_slots, _), switch in stage.slots.items() if num_slots == 1]
    for number, first in enumerate(streams):
        for last in streams[number + 1 :]:
            inside = _computing(draft, stage, range(first.group + 1, last.group))
            wrap_ms = first.compute_ms + first.transfer_ms + last.compute_ms
            most = computing + wrap_ms
            others = [(other.switch, most) for other in streams[:number]]
            given = [(switch, -most) for switch in (first.switch, last.switch, *singles)]
            program.at_least([(draft.time, 1.0), *inside, *others, *given], wrap_ms - 3 * most)


def _add_long_visits(draft: Draft, stage: Stage) -> None:
    """While one block computes, no more is brought in than there are slots, however long it takes."""
    program, streamed = draft.program, stage.streamed
    moving = [(mode.variable, -mode.transfer_ns / MILLISECOND) for mode in streamed]
    others = [mode for mode in stage.modes if not mode.choice.streams]
    longest_ns = max((mode.compute_ns for mode in others), default=0)
    most = sum(draft.count[mode.kind] * mode.compute_ns for mode in others) / MILLISECOND
    for num_slots in SLOT_COUNTS:
        used = [(switch, -most) for (number, _), switch in stage.slots.items() if number == num_slots]
        for each_ns in sorted({mode.transfer_ns for mode in streamed if draft.count[mode.kind] > 1}):
            idle = [
                (mode.variable, -(mode.compute_ns - num_slots * each_ns) / MILLISECOND)
                for mode in others
                if mode.compute_ns > num_slots * each_ns
            ]
            if not idle or not used:
                continue
            spare_ns = longest_ns - num_slots * each_ns
            slower = [
                (mode.variable, _filled_ns(mode.transfer_ns, each_ns, spare_ns) / MILLISECOND)
                for mode in streamed
                if mode.transfer_ns > each_ns
            ]
            parts = [*moving, *fetch_terms(stage.modes), *idle, *slower]
            program.at_least([(draft.time, 1.0), *parts, *used], -most)


def _filled_ns(transfer_ns: int, each_ns: int, spare_ns: int) -> int:
    """Return how much more than `each_ns` per visit one slower transfer hides in all its visits together.

    Over `n` visits it hides no more than it lasts, and in each no more than that one has to spare.
    """
    most = -(-transfer_ns // (spare_ns + each_ns))
    return max(min(number * spare_ns, transfer_ns - number * each_ns) for number in range(1, most + 1))
