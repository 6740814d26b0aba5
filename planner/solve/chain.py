"""The chain that the solver places: blocks in execution order with what each costs, whatever holds it.

Made from a traced graph, or from the `problem` section of a plan, so that solving again needs no model.
Knows no device.
"""

from __future__ import annotations

from itertools import groupby

import msgspec

from bayplan.schemas.dtypes import parse_dtype
from bayplan.schemas.graph import GraphBlock, ModelGraph, TensorRecord, TiedGroup, Work
from bayplan.schemas.plan import BlockRun, Plan, PlannedEdge, aligned_bytes
from bayplan.schemas.types import OWN_SUFFIX, Fqn, NumBytes


class ChainTie(msgspec.Struct, frozen=True, kw_only=True):
    """A storage that several blocks use; its bytes are counted in the first of them."""

    positions: tuple[int, ...]
    """Blocks that use it, ascending."""
    num_bytes: NumBytes
    """Aligned."""


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be placed."""

    ids: tuple[Fqn, ...]
    exact_bytes: tuple[NumBytes, ...]
    """Per block, parameters and buffers without alignment."""
    costs: tuple[BlockRun, ...]
    """Per block, each with `count` 1."""
    ties: tuple[ChainTie, ...]
    edges: tuple[PlannedEdge, ...]
    base_activation_bytes: NumBytes
    scratch_bytes: NumBytes

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self.ids)


def chain_from_graph(graph: ModelGraph, *, scratch_bytes: int) -> Chain:
    """Return the chain of a traced model.

    Args:
        graph: Blocks in execution order, tensors in the data types in which they will be bound.
        scratch_bytes: What the reader needs besides slots.
    """
    tied = {block.id: _tied_bytes(block, graph.ties) for block in graph.blocks}
    place = {block.id: index for index, block in enumerate(graph.blocks)}
    return Chain(
        ids=tuple(block.id for block in graph.blocks),
        exact_bytes=tuple(block.num_bytes for block in graph.blocks),
        costs=tuple(_cost_of(block, tied[block.id]) for block in graph.blocks),
        ties=tuple(_chain_tie(graph, group) for group in graph.ties),
        edges=tuple(
            PlannedEdge(
                source=edge.source,
                target=edge.target,
                prefill_bytes=edge.prefill_bytes,
                decode_bytes=edge.decode_bytes,
            )
            for edge in graph.edges
            if place[edge.source] + 1 != place[edge.target]
        ),
        base_activation_bytes=graph.base_activation_bytes,
        scratch_bytes=scratch_bytes,
    )


def chain_from_plan(plan: Plan) -> Chain:
    """Return the chain that `plan` was made from; block ids and bytes come from its blocks."""
    ids = tuple(block.id for block in plan.blocks)
    return Chain(
        ids=ids,
        exact_bytes=tuple(block.num_bytes for block in plan.blocks),
        costs=unfold(plan.problem.runs),
        ties=tuple(
            ChainTie(
                positions=_positions(ids, tie.fqns),
                num_bytes=aligned_bytes(tie.num_bytes),
            )
            for tie in plan.ties
        ),
        edges=plan.problem.edges,
        base_activation_bytes=plan.problem.base_activation_bytes,
        scratch_bytes=plan.problem.scratch_bytes,
    )


def fold(chain: Chain) -> tuple[BlockRun, ...]:
    """Return the blocks' costs with neighbours that are alike folded into one run."""
    runs = []
    alike = groupby(chain.costs, key=lambda cost: msgspec.structs.replace(cost, first="", count=1))
    for _, members in alike:
        block = list(members)
        runs.append(msgspec.structs.replace(block[0], count=len(block)))
    return tuple(runs)


def unfold(runs: tuple[BlockRun, ...]) -> tuple[BlockRun, ...]:
    """Return one cost per block; only the first of a run keeps its true id in `first`."""
    return tuple(msgspec.structs.replace(run, count=1) for run in runs for _ in range(run.count))


def owning_block(ids: tuple[Fqn, ...], fqn: Fqn) -> Fqn | None:
    """Return the block that holds the tensor `fqn`: the longest module path, or its parent's own tensors."""
    parent = fqn.rpartition(".")[0]
    known = set(ids)
    if parent + OWN_SUFFIX in known:
        return parent + OWN_SUFFIX
    while parent and parent not in known:
        parent = parent.rpartition(".")[0]
    return parent if parent in known else None


def _positions(ids: tuple[Fqn, ...], fqns: tuple[Fqn, ...]) -> tuple[int, ...]:
    """Return which blocks hold `fqns`, ascending.

    A module registered under two paths is one block, under its first path: names under the other lie in none.
    """
    owners = {owning_block(ids, fqn) for fqn in fqns}
    return tuple(index for index, block_id in enumerate(ids) if block_id in owners)


def _chain_tie(graph: ModelGraph, group: TiedGroup) -> ChainTie:
    ids = tuple(block.id for block in graph.blocks)
    return ChainTie(
        positions=_positions(ids, group.fqns),
        num_bytes=aligned_bytes(group.num_bytes),
    )


def _tied_bytes(block: GraphBlock, ties: tuple[TiedGroup, ...]) -> int:
    """Return bytes of tied weights that `block` uses but an earlier block lists."""
    listed = {tensor.fqn for tensor in block.tensors}
    prefix = f"{block.id}."
    return sum(
        group.num_bytes
        for group in ties
        if any(fqn.startswith(prefix) for fqn in group.fqns) and listed.isdisjoint(group.fqns)
    )


def _cost_of(block: GraphBlock, tied_bytes: int) -> BlockRun:
    parameters = [tensor for tensor in block.tensors if not tensor.is_buffer]
    weight_bytes = sum(tensor.num_bytes for tensor in parameters) + tied_bytes
    return BlockRun(
        first=block.id,
        count=1,
        class_name=block.class_name,
        parameter_bytes=sum(aligned_bytes(tensor.num_bytes) for tensor in parameters),
        buffer_bytes=sum(aligned_bytes(tensor.num_bytes) for tensor in block.tensors if tensor.is_buffer),
        kv_bytes=block.kv_bytes,
        prefill_flops=block.prefill.flops,
        prefill_read_bytes=_read_bytes(block.prefill, weight_bytes, parameters, block.kv_bytes),
        decode_flops=block.decode.flops,
        decode_read_bytes=_read_bytes(block.decode, weight_bytes, parameters, block.kv_bytes),
        prefill_activation_bytes=block.prefill.activation_bytes,
        decode_activation_bytes=block.decode.activation_bytes,
        prefill_output_bytes=block.prefill.output_bytes,
        decode_output_bytes=block.decode.output_bytes,
        resident_reason=block.resident_reason,
    )


def _read_bytes(work: Work, weight_bytes: int, parameters: list[TensorRecord], kv_bytes: int) -> int:
    """Return the least bytes that the products of one call read.

    A weight that takes part in a product costs at least two operations, so operations bound how many
    weights can be used: a look-up table reads only the rows that it hands out, a mixture of experts only
    the routed ones.
    """
    if not work.flops:
        return min(weight_bytes, work.output_bytes)
    return min(weight_bytes, _bytes_of_weights(work.flops // 2, parameters)) + kv_bytes


def _bytes_of_weights(count: int, parameters: list[TensorRecord]) -> int:
    """Return the bytes of `count` weights of the widest kind that the block has; 4 each where it has none."""
    sizes = [
        count * -(-parse_dtype(tensor.dtype).num_bits // 8)
        for tensor in parameters
        if tensor.num_values is None
    ]
    sizes.extend(
        -(-count * tensor.num_bytes // tensor.num_values) for tensor in parameters if tensor.num_values
    )
    return max(sizes, default=4 * count)
