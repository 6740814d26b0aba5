from __future__ import annotations

import msgspec
import pytest
from changed_plans import replace, with_block, with_problem
from placement_problems import GIGA, make_device, make_inventory, make_link
from planned import LAYER_BYTES, MIB, make_graph, make_inputs, place, plan_resident, plan_streamed

from bayplan.planner.check.basis import Placement, read_placement
from bayplan.planner.check.calls import calls_of, host_cpu
from bayplan.planner.check.pipeline import Call, Load
from bayplan.planner.check.ways import Ways
from bayplan.schemas.graph import BlockExperts
from bayplan.schemas.plan import Experts, Plan
from bayplan.schemas.problem import PlannedEdge
from bayplan.schemas.types import Residency

PLAN = plan_streamed()
CUT = next(index for index, block in enumerate(PLAN.blocks) if block.device == "node0/gpu1")


def placement_of(plan: Plan) -> Placement:
    placement, problems = read_placement(plan)
    assert placement is not None, problems
    return placement


def step(plan: Plan, *, is_decode: bool = True) -> list[Call]:
    calls = calls_of(placement_of(plan), is_decode=is_decode)
    assert calls is not None
    return calls


def over_link_ns(num_bytes: int) -> int:
    return -(-num_bytes * GIGA // 300_000_000)


def edge(source: str, target: str, decode_bytes: int) -> PlannedEdge:
    return PlannedEdge(
        source=source, target=target, prefill_bytes=10 * decode_bytes, decode_bytes=decode_bytes
    )


def test_only_the_first_block_of_a_device_waits_for_activations() -> None:
    calls = step(with_problem(PLAN, edges=()))
    assert [index for index, call in enumerate(calls) if call.handover_ns] == [CUT]
    assert calls[CUT].handover_ns == 2 * (1_000 + over_link_ns(1_024))
    assert step(with_problem(PLAN, edges=()), is_decode=False)[CUT].handover_ns == 2 * (
        1_000 + over_link_ns(16_384)
    )


def test_every_value_that_is_used_behind_a_cut_crosses_it_once() -> None:
    edges = (
        edge("model.embed", "head", 4),
        edge("model.embed", "model.norm", 6),
        edge("model.layers.0", "head", 100),
        edge("model.embed", "model.layers.1", 10_000),
        edge(PLAN.blocks[CUT - 1].id, "head", 50_000),
        edge("model.norm", "model.embed", 70_000),
    )
    calls = step(with_problem(PLAN, edges=edges))
    # The embedding's largest, the first layer's, and the output of the block before the cut: three copies.
    assert calls[CUT].handover_ns == 2 * (3 * 1_000 + over_link_ns(1_024 + 10_000 + 100))


def test_streamed_blocks_come_over_their_way() -> None:
    for entry, call in zip(placement_of(PLAN).blocks, step(PLAN), strict=True):
        expected = Load(duration_ns=1_000 + over_link_ns(LAYER_BYTES), shared=())
        assert call.load == (expected if entry.block.residency is Residency.STREAM_HOST else None)
        assert call.device == (entry.index >= CUT)


@pytest.mark.parametrize("field", ["links", "nodes"])
def test_without_a_way_there_is_no_step(field: str) -> None:
    inventory = replace(PLAN.inventory, links=())
    plan = replace(PLAN, inventory=inventory)
    if field == "nodes":
        nodes = tuple(replace(node, disk=None) for node in PLAN.inventory.nodes)
        index = next(i for i, block in enumerate(PLAN.blocks) if block.residency is not Residency.RESIDENT)
        plan = with_block(PLAN, index, residency=Residency.STREAM_DISK)
        plan = replace(plan, inventory=replace(PLAN.inventory, nodes=nodes))
    assert calls_of(placement_of(plan), is_decode=True) is None


KNOWN = BlockExperts(
    module="",
    count=8,
    per_token=2,
    prefill_flops=16 * MIB,
    decode_flops=MIB,
    prefill_hidden_bytes=4_000,
    decode_hidden_bytes=400,
)
UNIT_BYTES = 3 * MIB // 16


def plan_apart(residency: str, *, with_cpu: bool = True, **fields: object) -> Plan:
    """One accelerator with its host; the first layer's experts are apart."""
    devices = [make_device("gpu0", block_overhead_ns=5_000)]
    if with_cpu:
        devices.append(make_device("cpu", memory_bytes_per_second=GIGA // 10, flops_per_second=GIGA // 10))
    inventory = make_inventory(devices, [make_link("node0/gpu0", latency_ns=1_000, group="switch")])
    graph = make_graph()
    _, plan = place(graph, make_inputs(graph, inventory, {}))
    assert {block.device for block in plan.blocks} == {"node0/gpu0"}
    form = replace(plan.problem.runs[1].forms[0], unit_bytes=UNIT_BYTES)
    run = replace(plan.problem.runs[1], forms=(form,), experts=KNOWN)
    own = {"count": 8, "per_token": 2, "unit_bytes": UNIT_BYTES, "format": "bf16", "residency": residency}
    plan = with_problem(plan, runs=(plan.problem.runs[0], run, *plan.problem.runs[2:]))
    return with_block(plan, 1, experts=msgspec.convert({**own, **fields}, Experts))


DECODE_NS = 5_000 + PLAN.problem.runs[1].forms[0].decode_read_bytes
"""Of a layer with its experts: what it reads."""
EXPERTS_NS = MIB
"""Their products: the operations, since two of them are fewer bytes."""


def test_cached_experts_are_fetched_while_the_others_compute() -> None:
    call = step(plan_apart("cache-host", slots=4))[1]
    # 1 - (4 / 8) ** 0.75 of two experts.
    missing = -(-(2_000_000 - 2 * 594_603) * UNIT_BYTES // 1_000_000)
    assert call.fetch == Load(duration_ns=1_000 + missing, shared=("links switch of node0",))
    assert call.fetch_compute_ns == EXPERTS_NS
    assert call.compute_ns == DECODE_NS - EXPERTS_NS + 85_000
    whole = step(plan_apart("with-block"))[1]
    assert (whole.compute_ns, whole.fetch) == (DECODE_NS, None)


def test_a_cache_that_has_all_fetches_nothing() -> None:
    call = step(plan_apart("cache-disk", slots=8))[1]
    assert call.fetch == Load(duration_ns=0, shared=("disk of node0", "links switch of node0"))


def test_the_host_computes_between_two_ways() -> None:
    plan = plan_apart("compute-host", compute="host")
    call = step(plan)[1]
    assert call.fetch is None
    host_ns = 2 * (1_000 + 400) + 10 * MIB
    assert call.compute_ns == DECODE_NS - EXPERTS_NS + 85_000 + host_ns
    chunk_ns = step(plan, is_decode=False)[1].compute_ns
    assert chunk_ns - step(plan_apart("with-block"), is_decode=False)[1].compute_ns == (
        85_000 + 2 * (1_000 + 4_000) + (160 - 16) * MIB
    )


def test_without_a_way_to_experts_there_is_no_step() -> None:
    alone = plan_apart("compute-host", with_cpu=False)
    assert calls_of(placement_of(alone), is_decode=True) is None
    cached = plan_apart("cache-host", slots=4)
    cut = replace(cached, inventory=replace(cached.inventory, links=()))
    assert calls_of(placement_of(cut), is_decode=True) is None


def test_the_cpu_that_computes_experts() -> None:
    inventory = make_inventory(
        [make_device("cpu0"), make_device("cpu1"), make_device("gpu0"), make_device("gpu1")],
        [make_link("node0/gpu0")],
    )
    graph = make_graph()
    _, plan = place(graph, make_inputs(graph, inventory, {}))
    ways, placement = Ways(inventory), placement_of(plan)
    assert host_cpu(placement, ways, "node0/gpu0") == "node0/cpu0"
    assert host_cpu(placement, ways, "node0/cpu0") is None
    assert host_cpu(placement, ways, "node0/gpu1") is None
    without = placement_of(with_problem(plan, max_memory_bytes={"node0/cpu0": 0}))
    assert host_cpu(without, ways, "node0/gpu0") == "node0/cpu1"


def test_a_resident_step_loads_nothing() -> None:
    assert [call.load for call in step(plan_resident())] == [None] * 11
