"""`bayplan plan --pareto`: many plans at once, listed, and written to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bayplan.commands.output import emit, emit_picture, say
from bayplan.commands.progress import ProgressBars
from bayplan.schemas.codec import encode_plan
from bayplan.schemas.files import OutputError, write_atomic
from bayplan.schemas.frontier import encode_frontier

if TYPE_CHECKING:
    from bayplan.planner.options import PlanOptions


def list_frontier(model: str, options: PlanOptions, folder: Path | None, *, as_json: bool) -> None:
    """Print the frontier of a model, and write its plans.

    Args:
        model: As for `bayplan plan`.
        options: Likewise.
        folder: Where a file for each plan goes; made if there is none. None: none is written.
        as_json: Whether the frontier is printed as JSON.

    Raises:
        OutputError: `folder` is a file, or cannot be made.
        CertifiedInfeasible: There is no plan for any point.
    """
    if folder is not None:
        _make_folder(folder)
    with ProgressBars() as bars:
        bars("plans", 0, 1)  # a bar from the start: loading the libraries takes a while
        from bayplan.planner.pareto import file_name, make_frontier

        found = make_frontier(model, options, bars)
    for warning in found.warnings:
        say(f"warning: {warning}")
    if folder is not None:
        for own in found.points:
            write_atomic(folder / file_name(own.point.request), encode_plan(own.plan))
        say(f"wrote {len(found.points)} plans to {folder}")
    frontier = found.frontier(has_files=folder is not None)
    if as_json:
        emit(encode_frontier(frontier).decode())
        return
    from bayplan.planner.present.show_pareto import render_frontier

    emit_picture(render_frontier(frontier))
    if folder is None:
        say("not written to files: add -o FOLDER")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(
            "cannot make the folder for the plans",
            where=str(folder),
            got=error.strerror or str(error),
            hint="with --pareto, -o names a folder",
        ) from error
