from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bayplan.executor.ring_state import RingState, SlotState

ME = 1


def fill_all(state: RingState) -> list[int]:
    """Fill whatever is due, at once; return the blocks."""
    filled: list[int] = []
    while (block := state.next_fill()) is not None:
        slot = state.slot_of(block)
        slot.block, slot.state = block, SlotState.READY
        filled.append(block)
        assert len(filled) <= 2 * len(state.slots), "filling comes to an end"
    return filled


def test_first_blocks_are_read_before_the_first_call() -> None:
    assert fill_all(RingState(5, 3)) == [0, 1, 2]


def test_slot_in_use_is_left_alone_until_the_call_is_over() -> None:
    state = RingState(5, 2)
    fill_all(state)
    state.begin(ME, 0)
    assert fill_all(state) == []
    state.end(ME, 0)
    assert fill_all(state) == [2]


def test_reading_ahead_goes_around_the_end() -> None:
    state = RingState(4, 2)
    fill_all(state)
    order: list[int] = []
    for block in (0, 1, 2, 3, 0, 1):
        state.begin(ME, block)
        state.end(ME, block)
        order += fill_all(state)
    assert order == [2, 3, 0, 1, 2, 3]
    assert (state.num_skipped, state.num_mispredicted) == (0, 0)


def test_one_block_at_most_is_ahead_per_slot_where_the_order_wraps() -> None:
    state = RingState(5, 2)
    fill_all(state)
    for block in range(4):
        state.begin(ME, block)
        state.end(ME, block)
        fill_all(state)
    state.begin(ME, 4)
    assert fill_all(state) == [1]
    state.end(ME, 4)
    assert fill_all(state) == [0]


def test_fewer_blocks_than_slots_are_read_once() -> None:
    state = RingState(2, 3)
    filled = fill_all(state)
    for block in (0, 1, 0, 1):
        state.begin(ME, block)
        state.end(ME, block)
        filled += fill_all(state)
    assert filled == [0, 1]


def test_block_ahead_that_is_called_early_counts_the_skipped_ones() -> None:
    state = RingState(6, 3)
    fill_all(state)
    state.begin(ME, 2)
    assert (state.num_skipped, state.num_mispredicted) == (2, 0)


def test_block_that_is_not_there_counts_as_mispredicted() -> None:
    state = RingState(6, 2)
    fill_all(state)
    state.begin(ME, 4)
    assert (state.num_skipped, state.num_mispredicted) == (0, 1)


def test_same_block_again_is_no_skip_while_it_is_there() -> None:
    state = RingState(6, 2)
    fill_all(state)
    state.begin(ME, 0)
    state.begin(ME, 0)
    assert (state.num_skipped, state.num_mispredicted) == (0, 0)
    assert state.end(ME, 0) is not None
    assert [entry.block for entry in state.open_calls()] == [0]


def test_ending_a_call_that_never_began_does_nothing() -> None:
    state = RingState(2, 2)
    assert state.end(ME, 1) is None
    state.begin(ME, 1)
    assert state.end(ME + 1, 1) is None


def test_failed_block_is_not_read_again_until_it_was_reported() -> None:
    state = RingState(4, 2)
    fill_all(state)
    state.slots[0].state = SlotState.FAILED
    assert fill_all(state) == []


def test_fill_in_the_way_of_a_wanted_block_is_useless() -> None:
    state = RingState(6, 2)
    state.slots[0].block, state.slots[0].state = 0, SlotState.FILLING
    state.filling = 0
    assert not state.is_fill_useless()
    state.begin(ME, 4)
    state.wanted = 4
    assert state.is_fill_useless()
    assert state.next_fill() is None or state.next_fill() != 4


def test_fill_that_nobody_expects_any_more_is_useless() -> None:
    state = RingState(6, 2)
    fill_all(state)
    state.slots[1].state = SlotState.FILLING
    state.filling = 1
    state.begin(ME, 2)
    assert state.is_fill_useless()


@given(st.integers(1, 7), st.integers(1, 4), st.lists(st.integers(0, 6), max_size=30))
def test_a_wanted_block_is_always_the_next_fill(num_blocks: int, num_slots: int, calls: list[int]) -> None:
    state = RingState(num_blocks, num_slots)
    for call in calls:
        fill_all(state)
        block = call % num_blocks
        state.begin(ME, block)
        state.wanted = block
        if not state.slot_of(block).holds(block, SlotState.READY):
            assert state.next_fill() == block
            fill_all(state)
        state.wanted = None
        assert state.slot_of(block).holds(block, SlotState.READY)
        fill_all(state)
        assert state.slot_of(block).holds(block, SlotState.READY)
        state.end(ME, block)
