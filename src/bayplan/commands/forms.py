"""The two forms in which a command prints what it made: a picture for people, or the file's JSON."""

from __future__ import annotations

import enum
from typing import Annotated

import typer


class OutputForm(enum.StrEnum):
    """How a command prints what it made."""

    TEXT = "text"
    JSON = "json"


AsForm = Annotated[OutputForm, typer.Option("--as", help="A picture, or the file's JSON.", show_default=True)]
AsJson = Annotated[bool, typer.Option("--json", help="Short for --as json.")]
