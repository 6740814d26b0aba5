"""Replacing the catalogue's default rates of this machine by measured ones.

Measures the disk and what reading costs the CPU, every device in each data type, and the links of
accelerators. What it measures is this machine at this moment: figures are rounded to three digits, and two
calibrations differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bayplan.planner.hardware.calibrate_compute import (
    KINDS,
    measure_accelerator_format,
    measure_cpu_format,
    measure_overheads,
)
from bayplan.planner.hardware.calibrate_disk import measure_disk
from bayplan.planner.hardware.calibrate_links import CopyMaker, measure_link, torch_copies
from bayplan.planner.hardware.calibration_effort import Effort
from bayplan.planner.hardware.timing import Clock, Stopwatch, nothing_to_wait_for
from bayplan.schemas.errors import UsageError
from bayplan.schemas.hardware import Device, Inventory, Link
from bayplan.schemas.progress import Progress, untold
from bayplan.schemas.types import Backend, DeviceId

if TYPE_CHECKING:
    import torch

OWN_KINDS = {True: "fp32", False: "bf16"}
"""Kind whose rates are a device's own, by whether it is a CPU."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """How the machine is reached; a test brings its own."""

    clock: Clock = time.perf_counter_ns
    """Nanoseconds from any start."""
    cpu_clock: Clock = time.thread_time_ns
    """Nanoseconds that a core worked for this thread."""
    devices: Callable[[Inventory], Mapping[DeviceId, torch.device]] | None = None
    """torch's devices by id; None: by backend, in chain order."""
    copies: CopyMaker | None = None
    """Makes copies over links; None: torch."""


def calibrate(
    inventory: Inventory,
    folder: Path,
    progress: Progress | None = None,
    *,
    effort: Effort | None = None,
    probe: Probe | None = None,
) -> Inventory:
    """Return `inventory` with its rates as measured on this machine.

    Args:
        inventory: Of this machine, probed or calibrated before.
        folder: On the disk that the checkpoint will be read from; a temporary file is written there.
        progress: Called with stage, done and total after every part of the work.
        effort: How much work the measurements do.
        probe: How the machine is reached.

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
            hint="leave out --device, --cpu, --host-memory, --disk and --nodes",
        )
    work, way, report = effort or Effort(), probe or Probe(), progress or untold
    (node,) = inventory.nodes
    disk, copy_rate = measure_disk(folder, report, effort=work, clock=way.clock, cpu_clock=way.cpu_clock)
    places = (way.devices or torch_devices)(inventory)
    devices = tuple(_calibrated(device, places[device.id], work, way, report) for device in inventory.devices)
    return msgspec.structs.replace(
        inventory,
        source="calibrated",
        nodes=(msgspec.structs.replace(node, disk=disk, copy_bytes_per_second=copy_rate),),
        devices=devices,
        links=_calibrated_links(inventory, places, work, way, report),
    )


def torch_devices(inventory: Inventory) -> dict[DeviceId, torch.device]:
    """Return torch's device for each of an inventory: those of one backend in chain order."""
    import torch

    seen: dict[Backend, int] = {}
    found = {}
    for device in inventory.devices:
        index = seen.get(device.backend, 0)
        seen[device.backend] = index + 1
        is_cpu = device.backend is Backend.CPU
        found[device.id] = torch.device("cpu") if is_cpu else torch.device(device.backend.value, index)
    return found


def _calibrated(device: Device, place: torch.device, work: Effort, way: Probe, report: Progress) -> Device:
    stage, num_parts = f"measure {device.id}", 1 + len(KINDS)
    is_cpu = device.backend is Backend.CPU
    stopwatch = _stopwatch(place, way)
    report(stage, 0, num_parts)
    overheads = measure_overheads(place, work, stopwatch)
    report(stage, 1, num_parts)
    measured = []
    for kind in KINDS:
        measured.append(
            measure_cpu_format(kind, place, overheads, work, stopwatch)
            if is_cpu
            else measure_accelerator_format(kind, place, work, stopwatch)
        )
        report(stage, 1 + len(measured), num_parts)
    own = next(rates for rates in measured if rates.kind == OWN_KINDS[is_cpu])
    return msgspec.structs.replace(
        device,
        memory_bytes_per_second=own.memory_bytes_per_second,
        flops_per_second=own.flops_per_second,
        block_overhead_ns=own.block_overhead_ns,
        operation_overhead_ns=overheads.operation_ns,
        format_rates=tuple(measured),
    )


def _calibrated_links(
    inventory: Inventory,
    places: Mapping[DeviceId, torch.device],
    work: Effort,
    way: Probe,
    report: Progress,
) -> tuple[Link, ...]:
    if not inventory.links:
        return ()
    import torch

    ends = {**places, **{node.id: torch.device("cpu") for node in inventory.nodes}}
    copies = way.copies or torch_copies(ends)
    found: list[Link] = []
    for link in inventory.links:
        report("measure links", len(found), len(inventory.links))
        # What is asked of two devices is done when that one is which takes part and is no CPU.
        place = next((ends[end] for end in (link.target, link.source) if ends[end].type != "cpu"), None)
        stopwatch = Stopwatch(way.clock) if place is None else _stopwatch(place, way)
        found.append(measure_link(link, copies, work, stopwatch))
    report("measure links", len(found), len(inventory.links))
    return tuple(found)


def _stopwatch(place: torch.device, way: Probe) -> Stopwatch:
    if place.type == "cpu":
        return Stopwatch(way.clock, nothing_to_wait_for)
    import torch

    return Stopwatch(way.clock, lambda: torch.accelerator.synchronize(place))
