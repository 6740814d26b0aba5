"""A model's graph in another format beside the model that the libraries build in it."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING

import pytest
import torch
import transformers
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from tiny_models import ARCHITECTURES
from transformers import BitsAndBytesConfig, FineGrainedFP8Config
from transformers.integrations.bitsandbytes import replace_with_bnb_linear
from transformers.integrations.finegrained_fp8 import FP8Experts, FP8Linear, replace_with_fp8_linear
from transformers.quantizers.base import HfQuantizer
from truth_models import MORE
from whole_graph import whole_graph

from bayplan.planner.stored_form import in_format
from bayplan.schemas.graph import ModelGraph, TensorRecord, TensorRole
from bayplan.schemas.quantization import ASKED_SCHEMES, quantized_weights
from bayplan.skeleton.build import build_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAMES = sorted({**ARCHITECTURES, **MORE})
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def model(name: str, dtype: str) -> PreTrainedModel:
    class_name, values = {**ARCHITECTURES, **MORE}[name]
    model_class = getattr(transformers, class_name)
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        config = model_class.config_class(**copy.deepcopy(values))
        return build_model(config, model_class, DTYPES[dtype])
    finally:
        transformers.logging.set_verbosity(level)


def tensors(graph: ModelGraph) -> dict[str, TensorRecord]:
    return {record.fqn: record for block in graph.blocks for record in block.tensors}


@functools.cache
def graph_of(name: str, dtype: str) -> ModelGraph:
    return whole_graph(model(name, dtype), model(name, "bf16") if dtype == "fp32" else None)


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_a_plain_data_type_is_that_of_a_model_built_in_it(name: str, source: str) -> None:
    for target in DTYPES:
        wanted, found = graph_of(name, target), in_format(graph_of(name, source), target)
        here, there = tensors(found), tensors(wanted)
        differing = {fqn for fqn in here.keys() | there.keys() if here.get(fqn) != there.get(fqn)}
        # RecurrentGemma keeps a number in bf16 whatever it is built in; in a bf16 build it looks like the
        # rest, and two bytes are not worth a second build of every model.
        known = {"model.normalizer"} if (name, source) == ("recurrent_gemma", "bf16") else set()
        assert differing == (known if target != source else set())
        assert found.ties == wanted.ties


def test_there_and_back_again() -> None:
    graph = graph_of("t5", "fp16")
    assert in_format(in_format(graph, "bf16"), "fp16") == graph
    assert {record.dtype for record in tensors(graph).values()} == {"fp16", "fp32"}


def skipped(built: PreTrainedModel) -> list[str]:
    return HfQuantizer.get_modules_to_not_convert(built, None, list(built._keep_in_fp32_modules or ()))


@pytest.mark.parametrize("name", NAMES)
def test_bitsandbytes_converts_the_same_modules(name: str) -> None:
    """Experts in one tensor are no modules, and transformers leaves them."""
    built = model(name, "bf16")
    graph = graph_of(name, "bf16")
    roles = {fqn: record.role for fqn, record in tensors(graph).items()}
    for format_name, options in (("int8", {"load_in_8bit": True}), ("nf4", {"load_in_4bit": True})):
        weights = quantized_weights(graph, ASKED_SCHEMES[format_name])
        config = BitsAndBytesConfig(**options)
        replaced = replace_with_bnb_linear(model(name, "bf16"), skipped(built), config)
        # A module under two names is replaced under the first.
        wanted = {
            f"{path}.weight"
            for path, module in replaced.named_modules()
            if isinstance(module, Linear8bitLt | Linear4bit)
        }
        assert {fqn for fqn in weights if roles[fqn] is not TensorRole.EXPERTS} == wanted


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gpt_oss"])
def test_fp8_takes_what_transformers_own_layers_take(name: str) -> None:
    """But for gpt-oss, since its class for experts has no biases."""
    built = model(name, "bf16")
    found = in_format(graph_of(name, "bf16"), "fp8")
    replaced = replace_with_fp8_linear(model(name, "bf16"), skipped(built), FineGrainedFP8Config())
    converted = {
        f"{path}.{tensor}"
        for path, module in replaced.named_modules()
        if isinstance(module, FP8Linear | FP8Experts)
        for tensor, _ in module.named_parameters(recurse=False)
        if tensor != "bias"
    }
    wanted = sum(tensor.nbytes for fqn, tensor in replaced.state_dict().items() if fqn in converted)
    weights = quantized_weights(graph_of(name, "bf16"), ASKED_SCHEMES["fp8"])
    stems = tuple(f"{fqn.removesuffix('.weight')}." for fqn in weights)
    packed = sum(record.num_bytes for fqn, record in tensors(found).items() if fqn.startswith(stems))
    # The layers' own class makes its biases apart.
    assert packed - _bias_bytes(found, stems) == wanted
    assert bool(converted) == bool(weights)


def _bias_bytes(graph: ModelGraph, stems: tuple[str, ...]) -> int:
    return sum(
        record.num_bytes
        for fqn, record in tensors(graph).items()
        if fqn.startswith(stems) and fqn.endswith(".bias")
    )
