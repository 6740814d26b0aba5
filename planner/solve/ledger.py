"""Bytes of one device by component, each `[lo, hi]`, and of host memory: what a placement needs.

Weights, cache and slots are counted exactly; the bounds of the rest are in `bayplan.planner.solve.margins`.
"""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.planner.solve.answer import Answer
from bayplan.planner.solve.chain import Chain, peak_bytes
from bayplan.planner.solve.experts import ExpertsResidency, in_flight_bytes
from bayplan.planner.solve.experts import slot_bytes as expert_slot_bytes
from bayplan.planner.solve.margins import activation_bounds, runtime_bounds
from bayplan.planner.solve.split import dense_bytes, host_bytes
from bayplan.planner.solve.task import Task
from bayplan.schemas.hardware import Device
from bayplan.schemas.plan import Ledger
from bayplan.schemas.types import Residency


def slot_bytes(task: Task, answer: Answer, device: int) -> int:
    """Return the size of one slot: the largest streamed block's parameters, each aligned."""
    streamed = answer.streamed_on(device)
    return max((task.form(index, answer).parameter_bytes for index in streamed), default=0)


def used_slots(answer: Answer, device: int) -> int:
    """Return how many slots of `device` are ever filled: no more than blocks stream there."""
    return min(answer.num_slots[device], len(answer.streamed_on(device)))


def ledger_of(task: Task, answer: Answer, device: int) -> Ledger:
    """Return what `answer` needs on `device`."""
    own = task.machine.devices[device]
    blocks = answer.blocks_on(device)
    if not blocks:
        return empty_ledger(own)
    forms = [task.form(index, answer) for index in blocks]
    resident = [
        (form, apart_bytes(task, answer, index))
        for index, form in zip(blocks, forms, strict=True)
        if not answer.choices[index].streams
    ]
    weights_hi = (
        sum(form.parameter_bytes - apart for form, apart in resident)
        + sum(form.buffer_bytes for form in forms)
        + replica_bytes(task.chain, blocks)
    )
    padding = sum(form.parameter_bytes + form.buffer_bytes - form.num_bytes for form, _ in resident)
    costs = [task.chain.costs[index] for index in blocks]
    kv = sum(cost.kv_bytes for cost in costs)
    staging = (
        used_slots(answer, device) * slot_bytes(task, answer, device)
        + cache_bytes(task, answer, blocks)
        + task.chain.scratch_bytes
    )
    return Ledger(
        weights=(weights_hi - padding, weights_hi),
        kv=(kv, kv),
        activations=(
            # Copies of experts are made by `generate()` alone.
            activation_bounds(activation_bytes(task, answer, blocks, copies=False))[0],
            activation_bounds(activation_bytes(task, answer, blocks))[1],
        ),
        staging=(staging, staging),
        load_transient=(0, 0),
        runtime=runtime_bounds(own.backend),
    )


def apart_bytes(task: Task, answer: Answer, index: int) -> int:
    """Return what the experts of a block that are apart from it would take beside it, in bytes."""
    experts = task.chain.costs[index].experts
    if answer.choices[index].experts is None or experts is None:
        return 0
    form = task.form(index, answer)
    return form.parameter_bytes - dense_bytes(form, experts)


def cache_bytes(task: Task, answer: Answer, blocks: Sequence[int]) -> int:
    """Return what the caches of experts of `blocks`, of one device, take in bytes, those on their way too."""
    total = in_flight = 0
    for index in blocks:
        split, experts = answer.choices[index].experts, task.chain.costs[index].experts
        if split is None or experts is None or split.residency is ExpertsResidency.COMPUTE_HOST:
            continue
        unit_bytes = task.form(index, answer).unit_bytes
        total += split.slots * expert_slot_bytes(unit_bytes)
        in_flight = max(in_flight, in_flight_bytes(unit_bytes, experts.per_token))
    return total + in_flight


def activation_bytes(task: Task, answer: Answer, blocks: Sequence[int], *, copies: bool = True) -> int:
    """Return what is alive at most while one of `blocks` runs, besides weights and cache.

    Args:
        task: The problem.
        answer: Its placement.
        blocks: Those of one device.
        copies: Whether steps may copy experts. They do not where any are apart from their block: all are
            then computed one by one, by which the bits are those of experts that come and go.
    """
    copies = copies and not answer.splits_experts
    return task.chain.base_activation_bytes + max(
        peak_bytes(task.chain.costs[index], task.form(index, answer), copies=copies) for index in blocks
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


def replica_bytes(chain: Chain, blocks: Sequence[int]) -> int:
    """Return bytes of tied storages that `blocks`, of one device, use and whose first block is elsewhere."""
    own = set(blocks)
    return sum(
        tie.num_bytes for tie in chain.ties if own.intersection(tie.positions) and tie.positions[0] not in own
    )


def waiting_bytes(task: Task, answer: Answer) -> tuple[int, ...]:
    """Return what waits in host memory to be brought to devices, in bytes, per node of the inventory."""
    waiting = [0] * len(task.machine.inventory.nodes)
    for index, choice in enumerate(answer.choices):
        if choice.residency is Residency.STREAM_HOST:
            waiting[task.machine.nodes[choice.device]] += task.form(index, answer).parameter_bytes
        experts = task.chain.costs[index].experts
        if choice.experts is not None and experts is not None:
            own = host_bytes(task.form(index, answer), experts, choice.experts)
            waiting[task.machine.nodes[choice.device]] += own
    return tuple(waiting)


def shortages(task: Task, answer: Answer) -> tuple[tuple[str, int], ...]:
    """Return what is too small for `answer`, with the missing bytes: devices, hosts, pinned memory."""
    machine = task.machine
    found: list[tuple[str, int]] = []
    waiting = waiting_bytes(task, answer)
    in_host = list(waiting)
    for device, own in enumerate(machine.devices):
        needed = ledger_of(task, answer, device).budgeted_bytes
        if needed > machine.budgets[device]:
            found.append((own.id, needed - machine.budgets[device]))
        if machine.lies_in_host_memory(device):
            in_host[machine.nodes[device]] += needed
    for node, own_node in enumerate(machine.inventory.nodes):
        if in_host[node] > machine.host_budgets[node]:
            found.append((own_node.id, in_host[node] - machine.host_budgets[node]))
        if waiting[node] > machine.pinned_budgets[node]:
            found.append((f"{own_node.id} pinned", waiting[node] - machine.pinned_budgets[node]))
    return tuple(found)
