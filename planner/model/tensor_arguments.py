"""The tensors among the arguments of an operation, or in what a module returns, and their storages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

Arguments = tuple[object, ...]
"""Positional arguments of an operation."""
Named = dict[str, object]
"""Its keyword arguments."""


def storage_key(tensor: torch.Tensor) -> int:
    """Return the identity of the tensor's storage, valid as long as that is alive."""
    key: int = tensor.untyped_storage()._cdata
    return key


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested tuples, lists and mappings."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def argument_tensors(args: Arguments, kwargs: Named) -> list[torch.Tensor]:
    """Return the tensors among the arguments of an operation, which nests them in lists at most once."""
    found: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(item for item in value if isinstance(item, torch.Tensor))
    return found
