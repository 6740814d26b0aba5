"""The turned chain: what it is made of, and that it says of a placement what the chain as it is says."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from placement_problems import (
    GIGA,
    MIB,
    PlacementProblem,
    gpus,
    make_chain,
    make_cost,
    make_device,
    make_inventory,
    make_link,
    make_task,
)
from tied_problems import tied_problems

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.begin import lean_answers
from bayplan.planner.solve.chain import ChainTie
from bayplan.planner.solve.constraints import Constraints
from bayplan.planner.solve.fitting import leanest_answer
from bayplan.planner.solve.ledger import ledger_of, shortages
from bayplan.planner.solve.placement import place
from bayplan.planner.solve.program import PlacementProgram
from bayplan.planner.solve.resident import resident_answer
from bayplan.planner.solve.returning import Tail, tail_of, turned, views
from bayplan.planner.solve.task import Task
from bayplan.planner.solve.timeline import step_ns, visits
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Objective, Residency

LAYER = 64 * MIB
A, B, CPU = "node0/gpu0", "node0/gpu1", "node0/cpu0"
HOST = Residency.STREAM_HOST


def tie(*positions: int, num_bytes: int = LAYER) -> ChainTie:
    return ChainTie(positions=positions, num_bytes=num_bytes)


def tied(count: int = 4, *ties: ChainTie, **fields: object) -> Task:
    """Equal blocks on two accelerators, the last one using what the first one holds."""
    chain = make_chain([LAYER] * count, ties=ties or (tie(0, count - 1),))
    return make_task(chain, fields.pop("inventory", None) or gpus(2), **fields)


def sure(task: Task | None) -> Task:
    assert task is not None
    return task


@pytest.mark.parametrize(
    ("ties", "expected"),
    [
        ((), None),
        (((3,),), None),
        (((0, 3),), Tail(start=3, owner=0)),
        (((0, 2, 3),), Tail(start=3, owner=0)),
        (((0, 2), (1, 3)), Tail(start=3, owner=1)),
        (((0, 3), (1, 3), (2,)), Tail(start=3, owner=1)),
    ],
)
def test_what_may_come_back(ties: tuple[tuple[int, ...], ...], expected: Tail | None) -> None:
    assert tail_of(ties) == expected


def test_the_turned_chain_begins_with_its_last_blocks() -> None:
    sizes = [make_cost(LAYER * (1 + number)) for number in range(5)]
    ties = (tie(0, 3), tie(0, 2, 3, num_bytes=2), tie(1, 2, num_bytes=3), tie(3, num_bytes=4))
    chain = make_chain(sizes, ties=ties, edges={(0, 2): 5, (0, 3): 7, (0, 4): 6, (1, 3): 8})
    own = sure(turned(make_task(chain, gpus(2))))
    assert own.chain.ids == tuple(f"layers.{number}" for number in (3, 4, 0, 1, 2))
    assert [cost.first for cost in own.chain.costs] == list(own.chain.ids)
    # The first blocks have the storage: only others than the last ones still need a replica.
    assert [(one.positions, one.num_bytes) for one in own.chain.ties] == [
        ((2,), LAYER),
        ((2, 4), 2),
        ((3, 4), 3),
    ]
    # A value is as large as its largest use, also where that use is one of the last blocks'.
    edges = [(edge.source, edge.target, edge.decode_bytes) for edge in own.chain.edges]
    assert edges == [("layers.0", "layers.2", 7)]
    assert own.constraints == Constraints(
        device=(A, A, A, None, None),
        residency=(Residency.RESIDENT, Residency.RESIDENT, None, None, None),
        form=(None,) * 5,
        no_spill=False,
    )


def test_demands_are_turned_with_their_blocks() -> None:
    pins = (Pin(pattern="layers.1", device=B, residency=HOST), Pin(pattern="layers.3", device=A))
    own = sure(turned(tied(pins=pins)))
    assert own.constraints.device == (A, A, B, None)
    assert own.constraints.residency == (Residency.RESIDENT, None, HOST, None)


@pytest.mark.parametrize("fields", [{"splits_experts": True}, {"loads_first": True}])
def test_what_is_asked_stays(fields: dict[str, bool]) -> None:
    task = tied()
    asked = Task(task.chain, task.machine, task.constraints, Objective.PREFILL, **fields)
    own = sure(turned(asked))
    assert (own.splits_experts, own.loads_first, own.phase) == (
        asked.splits_experts,
        asked.loads_first,
        asked.phase,
    )


def cpu_first() -> Inventory:
    devices = [make_device("cpu0"), make_device("gpu0"), make_device("gpu1")]
    return make_inventory(devices, [make_link(A), make_link(B)])


@pytest.mark.parametrize(
    ("task", "home"),
    [
        (tied(), A),
        (tied(inventory=cpu_first()), A),
        (tied(inventory=make_inventory([make_device("cpu0"), make_device("cpu1")])), CPU),
        (tied(inventory=gpus(3), pins=(Pin(pattern="layers.0", device=B),)), B),
        (tied(inventory=gpus(3), pins=(Pin(pattern="layers.3", device=B),)), B),
    ],
    ids=["first", "accelerator", "cpu", "storage pinned", "last pinned"],
)
def test_the_device_that_they_come_back_to(task: Task, home: str) -> None:
    own = sure(turned(task))
    assert own.turn is not None
    assert task.machine.devices[own.turn.home].id == home


@pytest.mark.parametrize(
    "task",
    [
        make_task(make_chain([LAYER] * 4), gpus(2)),
        tied(inventory=gpus(1)),
        tied(pins=(Pin(pattern="layers.0", device=B),)),
        tied(pins=(Pin(pattern="layers.3", residency=HOST),)),
        tied(pins=(Pin(pattern="layers.0", device=A), Pin(pattern="layers.3", device=B))),
        make_task(make_chain([LAYER] * 4, ties=[tie(0, 3)]), gpus(2), {A: 0, B: 0}),
    ],
    ids=["nothing tied", "one device", "nothing behind it", "must stream", "pinned apart", "no device"],
)
def test_where_nothing_comes_back(task: Task) -> None:
    assert turned(task) is None
    assert list(views(task)) == [task]


def test_only_devices_that_may_be_used_count() -> None:
    task = tied(inventory=cpu_first())
    assert turned(task, frozenset({0, 1})) is None
    assert turned(task, frozenset({0, 2})) is None
    assert turned(task, frozenset({1, 2})) is not None


def test_orders_are_each_others_inverse() -> None:
    own = sure(turned(tied()))
    assert own.turn is not None
    answer = Answer(choices=tuple(Choice(device=0, form=number) for number in range(4)), num_slots=(1, 1))
    assert [choice.form for choice in own.turn.turned(answer).choices] == [3, 0, 1, 2]
    assert own.turn.straight(own.turn.turned(answer)) == answer


def test_the_way_back_closes_the_step() -> None:
    """What the last block needs, two values, comes over two links, a byte in a nanosecond."""
    costs = [make_cost(LAYER, decode_output_bytes=1000, prefill_output_bytes=3000)] * 4
    chain = make_chain(costs, ties=[tie(0, 3)], edges={(1, 3): 10})
    task = make_task(chain, gpus(2, latency_ns=5))
    own = sure(turned(task))
    assert own.way_back_ns(0) == 0
    assert own.way_back_ns(1) == 2 * (2 * 5 + 1000 + 10)
    assert task.way_back_ns(1) == 0
    back = Answer(choices=tuple(Choice(device=device) for device in (0, 0, 1, 0)), num_slots=(1, 1))
    assert own.turn is not None
    assert visits(own, own.turn.turned(back)) == visits(task, back)
    assert step_ns(task, back) == 4 * LAYER + 2 * (5 + 1000) + 2 * (2 * 5 + 1000 + 10)


def test_the_dynamic_program_closes_the_step() -> None:
    """The second device is faster, so all but the first and the last block are there."""
    devices = [make_device("gpu0"), make_device("gpu1", memory_bytes_per_second=2 * GIGA)]
    inventory = make_inventory(devices, [make_link(A), make_link(B)])
    costs = [make_cost(LAYER, decode_output_bytes=1000)] * 4
    own = sure(turned(make_task(make_chain(costs, ties=[tie(0, 3)]), inventory)))
    found = resident_answer(own)
    assert found is not None
    assert [choice.device for choice in found[0].choices] == [0, 0, 1, 1]
    assert found[1] == 3 * LAYER + 2 * 2 * 1000 == step_ns(own, found[0])


def test_a_replica_that_does_not_fit_is_not_needed() -> None:
    """Without coming back, four blocks of three and one storage besides stream."""
    task = tied(4, budgets={A: 2 * LAYER, B: 2 * LAYER})
    solution = place(task)
    assert solution is not None
    assert [choice.device for choice in solution.answer.choices] == [0, 1, 1, 0]
    assert solution.step_ns == solution.lower_bound_ns == 4 * LAYER
    assert not any(choice.streams for choice in solution.answer.choices)


def one_way() -> Inventory:
    """Links from the first device to the second, and from there to the third, but no other."""
    devices = [make_device(f"gpu{number}") for number in range(3)]
    return make_inventory(devices, [make_link(A, B), make_link(B, "node0/gpu2")], disk_rate=None)


def test_who_has_no_way_back_is_not_last() -> None:
    """The chain fits the first and the third device, but only the second reaches the first."""
    task = tied(5, inventory=one_way(), budgets={A: 2 * LAYER, B: 3 * LAYER, "node0/gpu2": 9 * LAYER})
    own = sure(turned(task))
    assert own.way_back_ns(2) is None
    answer = leanest_answer(own)
    assert answer is not None
    assert [choice.device for choice in answer.choices] == [0, 0, 1, 1, 1]
    program = PlacementProgram(own, can_stream=False)
    assert program.minimise([(program.time, 1.0)], relative_gap=0.0).values
    tight = tied(6, inventory=one_way(), budgets={A: 2 * LAYER, B: 3 * LAYER, "node0/gpu2": 9 * LAYER})
    program = PlacementProgram(sure(turned(tight)), can_stream=False)
    assert not program.minimise([(program.time, 1.0)], relative_gap=0.0).values
    assert leanest_answer(sure(turned(tight))) is None


def test_a_later_device_that_has_a_way_back_takes_the_last_block() -> None:
    """The third device would hold the rest, and has no way back; the fourth has one."""
    third, fourth = "node0/gpu2", "node0/gpu3"
    links = [make_link(A, B), make_link(B, third), make_link(third, fourth), make_link(A, fourth)]
    inventory = make_inventory([make_device(f"gpu{number}") for number in range(4)], links, disk_rate=None)
    budgets = {A: 2 * LAYER, B: LAYER, third: 9 * LAYER, fourth: LAYER}
    answer = leanest_answer(sure(turned(tied(5, inventory=inventory, budgets=budgets))))
    assert answer is not None
    assert [choice.device for choice in answer.choices] == [0, 0, 1, 2, 3]


def test_where_a_search_begins_there_is_a_way_back() -> None:
    budgets = {A: 2 * LAYER, B: 3 * LAYER, "node0/gpu2": 9 * LAYER}
    own = sure(turned(tied(5, inventory=one_way(), budgets=budgets)))
    for can_stream in (False, True):
        answers = list(lean_answers(own, frozenset({0, 1, 2}), can_stream=can_stream))
        fitting = [answer for answer in answers if not shortages(own, answer)]
        assert any(step_ns(own, answer) == 5 * LAYER for answer in fitting)


@given(tied_problems(max_blocks=6), st.data())
@settings(max_examples=150, deadline=None)
def test_a_turned_placement_needs_and_takes_the_same(problem: PlacementProblem, data: st.DataObject) -> None:
    task = problem.task()
    own = turned(task)
    assume(own is not None)
    assert own is not None
    assert own.turn is not None
    home = own.turn.home
    choices = []
    for index, cost in enumerate(own.chain.costs):
        pinned = own.constraints.device[index] == task.machine.devices[home].id
        before = choices[-1].device if choices else home
        device = home if pinned else data.draw(st.integers(before, len(task.machine.devices) - 1))
        residency = data.draw(st.sampled_from(own.constraints.residencies(own.chain, index)))
        form = data.draw(st.integers(0, len(cost.forms) - 1))
        choices.append(Choice(device=device, residency=residency, form=form))
    answer = Answer(choices=tuple(choices), num_slots=(2,) * len(task.machine.devices))
    straight = own.turn.straight(answer)
    assert step_ns(own, answer) == step_ns(task, straight)
    assert shortages(own, answer) == shortages(task, straight)
    for device in range(len(task.machine.devices)):
        assert ledger_of(own, answer, device) == ledger_of(task, straight, device)


def test_turned_once() -> None:
    with pytest.raises(AssertionError, match="a chain is turned once"):
        turned(sure(turned(tied())))
