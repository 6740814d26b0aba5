"""Runs a model's forwards on meta tensors and measures each block: prefill, then a step on a full cache.

Owns the hooks, the order of the runs and the figures taken from their logs. Does not judge them: `trace`
does.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel
from transformers.generation.utils import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput

from bayplan.planner.model.activity import ActivityMode, ForwardLog, storage_key
from bayplan.planner.model.cache_tensors import cache_tensors, find_cache
from bayplan.planner.model.footprint import call_peaks, outside_peak
from bayplan.planner.model.inputs import Attempt, accepts, is_encoder_decoder, make_inputs
from bayplan.planner.model.operations import FusedAttentionMode
from bayplan.planner.model.workload import max_context
from bayplan.skeleton.tree import named_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from bayplan.planner.model.blocks import BlockSpec
    from bayplan.schemas.plan import Workload


@dataclasses.dataclass(kw_only=True)
class ForwardFigures:
    """What one forward was seen to do; blocks are named by their index in the partition."""

    flops: dict[int, int]
    activation_bytes: dict[int, int]
    """The most that a call of the block needs on top of what was alive before."""
    output_bytes: dict[int, int]
    handed_bytes: dict[tuple[int, int], int]
    """(block that made it, block that used it) to bytes."""
    outside_bytes: int
    """Most bytes alive while no block is called, the cache left out."""
    num_calls: dict[int, int]
    first_call: dict[int, int]
    """Numbers that grow with time; blocks that were not called are not in it."""
    first_read: dict[int, int]
    """Likewise, of the first read of a tensor of the block."""
    used_outside: frozenset[int]
    mutated: frozenset[int]


@dataclasses.dataclass(kw_only=True)
class Observation:
    """What all forwards together were seen to do."""

    prefill: ForwardFigures
    decode: ForwardFigures | None
    """None: the model does not generate."""
    filled: ForwardFigures | None
    """The forward that filled the cache before `prefill`; None where that began with none."""
    kv_bytes: dict[int, int]
    """Block to the bytes that the cache holds for it at the full context."""
    replaced_buffers: frozenset[int]
    """Blocks with a buffer for which a forward put another."""
    excess_cache_bytes: int
    """Bytes that the cache keeps alive on top of its own, such as the positions behind a window."""


def observe(
    model: PreTrainedModel, blocks: Sequence[BlockSpec], workload: Workload, attempt: Attempt
) -> Observation:
    """Run the forwards of a workload on meta tensors.

    Args:
        model: Parameters on meta, in eval mode. Its tensors are left as they were.
        blocks: Partition of the model.
        workload: Batch and lengths.
        attempt: Which inputs to pass.

    Returns:
        Figures of the last prefill chunk and, for a model that generates, of one decode step.

    Raises:
        TraceTooLongError: A forward takes too many operations.
        UnknownInputsError: As `make_inputs`.
    """
    with buffers_on_meta(model) as twins, contextlib.ExitStack() as stack:
        block_of = {fqn: index for index, block in enumerate(blocks) for fqn in block.fqns}
        mode = ActivityMode(_owners(model, block_of), frozenset(map(storage_key, twins.values())))
        for index, block in enumerate(blocks):
            if not block.is_own:
                _watch(block.module, index, mode, stack)
        stack.enter_context(torch.no_grad())
        if attempt.meta_factories:
            stack.enter_context(torch.device("meta"))
        stack.enter_context(FusedAttentionMode())
        stack.enter_context(mode)
        runs = _Runs(model, workload, attempt, mode)
        chunk = workload.prefill_chunk if can_generate(model) else workload.context
        filled = runs.forward(workload.context - chunk) if chunk < workload.context else None
        prefill = runs.forward(chunk)
        kv_bytes, excess = runs.cache_bytes()
        decode = None
        if can_generate(model) and not kv_bytes:
            decode = prefill  # Without a cache every step is a forward over everything.
        elif can_generate(model):
            if workload.context == max_context(model.config):
                # Tables of positions end here: the step is the one that completes the context.
                runs.reset()
                if workload.context > 1:
                    runs.forward(workload.context - 1)
            decode = runs.forward(1)
        replaced = {block_of[fqn] for fqn, twin in twins.items() if _tensor_at(model, fqn) is not twin}
    return Observation(
        prefill=prefill,
        decode=decode,
        filled=filled,
        kv_bytes=kv_bytes,
        replaced_buffers=frozenset(replaced),
        excess_cache_bytes=excess,
    )


def can_generate(model: nn.Module) -> bool:
    """Return whether `generate()` makes sense for the model's class."""
    if not isinstance(model, PreTrainedModel):
        return False
    return isinstance(model, GenerationMixin) and bool(model.can_generate())


@contextlib.contextmanager
def buffers_on_meta(model: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Put meta twins in the place of all buffers, so that a forward can neither read nor change their values.

    Yields:
        The twins under every name of a buffer; shared buffers share a twin.
    """
    modules = list(model.modules())
    saved = [(dict(module._buffers), set(module._non_persistent_buffers_set)) for module in modules]
    twins: dict[int, torch.Tensor] = {}
    for module in modules:
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = twins.setdefault(id(buffer), buffer.to("meta", copy=True))
    try:
        yield {named.fqn: named.tensor for named in named_tensors(model) if named.is_buffer}
    finally:
        for module, (buffers, non_persistent) in zip(modules, saved, strict=True):
            module._buffers.clear()
            module._buffers.update(buffers)
            module._non_persistent_buffers_set.clear()
            module._non_persistent_buffers_set.update(non_persistent)


def _owners(model: nn.Module, block_of: dict[str, int]) -> dict[int, frozenset[int]]:
    """Return the blocks of every parameter and buffer by storage; tied ones have several."""
    owners: dict[int, set[int]] = defaultdict(set)
    for named in named_tensors(model):
        owners[storage_key(named.tensor)].add(block_of[named.fqn])
    return {key: frozenset(indices) for key, indices in owners.items()}


def _tensor_at(model: nn.Module, fqn: str) -> torch.Tensor | None:
    path, _, name = fqn.rpartition(".")
    return model.get_submodule(path)._buffers.get(name)


def _watch(module: nn.Module, index: int, mode: ActivityMode, stack: contextlib.ExitStack) -> None:
    """Tell `mode` of every call of the module until `stack` closes."""
    enter = module.register_forward_pre_hook(lambda module, args: mode.enter(index))
    stack.callback(enter.remove)
    leave = module.register_forward_hook(lambda module, args, output: mode.exit(index, output))
    stack.callback(leave.remove)


class _Runs:
    """Runs forwards and keeps the output of the last."""

    def __init__(
        self, model: PreTrainedModel, workload: Workload, attempt: Attempt, mode: ActivityMode
    ) -> None:
        self._model = model
        self._workload = workload
        self._attempt = attempt
        self._mode = mode
        self._num_past = 0
        self._output: object = None
        self._options: dict[str, object] = {}
        if can_generate(model):
            wanted = {"use_cache": True, "logits_to_keep": 1 if workload.logits == "last" else 0}
            self._options = {name: value for name, value in wanted.items() if accepts(model, name)}

    def reset(self) -> None:
        """Forget the cache: the next forward begins a new sequence."""
        self._num_past = 0
        self._output = None

    def forward(self, num_tokens: int) -> ForwardFigures:
        """Run `num_tokens` positions on top of those before and return what was seen."""
        carried = self._carried() if self._num_past else {}
        previous = self._cached()
        self._output = None
        inputs = make_inputs(
            self._model,
            self._attempt,
            batch=self._workload.batch,
            num_tokens=num_tokens,
            num_past=self._num_past,
            encoder_context=self._workload.encoder_context,
        )
        self._mode.start()
        self._output = self._model(**inputs, **carried, **self._options)
        self._num_past += num_tokens
        return _figures(self._mode.log, kept=self._cached(), previous=previous)

    def cache_bytes(self) -> tuple[dict[int, int], int]:
        """Return the cache's bytes by block after the last forward, and what its storages take on top."""
        views: dict[tuple[object, ...], tuple[int, int]] = {}
        storages: dict[int, int] = {}
        called = [*self._mode.log.num_calls, 0]
        for tensor in self._cache_tensors():
            key = storage_key(tensor)
            note = self._mode.note(tensor)
            # What no block fills, such as the state of a position counter, goes with the first one.
            block = called[0] if note is None or note.filled_in is None else note.filled_in
            storages[key] = tensor.untyped_storage().nbytes()
            view = (key, tensor.storage_offset(), tensor.shape, tensor.stride())
            views[view] = (block, tensor.nbytes)
        kv_bytes: dict[int, int] = defaultdict(int)
        for block, num_bytes in views.values():
            kv_bytes[block] += num_bytes
        return dict(kv_bytes), max(0, sum(storages.values()) - sum(kv_bytes.values()))

    def _carried(self) -> dict[str, object]:
        """Return what the next forward takes over from the last one: the cache, and the encoder's output."""
        carried: dict[str, object] = {}
        found = find_cache(self._output)
        if found is not None:
            carried[found[0]] = found[1]
        if is_encoder_decoder(self._model):
            hidden = getattr(self._output, "encoder_last_hidden_state", None)
            carried["encoder_outputs"] = BaseModelOutput(last_hidden_state=hidden)
        return carried

    def _cache_tensors(self) -> tuple[torch.Tensor, ...]:
        found = find_cache(self._output)
        return () if found is None else cache_tensors(found[1])

    def _cached(self) -> frozenset[int]:
        notes = [self._mode.note(tensor) for tensor in self._cache_tensors()]
        return frozenset(note.serial for note in notes if note is not None)


def _figures(log: ForwardLog, *, kept: frozenset[int], previous: frozenset[int]) -> ForwardFigures:
    handed: dict[tuple[int, int], int] = defaultdict(int)
    for target, inputs in log.inputs.items():
        for num_bytes, producers in inputs.values():
            for source in producers:
                handed[source, target] += num_bytes
    return ForwardFigures(
        flops=log.flops,
        activation_bytes=call_peaks(log.events, kept=kept, previous=previous),
        output_bytes=log.output_bytes,
        handed_bytes=dict(handed),
        outside_bytes=outside_peak(log.events, cached=kept | previous),
        num_calls=log.num_calls,
        first_call=log.first_call,
        first_read=log.first_read,
        used_outside=frozenset(log.used_outside),
        mutated=frozenset(log.mutated),
    )
