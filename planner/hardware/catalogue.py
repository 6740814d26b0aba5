"""The catalogue: accelerators, CPUs and links by name, every figure with its source.

Owns what an entry is and how one is found; the entries are in `catalogue_accelerators`, `catalogue_cpus` and
`catalogue_links`. Rates are datasheet peaks where no measurement is named: calibration replaces them by what
a machine really does.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from bayplan.schemas.errors import UsageError
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.types import Backend, Nanoseconds, NumBytes, Rate


class Figure(msgspec.Struct, frozen=True):
    """One number and where it is from."""

    value: int
    source: str
    """Datasheet with its year, or measurement."""


class LinkEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of connection, one direction."""

    name: str
    bytes_per_second: Rate
    latency_ns: Nanoseconds
    source: str


class DiskEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of storage."""

    read_bytes_per_second: Rate
    latency_ns: Nanoseconds
    source: str


class AcceleratorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of accelerator."""

    name: str
    """Lower case, with the memory where the device comes in several."""
    device_name: str
    """What torch calls it; matched exactly, since parts of a split device have longer names."""
    backend: Backend
    memory: Figure
    """Bytes that torch can allocate at most; not more than any driver was seen to report."""
    bandwidth: Figure
    """Bytes of its own memory per second."""
    flops: Figure
    """Dense bf16 operations per second, accumulated in fp32."""
    operation_overhead: Figure
    """Nanoseconds per operation of a block."""
    host_link: str
    """Name of the link to host memory."""
    host_link_sharers: Figure | None = None
    """Neighbours in a machine that share one way to host memory, as behind a PCIe switch; None: each has its
    own."""
    peer_link: str | None = None
    """Name of the link between two of its kind in one machine; None: over host memory."""
    host_memory_bytes: NumBytes | None = None
    """Unified memory: all of the machine's; None: its own memory."""


class CpuEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of CPU, one socket."""

    name: str
    model_pattern: str
    """Regular expression found in the model name that the system reports."""
    cores: int
    """Physical cores that the figures are for."""
    bandwidth: Figure
    """Bytes of host memory per second."""
    flops: Figure
    """fp32 operations per second."""
    operation_overhead: Figure
    """Nanoseconds per operation of a block."""
    features: tuple[str, ...]
    """Instruction sets out of `CPU_FEATURES`, sorted."""


CPU_FEATURES = frozenset(
    {
        "amx_bf16",
        "amx_int8",
        "avx2",
        "avx512_bf16",
        "avx512_fp16",
        "avx512_vnni",
        "avx512f",
        "bf16",
        "i8mm",
        "sve",
    }
)
"""Instruction sets, as Linux spells them, that make torch or bitsandbytes take other kernels."""


Entry = TypeVar("Entry")
"""What a catalogue lists."""


def find_accelerator(name: str, catalogue: Mapping[str, AcceleratorEntry], *, where: str) -> AcceleratorEntry:
    """Return the accelerator called `name`.

    Args:
        name: Catalogue name.
        catalogue: Entries by name.
        where: Option that holds it, for the message.

    Raises:
        UsageError: No entry has this name; the message lists near ones and all.
    """
    return _found(name, catalogue, noun="accelerator", where=where)


def find_cpu(name: str, catalogue: Mapping[str, CpuEntry], *, where: str) -> CpuEntry:
    """Return the CPU called `name`.

    Args:
        name: Catalogue name.
        catalogue: Entries by name.
        where: Option that holds it, for the message.

    Raises:
        UsageError: No entry has this name; the message lists near ones and all.
    """
    return _found(name, catalogue, noun="CPU", where=where)


def match_accelerator(device_name: str, entries: Iterable[AcceleratorEntry]) -> AcceleratorEntry | None:
    """Return the entry for what torch calls `device_name`, or None."""
    return next((entry for entry in entries if entry.device_name == device_name), None)


def match_cpu(model_name: str, entries: Iterable[CpuEntry]) -> CpuEntry | None:
    """Return the entry whose pattern is found in the system's model name, or None."""
    return next((entry for entry in entries if re.search(entry.model_pattern, model_name)), None)


def uncatalogued(inventory: Inventory, names: Iterable[str]) -> tuple[str, ...]:
    """Return ids of devices whose kind is not among `names`, in chain order: their rates are stand-ins."""
    known = frozenset(names)
    return tuple(device.id for device in inventory.devices if device.kind not in known)


def _found(name: str, catalogue: Mapping[str, Entry], *, noun: str, where: str) -> Entry:
    if name not in catalogue:
        raise _unknown(name, catalogue, noun=noun, where=where)
    return catalogue[name]


def _unknown(name: str, names: Iterable[str], *, noun: str, where: str) -> UsageError:
    known = sorted(names)
    lower = name.lower()
    near = [other for other in known if lower in other] if lower else []
    near = near or difflib.get_close_matches(lower, known, n=3)
    return UsageError(
        f"no such {noun} in the catalogue",
        where=where,
        got=repr(name),
        needed=f"one of {', '.join(known)}",
        hint=f"did you mean {' or '.join(near)}?" if near else f"declare the nearest {noun} that is listed",
    )
