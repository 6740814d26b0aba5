"""The chain that the solver places: blocks in execution order with what each costs, whatever holds it.

Made from a traced graph and the forms of its blocks, or from the `problem` section of a plan, so that solving
again needs no model. Knows no device.
"""

from __future__ import annotations

from itertools import groupby

import msgspec

from bayplan.planner.block_owner import owning_block
from bayplan.planner.solve.margins import activation_bounds
from bayplan.schemas.graph import GraphBlock, ModelGraph
from bayplan.schemas.plan import Plan, Workload, aligned_bytes
from bayplan.schemas.problem import BlockForm, BlockRun, PlannedEdge
from bayplan.schemas.types import Fqn, NumBytes


class ChainTie(msgspec.Struct, frozen=True, kw_only=True):
    """A storage that several blocks use; its bytes are counted in the first of them."""

    positions: tuple[int, ...]
    """Blocks that use it, ascending."""
    num_bytes: NumBytes
    """Aligned."""


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be placed."""

    ids: tuple[Fqn, ...]
    costs: tuple[BlockRun, ...]
    """Per block, each with `count` 1."""
    kinds: dict[str, str]
    """Kind of each format that a form names."""
    ties: tuple[ChainTie, ...]
    edges: tuple[PlannedEdge, ...]
    base_activation_bytes: NumBytes
    scratch_bytes: NumBytes
    decode_tokens: int = 1
    """Positions of one decoding step, over all rows of the batch."""
    prefill_tokens: int = 1
    """Positions of one prefill chunk."""
    num_batches: int = 1
    """In flight: blocks hold a cache for each, and a call reads that of one."""

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self.ids)

    def activation_bytes(self, peak_bytes: int) -> int:
        """Return what a device is to reserve for activations whose most demanding block has this peak."""
        return activation_bounds(self.base_activation_bytes + peak_bytes)[1]

    def replica_bytes(self, start: int, index: int) -> int:
        """Return bytes of tied storages that come on top where blocks from `start` on are joined by `index`.

        Those that it uses, and that neither it nor any of the others holds already.
        """
        return sum(
            tie.num_bytes
            for tie in self.ties
            if index in tie.positions[1:] and not any(start <= own < index for own in tie.positions)
        )


def peak_bytes(cost: BlockRun, form: BlockForm, *, copies: bool = True) -> int:
    """Return what is alive at most while a block runs, beyond the chain's `base_activation_bytes`.

    Args:
        cost: The block.
        form: Which of its forms it has.
        copies: Whether a step may copy experts. Where any are apart from their block, none are copied.
    """
    decode_bytes = cost.decode_activation_bytes + (form.copied_bytes if copies else 0)
    return max(cost.prefill_activation_bytes, decode_bytes) + form.workspace_bytes


def chain_from_graph(
    graph: ModelGraph,
    forms: tuple[tuple[BlockForm, ...], ...],
    kinds: dict[str, str],
    workload: Workload,
    *,
    scratch_bytes: int,
) -> Chain:
    """Return the chain of a traced model.

    Args:
        graph: Blocks in execution order.
        forms: Per block, what it takes in each format that it may be in; the first is the model's own.
        kinds: Kind of each format.
        workload: Says how many positions a call has.
        scratch_bytes: What the reader needs besides slots.
    """
    ids = tuple(block.id for block in graph.blocks)
    place = {block_id: index for index, block_id in enumerate(ids)}
    return Chain(
        ids=ids,
        costs=tuple(_cost_of(block, own) for block, own in zip(graph.blocks, forms, strict=True)),
        kinds=kinds,
        ties=tuple(
            ChainTie(positions=tied_positions(ids, group.fqns), num_bytes=aligned_bytes(group.num_bytes))
            for group in graph.ties
        ),
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
        decode_tokens=workload.batch,
        prefill_tokens=workload.batch * workload.prefill_chunk,
    )


def chain_from_plan(plan: Plan) -> Chain:
    """Return the chain that `plan` was made from; block ids come from its blocks."""
    ids = tuple(block.id for block in plan.blocks)
    return Chain(
        ids=ids,
        costs=unfold(plan.problem.runs),
        kinds={name: form.kind for name, form in plan.formats.items()},
        ties=tuple(
            ChainTie(positions=tied_positions(ids, tie.fqns), num_bytes=aligned_bytes(tie.num_bytes))
            for tie in plan.ties
        ),
        edges=plan.problem.edges,
        base_activation_bytes=plan.problem.base_activation_bytes,
        scratch_bytes=plan.problem.scratch_bytes,
        decode_tokens=plan.workload.batch,
        prefill_tokens=plan.workload.batch * plan.workload.prefill_chunk,
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


def tied_positions(ids: tuple[Fqn, ...], fqns: tuple[Fqn, ...]) -> tuple[int, ...]:
    """Return which blocks hold `fqns`, ascending.

    A module registered under two paths is one block, under its first path: names under the other lie in none.
    """
    known = frozenset(ids)
    owners = {owning_block(known, fqn) for fqn in fqns}
    return tuple(index for index, block_id in enumerate(ids) if block_id in owners)


def _cost_of(block: GraphBlock, forms: tuple[BlockForm, ...]) -> BlockRun:
    return BlockRun(
        first=block.id,
        count=1,
        class_name=block.class_name,
        forms=forms,
        kv_bytes=block.kv_bytes,
        prefill_flops=block.prefill.flops,
        decode_flops=block.decode.flops,
        prefill_operations=block.prefill.num_operations,
        decode_operations=block.decode.num_operations,
        prefill_activation_bytes=block.prefill.activation_bytes,
        decode_activation_bytes=block.decode.activation_bytes,
        prefill_output_bytes=block.prefill.output_bytes,
        decode_output_bytes=block.decode.output_bytes,
        resident_reason=block.resident_reason,
        # Of a run's blocks only the first keeps its name, and the module's name says no more than that.
        experts=None if block.experts is None else msgspec.structs.replace(block.experts, module=""),
    )
