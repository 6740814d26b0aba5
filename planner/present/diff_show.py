"""A diff of two plans on the terminal.

Owns the layout. What there is to say is worded in `diff_text`.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from bayplan.planner.present.diff_text import diff_tables, legend_facts, summary_line
from bayplan.planner.present.show import SplitTable, facts_grid
from bayplan.schemas.diff import PlanDiff


def render_diff(diff: PlanDiff) -> RenderableType:
    """Return the picture of a diff for a terminal: the summary line first, then only what differs."""
    parts: list[RenderableType] = [Text(summary_line(diff), style="bold")]
    for table in diff_tables(diff):
        parts += [Text(), SplitTable(table)]
    legend = legend_facts(diff)
    if legend:
        parts += [Text(), facts_grid(legend, style="dim")]
    return Group(*parts)
