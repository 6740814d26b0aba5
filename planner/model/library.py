"""Which library builds a model: said by the user, or seen in its config.

Owns the marks by which configs of different libraries are told apart. Builds nothing, imports none.
"""

from __future__ import annotations

import enum
import json

from bayplan.schemas.errors import UsageError
from bayplan.schemas.strict_json import MAX_DEPTH, is_deeper, quote


class Library(enum.StrEnum):
    """Where the class of a model comes from; also what a plan's `model.library` says."""

    TRANSFORMERS = "transformers"
    TIMM = "timm"
    DIFFUSERS = "diffusers"
    TORCH = "torch"
    """A user's own factory."""


_FROM_CONFIG = (Library.TRANSFORMERS, Library.TIMM, Library.DIFFUSERS)


def parse_library(text: str | None) -> Library | None:
    """Return the library that an option names, or None where it is to be found out.

    Raises:
        UsageError: There is no such library.
    """
    if text is None:
        return None
    if text not in _FROM_CONFIG:
        raise UsageError(
            "unknown library", where="--library", got=quote(text), needed=f"one of {', '.join(_FROM_CONFIG)}"
        )
    return Library(text)


def library_of(config: bytes) -> Library:
    """Return the library whose mark a config bears.

    Args:
        config: Bytes of a `config.json`; what is wrong with them is for the library's own reader to say.

    Returns:
        `transformers` where there is no other's mark.
    """
    try:
        values = None if is_deeper(config, MAX_DEPTH) else json.loads(config)
    except ValueError:  # bad JSON and bad UTF-8
        return Library.TRANSFORMERS
    if not isinstance(values, dict) or "model_type" in values:
        return Library.TRANSFORMERS
    if isinstance(values.get("_class_name"), str):
        return Library.DIFFUSERS
    # timm's first configs were flat; since 0.9 what concerns the weights has a part of its own.
    is_timm = "pretrained_cfg" in values or ("num_classes" in values and "input_size" in values)
    if is_timm and isinstance(values.get("architecture"), str):
        return Library.TIMM
    return Library.TRANSFORMERS
