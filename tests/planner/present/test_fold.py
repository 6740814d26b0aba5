"""Folding: every id in exactly one line, and lines that say which ids they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planner.present.fold import fold_ids, ordinal


def labels(ids: list[str], facts: list[str] | None = None) -> list[str]:
    return [fold.label for fold in fold_ids(ids, facts or [""] * len(ids))]


def layers(*numbers: int) -> list[str]:
    return [f"model.layers.{number}" for number in numbers]


def test_neighbours_fold_into_a_range() -> None:
    ids = ["model.embed_tokens", *layers(*range(30)), "model.norm", "lm_head"]
    assert labels(ids) == ["model.embed_tokens", "model.layers.0-29", "model.norm", "lm_head"]


@pytest.mark.parametrize(
    ("numbers", "label"),
    [
        ([7], "model.layers.7"),
        ([7, 9], "model.layers.7,9"),
        ([0, 3, 6, 9], "model.layers.0-9 (every 3rd)"),
        ([0, 3, 7, 10, 13, 17], "model.layers.0-17 (every 3rd or 4th)"),
        ([0, 3, 7], "model.layers.0,3,7"),
        ([0, 1, 3, 4, 6, 7, 9, 10, 12, 13], "model.layers.0-13 (all but every 3rd)"),
        ([0, 1, 5, 9, 10, 20], "model.layers.0-1,5,9-10,20"),
        ([0, 2, 5, 9, 14, 20], "model.layers.0,2,5,..,20"),
        ([0, 10**8], "model.layers.0,100000000"),
    ],
)
def test_label(numbers: list[int], label: str) -> None:
    assert labels(layers(*numbers)) == [label]


def test_what_follows_the_number_stays_with_it() -> None:
    assert labels([f"h.{number}.mlp" for number in (0, 2, 4)]) == ["h.0-4.mlp (every 2nd)"]


def test_facts_split_a_range() -> None:
    facts = ["resident" if number % 3 == 0 else "stream" for number in range(30)]
    assert labels(layers(*range(30)), facts) == [
        "model.layers.0-27 (every 3rd)",
        "model.layers.1-29 (all but every 3rd)",
    ]


def test_interleaved_ids_fold_apart() -> None:
    ids = [f"layers.{number}.{part}" for number in range(5) for part in ("attention", "mlp")]
    assert labels(ids) == ["layers.0-4.attention", "layers.0-4.mlp"]


def test_of_two_numbers_the_one_that_varies_most_folds() -> None:
    ids = [f"stages.{stage}.blocks.{block}" for stage in range(2) for block in range(3)]
    assert labels(ids) == ["stages.0.blocks.0-2", "stages.1.blocks.0-2"]


def test_other_ids_in_between_do_not_split_a_range() -> None:
    assert labels([*layers(0, 1, 2), "x", *layers(9)]) == ["model.layers.0-2,9", "x"]


def test_numbers_that_run_backwards_start_anew() -> None:
    assert labels(layers(5, 6, 2, 3)) == ["model.layers.5-6", "model.layers.2-3"]


def test_leading_zeros_are_text() -> None:
    assert labels(["layer.01", "layer.02"]) == ["layer.01", "layer.02"]


def test_a_number_too_long_for_a_layer_is_text() -> None:
    ids = [f"layer.{'9' * 5000}", "layer.1"]
    assert labels(ids) == ids


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1, "1st"),
        (2, "2nd"),
        (3, "3rd"),
        (4, "4th"),
        (11, "11th"),
        (12, "12th"),
        (23, "23rd"),
        (113, "113th"),
    ],
)
def test_ordinal(number: int, text: str) -> None:
    assert ordinal(number) == text


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a.{}", "a.{}.b", "x.1.{}", "plain{}"]), st.integers(0, 40), st.booleans()
        ),
        unique_by=lambda item: item[:2],
    )
)
def test_every_id_is_in_one_fold_with_equal_facts(items: list[tuple[str, int, bool]]) -> None:
    ids = [text.format(number) for text, number, _ in items]
    if len(set(ids)) != len(ids):
        return
    facts = dict(zip(ids, (fact for _, _, fact in items), strict=True))
    folds = fold_ids(ids, [facts[block_id] for block_id in ids])
    assert sorted(block_id for fold in folds for block_id in fold.ids) == sorted(ids)
    for fold in folds:
        assert len({facts[block_id] for block_id in fold.ids}) == 1
        assert list(fold.ids) == [block_id for block_id in ids if block_id in set(fold.ids)]
