"""Memory that is reserved once: an arena for what stays, slots for what streams.

Owns anonymous mappings and their division into aligned pieces. Everything is reserved when an arena is made,
so a plan that does not fit fails there and not in the middle of a run. Knows nothing of models or files.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import sys

import torch

from bayplan.executor.errors import MemoryBudgetError
from bayplan.executor.host_memory import host_available_bytes
from bayplan.schemas.plan import ALIGNMENT_BYTES, aligned_bytes

_HUGE_PAGE_BYTES = 2 * 2**20
_MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module has no name for it before Python 3.14


class Region:
    """A piece of an arena, as bytes to read into and as tensors to compute on.

    Attributes:
        num_bytes: Length.
        address: Of the first byte; a multiple of `ALIGNMENT_BYTES`.
    """

    def __init__(self, mapping: mmap.mmap, *, base_address: int, start: int, num_bytes: int) -> None:
        """Refer to `num_bytes` bytes of `mapping` from `start` on."""
        assert start % ALIGNMENT_BYTES == 0, "regions are carved aligned"
        self._mapping = mapping
        self._start = start
        self._base_address = base_address
        self.num_bytes = num_bytes
        self.address = base_address + start

    def memory(self) -> memoryview:
        """Return the bytes themselves, writable; they keep the arena's memory alive."""
        return memoryview(self._mapping)[self._start : self._start + self.num_bytes]

    def holds(self, address: int) -> bool:
        """Return whether the byte at `address` is one of the region's."""
        return 0 <= address - self.address < self.num_bytes

    def carve(self, start: int, num_bytes: int) -> Region:
        """Return the part of `num_bytes` bytes from `start` on, a multiple of `ALIGNMENT_BYTES`."""
        assert start >= 0, "a part begins inside its region"
        assert start + num_bytes <= self.num_bytes, "a part ends inside its region"
        return Region(
            self._mapping,
            base_address=self._base_address,
            start=self._start + start,
            num_bytes=num_bytes,
        )

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor over the region.

        Every tensor has a storage of its own, of exactly its bytes: libraries that look for shared storages
        must not take neighbours in an arena for views of each other.

        Args:
            dtype: Element type.
            shape: Shape whose bytes are at most `num_bytes`.

        Returns:
            Shape `shape`, on the CPU, aligned to `ALIGNMENT_BYTES`; never an inference tensor.
        """
        num_elements = 1
        for size in shape:
            num_elements *= size
        with torch.inference_mode(mode=False):
            if num_elements == 0:
                return torch.empty(shape, dtype=dtype)
            flat = torch.frombuffer(self._mapping, dtype=dtype, count=num_elements, offset=self._start)
            return flat.view(shape)


class Arena:
    """One anonymous mapping, reserved and touched at construction, handed out front to back.

    The memory returns to the system when the arena is closed and the last tensor over it is gone.

    Attributes:
        num_bytes: Length as reserved.
    """

    def __init__(self, num_bytes: int, *, device: str = "cpu") -> None:
        """Reserve `num_bytes` bytes.

        Args:
            num_bytes: May be 0.
            device: Id in the plan, for the message.

        Raises:
            MemoryBudgetError: The system does not give that much.
        """
        self.num_bytes = aligned_bytes(num_bytes)
        self._used_bytes = 0
        self._region: Region | None = _reserve(self.num_bytes, device)

    def carve(self, num_bytes: int) -> Region:
        """Return the next `num_bytes` bytes; asking for more than was reserved is a bug of the caller."""
        assert self._region is not None, "an arena is carved before it is closed"
        start = self._used_bytes
        self._used_bytes += aligned_bytes(num_bytes)
        assert self._used_bytes <= self.num_bytes, "an arena is reserved for all that is carved from it"
        return self._region.carve(start, num_bytes)

    def holds(self, address: int) -> bool:
        """Return whether the byte at `address` is one of the arena's."""
        return self._region is not None and self._region.holds(address)

    def close(self) -> None:
        """Let go of the memory; it is returned when the last tensor over it is gone. May be called twice."""
        self._region = None


class Slots:
    """Equal places for streamed blocks; block k of a stream order always uses slot k modulo `num_slots`.

    Attributes:
        num_slots: How many.
        slot_bytes: Length of each.
    """

    def __init__(self, arena: Arena, *, num_slots: int, slot_bytes: int) -> None:
        """Carve the slots from `arena`."""
        self.num_slots = num_slots
        self.slot_bytes = aligned_bytes(slot_bytes)
        self._regions = tuple(arena.carve(self.slot_bytes) for _ in range(num_slots))

    def region(self, slot: int) -> Region:
        """Return slot number `slot`."""
        return self._regions[slot]

    def slot_at(self, address: int) -> int | None:
        """Return the number of the slot that the byte at `address` is in, or None."""
        for slot, region in enumerate(self._regions):
            if region.holds(address):
                return slot
        return None


def _reserve(num_bytes: int, device: str) -> Region:
    try:
        # Private: a shared mapping is shared memory, which the kernel counts as a file's pages.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        mapping = mmap.mmap(-1, max(num_bytes, ALIGNMENT_BYTES), flags=flags)
        _touch(mapping)
    except (OSError, OverflowError) as error:
        raise MemoryBudgetError(
            device, needed_bytes=num_bytes, available_bytes=host_available_bytes()
        ) from error
    first = torch.frombuffer(mapping, dtype=torch.uint8, count=1)
    return Region(mapping, base_address=first.data_ptr(), start=0, num_bytes=num_bytes)


def _touch(mapping: mmap.mmap) -> None:
    """Make every page present: later first touches would be slow, and could fail where nobody expects it."""
    if sys.platform == "linux":
        if len(mapping) >= _HUGE_PAGE_BYTES:
            with contextlib.suppress(OSError):  # a kernel without huge pages is only slower
                mapping.madvise(mmap.MADV_HUGEPAGE)
        try:
            mapping.madvise(_MADV_POPULATE_WRITE)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise
        else:
            return
    torch.frombuffer(mapping, dtype=torch.uint8).zero_()
