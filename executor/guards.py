"""What must not be done to a model of which only a part is in memory.

Layers that share a slot alias the same bytes, so moving, casting, saving, resizing or copying them would take
one block's weights for those of all. Every such way in is closed with the reason. What changes nothing, such
as `model.to("cpu")`, works as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch
from torch import nn

from bayplan.executor.errors import StreamedWeightsError
from bayplan.executor.hooks import copy_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.utils.hooks import RemovableHandle

    from bayplan.schemas.types import Fqn

_SHADOWS = ("_apply", "share_memory", "__deepcopy__", "__reduce_ex__")
# What models of transformers have beside: each exchanges weights, or copies them as they are at the moment.
_EMBEDDING_SETTERS = ("resize_token_embeddings", "set_input_embeddings", "set_output_embeddings")


class StreamGuards:
    """Guards on the streamed blocks of a model, on the modules inside them and on those around them."""

    def __init__(self, model: nn.Module, blocks: Mapping[Fqn, nn.Module]) -> None:
        """Install the guards.

        Args:
            model: The root.
            blocks: Streamed blocks by id.
        """
        self._handles: list[RemovableHandle] = []
        self._guarded: list[nn.Module] = []
        for name, block in blocks.items():
            refuse = _StateGuard(name)
            for module in block.modules():  # a part of a block can be moved, saved or copied by itself
                self._handles += [
                    module.register_state_dict_pre_hook(refuse.saving),  # type: ignore[no-untyped-call]
                    module.register_load_state_dict_pre_hook(refuse.loading),  # type: ignore[no-untyped-call]
                ]
                if module is not block and any(True for _ in module.parameters()):
                    self._shadow(module, {name: module})
        for fqn, module in model.named_modules():
            dot = f"{fqn}." if fqn else ""
            inside = {name: block for name, block in blocks.items() if name == fqn or name.startswith(dot)}
            if inside:
                self._shadow(module, inside)

    def _shadow(self, module: nn.Module, blocks: Mapping[Fqn, nn.Module]) -> None:
        """Put the guard's methods on the instance, where they go before the class's own."""
        guard = _ModuleGuard(module, blocks)
        # `to` and `half` end in `_apply`.
        methods = (guard.apply, guard.share_memory, guard.deepcopy, guard.reduce_ex)
        module.__dict__.update(zip(_SHADOWS, methods, strict=True))
        for name in _EMBEDDING_SETTERS:
            if hasattr(module, name):
                module.__dict__[name] = guard.refuse_exchange(name)
        self._guarded.append(module)

    def remove(self) -> None:
        """Take the guards off again."""
        for handle in self._handles:
            handle.remove()
        for module in self._guarded:
            for name in (*_SHADOWS, *_EMBEDDING_SETTERS):
                module.__dict__.pop(name, None)
        self._handles, self._guarded = [], []


class _StateGuard:
    def __init__(self, name: Fqn) -> None:
        self._name = name

    def saving(self, module: nn.Module, prefix: str, keep_vars: bool) -> NoReturn:
        raise StreamedWeightsError(
            "state_dict()", block=self._name, hint="the weights are in the checkpoint: copy its files"
        )

    def loading(self, *args: object) -> NoReturn:
        raise StreamedWeightsError(
            "load_state_dict()", block=self._name, hint="change the checkpoint and plan again from it"
        )


class _ModuleGuard:
    def __init__(self, module: nn.Module, blocks: Mapping[Fqn, nn.Module]) -> None:
        self._module = module
        self._blocks = blocks

    def apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        """Let through what leaves every streamed parameter the very tensor that it is, where it is."""
        for name, block in self._blocks.items():
            params = list(block.parameters())
            # A function that changes its argument does so to a stand-in first.
            kinds = dict.fromkeys((param.dtype, param.device) for param in params)
            stand_ins = [torch.empty(1, dtype=dtype, device=device) for dtype, device in kinds]
            if not all(_keeps(fn, tensor) for tensor in (*stand_ins, *params)):
                raise StreamedWeightsError(
                    "moving or casting",
                    block=name,
                    hint="choose the data type with bayplan plan --format, or plan with more memory",
                )
        type(self._module)._apply(self._module, fn, recurse)  # type: ignore[no-untyped-call]
        return self._module

    def share_memory(self) -> NoReturn:
        """Refuse: it would move each parameter out of its slot and leave it there, the same object."""
        raise StreamedWeightsError(
            "share_memory()",
            block=next(iter(self._blocks)),
            hint="load the plan again in each process, or plan with more memory",
        )

    def refuse_exchange(self, name: str) -> Callable[..., NoReturn]:
        """Return what stands in for a method that exchanges embeddings."""

        def refuse(*args: object, **kwargs: object) -> NoReturn:
            raise StreamedWeightsError(
                f"{name}()",
                block=next(iter(self._blocks)),
                hint="change the checkpoint and plan again from it",
            )

        return refuse

    def deepcopy(self, memo: object) -> NoReturn:
        raise copy_refusal("deepcopy()", next(iter(self._blocks)))

    def reduce_ex(self, protocol: object) -> NoReturn:
        raise copy_refusal("pickle", next(iter(self._blocks)))


def _keeps(fn: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> bool:
    address = tensor.data_ptr()
    return fn(tensor) is tensor and tensor.data_ptr() == address
