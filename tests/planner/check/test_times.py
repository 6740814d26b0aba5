from __future__ import annotations

import pytest
from changed_plans import replace, with_problem
from placement_problems import GIGA, make_device, make_inventory, make_link
from planned import MIB, make_graph, make_inputs, place, plan_resident, plan_streamed

from bayplan.planner.check.basis import Placement, read_placement
from bayplan.planner.check.calls import calls_of
from bayplan.planner.check.pipeline import end_ns, steady_step_ns
from bayplan.planner.check.times import Times, resident_bytes, times_of
from bayplan.schemas.hardware import Disk
from bayplan.schemas.plan import Plan
from bayplan.schemas.types import Objective

PLAN, RESIDENT = plan_streamed(), plan_resident()


def placement_of(plan: Plan) -> Placement:
    placement, problems = read_placement(plan)
    assert placement is not None, problems
    return placement


def times(plan: Plan) -> Times:
    found = times_of(placement_of(plan))
    assert found is not None
    return found


def step_ns(plan: Plan, *, is_decode: bool) -> int:
    placement = placement_of(plan)
    calls = calls_of(placement, is_decode=is_decode)
    assert calls is not None
    return steady_step_ns(
        calls, {0: placement.num_slots.get("node0/gpu0", 1), 1: placement.num_slots.get("node0/gpu1", 1)}
    )


def with_workload(plan: Plan, **fields: object) -> Plan:
    return replace(plan, workload=replace(plan.workload, **fields))


@pytest.mark.parametrize("plan", [PLAN, RESIDENT], ids=["streamed", "resident"])
def test_the_predictions_are_what_the_summary_says(plan: Plan) -> None:
    found = times(plan)
    assert [getattr(plan.summary, field) for field in Times.__struct_fields__] == [
        getattr(found, field) for field in Times.__struct_fields__
    ]


def test_a_step_is_a_token_or_a_forward() -> None:
    decode_ns, prefill_ns = (step_ns(PLAN, is_decode=is_decode) for is_decode in (True, False))
    assert prefill_ns > decode_ns
    assert times(PLAN).predicted_step_ns == times(PLAN).predicted_decode_ns == decode_ns
    prefill = times(with_problem(PLAN, objective=Objective.PREFILL))
    assert (prefill.predicted_step_ns, prefill.predicted_decode_ns) == (prefill_ns, decode_ns)
    encoder = times(replace(PLAN, model=replace(PLAN.model, generates=False)))
    assert (encoder.predicted_step_ns, encoder.predicted_decode_ns) == (prefill_ns, None)


@pytest.mark.parametrize(
    ("context", "chunk", "num_chunks"), [(64, 64, 1), (64, 24, 3), (65, 64, 2), (0, 64, 1), (9, 0, 1)]
)
def test_the_first_output_comes_after_all_chunks(context: int, chunk: int, num_chunks: int) -> None:
    placement = placement_of(PLAN)
    calls = calls_of(placement, is_decode=False)
    assert calls is not None
    slots = {0: placement.num_slots.get("node0/gpu0", 1), 1: placement.num_slots.get("node0/gpu1", 1)}
    found = times(with_workload(PLAN, context=context, prefill_chunk=chunk))
    assert found.predicted_first_output_ns == end_ns(calls, slots, num_chunks)


def test_loading_reads_what_stays_and_what_waits() -> None:
    placement = placement_of(PLAN)
    stays = sum(resident_bytes(placement, device.id) for device in PLAN.devices)
    num_bytes = stays + PLAN.hosts[0].waiting_bytes
    assert stays == PLAN.summary.resident_bytes
    assert times(PLAN).predicted_load_ns == 4 * num_bytes
    without = replace(
        PLAN, inventory=replace(PLAN.inventory, nodes=(replace(PLAN.inventory.nodes[0], disk=None),))
    )
    assert times(without).predicted_load_ns == 0


def test_nodes_load_at_the_same_time() -> None:
    devices = [make_device("gpu0"), make_device("gpu0", node="node1")]
    links = [make_link("node0/gpu0"), make_link("node1/gpu0", "node1"), make_link("node0", "node1")]
    base = make_inventory(devices, links).nodes[0]
    disks = (
        Disk(read_bytes_per_second=GIGA, latency_ns=7),
        Disk(read_bytes_per_second=GIGA // 2, latency_ns=9),
    )
    nodes = [replace(base, id=f"node{number}", disk=disk) for number, disk in enumerate(disks)]
    graph = make_graph()
    budgets = {"node0/gpu0": 20 * MIB, "node1/gpu0": 20 * MIB}
    _, plan = place(graph, make_inputs(graph, make_inventory(devices, links, nodes=nodes), budgets))
    placement = placement_of(plan)
    first, second = (resident_bytes(placement, device.id) for device in devices)
    assert min(first, second) > 0
    assert times(plan).predicted_load_ns == max(7 + first, 9 + 2 * second)


def test_several_batches_go_as_fast_as_the_slowest_device() -> None:
    plan = with_problem(RESIDENT, objective=Objective.THROUGHPUT, runs=RESIDENT.problem.runs, edges=())
    cut = tuple(
        replace(block, device="node0/gpu0" if index < 6 else "node0/gpu1")
        for index, block in enumerate(plan.blocks)
    )
    plan = replace(plan, blocks=cut)
    calls = calls_of(placement_of(plan), is_decode=True)
    assert calls is not None
    alone = sum(call.handover_ns + call.compute_ns for call in calls)
    first, second = (sum(call.compute_ns for call in calls[part]) for part in (slice(6), slice(6, 11)))
    paces = [
        times(with_workload(plan, batches_in_flight=number)).predicted_step_ns for number in (1, 2, 3, 9)
    ]
    slowest = max(first, second, calls[6].handover_ns)
    assert paces == [alone, *(max(slowest, -(-alone // number)) for number in (2, 3, 9))]
    assert times(with_workload(plan, batches_in_flight=9)).predicted_decode_ns == alone


def test_batches_do_not_overlap_where_devices_share_what_loads_them() -> None:
    links = tuple(replace(link, group="switch") for link in PLAN.inventory.links)
    shared = replace(PLAN, inventory=replace(PLAN.inventory, links=links))
    alone = times(shared).predicted_step_ns
    assert len(PLAN.schedule) == 2
    assert times(with_workload(shared, batches_in_flight=2)).predicted_step_ns == alone
    assert times(with_workload(PLAN, batches_in_flight=2)).predicted_step_ns < times(PLAN).predicted_step_ns


def test_a_slow_handover_sets_the_pace_too() -> None:
    links = tuple(replace(link, latency_ns=10**9) for link in RESIDENT.inventory.links)
    inventory = replace(RESIDENT.inventory, links=links)
    cut = tuple(
        replace(block, device="node0/gpu0" if index < 6 else "node0/gpu1")
        for index, block in enumerate(RESIDENT.blocks)
    )
    plan = replace(with_problem(RESIDENT, edges=()), inventory=inventory, blocks=cut)
    pace = times(with_workload(plan, batches_in_flight=9)).predicted_step_ns
    calls = calls_of(placement_of(plan), is_decode=True)
    assert calls is not None
    assert pace == calls[6].handover_ns > 2 * 10**9


def test_without_a_way_there_are_no_times() -> None:
    assert times_of(placement_of(replace(PLAN, inventory=replace(PLAN.inventory, links=())))) is None
