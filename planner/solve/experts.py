"""Experts apart from their block: where they can live, and what a call takes then.

The dense part of the block stays on its device. The experts are cached there, with the others on the way from
host memory or disk when they are routed to, or the host's CPU computes them. Which experts a token needs is
known only within the block, so their transfers cannot begin before it: they are part of its time.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from bayplan.planner.solve.expert_curves import PPM, default_hit_ppm, distinct_experts_ppm, least_hit_ppm
from bayplan.schemas.types import Backend, NumBytes, Objective, Residency

if TYPE_CHECKING:
    from bayplan.planner.solve.chain import Chain

SLOT_ALIGNMENT_BYTES = 4096
"""Reads past the page cache begin and end at multiples of this, so a slot is a multiple and one more."""

NUM_READERS = 4
"""Experts that are on their way at once: a slot each, besides those of the cache."""

ROUTING_SYNC_NS = 85_000
"""Time in which an accelerator's routing reaches the host: 4.1 ms per token for 48 layers (kekzl/imp issue
1359, 2026)."""


class ExpertsResidency(enum.StrEnum):
    """Where experts live that are apart from their block."""

    CACHE_HOST = "cache-host"
    """Some in slots of the block's device, all in host memory."""
    CACHE_DISK = "cache-disk"
    """Some in slots of the block's device, all on disk."""
    COMPUTE_HOST = "compute-host"
    """All in host memory, and computed by its CPU."""

    @property
    def tier(self) -> Residency:
        """Whence they come."""
        return Residency.STREAM_DISK if self is ExpertsResidency.CACHE_DISK else Residency.STREAM_HOST


class SplitExperts(msgspec.Struct, frozen=True, kw_only=True):
    """Experts of one block that are apart from it."""

    residency: ExpertsResidency
    slots: int = 0
    """Of its cache."""


def slot_bytes(unit_bytes: NumBytes) -> int:
    """Return what a slot for one expert takes, in bytes."""
    return (-(-unit_bytes // SLOT_ALIGNMENT_BYTES) + 1) * SLOT_ALIGNMENT_BYTES


def in_flight_bytes(unit_bytes: NumBytes, per_token: int) -> int:
    """Return what a device that caches experts needs besides its caches, in bytes: those of one call."""
    return (NUM_READERS + per_token) * slot_bytes(unit_bytes)


def needed_ppm(chain: Chain, index: int, phase: Objective) -> int:
    """Return how many experts one call of the block at `index` needs, in millionths of an expert."""
    experts = chain.costs[index].experts
    assert experts is not None
    tokens = chain.decode_tokens if phase is Objective.DECODE else chain.prefill_tokens
    return distinct_experts_ppm(experts.count, experts.per_token, tokens)


def missing_ppm(chain: Chain, index: int, slots: int, phase: Objective) -> int:
    """Return how many experts one call has to wait for, in millionths of an expert.

    Of one token, those that the cache's hit rate leaves; of several, those that a cache without memory of
    them would lack; of a chunk, all that find no slot.
    """
    experts = chain.costs[index].experts
    assert experts is not None
    needed = needed_ppm(chain, index, phase)
    if phase is Objective.PREFILL:
        return max(0, needed - PPM * slots)
    return -(-needed * (PPM - hit_ppm(chain, index, slots)) // PPM)


def hit_ppm(chain: Chain, index: int, slots: int) -> int:
    """Return the share of a step's needed experts that a cache of `slots` is taken to have, in ppm."""
    experts = chain.costs[index].experts
    assert experts is not None
    hit = default_hit_ppm if chain.decode_tokens == 1 else least_hit_ppm
    return hit(slots, experts.count, experts.per_token)


def sync_ns(backend: Backend) -> int:
    """Return the time until the host knows which experts are needed."""
    return 0 if backend is Backend.CPU else ROUTING_SYNC_NS
