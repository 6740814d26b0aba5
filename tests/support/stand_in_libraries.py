"""Stand-ins for timm and diffusers: what bayplan uses of them, for tests where they are not installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    import pytest


class Net(nn.Module):
    """A convolution and a head, with the buffers of a normalization."""

    def __init__(self, num_classes: int) -> None:
        """Make it for so many classes."""
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 2, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, num_classes)
        self.pretrained_cfg = {"input_size": (3, 8, 8)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[batch, classes]`."""
        return self.head(self.norm(self.conv(x)).mean(dim=(2, 3)))


def stand_in_timm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Put a timm into `sys.modules` that knows `net10` and `net20`."""
    timm = ModuleType("timm")
    timm.__version__ = "0.0"
    timm.is_model = lambda name: name in ("net10", "net20")
    timm.list_models = lambda: ["net10", "net20"]

    def create_model(name: str, *, pretrained: bool) -> nn.Module:
        assert not pretrained
        if name.startswith("local-dir:"):
            config = json.loads((Path(name.removeprefix("local-dir:")) / "config.json").read_text())
            return Net(config["num_classes"])
        name, _, tag = name.partition(".")
        if tag not in ("", "a1"):
            raise RuntimeError(f"Invalid pretrained tag ({tag}) for {name}.")
        return Net(int(name.removeprefix("net")))

    timm.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", timm)
    return timm


class ModelMixin(nn.Module):
    """As diffusers'."""

    _keep_in_fp32_modules: list[str] | None = None


class TinyUNet(ModelMixin):
    """A UNet of one convolution, whose normalization stays in fp32."""

    _keep_in_fp32_modules = ["norm"]  # noqa: RUF012 as in the library

    def __init__(self, config: dict[str, object]) -> None:
        """Make it for a config."""
        super().__init__()
        if config.get("odd"):
            raise ValueError("odd is odd")
        self.config = config
        channels = int(str(config["in_channels"]))
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(1, channels)

    @classmethod
    def from_config(cls, config: dict[str, object]) -> TinyUNet:
        """Return the model of a config."""
        return cls(config)

    def forward(
        self, sample: torch.Tensor, timestep: torch.Tensor, *, return_dict: bool = True
    ) -> tuple[torch.Tensor]:
        """Return what the sample becomes."""
        assert not return_dict
        changed = self.norm(self.conv(sample).float()).to(sample.dtype)
        return (changed + timestep.reshape(-1, 1, 1, 1),)


def stand_in_diffusers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Put a diffusers into `sys.modules` that knows `TinyUNet`."""
    diffusers = ModuleType("diffusers")
    diffusers.__version__ = "0.0"
    diffusers.ModelMixin = ModelMixin
    diffusers.TinyUNet = TinyUNet
    diffusers.Scheduler = object
    monkeypatch.setitem(sys.modules, "diffusers", diffusers)
    return diffusers
