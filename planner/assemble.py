"""A placement and its inputs, written down as a plan. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan.planner.solve.arrange import PlacedStage
from bayplan.planner.solve.chain import Chain, fold, owning_block
from bayplan.planner.solve.constraints import Constraints, pinned_reason
from bayplan.planner.solve.ledger import empty_ledger, ledger_of, slot_bytes
from bayplan.planner.solve.placement import Placement
from bayplan.planner.solve.predict import Prediction
from bayplan.schemas.codec import sealed
from bayplan.schemas.features import not_yet_run
from bayplan.schemas.graph import TiedGroup
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.plan import (
    PLAN_FORMAT_VERSION,
    PLAN_SEMANTICS,
    Block,
    Format,
    FormatRule,
    Model,
    Pin,
    Plan,
    PlannedDevice,
    Problem,
    Schedule,
    Summary,
    TensorRule,
    Tie,
    Workload,
)
from bayplan.schemas.types import BoundClass, DeviceId, Objective, Reason, Residency, SolverStatus

UNSEALED = f"sha256:{'0' * 64}"
"""Stands for the digest until the plan is complete."""


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a plan is made of besides the placement itself."""

    producer: str
    model: Model
    workload: Workload
    inventory: Inventory
    budgets: dict[DeviceId, int]
    max_memory: dict[DeviceId, int]
    objective: Objective
    pins: tuple[Pin, ...]
    no_spill: bool
    no_split: tuple[str, ...]
    formats: dict[str, Format]
    format_rules: tuple[FormatRule, ...]
    block_formats: tuple[str, ...]
    rules: tuple[TensorRule, ...]
    ties: tuple[TiedGroup, ...]


def assemble(
    inputs: Inputs, chain: Chain, constraints: Constraints, placement: Placement, prediction: Prediction
) -> Plan:
    """Return the sealed plan."""
    stages = {placed.stage.device.id: placed for placed in placement.stages}
    blocks = _blocks(inputs, chain, constraints, placement)
    plan = Plan(
        format_version=PLAN_FORMAT_VERSION,
        semantics=PLAN_SEMANTICS,
        complete=True,
        applyable=inputs.model.checkpoint is not None,
        errored=False,
        producer=inputs.producer,
        digest=UNSEALED,
        model=inputs.model,
        workload=inputs.workload,
        inventory=inputs.inventory,
        formats=inputs.formats,
        format_rules=inputs.format_rules,
        rules=inputs.rules,
        devices=_devices(inputs, chain, stages),
        blocks=blocks,
        ties=tuple(_tie(group, chain, blocks) for group in inputs.ties),
        schedule=tuple(_schedule(placed, chain) for placed in placement.stages if placed.streamed),
        problem=Problem(
            objective=inputs.objective,
            max_memory_bytes=inputs.max_memory,
            pins=inputs.pins,
            no_spill=inputs.no_spill,
            no_split=inputs.no_split,
            base_activation_bytes=chain.base_activation_bytes,
            scratch_bytes=chain.scratch_bytes,
            runs=fold(chain),
            edges=chain.edges,
        ),
        summary=_summary(inputs, chain, placement, prediction, blocks),
    )
    runs = plan.applyable and not not_yet_run(plan)
    return sealed(msgspec.structs.replace(plan, applyable=runs))


def _devices(
    inputs: Inputs, chain: Chain, stages: Mapping[DeviceId, PlacedStage]
) -> tuple[PlannedDevice, ...]:
    return tuple(
        PlannedDevice(
            id=device.id,
            kind=device.kind,
            backend=device.backend,
            capacity_bytes=device.capacity_bytes,
            reserve_bytes=device.reserve_bytes,
            budget_bytes=inputs.budgets[device.id],
            ledger=ledger_of(chain, stages[device.id]) if device.id in stages else empty_ledger(device),
        )
        for device in inputs.inventory.devices
    )


def _blocks(
    inputs: Inputs, chain: Chain, constraints: Constraints, placement: Placement
) -> tuple[Block, ...]:
    blocks = []
    for placed in placement.stages:
        streamed = set(placed.streamed)
        for index in range(placed.stage.start, placed.stage.stop):
            blocks.append(
                Block(
                    id=chain.ids[index],
                    device=placed.stage.device.id,
                    residency=placement.tier if index in streamed else Residency.RESIDENT,
                    format=inputs.block_formats[index],
                    num_bytes=chain.exact_bytes[index],
                    kv_bytes=chain.costs[index].kv_bytes,
                    reason=_reason(chain, constraints, placement, index, streams=index in streamed),
                )
            )
    return tuple(blocks)


def _reason(
    chain: Chain, constraints: Constraints, placement: Placement, index: int, *, streams: bool
) -> Reason:
    pinned = pinned_reason(constraints, index)
    if pinned is not None:
        return pinned
    if streams:
        return Reason.CAPACITY
    if constraints.device[index] is not None:
        return Reason.PINNED
    if placement.tier is Residency.RESIDENT:
        return Reason.FITS
    own = chain.costs[index].resident_reason
    if own is not None:
        return own
    return Reason.PINNED if constraints.must_stay[index] else Reason.KEPT


def _tie(group: TiedGroup, chain: Chain, blocks: tuple[Block, ...]) -> Tie:
    owners = {owning_block(chain.ids, fqn) for fqn in group.fqns}
    devices = tuple(dict.fromkeys(block.device for block in blocks if block.id in owners))
    return Tie(
        fqns=group.fqns,
        num_bytes=group.num_bytes,
        policy="co-located" if len(devices) == 1 else "replicated",
        devices=devices,
    )


def _schedule(placed: PlacedStage, chain: Chain) -> Schedule:
    return Schedule(
        device=placed.stage.device.id,
        num_slots=placed.choice.num_slots,
        slot_bytes=slot_bytes(chain, placed),
        stream_order=tuple(chain.ids[index] for index in placed.streamed),
    )


def _summary(
    inputs: Inputs, chain: Chain, placement: Placement, prediction: Prediction, blocks: tuple[Block, ...]
) -> Summary:
    streamed = [index for placed in placement.stages for index in placed.streamed]
    streamed_bytes = sum(chain.costs[index].parameter_bytes for index in streamed)
    step_ns, bound_ns = prediction.step_ns, placement.lower_bound_ns
    return Summary(
        objective=inputs.objective,
        resident_blocks=len(blocks) - len(streamed),
        streamed_blocks=len(streamed),
        resident_bytes=sum(ledger_of(chain, placed).weights[0] for placed in placement.stages),
        streamed_bytes_per_step=streamed_bytes,
        predicted_load_ns=prediction.load_ns,
        predicted_first_output_ns=prediction.first_output_ns,
        predicted_decode_ns=prediction.decode_ns,
        predicted_step_ns=step_ns,
        lower_bound_ns=bound_ns,
        bound_class=BoundClass.CONTIGUOUS_ONE_TIER if streamed else BoundClass.CONTIGUOUS_RESIDENT,
        gap_ppm=-(-(step_ns - bound_ns) * 1_000_000 // step_ns) if step_ns else 0,
        solver_status=placement.status,
        reproducible=placement.status is not SolverStatus.TIME_LIMIT,
    )
