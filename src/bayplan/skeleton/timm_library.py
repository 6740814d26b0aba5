"""Models of timm without weights: by a config that was saved with them, or by timm's own name.

Owns what a timm config means. timm is imported here and nowhere else, and only to build.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, cast

from bayplan.schemas.strict_json import quote
from bayplan.skeleton.config_file import FOREIGN_FAULTS, ModelError, one_line, read_config_object
from bayplan.skeleton.empty import build_empty
from bayplan.skeleton.offline import without_hub
from bayplan.skeleton.optional_library import import_library

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    import torch
    from torch import nn

_CONFIG_NAME = "config.json"
_MAX_CHOICES = 4


def build_timm_config(file: Path, dtype: torch.dtype) -> nn.Module:
    """Return the model of a timm config, without weights and in eval mode.

    Args:
        file: A `config.json` as timm saves it.
        dtype: Of parameters and floating-point buffers.

    Raises:
        ModelError: The file is no JSON object, or no config of timm.
        ModelError: It has another name than timm reads.
        ModelError: timm is not installed or cannot be imported.
        ModelError: timm knows no such architecture.
        ModelError: timm refuses the config.
        NoValueError: The model computes a buffer from weights.
    """
    architecture = read_config_object(file).get("architecture")
    if not isinstance(architecture, str):
        raise ModelError("not a config of timm", where=str(file), needed='a string "architecture"')
    if file.name != _CONFIG_NAME:
        raise ModelError("timm reads no config of this name", where=str(file), needed=_CONFIG_NAME)
    return _build(f"local-dir:{file.parent}", architecture, str(file), dtype)


def build_timm_name(name: str, dtype: torch.dtype) -> nn.Module:
    """Return the model that timm builds by a name such as `resnet50` or `resnet50.a1_in1k`.

    Args:
        name: timm's own, with or without the tag of its weights.
        dtype: Of parameters and floating-point buffers.

    Raises:
        ModelError: timm is not installed or cannot be imported.
        ModelError: timm knows no such name.
        NoValueError: The model computes a buffer from weights.
    """
    return _build(name, name, "", dtype)


def timm_version() -> str:
    """Return the version of the installed timm."""
    return str(import_library("timm", where="timm").__version__)


def _build(spec: str, name: str, where: str, dtype: torch.dtype) -> nn.Module:
    """Return the model that timm makes of `spec`; it is of the architecture `name`."""
    timm = import_library("timm", where=where or name)
    if not timm.is_model(name.partition(".")[0]):
        raise _unknown(timm, name, where)
    create = cast("Callable[..., nn.Module]", timm.create_model)
    try:
        # Its masks and tables are made on the device of a weight, which is on meta by then.
        with without_hub():
            module = build_empty(lambda: create(spec, pretrained=False), follows_meta=False)
        return module.to(dtype).eval()
    except FOREIGN_FAULTS as error:
        raise ModelError(
            f"timm {timm.__version__} cannot build {quote(name)}", where=where, got=one_line(error)
        ) from error


def _unknown(timm: ModuleType, name: str, where: str) -> ModelError:
    names = cast("list[str]", timm.list_models())
    near = difflib.get_close_matches(name.partition(".")[0], names, n=_MAX_CHOICES)
    return ModelError(
        f"timm {timm.__version__} has no model {quote(name)}",
        where=where,
        hint=f"there is {', '.join(near)}" if near else "a newer timm may have it",
    )
