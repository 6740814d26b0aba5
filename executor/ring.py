"""Streaming of one device's blocks: a reader thread that fills slots, and calls that wait for them.

Owns the thread and the lock around `RingState`. What a fill reads is the caller's; how blocks announce their
calls is `bayplan.executor.hooks`' part. Knows nothing of torch.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Protocol

from bayplan.executor.errors import (
    ConcurrentUseError,
    ForkedProcessError,
    NestedBlocksError,
    ReleasedError,
    ShardChangedError,
    ShardReadError,
    StreamError,
    ThreadStartError,
    TruncatedShardError,
)
from bayplan.executor.ring_state import BlockCounts, RingState, Slot, SlotState
from bayplan.schemas.errors import BayplanError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bayplan.executor.backend import Event
    from bayplan.schemas.types import Fqn


class Fill(Protocol):
    """Reads a block into a slot."""

    def __call__(self, block: int, slot: int, is_cancelled: Callable[[], bool]) -> int:
        """Return the bytes read; may end early when `is_cancelled()` is true."""


class Ring:
    """The slots of one device, filled ahead by one thread.

    Attributes:
        order: Ids of the streamed blocks; calls name them by position.
    """

    def __init__(
        self,
        order: Sequence[Fqn],
        *,
        num_slots: int,
        fill: Fill,
        is_running: Callable[[int, int], bool],
        on_refill: Callable[[int], None] | None = None,
    ) -> None:
        """Start with empty slots.

        Args:
            order: At least one id.
            num_slots: At least 1; with 1 nothing overlaps.
            fill: Called from the reader thread only, one call at a time, never for a slot in use.
            is_running: Whether a call of a block (first argument) is on the stack of a thread (second). Asked
                only when a call begins before another has ended, to tell calls that an interrupt cut off.
            on_refill: Told the slot whose bytes are about to be replaced; for tests, which poison it.
        """
        self.order = tuple(order)
        self._state = RingState(len(self.order), num_slots)
        self._fill = fill
        self._is_running = is_running
        self._on_refill = on_refill
        self._changed = threading.Condition()
        self._is_cancelled = False
        self._is_closing = False
        self._fatal: BaseException | None = None
        self._pid = os.getpid()
        # A daemon, so that a model which was never released does not keep the interpreter alive.
        self._thread = threading.Thread(target=self._run, name="bayplan-reader", daemon=True)

    def start(self) -> None:
        """Begin to read ahead.

        Raises:
            ThreadStartError: The system gives no thread.
        """
        try:
            self._thread.start()
        except RuntimeError as error:
            raise ThreadStartError("reader", reason=str(error)) from error

    def acquire(self, block: int) -> None:
        """Return when the bytes of `block` are in its slot; they stay until `release`.

        Args:
            block: Position in `order`.

        Raises:
            ForkedProcessError: In a child process, where the reader thread does not exist.
            ReleasedError: The ring is closed, or closes meanwhile.
            ConcurrentUseError: Another thread is inside a block.
            NestedBlocksError: This thread is inside another block that has the same slot.
            StreamError: Reading the block failed, now or when it was read ahead; the next call reads it anew.
        """
        if os.getpid() != self._pid:
            raise ForkedProcessError(self.order[block])
        with self._changed:
            self._check_open(block)
            self._check_calls(block)
            entry = self._state.begin(threading.get_ident(), block)
            try:
                self._await(block)
            except BayplanError:
                # Its post-forward hook still runs, and must find this call and not an outer one.
                entry.has_failed = True
                raise
            except BaseException:
                self._state.drop(entry)
                raise

    def release(self, block: int, last_use: Event | None = None) -> None:
        """Note that this thread's innermost call of `block` is over; without such a call, do nothing.

        Args:
            block: Position in `order`.
            last_use: Passed when the device has finished with the slot's bytes; None: it has already.
        """
        if os.getpid() != self._pid:
            return
        with self._changed:
            entry = self._state.end(threading.get_ident(), block)
            if entry is not None and not entry.has_failed:
                self._state.slot_of(block).last_use = last_use
            self._changed.notify_all()

    def is_called(self, block: int) -> bool:
        """Return whether this thread is inside a call of `block`, so that its bytes are in its slot."""
        return self._state.is_open(threading.get_ident(), block)

    def counts(self, block: int) -> BlockCounts:
        """Return what happened to `block` so far."""
        return self._state.counts[block]

    @property
    def num_skipped(self) -> int:
        """Blocks that were passed over on the way to one that was read ahead."""
        return self._state.num_skipped

    @property
    def num_mispredicted(self) -> int:
        """Blocks that were read on demand, having been called in another order than planned."""
        return self._state.num_mispredicted

    @property
    def num_cancelled(self) -> int:
        """Fills that were given up."""
        return self._state.num_cancelled

    def close(self) -> None:
        """End the thread and wake every waiter. May be called twice, and from any thread."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._is_closing = self._is_cancelled = True
            self._changed.notify_all()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _check_calls(self, block: int) -> None:
        """Forget calls that were cut off, then make sure that this one may begin."""
        for entry in self._state.open_calls():
            # An interrupt skips post-forward hooks: the call is over, but nobody said so.
            if not self._is_running(entry.block, entry.thread):
                self._state.drop(entry)
        for entry in self._state.open_calls():
            if entry.thread != threading.get_ident():
                raise ConcurrentUseError(self.order[block], held=self.order[entry.block])
        held = self._state.other_user(block)
        if held is not None:
            raise NestedBlocksError(self.order[block], held=self.order[held])

    def _await(self, block: int) -> None:
        """Wait until `block` is in its slot."""
        state, slot = self._state, self._state.slot_of(block)
        started_ns = time.perf_counter_ns()
        state.wanted = block
        try:
            while not slot.holds(block, SlotState.READY):
                self._check_open(block)
                if slot.holds(block, SlotState.FAILED):
                    error = slot.error
                    slot.empty()
                    raise _stream_error(self.order[block], error) from error
                self._cancel_useless()
                self._changed.wait()
        finally:
            state.wanted = None
            state.counts[block].wait_ns += time.perf_counter_ns() - started_ns
        self._cancel_useless()

    def _cancel_useless(self) -> None:
        # Never taken back: the reader may have ended early already, and part of a block is no block.
        self._is_cancelled = self._is_cancelled or self._state.is_fill_useless()
        self._changed.notify_all()

    def _check_open(self, block: int) -> None:
        if self._fatal is not None:
            raise _stream_error(self.order[block], self._fatal) from self._fatal
        if self._is_closing:
            raise ReleasedError

    def _run(self) -> None:
        try:
            while (block := self._next()) is not None:
                self._fill_slot(block)
        except BaseException as error:
            # Unforeseen: the thread is lost, and nobody may wait for it.
            with self._changed:
                self._fatal = error
                self._changed.notify_all()
            raise

    def _next(self) -> int | None:
        """Wait for something to read and claim its slot; None: the ring closes."""
        with self._changed:
            while not self._is_closing:
                block = self._state.next_fill()
                if block is not None:
                    slot = self._state.slot_of(block)
                    slot.block, slot.state, slot.error = block, SlotState.FILLING, None
                    self._state.filling = block
                    self._is_cancelled = False
                    return block
                self._changed.wait()
        return None

    def _fill_slot(self, block: int) -> None:
        slot = self._state.slot_of(block)
        error: BaseException | None = None
        num_bytes = 0
        started_ns = time.perf_counter_ns()
        try:
            if slot.last_use is not None:
                slot.last_use.synchronize()
            number = block % len(self._state.slots)
            if self._on_refill is not None:
                self._on_refill(number)
            num_bytes = self._fill(block, number, lambda: self._is_cancelled)
        except (BayplanError, OSError, RuntimeError, ValueError, TypeError, MemoryError) as caught:
            error = caught
        with self._changed:
            self._publish(block, slot, error, num_bytes, time.perf_counter_ns() - started_ns)

    def _publish(
        self, block: int, slot: Slot, error: BaseException | None, num_bytes: int, read_ns: int
    ) -> None:
        if error is not None:
            slot.state, slot.error = SlotState.FAILED, error
        elif self._is_cancelled:
            # It may have ended before it saw the wish; then reading again costs time, never correctness.
            slot.empty()
            self._state.num_cancelled += 1
        else:
            slot.state = SlotState.READY
            self._state.counts[block].read_bytes += num_bytes
            self._state.counts[block].read_ns += read_ns
        self._state.filling = None
        self._changed.notify_all()


def _stream_error(block: Fqn, error: BaseException | None) -> StreamError:
    if isinstance(error, (TruncatedShardError, ShardReadError)):
        return StreamError(block, file=error.file, offset=error.offset, reason=error.what)
    if isinstance(error, ShardChangedError):
        return StreamError(block, file=error.file, offset=None, reason=error.what)
    return StreamError(block, file="", offset=None, reason=f"{type(error).__name__}: {error}")
