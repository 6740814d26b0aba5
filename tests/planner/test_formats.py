from __future__ import annotations

from typing import Any

import form_graphs
import msgspec
import pytest
from form_graphs import linear, record
from sample_plans import smol_plan

from bayplan.planner.formats import PlannedForm, plan_formats, planned_form
from bayplan.planner.model.facts import ReadModel
from bayplan.planner.stored_form import in_format
from bayplan.schemas.errors import UsageError
from bayplan.schemas.format_bytes import Bnb4Bit, LlmInt8
from bayplan.schemas.graph import GraphBlock, ModelGraph, TensorRecord, TensorRole, Work
from bayplan.schemas.plan import Format, FormatRule, Workload
from bayplan.schemas.quantization import Group, Scheme
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


def test_a_small_part_that_is_quantized_has_a_rule() -> None:
    large = record("h.0.table", (999, 64), "bf16")
    assert plan_formats(form_graphs.graph(quantizable("h.0", large)), "bf16", {"h.0.q.weight": NF4}) == (
        {"bf16": Format(kind="bf16"), "nf4": Format(kind="nf4")},
        (FormatRule(pattern="h.#.q.weight", format="nf4"),),
        ("bf16",),
    )


PLAIN = form_graphs.graph(
    quantizable("h.0", record("h.0.norm.weight", (64,), "bf16")),
    form_graphs.block("head", linear("head.weight", 64, 64)),
    unquantized=("head.weight",),
)
SCHEME = Scheme(name="int8", groups=(Group(form=INT8, roles=(TensorRole.LINEAR,)),))
WORKLOAD = Workload(batch=1, context=8, encoder_context=None, prefill_chunk=8, kv_dtype="bf16")


def read(**fields: Any) -> ReadModel:
    model = msgspec.structs.replace(smol_plan().model, dtype="bf16")
    return ReadModel(
        graph=PLAIN,
        model=model,
        workload=WORKLOAD,
        dtype="bf16",
        sources={},
        scratch_bytes=0,
        warnings=(),
        **fields,
    )


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
