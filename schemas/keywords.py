"""The keywords of the Python calls, checked as the command line checks its options.

Owns what a wrong value is told. What the options mean is theirs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypeVar, get_args

import msgspec

from bayplan.schemas.errors import UsageError
from bayplan.schemas.hardware import Inventory

Options = TypeVar("Options", bound=msgspec.Struct)


def from_keywords(options: type[Options], given: Mapping[str, object]) -> Options:
    """Return `options` with the values in `given`; a path may stand for its text, a list for a tuple.

    Raises:
        TypeError: A keyword is no option.
        UsageError: A value is not of the type of its option.
    """
    options(**given)  # Python's own words for a keyword that does not exist
    fields = {field.name: field for field in msgspec.structs.fields(options)}
    return options(**{name: _value(fields[name], value) for name, value in given.items()})


def _value(field: msgspec.structs.FieldInfo, value: object) -> object:
    plain = os.fspath(value) if isinstance(value, os.PathLike) else value
    try:
        return msgspec.convert(plain, field.type)
    except msgspec.ValidationError as error:
        if isinstance(value, str) and isinstance(field.default, tuple):
            raise UsageError(
                "text where several are expected", where=field.name, got=repr(value), needed="a tuple"
            ) from error
        needed = field.type.__name__ if isinstance(field.type, type) else str(field.type)
        takes_inventory = Inventory in get_args(field.type)
        raise UsageError(
            "a value of another type",
            where=field.name,
            got=repr(value),
            needed=needed,
            hint="bayplan.schemas.codec.read_inventory(path) reads one" if takes_inventory else "",
        ) from error
