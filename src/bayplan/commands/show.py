"""`bayplan show`, `diff` and `schema`: looking at files. Loads neither torch nor a solver."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, cast

import typer

from bayplan.commands.output import emit, emit_json, emit_picture, picture_width, say
from bayplan.commands.plan_options import PlanFile
from bayplan.schemas.codec import DecodedPlan, read_plan
from bayplan.schemas.errors import ExitCode, OtherVersion
from bayplan.schemas.published import schema_bytes
from bayplan.schemas.strict_json import JsonValue, quote

AsJson = Annotated[bool, typer.Option("--json", help="Short for --as json.")]


class ShowForm(enum.StrEnum):
    """How `show` prints a plan."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"
    DEVICE_MAP = "device-map"


class DiffForm(enum.StrEnum):
    """How `diff` prints what differs."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


class SchemaName(enum.StrEnum):
    """Kinds of files that have a published schema."""

    PLAN = "plan"
    INVENTORY = "inventory"
    REPORT = "report"


def show(
    plan: PlanFile,
    form: Annotated[ShowForm, typer.Option("--as", help="Form of the output.")] = ShowForm.TEXT,
    json: AsJson = False,
) -> None:
    """Show a plan on one screen: devices, blocks, reasons, and what to expect.

    Plans that would be refused are shown too, with a warning.
    """
    try:
        decoded = read_plan(plan)
    except OtherVersion as error:
        emit("".join(f"{member}: {quote(text)}\n" for member, text in error.identity))
        raise
    match ShowForm.JSON if json else form:
        case ShowForm.TEXT:
            from bayplan.planner.present.show import render_plan

            width = picture_width()
            emit_picture(render_plan(decoded.plan, digest_matches=decoded.digest_matches, width=width))
        case ShowForm.MARKDOWN:
            from bayplan.planner.present.markdown import plan_markdown

            emit(plan_markdown(decoded.plan, digest_matches=decoded.digest_matches))
        case ShowForm.JSON:
            _say_notices(plan, decoded)
            emit_json(cast(JsonValue, decoded.tree))
        case ShowForm.DEVICE_MAP:
            from bayplan.planner.present.device_map import device_map

            _say_notices(plan, decoded)
            emit_json(cast(JsonValue, device_map(decoded.plan)))


def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="A plan file.", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another.", show_default=False)],
    form: Annotated[DiffForm, typer.Option("--as", help="Form of the output.")] = DiffForm.TEXT,
    json: AsJson = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 2 if they differ.")] = False,
) -> None:
    """Show what moved from plan A to plan B, why, and what it costs."""
    from bayplan.planner.present.diff import diff_plans
    from bayplan.schemas.diff import encode_diff

    plans = [read_plan(path) for path in (before, after)]
    for path, decoded in zip((before, after), plans, strict=True):
        _say_notices(path, decoded)
    found = diff_plans(plans[0].plan, plans[1].plan)
    match DiffForm.JSON if json else form:
        case DiffForm.TEXT:
            from bayplan.planner.present.diff_show import render_diff

            emit_picture(render_diff(found))
        case DiffForm.MARKDOWN:
            from bayplan.planner.present.markdown import diff_markdown

            emit(diff_markdown(found))
        case DiffForm.JSON:
            emit(encode_diff(found).decode())
    if exit_code and not found.is_empty:
        raise typer.Exit(ExitCode.DIFFERENCES)


def schema(
    name: Annotated[SchemaName, typer.Argument(help="Kind of file.", show_default=False)],
) -> None:
    """Print the JSON Schema of a kind of file."""
    emit(schema_bytes(name).decode())


def _say_notices(path: Path, decoded: DecodedPlan) -> None:
    """Warn where what is printed is not all that the file holds, or not what its maker wrote."""
    from bayplan.planner.present.notices import reading_notices

    for notice in reading_notices(decoded.plan, digest_matches=decoded.digest_matches):
        say(f"warning: {path}: {notice}")
