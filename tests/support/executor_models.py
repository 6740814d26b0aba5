"""Small random checkpoints, saved as transformers saves them, and what transformers computes from them."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

NUM_LAYERS = 5
LAYERS = tuple(f"model.layers.{number}" for number in range(NUM_LAYERS))
TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35], [27, 18, 28, 18, 28, 45]])


def save_llama(
    folder: Path,
    *,
    tied: bool = False,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    seed: int = 0,
    hidden_size: int = 64,
    vocab_size: int = 128,
) -> Path:
    """Save a random Llama of `NUM_LAYERS` layers; return its folder."""
    config = LlamaConfig(
        hidden_size=hidden_size,
        intermediate_size=96,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocab_size,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        pad_token_id=0,
        eos_token_id=2,
    )
    return save(LlamaForCausalLM, config, folder, dtype=dtype, max_shard_size=max_shard_size, seed=seed)


def save(
    model_class: type[PreTrainedModel],
    config: object,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    seed: int = 0,
) -> Path:
    """Save a random model of a class; return its folder."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(config).to(dtype)
        with torch.no_grad():
            for param in model.parameters():
                # Larger than the initialization, so that outputs differ between positions and steps.
                param.copy_(torch.randn(param.shape) * 0.3)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def reference(model_class: type[PreTrainedModel], folder: Path, **options: object) -> PreTrainedModel:
    """Return the model of `from_pretrained` with aligned parameters, as equality is defined."""
    model = model_class.from_pretrained(folder, **options)
    for param in model.parameters():
        param.data = param.data.clone()
    return model
