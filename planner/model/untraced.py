"""Figures for a model whose forward could not be run: from shapes alone, larger rather than smaller.

Owns the rules of thumb, all in one place, so that nobody takes them for measurements.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from torch import nn
from transformers import PreTrainedModel

from bayplan.planner.model.forwards import can_generate
from bayplan.schemas.dtypes import parse_dtype
from bayplan.schemas.graph import TensorRecord, Work

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import PreTrainedConfig

    from bayplan.planner.model.blocks import BlockSpec
    from bayplan.schemas.plan import Workload

# A Llama block has nine parameters and dispatches 43 operations in a step.
_OPERATIONS_PER_PARAMETER = 5

# Config fields of caches that are not keys and values of every position in every layer.
_OTHER_CACHE_FIELDS = (
    "attention_chunk_size",
    "kv_lora_rank",
    "layers_block_type",
    "linear_num_key_heads",
    "mamba_d_state",
    "num_kv_shared_layers",
    "ssm_state_size",
    "state_size",
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
        found = _kv_bytes(model.config, blocks, workload)
        if found is None:
            note = "; the size of its cache is not known and counted as nothing"
        else:
            kv_bytes = found
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
        num_operations=_OPERATIONS_PER_PARAMETER * len(params),
    )


def _kv_bytes(
    config: PreTrainedConfig, blocks: Sequence[BlockSpec], workload: Workload
) -> dict[int, int] | None:
    """Return the cache of each layer; None unless every layer keeps keys and values of all positions."""
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder or any(getattr(text, field, None) for field in _OTHER_CACHE_FIELDS):
        return None
    layer_types = getattr(text, "layer_types", None)
    if layer_types is None and getattr(text, "sliding_window", None) is not None:
        return None
    if layer_types is not None and set(layer_types) != {"full_attention"}:
        return None
    item_bytes = parse_dtype(workload.kv_dtype).num_bits // 8
    kv_bytes = {}
    for index, block in enumerate(blocks):
        widths = [
            projection.out_features
            for name, projection in block.module.named_modules()
            if name.rpartition(".")[2] in ("k_proj", "v_proj") and isinstance(projection, nn.Linear)
        ]
        if len(widths) == 2:
            kv_bytes[index] = workload.batch * workload.context * sum(widths) * item_bytes
    return kv_bytes if len(kv_bytes) == getattr(text, "num_hidden_layers", None) else None
