"""What a loaded model carries with it: its plan, its memory, its rings, and how to undo it all.

Kept on the model itself, so that it lives exactly as long.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, NoReturn

from bayplan.executor.errors import ReleasedError
from bayplan.executor.hooks import BlockHooks, copy_refusal
from bayplan.executor.materialize import bound_tensors, unbind
from bayplan.schemas.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from bayplan.executor.arena import Arena, Slots
    from bayplan.executor.backend import DeviceBackend
    from bayplan.executor.guards import StreamGuards
    from bayplan.executor.layout import Layout
    from bayplan.executor.measure import ForwardMeter, MemoryMeter
    from bayplan.executor.reader import ShardReader
    from bayplan.executor.ring import Ring
    from bayplan.schemas.plan import Plan
    from bayplan.schemas.types import Fqn

_ATTRIBUTE = "_bayplan"


class Stream:
    """The streaming of one device. Knows no module, so that it does not keep the model alive.

    Attributes:
        ring: Its slots over time.
        slots: Its slots in memory.
        backend: The device.
    """

    def __init__(self, ring: Ring, slots: Slots, reader: ShardReader, backend: DeviceBackend) -> None:
        """Own `ring` and `reader`."""
        self.ring = ring
        self.slots = slots
        self.backend = backend
        self._reader = reader

    def close(self) -> None:
        """End the thread and close the files. May be called twice."""
        self.ring.close()
        self._reader.close()


class LoadedState:
    """Everything that `release` gives back and that `report` reads.

    Attributes:
        plan: As carried out.
        layout: Where every tensor is.
        bound: The tensors themselves, by first name; empty until they are bound.
        arenas: Memory of the resident tensors and of the slots.
        stream: Of the one device; None where nothing streams.
        memory: Highest memory so far.
        forwards: Times so far.
        content_verified: Every shard's hash was in the plan and matched.
        notes: What the checks found worth a word.
        load_ns: Time from the start of loading until every resident block was bound.
    """

    def __init__(self, plan: Plan, layout: Layout, *, memory: MemoryMeter, forwards: ForwardMeter) -> None:
        """Start with no memory and no stream."""
        self.plan = plan
        self.layout = layout
        self.memory = memory
        self.forwards = forwards
        self.bound: dict[Fqn, torch.Tensor] = {}
        self.arenas: list[Arena] = []
        self.stream: Stream | None = None
        self.guards: StreamGuards | None = None
        self.content_verified = False
        self.notes: tuple[str, ...] = ()
        self.load_ns = 0
        self._hooks: list[BlockHooks] = []
        self._finalizer: weakref.finalize[..., object] | None = None

    def start_stream(self, stream: Stream, blocks: Sequence[nn.Module]) -> None:
        """Put hooks on the streamed blocks, given in stream order, and begin to read ahead.

        The stream is closed with the state, or with the interpreter.

        Raises:
            ThreadStartError: The system gives no thread to read with.
        """
        self.stream = stream
        self._finalizer = weakref.finalize(self, _close_unattended, stream)
        for position, block in enumerate(blocks):
            hooks = BlockHooks(stream.ring, position, stream.backend, keeper=self)
            hooks.install(block)
            self._hooks.append(hooks)
        stream.ring.start()

    def close(self, model: nn.Module) -> None:
        """End streaming, take everything off `model`, and let go of its memory; whatever there is by now."""
        for hooks in self._hooks:
            hooks.remove()
        self._hooks = []
        if self.stream is not None:
            self.stream.close()
            self.stream = None
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None
        if self.guards is not None:
            self.guards.remove()
            self.guards = None
        self.forwards.remove()
        unbind(model, self.layout, self.bound or bound_tensors(model, self.layout))
        self.bound = {}
        for arena in self.arenas:
            arena.close()
        self.arenas = []

    def __deepcopy__(self, memo: object) -> None:
        """Leave a copy of a wholly resident model without a plan; refuse where something streams."""
        self._refuse_copy("deepcopy()")

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Leave a saved model without a plan; refuse where something streams."""
        self._refuse_copy("pickle")
        return type(None), ()

    def _refuse_copy(self, operation: str) -> None:
        if self.stream is not None:
            raise copy_refusal(operation, self.stream.ring.order[0])


def _close_unattended(stream: Stream) -> None:
    """Close a stream where nobody is above to take an interrupt: it would be printed, and ignored."""
    with contextlib.suppress(KeyboardInterrupt):
        stream.close()


class _Released:
    """What a released model carries, so that it can be loaded again."""

    def __init__(self, handles: list[RemovableHandle]) -> None:
        self.handles = handles


def is_loaded(model: nn.Module) -> bool:
    """Return whether `model` has a state: from `load_model`, and not released."""
    return isinstance(model.__dict__.get(_ATTRIBUTE), LoadedState)


def attach(model: nn.Module, state: LoadedState) -> None:
    """Keep `state` with `model`, and let it be called again if it was released before."""
    earlier = model.__dict__.get(_ATTRIBUTE)
    if isinstance(earlier, _Released):
        for handle in earlier.handles:
            handle.remove()
    model.__dict__[_ATTRIBUTE] = state


def state_of(model: nn.Module) -> LoadedState:
    """Return the state of a loaded model.

    Raises:
        UsageError: `load_model` did not load it, or it was released.
    """
    state = model.__dict__.get(_ATTRIBUTE)
    if not isinstance(state, LoadedState):
        raise UsageError(
            "not a model that bayplan holds",
            got=type(model).__name__,
            needed="a model from load_model that was not released",
        )
    return state


def detach(model: nn.Module) -> None:
    """Forget the state of `model`, and refuse its calls from now on: those of any module with tensors too."""
    refusing = [module for module in model.modules() if module is model or _has_tensors(module)]
    handles = [module.register_forward_pre_hook(_refuse_call, prepend=True) for module in refusing]
    model.__dict__[_ATTRIBUTE] = _Released(handles)


def _has_tensors(module: nn.Module) -> bool:
    own = (*module._parameters.values(), *module._buffers.values())
    return any(tensor is not None for tensor in own)


def _refuse_call(model: nn.Module, args: object) -> NoReturn:
    raise ReleasedError
