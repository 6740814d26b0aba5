"""From structs to plain JSON values, for comparing and printing parts of what is written down."""

from __future__ import annotations

from typing import cast

import msgspec

from bayplan.schemas.strict_json import JsonValue


def json_tree(value: object) -> JsonValue:
    """Return `value`, a struct or any part of one, as the values that its JSON text decodes to."""
    return cast(JsonValue, msgspec.json.decode(msgspec.json.encode(value)))
