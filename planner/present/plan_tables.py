"""The tables of a plan, in words: one row for each device, one row for each run of blocks that are alike.

Owns which facts a table shows and how rows fold. Knows nothing of terminals or markdown.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from bayplan.planner.present.fold import fold_ids
from bayplan.planner.present.wording import device_label, has_single_node, printable
from bayplan.schemas.plan import Block, Experts, Plan
from bayplan.schemas.sizes import format_size

COMPONENTS: tuple[tuple[str, str], ...] = (
    ("weights", "weights"),
    ("kv", "kv"),
    ("activations", "activations"),
    ("staging", "staging"),
    ("load_transient", "loading"),
)
"""Fields of a ledger inside the budget, in order, each with its word. Their first letters draw the bar."""


class Table(msgspec.Struct, frozen=True):
    """Rows of equal length, in words."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right_aligned: frozenset[int]
    """Columns that hold quantities."""


def device_table(plan: Plan) -> Table:
    """Return one row for each device: its most bytes by component, and what it may take."""
    shown = [
        (field, word)
        for field, word in COMPONENTS
        if any(getattr(device.ledger, field)[1] for device in plan.devices)
    ]
    single_node = has_single_node([plan])
    rows = tuple(
        (
            device_label(device.id, single_node=single_node),
            format_size(device.ledger.budgeted_bytes),
            format_size(device.budget_bytes),
            *(_size_or_dash(getattr(device.ledger, field)[1]) for field, _ in shown),
        )
        for device in plan.devices
    )
    header = ("device", "at most", "budget", *(word for _, word in shown))
    return Table(header, rows, frozenset(range(1, len(header))))


def block_table(plan: Plan) -> Table:
    """Return one row for each run of blocks that agree in everything shown.

    Columns in which all blocks agree are left out where the header of the plan names the value anyway.
    """
    single_node = has_single_node([plan])
    several_devices = len({block.device for block in plan.blocks}) > 1
    several_formats = len({block.format for block in plan.blocks}) > 1
    has_kv = any(block.kv_bytes for block in plan.blocks)
    has_experts = any(block.experts is not None for block in plan.blocks)
    by_id = {block.id: block for block in plan.blocks}

    def columns(label: str, count: int, block: Block) -> tuple[tuple[str, str], ...]:
        device = device_label(block.device, single_node=single_node)
        experts = experts_text(block.experts) if block.experts is not None else "-"
        return (
            ("blocks", printable(label)),
            ("n", str(count)),
            *((("device", device),) if several_devices else ()),
            ("residency", block.residency.value),
            *((("format", printable(block.format)),) if several_formats else ()),
            ("each", format_size(block.num_bytes)),
            ("together", format_size(count * block.num_bytes)),
            *((("kv", _size_or_dash(count * block.kv_bytes)),) if has_kv else ()),
            *((("experts", experts),) if has_experts else ()),
            ("reason", block.reason.value),
        )

    folds = fold_ids([block.id for block in plan.blocks], [block_facts(block) for block in plan.blocks])
    rows = [columns(fold.label, len(fold.ids), by_id[fold.ids[0]]) for fold in folds]
    header = tuple(word for word, _ in rows[0]) if rows else ("blocks",)
    right = frozenset(index for index, word in enumerate(header) if word in ("n", "each", "together", "kv"))
    return Table(header, tuple(tuple(text for _, text in row) for row in rows), right)


def block_facts(block: Block) -> Hashable:
    """Return all that must agree between blocks of one row: everything but the id."""
    return msgspec.structs.replace(block, id="")


def experts_text(experts: Experts) -> str:
    """Return how many experts a block has, of what size, and where they are."""
    return (
        f"{experts.count} x {format_size(experts.unit_bytes)}, {experts.per_token} per token, "
        f"{printable(experts.format)}, {experts.residency}"
    )


def _size_or_dash(num_bytes: int) -> str:
    return format_size(num_bytes) if num_bytes else "-"
