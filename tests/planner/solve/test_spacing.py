from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_problems import GIGA, gpus, make_chain, make_inventory, make_link, make_task

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.modes import Counts
from bayplan.planner.solve.spacing import Spacing, arrangements, even_places
from bayplan.schemas.types import Residency

STAY, HOST, DISK = Residency.RESIDENT, Residency.STREAM_HOST, Residency.STREAM_DISK


@pytest.mark.parametrize(
    ("spacing", "places"),
    [
        (Spacing.MIDDLE, [2, 6, 10]),
        (Spacing.START, [0, 4, 8]),
        (Spacing.END, [3, 7, 11]),
        (Spacing.BOTH_ENDS, [0, 5, 11]),
    ],
)
def test_one_in_each_share(spacing: Spacing, places: list[int]) -> None:
    assert even_places(12, 3, spacing) == places


@pytest.mark.parametrize("spacing", Spacing)
def test_places_are_different_and_within(spacing: Spacing) -> None:
    for num_places in range(1, 20):
        for count in range(num_places + 1):
            places = even_places(num_places, count, spacing)
            assert places == sorted(set(places))
            assert len(places) == count
            assert all(0 <= place < num_places for place in places)


def counted(answer: Answer, kinds: tuple[int, ...], stage: range) -> Counter[tuple[int, Choice]]:
    return Counter((kinds[index], answer.choices[index]) for index in stage)


def test_streamed_blocks_lie_evenly() -> None:
    counts = Counts(
        cuts=(12,),
        modes=(((0, Choice(device=0), 9), (0, Choice(device=0, residency=HOST), 3)),),
        num_slots=(2,),
        bound=0.0,
    )
    found = list(arrangements(make_task(make_chain([64] * 12), gpus(1)), counts, (0,) * 12))
    even, listed = found[:4], found[4:]
    assert [answer.streamed_on(0) for answer in even] == [(2, 6, 10), (0, 4, 8), (3, 7, 11), (0, 5, 11)]
    # A list schedule visits what is there: a transfer takes no longer than a visit.
    assert [answer.streamed_on(0) for answer in listed] == [(1, 2, 3), (0, 1, 2)] * 4
    assert {answer.num_slots for answer in found} == {(2,)}


def test_two_tiers_alternate_or_the_slow_one_comes_first() -> None:
    inventory = make_inventory(gpus(1).devices, [make_link("node0/gpu0")], disk_rate=GIGA // 4)
    task = make_task(make_chain([64] * 6), inventory)
    modes = (0, Choice(device=0, residency=HOST), 4), (0, Choice(device=0, residency=DISK), 2)
    counts = Counts(cuts=(6,), modes=(modes,), num_slots=(2,), bound=0.0)
    found = [
        "".join("d" if choice.residency is DISK else "h" for choice in answer.choices)
        for answer in arrangements(task, counts, (0,) * 6)
    ]
    assert found[:8] == ["hdhhdh", "ddhhhh"] * 4
    # In a list schedule where all stream, the order is what differs.
    assert found[8:] == [order for order in ("hdhhdh", "dhhdhh", "hhdhhd", "dhhhhd") for _ in range(2)]


def test_equal_choices_of_two_tiers_keep_the_order_in_which_they_are_given() -> None:
    """Not that of a set, which is another one in every process."""
    inventory = make_inventory(gpus(1).devices, [make_link("node0/gpu0")], disk_rate=GIGA)
    task = make_task(make_chain([64] * 4), inventory)
    host, disk = Choice(device=0, residency=HOST), Choice(device=0, residency=DISK)
    for order, expected in (((host, disk), "dhdh"), ((disk, host), "hdhd")):
        modes = tuple((0, choice, 2) for choice in order)
        counts = Counts(cuts=(4,), modes=(modes,), num_slots=(2,), bound=0.0)
        first = next(arrangements(task, counts, (0,) * 4))
        assert "".join("d" if own.residency is DISK else "h" for own in first.choices) == expected


@st.composite
def problems(draw: st.DrawFn) -> tuple[Counts, tuple[int, ...]]:
    """Blocks of three kinds on two devices, in any numbers of modes."""
    stages = [draw(st.lists(st.integers(0, 2), max_size=12)) for _ in range(2)]
    modes: list[tuple[tuple[int, Choice, int], ...]] = []
    for device, stage in enumerate(stages):
        own = []
        for kind in sorted(set(stage)):
            left = stage.count(kind)
            for residency in (HOST, DISK):
                number = draw(st.integers(0, left))
                left -= number
                own.append((kind, Choice(device=device, residency=residency), number))
            own.append((kind, Choice(device=device), left))
        modes.append(tuple(entry for entry in own if entry[2]))
    ends = len(stages[0]), len(stages[0]) + len(stages[1])
    counts = Counts(cuts=ends, modes=tuple(modes), num_slots=(1, 2), bound=0.0)
    return counts, (*stages[0], *stages[1])


@given(problems())
@settings(max_examples=150, deadline=None)
def test_every_arrangement_has_the_counts(problem: tuple[Counts, tuple[int, ...]]) -> None:
    counts, kinds = problem
    task = make_task(make_chain([64 + 64 * kind for kind in kinds]), gpus(2))
    stages = range(counts.cuts[0]), range(counts.cuts[0], counts.cuts[1])
    for answer in arrangements(task, counts, kinds):
        assert len(answer.choices) == len(kinds)
        for modes, stage in zip(counts.modes, stages, strict=True):
            assert counted(answer, kinds, stage) == {(kind, choice): n for kind, choice, n in modes}
