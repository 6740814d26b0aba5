"""training: bytes of each recipe, the 8-bit optimizer's against the library itself."""

from __future__ import annotations

import msgspec
import pytest
import torch
from sized_models import (
    BUFFER_BYTES,
    INNER,
    LAYERS,
    NUM_PARAMS,
    WIDTH,
    block,
    graph_of,
    language_model,
    record,
)

from bayplan.planner.estimate.lora import adapter_shapes
from bayplan.planner.estimate.options import LoraOptions
from bayplan.planner.estimate.training import adam_8bit_bytes, full_recipes, lora_recipes
from bayplan.planner.stored_form import in_format
from bayplan.schemas.errors import UsageError
from bayplan.schemas.estimate import Recipe, TrainingEstimate
from bayplan.schemas.graph import ModelGraph, TensorRole

SIZES = [1, 4095, 4096, 4097, 70 * 70, 256 * 33]


def test_8bit_adam_is_what_bitsandbytes_allocates() -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    params = [torch.nn.Parameter(torch.ones(size)) for size in SIZES]
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer = bitsandbytes.optim.Adam8bit(params)
    optimizer.step()
    tensors = {
        id(value): value.nbytes
        for param in params
        for value in optimizer.state[param].values()
        if isinstance(value, torch.Tensor)
    }
    assert adam_8bit_bytes(SIZES) == sum(tensors.values())


def test_8bit_adam_of_small_tensors_keeps_no_codes() -> None:
    assert adam_8bit_bytes([10, 4095]) == 8 * 4105


def recipes(graph: ModelGraph) -> dict[Recipe, TrainingEstimate]:
    found = full_recipes(in_format(graph, "fp32"), in_format(graph, "bf16"))
    return {one.recipe: one for one in found}


def test_every_parameter_is_trained() -> None:
    found = recipes(language_model().graph)
    assert list(found) == [Recipe.ADAM, Recipe.MIXED_ADAM, Recipe.ADAM_8BIT]
    assert {one.trainable_params for one in found.values()} == {NUM_PARAMS}
    assert found[Recipe.ADAM].total_bytes == 16 * NUM_PARAMS + BUFFER_BYTES
    assert found[Recipe.MIXED_ADAM] == TrainingEstimate(
        recipe=Recipe.MIXED_ADAM,
        formula="16-bit weights and gradients, fp32 copy of each 16-bit weight, two fp32 moments",
        trainable_params=NUM_PARAMS,
        weights_bytes=2 * NUM_PARAMS + BUFFER_BYTES,
        master_bytes=4 * NUM_PARAMS,
        gradients_bytes=2 * NUM_PARAMS,
        optimizer_bytes=8 * NUM_PARAMS,
        total_bytes=16 * NUM_PARAMS + BUFFER_BYTES,
    )
    assert found[Recipe.ADAM_8BIT].weights_bytes == 4 * NUM_PARAMS + BUFFER_BYTES
    assert 2 * NUM_PARAMS < found[Recipe.ADAM_8BIT].optimizer_bytes < 3 * NUM_PARAMS


def test_what_the_class_keeps_in_fp32_has_no_copy() -> None:
    graph = graph_of(
        block("a", record("a.weight", 10), record("b.weight", 5)), kept_fp32={"bf16": ("b.weight",)}
    )
    found = recipes(graph)[Recipe.MIXED_ADAM]
    assert (found.weights_bytes, found.master_bytes, found.gradients_bytes) == (40, 40, 40)


def test_what_the_model_freezes_has_no_gradient() -> None:
    frozen = msgspec.structs.replace(record("p.weight", 100, 50), is_frozen=True)
    found = recipes(graph_of(block("a", record("a.weight", 3, 5)), block("p", frozen)))
    assert {one.trainable_params for one in found.values()} == {15}
    adam = found[Recipe.ADAM]
    assert (adam.weights_bytes, adam.gradients_bytes, adam.optimizer_bytes) == (4 * 5015, 60, 120)
    mixed = found[Recipe.MIXED_ADAM]
    assert (mixed.weights_bytes, mixed.master_bytes, mixed.gradients_bytes) == (2 * 5015, 60, 30)


def test_adapters_on_frozen_weights() -> None:
    graph = language_model().graph
    nf4 = in_format(graph, "nf4")
    found = lora_recipes(graph, in_format(graph, "bf16"), nf4, LoraOptions(rank=4, targets=()))
    num_params = LAYERS * 4 * (4 * (WIDTH + WIDTH) + 2 * (WIDTH + INNER))
    assert [one.recipe for one in found] == [Recipe.LORA, Recipe.QLORA]
    for one, base_bytes in zip(
        found, (2 * NUM_PARAMS + BUFFER_BYTES, sum(each.num_bytes for each in nf4.blocks)), strict=True
    ):
        assert one.trainable_params == num_params
        assert one.weights_bytes == base_bytes + 4 * num_params
        assert (one.master_bytes, one.gradients_bytes, one.optimizer_bytes) == (
            0,
            4 * num_params,
            8 * num_params,
        )
        assert one.total_bytes == base_bytes + 16 * num_params


def test_experts_in_one_tensor_get_no_adapters_and_the_formula_says_so() -> None:
    linear = record("a.weight", 3, 5, role=TensorRole.LINEAR)
    graph = graph_of(block("a", linear), block("x", record("x.experts", 4, 3, 5, role=TensorRole.EXPERTS)))
    lora = LoraOptions(rank=1, targets=())
    for one in lora_recipes(graph, graph, graph, lora):
        assert one.trainable_params == 5 + 3
        assert one.formula.endswith("and two moments; none for the experts, which are no linear modules")
    dense = lora_recipes(graph_of(graph.blocks[0]), graph, graph, lora)
    assert not any("experts" in one.formula for one in dense)


def test_targets_are_ends_of_names() -> None:
    graph = language_model().graph
    chosen = adapter_shapes(graph, LoraOptions(rank=2, targets=("q", "model.layers.1.mlp.up")))
    assert chosen == ((2, WIDTH), (WIDTH, 2)) * 2 + ((2, WIDTH), (INNER, 2)) + ((2, WIDTH), (WIDTH, 2))


def test_heads_get_adapters_only_by_name() -> None:
    graph = graph_of(
        block("a", record("a.weight", 3, 5, role=TensorRole.LINEAR)),
        block("kept", record("kept.weight", 3, 7, role=TensorRole.CONV1D)),
        block("head", record("head.weight", 9, 5, role=TensorRole.LINEAR)),
        unquantized=("kept.weight", "head.weight"),
        kept_fp32={"fp16": ("kept.weight",)},
    )
    assert adapter_shapes(graph, LoraOptions(rank=1, targets=())) == ((1, 5), (3, 1), (1, 7), (3, 1))
    assert adapter_shapes(graph, LoraOptions(rank=1, targets=("head",))) == ((1, 5), (9, 1))


def test_a_target_that_names_nothing() -> None:
    with pytest.raises(UsageError) as caught:
        adapter_shapes(language_model().graph, LoraOptions(rank=1, targets=("q", "q_proj")))
    assert str(caught.value) == (
        "--lora: the target names no linear layer: got 'q_proj', needed one of down, k, o, q, up, v"
    )


def test_no_linear_layer_at_all() -> None:
    graph = graph_of(block("a", record("a.weight", 3, 5)))
    with pytest.raises(UsageError) as caught:
        adapter_shapes(graph, LoraOptions(rank=1, targets=()))
    assert str(caught.value) == "--lora: the model has no linear layer to adapt: got HandMade, needed targets"
    with pytest.raises(UsageError) as caught:
        adapter_shapes(graph, LoraOptions(rank=1, targets=("a",)))
    assert str(caught.value) == (
        "--lora: the target names no linear layer: got 'a', needed a model with linear layers"
    )
