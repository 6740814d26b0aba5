from __future__ import annotations

import pytest

from bayplan.planner.plan_format import plan_format
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
