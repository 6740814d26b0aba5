"""Models without weights: from a config's class, or from a user's own factory.

Owns the whole build on meta, so that planner and executor hold the same module tree. Which class and dtype is
`config`'s; how weights are avoided is `empty`'s; how transformers builds is `transformers_adapter`'s.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from bayplan.schemas.errors import UsageError, first_and_more
from bayplan.schemas.sizes import format_size
from bayplan.schemas.strict_json import quote
from bayplan.schemas.types import MAX_INTEGER
from bayplan.skeleton import transformers_adapter
from bayplan.skeleton.buffers import compute_buffers
from bayplan.skeleton.config_file import FOREIGN_FAULTS, ForeignCode, ModelError, one_line
from bayplan.skeleton.creation import is_loaded
from bayplan.skeleton.empty import build_empty, loaded_bytes
from bayplan.skeleton.offline import without_hub

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel

_SHOWN_NAMES = 3
"""Names of tensors in a message; the rest is counted."""


def build_model(
    config: PretrainedConfig,
    model_class: type[PreTrainedModel],
    dtype: torch.dtype,
    *,
    folder: Path | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Return the model of `from_pretrained` with its parameters on meta and its buffers computed.

    Dtypes of single parameters, ties that the config asks for, attention implementation, eval mode and
    generation config are as there. A quantized checkpoint's `quantization_config` is not acted on: the model
    has its plain layers.

    Args:
        config: From `config.load_config`; it is not changed.
        model_class: From `config.choose_class`.
        dtype: From `config.choose_dtype`, or the user's.
        folder: Where the generation config is; None leaves the one that the config implies.
        trust_remote_code: Also take a `generate` of the checkpoint's own, and let the class ask the Hub.

    Returns:
        The model; two builds from equal arguments are equal.

    Raises:
        ModelError: The config asks for fused layers.
        ModelError: It asks for attention code of the Hub and `trust_remote_code` is off.
        ModelError: The class's constructor fails.
        ModelError: The model has more bytes than a plan can count.
        ModelError: The generation config is not valid.
        NoValueError: The class computes a buffer from weights, or one larger than any model's.
    """
    if getattr(config, "fusion_config", None):
        raise ModelError(
            "the config asks for fused layers, which this version does not build",
            got=f"fusion_config {config.fusion_config}",
            hint="remove fusion_config from config.json",
        )
    kernels = transformers_adapter.hub_kernels(config)
    if kernels and not trust_remote_code:
        raise ModelError(
            "the config asks for attention code that is on the Hub",
            got=", ".join(map(quote, kernels)),
            needed="permission to run that code",
            hint="remove attn_implementation from config.json; --trust-remote-code runs the code",
        )
    try:
        with contextlib.nullcontext() if trust_remote_code else without_hub():
            model = build_empty(lambda: transformers_adapter.instantiate(model_class, config, dtype))
        compute_buffers(model)
        transformers_adapter.tie(model)
    except FOREIGN_FAULTS as error:
        raise ModelError(
            f"{model_class.__name__} cannot be built from this config", got=one_line(error)
        ) from error
    num_bytes = sum(param.nbytes for param in model.parameters())
    if num_bytes > MAX_INTEGER:
        raise ModelError(
            f"{model_class.__name__} of this config is larger than a plan can count",
            got=f"{num_bytes} bytes",
            needed=f"at most {MAX_INTEGER}",
        )
    if folder is not None:
        try:
            transformers_adapter.adopt_generation_config(model, folder, trust_remote_code=trust_remote_code)
        except FOREIGN_FAULTS as error:
            raise ModelError(
                "the generation config cannot be used", where=str(folder), got=one_line(error)
            ) from error
    return model


def build_factory(spec: str) -> nn.Module:
    """Return the module that a user's factory makes, without weights and in eval mode.

    Args:
        spec: `package.module:factory`. The factory takes no arguments and returns a new `nn.Module`; it may
            be called twice.

    Returns:
        The module, all parameters on meta and all buffers on the CPU.

    Raises:
        UsageError: `spec` has another form.
        ModelError: The module cannot be imported.
        ModelError: It has no such callable.
        ModelError: The factory fails, whatever it raises.
        ModelError: It returns something else than a module.
        ModelError: It reads weights.
        ModelError: Parameters have no shape yet.
        ModelError: Parameters hold real weights.
        ModelError: The module's own code fails when it is looked through.
        ModelError: Tensors are not dense.
        NoValueError: Buffers are computed from weights, put on meta, or larger than any model's.
    """
    factory = _import_factory(spec)
    with ForeignCode("the factory's module cannot be looked through", spec):
        module = build_empty(lambda: _call(factory, spec))
        params = list(module.named_parameters())
        buffers = list(module.named_buffers())
        module.eval()
    lazy = [fqn for fqn, param in params if is_lazy(param)]
    if lazy:
        raise ModelError(
            "the factory's module has parameters without a shape",
            where=spec,
            got=first_and_more(lazy, _SHOWN_NAMES),
            needed="a module whose shapes are known",
            hint="replace Lazy modules by ones with sizes",
        )
    real = [fqn for fqn, param in params if not param.is_meta]
    if real:
        raise ModelError(
            "the factory's module holds real weights",
            where=spec,
            got=first_and_more(real, _SHOWN_NAMES),
            needed="parameters made in the call, in its own thread",
            hint="let the factory build a new module; weights come from --checkpoint",
        )
    sparse = [fqn for fqn, tensor in (*params, *buffers) if tensor.layout is not torch.strided]
    if sparse:
        raise ModelError(
            "the factory's module holds tensors that are not dense",
            where=spec,
            got=first_and_more(sparse, _SHOWN_NAMES),
            needed="tensors that a checkpoint can hold",
        )
    return module


def _import_factory(spec: str) -> Callable[[], object]:
    module_name, colon, attribute = spec.partition(":")
    if not colon or not all(part.isidentifier() for part in f"{module_name}.{attribute}".split(".")):
        raise UsageError("not a factory", got=quote(spec), needed="package.module:factory")
    with ForeignCode(f"cannot import {module_name}", spec, hint="is its folder on PYTHONPATH?"):
        found: object = importlib.import_module(module_name)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ModelError(
            f"{module_name} has no callable {attribute}", where=spec, needed="a function or class"
        )
    return cast("Callable[[], object]", found)


def _call(factory: Callable[[], object], spec: str) -> nn.Module:
    _check_takes_nothing(factory, spec)
    with ForeignCode("the factory fails", spec):
        made = factory()
    if not isinstance(made, nn.Module):
        raise ModelError(
            "the factory returns no module", where=spec, got=type(made).__name__, needed="an nn.Module"
        )
    _check_loads_nothing(made, spec)
    return made


def _check_takes_nothing(factory: Callable[[], object], spec: str) -> None:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # written in C, or a class of one's own making: calling it tells
        return
    needed = [
        one.name
        for one in parameters
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if needed:
        raise ModelError(
            "the factory takes arguments",
            where=spec,
            got=", ".join(needed),
            needed="a function or class that is called without any",
            hint="write a function around it that passes them",
        )


def _check_loads_nothing(module: nn.Module, spec: str) -> None:
    """Refuse a factory that reads a checkpoint: planning would need the memory of all weights.

    A few values may come from elsewhere, as tables that numpy makes; most of them only from a file.
    """
    unlazy = [param for param in module.parameters() if not is_lazy(param)]
    total_bytes = sum(param.nbytes for param in unlazy)
    num_bytes = loaded_bytes() + sum(param.nbytes for param in unlazy if is_loaded(param))
    if 2 * num_bytes > total_bytes:
        raise ModelError(
            "the factory loads weights",
            where=spec,
            got=f"{format_size(num_bytes)} of {format_size(total_bytes)}",
            needed="a module as its class makes it",
            hint="build it from its config alone; weights come from --checkpoint",
        )
