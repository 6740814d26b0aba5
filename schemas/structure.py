"""Checking a JSON tree against a struct type, all problems at once, each with its path.

msgspec stops at the first fault; a person who edited a plan by hand wants the whole list. Also here,
because it walks the same types: carrying unknown fields of a file over into what is written back.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator

import msgspec

from bayplan.schemas.strict_json import JsonValue, join_path

_KEY_FIELDS = (
    ("id",), ("file",), ("first",), ("fqns",), ("pattern",), ("source", "target"), ("target",), ("device",),
)  # fmt: skip
"""Fields that name an entity among its neighbours, most telling first."""

_MAX_TEXT_CHARS = 300
"""msgspec quotes the value that it refuses, however long."""


def problems(tree: JsonValue, wanted: object, path: str = "$") -> Iterator[tuple[str, str]]:
    """Yield `(path, text)` for everything in `tree` that type `wanted` does not allow.

    Args:
        tree: What a JSON reader returned.
        wanted: A struct class, or any type that msgspec converts to.
        path: Where `tree` lies in its file.
    """
    struct = _struct_of(wanted, tree)
    if struct is not None:
        yield from _struct_problems(tree, struct, path)
        return
    element = _element_of(wanted)
    if element is not None and isinstance(tree, list):
        for index, item in enumerate(tree):
            yield from problems(item, element, f"{path}[{index}]")
        return
    elements = _elements_of(wanted)
    if elements is not None and isinstance(tree, list) and len(tree) == len(elements):
        for index, item in enumerate(tree):
            yield from problems(item, elements[index], f"{path}[{index}]")
        return
    member = _member_of(wanted)
    if member is not None and isinstance(tree, dict):
        key_type, value_type = member
        for key, item in tree.items():
            yield from _leaf_problems(key, key_type, f"{path} key {key!r}")
            yield from problems(item, value_type, join_path(path, key))
        return
    yield from _leaf_problems(tree, wanted, path)


def _struct_problems(tree: JsonValue, struct: type[msgspec.Struct], path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(tree, dict):
        yield path, f"Expected `object`, got `{_json_type(tree)}`"
        return
    for name, (wanted, is_required) in _fields_of(struct).items():
        if name in tree:
            yield from problems(tree[name], wanted, join_path(path, name))
        elif is_required:
            yield path, f"Object missing required field `{name}`"


@functools.cache
def _fields_of(struct: type[msgspec.Struct]) -> dict[str, tuple[object, bool]]:
    """Return type and necessity of each field, by its name in JSON."""
    hints = typing.get_type_hints(struct, include_extras=True)
    return {
        field.encode_name: (hints[field.name], field.required) for field in msgspec.structs.fields(struct)
    }


def _leaf_problems(tree: JsonValue, wanted: object, path: str) -> Iterator[tuple[str, str]]:
    try:
        msgspec.convert(tree, typing.cast(type, wanted))
    except msgspec.ValidationError as error:
        text, _, inner = str(error).partition(" - at `$")
        yield path + inner.rstrip("`"), text[:_MAX_TEXT_CHARS]


def float_problems(tree: JsonValue, path: str = "$") -> Iterator[tuple[str, str]]:
    """Yield `(path, text)` for every float in `tree`: it has no canonical text, so no digest covers it."""
    if isinstance(tree, float):
        yield path, f"got the float {tree!r}, needed an integer"
    elif isinstance(tree, list):
        for index, item in enumerate(tree):
            yield from float_problems(item, f"{path}[{index}]")
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from float_problems(item, join_path(path, key))


def merged(old: JsonValue, new: JsonValue, wanted: object) -> JsonValue:
    """Return `new` with the fields of `old` that type `wanted` does not know.

    Rewriting a file this way loses nothing that a newer minor version put there.

    Entities of a list are matched by the fields that name them, the n-th of one name with the n-th; known
    fields are always those of `new`.
    """
    struct = _struct_of(wanted, new)
    if struct is not None and isinstance(old, dict) and isinstance(new, dict):
        known = _fields_of(struct)
        result = {
            key: merged(old[key], value, known[key][0]) if key in old and key in known else value
            for key, value in new.items()
        }
        return result | {key: value for key, value in old.items() if key not in known}
    element = _element_of(wanted)
    if element is not None and isinstance(old, list) and isinstance(new, list):
        waiting: dict[str, list[JsonValue]] = {}
        for item in old:
            waiting.setdefault(_entity_key(item, element), []).append(item)
        return [
            merged(found.pop(0), item, element)
            if (found := waiting.get(_entity_key(item, element)))
            else item
            for item in new
        ]
    member = _member_of(wanted)
    if member is not None and isinstance(old, dict) and isinstance(new, dict):
        return {key: merged(old[key], item, member[1]) if key in old else item for key, item in new.items()}
    return new


def _entity_key(item: JsonValue, wanted: object) -> str:
    """Return a text that is equal for the same entity before and after it was rewritten."""
    struct = _struct_of(wanted, item)
    if struct is None or not isinstance(item, dict):
        return repr(item)
    known = list(_fields_of(struct))
    naming = next((fields for fields in _KEY_FIELDS if set(fields) <= set(known)), known)
    return repr([item.get(field) for field in naming])


def _struct_of(wanted: object, tree: JsonValue) -> type[msgspec.Struct] | None:
    """Return the struct that `tree` must match: `wanted` itself, or its struct member if not null."""
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return wanted
    if typing.get_origin(wanted) in (types.UnionType, typing.Union) and tree is not None:
        for member in typing.get_args(wanted):
            if isinstance(member, type) and issubclass(member, msgspec.Struct):
                return member
    return None


def _element_of(wanted: object) -> object | None:
    """Return the element type of `tuple[T, ...]`, else None."""
    arguments = typing.get_args(wanted)
    if typing.get_origin(wanted) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return typing.cast(object, arguments[0])
    return None


def _elements_of(wanted: object) -> tuple[object, ...] | None:
    """Return the element types of `tuple[A, B]`, else None."""
    if typing.get_origin(wanted) is not tuple or _element_of(wanted) is not None:
        return None
    return typing.get_args(wanted)


def _member_of(wanted: object) -> tuple[object, object] | None:
    """Return key and value type of `dict[K, V]`, else None."""
    if typing.get_origin(wanted) is dict:
        key_type, value_type = typing.get_args(wanted)
        return key_type, value_type
    return None


def _json_type(tree: JsonValue) -> str:
    match tree:
        case None:
            return "null"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float"
        case str():
            return "str"
        case list():
            return "array"
        case dict():
            return "object"
