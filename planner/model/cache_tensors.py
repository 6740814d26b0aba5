"""The tensors of a cache, whatever its class: what a model keeps between two forwards.

Owns how a cache is found in a model's output and walked. Knows no cache class by name: new ones come with
every release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params", "state", "mems")
"""Names under which models return and take their cache."""

_MAX_DEPTH = 6


def find_cache(output: object) -> tuple[str, object] | None:
    """Return argument name and cache from what a forward returned; None if it returned none."""
    if isinstance(output, Mapping):
        for name in CACHE_ARGUMENTS:
            # Asked for by another name than its own, an output of transformers warns.
            if name in output.keys() and output[name] is not None:  # noqa: SIM118
                return name, output[name]
    return None


def cache_tensors(cache: object) -> tuple[torch.Tensor, ...]:
    """Return the tensors that `cache` holds, counters included, each once.

    Args:
        cache: A cache object, or tuples of tensors.
    """
    found: dict[int, torch.Tensor] = {}
    for tensor in _walk(cache, _MAX_DEPTH, set()):
        found.setdefault(id(tensor), tensor)
    return tuple(found.values())


def _walk(value: object, depth: int, seen: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    if depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        items = list(value.values())
    elif isinstance(value, list | tuple):
        items = list(value)
    elif hasattr(value, "__dict__") and not isinstance(value, type | nn.Module):
        items = list(vars(value).values())
    else:
        return
    for item in items:
        yield from _walk(item, depth - 1, seen)
