"""layers: which tensors are one layer, whatever format they are in."""

from __future__ import annotations

import msgspec
from sized_models import block, graph_of, record

from bayplan.planner.estimate.layers import Layers, total_bytes
from bayplan.schemas.graph import ModelGraph

KIB = 1024


def largest(graph: ModelGraph) -> tuple[str | None, int]:
    return Layers(graph).largest(graph.blocks)


def test_an_undivided_module_counts_as_a_whole() -> None:
    graph = graph_of(
        block("embed", record("embed.weight", 100)),
        block("layers.0", record("layers.0.a.weight", 60), record("layers.0.b.weight", 60)),
        declared_no_split=("layers.0",),
    )
    assert largest(graph) == ("layers.0", 240)


def test_without_such_modules_the_largest_leaf_counts() -> None:
    graph = graph_of(
        block("layers.0", record("layers.0.a.weight", 60), record("layers.0.a.bias", 2)),
        block("layers.1", record("layers.1.a.weight", 60), record("layers.1.b.weight", 61)),
    )
    assert largest(graph) == ("layers.0.a", 124)


def test_of_equal_layers_the_first_is_named() -> None:
    graph = graph_of(block("b", record("b.weight", 5)), block("a", record("a.weight", 5)))
    assert largest(graph) == ("b", 10)


def test_an_undivided_module_may_hold_several_blocks() -> None:
    graph = graph_of(
        block("tower.a", record("tower.a.weight", 10)),
        block("tower:own", record("tower.scale", 10)),
        block("head", record("head.weight", 15)),
        declared_no_split=("tower",),
    )
    assert largest(graph) == ("tower", 40)


def test_what_a_split_module_holds_itself_counts_tensor_by_tensor() -> None:
    graph = graph_of(
        block("vision:own", record("vision.classes", 30), record("vision.positions", 40)),
        block("vision.patches", record("vision.patches.weight", 35), record("vision.patches.bias", 4)),
    )
    assert largest(graph) == ("vision.positions", 80)


def test_tensors_of_the_root_count_one_by_one() -> None:
    graph = graph_of(block(":own", record("weight", 3), record("bias", 4)))
    assert largest(graph) == ("bias", 8)


def test_companions_of_a_quantized_weight_are_in_its_layer() -> None:
    own = graph_of(
        block("mlp", record("mlp.up.weight", 64), record("mlp.gate", 8)), block("x", record("x.weight", 9))
    )
    stored = (
        record("mlp.up.weight", 16),
        record("mlp.up.weight.absmax", 2),
        record("mlp.up.SCB", 3),
        record("mlp.gate", 8),
    )
    blocks = (msgspec.structs.replace(own.blocks[0], tensors=stored), own.blocks[1])
    assert Layers(own).largest(blocks) == ("mlp.up", 42)


def test_names_that_only_a_file_has_are_in_their_block() -> None:
    own = graph_of(block("layers.0", record("layers.0.a.weight", 4)), block("x", record("x.weight", 9)))
    stored = (record("transformer.h.0.a.weight", 5), record("transformer.h.0.a.scale", 6))
    blocks = (msgspec.structs.replace(own.blocks[0], tensors=stored), own.blocks[1])
    assert Layers(own).largest(blocks) == ("layers.0", 22)


def test_a_model_without_tensors_has_no_layer() -> None:
    graph = graph_of(block("nothing"))
    assert largest(graph) == (None, 0)
    assert total_bytes(graph) == 0
