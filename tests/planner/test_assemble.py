from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from placement_problems import make_device, make_inventory
from planned import INVENTORY, MIB, make_graph, make_inputs, place, plan_resident, plan_streamed

from bayplan.schemas.codec import decode_plan, encode_plan
from bayplan.schemas.features import Feature
from bayplan.schemas.graph import TiedGroup
from bayplan.schemas.plan import Plan, Tie
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import BoundClass, Reason, Residency, SolverStatus

GOLDEN = Path(__file__).parents[1] / "golden" / "plan_streamed.json"
PLAN = plan_streamed()


def test_the_streamed_plan_is_as_approved() -> None:
    assert encode_plan(PLAN) == GOLDEN.read_bytes()


@pytest.mark.parametrize("plan", [PLAN, plan_resident()], ids=["streamed", "resident"])
def test_what_is_written_is_read_back_and_unedited(plan: Plan) -> None:
    decoded = decode_plan(encode_plan(plan), where="plan")
    assert decoded.plan == plan
    assert decoded.digest_matches


def test_the_same_inputs_give_the_same_bytes() -> None:
    assert encode_plan(plan_streamed()) == encode_plan(PLAN)


def test_the_digest_is_that_of_the_decisions() -> None:
    graph = make_graph()
    inputs = make_inputs(graph, INVENTORY, PLAN.problem.max_memory_bytes)
    other = msgspec.structs.replace(inputs, producer="another")
    assert place(graph, other)[1].digest == PLAN.digest
    roomier = make_inputs(graph, INVENTORY, {"node0/gpu0": 14 * MIB, "node0/gpu1": 15 * MIB})
    assert place(graph, roomier)[1].digest != PLAN.digest


def test_a_plan_is_applyable_once_it_is_bound() -> None:
    graph = make_graph()
    inputs = make_inputs(graph, make_inventory([make_device("cpu")]), {})
    unbound = msgspec.structs.replace(inputs, model=msgspec.structs.replace(inputs.model, checkpoint=None))
    assert place(graph, inputs)[1].applyable
    assert not place(graph, unbound)[1].applyable


def test_a_plan_that_needs_what_is_not_yet_run_is_not_applyable(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph()
    inputs = make_inputs(graph, INVENTORY, {})
    assert not place(graph, inputs)[1].applyable
    monkeypatch.setattr("bayplan.schemas.features.NOT_YET_RUN", frozenset({Feature.QUANTIZED}))
    assert place(graph, inputs)[1].applyable


def test_a_plan_of_the_planner_is_complete() -> None:
    assert (PLAN.complete, PLAN.errored) == (True, False)


def test_devices_have_their_budget_and_share() -> None:
    assert [device.budget_bytes for device in PLAN.devices] == [14 * MIB, 14 * MIB]
    unused = plan_resident().devices[1]
    assert unused.budget_bytes == unused.capacity_bytes
    assert unused.ledger.weights == (0, 0)


def test_reasons_of_a_resident_plan() -> None:
    assert {block.reason for block in plan_resident().blocks} == {Reason.FITS}


def test_reasons_of_a_streamed_plan() -> None:
    reasons = {block.id: block.reason for block in PLAN.blocks}
    assert (reasons["model.embed"], reasons["head"], reasons["model.norm"]) == (
        Reason.TIED,
        Reason.TIED,
        Reason.KEPT,
    )
    for block in PLAN.blocks:
        assert (block.reason is Reason.CAPACITY) is (block.residency is Residency.STREAM_HOST)


def test_what_the_user_decided_is_pinned() -> None:
    graph = make_graph()
    pins = (
        Pin(pattern="model.layers.3", residency=Residency.RESIDENT),
        Pin(pattern="model.layers.5", residency=Residency.STREAM_HOST),
        Pin(pattern="head", device="node0/gpu1"),
    )
    budgets = {"node0/gpu0": 14 * MIB, "node0/gpu1": 14 * MIB}
    _, plan = place(graph, make_inputs(graph, INVENTORY, budgets, pins=pins))
    pinned = {block.id: block.residency for block in plan.blocks if block.reason is Reason.PINNED}
    assert pinned == {
        "model.layers.3": Residency.RESIDENT,
        "model.layers.5": Residency.STREAM_HOST,
        "head": Residency.RESIDENT,
    }
    assert plan.problem.pins == pins


def test_the_schedule_lists_what_streams() -> None:
    assert [entry.device for entry in PLAN.schedule] == ["node0/gpu0", "node0/gpu1"]
    for entry in PLAN.schedule:
        assert entry.stream_order == tuple(
            block.id
            for block in PLAN.blocks
            if block.device == entry.device and block.residency is Residency.STREAM_HOST
        )
        assert entry.slot_bytes == 3 * MIB + 256
    assert plan_resident().schedule == ()


@pytest.mark.parametrize(
    ("plan", "policy", "devices"),
    [
        (PLAN, "replicated", ("node0/gpu0", "node0/gpu1")),
        (plan_resident(), "co-located", ("node0/gpu0",)),
    ],
)
def test_ties_say_where_they_lie(plan: Plan, policy: str, devices: tuple[str, ...]) -> None:
    fqns = ("head.weight", "model.embed.weight")
    assert plan.ties == (Tie(fqns=fqns, num_bytes=4 * MIB, policy=policy, devices=devices),)


def test_a_tie_within_one_block_is_co_located() -> None:
    graph = make_graph()
    group = TiedGroup(fqns=("model.layers.7.norm.weight", "model.layers.7.weight"), num_bytes=250)
    graph = msgspec.structs.replace(graph, ties=(*graph.ties, group))
    _, plan = place(graph, make_inputs(graph, INVENTORY, PLAN.problem.max_memory_bytes))
    assert (plan.ties[1].policy, len(plan.ties[1].devices)) == ("co-located", 1)


def test_the_summary_adds_up() -> None:
    summary = PLAN.summary
    assert summary.streamed_blocks == sum(len(entry.stream_order) for entry in PLAN.schedule)
    assert summary.resident_blocks + summary.streamed_blocks == len(PLAN.blocks)
    assert summary.streamed_bytes_per_step == summary.streamed_blocks * (3 * MIB + 256)
    assert summary.resident_bytes == sum(device.ledger.weights[0] for device in PLAN.devices)
    assert summary.predicted_decode_ns == summary.predicted_step_ns
    assert 0 < summary.lower_bound_ns <= summary.predicted_step_ns
    assert summary.gap_ppm * summary.predicted_step_ns >= 10**6 * (
        summary.predicted_step_ns - summary.lower_bound_ns
    )
    assert (summary.bound_class, summary.solver_status, summary.reproducible) == (
        BoundClass.CONTIGUOUS,
        SolverStatus.OPTIMAL,
        True,
    )
    assert plan_resident().summary.gap_ppm == 0
