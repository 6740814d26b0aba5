"""Why a plan is as it is: what binds each device, and where else a block could be at what cost.

Computed by solving again, shown and printed as JSON; never read back.
"""

from __future__ import annotations

import enum

import msgspec

from bayplan.schemas.json_tree import json_tree
from bayplan.schemas.pretty_json import pretty
from bayplan.schemas.types import (
    Count,
    DeviceId,
    Digest,
    Fqn,
    Nanoseconds,
    NumBytes,
    Objective,
    Reason,
    Residency,
)

MORE_BYTES = 2**30
"""By how much memory is raised to see what it would gain."""

FASTER = 2
"""By how much links and disks are sped up to see what it would gain."""


class Binding(enum.StrEnum):
    """What keeps a device's part of the plan from being better."""

    MEMORY = "memory"
    """Its own: with more of it the plan would be better."""
    HOST_MEMORY = "host-memory"
    """Of its node: with more of it the plan would be better."""
    PIN = "pin"
    """Without the user's pins the plan would be better."""
    DISK = "disk"
    """Reading what streams takes longer than computing, and the disk is the slowest part of the way."""
    LINK = "link"
    """Bringing what streams takes longer than computing, and the link is the slowest part of the way."""
    COMPUTE = "compute"
    """Computing takes the longest."""
    NOTHING = "nothing"
    """No block is there."""


class DeviceExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """One device: what it does in a step, and what binds it."""

    id: DeviceId
    num_blocks: Count
    num_streamed: Count
    """Of them, how many stream or have experts brought in."""
    budget_bytes: NumBytes
    needed_bytes: NumBytes
    """Of the budget, what the plan takes at most."""
    component: str
    """The ledger's largest component; empty where nothing is there."""
    component_bytes: NumBytes
    compute_ns: Nanoseconds
    """Of a step."""
    transfer_ns: Nanoseconds
    """Of a step: bringing weights in."""
    binding: Binding
    shared_with: tuple[DeviceId, ...] = ()
    """Others that bring weights in over the same disk or link."""
    gain_ns: int | None
    """By how much the objective would be better with `MORE_BYTES` more there; None: not asked, the device has
    no budget."""


class HostExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """One node's host memory."""

    id: str
    budget_bytes: NumBytes
    waiting_bytes: NumBytes
    gain_ns: int
    """By how much the objective would be better with `MORE_BYTES` more."""


class RateExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """What faster ways would gain."""

    ways: str
    """`links` or `disks`: all of them, `FASTER` times as fast."""
    gain_ns: int


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What binds a plan."""

    plan_digest: Digest
    objective: Objective
    planned_ns: Nanoseconds
    """What the objective makes small, as the plan predicts it."""
    again_ns: Nanoseconds
    """What gains are against: the same of the best placement that is known."""
    lower_bound_ns: Nanoseconds
    """Of the plan."""
    devices: tuple[DeviceExplanation, ...]
    hosts: tuple[HostExplanation, ...]
    """Nodes whose host memory weights wait in, or could."""
    rates: tuple[RateExplanation, ...]


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """Another place or form of one block, everything else being solved for again."""

    aspect: str
    """`residency` on the same device, `experts`, `device` or `format`: what is other; the rest is free."""
    choice: str
    cost_ns: int | None
    """By how much the objective would be worse; None: it cannot be."""
    why_not: str = ""
    """Why it cannot be."""


class BlockExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a block is where it is."""

    plan_digest: Digest
    objective: Objective
    again_ns: Nanoseconds
    """What costs are against: what the objective makes small, of the best placement that is known."""
    id: Fqn
    device: DeviceId
    residency: Residency
    format: str
    num_bytes: NumBytes
    reason: Reason
    alternatives: tuple[Alternative, ...]
    """The cheapest first, those that cannot be last."""


def encode_explanation(explanation: Explanation | BlockExplanation) -> bytes:
    """Return the text of an explanation, laid out as a plan is."""
    return pretty(json_tree(explanation))
