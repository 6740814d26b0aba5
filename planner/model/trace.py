"""From a model on meta to the graph that the solver sees: blocks in running order, bytes, work, reasons.

Reader: it looks at the live module and hands on plain structs. Owns the judgement of what was observed: which
block may stream, what the order is, and what to say where no forward could be run.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from transformers import PreTrainedModel

from bayplan.planner.model.activity import TraceTooLongError
from bayplan.planner.model.blocks import BlockSpec, partition
from bayplan.planner.model.extrapolate import observe_extrapolated
from bayplan.planner.model.forwards import ForwardFigures, Observation, can_generate, observe
from bayplan.planner.model.inputs import attempts
from bayplan.planner.model.untraced import guess_figures
from bayplan.planner.model.workload import max_context
from bayplan.schemas.graph import Edge, GraphBlock, ModelGraph, TensorRecord, TiedGroup, Work
from bayplan.schemas.types import Reason
from bayplan.skeleton.tree import tensor_records, tie_groups, tree_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from bayplan.schemas.plan import Workload

# What the code of a model raises when it meets a tensor without values, or inputs that it was not made for.
_MODEL_ERRORS = (
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
_MAX_NOTE_CHARS = 160
# Addresses and paths would make the same plan other bytes on another machine.
_MACHINE_BOUND = re.compile(r"0x[0-9a-fA-F]+|(?<![\w.])/[\w.-]+(?:/[\w.-]+)+")


def trace_model(model: nn.Module, workload: Workload, *, no_split: Iterable[str] = ()) -> ModelGraph:
    """Return the graph of a model, from forwards on meta tensors where they can be run.

    Args:
        model: Parameters on meta, in eval mode. Its tensors are left as they were.
        workload: Batch and lengths that the figures are for.
        no_split: Class names that the user declares indivisible, instead of the model's own choice.

    Returns: Blocks in the order of their first call. If no forward could be traced, the order is that of the
        module tree, `traced` is false and `trace_note` says why.

    Raises:
        UsageError: As `partition`.
        DtypeError: A tensor has a dtype that no checkpoint holds.
    """
    blocks = partition(model, no_split=no_split)
    observation, note = _observe_any(model, blocks, workload)
    tensors = _Tensors.of(model, blocks)
    order = tuple(range(len(blocks))) if observation is None else _running_order(blocks, observation)
    listed = tensors.listed(order)
    if observation is None:
        guess = guess_figures(model, blocks, listed, workload)
        note = f"{note}{guess.note}"
        graph_blocks = tuple(
            _graph_block(
                blocks[index],
                listed[index],
                guess.prefill[index],
                guess.decode[index],
                kv_bytes=guess.kv_bytes.get(index, 0),
                # Without a forward nobody has seen when, or by whom, the weights are read.
                resident_reason=_static_reason(index, blocks, tensors) or Reason.UNTRACED,
            )
            for index in order
        )
        edges: tuple[Edge, ...] = ()
        base = guess.base_activation_bytes
    else:
        graph_blocks = tuple(_observed_block(index, blocks, listed, tensors, observation) for index in order)
        edges = _edges(order, blocks, observation)
        base = _base_bytes(observation, has_encoder=workload.encoder_context is not None)
    return ModelGraph(
        class_name=type(model).__name__,
        blocks=graph_blocks,
        edges=edges,
        ties=tensors.ties,
        tree_digest=tree_digest(model),
        num_params=tensors.num_params,
        generates=can_generate(model),
        max_context=max_context(model.config) if isinstance(model, PreTrainedModel) else None,
        traced=observation is not None,
        trace_note=note,
        base_activation_bytes=base,
    )


def _observe_any(
    model: nn.Module, blocks: Sequence[BlockSpec], workload: Workload
) -> tuple[Observation | None, str]:
    """Return what the first way to call the model shows, or None and why the very first did not."""
    if not isinstance(model, PreTrainedModel):
        return None, "the inputs of a module that is no transformers model are not known"
    note = ""
    for attempt in attempts(workload.batch):
        try:
            try:
                return observe(model, blocks, workload, attempt), ""
            except TraceTooLongError:
                return observe_extrapolated(model, blocks, workload, attempt), ""
        except TraceTooLongError as error:
            return None, str(error)  # No other inputs make it shorter.
        except _MODEL_ERRORS as error:
            note = note or _one_line(error)
    return None, note


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or "no message"
    text = _MACHINE_BOUND.sub("...", text)
    if len(text) > _MAX_NOTE_CHARS:
        text = f"{text[:_MAX_NOTE_CHARS]}..."
    return f"a forward on meta tensors fails with {type(error).__name__}: {text}"


@dataclasses.dataclass(kw_only=True)
class _Tensors:
    """The tensors of all blocks and which of them are one."""

    by_block: list[list[TensorRecord]]
    ties: tuple[TiedGroup, ...]
    tied_params: frozenset[str]
    num_params: int
    group_of: dict[str, int]

    @classmethod
    def of(cls, model: nn.Module, blocks: Sequence[BlockSpec]) -> _Tensors:
        block_of = {fqn: index for index, block in enumerate(blocks) for fqn in block.fqns}
        records = {record.fqn: record for record in tensor_records(model)}
        by_block: list[list[TensorRecord]] = [[] for _ in blocks]
        for record in records.values():
            by_block[block_of[record.fqn]].append(record)
        groups = tie_groups(model)
        group_of = {fqn: number for number, fqns in enumerate(groups) for fqn in fqns}
        firsts = {fqns[0] for fqns in groups}
        return cls(
            by_block=by_block,
            ties=tuple(TiedGroup(fqns=fqns, num_bytes=records[fqns[0]].num_bytes) for fqns in groups),
            tied_params=frozenset(fqn for fqn in group_of if not records[fqn].is_buffer),
            num_params=sum(
                _num_elements(record)
                for record in records.values()
                if not record.is_buffer and (record.fqn not in group_of or record.fqn in firsts)
            ),
            group_of=group_of,
        )

    def listed(self, order: Iterable[int]) -> dict[int, tuple[TensorRecord, ...]]:
        """Return the tensors that each block lists: of a tied group only the first in `order`."""
        seen: set[int] = set()
        listed: dict[int, tuple[TensorRecord, ...]] = {}
        for index in order:
            records = []
            for record in self.by_block[index]:
                group = self.group_of.get(record.fqn)
                if group is None or group not in seen:
                    records.append(record)
                if group is not None:
                    seen.add(group)
            listed[index] = tuple(records)
        return listed


def _num_elements(record: TensorRecord) -> int:
    count = 1
    for size in record.shape:
        count *= size
    return count


def _running_order(blocks: Sequence[BlockSpec], observation: Observation) -> tuple[int, ...]:
    """Return block indices by first call, or by first read for what is never called.

    A block that is neither stays behind its neighbour in the tree.
    """
    first = observation.filled or observation.prefill
    places: list[tuple[int, int]] = []
    place = -1
    for index in range(len(blocks)):
        read = first.first_read.get(index, place)
        place = first.first_call.get(index, read)
        places.append((place, index))
    return tuple(index for _, index in sorted(places))


def _static_reason(index: int, blocks: Sequence[BlockSpec], tensors: _Tensors) -> Reason | None:
    """Return the reason not to stream a block that is known without a forward."""
    if tensors.tied_params.intersection(blocks[index].fqns):
        return Reason.TIED
    return Reason.OWN_TENSORS if blocks[index].is_own else None


def _observed_reason(
    index: int, blocks: Sequence[BlockSpec], tensors: _Tensors, observation: Observation
) -> Reason | None:
    forwards = _all_figures(observation)
    reason = _static_reason(index, blocks, tensors)
    if reason is not None:
        return reason
    if any(index in one.used_outside for one in forwards):
        return Reason.USED_OUTSIDE
    num_calls = max(one.num_calls.get(index, 0) for one in forwards)
    if num_calls != 1:
        return Reason.REPEATED if num_calls else Reason.NOT_CALLED
    if index in observation.replaced_buffers or any(index in one.mutated for one in forwards):
        return Reason.MUTATED
    return None


def _all_figures(observation: Observation) -> list[ForwardFigures]:
    figures = (observation.prefill, observation.decode, observation.filled)
    return [one for one in figures if one is not None]


def _observed_block(
    index: int,
    blocks: Sequence[BlockSpec],
    listed: dict[int, tuple[TensorRecord, ...]],
    tensors: _Tensors,
    observation: Observation,
) -> GraphBlock:
    # An encoder runs when the cache is filled and not again.
    once = observation.filled if index not in observation.prefill.num_calls else None
    prefill = _work(index, once or observation.prefill)
    return _graph_block(
        blocks[index],
        listed[index],
        prefill,
        prefill if observation.decode is None else _work(index, observation.decode),
        kv_bytes=observation.kv_bytes.get(index, 0),
        resident_reason=_observed_reason(index, blocks, tensors, observation),
        num_calls=max(figures.num_calls.get(index, 0) for figures in _all_figures(observation)),
    )


def _work(index: int, figures: ForwardFigures) -> Work:
    return Work(
        flops=figures.flops.get(index, 0),
        activation_bytes=figures.activation_bytes.get(index, 0),
        output_bytes=figures.output_bytes.get(index, 0),
    )


def _graph_block(
    block: BlockSpec,
    tensors: tuple[TensorRecord, ...],
    prefill: Work,
    decode: Work,
    *,
    kv_bytes: int,
    resident_reason: Reason | None,
    num_calls: int = 1,
) -> GraphBlock:
    return GraphBlock(
        id=block.id,
        class_name=block.class_name,
        tensors=tensors,
        kv_bytes=kv_bytes,
        prefill=prefill,
        decode=decode,
        num_calls=num_calls,
        resident_reason=resident_reason,
    )


def _edges(order: Sequence[int], blocks: Sequence[BlockSpec], observation: Observation) -> tuple[Edge, ...]:
    """Return what blocks hand to others than their successor, in the order of the blocks that receive it."""
    first = observation.prefill.handed_bytes
    if observation.filled is not None:
        first = observation.filled.handed_bytes | first
    later = first if observation.decode is None else observation.decode.handed_bytes
    place = {index: number for number, index in enumerate(order)}
    pairs = sorted(first.keys() | later.keys(), key=lambda pair: (place[pair[1]], place[pair[0]]))
    return tuple(
        Edge(
            source=blocks[source].id,
            target=blocks[target].id,
            prefill_bytes=first.get((source, target), 0),
            decode_bytes=later.get((source, target), 0),
        )
        for source, target in pairs
        if place[source] + 1 != place[target]
    )


def _base_bytes(observation: Observation, *, has_encoder: bool) -> int:
    """Return the most bytes alive outside the blocks in any forward that a run makes.

    The forward that fills the cache before the last chunk is longer than any, and a run has none like it, but
    for the encoder, which works in it alone.
    """
    figures = [observation.prefill, observation.decode, observation.filled if has_encoder else None]
    return max(one.outside_bytes for one in figures if one is not None) + observation.excess_cache_bytes
