from __future__ import annotations

import itertools

import msgspec
import pytest
from placement_problems import (
    GIGA,
    MIB,
    gpus,
    make_chain,
    make_cost,
    make_device,
    make_form,
    make_inventory,
    make_link,
    make_task,
)

from bayplan.planner.solve.answer import Answer
from bayplan.planner.solve.begin import filled, lean_answers, shares
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.deadline import Deadline
from bayplan.planner.solve.ledger import shortages
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.objectives import Placed, Problem, place_for
from bayplan.planner.solve.task import Task
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import BoundClass, Objective, Residency, SolverStatus

CHAIN = make_chain([8 * MIB] * 20)
FORMS = make_chain(
    [make_cost(8 * MIB, others=[make_form(4 * MIB, "int8", quantized_bytes=8 * MIB)]) for _ in range(20)]
)


def problem(chain_forms: bool, budget: int) -> Problem:
    inventory = gpus(2, rate=GIGA // 2)
    chain = FORMS if chain_forms else CHAIN
    return Problem(
        chain=chain,
        machine=Machine(inventory, {device.id: budget * MIB for device in inventory.devices}),
        constraints=resolve(chain, (), no_spill=False),
        objective=Objective.DECODE,
        generates=True,
    )


def placed(own: Problem, limit_s: float | None) -> Placed:
    found = place_for(msgspec.structs.replace(own, time_limit_s=limit_s))
    assert found is not None
    return found


def working(task: Task, devices: set[int], *, can_stream: bool = True) -> list[Answer]:
    answers = lean_answers(task, frozenset(devices), can_stream=can_stream)
    return [answer for answer in answers if not shortages(task, answer)]


def test_what_takes_the_least_memory_fits() -> None:
    task = make_task(CHAIN, gpus(2), {"node0/gpu0": 24 * MIB, "node0/gpu1": 0})
    assert working(task, {0})
    assert working(task, {0}, can_stream=False) == []


def test_devices_that_may_not_be_used_are_not() -> None:
    inventory = make_inventory([make_device("gpu0"), make_device("cpu")], [make_link("node0/gpu0")])
    task = make_task(CHAIN, inventory, {"node0/gpu0": 24 * MIB})
    assert working(task, {0}, can_stream=False) == []
    (answer, *_) = working(task, {0, 1}, can_stream=False)
    assert {choice.device for choice in answer.choices} == {1}


def test_shares_are_as_large_as_budgets() -> None:
    task = make_task(CHAIN, gpus(2), {"node0/gpu0": 30 * MIB, "node0/gpu1": 90 * MIB})
    answer = shares(task, frozenset({0, 1}), Residency.STREAM_DISK)
    assert answer is not None
    assert [choice.device for choice in answer.choices] == [0] * 5 + [1] * 15
    assert {choice.residency for choice in answer.choices} == {Residency.STREAM_DISK}


def test_shares_that_a_pin_forbids() -> None:
    task = make_task(CHAIN, gpus(2), pins=(Pin(pattern="layers.19", device="node0/gpu0"),))
    assert shares(task, frozenset({0, 1}), Residency.STREAM_DISK) is None


def test_shares_are_on_accelerators_if_there_are_any() -> None:
    inventory = make_inventory([make_device("gpu0"), make_device("cpu")], [make_link("node0/gpu0")])
    answer = shares(make_task(CHAIN, inventory), frozenset({0, 1}), Residency.STREAM_HOST)
    assert answer is not None
    assert {choice.device for choice in answer.choices} == {0}


def test_what_has_room_stays_evenly_spread() -> None:
    """A slot and five blocks of twenty."""
    task = make_task(CHAIN, gpus(1), {"node0/gpu0": 50 * MIB})
    streamed = shares(task, frozenset({0}), Residency.STREAM_HOST)
    assert streamed is not None
    answer = filled(task, streamed)
    resident = [index for index, choice in enumerate(answer.choices) if not choice.streams]
    assert shortages(task, answer) == ()
    assert len(resident) == 5
    assert all(2 <= after - before <= 6 for before, after in itertools.pairwise(resident))


@pytest.mark.parametrize("chain_forms", [False, True])
def test_a_search_without_time_gives_a_plan_that_works_and_says_so(chain_forms: bool) -> None:
    own = problem(chain_forms, 50)
    hurried, best = placed(own, 1e-9).solution, placed(own, None).solution
    assert hurried.status is SolverStatus.TIME_LIMIT
    assert shortages(own.task(), hurried.answer) == ()
    assert hurried.lower_bound_ns <= best.step_ns <= hurried.step_ns
    assert hurried.bound_class is best.bound_class
    expected = BoundClass.CONTIGUOUS_RESIDENT if chain_forms else BoundClass.CONTIGUOUS
    assert best.bound_class is expected


@pytest.mark.parametrize("chain_forms", [False, True])
def test_a_limit_that_is_not_reached_changes_nothing(chain_forms: bool) -> None:
    own = problem(chain_forms, 50)
    assert placed(own, 1e6).solution == placed(own, None).solution


def test_one_limit_holds_for_all_parts_of_a_search() -> None:
    deadline = Deadline(0.0)
    own = msgspec.structs.replace(problem(False, 50), objective=Objective.THROUGHPUT)
    found = place_for(own, deadline)
    assert found is not None
    assert found.solution.status is SolverStatus.TIME_LIMIT
    assert deadline.has_ended_search
