"""What a forward does, operation by operation: blocks entered, memory taken, weights read, work done.

Owns the torch mode that watches a forward on meta tensors and the log that it writes. Knows nothing of
transformers; `footprint` turns the log into bytes and `trace` into a model graph.
"""

from __future__ import annotations

import dataclasses
import enum
import weakref
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bayplan.planner.model.operations import operation_flops, run_operation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# The largest models take some 30 000. A Mamba layer without its kernel loops over the positions in Python: a
# context of 1024 would take minutes.
MAX_OPERATIONS = 60_000
"""Operations after which a forward is given up as too long to trace."""

_aten = torch.ops.aten


class TraceTooLongError(RuntimeError):
    """A forward of more than `MAX_OPERATIONS` operations."""


class EventKind(enum.IntEnum):
    """What happened to memory or to a block."""

    ENTER = 0
    EXIT = 1
    ALLOCATE = 2
    FREE = 3


class Event(NamedTuple):
    """One line of the log."""

    kind: EventKind
    key: int
    """Block index for ENTER and EXIT; the storage's serial number for the others."""
    num_bytes: int
    """Of the storage; 0 for ENTER and EXIT."""


@dataclasses.dataclass
class StorageNote:
    """What is known of one live storage that is no parameter or buffer."""

    serial: int
    num_bytes: int
    producers: frozenset[int]
    """Blocks whose work is in it."""
    filled_in: int | None
    """The block that was being called when it was last written: at first, when it was allocated."""


@dataclasses.dataclass
class ForwardLog:
    """Everything noted of one forward; blocks are named by their index in the partition."""

    events: list[Event] = dataclasses.field(default_factory=list)
    num_calls: dict[int, int] = dataclasses.field(default_factory=dict)
    first_call: dict[int, int] = dataclasses.field(default_factory=dict)
    """Block to the number of the operation before which it was first entered."""
    first_read: dict[int, int] = dataclasses.field(default_factory=dict)
    """Block to the number of the operation that first read a tensor of it."""
    flops: dict[int, int] = dataclasses.field(default_factory=dict)
    output_bytes: dict[int, int] = dataclasses.field(default_factory=dict)
    inputs: dict[int, dict[int, tuple[int, frozenset[int]]]] = dataclasses.field(default_factory=dict)
    """Block to storage serial to (bytes, producers), for what it used and did not make."""
    used_outside: set[int] = dataclasses.field(default_factory=set)
    """Blocks whose tensors were read while they were not being called."""
    mutated: set[int] = dataclasses.field(default_factory=set)
    """Blocks with a buffer that was written in place."""


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


class ActivityMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes a `ForwardLog` of everything that runs inside it.

    Attributes: log: The log of the forward that runs now; `start` begins a new one and keeps what is known of
        live storages.
    """

    def __init__(self, owners: Mapping[int, frozenset[int]], buffers: frozenset[int]) -> None:
        """Watch the storages of `owners`, by their blocks; a write to one of `buffers` is noted."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = ForwardLog()
        self._owners = owners
        self._buffers = buffers
        self._notes: dict[int, StorageNote] = {}
        self._stack: list[int] = []
        self._num_storages = 0
        self._num_operations = 0

    def start(self) -> None:
        """Begin the log of another forward; what is alive stays known and is its first entry."""
        alive = [Event(EventKind.ALLOCATE, note.serial, note.num_bytes) for note in self._notes.values()]
        self.log = ForwardLog(events=alive)
        self._stack.clear()
        self._num_operations = 0

    def enter(self, block: int) -> None:
        """Note that the module of `block` is being called."""
        self.log.num_calls[block] = self.log.num_calls.get(block, 0) + 1
        self.log.first_call.setdefault(block, self._num_operations)
        self._num_operations += 1  # So that two blocks never have the same place.
        self.log.events.append(Event(EventKind.ENTER, block, 0))
        self._stack.append(block)

    def exit(self, block: int, output: object) -> None:
        """Note that the call of `block` returned `output`."""
        self._stack.pop()
        self.log.events.append(Event(EventKind.EXIT, block, 0))
        handed_on = {storage_key(tensor): tensor.nbytes for tensor in tensors_in(output)}
        self.log.output_bytes[block] = max(self.log.output_bytes.get(block, 0), sum(handed_on.values()))

    def note(self, tensor: torch.Tensor) -> StorageNote | None:
        """Return what is known of a tensor's storage; None for what is no activation."""
        return self._notes.get(storage_key(tensor))

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self._num_operations += 1
        if self._num_operations > MAX_OPERATIONS:
            raise TraceTooLongError(f"a forward takes more than {MAX_OPERATIONS} operations")
        kwargs = kwargs or {}
        if func is _aten._local_scalar_dense.default and _is_unknown_bool(args[0]):
            # A meta tensor has no value. Models ask whether a mask is all true, or a number infinite, and go
            # the cheaper way if they may: False makes them go the other one.
            return False
        producers = self._read(func, args, kwargs)
        output = run_operation(func, args, kwargs)
        outputs = list(tensors_in(output))
        for tensor in outputs:
            self._register(tensor, producers)
        if self._stack:
            block = self._stack[-1]
            flops = operation_flops(func.overloadpacket, args, kwargs, output)
            self.log.flops[block] = self.log.flops.get(block, 0) + flops
        return output

    def _read(
        self, func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> frozenset[int]:
        """Note what the operation reads and writes; return the blocks whose work its result holds."""
        top = self._stack[-1] if self._stack else None
        producers: set[int] = set() if top is None else {top}
        used: list[StorageNote] = []
        for tensor in tensors_in((args, kwargs)):
            key = storage_key(tensor)
            owners = self._owners.get(key)
            if owners is not None:
                self._read_owned(owners)
                if top is None:
                    producers.update(owners)
                continue
            note = self._notes.get(key)
            if note is None:
                continue
            used.append(note)
            if top is None:
                producers.update(note.producers)
            elif note.producers and top not in note.producers:
                entry = self.log.inputs.setdefault(top, {})
                known, _ = entry.get(note.serial, (0, note.producers))
                entry[note.serial] = (max(known, tensor.nbytes), note.producers)
        if func._schema.is_mutable:
            names = [argument.name for argument in func._schema.arguments]
            values = dict(zip(names, args, strict=False)) | kwargs
            for argument in func._schema.arguments:
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self._write(values.get(argument.name), used, producers)
        return frozenset(producers)

    def _read_owned(self, owners: frozenset[int]) -> None:
        for block in owners:
            self.log.first_read.setdefault(block, self._num_operations)
        if not owners.intersection(self._stack):
            self.log.used_outside.update(owners)

    def _write(self, value: object, used: list[StorageNote], producers: set[int]) -> None:
        """Note that `value` is written in place: a buffer, or something that others will read."""
        for tensor in tensors_in(value):
            key = storage_key(tensor)
            if key in self._buffers:
                self.log.mutated.update(self._owners[key])
            note = self._notes.get(key)
            if note is not None and note in used:
                note.producers |= producers
                note.filled_in = self._stack[-1] if self._stack else note.filled_in

    def _register(self, tensor: torch.Tensor, producers: frozenset[int]) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._notes or key in self._owners:
            return
        self._num_storages += 1
        serial, num_bytes = self._num_storages, storage.nbytes()
        filled_in = self._stack[-1] if self._stack else None
        self._notes[key] = StorageNote(serial, num_bytes, producers, filled_in)
        self.log.events.append(Event(EventKind.ALLOCATE, serial, num_bytes))
        weakref.finalize(storage, self._free, key, serial, num_bytes).atexit = False

    def _free(self, key: int, serial: int, num_bytes: int) -> None:
        del self._notes[key]
        self.log.events.append(Event(EventKind.FREE, serial, num_bytes))


def _is_unknown_bool(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_meta and value.dtype == torch.bool
