"""Reading tensors of safetensors shards straight to where they are bound.

Owns the split of a block into requests and their execution: neighbours in a shard are read by one `preadv`
with one buffer per tensor, so nothing is copied and the interpreter lock is free while the disk works. Knows
nothing of modules or plans; offsets come from headers that were checked.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import msgspec
import torch

from bayplan.executor.errors import ShardReadError, TruncatedShardError
from bayplan.executor.open_files import OpenFiles
from bayplan.schemas.plan import CAST_SCRATCH_BYTES, GAP_SCRATCH_BYTES
from bayplan.skeleton.formats import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bayplan.executor.arena import Arena, Region
    from bayplan.executor.backend import DeviceBackend

REQUEST_BYTES = 8 * 2**20
"""Most bytes of one request: large enough for full disk speed, small enough to stop between two."""
MAX_BUFFERS = 1024
"""Most buffers of one request: IOV_MAX of Linux and macOS."""
_ATTEMPTS = 3
_TRANSIENT_ERRORS = frozenset({errno.EIO, errno.ESTALE})


class TensorSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a tensor's bytes are."""

    fqn: str
    """Name in the checkpoint."""
    file: str
    """Name of the shard."""
    file_offset: int
    """First byte, counted from the start of the file."""
    num_bytes: int
    dtype: str
    """Short name of `bayplan.schemas.dtypes`."""
    shape: tuple[int, ...]


class ReadItem(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor to read, and where to."""

    source: TensorSource
    region: Region
    """At least as long as the bound tensor."""
    tensor: torch.Tensor
    """The bound tensor over `region`; its dtype is the one wanted."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One `preadv`, and the cast that follows where the data type changes."""

    file: str
    file_offset: int
    buffers: tuple[memoryview, ...]
    num_bytes: int
    cast: tuple[torch.Tensor, torch.Tensor] | None = None
    """Target and source of a copy to make after reading."""


class Scratch:
    """Where bytes go that nobody wants, and those that change their data type on the way.

    Attributes:
        gap: `GAP_SCRATCH_BYTES` bytes, for what is between two neighbours in a file.
        cast: `CAST_SCRATCH_BYTES` bytes, or None where nothing is cast.
    """

    def __init__(self, gap: Region, cast: Region | None) -> None:
        """Use two regions of an arena."""
        self.gap = gap
        self.cast = cast

    @staticmethod
    def num_bytes(*, casts: bool) -> int:
        """Return what a scratch takes in an arena."""
        return GAP_SCRATCH_BYTES + (CAST_SCRATCH_BYTES if casts else 0)

    @staticmethod
    def carved(arena: Arena, *, casts: bool) -> Scratch:
        """Return a scratch of the next `num_bytes` of `arena`."""
        gap = arena.carve(GAP_SCRATCH_BYTES)
        return Scratch(gap, arena.carve(CAST_SCRATCH_BYTES) if casts else None)


def is_cast(item: ReadItem) -> bool:
    """Return whether the tensor changes its data type while it is read."""
    return torch_dtype(item.source.dtype) != item.tensor.dtype


def make_requests(items: Iterable[ReadItem], scratch: Scratch) -> tuple[Request, ...]:
    """Return the requests that read `items`, in the order of files and offsets.

    Args:
        items: In any order.
        scratch: With a cast region if any item needs one.

    Returns:
        Requests of at most `REQUEST_BYTES`; gaps of at most `GAP_SCRATCH_BYTES` are read along.
    """
    requests: list[Request] = []
    run: list[ReadItem] = []
    for item in sorted(items, key=lambda item: (item.source.file, item.source.file_offset)):
        if item.source.num_bytes == 0:
            continue
        if run and (is_cast(item) or not _continues(run[-1].source, item.source)):
            requests += _direct_requests(run, scratch)
            run = []
        if is_cast(item):
            requests += _cast_requests(item, scratch)
        else:
            run.append(item)
    if run:
        requests += _direct_requests(run, scratch)
    return tuple(requests)


def _continues(before: TensorSource, after: TensorSource) -> bool:
    gap = after.file_offset - (before.file_offset + before.num_bytes)
    return before.file == after.file and 0 <= gap <= GAP_SCRATCH_BYTES


def _direct_requests(run: Sequence[ReadItem], scratch: Scratch) -> Iterator[Request]:
    """Yield the requests for neighbours in one file, gaps included."""
    buffers: list[memoryview] = []
    position = start = run[0].source.file_offset
    for item in run:
        if item.source.file_offset > position:
            buffers.append(scratch.gap.memory()[: item.source.file_offset - position])
        buffers.append(item.region.memory()[: item.source.num_bytes])
        position = item.source.file_offset + item.source.num_bytes
    while buffers:
        taken, buffers = _split(buffers)
        num_bytes = sum(len(buffer) for buffer in taken)
        yield Request(file=run[0].source.file, file_offset=start, buffers=tuple(taken), num_bytes=num_bytes)
        start += num_bytes


def _split(buffers: list[memoryview]) -> tuple[list[memoryview], list[memoryview]]:
    """Return the buffers of the next request and what is left after it."""
    taken: list[memoryview] = []
    room = REQUEST_BYTES
    for index, buffer in enumerate(buffers):
        if len(taken) == MAX_BUFFERS or room == 0:
            return taken, buffers[index:]
        if len(buffer) > room:
            return [*taken, buffer[:room]], [buffer[room:], *buffers[index + 1 :]]
        taken.append(buffer)
        room -= len(buffer)
    return taken, []


def _cast_requests(item: ReadItem, scratch: Scratch) -> Iterator[Request]:
    """Yield the requests for one tensor that goes through the scratch, piece by piece."""
    assert scratch.cast is not None, "the caller reserves a cast region where something is cast"
    source = item.source
    dtype = torch_dtype(source.dtype)
    target = item.tensor.view(-1)
    step = CAST_SCRATCH_BYTES // dtype.itemsize
    for first in range(0, target.numel(), step):
        count = min(step, target.numel() - first)
        num_bytes = count * dtype.itemsize
        yield Request(
            file=source.file,
            file_offset=source.file_offset + first * dtype.itemsize,
            buffers=(scratch.cast.memory()[:num_bytes],),
            num_bytes=num_bytes,
            cast=(target[first : first + count], scratch.cast.tensor(dtype, (count,))),
        )


class ShardReader:
    """Executes requests; used by one thread at a time."""

    def __init__(self, files: OpenFiles, backend: DeviceBackend) -> None:
        """Read from `files`; casts are the backend's copies."""
        self._files = files
        self._backend = backend

    def read(self, requests: Iterable[Request], is_cancelled: Callable[[], bool] = lambda: False) -> int:
        """Execute requests in order.

        Args:
            requests: As from `make_requests`.
            is_cancelled: Asked before each request; True ends the call, with part of the bytes in place.

        Returns:
            Bytes read.

        Raises:
            TruncatedShardError: A file ends too early.
            ShardChangedError: A file is not the one that was checked.
            ShardReadError: The system refuses, and goes on refusing where that may be passing.
        """
        total = 0
        checked: set[str] = set()
        for request in requests:
            if is_cancelled():
                break
            if request.file not in checked:
                self._files.check_unchanged(request.file)
                checked.add(request.file)
            self._read(request)
            if request.cast is not None:
                self._backend.copy(*request.cast)
            total += request.num_bytes
        return total

    def close(self) -> None:
        """Close all files."""
        self._files.close()

    def _read(self, request: Request) -> None:
        buffers = list(request.buffers)
        done = 0
        while done < request.num_bytes:
            got = self._preadv(request.file, buffers, request.file_offset + done)
            if got == 0:
                raise TruncatedShardError(
                    str(self._files.path(request.file)),
                    offset=request.file_offset,
                    needed_bytes=request.num_bytes,
                    got_bytes=done,
                )
            done += got
            buffers = _after(buffers, got)

    def _preadv(self, file: str, buffers: list[memoryview], offset: int) -> int:
        """Read once, again where the error may be passing."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return os.preadv(self._files.descriptor(file), buffers, offset)
            except OSError as error:
                if error.errno not in _TRANSIENT_ERRORS or attempt == _ATTEMPTS:
                    reason = error.strerror or str(error)
                    raise ShardReadError(str(self._files.path(file)), offset=offset, reason=reason) from error
                # A network file system wants a stale handle opened anew.
                self._files.reopen(file)
        raise AssertionError("the last attempt returns or raises")


def _after(buffers: list[memoryview], num_bytes: int) -> list[memoryview]:
    """Return what is left of `buffers` when the first `num_bytes` bytes are filled."""
    for index, buffer in enumerate(buffers):
        if num_bytes < len(buffer):
            return [buffer[num_bytes:], *buffers[index + 1 :]]
        num_bytes -= len(buffer)
    return []
