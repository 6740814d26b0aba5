"""Whether a model fits some devices with everything resident.

The answer is always that of the placement search, which is asked only where a sum does not tell.
"""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.feasible import is_feasible
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.task import Task
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.types import DeviceId, Objective


def fits_resident(chain: Chain, inventory: Inventory, budgets: Mapping[DeviceId, int]) -> bool:
    """Return whether `bayplan plan --no-spill` finds a placement of `chain`.

    Args:
        chain: What is placed.
        inventory: Where.
        budgets: Bytes that may be used by device; 0 leaves a device out.
    """
    held = sum(
        cost.kv_bytes + min(form.parameter_bytes + form.buffer_bytes for form in cost.forms)
        for cost in chain.costs
    )
    if held > sum(budgets.values()):
        return False
    # Whether something fits does not depend on what is made fast.
    constraints = resolve(chain, (), no_spill=True)
    return is_feasible(Task(chain, Machine(inventory, budgets), constraints, Objective.PREFILL))
