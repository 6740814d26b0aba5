from __future__ import annotations

import msgspec
import pytest
from placement_problems import (
    GIGA,
    NO_ACTIVATIONS,
    make_chain,
    make_cost,
    make_device,
    make_inventory,
    make_link,
)

from bayplan.planner.solve.arrange import Arranged, Arranger
from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import Constraints, resolve
from bayplan.planner.solve.simulate import Visit, steady_step_ns
from bayplan.planner.solve.stages import Stage, StageSearch
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.plan import Pin
from bayplan.schemas.types import Objective, Residency

DECODE = Objective.DECODE


def one_stage(chain: Chain, constraints: Constraints, num_slots: int, extra_bytes: int) -> Stage:
    search = StageSearch(chain, constraints, DECODE, num_slots)
    found = list(search.stages(make_device("gpu0"), NO_ACTIVATIONS + extra_bytes, 0))
    assert found[-1].stop == len(chain)
    return found[-1]


def arranged(
    chain: Chain,
    num_slots: int,
    extra_bytes: int,
    *,
    rate: int = GIGA,
    pins: tuple[Pin, ...] = (),
    host_memory_bytes: int = 2**40,
) -> Arranged:
    constraints = resolve(chain, pins, no_spill=False)
    inventory = make_inventory(
        [make_device("gpu0")], [make_link("node0/gpu0", rate=rate)], host_memory_bytes=host_memory_bytes
    )
    stage = one_stage(chain, constraints, num_slots, extra_bytes)
    tier = Residency.STREAM_HOST if num_slots else Residency.RESIDENT
    return Arranger(chain, inventory, constraints, DECODE).arrange((stage,), tier, num_slots)


def test_nothing_streams() -> None:
    found = arranged(make_chain([64, 128]), 0, 192)
    assert [placed.streamed for placed in found.stages] == [()]
    assert (found.step_ns, found.first_step_ns, found.rank) == (192, 192, (192, 0, 192, 0))


def test_evenly_spaced() -> None:
    found = arranged(make_chain([64] * 12), 2, 64 * 8, rate=GIGA // 2)
    assert found.stages[0].streamed == (1, 3, 5, 7, 9, 11)
    assert (found.step_ns, found.num_slots, found.is_exact) == (12 * 64, 2, True)


UNEVEN = make_chain(
    [make_cost(64, decode_read_bytes=read) for read in (64, 64, 10, 200, 64, 200, 64, 200, 10)]
)
"""Three of these streamed through two slots, 192 each, stall where the ring wraps; four do not."""


def test_a_count_that_is_no_multiple_of_the_slots_is_rounded_up_where_that_is_faster() -> None:
    found = arranged(UNEVEN, 2, 64 * 8, rate=GIGA // 3)
    assert found.stages[0].stage.choice.streamed == ((64, 3),)
    assert found.stages[0].choice.streamed == ((64, 4),)
    assert found.stages[0].choice.streamed_bytes == 4 * 64
    assert found.stages[0].streamed == (2, 4, 6, 8)
    assert found.step_ns == sum(cost.decode_read_bytes for cost in UNEVEN.costs)


def test_rounding_up_stays_within_host_memory() -> None:
    found = arranged(UNEVEN, 2, 64 * 8, rate=GIGA // 3, host_memory_bytes=4 * 64 - 1)
    assert found.stages[0].choice.streamed == ((64, 3),)
    assert found.step_ns > sum(cost.decode_read_bytes for cost in UNEVEN.costs)


def test_rounding_up_uses_all_the_slots_there_are() -> None:
    """A single forced block takes one slot; with two more, all three take one."""
    chain = make_chain([64] * 9)
    constraints = resolve(chain, (Pin(pattern="layers.0", residency=Residency.STREAM_HOST),), no_spill=False)
    stage = one_stage(chain, constraints, 3, 64 * 12)
    assert stage.choice.num_slots == 1
    inventory = make_inventory([make_device("gpu0")], [make_link("node0/gpu0")])
    arranger = Arranger(chain, inventory, constraints, DECODE)
    rounded = arranger._rounded(stage, 3)
    assert (rounded.streamed, rounded.num_slots) == (((64, 3),), 3)


def test_a_pinned_block_streams_where_it_is() -> None:
    pins = (Pin(pattern="layers.5", residency=Residency.STREAM_HOST),)
    assert 5 in arranged(make_chain([64] * 12), 2, 64 * 8, pins=pins).stages[0].streamed


def test_fewer_bytes_then_a_faster_start_then_fewer_slots() -> None:
    best = arranged(make_chain([64] * 12), 2, 64 * 8)
    slower = msgspec.structs.replace(best, first_step_ns=best.first_step_ns + 1, num_slots=1)
    fewer_slots = msgspec.structs.replace(best, num_slots=1)
    slowest = msgspec.structs.replace(best, step_ns=best.step_ns + 1, first_step_ns=0)
    ordered = sorted([slowest, slower, best, fewer_slots], key=lambda one: one.rank)
    assert ordered == [fewer_slots, best, slower, slowest]


def two_devices() -> tuple[Chain, Inventory]:
    chain = make_chain([make_cost(64, decode_output_bytes=9, prefill_output_bytes=90)] * 4)
    links = [make_link("node0/gpu0", group="switch"), make_link("node0/gpu1", rate=GIGA // 2)]
    return chain, make_inventory([make_device("gpu0"), make_device("gpu1")], links)


@pytest.mark.parametrize(
    ("phase", "compute_ns", "hop_ns"), [(DECODE, 64, 9 + 18), (Objective.PREFILL, 128, 90 + 180)]
)
def test_the_visits_of_a_step(phase: Objective, compute_ns: int, hop_ns: int) -> None:
    chain, inventory = two_devices()
    constraints = resolve(
        chain, (Pin(pattern="layers.[02]", residency=Residency.STREAM_HOST),), no_spill=False
    )
    search = StageSearch(chain, constraints, DECODE, 1)
    first = list(search.stages(inventory.devices[0], NO_ACTIVATIONS + 1000, 0))[1]
    second = list(search.stages(inventory.devices[1], NO_ACTIVATIONS + 1000, 2))[1]
    arranger = Arranger(chain, inventory, constraints, DECODE)
    found = arranger.arrange((first, second), Residency.STREAM_HOST, 1)
    visits = arranger.visits(found.stages, found.tier, phase)
    one, two = "node0/gpu0", "node0/gpu1"
    assert visits == [
        Visit(device=one, compute_ns=compute_ns, transfer_ns=64, link="switch"),
        Visit(device=one, compute_ns=compute_ns, link="switch"),
        Visit(device=two, compute_ns=compute_ns, hop_ns=hop_ns, transfer_ns=128, link=two),
        Visit(device=two, compute_ns=compute_ns, link=two),
    ]
    assert phase is not DECODE or steady_step_ns(visits, 1) == found.step_ns
