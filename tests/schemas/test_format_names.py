from __future__ import annotations

import pytest

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
from bayplan.schemas.format_names import form_name, form_text

CASES: list[tuple[WeightForm, str, str]] = [
    (LlmInt8(), "int8", "int8 of bitsandbytes with a scale per output"),
    (Bnb4Bit(quant_type="nf4"), "nf4", "nf4 of bitsandbytes with a scale per 64 weights"),
    (
        Bnb4Bit(quant_type="fp4", blocksize=128, double_quant=True),
        "fp4-b128-dq",
        "fp4 of bitsandbytes with an 8-bit scale, itself quantized, per 128 weights",
    ),
    (BlockFp8(), "fp8", "fp8 with a scale (fp32) per 128x128 block"),
    (
        BlockFp8(block_shape=(64, 32), scale_dtype="fp8_e8m0", is_static=True),
        "fp8-b64x32-e8m0-static",
        "fp8 with a scale (fp8_e8m0) per 64x32 block, and one of the input",
    ),
    (BlockFp8(block_shape=None), "fp8-tensor", "fp8 with a scale (fp32) per tensor"),
    (BlockFp4(), "fp4-rows", "fp4 with a scale (fp8_e8m0) per 32 weights of a row"),
    (Mxfp4(), "mxfp4", "mxfp4: fp4 with a one-byte scale per 32 weights of a row"),
    (
        Gptq(bits=4, group_size=128),
        "gptq-int4-g128",
        "int4 of GPTQ with a scale and a zero point per 128 inputs",
    ),
    (
        Awq(bits=4, group_size=None),
        "awq-int4-channel",
        "int4 of AWQ with a scale and a zero point per output",
    ),
    (
        Compressed(layout="pack-quantized", bits=4, block_shape=(1, 32), is_symmetric=False),
        "int4-packed-g32-asym",
        "int4 of compressed-tensors (pack-quantized) with a scale (bf16) and a zero point per 32 weights"
        " of a row",
    ),
    (
        Compressed(layout="float-quantized", bits=8, block_shape=(1, None), is_static=True),
        "fp8-channel-static",
        "fp8 of compressed-tensors (float-quantized) with a scale (bf16) per channel, and one of the input",
    ),
    (
        Compressed(layout="int-quantized", bits=8, block_shape=None),
        "int8-tensor",
        "int8 of compressed-tensors (int-quantized) with a scale (bf16) per tensor",
    ),
    (
        Compressed(layout="float-quantized", bits=8, block_shape=(128, 128)),
        "fp8-b128x128",
        "fp8 of compressed-tensors (float-quantized) with a scale (bf16) per 128x128 block",
    ),
]


@pytest.mark.parametrize(("form", "name", "text"), CASES)
def test_name_and_text(form: WeightForm, name: str, text: str) -> None:
    assert (form_name(form), form_text(form)) == (name, text)


def test_names_tell_forms_apart() -> None:
    assert len({name for _, name, _ in CASES}) == len(CASES)
