"""The window of a stretch in which experts may be apart from their blocks: the best of two kinds, a bound.

Where nothing streams, and where no experts are apart, it is exact up to the rounding of times. Where blocks
stream and others have their experts apart only a bound is known: what is brought in within the window takes
its time, and the bytes that it does not save the experts have to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from bayplan.planner.solve.experts import SplitExperts
from bayplan.planner.solve.stage_experts import Apart, best_shed, least_extra_ns
from bayplan.planner.solve.stage_slots import Stretch, fastest
from bayplan.planner.solve.stage_windows import Window, WindowSearch
from bayplan.schemas.types import Residency

MAX_LATE_SETS = 300
"""Sets of blocks that are brought in within the window looked at; of more, the floor is taken."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a window."""

    least_ns: int | None
    """A lower bound; None: nothing fits."""
    window: Window | None
    """The best of both kinds; None: neither fits."""


def apart_floor_ns(stretch: Stretch, apart: Apart) -> int | None:
    """Return a lower bound of the least window that takes no search; None: nothing fits."""
    held = sum(
        0 if part.streaming else part.num_bytes - (apart.most_saved_bytes if part.apart is not None else 0)
        for part in stretch.parts
    )
    if held > stretch.room_bytes:
        return None
    computing_ns = _computing_ns(stretch)
    least_ns = computing_ns + _num_apart(stretch) * min(0, apart.shortest_ns)
    needed, rate = _needed_bytes(stretch), apart.cheapest
    if needed <= 0 or rate <= 0:
        return least_ns
    able = [part for part in stretch.parts if part.streaming]
    if not able:
        return computing_ns + int(needed * rate)
    # A window has the time to bring in so many bytes per nanosecond; what they do not save, experts have to.
    transfer_ns, num_bytes = fastest(able)
    return max(least_ns, int((computing_ns + rate * needed) / (1 + rate * num_bytes / transfer_ns)))


def known_window(stretch: Stretch, apart: Apart, search: WindowSearch) -> Known:
    """Return the best window of either kind, and a bound of all."""
    shed = _shed_window(stretch, apart)
    beside = search.least(stretch, None if shed is None else shed.window_ns)
    window = shed if beside is None else beside
    limit_ns = None if window is None else window.window_ns
    least_ns = _least_apart_ns(stretch, apart, limit_ns)
    bounds = [bound for bound in (least_ns, limit_ns) if bound is not None]
    return Known(least_ns=min(bounds, default=None), window=window)


def _computing_ns(stretch: Stretch) -> int:
    return sum(part.least_ns for part in stretch.parts)


def _needed_bytes(stretch: Stretch) -> int:
    """Return what has to be saved of the weights, in bytes; below 0, what is spare."""
    return sum(part.num_bytes for part in stretch.parts) - stretch.room_bytes


def _num_apart(stretch: Stretch) -> int:
    return sum(part.apart is not None for part in stretch.parts)


def _shed_window(stretch: Stretch, apart: Apart) -> Window | None:
    """Return the best window in which nothing streams; None: there is none."""
    times = [part.resident_ns for part in stretch.parts if part.resident_ns is not None]
    shed = best_shed(apart, _num_apart(stretch), _needed_bytes(stretch))
    if shed is None or len(times) < len(stretch.parts):
        return None
    splits = iter(shed.splits(apart))
    ways: list[Residency | SplitExperts] = []
    for part in stretch.parts:
        split = None if part.apart is None else next(splits, None)
        ways.append(Residency.RESIDENT if split is None else split)
    return Window(
        window_ns=sum(times) + shed.extra_ns(apart, apart.cached_ns),
        moved_bytes=0,
        num_slots=0,
        ways=tuple(ways),
    )


def _least_apart_ns(stretch: Stretch, apart: Apart, limit_ns: int | None) -> int | None:
    """Return a lower bound of windows in which experts are apart, streaming or not, up to `limit_ns`."""
    computing_ns, needed, count = _computing_ns(stretch), _needed_bytes(stretch), _num_apart(stretch)
    found: list[int] = []
    for number, (late_ns, late_bytes) in enumerate(_late_sets(stretch, apart, limit_ns)):
        if number == MAX_LATE_SETS:
            return apart_floor_ns(stretch, apart)
        extra_ns = least_extra_ns(apart, count, needed - late_bytes)
        if extra_ns is not None:
            found.append(max(late_ns, computing_ns + extra_ns))
    return min(found, default=None)


class _Late(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that are alike, as far as they could be brought in within the window."""

    transfer_ns: int
    num_bytes: int
    count: int
    behind_ns: int
    """What the last of them and all behind it compute at least."""


def _late_sets(stretch: Stretch, apart: Apart, limit_ns: int | None) -> Iterator[tuple[int, int]]:
    """Yield what windows take in which sets of blocks are brought in, under `limit_ns`, and their bytes.

    First that of none. Transfers within the window begin when a streamed block has computed, and with it all
    before it; the last one is followed by the computing of its block, and of all behind it.
    """
    kinds, lead_ns = _late_kinds(stretch, apart)

    def extended(
        transfer_ns: int, num_bytes: int, behind_ns: int | None, others: Sequence[_Late]
    ) -> Iterator[tuple[int, int]]:
        yield (0 if behind_ns is None else lead_ns + transfer_ns + behind_ns), num_bytes
        for place, kind in enumerate(others):
            behind = kind.behind_ns if behind_ns is None else min(behind_ns, kind.behind_ns)
            for number in range(1, kind.count + 1):
                own_ns = transfer_ns + number * kind.transfer_ns
                if limit_ns is not None and lead_ns + own_ns >= limit_ns:
                    break
                more = num_bytes + number * kind.num_bytes
                yield from extended(own_ns, more, behind, others[place + 1 :])

    yield from extended(0, 0, None, kinds)


def _late_kinds(stretch: Stretch, apart: Apart) -> tuple[list[_Late], int]:
    """Return what could be brought in within the window, the slowest first, and what computes before it."""
    # Where the host is faster than the device a block takes less without its experts.
    times_ns = [
        part.least_ns + (0 if part.apart is None else min(0, apart.shortest_ns)) for part in stretch.parts
    ]
    lead_ns = behind_ns = 0
    kinds: dict[tuple[int, int], _Late] = {}
    for part, time_ns in zip(reversed(stretch.parts), reversed(times_ns), strict=True):
        behind_ns += time_ns
        if part.streaming:
            key = min(way.transfer_ns for way in part.streaming), part.num_bytes
            last = kinds.get(key)
            kinds[key] = _Late(
                transfer_ns=key[0],
                num_bytes=key[1],
                count=1 if last is None else last.count + 1,
                behind_ns=behind_ns if last is None else last.behind_ns,
            )
    for part, time_ns in zip(stretch.parts, times_ns, strict=True):
        lead_ns += time_ns
        if part.streaming:
            break
    return [kinds[key] for key in sorted(kinds, reverse=True)], lead_ns
