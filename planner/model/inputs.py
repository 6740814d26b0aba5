"""Inputs of a forward: which arguments a model takes and in what shapes.

Owns the main inputs and the ids among them, which are real: models branch on them. Everything else is on
meta. A model whose inputs are not known here is not traced.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from bayplan.planner.model.modalities import (
    Layout,
    accepts,
    image_shape,
    input_dtype,
    layout_inputs,
    layouts,
    modalities,
    part_of,
    token_id,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedConfig, PreTrainedModel


class UnknownInputsError(ValueError):
    """No shape is known for an input that the model needs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """One way to call a model; several are tried until one can be traced."""

    has_mask: bool
    """Pass an attention mask, as a batch of unequal prompts needs one."""
    layout: Layout | None = None
    """Pass images or sound besides the text."""
    num_placeholders: int = 0
    """Positions at the end of each sequence that the images or the sound take."""


def attempts(model: PreTrainedModel, batch: int) -> Iterator[Attempt]:
    """Yield the ways to call a model, best first: as `generate()` would, then what more models accept."""
    masks = (True, False) if batch > 1 else (False, True)
    yield from (Attempt(has_mask=has_mask) for has_mask in masks)
    for modality in modalities(model):
        yield from (Attempt(has_mask=masks[0], layout=layout) for layout in layouts(model, modality, batch))


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
        Ids and masks with values, all else on meta, by argument.

    Raises:
        UnknownInputsError: The main input is of a kind, or of a size, that the config does not tell.
    """
    inputs: dict[str, torch.Tensor] = {}
    main = str(model.main_input_name)
    num_main = num_tokens
    if is_encoder_decoder(model):
        inputs["decoder_input_ids"] = _ids(model.config, batch, num_tokens)
        num_main = encoder_context or num_tokens
    if num_past == 0 or not is_encoder_decoder(model):
        inputs[main] = _input(main, model.config, batch, num_main)
    if attempt.has_mask and main in ("input_ids", "inputs_embeds") and accepts(model, "attention_mask"):
        num_masked = num_main if is_encoder_decoder(model) else num_past + num_tokens
        inputs["attention_mask"] = _mask(
            batch, num_masked, num_padded=min(1, num_masked - attempt.num_placeholders)
        )
    if attempt.layout is not None:
        if num_past == 0 and "input_ids" in inputs:
            placeholder = token_id(model.config, attempt.layout.modality)
            if placeholder is not None:
                first = num_main - attempt.num_placeholders
                inputs["input_ids"][:, first:] = placeholder
        inputs |= layout_inputs(
            model,
            attempt.layout,
            batch=batch,
            num_tokens=num_main,
            num_placeholders=attempt.num_placeholders,
            is_first=num_past == 0,
        )
    return inputs


def _input(name: str, config: PreTrainedConfig, batch: int, num_positions: int) -> torch.Tensor:
    if name == "input_ids":
        return _ids(config, batch, num_positions)
    if name not in _SHAPES:
        raise UnknownInputsError(f"the shape of its input {name} is not known")
    shape = _SHAPES[name](config, num_positions)
    if shape is None:
        raise UnknownInputsError(f"its config does not tell the shape of its input {name}")
    return torch.empty((batch, *shape), dtype=input_dtype(config), device="meta")


def _ids(config: PreTrainedConfig, batch: int, num_positions: int) -> torch.Tensor:
    """Return ids of ordinary words: padding, ends and placeholders would be seen as such.

    The last is the end of the text, which classifiers such as BART's look for.
    """
    text = config.get_text_config()
    fields = {**vars(text), **vars(config)}
    special: set[int] = set()
    for name, value in fields.items():
        if "token" in name:
            listed = value if isinstance(value, list) else [value]
            special.update(one for one in listed if isinstance(one, int))
    word = next(number for number in range(len(special) + 1) if number not in special)
    ids = torch.full((batch, num_positions), word, dtype=torch.int64)
    if config.is_encoder_decoder and isinstance(text.eos_token_id, int) and num_positions > 1:
        ids[:, -1] = text.eos_token_id
    return ids


def _mask(batch: int, num_positions: int, *, num_padded: int) -> torch.Tensor:
    """Return the mask of prompts of unequal length, padded on the left."""
    mask = torch.ones((batch, num_positions), dtype=torch.int64)
    if batch > 1 and num_positions > 1:
        mask[-1, :num_padded] = 0
    return mask


def _image_shape(config: PreTrainedConfig, num_positions: int) -> tuple[int, ...] | None:
    return image_shape(config)


def _spectrogram_shape(config: PreTrainedConfig, num_positions: int) -> tuple[int, ...] | None:
    """Return `[mel bins, frames]` for Whisper, whose encoder halves the frames, or `[frames, features]`."""
    audio = part_of(config, "audio_config")
    num_mel_bins = getattr(audio, "num_mel_bins", None)
    if num_mel_bins is not None:
        return (int(num_mel_bins), 2 * num_positions)
    for field in ("input_feat_per_channel", "feature_projection_input_dim"):
        num_features = getattr(audio, field, None)
        if num_features is not None:
            return (num_positions, int(num_features))
    return None


def _sound_shape(config: PreTrainedConfig, num_positions: int) -> tuple[int, ...] | None:
    """Return `[samples]` or `[channels, samples]` of a wave, or `[frames, mel bins]` of a spectrogram."""
    audio = part_of(config, "audio_config")
    samples_per_position = getattr(audio, "inputs_to_logits_ratio", None)
    if callable(samples_per_position):
        samples_per_position = samples_per_position()
    if samples_per_position is not None:
        return (num_positions * int(samples_per_position),)
    num_channels, num_samples = getattr(audio, "audio_channels", None), getattr(audio, "sampling_rate", None)
    if num_channels is not None and num_samples is not None:
        return (int(num_channels), int(num_samples))  # One second.
    num_frames, num_mel_bins = getattr(audio, "max_length", None), getattr(audio, "num_mel_bins", None)
    return None if num_frames is None or num_mel_bins is None else (int(num_frames), int(num_mel_bins))


_SHAPES = {
    "pixel_values": _image_shape,
    "pixel_values_videos": _image_shape,
    "input_features": _spectrogram_shape,
    "input_values": _sound_shape,
}
