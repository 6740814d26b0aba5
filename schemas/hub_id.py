"""Names of models on the Hub: `org/name`, with or without `@revision`.

Owns the form alone; whether there is such a repository is for the Hub to say.
"""

from __future__ import annotations

import re

import msgspec

_HUB_ID = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w.][\w./-]*))?", re.ASCII
)


class HubId(msgspec.Struct, frozen=True, kw_only=True):
    """One repository, at one revision of it."""

    repo: str
    """`org/name`."""
    revision: str | None
    """Branch, tag or commit; None: not said."""


def parse_hub_id(text: str) -> HubId | None:
    """Return what `text` names on the Hub, or None where it has another form."""
    found = _HUB_ID.fullmatch(text)
    return None if found is None else HubId(repo=found["repo"], revision=found["revision"])
