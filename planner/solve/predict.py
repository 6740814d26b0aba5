"""What a placement is predicted to take: load, first output, one step."""

from __future__ import annotations

import msgspec

from bayplan.planner.solve.arrange import Arranger
from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.cost import duration_ns, node_of
from bayplan.planner.solve.ledger import ledger_of
from bayplan.planner.solve.placement import Placement
from bayplan.planner.solve.simulate import steady_step_ns, step_ends_ns
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.plan import Workload
from bayplan.schemas.types import Objective, Residency


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Times in nanoseconds."""

    load_ns: int
    first_output_ns: int
    decode_ns: int | None
    step_ns: int


def predict(
    placement: Placement,
    arranger: Arranger,
    chain: Chain,
    inventory: Inventory,
    workload: Workload,
    objective: Objective,
    *,
    generates: bool,
) -> Prediction:
    """Return the predicted times of `placement`.

    The first output is that of a prompt as long as the planned context, in prefill chunks, from empty slots.
    """
    num_slots = max((placed.choice.num_slots for placed in placement.stages), default=0) or 1
    prefill = arranger.visits(placement.stages, placement.tier, Objective.PREFILL)
    chunks = -(-workload.context // workload.prefill_chunk) if workload.prefill_chunk else 1
    ends = step_ends_ns(prefill, num_slots, chunks)
    first_output_ns = ends[-1]
    if len(ends) < chunks:
        first_output_ns += (chunks - len(ends)) * (ends[-1] - ends[-2])
    decode_ns = None
    if generates:
        decode = arranger.visits(placement.stages, placement.tier, Objective.DECODE)
        decode_ns = steady_step_ns(decode, num_slots)
    return Prediction(
        load_ns=_load_ns(placement, chain, inventory),
        first_output_ns=first_output_ns,
        decode_ns=decode_ns,
        step_ns=decode_ns if objective is Objective.DECODE and decode_ns is not None else placement.step_ns,
    )


def _load_ns(placement: Placement, chain: Chain, inventory: Inventory) -> int:
    """Return the time to read what stays on devices or waits in host memory, all nodes at once.

    Each node reads from its own disk; 0 without one.
    """
    by_node: dict[str, int] = {}
    for placed in placement.stages:
        node = node_of(inventory, placed.stage.device.id)
        waiting = placed.choice.streamed_bytes if placement.tier is Residency.STREAM_HOST else 0
        by_node[node.id] = by_node.get(node.id, 0) + ledger_of(chain, placed).weights[0] + waiting
    times = [0]
    for node in inventory.nodes:
        if node.id in by_node and node.disk is not None:
            read_ns = duration_ns(by_node[node.id], node.disk.read_bytes_per_second)
            times.append(node.disk.latency_ns + read_ns)
    return max(times)
