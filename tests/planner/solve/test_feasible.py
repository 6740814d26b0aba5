from __future__ import annotations

from brute_force import fastest
from hypothesis import given, settings
from placement_problems import (
    MIB,
    NO_ACTIVATIONS,
    PlacementProblem,
    gpus,
    make_chain,
    make_device,
    make_inventory,
    make_link,
    make_task,
    placement_problems,
)

from bayplan.planner.solve.feasible import is_feasible, quick_verdict
from bayplan.planner.solve.placement import place
from bayplan.planner.solve.task import Task


@given(placement_problems(max_blocks=5))
@settings(max_examples=120)
def test_feasible_is_what_has_a_placement(problem: PlacementProblem) -> None:
    task = problem.task()
    exists = fastest(problem, can_stream=not problem.no_spill) is not None
    assert is_feasible(task) is exists
    assert (place(task) is not None) is exists
    assert quick_verdict(task) in (None, exists)


def without_disk(host_mib: int) -> Task:
    """Four blocks of 4 MiB on a device for two and a slot; what streams waits in host memory."""
    inventory = make_inventory(
        [make_device("gpu0")], [make_link("node0/gpu0")], disk_rate=None, host_memory_bytes=host_mib * MIB
    )
    return make_task(make_chain([4 * MIB] * 4), inventory, {"node0/gpu0": 12 * MIB + NO_ACTIVATIONS})


def test_the_leanest_placement_needs_no_search() -> None:
    assert quick_verdict(without_disk(16)) is True
    assert quick_verdict(make_task(make_chain([4 * MIB]), gpus(1), {"node0/gpu0": 4 * MIB - 1})) is False


def test_where_host_memory_is_scarce_fewer_blocks_may_have_to_stream() -> None:
    """Two stay and two wait: neither the leanest one of the device nor everything resident."""
    for host_mib, exists in ((8, True), (7, False)):
        assert quick_verdict(without_disk(host_mib)) is None
        assert is_feasible(without_disk(host_mib)) is exists


def test_devices_that_share_host_memory() -> None:
    """Each has room for all of it, but together they have not."""
    devices = [make_device("gpu0", shares_host_memory=True), make_device("cpu")]
    inventory = make_inventory(
        devices, [make_link("node0/gpu0")], disk_rate=None, host_memory_bytes=8 * MIB + 2 * NO_ACTIVATIONS
    )
    for size, exists in ((4 * MIB, True), (4 * MIB + 64, False)):
        budgets = {"node0/gpu0": 5 * MIB, "node0/cpu": 5 * MIB}
        assert is_feasible(make_task(make_chain([size] * 2), inventory, budgets, no_spill=True)) is exists
