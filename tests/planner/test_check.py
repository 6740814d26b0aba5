from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import INVENTORY, MIB, make_graph, make_inputs, place, plan_resident, plan_streamed

from bayplan.planner.check import check
from bayplan.schemas.plan import Ledger, Pin, Plan
from bayplan.schemas.plan_rules import plan_problems
from bayplan.schemas.types import Objective, Reason, Residency

PLAN = plan_streamed()
replace = msgspec.structs.replace


def with_ledger(plan: Plan, **components: tuple[int, int]) -> Plan:
    """Return `plan` with other components in the ledger of its first device."""
    first = plan.devices[0]
    return replace(
        plan, devices=(replace(first, ledger=replace(first.ledger, **components)), *plan.devices[1:])
    )


def with_block(plan: Plan, index: int, **fields: object) -> Plan:
    blocks = list(plan.blocks)
    blocks[index] = replace(blocks[index], **fields)
    return replace(plan, blocks=tuple(blocks))


def with_schedule(plan: Plan, **fields: object) -> Plan:
    return replace(plan, schedule=(replace(plan.schedule[0], **fields), *plan.schedule[1:]))


def with_problem(plan: Plan, **fields: object) -> Plan:
    return replace(plan, problem=replace(plan.problem, **fields))


def with_summary(plan: Plan, **fields: object) -> Plan:
    return replace(plan, summary=replace(plan.summary, **fields))


def with_run(plan: Plan, index: int, **fields: object) -> Plan:
    runs = list(plan.problem.runs)
    runs[index] = replace(runs[index], **fields)
    return with_problem(plan, runs=tuple(runs))


def ledger_hi(plan: Plan, component: str) -> int:
    return int(getattr(plan.devices[0].ledger, component)[1])


@pytest.mark.parametrize("plan", [PLAN, plan_resident()], ids=["streamed", "resident"])
def test_what_the_planner_makes_is_sound(plan: Plan) -> None:
    assert check(plan) == ()
    assert list(plan_problems(plan)) == []


@given(
    st.integers(1, 9),
    st.integers(12, 52),
    st.integers(12, 52),
    st.sampled_from(Objective),
    st.sampled_from(
        (
            (),
            (Pin(pattern="head", device="node0/gpu1"),),
            (Pin(pattern="model.layers.0", residency=Residency.STREAM_DISK),),
            (
                Pin(pattern="model.norm", device="node0/gpu0"),
                Pin(pattern="*.0", residency=Residency.RESIDENT),
            ),
        )
    ),
)
@settings(max_examples=60, deadline=None)
def test_every_plan_is_sound(
    num_layers: int, first_mib: int, second_mib: int, objective: Objective, pins: tuple[Pin, ...]
) -> None:
    graph = make_graph(num_layers)
    budgets = {"node0/gpu0": first_mib * MIB, "node0/gpu1": second_mib * MIB}
    _, plan = place(graph, make_inputs(graph, INVENTORY, budgets, pins=pins, objective=objective))
    assert check(plan) == ()
    assert list(plan_problems(plan)) == []


WEIGHTS, KV = ledger_hi(PLAN, "weights"), ledger_hi(PLAN, "kv")
STAGING, ACTIVATIONS = ledger_hi(PLAN, "staging"), PLAN.devices[0].ledger.activations[0]
SLOT = PLAN.schedule[0].slot_bytes
STREAMED = PLAN.summary.streamed_bytes_per_step
STEP = PLAN.summary.predicted_step_ns
ORDER = PLAN.schedule[0].stream_order


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda plan: with_ledger(plan, weights=(0, WEIGHTS - 64)),
            ("$.devices[0].ledger.weights", f"{WEIGHTS - 64} bytes, but the blocks need {WEIGHTS}"),
        ),
        (
            lambda plan: with_ledger(plan, weights=(0, WEIGHTS + 64)),
            ("$.devices[0].ledger.weights", f"{WEIGHTS + 64} bytes, but the blocks need {WEIGHTS}"),
        ),
        (
            lambda plan: with_ledger(plan, kv=(0, KV - 1)),
            ("$.devices[0].ledger.kv", f"{KV - 1} bytes, but the blocks need {KV}"),
        ),
        (
            lambda plan: with_ledger(plan, staging=(0, STAGING - 1)),
            ("$.devices[0].ledger.staging", f"{STAGING - 1} bytes, but the blocks need {STAGING}"),
        ),
        (
            lambda plan: with_ledger(plan, activations=(0, ACTIVATIONS - 1)),
            (
                "$.devices[0].ledger.activations",
                f"{ACTIVATIONS - 1} bytes, but the blocks need {ACTIVATIONS}",
            ),
        ),
        (
            lambda plan: with_block(plan, 1, kv_bytes=7),
            ("$.devices[0]", "cache of model.layers.0: 7 bytes, but its run says 65536"),
        ),
        (
            lambda plan: with_schedule(plan, stream_order=ORDER[::-1]),
            ("$.schedule[0].stream_order", "not the streamed blocks in the order in which they run"),
        ),
        (
            lambda plan: with_schedule(plan, stream_order=ORDER[:-1]),
            ("$.schedule[0].stream_order", "not the streamed blocks in the order in which they run"),
        ),
        (
            lambda plan: with_schedule(plan, slot_bytes=SLOT - 64),
            ("$.schedule[0].slot_bytes", f"{SLOT - 64}, but a streamed block has {SLOT}"),
        ),
        (
            lambda plan: with_problem(plan, no_spill=True),
            ("$.problem.no_spill", "true, but model.layers.0 streams"),
        ),
        (
            lambda plan: with_problem(plan, pins=(Pin(pattern="head", device="node0/gpu0"),)),
            ("$.blocks[10].device", "node0/gpu1, but pinned to node0/gpu0"),
        ),
        (
            lambda plan: with_problem(plan, pins=(Pin(pattern="*.0", residency=Residency.RESIDENT),)),
            ("$.blocks[1].residency", "stream-host, but pinned to resident"),
        ),
        (
            lambda plan: with_problem(plan, pins=(Pin(pattern="*.0", residency=Residency.STREAM_DISK),)),
            ("$.blocks[1].residency", "stream-host, but pinned to stream-disk"),
        ),
        (
            lambda plan: with_summary(plan, streamed_bytes_per_step=STREAMED + 1),
            (
                "$.summary.streamed_bytes_per_step",
                f"{STREAMED + 1}, but the streamed blocks have {STREAMED}",
            ),
        ),
        (
            lambda plan: with_summary(plan, lower_bound_ns=STEP + 1),
            ("$.summary.lower_bound_ns", f"{STEP + 1} is above the prediction {STEP}"),
        ),
        (
            lambda plan: with_summary(plan, gap_ppm=1),
            (
                "$.summary.gap_ppm",
                f"1, but {PLAN.summary.lower_bound_ns} and {STEP} give another gap",
            ),
        ),
        (
            lambda plan: with_problem(plan, runs=plan.problem.runs[1:]),
            ("$.problem.runs", "10 blocks, but the plan places 11"),
        ),
    ],
    ids=[
        "weights-less",
        "weights-more",
        "kv",
        "staging",
        "activations",
        "block-kv",
        "order-reversed",
        "order-short",
        "slot",
        "no-spill",
        "pinned-device",
        "pinned-resident",
        "pinned-tier",
        "streamed-bytes",
        "bound",
        "gap",
        "runs",
    ],
)
def test_every_claim_that_the_inputs_contradict_is_found(
    change: Callable[[Plan], Plan], problem: tuple[str, str]
) -> None:
    assert check(change(PLAN)) == (problem,)


def test_a_device_visited_twice() -> None:
    found = check(with_block(PLAN, 2, device="node0/gpu1"))
    assert ("$.blocks[3].device", "node0/gpu0 after a block on a later device") in found


def test_blocks_that_must_stay() -> None:
    found = check(with_run(PLAN, 1, resident_reason=Reason.REPEATED))
    assert found == tuple(
        (f"$.blocks[{index}].residency", "streams, but must stay: repeated")
        for index, block in enumerate(PLAN.blocks)
        if block.residency is not Residency.RESIDENT
    )
    assert len(found) == 6


def test_of_several_pins_the_last_one_counts() -> None:
    pins = (Pin(pattern="head", device="node0/gpu0"), Pin(pattern="he*", device="node0/gpu1"))
    assert check(with_problem(PLAN, pins=pins)) == ()


def test_a_replica_is_part_of_the_weights() -> None:
    """Without the tie, the second device would hold its blocks only."""
    (problem,) = check(replace(PLAN, ties=()))
    assert problem[0] == "$.devices[1].ledger.weights"


def test_a_resident_block_that_the_plan_streams_changes_several_sums() -> None:
    found = check(with_block(PLAN, 2, residency=Residency.STREAM_HOST))
    assert [path for path, _ in found] == [
        "$.devices[0].ledger.weights",
        "$.schedule[0].stream_order",
        "$.summary.streamed_bytes_per_step",
    ]


def test_every_component_but_two_is_checked() -> None:
    """The runtime is outside the budget, and nothing is alive only while loading yet."""
    unchecked = []
    for component in Ledger.__struct_fields__:
        if not check(with_ledger(PLAN, **{component: (0, 0)})):
            unchecked.append(component)
    assert unchecked == ["load_transient", "runtime"]
