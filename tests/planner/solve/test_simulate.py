from __future__ import annotations

from itertools import pairwise

import pytest
from event_simulator import step_ends
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.planner.solve.simulate import MAX_STEPS, Visit, first_step_ns, steady_step_ns, step_ends_ns


def resident(compute_ns: int, *, device: str = "a", hop_ns: int = 0) -> Visit:
    return Visit(device=device, compute_ns=compute_ns, hop_ns=hop_ns)


def streamed(
    compute_ns: int, transfer_ns: int, *, device: str = "a", hop_ns: int = 0, link: str = "link"
) -> Visit:
    return Visit(device=device, compute_ns=compute_ns, hop_ns=hop_ns, transfer_ns=transfer_ns, link=link)


def evenly(num_groups: int, per_group: int, compute_ns: int, transfer_ns: int) -> list[Visit]:
    """Groups of blocks of which the first streams."""
    group = [streamed(compute_ns, transfer_ns), *[resident(compute_ns)] * (per_group - 1)]
    return group * num_groups


def test_nothing_streams() -> None:
    visits = [resident(5), resident(7, device="b", hop_ns=3)]
    assert step_ends_ns(visits, 1, 9) == [15, 30]
    assert steady_step_ns(visits, 1) == first_step_ns(visits, 1) == 15


@pytest.mark.parametrize(("num_slots", "num_groups"), [(2, 4), (2, 10), (3, 6), (3, 9)])
@pytest.mark.parametrize("transfer_ns", [1, 39, 40, 41, 500])
def test_evenly_spaced_blocks_reach_the_larger_of_the_two_times(
    num_slots: int, num_groups: int, transfer_ns: int
) -> None:
    visits = evenly(num_groups, 4, 10, transfer_ns)
    assert steady_step_ns(visits, num_slots) == num_groups * max(40, transfer_ns)


def test_one_slot_never_overlaps_transfer_and_the_block_itself() -> None:
    """Block of 10 computes, its slot is free, the next one travels for 25 while 2 x 10 are computed."""
    visits = evenly(3, 3, 10, 25)
    assert step_ends_ns(visits, 1, 3) == [25 + 30 + 5 + 30 + 5 + 30, 230]
    assert steady_step_ns(visits, 1) == 3 * (10 + 25)


def test_one_slot_and_little_to_compute() -> None:
    visits = [streamed(10, 100), streamed(10, 60)]
    assert step_ends_ns(visits, 1, 2) == [180, 360]


def test_the_first_step_waits_for_the_first_block() -> None:
    visits = [resident(4), streamed(10, 100), resident(20)]
    assert first_step_ns(visits, 2) == 100 + 10 + 20
    assert steady_step_ns(visits, 2) == 110


def test_the_ring_stalls_at_its_wrap_where_the_count_is_no_multiple() -> None:
    """The third block of a step and the first of the next share slot 0, so nothing overlaps for 20."""
    even, odd = evenly(4, 1, 20, 20), evenly(3, 1, 20, 20)
    assert steady_step_ns(even, 2) == 4 * 20
    assert steady_step_ns(odd, 2) == 3 * 20 + 20
    assert steady_step_ns(odd, 3) == 3 * 20


def test_fewer_blocks_than_slots_each_keep_their_own() -> None:
    """Loaded again each step all the same: a slot is free once its block has computed."""
    visits = [streamed(10, 30), resident(100)]
    assert step_ends_ns(visits, 3, 4) == [140, 250, 360]


def test_two_devices_share_one_disk() -> None:
    apart = [streamed(5, 50, link="x"), streamed(5, 50, device="b", link="y")]
    shared = [streamed(5, 50), streamed(5, 50, device="b")]
    assert steady_step_ns(apart, 1) == 55
    assert steady_step_ns(shared, 1) == 100


def test_a_hop_delays_what_follows_and_lets_transfers_go_on() -> None:
    visits = [resident(10), streamed(10, 50, device="b", hop_ns=30)]
    assert first_step_ns(visits, 1) == 60
    assert steady_step_ns(visits, 1) == 60


def lead(unit_ns: int, excess_ns: int) -> list[Visit]:
    """A step computes 80 units, and one link is busy for a little longer than that.

    Device b's slots are filled while the first step waits for device a, which gives it a lead.
    """
    return [
        streamed(0, 40 * unit_ns, link="a"),
        streamed(30 * unit_ns, 20 * unit_ns, device="b", link="b"),
        streamed(20 * unit_ns, 20 * unit_ns, device="b", link="b"),
        streamed(30 * unit_ns, 40 * unit_ns + excess_ns, device="b", link="b"),
    ]


def test_a_lead_of_the_first_steps_is_not_taken_for_the_rhythm() -> None:
    ends = step_ends(lead(1, 1), dict.fromkeys("ab", 3), 20)
    assert [later - earlier for earlier, later in pairwise(ends)] == [80] * 9 + [81] * 10
    assert steady_step_ns(lead(1, 1), 3) == 81


def test_a_lead_that_outlasts_the_simulation_does_not_hide_the_link() -> None:
    ends = step_ends_ns(lead(1000, 1), 3, MAX_STEPS)
    assert {later - earlier for earlier, later in pairwise(ends)} == {80_000}
    assert steady_step_ns(lead(1000, 1), 3) == 80_001


def test_alternating_steps_count_as_the_longer() -> None:
    visits = [
        streamed(0, 4),
        streamed(9, 5),
        resident(4, device="b", hop_ns=1),
        streamed(1, 12, device="b"),
    ]
    ends = step_ends_ns(visits, 1, MAX_STEPS)
    assert len(ends) == MAX_STEPS
    assert {later - earlier for earlier, later in pairwise(ends[-9:])} == {20, 33}
    assert steady_step_ns(visits, 1) == 33


TIMES = st.one_of(st.integers(0, 12), st.sampled_from((39, 40, 41, 80)))


@st.composite
def pipelines(draw: st.DrawFn) -> list[Visit]:
    is_shared = draw(st.booleans())
    visits = []
    for device in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        for index in range(draw(st.integers(1, 5))):
            visits.append(
                Visit(
                    device=device,
                    compute_ns=draw(TIMES),
                    hop_ns=draw(st.integers(0, 5)) if index == 0 and device != "a" else 0,
                    transfer_ns=draw(st.one_of(st.none(), TIMES.map(lambda time: time + 1))),
                    link="shared" if is_shared else device,
                )
            )
    return visits


@given(pipelines(), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_a_second_simulator_agrees(visits: list[Visit], num_slots: int) -> None:
    ends = step_ends_ns(visits, num_slots, MAX_STEPS)
    slow = step_ends(visits, dict.fromkeys("abc", num_slots), MAX_STEPS + 36)
    assert ends == slow[: len(ends)]
    steps = [later - earlier for earlier, later in pairwise(slow)]
    if len(ends) < MAX_STEPS:
        assert set(steps[len(ends) - 1 :]) == {steady_step_ns(visits, num_slots)}
    assert steady_step_ns(visits, num_slots) >= max(
        sum(visit.compute_ns + visit.hop_ns for visit in visits),
        *(sum(visit.transfer_ns or 0 for visit in visits if visit.link == link) for link in ("a", "shared")),
    )
