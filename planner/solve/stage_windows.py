"""The least time that one device's stretch of the chain can take in a step, exactly, with what attains it.

A window lasts from the begin of a device's first block to the end of its last. It is shortest where all slots
are full when it opens: then which blocks stream, whence, and through how many slots, decides it. Every such
choice that fits the device is searched, block by block; of beginnings that save as much memory those are kept
that no other is ahead of. What devices share is not looked at, so the sum over them bounds every placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from bayplan.planner.solve.deadline import Deadline
from bayplan.planner.solve.experts import SplitExperts
from bayplan.planner.solve.stage_slots import Part, Slots, Streaming, Stretch, fastest, slots_of
from bayplan.schemas.types import Residency

Rank: TypeAlias = tuple[int, int, int]
"""Nanoseconds, bytes brought in, slots."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch on its device."""

    window_ns: int
    moved_bytes: int
    """Brought in per step."""
    num_slots: int
    """0: nothing streams."""
    ways: tuple[Residency | SplitExperts, ...]
    """Per block: where it is, or how its experts are apart from it."""

    @property
    def rank(self) -> Rank:
        """What makes one better than another of the same stretch: smaller is better."""
        return self.window_ns, self.moved_bytes, self.num_slots


_Picks: TypeAlias = "tuple[int, Streaming, _Picks] | None"
"""Positions of what streams and how, the last one first."""

_State: TypeAlias = tuple[int, int, tuple[int, ...], int, _Picks]
"""Nanoseconds from the begin of the window until the last block has computed, and until the courier may bring
the next one; when the latest streamed blocks ended, one fewer than slots, oldest first; bytes moved; what
streams."""


class OutOfWork(Exception):
    """A search has looked at as many states as it may, or is to end by the clock."""


class WindowSearch:
    """Finds least windows.

    Attributes:
        num_states: Beginnings of stretches that were looked at so far: the work done.
    """

    def __init__(self, max_states: int | None = None, deadline: Deadline | None = None) -> None:
        """Prepare it.

        Args:
            max_states: Of all windows together; None: as many as it takes.
            deadline: When to end.
        """
        self._max_states = max_states
        self._deadline = deadline or Deadline()
        self.num_states = 0

    def least(self, stretch: Stretch, below_ns: int | None = None) -> Window | None:
        """Return the best way to have a stretch, experts beside their blocks.

        None: there is none, or none shorter than `below_ns`.

        Of equally short windows the one that moves the fewest bytes, then that with the fewest slots.

        Raises:
            OutOfWork: There is no more work to be done, and nothing is known of this window.
        """
        if stretch.resident_ns is not None:
            if below_ns is not None and stretch.resident_ns >= below_ns:
                return None
            ways = (Residency.RESIDENT,) * len(stretch.parts)
            return Window(window_ns=stretch.resident_ns, moved_bytes=0, num_slots=0, ways=ways)
        best: Window | None = None
        limit = None if below_ns is None else (below_ns, 0, 0)
        for slots in sorted(slots_of(stretch), key=lambda own: (own.floor_ns, own.count, own.num_bytes)):
            if best is not None:
                limit = best.rank
            if limit is None or slots.floor_ns <= limit[0]:
                best = self._streamed(stretch, slots, limit) or best
        return best

    def _streamed(self, stretch: Stretch, slots: Slots, limit: Rank | None) -> Window | None:
        """Return the best way with these slots that comes before `limit`; None: none does."""
        rest = _Rest(stretch.parts, slots)
        start: _State = (0, 0, (0,) * (slots.count - 1), 0, None)
        groups: dict[tuple[int, int], list[_State]] = {(0, slots.count): [start]}
        for place, part in enumerate(stretch.parts):
            following: dict[tuple[int, int], list[_State]] = {}
            for (saved, early), states in groups.items():
                if part.resident_ns is not None and saved + rest.able_bytes[place + 1] >= slots.needed_bytes:
                    own = following.setdefault((saved, early), [])
                    own += [
                        (now + part.resident_ns, free, ends, moved, picks)
                        for now, free, ends, moved, picks in states
                    ]
                if slots.takes(part):
                    less = min(slots.needed_bytes, saved + part.num_bytes)
                    own = following.setdefault((less, max(0, early - 1)), [])
                    own += _visited(states, place, part, is_early=early > 0)
            groups = {}
            for key, states in following.items():
                self._spend(len(states))
                kept = rest.worthwhile(place + 1, key, _undominated(states), limit)
                if kept:
                    groups[key] = kept
        ends = [state for states in groups.values() for state in states]
        if not ends:
            return None
        return _as_window(stretch, slots, min(ends, key=lambda state: (state[0], state[3])))

    def _spend(self, num_states: int) -> None:
        self.num_states += num_states
        is_over = self._max_states is not None and self.num_states > self._max_states
        if is_over or self._deadline.must_end():
            raise OutOfWork


def _visited(states: Iterable[_State], place: int, part: Part, *, is_early: bool) -> Iterator[_State]:
    """Yield the states after a streamed block; the first ones are there when the window opens."""
    for now, free, ends, moved, picks in states:
        for way in part.streaming:
            there = 0 if is_early else free + way.transfer_ns
            end = max(now, there) + way.compute_ns
            # The next transfer waits for the courier, and for a slot.
            after = max(there, ends[0]) if ends else end
            yield end, after, (*ends[1:], end) if ends else (), moved + part.num_bytes, (place, way, picks)


def _undominated(states: list[_State]) -> list[_State]:
    """Return the states that no other one is ahead of in all respects."""
    states.sort(key=lambda state: state[:4])
    kept: list[_State] = []
    for state in states:
        _, free, ends, moved, _ = state
        if not any(
            other[1] <= free
            and other[3] <= moved
            and all(one <= two for one, two in zip(other[2], ends, strict=True))
            for other in kept
        ):
            kept.append(state)
    return kept


class _Rest:
    """What the blocks behind a position take at least."""

    def __init__(self, parts: Sequence[Part], slots: Slots) -> None:
        self._slots = slots
        self.able_bytes = [0]
        """Weights that can stream, from each position on."""
        self._least_ns = [0]
        for part in reversed(parts):
            self.able_bytes.append(self.able_bytes[-1] + (part.num_bytes if slots.takes(part) else 0))
            self._least_ns.append(self._least_ns[-1] + part.least_ns)
        self.able_bytes.reverse()
        self._least_ns.reverse()
        able = [part for part in parts if slots.takes(part)]
        self._fastest = fastest(able)
        self._visit_ns = min(way.compute_ns for part in able for way in part.streaming)

    def worthwhile(
        self, place: int, key: tuple[int, int], states: list[_State], limit: Rank | None
    ) -> list[_State]:
        """Return the states that may still end before `limit`."""
        if limit is None:
            return states
        saved, early = key
        slots, (transfer_ns, num_bytes) = self._slots, self._fastest
        left = slots.needed_bytes - saved
        late = left - early * slots.num_bytes
        least_ns = self._least_ns[place]
        courier_ns = 0
        if late > 0:
            visits = -(-left // slots.num_bytes) if slots.count == 1 else 1
            courier_ns = -(-late * transfer_ns // num_bytes) + visits * self._visit_ns
        kept = []
        for state in states:
            end_ns = max(state[0] + least_ns, state[1] + courier_ns)
            if (end_ns, state[3] + max(0, left), slots.count) < limit:
                kept.append(state)
        return kept


def _as_window(stretch: Stretch, slots: Slots, end: _State) -> Window:
    window_ns, _, _, moved, picks = end
    ways = [Residency.RESIDENT] * len(stretch.parts)
    while picks is not None:
        place, way, picks = picks
        ways[place] = way.residency
    return Window(
        window_ns=window_ns,
        moved_bytes=moved,
        num_slots=slots.count,
        ways=tuple(ways),
    )
