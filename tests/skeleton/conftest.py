"""Tiny random checkpoints of many architectures, saved once a run, as transformers loads them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
import transformers
from transformers import PreTrainedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
ROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
GPT = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1}
VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
MLA = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

ARCHITECTURES: dict[str, tuple[str, dict[str, object]]] = {
    "bert": ("BertForMaskedLM", {**SMALL}),
    "bart": (
        "BartForConditionalGeneration",
        {
            "vocab_size": 64,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 64,
        },
    ),
    "bloom": ("BloomForCausalLM", {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "clip": (
        "CLIPModel",
        {"text_config": {**SMALL, "eos_token_id": 2}, "vision_config": {**VISION, "image_size": 16}},
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {
            **SMALL,
            **MLA,
            "num_key_value_heads": 4,
            "n_routed_experts": 8,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": 16,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
        },
    ),
    "falcon": (
        "FalconForCausalLM",
        {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    ),
    "gemma3": ("Gemma3ForCausalLM", {**SMALL, "head_dim": 8, "sliding_window": 16}),
    "gpt2": ("GPT2LMHeadModel", GPT),
    "gpt_neox": ("GPTNeoXForCausalLM", {**SMALL}),
    "gptj": ("GPTJForCausalLM", {**GPT, "rotary_dim": 4}),
    "llama": ("LlamaForCausalLM", {**SMALL}),
    "mamba": (
        "MambaForCausalLM",
        {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    ),
    "mpt": (
        "MptForCausalLM",
        {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    ),
    "opt": ("OPTForCausalLM", {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "phi3": (
        "Phi3ForCausalLM",
        {**SMALL, "pad_token_id": 0, "rope_parameters": ROPE, "original_max_position_embeddings": 32},
    ),
    "qwen2": ("Qwen2ForCausalLM", {**SMALL, "tie_word_embeddings": True}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**SMALL, **EXPERTS, "head_dim": 8}),
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
    ),
    "vit": ("ViTForImageClassification", {**VISION, "image_size": 16, "patch_size": 4}),
}


class Checkpoint(NamedTuple):
    """A saved model."""

    name: str
    folder: Path
    model_class: type[PreTrainedModel]
    reference: PreTrainedModel
    """What `from_pretrained` returns."""


def class_named(name: str) -> type[PreTrainedModel]:
    found = getattr(transformers, name)
    assert issubclass(found, PreTrainedModel)
    return found


def save_tiny(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> type[PreTrainedModel]:
    """Save a randomly initialized model of `ARCHITECTURES`."""
    class_name, values = ARCHITECTURES[name]
    model_class = class_named(class_name)
    assert model_class.config_class is not None
    config = model_class.config_class(**values)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model_class(config).to(dtype).save_pretrained(folder)
    return model_class


@pytest.fixture
def save_checkpoint(tmp_path: Path) -> Callable[[str], type[PreTrainedModel]]:
    """Save an architecture into the test's own folder, to be changed there; returns its class."""
    return lambda name: save_tiny(name, tmp_path)


@pytest.fixture(scope="session", params=sorted(ARCHITECTURES))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp(request.param)
    model_class = save_tiny(request.param, folder)
    return Checkpoint(request.param, folder, model_class, model_class.from_pretrained(folder))


@pytest.fixture(autouse=True)
def quiet_transformers() -> Iterator[None]:
    """Keep progress bars and loading reports out of the output."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    with contextlib.suppress(AttributeError):
        transformers.logging.disable_progress_bar()
    yield
    transformers.logging.set_verbosity(level)
