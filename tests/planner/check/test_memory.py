from __future__ import annotations

import pytest
from changed_plans import replace, with_block, with_fields, with_form, with_ledger, with_problem, with_run
from planned import EMBEDDING_BYTES, LAYER_BYTES, MIB, plan_streamed

from bayplan.planner.check.basis import Placement, read_placement
from bayplan.planner.check.memory import Needs, device_needs, memory_problems, waiting_bytes
from bayplan.schemas.plan import Ledger, Plan
from bayplan.schemas.types import Residency

PLAN = plan_streamed()
FIRST, SECOND = PLAN.devices
SLOTS = {entry.device: entry.num_slots for entry in PLAN.schedule}
NUM_STREAMED = sum(block.residency is not Residency.RESIDENT for block in PLAN.blocks)
BUFFER_BYTES = 128
"""Of a layer's 100 bytes, aligned."""


def placement_of(plan: Plan) -> Placement:
    placement, problems = read_placement(plan)
    assert placement is not None, problems
    return placement


def problems_of(plan: Plan) -> list[tuple[str, str]]:
    return list(memory_problems(placement_of(plan)))


def with_node(plan: Plan, **fields: object) -> Plan:
    nodes = tuple(replace(node, **fields) for node in plan.inventory.nodes)
    return replace(plan, inventory=replace(plan.inventory, nodes=nodes))


def with_device(plan: Plan, index: int, **fields: object) -> Plan:
    devices = list(plan.inventory.devices)
    devices[index] = replace(devices[index], **fields)
    return replace(plan, inventory=replace(plan.inventory, devices=tuple(devices)))


def test_the_ledgers_are_what_the_blocks_need() -> None:
    assert problems_of(PLAN) == []
    assert [name for name in Ledger.__struct_fields__ if name not in Needs.__struct_fields__] == ["runtime"]


def test_what_a_device_needs() -> None:
    placement = placement_of(PLAN)
    blocks = placement.by_device["node0/gpu0"]
    layers = blocks[1:]
    streamed = [entry for entry in layers if entry.streams]
    kept = len(layers) - len(streamed)
    needs = device_needs(placement, blocks)
    hi = EMBEDDING_BYTES + kept * LAYER_BYTES + len(layers) * BUFFER_BYTES
    # A norm of 250 bytes in 256 and a mask of 100 in 128: only of what stays it is known what is padding.
    assert needs.weights == (hi - kept * (6 + 28), hi)
    assert needs.kv == (len(layers) * 65_536,) * 2
    slots = SLOTS["node0/gpu0"] * LAYER_BYTES if streamed else 0
    assert needs.staging == (65_536 + slots,) * 2
    traced = 4_096 + 2 * 16_384
    assert needs.activations == (traced, traced + traced // 32)
    assert needs.load_transient == (0, 0)
    assert needs.budgeted_bytes == FIRST.ledger.budgeted_bytes
    every = device_needs(placement, blocks, keep_all=True)
    assert every.weights[1] == EMBEDDING_BYTES + len(layers) * (LAYER_BYTES + BUFFER_BYTES)
    assert every.staging == (65_536, 65_536)
    assert device_needs(placement, ()) == Needs()


def test_a_replica_is_part_of_the_weights() -> None:
    placement = placement_of(PLAN)
    whole = device_needs(placement, placement.by_device["node0/gpu1"]).weights
    without = placement_of(replace(PLAN, ties=()))
    alone = device_needs(without, without.by_device["node0/gpu1"]).weights
    assert (whole[0] - alone[0], whole[1] - alone[1]) == (EMBEDDING_BYTES, EMBEDDING_BYTES)


def test_a_form_that_needs_room_to_work_has_it_among_the_activations() -> None:
    larger = with_form(PLAN, 1, workspace_bytes=3_200)
    (path, text), *_ = problems_of(larger)
    traced = 4_096 + 2 * 16_384
    assert path == "$.devices[0].ledger.activations"
    assert text == (
        f"{traced} to {traced * 33 // 32} bytes, "
        f"but the blocks need {traced + 3_200} to {(traced + 3_200) * 33 // 32} bytes"
    )


def test_what_a_step_copies_may_come_on_top_of_it() -> None:
    step = next(run for run in PLAN.problem.runs if run.count > 1).decode_activation_bytes
    traced = 4_096 + 2 * 16_384
    assert not problems_of(with_form(PLAN, 1, copied_bytes=2 * 16_384 - step))
    (path, text), *_ = problems_of(with_form(PLAN, 1, copied_bytes=2 * 16_384 - step + 3_200))
    assert path == "$.devices[0].ledger.activations"
    assert text == (
        f"{traced} to {traced * 33 // 32} bytes, "
        f"but the blocks need {traced} to {(traced + 3_200) * 33 // 32} bytes"
    )


@pytest.mark.parametrize("component", Needs.__struct_fields__)
@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("change", [-1, 1])
def test_every_byte_of_a_ledger_counts(component: str, end: int, change: int) -> None:
    bounds = list(getattr(FIRST.ledger, component))
    bounds[end] += change
    plan = with_ledger(PLAN, 0, **{component: (bounds[0], bounds[1])})
    (problem,) = problems_of(plan)
    assert problem == (
        f"$.devices[0].ledger.{component}",
        f"{shown(bounds[0], bounds[1])}, but the blocks need {shown(*getattr(FIRST.ledger, component))}",
    )


def shown(lo: int, hi: int) -> str:
    return f"{lo} bytes" if lo == hi else f"{lo} to {hi} bytes"


def test_a_device_without_blocks_has_an_empty_ledger() -> None:
    blocks = tuple(replace(block, device="node0/gpu0") for block in PLAN.blocks)
    paths = [path for path, _ in problems_of(replace(PLAN, blocks=blocks))]
    assert [path for path in paths if "[1]" in path and "ties" not in path] == [
        f"$.devices[1].ledger.{component}"
        for component in Needs.__struct_fields__
        if getattr(SECOND.ledger, component) != (0, 0)
    ]


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (
            with_fields(PLAN, "devices", 0, reserve_bytes=5),
            ("$.devices[0].reserve_bytes", "5, but the inventory says 0"),
        ),
        (
            with_fields(PLAN, "devices", 1, budget_bytes=13 * MIB),
            ("$.devices[1].budget_bytes", f"{13 * MIB}, but the inputs give {14 * MIB}"),
        ),
        (
            with_problem(PLAN, max_memory_bytes={"node0/gpu0": 0, "node0/gpu1": 14 * MIB}),
            ("$.devices[0]", "has no budget, but model.embed computes there"),
        ),
        (
            with_problem(PLAN, max_memory_bytes={"node0/gpu0": MIB, "node0/gpu1": 14 * MIB}),
            ("$.devices[0]", f"the blocks need {FIRST.ledger.budgeted_bytes} bytes, the budget is {MIB}"),
        ),
        (
            with_fields(PLAN, "hosts", 0, budget_bytes=1),
            ("$.hosts[0].budget_bytes", f"1, but the inputs give {2**50}"),
        ),
        (
            with_fields(PLAN, "hosts", 0, pinned_budget_bytes=1),
            ("$.hosts[0].pinned_budget_bytes", f"1, but the inputs give {2**50}"),
        ),
        (
            with_fields(PLAN, "hosts", 0, waiting_bytes=1),
            ("$.hosts[0].waiting_bytes", f"1, but the inputs give {NUM_STREAMED * LAYER_BYTES}"),
        ),
        (
            with_node(PLAN, pinned_memory_bytes=MIB),
            ("$.hosts[0]", f"{NUM_STREAMED * LAYER_BYTES} bytes wait, {MIB} may"),
        ),
        (
            with_node(PLAN, host_memory_bytes=2 * MIB, host_reserve_bytes=MIB),
            (
                "$.hosts[0]",
                f"{NUM_STREAMED * LAYER_BYTES} bytes of its devices and of what waits, the budget is {MIB}",
            ),
        ),
        (
            with_fields(PLAN, "ties", 0, devices=("node0/gpu0",)),
            ("$.ties[0].devices", "node0/gpu0, but its blocks are on node0/gpu0, node0/gpu1"),
        ),
        (
            with_fields(PLAN, "ties", 0, policy="co-located"),
            ("$.ties[0].policy", "co-located, but its blocks are on node0/gpu0, node0/gpu1"),
        ),
        (
            with_fields(PLAN, "ties", 0, fqns=("other.weight", "another.weight")),
            ("$.ties[0].devices", "node0/gpu0, node0/gpu1, but its blocks are on none"),
        ),
    ],
    ids=[
        "reserve",
        "budget",
        "no-budget",
        "over-budget",
        "host-budget",
        "pinned-budget",
        "waiting",
        "over-pinned",
        "over-host",
        "tie-devices",
        "tie-policy",
        "tie-nowhere",
    ],
)
def test_every_other_figure_counts(plan: Plan, problem: tuple[str, str]) -> None:
    assert problem in problems_of(plan)


def test_devices_in_host_memory_count_there() -> None:
    shared = with_device(PLAN, 0, shares_host_memory=True)
    needed = FIRST.ledger.budgeted_bytes
    waiting = NUM_STREAMED * LAYER_BYTES
    enough = with_node(shared, host_memory_bytes=needed + waiting)
    short = with_node(shared, host_memory_bytes=needed + waiting - 1)
    assert [path for path, _ in problems_of(enough)] == [
        "$.hosts[0].budget_bytes",
        "$.hosts[0].pinned_budget_bytes",
    ]
    assert problems_of(short)[-1] == (
        "$.hosts[0]",
        f"{needed + waiting} bytes of its devices and of what waits, the budget is {needed + waiting - 1}",
    )


def test_a_larger_budget_in_host_memory_raises_the_hosts() -> None:
    shared = with_node(with_device(PLAN, 0, shares_host_memory=True), host_memory_bytes=MIB)
    assert problems_of(shared)[0] == ("$.hosts[0].budget_bytes", f"{2**50}, but the inputs give {14 * MIB}")


def test_only_what_streams_from_the_host_waits_there() -> None:
    index = next(i for i, block in enumerate(PLAN.blocks) if block.residency is Residency.STREAM_HOST)
    before = waiting_bytes(placement_of(PLAN), "node0")
    other = with_block(PLAN, index, residency=Residency.STREAM_DISK)
    assert waiting_bytes(placement_of(other), "node0") == before - LAYER_BYTES
    assert waiting_bytes(placement_of(PLAN), "node1") == 0


def test_cache_of_all_batches_is_what_the_runs_say() -> None:
    doubled = with_run(PLAN, 1, kv_bytes=2 * 65_536)
    (problem, *_) = problems_of(doubled)
    assert problem[0] == "$.devices[0].ledger.kv"
