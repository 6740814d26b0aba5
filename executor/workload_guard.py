"""The planned workload as a limit: what goes beyond it was not reserved memory for.

Looks at the shapes of a forward's inputs and at the length of its cache; costs microseconds.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch

from bayplan.executor.errors import ContextExceededError

if TYPE_CHECKING:
    from torch import nn

    from bayplan.schemas.plan import Workload

_TEXT_INPUTS = ("input_ids", "inputs_embeds")
_DECODER_INPUTS = ("decoder_input_ids", "decoder_inputs_embeds")


class WorkloadGuard:
    """Checks the inputs of a model's forward."""

    def __init__(self, model: nn.Module, workload: Workload) -> None:
        """Check calls of `model` against `workload`."""
        self._workload = workload
        self._names = tuple(inspect.signature(model.forward).parameters)
        self._main_input = getattr(model, "main_input_name", "input_ids")
        config = getattr(model, "config", None)
        self._has_encoder = bool(getattr(config, "is_encoder_decoder", False))

    def check(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Check one call.

        Args:
            args: Positional arguments of the forward.
            kwargs: Its keyword arguments.

        Returns:
            Whether the call is a step of a generation: one that finds something in its cache.

        Raises:
            ContextExceededError: More sequences, positions or cached positions than planned.
        """
        inputs = dict(zip(self._names, args, strict=False)) | kwargs
        workload = self._workload
        main = inputs.get(self._main_input)
        if isinstance(main, torch.Tensor) and main.dim() > 0:
            _check("sequences", main.shape[0], workload.batch, "--batch")
        num_cached = _num_cached(inputs)
        num_text = _num_positions(inputs, _TEXT_INPUTS)
        if self._has_encoder:
            if workload.encoder_context is not None:
                _check("encoder positions", num_text, workload.encoder_context, "--encoder-context")
            num_new = _num_positions(inputs, _DECODER_INPUTS)
        else:
            num_new = num_text
        _check("positions", num_cached + num_new, workload.context, "--context")
        _check("positions in one forward", num_new, workload.prefill_chunk, "--prefill-chunk")
        return num_cached > 0


def _check(noun: str, got: int, planned: int, option: str) -> None:
    if got > planned:
        raise ContextExceededError(noun, got=got, planned=planned, option=option)


def _num_positions(inputs: dict[str, object], names: tuple[str, ...]) -> int:
    for name in names:
        value = inputs.get(name)
        if isinstance(value, torch.Tensor) and value.dim() > 1:
            return int(value.shape[1])
    return 0


def _num_cached(inputs: dict[str, object]) -> int:
    """Return the length of the cache among the inputs: its name differs between versions and models."""
    for value in inputs.values():
        get_seq_length = getattr(value, "get_seq_length", None)
        if callable(get_seq_length):
            return int(get_seq_length())
    return 0
