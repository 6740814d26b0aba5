"""What must not be done to a model of which only a part is in memory.

Layers that share a slot alias the same bytes, so moving, casting, saving or copying them would take one
block's weights for those of all. Every such way in is closed with the reason. What changes nothing, such as
`model.to("cpu")`, works as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from torch import nn

from bayplan.executor.errors import StreamedWeightsError
from bayplan.executor.hooks import copy_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from torch.utils.hooks import RemovableHandle

    from bayplan.schemas.types import Fqn

_SHADOWS = ("_apply", "__deepcopy__", "__reduce_ex__")


class StreamGuards:
    """Guards on the streamed blocks of a model and on the modules around them."""

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
            self._handles += [
                block.register_state_dict_pre_hook(refuse.saving),  # type: ignore[no-untyped-call]
                block.register_load_state_dict_pre_hook(refuse.loading),  # type: ignore[no-untyped-call]
            ]
        for fqn, module in model.named_modules():
            dot = f"{fqn}." if fqn else ""
            inside = {name: block for name, block in blocks.items() if name == fqn or name.startswith(dot)}
            if inside:
                guard = _ModuleGuard(module, inside)
                # On the instance, where they go before the class's own; `to` and `half` end in `_apply`.
                module.__dict__.update(
                    _apply=guard.apply, __deepcopy__=guard.deepcopy, __reduce_ex__=guard.reduce_ex
                )
                self._guarded.append(module)

    def remove(self) -> None:
        """Take the guards off again."""
        for handle in self._handles:
            handle.remove()
        for module in self._guarded:
            for name in _SHADOWS:
                del module.__dict__[name]
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
        """Let through what leaves every streamed parameter the very tensor that it is."""
        for name, block in self._blocks.items():
            for param in block.parameters():
                if fn(param) is not param:
                    raise StreamedWeightsError(
                        "moving or casting",
                        block=name,
                        hint="choose the data type with bayplan plan --format, or plan with more memory",
                    )
        type(self._module)._apply(self._module, fn, recurse)  # type: ignore[no-untyped-call]
        return self._module

    def deepcopy(self, memo: object) -> NoReturn:
        raise copy_refusal("deepcopy()", next(iter(self._blocks)))

    def reduce_ex(self, protocol: object) -> NoReturn:
        raise copy_refusal("pickle", next(iter(self._blocks)))
