from __future__ import annotations

import pytest
from placement_problems import (
    GIGA,
    MIB,
    NO_ACTIVATIONS,
    gpus,
    make_chain,
    make_cost,
    make_device,
    make_form,
    make_inventory,
    make_link,
    make_node,
    make_task,
)

from bayplan.planner.solve import placement
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.placement import SearchOptions, Solution, bound_ns, place
from bayplan.planner.solve.predict import load_ns
from bayplan.planner.solve.stages import Staged
from bayplan.planner.solve.task import Task
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import BoundClass, Objective, Residency, SolverStatus

LAYER = 64 * MIB
"""And as many nanoseconds, since a byte takes one."""

A, B, CPU = "node0/gpu0", "node0/gpu1", "node0/cpu0"
STAY, HOST, DISK = Residency.RESIDENT, Residency.STREAM_HOST, Residency.STREAM_DISK


def layers(count: int, room: int, *, rate: int = GIGA, **fields: object) -> Task:
    """Equal blocks and one accelerator that has room for some of them."""
    return make_task(make_chain([LAYER] * count), gpus(1, rate=rate), {A: room * LAYER}, **fields)


def found(task: Task, options: SearchOptions | None = None) -> Solution:
    solution = place(task, options)
    assert solution is not None
    return solution


def word(solution: Solution) -> str:
    """Device and residency of each block."""
    letters = {STAY: "s", HOST: "h", DISK: "d"}
    return " ".join(f"{choice.device}{letters[choice.residency]}" for choice in solution.answer.choices)


def two_nodes(**fields: object) -> Inventory:
    return make_inventory(
        [make_device("gpu0"), make_device("gpu1", node="node1")],
        [make_link(A), make_link("node1/gpu1", "node1"), make_link("node0", "node1")],
        nodes=[make_node("node0", **fields), make_node("node1", **fields)],
    )


def test_what_fits_stays_and_is_proven() -> None:
    assert found(layers(4, 4)) == Solution(
        answer=found(layers(4, 4)).answer,
        step_ns=4 * LAYER,
        lower_bound_ns=4 * LAYER,
        bound_class=BoundClass.CONTIGUOUS_RESIDENT,
        status=SolverStatus.OPTIMAL,
    )
    assert word(found(layers(4, 4))) == "0s 0s 0s 0s"


def with_cpu(room: int, cpu_room: int, *, cpu_rate: int = 100 * GIGA) -> tuple[Inventory, dict[str, int]]:
    cpu = make_device("cpu0", memory_bytes_per_second=cpu_rate)
    inventory = make_inventory([make_device("gpu0"), cpu], [make_link(A, rate=GIGA // 4)], disk_rate=None)
    return inventory, {A: room * LAYER, CPU: cpu_room * LAYER}


def test_what_fits_the_accelerators_does_not_go_to_a_cpu_however_fast() -> None:
    inventory, budgets = with_cpu(3, 9)
    assert word(found(make_task(make_chain([LAYER] * 3), inventory, budgets))) == "0s 0s 0s"


def test_what_does_not_fit_them_may_stay_on_the_cpu() -> None:
    inventory, budgets = with_cpu(3, 1)
    solution = found(make_task(make_chain([LAYER] * 4), inventory, budgets))
    assert word(solution) == "0s 0s 0s 1s"
    assert solution.bound_class is BoundClass.CONTIGUOUS


def test_without_spilling_the_cpu_holds_the_rest() -> None:
    inventory, budgets = with_cpu(3, 1, cpu_rate=GIGA // 1000)
    solution = found(make_task(make_chain([LAYER] * 4), inventory, budgets, no_spill=True))
    assert word(solution) == "0s 0s 0s 1s"
    assert solution.bound_class is BoundClass.CONTIGUOUS_RESIDENT


def test_no_spill_is_infeasible_rather_than_streamed() -> None:
    assert place(layers(4, 3)) is not None
    assert place(layers(4, 3, no_spill=True)) is None


def test_streamed_blocks_lie_evenly() -> None:
    """Through one slot a block travels while others compute, and another resident block has the room."""
    solution = found(layers(12, 10))
    assert solution.step_ns == 12 * LAYER
    assert solution.lower_bound_ns <= 12 * LAYER
    assert solution.answer.num_slots == (1,)
    assert word(solution).count("h") == 3


def test_a_second_slot_keeps_the_link_busy() -> None:
    """Blocks travel for 256: 22 through two slots take less than 21 through one and their computing."""
    solution = found(layers(40, 20, rate=GIGA // 4))
    assert (word(solution).count("h"), solution.answer.num_slots) == (22, (2,))
    assert solution.step_ns == 22 * 4 * LAYER
    assert solution.step_ns * 0.999 < solution.lower_bound_ns <= solution.step_ns


def test_one_slot_where_two_do_not_fit() -> None:
    solution = found(layers(2, 1))
    assert (word(solution), solution.answer.num_slots) == ("0h 0h", (1,))
    assert solution.step_ns == solution.lower_bound_ns == 4 * LAYER


def test_links_of_one_group_share_their_bandwidth() -> None:
    """Apart, each device streams two of three, 512 each, one of them before its stage begins.

    Over one link that takes 4 x 512; two resident blocks and three of four streamed take less.
    """
    chain, budgets = make_chain([LAYER] * 6), {A: 2 * LAYER, B: 2 * LAYER}
    apart = found(make_task(chain, gpus(2, rate=GIGA // 8), budgets))
    shared = found(make_task(chain, gpus(2, rate=GIGA // 8, group="switch"), budgets))
    assert [len(apart.answer.streamed_on(device)) for device in (0, 1)] == [2, 2]
    assert apart.step_ns == 2 * (512 + 2 * 64) * MIB
    assert sorted(len(shared.answer.streamed_on(device)) for device in (0, 1)) == [0, 3]
    assert shared.step_ns == shared.lower_bound_ns == 3 * (512 + 64) * MIB


def test_disks_of_several_nodes_do_not_add_up() -> None:
    """Each node's disk brings half; taken together they would be the bottleneck."""
    budgets = {A: 6 * LAYER, "node1/gpu1": 6 * LAYER}
    solution = found(make_task(make_chain([LAYER] * 20), two_nodes(host_memory_bytes=0), budgets))
    assert "h" not in word(solution)
    assert solution.step_ns < 21 * LAYER


def test_host_memory_counts_per_node() -> None:
    inventory = two_nodes(host_memory_bytes=10 * LAYER, disk_rate=None)
    budgets = {A: LAYER, "node1/gpu1": LAYER}
    assert place(make_task(make_chain([LAYER] * 20), inventory, budgets)) is not None
    assert place(make_task(make_chain([LAYER] * 21), inventory, budgets)) is None


def test_both_tiers_where_host_memory_does_not_hold_all() -> None:
    node = make_node(host_memory_bytes=4 * LAYER, disk_rate=GIGA // 4)
    inventory = make_inventory([make_device("gpu0")], [make_link(A)], nodes=[node])
    solution = found(make_task(make_chain([LAYER] * 8), inventory, {A: 2 * LAYER}))
    assert word(solution).count("h") == 4
    assert word(solution).count("d") >= 2


def test_pinned_memory_limits_what_waits() -> None:
    node = make_node(pinned_memory_bytes=3 * LAYER, disk_rate=None)
    inventory = make_inventory([make_device("gpu0")], [make_link(A)], nodes=[node])
    for count, is_enough in ((5, True), (6, False)):
        solution = place(make_task(make_chain([LAYER] * count), inventory, {A: 3 * LAYER}))
        assert (solution is not None) is is_enough


def test_what_waits_in_host_memory_shares_it_with_the_cpu() -> None:
    """Either alone would fit: 6 blocks resident on the CPU, or 5 of 6 waiting for the accelerator."""
    devices, links = [make_device("gpu0"), make_device("cpu0")], [make_link(A)]
    chain, budgets = make_chain([LAYER] * 8), {A: LAYER, CPU: 6 * LAYER}
    tight = make_inventory(devices, links, host_memory_bytes=6 * LAYER, disk_rate=GIGA // 4)
    assert "d" in word(found(make_task(chain, tight, budgets)))
    roomy = make_inventory(devices, links, disk_rate=GIGA // 4)
    assert "d" not in word(found(make_task(chain, roomy, budgets)))


def test_unified_memory_is_counted_once() -> None:
    unified = make_device("gpu0", shares_host_memory=True)
    inventory = make_inventory(
        [unified, make_device("cpu0")], [make_link(A)], host_memory_bytes=4 * LAYER, disk_rate=None
    )
    budgets = {A: 4 * LAYER, CPU: 4 * LAYER}
    assert place(make_task(make_chain([LAYER] * 4), inventory, budgets)) is not None
    assert place(make_task(make_chain([LAYER] * 5), inventory, budgets)) is None


def test_devices_that_share_host_memory_are_placed_within_it() -> None:
    """The fastest placement uses the first device alone; host memory holds what both take, however split."""
    unified = [make_device(f"gpu{number}", shares_host_memory=True) for number in (0, 1)]
    inventory = make_inventory(unified, [make_link(A), make_link(B)], host_memory_bytes=4 * LAYER)
    budgets = {A: 3 * LAYER, B: 3 * LAYER}
    chain = make_chain([LAYER] * 4, scratch_bytes=0)
    assert found(make_task(chain, inventory, budgets)).step_ns == 4 * LAYER
    assert place(make_task(make_chain([LAYER] * 5), inventory, budgets, no_spill=True)) is None


def test_a_pinned_tier_is_the_tier() -> None:
    pins = (Pin(pattern="layers.1", residency=DISK),)
    assert word(found(layers(4, 10, pins=pins))) == "0s 0d 0s 0s"


def test_a_pinned_device_holds_its_block() -> None:
    pins = (Pin(pattern="layers.0", device=B),)
    assert word(found(make_task(make_chain([LAYER] * 2), gpus(2), pins=pins))) == "1s 1s"


QUANTIZED = make_cost(LAYER, others=[make_form(LAYER // 4, "nf4", quantized_bytes=LAYER)])


def forms(solution: Solution) -> list[int]:
    return sorted(choice.form for choice in solution.answer.choices)


def test_of_an_allowed_set_nothing_is_rounded_that_gains_nothing() -> None:
    """A format that was not measured saves memory and no time, so it only breaks no tie."""
    task = make_task(make_chain([QUANTIZED] * 4), gpus(1))
    assert forms(found(task)) == [0, 0, 0, 0]
    assert forms(found(task, SearchOptions(is_auto=True))) == [0, 0, 0, 0]


def test_auto_rounds_only_what_must_be_for_all_to_stay() -> None:
    task = make_task(make_chain([QUANTIZED] * 4), gpus(1), {A: 3 * LAYER})
    assert forms(found(task, SearchOptions(is_auto=True))) == [0, 0, 1, 1]


def test_auto_prefers_rounding_to_streaming_and_streaming_to_nothing() -> None:
    auto = SearchOptions(is_auto=True)
    stays = make_task(make_chain([QUANTIZED] * 4), gpus(1), {A: LAYER})
    assert forms(found(stays, auto)) == [1, 1, 1, 1]
    assert word(found(stays, auto)) == "0s 0s 0s 0s"
    streams = make_task(make_chain([QUANTIZED] * 4), gpus(1), {A: LAYER // 2})
    assert word(found(streams, auto)).count("h") >= 1


def test_a_pinned_format_is_the_format() -> None:
    pins = (Pin(pattern="layers.[02]", format="nf4"),)
    task = make_task(make_chain([QUANTIZED] * 4), gpus(1), pins=pins)
    assert [choice.form for choice in found(task).answer.choices] == [1, 0, 1, 0]


def test_loading_first() -> None:
    task = make_task(make_chain([QUANTIZED] * 4), gpus(1))
    solution = found(task, SearchOptions(loads_first=True))
    assert forms(solution) == [1, 1, 1, 1]
    assert solution.lower_bound_ns <= load_ns(task, solution.answer) == LAYER


def test_with_batches_in_flight_every_device_works() -> None:
    task = make_task(make_chain([LAYER] * 4), gpus(2))
    solution = found(task, SearchOptions(num_batches=2))
    assert word(solution) == "0s 0s 1s 1s"
    assert solution.step_ns == 2 * LAYER


def test_a_device_with_no_budget_stays_unused() -> None:
    chain = make_chain([LAYER, LAYER])
    machine = Machine(gpus(2), {A: 0, B: 2 * LAYER})
    task = Task(chain, machine, resolve(chain, (), no_spill=False), Objective.DECODE)
    assert [task.machine.devices[choice.device].id for choice in found(task).answer.choices] == [B, B]


def test_a_cpu_never_streams_from_its_own_memory() -> None:
    inventory = make_inventory([make_device("cpu0")], disk_rate=None)
    assert place(make_task(make_chain([LAYER] * 4), inventory, {CPU: 3 * LAYER})) is None


def test_no_device_no_placement() -> None:
    chain = make_chain([LAYER])
    machine = Machine(gpus(1), {A: 0})
    task = Task(chain, machine, resolve(chain, (), no_spill=False), Objective.DECODE)
    assert place(task) is None


def test_activations_that_differ_a_little_everywhere_fit_to_the_byte() -> None:
    """More levels than the program tells apart: rounded down it takes too much, rounded up too little."""
    costs = [make_cost(LAYER, decode_activation_bytes=32 * (1000 + 7 * index)) for index in range(30)]
    chain = make_chain(costs)
    peak = 33 * (1000 + 7 * 29)
    task = make_task(chain, gpus(1), {A: 20 * LAYER + peak})
    solution = found(task)
    assert word(solution).count("s") == 19
    short = make_task(chain, gpus(1), {A: 20 * LAYER + peak - 1})
    assert word(found(short)).count("h") == word(solution).count("h") + 1


def test_devices_that_hand_on_and_share_nothing_need_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("a program was set up")

    monkeypatch.setattr(placement, "PlacementProgram", never)
    budgets = {A: NO_ACTIVATIONS + 3 * LAYER, B: NO_ACTIVATIONS + 3 * LAYER}
    task = make_task(make_chain([LAYER] * 8), gpus(2, rate=GIGA // 4), budgets)
    solution = found(task)
    assert word(solution) == "0h 0s 0s 0h 1h 1s 1s 1h"
    assert solution.step_ns == solution.lower_bound_ns == 2 * (LAYER + 4 * LAYER + LAYER)
    assert (solution.bound_class, solution.status) == (BoundClass.CONTIGUOUS, SolverStatus.OPTIMAL)
    assert place(task, SearchOptions(limit_ns=solution.step_ns)) == solution
    assert place(task, SearchOptions(limit_ns=solution.step_ns - 1)) is None


def test_of_a_bound_by_stages_and_the_programs_the_larger_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    task = layers(12, 6, rate=GIGA // 4)
    program = place(task)
    assert program is not None

    def staged(more_ns: int) -> Solution:
        own = Staged(lower_bound_ns=program.lower_bound_ns + more_ns, answer=None)
        monkeypatch.setattr(placement, "best_stages", lambda *arguments, **options: own)
        return found(task)

    assert staged(1).lower_bound_ns == program.lower_bound_ns + 1
    assert staged(-1).lower_bound_ns == program.lower_bound_ns


def test_a_way_to_the_cpu_is_none_to_the_next_accelerator() -> None:
    inventory = make_inventory(
        [make_device("gpu0"), make_device("cpu0"), make_device("gpu1")],
        [make_link(A, CPU), make_link(B)],
        disk_rate=None,
    )
    budgets = {A: 2 * LAYER, CPU: 2 * LAYER, B: 2 * LAYER}
    task = make_task(make_chain([LAYER] * 4), inventory, budgets, no_spill=True)
    assert word(found(task)) == "0s 0s 1s 1s"


@pytest.mark.parametrize(
    ("milliseconds", "bound"),
    [(0.0, 0), (0.000_001, 1), (1.0, 999_999), (5.0, 4_999_984), (67.108_864, 67_108_736)],
)
def test_a_bound_is_cut_off_below(milliseconds: float, bound: int) -> None:
    assert bound_ns(milliseconds) == bound
    assert bound_ns(milliseconds) <= milliseconds * 10**6


def test_the_last_bits_of_a_float_make_no_other_bound() -> None:
    exact = 7_197.827_276
    assert {bound_ns(exact * (1 + error)) for error in (0.0, 1e-12, -1e-12)} == {bound_ns(exact)}
