"""The inventory of this machine: static capacities with the catalogue's default rates.

One of the few modules of the planner that may import torch, and only while it looks for accelerators. It
measures nothing and reads nothing that is free at the moment: one machine gives the same bytes every time.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bayplan.planner.hardware.accelerator_signs import may_have_accelerator
from bayplan.planner.hardware.catalogue import (
    CPU_FEATURES,
    AcceleratorEntry,
    CpuEntry,
    Figure,
    match_accelerator,
    match_cpu,
)
from bayplan.planner.hardware.catalogue_accelerators import ACCELERATORS
from bayplan.planner.hardware.catalogue_cpus import CPUS, GENERIC_CPU, GENERIC_CPU_BANDWIDTH_LIMIT
from bayplan.planner.hardware.catalogue_links import DEFAULT_DISK, LINKS
from bayplan.planner.hardware.host import HostFacts, read_host
from bayplan.planner.hardware.inventory import Compute, Host, assemble, catalogue_disk
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.types import Backend


class FoundAccelerator(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator as torch describes it."""

    device_name: str
    backend: Backend
    memory_bytes: int
    """All of it, free or not."""
    is_integrated: bool
    """Whether its memory is the host's."""


def probe_inventory(
    root: Path = Path("/"), find_accelerators: Callable[[], Sequence[FoundAccelerator]] | None = None
) -> Inventory:
    """Return the inventory of this machine.

    Accelerators come first, in torch's order, then the CPU. An accelerator that the catalogue does not know
    gets the lowest of each figure that it has, a CPU those of `generic` by its number of cores;
    `bayplan.planner.hardware.catalogue.uncatalogued` names the former.

    Args:
        root: Where `proc` and the control groups are found.
        find_accelerators: Asked for the accelerators; None: torch.

    Raises:
        ProbeError: The installed memory cannot be told.
    """
    facts = read_host(root)
    found = (find_accelerators or torch_accelerators)()
    host = Host(
        memory_bytes=facts.memory_bytes,
        cpu=_rated_cpu(facts),
        features=tuple(sorted(facts.flags & CPU_FEATURES)),
    )
    return assemble(
        source="probed",
        host=host,
        disk=catalogue_disk(DEFAULT_DISK),
        accelerators=[_compute(accelerator) for accelerator in found],
    )


def torch_accelerators() -> tuple[FoundAccelerator, ...]:
    """Return the accelerators that torch shows to this process.

    Those of a backend that bayplan has no name for are left out: no plan could put a block there. Where torch
    could show none, it is not imported to say so.
    """
    if "torch" not in sys.modules and not may_have_accelerator():
        return ()
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type not in set(Backend):
        return ()
    backend = Backend(accelerator.type)
    if backend is Backend.MPS:
        # Metal names no device, and recommends a share of the host's memory.
        memory_bytes = torch.mps.recommended_max_memory()
        return (
            FoundAccelerator(
                device_name="Apple MPS", backend=backend, memory_bytes=memory_bytes, is_integrated=True
            ),
        )
    module = torch.get_device_module(accelerator)
    found = []
    for index in range(torch.accelerator.device_count()):
        properties = module.get_device_properties(index)
        found.append(
            FoundAccelerator(
                device_name=properties.name,
                backend=backend,
                memory_bytes=properties.total_memory,
                is_integrated=bool(getattr(properties, "is_integrated", False)),
            )
        )
    return tuple(found)


def _rated_cpu(facts: HostFacts) -> CpuEntry:
    """Return the catalogue's entry with its rates in proportion to the cores of this machine."""
    entry = match_cpu(facts.model_name, CPUS.values()) or GENERIC_CPU
    bandwidth = entry.bandwidth.value * facts.cores // entry.cores
    if entry is GENERIC_CPU:
        bandwidth = min(bandwidth, GENERIC_CPU_BANDWIDTH_LIMIT.value)
    return msgspec.structs.replace(
        entry,
        cores=facts.cores,
        bandwidth=Figure(bandwidth, entry.bandwidth.source),
        flops=Figure(entry.flops.value * facts.cores // entry.cores, entry.flops.source),
    )


def _compute(found: FoundAccelerator) -> Compute:
    entry = match_accelerator(found.device_name, ACCELERATORS.values())
    return Compute(
        entry=entry or _slowest(found.backend),
        kind=entry.name if entry else kind_of(found.device_name),
        capacity_bytes=found.memory_bytes,
        shares_host_memory=found.is_integrated,
    )


def kind_of(device_name: str) -> str:
    """Return a device name in the form of a catalogue name: `NVIDIA A30` is `nvidia-a30`."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")


def _slowest(backend: Backend) -> AcceleratorEntry:
    """Return an entry with the worst of each figure that the catalogue has for accelerators."""
    # A link inside unified memory says nothing about a device of which nothing is known.
    entries = [entry for entry in ACCELERATORS.values() if entry.host_memory_bytes is None]
    slowest_link = min({entry.host_link for entry in entries}, key=lambda name: LINKS[name].bytes_per_second)
    return AcceleratorEntry(
        name="",
        device_name="",
        backend=backend,
        memory=Figure(0, "torch's figure is used"),
        bandwidth=min((entry.bandwidth for entry in entries), key=lambda figure: figure.value),
        flops=min((entry.flops for entry in entries), key=lambda figure: figure.value),
        operation_overhead=max(
            (entry.operation_overhead for entry in entries), key=lambda figure: figure.value
        ),
        host_link=slowest_link,
    )
