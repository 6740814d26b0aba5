"""Small random checkpoints that transformers saves, the same bytes every time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

if TYPE_CHECKING:
    from pathlib import Path


def tiny_llama(
    folder: Path,
    *,
    tied: bool = False,
    shards: int = 1,
    dtype: torch.dtype = torch.float32,
    layers: int = 4,
    seed: int = 0,
) -> Path:
    """Save a Llama of 64 tokens, width 32 and at most 128 positions, and return its folder.

    Args:
        folder: Where to; created if need be.
        tied: Whether the head is the embedding.
        shards: Files to spread the tensors over, with an index if more than one.
        dtype: Of every parameter.
        layers: Decoder layers, each 9,280 parameters.
        seed: Another one gives other weights of the same shapes.
    """
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return _save(LlamaForCausalLM, config, folder, shards=shards, dtype=dtype, seed=seed)


def tiny_bert(
    folder: Path,
    *,
    shards: int = 1,
    dtype: torch.dtype = torch.float32,
    layers: int = 4,
    seed: int = 0,
) -> Path:
    """Save a Bert of 64 tokens and width 32, which does not generate, and return its folder."""
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=128,
    )
    return _save(BertModel, config, folder, shards=shards, dtype=dtype, seed=seed)


def _save(
    model_class: type[PreTrainedModel],
    config: LlamaConfig | BertConfig,
    folder: Path,
    *,
    shards: int,
    dtype: torch.dtype,
    seed: int,
) -> Path:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = model_class(config)
    model.to(dtype=dtype)
    model.config.dtype = dtype
    model.save_pretrained(folder, max_shard_size=_shard_bytes(model, shards))
    saved = len(list(folder.glob("*.safetensors")))
    assert saved == shards, f"{saved} shards"
    return folder


def _shard_bytes(model: PreTrainedModel, shards: int) -> int:
    """Return the smallest file size at which the tensors, kept in order, take `shards` files."""
    state = model.state_dict()
    total: int = sum(tensor.nbytes for tensor in state.values())
    shard_bytes = total // shards
    while (
        len(split_torch_state_dict_into_shards(state, max_shard_size=shard_bytes).filename_to_tensors)
        > shards
    ):
        shard_bytes += total // 100
    return shard_bytes
