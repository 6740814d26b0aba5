"""An inventory of a machine that is not here, declared from the catalogue.

Reads options, never a machine: the same options give the same bytes everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bayplan.planner.hardware.catalogue import AcceleratorEntry, find_accelerator, find_cpu
from bayplan.planner.hardware.catalogue_accelerators import ACCELERATORS
from bayplan.planner.hardware.catalogue_cpus import CPUS
from bayplan.planner.hardware.catalogue_links import DEFAULT_DISK
from bayplan.planner.hardware.inventory import Compute, Host, assemble, catalogue_disk
from bayplan.schemas.errors import UsageError
from bayplan.schemas.hardware import Disk, Inventory
from bayplan.schemas.sizes import parse_rate, parse_size

MAX_DEVICES = 1024
"""More in one machine is a typing mistake."""

_DEVICE = re.compile(r"(?P<name>[^*]+)(?:\*(?P<count>[0-9]{1,9}))?")


def declare_inventory(
    devices: Sequence[str] = (),
    *,
    cpu: str | None = None,
    host_memory: str | None = None,
    disk: str | None = None,
) -> Inventory:
    """Return the inventory of one machine made of catalogue parts.

    Args:
        devices: `NAME` or `NAME*COUNT` of the catalogue's accelerators; their order is the chain's.
        cpu: Name of a catalogue CPU, one socket; None: the host computes nothing.
        host_memory: A size such as `1TiB`; may be left out where an accelerator has unified memory.
        disk: A read rate such as `7GB/s`; None: the catalogue's default disk.

    Raises:
        UsageError: Neither an accelerator nor a CPU is given.
        UsageError: A device is not of the form `NAME` or `NAME*COUNT`.
        UsageError: There are over `MAX_DEVICES` accelerators.
        UsageError: A name is not in the catalogue.
        UsageError: Several accelerators, one of them with unified memory.
        UsageError: `host_memory` is missing.
        SizeError: `host_memory` is no size or `disk` no rate.
    """
    if not devices and cpu is None:
        raise UsageError(
            "the declared machine computes nothing",
            where="--device",
            needed="an accelerator or a CPU",
            hint="add --cpu",
        )
    accelerators = _accelerators(devices)
    host = Host(
        memory_bytes=_host_memory_bytes(host_memory, accelerators),
        cpu=None if cpu is None else find_cpu(cpu, CPUS, where="--cpu"),
        features=() if cpu is None else CPUS[cpu].features,
    )
    declared_disk = catalogue_disk(DEFAULT_DISK)
    if disk is not None:
        declared_disk = Disk(
            read_bytes_per_second=parse_rate(disk, where="--disk"), latency_ns=DEFAULT_DISK.latency_ns
        )
    found = [
        Compute(
            entry=entry,
            kind=entry.name,
            capacity_bytes=entry.memory.value,
            shares_host_memory=entry.host_memory_bytes is not None,
        )
        for entry in accelerators
    ]
    return assemble(source="declared", host=host, disk=declared_disk, accelerators=found)


def _accelerators(devices: Sequence[str]) -> list[AcceleratorEntry]:
    """Return one entry per accelerator, in the order given."""
    entries: list[AcceleratorEntry] = []
    for text in devices:
        match = _DEVICE.fullmatch(text)
        count = int(match["count"] or 1) if match else 0
        if match is None or count < 1:
            raise UsageError(
                "not a device",
                where="--device",
                got=repr(text),
                needed="a catalogue name and how many, such as h100-80gb or h100-80gb*8",
            )
        entry = find_accelerator(match["name"], ACCELERATORS, where="--device")
        if len(entries) + count > MAX_DEVICES:
            raise UsageError(
                "too many accelerators in one machine",
                where="--device",
                got=repr(text),
                needed=f"at most {MAX_DEVICES} in all",
            )
        entries += [entry] * count
    unified = [entry.name for entry in entries if entry.host_memory_bytes is not None]
    if unified and len(entries) > 1:
        raise UsageError(
            "an accelerator with unified memory is the only one of its machine",
            where="--device",
            got=f"{len(entries)} accelerators with {unified[0]!r} among them",
            needed="one",
        )
    return entries


def _host_memory_bytes(text: str | None, accelerators: Sequence[AcceleratorEntry]) -> int:
    if text is not None:
        return parse_size(text, where="--host-memory")
    unified = [entry.host_memory_bytes for entry in accelerators if entry.host_memory_bytes is not None]
    if not unified:
        raise UsageError(
            "the declared machine has no host memory",
            where="--host-memory",
            needed="a size",
            hint="add for example --host-memory 256GiB",
        )
    return unified[0]
