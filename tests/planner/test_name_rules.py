from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planner.name_rules import folded, folded_names, tensor_rules
from bayplan.schemas.plan import Operation, TensorRule
from bayplan.schemas.rules import source_names

RENAME = (Operation(kind="rename"),)


def rule(target: str, source: str) -> TensorRule:
    return TensorRule(target=target, sources=(source,), operations=RENAME)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("layers.3.w", "layers.#.w"),
        ("layers.10.mlp.07.w", "layers.#.mlp.#.w"),
        ("conv2d.w1", "conv#d.w#"),
        ("norm", "norm"),
        ("", ""),
    ],
)
def test_folded(name: str, pattern: str) -> None:
    assert folded(name) == pattern


def test_folded_names() -> None:
    names = ["h.2.mask", "x.7", "a", "h.10.mask", "h.2.bias"]
    assert folded_names(names) == ("a", "h.#.mask", "h.2.bias", "x.7")


def test_equal_names_need_no_rule() -> None:
    assert tensor_rules({"a": "a", "b.1": "b.1"}) == ()
    assert tensor_rules({}) == ()


def test_a_prefix_of_the_checkpoint() -> None:
    sources = {name: f"bert.{name}" for name in ("embed.w", "layer.0.w", "layer.1.w")}
    assert tensor_rules(sources) == (rule("*", "bert.*"),)


def test_a_prefix_of_the_model() -> None:
    sources = {f"model.{name}": name for name in ("embed.w", "layer.0.w", "layer.1.w")}
    assert tensor_rules(sources) == (rule("model.*", "*"),)


def test_one_prefix_for_another() -> None:
    sources = {f"model.layers.{number}.w": f"transformer.h.{number}.w" for number in range(12)}
    assert tensor_rules(sources) == (rule("model.layers.#.w", "transformer.h.#.w"),)


def test_some_names_alike() -> None:
    sources = {f"h.{number}.new": f"h.{number}.old" for number in range(3)} | {"embed.w": "embed.w"}
    assert tensor_rules(sources) == (rule("h.#.new", "h.#.old"),)


def test_a_prefix_on_all_but_one() -> None:
    sources = {"head.w": "head.w", "m.layer.0.w": "layer.0.w", "m.layer.1.w": "layer.1.w"}
    assert tensor_rules(sources) == (rule("m.layer.#.w", "layer.#.w"),)


def test_a_pattern_that_would_catch_an_unchanged_name_is_not_used() -> None:
    sources = {"h.0.w": "x.0.w", "h.1.w": "h.1.w"}
    assert tensor_rules(sources) == (rule("h.0.w", "x.0.w"),)


def test_shifted_numbers_stand_one_by_one() -> None:
    sources = {f"h.{number}.w": f"h.{number + 1}.w" for number in range(2)}
    assert tensor_rules(sources) == (rule("h.0.w", "h.1.w"), rule("h.1.w", "h.2.w"))


def test_a_source_with_more_numbers_than_its_target() -> None:
    assert tensor_rules({"embed.w": "stage.3.w", "a": "a"}) == (rule("embed.w", "stage.3.w"),)


PART = st.sampled_from(("a", "b", "h", "0", "1", "12", "w7", "7w"))
NAME = st.lists(PART, min_size=1, max_size=4).map(".".join)


@given(st.dictionaries(NAME, NAME, max_size=8))
def test_the_rules_give_back_exactly_the_sources(sources: dict[str, str]) -> None:
    rules = tensor_rules(sources)
    assert {target: source_names(target, rules) for target in sources} == {
        target: (source,) for target, source in sources.items()
    }


@given(st.sets(NAME, min_size=1), st.sampled_from(("", "model.")), st.sampled_from(("", "h.3.")))
def test_a_whole_model_under_another_prefix_is_one_rule(names: set[str], own: str, stored: str) -> None:
    rules = tensor_rules({own + name: stored + name for name in names})
    if own == stored:
        assert rules == ()
    elif not own or not stored:
        assert len(rules) == 1
