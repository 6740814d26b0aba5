"""Values of a `quantization_config`, each of the kind that its key needs.

Owns the errors of such a config and their wording. What the keys mean is `quantization_config`'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from bayplan.schemas.errors import BayplanError
from bayplan.schemas.strict_json import quote


class QuantizationError(BayplanError):
    """A `quantization_config` that this version cannot read, so that nobody knows what the weights take."""


def method_of(config: Mapping[str, object]) -> str:
    """Return what a config calls its method, such as `fp8`; older bitsandbytes configs do not say it."""
    method = config.get("quant_method")
    if method is None and (config.get("load_in_8bit") or config.get("load_in_4bit")):
        return "bitsandbytes"
    return str(getattr(method, "value", method)) if method is not None else "unnamed"


class Values:
    """One object of a config while it is read: values by key, with messages that name the key."""

    def __init__(self, config: Mapping[str, object], dtype: str, where: str) -> None:
        """Keep what is read; `dtype` is the model's."""
        self.config = config
        self.dtype = dtype
        self.where = where
        self._method = method_of(config)

    def part(self, config: Mapping[str, object]) -> Values:
        """Return an object inside this one, whose messages name the same method."""
        part = Values(config, self.dtype, self.where)
        part._method = self._method
        return part

    def wrong(self, key: str, needed: str) -> QuantizationError:
        """Return the error for a value that is not understood."""
        return QuantizationError(
            f"quantization_config of {self._method}: {key} is not understood",
            where=self.where,
            got=quote(str(self.config.get(key))),
            needed=needed,
        )

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false; the default where there is null or nothing."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def integer(self, key: str, *, default: int | None = None) -> int:
        """Return a whole number above 0."""
        value = self.config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(key, "a whole number above 0")
        return value

    def choice(self, key: str, choices: tuple[str, ...], *, default: str | None = None) -> str:
        """Return one of `choices`, in lower case."""
        value = self.config.get(key)
        value = default if value is None else str(getattr(value, "value", value)).lower()
        if value not in choices:
            raise self.wrong(key, f"one of {', '.join(choices)}")
        return value

    def names(self, key: str) -> tuple[str, ...] | None:
        """Return a list of module names that are regular expressions too; None: it is not there."""
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
            raise self.wrong(key, "a list of module names")
        for name in value:
            self.check_pattern(key, name.removeprefix("re:"))
        return tuple(value)

    def check_pattern(self, key: str, pattern: str) -> None:
        """Refuse what is no regular expression."""
        try:
            re.compile(pattern)
        except re.error as error:
            raise self.wrong(key, f"names that are regular expressions, not {quote(pattern)}") from error

    def pair(self, key: str) -> tuple[int, int]:
        """Return two whole numbers above 0."""
        value = self.config.get(key)
        if (
            isinstance(value, list | tuple)
            and len(value) == 2
            and all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in value)
        ):
            return value[0], value[1]
        raise self.wrong(key, "two whole numbers above 0")

    def group_size(self, *, default: int) -> int | None:
        """Return the inputs that share a scale; None: all of them, written as -1."""
        if self.config.get("group_size") == -1:
            return None
        return self.integer("group_size", default=default)
