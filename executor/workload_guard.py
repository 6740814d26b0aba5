"""The planned workload as a limit: what goes beyond it was not reserved memory for.

Looks at the shapes of a forward's inputs, at the length of its cache and at what it is asked to hand back;
costs microseconds. Holds no module, so that a copy of a model can take it along.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import nn

from bayplan.executor.errors import ContextExceededError
from bayplan.executor.kept_outputs import KeptOutputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from bayplan.schemas.plan import Workload

_TEXT_INPUTS = ("input_ids", "inputs_embeds")
# Without any of these a decoder is given what the encoder is given.
_DECODER_INPUTS = ("decoder_input_ids", "decoder_inputs_embeds", "labels", *_TEXT_INPUTS)
# They are given the whole sequence at every step and skip what is cached; no other model of transformers is.
_RESENDING = frozenset({"flaubert", "xlm"})
# On a cache that does not say its length: how many positions were put into it.
_COUNTED = "_bayplan_positions"


class Call(NamedTuple):
    """What one forward of the root works on, in positions of each sequence; of the decoder if it has one."""

    num_cached: int
    num_new: int


def encoder_of(model: nn.Module) -> nn.Module | None:
    """Return the encoder that `generate()` calls by itself, past the root; None: there is only one stack."""
    if not _has_encoder(model):
        return None
    get_encoder = cast("Callable[[], object] | None", getattr(model, "get_encoder", None))
    found = get_encoder() if get_encoder is not None else None
    return found if isinstance(found, nn.Module) and found is not model else None


class WorkloadGuard:
    """Checks the inputs of a model's forward, and of its encoder's."""

    def __init__(self, model: nn.Module, workload: Workload, *, room_bytes: int) -> None:
        """Check calls of `model`.

        Args:
            model: Its signature and config count; parameters may be on meta.
            workload: As planned.
            room_bytes: Where the outputs are, upper bound of the planned activations and what the budget has
                left beside the plan.
        """
        self._workload = workload
        self._kept = KeptOutputs(model, workload, room_bytes=room_bytes)
        self._names = _parameters(model)
        self._main_input = str(getattr(model, "main_input_name", "input_ids"))
        self._has_encoder = _has_encoder(model)
        self._resends = getattr(getattr(model, "config", None), "model_type", None) in _RESENDING
        encoder = encoder_of(model)
        self._encoder_names = _parameters(encoder) if encoder is not None else ()

    def check(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Call:
        """Check one call of the root.

        Args:
            args: Positional arguments of the forward.
            kwargs: Its keyword arguments.

        Returns:
            How many positions are there and how many come.

        Raises:
            ContextExceededError: More sequences, positions or cached positions than planned.
            KeptOutputsError: The outputs would take more memory than the budget leaves.
        """
        inputs = dict(zip(self._names, args, strict=False)) | kwargs
        workload = self._workload
        encoded = _first_tensor(inputs.get("encoder_outputs"))
        batch = max(self._batch(inputs, _DECODER_INPUTS), encoded.shape[0] if encoded is not None else 0)
        _check("sequences", batch, workload.batch, "--batch")
        cache = _cache_in(inputs)
        num_cached = _num_cached(cache)
        num_encoder, num_new = 0, _num_positions(inputs, _TEXT_INPUTS)
        if self._has_encoder:
            num_encoder, num_new = num_new, _num_positions(inputs, _DECODER_INPUTS)
            # How many positions an image has follows from the model, not from the plan.
            if encoded is not None and encoded.dim() > 2 and self._main_input != "pixel_values":
                num_encoder = int(encoded.shape[1])
            self._check_encoder_positions(num_encoder)
        if self._resends:
            num_new = max(0, num_new - num_cached)
        _check("positions", num_cached + num_new, workload.context, "--context")
        _check("positions in one forward", num_new, workload.prefill_chunk, "--prefill-chunk")
        self._kept.check(inputs, batch=batch, num_new=num_new, num_cached=num_cached, num_encoder=num_encoder)
        _count(cache, num_cached + num_new)
        return Call(num_cached, num_new)

    def check_encoder(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Check one call of the encoder; arguments as for `check`.

        Raises:
            ContextExceededError: More sequences or positions than planned.
        """
        inputs = dict(zip(self._encoder_names, args, strict=False)) | kwargs
        _check("sequences", self._batch(inputs, ()), self._workload.batch, "--batch")
        self._check_encoder_positions(_num_positions(inputs, _TEXT_INPUTS))

    def _batch(self, inputs: dict[str, object], further: tuple[str, ...]) -> int:
        found = [inputs.get(name) for name in (self._main_input, *_TEXT_INPUTS, *further)]
        return max(
            (int(value.shape[0]) for value in found if isinstance(value, torch.Tensor) and value.dim() > 0),
            default=0,
        )

    def _check_encoder_positions(self, got: int) -> None:
        if self._workload.encoder_context is not None:
            _check("encoder positions", got, self._workload.encoder_context, "--encoder-context")


def _has_encoder(model: nn.Module) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _parameters(module: nn.Module) -> tuple[str, ...]:
    return tuple(inspect.signature(module.forward).parameters)


def _check(noun: str, got: int, planned: int, option: str) -> None:
    if got > planned:
        raise ContextExceededError(noun, got=got, planned=planned, option=option)


def _num_positions(inputs: dict[str, object], names: tuple[str, ...]) -> int:
    for name in names:
        value = inputs.get(name)
        if isinstance(value, torch.Tensor) and value.dim() > 1:
            return int(value.shape[1])
    return 0


def _cache_in(inputs: dict[str, object]) -> object:
    """Return the cache among the inputs, or None: its name differs between versions and models."""
    for value in inputs.values():
        if callable(getattr(value, "get_seq_length", None)):
            return value
    return None


def _num_cached(cache: object) -> int:
    """Return how many positions are in a cache.

    One that keeps a state instead of positions does not know: for it, those of the calls so far are counted.
    """
    length = _length(cache)
    if length is not None:
        return length
    counted = getattr(cache, _COUNTED, 0)
    return counted if isinstance(counted, int) and _is_filled(cache) else 0


def _length(cache: object) -> int | None:
    """Return the length that a cache names; None: it does not."""
    # Reformer's has both names, and says nothing by the second.
    names = ("get_start_idx", "get_seq_length")
    found = next((getattr(cache, name) for name in names if hasattr(cache, name)), None)
    get_length = cast("Callable[[], object] | None", found)
    if get_length is None:
        return 0
    try:
        length = get_length()
    except ValueError:  # no layer of it holds positions
        return None
    return int(length) if isinstance(length, (int, torch.Tensor)) else None


def _is_filled(cache: object) -> bool:
    """Return whether a cache was not emptied since; one that cannot tell was not."""
    has_state = cast("Callable[[], object] | None", getattr(cache, "has_previous_state", None))
    return has_state is None or bool(has_state())


def _count(cache: object, num_positions: int) -> None:
    """Note on a cache that does not know its length how long it is after the call that begins."""
    if _length(cache) is None:
        setattr(cache, _COUNTED, num_positions)


def _first_tensor(value: object) -> torch.Tensor | None:
    """Return what an encoder gave: a tuple or one of transformers' outputs, whose first member it is."""
    found = value[0] if isinstance(value, (tuple, list)) and value else value
    found = getattr(found, "last_hidden_state", found)
    return found if isinstance(found, torch.Tensor) else None
