from __future__ import annotations

import msgspec
import pytest
from form_graphs import WORKLOAD, block, experts, graph, linear, read_model, record

from bayplan.planner.block_forms import block_forms
from bayplan.planner.format_choice import parse_request
from bayplan.planner.formats import planned_forms
from bayplan.schemas.format_config import FormatConfig
from bayplan.schemas.graph import BlockExperts, GraphBlock, Linears, ModelGraph, TensorRole, TiedGroup, Work
from bayplan.schemas.plan import FormatRule
from bayplan.schemas.problem import BlockForm, PlainForm

WORK = Work(flops=2 * 8 * 64 * 64, activation_bytes=0, output_bytes=1024)
STEP = Work(flops=2 * 64 * 64, activation_bytes=0, output_bytes=128)


def working(one: GraphBlock, prefill: Work = WORK, decode: Work = STEP, kv_bytes: int = 0) -> GraphBlock:
    return msgspec.structs.replace(one, prefill=prefill, decode=decode, kv_bytes=kv_bytes)


LAYER = working(
    block(
        "h.0",
        linear("h.0.q.weight", 64, 64),
        record("h.0.norm.weight", (10,), "bf16"),
        record("h.0.mask", (10,), "bool", is_buffer=True),
    ),
    kv_bytes=1000,
)
PLAIN = graph(LAYER, block("norm", record("norm.weight", (64,), "bf16")))


def forms(
    model: ModelGraph, asked: str, config: FormatConfig | None = None
) -> tuple[tuple[BlockForm, ...], ...]:
    return block_forms(planned_forms(read_model(model), parse_request(asked, config)), WORKLOAD)


def test_what_a_block_takes_in_each_format() -> None:
    """64 x 64 weights: 8192 bytes in bf16; in nf4 2048, 256 of scales and 64 of codes."""
    (base, nf4), (norm,) = forms(PLAIN, "bf16,nf4")
    assert base == BlockForm(
        format="bf16",
        num_bytes=8192 + 20 + 10,
        parameter_bytes=8192 + 64,
        buffer_bytes=64,
        prefill_read_bytes=8192 + 20 + 1000,
        decode_read_bytes=8192 + 1000,
    )
    assert nf4 == BlockForm(
        format="nf4",
        num_bytes=2048 + 256 + 64 + 20 + 10,
        parameter_bytes=2048 + 256 + 64 + 64,
        buffer_bytes=64,
        prefill_read_bytes=2048 + 320 + 20 + 1000,
        decode_read_bytes=20 + 2043 + 320 + 1000,  # ten norms, and 4086 of the 4096 weights
        quantized_bytes=8192,
        workspace_bytes=8192,
        plain=PlainForm(
            kind="bf16", prefill_read_bytes=base.prefill_read_bytes, decode_read_bytes=base.decode_read_bytes
        ),
    )
    assert norm == BlockForm(
        format="bf16",
        num_bytes=128,
        parameter_bytes=128,
        buffer_bytes=0,
        prefill_read_bytes=0,
        decode_read_bytes=0,
    )


def test_what_a_step_copies_is_in_the_form_that_is_stored() -> None:
    """Of 4 x (2 x 5 x 64 + 64 x 5) weights of experts, in bf16 twice as many bytes as in fp8."""
    copying = msgspec.structs.replace(EXPERTS, copied_bytes=2 * 2 * 960)
    found = forms(graph(copying), "bf16,fp8")[0]
    stored = [_stored_bytes(form) for form in found]
    assert [form.copied_bytes for form in found] == [3840, -(-3840 * stored[1] // stored[0])]
    assert 3840 // 2 < found[1].copied_bytes < 3840
    assert [form.copied_bytes for form in forms(graph(EXPERTS), "bf16,fp8")[0]] == [0, 0]


def _stored_bytes(form: BlockForm) -> int:
    """Return the bytes of the experts' weights: all but the router and a buffer."""
    router = {"bf16": 4 * 64 * 2, "fp8": 4 * 64 + 4}[form.format]
    return form.num_bytes - router - 4 * 4


def test_experts_of_no_known_role_are_copied_as_they_are() -> None:
    plain = msgspec.structs.replace(LAYER, copied_bytes=500)
    assert [form.copied_bytes for form in forms(graph(plain), "bf16,nf4")[0]] == [500, 500]


def test_a_block_that_no_format_changes_has_one_form() -> None:
    head = working(block("head", linear("head.weight", 64, 64)))
    found = forms(graph(LAYER, head, unquantized=("head.weight",)), "auto")
    assert [[form.format for form in own] for own in found] == [["bf16", "int8", "nf4"], ["bf16"]]


def test_quantized_bytes_are_of_what_the_first_form_does_not_round() -> None:
    (layer, _norm) = forms(PLAIN, "nf4,bf16,int8")
    assert [(form.format, form.quantized_bytes) for form in layer] == [
        ("nf4", 0),
        ("bf16", 0),
        ("int8", 2048 + 256 + 64),
    ]


def test_what_a_rule_rounds_in_every_form_counts_in_none() -> None:
    two = working(block("h.0", linear("h.0.q.weight", 64, 64), linear("h.0.k.weight", 64, 64)))
    config = FormatConfig(format_rules=(FormatRule(pattern="*.k.*", format="int8"),))
    (layer,) = forms(graph(two), "bf16,nf4", config)
    assert [(form.format, form.quantized_bytes) for form in layer] == [("bf16", 0), ("nf4", 8192)]
    assert [form.num_bytes for form in layer] == [8192 + 4096 + 256, 2368 + 4096 + 256]


def test_tied_weights_are_read_where_they_are_used() -> None:
    """Also by the tensors of a split module of its own."""
    table = record("embed.weight", (64, 64), "bf16", role=TensorRole.EMBEDDING)
    blocks = (
        working(block("embed", table), prefill=Work(flops=0, activation_bytes=0, output_bytes=512)),
        working(block("model:own")),
        working(block("head")),
    )
    ties = (TiedGroup(fqns=("embed.weight", "head.weight", "model.table"), num_bytes=8192),)
    found = [own[0] for own in forms(graph(*blocks, ties=ties), "nf4")]
    assert [form.prefill_read_bytes for form in found] == [512, 8192, 8192]
    assert [form.num_bytes for form in found] == [8192, 0, 0]


EXPERTS = working(
    block(
        "h.0",
        linear("h.0.router.weight", 4, 64),
        experts("h.0.experts.gate_up", (4, 10, 64), Linears(count=8, out_features=5, in_features=64)),
        experts("h.0.experts.down", (4, 64, 5), Linears(count=4, out_features=64, in_features=5)),
        record("h.0.experts.scale", (4,), "fp32", is_buffer=True),
    ),
    decode=Work(flops=2 * (4 * 64 + 2 * 15 * 64), activation_bytes=0, output_bytes=128),
)
ROUTED = msgspec.structs.replace(
    EXPERTS,
    experts=BlockExperts(
        module="h.0.experts",
        count=4,
        per_token=2,
        prefill_flops=WORK.flops // 2,
        decode_flops=2 * 2 * 15 * 64,
        prefill_hidden_bytes=0,
        decode_hidden_bytes=0,
    ),
)


def test_the_bytes_of_one_expert() -> None:
    """A share of every tensor, aligned by itself; packed tensors split likewise."""
    (layer,) = forms(graph(ROUTED), "bf16,int8")
    assert [form.unit_bytes for form in layer] == [1280 + 640, 640 + 64 + 320 + 256]
    assert forms(graph(EXPERTS), "bf16")[0][0].unit_bytes == 0


@pytest.mark.parametrize("block", [EXPERTS, ROUTED])
def test_a_step_reads_the_experts_that_it_is_routed_to(block: GraphBlock) -> None:
    """Two of four, and the router."""
    rule = FormatRule(pattern="*.router.*", format="bf16")
    (layer,) = forms(graph(block), "bf16,int8", FormatConfig(format_rules=(rule,)))
    plain, packed = layer
    assert plain.decode_read_bytes == 2 * (4 * 64 + 2 * 15 * 64)
    scales = 4 * (8 * 5 + 4 * 64)
    assert packed.decode_read_bytes == 512 + 2 * 15 * 64 + scales // 2
