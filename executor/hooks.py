"""How streamed blocks announce their calls: a hook before and one after, on the block as a whole.

The parts of a block have one that refuses calls from outside it, which nobody announces. Owns the hooks, the
guard against gradients through recycled slots, and the question whether a call is still running. A resident
block has no hook at all.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast

import torch
from torch import nn

from bayplan.executor.errors import GradientModeError, StreamedWeightsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.utils.hooks import RemovableHandle

    from bayplan.executor.backend import DeviceBackend
    from bayplan.executor.ring import Ring
    from bayplan.schemas.types import Fqn

_CALL_CODE = nn.Module._call_impl.__code__
_CALL_FILE = _CALL_CODE.co_filename


_FunctionT = TypeVar("_FunctionT", bound="Callable[..., object]")


def uncompiled(function: _FunctionT) -> _FunctionT:
    """Decorate a hook so that a compiler calls it as it is, instead of tracing into it."""
    return cast("_FunctionT", torch.compiler.disable(function))  # type: ignore[no-untyped-call]


class BlockHooks:
    """The hooks of one streamed block."""

    def __init__(self, ring: Ring, position: int, backend: DeviceBackend, keeper: object) -> None:
        """Announce block `position` of `ring`.

        Args:
            ring: Of the device that computes the block.
            position: In the ring's order.
            backend: That device.
            keeper: Kept alive as long as the hooks are: what owns the ring.
        """
        self._ring = ring
        self._position = position
        self._backend = backend
        self._keeper = keeper
        self._handles: list[RemovableHandle] = []

    def install(self, block: nn.Module) -> None:
        """Put the hooks on `block`."""
        self._handles = [
            # First, so that a failure in any other hook finds the call announced.
            block.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True),
            block.register_forward_hook(self._after, always_call=True),
        ]
        for part in _called_parts(block):
            self._handles.append(part.register_forward_pre_hook(self._before_part, prepend=True))

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._keeper = None

    @uncompiled
    def _before(self, block: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._ring.acquire(self._position)
        if torch.is_grad_enabled():
            self._check_gradients(block, args, kwargs)

    @uncompiled
    def _after(self, block: nn.Module, args: tuple[object, ...], output: object) -> None:
        self._ring.release(self._position, self._backend.record())

    def _before_part(self, part: nn.Module, args: tuple[object, ...]) -> None:
        # A compiler that traces into the block would break its graph at each part.
        if torch.compiler.is_compiling() or self._ring.is_called(self._position):
            return
        raise StreamedWeightsError(
            f"calling {type(part).__name__} outside its block",
            block=self._ring.order[self._position],
            hint="call the block as a whole, or plan with more memory",
        )

    def _check_gradients(self, block: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        name = self._ring.order[self._position]
        for fqn, param in block.named_parameters():
            if param.requires_grad:
                raise GradientModeError(name, got=f"{fqn} requires grad")
        if _any_requires_grad((args, kwargs)):
            raise GradientModeError(name, got="an input that requires grad")

    def __deepcopy__(self, memo: object) -> NoReturn:
        """Refuse: a copy of a block would hold whatever its slot holds now."""
        raise copy_refusal("deepcopy()", self._ring.order[self._position])

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse: a saved block would hold whatever its slot holds now."""
        raise copy_refusal("pickle", self._ring.order[self._position])


def _called_parts(block: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules in a block that have weights and can be called.

    Not those inside them: a hook costs a few microseconds at each call.
    """
    for child in block.children():
        if type(child).forward is nn.Module.forward:  # a list of modules
            yield from _called_parts(child)
        elif any(True for _ in child.parameters()):
            yield child


def copy_refusal(operation: str, block: Fqn) -> StreamedWeightsError:
    """Return the error for copying a streamed block in any way."""
    return StreamedWeightsError(operation, block=block, hint="load the plan again for a second model")


def running_test(blocks: Sequence[nn.Module]) -> Callable[[int, int], bool]:
    """Return the test whether a call of a block (by position) is on the stack of a thread (by identifier).

    This thread's stack is searched for the block's own call. Of another thread it is enough that it calls any
    module: inside compiled code its frames need not show which.

    Args:
        blocks: In the order of the ring; not kept alive.
    """
    references = [weakref.ref(block) for block in blocks]

    def is_running(position: int, thread: int) -> bool:
        is_own_thread = thread == threading.get_ident()
        module = references[position]()
        frame = sys._current_frames().get(thread)
        while frame is not None:
            if frame.f_code.co_filename == _CALL_FILE and not is_own_thread:
                return True
            if frame.f_code is _CALL_CODE and frame.f_locals.get("self") is module:
                return True
            frame = frame.f_back
        return False

    return is_running


def _any_requires_grad(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    if isinstance(value, dict):
        return any(_any_requires_grad(member) for member in value.values())
    if isinstance(value, (tuple, list)):
        return any(_any_requires_grad(member) for member in value)
    return False
