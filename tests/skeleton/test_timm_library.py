from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from stand_in_libraries import stand_in_timm

from bayplan.skeleton.config_file import ModelError
from bayplan.skeleton.timm_library import build_timm_config, build_timm_name, timm_version
from bayplan.skeleton.tree import tree_digest

CONFIG = {"architecture": "net10", "num_classes": 7, "pretrained_cfg": {"tag": "a1"}}


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return stand_in_timm(monkeypatch)


def write(folder: Path, config: object) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return file


def test_by_name(timm: ModuleType) -> None:
    module = build_timm_name("net10.a1", torch.bfloat16)
    assert all(param.is_meta and param.dtype is torch.bfloat16 for param in module.parameters())
    assert not module.training
    assert module.norm.running_var.tolist() == [1.0] * 4
    assert module.head.out_features == 10
    assert timm_version() == "0.0"


def test_by_config(timm: ModuleType, tmp_path: Path) -> None:
    module = build_timm_config(write(tmp_path, CONFIG), torch.float32)
    assert module.head.out_features == 7


def test_unknown_name(timm: ModuleType) -> None:
    with pytest.raises(ModelError) as caught:
        build_timm_name("net1", torch.float32)
    assert str(caught.value) == 'timm 0.0 has no model "net1"\nhint: there is net10, net20'


def test_a_name_that_is_like_no_other(timm: ModuleType) -> None:
    with pytest.raises(ModelError) as caught:
        build_timm_name("zzz", torch.float32)
    assert str(caught.value) == 'timm 0.0 has no model "zzz"\nhint: a newer timm may have it'


def test_unknown_tag(timm: ModuleType) -> None:
    with pytest.raises(ModelError) as caught:
        build_timm_name("net10.b9", torch.float32)
    assert str(caught.value) == (
        'timm 0.0 cannot build "net10.b9": got RuntimeError: Invalid pretrained tag (b9) for net10.'
    )


def test_unknown_architecture(timm: ModuleType, tmp_path: Path) -> None:
    file = write(tmp_path, {"architecture": "net2", "pretrained_cfg": {}})
    with pytest.raises(ModelError) as caught:
        build_timm_config(file, torch.float32)
    assert str(caught.value) == f'{file}: timm 0.0 has no model "net2"\nhint: there is net20, net10'


def test_no_config_of_timm(tmp_path: Path) -> None:
    file = write(tmp_path, {"model_type": "llama"})
    with pytest.raises(ModelError) as caught:
        build_timm_config(file, torch.float32)
    assert str(caught.value) == f'{file}: not a config of timm: needed a string "architecture"'


def test_config_of_another_name(tmp_path: Path) -> None:
    file = write(tmp_path, CONFIG).rename(tmp_path / "other.json")
    with pytest.raises(ModelError) as caught:
        build_timm_config(file, torch.float32)
    assert str(caught.value) == f"{file}: timm reads no config of this name: needed config.json"


def test_no_config_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read the model's config"):
        build_timm_config(tmp_path / "config.json", torch.float32)


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModelError) as caught:
        build_timm_name("net10", torch.float32)
    assert str(caught.value) == (
        "net10: timm is not installed: needed timm, whose model this is\nhint: pip install timm"
    )


@pytest.mark.parametrize(
    ("code", "got"),
    [
        (
            "raise RuntimeError('operator torchvision::nms does not exist')",
            "RuntimeError: operator torchvision::nms does not exist",
        ),
        ("import no_such_module_here", "ModuleNotFoundError: No module named 'no_such_module_here'"),
    ],
)
def test_cannot_be_imported(code: str, got: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "timm.py").write_text(f"{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(ModelError) as caught:
        build_timm_name("net10", torch.float32)
    assert str(caught.value) == (
        f"net10: timm cannot be imported: got {got}\n"
        "hint: do it and its dependencies, such as torchvision, belong to this torch?"
    )


@pytest.mark.interop
def test_real_resnet() -> None:
    """The size that the tool of accelerate gives."""
    pytest.importorskip("timm")
    module = build_timm_name("resnet50.a1_in1k", torch.float32)
    tensors = [*module.parameters(), *module.buffers()]
    assert sum(tensor.nbytes for tensor in tensors) == 102441032
    assert max(param.nbytes for param in module.parameters()) == 9437184
    assert tree_digest(module) == tree_digest(build_timm_name("resnet50", torch.float32))


@pytest.mark.interop
@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "vit_base_patch16_224", "convnext_tiny"])
def test_real_models_equal_those_of_timm(name: str) -> None:
    timm = pytest.importorskip("timm")
    module = build_timm_name(name, torch.float32)
    real = timm.create_model(name, pretrained=False)
    assert tree_digest(module) == tree_digest(real)
    buffers = dict(real.named_buffers())
    assert {fqn for fqn, _ in module.named_buffers()} == buffers.keys()
    assert all(torch.equal(buffer, buffers[fqn]) for fqn, buffer in module.named_buffers())
