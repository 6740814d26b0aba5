from __future__ import annotations

import json
import re

import pytest
import safetensors
import torch

from bayplan.schemas.dtypes import DTYPE_BY_SPELLING, DTYPES, Dtype, DtypeError, parse_dtype


def file_of(name: str, num_values: int, num_bytes: int) -> bytes:
    entry = {"dtype": name, "shape": [num_values], "data_offsets": [0, num_bytes]}
    header = json.dumps({"a": entry}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(num_bytes)


def test_the_library_knows_all_these_dtypes() -> None:
    with pytest.raises(safetensors.SafetensorError) as caught:
        safetensors.deserialize(file_of("F128", 1, 16))
    _, _, expected = str(caught.value).partition("expected one of")
    assert {dtype.safetensors_name for dtype in DTYPES} <= set(re.findall(r"`(\w+)`", expected))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_the_library_agrees_on_the_width(dtype: Dtype) -> None:
    ((_, tensor),) = safetensors.deserialize(file_of(dtype.safetensors_name, 8, dtype.num_bits))
    assert len(tensor["data"]) == dtype.num_bits
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(file_of(dtype.safetensors_name, 8, dtype.num_bits - 1))


@pytest.mark.parametrize(
    "dtype", [dtype for dtype in DTYPES if dtype.torch_name], ids=lambda dtype: dtype.name
)
def test_torch_agrees_on_the_width(dtype: Dtype) -> None:
    assert dtype.torch_name is not None
    torch_dtype = getattr(torch, dtype.torch_name)
    assert torch_dtype.itemsize * 8 == dtype.num_bits * dtype.values_per_torch_element


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_every_name_of_a_dtype_is_accepted(dtype: Dtype) -> None:
    names = {dtype.name, dtype.safetensors_name}
    if dtype.torch_name is not None:
        names |= {dtype.torch_name, str(getattr(torch, dtype.torch_name))}
    assert {parse_dtype(name) for name in names} == {dtype}


@pytest.mark.parametrize("alias", ["half", "float", "double", "torch.half", "torch.float", "torch.double"])
def test_torch_aliases(alias: str) -> None:
    assert f"torch.{parse_dtype(alias).torch_name}" == str(getattr(torch, alias.removeprefix("torch.")))


def test_no_spelling_means_two_dtypes() -> None:
    names = [{dtype.name, dtype.safetensors_name, dtype.torch_name} - {None} for dtype in DTYPES]
    assert sum(map(len, names)) == len(set().union(*names))
    assert {dtype.name for dtype in DTYPE_BY_SPELLING.values()} == {dtype.name for dtype in DTYPES}


@pytest.mark.parametrize("text", ["", "f32", "FP32", "fp8", "float8", "int4", "auto", " fp32", "fp32\n"])
def test_unknown_dtype(text: str) -> None:
    with pytest.raises(DtypeError) as caught:
        parse_dtype(text, where="--dtypes")
    assert str(caught.value) == (
        f"--dtypes: unknown dtype: got {json.dumps(text)}, needed one of fp64, fp32, bf16, fp16, fp8_e4m3, "
        "fp8_e4m3fnuz, fp8_e5m2, fp8_e5m2fnuz, fp8_e8m0, fp6_e2m3, fp6_e3m2, fp4, int64, int32, int16, int8, "
        "uint64, uint32, uint16, uint8, bool, complex64\n"
        "hint: torch's and safetensors' own names work too, such as float32 or F32"
    )
