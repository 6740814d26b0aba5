from __future__ import annotations

import pytest
import torch

from bayplan.schemas.dtypes import DTYPES, DtypeError, tensor_num_bytes
from bayplan.skeleton.formats import short_dtype, torch_dtype

TORCH_DTYPES = [dtype.name for dtype in DTYPES if hasattr(torch, dtype.torch_name or "none")]


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_bytes_equal_those_of_torch(name: str) -> None:
    for shape in ((), (0,), (3,), (2, 3, 5)):
        tensor = torch.empty(shape, dtype=torch_dtype(name), device="meta")
        assert tensor_num_bytes(shape, name) == tensor.nbytes
        assert tensor_num_bytes(shape, short_dtype(tensor.dtype)) == tensor.nbytes


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_short_name_and_back(name: str) -> None:
    assert short_dtype(torch_dtype(name)) == name


def test_last_byte_of_a_packed_dtype_counts_whole() -> None:
    assert tensor_num_bytes((3,), "fp6_e2m3") == 3
    assert tensor_num_bytes((4,), "fp6_e2m3") == 3


def test_unknown_dtype() -> None:
    for function in (lambda: tensor_num_bytes((1,), "fp7"), lambda: torch_dtype("fp7")):
        with pytest.raises(DtypeError) as caught:
            function()
        assert str(caught.value).startswith('unknown dtype: got "fp7", needed one of fp64, fp32, ')


def test_dtype_that_no_checkpoint_holds() -> None:
    with pytest.raises(DtypeError) as caught:
        short_dtype(torch.complex128)
    assert (
        str(caught.value)
        == "no checkpoint holds this dtype: got torch.complex128, needed a dtype of safetensors"
    )


def test_dtype_that_torch_lacks() -> None:
    with pytest.raises(DtypeError) as caught:
        torch_dtype("fp6_e2m3")
    assert str(caught.value) == (
        f"torch {torch.__version__} has no dtype for fp6_e2m3\nhint: a newer torch may have it"
    )
