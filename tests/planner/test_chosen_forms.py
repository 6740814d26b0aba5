from __future__ import annotations

import msgspec
import pytest
from form_graphs import block, graph, linear, read_model, record

from bayplan.planner.chosen_forms import asked_forms
from bayplan.planner.format_choice import FormatRequest, parse_request
from bayplan.planner.formats import planned_forms
from bayplan.schemas.errors import UsageError
from bayplan.schemas.format_bytes import Bnb4Bit, LlmInt8
from bayplan.schemas.format_config import FormatConfig
from bayplan.schemas.graph import TensorRole, TiedGroup
from bayplan.schemas.plan import Format, FormatRule
from bayplan.schemas.quantization import Group, Scheme

EMBED = record("embed.weight", (32, 64), "bf16", role=TensorRole.EMBEDDING)
LAYERS = tuple(
    block(
        f"h.{number}",
        linear(f"h.{number}.q.weight", 64, 64),
        linear(f"h.{number}.down.weight", 64, 64),
        record(f"h.{number}.norm.weight", (64,), "bf16"),
    )
    for number in range(2)
)
GRAPH = graph(
    block("embed", EMBED),
    *LAYERS,
    block("head", linear("head.weight", 32, 64)),
    unquantized=("head.weight",),
)
TIED = graph(
    block("embed", EMBED),
    *LAYERS,
    block("head"),
    ties=(TiedGroup(fqns=("embed.weight", "head.weight"), num_bytes=EMBED.num_bytes),),
    unquantized=("head.weight",),
)


def request(*rules: FormatRule, asked: str = "bf16,nf4", **formats: Format) -> FormatRequest:
    return parse_request(asked, FormatConfig(formats=formats, format_rules=rules))


def rule(pattern: str, name: str, within: str | None = None) -> FormatRule:
    return FormatRule(pattern=pattern, format=name, within=within)


def forms(asked: FormatRequest, choice: str) -> dict[str, str]:
    return {fqn: form.name for fqn, form in asked_forms(GRAPH, asked, choice, "bf16").forms.items()}


@pytest.mark.parametrize("name", ["int8", "nf4", "fp4", "fp8", "mxfp4"])
def test_heads_and_embeddings_are_not_quantized(name: str) -> None:
    assert set(forms(request(asked=name), name)) == {
        "h.0.q.weight", "h.0.down.weight", "h.1.q.weight", "h.1.down.weight"
    }  # fmt: skip
    tied = planned_forms(read_model(TIED), request(asked=name)).choices[0]
    assert [tied.graph.blocks[index] for index in (0, 3)] == [TIED.blocks[0], TIED.blocks[3]]


def test_a_head_and_a_table_by_rules() -> None:
    asked = request(
        rule("head.*", "int8"), rule("embed.weight", "mine"), mine=Format(kind="fp4", blocksize=32)
    )
    everywhere = {"head.weight": "int8", "embed.weight": "mine"}
    assert forms(asked, "bf16") == everywhere
    assert forms(asked, "nf4").items() > everywhere.items()
    assert asked_forms(GRAPH, asked, "bf16", "bf16").forms["embed.weight"].form == Bnb4Bit(
        quant_type="fp4", blocksize=32
    )
    choices = planned_forms(read_model(GRAPH), asked)
    assert choices.block_choices == ((0,), (0, 1), (0, 1), (0,))
    assert choices.choices[0].block_formats == ("bf16", "bf16", "bf16", "bf16")
    assert choices.choices[0].format_rules == (rule("embed.weight", "mine"), rule("head.weight", "int8"))
    assert set(choices.formats) == {"bf16", "nf4", "int8", "mine"}


def test_a_weight_that_a_rule_leaves_as_it_is() -> None:
    assert forms(request(rule("h.#.down.*", "bf16")), "nf4") == {"h.0.q.weight": "nf4", "h.1.q.weight": "nf4"}


def test_a_rule_within_a_format_holds_there_only() -> None:
    asked = request(rule("head.weight", "int8", "nf4"))
    assert "head.weight" not in forms(asked, "bf16")
    assert forms(asked, "nf4")["head.weight"] == "int8"
    choices = planned_forms(read_model(GRAPH), asked)
    assert choices.block_choices[3] == (0, 1)
    assert [choice.block_formats[3] for choice in choices.choices] == ["bf16", "nf4"]


def test_a_block_that_a_format_changes_nothing_of_is_in_the_models_own() -> None:
    """So a rule within that holds there, too, and the block has one form."""
    asked = request(rule("head.weight", "int8", "bf16"))
    assert forms(asked, "nf4")["head.weight"] == "int8"
    choices = planned_forms(read_model(GRAPH), asked)
    assert choices.block_choices[3] == (0,)
    only = planned_forms(read_model(GRAPH), request(rule("head.weight", "int8", "bf16"), asked="nf4"))
    assert only.choices[0].block_formats == ("bf16", "nf4", "nf4", "bf16")
    assert only.choices[0].format_rules == (rule("head.weight", "int8"),)


def test_the_first_rule_that_matches_holds() -> None:
    asked = request(rule("h.0.*", "bf16"), rule("h.#.q.weight", "int8"))
    assert forms(asked, "nf4") == {"h.1.q.weight": "int8", "h.1.down.weight": "nf4"}


def test_a_rule_passes_over_weights_that_its_format_cannot_hold() -> None:
    """fp8 has no tables: they are as the next rule says."""
    asked = request(rule("*", "fp8"), rule("embed.weight", "int8"), asked="bf16")
    assert forms(asked, "bf16")["embed.weight"] == "int8"
    assert forms(asked, "bf16")["head.weight"] == "fp8"


def refused(asked: FormatRequest, **fields: object) -> str:
    with pytest.raises(UsageError) as caught:
        planned_forms(msgspec.structs.replace(read_model(TIED), **fields), asked)
    return str(caught.value)


def test_a_rule_with_another_plain_data_type() -> None:
    assert refused(request(rule("h.0.*", "fp32"))) == (
        "--format-config: $.format_rules[0].format: the model is in another data type: got fp32,"
        " needed bf16, or a quantized format\n"
        "hint: the layers of a forward hand each other tensors of one data type"
    )


def test_a_rule_within_a_format_that_is_not_to_choose_from() -> None:
    assert refused(request(rule("h.0.*", "bf16"), rule("h.1.*", "int8", "fp4"))) == (
        "--format-config: $.format_rules[1].within: no block is ever in this format: got fp4,"
        " needed one of bf16, nf4"
    )


@pytest.mark.parametrize("within", [None, "own"])
def test_a_rule_for_what_the_checkpoint_has_quantized(within: str | None) -> None:
    scheme = Scheme(name="own", groups=(Group(form=LlmInt8(), roles=(TensorRole.LINEAR,)),))
    asked = msgspec.structs.replace(request(rule("h.0.*", "bf16", within)), names=("own", "nf4"))
    assert refused(asked, scheme=scheme) == (
        "--format-config: $.format_rules[0]: a rule cannot change what the checkpoint has quantized:"
        " got 'h.0.*', needed `within` another format than the checkpoint's own"
    )


def test_a_rule_for_another_format_than_the_checkpoints_own() -> None:
    scheme = Scheme(name="own", groups=(Group(form=LlmInt8(), roles=(TensorRole.LINEAR,)),))
    asked = msgspec.structs.replace(request(rule("h.0.*", "bf16", "nf4")), names=("own", "nf4"))
    found = planned_forms(read_model(GRAPH, scheme=scheme), asked)
    assert [choice.block_formats for choice in found.choices] == [
        ("bf16", "int8", "int8", "bf16"),
        ("bf16", "bf16", "nf4", "bf16"),
    ]


@pytest.mark.parametrize("pattern", ["embed.weight", "*.norm.weight", "H.0.*"])
def test_a_rule_that_decides_over_no_weight(pattern: str) -> None:
    """Not over tied weights, what is no weight of a layer, or what is not there."""
    assert refused(request(rule(pattern, "int8"))) == (
        f"--format-config: $.format_rules[0]: the rule decides over no weight: got {pattern!r},"
        " needed the name of a weight of a linear layer or an embedding, such as lm_head.weight\n"
        "hint: tied weights and all other tensors stay as they are; the first rule that matches holds"
    )
