"""Inputs of one forward of a model that is not transformers' own, as meta tensors.

Owns what timm and diffusers say of their inputs: timm in the model's configuration, diffusers by the names of
arguments, whose sizes are in the config. Imports neither. Where its inputs are not known, a model is not
traced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from torch import nn

LibraryInputs: TypeAlias = Callable[[int], Mapping[str, object]]
"""Batch to keyword arguments; under an empty name a tuple of positional ones."""
_Config: TypeAlias = Mapping[str, object]

_TEXT_POSITIONS = 77
"""Of CLIP, whose output the UNets were trained with."""
_LONG_TEXT_POSITIONS = 256
"""Of T5, beside or instead of it, as most pipelines ask for it."""
_LATENT_POSITIONS = 64
"""Height and width of latents where the config names none: an image of 512 x 512, eight times as wide."""
_PACKED_POSITIONS = 4096
"""Latents in one row, where they come packed: an image of 1024 x 1024, sixteen times as wide."""
_NUM_SIZES = 6
"""Numbers that tell the size of an image, its crop and the size wished for."""
_COMPRESSION = 8
"""Width of an image over that of its latents, in every autoencoder of the UNets."""


def timm_inputs(module: nn.Module) -> LibraryInputs | None:
    """Return what makes the inputs of a timm model: images of the size that its weights were trained with.

    Returns:
        None where the model does not say its size.
    """
    config = getattr(module, "pretrained_cfg", None)
    size = config.get("input_size") if isinstance(config, dict) else None
    if not isinstance(size, tuple | list) or not all(isinstance(number, int) for number in size):
        return None
    dtype = _dtype_of(module)
    return lambda batch: {"": (_floats(dtype, batch, *size),)}


def diffusers_inputs(module: nn.Module) -> LibraryInputs | None:
    """Return what makes the inputs of a model of diffusers, for one step at its default size.

    Returns:
        None where an argument that must be given is of a size that nothing here tells.
    """
    config = getattr(module, "config", None)
    if not isinstance(config, Mapping):
        return None
    parameters = inspect.signature(module.forward).parameters
    needed = {
        name
        for name, one in parameters.items()
        if one.default is one.empty and one.kind is not one.VAR_KEYWORD
    }
    dtype = _dtype_of(module)
    made = _named_inputs(config, frozenset(parameters), dtype, 1)
    if not needed <= made.keys():
        return None
    return lambda batch: _named_inputs(config, frozenset(parameters), dtype, batch)


def _named_inputs(
    config: _Config, names: frozenset[str], dtype: torch.dtype, batch: int
) -> dict[str, object]:
    """Return every argument that is known by name and whose size the config tells."""
    latents = _latent_shape(config, packed="img_ids" in names)
    text = _text_shape(config)
    image = _image_shape(config)
    made: dict[str, object] = {"return_dict": False} if "return_dict" in names else {}
    shapes: dict[str, tuple[int, ...] | None] = {
        "sample": latents,
        "hidden_states": latents,
        "encoder_hidden_states": text,
        "controlnet_cond": image,
        "timestep": (),
        "guidance": () if config.get("guidance_embeds") else None,
        "pooled_projections": _row(config.get("pooled_projection_dim")),
    }
    for name, shape in shapes.items():
        if name in names and shape is not None:
            made[name] = _floats(dtype, batch, *shape)
    if "img_ids" in names and text is not None:
        made["img_ids"] = _floats(dtype, _PACKED_POSITIONS, _num_axes(config))
        made["txt_ids"] = _floats(dtype, text[0], _num_axes(config))
    if "class_labels" in names and (config.get("num_embeds_ada_norm") or config.get("num_class_embeds")):
        made["class_labels"] = torch.empty((batch,), dtype=torch.int64, device="meta")
    conditions = _conditions(config, dtype, batch)
    if "added_cond_kwargs" in names and conditions is not None:
        made["added_cond_kwargs"] = conditions
    return made


def _latent_shape(config: _Config, *, packed: bool) -> tuple[int, ...] | None:
    """Return `[channels, height, width]` of latents or, for an autoencoder, of images."""
    channels = config.get("in_channels")
    if not isinstance(channels, int):
        return None
    if packed:
        return (_PACKED_POSITIONS, channels)
    size = config.get("sample_size") or _LATENT_POSITIONS
    if isinstance(size, int):
        return (channels, size, size)
    sizes = tuple(size) if isinstance(size, list | tuple) else ()
    is_plane = len(sizes) == 2 and all(isinstance(one, int) for one in sizes)
    return (channels, *sizes) if is_plane else None


def _text_shape(config: _Config) -> tuple[int, int] | None:
    """Return `[positions, width]` of the text that a model looks at."""
    width = config.get("cross_attention_dim")
    long_width = config.get("caption_channels") or config.get("joint_attention_dim")
    if isinstance(long_width, int):  # some transformers have both, and project the one to the other
        return (_LONG_TEXT_POSITIONS, long_width)
    return (_TEXT_POSITIONS, width) if isinstance(width, int) else None


def _image_shape(config: _Config) -> tuple[int, ...] | None:
    """Return `[channels, height, width]` of the image that steers a control net."""
    channels = config.get("conditioning_channels")
    pixels = _LATENT_POSITIONS * _COMPRESSION
    return (channels, pixels, pixels) if isinstance(channels, int) else None


def _row(width: object) -> tuple[int, ...] | None:
    return (width,) if isinstance(width, int) else None


def _num_axes(config: _Config) -> int:
    axes = config.get("axes_dims_rope")
    return len(axes) if isinstance(axes, list | tuple) else 3


def _conditions(config: _Config, dtype: torch.dtype, batch: int) -> dict[str, object] | None:
    """Return what is in `added_cond_kwargs`: size and crop of the image, and the text as a whole."""
    if config.get("addition_embed_type") == "text_time":
        width = config.get("projection_class_embeddings_input_dim")
        time_width = config.get("addition_time_embed_dim")
        if isinstance(width, int) and isinstance(time_width, int):
            return {
                "text_embeds": _floats(dtype, batch, width - _NUM_SIZES * time_width),
                "time_ids": _floats(dtype, batch, _NUM_SIZES),
            }
    if "caption_channels" in config:
        return {"resolution": _floats(dtype, batch, 2), "aspect_ratio": _floats(dtype, batch, 1)}
    return None


def _dtype_of(module: nn.Module) -> torch.dtype:
    """Return the data type that most parameters are in: some classes keep a few in fp32."""
    num_bytes: dict[torch.dtype, int] = {}
    for param in module.parameters():
        if param.dtype.is_floating_point:
            num_bytes[param.dtype] = num_bytes.get(param.dtype, 0) + param.nbytes
    return max(num_bytes, key=lambda dtype: num_bytes[dtype], default=torch.float32)


def _floats(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
