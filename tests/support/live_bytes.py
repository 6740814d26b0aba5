"""The bytes that are really alive in a model's forwards, counted without the planner's own code.

A dispatch mode over real tensors on the CPU notes when a storage comes and goes. Parameters and buffers are
left out; the cache is what the layers of transformers' cache objects hold.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

CACHE_NAMES = ("cache", "past_key_values", "cache_params")


class RunBytes(NamedTuple):
    """Highest figures of several forwards."""

    activations: int
    """Beside parameters, buffers and what the cache's tensors take."""
    everything: int
    """Beside parameters and buffers."""
    cache: int
    """Of the cache's tensors at the end."""


class LiveStorages(TorchDispatchMode):
    """Notes each storage that an operation hands out, until nothing refers to it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        own = [*model.parameters(), *model.buffers()]
        self._left_out = {tensor.untyped_storage()._cdata for tensor in own}
        self._names: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._num_seen = 0
        self.changes: list[tuple[int, int]] = []

    def begin(self) -> None:
        """Start the list of changes with what is alive now."""
        self.changes = [(name, self._sizes[name]) for name in self._names.values()]

    def name_of(self, tensor: torch.Tensor) -> int:
        """Return the number under which the tensor's storage is noted."""
        return self._names[tensor.untyped_storage()._cdata]

    def __torch_dispatch__(
        self, func: object, types: object, args: tuple[object, ...] = (), kwargs: object = None
    ) -> object:
        result = func(*args, **(kwargs or {}))  # type: ignore[operator]
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        address = storage._cdata
        if address in self._names or address in self._left_out:
            return
        self._num_seen += 1
        name = self._names[address] = self._num_seen
        self._sizes[name] = storage.nbytes()
        self.changes.append((name, storage.nbytes()))

        def gone() -> None:
            del self._names[address]
            self.changes.append((name, -self._sizes[name]))

        weakref.finalize(storage, gone)


def run_forwards(
    model: PreTrainedModel,
    pieces: Sequence[int],
    *,
    batch: int = 1,
    first: dict[str, torch.Tensor] | None = None,
    is_padded: bool = False,
    **options: object,
) -> RunBytes:
    """Run one forward after the other on one cache and return the highest figures of all.

    Args:
        model: Real weights, and a text to take: of its decoder where there are two stacks.
        pieces: New positions of each forward.
        batch: Sequences.
        first: Arguments of the first forward beside the text, such as images, or the encoder's input.
        is_padded: Pass a mask that leaves out the first position of the first sequence, in the encoder where
            there is one.
        options: Arguments of every forward.
    """
    has_encoder = bool(model.config.is_encoder_decoder)
    live = LiveStorages(model)
    highest = RunBytes(0, 0, 0)
    carried: dict[str, object] = {}
    past = 0
    with torch.no_grad(), live:
        for piece in pieces:
            given = {name: value.clone() for name, value in (first or {}).items()} if past == 0 else {}
            ids_name = "decoder_input_ids" if has_encoder else "input_ids"
            given[ids_name] = (
                torch.randint(3, 90, (batch, piece)) if ids_name not in given else given[ids_name]
            )
            if is_padded:
                num_masked = (first or {})["input_ids"].shape[1] if has_encoder else past + piece
                given["attention_mask"] = torch.ones((batch, num_masked), dtype=torch.int64)
                given["attention_mask"][0, 0] = 0
            found = one_forward(model, live, given, carried, options)
            past += piece
            highest = RunBytes(*map(max, highest, found))._replace(cache=found.cache)
    return highest


def run_once(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> RunBytes:
    """Run one forward without a cache and return its highest figures."""
    live = LiveStorages(model)
    with torch.no_grad(), live:
        return one_forward(model, live, {name: value.clone() for name, value in inputs.items()}, {}, {})


def one_forward(
    model: torch.nn.Module,
    live: LiveStorages,
    given: dict[str, torch.Tensor],
    carried: dict[str, object],
    options: dict[str, object],
) -> RunBytes:
    """Run one forward, leave in `carried` what the next one takes over, and return what was alive."""
    before = [[live.name_of(state) for state in layer] for layer in cache_layers(carried)]
    live.begin()
    output = model(**given, **carried, **options)
    encoded = getattr(output, "encoder_last_hidden_state", None)
    carried.clear()
    # Asked for by another name than its own, an output of transformers warns.
    carried.update({name: output[name] for name in CACHE_NAMES if name in list(output.keys())})
    if encoded is not None:
        carried["encoder_outputs"] = BaseModelOutput(last_hidden_state=encoded)
    layers = cache_layers(carried)
    after = [[live.name_of(state) for state in layer] for layer in layers]
    counted = [sum(state.nbytes for state in layer) for layer in layers]
    before += [[] for _ in range(len(after) - len(before))]
    names = [{*old, *new} for old, new in zip(before, after, strict=True)]
    return highest_of(live.changes, names, counted)


def highest_of(
    changes: Sequence[tuple[int, int]], layers: Sequence[set[int]], counted: Sequence[int]
) -> RunBytes:
    """Return the highest sums over time; a layer's cache is left out up to the bytes counted for it."""
    total = highest = most = 0
    held = [0] * len(layers)
    layer_of = {name: number for number, names in enumerate(layers) for name in names}
    for name, change in changes:
        total += change
        if name in layer_of:
            held[layer_of[name]] += change
        most = max(most, total)
        cached = sum(map(min, held, counted))
        highest = max(highest, total - cached)
    return RunBytes(highest, most, sum(counted))


def cache_layers(carried: dict[str, object]) -> list[list[torch.Tensor]]:
    """Return the tensors of each layer of the cache; of an encoder-decoder those of both its caches."""
    for name in CACHE_NAMES:
        cache = carried.get(name)
        if hasattr(cache, "self_attention_cache"):
            pairs = zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True)
            return [[*_states(one), *_states(other)] for one, other in pairs]
        if hasattr(cache, "layers"):
            others = [
                one for one in vars(cache).values() if isinstance(one, list) and one is not cache.layers
            ]
            states = [[state] for one in others for state in one if isinstance(state, torch.Tensor)]
            return [*(list(_states(layer)) for layer in cache.layers), *states]
    return []


def _states(layer: object) -> Iterator[torch.Tensor]:
    for value in vars(layer).values():
        for state in value.values() if isinstance(value, dict) else [value]:
            if isinstance(state, torch.Tensor):
                yield state
