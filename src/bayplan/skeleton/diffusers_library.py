"""Single models of diffusers without weights: a UNet, a transformer, an autoencoder, not a whole pipeline.

Owns the choice of their class. diffusers is imported here and nowhere else, and only to build.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import nn

from bayplan.schemas.strict_json import quote
from bayplan.skeleton.config_file import FOREIGN_FAULTS, ModelError, one_line, read_config_object
from bayplan.skeleton.empty import build_empty
from bayplan.skeleton.offline import without_hub
from bayplan.skeleton.optional_library import import_library

if TYPE_CHECKING:
    from pathlib import Path

_HALF = (torch.float16, torch.bfloat16)


class _ModelClass(Protocol):
    """What is used of diffusers' `ModelMixin` and `ConfigMixin`."""

    _keep_in_fp32_modules: list[str] | None

    def from_config(self, config: dict[str, object]) -> nn.Module: ...


def build_diffusers(file: Path, dtype: torch.dtype) -> nn.Module:
    """Return the model of a diffusers config, without weights and in eval mode.

    Args:
        file: A `config.json` with `_class_name`.
        dtype: Of parameters and floating-point buffers; a half precision leaves those in fp32 that the class
            keeps so.

    Raises:
        ModelError: The file is no JSON object, or names no class.
        ModelError: diffusers is not installed or cannot be imported.
        ModelError: diffusers has no such model.
        ModelError: The class refuses the config.
        NoValueError: The model computes a buffer from weights.
    """
    config = read_config_object(file)
    name = config.get("_class_name")
    if not isinstance(name, str):
        raise ModelError("not a config of diffusers", where=str(file), needed='a string "_class_name"')
    diffusers = import_library("diffusers", where=str(file))
    version = diffusers.__version__
    try:
        found = getattr(diffusers, name, None)
        is_model = isinstance(found, type) and issubclass(found, diffusers.ModelMixin)
    except FOREIGN_FAULTS as error:  # its classes are imported as they are asked for
        raise ModelError(
            f"{name} of diffusers {version} cannot be imported", where=str(file), got=one_line(error)
        ) from error
    if not is_model:
        raise ModelError(
            f"diffusers {version} has no model {quote(name)}",
            where=str(file),
            hint="a newer diffusers may have it",
        )
    model_class = cast("_ModelClass", found)
    try:
        with without_hub():
            module = build_empty(lambda: model_class.from_config(config))
        return _cast(module, dtype, tuple(model_class._keep_in_fp32_modules or ())).eval()
    except FOREIGN_FAULTS as error:
        raise ModelError(
            f"{name} cannot be built from this config", where=str(file), got=one_line(error)
        ) from error


def diffusers_version() -> str:
    """Return the version of the installed diffusers."""
    return str(import_library("diffusers", where="diffusers").__version__)


def _cast(module: nn.Module, dtype: torch.dtype, kept: tuple[str, ...]) -> nn.Module:
    """Cast a model as its `from_pretrained` does: what the class keeps in fp32 stays so in half precision."""
    nn.Module.to(module, dtype)  # its own method only warns of those that are kept
    if dtype in _HALF:
        for fqn, param in module.named_parameters():
            if any(part in fqn.split(".") for part in kept):
                param.data = param.data.to(torch.float32)
    return module
