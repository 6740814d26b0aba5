"""The tensors of a module tree: records, tied groups, and the digest that identifies the tree.

Owns the order in which tensors are listed and the text that is hashed. Works on meta and on real modules
alike. Knows nothing of blocks, devices or files.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from bayplan.schemas.dtypes import tensor_num_bytes
from bayplan.schemas.graph import TensorRecord, TensorRole
from bayplan.skeleton.formats import short_dtype
from bayplan.skeleton.roles import tensor_roles

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn


class NamedTensor(NamedTuple):
    """A parameter or buffer under one of its names."""

    fqn: str
    tensor: torch.Tensor
    is_buffer: bool
    is_persistent: bool


def named_tensors(model: nn.Module) -> Iterator[NamedTensor]:
    """Yield every parameter and buffer under every name, in the order of the module tree.

    Within a module, parameters come before buffers, as in `state_dict()`. A shared tensor or submodule comes
    once per name.
    """
    for prefix, module in model.named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        for name, param in module._parameters.items():
            if param is not None:
                yield NamedTensor(dot + name, param, is_buffer=False, is_persistent=True)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                is_persistent = name not in module._non_persistent_buffers_set
                yield NamedTensor(dot + name, buffer, is_buffer=True, is_persistent=is_persistent)


def tensor_records(model: nn.Module) -> tuple[TensorRecord, ...]:
    """Return a record per name of a parameter or buffer, in the order of `named_tensors`.

    Tied tensors have a record per name; `tie_groups` says which are the same.

    Raises:
        DtypeError: A tensor has a dtype that no checkpoint holds.
    """
    roles = tensor_roles(model)
    none = (TensorRole.OTHER, None)
    return tuple(
        TensorRecord(
            fqn=fqn,
            shape=tuple(tensor.shape),
            dtype=(dtype := short_dtype(tensor.dtype)),
            num_bytes=tensor_num_bytes(tensor.shape, dtype),
            is_buffer=is_buffer,
            is_persistent=is_persistent,
            is_frozen=not is_buffer and not tensor.requires_grad,
            role=(known := roles.get(fqn, none))[0],
            linears=known[1],
        )
        for fqn, tensor, is_buffer, is_persistent in named_tensors(model)
    )


def tie_groups(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Return the names of tensors that are one: the same object, or the same elements of one storage.

    Works on meta parameters too. Views of different parts of a storage are not tied.

    Returns:
        Groups of at least two names, each sorted; groups sorted by their first name.
    """
    groups: dict[tuple[object, ...], list[str]] = {}
    for fqn, tensor, _, _ in named_tensors(model):
        groups.setdefault(_identity(tensor), []).append(fqn)
    return tuple(sorted(tuple(sorted(names)) for names in groups.values() if len(names) > 1))


def _identity(tensor: torch.Tensor) -> tuple[object, ...]:
    if tensor.numel() == 0:
        return (id(tensor),)  # empty tensors have no elements to share
    storage = tensor.untyped_storage()._cdata
    return (storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)


def tree_digest(model: nn.Module) -> str:
    r"""Return the identity of the tree: what a checkpoint for it must hold.

    It is the SHA-256 of one line per parameter and persistent buffer, tied names included, sorted by fqn in
    code point order, in UTF-8: `FQN DTYPE[D0,D1,...]` and a newline, such as
    `lm_head.weight bf16[49152,576]\n`; a scalar has `[]`.

    Returns:
        `sha256:` and 64 hex digits.

    Raises:
        DtypeError: A tensor has a dtype that no checkpoint holds.
    """
    lines = sorted(
        (fqn, f"{fqn} {short_dtype(tensor.dtype)}[{','.join(map(str, tensor.shape))}]\n")
        for fqn, tensor, _, is_persistent in named_tensors(model)
        if is_persistent
    )
    return f"sha256:{hashlib.sha256(''.join(line for _, line in lines).encode()).hexdigest()}"
