"""Which block is in which slot, who uses it, and what should be read next: the rules of streaming, no thread.

Block k of a device's stream order is bound to slot k modulo the number of slots, for good. The blocks after
the one that was entered last are read ahead, around the end of the order, so that a generation loop never
drains. Every decision is made here, under the lock of `bayplan.executor.ring`; nothing here waits or reads.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayplan.executor.backend import Event


class SlotState(enum.Enum):
    """What a slot holds."""

    EMPTY = "empty"
    FILLING = "filling"
    READY = "ready"
    FAILED = "failed"


class Slot:
    """One slot and the block it holds, is filled with, or failed to be filled with.

    Attributes:
        block: Position in the stream order; None when empty.
        state: What the bytes are.
        error: Why filling failed.
        last_use: Passed when the device has finished with the bytes; None: it never used them.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.block: int | None = None
        self.state = SlotState.EMPTY
        self.error: BaseException | None = None
        self.last_use: Event | None = None

    def holds(self, block: int, *states: SlotState) -> bool:
        """Return whether the slot is `block`'s now, in one of `states`."""
        return self.block == block and self.state in states

    def empty(self) -> None:
        """Forget the block; the bytes mean nothing from now on."""
        self.block, self.state, self.error = None, SlotState.EMPTY, None


class Entry:
    """One call of a block that has begun and not ended.

    Attributes:
        thread: Identifier of the calling thread.
        block: Position in the stream order.
        has_failed: The block could not be brought in; its call ends with an error.
    """

    def __init__(self, thread: int, block: int) -> None:
        """Begin a call."""
        self.thread = thread
        self.block = block
        self.has_failed = False


class BlockCounts:
    """What happened to one block.

    Attributes:
        visits: Calls.
        read_bytes: Read for it in whole fills.
        read_ns: Time of these.
        wait_ns: Time that its calls waited.
    """

    def __init__(self) -> None:
        """Start at zero."""
        self.visits = self.read_bytes = self.read_ns = self.wait_ns = 0


class RingState:
    """The slots of one device.

    Attributes:
        slots: By number.
        counts: By position in the stream order.
        wanted: Block that a call waits for.
        filling: Block that is being read.
        num_skipped: Blocks passed over on the way to one that was read ahead.
        num_mispredicted: Blocks that had to be read on demand, being called in another order.
        num_cancelled: Fills given up because nobody wants the block any more.
    """

    def __init__(self, num_blocks: int, num_slots: int) -> None:
        """Start with empty slots; the first blocks of the order are expected."""
        assert num_blocks > 0, "a ring streams at least one block"
        assert num_slots > 0, "a ring has at least one slot"
        self.slots = tuple(Slot() for _ in range(num_slots))
        self.counts = tuple(BlockCounts() for _ in range(num_blocks))
        self.wanted: int | None = None
        self.filling: int | None = None
        self.num_skipped = self.num_mispredicted = self.num_cancelled = 0
        self._entries: list[Entry] = []
        self._position = -1

    def slot_of(self, block: int) -> Slot:
        """Return the slot that `block` is bound to."""
        return self.slots[block % len(self.slots)]

    def open_calls(self) -> tuple[Entry, ...]:
        """Return the calls that have begun and whose bytes are in use, oldest first."""
        return tuple(entry for entry in self._entries if not entry.has_failed)

    def is_open(self, thread: int, block: int) -> bool:
        """Return whether `thread` is inside a call of `block`; may be asked without the lock."""
        for entry in tuple(self._entries):
            if entry.block == block and entry.thread == thread and not entry.has_failed:
                return True
        return False

    def begin(self, thread: int, block: int) -> Entry:
        """Note that `thread` calls `block`, and expect the blocks after it."""
        entry = Entry(thread, block)
        self._entries.append(entry)
        self.counts[block].visits += 1
        self._count_order(block)
        self._position = block
        return entry

    def end(self, thread: int, block: int) -> Entry | None:
        """Note that the innermost call of `block` in `thread` is over; None: there was none."""
        for entry in reversed(self._entries):
            if entry.thread == thread and entry.block == block:
                self._entries.remove(entry)
                return entry
        return None

    def drop(self, entry: Entry) -> None:
        """Forget a call that did not end as calls do."""
        self._entries.remove(entry)

    def other_user(self, block: int) -> int | None:
        """Return another block whose running call uses the slot of `block`, or None."""
        slot = self.slot_of(block)
        for entry in self.open_calls():
            if entry.block != block and self.slot_of(entry.block) is slot:
                return entry.block
        return None

    def next_fill(self) -> int | None:
        """Return the block to read next, or None where nothing may or need be read.

        A block that a call waits for comes first. Then those after the last one called, as far as there are
        slots whose bytes nobody uses.
        """
        wanted = self.wanted
        if wanted is not None and self._may_fill(wanted) and self.other_user(wanted) is None:
            return wanted
        in_use = {id(self.slot_of(entry.block)) for entry in self.open_calls()}
        for block in self._ahead():
            if id(self.slot_of(block)) not in in_use and self._may_fill(block):
                return block
        return None

    def is_fill_useless(self) -> bool:
        """Return whether the block being read is in the way of a wanted one, or wanted by nobody."""
        filling, wanted = self.filling, self.wanted
        if filling is None or filling == wanted:
            return False
        if wanted is not None and self.slot_of(wanted) is self.slot_of(filling):
            return True
        return filling not in self._ahead()

    def _may_fill(self, block: int) -> bool:
        slot = self.slot_of(block)
        holds_it = slot.holds(block, SlotState.FILLING, SlotState.READY, SlotState.FAILED)
        return not holds_it and slot.state is not SlotState.FILLING

    def _ahead(self) -> list[int]:
        """Return the blocks to have ready, soonest first: at most one per slot."""
        num_blocks, ahead, taken = len(self.counts), [], set()
        for distance in range(1, len(self.slots) + 1):
            block = (self._position + distance) % num_blocks
            slot = block % len(self.slots)
            if slot not in taken:
                taken.add(slot)
                ahead.append(block)
        return ahead

    def _count_order(self, block: int) -> None:
        passed_over = (block - self._position - 1) % len(self.counts)
        if passed_over == 0:
            return
        is_there = self.slot_of(block).holds(block, SlotState.FILLING, SlotState.READY)
        if not is_there:
            self.num_mispredicted += 1
        elif block != self._position:
            self.num_skipped += passed_over
