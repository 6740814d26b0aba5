from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.schemas.dtypes import DTYPE_BY_SPELLING
from bayplan.schemas.format_bytes import (
    Awq,
    BlockFp4,
    BlockFp8,
    Bnb4Bit,
    Compressed,
    Gptq,
    LlmInt8,
    Mxfp4,
    Part,
    WeightForm,
    weight_bytes,
    weight_parts,
)

PACKED_INT4 = Compressed(layout="pack-quantized", bits=4, block_shape=(1, 32))
CASES: list[tuple[WeightForm, tuple[Part, ...]]] = [
    (LlmInt8(), (Part("weight", "int8", (200, 130)), Part("SCB", "fp32", (200,)))),
    (
        Bnb4Bit(quant_type="nf4"),
        (
            Part("weight", "uint8", (13000, 1)),
            Part("weight.absmax", "fp32", (407,)),
            Part("weight.quant_map", "fp32", (16,)),
        ),
    ),
    (
        Bnb4Bit(quant_type="fp4", blocksize=128, double_quant=True, storage_dtype="bf16"),
        (
            Part("weight", "bf16", (6500, 1)),
            Part("weight.absmax", "uint8", (204,)),
            Part("weight.quant_map", "fp32", (16,)),
            Part("weight.nested_absmax", "fp32", (1,)),
            Part("weight.nested_quant_map", "fp32", (256,)),
            Part("weight.nested_offset", "fp32", ()),
        ),
    ),
    (
        BlockFp8(),
        (Part("weight", "fp8_e4m3", (200, 130)), Part("weight_scale_inv", "fp32", (2, 2))),
    ),
    (
        BlockFp8(block_shape=None, scale_dtype="fp8_e8m0", is_static=True),
        (
            Part("weight", "fp8_e4m3", (200, 130)),
            Part("weight_scale_inv", "fp32", ()),
            Part("activation_scale", "fp32", ()),
        ),
    ),
    (
        BlockFp4(),
        (Part("weight", "int8", (200, 65)), Part("weight_scale_inv", "fp8_e8m0", (200, 5))),
    ),
    (
        Mxfp4(),
        (Part("weight_blocks", "uint8", (200, 5, 16)), Part("weight_scales", "uint8", (200, 5))),
    ),
    (
        Gptq(bits=3, group_size=128),
        (
            Part("qweight", "int32", (13, 200)),
            Part("qzeros", "int32", (2, 19)),
            Part("scales", "fp16", (2, 200)),
            Part("g_idx", "int32", (130,)),
        ),
    ),
    (
        Awq(bits=4, group_size=None),
        (
            Part("qweight", "int32", (130, 25)),
            Part("qzeros", "int32", (1, 25)),
            Part("scales", "fp16", (1, 200)),
        ),
    ),
    (
        PACKED_INT4,
        (
            Part("weight_packed", "int32", (200, 17)),
            Part("weight_shape", "int64", (2,)),
            Part("weight_scale", "bf16", (200, 5)),
        ),
    ),
    (
        Compressed(layout="pack-quantized", bits=3, block_shape=(1, None), is_symmetric=False),
        (
            Part("weight_packed", "int32", (200, 13)),
            Part("weight_shape", "int64", (2,)),
            Part("weight_scale", "bf16", (200, 1)),
            Part("weight_zero_point", "int32", (19, 1)),
        ),
    ),
    (
        Compressed(layout="pack-quantized", bits=8, block_shape=None, is_symmetric=False),
        (
            Part("weight_packed", "int32", (200, 33)),
            Part("weight_shape", "int64", (2,)),
            Part("weight_scale", "bf16", (1,)),
            Part("weight_zero_point", "int8", (1,)),
        ),
    ),
    (
        Compressed(layout="float-quantized", bits=8, block_shape=(128, 128), is_static=True),
        (
            Part("weight", "fp8_e4m3", (200, 130)),
            Part("weight_scale", "bf16", (2, 2)),
            Part("input_scale", "bf16", (1,)),
        ),
    ),
    (
        Compressed(
            layout="int-quantized", bits=8, block_shape=(1, None), is_symmetric=False, scale_dtype="fp16"
        ),
        (
            Part("weight", "int8", (200, 130)),
            Part("weight_scale", "fp16", (200, 1)),
            Part("weight_zero_point", "int8", (200, 1)),
        ),
    ),
]


@pytest.mark.parametrize(("form", "parts"), CASES)
def test_parts_of_an_uneven_weight(form: WeightForm, parts: tuple[Part, ...]) -> None:
    assert weight_parts(form, 200, 130) == parts
    assert weight_bytes(form, 200, 130) == sum(part.num_bytes for part in parts)


def test_every_form_is_tested() -> None:
    assert {type(form) for form, _ in CASES} == set(WeightForm.__args__)


def test_bytes_of_a_part() -> None:
    assert Part("weight", "int8", (3, 5)).num_bytes == 15
    assert Part("scale", "fp32", ()).num_bytes == 4
    assert Part("weight", "fp4", (3,)).num_bytes == 2


FORMS = st.sampled_from([form for form, _ in CASES])
SIZES = st.integers(min_value=1, max_value=5000)


@given(FORMS, SIZES, SIZES)
def test_a_weight_takes_its_bits_and_its_scales_and_little_more(
    form: WeightForm, out_features: int, in_features: int
) -> None:
    parts = weight_parts(form, out_features, in_features)
    bits = {LlmInt8: 8, BlockFp8: 8, Bnb4Bit: 4, BlockFp4: 4, Mxfp4: 4}.get(type(form)) or form.bits  # type: ignore[union-attr]
    assert 8 * parts[0].num_bytes >= bits * out_features * in_features
    assert all(part.dtype in DTYPE_BY_SPELLING for part in parts)
    assert len({part.name for part in parts}) == len(parts)
    # What belongs to a weight is less than a value of 32 bits a row and a column, a scale, index and zero per
    # group of 32, and the code tables.
    groups = math.ceil(in_features / 32) * out_features
    assert sum(part.num_bytes for part in parts[1:]) <= 8 * (groups + out_features + in_features) + 2048


@given(FORMS, SIZES, SIZES)
def test_more_weights_never_take_less(form: WeightForm, out_features: int, in_features: int) -> None:
    num_bytes = weight_bytes(form, out_features, in_features)
    assert weight_bytes(form, out_features + 1, in_features) >= num_bytes
    assert weight_bytes(form, out_features, in_features + 1) >= num_bytes


def test_an_empty_weight_has_no_groups() -> None:
    assert weight_bytes(Gptq(bits=4, group_size=None), 8, 0) == 0
    assert weight_bytes(Awq(bits=4, group_size=None), 8, 0) == 0
    assert weight_bytes(Compressed(layout="int-quantized", bits=8, block_shape=(1, None)), 8, 0) == 0
