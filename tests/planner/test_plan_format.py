from __future__ import annotations

import pytest

from bayplan.planner.plan_format import SETTINGS, plan_format, stray_fields, usual_entry, weight_form
from bayplan.schemas.format_bytes import (
    Awq,
    BlockFp4,
    BlockFp8,
    Bnb4Bit,
    Compressed,
    Gptq,
    LlmInt8,
    Mxfp4,
    WeightForm,
)
from bayplan.schemas.plan import Format

CASES: list[tuple[WeightForm, Format]] = [
    (LlmInt8(), Format(kind="int8")),
    (LlmInt8(threshold_milli=0), Format(kind="int8", threshold_milli=0)),
    (Bnb4Bit(quant_type="nf4"), Format(kind="nf4")),
    (
        Bnb4Bit(quant_type="fp4", blocksize=128, double_quant=True, storage_dtype="bf16"),
        Format(kind="fp4", blocksize=128, double_quant=True, storage_dtype="bf16"),
    ),
    (BlockFp8(), Format(kind="fp8", block_shape=(128, 128), scale_dtype="fp32")),
    (
        BlockFp8(block_shape=None, scale_dtype="fp8_e8m0", is_static=True),
        Format(kind="fp8", block_shape=(0, 0), scale_dtype="fp32", is_static=True),
    ),
    (BlockFp4(), Format(kind="fp4-rows", block_shape=(1, 32), scale_dtype="fp8_e8m0")),
    (Mxfp4(), Format(kind="mxfp4", block_shape=(1, 32), scale_dtype="fp8_e8m0")),
    (
        Gptq(bits=3, group_size=None),
        Format(kind="gptq", bits=3, block_shape=(1, 0), scale_dtype="fp16", is_asymmetric=True),
    ),
    (
        Awq(bits=4, group_size=64),
        Format(kind="awq", bits=4, block_shape=(1, 64), scale_dtype="fp16", is_asymmetric=True),
    ),
    (
        Compressed(layout="pack-quantized", bits=4, block_shape=(1, 32), is_symmetric=False),
        Format(kind="pack-quantized", bits=4, block_shape=(1, 32), scale_dtype="bf16", is_asymmetric=True),
    ),
    (
        Compressed(layout="float-quantized", bits=8, block_shape=(1, None), is_static=True),
        Format(kind="float-quantized", bits=8, block_shape=(1, 0), scale_dtype="bf16", is_static=True),
    ),
    (
        Compressed(layout="int-quantized", bits=8, block_shape=None),
        Format(kind="int-quantized", bits=8, block_shape=(0, 0), scale_dtype="bf16"),
    ),
]


@pytest.mark.parametrize(("form", "entry"), CASES)
def test_what_a_plan_says_of_a_form(form: WeightForm, entry: Format) -> None:
    assert plan_format(form) == entry


def test_forms_that_differ_are_written_differently() -> None:
    assert len({repr(entry) for _, entry in CASES}) == len(CASES)


CONVERTED = (LlmInt8, Bnb4Bit, BlockFp8, Mxfp4)
STATIC = BlockFp8(block_shape=None, scale_dtype="fp8_e8m0", is_static=True)


@pytest.mark.parametrize(("form", "entry"), [case for case in CASES if case[0] != STATIC])
def test_an_entry_gives_back_its_form_where_weights_are_converted_to_it(
    form: WeightForm, entry: Format
) -> None:
    assert weight_form(entry) == (form if isinstance(form, CONVERTED) else None)
    if isinstance(form, CONVERTED):
        assert usual_entry(entry) == entry
        assert stray_fields(entry) == ()


def test_a_plain_data_type_is_no_form() -> None:
    assert weight_form(Format(kind="bf16")) is None
    assert usual_entry(Format(kind="bf16")) == Format(kind="bf16")
    assert stray_fields(Format(kind="bf16", blocksize=64)) == ("blocksize",)


def test_the_data_type_of_products_stays_in_the_entry() -> None:
    entry = Format(kind="nf4", blocksize=64, compute_dtype="fp32")
    assert usual_entry(entry) == Format(kind="nf4", compute_dtype="fp32")
    assert stray_fields(entry) == ()


def test_fields_that_no_form_has() -> None:
    entry = Format(kind="fp8", bits=8, is_static=True, scale_dtype="bf16", block_shape=(64, 64))
    assert stray_fields(entry) == ("bits", "scale_dtype", "is_static")


def test_settings_are_fields() -> None:
    assert {field for fields in SETTINGS.values() for field in fields} <= set(Format.__struct_fields__)
