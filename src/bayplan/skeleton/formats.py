"""torch's dtypes under the short names of `bayplan.schemas.dtypes`, and back.

What they take in bytes is told there, and in `bayplan.schemas.format_bytes`, where no torch is needed. Knows
nothing of modules or plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bayplan.schemas.dtypes import DTYPE_BY_SPELLING, DTYPES, DtypeError, parse_dtype

if TYPE_CHECKING:
    pass

_TORCH_DTYPES = {
    dtype.name: found
    for dtype in DTYPES
    if dtype.torch_name is not None
    # float8_e8m0fnu and float4_e2m1fn_x2 came after torch 2.7, the oldest supported
    and isinstance(found := getattr(torch, dtype.torch_name, None), torch.dtype)
}


def short_dtype(dtype: torch.dtype) -> str:
    """Return the short name of a torch dtype, such as `bf16`.

    Raises:
        DtypeError: No checkpoint can hold it, such as a quantized or complex128 dtype.
    """
    entry = DTYPE_BY_SPELLING.get(str(dtype))
    if entry is None:
        raise DtypeError("no checkpoint holds this dtype", got=str(dtype), needed="a dtype of safetensors")
    return entry.name


def torch_dtype(dtype: str) -> torch.dtype:
    """Return the torch dtype under any spelling of `bayplan.schemas.dtypes`.

    Raises:
        DtypeError: `dtype` is unknown.
        DtypeError: The installed torch has no such dtype.
    """
    entry = parse_dtype(dtype)
    found = _TORCH_DTYPES.get(entry.name)
    if found is None:
        raise DtypeError(
            f"torch {torch.__version__} has no dtype for {entry.name}", hint="a newer torch may have it"
        )
    return found
