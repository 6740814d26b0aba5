"""A model under watch: hooks on its blocks, its buffers exchanged, its operations logged.

Owns what is done to the live module for the time of a trace, and that it is undone. Runs no forward itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections import defaultdict
from typing import TYPE_CHECKING

import torch
import transformers

from bayplan.planner.model.activity import ActivityMode
from bayplan.planner.model.cache_tensors import CACHE_ARGUMENTS
from bayplan.planner.model.experts import (
    experts_copied_in_steps,
    find_experts,
    hook_copies,
    hook_experts,
    owners_of_experts,
)
from bayplan.planner.model.known_values import MAX_KNOWN_ELEMENTS
from bayplan.planner.model.operations import RealPathMode
from bayplan.planner.model.tensor_arguments import storage_key
from bayplan.skeleton.transformers_adapter import complete_outputs
from bayplan.skeleton.tree import named_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from bayplan.planner.model.blocks import BlockSpec


_CHANGED_IN_PLACE = (
    "_buffers",
    "_forward_hooks",
    "_forward_hooks_always_called",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
"""Tables of a module that a forward may add to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watch:
    """A model while it is watched."""

    mode: ActivityMode
    model: nn.Module
    twins: dict[str, torch.Tensor]
    """What stands in the place of each buffer, by its name."""
    block_of: dict[str, int]
    """Name of a tensor to the index of its block."""

    def replaced_buffers(self) -> frozenset[int]:
        """Return the blocks with a buffer for which a forward has put another."""
        return frozenset(
            self.block_of[fqn] for fqn, twin in self.twins.items() if _buffer_at(self.model, fqn) is not twin
        )


@contextlib.contextmanager
def watched(
    model: nn.Module, blocks: Sequence[BlockSpec], *, max_call_operations: int | None = None
) -> Iterator[Watch]:
    """Log everything that `model` does within the context, as it would be done by real tensors.

    Args:
        model: Parameters on meta, in eval mode. Its tensors and attributes are as they were afterwards.
        blocks: Partition of the model.
        max_call_operations: As for `ActivityMode`.

    Yields:
        The watch.
    """
    with buffers_without_weights(model) as twins, contextlib.ExitStack() as stack:
        block_of = {fqn: index for index, block in enumerate(blocks) for fqn in block.fqns}
        experts = find_experts(model, blocks)
        mode = ActivityMode(
            _owners(model, block_of),
            frozenset(map(storage_key, twins.values())),
            experts=owners_of_experts(experts),
            max_call_operations=max_call_operations,
        )
        for index, block in enumerate(blocks):
            if not block.is_own:
                _hook(block.module, index, mode, stack)
        for index, found in experts.items():
            hook_experts(found.module, index, mode, stack)
        copied = experts_copied_in_steps(model)
        for name, module in model.named_modules() if copied else ():
            if module in copied:
                index = block_of[f"{name}.{next(iter(module.state_dict()))}"]
                hook_copies(module, index, mode, stack)
        stack.enter_context(_quiet())
        stack.enter_context(complete_outputs())
        stack.enter_context(torch.no_grad())
        stack.enter_context(RealPathMode())
        stack.enter_context(mode)
        yield Watch(mode=mode, model=model, twins=twins, block_of=block_of)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what transformers logs from the terminal: hints about kernels, of which a trace needs none."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)


@contextlib.contextmanager
def buffers_without_weights(model: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Put twins in the place of all buffers, so that a forward cannot change them.

    Small tables of integers keep their values, which forwards branch on; the rest goes to meta, where nothing
    is computed. Plain attributes that a forward sets, and hooks that it registers, are taken back too:
    transformers registers some that collect hidden states, and notes in an attribute that they are there.

    Yields:
        The twins under every name of a buffer; shared buffers share a twin.
    """
    modules = list(model.modules())
    saved = [
        (
            dict(vars(module)),
            {name: dict(getattr(module, name)) for name in _CHANGED_IN_PLACE},
            set(module._non_persistent_buffers_set),
        )
        for module in modules
    ]
    twins: dict[int, torch.Tensor] = {}
    for module in modules:
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = twins.setdefault(id(buffer), _twin(buffer))
    try:
        yield {named.fqn: named.tensor for named in named_tensors(model) if named.is_buffer}
    finally:
        for module, (attributes, tables, non_persistent) in zip(modules, saved, strict=True):
            vars(module).clear()
            vars(module).update(attributes)
            for name, table in tables.items():
                getattr(module, name).clear()
                getattr(module, name).update(table)
            module._non_persistent_buffers_set.clear()
            module._non_persistent_buffers_set.update(non_persistent)


def _twin(buffer: torch.Tensor) -> torch.Tensor:
    has_values = not (buffer.is_floating_point() or buffer.is_complex() or buffer.is_meta)
    if has_values and buffer.numel() <= MAX_KNOWN_ELEMENTS:
        return buffer.clone()
    return buffer.to("meta", copy=True)


def _owners(model: nn.Module, block_of: dict[str, int]) -> dict[int, frozenset[int]]:
    """Return the blocks of every parameter and buffer by storage; tied ones have several."""
    owners: dict[int, set[int]] = defaultdict(set)
    for named in named_tensors(model):
        owners[storage_key(named.tensor)].add(block_of[named.fqn])
    return {key: frozenset(indices) for key, indices in owners.items()}


def _buffer_at(model: nn.Module, fqn: str) -> torch.Tensor | None:
    path, _, name = fqn.rpartition(".")
    return model.get_submodule(path)._buffers.get(name)


def _hook(module: nn.Module, index: int, mode: ActivityMode, stack: contextlib.ExitStack) -> None:
    """Tell `mode` of every call of the module until `stack` closes."""

    def before(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        for name in CACHE_ARGUMENTS:
            if kwargs.get(name) is not None:
                mode.cache = kwargs[name]
        mode.enter(index)

    enter = module.register_forward_pre_hook(before, with_kwargs=True)
    stack.callback(enter.remove)
    leave = module.register_forward_hook(lambda module, args, output: mode.exit(index, output))
    stack.callback(leave.remove)
