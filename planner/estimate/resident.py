"""Whether a model fits some devices with everything resident.

The answer is always that of the placement search; most questions have one that needs no search.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import Constraints, resolve
from bayplan.planner.solve.cost import hop_ns, node_of
from bayplan.planner.solve.host_memory import host_bytes, host_limits
from bayplan.planner.solve.placement import Solver
from bayplan.planner.solve.stages import Stage, StageSearch
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.types import DeviceId, Objective, Residency

_PHASE = Objective.PREFILL
"""Whether something fits does not depend on what is made fast."""


def fits_resident(chain: Chain, inventory: Inventory, budgets: Mapping[DeviceId, int]) -> bool:
    """Return whether `Solver` finds a placement of `chain` that streams nothing.

    Args:
        chain: What is placed.
        inventory: Where.
        budgets: Bytes that may be used by device; 0 leaves a device out.
    """
    held = sum(cost.parameter_bytes + cost.buffer_bytes + cost.kv_bytes for cost in chain.costs)
    if held > sum(budgets.values()):
        return False
    constraints = resolve(chain, (), no_spill=True)
    stages = _filled(chain, inventory, budgets, constraints)
    if stages is not None and _is_placement(stages, chain, inventory, budgets):
        return True
    if stages is None and not chain.ties:
        # Without ties a stretch never needs more when blocks are taken off its start, so that no placement
        # gets farther with the first devices than one that fills them.
        return False
    return Solver(chain, inventory, budgets, constraints, _PHASE).solve() is not None


def _filled(
    chain: Chain, inventory: Inventory, budgets: Mapping[DeviceId, int], constraints: Constraints
) -> list[Stage] | None:
    """Return stages that fill one device after the other; None: they do not hold the whole chain."""
    search = StageSearch(chain, constraints, _PHASE, 0)
    stages: list[Stage] = []
    for device in inventory.devices:
        if budgets[device.id] > 0:
            start = stages[-1].stop if stages else 0
            stages += [*search.stages(device, budgets[device.id], start)][-1:]
            if stages and stages[-1].stop == len(chain):
                return stages
    return None


def _is_placement(
    stages: list[Stage], chain: Chain, inventory: Inventory, budgets: Mapping[DeviceId, int]
) -> bool:
    """Whether activations can get from each stage to the next, and host memory holds what lies in it."""
    for one, other in pairwise(stages):
        num_bytes = chain.costs[one.stop - 1].prefill_output_bytes
        if hop_ns(inventory, one.device, other.device, num_bytes) is None:
            return False
    limits = host_limits(inventory, budgets)
    for stage in stages:
        limits[node_of(inventory, stage.device.id).id] -= host_bytes(stage, Residency.RESIDENT, 0)
    return min(limits.values()) >= 0
