"""What users of other estimators complained of, kept from happening here.

Each test names what holds with us; the docstring names where the opposite was reported.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import in_own_process
from placement_problems import make_device, make_inventory
from stand_in_libraries import stand_in_timm
from tiny_models import ARCHITECTURES, GPT, TEXT
from transformers import (
    AutoConfig,
    Gemma3ForCausalLM,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    PreTrainedModel,
)

import bayplan

VOCABULARY, WIDTH, LAYERS = 96, 32, 3


def config_of(model_class: type[PreTrainedModel], values: dict[str, object], folder: Path) -> str:
    """Save a config that names its class; return its folder."""
    config = model_class.config_class(**values, architectures=[model_class.__name__])
    config.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def bf16_llama(tmp_path: Path) -> str:
    return config_of(LlamaForCausalLM, {**TEXT, "dtype": "bfloat16"}, tmp_path)


def test_embeddings_are_not_quantized_with_the_layers(bf16_llama: str) -> None:
    """accelerate#2586: a map for 4 bits counted the embedding at half a byte a number."""
    machine = make_inventory([make_device("cpu")])
    sizes = {}
    for name in ("bf16", "int8", "nf4"):
        plan = bayplan.plan_model(bf16_llama, format=name, inventory=machine)
        sizes[name] = {block.id: block.num_bytes for block in plan.blocks}
    table_bytes = VOCABULARY * WIDTH * 2
    for found in sizes.values():
        assert (found["model.embed_tokens"], found["lm_head"]) == (table_bytes, table_bytes)
        assert found["model.norm"] == WIDTH * 2
    layers = [found["model.layers.0"] for found in sizes.values()]
    assert layers == sorted(set(layers), reverse=True)


def test_transposed_linear_layers_are_linear_layers(tmp_path: Path) -> None:
    """bitsandbytes#629: no linear modules were found in GPT-2, and nothing was quantized."""
    model = config_of(GPT2LMHeadModel, GPT, tmp_path)
    found = bayplan.estimate(model, dtypes=("bf16", "int8-bnb", "nf4"))
    weights = LAYERS * 12 * WIDTH * WIDTH
    kept = found.formats["bf16"].total_bytes - 2 * weights
    # One fp32 scale for each of the outputs: 3, 1, 4 and 1 times the width.
    assert found.formats["int8-bnb"].total_bytes >= kept + weights + LAYERS * 9 * WIDTH * 4
    assert found.formats["int8-bnb"].total_bytes < kept + 2 * weights
    assert kept + weights // 2 < found.formats["nf4"].total_bytes < found.formats["int8-bnb"].total_bytes


def test_a_model_without_linear_layers_takes_the_same_in_every_quantized_format() -> None:
    """bitsandbytes#629: what has nothing to quantize is not counted as if it had."""
    found = bayplan.estimate("complaint_models:tied_in_its_constructor", dtypes=("fp32", "int8-bnb"))
    assert found.formats["int8-bnb"].total_bytes == found.formats["fp32"].total_bytes == 16 * 16 * 4


def test_fp32_is_four_bytes_a_parameter_whatever_the_config_says(bf16_llama: str) -> None:
    """accelerate#3379: the base was the config's data type, and a 70B model took 64 GB."""
    assert AutoConfig.from_pretrained(bf16_llama).dtype is not None
    found = bayplan.estimate(bf16_llama, dtypes=("float32", "float16"))
    rotary_bytes = 2 * 4 * 4
    assert found.dtype == "bf16"
    assert found.formats["fp32"].total_bytes == 4 * found.params + rotary_bytes
    assert found.formats["fp16"].total_bytes == 2 * found.params + rotary_bytes
    assert found.formats["fp32"].train_adam_bytes == 4 * found.formats["fp32"].total_bytes


@pytest.mark.parametrize("name", ["net10", "net10.a1", "timm/net10", "timm/net10.a1", "hf-hub:timm/net10.a1"])
def test_every_spelling_of_a_timm_name_is_the_same_model(
    name: str, monkeypatch: pytest.MonkeyPatch, network_attempts: list[str]
) -> None:
    """accelerate#4212: `timm/resnet50` failed, since the name lacked its prefix."""
    stand_in_timm(monkeypatch)
    found = bayplan.estimate(name, library="timm", use_cache=False)
    network_attempts.clear()  # A name with an owner may be one of the Hub's.
    assert (found.library, found.params) == ("timm", 3 * 4 * 4 + 4 + 2 * 4 + 4 * 10 + 10)


def test_estimate_is_a_command() -> None:
    """accelerate#2980: invalid choice: 'estimate-memory'."""
    done = in_own_process("estimate", "--help")
    assert (done.code, done.err) == (0, "")
    assert "how much memory a model takes" in done.out
    assert "estimate" in in_own_process("--help").out


def test_the_cache_of_a_hybrid_is_that_of_its_layers(tmp_path: Path) -> None:
    """hf-mem#15, hf-mem#60: every layer counted as if it attended to the whole context."""
    values = ARCHITECTURES["gemma3"][1]
    model = config_of(Gemma3ForCausalLM, {**values, "dtype": "bfloat16"}, tmp_path)
    per_position = 2 * 2 * 8 * 2  # keys and values, two heads of eight numbers, two bytes
    for context in (4, 64):
        # What a window of 8 keeps between steps: 7, since the eighth is the one to come.
        sliding = 2 * min(context, 7)
        found = bayplan.estimate(model, context=context, batch=3, dtypes=("bf16",))
        window_numbers = 2 * 8  # each sliding layer keeps the length of its window beside them
        assert found.kv_bytes == 3 * per_position * (context + sliding) + window_numbers
