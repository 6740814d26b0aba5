from __future__ import annotations

import pytest
from changed_plans import replace, with_block, with_fields
from planned import plan_resident, plan_streamed

from bayplan.planner.check.basis import read_placement
from bayplan.planner.check.schedule import schedule_problems
from bayplan.schemas.plan import Plan
from bayplan.schemas.types import Residency

PLAN = plan_streamed()
ENTRY = PLAN.schedule[0]
STREAMED = [index for index, block in enumerate(PLAN.blocks) if block.residency is not Residency.RESIDENT]


def problems_of(plan: Plan) -> list[tuple[str, str]]:
    placement, problems = read_placement(plan)
    assert placement is not None, problems
    return list(schedule_problems(placement))


def without_links(plan: Plan) -> Plan:
    return replace(plan, inventory=replace(plan.inventory, links=()))


def without_disk(plan: Plan) -> Plan:
    nodes = tuple(replace(node, disk=None) for node in plan.inventory.nodes)
    return replace(plan, inventory=replace(plan.inventory, nodes=nodes))


@pytest.mark.parametrize("plan", [PLAN, plan_resident()], ids=["streamed", "resident"])
def test_what_the_planner_makes_is_sound(plan: Plan) -> None:
    assert problems_of(plan) == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"num_slots": 0},
            (
                ".num_slots",
                f"0, but {len(ENTRY.stream_order)} blocks use 1 to {min(3, len(ENTRY.stream_order))}",
            ),
        ),
        (
            {"num_slots": 4},
            (
                ".num_slots",
                f"4, but {len(ENTRY.stream_order)} blocks use 1 to {min(3, len(ENTRY.stream_order))}",
            ),
        ),
        (
            {"slot_bytes": ENTRY.slot_bytes + 64},
            (".slot_bytes", f"{ENTRY.slot_bytes + 64}, but the largest block has {ENTRY.slot_bytes}"),
        ),
        (
            {"stream_order": ENTRY.stream_order[::-1]},
            (".stream_order", "not the streamed blocks in the order in which they run"),
        ),
        (
            {"stream_order": ENTRY.stream_order[:-1]},
            (".stream_order", "not the streamed blocks in the order in which they run"),
        ),
    ],
    ids=["no-slots", "many-slots", "slot-bytes", "reversed", "short"],
)
def test_every_field_counts(fields: dict[str, object], problem: tuple[str, str]) -> None:
    path, text = problem
    assert problems_of(with_fields(PLAN, "schedule", 0, **fields)) == [(f"$.schedule[0]{path}", text)]


def test_every_device_that_streams_has_an_entry() -> None:
    names = ", ".join(entry.device for entry in PLAN.schedule)
    assert problems_of(replace(PLAN, schedule=())) == [("$.schedule", f"for none, but to {names} streams")]
    resident = plan_resident()
    assert problems_of(replace(resident, schedule=PLAN.schedule)) == [
        ("$.schedule", f"for {names}, but to none streams")
    ]


def test_activations_need_a_way() -> None:
    resident = replace(plan_resident(), blocks=PLAN.blocks)
    plan = replace(
        resident, blocks=tuple(replace(block, residency=Residency.RESIDENT) for block in PLAN.blocks)
    )
    cut = next(index for index, block in enumerate(PLAN.blocks) if block.device == "node0/gpu1")
    assert problems_of(without_links(plan)) == [
        (f"$.blocks[{cut}].device", "node0/gpu1, but there is no way from node0/gpu0")
    ]


@pytest.mark.parametrize(
    ("plan", "residency"),
    [(without_links(PLAN), Residency.STREAM_HOST), (without_disk(PLAN), Residency.STREAM_DISK)],
)
def test_streamed_weights_need_a_way(plan: Plan, residency: Residency) -> None:
    for index in STREAMED:
        plan = with_block(plan, index, residency=residency)
    found = [problem for problem in problems_of(plan) if problem[0].endswith(".residency")]
    assert found == [
        (f"$.blocks[{index}].residency", f"{residency}, but there is no way to {PLAN.blocks[index].device}")
        for index in STREAMED
    ]
