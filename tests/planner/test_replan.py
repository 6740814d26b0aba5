from __future__ import annotations

import msgspec
import pytest
from hypothesis import event, given, settings
from planned import plan_resident, plan_streamed, without
from sound_plans import sound_plans

from bayplan.planner.replan import answer_from_plan, budgets_of_plan, problem_from_plan
from bayplan.planner.solve.objectives import place_for
from bayplan.schemas.errors import PlanFormatError, UsageError
from bayplan.schemas.plan import Plan
from bayplan.schemas.problem import Pin, PlannedEdge
from bayplan.schemas.types import Objective


@given(sound_plans())
@settings(max_examples=60)
def test_placing_a_plan_s_problem_again_decides_the_same(plan: Plan) -> None:
    """Whatever the objective, with formats, pins, ties, experts and several batches in flight."""
    event(plan.problem.objective)
    problem = problem_from_plan(plan)
    placed, answer = place_for(problem), answer_from_plan(plan, problem)
    assert placed is not None
    assert answer is not None
    assert placed.solution.answer.choices == answer.choices
    assert placed.batches_in_flight == plan.workload.batches_in_flight
    summary = plan.summary
    assert placed.solution.step_ns == summary.predicted_step_ns
    if plan.problem.objective is not Objective.LOAD:
        assert min(placed.solution.lower_bound_ns, summary.predicted_step_ns) == summary.lower_bound_ns
    slots = {entry.device: entry.num_slots for entry in plan.schedule}
    for device, own in enumerate(problem.machine.devices):
        streamed = answer.streamed_on(device)
        if streamed:
            assert min(placed.solution.answer.num_slots[device], len(streamed)) == slots[own.id]


def test_what_a_plan_keeps_of_its_problem() -> None:
    plan = plan_streamed()
    problem = problem_from_plan(plan)
    assert problem.chain.ids == tuple(block.id for block in plan.blocks)
    assert problem.machine.budgets == tuple(device.budget_bytes for device in plan.devices)
    assert problem.objective is Objective.DECODE
    assert problem.generates
    assert not problem.is_auto
    assert problem.time_limit_s is None
    assert budgets_of_plan(plan) == {device.id: device.budget_bytes for device in plan.devices}


def test_several_batches_have_their_cache_once_in_the_problem() -> None:
    plan = plan_resident()
    both = without(plan, workload=msgspec.structs.replace(plan.workload, batches_in_flight=2))
    one, half = problem_from_plan(plan).chain, problem_from_plan(both).chain
    assert [cost.kv_bytes for cost in one.costs] == [2 * cost.kv_bytes for cost in half.costs]
    assert any(cost.kv_bytes for cost in one.costs)


def test_a_device_that_has_no_budget_any_more_has_no_answer() -> None:
    plan = plan_streamed()
    devices = tuple(
        msgspec.structs.replace(device, budget_bytes=0) if device.id.endswith("gpu0") else device
        for device in plan.devices
    )
    edited = without(plan, devices=devices)
    assert answer_from_plan(edited, problem_from_plan(edited)) is None


def test_an_edited_plan_that_does_not_say_enough() -> None:
    plan = plan_streamed()
    runs = list(plan.problem.runs)
    runs[0] = msgspec.structs.replace(runs[0], count=runs[0].count + 1, forms=())
    form = msgspec.structs.replace(runs[1].forms[0], format="nf5")
    runs[1] = msgspec.structs.replace(runs[1], forms=(form,))
    edge = PlannedEdge(source="model.embed", target="nowhere", prefill_bytes=1, decode_bytes=1)
    problem = msgspec.structs.replace(plan.problem, runs=tuple(runs), edges=(edge,))
    edited = without(plan, problem=problem, devices=plan.devices[:1])
    with pytest.raises(PlanFormatError) as caught:
        problem_from_plan(edited, where="plan.json")
    num_blocks = len(plan.blocks)
    assert str(caught.value) == (
        "plan.json: not a valid plan to be solved again: 5 problems\n"
        f"  $.problem.runs: they hold {num_blocks + 1} blocks, the plan {num_blocks}\n"
        "  $.problem.runs[0].forms: none\n"
        "  $.problem.runs[1].forms: 'nf5' is not among the plan's formats\n"
        "  $.inventory.devices[1].id: 'node0/gpu1' is not among the plan's devices\n"
        "  $.problem.edges[0]: not between blocks of the plan\n"
        "hint: plan again"
    )


def test_pins_that_contradict_the_blocks() -> None:
    plan = plan_streamed()
    pins = (Pin(pattern="nothing", device="node0/gpu0"),)
    edited = without(plan, problem=msgspec.structs.replace(plan.problem, pins=pins))
    with pytest.raises(UsageError) as caught:
        problem_from_plan(edited)
    assert caught.value.what == "the pin matches no block"
