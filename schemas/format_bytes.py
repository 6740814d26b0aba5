"""What a linear layer's weight becomes in each format: names, data types and shapes of the stored tensors.

Owns the formulas by which every quantized byte is counted, as functions of the weight's shape `[out, in]`
alone. Counted is what is alive once the model is loaded. Text that only a file holds is not: bitsandbytes'
`quant_state.*` (some 100 bytes of JSON a layer) and its `weight_format`. Knows no model and no config.

References:
    bitsandbytes 0.50 `Linear4bit` and `Linear8bitLt`, transformers 5.24 `FP8Linear`, `FP8Experts` and
    `Mxfp4GptOssExperts`, compressed-tensors 0.20 `compress` of its compressors, gptqmodel 7.7 and AutoAWQ
    0.2.9 for GPTQ and AWQ; checked in tests/schemas/test_format_bytes.py and
    tests/skeleton/test_formats_against_libraries.py.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, assert_never

import msgspec

from bayplan.schemas.dtypes import parse_dtype
from bayplan.schemas.types import Count

NESTED_BLOCKSIZE = 256
"""First-level scales that share one second-level scale: bitsandbytes has no other."""
MX_BLOCKSIZE = 32
"""Values that share one scale in the microscaling formats (OCP MX specification 1.0)."""
USUAL_BLOCKSIZE = 64
"""Weights that share a scale in bitsandbytes' 4-bit formats, unless somebody says otherwise."""
USUAL_THRESHOLD_MILLI = 6000
"""LLM.int8()'s outlier threshold, likewise."""
USUAL_FP8_BLOCK = (128, 128)
"""Rows and columns of DeepSeek-V3's blocks, likewise."""
_FOUR_BIT_CODES = 16
_EIGHT_BIT_CODES = 256
_WORD_BITS = 32


class Part(NamedTuple):
    """One stored tensor of a quantized weight."""

    name: str
    """In the place of `weight`, such as `weight.absmax` or `qzeros`."""
    dtype: str
    """Short name of `bayplan.schemas.dtypes`."""
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor."""
        return -(-math.prod(self.shape) * parse_dtype(self.dtype).num_bits // 8)


class LlmInt8(msgspec.Struct, frozen=True, kw_only=True, tag_field="form", tag="int8"):
    """LLM.int8() of bitsandbytes: a scale per output."""

    threshold_milli: Count = USUAL_THRESHOLD_MILLI
    """Outlier threshold in thousandths; changes no byte."""


class Bnb4Bit(msgspec.Struct, frozen=True, kw_only=True, tag_field="form", tag="bnb-4bit"):
    """The 4-bit formats of bitsandbytes."""

    quant_type: Literal["nf4", "fp4"]
    blocksize: Count = USUAL_BLOCKSIZE
    """Weights that share a scale."""
    double_quant: bool = False
    storage_dtype: str = "uint8"
    """Data type that the packed bytes are declared as."""


class BlockFp8(msgspec.Struct, frozen=True, kw_only=True, tag_field="form", tag="fp8"):
    """8-bit floats with a scale per block, as DeepSeek-V3 has them and transformers loads them."""

    block_shape: tuple[Count, Count] | None = USUAL_FP8_BLOCK
    """Rows and columns that share a scale; None: the whole tensor."""
    scale_dtype: str = "fp32"
    is_static: bool = False
    """The activation's scale is stored too."""


class BlockFp4(msgspec.Struct, frozen=True, kw_only=True, tag_field="form", tag="fp4-rows"):
    """4-bit floats with a scale per 32 of a row: DeepSeek-V4's experts."""

    scale_dtype: str = "fp8_e8m0"
    is_static: bool = False
    """The activation's scale is stored too."""


class Mxfp4(msgspec.Struct, frozen=True, kw_only=True, tag_field="form", tag="mxfp4"):
    """4-bit floats in blocks of 32 with a one-byte scale, as gpt-oss stores its experts."""


class Gptq(msgspec.Struct, frozen=True, kw_only=True, tag_field="form", tag="gptq"):
    """Integers packed along the input, as GPTQ checkpoints have them."""

    bits: Count
    group_size: Count | None
    """Inputs that share a scale; None: all."""
    scale_dtype: str = "fp16"


class Awq(msgspec.Struct, frozen=True, kw_only=True, tag_field="form", tag="awq"):
    """Integers packed along the output: the GEMM layout of AWQ."""

    bits: Count
    group_size: Count | None
    """Inputs that share a scale; None: all."""
    scale_dtype: str = "fp16"


class Compressed(msgspec.Struct, frozen=True, kw_only=True, tag_field="form", tag="compressed-tensors"):
    """The integer and 8-bit float layouts of compressed-tensors."""

    layout: Literal["pack-quantized", "int-quantized", "float-quantized"]
    bits: Count
    block_shape: tuple[Count, Count | None] | None
    """Rows and columns that share a scale; no columns: whole rows; None: the whole tensor."""
    is_symmetric: bool = True
    """If not, zero points are stored too."""
    scale_dtype: str = "bf16"
    is_static: bool = False
    """One scale of the layer's input is stored too."""


WeightForm = LlmInt8 | Bnb4Bit | BlockFp8 | BlockFp4 | Mxfp4 | Gptq | Awq | Compressed
"""How a linear layer's weight is stored."""


def weight_parts(form: WeightForm, out_features: int, in_features: int) -> tuple[Part, ...]:
    """Return what is stored for a weight.

    Args:
        form: How it is stored.
        out_features: Rows of the weight `[out, in]`.
        in_features: Columns.

    Returns:
        The tensors, the packed weight first. A dimension that a block or a word does not divide is rounded
        up.
    """
    match form:
        case LlmInt8():
            return (
                Part("weight", "int8", (out_features, in_features)),
                Part("SCB", "fp32", (out_features,)),
            )
        case Bnb4Bit():
            return _bnb_4bit(form, out_features * in_features)
        case BlockFp8():
            return _block_fp8(form, out_features, in_features)
        case BlockFp4():
            scales = (out_features, -(-in_features // MX_BLOCKSIZE))
            return (
                Part("weight", "int8", (out_features, -(-in_features // 2))),
                Part("weight_scale_inv", form.scale_dtype, scales),
                *_activation_scale(is_static=form.is_static),
            )
        case Mxfp4():
            blocks = -(-in_features // MX_BLOCKSIZE)
            return (
                Part("weight_blocks", "uint8", (out_features, blocks, MX_BLOCKSIZE // 2)),
                Part("weight_scales", "uint8", (out_features, blocks)),
            )
        case Gptq():
            groups = -(-in_features // (form.group_size or in_features or 1))
            return (
                Part("qweight", "int32", (_words(in_features, form.bits), out_features)),
                Part("qzeros", "int32", (groups, _words(out_features, form.bits))),
                Part("scales", form.scale_dtype, (groups, out_features)),
                Part("g_idx", "int32", (in_features,)),
            )
        case Awq():
            groups = -(-in_features // (form.group_size or in_features or 1))
            return (
                Part("qweight", "int32", (in_features, _words(out_features, form.bits))),
                Part("qzeros", "int32", (groups, _words(out_features, form.bits))),
                Part("scales", form.scale_dtype, (groups, out_features)),
            )
        case Compressed():
            return _compressed(form, out_features, in_features)
        case _:
            assert_never(form)


def weight_bytes(form: WeightForm, out_features: int, in_features: int) -> int:
    """Return the bytes of a weight `[out, in]` with everything that is stored for it."""
    return sum(part.num_bytes for part in weight_parts(form, out_features, in_features))


def _words(count: int, bits: int) -> int:
    return -(-count * bits // _WORD_BITS)


def _bnb_4bit(form: Bnb4Bit, num_weights: int) -> tuple[Part, ...]:
    """Return the packed weight with its scales, the code table included: every layer has its own."""
    storage_bytes = parse_dtype(form.storage_dtype).num_bits // 8
    packed = -(-num_weights // (2 * storage_bytes))
    blocks = -(-num_weights // form.blocksize)
    weight = Part("weight", form.storage_dtype, (packed, 1))
    codes = Part("weight.quant_map", "fp32", (_FOUR_BIT_CODES,))
    if not form.double_quant:
        return (weight, Part("weight.absmax", "fp32", (blocks,)), codes)
    return (
        weight,
        Part("weight.absmax", "uint8", (blocks,)),
        codes,
        Part("weight.nested_absmax", "fp32", (-(-blocks // NESTED_BLOCKSIZE),)),
        Part("weight.nested_quant_map", "fp32", (_EIGHT_BIT_CODES,)),
        Part("weight.nested_offset", "fp32", ()),
    )


def _block_fp8(form: BlockFp8, out_features: int, in_features: int) -> tuple[Part, ...]:
    scale = Part("weight_scale_inv", "fp32", ())
    if form.block_shape is not None:
        rows, columns = form.block_shape
        shape = (-(-out_features // rows), -(-in_features // columns))
        scale = Part("weight_scale_inv", form.scale_dtype, shape)
    return (
        Part("weight", "fp8_e4m3", (out_features, in_features)),
        scale,
        *_activation_scale(is_static=form.is_static),
    )


def _activation_scale(*, is_static: bool) -> tuple[Part, ...]:
    return (Part("activation_scale", "fp32", ()),) if is_static else ()


def _compressed(form: Compressed, out_features: int, in_features: int) -> tuple[Part, ...]:
    scale_shape: tuple[int, ...] = (1,)
    if form.block_shape is not None:
        rows, columns = form.block_shape
        scale_shape = (-(-out_features // rows), -(-in_features // (columns or in_features or 1)))
    scale = Part("weight_scale", form.scale_dtype, scale_shape)
    if form.layout == "pack-quantized":
        weight: tuple[Part, ...] = (
            Part("weight_packed", "int32", (out_features, _words(in_features, form.bits))),
            Part("weight_shape", "int64", (2,)),
        )
        # Zero points are packed down the rows, but for the one of a whole tensor.
        packed_zeros = (_words(scale_shape[0], form.bits), *scale_shape[1:])
        zeros = (
            Part("weight_zero_point", "int8", scale_shape)
            if form.block_shape is None
            else Part("weight_zero_point", "int32", packed_zeros)
        )
    else:
        dtype = "fp8_e4m3" if form.layout == "float-quantized" else "int8"
        weight = (Part("weight", dtype, (out_features, in_features)),)
        zeros = Part("weight_zero_point", dtype, scale_shape)
    return (
        *weight,
        scale,
        *(() if form.is_symmetric else (zeros,)),
        *((Part("input_scale", form.scale_dtype, (1,)),) if form.is_static else ()),
    )
