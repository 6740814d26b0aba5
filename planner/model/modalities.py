"""Images, sound and video for models whose main input is text: what to pass beside it, and in what shapes.

Owns the knowledge of these arguments. Several layouts are in use for each; a caller tries one after another.
Knows nothing of forwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedConfig, PreTrainedModel

# Images of models whose config names no size because they take any: that of ImageNet, and for those that cut
# an image into a grid of patches twice that, 256 positions of Qwen2-VL.
_DEFAULT_IMAGE_PIXELS = 224
_DEFAULT_GRID_PIXELS = 448
# Spectrograms of models that take any length: 10 s at 100 frames per second; sound: 1 s at 16 kHz.
_DEFAULT_NUM_FRAMES = 1000
_DEFAULT_NUM_SAMPLES = 16_000
_NUM_VIDEO_FRAMES = 2

_Default = TypeVar("_Default", int, None)
# Says for each position of a forward what it may look at, after the first one too.
_EACH_TIME = ("image_attention_mask",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Modality:
    """One kind of input that a model takes besides its text."""

    name: str
    argument: str
    """Of the forward."""
    grid_argument: str
    """Argument with frames, rows and columns of patches, where images are cut up beforehand."""
    token_fields: tuple[str, ...]
    """Config fields of the id that stands for one position of it among the text."""
    type_id: int
    """Its number in `mm_token_type_ids`; text is 0."""


_IMAGE = Modality(
    name="image",
    argument="pixel_values",
    grid_argument="image_grid_thw",
    token_fields=("image_token_id", "image_token_index", "media_placeholder_token_id"),
    type_id=1,
)
_VIDEO = Modality(
    name="video",
    argument="pixel_values_videos",
    grid_argument="video_grid_thw",
    token_fields=("video_token_id", "video_token_index"),
    type_id=2,
)
_SPECTROGRAM = Modality(
    name="audio",
    argument="input_features",
    grid_argument="",
    token_fields=("audio_token_id", "audio_token_index"),
    type_id=3,
)
_SOUND = dataclasses.replace(_SPECTROGRAM, argument="input_values")
_ALL = (_IMAGE, _SPECTROGRAM, _SOUND, _VIDEO)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """One way to pass one modality."""

    modality: Modality
    shape: tuple[int, ...]
    """Of the modality's argument."""
    grid: tuple[int, int, int] | None = None
    """Frames, rows and columns of patches."""
    has_sizes: bool = False
    """Pass the size of each image too."""


def accepts(model: PreTrainedModel, name: str) -> bool:
    """Return whether the model's forward has an argument of this name."""
    return name in inspect.signature(model.forward).parameters


def modalities(model: PreTrainedModel) -> tuple[Modality, ...]:
    """Return what the model takes besides its main input."""
    return tuple(
        modality
        for modality in _ALL
        if modality.argument != model.main_input_name and accepts(model, modality.argument)
    )


def token_id(config: PreTrainedConfig, modality: Modality) -> int | None:
    """Return the id that stands for a position of the modality; None: there are no such positions."""
    return _int_of(config, modality.token_fields, None)


def layouts(model: PreTrainedModel, modality: Modality, batch: int) -> Iterator[Layout]:
    """Yield the ways to pass the modality, one image or sound per sequence, the likeliest first.

    None where the config's sizes make no sense, such as patches of no pixels: nothing can be passed then.
    """
    with contextlib.suppress(ArithmeticError, AssertionError, IndexError, TypeError, ValueError):
        yield from _layouts(model, modality, batch)


def _layouts(model: PreTrainedModel, modality: Modality, batch: int) -> Iterator[Layout]:
    config = model.config
    if modality.name == "audio":
        shape = _spectrogram_shape(config) if modality is _SPECTROGRAM else (_DEFAULT_NUM_SAMPLES,)
        yield Layout(modality=modality, shape=(batch, *shape))
        return
    if modality.grid_argument and accepts(model, modality.grid_argument):
        yield from _grid_layouts(config, modality, batch)
        return
    image = image_shape(config)
    if image is None:
        return
    *frames, channels, height, width = image
    if modality is _VIDEO:
        frames = frames or [_NUM_VIDEO_FRAMES]
    one = (channels, height, width)
    tiles = int(getattr(part_of(config, "vision_config"), "max_num_tiles", 1))
    for before in (tuple(frames), (1,), (1, tiles)):
        layout = Layout(modality=modality, shape=(batch, *before, *one))
        yield layout
        if accepts(model, "image_sizes"):
            yield dataclasses.replace(layout, has_sizes=True)


def _grid_layouts(config: PreTrainedConfig, modality: Modality, batch: int) -> Iterator[Layout]:
    vision = part_of(config, "vision_config")
    patch = _first_int(getattr(vision, "patch_size", 14))
    merge = _first_int(getattr(vision, "spatial_merge_size", None) or getattr(vision, "merge_kernel_size", 2))
    temporal = int(getattr(vision, "temporal_patch_size", 1))
    channels = _int_of(vision, ("in_channels", "in_chans", "num_channels"), 3)
    num_rows = max(1, _grid_pixels(vision, patch) // (patch * merge)) * merge
    grid = (1, num_rows, num_rows)
    num_patches = batch * math.prod(grid)
    flat = (num_patches, channels * temporal * patch * patch)
    for shape in (flat, (num_patches, channels, patch, patch)):
        yield Layout(modality=modality, shape=shape, grid=grid)


def _grid_pixels(vision: PreTrainedConfig, patch: int) -> int:
    """Return the side of the image that the model's table of positions is for."""
    size = getattr(vision, "image_size", None)
    if isinstance(size, int):
        return size
    num_rows = getattr(vision, "init_pos_emb_height", None) or getattr(vision, "pos_emb_height", None)
    if isinstance(num_rows, int):
        return num_rows * patch
    num_positions = getattr(vision, "num_position_embeddings", None)
    if isinstance(num_positions, int):
        return math.isqrt(num_positions) * patch
    return _DEFAULT_GRID_PIXELS


def layout_inputs(
    model: PreTrainedModel,
    layout: Layout,
    *,
    batch: int,
    num_tokens: int,
    num_placeholders: int,
    is_first: bool = True,
) -> dict[str, torch.Tensor]:
    """Return the arguments that pass the modality, without the ids.

    What only the first forward of a sequence takes is left out of the others: their image is in the cache.

    Args:
        model: The model.
        layout: From `layouts`, with the same batch.
        batch: Sequences.
        num_tokens: Positions of each.
        num_placeholders: Positions of the modality at the end of each.
        is_first: Whether the sequences begin here.
    """
    modality = layout.modality
    inputs: dict[str, torch.Tensor] = {}
    if is_first:
        inputs[modality.argument] = torch.empty(layout.shape, dtype=input_dtype(model.config), device="meta")
    types = torch.zeros((batch, num_tokens), dtype=torch.int64)
    types[:, num_tokens - num_placeholders :] = modality.type_id
    size = layout.shape[-2:]
    beside: dict[str, Callable[[], torch.Tensor]] = {
        "pixel_mask": lambda: torch.ones((batch, *size), dtype=torch.int64),
        "pixel_attention_mask": lambda: torch.ones((*layout.shape[:-3], *size), dtype=torch.int64),
        "aspect_ratio_ids": lambda: torch.ones((batch, 1), dtype=torch.int64),
        "aspect_ratio_mask": lambda: torch.ones((batch, *layout.shape[1:-3]), dtype=torch.int64),
        "cross_attention_mask": lambda: torch.ones(
            (batch, num_tokens, *layout.shape[1:-3]), dtype=torch.int64
        ),
        "image_attention_mask": lambda: torch.ones((batch, num_tokens, 1), dtype=torch.int64),
        "feature_attention_mask": lambda: torch.ones((batch, layout.shape[-1]), dtype=torch.int64),
        "input_features_mask": lambda: torch.ones((batch, layout.shape[1]), dtype=torch.bool),
        "mm_token_type_ids": lambda: types,
        "token_type_ids": lambda: types.clamp(max=1),
    }
    if layout.has_sizes:
        beside["image_sizes"] = lambda: torch.tensor([size] * batch)
    if layout.grid is not None:
        grid = layout.grid
        beside[modality.grid_argument] = lambda: torch.tensor([grid] * batch)
    for name, make in beside.items():
        if accepts(model, name) and _belongs(name, modality) and (is_first or name in _EACH_TIME):
            inputs[name] = make()
    return inputs


def _belongs(name: str, modality: Modality) -> bool:
    if name.startswith(("pixel_", "image_", "aspect_", "cross_")) and not name.endswith("_thw"):
        return modality.name == "image"
    if name in ("feature_attention_mask", "input_features_mask"):
        return modality is _SPECTROGRAM
    return True


def image_shape(config: PreTrainedConfig) -> tuple[int, ...] | None:
    """Return `[channels, height, width]`, with the frames before it for video; None: the size is unclear."""
    vision = part_of(config, "vision_config")
    size = getattr(vision, "image_size", _DEFAULT_IMAGE_PIXELS)
    if isinstance(size, dict):
        size = (size.get("height"), size.get("width"))
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    if not (isinstance(height, int) and isinstance(width, int)):
        return None
    image = (int(getattr(vision, "num_channels", 3)), height, width)
    num_frames = getattr(vision, "num_frames", None)
    return image if num_frames is None else (int(num_frames), *image)


def _spectrogram_shape(config: PreTrainedConfig) -> tuple[int, int]:
    """Return `[mel bins, frames]` where an encoder halves the frames, as Whisper's; else `[frames, bins]`."""
    audio = part_of(config, "audio_config" if hasattr(config, "audio_config") else "encoder_config")
    fields = ("num_mel_bins", "input_feat_per_channel", "input_feat_size", "input_dim")
    num_bins = _int_of(audio, fields, 128)
    num_positions = getattr(audio, "max_source_positions", None)
    if isinstance(num_positions, int):
        return (num_bins, 2 * num_positions)
    return (_DEFAULT_NUM_FRAMES, num_bins)


def part_of(config: PreTrainedConfig, name: str) -> PreTrainedConfig:
    """Return the sub-config of one modality, or the config itself where it is of that modality."""
    part = getattr(config, name, None)
    return config if part is None else part


def input_dtype(config: PreTrainedConfig) -> torch.dtype:
    """Return the data type of images and sound for a model of this config."""
    return config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32


def _int_of(config: PreTrainedConfig, fields: tuple[str, ...], default: _Default) -> int | _Default:
    """Return the first of the fields that is a whole number."""
    found = (getattr(config, field, None) for field in fields)
    return next((value for value in found if isinstance(value, int)), default)


def _first_int(value: object) -> int:
    """Return a size that is given once or per side."""
    if isinstance(value, list | tuple):
        value = value[0]
    assert isinstance(value, int)
    return value
