"""What a caller may ask of `estimate`: its options as one struct, and the words in them.

Owns the names of the formats that an estimate knows and their spellings, and what `--lora` means.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from bayplan.schemas.dtypes import DTYPE_BY_SPELLING
from bayplan.schemas.errors import UsageError
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.types import FloatFormat

FLOATS: tuple[FloatFormat, ...] = ("fp32", "bf16", "fp16")
"""Formats that are a data type in which the model computes."""
QUANTIZED = ("fp8", "int8-bnb", "nf4", "fp4", "mxfp4")
"""Formats with scales and unquantized parts."""
DIVISORS = {"int8": 4, "int4": 8}
"""Formats that are the fp32 figures divided: the table that accelerate documents."""

ALL_FORMATS = ("fp32", "bf16", "fp16", "fp8", "int8", "int8-bnb", "nf4", "fp4", "mxfp4", "int4")
"""Every format of an estimate, in the order of its table."""

ALL_LINEAR = "all-linear"
"""Target of LoRA that stands for every linear layer but the head."""


class EstimateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one estimate; the defaults are those of the command line."""

    dtypes: tuple[str, ...] = ()
    """Formats in any spelling; empty: all of them."""
    batch: int = 1
    context: int | None = None
    """Positions; None: the smaller of 1024 and the model's maximum."""
    encoder_context: int | None = None
    class_name: str | None = None
    """Model class; None: by the config's `architectures`."""
    library: str | None = None
    """`transformers`, `timm` or `diffusers`; None: found out."""
    lora: str | None = None
    """`RANK[,TARGETS]`."""
    fits: Inventory | None = None
    """What the model is held against."""
    variant: str | None = None
    trust_remote_code: bool = False
    checkpoint: str | None = None
    """Folder of the weights where the model is a factory."""
    use_cache: bool = True


class LoraOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `RANK[,TARGETS]` says."""

    rank: int
    targets: tuple[str, ...]
    """Names of modules or their ends; empty: every linear layer but the head."""


def parse_formats(dtypes: Iterable[str]) -> tuple[str, ...]:
    """Return the formats that `--dtypes` names, without repeats, in the order of the table.

    Args:
        dtypes: torch's spelling or the short one, such as `float32` or `fp32`; none: all formats.

    Raises:
        UsageError: A name is no format.
    """
    wanted = {_format_name(dtype) for dtype in dtypes} or set(ALL_FORMATS)
    return tuple(name for name in ALL_FORMATS if name in wanted)


def _format_name(dtype: str) -> str:
    if dtype in ALL_FORMATS:
        return dtype
    if dtype == "float8":
        return "fp8"
    known = DTYPE_BY_SPELLING.get(dtype)
    if known is None or known.name not in FLOATS:
        raise UsageError(
            "unknown format",
            where="--dtypes",
            got=repr(dtype),
            needed=f"any of {', '.join(ALL_FORMATS)}",
            hint="torch's names work too, such as float32 or bfloat16",
        )
    return known.name


def parse_lora(text: str) -> LoraOptions:
    """Return what `RANK[,TARGETS]` says, such as `16`, `8,q_proj,v_proj` or `8,all-linear`.

    Raises:
        UsageError: The rank is no positive integer, or a target is empty.
    """
    rank, *targets = text.split(",")
    if not (rank.isascii() and rank.isdigit() and 0 < int(rank) < 2**31) or not all(targets):
        raise UsageError(
            "not a rank with targets",
            where="--lora",
            got=repr(text),
            needed="RANK[,TARGET,...], such as 16 or 8,q_proj,v_proj",
        )
    return LoraOptions(rank=int(rank), targets=() if targets == [ALL_LINEAR] else tuple(targets))
