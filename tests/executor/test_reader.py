from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.executor import reader as reader_module
from bayplan.executor.arena import Arena
from bayplan.executor.backend import CpuBackend
from bayplan.executor.errors import ShardChangedError, ShardReadError, TruncatedShardError
from bayplan.executor.open_files import FileStamp, OpenFiles
from bayplan.executor.reader import ReadItem, Scratch, ShardReader, TensorSource, make_requests
from bayplan.skeleton.formats import torch_dtype

FILE = "model.safetensors"


def reader_for(folder: Path, *names: str) -> ShardReader:
    stamps = {name: FileStamp.of((folder / name).stat()) for name in names}
    return ShardReader(OpenFiles(folder, stamps), CpuBackend("node0/cpu"))


def new_scratch(*, casts: bool = False) -> Scratch:
    return Scratch.carved(Arena(Scratch.num_bytes(casts=casts)), casts=casts)


def byte_item(offset: int, num_bytes: int, *, file: str = FILE) -> ReadItem:
    region = Arena(num_bytes).carve(num_bytes)
    source = TensorSource(
        fqn=f"{file}:{offset}",
        file=file,
        file_offset=offset,
        num_bytes=num_bytes,
        dtype="uint8",
        shape=(num_bytes,),
    )
    return ReadItem(source=source, region=region, tensor=region.tensor(torch.uint8, (num_bytes,)))


def cast_item(values: torch.Tensor, dtype: torch.dtype, name: str) -> ReadItem:
    region = Arena(values.numel() * dtype.itemsize).carve(values.numel() * dtype.itemsize)
    source = TensorSource(
        fqn="t",
        file=FILE,
        file_offset=0,
        num_bytes=values.numel() * values.element_size(),
        dtype=name,
        shape=tuple(values.shape),
    )
    return ReadItem(source=source, region=region, tensor=region.tensor(dtype, tuple(values.shape)))


def pattern(num_bytes: int) -> bytes:
    return bytes(position * 7 % 251 for position in range(num_bytes))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), max_size=12),
    st.sampled_from([16, 50, 10**6]),
    st.sampled_from([1, 2, 1024]),
    st.randoms(use_true_random=False),
)
def test_every_tensor_gets_its_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[tuple[int, int]],
    request_bytes: int,
    max_buffers: int,
    random: Any,
) -> None:
    folder = tmp_path_factory.mktemp("shard")
    items, position = [], 0
    for gap, num_bytes in parts:
        items.append(byte_item(position + gap, num_bytes))
        position += gap + num_bytes
    data = pattern(position)
    (folder / FILE).write_bytes(data)
    random.shuffle(items)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_module, "REQUEST_BYTES", request_bytes)
        patch.setattr(reader_module, "MAX_BUFFERS", max_buffers)
        requests = make_requests(items, new_scratch())
    reader = reader_for(folder, FILE)
    num_read = reader.read(requests)
    reader.close()
    assert num_read == sum(request.num_bytes for request in requests)
    assert all(request.num_bytes <= request_bytes for request in requests)
    assert all(len(request.buffers) <= max_buffers for request in requests)
    for item in items:
        start = item.source.file_offset
        assert bytes(item.region.memory()) == data[start : start + item.source.num_bytes]


def test_neighbours_are_one_request() -> None:
    requests = make_requests([byte_item(8, 5), byte_item(13, 3), byte_item(20, 1)], new_scratch())
    assert [(request.file_offset, request.num_bytes) for request in requests] == [(8, 13)]
    assert [len(buffer) for buffer in requests[0].buffers] == [5, 3, 4, 1]


def test_wide_gap_is_not_read() -> None:
    requests = make_requests(
        [byte_item(0, 1), byte_item(1 + 2**20, 1), byte_item(3 + 2**21, 1)], new_scratch()
    )
    assert [(request.file_offset, request.num_bytes) for request in requests] == [
        (0, 2 + 2**20),
        (3 + 2**21, 1),
    ]


def test_files_are_never_joined() -> None:
    requests = make_requests([byte_item(0, 4, file="b"), byte_item(4, 4, file="a")], new_scratch())
    assert [(request.file, request.file_offset) for request in requests] == [("a", 4), ("b", 0)]


def test_two_tensors_from_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(pattern(8))
    items = [byte_item(0, 8), byte_item(0, 8), byte_item(4, 2)]
    reader = reader_for(tmp_path, FILE)
    reader.read(make_requests(items, new_scratch()))
    reader.close()
    assert [bytes(item.region.memory()) for item in items] == [pattern(8), pattern(8), pattern(8)[4:6]]


@pytest.mark.parametrize(
    ("source", "target"), [("bf16", "fp32"), ("fp32", "bf16"), ("fp16", "bf16"), ("fp8_e4m3", "fp32")]
)
def test_cast_is_that_of_torch_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, target: str
) -> None:
    monkeypatch.setattr(reader_module, "CAST_SCRATCH_BYTES", 64)
    values = torch.linspace(-3, 3, 210).view(7, 30).to(torch_dtype(source))
    (tmp_path / FILE).write_bytes(values.view(torch.uint8).numpy().tobytes())
    item = cast_item(values, torch_dtype(target), source)
    reader = reader_for(tmp_path, FILE)
    requests = make_requests([item], new_scratch(casts=True))
    assert max(request.num_bytes for request in requests) == 64
    reader.read(requests)
    reader.close()
    assert torch.equal(item.tensor, values.to(torch_dtype(target)))


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / FILE).write_bytes(pattern(40))
    items = [byte_item(0, 7), byte_item(9, 20), byte_item(29, 11)]
    preadv = os.preadv

    def short(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        return preadv(descriptor, [buffers[0][:3]], offset)

    monkeypatch.setattr(os, "preadv", short)
    reader = reader_for(tmp_path, FILE)
    assert reader.read(make_requests(items, new_scratch())) == 40
    reader.close()
    data = pattern(40)
    assert [bytes(item.region.memory()) for item in items] == [data[:7], data[9:29], data[29:]]


def test_file_that_ends_too_early(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(pattern(10))
    reader = reader_for(tmp_path, FILE)
    with pytest.raises(TruncatedShardError) as raised:
        reader.read(make_requests([byte_item(4, 9)], new_scratch()))
    reader.close()
    assert str(raised.value) == (
        f"{tmp_path / FILE}: shard ends too early at offset 4: got 6 bytes, needed 9 bytes\n"
        "hint: the file is cut short: copy or download it again"
    )
    facts = raised.value
    assert (facts.file, facts.offset, facts.needed_bytes, facts.got_bytes) == (str(tmp_path / FILE), 4, 9, 6)


def failing(error_number: int, times: int) -> tuple[Callable[..., int], list[int]]:
    preadv, calls = os.preadv, []

    def fail(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        calls.append(offset)
        if len(calls) <= times:
            raise OSError(error_number, os.strerror(error_number))
        return preadv(descriptor, buffers, offset)

    return fail, calls


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ESTALE])
def test_passing_error_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error_number: int
) -> None:
    (tmp_path / FILE).write_bytes(pattern(8))
    fail, calls = failing(error_number, times=2)
    monkeypatch.setattr(os, "preadv", fail)
    item = byte_item(0, 8)
    reader = reader_for(tmp_path, FILE)
    reader.read(make_requests([item], new_scratch()))
    reader.close()
    assert bytes(item.region.memory()) == pattern(8)
    assert calls == [0, 0, 0]


@pytest.mark.parametrize(("error_number", "num_calls"), [(errno.EIO, 3), (errno.EINVAL, 1)])
def test_error_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error_number: int, num_calls: int
) -> None:
    (tmp_path / FILE).write_bytes(pattern(8))
    fail, calls = failing(error_number, times=100)
    monkeypatch.setattr(os, "preadv", fail)
    reader = reader_for(tmp_path, FILE)
    with pytest.raises(ShardReadError) as raised:
        reader.read(make_requests([byte_item(2, 6)], new_scratch()))
    reader.close()
    assert str(raised.value) == (
        f"{tmp_path / FILE}: shard cannot be read at offset 2: got {os.strerror(error_number)}"
    )
    assert (raised.value.file, raised.value.offset) == (str(tmp_path / FILE), 2)
    assert len(calls) == num_calls


def test_file_that_changes_between_two_reads(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(pattern(8))
    requests = make_requests([byte_item(0, 8)], new_scratch())
    reader = reader_for(tmp_path, FILE)
    reader.read(requests)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b"x")
    with pytest.raises(ShardChangedError):
        reader.read(requests)
    reader.close()


def test_cancelled_read_ends_between_two_requests(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(pattern(4))
    (tmp_path / "b").write_bytes(pattern(4))
    answers = iter([False, True])
    reader = reader_for(tmp_path, "a", "b")
    requests = make_requests([byte_item(0, 4, file="a"), byte_item(0, 4, file="b")], new_scratch())
    assert reader.read(requests, lambda: next(answers)) == 4
    reader.close()
