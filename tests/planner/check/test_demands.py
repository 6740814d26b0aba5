from __future__ import annotations

from collections.abc import Callable

import pytest
from changed_plans import replace, with_block, with_form, with_problem, with_run
from planned import INVENTORY, MIB, make_graph, make_inputs, place, plan_resident, plan_streamed

from bayplan.planner.check import check
from bayplan.planner.check.basis import read_placement
from bayplan.planner.check.demands import demand_problems
from bayplan.schemas.plan import Format, Plan
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Objective, Reason, Residency

PLAN, RESIDENT = plan_streamed(), plan_resident()
STREAMED = [index for index, block in enumerate(PLAN.blocks) if block.residency is not Residency.RESIDENT]
FIRST = STREAMED[0]
FIRST_ID = PLAN.blocks[FIRST].id
SECOND_GPU = next(index for index, block in enumerate(PLAN.blocks) if block.device == "node0/gpu1")


def demands(plan: Plan) -> list[tuple[str, str]]:
    placement, problems = read_placement(plan)
    assert placement is not None, problems
    return list(demand_problems(placement))


def with_pins(*pins: Pin) -> Plan:
    return with_problem(PLAN, pins=pins)


def with_two_forms(plan: Plan) -> Plan:
    """Let the layers have a second form."""
    run = plan.problem.runs[1]
    other = replace(run.forms[0], format="nf4")
    plan = replace(plan, formats={**plan.formats, "nf4": Format(kind="nf4")})
    return with_problem(with_run(plan, 1, forms=(run.forms[0], other)), formats=("bf16", "nf4"))


@pytest.mark.parametrize("plan", [PLAN, RESIDENT], ids=["streamed", "resident"])
def test_a_sound_plan_meets_all_demands(plan: Plan) -> None:
    assert demands(plan) == []


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (
            with_block(PLAN, SECOND_GPU - 2, device="node0/gpu1"),
            (f"$.blocks[{SECOND_GPU - 1}].device", "node0/gpu0 after a block on a later device"),
        ),
        (
            with_problem(PLAN, formats=("bf16", "int8")),
            ("$.problem.formats[1]", "int8 is not among the plan's formats"),
        ),
        (
            with_form(PLAN, 1, num_bytes=4 * MIB),
            (
                "$.problem.runs[1].forms[0].num_bytes",
                f"{4 * MIB} is more than its parameters and buffers aligned",
            ),
        ),
        (
            with_block(PLAN, 0, num_bytes=7),
            ("$.blocks[0].num_bytes", f"7, but the block needs {4 * MIB}"),
        ),
        (with_block(PLAN, 1, kv_bytes=7), ("$.blocks[1].kv_bytes", "7, but the block needs 65536")),
        (with_problem(PLAN, no_spill=True), ("$.problem.no_spill", f"true, but {FIRST_ID} streams")),
        (
            with_pins(Pin(pattern="he?d2", device="node0/gpu0")),
            ("$.problem.pins[0].pattern", "he?d2 matches no block"),
        ),
        (
            with_pins(Pin(pattern="hea", device="node0/gpu0")),
            ("$.problem.pins[0].pattern", "hea matches no block"),
        ),
        (
            with_pins(Pin(pattern="head", device="node0/gpu0")),
            ("$.blocks[10].device", "node0/gpu1, but pinned to node0/gpu0"),
        ),
        (
            with_pins(Pin(pattern="hea[d]", device="node0/gpu1"), Pin(pattern="he*", device="node0/gpu0")),
            ("$.blocks[10].device", "node0/gpu1, but pinned to node0/gpu0"),
        ),
        (
            with_pins(Pin(pattern=FIRST_ID, residency=Residency.RESIDENT)),
            (f"$.blocks[{FIRST}].residency", "stream-host, but pinned to resident"),
        ),
        (
            with_pins(Pin(pattern=FIRST_ID, residency=Residency.STREAM_DISK)),
            (f"$.blocks[{FIRST}].residency", "stream-host, but pinned to stream-disk"),
        ),
        (
            with_problem(with_two_forms(PLAN), pins=(Pin(pattern="model.layers.3", format="nf4"),)),
            ("$.blocks[4].format", "bf16, but pinned to nf4"),
        ),
    ],
    ids=[
        "order",
        "formats",
        "form-bytes",
        "bytes",
        "cache",
        "no-spill",
        "no-match",
        "no-exact-match",
        "device",
        "device-last",
        "resident",
        "tier",
        "format",
    ],
)
def test_every_demand_that_is_not_met_is_found(plan: Plan, problem: tuple[str, str]) -> None:
    assert problem in demands(plan)


def come_back(**fields: object) -> Plan:
    """A plan whose head is on the device of the embedding whose weights it uses."""
    graph = make_graph(wide_bytes=1_024)
    budgets = {"node0/gpu0": 14 * MIB, "node0/gpu1": 14 * MIB}
    return place(graph, make_inputs(graph, INVENTORY, budgets, **fields))[1]


def test_a_head_may_come_back_to_what_it_is_tied_to() -> None:
    plan = come_back()
    assert [block.device for block in plan.blocks[-2:]] == ["node0/gpu1", "node0/gpu0"]
    assert plan.ties[0].policy == "co-located"
    assert check(plan) == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda plan: replace(plan, ties=()),
            ("$.blocks[10].device", "node0/gpu0 after a block on a later device"),
        ),
        (
            lambda plan: with_block(plan, 9, device="node0/gpu0"),
            ("$.blocks[9].device", "node0/gpu0 after a block on a later device"),
        ),
        (
            lambda plan: with_block(plan, 0, device="node0/gpu1"),
            ("$.blocks[10].device", "node0/gpu0 after a block on a later device"),
        ),
        (
            lambda plan: with_block(plan, 10, residency=Residency.STREAM_HOST),
            ("$.blocks[10].residency", "streams, but has come back to node0/gpu0"),
        ),
    ],
    ids=["not tied", "more than the head", "not where the storage is", "streams"],
)
def test_nothing_else_comes_back(change: Callable[[Plan], Plan], problem: tuple[str, str]) -> None:
    assert problem in demands(change(come_back()))


def test_a_form_that_blocks_may_not_be_in() -> None:
    plan = with_problem(with_two_forms(PLAN), formats=("bf16",))
    assert demands(plan) == [("$.problem.runs[1].forms[1].format", "nf4 is none that blocks may be in")]


def test_blocks_that_must_stay() -> None:
    found = demands(with_run(PLAN, 1, resident_reason=Reason.REPEATED))
    assert found == [
        (f"$.blocks[{index}].residency", "streams, but must stay: repeated") for index in STREAMED
    ]


def test_of_several_pins_the_last_one_that_says_something_counts() -> None:
    pins = (
        Pin(pattern="head", device="node0/gpu0"),
        Pin(pattern="he*", device="node0/gpu1"),
        Pin(pattern="head", residency=Residency.RESIDENT),
    )
    assert demands(with_pins(*pins)) == []


def test_a_block_with_one_form_is_pinned_to_no_other() -> None:
    assert demands(with_pins(Pin(pattern="*", format="nf4"))) == []


@pytest.mark.parametrize(
    ("plan", "index", "reason", "text"),
    [
        (PLAN, 0, Reason.PINNED, "pinned, but no pin is on it"),
        (PLAN, FIRST, Reason.KEPT, "kept, but it streams"),
        (PLAN, 0, Reason.CAPACITY, "capacity, but it is resident"),
        (PLAN, 0, Reason.FITS, "fits, but something streams"),
        (PLAN, 0, Reason.REPEATED, "repeated, but its run says nothing of that"),
        (RESIDENT, 0, Reason.KEPT, "kept, but nothing streams"),
        (RESIDENT, 0, Reason.TOO_LARGE, "too-large, but nothing streams"),
    ],
)
def test_reasons_that_are_untrue(plan: Plan, index: int, reason: Reason, text: str) -> None:
    assert demands(with_block(plan, index, reason=reason)) == [(f"$.blocks[{index}].reason", text)]


def test_a_pinned_block_may_say_so() -> None:
    plan = with_pins(Pin(pattern="head", device="node0/gpu1"))
    assert demands(with_block(plan, 10, reason=Reason.PINNED)) == []


def spilled() -> Plan:
    """All resident blocks of the streamed plan, with a budget in which one device holds everything."""
    return with_problem(PLAN, max_memory_bytes={"node0/gpu0": 14 * MIB, "node0/gpu1": 64 * MIB})


def test_what_one_device_holds_is_not_streamed() -> None:
    assert demands(spilled()) == [
        ("$.blocks", f"{FIRST_ID} does not stay, but node0/gpu1 alone holds everything")
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: with_problem(plan, pins=(Pin(pattern="head", device="node0/gpu1"),)),
        lambda plan: with_problem(plan, objective=Objective.LOAD),
        lambda plan: with_problem(plan, objective=Objective.THROUGHPUT),
        with_two_forms,
    ],
    ids=["pinned", "load", "throughput", "forms"],
)
def test_with_other_demands_it_may_be(change: Callable[[Plan], Plan]) -> None:
    assert demands(change(spilled())) == []


@pytest.mark.parametrize("objective", Objective)
def test_pins_and_objectives_together(objective: Objective) -> None:
    graph = make_graph()
    pins = (
        Pin(pattern="model.norm", device="node0/gpu1"),
        Pin(pattern="*.0", residency=Residency.STREAM_DISK),
    )
    budgets = {"node0/gpu0": 14 * MIB, "node0/gpu1": 14 * MIB}
    _, plan = place(graph, make_inputs(graph, INVENTORY, budgets, pins=pins, objective=objective))
    assert check(plan) == ()
    assert plan.blocks[1].residency is Residency.STREAM_DISK
