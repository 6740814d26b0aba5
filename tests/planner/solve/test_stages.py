from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from placement_problems import (
    NO_ACTIVATIONS,
    Candidate,
    PlacementProblem,
    make_chain,
    make_cost,
    make_device,
    needed_bytes,
    placement_problems,
)

from bayplan.planner.solve.chain import Chain, ChainTie
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.cost import compute_ns
from bayplan.planner.solve.margins import activation_bounds
from bayplan.planner.solve.stages import Stage, StageSearch
from bayplan.schemas.plan import Pin
from bayplan.schemas.types import Objective, Reason, Residency

GPU = make_device("gpu0")


def stages(
    chain: Chain, extra_bytes: int, *, start: int = 0, num_slots: int = 0, pins: tuple[Pin, ...] = ()
) -> list[Stage]:
    constraints = resolve(chain, pins, no_spill=False)
    search = StageSearch(chain, constraints, Objective.DECODE, num_slots)
    return list(search.stages(GPU, NO_ACTIVATIONS + extra_bytes, start))


def facts(found: list[Stage]) -> list[tuple[int, int, int]]:
    return [(stage.start, stage.stop, stage.used_bytes - NO_ACTIVATIONS) for stage in found]


def test_stretches_grow_until_the_budget_is_spent() -> None:
    chain = make_chain([64, 128, 64, 64])
    assert facts(stages(chain, 256)) == [(0, 1, 64), (0, 2, 192), (0, 3, 256)]
    assert facts(stages(chain, 256, start=1)) == [(1, 2, 128), (1, 3, 192), (1, 4, 256)]
    assert [stage.compute_ns for stage in stages(chain, 256)] == [64, 192, 256]


def test_everything_that_a_stretch_needs_counts() -> None:
    chain = make_chain(
        [make_cost(64, buffer_bytes=1, kv_bytes=20, prefill_activation_bytes=400), make_cost(0, kv_bytes=5)],
        base_activation_bytes=100,
        scratch_bytes=3000,
    )
    activations = activation_bounds(500)[1] - NO_ACTIVATIONS
    assert facts(stages(chain, 10_000)) == [
        (0, 1, 64 + 1 + 20 + 3000 + activations),
        (0, 2, 64 + 1 + 20 + 3000 + activations + 5),
    ]


@pytest.mark.parametrize(
    ("start", "used"), [(0, [64, 128, 192, 256]), (1, [64, 128 + 192, 192 + 192]), (2, [64 + 192, 128 + 192])]
)
def test_a_tied_weight_is_replicated_once_where_its_first_block_is_elsewhere(
    start: int, used: list[int]
) -> None:
    chain = make_chain([64] * 4, ties=[ChainTie(positions=(0, 2, 3), num_bytes=192)])
    assert [num_bytes for _, _, num_bytes in facts(stages(chain, 1000, start=start))] == used


def test_a_pin_to_another_device_ends_the_stretch() -> None:
    pins = (Pin(pattern="layers.2", device="node0/gpu1"),)
    assert [stage.stop for stage in stages(make_chain([64] * 4), 1000, pins=pins)] == [1, 2]


def test_a_block_that_must_stay_leaves_no_room_for_slots() -> None:
    chain = make_chain([make_cost(128, resident_reason=Reason.REPEATED), 64, 64])
    assert [stage.stop for stage in stages(chain, 191, num_slots=1)] == [1]
    found = stages(chain, 192, num_slots=1)
    assert facts(found) == [(0, 1, 128), (0, 2, 192), (0, 3, 192)]
    assert found[-1].choice.streamed == ((64, 2),)


def test_computing_that_one_slot_cannot_overlap() -> None:
    chain = make_chain([64, make_cost(64, decode_read_bytes=10), 64, 64])
    assert stages(chain, 128, num_slots=1)[-1].serial_ns == 3 * 10
    assert stages(chain, 128, num_slots=2)[-1].serial_ns == 0


def test_a_forced_block_needs_a_slot_though_all_fits() -> None:
    pins = (Pin(pattern="layers.0", residency=Residency.STREAM_DISK),)
    chain = make_chain([64, 64])
    assert stages(chain, 1000, pins=pins) == []
    found = stages(chain, 1000, num_slots=1, pins=pins)
    assert [stage.choice.streamed for stage in found] == [((64, 1),), ((64, 1),)]
    assert facts(found) == [(0, 1, 64), (0, 2, 128)]


@given(placement_problems(max_blocks=6))
@settings(max_examples=100, deadline=None)
def test_used_bytes_are_those_of_the_blocks(problem: PlacementProblem) -> None:
    """Counted again block by block, for the choice that was made."""
    everywhere = msgspec.structs.replace(
        problem.constraints, device=(None,) * len(problem.chain), no_spill=False
    )
    device = problem.inventory.devices[0]
    for num_slots in (0, 1, 2, 3):
        search = StageSearch(problem.chain, everywhere, problem.phase, num_slots)
        for stage in search.stages(device, problem.budgets[device.id], 0):
            wanted = dict(stage.choice.streamed)
            streamed = []
            for index in sorted(range(stage.stop), key=lambda index: not everywhere.must_stream[index]):
                size = problem.chain.costs[index].parameter_bytes
                if everywhere.may_stream(problem.chain, index) and wanted.get(size):
                    wanted[size] -= 1
                    streamed.append(index)
            assert not any(wanted.values())
            elsewhere = len(problem.chain) - stage.stop
            candidate = Candidate(
                devices=(0,) * stage.stop + (1,) * elsewhere,
                streamed=tuple(streamed),
                num_slots=stage.choice.num_slots,
                tier=Residency.STREAM_DISK,
            )
            assert stage.used_bytes == needed_bytes(problem, candidate)[device.id]
            assert stage.used_bytes <= problem.budgets[device.id]
            assert stage.compute_ns == sum(
                compute_ns(cost, device, problem.phase) for cost in problem.chain.costs[: stage.stop]
            )


def test_of_the_last_device_only_the_rest_of_the_chain_counts() -> None:
    chain = make_chain([64] * 4)
    search = StageSearch(chain, resolve(chain, (), no_spill=False), Objective.DECODE, 0)
    assert facts(list(search.stages(GPU, NO_ACTIVATIONS + 200, 1, is_last=True))) == [(1, 4, 192)]
    assert list(search.stages(GPU, NO_ACTIVATIONS + 200, 0, is_last=True)) == []
