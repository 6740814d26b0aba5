from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest
from changed_plans import replace, with_block, with_form, with_problem
from hypothesis import given
from hypothesis import strategies as st
from planned import plan_resident

from bayplan.planner.check.basis import PlacedBlock, Placement, read_placement
from bayplan.planner.check.experts import (
    cache_bytes,
    expert_problems,
    hit_ppm,
    host_bytes,
    missing_bytes,
    needed_ppm,
    tier_of,
    unit_slot_bytes,
)
from bayplan.planner.check.memory import memory_problems
from bayplan.planner.solve import expert_curves
from bayplan.planner.solve.experts import in_flight_bytes
from bayplan.planner.solve.experts import slot_bytes as theirs
from bayplan.schemas.graph import BlockExperts
from bayplan.schemas.plan import Experts, Plan
from bayplan.schemas.types import Residency

UNIT_BYTES = 100_000
KNOWN = BlockExperts(
    module="",
    count=16,
    per_token=2,
    prefill_flops=0,
    decode_flops=0,
    prefill_hidden_bytes=0,
    decode_hidden_bytes=0,
)


def experts(residency: str, **fields: object) -> Experts:
    own = {"count": 16, "per_token": 2, "unit_bytes": UNIT_BYTES, "format": "bf16", "residency": residency}
    return msgspec.convert({**own, **fields}, Experts)


WITH, HOST = experts("with-block"), experts("compute-host", compute="host")
CACHED = experts("cache-host", slots=4, floor_slots=2, hit_ppm=353_553)


def plan_with(*apart: Experts | None, batch: int = 1) -> Plan:
    """A plan whose first layers have these experts."""
    plan = plan_resident()
    layer = replace(plan.problem.runs[1].forms[0], unit_bytes=UNIT_BYTES)
    run = replace(plan.problem.runs[1], forms=(layer,), experts=KNOWN)
    runs = (plan.problem.runs[0], run, *plan.problem.runs[2:])
    for index in range(8):
        own = apart[index] if index < len(apart) else WITH
        plan = with_block(plan, index + 1, experts=own)
    return replace(with_problem(plan, runs=runs), workload=replace(plan.workload, batch=batch))


def placement_of(plan: Plan) -> Placement:
    placement, problems = read_placement(plan)
    assert placement is not None, problems
    return placement


def first_layer(plan: Plan) -> PlacedBlock:
    return placement_of(plan).blocks[1]


@given(st.integers(1, 64), st.integers(1, 64), st.integers(0, 4000))
def test_needed_experts_are_those_of_the_search(count: int, per_token: int, num_tokens: int) -> None:
    own = min(count, per_token)
    assert needed_ppm(count, own, num_tokens) == expert_curves.distinct_experts_ppm(count, own, num_tokens)


def test_needed_experts() -> None:
    assert needed_ppm(8, 2, 0) == 0
    assert needed_ppm(8, 2, 1) == 2_000_000
    assert needed_ppm(8, 2, 2) == 3_500_000
    assert needed_ppm(8, 2, 3) == 8_000_000 - int(Fraction(27, 8) * 1_000_000)
    assert needed_ppm(8, 2, 10**9) == needed_ppm(8, 8, 1) == 8_000_000


@given(st.integers(1, 384), st.integers(1, 16), st.integers(0, 384), st.integers(1, 3))
def test_hits_are_those_of_the_search(count: int, per_token: int, slots: int, num_tokens: int) -> None:
    own = experts("cache-disk", count=count, per_token=min(per_token, count), slots=min(slots, count))
    curve = expert_curves.default_hit_ppm if num_tokens == 1 else expert_curves.least_hit_ppm
    assert hit_ppm(own, num_tokens) == curve(own.slots, own.count, own.per_token)


@given(st.integers(0, 10**9), st.integers(1, 16))
def test_slots_are_those_of_the_search(unit_bytes: int, per_token: int) -> None:
    assert unit_slot_bytes(unit_bytes) == theirs(unit_bytes)
    assert (4 + per_token) * unit_slot_bytes(unit_bytes) == in_flight_bytes(unit_bytes, per_token)


def test_tiers() -> None:
    assert tier_of(CACHED) is Residency.STREAM_HOST
    assert tier_of(replace(CACHED, residency="cache-disk")) is Residency.STREAM_DISK
    assert tier_of(HOST) is None


def test_caches_take_their_slots_and_what_is_on_its_way_once() -> None:
    smaller = replace(CACHED, slots=2)
    blocks = placement_of(plan_with(CACHED, smaller, HOST)).blocks
    slot = 102_400 + 4_096
    assert unit_slot_bytes(UNIT_BYTES) == slot
    assert cache_bytes(blocks[1:3]) == (4 + 2 + 4 + 2) * slot
    assert cache_bytes(blocks[3:5]) == 0


@pytest.mark.parametrize(
    ("own", "num_bytes"),
    [
        (WITH, 0),
        (HOST, 16 * UNIT_BYTES),
        (CACHED, 16 * UNIT_BYTES),
        (replace(CACHED, residency="cache-disk"), 0),
    ],
)
def test_host_memory_holds_all_of_them_or_none(own: Experts, num_bytes: int) -> None:
    assert host_bytes(first_layer(plan_with(own))) == num_bytes


def test_a_call_waits_for_those_that_are_missing() -> None:
    plan = plan_with(CACHED)
    own = first_layer(plan)
    # Of a token's two experts 1 - (4 / 16) ** 0.75 are missing; of a chunk's 16 all but those in 4 slots.
    assert missing_bytes(placement_of(plan), own, CACHED, is_decode=True) == 129_290
    chunk = missing_bytes(placement_of(plan), own, CACHED, is_decode=False)
    assert 12 * UNIT_BYTES - 500 < chunk <= 12 * UNIT_BYTES
    full = replace(CACHED, slots=16)
    assert missing_bytes(placement_of(plan), own, full, is_decode=False) == 0


def problems_of(plan: Plan) -> list[tuple[str, str]]:
    placement = placement_of(plan)
    return list(expert_problems(placement, placement.blocks[1]))


@pytest.mark.parametrize("own", [WITH, HOST, CACHED, replace(CACHED, residency="cache-disk")])
def test_experts_that_are_as_their_block_has_them(own: Experts) -> None:
    assert problems_of(plan_with(own)) == []


@pytest.mark.parametrize("own", [HOST, CACHED])
def test_with_experts_apart_none_are_copied(own: Experts) -> None:
    for apart, path in (((), "$.devices[0].ledger.activations"), ((None, own), None)):
        plan = with_form(plan_with(*apart), 1, copied_bytes=2**20)
        found = [where for where, _ in memory_problems(placement_of(plan)) if "activations" in where]
        assert found[:1] == ([] if path is None else [path])


def test_several_rows_have_the_least_hit_rate() -> None:
    assert problems_of(plan_with(CACHED, batch=2)) == [
        ("$.blocks[1].experts.hit_ppm", "353553, but the plan gives 250000")
    ]


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        (None, ("", "its run says otherwise whether it has some")),
        (replace(WITH, count=15), (".count", "15, but the plan gives 16")),
        (replace(WITH, per_token=3), (".per_token", "3, but the plan gives 2")),
        (replace(WITH, unit_bytes=5), (".unit_bytes", "5, but the plan gives 100000")),
        (replace(WITH, format="nf4"), (".format", "nf4, but the plan gives bf16")),
        (replace(WITH, floor_slots=2), (".floor_slots", "2, but the plan gives 0")),
        (replace(WITH, compute="host"), (".compute", "host, but the plan gives device")),
        (replace(HOST, compute="device"), (".compute", "device, but the plan gives host")),
        (replace(CACHED, hit_ppm=9), (".hit_ppm", "9, but the plan gives 353553")),
        (replace(WITH, hit_source="heat"), (".hit_source", "heat, but the plan gives default")),
        (replace(WITH, slots=1), (".slots", "1, but 0 to 0 are of use")),
        (replace(CACHED, slots=1, hit_ppm=0), (".slots", "1, but 2 to 16 are of use")),
        (
            replace(CACHED, slots=17, hit_ppm=1_046_518),
            (".slots", "17, but 2 to 16 are of use"),
        ),
        (experts("resident"), (".residency", "resident, which is with their block")),
    ],
)
def test_every_field_counts(own: Experts | None, problem: tuple[str, str]) -> None:
    path, text = problem
    assert problems_of(plan_with(own)) == [(f"$.blocks[1].experts{path}", text)]


def test_a_block_without_experts_has_none() -> None:
    plan = with_block(plan_with(), 0, experts=WITH)
    placement = placement_of(plan)
    assert list(expert_problems(placement, placement.blocks[0])) == [
        ("$.blocks[0].experts", "its run says otherwise whether it has some")
    ]


def test_experts_are_apart_from_blocks_that_stay_only() -> None:
    streams = with_block(plan_with(CACHED), 1, residency=Residency.STREAM_HOST)
    assert problems_of(streams) == [("$.blocks[1].experts.residency", "cache-host, but their block streams")]


def test_nothing_is_apart_where_nothing_may_spill() -> None:
    assert problems_of(with_problem(plan_with(CACHED), no_spill=True)) == [
        ("$.blocks[1].experts.residency", "cache-host, but nothing may spill")
    ]
