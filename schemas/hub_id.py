"""Names of models on the Hub: `org/name`, or a folder in it, with or without `@revision`.

Owns the form alone; whether there is such a repository is for the Hub to say.
"""

from __future__ import annotations

import re

import msgspec

_PART = r"[A-Za-z0-9][\w.-]*"
_HUB_ID = re.compile(
    rf"(?P<repo>{_PART}/{_PART})(?:/(?P<folder>{_PART}(?:/{_PART})*))?(?:@(?P<revision>[\w.][\w./-]*))?",
    re.ASCII,
)
_MAX_NAME_CHARS = 96
"""Of an organization, and of a model."""


class HubId(msgspec.Struct, frozen=True, kw_only=True):
    """One repository, or one folder in it, at one revision."""

    repo: str
    """`org/name`."""
    folder: str | None = None
    """Path in the repository, as of one model of a pipeline; None: the repository itself."""
    revision: str | None
    """Branch, tag or commit; None: not said."""


def parse_hub_id(text: str) -> HubId | None:
    """Return what `text` names on the Hub, or None where it has another form."""
    found = _HUB_ID.fullmatch(text)
    if found is None or not _is_possible(found["repo"]):
        return None
    return HubId(repo=found["repo"], folder=found["folder"], revision=found["revision"])


def _is_possible(repo: str) -> bool:
    """Return whether the Hub's rules allow a repository of that name; its client raises for others."""
    if "--" in repo or ".." in repo or repo.endswith(".git"):
        return False
    return all(len(name) <= _MAX_NAME_CHARS and not name.endswith(("-", ".")) for name in repo.split("/"))
