from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planner.solve.spacing import PHASES, evenly_spaced


@pytest.mark.parametrize(
    ("phase", "positions"), [(1, (1, 5, 9)), (0, (0, 4, 8)), (2, (3, 7, 11))], ids=["middle", "start", "end"]
)
def test_one_in_each_share(phase: int, positions: tuple[int, ...]) -> None:
    middle = tuple(position + (phase == 1) for position in positions)
    assert evenly_spaced([8] * 12, [True] * 12, [False] * 12, {8: 3}, phase) == middle


def test_a_block_that_must_stay_is_passed_over() -> None:
    eligible = [False, True, False, True, True, False]
    assert evenly_spaced([8] * 6, eligible, [False] * 6, {8: 3}, 1) == (1, 3, 4)


def test_forced_positions_are_kept_and_counted() -> None:
    forced = [False] * 5 + [True]
    assert evenly_spaced([8] * 6, [True] * 5 + [False], forced, {8: 3}, 0) == (0, 2, 5)


def test_nothing_wanted() -> None:
    assert evenly_spaced([8, 8], [True, True], [False, False], {}, 1) == ()


BLOCKS = st.lists(
    st.tuples(st.sampled_from((8, 16, 24)), st.sampled_from(("free", "free", "stays", "forced"))), max_size=40
)


@given(BLOCKS, st.sampled_from(PHASES), st.data())
def test_counts_order_and_evenness(blocks: list[tuple[int, str]], phase: int, data: st.DataObject) -> None:
    sizes = [size for size, _ in blocks]
    eligible = [kind == "free" for _, kind in blocks]
    forced = [kind == "forced" for _, kind in blocks]
    num_forced = Counter(size for size, kind in blocks if kind == "forced")
    num_free = Counter(size for size, kind in blocks if kind == "free")
    wanted = {
        size: num_forced[size] + data.draw(st.integers(0, num_free[size])) for size in sorted(set(sizes))
    }
    chosen = evenly_spaced(sizes, eligible, forced, wanted, phase)
    assert list(chosen) == sorted(set(chosen))
    assert Counter(sizes[position] for position in chosen) == Counter(wanted)
    assert set(chosen) >= {position for position, must in enumerate(forced) if must}
    assert all(eligible[position] or forced[position] for position in chosen)
    for size in wanted:
        places = [index for index, own in enumerate(sizes) if own == size and eligible[index]]
        ranks = [places.index(position) for position in chosen if position in places]
        gaps = [later - earlier for earlier, later in pairwise(ranks)]
        assert not gaps or max(gaps) - min(gaps) <= 1
        if ranks:
            before, after = ranks[0], len(places) - 1 - ranks[-1]
            assert max(before, after) <= -(-len(places) // len(ranks))
