from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bayplan.planner.format_rules import RuledTensor, format_rules
from bayplan.schemas.plan import FormatRule
from bayplan.schemas.rules import ruled_format


def rules(*tensors: tuple[str, str, str]) -> tuple[FormatRule, ...]:
    """Return the rules for tensors given as name, own format, format of the block."""
    return format_rules(RuledTensor(fqn, own, block, own != block) for fqn, own, block in tensors)


def rule(pattern: str, name: str, within: str | None = None) -> FormatRule:
    return FormatRule(pattern=pattern, format=name, within=within)


def test_what_is_as_its_block_needs_no_rule() -> None:
    assert rules(("h.0.w", "bf16", "bf16"), ("h.1.w", "nf4", "nf4")) == ()


def test_names_that_differ_in_numbers_only_share_a_pattern() -> None:
    assert rules(
        *((f"h.{number}.norm.w", "fp32", "bf16") for number in range(3)),
        ("norm.w", "fp32", "bf16"),
        ("x.1", "fp16", "bf16"),
        ("h.0.w", "bf16", "bf16"),
    ) == (rule("h.#.norm.w", "fp32"), rule("norm.w", "fp32"), rule("x.#", "fp16"))


def test_a_rule_for_all_may_match_what_is_so_without_it() -> None:
    assert rules(("h.0.w", "fp32", "bf16"), ("h.1.w", "fp32", "fp32")) == (rule("h.#.w", "fp32"),)


def test_two_formats_stand_name_by_name() -> None:
    found = rules(("h.0.w", "fp32", "bf16"), ("h.1.w", "fp16", "bf16"))
    assert found == (rule("h.0.w", "fp32"), rule("h.1.w", "fp16"))


def test_one_of_two_in_like_blocks_stands_by_its_name() -> None:
    assert rules(("h.0.w", "fp32", "bf16"), ("h.1.w", "bf16", "bf16")) == (rule("h.0.w", "fp32"),)


def test_what_differs_in_blocks_of_one_format_is_a_rule_within_it() -> None:
    """Even for one block: the rule stays as it is when more blocks are in that format."""
    assert rules(("h.0.o", "bf16", "nf4"), ("h.1.o", "int8", "int8"), ("h.2.o", "int8", "int8")) == (
        rule("h.#.o", "bf16", "nf4"),
    )


def test_a_rule_for_all_but_one_comes_after_the_one() -> None:
    tensors = [(f"h.{number}.w", "fp32", "bf16") for number in range(4)]
    assert rules(*tensors, ("h.4.w", "bf16", "bf16")) == (rule("h.4.w", "bf16"), rule("h.#.w", "fp32"))


def test_within_one_format_and_for_all_others() -> None:
    tensors = [(f"h.{number}.w", "fp32", f"f{number}") for number in range(3)]
    more = [("h.7.w", "fp16", "nf4"), ("h.8.w", "fp16", "nf4")]
    assert rules(*tensors, *more) == (rule("h.#.w", "fp16", "nf4"), rule("h.#.w", "fp32"))


def test_rules_by_name_stand_in_the_order_of_the_names() -> None:
    found = rules(
        ("h.0.a", "x", "bf16"), ("h.1.a", "y", "bf16"), ("h.0.b", "y", "bf16"), ("h.1.b", "x", "bf16")
    )
    assert [entry.pattern for entry in found] == ["h.0.a", "h.0.b", "h.1.a", "h.1.b"]


def test_a_tensor_may_need_a_rule_that_says_the_blocks_own_format() -> None:
    assert format_rules([RuledTensor("embed.w", "nf4", "nf4", True)]) == (rule("embed.w", "nf4"),)


PART = st.sampled_from(("a", "b", "h", "0", "1", "12", "w7", "7w"))
NAME = st.lists(PART, min_size=1, max_size=3).map(".".join)
FORMAT = st.sampled_from(("fp32", "bf16", "int8", "nf4"))


@st.composite
def ruled_tensors(draw: st.DrawFn) -> list[RuledTensor]:
    found = []
    for fqn in draw(st.sets(NAME, max_size=12)):
        own, block = draw(FORMAT), draw(FORMAT)
        # As with norms of a quantized block: what the block's format does not mean needs no rule.
        found.append(RuledTensor(fqn, own, block, own != block and draw(st.integers(0, 9)) > 0))
    return found


@given(ruled_tensors(), st.randoms())
def test_the_rules_give_back_every_format_and_are_few(tensors: list[RuledTensor], random: st.Random) -> None:
    found = format_rules(tensors)
    for tensor in tensors:
        ruled = ruled_format(tensor.fqn, tensor.block_format, found)
        assert ruled == tensor.format or (ruled is None and not tensor.needs_rule)
    assert len(found) <= sum(tensor.needs_rule for tensor in tensors)
    assert len(set(found)) == len(found)
    random.shuffle(tensors)
    assert format_rules(tensors) == found
