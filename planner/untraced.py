"""Figures for a model whose forward could not be run: from shapes alone, larger rather than smaller.

Owns the rules of thumb, all in one place, so that nobody takes them for measurements.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from transformers import PreTrainedModel

from bayplan.planner.forwards import can_generate
from bayplan.schemas.dtypes import parse_dtype
from bayplan.schemas.graph import TensorRecord, Work

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn
    from transformers import PreTrainedConfig

    from bayplan.planner.blocks import BlockSpec
    from bayplan.schemas.plan import Workload

# Config fields of caches that are not keys and values of every position in every layer.
_OTHER_CACHE_FIELDS = (
    "kv_lora_rank",
    "layer_types",
    "layers_block_type",
    "mamba_d_state",
    "num_kv_shared_layers",
    "sliding_window",
    "ssm_state_size",
    "state_size",
    "linear_num_key_heads",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guess:
    """Figures by block index."""

    prefill: Mapping[int, Work]
    decode: Mapping[int, Work]
    kv_bytes: Mapping[int, int]
    base_activation_bytes: int
    note: str
    """What is not known, to be added to the trace note; empty: nothing is missing."""


def guess_figures(
    model: nn.Module,
    blocks: Sequence[BlockSpec],
    tensors: Mapping[int, tuple[TensorRecord, ...]],
    workload: Workload,
) -> Guess:
    """Return figures from the shapes of the weights and the config.

    Every parameter is taken to be multiplied once with every position, and all outputs of a block's matrices
    to be alive at once.

    Args:
        model: The model.
        blocks: Its partition.
        tensors: By block index.
        workload: Batch and lengths.
    """
    num_positions = workload.batch * max(workload.prefill_chunk, workload.encoder_context or 0)
    prefill = {index: _work(tensors[index], num_positions) for index in range(len(blocks))}
    decode = prefill
    kv_bytes: dict[int, int] = {}
    note = ""
    if can_generate(model):
        decode = {index: _work(tensors[index], workload.batch) for index in range(len(blocks))}
        assert isinstance(model, PreTrainedModel)
        layers = [index for index, block in enumerate(blocks) if _is_layer(block)]
        layer_bytes = _layer_kv_bytes(model.config, len(layers), workload)
        if layer_bytes is None:
            note = "; the size of its cache is not known and counted as nothing"
        else:
            kv_bytes = dict.fromkeys(layers, layer_bytes)
    return Guess(
        prefill=prefill,
        decode=decode,
        kv_bytes=kv_bytes,
        base_activation_bytes=max((work.output_bytes for work in prefill.values()), default=0),
        note=note,
    )


def _work(tensors: Sequence[TensorRecord], num_positions: int) -> Work:
    params = [record for record in tensors if not record.is_buffer]
    num_elements = outputs = width = 0
    for record in params:
        size = 1
        for length in record.shape:
            size *= length
        num_elements += size
        if len(record.shape) > 1:
            item_bytes = parse_dtype(record.dtype).num_bits // 8
            outputs += max(record.shape[-2:]) * item_bytes
            width = max(width, min(record.shape[-2:]) * item_bytes)
    return Work(
        flops=2 * num_elements * num_positions,
        activation_bytes=(outputs + width) * num_positions,
        output_bytes=width * num_positions,
    )


def _is_layer(block: BlockSpec) -> bool:
    """Return whether the block is a layer with a cache: its attention knows its own number."""
    return any(isinstance(getattr(module, "layer_idx", None), int) for module in block.module.modules())


def _layer_kv_bytes(config: PreTrainedConfig, num_layers: int, workload: Workload) -> int | None:
    """Return the bytes of keys and values of one layer; None if layers may differ."""
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder or any(getattr(text, field, None) for field in _OTHER_CACHE_FIELDS):
        return None
    num_heads = getattr(text, "num_attention_heads", None)
    hidden_size = getattr(text, "hidden_size", None)
    if not isinstance(num_heads, int) or not isinstance(hidden_size, int):
        return None
    if getattr(text, "num_hidden_layers", None) != num_layers:
        return None
    num_kv_heads = getattr(text, "num_key_value_heads", None) or num_heads
    head_dim = getattr(text, "head_dim", None) or hidden_size // num_heads
    item_bytes = parse_dtype(workload.kv_dtype).num_bits // 8
    return int(2 * workload.batch * workload.context * num_kv_heads * head_dim * item_bytes)
