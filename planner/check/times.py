"""What a plan's placement takes, in nanoseconds: loading, the first output, one step."""

from __future__ import annotations

import msgspec

from bayplan.planner.check.basis import Placement, node_of
from bayplan.planner.check.calls import calls_of
from bayplan.planner.check.memory import device_needs, waiting_bytes
from bayplan.planner.check.pipeline import Call, end_ns, steady_step_ns
from bayplan.planner.check.ways import spent_ns
from bayplan.schemas.types import DeviceId, Objective


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """As in a plan's summary."""

    predicted_load_ns: int
    predicted_first_output_ns: int
    predicted_decode_ns: int | None
    predicted_step_ns: int


def times_of(placement: Placement) -> Times | None:
    """Return what the placement takes; None: something finds no way."""
    prefill = calls_of(placement, is_decode=False)
    decode = calls_of(placement, is_decode=True)
    if prefill is None or decode is None:
        return None
    num_slots = _num_slots(placement)
    plan, workload = placement.plan, placement.plan.workload
    num_chunks = 1
    if workload.prefill_chunk:
        num_chunks = max(1, -(-workload.context // workload.prefill_chunk))
    decode_ns = steady_step_ns(decode, num_slots) if plan.model.generates else None
    if decode_ns is None or plan.problem.objective == Objective.PREFILL:
        step, alone_ns = prefill, steady_step_ns(prefill, num_slots)
    else:
        step, alone_ns = decode, decode_ns
    return Times(
        predicted_load_ns=_load_ns(placement),
        predicted_first_output_ns=end_ns(prefill, num_slots, num_chunks),
        predicted_decode_ns=decode_ns,
        predicted_step_ns=_paced_ns(step, num_slots, alone_ns, workload.batches_in_flight),
    )


def _num_slots(placement: Placement) -> dict[int, int]:
    """Return the slots per device by place; at least one, so that a broken schedule can be played too."""
    return {
        index: max(1, placement.num_slots.get(device_id, 1))
        for index, device_id in enumerate(placement.devices)
    }


def _paced_ns(step: list[Call], num_slots: dict[int, int], alone_ns: int, num_batches: int) -> int:
    """Return the time from one batch's step to the next batch's, in nanoseconds.

    A batch is on one device at a time, so each device and each way sets a pace. With too few batches the pace
    is that of the batches going round. Devices that share what loads them are taken to do nothing at once.
    """
    if num_batches == 1:
        return alone_ns
    stages: dict[int, list[Call]] = {}
    users: dict[str, set[int]] = {}
    for call in step:
        stages.setdefault(call.device, []).append(msgspec.structs.replace(call, handover_ns=0))
        for name in call.load.shared if call.load is not None else ():
            users.setdefault(name, set()).add(call.device)
    if any(len(devices) > 1 for devices in users.values()):
        return alone_ns
    paces = [steady_step_ns(stage, num_slots) for stage in stages.values()]
    handovers = [call.handover_ns for call in step]
    return max([*paces, *handovers, -(-alone_ns // num_batches)])


def _load_ns(placement: Placement) -> int:
    """Return the time to read what stays; every node from its own disk, all at once."""
    longest_ns = 0
    for node in placement.nodes.values():
        num_bytes = waiting_bytes(placement, node.id) + sum(
            resident_bytes(placement, device_id)
            for device_id in placement.devices
            if node_of(device_id) == node.id
        )
        if num_bytes and node.disk is not None:
            own_ns = node.disk.latency_ns + spent_ns(num_bytes, node.disk.read_bytes_per_second)
            longest_ns = max(longest_ns, own_ns)
    return longest_ns


def resident_bytes(placement: Placement, device_id: DeviceId) -> int:
    """Return the bytes of what stays on a device, without alignment where it can be told apart."""
    return device_needs(placement, placement.by_device[device_id]).weights[0]
