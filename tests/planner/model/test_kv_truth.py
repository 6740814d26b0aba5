"""Cache bytes of graphs against those of transformers' own cache objects after real forwards."""

from __future__ import annotations

import pytest
import torch
from live_bytes import run_forwards
from tiny_models import GENERATORS
from transformers import PreTrainedModel
from truth_models import (
    ENCODER_CONTEXT,
    MORE,
    build_meta,
    build_real,
    encoder_context,
    encoder_inputs,
)

from bayplan.planner.model.trace import trace_model
from bayplan.planner.model.workload import make_workload
from bayplan.schemas.graph import ModelGraph
from bayplan.skeleton.formats import short_dtype

NAMES = sorted({*GENERATORS, *MORE} - {"rwkv"})
"""All but RWKV, whose cache is no cache object of transformers."""


def trace(model: PreTrainedModel, context: int, *, batch: int = 1, chunk: int | None = None) -> ModelGraph:
    workload, _ = make_workload(
        model.config,
        batch=batch,
        context=context,
        encoder_context=encoder_context(model),
        prefill_chunk=chunk,
        dtype=short_dtype(model.dtype),
    )
    graph = trace_model(model, workload)
    assert graph.traced, graph.trace_note
    return graph


def real_bytes(model: PreTrainedModel, pieces: list[int], *, batch: int = 1) -> int:
    first = encoder_inputs(model, batch)
    return run_forwards(model, pieces, batch=batch, first=first, use_cache=True).cache


def planned_bytes(graph: ModelGraph) -> int:
    return sum(block.kv_bytes for block in graph.blocks)


@pytest.mark.parametrize("name", NAMES)
def test_contexts_below_and_above_windows(name: str) -> None:
    """Windows and chunks of these models are 8, so are the chunks of their state-space layers."""
    meta, real = build_meta(name), build_real(name)
    for context in (5, 8, 20):
        assert planned_bytes(trace(meta, context)) == real_bytes(real, [context])


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_in_the_dtype_of_the_cache(name: str) -> None:
    meta, real = build_meta(name, torch.bfloat16), build_real(name, torch.bfloat16)
    assert planned_bytes(trace(meta, 11, batch=3)) == real_bytes(real, [11], batch=3)


@pytest.mark.parametrize(
    "name", ["gemma3", "gemma3n", "gpt_oss", "jamba", "llama4", "mamba2", "qwen3_next", "t5"]
)
def test_a_context_filled_in_chunks_and_steps(name: str) -> None:
    meta, real = build_meta(name), build_real(name)
    assert planned_bytes(trace(meta, 18, chunk=7)) == real_bytes(real, [7, 7, 3, 1])


def per_layer(name: str, context: int, **changes: object) -> list[int]:
    graph = trace(build_meta(name, **changes), context)
    return [block.kv_bytes for block in graph.blocks if block.kv_bytes]


FP32 = 4
KEYS_AND_VALUES = 2 * 2 * 8 * FP32
"""Bytes of one position in a layer with two heads of 8."""


def test_windows_keep_one_position_less() -> None:
    """The position of the next token completes the window; how many have passed is counted in 8 bytes."""
    window = 7 * KEYS_AND_VALUES + 8
    assert per_layer("gpt_oss", 20) == [window, 20 * KEYS_AND_VALUES, window]
    short = 5 * KEYS_AND_VALUES
    assert per_layer("gpt_oss", 5) == [short + 8, short, short + 8]


def test_latent_attention_keeps_latents_and_rotated_keys() -> None:
    assert per_layer("deepseek_v3", 20) == [20 * (16 + 8) * FP32] * 3


def test_layers_that_share_keys_keep_none_of_their_own() -> None:
    assert len(per_layer("gemma3n", 20)) == 3


def test_states_do_not_grow_with_the_context() -> None:
    short, long = per_layer("qwen3_next", 10), per_layer("qwen3_next", 20)
    assert short[:2] == long[:2]
    assert long[2] == 2 * short[2] == 20 * KEYS_AND_VALUES


def test_cross_attention_keeps_the_encoders_positions() -> None:
    per_position = 2 * 32 * FP32
    assert per_layer("bart", 5) == [(5 + ENCODER_CONTEXT) * per_position] * 2
    assert per_layer("whisper", 5) == [(5 + 20) * per_position] * 2
