"""Which positions stream, once it is known how many blocks of each kind do: as evenly as the order allows.

Streamed blocks in one clump leave the link idle while resident blocks compute and the device idle while the
clump loads (1.2 to 1.7 times slower with two slots); evenly spaced ones reach the larger of the two times.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.interleave import interleaved
from bayplan.planner.solve.modes import Counts
from bayplan.planner.solve.task import Task


class Spacing(enum.Enum):
    """Where in its share of the chain a streamed block lies."""

    MIDDLE = enum.auto()
    START = enum.auto()
    END = enum.auto()
    BOTH_ENDS = enum.auto()
    """The first at the start and the last at the end, so that the link works while the window is open."""


def arrangements(task: Task, counts: Counts, kinds: tuple[int, ...]) -> Iterator[Answer]:
    """Yield placements that have these counts, each with streamed blocks spaced evenly in another way.

    Args:
        task: The problem, for what a transfer takes.
        counts: How many blocks of each kind each device has in each mode.
        kinds: Kind of each block.
    """
    for spacing in Spacing:
        yield _arranged(task, counts, kinds, spacing, slowest_first=False)
        if any(_streamed_ways(modes) > 1 for modes in counts.modes):
            yield _arranged(task, counts, kinds, spacing, slowest_first=True)
    if any(choice.streams for modes in counts.modes for _, choice, _ in modes):
        for spacing in Spacing:
            ordered = _arranged(task, counts, kinds, Spacing.MIDDLE, slowest_first=False, rare=spacing)
            for starts_full in (False, True):
                yield interleaved(task, counts, kinds, ordered.choices, starts_full=starts_full)


def _streamed_ways(modes: tuple[tuple[int, Choice, int], ...]) -> int:
    return len({choice for _, choice, _ in modes if choice.streams})


def _arranged(
    task: Task,
    counts: Counts,
    kinds: tuple[int, ...],
    spacing: Spacing,
    *,
    slowest_first: bool,
    rare: Spacing = Spacing.MIDDLE,
) -> Answer:
    """Return one placement; slow transfers come first where they are to be done before the window opens.

    Else those that are rare lie among the others as `rare` says.
    """
    choices: list[Choice] = []
    start = 0
    for modes, stop in zip(counts.modes, counts.cuts, strict=True):
        streamed: dict[int, list[Choice]] = {}
        resident: dict[int, list[Choice]] = {}
        for kind, choice, number in modes:
            (streamed if choice.streams else resident).setdefault(kind, []).extend([choice] * number)
        for kind, own in streamed.items():
            streamed[kind] = _ordered(task, kinds.index(kind), own, rare, slowest_first=slowest_first)
        moving = _spread(kinds, range(start, stop), {k: len(v) for k, v in streamed.items()}, spacing)
        for index in range(start, stop):
            choices.append((streamed if index in moving else resident)[kinds[index]].pop(0))
        start = stop
    return Answer(choices=tuple(choices), num_slots=counts.num_slots)


def _ordered(
    task: Task, index: int, choices: list[Choice], spacing: Spacing, *, slowest_first: bool
) -> list[Choice]:
    """Return choices of streamed blocks that are alike in the order in which they take their places."""

    def transfer_ns(choice: Choice) -> int:
        found = task.transfer_ns(index, choice.form, choice.device, choice.residency)
        assert found is not None, "what streams has a way"
        return found

    if slowest_first:
        return sorted(choices, key=transfer_ns, reverse=True)
    # A set's order is another one in every process.
    different = dict.fromkeys(choices)
    rarest_first = sorted(different, key=lambda choice: (choices.count(choice), transfer_ns(choice)))
    places: list[Choice | None] = [None] * len(choices)
    for choice in rarest_first:
        free = [place for place, own in enumerate(places) if own is None]
        for number in even_places(len(free), choices.count(choice), spacing):
            places[free[number]] = choice
    return [choice for choice in places if choice is not None]


def _spread(kinds: tuple[int, ...], stage: range, wanted: dict[int, int], spacing: Spacing) -> frozenset[int]:
    """Return as many positions of each kind as are wanted, all of them together as even as can be."""
    left = dict(wanted)
    chosen: set[int] = set()
    for place in even_places(len(stage), sum(wanted.values()), spacing):
        able = [index for index in stage if left.get(kinds[index]) and index not in chosen]
        nearest = min(able, key=lambda index: (abs(index - stage.start - place), index))
        chosen.add(nearest)
        left[kinds[nearest]] -= 1
    return frozenset(chosen)


def even_places(num_places: int, count: int, spacing: Spacing) -> list[int]:
    """Return `count` indices below `num_places`, the k-th in the k-th of `count` equal shares."""
    last = num_places - 1
    if spacing is Spacing.BOTH_ENDS and count > 1:
        return [k * last // (count - 1) for k in range(count)]
    half = {Spacing.START: 0, Spacing.MIDDLE: 1, Spacing.BOTH_ENDS: 1, Spacing.END: 2}[spacing]
    is_end = spacing is Spacing.END
    return [min(last, ((2 * k + half) * num_places - is_end) // (2 * count)) for k in range(count)]
