"""Published configs of quantized checkpoints: what a config alone says of the bytes, beside other ways."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer
from whole_graph import whole_graph

from bayplan.planner.model.read_model import read_model
from bayplan.planner.model.scheme import model_scheme
from bayplan.planner.options import PlanOptions
from bayplan.planner.stored_form import in_format
from bayplan.schemas.graph import ModelGraph, TensorRecord, TensorRole
from bayplan.skeleton.build import build_model
from bayplan.skeleton.config import choose_class, load_config

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

MODELS = Path(__file__).parents[1] / "data" / "models"
FP8 = (
    "Qwen--Qwen3-235B-A22B-FP8",
    "XiaomiMiMo--MiMo-V2-Flash",
    "deepseek-ai--DeepSeek-V3",
    "deepseek-ai--DeepSeek-V4-Flash",
)


def built(name: str) -> tuple[PretrainedConfig, PreTrainedModel]:
    config = load_config(MODELS / f"{name}.json")
    return config, build_model(config, choose_class(config), torch.bfloat16)


def own_form(name: str) -> tuple[ModelGraph, ModelGraph]:
    """The model as it would be bound in bf16, and as its checkpoint stores it."""
    config, model = built(name)
    scheme = model_scheme(config, model, dtype="bf16", where=name)
    assert scheme is not None
    plain = whole_graph(model)
    return plain, in_format(plain, scheme.name, scheme=scheme)


def stored_bytes(graph: ModelGraph) -> int:
    return sum(tensor.num_bytes for tensor in tensors(graph) if tensor.is_persistent)


def tensors(graph: ModelGraph) -> list[TensorRecord]:
    return [tensor for block in graph.blocks for tensor in block.tensors]


@pytest.mark.parametrize("name", FP8)
def test_fp8_checkpoints_take_what_transformers_layers_for_them_take(name: str) -> None:
    config, model = built(name)
    quantization = FineGrainedFP8Config(**config.quantization_config)
    quantizer = FineGrainedFP8HfQuantizer(quantization)
    quantizer._normalize_modules_to_not_convert(model)
    skipped = quantizer.get_modules_to_not_convert(
        model, quantization.modules_to_not_convert, list(model._keep_in_fp32_modules or ())
    )
    replaced = replace_with_fp8_linear(model, skipped, quantization, pre_quantized=True)
    assert stored_bytes(own_form(name)[1]) == sum(tensor.nbytes for tensor in replaced.state_dict().values())


@pytest.mark.parametrize(
    ("name", "num_bytes"), [("openai--gpt-oss-20b", 13_761_264_768), ("openai--gpt-oss-120b", 65_248_815_744)]
)
def test_mxfp4_checkpoints_store_a_byte_per_32_weights_of_the_experts(name: str, num_bytes: int) -> None:
    plain, own = own_form(name)
    experts = sum(prod(tensor.shape) for tensor in tensors(plain) if tensor.role is TensorRole.EXPERTS)
    others = sum(
        tensor.num_bytes
        for tensor in tensors(plain)
        if tensor.role is not TensorRole.EXPERTS and tensor.is_persistent
    )
    assert stored_bytes(own) == others + experts // 2 + experts // 32 == num_bytes


def test_int4_of_the_experts_of_a_text_model_alone() -> None:
    name = "moonshotai--Kimi-K2.5"
    plain, own = own_form(name)
    text = json.loads((MODELS / f"{name}.json").read_text())["text_config"]
    layers = text["num_hidden_layers"] - text["first_k_dense_replace"]
    linears = 3 * layers * text["n_routed_experts"]
    weights = linears * text["hidden_size"] * text["moe_intermediate_size"]
    others = stored_bytes(plain) - 2 * weights
    shapes = linears * 2 * 8
    assert stored_bytes(own) == others + weights // 2 + weights // 32 * 2 + shapes


def test_a_config_without_a_data_type_is_computed_in_bf16() -> None:
    read = read_model(str(MODELS / "openai--gpt-oss-20b.json"), PlanOptions(context=8))
    assert read.dtype == "bf16"
    assert read.warnings == (
        "computed in bf16: the config names no data type, and quantized weights are made from that one",
    )
    assert read.scheme is not None
    assert read.scheme.describe() == "mxfp4: fp4 with a one-byte scale per 32 weights of a row"
