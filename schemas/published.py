"""The JSON Schemas that are published beside the structs they are made from.

Owns the list of file kinds that others may read or write, and the text of each schema. The committed files
`schemas/*.schema.json` hold exactly these bytes.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from bayplan.schemas.codec import encode_schema
from bayplan.schemas.errors import UsageError
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.plan import Plan
from bayplan.schemas.report import Report
from bayplan.schemas.strict_json import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    import msgspec

SCHEMAS: Mapping[str, tuple[type[msgspec.Struct], str]] = MappingProxyType(
    {
        "plan": (Plan, "bayplan plan"),
        "inventory": (Inventory, "bayplan inventory"),
        "report": (Report, "bayplan run report"),
    }
)
"""Struct and title of each published schema, by the name that the command line uses."""


def schema_bytes(name: str) -> bytes:
    """Return the JSON Schema of one kind of file.

    Args:
        name: A key of `SCHEMAS`.

    Returns:
        The text of `schemas/<name>.schema.json`.

    Raises:
        UsageError: `name` is no key of `SCHEMAS`.
    """
    if name not in SCHEMAS:
        raise UsageError("unknown schema", got=quote(name), needed=f"one of {', '.join(SCHEMAS)}")
    return encode_schema(*SCHEMAS[name])
