from __future__ import annotations

from itertools import pairwise

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
    make_form,
    make_inventory,
    make_link,
    make_node,
    make_task,
    placement_problems,
)

from bayplan.planner.solve.answer import Choice
from bayplan.planner.solve.chain import ChainTie
from bayplan.planner.solve.integer_program import End, Found
from bayplan.planner.solve.ledger import shortages
from bayplan.planner.solve.modes import MILLISECOND, Rounding
from bayplan.planner.solve.program import PlacementProgram
from bayplan.planner.solve.spacing import arrangements
from bayplan.planner.solve.task import Task
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Objective, Reason, Residency

HOST = Residency.STREAM_HOST
LAYER = 64 * MIB
STRICT = Rounding(margin_bytes=MIB, is_above=True)


def least_ns(program: PlacementProgram) -> int | None:
    found = solved(program)
    return round(found.objective * MILLISECOND) if found.values else None


def solved(program: PlacementProgram) -> Found:
    return program.minimise([(program.time, 1.0)], relative_gap=0.0)


def one_gpu(count: int, room: int, *, rate: int = GIGA, can_stream: bool = True) -> PlacementProgram:
    """Equal blocks, of which so many fit."""
    task = make_task(make_chain([LAYER] * count), gpus(1, rate=rate), {"node0/gpu0": room * LAYER})
    return PlacementProgram(task, can_stream=can_stream)


def test_all_stay_where_they_fit() -> None:
    program = one_gpu(4, 4)
    counts = program.counts(solved(program))
    assert counts.cuts == (4,)
    assert counts.modes == (((0, Choice(device=0), 4),),)
    assert least_ns(program) == 4 * LAYER


def test_nothing_where_nothing_fits() -> None:
    assert solved(one_gpu(4, 3, can_stream=False)).end is End.INFEASIBLE
    assert least_ns(one_gpu(4, 3, can_stream=False)) is None


def test_slots_take_room_and_transfers_take_time() -> None:
    """Of 40 blocks 18 stay beside two slots, and the rest travel for 256 each.

    Beside one slot 19 stay, but then each of the rest waits for the one before it to compute.
    """
    program = one_gpu(40, 20, rate=GIGA // 4)
    counts = program.counts(solved(program))
    assert counts.num_slots == (2,)
    assert [(choice.residency, number) for _, choice, number in counts.modes[0]] == [
        (Residency.RESIDENT, 18),
        (HOST, 22),
    ]
    assert least_ns(program) == 22 * 4 * LAYER


def test_one_slot_has_no_overlap() -> None:
    assert least_ns(one_gpu(2, 1)) == 4 * LAYER


def test_the_first_transfer_waits_for_the_first_block_and_the_last_is_followed_by_its_own() -> None:
    """Both slots are full when the step begins; the third block travels after the first has computed."""
    first = tuple(Pin(pattern=f"*.{index}", device="node0/gpu0", residency=HOST) for index in range(3))
    rest = tuple(Pin(pattern=f"*.{index}", device="node0/gpu1") for index in range(3, 13))
    task = make_task(
        make_chain([LAYER] * 13), gpus(2, rate=GIGA // 2), {"node0/gpu0": 2 * LAYER}, pins=(*first, *rest)
    )
    assert least_ns(PlacementProgram(task, can_stream=True)) == (64 + 128 + 64 + 10 * 64) * MIB


def test_a_window_is_as_long_as_what_comes_late() -> None:
    """Both devices stream two of three through one slot: each window has one transfer, beside nothing."""
    task = make_task(
        make_chain([LAYER] * 6),
        gpus(2, rate=GIGA // 8),
        {"node0/gpu0": 2 * LAYER, "node0/gpu1": 2 * LAYER},
    )
    assert least_ns(PlacementProgram(task, can_stream=True)) == 2 * (512 + 2 * 64) * MIB


def test_links_of_one_group_share_their_bandwidth() -> None:
    task = make_task(
        make_chain([LAYER] * 6),
        gpus(2, rate=GIGA // 8, group="switch"),
        {"node0/gpu0": 2 * LAYER, "node0/gpu1": 2 * LAYER},
    )
    least = least_ns(PlacementProgram(task, can_stream=True))
    assert least is not None
    assert least >= 3 * (512 + 64) * MIB - 1  # a nanosecond is the solver's tolerance


def test_only_some_devices_are_used() -> None:
    task = make_task(make_chain([LAYER] * 4), gpus(3), {f"node0/gpu{n}": 2 * LAYER for n in range(3)})
    program = PlacementProgram(task, can_stream=False, only=frozenset({0, 2}))
    counts = program.counts(solved(program))
    assert [sum(number for _, _, number in modes) for modes in counts.modes] == [2, 0, 2]


def test_no_way_leads_over_a_device_without_blocks() -> None:
    """Between the first and the last accelerator there is none, though both can reach the CPU."""
    inventory = make_inventory(
        [make_device("gpu0"), make_device("cpu1"), make_device("gpu2")],
        [make_link("node0/gpu0", "node0/cpu1"), make_link("node0/gpu2")],
    )
    budgets = {"node0/gpu0": LAYER, "node0/cpu1": LAYER, "node0/gpu2": LAYER}
    two = make_task(make_chain([LAYER] * 2), inventory, budgets)
    accelerators = frozenset({0, 2})
    assert least_ns(PlacementProgram(two, can_stream=False, only=accelerators)) is None
    assert least_ns(PlacementProgram(two, can_stream=False)) == 2 * LAYER


def test_a_hop_takes_what_crosses() -> None:
    costs = [make_cost(LAYER, decode_output_bytes=size) for size in (8 * MIB, 2 * MIB, 8 * MIB, 0)]
    task = make_task(
        make_chain(costs), gpus(2, latency_ns=MIB), {"node0/gpu0": 3 * LAYER, "node0/gpu1": 3 * LAYER}
    )
    least = least_ns(PlacementProgram(task, can_stream=False))
    assert least is not None
    # Blocks that differ by what they hand on are alike to the program, so it takes the least of all.
    assert 4 * LAYER + 2 * MIB <= least <= 4 * LAYER + 2 * (1 + 2) * MIB


def test_a_tied_storage_is_there_twice_where_its_blocks_are_apart() -> None:
    ties = [ChainTie(positions=(0, 3), num_bytes=LAYER)]
    first, last = make_cost(LAYER, resident_reason=Reason.TIED), make_cost(0, decode_read_bytes=LAYER)
    chain = make_chain([first, make_cost(LAYER), make_cost(LAYER), last], ties=ties)
    for room, is_enough in ((2, True), (1, False)):
        budgets = {"node0/gpu0": 2 * LAYER, "node0/gpu1": room * LAYER}
        program = PlacementProgram(make_task(chain, gpus(2), budgets), can_stream=False)
        assert (least_ns(program) is not None) is is_enough


def host_task(host_bytes: int, pinned_bytes: int | None) -> Task:
    node = make_node(host_memory_bytes=host_bytes, pinned_memory_bytes=pinned_bytes, disk_rate=GIGA // 64)
    inventory = make_inventory([make_device("gpu0")], [make_link("node0/gpu0")], nodes=[node])
    return make_task(make_chain([LAYER] * 6), inventory, {"node0/gpu0": 2 * LAYER})


@pytest.mark.parametrize(
    ("host_layers", "pinned_layers", "from_host"), [(5, None, 5), (3, None, 3), (6, 2, 2), (1, 5, 1)]
)
def test_what_waits_in_host_memory_fits_it_and_what_may_be_pinned(
    host_layers: int, pinned_layers: int | None, from_host: int
) -> None:
    pinned = None if pinned_layers is None else pinned_layers * LAYER
    program = PlacementProgram(host_task(host_layers * LAYER, pinned), can_stream=True)
    counts = program.counts(solved(program))
    assert sum(number for _, choice, number in counts.modes[0] if choice.residency is HOST) == from_host


QUANTIZED = make_cost(LAYER, others=[make_form(LAYER // 4, "nf4", quantized_bytes=LAYER)])


def test_the_fewest_rounded_bytes() -> None:
    task = make_task(make_chain([QUANTIZED] * 8), gpus(1), {"node0/gpu0": 5 * LAYER})
    program = PlacementProgram(task, can_stream=False)
    found = program.minimise(program.quantized(), relative_gap=0.0)
    assert found.objective == pytest.approx(program.units(4 * LAYER))
    program.limit(program.quantized(), 3.5 * program.units(LAYER))
    assert solved(program).end is End.INFEASIBLE


def test_the_least_time_to_load() -> None:
    """What streams from disk is not loaded."""
    program = PlacementProgram(host_task(LAYER, None), can_stream=True)
    load = program.add_load_time()
    assert program.minimise([(load, 1.0)], relative_gap=0.0).objective == pytest.approx(0.0)
    stays = PlacementProgram(make_task(make_chain([LAYER] * 4), gpus(1)), can_stream=False)
    load = stays.add_load_time()
    found = stays.minimise([(load, 1.0)], relative_gap=0.0)
    assert found.objective == pytest.approx(4 * LAYER / MILLISECOND)


def test_several_batches_share_a_step() -> None:
    task = make_task(make_chain([LAYER] * 6), gpus(3))
    for num_batches, expected in ((1, 6), (2, 3), (3, 2), (4, 2)):
        program = PlacementProgram(task, can_stream=False, num_batches=num_batches)
        assert least_ns(program) == expected * LAYER


def test_blocks_with_other_marks_are_told_apart() -> None:
    task = make_task(make_chain([LAYER] * 4), gpus(1))
    assert PlacementProgram(task, can_stream=False).kinds == (0, 0, 0, 0)
    assert PlacementProgram(task, can_stream=False, marks=("a", "b", "b", "a")).kinds == (0, 1, 1, 0)


@given(placement_problems(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_strict_program_fits_exactly(problem: PlacementProblem, can_stream: bool) -> None:
    task = problem.task()
    assume(task.machine.devices)
    streams = can_stream and not problem.no_spill
    strict = PlacementProgram(task, can_stream=streams, rounding=STRICT)
    found = solved(strict)
    assume(found.values)
    for answer in arrangements(task, strict.counts(found), strict.kinds):
        assert shortages(task, answer) == ()
        assert all(task.may(index, choice) for index, choice in enumerate(answer.choices))
    relaxed = solved(PlacementProgram(task, can_stream=streams))
    assert relaxed.objective <= found.objective * (1 + 1e-6) + 1e-6


def test_the_phase_of_the_task_counts() -> None:
    task = make_task(make_chain([LAYER] * 2), gpus(1), phase=Objective.PREFILL)
    assert least_ns(PlacementProgram(task, can_stream=False)) == 4 * LAYER


def test_batches_in_flight_leave_time_on_the_way_for_what_is_shared() -> None:
    """Three devices behind one switch, but one streams: while a batch is on its way the switch serves it."""
    million = 10**6
    devices = [make_device(f"gpu{number}") for number in range(3)]
    names = [device.id for device in devices]
    links = [make_link(name, group="switch") for name in names]
    links += [make_link(one, other, latency_ns=10 * million) for one, other in pairwise(names)]
    blocks = [make_cost(10 * million, decode_read_bytes=million // 10), million // 10, million // 10]
    pins = (
        Pin(pattern="layers.0", device=names[0], residency=HOST),
        Pin(pattern="layers.1", device=names[1]),
        Pin(pattern="layers.2", device=names[2]),
    )
    inventory = make_inventory(devices, links, disk_rate=None)
    task = make_task(make_chain(blocks), inventory, dict.fromkeys(names, 2**40), pins=pins)
    # Two ways of 10 ms for either of two batches: every other 10 ms a batch ends.
    assert least_ns(PlacementProgram(task, can_stream=True, num_batches=2)) == 10_150_000
