"""The graph of blocks, of real traces and of made-up circles."""

from __future__ import annotations

import networkx
import pytest
from sized_models import block, graph_of
from tiny_models import ARCHITECTURES, build, workload_for

from bayplan.planner.dag import CyclicGraphError, block_dag
from bayplan.planner.model.trace import trace_model
from bayplan.schemas.graph import Edge, ModelGraph


def traced(name: str) -> ModelGraph:
    model = build(name)
    return trace_model(model, workload_for(model, 12))


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_the_running_order_is_an_order_of_the_work(name: str) -> None:
    graph = traced(name)
    dag = block_dag(graph)
    order = networkx.lexicographical_topological_sort(dag, key=lambda node: dag.nodes[node]["order"])
    assert list(order) == [block.id for block in graph.blocks]


def test_nodes_and_edges_carry_what_the_graph_knows() -> None:
    graph = traced("t5")
    dag = block_dag(graph)
    number, layer = next(
        (number, block) for number, block in enumerate(graph.blocks) if block.id == "decoder.block.1"
    )
    assert dag.nodes["decoder.block.1"] == {
        "order": number,
        "num_bytes": layer.num_bytes,
        "kv_bytes": layer.kv_bytes,
        "prefill_flops": layer.prefill.flops,
        "decode_flops": layer.decode.flops,
    }
    assert dag.edges["encoder.final_layer_norm", "decoder.block.1"] == {
        "prefill_bytes": 12 * 32 * 4,
        "decode_bytes": 0,
    }
    assert dag.graph["ties"] == tuple(group.fqns for group in graph.ties) != ()
    assert dag.number_of_edges() == len(graph.edges)


def test_without_a_trace_the_blocks_are_a_chain() -> None:
    blocks = [block(name, activation_bytes=0) for name in "abc"]
    dag = block_dag(graph_of(*blocks, traced=False))
    assert list(dag.edges) == [("a", "b"), ("b", "c")]


def test_a_circle() -> None:
    edges = [("a", "b"), ("b", "c"), ("c", "b")]
    graph = graph_of(
        *(block(name) for name in "abc"),
        traced=True,
        edges=tuple(Edge(source=a, target=b, prefill_bytes=1, decode_bytes=1) for a, b in edges),
    )
    with pytest.raises(CyclicGraphError) as caught:
        block_dag(graph)
    assert str(caught.value) == (
        "blocks of the model use each other's work in a circle: got b -> c -> b,"
        " needed an order in which every block comes after those whose work it uses\n"
        "hint: keep them together: --no-split with the class that holds them all"
    )
