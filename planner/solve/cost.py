"""Nanoseconds of one block on one device, and of bytes over one link: the cost model, no search.

`time = overhead + max(bytes / bandwidth, flops / rate)`: the overhead of a block and of each operation in it
matters as much as bandwidth on fast devices. Integers, rounded up, so that equal inputs give equal plans.
"""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.schemas.hardware import Device, FormatRates, Node
from bayplan.schemas.problem import BlockForm, BlockRun, PlainForm
from bayplan.schemas.types import Backend, Objective

NANOSECONDS = 10**9


def duration_ns(amount: int, per_second: int) -> int:
    """Return the time for `amount` of something at `per_second`, in nanoseconds, rounded up."""
    return -(-amount * NANOSECONDS // per_second)


def compute_ns(
    cost: BlockRun, form: BlockForm, device: Device, phase: Objective, kinds: Mapping[str, str]
) -> int:
    """Return the time of one call of a block whose weights are on `device`, in nanoseconds.

    A quantized kind that the device was not measured with saves memory and no time: it takes what the block
    takes unquantized.

    Args:
        cost: The block.
        form: The one of its forms that it is held in.
        device: Where it computes.
        phase: One token (`decode`) or a whole prefill chunk.
        kinds: Kind of each format.
    """
    rates = _rates(device, kinds[form.format])
    counted: BlockForm | PlainForm = form
    if rates is None and form.plain is not None:
        counted = form.plain
        rates = _rates(device, form.plain.kind)
    if phase is Objective.DECODE:
        read_bytes, flops, operations = counted.decode_read_bytes, cost.decode_flops, cost.decode_operations
    else:
        read_bytes, flops, operations = (
            counted.prefill_read_bytes,
            cost.prefill_flops,
            cost.prefill_operations,
        )
    overhead_ns = operations * device.operation_overhead_ns
    if rates is None:
        bytes_ns = duration_ns(read_bytes, device.memory_bytes_per_second)
        return (
            device.block_overhead_ns
            + overhead_ns
            + max(bytes_ns, duration_ns(flops, device.flops_per_second))
        )
    # A block that computes nothing, such as a look-up, reads no cache.
    cache_bytes = min(cost.kv_bytes, read_bytes) if flops else 0
    bytes_ns = duration_ns(read_bytes - cache_bytes, rates.memory_bytes_per_second)
    bytes_ns += duration_ns(cache_bytes, rates.cache_bytes_per_second)
    return rates.block_overhead_ns + overhead_ns + max(bytes_ns, duration_ns(flops, rates.flops_per_second))


def reading_ns(num_bytes: int, device: Device, node: Node) -> int:
    """Return the time that computing on `device` loses to the reading of streamed weights, in nanoseconds.

    On a CPU that reads from its disk, a core that copies out of the page cache computes nothing meanwhile. An
    accelerator goes on.

    Args:
        num_bytes: Read from the disk for one visit.
        device: Where the block computes.
        node: The device's.
    """
    if device.backend is not Backend.CPU or node.copy_bytes_per_second is None:
        return 0
    return duration_ns(num_bytes, node.copy_bytes_per_second)


def _rates(device: Device, kind: str) -> FormatRates | None:
    return next((rates for rates in device.format_rates if rates.kind == kind), None)
