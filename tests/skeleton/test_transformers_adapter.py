from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, T5Config, T5ForConditionalGeneration
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

from bayplan.skeleton.build import build_model
from bayplan.skeleton.empty import build_empty
from bayplan.skeleton.transformers_adapter import (
    classes_for,
    complete_outputs,
    instantiate,
    renamed_tensors,
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
