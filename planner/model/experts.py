"""The routed experts of a model's blocks: which modules hold them, and what their calls are handed.

Owns the judgement of whether a block's experts can be handled apart from the rest of the block, and the hooks
that watch them for the time of a trace. Whether transformers can replace their function is the adapter's to
say. Places nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from transformers.generation.utils import GenerationMixin

from bayplan.planner.model.activity import Handed
from bayplan.planner.model.tensor_arguments import storage_key
from bayplan.schemas.graph import BlockExperts
from bayplan.skeleton.transformers_adapter import replaceable_experts

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn

    from bayplan.planner.model.activity import ActivityMode
    from bayplan.planner.model.blocks import BlockSpec
    from bayplan.planner.model.forwards import ForwardFigures
    from bayplan.planner.model.tensor_arguments import Arguments, Named
    from bayplan.schemas.types import Fqn


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ExpertsModule:
    """The module of a block that holds its routed experts."""

    fqn: Fqn
    module: nn.Module
    count: int
    """Experts: the first dimension of every tensor of the module."""


def find_experts(model: nn.Module, blocks: Sequence[BlockSpec]) -> dict[int, ExpertsModule]:
    """Return the experts of each block that has any which can be handled apart, by the block's index.

    A block has one such module, whose function transformers can replace, and all tensors of the module hold a
    part for each expert. Where a block has two, or its experts share a norm, they stay with the block.

    Args:
        model: The model.
        blocks: Its partition.
    """
    replaceable = set(replaceable_experts(model))
    found: dict[int, ExpertsModule] = {}
    for index, block in enumerate(blocks) if replaceable else ():
        if block.is_own:
            continue
        held = [(name, module) for name, module in block.module.named_modules() if module in replaceable]
        if len(held) == 1:
            name, module = held[0]
            count = _num_experts(module)
            if count is not None:
                fqn = f"{block.id}.{name}" if name else block.id
                found[index] = ExpertsModule(fqn=fqn, module=module, count=count)
    return found


def experts_copied_in_steps(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the modules of experts whose weights `generate()` copies in its steps on accelerators.

    For the time of its loop it has `batched_mm` in the place of `grouped_mm`, which gathers the weights of
    every route; whether it does depends on the device of the model's first parameter alone.
    """
    if not hasattr(GenerationMixin, "_optimize_model_for_decode"):
        return ()
    return tuple(
        module
        for module in replaceable_experts(model)
        if getattr(module.config, "_experts_implementation", None) == "grouped_mm"
    )


def _num_experts(module: nn.Module) -> int | None:
    """Return how many experts the tensors of a module are for; None if any is not divided among them."""
    counts = {
        tensor.shape[0] if tensor.dim() > 1 else None for tensor in (*module.parameters(), *module.buffers())
    }
    return counts.pop() if len(counts) == 1 else None


def owners_of_experts(experts: Mapping[int, ExpertsModule]) -> dict[int, int]:
    """Return the block of each storage that experts have tensors in."""
    return {
        storage_key(tensor): index for index, one in experts.items() for tensor in one.module.parameters()
    }


def hook_experts(module: nn.Module, index: int, mode: ActivityMode, stack: contextlib.ExitStack) -> None:
    """Tell `mode` of every call of the experts of block `index` until `stack` closes."""

    def before(module: nn.Module, args: Arguments, kwargs: Named) -> None:
        mode.enter_experts(index, _handed(args, kwargs))

    enter = module.register_forward_pre_hook(before, with_kwargs=True)
    stack.callback(enter.remove)
    leave = module.register_forward_hook(lambda module, args, output: mode.exit_experts(index))
    stack.callback(leave.remove)


def hook_copies(module: nn.Module, index: int, mode: ActivityMode, stack: contextlib.ExitStack) -> None:
    """Tell `mode` what every call of experts in block `index` would copy, until `stack` closes.

    Both products' weights are alive at once: the first ones are let go when the second ones are there.
    """
    tensors = (*module.parameters(), *module.buffers())
    unit_bytes = sum(-(-tensor.nbytes // tensor.shape[0]) for tensor in tensors if tensor.dim() > 1)

    def before(module: nn.Module, args: Arguments, kwargs: Named) -> None:
        routes = args[1] if len(args) > 1 else kwargs.get("top_k_index")
        if isinstance(routes, torch.Tensor):
            mode.copy_experts(index, routes.numel() * unit_bytes)

    enter = module.register_forward_pre_hook(before, with_kwargs=True)
    stack.callback(enter.remove)


def _handed(args: Arguments, kwargs: Named) -> Handed | None:
    """Return what a call brings, `[positions, hidden]` and `[positions, routes]`; None: something else."""
    names = ("hidden_states", "top_k_index")
    hidden_states, top_k_index = [
        args[place] if place < len(args) else kwargs.get(name) for place, name in enumerate(names)
    ]
    if not (isinstance(hidden_states, torch.Tensor) and isinstance(top_k_index, torch.Tensor)):
        return None
    if hidden_states.dim() != 2 or top_k_index.dim() != 2 or len(hidden_states) != len(top_k_index):
        return None
    return Handed(per_token=top_k_index.shape[1], hidden_bytes=hidden_states.nbytes)


def block_experts(
    index: int,
    experts: ExpertsModule,
    *,
    prefill: ForwardFigures,
    decode: ForwardFigures,
    forwards: Iterable[ForwardFigures],
) -> BlockExperts | None:
    """Return what the graph says of a block's experts; None where they cannot be handled apart after all.

    Args:
        index: The block's.
        experts: From `find_experts`.
        prefill: The forward whose work is the block's prefill.
        decode: Likewise its decode step.
        forwards: All that were seen. In every one the experts must be called as transformers calls them, with
            the same number of routes for each position, and at least once in one.
    """
    routes = frozenset().union(*(one.expert_routes.get(index, frozenset()) for one in forwards))
    per_token = next(iter(routes)) if len(routes) == 1 else None
    if per_token is None:
        return None
    return BlockExperts(
        module=experts.fqn,
        count=experts.count,
        per_token=per_token,
        prefill_flops=prefill.expert_flops.get(index, 0),
        decode_flops=decode.expert_flops.get(index, 0),
        prefill_hidden_bytes=prefill.expert_bytes.get(index, 0),
        decode_hidden_bytes=decode.expert_bytes.get(index, 0),
    )
