"""Element types: the names that safetensors, torch and bayplan use for each, and how many bits a value takes.

Owns the one table from which every dtype name is looked up. A name that is not in it is an error: guessing a
width would make every byte count that follows wrong. Knows nothing of torch itself, only how torch spells its
attributes.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from bayplan.schemas.errors import BayplanError
from bayplan.schemas.strict_json import quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class DtypeError(BayplanError):
    """A dtype name that bayplan does not know."""


class Dtype(msgspec.Struct, frozen=True):
    """One element type under all its names."""

    name: str
    """Short name, the one that bayplan writes, such as `bf16`."""
    safetensors_name: str
    """Name in a safetensors header, such as `BF16`."""
    num_bits: int
    """Bits of one value; below 8 for the packed ones."""
    torch_name: str | None
    """Attribute of the module `torch`, such as `bfloat16`; None where torch has no such dtype."""
    values_per_torch_element: int = 1
    """Values in one element of a torch tensor: 2 for `fp4`, whose last dimension torch counts in pairs."""


# All 22 types of safetensors 0.8; tests/schemas/test_dtypes.py checks the widths against the library.
DTYPES: tuple[Dtype, ...] = (
    Dtype("fp64", "F64", 64, "float64"),
    Dtype("fp32", "F32", 32, "float32"),
    Dtype("bf16", "BF16", 16, "bfloat16"),
    Dtype("fp16", "F16", 16, "float16"),
    Dtype("fp8_e4m3", "F8_E4M3", 8, "float8_e4m3fn"),
    Dtype("fp8_e4m3fnuz", "F8_E4M3FNUZ", 8, "float8_e4m3fnuz"),
    Dtype("fp8_e5m2", "F8_E5M2", 8, "float8_e5m2"),
    Dtype("fp8_e5m2fnuz", "F8_E5M2FNUZ", 8, "float8_e5m2fnuz"),
    Dtype("fp8_e8m0", "F8_E8M0", 8, "float8_e8m0fnu"),
    Dtype("fp6_e2m3", "F6_E2M3", 6, None),
    Dtype("fp6_e3m2", "F6_E3M2", 6, None),
    Dtype("fp4", "F4", 4, "float4_e2m1fn_x2", values_per_torch_element=2),
    Dtype("int64", "I64", 64, "int64"),
    Dtype("int32", "I32", 32, "int32"),
    Dtype("int16", "I16", 16, "int16"),
    Dtype("int8", "I8", 8, "int8"),
    Dtype("uint64", "U64", 64, "uint64"),
    Dtype("uint32", "U32", 32, "uint32"),
    Dtype("uint16", "U16", 16, "uint16"),
    Dtype("uint8", "U8", 8, "uint8"),
    Dtype("bool", "BOOL", 8, "bool"),
    Dtype("complex64", "C64", 64, "complex64"),
)
"""Every dtype that a safetensors file may hold, widest floating-point types first."""

# torch's own second names; `float` is torch.float, which is 32 bits wide.
_TORCH_ALIASES = {"half": "fp16", "float": "fp32", "double": "fp64"}


def _by_spelling() -> dict[str, Dtype]:
    by_name = {dtype.name: dtype for dtype in DTYPES}
    table = dict(by_name)
    for dtype in DTYPES:
        table[dtype.safetensors_name] = dtype
        if dtype.torch_name is not None:
            table[dtype.torch_name] = dtype
            table[f"torch.{dtype.torch_name}"] = dtype
    for alias, name in _TORCH_ALIASES.items():
        table[alias] = by_name[name]
        table[f"torch.{alias}"] = by_name[name]
    return table


DTYPE_BY_SPELLING: Mapping[str, Dtype] = MappingProxyType(_by_spelling())
"""Every accepted spelling: `fp32`, `F32`, `float32`, `torch.float32`, `float`. Case counts."""

DTYPE_BY_SAFETENSORS_NAME: Mapping[str, Dtype] = MappingProxyType(
    {dtype.safetensors_name: dtype for dtype in DTYPES}
)
"""The names that a safetensors header may use."""


def parse_dtype(text: str, *, where: str = "") -> Dtype:
    """Return the dtype that `text` names.

    Args:
        text: Any spelling in `DTYPE_BY_SPELLING`.
        where: Option, file or field that holds it, for the message.

    Returns:
        The one entry of `DTYPES` under that name.

    Raises:
        DtypeError: `text` is no known spelling; the message lists the short names.
    """
    dtype = DTYPE_BY_SPELLING.get(text)
    if dtype is None:
        raise DtypeError(
            "unknown dtype",
            where=where,
            got=quote(text),
            needed=f"one of {', '.join(dtype.name for dtype in DTYPES)}",
            hint="torch's and safetensors' own names work too, such as float32 or F32",
        )
    return dtype


def tensor_num_bytes(shape: Sequence[int], dtype: str) -> int:
    """Return the bytes of a dense tensor.

    Args:
        shape: As torch counts it: the last dimension of `fp4` is in pairs.
        dtype: Any spelling of `bayplan.schemas.dtypes`.

    Returns:
        Bytes of its elements, without alignment; the last byte of a packed dtype counts whole.

    Raises:
        DtypeError: `dtype` is unknown.
    """
    entry = parse_dtype(dtype)
    num_values = math.prod(shape) * entry.values_per_torch_element
    return (num_values * entry.num_bits + 7) // 8
