from __future__ import annotations

from fractions import Fraction
from itertools import combinations_with_replacement, pairwise

import pytest
from expert_problems import mixture
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_problems import (
    GIGA,
    MIB,
    gpus,
    make_chain,
    make_cost,
    make_device,
    make_inventory,
    make_link,
    make_task,
)

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.experts import ExpertsResidency, SplitExperts, in_flight_bytes, slot_bytes
from bayplan.planner.solve.stage_experts import Apart, Shed, apart_of, best_shed, least_extra_ns
from bayplan.planner.solve.task import Task
from bayplan.planner.solve.timeline import step_ns
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.types import Objective

HOST, DISK, COMPUTE = ExpertsResidency.CACHE_HOST, ExpertsResidency.CACHE_DISK, ExpertsResidency.COMPUTE_HOST


def task_on(inventory: Inventory, *, count: int = 8, splits_experts: bool = True) -> Task:
    whole = make_task(make_chain([mixture(4 * MIB, count=count), make_cost(64)]), inventory)
    return Task(
        whole.chain, whole.machine, whole.constraints, Objective.DECODE, splits_experts=splits_experts
    )


def with_cpu(cpu_rate: int) -> Inventory:
    devices = [make_device("gpu0"), make_device("cpu0", memory_bytes_per_second=cpu_rate)]
    return make_inventory(devices, [make_link("node0/gpu0")], disk_rate=GIGA // 4)


def known(task: Task, index: int = 0, device: int = 0) -> Apart:
    found = apart_of(task, index, 0, device)
    assert found is not None
    return found


def test_experts_that_are_not_there_or_must_stay_are_not_apart() -> None:
    assert apart_of(task_on(gpus(1)), 1, 0, 0) is None
    assert apart_of(task_on(gpus(1), splits_experts=False), 0, 0, 0) is None


@pytest.mark.parametrize("cpu_rate", [GIGA // 2, 64 * GIGA])
def test_the_times_are_those_of_a_step(cpu_rate: int) -> None:
    """With experts apart in every way, against the same step with them beside the block."""
    task = task_on(with_cpu(cpu_rate))
    apart = known(task)

    def longer_ns(split: SplitExperts) -> int:
        steps = [
            step_ns(task, Answer(choices=(Choice(device=0, experts=own), Choice(device=0)), num_slots=(1, 1)))
            for own in (split, None)
        ]
        assert steps[0] is not None
        assert steps[1] is not None
        return steps[0] - steps[1]

    assert apart.cached is HOST
    times = [longer_ns(SplitExperts(residency=HOST, slots=slots)) for slots in range(1, 8)]
    assert list(apart.cached_ns) == times
    assert apart.host_ns == longer_ns(SplitExperts(residency=COMPUTE))
    assert (apart.host_ns < 0) == (cpu_rate > GIGA)
    assert apart.shortest_ns == min(*apart.least_ns, apart.host_ns)


def test_what_it_saves() -> None:
    apart, slot = known(task_on(gpus(1))), slot_bytes(8 * MIB)
    assert (apart.num_bytes, apart.slot_bytes, apart.first_slots) == (64 * MIB, slot, 1)
    assert apart.in_flight_bytes == in_flight_bytes(8 * MIB, 1)
    assert apart.most_saved_bytes == 64 * MIB - slot
    assert apart.cheapest == min(
        Fraction(time_ns, 64 * MIB - slots * slot) for slots, time_ns in enumerate(apart.least_ns, 1)
    )
    assert known(task_on(with_cpu(GIGA))).most_saved_bytes == 64 * MIB


def test_a_device_in_host_memory_fills_caches_from_the_disk() -> None:
    task = task_on(with_cpu(GIGA))
    apart = known(task, device=1)
    assert (apart.cached, apart.host_ns) == (DISK, None)


def test_one_expert_that_every_token_needs_saves_nothing_in_a_cache() -> None:
    """There is no cache of fewer slots than experts."""
    assert apart_of(task_on(gpus(1), count=1), 0, 0, 0) is None


def test_the_bound_is_convex_and_nowhere_above() -> None:
    for count in (2, 3, 8, 64, 256):
        apart = known(task_on(gpus(1), count=count))
        assert len(apart.least_ns) == len(apart.cached_ns) == count - 1
        assert all(least <= time_ns for least, time_ns in zip(apart.least_ns, apart.cached_ns, strict=True))
        falls = [first - second for first, second in pairwise(apart.least_ns)]
        assert all(earlier >= later - 1 for earlier, later in pairwise(falls))
        assert all(fall >= 0 for fall in falls)


def hand_made(times: tuple[int, ...], least: tuple[int, ...], host_ns: int | None) -> Apart:
    return Apart(
        num_bytes=100,
        slot_bytes=20,
        in_flight_bytes=30,
        first_slots=1,
        cached=HOST,
        cached_ns=times,
        least_ns=least,
        host_ns=host_ns,
        shortest_ns=0,
        cheapest=Fraction(0),
    )


CURVE = hand_made((50, 30, 18, 10), (50, 30, 18, 10), None)
"""One to four slots; without memory for more, 130 less 20 each are saved by the first block."""


def test_caches_are_as_equal_and_as_large_as_the_memory_allows() -> None:
    assert best_shed(CURVE, 2, 0) == Shed(num_host=0, num_cached=0, num_slots=0)
    one = best_shed(CURVE, 1, 10)
    assert one == Shed(num_host=0, num_cached=1, num_slots=3)
    assert one.extra_ns(CURVE, CURVE.cached_ns) == 18
    two = best_shed(CURVE, 2, 70)
    assert two == Shed(num_host=0, num_cached=2, num_slots=5)
    assert two.extra_ns(CURVE, CURVE.cached_ns) == 30 + 18
    assert two.splits(CURVE) == (
        SplitExperts(residency=HOST, slots=2),
        SplitExperts(residency=HOST, slots=3),
    )
    assert best_shed(CURVE, 2, 131) is None
    assert least_extra_ns(CURVE, 2, 131) is None


def test_the_host_computes_where_that_is_faster() -> None:
    both = hand_made((50, 30, 18, 10), (50, 30, 18, 10), 40)
    assert best_shed(both, 1, 60) == Shed(num_host=1, num_cached=0, num_slots=0)
    found = best_shed(both, 3, 150)
    assert found == Shed(num_host=1, num_cached=2, num_slots=6)
    assert found.extra_ns(both, both.cached_ns) == 40 + 18 + 18
    assert found.splits(both)[0] == SplitExperts(residency=COMPUTE)


def test_a_faster_host_computes_though_nothing_has_to_be_saved() -> None:
    fast = hand_made((50, 30, 18, 10), (50, 30, 18, 10), -5)
    assert best_shed(fast, 2, -1000) == Shed(num_host=2, num_cached=0, num_slots=0)
    assert least_extra_ns(fast, 2, -1000) == -10


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(-5, 60)),
    st.integers(0, 3),
    st.integers(-50, 320),
)
@settings(max_examples=300)
def test_no_caches_of_any_sizes_take_less_than_the_bound(
    falls: list[int], host_ns: int | None, num_blocks: int, saved_bytes: int
) -> None:
    least = tuple(sum(sorted(falls)[: len(falls) - place]) for place in range(len(falls)))
    apart = hand_made(tuple(time_ns + place % 2 for place, time_ns in enumerate(least)), least, host_ns)
    options = [None, *range(1, len(least) + 1), *([0] if host_ns is not None else [])]
    times = []
    for chosen in combinations_with_replacement(options, num_blocks):
        cached = [slots for slots in chosen if slots]
        num_host = chosen.count(0)
        saved = 100 * (len(cached) + num_host) - 20 * sum(cached) - (30 if cached else 0)
        if saved >= saved_bytes:
            times.append(sum(apart.cached_ns[slots - 1] for slots in cached) + num_host * (host_ns or 0))
    bound, found = least_extra_ns(apart, num_blocks, saved_bytes), best_shed(apart, num_blocks, saved_bytes)
    assert (bound is None) == (found is None) == (not times)
    if times and bound is not None and found is not None:
        assert bound <= min(times) <= found.extra_ns(apart, apart.cached_ns)
