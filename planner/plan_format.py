"""A form of `bayplan.schemas.format_bytes` as a plan writes it down, and back from what a user writes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, assert_never, get_args

import msgspec

from bayplan.schemas.format_bytes import (
    MX_BLOCKSIZE,
    USUAL_BLOCKSIZE,
    USUAL_FP8_BLOCK,
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
from bayplan.schemas.types import FloatFormat

_WHOLE = 0
"""Stands for all rows or columns."""
_OF_4BIT = ("blocksize", "double_quant", "compute_dtype", "storage_dtype")
SETTINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(get_args(FloatFormat), ()),
        "int8": ("threshold_milli",),
        "nf4": _OF_4BIT,
        "fp4": _OF_4BIT,
        "fp8": ("block_shape",),
        "mxfp4": (),
    }
)
"""Kinds that plain weights can be held in, with the fields of an entry that are a user's to choose."""


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


def weight_form(entry: Format) -> WeightForm | None:
    """Return the form that an entry describes, of those that plain weights can be converted to.

    Args:
        entry: What is usual for its kind may be given or left out.

    Returns:
        None where it is a plain data type, or weights are not converted to its kind.
    """
    match entry.kind:
        case "int8":
            threshold = entry.threshold_milli
            return LlmInt8(threshold_milli=USUAL_THRESHOLD_MILLI if threshold is None else threshold)
        case "nf4" | "fp4":
            return Bnb4Bit(
                quant_type=entry.kind,
                blocksize=USUAL_BLOCKSIZE if entry.blocksize is None else entry.blocksize,
                double_quant=entry.double_quant,
                storage_dtype=entry.storage_dtype or "uint8",
            )
        case "fp8":
            shape = entry.block_shape or USUAL_FP8_BLOCK
            return BlockFp8(block_shape=None if shape == (_WHOLE, _WHOLE) else shape)
        case "mxfp4":
            return Mxfp4()
        case _:
            return None


def usual_entry(entry: Format) -> Format:
    """Return `entry` as plans have it: equal formats are equal entries.

    Args:
        entry: Of one of the kinds in `SETTINGS`.
    """
    form = weight_form(entry)
    if form is None:
        return Format(kind=entry.kind)
    usual = plan_format(form)
    if "compute_dtype" not in SETTINGS[entry.kind]:
        return usual
    return msgspec.structs.replace(usual, compute_dtype=entry.compute_dtype)


def stray_fields(entry: Format) -> tuple[str, ...]:
    """Return the fields that `usual_entry` would lose: they mean nothing for the kind, or cannot be met.

    Args:
        entry: Of one of the kinds in `SETTINGS`.
    """
    usual, empty = usual_entry(entry), Format(kind=entry.kind)
    return tuple(
        field
        for field in Format.__struct_fields__
        if field not in SETTINGS[entry.kind]
        and getattr(entry, field) not in (getattr(usual, field), getattr(empty, field))
    )
