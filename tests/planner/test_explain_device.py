from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from placement_problems import (
    GIGA,
    MIB,
    make_chain,
    make_cost,
    make_device,
    make_inventory,
    make_link,
    make_node,
)

from bayplan.planner.explain_device import WITHOUT_PINS, Answered, explain_device
from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.experts import ExpertsResidency, SplitExperts
from bayplan.planner.solve.ledger import empty_ledger, ledger_of
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.objectives import Problem
from bayplan.planner.solve_again import Again
from bayplan.schemas.explanation import Binding, DeviceExplanation
from bayplan.schemas.graph import BlockExperts
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.plan import PlannedDevice
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Objective, Residency

GPU0 = "node0/gpu0"
HOST, DISK = Residency.STREAM_HOST, Residency.STREAM_DISK


def two_gpus(*, link_rate: int = GIGA, disk_rate: int = GIGA, group: str = "") -> Inventory:
    devices = [make_device("gpu0"), make_device("gpu1")]
    links = [make_link(device.id, rate=link_rate, group=group) for device in devices]
    return make_inventory(devices, links, nodes=[make_node(disk_rate=disk_rate)])


def explain(
    choices: list[Choice],
    *,
    inventory: Inventory | None = None,
    chain: Chain | None = None,
    gains: Mapping[str, int] | None = None,
    pins: tuple[Pin, ...] = (),
    budget: int = 2**40,
    device: int = 0,
    splits_experts: bool = False,
) -> DeviceExplanation:
    """Explain a device of a plan with these choices that is worth a second."""
    machine = inventory or two_gpus()
    blocks = chain or make_chain([4 * MIB] * len(choices))
    budgets = {one.id: 2**40 for one in machine.devices} | {GPU0: budget}
    problem = Problem(
        chain=blocks,
        machine=Machine(machine, budgets),
        constraints=resolve(blocks, pins, no_spill=False),
        objective=Objective.DECODE,
        generates=True,
        splits_experts=splits_experts,
    )
    answer = Answer(choices=tuple(choices), num_slots=(2,) * len(problem.machine.devices))
    own = machine.devices[device]
    used = [one.id for one in problem.machine.devices]
    ledger = ledger_of(problem.task(), answer, used.index(own.id)) if own.id in used else empty_ledger(own)
    planned = PlannedDevice(
        id=own.id,
        kind=own.kind,
        backend=own.backend,
        capacity_bytes=own.capacity_bytes,
        reserve_bytes=0,
        budget_bytes=budgets[own.id],
        ledger=ledger,
    )
    return explain_device(planned, Answered(Again(problem, 10**9), answer, gains or {}))


RESIDENT, STREAMED = Choice(device=0), Choice(device=0, residency=HOST)
ALL_GAINS = {GPU0: 10**8, "node0": 10**8, WITHOUT_PINS: 10**8}
PINS = (Pin(pattern="layers.0", device=GPU0),)


@pytest.mark.parametrize(
    ("choices", "gains", "pins", "binding"),
    [
        ([RESIDENT], ALL_GAINS, PINS, Binding.MEMORY),
        ([Choice(device=1)], ALL_GAINS, (), Binding.MEMORY),
        ([RESIDENT], {**ALL_GAINS, GPU0: 0}, PINS, Binding.PIN),
        ([RESIDENT], {**ALL_GAINS, GPU0: 0}, (), Binding.COMPUTE),
        ([STREAMED], {"node0": 10**8}, (), Binding.HOST_MEMORY),
        ([STREAMED], {"node0": 500_000}, (), Binding.COMPUTE),  # within the search's own gap
        ([RESIDENT], {GPU0: 500_000}, (), Binding.COMPUTE),
        ([Choice(device=1)], {"node0": 10**8}, (), Binding.NOTHING),
    ],
)
def test_what_would_gain_comes_before_what_is_busy(
    choices: list[Choice], gains: dict[str, int], pins: tuple[Pin, ...], binding: Binding
) -> None:
    assert explain(choices, gains=gains, pins=pins).binding is binding


@pytest.mark.parametrize(
    ("tier", "link_rate", "disk_rate", "binding"),
    [
        (HOST, GIGA // 2, GIGA // 4, Binding.LINK),
        (DISK, GIGA // 2, GIGA // 4, Binding.DISK),
        (DISK, GIGA // 4, GIGA // 2, Binding.LINK),
        (HOST, 2 * GIGA, GIGA, Binding.COMPUTE),
    ],
)
def test_the_slowest_part_of_the_way(
    tier: Residency, link_rate: int, disk_rate: int, binding: Binding
) -> None:
    inventory = two_gpus(link_rate=link_rate, disk_rate=disk_rate)
    found = explain([Choice(device=0, residency=tier)] * 2, inventory=inventory)
    rate = link_rate if tier is HOST else min(link_rate, disk_rate)
    assert found.binding is binding
    assert (found.num_blocks, found.num_streamed) == (2, 2)
    assert found.compute_ns == 2 * 4 * MIB
    assert found.transfer_ns == 2 * 4 * MIB * GIGA // rate


def test_the_part_that_most_of_the_weights_take() -> None:
    inventory = two_gpus(link_rate=GIGA // 2, disk_rate=GIGA // 4)
    both = [STREAMED, Choice(device=0, residency=DISK), STREAMED]
    assert explain(both, inventory=inventory).binding is Binding.LINK
    assert explain(both[:2], inventory=inventory).binding is Binding.DISK


def test_who_shares_the_way() -> None:
    there = [STREAMED, Choice(device=1, residency=HOST)]
    assert explain(there).shared_with == ()
    assert explain(there, inventory=two_gpus(group="switch")).shared_with == ("node0/gpu1",)
    by_disk = [Choice(device=number, residency=DISK) for number in range(2)]
    assert explain(by_disk, device=1).shared_with == (GPU0,)
    assert explain([RESIDENT, Choice(device=1, residency=DISK)]).shared_with == ()


def test_memory_by_its_largest_component() -> None:
    chain = make_chain([make_cost(4 * MIB, kv_bytes=9 * MIB)])
    found = explain([RESIDENT], chain=chain, gains=ALL_GAINS)
    assert (found.component, found.component_bytes) == ("kv", 9 * MIB)
    assert found.needed_bytes == 13 * MIB
    assert explain([STREAMED]).component == "staging"
    empty = explain([Choice(device=1)])
    assert (empty.component, empty.component_bytes, empty.needed_bytes) == ("", 0, 0)


def test_a_device_without_a_budget() -> None:
    found = explain([Choice(device=0)], budget=0, gains={})
    assert found == DeviceExplanation(
        id=GPU0,
        num_blocks=0,
        num_streamed=0,
        budget_bytes=0,
        needed_bytes=0,
        component="",
        component_bytes=0,
        compute_ns=0,
        transfer_ns=0,
        binding=Binding.NOTHING,
        gain_ns=None,
    )


def test_experts_that_are_brought_in_count_and_those_that_the_host_computes_do_not() -> None:
    experts = BlockExperts(
        module="",
        count=8,
        per_token=2,
        prefill_flops=0,
        decode_flops=0,
        prefill_hidden_bytes=0,
        decode_hidden_bytes=0,
    )
    cost = msgspec.structs.replace(make_cost(9 * MIB, unit_bytes=MIB), experts=experts)
    chain = make_chain([cost] * 2)
    devices = [make_device("gpu0"), make_device("cpu")]
    inventory = make_inventory(devices, [make_link(GPU0, rate=GIGA // 8)])

    def apart(residency: ExpertsResidency, slots: int) -> DeviceExplanation:
        split = SplitExperts(residency=residency, slots=slots)
        choices = [Choice(device=0, experts=split)] * 2
        return explain(choices, chain=chain, inventory=inventory, splits_experts=True)

    cached = apart(ExpertsResidency.CACHE_HOST, 2)
    assert (cached.num_streamed, cached.binding) == (2, Binding.LINK)
    assert cached.transfer_ns > cached.compute_ns
    computed = apart(ExpertsResidency.COMPUTE_HOST, 0)
    assert (computed.num_streamed, computed.transfer_ns, computed.binding) == (0, 0, Binding.COMPUTE)
