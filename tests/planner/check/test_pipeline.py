from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.planner.check.pipeline import MAX_STEPS, Call, Load, Pipeline, end_ns, steady_step_ns
from bayplan.planner.solve import simulate
from bayplan.planner.solve.simulate import Transfer, Visit

ONE, TWO = {0: 1, 1: 1, 2: 1}, {0: 2, 1: 2, 2: 2}
"""As many slots on every device."""


def resident(compute_ns: int, *, device: int = 0, handover_ns: int = 0) -> Call:
    return Call(device=device, handover_ns=handover_ns, compute_ns=compute_ns, load=None)


def streamed(compute_ns: int, load_ns: int, *shared: str, device: int = 0, handover_ns: int = 0) -> Call:
    load = Load(duration_ns=load_ns, shared=shared)
    return Call(device=device, handover_ns=handover_ns, compute_ns=compute_ns, load=load)


def fetching(compute_ns: int, fetch_ns: int, *shared: str, meanwhile_ns: int = 0, device: int = 0) -> Call:
    return Call(
        device=device,
        handover_ns=0,
        compute_ns=compute_ns,
        load=None,
        fetch=Load(duration_ns=fetch_ns, shared=shared),
        fetch_compute_ns=meanwhile_ns,
    )


def test_what_stays_takes_its_own_time() -> None:
    calls = [resident(5), resident(7, device=1, handover_ns=3)]
    assert steady_step_ns(calls, {}) == 15
    assert end_ns(calls, {}, 1) == 15
    assert end_ns(calls, {}, 1000) == 15_000


def test_one_slot_is_filled_only_when_its_block_is_done() -> None:
    calls = [streamed(10, 25), resident(10), resident(10)]
    assert end_ns(calls, ONE, 1) == 25 + 30
    assert steady_step_ns(calls, ONE) == 10 + 25


def test_two_slots_let_the_next_block_come_meanwhile() -> None:
    calls = [streamed(10, 15), streamed(10, 15)]
    assert steady_step_ns(calls, ONE) == 50
    assert steady_step_ns(calls, TWO) == 30


def test_slots_are_counted_anew_in_every_step() -> None:
    """Of three blocks the last one of a step and the first one of the next use the same slot of two."""
    calls = [streamed(20, 20)] * 3
    assert steady_step_ns(calls, TWO) == 80


def test_what_is_shared_serves_the_block_that_runs_first() -> None:
    """The second device's block is on its way when the first one's slot is free again, and waits."""
    apart = [streamed(10, 50), streamed(10, 50, device=1)]
    together = [streamed(10, 50, "disk"), streamed(10, 50, "disk", device=1)]
    assert end_ns(apart, ONE, 1) == 70
    assert end_ns(together, ONE, 1) == 110
    assert steady_step_ns(apart, ONE) == 60
    assert steady_step_ns(together, ONE) == 100


def test_a_load_that_was_put_off_has_only_its_rest_to_come() -> None:
    pipeline = Pipeline([streamed(100, 30, "disk"), streamed(0, 80, "disk", device=1)], ONE)
    # 30 for the first, 80 of the second during its 100; then the first comes again at once.
    assert [pipeline.play_step() for _ in range(2)] == [130, 130 + 30 + 100]


def test_missing_experts_go_first() -> None:
    """While they come nothing else does on that device, and the rest computes."""
    calls = [streamed(10, 50), fetching(10, 30, meanwhile_ns=20)]
    assert steady_step_ns(calls, ONE) == 10 + 50 + 30
    assert steady_step_ns([fetching(10, 5, meanwhile_ns=20)], {}) == 30
    assert steady_step_ns([fetching(10, 25, meanwhile_ns=20)], {}) == 35


def test_experts_leave_other_ways_alone() -> None:
    other = streamed(10, 60, "disk", device=1)
    assert steady_step_ns([other, fetching(10, 30, "link")], ONE) == 70
    assert steady_step_ns([other, fetching(10, 30, "disk")], ONE) == 100


def test_a_lead_that_lasts_long_ends_at_the_busiest() -> None:
    """The second courier fills its slots while the first step waits; of that it loses one per step."""
    calls = [
        streamed(0, 50_000),
        streamed(40_000, 25_000, device=1),
        streamed(20_000, 25_000, device=1),
        streamed(40_000, 50_001, device=1),
    ]
    slots = {0: 3, 1: 3}
    assert end_ns(calls, slots, MAX_STEPS) - end_ns(calls, slots, MAX_STEPS - 1) == 100_000
    assert steady_step_ns(calls, slots) == 100_001


def test_steps_that_keep_alternating_count_as_the_longer() -> None:
    calls = [
        streamed(1, 12, "link"),
        streamed(9, 12),
        streamed(4, 12, "link", device=1),
        streamed(3, 5, device=1),
    ]
    slots = {0: 2, 1: 1}
    ends = [end_ns(calls, slots, number) for number in range(MAX_STEPS - 4, MAX_STEPS)]
    differences = {later - earlier for earlier, later in pairwise(ends)}
    assert differences == {24, 33}
    assert steady_step_ns(calls, slots) == 33


@st.composite
def steps(draw: st.DrawFn) -> list[Call]:
    """Draw calls device by device, with few different times, so that events coincide."""
    times = st.sampled_from((0, 1, 2, 3, 5, 8, 40))
    names = st.lists(st.sampled_from(("disk", "switch")), max_size=2, unique=True)
    calls = []
    for device in range(draw(st.integers(1, 3))):
        for number in range(draw(st.integers(1, 5))):
            load = Load(duration_ns=draw(times), shared=tuple(draw(names))) if draw(st.booleans()) else None
            fetch = None
            if load is None and not draw(st.integers(0, 3)):
                fetch = Load(duration_ns=draw(times), shared=tuple(draw(names)))
            calls.append(
                Call(
                    device=device,
                    handover_ns=draw(times) if device and not number else 0,
                    compute_ns=draw(times),
                    load=load,
                    fetch=fetch,
                    fetch_compute_ns=0 if fetch is None else draw(times),
                )
            )
    return calls


def visit(call: Call) -> Visit:
    return Visit(
        device=call.device,
        compute_ns=call.compute_ns,
        hop_ns=call.handover_ns,
        transfer=transfer(call.load),
        fetch=transfer(call.fetch),
        fetched_compute_ns=call.fetch_compute_ns,
    )


def transfer(load: Load | None) -> Transfer | None:
    return None if load is None else Transfer(duration_ns=load.duration_ns, resources=load.shared)


@given(steps(), st.lists(st.integers(1, 3), min_size=3, max_size=3), st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_the_searchs_simulator_gives_the_same(calls: list[Call], slots: list[int], num_steps: int) -> None:
    num_slots, visits = dict(enumerate(slots)), [visit(call) for call in calls]
    pipeline = Pipeline(calls, num_slots)
    ends = simulate.step_ends_ns(visits, num_slots, num_steps)
    assert [pipeline.play_step() for _ in ends] == ends
    assert steady_step_ns(calls, num_slots) == simulate.steady_step_ns(visits, num_slots)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 7])
@given(steps(), st.lists(st.integers(1, 3), min_size=3, max_size=3))
@settings(max_examples=60, deadline=None)
def test_many_steps_end_as_if_all_were_played(num_steps: int, calls: list[Call], slots: list[int]) -> None:
    num_slots = dict(enumerate(slots))
    pipeline = Pipeline(calls, num_slots)
    ends = [pipeline.play_step() for _ in range(num_steps)]
    assert end_ns(calls, num_slots, num_steps) == ends[-1]
