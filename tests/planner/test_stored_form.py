from __future__ import annotations

import msgspec
import pytest
from form_graphs import block, experts, graph, linear, record

from bayplan.planner.stored_form import (
    FORMAT_NAMES,
    in_format,
    main_dtype,
    packed_records,
    parse_format,
    with_forms,
    with_tensors,
)
from bayplan.schemas.errors import UsageError
from bayplan.schemas.format_bytes import BlockFp8, LlmInt8, Mxfp4
from bayplan.schemas.graph import Linears, ModelGraph, TensorRecord, TensorRole, TiedGroup
from bayplan.schemas.quantization import ASKED_SCHEMES, Group, Scheme

LINEAR = linear("h.0.q.weight", 6, 10)
NORM = record("h.0.norm.weight", (10,), "bf16")


def dtypes(found: ModelGraph) -> dict[str, str]:
    return {tensor.fqn: tensor.dtype for one in found.blocks for tensor in one.tensors}


def test_what_is_in_the_models_own_data_type_changes() -> None:
    found = in_format(
        graph(
            block(
                "h.0",
                LINEAR,
                record("h.0.gate.bias", (4,), "fp32"),
                record("h.0.codes", (3,), "int64", is_buffer=True),
                record("h.0.mean", (3,), "bf16", is_buffer=True),
                record("h.0.freq", (2,), "fp32", is_buffer=True, is_persistent=False),
            )
        ),
        "fp64",
    )
    assert dtypes(found) == {
        "h.0.q.weight": "fp64",
        "h.0.gate.bias": "fp32",
        "h.0.codes": "int64",
        "h.0.mean": "fp64",
        "h.0.freq": "fp32",
    }
    assert [tensor.num_bytes for tensor in found.blocks[0].tensors] == [480, 16, 24, 24, 8]


def test_what_the_class_keeps_in_fp32_stays_under_the_data_types_it_keeps_it_under() -> None:
    plain = graph(block("h.0", LINEAR, NORM), kept_fp32={"fp16": ("h.0.norm.weight",)})
    in_fp16 = in_format(plain, "fp16")
    assert dtypes(in_fp16) == {"h.0.q.weight": "fp16", "h.0.norm.weight": "fp32"}
    assert dtypes(in_format(plain, "fp32")) == {"h.0.q.weight": "fp32", "h.0.norm.weight": "fp32"}
    assert in_format(in_fp16, "bf16") == plain


def test_computed_buffers_of_an_fp32_model_of_which_nothing_more_is_known() -> None:
    tensors = (
        record("h.0.w", (4,), "fp32"),
        record("h.0.freq", (2,), "fp32", is_buffer=True, is_persistent=False),
    )
    unknown = in_format(graph(block("h.0", *tensors)), "bf16")
    known = in_format(graph(block("h.0", *tensors), kept_fp32={"bf16": (), "fp16": ()}), "bf16")
    assert dtypes(unknown) == {"h.0.w": "bf16", "h.0.freq": "fp32"}
    assert dtypes(known) == {"h.0.w": "bf16", "h.0.freq": "bf16"}


def test_tied_groups_follow_the_listed_name() -> None:
    ties = (TiedGroup(fqns=("a.w", "h.0.q.weight"), num_bytes=120), TiedGroup(fqns=("x", "y"), num_bytes=7))
    found = in_format(graph(block("h.0", LINEAR), ties=ties), "fp32")
    assert [tie.num_bytes for tie in found.ties] == [240, 7]


def test_nothing_but_the_tensors_changes() -> None:
    plain = graph(block("h.0", LINEAR, NORM))
    for name in FORMAT_NAMES:
        found = in_format(plain, name)
        assert with_tensors(found, {"h.0": plain.blocks[0].tensors}) == plain
        assert in_format(plain, "bf16") == plain


@pytest.mark.parametrize(
    ("counts", "kept", "dtype"),
    [
        ({"bf16": 3, "fp32": 2}, (), "bf16"),
        ({"bf16": 2, "fp32": 2}, (), "bf16"),
        ({"bf16": 2, "fp32": 3}, ("fp32",), "bf16"),
        ({"fp32": 3}, ("fp32",), "fp32"),
        ({"int8": 9}, (), None),
        ({"int8": 9, "fp16": 1}, (), "fp16"),
    ],
)
def test_main_dtype(counts: dict[str, int], kept: tuple[str, ...], dtype: str | None) -> None:
    tensors = (record(name, (count,), name) for name, count in counts.items())
    assert main_dtype(graph(block("h", *tensors), kept_fp32={"fp16": kept})) == dtype


def test_a_model_without_floating_point_parameters_stays() -> None:
    plain = graph(block("h", record("h.codes", (4,), "int8")))
    assert in_format(plain, "fp32") == plain


def test_a_linear_weight_becomes_its_parts() -> None:
    found = in_format(graph(block("h.0", LINEAR, NORM)), "int8").blocks[0].tensors
    assert found == (
        TensorRecord(
            fqn="h.0.q.weight",
            shape=(6, 10),
            dtype="int8",
            num_bytes=60,
            role=TensorRole.LINEAR,
            linears=LINEAR.linears,
            num_values=60,
        ),
        TensorRecord(fqn="h.0.q.SCB", shape=(6,), dtype="fp32", num_bytes=24, num_values=0),
        NORM,
    )


def test_every_expert_is_a_layer_of_its_own() -> None:
    weight = experts("h.0.experts.gate_up_proj", (4, 6, 10), Linears(count=8, out_features=3, in_features=10))
    assert packed_records(weight, LlmInt8()) == (
        TensorRecord(
            fqn="h.0.experts.gate_up_proj.weight",
            shape=(8, 3, 10),
            dtype="int8",
            num_bytes=240,
            role=TensorRole.EXPERTS,
            linears=weight.linears,
            num_values=240,
        ),
        TensorRecord(
            fqn="h.0.experts.gate_up_proj.SCB", shape=(8, 3), dtype="fp32", num_bytes=96, num_values=0
        ),
    )


def test_a_table_has_the_scale_of_a_layer() -> None:
    table = record("embed.weight", (7, 5), "bf16", role=TensorRole.EMBEDDING)
    parts = packed_records(table, BlockFp8(block_shape=None))
    assert [(part.fqn, part.num_bytes) for part in parts] == [
        ("embed.weight", 35),
        ("embed.weight_scale_inv", 4),
    ]


def test_a_scheme_of_its_own_and_a_data_type_for_the_rest() -> None:
    scheme = Scheme(name="some", groups=(Group(form=Mxfp4(), roles=(TensorRole.LINEAR,)),))
    plain = graph(block("h.0", LINEAR, NORM))
    own = in_format(plain, "some", scheme=scheme)
    assert dtypes(own) == {
        "h.0.q.weight_blocks": "uint8",
        "h.0.q.weight_scales": "uint8",
        "h.0.norm.weight": "bf16",
    }
    assert dtypes(in_format(plain, "fp32", scheme=scheme)) == {**dtypes(own), "h.0.norm.weight": "fp32"}


def test_torchs_names_of_data_types() -> None:
    plain = graph(block("h.0", LINEAR, NORM))
    assert in_format(plain, "float16") == in_format(plain, "fp16")


def test_forms_by_name() -> None:
    plain = graph(block("h.0", LINEAR, NORM), block("h.1", linear("h.1.q.weight", 6, 10)))
    found = with_forms(plain, {"h.1.q.weight": LlmInt8()})
    assert dtypes(found) == {
        "h.0.q.weight": "bf16",
        "h.0.norm.weight": "bf16",
        "h.1.q.weight": "int8",
        "h.1.q.SCB": "fp32",
    }


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("fp32", "fp32"),
        ("float16", "fp16"),
        ("torch.bfloat16", "bf16"),
        ("nf4", "nf4"),
        ("int8-bnb", "int8"),
        ("float8", "fp8"),
    ],
)
def test_parse_format(text: str, name: str) -> None:
    assert parse_format(text, where="--format") == name


@pytest.mark.parametrize("text", ["fp7", "int64", "int4", "", "NF4"])
def test_no_format(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_format(text, where="--format")
    assert str(caught.value) == (
        f"--format: unknown format: got {text!r}, needed one of fp32, bf16, fp16, fp64, int8, nf4, fp4, fp8,"
        " mxfp4"
    )


def test_no_format_of_a_graph() -> None:
    with pytest.raises(UsageError) as caught:
        in_format(graph(block("h.0", LINEAR)), "fp7")
    assert str(caught.value).startswith("format: unknown format: got 'fp7', needed one of fp32, ")


def test_every_format_that_can_be_asked_for_has_a_name() -> None:
    assert set(ASKED_SCHEMES) == set(FORMAT_NAMES) - {"fp32", "bf16", "fp16", "fp64"}
    assert all(scheme.name == name for name, scheme in ASKED_SCHEMES.items())
    assert msgspec.json.decode(msgspec.json.encode(ASKED_SCHEMES["nf4"]), type=Scheme) == ASKED_SCHEMES["nf4"]
