"""A plan or a diff as markdown, for a pull request: the same facts as on the screen, in pipe tables.

Owns the markdown syntax. What stands in the tables is decided in `plan_tables` and `plan_facts`.
"""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.planner.present.diff_text import diff_tables, legend_facts, summary_line
from bayplan.planner.present.notices import plan_notices
from bayplan.planner.present.plan_facts import (
    Fact,
    assumption_facts,
    header_facts,
    prediction_facts,
    reason_facts,
)
from bayplan.planner.present.plan_tables import Table, block_table, device_table
from bayplan.schemas.diff import PlanDiff
from bayplan.schemas.plan import Plan

# Each would end a cell, open a tag or change the type face of what follows.
_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\|`*_<>[]#"})


def plan_markdown(plan: Plan, *, digest_matches: bool) -> str:
    """Return `plan` as markdown, ending in a newline.

    Args:
        plan: Any plan that could be read, also one that would be refused.
        digest_matches: Whether the file is as it was written; if not, the text says so.
    """
    warnings = [("warning", notice) for notice in plan_notices(plan, digest_matches=digest_matches)]
    parts = (
        markdown_facts([*header_facts(plan), *warnings]),
        markdown_table(device_table(plan)),
        markdown_table(block_table(plan)),
        markdown_facts(reason_facts(plan)),
        markdown_facts([*prediction_facts(plan), *assumption_facts(plan)]),
    )
    return "\n".join(part for part in parts if part)


def diff_markdown(diff: PlanDiff) -> str:
    """Return a diff as markdown, ending in a newline: the summary, and all else folded away below it."""
    tables = [markdown_table(table) for table in diff_tables(diff)]
    if not tables:
        return f"**{escaped(summary_line(diff))}**\n"
    parts = [*tables, markdown_facts(legend_facts(diff))]
    details = "\n".join(part for part in parts if part)
    return f"**{escaped(summary_line(diff))}**\n\n<details>\n\n{details}\n</details>\n"


def markdown_facts(facts: Sequence[Fact]) -> str:
    """Return facts as a list, each line ending in a newline."""
    return "".join(f"- **{escaped(word)}**: {escaped(text)}\n" for word, text in facts)


def markdown_table(table: Table) -> str:
    """Return a pipe table, each line ending in a newline."""
    rule = ["---:" if index in table.right_aligned else "---" for index in range(len(table.header))]
    rows = [table.header, tuple(rule), *(tuple(escaped(cell) for cell in row) for row in table.rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def escaped(text: str) -> str:
    """Return `text` so that markdown shows it as it is."""
    return text.translate(_SPECIAL)
