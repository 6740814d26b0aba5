from __future__ import annotations

import msgspec
from hypothesis import assume, given, settings
from placement_problems import PlacementProblem, make_device, make_inventory, make_link, placement_problems

from bayplan.planner.solve.constraints import Constraints
from bayplan.planner.solve.feasible import is_feasible
from bayplan.planner.solve.least_budget import least_budget_bytes
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.task import Task
from bayplan.schemas.types import Residency


@given(placement_problems(max_blocks=6))
@settings(max_examples=150)
def test_the_least_budget_is_enough_and_a_byte_less_is_not(problem: PlacementProblem) -> None:
    """On one device with a disk, every block in its first form."""
    constraints = problem.task().constraints
    num_blocks = len(problem.chain)
    anywhere = Constraints(
        device=(None,) * num_blocks,
        residency=tuple(
            Residency.STREAM_DISK if own is Residency.STREAM_HOST else own for own in constraints.residency
        ),
        form=(0,) * num_blocks,
        no_spill=constraints.no_spill,
    )
    device = make_device("gpu0")
    inventory = make_inventory([device], [make_link(device.id)])
    chain = msgspec.structs.replace(problem.chain, ties=())
    least = least_budget_bytes(chain, anywhere, can_stream=not anywhere.no_spill)
    assume(least > 1)  # a budget of nothing is one that may not compute
    for budget, is_enough in ((least, True), (least - 1, False)):
        task = Task(chain, Machine(inventory, {device.id: budget}), anywhere, problem.phase)
        assert is_feasible(task) is is_enough
