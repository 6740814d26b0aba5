"""More tiny models than `tiny_models` has: one for each way of keeping a cache or of taking memory."""

from __future__ import annotations

import contextlib

import torch
import transformers
from tiny_models import ARCHITECTURES, SEQ2SEQ, TEXT, VISION
from transformers import PreTrainedModel

ENCODER_CONTEXT = 12

STATE_SPACE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
}
MAMBA2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}
DELTA_RULE = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "head_dim": 8,
}
T5GEMMA = {**TEXT, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8}

MORE: dict[str, tuple[str, dict[str, object]]] = {
    "bamba": (
        "BambaForCausalLM",
        {**TEXT, **MAMBA2, "attn_layer_indices": [1]},
    ),
    "deepseek_v2": ("DeepseekV2ForCausalLM", {**TEXT, **LATENT, "first_k_dense_replace": 1}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {**TEXT, **LATENT, "first_k_dense_replace": 1}),
    "deepseek_v32": (
        "DeepseekV32ForCausalLM",
        {
            **TEXT,
            **LATENT,
            "first_k_dense_replace": 1,
            "index_n_heads": 4,
            "index_head_dim": 16,
            "index_topk": 8,
        },
    ),
    "falcon": ("FalconForCausalLM", {**TEXT, "num_kv_heads": 1, "multi_query": True, "parallel_attn": True}),
    "falcon_h1": ("FalconH1ForCausalLM", {**TEXT, **MAMBA2, "mamba_d_ssm": 64, "head_dim": 8}),
    "falcon_mamba": ("FalconMambaForCausalLM", {**STATE_SPACE, "state_size": 4}),
    "gemma3n": (
        "Gemma3nForCausalLM",
        {
            **TEXT,
            "num_hidden_layers": 5,
            "head_dim": 8,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 96,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
            "intermediate_size": [64] * 5,
            "activation_sparsity_pattern": [0.0] * 5,
        },
    ),
    "gemma4": (
        "Gemma4ForCausalLM",
        {
            **TEXT,
            "head_dim": 8,
            "global_head_dim": 8,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "vocab_size_per_layer_input": 96,
            "hidden_size_per_layer_input": 8,
        },
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        {
            **TEXT,
            "head_dim": 8,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "jamba": (
        "JambaForCausalLM",
        {
            **TEXT,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 4,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    "led": (
        "LEDForConditionalGeneration",
        {
            **SEQ2SEQ,
            "attention_window": [4, 4],
            "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 64,
        },
    ),
    "lfm2": (
        "Lfm2ForCausalLM",
        {**TEXT, "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3},
    ),
    "llama4": (
        "Llama4ForCausalLM",
        {
            **TEXT,
            "head_dim": 8,
            "intermediate_size_mlp": 64,
            "num_hidden_layers": 4,
            "attention_chunk_size": 8,
            "no_rope_layer_interval": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
        },
    ),
    "llava": (
        "LlavaForConditionalGeneration",
        {
            "text_config": {"model_type": "llama", **TEXT},
            "vision_config": {"model_type": "clip_vision_model", **VISION},
            "image_token_id": 95,
        },
    ),
    "mamba2": (
        "Mamba2ForCausalLM",
        {**STATE_SPACE, "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 8},
    ),
    "minimax": (
        "MiniMaxForCausalLM",
        {
            **TEXT,
            "head_dim": 8,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "block_size": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "mistral": ("MistralForCausalLM", {**TEXT, "sliding_window": 8}),
    "mpt": (
        "MptForCausalLM",
        {"vocab_size": 96, "d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 64},
    ),
    "nemotron_h": (
        "NemotronHForCausalLM",
        {
            **TEXT,
            "num_hidden_layers": 4,
            "layers_block_type": ["mamba", "mlp", "attention", "mamba"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "ssm_state_size": 8,
            "n_groups": 1,
            "chunk_size": 8,
            "head_dim": 8,
        },
    ),
    "phi3": ("Phi3ForCausalLM", {**TEXT, "sliding_window": None}),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        {
            **TEXT,
            **DELTA_RULE,
            "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
    ),
    "recurrent_gemma": (
        "RecurrentGemmaForCausalLM",
        {
            **STATE_SPACE,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "intermediate_size": 64,
            "lru_width": 32,
            "attention_window_size": 8,
            "block_types": ["recurrent", "recurrent", "attention"],
        },
    ),
    "rwkv": (
        "RwkvForCausalLM",
        {**STATE_SPACE, "attention_hidden_size": 32, "intermediate_size": 64, "context_length": 512},
    ),
    "smollm3": ("SmolLM3ForCausalLM", TEXT),
    "t5gemma": (
        "T5GemmaForConditionalGeneration",
        {"vocab_size": 96, "encoder": T5GEMMA, "decoder": {**T5GEMMA, "cross_attention_hidden_size": 32}},
    ),
    "zamba": (
        "ZambaForCausalLM",
        {
            **TEXT,
            "num_key_value_heads": 4,
            "attention_hidden_size": 64,
            "attention_head_dim": 16,
            "n_mamba_heads": 2,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
            "num_hidden_layers": 4,
            "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
            "use_mamba_kernels": False,
        },
    ),
    "zamba2": (
        "Zamba2ForCausalLM",
        {
            **TEXT,
            "num_key_value_heads": 4,
            "mamba_d_state": 8,
            "n_mamba_heads": 4,
            "mamba_headdim": 16,
            "mamba_ngroups": 1,
            "chunk_size": 8,
            "num_hidden_layers": 4,
            "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
            "num_mem_blocks": 1,
            "adapter_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
}


def build_real(name: str, dtype: torch.dtype = torch.float32, **changes: object) -> PreTrainedModel:
    """Return a model with random weights on the CPU, in eval mode."""
    return _build(name, dtype, contextlib.nullcontext(), changes)


def build_meta(name: str, dtype: torch.dtype = torch.float32, **changes: object) -> PreTrainedModel:
    """Return the same model without weights."""
    return _build(name, dtype, torch.device("meta"), changes)


def encoder_context(model: PreTrainedModel) -> int | None:
    """Return the positions of the encoder: as many as the model has, or 12; None without one."""
    if not model.config.is_encoder_decoder:
        return None
    return int(getattr(model.config, "max_source_positions", ENCODER_CONTEXT))


def encoder_inputs(model: PreTrainedModel, batch: int) -> dict[str, torch.Tensor]:
    """Return the encoder's real inputs; none without one."""
    if not model.config.is_encoder_decoder:
        return {}
    if model.main_input_name == "input_features":
        frames = 2 * model.config.max_source_positions
        return {"input_features": torch.rand(batch, model.config.num_mel_bins, frames, dtype=model.dtype)}
    return {"input_ids": torch.randint(3, 90, (batch, ENCODER_CONTEXT))}


def _build(
    name: str,
    dtype: torch.dtype,
    device: contextlib.AbstractContextManager[object],
    changes: dict[str, object],
) -> PreTrainedModel:
    class_name, values = {**ARCHITECTURES, **MORE}[name]
    model_class = getattr(transformers, class_name)
    config = model_class.config_class(**{**values, **changes})
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        with device, torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            model = model_class._from_config(config, dtype=dtype)
    finally:
        transformers.logging.set_verbosity(level)
    assert isinstance(model, PreTrainedModel)
    return model.eval()
