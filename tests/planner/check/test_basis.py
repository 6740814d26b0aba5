from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from changed_plans import replace, with_block, with_fields, with_problem, with_run
from planned import plan_streamed

from bayplan.planner.check.basis import Placement, apart_from, lies_in_host_memory, node_of, read_placement
from bayplan.schemas.plan import Experts, Plan, Tie
from bayplan.schemas.problem import PlannedEdge
from bayplan.schemas.types import Backend

PLAN = plan_streamed()
GPU = PLAN.inventory.devices[0]


def placement_of(plan: Plan) -> Placement:
    placement, problems = read_placement(plan)
    assert placement is not None, problems
    assert problems == ()
    return placement


def test_every_block_has_its_run_and_its_form() -> None:
    blocks = placement_of(PLAN).blocks
    assert [entry.block.id for entry in blocks] == [block.id for block in PLAN.blocks]
    assert [entry.index for entry in blocks] == list(range(11))
    assert [entry.run.first for entry in blocks] == [
        "model.embed",
        *["model.layers.0"] * 8,
        "model.norm",
        "head",
    ]
    assert {entry.form.format for entry in blocks} == {"bf16"}
    assert blocks[3].path == "$.blocks[3]"


def test_blocks_of_a_device_are_in_order() -> None:
    placement = placement_of(PLAN)
    assert list(placement.by_device) == ["node0/gpu0", "node0/gpu1"]
    both = [*placement.by_device["node0/gpu0"], *placement.by_device["node0/gpu1"]]
    assert [entry.index for entry in both] == list(range(11))


def test_budgets_are_what_the_user_said_or_what_the_reserve_leaves() -> None:
    devices = (
        replace(GPU, capacity_bytes=100, reserve_bytes=30),
        replace(PLAN.inventory.devices[1], reserve_bytes=2**60),
    )
    plan = replace(PLAN, inventory=replace(PLAN.inventory, devices=devices))
    assert placement_of(with_problem(plan, max_memory_bytes={})).budgets == {
        "node0/gpu0": 70,
        "node0/gpu1": 0,
    }
    given = with_problem(plan, max_memory_bytes={"node0/gpu0": 90})
    assert placement_of(given).budgets == {"node0/gpu0": 90, "node0/gpu1": 0}


@pytest.mark.parametrize(
    ("fqn", "block"),
    [
        ("model.layers.0.attn.q.weight", "model.layers.0"),
        ("model.layers.0.weight", "model.layers.0"),
        ("model.bias", "model:own"),
        ("model.other.weight", None),
        ("weight", ":own"),
        ("model.deep.bias", None),
    ],
)
def test_the_block_that_holds_a_tensor(fqn: str, block: str | None) -> None:
    ids = ("model:own", "model.layers.0", ":own")
    blocks = tuple(replace(PLAN.blocks[0], id=name) for name in ids)
    runs = tuple(replace(PLAN.problem.runs[0], first=name) for name in ids)
    tie = Tie(fqns=(fqn, fqn), num_bytes=0, policy="co-located", devices=())
    plan = with_problem(replace(PLAN, blocks=blocks, ties=(tie,)), runs=runs, edges=())
    assert placement_of(plan).tie_holders == (() if block is None else (ids.index(block),),)


def test_nodes_and_host_memory() -> None:
    assert node_of("node3/gpu0") == "node3"
    assert not lies_in_host_memory(GPU)
    assert lies_in_host_memory(replace(GPU, shares_host_memory=True))
    assert lies_in_host_memory(replace(GPU, backend=Backend.CPU))


@pytest.mark.parametrize(
    ("residency", "is_apart"),
    [("with-block", False), ("resident", False), ("cache-disk", True), ("compute-host", True)],
)
def test_experts_apart(residency: str, is_apart: bool) -> None:
    fields = {"count": 4, "per_token": 1, "unit_bytes": 8, "format": "bf16", "residency": residency}
    experts = msgspec.convert(fields, Experts)
    assert apart_from(PLAN.blocks[0]) is None
    assert apart_from(replace(PLAN.blocks[0], experts=experts)) == (experts if is_apart else None)


EDGE = PlannedEdge(source="model.embed", target="elsewhere", prefill_bytes=1, decode_bytes=1)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda plan: replace(plan, devices=plan.devices[::-1]),
            ("$.devices", "not those of the inventory in its order"),
        ),
        (lambda plan: replace(plan, hosts=()), ("$.hosts", "not the nodes of the inventory in its order")),
        (
            lambda plan: replace(
                plan,
                hosts=(replace(plan.hosts[0], id="other"),),
                inventory=replace(plan.inventory, nodes=(replace(plan.inventory.nodes[0], id="other"),)),
            ),
            ("$.inventory.devices[0].id", "node of node0/gpu0 is not in the inventory"),
        ),
        (
            lambda plan: with_problem(plan, max_memory_bytes={"node0/cpu": 1}),
            ("$.problem.max_memory_bytes", "node0/cpu is not in the inventory"),
        ),
        (
            lambda plan: with_block(plan, 4, device="node0/cpu"),
            ("$.blocks[4].device", "node0/cpu is not in the inventory"),
        ),
        (
            lambda plan: with_problem(plan, edges=(EDGE,)),
            ("$.problem.edges[0].target", "elsewhere is not among the blocks"),
        ),
        (
            lambda plan: with_problem(plan, edges=(replace(EDGE, source="nowhere", target="head"),)),
            ("$.problem.edges[0].source", "nowhere is not among the blocks"),
        ),
        (
            lambda plan: with_problem(plan, runs=plan.problem.runs[1:]),
            ("$.problem.runs", "10 blocks, but the plan places 11"),
        ),
        (
            lambda plan: with_run(plan, 2, first="norm"),
            ("$.problem.runs[2].first", "norm, but the block is model.norm"),
        ),
        (
            lambda plan: with_problem(
                plan, runs=(*plan.problem.runs, replace(plan.problem.runs[0], count=0))
            ),
            ("$.problem.runs[4].count", "0"),
        ),
        (
            lambda plan: with_block(plan, 1, format="nf4"),
            ("$.blocks[1].format", "nf4, but its forms are bf16"),
        ),
    ],
    ids=[
        "devices",
        "hosts",
        "node",
        "max-memory",
        "block-device",
        "edge-target",
        "edge-source",
        "count",
        "first",
        "empty-run",
        "format",
    ],
)
def test_what_does_not_belong_together(change: Callable[[Plan], Plan], problem: tuple[str, str]) -> None:
    placement, problems = read_placement(change(PLAN))
    assert placement is None
    assert problems[0] == problem


def test_all_of_it_is_said() -> None:
    broken = with_fields(replace(PLAN, hosts=()), "blocks", 0, device="node9/gpu0")
    assert read_placement(broken)[1] == (
        ("$.hosts", "not the nodes of the inventory in its order"),
        ("$.blocks[0].device", "node9/gpu0 is not in the inventory"),
    )
