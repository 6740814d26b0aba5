from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub.constants
import pytest
from tiny_checkpoints import tiny_llama
from transformers import LlamaForCausalLM

from bayplan.planner.model.read_model import read_model
from bayplan.planner.options import PlanOptions
from bayplan.skeleton.config_file import ModelError


def test_a_factory_computes_in_the_first_type_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "narrow_factory.py").write_text(
        "import torch\n"
        "def make(): return torch.nn.Linear(2, 2, dtype=torch.float8_e4m3fn)\n"
        "def mixed(): return torch.nn.Sequential(make(), torch.nn.LayerNorm(2, dtype=torch.bfloat16))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert read_model("narrow_factory:mixed", PlanOptions()).dtype == "bf16"
    with pytest.raises(ModelError) as caught:
        read_model("narrow_factory:make", PlanOptions())
    assert str(caught.value) == (
        "narrow_factory:make: the factory's module has no parameter in a data type that a model computes in:"
        " got fp8_e4m3, needed one in any of bf16, fp16, fp32, fp64"
    )


@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_forward_cannot_ask_the_hub(
    is_trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those that fetch kernels for experts do, where the config says so."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    offline = set()
    forward = LlamaForCausalLM.forward

    def curious(self: LlamaForCausalLM, *args: object, **options: object) -> object:
        offline.add(huggingface_hub.constants.HF_HUB_OFFLINE)
        return forward(self, *args, **options)

    folder = tiny_llama(tmp_path)
    monkeypatch.setattr(LlamaForCausalLM, "forward", curious)
    read = read_model(str(folder), PlanOptions(trust_remote_code=is_trusted))
    assert read.graph.traced
    assert offline == {not is_trusted}


def test_blocks_that_nothing_calls_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spare_factory.py").write_text(
        "import transformers\n"
        "from torch import nn\n"
        "class Spare(transformers.LlamaForCausalLM):\n"
        "    def __init__(self, config):\n"
        "        super().__init__(config)\n"
        "        self.spare = nn.Linear(4, 4)\n"
        "def make():\n"
        "    config = transformers.LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1,\n"
        "        num_attention_heads=2, num_key_value_heads=2, vocab_size=16)\n"
        "    return Spare(config)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    read = read_model("spare_factory:make", PlanOptions())
    assert read.graph.traced
    assert read.warnings == (
        "work and activations of blocks that no traced forward called are not counted: spare",
    )


@pytest.mark.parametrize(
    ("fault", "got"),
    [
        ("SystemExit(0)", "SystemExit: 0"),
        ("GeneratorExit", "GeneratorExit"),
        ("type('Own', (Exception,), {})('so')", "Own: so"),
    ],
)
def test_trusted_code_may_raise_anything(tmp_path: Path, fault: str, got: str) -> None:
    """To leave, above all: the command would have said nothing and been done."""
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"model_type": "leaving", "auto_map": {"AutoConfig": "configuration_leaving.LeavingConfig"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "configuration_leaving.py").write_text(
        "from transformers import PretrainedConfig\n"
        "class LeavingConfig(PretrainedConfig):\n"
        "    def __init__(self, **keywords):\n"
        f"        raise {fault}\n"
    )
    with pytest.raises(ModelError) as caught:
        read_model(str(folder), PlanOptions(trust_remote_code=True))
    assert str(caught.value) == f"{folder}: the code that comes with the checkpoint fails: got {got}"
