"""Inputs by what models say of them; the models are stand-ins with the configs of real ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bayplan.planner.model.library_inputs import diffusers_inputs, timm_inputs


def shapes(value: object) -> object:
    """Return tensors as their shapes, whatever holds them."""
    if isinstance(value, torch.Tensor):
        assert value.is_meta
        return list(value.shape)
    if isinstance(value, tuple):
        return tuple(map(shapes, value))
    return {name: shapes(one) for name, one in value.items()} if isinstance(value, dict) else value


class Stub(nn.Module):
    """A module with a config and one parameter."""

    def __init__(self, config: object, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = self.pretrained_cfg = config
        self.weight = nn.Parameter(torch.empty(9, dtype=dtype, device="meta"))
        self.kept = nn.Parameter(torch.empty(1, device="meta"))


class UNet(Stub):
    def forward(self, sample, timestep, encoder_hidden_states, added_cond_kwargs=None, return_dict=True):
        raise NotImplementedError


class Autoencoder(Stub):
    def forward(self, sample, return_dict=True, **kwargs):
        raise NotImplementedError


class ControlNet(Stub):
    def forward(self, sample, timestep, encoder_hidden_states, controlnet_cond):
        raise NotImplementedError


class Flux(Stub):
    def forward(
        self,
        hidden_states,
        encoder_hidden_states=None,
        pooled_projections=None,
        timestep=None,
        img_ids=None,
        txt_ids=None,
        guidance=None,
    ):
        raise NotImplementedError


class ClassTransformer(Stub):
    def forward(self, hidden_states, timestep, class_labels, added_cond_kwargs=None):
        raise NotImplementedError


class Video(Stub):
    def forward(self, hidden_states, num_frames):
        raise NotImplementedError


SDXL = {
    "in_channels": 4,
    "sample_size": 128,
    "cross_attention_dim": 2048,
    "addition_embed_type": "text_time",
    "projection_class_embeddings_input_dim": 2816,
    "addition_time_embed_dim": 256,
}


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (
            UNet({"in_channels": 4, "sample_size": None, "cross_attention_dim": 768}),
            {
                "return_dict": False,
                "sample": [2, 4, 64, 64],
                "timestep": [2],
                "encoder_hidden_states": [2, 77, 768],
            },
        ),
        (
            UNet(SDXL),
            {
                "return_dict": False,
                "sample": [2, 4, 128, 128],
                "timestep": [2],
                "encoder_hidden_states": [2, 77, 2048],
                "added_cond_kwargs": {"text_embeds": [2, 1280], "time_ids": [2, 6]},
            },
        ),
        (
            Autoencoder({"in_channels": 3, "sample_size": [32, 48]}),
            {"return_dict": False, "sample": [2, 3, 32, 48]},
        ),
        (
            ControlNet({"in_channels": 4, "cross_attention_dim": 768, "conditioning_channels": 3}),
            {
                "sample": [2, 4, 64, 64],
                "timestep": [2],
                "encoder_hidden_states": [2, 77, 768],
                "controlnet_cond": [2, 3, 512, 512],
            },
        ),
        (
            Flux(
                {
                    "in_channels": 64,
                    "joint_attention_dim": 4096,
                    "pooled_projection_dim": 768,
                    "guidance_embeds": True,
                    "axes_dims_rope": [16, 56, 56],
                }
            ),
            {
                "hidden_states": [2, 4096, 64],
                "encoder_hidden_states": [2, 256, 4096],
                "timestep": [2],
                "guidance": [2],
                "pooled_projections": [2, 768],
                "img_ids": [4096, 3],
                "txt_ids": [256, 3],
            },
        ),
        (
            ClassTransformer({"in_channels": 4, "sample_size": 32, "num_embeds_ada_norm": 1000}),
            {"hidden_states": [2, 4, 32, 32], "timestep": [2], "class_labels": [2]},
        ),
        (
            UNet(
                {"in_channels": 4, "sample_size": 128, "caption_channels": 4096, "cross_attention_dim": 1152}
            ),
            {
                "return_dict": False,
                "sample": [2, 4, 128, 128],
                "timestep": [2],
                "encoder_hidden_states": [2, 256, 4096],
                "added_cond_kwargs": {"resolution": [2, 2], "aspect_ratio": [2, 1]},
            },
        ),
    ],
)
def test_diffusers(module: Stub, expected: dict[str, object]) -> None:
    inputs = diffusers_inputs(module)
    assert inputs is not None
    assert shapes(inputs(2)) == expected


@pytest.mark.parametrize(
    "module",
    [
        Video({"in_channels": 16}),
        UNet({"in_channels": 4}),
        Autoencoder({"sample_size": 32}),
        Autoencoder({"in_channels": 3, "sample_size": [1, 2, 3]}),
        Autoencoder(None),
    ],
)
def test_inputs_that_nothing_tells(module: Stub) -> None:
    assert diffusers_inputs(module) is None


def test_inputs_are_in_the_data_type_of_most_parameters() -> None:
    inputs = diffusers_inputs(Autoencoder({"in_channels": 3}, torch.bfloat16))
    assert inputs is not None
    sample = inputs(1)["sample"]
    assert isinstance(sample, torch.Tensor)
    assert sample.dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"input_size": (3, 224, 192)}, {"": ([5, 3, 224, 192],)}),
        ({"input_size": [1, 8, 8]}, {"": ([5, 1, 8, 8],)}),
    ],
)
def test_timm(config: object, expected: object) -> None:
    inputs = timm_inputs(Stub(config))
    assert inputs is not None
    assert shapes(inputs(5)) == expected


@pytest.mark.parametrize("config", [None, {}, {"input_size": (3, None, None)}, {"input_size": 224}])
def test_timm_models_that_do_not_say(config: object) -> None:
    assert timm_inputs(Stub(config)) is None
