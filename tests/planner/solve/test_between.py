from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement_problems import MIB, make_chain, make_cost

from bayplan.planner.solve.between import Traced, guessed_chain
from bayplan.planner.solve.chain import Chain

GIVEN = 4096


class Model:
    """A model of four blocks whose cache is `kv(count)` a block; remembers what it was asked."""

    def __init__(
        self, kv: Callable[[int], int], activations: Callable[[int], int] = lambda _count: 0
    ) -> None:
        self._kv = kv
        self._activations = activations
        self.looks: list[int] = []

    def __call__(self, count: int) -> Chain:
        self.looks.append(count)
        cost = make_cost(MIB, kv_bytes=self._kv(count), prefill_activation_bytes=self._activations(count))
        return make_chain([cost] * 4)


def cache_within(budget: int) -> Callable[[Chain], bool]:
    return lambda chain: (
        sum(cost.kv_bytes for cost in chain.costs)
        + max(cost.prefill_activation_bytes for cost in chain.costs)
        <= budget
    )


def most(model: Model, budget: int, given: int = GIVEN) -> int | None:
    return Traced(model, cache_within(budget), given=given).most()


def test_a_straight_line_takes_four_looks() -> None:
    model = Model(lambda count: 1000 + 64 * count)
    assert most(model, 4 * (1000 + 64 * 1500)) == 1500
    assert model.looks == [1, GIVEN, 1500, 1501]


def test_a_parabola_takes_a_few_more() -> None:
    model = Model(lambda count: 10 * count, lambda count: count * count)
    assert most(model, 40 * 2000 + 2000**2) == 2000
    assert {2000, 2001} <= set(model.looks)
    assert len(model.looks) <= 6


def test_one_count_is_too_much_already() -> None:
    model = Model(lambda count: count)
    assert most(model, 3) is None
    assert model.looks == [1]


def test_neighbours_need_no_guess() -> None:
    model = Model(lambda count: count)
    assert most(model, 4, given=2) == 1
    assert model.looks == [1]


@given(
    st.integers(2, 10**6),
    st.sampled_from(("line", "window", "steps", "jump", "root")),
    st.integers(0, 10**6),
)
def test_whatever_the_curve_the_answer_is_exact_and_no_count_is_traced_twice(
    limit: int, kind: str, bend: int
) -> None:
    curves: dict[str, Callable[[int], int]] = {
        "line": lambda count: count,
        "window": lambda count: min(count, bend) * 1000 + count,
        "steps": lambda count: -(-count // 256) * 256 + count // 1000,
        "jump": lambda count: count + (10**6 if count > bend else 0),
        "root": lambda count: int(count**0.5) * 1000 + count // 100,
    }
    model = Model(curves[kind])
    given_count = 10**6 + 1
    budget = 4 * curves[kind](limit)
    if curves[kind](given_count) * 4 <= budget:
        return
    found = most(model, budget, given_count)
    assert found is not None
    assert curves[kind](found) * 4 <= budget < curves[kind](found + 1) * 4
    assert {found, found + 1} <= {*model.looks, given_count}
    assert len(set(model.looks)) == len(model.looks) <= 60


def test_a_chain_of_other_blocks_is_taken_as_it_is() -> None:
    few, many = make_chain([MIB]), make_chain([MIB, MIB])
    assert guessed_chain([(1, few), (9, many)], 5, 1, 9) is few


@pytest.mark.parametrize(("count", "kv"), [(1, 10), (5, 50), (9, 90)])
def test_what_decides_over_memory_is_guessed(count: int, kv: int) -> None:
    def at(place: int) -> Chain:
        extra = {"workspace_bytes": 3 * place, "copied_bytes": 11 * place}
        cost = make_cost(MIB, kv_bytes=10 * place, decode_activation_bytes=place, **extra)
        return make_chain([cost], base_activation_bytes=7 * place, scratch_bytes=5)

    assert guessed_chain([(1, at(1)), (9, at(9))], count, 1, 9) == at(count)
    assert at(count).costs[0].kv_bytes == kv


def test_a_guess_stays_between_what_is_known() -> None:
    def at(size: int) -> Chain:
        return make_chain([make_cost(MIB, kv_bytes=size)])

    known = [(1, at(0)), (2, at(1000)), (9, at(1000))]
    assert guessed_chain(known, 5, 2, 9).costs[0].kv_bytes == 1000
