from __future__ import annotations

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from planned import INVENTORY, MIB, make_graph, make_inputs, place, plan_resident, plan_streamed
from sound_plans import sound_plans

from bayplan.planner.explain_block import explain_block
from bayplan.planner.replan import problem_from_plan
from bayplan.planner.solve.objectives import place_for
from bayplan.planner.solve_again import value_ns
from bayplan.schemas.errors import UsageError
from bayplan.schemas.explanation import Alternative
from bayplan.schemas.plan import Plan
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Objective, Reason, Residency


def truth_ns(plan: Plan, block_id: str, other: Alternative) -> int | None:
    """What the objective makes small with a pin as a user would give it; None: nothing fits."""
    block = next(block for block in plan.blocks if block.id == block_id)
    match other.aspect:
        case "device":
            pin = Pin(pattern=block_id, device=other.choice)
        case "format":
            pin = Pin(pattern=block_id, format=other.choice)
        case "residency":
            pin = Pin(pattern=block_id, device=block.device, residency=Residency(other.choice))
        case _:
            pin = Pin(pattern=block_id, residency=Residency.RESIDENT)
    pinned = msgspec.structs.replace(plan.problem, pins=(*plan.problem.pins, pin))
    problem = problem_from_plan(msgspec.structs.replace(plan, problem=pinned))
    placed = place_for(problem)
    return None if placed is None else value_ns(problem, placed)


@given(sound_plans(max_blocks=4), st.integers(0, 3))
@settings(max_examples=12)
def test_costs_are_what_solving_again_with_a_pin_gives(plan: Plan, number: int) -> None:
    block = plan.blocks[number % len(plan.blocks)]
    pinned = {pin.pattern for pin in plan.problem.pins}
    found = explain_block(plan, block.id)
    for other in found.alternatives:
        event(f"{other.aspect}: {other.why_not or 'possible'}")
        if other.why_not not in ("", "nothing fits then") or block.id in pinned:
            continue
        value = truth_ns(plan, block.id, other)
        if value is None:
            assert other.cost_ns is None
            continue
        change, noise = value - found.again_ns, found.again_ns // 2000
        assert other.cost_ns == change or (other.cost_ns == 0 and -noise <= change < 0)


def test_a_streamed_block() -> None:
    plan = plan_streamed()
    block = next(block for block in plan.blocks if block.reason is Reason.CAPACITY)
    found = explain_block(plan, block.id)
    assert (found.id, found.device, found.residency, found.format) == (
        block.id,
        "node0/gpu0",
        Residency.STREAM_HOST,
        "bf16",
    )
    assert (found.reason, found.num_bytes) == (Reason.CAPACITY, block.num_bytes)
    assert found.plan_digest == plan.digest
    assert found.objective is Objective.DECODE
    assert found.again_ns == plan.summary.predicted_step_ns
    assert {(one.aspect, one.choice) for one in found.alternatives} == {
        ("residency", "resident"),
        ("residency", "stream-disk"),
        ("device", "node0/gpu1"),
    }
    costs = [one.cost_ns for one in found.alternatives]
    assert costs == sorted(cost for cost in costs if cost is not None)


def test_what_cannot_be_comes_last_with_its_reason() -> None:
    found = explain_block(plan_resident(), "model.embed")
    assert found.alternatives == (
        Alternative(aspect="device", choice="node0/gpu1", cost_ns=0),
        Alternative(aspect="residency", choice="stream-host", cost_ns=None, why_not="it must stay: tied"),
        Alternative(aspect="residency", choice="stream-disk", cost_ns=None, why_not="it must stay: tied"),
    )


def only(plan: Plan, block_id: str, aspect: str) -> dict[str, str]:
    found = explain_block(plan, block_id).alternatives
    return {one.choice: one.why_not for one in found if one.aspect == aspect and one.cost_ns is None}


def test_streaming_that_is_forbidden_or_has_no_way() -> None:
    graph = make_graph()
    spilled = place(graph, make_inputs(graph, INVENTORY, {}, no_spill=True))[1]
    no = "--no-spill forbids it"
    assert only(spilled, "model.layers.1", "residency") == {"stream-host": no, "stream-disk": no}
    alone = msgspec.structs.replace(INVENTORY, links=())
    plan = place(graph, make_inputs(graph, alone, {"node0/gpu1": MIB}))[1]
    no = "there is no way from there"
    assert only(plan, "model.layers.1", "residency") == {"stream-host": no, "stream-disk": no}
    assert only(plan, "model.layers.1", "device") == {"node0/gpu1": "nothing fits then"}


def test_blocks_without_weights_do_not_stream() -> None:
    """The head is tied here: what it has lies in the embedding."""
    plan = plan_resident()
    runs = tuple(msgspec.structs.replace(run, resident_reason=None) for run in plan.problem.runs)
    freed = msgspec.structs.replace(plan, problem=msgspec.structs.replace(plan.problem, runs=runs))
    no = "it has no weights to bring in"
    assert only(freed, "head", "residency") == {"stream-host": no, "stream-disk": no}


def test_devices_across_the_nearest_cuts() -> None:
    plan = plan_streamed()
    for number in (1, 8):
        block = plan.blocks[number]
        other = {"node0/gpu0", "node0/gpu1"} - {block.device}
        devices = {one.choice for one in explain_block(plan, block.id).alternatives if one.aspect == "device"}
        assert devices == other


def test_an_unknown_block() -> None:
    with pytest.raises(UsageError) as caught:
        explain_block(plan_streamed(), "model.layer.1")
    assert str(caught.value) == (
        "BLOCK: the plan has no such block: got 'model.layer.1', "
        "needed an id such as model.layers.1, model.layers.7, model.layers.6\n"
        "hint: `bayplan show` lists them"
    )


def test_progress_is_told_by_problems() -> None:
    told: list[tuple[str, int, int]] = []
    explain_block(plan_streamed(), "model.layers.3", progress=lambda *progress: told.append(progress))
    assert told == [("solving again", number, 3) for number in range(4)]
