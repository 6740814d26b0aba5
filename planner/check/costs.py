"""The time of one block's call: overhead and the longer of reading and computing."""

from __future__ import annotations

import msgspec

from bayplan.planner.check.basis import PlacedBlock, Placement
from bayplan.planner.check.experts import MILLION, needed_ppm, tokens_of
from bayplan.planner.check.ways import spent_ns
from bayplan.schemas.hardware import Device, FormatRates
from bayplan.schemas.problem import BlockForm, PlainForm


class _Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What a device does with weights of one kind."""

    bytes_per_second: int
    cache_bytes_per_second: int | None
    """None: the cache is read as weights are."""
    flops_per_second: int
    overhead_ns: int
    form: BlockForm | PlainForm
    """The form whose bytes count."""


def call_ns(placement: Placement, entry: PlacedBlock, device: Device, *, is_decode: bool) -> int:
    """Return the time of one call of a block whose weights are all there, in nanoseconds.

    Args:
        placement: All of the plan.
        entry: The block in its form.
        device: Where it computes.
        is_decode: One token on top of a full context; else one prefill chunk.
    """
    rates, run = _rates(placement, entry, device), entry.run
    flops = run.decode_flops if is_decode else run.prefill_flops
    num_operations = run.decode_operations if is_decode else run.prefill_operations
    read_bytes = _read_bytes(rates.form, is_decode=is_decode)
    if rates.cache_bytes_per_second is None:
        reading_ns = spent_ns(read_bytes, rates.bytes_per_second)
    else:
        # What computes nothing, such as an embedding, reads no cache; a call reads that of its own batch.
        own_cache = run.kv_bytes // placement.plan.workload.batches_in_flight if flops else 0
        cache_bytes = min(own_cache, read_bytes)
        reading_ns = spent_ns(read_bytes - cache_bytes, rates.bytes_per_second)
        reading_ns += spent_ns(cache_bytes, rates.cache_bytes_per_second)
    computing_ns = spent_ns(flops, rates.flops_per_second)
    return rates.overhead_ns + num_operations * device.operation_overhead_ns + max(reading_ns, computing_ns)


def experts_ns(placement: Placement, entry: PlacedBlock, device: Device, *, is_decode: bool) -> int:
    """Return the part of a call that are the products of the block's experts, in nanoseconds."""
    experts = entry.run.experts
    if experts is None:
        return 0
    rates = _rates(placement, entry, device)
    num_tokens = tokens_of(placement, is_decode=is_decode)
    needed = needed_ppm(experts.count, experts.per_token, num_tokens) * rates.form.unit_bytes // MILLION
    read_bytes = min(needed, _read_bytes(rates.form, is_decode=is_decode))
    flops = experts.decode_flops if is_decode else experts.prefill_flops
    return max(spent_ns(read_bytes, rates.bytes_per_second), spent_ns(flops, rates.flops_per_second))


def _read_bytes(form: BlockForm | PlainForm, *, is_decode: bool) -> int:
    return form.decode_read_bytes if is_decode else form.prefill_read_bytes


def _rates(placement: Placement, entry: PlacedBlock, device: Device) -> _Rates:
    """Return what was measured for the block's kind of format, else the device's own figures.

    A quantized kind that was not measured is as fast as the block unquantized: it saves memory only.
    """
    measured = {rates.kind: rates for rates in reversed(device.format_rates)}
    form: BlockForm | PlainForm = entry.form
    kind: str = placement.plan.formats[entry.form.format].kind
    if kind not in measured and entry.form.plain is not None:
        form = entry.form.plain
        kind = form.kind
    own: FormatRates | None = measured.get(kind)
    if own is None:
        return _Rates(
            bytes_per_second=device.memory_bytes_per_second,
            cache_bytes_per_second=None,
            flops_per_second=device.flops_per_second,
            overhead_ns=device.block_overhead_ns,
            form=form,
        )
    return _Rates(
        bytes_per_second=own.memory_bytes_per_second,
        cache_bytes_per_second=own.cache_bytes_per_second,
        flops_per_second=own.flops_per_second,
        overhead_ns=own.block_overhead_ns,
        form=form,
    )
