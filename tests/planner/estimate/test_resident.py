"""resident: the same answers as the placement search, on any problem."""

from __future__ import annotations

import msgspec
from brute_force import optimum
from hypothesis import given, settings
from placement_problems import (
    NO_ACTIVATIONS,
    PlacementProblem,
    gpus,
    make_chain,
    make_device,
    make_inventory,
    placement_problems,
)

from bayplan.planner.estimate.resident import fits_resident


@settings(max_examples=200)
@given(placement_problems(max_blocks=6))
def test_as_trying_everything_says(problem: PlacementProblem) -> None:
    resident = msgspec.structs.replace(problem, pins=(), no_spill=True)
    found = optimum(resident)
    assert fits_resident(problem.chain, problem.inventory, problem.budgets) == (found is not None)


def test_devices_that_cannot_reach_each_other_hold_nothing_together() -> None:
    devices = [make_device(name, capacity_bytes=NO_ACTIVATIONS + 128) for name in ("gpu0", "gpu1")]
    budgets = {device.id: device.capacity_bytes for device in devices}
    chain = make_chain([128, 128])
    assert not fits_resident(chain, make_inventory(devices), budgets)
    assert fits_resident(chain, gpus(2), budgets)


def test_a_byte_less_is_too_little() -> None:
    """Blocks are not split, so half a block of room is none."""
    chain = make_chain([128, 128, 128])
    assert fits_resident(chain, gpus(2), {"node0/gpu0": 192, "node0/gpu1": 256})
    assert not fits_resident(chain, gpus(2), {"node0/gpu0": 192, "node0/gpu1": 255})
    assert not fits_resident(chain, gpus(2), {"node0/gpu0": 192, "node0/gpu1": 192})


def test_without_a_device_nothing_fits() -> None:
    assert not fits_resident(make_chain([0]), gpus(1), {"node0/gpu0": 0})
