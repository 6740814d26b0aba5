"""Libraries that bayplan does not require: imported when a model of theirs is built, if they are there."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from bayplan.skeleton.config_file import FOREIGN_FAULTS, ModelError, one_line

if TYPE_CHECKING:
    from types import ModuleType


def import_library(name: str, *, where: str) -> ModuleType:
    """Return the library called `name`.

    Args:
        name: As it is imported and installed.
        where: The model that needs it, for the message.

    Raises:
        ModelError: It is not installed.
        ModelError: It is, and cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise _broken(name, where, error) from error
        raise ModelError(
            f"{name} is not installed",
            where=where,
            needed=f"{name}, whose model this is",
            hint=f"pip install {name}",
        ) from error
    except FOREIGN_FAULTS as error:
        raise _broken(name, where, error) from error


def _broken(name: str, where: str, error: Exception) -> ModelError:
    return ModelError(
        f"{name} cannot be imported",
        where=where,
        got=one_line(error),
        hint="do it and its dependencies, such as torchvision, belong to this torch?",
    )
