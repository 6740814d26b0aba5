"""An estimate on one screen: every format, what running and training takes, and where it fits.

Owns the layout for a terminal. Reads estimates only: nothing is computed here.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from bayplan.planner.present.estimate_facts import footnotes, header_facts
from bayplan.planner.present.estimate_tables import (
    fits_table,
    inference_table,
    training_table,
    weights_table,
)
from bayplan.planner.present.show import SplitTable, facts_grid
from bayplan.schemas.estimate import Estimate


def render_estimate(estimate: Estimate) -> RenderableType:
    """Return the picture of `estimate` for a terminal."""
    tables = (
        weights_table(estimate),
        inference_table(estimate),
        training_table(estimate),
        fits_table(estimate),
    )
    parts: list[RenderableType] = [facts_grid(header_facts(estimate))]
    for table in tables:
        if table is not None and table.rows:
            parts += [Text(), SplitTable(table)]
    return Group(*parts, Text(), facts_grid(footnotes(estimate), style="dim"))
