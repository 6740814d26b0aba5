from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.planner.solve import residents
from bayplan.planner.solve.residents import NOTHING_STREAMS, StreamChoice, least_streamed

COUNTS = st.dictionaries(st.integers(1, 40), st.integers(1, 3), max_size=3)


def every_choice(
    sizes: dict[int, int], forced: dict[int, int], capacity: int, num_slots: int
) -> list[dict[int, int]]:
    """Return every set of streamed blocks, forced ones included, that fits."""
    found = []
    for counts in product(*(range(count + 1) for count in sizes.values())):
        streamed = Counter(forced) + Counter(dict(zip(sizes, counts, strict=True)))
        resident = sum(size * (sizes[size] - count) for size, count in zip(sizes, counts, strict=True))
        if resident + num_slots * max(streamed, default=0) <= capacity:
            found.append(dict(streamed))
    return found


def num_bytes(streamed: dict[int, int]) -> int:
    return sum(size * count for size, count in streamed.items())


def late_bytes(streamed: dict[int, int], num_slots: int) -> int:
    """Return what is left of the streamed bytes when every slot holds one of the largest blocks."""
    largest = sorted(Counter(streamed).elements(), reverse=True)
    return sum(largest[num_slots:])


@given(COUNTS, COUNTS, st.integers(0, 200), st.integers(1, 3))
@settings(max_examples=300, deadline=None)
def test_the_fewest_bytes_of_all_choices(
    sizes: dict[int, int], forced: dict[int, int], capacity: int, num_slots: int
) -> None:
    choices = every_choice(sizes, forced, capacity, num_slots)
    found = least_streamed(sizes, forced, capacity, num_slots)
    if not choices:
        assert found is None
        return
    assert found is not None
    assert found.streamed_bytes == found.least_streamed_bytes == min(map(num_bytes, choices))
    assert dict(found.streamed) in choices
    assert num_bytes(dict(found.streamed)) == found.streamed_bytes
    assert found.num_slots == min(num_slots, sum(count for _, count in found.streamed))
    assert found.slot_bytes == max(dict(found.streamed), default=0)
    assert found.least_streamed_blocks <= min(sum(choice.values()) for choice in choices)
    assert found.least_late_bytes <= min(late_bytes(choice, num_slots) for choice in choices)


@given(COUNTS, st.integers(0, 250), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_a_limited_search_still_answers_and_bounds(
    sizes: dict[int, int], capacity: int, num_slots: int
) -> None:
    exact = least_streamed(sizes, {}, capacity, num_slots)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residents, "MAX_SUMS", 2)
        patch.setattr(residents, "THINNED_SUMS", 1)
        limited = least_streamed(sizes, {}, capacity, num_slots)
    if exact is None or limited is None:
        assert exact is limited
        return
    assert limited.least_streamed_bytes <= exact.streamed_bytes <= limited.streamed_bytes
    assert limited.least_streamed_blocks <= exact.least_streamed_blocks
    assert limited.least_late_bytes <= exact.least_late_bytes
    assert dict(limited.streamed) in every_choice(sizes, {}, capacity, num_slots)


def test_the_limit_leaves_a_visible_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {9: 1, 7: 1, 4: 1, 1: 1}
    exact = least_streamed(sizes, {}, 18, 1)
    monkeypatch.setattr(residents, "MAX_SUMS", 2)
    monkeypatch.setattr(residents, "THINNED_SUMS", 1)
    limited = least_streamed(sizes, {}, 18, 1)
    assert exact is not None
    assert limited is not None
    assert (exact.least_streamed_bytes, exact.streamed_bytes) == (11, 11)
    assert (limited.least_streamed_bytes, limited.streamed_bytes) == (10, 12)


def test_all_that_fits_stays() -> None:
    assert least_streamed({10: 3}, {}, 30, 2) is NOTHING_STREAMS


def test_one_byte_less_and_a_slot_is_needed() -> None:
    assert least_streamed({10: 3}, {}, 29, 1) == StreamChoice(
        streamed=((10, 2),),
        slot_bytes=10,
        num_slots=1,
        streamed_bytes=20,
        least_streamed_bytes=20,
        least_streamed_blocks=2,
        least_late_bytes=10,
    )


def test_a_smaller_slot_may_save_more_than_a_large_block_takes() -> None:
    """Streaming the block of 100 would need two slots of 100; small ones make room enough."""
    found = least_streamed({100: 1, 10: 10}, {}, 160, 2)
    assert found is not None
    assert (found.streamed, found.slot_bytes) == (((10, 6),), 10)


def test_a_forced_block_sets_the_slot() -> None:
    found = least_streamed({10: 2}, {50: 1}, 70, 1)
    assert found is not None
    assert (found.streamed, found.slot_bytes, found.num_slots) == (((50, 1),), 50, 1)


def test_two_hundred_blocks_of_as_many_sizes_stay_within_the_limit() -> None:
    sizes = {1_000_003 + 977 * index * index: 1 for index in range(200)}
    capacity = sum(sizes) // 2
    found = least_streamed(sizes, {}, capacity, 2)
    assert found is not None
    assert found.least_streamed_bytes < found.streamed_bytes < found.least_streamed_bytes * 101 // 100
