"""What `--format-config` gives: formats of a user's own by name, and rules for the tensors that differ.

Owns the shape of the file. What an entry means, and whether weights can be held so, is the planner's to say.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bayplan.schemas.plan import Format, FormatRule
from bayplan.schemas.strict_json import JsonValue, join_path, quote


class FormatConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Formats and rules, written as in a plan."""

    formats: dict[str, Format] = {}
    """Name -> format; the name is one for `--format`, for pins and for the rules."""
    format_rules: tuple[FormatRule, ...] = ()
    """The first rule that matches a weight holds. `within` names one of the formats asked for, or the model's
    own data type: the rule then holds in blocks that are in that one."""


def unknown_members(tree: JsonValue) -> Iterator[tuple[str, str]]:
    """Yield `(path, text)` for every member that a format config does not have.

    A plan's unknown members come from a newer version; those of a file that a person wrote are misspelt.

    Args:
        tree: What a JSON reader returned; what is of the wrong type is passed over.
    """
    if not isinstance(tree, dict):
        return
    yield from _unknown(tree, FormatConfig, "$")
    formats, rules = tree.get("formats"), tree.get("format_rules")
    for name, entry in formats.items() if isinstance(formats, dict) else ():
        yield from _unknown(entry, Format, join_path("$.formats", name))
    for index, rule in enumerate(rules) if isinstance(rules, list) else ():
        yield from _unknown(rule, FormatRule, f"$.format_rules[{index}]")


def _unknown(tree: JsonValue, struct: type[msgspec.Struct], path: str) -> Iterator[tuple[str, str]]:
    known = struct.__struct_fields__
    for member in tree if isinstance(tree, dict) else ():
        if member not in known:
            yield path, f"no member {quote(member)}, only {', '.join(known)}"
