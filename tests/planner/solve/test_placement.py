from __future__ import annotations

import json
import os
import subprocess
import sys

import msgspec
import pytest
from hypothesis import event, given, settings
from placement_problems import (
    GIGA,
    NO_ACTIVATIONS,
    PlacementProblem,
    every_answer,
    make_chain,
    make_cost,
    make_device,
    make_inventory,
    make_link,
    permuted,
    placement_problems,
)

from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.ledger import ledger_of
from bayplan.planner.solve.placement import Placement, Solver
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.plan import Ledger, Pin
from bayplan.schemas.types import Backend, Objective, Residency, SolverStatus


def answer(problem: PlacementProblem) -> Placement | None:
    return Solver(
        problem.chain, problem.inventory, problem.budgets, problem.constraints, problem.phase
    ).solve()


def solve(
    chain: Chain,
    inventory: Inventory,
    budgets: dict[str, int],
    *,
    pins: tuple[Pin, ...] = (),
    no_spill: bool = False,
) -> Placement | None:
    budgets = {device_id: NO_ACTIVATIONS + extra for device_id, extra in budgets.items()}
    constraints = resolve(chain, pins, no_spill=no_spill)
    return Solver(chain, inventory, budgets, constraints, Objective.DECODE).solve()


def shape(placement: Placement | None) -> list[tuple[str, int, int, tuple[int, ...]]]:
    assert placement is not None
    return [
        (placed.stage.device.id, placed.stage.start, placed.stage.stop, placed.streamed)
        for placed in placement.stages
    ]


@given(placement_problems())
@settings(max_examples=150, deadline=None)
def test_against_trying_everything(problem: PlacementProblem) -> None:
    found = answer(problem)
    resident = [step_ns for _, step_ns in every_answer(problem, resident=True)]
    if resident:
        event("resident")
        assert found is not None
        assert found.tier is Residency.RESIDENT
        assert not any(placed.streamed for placed in found.stages)
        assert found.step_ns == found.lower_bound_ns == min(resident)
        assert found.status is SolverStatus.OPTIMAL
        return
    streamed = [step_ns for _, step_ns in every_answer(problem, resident=False)]
    if not streamed:
        event("infeasible")
        assert found is None
        return
    event("streamed")
    assert found is not None
    assert found.lower_bound_ns <= min(streamed) <= found.step_ns


@given(placement_problems(max_blocks=8))
@settings(max_examples=150, deadline=None)
def test_a_placement_keeps_to_budgets_and_demands(problem: PlacementProblem) -> None:
    found = answer(problem)
    if found is None:
        return
    stops = [placed.stage.stop for placed in found.stages]
    assert [placed.stage.start for placed in found.stages] == [0, *stops[:-1]]
    assert stops[-1] == len(problem.chain)
    order = [device.id for device in problem.inventory.devices]
    used = [order.index(placed.stage.device.id) for placed in found.stages]
    assert used == sorted(set(used))
    for placed in found.stages:
        ledger = ledger_of(problem.chain, placed)
        needed = sum(getattr(ledger, name)[1] for name in Ledger.__struct_fields__ if name != "runtime")
        assert needed <= problem.budgets[placed.stage.device.id]
        for index in range(placed.stage.start, placed.stage.stop):
            assert problem.constraints.device[index] in (None, placed.stage.device.id)
            assert index in placed.streamed or not problem.constraints.must_stream[index]
            assert index not in placed.streamed or not problem.constraints.must_stay[index]
    assert found.tier is Residency.RESIDENT or found.tier in problem.constraints.tiers


@given(placement_problems())
@settings(max_examples=30, deadline=None)
def test_the_order_of_budgets_and_links_changes_nothing(problem: PlacementProblem) -> None:
    links = tuple(reversed(problem.inventory.links))
    other = msgspec.structs.replace(
        problem,
        budgets=permuted(problem.budgets),
        inventory=msgspec.structs.replace(problem.inventory, links=links),
    )
    assert answer(other) == answer(problem)


HASH_SEED_SCRIPT = """
from hypothesis import Phase, given, seed, settings
from placement_problems import placement_problems
from test_placement import answer
import json, msgspec

found = []

@seed(7)
@settings(max_examples=30, database=None, deadline=None, phases=[Phase.generate])
@given(placement_problems())
def collect(problem):
    found.append(msgspec.to_builtins(answer(problem)))

collect()
print(json.dumps(found))
"""


def test_the_hash_seed_changes_nothing() -> None:
    texts = []
    for seed in ("0", "1", "77"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        texts.append(
            subprocess.run(
                [sys.executable, "-c", HASH_SEED_SCRIPT],
                env=environment,
                cwd=os.path.dirname(__file__),
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
    assert any(json.loads(texts[0]))
    assert texts[1:] == texts[:1] * 2


def gpus(count: int, **overrides: object) -> Inventory:
    devices = [make_device(f"gpu{number}") for number in range(count)]
    return make_inventory(devices, [make_link(device.id, **overrides) for device in devices])


def test_a_slow_device_stays_unused() -> None:
    slow = make_device("gpu0", memory_bytes_per_second=GIGA // 100)
    inventory = make_inventory([slow, make_device("gpu1")])
    found = solve(make_chain([64, 64]), inventory, {"node0/gpu0": 500, "node0/gpu1": 500})
    assert shape(found) == [("node0/gpu1", 0, 2, ())]


def test_a_device_with_no_budget_stays_unused() -> None:
    chain, inventory = make_chain([64, 64]), gpus(2)
    constraints = resolve(chain, (), no_spill=False)
    budgets = {"node0/gpu0": 0, "node0/gpu1": NO_ACTIVATIONS + 128}
    found = Solver(chain, inventory, budgets, constraints, Objective.DECODE).solve()
    assert shape(found) == [("node0/gpu1", 0, 2, ())]


def test_devices_without_a_way_between_them_share_no_chain() -> None:
    inventory = make_inventory([make_device("gpu0"), make_device("gpu1")], disk_rate=None)
    budgets = {"node0/gpu0": 64, "node0/gpu1": 64}
    assert solve(make_chain([64, 64]), inventory, budgets) is None
    joined = msgspec.structs.replace(inventory, links=(make_link("node0/gpu0", "node0/gpu1"),))
    assert shape(solve(make_chain([64, 64]), joined, budgets)) == [
        ("node0/gpu0", 0, 1, ()),
        ("node0/gpu1", 1, 2, ()),
    ]


def test_a_hop_is_taken_where_the_fewest_bytes_cross() -> None:
    wide, narrow = make_cost(64, decode_output_bytes=500), make_cost(64, decode_output_bytes=5)
    found = solve(make_chain([wide, narrow, wide, 64]), gpus(2), {"node0/gpu0": 192, "node0/gpu1": 192})
    assert shape(found) == [("node0/gpu0", 0, 2, ()), ("node0/gpu1", 2, 4, ())]
    assert found is not None
    assert found.step_ns == 4 * 64 + 2 * 5


def test_streamed_blocks_lie_evenly() -> None:
    """One slot is enough to reach the time of computing, and leaves room for one resident block more."""
    found = solve(make_chain([64] * 12), gpus(1), {"node0/gpu0": 64 * 10})
    assert shape(found) == [("node0/gpu0", 0, 12, (2, 6, 10))]
    assert found is not None
    assert found.stages[0].choice.num_slots == 1
    assert found.status is SolverStatus.OPTIMAL
    assert found.step_ns == found.lower_bound_ns == 12 * 64


def test_a_second_slot_keeps_the_link_busy() -> None:
    """Blocks travel for 256: 22 through two slots take less than 21 through one and their computing."""
    found = solve(make_chain([64] * 40), gpus(1, rate=GIGA // 4), {"node0/gpu0": 64 * 20})
    assert found is not None
    assert [(len(placed.streamed), placed.choice.num_slots) for placed in found.stages] == [(22, 2)]
    assert found.step_ns == found.lower_bound_ns == 22 * 256


def test_one_slot_where_two_do_not_fit() -> None:
    """64 travel only while 64 are computed elsewhere: nothing is left to compute beside the second block."""
    found = solve(make_chain([64, 64]), gpus(1), {"node0/gpu0": 64})
    assert shape(found) == [("node0/gpu0", 0, 2, (0, 1))]
    assert found is not None
    assert (found.stages[0].choice.num_slots, found.step_ns) == (1, 256)
    assert found.lower_bound_ns == 256


def test_links_of_one_group_share_their_bandwidth() -> None:
    """Apart, each device streams two of three, 512 each, one of them before its stage begins.

    Over one link that takes 4 x 512; two resident blocks and three of four streamed take less.
    """
    chain, budgets = make_chain([64] * 6), {"node0/gpu0": 128, "node0/gpu1": 128}
    apart = solve(chain, gpus(2, rate=GIGA // 8), budgets)
    shared = solve(chain, gpus(2, rate=GIGA // 8, group="switch"), budgets)
    assert apart is not None
    assert shared is not None
    assert [len(placed.streamed) for placed in apart.stages] == [2, 2]
    assert apart.lower_bound_ns == 2 * (512 + 2 * 64)
    assert [len(placed.streamed) for placed in shared.stages] in ([0, 3], [3, 0])
    assert shared.lower_bound_ns == shared.step_ns == 3 * (512 + 64)


def test_links_of_several_nodes_do_not_add_up() -> None:
    """Each node's disk brings half; taken together they would be the bottleneck."""
    one = gpus(1, rate=GIGA)
    other = msgspec.structs.replace(one.devices[0], id="node1/gpu0")
    inventory = msgspec.structs.replace(
        one,
        nodes=(
            msgspec.structs.replace(one.nodes[0], host_memory_bytes=0),
            msgspec.structs.replace(one.nodes[0], id="node1", host_memory_bytes=0),
        ),
        devices=(one.devices[0], other),
        links=(*one.links, make_link("node1/gpu0", "node1"), make_link("node0", "node1")),
    )
    found = solve(make_chain([64] * 20), inventory, {"node0/gpu0": 384, "node1/gpu0": 384})
    assert found is not None
    assert found.tier is Residency.STREAM_DISK
    assert found.lower_bound_ns == 20 * 64
    assert found.step_ns < 21 * 64


def test_host_memory_counts_per_node() -> None:
    one = gpus(1)
    nodes = tuple(
        msgspec.structs.replace(one.nodes[0], id=name, host_memory_bytes=640, disk=None)
        for name in ("node0", "node1")
    )
    other = msgspec.structs.replace(one.devices[0], id="node1/gpu0")
    inventory = msgspec.structs.replace(
        one,
        nodes=nodes,
        devices=(one.devices[0], other),
        links=(*one.links, make_link("node1/gpu0", "node1"), make_link("node0", "node1")),
    )
    budgets = {"node0/gpu0": 64, "node1/gpu0": 64}
    assert solve(make_chain([64] * 20), inventory, budgets) is not None
    assert solve(make_chain([64] * 21), inventory, budgets) is None


def test_what_waits_in_host_memory_shares_it_with_the_cpu() -> None:
    """Either alone would fit: 6 blocks resident on the CPU, or 5 of 6 waiting for the accelerator."""
    limit = NO_ACTIVATIONS + 6 * 64
    inventory = make_inventory(
        [make_device("gpu0"), make_device("cpu")],
        [make_link("node0/gpu0")],
        host_memory_bytes=limit,
        disk_rate=GIGA // 4,
    )
    found = solve(make_chain([64] * 8), inventory, {"node0/gpu0": 64, "node0/cpu": 6 * 64})
    assert found is not None
    assert found.tier is Residency.STREAM_DISK
    roomy = make_inventory(inventory.devices, inventory.links, disk_rate=GIGA // 4)
    found = solve(make_chain([64] * 8), roomy, {"node0/gpu0": 64, "node0/cpu": 6 * 64})
    assert found is not None
    assert found.tier is Residency.STREAM_HOST


def test_unified_memory_is_counted_once() -> None:
    unified = make_device("gpu0", shares_host_memory=True)
    inventory = make_inventory(
        [unified, make_device("cpu")], host_memory_bytes=NO_ACTIVATIONS + 256, disk_rate=None
    )
    budgets = {"node0/gpu0": 256, "node0/cpu": 256}
    assert solve(make_chain([64] * 4), inventory, budgets) is not None
    assert solve(make_chain([64] * 5), inventory, budgets) is None


def test_a_pinned_tier_is_the_tier() -> None:
    pins = (Pin(pattern="layers.1", residency=Residency.STREAM_DISK),)
    found = solve(make_chain([64] * 4), gpus(1), {"node0/gpu0": 640}, pins=pins)
    assert shape(found) == [("node0/gpu0", 0, 4, (1,))]
    assert found is not None
    assert found.tier is Residency.STREAM_DISK


def test_a_pinned_device_holds_its_block() -> None:
    pins = (Pin(pattern="layers.0", device="node0/gpu1"),)
    found = solve(make_chain([64] * 2), gpus(2), {"node0/gpu0": 640, "node0/gpu1": 640}, pins=pins)
    assert shape(found) == [("node0/gpu1", 0, 2, ())]


def test_no_spill_is_infeasible_rather_than_streamed() -> None:
    budgets = {"node0/gpu0": 3 * 64}
    assert solve(make_chain([64] * 4), gpus(1), budgets) is not None
    assert solve(make_chain([64] * 4), gpus(1), budgets, no_spill=True) is None


def test_a_cut_front_says_so_and_keeps_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = make_chain([64, 192, 128, 64, 192, 128, 64])
    slow = make_device("gpu1", memory_bytes_per_second=GIGA // 2)
    inventory = make_inventory(
        [make_device("gpu0"), slow], [make_link("node0/gpu0"), make_link("node0/gpu1", rate=GIGA // 3)]
    )
    budgets = {"node0/gpu0": 320, "node0/gpu1": 320}
    whole = solve(chain, inventory, budgets)
    monkeypatch.setattr("bayplan.planner.solve.placement.MAX_FRONT", 1)
    cut = solve(chain, inventory, budgets)
    assert whole is not None
    assert cut is not None
    assert (whole.status, cut.status) == (SolverStatus.OPTIMAL, SolverStatus.WORK_LIMIT)
    assert cut.lower_bound_ns <= whole.lower_bound_ns <= whole.step_ns <= cut.step_ns


def test_a_cpu_never_streams_from_its_own_memory() -> None:
    inventory = make_inventory([make_device("cpu", backend=Backend.CPU)], disk_rate=None)
    assert solve(make_chain([64] * 4), inventory, {"node0/cpu": 192}) is None
