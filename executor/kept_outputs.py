"""What a forward hands back beyond what was planned, in bytes: the plan reserves the logits of one position.

A forward that keeps the logits of every position, the hidden states of every layer or the attention weights
can need more than all other activations together. Short inputs fit all the same, and where the budget is
larger than the plan, longer ones do.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch

from bayplan.executor.errors import KeptOutputsError

if TYPE_CHECKING:
    from torch import nn

    from bayplan.schemas.plan import Workload

_FLOAT32_BYTES = 4
_REMEDIES = {
    "logits": "pass logits_to_keep=1",
    "the loss": "leave out labels",
    "hidden states": "leave out output_hidden_states",
    "attention weights": "leave out output_attentions",
}


class _Stack:
    """Sizes of one stack of layers; 0 where its config does not say."""

    def __init__(self, config: object) -> None:
        self.num_layers = _count(config, "num_hidden_layers")
        self.hidden_size = _count(config, "hidden_size")
        self.num_heads = _count(config, "num_attention_heads")


class KeptOutputs:
    """Reckons the outputs of a model's forward from its arguments."""

    def __init__(self, model: nn.Module, workload: Workload, *, room_bytes: int) -> None:
        """Hold forwards of `model` to `room_bytes`; see `WorkloadGuard`."""
        self._room_bytes = room_bytes
        config = getattr(model, "config", None)
        self._defaults = {
            name: bool(getattr(config, name, False)) for name in ("output_hidden_states", "output_attentions")
        }
        self._decoder = _Stack(_text_config(config, is_decoder=True))
        self._encoder = _Stack(_text_config(config, is_decoder=False))
        self._width = _width(model)
        # Where a model cannot keep less, or the plan asked for all, the plan counts all logits.
        self._counts_logits = workload.logits == "last" and _takes(model, "logits_to_keep")
        self._vocabulary = _vocabulary(model)

    def check(
        self, inputs: dict[str, object], *, batch: int, num_new: int, num_cached: int, num_encoder: int
    ) -> None:
        """Check what one forward would hand back.

        Args:
            inputs: Arguments of the forward by name.
            batch: Sequences.
            num_new: Positions of each; of the decoder where there are two stacks.
            num_cached: Positions in the cache.
            num_encoder: Positions of the encoder; 0: there is none, or they are not known.

        Raises:
            KeptOutputsError: More than there is room for, all together.
        """
        kept = {
            "logits": self._logit_bytes(inputs, batch * num_new, num_new),
            "the loss": self._loss_bytes(inputs, batch * num_new),
        }
        if self._asked(inputs, "output_hidden_states"):
            kept["hidden states"] = batch * self._state_bytes(num_new, num_encoder)
        if self._asked(inputs, "output_attentions"):
            kept["attention weights"] = batch * self._weight_bytes(num_new, num_cached, num_encoder)
        kept = {noun: count for noun, count in kept.items() if count}
        if sum(kept.values()) > self._room_bytes:
            remedies = tuple(_REMEDIES[noun] for noun in kept)
            raise KeptOutputsError(kept, room_bytes=self._room_bytes, remedies=remedies)

    def _asked(self, inputs: dict[str, object], name: str) -> bool:
        value = inputs.get(name)
        return self._defaults[name] if value is None else bool(value)

    def _logit_bytes(self, inputs: dict[str, object], num_rows: int, num_new: int) -> int:
        if not self._counts_logits or num_new == 0:
            return 0
        wanted = inputs.get("logits_to_keep", 0)
        num_kept = wanted.numel() if isinstance(wanted, torch.Tensor) else wanted
        if not isinstance(num_kept, int) or not 0 < num_kept < num_new:
            num_kept = num_new
        if num_kept == 1:
            return 0  # as planned
        return num_rows // num_new * num_kept * self._vocabulary * self._width

    def _loss_bytes(self, inputs: dict[str, object], num_rows: int) -> int:
        """Return the bytes of the logits in fp32 and of their logarithms: both exist for the loss."""
        if not isinstance(inputs.get("labels"), torch.Tensor):
            return 0
        return 2 * num_rows * self._vocabulary * _FLOAT32_BYTES

    def _state_bytes(self, num_new: int, num_encoder: int) -> int:
        decoder = (self._decoder.num_layers + 1) * num_new * self._decoder.hidden_size
        encoder = (self._encoder.num_layers + 1) * num_encoder * self._encoder.hidden_size
        return (decoder + encoder) * self._width

    def _weight_bytes(self, num_new: int, num_cached: int, num_encoder: int) -> int:
        seen = num_cached + num_new + num_encoder  # cross attention sees the encoder's
        decoder = self._decoder.num_layers * self._decoder.num_heads * num_new * seen
        encoder = self._encoder.num_layers * self._encoder.num_heads * num_encoder**2
        return (decoder + encoder) * self._width


def _text_config(config: object, *, is_decoder: bool) -> object:
    """Return the config of one stack; a model with one stack has the same for both."""
    get_text_config = getattr(config, "get_text_config", None)
    if not callable(get_text_config):
        return config
    found: object = get_text_config(decoder=True) if is_decoder else get_text_config(encoder=True)
    return found


def _count(config: object, name: str) -> int:
    value = getattr(config, name, None)
    return value if isinstance(value, int) else 0


def _takes(model: nn.Module, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters


def _width(model: nn.Module) -> int:
    dtype = getattr(model, "dtype", torch.float32)
    return int(dtype.itemsize) if isinstance(dtype, torch.dtype) else _FLOAT32_BYTES


def _vocabulary(model: nn.Module) -> int:
    """Return the width of the logits; 0: the model has no head over a vocabulary."""
    get_output_embeddings = getattr(model, "get_output_embeddings", None)
    head = get_output_embeddings() if callable(get_output_embeddings) else None
    weight = getattr(head, "weight", None)
    return int(weight.shape[0]) if isinstance(weight, torch.Tensor) else 0
