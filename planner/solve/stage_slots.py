"""What a stretch of the chain asks of one device: its blocks, and the slots with which it may fit.

Bounds that take no search are made here; `stage_windows` searches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from bayplan.planner.solve.modes import SLOT_COUNTS
from bayplan.planner.solve.stage_experts import Apart
from bayplan.schemas.types import Residency


class Streaming(msgspec.Struct, frozen=True, kw_only=True):
    """One way to bring a block's weights in before each visit."""

    residency: Residency
    compute_ns: int
    transfer_ns: int


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A block as one device can have it."""

    num_bytes: int
    """Of its weights, in a slot or resident."""
    resident_ns: int | None
    """That it computes where it stays; None: it must stream."""
    streaming: tuple[Streaming, ...]
    """Empty: it must stay."""
    apart: Apart | None = None
    """How its experts can be apart from it; None: they cannot."""

    @property
    def least_ns(self) -> int:
        """Least time that it computes, experts beside it."""
        streamed = [way.compute_ns for way in self.streaming]
        return min(streamed if self.resident_ns is None else [self.resident_ns, *streamed])


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Neighbouring blocks, and what their device has for their weights and slots.

    The experts of all that can be apart from their blocks are alike.
    """

    parts: tuple[Part, ...]
    room_bytes: int

    @property
    def apart(self) -> Apart | None:
        """How experts can be apart from their blocks; None: they cannot."""
        return next((part.apart for part in self.parts if part.apart is not None), None)

    @property
    def resident_ns(self) -> int | None:
        """What it computes where all of it stays; None: something has to stream."""
        times = [part.resident_ns for part in self.parts if part.resident_ns is not None]
        num_bytes = sum(part.num_bytes for part in self.parts)
        return sum(times) if len(times) == len(self.parts) and num_bytes <= self.room_bytes else None


class Slots(msgspec.Struct, frozen=True, kw_only=True):
    """A number of slots of one size, and what then has to stream."""

    count: int
    num_bytes: int
    """Of one."""
    needed_bytes: int
    """Of the weights that have to stream at least."""
    floor_ns: int
    """What the window takes at least."""

    def takes(self, part: Part) -> bool:
        """Whether a block can stream through them."""
        return bool(part.streaming) and part.num_bytes <= self.num_bytes


def floor_ns(stretch: Stretch) -> int | None:
    """Return a lower bound of the least window with experts beside their blocks; None: nothing fits."""
    if stretch.resident_ns is not None:
        return stretch.resident_ns
    return min((slots.floor_ns for slots in slots_of(stretch)), default=None)


def slots_of(stretch: Stretch) -> Iterator[Slots]:
    """Yield the slots with which a stretch may fit."""
    parts = stretch.parts
    total = sum(part.num_bytes for part in parts)
    computing_ns = sum(part.least_ns for part in parts)
    largest_forced = max((part.num_bytes for part in parts if part.resident_ns is None), default=0)
    for num_bytes in sorted({part.num_bytes for part in parts if part.streaming}):
        able = [part for part in parts if part.streaming and part.num_bytes <= num_bytes]
        able_bytes = sum(part.num_bytes for part in able)
        for count in SLOT_COUNTS:
            needed = max(0, total + count * num_bytes - stretch.room_bytes)
            if num_bytes < largest_forced or needed > able_bytes:
                continue
            floor = max(computing_ns, _courier_ns(able, count, num_bytes, needed))
            yield Slots(count=count, num_bytes=num_bytes, needed_bytes=needed, floor_ns=floor)


def _courier_ns(able: Sequence[Part], num_slots: int, slot_bytes: int, needed_bytes: int) -> int:
    """Return what transfers of as many bytes, and what does not overlap them, take at least in a window."""
    transfer_ns, num_bytes = fastest(able)
    late = needed_bytes - num_slots * slot_bytes
    if late <= 0:
        return 0
    visit_ns = min(way.compute_ns for part in able for way in part.streaming)
    # Through one slot nothing comes in while a streamed block computes; through more, not before the first
    # one of them has, and the last one is followed by its own.
    visits = -(-needed_bytes // slot_bytes) if num_slots == 1 else 2
    return -(-late * transfer_ns // num_bytes) + visits * visit_ns


def fastest(able: Iterable[Part]) -> tuple[int, int]:
    """Return nanoseconds and bytes of the transfer that takes the least per byte."""
    transfers = [(way.transfer_ns, part.num_bytes) for part in able for way in part.streaming]
    best = transfers[0]
    for one in transfers[1:]:
        if one[0] * best[1] < best[0] * one[1]:
            best = one
    return best
