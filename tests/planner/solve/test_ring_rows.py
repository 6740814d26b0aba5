from __future__ import annotations

from collections.abc import Sequence

from placement_problems import GIGA, MIB, gpus, make_chain, make_cost, make_inventory, make_link, make_task

from bayplan.planner.solve.modes import MILLISECOND
from bayplan.planner.solve.placement import place
from bayplan.planner.solve.program import PlacementProgram
from bayplan.planner.solve.task import Task
from bayplan.schemas.problem import BlockRun, Pin
from bayplan.schemas.types import Residency

LAYER = 64 * MIB
COMPUTE, TRANSFER = 64, 256
"""MiB that take as long as one layer's computing, and its transfer from host memory."""


def streaming(costs: Sequence[BlockRun | int], streamed: Sequence[int], num_slots: int) -> Task:
    """Blocks of which some are told to stream, on a device with room for all others and so many slots."""
    stays = [index for index in range(len(costs)) if index not in streamed]
    pins = (
        *(Pin(pattern=f"*.{index}", residency=Residency.STREAM_HOST) for index in streamed),
        *(Pin(pattern=f"*.{index}", residency=Residency.RESIDENT) for index in stays),
    )
    inventory = make_inventory(gpus(1).devices, [make_link("node0/gpu0", rate=GIGA // 4)])
    room = (len(stays) + num_slots) * LAYER
    return make_task(make_chain(costs), inventory, {"node0/gpu0": room}, pins=pins)


def least_mib(task: Task) -> int:
    """Return the program's bound, which a placement must reach: both in what a MiB takes."""
    program = PlacementProgram(task, can_stream=True)
    found = program.minimise([(program.time, 1.0)], relative_gap=0.0)
    best = place(task)
    assert best is not None
    bound_mib = round(found.objective * MILLISECOND / MIB)
    assert best.step_ns == bound_mib * MIB
    return bound_mib


def test_two_slots_overlap_all_but_nothing_where_the_number_is_even() -> None:
    assert least_mib(streaming([LAYER] * 8, (1, 3, 5, 7), 2)) == 4 * TRANSFER


def test_one_block_too_many_keeps_the_courier_waiting_while_it_computes() -> None:
    """The first and the last have the same slot, so between two steps nothing overlaps."""
    assert least_mib(streaming([LAYER] * 8, (1, 4, 7), 2)) == 3 * TRANSFER + COMPUTE


def test_a_small_block_does_not_make_the_number_even() -> None:
    costs = [*[LAYER] * 7, make_cost(MIB, decode_read_bytes=LAYER)]
    assert least_mib(streaming(costs, (1, 3, 5, 7), 2)) == 3 * TRANSFER + 4 + COMPUTE - 4


def test_through_one_slot_the_first_waits_for_the_last() -> None:
    """The last computes for twice as long, the six between them do not hide the transfer of the first."""
    costs = [make_cost(LAYER, decode_read_bytes=LAYER // 2), *[LAYER] * 6, make_cost(LAYER)]
    costs[-1] = make_cost(LAYER, decode_read_bytes=2 * LAYER)
    assert least_mib(streaming(costs, (0, 7), 1)) == COMPUTE // 2 + 6 * COMPUTE + 2 * COMPUTE + TRANSFER


def test_a_long_visit_hides_one_transfer_for_each_slot() -> None:
    """It takes ten times as long as others: as long as two transfers and a half."""
    costs = [LAYER, LAYER, LAYER, make_cost(LAYER, decode_read_bytes=10 * LAYER)]
    assert least_mib(streaming(costs, (0, 1, 2), 1)) == 3 * COMPUTE + 2 * TRANSFER + 10 * COMPUTE
