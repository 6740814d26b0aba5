"""What differs between two plans: what they were made from, apart from what was decided.

Blocks are matched by their id, not by their position. Nothing here is read from a file; it is computed,
shown, and printed as JSON.
"""

from __future__ import annotations

import enum

import msgspec

from bayplan.schemas.json_tree import json_tree
from bayplan.schemas.plan import Block
from bayplan.schemas.pretty_json import pretty
from bayplan.schemas.types import BytesRange, DeviceId, Fqn

Leaf = str | int | bool | None
"""A single value of a plan; a list or object that is compared as a whole is given as canonical JSON text."""


class ChangeKind(enum.StrEnum):
    """What happened to a block. One block may have several."""

    ADDED = "added"
    REMOVED = "removed"
    MOVED = "moved"
    """To another device."""
    SPILLED = "spilled"
    """Its weights wait farther away from the device that computes it."""
    BROUGHT_IN = "brought in"
    """Its weights wait nearer."""
    REFORMATTED = "reformatted"
    RESIZED = "resized"
    """Other bytes of weights or cache."""
    EXPERTS = "experts changed"
    EXPLAINED = "explained"
    """Only the reason is another."""


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """One difference in what the plans were made from: model, inventory, workload, or what was asked for."""

    path: str
    """Such as `inventory.devices[node0/cpu].capacity_bytes`; entities are named, not counted."""
    before: Leaf
    """None also where the first plan has no such entity."""
    after: Leaf
    relevant: bool
    """False: nothing that either plan uses depends on it, such as the rate of a device without blocks."""


class BlockChange(msgspec.Struct, frozen=True, kw_only=True):
    """One block that the plans treat differently."""

    id: Fqn
    kinds: tuple[ChangeKind, ...]
    """At least one, in the order of the enumeration."""
    before: Block | None
    after: Block | None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One difference in decisions that are not about a single block: formats, rules, ties, slots, order."""

    path: str
    before: Leaf
    after: Leaf


class LedgerChange(msgspec.Struct, frozen=True, kw_only=True):
    """One component of one device's memory."""

    device: DeviceId
    component: str
    """A field of the ledger, or `budget`."""
    before: BytesRange | None
    """None: the first plan does not use the device."""
    after: BytesRange | None


class SummaryChange(msgspec.Struct, frozen=True, kw_only=True):
    """One total or prediction."""

    field: str
    """A field of the plan's summary."""
    before: Leaf
    after: Leaf


class PlanDiff(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that differs between two plans but their digest and their writer."""

    drift: tuple[Drift, ...]
    blocks: tuple[BlockChange, ...]
    """In the order of the second plan; removed ones last."""
    decisions: tuple[Decision, ...]
    ledger: tuple[LedgerChange, ...]
    summary: tuple[SummaryChange, ...]
    nodes: tuple[str, ...]
    """All nodes that either plan uses, sorted."""
    step_ns: tuple[int, int]
    """Predicted time of one step, before and after; equal where nothing changed."""

    @property
    def is_empty(self) -> bool:
        """Whether the plans say the same."""
        return not (self.drift or self.blocks or self.decisions or self.ledger or self.summary)

    def count(self, kind: ChangeKind) -> int:
        """Return how many blocks changed in this way."""
        return sum(kind in change.kinds for change in self.blocks)


def encode_diff(diff: PlanDiff) -> bytes:
    """Return the text of `diff`, laid out as a plan is."""
    return pretty(json_tree(diff))
