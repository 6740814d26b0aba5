"""Runs a model's forwards on meta tensors and measures each block in them: prefill, then one step on a full cache.

Owns the hooks, the order of the runs and the figures taken from their logs. Does not judge them: `trace` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from transformers.modeling_outputs import BaseModelOutput

from bayplan.planner.activity import ActivityMode, Event, ForwardLog, storage_key
from bayplan.planner.cache_tensors import CACHE_ARGUMENTS, cache_tensors, find_cache
from bayplan.planner.footprint import call_peaks, outside_peak
from bayplan.planner.inputs import Attempt, accepts, is_encoder_decoder, make_inputs
from bayplan.planner.operations import FusedAttentionMode
from bayplan.skeleton.tree import named_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn
    from transformers import PreTrainedModel

    from bayplan.planner.blocks import BlockSpec
    from bayplan.schemas.plan import Workload


@dataclasses.dataclass(kw_only=True)
class ForwardFigures:
    """What one forward was seen to do; blocks are named by their index in the partition."""

    log: ForwardLog
    activation_bytes: dict[int, int]
    """Block to the most bytes that a call of it needs."""
    outside_bytes: int
    """Most bytes alive while no block is called, the cache left out."""


@dataclasses.dataclass(kw_only=True)
class Observation:
    """What all forwards together were seen to do."""

    prefill: ForwardFigures
    decode: ForwardFigures | None
    """None: the model does not generate."""
    filled: ForwardFigures | None
    """The forward that filled the cache before `prefill`; None where that began with none."""
    kv_bytes: dict[int, int]
    """Block to the bytes that the cache holds for it at the full context."""
    replaced_buffers: frozenset[int]
    """Blocks with a buffer for which a forward put another."""
    excess_cache_bytes: int
    """Bytes of storages that the cache keeps alive on top of its own, such as all positions behind a window."""


def observe(
    model: PreTrainedModel, blocks: Sequence[BlockSpec], workload: Workload, attempt: Attempt
) -> Observation:
    """Run the forwards of a workload on meta tensors.

    Args:
        model: Parameters on meta, in eval mode. It is left as it was.
        blocks: Partition of the model.
        workload: Batch and lengths.
        attempt: Which inputs to pass.

    Returns:
        Figures of the last prefill chunk and, for a model that generates, of one decode step.

    Raises:
        TraceTooLongError: A forward takes too many operations.
        UnknownInputsError: As `make_inputs`.
    """
    with _buffers_on_meta(model), contextlib.ExitStack() as stack:
        owners, buffers = _owners(model, blocks)
        before = {key: tensor for key, tensor in _buffer_objects(model, blocks)}
        mode = ActivityMode(owners, buffers)
        for index, block in enumerate(blocks):
            if not block.is_own:
                _watch(block.module, index, mode, stack)
        stack.enter_context(torch.no_grad())
        if attempt.meta_factories:
            stack.enter_context(torch.device("meta"))
        stack.enter_context(FusedAttentionMode())
        stack.enter_context(mode)
        runs = _Runs(model, workload, attempt, mode)
        generates = can_generate(model)
        chunk = workload.prefill_chunk if generates else workload.context
        filled, prefill = runs.run(workload.context - chunk, chunk)
        kv_bytes, excess = runs.cache_bytes()
        runs.forget()
        decode = None
        if generates:
            _, decode = runs.run(workload.context - 1, 1)
            runs.forget()
        replaced = {block for key, tensor in before.items() if _changed(model, key, tensor) for block in key[1]}
    return Observation(
        prefill=prefill,
        decode=decode,
        filled=filled,
        kv_bytes=kv_bytes,
        replaced_buffers=frozenset(replaced),
        excess_cache_bytes=excess,
    )
