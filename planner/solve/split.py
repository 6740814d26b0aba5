"""What a block takes whose experts are apart from it: bytes on its device and its host, and its visit.

The arithmetic of `experts` on one task. Nothing here decides.
"""

from __future__ import annotations

import msgspec

from bayplan.planner.solve.cost import compute_ns, duration_ns
from bayplan.planner.solve.expert_curves import PPM
from bayplan.planner.solve.experts import (
    ExpertsResidency,
    SplitExperts,
    missing_ppm,
    needed_ppm,
    sync_ns,
)
from bayplan.planner.solve.simulate import Transfer
from bayplan.planner.solve.task import Task
from bayplan.schemas.graph import BlockExperts
from bayplan.schemas.problem import BlockForm, BlockRun, PlainForm
from bayplan.schemas.types import Backend, Objective, Residency


class SplitVisit(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a block whose experts are apart."""

    dense_ns: int
    """Until it is known which experts are needed; where the host computes them, until the end."""
    experts_ns: int
    """Of the experts' products on the device."""
    fetch: Transfer | None
    """Of the missing ones; None: the host computes."""


def split_residencies(task: Task, index: int, device: int) -> tuple[ExpertsResidency, ...]:
    """Return where the experts of the block at `index` may live, its dense part being on `device`."""
    if not task.splits_experts or task.chain.costs[index].experts is None:
        return ()
    if task.constraints.residency[index] is not None or task.constraints.no_spill:
        return ()
    if Residency.RESIDENT not in task.constraints.residencies(task.chain, index):
        return ()
    found = [
        residency
        for residency in (ExpertsResidency.CACHE_HOST, ExpertsResidency.CACHE_DISK)
        if task.machine.feed(device, residency.tier) is not None
    ]
    if host_cpu(task, device) is not None:
        found.append(ExpertsResidency.COMPUTE_HOST)
    return tuple(found)


def host_cpu(task: Task, device: int) -> int | None:
    """Return the CPU with which the host of `device` computes experts; None: there is none, or it is one."""
    machine = task.machine
    if machine.devices[device].backend is Backend.CPU:
        return None
    return next(
        (
            other
            for other, own in enumerate(machine.devices)
            if own.backend is Backend.CPU and machine.nodes[other] == machine.nodes[device]
            if machine.hop_ns(device, other, 0) is not None
        ),
        None,
    )


def dense_bytes(form: BlockForm, experts: BlockExperts) -> int:
    """Return what stays of a block's parameters when its experts are apart, in bytes."""
    return max(0, form.parameter_bytes - experts.count * form.unit_bytes)


def host_bytes(form: BlockForm, experts: BlockExperts, split: SplitExperts) -> int:
    """Return what the experts of a block take of host memory, in bytes."""
    return 0 if split.residency is ExpertsResidency.CACHE_DISK else experts.count * form.unit_bytes


def split_visit(
    task: Task, index: int, form: int, device: int, split: SplitExperts, phase: Objective
) -> SplitVisit:
    """Return what a call of the block at `index` takes with its experts apart, its dense part on `device`."""
    cost = task.chain.costs[index]
    experts = cost.experts
    assert experts is not None
    whole_ns = task.compute_ns(index, form, device, phase)
    experts_ns = _experts_ns(task, index, form, device, phase)
    dense_ns = max(0, whole_ns - experts_ns) + sync_ns(task.machine.devices[device].backend)
    if split.residency is ExpertsResidency.COMPUTE_HOST:
        cpu = host_cpu(task, device)
        assert cpu is not None, "a split that may be has a CPU"
        num_bytes = experts.decode_hidden_bytes if phase is Objective.DECODE else experts.prefill_hidden_bytes
        there, back = task.machine.hop_ns(device, cpu, num_bytes), task.machine.hop_ns(cpu, device, num_bytes)
        assert there is not None, "a split that may be has a way"
        assert back is not None, "a split that may be has a way"
        host_ns = _experts_ns(task, index, form, cpu, phase)
        return SplitVisit(dense_ns=dense_ns + there + host_ns + back, experts_ns=0, fetch=None)
    fetch = missing_fetch(task, index, form, device, split, phase)
    return SplitVisit(dense_ns=dense_ns, experts_ns=experts_ns, fetch=fetch)


def missing_fetch(
    task: Task, index: int, form: int, device: int, split: SplitExperts, phase: Objective
) -> Transfer:
    """Return how experts are brought in that the cache of the block at `index` lacks in one call."""
    way = task.machine.feed(device, split.residency.tier)
    assert way is not None, "a split that may be has a way"
    unit_bytes = task.chain.costs[index].forms[form].unit_bytes
    missing_bytes = -(-missing_ppm(task.chain, index, split.slots, phase) * unit_bytes // PPM)
    duration_ns = way.transfer_ns(missing_bytes) if missing_bytes else 0
    return Transfer(duration_ns=duration_ns, resources=way.resources)


def _experts_ns(task: Task, index: int, form: int, device: int, phase: Objective) -> int:
    """Return the time of the experts' products alone: what the block's whole time has beyond the rest's."""
    cost = task.chain.costs[index]
    experts, needed = cost.experts, needed_ppm(task.chain, index, phase)
    assert experts is not None
    is_decode = phase is Objective.DECODE
    flops = experts.decode_flops if is_decode else experts.prefill_flops
    own = cost.forms[form]
    target, kinds = task.machine.devices[device], task.chain.kinds
    with_experts = compute_ns(
        _products(cost, flops), _reading(own, needed, is_decode=is_decode), target, phase, kinds
    )
    return with_experts - compute_ns(
        _products(cost, 0), _reading(own, 0, is_decode=is_decode), target, phase, kinds
    )


def _products(cost: BlockRun, flops: int) -> BlockRun:
    """Return a block that does nothing else than products."""
    return msgspec.structs.replace(
        cost,
        decode_flops=flops,
        prefill_flops=flops,
        decode_operations=0,
        prefill_operations=0,
        kv_bytes=0,
    )


def _reading(form: BlockForm, needed: int, *, is_decode: bool) -> BlockForm:
    """Return a form that reads only so many millionths of experts, plain or not."""

    def read(own: BlockForm | PlainForm) -> int:
        return min(
            needed * own.unit_bytes // PPM, own.decode_read_bytes if is_decode else own.prefill_read_bytes
        )

    plain = form.plain
    if plain is not None:
        plain = msgspec.structs.replace(plain, decode_read_bytes=read(plain), prefill_read_bytes=read(plain))
    own = read(form)
    return msgspec.structs.replace(form, decode_read_bytes=own, prefill_read_bytes=own, plain=plain)


def fetch_ns_per_expert(task: Task, form: BlockForm, device: int, residency: ExpertsResidency) -> float:
    """Return the time that one missing expert takes beyond the latency, in nanoseconds."""
    way = task.machine.feed(device, residency.tier)
    assert way is not None
    return duration_ns(form.unit_bytes, way.bytes_per_second)
