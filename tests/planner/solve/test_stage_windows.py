from __future__ import annotations

from itertools import product

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bayplan.planner.solve.deadline import Deadline
from bayplan.planner.solve.modes import SLOT_COUNTS
from bayplan.planner.solve.simulate import Transfer, Visit, steady_step_ns
from bayplan.planner.solve.stage_slots import Part, Streaming, Stretch, floor_ns
from bayplan.planner.solve.stage_windows import OutOfWork, Window, WindowSearch
from bayplan.schemas.types import Residency

STAY, HOST, DISK = Residency.RESIDENT, Residency.STREAM_HOST, Residency.STREAM_DISK

LEAD_NS = 10**6
"""Of other devices, in which all slots are filled."""


def part(size: int, *, stay_ns: int | None = 10, **transfers_ns: int) -> Part:
    """A block that can stream as the keywords say."""
    ways = tuple(
        Streaming(residency=Residency[f"STREAM_{tier.upper()}"], compute_ns=10, transfer_ns=time)
        for tier, time in transfers_ns.items()
    )
    return Part(num_bytes=size, resident_ns=stay_ns, streaming=ways)


def least(parts: list[Part], room: int, below_ns: int | None = None) -> Window | None:
    return WindowSearch().least(Stretch(parts=tuple(parts), room_bytes=room), below_ns)


def word(window: Window | None) -> str:
    """Residency of each block."""
    assert window is not None
    return "".join({STAY: "s", HOST: "h", DISK: "d"}[own] for own in residencies(window))


def residencies(window: Window) -> tuple[Residency, ...]:
    return tuple(way for way in window.ways if isinstance(way, Residency))


def simulated_ns(parts: tuple[Part, ...], residencies: tuple[Residency, ...], num_slots: int) -> int:
    """Return the window of a stretch whose slots have all the time to fill."""
    visits = [Visit(device=1, compute_ns=LEAD_NS)]
    for own, residency in zip(parts, residencies, strict=True):
        ways = {way.residency: way for way in own.streaming}
        if residency is STAY:
            assert own.resident_ns is not None
            visits.append(Visit(device=0, compute_ns=own.resident_ns))
        else:
            way = ways[residency]
            transfer = Transfer(duration_ns=way.transfer_ns)
            visits.append(Visit(device=0, compute_ns=way.compute_ns, transfer=transfer))
    return steady_step_ns(visits, {0: num_slots}) - LEAD_NS


def every_rank(stretch: Stretch) -> list[tuple[int, int, int]]:
    """Return time, moved bytes and slots of every way to have a stretch that fits."""
    found = []
    options = [
        ([] if own.resident_ns is None else [STAY]) + [way.residency for way in own.streaming]
        for own in stretch.parts
    ]
    for residencies in product(*options):
        pairs = list(zip(stretch.parts, residencies, strict=True))
        moved = [own.num_bytes for own, residency in pairs if residency is not STAY]
        held = sum(own.num_bytes for own, _ in pairs) - sum(moved)
        for num_slots in SLOT_COUNTS if moved else (0,):
            if num_slots <= len(moved) and held + num_slots * max(moved, default=0) <= stretch.room_bytes:
                time_ns = simulated_ns(stretch.parts, residencies, max(1, num_slots))
                found.append((time_ns, sum(moved), num_slots))
    return found


@st.composite
def stretches(draw: st.DrawFn) -> Stretch:
    times = st.integers(0, 12)
    kinds: list[Part] = []
    for _ in range(draw(st.integers(1, 3))):
        stay_ns = draw(st.one_of(times, times, times, st.none()))
        ways = [
            Streaming(residency=tier, compute_ns=draw(times) + (stay_ns or 0), transfer_ns=draw(times) + 1)
            for tier in draw(st.sampled_from(((HOST,), (HOST, DISK), (DISK,), ())))
        ]
        if stay_ns is None and not ways:
            stay_ns = 1
        size = draw(st.sampled_from((4, 4, 8, 3, 1)))
        kinds.append(Part(num_bytes=size, resident_ns=stay_ns, streaming=tuple(ways)))
    parts = tuple(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=6)))
    total = sum(own.num_bytes for own in parts)
    return Stretch(parts=parts, room_bytes=draw(st.integers(0, total + 2)))


@given(stretches())
@settings(max_examples=400, deadline=None)
def test_no_way_through_the_simulator_is_shorter(stretch: Stretch) -> None:
    ranks, found = every_rank(stretch), WindowSearch().least(stretch)
    event(f"fits: {bool(ranks)}, streams: {found is not None and bool(found.num_slots)}")
    assert (found is None) == (not ranks)
    assert (floor_ns(stretch) is None) == (not ranks)
    if found is None:
        return
    least_floor = floor_ns(stretch)
    assert least_floor is not None
    assert least_floor <= found.window_ns
    assert found.rank == min(ranks)
    assert simulated_ns(stretch.parts, residencies(found), max(1, found.num_slots)) == found.window_ns


@given(stretches(), st.integers(-3, 3))
@settings(max_examples=200, deadline=None)
def test_what_is_not_shorter_than_asked_for_is_not_found(stretch: Stretch, more_ns: int) -> None:
    best = WindowSearch().least(stretch)
    if best is None:
        assert WindowSearch().least(stretch, 1000) is None
        return
    found = WindowSearch().least(stretch, best.window_ns + more_ns)
    assert (None if found is None else found.window_ns) == (best.window_ns if more_ns > 0 else None)


def test_what_fits_stays() -> None:
    parts = [part(4, host=100), part(4, host=100)]
    assert least(parts, 8) == Window(window_ns=20, moved_bytes=0, num_slots=0, ways=(STAY, STAY))
    assert word(least(parts, 7)) == "hh"
    assert least(parts, 3) is None


def test_a_block_that_has_to_stream_has_a_slot_to_itself() -> None:
    """Where all would fit it takes the same memory and no time."""
    assert least([part(4, stay_ns=None, host=100), part(4)], 8) == Window(
        window_ns=20, moved_bytes=4, num_slots=1, ways=(HOST, STAY)
    )
    assert least([part(4, stay_ns=None), part(4)][1:], 3) is None


def test_through_one_slot_the_second_block_waits_for_the_first() -> None:
    """The first is there when the window opens; the second comes while the one between them computes."""
    parts = [part(4, host=25), part(4), part(4, host=25)]
    assert least(parts, 8) == Window(
        window_ns=10 + 25 + 10, moved_bytes=8, num_slots=1, ways=(HOST, STAY, HOST)
    )


def test_the_first_and_the_last_block_stream_where_transfers_take_long() -> None:
    parts = [part(4, host=1000)] * 6
    found = least(parts, 4 * 3 + 2 * 4)
    assert found is not None
    assert (found.window_ns, word(found), found.num_slots) == (10 + 1000 + 10, "hssssh", 1)


def test_more_slots_hide_more_where_there_is_room() -> None:
    """Through one slot three transfers are late; through two, one fewer, and they overlap what computes."""
    parts = [part(4, stay_ns=None, host=10)] * 4
    one, two = least(parts, 4), least(parts, 8)
    assert one is not None
    assert two is not None
    assert (one.window_ns, one.num_slots) == (4 * 10 + 3 * 10, 1)
    assert (two.window_ns, two.num_slots) == (4 * 10, 2)


def test_the_faster_way_is_taken_unless_computing_suffers_more() -> None:
    slow = Streaming(residency=HOST, compute_ns=10, transfer_ns=30)
    fast = Streaming(residency=DISK, compute_ns=60, transfer_ns=20)
    parts = [Part(num_bytes=4, resident_ns=None, streaming=(slow, fast))] * 2
    assert word(least(parts, 4)) == "hh"


def test_of_equally_short_windows_the_one_that_moves_the_least() -> None:
    """Two small blocks or one large one could go: with their transfers hidden both take the same time."""
    parts = [part(6, host=1), part(3, host=1), part(4, stay_ns=100), part(3, host=1)]
    found = least(parts, 13)
    assert found is not None
    assert (found.window_ns, found.moved_bytes, found.num_slots) == (130, 6, 1)


def test_the_work_is_counted() -> None:
    search = WindowSearch()
    search.least(Stretch(parts=(part(4, host=5),) * 4, room_bytes=100))
    assert search.num_states == 0
    search.least(Stretch(parts=(part(4, host=5),) * 4, room_bytes=12))
    assert search.num_states > 0


def test_the_work_ends_within_a_window() -> None:
    """All of them, and nothing is lost of what takes no work."""
    stretch = Stretch(parts=(part(4, host=5),) * 4, room_bytes=12)
    whole = WindowSearch()
    best = whole.least(stretch)
    assert WindowSearch(whole.num_states).least(stretch) == best
    search = WindowSearch(whole.num_states - 1)
    with pytest.raises(OutOfWork):
        search.least(stretch)
    with pytest.raises(OutOfWork):
        search.least(stretch)
    assert search.least(Stretch(parts=stretch.parts, room_bytes=16)) is not None


def test_the_work_ends_by_the_clock() -> None:
    deadline = Deadline(0.0)
    with pytest.raises(OutOfWork):
        WindowSearch(deadline=deadline).least(Stretch(parts=(part(4, host=5),) * 4, room_bytes=12))
    assert deadline.has_ended_search
