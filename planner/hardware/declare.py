"""An inventory of machines that are not here, declared from the catalogue.

Reads options, never a machine: the same options give the same bytes everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from bayplan.planner.hardware.catalogue import AcceleratorEntry, LinkEntry, find_accelerator, find_cpu
from bayplan.planner.hardware.catalogue_accelerators import ACCELERATORS
from bayplan.planner.hardware.catalogue_cpus import CPUS
from bayplan.planner.hardware.catalogue_links import DEFAULT_DISK, NETWORK
from bayplan.planner.hardware.inventory import Compute, Host, assemble, catalogue_disk, repeated_node
from bayplan.schemas.errors import UsageError
from bayplan.schemas.hardware import Disk, Inventory
from bayplan.schemas.sizes import parse_rate, parse_size

MAX_DEVICES = 1024
"""More in one machine is a typing mistake."""

MAX_NODES = 64
"""Likewise."""

_DEVICE = re.compile(r"(?P<name>[^*]+)(?:\*(?P<count>[0-9]{1,9}))?")


def declare_inventory(
    devices: Sequence[str] = (),
    *,
    cpu: str | None = None,
    host_memory: str | None = None,
    disk: str | None = None,
    nodes: int = 1,
    network: str | None = None,
) -> Inventory:
    """Return the inventory of machines made of catalogue parts, all alike.

    Args:
        devices: `NAME` or `NAME*COUNT` of the catalogue's accelerators; their order is the chain's.
        cpu: Name of a catalogue CPU, one socket; None: the host computes nothing.
        host_memory: A size such as `1TiB`; may be left out where an accelerator has unified memory.
        disk: A read rate such as `7GB/s`; None: the catalogue's default disk.
        nodes: How many such machines.
        network: Rate between any two of them, such as `50GB/s`; None: there is but one.

    Raises:
        UsageError: There is no machine, or over `MAX_NODES`.
        UsageError: Several machines and no network between them, or the other way round.
        UsageError: Neither an accelerator nor a CPU is given.
        UsageError: A device is not of the form `NAME` or `NAME*COUNT`.
        UsageError: There are over `MAX_DEVICES` accelerators in one machine, or in all.
        UsageError: A name is not in the catalogue.
        UsageError: Several accelerators, one of them with unified memory.
        UsageError: `host_memory` is missing.
        SizeError: `host_memory` is no size, or `disk` or `network` no rate.
    """
    joined = _network(nodes, network)
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
    if len(found) * nodes > MAX_DEVICES:
        raise UsageError(
            "too many accelerators",
            where="--nodes",
            got=f"{nodes} machines with {len(found)} each",
            needed=f"at most {MAX_DEVICES} in all",
        )
    machine = assemble(source="declared", host=host, disk=declared_disk, accelerators=found)
    return machine if joined is None else repeated_node(machine, nodes, joined)


def _network(nodes: int, rate: str | None) -> LinkEntry | None:
    """Return the link between machines; None: there is but one."""
    if not 1 <= nodes <= MAX_NODES:
        raise UsageError(
            "not a number of machines", where="--nodes", got=str(nodes), needed=f"1 to {MAX_NODES}"
        )
    if nodes == 1 and rate is not None:
        raise UsageError(
            "a network needs two machines", where="--network", got=repr(rate), hint="add --nodes 2"
        )
    if nodes == 1:
        return None
    if rate is None:
        raise UsageError(
            "the declared machines are not joined",
            where="--network",
            needed="a rate between any two",
            hint="add for example --network 50GB/s, which is 400 Gbit/s",
        )
    return msgspec.structs.replace(NETWORK, bytes_per_second=parse_rate(rate, where="--network"))


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
