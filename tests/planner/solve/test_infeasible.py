from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import assume, given, settings
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
    placement_problems,
)

from bayplan.planner.solve.chain import Chain, ChainTie
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.infeasible import NoPlacement, budgets_of, infeasible
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.objectives import Problem, place_for
from bayplan.schemas.errors import BayplanError, ExitCode, Infeasible
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Objective, Reason, Residency

ONE_GPU = gpus(1)
TWO_GPUS = gpus(2)
CHAIN = make_chain([make_cost(8 * MIB, kv_bytes=MIB, resident_reason=Reason.TIED), 2 * MIB, 4 * MIB])


def problem_of(
    chain: Chain,
    inventory: Inventory,
    budgets: Mapping[str, int] | None = None,
    *,
    pins: tuple[Pin, ...] = (),
    no_spill: bool = False,
) -> Problem:
    every = {device.id: 2**50 for device in inventory.devices} | dict(budgets or {})
    return Problem(
        chain=chain,
        machine=Machine(inventory, every),
        constraints=resolve(chain, pins, no_spill=no_spill),
        objective=Objective.DECODE,
        generates=True,
    )


def error(problem: Problem) -> BayplanError:
    assert place_for(problem) is None
    found = infeasible(problem)
    assert found.exit_code is ExitCode.INFEASIBLE
    return found


@given(placement_problems(max_blocks=5))
@settings(max_examples=150)
def test_whatever_has_no_placement_has_a_reason(drawn: PlacementProblem) -> None:
    problem = problem_of(
        drawn.chain, drawn.inventory, drawn.budgets, pins=drawn.pins, no_spill=drawn.no_spill
    )
    assume(place_for(problem) is None)
    found = infeasible(problem)
    assert isinstance(found, Infeasible)
    roomy = problem_of(drawn.chain, _vast(drawn), pins=drawn.pins, no_spill=drawn.no_spill)
    is_contradiction = place_for(roomy) is None
    assert isinstance(found, NoPlacement) is not is_contradiction


def _vast(drawn: PlacementProblem) -> Inventory:
    """The same devices that have a budget, with all the memory there could be."""
    nodes = tuple(
        msgspec.structs.replace(node, host_memory_bytes=2**52, pinned_memory_bytes=None)
        for node in drawn.inventory.nodes
    )
    devices = tuple(device for device in drawn.inventory.devices if drawn.budgets[device.id])
    ids = {device.id for device in drawn.inventory.devices} - {device.id for device in devices}
    links = tuple(link for link in drawn.inventory.links if not ids & {link.source, link.target})
    return msgspec.structs.replace(drawn.inventory, nodes=nodes, devices=devices, links=links)


def test_no_device_may_compute() -> None:
    assert str(error(problem_of(CHAIN, ONE_GPU, {"node0/gpu0": 0}))) == (
        "inventory: no device may compute: needed at least one device with a budget above zero\n"
        "hint: a declared host computes only with --cpu; see --max-memory for budgets"
    )


def test_too_little_for_all_of_it() -> None:
    found = error(problem_of(CHAIN, ONE_GPU, {"node0/gpu0": 12 * MIB}))
    assert str(found) == "node0/gpu0: no placement fits the budgets: got 12.00 MiB on node0/gpu0"
    assert isinstance(found, NoPlacement)
    assert (found.block, found.problem.chain) == ("", CHAIN)


def test_many_devices_are_counted_and_those_of_one_size_come_together() -> None:
    budgets = {f"node0/gpu{number}": (2 + number // 4) * MIB for number in range(5)}
    chain = make_chain([MIB] * 40)
    found = error(problem_of(chain, gpus(5), budgets, no_spill=True))
    assert str(found) == (
        "node0/gpu0, node0/gpu1, node0/gpu2 and 2 more: no placement fits the budgets: got "
        "2.00 MiB on node0/gpu0, node0/gpu1, node0/gpu2 and 1 more, 3.00 MiB on node0/gpu4"
    )


def test_a_block_larger_than_every_slot() -> None:
    """Of two such blocks the larger one is named, in the smallest form that it may have."""
    packed = make_form(6 * MIB, "nf4")
    chain = make_chain([2 * MIB, 5 * MIB, make_cost(9 * MIB, others=(packed,), kv_bytes=MIB), MIB])
    found = error(problem_of(chain, TWO_GPUS, {"node0/gpu0": 3 * MIB, "node0/gpu1": 4 * MIB}))
    assert str(found) == (
        "layers.2: a block fits no device, not even streamed, since a slot holds it as a whole: "
        "got slots of at most 2.00 MiB on node0/gpu0, 3.00 MiB on node0/gpu1, "
        "needed 7.00 MiB for layers.2 alone: 6.00 MiB of weights in nf4, 1.00 MiB besides"
    )
    assert isinstance(found, NoPlacement)
    assert found.block == "layers.2"


def test_a_block_is_only_held_against_the_devices_that_it_may_be_on() -> None:
    pins = (Pin(pattern="layers.1", device="node0/gpu1"),)
    chain = make_chain([2 * MIB, 5 * MIB])
    budgets = {"node0/gpu0": 8 * MIB, "node0/gpu1": 4 * MIB}
    assert str(error(problem_of(chain, TWO_GPUS, budgets, pins=pins))) == (
        "layers.1: a block fits no device, not even streamed, since a slot holds it as a whole: "
        "got slots of at most 4.00 MiB on node0/gpu1, "
        "needed 5.00 MiB for layers.1 alone: 5.00 MiB of weights in bf16, 0 B besides"
    )


def test_activations_that_no_device_holds() -> None:
    chain = make_chain([make_cost(64, decode_activation_bytes=31 * MIB)], base_activation_bytes=MIB)
    assert str(error(problem_of(chain, ONE_GPU, {"node0/gpu0": 32 * MIB}))) == (
        "node0/gpu0: no device holds the activations and the cache of one block: "
        "got 32.00 MiB on node0/gpu0, "
        "needed 33.00 MiB for layers.0 alone: 64 B of weights in bf16, 33.00 MiB besides"
    )


def test_pinned_to_a_device_that_may_hold_nothing() -> None:
    pins = (Pin(pattern="layers.1", device="node0/gpu0"),)
    assert str(error(problem_of(CHAIN, TWO_GPUS, {"node0/gpu0": 0}, pins=pins))) == (
        "layers.1: pinned to a device that may hold nothing: node0/gpu0: needed one of node0/gpu1\n"
        "hint: see --max-memory for budgets"
    )


def test_pinned_against_the_order_of_devices() -> None:
    pins = (
        Pin(pattern="layers.0", device="node0/gpu1"),
        Pin(pattern="layers.2", device="node0/gpu0"),
    )
    assert str(error(problem_of(CHAIN, TWO_GPUS, pins=pins))) == (
        "layers.2: pinned against the order in which devices follow each other: "
        "got node0/gpu0, after layers.0 on node0/gpu1, "
        "needed devices in the order node0/gpu0, node0/gpu1\n"
        "hint: blocks run in one stretch on each device; the order is that of the inventory"
    )


def test_pinned_back_to_where_a_tied_storage_is() -> None:
    """Only the budgets are too small then; of two devices apart, the first order counts."""
    chain = make_chain([64] * 3, ties=[ChainTie(positions=(0, 2), num_bytes=64)])
    pins = (Pin(pattern="layers.1", device="node0/gpu1"), Pin(pattern="layers.2", device="node0/gpu0"))
    back = problem_of(chain, TWO_GPUS, pins=pins)
    assert place_for(back) is not None
    tight = problem_of(chain, TWO_GPUS, {"node0/gpu0": 64, "node0/gpu1": 64}, pins=pins)
    assert isinstance(error(tight), NoPlacement)
    apart = (*pins, Pin(pattern="layers.0", device="node0/gpu1"))
    assert error(problem_of(chain, TWO_GPUS, pins=apart)).what == (
        "pinned against the order in which devices follow each other"
    )


def test_nothing_brings_a_block_in_from_host_memory() -> None:
    pins = (Pin(pattern="layers.1", residency=Residency.STREAM_HOST),)
    assert str(error(problem_of(CHAIN, make_inventory([make_device("cpu")]), pins=pins))) == (
        "layers.1: nothing brings its weights in before each visit: got pinned to stream-host, "
        "needed a link from host memory to node0/cpu, which must not lie in it"
    )


def test_nothing_brings_a_block_in_from_disk() -> None:
    pins = (Pin(pattern="layers.1", device="node0/gpu0", residency=Residency.STREAM_DISK),)
    inventory = make_inventory(TWO_GPUS.devices, TWO_GPUS.links, disk_rate=None)
    assert str(error(problem_of(CHAIN, inventory, pins=pins))) == (
        "layers.1: nothing brings its weights in before each visit: got pinned to stream-disk, "
        "needed a disk, and a way from it to node0/gpu0"
    )


def test_nothing_to_bring_in() -> None:
    pins = (Pin(pattern="layers.1", residency=Residency.STREAM_DISK),)
    assert str(error(problem_of(make_chain([MIB, 0]), ONE_GPU, pins=pins))) == (
        "layers.1: pinned to stream, but there are no weights to bring in: got stream-disk, needed resident"
    )


@pytest.mark.parametrize("middle", [(), (Pin(pattern="layers.1", device="node0/gpu1"),)])
def test_no_way_from_device_to_device(middle: tuple[Pin, ...]) -> None:
    inventory = make_inventory([make_device("gpu0"), make_device("gpu1")])
    pins = (
        Pin(pattern="layers.0", device="node0/gpu0"),
        *middle,
        Pin(pattern="layers.2", device="node0/gpu1"),
    )
    assert str(error(problem_of(CHAIN, inventory, pins=pins))) == (
        "node0/gpu0, node0/gpu1: activations find no way from device to device: "
        "got layers.0 pinned on node0/gpu0, layers.2 pinned on node0/gpu1, "
        "needed links between devices that follow each other, direct or over host memory\n"
        "hint: see the links of the inventory file"
    )


def test_a_search_that_was_ended_too_early_is_no_proof() -> None:
    problem = problem_of(CHAIN, ONE_GPU, {"node0/gpu0": 14 * MIB})
    limited = msgspec.structs.replace(problem, time_limit_s=0.25)
    found = infeasible(limited)
    assert found.exit_code is ExitCode.ERROR
    assert str(found) == (
        "--time-limit: the search was ended before it found a placement, though there is one: got 0.25 s\n"
        "hint: give it more time, or leave the limit out"
    )


def test_the_budgets_of_a_machine() -> None:
    budgets = {"node0/gpu0": 0, "node0/gpu1": 5}
    assert budgets_of(Machine(TWO_GPUS, budgets)) == budgets


def test_the_smallest_slot_is_exact() -> None:
    """A byte more, and the block would fit."""
    needed = 5 * MIB + NO_ACTIVATIONS
    problem = problem_of(make_chain([5 * MIB, MIB]), ONE_GPU, {"node0/gpu0": needed - 1})
    found = infeasible(problem)
    assert isinstance(found, NoPlacement)
    assert found.block == "layers.0"
    assert place_for(problem_of(make_chain([5 * MIB, MIB]), ONE_GPU, {"node0/gpu0": needed})) is not None
