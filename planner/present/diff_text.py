"""A diff of two plans in words: one summary line, then what differs, alike blocks in one row.

Owns the wording and the tables. Says nothing of what did not change.
"""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.planner.present.fold import fold_ids
from bayplan.planner.present.plan_facts import Fact, short_digest
from bayplan.planner.present.plan_tables import Table, block_facts, experts_text
from bayplan.planner.present.reasons import REASON_TEXTS
from bayplan.planner.present.wording import device_label, printable, rate_text, share_text
from bayplan.schemas.diff import BlockChange, ChangeKind, Leaf, PlanDiff
from bayplan.schemas.plan import Block
from bayplan.schemas.sizes import format_duration_ns, format_size
from bayplan.schemas.types import Reason

SYMBOLS: dict[ChangeKind, str] = {
    ChangeKind.ADDED: "+",
    ChangeKind.REMOVED: "-",
    ChangeKind.MOVED: ">",
    ChangeKind.SPILLED: "v",
    ChangeKind.BROUGHT_IN: "^",
    ChangeKind.REFORMATTED: "~",
    ChangeKind.RESIZED: "~",
    ChangeKind.EXPERTS: "~",
    ChangeKind.EXPLAINED: "=",
}
"""The mark of a row is that of its first kind."""

_LEGEND = {
    "+": "added",
    "-": "removed",
    ">": "moved to another device",
    "v": "spilled: waits farther away",
    "^": "brought in: waits nearer",
    "~": "changed in place",
    "=": "stays, for another reason",
}
_ALWAYS_COUNTED = (ChangeKind.MOVED, ChangeKind.SPILLED, ChangeKind.REFORMATTED)
_WORDED = ("device", "residency", "format", "num_bytes", "kv_bytes", "experts")
_MAX_LEAF_CHARS = 40
_CONTEXT_CHARS = 10
_DERIVED = ("problem.runs", "problem.edges", "problem.base_activation_bytes")
"""What the planner took from the model; in full only where little of it differs."""
_MAX_DERIVED = 3


def summary_line(diff: PlanDiff) -> str:
    """Return one line such as `Diff: 3 moved, 1 spilled, 0 reformatted; step 41.2 -> 38.9 ms`."""
    if diff.is_empty:
        return "Diff: none"
    counts = {kind: diff.count(kind) for kind in ChangeKind}
    shown = [
        kind
        for kind in ChangeKind
        if kind in _ALWAYS_COUNTED or (counts[kind] and kind != ChangeKind.EXPLAINED)
    ]
    old, new = map(format_duration_ns, diff.step_ns)
    # Halves with one unit share it: `41.2 -> 38.9 ms`.
    value, _, unit = old.rpartition(" ")
    step = f"{value if new.endswith(f' {unit}') else old} -> {new}" if old != new else f"{new} as before"
    return f"Diff: {', '.join(f'{counts[kind]} {kind}' for kind in shown)}; step {step}"


def diff_tables(diff: PlanDiff) -> tuple[Table, ...]:
    """Return the tables that have rows, in reading order: what was given, what was decided, figures."""
    tables = (
        drift_table(diff),
        block_change_table(diff),
        decision_table(diff),
        ledger_table(diff),
        summary_table(diff),
    )
    return tuple(table for table in tables if table.rows)


def drift_table(diff: PlanDiff) -> Table:
    """Return what the plans were made from, where it differs; what follows from the model is only counted."""
    derived = [drift for drift in diff.drift if drift.path.startswith(_DERIVED)]
    shown = [drift for drift in diff.drift if len(derived) <= _MAX_DERIVED or drift not in derived]
    rows = _folded_rows(
        [
            (drift.path, (*_leaves(drift.path, drift.before, drift.after), _effect(drift.relevant)))
            for drift in shown
        ]
    )
    if len(shown) < len(diff.drift):
        rows += (("problem", f"{len(derived)} figures differ", "", ""),)
    return _without_empty_columns(Table(("made from", "before", "after", ""), rows, frozenset()))


def block_change_table(diff: PlanDiff) -> Table:
    """Return one row for each run of blocks that changed alike, with the reason.

    Blocks that stay as they are for another reason are shown only if nothing else happened to any block.
    """
    changes = {change.id: change for change in _shown_changes(diff)}
    single_node = len(diff.nodes) == 1
    rows = []
    for fold in fold_ids(list(changes), [_change_facts(change) for change in changes.values()]):
        change = changes[fold.ids[0]]
        blocks = [block for block in _sides(change) if block is not None]
        rows.append(
            (
                SYMBOLS[change.kinds[0]],
                printable(fold.label),
                str(len(fold.ids)),
                _arrow(_places(change, single_node)),
                format_size(len(fold.ids) * blocks[-1].num_bytes),
                _arrow([block.reason.value for block in blocks]),
            )
        )
    header = ("", "blocks", "n", "change", "bytes", "reason")
    return _without_empty_columns(Table(header, tuple(rows), frozenset((2, 4))))


def decision_table(diff: PlanDiff) -> Table:
    """Return decisions that are not about a single block."""
    rows = [(change.path, _leaves(change.path, change.before, change.after)) for change in diff.decisions]
    return Table(("decided", "before", "after"), _folded_rows(rows), frozenset())


def ledger_table(diff: PlanDiff) -> Table:
    """Return how memory changes on each device, by component; upper ends."""
    rows = []
    for line in diff.ledger:
        old, new = line.before or (0, 0), line.after or (0, 0)
        if old != new:
            device = device_label(line.device, single_node=len(diff.nodes) == 1)
            if old[1] != new[1]:
                sign = "+" if new[1] > old[1] else ""
                change = f"{sign}{format_size(new[1] - old[1])}"
                figures = (format_size(old[1]), format_size(new[1]), change)
            else:
                figures = (f"at least {format_size(old[0])}", f"at least {format_size(new[0])}", "")
            rows.append((device, line.component.replace("_", " "), *figures))
    return Table(("device", "memory", "before", "after", "change"), tuple(rows), frozenset((2, 3, 4)))


def summary_table(diff: PlanDiff) -> Table:
    """Return totals and predictions that differ."""
    rows = tuple(
        (
            change.field.removesuffix("_ns").removesuffix("_ppm").replace("_", " "),
            *_leaves(change.field, change.before, change.after),
        )
        for change in diff.summary
    )
    return Table(("summary", "before", "after"), rows, frozenset((1, 2)))


def legend_facts(diff: PlanDiff) -> tuple[Fact, ...]:
    """Return the marks that occur, and the text of every reason that occurs."""
    shown = _shown_changes(diff)
    marks = {SYMBOLS[change.kinds[0]] for change in shown}
    reasons = {block.reason for change in shown for block in _sides(change) if block is not None}
    return (
        *((mark, text) for mark, text in _LEGEND.items() if mark in marks),
        *((reason.value, REASON_TEXTS[reason]) for reason in Reason if reason in reasons),
    )


def _shown_changes(diff: PlanDiff) -> list[BlockChange]:
    """Return the changes worth a row: without those of the reason alone, unless there is nothing else."""
    telling = [change for change in diff.blocks if change.kinds != (ChangeKind.EXPLAINED,)]
    return telling or list(diff.blocks)


def _folded_rows(rows: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[tuple[str, ...], ...]:
    """Return rows whose first cells differ in one number only as one row."""
    cells = dict(rows)
    folds = fold_ids(list(cells), list(cells.values()))
    return tuple((printable(fold.label), *cells[fold.ids[0]]) for fold in folds)


def _effect(relevant: bool) -> str:
    return "" if relevant else "without effect"


def _sides(change: BlockChange) -> tuple[Block | None, Block | None]:
    return change.before, change.after


def _change_facts(change: BlockChange) -> tuple[object, ...]:
    """Return all that must agree between the changes of one row."""
    return (change.kinds, *(None if block is None else block_facts(block) for block in _sides(change)))


def _places(change: BlockChange, single_node: bool) -> list[str]:
    """Return where and how the block is, before and after; only what differs if both plans have it."""
    old, new = change.before, change.after
    if old is None or new is None:
        return [" ".join(_words(block, single_node).values()) for block in (old, new) if block is not None]
    differing = [field for field in _WORDED if getattr(old, field) != getattr(new, field)]
    old_words, new_words = _words(old, single_node), _words(new, single_node)
    if all(old_words[field] == new_words[field] for field in differing):
        # Rounded to the same words, so the exact figures have to say it.
        return [" ".join(str(getattr(block, field)) for field in differing) for block in (old, new)]
    return [" ".join(words[field] for field in differing) for words in (old_words, new_words)]


def _words(block: Block, single_node: bool) -> dict[str, str]:
    experts = block.experts
    return {
        "device": device_label(block.device, single_node=single_node),
        "residency": block.residency.value,
        "format": printable(block.format),
        "num_bytes": format_size(block.num_bytes),
        "kv_bytes": f"kv {format_size(block.kv_bytes)}" if block.kv_bytes else "no kv",
        "experts": "" if experts is None else experts_text(experts),
    }


def _arrow(words: list[str]) -> str:
    """Return `before -> after`, or one word where there is no other."""
    distinct = list(dict.fromkeys(words))
    return " -> ".join(word or "none" for word in distinct) if distinct != [""] else ""


def _leaves(path: str, before: Leaf, after: Leaf) -> tuple[str, str]:
    """Return both values in words; where rounding or cutting hides the difference, the part that differs."""
    old, new = _leaf_text(path, before), _leaf_text(path, after)
    if old != new:
        return old, new
    if isinstance(before, int) and isinstance(after, int):
        unit = " ns" if path.endswith("_ns") else " ppm" if path.endswith("_ppm") else ""
        unit = " B" if "bytes" in path else unit
        return f"{before}{unit}", f"{after}{unit}"
    old, new = str(before), str(after)
    common = next((at for at, (left, right) in enumerate(zip(old, new, strict=False)) if left != right), 0)
    start = max(0, common - _CONTEXT_CHARS)
    return _cut(old, start), _cut(new, start)


def _cut(text: str, start: int = 0) -> str:
    """Return at most `_MAX_LEAF_CHARS` of `text`, with dots where some is left out."""
    end = start + _MAX_LEAF_CHARS
    return printable(f"{'...' if start else ''}{text[start:end]}{'...' if end < len(text) else ''}")


def _leaf_text(path: str, value: Leaf) -> str:
    """Return a value with the unit that its field's name ends in."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return _quantity_text(path, value)
        case str() if value.startswith("{"):
            return "present"
        case str() if value.startswith("["):
            return "none" if value == "[]" else "a list"
        case str() if path.endswith(("digest", "sha256")):
            return short_digest(value)
        case _:
            return _cut(value)


def _quantity_text(path: str, value: int) -> str:
    if path.endswith("bytes_per_second"):
        return rate_text(value, "B/s")
    if path.endswith("flops_per_second"):
        return rate_text(value, "FLOP/s")
    if path.endswith(("_bytes", "bytes_per_step")) or ".max_memory_bytes." in path:
        return format_size(value)
    if path.endswith("_ns"):
        return format_duration_ns(value)
    if path.endswith("_ppm"):
        return share_text(value)
    return str(value)


def _without_empty_columns(table: Table) -> Table:
    kept = [index for index, word in enumerate(table.header) if word or any(row[index] for row in table.rows)]
    return Table(
        tuple(table.header[index] for index in kept),
        tuple(tuple(row[index] for index in kept) for row in table.rows),
        frozenset(kept.index(index) for index in table.right_aligned if index in kept),
    )
