"""A plan on one screen: what it is, what each device holds, where every block is, and what to expect.

Owns the layout for a terminal. Reads plans only: neither torch nor a solver is needed to look at one.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from bayplan.planner.present.columns import COLUMN_GAP, split_columns
from bayplan.planner.present.notices import plan_notices
from bayplan.planner.present.plan_facts import (
    Fact,
    assumption_facts,
    header_facts,
    prediction_facts,
    reason_facts,
)
from bayplan.planner.present.plan_tables import COMPONENTS, Table, block_table, device_table
from bayplan.schemas.plan import Plan, PlannedDevice

_MIN_BAR_CHARS = 8
_MAX_BAR_CHARS = 40
_STYLES = {
    "weights": "blue",
    "kv": "magenta",
    "activations": "green",
    "staging": "yellow",
    "load_transient": "cyan",
}


def render_plan(plan: Plan, *, digest_matches: bool, width: int) -> RenderableType:
    """Return the picture of `plan` for a terminal.

    Args:
        plan: Any plan that could be read, also one that would be refused.
        digest_matches: Whether the file is as it was written; if not, the picture says so.
        width: Columns of the terminal.
    """
    notices = plan_notices(plan, digest_matches=digest_matches)
    return Group(
        facts_grid(header_facts(plan)),
        facts_grid([("warning", notice) for notice in notices], style="yellow"),
        Text(),
        _devices_picture(plan, width),
        Text(),
        SplitTable(block_table(plan)),
        Text(),
        facts_grid(reason_facts(plan), style="dim"),
        Text(),
        facts_grid((*prediction_facts(plan), *assumption_facts(plan))),
    )


def render_memory(plan: Plan, width: int) -> RenderableType:
    """Return the short picture of `plan`: how full each device is, and what to expect.

    Args:
        plan: Any plan that could be read.
        width: Columns of the terminal.
    """
    return Group(_devices_picture(plan, width), facts_grid(prediction_facts(plan)))


def facts_grid(facts: Sequence[Fact], style: str = "") -> RichTable:
    """Return facts below each other, their words in one column."""
    grid = RichTable.grid(padding=(0, COLUMN_GAP, 0, 0))
    grid.add_column(no_wrap=True, min_width=9)
    grid.add_column(overflow="fold")
    for word, text in facts:
        grid.add_row(Text(word, style=style or "bold"), Text(text, style=style))
    return grid


class SplitTable:
    """A table of words without lines around it; several below each other where it would be too wide."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it in the columns that there are."""
        for number, part in enumerate(split_columns(self._table, options.max_width)):
            if number:
                yield Text()
            yield _rich_table(part)


def _rich_table(table: Table, *, bars: Sequence[Text] | None = None) -> RichTable:
    """Return a table whose rows have, if given, a bar between their first cell and the rest."""
    drawn = RichTable(box=None, padding=(0, COLUMN_GAP, 0, 0), pad_edge=False, header_style="bold")
    for index, word in enumerate(table.header):
        right = index in table.right_aligned
        drawn.add_column(word, justify="right" if right else "left", no_wrap=right, overflow="fold")
        if index == 0 and bars is not None:
            drawn.add_column("", no_wrap=True)
    for index, row in enumerate(table.rows):
        bar = [] if bars is None else [bars[index]]
        drawn.add_row(Text(row[0]), *bar, *(Text(cell) for cell in row[1:]))
    return drawn


def _devices_picture(plan: Plan, width: int) -> RenderableType:
    """Return the devices' table with a bar in each row, as wide as the rest of the table leaves room for."""
    table = device_table(plan)
    cells = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
    room = width - sum(cells) - COLUMN_GAP * (len(cells) + 1)
    if room < _MIN_BAR_CHARS:
        return SplitTable(table)  # the figures matter more
    bar_chars = min(_MAX_BAR_CHARS, room)
    return _rich_table(table, bars=[_bar(device, bar_chars) for device in plan.devices])


def _bar(device: PlannedDevice, num_chars: int) -> Text:
    """Return the budget as a bar: a letter for each component's share, dots for what is free."""
    bar = Text()
    filled, end = 0, 0
    for field, word in COMPONENTS:
        end += getattr(device.ledger, field)[1]
        goal = min(num_chars, (2 * end * num_chars + device.budget_bytes) // max(1, 2 * device.budget_bytes))
        bar.append(word[0] * (goal - filled), style=_STYLES[field])
        filled = goal
    bar.append("." * (num_chars - filled), style="dim")
    return bar
