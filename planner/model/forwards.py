"""Runs a model's forwards on meta tensors and measures each block: prefill, then a step on a full cache.

Owns the hooks, the order of the runs and the figures taken from their logs. Does not judge them: `trace`
does.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_map_only
from transformers import PreTrainedModel
from transformers.generation.utils import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput

from bayplan.planner.model.activity import ActivityMode, ForwardLog
from bayplan.planner.model.cache_tensors import cache_tensors, find_cache
from bayplan.planner.model.footprint import CacheHold, Moment, moments, peaks
from bayplan.planner.model.inputs import Attempt, is_encoder_decoder, make_inputs
from bayplan.planner.model.modalities import accepts
from bayplan.planner.model.watch import watched
from bayplan.planner.model.workload import max_context

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from bayplan.planner.model.blocks import BlockSpec
    from bayplan.schemas.plan import Workload


@dataclasses.dataclass(kw_only=True)
class ForwardFigures:
    """What one forward was seen to do; blocks are named by their index in the partition."""

    flops: dict[int, int]
    operations: dict[int, int]
    """Without those that only make a view of a tensor."""
    moments: tuple[Moment, ...]
    """What was alive when, in order."""
    activation_bytes: dict[int, int]
    """The most that is alive while the block is called, or between its call and those of its neighbours:
    beside parameters, buffers and cache."""
    output_bytes: dict[int, int]
    handed_bytes: dict[tuple[int, int], int]
    """(block that made it, block that used it) to bytes."""
    least_bytes: int
    """The fewest of the same bytes at any time from the first call to the end of the last."""
    num_calls: dict[int, int]
    first_call: dict[int, int]
    """Numbers that grow with time; blocks that were not called are not in it."""
    first_read: dict[int, int]
    """Likewise, of the first read of a tensor of the block."""
    used_outside: frozenset[int]
    mutated: frozenset[int]
    expert_flops: dict[int, int]
    """Of `flops`, those of the block's experts."""
    expert_bytes: dict[int, int]
    """Of the positions that were handed to the block's experts."""
    expert_routes: dict[int, frozenset[int | None]]
    """Numbers of experts that a position was routed to; None: the experts were used in another way."""
    copied_bytes: dict[int, int]
    """Of experts, what the block would copy in a step of `generate()` on accelerators."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TowerForward:
    """What one prefill with images, sound or video was seen to do."""

    attempt: Attempt
    """How it was called."""
    figures: ForwardFigures
    is_whole: bool
    """False: the forward failed at the point where the language model would have taken over."""
    last: int
    """The block that returned last, behind which the forward goes on as one of text alone."""
    fits: bool
    """Its positions are no more than a prefill chunk; False: the images alone take more."""
    kv_bytes: dict[int, int]
    """Block to the bytes that the cache holds for it afterwards."""
    replaced_buffers: frozenset[int]


@dataclasses.dataclass(kw_only=True)
class Observation:
    """What all forwards together were seen to do."""

    prefill: ForwardFigures
    decode: ForwardFigures | None
    """None: the model does not generate, or it was not asked for."""
    filled: ForwardFigures | None
    """The first chunk; None where that is `prefill`."""
    kv_bytes: dict[int, int]
    """Block to the bytes that the cache holds for it at the full context."""
    replaced_buffers: frozenset[int]
    """Blocks with a buffer for which a forward put another."""
    towers: tuple[TowerForward, ...] = ()
    """Prefills with images, sound or video, where they call blocks that the other forwards do not."""


def observe(
    model: PreTrainedModel,
    blocks: Sequence[BlockSpec],
    workload: Workload,
    attempt: Attempt,
    *,
    max_call_operations: int | None = None,
    has_decode: bool = True,
) -> Observation:
    """Run the forwards of a workload on meta tensors.

    Args:
        model: Parameters on meta, in eval mode. Its tensors are left as they were.
        blocks: Partition of the model.
        workload: Batch and lengths.
        attempt: Which inputs to pass.
        max_call_operations: Give up where one call of a block takes more; None: only the forward has a limit.
        has_decode: Run the decode step where the model generates.

    Returns:
        Figures of the last whole prefill chunk, with the peaks of all chunks, and, for a model that
        generates, of one decode step.

    Raises:
        TraceTooLongError: A forward takes too many operations.
        UnknownInputsError: As `make_inputs`.
    """
    with watched(model, blocks, max_call_operations=max_call_operations) as watch:
        runs = Runs(model, workload, attempt, watch.mode)
        chunk = workload.prefill_chunk if can_generate(model) else workload.context
        filled, prefill = _observe_prefill(runs, workload.context, chunk)
        kv_bytes = runs.kv_bytes()
        decode = None
        if can_generate(model) and not kv_bytes:
            decode = prefill  # Without a cache every step is a forward over everything.
        elif can_generate(model) and has_decode:
            if workload.context == max_context(model.config):
                # Tables of positions end here: the step is the one that completes the context.
                runs.reset()
                if workload.context > 1:
                    runs.forward(workload.context - 1)
            decode = runs.forward(1)
        replaced = watch.replaced_buffers()
    return Observation(
        prefill=prefill,
        decode=decode,
        filled=filled,
        kv_bytes=kv_bytes,
        replaced_buffers=replaced,
    )


def _observe_prefill(runs: Runs, context: int, chunk: int) -> tuple[ForwardFigures | None, ForwardFigures]:
    """Fill the cache up to `context`; return the first chunk, if there are several, and the last whole one.

    The first has no past and may run an encoder, the last whole one has the longest past, and what remains
    may be the only one with a past: with the peaks of the three, the others are bounded. All those between
    but one are run as one, which leaves the same cache; the one, because a window keeps the storage of its
    last chunk.
    """
    num_whole, num_rest = divmod(context, chunk)
    first = runs.forward(chunk)
    if num_whole > 3:
        runs.forward((num_whole - 3) * chunk)
    if num_whole > 2:
        runs.forward(chunk)
    last = runs.forward(chunk) if num_whole > 1 else first
    rest = runs.forward(num_rest) if num_rest else None
    if last is first and rest is None:
        return None, first
    others = [one for one in (first, rest) if one is not None]
    raised = {
        block: max(num_bytes, *(one.activation_bytes.get(block, 0) for one in others))
        for block, num_bytes in last.activation_bytes.items()
    }
    least_bytes = min(last.least_bytes, *(one.least_bytes for one in others))
    return first, dataclasses.replace(last, activation_bytes=raised, least_bytes=least_bytes)


def observe_module(
    model: nn.Module, blocks: Sequence[BlockSpec], inputs: Mapping[str, object]
) -> Observation:
    """Run one forward of a module that is no transformers model.

    Args:
        model: Parameters on meta, in eval mode. Its tensors are left as they were.
        blocks: Partition of the model.
        inputs: Keyword arguments of its forward; under an empty key a tuple of positional ones.

    Raises:
        TraceTooLongError: The forward takes too many operations.
    """
    named = dict(inputs)
    positional = named.pop("", ())
    assert isinstance(positional, tuple), "positional inputs are a tuple"
    with watched(model, blocks) as watch:
        # Made outside, they are not known to the log; cloned inside, they are.
        args, kwargs = tree_map_only(torch.Tensor, torch.clone, (positional, named))
        watch.mode.start()
        model(*args, **kwargs)
        figures = _figures(watch.mode.log, CacheHold(block_of={}, num_bytes={}))
        replaced = watch.replaced_buffers()
    return Observation(prefill=figures, decode=None, filled=None, kv_bytes={}, replaced_buffers=replaced)


def can_generate(model: nn.Module) -> bool:
    """Return whether `generate()` makes sense for the model's class."""
    if not isinstance(model, PreTrainedModel):
        return False
    return isinstance(model, GenerationMixin) and bool(model.can_generate())


class Runs:
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
        previous = {serial: block for serial, block, _ in self._cached()}
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
        return self.figures(previous)

    def figures(self, previous: Mapping[int, int] | None = None) -> ForwardFigures:
        """Return what was seen of the last forward, even if it failed.

        Args:
            previous: Serial numbers of the storages that the cache held before it, with their blocks.
        """
        kept = {serial: block for serial, block, _ in self._cached()}
        cache = CacheHold(block_of={**(previous or {}), **kept}, num_bytes=self.kv_bytes())
        return _figures(self._mode.log, cache)

    def kv_bytes(self) -> dict[int, int]:
        """Return the bytes of the cache's tensors after the last forward, by block."""
        kv_bytes: dict[int, int] = defaultdict(int)
        for _, block, num_bytes in self._cached():
            kv_bytes[block] += num_bytes
        return dict(kv_bytes)

    def _carried(self) -> dict[str, object]:
        """Return what the next forward takes over from the last one: the cache, and the encoder's output."""
        carried: dict[str, object] = {}
        found = find_cache(self._output)
        if found is not None:
            carried[found[0]] = found[1]
        if is_encoder_decoder(self._model):
            hidden = getattr(self._output, "encoder_last_hidden_state", None)
            carried["encoder_outputs"] = BaseModelOutput(last_hidden_state=hidden)
        if self._attempt.layout is not None and accepts(self._model, "image_encoder_embeddings"):
            images = getattr(self._output, "image_outputs", None)
            carried["image_encoder_embeddings"] = getattr(images, "last_hidden_state", None)
        return carried

    def _cached(self) -> list[tuple[int, int, int]]:
        """Return for each tensor of the cache its storage's serial number, its block and its bytes.

        Views that differ count each. What no block fills, such as a layer's count of positions, goes with the
        tensor before it, or with the first block that was called.
        """
        found = find_cache(self._output)
        # Of a forward that was stopped before it returned, the cache is known from a call of a block.
        cache = self._mode.cache if self._output is None else found and found[1]
        block = next(iter(self._mode.log.num_calls), 0)
        views: dict[tuple[object, ...], tuple[int, int, int]] = {}
        for tensor in () if cache is None else cache_tensors(cache):
            note = self._mode.note(tensor)
            if note is not None:
                view = (note.serial, tensor.storage_offset(), tensor.shape, tensor.stride())
                block = block if note.filled_in is None else note.filled_in
                views[view] = (note.serial, block, tensor.nbytes)
        return list(views.values())


def _figures(log: ForwardLog, cache: CacheHold) -> ForwardFigures:
    handed: dict[tuple[int, int], int] = defaultdict(int)
    for target, inputs in log.inputs.items():
        for num_bytes, producers in inputs.values():
            for source in producers:
                handed[source, target] += num_bytes
    seen = moments(log.events, cache)
    extremes = peaks(seen, uncalled=log.first_read.keys() - log.num_calls.keys())
    return ForwardFigures(
        moments=seen,
        flops=log.flops,
        operations=log.operations,
        activation_bytes=dict(extremes.by_block),
        output_bytes=log.output_bytes,
        handed_bytes=dict(handed),
        least_bytes=extremes.least_bytes,
        num_calls=log.num_calls,
        first_call=log.first_call,
        first_read=log.first_read,
        used_outside=frozenset(log.used_outside),
        mutated=frozenset(log.mutated),
        expert_flops=log.expert_flops,
        expert_bytes=log.expert_bytes,
        expert_routes={block: frozenset(routes) for block, routes in log.expert_routes.items()},
        copied_bytes=log.copied_bytes,
    )
