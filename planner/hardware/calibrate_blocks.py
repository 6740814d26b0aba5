"""Decoder blocks of chosen sizes, and how long one of them takes to make one token.

Owns the models that a device is measured with. Their weights are constants: what is timed is the reading of
them. Knows nothing of inventories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from bayplan.planner.model.cache_tensors import CACHE_ARGUMENTS
from bayplan.planner.model.modalities import accepts
from bayplan.planner.model.remembered_shapes import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bayplan.planner.hardware.calibration_effort import BlockSize
    from bayplan.planner.hardware.timing import Stopwatch

_VOCABULARY = 8
_WEIGHT = 0.01


class BlockTimes(NamedTuple):
    """What one block takes for one token."""

    weight_bytes: int
    cache_bytes: int
    """Of the longer context's keys and values."""
    empty_ns: int
    """With nothing before the token."""
    full_ns: int
    """With the longer context before it."""


class BlockStack:
    """A model of alike blocks whose weights are all one number.

    Args:
        size: Of the blocks.
        dtype: Of weights and cache.
        device: Where it computes.
        repeats: Timed steps per figure.
    """

    def __init__(self, size: BlockSize, dtype: torch.dtype, device: torch.device, *, repeats: int) -> None:
        self._size = size
        self._repeats = repeats
        self._dtype = dtype
        self._device = device
        config = transformers.LlamaConfig(
            vocab_size=_VOCABULARY,
            hidden_size=size.hidden_size,
            intermediate_size=size.intermediate_size,
            num_hidden_layers=size.more,
            num_attention_heads=size.num_heads,
            num_key_value_heads=size.num_kv_heads,
            head_dim=size.head_dim,
        )
        # Initial weights would take random numbers away from the caller, and time.
        with torch.device("meta"):
            model = transformers.LlamaModel(config)
        torch.nn.Module.eval(model)
        self._model = torch.nn.Module.to(model, dtype).to_empty(device=device)
        with torch.no_grad():
            for tensor in (*self._model.parameters(), *self._model.buffers()):
                tensor.fill_(_WEIGHT)
        self._blocks = list(self._model.layers)
        self._cache_argument = next(name for name in CACHE_ARGUMENTS if accepts(self._model, name))
        self._token = torch.zeros(1, 1, dtype=torch.long, device=device)

    @property
    def weight_bytes(self) -> int:
        """Bytes of one block's weights."""
        return sum(weight.nbytes for weight in self._blocks[0].parameters())

    def block_ns(self, context: int, stopwatch: Stopwatch) -> int:
        """Return the time of one block for one token on top of `context` others, in nanoseconds.

        The difference between two models, so that what a model does once does not count. Zero where noise
        makes the larger model look faster.
        """
        fewer_ns = self._step_ns(self._size.fewer, context, stopwatch)
        more_ns = self._step_ns(self._size.more, context, stopwatch)
        return max(0, more_ns - fewer_ns) // (self._size.more - self._size.fewer)

    def times(self, context: int, stopwatch: Stopwatch) -> BlockTimes:
        """Return what one block takes with nothing and with `context` positions before the token."""
        elements = 2 * context * self._size.num_kv_heads * self._size.head_dim
        return BlockTimes(
            weight_bytes=self.weight_bytes,
            cache_bytes=elements * self._dtype.itemsize,
            empty_ns=self.block_ns(0, stopwatch),
            full_ns=self.block_ns(context, stopwatch),
        )

    def num_operations(self) -> int:
        """Return the operations that one block dispatches for one token, counted as in a trace."""
        counts = []
        for num_blocks in (self._size.fewer, self._size.more):
            counter = _Counter()
            with torch.inference_mode(), counter:
                self._step(num_blocks, self._cache(num_blocks, 0))
            counts.append(counter.num_operations)
        return (counts[1] - counts[0]) // (self._size.more - self._size.fewer)

    def _step_ns(self, num_blocks: int, context: int, stopwatch: Stopwatch) -> int:
        with torch.inference_mode():
            # Each step makes the cache one position longer, and reuses memory, as in generation.
            cache = self._cache(num_blocks, context)
            return stopwatch.usual_ns(lambda: self._step(num_blocks, cache), self._repeats)

    def _step(self, num_blocks: int, cache: transformers.DynamicCache) -> None:
        self._model.layers = torch.nn.ModuleList(self._blocks[:num_blocks])
        self._model.config.num_hidden_layers = num_blocks
        self._model(input_ids=self._token, use_cache=True, **{self._cache_argument: cache})

    def _cache(self, num_blocks: int, context: int) -> transformers.DynamicCache:
        cache = transformers.DynamicCache()
        shape = (1, self._size.num_kv_heads, context, self._size.head_dim)
        for block in range(num_blocks if context else 0):
            keys = torch.zeros(shape, dtype=self._dtype, device=self._device)
            cache.update(keys, keys.clone(), block)
        return cache


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations that compute or copy."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_operations = 0

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self.num_operations += not Kind.of(func, 0).is_view
        return func(*args, **(kwargs or {}))
