"""The frontier of plans on the terminal: one row per plan, and what was tried besides in a line.

Owns wording and layout. Given the frontier; knows nothing of how it was found.
"""

from __future__ import annotations

from collections import Counter

from rich.console import Group, RenderableType
from rich.text import Text

from bayplan.planner.present.plan_tables import Table
from bayplan.planner.present.show import SplitTable, facts_grid
from bayplan.planner.present.wording import count_text, printable, share_text
from bayplan.schemas.frontier import Frontier, FrontierPoint
from bayplan.schemas.sizes import format_duration_ns, format_size


def render_frontier(frontier: Frontier) -> RenderableType:
    """Return the picture of a frontier for a terminal."""
    facts = [
        ("model", printable(frontier.class_name)),
        ("plans", f"{count_text(len(frontier.points), 'plan')}, none better than another in everything"),
    ]
    dropped = Counter(left_out.why.value for left_out in frontier.left_out)
    if dropped:
        words = ", ".join(f"{number} {why}" for why, number in sorted(dropped.items()))
        facts.append(("left out", words))
    if _is_mixed(frontier):
        facts.append(("*", "cannot be carried out by this version"))
    elif not any(point.applyable for point in frontier.points):
        facts.append(
            ("note", "none can be carried out by this version, or before it is bound to a checkpoint")
        )
    return Group(SplitTable(frontier_table(frontier)), Text(), facts_grid(facts))


def frontier_table(frontier: Frontier) -> Table:
    """Return one row for each plan, in words."""
    has_files = any(point.file is not None for point in frontier.points)
    is_mixed = _is_mixed(frontier)
    header = ("context", "format", "quantized", "to 4 bits", "latency", "streamed", "gap")
    return Table(
        (*header, "file") if has_files else header,
        tuple(
            _row(point, has_files=has_files, is_marked=is_mixed and not point.applyable)
            for point in frontier.points
        ),
        frozenset({0, 2, 3, 4, 5, 6}),
    )


def _is_mixed(frontier: Frontier) -> bool:
    return len({point.applyable for point in frontier.points}) > 1


def _row(point: FrontierPoint, *, has_files: bool, is_marked: bool) -> tuple[str, ...]:
    summary = point.summary
    streamed = summary.streamed_bytes_per_step
    row = (
        str(point.request.context),
        printable(point.request.format) + (" *" if is_marked else ""),
        share_text(point.quantized_ppm) if point.quantized_ppm else "-",
        share_text(point.four_bit_ppm) if point.four_bit_ppm else "-",
        format_duration_ns(point.latency_ns),
        format_size(streamed) if streamed else "-",
        share_text(summary.gap_ppm),
    )
    return (*row, "-" if point.file is None else printable(point.file)) if has_files else row
