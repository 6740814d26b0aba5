"""What a device was measured to compute: bytes and operations per second by data type, overheads.

A CPU is measured with decoder blocks of two sizes: small matrices are read more slowly than large ones,
which comes out as an overhead of the block, and a cache is read more slowly than weights. An accelerator is
measured with matrices alone, of two sizes: its blocks take what their operations take to launch. Imports
torch when something is measured.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import msgspec

from bayplan.planner.hardware.timing import NANOSECONDS, Stopwatch, rate_of, round_rate
from bayplan.schemas.hardware import FormatRates

if TYPE_CHECKING:
    import torch

    from bayplan.planner.hardware.calibrate_blocks import BlockTimes
    from bayplan.planner.hardware.calibration_effort import Effort

KINDS = ("bf16", "fp16", "fp32")
"""Kinds of format that are measured, sorted."""


class Overheads(msgspec.Struct, frozen=True, kw_only=True):
    """What a block takes besides its bytes."""

    operation_ns: int
    num_operations: int
    """Of the block that was measured."""

    @property
    def block_ns(self) -> int:
        """Time of all operations of one block, in nanoseconds."""
        return self.operation_ns * self.num_operations


def measure_overheads(device: torch.device, effort: Effort, stopwatch: Stopwatch) -> Overheads:
    """Return the time of one operation in a block of negligible size."""
    import torch

    from bayplan.planner.hardware.calibrate_blocks import BlockStack

    stack = BlockStack(effort.tiny, torch.float32, device, repeats=effort.steps)
    # The first steps of a process also pay for what is set up once.
    stack.block_ns(0, stopwatch)
    num_operations = stack.num_operations()
    block_ns = stack.block_ns(0, stopwatch)
    return Overheads(operation_ns=round_rate(block_ns // num_operations), num_operations=num_operations)


def measure_cpu_format(
    kind: str, device: torch.device, overheads: Overheads, effort: Effort, stopwatch: Stopwatch
) -> FormatRates:
    """Return what a CPU does with weights of one kind, from blocks of two sizes.

    Args:
        kind: Of `KINDS`.
        device: The CPU.
        overheads: Its operations'.
        effort: How much work is done.
        stopwatch: Of the device.
    """
    from bayplan.planner.hardware.calibrate_blocks import BlockStack

    dtype = _dtype(kind)
    narrow, wide = (
        BlockStack(size, dtype, device, repeats=repeats).times(effort.context, stopwatch)
        for size, repeats in ((effort.narrow, effort.steps), (effort.wide, effort.repeats))
    )
    bytes_per_second = _slope(narrow, wide)
    bytes_ns = narrow.weight_bytes * NANOSECONDS // bytes_per_second
    return FormatRates(
        kind=kind,
        memory_bytes_per_second=bytes_per_second,
        cache_bytes_per_second=min(bytes_per_second, _cache_rate(narrow, wide)),
        flops_per_second=measure_product_rate(kind, device, effort, stopwatch),
        block_overhead_ns=round_rate(max(0, narrow.empty_ns - bytes_ns - overheads.block_ns)),
    )


def measure_accelerator_format(
    kind: str, device: torch.device, effort: Effort, stopwatch: Stopwatch
) -> FormatRates:
    """Return what an accelerator does with weights of one kind, from matrices of two sizes.

    Args:
        kind: Of `KINDS`.
        device: The accelerator.
        effort: How much work is done.
        stopwatch: Of the device.
    """
    import torch

    dtype = _dtype(kind)
    times_ns, sizes = [], []
    for side in (effort.matrix_side, effort.large_side):
        weight = torch.ones(side, side, dtype=dtype, device=device)
        vector = torch.ones(1, side, dtype=dtype, device=device)
        product = functools.partial(torch.nn.functional.linear, vector, weight)
        times_ns.append(stopwatch.usual_ns(product, effort.repeats))
        sizes.append(weight.nbytes)
    # What a launch takes is in both times, and in neither's difference.
    more_ns = times_ns[1] - times_ns[0]
    bytes_per_second = (
        rate_of(sizes[1] - sizes[0], more_ns) if more_ns > 0 else rate_of(sizes[1], times_ns[1])
    )
    return FormatRates(
        kind=kind,
        memory_bytes_per_second=bytes_per_second,
        cache_bytes_per_second=bytes_per_second,
        flops_per_second=measure_product_rate(kind, device, effort, stopwatch),
        block_overhead_ns=0,
    )


def measure_product_rate(kind: str, device: torch.device, effort: Effort, stopwatch: Stopwatch) -> int:
    """Return the operations per second of matrix products; a multiplication and an addition are two."""
    import torch

    side, num_rows = effort.matrix_side, effort.product_rows
    weight = torch.ones(side, side, dtype=_dtype(kind), device=device)
    rows = torch.ones(num_rows, side, dtype=_dtype(kind), device=device)
    taken_ns = stopwatch.usual_ns(lambda: rows @ weight.T, effort.repeats)
    return rate_of(2 * num_rows * side * side, taken_ns)


def _slope(narrow: BlockTimes, wide: BlockTimes) -> int:
    """Return bytes per second between two sizes, or of the larger where noise makes it look no slower."""
    more_ns = wide.empty_ns - narrow.empty_ns
    if more_ns > 0:
        return rate_of(wide.weight_bytes - narrow.weight_bytes, more_ns)
    return rate_of(wide.weight_bytes, max(1, wide.empty_ns))


def _cache_rate(narrow: BlockTimes, wide: BlockTimes) -> int:
    """Return bytes of cache per second, over both sizes."""
    taken_ns = sum(times.full_ns - times.empty_ns for times in (narrow, wide))
    return rate_of(narrow.cache_bytes + wide.cache_bytes, max(1, taken_ns))


def _dtype(kind: str) -> torch.dtype:
    from bayplan.skeleton.formats import torch_dtype

    return torch_dtype(kind)
