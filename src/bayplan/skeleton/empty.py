"""Build modules without weights: parameters on meta, buffers with the values that their module gives them.

Owns `empty_weights`, and `build_empty`, which also checks the result. Knows nothing of transformers or of
plans.

While the context is open, `CreationMode` keeps large new tensors on meta, and every parameter is exchanged
for its meta twin as it is registered. Torch's own registration hooks would do, but they sit in one dict for
all threads: adding one while another thread registers a parameter makes that thread fail. The two
registration methods of `nn.Module` are exchanged instead, which is atomic, and only while some thread builds.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import weakref
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakTensorKeyDictionary

from bayplan.skeleton.creation import (
    MAX_REAL_ELEMENTS,
    CreationMode,
    NoValueError,
    check_room,
    is_loaded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping

_ModuleT = TypeVar("_ModuleT", bound=nn.Module)


_TRIM_BYTES = 2**28
"""Bytes of exchanged parameters after which the heap is trimmed."""


def _trim_heap() -> None:
    """Give free pages back to the system, where the C library can.

    Tensors that become parameters leave gaps, which the small objects made meanwhile keep open: without this,
    DeepSeek-V3 leaves 0.3 GiB with the process, and a module that draws its weights with `randn` all of them.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


class _Builder:
    """What one thread has built since its outermost `empty_weights()`."""

    def __init__(self, mode: CreationMode) -> None:
        self.mode = mode
        self._twins = cast("MutableMapping[nn.Parameter, nn.Parameter]", WeakTensorKeyDictionary())
        self._storages: dict[int, tuple[StorageWeakRef, torch.UntypedStorage]] = {}
        self._modules: dict[int, weakref.ref[nn.Module]] = {}
        self._num_bytes_dropped = 0

    def note(self, module: nn.Module) -> None:
        """Remember a module for the check at the end."""
        self._modules[id(module)] = weakref.ref(module)

    def modules(self) -> Iterator[nn.Module]:
        """Yield the modules seen that are still alive."""
        for reference in self._modules.values():
            module = reference()
            if module is not None:
                yield module

    def twin(self, param: nn.Parameter) -> nn.Parameter:
        """Return the meta twin of a parameter, the same one each time, so that ties survive."""
        if param.is_meta or is_lazy(param):
            return param
        known = self._twins.get(param)
        if known is None:
            if is_loaded(param):
                self.mode.loaded_bytes += param.nbytes
            with torch._C.DisableTorchFunction(), torch.no_grad():
                known = self._make_twin(param)
            known.__dict__ = param.__dict__  # shared: attributes may still be set on the original
            self._twins[param] = known
            self._num_bytes_dropped += param.untyped_storage().nbytes()
            if self._num_bytes_dropped > _TRIM_BYTES:
                self._num_bytes_dropped = 0
                _trim_heap()
        return known

    def _make_twin(self, param: nn.Parameter) -> nn.Parameter:
        if is_traceable_wrapper_subclass(param):
            return nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
        storage = self._meta_storage(param.untyped_storage())
        data = torch.empty(0, dtype=param.dtype, device="meta")
        data.set_(storage, param.storage_offset(), param.size(), param.stride())
        return torch.Tensor._make_subclass(type(param), data, param.requires_grad)

    def _meta_storage(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        # One meta storage per real one, for parameters that are views of it. The weak reference keeps the key
        # from being given to another storage, but not the memory.
        key = storage._cdata
        if key not in self._storages:
            meta = torch.UntypedStorage(storage.nbytes(), device="meta")  # type: ignore[no-untyped-call]
            self._storages[key] = (StorageWeakRef(storage), meta)  # type: ignore[no-untyped-call]
        return self._storages[key][1]

    def sweep(self) -> None:
        """Exchange parameters that were put into a module's dict without being registered."""
        for module in self.modules():
            for name, param in module._parameters.items():
                if param is not None:
                    module._parameters[name] = self.twin(param)


_LOCAL = threading.local()


def _current() -> _Builder | None:
    return cast("_Builder | None", getattr(_LOCAL, "builder", None))


def loaded_bytes() -> int:
    """Return how many bytes of parameters were read from elsewhere in this thread's build so far."""
    builder = _current()
    return 0 if builder is None else builder.mode.loaded_bytes


class _Registration:
    """The exchange of `nn.Module`'s registration methods, counted: in force while any thread builds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_open = 0
        self._originals: tuple[Callable[..., None], Callable[..., None]]

    def __enter__(self) -> None:
        with self._lock:
            if self._num_open == 0:
                self._originals = (nn.Module.register_parameter, nn.Module.register_buffer)
                self._set(_watching_parameter(self._originals[0]), _watching_buffer(self._originals[1]))
            self._num_open += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num_open -= 1
            if self._num_open == 0:
                self._set(*self._originals)

    def _set(self, register_parameter: Callable[..., None], register_buffer: Callable[..., None]) -> None:
        nn.Module.register_parameter = register_parameter  # type: ignore[method-assign]
        nn.Module.register_buffer = register_buffer  # type: ignore[method-assign]


_REGISTRATION = _Registration()


def _watching_parameter(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def register_parameter(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        builder = _current()
        if builder is not None:
            builder.note(self)
            if isinstance(param, nn.Parameter):
                param = builder.twin(param)
        original(self, name, param)

    return register_parameter


def _watching_buffer(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def register_buffer(
        self: nn.Module, name: str, tensor: torch.Tensor | None, persistent: bool = True
    ) -> None:
        builder = _current()
        if builder is not None:
            builder.note(self)
        original(self, name, tensor, persistent)

    return register_buffer


@contextlib.contextmanager
def _building(max_real_elements: int, *, follows_meta: bool = True) -> Iterator[_Builder]:
    builder = _current()
    if builder is not None:
        outer_limit = builder.mode.max_real_elements
        builder.mode.max_real_elements = max_real_elements
        try:
            yield builder
        finally:
            builder.mode.max_real_elements = outer_limit
        return
    # Modules draw random numbers for tensors that nobody keeps; the caller's sequence must not depend on it.
    with _REGISTRATION, torch.random.fork_rng(devices=()):
        builder = _Builder(CreationMode(max_real_elements, follows_meta=follows_meta))
        _LOCAL.builder = builder
        try:
            with builder.mode:
                yield builder
            builder.sweep()
        finally:
            _LOCAL.builder = None


@contextlib.contextmanager
def empty_weights(*, max_real_elements: int = MAX_REAL_ELEMENTS) -> Iterator[None]:
    """Within the context, build `nn.Module`s with parameters on meta and buffers with real values on the CPU.

    Ties, classes, attributes and `requires_grad` of parameters stay as the module made them. `device=`
    arguments are followed only where they say meta. The random state is as before afterwards. Contexts nest;
    modules of other threads are not affected, though random numbers that they draw meanwhile may come again.

    Args:
        max_real_elements: Elements of the largest new tensor that gets values; larger ones start on meta.

    Yields:
        Nothing.

    Raises:
        NoValueError: On leaving: a buffer or tensor attribute is larger than that, so its values are lost.
        NoValueError: Within: a module computes a buffer from the values of a parameter.
        NoValueError: Within: a module counts more numbers than any buffer has.
    """
    is_outermost = _current() is None
    with _building(max_real_elements) as builder:
        yield
    if is_outermost:
        lost = [(f"{type(m).__name__}.{name}", t) for m in builder.modules() for name, t in _lost_tensors(m)]
        if lost:
            needed = max(tensor.numel() for _, tensor in lost)
            raise _lost_error(lost, hint=f"give them room: empty_weights(max_real_elements={needed})")


def build_empty(
    build: Callable[[], _ModuleT],
    *,
    max_real_elements: int = MAX_REAL_ELEMENTS,
    follows_meta: bool = True,
) -> _ModuleT:
    """Return the module that `build` returns, built as in `empty_weights`, however large its buffers are.

    Args:
        build: Makes the whole module. Called a second time if a buffer is too large for the first.
        max_real_elements: As for `empty_weights`, on the first call.
        follows_meta: Whether tensors that the module itself asks for on meta are made there; not where it
            makes its buffers on the device of a parameter.

    Returns:
        The module, all parameters on meta and all buffers on the CPU.

    Raises:
        NoValueError: Buffers or tensor attributes are on meta after the second call too.
        NoValueError: A buffer is larger than any model's.
    """
    for _ in range(2):
        with _building(max_real_elements, follows_meta=follows_meta) as builder:
            module = build()
            builder.sweep()  # those built here; one built before keeps its weights
        lost = [
            (f"{fqn}.{name}".removeprefix("."), tensor)
            for fqn, part in module.named_modules()
            for name, tensor in _lost_tensors(part)
        ]
        if not lost:
            return module
        for name, tensor in lost:
            check_room(name, tensor.numel())
        max_real_elements = max(max_real_elements, *(tensor.numel() for _, tensor in lost))
    raise _lost_error(lost, hint="the module itself puts them on meta; let it use the default device")


def _lost_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the module's own buffers and tensor attributes that are on meta."""
    for name, buffer in module._buffers.items():
        if buffer is not None and buffer.is_meta:
            yield name, buffer
    for name, value in vars(module).items():
        # One that requires a gradient was made from parameters, and is made again in forward, as by
        # weight_norm.
        if isinstance(value, torch.Tensor) and value.is_meta and not value.requires_grad:
            yield name, value


def _lost_error(lost: list[tuple[str, torch.Tensor]], *, hint: str) -> NoValueError:
    return NoValueError(
        f"{len(lost)} buffer{'s' if len(lost) != 1 else ''} left without values by an empty build",
        got=", ".join(f"{name} with {tensor.numel()} elements" for name, tensor in lost),
        needed="buffers with values",
        hint=hint,
    )
