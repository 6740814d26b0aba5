"""From a model on meta to the graph that the solver sees: blocks in running order, bytes, work, reasons.

Reader: it looks at the live module and hands on plain structs. Owns the judgement of what was observed: which
block may stream, what the order is, and what to say where no forward could be run.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import msgspec
from transformers import PreTrainedModel

from bayplan.planner.model.activity import TraceTooLongError
from bayplan.planner.model.block_tensors import BlockTensors
from bayplan.planner.model.blocks import BlockSpec, declared_no_split, partition
from bayplan.planner.model.experts import ExpertsModule, block_experts, find_experts
from bayplan.planner.model.extrapolate import observe_any_length
from bayplan.planner.model.forwards import (
    ForwardFigures,
    Observation,
    TowerForward,
    can_generate,
    observe_module,
)
from bayplan.planner.model.inputs import attempts
from bayplan.planner.model.towers import observe_towers
from bayplan.planner.model.untraced import guess_figures
from bayplan.planner.model.workload import max_context
from bayplan.schemas.graph import BlockExperts, Edge, GraphBlock, ModelGraph, TensorRecord, Work
from bayplan.schemas.types import Reason
from bayplan.skeleton.config_file import FOREIGN_FAULTS
from bayplan.skeleton.tree import tree_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from bayplan.planner.model.library_inputs import LibraryInputs
    from bayplan.schemas.plan import Workload

_MAX_NOTE_CHARS = 160
# Addresses and paths would make the same plan other bytes on another machine.
_MACHINE_BOUND = re.compile(r"0x[0-9a-fA-F]+|(?<![\w.])/[\w.-]+(?:/[\w.-]+)+")


def trace_model(
    model: nn.Module, workload: Workload, *, no_split: Iterable[str] = (), inputs: LibraryInputs | None = None
) -> ModelGraph:
    """Return the graph of a model, from forwards on meta tensors where they can be run.

    Args:
        model: Parameters on meta, in eval mode. Its tensors are left as they were.
        workload: Batch and lengths that the figures are for.
        no_split: Class names that the user declares indivisible, instead of the model's own choice.
        inputs: Makes the inputs of a module that is no transformers model; None: they are not known.

    Returns: Blocks in the order of their first call. If no forward could be traced, the order is that of the
        module tree, `traced` is false and `trace_note` says why.

    Raises:
        UsageError: As `partition`.
        DtypeError: A tensor has a dtype that no checkpoint holds.
    """
    blocks = partition(model, no_split=no_split)
    observation, note = _observe_any(model, blocks, workload, inputs)
    tensors = BlockTensors.of(model, blocks)
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
        base = _base_bytes(observation)
        experts = find_experts(model, blocks)
        graph_blocks = tuple(
            _observed_block(index, blocks, listed, tensors, observation, base, experts.get(index))
            for index in order
        )
        edges = _edges(order, blocks, observation)
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
        declared_no_split=declared_no_split(model),
    )


def _observe_any(
    model: nn.Module, blocks: Sequence[BlockSpec], workload: Workload, inputs: LibraryInputs | None
) -> tuple[Observation | None, str]:
    """Return what the first way to call the model shows, or None and why the very first did not."""
    if not isinstance(model, PreTrainedModel):
        if inputs is None:
            return None, "the inputs of a module that is no transformers model are not known"
        try:
            return observe_module(model, blocks, inputs(workload.batch)), ""
        except FOREIGN_FAULTS as error:
            return None, _one_line(error)
    note = ""
    for attempt in attempts(model, workload.batch):
        try:
            observation = observe_any_length(model, blocks, workload, attempt)
        except TraceTooLongError as error:
            return None, str(error)  # No other inputs make it shorter.
        except FOREIGN_FAULTS as error:
            note = note or _one_line(error)
            continue
        called = {index for figures in _all_figures(observation) for index in figures.num_calls}
        towers = observe_towers(model, blocks, workload, attempt, called)
        return dataclasses.replace(observation, towers=towers), ""
    return None, note


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or "no message"
    text = _MACHINE_BOUND.sub("...", text)
    if len(text) > _MAX_NOTE_CHARS:
        text = f"{text[:_MAX_NOTE_CHARS]}..."
    return f"a forward on meta tensors fails with {type(error).__name__}: {text}"


def _running_order(blocks: Sequence[BlockSpec], observation: Observation) -> tuple[int, ...]:
    """Return block indices by first call, or by first read for what is never called.

    What only images or sound call comes before the first block that follows it there. A block that nothing
    calls or reads stays behind its neighbour in the tree.
    """
    order = _sequence(observation.filled or observation.prefill)
    for tower in observation.towers:
        known = set(order)
        waiting: list[int] = []
        last = -1
        for index in _sequence(tower.figures):
            if index not in known:
                waiting.append(index)
                continue
            last = order.index(index)
            order[last:last] = waiting
            last += len(waiting)
            waiting.clear()
        order[last + 1 : last + 1] = waiting
    for index in range(len(blocks)):
        if index not in order:
            place = order.index(index - 1) + 1 if index else 0
            order.insert(place, index)
    return tuple(order)


def _sequence(figures: ForwardFigures) -> list[int]:
    places = figures.first_read | figures.first_call
    return sorted(places, key=lambda index: (places[index], index))


def _static_reason(index: int, blocks: Sequence[BlockSpec], tensors: BlockTensors) -> Reason | None:
    """Return the reason not to stream a block that is known without a forward."""
    if tensors.tied_params.intersection(blocks[index].fqns):
        return Reason.TIED
    return Reason.OWN_TENSORS if blocks[index].is_own else None


def _observed_reason(
    index: int, blocks: Sequence[BlockSpec], tensors: BlockTensors, observation: Observation
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
    if index in _replaced_buffers(observation) or any(index in one.mutated for one in forwards):
        return Reason.MUTATED
    if not any(index in one.num_calls for one in _text_figures(observation)):
        return Reason.CONDITIONAL
    return None


def _replaced_buffers(observation: Observation) -> frozenset[int]:
    return observation.replaced_buffers.union(*(tower.replaced_buffers for tower in observation.towers))


def _text_figures(observation: Observation) -> list[ForwardFigures]:
    figures = (observation.prefill, observation.decode, observation.filled)
    return [one for one in figures if one is not None]


def _all_figures(observation: Observation) -> list[ForwardFigures]:
    return [*_text_figures(observation), *(tower.figures for tower in observation.towers)]


def _observed_block(
    index: int,
    blocks: Sequence[BlockSpec],
    listed: dict[int, tuple[TensorRecord, ...]],
    tensors: BlockTensors,
    observation: Observation,
    base_bytes: int,
    experts: ExpertsModule | None,
) -> GraphBlock:
    prefill = _prefill_work(index, observation, base_bytes)
    return _graph_block(
        blocks[index],
        listed[index],
        prefill,
        prefill if observation.decode is None else _work(index, observation.decode, base_bytes),
        kv_bytes=_kv_bytes(index, observation),
        resident_reason=_observed_reason(index, blocks, tensors, observation),
        num_calls=max(figures.num_calls.get(index, 0) for figures in _all_figures(observation)),
        experts=None if experts is None else _experts(index, experts, blocks, tensors, observation),
        copied_bytes=0 if observation.decode is None else observation.decode.copied_bytes.get(index, 0),
    )


def _experts(
    index: int,
    experts: ExpertsModule,
    blocks: Sequence[BlockSpec],
    tensors: BlockTensors,
    observation: Observation,
) -> BlockExperts | None:
    prefix = f"{experts.fqn}."
    if any(fqn.startswith(prefix) for fqn in tensors.tied_params.intersection(blocks[index].fqns)):
        return None  # Another part of the model needs them where it is.
    prefill = _prefill_figures(index, observation)
    return block_experts(
        index,
        experts,
        prefill=prefill,
        decode=prefill if observation.decode is None else observation.decode,
        forwards=_all_figures(observation),
    )


def _prefill_work(index: int, observation: Observation, base_bytes: int) -> Work:
    """Return what a prefill asks of a block: one with images where that is more, or the only one."""
    used = _prefill_figures(index, observation)
    work = _work(index, used, base_bytes)
    if index not in used.activation_bytes or any(used is tower.figures for tower in observation.towers):
        return work
    extra = max((_extra_bytes(index, tower, observation.prefill) for tower in observation.towers), default=0)
    return msgspec.structs.replace(work, activation_bytes=work.activation_bytes + extra)


def _prefill_figures(index: int, observation: Observation) -> ForwardFigures:
    """Return the forward whose work is a block's prefill."""
    # An encoder runs when the cache is filled and not again. What is read without a call has figures too.
    firsts = [one for one in (observation.prefill, observation.filled) if one is not None]
    towers = [tower.figures for tower in observation.towers]
    seen = (one for one in (*firsts, *towers) if index in one.activation_bytes)
    return next(seen, observation.prefill)


def _extra_bytes(index: int, tower: TowerForward, text: ForwardFigures) -> int:
    """Return what a block needs more in a prefill with images than in one of text."""
    if not (tower.is_whole and tower.fits):
        return 0
    seen = index if index in tower.figures.activation_bytes else tower.last
    more = tower.figures.activation_bytes[seen] - text.activation_bytes.get(seen, 0)
    return max(0, more)


def _kv_bytes(index: int, observation: Observation) -> int:
    """Return the cache of a block, after a prefill with images where text leaves it none."""
    if any(index in one.num_calls for one in _text_figures(observation)):
        return observation.kv_bytes.get(index, 0)
    return max((tower.kv_bytes.get(index, 0) for tower in observation.towers), default=0)


def _work(index: int, figures: ForwardFigures, base_bytes: int) -> Work:
    return Work(
        flops=figures.flops.get(index, 0),
        activation_bytes=max(0, figures.activation_bytes.get(index, 0) - base_bytes),
        output_bytes=figures.output_bytes.get(index, 0),
        num_operations=figures.operations.get(index, 0),
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
    experts: BlockExperts | None = None,
    copied_bytes: int = 0,
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
        experts=experts,
        copied_bytes=copied_bytes,
    )


def _edges(order: Sequence[int], blocks: Sequence[BlockSpec], observation: Observation) -> tuple[Edge, ...]:
    """Return what blocks hand to each other, in the order of the blocks that receive it."""
    first = observation.prefill.handed_bytes
    if observation.filled is not None:
        first = observation.filled.handed_bytes | first
    for tower in observation.towers:
        first = tower.figures.handed_bytes | first
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
    )


def _base_bytes(observation: Observation) -> int:
    """Return the bytes that are alive in every forward from the first block to the last."""
    return min(one.least_bytes for one in _all_figures(observation))
