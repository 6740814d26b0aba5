from __future__ import annotations

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from placement_problems import (
    NO_ACTIVATIONS,
    PlacementProblem,
    make_chain,
    make_cost,
    make_device,
    make_inventory,
    make_link,
    placement_problems,
)

from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.infeasible import infeasible, least_budget_bytes
from bayplan.planner.solve.placement import Solver
from bayplan.schemas.errors import ExitCode, Infeasible
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.plan import Pin
from bayplan.schemas.sizes import parse_size
from bayplan.schemas.types import Objective, Reason, Residency

MIB = 2**20
ONE_GPU = make_inventory([make_device("gpu0")], [make_link("node0/gpu0")])
TWO_GPUS = make_inventory(
    [make_device("gpu0"), make_device("gpu1")], [make_link("node0/gpu0"), make_link("node0/gpu1")]
)


@given(placement_problems(max_blocks=6))
@settings(max_examples=150, deadline=None)
def test_the_least_budget_is_enough_and_a_byte_less_is_not(problem: PlacementProblem) -> None:
    device = problem.inventory.devices[-1]
    inventory = make_inventory([device], [make_link(device.id)])
    anywhere = msgspec.structs.replace(
        problem.constraints, device=(None,) * len(problem.chain), tiers=(Residency.STREAM_DISK,)
    )
    least = least_budget_bytes(problem.chain, anywhere, can_stream=not anywhere.no_spill)
    assume(least > 1)  # A budget of nothing is one that may not compute.
    for budget, is_enough in ((least, True), (least - 1, False)):
        solver = Solver(problem.chain, inventory, {device.id: budget}, anywhere, problem.phase)
        assert (solver.solve() is not None) is is_enough


def error(
    chain: Chain,
    inventory: Inventory,
    budgets: dict[str, int],
    *,
    pins: tuple[Pin, ...] = (),
    no_spill: bool = False,
) -> Infeasible:
    constraints = resolve(chain, pins, no_spill=no_spill)
    assert Solver(chain, inventory, budgets, constraints, Objective.DECODE).solve() is None
    return infeasible(chain, inventory, budgets, constraints)


def test_no_device_may_compute() -> None:
    found = error(make_chain([64]), ONE_GPU, {"node0/gpu0": 0})
    assert found.exit_code is ExitCode.INFEASIBLE
    assert str(found) == (
        "inventory: no device may compute: needed at least one device with a budget above zero\n"
        "hint: a declared host computes only with --cpu; see --max-memory for budgets"
    )


CHAIN = make_chain([make_cost(8 * MIB, kv_bytes=MIB, resident_reason=Reason.TIED), 2 * MIB, 4 * MIB])


def test_too_little_even_for_streaming() -> None:
    assert str(error(CHAIN, ONE_GPU, {"node0/gpu0": 8 * MIB})) == (
        "node0/gpu0: no placement fits the budgets: "
        "got 8.00 MiB on node0/gpu0, needed 13.00 MiB on node0/gpu0, with streaming"
        " (the largest block that may stream is layers.2, 4.00 MiB)\n"
        "hint: raise the budget of node0/gpu0, or lower --context or --batch (the cache takes 1.00 MiB)"
    )


def test_the_larger_of_cache_and_activations_can_be_lowered_by_smaller_chunks() -> None:
    cost = make_cost(8 * MIB, kv_bytes=MIB, prefill_activation_bytes=2 * MIB, decode_activation_bytes=MIB)
    chain = make_chain([cost, 2 * MIB])
    assert error(chain, ONE_GPU, {"node0/gpu0": MIB}).hint == (
        "raise the budget of node0/gpu0, or lower --context or --batch (the cache takes 1.00 MiB)"
        ", or lower --prefill-chunk (the activations take 2.00 MiB)"
    )
    for less in ({"kv_bytes": 2 * MIB}, {"decode_activation_bytes": 2 * MIB}):
        other = make_chain([msgspec.structs.replace(cost, **less), 2 * MIB])
        assert error(other, ONE_GPU, {"node0/gpu0": MIB}).hint.endswith(" MiB)")
        assert "--prefill-chunk" not in error(other, ONE_GPU, {"node0/gpu0": MIB}).hint


def test_too_little_without_streaming() -> None:
    chain = make_chain([8 * MIB, 2 * MIB])
    assert str(error(chain, TWO_GPUS, {"node0/gpu0": MIB, "node0/gpu1": 9 * MIB}, no_spill=True)) == (
        "node0/gpu0, node0/gpu1: no placement fits the budgets: "
        "got 1.00 MiB on node0/gpu0, 9.00 MiB on node0/gpu1, "
        "needed 10.00 MiB on node0/gpu0, without streaming or 10.00 MiB on node0/gpu1, without streaming\n"
        "hint: raise the budget of node0/gpu0, or allow streaming (drop --no-spill)"
    )


def test_streaming_needs_host_memory_where_there_is_no_disk() -> None:
    inventory = make_inventory(ONE_GPU.devices, ONE_GPU.links, host_memory_bytes=3 * MIB, disk_rate=None)
    found = error(make_chain([2 * MIB] * 4), inventory, {"node0/gpu0": 2 * MIB})
    assert found.got == "2.00 MiB on node0/gpu0"
    assert found.needed == "8.00 MiB on node0/gpu0, without streaming"


def test_a_device_that_pins_rule_out_is_not_offered_alone() -> None:
    pins = (Pin(pattern="layers.0", device="node0/gpu1"),)
    found = error(CHAIN, TWO_GPUS, {"node0/gpu0": 8 * MIB, "node0/gpu1": 8 * MIB}, pins=pins)
    assert found.got == "8.00 MiB on node0/gpu0, 8.00 MiB on node0/gpu1"
    assert found.needed == (
        "13.00 MiB on node0/gpu1, with streaming (the largest block that may stream is layers.2, 4.00 MiB)"
    )


def test_pinned_to_a_device_that_may_hold_nothing() -> None:
    pins = (Pin(pattern="layers.1", device="node0/gpu0"),)
    found = error(CHAIN, TWO_GPUS, {"node0/gpu0": 0, "node0/gpu1": 2**40}, pins=pins)
    assert str(found) == (
        "layers.1: pinned to a device that may hold nothing: node0/gpu0: needed one of node0/gpu1\n"
        "hint: see --max-memory for budgets"
    )


def test_pinned_against_the_order_of_devices() -> None:
    pins = (
        Pin(pattern="layers.0", device="node0/gpu1"),
        Pin(pattern="layers.2", device="node0/gpu0"),
    )
    found = error(CHAIN, TWO_GPUS, {"node0/gpu0": 2**40, "node0/gpu1": 2**40}, pins=pins)
    assert str(found) == (
        "layers.2: pinned against the order in which devices follow each other: "
        "got node0/gpu0 after node0/gpu1, needed devices in the order node0/gpu0, node0/gpu1"
    )


@pytest.mark.parametrize("tier", [Residency.STREAM_HOST, Residency.STREAM_DISK])
def test_nothing_can_bring_a_pinned_block_in(tier: Residency) -> None:
    inventory = make_inventory([make_device("cpu")], disk_rate=None)
    pins = (Pin(pattern="layers.1", residency=tier),)
    assert str(error(CHAIN, inventory, {"node0/cpu": 2**40}, pins=pins)) == (
        "layers.1: nothing can bring its weights in before each visit: "
        f"got pinned to {tier.value}, "
        "needed a tier with a way to a device, and host memory enough where it is stream-host"
    )


def test_no_way_from_device_to_device() -> None:
    inventory = make_inventory([make_device("gpu0"), make_device("gpu1")])
    pins = (
        Pin(pattern="layers.0", device="node0/gpu0"),
        Pin(pattern="layers.2", device="node0/gpu1"),
    )
    found = error(CHAIN, inventory, {"node0/gpu0": 2**40, "node0/gpu1": 2**40}, pins=pins)
    assert str(found) == (
        "node0/gpu0, node0/gpu1: activations find no way from device to device: "
        "needed links between devices that follow each other, direct or over host memory"
    )


def test_a_budget_below_the_activations() -> None:
    chain = make_chain([make_cost(64, decode_activation_bytes=31 * MIB)], base_activation_bytes=MIB)
    found = error(chain, ONE_GPU, {"node0/gpu0": 32 * MIB})
    assert found.got == "32.00 MiB on node0/gpu0"
    assert found.needed == (
        "33.01 MiB on node0/gpu0, with streaming (the largest block that may stream is layers.0, 64 B)"
    )


@given(st.integers(2, 2**45))
def test_who_types_what_the_message_says_has_enough(num_bytes: int) -> None:
    device = "node0/gpu0"
    found = error(make_chain([num_bytes]), ONE_GPU, {device: 1}, no_spill=True)
    shown = found.needed.removesuffix(f" on {device}, without streaming")
    enough = parse_size(shown, where="")
    assert num_bytes + NO_ACTIVATIONS <= enough <= (num_bytes + NO_ACTIVATIONS) * 102 // 100
