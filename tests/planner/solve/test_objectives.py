from __future__ import annotations

import msgspec
import pytest
from brute_force import Optimum, optimum
from hypothesis import given, settings
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
    placement_problems,
)

from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.objectives import Placed, Problem, place_for
from bayplan.planner.solve.predict import load_ns
from bayplan.schemas.hardware import Disk, Inventory
from bayplan.schemas.types import Backend, BoundClass, Objective

LAYER = 64 * MIB
"""And as many nanoseconds, since a byte takes one."""


def problem(
    chain: Chain,
    inventory: Inventory,
    budgets: dict[str, int] | None = None,
    *,
    objective: Objective = Objective.DECODE,
    generates: bool = True,
    is_auto: bool = False,
    no_spill: bool = False,
) -> Problem:
    every = {device.id: 2**50 for device in inventory.devices} | (budgets or {})
    return Problem(
        chain=chain,
        machine=Machine(inventory, every),
        constraints=resolve(chain, (), no_spill=no_spill),
        objective=objective,
        generates=generates,
        is_auto=is_auto,
    )


def devices(placed: Placed | None) -> list[int]:
    assert placed is not None
    return [choice.device for choice in placed.solution.answer.choices]


@pytest.mark.parametrize(
    ("objective", "generates", "phase"),
    [
        (Objective.DECODE, True, Objective.DECODE),
        (Objective.DECODE, False, Objective.PREFILL),
        (Objective.PREFILL, True, Objective.PREFILL),
        (Objective.THROUGHPUT, True, Objective.DECODE),
        (Objective.THROUGHPUT, False, Objective.PREFILL),
        (Objective.LOAD, True, Objective.DECODE),
        (Objective.BALANCED, True, Objective.DECODE),
        (Objective.SEQUENTIAL, False, Objective.PREFILL),
    ],
)
def test_which_step_is_made_fast(objective: Objective, generates: bool, phase: Objective) -> None:
    own = problem(make_chain([64]), gpus(1), objective=objective, generates=generates)
    assert own.phase is phase
    assert own.task().phase is phase


def test_a_task_has_a_cache_for_every_batch_in_flight() -> None:
    own = problem(make_chain([make_cost(64, kv_bytes=7)] * 2), gpus(1))
    assert [cost.kv_bytes for cost in own.task(3).chain.costs] == [21, 21]
    assert own.task(1).chain is own.chain


def test_the_objectives_step_decides() -> None:
    """The first device is fast for a token, the second for a chunk."""
    reads_fast = make_device("gpu0", flops_per_second=GIGA // 100)
    computes_fast = make_device("gpu1", memory_bytes_per_second=GIGA // 2)
    inventory = make_inventory([reads_fast, computes_fast], gpus(2).links)
    chain = make_chain([make_cost(LAYER, prefill_flops=4 * LAYER)] * 2)
    assert devices(place_for(problem(chain, inventory))) == [0, 0]
    assert devices(place_for(problem(chain, inventory, objective=Objective.PREFILL))) == [1, 1]


def test_throughput_has_every_device_busy() -> None:
    chain = make_chain([LAYER] * 6)
    latency = place_for(problem(chain, gpus(3)))
    throughput = place_for(problem(chain, gpus(3), objective=Objective.THROUGHPUT))
    assert throughput is not None
    assert devices(latency) == [0] * 6
    assert devices(throughput) == [0, 0, 1, 1, 2, 2]
    assert throughput.batches_in_flight == 3
    assert throughput.solution.step_ns == 2 * LAYER
    assert 0 < throughput.solution.lower_bound_ns <= 2 * LAYER


def test_no_more_batches_than_their_caches_fit() -> None:
    chain = make_chain([make_cost(LAYER, kv_bytes=LAYER)] * 2)
    budgets = {"node0/gpu0": 3 * LAYER, "node0/gpu1": 3 * LAYER}
    two = place_for(problem(chain, gpus(2), budgets, objective=Objective.THROUGHPUT, no_spill=True))
    assert two is not None
    assert (two.batches_in_flight, two.solution.step_ns) == (2, LAYER)
    budgets = {"node0/gpu0": 2 * LAYER, "node0/gpu1": 2 * LAYER}
    one = place_for(problem(chain, gpus(2), budgets, objective=Objective.THROUGHPUT, no_spill=True))
    assert one is not None
    assert (one.batches_in_flight, one.solution.step_ns) == (1, 2 * LAYER)


def quantizable(kv_bytes: int) -> Chain:
    """Two blocks with a cache, which four bits make a quarter as large and no faster."""
    nf4 = make_form(LAYER // 4, "nf4", quantized_bytes=LAYER)
    return make_chain([make_cost(LAYER, kv_bytes=kv_bytes, others=[nf4])] * 2)


def test_auto_rounds_nothing_for_one_more_batch() -> None:
    """With two caches beside each block, none has room in the model's own format."""
    chain = quantizable(LAYER // 2)
    budgets = {"node0/gpu0": 3 * LAYER // 2, "node0/gpu1": 3 * LAYER // 2}
    for is_auto, num_batches, form, pace_ns in ((True, 1, 0, 2 * LAYER), (False, 2, 1, LAYER)):
        own = problem(chain, gpus(2), budgets, objective=Objective.THROUGHPUT, is_auto=is_auto)
        placed = place_for(own)
        assert placed is not None
        assert placed.batches_in_flight == num_batches
        assert [choice.form for choice in placed.solution.answer.choices] == [form] * 2
        assert placed.solution.step_ns == pace_ns
        assert 0 < placed.solution.lower_bound_ns <= pace_ns


def test_auto_has_every_device_busy_where_that_rounds_no_more() -> None:
    for budget, form in ((2 * LAYER, 0), (5 * LAYER // 4, 1)):
        own = problem(
            quantizable(LAYER // 2),
            gpus(2),
            {"node0/gpu0": budget, "node0/gpu1": budget},
            objective=Objective.THROUGHPUT,
            is_auto=True,
        )
        placed = place_for(own)
        assert placed is not None
        assert placed.batches_in_flight == 2
        assert [choice.form for choice in placed.solution.answer.choices] == [form] * 2


@pytest.mark.parametrize("is_auto", [True, False])
def test_nothing_streams_for_one_more_batch(is_auto: bool) -> None:
    """With two caches something streams, which a link as fast as memory would hide."""
    chain = make_chain([make_cost(LAYER, kv_bytes=LAYER // 4)] * 8)
    budgets = {"node0/gpu0": 5 * LAYER, "node0/gpu1": 5 * LAYER}
    own = problem(chain, gpus(2), budgets, objective=Objective.THROUGHPUT, is_auto=is_auto)
    placed = place_for(own)
    assert placed is not None
    assert placed.batches_in_flight == 1
    assert not any(choice.streams for choice in placed.solution.answer.choices)
    fewer = place_for(
        problem(chain, gpus(2), dict.fromkeys(budgets, 4 * LAYER), objective=Objective.THROUGHPUT)
    )
    assert fewer is not None
    assert fewer.batches_in_flight == 2  # it streams in any case


def test_auto_uses_no_cpu_for_one_more_batch() -> None:
    """Beside two caches the accelerator has no room for the second block, though the CPU has."""
    inventory = make_inventory([make_device("gpu0"), make_device("cpu1")], gpus(1).links, disk_rate=None)
    own = problem(
        quantizable(3 * LAYER // 4),
        inventory,
        {"node0/gpu0": 7 * LAYER // 2},
        objective=Objective.THROUGHPUT,
        is_auto=True,
        no_spill=True,
    )
    placed = place_for(own)
    assert placed is not None
    assert (placed.batches_in_flight, devices(placed)) == (1, [0, 0])


def test_what_is_loaded_least_comes_before_what_steps_fastest() -> None:
    """In four bits a step takes no less here, and loading a quarter of the time."""
    cost = make_cost(LAYER, others=[make_form(LAYER // 4, "nf4", quantized_bytes=LAYER)])
    own = problem(make_chain([cost] * 2), gpus(1), objective=Objective.LOAD)
    placed = place_for(own)
    assert placed is not None
    assert [choice.form for choice in placed.solution.answer.choices] == [1, 1]
    assert load_ns(placed.task, placed.solution.answer) == 2 * LAYER // 4
    assert placed.solution.lower_bound_ns <= 2 * LAYER // 4


@pytest.mark.parametrize(
    ("objective", "expected"),
    [(Objective.BALANCED, [0, 0, 1, 1]), (Objective.SEQUENTIAL, [0, 0, 0, 1])],
)
def test_what_users_of_accelerate_know(objective: Objective, expected: list[int]) -> None:
    budgets = {"node0/gpu0": 3 * LAYER, "node0/gpu1": 4 * LAYER}
    chain = make_chain([LAYER] * 4)
    placed = place_for(problem(chain, gpus(2), budgets, objective=objective))
    assert placed is not None
    assert devices(placed) == expected
    assert placed.solution.step_ns == 4 * LAYER
    assert placed.solution.lower_bound_ns == 4 * LAYER


@pytest.mark.parametrize("objective", [Objective.BALANCED, Objective.SEQUENTIAL])
def test_where_not_all_can_stay_the_fastest_is_as_good(objective: Objective) -> None:
    budgets = {"node0/gpu0": 2 * LAYER}
    chain = make_chain([LAYER] * 4)
    placed = place_for(problem(chain, gpus(1), budgets, objective=objective))
    fastest = place_for(problem(chain, gpus(1), budgets))
    assert placed is not None
    assert fastest is not None
    assert placed.solution == fastest.solution
    assert any(choice.streams for choice in placed.solution.answer.choices)


@pytest.mark.parametrize("objective", [Objective.BALANCED, Objective.SEQUENTIAL])
def test_the_cpu_helps_only_where_the_accelerators_cannot_hold_all(objective: Objective) -> None:
    inventory = make_inventory(
        [make_device("gpu0"), make_device("gpu1"), make_device("cpu2")], gpus(2).links, disk_rate=None
    )
    budgets = {"node0/gpu0": 2 * LAYER, "node0/gpu1": 2 * LAYER}
    chain = make_chain([LAYER] * 4)
    assert devices(place_for(problem(chain, inventory, budgets, objective=objective))) == [0, 0, 1, 1]
    longer = make_chain([LAYER] * 5)
    own = problem(longer, inventory, budgets, objective=objective, no_spill=True)
    assert 2 in devices(place_for(own))


@pytest.mark.parametrize("objective", Objective)
def test_nothing_where_nothing_fits(objective: Objective) -> None:
    chain = make_chain([LAYER] * 4)
    budgets = {"node0/gpu0": 2 * LAYER}
    assert place_for(problem(chain, gpus(1), budgets, objective=objective, no_spill=True)) is None


@given(placement_problems(max_blocks=5))
@settings(max_examples=60, deadline=None)
def test_no_number_of_batches_is_faster_than_the_bound_of_throughput(drawn: PlacementProblem) -> None:
    own = Problem(
        chain=drawn.chain,
        machine=Machine(drawn.inventory, drawn.budgets),
        constraints=resolve(drawn.chain, drawn.pins, no_spill=drawn.no_spill),
        objective=Objective.THROUGHPUT,
        generates=drawn.phase is Objective.DECODE,
        is_auto=drawn.is_auto,
    )
    placed = place_for(own)
    every = [
        optimum(msgspec.structs.replace(drawn, chain=own.task(number).chain), num_batches=number)
        for number in range(1, max(1, len(own.machine.devices)) + 1)
    ]
    wanted = [wanted_first(drawn, one) for one in every if one is not None]
    assert (placed is None) == (not wanted)
    if placed is not None:
        # The first number of batches has the fewest of all: more leave less room.
        best_ns = min(one.best.step_ns for one in every if one and wanted_first(drawn, one) == min(wanted))
        assert placed.batches_in_flight <= len(own.machine.devices)
        assert placed.solution.lower_bound_ns <= best_ns <= placed.solution.step_ns


def wanted_first(drawn: PlacementProblem, one: Optimum) -> tuple[int, int]:
    """What comes before the pace, in order: where everything is, and how much of it is rounded."""
    if not one.is_resident:
        return 2, 0
    every = [device.backend is not Backend.CPU for device in drawn.inventory.devices]
    has_accelerator = any(
        own and drawn.budgets[device.id] for own, device in zip(every, drawn.inventory.devices, strict=True)
    )
    is_fast = not has_accelerator or all(every[device] for device in one.best.devices)
    return (0 if is_fast else 1), one.best.quantized_bytes if drawn.is_auto else 0


def test_what_streams_from_disk_is_not_loaded_though_host_memory_would_hold_it() -> None:
    chain = make_chain([LAYER] * 4)
    budgets = {"node0/gpu0": 3 * LAYER}
    fast = place_for(problem(chain, gpus(1), budgets))
    quick = place_for(problem(chain, gpus(1), budgets, objective=Objective.LOAD))
    assert fast is not None
    assert quick is not None
    assert load_ns(fast.task, fast.solution.answer) > load_ns(quick.task, quick.solution.answer) == 0
    assert quick.solution.lower_bound_ns == 0


def test_more_batches_do_not_stream_what_fits() -> None:
    """Two batches fit both devices, a fifth slower than one; streaming they would be faster still."""
    unit = 10**5
    devices = [make_device("gpu0"), make_device("gpu1", flops_per_second=GIGA // 3)]
    inventory = make_inventory(devices, [make_link("node0/gpu0"), make_link("node0/gpu1")], disk_rate=None)
    cost = make_cost(4 * unit, kv_bytes=4 * unit, decode_read_bytes=0, decode_flops=10**6)
    rooms = {"node0/gpu0": 80, "node0/gpu1": 48}
    budgets = {name: NO_ACTIVATIONS + room * unit + 1000 for name, room in rooms.items()}
    placed = place_for(problem(make_chain([cost] * 10), inventory, budgets, objective=Objective.THROUGHPUT))
    assert placed is not None
    assert (placed.batches_in_flight, placed.solution.step_ns) == (1, 10**7)
    assert placed.solution.bound_class is BoundClass.CONTIGUOUS_RESIDENT


def test_whatever_is_loaded_waits_for_the_disk_once() -> None:
    inventory = gpus(2)
    disk = Disk(read_bytes_per_second=GIGA, latency_ns=LAYER)
    nodes = tuple(msgspec.structs.replace(node, disk=disk) for node in inventory.nodes)
    own = problem(
        make_chain([LAYER] * 4),
        msgspec.structs.replace(inventory, nodes=nodes),
        {"node0/gpu0": 2 * LAYER, "node0/gpu1": 3 * LAYER},
        objective=Objective.LOAD,
    )
    placed = place_for(own)
    assert placed is not None
    assert load_ns(placed.task, placed.solution.answer) == 5 * LAYER
    assert placed.solution.lower_bound_ns > 4.999 * LAYER
