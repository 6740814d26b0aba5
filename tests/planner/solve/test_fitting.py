from __future__ import annotations

from collections.abc import Callable

import msgspec
from brute_force import fastest
from hypothesis import event, given, settings
from placement_problems import (
    MIB,
    NO_ACTIVATIONS,
    PlacementProblem,
    gpus,
    make_chain,
    make_cost,
    make_device,
    make_form,
    make_inventory,
    make_link,
    make_task,
    placement_problems,
)

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.chain import ChainTie
from bayplan.planner.solve.experts import ExpertsResidency, SplitExperts, in_flight_bytes, slot_bytes
from bayplan.planner.solve.feasible import is_feasible
from bayplan.planner.solve.fitting import Room, leanest_answer
from bayplan.planner.solve.ledger import ledger_of, shortages
from bayplan.planner.solve.placement import place
from bayplan.planner.solve.task import Task
from bayplan.planner.solve.timeline import step_ns
from bayplan.schemas.graph import BlockExperts
from bayplan.schemas.problem import BlockRun, Pin
from bayplan.schemas.types import Objective, Reason, Residency

KIB = 1024
DISK = Residency.STREAM_DISK


@given(placement_problems(max_blocks=6))
@settings(max_examples=200)
def test_something_fits_the_devices_if_anything_exists(problem: PlacementProblem) -> None:
    task = problem.task()
    answer = leanest_answer(task)
    exists = fastest(problem, can_stream=not problem.no_spill) is not None
    event(f"exists: {exists}, found: {answer is not None}")
    if answer is None:
        assert not exists
        return
    assert step_ns(task, answer) is not None
    nodes = {node.id for node in problem.inventory.nodes}
    short = {name.partition(" ")[0] for name, _ in shortages(task, answer)}
    assert short <= nodes  # of host memory, which is not looked at
    assert exists or short


TaskOf = Callable[[int], Task]
"""A task by the budget of one device."""


def check_least_budget(task_of: TaskOf, needed: int) -> None:
    assert leanest_answer(task_of(needed)) is not None
    assert leanest_answer(task_of(needed - 1)) is None


def one_gpu(*costs: BlockRun | int, no_spill: bool = False) -> TaskOf:
    chain = make_chain(costs, scratch_bytes=KIB)
    return lambda budget: make_task(chain, gpus(1), {"node0/gpu0": budget}, no_spill=no_spill)


def test_everything_streams_through_one_slot_of_the_largest_block() -> None:
    task = one_gpu(3 * MIB, 5 * MIB, 4 * MIB)
    check_least_budget(task, NO_ACTIVATIONS + KIB + 5 * MIB)
    assert leanest_answer(task(6 * MIB)) == Answer(
        choices=(Choice(device=0, residency=DISK),) * 3, num_slots=(1,)
    )


def test_what_must_stay_stays_and_a_large_block_may_be_better_off_resident() -> None:
    stays = make_cost(2 * MIB, resident_reason=Reason.TIED)
    check_least_budget(one_gpu(stays, 5 * MIB, KIB), NO_ACTIVATIONS + KIB + 2 * MIB + 5 * MIB)
    # Through a slot of 1 KiB, with the large block beside it, no more is needed than through one of 5 MiB.
    check_least_budget(one_gpu(stays, 5 * MIB), NO_ACTIVATIONS + KIB + 7 * MIB)


def test_without_spilling_everything_stays() -> None:
    check_least_budget(one_gpu(3 * MIB, 5 * MIB, no_spill=True), NO_ACTIVATIONS + KIB + 8 * MIB)


def test_the_form_that_is_smallest_with_what_its_products_need() -> None:
    packed = make_form(2 * MIB, "nf4", workspace_bytes=8 * MIB)
    cost = make_cost(4 * MIB, others=(packed,), resident_reason=Reason.REPEATED)
    plain = Answer(choices=(Choice(device=0),), num_slots=(1,))
    assert leanest_answer(one_gpu(cost)(5 * MIB)) == plain
    many = [cost] * 6
    needed = 6 * 2 * MIB + KIB + 8 * MIB + 8 * MIB // 32
    check_least_budget(one_gpu(*many), needed)
    assert [choice.form for choice in leanest_answer(one_gpu(*many)(needed)).choices] == [1] * 6


def test_devices_are_filled_one_after_the_other_where_there_are_ways() -> None:
    chain = make_chain([4 * MIB] * 3)
    budgets = {f"node0/gpu{number}": 4 * MIB + NO_ACTIVATIONS for number in range(3)}
    found = leanest_answer(make_task(chain, gpus(3), budgets, no_spill=True))
    assert found is not None
    assert [choice.device for choice in found.choices] == [0, 1, 2]
    without_ways = make_inventory([make_device(f"gpu{number}") for number in range(3)])
    assert leanest_answer(make_task(chain, without_ways, budgets, no_spill=True)) is None


def test_a_pin_ends_what_the_devices_before_can_take() -> None:
    chain = make_chain([4 * MIB] * 3)
    pins = (Pin(pattern="layers.1", device="node0/gpu1"),)
    budgets = {"node0/gpu1": 8 * MIB + NO_ACTIVATIONS}
    found = leanest_answer(make_task(chain, gpus(2), budgets, pins=pins, no_spill=True))
    assert found is not None
    assert [choice.device for choice in found.choices] == [0, 1, 1]


def test_a_tied_storage_is_counted_once_more_where_its_first_block_is_elsewhere() -> None:
    stays = make_cost(4 * MIB, resident_reason=Reason.TIED)
    tie = ChainTie(positions=(0, 2), num_bytes=4 * MIB)
    chain = make_chain([stays, 4 * MIB, make_cost(0, resident_reason=Reason.TIED)], ties=[tie])

    def task(last: int) -> Task:
        budgets = {"node0/gpu0": 8 * MIB + NO_ACTIVATIONS, "node0/gpu1": last}
        pins = (Pin(pattern="layers.2", device="node0/gpu1"),)
        return make_task(chain, gpus(2), budgets, no_spill=True, pins=pins)

    check_least_budget(task, 4 * MIB + NO_ACTIVATIONS)


def test_a_device_may_begin_earlier_than_it_must_to_be_beside_what_is_tied() -> None:
    """The owner streams and takes nothing here, its storage elsewhere would."""
    tie = ChainTie(positions=(1, 2), num_bytes=4 * MIB)
    chain = make_chain([MIB, MIB, MIB], ties=[tie])
    budgets = {"node0/gpu0": 2 * MIB + NO_ACTIVATIONS, "node0/gpu1": 2 * MIB + NO_ACTIVATIONS}
    pins = (
        Pin(pattern="layers.0", device="node0/gpu0"),
        Pin(pattern="layers.2", device="node0/gpu1"),
    )
    found = leanest_answer(make_task(chain, gpus(2), budgets, pins=pins))
    assert found is not None
    assert [choice.device for choice in found.choices] == [0, 1, 1]


def test_weights_wait_in_host_memory_only_where_they_may() -> None:
    inventory = make_inventory([make_device("gpu0")], [make_link("node0/gpu0")], disk_rate=None)
    task = make_task(make_chain([4 * MIB] * 3), inventory, {"node0/gpu0": 5 * MIB})
    found = leanest_answer(task)
    assert found is not None
    assert {choice.residency for choice in found.choices} == {Residency.STREAM_HOST}
    assert leanest_answer(task, may_wait=False) is None


def test_a_block_without_a_way_fits_nowhere() -> None:
    pins = (Pin(pattern="layers.1", residency=Residency.STREAM_HOST),)
    inventory = make_inventory([make_device("cpu")])
    assert leanest_answer(make_task(make_chain([MIB, MIB]), inventory, pins=pins)) is None


def test_no_device() -> None:
    assert leanest_answer(make_task(make_chain([MIB]), gpus(1), {"node0/gpu0": 0})) is None


EXPERTS = BlockExperts(
    module="",
    count=8,
    per_token=2,
    prefill_flops=0,
    decode_flops=0,
    prefill_hidden_bytes=0,
    decode_hidden_bytes=0,
)


def experts_task(budget: int, *, disk_rate: int | None = 10**9, copied_bytes: int = 0) -> Task:
    cost = make_cost(10 * MIB, unit_bytes=MIB, copied_bytes=copied_bytes)
    chain = make_chain([msgspec.structs.replace(cost, experts=EXPERTS)] * 3)
    inventory = make_inventory(
        [make_device("gpu0"), make_device("cpu")], [make_link("node0/gpu0")], disk_rate=disk_rate
    )
    task = make_task(chain, inventory, {"node0/gpu0": budget, "node0/cpu": 64})
    return Task(chain, task.machine, task.constraints, Objective.DECODE, splits_experts=True)


def test_experts_that_the_host_computes_leave_only_the_dense_part() -> None:
    """Three dense parts of 2 MiB; a slot for a whole block would be 10 MiB."""
    needed = 3 * 2 * MIB + NO_ACTIVATIONS
    check_least_budget(experts_task, needed)
    found = leanest_answer(experts_task(needed))
    assert found is not None
    split = SplitExperts(residency=ExpertsResidency.COMPUTE_HOST)
    assert found.choices == (Choice(device=0, experts=split),) * 3


def test_experts_that_are_apart_are_not_copied() -> None:
    needed = 3 * 2 * MIB + NO_ACTIVATIONS
    check_least_budget(lambda budget: experts_task(budget, copied_bytes=8 * MIB), needed)
    task = experts_task(needed, copied_bytes=8 * MIB)
    found = leanest_answer(task)
    assert found is not None
    assert ledger_of(task, found, 0).activations == (0, NO_ACTIVATIONS)


def copying_task(budget: int, *, splits_experts: bool = True) -> Task:
    """A block whose experts are copied and stay with it, and two whose experts may be apart."""
    stays = make_cost(2 * MIB, resident_reason=Reason.TIED, copied_bytes=8 * MIB)
    parts = msgspec.structs.replace(make_cost(10 * MIB, unit_bytes=MIB), experts=EXPERTS)
    inventory = make_inventory([make_device("gpu0"), make_device("cpu")], [make_link("node0/gpu0")])
    budgets = {"node0/gpu0": budget, "node0/cpu": 64}
    task = make_task(make_chain([stays, parts, parts]), inventory, budgets)
    return Task(task.chain, task.machine, task.constraints, Objective.DECODE, splits_experts=splits_experts)


def test_with_any_experts_apart_none_are_copied() -> None:
    """One by one they are computed in all blocks, so that the bits are the same."""
    needed = 3 * 2 * MIB + NO_ACTIVATIONS
    check_least_budget(copying_task, needed)
    found = place(copying_task(needed))
    assert found is not None
    assert found.answer.splits_experts
    assert shortages(copying_task(needed), found.answer) == ()
    assert is_feasible(copying_task(needed))
    assert not is_feasible(copying_task(needed - 1))
    assert not is_feasible(copying_task(needed, splits_experts=False))


def test_all_that_stays_has_room_for_copies() -> None:
    """Without it they would fit; then experts are apart, since nothing is copied there either."""
    whole, copies = 22 * MIB + NO_ACTIVATIONS, 8 * MIB + 8 * MIB // 32
    for budget, splits_experts in ((whole + copies, False), (whole + copies - 1, True)):
        found = place(copying_task(budget))
        assert found is not None
        assert found.answer.splits_experts is splits_experts
        assert shortages(copying_task(budget), found.answer) == ()


def test_caches_of_experts_have_a_slot_for_each_that_a_position_needs() -> None:
    """And room for what is on its way; a slot for whole blocks is no way for what must be called twice."""
    task = experts_task(2**40)
    (way,) = [own for own in Room(task, 0, may_wait=False).ways(0) if own.choice.experts is not None]
    assert way.choice.experts == SplitExperts(residency=ExpertsResidency.CACHE_DISK, slots=2)
    assert way.num_bytes == 2 * MIB + 2 * slot_bytes(MIB)
    assert way.flight_bytes == in_flight_bytes(MIB, 2)
    answer = Answer(choices=(way.choice,) * 3, num_slots=(1, 1))
    assert ledger_of(task, answer, 0).budgeted_bytes == 3 * way.num_bytes + way.flight_bytes + NO_ACTIVATIONS
