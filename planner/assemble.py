"""A placement and its inputs, written down as a plan. Decides nothing."""

from __future__ import annotations

import msgspec

from bayplan.planner.block_owner import owning_block
from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.chain import fold
from bayplan.planner.solve.experts import ExpertsResidency, hit_ppm
from bayplan.planner.solve.ledger import empty_ledger, ledger_of, slot_bytes, used_slots, waiting_bytes
from bayplan.planner.solve.objectives import Placed
from bayplan.planner.solve.predict import Prediction
from bayplan.planner.solve.task import Task
from bayplan.schemas.codec import sealed
from bayplan.schemas.features import not_yet_run
from bayplan.schemas.graph import TiedGroup
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.plan import (
    PLAN_FORMAT_VERSION,
    PLAN_SEMANTICS,
    Block,
    Experts,
    Format,
    FormatRule,
    Model,
    Plan,
    PlannedDevice,
    PlannedHost,
    Schedule,
    Summary,
    TensorRule,
    Tie,
    Workload,
)
from bayplan.schemas.problem import Pin, Problem
from bayplan.schemas.types import DeviceId, Objective, Reason, SolverStatus

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
    """Those that blocks could be in, and those of single tensors."""
    format_rules: tuple[FormatRule, ...]
    """For the forms that the placement has."""
    format_names: tuple[str, ...]
    """Those that blocks could be in, the model's own first."""
    is_auto: bool
    rules: tuple[TensorRule, ...]
    ties: tuple[TiedGroup, ...]
    moved_bytes: int | None = None
    """Against the plan that this one replaces; None: there is none."""


def assemble(inputs: Inputs, placed: Placed, prediction: Prediction) -> Plan:
    """Return the sealed plan."""
    task = placed.task
    blocks = _blocks(placed)
    workload = msgspec.structs.replace(inputs.workload, batches_in_flight=placed.batches_in_flight)
    plan = Plan(
        format_version=PLAN_FORMAT_VERSION,
        semantics=PLAN_SEMANTICS,
        complete=True,
        applyable=inputs.model.checkpoint is not None,
        errored=False,
        producer=inputs.producer,
        digest=UNSEALED,
        model=inputs.model,
        workload=workload,
        inventory=inputs.inventory,
        formats=inputs.formats,
        format_rules=inputs.format_rules,
        rules=inputs.rules,
        devices=_devices(inputs, placed),
        hosts=_hosts(placed),
        blocks=blocks,
        ties=tuple(_tie(group, task, blocks) for group in inputs.ties),
        schedule=tuple(
            _schedule(placed, device)
            for device in range(len(task.machine.devices))
            if placed.solution.answer.streamed_on(device)
        ),
        problem=Problem(
            objective=inputs.objective,
            formats=inputs.format_names,
            is_auto=inputs.is_auto,
            max_memory_bytes=inputs.max_memory,
            pins=inputs.pins,
            no_spill=inputs.no_spill,
            no_split=inputs.no_split,
            base_activation_bytes=task.chain.base_activation_bytes,
            scratch_bytes=task.chain.scratch_bytes,
            runs=fold(task.chain),
            edges=task.chain.edges,
        ),
        summary=_summary(inputs, placed, prediction),
    )
    runs = plan.applyable and not not_yet_run(plan)
    return sealed(msgspec.structs.replace(plan, applyable=runs))


def _devices(inputs: Inputs, placed: Placed) -> tuple[PlannedDevice, ...]:
    place = {device.id: index for index, device in enumerate(placed.task.machine.devices)}
    return tuple(
        PlannedDevice(
            id=device.id,
            kind=device.kind,
            backend=device.backend,
            capacity_bytes=device.capacity_bytes,
            reserve_bytes=device.reserve_bytes,
            budget_bytes=inputs.budgets[device.id],
            ledger=ledger_of(placed.task, placed.solution.answer, place[device.id])
            if device.id in place
            else empty_ledger(device),
        )
        for device in inputs.inventory.devices
    )


def _hosts(placed: Placed) -> tuple[PlannedHost, ...]:
    machine = placed.task.machine
    waiting = waiting_bytes(placed.task, placed.solution.answer)
    return tuple(
        PlannedHost(
            id=node.id,
            budget_bytes=machine.host_budgets[index],
            pinned_budget_bytes=machine.pinned_budgets[index],
            waiting_bytes=waiting[index],
        )
        for index, node in enumerate(machine.inventory.nodes)
    )


def _blocks(placed: Placed) -> tuple[Block, ...]:
    task, answer = placed.task, placed.solution.answer
    streams = any(choice.streams or choice.experts is not None for choice in answer.choices)
    return tuple(
        Block(
            id=task.chain.ids[index],
            device=task.machine.devices[choice.device].id,
            residency=choice.residency,
            format=task.form(index, answer).format,
            num_bytes=task.form(index, answer).num_bytes,
            kv_bytes=task.chain.costs[index].kv_bytes,
            reason=_reason(task, index, choice, something_streams=streams),
            experts=_experts(task, answer, index),
        )
        for index, choice in enumerate(answer.choices)
    )


def _experts(task: Task, answer: Answer, index: int) -> Experts | None:
    """Return where the routed experts of a block are; None: it has none that could be apart."""
    experts, split = task.chain.costs[index].experts, answer.choices[index].experts
    if experts is None:
        return None
    form = task.form(index, answer)
    plain = Experts(
        count=experts.count,
        per_token=experts.per_token,
        unit_bytes=form.unit_bytes,
        format=form.format,
        residency="with-block",
    )
    if split is None:
        return plain
    if split.residency is ExpertsResidency.COMPUTE_HOST:
        return msgspec.structs.replace(plain, residency=split.residency.value, compute="host")
    return msgspec.structs.replace(
        plain,
        residency=split.residency.value,
        slots=split.slots,
        floor_slots=experts.per_token,
        hit_ppm=hit_ppm(task.chain, index, split.slots),
    )


def _reason(task: Task, index: int, choice: Choice, *, something_streams: bool) -> Reason:
    pinned = task.constraints.residency[index]
    if choice.streams:
        return Reason.CAPACITY if pinned is None else Reason.PINNED
    if choice.experts is not None:
        return Reason.EXPERTS_APART
    if task.constraints.device[index] is not None:
        return Reason.PINNED
    if not something_streams:
        return Reason.FITS
    own = task.chain.costs[index].resident_reason
    if own is not None:
        return own
    return Reason.KEPT if pinned is None else Reason.PINNED


def _tie(group: TiedGroup, task: Task, blocks: tuple[Block, ...]) -> Tie:
    known = frozenset(task.chain.ids)
    owners = {owning_block(known, fqn) for fqn in group.fqns}
    devices = tuple(dict.fromkeys(block.device for block in blocks if block.id in owners))
    return Tie(
        fqns=group.fqns,
        num_bytes=group.num_bytes,
        policy="co-located" if len(devices) == 1 else "replicated",
        devices=devices,
    )


def _schedule(placed: Placed, device: int) -> Schedule:
    task, answer = placed.task, placed.solution.answer
    return Schedule(
        device=task.machine.devices[device].id,
        num_slots=used_slots(answer, device),
        slot_bytes=slot_bytes(task, answer, device),
        stream_order=tuple(task.chain.ids[index] for index in answer.streamed_on(device)),
    )


def _summary(inputs: Inputs, placed: Placed, prediction: Prediction) -> Summary:
    task, solution = placed.task, placed.solution
    streamed = [index for index, choice in enumerate(solution.answer.choices) if choice.streams]
    bounded_ns = prediction.load_ns if inputs.objective is Objective.LOAD else prediction.step_ns
    bound_ns = solution.lower_bound_ns
    return Summary(
        objective=inputs.objective,
        resident_blocks=len(task.chain) - len(streamed),
        streamed_blocks=len(streamed),
        resident_bytes=sum(
            ledger_of(task, solution.answer, device).weights[0] for device in range(len(task.machine.devices))
        ),
        streamed_bytes_per_step=sum(task.form(index, solution.answer).parameter_bytes for index in streamed),
        predicted_load_ns=prediction.load_ns,
        predicted_first_output_ns=prediction.first_output_ns,
        predicted_decode_ns=prediction.decode_ns,
        predicted_step_ns=prediction.step_ns,
        lower_bound_ns=bound_ns,
        bound_class=solution.bound_class,
        gap_ppm=-(-(bounded_ns - bound_ns) * 1_000_000 // bounded_ns) if bounded_ns else 0,
        solver_status=solution.status,
        reproducible=solution.status is not SolverStatus.TIME_LIMIT,
        moved_bytes=inputs.moved_bytes,
    )
