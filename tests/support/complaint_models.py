"""Small modules on which other planners went wrong, as factories: `complaint_models:dominated`.

Sizes are multiples of 64 bytes, so that what a block takes is what its tensors take.
"""

from __future__ import annotations

import torch
from torch import nn

UNIT = 1024
"""Bytes of a 16 x 16 weight in fp32."""


def plain(units: int) -> nn.Linear:
    """A layer of so many units, which is one leaf."""
    return nn.Linear(16, 16 * units, bias=False)


class Chained(nn.Module):
    """Layers in a list, called one after the other."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class Scaled(nn.Module):
    """Two layers and a buffer of the module itself."""

    def __init__(self, buffer_size: int) -> None:
        super().__init__()
        self.first, self.second = plain(1), plain(1)
        self.register_buffer("scale", torch.ones(buffer_size))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(hidden)) * self.scale.mean()


class Residual(nn.Module):
    """A block that adds its input to its output: its parts belong on one device."""

    def __init__(self, units: int = 1) -> None:
        super().__init__()
        self.expand, self.reduce = nn.Linear(16, 16 * units), nn.Linear(16 * units, 16)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.reduce(self.expand(hidden))


def scaled_blocks() -> nn.Module:
    """Two blocks with a buffer of 16 numbers each."""
    return Chained(Scaled(16), Scaled(16))


def scalar_buffers() -> nn.Module:
    """Ten blocks with a buffer of one number each."""
    return Chained(*(Scaled(1) for _ in range(10)))


def six_layers() -> nn.Module:
    """Six equal layers."""
    return Chained(*(plain(1) for _ in range(6)))


def twelve_layers() -> nn.Module:
    """Twelve equal layers."""
    return Chained(*(plain(1) for _ in range(12)))


class RootTensors(nn.Module):
    """Two parameters of the root and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Parameter(torch.ones(16)), nn.Parameter(torch.ones(16))
        self.layer = plain(1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.layer(hidden * self.before) * self.after


def root_tensors() -> nn.Module:
    """Parameters that the root module holds itself."""
    return RootTensors()


def twice_tied() -> nn.Module:
    """Two layers of one module that share weight and bias."""
    block = Residual()
    block.reduce.weight, block.reduce.bias = block.expand.weight, block.expand.bias
    return block


class SharedEmbedding(nn.Module):
    """An embedding that its own parent's encoder and decoder use as well."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(16, 16)
        self.encoder = nn.ModuleDict({"embed": self.shared, "layer": plain(1)})
        self.decoder = nn.ModuleDict({"embed": nn.Embedding(16, 16), "layer": plain(1)})
        self.decoder["embed"].weight = self.shared.weight


def shared_embedding() -> nn.Module:
    """One table under three names in one top module."""
    return SharedEmbedding()


def tied_pair_of_fifteen() -> nn.Module:
    """Fifteen layers, the second and the eleventh tied: `layers.1` is a prefix of `layers.10`."""
    model = Chained(*(nn.Linear(16, 16) for _ in range(15)))
    model.layers[10].weight = model.layers[1].weight
    return model


def tied_backbones() -> nn.Module:
    """An encoder of four layers of which every weight is the decoder's, and a decoder with one more."""
    decoder = Chained(*(plain(1) for _ in range(5)))
    encoder = Chained(*(plain(1) for _ in range(4)))
    for mine, theirs in zip(encoder.layers, decoder.layers, strict=False):
        mine.weight = theirs.weight
    return nn.ModuleDict({"encoder": encoder, "decoder": decoder})


def dominated() -> nn.Module:
    """Two layers hold nine tenths, the third the rest."""
    return Chained(plain(9), plain(9), plain(2))


def one_giant() -> nn.Module:
    """A giant layer between small ones."""
    return Chained(plain(1), plain(10), plain(1))


def huge_vocabulary() -> nn.Module:
    """Embedding and head of 800 units, eight layers of 40."""
    return nn.Sequential(nn.Embedding(12800, 16), *(plain(40) for _ in range(8)), plain(800))


def uneven_blocks() -> nn.Module:
    """Blocks of one class, the first a tenth of the others."""
    return Chained(Residual(1), *(Residual(10) for _ in range(4)))


def undeclared_blocks() -> nn.Module:
    """Four residual blocks that no declaration says must stay whole."""
    return Chained(*(Residual() for _ in range(4)))


def tied_in_its_constructor() -> nn.Module:
    """Two embeddings of one weight, tied as they are made."""
    model = nn.ModuleList((nn.Embedding(16, 16), nn.Embedding(16, 16)))
    model[0].weight = model[1].weight
    return model
