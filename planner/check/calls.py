"""One step of a plan, call by call, as the pipeline plays it."""

from __future__ import annotations

import msgspec

from bayplan.planner.check.basis import PlacedBlock, Placement, apart_from, node_of
from bayplan.planner.check.costs import call_ns, experts_ns
from bayplan.planner.check.experts import missing_bytes, tier_of
from bayplan.planner.check.pipeline import Call, Load
from bayplan.planner.check.ways import Ways
from bayplan.schemas.plan import Experts
from bayplan.schemas.types import Backend, DeviceId, Fqn, Residency

_ROUTING_NS = 85_000
"""Until an accelerator's choice of experts has reached the host, as the cost model has it."""


def calls_of(placement: Placement, *, is_decode: bool) -> list[Call] | None:
    """Return one step in execution order; None: something finds no way, as the schedule's check says."""
    ways = Ways(placement.plan.inventory)
    calls: list[Call] = []
    for entry in placement.blocks:
        call = _call(placement, ways, entry, is_decode=is_decode)
        if call is None:
            return None
        calls.append(call)
    return calls


def _call(placement: Placement, ways: Ways, entry: PlacedBlock, *, is_decode: bool) -> Call | None:
    device_id = entry.block.device
    handover_ns: int | None = 0
    before = placement.blocks[entry.index - 1] if entry.index else entry
    if before.block.device != device_id:
        num_values, num_bytes = _values(placement, entry, is_decode=is_decode)
        handover_ns = ways.handover_ns(before.block.device, device_id, num_values, num_bytes)
    feed = ways.feed(device_id, entry.block.residency) if entry.streams else None
    if handover_ns is None or (entry.streams and feed is None):
        return None
    load = None
    if feed is not None:
        load = Load(duration_ns=feed.ns(entry.form.parameter_bytes), shared=feed.shared)
    own_ns = call_ns(placement, entry, placement.devices[device_id], is_decode=is_decode)
    whole = Call(
        device=list(placement.devices).index(device_id),
        handover_ns=handover_ns,
        compute_ns=own_ns + _copying_ns(placement, entry),
        load=load,
    )
    experts = apart_from(entry.block)
    if experts is None:
        return whole
    return _with_experts(placement, ways, entry, experts, whole, is_decode=is_decode)


def _copying_ns(placement: Placement, entry: PlacedBlock) -> int:
    """Return what a CPU that reads its own weights from disk loses to copying them out of the page cache."""
    device = placement.devices[entry.block.device]
    if entry.block.residency != Residency.STREAM_DISK or device.backend != Backend.CPU:
        return 0
    node = next(own for own in placement.plan.inventory.nodes if own.id == node_of(device.id))
    if node.copy_bytes_per_second is None:
        return 0
    return -(-entry.form.parameter_bytes * 10**9 // node.copy_bytes_per_second)


def _values(placement: Placement, first: PlacedBlock, *, is_decode: bool) -> tuple[int, int]:
    """Return how many values come to a device with its first block, and their bytes.

    The output of the block before, and that of every earlier one that some block of the stretch uses; each
    comes once, however many use it.
    """
    blocks = placement.blocks
    stretch: set[Fqn] = set()
    for entry in blocks[first.index :]:
        if entry.block.device != first.block.device:
            break
        stretch.add(entry.block.id)
    earlier = {entry.block.id for entry in blocks[: first.index - 1]}
    run = blocks[first.index - 1].run
    num_bytes = run.decode_output_bytes if is_decode else run.prefill_output_bytes
    sizes: dict[Fqn, int] = {}
    used: set[Fqn] = set()
    for edge in placement.plan.problem.edges:
        size = edge.decode_bytes if is_decode else edge.prefill_bytes
        sizes[edge.source] = max(size, sizes.get(edge.source, 0))
        if edge.source in earlier and edge.target in stretch:
            used.add(edge.source)
    return 1 + len(used), num_bytes + sum(sizes[source] for source in used)


def _with_experts(
    placement: Placement, ways: Ways, entry: PlacedBlock, experts: Experts, whole: Call, *, is_decode: bool
) -> Call | None:
    """Return the call with the experts apart; None: there is no way to them.

    Args:
        placement: All of the plan.
        ways: Of its inventory.
        entry: The block.
        experts: Where they are.
        whole: Its call if they were with it.
        is_decode: As for `calls_of`.
    """
    device = placement.devices[entry.block.device]
    own_ns = experts_ns(placement, entry, device, is_decode=is_decode)
    routing_ns = 0 if device.backend == Backend.CPU else _ROUTING_NS
    dense_ns = max(0, whole.compute_ns - own_ns) + routing_ns
    tier = tier_of(experts)
    if tier is None:
        host_ns = _on_host_ns(placement, ways, entry, is_decode=is_decode)
        return None if host_ns is None else msgspec.structs.replace(whole, compute_ns=dense_ns + host_ns)
    feed = ways.feed(device.id, tier)
    if feed is None:
        return None
    num_bytes = missing_bytes(placement, entry, experts, is_decode=is_decode)
    fetch = Load(duration_ns=feed.ns(num_bytes) if num_bytes else 0, shared=feed.shared)
    return msgspec.structs.replace(whole, compute_ns=dense_ns, fetch=fetch, fetch_compute_ns=own_ns)


def _on_host_ns(placement: Placement, ways: Ways, entry: PlacedBlock, *, is_decode: bool) -> int | None:
    """Return the time in which the host's CPU computes the experts of a block, there and back included."""
    known, device_id = entry.run.experts, entry.block.device
    cpu_id = host_cpu(placement, ways, device_id)
    if known is None or cpu_id is None:
        return None
    num_bytes = known.decode_hidden_bytes if is_decode else known.prefill_hidden_bytes
    there_ns = ways.handover_ns(device_id, cpu_id, 1, num_bytes)
    back_ns = ways.handover_ns(cpu_id, device_id, 1, num_bytes)
    if there_ns is None or back_ns is None:
        return None
    return there_ns + experts_ns(placement, entry, placement.devices[cpu_id], is_decode=is_decode) + back_ns


def host_cpu(placement: Placement, ways: Ways, device_id: DeviceId) -> DeviceId | None:
    """Return the CPU that computes experts for an accelerator: the first of its node that may compute."""
    if placement.devices[device_id].backend == Backend.CPU:
        return None
    return next(
        (
            other.id
            for other in placement.devices.values()
            if other.backend == Backend.CPU and node_of(other.id) == node_of(device_id)
            if placement.budgets[other.id] > 0 and ways.handover_ns(device_id, other.id, 1, 0) is not None
        ),
        None,
    )
