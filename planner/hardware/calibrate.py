"""Replacing the catalogue's default rates of this machine by measured ones.

Measures the disk, and the CPU in fp32: how fast it reads weights, multiplies matrices, and gets through a
block of negligible size. Accelerators and their links keep the catalogue's figures. What it measures is this
machine at this moment, other work included: figures are medians rounded to three digits, and two calibrations
differ.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bayplan.planner.hardware.calibrate_disk import (
    CALIBRATION_FILE_BYTES,
    Clock,
    measure_disk,
    round_rate,
)
from bayplan.schemas.errors import UsageError
from bayplan.schemas.hardware import Device, Inventory
from bayplan.schemas.progress import Progress, untold
from bayplan.schemas.types import Backend

_NANOSECONDS = 10**9
_REPEATS = 7
"""Timed runs per figure, after one that is not: odd, so that the median is one of them."""


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much work the measurements do; the defaults take some seconds and 0.6 GB of memory."""

    file_bytes: int = CALIBRATION_FILE_BYTES
    """Size of the file that the disk is measured with."""
    matrices: int = 8
    """How many weight matrices one pass reads; together larger than the CPU's caches."""
    matrix_side: int = 4096
    """Rows and columns of each."""
    product_rows: int = 512
    """Rows multiplied by one of them at a time to find the rate of operations."""
    blocks: int = 16
    """Blocks that the longer of two models has more than the other."""
    steps: int = 31
    """Timed runs of these models: more than of the rest, since a busy machine disturbs short runs more."""


def calibrate(
    inventory: Inventory,
    folder: Path,
    progress: Progress | None = None,
    *,
    effort: Effort | None = None,
    clock: Clock = time.perf_counter_ns,
) -> Inventory:
    """Return `inventory` with the rates of the disk and of the CPU as measured on this machine.

    Args:
        inventory: Of this machine, probed or calibrated before.
        folder: On the disk that the checkpoint will be read from; a temporary file is written there.
        progress: Called with stage, done and total after every part of the work.
        effort: How much work the measurements do.
        clock: Nanoseconds from any start.

    Raises:
        UsageError: The inventory was declared, so it may describe another machine.
        CalibrationError: The disk cannot be measured.
    """
    if inventory.source == "declared" or len(inventory.nodes) != 1:
        raise UsageError(
            "only the machine at hand can be measured",
            where="--calibrate",
            got=f"a {inventory.source} inventory of {len(inventory.nodes)} node(s)",
            needed="a probed one",
            hint="leave out --device, --cpu, --host-memory and --disk",
        )
    work = effort or Effort()
    report = progress or untold
    (node,) = inventory.nodes
    disk = measure_disk(folder, report, file_bytes=work.file_bytes, clock=clock)
    devices = tuple(
        _calibrated_cpu(device, work, report, clock) if device.backend is Backend.CPU else device
        for device in inventory.devices
    )
    return msgspec.structs.replace(
        inventory,
        source="calibrated",
        nodes=(msgspec.structs.replace(node, disk=disk),),
        devices=devices,
    )


def _calibrated_cpu(device: Device, work: Effort, report: Progress, clock: Clock) -> Device:
    stage = "measure CPU"
    report(stage, 0, 3)
    bytes_per_second = measure_memory_rate(work, clock)
    report(stage, 1, 3)
    flops_per_second = measure_product_rate(work, clock)
    report(stage, 2, 3)
    block_overhead_ns = measure_block_overhead_ns(work, clock)
    report(stage, 3, 3)
    return msgspec.structs.replace(
        device,
        memory_bytes_per_second=bytes_per_second,
        flops_per_second=flops_per_second,
        block_overhead_ns=block_overhead_ns,
    )


def measure_memory_rate(work: Effort, clock: Clock) -> int:
    """Return the bytes per second at which fp32 weights are read for matrix-vector products."""
    import torch

    side = work.matrix_side
    weights = [torch.ones(side, side) for _ in range(work.matrices)]
    vector = torch.ones(1, side)

    def read_all() -> None:
        for weight in weights:
            torch.nn.functional.linear(vector, weight)

    num_bytes = 4 * side * side * work.matrices
    return round_rate(num_bytes * _NANOSECONDS // _median_ns(read_all, clock))


def measure_product_rate(work: Effort, clock: Clock) -> int:
    """Return the operations per second of fp32 matrix products; a multiplication and an addition are two."""
    import torch

    weight = torch.ones(work.matrix_side, work.matrix_side)
    rows = torch.ones(work.product_rows, work.matrix_side)
    flops = 2 * work.product_rows * work.matrix_side * work.matrix_side
    return round_rate(
        flops * _NANOSECONDS // _median_ns(lambda: torch.nn.functional.linear(rows, weight), clock)
    )


def measure_block_overhead_ns(work: Effort, clock: Clock) -> int:
    """Return the time of one transformer block of negligible size, in nanoseconds.

    The difference between a model of two blocks and one of `work.blocks` more, so that what a model does once
    does not count. Zero where noise makes the longer model look faster.
    """
    import torch
    import transformers

    def step_ns(num_blocks: int) -> int:
        config = transformers.LlamaConfig(
            vocab_size=8,
            hidden_size=64,
            intermediate_size=256,
            num_hidden_layers=num_blocks,
            num_attention_heads=4,
            num_key_value_heads=4,
        )
        # Initial weights must not take random numbers away from the caller.
        with torch.random.fork_rng(devices=()):
            model = torch.nn.Module.eval(transformers.LlamaModel(config))
        token = torch.zeros(1, 1, dtype=torch.long)
        with torch.inference_mode():
            return _median_ns(lambda: model(input_ids=token, use_cache=False), clock, work.steps)

    # The first model of a process also pays for what is set up once.
    step_ns(1)
    shorter_ns = step_ns(2)
    longer_ns = step_ns(2 + work.blocks)
    return round_rate(max(0, longer_ns - shorter_ns) // work.blocks)


def _median_ns(action: Callable[[], object], clock: Clock, repeats: int = _REPEATS) -> int:
    """Return the median time of `action` in nanoseconds, at least 1, after a run that is not timed."""
    action()
    times_ns = []
    for _ in range(repeats):
        start_ns = clock()
        action()
        times_ns.append(clock() - start_ns)
    return max(1, statistics.median_low(times_ns))
