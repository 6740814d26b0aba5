from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.schemas.plan import FormatRule, Operation, TensorRule
from bayplan.schemas.rules import filled_in, format_for, matched_texts, rule_for, ruled_format, source_names

RENAME = (Operation(kind="rename"),)


def rule(target: str, *sources: str) -> TensorRule:
    return TensorRule(target=target, sources=sources, operations=RENAME)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("a.b", "a.b", ()),
        ("a.b", "a_b", None),
        ("a.#.b", "a.12.b", ("12",)),
        ("a.#.b", "a.x.b", None),
        ("a.#.b", "a..b", None),
        ("a.#.b", "a.\u0661.b", None),
        ("*", "", ("",)),
        ("*.weight", "a.b.weight", ("a.b",)),
        ("*.#.*", "h.3.mlp.4.w", ("h", "3", "mlp.4.w")),
        ("a*", "ba", None),
        ("a+(b)", "a+(b)", ()),
        ("a*", "a\nb", ("\nb",)),
    ],
)
def test_wildcards_match_whole_names(pattern: str, name: str, expected: tuple[str, ...] | None) -> None:
    assert matched_texts(pattern, name) == expected


def test_source_takes_the_texts_of_the_target_in_order() -> None:
    rules = (rule("model.layers.#.*", "layers.#.block.*"),)
    assert source_names("model.layers.11.mlp.weight", rules) == ("layers.11.block.mlp.weight",)


def test_source_may_use_fewer_wildcards_than_the_target() -> None:
    assert source_names("a.3.b", (rule("a.#.*", "x.#"),)) == ("x.3",)


def test_several_sources_keep_their_order() -> None:
    assert source_names("e.0.w", (rule("e.#.w", "e.#.up", "e.#.gate"),)) == ("e.0.up", "e.0.gate")


def test_first_matching_rule_holds() -> None:
    rules = (rule("a.*", "first.*"), rule("a.b", "second"))
    assert source_names("a.b", rules) == ("first.b",)
    assert rule_for("a.b", rules) is rules[0]


def test_without_a_rule_the_name_is_its_own_source() -> None:
    assert source_names("lm_head.weight", (rule("a.*", "b.*"),)) == ("lm_head.weight",)
    assert rule_for("lm_head.weight", ()) is None


def test_format_of_a_block_holds_where_no_rule_matches() -> None:
    rules = (FormatRule(pattern="*.norm.weight", format="fp32"),)
    assert format_for("h.0.norm.weight", "bf16", rules) == "fp32"
    assert format_for("h.0.mlp.weight", "bf16", rules) == "bf16"


def test_a_rule_within_a_format_holds_in_blocks_of_that_format_only() -> None:
    rules = (
        FormatRule(pattern="*.o", format="bf16", within="nf4"),
        FormatRule(pattern="*.o", format="fp32"),
    )
    assert [format_for("h.0.o", name, rules) for name in ("nf4", "int8", "bf16")] == ["bf16", "fp32", "fp32"]
    assert format_for("h.0.o", "int8", rules[:1]) == "int8"
    assert ruled_format("h.0.o", "int8", rules[:1]) is None
    assert ruled_format("h.0.o", "nf4", rules[:1]) == "bf16"


@given(st.lists(st.sampled_from(["a", ".", "*", "#", "+", "w"]), max_size=8), st.data())
def test_a_filled_pattern_matches_itself(parts: list[str], data: st.DataObject) -> None:
    pattern = "".join(parts)
    texts = [
        data.draw(
            st.text("0123456789", min_size=1, max_size=3) if part == "#" else st.text("ab.", max_size=3)
        )
        for part in parts
        if part in ("*", "#")
    ]
    name = filled_in(pattern, texts)
    found = matched_texts(pattern, name)
    assert found is not None
    assert filled_in(pattern, found) == name
