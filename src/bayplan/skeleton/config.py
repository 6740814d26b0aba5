"""From a checkpoint's config file to the class and dtype in which its model is built.

Owns the choices that planner and executor must make alike. Builds nothing; that is `build`'s.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeGuard

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel

from bayplan.schemas.dtypes import parse_dtype
from bayplan.schemas.errors import UsageError
from bayplan.schemas.quantization_values import method_of
from bayplan.schemas.strict_json import quote
from bayplan.skeleton import transformers_adapter
from bayplan.skeleton.config_file import (
    FOREIGN_FAULTS,
    ModelError,
    check_counts,
    code_files,
    one_line,
    read_config_object,
)
from bayplan.skeleton.formats import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_BUILDABLE_DTYPES = frozenset({"fp64", "fp32", "bf16", "fp16"})
"""Those that torch takes as default dtype."""


def load_config(path: Path, *, trust_remote_code: bool = False) -> PretrainedConfig:
    """Return the transformers config of a folder or a JSON file. Never asks the network or the terminal.

    Args:
        path: A checkpoint's folder, or a config file on its own.
        trust_remote_code: Run the config class that the folder itself brings, if it names one.

    Returns:
        The config; numbers such as `Infinity` are accepted, as transformers writes them.

    Raises:
        ModelError: As `read_config_object` and `check_counts`.
        ModelError: It is empty.
        ModelError: It names no `model_type`.
        ModelError: Its class comes with the checkpoint and `trust_remote_code` is off.
        ModelError: transformers does not know its `model_type`.
        ModelError: It names a backbone that only the Hub could tell of.
        ModelError: transformers refuses its values.
    """
    file = path / "config.json" if path.is_dir() else path
    raw = read_config_object(file)
    model_type = raw.get("model_type")
    auto_map = raw.get("auto_map")
    has_remote_code = isinstance(auto_map, dict) and "AutoConfig" in auto_map
    if not raw:
        raise ModelError("the model's config is empty", where=str(file), needed='a string "model_type"')
    if not isinstance(model_type, str):
        raise ModelError(
            "the config does not say what model it is", where=str(file), needed='a string "model_type"'
        )
    if not transformers_adapter.is_known_model_type(model_type) and not (
        has_remote_code and trust_remote_code
    ):
        raise _unknown_model_type(file, raw, has_remote_code=has_remote_code)
    check_counts(raw, where=str(file))
    try:
        return transformers_adapter.read_config(
            file.parent if file.name == "config.json" else file, trust_remote_code=trust_remote_code
        )
    except transformers_adapter.BackboneOfHubError as error:
        raise ModelError(
            "the config names a backbone whose own config is on the Hub, which is not asked for it",
            where=str(file),
            got=f"backbone {quote(error.name)}",
            needed="that config itself, as backbone_config",
            hint="load the config with transformers and save it again: that writes backbone_config",
        ) from error
    except FOREIGN_FAULTS as error:
        raise ModelError(
            f"transformers {transformers.__version__} refuses this config of {model_type}",
            where=str(file),
            got=one_line(error),
            hint=_newer_hint(raw),
        ) from error


def _unknown_model_type(file: Path, raw: Mapping[str, object], *, has_remote_code: bool) -> ModelError:
    model_type = quote(str(raw.get("model_type")))
    if has_remote_code:
        return ModelError(
            f"the model type {model_type} is defined by code that comes with the checkpoint",
            where=str(file),
            got=", ".join(code_files(raw.get("auto_map"))),
            needed="permission to run that code",
            hint="read the code first; --trust-remote-code runs it",
        )
    return ModelError(
        f"transformers {transformers.__version__} does not know the model type {model_type}",
        where=str(file),
        hint=_newer_hint(raw) or "a newer transformers may know it",
    )


def _newer_hint(raw: Mapping[str, object]) -> str:
    """Return what to do about a config that a newer transformers wrote; empty if none did."""
    written = raw.get("transformers_version")
    if not isinstance(written, str) or _release(written) <= _release(transformers.__version__):
        return ""
    return f"transformers {quote(written)[1:-1]} wrote it: pip install -U transformers"


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers at the start of a version; a development version counts as its release."""
    numbers = re.match(r"\d+(?:\.\d+)*", version, re.ASCII)
    return tuple(map(int, numbers[0].split("."))) if numbers is not None else ()


def choose_class(
    config: PretrainedConfig,
    *,
    name: str | None = None,
    folder: Path | None = None,
    trust_remote_code: bool = False,
) -> type[PreTrainedModel]:
    """Return the class that the checkpoint was saved from, never one without its head.

    Args:
        config: From `load_config`.
        name: A class to use instead of the one that the config names.
        folder: Where the checkpoint's own code is, if it has any.
        trust_remote_code: Prefer the class that the checkpoint itself brings, as transformers does.

    Returns:
        The class called `name`, or else the first of `architectures`. A name that differs only in case and
        underscores from one that transformers has for this config counts as that one.

    Raises:
        UsageError: `name` is empty.
        ModelError: The config's architectures are not names.
        ModelError: The config names no class.
        ModelError: There is no such class.
        ModelError: Its module cannot be imported.
        ModelError: The class is for another kind of config.
    """
    if name == "":
        raise UsageError("an empty name is no class", where="--class")
    named = config.architectures or ()
    if not isinstance(named, list | tuple) or not all(isinstance(one, str) for one in named):
        raise ModelError(
            "the config's architectures are not names", got=quote(str(named)), needed="a list of class names"
        )
    wanted = name or next(iter(named), None)
    known = transformers_adapter.classes_for(config)
    choices = ", ".join(found.__name__ for found in known) or "none known to transformers"
    if wanted is None:
        raise ModelError(
            f"the config of {config.model_type} names no architecture, so its head is unknown",
            needed=f"one of: {choices}",
            hint="name it with --class",
        )
    if trust_remote_code and folder is not None:
        remote = transformers_adapter.remote_class(config, wanted, folder)
        if remote is not None:
            return remote
    try:
        found = getattr(transformers, wanted, None) or _same_letters(wanted, known)
    except FOREIGN_FAULTS as error:  # its module is imported only now
        raise ModelError(
            f"transformers {transformers.__version__} cannot import {wanted}", got=one_line(error)
        ) from error
    if not _is_model_class(found):
        files = code_files(getattr(config, "auto_map", None))
        raise ModelError(
            f"transformers {transformers.__version__} has no model class {quote(wanted)}",
            got=f"one defined in {', '.join(files)}" if files else "",
            needed=f"one of: {choices}",
            hint="--trust-remote-code runs the checkpoint's own" if files else "name one with --class",
        )
    if found.config_class is not None and not isinstance(config, found.config_class):
        raise ModelError(
            f"{wanted} cannot be built from a config of {config.model_type}",
            got=type(config).__name__,
            needed=found.config_class.__name__,
            hint=f"classes for this config: {choices}",
        )
    return found


def _same_letters(name: str, known: tuple[type[PreTrainedModel], ...]) -> type[PreTrainedModel] | None:
    """Find `MPTForCausalLM` as `MptForCausalLM`, `KimiK25...` as `Kimi_K25...`: hubs and library differ."""

    def letters(text: str) -> str:
        return text.replace("_", "").lower()

    return next((found for found in known if letters(found.__name__) == letters(name)), None)


def _is_model_class(found: object) -> TypeGuard[type[PreTrainedModel]]:
    return isinstance(found, type) and issubclass(found, PreTrainedModel)


def quantization_method(config: PretrainedConfig) -> str | None:
    """Return how the checkpoint says that its weights are quantized, such as `fp8`; None: they are not.

    `build.build_model` builds the plain layers all the same; whoever reads such a checkpoint must look here.
    """
    values = quantization_values(config) or quantization_values(config.get_text_config(decoder=True))
    return None if values is None else method_of(values)


def quantization_values(config: PretrainedConfig) -> dict[str, object] | None:
    """Return the `quantization_config` of a config, or of one part of it; None: it has none."""
    found = getattr(config, "quantization_config", None)
    if not found:
        return None
    values = found if isinstance(found, dict) else found.to_dict()
    return {str(key): value for key, value in values.items()}


def choose_dtype(config: PretrainedConfig, first_shard: Mapping[str, str] | None = None) -> torch.dtype:
    """Return the dtype that `from_pretrained` would build a model in.

    Args:
        config: From `load_config`; its own dtype comes first.
        first_shard: Dtype of each tensor in the checkpoint's first file, if known, in any spelling.

    Returns:
        The config's dtype; else that of the first tensor by name in the first shard with a floating-point
        dtype of 16 bits or more; else fp32.

    Raises:
        ModelError: The config names a dtype that torch cannot build in.
        ModelError: No tensor of the first shard has such a dtype.
    """
    if config.dtype is not None:
        if isinstance(config.dtype, torch.dtype) and config.dtype.is_floating_point:
            return config.dtype
        raise ModelError(
            f"a model of {config.model_type} cannot be built in the dtype of its config",
            got=str(config.dtype),
            needed="a floating-point dtype",
        )
    if not first_shard:
        return torch.float32
    for _, dtype in sorted(first_shard.items()):
        if parse_dtype(dtype).name in _BUILDABLE_DTYPES:
            return torch_dtype(dtype)
    raise ModelError(
        "neither the config nor the checkpoint's first file says in which dtype to build the model",
        got=", ".join(sorted(set(first_shard.values()))),
        needed="a floating-point tensor of 16 bits or more",
        hint='put "dtype" into config.json',
    )
