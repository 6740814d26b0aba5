from __future__ import annotations

from typing import Any

import form_graphs
import msgspec
import pytest
from form_graphs import linear, record
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planner.chosen_forms import asked_forms
from bayplan.planner.format_choice import FormatRequest, parse_request
from bayplan.planner.formats import (
    PlannedForm,
    PlannedForms,
    mixed_rules,
    plan_formats,
    planned_form,
    planned_forms,
)
from bayplan.planner.model.facts import ReadModel
from bayplan.planner.stored_form import in_format
from bayplan.schemas.errors import UsageError
from bayplan.schemas.format_bytes import Bnb4Bit, LlmInt8
from bayplan.schemas.format_config import FormatConfig
from bayplan.schemas.graph import GraphBlock, ModelGraph, TensorRecord, TensorRole, Work
from bayplan.schemas.plan import Format, FormatRule
from bayplan.schemas.quantization import Group, Scheme
from bayplan.schemas.rules import ruled_format
from bayplan.schemas.strict_json import sha256_digest

NO_WORK = Work(flops=0, activation_bytes=0, output_bytes=0)


def block(name: str, *tensors: tuple[str, str, int], is_buffer: bool = False) -> GraphBlock:
    return GraphBlock(
        id=name,
        class_name="Layer",
        tensors=tuple(
            TensorRecord(
                fqn=f"{name}.{suffix}", shape=(1,), dtype=dtype, num_bytes=num_bytes, is_buffer=is_buffer
            )
            for suffix, dtype, num_bytes in tensors
        ),
        kv_bytes=0,
        prefill=NO_WORK,
        decode=NO_WORK,
    )


def graph(*blocks: GraphBlock) -> ModelGraph:
    return ModelGraph(
        class_name="Model",
        blocks=blocks,
        edges=(),
        ties=(),
        tree_digest=sha256_digest(b""),
        num_params=0,
        generates=True,
        max_context=None,
        traced=True,
    )


def test_one_format() -> None:
    found = plan_formats(graph(block("a", ("w", "bf16", 8)), block("b", ("w", "bf16", 8))), "bf16")
    assert found == ({"bf16": Format(kind="bf16")}, (), ("bf16", "bf16"))


def test_a_block_is_in_the_format_of_most_of_its_bytes() -> None:
    mixed = block("h.0", ("w", "fp16", 100), ("norm", "fp32", 60), ("scale", "fp32", 30))
    assert plan_formats(graph(mixed), "bf16") == (
        {"fp16": Format(kind="fp16"), "fp32": Format(kind="fp32")},
        (FormatRule(pattern="h.#.norm", format="fp32"), FormatRule(pattern="h.#.scale", format="fp32")),
        ("fp16",),
    )


def test_equal_bytes_are_decided_by_name() -> None:
    assert plan_formats(graph(block("a", ("x", "fp32", 8), ("y", "bf16", 8))), "fp16")[2] == ("bf16",)


def test_a_block_without_floating_point_parameters_has_the_default() -> None:
    codes = block("codes", ("table", "int64", 80))
    mask = block("mask", ("m", "fp32", 80), is_buffer=True)
    assert plan_formats(graph(codes, mask), "bf16") == ({"bf16": Format(kind="bf16")}, (), ("bf16", "bf16"))


def test_only_some_of_like_tensors_differ() -> None:
    first = block("h.0", ("w", "bf16", 100), ("norm", "fp32", 8))
    second = msgspec.structs.replace(block("h.1", ("w", "bf16", 100), ("norm", "bf16", 8)))
    assert plan_formats(graph(first, second), "bf16")[1] == (FormatRule(pattern="h.0.norm", format="fp32"),)


def quantizable(name: str, *others: TensorRecord) -> GraphBlock:
    return form_graphs.block(name, linear(f"{name}.q.weight", 64, 64), *others)


NF4, INT8 = Bnb4Bit(quant_type="nf4"), LlmInt8()


def test_a_quantized_block_needs_no_rule_for_what_is_no_linear_layer() -> None:
    norm, scale = record("h.0.norm.weight", (64,), "bf16"), record("h.0.scale", (64,), "fp32")
    blocks = quantizable("h.0", norm, scale), form_graphs.block("norm", record("norm.weight", (64,), "bf16"))
    assert plan_formats(form_graphs.graph(*blocks), "bf16", {"h.0.q.weight": NF4}) == (
        {"bf16": Format(kind="bf16"), "fp32": Format(kind="fp32"), "nf4": Format(kind="nf4")},
        (FormatRule(pattern="h.#.scale", format="fp32"),),
        ("nf4", "bf16"),
    )


def test_a_linear_layer_that_is_left_has_a_rule() -> None:
    """A block of another format in which it has its own does not stand in the way of the pattern."""
    first, second, third = (quantizable(f"h.{number}") for number in range(3))
    left = (
        form_graphs.block(one.id, *one.tensors, linear(f"{one.id}.o.weight", 8, 8)) for one in (first, second)
    )
    plain = form_graphs.block("h.2", *third.tensors, linear("h.2.o.weight", 8, 8))
    forms = {"h.0.q.weight": NF4, "h.1.q.weight": INT8}
    assert plan_formats(form_graphs.graph(*left, plain), "bf16", forms) == (
        {"bf16": Format(kind="bf16"), "int8": Format(kind="int8"), "nf4": Format(kind="nf4")},
        (FormatRule(pattern="h.#.o.weight", format="bf16"),),
        ("nf4", "int8", "bf16"),
    )


def test_a_block_of_which_a_small_part_is_quantized_is_in_that_format() -> None:
    """What is no linear layer then needs no rule, however large it is."""
    large = record("h.0.table", (999, 64), "bf16")
    assert plan_formats(form_graphs.graph(quantizable("h.0", large)), "bf16", {"h.0.q.weight": NF4}) == (
        {"bf16": Format(kind="bf16"), "nf4": Format(kind="nf4")},
        (),
        ("nf4",),
    )


def test_a_quantized_table_has_a_rule() -> None:
    """Without one, a block's quantized format says nothing of what is no linear layer."""
    table = record("embed.weight", (9, 64), "bf16", role=TensorRole.EMBEDDING)
    graph = form_graphs.graph(form_graphs.block("embed", table))
    assert plan_formats(graph, "bf16", {"embed.weight": NF4}) == (
        {"nf4": Format(kind="nf4")},
        (FormatRule(pattern="embed.weight", format="nf4"),),
        ("nf4",),
    )


PLAIN = form_graphs.graph(
    quantizable("h.0", record("h.0.norm.weight", (64,), "bf16")),
    form_graphs.block("head", linear("head.weight", 64, 64)),
    unquantized=("head.weight",),
)
SCHEME = Scheme(name="int8", groups=(Group(form=INT8, roles=(TensorRole.LINEAR,)),))


def read(graph: ModelGraph = PLAIN, **fields: Any) -> ReadModel:
    return form_graphs.read_model(graph, **fields)


def tensors(form: PlannedForm) -> list[str]:
    return [tensor.fqn for block in form.graph.blocks for tensor in block.tensors]


def test_a_plain_model_in_its_own_data_type() -> None:
    form = planned_form(read(), None)
    assert (form.graph, form.block_formats) == (PLAIN, ("bf16", "bf16"))
    assert planned_form(read(), "bf16") == form
    assert planned_form(read(scheme=SCHEME), "bfloat16") == form


def test_a_plain_model_in_a_quantized_format() -> None:
    form = planned_form(read(), "nf4")
    assert form.block_formats == ("nf4", "bf16")
    assert form.graph == in_format(PLAIN, "nf4")


def test_a_quantized_checkpoint_by_its_config() -> None:
    form = planned_form(read(scheme=SCHEME), None)
    assert (form.block_formats, form.format_rules) == (("int8", "bf16"), ())
    assert tensors(form) == ["h.0.q.weight", "h.0.q.SCB", "h.0.norm.weight", "head.weight"]
    assert planned_form(read(scheme=SCHEME), "int8") == form
    assert planned_form(read(scheme=SCHEME), "nf4") == planned_form(read(), "nf4")


def test_a_quantized_checkpoint_by_its_headers() -> None:
    """They, not the config, say what is packed and in which data type the rest is."""
    stored = {
        "h.0": (
            record("h.0.q.weight", (64, 64), "bf16"),
            record("h.0.norm.weight", (64,), "fp32"),
        ),
        "head": (record("head.weight", (64, 64), "int8"), record("head.SCB", (64,), "fp32")),
    }
    dtypes: dict[str, str | None] = {"h.0.q.weight": "bf16", "h.0.norm.weight": "fp32", "head.weight": None}
    form = planned_form(read(scheme=SCHEME, stored=stored, stored_dtypes=dtypes), None)
    assert form.block_formats == ("bf16", "int8")
    assert form.format_rules == (FormatRule(pattern="h.#.norm.weight", format="fp32"),)
    assert tensors(form) == ["h.0.q.weight", "h.0.norm.weight", "head.weight", "head.SCB"]
    plain = planned_form(read(stored=stored, stored_dtypes=dtypes), None)
    assert plain.graph == PLAIN


def test_a_format_that_is_not_known() -> None:
    with pytest.raises(UsageError) as caught:
        planned_form(read(), "fp7")
    assert str(caught.value).startswith("--format: unknown format: got 'fp7', needed one of fp32, bf16, ")


# Several formats.


def test_choices_in_the_order_asked() -> None:
    forms = planned_forms(read(), parse_request("nf4,bf16,int8"))
    assert [choice.block_formats for choice in forms.choices] == [
        ("nf4", "bf16"),
        ("bf16", "bf16"),
        ("int8", "bf16"),
    ]
    assert [choice.graph for choice in forms.choices] == [
        in_format(PLAIN, name) for name in ("nf4", "bf16", "int8")
    ]
    assert list(forms.formats.items()) == [(name, Format(kind=name)) for name in ("bf16", "int8", "nf4")]
    assert forms.dtype == "bf16"


def test_a_block_that_no_format_changes_has_the_base_only() -> None:
    forms = planned_forms(read(), parse_request("bf16,nf4,int8"))
    assert forms.block_choices == ((0, 1, 2), (0,))


def test_auto_is_the_models_own_format_and_two_quantized_ones() -> None:
    assert planned_forms(read(), parse_request("auto")) == planned_forms(
        read(), parse_request("bf16,int8,nf4")
    )


def test_auto_of_a_quantized_checkpoint_is_its_own() -> None:
    own = read(scheme=SCHEME)
    assert planned_forms(own, parse_request("auto")) == planned_forms(own, parse_request(None))
    assert planned_forms(own, parse_request(None)).block_choices == ((0,), (0,))


def test_a_quantized_checkpoint_may_be_held_otherwise() -> None:
    forms = planned_forms(read(scheme=SCHEME), parse_request("int8,nf4,bf16"))
    assert [choice.block_formats[0] for choice in forms.choices] == ["int8", "nf4", "bf16"]
    assert forms.block_choices == ((0, 1, 2), (0,))


def test_the_same_bytes_under_other_rules_of_products_are_another_form() -> None:
    config = FormatConfig(formats={"wide": Format(kind="nf4", compute_dtype="fp32")})
    forms = planned_forms(read(), parse_request("nf4,wide", config))
    assert forms.block_choices == ((0, 1), (0,))
    assert [choice.block_formats[0] for choice in forms.choices] == ["nf4", "wide"]
    assert forms.formats["wide"] == Format(kind="nf4", compute_dtype="fp32")


def test_a_name_that_the_checkpoint_has_for_another_format() -> None:
    own = Scheme(
        name="own",
        groups=(Group(form=Bnb4Bit(quant_type="nf4", double_quant=True), roles=(TensorRole.LINEAR,)),),
    )
    config = FormatConfig(formats={"nf4-dq": Format(kind="nf4", double_quant=True, blocksize=128)})
    request = msgspec.structs.replace(parse_request("nf4-dq", config), names=("own", "nf4-dq"))
    with pytest.raises(UsageError) as caught:
        planned_forms(read(scheme=own), request)
    assert str(caught.value) == (
        "--format: the checkpoint's own format has the same name: got nf4-dq, needed one of the two\n"
        "hint: --format-config gives a format another name"
    )


def test_a_block_name_that_the_checkpoint_has_for_other_weights() -> None:
    """Of the same format, but of other weights of the block."""
    two = quantizable("h.0", linear("h.0.k.weight", 8, 8))
    own = Scheme(name="own", groups=(Group(form=NF4, roles=(TensorRole.LINEAR,)),), not_converted=("h.0.k",))
    request = FormatRequest(names=("own", "nf4"))
    with pytest.raises(UsageError) as caught:
        planned_forms(read(form_graphs.graph(two), scheme=own), request)
    assert caught.value.got == "nf4"


# Rules for a mix.


def mix(forms: PlannedForms, *chosen: int) -> tuple[FormatRule, ...]:
    return mixed_rules(forms, chosen)


LEFT = form_graphs.graph(
    *(
        form_graphs.block(
            name,
            linear(f"{name}.q.weight", 64, 64),
            linear(f"{name}.router.weight", 8, 64),
            record(f"{name}.norm.weight", (64,), "bf16"),
            record(f"{name}.scale", (64,), "fp32"),
        )
        for name in ("h.0", "h.1", "h.2")
    ),
    unquantized=("h.0.router.weight", "h.1.router.weight", "h.2.router.weight"),
)


def test_a_mix_in_one_format_has_the_rules_of_that_format() -> None:
    forms = planned_forms(read(LEFT), parse_request("bf16,nf4,int8"))
    for number, choice in enumerate(forms.choices):
        assert mix(forms, number, number, number) == choice.format_rules


def test_rules_of_a_mix() -> None:
    """In blocks in bf16 a router is as its block is; the scale is in fp32 wherever it is."""
    forms = planned_forms(read(LEFT), parse_request("bf16,nf4,int8"))
    scale = FormatRule(pattern="h.#.scale", format="fp32")
    router = FormatRule(pattern="h.#.router.weight", format="bf16")
    assert mix(forms, 0, 0, 0) == (scale,)
    assert mix(forms, 0, 1, 2) == (scale, router)


def test_what_one_format_leaves_and_another_does_not() -> None:
    grouped = linear("h.0.g.weight", 64, 64)
    grouped = msgspec.structs.replace(grouped, role=TensorRole.CONV1D)
    blocks = (
        form_graphs.block(
            name, linear(f"{name}.q.weight", 64, 64), msgspec.structs.replace(grouped, fqn=f"{name}.g.weight")
        )
        for name in ("h.0", "h.1", "h.2")
    )
    forms = planned_forms(read(form_graphs.graph(*blocks)), parse_request("nf4,fp8"))
    assert mix(forms, 0, 1, 1) == (FormatRule(pattern="h.#.g.weight", format="bf16", within="fp8"),)


ROLES = (TensorRole.LINEAR, TensorRole.CONV1D, TensorRole.GROUPED_LINEAR, TensorRole.EMBEDDING)


@st.composite
def mixes(draw: st.DrawFn) -> tuple[ReadModel, FormatRequest, list[int]]:
    """Blocks of a few tensors of any kind under names that differ in numbers, formats, rules and a mix."""
    blocks, unquantized = [], []
    for number in range(draw(st.integers(1, 4))):
        tensors = []
        for stem in draw(st.sets(st.sampled_from(("q", "k", "e.0", "e.1", "norm")), min_size=1)):
            fqn = f"h.{number}.{stem}.weight"
            dtype = draw(st.sampled_from(("bf16", "bf16", "fp32", "int8")))
            role = draw(st.sampled_from(ROLES))
            shape = (draw(st.sampled_from((8, 64))), 64)
            if stem == "norm" or dtype == "int8":
                tensors.append(record(fqn, shape, dtype, is_buffer=draw(st.booleans())))
            elif role is TensorRole.EMBEDDING:
                tensors.append(record(fqn, shape, dtype, role=role))
            else:
                tensors.append(msgspec.structs.replace(linear(fqn, *shape, dtype), role=role))
                unquantized += [fqn] * draw(st.booleans())
        blocks.append(form_graphs.block(f"h.{number}", *tensors))
    graph = form_graphs.graph(*blocks, unquantized=tuple(unquantized))
    names = draw(st.permutations(("bf16", "nf4", "int8", "fp8", "mine")))[: draw(st.integers(1, 5))]
    patterns = st.sampled_from(("*.q.*", "h.0.*", "h.#.e.#.weight", "h.1.k.weight", "*"))
    rules = st.builds(
        FormatRule,
        pattern=patterns,
        format=st.sampled_from(("bf16", "int8", "mine")),
        within=st.none() | st.sampled_from(names),
    )
    config = FormatConfig(
        formats={"mine": Format(kind="fp4", double_quant=True)},
        format_rules=tuple(draw(st.lists(rules, max_size=3))),
    )
    request = parse_request(",".join(names), config)
    decided = set().union(*(asked_forms(graph, request, name, "bf16").decided for name in names))
    request = msgspec.structs.replace(request, rules=tuple(rule for rule in request.rules if rule in decided))
    return read(graph), request, draw(st.lists(st.integers(0, 4), min_size=len(blocks), max_size=len(blocks)))


@given(mixes())
def test_the_rules_of_any_mix_give_every_tensor_its_format(
    case: tuple[ReadModel, FormatRequest, list[int]],
) -> None:
    model, request, wanted = case
    forms = planned_forms(model, request)
    chosen = [index % len(own) for index, own in zip(wanted, forms.block_choices, strict=True)]
    rules = mixed_rules(forms, chosen)
    for index, (one, own) in enumerate(zip(chosen, forms.block_choices, strict=True)):
        choice = forms.choices[own[one]]
        name = choice.block_formats[index]
        assert name in forms.formats
        assert len({forms.choices[number].block_formats[index] for number in own}) == len(own)
        for tensor in choice.held[index]:
            # A quantized format of a block is that of its linear weights; the rest is in the model's own.
            is_meant = tensor.record.linears is not None or name in ("bf16", "fp32")
            ruled = ruled_format(tensor.record.fqn, name, rules)
            assert tensor.format in (None, ruled or (name if is_meant else "bf16"))
    assert {rule.format for rule in rules} | {rule.within for rule in rules} <= {*forms.formats, None}
    assert mixed_rules(forms, chosen) == rules
