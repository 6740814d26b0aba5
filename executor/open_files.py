"""The open shards of a checkpoint: each opened once, a bounded number at a time, and known to be unchanged.

A file that was checked before loading may be written to later; its bytes would then be garbage in a right
header's order. Length, time and inode are compared whenever a file is opened and before each use.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from bayplan.executor.errors import ShardChangedError, ShardReadError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_OPEN_FILES = 64
"""Most files open at once; far below any system's limit, and a block lies in one or two."""


class FileStamp(msgspec.Struct, frozen=True, kw_only=True):
    """What tells one state of a file from another without reading it."""

    num_bytes: int
    modified_ns: int
    inode: int

    @staticmethod
    def of(status: os.stat_result) -> FileStamp:
        """Return the stamp in what `stat` says."""
        return FileStamp(num_bytes=status.st_size, modified_ns=status.st_mtime_ns, inode=status.st_ino)


class OpenFiles:
    """File descriptors by shard name; used by one thread at a time."""

    def __init__(
        self, folder: Path, stamps: Mapping[str, FileStamp], *, max_open: int = MAX_OPEN_FILES
    ) -> None:
        """Serve the files of `folder` that have a stamp, as they were when it was taken."""
        self._folder = folder
        self._stamps = stamps
        self._max_open = max_open
        self._descriptors: OrderedDict[str, int] = OrderedDict()

    def path(self, file: str) -> Path:
        """Return where the file is."""
        return self._folder / file

    def descriptor(self, file: str) -> int:
        """Return a descriptor to read from; valid until the next call.

        Raises:
            ShardReadError: The file cannot be opened.
            ShardChangedError: It is not the one that was checked.
        """
        descriptor = self._descriptors.get(file)
        if descriptor is None:
            descriptor = self._open(file)
        self._descriptors.move_to_end(file)
        return descriptor

    def check_unchanged(self, file: str) -> None:
        """Compare the open file with its stamp.

        Raises:
            ShardReadError: The file cannot be opened.
            ShardChangedError: It is not the one that was checked.
        """
        if FileStamp.of(os.fstat(self.descriptor(file))) != self._stamps[file]:
            raise ShardChangedError(str(self.path(file)))

    def reopen(self, file: str) -> None:
        """Close the file, so that its next use opens it anew."""
        descriptor = self._descriptors.pop(file, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Close all files. May be called twice."""
        while self._descriptors:
            _, descriptor = self._descriptors.popitem()
            os.close(descriptor)

    def _open(self, file: str) -> int:
        path = self.path(file)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ShardReadError(str(path), offset=None, reason=error.strerror or str(error)) from error
        if FileStamp.of(os.fstat(descriptor)) != self._stamps[file]:
            os.close(descriptor)
            raise ShardChangedError(str(path))
        self._descriptors[file] = descriptor
        if len(self._descriptors) > self._max_open:
            _, oldest = self._descriptors.popitem(last=False)
            os.close(oldest)
        return descriptor
