from __future__ import annotations

import pytest
from tiny_models import build, workload_for

from bayplan.planner.model.blocks import partition
from bayplan.planner.model.trace import trace_model
from bayplan.planner.model.untraced import Guess, guess_figures
from bayplan.skeleton.tree import tensor_records

CONTEXT = 16


def guess(name: str, **changes: object) -> tuple[Guess, list[str]]:
    model = build(name, **changes)
    blocks = partition(model)
    records = {record.fqn: record for record in tensor_records(model)}
    tensors = {index: tuple(records[fqn] for fqn in block.fqns) for index, block in enumerate(blocks)}
    return guess_figures(model, blocks, tensors, workload_for(model, CONTEXT)), [block.id for block in blocks]


@pytest.mark.parametrize("name", ["llama", "opt", "qwen2_moe"])
def test_a_plain_cache_is_known_from_the_config(name: str) -> None:
    guessed, ids = guess(name)
    model = build(name)
    graph = trace_model(model, workload_for(model, CONTEXT))
    traced = {block.id: block.kv_bytes for block in graph.blocks if block.kv_bytes}
    assert {ids[index]: num_bytes for index, num_bytes in guessed.kv_bytes.items()} == traced
    assert guessed.note == ""


@pytest.mark.parametrize("name", ["gemma3", "gpt2", "mamba", "t5"])
def test_another_cache_is_said_to_be_unknown(name: str) -> None:
    guessed, _ = guess(name)
    assert guessed.kv_bytes == {}
    assert guessed.note == "; the size of its cache is not known and counted as nothing"


def test_nothing_is_unknown_where_nothing_is_generated() -> None:
    guessed, _ = guess("bert")
    assert (guessed.note, guessed.kv_bytes, guessed.decode) == ("", {}, guessed.prefill)


def test_work_is_that_of_the_parameters() -> None:
    guessed, ids = guess("llama")
    layer = ids.index("model.layers.0")
    params = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32
    assert guessed.prefill[layer].flops == 2 * params * CONTEXT
    assert guessed.decode[layer].flops == 2 * params


def test_operations_are_about_those_of_a_trace() -> None:
    model = build("llama")
    graph = trace_model(model, workload_for(model, CONTEXT))
    traced = {block.id: block.decode.num_operations for block in graph.blocks}["model.layers.0"]
    guessed, ids = guess("llama")
    assert abs(guessed.decode[ids.index("model.layers.0")].num_operations - traced) <= traced // 10


def test_activations_are_not_less_than_traced() -> None:
    model = build("llama")
    graph = trace_model(model, workload_for(model, CONTEXT))
    guessed, ids = guess("llama")
    traced = {block.id: block.prefill.activation_bytes for block in graph.blocks}
    layer = ids.index("model.layers.0")
    assert guessed.prefill[layer].activation_bytes >= traced["model.layers.0"] // 2
