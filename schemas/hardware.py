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
    """Sequential read of a cold file."""
    latency_ns: Nanoseconds
    """From request to first byte."""


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
    """Launch and interpreter time per block and visit, whatever its size."""
    shares_host_memory: bool = False
    """Unified memory: its bytes are the host's bytes, counted once."""
    features: tuple[str, ...] = ()
    """Instruction sets that change results or speed, such as `avx512_bf16`; sorted."""


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
