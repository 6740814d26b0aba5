from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from brute_force import fastest
from hypothesis import assume, given, settings
from placement_problems import (
    GIGA,
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
from bayplan.planner.solve.experts import ExpertsResidency, SplitExperts
from bayplan.planner.solve.fitting import leanest_answer
from bayplan.planner.solve.ledger import shortages
from bayplan.planner.solve.polish import Polisher
from bayplan.planner.solve.task import Task
from bayplan.planner.solve.timeline import step_ns, visits
from bayplan.schemas.graph import BlockExperts
from bayplan.schemas.hardware import FormatRates
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Objective, Residency

STAY, HOST, DISK = Residency.RESIDENT, Residency.STREAM_HOST, Residency.STREAM_DISK


def one_gpu(*sizes: int, extra_bytes: int, pins: tuple[Pin, ...] = (), rate: int = GIGA) -> Task:
    budgets = {"node0/gpu0": NO_ACTIVATIONS + extra_bytes}
    return make_task(make_chain(sizes), gpus(1, rate=rate), budgets, pins=pins)


def placed(word: str, num_slots: int = 1) -> Answer:
    """All on the first device: s stays, h and d stream."""
    tiers = {"s": STAY, "h": HOST, "d": DISK}
    choices = tuple(Choice(device=0, residency=tiers[letter]) for letter in word)
    return Answer(choices=choices, num_slots=(num_slots,))


def word(answer: Answer) -> str:
    letters = {STAY: "s", HOST: "h", DISK: "d"}
    return "".join(letters[choice.residency] for choice in answer.choices)


def test_what_makes_one_better() -> None:
    """Time, rounded weights, weights that are brought in, slots."""
    task = one_gpu(64, 128, extra_bytes=2**20)
    polisher = Polisher(task, 100)
    assert polisher.rank(placed("ss")) == (192, 0, 0, 1)
    assert polisher.rank(placed("sh", 2)) == (128 + 128, 0, 128, 2)
    quantized = make_cost(64, others=[make_form(16, "nf4", quantized_bytes=64)])
    polisher = Polisher(make_task(make_chain([quantized]), gpus(1)), 100)
    assert polisher.rank(Answer(choices=(Choice(device=0, form=1),), num_slots=(1,))) == (64, 64, 0, 1)


def test_rounding_can_count_more_than_time() -> None:
    """Four bits are faster here, and only as many blocks are rounded as must be."""
    fast = make_device(
        "gpu0",
        format_rates=(
            FormatRates(
                kind="nf4",
                memory_bytes_per_second=GIGA,
                cache_bytes_per_second=GIGA,
                flops_per_second=GIGA,
                block_overhead_ns=0,
            ),
        ),
    )
    cost = make_cost(64, others=[make_form(16, "nf4", quantized_bytes=64)])
    task = make_task(make_chain([cost] * 3), make_inventory([fast]), {"node0/gpu0": NO_ACTIVATIONS + 144})
    start = Answer(choices=(Choice(device=0, form=1),) * 3, num_slots=(1,))
    for rounds_least, rounded in ((False, 3), (True, 1)):
        found = Polisher(task, 1000, rounds_least=rounds_least).improved(start, good_enough_ns=0)
        assert sum(choice.form for choice in found.choices) == rounded


def test_what_does_not_fit_or_has_no_way_has_no_rank() -> None:
    assert Polisher(one_gpu(64, 64, extra_bytes=127), 100).rank(placed("ss")) is None
    lonely = make_inventory([make_device("gpu0")], disk_rate=None)
    assert Polisher(make_task(make_chain([64]), lonely), 100).rank(placed("h")) is None


def test_the_best_of_several_and_the_first_of_equals() -> None:
    polisher = Polisher(one_gpu(64, 64, 64, extra_bytes=192), 100)
    assert polisher.best([placed("shh"), placed("hss"), placed("ssh")]) == placed("hss")
    assert polisher.best([placed("sss", 1), placed("hhh")]) == placed("sss")
    assert polisher.best([]) is None
    assert Polisher(one_gpu(64, 64, extra_bytes=10), 100).best([placed("ss")]) is None


def test_another_time_may_be_what_counts() -> None:
    polisher = Polisher(one_gpu(64, extra_bytes=2**20), 100, lambda _task, answer: len(answer.choices))
    assert polisher.rank(placed("s")) == (1, 0, 0, 1)


def test_streamed_blocks_move_apart() -> None:
    """In a clump the third waits for the first's slot; apart, everything is brought in beside computing."""
    task = one_gpu(*[64] * 12, extra_bytes=64 * 11, rate=GIGA // 3)
    found = Polisher(task, 1000).improved(placed("hhhsssssssss", 2), good_enough_ns=0)
    assert step_ns(task, placed("hhhsssssssss", 2)) > 12 * 64
    assert step_ns(task, found) == 12 * 64


def test_long_visits_move_to_where_they_hide_a_transfer() -> None:
    """The second streamed block has too little before it, the first more than it needs."""
    host = SplitExperts(residency=ExpertsResidency.COMPUTE_HOST)
    experts = BlockExperts(
        module="",
        count=4,
        per_token=4,
        prefill_flops=0,
        decode_flops=0,
        prefill_hidden_bytes=0,
        decode_hidden_bytes=0,
    )
    cost = make_cost(4 * MIB, unit_bytes=MIB)
    chain = make_chain([msgspec.structs.replace(cost, experts=experts)] * 8)
    devices = [make_device("gpu0"), make_device("cpu", memory_bytes_per_second=GIGA // 4)]
    inventory = make_inventory(devices, [make_link("node0/gpu0", rate=GIGA // 4)])
    whole = make_task(chain, inventory, {"node0/gpu0": 20 * MIB, "node0/cpu": 2**40})
    task = Task(chain, whole.machine, whole.constraints, Objective.DECODE, splits_experts=True)
    stay, stream = Choice(device=0, residency=STAY), Choice(device=0, residency=HOST)
    apart = Choice(device=0, experts=host)
    start = Answer(choices=(stream, stay, stay, stay, stream, apart, apart, stay), num_slots=(1, 1))
    found = Polisher(task, 1000).improved(start, good_enough_ns=0)
    step = visits(task, found)
    assert step is not None
    assert Counter(found.choices) == Counter(start.choices)
    assert step_ns(task, start) > step_ns(task, found) == sum(visit.compute_ns for visit in step)


def test_more_stay_where_there_is_room() -> None:
    found = Polisher(one_gpu(64, 64, 64, extra_bytes=192), 1000).improved(placed("hhh"), good_enough_ns=0)
    assert word(found) == "sss"


def test_a_faster_tier_is_taken() -> None:
    inventory = make_inventory(gpus(1).devices, [make_link("node0/gpu0")], disk_rate=GIGA // 4)
    task = make_task(make_chain([64, 64]), inventory, {"node0/gpu0": NO_ACTIVATIONS + 64})
    assert word(Polisher(task, 1000).improved(placed("dd"), good_enough_ns=0)) == "hh"


def test_a_cut_moves_to_the_faster_device() -> None:
    fast = make_device("gpu1", memory_bytes_per_second=4 * GIGA)
    inventory = make_inventory([make_device("gpu0"), fast], gpus(2).links)
    task = make_task(make_chain([64] * 4), inventory)
    start = Answer(choices=tuple(Choice(device=index > 1) for index in range(4)), num_slots=(1, 1))
    found = Polisher(task, 1000).improved(start, good_enough_ns=0)
    assert [choice.device for choice in found.choices] == [1] * 4


def test_a_smaller_form_is_taken_where_it_saves_streaming() -> None:
    cost = make_cost(64, others=[make_form(16, "nf4", quantized_bytes=64)])
    task = make_task(make_chain([cost] * 2), gpus(1, rate=GIGA // 8), {"node0/gpu0": NO_ACTIVATIONS + 80})
    found = Polisher(task, 1000).improved(placed("hh"), good_enough_ns=0)
    assert [(choice.residency, choice.form) for choice in found.choices] == [(STAY, 0), (STAY, 1)] or [
        (choice.residency, choice.form) for choice in found.choices
    ] == [(STAY, 1), (STAY, 0)]


@pytest.mark.parametrize("good_enough_ns", [256, 10**9])
def test_good_enough_is_left_alone(good_enough_ns: int) -> None:
    task = one_gpu(64, 64, extra_bytes=64)
    assert step_ns(task, placed("hh")) == 256
    assert Polisher(task, 1000).improved(placed("hh"), good_enough_ns=good_enough_ns) == placed("hh")


def test_a_placement_is_simulated_once_and_no_more_than_allowed() -> None:
    simulated: list[Answer] = []

    def counted(task: Task, answer: Answer) -> int | None:
        simulated.append(answer)
        return step_ns(task, answer)

    task = one_gpu(*[64] * 12, extra_bytes=64 * 8)
    Polisher(task, 7, counted).improved(placed("hhhhhhhsssss"), good_enough_ns=0)
    assert len(simulated) == len(set(simulated)) <= 7


@pytest.mark.parametrize(
    "pin",
    [
        Pin(pattern="*.0", device="node0/gpu0"),
        Pin(pattern="*.0", residency=DISK),
        Pin(pattern="*.1", residency=STAY),
        Pin(pattern="*.0", device="node0/gpu0", residency=HOST),
    ],
)
def test_pins_hold_whatever_would_be_faster(pin: Pin) -> None:
    fast = make_device("gpu1", memory_bytes_per_second=100 * GIGA)
    inventory = make_inventory([make_device("gpu0"), fast], gpus(2).links)
    task = make_task(make_chain([64] * 4), inventory, pins=(pin,))
    tier = pin.residency or STAY
    choices = [Choice(device=0)] * 4
    index = int(pin.pattern[-1])
    choices[index] = msgspec.structs.replace(choices[index], residency=tier)
    start = Answer(choices=tuple(choices), num_slots=(1, 1))
    found = Polisher(task, 1000).improved(start, good_enough_ns=0)
    assert all(task.may(place, choice) for place, choice in enumerate(found.choices))


@given(placement_problems(max_blocks=6))
@settings(max_examples=80, deadline=None)
def test_never_worse_never_wrong(problem: PlacementProblem) -> None:
    """From the leanest placement, which is a slow one."""
    task = problem.task()
    assume(task.machine.devices)
    start = leanest_answer(task)
    assume(start is not None and not shortages(task, start) and step_ns(task, start) is not None)
    assert start is not None
    polisher = Polisher(task, 300)
    found = polisher.improved(start, good_enough_ns=0)
    before, after = polisher.rank(start), polisher.rank(found)
    assert before is not None
    assert after is not None
    assert after <= before
    devices = [choice.device for choice in found.choices]
    assert devices == sorted(devices)
    assert shortages(task, found) == ()
    assert all(task.may(index, choice) for index, choice in enumerate(found.choices))
    best = fastest(problem, can_stream=True)
    assert best is not None
    assert best.step_ns <= after[0]
