"""How fast a disk is read cold, measured with a file of our own.

Reads as a stream of a checkpoint does, in large requests through the page cache, after dropping the file from
it. On a file system that lives in memory, or one that keeps its own cache, the rate is that memory's.
"""

from __future__ import annotations

import errno
import mmap
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from bayplan.schemas.errors import BayplanError
from bayplan.schemas.hardware import Disk
from bayplan.schemas.progress import Progress
from bayplan.schemas.sizes import format_size

Clock = Callable[[], int]
"""Nanoseconds from any start."""

CALIBRATION_FILE_BYTES = 512 * 2**20
"""Large enough that a disk's own cache and read-ahead at the ends do not decide."""

_NANOSECONDS = 10**9
_REQUEST_BYTES = 8 * 2**20
"""As the executor's reader asks."""
_SMALL_READ_BYTES = 4096
_SMALL_READS = 65
_PASSES = 3


class CalibrationError(BayplanError):
    """A rate cannot be measured here."""


def round_rate(value: int) -> int:
    """Return `value` rounded to three significant digits: more would be noise; halves are rounded up."""
    unit: int = 10 ** max(0, len(str(value)) - 3)
    return (value + unit // 2) // unit * unit


def measure_disk(folder: Path, progress: Progress, *, file_bytes: int, clock: Clock) -> Disk:
    """Return read rate and latency of the disk that holds `folder`.

    The rate is the median of three passes over a new file of random bytes, the latency the median of small
    reads spread over it. The file has no name, so nothing stays behind even if the process is killed.

    Args:
        folder: Where the file is written.
        progress: Told the bytes written and read.
        file_bytes: Size of the file.
        clock: Nanoseconds from any start.

    Raises:
        CalibrationError: The disk is full.
        CalibrationError: The folder cannot be written to, or the file not be read back.
        CalibrationError: The system cannot drop a file from its page cache.
    """
    if not hasattr(os, "posix_fadvise"):
        raise CalibrationError(
            "this system cannot drop a file from its cache, so no cold read can be timed",
            hint="leave out --calibrate, or declare the machine with --disk",
        )
    total_bytes = (1 + _PASSES) * file_bytes
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file, mmap.mmap(-1, _REQUEST_BYTES) as buffer:
            for done_bytes in _write(file.fileno(), file_bytes):
                progress("measure disk", done_bytes, total_bytes)
            times_ns = []
            for number in range(_PASSES):
                times_ns.append(_pass_ns(file.fileno(), buffer, file_bytes, clock))
                progress("measure disk", (2 + number) * file_bytes, total_bytes)
            latency_ns = _latency_ns(file.fileno(), file_bytes, clock)
    except OSError as error:
        raise _failure(error, folder, file_bytes) from error
    read_ns = max(1, statistics.median_low(times_ns))
    return Disk(
        read_bytes_per_second=max(1, round_rate(file_bytes * _NANOSECONDS // read_ns)),
        latency_ns=round_rate(latency_ns),
    )


def _write(descriptor: int, file_bytes: int) -> Iterator[int]:
    """Write random bytes, which no file system makes smaller, and yield how many there are so far."""
    done_bytes = 0
    while done_bytes < file_bytes:
        done_bytes += os.write(descriptor, os.urandom(min(_REQUEST_BYTES, file_bytes - done_bytes)))
        yield done_bytes
    # Pages that are not yet on the disk cannot be dropped.
    os.fsync(descriptor)


def _pass_ns(descriptor: int, buffer: mmap.mmap, file_bytes: int, clock: Clock) -> int:
    """Return the time of one cold pass over the file, in nanoseconds."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    start_ns = clock()
    done_bytes = 0
    while done_bytes < file_bytes:
        done_bytes += _read(descriptor, buffer, _REQUEST_BYTES, done_bytes)
    return clock() - start_ns


def _latency_ns(descriptor: int, file_bytes: int, clock: Clock) -> int:
    """Return the median time of small cold reads at places spread over the file, in nanoseconds."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    times_ns = []
    with mmap.mmap(-1, _SMALL_READ_BYTES) as buffer:
        for number in range(_SMALL_READS):
            # Every other place first, so that no read continues the one before it.
            place = number * 32 % _SMALL_READS
            offset = place * file_bytes // _SMALL_READS // _SMALL_READ_BYTES * _SMALL_READ_BYTES
            start_ns = clock()
            _read(descriptor, buffer, _SMALL_READ_BYTES, offset)
            times_ns.append(clock() - start_ns)
    return statistics.median_low(times_ns)


def _read(descriptor: int, buffer: mmap.mmap, num_bytes: int, offset: int) -> int:
    with memoryview(buffer) as view:
        got_bytes = os.preadv(descriptor, [view[:num_bytes]], offset)
    if got_bytes == 0:
        raise OSError(errno.EIO, "the file ends too early")
    return got_bytes


def _failure(error: OSError, folder: Path, file_bytes: int) -> CalibrationError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CalibrationError(
            "no room for the file that the disk is measured with",
            where=str(folder),
            needed=f"{file_bytes} free bytes ({format_size(file_bytes)})",
            hint="free some, or give a folder on another disk",
        )
    return CalibrationError(
        "cannot measure the disk",
        where=str(folder),
        got=error.strerror or type(error).__name__,
        needed="a folder that can be written to",
    )
