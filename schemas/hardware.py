"""The inventory: which devices a machine or cluster has, how much they hold, and how fast they are.

Probed on a machine or declared from the catalogue; it holds declared capacities and rates, never a reading
of what is free right now, so that a plan made from it is the same tomorrow.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from bayplan.schemas.types import Backend, DeviceId, Nanoseconds, NumBytes, Rate

INVENTORY_FORMAT_VERSION = "1.0"
"""Bump the major only if an older reader could misread the file; a new field with a default is a minor."""


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """The storage a node reads its checkpoint from."""

    read_bytes_per_second: Rate
    """Of a file that is not in the page cache, within a block. A cached file is read faster than planned."""
    latency_ns: Nanoseconds
    """Of a block beyond its bytes: where it does not follow the block before it in the file, what the system
    read ahead is lost."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One machine: its host memory and disk."""

    id: str
    """`node0`, `node1`, ..."""
    host_memory_bytes: NumBytes
    """Memory that processes may use: the smaller of what is installed and what the control group allows."""
    host_reserve_bytes: NumBytes
    """Kept free of the plan: operating system, other processes, the interpreter."""
    disk: Disk | None = None
    """None: nothing can be streamed from disk."""
    pinned_memory_bytes: NumBytes | None = None
    """Of the host's memory, what can be locked for copies to devices; None: all of it."""
    copy_bytes_per_second: Rate | None = None
    """Bytes of a cached file that one core copies out. A CPU that computes meanwhile loses this time; None:
    none worth counting."""


class FormatRates(msgspec.Struct, frozen=True, kw_only=True):
    """What a device was measured to do with weights of one kind of format."""

    kind: str
    """As in a plan's `formats`."""
    memory_bytes_per_second: Rate
    """Reading weights for a matrix-vector product."""
    cache_bytes_per_second: Rate
    """Reading keys and values of earlier positions, joining them with new ones included."""
    flops_per_second: Rate
    """Dense matrix products."""
    block_overhead_ns: Nanoseconds
    """Of a block beyond its bytes and its operations: small matrices are read more slowly."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Something that computes. A host that computes nothing has no entry here, only a `Node`."""

    id: DeviceId
    """Node and device, `node0/gpu0`."""
    kind: str
    """Catalogue name, such as `h100-80gb`; the executor matches devices by it."""
    backend: Backend
    """torch device type."""
    capacity_bytes: NumBytes
    """Memory that can be used at all."""
    reserve_bytes: NumBytes
    """Kept free of the plan; the budget is capacity minus reserve."""
    memory_bytes_per_second: Rate
    """Reading weights for a matrix-vector product."""
    flops_per_second: Rate
    """Dense matrix products, in the data type used most (bf16 on accelerators, fp32 on CPUs)."""
    block_overhead_ns: Nanoseconds
    """Time per call of a block beyond that of its bytes and its operations."""
    operation_overhead_ns: Nanoseconds = 0
    """Launch and interpreter time per operation of a block, whatever its size."""
    shares_host_memory: bool = False
    """Unified memory: its bytes are the host's bytes, counted once."""
    features: tuple[str, ...] = ()
    """Instruction sets that change results or speed, such as `avx512_bf16`; sorted."""
    format_rates: tuple[FormatRates, ...] = ()
    """Measured rates by kind of format, sorted; for other kinds the figures above hold."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A way for bytes from one place to another, in both directions alike."""

    source: str
    """Device id, or node id for its host memory."""
    target: str
    """Likewise."""
    bytes_per_second: Rate
    latency_ns: Nanoseconds
    group: str = ""
    """Links of one group share their bandwidth (a PCIe switch); empty: alone."""


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner places a model on."""

    format_version: str
    source: Literal["probed", "declared", "calibrated"]
    """Probed and calibrated ones are of the machine that planned; a declared one is of any."""
    nodes: tuple[Node, ...]
    devices: tuple[Device, ...]
    """In chain order: activations flow from the first to the last."""
    links: tuple[Link, ...] = ()
    """A pair that is not listed cannot exchange bytes, but for a CPU with its own host memory."""
