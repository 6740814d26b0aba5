from __future__ import annotations

from itertools import pairwise

import pytest
from event_simulator import step_ends
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.planner.solve.simulate import (
    MAX_STEPS,
    Transfer,
    Visit,
    first_step_ns,
    steady_step_ns,
    step_ends_ns,
)

ONE, TWO, THREE = ({0: number, 1: number, 2: number} for number in (1, 2, 3))
"""As many slots on every device."""


def resident(compute_ns: int, *, device: int = 0, hop_ns: int = 0) -> Visit:
    return Visit(device=device, compute_ns=compute_ns, hop_ns=hop_ns)


def streamed(compute_ns: int, transfer_ns: int, *resources: str, device: int = 0, hop_ns: int = 0) -> Visit:
    transfer = Transfer(duration_ns=transfer_ns, resources=resources)
    return Visit(device=device, compute_ns=compute_ns, hop_ns=hop_ns, transfer=transfer)


def evenly(num_groups: int, per_group: int, compute_ns: int, transfer_ns: int) -> list[Visit]:
    """Groups of blocks of which the first streams."""
    group = [streamed(compute_ns, transfer_ns), *[resident(compute_ns)] * (per_group - 1)]
    return group * num_groups


def test_nothing_streams() -> None:
    visits = [resident(5), resident(7, device=1, hop_ns=3)]
    assert step_ends_ns(visits, ONE, 9) == [15, 30]
    assert steady_step_ns(visits, ONE) == first_step_ns(visits, ONE) == 15


@pytest.mark.parametrize(("num_slots", "num_groups"), [(2, 4), (2, 10), (3, 6), (3, 9)])
@pytest.mark.parametrize("transfer_ns", [1, 39, 40, 41, 500])
def test_evenly_spaced_blocks_reach_the_larger_of_the_two_times(
    num_slots: int, num_groups: int, transfer_ns: int
) -> None:
    visits = evenly(num_groups, 4, 10, transfer_ns)
    assert steady_step_ns(visits, {0: num_slots}) == num_groups * max(40, transfer_ns)


def test_one_slot_never_overlaps_transfer_and_the_block_itself() -> None:
    """Block of 10 computes, its slot is free, the next one travels for 25 while 2 x 10 are computed."""
    visits = evenly(3, 3, 10, 25)
    assert step_ends_ns(visits, ONE, 3) == [25 + 30 + 5 + 30 + 5 + 30, 230]
    assert steady_step_ns(visits, ONE) == 3 * (10 + 25)


def test_a_device_that_nothing_is_said_of_has_one_slot() -> None:
    visits = evenly(3, 3, 10, 25)
    assert step_ends_ns(visits, {}, 3) == step_ends_ns(visits, ONE, 3)


def test_one_slot_and_little_to_compute() -> None:
    visits = [streamed(10, 100), streamed(10, 60)]
    assert step_ends_ns(visits, ONE, 2) == [180, 360]


def test_the_first_step_waits_for_the_first_block() -> None:
    visits = [resident(4), streamed(10, 100), resident(20)]
    assert first_step_ns(visits, TWO) == 100 + 10 + 20
    assert steady_step_ns(visits, TWO) == 110


def test_the_ring_stalls_at_its_wrap_where_the_count_is_no_multiple() -> None:
    """The third block of a step and the first of the next share slot 0, so nothing overlaps for 20."""
    even, odd = evenly(4, 1, 20, 20), evenly(3, 1, 20, 20)
    assert steady_step_ns(even, TWO) == 4 * 20
    assert steady_step_ns(odd, TWO) == 3 * 20 + 20
    assert steady_step_ns(odd, THREE) == 3 * 20


def test_fewer_blocks_than_slots_each_keep_their_own() -> None:
    """Loaded again each step all the same: a slot is free once its block has computed."""
    visits = [streamed(10, 30), resident(100)]
    assert step_ends_ns(visits, THREE, 4) == [140, 250]


def test_two_devices_share_one_disk() -> None:
    apart = [streamed(5, 50), streamed(5, 50, device=1)]
    shared = [streamed(5, 50, "disk"), streamed(5, 50, "disk", device=1)]
    assert steady_step_ns(apart, ONE) == 55
    assert steady_step_ns(shared, ONE) == 100


def test_a_transfer_occupies_all_its_resources() -> None:
    """The first device's disk and switch are both busy, so neither of the others overlaps with it."""
    visits = [
        streamed(1, 30, "disk", "switch"),
        streamed(1, 20, "disk", device=1),
        streamed(1, 40, "switch", device=2),
    ]
    assert steady_step_ns(visits, ONE) == 30 + 40
    assert steady_step_ns(visits[:2], ONE) == 30 + 20
    assert steady_step_ns(visits[1:], ONE) == 40 + 1


def test_who_cannot_go_on_does_not_hold_up_who_can() -> None:
    """The second device waits for the switch; until then the disk, which it needs too, serves the third."""
    visits = [
        streamed(0, 50, "switch"),
        streamed(0, 10, "switch", "disk", device=1),
        streamed(0, 10, "disk", device=2),
    ]
    assert first_step_ns(visits, ONE) == 50 + 10


def test_the_block_that_runs_next_goes_first_and_what_was_on_its_way_goes_on_afterwards() -> None:
    """The last block travels from 10 to 30, when the first one's slot is free, and again from 40 to 70."""
    visits = [streamed(20, 10, "disk"), streamed(1, 10, "disk"), streamed(1, 50, "disk", device=1)]
    assert first_step_ns(visits, ONE) == 10 + 20 + 10 + 30 + 1


def test_a_hop_delays_what_follows_and_lets_transfers_go_on() -> None:
    visits = [resident(10), streamed(10, 50, device=1, hop_ns=30)]
    assert first_step_ns(visits, ONE) == 60
    assert steady_step_ns(visits, ONE) == 60


def fetching(compute_ns: int, experts_ns: int, fetch_ns: int, *resources: str, device: int = 0) -> Visit:
    return Visit(
        device=device,
        compute_ns=compute_ns,
        fetch=Transfer(duration_ns=fetch_ns, resources=resources),
        fetched_compute_ns=experts_ns,
    )


def test_a_fetch_begins_when_its_block_is_there_and_experts_compute_beside_it() -> None:
    assert steady_step_ns([fetching(10, 5, 30), resident(7)], ONE) == 10 + 30 + 7
    assert steady_step_ns([fetching(10, 50, 30), resident(7)], ONE) == 10 + 50 + 7


def test_a_fetch_waits_for_the_transfer_under_way() -> None:
    """From the end of the streamed block's own computing, its successor of the next step travels for 100."""
    visits = [streamed(10, 100), fetching(20, 0, 5)]
    assert steady_step_ns(visits, ONE) == 10 + 100 + 5


def lead(unit_ns: int, excess_ns: int) -> list[Visit]:
    """A step computes 80 units, and one courier is busy for a little longer than that.

    Its slots are filled while the first step waits for the other device, which gives it a lead.
    """
    return [
        streamed(0, 40 * unit_ns),
        streamed(30 * unit_ns, 20 * unit_ns, device=1),
        streamed(20 * unit_ns, 20 * unit_ns, device=1),
        streamed(30 * unit_ns, 40 * unit_ns + excess_ns, device=1),
    ]


def test_a_lead_of_the_first_steps_is_not_taken_for_the_rhythm() -> None:
    ends = step_ends(lead(1, 1), THREE, 20)
    assert [later - earlier for earlier, later in pairwise(ends)] == [80] * 9 + [81] * 10
    assert steady_step_ns(lead(1, 1), THREE) == 81


def test_a_lead_that_outlasts_the_simulation_does_not_hide_the_link() -> None:
    ends = step_ends_ns(lead(1000, 1), THREE, MAX_STEPS)
    assert {later - earlier for earlier, later in pairwise(ends)} == {80_000}
    assert steady_step_ns(lead(1000, 1), THREE) == 80_001


def test_alternating_steps_count_as_the_longer() -> None:
    visits = [
        streamed(4, 4, "disk", "switch"),
        streamed(9, 4, device=1),
        streamed(0, 12, "disk", device=1),
    ]
    ends = step_ends_ns(visits, {0: 1, 1: 2}, MAX_STEPS)
    assert len(ends) == MAX_STEPS
    assert {later - earlier for earlier, later in pairwise(ends[-9:])} == {16, 17}
    assert steady_step_ns(visits, {0: 1, 1: 2}) == 17


TIMES = st.one_of(st.integers(0, 12), st.sampled_from((39, 40, 41, 80)))
RESOURCES = st.sampled_from(((), ("disk",), ("switch",), ("disk", "switch")))


@st.composite
def pipelines(draw: st.DrawFn) -> list[Visit]:
    visits = []
    for device in range(draw(st.integers(1, 3))):
        for index in range(draw(st.integers(1, 5))):
            is_streamed, is_fetching = draw(st.booleans()), not draw(st.integers(0, 3))
            duration = TIMES.map(lambda time: time + 1)
            visits.append(
                Visit(
                    device=device,
                    compute_ns=draw(TIMES),
                    hop_ns=draw(st.integers(0, 5)) if index == 0 and device else 0,
                    transfer=_transfer(draw(duration), draw(RESOURCES)) if is_streamed else None,
                    fetch=_transfer(draw(duration), draw(RESOURCES)) if is_fetching else None,
                    fetched_compute_ns=draw(TIMES) if is_fetching else 0,
                )
            )
    return visits


def _transfer(duration_ns: int, resources: tuple[str, ...]) -> Transfer:
    return Transfer(duration_ns=duration_ns, resources=resources)


@given(pipelines(), st.fixed_dictionaries({device: st.integers(1, 3) for device in range(3)}))
@settings(max_examples=300, deadline=None)
def test_a_second_simulator_agrees(visits: list[Visit], num_slots: dict[int, int]) -> None:
    ends = step_ends_ns(visits, num_slots, MAX_STEPS)
    slow = step_ends(visits, num_slots, MAX_STEPS + 36)
    assert ends == slow[: len(ends)]
    steps = [later - earlier for earlier, later in pairwise(slow)]
    step_ns = steady_step_ns(visits, num_slots)
    if len(ends) < MAX_STEPS:
        assert set(steps[len(ends) - 1 :]) == {step_ns}
    assert step_ns >= sum(visit.hop_ns + visit.compute_ns + visit.fetched_compute_ns for visit in visits)
    for resource in ("disk", "switch"):
        transfers = [transfer for visit in visits for transfer in (visit.transfer, visit.fetch) if transfer]
        assert step_ns >= sum(own.duration_ns for own in transfers if resource in own.resources)
