"""From a checkpoint's config file to the class and dtype in which its model is built.

Owns the choices that planner and executor must make alike. Builds nothing; that is `build`'s.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeGuard, cast

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from bayplan.schemas.dtypes import parse_dtype
from bayplan.schemas.errors import BayplanError, UsageError
from bayplan.schemas.strict_json import MAX_DEPTH, is_deeper, quote
from bayplan.skeleton import transformers_adapter
from bayplan.skeleton.formats import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FOREIGN_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    StrictDataclassError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What other people's configs and constructors are seen to raise; anything else shows as it is."""

_MAX_FAULT_CHARS = 300

_BUILDABLE_DTYPES = frozenset({"fp64", "fp32", "bf16", "fp16"})
"""Those that torch takes as default dtype."""


MAX_CONFIG_BYTES = 16 * 2**20
"""Far over any config: the largest list every label of a classifier, about 1 MiB."""


class ModelError(BayplanError):
    """A config, class or factory from which no model can be built."""


def load_config(path: Path, *, trust_remote_code: bool = False) -> PretrainedConfig:
    """Return the transformers config of a folder or a JSON file. Never asks the network or the terminal.

    Args:
        path: A checkpoint's folder, or a config file on its own.
        trust_remote_code: Run the config class that the folder itself brings, if it names one.

    Returns:
        The config; numbers such as `Infinity` are accepted, as transformers writes them.

    Raises:
        ModelError: There is no such file.
        ModelError: It is larger or nested deeper than any config.
        ModelError: It is not a JSON object.
        ModelError: It names no `model_type`.
        ModelError: Its class comes with the checkpoint and `trust_remote_code` is off.
        ModelError: transformers does not know its `model_type`.
        ModelError: transformers refuses its values.
    """
    file = path / "config.json" if path.is_dir() else path
    raw = _read_object(file)
    model_type = raw.get("model_type")
    auto_map = raw.get("auto_map")
    has_remote_code = isinstance(auto_map, dict) and "AutoConfig" in auto_map
    if not isinstance(model_type, str):
        raise ModelError(
            "the config does not say what model it is", where=str(file), needed='a string "model_type"'
        )
    if not transformers_adapter.is_known_model_type(model_type) and not (
        has_remote_code and trust_remote_code
    ):
        raise _unknown_model_type(file, model_type, has_remote_code=has_remote_code)
    try:
        return cast(
            "PretrainedConfig",
            AutoConfig.from_pretrained(
                str(file.parent if file.name == "config.json" else file),
                trust_remote_code=trust_remote_code,
                local_files_only=True,
            ),
        )
    except FOREIGN_FAULTS as error:
        raise ModelError(
            f"transformers {transformers.__version__} refuses this config of {model_type}",
            where=str(file),
            got=one_line(error),
        ) from error


def _read_object(file: Path) -> dict[str, object]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ModelError(
            "cannot read the model's config",
            where=str(file),
            got=error.strerror or one_line(error),
            needed="a folder with config.json, or a config file",
        ) from error
    # transformers reads the file again, and its parser recurses: what passes here passes there.
    if len(data) > MAX_CONFIG_BYTES:
        raise ModelError(
            "the model's config is too large", where=str(file), needed=f"at most {MAX_CONFIG_BYTES} bytes"
        )
    if is_deeper(data, MAX_DEPTH):
        raise ModelError(
            "the model's config is nested too deeply", where=str(file), needed=f"at most {MAX_DEPTH} levels"
        )
    try:
        raw = json.loads(data.decode("utf-8"))
    except ValueError as error:  # bad JSON and bad UTF-8
        raise ModelError("the model's config is not JSON", where=str(file), got=one_line(error)) from error
    if not isinstance(raw, dict):
        raise ModelError("the model's config is not a JSON object", where=str(file), got=type(raw).__name__)
    return raw


def _unknown_model_type(file: Path, model_type: str, *, has_remote_code: bool) -> ModelError:
    if has_remote_code:
        return ModelError(
            f"the model type {quote(model_type)} is defined by code that comes with the checkpoint",
            where=str(file),
            needed="permission to run that code",
            hint="read the code first; --trust-remote-code runs it",
        )
    return ModelError(
        f"transformers {transformers.__version__} does not know the model type {quote(model_type)}",
        where=str(file),
        hint="a newer transformers may know it",
    )


def one_line(error: BaseException) -> str:
    """Return an error's class and its text on one line, cut where a screen would end: some span several."""
    text = " ".join(str(error).split())
    if len(text) > _MAX_FAULT_CHARS:
        text = f"{text[:_MAX_FAULT_CHARS]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


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
        ModelError: The class is for another kind of config.
    """
    if name == "":
        raise UsageError("an empty name is no class", where="--class")
    named = config.architectures or ()
    if not all(isinstance(one, str) for one in named):
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
    found = getattr(transformers, wanted, None) or _same_letters(wanted, known)
    if not _is_model_class(found):
        has_code = bool(getattr(config, "auto_map", None))
        raise ModelError(
            f"transformers {transformers.__version__} has no model class {quote(wanted)}",
            needed=f"one of: {choices}",
            hint="--trust-remote-code runs the checkpoint's own" if has_code else "name one with --class",
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
    found = getattr(config, "quantization_config", None) or getattr(
        config.get_text_config(decoder=True), "quantization_config", None
    )
    if not found:
        return None
    method = found.get("quant_method") if isinstance(found, dict) else getattr(found, "quant_method", None)
    return str(getattr(method, "value", method or "unnamed"))


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
