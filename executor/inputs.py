"""Arguments of a forward, checked against the model before anything is loaded.

Owns the form of inputs: names that the forward takes, shapes and types of token ids, ids that the vocabulary
has. How much is planned for is `bayplan.executor.workload_guard`'s part.
"""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from bayplan.schemas.errors import BayplanError
from bayplan.schemas.strict_json import quote
from bayplan.skeleton.config_file import one_line
from bayplan.skeleton.formats import short_dtype

if TYPE_CHECKING:
    from pathlib import Path

ModelInputs: TypeAlias = dict[str, torch.Tensor]
"""Arguments of a forward by name."""

_ID_DTYPES = (torch.int64, torch.int32)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def read_inputs(path: Path) -> ModelInputs:
    """Return the tensors of a safetensors file.

    Raises:
        BayplanError: It cannot be read.
        BayplanError: It holds no tensor.
    """
    try:
        inputs = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BayplanError(
            "the inputs cannot be read",
            where=str(path),
            got=one_line(error),
            needed="a safetensors file of named tensors",
        ) from error
    if not inputs:
        raise BayplanError("the inputs hold no tensor", where=str(path), needed="arguments of a forward")
    return inputs


def taken(inputs: ModelInputs, model: nn.Module) -> ModelInputs:
    """Return what `model` takes of a tokenizer's outputs: some make more than a model has arguments for.

    Raises:
        BayplanError: No token ids are left: it is no model of texts.
    """
    accepted = accepted_names(model)
    left = {name: value for name, value in inputs.items() if accepted is None or name in accepted}
    if "input_ids" not in left:
        raise BayplanError(
            f"{type(model).__name__} does not take texts",
            needed=str(getattr(model, "main_input_name", "other inputs")),
            hint="pass its inputs with --inputs",
        )
    return left


def check_inputs(inputs: ModelInputs, model: nn.Module, *, where: str) -> None:
    """Check the arguments of one forward.

    Args:
        inputs: By name.
        model: On meta or loaded.
        where: What they were read from, for the message.

    Raises:
        BayplanError: The forward has no argument of a name.
        BayplanError: An argument without a default is missing.
        BayplanError: Token ids are no whole numbers, not of shape `[sequences, positions]`, or none at all.
        BayplanError: A token id is not in the vocabulary.
        BayplanError: Arguments are for different numbers of sequences.
    """
    accepted = accepted_names(model)
    unknown = [] if accepted is None else [quote(name) for name in sorted(inputs) if name not in accepted]
    if unknown:
        raise BayplanError(
            f"{type(model).__name__} has no such arguments",
            where=where,
            got=", ".join(unknown),
            needed=f"some of {', '.join(_own_names(model))}",
        )
    missing = _required_names(model) - inputs.keys()
    if missing:
        needed = ", ".join(sorted(missing))
        raise BayplanError(f"{type(model).__name__} needs more arguments", where=where, needed=needed)
    ids = {name: inputs[name] for name in ("input_ids", "decoder_input_ids") if name in inputs}
    for name, value in ids.items():
        _check_ids(name, value, _vocabulary(model, is_decoder=name.startswith("decoder_")), where)
        mask = inputs.get(name.replace("input_ids", "attention_mask"))
        if mask is not None and mask.shape[:1] != value.shape[:1]:
            raise BayplanError(
                f"{name} and its attention mask differ in their number of sequences",
                where=where,
                got=f"{list(value.shape)} and {list(mask.shape)}",
            )


def accepted_names(model: nn.Module) -> frozenset[str] | None:
    """Return the arguments that the forward of `model` takes by name; None: it takes whatever it is given."""
    names = set(_own_names(model))
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            # transformers writes `**kwargs: Unpack[SomeTypedDict]`.
            for typed_dict in typing.get_args(parameter.annotation):
                names.update(getattr(typed_dict, "__annotations__", {}))
    return frozenset(names) or None


def described(inputs: ModelInputs) -> str:
    """Return names, types and shapes of inputs, for a message."""
    return ", ".join(
        f"{name} {short_dtype(value.dtype)}{list(value.shape)}" for name, value in inputs.items()
    )


def _own_names(model: nn.Module) -> tuple[str, ...]:
    parameters = inspect.signature(model.forward).parameters
    return tuple(name for name, parameter in parameters.items() if parameter.kind in _NAMED)


def _required_names(model: nn.Module) -> set[str]:
    parameters = inspect.signature(model.forward).parameters
    return {name for name in _own_names(model) if parameters[name].default is inspect.Parameter.empty}


def _check_ids(name: str, value: torch.Tensor, num_tokens: int | None, where: str) -> None:
    if value.dtype not in _ID_DTYPES or value.dim() != 2 or value.numel() == 0:
        raise BayplanError(
            f"{name} are no token ids",
            where=where,
            got=f"{short_dtype(value.dtype)}{list(value.shape)}",
            needed="int64 or int32 of shape [sequences, positions], none of them 0",
        )
    lowest, highest = int(value.min()), int(value.max())
    if num_tokens is not None and not 0 <= lowest <= highest < num_tokens:
        raise BayplanError(
            f"{name} hold ids that the vocabulary does not have",
            where=where,
            got=str(lowest if lowest < 0 else highest),
            needed=f"0 to {num_tokens - 1}",
        )


def _vocabulary(model: nn.Module, *, is_decoder: bool) -> int | None:
    """Return how many tokens the embedding of one stack has; None: it cannot be told."""
    owner: object = model
    if is_decoder:
        get_decoder = getattr(model, "get_decoder", None)
        owner = get_decoder() if callable(get_decoder) else model
    get_embeddings = getattr(owner, "get_input_embeddings", None)
    try:
        found = get_embeddings() if callable(get_embeddings) else None
    except NotImplementedError:  # models of images or sound have none
        return None
    return found.num_embeddings if isinstance(found, nn.Embedding) else None
