from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from placement_problems import (
    MIB,
    NO_ACTIVATIONS,
    PlacementProblem,
    gpus,
    make_chain,
    make_device,
    make_inventory,
    make_link,
    make_node,
    placement_problems,
)

from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.enough import COARSE_BYTES, machine_relaxations, with_machine
from bayplan.planner.solve.infeasible import NoPlacement, budgets_of, infeasible
from bayplan.planner.solve.machine import Machine, lies_in_host_memory
from bayplan.planner.solve.objectives import Problem, place_for
from bayplan.schemas.certificate import Axis, Relaxation
from bayplan.schemas.hardware import Disk, Inventory
from bayplan.schemas.types import Objective

GPU, CPU = "node0/gpu0", "node0/cpu"


def problem_of(
    chain: Chain, inventory: Inventory, budgets: Mapping[str, int], *, no_spill: bool = False
) -> Problem:
    return Problem(
        chain=chain,
        machine=Machine(inventory, {**{device.id: 2**50 for device in inventory.devices}, **budgets}),
        constraints=resolve(chain, (), no_spill=no_spill),
        objective=Objective.DECODE,
        generates=True,
    )


def relaxations(problem: Problem, *fixed: str) -> dict[tuple[Axis, str], Relaxation]:
    assert place_for(problem) is None
    return {(one.axis, one.subject): one for one in machine_relaxations(problem, fixed)}


def changed(problem: Problem, one: Relaxation, value: object, fixed: set[str]) -> Problem:
    """The problem with one thing as a relaxation says, made without the code that searches."""
    inventory, budgets = problem.machine.inventory, budgets_of(problem.machine)
    place = {node.id: number for number, node in enumerate(inventory.nodes)}.get(one.subject, 0)
    node = inventory.nodes[place]
    match one.axis:
        case Axis.DEVICE_MEMORY:
            assert isinstance(value, int)
            budgets[one.subject] = value
        case Axis.HOST_MEMORY:
            assert isinstance(value, int)
            more = value - node.host_memory_bytes
            node = msgspec.structs.replace(node, host_memory_bytes=value)
            for device in inventory.devices:
                is_inside = lies_in_host_memory(device) and device.id.startswith(f"{node.id}/")
                if is_inside and device.id not in fixed:
                    budgets[device.id] += more
        case Axis.PINNED_MEMORY:
            assert isinstance(value, int)
            node = msgspec.structs.replace(node, pinned_memory_bytes=value)
        case Axis.DISK:
            node = msgspec.structs.replace(node, disk=Disk(read_bytes_per_second=7, latency_ns=3))
        case Axis.STREAMING:
            constraints = msgspec.structs.replace(problem.constraints, no_spill=False)
            return msgspec.structs.replace(problem, constraints=constraints)
        case _:
            pytest.fail(f"no axis of a machine: {one.axis}")
    nodes = (*inventory.nodes[:place], node, *inventory.nodes[place + 1 :])
    return with_machine(problem, msgspec.structs.replace(inventory, nodes=nodes), budgets)


@given(placement_problems(max_blocks=5))
@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
def test_what_is_enough_has_a_placement_and_a_step_less_has_none(drawn: PlacementProblem) -> None:
    problem = Problem(
        chain=drawn.chain,
        machine=Machine(drawn.inventory, drawn.budgets),
        constraints=resolve(drawn.chain, drawn.pins, no_spill=drawn.no_spill),
        objective=Objective.DECODE,
        generates=True,
    )
    assume(place_for(problem) is None)
    assume(isinstance(infeasible(problem), NoPlacement))
    fixed = {device.id for device in drawn.inventory.devices[:1]}
    for one in machine_relaxations(problem, fixed):
        event(f"{one.axis}: {one.helps}, step {one.step}")
        if one.enough is not None:
            assert place_for(changed(problem, one, one.enough, fixed)) is not None
        elif one.axis in (Axis.DISK, Axis.STREAMING):
            assert place_for(changed(problem, one, None, fixed)) is None
        if one.too_little is not None:
            assert place_for(changed(problem, one, one.too_little, fixed)) is None
        if isinstance(one.enough, int) and isinstance(one.too_little, int) and isinstance(one.given, int):
            assert one.given <= one.too_little == one.enough - (one.step or 0)


def test_the_budget_of_each_device_to_the_byte() -> None:
    """Either holds what the other does not."""
    chain = make_chain([4 * MIB] * 4)
    found = relaxations(problem_of(chain, gpus(2), {GPU: 6 * MIB, "node0/gpu1": 6 * MIB}, no_spill=True))
    needed = 3 * 4 * MIB + NO_ACTIVATIONS
    expected = Relaxation(
        axis=Axis.DEVICE_MEMORY,
        subject=GPU,
        given=6 * MIB,
        enough=needed,
        too_little=needed - 1,
        step=1,
        limit=2**50,
    )
    assert found[Axis.DEVICE_MEMORY, GPU] == expected
    assert found[Axis.DEVICE_MEMORY, "node0/gpu1"] == msgspec.structs.replace(expected, subject="node0/gpu1")
    assert found[Axis.STREAMING, ""] == Relaxation(axis=Axis.STREAMING, given="forbidden", enough="allowed")


def test_devices_that_are_alike_may_need_different_budgets() -> None:
    """The first device has to take the large block that comes first."""
    chain = make_chain([8 * MIB, MIB, MIB, MIB])
    found = relaxations(problem_of(chain, gpus(2), {GPU: 2 * MIB, "node0/gpu1": 2 * MIB}, no_spill=True))
    assert found[Axis.DEVICE_MEMORY, GPU].enough == 9 * MIB + NO_ACTIVATIONS
    assert found[Axis.DEVICE_MEMORY, "node0/gpu1"].enough == 11 * MIB + NO_ACTIVATIONS


def test_more_memory_of_a_device_is_not_enough_where_no_way_leads_from_it() -> None:
    inventory = make_inventory([make_device("gpu0"), make_device("gpu1")])
    chain = make_chain([2 * MIB] * 3)
    problem = problem_of(chain, inventory, {GPU: 3 * MIB, "node0/gpu1": 3 * MIB})
    found = relaxations(problem)
    assert found[Axis.DEVICE_MEMORY, GPU].enough == 6 * MIB + NO_ACTIVATIONS
    assert found[Axis.HOST_MEMORY, "node0"] == Relaxation(
        axis=Axis.HOST_MEMORY, subject="node0", given=2**50, too_little=2**50 + 8 * MIB + NO_ACTIVATIONS
    )


def check_coarse(one: Relaxation, truth: int) -> None:
    """The true threshold lies within the step that the relaxation tells."""
    assert isinstance(one.enough, int)
    assert isinstance(one.too_little, int)
    assert one.too_little < truth <= one.enough
    assert one.step == one.enough - one.too_little <= COARSE_BYTES


def test_more_host_memory_makes_room_to_wait() -> None:
    """All four blocks wait, since the device has a byte too little for a second one.

    Each question is a search here, so the answer is less fine.
    """
    inventory = make_inventory(
        [make_device("gpu0")], [make_link(GPU)], disk_rate=None, host_memory_bytes=8 * MIB
    )
    budget = 8 * MIB + NO_ACTIVATIONS - 1
    found = relaxations(problem_of(make_chain([4 * MIB] * 4), inventory, {GPU: budget}))
    host = found[Axis.HOST_MEMORY, "node0"]
    check_coarse(host, 16 * MIB)
    disk = Relaxation(axis=Axis.DISK, subject="node0", enough="a disk")
    assert found[Axis.DISK, "node0"] == disk
    assert found[Axis.DEVICE_MEMORY, GPU].enough is not None


def test_pinned_memory_is_an_axis_where_it_is_limited() -> None:
    node = make_node(disk_rate=None, pinned_memory_bytes=8 * MIB)
    inventory = make_inventory([make_device("gpu0")], [make_link(GPU)], nodes=[node])
    budget = 4 * MIB + NO_ACTIVATIONS
    found = relaxations(problem_of(make_chain([4 * MIB] * 4), inventory, {GPU: budget}))
    pinned = found[Axis.PINNED_MEMORY, "node0"]
    assert pinned.given == 8 * MIB
    check_coarse(pinned, 16 * MIB)
    assert found[Axis.HOST_MEMORY, "node0"].enough is None


def test_devices_in_host_memory_grow_with_it_unless_the_user_gave_them_a_budget() -> None:
    inventory = make_inventory([make_device("cpu")], host_memory_bytes=8 * MIB, disk_rate=None)
    problem = problem_of(make_chain([4 * MIB] * 3), inventory, {CPU: 8 * MIB})
    assert relaxations(problem)[Axis.HOST_MEMORY, "node0"].enough == 12 * MIB + NO_ACTIVATIONS
    assert relaxations(problem, CPU)[Axis.HOST_MEMORY, "node0"].enough is None


def test_streaming_alone_may_not_be_enough() -> None:
    chain = make_chain([4 * MIB] * 2)
    found = relaxations(problem_of(chain, gpus(1), {GPU: 3 * MIB}, no_spill=True))
    assert found[Axis.STREAMING, ""] == Relaxation(axis=Axis.STREAMING, given="forbidden")
    assert not found[Axis.STREAMING, ""].helps


@pytest.mark.parametrize("no_spill", [False, True])
def test_axes_that_make_no_sense_are_left_out(no_spill: bool) -> None:
    inventory = make_inventory([make_device("gpu0")], [make_link(GPU)], disk_rate=None, host_memory_bytes=1)
    found = relaxations(problem_of(make_chain([MIB] * 2), inventory, {GPU: MIB}, no_spill=no_spill))
    extra = (Axis.STREAMING, "") if no_spill else (Axis.DISK, "node0")
    assert set(found) == {(Axis.DEVICE_MEMORY, GPU), (Axis.HOST_MEMORY, "node0"), extra}
