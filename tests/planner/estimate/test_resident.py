"""resident: the same answers as the placement search, on any problem."""

from __future__ import annotations

from hypothesis import given, settings
from placement_problems import (
    NO_ACTIVATIONS,
    PlacementProblem,
    make_chain,
    make_device,
    make_inventory,
    make_link,
    placement_problems,
)

from bayplan.planner.estimate.resident import fits_resident
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.placement import Solver


@settings(max_examples=300)
@given(placement_problems(max_blocks=6))
def test_as_the_search_says(problem: PlacementProblem) -> None:
    constraints = resolve(problem.chain, (), no_spill=True)
    placement = Solver(problem.chain, problem.inventory, problem.budgets, constraints, problem.phase).solve()
    assert fits_resident(problem.chain, problem.inventory, problem.budgets) == (placement is not None)


def test_devices_that_cannot_reach_each_other_hold_nothing_together() -> None:
    devices = [make_device(name, capacity_bytes=NO_ACTIVATIONS + 128) for name in ("gpu0", "gpu1")]
    budgets = {device.id: device.capacity_bytes for device in devices}
    chain = make_chain([128, 128])
    assert not fits_resident(chain, make_inventory(devices), budgets)
    links = [make_link(device.id) for device in devices]
    assert fits_resident(chain, make_inventory(devices, links), budgets)
