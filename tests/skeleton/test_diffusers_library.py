from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from stand_in_libraries import stand_in_diffusers

from bayplan.skeleton.config_file import ModelError
from bayplan.skeleton.diffusers_library import build_diffusers, diffusers_version
from bayplan.skeleton.tree import tree_digest


@pytest.fixture
def diffusers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return stand_in_diffusers(monkeypatch)


def write(folder: Path, **values: object) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({"in_channels": 4, **values}))
    return file


def test_model(diffusers: ModuleType, tmp_path: Path) -> None:
    module = build_diffusers(write(tmp_path, _class_name="TinyUNet"), torch.float32)
    assert type(module).__name__ == "TinyUNet"
    assert all(param.is_meta for param in module.parameters())
    assert not module.training
    assert diffusers_version() == "0.0"


@pytest.mark.parametrize(
    ("dtype", "norm"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float64, torch.float64)],
)
def test_what_the_class_keeps_in_fp32(
    dtype: torch.dtype, norm: torch.dtype, diffusers: ModuleType, tmp_path: Path
) -> None:
    module = build_diffusers(write(tmp_path, _class_name="TinyUNet"), dtype)
    assert (module.conv.weight.dtype, module.norm.weight.dtype) == (dtype, norm)


def test_no_config_of_diffusers(tmp_path: Path) -> None:
    file = write(tmp_path)
    with pytest.raises(ModelError) as caught:
        build_diffusers(file, torch.float32)
    assert str(caught.value) == f'{file}: not a config of diffusers: needed a string "_class_name"'


def test_no_config_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read the model's config"):
        build_diffusers(tmp_path / "config.json", torch.float32)


@pytest.mark.parametrize("name", ["NewUNet", "Scheduler", "__version__"])
def test_no_such_model(name: str, diffusers: ModuleType, tmp_path: Path) -> None:
    file = write(tmp_path, _class_name=name)
    with pytest.raises(ModelError) as caught:
        build_diffusers(file, torch.float32)
    assert str(caught.value) == (
        f'{file}: diffusers 0.0 has no model "{name}"\nhint: a newer diffusers may have it'
    )


def test_refused_config(diffusers: ModuleType, tmp_path: Path) -> None:
    file = write(tmp_path, _class_name="TinyUNet", odd=True)
    with pytest.raises(ModelError) as caught:
        build_diffusers(file, torch.float32)
    assert str(caught.value) == (
        f"{file}: TinyUNet cannot be built from this config: got ValueError: odd is odd"
    )


def test_class_that_cannot_be_imported(diffusers: ModuleType, tmp_path: Path) -> None:
    def broken(name: str) -> object:
        raise RuntimeError(f"Failed to import {name}")

    diffusers.__getattr__ = broken
    file = write(tmp_path, _class_name="LazyUNet")
    with pytest.raises(ModelError) as caught:
        build_diffusers(file, torch.float32)
    assert str(caught.value) == (
        f"{file}: LazyUNet of diffusers 0.0 cannot be imported: got RuntimeError: Failed to import LazyUNet"
    )


def test_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    file = write(tmp_path, _class_name="TinyUNet")
    with pytest.raises(ModelError) as caught:
        build_diffusers(file, torch.float32)
    assert str(caught.value) == (
        f"{file}: diffusers is not installed: needed diffusers, whose model this is\n"
        "hint: pip install diffusers"
    )


@pytest.mark.interop
def test_real_model_equals_that_of_diffusers(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers")
    config = {"_class_name": "UNet2DConditionModel", "block_out_channels": [32, 64], "layers_per_block": 1}
    config |= {"down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"], "cross_attention_dim": 16}
    config |= {"up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"], "attention_head_dim": 8}
    module = build_diffusers(write(tmp_path, **config), torch.float32)
    real = diffusers.UNet2DConditionModel.from_config(config)
    assert tree_digest(module) == tree_digest(real)
    assert all(param.is_meta for param in module.parameters())
