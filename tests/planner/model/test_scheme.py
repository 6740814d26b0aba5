from __future__ import annotations

import copy
from typing import Any

import pytest
import transformers
from tiny_models import TEXT, VISION, build
from torch import nn
from truth_models import build_meta

from bayplan.planner.model.scheme import model_scheme
from bayplan.schemas.graph import TensorRole
from bayplan.schemas.quantization_values import QuantizationError

FP8 = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head", "model.visual.proj"]}


def config_of(name: str, quantization: object) -> Any:
    config = copy.deepcopy(build(name).config)
    config.quantization_config = quantization
    return config


def test_a_model_that_is_not_quantized() -> None:
    model = build("llama")
    assert model_scheme(model.config, model, dtype="bf16", where="model") is None


def test_what_the_class_keeps_in_fp32_is_left_too() -> None:
    quantization = {"load_in_8bit": True, "llm_int8_skip_modules": ["decoder"]}
    scheme = model_scheme(config_of("t5", quantization), build("t5"), dtype="bf16", where="model")
    assert scheme is not None
    assert (scheme.not_converted, scheme.keeps_default, scheme.inside) == (("decoder", "wo"), False, "")
    assert scheme.groups[0].roles == (TensorRole.LINEAR, TensorRole.CONV1D, TensorRole.EXPERTS)


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "gptq", "bits": 4},
        {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": {"a": {"weights": {}}},
        },
    ],
)
def test_methods_with_lists_of_their_own(quantization: dict[str, object]) -> None:
    scheme = model_scheme(config_of("t5", quantization), build("t5"), dtype="bf16", where="model")
    assert scheme is not None
    assert scheme.not_converted == ()


def test_modules_bear_the_names_of_the_class_that_is_built() -> None:
    """Of fp8, whose lists were written for the checkpoint's own code, such as Llava's of older versions."""
    quantization = {"quant_method": "fp8", "modules_to_not_convert": ["language_model.model.layers.0"]}
    model = build_meta("llava")
    config = copy.deepcopy(model.config)
    config.quantization_config = quantization
    scheme = model_scheme(config, model, dtype="bf16", where="model")
    assert scheme is not None
    assert scheme.not_converted == ("model.language_model.layers.0",)


def test_a_config_object_of_transformers() -> None:
    quantization = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    scheme = model_scheme(config_of("llama", quantization), build("llama"), dtype="bf16", where="model")
    assert scheme is not None
    assert scheme.name == "nf4"


def test_the_scheme_of_a_text_model_is_for_that_alone() -> None:
    text = {"model_type": "llama", **TEXT, "quantization_config": {"quant_method": "fp8"}}
    config = transformers.LlavaConfig(
        text_config=text,
        vision_config={"model_type": "clip_vision_model", **VISION},
        image_token_id=95,
    )
    model = build_meta("llava")
    scheme = model_scheme(config, model, dtype="bf16", where="model")
    assert scheme is not None
    assert scheme.inside == "model.language_model"


def test_a_module_of_another_library_has_no_renamings() -> None:
    scheme = model_scheme(config_of("llama", FP8), nn.Linear(1, 1), dtype="bf16", where="model")
    assert scheme is not None
    assert scheme.not_converted == ("lm_head", "model.visual.proj")


def test_a_method_that_is_not_known() -> None:
    with pytest.raises(QuantizationError) as caught:
        model_scheme(config_of("llama", {"quant_method": "x"}), build("llama"), dtype="bf16", where="model")
    assert str(caught.value).startswith("model: the checkpoint is quantized by a method that this version")
