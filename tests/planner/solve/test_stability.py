from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, product

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from placement_problems import (
    GIGA,
    MIB,
    PlacementProblem,
    gpus,
    make_chain,
    make_cost,
    make_form,
    placement_problems,
)
from tied_problems import tied_problems

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.deadline import Deadline
from bayplan.planner.solve.ledger import shortages
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.moves import Before
from bayplan.planner.solve.objectives import Placed, Problem, place_for
from bayplan.planner.solve.predict import load_ns
from bayplan.planner.solve.returning import views
from bayplan.planner.solve.stability import MAX_STRETCHES, keep, limits_of, marks_of
from bayplan.planner.solve.task import Task, turned_order
from bayplan.planner.solve.timeline import step_ns
from bayplan.schemas.types import Objective, Residency, SolverStatus


def problem_of(drawn: PlacementProblem, budgets: dict[str, int] | None = None) -> Problem:
    return Problem(
        chain=drawn.chain,
        machine=Machine(drawn.inventory, budgets or drawn.budgets),
        constraints=resolve(drawn.chain, drawn.pins, no_spill=drawn.no_spill),
        objective=drawn.phase,
        generates=True,
        is_auto=drawn.is_auto,
    )


def before_of(answer: Answer) -> Before:
    return Before(choices=answer.choices, num_slots=answer.num_slots)


def moved(task: Task, choices: tuple[Choice, ...], before: Before) -> int:
    return sum(
        task.chain.costs[index].forms[now.form].num_bytes
        for index, (now, then) in enumerate(zip(choices, before.choices, strict=True))
        if now != then
    )


def every_cheaper(task: Task, before: Before, num_bytes: int) -> Iterator[tuple[Choice, ...]]:
    """All choices that are in the devices' order, meet the demands and move fewer bytes than `num_bytes`."""

    def extended(chosen: tuple[Choice, ...]) -> Iterator[tuple[Choice, ...]]:
        index = len(chosen)
        if moved(task, chosen, Before(choices=before.choices[:index], num_slots=())) >= num_bytes:
            return
        if index == len(task.chain):
            yield chosen
            return
        first = chosen[-1].device if chosen else 0
        for device in range(first, len(task.machine.devices)):
            for residency in task.constraints.residencies(task.chain, index):
                for form in task.constraints.forms(task.chain, index):
                    choice = Choice(device=device, residency=residency, form=form)
                    if task.may(index, choice):
                        yield from extended((*chosen, choice))

    yield from extended(())


def is_near(task: Task, answer: Answer, problem: Problem, best: Placed) -> bool:
    """Whether the answer fits and is within 2 % of the best one, and of its kind."""
    limits = limits_of(problem, best)
    if shortages(task, answer) or not limits.devices.issuperset(choice.device for choice in answer.choices):
        return False
    if not limits.can_stream and any(choice.streams for choice in answer.choices):
        return False
    quantized = sum(task.form(index, answer).quantized_bytes for index in range(len(task.chain)))
    if limits.quantized_bytes is not None and quantized > limits.quantized_bytes:
        return False
    time_ns = step_ns(task, answer)
    return time_ns is not None and time_ns * 100 <= best.solution.step_ns * 102


def any_before(data: st.DataObject, task: Task) -> Before:
    """A placement as another model, machine or pin may have had it: whatever comes."""
    devices = st.integers(0, len(task.machine.devices) - 1)
    choices = [
        data.draw(
            st.none()
            | st.builds(
                Choice,
                device=devices,
                residency=st.sampled_from(Residency),
                form=st.integers(0, len(cost.forms) - 1),
            )
        )
        for cost in task.chain.costs
    ]
    slots = [data.draw(st.integers(1, 3)) for _ in task.machine.devices]
    return Before(choices=tuple(choices), num_slots=tuple(slots))


@given(
    placement_problems(max_blocks=5, max_devices=2) | tied_problems(max_blocks=5, max_devices=2), st.data()
)
@settings(max_examples=200, deadline=None)
def test_no_placement_near_the_best_moves_less(drawn: PlacementProblem, data: st.DataObject) -> None:
    percent = data.draw(st.sampled_from((70, 80, 90, 95, 105, 110, 150)))
    changed = data.draw(st.sampled_from(sorted(drawn.budgets)))
    budgets = drawn.budgets | {changed: drawn.budgets[changed] * percent // 100}
    problem = problem_of(drawn, budgets)
    best = place_for(problem)
    if best is None:
        event("infeasible")
        return
    task = best.task
    first = place_for(problem_of(drawn))
    if first is not None and len(first.task.machine.devices) == len(task.machine.devices) and percent != 70:
        before = before_of(first.solution.answer)
    else:
        before = any_before(data, task)
    kept = keep(problem, best, before)
    answer = kept.placed.solution.answer
    assert is_near(task, answer, problem, best)
    assert kept.placed.solution.step_ns == step_ns(task, answer)
    assert kept.placed.solution.lower_bound_ns == best.solution.lower_bound_ns
    assert kept.moved_bytes == moved(task, answer.choices, before)
    event("moved" if kept.moved_bytes else "kept")
    for own in views(task):
        start = 0 if own.turn is None else len(task.chain) - own.turn.num_blocks
        then = msgspec.structs.replace(before, choices=turned_order(before.choices, start))
        for choices in every_cheaper(own, then, kept.moved_bytes):
            straight = turned_order(choices, len(choices) - start)
            for num_slots in product((1, 2, 3), repeat=len(task.machine.devices)):
                assert not is_near(task, Answer(choices=straight, num_slots=num_slots), problem, best)


def gpu_problem(
    sizes: Sequence[int],
    budgets: Sequence[int],
    *,
    objective: Objective = Objective.DECODE,
    is_auto: bool = False,
) -> Problem:
    """Blocks of these mebibytes on accelerators of these budgets; with `is_auto` at half or a quarter too."""
    others = [
        [
            make_form(size * MIB // part, name, quantized_bytes=size * MIB)
            for part, name in ((2, "int8"), (4, "nf4"))
        ]
        for size in sizes
    ]
    costs = [
        make_cost(size * MIB, others=forms if is_auto else ())
        for size, forms in zip(sizes, others, strict=True)
    ]
    chain = make_chain(costs)
    inventory = gpus(len(budgets), rate=GIGA // 2)
    ids = [device.id for device in inventory.devices]
    return Problem(
        chain=chain,
        machine=Machine(inventory, {name: size * MIB for name, size in zip(ids, budgets, strict=True)}),
        constraints=resolve(chain, (), no_spill=False),
        objective=objective,
        generates=True,
        is_auto=is_auto,
    )


def placed(problem: Problem) -> Placed:
    found = place_for(problem)
    assert found is not None
    return found


def with_budgets(problem: Problem, *budgets: int) -> Problem:
    ids = [device.id for device in problem.machine.devices]
    sizes = {name: size * MIB for name, size in zip(ids, budgets, strict=True)}
    return msgspec.structs.replace(problem, machine=Machine(problem.machine.inventory, sizes))


STREAMING = gpu_problem([8] * 24, [60, 60])
AUTO = gpu_problem([8] * 24, [60, 60], is_auto=True)


@pytest.mark.parametrize(
    "problem",
    [
        STREAMING,
        AUTO,
        gpu_problem([8] * 12, [60, 60]),
        msgspec.structs.replace(STREAMING, objective=Objective.LOAD),
        msgspec.structs.replace(STREAMING, objective=Objective.THROUGHPUT),
        msgspec.structs.replace(STREAMING, objective=Objective.PREFILL),
    ],
    ids=("streaming", "auto", "resident", "load", "throughput", "prefill"),
)
def test_the_same_problem_moves_nothing(problem: Problem) -> None:
    best = placed(problem)
    kept = keep(problem, best, before_of(best.solution.answer))
    assert kept.moved_bytes == 0
    assert kept.placed.solution == best.solution
    assert kept.placed.batches_in_flight == best.batches_in_flight


@pytest.mark.parametrize("problem", [STREAMING, AUTO, gpu_problem([8] * 12, [60, 60])])
def test_a_little_more_memory_without_a_gain_moves_nothing(problem: Problem) -> None:
    before = before_of(placed(problem).solution.answer)
    wider = with_budgets(problem, 61, 60)
    best = placed(wider)
    kept = keep(wider, best, before)
    assert (kept.moved_bytes, kept.placed.solution.answer.choices) == (0, before.choices)
    assert kept.placed.solution.lower_bound_ns == best.solution.lower_bound_ns


def test_less_memory_moves_about_what_it_held() -> None:
    """The best placement by itself is another nearly everywhere."""
    before = before_of(placed(STREAMING).solution.answer)
    narrower = with_budgets(STREAMING, 55, 60)
    best = placed(narrower)
    kept = keep(narrower, best, before)
    assert 5 * MIB < kept.moved_bytes <= 16 * MIB
    assert kept.moved_bytes < moved(best.task, best.solution.answer.choices, before)
    assert kept.placed.solution.step_ns * 100 <= best.solution.step_ns * 102


def test_what_fits_now_is_not_streamed_to_move_less() -> None:
    problem = gpu_problem([8] * 12, [40, 40])
    before = before_of(placed(problem).solution.answer)
    assert any(choice is not None and choice.streams for choice in before.choices)
    roomy = with_budgets(problem, 60, 60)
    kept = keep(roomy, placed(roomy), before)
    assert not any(choice.streams for choice in kept.placed.solution.answer.choices)


def test_auto_rounds_hardly_more_to_move_less() -> None:
    before = before_of(placed(AUTO).solution.answer)
    roomy = with_budgets(AUTO, 80, 80)
    best = placed(roomy)
    kept = keep(roomy, best, before)

    def rounded(own: Placed) -> int:
        answer = own.solution.answer
        return sum(own.task.form(index, answer).quantized_bytes for index in range(len(answer.choices)))

    assert rounded(kept.placed) * 100 <= rounded(best) * 102 < rounded(placed(AUTO)) * 100
    assert 0 < kept.moved_bytes <= moved(best.task, best.solution.answer.choices, before)


def test_loading_takes_hardly_longer_to_move_less() -> None:
    problem = msgspec.structs.replace(STREAMING, objective=Objective.LOAD)
    before = before_of(placed(problem).solution.answer)
    narrower = with_budgets(problem, 50, 60)
    best = placed(narrower)
    kept = keep(narrower, best, before)
    task = best.task
    assert load_ns(task, kept.placed.solution.answer) * 100 <= load_ns(task, best.solution.answer) * 102
    assert kept.moved_bytes <= moved(task, best.solution.answer.choices, before)


def test_what_is_not_there_any_more_moves() -> None:
    best = placed(STREAMING)
    answer = best.solution.answer
    before = Before(choices=(None, *answer.choices[1:]), num_slots=answer.num_slots)
    kept = keep(STREAMING, best, before)
    assert kept.placed.solution.answer.choices[1:] == answer.choices[1:]
    assert kept.moved_bytes == 8 * MIB


def test_the_clock_may_end_the_search() -> None:
    before = before_of(placed(STREAMING).solution.answer)
    narrower = with_budgets(STREAMING, 50, 60)
    best = placed(narrower)
    kept = keep(narrower, best, before, Deadline(0.0))
    assert kept.placed.solution.status is SolverStatus.TIME_LIMIT
    assert is_near(best.task, kept.placed.solution.answer, narrower, best)


def test_a_clock_that_does_not_end_the_search_changes_nothing() -> None:
    before = before_of(placed(STREAMING).solution.answer)
    narrower = with_budgets(STREAMING, 50, 60)
    best = placed(narrower)
    assert keep(narrower, best, before, Deadline(1e6)) == keep(narrower, best, before)


@given(st.lists(st.sampled_from(("a", "b", "c")), min_size=1, max_size=60))
def test_blocks_are_told_apart_as_exactly_as_keeps_the_program_small(names: list[str]) -> None:
    known = {
        "a": Choice(device=0),
        "b": Choice(device=0, residency=Residency.STREAM_HOST),
        "c": Choice(device=1),
    }
    choices = tuple(known[name] for name in names)
    marks = marks_of(Before(choices=choices, num_slots=(1, 1)))
    assert all(
        one.device == other.device
        for one, own in zip(choices, marks, strict=True)
        for other, theirs in zip(choices, marks, strict=True)
        if own == theirs
    )
    if len(list(groupby(choices))) <= MAX_STRETCHES:
        assert len(set(marks)) == len(set(choices))
