from __future__ import annotations

from itertools import count

import msgspec
import pytest
from brute_force import fastest
from expert_problems import expert_tasks, fast_host_tasks, fastest_ns, mixture
from hypothesis import assume, event, given, settings
from placement_problems import (
    GIGA,
    MIB,
    NO_ACTIVATIONS,
    PlacementProblem,
    gpus,
    make_chain,
    make_cost,
    make_form,
    make_task,
    placement_problems,
)

from bayplan.planner.solve import stages
from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.chain import ChainTie
from bayplan.planner.solve.deadline import Deadline
from bayplan.planner.solve.ledger import shortages
from bayplan.planner.solve.polish import Polisher
from bayplan.planner.solve.returning import turned, views
from bayplan.planner.solve.stage_tables import stage_tables
from bayplan.planner.solve.stages import Staged, StageSearch, best_stages
from bayplan.planner.solve.task import Task
from bayplan.planner.solve.timeline import step_ns
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Objective, Residency

LAYER = 64 * MIB
"""And as many nanoseconds, since a byte takes one."""


def staged(task: Task, limit_ns: int | None = None, deadline: Deadline | None = None) -> Staged | None:
    tables = stage_tables(task, frozenset(range(len(task.machine.devices))))
    assert tables is not None
    return StageSearch(task, tables, deadline, limit_ns=limit_ns).best()


def can_stage(task: Task) -> bool:
    return stage_tables(task, frozenset(range(len(task.machine.devices)))) is not None


def layers(count: int, *rooms: float, rate: int = GIGA // 4, **fields: object) -> Task:
    """Equal blocks and accelerators that have room for some of them each."""
    budgets = {f"node0/gpu{number}": NO_ACTIVATIONS + int(room * LAYER) for number, room in enumerate(rooms)}
    return make_task(make_chain([LAYER] * count), gpus(len(rooms), rate=rate), budgets, **fields)


def word(found: Staged | None) -> str:
    """Device and residency of each block."""
    assert found is not None
    assert found.answer is not None
    letters = {Residency.RESIDENT: "s", Residency.STREAM_HOST: "h", Residency.STREAM_DISK: "d"}
    return " ".join(f"{choice.device}{letters[choice.residency]}" for choice in found.answer.choices)


@given(placement_problems())
@settings(max_examples=150, deadline=None)
def test_no_placement_is_faster_than_the_bound(problem: PlacementProblem) -> None:
    task = problem.task()
    assume(task.machine.devices and can_stage(task))
    reference = fastest(problem, can_stream=True)
    bounds = [found.lower_bound_ns for view in views(task) if (found := staged(view)) is not None]
    event(f"placed: {reference is not None}, turned: {len(bounds) > 1}")
    if reference is not None:
        assert min(bounds) <= reference.step_ns


@given(placement_problems())
@settings(max_examples=150, deadline=None)
def test_what_attains_the_bound_fits_every_device(problem: PlacementProblem) -> None:
    task = problem.task()
    assume(task.machine.devices and can_stage(task))
    found = staged(task)
    assume(found is not None and found.answer is not None)
    assert found is not None
    assert found.answer is not None
    assert all(task.may(index, choice) for index, choice in enumerate(found.answer.choices))
    devices = {device.id for device in task.machine.devices}
    assert not devices & {name for name, _ in shortages(task, found.answer)}
    step = step_ns(task, found.answer)
    assert step is not None
    event(f"attained: {step == found.lower_bound_ns}")
    assert step >= found.lower_bound_ns


@given(placement_problems())
@settings(max_examples=100, deadline=None)
def test_with_a_limit_nothing_else_is_found_than_without_where_it_is_kept(problem: PlacementProblem) -> None:
    task = problem.task()
    assume(task.machine.devices and can_stage(task))
    free = staged(task)
    if free is None:
        limited = staged(task, limit_ns=10**9)
        assert limited is not None
        assert limited.answer is None
        return
    least = free.lower_bound_ns
    assert staged(task, limit_ns=least + 7) == free
    assert staged(task, limit_ns=least) == free
    assert staged(task, limit_ns=least - 1) == Staged(lower_bound_ns=least, answer=None)


def test_the_sum_of_two_windows_is_attained() -> None:
    """Each of two devices computes four layers and streams two, one of them in its window."""
    task = layers(8, 3, 3)
    found = staged(task)
    assert found is not None
    assert found.answer is not None
    assert found.lower_bound_ns == 2 * (LAYER + 4 * LAYER + LAYER) == step_ns(task, found.answer)
    assert word(found) == "0h 0s 0s 0h 1h 1s 1s 1h"


def test_what_streams_is_spaced_evenly_where_that_is_as_fast() -> None:
    """Where transfers are hidden, any two layers but neighbours could stream."""
    task = layers(7, 6, rate=4 * GIGA)
    assert word(staged(task)) != "0s 0h 0s 0s 0s 0h 0s"
    found = best_stages(task, frozenset({0}), Polisher(task, 100))
    assert word(found) == "0s 0h 0s 0s 0s 0h 0s"
    assert found is not None
    assert found.lower_bound_ns == 7 * LAYER


def test_a_placement_that_does_not_work_is_a_bound_only() -> None:
    """Both devices wait in host memory that holds the blocks of one."""
    task = layers(8, 3, 3)
    small = msgspec.structs.replace(task.machine.inventory.nodes[0], host_memory_bytes=2 * LAYER)
    inventory = msgspec.structs.replace(task.machine.inventory, nodes=(small,))
    budgets = {device.id: NO_ACTIVATIONS + 3 * LAYER for device in inventory.devices}
    tight = make_task(task.chain, inventory, budgets)
    found = best_stages(tight, frozenset({0, 1}), Polisher(tight, 100))
    assert found == Staged(lower_bound_ns=12 * LAYER, answer=None)


def test_nothing_fits() -> None:
    task = layers(4, 0.5, 0.5)
    assert staged(task) is None
    assert best_stages(task, frozenset({0, 1}), Polisher(task, 100)) is None


def test_a_limit_that_nothing_keeps_is_a_bound() -> None:
    task = layers(8, 3, 3)
    assert staged(task, limit_ns=10 * LAYER) == Staged(lower_bound_ns=10 * LAYER + 1, answer=None)


def test_without_time_nothing_is_known() -> None:
    deadline = Deadline(0.0)
    assert staged(layers(8, 3, 3), deadline=deadline) == Staged(lower_bound_ns=0, answer=None)
    assert deadline.has_ended_search


def of_three_sizes() -> Task:
    """Bounds of windows take the larger blocks for a fraction of a transfer, until they are worked out."""
    costs = [make_cost(size * MIB) for size in (40, 64, 48, 64, 40, 64, 48, 64)]
    budgets = {f"node0/gpu{number}": NO_ACTIVATIONS + 170 * MIB for number in range(2)}
    return make_task(make_chain(costs), gpus(2, rate=GIGA // 4), budgets)


def unequal(num_blocks: int) -> Task:
    """Blocks of as many sizes, half of which an accelerator has room for: no two ways to stream are alike."""
    sizes = [10**6 + 7919 * index**2 % 524_287 for index in range(num_blocks)]
    assert len(set(sizes)) == num_blocks
    costs = [make_cost(size, decode_read_bytes=size >> index % 3) for index, size in enumerate(sizes)]
    budgets = {"node0/gpu0": NO_ACTIVATIONS + sum(sizes) // 2}
    return make_task(make_chain(costs), gpus(1, rate=GIGA // 4), budgets)


def counted(task: Task, deadline: Deadline | None = None) -> tuple[Staged, int]:
    """Return what was found, and how many states of windows were looked at."""
    tables = stage_tables(task, frozenset({0}))
    assert tables is not None
    search = StageSearch(task, tables, deadline)
    found = search.best()
    assert found is not None
    return found, search.num_states


@pytest.mark.parametrize("max_states", [40, 80])
def test_a_search_that_is_cut_off_within_a_window_still_bounds(
    monkeypatch: pytest.MonkeyPatch, max_states: int
) -> None:
    task = of_three_sizes()
    whole = staged(task)
    assert whole is not None
    monkeypatch.setattr(stages, "MAX_STATES", max_states)
    found = staged(task)
    assert found is not None
    assert 0 < found.lower_bound_ns < whole.lower_bound_ns
    assert found.answer is not None
    monkeypatch.setattr(stages, "MAX_STATES", 1)
    assert staged(task) == Staged(lower_bound_ns=found.lower_bound_ns, answer=None)


def test_a_search_with_too_few_rounds_still_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    task = of_three_sizes()
    whole = staged(task)
    assert whole is not None
    monkeypatch.setattr(stages, "MAX_ROUNDS", 1)
    found = staged(task)
    assert found is not None
    assert 0 < found.lower_bound_ns < whole.lower_bound_ns


def test_one_window_of_many_sizes_is_given_up_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its states double with every block: without an end there would be thousands of millions."""
    monkeypatch.setattr(stages, "MAX_STATES", 5000)
    task = unequal(40)
    found, num_states = counted(task)
    assert 5000 < num_states < 5000 + 200  # that of one more group
    assert found.answer is None
    streamed = Answer(choices=(Choice(device=0, residency=Residency.STREAM_HOST),) * 40, num_slots=(2,))
    assert not shortages(task, streamed)
    step = step_ns(task, streamed)
    assert step is not None
    assert 0 < found.lower_bound_ns < step


def test_the_time_limit_ends_a_window_of_many_sizes_within_it() -> None:
    ticks = count()
    deadline = Deadline(100, clock_s=lambda: float(next(ticks)))
    found, num_states = counted(unequal(40), deadline)
    assert deadline.has_ended_search
    assert next(ticks) == 101  # the clock was looked at no more
    assert 0 < num_states < 5000
    assert found.answer is None
    assert found.lower_bound_ns > 0


def test_the_bound_of_a_search_that_was_cut_off_is_below_that_of_a_whole_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = unequal(10)
    whole, num_states = counted(task)
    assert whole.answer is not None
    for part in range(1, 10):
        monkeypatch.setattr(stages, "MAX_STATES", num_states * part // 10)
        found, _ = counted(task)
        assert 0 < found.lower_bound_ns <= whole.lower_bound_ns


def test_the_turned_chain_is_searched_likewise() -> None:
    costs = [make_cost(LAYER, decode_output_bytes=MIB)] * 4
    chain = make_chain(costs, ties=[ChainTie(positions=(0, 3), num_bytes=LAYER)])
    budgets = {"node0/gpu0": NO_ACTIVATIONS + 3 * LAYER, "node0/gpu1": NO_ACTIVATIONS + LAYER}
    task = turned(make_task(chain, gpus(2), budgets, no_spill=True))
    assert task is not None
    found = staged(task)
    assert found is not None
    assert found.lower_bound_ns == 4 * LAYER + 2 * 2 * MIB  # there and back, each over the host
    assert word(found) == "0s 0s 0s 1s"


def test_of_several_forms_nothing_is_known() -> None:
    task = make_task(make_chain([make_cost(64, others=[make_form(32, "int8")])]), gpus(1))
    assert best_stages(task, frozenset({0}), Polisher(task, 100)) == Staged(lower_bound_ns=0, answer=None)


@given(expert_tasks())
@settings(max_examples=60, deadline=None)
def test_no_placement_with_experts_apart_is_faster_than_the_bound(task: Task) -> None:
    found, least_ns = staged(task), fastest_ns(task)
    if least_ns is None:
        return
    assert found is not None
    assert found.lower_bound_ns <= least_ns
    if found.answer is None or shortages(task, found.answer):
        return
    event(f"apart: {found.answer.splits_experts}, attained: {found.lower_bound_ns == least_ns}")
    step = step_ns(task, found.answer)
    assert step is not None
    assert step >= least_ns


@given(fast_host_tasks())
@settings(max_examples=150, deadline=None)
def test_no_placement_is_faster_than_the_bound_where_the_host_is_faster(task: Task) -> None:
    found, least_ns = staged(task), fastest_ns(task)
    if least_ns is None:
        return
    assert found is not None
    event(f"attained: {found.lower_bound_ns == least_ns}")
    assert found.lower_bound_ns <= least_ns


def test_experts_are_apart_where_that_takes_less_than_streaming() -> None:
    """Each of two devices lacks 24 MiB for its two blocks, and 40 for what is on its way to caches."""
    budgets = {f"node0/gpu{number}": NO_ACTIVATIONS + (2 * 72 - 24) * MIB for number in range(2)}
    pins = tuple(Pin(pattern=f"layers.{index}", device=f"node0/gpu{index // 2}") for index in range(4))
    whole = make_task(make_chain([mixture(8 * MIB, count=8)] * 4), gpus(2), budgets, pins=pins)
    task = Task(whole.chain, whole.machine, whole.constraints, Objective.DECODE, splits_experts=True)
    found = best_stages(task, frozenset({0, 1}), Polisher(task, 100))
    assert found is not None
    assert found.answer is not None
    splits = [choice.experts for choice in found.answer.choices]
    assert [None if split is None else split.slots for split in splits] == [3, 4, 3, 4]
    assert found.lower_bound_ns == step_ns(task, found.answer)
