"""The open shards of a checkpoint: each opened once, a bounded number at a time, and known to be unchanged.

A file that was checked before loading may be written to later; its bytes would then be garbage in a right
header's order. Length, times and inode are compared whenever a file is opened and before each use.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from io import FileIO
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
    changed_ns: int
    """Of the status: no program can set it back, as it can the time of modification."""
    inode: int

    @staticmethod
    def of(status: os.stat_result) -> FileStamp:
        """Return the stamp in what `stat` says."""
        return FileStamp(
            num_bytes=status.st_size,
            modified_ns=status.st_mtime_ns,
            changed_ns=status.st_ctime_ns,
            inode=status.st_ino,
        )


class OpenFiles:
    """Open files by shard name; used by one thread at a time."""

    def __init__(
        self, folder: Path, stamps: Mapping[str, FileStamp], *, max_open: int = MAX_OPEN_FILES
    ) -> None:
        """Serve the files of `folder` that have a stamp, as they were when it was taken."""
        self._folder = folder
        self._stamps = stamps
        self._max_open = max_open
        # Objects and not numbers: what an interrupt cuts off is closed with the last reference.
        self._files: OrderedDict[str, FileIO] = OrderedDict()

    def path(self, file: str) -> Path:
        """Return where the file is."""
        return self._folder / file

    def descriptor(self, file: str) -> int:
        """Return a descriptor to read from; valid until the next call.

        Raises:
            ShardReadError: The file cannot be opened.
            ShardChangedError: It is not the one that was checked.
        """
        opened = self._files.get(file)
        if opened is None:
            opened = self._open(file)
        self._files.move_to_end(file)
        return opened.fileno()

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
        opened = self._files.pop(file, None)
        if opened is not None:
            opened.close()

    def close(self) -> None:
        """Close all files. May be called twice."""
        while self._files:
            _, opened = self._files.popitem()
            opened.close()

    def _open(self, file: str) -> FileIO:
        path = self.path(file)
        try:
            opened = FileIO(path)
        except OSError as error:
            raise ShardReadError(str(path), offset=None, reason=error.strerror or str(error)) from error
        if FileStamp.of(os.fstat(opened.fileno())) != self._stamps[file]:
            opened.close()
            raise ShardChangedError(str(path))
        self._files[file] = opened
        if len(self._files) > self._max_open:
            _, oldest = self._files.popitem(last=False)
            oldest.close()
        return opened
