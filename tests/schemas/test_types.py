from __future__ import annotations

import enum
import typing

import msgspec
import pytest

from bayplan.schemas import types
from bayplan.schemas.plan import aligned_bytes

LISTS = {
    types.Backend: "cpu cuda mps xpu npu",
    types.Residency: "resident stream-host stream-disk",
    types.Reason: "fits kept experts-apart capacity tied used-outside repeated not-called conditional"
    " untraced own-tensors mutated too-large pinned",
    types.Objective: "decode prefill throughput load balanced sequential",
    types.BoundClass: "contiguous-resident contiguous",
    types.SolverStatus: "optimal work_limit time_limit",
}
LARGEST = 9_007_199_254_740_991


@pytest.mark.parametrize("closed", LISTS, ids=lambda closed: closed.__name__)
def test_the_strings_of_closed_lists_are_stable(closed: type[enum.StrEnum]) -> None:
    assert " ".join(closed) == LISTS[closed]


def test_every_closed_list_is_tested() -> None:
    public = {
        value
        for value in vars(types).values()
        if isinstance(value, type) and issubclass(value, enum.Enum) and value.__module__ == types.__name__
    }
    assert public == set(LISTS)


def test_the_kinds_of_format() -> None:
    assert typing.get_args(types.FloatFormat) == ("fp32", "bf16", "fp16", "fp64")
    assert typing.get_args(types.QuantizedFormat) == ("int8", "nf4", "fp4")
    assert typing.get_args(types.PackedFormat) == (
        *("fp8", "fp4-rows", "mxfp4", "gptq", "awq"),
        *("pack-quantized", "int-quantized", "float-quantized"),
    )


@pytest.mark.parametrize(
    ("wanted", "accepted", "refused"),
    [
        (types.Count, [0, LARGEST], [-1, LARGEST + 1, 1.0, True, "1", None]),
        (types.NumBytes, [0, LARGEST], [-1, LARGEST + 1, 1.5]),
        (types.Nanoseconds, [0, LARGEST], [-1, LARGEST + 1, 1.5]),
        (types.PartsPerMillion, [0, 1_000_000], [-1, 1_000_001, 0.5]),
        (types.Rate, [1, LARGEST], [0, -1, LARGEST + 1, 1e9]),
        (types.BytesRange, [[0, 1], [5, 5]], [[0], [0, 1, 2], [-1, 1], [0, "1"], 3]),
        (types.Digest, ["sha256:" + "0af9" * 16], ["0af9" * 16, "sha256:" + "0AF9" * 16, "sha256:00", ""]),
        (
            types.DeviceId,
            ["node0/gpu0", "node1/cpu", "a-b/c_d"],
            ["cpu", "cuda:0", "node0/", "/cpu", "node0/cpu/1", "Node0/cpu", "node0/cpu "],
        ),
    ],
)
def test_bounds(wanted: type[object], accepted: list[object], refused: list[object]) -> None:
    for value in accepted:
        msgspec.convert(value, wanted)
    for value in refused:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(value, wanted)


@pytest.mark.parametrize(
    ("num_bytes", "aligned"), [(0, 0), (1, 64), (63, 64), (64, 64), (65, 128), (2**40 + 1, 2**40 + 64)]
)
def test_aligned_bytes(num_bytes: int, aligned: int) -> None:
    assert aligned_bytes(num_bytes) == aligned
