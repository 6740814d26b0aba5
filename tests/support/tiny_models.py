"""Tiny models of many architectures, on meta or with random weights, built from config classes alone."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
import transformers
from transformers import PreTrainedModel

from bayplan.planner.model.workload import make_workload

if TYPE_CHECKING:
    from bayplan.schemas.plan import Workload

TEXT = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT = {
    "vocab_size": 96,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SEQ2SEQ = {
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}

ARCHITECTURES: dict[str, tuple[str, dict[str, object]]] = {
    "bart": ("BartForConditionalGeneration", {**SEQ2SEQ, "max_position_embeddings": 64}),
    "bert": ("BertForMaskedLM", {**TEXT, "num_hidden_layers": 2}),
    "bloom": ("BloomForCausalLM", {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "clip": (
        "CLIPModel",
        {"text_config": {**TEXT, "num_hidden_layers": 2}, "vision_config": VISION, "projection_dim": 16},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        {
            **TEXT,
            "head_dim": 8,
            "sliding_window": 8,
            "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
        },
    ),
    "gpt2": ("GPT2LMHeadModel", GPT),
    "llama": ("LlamaForCausalLM", TEXT),
    "mamba": (
        "MambaForCausalLM",
        {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    ),
    "mixtral": ("MixtralForCausalLM", {**TEXT, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "opt": ("OPTForCausalLM", {**TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        {
            **TEXT,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
    ),
    "vit": ("ViTForImageClassification", VISION),
    "whisper": (
        "WhisperForConditionalGeneration",
        {**SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32},
    ),
}
GENERATORS = (
    "bart",
    "bloom",
    "gemma3",
    "gpt2",
    "llama",
    "mamba",
    "mixtral",
    "opt",
    "qwen2_moe",
    "t5",
    "whisper",
)
"""Those that generate."""


def build(name: str, *, on_meta: bool = True, **changes: object) -> PreTrainedModel:
    """Return a model of `ARCHITECTURES` in eval mode, fp32, with some config values changed."""
    class_name, values = ARCHITECTURES[name]
    return build_class(class_name, {**values, **changes}, on_meta=on_meta)


def build_class(class_name: str, values: dict[str, object], *, on_meta: bool) -> PreTrainedModel:
    """Return a model of a class of transformers, in eval mode and fp32, from the values of its config."""
    model_class = getattr(transformers, class_name)
    config = model_class.config_class(**values)
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        with torch.device("meta") if on_meta else contextlib.nullcontext(), torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            model = model_class._from_config(config)
    finally:
        transformers.logging.set_verbosity(level)
    assert isinstance(model, PreTrainedModel)
    return model.eval()


def workload_for(
    model: PreTrainedModel, context: int, *, batch: int = 1, chunk: int | None = None
) -> Workload:
    """Return a workload in fp32 with the encoder's length as the model has it, or 12."""
    encoder = None
    if model.config.is_encoder_decoder:
        encoder = getattr(model.config, "max_source_positions", 12)
    workload, _ = make_workload(
        model.config, batch=batch, context=context, encoder_context=encoder, prefill_chunk=chunk, dtype="fp32"
    )
    return workload
