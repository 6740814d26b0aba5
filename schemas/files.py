"""Writing files so that nobody ever meets half of one.

Owns the one way in which bayplan puts a file down: beside the target first, renamed over it when complete.
Knows nothing of what is in the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

from bayplan.schemas.errors import BayplanError

_MAX_WRITE_BYTES = 16 * 2**20
"""One `write` call; small enough that an interrupt is answered at once."""

_HINTS = {
    errno.ENOSPC: "free some space or write to another disk; the old file, if any, is untouched",
    errno.EDQUOT: "free some of your quota or write to another disk; the old file, if any, is untouched",
    errno.EFBIG: "raise this process's file size limit (`ulimit -f`); the old file, if any, is untouched",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EROFS: "choose a folder that you may write to",
    errno.ENOENT: "create the folder first",
    errno.ENOTDIR: "create the folder first",
    errno.ENAMETOOLONG: "choose a shorter name",
}


class OutputError(BayplanError):
    """A file could not be written; what stood there before still does."""


def write_atomic(path: Path | str, data: bytes) -> None:
    """Make the file at `path` hold exactly `data`, all of it or nothing.

    An existing file keeps its mode, and a symbolic link stays one: the file that it points to is replaced.
    A device or pipe, such as `/dev/stdout`, is written to as it is, since there is nothing to replace.

    Args:
        path: File to create or replace.
        data: Its whole contents.

    Raises:
        OutputError: `path` is a folder.
        OutputError: The system refuses, in its own words: disk full, no permission, no such folder.
    """
    try:
        mode = _mode_of(Path(path))
        if mode is not None and stat.S_ISDIR(mode):
            raise OutputError(
                "cannot write the file",
                where=str(path),
                got="a folder",
                needed="the name of a file",
                hint="add a file name, such as plan.json",
            )
        if mode is not None and not stat.S_ISREG(mode):
            _write_through(Path(path), data)
        else:
            _replace(Path(os.path.realpath(path)), data, mode)
    except OSError as error:
        code = error.errno or 0
        raise OutputError(
            "cannot write the file",
            where=str(path),
            got=os.strerror(code) if code else type(error).__name__,
            hint=_HINTS.get(code, ""),
        ) from error


def _mode_of(target: Path) -> int | None:
    """Return type and permissions of what stands at `target`, None if nothing does."""
    try:
        return target.stat().st_mode
    except FileNotFoundError:
        return None


def _write_through(target: Path, data: bytes) -> None:
    descriptor = os.open(target, os.O_WRONLY)
    try:
        _write_all(descriptor, data)
    finally:
        os.close(descriptor)


def _replace(target: Path, data: bytes, mode: int | None) -> None:
    """Write a neighbour of `target` and rename it over `target`; on any failure remove the neighbour."""
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".bayplan-", suffix=".tmp")
    try:
        try:
            os.fchmod(descriptor, stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask())
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(target.parent)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view[:_MAX_WRITE_BYTES]) :]


def _umask() -> int:
    """Return the process's mask for new files, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Make the rename itself last through a power cut, where the file system can.

    The file is in place already: that a folder may be written to but not read, or that a network file system
    refuses this call on folders, is no failure to write.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
