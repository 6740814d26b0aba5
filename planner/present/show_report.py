"""A run report on the terminal: predicted beside measured, and whether the plan was honoured.

Owns the layout. Reads reports only; what was measured, and how, is the executor's.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from bayplan.planner.present.plan_facts import Fact, short_digest
from bayplan.planner.present.plan_tables import Table
from bayplan.planner.present.show import SplitTable, facts_grid
from bayplan.planner.present.wording import count_text, printable
from bayplan.schemas.report import Figures, Report
from bayplan.schemas.sizes import format_duration_ns, format_size
from bayplan.schemas.types import Residency


def render_report(report: Report) -> RenderableType:
    """Return the picture of `report` for a terminal."""
    return Group(facts_grid(tuple(_facts(report))), Text(), SplitTable(_figures_table(report)))


def _facts(report: Report) -> Iterator[Fact]:
    honoured = "carried out as planned" if report.honoured else "NOT honoured"
    yield "plan", f"{short_digest(report.plan_digest)}, {honoured}"
    streamed = [block for block in report.blocks if block.residency != Residency.RESIDENT]
    if streamed:
        waited = format_duration_ns(sum(block.wait_ns for block in streamed))
        read = format_size(sum(block.read_bytes for block in streamed))
        yield "streamed", f"{count_text(len(streamed), 'block')}, {read} read, {waited} waited for them"
    if not report.content_verified and not any(
        note.startswith("content unverified") for note in report.notes
    ):
        yield "warning", "content unverified: only the headers of the shards were compared"
    if report.unused:
        yield "note", f"{count_text(len(report.unused), 'tensor')} of the checkpoint not in the model"
    for note in report.notes:
        yield "note", printable(note)


def _figures_table(report: Report) -> Table:
    predicted, measured = report.predicted, report.measured
    rows = [
        (word, _time(old), _time(new))
        for word, old, new in (
            ("load", predicted.load_ns, measured.load_ns),
            ("first output", predicted.first_output_ns, measured.first_output_ns),
            ("step", predicted.decode_ns, measured.decode_ns),
        )
        if new is not None
    ]
    for device in sorted(predicted.peak_bytes.keys() | measured.peak_bytes.keys()):
        rows.append((f"peak {printable(device)}", _peak(predicted, device), _peak(measured, device)))
    return Table(("", "predicted", "measured"), tuple(rows), frozenset((1, 2)))


def _time(duration_ns: int | None) -> str:
    return "-" if duration_ns is None else format_duration_ns(duration_ns)


def _peak(figures: Figures, device: str) -> str:
    return format_size(figures.peak_bytes[device]) if device in figures.peak_bytes else "-"
