"""Tiny models without weights, for what only looks at signatures, configs and shapes."""

from __future__ import annotations

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

VOCABULARY = 96
_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "pad_token_id": 0,
}
_MODELS: dict[str, tuple[type[PreTrainedModel], type, dict[str, int]]] = {
    "bart": (
        BartForConditionalGeneration,
        BartConfig,
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "pad_token_id": 0,
            "eos_token_id": 2,
        },
    ),
    "bert": (BertForMaskedLM, BertConfig, _TEXT),
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config,
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4, "eos_token_id": 2},
    ),
    "llama": (LlamaForCausalLM, LlamaConfig, _TEXT),
    "t5": (
        T5ForConditionalGeneration,
        T5Config,
        {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
    ),
    "vit": (
        ViTForImageClassification,
        ViTConfig,
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 16},
    ),
}


def on_meta(name: str, **changes: object) -> PreTrainedModel:
    """Return a model of `VOCABULARY` tokens, or of images, with some config values changed."""
    model_class, config_class, values = _MODELS[name]
    with torch.device("meta"):
        return model_class(config_class(**(values | changes)))
