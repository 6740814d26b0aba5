"""The layout of the JSON files that bayplan writes: made for reading in a pull request.

Two spaces, keys in the order given, one member a line; a list of numbers stays on one line, so a `[lo, hi]`
is one line of a diff. Ends in a newline.
"""

from __future__ import annotations

import json

from bayplan.schemas.strict_json import JsonValue


def pretty(value: JsonValue) -> bytes:
    """Return `value` as indented JSON text in ASCII, with a final newline."""
    return (_text(value, "") + "\n").encode("ascii")


def _text(value: JsonValue, indent: str) -> str:
    inner = indent + "  "
    if isinstance(value, dict) and value:
        members = (f"{inner}{json.dumps(key)}: {_text(item, inner)}" for key, item in value.items())
        return "{\n" + ",\n".join(members) + f"\n{indent}}}"
    if isinstance(value, list) and value:
        if all(isinstance(item, int) for item in value):
            return f"[{', '.join(json.dumps(item) for item in value)}]"
        return "[\n" + ",\n".join(f"{inner}{_text(item, inner)}" for item in value) + f"\n{indent}]"
    return json.dumps(value)
