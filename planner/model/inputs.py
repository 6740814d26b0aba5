"""Inputs of a forward, as meta tensors: which arguments a model takes and in what shapes.

Owns the knowledge of modalities. A model whose inputs are not known here is not traced.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# Images of convolutional models, whose config names no size because they take any: that of ImageNet.
_DEFAULT_IMAGE_PIXELS = 224


class UnknownInputsError(ValueError):
    """No shape is known for an input that the model needs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """One way to call a model; several are tried until one can be traced."""

    has_mask: bool
    """Pass an attention mask, as a batch of unequal prompts needs one."""
    every_modality: bool = False
    """Pass images or sound besides the text."""
    meta_factories: bool = False
    """Let tensors that the model makes without naming a device be meta tensors too."""


def attempts(batch: int) -> tuple[Attempt, ...]:
    """Return the ways to call a model, best first: as `generate()` would, then what more models accept."""
    masks = (True, False) if batch > 1 else (False,)
    return (
        *(Attempt(has_mask=has_mask) for has_mask in masks),
        Attempt(has_mask=False, every_modality=True),
        Attempt(has_mask=False, meta_factories=True),
        Attempt(has_mask=True, meta_factories=True),
        Attempt(has_mask=False, every_modality=True, meta_factories=True),
    )


def accepts(model: PreTrainedModel, name: str) -> bool:
    """Return whether the model's forward has an argument of this name."""
    return name in inspect.signature(model.forward).parameters


def is_encoder_decoder(model: PreTrainedModel) -> bool:
    """Return whether a forward runs an encoder and a decoder."""
    return bool(model.config.is_encoder_decoder) and accepts(model, "decoder_input_ids")


def make_inputs(
    model: PreTrainedModel,
    attempt: Attempt,
    *,
    batch: int,
    num_tokens: int,
    num_past: int = 0,
    encoder_context: int | None = None,
) -> dict[str, torch.Tensor]:
    """Return the arguments of one forward, without cache and encoder output.

    Args:
        model: A transformers model.
        attempt: What to pass besides the main input.
        batch: Sequences.
        num_tokens: New positions per sequence.
        num_past: Positions that the cache holds already.
        encoder_context: Positions of the encoder.

    Returns:
        Meta tensors by argument.

    Raises:
        UnknownInputsError: The main input is of a kind, or of a size, that the config does not tell.
    """
    inputs: dict[str, torch.Tensor] = {}
    main = str(model.main_input_name)
    num_main = num_tokens
    if is_encoder_decoder(model):
        inputs["decoder_input_ids"] = _ids(batch, num_tokens)
        num_main = encoder_context or num_tokens
    if num_past == 0 or not is_encoder_decoder(model):
        inputs[main] = _input(main, model.config, batch, num_main)
    if attempt.has_mask and main in ("input_ids", "inputs_embeds") and accepts(model, "attention_mask"):
        num_masked = num_main if is_encoder_decoder(model) else num_past + num_tokens
        inputs["attention_mask"] = _ids(batch, num_masked)
    if attempt.every_modality:
        for name in ("input_ids", *_SHAPES):
            if name not in inputs and accepts(model, name):
                inputs[name] = _input(name, model.config, batch, num_main)
    return inputs


def _input(name: str, config: PreTrainedConfig, batch: int, num_positions: int) -> torch.Tensor:
    if name in ("input_ids", "attention_mask"):
        return _ids(batch, num_positions)
    if name not in _SHAPES:
        raise UnknownInputsError(f"the shape of its input {name} is not known")
    shape = _SHAPES[name](config, num_positions)
    if shape is None:
        raise UnknownInputsError(f"its config does not tell the shape of its input {name}")
    dtype = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    return torch.empty((batch, *shape), dtype=dtype, device="meta")


def _ids(batch: int, num_positions: int) -> torch.Tensor:
    return torch.empty((batch, num_positions), dtype=torch.int64, device="meta")


def _part(config: PreTrainedConfig, name: str) -> PreTrainedConfig:
    """Return the sub-config of one modality, or the config itself where it is of that modality."""
    part = getattr(config, name, None)
    return config if part is None else part


def _image_shape(config: PreTrainedConfig, num_positions: int) -> tuple[int, ...] | None:
    """Return `[channels, height, width]`, with the frames before it for video."""
    vision = _part(config, "vision_config")
    size = getattr(vision, "image_size", _DEFAULT_IMAGE_PIXELS)
    if isinstance(size, dict):
        size = (size.get("height"), size.get("width"))
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    if not (isinstance(height, int) and isinstance(width, int)):
        return None
    image = (int(getattr(vision, "num_channels", 3)), height, width)
    num_frames = getattr(vision, "num_frames", None)
    return image if num_frames is None else (int(num_frames), *image)


def _spectrogram_shape(config: PreTrainedConfig, num_positions: int) -> tuple[int, ...] | None:
    """Return `[mel bins, frames]` for Whisper, whose encoder halves the frames, or `[frames, features]`."""
    audio = _part(config, "audio_config")
    num_mel_bins = getattr(audio, "num_mel_bins", None)
    if num_mel_bins is not None:
        return (int(num_mel_bins), 2 * num_positions)
    num_features = getattr(audio, "input_feat_per_channel", None)
    return None if num_features is None else (num_positions, int(num_features))


def _sound_shape(config: PreTrainedConfig, num_positions: int) -> tuple[int, ...] | None:
    """Return `[samples]` for models of the wave, `[frames, mel bins]` for those of its spectrogram."""
    audio = _part(config, "audio_config")
    samples_per_position = getattr(audio, "inputs_to_logits_ratio", None)
    if samples_per_position is not None:
        return (num_positions * int(samples_per_position),)
    num_frames, num_mel_bins = getattr(audio, "max_length", None), getattr(audio, "num_mel_bins", None)
    return None if num_frames is None or num_mel_bins is None else (int(num_frames), int(num_mel_bins))


_SHAPES = {
    "pixel_values": _image_shape,
    "pixel_values_videos": _image_shape,
    "input_features": _spectrogram_shape,
    "input_values": _sound_shape,
}
