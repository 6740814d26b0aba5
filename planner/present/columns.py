"""Tables that are wider than the terminal: between which columns they are split.

Owns how narrow a column may get. A quantity that is cut short would be another quantity; words may be broken.
"""

from __future__ import annotations

from bayplan.planner.present.plan_tables import Table

COLUMN_GAP = 2
"""Blanks between columns."""
_MIN_WORDS_CHARS = 20
"""Width of a column of words below which its table is split rather."""


def split_columns(table: Table, width: int) -> tuple[Table, ...]:
    """Return the table, or several with the same first column if it is wider than `width`.

    Args:
        table: Any.
        width: Columns of the terminal.
    """
    longest = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
    needed = [
        chars if index in table.right_aligned else min(chars, _MIN_WORDS_CHARS)
        for index, chars in enumerate(longest)
    ]
    parts: list[list[int]] = []
    room = 0
    for index, chars in enumerate(needed[1:], start=1):
        room -= COLUMN_GAP + chars
        if room < 0 or not parts:
            parts.append([0])
            room = width - needed[0] - COLUMN_GAP - chars
        parts[-1].append(index)
    return tuple(_columns(table, part) for part in parts)


def _columns(table: Table, indices: list[int]) -> Table:
    right = frozenset(place for place, index in enumerate(indices) if index in table.right_aligned)
    rows = tuple(tuple(row[index] for index in indices) for row in table.rows)
    return Table(tuple(table.header[index] for index in indices), rows, right)
