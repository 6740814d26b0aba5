from __future__ import annotations

import pytest
from changed_plans import replace, with_problem, with_summary
from planned import plan_resident, plan_streamed

from bayplan.planner.check.basis import read_placement
from bayplan.planner.check.summary import summary_problems
from bayplan.schemas.plan import Plan
from bayplan.schemas.types import BoundClass, Objective, SolverStatus

PLAN, RESIDENT = plan_streamed(), plan_resident()
SUMMARY = PLAN.summary
STEP, BOUND = RESIDENT.summary.predicted_step_ns, PLAN.summary.lower_bound_ns


def problems_of(plan: Plan) -> list[tuple[str, str]]:
    placement, problems = read_placement(plan)
    assert placement is not None, problems
    return list(summary_problems(placement))


@pytest.mark.parametrize("plan", [PLAN, RESIDENT], ids=["streamed", "resident"])
def test_what_the_planner_makes_is_sound(plan: Plan) -> None:
    assert problems_of(plan) == []


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("resident_blocks", 1),
        ("streamed_blocks", -1),
        ("resident_bytes", 1),
        ("resident_bytes", -1),
        ("streamed_bytes_per_step", 1),
        ("streamed_bytes_per_step", -1),
    ],
)
def test_every_sum_counts(field: str, change: int) -> None:
    there = getattr(SUMMARY, field)
    assert problems_of(with_summary(PLAN, **{field: there + change})) == [
        (f"$.summary.{field}", f"{there + change}, but the plan gives {there}")
    ]


@pytest.mark.parametrize("field", ["predicted_load_ns", "predicted_first_output_ns", "predicted_decode_ns"])
@pytest.mark.parametrize("change", [-1, 1])
def test_every_prediction_counts(field: str, change: int) -> None:
    there = getattr(SUMMARY, field)
    assert problems_of(with_summary(PLAN, **{field: there + change})) == [
        (f"$.summary.{field}", f"{there + change}, but playing the plan gives {there}")
    ]


@pytest.mark.parametrize("change", [-1, 1])
def test_the_step_counts(change: int) -> None:
    there = SUMMARY.predicted_step_ns
    assert problems_of(with_summary(PLAN, predicted_step_ns=there + change))[0] == (
        "$.summary.predicted_step_ns",
        f"{there + change}, but playing the plan gives {there}",
    )


def test_a_model_that_does_not_generate_has_no_decode_time() -> None:
    encoder = replace(PLAN, model=replace(PLAN.model, generates=False))
    assert (
        "$.summary.predicted_decode_ns",
        f"{SUMMARY.predicted_decode_ns}, but playing the plan gives None",
    ) in (problems_of(encoder))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"objective": Objective.PREFILL}, ("objective", "prefill, but the plan gives decode")),
        ({"reproducible": False}, ("reproducible", "False, but the plan gives True")),
        ({"solver_status": SolverStatus.TIME_LIMIT}, ("reproducible", "True, but the plan gives False")),
        (
            {"gap_ppm": SUMMARY.gap_ppm + 1},
            (
                "gap_ppm",
                f"{SUMMARY.gap_ppm + 1}, but {BOUND} and {SUMMARY.predicted_step_ns} give {SUMMARY.gap_ppm}",
            ),
        ),
        (
            {"lower_bound_ns": SUMMARY.predicted_step_ns + 1},
            (
                "lower_bound_ns",
                f"{SUMMARY.predicted_step_ns + 1} is above the prediction {SUMMARY.predicted_step_ns}",
            ),
        ),
        (
            {"bound_class": BoundClass.CONTIGUOUS_RESIDENT},
            ("bound_class", "contiguous-resident, but something streams"),
        ),
        (
            {"moved_bytes": 2**40},
            ("moved_bytes", f"{2**40}, but all blocks have {sum(block.num_bytes for block in PLAN.blocks)}"),
        ),
    ],
    ids=["objective", "reproducible", "status", "gap", "bound", "class", "moved"],
)
def test_every_claim_counts(fields: dict[str, object], problem: tuple[str, str]) -> None:
    field, text = problem
    assert (f"$.summary.{field}", text) in problems_of(with_summary(PLAN, **fields))


def test_where_loading_comes_first_the_bound_is_of_loading() -> None:
    plan = with_problem(with_summary(PLAN, objective=Objective.LOAD), objective=Objective.LOAD)
    load_ns = SUMMARY.predicted_load_ns
    assert problems_of(with_summary(plan, lower_bound_ns=load_ns, gap_ppm=0)) == []
    assert problems_of(with_summary(plan, lower_bound_ns=load_ns + 1)) == [
        ("$.summary.lower_bound_ns", f"{load_ns + 1} is above the prediction {load_ns}")
    ]


def test_a_step_of_no_time_has_no_gap() -> None:
    nothing = with_summary(RESIDENT, predicted_step_ns=0, lower_bound_ns=0)
    assert [path for path, _ in problems_of(nothing)] == ["$.summary.predicted_step_ns"]


def low_bound(plan: Plan) -> Plan:
    return with_summary(plan, lower_bound_ns=STEP // 2, gap_ppm=-(-(STEP - STEP // 2) * 10**6 // STEP))


EXACT = (
    "$.summary.lower_bound_ns",
    f"{STEP // 2}, but where all stays the search is exact, and the step takes {STEP}",
)


def test_where_all_stays_the_bound_is_the_step() -> None:
    assert problems_of(low_bound(RESIDENT)) == [EXACT]


def two_forms() -> Plan:
    run = RESIDENT.problem.runs[1]
    return low_bound(
        with_problem(
            RESIDENT,
            runs=(
                RESIDENT.problem.runs[0],
                replace(run, forms=(run.forms[0], replace(run.forms[0], format="nf4"))),
                *RESIDENT.problem.runs[2:],
            ),
        )
    )


def in_host_memory(count: int) -> Plan:
    devices = tuple(
        replace(device, shares_host_memory=index < count)
        for index, device in enumerate(RESIDENT.inventory.devices)
    )
    return low_bound(replace(RESIDENT, inventory=replace(RESIDENT.inventory, devices=devices)))


def for_objective(objective: Objective) -> Plan:
    return low_bound(with_problem(with_summary(RESIDENT, objective=objective), objective=objective))


@pytest.mark.parametrize(
    ("plan", "is_exact"),
    [
        (low_bound(with_summary(RESIDENT, bound_class=BoundClass.CONTIGUOUS)), False),
        (low_bound(with_summary(RESIDENT, moved_bytes=0)), False),
        (two_forms(), False),
        (in_host_memory(1), True),
        (in_host_memory(2), False),
        (for_objective(Objective.BALANCED), False),
        (for_objective(Objective.SEQUENTIAL), False),
        (for_objective(Objective.THROUGHPUT), False),
    ],
    ids=["class", "moved", "forms", "one-in-host", "two-in-host", "balanced", "sequential", "throughput"],
)
def test_elsewhere_the_bound_may_be_lower(plan: Plan, is_exact: bool) -> None:
    assert (EXACT in problems_of(plan)) == is_exact
