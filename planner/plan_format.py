"""A form of `bayplan.schemas.format_bytes` as a plan writes it down."""

from __future__ import annotations

from typing import Literal, assert_never

from bayplan.schemas.format_bytes import (
    MX_BLOCKSIZE,
    USUAL_BLOCKSIZE,
    USUAL_THRESHOLD_MILLI,
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

_WHOLE = 0
"""Stands for all rows or columns."""


def plan_format(form: WeightForm) -> Format:
    """Return the plan's entry for a form; what is usual for its kind is left out."""
    match form:
        case LlmInt8():
            is_plain = form.threshold_milli == USUAL_THRESHOLD_MILLI
            return Format(kind="int8", threshold_milli=None if is_plain else form.threshold_milli)
        case Bnb4Bit():
            return Format(
                kind=form.quant_type,
                blocksize=None if form.blocksize == USUAL_BLOCKSIZE else form.blocksize,
                double_quant=form.double_quant,
                storage_dtype=None if form.storage_dtype == "uint8" else form.storage_dtype,
            )
        case BlockFp8():
            return Format(
                kind="fp8",
                block_shape=form.block_shape or (_WHOLE, _WHOLE),
                scale_dtype="fp32" if form.block_shape is None else form.scale_dtype,
                is_static=form.is_static,
            )
        case BlockFp4():
            return Format(
                kind="fp4-rows",
                block_shape=(1, MX_BLOCKSIZE),
                scale_dtype=form.scale_dtype,
                is_static=form.is_static,
            )
        case Mxfp4():
            return Format(kind="mxfp4", block_shape=(1, MX_BLOCKSIZE), scale_dtype="fp8_e8m0")
        case Gptq() | Awq():
            kind: Literal["gptq", "awq"] = "gptq" if isinstance(form, Gptq) else "awq"
            return Format(
                kind=kind,
                bits=form.bits,
                block_shape=(1, form.group_size or _WHOLE),
                scale_dtype=form.scale_dtype,
                is_asymmetric=True,
            )
        case Compressed():
            rows, columns = form.block_shape or (_WHOLE, None)
            return Format(
                kind=form.layout,
                bits=form.bits,
                block_shape=(rows, columns or _WHOLE),
                scale_dtype=form.scale_dtype,
                is_asymmetric=not form.is_symmetric,
                is_static=form.is_static,
            )
        case _:
            assert_never(form)
