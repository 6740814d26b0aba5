"""What people call the forms of `format_bytes`: short names for tables and plans, and one line of text."""

from __future__ import annotations

from typing import assert_never

from bayplan.schemas.format_bytes import (
    USUAL_BLOCKSIZE,
    USUAL_FP8_BLOCK,
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


def form_name(form: WeightForm) -> str:
    """Return the short name of a form: a bare one for the usual parameters, with suffixes for others."""
    match form:
        case LlmInt8():
            return "int8"
        case Bnb4Bit():
            blocks = "" if form.blocksize == USUAL_BLOCKSIZE else f"-b{form.blocksize}"
            return f"{form.quant_type}{blocks}{'-dq' if form.double_quant else ''}"
        case BlockFp8():
            if form.block_shape is None:
                shape = "-tensor"
            else:
                shape = "" if form.block_shape == USUAL_FP8_BLOCK else f"-b{_times(form.block_shape)}"
            scale = "-e8m0" if form.scale_dtype == "fp8_e8m0" and form.block_shape is not None else ""
            return f"fp8{shape}{scale}{_static(form.is_static, '-static')}"
        case BlockFp4():
            return f"fp4-rows{_static(form.is_static, '-static')}"
        case Mxfp4():
            return "mxfp4"
        case Gptq() | Awq():
            method = "gptq" if isinstance(form, Gptq) else "awq"
            group = "channel" if form.group_size is None else f"g{form.group_size}"
            return f"{method}-int{form.bits}-{group}"
        case Compressed():
            values = "fp8" if form.layout == "float-quantized" else f"int{form.bits}"
            packed = "-packed" if form.layout == "pack-quantized" else ""
            zeros = "" if form.is_symmetric else "-asym"
            return f"{values}{packed}-{_scope_name(form)}{zeros}{_static(form.is_static, '-static')}"
        case _:
            assert_never(form)


def form_text(form: WeightForm) -> str:
    """Return a form in words, such as `fp8 with a scale (fp32) per 128x128 block`."""
    match form:
        case LlmInt8():
            return "int8 of bitsandbytes with a scale per output"
        case Bnb4Bit():
            scale = "an 8-bit scale, itself quantized," if form.double_quant else "a scale"
            return f"{form.quant_type} of bitsandbytes with {scale} per {form.blocksize} weights"
        case BlockFp8():
            block = "tensor" if form.block_shape is None else f"{_times(form.block_shape)} block"
            scale = "fp32" if form.block_shape is None else form.scale_dtype
            return f"fp8 with a scale ({scale}) per {block}{_static(form.is_static, _OF_INPUT)}"
        case BlockFp4():
            scale = f"a scale ({form.scale_dtype}) per 32 weights of a row"
            return f"fp4 with {scale}{_static(form.is_static, _OF_INPUT)}"
        case Mxfp4():
            return "mxfp4: fp4 with a one-byte scale per 32 weights of a row"
        case Gptq() | Awq():
            method = "GPTQ" if isinstance(form, Gptq) else "AWQ"
            group = f"{form.group_size} inputs" if form.group_size is not None else "output"
            return f"int{form.bits} of {method} with a scale and a zero point per {group}"
        case Compressed():
            values = "fp8" if form.layout == "float-quantized" else f"int{form.bits}"
            zeros = "" if form.is_symmetric else " and a zero point"
            scale = f"a scale ({form.scale_dtype}){zeros} per {_scope_text(form)}"
            static = _static(form.is_static, _OF_INPUT)
            return f"{values} of compressed-tensors ({form.layout}) with {scale}{static}"
        case _:
            assert_never(form)


_OF_INPUT = ", and one of the input"


def _static(is_static: bool, text: str) -> str:
    return text if is_static else ""


def _scope_name(form: Compressed) -> str:
    """Return what shares a scale."""
    if form.block_shape is None:
        return "tensor"
    rows, columns = form.block_shape
    if columns is None:
        return "channel"
    return f"g{columns}" if rows == 1 else f"b{rows}x{columns}"


def _scope_text(form: Compressed) -> str:
    if form.block_shape is None:
        return "tensor"
    rows, columns = form.block_shape
    if columns is None:
        return "channel"
    return f"{columns} weights of a row" if rows == 1 else f"{rows}x{columns} block"


def _times(shape: tuple[int, int]) -> str:
    return f"{shape[0]}x{shape[1]}"
