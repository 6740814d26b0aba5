"""What a forward does, operation by operation: blocks entered, memory taken, weights read, work done.

Owns the torch mode that watches a forward on meta tensors and the log that it writes. Knows nothing of
transformers; `footprint` turns the log into bytes and `trace` into a model graph.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import weakref
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bayplan.planner.model.known_values import Runner
from bayplan.planner.model.tensor_arguments import argument_tensors, storage_key, tensors_in

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

# The largest models take some 30 000. A Mamba layer without its kernel loops over the positions in Python: a
# context of 1024 would take minutes.
MAX_OPERATIONS = 60_000
"""Operations after which a forward is given up as too long to trace."""


class TraceTooLongError(RuntimeError):
    """A forward, or one call of a block, of more operations than were allowed."""


class SeenEnoughError(RuntimeError):
    """Ends a forward of which nothing more is to be learned."""


class EventKind(enum.IntEnum):
    """What happened to memory or to a block."""

    ENTER = 0
    EXIT = 1
    ALLOCATE = 2
    FREE = 3
    OPERATE = 4


class Event(NamedTuple):
    """One line of the log."""

    kind: EventKind
    key: int
    """Block index for ENTER and EXIT; the storage's serial number for ALLOCATE and FREE; for OPERATE a number
    that is the same for the same operation."""
    num_bytes: int
    """Of the storage; 0 where there is none."""


@dataclasses.dataclass
class StorageNote:
    """What is known of one live storage that is no parameter or buffer."""

    serial: int
    num_bytes: int
    producers: frozenset[int]
    """Blocks whose work is in it."""
    filled_in: int | None
    """The block that was being called when it was last written: at first, when it was allocated."""


class Handed(NamedTuple):
    """What one call of a block's experts is handed."""

    per_token: int
    """Experts that a position is routed to."""
    hidden_bytes: int
    """Of the positions, without their routes."""


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
    operations: dict[int, int] = dataclasses.field(default_factory=dict)
    """Those that compute or copy: a view of a tensor takes no time to speak of."""
    output_bytes: dict[int, int] = dataclasses.field(default_factory=dict)
    output_rows: dict[int, int] = dataclasses.field(default_factory=dict)
    """Block to the product of all sizes but the last of what it returned first."""
    inputs: dict[int, dict[int, tuple[int, frozenset[int]]]] = dataclasses.field(default_factory=dict)
    """Block to storage serial to (bytes, producers), for what it used and did not make."""
    used_outside: set[int] = dataclasses.field(default_factory=set)
    """Blocks whose tensors were read while they were not being called."""
    mutated: set[int] = dataclasses.field(default_factory=set)
    """Blocks with a buffer that was written in place."""
    expert_flops: dict[int, int] = dataclasses.field(default_factory=dict)
    """Of `flops`, those within calls of the block's experts."""
    expert_bytes: dict[int, int] = dataclasses.field(default_factory=dict)
    """Block to the bytes of the positions that were handed to its experts."""
    expert_routes: dict[int, set[int | None]] = dataclasses.field(default_factory=dict)
    """Block to the numbers of experts that its calls routed a position to. None: the experts were called with
    something else, or their tensors were read without a call of them."""
    copied_bytes: dict[int, int] = dataclasses.field(default_factory=dict)
    """Block to the bytes of experts that one of its calls would copy, with their weights for every route."""


class ActivityMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes a `ForwardLog` of everything that runs inside it.

    Attributes: log: The log of the forward that runs now; `start` begins a new one and keeps what is known of
        live storages. cache: What a block of this forward was handed as its cache; None: nothing.
    """

    def __init__(
        self,
        owners: Mapping[int, frozenset[int]],
        buffers: frozenset[int],
        *,
        experts: Mapping[int, int] | None = None,
        max_call_operations: int | None = None,
    ) -> None:
        """Watch the storages of `owners`, by their blocks; a write to one of `buffers` is noted.

        So is a read of one of `experts`, by their blocks too, without a call of the block's experts. Give up
        where one call of a block takes more than `max_call_operations`.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = ForwardLog()
        self.cache: object = None
        self._owners = owners
        self._buffers = buffers
        self._experts = experts or {}
        self._notes: dict[int, StorageNote] = {}
        self._watches: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._runner = Runner()
        self._stack: list[int] = []
        self._called_experts: int | None = None
        """The block whose experts are being called."""
        self._flops_before = 0
        self._ancestors: dict[int, set[int]] = {}
        """Block to the blocks whose work it has used, at any distance."""
        self._num_storages = 0
        self._num_operations = 0
        self._max_call_operations = max_call_operations or MAX_OPERATIONS
        self._last_operation = MAX_OPERATIONS
        self._awaited: set[int] = set()
        self._num_more_calls: int | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # Nothing is compiled inside; the guard against it costs as much as an operation.

    def start(self) -> None:
        """Begin the log of another forward; what is alive stays known and is its first entry."""
        self.cache = None
        alive = [Event(EventKind.ALLOCATE, note.serial, note.num_bytes) for note in self._notes.values()]
        self.log = ForwardLog(events=alive)
        self._stack.clear()
        self._called_experts = self._runner.num_routed = None
        self._num_operations = 0
        self._last_operation = MAX_OPERATIONS

    def stop_after(self, awaited: Collection[int], num_more_calls: int) -> None:
        """End the next forward once all of `awaited` and as many calls more have returned."""
        self._awaited = set(awaited)
        self._num_more_calls = num_more_calls

    def enter(self, block: int) -> None:
        """Note that the module of `block` is being called."""
        self.log.num_calls[block] = self.log.num_calls.get(block, 0) + 1
        self.log.first_call.setdefault(block, self._num_operations)
        self._num_operations += 1  # So that two blocks never have the same place.
        self.log.events.append(Event(EventKind.ENTER, block, 0))
        if not self._stack:
            self._last_operation = min(MAX_OPERATIONS, self._num_operations + self._max_call_operations)
        self._stack.append(block)

    def exit(self, block: int, output: object) -> None:
        """Note that the call of `block` returned `output`."""
        self._stack.pop()
        if not self._stack:
            self._last_operation = MAX_OPERATIONS
        self.log.events.append(Event(EventKind.EXIT, block, 0))
        returned = list(tensors_in(output))
        if returned:
            self.log.output_rows[block] = math.prod(returned[0].shape[:-1])
        handed_on = {
            (storage_key(tensor), tensor.storage_offset(), tensor.shape, tensor.stride()): tensor.nbytes
            for tensor in returned
        }
        self.log.output_bytes[block] = max(self.log.output_bytes.get(block, 0), sum(handed_on.values()))
        self._count_down(block)

    def _count_down(self, block: int) -> None:
        if self._num_more_calls is None:
            return
        self._awaited.discard(block)
        if not self._awaited:
            self._num_more_calls -= 1
            if self._num_more_calls < 0:
                self._num_more_calls = None
                raise SeenEnoughError

    def enter_experts(self, block: int, handed: Handed | None) -> None:
        """Note that the experts of `block` are being called, with positions and routes, or something else."""
        self._called_experts = block
        self._flops_before = self.log.flops.get(block, 0)
        self._runner.num_routed = None if handed is None else handed.per_token
        self.log.expert_routes.setdefault(block, set()).add(self._runner.num_routed)
        if handed is not None:
            self.log.expert_bytes[block] = self.log.expert_bytes.get(block, 0) + handed.hidden_bytes

    def copy_experts(self, block: int, num_bytes: int) -> None:
        """Note a call of experts in `block` that would copy so much of them elsewhere."""
        self.log.copied_bytes[block] = max(self.log.copied_bytes.get(block, 0), num_bytes)

    def exit_experts(self, block: int) -> None:
        """Note that they have returned."""
        flops = self.log.flops.get(block, 0) - self._flops_before
        self.log.expert_flops[block] = self.log.expert_flops.get(block, 0) + flops
        self._called_experts = self._runner.num_routed = None

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
        if self._num_operations > self._last_operation:
            raise TraceTooLongError(f"a forward takes more than {MAX_OPERATIONS} operations")
        kwargs = kwargs or {}
        kind = self._runner.kind(func)
        self.log.events.append(Event(EventKind.OPERATE, kind.number, 0))
        tensors = argument_tensors(args, kwargs)
        producers = self._read(func, args, kwargs, tensors)
        # Between the blocks a model picks what is real among its images and positions, at most all; within a
        # block it might be experts, of which each takes a few.
        self._runner.takes_all = not self._stack
        output, flops = self._runner.run(func, args, kwargs, tensors)
        for tensor in tensors_in(output):
            self._register(tensor, producers)
        if not kind.is_view:
            self._credit(flops, tensors, producers)
        return output

    def _credit(self, flops: int, tensors: Sequence[torch.Tensor], producers: frozenset[int]) -> None:
        """Note an operation and its work as that of the block that is called.

        Between the calls it is that of the block whose weights are read, or else whose results are.
        """
        blocks: Collection[int] = self._stack[-1:]
        if not blocks:
            owners = [self._owners.get(storage_key(tensor), frozenset()) for tensor in tensors]
            blocks = frozenset().union(*owners) or producers
        if blocks:
            block = min(blocks)
            self.log.operations[block] = self.log.operations.get(block, 0) + 1
            if flops:
                self.log.flops[block] = self.log.flops.get(block, 0) + flops

    def _read(
        self,
        func: torch._ops.OpOverload,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        tensors: Sequence[torch.Tensor],
    ) -> frozenset[int]:
        """Note what the operation reads and writes; return the blocks whose work its result holds."""
        top = self._stack[-1] if self._stack else None
        producers: set[int] = set() if top is None else {top}
        used: list[StorageNote] = []
        for tensor in tensors:
            key = storage_key(tensor)
            owners = self._owners.get(key)
            if owners is not None:
                self._read_owned(owners)
                experts = self._experts.get(key)
                if experts is not None and experts != self._called_experts:
                    self.log.expert_routes.setdefault(experts, set()).add(None)
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
                self._follow(top, note.producers)
        if top is None and len(producers) > 1:
            producers = self._last(producers)
        for position, name in self._runner.kind(func).writes:
            self._write(args[position] if position < len(args) else kwargs.get(name), used, producers)
        return frozenset(producers)

    def _follow(self, block: int, producers: frozenset[int]) -> None:
        known = self._ancestors.setdefault(block, set())
        for producer in producers:
            known.add(producer)
            known.update(self._ancestors.get(producer, ()))

    def _last(self, producers: set[int]) -> set[int]:
        """Return the producers without those whose work another one of them has used.

        A residual stream that is added up between the blocks would otherwise come from all of them. Blocks
        that have used each other's, as those do that are called in turns, all stay.
        """
        last = {
            one
            for one in producers
            if not any(one in self._ancestors.get(other, ()) for other in producers if other != one)
        }
        return last or producers

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
        # Not `weakref.finalize`, which is as slow as an operation.
        self._watches[key] = weakref.ref(storage, functools.partial(self._free, key, serial, num_bytes))

    def _free(self, key: int, serial: int, num_bytes: int, _: object) -> None:
        del self._notes[key], self._watches[key]
        self.log.events.append(Event(EventKind.FREE, serial, num_bytes))
