"""Rows of the placement's program about the ring of slots of one device: what keeps its courier idle.

Every transfer of a step goes through the ring once, so that a step takes as long as they do, and longer by
what the courier waits for a free slot. All rows are lower bounds.
"""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.planner.solve.draft import Draft
from bayplan.planner.solve.modes import MILLISECOND, SLOT_COUNTS, Mode, Stage, StreamingGroup, Term

LEAST_REMAINDER = 0.02
"""Of a transfer, what a block must compute at least for rows about a remainder to tell anything."""

MAX_WRAPPED_GROUPS = 6
"""Of more groups that stream, rows for every pair would cost the solver more than they tell."""


def add_slot_rows(draft: Draft, stage: Stage, streams: list[StreamingGroup], late: list[Term]) -> None:
    """Say what few slots cost.

    Args:
        draft: The program.
        stage: Of a device to which blocks can stream.
        streams: Its groups, in their order.
        late: Negative terms of the transfers within its window.
    """
    _add_single_slot(draft, stage, late)
    _add_single_slot_wrap(draft, stage, streams)
    _add_remainders(draft, stage, streams)
    _add_long_visits(draft, stage)


def fetch_terms(modes: Iterable[Mode]) -> list[Term]:
    """Return the negative terms of the fetches of experts: they take the way of the transfers."""
    return [(mode.fetch, -1.0) for mode in modes if mode.fetch is not None]


def computing_terms(draft: Draft, stage: Stage, groups: range) -> list[Term]:
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


def _add_single_slot_wrap(draft: Draft, stage: Stage, streams: list[StreamingGroup]) -> None:
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
            inside = computing_terms(draft, stage, range(first.group + 1, last.group))
            wrap_ms = first.compute_ms + first.transfer_ms + last.compute_ms
            most = computing + wrap_ms
            others = [(other.switch, most) for other in streams[:number]]
            given = [(switch, -most) for switch in (first.switch, last.switch, *singles)]
            program.at_least([(draft.time, 1.0), *inside, *others, *given], wrap_ms - 3 * most)


def _add_remainders(draft: Draft, stage: Stage, streams: list[StreamingGroup]) -> None:
    """Where one block is left over when slots go round, the first waits for its slot until that has computed.

    Block number k of the stream order uses slot k modulo their number, so with one too many the last block of
    a step and the first of the next have the same slot, and the courier is idle while the last computes.
    """
    program, streamed = draft.program, stage.streamed
    if all(own.compute_ms < own.transfer_ms * LEAST_REMAINDER for own in streams):
        return
    moving = [(mode.variable, -mode.transfer_ns / MILLISECOND) for mode in streamed]
    number = [(mode.variable, 1.0) for mode in streamed]
    most = sum(draft.count[kind] for kind in {mode.kind for mode in streamed})
    for num_slots in SLOT_COUNTS[1:]:
        used = [switch for (slots, _), switch in stage.slots.items() if slots == num_slots]
        rounds, is_left = program.integer(most // num_slots), program.switch()
        # A remainder of two, of three slots, costs nothing that is known for certain.
        rest = [program.switch() for _ in range(num_slots - 2)]
        whole = [(rounds, -float(num_slots)), (is_left, -1.0), *((variable, -2.0) for variable in rest)]
        program.at_most([(is_left, 1.0), *((variable, 1.0) for variable in rest)], 1.0)
        program.at_most([*number, *whole, *((switch, float(most)) for switch in used)], float(most))
        program.at_least([*number, *whole], 0.0)
        for place, last in enumerate(streams):
            given = [(switch, -last.compute_ms) for switch in (is_left, last.switch, *used)]
            behind = [(other.switch, last.compute_ms) for other in streams[place + 1 :]]
            parts = [*moving, *fetch_terms(stage.modes), *given, *behind]
            program.at_least([(draft.time, 1.0), *parts], -2 * last.compute_ms)
        if num_slots == 2:
            _add_short_transfers(draft, stage, streams, used)


def _add_short_transfers(draft: Draft, stage: Stage, streams: list[StreamingGroup], used: list[int]) -> None:
    """Through two slots the courier has but the next block to bring while one computes.

    If that one is small the courier waits: so a small block cannot make the number of blocks even.
    """
    moving = [(mode.variable, -mode.transfer_ns / MILLISECOND) for mode in stage.streamed]
    for place, after in enumerate(streams):
        for number, before in enumerate(streams[:place]):
            idle_ms = before.compute_ms - after.longest_ms
            if idle_ms < before.transfer_ms * LEAST_REMAINDER:
                continue
            given = [(switch, -idle_ms) for switch in (before.switch, after.switch, *used)]
            between = [(other.switch, idle_ms) for other in streams[number + 1 : place]]
            parts = [*moving, *fetch_terms(stage.modes), *given, *between]
            draft.program.at_least([(draft.time, 1.0), *parts], -2 * idle_ms)


def _add_long_visits(draft: Draft, stage: Stage) -> None:
    """While one block computes, no more is brought in than there are slots, however long it takes."""
    program, streamed = draft.program, stage.streamed
    moving = [(mode.variable, -mode.transfer_ns / MILLISECOND) for mode in streamed]
    others = [mode for mode in stage.modes if not mode.choice.streams]
    longest_ns = max((mode.compute_ns for mode in others), default=0)
    most = sum(draft.count[mode.kind] * mode.compute_ns for mode in stage.modes) / MILLISECOND
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
            if num_slots == 1:
                parts += [(mode.variable, -mode.compute_ns / MILLISECOND) for mode in streamed]
            program.at_least([(draft.time, 1.0), *parts, *used], -most)


def _filled_ns(transfer_ns: int, each_ns: int, spare_ns: int) -> int:
    """Return how much more than `each_ns` per visit one slower transfer hides in all its visits together.

    Over `n` visits it hides no more than it lasts, and in each no more than that one has to spare.
    """
    most = -(-transfer_ns // (spare_ns + each_ns))
    return max(min(number * spare_ns, transfer_ns - number * each_ns) for number in range(1, most + 1))
