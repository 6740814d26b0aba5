from __future__ import annotations

from bayplan.planner.solve.stage_slots import Part, Slots, Streaming, Stretch, fastest, floor_ns, slots_of
from bayplan.schemas.types import Residency


def part(size: int, *transfers_ns: int, stay_ns: int | None = 10) -> Part:
    ways = tuple(
        Streaming(residency=Residency.STREAM_HOST, compute_ns=20, transfer_ns=time_ns)
        for time_ns in transfers_ns
    )
    return Part(num_bytes=size, resident_ns=stay_ns, streaming=ways)


def stretch(room: int, *parts: Part) -> Stretch:
    return Stretch(parts=parts, room_bytes=room)


def test_a_block_computes_the_least_where_it_may_be() -> None:
    assert part(4, 30).least_ns == 10
    assert part(4, 30, stay_ns=None).least_ns == 20


def test_all_stay_where_they_may_and_fit() -> None:
    assert stretch(8, part(4), part(4)).resident_ns == 20
    assert stretch(7, part(4), part(4)).resident_ns is None
    assert stretch(8, part(4), part(4, 30, stay_ns=None)).resident_ns is None


def test_slots_of_every_size_that_helps_with_what_then_streams() -> None:
    """Slots of 2 take the small block alone, which does not make room for itself."""
    found = list(slots_of(stretch(9, part(4, 30), part(4, 30), part(2, 30))))
    assert [(own.count, own.num_bytes, own.needed_bytes) for own in found] == [
        (1, 4, 10 + 4 - 9),
        (2, 4, 10 + 8 - 9),
    ]
    assert list(slots_of(stretch(9, part(4), part(4), part(2)))) == []


def test_slots_hold_the_largest_block_that_has_to_stream() -> None:
    found = list(slots_of(stretch(100, part(4, 30, stay_ns=None), part(2, 30))))
    assert {own.num_bytes for own in found} == {4}
    assert [own.needed_bytes for own in found] == [0, 0, 0]


def test_slots_take_what_streams_and_is_no_larger() -> None:
    slots = Slots(count=1, num_bytes=4, needed_bytes=0, floor_ns=0)
    assert [slots.takes(own) for own in (part(4, 30), part(5, 30), part(4))] == [True, False, False]


def test_the_floor_is_what_computes_or_what_is_late() -> None:
    """Four blocks of 4 bytes: with two slots of room for nothing else, two transfers of 30 are late."""
    assert floor_ns(stretch(16, *[part(4, 30)] * 4)) == 40
    assert floor_ns(stretch(3, *[part(4, 30)] * 4)) is None
    assert floor_ns(stretch(4, *[part(4, 30)] * 4)) == 3 * 30 + 4 * 20
    assert floor_ns(stretch(8, *[part(4, 30)] * 4)) == 2 * 30 + 2 * 20
    assert floor_ns(stretch(8, *[part(4, 30, stay_ns=1000)] * 4)) == 2 * 30 + 2 * 20


def test_the_fastest_transfer_is_that_with_the_least_per_byte() -> None:
    assert fastest([part(4, 30), part(8, 40), part(2, 11)]) == (40, 8)
