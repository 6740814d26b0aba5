from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import transformers
from tiny_models import TEXT, VISION, build_class
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, T5Config, T5ForConditionalGeneration
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, ExpertsInterface, use_experts_implementation
from transformers.modeling_outputs import MoeCausalLMOutputWithPast
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from truth_models import MORE

from bayplan.skeleton.build import build_model
from bayplan.skeleton.empty import build_empty
from bayplan.skeleton.transformers_adapter import (
    classes_for,
    complete_outputs,
    instantiate,
    renamed_tensors,
    replaceable_experts,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig

T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}


@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.float16, torch.float32), (torch.bfloat16, torch.bfloat16)]
)
def test_modules_that_a_class_keeps_in_fp32(dtype: torch.dtype, expected: torch.dtype) -> None:
    model = build_model(T5Config(**T5), T5ForConditionalGeneration, dtype)
    dense = model.encoder.block[0].layer[1].DenseReluDense
    assert (dense.wi.weight.dtype, dense.wo.weight.dtype) == (dtype, expected)


def test_outputs_have_the_fields_that_wrappers_read() -> None:
    """Llama 4 of transformers 5.24 reads one that its language model's output lacks."""
    had_field = hasattr(MoeCausalLMOutputWithPast, "image_outputs")
    with complete_outputs(), complete_outputs():
        assert MoeCausalLMOutputWithPast().image_outputs is None
    assert hasattr(MoeCausalLMOutputWithPast, "image_outputs") is had_field


def test_classes_for_a_config() -> None:
    names = [found.__name__ for found in classes_for(LlamaConfig())]
    assert names == sorted(names)
    assert {"LlamaForCausalLM", "LlamaModel"} <= set(names)


def test_instantiate_leaves_no_trace_after_an_exception() -> None:
    class Failing(LlamaForCausalLM):
        def __init__(self, config: PretrainedConfig) -> None:
            assert torch.get_default_dtype() is torch.bfloat16
            raise ZeroDivisionError

    before = (PreTrainedModel.initialize_weights, PreTrainedModel.tie_weights)
    with pytest.raises(ZeroDivisionError):
        build_empty(lambda: instantiate(Failing, LlamaConfig(), torch.bfloat16))
    assert (PreTrainedModel.initialize_weights, PreTrainedModel.tie_weights) == before
    assert torch.get_default_dtype() is torch.float32


def test_renamed_tensors_and_their_operations() -> None:
    model = build_model(T5Config(**T5), T5ForConditionalGeneration, torch.float32)
    names = ["shared.weight", "encoder.final_layer_norm.weight", "nothing.of.its"]
    assert renamed_tensors(model, names) == (
        ("encoder.final_layer_norm.weight", "encoder.final_layer_norm.weight", ()),
        ("nothing.of.its", "nothing.of.its", ()),
        ("shared.weight", "shared.weight", ()),
    )


EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
WITH_EXPERTS: dict[str, tuple[dict[str, object], int]] = {
    "DbrxForCausalLM": (
        {
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 2,
            "vocab_size": 96,
            "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        },
        0,
    ),
    "DeepseekV3ForCausalLM": (MORE["deepseek_v3"][1], 2),
    "GptOssForCausalLM": (MORE["gpt_oss"][1], 3),
    "JambaForCausalLM": (MORE["jamba"][1], 1),
    "LlamaForCausalLM": (TEXT, 0),
    "Llama4ForCausalLM": (MORE["llama4"][1], 0),
    "MixtralForCausalLM": ({**TEXT, **EXPERTS}, 3),
    "MixtralModel": ({**TEXT, **EXPERTS}, 3),
    "Qwen3VLMoeForConditionalGeneration": (
        {
            "text_config": {
                **TEXT,
                **EXPERTS,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
            },
            "vision_config": {**VISION, "depth": 1, "num_heads": 4, "out_hidden_size": 32},
            "image_token_id": 90,
        },
        3,
    ),
}
"""Class, config, modules of experts that ask transformers' table: none of DBRX, Llama 4 and dense models."""


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_experts_that_can_be_replaced_are_those_that_ask_the_table(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shown by a function that is entered there: it is called by all of these, and by no other module."""
    values, number = WITH_EXPERTS[name]
    model = build_class(name, values, on_meta=False)
    asked: list[nn.Module] = []

    def answer(module: nn.Module, hidden_states: torch.Tensor, *routes: torch.Tensor) -> torch.Tensor:
        asked.append(module)
        return torch.zeros_like(hidden_states)

    monkeypatch.setitem(ALL_EXPERTS_FUNCTIONS, "answer", answer)
    found = replaceable_experts(model)
    model.set_experts_implementation("answer")
    with torch.no_grad():
        model(input_ids=torch.ones((1, 4), dtype=torch.int64))
    assert list(found) == asked
    assert len(found) == number


def test_experts_with_a_forward_of_their_own_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(MixtralExperts):
        def forward(self, hidden_states: torch.Tensor, *routes: torch.Tensor) -> torch.Tensor:
            return hidden_states

    class Other(nn.Module):
        def __init__(self, config: PretrainedConfig) -> None:
            super().__init__()

    table = ExpertsInterface()
    for replacement in (Own, use_experts_implementation(Other, experts_interface=table)):
        model = build_class("MixtralForCausalLM", {**TEXT, **EXPERTS}, on_meta=True)
        model.get_submodule("model.layers.1.mlp").experts = replacement(model.config)
        names = {name for name, module in model.named_modules() if module in replaceable_experts(model)}
        assert names == {"model.layers.0.mlp.experts", "model.layers.2.mlp.experts"}


def test_experts_that_no_model_owns_cannot_be_replaced() -> None:
    """What sets the name of the function goes by the configs of models."""
    model = build_class("MixtralForCausalLM", {**TEXT, **EXPERTS}, on_meta=True)
    layers = model.get_submodule("model.layers")
    assert replaceable_experts(layers) == ()
    model.get_submodule("model.layers.1.mlp.experts").config = transformers.MixtralConfig(**TEXT)
    assert len(replaceable_experts(model)) == 2


class OneFunction(nn.Module):
    forward = len  # type: ignore[assignment]


def test_a_module_whose_forward_is_no_function_of_python() -> None:
    model = build_class("MixtralForCausalLM", {**TEXT, **EXPERTS}, on_meta=True)
    odd = OneFunction()
    odd.config = model.config  # type: ignore[assignment]
    model.odd = odd
    assert len(replaceable_experts(model)) == 3
