from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from planned import plan_streamed
from sound_plans import sound_plans

from bayplan.planner.replan import answer_from_plan, problem_from_plan
from bayplan.planner.solve.answer import Choice
from bayplan.planner.solve.objectives import Problem, place_for
from bayplan.planner.solve_again import Again, value_ns, value_of
from bayplan.schemas.plan import Plan
from bayplan.schemas.types import Objective


@given(sound_plans(max_blocks=4))
@settings(max_examples=40)
def test_a_placement_is_worth_what_the_search_says(plan: Plan) -> None:
    problem = problem_from_plan(plan)
    placed, answer = place_for(problem), answer_from_plan(plan, problem)
    assert placed is not None
    assert answer is not None
    is_load = plan.problem.objective is Objective.LOAD
    expected = plan.summary.predicted_load_ns if is_load else plan.summary.predicted_step_ns
    assert value_ns(problem, placed) == expected
    assert value_of(problem, answer, plan.workload.batches_in_flight) == expected


def test_what_does_not_fit_is_worth_nothing() -> None:
    plan = plan_streamed()
    problem = problem_from_plan(plan)
    answer = answer_from_plan(plan, problem)
    assert answer is not None
    resident = msgspec.structs.replace(answer, choices=(Choice(device=0),) * len(answer.choices))
    assert value_of(problem, resident, 1) is None


def again(value: int = 1_000_000) -> Again:
    return Again(problem_from_plan(plan_streamed()), value)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """What the next searches give: times of a step, or nothing."""
    times: list[int | None] = []

    def place(problem: Problem) -> object:
        time_ns = times.pop(0)
        placed = place_for(problem_from_plan(plan_streamed()))
        assert placed is not None
        solution = msgspec.structs.replace(placed.solution, step_ns=time_ns or 0)
        return None if time_ns is None else msgspec.structs.replace(placed, solution=solution)

    monkeypatch.setattr("bayplan.planner.solve_again.place_for", place)
    return times


def test_changes_have_a_sign(searches: list[int | None]) -> None:
    searches += [1_400_000, 600_000, None]
    own = again()
    assert own.change_ns(own.problem) == 400_000
    assert own.change_ns(own.problem) == -400_000
    assert own.change_ns(own.problem) is None


def test_a_loss_within_the_search_s_gap_is_no_loss(searches: list[int | None]) -> None:
    searches += [1_000_400, 1_000_600, 999_700, 1_000_000]
    own = again()
    assert [own.gain_ns(own.problem) for _ in range(4)] == [0, -600, 300, 0]
    assert [own.is_more(ns) for ns in (0, 500, 501)] == [False, False, True]


def test_variations_are_not_ended_by_a_clock() -> None:
    problem = msgspec.structs.replace(problem_from_plan(plan_streamed()), time_limit_s=0.1)
    assert Again(problem, 5).problem.time_limit_s is None
