from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import huggingface_hub.constants
import pytest
import torch
import transformers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    MptConfig,
    MptForCausalLM,
)

import bayplan.skeleton.config
from bayplan.schemas.errors import UsageError
from bayplan.skeleton.build import build_model
from bayplan.skeleton.config import choose_class, choose_dtype, load_config, quantization_method
from bayplan.skeleton.config_file import ModelError

if TYPE_CHECKING:
    from pathlib import Path

VERSION = transformers.__version__
REMOTE_CODE = """
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

class HomeConfig(PretrainedConfig):
    model_type = "home_made"

class HomeModel(PreTrainedModel):
    config_class = HomeConfig

    def __init__(self, config):
        super().__init__(config)
        self.linear = nn.Linear(2, 2)
        self.register_buffer("table", torch.arange(3.0), persistent=False)
        self.post_init()
"""
AUTO_MAP = {"AutoConfig": "home.HomeConfig", "AutoModel": "home.HomeModel"}


def write_config(folder: Path, **values: object) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(values))
    return file


@pytest.fixture
def remote_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint that brings its own classes; transformers copies such code to a folder of its own."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "home.py").write_text(REMOTE_CODE)
    write_config(folder, model_type="home_made", architectures=["HomeModel"], auto_map=AUTO_MAP)
    return folder


def test_folder_and_file_give_the_same(tmp_path: Path) -> None:
    file = write_config(tmp_path, model_type="llama", hidden_size=32)
    other = tmp_path / "other.json"
    other.write_bytes(file.read_bytes())
    configs = [load_config(path) for path in (tmp_path, file, other)]
    assert [type(config) for config in configs] == [LlamaConfig] * 3
    assert [config.hidden_size for config in configs] == [32] * 3


def test_infinity_is_accepted(tmp_path: Path) -> None:
    write_config(tmp_path, model_type="llama", time_limit=[0.0, float("inf")])
    assert load_config(tmp_path).time_limit == [0.0, float("inf")]


def test_hidden_size_that_heads_do_not_divide(tmp_path: Path) -> None:
    file = write_config(tmp_path, model_type="llama", hidden_size=64, num_attention_heads=7)
    with pytest.raises(ModelError) as caught:
        load_config(tmp_path)
    assert str(caught.value) == (
        f"{file}: transformers {VERSION} refuses this config of llama: got"
        " StrictDataclassClassValidationError: Class validation error for validator 'validate_architecture':"
        " ValueError: The hidden size (64) is not a multiple of the number of attention heads (7)."
    )


def test_no_model_type(tmp_path: Path) -> None:
    file = write_config(tmp_path, hidden_size=3)
    with pytest.raises(ModelError) as caught:
        load_config(tmp_path)
    assert str(caught.value) == (
        f'{file}: the config does not say what model it is: needed a string "model_type"'
    )


def test_unknown_model_type(tmp_path: Path) -> None:
    file = write_config(tmp_path, model_type="nonesuch")
    with pytest.raises(ModelError) as caught:
        load_config(tmp_path)
    assert str(caught.value) == (
        f'{file}: transformers {VERSION} does not know the model type "nonesuch"\n'
        "hint: a newer transformers may know it"
    )


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("99.1.0.dev0", "transformers 99.1.0.dev0 wrote it: pip install -U transformers"),
        (VERSION, "a newer transformers may know it"),
        ("4.2", "a newer transformers may know it"),
        (5, "a newer transformers may know it"),
    ],
)
def test_config_of_another_transformers(tmp_path: Path, written: object, hint: str) -> None:
    file = write_config(tmp_path, model_type="nonesuch", transformers_version=written)
    with pytest.raises(ModelError) as caught:
        load_config(tmp_path)
    assert str(caught.value) == (
        f'{file}: transformers {VERSION} does not know the model type "nonesuch"\nhint: {hint}'
    )


def test_values_that_only_a_newer_transformers_takes(tmp_path: Path) -> None:
    write_config(tmp_path, model_type="llama", hidden_size="wide", transformers_version="99.0")
    with pytest.raises(ModelError) as caught:
        load_config(tmp_path)
    assert str(caught.value).endswith("\nhint: transformers 99.0 wrote it: pip install -U transformers")


def test_refused_values(tmp_path: Path) -> None:
    file = write_config(tmp_path, model_type="llama", hidden_size="wide")
    with pytest.raises(ModelError) as caught:
        load_config(tmp_path)
    assert str(caught.value).startswith(f"{file}: transformers {VERSION} refuses this config of llama: got ")


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Hosts that were looked up, none of which was found."""
    hosts: list[object] = []

    def refuse(host: object, *rest: object, **options: object) -> None:
        hosts.append(host)
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return hosts


def test_a_backbone_that_only_the_hub_could_tell_of(tmp_path: Path, looked_up: list[object]) -> None:
    file = write_config(tmp_path, model_type="dpt", backbone="org/backbone-50")
    with pytest.raises(ModelError) as caught:
        load_config(tmp_path)
    assert str(caught.value) == (
        f"{file}: the config names a backbone whose own config is on the Hub, which is not asked for it: "
        'got backbone "org/backbone-50", needed that config itself, as backbone_config\n'
        "hint: load the config with transformers and save it again: that writes backbone_config"
    )
    assert looked_up == []
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


def test_a_backbone_without_an_owner_is_timm_s(tmp_path: Path, looked_up: list[object]) -> None:
    write_config(tmp_path, model_type="detr", backbone="resnet18")
    config = load_config(tmp_path)
    assert config.backbone_config.model_type == "timm_backbone"
    assert config.backbone_config.backbone == "resnet18"
    assert looked_up == []
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


def test_remote_code_is_not_run_unasked(remote_folder: Path) -> None:
    with pytest.raises(ModelError) as caught:
        load_config(remote_folder)
    assert str(caught.value) == (
        f'{remote_folder / "config.json"}: the model type "home_made" is defined by code that comes with the'
        " checkpoint: got home.py, needed permission to run that code\n"
        "hint: read the code first; --trust-remote-code runs it"
    )


def test_remote_code_runs_where_trusted(remote_folder: Path) -> None:
    config = load_config(remote_folder, trust_remote_code=True)
    model_class = choose_class(config, folder=remote_folder, trust_remote_code=True)
    model = build_model(config, model_class, torch.float32, folder=remote_folder, trust_remote_code=True)
    assert model_class.__name__ == "HomeModel"
    assert model.is_custom_code()
    assert model.linear.weight.is_meta
    assert model.table.tolist() == [0.0, 1.0, 2.0]


def test_known_type_needs_no_remote_code(tmp_path: Path) -> None:
    write_config(tmp_path, model_type="llama", architectures=["LlamaForCausalLM"], auto_map=AUTO_MAP)
    config = load_config(tmp_path)
    assert choose_class(config, folder=tmp_path) is LlamaForCausalLM


@pytest.mark.parametrize(
    ("config", "name", "expected"),
    [
        (BertConfig(architectures=["BertModel"]), None, BertModel),
        (BertConfig(architectures=["BertForMaskedLM"]), None, BertForMaskedLM),
        (BertConfig(architectures=["BertForMaskedLM"]), "BertModel", BertModel),
        (MptConfig(architectures=["MPTForCausalLM"]), None, MptForCausalLM),
    ],
)
def test_class(config: transformers.PretrainedConfig, name: str | None, expected: type) -> None:
    assert choose_class(config, name=name) is expected


def test_an_empty_class_name() -> None:
    with pytest.raises(UsageError) as caught:
        choose_class(MptConfig(), name="")
    assert str(caught.value) == "--class: an empty name is no class"


@pytest.mark.parametrize("named", [[5], "MptModel", True, 3, 1.5, {"MptModel": 1}])
def test_architectures_that_are_no_names(named: object) -> None:
    with pytest.raises(ModelError) as caught:
        choose_class(MptConfig(architectures=named))
    assert str(caught.value) == (
        f'the config\'s architectures are not names: got "{named}", needed a list of class names'
    )


def test_a_class_whose_module_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under `python -OO`, where transformers misses its docstrings."""

    class Broken:
        __version__ = VERSION

        def __getattr__(self, name: str) -> object:
            raise ValueError(f"no docstring in {name}")

    monkeypatch.setattr(bayplan.skeleton.config, "transformers", Broken())
    with pytest.raises(ModelError) as caught:
        choose_class(MptConfig(architectures=["MptModel"]))
    assert str(caught.value) == (
        f"transformers {VERSION} cannot import MptModel: got ValueError: no docstring in MptModel"
    )


@pytest.mark.parametrize("auto_map", ["modeling_home.HomeModel", ["modeling_home.HomeModel"]])
def test_an_auto_map_of_another_form_names_no_code(tmp_path: Path, auto_map: object) -> None:
    config = MptConfig(architectures=["MptForCausalLM"], auto_map=auto_map)
    assert choose_class(config, folder=tmp_path, trust_remote_code=True) is MptForCausalLM


def test_no_architecture() -> None:
    with pytest.raises(ModelError) as caught:
        choose_class(MptConfig())
    assert str(caught.value) == (
        "the config of mpt names no architecture, so its head is unknown: needed one of: MptForCausalLM,"
        " MptForQuestionAnswering, MptForSequenceClassification, MptForTokenClassification, MptModel\n"
        "hint: name it with --class"
    )


@pytest.mark.parametrize(
    ("values", "got", "hint"),
    [
        ({}, "", "name one with --class"),
        (
            {"auto_map": AUTO_MAP},
            "got one defined in home.py, ",
            "--trust-remote-code runs the checkpoint's own",
        ),
    ],
)
@pytest.mark.parametrize("name", ["MptForHaiku", "pipeline"])
def test_no_such_class(values: dict[str, object], got: str, hint: str, name: str) -> None:
    with pytest.raises(ModelError) as caught:
        choose_class(MptConfig(architectures=[name], **values))
    assert str(caught.value) == (
        f'transformers {VERSION} has no model class "{name}": {got}needed one of: MptForCausalLM,'
        " MptForQuestionAnswering, MptForSequenceClassification, MptForTokenClassification, MptModel\n"
        f"hint: {hint}"
    )


def test_class_for_another_config() -> None:
    with pytest.raises(ModelError) as caught:
        choose_class(MptConfig(), name=GPT2LMHeadModel.__name__)
    assert str(caught.value) == (
        "GPT2LMHeadModel cannot be built from a config of mpt: got MptConfig, needed GPT2Config\n"
        "hint: classes for this config: MptForCausalLM, MptForQuestionAnswering,"
        " MptForSequenceClassification, MptForTokenClassification, MptModel"
    )


@pytest.mark.parametrize(
    ("dtype", "first_shard", "expected"),
    [
        ("bfloat16", {"a": "F16"}, torch.bfloat16),
        (None, None, torch.float32),
        (None, {}, torch.float32),
        (None, {"b": "F32", "a": "F16"}, torch.float16),
        (None, {"a": "I64", "b": "F8_E4M3", "c": "BF16"}, torch.bfloat16),
    ],
)
def test_dtype(dtype: str | None, first_shard: dict[str, str] | None, expected: torch.dtype) -> None:
    assert choose_dtype(LlamaConfig(dtype=dtype), first_shard) is expected


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        (None, None),
        ({"quant_method": "fp8"}, "fp8"),
        ({"load_in_4bit": True}, "bitsandbytes"),
        ({"bits": 4}, "unnamed"),
    ],
)
def test_quantization_method(quantization: dict[str, object] | None, expected: str | None) -> None:
    values = {} if quantization is None else {"quantization_config": quantization}
    assert quantization_method(LlamaConfig(**values)) == expected


def test_quantization_method_of_the_text_model() -> None:
    text = {"model_type": "llama", "quantization_config": {"quant_method": "compressed-tensors"}}
    assert quantization_method(LlavaConfig(text_config=text)) == "compressed-tensors"


def test_dtype_of_the_config_cannot_be_built_in() -> None:
    with pytest.raises(ModelError) as caught:
        choose_dtype(LlamaConfig(dtype="int8"))
    assert str(caught.value) == (
        "a model of llama cannot be built in the dtype of its config: got torch.int8, needed a floating-point"
        " dtype"
    )


def test_no_tensor_says_the_dtype() -> None:
    with pytest.raises(ModelError) as caught:
        choose_dtype(LlamaConfig(), {"a": "I64", "b": "F8_E4M3", "c": "I64"})
    assert str(caught.value) == (
        "neither the config nor the checkpoint's first file says in which dtype to build the model: got"
        " F8_E4M3, I64, needed a floating-point tensor of 16 bits or more\n"
        'hint: put "dtype" into config.json'
    )


def test_dtype_equals_that_of_from_pretrained(tmp_path: Path) -> None:
    LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)).to(
        torch.float16
    ).save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    del raw["dtype"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    loaded = LlamaForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype is choose_dtype(load_config(tmp_path), {"model.norm.weight": "F16"})
