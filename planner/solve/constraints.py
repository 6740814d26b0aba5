"""What the user demands of the placement: pins and no spilling, resolved to block positions."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from bayplan.planner.solve.chain import Chain
from bayplan.schemas.errors import UsageError
from bayplan.schemas.plan import Pin
from bayplan.schemas.types import DeviceId, Reason, Residency

STREAM_TIERS = (Residency.STREAM_HOST, Residency.STREAM_DISK)
"""Residencies of a block that streams."""


class Constraints(msgspec.Struct, frozen=True, kw_only=True):
    """Demands per block position."""

    device: tuple[DeviceId | None, ...]
    """Where it must compute; None: anywhere."""
    must_stay: tuple[bool, ...]
    """Must not stream: by its nature or by a pin."""
    must_stream: tuple[bool, ...]
    no_spill: bool
    tiers: tuple[Residency, ...] = STREAM_TIERS
    """Where streamed blocks may wait."""

    def may_stream(self, chain: Chain, index: int) -> bool:
        """Whether the block at `index` can stream; without parameters there is nothing to bring in."""
        if self.must_stream[index]:
            return True
        return not self.must_stay[index] and chain.costs[index].parameter_bytes > 0


def resolve(chain: Chain, pins: tuple[Pin, ...], *, no_spill: bool) -> Constraints:
    """Return the constraints on `chain`; of several pins on a block, the last one that says something holds.

    Raises:
        UsageError: A pin matches no block.
        UsageError: A pin makes a block stream that must stay.
        UsageError: A pin makes a block stream while spilling is forbidden.
        UsageError: Pins make blocks stream from more than one tier.
    """
    devices: list[DeviceId | None] = [None] * len(chain)
    residencies: list[Residency | None] = [None] * len(chain)
    for pin in pins:
        matched = [index for index, name in enumerate(chain.ids) if fnmatchcase(name, pin.pattern)]
        if not matched:
            raise UsageError(
                "the pin matches no block",
                where=f"--pin {pin.pattern}",
                needed=f"a pattern for block ids such as {chain.ids[len(chain) // 2]}",
            )
        for index in matched:
            devices[index] = pin.device or devices[index]
            residencies[index] = pin.residency or residencies[index]
    for index, residency in enumerate(residencies):
        if residency in (None, Residency.RESIDENT):
            continue
        reason = chain.costs[index].resident_reason
        if reason is not None or no_spill:
            raise UsageError(
                "the pin makes a block stream that must stay",
                where=f"--pin for {chain.ids[index]}",
                got=f"{residency}",
                needed=f"resident ({reason.value if reason is not None else '--no-spill'})",
            )
    tiers = tuple(tier for tier in STREAM_TIERS if tier in residencies)
    if len(tiers) > 1:
        raise UsageError(
            "the pins make blocks stream from more than one tier",
            where="--pin",
            got=" and ".join(tiers),
            needed="one of them for all",
        )
    return Constraints(
        device=tuple(devices),
        must_stay=tuple(
            residency is Residency.RESIDENT or cost.resident_reason is not None
            for residency, cost in zip(residencies, chain.costs, strict=True)
        ),
        must_stream=tuple(residency not in (None, Residency.RESIDENT) for residency in residencies),
        no_spill=no_spill,
        tiers=tiers or STREAM_TIERS,
    )


def pinned_reason(constraints: Constraints, index: int) -> Reason | None:
    """Return `pinned` if the user demanded that the block at `index` streams."""
    return Reason.PINNED if constraints.must_stream[index] else None
