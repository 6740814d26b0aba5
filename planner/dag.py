"""The graph of blocks as networkx knows graphs: for questions that a chain cannot answer.

Owns the translation of a `ModelGraph`. Nothing that only shows or compares plans imports it, because networkx
takes its time to load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import networkx

from bayplan.schemas.errors import BayplanError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bayplan.schemas.graph import ModelGraph

_MAX_BLOCKS_SHOWN = 8


class CyclicGraphError(BayplanError):
    """Blocks hand their work to each other in a circle, so no order of them is an order of the work."""


def block_dag(graph: ModelGraph) -> networkx.DiGraph[str]:
    """Return the blocks and what they hand to each other.

    Args:
        graph: A model's graph. Where it was not traced, each block is taken to hand its output to the next.

    Returns: A graph whose nodes are block ids with the attributes `order`, the place in the running order,
        `num_bytes`, `kv_bytes`, `prefill_flops` and `decode_flops`; whose edges have `prefill_bytes` and
        `decode_bytes`; and whose attribute `ties` holds the names of each tied storage. Sorted topologically
        by `order`, the nodes are in the running order.

    Raises:
        CyclicGraphError: A block that is called more than once uses what was made from its own work.
    """
    dag: networkx.DiGraph[str] = networkx.DiGraph(ties=tuple(group.fqns for group in graph.ties))
    for order, block in enumerate(graph.blocks):
        dag.add_node(
            block.id,
            order=order,
            num_bytes=block.num_bytes,
            kv_bytes=block.kv_bytes,
            prefill_flops=block.prefill.flops,
            decode_flops=block.decode.flops,
        )
    for source, target, prefill_bytes, decode_bytes in _handed(graph):
        dag.add_edge(source, target, prefill_bytes=prefill_bytes, decode_bytes=decode_bytes)
    _check(dag)
    return dag


def _handed(graph: ModelGraph) -> Iterator[tuple[str, str, int, int]]:
    """Yield source, target and bytes of prefill and decode."""
    if graph.traced:
        for edge in graph.edges:
            yield edge.source, edge.target, edge.prefill_bytes, edge.decode_bytes
        return
    for block, following in zip(graph.blocks, graph.blocks[1:], strict=False):
        yield block.id, following.id, block.prefill.output_bytes, block.decode.output_bytes


def _check(dag: networkx.DiGraph[str]) -> None:
    try:
        circle = [source for source, _ in networkx.find_cycle(dag)]
    except networkx.NetworkXNoCycle:
        return
    shown = [*circle[:_MAX_BLOCKS_SHOWN], *(["..."] if len(circle) > _MAX_BLOCKS_SHOWN else []), circle[0]]
    raise CyclicGraphError(
        "blocks of the model use each other's work in a circle",
        got=" -> ".join(shown),
        needed="an order in which every block comes after those whose work it uses",
        hint="keep them together: --no-split with the class that holds them all",
    )
