"""Bytes of one device by component, each `[lo, hi]`: what a placement needs there.

Weights, cache and slots are counted exactly; the bounds of the rest are in `bayplan.planner.solve.margins`.
"""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.planner.solve.arrange import PlacedStage
from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.margins import activation_bounds, runtime_bounds
from bayplan.schemas.hardware import Device
from bayplan.schemas.plan import Ledger, aligned_bytes


def slot_bytes(chain: Chain, placed: PlacedStage) -> int:
    """Return the size of one slot: the largest streamed block's parameters, each aligned."""
    return max((chain.costs[index].parameter_bytes for index in placed.streamed), default=0)


def ledger_of(chain: Chain, placed: PlacedStage) -> Ledger:
    """Return what `placed` needs on its device."""
    indices = range(placed.stage.start, placed.stage.stop)
    costs = [chain.costs[index] for index in indices]
    streamed = set(placed.streamed)
    resident = [cost for index, cost in zip(indices, costs, strict=True) if index not in streamed]
    replicas = replica_bytes(chain, indices)
    weights_hi = (
        sum(cost.parameter_bytes for cost in resident) + sum(cost.buffer_bytes for cost in costs) + replicas
    )
    padding = sum(
        cost.parameter_bytes + cost.buffer_bytes - chain.exact_bytes[index]
        for index, cost in zip(indices, costs, strict=True)
        if index not in streamed
    )
    kv = sum(cost.kv_bytes for cost in costs)
    traced = chain.base_activation_bytes + max(
        max(cost.prefill_activation_bytes, cost.decode_activation_bytes) for cost in costs
    )
    staging = placed.choice.num_slots * slot_bytes(chain, placed) + chain.scratch_bytes
    return Ledger(
        weights=(weights_hi - padding, weights_hi),
        kv=(kv, kv),
        activations=activation_bounds(traced),
        staging=(staging, staging),
        load_transient=(0, 0),
        runtime=runtime_bounds(placed.stage.device.backend),
    )


def empty_ledger(device: Device) -> Ledger:
    """Return the ledger of a device that holds nothing."""
    none = (0, 0)
    return Ledger(
        weights=none,
        kv=none,
        activations=none,
        staging=none,
        load_transient=none,
        runtime=(0, runtime_bounds(device.backend)[1]),
    )


def replica_bytes(chain: Chain, indices: Sequence[int]) -> int:
    """Return bytes of tied storages that blocks of a stage use while their first block is elsewhere."""
    own = set(indices)
    return sum(
        aligned_bytes(tie.num_bytes)
        for tie in chain.ties
        if own.intersection(tie.positions) and tie.positions[0] not in own
    )
