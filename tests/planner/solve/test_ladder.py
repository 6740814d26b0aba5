from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_problems import gpus, make_chain, make_cost, make_form, make_task

from bayplan.planner.solve.ladder import MAX_RUNGS, Ladder
from bayplan.planner.solve.margins import activation_bounds


def ladder(*activations: int, is_above: bool) -> Ladder:
    costs = [make_cost(64, decode_activation_bytes=own) for own in activations]
    return Ladder(make_task(make_chain(costs), gpus(1)), is_above=is_above)


def levels(own: Ladder, count: int) -> list[int]:
    return [own.level(index, 0) for index in range(count)]


@pytest.mark.parametrize("is_above", [False, True])
def test_few_different_ones_are_exact(is_above: bool) -> None:
    sizes = (320, 3200, 320, 32)
    exact = [activation_bounds(size)[1] for size in sizes]
    assert levels(ladder(*sizes, is_above=is_above), 4) == exact


def test_the_larger_phase_the_base_and_the_workspace_of_a_form_count() -> None:
    cost = make_cost(
        64,
        others=[make_form(16, "nf4", workspace_bytes=640)],
        prefill_activation_bytes=64,
        decode_activation_bytes=32,
    )
    task = make_task(make_chain([cost], base_activation_bytes=3200), gpus(1))
    exact = Ladder(task, is_above=True)
    assert [exact.level(0, form) for form in (0, 1)] == [
        activation_bounds(3264)[1],
        activation_bounds(3904)[1],
    ]


def test_what_a_step_copies_counts_with_the_step_alone() -> None:
    cost = make_cost(64, prefill_activation_bytes=640, decode_activation_bytes=320, copied_bytes=480)
    task = make_task(make_chain([cost]), gpus(1))
    assert Ladder(task, is_above=True).level(0, 0) == activation_bounds(800)[1]


def test_cuts_lie_where_neighbours_differ_most() -> None:
    """Eighteen that differ by little in two clumps, and the highest."""
    sizes = [*range(3200, 3209), *range(320_000, 320_009), 640_000]
    below, above = (levels(ladder(*sizes, is_above=is_above), 19) for is_above in (False, True))
    assert below[0] == activation_bounds(3200)[1]
    assert above[8] == activation_bounds(3208)[1]
    assert below[9] == activation_bounds(320_000)[1]
    assert below[18] == above[18] == activation_bounds(640_000)[1]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_few_levels_each_on_its_side(sizes: list[int]) -> None:
    exact = [activation_bounds(size)[1] for size in sizes]
    for is_above in (False, True):
        found = levels(ladder(*sizes, is_above=is_above), len(sizes))
        assert len(set(found)) <= MAX_RUNGS
        assert max(found) == max(exact)
        assert all(own >= one if is_above else own <= one for own, one in zip(found, exact, strict=True))
