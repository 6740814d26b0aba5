from __future__ import annotations

import pytest
from brute_force import fastest
from hypothesis import assume, given, settings
from placement_problems import (
    GIGA,
    NO_ACTIVATIONS,
    PlacementProblem,
    gpus,
    make_chain,
    make_cost,
    make_form,
    make_task,
    placement_problems,
)

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.exhaustive import Exhaustive, may_fit
from bayplan.planner.solve.fitting import leanest_answer
from bayplan.planner.solve.ledger import shortages
from bayplan.planner.solve.polish import Polisher
from bayplan.planner.solve.task import Task
from bayplan.planner.solve.timeline import step_ns
from bayplan.schemas.types import Residency

HOST = Residency.STREAM_HOST


def all_streamed(count: int) -> Answer:
    return Answer(choices=(Choice(device=0, residency=HOST),) * count, num_slots=(1,))


def search(task: Task, **limits: int) -> Exhaustive:
    devices = frozenset(range(len(task.machine.devices)))
    return Exhaustive(task, Polisher(task, 10**6), devices, can_stream=True, **limits)


def tight(count: int, room: int) -> Task:
    budgets = {"node0/gpu0": NO_ACTIVATIONS + 64 * room}
    return make_task(make_chain([64] * count), gpus(1, rate=GIGA // 4), budgets)


def test_the_best_of_all() -> None:
    """Through one slot the second block travels while three others compute; any three may stay."""
    found, is_proven = search(tight(4, 4)).best(all_streamed(4))
    assert is_proven
    assert found.choices == (Choice(device=0),) * 4
    found, is_proven = search(tight(5, 4)).best(all_streamed(5))
    assert is_proven
    assert step_ns(tight(5, 4), found) == 2 * (64 + 256)


def test_where_all_cannot_be_looked_at_nothing_is_proven() -> None:
    found, is_proven = search(tight(8, 4), max_steps=5).best(all_streamed(8))
    assert not is_proven
    assert found == all_streamed(8)


@pytest.mark.parametrize("can_stream", [True, False])
def test_only_what_is_asked_for(can_stream: bool) -> None:
    task = tight(3, 2)
    own = Exhaustive(task, Polisher(task, 1000), frozenset({0}), can_stream=can_stream)
    found, is_proven = own.best(all_streamed(3))
    assert is_proven
    assert any(choice.streams for choice in found.choices)
    assert (found == all_streamed(3)) is not can_stream


def test_only_some_devices() -> None:
    task = make_task(make_chain([64] * 2), gpus(2))
    start = Answer(choices=(Choice(device=0, residency=HOST),) * 2, num_slots=(1, 1))
    for devices, expected in ((frozenset({1}), 1), (frozenset({0, 1}), 0)):
        found, _ = Exhaustive(task, Polisher(task, 1000), devices, can_stream=False).best(start)
        assert {choice.device for choice in found.choices} == {expected}


def test_of_equally_fast_ones_the_fewest_rounded_bytes() -> None:
    cost = make_cost(64, others=[make_form(16, "nf4", quantized_bytes=64)])
    task = make_task(make_chain([cost] * 3), gpus(1), {"node0/gpu0": NO_ACTIVATIONS + 64 + 64 + 16})
    start = Answer(choices=(Choice(device=0, form=1),) * 3, num_slots=(1,))
    found, is_proven = search(task).best(start)
    assert is_proven
    assert sorted(choice.form for choice in found.choices) == [0, 0, 1]


@given(placement_problems(max_blocks=4))
@settings(max_examples=100, deadline=None)
def test_against_trying_everything(problem: PlacementProblem) -> None:
    task = problem.task()
    assume(task.machine.devices)
    start = leanest_answer(task)
    assume(start is not None and not shortages(task, start) and step_ns(task, start) is not None)
    assert start is not None
    found, is_proven = search(task).best(start)
    best = fastest(problem, can_stream=True)
    assert best is not None
    found_ns = step_ns(task, found)
    assert found_ns is not None
    assert found_ns >= best.step_ns
    assert found_ns == best.step_ns or not is_proven


@given(placement_problems(max_blocks=5))
@settings(max_examples=100, deadline=None)
def test_what_fits_may_fit_from_its_first_block_on(problem: PlacementProblem) -> None:
    task = problem.task()
    assume(task.machine.devices)
    answer = leanest_answer(task)
    assume(answer is not None)
    assert answer is not None
    assert all(may_fit(task, answer.choices[:count]) for count in range(len(answer.choices) + 1))


def test_what_does_not_fit_ends_a_branch() -> None:
    task = tight(4, 2)
    stay, move = Choice(device=0), Choice(device=0, residency=HOST)
    assert may_fit(task, [stay, stay])
    assert may_fit(task, [stay, move])
    assert not may_fit(task, [stay, stay, move])
