from __future__ import annotations

import msgspec
import pytest
from hypothesis import event, given, settings
from planned import INVENTORY, MIB, make_graph, make_inputs, place, plan_resident, plan_streamed, without
from sound_plans import sound_plans

from bayplan.planner.explain import explain_plan
from bayplan.planner.replan import budgets_of_plan, problem_from_plan
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.objectives import Problem, place_for
from bayplan.planner.solve_again import value_ns
from bayplan.schemas.errors import PlanFormatError
from bayplan.schemas.explanation import (
    MORE_BYTES,
    Binding,
    DeviceExplanation,
    HostExplanation,
)
from bayplan.schemas.plan import Plan
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Objective, Residency, SolverStatus

GPU0, GPU1 = "node0/gpu0", "node0/gpu1"


def value_with(plan: Plan, problem: Problem) -> int:
    placed = place_for(problem)
    assert placed is not None
    return value_ns(problem, placed)


@given(sound_plans(max_blocks=4))
@settings(max_examples=25)
def test_gains_are_what_solving_again_gives(plan: Plan) -> None:
    explanation = explain_plan(plan)
    problem, budgets = problem_from_plan(plan), budgets_of_plan(plan)
    by_rule = plan.problem.objective in (Objective.BALANCED, Objective.SEQUENTIAL)
    assert [device.id for device in explanation.devices] == [device.id for device in plan.devices]
    for device in explanation.devices:
        event(f"{device.binding}")
        if not budgets[device.id]:
            assert device.gain_ns is None
            continue
        assert device.gain_ns is not None
        more = {**budgets, device.id: budgets[device.id] + MORE_BYTES}
        changed = msgspec.structs.replace(problem, machine=Machine(plan.inventory, more))
        truth = explanation.again_ns - value_with(plan, changed)
        noise = explanation.again_ns // 2000
        assert device.gain_ns == truth or (device.gain_ns == 0 and -noise <= truth < 0)
        assert (device.binding is Binding.MEMORY) is (device.gain_ns > noise)
        # What fits the accelerators is never streamed, even where a CPU beside them would be faster; and with
        # more memory `auto` rounds less, which takes longer.
        assert device.gain_ns >= 0 or by_rule or plan.problem.is_auto or len(plan.devices) > 1


def test_devices_that_would_hold_more() -> None:
    """With a GiB more either one holds everything, as fast as if there had been no limit."""
    plan, resident_ns = plan_streamed(), plan_resident().summary.predicted_step_ns
    found = explain_plan(plan)
    assert found.plan_digest == plan.digest
    assert found.objective is Objective.DECODE
    assert found.planned_ns == found.again_ns == plan.summary.predicted_step_ns
    assert found.lower_bound_ns == plan.summary.lower_bound_ns
    gain_ns = plan.summary.predicted_step_ns - resident_ns
    assert gain_ns > 0
    first = plan.devices[0]
    assert found.devices[0] == DeviceExplanation(
        id=GPU0,
        num_blocks=5,
        num_streamed=2,
        budget_bytes=14 * MIB,
        needed_bytes=first.ledger.budgeted_bytes,
        component="weights",
        component_bytes=first.ledger.weights[1],
        compute_ns=found.devices[0].compute_ns,
        transfer_ns=found.devices[0].transfer_ns,
        binding=Binding.MEMORY,
        gain_ns=gain_ns,
    )
    assert found.devices[1].gain_ns == gain_ns
    # Eight layers and the head compute 29.9 ms in all, four blocks of 3 MiB come at 300 MB/s.
    assert sum(device.compute_ns for device in found.devices) == resident_ns
    assert [device.transfer_ns for device in found.devices] == [20_975_228] * 2
    waiting = plan.hosts[0].waiting_bytes
    assert found.hosts == (HostExplanation(id="node0", budget_bytes=2**50, waiting_bytes=waiting, gain_ns=0),)
    (links,) = found.rates
    assert links.ways == "links"
    assert 0 < links.gain_ns < gain_ns


def test_a_plan_that_nothing_binds() -> None:
    found = explain_plan(plan_resident())
    assert [(device.binding, device.gain_ns) for device in found.devices] == [
        (Binding.COMPUTE, 0),
        (Binding.NOTHING, 0),
    ]
    assert found.devices[1].component == ""
    assert found.rates == ()


def streamed(**fields: object) -> Plan:
    """A plan for one device that streams, other things being as given."""
    inventory = msgspec.structs.replace(INVENTORY, devices=INVENTORY.devices[:1], links=INVENTORY.links[:1])
    inventory = msgspec.structs.replace(inventory, **fields.pop("inventory", {}))
    graph = make_graph()
    return place(graph, make_inputs(graph, inventory, {GPU0: 13 * MIB}, **fields))[1]


def test_host_memory_that_is_too_small() -> None:
    """The disk is slow and the host holds one block that waits; with a GiB more it holds all."""
    node = msgspec.structs.replace(
        INVENTORY.nodes[0],
        host_memory_bytes=4 * MIB,
        disk=msgspec.structs.replace(INVENTORY.nodes[0].disk, read_bytes_per_second=20_000_000),
    )
    found = explain_plan(streamed(inventory={"nodes": (node,)}))
    assert found.hosts[0].gain_ns > 0
    assert [rate.ways for rate in found.rates] == ["links", "disks"]
    assert found.rates[1].gain_ns > 0


def test_what_is_not_asked() -> None:
    """A device without a budget, hosts that nothing could wait in, ways that nothing takes."""
    graph = make_graph()
    inventory = msgspec.structs.replace(INVENTORY, links=())
    plan = place(graph, make_inputs(graph, inventory, {GPU1: 0}))[1]
    found = explain_plan(plan)
    assert [device.gain_ns for device in found.devices] == [0, None]
    assert found.devices[1].binding is Binding.NOTHING
    assert (found.hosts, found.rates) == ((), ())


def test_a_pin_that_binds() -> None:
    """Streaming layers that would fit costs time, which no memory gains."""
    graph = make_graph()
    pins = (Pin(pattern="model.layers.*", residency=Residency.STREAM_HOST),)
    plan = place(graph, make_inputs(graph, INVENTORY, {}, pins=pins))[1]
    found = explain_plan(plan)
    streaming = next(device for device in found.devices if device.num_streamed)
    assert (streaming.binding, streaming.gain_ns) == (Binding.PIN, 0)


def test_loading_is_what_is_explained_where_it_comes_first() -> None:
    graph = make_graph()
    plan = place(graph, make_inputs(graph, INVENTORY, {}, objective=Objective.LOAD))[1]
    found = explain_plan(plan)
    assert found.planned_ns == found.again_ns == plan.summary.predicted_load_ns
    assert [rate.ways for rate in found.rates][-1] == "disks"


@pytest.mark.parametrize(
    "summary", [{"solver_status": SolverStatus.TIME_LIMIT}, {"lower_bound_ns": 1_000_000}]
)
def test_a_plan_that_is_not_proven_best_is_solved_again(summary: dict[str, object]) -> None:
    """Its own placement was made worse here; gains are against the best one."""
    plan = plan_streamed()
    blocks = tuple(
        msgspec.structs.replace(block, residency=Residency.STREAM_DISK)
        if block.residency is Residency.STREAM_HOST
        else block
        for block in plan.blocks
    )
    worse = without(plan, blocks=blocks, summary=msgspec.structs.replace(plan.summary, **summary))
    assert explain_plan(worse).again_ns == plan.summary.predicted_step_ns


def test_progress_is_told_by_problems() -> None:
    told: list[tuple[str, int, int]] = []
    explain_plan(plan_streamed(), progress=lambda *progress: told.append(progress))
    assert told == [("solving again", number, 4) for number in range(5)]


def test_a_plan_that_contradicts_itself() -> None:
    plan = plan_streamed()
    blocks = tuple(msgspec.structs.replace(block, residency=Residency.RESIDENT) for block in plan.blocks)
    with pytest.raises(PlanFormatError) as caught:
        explain_plan(without(plan, blocks=blocks), where="plan.json")
    assert str(caught.value) == (
        "plan.json: not a valid plan to be solved again: 1 problem\n"
        "  $.blocks: no such placement is possible under the plan's own budgets and links\n"
        "hint: plan again"
    )
